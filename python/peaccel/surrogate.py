"""Vectors whose inner product ranks as a score of distributions does: what a first-stage index can hold.

A score of two uncertain items is no inner product: it depends on both uncertainties at once. Here it is developed
around a reference, the typical uncertainty of the queries:

- how fast a pair's score falls with distance is the item's rate at the reference times one factor of the query;
- the level from which it falls, such as -1/2 log of the summed variances, is taken at a few multiples of the reference,
  and a query interpolates between them.

Both are exact for a query of the reference's own uncertainty.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np

from peaccel.distributions import Distribution
from peaccel.ops import bessel, diag_scores
from peaccel.ops._array import as_numpy, require_on_host
from peaccel.prepared import cast, require_distribution
from peaccel.scores import Pair, Score, get

__all__ = ["FirstStageReference", "first_stage_features", "first_stage_reference"]

LOOKED_AT = 1 << 14  # rows of which a reference is made
BLOCK = 1 << 16  # numbers at a time in float64, which stay in a core's cache
QUANTILES = (0.05, 0.25, 0.75, 0.95)  # of the queries' uncertainties, where levels are beside the reference

Double = np.ndarray[Any, np.dtype[np.float64]]


class Typical(NamedTuple):
    """What the surrogates of a pair of kinds are developed around; rows of one element, or of D."""

    query: Double  # the reference: variance or concentration of a typical query
    gallery: Double  # of a typical gallery item
    levels: Double  # [L] multiples of `query`, ascending, 1 among them
    centre: Double  # [D], subtracted from means where distances are all that counts
    shared: Double  # the row that all pairs share: llr's prior variance


@dataclass(frozen=True, eq=False)
class FirstStageReference:
    """What queries and gallery must share for their features to fit; made by `first_stage_reference`.

    Attributes
    ----------
    score
        The score that the features stand for.
    kinds
        Kinds of the queries and of the gallery that it was made from.
    typical
        Uncertainties, levels and centre of the development.
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


class Surrogate(NamedTuple):
    """Of (means, uncertainties): a query's columns [N, p]; an item's columns and a constant beside them [N, p + 1]."""

    query: Callable[[Double, Double, Typical], Double]
    gallery: Callable[[Double, Double, Typical], Double]


