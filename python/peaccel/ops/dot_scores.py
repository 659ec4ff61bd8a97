"""Scores that are functions of one inner product (or squared distance) and a number per item.

Each op takes (mu, uncertainty) per side and a shared row; `peaccel.scores` says what each kind of distribution
passes as these.
The formulas below are the definitions, in plain torch; the kernels (`rust/kernels/dot_scores.rs`) rearrange them so
that nothing cancels. A pair of which a kernel gives a limit, at variances of 0 and infinite concentrations, is 0 here,
where second derivatives are made of them.
"""

from __future__ import annotations

import math

import numpy as np

from peaccel._utils.arrays import Array, namespace
from peaccel.ops._definitions import pair_op
from peaccel.ops.bessel import iv_ratio, vmf_log_norm


def _cosine(mu1: Array, mu2: Array) -> Array:
    """In float64, as squares may leave the range of float32; 0 of zeros, without derivatives."""
    where, a, b = namespace(mu1).where, mu1.double(), mu2.double()
    squares = (a * a).sum(-1), (b * b).sum(-1)
    zero = (squares[0] == 0) | (squares[1] == 0)
    lengths = where(zero, 1.0, squares[0]).sqrt() * where(zero, 1.0, squares[1]).sqrt()
    return where(zero, 0.0, (a * b).sum(-1) / lengths).to(mu1.dtype)


@pair_op
def cosine(mu1: Array, weight1: Array, mu2: Array, weight2: Array, none: Array) -> Array:
    return (weight1 * weight2)[..., 0] * _cosine(mu1, mu2)


@pair_op
def shifted_cosine(mu1: Array, weight1: Array, mu2: Array, weight2: Array, shift: Array) -> Array:
    return (weight1 * weight2)[..., 0] * (_cosine(mu1, mu2) - shift[0])


@pair_op
def neg_sq_l2(mu1: Array, trace1: Array, mu2: Array, trace2: Array, none: Array) -> Array:
    return -(((mu1 - mu2) ** 2).sum(-1) + (trace1 + trace2)[..., 0])


@pair_op
def inner_product(mu1: Array, bias1: Array, mu2: Array, bias2: Array, none: Array) -> Array:
    return (mu1 * mu2).sum(-1) + (bias1 + bias2)[..., 0]


def uncertain(var1: Array, var2: Array, certain: Array) -> tuple[Array, Array]:
    """Both variances, with 1 in place of what has no finite derivatives there."""
    where = namespace(var1).where
    return where(certain, 1.0, var1), where(certain, 1.0, var2)


@pair_op
def mls_isotropic(mu1: Array, var1: Array, mu2: Array, var2: Array, none: Array) -> Array:
    certain = (var1 + var2 == 0)[..., 0]
    v, w = uncertain(var1[..., 0], var2[..., 0], certain)
    value = -0.5 * (((mu1 - mu2) ** 2).sum(-1) / (v + w) + mu1.shape[-1] * (2 * math.pi * (v + w)).log())
    return value.masked_fill(certain, 0)


@pair_op
def neg_mahalanobis_isotropic(mu1: Array, var1: Array, mu2: Array, var2: Array, none: Array) -> Array:
    certain = (var1 + var2 == 0)[..., 0]
    v, w = uncertain(var1[..., 0], var2[..., 0], certain)
    return (-((mu1 - mu2) ** 2).sum(-1) / (v + w)).masked_fill(certain, 0)


@pair_op
def llr_isotropic(mu1: Array, var1: Array, mu2: Array, var2: Array, prior_var: Array) -> Array:
    certain, p = (var1 + var2 == 0)[..., 0], prior_var[0]
    v, w = uncertain(var1[..., 0], var2[..., 0], certain)
    a, b, det = p + v, p + w, p * (v + w) + v * w
    spread = (mu1**2).sum(-1) * v / a + (mu2**2).sum(-1) * w / b - ((mu1 - mu2) ** 2).sum(-1)
    return (0.5 * (p * spread / det + mu1.shape[-1] * (a * b / det).log())).masked_fill(certain, 0)


@pair_op
def overlap_isotropic(mu1: Array, var1: Array, mu2: Array, var2: Array, powers: Array) -> Array:
    certain, alpha, beta = ((var1 == 0) | (var2 == 0))[..., 0], powers[0], powers[1]
    v, w = uncertain(var1[..., 0], var2[..., 0], certain)
    s = v / alpha + w / beta
    logs = s.log() - (1 - alpha) * v.log() - (1 - beta) * w.log() + (alpha * beta).log()
    constant = (alpha + beta - 1) * math.log(2 * math.pi)
    value = -0.5 * (((mu1 - mu2) ** 2).sum(-1) / s + mu1.shape[-1] * (logs + constant))
    return value.masked_fill(certain, 0)


@pair_op
def neg_kl_isotropic(mu1: Array, var1: Array, mu2: Array, var2: Array, share: Array) -> Array:
    certain, square = ((var1 == 0) | (var2 == 0))[..., 0], ((mu1 - mu2) ** 2).sum(-1)
    v, w = uncertain(var1[..., 0], var2[..., 0], certain)
    forth = square / w + mu1.shape[-1] * (v / w - 1 - (v / w).log())
    back = square / v + mu1.shape[-1] * (w / v - 1 - (w / v).log())
    return (-0.5 * (share[0] * forth + (1 - share[0]) * back)).masked_fill(certain, 0)


