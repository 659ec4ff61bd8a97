"""Vectors whose inner product ranks as a score of distributions does: what a first-stage index can hold.

A score of two uncertain items is no inner product. Its expansion around a typical uncertainty (`linearisation`) is one,
and its terms, shifted and scaled so that both sides are alike, are the features.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from peaccel._utils.arrays import on_host, quiet
from peaccel.distributions import Distribution
from peaccel.distributions.checks import converted, require_distribution
from peaccel.retrieval.faiss.linearisation import EXPANSIONS, Double, Expansion, Typical, multiples
from peaccel.scores import Pair, Score, get

__all__ = ["FirstStageReference", "first_stage_features", "first_stage_reference"]

LOOKED_AT = 1 << 14  # rows at most from which a reference is estimated
BLOCK = 1 << 16  # float64 numbers that are computed at a time, so that they stay in a core's cache
QUANTILES = (0.05, 0.25, 0.75, 0.95)  # of the queries' uncertainties, at which levels stand beside the reference


@dataclass(frozen=True, eq=False)
class FirstStageReference:
    """The expansion that the features of queries and of gallery share; made by `first_stage_reference`.

    Attributes
    ----------
    score
        The score that the features stand for.
    kinds
        Kinds of the queries and of the gallery that it was made from.
    typical
        Uncertainties, levels and centre of the expansion.
    offset, scale, mean
        [p], [d], [d]: query features, less the offset, times the scale; gallery features, less the mean, over it.

    Examples
    --------
    >>> reference = pe.first_stage_reference(pe.VonMisesFisher([[0.6, 0.8], [1.0, 0.0]], kappa=[100.0, 5.0]), "mls")
    >>> reference.score, reference.kinds
    (Score('mls'), ('vmf', 'vmf'))
    """

    score: Score
    kinds: tuple[str, str]
    typical: Typical
    offset: Double
    scale: Double
    mean: Double


@quiet
def first_stage_reference(
    gallery: Distribution, score: str | Score = "mls", queries: Distribution | None = None
) -> FirstStageReference:
    """The uncertainty around which a score is developed, and the scales of the features.

    Parameters
    ----------
    gallery
        G >= 1 items; 16384 of them, evenly spaced, are looked at.
    score
        A name, ``"name:param=number"`` or a `Score`; higher = more similar.
    queries
        Items as uncertain as the queries to come; by default these are as uncertain as the gallery. Needed where
        gallery and queries differ in kind, as points and normals do.

    Returns
    -------
    FirstStageReference
        A few rows of D numbers.

    Raises
    ------
    TypeError
        Not distributions; a pair of kinds that the score lacks, or that has no surrogate.
    ValueError
        No items; values that are not finite, or negative variances.

    Examples
    --------
    >>> gallery, queries = pe.Normal([[0.0, 1.0], [1.0, 0.0]], var=[0.1, 0.5]), pe.Point([[0.6, 0.8]])
    >>> pe.first_stage_reference(gallery, "mls", queries).kinds
    ('point', 'normal_isotropic')
    """
    record = get(score)
    require_distribution(record.name, "gallery", gallery)
    queries = gallery if queries is None else queries
    require_distribution(record.name, "queries", queries)
    if queries.dim != gallery.dim:
        raise ValueError(f"first_stage_reference: dim of queries is {queries.dim}, expected {gallery.dim} like gallery")
    pair = record.pair(queries.kind, gallery.kind)
    expansion = _expansion(record, pair)
    samples = []
    for name, d in (("queries", queries), ("gallery", gallery)):
        if not len(d):
            raise ValueError(f"first_stage_reference: {name} has no items, expected at least one")
        samples.append(d[:: -(-len(d) // LOOKED_AT)])
    (x, s1), (y, s2) = _inputs(samples[0], pair, record, "query"), _inputs(samples[1], pair, record, "gallery")
    typical = _typical(record, pair, (x, s1), (y, s2), samples[1])
    columns = expansion.query(x, s1, typical)
    offset = columns.mean(0)
    plain = _completed(expansion.gallery(y, s2, typical), offset)
    mean = plain.mean(0)
    if not np.isfinite(offset).all() or not np.isfinite(mean).all():
        raise ValueError("first_stage_reference: mu must be finite, var or kappa finite and not negative")
    # Each column is scaled to equal length on both sides, which is the geometry that an index of means would have.
    lengths = [np.sqrt((c**2).mean(0)) for c in (np.c_[columns - offset, np.ones(len(columns))], plain - mean)]
    first, second = (np.maximum(c, 1e-6 * c.max()) for c in lengths)
    scale = np.sqrt(second / first) if second.max() > 0 else np.ones_like(mean)
    return FirstStageReference(record, (queries.kind, gallery.kind), typical, offset, scale, mean)


@quiet
def first_stage_features(
    d: Distribution,
    score: str | Score = "mls",
    side: Literal["gallery", "query"] = "gallery",
    reference: FirstStageReference | None = None,
) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Vectors whose inner product, query side with gallery side, ranks as the score does.

    ===================================================  ======  =======================================================
    score                                                width   ranks as the score
    ===================================================  ======  =======================================================
    cosine, expected_cosine, neg_sq_l2 and its           D + 1   exactly
    expectation
    mls, llr of isotropic normals and points             D + 7   exactly for a query of the reference's variance, nearly
    mls, llr of diagonal normals                         3D + 5  for others
    mls, llr of von Mises-Fisher                         D + 5   nearly: for one query and item the score is a concave
                                                                 function of the cosine, and this is its tangent at
                                                                 A(kappa1) A(kappa2), the mean cosine of a match
    ===================================================  ======  =======================================================

    Parameters
    ----------
    d
        N items.
    score
        A name, ``"name:param=number"`` or a `Score`; higher = more similar.
    side
        "gallery": what an index is to hold; "query": what it is asked with.
    reference
        What both sides must share, from `first_stage_reference`; by default that of the gallery.

    Returns
    -------
    float32 [N, width], a numpy array wherever d lies, narrower where all queries are equally uncertain. For an index by
    L2 see `FaissReranker.build`.

    Raises
    ------
    TypeError
        d is not a distribution; a pair of kinds that the score lacks, or that has no surrogate.
    ValueError
        Unknown side; a query side without a reference; a reference for another score, kind or dimension; gallery items
        whose features are not finite.

    References
    ----------
    Bachrach et al., "Speeding up the Xbox recommender system ...", RecSys 2014, for what makes an index by L2 of them.

    Examples
    --------
    Which item is best by inner product, in any index of vectors, and by the score itself:

    >>> gallery = pe.Normal([[0.0, 1.0], [1.0, 0.0], [0.6, 0.8]], var=[0.1, 0.1, 0.4])
    >>> reference = pe.first_stage_reference(gallery, "mls")
    >>> items, queries = (pe.first_stage_features(gallery, "mls", side, reference) for side in ("gallery", "query"))
    >>> (queries @ items.T).argmax(1).tolist(), pe.pairwise(gallery, gallery, "mls").argmax(1).tolist()
    ([0, 1, 0], [0, 1, 0])
    """
    record = get(score)
    require_distribution(record.name, "d", d)
    if side not in ("gallery", "query"):
        raise ValueError(f"first_stage_features: side {side!r}, expected 'gallery' or 'query'")
    if reference is None:
        if side == "query":
            raise ValueError(
                "first_stage_features: reference must be given for queries: first_stage_reference(gallery)"
            )
        reference = first_stage_reference(d, record)
    if record != reference.score:
        raise ValueError(f"first_stage_features: reference is for score {reference.score.label}, got {record.label}")
    if d.dim != len(reference.typical.centre):
        expected = len(reference.typical.centre)
        raise ValueError(f"first_stage_features: dim of d is {d.dim}, expected {expected} like the reference")
    if side == "gallery" and d.kind != reference.kinds[1]:
        raise ValueError(f"first_stage_features: reference is for {reference.kinds[1]}, got {d.kind}")
    pair = record.pair(*((d.kind, reference.kinds[1]) if side == "query" else reference.kinds))
    expansion = _expansion(record, record.pair(*reference.kinds))
    features = np.empty((len(d), len(reference.scale)), np.float32)
    step = -(-BLOCK // d.dim)
    factor = reference.scale if side == "query" else 1 / reference.scale
    for rows in (slice(start, start + step) for start in range(0, len(d), step)):
        inputs = _inputs(d[rows], pair, record, side)
        if side == "query":
            columns = expansion.query(*inputs, reference.typical)
            features[rows, :-1] = (columns - reference.offset) * factor[:-1]
            features[rows, -1] = factor[-1]
        else:
            plain = _completed(expansion.gallery(*inputs, reference.typical), reference.offset)
            features[rows] = np.multiply(np.subtract(plain, reference.mean, out=plain), factor, out=plain)
        if side == "gallery" and not (finite := np.isfinite(features[rows]).all(1)).all():
            row = rows.start + int(np.argmin(finite))
            raise ValueError(
                f"first_stage_features: row {row} has no finite features: mu not finite, or var, kappa < 0"
            )
    return features


def _expansion(score: Score, pair: Pair) -> Expansion:
    if pair.op.name not in EXPANSIONS:
        raise TypeError(f"{score.name}: has no first-stage features for {pair.op.name}, only {', '.join(EXPANSIONS)}")
    return EXPANSIONS[pair.op.name]


def _completed(columns: Double, offset: Double) -> Double:
    """An item's columns, changed in place: the constant, the last, makes up for the offset that query columns lose."""
    columns[:, -1] += columns[:, :-1] @ offset
    return columns


def _inputs(d: Distribution, pair: Pair, score: Score, side: str) -> tuple[Double, Double]:
    """The inputs of the pair's op in float64: means [N, D], and uncertainties [N, 1] or [N, D]."""
    features = pair.query if side == "query" else pair.gallery
    mu, uncertainty = (
        on_host(x, "first_stage_features", "d") for x in features(converted(d.detach(), "float64"), score.params)
    )
    return mu, uncertainty.reshape(len(mu), -1)


def _typical(
    score: Score, pair: Pair, queries: tuple[Double, Double], gallery: tuple[Double, Double], items: Distribution
) -> Typical:
    shared = on_host(pair.shared(converted(items.detach(), "float64").mu, score.params))
    median = np.median(queries[1], axis=0)
    steps = np.unique(np.r_[np.quantile(multiples(queries[1], median), QUANTILES), 1.0])
    return Typical(median, np.median(gallery[1], axis=0), steps, gallery[0].mean(0), shared)
