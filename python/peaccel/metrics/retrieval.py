"""Retrieval metrics for queries ranked against a gallery, or for items ranked against each other, or clustered.

Queries of a class that the gallery lacks cannot be answered: their value is NaN, and they are left out of every mean.
Without labels of a gallery the queries are the gallery (leave-one-out): item i is removed from its ids, wherever it
stands there, and from its class, so that ids need one column more than the metric looks at, and what is the only one of
its class cannot be answered. (Karpukhin et al., 2022, count such items as 0 in MAP@R and leave them out of Recall@1.)
An id that a query's ranking repeats is right once, where it stands first.
Of a `peaccel.Ranking` in place of ids equal scores are known: a metric is then its mean over all orders of the items
that share a score, of those that were ranked, and what has a score of NaN counts as not found. Ids alone count in the
order in which they stand, which is that of the gallery's rows where scores were equal.
With `exclude` some rows are not ranked for a query, as Market-1501, VeRi and wildlife protocols have it:
CMC at k is `recall_at_k`, and mAP is `map_at_k` of the whole gallery. A query with no right item left is not counted.
In place of labels a `Relevance` says which items are right where no classes do: its pairs are "of a class" then.
Ids and labels are arrays, lists, columns of tables or tensors on the CPU.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from peaccel._utils.arrays import on_host, quiet
from peaccel._utils.exclusions import Exclusions
from peaccel._utils.numbers import as_classes, as_flags, as_numbers, require_length
from peaccel.metrics._judged_ranking import JudgedRanking, ScoredIds
from peaccel.metrics._relation import Relation

__all__ = [
    "average_precision_at_k",
    "average_precision_at_r",
    "hit_at_k",
    "map_at_k",
    "map_at_r",
    "nmi",
    "precision_recall_auc",
    "precision_recall_auc_at_1",
    "recall_at_k",
]

Values = NDArray[np.float64]
Counts = NDArray[np.int64]


def hit_at_k(
    ids: ArrayLike | ScoredIds,
    query_labels: ArrayLike | Relation,
    gallery_labels: ArrayLike | None = None,
    k: int = 1,
    *,
    exclude: ArrayLike | Exclusions | None = None,
) -> NDArray[np.float64]:
    """Whether at least one of the first k items is of the query's class, for each query.

    Parameters
    ----------
    ids, query_labels, gallery_labels, exclude
        As for `relevance`; of a ranking whose k-th score may be shared, one column more than k shows it.
    k
        At least 1, at most the columns of `ids`, one less where queries' rows are removed.

    Returns
    -------
    [Q] 0 or 1, of equal scores a probability; NaN where the gallery has no item of the query's class.

    Raises
    ------
    TypeError
        k is no integer.
    ValueError
        k is out of range, or as for `relevance`, of the first k ids.

    Examples
    --------
    The second query has its class at the second place, the third has it nowhere in the gallery:

    >>> ids, query_labels, gallery_labels = [[0, 1], [0, 1], [0, 1]], ["cat", "dog", "owl"], ["cat", "dog"]
    >>> pe.metrics.hit_at_k(ids, query_labels, gallery_labels, k=1).tolist()
    [1.0, 0.0, nan]
    >>> pe.metrics.hit_at_k(ids, query_labels, gallery_labels, k=2).tolist()
    [1.0, 1.0, nan]

    A cat and a dog are the same image. Which of them is first is chance, as their scores say:

    >>> same = pe.search(pe.Point([[1.0, 0.0]]), pe.Point([[1.0, 0.0], [1.0, 0.0]]), k=2)
    >>> pe.metrics.hit_at_k(same, ["cat"], ["dog", "cat"]).tolist()
    [0.5]
    """
    return _hit_at_k("hit_at_k", ids, query_labels, gallery_labels, k, exclude)


def recall_at_k(
    ids: ArrayLike | ScoredIds,
    query_labels: ArrayLike | Relation,
    gallery_labels: ArrayLike | None = None,
    k: int = 1,
    *,
    exclude: ArrayLike | Exclusions | None = None,
) -> float:
    """Share of queries with at least one item of their class among the first k: the mean of `hit_at_k`.

    Parameters
    ----------
    ids, query_labels, gallery_labels, k, exclude
        As for `hit_at_k`.

    Returns
    -------
    In [0, 1]; NaN if the gallery has the class of no query.

    Raises
    ------
    TypeError, ValueError
        As for `hit_at_k`.

    Examples
    --------
    Three of four queries have an item of their class first, and all have one among two. Higher is better:

    >>> ids, query_labels = [[0, 1], [1, 0], [1, 0], [1, 0]], ["cat", "dog", "dog", "cat"]
    >>> pe.metrics.recall_at_k(ids, query_labels, gallery_labels=["cat", "dog"])
    0.75
    >>> pe.metrics.recall_at_k(ids, query_labels, gallery_labels=["cat", "dog"], k=2)
    1.0
    """
    return _mean(_hit_at_k("recall_at_k", ids, query_labels, gallery_labels, k, exclude))


def average_precision_at_r(
    ids: ArrayLike | ScoredIds,
    query_labels: ArrayLike | Relation,
    gallery_labels: ArrayLike | None = None,
    *,
    exclude: ArrayLike | Exclusions | None = None,
) -> NDArray[np.float64]:
    """Average precision at R for each query, R being the size of its class in the gallery.

    (1/R) sum_{k<=R} rel_k precision@k

    Parameters
    ----------
    ids, query_labels, gallery_labels, exclude
        As for `relevance`; `ids` needs as many columns as the largest R, one more where queries' rows are removed.

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

    Examples
    --------
    The gallery has two cats. One query finds both, one only one, at the first place, and one only one, at the second:

    >>> ids = [[0, 2], [0, 1], [1, 0]]
    >>> pe.metrics.average_precision_at_r(ids, ["cat", "cat", "cat"], ["cat", "dog", "cat"]).tolist()
    [1.0, 0.5, 0.25]
    """
    return _average_precision_at_r("average_precision_at_r", ids, query_labels, gallery_labels, exclude)


def map_at_r(
    ids: ArrayLike | ScoredIds,
    query_labels: ArrayLike | Relation,
    gallery_labels: ArrayLike | None = None,
    *,
    exclude: ArrayLike | Exclusions | None = None,
) -> float:
    """Mean over queries of `average_precision_at_r`.

    Parameters
    ----------
    ids, query_labels, gallery_labels, exclude
        As for `average_precision_at_r`.

    Returns
    -------
    In [0, 1]; NaN if the gallery has the class of no query.

    Raises
    ------
    ValueError
        As for `average_precision_at_r`.

    Examples
    --------
    The gallery has two cats. One query finds both, the other only one, at the second place. Higher is better:

    >>> pe.metrics.map_at_r([[0, 2], [1, 0]], query_labels=["cat", "cat"], gallery_labels=["cat", "dog", "cat"])
    0.625
    """
    return _mean(_average_precision_at_r("map_at_r", ids, query_labels, gallery_labels, exclude))


def average_precision_at_k(
    ids: ArrayLike | ScoredIds,
    query_labels: ArrayLike | Relation,
    gallery_labels: ArrayLike | None = None,
    k: int = 1000,
    *,
    exclude: ArrayLike | Exclusions | None = None,
) -> NDArray[np.float64]:
    """Average precision among the first k items for each query.

    (1/min(R, k)) sum_{j<=k} rel_j precision@j, R being the size of the query's class in the gallery

    Parameters
    ----------
    ids, query_labels, gallery_labels, k, exclude
        As for `hit_at_k`.

    Returns
    -------
    [Q] in [0, 1]; NaN where R = 0 (Warburg et al.'s later code has 1 there).

    Raises
    ------
    TypeError
        k is no integer.
    ValueError
        As for `hit_at_k`.

    References
    ----------
    Warburg et al., Bayesian Triplet Loss, ICCV 2021, section 5 (mAP@k); Kirchhof et al., A Non-isotropic Probabilistic
    Take on Proxy-based Deep Metric Learning, ECCV 2022 (mAP@1000).

    Examples
    --------
    The only cat of the gallery is at the first, second and third place:

    >>> ids = [[0, 1, 2], [1, 0, 2], [1, 2, 0]]
    >>> pe.metrics.average_precision_at_k(ids, ["cat", "cat", "cat"], ["cat", "dog", "owl"], k=3).round(2).tolist()
    [1.0, 0.5, 0.33]
    """
    return _average_precision_at_k("average_precision_at_k", ids, query_labels, gallery_labels, k, exclude)


def map_at_k(
    ids: ArrayLike | ScoredIds,
    query_labels: ArrayLike | Relation,
    gallery_labels: ArrayLike | None = None,
    k: int = 1000,
    *,
    exclude: ArrayLike | Exclusions | None = None,
) -> float:
    """Mean over queries of `average_precision_at_k`.

    Parameters
    ----------
    ids, query_labels, gallery_labels, k, exclude
        As for `average_precision_at_k`.

    Returns
    -------
    In [0, 1]; NaN if the gallery has the class of no query.

    Raises
    ------
    TypeError, ValueError
        As for `average_precision_at_k`.

    Examples
    --------
    The only cat of the gallery is at the first place for one query and at the second for the other. Higher is better:

    >>> pe.metrics.map_at_k([[0, 1], [1, 0]], query_labels=["cat", "cat"], gallery_labels=["cat", "dog"], k=2)
    0.75
    """
    return _mean(_average_precision_at_k("map_at_k", ids, query_labels, gallery_labels, k, exclude))


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


@quiet
def nmi(embeddings: ArrayLike, labels: ArrayLike, seed: int = 0) -> float:
    """Normalised mutual information of the classes and as many clusters of k-means.

    2 I(classes; clusters) / (H(classes) + H(clusters))

    Parameters
    ----------
    embeddings
        [N, D], such as means, of unit length where the score is a cosine.
    labels
        [N]: numbers or strings.
    seed
        Seed of the first centres (k-means++, one start).

    Returns
    -------
    In [0, 1]; 1 where there is one class, 0 where several have equal embeddings (scikit-learn warns of it).

    Raises
    ------
    ValueError
        Lengths differ, there is no item, or an embedding is not finite.

    References
    ----------
    Kirchhof et al., A Non-isotropic Probabilistic Take on Proxy-based Deep Metric Learning, ECCV 2022, table 2.

    Examples
    --------
    Two clusters that are the classes, and two that have nothing to do with them. Higher is better:

    >>> embeddings = [[0.0, 1.0], [0.1, 1.0], [1.0, 0.0], [1.0, 0.1]]
    >>> round(pe.metrics.nmi(embeddings, ["cat", "cat", "dog", "dog"]), 2)
    1.0
    >>> round(pe.metrics.nmi(embeddings, ["cat", "dog", "cat", "dog"]), 2)
    0.0
    """
    from sklearn.cluster import KMeans
    from sklearn.metrics import normalized_mutual_info_score

    x = as_numbers("nmi", "embeddings", embeddings, "(N, D)", finite="they have no distances")
    classes = as_classes("nmi", "labels", labels)
    require_length("nmi", "labels", classes, "embeddings", x)
    _, of = np.unique(classes, return_inverse=True)
    clusters = KMeans(int(of.max()) + 1, n_init=1, random_state=seed).fit_predict(x)
    return float(normalized_mutual_info_score(of, clusters))


def _hit_at_k(
    owner: str,
    ids: ArrayLike | ScoredIds,
    query_labels: ArrayLike | Relation,
    gallery_labels: ArrayLike | None,
    k: int,
    exclude: ArrayLike | Exclusions | None,
) -> Values:
    ranking = JudgedRanking.of(owner, ids, query_labels, gallery_labels, exclude)
    k = _as_k(k, ranking)
    values = np.empty(len(ranking.ids))
    for rows, hit in ranking.hits(k):
        values[rows] = hit.any(1)
        if (ties := ranking.ties(rows, k)) is not None:
            values[rows][ties.rows] = ties.hit(k)
    values[ranking.class_sizes() == 0] = np.nan
    return values


def _average_precision_at_r(
    owner: str,
    ids: ArrayLike | ScoredIds,
    query_labels: ArrayLike | Relation,
    gallery_labels: ArrayLike | None,
    exclude: ArrayLike | Exclusions | None,
) -> Values:
    ranking = JudgedRanking.of(owner, ids, query_labels, gallery_labels, exclude)
    r = ranking.class_sizes()
    most = int(r.max(initial=0))
    if most > ranking.columns:
        needed = f"R + 1 = {most + 1}, own rows included" if ranking.leave_one_out else f"R = {most}"
        raise ValueError(f"{owner}: ids has {ranking.ids.shape[1]} columns, expected at least {needed}")
    return _average_precision(ranking, most, r, r)


def _average_precision_at_k(
    owner: str,
    ids: ArrayLike | ScoredIds,
    query_labels: ArrayLike | Relation,
    gallery_labels: ArrayLike | None,
    k: int,
    exclude: ArrayLike | Exclusions | None,
) -> Values:
    ranking = JudgedRanking.of(owner, ids, query_labels, gallery_labels, exclude)
    k, r = _as_k(k, ranking), ranking.class_sizes()
    return _average_precision(ranking, k, np.full(len(r), k), np.minimum(r, k))


def _average_precision(
    ranking: JudgedRanking, columns: int, last: NDArray[np.int64], divisor: NDArray[np.int64]
) -> Values:
    """Sum of the precisions at relevant ranks up to `last`, divided; NaN where the divisor is 0."""
    ranks, total = np.arange(1, columns + 1), np.zeros(len(ranking.ids))
    for rows, hit in ranking.hits(columns):
        counted = hit & (ranks <= last[rows, None])
        total[rows] = (counted * counted.cumsum(1) / ranks).sum(1)
        if (ties := ranking.ties(rows, columns)) is not None:
            precision = ties.precision()[:, :columns]
            total[rows][ties.rows] = (precision * (ranks <= last[rows][ties.rows, None])).sum(1)
    return np.asarray(np.divide(total, divisor, out=np.full(len(total), np.nan), where=divisor > 0))


def _as_k(k: int, ranking: JudgedRanking) -> int:
    try:
        k = operator.index(k)
    except TypeError:
        raise TypeError(f"{ranking.owner}: k must be an integer, got {type(k).__name__}") from None
    if not 1 <= k <= ranking.columns:
        raise ValueError(f"{ranking.owner}: k is {k}, expected 1..{ranking.columns}")
    return k


def _mean(values: Values) -> float:
    """The mean over the queries that can be answered."""
    values = values[~np.isnan(values)]
    return float(values.mean()) if len(values) else float("nan")
