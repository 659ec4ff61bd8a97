"""A FAISS index and the items that it holds: they come and go in both, and the index proposes rows of the gallery."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from peaccel._utils.arrays import Array, device_of, full
from peaccel._utils.exclusions import Exclusions
from peaccel._utils.ids import Ids, are_strings, checked_ids
from peaccel._utils.shared_lock import SharedLock
from peaccel.distributions import Distribution
from peaccel.retrieval.faiss import index as faiss_index
from peaccel.retrieval.faiss.items import Ints, RowsAndIds, StoredItems, StoredItemsOnGpu
from peaccel.retrieval.faiss.vectors import Vectors

__all__ = ["AllowedItems", "Indexed"]

COMPARED = 32  # rows that are looked for in an index that a caller has filled
ASSIGNMENTS = 1000  # other assignments of their labels that these rows are compared under
LEAST_SHARE = 0.99  # of those that fit worse than the rows' own labels: by chance one permutation in 100 is not found


class AllowedItems(NamedTuple):
    """The items that a search may find, where others in the index may not be found."""

    rows: Ints  # ascending
    selector: Any  # FAISS's selector of these items


class Indexed:
    """An index, and the items that it holds."""

    def __init__(self, index: Any, items: RowsAndIds, mapped_from: Path | None = None) -> None:
        self.index = index
        self.items = items
        self.mapped_from = mapped_from  # the folder in whose files both lie; copies lie in memory
        self._present: AllowedItems | None = None  # all items that are there, made for the first search after a change
        self.lock = SharedLock()  # held by callers

    def __reduce__(self) -> tuple[Any, ...]:
        with self.lock.together():
            items = self.items.snapshot() if isinstance(self.items, StoredItems) else self.items
            return _restored, (faiss_index.serialized(self.index), items)

    @classmethod
    def filled(cls, index: Any, gallery: Distribution, ids: Array | None) -> Indexed:
        """An index that a caller has filled, or the path of its file, beside the gallery whose items it holds."""
        if isinstance(index, (str, os.PathLike)):
            index = faiss_index.read(os.fspath(index))
        if not (hasattr(index, "search") and hasattr(index, "ntotal")):
            raise TypeError(f"FaissReranker: index must be a FAISS index, got {type(index).__name__}")
        device = device_of(gallery.mu)
        on_gpu = device not in ("numpy", "cpu")
        if on_gpu and not hasattr(index, "getDevice"):
            kind = type(index).__name__
            raise ValueError(f"FaissReranker: index is {kind} on the CPU, expected one on {device} like gallery")
        if index.ntotal != len(gallery):
            raise ValueError(f"FaissReranker: index holds {index.ntotal} items, expected {len(gallery)} like gallery")
        if on_gpu:
            checked = None if ids is None else checked_ids("FaissReranker", ids, len(gallery), "integers")
            return cls(index, StoredItemsOnGpu(gallery, checked))
        return cls(index, _items(index, gallery, ids))

    def require_order(self, vectors: Vectors) -> None:
        """Refuse an index that holds some of the gallery's rows, by their vectors, under labels of other rows.

        Rows are held against vectors one to one: what an index holds, if lossy, is as similar to the rows under their
        own labels as under few of the other assignments of these labels.
        """
        items = self.items
        if not isinstance(items, StoredItems) or items.share_ids or not len(items) or vectors.by_function:
            return
        rows = np.unique(np.linspace(0, len(items) - 1, COMPARED).astype(np.int64))
        labels = rows if items.by_row else items.ids_of_rows(rows)
        compared = vectors.gallery(items.gallery[rows])
        similar = faiss_index.similarities(self.index, compared, labels)
        if similar is None:
            return
        similar = similar.astype(np.float64)
        rng = np.random.default_rng(0)
        others = rng.permuted(np.tile(np.arange(len(rows)), (ASSIGNMENTS, 1)), axis=1)
        sums = np.take_along_axis(similar, others.T, 1).sum(0)
        slack = 1e-5 * np.square(compared, dtype=np.float64).sum()  # float32's rounding, where items are alike
        if np.trace(similar) + slack < np.quantile(sums, LEAST_SHARE):
            got = "others" if items.named else "None"
            what = f"ids must be those that index returns, in the order of gallery, got {got}"
            raise ValueError(f"FaissReranker: {what}: index holds its rows in another order")

    @property
    def on_gpu(self) -> bool:
        """Whether the items, and with them queries and results, are tensors on a GPU."""
        return isinstance(self.items, StoredItemsOnGpu)

    # -- proposals -----------------------------------------------------------------------------------------------------

    def choice(self, params: Any, allowed: Array | None) -> AllowedItems | None:
        """The items that may be found, after checks of what the caller gave; None where all in the index may be."""
        items = self.items if isinstance(self.items, StoredItems) else None
        if params is not None and faiss_index.selects(params):
            if allowed is not None:
                raise ValueError("FaissReranker.search: params have a selector, expected none beside allowed")
            if items is not None and items.by_row and items.table is not None:
                raise ValueError("FaissReranker.search: params select rows of the index, not ids; use allowed")
        if allowed is not None:
            if items is None or self._parameters(params, 1, None) is None:
                kind = f"{type(self.index).__name__}{' with such params' if params is not None else ''}"
                raise TypeError(f"FaissReranker.search: allowed must be None, FAISS cannot select in this {kind}")
            return self._chosen(items.rows_allowed("FaissReranker.search", allowed))
        if items is None or not (items.by_row and items.removed):
            return None
        if self._present is None:
            self._present = self._chosen(np.flatnonzero(items.live))
        return self._present

    def _chosen(self, rows: Ints) -> AllowedItems:
        if self.items.by_row:
            return AllowedItems(rows, faiss_index.row_selector(rows, len(self.items)))
        return AllowedItems(rows, faiss_index.id_selector(self.items.ids_of_rows(rows)))

    def proposed(
        self,
        vectors: Array,
        shortlist: int,
        params: Any,
        choice: AllowedItems | None,
        ids: int = 1,
        excluded: Exclusions | None = None,
    ) -> Array:
        """The rows [Q, S] of items that may be found and that the index thinks best; -1 for none.

        Each query has as many of them as there are, up to the shortlist, as far as the index can find them. Where items
        share ids, it has all items of the ids that are proposed, of so many ids at least. The shortlist grows by the
        items that a query may not find, which are among the rows.
        """
        if excluded is not None:
            found = []
            for queries in excluded.by_count():
                more = int(excluded.counts[queries].max(initial=0))
                rows = self.proposed(vectors[queries], shortlist + more, params, choice, ids + more)
                found.append((queries, rows))
            if len(found) == 1:
                return found[0][1]
            every = full((len(vectors), max(rows.shape[1] for _, rows in found)), -1, found[0][1])
            for queries, rows in found:
                every[queries, : rows.shape[1]] = rows
            return every
        rows = self._proposed(vectors, shortlist, params, choice)
        if not self.items.share_ids:
            return rows
        assert isinstance(self.items, StoredItems)
        most = self.index.ntotal if choice is None else len(choice.rows)
        ids = min(ids, shortlist)
        while shortlist < most and (self.items.count_ids(rows) < ids).any():
            shortlist = min(2 * shortlist, most)
            rows = self._proposed(vectors, shortlist, params, choice)
        return rows if choice is None else np.where(np.isin(rows, choice.rows), rows, -1)

    def _proposed(self, vectors: Array, shortlist: int, params: Any, choice: AllowedItems | None) -> Array:
        index, items = self.index, self.items
        if choice is None:
            search_params = params if params is not None or self.on_gpu else faiss_index.deep_enough(index, shortlist)
            return items.rows_of_labels(faiss_index.search(index, vectors, shortlist, search_params))
        count, total = len(choice.rows), index.ntotal
        depth, each = (shortlist, 0) if params is not None else faiss_index.looked_at(index, shortlist)
        # Among this many items there are, on average, as many that may be found as a search without others looks at.
        depth = min(total, -(-depth * total // max(count, 1)))
        # The index is not asked where the shortlist takes all items, or where it would compare more than there are.
        while count > (0 if params is not None else max(shortlist, each * depth)):
            search_params = self._parameters(params, depth, choice.selector)
            labels = faiss_index.search(index, vectors, shortlist if search_params else depth, search_params or params)
            rows = items.rows_of_labels(labels)
            enough = (rows >= 0).sum(1) >= min(shortlist, count)
            if search_params and (not each or enough.all()):
                return rows
            if not search_params and (
                depth == total or (enough | (labels[:, -1] < 0)).all()
            ):  # -1: the index has no more
                return np.take_along_axis(rows, np.argsort(rows < 0, axis=1, kind="stable")[:, :shortlist], 1)
            depth = min(2 * depth, total)
        return np.broadcast_to(choice.rows, (len(vectors), count))

    def _parameters(self, params: Any, depth: int, selector: Any) -> Any:
        """Search parameters with the selector, the caller's where there are any; None where FAISS has none."""
        search_params = faiss_index.parameters(self.index, depth, selector)
        return search_params if search_params is None or params is None else faiss_index.selecting(params, selector)

    # -- changes: all that can be wrong is found before anything is changed --------------------------------------------

    def changeable_items(self, verb: str) -> StoredItems:
        """The items, which must be in memory: on a GPU and in mapped files they stay as they are."""
        if self.mapped_from is not None:
            what = f"the items are mapped from {self.mapped_from}, where they stay as they are"
            raise TypeError(f"FaissReranker.{verb}: {what}; FaissReranker.open without mmap has them in memory")
        if not isinstance(self.items, StoredItems):
            raise TypeError(f"FaissReranker.{verb}: the gallery is on a GPU, where items cannot come or go")
        if self.items.share_ids:
            raise TypeError(f"FaissReranker.{verb}: items share ids, expected one item an id where they come or go")
        return self.items

    def require_changeable(self, verb: str) -> None:
        """Refuse an index that was given with ids but cannot add, or remove, by them; changing nothing shows it."""
        if self.items.by_row:
            return
        inside = faiss_index.mapped(self.index)
        if verb != "add" and inside is not None and faiss_index.by_lists(inside):
            what = (
                "FAISS removes wrong items from an IDMap over IVF, which holds ids itself; make the index without IDMap"
            )
            raise TypeError(f"FaissReranker.{verb}: {what}")
        try:
            self.index.add_with_ids(np.empty((0, self.index.d), np.float32), np.empty(0, np.int64))
            if verb != "add":
                self.index.remove_ids(np.empty(0, np.int64))
        except RuntimeError:
            kind = type(self.index).__name__
            raise TypeError(
                f"FaissReranker.{verb}: this {kind} cannot by ids; FaissReranker.build(gallery, factory, ids=...) can"
            ) from None

    def remove(self, items: StoredItems, ids: Ids, rows: Ints) -> None:
        """Remove items that are there, given by their ids and their rows."""
        if not items.by_row:
            self.index.remove_ids(ids)
        items.remove(rows)
        self._present = None

    def put(
        self, items: StoredItems, new: Distribution, ids: Ids, vectors: np.ndarray[Any, Any], rows: Ints | None = None
    ) -> None:
        """Add items under ids, in the place of those in these rows of the gallery; -1 where there is none."""
        rows = np.full(len(ids), -1) if rows is None else rows
        if items.by_row:  # before anything else changes, since the index may take none
            faiss_index.add(self.index, vectors, len(items))
        self.remove(items, ids[rows >= 0], rows[rows >= 0])
        if not items.by_row:
            self.index.add_with_ids(vectors, ids)
        items.add(new, ids)
        self._present = None

    def replace(self, items: StoredItems, vectors: np.ndarray[Any, Any] | None) -> None:
        """Take other rows of the same items, with the vectors of these where the index returns rows."""
        if vectors is not None:
            faiss_index.refill(self.index, vectors)
        self.items = items
        self._present = None


