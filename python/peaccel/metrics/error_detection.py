"""Whether confidence tells which queries were answered wrongly."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from peaccel.metrics._numbers import as_classes, as_flags, as_numbers, require_length
from peaccel.metrics.verification import accuracy, auroc

__all__ = ["ceda", "r_auroc", "truncated_rows"]


def ceda(right: ArrayLike, confidence: ArrayLike, threshold: float | None = None) -> float:
    """Confidence-based error detection accuracy: share of queries of which it is told whether they were answered.

    A query is said to be answered where its confidence is at least the threshold.

    Parameters
    ----------
    right
        [Q], 1 or True where the nearest item is of the query's class.
    confidence
        [Q], higher = more confident, finite.
    threshold
        None = the best for these very queries, as published: then never less than Recall@1, nor than 1 minus it, even
        if confidence says nothing. `best_threshold(confidence, right)` of a held-out split makes a fair one.

    Returns
    -------
    In [0, 1].

    Raises
    ------
    ValueError
        Lengths differ, there is no query, a confidence is not finite, `right` has another number than 0 and 1, or the
        threshold is NaN.

    References
    ----------
    Karpukhin et al., Probabilistic Embeddings Revisited, 2022, section 5.5, table 7, and table 6 of `truncated_rows`.

    Examples
    --------
    Confidence at least 0.9 tells three of four queries rightly. Higher is better:

    >>> right, confidence = [1, 1, 0, 0], [0.9, 0.6, 0.7, 0.1]
    >>> pe.metrics.ceda(right, confidence)
    0.75

    A threshold from elsewhere takes the second for wrong and the third for right:

    >>> pe.metrics.ceda(right, confidence, threshold=0.65)
    0.5
    """
    flags, numbers = as_flags("ceda", "right", right), as_numbers("ceda", "confidence", confidence, finite=True)
    require_length("ceda", "confidence", numbers, "right", flags)
    return accuracy("ceda", numbers, flags, threshold)


def r_auroc(right: ArrayLike, confidence: ArrayLike) -> float:
    """Probability that a query that was answered has more confidence than one that was not, half where it is equal.

    Parameters
    ----------
    right
        [Q], 1 or True where the nearest item is of the query's class.
    confidence
        [Q], higher = more confident.

    Returns
    -------
    In [0, 1]; 1/2 where all confidences are equal; NaN where all queries or none were answered.

    Raises
    ------
    ValueError
        Lengths differ, there is no query, a confidence is NaN, or `right` has another number than 0 and 1.

    References
    ----------
    Kirchhof et al., URL: A Representation Learning Benchmark for Transferable Uncertainty Estimates, NeurIPS 2023.

    Examples
    --------
    Of the four pairs of an answered query and another, only 0.6 and 0.7 are in the wrong order. Higher is better:

    >>> pe.metrics.r_auroc(right=[1, 1, 0, 0], confidence=[0.9, 0.6, 0.7, 0.1])
    0.75
    """
    flags, numbers = as_flags("r_auroc", "right", right), as_numbers("r_auroc", "confidence", confidence)
    require_length("r_auroc", "confidence", numbers, "right", flags)
    return auroc(numbers, flags) if flags.any() and not flags.all() else float("nan")


def truncated_rows(labels: ArrayLike, items: int, seed: int = 0) -> NDArray[np.int64]:
    """Rows of whole classes drawn at random, so many that the next one would make more than `items` rows.

    Recall@1 and error detection grow easier with fewer items, so that a training part is cut to the size of the test
    part before the two are compared. The paper says no more than that; whole classes keep the sizes of the classes.

    Parameters
    ----------
    labels
        [N]: numbers or strings.
    items
        Most rows to keep.
    seed
        Seed of the order in which classes are drawn.

    Returns
    -------
    [n] rows in ascending order, n <= items.

    Raises
    ------
    ValueError
        The class that is drawn first has more than `items` rows.

    References
    ----------
    Karpukhin et al., Probabilistic Embeddings Revisited, 2022, section 5.5.

    Examples
    --------
    At most four rows are two whole classes of three:

    >>> pe.metrics.truncated_rows(["cat", "cat", "dog", "dog", "owl", "owl"], items=4).tolist()
    [0, 1, 4, 5]
    """
    classes = as_classes("truncated_rows", "labels", labels)
    _, of, sizes = np.unique(classes, return_inverse=True, return_counts=True)
    order = np.random.default_rng(seed).permutation(len(sizes))
    kept = order[sizes[order].cumsum() <= items]
    if not len(kept):
        raise ValueError(f"truncated_rows: items is {items}, expected at least the size of a class, {sizes[order][:1]}")
    return np.flatnonzero(np.isin(of, kept))