def first_stage_reference(
    gallery: Distribution, score: str | Score = "mls", queries: Distribution | None = None
) -> FirstStageReference:
    """The uncertainty around which a score is developed, and the scales of the features.

    Parameters
    ----------
    gallery
        G >= 1 items; 16384 of them, evenly spaced, are looked at.
    score
        As in `paired`.
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
    require_distribution(record, gallery, "gallery")
    queries = gallery if queries is None else queries
    require_distribution(record, queries, "queries")
    if queries.dim != gallery.dim:
        raise ValueError(f"first_stage_reference: dim of queries is {queries.dim}, expected {gallery.dim} like gallery")
    pair = record.pair(queries.kind, gallery.kind)
    surrogate = _surrogate(record, pair)
    samples = []
    for name, d in (("queries", queries), ("gallery", gallery)):
        require_on_host("first_stage_reference", name, d.mu)
        if not len(d):
            raise ValueError(f"first_stage_reference: {name} has no items, expected at least one")
        samples.append(d[:: -(-len(d) // LOOKED_AT)])
    (x, s1), (y, s2) = _inputs(samples[0], pair, record, "query"), _inputs(samples[1], pair, record, "gallery")
    typical = _typical(record, pair, (x, s1), (y, s2), samples[1])
    with np.errstate(all="ignore"):
        columns = surrogate.query(x, s1, typical)
        offset = columns.mean(0)
        plain = _completed(surrogate.gallery(y, s2, typical), offset)
        mean = plain.mean(0)
    if not np.isfinite(offset).all() or not np.isfinite(mean).all():
        raise ValueError("first_stage_reference: mu must be finite, var or kappa finite and not negative")
    # Columns as long on one side as on the other: the geometry that an index of means would have.
    lengths = [np.sqrt((c**2).mean(0)) for c in (np.c_[columns - offset, np.ones(len(columns))], plain - mean)]
    first, second = (np.maximum(c, 1e-6 * c.max()) for c in lengths)
    scale = np.sqrt(second / first) if second.max() > 0 else np.ones_like(mean)
    return FirstStageReference(record, (queries.kind, gallery.kind), typical, offset, scale, mean)


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
        As in `paired`.
    side
        "gallery": what an index is to hold; "query": what it is asked with.
    reference
        What both sides must share, from `first_stage_reference`; for the gallery by default its own.

    Returns
    -------
    float32 [N, width], a numpy array, narrower where all queries are equally uncertain. For an index by L2 see
    `FaissReranker.build`.

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
    require_distribution(record, d, "d")
    require_on_host("first_stage_features", "d", d.mu)
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
    surrogate = _surrogate(record, record.pair(*reference.kinds))
    features = np.empty((len(d), len(reference.scale)), np.float32)
    step = -(-BLOCK // d.dim)
    factor = reference.scale if side == "query" else 1 / reference.scale
    for rows in (slice(start, start + step) for start in range(0, len(d), step)):
        inputs = _inputs(d[rows], pair, record, side)
        with np.errstate(all="ignore"):
            if side == "query":
                columns = surrogate.query(*inputs, reference.typical)
                features[rows, :-1] = (columns - reference.offset) * factor[:-1]
                features[rows, -1] = factor[-1]
            else:
                plain = _completed(surrogate.gallery(*inputs, reference.typical), reference.offset)
                features[rows] = np.multiply(np.subtract(plain, reference.mean, out=plain), factor, out=plain)
        if side == "gallery" and not (finite := np.isfinite(features[rows]).all(1)).all():
            row = rows.start + int(np.argmin(finite))
            raise ValueError(
                f"first_stage_features: row {row} has no finite features: mu not finite, or var, kappa < 0"
            )
    return features


def _surrogate(score: Score, pair: Pair) -> Surrogate:
    if pair.op.name not in SURROGATES:
        raise TypeError(f"{score.name}: has no first-stage features for {pair.op.name}, only {', '.join(SURROGATES)}")
    return SURROGATES[pair.op.name]


def _completed(columns: Double, offset: Double) -> Double:
    """An item's columns, the last the constant, beside query columns from which the offset is subtracted; in place."""
    columns[:, -1] += columns[:, :-1] @ offset
    return columns


def _inputs(d: Distribution, pair: Pair, score: Score, side: str) -> tuple[Double, Double]:
    """What the pair's kernel would be given, in float64: means [N, D], and uncertainties [N, 1] or [N, D]."""
    features = pair.query if side == "query" else pair.gallery
    mu, extra = (as_numpy(x) for x in features(cast(d.detach(), "float64"), score.params))
    return mu, extra.reshape(len(mu), -1)


def _typical(
    score: Score, pair: Pair, queries: tuple[Double, Double], gallery: tuple[Double, Double], items: Distribution
) -> Typical:
    shared = as_numpy(pair.shared(cast(items.detach(), "float64").mu, score.params))
    own = np.median(queries[1], axis=0)
    steps = np.unique(np.r_[np.quantile(_multiple(queries[1], own), QUANTILES), 1.0])
    return Typical(own, np.median(gallery[1], axis=0), steps, gallery[0].mean(0), shared)


# -- levels ------------------------------------------------------------------------------------------------------------


def _multiple(extra: Double, own: Double) -> Double:
    """[N]: what multiple of the reference an uncertainty is; 1 beside a reference of 0."""
    typical = float(own.mean())
    multiple: Double = extra.mean(1) / typical if typical > 0 else np.ones(len(extra))
    return multiple


