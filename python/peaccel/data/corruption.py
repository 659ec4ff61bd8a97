"""Pictures of known quality: cropped, occluded or blurred by a known severity."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

__all__ = ["KINDS", "Corruption", "Pictures", "corrupt", "corrupted", "damage", "window"]

KINDS = ("clean", "crop", "occlusion", "blur")


@dataclass(frozen=True)
class Pictures:
    """Grey images with their classes and the record of how each was corrupted."""

    images: NDArray[np.float32]
    """[N, H, W] in [0, 1]."""
    labels: NDArray[np.int64]
    """[N]."""
    kind: NDArray[np.int64]
    """[N], index into `KINDS`."""
    severity: NDArray[np.float32]
    """[N] in [0, 1]; 0 where clean."""

    def __len__(self) -> int:
        """Count the images."""
        return len(self.labels)


P = TypeVar("P", bound=Pictures)


@dataclass(frozen=True)
class Corruption:
    """How strongly images are corrupted: each by one kind, drawn evenly, at a severity drawn evenly from a range."""

    probability: float
    """Probability that an image is corrupted, in [0, 1]."""
    severity: tuple[float, float]
    """Least and greatest severity, within [0, 1]."""
    crop: float
    """Share of height and of width cut away at severity 1; what is left is stretched back."""
    occlusion: float
    """Share of height and of width that the black patch covers at severity 1."""
    blur: float
    """Standard deviation of the Gaussian blur at severity 1, in pixels."""


def corrupt(pictures: P, corruption: Corruption, seed: int | Sequence[int], kinds: Sequence[str] = KINDS[1:]) -> P:
    """Crop, occlude or blur each image with a fixed probability.

    Parameters
    ----------
    pictures
        Clean images.
    corruption
        Probability and levels.
    seed
        Equal seeds give equal arrays.
    kinds
        Those of `KINDS` that are drawn from, each as often.

    Returns
    -------
    A copy with `kind` and `severity` recorded.
    """
    rng = np.random.default_rng(seed)
    n, drawn = len(pictures), np.array([KINDS.index(kind) for kind in kinds])
    kind = np.where(rng.random(n) < corruption.probability, drawn[rng.integers(0, len(drawn), n)], 0)
    severity = np.where(kind > 0, rng.uniform(*corruption.severity, n), 0).astype(np.float32)
    images = pictures.images.copy()
    for row in np.flatnonzero(kind):
        images[row] = damage(images[row], KINDS[kind[row]], float(severity[row]), corruption, rng.random(2))
    return replace(pictures, images=images, kind=kind, severity=severity)


def corrupted(parts: Mapping[str, P], corruption: Corruption, seed: int) -> dict[str, P]:
    """Every part corrupted, each with other draws, so that equal rows of two parts are not damaged alike."""
    return {part: corrupt(x, corruption, (seed, i)) for i, (part, x) in enumerate(parts.items())}


def damage(
    image: NDArray[np.float32], kind: str, severity: float, corruption: Corruption, place: NDArray[np.float64]
) -> NDArray[np.float32]:
    height, width = image.shape
    if kind == "blur":
        sigma = severity * corruption.blur
        return (_gaussian(height, sigma) @ image @ _gaussian(width, sigma).T).astype(np.float32)
    if kind == "crop":
        kept = 1 - severity * corruption.crop
        rows = window(height, place[0] * (1 - kept) * height, kept * height, height)
        columns = window(width, place[1] * (1 - kept) * width, kept * width, width)
        return (rows @ image @ columns.T).astype(np.float32)
    patch = np.round(severity * corruption.occlusion * np.array(image.shape)).astype(int)
    top, left = np.floor(place * (np.array(image.shape) - patch + 1)).astype(int)
    image = image.copy()
    image[top : top + patch[0], left : left + patch[1]] = 0
    return image


def window(length: int, start: float, extent: float, size: int) -> NDArray[np.float64]:
    """[size, length] matrix that reads `extent` pixels from `start` on, linearly interpolated at `size` places."""
    places = np.clip(start + (np.arange(size) + 0.5) * extent / size - 0.5, 0, length - 1)
    return np.asarray(np.maximum(0, 1 - np.abs(places[:, None] - np.arange(length))))


def _gaussian(length: int, sigma: float) -> NDArray[np.float64]:
    """[length, length] matrix that blurs along one axis."""
    offsets = np.arange(length)
    weights = np.exp(-0.5 * ((offsets[:, None] - offsets) / max(sigma, 1e-6)) ** 2)
    return np.asarray(weights / weights.sum(1, keepdims=True))
