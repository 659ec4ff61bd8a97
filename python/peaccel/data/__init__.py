"""Data sets: readers of what is published on disk, numbers composed of digits, pairs, and pixels when asked for.

Readers give numpy arrays and paths (`records`); `images` reads pixels, by Pillow, and `transforms` needs torchvision.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from peaccel.data.captions import caption_features, coco_captions, conceptual_captions
from peaccel.data.faces import cplfw, identities, ijbc, lfw
from peaccel.data.features import features
from peaccel.data.places import msls
from peaccel.data.records import Part
from peaccel.data.retrieval import cars196, cub200, image_folder, in_shop, sop
from peaccel.names import unknown

__all__ = ["READERS", "read"]

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
