"""Rankings, and the best of several: what parts of a gallery have found, as one search of all of it."""

from __future__ import annotations

import operator
import sys
from collections.abc import Iterable, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np

from peaccel._utils.arrays import (
    Array,
    ArrayT,
    as_numpy,
    dtype_name,
    full,
    is_torch,
    is_traced,
    like,
    namespace,
    on_host,
    require_plain,
    require_same_kind,
)
from peaccel._utils.ids import LARGEST_ID, are_strings, none_like, there
from peaccel.distributions.checks import checked_k
from peaccel.ops import kernels_of
from peaccel.scores import Score

__all__ = [
    "Ranking",
    "RankingAbove",
    "above_of_score",
    "best_first",
    "best_of_each_id",
    "known_as",
    "merge",
    "of_score",
    "remaining",
]


class _Ranked(NamedTuple, Generic[ArrayT]):
    scores: ArrayT
    ids: ArrayT


class Ranking(_Ranked[ArrayT]):
    """The best items of each query, best first: higher score, then NaN, then padding; ties go to the lower gallery row.

    Attributes
    ----------
    scores
        [Q, k]; -inf where there are fewer than k items.
    ids
        int64 [Q, k]; gallery rows (or external ids); -1 where there are fewer than k items. Where external ids are
        strings, a numpy array of strings, empty where there are fewer.
    scored
        The share of all pairs that a `search` had to score; bounds proved that the others are not among the
        best. None of other verbs, in ``torch.compile``, and on a GPU, for which nobody waits.
    score
        The `Score` that the scores are of; None where it is not known, as in ``torch.compile``.
    normalisation
        The norm of `normalise_scores`, such as "S-norm"; empty where scores are as they were.
    dim
        Dimensions of the items; 0 where they are not known.
    gallery_size
        How many items the gallery has; 0 where that is not known.

    Examples
    --------
    >>> gallery = pe.Normal([[0.0, 1.0], [1.0, 0.0], [0.6, 0.8]], [0.1, 0.1, 0.4])
    >>> scores, ids = pe.search(gallery[:1], gallery, k=4)
    >>> ids.tolist()
    [[0, 2, 1, -1]]
    """

    scored: float | None = None
    score: Score | None = None
    normalisation: str = ""
    dim: int = 0
    gallery_size: int = 0


R = TypeVar("R", bound=Ranking[Any])


def of_score(ranking: R, score: Score | None, normalisation: str = "", *, dim: int = 0, gallery_size: int = 0) -> R:
    """The ranking, which knows now what its scores are of; torch.compile cannot set an attribute of a tuple."""
    if isinstance(ranking.scores, np.ndarray) or not is_traced(ranking.scores):
        ranking.score, ranking.normalisation = score, normalisation
        ranking.dim, ranking.gallery_size = dim, gallery_size
    return ranking


def known_as(ranking: R, other: Ranking[Any]) -> R:
    """The ranking, whose scores are of the same as those of another one."""
    return of_score(ranking, other.score, other.normalisation, dim=other.dim, gallery_size=other.gallery_size)


class _Listed(NamedTuple, Generic[ArrayT]):
    offsets: ArrayT
    ids: ArrayT
    scores: ArrayT


class RankingAbove(_Listed[ArrayT]):
    """Items that reach a threshold, query after query (CSR), best first.

    Attributes
    ----------
    offsets
        int64 [Q + 1]: the items of query i stand from ``offsets[i]`` up to ``offsets[i + 1]``.
    ids
        int64 [M]; gallery rows (or external ids). Where external ids are strings, a numpy array of strings.
    scores
        [M]; ties go to the lower gallery row.
    score
        The `Score` that the scores are of.
    dim
        Dimensions of the items; 0 where they are not known.

    Examples
    --------
    >>> gallery = pe.Normal([[0.0, 1.0], [1.0, 0.0], [0.6, 0.8]], [0.1, 0.1, 0.4])
    >>> found = pe.search_above(gallery[:2], gallery, -1.8)
    >>> found.queries.tolist(), found.ids.tolist()
    ([0, 0, 1], [0, 2, 1])
    """

    score: Score | None = None
    dim: int = 0

    @property
    def queries(self) -> ArrayT:
        """int64 [M]: the query of each item, so that with `ids` it names the pairs."""
        counts = np.diff(on_host(self.offsets))
        rows: ArrayT = like(self.offsets, np.repeat(np.arange(len(counts)), counts))
        return rows

    def under(self, ids: Array) -> RankingAbove[ArrayT]:
        """The same items under other ids [M]."""
        return above_of_score(RankingAbove(self.offsets, ids, self.scores), self.score, self.dim)

    def of_different_ids(self) -> RankingAbove[ArrayT]:
        """Each id once for each query, where it is best."""
        of, ids = (on_host(x) for x in (self.queries, self.ids))
        order = np.lexsort((ids, of))
        first = (np.diff(ids[order], prepend=-1) != 0) | (np.diff(of[order], prepend=-1) != 0)
        kept = np.sort(order[first])
        offsets = np.searchsorted(of[kept], np.arange(len(self.offsets)))
        columns = (x[like(x, kept)] for x in (self.ids, self.scores))
        return above_of_score(RankingAbove(like(self.offsets, offsets), *columns), self.score, self.dim)


