"""The equal error rate, its threshold, and how sure both are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from peaccel.metrics._draws import PairDraws, counted_levels, pair_draws, percentiles, require_draws
from peaccel.metrics.verification import as_pairs, as_threshold, rates_over, warn_if_reversed

__all__ = ["EqualError", "equal_error_rate"]

Array = NDArray[Any]


@dataclass(frozen=True)
class EqualError:
    """The equal error rate and its threshold, as `equal_error_rate` finds them; intervals are as in `TarAtFar`.

    Examples
    --------
    >>> found = pe.metrics.equal_error_rate([0.9, 0.8, 0.7, 0.3, 0.6, 0.5, 0.2, 0.1], same=[1, 1, 1, 1, 0, 0, 0, 0])
    >>> found.rate, found.threshold
    (0.25, 0.6)
    """

    rate: float
    rate_interval: tuple[float, float]
    threshold: float
    """The score at which FAR is nearest to the share of pairs of one class that is rejected; the highest of several.
    Pairs are accepted where score >= threshold."""
    threshold_interval: tuple[float, float]


def equal_error_rate(
    scores: ArrayLike,
    same: ArrayLike,
    *,
    clusters: ArrayLike | None = None,
    resamples: int = 2000,
    level: float = 0.95,
    seed: int = 0,
) -> EqualError:
    """Equal error rate: the error at which as large a share of one class is rejected as is accepted of the other.

    Between two thresholds the rates are interpolated linearly, as along the ROC curve.

    Parameters
    ----------
    scores, same
        As for `roc_auc`.
    clusters
        [N], or [N, 2] of both sides of a pair, numbers or strings: what makes pairs alike, such as the speakers of a
        trial (`trial_clusters`). Intervals draw these as a whole. None: pairs are independent, and intervals too narrow
        where pairs share an item or a person.
    resamples, level, seed
        Of the intervals, as for `tar_at_far`.

    Returns
    -------
    EqualError
        The rate in [0, 1], 1/2 where all scores are equal, the threshold at which it is met, and their intervals; NaN
        where no draw of the clusters has pairs of both kinds.

    Raises
    ------
    ValueError
        Lengths differ, a score is NaN, `same` has one class or another number than 0 and 1, or an argument is out of
        range.

    Warns
    -----
    UserWarning
        Scores look reversed, as for `best_threshold`.

    Notes
    -----
    The rate lies between two thresholds; the nearer one is returned, as VoxCeleb's code does. Draws are counted at 400
    thresholds at most.

    Examples
    --------
    Lower is better. The threshold 0.6 rejects one of four pairs of one class, and accepts one of four of two:

    >>> found = pe.metrics.equal_error_rate([0.9, 0.8, 0.7, 0.3, 0.6, 0.5, 0.2, 0.1], same=[1, 1, 1, 1, 0, 0, 0, 0])
    >>> found.rate, found.threshold
    (0.25, 0.6)
    """
    owner = "equal_error_rate"
    numbers, flags = as_pairs(owner, scores, same)
    require_draws(owner, resamples, level, seed)
    warn_if_reversed(owner, "scores", numbers, flags)
    rate, threshold = rate_and_threshold(numbers, flags)
    draws = pair_draws(owner, numbers, flags, counted_levels(numbers, flags), clusters, resamples, seed)
    nearest = np.abs(np.add(*draws.rates) - 1)[:, 1:-1].argmin(1)
    return EqualError(
        rate=rate,
        rate_interval=percentiles(drawn_rates(draws), level),
        threshold=as_threshold(threshold, scores),
        threshold_interval=percentiles(draws.levels[::-1][nearest], level),
    )


def rate_and_threshold(scores: Array, same: Array) -> tuple[float, float]:
    """The equal error rate, and the score at which both errors are nearest to each other."""
    thresholds, far, tar = rates_over(scores, same)
    return float(equal_error_of(far, tar)), float(thresholds[1 + np.abs(far + tar - 1)[1:].argmin()])


def drawn_rates(draws: PairDraws) -> Array:
    """[draws], the equal error rate of each."""
    return equal_error_of(*draws.rates)


def equal_error_of(far: Array, tar: Array) -> Array:
    """FAR where it is as large as 1 - TAR, both of which are [..., T], over falling thresholds from 0 to 1."""
    gap = far - (1 - tar)  # rises, from -1 to 1
    after = (gap >= 0).argmax(-1)[..., None]
    (gap_before, gap_after), (low, high) = (
        [np.take_along_axis(x, after - back, -1)[..., 0] for back in (1, 0)] for x in (gap, far)
    )
    return np.asarray(high - gap_after / (gap_after - gap_before) * (high - low))
