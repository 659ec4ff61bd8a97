"""The images of HIB's own task: numbers each of whose digits may be occluded by a rectangle of its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from peaccel.data import digits
from peaccel.data.corruption import KINDS, Corruption, Pictures
from peaccel.data.digits import SIDE, DigitsSettings
from reproduction.tasks import Part

__all__ = ["ComposedAnew", "occluded_parts"]


class ComposedAnew:
    """Training numbers, as a map-style dataset: composed of other scans, and occluded anew, whenever one is asked for.

    Draws come from torch's generator, which `peaccel.train.fit` seeds for each item.

    Parameters
    ----------
    strips
        Clean training images: of the digits in them numbers are composed.
    corruption
        The probability of a digit's occlusion; `severity` times `occlusion` are the rectangle's least and greatest
        height and width, in shares of the digit's, drawn evenly and apart.
    """

    def __init__(self, strips: Pictures, corruption: Corruption) -> None:
        scans = _apart(strips.images)
        self.written = strips.labels[:, None] // 10 ** np.arange(scans.shape[1])[::-1] % 10
        self.pools = [scans[self.written == digit] for digit in range(10)]
        self.corruption = corruption

    def __len__(self) -> int:
        """Count the numbers of an epoch."""
        return len(self.written)

    def __getitem__(self, row: int) -> Tensor:
        """An image [1, 28, 28 digits] of the number in this row."""
        rng = np.random.default_rng(int(torch.randint(2**62, ())))
        scans = np.stack([self.pools[digit][rng.integers(len(self.pools[digit]))] for digit in self.written[row]])
        hidden = _rectangles(len(scans), self.corruption, self.corruption.probability, rng)
        return torch.from_numpy(_together(np.where(hidden, np.float32(0), scans)[None]))


@lru_cache(maxsize=2)
def occluded_parts(settings: DigitsSettings, seed: int) -> Mapping[str, Part]:
    """Draw the images of "train", "validation", "gallery" and "query".

    Validation images are occluded as training images are, and of queries each digit is; `severity` of mixed images is
    the share of their area that is occluded. Training sees mixed images by `ComposedAnew` alone.
    """
    found = {}
    for number, (name, strips) in enumerate(digits.make("mnist", settings, seed).items()):
        rng = np.random.default_rng((seed, number))
        probability = settings.corruption.probability if name in ("train", "validation") else 1.0
        labels = np.searchsorted(np.unique(strips.labels), strips.labels)
        found[name] = Part(strips, _occluded(strips, settings.corruption, probability, rng), labels, None)
    return found


def _occluded(strips: Pictures, corruption: Corruption, probability: float, rng: np.random.Generator) -> Pictures:
    scans = _apart(strips.images)
    hidden = _rectangles(scans[..., 0, 0].size, corruption, probability, rng).reshape(scans.shape)
    share = hidden.mean((1, 2, 3)).astype(np.float32)
    kind = np.where(share > 0, KINDS.index("occlusion"), 0)
    return replace(strips, images=_together(np.where(hidden, np.float32(0), scans)), kind=kind, severity=share)


def _rectangles(n: int, corruption: Corruption, probability: float, rng: np.random.Generator) -> NDArray[np.bool_]:
    """[n, 28, 28], what a rectangle of any place hides of each digit, with this probability."""
    sides = np.rint(SIDE * corruption.occlusion * rng.uniform(*corruption.severity, (n, 2))).astype(int)
    starts = np.floor(rng.random((n, 2)) * (SIDE - sides + 1)).astype(int)
    sides[rng.random(n) >= probability] = 0
    along = np.arange(SIDE)
    within = (along >= starts[..., None]) & (along < (starts + sides)[..., None])
    return np.asarray(within[:, 0, :, None] & within[:, 1, None, :])


def _apart(images: NDArray[np.float32]) -> NDArray[np.float32]:
    """Strips [N, 28, 28 digits] as digits [N, digits, 28, 28]."""
    return images.reshape(len(images), SIDE, -1, SIDE).transpose(0, 2, 1, 3)


def _together(scans: NDArray[np.float32]) -> NDArray[np.float32]:
    """Undo `_apart`."""
    return scans.transpose(0, 2, 1, 3).reshape(len(scans), SIDE, -1)
