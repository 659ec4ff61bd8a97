"""Log density."""

from __future__ import annotations

import math

from peaccel._utils.arrays import Array, ArrayT, Given, as_array, cast, namespace, quiet, replaced, require_same_kind
from peaccel.distributions._numerics import (
    double,
    scaled_log_norm,
    scores_with_points,
    square_distance,
    total,
)
from peaccel.distributions.checks import NORMALS, compute_dtype, require_kind
from peaccel.distributions.classes import Distribution
from peaccel.ops import diag_scores, dot_scores

__all__ = ["log_prob"]


@quiet
def log_prob(d: Distribution[ArrayT], z: ArrayT | Given) -> ArrayT:
    """Log density of each item at points, in nats, with all constants.

    Normal: ``-1/2 sum (z - mu)^2 / var - 1/2 sum log(2 pi var)``. VonMisesFisher, on the unit sphere:
    ``log C_D(kappa) + kappa mu.z``. NonIsotropicVonMisesFisher, with K = diag(kappa) and n = |K mu|: the density of z
    whose image K z / |K z| is von Mises-Fisher around K mu / n,
    ``log C_D(n) + n cos(K z, K mu) + sum log kappa - D log |K z|``. Of an item without any doubt, var = 0 or kappa =
    inf, the density is inf at mu and 0 elsewhere.

    Parameters
    ----------
    d
        N items: Normal, VonMisesFisher, or NonIsotropicVonMisesFisher with kappa > 0.
    z
        [N, D] or [S, N, D], rows for item n at [..., n, :]; unit rows where d is on the sphere. Cast to the compute
        dtype.

    Returns
    -------
    [N] or [S, N], in the compute dtype (float32 for 16-bit floats). Differentiable in torch, twice.

    Raises
    ------
    TypeError
        d has no density (Point, Scaled), or numpy meets torch.
    ValueError
        z of another shape or device; a negative var or kappa, in the 64 rows that `search` looks at too.

    Notes
    -----
    Measured error in float64 against arb, kappa 1e-8 .. 1e8, D 2 .. 2048: 1e-15 max(D, |value|) for von Mises-Fisher;
    for the non-isotropic one 2 roundings of the sum of the absolute terms, of the compute dtype.

    References
    ----------
    Kirchhof et al., "A Non-isotropic Probabilistic Take on Proxy-based Deep Metric Learning", eq. 4 and supplement B.

    Examples
    --------
    >>> d = pe.Normal([[0.0, 0.0], [0.0, 0.0]], var=[0.1, 0.5])
    >>> pe.log_prob(d, np.array([[0.0, 1.0], [0.0, 1.0]])).round(3).tolist()
    [-4.535, -2.145]
    """
    kind = require_kind("log_prob", "d", d, (*NORMALS, "vmf", "nivmf"), "with a density")
    points = as_array(z, "log_prob", "z", like=d.mu)
    require_same_kind("log_prob", "z", points, "d", d.mu)
    shape, like = tuple(points.shape), tuple(d.mu.shape)
    if len(shape) not in (2, 3) or shape[-2:] != like:
        raise ValueError(f"log_prob: z has shape {shape}, expected {like} or (S, {like[0]}, {like[1]}) like mu of d")
    dtype = compute_dtype(d.mu)
    mu, uncertainty = (cast(x, dtype) for x in d.arrays)
    points = cast(points, dtype)
    if kind == "vmf":
        value = _log_prob_vmf(d.dim, double(uncertainty), square_distance(mu, points))
    elif kind == "nivmf":
        value = _log_prob_nivmf(mu, uncertainty, points)
    else:  # the mutual likelihood score with a point is the log density at it
        op = diag_scores.mls_diagonal if kind == "normal_diagonal" else dot_scores.mls_isotropic
        value = scores_with_points(op, mu, uncertainty, points)
    return cast(value, dtype)


def _log_prob_vmf(dim: int, kappa: Array, square: Array) -> Array:
    """The log density from |mu - z|^2, since mu.z = 1 - |mu - z|^2 / 2 of unit rows."""
    xp, certain = namespace(kappa), namespace(kappa).isinf(kappa)
    finite = replaced(kappa, certain, 1.0)
    value = scaled_log_norm(dim, finite) - finite * square / 2
    return xp.where(certain, xp.where(square > 0, -math.inf, math.inf + square), value)


def _log_prob_nivmf(mu: Array, kappa: Array, z: Array) -> Array:
    xp = namespace(mu)
    centre, image = kappa * mu, kappa * z
    peak, length = (xp.sqrt(total(x * x)) for x in (centre, image))
    # |K z / length - K mu / peak|^2, from the part of K (z - mu) that is no change of length: the difference of the two
    # unit vectors would cancel.
    change = kappa * (z - mu)
    longer = total(change * (centre + image)) / (peak + length)
    square = (total(change * change) - longer * longer) / (peak * length)
    value = _log_prob_vmf(mu.shape[-1], peak, square) + total(xp.log(kappa))
    return value - mu.shape[-1] * xp.log(length)