def _items(index: Any, gallery: Distribution, ids: Array | None) -> StoredItems:
    """The items of an index on the CPU, by ids that fit what the index holds, as far as FAISS can say that."""
    size = len(gallery)
    held, in_order = faiss_index.held_ids(index)
    ascending = None if held is None else np.sort(held)
    ordered = held if in_order else ascending
    are_rows = ordered is None or np.array_equal(ordered, np.arange(size))
    if in_order and ids is None and not are_rows:
        ids = held
    repeats = ascending is not None and bool((ascending[1:] == ascending[:-1]).any())
    checked = None if ids is None else checked_ids("FaissReranker", ids, size, repeats=repeats)
    if checked is None or are_strings(checked):
        if held is not None and not are_rows:
            got = "None" if checked is None else "strings"
            what = f"must be those that index returns, such as {held[0]}, in the order of gallery, got {got}"
            raise ValueError(f"FaissReranker: ids {what}")
        return StoredItems(gallery, checked, by_row=True)
    if ascending is not None and not np.array_equal(np.sort(checked), ascending):
        differing = np.sort(checked) != ascending
        id = min(np.sort(checked)[differing][0], ascending[differing][0])
        got, expected = ((x == id).sum() for x in (checked, ascending))
        raise ValueError(f"FaissReranker: ids hold {id} {got} times, expected {expected} times as in index")
    return StoredItems(gallery, checked, by_row=False, share_ids=repeats)


def _restored(index: bytes, items: RowsAndIds) -> Indexed:
    return Indexed(faiss_index.unserialized(index), items)
