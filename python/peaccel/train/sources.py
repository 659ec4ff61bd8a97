"""The items and labels that a run takes from a data set, by part."""

from __future__ import annotations

import math
import sys
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset, Subset

from peaccel import data
from peaccel._utils import config
from peaccel._utils.progress_bar import ProgressBar
from peaccel.data import CAPTIONED, COMPOSED, READERS, check_name, digits
from peaccel.data.corruption import corrupted
from peaccel.data.datasets import CaptionFeatures, Captions, Features, Images
from peaccel.data.images import ImageRows, shorter_side, unreadable
from peaccel.train.backbones import ImageInput
from peaccel.train.batch_sampling import Data, length, take

__all__ = [
    "Items",
    "digits_settings",
    "list_parts",
    "of_digits",
    "of_features",
    "open_captions",
    "open_items",
    "side_of",
]

T = TypeVar("T")

PARTS = ("train", "validation", "test", "query", "gallery")

LISTED = 10
"""How many of the images that cannot be read a message names."""


@dataclass(frozen=True)
class Items:
    """The items of one part."""

    data: Data
    """The model's inputs: a tensor, a tuple of tensors, or a map-style dataset of images."""
    labels: NDArray[np.int64]
    """[N], the classes as numbers in 0..C-1."""
    quality: NDArray[Any] | None = None
    """[N], higher = better, where it is known: of corrupted digits 1 less the severity."""
    covariates: int = 0
    """How many of the last columns of data are no features but covariates, which uncertainties see and means do not."""

    def __len__(self) -> int:
        """Count the items."""
        return length(self.data)

    def take(self, rows: NDArray[np.int64]) -> Items:
        """The items in these rows."""
        if isinstance(self.data, (Tensor, tuple)):
            data = take(self.data, torch.from_numpy(rows))
        else:
            data = Subset(cast(Dataset[Any], self.data), rows.tolist())
        quality = None if self.quality is None else self.quality[rows]
        return Items(data, self.labels[rows], quality, self.covariates)


def digits_settings(quick: bool = False) -> digits.DigitsSettings:
    """Sizes and corruption of the N-digit numbers, of methods/recipes/digits.toml; `quick` shrinks them to seconds."""
    path = Path(__file__).parents[1] / "methods" / "recipes" / "digits.toml"
    values = config.read_mapping(path)
    if quick:
        values = config.merge(values, {"classes": [60, 20, 40], "images_per_class": [8, 4, 4, 2]})
    return config.from_mapping(values, digits.DigitsSettings, str(path))


def open_items(
    name: str,
    root: Path | None,
    seed: int,
    expected: ImageInput | None = None,
    quick: bool = False,
    only: Collection[str] = PARTS,
    skip_bad: bool = False,
    listed: Mapping[str, Any] | None = None,
) -> dict[str, Items]:
    """Open a data set.

    Parameters
    ----------
    name
        A data set: one of `peaccel.data.COMPOSED` or of `READERS`, or the path of a Python file with a reader.
    root
        Where it lies; None for what comes inside packages.
    seed
        Seed of numbers composed of digits.
    expected
        The images that the backbone takes.
    quick
        Whether to take few digits.
    only
        The parts that are opened, as far as they are there.
    skip_bad
        Whether to leave out images that cannot be read, rather than to refuse them.
    listed
        The result of `list_parts`, if that was called before.

    Returns
    -------
    What there is of "train", "validation", "test", "query", "gallery".

    Raises
    ------
    ValueError
        An unknown name, a root that is missing or not needed, a data set without any of these parts with labels; images
        that cannot be read.
    FileNotFoundError
        A list of the data set is missing.
    """
    if listed is None:
        listed = list_parts(name, root)
    if name in COMPOSED:
        return _wanted(name, of_digits(name, digits_settings(quick), seed, root), only)
    found = _wanted(name, listed, only)
    bad = _bad_images(name, found.values(), skip_bad)
    return {part: _items(part, x, expected, bad) for part, x in found.items()}


def list_parts(name: str, root: Path | None) -> dict[str, Any]:
    """The labelled parts of a data set, as its reader gives them; none of numbers composed of digits.

    Raises
    ------
    ValueError, FileNotFoundError
        As `open_items` does.
    """
    check_name(name, root, (*COMPOSED, *READERS))
    if name in COMPOSED:
        return {}
    assert root is not None  # as was checked
    return {part: x for part, x in data.read(name, root).items() if _labelled(x)}


def side_of(listed: Mapping[str, Any]) -> int | None:
    """The median of the shorter sides of images to train on, in pixels; None where the parts have no images."""
    paths = getattr(listed.get("train"), "paths", ())
    return shorter_side(paths) if paths else None


