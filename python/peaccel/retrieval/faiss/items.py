"""The items of a gallery by rows, which stay what they are while items come and go, and by ids."""

from __future__ import annotations

import sys
from typing import Any, Protocol

import numpy as np

from peaccel._utils.arrays import Array, appended, as_numpy, device_of, dtype_name, is_torch
from peaccel._utils.exclusions import Exclusions
from peaccel._utils.ids import (
    LARGEST_ID,
    Ids,
    SortedIds,
    and_none,
    are_strings,
    candidate_ids,
    checked_allowed,
    checked_ids,
    require_known,
)
from peaccel.distributions import Distribution
from peaccel.distributions.checks import compute_dtype, converted, plural, require_distribution
from peaccel.scores import Score

__all__ = ["Ints", "RowsAndIds", "StoredItems", "StoredItemsOnGpu"]

Ints = np.ndarray[Any, np.dtype[np.int64]]
Bools = np.ndarray[Any, np.dtype[np.bool_]]


class RowsAndIds(Protocol):
    """The contract of a gallery's items, on the CPU and on a GPU alike, as a search needs it.

    A row is an item's place in the gallery's arrays, an id the number or the string by which callers know it, and a
    label what the index returns for it: its row, or its id where that is a number. Rows and labels are arrays of any
    shape, of the kind that the index returns; -1 stands for no item in all three, an empty string among strings.
    """

    by_row: bool
    """Whether labels are rows, rather than ids."""
    share_ids: bool
    """Whether several items have one id, as photographs of a person."""
    removed: int
    """How many rows are of items that were removed."""

    def __len__(self) -> int:
        """Count the rows, those of removed items included."""

    @property
    def gallery(self) -> Distribution:
        """All rows as a distribution, those of removed items included."""

    @property
    def present(self) -> Distribution:
        """The items that are there, in the order of their rows."""

    @property
    def ids(self) -> Ids:
        """The ids of the items that are there, in the order of their rows."""

    @property
    def named(self) -> bool:
        """Whether items were given ids; else these are the numbers of their rows."""

    def rows_of_labels(self, labels: Array) -> Array:
        """The rows of what an index returned; -1 where the item was removed. Of ids that items share, all rows.

        An unknown id is a ValueError on the CPU. On a GPU, for whose values nobody waits, it becomes the number of
        rows. Rows beyond the gallery stay as they are: the kernel that is given them refuses or scores them as NaN.
        """

    def ids_of_rows(self, rows: Array) -> Array:
        """The ids of rows: strings as a numpy array, whatever the rows are."""

    def excluded(self, owner: str, exclude: Any, queries: int) -> Exclusions | None:
        """The rows that queries may not find, by ids; those that no item has exclude nothing."""

    def rows_of_candidates(self, owner: str, candidates: Array, queries: int) -> Array:
        """The rows [Q, R] of candidates [Q, K], all of an id that items share; -1 for none."""

    def has(self, id: int | str) -> bool:
        """Whether an item that is there has this id."""


