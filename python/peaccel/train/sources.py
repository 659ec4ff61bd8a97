"""The items and labels that a run takes from a data set, by part."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from peaccel import config, data
from peaccel.backbones import ImageInput
from peaccel.data import digits
from peaccel.data.corruption import corrupt
from peaccel.data.images import ImageRows
from peaccel.data.records import CaptionFeatures, Captions, Features, Images
from peaccel.names import unknown
from peaccel.train.dealing import Data, length

__all__ = ["CAPTIONED", "DIGITS", "Items", "digits_settings", "names", "of_digits", "open_captions", "open_items"]

DIGITS = ("mnist", "digits8")
"""Sources that come inside Python packages, and need no folder."""


CAPTIONED = ("coco", "conceptual-captions")
"""Data sets of images with captions."""


@dataclass(frozen=True)
class Items:
    """The items of one part."""

    data: Data
    """The model's inputs: a tensor, a tuple of tensors, or a map-style dataset of images."""
    labels: NDArray[np.int64]
    """[N], the classes as numbers in 0..C-1."""
    quality: NDArray[Any] | None = None
    """[N], higher = better, where it is known: of corrupted digits 1 less the severity."""

    def __len__(self) -> int:
        """Count the items."""
        return length(self.data)


def names() -> tuple[str, ...]:
    """The data sets there are."""
    return (*DIGITS, *data.READERS)


def digits_settings(quick: bool = False) -> digits.DigitsSettings:
    """Sizes and corruption of the N-digit numbers, of recipes/digits.toml; `quick` shrinks them to seconds."""
    path = Path(__file__).parent.parent / "recipes" / "digits.toml"
    values = config.read_mapping(path)
    if quick:
        values = config.merge(values, {"classes": [60, 20, 40], "images_per_class": [8, 4, 4, 2]})
    return config.from_mapping(values, digits.DigitsSettings, str(path))


def open_items(
    name: str, root: Path | None, seed: int, expected: ImageInput | None = None, quick: bool = False
) -> dict[str, Items]:
    """Open a data set.

    Parameters
    ----------
    name
        One of `names()`.
    root
        Where it lies; None for what comes inside packages.
    seed
        Seed of numbers composed of digits.
    expected
        The images that the backbone takes.
    quick
        Whether to take few digits.

    Returns
    -------
    "train", "validation" where there is one, and what there is of "test", "query", "gallery".

    Raises
    ------
    ValueError
        An unknown name, a root that is missing or not needed, a data set without labelled images to train on.
    FileNotFoundError
        A list of the data set is missing.
    """
    if name not in names():
        raise ValueError(unknown("data", name, names()))
    if name in DIGITS:
        if root is not None:
            raise ValueError(f"data {name}: root is {root}, but its scans come inside a package")
        return of_digits(name, digits_settings(quick), seed)
    if root is None:
        raise ValueError(f"data {name}: root is missing, expected the folder where it lies")
    parts = data.read(name, root)
    made = {part: _items(part, items, expected) for part, items in parts.items()}
    found = {part: items for part, items in made.items() if items is not None}
    if "train" not in found:
        raise ValueError(f"data {name}: has no labelled items to train on, only {', '.join(parts)}")
    return found


def open_captions(
    name: str, root: Path | None, part: str, expected: ImageInput | None
) -> tuple[ImageRows, tuple[str, ...], NDArray[np.int64]]:
    """Open a part of one of `CAPTIONED`: images as a backbone takes them, captions, and which image each describes.

    Raises
    ------
    ValueError
        A root that is missing, or a part that is not there.
    FileNotFoundError
        A list of the data set is missing.
    """
    if root is None:
        raise ValueError(f"data {name}: root is missing, expected the folder where it lies")
    parts = data.read(name, root)
    if part not in parts:
        raise ValueError(f"{name} has no part {part!r}, expected one of {', '.join(parts)}")
    found = parts[part]
    assert isinstance(found, Captions)
    return ImageRows(found.paths, _transform("test", expected)), found.captions, np.asarray(found.image, np.int64)


def of_digits(source: Any, settings: digits.DigitsSettings, seed: int) -> dict[str, Items]:
    """Numbers composed of real scans, each part with classes of its own but for query and gallery, and corrupted."""
    parts = digits.make(source, settings, seed)
    mixed = {part: corrupt(x, settings.corruption, (seed, i)) for i, (part, x) in enumerate(parts.items())}
    known = {part: np.unique(x.labels) for part, x in mixed.items()}
    return {
        part: Items(torch.from_numpy(x.images)[:, None], np.searchsorted(known[part], x.labels), 1 - x.severity)
        for part, x in mixed.items()
    }


def _items(part: str, found: Any, expected: ImageInput | None) -> Items | None:
    """The items of a part; None for a part that only evaluation uses."""
    if isinstance(found, Features):
        return Items(torch.from_numpy(found.features), found.labels)
    if isinstance(found, CaptionFeatures):
        pairs = torch.from_numpy(found.images[found.image]), torch.from_numpy(found.captions)
        return Items(pairs, np.asarray(found.image, np.int64))
    if isinstance(found, Captions) or not isinstance(found, Images):
        return None
    return Items(ImageRows(found.paths, _transform(part, expected)), found.labels)


def _transform(part: str, expected: ImageInput | None) -> Any:
    if expected is None:
        raise ValueError("images need a backbone that says what it takes")
    from peaccel.data import transforms  # torchvision takes seconds to import, and digits and features do not need it

    normalisation = transforms.Normalisation(expected.mean, expected.std)  # type: ignore[arg-type]
    side = expected.size[0]
    if side <= 128:
        return transforms.face_transform(side, flip=part == "train")
    if part == "train":
        return transforms.train_transform(normalisation, side)
    return transforms.eval_transform(normalisation, round(side * 256 / 224), side)
