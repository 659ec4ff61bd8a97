"""The inputs of a kernel from each side of a pair: a mean and an uncertainty, a number or a row, per item."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from peaccel._utils.arrays import Array, is_torch, namespace
from peaccel.distributions import Distribution
from peaccel.distributions.checks import order
from peaccel.ops import bessel
from peaccel.scores._score import KernelInputs, Params


def constant(d: Distribution, value: float) -> Array:
    """An array [N] of one value, which takes no memory."""
    if is_torch(d.mu):
        return d.mu.new_full((1,), value).expand(len(d))
    return np.broadcast_to(np.asarray(value, d.mu.dtype), (len(d),))


def row_sums(x: Array) -> Array:
    """Sums [N] of rows [N, D], all laid out alike, so that a row has the same bits anywhere."""
    return (x.contiguous() if is_torch(x) else np.ascontiguousarray(x)).sum(-1)


def direction(d: Distribution, params: Params) -> tuple[Array, Array]:
    return d.mu, constant(d, 1.0)


def location(d: Distribution, params: Params) -> tuple[Array, Array]:
    return d.mu, constant(d, 0.0)


def normal_rows(d: Any, params: Params) -> tuple[Array, Array]:
    """Means, and variances as rows, which have one element for points and isotropic normals."""
    return d.mu, variance(d)[:, None] if d.kind != "normal_diagonal" else d.var


def variance(d: Any) -> Array:
    return constant(d, 0.0) if d.kind == "point" else d.var


def isotropic(d: Any, params: Params) -> tuple[Array, Array]:
    return d.mu, variance(d)


def is_centred(params: Params) -> bool:
    """Whether the prior has a mean to be subtracted: a number other than 0, numbers per dimension, or a tensor."""
    mean = params["prior_mean"]
    return not isinstance(mean, (int, float)) or bool(
        mean != 0
    )  # numpy's numbers are floats, their comparisons no bools


def centred_isotropic(d: Any, params: Params) -> tuple[Array, Array]:
    """`isotropic`, with means from which that of the prior is subtracted."""
    return _centred(d.mu, params), variance(d)


def centred_rows(d: Any, params: Params) -> tuple[Array, Array]:
    """`normal_rows`, with means from which that of the prior is subtracted."""
    mu, var = normal_rows(d, params)
    return _centred(mu, params), var


def _centred(mu: Array, params: Params) -> Array:
    mean = params["prior_mean"]
    if isinstance(mean, (int, float)):
        return mu - float(mean)
    if tuple(np.shape(mean)) not in ((), (1,), (mu.shape[-1],)):
        raise ValueError(f"llr: prior_mean has shape {tuple(np.shape(mean))}, expected () or ({mu.shape[-1]},)")
    return mu - like(mean, mu)


def vmf(d: Any, params: Params) -> tuple[Array, Array]:
    return d.mu, d.kappa


def resultant(d: Any, params: Params) -> tuple[Array, Array]:
    """The expected direction's length, E[z / |z|] = resultant * mu / |mu|."""
    if d.kind == "vmf":
        return d.mu, bessel.iv_ratio(order(d.dim / 2, d.kappa), d.kappa)
    return d.mu, projected_length(d.mu, d.var)


def projected_length(mu: Array, var: Array) -> Array:
    """Length of the mean of z/|z|, z ~ N(mu, var I); in float64 up to the last step, as squares may overflow."""
    xp = namespace(mu)
    if is_torch(mu):
        square, wide = (mu.double().contiguous() ** 2).sum(-1), var.double()
    else:
        square, wide = _squares(mu), np.float64(var)
    # Far from 0 the first term of the series in var is exact, down to a variance of 0; below 0 the length is NaN.
    far = (2e-30 * square >= wide) & (wide >= 0)
    x = square / (2 * xp.where(far, 1, xp.where(wide > 0, wide, math.nan)))
    near = bessel.normal_length(order(mu.shape[-1], x), x)
    length = xp.where(far, 1 - (mu.shape[-1] - 1) / 2 * wide / xp.where(far, square, 1), near)
    return length.to(mu.dtype) if is_torch(mu) else length.astype(mu.dtype)


