"""Means over queries, and counts of pairs, with intervals that know that what is of one class is alike."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from peaccel._utils.arrays import on_host, quiet
from peaccel.evaluation.formatting import percent
from peaccel.metrics._draws import ClusterDraws

__all__ = ["Interval", "Resamples", "TooFew", "mean_interval", "plainly", "simultaneous_intervals"]


@dataclass(frozen=True)
class Interval:
    """A mean, and the interval in which it may be on other classes of the same kind."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        """The mean in per cent, with its interval; "-" for NaN."""
        if np.isnan(self.value):
            return "-"
        value, low, high = map(percent, (self.value, self.low, self.high))
        return f"{value} [{low}, {high}]"


class TooFew(Interval):
    """One of answers of which too few are wrong, or right, for it to say anything."""

    def __str__(self) -> str:
        """Words in place of numbers."""
        return "too few"


def plainly(x: Interval) -> str:
    """The mean of a number that is no share, with its interval; "-" for NaN."""
    value, low, high = ("-" if np.isnan(y) else f"{y:.4g}" for y in (x.value, x.low, x.high))
    return "-" if np.isnan(x.value) else f"{value} [{low}, {high}]"


class Resamples(ClusterDraws):
    """Draws of whole clusters, and the intervals of means over them."""

    def mean(self, values: NDArray[np.float64], level: float = 0.95) -> Interval:
        """The mean of a number [N] of each item, none of them NaN."""
        value, drawn = self.drawn_means(values[:, None])
        return ends(float(value[0]), drawn[:, 0], level)

    def means(self, values: NDArray[np.float64], level: float = 0.95) -> tuple[Interval, ...]:
        """The means of M numbers [N, M] of each item, in intervals that hold all of them at once."""
        value, drawn = self.drawn_means(values)
        return at_once(value, drawn, np.abs(values).max(0), level)

    def drawn_means(self, values: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """[M], and of the draws [draws, M]."""
        drawn = self.sums(np.c_[values, np.ones(len(values))])
        return values.mean(0), drawn[:, :-1] / drawn[:, -1:]


def compared(gain: Interval, unit: str = "points") -> str:
    """In words whether a number is above another, by the interval of what it has more; larger is better."""
    if np.isnan(gain.value):
        return "not comparable, as all answers are right, or all are wrong"
    if isinstance(gain, TooFew):
        return "not comparable, as too few answers are wrong, or right"
    if np.isnan(gain.low):
        return f"not to be judged, as there is no interval ({gain} {unit})"
    if gain.high < 0:
        return f"worse by {Interval(-gain.value, -gain.high, -gain.low)} {unit}"
    return f"better by {gain} {unit}" if gain.low > 0 else f"not distinguishably better ({gain} {unit})"


def at_once(
    value: NDArray[np.float64], drawn: NDArray[np.float64], largest: ArrayLike = 1.0, level: float = 0.95
) -> tuple[Interval, ...]:
    """Intervals that hold M numbers [M] at once, by their draws [draws, M]; what varies by less than 1e-12 of the
    largest addend [M] is rounding. Numbers that no draw has are without ends, and so are all where no draw has all of
    the others; other draws in which one is not defined are left out."""
    half, known = np.full(len(value), np.nan), np.isfinite(drawn).any(0)
    held = drawn[np.isfinite(drawn[:, known]).all(1)][:, known]
    if held.size:
        spread = np.where(np.ptp(held, 0) > 1e-12 * np.broadcast_to(largest, value.shape)[known], held.std(0), 0)
        far = np.abs(held - value[known]) / np.where(spread > 0, spread, np.inf)
        half[known] = spread * np.quantile(far.max(1), level)
    return tuple(Interval(float(x), float(x - h), float(x + h)) for x, h in zip(value, half, strict=True))


def ends(value: float, drawn: NDArray[np.float64], level: float = 0.95) -> Interval:
    """The interval between percentiles of what the draws have, of those that have it; without ends where none has."""
    drawn = drawn[np.isfinite(drawn)]
    low, high = np.quantile(drawn, [(1 - level) / 2, (1 + level) / 2]) if len(drawn) else (np.nan, np.nan)
    return Interval(value, float(low), float(high))


@quiet
def mean_interval(values: ArrayLike, clusters: ArrayLike, *, level: float = 0.95, seed: int = 0) -> Interval:
    """Mean of a number of each query, with its interval by the bootstrap over classes.

    Whole classes are drawn, with replacement, as many as there are: queries of a class share a gallery, and often a
    fate, so that a bootstrap over queries would be too sure. The interval is between percentiles of 2000 draws. More
    than 4096 classes are drawn as 4096 groups of classes.

    Parameters
    ----------
    values
        [Q], NaN where a query has no value; for a gain the differences of two scores, query by query.
    clusters
        [Q], the class of each query, or whatever else is to be drawn as a whole.
    level
        Share of the draws between the ends, in (0, 1).
    seed
        Seed of the draws.

    Returns
    -------
    NaN all three where no query has a value; without ends where there is but one class.
    """
    numbers = on_host(values, "mean_interval", "values").astype(np.float64)
    known = ~np.isnan(numbers)
    if not known.any():
        return Interval(np.nan, np.nan, np.nan)
    return Resamples(on_host(clusters, "mean_interval", "clusters")[known], seed).mean(numbers[known], level)


@quiet
def simultaneous_intervals(
    values: ArrayLike, clusters: ArrayLike, *, level: float = 0.95, seed: int = 0
) -> tuple[Interval, ...]:
    """Means of several numbers of each query, with intervals that hold all of them at once.

    mean +- c s, where s is the standard deviation of a mean over resamples of whole classes, and c the quantile of the
    largest deviation, in units of its s, in each of them. Whichever mean is picked, because it is the best for
    instance, its interval keeps its level; means that go together cost little.

    Parameters
    ----------
    values
        [Q, M]; queries with a NaN are left out.
    clusters, level, seed
        As for `mean_interval`.

    Returns
    -------
    M intervals; NaN where no query has a value, without ends where there is but one class.

    References
    ----------
    Romano & Wolf, Exact and Approximate Stepdown Methods for Multiple Hypothesis Testing, JASA 2005 (the first step).
    """
    numbers = on_host(values, "simultaneous_intervals", "values").astype(np.float64)
    known = ~np.isnan(numbers).any(1)
    if not known.any():
        return tuple(Interval(np.nan, np.nan, np.nan) for _ in numbers.T)
    return Resamples(on_host(clusters, "simultaneous_intervals", "clusters")[known], seed).means(numbers[known], level)
