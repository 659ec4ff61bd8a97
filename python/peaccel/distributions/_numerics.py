"""Float64 terms that measures share, for arrays of either kind, in forms in which no digits cancel.

Sums run over dimensions in the compute dtype or by the kernels of scores. All that is one number per item is float64:
the terms of a von Mises-Fisher density are of the size of kappa and of D log D, and their sum need not be.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from peaccel._utils.arrays import Array, cast, is_torch, namespace, replaced
from peaccel.distributions.checks import order
from peaccel.ops import Inputs, PairOp, bessel, dot_scores, score

__all__ = [
    "LOG_2PI",
    "double",
    "either",
    "keeps_digits",
    "one_minus_ratio",
    "ratio_dx",
    "scaled_log_norm",
    "scores_with_points",
    "square_distance",
    "total",
]

LOG_2PI = math.log(2 * math.pi)


def double(x: Array) -> Array:
    """x in float64."""
    return cast(x, "float64")


def total(x: Array) -> Array:
    """The sum over the last axis, in float64."""
    if is_torch(x):
        return x.sum(-1, dtype=namespace(x).float64)
    return np.einsum("...d->...", x, dtype=np.float64)  # twice as fast as sum, which converts float32 in small pieces


def square_distance(a: Array, b: Array) -> Array:
    """|a - b|^2 in float64, of rows [N, D], and of b [N, D] or [S, N, D]."""
    return -double(scores_with_points(dot_scores.neg_sq_l2, a, namespace(a).zeros_like(a[:, 0]), b))


def scores_with_points(op: PairOp, mu: Array, uncertainty: Array, z: Array) -> Array:
    """The scores of each item with its points, [N] or [S, N]; the uncertainty of points is 0."""
    xp, dim = namespace(z), z.shape[-1]
    points = z.reshape(math.prod(z.shape[:-1]), dim)
    inputs = Inputs(mu, uncertainty, points, xp.zeros_like(points[:, :1]), xp.zeros_like(mu[:0, 0]))
    if z.ndim == 2:
        return score(op, inputs)
    rows = xp.arange(len(points), **({"device": z.device} if is_torch(z) else {})).reshape(z.shape[:2])
    return score(op, inputs, rows.T).T


# -- von Mises-Fisher --------------------------------------------------------------------------------------------------


def scaled_log_norm(dim: int, kappa: Array) -> Array:
    """log C_dim(kappa) + kappa, kappa float64: the log density at the mode.

    For large kappa log C is near -kappa, and only log(I_v exp(-kappa)) keeps the digits of the sum; for small kappa
    the logs of both kappa^v and I_v go to infinity, and only log C, where they have met already, is finite.
    """
    xp, v = namespace(kappa), dim / 2 - 1

    def large(k: Array) -> Array:
        return v * xp.log(k) - dim / 2 * LOG_2PI - bessel.log_ive(order(v, k), k)

    def small(k: Array) -> Array:
        return bessel.vmf_log_norm(order(dim, k), k) + k

    return either(kappa >= dim, large, small, (float(dim), 0.0), kappa)


def one_minus_ratio(dim: int, kappa: Array) -> Array:
    """1 - A_dim(kappa), kappa float64, without the cancellation for large kappa."""
    v = order(dim / 2, kappa)
    return bessel.iv_ratio_complement(v, kappa) / (1 + bessel.iv_ratio(v, kappa))


def ratio_dx(dim: int, kappa: Array) -> Array:
    """A_dim'(kappa), kappa float64, to full relative accuracy."""
    return bessel.iv_ratio_dx(order(dim / 2, kappa), kappa)


def keeps_digits(dim: int, kappa: Array, dtype: str) -> Array:
    """Where the sum of float64 terms of the size of kappa keeps all digits of dtype."""
    return kappa < dim * (2.0**20 if dtype == "float32" else 1)


def either(
    mask: Array, one: Callable[..., Array], other: Callable[..., Array], safe: tuple[float, float], *inputs: Array
) -> Array:
    """One function of the inputs where the mask is true, the other elsewhere.

    In torch each function computes all elements, with its `safe` value in place of the other's, which keeps gradients
    finite. In numpy each computes its elements only.
    """
    if is_torch(mask):
        elsewhere = ~mask
        first = one(*(replaced(x, elsewhere, safe[0]) for x in inputs))
        return namespace(mask).where(mask, first, other(*(replaced(x, mask, safe[1]) for x in inputs)))
    if mask.all():
        return one(*inputs)
    value = np.empty(mask.shape)
    for function, chosen in ((one, mask), (other, ~mask)):
        places = chosen.nonzero()
        value[places] = function(*(x[places] for x in inputs))
    return value


def columns(var: Array) -> Array:
    """Variances as [N, D], isotropic ones as [N, 1]."""
    return var if var.ndim == 2 else var[:, None]
