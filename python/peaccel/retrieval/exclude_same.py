"""Items that have the same values as a query in columns, such as the same person and the same camera."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from peaccel._utils.arrays import Given, Numpy
from peaccel._utils.exclusions import Exclusions
from peaccel._utils.ids import SortedIds, checked_ids
from peaccel._utils.labels import alike, classes_of

__all__ = ["exclude_same"]


def exclude_same(queries: Mapping[str, Any], gallery: Mapping[str, Any], ids: Given | None = None) -> Exclusions:
    """Exclude, for each query, the gallery items that have its values in all columns.

    With the columns person and camera it is the rule of Market-1501 and VeRi, where a photograph of the same person by
    the same camera is no match; with the column day it is that of wildlife re-identification. Searches, `evaluate` and
    `choose_threshold` take the result as ``exclude=``.

    Parameters
    ----------
    queries
        Columns of the queries by their names, [Q] numbers or strings each, none missing; a dict or a data frame.
    gallery
        The same columns of the gallery, [G] each.
    ids
        [G] the gallery's ids, int64 or strings, by which a gallery with ids knows its items; None for its rows.

    Returns
    -------
    Exclusions
        It takes memory for Q + G numbers, however many items are excluded.

    Raises
    ------
    ValueError
        No columns, other columns in the gallery than in the queries, of different lengths, with missing values, or of
        numbers on one side and strings on the other; ids as for a gallery.

    Examples
    --------
    The query is person 7 by camera 1. The same person by the same camera is excluded, the other items are not:

    >>> queries = {"person": [7], "camera": [1]}
    >>> gallery = {"person": [7, 7, 8], "camera": [1, 2, 1]}
    >>> pe.exclude_same(queries, gallery).of_query(0).tolist()
    [0]
    """
    owner = "exclude_same"
    for name, side in {"queries": queries, "gallery": gallery}.items():
        if not hasattr(side, "keys") or not [*side]:
            raise ValueError(f"{owner}: {name} is {type(side).__name__}, expected columns by their names, at least one")
    if set(queries) != set(gallery):
        got, expected = (", ".join(map(str, side)) for side in (gallery, queries))
        raise ValueError(f"{owner}: gallery has the columns {got}, expected {expected} like queries")
    groups, count = np.zeros(1, np.int64), None
    for name in queries:
        names = f"queries[{name!r}]", f"gallery[{name!r}]"
        sides = alike(owner, names, *map(_column, names, (queries[name], gallery[name])))
        sizes = tuple(map(len, sides))
        if count not in (None, sizes):
            raise ValueError(f"{owner}: column {name!r} has lengths {sizes}, expected {count} like the others")
        count, (values, numbers) = sizes, np.unique(np.concatenate(sides), return_inverse=True)
        groups = np.unique(groups * len(values) + numbers, return_inverse=True)[1]
    assert count is not None
    wanted, lists = np.unique(groups[: count[0]], return_inverse=True)
    found = SortedIds(wanted).rows_of(groups[count[0] :])
    rows = np.argsort(found, kind="stable")[np.count_nonzero(found < 0) :]
    offsets = np.searchsorted(found[rows], np.arange(len(wanted) + 1))
    return Exclusions(lists, offsets, rows if ids is None else checked_ids(owner, ids, count[1])[rows])


def _column(name: str, x: Any) -> Numpy:
    found = classes_of("exclude_same", name, x)
    if found.ndim != 1:
        raise ValueError(f"exclude_same: {name} has shape {found.shape}, expected (N,)")
    return found
