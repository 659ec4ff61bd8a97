"""Features that were computed elsewhere, with labels, as data where there are no images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from peaccel._utils.atomic_files import PathLike
from peaccel._utils.labels import alike
from peaccel._utils.suggestions import require_classes
from peaccel.data._listings import arrays, integers
from peaccel.data.datasets import Features, development, query_and_gallery, reader

__all__ = ["TableColumn", "connected_labels", "covariate_rows", "feature_rows", "features"]


@dataclass(frozen=True, eq=False)
class TableColumn:
    """An array in place of the path of its file, where others have read it."""

    path: str
    """Where it was read, which errors name."""
    values: NDArray[Any]

    def __str__(self) -> str:
        return self.path


PARTS = ("train", "validation", "test", "query", "gallery")


@reader("features", "features")
def features(
    root: PathLike | TableColumn,
    labels: PathLike | TableColumn | None = None,
    folds: int = 4,
    covariates: Sequence[PathLike | TableColumn] = (),
    relevance: PathLike | TableColumn | None = None,
) -> dict[str, Features]:
    """Read features and labels, or what belongs together in place of labels, and covariates where there are any.

    Parameters
    ----------
    root
        An .npz file with features [N, D] and labels [N] (numbers or strings); an .npy file of features; or a folder
        with such .npz files called train, validation, test, or query and gallery, as far as there are any. Here and in
        the place of other files a `TableColumn` is what was read elsewhere.
    labels
        An .npy file of labels [N], for an .npy file of features.
    folds
        See `development`; for a single file.
    covariates
        Files of what else was measured of the items of a single file; see `covariate_rows`.
    relevance
        A file of pairs of rows of a single file that belong together, in place of labels; see `connected_labels`. Items
        in no pair are left out.

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
    root = root if isinstance(root, TableColumn) else Path(root)
    if isinstance(root, TableColumn) or not root.is_dir():
        if relevance is None:
            values, of = _read(root, labels)
        elif labels is None:
            values = feature_rows(root)
            of = connected_labels(relevance, len(values))
        else:
            raise ValueError(f"{labels}: labels are given, expected either these or the pairs of {relevance}")
        kept = np.ones(len(values), bool) if relevance is None else of >= 0
        items = _numbered(values[kept], of[kept])
        if covariates:
            items = replace(items, covariates=covariate_rows(covariates, len(values))[kept])
        return development(items, folds)
    if covariates or relevance is not None:
        raise ValueError(f"{root}: is a folder, expected one file of features beside covariates or pairs")
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
        names = alike(f"{root}", [f"the labels of {part}.npz" for part in ("query", "gallery")], asked, stored)
        both = _numbered(np.concatenate([queries, gallery]), np.concatenate(names))
        parts |= query_and_gallery(both, np.arange(len(both)) < len(queries))
    return parts


def feature_rows(path: PathLike | TableColumn) -> NDArray[np.float32]:
    """Read the features alone, [N, D], of an .npz file (key features) or an .npy file.

    Raises
    ------
    FileNotFoundError, ValueError
        As `features`.
    """
    return _floats(path, *_arrays(path, "features"))


def covariate_rows(paths: Sequence[PathLike | TableColumn], items: int) -> NDArray[np.float32]:
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
    for path in paths:
        (values,) = _arrays(path, "covariates")
        if values.ndim not in (1, 2) or len(values) != items or values.dtype.kind not in "biuf":
            found = f"covariates is {values.dtype} {values.shape}"
            raise ValueError(f"{path}: {found}, expected numbers ({items},) or ({items}, Q), a row for each item")
        with np.errstate(over="ignore"):
            rows = values.reshape(items, -1).astype(np.float32)
        bad = np.flatnonzero(~np.isfinite(rows).all(1))
        if len(bad):
            raise ValueError(f"{path}: covariates has NaN or infinity in row {bad[0]}")
        columns.append(rows)
    return np.concatenate(columns, axis=1)


