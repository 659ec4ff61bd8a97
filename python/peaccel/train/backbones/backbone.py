"""The interface of all backbones: images -> features."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from peaccel.train.backbones.network import ImageInput, Network, TextInput
from peaccel.train.backbones.pooling import Avg, AvgMax, GeM

__all__ = ["POOLINGS", "Backbone", "activate_dropout"]

POOLINGS = {"own": None, "avg": Avg, "avg+max": AvgMax, "gem": GeM, "none": nn.Identity}


class Backbone(nn.Module):
    """A network with the pooling of one's choice: images -> features [N, F].

    Parameters
    ----------
    network
        Makes feature maps.
    pooling
        "own" is what the network itself ends with; "avg", "avg+max" (their sum) and "gem" (whose exponent is learned)
        make [N, C] of its map; "none" leaves the map [N, C, H, W].
    frozen_bn
        Batch normalisation keeps its statistics and its affine map, in training mode too: both are buffers, which
        neither `train` nor `requires_grad_` moves and no optimizer finds.
    dropout
        Rate at which entries of the output are dropped in training mode.

    Attributes
    ----------
    features : int
        F; C for pooling "none".
    input : ImageInput or TextInput
        The images or texts that the network expects.

    Raises
    ------
    ValueError
        The network has no feature map [N, C, H, W], and pooling is not its own.
    """

    features: int
    input: ImageInput | TextInput

    def __init__(
        self, network: Network, *, pooling: str = "own", frozen_bn: bool = False, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.network = network
        self.input = network.input
        self.features = network.width if pooling == "own" else network.channels
        kind = POOLINGS[pooling]
        self.pooling = kind() if kind else None
        self.dropout = nn.Dropout(dropout)
        self.frozen_bn = frozen_bn
        if kind and not (len(self.map_shape()) == 3 and self.map_shape()[0] == network.channels):
            raise ValueError(
                f"backbone: pooling is {pooling!r}, expected 'own': the network has no feature map [N, C, H, W]"
            )
        if frozen_bn:
            for norm in self._batch_norms():
                for name, parameter in list(norm.named_parameters(recurse=False)):
                    delattr(norm, name)
                    norm.register_buffer(name, parameter.detach())

    def forward(self, images: Tensor) -> Tensor:
        """Map images, or tokens, to features [N, F]."""
        return self.pool(self.maps(images))

    def maps(self, images: Tensor) -> Tensor:
        """Map images to feature maps [N, C, H, W], for a head that wants both these and what `pool` makes of them."""
        return self.network.maps(images)

    def pool(self, maps: Tensor) -> Tensor:
        """Map feature maps to features [N, F]."""
        features: Tensor = self.dropout(self.network.embed(maps) if self.pooling is None else self.pooling(maps))
        return features

    @torch.no_grad()
    def map_shape(self) -> tuple[int, ...]:
        """Shape (C, H, W) of the feature map of an image of the expected size."""
        modes = [(module, module.training) for module in self.modules()]
        self.eval()
        shape = self.maps(self.input.zeros().to(next(self.parameters()).device)).shape
        for module, mode in modes:
            module.training = mode
        return tuple(shape[1:])

    def train(self, mode: bool = True) -> Backbone:
        """Set training mode, in which frozen batch normalisation stays as it is."""
        super().train(mode)
        if self.frozen_bn:
            for norm in self._batch_norms():
                norm.eval()
        return self

    def _batch_norms(self) -> list[nn.Module]:
        kinds = (nn.BatchNorm1d, nn.BatchNorm2d, nn.SyncBatchNorm)
        return [module for module in self.network.modules() if isinstance(module, kinds)]


def activate_dropout(module: nn.Module) -> None:
    """Set evaluation mode for everything but dropout, whose passes are then samples.

    References
    ----------
    Gal & Ghahramani, Dropout as a Bayesian Approximation, ICML 2016.
    """
    module.eval()
    for part in module.modules():
        # timm's dense layers have no module for dropout but a rate.
        if isinstance(part, nn.Dropout) or getattr(part, "drop_rate", False):
            part.training = True