def _log_overlap(mu1: Array, kappa1: Array, mu2: Array, kappa2: Array, powers: Array) -> Array:
    kappa1, kappa2 = kappa1[..., 0], kappa2[..., 0]
    certain = kappa1.isinf() | kappa2.isinf()
    kappa1, kappa2 = uncertain(kappa1, kappa2, certain)
    a, b = powers[0] * kappa1, powers[1] * kappa2
    square, where = (a + b) ** 2 - a * b * ((mu1 - mu2) ** 2).sum(-1), namespace(mu1).where
    dim = mu1.new_tensor(float(mu1.shape[-1])).double()
    normalisers = powers[0] * vmf_log_norm(dim, kappa1) + powers[1] * vmf_log_norm(dim, kappa2)
    # A root has no derivative at 0, where log C is even: log C(R) = log C(0) - R^2 / (2 D) + O(R^4).
    is_small = square < 1e-12
    of_resultant = vmf_log_norm(dim, where(is_small, 1.0, square).sqrt())
    near = vmf_log_norm(dim, 0 * square) - square / (2 * mu1.shape[-1])
    return (normalisers - where(is_small, near, of_resultant)).masked_fill(certain, 0)


@pair_op
def mls_vmf(mu1: Array, kappa1: Array, mu2: Array, kappa2: Array, offset: Array) -> Array:
    return _log_overlap(mu1, kappa1, mu2, kappa2, mu1.new_ones(2)) + offset[0]


@pair_op
def overlap_vmf(mu1: Array, kappa1: Array, mu2: Array, kappa2: Array, powers: Array) -> Array:
    return _log_overlap(mu1, kappa1, mu2, kappa2, powers)


@pair_op
def neg_kl_vmf(mu1: Array, kappa1: Array, mu2: Array, kappa2: Array, share: Array) -> Array:
    kappa1, kappa2 = kappa1[..., 0], kappa2[..., 0]
    certain = kappa1.isinf() | kappa2.isinf()
    kappa1, kappa2 = uncertain(kappa1, kappa2, certain)
    cosine, dim = 1 - 0.5 * ((mu1 - mu2) ** 2).sum(-1), mu1.new_tensor(float(mu1.shape[-1])).double()
    apart = vmf_log_norm(dim, kappa1) - vmf_log_norm(dim, kappa2)
    forth = apart + iv_ratio(dim / 2, kappa1) * (kappa1 - kappa2 * cosine)
    back = -apart + iv_ratio(dim / 2, kappa2) * (kappa2 - kappa1 * cosine)
    return (-(share[0] * forth + (1 - share[0]) * back)).masked_fill(certain, 0)


@pair_op
def hib_isotropic(mu1: Array, var1: Array, mu2: Array, var2: Array, line: Array) -> Array:
    dtype, (mu1, var1, mu2, var2) = mu1.dtype, (x.double() for x in (mu1, var1, mu2, var2))
    s, square, where = var1 + var2, ((mu1 - mu2) ** 2).sum(-1, keepdim=True), namespace(mu1).where
    # Far apart in units of sqrt s the integral's terms cancel. There its series in s is as near, to some 1e-5 in the
    # derivative by s: from a length of 10^3 on where the sigmoid is wide, else of 10^4, and so of points.
    is_far = (square >= 1e8 * s) | ((square >= 1e6 * s) & (line[0] ** 2 * s <= 1e-5))
    near = _log_mean_match(square, where(is_far, 1.0, s), mu1.shape[-1], line)
    return where(is_far[..., 0], _log_match_of_far(square, s, mu1.shape[-1], line), near).to(dtype)


def _log_match_of_far(square: Array, s: Array, dim: int, line: Array) -> Array:
    """log of the mean of f(|z1 - z2|), f(r) = sigmoid(b - a r), to first order: f + s (f' (D - 1) / r + f'') / 2."""
    length = square.clamp(min=1e-30).sqrt()
    y = line[1] - line[0] * length
    other = (-y).sigmoid()  # f' / f = -a other, f'' / f = a^2 other (2 other - 1)
    slope = line[0] * other * (line[0] * (2 * other - 1) - (dim - 1) / length)
    return (namespace(square).nn.functional.logsigmoid(y) + s * slope / 2)[..., 0]


def _log_mean_match(square: Array, s: Array, dim: int, line: Array) -> Array:
    """The same by quadrature over the distance in units of sqrt s, whose density is that of a non-central chi."""
    length = (square / s).clamp(min=1e-30, max=1e8).sqrt()
    nodes, weights = (square.new_tensor(x) for x in np.polynomial.legendre.leggauss(256))
    middle = (length.detach() ** 2 + dim).sqrt()
    low, high = (middle - 10).clamp(min=0), middle + 10
    t = low + (high - low) * (nodes + 1) / 2
    if dim == 1:
        log_norms = math.log(2) - length * t - (-2 * length * t).exp().log1p()  # of the hyperbolic cosine
    else:
        log_norms = vmf_log_norm(square.new_tensor(float(dim)), length * t)
    log_f = (dim - 1) * t.log() - log_norms - (t * t + length * length) / 2 + weights.log()
    log_match = namespace(square).nn.functional.logsigmoid(line[1] - line[0] * s.sqrt() * t)
    return (log_f + log_match).logsumexp(-1) - log_f.logsumexp(-1)
