"""Whether confidence follows the quality of an item."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from peaccel.metrics._numbers import as_numbers, require_length

__all__ = ["cropped_less_confident", "spearman"]


def spearman(quality: ArrayLike, confidence: ArrayLike) -> float:
    """Spearman's rank correlation of quality and confidence, equals with their mean rank.

    Parameters
    ----------
    quality
        [N], higher = better, such as the share of an image that a crop has left.
    confidence
        [N], higher = more confident.

    Returns
    -------
    In [-1, 1]; NaN where all qualities or all confidences are equal.

    Raises
    ------
    ValueError
        Lengths differ, there is no item, or something is NaN.

    References
    ----------
    Karpukhin et al., Probabilistic Embeddings Revisited, 2022, table 8.

    Examples
    --------
    1 where confidence has the order of quality, whatever its numbers are, and -1 where it has the opposite one:

    >>> round(pe.metrics.spearman(quality=[0.2, 0.5, 1.0], confidence=[10, 20, 900]), 2)
    1.0
    >>> round(pe.metrics.spearman(quality=[0.2, 0.5, 1.0], confidence=[900, 20, 10]), 2)
    -1.0
    """
    from scipy.stats import spearmanr

    x, y = as_numbers("spearman", "quality", quality), as_numbers("spearman", "confidence", confidence)
    require_length("spearman", "confidence", y, "quality", x)
    if x.min() == x.max() or y.min() == y.max():
        return float("nan")
    return float(spearmanr(x, y).statistic)


def cropped_less_confident(whole: ArrayLike, cropped: ArrayLike) -> float:
    """Share of items of which a crop has less confidence than the whole: cropped has bigger uncertainty.

    Compared within each item, and so not by what else the items differ in, as `spearman` is.

    Parameters
    ----------
    whole, cropped
        [N] confidences, higher = more confident; minus an uncertainty will do.

    Returns
    -------
    In [0, 1], items of equal confidences counting half (the published code counts them as 0).

    Raises
    ------
    ValueError
        Lengths differ, there is no item, or a confidence is NaN.

    References
    ----------
    Kirchhof et al., URL: A Representation Learning Benchmark for Transferable Uncertainty Estimates, NeurIPS 2023.

    Examples
    --------
    Two crops are less confident, one is as confident and one is more so. Higher is better:

    >>> pe.metrics.cropped_less_confident(whole=[0.9, 0.8, 0.7, 0.6], cropped=[0.5, 0.6, 0.7, 0.9])
    0.625
    """
    owner = "cropped_less_confident"
    x, y = as_numbers(owner, "whole", whole), as_numbers(owner, "cropped", cropped)
    require_length(owner, "cropped", y, "whole", x)
    return float((np.mean(y < x) + np.mean(y <= x)) / 2)
