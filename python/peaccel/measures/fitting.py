"""What sets of items say: of priors, von Mises-Fisher distributions, the scale of uncertainties, the middle cosine."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from peaccel.distributions import Distribution, VonMisesFisher
from peaccel.fits import Calibration, Prior
from peaccel.measures._checks import NORMALS, cast, compute_dtype, double, order, require_kind
from peaccel.measures.density import one_minus_ratio, ratio_dx, scaled_log_norm
from peaccel.measures.fusing import Groups, group_rows, group_sum, unit
from peaccel.ops import bessel
from peaccel.ops._array import Array, as_array, dtype_name, is_torch, namespace, on_host, require_same_kind

__all__ = ["calibrate", "fit_prior", "fit_shift", "fit_vmf"]


def fit_prior(d: Distribution, labels: Array) -> Prior:
    """The mean and variance of the true positions of classes, for ``llr``, from labelled items.

    One-way analysis of variance: with c classes of n_k items, ``(between - within) / n0``, n0 = (N - sum n_k^2 / N) /
    (c - 1), where between and within are the mean squares; 0 where that is negative. It rests on the means alone, so
    it does not depend on the scale of the variances being right.

    Parameters
    ----------
    d
        N items in Euclidean space: Normal or Point.
    labels
        [N] integers, at least two classes, one of them with at least two items.

    Returns
    -------
    Prior
        A tuple: ``mean`` [D], of d's kind and dtype, the mean of the class means; ``var``, a number, or [D] for
        diagonal normals. ``pe.io.write_fit`` keeps it.

    Raises
    ------
    TypeError
        d is not a Normal or a Point.
    ValueError
        labels of another shape, or too few classes or items.

    References
    ----------
    Searle, Casella & McCulloch, "Variance Components", 1992, sec. 3.6.
    """
    if getattr(d, "kind", "") not in ("normal_isotropic", "normal_diagonal", "point"):
        raise TypeError(f"fit_prior: d must be a Normal or a Point, got {getattr(d, 'kind', type(d).__name__)}")
    mu = on_host("fit_prior", "d", d.mu).astype(np.float64)
    names = on_host("fit_prior", "labels", labels)
    if names.shape != (len(d),):
        raise ValueError(f"fit_prior: labels have shape {names.shape}, expected ({len(d)},)")
    _, classes, sizes = np.unique(names, return_inverse=True, return_counts=True)
    items, groups = len(mu), len(sizes)
    if groups < 2 or items <= groups:
        raise ValueError(
            f"fit_prior: labels name {groups} classes of {items} items, expected two classes and a repeated one"
        )
    sums = np.zeros((groups, mu.shape[1]))
    np.add.at(sums, classes, mu)
    means = sums / sizes[:, None]
    within = ((mu - means[classes]) ** 2).sum(0) / (items - groups)
    between = (sizes[:, None] * (means - mu.mean(0)) ** 2).sum(0) / (groups - 1)
    typical = (items - (sizes**2).sum() / items) / (groups - 1)
    var = np.maximum(between - within, 0) / typical
    mean = means.mean(0)
    if d.kind != "normal_diagonal":
        return Prior(_like(mean, d.mu), float(var.mean()))
    return Prior(_like(mean, d.mu), _like(var, d.mu))


def _like(x: np.ndarray[Any, Any], mu: Array) -> Array:
    if is_torch(mu):
        return mu.new_tensor(x)
    return x.astype(np.float32 if dtype_name(mu) == "bfloat16" else mu.dtype)


def fit_vmf(z: Array, weights: Array | None = None, groups: Array | None = None) -> VonMisesFisher:
    """The von Mises-Fisher distribution of directions by maximum likelihood, one for each group.

    mu is the direction of the weighted mean and kappa solves ``A_D(kappa) = r``, r its length: Newton's method from
    ``r (D - r^2) / (1 - r^2)``, where 1 - r^2 is the weighted mean of |z - mean|^2, so that concentrated groups keep
    their digits.

    Parameters
    ----------
    z
        [N, D], N >= 1, D >= 2: rows of unit length (rounding to a half is evened out).
    weights
        [N], >= 0, of z's kind of array; only their ratios within a group count. None for equal ones.
    groups
        [N] integers, of either kind of array. None for one group.

    Returns
    -------
    VonMisesFisher
        In the compute dtype (float32 for halves), an item for each group in the order of the sorted unique values of
        groups, one without groups. kappa is inf where all rows of a group are equal, as a single one is: the
        likelihood has no maximum there. Where rows cancel, or all weights are 0, kappa is 0 and mu the first axis,
        (1, 0, ..., 0). Differentiable in torch, once: mu and kappa in z and weights.

    Raises
    ------
    TypeError
        z or weights are not arrays, or of different kinds.
    ValueError
        Wrong shapes, dtypes or devices; a weight that is negative or NaN.

    Notes
    -----
    Measured error of kappa in float64, relative, where the mean length is exact, kappa 1e-8 .. 1e8, D 2 .. 2048: 1e-15.

    References
    ----------
    Banerjee et al., "Clustering on the Unit Hypersphere using von Mises-Fisher Distributions", 2005, eq. 4.4; Sra, "A
    short note on parameter approximation for von Mises-Fisher distributions", 2012, for Newton's method.
    """
    z = as_array(z, "fit_vmf", "z")
    shape = tuple(z.shape)
    if len(shape) != 2 or shape[0] < 1 or shape[1] < 2:
        raise ValueError(f"fit_vmf: z has shape {shape}, expected (N, D) with N >= 1 and D >= 2")
    xp = namespace(z)
    w = None
    if weights is not None:
        weights = as_array(weights, "fit_vmf", "weights", like=z)
        require_same_kind("fit_vmf", "weights", weights, "z", z)
        if tuple(weights.shape) != shape[:1]:
            raise ValueError(f"fit_vmf: weights have shape {tuple(weights.shape)}, expected ({shape[0]},)")
        w = double(weights)
        if not bool((w >= 0).all()):
            raise ValueError(f"fit_vmf: weights hold {float(w[~(w >= 0)][0]):g}, expected numbers >= 0")
    of = group_rows("fit_vmf", xp.zeros_like(z[:, 0], dtype=xp.int64) if groups is None else groups, z)

    weight, mean, spread = _weighted_moments(z, w, of)
    known = weight > 0
    mu, r = unit(mean)
    # r^2 + spread is the mean square of the rows, 1 but for rounding: divided out, r and spread tell the same kappa.
    square = xp.where(known, r * r + spread, 1.0)
    kappa = _concentration(shape[1], r / xp.sqrt(square), xp.where(known, spread / square, 1.0))
    return VonMisesFisher(cast(mu, compute_dtype(z)), cast(kappa, compute_dtype(z)))


def _weighted_moments(z: Array, weights: Array | None, groups: Groups) -> tuple[Array, Array, Array]:
    """Of each group the sum of the weights, the weighted mean, and the weighted mean of |z - mean|^2; 0 without weight.

    That is the mean of |z|^2 less the mean's square but where the two are near, where it is another sum.
    """

    def terms(x: Array) -> tuple[Array, ...]:
        xp = namespace(x)
        return xp.ones_like(x[:, 0]), x, xp.einsum("nd,nd->n", x, x)

    weight, mean, square = group_sum(terms, [z], groups, weights)
    known = namespace(weight).where(weight > 0, weight, 1.0)
    mean, square = mean / known[:, None], square / known
    spread = square - (mean * mean).sum(-1)
    near = spread < square / 8
    if not bool(near.any()):
        return weight, mean, spread

    def differences(x: Array, rows: Array) -> tuple[Array, ...]:
        x = x - mean[rows]
        return (namespace(x).einsum("nd,nd->n", x, x),)

    again = slice(None) if bool(near.all()) else near[groups.rows]
    rows = groups.rows[again]
    of_them = None if weights is None else weights[again]
    (total,) = group_sum(differences, [z[again], rows], group_rows("fit_vmf", rows, rows), of_them)
    spread[near] = total / known[near]
    return weight, mean, spread


def _concentration(dim: int, r: Array, spread: Array) -> Array:
    """kappa of A(kappa) = r, spread = 1 - r^2; inf where the spread is what rounding leaves of none."""
    xp = namespace(r)
    alike = spread <= (8 * 2.0**-52) ** 2
    r, spread = xp.where(alike, 0.5, r), xp.where(alike, 0.75, spread)
    fixed_r, fixed_spread = (r.detach(), spread.detach()) if is_torch(r) else (r, spread)
    kappa = fixed_r * (dim - fixed_r**2) / fixed_spread
    for _ in range(6):  # from a few percent off, four steps reach rounding
        kappa = xp.maximum(kappa / 2, kappa - _excess(dim, kappa, fixed_r, fixed_spread) / ratio_dx(dim, kappa))
    # One more step with kappa fixed: its derivative in r is 1 / A'(kappa), that of the solution.
    kappa = kappa - _excess(dim, kappa, r, spread) / ratio_dx(dim, kappa)
    return xp.where(alike, math.inf, kappa)


def _excess(dim: int, kappa: Array, r: Array, spread: Array) -> Array:
    """A(kappa) - r; for r near 1, where both are, from the differences to 1 of their squares."""
    v = order(dim / 2, kappa)
    ratio = bessel.iv_ratio(v, kappa)
    far = (spread - bessel.iv_ratio_complement(v, kappa)) / (ratio + r + 1e-300)  # at r = 0, not selected, 0 / 0
    return namespace(r).where(r > 0.7, far, ratio - r)


# -- calibration -------------------------------------------------------------------------------------------------------


def calibrate(d: Distribution, pairs: Array, labels: Array, offset: bool = True) -> Calibration:
    """The scale at which uncertainties fit the pairs of one identity, for scores that need it right: mls, llr, ppk.

    By maximum likelihood of the same pairs under the model behind ``mls``. Normal: mu_i - mu_j is drawn from
    N(0, s_i + s_j) with s = a var + b; a, b >= 0. VonMisesFisher: mu_i and mu_j are drawn around one direction that is
    uniform on the sphere, with concentrations a kappa, which maximises the mean ``mls``.

    Parameters
    ----------
    d
        N items, Normal or VonMisesFisher; detached.
    pairs
        [P, 2] integers: rows of d. Held-out identities: a model is surer of those it was trained on.
    labels
        [P] booleans (or 0 and 1): whether a pair is of one identity. Different pairs do not enter: how far apart they
        are is for the prior to say (``pe.fit_prior``), not for the uncertainties.
    offset
        False fits a alone, with b = 0.

    Returns
    -------
    Calibration
        ``c = pe.calibrate(d, pairs, labels)`` has ``c.a`` and ``c.b``, and ``c(gallery)`` applies them. a below 1: the
        model says it is less sure than it is (Normal), surer than it is (VonMisesFisher). a = 0 and b > 0: its
        variances say nothing that one constant does not. ``pe.io.write_fit`` keeps it.

    Raises
    ------
    TypeError
        d is of another class.
    ValueError
        pairs or labels of wrong shape or dtype, rows out of range, no same pair, a same pair of a row with itself;
        same pairs for which no maximum exists: equal means, zero variances, directions no more alike than chance.

    References
    ----------
    Shi & Jain, "Probabilistic Face Embeddings", eq. 3, the likelihood for normals, here a function of the scale.
    """
    kind = require_kind("calibrate", "d", d, (*NORMALS, "vmf"), "with a variance or concentration")
    rows, same = _labelled_pairs("calibrate", d, pairs, labels)
    first, second = _different_rows("calibrate", rows[same], "one identity")
    mu, spread = (on_host("calibrate", "d", x).astype(np.float64) for x in d.arrays)
    square = (mu[first] - mu[second]) ** 2
    if kind == "vmf":
        return Calibration(_fit_kappa(d.dim, spread[first], spread[second], square.sum(-1)), 0.0, "VonMisesFisher")
    if kind == "normal_isotropic":
        square = square.mean(-1)
    return Calibration(*_fit_var(square, spread[first] + spread[second], offset), "Normal")


def fit_shift(d: Distribution, pairs: Array, labels: Array) -> float:
    """ScaleFace's mu, a cosine between alike and different: (mean of same pairs + mean of different pairs) / 2.

    Parameters
    ----------
    d
        N items of any kind; cosines are of means or directions. Detached.
    pairs
        [P, 2] integers: rows of d. Held-out identities, as the cosines of those trained on are wider apart.
    labels
        [P] booleans (or 0 and 1): whether a pair is of one identity; some are and some are not.

    Returns
    -------
    A number in [-1, 1]; NaN where a pair has a mean of zero length.

    Raises
    ------
    TypeError
        d is not a distribution.
    ValueError
        pairs or labels of wrong shape or dtype, rows out of range, a pair of a row with itself; no same or no
        different pair.

    References
    ----------
    "ScaleFace", the threshold of mu-ScaleFace; its code also tries the best F1 and the crossing of two normals, and
    uses this.
    """
    if not isinstance(d, Distribution):
        raise TypeError(f"fit_shift: d must be a distribution, got {type(d).__name__}")
    rows, same = _labelled_pairs("fit_shift", d, pairs, labels)
    means = []
    for label, what in ((True, "one identity"), (False, "different identities")):
        first, second = _different_rows("fit_shift", rows[same == label], what)
        a, b = (on_host("fit_shift", "d", d.mu)[x].astype(np.float64) for x in (first, second))
        with np.errstate(invalid="ignore"):
            means.append(((a * b).sum(1) / (np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1))).mean())
    return float(sum(means) / 2)


# -- pairs -------------------------------------------------------------------------------------------------------------


def _labelled_pairs(owner: str, d: Distribution, pairs: Array, labels: Array) -> tuple[Array, Array]:
    """Rows of d, [P, 2], and booleans [P]."""
    rows, same = (on_host(owner, name, x) for name, x in (("pairs", pairs), ("labels", labels)))
    if rows.ndim != 2 or rows.shape[1] != 2 or rows.dtype.kind not in "iu":
        raise ValueError(f"{owner}: pairs have shape {rows.shape} and dtype {rows.dtype}, expected integers (P, 2)")
    if same.shape != rows.shape[:1] or not (same.dtype.kind in "biu" and np.isin(same, (0, 1)).all()):
        found = f"shape {same.shape} and dtype {same.dtype}"
        raise ValueError(f"{owner}: labels have {found}, expected booleans ({len(rows)},), whether of one identity")
    if rows.size and not (rows.min() >= 0 and rows.max() < len(d)):
        wrong = rows[(rows < 0) | (rows >= len(d))][0]
        raise ValueError(f"{owner}: pairs hold {wrong}, expected rows of d, 0 .. {len(d) - 1}")
    return rows, same.astype(bool)


def _different_rows(owner: str, rows: Array, what: str) -> tuple[Array, Array]:
    """The two sides of pairs of which there must be one, and none of a row with itself."""
    first, second = rows.T
    if not len(first):
        raise ValueError(f"{owner}: labels name no pair of {what}, expected at least one")
    if (first == second).any():
        raise ValueError(f"{owner}: pairs hold row {first[first == second][0]} with itself, expected different rows")
    return first, second


# -- the likeliest scale -----------------------------------------------------------------------------------------------


def _fit_var(square: Array, var: Array, offset: bool) -> tuple[float, float]:
    """a and b of squared differences with expectation a var + 2 b (var of a pair).

    With the variances as t ((1 - w) var / mean(var) + w) the best t is known for each w, which leaves a search over w
    in [0, 1], from a alone to b alone.
    """
    typical = float(var.mean())
    if not (0 < typical < math.inf and var.min() >= 0):
        raise ValueError("calibrate: var of the same pairs must be finite, >= 0 and not all 0")
    if not 0 < square.mean() < math.inf:
        raise ValueError("calibrate: mu of the same pairs must be finite and not all equal: no scale is the likeliest")
    tilt = 1 - var / typical

    def shape(w: float) -> Array:
        return (1 - w) * var / typical + w

    def loss(w: float) -> float:
        return float(np.log((square / shape(w)).mean()) + np.log(shape(w)).mean())

    def slope(w: float) -> float:
        s = shape(w)
        return float((tilt / s).mean() - (square * tilt / s**2).mean() / (square / s).mean())

    w = 0.0
    if var.min() == 0 and not offset:
        raise ValueError("calibrate: var of a same pair is 0, which no factor changes; offset=True adds to it")
    if offset:
        places = np.r_[0.0, np.logspace(-9, 0, 37)]
        w = _minimum(loss, slope, places[1:] if var.min() == 0 else places)
    t = float((square / shape(w)).mean())
    return t * (1 - w) / typical, t * w / 2


def _fit_kappa(dim: int, kappa1: Array, kappa2: Array, square: Array) -> float:
    """The factor on all concentrations that maximises log C(a k1) + log C(a k2) - log C(a |k1 mu1 + k2 mu2|)."""
    product = kappa1 * kappa2 * square
    length = np.sqrt(np.maximum((kappa1 + kappa2) ** 2 - product, 0))
    lost = product / np.where(kappa1 + kappa2 > 0, kappa1 + kappa2 + length, 1)  # kappa1 + kappa2 - length
    ends = ((1, kappa1), (1, kappa2), (-1, length))

    def loss(log_a: float) -> float:
        a = math.exp(log_a)
        return float((a * lost - sum(sign * scaled_log_norm(dim, a * k) for sign, k in ends)).mean())

    def slope(log_a: float) -> float:
        a = math.exp(log_a)
        return float((lost - sum(sign * k * one_minus_ratio(dim, a * k) for sign, k in ends)).mean())

    places = math.log(10) * np.linspace(-8, 8, 65)
    log_a = _minimum(loss, slope, places)
    if not places[0] < log_a < places[-1]:
        raise ValueError("calibrate: no factor from 1e-8 to 1e8 is the likeliest: same pairs are all equal or unlike")
    return math.exp(log_a)


def _minimum(loss: Callable[[float], float], slope: Callable[[float], float], places: Array) -> float:
    """Where a function is least: the best of the places, then the root of the slope between its neighbours.

    By the Illinois form of false position, which brackets the root and takes about as many steps as Newton's method. A
    function that is flat up to rounding is least at the first place.
    """
    losses = np.array([loss(x) for x in places])
    best = int(np.argmax(losses <= losses.min() + 1e-13 * max(1, abs(losses.min()))))
    low, high = (float(places[i]) for i in (max(best - 1, 0), min(best + 1, len(places) - 1)))
    at_low, at_high = slope(low), slope(high)
    if not at_low < 0 < at_high:
        return float(places[best])
    side = 0
    for _ in range(100):
        x = (low * at_high - high * at_low) / (at_high - at_low)
        if not low < x < high:
            break
        value = slope(x)
        if value == 0:
            return x
        if value < 0:
            low, at_low, at_high, side = x, value, at_high / (2 if side == -1 else 1), -1
        else:
            high, at_high, at_low, side = x, value, at_low / (2 if side == 1 else 1), 1
    return low if abs(at_low) < abs(at_high) else high
