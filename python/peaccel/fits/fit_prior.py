"""The prior of positions, fitted to labelled items."""

from __future__ import annotations

import inspect
from typing import Any, overload

import numpy as np
from numpy.typing import ArrayLike

from peaccel._utils.arrays import (
    Array,
    ArrayT,
    Numpy,
    dtype_name,
    is_torch,
    on_host,
    quiet,
    require_finite,
)
from peaccel._utils.labels import alike, classes_of
from peaccel.distributions import Distribution, concat
from peaccel.distributions.checks import EUCLIDEAN
from peaccel.distributions.fuse import Groups, group_sum
from peaccel.fits.records import Prior
from peaccel.fits.sides import warn_if_sides_differ

__all__ = ["fit_prior"]


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
def fit_prior(*arguments: Any, **named: Any) -> Any:
    """The mean and variance of the true positions of classes, for ``llr``, from labelled items.

    One-way analysis of variance: with c classes of n_k items, ``(between - within) / n0``, n0 = (N - sum n_k^2 / N) /
    (c - 1), where between and within are the mean squares; 0 where that is negative. It rests on the means alone, so
    it does not depend on the scale of the variances being right.

    ``fit_prior(d, labels)`` is of one set of items, ``fit_prior(queries, gallery, query_labels, gallery_labels)`` of
    both sides taken together. Sides of two modalities, whose means differ, have one prior once they are centred: by
    what ``pe.calibrate_variance(queries, gallery, pairs, labels)`` finds, applied to each.

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
    sided = "gallery" in named or (len(arguments) > 1 and isinstance(arguments[1], Distribution))
    return (_fit_prior_two if sided else _fit_prior_one)(*arguments, **named)


def _fit_prior_one(d: Distribution[ArrayT], labels: ArrayLike) -> Prior[ArrayT]:
    _require_positions("d", d)
    mu = on_host(d.mu, "fit_prior", "d")
    require_finite("fit_prior", "d", mu)
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
        require_finite("fit_prior", name, on_host(d.mu, "fit_prior", name))
    both = concat([queries, gallery])
    names = [
        _names(f"{name}_labels", labels, len(d))
        for name, labels, d in zip(("query", "gallery"), (query_labels, gallery_labels), sides.values(), strict=True)
    ]
    asked, stored = alike("fit_prior", ("query_labels", "gallery_labels"), *names)
    # The first item of each class on either side.
    _, *rows = np.intersect1d(asked, stored, return_indices=True)
    remedy = "one prior was fitted to both; apply what pe.calibrate_variance(queries, gallery, ...) finds first"
    if len(rows[0]):
        warn_if_sides_differ("fit_prior", remedy, sides, rows)
    return _fit_prior_one(both, np.concatenate([asked, stored]))


def _require_positions(name: str, d: object) -> None:
    if getattr(d, "kind", "") not in EUCLIDEAN:
        found = getattr(d, "kind", type(d).__name__)
        raise TypeError(f"fit_prior: {name} must be a Normal or a Point, got {found}")
    assert isinstance(d, Distribution)
    d.check_rows()


def _names(name: str, labels: Array, items: int) -> Array:
    names = classes_of("fit_prior", name, labels)
    if names.shape != (items,):
        raise ValueError(f"fit_prior: {name} have shape {names.shape}, expected ({items},)")
    return names


def _like(x: Numpy, mu: Array) -> Array:
    if is_torch(mu):
        return mu.new_tensor(x)
    return x.astype(np.float32 if dtype_name(mu) == "bfloat16" else mu.dtype)