def above_of_score(found: RankingAbove[Any], score: Score | None, dim: int) -> RankingAbove[Any]:
    """The items, which know now what their scores are of."""
    found.score, found.dim = score, dim
    return found


def merge(rankings: Iterable[Ranking[ArrayT]], k: int, offsets: Sequence[int] | None = None) -> Ranking[ArrayT]:
    """The best k of several rankings of the same queries: of parts of a gallery, the bits of one search of all of it.

    It is exact where each part has its best k, or all that it has.

    Parameters
    ----------
    rankings
        One for each part, [Q, any width]; all of one kind of array, dtype and device. Each best first, as `search`,
        `rerank` and `FaissReranker.search` return them.
    k
        How many to return, >= 1; more than the parts have pads.
    offsets
        For each part the number of its first row in the whole gallery, >= 0, which is added to its ids. None where ids
        count in the whole gallery already.

    Returns
    -------
    Ranking
        Scores and ids [Q, k], best first, then NaN, then padding (id -1, score -inf). Ties go to the part with the
        lower offset, without offsets to the earlier part, then to the part's order. So they go to the lower row, as
        in every verb, if ids are rows; among ids that callers gave, to the earlier part, whatever the ids are.

    Raises
    ------
    TypeError
        Something is not a Ranking, numpy meets torch, k or an offset is not an integer.
    ValueError
        No rankings, or of different numbers of queries, dtypes or devices; k below 1; another number of offsets than
        of rankings, or an offset that is negative, or takes an id beyond int64.

    Examples
    --------
    >>> gallery = pe.Normal([[0.0, 1.0], [1.0, 0.0], [0.6, 0.8], [0.8, 0.6]], [0.1, 0.1, 0.4, 0.2])
    >>> queries = pe.Normal([[0.0, 1.0]], [0.1])
    >>> parts = [pe.search(queries, part, k=2) for part in (gallery[:3], gallery[3:])]
    >>> pe.merge(parts, k=3, offsets=[0, 3]).ids.tolist()
    [[0, 2, 3]]
    >>> pe.search(queries, gallery, k=3).ids.tolist()
    [[0, 2, 3]]
    """
    k, parts = checked_k("merge", k), list(rankings)
    _require_alike(parts)
    if offsets is not None:
        places = _checked_offsets(offsets, parts)
        parts = [_moved(parts[i], places[i]) for i in sorted(range(len(parts)), key=places.__getitem__)]
    missing, padded = k - sum(part.ids.shape[1] for part in parts), [*parts]
    if missing > 0:
        first, shape = parts[0], (len(parts[0].ids), missing)
        nothing: Array = full(shape, none_like(first.ids), first.ids)
        padded.append(Ranking(full(shape, -np.inf, first.scores), nothing))
    columns = [namespace(column[0]).concatenate(column, -1) for column in zip(*padded, strict=True)]
    scores, ids = _selected(columns[0], columns[1], k)
    found = Ranking(namespace(scores).where(_absent(scores, ids), -np.inf, scores), ids)
    first, *others = parts
    if any((x.score, x.normalisation, x.dim) != (first.score, first.normalisation, first.dim) for x in others):
        return found
    sizes = [x.gallery_size for x in parts]
    return of_score(found, first.score, first.normalisation, dim=first.dim, gallery_size=sum(sizes) * all(sizes))


def _selected(scores: Array, ids: Array, k: int) -> tuple[Array, Array]:
    """The first k of `best_first`, ties in the order that they have."""
    select = None if are_strings(ids) else kernels_of(scores).select
    if select is None:
        scores, ids = best_first(scores, ids, by_row=False)
        return scores[:, :k], ids[:, :k]
    places = namespace(ids).arange(ids.shape[1], device=ids.device).expand(ids.shape).masked_fill(ids < 0, -1)
    scores, places = select(scores, places, k)
    return scores, ids.gather(1, places.clamp(min=0)).masked_fill(places < 0, -1)


def best_first(scores: Array, ids: Array, *, by_row: bool) -> tuple[Array, Array]:
    """Both [Q, N] by falling score, then NaN, then padding; ties by the lower id, or in the order that they have."""
    along = namespace(scores).take_along_dim if is_torch(scores) else np.take_along_axis
    stable = {"stable": True} if is_torch(scores) else {"kind": "stable"}
    keys = -scores, _absent(scores, ids)
    first, *others = (ids, *keys) if by_row else keys
    order = first.argsort(**stable)
    for key in others:  # sorts by a key after the other, the least important first; NaN come last in either library
        order = along(order, along(key, order, -1).argsort(**stable), -1)
    found = np.take_along_axis(ids, as_numpy(order), -1) if are_strings(ids) else along(ids, order, -1)
    return along(scores, order, -1), found


