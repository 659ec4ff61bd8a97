"""Log density and entropy."""

from __future__ import annotations

import math

from peaccel._utils.arrays import Array, ArrayT, Given, as_array, cast, namespace, quiet, require_same_kind
from peaccel.distributions._numerics import (
    LOG_2PI,
    double,
    either,
    keeps_digits,
    one_minus_ratio,
    scaled_log_norm,
    scores_with_points,
    square_distance,
    total,
)
from peaccel.distributions.checks import NORMALS, compute_dtype, order, require_kind
from peaccel.distributions.classes import Distribution
from peaccel.ops import bessel, diag_scores, dot_scores

__all__ = ["entropy", "log_prob"]


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


@quiet
def entropy(d: Distribution[ArrayT]) -> ArrayT:
    """Differential entropy of each item in nats, with all constants.

    Normal: ``1/2 sum log(2 pi e var)``. VonMisesFisher, on the unit sphere: ``-log C_D(kappa) - kappa A_D(kappa)``.

    Parameters
    ----------
    d
        N items: Normal or VonMisesFisher.

    Returns
    -------
    [N], in the compute dtype (float32 for 16-bit floats); log of the sphere's surface at kappa = 0, -inf at kappa = inf
    and where a variance is 0.
    Twice differentiable.

    Raises
    ------
    TypeError
        d is of another kind: no closed form, or no entropy.
    ValueError
        A negative var or kappa, in the 64 rows that `search` looks at too.

    Notes
    -----
    Measured error in float64 against arb, kappa 0 .. 1e8, D 2 .. 2048: 1e-15 max(D, |value|).

    References
    ----------
    Cover & Thomas, "Elements of Information Theory", th. 8.4.1; Mardia & Jupp, "Directional Statistics", sec. 10.3.1.

    Examples
    --------
    >>> pe.entropy(pe.Normal([[0.0, 0.0], [0.0, 0.0]], var=[0.1, 0.5])).round(3).tolist()
    [0.535, 2.145]
    """
    kind = require_kind("entropy", "d", d, (*NORMALS, "vmf"), "with an entropy in closed form")
    dtype = compute_dtype(d.mu)
    uncertainty = cast(d.arrays[1], dtype)
    if kind == "vmf":
        value = _entropy_vmf(d.dim, double(uncertainty), dtype)
    elif kind == "normal_diagonal":
        value = (d.dim * (1 + LOG_2PI) + total(namespace(uncertainty).log(uncertainty))) / 2
    else:
        value = d.dim * (1 + LOG_2PI + double(namespace(uncertainty).log(uncertainty))) / 2
    return cast(value, dtype)


# -- von Mises-Fisher --------------------------------------------------------------------------------------------------


def _log_prob_vmf(dim: int, kappa: Array, square: Array) -> Array:
    """The log density from |mu - z|^2, since mu.z = 1 - |mu - z|^2 / 2 of unit rows."""
    xp, certain = namespace(kappa), namespace(kappa).isinf(kappa)
    finite = xp.where(certain, 1.0, kappa)
    value = scaled_log_norm(dim, finite) - finite * square / 2
    return xp.where(certain, xp.where(square > 0, -math.inf, math.inf + square), value)


def _entropy_vmf(dim: int, kappa: Array, dtype: str) -> Array:
    def plain(k: Array) -> Array:
        return -bessel.vmf_log_norm(order(dim, k), k) - k * bessel.iv_ratio(order(dim / 2, k), k)

    def careful(k: Array) -> Array:
        return k * one_minus_ratio(dim, k) - scaled_log_norm(dim, k)

    xp, certain = namespace(kappa), namespace(kappa).isinf(kappa)
    finite = xp.where(certain, 1.0, kappa)
    value = either(keeps_digits(dim, finite, dtype), plain, careful, (0.0, float(dim)), finite)
    return xp.where(certain, -math.inf, value)


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
