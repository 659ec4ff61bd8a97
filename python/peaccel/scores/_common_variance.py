"""Normals of which all items of a side have one variance: their score is one weighted inner product.

It goes to the kernel of squared distances, for which dimensions are scaled by the roots of their weights. Differences
of scaled coordinates have the rounding of these: as if coordinates had been rounded once more.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from peaccel._utils.arrays import FLOATS, Array, as_numpy, cast, dtype_name, is_torch, namespace, times_written
from peaccel.distributions import Distribution
from peaccel.ops import dot_scores
from peaccel.scores._score import KernelInputs, Pair, Params

__all__ = ["CommonVariance", "common_variance", "ranking_weights", "weighted_pair"]

BLOCK = 1 << 16
"""Numbers that are squared at a time."""

LEAST, MOST = 1e-30, 1e30
"""Key of variances on a GPU, whose values are not looked at."""


class CommonVariance:
    """Key of the one variance of all items of a side, which differs where the variance does.

    On a GPU, for which nobody waits, that is the number that was given, or else its place in memory and how often it
    was written: equal ones in two places count as different.
    """

    def __init__(self, d: Distribution) -> None:
        row = None if d.kind == "point" else d.common_parameter()
        self._held = row  # no other variance can lie where this one does
        if d.home.device in ("numpy", "cpu"):
            self._key: object = as_numpy(common_variance(d)).tobytes()
        elif row is None or d.number is not None:
            self._key = d.number or 0.0
        else:
            self._key = row.data_ptr(), times_written(row), dtype_name(row), tuple(row.shape), row.stride()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CommonVariance) and self._key == other._key

    __hash__ = None  # type: ignore[assignment]


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

    The pair itself where variances of 0 leave no finite weights; on a GPU they count as `LEAST`.
    """
    assert pair.weighted is not None
    unseen = is_torch(mu) and mu.is_cuda
    if unseen:
        var1, var2 = (x.clamp(LEAST, MOST).masked_fill(x < 0, math.nan) for x in (var1, var2))
    weight, constant, *shares = pair.weighted(var1, var2, cast(pair.shared(mu, params), "float64"))
    parts = (x for x in (weight, constant, *shares) if x is not None)
    if not unseen and not all(bool(namespace(x).isfinite(x).all()) for x in parts):
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
