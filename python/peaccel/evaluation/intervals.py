"""Means over queries with intervals that know that queries of a class are alike."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from peaccel.evaluation.records import percent

__all__ = ["Interval", "mean_interval", "simultaneous_intervals"]

RESAMPLES = 2000
BLOCK = 1 << 24  # numbers that a block of resamples has at most


@dataclass(frozen=True)
class Interval:
    """A mean, and the interval in which it may be on other classes of the same kind."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        """The mean in per cent, with its interval; "-" for NaN."""
        value, low, high = map(percent, (self.value, self.low, self.high))
        return f"{value} [{low}, {high}]"


def mean_interval(values: ArrayLike, classes: ArrayLike, *, level: float = 0.95, seed: int = 0) -> Interval:
    """Mean of a number of each query, with its interval by the bootstrap over classes.

    Whole classes are drawn, with replacement, as many as there are: queries of a class share a gallery, and often a
    fate, so that a bootstrap over queries would be too sure. The interval is between percentiles of 2000 draws.

    Parameters
    ----------
    values
        [Q], NaN where a query has no value; for a gain the differences of two scores, query by query.
    classes
        [Q] of the queries, or whatever else is to be drawn as a whole.
    level
        Share of the draws between the ends, in (0, 1).
    seed
        Seed of the draws.

    Returns
    -------
    NaN all three where no query has a value; without ends where there is but one class.
    """
    value, means = _resampled(np.asarray(values, np.float64)[:, None], classes, seed)
    low, high = np.quantile(means[:, 0], [(1 - level) / 2, (1 + level) / 2]) if len(means) else (np.nan, np.nan)
    return Interval(float(value[0]), float(low), float(high))


def simultaneous_intervals(
    values: ArrayLike, classes: ArrayLike, *, level: float = 0.95, seed: int = 0
) -> tuple[Interval, ...]:
    """Means of several numbers of each query, with intervals that hold all of them at once.

    mean +- c s, where s is the standard deviation of a mean over resamples of whole classes, and c the quantile of the
    largest deviation, in units of its s, in each of them. Whichever mean is picked, because it is the best for
    instance, its interval keeps its level; means that go together cost little.

    Parameters
    ----------
    values
        [Q, M]; queries with a NaN are left out.
    classes, level, seed
        As for `mean_interval`.

    Returns
    -------
    M intervals; NaN where no query has a value, without ends where there is but one class.

    References
    ----------
    Romano & Wolf, Exact and Approximate Stepdown Methods for Multiple Hypothesis Testing, JASA 2005 (the first step).
    """
    value, means = _resampled(np.asarray(values, np.float64), classes, seed)
    if not len(means):
        return tuple(Interval(float(x), np.nan, np.nan) for x in value)
    spread = means.std(0)
    far = np.abs(means - value) / np.where(spread > 0, spread, np.inf)
    half = spread * np.quantile(far.max(1), level)
    return tuple(Interval(float(x), float(x - h), float(x + h)) for x, h in zip(value, half, strict=True))


def _resampled(
    values: NDArray[np.float64], classes: ArrayLike, seed: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Means [M] of the queries without NaN, and the same [draws, M] of classes drawn anew; of one class no draws."""
    known = ~np.isnan(values).any(1)
    if not known.any():
        return np.full(values.shape[1], np.nan), np.empty((0, values.shape[1]))
    _, cluster = np.unique(np.asarray(classes)[known], return_inverse=True)
    sizes = np.bincount(cluster)
    sums = np.stack([np.bincount(cluster, column) for column in values[known].T], 1)
    count = len(sizes)
    if count < 2:
        return sums[0] / sizes, np.empty((0, values.shape[1]))
    rng, means = np.random.default_rng(seed), np.empty((RESAMPLES, values.shape[1]))
    step = max(BLOCK // count, 1)
    for first in range(0, RESAMPLES, step):
        draws = min(step, RESAMPLES - first)
        drawn = rng.multinomial(count, np.full(count, 1 / count), draws).astype(np.float64)
        means[first : first + step] = (drawn @ sums) / (drawn @ sizes)[:, None]
    return sums.sum(0) / sizes.sum(), means
