"""Confidences of queries, and how well they separate right answers from wrong ones."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from peaccel import metrics
from peaccel._utils.arrays import on_host
from peaccel._utils.numbers import as_flags, as_numbers, class_numbers
from peaccel.distributions import Distribution, Normal, Point
from peaccel.distributions.confidence import confidence as of_items
from peaccel.evaluation.answers import GREAT, Answers
from peaccel.evaluation.intervals import Interval, Resamples, TooFew, ends
from peaccel.evaluation.promises import risks
from peaccel.evaluation.results import ConfidenceResult
from peaccel.fits.fit_match_probability import fit_match_probability

__all__ = ["SHARES", "CountedAnswers", "Separation", "by_name", "calibration", "judged", "learned", "probability"]

BEST = "score of the best"
"""The name of the confidence that every score has, which others must beat."""

SHARES = tuple(round(0.02 * n, 2) for n in range(46))
"""Shares of queries that the curves reject, least confident first."""
BINS = 10
"""Bins of the calibration error."""
FOLDS = 5
"""Parts of the classes, each of which has probabilities that were fitted to the others."""
FEWEST = 10
"""Wrong answers, and right ones, from which on an area tells anything of how they are separated."""
LEVELS = 500
"""How many levels of confidence draws are counted at, at most."""


def judged(
    queries: Distribution,
    answers: Answers,
    quality: NDArray[np.float64] | None,
    novel: dict[str, NDArray[np.float64]],
    clusters: NDArray[Any],
    resamples: Resamples,
    seed: int,
) -> Iterator[ConfidenceResult]:
    """Each confidence of the queries that can be answered, of which the clusters and the resamples are."""
    known = ~np.isnan(answers.right)
    right = answers.right[known]
    kinds = by_name(queries[np.flatnonzero(known)], answers.scores[known], seed)
    counted = {name: CountedAnswers(right, confidence, resamples) for name, confidence in kinds.items()}
    best = counted[BEST].separation()
    for name, confidence in kinds.items():
        p = probability(confidence, right, clusters, seed)
        points, of = calibration(p, right)
        separated = counted[name].separation()
        yield ConfidenceResult(
            name,
            separated.auroc,
            None if name == BEST else separated.gain(best),
            *counted[name].rejection(),
            resamples.mean((p - right) ** 2),
            _calibration_error(p, right, of, resamples),
            None if quality is None else metrics.spearman(quality[known], confidence),
            metrics.novelty_detection(-confidence, -novel[name]).auroc if name in novel else None,
            points,
            tuple(metrics.rejection_curve(right, confidence, SHARES).tolist()),
        )


def probability(confidence: ArrayLike, right: ArrayLike, clusters: ArrayLike, seed: int = 0) -> NDArray[np.float64]:
    """Probability that an answer is right, by isotonic regression on the confidences of other classes.

    Only the order of confidences counts. Each fifth of the classes has a regression on the others.

    Parameters
    ----------
    confidence
        [Q], higher = surer.
    right
        [Q] 1 or 0, whether the query is answered rightly.
    clusters
        [Q], the class of each query.
    seed
        Seed of the parts.

    Returns
    -------
    [Q] in [0, 1]; NaN where there is one class.

    Raises
    ------
    TypeError
        An argument is a distribution.
    ValueError
        No query; shapes disagree; a confidence is NaN, a class is missing, or right holds another number than 0 or 1.

    Examples
    --------
    The surer half of ten classes is answered rightly:

    >>> right = np.arange(20) >= 10
    >>> from peaccel.evaluation import probability
    >>> probability(np.arange(20), right, np.arange(20) % 10)[[0, 19]].tolist()
    [0.0, 1.0]
    """
    owner = "probability"
    sure: NDArray[np.float64] = as_numbers(owner, "confidence", confidence)
    yes: NDArray[np.float64] = as_flags(owner, "right", right, sure.shape).astype(np.float64)
    of = class_numbers(owner, "clusters", clusters, len(sure))
    rank, classes = np.unique(sure, return_inverse=True)[1], of.max() + 1
    fold = (np.random.default_rng(seed).permutation(classes) % FOLDS)[of]
    p = np.full(len(yes), np.nan)
    for number in range(min(FOLDS, classes)):
        mine, others = fold == number, yes[fold != number]
        if len(others):
            alike = others.min() == others.max()
            fit = None if alike else fit_match_probability(rank[~mine], others > 0, method="isotonic")
            p[mine] = others[0] if fit is None else fit(rank[mine])
    return p


def _unit(mu: NDArray[Any]) -> bool:
    """Whether all rows have unit length, so that their lengths say nothing."""
    return bool(np.all(np.abs(np.linalg.norm(mu.astype(np.float64), axis=1) - 1) < 1e-3))


def learned(owner: str, name: str, d: Distribution) -> NDArray[np.float64] | None:
    """How sure the items are of themselves; None of points. A variance of 0 is as sure as can be."""
    if isinstance(d, Point):
        return None
    with np.errstate(divide="ignore"):
        sure: NDArray[np.float64] = on_host(of_items(d)).astype(np.float64)
    if np.isnan(sure).any():
        raise ValueError(f"{owner}: {name} has an uncertainty that is NaN: see its validate()")
    return np.clip(sure, -GREAT, GREAT)


def by_name(d: Distribution, scores: NDArray[np.float64], seed: int) -> dict[str, NDArray[np.float64]]:
    """The confidences of queries whose best two items have these scores, by name."""
    kinds: dict[str, Any] = {}
    if (sure := learned("evaluate", "queries", d)) is not None:
        kinds["learned"] = sure
    if isinstance(d, Normal | Point) and not _unit(mu := on_host(d.mu)):
        kinds["norm of the mean"] = metrics.norm_confidence(mu)
    kinds[BEST] = metrics.top_score_confidence(scores)
    if (abs(scores) < GREAT).all():
        kinds["best less second"] = metrics.margin_confidence(scores)
    kinds["random"] = metrics.random_confidence(len(d), seed)
    return {name: np.asarray(x, np.float64) for name, x in kinds.items()}


class Separation(NamedTuple):
    """How well a confidence tells right answers from wrong ones."""

    auroc: Interval
    drawn: NDArray[np.float64]
    """[draws], AUROC in each draw."""

    def gain(self, other: Separation) -> Interval:
        """AUROC less that of another confidence in the same draws."""
        gain = ends(self.auroc.value - other.auroc.value, self.drawn - other.drawn)
        few = isinstance(self.auroc, TooFew) or isinstance(other.auroc, TooFew)
        return TooFew(gain.value, gain.low, gain.high) if few else gain


class CountedAnswers:
    """Right and wrong answers of each draw at levels of a confidence, between which curves are linear."""

    def __init__(self, right: NDArray[np.float64], confidence: NDArray[np.float64], resamples: Resamples) -> None:
        self._right, self._confidence = right, confidence
        levels = np.unique(np.quantile(confidence, np.linspace(0, 1, LEVELS), method="lower"))
        bins = len(levels)
        places = bins - np.searchsorted(levels, confidence, side="right")  # 0 holds the most confident ones
        counts = resamples.counts(places + bins * (right > 0), 2 * bins)
        self._wrong, self._answered = counts[:, :bins], counts[:, bins:]
        """[draws, levels]."""

    def separation(self) -> Separation:
        """AUROC."""
        errors = self._wrong.cumsum(1)
        with np.errstate(invalid="ignore", divide="ignore"):
            wins = (self._answered * (errors[:, -1:] - errors + self._wrong / 2)).sum(1)
            drawn = wins / (self._answered.sum(1) * self._wrong.sum(1))
        auroc = ends(metrics.r_auroc(self._right, self._confidence), drawn)
        right = int((self._right > 0).sum())
        few = 0 < min(right, len(self._right) - right) < FEWEST
        return Separation(TooFew(auroc.value, auroc.low, auroc.high) if few else auroc, drawn)

    def kept(self, wrong: float) -> tuple[float, NDArray[np.float64]]:
        """The largest share of answers that can be accepted with this share of wrong ones, and that of each draw."""
        coverage, risk = risks(self._confidence, self._right > 0).T
        accepted = (self._wrong + self._answered).cumsum(1)
        kept = self._wrong.cumsum(1) <= wrong * accepted
        return float(coverage[risk <= wrong].max(initial=0)), (kept * accepted).max(1, initial=0) / accepted[:, -1]

    def rejection(self) -> tuple[Interval, Interval]:
        """AUSC and AURC."""
        wrong, both = self._wrong, self._wrong + self._answered
        values = [metrics.rejection_area(self._right, self._confidence, kind) for kind in ("ausc", "aurc")]
        if not len(wrong):  # one class alone is not drawn
            return ends(values[0], np.empty(0)), ends(values[1], np.empty(0))
        kept, errors = (np.c_[np.zeros(len(x)), x.cumsum(1)] for x in (both, wrong))
        with np.errstate(invalid="ignore", divide="ignore"):
            # Within a level the share of errors among n queries goes from one end to the other as a + b / n.
            rate = np.where(wrong > 0, wrong / both, 0)
            bend = (errors[:, :-1] - rate * kept[:, :-1]) * np.log(kept[:, 1:] / kept[:, :-1])
        aurc = (wrong + np.where(kept[:, :-1] > 0, bend, 0)).sum(1) / kept[:, -1]
        shares = 1 - np.arange(99) / 100
        total = kept[:, -1:]
        # All draws at once, each at other numbers: the queries of draw n from 2 n to 2 n + 1.
        of = 2.0 * np.arange(len(kept))[:, None]
        lost = np.interp((of + shares).ravel(), (of + kept / total).ravel(), errors.ravel()).reshape(-1, len(shares))
        curve = 1 - lost / (shares * total)
        ausc = (curve[:, 1:] + curve[:, :-1]).mean(1) / 2
        return ends(values[0], ausc), ends(values[1], aurc)


def calibration(
    p: NDArray[np.float64], right: NDArray[np.float64]
) -> tuple[tuple[tuple[float, float, int], ...], NDArray[np.int64]]:
    """Mean probability, share of right answers and count of bins of equal count; and the bin of each query."""
    edges = np.unique(np.quantile(p, np.linspace(0, 1, BINS + 1)[1:-1]))
    of = np.unique(np.searchsorted(edges, p, side="left"), return_inverse=True)[1]
    count = np.bincount(of)
    means = [(np.bincount(of, x) / count).tolist() for x in (p, right)]
    return tuple(zip(*means, count.tolist(), strict=True)), of


def _calibration_error(
    p: NDArray[np.float64], right: NDArray[np.float64], of: NDArray[np.int64], resamples: Resamples
) -> Interval:
    """Mean over queries of |mean probability - share of right answers| of their bin.

    A draw adds its noise to the error before the absolute value, which only makes it larger: the percentiles are turned
    round at the error itself, and end at 0.
    """
    gaps = (p - right)[:, None] * (of[:, None] == np.arange(of.max() + 1))
    value = float(np.abs(gaps.sum(0)).sum() / len(p))
    drawn = np.abs(resamples.sums(gaps)).sum(1) / resamples.sums(np.ones((len(p), 1)))[:, 0]
    turned = ends(value, 2 * value - drawn)
    return Interval(value, max(turned.low, 0.0), max(turned.high, 0.0))
