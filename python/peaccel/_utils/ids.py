"""Ids of items: int64, or strings; -1 and "" stand for no item. They are checked and looked up here alone."""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

import numpy as np

from peaccel._utils.arrays import Array, Numpy
from peaccel._utils.labels import plain
from peaccel._utils.suggestions import require_classes

__all__ = [
    "LARGEST_ID",
    "Ids",
    "SortedIds",
    "and_none",
    "are_strings",
    "candidate_ids",
    "checked_allowed",
    "checked_ids",
    "none_like",
    "require_known",
    "there",
]

Ids: TypeAlias = Numpy  # int64, or strings; bytes in the files of a gallery
Ints: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]
Bools: TypeAlias = np.ndarray[Any, np.dtype[np.bool_]]

LARGEST_ID = np.iinfo(np.int64).max


def are_strings(ids: Array | None) -> bool:
    """Whether ids are strings, which are numpy arrays beside tensors too; None stands for the numbers of rows."""
    return isinstance(ids, np.ndarray) and ids.dtype.kind == "U"


def none_like(ids: Array | None) -> int | str | bytes:
    """The id that stands for no item among ids like these."""
    if isinstance(ids, np.ndarray) and ids.dtype.kind in "US":
        return "" if ids.dtype.kind == "U" else b""
    return -1


def and_none(ids: Ids) -> Ids:
    """Ids and the one that stands for no item, so that row -1 has it."""
    return np.append(ids, none_like(ids))


def there(ids: Array) -> Array:
    """Which ids are not the one that stands for no item."""
    return ids != none_like(ids)


class SortedIds(NamedTuple):
    """Ids in ascending order, and the row of each, by which ids are looked up."""

    ascending: Ids
    rows: Ints | None = None
    """None where the ids lie in this order."""

    @classmethod
    def of(cls, ids: Ids) -> SortedIds:
        """The order of ids."""
        order = np.argsort(ids, kind="stable")
        return cls(ids[order], order)

    def rows_of(self, ids: Ids) -> Ints:
        """The rows of ids of any shape; -1 where there is no such id."""
        ascending = self.ascending
        if not len(ascending):
            return np.full(ids.shape, -1)
        # Longer strings than there are would have all of them copied; cut, they differ from what is found.
        near = np.minimum(ascending.searchsorted(ids.astype(ascending.dtype, copy=False)), len(ascending) - 1)
        rows = near if self.rows is None else self.rows[near]
        return np.where(ascending[near] == ids, rows, -1)


def checked_ids(
    owner: str, ids: Array, size: int | None = None, expected: str = "integers or strings", *, repeats: bool = False
) -> Ids:
    """ids [size]: integers as int64, none negative, or strings, none empty; all different unless they may repeat."""
    require_classes(owner, "ids", ids, "the id of each item")
    array = plain(owner, "ids", ids)
    if not array.size and not (are_strings(array) and "strings" in expected):  # an empty list has no dtype
        array = array.astype(str if expected == "strings" else np.int64)
    known = array.dtype.kind in ("U" if expected == "strings" else "iu" if expected == "integers" else "iuU")
    if array.ndim != 1 or len(array) != (len(array) if size is None else size) or not known:
        got = f"shape {array.shape} and dtype {array.dtype}"
        raise ValueError(f"{owner}: ids have {got}, expected {expected} ({'N' if size is None else size},)")
    strings = are_strings(array)
    outside = array[array == ""] if strings else array[(array < 0) | (array > LARGEST_ID)]
    if len(outside):
        range = "strings that are not empty" if strings else "0 .. 2^63 - 1"
        raise ValueError(f"{owner}: ids hold {outside[0].item()!r}, expected {range}")
    ordered = np.sort(array)
    repeated = ordered[1:][ordered[1:] == ordered[:-1]]
    if len(repeated) and (strings or not repeats):
        raise ValueError(f"{owner}: ids hold {repeated[0].item()!r} twice")
    return array if strings else array.astype(np.int64)


def checked_allowed(owner: str, allowed: Any, count: int | None, *, strings: bool = False) -> Ids | Bools:
    """The items that may be found: ids, int64 or strings, or a bool for each of so many items, where it is known."""
    chosen = np.atleast_1d(plain(owner, "allowed", allowed))
    if not (chosen.size or chosen.dtype == bool):  # an empty list has no dtype
        chosen = chosen.astype(str if strings else np.int64)
    wrong = chosen.dtype == bool and count is not None and len(chosen) != count
    if chosen.ndim != 1 or chosen.dtype.kind not in ("bU" if strings else "biu") or wrong:
        got = f"shape {chosen.shape} and dtype {chosen.dtype}"
        ids = "ids, strings," if strings else "integer ids,"
        raise ValueError(f"{owner}: allowed has {got}, expected {ids} or a bool for each of {count} items")
    return chosen if strings or chosen.dtype == bool else chosen.astype(np.int64, copy=False)


def candidate_ids(owner: str, candidates: Any, queries: int, ids: Ids | None) -> Ids:
    """Candidates [Q, K] as ids like those of a gallery: int64, -1 for none, or strings, "" for none."""
    found, strings = plain(owner, "candidates", candidates), are_strings(ids)
    if not found.size and found.ndim == 2:  # an empty list has no dtype
        found = found.astype(str if strings else np.int64)
    if found.ndim != 2 or len(found) != queries:
        raise ValueError(f"{owner}: candidates have shape {found.shape}, expected ({queries}, K): a row per query")
    if found.dtype.kind not in ("U" if strings else "iu"):
        expected = "strings" if strings else "integers"
        raise ValueError(f"{owner}: candidates have dtype {found.dtype}, expected {expected} like the gallery's ids")
    return found if strings else found.astype(np.int64, copy=False)


def require_known(owner: str, candidates: Ids, known: Bools) -> None:
    """Refuse candidates [Q, K] that no item has."""
    unknown = np.argwhere(there(candidates) & ~known)
    if len(unknown):
        query, column = unknown[0]
        raise ValueError(f"{owner}: candidates hold {candidates[query, column]} in row {query}, which no item has")
