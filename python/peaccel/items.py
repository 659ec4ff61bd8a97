"""A gallery that items join and leave: rows that stay where they are, and the ids they go by."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from peaccel.distributions import Distribution
from peaccel.ops._array import Array, as_numpy, device_of, dtype_name, is_torch
from peaccel.prepared import cast, compute_dtype, plural, require_distribution
from peaccel.scores import Score

__all__ = ["Items", "ItemsOnGpu", "checked_ids"]

Ints = np.ndarray[Any, np.dtype[np.int64]]


class Items:
    """The items of a gallery in arrays that grow by doubling, under ids that are all different.

    A row is never moved or reused, since it is what an index knows an item by: that of a removed item stays, dead.

    Attributes
    ----------
    dead
        How many rows are of removed items.
    """

    def __init__(self, gallery: Distribution, ids: Ints | None = None) -> None:
        size = len(gallery)
        self._like = gallery
        self._size = size
        # Full to the brim, so that the first item that is added moves out of the caller's arrays.
        self._arrays: list[Array] = list(gallery.arrays)
        self._ids: Array = np.append(np.arange(size) if ids is None else ids, -1)
        self._live: Array = np.ones(size, bool)
        self._sorted: tuple[Ints, Ints] | None = None  # ids in order, and their rows; made when first asked for
        self._recent: dict[int, int] = {}  # rows of the ids that came since
        self.dead = 0

    def __len__(self) -> int:
        """Count the rows, dead ones included."""
        return self._size

    @property
    def gallery(self) -> Distribution:
        """The rows as a distribution, without a copy; dead ones included."""
        return type(self._like)(*[x[: self._size] for x in self._arrays])

    @property
    def ids(self) -> Ints:
        """[rows]: the id of each."""
        ids: Ints = self._ids[: self._size]
        return ids

    def named(self, rows: Array) -> Array:
        """The ids of rows of any shape, of the rows' kind; -1 for -1."""
        ids: Ints = self._ids[: self._size + 1][as_numpy(rows)]
        return sys.modules["torch"].from_numpy(ids) if is_torch(rows) else ids

    @property
    def live(self) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """[rows]: whether the item is still there."""
        live: np.ndarray[Any, np.dtype[np.bool_]] = self._live[: self._size]
        return live

    def rows(self, ids: Ints) -> Ints:
        """The rows of ids of any shape; -1 where there is no such item."""
        if not self._size:
            return np.full_like(ids, -1)
        if self._sorted is None or len(self._recent) > max(1024, len(self._sorted[0]) // 8):
            kept = np.flatnonzero(self.live)
            order = kept[np.argsort(self.ids[kept], kind="stable")]
            self._sorted, self._recent = (self.ids[order], order), {}
        names, places = self._sorted
        rows = np.full_like(ids, -1)
        if len(names):
            near = np.minimum(names.searchsorted(ids), len(names) - 1)
            rows = places[near]
            rows[names[near] != ids] = -1
        if self._recent:
            found = map(self._recent.get, ids.ravel().tolist(), rows.ravel().tolist())
            rows = np.fromiter(found, np.int64, ids.size).reshape(ids.shape)
        rows[~self.live[rows]] = -1
        return rows

    def alike(self, owner: str, score: Score, items: Distribution) -> Distribution:
        """Items as the gallery holds its own, after checks."""
        like = self._like
        require_distribution(score, items, "items")
        if items.kind != like.kind:
            raise TypeError(f"{owner}: items are {items.kind}, expected {like.kind} like gallery")
        device, expected = device_of(items.mu), device_of(like.mu)
        if device != expected:
            raise TypeError(f"{owner}: items must be {plural(expected)} like gallery, got {plural(device)}")
        if items.dim != like.dim:
            raise ValueError(f"{owner}: dim of items is {items.dim}, expected {like.dim} like gallery")
        dtype, own = compute_dtype(items), compute_dtype(like)
        if dtype != own:
            raise ValueError(f"{owner}: items have dtype {dtype}, expected {own} like gallery")
        return cast(items.detach(), dtype_name(like.mu))

    def add(self, items: Distribution, ids: Ints) -> None:
        """New rows at the end, under ids that no live item has."""
        rows = range(self._size, self._size + len(items))
        self._arrays = [self._appended(x, new) for x, new in zip(self._arrays, items.arrays, strict=True)]
        self._ids = self._appended(self._ids, np.append(ids, -1))
        self._live = self._appended(self._live, np.ones(len(ids), bool))
        self._size = rows.stop
        if self._sorted is not None:
            self._recent.update(zip(ids.tolist(), rows, strict=True))

    def remove(self, rows: Ints) -> None:
        """Mark live rows, all different, as dead."""
        self._live[rows] = False
        self.dead += len(rows)

    def _appended(self, buffer: Array, new: Array) -> Array:
        """The buffer with rows after the first `size`, of twice the length where they do not fit."""
        stop = self._size + len(new)
        if stop > len(buffer):
            shape = (max(2 * self._size, stop), *buffer.shape[1:])
            grown = buffer.new_empty(shape) if is_torch(buffer) else np.empty(shape, buffer.dtype)
            grown[: self._size] = buffer[: self._size]
            buffer = grown
        buffer[self._size : stop] = new
        return buffer


class ItemsOnGpu:
    """The items of a gallery on a GPU, which stay as they are; their ids are there too."""

    dead = 0

    def __init__(self, gallery: Distribution, ids: Ints | None = None) -> None:
        self.gallery = gallery
        self._ids: Array = None
        if ids is not None:
            torch: Any = sys.modules["torch"]
            order = np.argsort(ids, kind="stable")
            arrays = np.append(ids, -1), ids[order], order
            self._ids, self._names, self._places = (torch.from_numpy(x).to(gallery.mu.device) for x in arrays)

    def __len__(self) -> int:
        """Count the rows."""
        return len(self.gallery)

    def rows(self, ids: Array) -> Array:
        """The rows of ids of any shape, -1 for -1; the number of rows where there is no such item."""
        if self._ids is None or not len(self):
            return ids
        torch: Any = sys.modules["torch"]
        near = torch.searchsorted(self._names, ids).clamp(max=len(self) - 1)
        rows = self._places[near].masked_fill(self._names[near] != ids, len(self))
        return rows.masked_fill(ids < 0, -1)

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
    outside = given[(given < 0) | (given > np.iinfo(np.int64).max)]
    if len(outside):
        raise ValueError(f"{owner}: ids hold {outside[0]}, expected 0 .. 2^63 - 1")
    ordered = np.sort(given)
    repeated = ordered[1:][ordered[1:] == ordered[:-1]]
    if len(repeated):
        raise ValueError(f"{owner}: ids hold {repeated[0]} twice")
    return given.astype(np.int64)
