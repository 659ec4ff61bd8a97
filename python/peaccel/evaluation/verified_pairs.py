"""How a score separates pairs of one class from pairs of two."""

from __future__ import annotations

import warnings
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from peaccel import metrics
from peaccel.evaluation.columns import Column
from peaccel.evaluation.intervals import Interval, Resamples, ends

__all__ = ["AUC", "EER", "FAR", "TAR", "VerificationIntervals", "verification", "verified"]

FAR = 1e-3
FEWEST = 10
"""Pairs of two classes that must be accepted at `FAR`: a rate of fewer is chance."""
LEVELS = 200
"""Thresholds among the pairs of either kind at which draws are counted."""

AUC = Column(
    "AUC %", "how probably a pair of one class scores above a pair of two; 50: it says nothing, higher is better."
)
EER = Column("EER %", "error where as large a share of one class is rejected as is accepted of two; lower is better.")
TAR = Column(
    "TAR@FAR=0.1% %",
    "share of pairs of one class that is accepted where 0.1 % of the pairs of two are; higher is better; - where that "
    "would be fewer than 10 pairs.",
)


class VerificationIntervals(NamedTuple):
    """Rates of pairs, with intervals; NaN without pairs of one class or of two."""

    roc_auc: Interval
    equal_error_rate: Interval
    tar_at_far: Interval
    """TAR at `FAR`; NaN where fewer than `FEWEST` pairs of two classes would be accepted there."""
    attained_far: float
    """The FAR at the threshold of the TAR: `FAR` rounded to a number of pairs, and less among equal scores."""


def verification(scores: NDArray[np.float64], same: NDArray[np.bool_]) -> tuple[float, float, float]:
    """ROC AUC, EER and TAR at `FAR`; scores of -inf or inf are kept in their order."""
    if not len(same):
        return np.nan, np.nan, np.nan
    finite = np.clip(scores, -1e300, 1e300)
    rate = metrics.tar_at_far(finite, same, FAR, resamples=1).tar
    return metrics.roc_auc(finite, same), metrics.equal_error_rate(finite, same), rate


def verified(
    scores: NDArray[np.float64], same: NDArray[np.bool_], resamples: Resamples, what: str
) -> VerificationIntervals:
    """The same with intervals over draws of the pairs' classes; where they lie below chance, the caller of the function
    that calls this is told, of what.
    """
    if not len(same):
        nothing = Interval(np.nan, np.nan, np.nan)
        return VerificationIntervals(nothing, nothing, nothing, np.nan)
    finite = np.clip(scores, -1e300, 1e300)
    rate = metrics.tar_at_far(finite, same, FAR, resamples=1)
    drawn = _drawn(finite, same, resamples)
    points = metrics.roc_auc(finite, same), metrics.equal_error_rate(finite, same), rate.tar
    auc, error, tar = (ends(value, x) for value, x in zip(points, drawn, strict=True))
    if auc.high < 0.5:
        reason = (
            f"their AUC is {100 * auc.value:.1f} %, below one half by more than chance; expected higher = more similar"
        )
        warnings.warn(f"{what} look reversed, as distances are: {reason}", UserWarning, stacklevel=3)
    if (~same).sum() * FAR < FEWEST:
        return VerificationIntervals(auc, error, Interval(np.nan, np.nan, np.nan), np.nan)
    return VerificationIntervals(auc, error, tar, rate.attained_far)


def _drawn(
    scores: NDArray[np.float64], same: NDArray[np.bool_], resamples: Resamples
) -> tuple[NDArray[np.float64], ...]:
    """AUC, EER and TAR at `FAR` of each draw, by thresholds at ranks of either kind, between which rates are linear."""
    kinds = [np.sort(scores[of])[::-1] for of in (same, ~same)]
    ranks = np.linspace(0, len(kinds[0]) - 1, LEVELS), np.geomspace(1, len(kinds[1]), LEVELS) - 1
    levels = np.unique(np.concatenate([x[at.astype(np.int64)] for x, at in zip(kinds, ranks, strict=True)]))
    bins = len(levels) + 1
    places = len(levels) - np.searchsorted(levels, scores, side="right")  # 0 holds the highest scores
    counts = resamples.counts(places + bins * same, 2 * bins)
    totals = counts.reshape(-1, 2, bins).sum(2)
    counts = counts[(totals > 0).all(1)]  # of few classes, some draws have no pair of a kind
    far, tar = (
        np.c_[np.zeros(len(x)), x.cumsum(1) / x.sum(1, keepdims=True)] for x in (counts[:, :bins], counts[:, bins:])
    )
    auc = (np.diff(far, axis=1) * (tar[:, 1:] + tar[:, :-1]) / 2).sum(1)
    return auc, _at(far + tar, 1, far), _at(far, FAR, tar)


def _at(rising: NDArray[np.float64], level: float, of: NDArray[np.float64]) -> NDArray[np.float64]:
    """Linear interpolation of a second curve, `of`, where each row of `rising` first reaches a level."""
    after = np.maximum((rising >= level).argmax(1), 1)[:, None]
    (low, high), (start, end) = (
        [np.take_along_axis(curve, after - back, 1)[:, 0] for back in (1, 0)] for curve in (rising, of)
    )
    share = (level - low) / np.where(high > low, high - low, 1)
    return np.asarray(start + share * (end - start))
