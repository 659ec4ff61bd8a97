"""The points of a reliability plot, by which one sees whether probabilities are calibrated."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from peaccel._utils.arrays import Numpy
from peaccel._utils.numbers import as_flags, as_numbers

__all__ = ["ReliabilityCurve", "reliability_curve"]


class ReliabilityCurve(NamedTuple):
    """The points of a reliability plot.

    Attributes
    ----------
    predicted
        [B]: the mean probability in each bin.
    observed
        [B]: the share of same pairs in it.
    count
        [B]: how many pairs are in it.

    Examples
    --------
    >>> curve = pe.reliability_curve([0.1, 0.2, 0.8, 0.9], labels=[0, 1, 1, 1], bins=2)
    >>> [(round(p, 2), round(o, 2), n) for p, o, n in zip(*(x.tolist() for x in curve))]
    [(0.15, 0.5, 2), (0.85, 1.0, 2)]
    """

    predicted: Numpy
    observed: Numpy
    count: Numpy  # type: ignore[assignment]  # tuples have a method of this name


def reliability_curve(probabilities: ArrayLike, labels: ArrayLike, bins: int = 10) -> ReliabilityCurve:
    """The points of a reliability plot: what was predicted against what was observed, in bins of as many pairs each.

    Parameters
    ----------
    probabilities
        [P], of pairs to which they were not fitted.
    labels
        [P] booleans (or 0 and 1): whether a pair is of one identity.
    bins
        At least 1. Pairs of one probability are in one bin, so that there may be fewer.

    Returns
    -------
    ReliabilityCurve
        On the diagonal, observed = predicted, where probabilities are calibrated; an observed share has a standard
        error of sqrt(observed (1 - observed) / count), more where pairs share items.

    Raises
    ------
    ValueError
        Wrong shapes or dtypes, probabilities outside [0, 1], no pair, bins below 1.

    Examples
    --------
    >>> predicted, observed, count = pe.reliability_curve([0.1, 0.2, 0.8, 0.9], labels=[0, 0, 0, 1], bins=2)
    >>> predicted.round(2).tolist(), observed.tolist(), count.tolist()
    ([0.15, 0.85], [0.0, 0.5], [2, 2])
    """
    owner = "reliability_curve"
    p = as_numbers(owner, "probabilities", probabilities)
    same = as_flags(owner, "labels", labels, (len(p),))
    if not (p.min() >= 0 and p.max() <= 1):
        raise ValueError(f"{owner}: probabilities are {p.min():g} to {p.max():g}, expected 0 to 1")
    if isinstance(bins, bool) or not isinstance(bins, int) or bins < 1:
        raise ValueError(f"{owner}: bins is {bins!r}, expected an integer >= 1")
    edges = np.quantile(p, np.linspace(0, 1, bins + 1)[1:-1])
    number = np.searchsorted(np.unique(edges), p, side="left")
    count = np.bincount(number)
    full = count > 0
    sums = [np.bincount(number, x)[full] for x in (p, same)]
    return ReliabilityCurve(sums[0] / count[full], sums[1] / count[full], count[full])
