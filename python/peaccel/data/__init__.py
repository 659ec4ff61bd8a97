"""Data sets: readers of what is published on disk, numbers composed of digits, pairs, and pixels when asked for.

Readers give numpy arrays and paths (`records`); `images` reads pixels, by Pillow, and `transforms` needs torchvision.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from peaccel._utils.suggestions import unknown
from peaccel.data.captions import caption_features, coco_captions, conceptual_captions
from peaccel.data.datasets import Part
from peaccel.data.faces import cplfw, identities, ijbc, lfw
from peaccel.data.features import features
from peaccel.data.metric_learning import cars196, cub200, image_folder, in_shop, sop
from peaccel.data.places import msls

__all__ = ["CAPTIONED", "COMPOSED", "DIGITS", "READERS", "TRAINED", "check_name", "read"]

DIGITS = ("mnist", "digits8")
"""Sources of numbers composed of scans, which come inside Python packages and need no folder."""

COMPOSED = (*DIGITS, "fashion")
"""Sources of strips of scans: of digits, or of photographs of garments, which lie in a folder."""

CAPTIONED = ("coco", "conceptual-captions")
"""Data sets of images with captions."""

EVALUATED = (*CAPTIONED, "cplfw", "ijbc", "msls")
"""Data sets that have no labelled items to train on: captions, places, and faces that are there to be verified."""

READERS: dict[str, Callable[..., Mapping[str, Part]]] = {
    "caption-features": caption_features,
    "cars196": cars196,
    "coco": coco_captions,
    "conceptual-captions": conceptual_captions,
    "cplfw": cplfw,
    "cub200": cub200,
    "features": features,
    "folder": image_folder,
    "ijbc": ijbc,
    "in-shop": in_shop,
    "lfw": lfw,
    "ms1m": identities,
    "msls": msls,
    "sop": sop,
}
"""The reader of each data set: (root, its own options) -> its parts by name."""

TRAINED = tuple(name for name in (*COMPOSED, *READERS) if name not in EVALUATED)
"""The data sets that a model can be trained on."""


def check_name(name: str, root: Path | None, names: Sequence[str]) -> None:
    """Refuse a data set that is unknown, or whose root is missing where one is needed, or given where none is.

    Parameters
    ----------
    name
        A data set.
    root
        Where it lies.
    names
        Those that are allowed.

    Raises
    ------
    ValueError
        As said.
    FileNotFoundError
        There is nothing at the root.
    """
    if name not in names:
        if name in (*COMPOSED, *READERS):
            raise ValueError(f"data {name}: has no labelled items to train on, expected one of {', '.join(names)}")
        raise ValueError(unknown("data", name, names))
    if name in DIGITS:
        if root is not None:
            raise ValueError(f"data {name}: root is {root}, but its scans come inside a package")
    elif root is None:
        raise ValueError(f"data {name}: root is missing, expected the folder where it lies")
    elif not root.exists():
        raise FileNotFoundError(f"data {name}: root is {root}, which is not there")


def read(name: str, root: str | Path, check: bool = False, **options: Any) -> Mapping[str, Part]:
    """Read a data set's lists.

    Parameters
    ----------
    name
        A key of `READERS`.
    root
        Where the data set lies; see its reader for what is expected there.
    check
        Look whether every listed image is there; otherwise a missing one is named when it is read.
    options
        The reader's own.

    Returns
    -------
    Its parts: "train", "validation", "test", "query", "gallery", as far as it has them.

    Raises
    ------
    ValueError
        The name is unknown, or a list is of another form.
    FileNotFoundError
        A list or, with check, an image is missing.
    """
    if name not in READERS:
        raise ValueError(f"read: {unknown('data', name, READERS)}")
    parts = READERS[name](root, **options)
    if check:
        for part, items in parts.items():
            missing = [path for path in getattr(items, "paths", ()) if not Path(path).is_file()]
            if missing:
                raise FileNotFoundError(
                    f"{missing[0]}: no such image ({len(missing)} of {len(items)} in part {part} are missing)"
                )
    return parts
