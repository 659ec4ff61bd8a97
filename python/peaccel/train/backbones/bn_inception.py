"""BN-Inception (Ioffe & Szegedy, ICML 2015, arXiv:1502.03167, figure 5), under the names of its published weights."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from peaccel.train.backbones import weights
from peaccel.train.backbones.network import ImageInput, Network

__all__ = ["BNInception"]

# Outputs of a block's 1x1 branch, of its 3x3 branch (reduced, 3x3), of its double 3x3 branch (reduced, 3x3, 3x3) and of
# its pooled branch. Where the first and last are 0, the others have stride 2 and the pooled one passes its input on.
BLOCKS = {
    "3a": (64, (64, 64), (64, 96, 96), 32),
    "3b": (64, (64, 96), (64, 96, 96), 64),
    "3c": (0, (128, 160), (64, 96, 96), 0),
    "4a": (224, (64, 96), (96, 128, 128), 128),
    "4b": (192, (96, 128), (96, 128, 128), 128),
    "4c": (160, (128, 160), (128, 160, 160), 128),
    "4d": (96, (128, 192), (160, 192, 192), 128),
    "4e": (0, (128, 192), (192, 256, 256), 0),
    "5a": (352, (192, 320), (160, 224, 224), 128),
    "5b": (352, (192, 320), (192, 224, 224), 128),
}


class BNInception(Network):
    """BN-Inception without its classifier.

    Its weights were published for pixels in 0..255 less a mean, channels in the order blue, green, red: `input` says
    the same for x in [0, 1], and `maps` reverses the channels.
    """

    input = ImageInput((224, 224), (128 / 255, 117 / 255, 104 / 255), (1 / 255, 1 / 255, 1 / 255))
    channels = width = 1024
    any_size = True

    def __init__(self) -> None:
        super().__init__()
        self._add("conv1_7x7_s2", 3, 64, 7, 2)
        self._add("conv2_3x3_reduce", 64, 64, 1)
        self._add("conv2_3x3", 64, 192, 3)
        width = 192
        for block, (single, (reduced, triple), (reduced_twice, first, second), pooled) in BLOCKS.items():
            name, stride = f"inception_{block}", 1 if single else 2
            if single:
                self._add(f"{name}_1x1", width, single, 1)
            self._add(f"{name}_3x3_reduce", width, reduced, 1)
            self._add(f"{name}_3x3", reduced, triple, 3, stride)
            self._add(f"{name}_double_3x3_reduce", width, reduced_twice, 1)
            self._add(f"{name}_double_3x3_1", reduced_twice, first, 3)
            self._add(f"{name}_double_3x3_2", first, second, 3, stride)
            if pooled:
                self._add(f"{name}_pool_proj", width, pooled, 1)
            width = single + triple + second + (pooled or width)

    def maps(self, images: Tensor) -> Tensor:
        """Map images [N, 3, H, W] to feature maps [N, 1024, H / 32, W / 32].

        Raises
        ------
        ValueError
            H or W is no multiple of 32: the branches' maps would differ in size.
        """
        if images.shape[2] % 32 or images.shape[3] % 32:
            raise ValueError(f"bn_inception: images has shape {tuple(images.shape)}, expected H and W multiples of 32")
        x = _halved(self._unit("conv1_7x7_s2", images.flip(1)))
        x = _halved(self._unit("conv2_3x3", self._unit("conv2_3x3_reduce", x)))
        for block, (single, *_) in BLOCKS.items():
            x = self._block(f"inception_{block}", x, passes=not single, largest=block == "5b")
        return x

    def load(self, state: weights.State, where: str) -> None:
        """Take over published weights; the classifier `last_linear` may be among them."""
        weights.fit(self, state, where, ignored=("last_linear.",))

    def _add(self, name: str, inputs: int, outputs: int, kernel: int, stride: int = 1) -> None:
        self.add_module(name, nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2))
        self.add_module(f"{name}_bn", nn.BatchNorm2d(outputs))

    def _unit(self, name: str, x: Tensor) -> Tensor:
        return torch.relu(self.get_submodule(f"{name}_bn")(self.get_submodule(name)(x)))

    def _block(self, name: str, x: Tensor, passes: bool, largest: bool) -> Tensor:
        triple = self._unit(f"{name}_3x3", self._unit(f"{name}_3x3_reduce", x))
        double = self._unit(f"{name}_double_3x3_1", self._unit(f"{name}_double_3x3_reduce", x))
        double = self._unit(f"{name}_double_3x3_2", double)
        if passes:
            return torch.cat([triple, double, _halved(x)], 1)
        pool = nn.functional.max_pool2d if largest else nn.functional.avg_pool2d
        pooled = self._unit(f"{name}_pool_proj", pool(x, 3, 1, 1))
        return torch.cat([self._unit(f"{name}_1x1", x), triple, double, pooled], 1)


def _halved(x: Tensor) -> Tensor:
    return nn.functional.max_pool2d(x, 3, 2, ceil_mode=True)
