"""Quality of items from 0 to 100, by the quantiles of the confidence of a reference set."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from peaccel._utils.numbers import as_numbers
from peaccel.fits.records import LEVELS, Quality

__all__ = ["fit_quality"]


def fit_quality(confidence: ArrayLike) -> Quality:
    """Fit a scale of quality from 0 to 100 to the confidence of a reference set.

    The quality of an item is the percentage of the reference set that is at most as confident, rounded down. Numbers of
    different models, such as variances and concentrations, become comparable: 30 is surer than 30 % of the reference.

    Parameters
    ----------
    confidence
        [N] finite numbers of at least 100 items, higher = surer: `pe.confidence` of the items, or minus an uncertainty.

    Returns
    -------
    Quality
        ``q(confidence)`` gives integers from 0 to 100. ``pe.io.write_fit`` keeps it.

    Raises
    ------
    ValueError
        Fewer than 100 numbers, or numbers that are not finite.

    Notes
    -----
    Integers from 0 to 100, higher = better, are the convention of ISO/IEC 29794-1. Nothing says that a quality predicts
    errors: `peaccel.metrics.error_versus_discard` measures that.

    Examples
    --------
    >>> q = pe.fit_quality(np.linspace(0, 1, 1000))
    >>> q([-1.0, 0.25, 0.999, 2.0]).tolist()
    [0, 25, 99, 100]
    """
    owner = "fit_quality"
    x = as_numbers(owner, "confidence", confidence, finite="the scale is of numbers")
    if len(x) < LEVELS:
        raise ValueError(f"{owner}: confidence has {len(x)} numbers, expected at least {LEVELS}")
    levels = np.arange(1, LEVELS + 1) / LEVELS
    return Quality(tuple(np.quantile(x, levels, method="inverted_cdf").tolist()))
