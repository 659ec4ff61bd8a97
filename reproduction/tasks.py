"""The images of each task."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from peaccel.data import digits
from peaccel.data.corruption import KINDS, Pictures, corrupt
from peaccel.data.digits import DigitsSettings
from reproduction import photographs
from reproduction.photographs import Patches, PlacesSettings

__all__ = ["Part", "images", "parts"]


@dataclass(frozen=True)
class Part:
    """The images of a part, clean and corrupted."""

    clean: Pictures
    mixed: Pictures
    labels: NDArray[np.int64]
    """[N] in 0..C-1, in the order of the classes' numbers."""
    position: NDArray[np.float64] | None
    """[N, 2] of photographs, in pixels."""


@lru_cache(maxsize=2)
def parts(
    settings: DigitsSettings | PlacesSettings,
    trained_kinds: tuple[str, ...],
    seed: int,
    fashion_root: Path | None = None,
) -> Mapping[str, Part]:
    """Draw the images of "train", "validation", "gallery", "query", and of numbers also "seen".

    They are of Fashion-MNIST where its folder is given.
    """
    clean: Mapping[str, Pictures]
    if isinstance(settings, DigitsSettings):
        clean = digits.make("fashion" if fashion_root else "mnist", settings, seed, fashion_root)
    else:
        clean = photographs.make(settings, seed)
    found = {}
    for number, (part, pictures) in enumerate(clean.items()):
        kinds = trained_kinds if part in ("train", "validation") else KINDS[1:]
        mixed = corrupt(pictures, settings.corruption, (seed, number), kinds)
        labels = np.searchsorted(np.unique(pictures.labels), pictures.labels)
        found[part] = Part(pictures, mixed, labels, pictures.position if isinstance(pictures, Patches) else None)
    return found


def images(pictures: Pictures) -> Tensor:
    """As a network takes them, [N, 1, H, W]."""
    return torch.from_numpy(pictures.images)[:, None]
