"""Fits to sets of items: the prior of positions, and von Mises-Fisher distributions."""

from __future__ import annotations

import inspect
import math
from typing import Any, overload

import numpy as np
from numpy.typing import ArrayLike

from peaccel._utils.arrays import (
    Array,
    ArrayT,
    Given,
    KindT,
    Numpy,
    as_array,
    cast,
    dtype_name,
    is_torch,
    namespace,
    on_host,
    quiet,
    require_same_kind,
)
from peaccel._utils.suggestions import require_classes
from peaccel.distributions import Distribution, VonMisesFisher, concat
from peaccel.distributions._numerics import double, ratio_dx
from peaccel.distributions.checks import EUCLIDEAN, compute_dtype, order
from peaccel.distributions.fuse import Groups, group_rows, group_sum, unit
from peaccel.fits.records import Prior
from peaccel.fits.sides import warn_if_sides_differ
from peaccel.ops import bessel

__all__ = ["fit_prior", "fit_vmf"]


@overload
def fit_prior(
    queries: Distribution[ArrayT],
    gallery: Distribution[ArrayT],
    query_labels: ArrayLike,
    gallery_labels: ArrayLike,
) -> Prior[ArrayT]: ...
@overload
def fit_prior(d: Distribution[ArrayT], labels: ArrayLike) -> Prior[ArrayT]: ...
@quiet
def fit_prior(*given: Any, **named: Any) -> Any:
    """The mean and variance of the true positions of classes, for ``llr``, from labelled items.

    One-way analysis of variance: with c classes of n_k items, ``(between - within) / n0``, n0 = (N - sum n_k^2 / N) /
    (c - 1), where between and within are the mean squares; 0 where that is negative. It rests on the means alone, so
    it does not depend on the scale of the variances being right.

    ``fit_prior(d, labels)`` is of one set of items, ``fit_prior(queries, gallery, query_labels, gallery_labels)`` of
    both sides taken together. Sides of two modalities, whose means differ, have one prior once they are centred: by
    what ``pe.calibrate(queries, gallery, pairs, labels)`` finds, applied to each.

    Parameters
    ----------
    d
        N items in Euclidean space: Normal or Point.
    labels
        [N] numbers or strings, at least two classes, one of them with at least two items.
    queries, gallery
        The items of two sides, alike in class, kind, dimension and dtype.
    query_labels, gallery_labels
        Labels of their items, which name the same classes.

    Returns
    -------
    Prior
        A tuple: ``mean`` [D], of d's kind and dtype, the mean of the class means; ``var``, a number, or [D] for
        diagonal normals. ``pe.io.write_fit`` keeps it.

    Warns
    -----
    UserWarning
        Of two sides: items of one class have another mean on one side than on the other.

    Raises
    ------
    TypeError
        d, queries or gallery is not a Normal or a Point, or the sides are of two classes.
    ValueError
        labels of another shape, NaN or None among them, or too few classes or items; sides of two dimensions or dtypes.

    References
    ----------
    Searle, Casella & McCulloch, "Variance Components", 1992, sec. 3.6.

    Examples
    --------
    >>> d = pe.Normal([[0.9, 0.1], [1.1, -0.1], [-1.0, 0.0], [-0.8, 0.2]], var=[0.1, 0.1, 0.1, 0.1])
    >>> prior = pe.fit_prior(d, labels=[0, 0, 1, 1])
    >>> round(prior.var, 3)
    0.895
    >>> pe.pairwise(d[:1], d, pe.scores.llr(prior_var=prior.var, prior_mean=prior.mean)).round(2).tolist()
    [[2.0, 1.91, -6.48, -4.86]]
    """
    sided = "gallery" in named or (len(given) > 1 and isinstance(given[1], Distribution))
    return (_fit_prior_two if sided else _fit_prior_one)(*given, **named)


