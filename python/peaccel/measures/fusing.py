"""Several items of one identity made one."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import numpy as np

from peaccel.distributions import Distribution
from peaccel.measures._checks import cast, compute_dtype, double
from peaccel.ops._array import Array, as_array, as_numpy, dtype_name, is_torch, namespace

__all__ = ["fuse"]

D = TypeVar("D", bound=Distribution)
Rule = Callable[..., tuple[Array, ...]]  # of d in float64, the group of each row, how many groups


def fuse(d: D, groups: Array, rule: str | None = None) -> D:
    """One item for each group of items, such as the images of one template.

    ========  =====================  ===================================================================================
    rule      of                     the fused item
    ========  =====================  ===================================================================================
    product   Normal (its default)   The normalised product of the densities: var = 1 / sum(1 / var_i) and
                                     mu = var sum(mu_i / var_i). Right for independent measurements of one position;
                                     n items of one variance have a fused variance n times smaller.
    pfe       Normal                 As published with PFE: mu = sum(w_i mu_i) with w_i = (1 / var_i) / sum(1 / var_i),
                                     then of unit length; var = min(var_i) per dimension. What is wrong in it: the
                                     variance is of the best image alone, as if the others had said nothing, and of mu
                                     before the change of its length.
    natural   VonMisesFisher (its    The normalised product of the densities, by natural parameters:
              default)               kappa mu = sum(kappa_i mu_i). Opposite directions cancel.
    mean      all (the default of    The mean of every array: of means or directions, which then get unit length if
              the others)            they are directions, and of var, kappa or scale. It says how sure a typical item of
                                     the group is, whatever the group's size.
    max       Scaled                 As mean, with the largest scale.
    harmonic  Scaled                 As mean, with the harmonic mean of the scales.
    ========  =====================  ===================================================================================

    Directions that add up to zero have no direction: the first axis, (1, 0, ..., 0), stands for it.

    Parameters
    ----------
    d
        N items of any kind; var > 0 for product and pfe.
    groups
        [N] integers, the group of each item, of either kind of array.
    rule
        A name of the table; None for the default of d's kind.

    Returns
    -------
    Of d's class and kind, in the compute dtype (float32 for halves, whose range sums of kappa leave), an item for each
    group in the order of the sorted unique values of groups. Differentiable in torch.

    Raises
    ------
    TypeError
        d is not a distribution, or the rule is of another kind of distribution.
    ValueError
        Unknown rule (the nearest one is named); groups of another shape or dtype.

    References
    ----------
    Shi & Jain, "Probabilistic Face Embeddings", sec. 3.3; "ScaleFace", supplement, for the rules of Scaled.
    """
    if not isinstance(d, Distribution):
        raise TypeError(f"fuse: d must be a distribution, got {type(d).__name__}")
    if rule is None:
        rule = next(name for name, kinds in _RULES.items() if d.kind in kinds)
    if not isinstance(rule, str):
        raise TypeError(f"fuse: rule must be a name or None, got {type(rule).__name__}")
    if rule not in _RULES:
        near = difflib.get_close_matches(rule, _RULES, n=1, cutoff=0.4)
        hint = f"did you mean {near[0]!r}?" if near else f"expected one of {', '.join(_RULES)}"
        raise ValueError(f"fuse: unknown rule {rule!r}; {hint}")
    if d.kind not in _RULES[rule]:
        raise TypeError(f"fuse: rule {rule!r} is of {', '.join(_RULES[rule])}, got {d.kind}")
    rows, count = group_rows("fuse", groups, d.mu)
    fused = _RULES[rule][d.kind](d._map(double), rows, count)
    return type(d)(*[cast(x, compute_dtype(d.mu)) for x in fused])


# -- rules -------------------------------------------------------------------------------------------------------------


def _product(d: Any, rows: Array, count: int) -> tuple[Array, ...]:
    precision = 1 / d.var
    fused = group_sum(precision, rows, count)
    mean = group_sum(_column(precision) * d.mu, rows, count) / _column(fused)
    return mean, 1 / fused


def _pfe(d: Any, rows: Array, count: int) -> tuple[Array, ...]:
    mean, _ = _product(d, rows, count)
    return unit(mean)[0], _group_extreme("min", d.var, rows, count)


def _natural(d: Any, rows: Array, count: int) -> tuple[Array, ...]:
    return unit(group_sum(d.kappa[:, None] * d.mu, rows, count))


def _mean(d: Any, rows: Array, count: int) -> tuple[Array, ...]:
    mu, *spread = (_group_mean(x, rows, count) for x in d.arrays)
    return unit(mu)[0] if d._unit else mu, *spread


def _max(d: Any, rows: Array, count: int) -> tuple[Array, ...]:
    return _mean(d, rows, count)[0], _group_extreme("max", d.scale, rows, count)


def _harmonic(d: Any, rows: Array, count: int) -> tuple[Array, ...]:
    with np.errstate(divide="ignore"):  # a scale of 0 makes the mean 0
        return _mean(d, rows, count)[0], 1 / _group_mean(1 / d.scale, rows, count)


_RULES: Mapping[str, Mapping[str, Rule]] = {  # the first rule of a kind is its default
    "product": {"normal_isotropic": _product, "normal_diagonal": _product},
    "natural": {"vmf": _natural},
    "pfe": {"normal_isotropic": _pfe, "normal_diagonal": _pfe},
    "mean": dict.fromkeys(("normal_isotropic", "normal_diagonal", "vmf", "nivmf", "scaled", "point"), _mean),
    "max": {"scaled": _max},
    "harmonic": {"scaled": _harmonic},
}


def _column(x: Array) -> Array:
    """[N, D] as it is, [N] as [N, 1]."""
    return x if x.ndim == 2 else x[:, None]


def unit(x: Array) -> tuple[Array, Array]:
    """Rows of unit length and the lengths they had; the first axis for a row of zeros."""
    xp = namespace(x)
    square = (x * x).sum(-1)
    somewhere = square > 0
    # Nothing that is not selected may be infinite, in value or gradient.
    length = xp.sqrt(xp.where(somewhere, square, 1.0))
    axis = xp.zeros_like(x[:1])
    axis[:, 0] = 1
    return xp.where(somewhere[:, None], x / length[:, None], axis), xp.where(somewhere, length, 0.0)


# -- groups ------------------------------------------------------------------------------------------------------------


def group_rows(owner: str, groups: Array, like: Array) -> tuple[Array, int]:
    """The group of each row, a number below count in the order of the sorted labels, of ``like``'s kind; and count."""
    groups = as_array(groups, owner, "groups", floating=False)
    shape, dtype = tuple(groups.shape), dtype_name(groups)
    if shape != (len(like),) or "int" not in dtype:
        raise ValueError(f"{owner}: groups have shape {shape} and dtype {dtype}, expected integers ({len(like)},)")
    if is_torch(like):
        torch = namespace(like)
        names, rows = torch.unique(torch.as_tensor(groups, device=like.device), return_inverse=True)
    else:
        names, rows = np.unique(as_numpy(groups), return_inverse=True)
    return rows, len(names)


