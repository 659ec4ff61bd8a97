"""Items that an index and a gallery hold alike: they come and go in both, and the index proposes the gallery's rows."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from peaccel import indexes
from peaccel.distributions import Distribution
from peaccel.items import Items, ItemsOnGpu
from peaccel.ops._array import Array

__all__ = ["Choice", "Indexed"]

Ints = np.ndarray[Any, np.dtype[np.int64]]


class Choice(NamedTuple):
    """Items that may be found, where others in the index may not."""

    rows: Ints  # ascending
    selector: Any  # lets FAISS find these only


class Indexed:
    """An index, and the items that it holds."""

    def __init__(self, index: Any, items: Any) -> None:
        self.index = index
        self.items: Any = items  # Items or ItemsOnGpu
        self._live: Choice | None = None  # made for the first search after a change

    def __reduce__(self) -> tuple[Any, ...]:
        return _restored, (indexes.serialized(self.index), self.items)

    # -- proposals -----------------------------------------------------------------------------------------------------

    def choice(self, params: Any, allowed: Array | None) -> Choice | None:
        """The items that may be found, after checks of what the caller gave; None where all in the index may be."""
        items = self.items
        if params is not None and indexes.selects(params):
            if allowed is not None:
                raise ValueError("FaissReranker.search: params have a selector, expected none beside allowed")
            if items.by_row and items.table is not None:
                raise ValueError("FaissReranker.search: params select rows of the index, not ids; use allowed")
        if allowed is not None:
            if isinstance(items, ItemsOnGpu) or self._parameters(params, 1, None) is None:
                own = f"{type(self.index).__name__}{' with such params' if params is not None else ''}"
                raise TypeError(f"FaissReranker.search: allowed must be None, FAISS cannot select in this {own}")
            return self._chosen(items.chosen("FaissReranker.search", allowed))
        if not (items.by_row and items.dead):
            return None
        if self._live is None:
            self._live = self._chosen(np.flatnonzero(items.live))
        return self._live

    def _chosen(self, rows: Ints) -> Choice:
        if self.items.by_row:
            return Choice(rows, indexes.row_selector(rows, len(self.items)))
        return Choice(rows, indexes.id_selector(self.items.named(rows)))

    def proposed(self, vectors: Array, shortlist: int, params: Any, choice: Choice | None) -> Array:
        """[Q, S]: rows of items that may be found, those that the index thinks best; -1 for none.

        Every query has as many as are there, up to the shortlist, as far as it is in the index's power.
        """
        index, items = self.index, self.items
        if choice is None:
            return items.found(indexes.search(index, vectors, shortlist, params))
        count, total = len(choice.rows), index.ntotal
        graph = indexes.graph(index) if params is None else None
        links = graph.nb_neighbors(0) if graph else 0
        # Among so many items are, on average, as many that may be found as would be looked at were there no others.
        depth = min(total, -(-(graph.efSearch if graph else shortlist) * total // max(count, 1)))
        # Where a graph would compare more than there are, or all are to be scored anyway, the index need not be asked.
        while count > (0 if params is not None else max(shortlist, links * depth)):
            own = self._parameters(params, depth, choice.selector)
            labels = indexes.search(index, vectors, shortlist if own else depth, own or params)
            rows = items.found(labels)
            enough = (rows >= 0).sum(1) >= min(shortlist, count)
            if own and (not graph or enough.all()):
                return rows
            if not own and (depth == total or (enough | (labels[:, -1] < 0)).all()):  # -1: the index has no more
                return np.take_along_axis(rows, np.argsort(rows < 0, axis=1, kind="stable")[:, :shortlist], 1)
            depth = min(2 * depth, total)
        return np.broadcast_to(choice.rows, (len(vectors), count))

    def _parameters(self, params: Any, depth: int, selector: Any) -> Any:
        """Search parameters with the selector, the caller's where there are any; None where there is no way."""
        own = indexes.parameters(self.index, depth, selector)
        return own if own is None or params is None else indexes.selecting(params, selector)

    # -- changes: what can be wrong is found out before anything is changed --------------------------------------------

    def require_on_cpu(self, verb: str) -> None:
        """Items on a GPU stay as they are."""
        if isinstance(self.items, ItemsOnGpu):
            raise TypeError(f"FaissReranker.{verb}: the gallery is on a GPU, where items cannot come or go")

    def known(self, verb: str, names: Ints) -> Ints:
        """The rows of ids that items have."""
        rows: Ints = self.items.rows(names)
        if (rows < 0).any():
            raise ValueError(f"FaissReranker.{verb}: ids hold {names[rows < 0][0]}, which no item has")
        return rows

    def require_changeable(self, verb: str) -> None:
        """An index that was given with ids must add and remove by them; asking for nothing tells."""
        if self.items.by_row:
            return
        try:
            self.index.add_with_ids(np.empty((0, self.index.d), np.float32), np.empty(0, np.int64))
            if verb != "add":
                self.index.remove_ids(np.empty(0, np.int64))
        except RuntimeError:
            own = type(self.index).__name__
            raise TypeError(
                f"FaissReranker.{verb}: this {own} cannot by ids; FaissReranker.build(gallery, factory, ids=...) can"
            ) from None

    def drop(self, names: Ints, rows: Ints) -> None:
        """Items that are there are so no more."""
        if not self.items.by_row:
            self.index.remove_ids(names)
        self.items.remove(rows)
        self._live = None

    def append(self, items: Distribution, names: Ints, vectors: np.ndarray[Any, Any]) -> None:
        """Items are there from now on, under ids that none has."""
        if self.items.by_row:
            self.index.add(vectors)
        else:
            self.index.add_with_ids(vectors, names)
        self.items.add(items, names)
        self._live = None

    def replace(self, items: Items, vectors: np.ndarray[Any, Any] | None) -> None:
        """Other rows of the same items; vectors where the index returns rows."""
        if vectors is not None:
            indexes.refill(self.index, vectors)
        self.items = items


def _restored(index: bytes, items: Items) -> Indexed:
    return Indexed(indexes.unserialized(index), items)