def open_captions(
    name: str, root: Path | None, part: str, expected: ImageInput | None, skip_bad: bool = False
) -> tuple[ImageRows, tuple[str, ...], NDArray[np.int64]]:
    """Open a part of one of `CAPTIONED`: images as a backbone takes them, captions, and which image each describes.

    Raises
    ------
    ValueError
        A root that is missing, a part that is not there, or images that cannot be read unless they are skipped.
    FileNotFoundError
        A list of the data set is missing.
    """
    check_name(name, root, CAPTIONED)
    assert root is not None
    parts = data.read(name, root)
    if part not in parts:
        raise ValueError(f"{name} has no part {part!r}, expected one of {', '.join(parts)}")
    found = parts[part]
    assert isinstance(found, Captions)
    bad = _bad_images(name, [found], skip_bad)
    kept = np.array([path not in bad for path in found.paths], np.bool_)
    kept_captions = kept[found.image]
    captions = tuple(text for text, of_kept in zip(found.captions, kept_captions.tolist(), strict=True) if of_kept)
    rows = ImageRows(found.take(kept).paths, _transforms(expected)[0])
    return rows, captions, np.asarray((np.cumsum(kept) - 1)[found.image[kept_captions]], np.int64)


def of_digits(source: Any, settings: digits.DigitsSettings, seed: int, root: Path | None = None) -> dict[str, Items]:
    """Corrupted numbers of real scans, or strips of garments; a class is of one part, or of query and gallery."""
    parts = digits.make(source, settings, seed, root)
    mixed = corrupted(parts, settings.corruption, seed)
    known = {part: np.unique(x.labels) for part, x in mixed.items()}
    return {
        part: Items(torch.from_numpy(x.images)[:, None], np.searchsorted(known[part], x.labels), 1 - x.severity)
        for part, x in mixed.items()
    }


def of_features(
    features: NDArray[np.float32], labels: NDArray[np.int64], covariates: NDArray[np.float32] | None = None
) -> Items:
    """Features [N, D], and beside them covariates [N, Q] where there are any."""
    if covariates is None:
        return Items(torch.from_numpy(features), labels)
    both = np.concatenate([features, covariates], axis=1)
    return Items(torch.from_numpy(both), labels, covariates=covariates.shape[1])


def _wanted(name: str, parts: Mapping[str, T], only: Collection[str]) -> dict[str, T]:
    """Those of the parts that are asked for, at least one."""
    found = {part: x for part, x in parts.items() if part in only}
    if not parts:
        raise ValueError(f"data {name}: has no labelled items")
    if not found:
        raise ValueError(f"{name} has no part {' or '.join(map(repr, only))}, expected one of {', '.join(parts)}")
    return found


def _labelled(found: Any) -> bool:
    """Whether a part has items with labels, which places and captions have not."""
    return isinstance(found, (Features, CaptionFeatures, Images)) and not isinstance(found, Captions)


def _bad_images(name: str, parts: Iterable[Any], skip: bool) -> Collection[str]:
    """The images that cannot be read, which are refused unless they are to be skipped: then pixels are read too."""
    paths = list(dict.fromkeys(path for x in parts for path in getattr(x, "paths", ())))
    if not paths:
        return ()
    with ProgressBar(f"data {name}: looking at {len(paths)} images", len(paths)) as bar:
        bad = unreadable(paths, bar.advance, whole=skip)
    if bad:
        listed = "; ".join(f"{path} {fault}" for path, fault in islice(bad.items(), LISTED))
        more = f"; and {len(bad) - LISTED} more" if len(bad) > LISTED else ""
        sentence = f"data {name}: {len(bad)} of {len(paths)} images cannot be read: {listed}{more}"
        if not skip:
            raise ValueError(f"{sentence}; --skip-bad leaves them out")
        print(f"{sentence}; they are left out", file=sys.stderr)
    return bad


def _items(part: str, found: Any, expected: ImageInput | None, bad: Collection[str]) -> Items:
    """The items of a part, without bad images; training labels are 0..C-1 of what is left."""
    if isinstance(found, Features):
        return of_features(found.features, found.labels, found.covariates)
    if isinstance(found, CaptionFeatures):
        pairs = torch.from_numpy(found.images[found.image]), torch.from_numpy(found.captions)
        return Items(pairs, np.asarray(found.image, np.int64))
    images = found.take(np.array([path not in bad for path in found.paths], np.bool_))
    labels = np.unique(images.labels, return_inverse=True)[1] if part == "train" else images.labels
    plain, augmentation = _transforms(expected)
    return Items(ImageRows(images.paths, plain, augmentation if part == "train" else None), labels)


def _transforms(expected: ImageInput | None) -> tuple[Any, Any]:
    """Transforms of a backbone's inputs: without draws, and with those of training."""
    if expected is None:
        raise ValueError("images need a backbone that says what it takes")
    from peaccel.data import transforms  # torchvision takes seconds to import, and digits and features do not need it

    normalisation = transforms.Normalisation(expected.mean, expected.std)  # type: ignore[arg-type]
    side = expected.size[0]
    if side <= 128:
        return (
            transforms.face_transform(side, normalisation=normalisation),
            transforms.face_transform(side, flip=True, normalisation=normalisation),
        )
    shorter = math.floor(side / expected.crop)  # as timm rounds
    return transforms.eval_transform(normalisation, shorter, side), transforms.train_transform(normalisation, side)