def best_of_each_id(scores: Array, ids: Array, k: int) -> Ranking[Any]:
    """The best k different ids of rankings [Q, R >= k] that hold integers repeatedly: each where it is first."""
    held = as_numpy(ids)
    order = held.argsort(1, kind="stable")
    ascending = np.take_along_axis(held, order, 1)
    left_out = np.empty(held.shape, bool)
    np.put_along_axis(left_out, order, np.diff(ascending, prepend=-1, axis=1) == 0, 1)  # -1 as well
    return remaining(scores, ids, sys.modules["torch"].from_numpy(left_out) if is_torch(scores) else left_out, k)


def remaining(scores: Array, ids: Array, left_out: Array, k: int) -> Ranking[Any]:
    """The first k of rankings [Q, R >= k] that are not left out, in their order."""
    places = left_out.argsort(**({"stable": True} if is_torch(scores) else {"kind": "stable"}))[:, :k]
    along = namespace(scores).take_along_dim if is_torch(scores) else np.take_along_axis
    outside, scores, ids = (along(x, places, 1) for x in (left_out, scores, ids))
    where = namespace(scores).where
    return Ranking(where(outside, -np.inf, scores), where(outside, none_like(ids), ids))


def _absent(scores: Array, ids: Array) -> Array:
    """Where there is no item, as an array of the scores' kind."""
    absent = ~there(ids)
    return sys.modules["torch"].from_numpy(absent) if is_torch(scores) and are_strings(ids) else absent


def _require_alike(parts: list[Ranking]) -> None:
    """Refuse what is no ranking, and rankings that cannot be merged."""
    if not parts:
        raise ValueError("merge: expected at least one ranking, got none")
    for i, part in enumerate(parts):
        if not isinstance(part, Ranking):
            raise TypeError(f"merge: ranking {i} must be a Ranking, got {type(part).__name__}")
        require_plain("merge", f"ranking {i}", part.scores)
        require_plain("merge", f"ids of ranking {i}", part.ids)
        shape, first = tuple(part.scores.shape), parts[0].scores
        strings = are_strings(part.ids)
        if len(shape) != 2 or shape != tuple(part.ids.shape) or not (strings or dtype_name(part.ids) == "int64"):
            got = f"scores {shape} and ids {tuple(part.ids.shape)} of {dtype_name(part.ids)}"
            raise ValueError(f"merge: ranking {i} has {got}, expected (Q, k) both, and ids of int64 or strings")
        if strings != are_strings(parts[0].ids):
            raise ValueError(f"merge: ranking {i} has ids of {dtype_name(part.ids)}, expected those of ranking 0")
        require_same_kind("merge", f"ranking {i}", part.scores, "ranking 0", first)
        if not strings:
            require_same_kind("merge", f"ids of ranking {i}", part.ids, "its scores", part.scores)
        if dtype_name(part.scores) != dtype_name(first):
            got, expected = dtype_name(part.scores), dtype_name(first)
            raise ValueError(f"merge: ranking {i} has scores of {got}, expected {expected} like ranking 0")
        if len(part.scores) != len(first):
            raise ValueError(f"merge: ranking {i} is of {shape[0]} queries, expected {len(first)} like ranking 0")


def _checked_offsets(offsets: Sequence[int], parts: list[Ranking]) -> list[int]:
    """The offsets as Python's integers, one for each part."""
    try:
        places = [operator.index(offset) for offset in offsets]
    except TypeError:
        raise TypeError(f"merge: offsets must be integers, got {offsets!r}") from None
    if are_strings(parts[0].ids):
        raise ValueError("merge: offsets must be None where ids are strings")
    if len(places) != len(parts):
        raise ValueError(f"merge: {len(places)} offsets, expected {len(parts)}: one for each ranking")
    for i, (place, part) in enumerate(zip(places, parts, strict=True)):
        if not 0 <= place <= LARGEST_ID:
            raise ValueError(f"merge: offset {i} is {place}, expected 0 .. 2^63 - 1")
        on_host = not is_torch(part.ids) or part.ids.is_cpu  # nobody waits for the values of ids on a GPU
        if place and on_host and 0 not in part.ids.shape and int(part.ids.max()) > LARGEST_ID - place:
            raise ValueError(f"merge: offset {i} is {place}, which takes id {int(part.ids.max())} beyond int64")
    return places


def _moved(part: Ranking, offset: int) -> Ranking:
    """The ranking with the offset added to its ids; padding stays."""
    xp = namespace(part.ids)
    return known_as(Ranking(part.scores, xp.where(part.ids < 0, part.ids, part.ids + offset)), part)
