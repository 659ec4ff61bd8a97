"""Means over queries with intervals that know that queries of a class are alike."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["Interval", "mean_interval"]

RESAMPLES = 2000
BLOCK = 1 << 24  # numbers of a block of resamples


@dataclass(frozen=True)
class Interval:
    """A mean and what it may be on other classes of the same kind."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        """The mean in per cent, with its interval."""
        return f"{100 * self.value:.1f} [{100 * self.low:.1f}, {100 * self.high:.1f}]"


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
        Of the draws.

    Returns
    -------
    NaN all three where no query has a value.
    """
    numbers = np.asarray(values, np.float64)
    known = ~np.isnan(numbers)
    if not known.any():
        return Interval(np.nan, np.nan, np.nan)
    _, cluster = np.unique(np.asarray(classes)[known], return_inverse=True)
    sums, sizes = np.bincount(cluster, numbers[known]), np.bincount(cluster)
    rng, means = np.random.default_rng(seed), np.empty(RESAMPLES)
    step = max(BLOCK // len(sums), 1)
    for first in range(0, RESAMPLES, step):
        drawn = _draws(rng, min(step, RESAMPLES - first), len(sums))
        means[first : first + step] = (drawn @ sums) / (drawn @ sizes)
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    return Interval(float(numbers[known].mean()), float(low), float(high))


def _draws(rng: np.random.Generator, count: int, clusters: int) -> NDArray[np.float64]:
    """[count, clusters], how often each is drawn."""
    return rng.multinomial(clusters, np.full(clusters, 1 / clusters), count).astype(np.float64)
