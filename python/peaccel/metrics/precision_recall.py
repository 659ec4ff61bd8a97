"""Retrieval of all pairs above one threshold, as of images by texts."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import ArrayLike

from peaccel._utils.arrays import on_host
from peaccel.metrics._numbers import as_flags, as_numbers, require_length

__all__ = ["precision_recall_auc", "precision_recall_auc_at_1"]


def precision_recall_auc(relevant_scores: ArrayLike, blocks: Iterable[ArrayLike]) -> float:
    """Area under the curve of precision and recall, one threshold for the pairs of all queries with all the gallery.

    sum_n (recall_n - recall_{n-1}) precision_n over falling thresholds, the average precision of all pairs: without
    interpolation, which would flatter. The paper does not say how it takes the area.

    Parameters
    ----------
    relevant_scores
        [P] of the pairs that belong together.
    blocks
        Arrays of any shapes that together hold the scores of all pairs, those that belong together among them, to the
        last bit as in `relevant_scores`; they are gone through once, so that no matrix of all pairs needs to be kept.
        A matrix is its rows.

    Returns
    -------
    In (0, 1]; the share of pairs that belong together where all scores are equal.

    Raises
    ------
    ValueError
        There is no relevant pair, a score is NaN, or the blocks lack a relevant pair.

    References
    ----------
    Kail et al., ScaleFace, 2022, section 4.2: Pr-Re AUC.

    Examples
    --------
    Two queries with two items each. The right pairs have the first and the third of the four scores, so that precision
    is 1 and 2/3 where they are found. Higher is better:

    >>> round(pe.metrics.precision_recall_auc([0.9, 0.4], blocks=[[0.9, 0.6], [0.1, 0.4]]), 2)
    0.83
    """
    owner = "precision_recall_auc"
    levels, found = np.unique(as_numbers(owner, "relevant_scores", relevant_scores, "(P,)"), return_counts=True)
    between = np.zeros(len(levels) + 1, np.int64)  # pairs between two levels, the first ones below all
    for block in blocks:
        scores = np.ravel(on_host(block)).astype(np.float64)
        if np.isnan(scores).any():
            raise ValueError(f"{owner}: {np.isnan(scores).sum()} scores of a block are NaN")
        between += np.bincount(np.searchsorted(levels, scores, side="right"), minlength=len(between))
    returned, right = between[:0:-1].cumsum(), found[::-1].cumsum()
    if (returned < right).any():
        raise ValueError(f"{owner}: blocks lack some of the {right[-1]} relevant scores, expected those of all pairs")
    return float((found[::-1] * (right / returned)).sum() / right[-1])


def precision_recall_auc_at_1(right: ArrayLike, top_scores: ArrayLike) -> float:
    """Area under the curve of precision and recall where at most one item is returned for each query.

    Precision is the share of returned items that are right, recall the share of all queries that are answered rightly;
    the area is taken as in `precision_recall_auc`.

    Parameters
    ----------
    right
        [Q], 1 or True where the nearest item is of the query's class.
    top_scores
        [Q] of the nearest items.

    Returns
    -------
    In [0, Recall@1].

    Raises
    ------
    ValueError
        Lengths differ, there is no query, a score is NaN, or `right` has another number than 0 and 1.

    References
    ----------
    Kail et al., ScaleFace, 2022, section 4.2: Pr-Re AUC@1.

    Examples
    --------
    Half of the queries are answered rightly. The area is as much where the right answers score highest, and less where
    the wrong ones do:

    >>> pe.metrics.precision_recall_auc_at_1([1, 1, 0, 0], top_scores=[0.9, 0.8, 0.3, 0.2])
    0.5
    >>> round(pe.metrics.precision_recall_auc_at_1([0, 0, 1, 1], top_scores=[0.9, 0.8, 0.3, 0.2]), 2)
    0.21
    """
    owner = "precision_recall_auc_at_1"
    flags, scores = as_flags(owner, "right", right), as_numbers(owner, "top_scores", top_scores)
    require_length(owner, "top_scores", scores, "right", flags)
    return precision_recall_auc(scores[flags], [scores]) * float(flags.mean()) if flags.any() else 0.0
