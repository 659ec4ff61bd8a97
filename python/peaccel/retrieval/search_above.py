"""All items that reach a threshold: searches for ever more items of the queries that have as many as were asked for.

A search rules pairs out by bounds, so that a first one for a few items of each query costs little more than one for the
best; only queries that have more are searched for again.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from peaccel._utils.arrays import ArrayT, Given, cast, like, namespace, on_host
from peaccel._utils.exclusions import Exclusions
from peaccel._utils.ids import Ints
from peaccel.distributions import Distribution
from peaccel.distributions.checks import checked_k
from peaccel.retrieval.blocks import Block, BlockPlans, each_block, in_blocks, named_for_blocks
from peaccel.retrieval.findable import ALL, HELD, Findable, Pairs
from peaccel.retrieval.plan import Plan, plan
from peaccel.retrieval.prepared import Prepared
from peaccel.retrieval.ranking import RankingAbove, above_of_score
from peaccel.retrieval.searchable import Searchable, is_searchable
from peaccel.scores import Score

__all__ = [
    "MOST",
    "Pairs",
    "checked_number",
    "checked_threshold",
    "listed",
    "pairs_above",
    "search_above",
]

FIRST = 32  # items that each query is searched for at first
TIMES = 8  # times as many in the next search of those that have more
MOST = 10_000_000  # pairs that are returned unless more are asked for, which take 12 to 16 bytes each


def search_above(
    queries: Distribution[ArrayT],
    gallery: Distribution[ArrayT] | Prepared[ArrayT] | Searchable | Iterable[Distribution[ArrayT] | Prepared[ArrayT]],
    threshold: float,
    score: str | Score | None = None,
    *,
    most: int = MOST,
    allowed: Given | None = None,
    exclude: Given | Exclusions | None = None,
) -> RankingAbove[ArrayT]:
    """All items of the gallery whose score reaches a threshold, exactly, for each query (range search).

    Parameters
    ----------
    queries, gallery
        As in `search`: the gallery may be prepared, come in blocks, or have ids.
    threshold
        The least score that is found. Scores are higher where items are more similar: of a distance it is negative,
        such as -0.5 for ``neg_sq_l2``. A pair whose score is NaN is never found.
    score
        A name, ``"name:param=number"`` or a `Score`; higher = more similar. By default that of a prepared gallery,
        cosine of points, and else mls.
    most
        How many pairs may be found in all, >= 1; they take 12 bytes each, 16 in float64. Where there are more it is an
        error, which comes before they are in memory.
    allowed, exclude
        As in `search`: the items that may be found, and those that a query may not find.

    Returns
    -------
    RankingAbove
        Offsets [Q + 1], ids and scores [M], best first for each query. Detached. On a GPU it waits for the device, as
        how many there are is not known before.

    Raises
    ------
    TypeError, ValueError
        As `search`; a threshold that is no number; more pairs than `most`.

    Notes
    -----
    Scores have the bits of `search` and `paired`. Where each query has fewer than 32 items it takes the time of a
    search for 32; of the others the 256 best are searched for, and so on.

    Examples
    --------
    >>> queries = pe.Normal([[0.0, 1.0], [1.0, 0.0]], var=[0.1, 0.1])
    >>> gallery = pe.Normal([[0.0, 1.0], [1.0, 0.0], [0.6, 0.8]], var=[0.1, 0.1, 0.4])
    >>> found = pe.search_above(queries, gallery, -1.8, "mls")
    >>> found.offsets.tolist(), found.ids.tolist(), found.scores.round(3).tolist()
    ([0, 2, 3], [0, 2, 1], [-0.228, -1.545, -0.228])
    """
    owner = "search_above"
    threshold, most = checked_threshold(owner, threshold, most)
    if is_searchable(gallery):
        return gallery.search_above(queries, threshold, score, allowed=allowed, exclude=exclude, most=most)
    if in_blocks(gallery):
        record, blocks = named_for_blocks(score, queries, gallery)
        plans = BlockPlans(queries, record)
        findable = Findable.of(owner, allowed, exclude, len(queries), None)
        found = _of_blocks(plans, blocks, threshold, findable)
        return listed(owner, found, len(queries), most, plans.score, queries.dim, in_parts=True)
    planned = plan(queries, gallery, score, detach=True)
    findable = Findable.of(owner, allowed, exclude, len(queries), len(gallery))
    return listed(owner, pairs_above(planned, threshold, findable), len(queries), most, planned.score, queries.dim)


def checked_threshold(owner: str, threshold: float, most: int) -> tuple[float, int]:
    """The threshold, a number, and how many pairs may be found."""
    return checked_number(owner, "threshold", threshold), checked_k(owner, most, "most")


def checked_number(owner: str, name: str, x: float) -> float:
    """The number x, perhaps infinite."""
    try:
        if isinstance(x, (str, bytes, bool)):
            raise TypeError
        number = float(x)
    except (TypeError, ValueError):
        raise TypeError(f"{owner}: {name} must be a number, got {type(x).__name__}") from None
    if math.isnan(number):
        raise ValueError(f"{owner}: {name} is nan, expected a number")
    return number


# -- pairs -------------------------------------------------------------------------------------------------------------


def pairs_above(planned: Plan, threshold: float, findable: Findable = ALL) -> Iterator[Pairs]:
    """The pairs of a plan that reach a threshold, all of a query together and best first, of items that may be found.

    Pairs that are drawn are drawn by the numbers of their rows, so that all queries and items stay beside each other.
    """
    rows = None if planned.pair.op.draws else findable.rows
    narrowed = planned if rows is None else planned.of_rows(items=like(planned.inputs.mu2, rows))
    queries, size = len(narrowed.inputs.mu1), len(narrowed.inputs.mu2)
    for of, places, scores in _searched(narrowed, np.arange(queries), max(min(FIRST, size), 1), threshold):
        items = places if rows is None else like(places, rows)[places]
        yield (of, items, scores) if findable.is_all else findable.of_pairs((of, items, scores))


def _searched(planned: Plan, rows: Ints, k: int, threshold: float) -> Iterator[Pairs]:
    """`pairs_above` of the queries in these rows, which are searched for k items at first."""
    whole = len(rows) == len(planned.inputs.mu1)
    step = max(len(rows) if planned.pair.op.draws else HELD // k, 1)
    for start in range(0, max(len(rows), 1), step):
        some = rows[start : start + step]
        part = planned if whole and len(some) == len(rows) else planned.of_rows(queries=some)
        scores, ids, _ = part.best_of_all(k, "auto")
        reach = (cast(scores, "float64") >= threshold) & (ids >= 0)
        counts = on_host(reach.sum(1))
        more = (counts == k) & (k < len(planned.inputs.mu2))
        if planned.pair.op.draws and more.any():
            more[:] = True
        done = np.flatnonzero(~more)
        reach, ids, scores = (x[like(x, done)] for x in (reach, ids, scores))
        yield np.repeat(some[done], counts[done]), ids[reach], scores[reach]
        del part, reach, ids, scores
        if more.any():
            yield from _searched(planned, some[more], min(TIMES * k, len(planned.inputs.mu2)), threshold)


def _of_blocks(plans: BlockPlans, blocks: Iterable[Block], threshold: float, findable: Findable) -> Iterator[Pairs]:
    """`pairs_above` of a gallery that passes block by block."""
    with each_block(plans.score.name, blocks) as read:
        for first_row, block in read:
            planned, here = (
                plans.of(first_row, plans.admitted(first_row, block)),
                findable.within(first_row, len(block)),
            )
            del block
            for of, ids, scores in pairs_above(planned, threshold, here):
                yield of, plans.returned(ids) + first_row, plans.returned(scores)
            del planned


def listed(
    owner: str, pairs: Iterable[Pairs], queries: int, most: int, score: Score, dim: int, *, in_parts: bool = False
) -> RankingAbove[Any]:
    """The pairs of so many queries in their order: by query, best first, ties by the lower id.

    Those of a query stand together and in their order already, unless they come of several parts of a gallery.
    """
    parts: list[Pairs] = []
    count = 0
    for part in pairs:
        count += len(part[0])
        if count > most:
            what = f"more than {most} pairs reach the threshold, the most that were asked for"
            raise ValueError(f"{owner}: {what}; expected a higher threshold, fewer queries at a time or a greater most")
        parts.append(part)
    of = np.concatenate([part[0] for part in parts])
    ids, scores = (namespace(x[0]).concatenate(x) for x in zip(*(part[1:] for part in parts), strict=True))
    order = np.lexsort((on_host(ids), -on_host(scores), of)) if in_parts else np.argsort(of, kind="stable")
    offsets = np.append(0, np.bincount(of, minlength=queries).cumsum())
    found = RankingAbove(like(scores, offsets), ids[like(ids, order)], scores[like(scores, order)])
    return above_of_score(found, score, dim)
