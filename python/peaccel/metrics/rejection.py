"""Rejection curves: how a metric grows when the least confident items are rejected.

`values` is [Q], a metric of each query, such as `hit_at_k` or `average_precision_at_r` of queries that can be answered,
higher = better; `confidence` is [Q], higher = more confident, and only its order counts. Among equal confidences the
values count with their mean, which is what all orders of them give on average: a constant confidence has a flat curve.
All are arrays, lists, columns of tables or tensors on the CPU.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from peaccel.metrics._judged_ranking import as_ids, blocks
from peaccel.metrics._numbers import as_array, as_flags, as_numbers, as_shares, require_length, require_unit
from peaccel.metrics.retrieval import map_at_r

__all__ = [
    "ErrorDiscard",
    "augrc",
    "ausc",
    "e_aurc",
    "erc",
    "error_discard",
    "filter_out_curve",
    "nauc",
    "rejection_curve",
]

Array = NDArray[Any]


@dataclass(frozen=True, eq=False)
class ErrorDiscard:
    """Share of errors among comparisons of which those of least quality are discarded.

    Examples
    --------
    The only error has the greatest quality, so that the share of errors grows with what is discarded, and the area is
    above the best one:

    >>> found = pe.metrics.error_discard([0, 0, 0, 1], quality=[0.1, 0.2, 0.3, 0.9], limit=0.5)
    >>> found.shares.tolist(), found.errors.round(2).tolist()
    ([0.0, 0.25, 0.5], [0.25, 0.33, 0.5])
    >>> round(found.partial_area, 2), round(found.best_partial_area, 2)
    (0.15, 0.06)
    """

    shares: NDArray[np.float64]
    """[S], the shares that are discarded: 0, 1/N, 2/N and so on up to the limit."""
    errors: NDArray[np.float64]
    """[S], the share of errors among the comparisons that are left."""
    partial_area: float
    """Area under these steps, from 0 to the limit."""
    best_partial_area: float
    """The same area where errors are discarded first."""


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


def filter_out_curve(
    ids: ArrayLike,
    labels: ArrayLike,
    confidence: ArrayLike,
    shares: ArrayLike,
    metric: Callable[[Array, Array], float] = map_at_r,
) -> NDArray[np.float64]:
    """A metric of items ranked among themselves, of which the least confident are left out as queries and as gallery.

    Classes shrink and easy items stay: the curve may rise by what is left, not only by what confidence knows.
    `rejection_curve` leaves the gallery whole.

    Parameters
    ----------
    ids
        [N, K] rows of the N items, best first, own rows among them; -1 = none. Each row must name as many kept items as
        the metric looks at; all N are always enough.
    labels
        [N]: numbers or strings.
    confidence
        [N], higher = more confident.
    shares
        [S] shares of items to leave out, in [0, 1): kept is whose confidence is at least the one at place
        round((N - 1) share) from below, so that equals stay together, and all do where all are equal.
    metric
        Takes ids and labels of the items that are kept, as `recall_at_k` and `map_at_r` do.

    Returns
    -------
    [S]; NaN where the metric has no query that can be answered.

    Raises
    ------
    ValueError
        Shapes disagree, something is NaN, a share lies outside [0, 1), an id is no row, or the metric finds too few
        columns: those that every row of `ids` has left.

    References
    ----------
    Karpukhin et al., Probabilistic Embeddings Revisited, 2022, figure 4.

    Examples
    --------
    The nearest item of item 2 is item 3, of another class and not confident. Without it all are answered rightly:

    >>> ids, labels = [[0, 1, 2, 3], [1, 0, 2, 3], [2, 3, 0, 1], [3, 2, 0, 1]], ["cat", "cat", "cat", "dog"]
    >>> confidence = [0.9, 0.8, 0.7, 0.1]
    >>> pe.metrics.filter_out_curve(ids, labels, confidence, [0, 0.25], pe.metrics.recall_at_k).round(2).tolist()
    [0.67, 1.0]
    """
    owner = "filter_out_curve"
    found, numbers = as_ids(owner, ids), as_numbers(owner, "confidence", confidence)
    classes, shares = as_array(owner, "labels", labels, "(N,)"), as_shares(owner, "shares", shares)
    require_length(owner, "confidence", numbers, "labels", classes)
    require_length(owner, "labels", classes, "ids", found)
    if found.size and not -1 <= found.min() <= found.max() < len(found):
        raise ValueError(f"{owner}: ids span {found.min()}..{found.max()}, expected -1..{len(found) - 1}")
    levels = np.sort(numbers)[np.round((len(numbers) - 1) * shares).astype(np.int64)]
    kept = [numbers >= level for level in levels]
    return np.array([metric(_among(found, rows), classes[rows]) for rows in kept])


def erc(values: ArrayLike, confidence: ArrayLike) -> float:
    """Area under the error versus rejection curve: mean over n of the error of the n most confident queries.

    (1/Q) sum_{n<=Q} (1/n) sum_{i<=n} (1 - value_i), values in order of confidence

    Parameters
    ----------
    values
        As the module's docstring says, in [0, 1].
    confidence
        As the module's docstring says.

    Returns
    -------
    In [0, 1], lower = better; 1 minus the mean value where all confidences are equal.

    Raises
    ------
    ValueError
        Lengths differ, there is no query, something is NaN, or a value lies outside [0, 1].

    References
    ----------
    The published code of Karpukhin et al., 2022; the area under the risk-coverage curve (AURC) of Geifman et al., 2019.

    Examples
    --------
    The more confident query has no error, both together have 0.5. Lower is better, and the wrong order is worse:

    >>> pe.metrics.erc([1, 0], confidence=[0.9, 0.1])
    0.25
    >>> pe.metrics.erc([1, 0], confidence=[0.1, 0.9])
    0.75
    """
    errors = 1 - _by_confidence("erc", values, confidence, unit=True)
    return float((errors.cumsum() / np.arange(1, len(errors) + 1)).mean())


def e_aurc(values: ArrayLike, confidence: ArrayLike) -> float:
    """Excess of the area under the risk-coverage curve over that of the best order, by the values themselves.

    Parameters
    ----------
    values
        As the module's docstring says, in [0, 1].
    confidence
        As the module's docstring says.

    Returns
    -------
    `erc` less the least that these values allow, lower = better: 0 where no query is surer than a better one.

    Raises
    ------
    ValueError
        As for `erc`.

    References
    ----------
    Geifman, Uziel & El-Yaniv, Bias-Reduced Uncertainty Estimation for Deep Neural Classifiers, ICLR 2019.

    Examples
    --------
    The best order has 0; the wrong one has an `erc` of 0.75 where 0.25 is possible:

    >>> pe.metrics.e_aurc([1, 0], confidence=[0.9, 0.1])
    0.0
    >>> pe.metrics.e_aurc([1, 0], confidence=[0.1, 0.9])
    0.5
    """
    area = erc(values, confidence)
    return area - erc(values, values)


def nauc(values: ArrayLike, confidence: ArrayLike) -> float:
    """Normalised area under the abstention curve, as retrieval benchmarks (MTEB) report it.

    The mean value of the queries that are kept where the least confident tenth, two tenths, ..., nine tenths are not
    answered (rounded to queries, halves to even), by the trapezoidal rule; less that of all queries, over the same for
    the best order, which is that of the values.

    Parameters
    ----------
    values, confidence
        As the module's docstring says. MTEB's confidences of a query's results are `top_score_confidence` ("max"),
        `margin_confidence` ("diff1") and `spread_confidence` ("std").

    Returns
    -------
    At most 1, which is the best order; 0 where confidence says nothing; NaN where all values are equal.

    Raises
    ------
    ValueError
        Lengths differ, there is no query, or something is NaN.

    Notes
    -----
    Queries of equal confidence count with their mean value; MTEB takes them in the order of the rows.

    References
    ----------
    Gisserot-Boukhlef et al., Towards Trustworthy Reranking: A Simple yet Effective Abstention Mechanism, TMLR 2024.

    Examples
    --------
    The best order has 1, equal confidences have 0, and the wrong order is below 0:

    >>> [round(pe.metrics.nauc([1, 0], confidence), 2) for confidence in ([0.9, 0.1], [0.5, 0.5], [0.1, 0.9])]
    [1.0, 0.0, -1.0]
    """
    ordered = _by_confidence("nauc", values, confidence)
    count = len(ordered)
    kept = [count - min(round(tenths / 10 * count), count - 1) for tenths in range(10)]

    def area(falling: Array) -> float:
        curve = falling.cumsum()[np.array(kept) - 1] / kept
        return float((curve[1:] + curve[:-1]).mean() / 2)

    best = np.sort(as_numbers("nauc", "values", values))[::-1]
    if best[0] == best[-1]:
        return np.nan
    flat = float(best.mean())
    return (area(ordered) - flat) / (area(best) - flat)


def ausc(values: ArrayLike, confidence: ArrayLike) -> float:
    """Area under the sparsification curve: mean of `rejection_curve` over rejected shares of 0 to 98 per cent.

    By the trapezoidal rule at 0, 0.01, ..., 0.98, divided by the width. (The published code takes 1/99 for the width of
    each of the 98 steps, by which what is perfect has 98/99.)

    Parameters
    ----------
    values, confidence
        As the module's docstring says.

    Returns
    -------
    The mean value where all confidences are equal.

    Raises
    ------
    ValueError
        Lengths differ, there is no query, or something is NaN.

    References
    ----------
    Warburg et al., Bayesian Metric Learning for Uncertainty Quantification in Image Retrieval, NeurIPS 2023.

    Examples
    --------
    The mean is 0.5 until half is rejected, and 1 from there on. Higher is better, and the wrong order is worse:

    >>> round(pe.metrics.ausc([1, 0], confidence=[0.9, 0.1]), 2)
    0.75
    >>> round(pe.metrics.ausc([1, 0], confidence=[0.1, 0.9]), 2)
    0.25
    """
    ordered = _by_confidence("ausc", values, confidence)
    curve = rejection_curve(ordered, -np.arange(len(ordered)), np.arange(99) / 100)
    return float((curve[1:] + curve[:-1]).mean() / 2)


def augrc(values: ArrayLike, confidence: ArrayLike) -> float:
    """Area under the generalised risk-coverage curve: average risk of an error that is not rejected.

    Integral over the share of accepted queries of the errors among them, as a share of all queries; half the error
    where confidence says nothing, half the squared error where it is perfect.

    Parameters
    ----------
    values
        As the module's docstring says, in [0, 1].
    confidence
        As the module's docstring says.

    Returns
    -------
    In [0, 1/2], lower = better.

    Raises
    ------
    ValueError
        As for `erc`.

    References
    ----------
    Traub et al., Overcoming Common Flaws in the Evaluation of Selective Classification Systems, NeurIPS 2024.

    Examples
    --------
    The error is 0.5: half its square where confidence is perfect, half of it where it says nothing. Lower is better:

    >>> pe.metrics.augrc([1, 0], confidence=[0.9, 0.1])
    0.125
    >>> pe.metrics.augrc([1, 0], confidence=[0.5, 0.5])
    0.25
    """
    risk = np.concatenate([[0], (1 - _by_confidence("augrc", values, confidence, unit=True)).cumsum()])
    return float((risk[1:] + risk[:-1]).mean() / 2 / (len(risk) - 1))


def error_discard(errors: ArrayLike, quality: ArrayLike, limit: float = 0.3) -> ErrorDiscard:
    """Error versus discard characteristic (EDC) and its partial area (pAUC).

    Parameters
    ----------
    errors
        [N], 1 or True where a comparison is wrong at a threshold that was set beforehand, such as a pair of one class
        (rejected: FNMR) that scores below it.
    quality
        [N] of the comparison, higher = better, such as the lower one of its two items.
    limit
        Share that is discarded at most, in (0, 1).

    Returns
    -------
    The curve and its areas.

    Raises
    ------
    ValueError
        Lengths differ, there is no comparison, a quality is NaN, `errors` has another number than 0 and 1, or the limit
        is out of range.

    References
    ----------
    Grother and Tabassi, Performance of Biometric Quality Measures, PAMI 2007; Schlett et al., Considerations on the
    Evaluation of Biometric Quality Assessment Algorithms, 2023.

    Examples
    --------
    One of four comparisons is wrong. It has the least quality, and no errors are left once it is discarded; lower is
    better:

    >>> found = pe.metrics.error_discard([1, 0, 0, 0], quality=[0.1, 0.7, 0.8, 0.9], limit=0.5)
    >>> found.errors.tolist()
    [0.25, 0.0, 0.0]
    >>> found.partial_area == found.best_partial_area
    True
    """
    flags, numbers = as_flags("error_discard", "errors", errors), as_numbers("error_discard", "quality", quality)
    require_length("error_discard", "quality", numbers, "errors", flags)
    if not 0 < limit < 1:
        raise ValueError(f"error_discard: limit is {limit}, expected within (0, 1)")
    discarded = np.arange(int(np.floor(round(len(flags) * limit, 9))) + 1)
    widths = np.diff(np.append(discarded / len(flags), limit))
    left = len(flags) - discarded
    among = _tie_means(flags.astype(np.float64), numbers).cumsum()[left - 1] / left
    best = np.maximum(flags.sum() - discarded, 0) / left
    return ErrorDiscard(discarded / len(flags), among, float(among @ widths), float(best @ widths))


def _by_confidence(owner: str, values: ArrayLike, confidence: ArrayLike, *, unit: bool = False) -> NDArray[np.float64]:
    """The values in the order of confidence, highest first."""
    numbers = as_numbers(owner, "values", values, "(Q,)")
    order = as_numbers(owner, "confidence", confidence, "(Q,)")
    require_length(owner, "confidence", order, "values", numbers)
    if unit:
        require_unit(owner, "values", numbers)
    return _tie_means(numbers, order)


def _tie_means(values: Array, confidence: Array) -> NDArray[np.float64]:
    """The values in the order of confidence, highest first, each replaced by the mean of those of equal confidence."""
    _, place, count = np.unique(-confidence, return_inverse=True, return_counts=True)
    return np.repeat(np.bincount(place, weights=values) / count, count)


def _among(ids: Array, kept: Array) -> Array:
    """Rankings of the items that are kept, with as many columns as each of them has."""
    row, names = np.cumsum(kept) - 1, ids[kept]
    count = np.concatenate([(kept[names[rows]] & (names[rows] >= 0)).sum(1) for rows in blocks(names)])
    among = np.empty((len(names), count.min()), np.int64)
    for rows in blocks(names):
        here = kept[names[rows]] & (names[rows] >= 0)
        among[rows] = row[names[rows][here & (here.cumsum(1) <= among.shape[1])]].reshape(-1, among.shape[1])
    return among
