"""Scores developed around a typical uncertainty, so that each term is a query's number times an item's.

A score of two uncertain items is no inner product: it depends on both uncertainties at once. Around a reference, the
typical uncertainty of the queries, it nearly is one:

- How fast a pair's score falls with distance is the item's rate at the reference times one factor of the query.
- The level from which it falls, such as -1/2 log of the summed variances, is computed at a few multiples of the
  reference, between which a query interpolates.

Both are exact for a query of the reference's uncertainty. Each expansion is written for one op, whose inputs it
takes: means and uncertainties, in float64.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from peaccel.distributions.checks import order
from peaccel.ops import Inputs, bessel, diag_scores, score

__all__ = ["EXPANSIONS", "Double", "Expansion", "Typical", "multiples"]

Double = np.ndarray[Any, np.dtype[np.float64]]


class Typical(NamedTuple):
    """Uncertainties that a score of two kinds is developed around: rows of one element, or of D."""

    query: Double  # the reference: the variance or concentration of a typical query
    gallery: Double  # the variance or concentration of a typical gallery item
    levels: Double  # [L] multiples of `query`, ascending, 1 among them
    centre: Double  # [D], subtracted from means where only distances count
    shared: Double  # the op's row that all pairs share, such as llr's prior variance


class Expansion(NamedTuple):
    """Two functions of means, uncertainties and what is typical of them.

    ``query`` computes p columns of queries, [N, p], ``gallery`` those of items and a constant as the last, [N, p + 1].
    """

    query: Callable[[Double, Double, Typical], Double]
    gallery: Callable[[Double, Double, Typical], Double]


# -- levels ------------------------------------------------------------------------------------------------------------


def multiples(uncertainty: Double, reference: Double) -> Double:
    """Uncertainties as multiples [N] of the reference; 1 where the reference is 0."""
    typical = float(reference.mean())
    multiple: Double = uncertainty.mean(1) / typical if typical > 0 else np.ones(len(uncertainty))
    return multiple


def _weights(uncertainty: Double, typical: Typical) -> Double:
    """Weights [N, L - 1] of all levels but the first, by which queries interpolate; the nearest one beyond the ends."""
    with np.errstate(divide="ignore"):
        place, levels = np.log(multiples(uncertainty, typical.query)), np.log(typical.levels)
    weights = [np.interp(place, levels, unit) for unit in np.eye(len(levels))[1:]]
    return np.stack(weights, 1) if weights else np.empty((len(uncertainty), 0))


def _from_first(levels: Double) -> Double:
    """Items' values at the levels [L, N] as the columns that `_weights` multiply, and the constant beside them."""
    return np.vstack([levels[1:] - levels[0], levels[:1]]).T


# -- positions: no uncertainty of the query changes the ranking --------------------------------------------------------


def _means(mu: Double, uncertainty: Double, typical: Typical) -> Double:
    return mu - typical.centre


def _cosine(mu: Double, length: Double, typical: Typical) -> Double:
    norm = np.linalg.norm(mu, axis=1, keepdims=True)
    direction = length * mu / np.where(norm > 0, norm, 1)
    return np.hstack([direction, (direction @ typical.centre)[:, None]])


def _inner_product(mu: Double, bias: Double, typical: Typical) -> Double:
    return np.hstack([mu, (mu @ typical.centre)[:, None] + bias])


def _neg_sq_l2(mu: Double, trace: Double, typical: Typical) -> Double:
    y = mu - typical.centre
    return np.hstack([2 * y, -np.einsum("nd,nd->n", y, y)[:, None] - trace])


# -- normals -----------------------------------------------------------------------------------------------------------


def _like_columns(uncertainty: Double, typical: Typical) -> Double:
    """A query's variances, or their mean where the items and the reference are isotropic."""
    return uncertainty if max(len(typical.query), len(typical.gallery)) > 1 else uncertainty.mean(1, keepdims=True)


def _quadratic(x: Double, square: Double, linear: Double) -> list[Double]:
    """A query's columns [linear x, square x^2, linear]; x^2 is summed where the factors are one for all dimensions."""
    squares = x * x if square.shape[1] == x.shape[1] else (x * x).sum(1, keepdims=True)
    return [linear * x, square * squares, linear]


def _mls_query(mu: Double, var: Double, typical: Typical) -> Double:
    var = _like_columns(var, typical)
    factor = (typical.query + typical.gallery) / (var + typical.gallery)
    return np.hstack([*_quadratic(mu - typical.centre, factor, factor), _weights(var, typical)])


def _mls_gallery(mu: Double, var: Double, typical: Typical) -> Double:
    y, inverse = mu - typical.centre, 1 / (typical.query + var)
    scaled = y * inverse
    # Each level corrects what the expansion is off by for a match on average, where E (x - y)^2 = level + var.
    at_levels = typical.levels[:, None] * typical.query
    factor = (typical.query + typical.gallery) / (at_levels + typical.gallery)
    match = factor.sum(1)[:, None] + (factor * (at_levels - typical.query)) @ inverse.T
    levels = 0.5 * mu.shape[1] / inverse.shape[1] * (match - _log_sums(at_levels, var))
    return np.hstack([scaled, -0.5 * inverse, _loss(y, scaled, inverse), _from_first(levels)])


