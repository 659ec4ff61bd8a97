"""Items that queries may not find: lists of ids, and the list of each query."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sized
from typing import Any

import numpy as np

from peaccel._utils.arrays import Array, ArrayT, like, namespace, replaced
from peaccel._utils.ids import LARGEST_ID, Bools, Ids, Ints, SortedIds, are_strings, there
from peaccel._utils.labels import plain

__all__ = ["Exclusions"]

FEW = 64  # items that a query may not find beside queries that may find all, in one search


class Exclusions:
    """Items that each query may not find, made by `exclude_same`; every search takes them as ``exclude=``.

    Queries that may not find the same items share one list, so that the record takes memory for Q + G numbers. A slice
    or an array of rows takes the exclusions of some queries.

    Attributes
    ----------
    lists
        int64 [Q]: the number of each query's list.
    offsets
        int64 [L + 1]: list i is ``ids[offsets[i] : offsets[i + 1]]``.
    ids
        [M] rows of the gallery, or its ids.

    Examples
    --------
    >>> exclude = pe.exclude_same({"camera": [1, 2]}, {"camera": [2, 1, 1]})
    >>> [exclude.of_query(i).tolist() for i in range(len(exclude))]
    [[1, 2], [0]]
    """

    def __init__(self, lists: Ints, offsets: Ints, ids: Ids) -> None:
        self.lists, self.offsets, self.ids = lists, offsets, ids

    @classmethod
    def checked(cls, owner: str, exclude: Any, queries: int) -> Exclusions | None:
        """The exclusions that a caller has passed: ids [Q] or [Q, E], a list of arrays, or a record of them."""
        if exclude is None:
            return None
        if isinstance(exclude, Exclusions):
            if len(exclude) != queries:
                raise ValueError(f"{owner}: exclude is of {len(exclude)} queries, expected {queries}")
            return exclude
        expected = f"ids ({queries},) or ({queries}, E), or a list of {queries} arrays of ids"
        if isinstance(exclude, list | tuple) and any(isinstance(x, Sized) and not isinstance(x, str) for x in exclude):
            arrays = [plain(owner, "exclude", x) for x in exclude]
            filled = [x for x in arrays if x.size] or [np.empty(0, np.int64)]
            if len(arrays) != queries or any(x.ndim != 1 for x in arrays) or len({x.dtype.kind for x in filled}) > 1:
                raise ValueError(f"{owner}: exclude is a list of {len(arrays)}, expected {expected}")
            counts, array = [len(x) for x in arrays], np.concatenate(filled)
        else:
            array = plain(owner, "exclude", exclude)
            if array.ndim not in (1, 2) or len(array) != queries:
                raise ValueError(f"{owner}: exclude has shape {array.shape}, expected {expected}")
            counts, array = [array[0].size if queries else 0] * queries, array.ravel()
        if array.dtype.kind not in "iuU":
            raise ValueError(f"{owner}: exclude has dtype {array.dtype}, expected {expected}")
        if not are_strings(array) and array.size and array.min() < -1:
            raise ValueError(f"{owner}: exclude holds {array.min()}, expected -1 (none) or ids")
        ids = array if are_strings(array) else array.astype(np.int64)
        return cls(np.arange(queries), _offsets(counts), ids)._of_items(there(ids))

    def __len__(self) -> int:
        """Count the queries."""
        return len(self.lists)

    def __repr__(self) -> str:
        return f"Exclusions(Q={len(self)}, L={self.count_lists()}, M={len(self.ids)})"

    def __getitem__(self, queries: Any) -> Exclusions:
        """The exclusions of some queries, with the lists of these alone."""
        used, lists = np.unique(self.lists[queries], return_inverse=True)
        counts = np.diff(self.offsets)[used]
        offsets = _offsets(counts)
        return Exclusions(lists, offsets, self.ids[_ranges(self.offsets[used], counts)])

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return self.lists.nbytes + self.offsets.nbytes + self.ids.nbytes

    @property
    def counts(self) -> Ints:
        """int64 [Q]: how many items each query may not find."""
        counts: Ints = np.diff(self.offsets)[self.lists]
        return counts

    def of_query(self, query: int) -> Ids:
        """The items that a query may not find."""
        return self.ids[self.offsets[self.lists[query]] : self.offsets[self.lists[query] + 1]]

    def under(self, ids: Ids) -> Exclusions:
        """The same items under other ids [M]."""
        return Exclusions(self.lists, self.offsets, ids)

    def require_like(self, owner: str, ids: Ids | None) -> None:
        """Refuse strings beside ids that are integers, or rows, and integers beside strings."""
        if len(self.ids) and are_strings(self.ids) != are_strings(ids):
            names = ["strings" if are_strings(x) else "rows" if x is None else "integer ids" for x in (self.ids, ids)]
            raise ValueError(f"{owner}: exclude holds {names[0]}, expected {names[1]} like the gallery's")

    def located(self, rows_of: Callable[[Ids], Ints]) -> Exclusions:
        """The same by rows, ascending in each list; ids that have none, -1, are left out.

        An id has one row, or, where items share it, several: a row of an array with -1 after the last.
        """
        rows = rows_of(self.ids)
        each = rows.size // max(len(self.ids), 1)
        by_row = Exclusions(self.lists, self.offsets * each, rows.reshape(-1))
        lists = by_row._of_item()
        by_row.ids = by_row.ids[np.lexsort((by_row.ids, lists))]  # within their lists, which stay where they are
        again = (np.diff(by_row.ids, prepend=-1) == 0) & (np.diff(lists, prepend=-1) == 0)
        return by_row._of_items((by_row.ids >= 0) & ~again)

    def among(self, ids: SortedIds) -> Exclusions:
        """The same by the rows of ids, all different."""
        if len(self.ids) <= len(ids.ascending):
            return self.located(ids.rows_of)
        by_id = SortedIds.of(self.ids)
        assert by_id.rows is not None
        first, last = (by_id.ascending.searchsorted(ids.ascending, side) for side in ("left", "right"))
        counts = last - first
        items = by_id.rows[_ranges(first, counts)]
        rows = np.arange(len(counts)) if ids.rows is None else ids.rows
        lists, rows = self._of_item()[items], np.repeat(rows, counts)
        order = np.lexsort((rows, lists))
        offsets = np.searchsorted(lists[order], np.arange(self.count_lists() + 1))
        return Exclusions(self.lists, offsets, rows[order])

    def within(self, start: int, count: int) -> Exclusions:
        """The same by rows counted from `start`, of so many rows."""
        return self.located(lambda ids: np.where((ids >= start) & (ids < start + count), ids - start, -1))

    def has(self, queries: ArrayT, rows: ArrayT) -> ArrayT:
        """Whether queries may not find rows, by arrays of one shape; of located exclusions."""
        size = int(self.ids.max(initial=0)) + 1
        asked: Array = rows
        keys, lists = like(asked, np.append(self._of_item() * size + self.ids, LARGEST_ID)), like(asked, self.lists)
        wanted = lists[queries] * size + asked
        near = namespace(asked).searchsorted(keys, wanted)
        found: ArrayT = (keys[near] == wanted) & (asked >= 0) & (asked < size)
        return found

    def masked(self, candidates: ArrayT) -> ArrayT:
        """Candidates [Q, K], with -1 in the place of those that a query may not find; of located exclusions."""
        queries = like(candidates, np.arange(len(self))[:, None])
        masked: ArrayT = replaced(candidates, self.has(queries, candidates), -1)
        return masked

    def count_lists(self) -> int:
        """How many different lists there are."""
        return len(self.offsets) - 1

    def by_count(self) -> Iterator[Ints]:
        """Queries that may not find about as many items each: up to 64, up to 128, and so on."""
        sizes = np.ceil(np.log2(np.maximum(self.counts, FEW)))
        for size in np.unique(sizes) if len(self) else [0]:
            yield np.flatnonzero(sizes == size)

    def by_list(self) -> Iterator[tuple[Ints, Ids]]:
        """The queries of each list, and its items."""
        order = np.argsort(self.lists, kind="stable")
        first = np.flatnonzero(np.diff(self.lists[order], prepend=-1))
        for queries in np.split(order, first[1:]):
            yield queries, self.of_query(int(queries[0]))

    def _of_item(self) -> Ints:
        """int64 [M]: the list of each item."""
        return np.repeat(np.arange(self.count_lists()), np.diff(self.offsets))

    def _of_items(self, kept: Bools) -> Exclusions:
        """The same without some of the items."""
        before = np.append(0, np.cumsum(kept))
        return Exclusions(self.lists, before[self.offsets], self.ids[kept])


def _ranges(first: Ints, counts: Ints) -> Ints:
    """The numbers from each first one on, so many of each, one range after the other."""
    moved: Ints = np.repeat(first - (np.cumsum(counts) - counts), counts)
    return np.arange(len(moved)) + moved


def _offsets(counts: Any) -> Ints:
    offsets: Ints = np.append(0, np.cumsum(np.asarray(counts, np.int64)))
    return offsets