def _fit_prior_one(d: Distribution[ArrayT], labels: ArrayLike) -> Prior[ArrayT]:
    _require_positions("d", d)
    mu = on_host(d.mu, "fit_prior", "d")
    names = _names("labels", labels, len(d))
    _, classes, sizes = np.unique(names, return_inverse=True, return_counts=True)
    items, groups = len(mu), len(sizes)
    if groups < 2 or items <= groups:
        raise ValueError(
            f"fit_prior: labels name {groups} classes of {items} items, expected two classes and a repeated one"
        )
    of = Groups(classes, groups, np.argsort(classes, kind="stable"))
    (sums,) = group_sum(lambda x: (x,), [mu], of)
    means = sums / sizes[:, None]
    (squares,) = group_sum(lambda x, rows: ((x - means[rows]) ** 2,), [mu, classes], of)
    within = squares.sum(0) / (items - groups)
    between = (sizes[:, None] * (means - sums.sum(0) / items) ** 2).sum(0) / (groups - 1)
    typical = (items - (sizes**2).sum() / items) / (groups - 1)
    var, mean = (between - within) / typical, means.mean(0)
    if d.kind != "normal_diagonal":  # the mean first: cut in each dimension, noise alone would have a variance
        return Prior(_like(mean, d.mu), max(float(var.mean()), 0.0))
    return Prior(_like(mean, d.mu), _like(np.maximum(var, 0), d.mu))


# What help() shows is one of the two forms; the docstring has both.
fit_prior.__signature__ = inspect.signature(_fit_prior_one)  # type: ignore[attr-defined]


def _fit_prior_two(
    queries: Distribution[ArrayT],
    gallery: Distribution[ArrayT],
    query_labels: ArrayLike,
    gallery_labels: ArrayLike,
) -> Prior[ArrayT]:
    sides = {"queries": queries, "gallery": gallery}
    for name, d in sides.items():
        _require_positions(name, d)
    both = concat([queries, gallery])
    names = [
        _names(f"{name}_labels", labels, len(d))
        for name, labels, d in zip(("query", "gallery"), (query_labels, gallery_labels), sides.values(), strict=True)
    ]
    # The first item of each class on either side.
    _, *rows = np.intersect1d(*names, return_indices=True)
    remedy = "one prior was fitted to both; apply what pe.calibrate(queries, gallery, pairs, labels) finds first"
    if len(rows[0]):
        warn_if_sides_differ("fit_prior", remedy, sides, rows)
    return _fit_prior_one(both, np.concatenate(names))


def _require_positions(name: str, d: object) -> None:
    if getattr(d, "kind", "") not in EUCLIDEAN:
        found = getattr(d, "kind", type(d).__name__)
        raise TypeError(f"fit_prior: {name} must be a Normal or a Point, got {found}")


def _names(name: str, labels: Array, items: int) -> Array:
    require_classes("fit_prior", name, labels)
    names = on_host(labels, "fit_prior", name)
    if names.shape != (items,):
        raise ValueError(f"fit_prior: {name} have shape {names.shape}, expected ({items},)")
    return names


def _like(x: Numpy, mu: Array) -> Array:
    if is_torch(mu):
        return mu.new_tensor(x)
    return x.astype(np.float32 if dtype_name(mu) == "bfloat16" else mu.dtype)


