"""Fusion of several items of one identity into one."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeVar, overload

import numpy as np
from numpy.typing import ArrayLike

from peaccel._utils.arrays import Array, Numpy, as_numpy, cast, dtype_name, is_torch, namespace, quiet
from peaccel._utils.labels import plain
from peaccel._utils.suggestions import require_classes, unknown
from peaccel.distributions._numerics import double
from peaccel.distributions.checks import compute_dtype, require_distribution
from peaccel.distributions.classes import Distribution

__all__ = ["fuse", "rules"]

D = TypeVar("D", bound=Distribution)
BLOCK = 1 << 15  # numbers that are converted to float64 at a time, so that they stay in a core's cache


class Groups(NamedTuple):
    """The group of each row."""

    rows: Array  # [N]: the group of each row, numbered in the order of the sorted labels
    number: int
    order: Any = None  # rows in the order of their groups, for numpy; None where they lie so


Rule = Callable[[Any, Groups], tuple[Array, ...]]


@overload
def fuse(d: D, groups: ArrayLike, rule: str | None = None, *, names: Literal[False] = False) -> D: ...
@overload
def fuse(d: D, groups: ArrayLike, rule: str | None = None, *, names: Literal[True]) -> tuple[D, Numpy]: ...
@quiet
def fuse(d: Any, groups: ArrayLike, rule: str | None = None, *, names: bool = False) -> Any:
    """One item for each group of items, such as the images of one template.

    =========  ====================  ===================================================================================
    rule       of                    the fused item
    =========  ====================  ===================================================================================
    product    Normal (its default)  The normalised product of the densities: var = 1 / sum(1 / var_i) and
                                     mu = var sum(mu_i / var_i). Right for independent measurements of one position;
                                     n items of one variance have a fused variance n times smaller.
    pfe        Normal                As published with PFE: mu = sum(w_i mu_i) with w_i = (1 / var_i) / sum(1 / var_i),
                                     then of unit length; var = min(var_i) per dimension. Its error: the
                                     variance is of the best image alone, as if the others had said nothing, and of mu
                                     before the change of its length.
    natural    VonMisesFisher (its   The normalised product of the densities, by natural parameters:
               default)              kappa mu = sum(kappa_i mu_i). Opposite directions cancel.
    direction  Point (its default)   The mean of the directions, of unit length: lengths, by which cosine ranks nothing,
                                     do not count. A row of zeros has no direction, and counts for nothing.
    mean       all (the default of   The mean of every array: of means or directions, which then get unit length if
               the others)           they are directions, and of var, kappa or scale. It says how sure a typical item of
                                     the group is, whatever the group's size. Of points: with their lengths.
    max        Scaled                As mean, with the largest scale.
    harmonic   Scaled                As mean, with the harmonic mean of the scales.
    =========  ====================  ===================================================================================

    Where items of a group are without any doubt (var = 0, in a dimension, or kappa = inf), the product and the natural
    rule are of these alone, with equal shares, and without any doubt themselves.

    Directions that add up to zero have no direction: the first axis, (1, 0, ..., 0), stands for it.

    Parameters
    ----------
    d
        N items of any kind.
    groups
        [N] integers or strings, the group of each item: a list, an array of either kind, a column of a table.
    rule
        A name of the table; None for the default of d's kind.
    names
        Whether to return the group of each fused item too.

    Returns
    -------
    Of d's class and kind, in the compute dtype (float32 for 16-bit floats, whose range sums of kappa leave), an item
    for each group in the order of the sorted unique values of groups. Differentiable in torch. With `names` a tuple of
    it and these values [G], a numpy array: the ids of a gallery, for instance.

    Raises
    ------
    TypeError
        d is not a distribution, or the rule is of another kind of distribution.
    ValueError
        Unknown rule (the nearest one is named); groups of another shape or dtype; a negative var, kappa or scale.

    References
    ----------
    Shi & Jain, "Probabilistic Face Embeddings", sec. 3.3; "ScaleFace", supplement, for the rules of Scaled.

    Examples
    --------
    Two images of one face, and one of another:

    >>> images = pe.Normal([[0.0, 1.0], [1.0, 0.0], [0.6, 0.8]], var=[0.1, 0.4, 0.2])
    >>> templates, names = pe.fuse(images, groups=["bob", "bob", "ann"], names=True)
    >>> names.tolist(), templates.mu.round(3).tolist(), templates.var.round(3).tolist()
    (['ann', 'bob'], [[0.6, 0.8], [0.2, 0.8]], [0.2, 0.08])
    """
    require_distribution("fuse", "d", d)
    if rule is None:
        rule = rules(d.kind)[0]
    if not isinstance(rule, str):
        raise TypeError(f"fuse: rule must be a name or None, got {type(rule).__name__}")
    if rule not in _RULES:
        raise ValueError(f"fuse: {unknown('rule', rule, _RULES)}")
    if d.kind not in _RULES[rule]:
        raise TypeError(f"fuse: rule {rule!r} is of {', '.join(_RULES[rule])}, got {d.kind}")
    d.check_rows()
    fused = _RULES[rule][d.kind](d, group_rows("fuse", groups, d.mu))
    found = type(d)(*[cast(x, compute_dtype(d.mu)) for x in fused])
    return (found, np.unique(plain("fuse", "groups", groups))) if names else found


# -- rules -------------------------------------------------------------------------------------------------------------


def _product(d: Any, groups: Groups) -> tuple[Array, ...]:
    certain = d.var == 0
    if bool(certain.any()):
        # Beside a variance of 0 all others count for nothing, as if they were infinite; those of 0 count alike.
        (alone,) = group_sum(lambda x: (x,), [double(certain)], groups)
        beside, xp = alone[groups.rows] > 0, namespace(d.mu)
        weight = xp.where(beside, double(certain), 1 / double(xp.where(certain, 1.0, d.var)))
        mean, fused = group_sum(lambda mu, w: (mu * _column(w), w), [d.mu, weight], groups)
        return mean / _column(fused), xp.where(alone > 0, 0.0, 1 / fused)
    if d.kind == "normal_isotropic":
        mean, fused = group_sum(lambda mu: (mu, _ones(mu)), [d.mu], groups, 1 / double(d.var))
    else:
        mean, fused = group_sum(lambda mu, var: (mu / var, 1 / var), d.arrays, groups)
    return mean / _column(fused), 1 / fused


def _pfe(d: Any, groups: Groups) -> tuple[Array, ...]:
    mean, _ = _product(d, groups)
    return unit(mean)[0], _group_extreme("min", d.var, groups)


def _natural(d: Any, groups: Groups) -> tuple[Array, ...]:
    certain, xp = d.kappa == math.inf, namespace(d.mu)
    if bool(certain.any()):
        (alone,) = group_sum(lambda x: (x,), [double(certain)], groups)
        weight = xp.where(alone[groups.rows] > 0, double(certain), double(xp.where(certain, 1.0, d.kappa)))
        mu, kappa = unit(*group_sum(lambda mu: (mu,), [d.mu], groups, weight))
        return mu, xp.where(alone > 0, math.inf, kappa)
    return unit(*group_sum(lambda mu: (mu,), [d.mu], groups, double(d.kappa)))


def _mean(d: Any, groups: Groups) -> tuple[Array, ...]:
    mu, *spread = _group_means(d.arrays, groups)
    return unit(mu)[0] if d._unit else mu, *spread


def _direction(d: Any, groups: Groups) -> tuple[Array, ...]:
    def directions(mu: Array) -> tuple[Array, ...]:
        xp = namespace(mu)
        largest = xp.amax(abs(mu), -1)  # squares of others may leave the range of float64
        direction, length = unit(mu / xp.where(largest == 0, 1.0, largest)[:, None])
        return (direction * (length != 0)[:, None],)

    return (unit(*group_sum(directions, [d.mu], groups))[0],)


def _max(d: Any, groups: Groups) -> tuple[Array, ...]:
    return _mean(d, groups)[0], _group_extreme("max", d.scale, groups)


def _harmonic(d: Any, groups: Groups) -> tuple[Array, ...]:
    return _mean(d, groups)[0], 1 / _group_means([1 / double(d.scale)], groups)[0]  # a scale of 0 makes the mean 0


_RULES: Mapping[str, Mapping[str, Rule]] = {  # the first rule of a kind is its default
    "product": {"normal_isotropic": _product, "normal_diagonal": _product},
    "natural": {"vmf": _natural},
    "direction": {"point": _direction},
    "pfe": {"normal_isotropic": _pfe, "normal_diagonal": _pfe},
    "mean": dict.fromkeys(("normal_isotropic", "normal_diagonal", "vmf", "nivmf", "scaled", "point"), _mean),
    "max": {"scaled": _max},
    "harmonic": {"scaled": _harmonic},
}


def rules(kind: str) -> tuple[str, ...]:
    """The rules for a kind of distribution, its default first."""
    return tuple(rule for rule, kinds in _RULES.items() if kind in kinds)


def _ones(x: Array) -> Array:
    return namespace(x).ones_like(x[:, 0])


def _column(x: Array) -> Array:
    """An array [N] as [N, 1]; one of two axes as it is."""
    return x if x.ndim == 2 else x[:, None]


def unit(x: Array) -> tuple[Array, Array]:
    """Rows of unit length and the lengths they had; the first axis for a row of zeros."""
    xp = namespace(x)
    square = xp.einsum("nd,nd->n", x, x)
    somewhere = ~(square == 0)  # of NaN the direction is NaN
    # What `where` does not select must be finite too, or its gradient would be NaN.
    length = xp.sqrt(xp.where(somewhere, square, 1.0))
    direction = x / length[:, None]
    if not bool(somewhere.all()):
        axis = xp.zeros_like(x[:1])
        axis[:, 0] = 1
        direction = xp.where(somewhere[:, None], direction, axis)
    return direction, xp.where(somewhere, length, 0.0)


# -- groups ------------------------------------------------------------------------------------------------------------


def group_rows(owner: str, groups: Array, like: Array) -> Groups:
    """The groups of the rows of ``like`` by their labels, integers or strings, of its kind of array."""
    require_classes(owner, "groups", groups)
    groups = groups if is_torch(groups) else plain(owner, "groups", groups)
    shape, dtype = tuple(groups.shape), dtype_name(groups)
    if shape != (len(like),) or not dtype.startswith(("int", "uint", "str")):
        expected = f"integers or strings ({len(like)},)"
        raise ValueError(f"{owner}: groups have shape {shape} and dtype {dtype}, expected {expected}")
    if dtype.startswith("str") or (is_torch(like) and not is_torch(groups)):  # torch lacks some types of integers
        groups = np.unique(groups, return_inverse=True)[1]
    if is_torch(like):
        torch = namespace(like)
        names, rows = torch.unique(torch.as_tensor(groups, device=like.device), return_inverse=True)
        return Groups(rows, len(names))
    labels = as_numpy(groups)
    if (labels[1:] >= labels[:-1]).all():
        return Groups(*_numbered(labels))
    low, high = int(labels.min()), int(labels.max())
    # numpy sorts short integers by counting, which is five times as fast.
    order = np.argsort((labels - low).astype(np.uint16) if high - low < 1 << 16 else labels, kind="stable")
    number, count = _numbered(labels[order])
    rows = np.empty_like(number)
    rows[order] = number
    return Groups(rows, count, order)


def _numbered(labels: Array) -> tuple[Array, int]:
    """Sorted labels as 0, 1, ..., and how many there are."""
    number = np.zeros(len(labels), np.int64)
    np.cumsum(labels[1:] != labels[:-1], out=number[1:])
    return number, int(number[-1]) + 1 if len(number) else 0


def group_sum(
    terms: Callable[..., tuple[Array, ...]], arrays: Sequence[Array], groups: Groups, weights: Array | None = None
) -> tuple[Array, ...]:
    """Weighted sums by group [count, ...] of the terms [N, ...], which ``terms`` computes of the arrays in float64.

    Arrays of int64 stay so; weights are [N], by default 1.
    """

    def float64_terms(*arrays: Array) -> tuple[Array, ...]:
        return terms(*(x if dtype_name(x) == "int64" else double(x) for x in arrays))

    if not is_torch(arrays[0]):
        return _reduce(np.add, float64_terms, arrays, groups, weights)
    sums = []
    for x in float64_terms(*arrays):
        weighted = x if weights is None else x * (_column(weights) if x.ndim == 2 else weights)
        sums.append(x.new_zeros((groups.number, *x.shape[1:])).index_add(0, groups.rows, weighted))
    return tuple(sums)


def _group_means(arrays: Sequence[Array], groups: Groups) -> list[Array]:
    sizes = namespace(groups.rows).bincount(groups.rows, minlength=groups.number)
    return [x / (sizes[:, None] if x.ndim == 2 else sizes) for x in group_sum(lambda *x: x, arrays, groups)]


def _group_extreme(which: str, x: Array, groups: Groups) -> Array:
    """Element by element the smallest ("min") or largest ("max") of each group."""
    if is_torch(x):
        index = (groups.rows if x.ndim == 1 else groups.rows[:, None]).expand_as(x)
        return x.new_zeros((groups.number, *x.shape[1:])).scatter_reduce(0, index, x, f"a{which}", include_self=False)
    function = np.minimum if which == "min" else np.maximum
    return _reduce(function, lambda x: (cast(x, compute_dtype(x)),), [x], groups)[0]


def _reduce(
    function: np.ufunc,
    terms: Callable[..., tuple[Array, ...]],
    arrays: Sequence[Array],
    groups: Groups,
    weights: Array | None = None,
) -> tuple[Array, ...]:
    """The terms of each group, weighted and reduced by the function, in blocks of groups of one size.

    numpy reduces the middle axis of [groups, size, D] many times as fast as ranges of rows (reduceat). A group longer
    than a block is reduced in pieces first.
    """
    if not len(groups.rows):
        return terms(*arrays)
    step = max(BLOCK // max(math.prod(x.shape[1:]) for x in arrays), 2)
    sizes = np.bincount(groups.rows, minlength=groups.number)
    ends, pieces = np.cumsum(sizes), -(-sizes // step)
    of = np.repeat(np.arange(groups.number), pieces)
    begins = (ends - sizes)[of] + step * (np.arange(len(of)) - (np.cumsum(pieces) - pieces)[of])
    lengths = np.minimum(ends[of] - begins, step)
    by_length = np.argsort(lengths, kind="stable")
    found: list[Array] = []
    for alike in np.split(by_length, np.flatnonzero(np.diff(lengths[by_length])) + 1):
        length = int(lengths[alike[0]])
        for start in range(0, len(alike), step // length):
            chosen = alike[start : start + step // length]
            rows = _rows(groups.order, begins[chosen], length)
            values = terms(*(_taken(x, rows) for x in arrays))
            found = found or [np.empty((len(of), *x.shape[1:]), x.dtype) for x in values]
            for out, x in zip(found, values, strict=True):
                stretches = x.reshape(len(chosen), length, *x.shape[1:])
                if weights is not None:
                    out[chosen] = np.einsum("gs,gs...->g...", _taken(weights, rows).reshape(-1, length), stretches)
                elif function is np.add and x.ndim == 2 and length > 8:  # which is twice as fast as reduce
                    out[chosen] = np.matmul(np.ones(length), stretches)
                else:
                    out[chosen] = function.reduce(stretches, axis=1)
    if len(of) == groups.number:
        return tuple(found)
    return _reduce(function, lambda *x: x, found, Groups(of, groups.number))


def _rows(order: Array, begins: Array, length: int) -> slice | Array:
    """The rows at `length` places of the order, from each of `begins` on."""
    if order is None and len(begins) == 1:
        return slice(int(begins[0]), int(begins[0]) + length)
    places = (begins[:, None] + np.arange(length)).reshape(-1)
    return places if order is None else order[places]


def _taken(x: Array, rows: slice | Array) -> Array:
    # With "clip" numpy does not check each row, which takes half of the time.
    return x[rows] if isinstance(rows, slice) else x.take(rows, 0, mode="clip")
