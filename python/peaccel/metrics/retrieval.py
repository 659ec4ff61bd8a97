"""Retrieval metrics for queries ranked against a gallery they are no part of.

Queries of a class that the gallery lacks cannot be answered and are left out of every mean. Ids and labels are arrays,
lists, columns of tables or tensors on the CPU.
"""

import operator
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from peaccel.metrics._arrays import as_array

Array = NDArray[Any]
BLOCK = 1 << 16  # ids that are looked up at a time, and stay in a core's cache


def relevance(ids: ArrayLike, query_labels: ArrayLike, gallery_labels: ArrayLike) -> NDArray[np.bool_]:
    """Say which of the ranked gallery items are of the query's class.

    Parameters
    ----------
    ids
        [Q, K] gallery rows, best first; -1 = none, which is never relevant.
    query_labels, gallery_labels
        [Q] and [G]: numbers or words.

    Returns
    -------
    [Q, K] bool.

    Raises
    ------
    ValueError
        Shapes disagree, ids are no integers, an id lies outside the gallery, or one side's labels are numbers and the
        other's words.
    """
    found, queries, gallery = _checked("relevance", ids, query_labels, gallery_labels)
    _require_rows("relevance", found, gallery)
    relevant = np.empty(found.shape, np.bool_)
    for rows, hit in _hits(found, queries, gallery):
        relevant[rows] = hit
    return relevant


def recall_at_k(ids: ArrayLike, query_labels: ArrayLike, gallery_labels: ArrayLike, k: int = 1) -> float:
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
    TypeError
        k is no integer.
    ValueError
        k is out of range, or as for `relevance`, of the first k ids.
    """
    found, queries, gallery = _checked("recall_at_k", ids, query_labels, gallery_labels)
    try:
        k = operator.index(k)
    except TypeError:
        raise TypeError(f"recall_at_k: k must be an integer, got {type(k).__name__}") from None
    if not 1 <= k <= found.shape[1]:
        raise ValueError(f"recall_at_k: k is {k}, expected 1..{found.shape[1]}")
    _require_rows("recall_at_k", found[:, :k], gallery)
    answered = np.empty(len(found), np.bool_)
    for rows, hit in _hits(found[:, :k], queries, gallery):
        answered[rows] = hit.any(1)
    return _mean(answered[_class_sizes(queries, gallery) > 0])


def average_precision_at_r(ids: ArrayLike, query_labels: ArrayLike, gallery_labels: ArrayLike) -> NDArray[np.float64]:
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
        `ids` is too narrow, or as for `relevance`, of the first ids, as many as the largest R.

    References
    ----------
    Musgrave et al., A Metric Learning Reality Check, ECCV 2020, section 3.2.
    """
    owner = "average_precision_at_r"
    found, queries, gallery = _checked(owner, ids, query_labels, gallery_labels)
    r = _class_sizes(queries, gallery)
    if r.max(initial=0) > found.shape[1]:
        raise ValueError(f"{owner}: ids has {found.shape[1]} columns, expected at least R = {r.max()}")
    found = found[:, : r.max(initial=0)]
    _require_rows(owner, found, gallery)
    ranks, total = np.arange(1, found.shape[1] + 1), np.zeros(len(r))
    for rows, hit in _hits(found, queries, gallery):
        counted = hit & (ranks <= r[rows, None])
        total[rows] = (counted * counted.cumsum(1) / ranks).sum(1)
    return np.asarray(np.divide(total, r, out=np.full(len(r), np.nan), where=r > 0))


def map_at_r(ids: ArrayLike, query_labels: ArrayLike, gallery_labels: ArrayLike) -> float:
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


def _checked(owner: str, ids: ArrayLike, query_labels: ArrayLike, gallery_labels: ArrayLike) -> tuple[Array, ...]:
    """The three as arrays that fit each other."""
    found = as_array(owner, "ids", ids, "(Q, K)")
    found = found if found.size else found.astype(np.int64)  # an empty list has no dtype
    queries = as_array(owner, "query_labels", query_labels, "(Q,)")
    gallery = as_array(owner, "gallery_labels", gallery_labels, "(G,)")
    if len(found) != len(queries):
        raise ValueError(f"{owner}: ids has shape {found.shape}, expected ({len(queries)}, K) like query_labels")
    if found.dtype.kind not in "iu":
        raise ValueError(f"{owner}: ids has dtype {found.dtype}, expected integers")
    kinds = ["words" if isinstance(x[0], (str, bytes)) else "numbers" for x in (queries, gallery) if len(x)]
    if len(set(kinds)) > 1:
        raise ValueError(f"{owner}: query_labels are {kinds[0]}, gallery_labels {kinds[1]}: no class is in both")
    return found, queries, gallery


def _require_rows(owner: str, found: Array, gallery: Array) -> None:
    """Refuses ids, of the columns that are looked at, that are neither -1 nor rows of the gallery."""
    if found.size and not -1 <= found.min() <= found.max() < len(gallery):
        raise ValueError(f"{owner}: ids span {found.min()}..{found.max()}, expected -1..{len(gallery) - 1}")


def _hits(ids: Array, query_labels: Array, gallery_labels: Array) -> Iterator[tuple[slice, NDArray[np.bool_]]]:
    """Which ids are of the query's class, by blocks of queries."""
    step = -(-BLOCK // max(ids.shape[1], 1))
    for start in range(0, len(ids), step):
        rows = slice(start, start + step)
        if not len(gallery_labels):
            yield rows, np.zeros(ids[rows].shape, np.bool_)
            continue
        # "clip" is faster than a check of each id; what is no id counts for nothing.
        hit = np.asarray(gallery_labels.take(ids[rows], mode="clip") == query_labels[rows, None])
        hit &= ids[rows] >= 0
        yield rows, hit


def _class_sizes(query_labels: Array, gallery_labels: Array) -> NDArray[np.int64]:
    """[Q]: how many gallery items are of each query's class."""
    if len(gallery_labels) and all(np.can_cast(x.dtype, np.int64) for x in (query_labels, gallery_labels)):
        low, high = int(gallery_labels.min()), int(gallery_labels.max())
        if high - low <= 4 * len(gallery_labels):  # numbers that can be places of a table
            sizes = np.bincount(gallery_labels.astype(np.int64) - low)
            here = (query_labels >= low) & (query_labels <= high)
            return np.where(here, sizes[np.where(here, query_labels, low).astype(np.int64) - low], 0)
    count = Counter(gallery_labels.tolist())
    sizes = np.array([count[label] for label in query_labels.tolist()], np.int64)
    missing = query_labels != query_labels  # noqa: PLR0124  (NaN, which no other label equals)
    return np.where(missing, 0, sizes)


def _mean(values: NDArray[Any]) -> float:
    return float(values.mean()) if len(values) else float("nan")
