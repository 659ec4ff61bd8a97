"""Log density, entropy, divergence, and the variance of a match's distance.

What runs over dimensions does so in the compute dtype, mostly by the kernels of scores, and all that is one number per
item in float64: the terms of a von Mises-Fisher density are of the size of kappa and of D log D, and their sum need not
be.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from peaccel.distributions import Distribution
from peaccel.measures._checks import NORMALS, cast, compute_dtype, double, order, require_kind, require_pair, total
from peaccel.ops import bessel, diag_scores, dot_scores
from peaccel.ops._array import Array, as_array, dtype_name, is_torch, namespace, require_same_kind
from peaccel.ops._op import PairOp

__all__ = ["entropy", "kl", "log_prob", "match_variance"]

LOG_2PI = math.log(2 * math.pi)

BLOCK = 1 << 16  # numbers at a time, which stay in a core's cache
CLOSE = {"float32": 1e-7, "float64": 0.5}  # divergences per dimension below which the kernel's rounding could show

# Gauss-Legendre over [0, 1]; made here, since torch.compile cannot see through the making.
_NODES = [(float(0.5 * (x + 1)), float(0.5 * w)) for x, w in zip(*np.polynomial.legendre.leggauss(20), strict=True)]


def log_prob(d: Distribution, z: Array, variant: str = "exact") -> Array:
    """Log density of each item at points, in nats, with all constants.

    Normal: ``-1/2 sum (z - mu)^2 / var - 1/2 sum log(2 pi var)``. VonMisesFisher, on the unit sphere:
    ``log C_D(kappa) + kappa mu.z``. NonIsotropicVonMisesFisher, with K = diag(kappa) and n = |K mu|: the density of z
    whose image K z / |K z| is von Mises-Fisher around K mu / n,
    ``log C_D(n) + n cos(K z, K mu) + sum log kappa - D log |K z|``.

    Parameters
    ----------
    d
        N items: Normal with var > 0, VonMisesFisher, or NonIsotropicVonMisesFisher with kappa > 0.
    z
        [N, D] or [S, N, D], rows for item n at [..., n, :]; unit rows where d is on the sphere. Cast to the compute
        dtype.
    variant
        "exact", or for NonIsotropicVonMisesFisher "published": the paper's approximation, with log n in place of
        ``D log |K z|``. It is no density: at kappa = c in all dimensions it is c^(D-1) times that of
        VonMisesFisher(mu, c), and so gives items of large kappa a bonus that has nothing to do with likelihood. It
        rests on the exact C_D; the paper's code has a polynomial fitted at D = 128 and 512 in its place.

    Returns
    -------
    [N] or [S, N], in the compute dtype (float32 for halves). Differentiable in torch, twice.

    Raises
    ------
    TypeError
        d has no density (Point, Scaled), or numpy meets torch.
    ValueError
        z of another shape or device; an unknown variant, or "published" where nothing was published.

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
    z = as_array(z, "log_prob", "z", like=d.mu)
    require_same_kind("log_prob", "z", z, "d", d.mu)
    shape, like = tuple(z.shape), tuple(d.mu.shape)
    if len(shape) not in (2, 3) or shape[-2:] != like:
        raise ValueError(f"log_prob: z has shape {shape}, expected {like} or (S, {like[0]}, {like[1]}) like mu of d")
    if variant not in ("exact", "published"):
        raise ValueError(f"log_prob: variant {variant!r}, expected 'exact' or 'published'")
    if variant == "published" and kind != "nivmf":
        raise ValueError(f"log_prob: variant 'published' is of NonIsotropicVonMisesFisher only, got {kind}")
    dtype = compute_dtype(d.mu)
    mu, spread = (cast(x, dtype) for x in d.arrays)
    z = cast(z, dtype)
    if kind == "vmf":
        value = _log_prob_vmf(d.dim, double(spread), square_distance(mu, z))
    elif kind == "nivmf":
        value = _log_prob_nivmf(mu, spread, z, variant)
    else:  # the mutual likelihood with a point is the density there
        op = diag_scores.mls_diagonal if kind == "normal_diagonal" else dot_scores.mls_isotropic
        value = _with_points(op, mu, spread, z)
    return cast(value, dtype)