def _weights(extra: Double, typical: Typical) -> Double:
    """[N, L - 1]: how much of each level but the first a query takes; all of the nearest one beyond the ends."""
    with np.errstate(divide="ignore"):
        place, levels = np.log(_multiple(extra, typical.query)), np.log(typical.levels)
    weights = [np.interp(place, levels, unit) for unit in np.eye(len(levels))[1:]]
    return np.stack(weights, 1) if weights else np.empty((len(extra), 0))


def _from_first(levels: Double) -> Double:
    """An item's value at each level [L, N] as the columns beside `_weights`, and the constant beside them."""
    return np.vstack([levels[1:] - levels[0], levels[:1]]).T


# -- distances: no uncertainty of the query changes the ranking --------------------------------------------------------


def _means(mu: Double, extra: Double, typical: Typical) -> Double:
    return mu - typical.centre


def _cosine(mu: Double, length: Double, typical: Typical) -> Double:
    norm = np.linalg.norm(mu, axis=1, keepdims=True)
    direction = length * mu / np.where(norm > 0, norm, 1)
    return np.hstack([direction, (direction @ typical.centre)[:, None]])


def _neg_sq_l2(mu: Double, trace: Double, typical: Typical) -> Double:
    y = mu - typical.centre
    return np.hstack([2 * y, -np.einsum("nd,nd->n", y, y)[:, None] - trace])


# -- normals -----------------------------------------------------------------------------------------------------------


def _like_columns(extra: Double, typical: Typical) -> Double:
    """A query's variances, by their mean beside isotropic items and an isotropic reference."""
    return extra if max(len(typical.query), len(typical.gallery)) > 1 else extra.mean(1, keepdims=True)


def _quadratic(x: Double, square: Double, linear: Double) -> list[Double]:
    """[linear x, square x^2, linear] of a query; sums over dimensions where its factors have but one."""
    squares = x * x if square.shape[1] == x.shape[1] else (x * x).sum(1, keepdims=True)
    return [linear * x, square * squares, linear]


def _mls_query(mu: Double, var: Double, typical: Typical) -> Double:
    var = _like_columns(var, typical)
    factor = (typical.query + typical.gallery) / (var + typical.gallery)
    return np.hstack([*_quadratic(mu - typical.centre, factor, factor), _weights(var, typical)])


def _mls_gallery(mu: Double, var: Double, typical: Typical) -> Double:
    y, inverse = mu - typical.centre, 1 / (typical.query + var)
    scaled = y * inverse
    # What a match loses on average, at each level's variance, is put right there: E (x - y)^2 = level + var.
    own = typical.levels[:, None] * typical.query
    factor = (typical.query + typical.gallery) / (own + typical.gallery)
    match = factor.sum(1)[:, None] + (factor * (own - typical.query)) @ inverse.T
    levels = 0.5 * mu.shape[1] / inverse.shape[1] * (match - _log_sums(own, var))
    return np.hstack([scaled, -0.5 * inverse, _loss(y, scaled, inverse), _from_first(levels)])


def _loss(y: Double, scaled: Double, like: Double) -> Double:
    """-1/2 y^2 over the variance: summed where that is one for all dimensions."""
    return -0.5 * (scaled * y if like.shape[1] == y.shape[1] else np.einsum("nd,nd->n", y, scaled)[:, None])


def _log_sums(levels: Double, var: Double) -> Double:
    """Sums over dimensions of log(level + var), [L, N], by the kernel of ``mls`` at a distance of 0."""
    width = max(levels.shape[1], var.shape[1])
    inputs = [np.zeros((len(levels), width)), levels, np.zeros((len(var), width)), var, np.empty(0)]
    sums: Double = -2 * diag_scores.mls_diagonal.numpy_scores(inputs, None, pairwise=True) - width * math.log(
        2 * math.pi
    )
    return sums