def connected_labels(path: PathLike | TableColumn, items: int) -> NDArray[np.int64]:
    """Read pairs that belong together, such as queries and their documents, and number the groups that they connect.

    Parameters
    ----------
    path
        An .npy file, or an .npz file with the key relevance: [M, 2] integers, rows of the items.
    items
        N.

    Returns
    -------
    [N], the group of each item in 0..C-1, by the first row of each; -1 where an item is in no pair.

    Raises
    ------
    FileNotFoundError
        The file is missing.
    ValueError
        The array is of another shape or kind, names a row that there is not or pairs a row with itself; all pairs are
        of one group.
    """
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    (pairs,) = _arrays(path, "relevance")
    if pairs.ndim != 2 or pairs.shape[1] != 2 or pairs.dtype.kind not in "iu" or not len(pairs):
        raise ValueError(f"{path}: relevance is {pairs.dtype} {pairs.shape}, expected integers (M, 2), pairs of rows")
    if len(outside := np.flatnonzero(((pairs < 0) | (pairs >= items)).any(1))):
        first, second = pairs[outside[0]]
        raise ValueError(f"{path}: pair {outside[0]} is ({first}, {second}), expected rows in 0..{items - 1}")
    if len(same := np.flatnonzero(pairs[:, 0] == pairs[:, 1])):
        raise ValueError(f"{path}: pair {same[0]} is row {pairs[same[0], 0]} with itself, expected two rows")
    graph = coo_array((np.ones(len(pairs), np.int8), (pairs[:, 0], pairs[:, 1])), shape=(items, items))
    group = connected_components(graph, directed=False)[1]
    named = np.zeros(items, bool)
    named[pairs] = True
    if len(found := np.unique(group[named])) < 2:
        raise ValueError(f"{path}: relevance connects all {named.sum()} items that it names, expected 2 groups or more")
    return np.where(named, np.searchsorted(found, group), -1)


def _arrays(path: PathLike | TableColumn, *names: str) -> list[NDArray[Any]]:
    if isinstance(path, TableColumn):
        return [path.values]
    path = Path(path)
    if path.suffix not in (".npz", ".npy"):
        raise ValueError(f"{path}: unsupported suffix {path.suffix!r}, expected .npz or .npy")
    return arrays(path, *names)


def _floats(path: PathLike | TableColumn, values: NDArray[Any]) -> NDArray[np.float32]:
    if values.ndim != 2 or values.dtype.kind != "f":
        raise ValueError(f"{path}: features is {values.dtype} {values.shape}, expected floats [N, D]")
    with np.errstate(over="ignore"):
        rows = values.astype(np.float32)
    bad = np.flatnonzero(~np.isfinite(rows).all(1))
    if len(bad):
        raise ValueError(f"{path}: features has NaN or infinity in row {bad[0]}")
    return rows


def _read(
    path: Path | TableColumn, labels: PathLike | TableColumn | None = None
) -> tuple[NDArray[np.float32], NDArray[Any]]:
    if labels is None and (isinstance(path, TableColumn) or path.suffix == ".npy"):
        raise ValueError(f"{path}: has no labels, expected them in a file of their own (labels) or an .npz file")
    if labels is None:
        values, found = _arrays(path, "features", "labels")
    else:
        of = labels.values if isinstance(labels, TableColumn) else arrays(Path(labels), "labels")[0]
        values, found = *_arrays(path, "features"), of
    values = _floats(path, values)
    source = path if labels is None else labels
    require_classes(f"{source}", "labels", found)
    if found.shape != values.shape[:1] or found.dtype.kind not in "iufbUS":
        got = f"labels is {found.dtype} {found.shape}"
        raise ValueError(f"{source}: {got}, expected numbers or strings ({len(values)},)")
    if found.dtype.kind == "f":
        if len(bad := np.flatnonzero(found != np.rint(found))):
            got = f"labels holds {found[bad[0]]} in row {bad[0]}"
            raise ValueError(f"{source}: {got}, expected whole numbers or strings")
        found = integers(found)
    return values, found


def _numbered(values: NDArray[np.float32], found: NDArray[Any]) -> Features:
    """The record of features; labels become 0..C-1, whatever gaps they have."""
    classes, labels = np.unique(found, return_inverse=True)
    return Features(values, integers(labels), tuple(map(str, classes.tolist())))