def entropy(d: Distribution) -> Array:
    """Differential entropy of each item in nats, with all constants.

    Normal: ``1/2 sum log(2 pi e var)``. VonMisesFisher, on the unit sphere: ``-log C_D(kappa) - kappa A_D(kappa)``.

    Parameters
    ----------
    d
        N items: Normal or VonMisesFisher.

    Returns
    -------
    [N], in the compute dtype (float32 for halves); log of the sphere's surface at kappa = 0. Twice differentiable.

    Raises
    ------
    TypeError
        d is of another kind: no closed form, or no entropy.

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
    spread = cast(d.arrays[1], dtype)
    if kind == "vmf":
        value = _entropy_vmf(d.dim, double(spread), dtype)
    elif kind == "normal_diagonal":
        value = (d.dim * (1 + LOG_2PI) + total(namespace(spread).log(spread))) / 2
    else:
        value = d.dim * (1 + LOG_2PI + double(namespace(spread).log(spread))) / 2
    return cast(value, dtype)


def kl(p: Distribution, q: Distribution) -> Array:
    """Kullback-Leibler divergence of q from p, item by item, in nats: the mean of log p - log q over draws of p.

    Normals: ``1/2 sum [(mu_p - mu_q)^2 / var_q + x - log(1 + x)]``, x = (var_p - var_q) / var_q. VonMisesFisher:
    ``log C(k_p) - log C(k_q) + A(k_p) (k_p - k_q mu_p.mu_q)``. Near-equal items keep their digits, equal ones give 0.

    Parameters
    ----------
    p, q
        N items each, of one dim, kind of array, dtype and device: two Normals, isotropic or diagonal (none is
        expanded), var > 0; or two VonMisesFisher. ``kl(p, VonMisesFisher(mu, 0))`` is from the uniform distribution.

    Returns
    -------
    [N], in the compute dtype (float32 for halves), >= 0. Differentiable in torch, twice.

    Raises
    ------
    TypeError
        Not distributions, a pair of kinds without a closed form, numpy beside torch.
    ValueError
        Different lengths, dims, dtypes or devices.

    Notes
    -----
    Measured relative error in float64 against arb: 1e-14, D 2 .. 2048, kappas 1e-8 .. 1e8, their ratios 1 + 1e-12 on.

    References
    ----------
    Diethe, "A Note on the Kullback-Leibler Divergence for the von Mises-Fisher distribution", 2015.

    Examples
    --------
    >>> p, q = pe.Normal([[0.0, 0.0]], var=[0.1]), pe.Normal([[0.0, 1.0]], var=[0.5])
    >>> pe.kl(p, q).round(3).tolist(), pe.kl(q, p).round(3).tolist()
    ([1.809], [7.391])
    """
    accepted = [(a, b) for a in NORMALS for b in NORMALS] + [("vmf", "vmf")]
    require_pair("kl", {"p": p, "q": q}, accepted)
    dtype = compute_dtype(p.mu)
    (mu_p, spread_p), (mu_q, spread_q) = ([cast(x, dtype) for x in d.arrays] for d in (p, q))
    if p.kind == "vmf":
        return cast(_kl_vmf(p.dim, double(spread_p), double(spread_q), square_distance(mu_p, mu_q), dtype), dtype)
    if p.kind == q.kind == "normal_isotropic":
        var_p, var_q = double(spread_p), double(spread_q)
        volume = p.dim * _x_minus_log1p((var_p - var_q) / var_q)
        return cast((volume + square_distance(mu_p, mu_q) / var_q) / 2, dtype)
    arrays = mu_p, _columns(spread_p), mu_q, _columns(spread_q)
    return cast(_kl_diagonal(*arrays) if is_torch(mu_p) else _kl_diagonal_by_blocks(*arrays), dtype)


def match_variance(q: Distribution, g: Distribution) -> Array:
    """Variance of the squared distance of two draws, item by item: how far the distance of a match is to be trusted.

    ``sum [2 (s_q + s_g)^2 + 4 (s_q + s_g) (mu_q - mu_g)^2]`` over dimensions, s the variances, 0 for points. Its mean
    is minus the score ``neg_expected_sq_l2``.

    Parameters
    ----------
    q, g
        N items each, Normal or Point, of one dim, kind of array, dtype and device.

    Returns
    -------
    [N], in the compute dtype (float32 for halves), >= 0. Differentiable in torch, twice.

    Raises
    ------
    TypeError, ValueError
        As `kl`.

    References
    ----------
    Warburg et al., "Bayesian Triplet Loss", sec. 3; the moments of a non-central chi-square.

    Examples
    --------
    >>> q, g = pe.Normal([[0.0, 0.0]], var=[0.1]), pe.Normal([[0.0, 1.0]], var=[0.5])
    >>> pe.match_variance(q, g).round(3).tolist()
    [3.84]
    """
    kinds = (*NORMALS, "point")
    require_pair("match_variance", {"q": q, "g": g}, [(a, b) for a in kinds for b in kinds])
    dtype = compute_dtype(q.mu)
    mu_q, mu_g = cast(q.mu, dtype), cast(g.mu, dtype)
    columns = [_columns(cast(d.arrays[1], dtype)) for d in (q, g) if d.kind != "point"]
    if not columns:
        return cast(0 * square_distance(mu_q, mu_g), dtype)
    var = columns[0] if len(columns) == 1 else columns[0] + columns[1]
    if var.shape[-1] == q.dim:
        return cast(total(var * (2 * var + 4 * (mu_q - mu_g) ** 2)), dtype)
    var = double(var[:, 0])
    return cast(var * (2 * q.dim * var + 4 * square_distance(mu_q, mu_g)), dtype)


# -- von Mises-Fisher --------------------------------------------------------------------------------------------------


def _log_prob_vmf(dim: int, kappa: Array, square: Array) -> Array:
    """From |mu - z|^2: mu.z = 1 - |mu - z|^2 / 2 for unit rows."""
    return scaled_log_norm(dim, kappa) - kappa * square / 2


def _entropy_vmf(dim: int, kappa: Array, dtype: str) -> Array:
    def plain(k: Array) -> Array:
        return -bessel.vmf_log_norm(order(dim, k), k) - k * bessel.iv_ratio(order(dim / 2, k), k)

    def careful(k: Array) -> Array:
        return k * one_minus_ratio(dim, k) - scaled_log_norm(dim, k)

    return _either(_plain(dim, kappa, dtype), plain, careful, (0.0, float(dim)), kappa)


def _log_prob_nivmf(mu: Array, kappa: Array, z: Array, variant: str) -> Array:
    xp = namespace(mu)
    centre, image = kappa * mu, kappa * z
    peak, length = (xp.sqrt(total(x * x)) for x in (centre, image))
    # |K z / length - K mu / peak|^2 from K (z - mu): what of it turns, beyond what lengthens. No difference of units.
    change = kappa * (z - mu)
    longer = total(change * (centre + image)) / (peak + length)
    square = (total(change * change) - longer * longer) / (peak * length)
    value = _log_prob_vmf(mu.shape[-1], peak, square) + total(xp.log(kappa))
    return value - (mu.shape[-1] * xp.log(length) if variant == "exact" else xp.log(peak))


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

    return _either(kappa >= dim, large, small, (float(dim), 0.0), kappa)


def one_minus_ratio(dim: int, kappa: Array) -> Array:
    """1 - A_dim(kappa), kappa float64, without the cancellation for large kappa."""
    v = order(dim / 2, kappa)
    return bessel.iv_ratio_complement(v, kappa) / (1 + bessel.iv_ratio(v, kappa))


def ratio_dx(dim: int, kappa: Array) -> Array:
    """A_dim'(kappa), kappa float64, to full relative accuracy."""
    return bessel._iv_ratio_dx(order(dim / 2, kappa), kappa)


