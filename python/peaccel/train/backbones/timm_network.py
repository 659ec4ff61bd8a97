"""The networks of timm, by name."""

from __future__ import annotations

from statistics import fmean
from typing import Any

import timm
from torch import Tensor

from peaccel.train.backbones import weights
from peaccel.train.backbones.network import ImageInput, Network

__all__ = ["TimmNetwork", "exists", "names"]


def exists(name: str) -> bool:
    """Whether timm has a network of this name, such as resnet50 or resnet50.a1_in1k."""
    return timm.is_model(name) and ("." not in name or name in timm.list_pretrained())


def names() -> list[str]:
    """Names of timm's networks."""
    return [*timm.list_models(), *timm.list_pretrained()]


class TimmNetwork(Network):
    """A network of timm without its classifier; nothing is downloaded.

    Parameters
    ----------
    name
        One for which `exists` is true.
    dropout
        Rate for DenseNets, which drop what every layer adds, in the papers and here; others have no such place.
    image_size
        Side of the images in pixels, which transformers must know; None for the size of the published weights.
    options
        More arguments of ``timm.create_model``.
    """

    model: Any

    def __init__(self, name: str, dropout: float = 0.0, image_size: int | None = None, **options: Any) -> None:
        super().__init__()
        config = timm.models.get_pretrained_cfg(name)
        self.any_size = config is None or not config.fixed_input_size
        if image_size is not None and not self.any_size:
            options = {"img_size": image_size, **options}
        self.drops = name.startswith("densenet")
        if self.drops:
            options = {"proj_drop_rate": dropout, **options}
        self.model = timm.create_model(name, pretrained=False, num_classes=0, **options)
        self.channels = self.model.num_features
        self.width = self.model.head_hidden_size
        self.input = _input(self.model.pretrained_cfg, options)

    def maps(self, images: Tensor) -> Tensor:
        """Map images to what timm calls features: of convolutional networks, feature maps [N, C, H, W]."""
        maps: Tensor = self.model.forward_features(images)
        return maps

    def embed(self, maps: Tensor) -> Tensor:
        """Pool as the network's own classifier would have it."""
        features: Tensor = self.model.forward_head(maps, pre_logits=True)
        return features

    def load(self, state: weights.State, where: str) -> None:
        """Take over weights under timm's names; those of the classifier may be among them."""
        classifier = self.model.pretrained_cfg.get("classifier") or ()
        classifiers = (classifier,) if isinstance(classifier, str) else classifier
        weights.fit(self.model, state, where, ignored=tuple(f"{name}." for name in classifiers))


def _input(config: dict[str, Any], options: dict[str, Any]) -> ImageInput:
    size = options.get("img_size", config["input_size"][1:])
    channels = options.get("in_chans", 3)
    mean, std = (config[key] if channels == 3 else (fmean(config[key]),) * channels for key in ("mean", "std"))
    sides = (size, size) if isinstance(size, int) else tuple(size)
    return ImageInput(sides, tuple(mean), tuple(std), config["crop_pct"])
