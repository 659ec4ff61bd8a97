"""Confidences that need no training, and that a learned one must beat; whether one follows the quality of an item.

All are higher = more confident.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from peaccel._utils.arrays import quiet
from peaccel._utils.numbers import array_of, as_numbers, require_length
from peaccel._utils.seeds import SEEDS, as_integer

__all__ = [
    "class_probability_confidence",
    "cropped_less_confident",
    "margin_confidence",
    "norm_confidence",
    "random_confidence",
    "spearman",
    "spread_confidence",
    "top_score_confidence",
]

Array = NDArray[np.float64]


@quiet
def norm_confidence(embeddings: ArrayLike) -> Array:
    """Length of each embedding before it is normalised.

    Parameters
    ----------
    embeddings
        [N, D], not of unit length.

    Returns
    -------
    [N]

    Raises
    ------
    ValueError
        There is no embedding, one is not finite, or all have unit length to 1e-3, so that only rounding tells them
        apart.

    Examples
    --------
    The first embedding is the longer, more confident one:

    >>> pe.metrics.norm_confidence([[3.0, 4.0], [0.0, 2.0]]).tolist()
    [5.0, 2.0]
    """
    x = as_numbers("norm_confidence", "embeddings", embeddings, "(N, D)", finite="so is their length")
    norms = np.linalg.norm(x, axis=1)
    if np.all(np.abs(norms - 1) < 1e-3):
        raise ValueError("norm_confidence: embeddings have unit length, expected them as they were before")
    return np.asarray(norms)


@quiet
def class_probability_confidence(logits: ArrayLike) -> Array:
    """Largest class probability, max softmax(logits).

    Parameters
    ----------
    logits
        [N, C] of a classifier of the training classes, with its scale.

    Returns
    -------
    [N] in [1/C, 1]; equal to 1 where all others are less by a factor of 1e16.

    Raises
    ------
    ValueError
        There is no row, or a logit is not finite.

    Examples
    --------
    Two classes that are equally likely, and one that is three times as likely as the other:

    >>> pe.metrics.class_probability_confidence([[0.0, 0.0], [np.log(3), 0.0]]).round(2).tolist()
    [0.5, 0.75]
    """
    x = as_numbers(
        "class_probability_confidence", "logits", logits, "(N, C)", finite="probabilities are made of differences"
    )
    return np.asarray(1 / np.exp(x - x.max(1, keepdims=True)).sum(1))


def top_score_confidence(scores: ArrayLike) -> Array:
    """Score of the nearest item.

    Parameters
    ----------
    scores
        [Q, K], best first; of items ranked among themselves, with `without_self` removed.

    Returns
    -------
    [Q]

    Raises
    ------
    ValueError
        There is no score, one of the first column is NaN or -inf, or one is less than the next.

    Examples
    --------
    The first query is surer, since its nearest item is nearer:

    >>> pe.metrics.top_score_confidence([[0.9, 0.8], [0.6, 0.1]]).tolist()
    [0.9, 0.6]
    """
    return _best("top_score_confidence", scores, 1)[:, 0]


def margin_confidence(scores: ArrayLike) -> Array:
    """Score of the nearest item minus that of the second.

    Parameters
    ----------
    scores
        [Q, K], K > 1, best first; of items ranked among themselves, with `without_self` removed.

    Returns
    -------
    [Q], at least 0; infinite where the nearest item alone is an exact copy, whose score is inf.

    Raises
    ------
    ValueError
        There are less than two columns, a score of the first two is NaN or -inf, or one is less than the next.

    Examples
    --------
    The second query is surer: no other item is nearly as near as its nearest.

    >>> pe.metrics.margin_confidence([[0.9, 0.8], [0.6, 0.1]]).round(2).tolist()
    [0.1, 0.5]
    """
    best = _best("margin_confidence", scores, 2)
    with np.errstate(invalid="ignore"):
        return np.where(best[:, 0] == best[:, 1], 0, best[:, 0] - best[:, 1])


@quiet
def spread_confidence(scores: ArrayLike) -> Array:
    """Standard deviation of the scores of the items that a query is returned.

    Parameters
    ----------
    scores
        [Q, K].

    Returns
    -------
    [Q], at least 0.

    Raises
    ------
    ValueError
        There is no score, or one is not finite.

    Examples
    --------
    The second query is less sure, since both of its items score the same:

    >>> pe.metrics.spread_confidence([[0.75, 0.25], [0.5, 0.5]]).tolist()
    [0.25, 0.0]
    """
    return np.asarray(
        as_numbers("spread_confidence", "scores", scores, "(Q, K)", finite="so is their deviation").std(1)
    )


def random_confidence(count: int, seed: int = 0) -> Array:
    """Confidences that know nothing.

    Parameters
    ----------
    count
        N.
    seed
        Seed of the numbers.

    Returns
    -------
    [N] uniform in [0, 1).

    Examples
    --------
    It tells right answers from wrong ones no better than a coin; any other confidence should:

    >>> confidence = pe.metrics.random_confidence(10000)
    >>> round(pe.metrics.r_auroc([1, 0] * 5000, confidence), 2)
    0.5
    """
    return np.random.default_rng(as_integer("random_confidence", "seed", seed, *SEEDS)).random(count)


def _best(owner: str, scores: ArrayLike, columns: int) -> Array:
    """The first columns of scores, which must be sorted, highest first."""
    first = array_of(owner, "scores", scores, "(Q, K)")[:, :columns]
    x = as_numbers(owner, "scores", first, "(Q, K)", above="such a score is of no item")
    if x.shape[1] < columns:
        raise ValueError(f"{owner}: scores has {x.shape[1]} columns, expected at least {columns}")
    if columns > 1 and (x[:, 1] > x[:, 0]).any():
        raise ValueError(f"{owner}: scores of query {(x[:, 1] > x[:, 0]).argmax()} rise, expected the best first")
    return x


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
    """Share of items whose crop has less confidence than the whole: cropped has bigger uncertainty.

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