@quiet
def fit_vmf(
    z: KindT | Given, *, weights: KindT | Given | None = None, groups: ArrayLike | None = None
) -> VonMisesFisher[KindT]:
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
        In the compute dtype (float32 for 16-bit floats), an item for each group in the order of the sorted unique
        values of groups, one without groups. A group whose rows are all equal, as a single one is, has a likelihood
        without a maximum: its kappa is that of the spread of all other groups' rows about their own means, so that
        persons of one photograph are scored like the others; where there are no such groups it is inf, at which scores
        have their limits. Where rows cancel, or all weights are 0, kappa is 0 and mu the first axis,
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

    Examples
    --------
    >>> z = np.array([[0.8, 0.6], [0.8, -0.6], [0.6, 0.8], [0.6, -0.8]])
    >>> d = pe.fit_vmf(z)
    >>> d.mu.round(3).tolist(), d.kappa.round(3).tolist()
    ([[1.0, 0.0]], [2.014])
    """
    rows = as_array(z, "fit_vmf", "z")
    shape = tuple(rows.shape)
    if len(shape) != 2 or shape[0] < 1 or shape[1] < 2:
        raise ValueError(f"fit_vmf: z has shape {shape}, expected (N, D) with N >= 1 and D >= 2")
    xp = namespace(rows)
    w = None
    if weights is not None:
        given = as_array(weights, "fit_vmf", "weights", like=rows)
        require_same_kind("fit_vmf", "weights", given, "z", rows)
        if tuple(given.shape) != shape[:1]:
            raise ValueError(f"fit_vmf: weights have shape {tuple(given.shape)}, expected ({shape[0]},)")
        w = double(given)
        if not bool((w >= 0).all()):
            raise ValueError(f"fit_vmf: weights hold {float(w[~(w >= 0)][0]):g}, expected numbers >= 0")
    of = group_rows("fit_vmf", xp.zeros_like(rows[:, 0], dtype=xp.int64) if groups is None else groups, rows)

    weight, mean, spread = _weighted_moments(rows, w, of)
    known = weight > 0
    mu, r = unit(mean)
    # r^2 + spread, the mean square of the rows, is 1 up to rounding. Divided by it, r and spread give the same kappa.
    square = xp.where(known, r * r + spread, 1.0)
    r, spread = r / xp.sqrt(square), xp.where(known, spread / square, 1.0)
    if groups is not None:
        r, spread = _with_pooled(r, spread, weight, w, of)
    kappa = _concentration(shape[1], r, spread)
    return VonMisesFisher(cast(mu, compute_dtype(rows)), cast(kappa, compute_dtype(rows)))


def _weighted_moments(z: Array, weights: Array | None, groups: Groups) -> tuple[Array, Array, Array]:
    """Of each group the sum of the weights, the weighted mean, and the weighted mean of |z - mean|^2; 0 without weight.

    The last is the mean of |z|^2 less the square of the mean. Where these are close, it is summed over differences.
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


def _with_pooled(r: Array, spread: Array, weight: Array, weights: Array | None, groups: Groups) -> tuple[Array, Array]:
    """Mean lengths and spreads, for groups of equal rows those of the spread of all other groups' rows.

    A group of n rows has n - 1 differences from its mean; of weighted ones, n = (sum w)^2 / sum w^2.
    """
    xp, alike = namespace(r), _alike(spread)
    others = ~alike & (weight > 0)
    if not bool(alike.any()) or not bool(others.any()):
        return r, spread
    squares = weight if weights is None else group_sum(lambda w: (w * w,), [weights], groups)[0]
    # What `where` does not select must be finite too, or its gradient would be NaN.
    size = xp.where(others, weight, 1.0) ** 2 / xp.where(others, squares, 1.0)
    pooled = xp.where(others, size * spread, 0.0).sum() / (size - 1).sum()
    pooled = xp.where(pooled < 1, pooled, 1 - 1e-12)
    return xp.where(alike, xp.sqrt(1 - pooled), r), xp.where(alike, pooled, spread)


def _alike(spread: Array) -> Array:
    """Where a spread is 0 up to rounding."""
    return spread <= (8 * 2.0**-52) ** 2


def _concentration(dim: int, r: Array, spread: Array) -> Array:
    """The kappa at which A(kappa) = r, where spread = 1 - r^2; inf where the spread is 0 up to rounding."""
    xp, alike = namespace(r), _alike(spread)
    r, spread = xp.where(alike, 0.5, r), xp.where(alike, 0.75, spread)
    fixed_r, fixed_spread = (r.detach(), spread.detach()) if is_torch(r) else (r, spread)
    kappa = fixed_r * (dim - fixed_r**2) / fixed_spread
    for _ in range(6):  # the start is off by a few percent, from where four steps reach rounding
        kappa = xp.maximum(kappa / 2, kappa - _excess(dim, kappa, fixed_r, fixed_spread) / ratio_dx(dim, kappa))
    # One more step, with kappa fixed, gives the derivative: 1 / A'(kappa) in r, as the solution has.
    kappa = kappa - _excess(dim, kappa, r, spread) / ratio_dx(dim, kappa)
    return xp.where(alike, math.inf, kappa)


def _excess(dim: int, kappa: Array, r: Array, spread: Array) -> Array:
    """A(kappa) - r; near r = 1 from 1 - A(kappa)^2 and 1 - r^2, which do not cancel."""
    v = order(dim / 2, kappa)
    ratio = bessel.iv_ratio(v, kappa)
    # 1e-300 avoids 0 / 0 at r = 0, where this is not selected.
    far = (spread - bessel.iv_ratio_complement(v, kappa)) / (ratio + r + 1e-300)
    return namespace(r).where(r > 0.7, far, ratio - r)