def _kl_vmf(dim: int, kappa_p: Array, kappa_q: Array, square: Array, dtype: str) -> Array:
    """Of the concentrations, and of the directions: mu_p.mu_q = 1 - square / 2."""
    ratio = bessel.iv_ratio(order(dim / 2, kappa_p), kappa_p)
    turned = kappa_q * ratio * square / 2

    def plain(p: Array, q: Array, ratio: Array) -> Array:
        v = order(dim, p)
        return bessel.vmf_log_norm(v, p) - bessel.vmf_log_norm(v, q) + ratio * (p - q)

    def careful(p: Array, q: Array, _: Array) -> Array:
        return scaled_log_norm(dim, p) - scaled_log_norm(dim, q) + (q - p) * one_minus_ratio(dim, p)

    is_plain = _plain(dim, namespace(kappa_p).maximum(kappa_p, kappa_q), dtype)
    terms = _either(is_plain, plain, careful, (0.0, float(dim)), kappa_p, kappa_q, ratio)
    if not is_torch(terms):
        return _kl_of_kappas(dim, kappa_p, kappa_q, terms, dtype) + turned
    # The value that does not cancel, with the derivatives of the one that does: they are of other terms.
    value = _kl_of_kappas(dim, kappa_p.detach(), kappa_q.detach(), terms.detach(), dtype)
    return value + (terms - terms.detach()) + turned


def _kl_of_kappas(dim: int, kappa_p: Array, kappa_q: Array, terms: Array, dtype: str) -> Array:
    """log C(p) - log C(q) + A(p) (p - q): ``terms`` where q is far from p, and near it the integral of (q - t) A'(t)
    over t from p to q, all of whose parts have one sign.

    A' is analytic but for poles on the imaginary axis, beyond dim/2 + 1 in size. Intervals no longer than the distance
    of their middle from these are near: there 20 Gauss-Legendre nodes err by less than 1e-16 of the integral.
    """
    xp, width = namespace(kappa_p), kappa_q - kappa_p
    # Written as two bounds, since the square of a large kappa has no float.
    near = abs(width) <= xp.where(kappa_p + kappa_q > dim + 2.0, (kappa_p + kappa_q) / 2, dim / 2 + 1.0)
    if dtype == "float32":  # whose digits the terms have down to 2^24 of their own roundings
        near = near & (abs(terms) < 2.0**-24 * (8 * dim + kappa_p + kappa_q))

    def integral(start: Array, step: Array, _: Array) -> Array:
        value = 0 * step
        for node, weight in _NODES:
            value = value + weight * (1 - node) * ratio_dx(dim, start + node * step)
        return step * step * value

    return _either(near, integral, lambda *given: given[2], (0.0, 0.0), kappa_p, width, terms)


