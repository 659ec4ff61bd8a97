"""A gallery that items join and leave: rows that stay where they are, and the ids they go by."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from peaccel.checks import compute_dtype, converted, plural, require_distribution
from peaccel.distributions import Distribution
from peaccel.ops._array import Array, appended, as_numpy, device_of, dtype_name, is_torch, on_host
from peaccel.scores import Score

__all__ = ["Items", "ItemsOnGpu", "checked_ids"]

Ints = np.ndarray[Any, np.dtype[np.int64]]
Bools = np.ndarray[Any, np.dtype[np.bool_]]

LAST = np.iinfo(np.int64).max  # of all ids


class Items:
    """The items of a gallery in arrays that grow by doubling, under ids that are all different.

    A row is never moved or reused, since it is what an index knows an item by: that of a removed item stays, dead.

    Parameters
    ----------
    gallery
        The rows.
    ids
        [rows]: the id of each; None where it is the number of the row.
    by_row
        Whether an index that holds the items returns their rows, rather than their ids.
    live
        [rows]: whether the item is still there; by default all are.
    following
        The number that the next item gets; None where new items come with ids. Where rows are ids, by default the next.

    Attributes
    ----------
    dead
        How many rows are of removed items.
    """

    def __init__(
        self,
        gallery: Distribution,
        ids: Ints | None,
        by_row: bool,
        live: Bools | None = None,
        following: int | None = None,
    ) -> None:
        size = len(gallery)
        self._like = gallery
        self._size = size
        # As long as what they hold, so that the first item that is added moves out of the caller's arrays.
        self._arrays: list[Array] = list(gallery.arrays)
        self._ids: Array = None if ids is None else np.append(ids, -1)  # the last is the id of row -1, which is none
        self._live: Array = np.ones(size, bool) if live is None else live
        self._sorted: tuple[Ints, Ints] | None = None  # ids in order, and their rows; made when first asked for
        self._recent: dict[int, int] = {}  # rows of the ids that came since
        self.by_row = by_row
        self.following = size if ids is None and following is None else following
        self.dead = size - int(np.count_nonzero(self._live))

    def __len__(self) -> int:
        """Count the rows, dead ones included."""
        return self._size

    def __reduce__(self) -> tuple[Any, ...]:
        gallery = self.gallery
        if is_torch(gallery.mu):  # a tensor is pickled with all the memory that it is a view of
            gallery = gallery._map(lambda x: x.clone())
        return Items, (gallery, self.table, self.by_row, self.live, self.following)

    @property
    def gallery(self) -> Distribution:
        """The rows as a distribution, without a copy; dead ones included."""
        return type(self._like)(*[x[: self._size] for x in self._arrays])

    @property
    def table(self) -> Ints | None:
        """[rows]: the id of each, dead ones included; None where it is the number of the row."""
        table: Ints | None = None if self._ids is None else self._ids[: self._size]
        return table

    @property
    def live(self) -> Bools:
        """[rows]: whether the item is still there."""
        live: Bools = self._live[: self._size]
        return live

    @property
    def ids(self) -> Ints:
        """The ids of the items that are there, in the order of their rows."""
        ids: Ints = self.named(np.flatnonzero(self.live))
        return ids

    @property
    def present(self) -> Distribution:
        """The items that are there, in the order of their rows; a copy where some are not."""
        return self.gallery[self.live] if self.dead else self.gallery

    def compacted(self) -> Items:
        """The items that are there, each under its id, in rows without dead ones between them."""
        return Items(self.present, self.ids, self.by_row, following=self.following)

    def named(self, rows: Array) -> Array:
        """The ids of rows of any shape, of the rows' kind; -1 for -1."""
        if self._ids is None:
            return rows
        ids: Ints = self._ids[: self._size + 1][as_numpy(rows)]
        return sys.modules["torch"].from_numpy(ids) if is_torch(rows) else ids

    def rows(self, ids: Ints) -> Ints:
        """The rows of ids of any shape; -1 where there is no such item."""
        if not self._size:
            return np.full_like(ids, -1)
        rows = np.where((ids < 0) | (ids >= self._size), -1, ids) if self._ids is None else self._looked_up(ids)
        rows[~self.live[rows]] = -1
        return rows

    def _looked_up(self, ids: Ints) -> Ints:
        """The rows of ids, perhaps of items that were removed since; -1 where there never was such an item."""
        if self._sorted is None or len(self._recent) > max(1024, len(self._sorted[0]) // 8):
            kept = np.flatnonzero(self.live)
            order = kept[np.argsort(self._ids[kept], kind="stable")]
            self._sorted, self._recent = (self._ids[order], order), {}
        names, places = self._sorted
        rows = np.full_like(ids, -1)
        if len(names):
            near = np.minimum(names.searchsorted(ids), len(names) - 1)
            rows = places[near]
            rows[names[near] != ids] = -1
        if self._recent:
            found = map(self._recent.get, ids.ravel().tolist(), rows.ravel().tolist())
            rows = np.fromiter(found, np.int64, ids.size).reshape(ids.shape)
        return rows

    def found(self, labels: Ints) -> Ints:
        """The rows of what an index returned, of any shape; -1 for none and for removed items.

        Rows beyond the gallery stay as they are: the kernel that is given them says so.
        """
        if self.by_row:
            if not self.dead:
                return labels
            live = self.live
            return np.where((labels >= len(live)) | live[np.minimum(labels, len(live) - 1)], labels, -1)
        rows = self.rows(labels)
        if not ((rows >= 0) | (labels < 0)).all():
            unknown = labels[(rows < 0) & (labels >= 0)][0]
            raise ValueError(f"FaissReranker: index returned id {unknown}, which ids lacks")
        return rows

    def has(self, name: int) -> bool:
        """Whether an item that is there has this id."""
        return 0 <= name <= LAST and bool(self.rows(np.array([name]))[0] >= 0)

    def chosen(self, owner: str, allowed: Array) -> Ints:
        """The rows, ascending, of items that are there and that ids, or a mask over `ids`, allow."""
        given = on_host(owner, "allowed", allowed)
        given = given if given.size or given.dtype == bool else given.astype(np.int64)  # an empty list has no dtype
        count = self._size - self.dead
        if given.ndim != 1 or given.dtype.kind not in "biu" or (given.dtype == bool and len(given) != count):
            got = f"shape {given.shape} and dtype {given.dtype}"
            raise ValueError(f"{owner}: allowed has {got}, expected integer ids, or a bool for each of {count} items")
        if given.dtype == bool:
            chosen: Ints = np.flatnonzero(self.live)[given]
            return chosen
        rows = self.rows(given.astype(np.int64, copy=False))
        return np.unique(rows[rows >= 0])

    def alike(self, owner: str, score: Score, items: Distribution) -> Distribution:
        """Items as the gallery holds its own, after checks."""
        like = self._like
        require_distribution(score.name, "items", items)
        if items.kind != like.kind:
            raise TypeError(f"{owner}: items are {items.kind}, expected {like.kind} like gallery")
        device, expected = device_of(items.mu), device_of(like.mu)
        if device != expected:
            raise TypeError(f"{owner}: items must be {plural(expected)} like gallery, got {plural(device)}")
        if items.dim != like.dim:
            raise ValueError(f"{owner}: dim of items is {items.dim}, expected {like.dim} like gallery")
        dtype, own = compute_dtype(items.mu), compute_dtype(like.mu)
        if dtype != own:
            raise ValueError(f"{owner}: items have dtype {dtype}, expected {own} like gallery")
        items = items.detach()
        items.check_signs()
        return converted(items, dtype_name(like.mu))

    def add(self, items: Distribution, ids: Ints) -> None:
        """New rows at the end, under ids that no live item has."""
        if not len(items):  # not even nothing is written into the caller's arrays, which may be views
            return
        rows = range(self._size, self._size + len(items))
        self._arrays = [appended(x, self._size, new) for x, new in zip(self._arrays, items.arrays, strict=True)]
        self._live = appended(self._live, self._size, np.ones(len(ids), bool))
        if self._ids is None and not np.array_equal(ids, rows):
            self._ids = np.append(np.arange(self._size), -1)
        if self._ids is not None:
            self._ids = appended(self._ids, self._size, np.append(ids, -1))
        if self.following is not None:
            self.following += len(items)
        self._size = rows.stop
        if self._sorted is not None:
            self._recent.update(zip(ids.tolist(), rows, strict=True))

    def remove(self, rows: Ints) -> None:
        """Mark live rows, all different, as dead."""
        self._live[rows] = False
        self.dead += len(rows)


class ItemsOnGpu:
    """The items of a gallery on a GPU, which stay as they are; their ids are there too."""

    by_row = False
    dead = 0

    def __init__(self, gallery: Distribution, ids: Ints | None = None) -> None:
        self.gallery = self.present = gallery
        self.ids = np.arange(len(gallery)) if ids is None else ids
        self._ids: Array = None
        if ids is not None:
            torch: Any = sys.modules["torch"]
            order = np.argsort(ids, kind="stable")
            arrays = np.append(ids, -1), ids[order], order
            self._ids, self._names, self._places = (torch.from_numpy(x).to(gallery.mu.device) for x in arrays)

    def __len__(self) -> int:
        """Count the rows."""
        return len(self.gallery)

    def found(self, labels: Array) -> Array:
        """The rows of ids of any shape, -1 for -1; the number of rows where there is no such item."""
        if self._ids is None or not len(self):
            return labels
        torch: Any = sys.modules["torch"]
        near = torch.searchsorted(self._names, labels).clamp(max=len(self) - 1)
        rows = self._places[near].masked_fill(self._names[near] != labels, len(self))
        return rows.masked_fill(labels < 0, -1)

    def has(self, name: int) -> bool:
        """Whether an item has this id."""
        return bool((self.ids == name).any())

    def named(self, rows: Array) -> Array:
        """The ids of rows of any shape; -1 for -1, and where there is no such row."""
        return rows if self._ids is None else self._ids[rows.clamp(max=len(self))]


def checked_ids(owner: str, ids: Array, size: int | None = None) -> np.ndarray[Any, np.dtype[np.int64]]:
    """ids [size] as int64, all different."""
    given = as_numpy(ids) if is_torch(ids) else np.asarray(ids)
    given = given if given.size else given.astype(np.int64)  # an empty list has no dtype
    if given.ndim != 1 or len(given) != (len(given) if size is None else size) or given.dtype.kind not in "iu":
        got = f"shape {given.shape} and dtype {given.dtype}"
        raise ValueError(f"{owner}: ids have {got}, expected integers ({'N' if size is None else size},)")
    outside = given[(given < 0) | (given > LAST)]
    if len(outside):
        raise ValueError(f"{owner}: ids hold {outside[0]}, expected 0 .. 2^63 - 1")
    ordered = np.sort(given)
    repeated = ordered[1:][ordered[1:] == ordered[:-1]]
    if len(repeated):
        raise ValueError(f"{owner}: ids hold {repeated[0]} twice")
    return given.astype(np.int64)
