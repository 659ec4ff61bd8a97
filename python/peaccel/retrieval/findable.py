"""Items that queries may find: the allowed ones, without those that a query may not find.

A query that may not find E items is searched for k + min(E, 4) of all items, of which these are left out. Where fewer
than k are left it is searched for more, up to k + E. Where many queries that lack some may not find the same items, and
these are many, the others are searched.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from peaccel._utils.arrays import Array, device_of, full, like, namespace, on_host
from peaccel._utils.exclusions import Exclusions
from peaccel._utils.ids import Ids, Ints, SortedIds, checked_allowed
from peaccel.retrieval.plan import Plan
from peaccel.retrieval.ranking import remaining

__all__ = ["ALL", "HELD", "Findable", "Found", "Pairs"]

HELD = 1 << 20  # pairs that one search may return
FEW = 4  # items that a query may not find, beside the best k, that a first search returns
TIMES = 16  # times as many in the next search of queries that lack some, such as those of near duplicates
MANY = 1024  # items that a query may not find from which on the others may be copied
SHARING = 8  # queries that may not find the same ones, for each copy

Found: TypeAlias = tuple[Array, Array, float | None]
"""Scores and rows [Q, k], and the share of pairs that were scored, if it is known."""
Pairs: TypeAlias = tuple[Ints, Array, Array]
"""Rows of queries, on the host, and items and scores beside them."""


class Findable(NamedTuple):
    """The rows of a gallery that queries may find, ascending, and those that each of them may not find; None for no
    such condition."""

    rows: Ints | None = None
    excluded: Exclusions | None = None

    @classmethod
    def of(cls, owner: str, allowed: Any, exclude: Any, queries: int, size: int | None) -> Findable:
        """The conditions of a call, after checks: of a gallery of so many rows, or of one in blocks."""
        excluded = Exclusions.checked(owner, exclude, queries)
        if excluded is not None:
            excluded.require_like(owner, None)
            excluded = excluded.within(0, np.iinfo(np.int64).max if size is None else size)
        if allowed is None:
            return cls(None, excluded)
        chosen: Ids = checked_allowed(owner, allowed, size)
        if size is None and chosen.dtype == bool:
            raise ValueError(f"{owner}: allowed is a mask, expected rows, as how many blocks have is not known")
        rows = np.flatnonzero(chosen) if chosen.dtype == bool else np.unique(chosen)
        return cls(rows[(rows >= 0) & (rows < (len(rows) and (rows[-1] + 1 if size is None else size)))], excluded)

    def within(self, start: int, count: int) -> Findable:
        """The same by rows counted from `start`, of so many rows."""
        rows = self.rows
        if rows is not None:
            rows = rows[slice(*np.searchsorted(rows, (start, start + count)))] - start
        return Findable(rows, None if self.excluded is None else self.excluded.within(start, count))

    @property
    def is_all(self) -> bool:
        """Whether all rows may be found by all queries."""
        return self.rows is None and self.excluded is None

    # -- searches ------------------------------------------------------------------------------------------------------

    def best(self, planned: Plan, k: int, prune: str = "auto") -> Found:
        """`Plan.best_of_all` of the rows that may be found."""
        rows, excluded = self
        if rows is None and excluded is None:
            return planned.best_of_all(k, prune)
        if planned.pair.op.draws:  # by the numbers of rows, so that all stay beside each other
            more = 0 if excluded is None else int(excluded.counts.max(initial=0))
            more += 0 if rows is None else len(planned.inputs.mu2) - len(rows)
            return self._remaining(planned, k, more, prune)
        if rows is not None:
            inside = None if excluded is None else excluded.among(SortedIds(rows))
            narrowed = planned.of_rows(items=like(planned.inputs.mu2, rows))
            scores, places, scored = Findable(None, inside).best(narrowed, k, prune)
            return scores, like(places, np.append(rows, -1))[places], scored
        assert excluded is not None
        here = device_of(planned.inputs.mu2) in ("numpy", "cpu")  # elsewhere nobody waits for what is lacking
        more = FEW if here else int(excluded.counts.max(initial=0))
        parts = list(self._without(planned, np.arange(len(excluded)), k, more, prune))
        if len(parts) == 1:
            return parts[0][1]
        shape, (_, first) = (len(excluded), k), parts[0]
        scores, found = full(shape, -np.inf, first[0]), full(shape, -1, first[1])
        for queries, part in parts:
            scores[queries], found[queries] = part[:2]
        return scores, found, None

    def _without(self, planned: Plan, queries: Ints, k: int, more: int, prune: str) -> Iterator[tuple[Ints, Found]]:
        """The best k for some queries, of the best k + more of all rows at first."""
        assert self.excluded is not None
        excluded, size = self.excluded[queries], len(planned.inputs.mu2)
        counts = excluded.counts
        if more > MANY and SHARING * excluded.count_lists() <= len(queries):
            for places, denied in excluded.by_list():
                others = Findable(np.delete(np.arange(size), denied))
                yield queries[places], others.best(planned.of_rows(queries=queries[places]), k, prune)
            return
        more = min(more, int(counts.max(initial=0)))
        step = max(HELD // (k + more), 1)
        for start in range(0, max(len(queries), 1), step):
            some = slice(start, start + step)
            whole = len(queries[some]) == len(planned.inputs.mu1)
            part = planned if whole else planned.of_rows(queries=queries[some])
            scores, rows, scored = Findable(None, excluded[some])._remaining(part, k, more, prune)
            lacking = (counts[some] > more) & (k + more < size)
            if not lacking.any() or not (lacking := lacking & on_host((rows < 0).any(1))).any():
                yield queries[some], (scores, rows, scored)
                continue
            kept = like(rows, np.flatnonzero(~lacking))
            yield queries[some][~lacking], (scores[kept], rows[kept], None)
            yield from self._without(planned, queries[some][lacking], k, TIMES * more, prune)

    def _remaining(self, planned: Plan, k: int, more: int, prune: str) -> Found:
        """The best k of the best k + more of all rows that may be found."""
        size = len(planned.inputs.mu2)
        scores, rows, scored = planned.best_of_all(k + min(more, size), prune)
        queries: Array = np.arange(len(scores))[:, None]
        return *remaining(scores, rows, self._refused(like(rows, queries), rows), k), scored

    def of_pairs(self, pairs: Pairs) -> Pairs:
        """The pairs that may be found."""
        of, items, scores = pairs
        kept = np.flatnonzero(~self._refused(of, on_host(items)))
        return of[kept], items[like(items, kept)], scores[like(scores, kept)]

    def _refused(self, queries: Array, rows: Array) -> Array:
        """Whether queries may not find rows."""
        refused = rows < 0
        if self.rows is not None:
            refused = refused | ~namespace(rows).isin(rows, like(rows, self.rows))
        return refused if self.excluded is None else refused | self.excluded.has(queries, rows)


ALL = Findable()
