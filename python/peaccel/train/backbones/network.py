"""The parts of every backbone: layers up to the last feature map, those after it, and the input they expect."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from peaccel.train.backbones.weights import State

__all__ = ["ImageInput", "Network", "TextInput"]


@dataclass(frozen=True)
class ImageInput:
    """Images that a network expects: (x - mean) / std of x in [0, 1], channels in the order red, green, blue."""

    size: tuple[int, int]
    """Height and width in pixels."""
    mean: tuple[float, ...] = (0.485, 0.456, 0.406)
    """Mean, which is subtracted, one value per channel."""
    std: tuple[float, ...] = (0.229, 0.224, 0.225)
    """Standard deviation, by which the difference is divided, one value per channel."""

    crop: float = 0.875
    """Share of the shorter side that the square in the middle keeps, which is cut out of an image; in (0, 1]."""

    def zeros(self) -> Tensor:
        """One image [1, C, H, W] of zeros."""
        return torch.zeros(1, len(self.mean), *self.size)


@dataclass(frozen=True)
class TextInput:
    """Tokens that a text tower expects."""

    model: str
    """Name of the open_clip model whose tokenizer is used."""
    length: int
    """Tokens of a text, after padding or cutting."""

    def zeros(self) -> Tensor:
        """One text [1, length] of zeros."""
        return torch.zeros(1, self.length, dtype=torch.int64)

    def tokenize(self, texts: list[str]) -> Tensor:
        """Turn texts into tokens [N, length], int64."""
        import open_clip

        tokens: Tensor = open_clip.get_tokenizer(self.model, context_length=self.length)(texts)
        return tokens


class Network(nn.Module):
    """A network cut in two where its last feature map is.

    Attributes
    ----------
    input
        The images or texts that it expects.
    channels
        C of its feature maps.
    width
        F of what `embed` makes of them.
    drops
        Whether dropout has a place inside it; where not, the features are dropped.
    any_size
        Whether it takes images of other sizes than that of `input`.
    """

    input: ImageInput | TextInput
    channels: int
    width: int
    drops = False
    any_size = False

    def maps(self, images: Tensor) -> Tensor:
        """Map images to feature maps [N, C, H, W]."""
        raise NotImplementedError

    def embed(self, maps: Tensor) -> Tensor:
        """Map feature maps to features [N, F] as the network itself does."""
        return maps.mean((2, 3))

    def load(self, state: State, where: str) -> None:
        """Take over weights under their published names; ValueError beginning with `where` if they do not fit."""
        raise NotImplementedError
