"""Features that were computed elsewhere, with labels, as data where there are no images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from peaccel.data._listings import arrays, integers
from peaccel.data.datasets import Features, development, query_and_gallery, reader

__all__ = ["check_covariates", "covariate_rows", "feature_rows", "features"]

PARTS = ("train", "validation", "test", "query", "gallery")


@reader("features", "features")
def features(
    root: str | Path, labels: str | Path | None = None, folds: int = 4, covariates: Sequence[str | Path] = ()
) -> dict[str, Features]:
    """Read features and labels, and covariates where there are any.

    Parameters
    ----------
    root
        An .npz file with features [N, D] and labels [N] (numbers or strings); an .npy file of features; or a folder
        with such .npz files called train, validation, test, or query and gallery, as far as there are any.
    labels
        An .npy file of labels [N], for an .npy file of features.
    folds
        See `development`; for a single file.
    covariates
        Files of what else was measured of the items of a single file; see `covariate_rows`.

    Returns
    -------
    Parts "train" and "validation" of a single file; those that are there of a folder, and "test" with query and
    gallery merged.

    Raises
    ------
    FileNotFoundError
        A file is missing, or the folder holds none.
    ValueError
        Arrays are missing or of other shapes or kinds; features or covariates are not finite.
    """
    root = Path(root)
    if not root.is_dir():
        items = _numbered(*_read(root, labels))
        if covariates:
            items = replace(items, covariates=covariate_rows(covariates, len(items)))
        return development(items, folds)
    if covariates:
        raise ValueError(f"{root}: is a folder, expected one file of features beside covariates")
    found = {part: _read(root / f"{part}.npz") for part in PARTS if (root / f"{part}.npz").exists()}
    if not found:
        raise FileNotFoundError(f"{root}: holds none of {', '.join(f'{part}.npz' for part in PARTS)}")
    if ("query" in found) != ("gallery" in found):
        raise FileNotFoundError(f"{root}: holds one of query.npz and gallery.npz, expected both or none")
    parts = {part: _numbered(*found[part]) for part in PARTS[:3] if part in found}
    if "query" in found:
        (queries, asked), (gallery, stored) = found["query"], found["gallery"]
        if queries.shape[1] != gallery.shape[1]:
            raise ValueError(f"{root}: query.npz has {queries.shape[1]} features, gallery.npz {gallery.shape[1]}")
        both = _numbered(np.concatenate([queries, gallery]), np.concatenate([asked, stored]))
        parts |= query_and_gallery(both, np.arange(len(both)) < len(queries))
    return parts


def feature_rows(path: str | Path) -> NDArray[np.float32]:
    """Read the features alone, [N, D], of an .npz file (key features) or an .npy file.

    Raises
    ------
    FileNotFoundError, ValueError
        As `features`.
    """
    path = Path(path)
    return _floats(path, *_arrays(path, "features"))


def covariate_rows(paths: Sequence[str | Path], items: int) -> NDArray[np.float32]:
    """Read what was measured of items beside their features: duration, signal-to-noise ratio, size of a crop.

    Parameters
    ----------
    paths
        .npy files, or .npz files with the key covariates, each [N] or [N, Q] numbers.
    items
        N.

    Returns
    -------
    The columns of all files, side by side.

    Raises
    ------
    FileNotFoundError
        A file is missing.
    ValueError
        An array is of another shape or kind, or not finite in float32.
    """
    columns = []
    for path in map(Path, paths):
        (values,) = _arrays(path, "covariates")
        if values.ndim not in (1, 2) or len(values) != items or values.dtype.kind not in "biuf":
            told = f"covariates is {values.dtype} {values.shape}"
            raise ValueError(f"{path}: {told}, expected numbers ({items},) or ({items}, Q), a row for each item")
        with np.errstate(over="ignore"):
            rows = values.reshape(items, -1).astype(np.float32)
        bad = np.flatnonzero(~np.isfinite(rows).all(1))
        if len(bad):
            raise ValueError(f"{path}: covariates has NaN or infinity in row {bad[0]}")
        columns.append(rows)
    return np.concatenate(columns, axis=1)


def check_covariates(paths: Sequence[str | Path], of: str | Path) -> int:
    """Refuse covariates that do not fit a file of features; returns how many columns they have, 0 without a file.

    Raises
    ------
    FileNotFoundError, ValueError
        As `feature_rows` and `covariate_rows`.
    """
    return covariate_rows(paths, len(feature_rows(of))).shape[1] if paths else 0


def _arrays(path: Path, *names: str) -> list[NDArray[Any]]:
    if path.suffix not in (".npz", ".npy"):
        raise ValueError(f"{path}: unsupported suffix {path.suffix!r}, expected .npz or .npy")
    return arrays(path, *names)


def _floats(path: Path, values: NDArray[Any]) -> NDArray[np.float32]:
    if values.ndim != 2 or values.dtype.kind != "f":
        raise ValueError(f"{path}: features is {values.dtype} {values.shape}, expected floats [N, D]")
    bad = np.flatnonzero(~np.isfinite(values).all(1))
    if len(bad):
        raise ValueError(f"{path}: features has NaN or infinity in row {bad[0]}")
    return values.astype(np.float32)


def _read(path: Path, labels: str | Path | None = None) -> tuple[NDArray[np.float32], NDArray[Any]]:
    if path.suffix == ".npy" and labels is None:
        raise ValueError(f"{path}: has no labels, expected them in a file of their own (labels) or an .npz file")
    if labels is None:
        values, found = _arrays(path, "features", "labels")
    else:
        values, found = *_arrays(path, "features"), *arrays(Path(labels), "labels")
    values = _floats(path, values)
    if found.shape != values.shape[:1] or found.dtype.kind not in "iuU":
        raise ValueError(f"{path}: labels is {found.dtype} {found.shape}, expected numbers or strings ({len(values)},)")
    return values, found


def _numbered(values: NDArray[np.float32], found: NDArray[Any]) -> Features:
    """The record of features; labels become 0..C-1, whatever gaps they have."""
    classes, labels = np.unique(found, return_inverse=True)
    return Features(values, integers(labels), tuple(map(str, classes.tolist())))
