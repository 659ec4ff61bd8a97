"""How a score finds the mates of queries that have one in the gallery, and finds nothing for novel queries."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from peaccel import metrics
from peaccel._utils.arrays import require_same_kind
from peaccel._utils.numbers import as_classes
from peaccel.distributions import Distribution
from peaccel.distributions.checks import require_distribution
from peaccel.evaluation.answers import Answers, numbers
from peaccel.evaluation.intervals import Interval, Resamples, ends
from peaccel.evaluation.pair_rates import FEWEST
from peaccel.evaluation.results import OpenSetResult
from peaccel.retrieval.verbs import search
from peaccel.scores import Score

__all__ = ["best_two", "curve_of", "identified", "novel_clusters"]

FPIRS = (0.01, 0.1)
"""The shares of novel queries that are returned something, at which results are shown."""
LEVELS = 500
"""Thresholds among the scores of novel queries at which draws are counted, at most."""
POINTS = 200
"""Points of the curve, at most."""


def novel_clusters(
    owner: str, novel: Distribution | None, labels: ArrayLike | None, queries: Distribution
) -> NDArray[np.int64]:
    """The cluster [M] of each novel query, after checks: its class, or itself where classes are not known."""
    if novel is None:
        if labels is not None:
            raise ValueError(f"{owner}: novel_labels are given without novel, expected both")
        return np.empty(0, np.int64)
    require_distribution(owner, "novel", novel)
    if (novel.kind, novel.dim) != (queries.kind, queries.dim) or not len(novel):
        found, expected = (f"{d.kind} of dim {d.dim}" for d in (novel, queries))
        raise ValueError(f"{owner}: novel is {len(novel)} {found}, expected {expected} like queries, at least one")
    require_same_kind(owner, "novel", novel.mu, "queries", queries.mu)
    if labels is None:
        return np.arange(len(novel))
    names = as_classes(owner, "novel_labels", labels)
    if len(names) != len(novel):
        raise ValueError(f"{owner}: novel_labels has shape {names.shape}, expected ({len(novel)},) like novel")
    return np.unique(names, return_inverse=True)[1]


def best_two(owner: str, novel: Distribution, items: Distribution, score: Score) -> NDArray[np.float64]:
    """The scores [M, 2] of the best two items for each novel query; -inf where there is none."""
    best = np.full((len(novel), 2), -np.inf)
    found = numbers(owner, search(novel, items, min(2, len(items)), score).scores, score)
    best[:, : found.shape[1]] = found
    return best


def identified(
    score: Score, answers: Answers, novel: NDArray[np.float64], of_queries: Resamples, of_novel: Resamples
) -> OpenSetResult:
    """The errors of identification by a score, with intervals over draws of the clusters of both kinds of queries.

    A mate must be the best item, of the queries that have one, whose resamples are given; of the novel queries `novel`
    [M] is the score of the best item.
    """
    known = ~np.isnan(answers.right)
    mates = metrics.mate_scores(answers.scores[known, :1], answers.right[known, None])
    mates, others = (np.minimum(x, np.finfo(x.dtype).max) for x in (mates, novel))
    found = metrics.open_set(mates, others)
    drawn = _drawn(mates, others, of_queries, of_novel)
    (fnir_1, fpir_1), (fnir_10, fpir_10) = (
        _rates(found.at_fpir(fpir), of_draws, len(others) * fpir >= FEWEST)
        for fpir, of_draws in zip(FPIRS, drawn, strict=True)
    )
    return OpenSetResult(score.label, fnir_1, fpir_1, fnir_10, fpir_10, curve_of(found))


def curve_of(found: metrics.OpenSet) -> tuple[tuple[float, float], ...]:
    """(FPIR, FNIR) over falling thresholds, of each FPIR the least FNIR; at most `POINTS`, denser where FPIR is low."""
    last = np.flatnonzero(np.diff(found.fpir, append=2))  # of each FPIR the lowest threshold
    shown = last[_ranks(len(last), POINTS)]
    return tuple(zip(found.fpir[shown].tolist(), found.fnir[shown].tolist(), strict=True))


def _rates(point: metrics.OpenSetPoint, drawn: NDArray[np.float64], enough: bool) -> tuple[Interval, float]:
    """FNIR with its interval, and FPIR; NaN where too few novel queries are returned anything."""
    return (ends(point.fnir, drawn), point.fpir) if enough else (Interval(np.nan, np.nan, np.nan), np.nan)


def _ranks(count: int, most: int) -> NDArray[np.int64]:
    """Places of what is ordered: all, or so many that are the denser the nearer they are to the first."""
    if count <= most:
        return np.arange(count)
    return np.unique(np.geomspace(1, count, most).astype(np.int64)) - 1


def _drawn(
    mates: NDArray[np.float64], others: NDArray[np.float64], of_queries: Resamples, of_novel: Resamples
) -> tuple[NDArray[np.float64], ...]:
    """The FNIR of each draw at each of `FPIRS`, with the threshold of the draw itself.

    What is returned at the lowest threshold that keeps an FPIR is what lies above the greatest score of a novel query
    at which that FPIR is exceeded.
    """
    falling = np.unique(others)[::-1]  # at the last one, be it -inf, every FPIR below 1 is exceeded
    levels = falling[_ranks(len(falling), LEVELS)][::-1]
    bins = len(levels)
    at_least = bins - np.searchsorted(levels, others, side="right")  # 0 holds the highest scores
    higher = bins - np.searchsorted(levels, mates, side="left")
    returned, right = of_novel.counts(at_least, bins), of_queries.counts(higher, bins + 1)
    draws = np.arange(min(len(returned), len(right)))  # there is none of one cluster alone
    fpir, found = (x[draws].cumsum(1) / x[draws].sum(1, keepdims=True) for x in (returned, right))
    return tuple(1 - found[draws, (fpir > level).argmax(1)] for level in FPIRS)
