"""Rankings: ids of a gallery's rows, with the labels of both sides."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from peaccel._utils.exclusions import Exclusions
from peaccel._utils.numbers import array_of
from peaccel.metrics._relation import Relation, as_relation
from peaccel.metrics._ties import Ties

__all__ = ["JudgedRanking", "ScoredIds", "relevance", "without_self"]

Array = NDArray[Any]
BLOCK = 1 << 16  # ids that are looked up at a time, so that they stay in a core's cache


@runtime_checkable
class ScoredIds(Protocol):
    """Ids [Q, K] and their scores, best first, such as a `peaccel.Ranking`."""

    @property
    def ids(self) -> Any: ...
    @property
    def scores(self) -> Any: ...


def without_self(ids: ArrayLike, values: ArrayLike | None = None) -> Array:
    """Rankings of items among themselves, without each item's own row.

    Row i is removed wherever it stands among the ids of query i, also behind duplicates of it; where it is not among
    them the last column goes.

    Parameters
    ----------
    ids
        [N, K] rows of the N items, best first; -1 = none.
    values
        [N, K] numbers to be shortened in the same way, such as the scores; the ids themselves by default.

    Returns
    -------
    [N, K - 1] of the dtype of `values`.

    Raises
    ------
    ValueError
        Shapes disagree, ids are no integers, K = 0, or an item stands twice among its ids.

    Examples
    --------
    Rows 0, 1 and 2 go from the first, second and third ranking, wherever they stand there:

    >>> ids = [[0, 2, 1], [2, 1, 0], [2, 0, 1]]
    >>> pe.metrics.without_self(ids).tolist()
    [[2, 1], [2, 0], [0, 1]]

    What stands beside the ids, such as scores, is shortened alike:

    >>> pe.metrics.without_self(ids, values=[[1.0, 0.7, 0.3], [1.2, 1.0, 0.3], [1.0, 0.7, 0.2]]).tolist()
    [[0.7, 0.3], [1.2, 0.3], [0.7, 0.2]]
    """
    owner = "without_self"
    found = as_ids(owner, ids)
    array = found if values is None else array_of(owner, "values", values, "(N, K)")
    if array.shape != found.shape or not found.shape[1]:
        raise ValueError(f"{owner}: values has shape {array.shape}, expected (N, K) with K > 0 like ids, {found.shape}")
    shorter = np.empty((len(found), found.shape[1] - 1), array.dtype)
    for rows in blocks(found):
        shorter[rows] = drop_self(owner, found[rows], array[rows], rows.start)
    return shorter


def relevance(
    ids: ArrayLike | ScoredIds,
    query_labels: ArrayLike | Relation,
    gallery_labels: ArrayLike | None = None,
    *,
    exclude: ArrayLike | Exclusions | None = None,
) -> NDArray[np.bool_]:
    """Say which of the ranked gallery items are of the query's class.

    Parameters
    ----------
    ids
        [Q, K] gallery rows, best first; -1 = none, which is never relevant. Or a `peaccel.Ranking`, in which what has
        a score of NaN is not relevant either.
    query_labels
        [Q]: numbers or strings; or a `Relevance`, which has the right answers where no classes do.
    gallery_labels
        [G], of the same kind; None = the queries are the gallery, and their rows are removed.
    exclude
        The rows that each query may not find, as in `pe.search`: they are removed from its ids, and are not right. In
        Market-1501 and VeRi these are the images of the same identity and camera (`pe.exclude_same`).

    Returns
    -------
    [Q, K] bool; [Q, K - 1] where the queries' rows are removed, and fewer columns where excluded rows are. An id that a
    query's ranking repeats counts once, where it stands first.

    Raises
    ------
    ValueError
        Shapes disagree, ids are no integers, an id lies outside the gallery, one side's labels are numbers and the
        other's words, or an item stands twice among its ids.

    Examples
    --------
    The first query has its right item first, the second one has it second:

    >>> pe.metrics.relevance([[0, 1], [0, 1]], query_labels=["cat", "dog"], gallery_labels=["cat", "dog"]).tolist()
    [[True, False], [False, True]]

    Three items ranked among themselves, whose rows are removed:

    >>> pe.metrics.relevance([[0, 1, 2], [1, 2, 0], [2, 1, 0]], ["cat", "cat", "dog"]).tolist()
    [[True, False], [False, True], [False, False]]
    """
    ranking = JudgedRanking.of("relevance", ids, query_labels, gallery_labels, exclude)
    relevant = np.empty((len(ranking.ids), ranking.columns), np.bool_)
    for rows, hit in ranking.hits(ranking.columns):
        relevant[rows] = hit
    return relevant


@dataclass(frozen=True, eq=False)
class JudgedRanking:
    """The ids of a ranking, and which of them are right."""

    owner: str
    ids: Array
    """[Q, columns], or one more column where queries' rows are among them."""
    relation: Relation
    scores: Array | None
    """Of the ids, NaN where there is none; None where they are not known."""

    @staticmethod
    def of(
        owner: str,
        ids: ArrayLike | ScoredIds,
        query_labels: ArrayLike | Relation,
        gallery_labels: ArrayLike | None,
        exclude: ArrayLike | Exclusions | None = None,
    ) -> JudgedRanking:
        """Check the arguments of the metric `owner`."""
        found, scores = (as_ids(owner, ids), None) if not isinstance(ids, ScoredIds) else _as_scored(owner, ids)
        relation = as_relation(owner, query_labels, gallery_labels, exclude=exclude)
        if len(found) != relation.queries:
            expected = f"({relation.queries}, K) like query_labels"
            raise ValueError(f"{owner}: ids has shape {found.shape}, expected {expected}")
        if relation.exclude is not None:
            found, scores = _without_excluded(relation.exclude, found, scores, relation.gallery)
        return JudgedRanking(owner, found, relation, scores)

    @property
    def leave_one_out(self) -> bool:
        """Whether the queries are the gallery."""
        return self.relation.leave_one_out

    @property
    def columns(self) -> int:
        """How many items are ranked for each query, its row left out."""
        return max(int(self.ids.shape[1]) - self.leave_one_out, 0)

    def hits(self, columns: int) -> Iterator[tuple[slice, NDArray[np.bool_]]]:
        """Which of the first ids are right for the query, by blocks of queries."""
        shown = columns + self.leave_one_out if self.scores is None else self.ids.shape[1]
        ids, count = self.ids[:, :shown], self.relation.gallery
        if ids.size and not -1 <= ids.min() <= ids.max() < count:
            raise ValueError(f"{self.owner}: ids span {ids.min()}..{ids.max()}, expected -1..{count - 1}")
        for rows in blocks(ids):
            yield rows, self._hit(rows, columns)

    def ties(self, rows: slice, columns: int) -> Ties | None:
        """The rankings in a block of which equal scores have the first ids, or reach beyond them; None without any."""
        if self.scores is None:
            return None
        scores = self._others(rows, self.scores[rows])
        upper, lower = scores[:, : min(columns, scores.shape[1] - 1)], scores[:, 1 : columns + 1]
        tied = np.flatnonzero((upper == lower).any(1))
        return Ties(tied, scores[tied], self._hit(rows, self.columns)[tied]) if len(tied) else None

    def _others(self, rows: slice, values: Array) -> Array:
        """Values beside the first ids of a block, without those of queries' rows."""
        if not (self.leave_one_out and values.shape[1]):
            return values
        ids = self.ids[rows, : values.shape[1]]
        return drop_self(self.owner, ids, values, self.relation.first + rows.start)

    def _hit(self, rows: slice, columns: int) -> NDArray[np.bool_]:
        """Which of the first ids of a block are right."""
        block = self._others(rows, self.ids[rows, : columns + self.leave_one_out])
        hit = self.relation.right(np.arange(rows.start, rows.start + len(block))[:, None], block)
        hit &= block >= 0
        return _once(block, hit, self.relation.gallery)

    def class_sizes(self) -> NDArray[np.int64]:
        """[Q]: how many gallery items, but for the query itself, are right for each query."""
        return self.relation.sizes()


