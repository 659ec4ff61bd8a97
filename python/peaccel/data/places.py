"""Mapillary Street-Level Sequences: photographs with the place where they were taken."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from peaccel._utils.atomic_files import PathLike
from peaccel.data._listings import columns, folder, integers
from peaccel.data.datasets import Places, reader

__all__ = ["msls"]

VALIDATION = ("cph", "sf")


@reader("msls", "evaluation")
def msls(root: PathLike, parts: Sequence[str] = ("train", "validation")) -> dict[str, Places]:
    """Read MSLS: {train_val,test}/<city>/{query,database}/ with postprocessed.csv, raw.csv and images/<key>.jpg.

    Tested on files written in the published layout, not on MSLS's lists.

    Panoramas are left out. Validation is of Copenhagen and San Francisco, training of the other cities of train_val,
    as many as are there.

    Parameters
    ----------
    root
        Folder that holds train_val/, test/ or both.
    parts
        Which of "train", "validation" and "test"; the places of the latter were not published with the photographs.

    Returns
    -------
    The parts.

    Raises
    ------
    FileNotFoundError
        A folder or a list is missing.
    ValueError
        A list lacks a column or has a value of another form; a part is unknown.
    """
    found = {}
    for part in parts:
        if part not in ("train", "validation", "test"):
            raise ValueError(f"msls: part is {part!r}, expected train, validation or test")
        store = folder(Path(root) / ("test" if part == "test" else "train_val"), "one folder for each city of MSLS")
        others = [city for city in sorted(os.listdir(store)) if (store / city).is_dir() and city not in VALIDATION]
        found[part] = _places(store, VALIDATION if part == "validation" else others)
    return found


def _places(store: Path, cities: Sequence[str]) -> Places:
    paths: list[str] = []
    position: list[list[float]] = []
    city: list[int] = []
    query: list[bool] = []
    for number, name in enumerate(cities):
        for side in ("query", "database"):
            place = folder(store / name / side, "postprocessed.csv, raw.csv and images/ of MSLS")
            panoramas = dict(zip(*columns(place / "raw.csv", key=str, pano=_boolean), strict=True))
            listed = columns(place / "postprocessed.csv", key=str, easting=float, northing=float)
            for key, easting, northing in zip(*listed, strict=True):
                if key not in panoramas:
                    raise ValueError(f"{place / 'raw.csv'}: key {key} of postprocessed.csv is missing")
                if not panoramas[key]:
                    paths.append(str(place / "images" / f"{key}.jpg"))
                    position.append([easting, northing])
                    city.append(number)
                    query.append(side == "query")
    return Places(
        tuple(paths),
        np.array(position, np.float64).reshape(-1, 2),
        integers(city),
        tuple(cities),
        np.array(query, np.bool_),
    )


def _boolean(word: str) -> bool:
    if word not in ("True", "False"):
        raise ValueError
    return word == "True"
