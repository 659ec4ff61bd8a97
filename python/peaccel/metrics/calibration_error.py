"""Whether confident queries are answered as well as their confidence says."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from peaccel._utils.numbers import as_numbers, require_length, require_probabilities

__all__ = ["CalibrationBins", "calibration_error"]

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class CalibrationBins:
    """The points of a calibration plot, one for each bin, least confident first; NaN where a bin is empty.

    Examples
    --------
    Of two queries with a confidence of 0 one was answered, and both with a confidence of 1. A value above the
    confidence is too little confidence, and lower errors are better:

    >>> bins = pe.metrics.calibration_error([0, 1, 1, 1], [0.0, 0.0, 1.0, 1.0], scale="probability", bins=2)
    >>> (bins.value - bins.confidence).tolist(), bins.count.tolist()
    ([0.5, 0.0], [2, 2])
    >>> bins.ece
    0.25
    """

    ece: float
    """Expected calibration error: mean over queries of their bin's |value - confidence|."""
    confidence: NDArray[np.float64]
    """[M] mean of the scaled confidences."""
    value: NDArray[np.float64]
    """[M] mean of the values."""
    count: NDArray[np.int64]
    """[M] queries."""
    scale: str
    binning: str


def calibration_error(
    values: ArrayLike,
    confidence: ArrayLike,
    *,
    scale: Literal["minmax", "rank", "probability"] = "minmax",
    binning: Literal["equal-width", "equal-count"] = "equal-width",
    bins: int = 10,
) -> CalibrationBins:
    """Expected calibration error of retrieval (ECE@k), and the points of its plot.

    sum_m |B_m| / Q |mean value of B_m - mean confidence of B_m|

    The paper's words allow for each of the scales and binnings; "minmax" of minus the variance is the one with which
    its tables agree. No scale but "probability" makes a perfect confidence have an error of 0: by "rank", at a Recall@1
    of 0.6, what knows all answers has 0.26 and so has what knows none, and the error of "minmax" is decided by the two
    extreme queries. `pe.evaluate` makes a probability of the confidence first.

    Parameters
    ----------
    values
        [Q] in [0, 1], such as `average_precision_at_k` of queries that can be answered.
    confidence
        [Q], higher = more confident, finite but for "rank"; minus the variance as published.
    scale
        "minmax": 0 for the least confident query, 1 for the most; "rank": (rank - 1/2) / Q, equals with their mean
        rank; "probability": as given, in [0, 1].
    binning
        "equal-width" bins of [0, 1], lower bounds included and 1 in the last one, or as equal in "equal-count" as can
        be, where equal confidences in two bins count with their mean value.
    bins
        M, at least 1.

    Returns
    -------
    The error and the points.

    Raises
    ------
    ValueError
        Lengths differ, there is no query, a value lies outside [0, 1], a confidence is NaN, infinite or constant for
        "minmax" or outside [0, 1] for "probability", or an unknown scale or binning.

    References
    ----------
    Warburg et al., Bayesian Triplet Loss, ICCV 2021, equation 14 and figure 7 (M = 10).

    Examples
    --------
    The two unsure queries are answered as well as they say, the two sure ones better, by 0.25. Lower is better:

    >>> bins = pe.metrics.calibration_error([0.5, 0, 1, 1], [0.25, 0.25, 0.75, 0.75], scale="probability", bins=2)
    >>> bins.confidence.tolist(), bins.value.tolist()
    ([0.25, 0.75], [0.25, 1.0])
    >>> bins.ece
    0.125
    """
    owner = "calibration_error"
    numbers = as_numbers(owner, "values", values, "(Q,)")
    span = {"finite": "'minmax' divides by their span"} if scale == "minmax" else {}
    order = as_numbers(owner, "confidence", confidence, "(Q,)", **span)
    require_length(owner, "confidence", order, "values", numbers)
    require_probabilities(owner, "values", numbers)
    if binning not in ("equal-width", "equal-count") or bins < 1:
        expected = "expected 'equal-width' or 'equal-count', and at least 1"
        raise ValueError(f"{owner}: binning is {binning!r} and bins {bins}, {expected}")
    levels, place, count = np.unique(order, return_inverse=True, return_counts=True)
    scaled = _scaled(levels, count, scale)
    means = np.bincount(place, weights=numbers) / count  # one mean for all of equal confidence
    conf, value = np.repeat(scaled, count), np.repeat(means, count)
    if binning == "equal-width":
        of = np.searchsorted(np.arange(bins) / bins, conf, side="right") - 1
    else:
        of = np.repeat(np.arange(bins), [len(part) for part in np.array_split(conf, bins)])
    size = np.bincount(of, minlength=bins)
    with np.errstate(invalid="ignore"):  # empty bins are NaN
        bin_conf = np.bincount(of, weights=conf, minlength=bins) / size
        bin_value = np.bincount(of, weights=value, minlength=bins) / size
    ece = float(np.nansum(size * np.abs(bin_value - bin_conf)) / len(numbers))
    return CalibrationBins(ece, bin_conf, bin_value, size, scale, binning)


def _scaled(levels: Array, count: NDArray[np.int64], scale: str) -> Array:
    """Ascending levels of confidence in [0, 1]."""
    if scale == "minmax":
        if len(levels) == 1:
            raise ValueError(f"calibration_error: confidence is {levels[0]:g} for all queries: no scale 'minmax'")
        return np.asarray((levels - levels[0]) / (levels[-1] - levels[0]))
    if scale == "rank":
        return np.asarray((count.cumsum() - count / 2) / count.sum())
    if scale != "probability":
        raise ValueError(f"calibration_error: scale is {scale!r}, expected 'minmax', 'rank' or 'probability'")
    require_probabilities("calibration_error", "confidence", levels)
    return levels