def _plain(dim: int, kappa: Array, dtype: str) -> Array:
    """Where terms of the size of kappa, in float64, leave the digits of dtype to their sum."""
    return kappa < dim * (2.0**20 if dtype == "float32" else 1)


def _either(
    mask: Array, one: Callable[..., Array], other: Callable[..., Array], safe: tuple[float, float], *inputs: Array
) -> Array:
    """One function of the inputs where the mask is true, the other elsewhere.

    In torch each is given all elements, those of the other as its safe value, which keeps gradients finite; in numpy
    each is given its own.
    """
    if is_torch(mask):
        where = namespace(mask).where
        first = one(*(where(mask, x, safe[0]) for x in inputs))
        return where(mask, first, other(*(where(mask, safe[1], x) for x in inputs)))
    if mask.all():
        return one(*inputs)
    value = np.empty(mask.shape)
    for function, chosen in ((one, mask), (other, ~mask)):
        places = chosen.nonzero()
        value[places] = function(*(x[places] for x in inputs))
    return value


# -- normals -----------------------------------------------------------------------------------------------------------


def square_distance(a: Array, b: Array) -> Array:
    """|a - b|^2 in float64, of rows [N, D], and of b [N, D] or [S, N, D]."""
    return -double(_with_points(dot_scores.neg_sq_l2, a, namespace(a).zeros_like(a[:, 0]), b))


def _with_points(op: PairOp, mu: Array, extra: Array, z: Array) -> Array:
    """A score of each item and its points, [N] or [S, N]; what points have beside a mean is 0."""
    xp, dim = namespace(z), z.shape[-1]
    points = z.reshape(math.prod(z.shape[:-1]), dim)
    inputs = [mu, extra, points, xp.zeros_like(points[:, :1]), xp.zeros_like(mu[:0, 0])]
    if z.ndim == 2:
        return op.scores(inputs)
    rows = xp.arange(len(points), **({"device": z.device} if is_torch(z) else {})).reshape(z.shape[:2])
    return op.scores(inputs, rows.T).T


def _kl_diagonal(mu_p: Array, var_p: Array, mu_q: Array, var_q: Array) -> Array:
    """Of means [N, D] and variances [N, D] or [N, 1], one of them [N, D]; differentiable."""
    square, wide = (mu_p - mu_q) ** 2 / var_q, double(var_q)
    x = (double(var_p) - wide) / wide
    # Where x is of float32 it is 0 or above 1e-8, and float64 has digits enough for a difference near x^2 / 2.
    volume = x - namespace(x).log1p(x) if dtype_name(mu_p) == "float32" else _x_minus_log1p(x)
    return (total(volume) + total(square)) / 2


def _kl_diagonal_by_blocks(*arrays: Array) -> Array:
    """The same of numpy arrays, by the kernel of ``neg_kl`` in float64; but what is so near that its terms, of the size
    of their square root, cancel there beyond the digits of the arrays."""
    rows, dim = arrays[0].shape
    near = dim * CLOSE[dtype_name(arrays[0])]
    value = np.empty(rows)
    step = -(-BLOCK // dim)
    for block in (slice(start, start + step) for start in range(0, rows, step)):
        inputs = [double(x[block]) for x in arrays]
        found = -diag_scores.neg_kl_diagonal.numpy_scores([*inputs, np.ones(1)], None, False)
        again = found < near
        if again.any():
            found[again] = _kl_diagonal(*(x[again] for x in inputs))
        value[block] = found
    return value


def _columns(var: Array) -> Array:
    """Variances [N, D], or [N, 1] of isotropic ones."""
    return var if var.ndim == 2 else var[:, None]


def _x_minus_log1p(x: Array) -> Array:
    """x - log(1 + x), to full relative accuracy also near 0, where it is x^2 / 2: with s = x / (2 + x), log(1 + x) is
    2 (s + s^3/3 + s^5/5 + ...), and x - 2 s = x s."""
    xp = namespace(x)

    def series(x: Array) -> Array:
        s = x / (2 + x)
        square, value = s * s, 0 * s
        for odd in range(21, 1, -2):  # |s| < 1/7: the next term is below 1e-17 of the first
            value = value * square + 1 / odd
        return x * s - 2 * s * square * value

    return _either(abs(x) < 0.25, series, lambda x: x - xp.log1p(x), (0.0, 0.0), x)