class StoredItems:
    """`RowsAndIds` on the CPU, in arrays that grow by doubling.

    A row is never moved or reused, since an index may know the item by it: that of a removed item stays.

    Parameters
    ----------
    gallery
        The rows.
    ids
        The id of each row, integers or strings, all different among items that are there; None where it is the number
        of the row.
    by_row
        Whether an index that holds the items returns their rows, rather than their ids; strings are never returned.
    live
        For each row whether the item is still there; by default all are.
    next_id
        The id that the next item gets; None where new items come with ids. Where rows are ids, by default the next row.
    share_ids
        Whether several items have one id; then ids are integers that the index returns, and items stay as they are.
    """

    def __init__(
        self,
        gallery: Distribution,
        ids: Ids | None,
        by_row: bool,
        live: Bools | None = None,
        next_id: int | None = None,
        share_ids: bool = False,
    ) -> None:
        size = len(gallery)
        self._like = gallery
        self._size = size
        # Without spare rows at first, so that the first item that is added moves all out of the caller's arrays.
        self._arrays: list[Array] = list(gallery.arrays)
        self._ids: Array = None if ids is None else and_none(ids)  # the last one is the id of row -1
        self._live: Array = np.ones(size, bool) if live is None else live
        self._sorted: SortedIds | None = None  # of items that are there, made at the first lookup
        self._recent: dict[int | str, int] = {}  # the rows of ids that were added since `_sorted` was made
        self.by_row, self.share_ids = by_row, share_ids
        self.next_id = size if ids is None and next_id is None else next_id
        self.removed = size - int(np.count_nonzero(self._live))

    def __len__(self) -> int:
        return self._size

    def __reduce__(self) -> tuple[Any, ...]:
        gallery = self.gallery
        if is_torch(gallery.mu):  # a tensor is pickled with all the memory that it is a view of
            gallery = gallery._map(lambda x: x.clone())
        return StoredItems, (gallery, self.table, self.by_row, self.live, self.next_id, self.share_ids)

    def snapshot(self) -> StoredItems:
        """The items as they are now; later changes of `self`, which writes no row twice, do not reach it."""
        return StoredItems(self.gallery, self.table, self.by_row, self.live.copy(), self.next_id, self.share_ids)

    @property
    def gallery(self) -> Distribution:
        """All rows as a distribution, without a copy."""
        return type(self._like)(*[x[: self._size] for x in self._arrays])

    @property
    def are_strings(self) -> bool:
        """Whether ids are strings."""
        return are_strings(self._ids)

    @property
    def named(self) -> bool:
        return self._ids is not None

    @property
    def table(self) -> Ids | None:
        """The id of each row, those of removed items included; None where it is the number of the row."""
        table: Ids | None = None if self._ids is None else self._ids[: self._size]
        return table

    @property
    def live(self) -> Bools:
        """For each row whether the item is still there."""
        live: Bools = self._live[: self._size]
        return live

    @property
    def ids(self) -> Ids:
        ids: Ids = self.ids_of_rows(np.flatnonzero(self.live))
        return ids

    @property
    def present(self) -> Distribution:
        """The items that are there; a copy where some were removed."""
        return self.gallery[self.live] if self.removed else self.gallery

    def compacted(self) -> StoredItems:
        """The items that are there, under their ids, without the rows of removed ones."""
        return StoredItems(self.present, self.ids, self.by_row, next_id=self.next_id)

    def ids_of_rows(self, rows: Array) -> Array:
        if self._ids is None:
            return rows
        ids: Ids = self._ids[: self._size + 1][as_numpy(rows)]
        return sys.modules["torch"].from_numpy(ids) if is_torch(rows) and not self.are_strings else ids

    def rows_of_ids(self, ids: Ids) -> Ints:
        """The rows of ids of any shape; -1 where there is no such item."""
        if not self._size:
            return np.full(ids.shape, -1)
        rows = np.where((ids < 0) | (ids >= self._size), -1, ids) if self._ids is None else self._looked_up(ids)
        rows[~self.live[rows]] = -1
        return rows

    def _ascending(self) -> SortedIds:
        """Ids in ascending order and their rows, but those that were added since."""
        if self._sorted is None or len(self._recent) > max(1024, len(self._sorted.ascending) // 8):
            live = np.flatnonzero(self.live)
            ascending, order = SortedIds.of(self._ids[live])
            self._sorted, self._recent = SortedIds(ascending, live[order]), {}
        return self._sorted

    def _looked_up(self, ids: Ids) -> Ints:
        """The rows of ids, some perhaps of items that were removed since; -1 where there never was such an item."""
        rows = self._ascending().rows_of(ids)
        if self._recent:
            found = map(self._recent.get, ids.ravel().tolist(), rows.ravel().tolist())
            rows = np.fromiter(found, np.int64, ids.size).reshape(ids.shape)
        return rows

    def rows_of_labels(self, labels: Ints) -> Ints:
        if self.by_row:
            if not self.removed:
                return labels
            live = self.live
            return np.where((labels >= len(live)) | live[np.minimum(labels, len(live) - 1)], labels, -1)
        rows = self.rows_of_ids(labels)
        if not ((rows >= 0) | (labels < 0)).all():
            unknown = labels[(rows < 0) & (labels >= 0)][0]
            raise ValueError(f"FaissReranker: index returned id {unknown}, which ids lacks")
        return self._all_rows(labels) if self.share_ids else rows

    def _all_rows(self, labels: Ids) -> Ints:
        """The rows [Q, R] of all items that have these ids [Q, S]; -1 after the last of a query."""
        ascending, places = self._ascending()
        assert places is not None
        labels = np.sort(labels, 1)
        first, last = (ascending.searchsorted(labels, side) for side in ("left", "right"))
        counts = np.where((labels >= 0) & (np.diff(labels, prepend=-1, axis=1) > 0), last - first, 0)
        ends = counts.cumsum(1)
        rows = np.full((len(labels), ends[:, -1].max(initial=0)), -1)
        # Within a query the rows of an id stand beside each other, from where those of the ids before it end.
        held = np.arange(rows.shape[1]) < ends[:, -1:]
        moved = np.repeat((first - (ends - counts)).ravel(), counts.ravel())
        rows[held] = places[moved + np.nonzero(held)[1]]
        return rows

    def count_ids(self, rows: Ints) -> Ints:
        """How many different ids items in these rows [Q, R] have."""
        ids = np.sort(self.ids_of_rows(rows), 1)
        counts: Ints = (np.diff(ids, prepend=-1, axis=1) > 0).sum(1)
        return counts

    def has(self, id: int | str) -> bool:
        if isinstance(id, str) != self.are_strings or (isinstance(id, int) and not 0 <= id <= LARGEST_ID):
            return False
        return bool(self.rows_of_ids(np.array([id]))[0] >= 0)

    def rows_allowed(self, owner: str, allowed: Array) -> Ints:
        """The rows, ascending, of items that are there and that ids, or a mask over `ids`, allow."""
        asked = checked_allowed(owner, allowed, self._size - self.removed, strings=self.are_strings)
        if asked.dtype == bool:
            masked: Ints = np.flatnonzero(self.live)[asked]
            return masked
        if self.named:  # those that follow each other are then looked up at places nearby: a third of the time
            asked = np.sort(asked)
        rows = self._all_rows(asked[None]) if self.share_ids else self.rows_of_ids(asked)
        found = np.zeros(self._size, bool)
        found[rows[rows >= 0]] = True
        return np.flatnonzero(found)

    def excluded(self, owner: str, exclude: Any, queries: int) -> Exclusions | None:
        excluded = Exclusions.checked(owner, exclude, queries)
        if excluded is None:
            return None
        excluded.require_like(owner, self.table)
        return excluded.located(lambda ids: self._all_rows(ids[:, None]) if self.share_ids else self.rows_of_ids(ids))

    def rows_of_candidates(self, owner: str, candidates: Array, queries: int) -> Ints:
        asked = candidate_ids(owner, candidates, queries, self._ids)
        rows = self.rows_of_ids(asked)
        require_known(owner, asked, rows >= 0)
        return self._all_rows(asked) if self.share_ids else rows

    # -- changes -------------------------------------------------------------------------------------------------------

    def checked(self, owner: str, score: Score, items: Distribution) -> Distribution:
        """New items in the gallery's dtype; refused where they are of another kind than the gallery's."""
        like = self._like
        require_distribution(score.name, "items", items)
        if items.kind != like.kind:
            raise TypeError(f"{owner}: items are {items.kind}, expected {like.kind} like gallery")
        device, expected = device_of(items.mu), device_of(like.mu)
        if device != expected:
            raise TypeError(f"{owner}: items must be {plural(expected)} like gallery, got {plural(device)}")
        if items.dim != like.dim:
            raise ValueError(f"{owner}: dim of items is {items.dim}, expected {like.dim} like gallery")
        dtype, stored = compute_dtype(items.mu), compute_dtype(like.mu)
        if dtype != stored:
            raise ValueError(f"{owner}: items have dtype {dtype}, expected {stored} like gallery")
        items = items.detach()
        items.check_rows()
        items.check_finite(owner, "items")
        return converted(items, dtype_name(like.mu))

    def checked_ids(self, owner: str, ids: Array, size: int | None = None) -> Ids:
        """`checked_ids`, of integers or of strings as the ids of the items are."""
        return checked_ids(owner, ids, size, "strings" if self.are_strings else "integers")

    def new_ids(self, owner: str, ids: Array | None, count: int) -> Ids:
        """The ids under which so many new items are to go: given ones that no item has, or the next numbers."""
        if self.next_id is not None:
            if ids is not None:
                raise ValueError(f"{owner}: ids must be None, since items go by the numbers of their rows")
            return np.arange(self.next_id, self.next_id + count)
        if ids is None:
            raise ValueError(f"{owner}: ids must be given for {count} items, as for the first ones")
        new = self.checked_ids(owner, ids, count)
        taken = new[self.rows_of_ids(new) >= 0]
        if len(taken):
            raise ValueError(f"{owner}: ids hold {taken[0]}, which an item has already; see upsert")
        return new

    def known_rows(self, owner: str, ids: Ids) -> Ints:
        """The rows of ids, each of which an item must have."""
        rows = self.rows_of_ids(ids)
        if (rows < 0).any():
            row = int(np.argmax(rows < 0))
            raise ValueError(f"{owner}: ids hold {ids[row]} in row {row}, which no item has")
        return rows

    def add(self, items: Distribution, ids: Ids) -> None:
        """Append rows, under ids that no item has that is there."""
        if not len(items):  # appending nothing would still write into the caller's arrays, which may be views
            return
        rows = range(self._size, self._size + len(items))
        self._arrays = [appended(x, self._size, new) for x, new in zip(self._arrays, items.arrays, strict=True)]
        self._live = appended(self._live, self._size, np.ones(len(ids), bool))
        if self._ids is None and not np.array_equal(ids, rows):
            self._ids = and_none(np.arange(self._size))
        if self._ids is not None:
            wide = np.promote_types(self._ids.dtype, ids.dtype)  # of strings, as long as the longest
            self._ids = appended(self._ids.astype(wide, copy=False), self._size, and_none(ids))
        if self.next_id is not None:
            self.next_id += len(items)
        self._size = rows.stop
        if self._sorted is not None:
            self._recent.update(zip(ids.tolist(), rows, strict=True))

    def remove(self, rows: Ints) -> None:
        """Mark items that are there as removed, by their rows, all different."""
        self._live[rows] = False
        self.removed += len(rows)


class StoredItemsOnGpu:
    """`RowsAndIds` of a gallery on a GPU, whose items stay as they are; ids are looked up on the GPU too."""

    removed = 0
    share_ids = False

    def __init__(self, gallery: Distribution, ids: Ints | None = None, by_row: bool = False) -> None:
        self.gallery = self.present = gallery
        self.by_row = by_row
        self.ids = np.arange(len(gallery)) if ids is None else ids
        self._ids: Array = None
        if ids is not None:
            torch: Any = sys.modules["torch"]
            order = np.argsort(ids, kind="stable")
            arrays = np.append(ids, -1), ids[order], order
            self._ids, self._ascending, self._places = (torch.from_numpy(x).to(gallery.mu.device) for x in arrays)

    def __len__(self) -> int:
        return len(self.gallery)

    @property
    def named(self) -> bool:
        return self._ids is not None

    def rows_of_labels(self, labels: Array) -> Array:
        return labels if self.by_row else self._rows_of_ids(labels)

    def _rows_of_ids(self, labels: Array) -> Array:
        if self._ids is None or not len(self):
            return labels
        torch: Any = sys.modules["torch"]
        near = torch.searchsorted(self._ascending, labels).clamp(max=len(self) - 1)
        rows = self._places[near].masked_fill(self._ascending[near] != labels, len(self))
        return rows.masked_fill(labels < 0, -1)

    def ids_of_rows(self, rows: Array) -> Array:
        """The ids of rows; -1 also where there is no such row."""
        return rows if self._ids is None else self._ids[rows.clamp(max=len(self))]

    def excluded(self, owner: str, exclude: Any, queries: int) -> Exclusions | None:
        excluded = Exclusions.checked(owner, exclude, queries)
        if excluded is None:
            return None
        excluded.require_like(owner, self.ids if self.named else None)
        return excluded.among(SortedIds.of(self.ids))

    def rows_of_candidates(self, owner: str, candidates: Array, queries: int) -> Array:
        return self._rows_of_ids(candidates)

    def has(self, id: int | str) -> bool:
        return not isinstance(id, str) and bool((self.ids == id).any())
