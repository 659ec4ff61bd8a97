"""Pairs of one set whose score reaches a threshold."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from peaccel._utils.arrays import ArrayT, like, on_host
from peaccel.distributions import Distribution
from peaccel.retrieval.findable import Pairs
from peaccel.retrieval.plan import Plan, plan
from peaccel.retrieval.prepared import Prepared
from peaccel.retrieval.ranking import RankingAbove
from peaccel.retrieval.search_above import MOST, checked_threshold, listed, pairs_above
from peaccel.scores import Score

__all__ = ["duplicates", "pairs_of_one_set"]

BLOCK = 4096  # items that are searched for at a time, among themselves and those after them


def duplicates(
    items: Distribution[ArrayT] | Prepared[ArrayT],
    threshold: float,
    score: str | Score | None = None,
    *,
    most: int = MOST,
) -> RankingAbove[ArrayT]:
    """All pairs i < j of items whose score reaches a threshold, exactly.

    Parameters
    ----------
    items
        N items, perhaps prepared. Item i of a pair is scored as the query: of a score that is not symmetric, such as
        ``neg_kl``, the other direction is not looked at.
    threshold, score, most
        As in `search_above`.

    Returns
    -------
    RankingAbove
        For each item i those after it, best first: ``zip(found.queries, found.ids, found.scores)`` are the pairs.

    Raises
    ------
    TypeError, ValueError
        As `search_above`.

    Examples
    --------
    >>> items = pe.Point([[0.0, 1.0], [1.0, 0.0], [0.1, 1.0], [1.0, 0.1]])
    >>> found = pe.duplicates(items, 0.9, "cosine")
    >>> found.queries.tolist(), found.ids.tolist(), found.scores.round(3).tolist()
    ([0, 1], [2, 3], [0.995, 0.995])
    """
    owner = "duplicates"
    threshold, most = checked_threshold(owner, threshold, most)
    queries = items.distribution if isinstance(items, Prepared) else items
    planned = plan(queries, items, score, detach=True, names=("items", "items"))
    return listed(owner, pairs_of_one_set(planned, threshold), len(items), most, planned.score, items.dim)


def pairs_of_one_set(planned: Plan, threshold: float) -> Iterator[Pairs]:
    """The pairs i < j that reach a threshold, of a plan whose queries are the items."""
    count = len(planned.inputs.mu1)
    step = max(count, 1) if planned.pair.op.draws else BLOCK
    for start in range(0, max(count, 1), step):
        block = slice(start, start + step)
        part = planned.of_rows(queries=block, items=slice(start, None)) if step < count else planned
        for of, items, scores in pairs_above(part, threshold):
            after = np.flatnonzero(on_host(items) > of)
            yield of[after] + start, items[like(items, after)] + start, scores[like(scores, after)]