def as_ids(owner: str, ids: ArrayLike) -> Array:
    """Ids as integers."""
    found = array_of(owner, "ids", ids, "(Q, K)")
    found = found if found.size else found.astype(np.int64)  # an empty list has no dtype
    if found.dtype.kind not in "iu":
        raise ValueError(f"{owner}: ids has dtype {found.dtype}, expected integers")
    return found


def _as_scored(owner: str, ranking: ScoredIds) -> tuple[Array, Array]:
    """Ids and scores of a ranking; what has a score of NaN was not found, and what was not found has none."""
    ids = as_ids(owner, ranking.ids)
    scores = array_of(owner, "scores", ranking.scores, "(Q, K)")
    if scores.shape != ids.shape or scores.dtype.kind not in "fiu":
        raise ValueError(
            f"{owner}: scores has shape {scores.shape} and dtype {scores.dtype}, expected numbers {ids.shape} like ids"
        )
    none = (ids < 0) | np.isnan(scores)
    return (np.where(none, -1, ids), np.where(none, np.nan, scores)) if none.any() else (ids, scores)


def _without_excluded(exclude: Exclusions, ids: Array, scores: Array | None, count: int) -> tuple[Array, Array | None]:
    """Rankings without the rows that queries may not find: of as many columns as all of them have then, or are whole
    without."""
    kept = [~exclude.has(np.arange(len(ids))[rows, None], ids[rows]) for rows in blocks(ids)]
    if not ids.size or all(block.all() for block in kept):
        return ids, scores
    found = np.concatenate(kept)
    order = np.argsort(~found, axis=1, kind="stable")
    is_whole = (ids[:, -1] < 0) | (ids.shape[1] >= count)
    columns = int(np.where(is_whole, ids.shape[1], found.sum(1)).min())
    found, ids = (np.take_along_axis(x, order, 1)[:, :columns] for x in (found, ids))
    if scores is not None:
        scores = np.where(found, np.take_along_axis(scores, order, 1)[:, :columns], np.nan)
    return np.where(found, ids, -1), scores


def blocks(ids: Array) -> Iterator[slice]:
    """Slices of rows, block by block."""
    step = -(-BLOCK // max(ids.shape[1], 1))
    for start in range(0, len(ids), step):
        yield slice(start, start + step)


def _once(ids: Array, hit: NDArray[np.bool_], count: int) -> NDArray[np.bool_]:
    """The right ids of each query, of those that it repeats only the first."""
    places = np.flatnonzero(hit)
    codes = places // max(ids.shape[1], 1) * count + ids.ravel()[places].astype(np.int64)
    ascending = np.sort(codes)
    if (ascending[1:] == ascending[:-1]).any():
        hit = np.zeros_like(hit)
        hit.ravel()[places[np.unique(codes, return_index=True)[1]]] = True
    return hit


def drop_self(owner: str, ids: Array, values: Array, first: int) -> Array:
    """Values without those of the items' ids, the first of which is `first`."""
    here = ids == np.arange(first, first + len(ids))[:, None]
    times = here.sum(1)
    if times.max(initial=0) > 1:
        raise ValueError(f"{owner}: ids of query {first + times.argmax()} name its own row {times.max()} times")
    last = ids.shape[1] - 1
    place = np.where(times > 0, here.argmax(1), last)
    return np.where(np.arange(last) < place[:, None], values[:, :-1], values[:, 1:])
