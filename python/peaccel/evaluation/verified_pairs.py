"""How a score separates pairs of one class from pairs of two."""

from __future__ import annotations

import warnings
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from peaccel import metrics
from peaccel.evaluation.columns import Column
from peaccel.evaluation.formatting import six_digits
from peaccel.evaluation.intervals import Interval, Resamples, ends, plainly
from peaccel.metrics.detection_cost import Costs, least_and_actual, llr_costs
from peaccel.metrics.equal_error import rate_and_threshold
from peaccel.metrics.verification import at_far, counted_levels
from peaccel.scores import Score

__all__ = [
    "ACTUAL_DCF",
    "AUC",
    "CLLR",
    "EER",
    "EER_THRESHOLD",
    "FAR",
    "MIN_DCF",
    "P_TARGET",
    "TAR",
    "VerificationIntervals",
    "verification",
    "verified",
]

FAR = 1e-3
P_TARGET = 0.01
"""The prior of a pair of one class, as VoxCeleb and NIST's SRE 2016 have it; both errors cost 1."""
FEWEST = 10
"""Pairs of two classes that must be accepted at `FAR`: a rate of fewer is chance."""

AUC = Column(
    "AUC %", "how probably a pair of one class scores above a pair of two; 50: it says nothing, higher is better."
)
EER = Column("EER %", "error where as large a share of one class is rejected as is accepted of two; lower is better.")
TAR = Column(
    "TAR@FAR=0.1% %",
    "share of pairs of one class that is accepted where 0.1 % of the pairs of two are; higher is better; - where that "
    "would be fewer than 10 pairs.",
)
EER_THRESHOLD = Column("EER at", "the score from which on pairs are accepted there.", six_digits)
MIN_DCF = Column(
    "minDCF",
    "least detection cost over all thresholds, at the prior p_target, where either error costs 1; 1: what it costs to "
    "reject or accept all, lower is better.",
    plainly,
)
ACTUAL_DCF = Column(
    "actual DCF",
    "detection cost of llr at the threshold log((1 - p_target) / p_target): what it has more than minDCF is lost by "
    "calibration.",
    plainly,
)
CLLR = Column(
    "Cllr", "cost of llr over all priors, in bits; 1: that of a ratio that is always 1, lower is better.", plainly
)


class VerificationIntervals(NamedTuple):
    """Rates of pairs, with intervals; NaN without pairs of one class or of two."""

    roc_auc: Interval
    equal_error_rate: Interval
    tar_at_far: Interval
    """TAR at `FAR`; NaN where fewer than `FEWEST` pairs of two classes would be accepted there."""
    attained_far: float
    """The FAR at the threshold of the TAR: `FAR` rounded to a number of pairs, and less among equal scores."""
    eer_threshold: float
    min_dcf: Interval
    actual_dcf: Interval | None
    """None where scores are no log-likelihood ratios, as is the next one."""
    cllr: Interval | None


def verification(scores: NDArray[np.float64], same: NDArray[np.bool_]) -> tuple[float, float, float]:
    """ROC AUC, EER and TAR at `FAR`; scores of -inf or inf are kept in their order."""
    if not len(same):
        return np.nan, np.nan, np.nan
    finite = np.clip(scores, -1e300, 1e300)
    rate = at_far(finite, same, FAR).tar
    return metrics.roc_auc(finite, same), metrics.equal_error_rate(finite, same), rate


def verified(
    scores: NDArray[np.float64],
    same: NDArray[np.bool_],
    resamples: Resamples,
    owner: str,
    score: Score,
    p_target: float = P_TARGET,
) -> VerificationIntervals:
    """The same and costs of detection with intervals over draws of the pairs' classes; where scores lie below chance,
    the caller of the owner, which calls this, is told.
    """
    ratios = score.name == "llr"
    nothing = Interval(np.nan, np.nan, np.nan)
    if not len(same):
        of_ratios = nothing if ratios else None
        return VerificationIntervals(nothing, nothing, nothing, np.nan, np.nan, nothing, of_ratios, of_ratios)
    finite = np.clip(scores, -1e300, 1e300)
    rate = at_far(finite, same, FAR)
    costs = Costs(owner, p_target)
    cost, (equal, at_equal) = least_and_actual(finite, same, costs), rate_and_threshold(finite, same)
    drawn = _drawn(finite, same, resamples, costs, ratios)
    points = metrics.roc_auc(finite, same), equal, rate.tar, cost.min_dcf, cost.actual_dcf, cost.cllr
    auc, error, tar, least, actual, bits = (ends(value, x) for value, x in zip(points, drawn, strict=True))
    if auc.high < 0.5:
        reason = (
            f"their AUC is {100 * auc.value:.1f} %, below one half by more than chance; expected higher = more similar"
        )
        what = f"{owner}: scores {score.label}"
        warnings.warn(f"{what} look reversed, as distances are: {reason}", UserWarning, stacklevel=3)
    attained = rate.attained_far
    if (~same).sum() * FAR < FEWEST:
        tar, attained = nothing, np.nan
    of_llr = (actual, bits) if ratios else (None, None)
    return VerificationIntervals(auc, error, tar, attained, at_equal, least, *of_llr)


def _drawn(
    scores: NDArray[np.float64], same: NDArray[np.bool_], resamples: Resamples, costs: Costs, ratios: bool
) -> tuple[NDArray[np.float64], ...]:
    """AUC, EER, TAR at `FAR`, minDCF, actual DCF and Cllr of each draw, by thresholds at ranks of either kind, between
    which rates are linear; the last two of what are no ratios mean nothing."""
    levels = counted_levels(scores, same)
    if ratios:
        levels = np.union1d(levels, costs.threshold)
    bins = len(levels) + 1
    places = len(levels) - np.searchsorted(levels, scores, side="right") + bins * same  # 0 holds the highest scores
    counts = resamples.counts(places, 2 * bins)
    totals = counts.reshape(-1, 2, bins).sum(2)
    counts = counts[(totals > 0).all(1)]  # of few classes, some draws have no pair of a kind
    far, tar = (
        np.c_[np.zeros(len(x)), x.cumsum(1) / x.sum(1, keepdims=True)] for x in (counts[:, :bins], counts[:, bins:])
    )
    auc = (np.diff(far, axis=1) * (tar[:, 1:] + tar[:, :-1]) / 2).sum(1)
    lost = costs.of(far, tar)
    at = len(levels) - int(np.searchsorted(levels, costs.threshold))
    # In every draw the pairs of a bin have their mean cost.
    at_places = np.maximum(np.bincount(places, minlength=2 * bins), 1)
    bits = np.bincount(places, llr_costs(scores, same), 2 * bins) / at_places
    cllr = (np.diff(far, axis=1) @ bits[:bins] + np.diff(tar, axis=1) @ bits[bins:]) / 2
    return auc, _at(far + tar, 1, far), _at(far, FAR, tar), lost.min(1), lost[:, at], cllr


def _at(rising: NDArray[np.float64], level: float, of: NDArray[np.float64]) -> NDArray[np.float64]:
    """Linear interpolation of a second curve, `of`, where each row of `rising` first reaches a level."""
    after = np.maximum((rising >= level).argmax(1), 1)[:, None]
    (low, high), (start, end) = (
        [np.take_along_axis(curve, after - back, 1)[:, 0] for back in (1, 0)] for curve in (rising, of)
    )
    share = (level - low) / np.where(high > low, high - low, 1)
    return np.asarray(start + share * (end - start))