def _det(prior: Double, var1: Double, var2: Double) -> Double:
    return prior * (var1 + var2) + var1 * var2


def _llr_query(mu: Double, var: Double, typical: Typical) -> Double:
    own, prior, var = typical.query, typical.shared, _like_columns(var, typical)
    factor = _det(prior, own, typical.gallery) / _det(prior, var, typical.gallery)
    return np.hstack([*_quadratic(mu, factor * (prior + own) / (prior + var), factor), _weights(var, typical)])


def _llr_gallery(mu: Double, var: Double, typical: Typical) -> Double:
    own, prior = typical.query, typical.shared
    inverse, both = 1 / _det(prior, own, var), prior + var
    scaled = prior * mu * inverse
    # det = (prior + level) (var + prior level / (prior + level))
    level = typical.levels[:, None] * own
    logs = _log_sums(np.vstack([0 * level[:1] + prior, prior * level / (prior + level)]), var)
    levels = logs[0] - logs[1:] - np.log(prior + level).sum(1, keepdims=True)
    levels *= 0.5 * mu.shape[1] / inverse.shape[1]
    loss = _loss(prior * mu / both, scaled, inverse)
    return np.hstack([scaled, (-0.5 * prior**2 / (prior + own)) * inverse, loss, _from_first(levels)])


# -- von Mises-Fisher --------------------------------------------------------------------------------------------------


def _order(v: float) -> Any:
    return np.asarray(v, np.float64)


def _match(dim: int, kappa1: Double, kappa2: Double) -> tuple[Double, Double, Double]:
    """Cosine of a match on average, A(kappa1) A(kappa2); the score's slope there, and its value less log C(kappa1)."""
    ratio = [bessel.iv_ratio(_order(dim / 2), k) for k in (kappa1, kappa2)]
    cosine = ratio[0] * ratio[1]
    resultant = np.sqrt((kappa1 + kappa2) ** 2 - 2 * kappa1 * kappa2 * (1 - cosine))
    length = bessel.iv_ratio(_order(dim / 2), resultant)
    slope = np.where(resultant > 0, length * kappa1 * kappa2 / np.where(resultant > 0, resultant, 1), 0.0)
    log_norms = [bessel.vmf_log_norm(_order(dim), k) for k in (kappa2, resultant)]
    return cosine, slope, log_norms[0] - log_norms[1]


def _factor(dim: int, kappa: Double, typical: Typical) -> Double:
    own, other = typical.query[:1], typical.gallery[:1]
    return _match(dim, kappa, other)[1] / _match(dim, own, other)[1]


def _vmf_query(mu: Double, kappa: Double, typical: Typical) -> Double:
    factor = _factor(mu.shape[1], kappa[:, 0], typical)
    return np.hstack([factor[:, None] * (mu - typical.centre), _weights(kappa, typical)])


def _vmf_gallery(mu: Double, kappa: Double, typical: Typical) -> Double:
    dim, own = mu.shape[1], kappa[:, 0]
    slope = _match(dim, typical.query[:1], own)[1]
    query = typical.levels[:, None] * typical.query[0]
    cosine, _, value = _match(dim, query, own)
    # What the query's columns miss of the cosine, since they are of the difference to the centre.
    levels = value - _factor(dim, query, typical) * slope * (cosine - mu @ typical.centre)
    return np.hstack([slope[:, None] * mu, _from_first(levels)])


SURROGATES = {
    "cosine": Surrogate(_means, _cosine),
    "neg_sq_l2": Surrogate(_means, _neg_sq_l2),
    "mls_isotropic": Surrogate(_mls_query, _mls_gallery),
    "mls_diagonal": Surrogate(_mls_query, _mls_gallery),
    "llr_isotropic": Surrogate(_llr_query, _llr_gallery),
    "llr_diagonal": Surrogate(_llr_query, _llr_gallery),
    "mls_vmf": Surrogate(_vmf_query, _vmf_gallery),
}