def _squares(mu: Any) -> Any:
    """Squared norms in float64: blocks of rows, all laid out alike, so that a row has the same bits anywhere."""
    out, step = np.empty(len(mu)), max(1, 2**16 // max(1, mu.shape[-1]))
    for start in range(0, len(mu), step):
        rows = mu[start : start + step].astype(np.float64, order="C")
        out[start : start + step] = np.einsum("nd,nd->n", rows, rows)
    return out


def moments(d: Any, params: Params) -> tuple[Array, Array]:
    """The mean and the trace of the covariance."""
    if d.kind == "vmf":
        v = order(d.dim / 2, d.kappa)
        return bessel.iv_ratio(v, d.kappa)[:, None] * d.mu, bessel.iv_ratio_complement(v, d.kappa)
    # NaN, because a sum could hide a negative variance, and the kernel takes traces of any sign.
    var = variance(d)
    var = namespace(var).where(var >= 0, var, math.nan)
    return d.mu, row_sums(var) if var.ndim == 2 else d.dim * var


def like(value: Any, mu: Array) -> Array:
    """A parameter as an array of mu's kind, dtype and device."""
    if isinstance(mu, np.ndarray):
        return np.asarray(value, mu.dtype)
    if is_torch(value):
        return value.to(mu)
    return filled(value, mu) if mu.is_cuda else mu.new_tensor(value)


def filled(value: Any, mu: Array) -> Array:
    """`like` on a GPU, by fills if it is few numbers: a copy from the host would wait, and CUDA graphs refuse it."""
    if isinstance(value, (int, float)):
        return mu.new_full((), value)
    if isinstance(value, np.ndarray) and value.shape in ((1,), (2,)):
        value = value.tolist()
    few = isinstance(value, (list, tuple)) and 0 < len(value) <= 2
    return namespace(mu).stack([mu.new_full((), x) for x in value]) if few else mu.new_tensor(value)


def spread_isotropic(d: Any, params: Params) -> tuple[Array, Array]:
    """[mu, sqrt(D) sigma]: squared distances of these are squared 2-Wasserstein distances."""
    return _beside(d.mu, root(d.dim * variance(d))[:, None]), constant(d, 0.0)


def spread_diagonal(d: Any, params: Params) -> tuple[Array, Array]:
    """[mu, sigma per dimension]."""
    sigma = root(variance(d))[:, None] + 0 * d.mu if d.kind != "normal_diagonal" else root(d.var)
    return _beside(d.mu, sigma), constant(d, 0.0)


def root(x: Array) -> Array:
    """The square root; at 0, where it has no finite derivative, that counts as 0."""
    if not is_torch(x) or not x.requires_grad:
        return x**0.5
    positive = x != 0
    return namespace(x).where(positive, namespace(x).where(positive, x, 1.0) ** 0.5, 0.0)


def _beside(mu: Array, sigma: Array) -> Array:
    return namespace(mu).concatenate((mu, sigma), -1)


def root_scale(d: Any, params: Params) -> tuple[Array, Array]:
    return d.mu, root(d.scale)


def scale(d: Any, params: Params) -> tuple[Array, Array]:
    return d.mu, d.scale


def root_norm(d: Any, params: Params) -> tuple[Array, Array]:
    # A power of 0.25 would be rounded in torch by where an item lies in the array; a square root is exact.
    return d.mu, root(norm(d, params)[1])


def norm(d: Any, params: Params) -> tuple[Array, Array]:
    return d.mu, lengths(d.mu)


def lengths(mu: Array) -> Array:
    """Lengths [N] of rows, by squares in float64, as those of short and long rows leave the range of float32."""
    if is_torch(mu):
        return root((mu.double().contiguous() ** 2).sum(-1)).to(mu.dtype)
    return np.asarray(np.sqrt(_squares(mu)).astype(mu.dtype))


# These compute nothing: they pass the distribution's arrays, or one number for all items. Of a gallery of which an
# op then reads the candidates where they lie, all rows cost no more than a few; with the others each row has its cost.
AS_THEY_LIE: frozenset[KernelInputs] = frozenset((direction, location, normal_rows, isotropic, vmf, scale))
