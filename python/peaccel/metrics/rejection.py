"""Rejection: how a metric grows when the least confident queries are rejected, and whether errors are told by it.

`values` is [Q], a metric of each query, such as `hit_at_k` or `average_precision_at_r` of queries that can be answered,
higher = better; `confidence` is [Q], higher = more confident, and only its order counts. Among equal confidences the
values count with their mean, which is what all orders of them give on average: a constant confidence has a flat curve.
All are arrays, lists, columns of tables or tensors on the CPU.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from peaccel._utils.numbers import (
    as_classes,
    as_flags,
    as_numbers,
    as_ranks,
    as_shares,
    require_length,
    require_probabilities,
)
from peaccel._utils.seeds import SEEDS, as_integer
from peaccel.metrics.verification import accuracy, auroc

__all__ = ["ceda", "r_auroc", "rejection_area", "rejection_curve", "truncated_rows"]

Array = NDArray[Any]
Kind: TypeAlias = Literal["aurc", "augrc", "ausc", "nauc"]


def rejection_curve(values: ArrayLike, confidence: ArrayLike, shares: ArrayLike) -> NDArray[np.float64]:
    """Mean of a per-query metric over the queries that are kept.

    Parameters
    ----------
    values, confidence
        As the module's docstring says.
    shares
        [S] shares of queries to reject, least confident first, in [0, 1).

    Returns
    -------
    [S] means over the first ceil(Q (1 - share)) queries, the most confident ones.

    Raises
    ------
    ValueError
        Shapes disagree, there is no query or no share, something is NaN or no number, or a share lies outside [0, 1).

    References
    ----------
    Karpukhin et al., Probabilistic Embeddings Revisited, 2022: filter-out curve, with the gallery left whole.

    Examples
    --------
    The two queries with value 1 are the most confident ones, so that the mean grows as others are rejected:

    >>> curve = pe.metrics.rejection_curve([1, 0, 1, 0], confidence=[0.9, 0.1, 0.8, 0.3], shares=[0, 0.25, 0.5])
    >>> curve.round(2).tolist()
    [0.5, 0.67, 1.0]
    """
    owner = "rejection_curve"
    ordered = _by_confidence(owner, values, confidence)
    shares = as_shares(owner, "shares", shares)
    # rounded, since 10 * (1 - 0.9) is slightly above 1 and must keep one query, not two
    kept = np.ceil(np.round(len(ordered) * (1 - shares), 9)).astype(np.int64)
    return np.asarray(ordered.cumsum()[kept - 1] / kept)


def rejection_area(values: ArrayLike, confidence: ArrayLike, kind: Kind = "aurc") -> float:
    """Area under a curve of rejection, by one of four definitions.

    Parameters
    ----------
    values
        As the module's docstring says; in [0, 1] for "aurc" and "augrc".
    confidence
        As the module's docstring says.
    kind
        "aurc", the error versus rejection curve (ERC), or risk-coverage curve: the mean over n of the error of the n
        most confident queries. "augrc", the generalised risk-coverage curve: the mean over n of their errors as a share
        of all queries, by the trapezoidal rule from n = 0. "ausc", sparsification: the mean of `rejection_curve` over
        rejected shares of 0, 0.01, ..., 0.98, by the trapezoidal rule (the published code divides by 99 and not by 98
        steps, by which a perfect confidence has 98/99). "nauc", abstention as retrieval benchmarks (MTEB) report it:
        the mean of `rejection_curve` over 0, 0.1, ..., 0.9 by the trapezoidal rule, shares rounded to queries, halves
        to even; less the mean value of all queries, over the same difference for the best order.

    Returns
    -------
    "aurc": in [0, 1], lower = better, 1 minus the mean value where all confidences are equal; the least that these
    values allow is ``rejection_area(values, values)``, and the difference to it is their excess (E-AURC). "augrc": in
    [0, 1/2], lower = better, half the error where confidence says nothing and half its square where it is perfect.
    "ausc": higher = better, the mean value where all confidences are equal. "nauc": at most 1, which is the best order;
    0 where confidence says nothing; NaN where all values are equal.

    Raises
    ------
    ValueError
        Lengths differ, there is no query, something is NaN, a value lies outside [0, 1] where it must not, or an
        unknown kind.

    Notes
    -----
    MTEB's confidences of a query's results are `top_score_confidence` ("max"), `margin_confidence` ("diff1") and
    `spread_confidence` ("std"); it takes queries of equal confidence in the order of the rows.

    References
    ----------
    "aurc": Geifman et al., Bias-Reduced Uncertainty Estimation for Deep Neural Classifiers, ICLR 2019; the published
    code of Karpukhin et al., 2022. "augrc": Traub et al., Overcoming Common Flaws in the Evaluation of Selective
    Classification Systems, NeurIPS 2024. "ausc": Warburg et al., Bayesian Metric Learning for Uncertainty
    Quantification in Image Retrieval, NeurIPS 2023. "nauc": Gisserot-Boukhlef et al., Towards Trustworthy Reranking: A
    Simple yet Effective Abstention Mechanism, TMLR 2024.

    Examples
    --------
    The more confident query has no error, both together have 0.5. Lower is better, and the wrong order is worse:

    >>> pe.metrics.rejection_area([1, 0], confidence=[0.9, 0.1]), pe.metrics.rejection_area([1, 0], [0.1, 0.9])
    (0.25, 0.75)

    The best order has 1, equal confidences have 0, and the wrong order is below 0:

    >>> orders = ([0.9, 0.1], [0.5, 0.5], [0.1, 0.9])
    >>> [round(pe.metrics.rejection_area([1, 0], confidence, kind="nauc"), 2) for confidence in orders]
    [1.0, 0.0, -1.0]
    """
    if kind not in AREAS:
        raise ValueError(f"rejection_area: kind is {kind!r}, expected one of {', '.join(AREAS)}")
    unit = kind in ("aurc", "augrc")
    ordered, best = (_by_confidence("rejection_area", values, by, unit=unit) for by in (confidence, values))
    return AREAS[kind](ordered, best)


# Of the values in the order of confidence, and in the best order.


def _aurc(ordered: Array, best: Array) -> float:
    errors = 1 - ordered
    return float((errors.cumsum() / np.arange(1, len(errors) + 1)).mean())


def _augrc(ordered: Array, best: Array) -> float:
    risk = np.concatenate([[0], (1 - ordered).cumsum()])
    return _trapezoids(risk) / len(ordered)


def _ausc(ordered: Array, best: Array) -> float:
    return _trapezoids(rejection_curve(ordered, -np.arange(len(ordered)), np.arange(99) / 100))


def _nauc(ordered: Array, best: Array) -> float:
    count = len(ordered)
    kept = np.array([count - min(round(tenths / 10 * count), count - 1) for tenths in range(10)])
    if best[0] == best[-1]:
        return np.nan
    flat, found, most = best.mean(), *(_trapezoids(x.cumsum()[kept - 1] / kept) for x in (ordered, best))
    return float((found - flat) / (most - flat))


def _trapezoids(curve: Array) -> float:
    """The mean of a curve at places of equal distance, by the trapezoidal rule."""
    return float((curve[1:] + curve[:-1]).mean() / 2)


AREAS: dict[str, Callable[[Array, Array], float]] = {"aurc": _aurc, "augrc": _augrc, "ausc": _ausc, "nauc": _nauc}


def _by_confidence(owner: str, values: ArrayLike, confidence: ArrayLike, *, unit: bool = False) -> NDArray[np.float64]:
    """The values in the order of confidence, highest first."""
    numbers = as_numbers(owner, "values", values, "(Q,)")
    order = as_numbers(owner, "confidence", confidence, "(Q,)")
    require_length(owner, "confidence", order, "values", numbers)
    if unit:
        require_probabilities(owner, "values", numbers)
    return _tie_means(numbers, order)


def _tie_means(values: Array, confidence: Array) -> NDArray[np.float64]:
    """The values in the order of confidence, highest first, each replaced by the mean of those of equal confidence."""
    _, place, count = np.unique(-confidence, return_inverse=True, return_counts=True)
    return np.repeat(np.bincount(place, weights=values) / count, count)


def ceda(right: ArrayLike, confidence: ArrayLike, threshold: float | None = None) -> float:
    """Confidence-based error detection accuracy: share of queries whose answer is rightly called right or wrong.

    A query is said to be answered where its confidence is at least the threshold.

    Parameters
    ----------
    right
        [Q], 1 or True where the nearest item is of the query's class.
    confidence
        [Q], higher = more confident.
    threshold
        None = the best for these very queries, as published: then never less than Recall@1, nor than 1 minus it, even
        if confidence says nothing. `best_threshold(confidence, right)` of a held-out split makes a fair one.

    Returns
    -------
    In [0, 1].

    Raises
    ------
    ValueError
        Lengths differ, there is no query, a confidence is NaN, `right` has another number than 0 and 1, or the
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
    flags, numbers = as_flags("ceda", "right", right), as_ranks("ceda", "confidence", confidence)
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
    order = np.random.default_rng(as_integer("truncated_rows", "seed", seed, *SEEDS)).permutation(len(sizes))
    kept = order[sizes[order].cumsum() <= items]
    if not len(kept):
        raise ValueError(f"truncated_rows: items is {items}, expected at least the size of a class, {sizes[order][:1]}")
    return np.flatnonzero(np.isin(of, kept))