def _loss(y: Double, scaled: Double, like: Double) -> Double:
    """-1/2 y^2 over the variance, summed over dimensions where they share one variance."""
    return -0.5 * (scaled * y if like.shape[1] == y.shape[1] else np.einsum("nd,nd->n", y, scaled)[:, None])


def _log_sums(levels: Double, var: Double) -> Double:
    """Sums over dimensions of log(level + var), [L, N], as the kernel of ``mls`` has them at a distance of 0."""
    width = max(levels.shape[1], var.shape[1])
    inputs = Inputs(np.zeros((len(levels), width)), levels, np.zeros((len(var), width)), var, np.empty(0))
    sums: Double = -2 * score(diag_scores.mls_diagonal, inputs, pairwise=True) - width * math.log(2 * math.pi)
    return sums


def _det(prior: Double, var1: Double, var2: Double) -> Double:
    return prior * (var1 + var2) + var1 * var2


def _llr_query(mu: Double, var: Double, typical: Typical) -> Double:
    reference, prior, var = typical.query, typical.shared, _like_columns(var, typical)
    factor = _det(prior, reference, typical.gallery) / _det(prior, var, typical.gallery)
    return np.hstack([*_quadratic(mu, factor * (prior + reference) / (prior + var), factor), _weights(var, typical)])


def _llr_gallery(mu: Double, var: Double, typical: Typical) -> Double:
    reference, prior = typical.query, typical.shared
    inverse, both = 1 / _det(prior, reference, var), prior + var
    scaled = prior * mu * inverse
    # det = (prior + level) (var + prior level / (prior + level))
    level = typical.levels[:, None] * reference
    logs = _log_sums(np.vstack([0 * level[:1] + prior, prior * level / (prior + level)]), var)
    levels = logs[0] - logs[1:] - np.log(prior + level).sum(1, keepdims=True)
    levels *= 0.5 * mu.shape[1] / inverse.shape[1]
    loss = _loss(prior * mu / both, scaled, inverse)
    return np.hstack([scaled, (-0.5 * prior**2 / (prior + reference)) * inverse, loss, _from_first(levels)])


# -- von Mises-Fisher --------------------------------------------------------------------------------------------------


def _match(dim: int, kappa1: Double, kappa2: Double) -> tuple[Double, Double, Double]:
    """The mean cosine of a match, A(kappa1) A(kappa2), the score's slope there, and its value less log C(kappa1)."""
    ratio = [bessel.iv_ratio(order(dim / 2, kappa2), k) for k in (kappa1, kappa2)]
    cosine = ratio[0] * ratio[1]
    resultant = np.sqrt((kappa1 + kappa2) ** 2 - 2 * kappa1 * kappa2 * (1 - cosine))
    length = bessel.iv_ratio(order(dim / 2, kappa2), resultant)
    slope = np.where(resultant > 0, length * kappa1 * kappa2 / np.where(resultant > 0, resultant, 1), 0.0)
    log_norms = [bessel.vmf_log_norm(order(dim, kappa2), k) for k in (kappa2, resultant)]
    return cosine, slope, log_norms[0] - log_norms[1]


def _factor(dim: int, kappa: Double, typical: Typical) -> Double:
    query, item = typical.query[:1], typical.gallery[:1]
    return _match(dim, kappa, item)[1] / _match(dim, query, item)[1]


def _vmf_query(mu: Double, kappa: Double, typical: Typical) -> Double:
    factor = _factor(mu.shape[1], kappa[:, 0], typical)
    return np.hstack([factor[:, None] * (mu - typical.centre), _weights(kappa, typical)])


def _vmf_gallery(mu: Double, kappa: Double, typical: Typical) -> Double:
    dim, concentration = mu.shape[1], kappa[:, 0]
    slope = _match(dim, typical.query[:1], concentration)[1]
    query = typical.levels[:, None] * typical.query[0]
    cosine, _, value = _match(dim, query, concentration)
    # The query's columns are differences to the centre; the levels hold what these miss of the cosine.
    levels = value - _factor(dim, query, typical) * slope * (cosine - mu @ typical.centre)
    return np.hstack([slope[:, None] * mu, _from_first(levels)])


EXPANSIONS = {
    "cosine": Expansion(_means, _cosine),
    "inner_product": Expansion(_means, _inner_product),
    "neg_sq_l2": Expansion(_means, _neg_sq_l2),
    "mls_isotropic": Expansion(_mls_query, _mls_gallery),
    "mls_diagonal": Expansion(_mls_query, _mls_gallery),
    "llr_isotropic": Expansion(_llr_query, _llr_gallery),
    "llr_diagonal": Expansion(_llr_query, _llr_gallery),
    "mls_vmf": Expansion(_vmf_query, _vmf_gallery),
}
