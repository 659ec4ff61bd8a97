"""Student's t over seeds: intervals of a mean, tests of where it lies, and how many seeds they take."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

__all__ = ["LEVEL", "WhereMean", "distance_seen", "holm", "seeds_needed", "where_mean"]

LEVEL = 0.05
POWER = 0.8


@dataclass(frozen=True)
class WhereMean:
    """The mean of differences over seeds, and whether it lies in a range."""

    seeds: int
    value: float
    low: float
    """Ends of the 95 % interval of the mean."""
    high: float
    inside: float
    """p of the mean's lying outside of the range or on its bound: small where it lies inside."""
    beyond: float
    """p of the mean's lying in the range or on its bound: small where it lies beyond."""

    @property
    def deviation(self) -> float:
        """Standard deviation over seeds, where the interval has no other source of chance."""
        reach = float(stats.t.ppf(1 - LEVEL / 2, self.seeds - 1)) if self.seeds > 1 else np.nan
        return float(np.sqrt(self.seeds)) * (self.high - self.low) / 2 / reach


def where_mean(
    differences: Sequence[float], between: tuple[float, float], variance: float = 0.0, overlap: float = 0.0
) -> WhereMean:
    """Test by Student's t where the mean of differences lies, one of each seed.

    It lies inside a range, or beyond it, at 5 % where its whole 95 % interval does: a mean on a bound is said to lie
    inside in one of 40 cases, and beyond in another. Of one bound these are a two-sided test, of two the larger p of
    two one-sided tests, doubled.

    Parameters
    ----------
    differences
        One of each seed; at least two, else all but their mean is NaN.
    between
        The least and the greatest; -inf or inf where there is no bound.
    variance
        Of the mean, beside that over seeds: of what is the same for all of them, such as settings.
    overlap
        Test items for each training item, where seeds draw both from one pool and so are not independent; 0 where they
        are taken to be.

    References
    ----------
    Nadeau and Bengio, Inference for the Generalization Error, Machine Learning 2003, for the overlap.

    Schuirmann, A Comparison of the Two One-Sided Tests Procedure and the Power Approach for Assessing the Equivalence
    of Average Bioavailability, Journal of Pharmacokinetics and Biopharmaceutics 1987.
    """
    x = np.asarray(differences, np.float64)
    if len(x) < 2:
        return WhereMean(len(x), float(x.mean()) if len(x) else np.nan, *[np.nan] * 4)
    mean, error = float(x.mean()), float(np.sqrt(x.var(ddof=1) * (1 / len(x) + overlap) + variance))
    reach = float(stats.t.ppf(1 - LEVEL / 2, len(x) - 1)) * error
    bounds = [(bound, side) for bound, side in zip(between, (1, -1), strict=True) if np.isfinite(bound)]
    into = [_p(side * (mean - bound), error, len(x)) for bound, side in bounds]
    out = [_p(side * (bound - mean), error, len(x)) for bound, side in bounds]
    return WhereMean(len(x), mean, mean - reach, mean + reach, min(1.0, 2 * max(into)), min(1.0, 2 * min(out)))


def _p(distance: float, error: float, seeds: int) -> float:
    """One-sided p of a mean's lying so far on one side of a bound; 0 or 1 where no seed differs from another."""
    if error == 0:
        return float(distance <= 0)
    return float(stats.t.sf(distance / error, seeds - 1))


def holm(p: NDArray[np.float64]) -> NDArray[np.float64]:
    """Corrected p, [M].

    References
    ----------
    Holm, A Simple Sequentially Rejective Multiple Test Procedure, Scandinavian Journal of Statistics 1979.
    """
    order = np.argsort(p)
    stepped = np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1)) if len(p) else p
    corrected = np.empty_like(p)
    corrected[order] = np.minimum(stepped, 1)
    return corrected


def seeds_needed(distance: float, deviation: float, claims: int = 1, *, equivalence: bool = False) -> int:
    """How many seeds decide in four of five cases that a mean lies on its side of a bound.

    Parameters
    ----------
    distance
        Of the true mean from the bound; of a range that it is claimed to lie in the middle of (`equivalence`), half of
        the range's width.
    deviation
        Standard deviation over seeds of the difference, in the unit of the distance.
    claims
        How many claims are tested: the first step of Holm's correction is at 5 % over their number.
    equivalence
        By two one-sided tests, which both have to say so.
    """
    power = 1 - (1 - POWER) / 2 if equivalence else POWER
    most = 2
    while _power(most, distance / deviation, claims) < power:
        most *= 2
    few = most // 2  # decides too seldom, or is one
    while most - few > 1:
        middle = (few + most) // 2
        few, most = (few, middle) if _power(middle, distance / deviation, claims) >= power else (middle, most)
    return most


def distance_seen(seeds: int, deviation: float, claims: int = 1) -> float:
    """The distance of the true mean from a bound at which so many seeds decide in four of five cases.

    Parameters
    ----------
    seeds
        At least two.
    deviation, claims
        As of `seeds_needed`.
    """
    least, most = 0.0, 1.0
    while _power(seeds, most, claims) < POWER:
        most *= 2
    for _ in range(30):
        middle = (least + most) / 2
        least, most = (least, middle) if _power(seeds, middle, claims) >= POWER else (middle, most)
    return most * deviation


def _power(seeds: int, distance: float, claims: int) -> float:
    """How often so many seeds say on which side of a bound a mean lies, so many deviations from it."""
    far = float(stats.t.ppf(1 - LEVEL / claims / 2, seeds - 1))
    return float(stats.nct.sf(far, seeds - 1, np.sqrt(seeds) * distance))
