"""The equal error rate, its threshold, and how sure both are."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from peaccel.metrics.verification import (
    as_pairs,
    counted_levels,
    drawn_shares,
    equal_error_of,
    percentiles,
    rates_over,
    require_draws,
)

__all__ = ["EqualError", "equal_error"]


@dataclass(frozen=True)
class EqualError:
    """The equal error rate and its threshold, as `equal_error` finds them; intervals are as those of `TarAtFar`.

    Examples
    --------
    >>> found = pe.metrics.equal_error([0.9, 0.8, 0.7, 0.3, 0.6, 0.5, 0.2, 0.1], same=[1, 1, 1, 1, 0, 0, 0, 0])
    >>> found.rate, found.threshold
    (0.25, 0.6)
    """

    rate: float
    """`equal_error_rate`."""
    rate_interval: tuple[float, float]
    threshold: float
    """The score at which FAR is nearest to the share of pairs of one class that is rejected; the highest of several.
    Pairs are accepted where score >= threshold."""
    threshold_interval: tuple[float, float]


def equal_error(
    scores: ArrayLike, same: ArrayLike, *, resamples: int = 2000, level: float = 0.95, seed: int = 0
) -> EqualError:
    """Equal error rate, with the threshold at which it is met and intervals of both.

    Parameters
    ----------
    scores, same
        As for `equal_error_rate`.
    resamples, level, seed
        Of the intervals, as for `tar_at_far`.

    Returns
    -------
    EqualError
        The rate, the threshold and their intervals.

    Raises
    ------
    ValueError
        As for `equal_error_rate`, or an argument is out of range.

    Notes
    -----
    The rate lies between two thresholds, of which the nearer one is returned, as VoxCeleb's code does. Draws are
    counted at 400 thresholds at most.

    Examples
    --------
    Lower is better. Two of three pairs of either kind are decided rightly at 1:

    >>> found = pe.metrics.equal_error([3.0, 1.0, -1.0, 2.0, -2.0, -4.0], [1, 1, 1, 0, 0, 0])
    >>> round(found.rate, 2), found.threshold
    (0.33, 1.0)
    """
    owner = "equal_error"
    numbers, flags = as_pairs(owner, scores, same)
    require_draws(owner, resamples, level, seed)
    rate, threshold = rate_and_threshold(numbers, flags)
    levels = counted_levels(numbers, flags)
    place = len(levels) - np.searchsorted(levels, numbers, side="right")  # 0 holds the highest scores
    drawn = drawn_shares(place, flags, len(levels) + 1, resamples, seed)
    of_two, of_one = (np.c_[np.zeros(resamples), shares.cumsum(1)] for shares in drawn)
    nearest = np.abs(of_two + of_one - 1)[:, 1:-1].argmin(1)
    return EqualError(
        rate=rate,
        rate_interval=percentiles(equal_error_of(of_two, of_one), level),
        threshold=threshold,
        threshold_interval=percentiles(levels[::-1][nearest], level),
    )


def rate_and_threshold(scores: NDArray[np.float64], same: NDArray[np.bool_]) -> tuple[float, float]:
    """The equal error rate, and the score at which both errors are nearest to each other."""
    thresholds, far, tar = rates_over(scores, same)
    return float(equal_error_of(far, tar)), float(thresholds[1 + np.abs(far + tar - 1)[1:].argmin()])
