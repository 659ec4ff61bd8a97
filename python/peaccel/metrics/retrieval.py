"""Retrieval metrics for queries ranked against a gallery they are no part of.

Queries of a class that the gallery lacks cannot be answered and are left out of every mean.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Labels = NDArray[Any]


def relevance(ids: NDArray[np.int64], query_labels: Labels, gallery_labels: Labels) -> NDArray[np.bool_]:
    """Say which of the ranked gallery items are of the query's class.

    Parameters
    ----------
    ids
        [Q, K] gallery rows, best first; -1 = none, which is never relevant.
    query_labels
        [Q].
    gallery_labels
        [G].

    Returns
    -------
    [Q, K] bool.

    Raises
    ------
    ValueError
        Shapes disagree or an id lies outside the gallery.
    """
    if ids.ndim != 2 or len(ids) != len(query_labels):
        raise ValueError(f"relevance: ids has shape {ids.shape}, expected ({len(query_labels)}, K) like query_labels")
    if ids.size and not -1 <= ids.min() <= ids.max() < len(gallery_labels):
        raise ValueError(f"relevance: ids span {ids.min()}..{ids.max()}, expected -1..{len(gallery_labels) - 1}")
    if not len(gallery_labels):
        return np.zeros(ids.shape, np.bool_)
    hit = gallery_labels[ids] == query_labels[:, None]
    return np.asarray(hit & (ids >= 0))


def recall_at_k(ids: NDArray[np.int64], query_labels: Labels, gallery_labels: Labels, k: int = 1) -> float:
    """Share of queries with at least one item of their class among the first k.

    Parameters
    ----------
    ids, query_labels, gallery_labels
        As for `relevance`.
    k
        At least 1, at most the columns of `ids`.

    Returns
    -------
    In [0, 1]; NaN if the gallery has the class of no query.

    Raises
    ------
    ValueError
        k is out of range, or as for `relevance`.
    """
    if not 1 <= k <= ids.shape[1]:
        raise ValueError(f"recall_at_k: k is {k}, expected 1..{ids.shape[1]}")
    hits = relevance(ids[:, :k], query_labels, gallery_labels).max(1)
    return _mean(hits[np.isin(query_labels, gallery_labels)])


def average_precision_at_r(ids: NDArray[np.int64], query_labels: Labels, gallery_labels: Labels) -> NDArray[np.float64]:
    """Average precision at R for each query, R being the size of its class in the gallery.

    (1/R) sum_{k<=R} rel_k precision@k

    Parameters
    ----------
    ids, query_labels, gallery_labels
        As for `relevance`; `ids` needs as many columns as the largest R.

    Returns
    -------
    [Q] in [0, 1]; NaN where R = 0.

    Raises
    ------
    ValueError
        `ids` is too narrow, or as for `relevance`.

    References
    ----------
    Musgrave et al., A Metric Learning Reality Check, ECCV 2020, section 3.2.
    """
    classes, sizes = np.unique(gallery_labels, return_counts=True)
    count = dict(zip(classes.tolist(), sizes.tolist(), strict=True))
    r = np.array([count.get(label, 0) for label in query_labels.tolist()], np.int64)
    if r.max(initial=0) > ids.shape[1]:
        raise ValueError(f"average_precision_at_r: ids has {ids.shape[1]} columns, expected at least R = {r.max()}")
    ranks = np.arange(1, ids.shape[1] + 1)
    hit = relevance(ids, query_labels, gallery_labels) & (ranks <= r[:, None])
    total = (hit * hit.cumsum(1) / ranks).sum(1)
    return np.asarray(np.divide(total, r, out=np.full(len(r), np.nan), where=r > 0))


def map_at_r(ids: NDArray[np.int64], query_labels: Labels, gallery_labels: Labels) -> float:
    """Mean over queries of `average_precision_at_r`.

    Parameters
    ----------
    ids, query_labels, gallery_labels
        As for `average_precision_at_r`.

    Returns
    -------
    In [0, 1]; NaN if the gallery has the class of no query.
    """
    values = average_precision_at_r(ids, query_labels, gallery_labels)
    return _mean(values[~np.isnan(values)])


def _mean(values: NDArray[Any]) -> float:
    return float(values.mean()) if len(values) else float("nan")