def group_sum(x: Array, rows: Array, count: int) -> Array:
    """Sums of the rows of x by group, [count, ...]."""
    if is_torch(x):
        return x.new_zeros((count, *x.shape[1:])).index_add(0, rows, x)
    return _reduce(np.add, x, rows, count)


def _group_mean(x: Array, rows: Array, count: int) -> Array:
    sizes = group_sum(namespace(x).ones_like(x[..., 0] if x.ndim == 2 else x), rows, count)
    return group_sum(x, rows, count) / (sizes[:, None] if x.ndim == 2 else sizes)


def _group_extreme(which: str, x: Array, rows: Array, count: int) -> Array:
    """Element by element the smallest ("min") or largest ("max") of each group."""
    if is_torch(x):
        index = (rows if x.ndim == 1 else rows[:, None]).expand_as(x)
        return x.new_zeros((count, *x.shape[1:])).scatter_reduce(0, index, x, f"a{which}", include_self=False)
    return _reduce(np.minimum if which == "min" else np.maximum, x, rows, count)


def _reduce(function: np.ufunc, x: Array, rows: Array, count: int) -> Array:
    by_group = np.argsort(rows, kind="stable")
    starts = np.searchsorted(rows[by_group], np.arange(count))
    return function.reduceat(x[by_group], starts, axis=0)
