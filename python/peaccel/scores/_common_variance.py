"""Normals of which all items of a side have one variance: their score is one weighted inner product.

It goes to the kernel of squared distances, for which dimensions are scaled by the roots of their weights. Differences
of scaled coordinates have the rounding of these: as if coordinates had been rounded once more.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from peaccel._utils.arrays import FLOATS, Array, cast, dtype_name, is_torch, namespace
from peaccel.distributions import Distribution
from peaccel.ops import dot_scores
from peaccel.scores._score import KernelInputs, Pair, Params

__all__ = ["common_variance", "ranking_weights", "weighted_pair"]

BLOCK = 1 << 16
"""Numbers that are squared at a time."""


def common_variance(d: Distribution) -> Array | None:
    """The variance of all items [1] or [D] in float64, where one was given for all; of points it is 0.

    None of halves too, which are scored as they lie.
    """
    if d.home.dtype not in FLOATS:
        return None
    if d.kind == "point":
        return d.mu.new_zeros(1).double() if is_torch(d.mu) else np.zeros(1)
    var = d.common_parameter()
    return None if var is None else cast(var, "float64").reshape(-1)


def weighted_pair(pair: Pair, mu: Array, var1: Array, var2: Array, params: Params) -> Pair:
    """The pair by squared distances, for queries that all have the first of these variances, and items the second.

    The pair itself where variances of 0 leave no finite weights.
    """
    assert pair.weighted is not None
    weight, constant, *shares = pair.weighted(var1, var2, cast(pair.shared(mu, params), "float64"))
    if not all(bool(namespace(x).isfinite(x).all()) for x in (weight, constant, *shares) if x is not None):
        return pair
    zero = 0 * weight[:1]
    total = zero if constant is None else -namespace(mu).broadcast_to(constant, mu.shape[-1:]).sum(-1)[None]
    root, dtype = cast(weight**0.5, dtype_name(mu)), dtype_name(mu)
    query, gallery = (None if share is None else cast(-share, dtype) for share in shares)
    return Pair(
        dot_scores.neg_sq_l2,
        _Scaled(pair.query, root, cast(total, dtype), query),
        _Scaled(pair.gallery, root, cast(zero, dtype), gallery),
    )


def ranking_weights(pair: Pair, d: Distribution, params: Params) -> Array | None:
    """The weights [D] of squared differences, up to a factor, by whose sum items that all have one variance are ranked
    for such queries too; None where they are not ranked by such a sum alone."""
    var = common_variance(d)
    if pair.weighted is None or var is None:
        return None
    weight, _, *shares = pair.weighted(var, var, cast(pair.shared(d.mu, params), "float64"))
    if any(share is not None for share in shares):
        return None
    return namespace(weight).broadcast_to(weight / weight.max(), (d.dim,))


@dataclass(frozen=True, eq=False)
class _Scaled:
    """Means times the roots of the weights, beside what a score takes off minus their squared distance: a number for
    all items, and a share of the squares."""

    inputs: KernelInputs
    root: Array
    number: Array
    share: Array | None

    def __call__(self, d: Distribution, params: Params) -> tuple[Array, Array]:
        mu = self.inputs(d, params)[0]
        scaled = mu * self.root if is_torch(mu) else np.multiply(mu, self.root, order="C")
        if self.share is None:
            return scaled, namespace(mu).broadcast_to(self.number, (len(d),))
        return scaled, self.number + _sums_of_squares(scaled, self.share)


def _sums_of_squares(x: Array, weight: Array) -> Array:
    """Weighted sums of squares; of blocks of rows, all laid out alike, so that a row has the same bits anywhere."""
    if is_torch(x):
        return (x * x * weight).sum(-1)
    out, step = np.empty(len(x), x.dtype), max(1, BLOCK // max(1, x.shape[-1]))
    for start in range(0, len(x), step):
        rows = x[start : start + step]
        np.einsum("nd,nd->n", rows, rows * weight, out=out[start : start + step])
    return out
