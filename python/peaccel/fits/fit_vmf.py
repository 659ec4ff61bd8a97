"""The von Mises-Fisher distribution of directions, fitted by maximum likelihood."""

from __future__ import annotations

import math
from typing import Any, Literal, overload

import numpy as np
from numpy.typing import ArrayLike

from peaccel._utils.arrays import (
    Array,
    Given,
    KindT,
    Numpy,
    as_array,
    as_numpy,
    cast,
    is_torch,
    namespace,
    quiet,
    require_finite,
    require_same_kind,
    widened,
)
from peaccel._utils.labels import plain
from peaccel.distributions import VonMisesFisher
from peaccel.distributions._numerics import double, ratio_dx
from peaccel.distributions.checks import compute_dtype, order
from peaccel.distributions.classes import is_readable, require_unit
from peaccel.distributions.fuse import Groups, group_rows, group_sum, unit
from peaccel.ops import bessel

__all__ = ["fit_vmf"]

BLOCK = 1 << 12
"""Rows whose lengths are looked at at once."""


@overload
def fit_vmf(
    z: KindT | Given,
    *,
    weights: KindT | Given | None = None,
    groups: ArrayLike | None = None,
    names: Literal[False] = False,
) -> VonMisesFisher[KindT]: ...
@overload
def fit_vmf(
    z: KindT | Given, *, weights: KindT | Given | None = None, groups: ArrayLike, names: Literal[True]
) -> tuple[VonMisesFisher[KindT], Numpy]: ...
@quiet
def fit_vmf(z: Any, *, weights: Any = None, groups: ArrayLike | None = None, names: bool = False) -> Any:
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
        [N] integers or strings: a list, an array of either kind, a column of a table. None for one group.
    names
        Whether to return the group of each item too.

    Returns
    -------
    VonMisesFisher
        In the compute dtype (float32 for 16-bit floats), an item for each group in the order of the sorted unique
        values of groups, one without groups. A group whose rows are all equal, as a single one is, has a likelihood
        without a maximum: its kappa is that of the spread of all other groups' rows about their means, so that
        persons of one photograph are scored like the others; where there are no such groups it is inf, at which scores
        have their limits. Where rows cancel, or all weights are 0, kappa is 0 and mu the first axis,
        (1, 0, ..., 0). Differentiable in torch, once: mu and kappa in z and weights. With
        `names` a tuple of it and the values of groups [G], a numpy array.

    Raises
    ------
    TypeError
        z or weights are not arrays, or of different kinds.
    ValueError
        Wrong shapes, dtypes or devices; a weight that is negative or NaN; names without groups.

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
    if is_readable(rows):
        require_finite("fit_vmf", "z", as_numpy(rows))
        for begin in range(0, len(rows), BLOCK):
            require_unit("fit_vmf", "z", as_numpy(widened(rows[begin : begin + BLOCK])), first=begin)
    w = None
    if weights is not None:
        numbers = as_array(weights, "fit_vmf", "weights", like=rows)
        require_same_kind("fit_vmf", "weights", numbers, "z", rows)
        if tuple(numbers.shape) != shape[:1]:
            raise ValueError(f"fit_vmf: weights have shape {tuple(numbers.shape)}, expected ({shape[0]},)")
        w = double(numbers)
        if not bool((w >= 0).all()):
            raise ValueError(f"fit_vmf: weights hold {float(w[~(w >= 0)][0]):g}, expected numbers >= 0")
    if names and groups is None:
        raise ValueError("fit_vmf: names is True and groups is None, expected groups, whose names these are")
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
    law = VonMisesFisher(cast(mu, compute_dtype(rows)), cast(kappa, compute_dtype(rows)))
    return (law, np.unique(plain("fit_vmf", "groups", groups))) if names else law


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
