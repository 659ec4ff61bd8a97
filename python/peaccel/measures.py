"""What one distribution says of itself, and what a labelled set of them says of the prior."""

from __future__ import annotations

from typing import Any

import numpy as np

from peaccel.distributions import Distribution
from peaccel.ops._array import Array, as_numpy, dtype_name, is_torch, namespace

__all__ = ["confidence", "fit_prior"]


def confidence(d: Distribution) -> Array:
    """How sure each item is of itself; higher = surer. Comparable within one model only.

    Normal: minus the mean over dimensions of log variance (minus the entropy per dimension, up to constants).
    VonMisesFisher: log kappa; NonIsotropicVonMisesFisher: the mean of log kappa. Scaled: the scale.

    Parameters
    ----------
    d
        N items; differentiable in torch.

    Returns
    -------
    [N], of d's kind and dtype.

    Raises
    ------
    TypeError
        d is not a distribution, or a Point, which has no confidence.

    References
    ----------
    "Probabilistic Embeddings Revisited", sec. 4; "ScaleFace", sec. 3.
    """
    kind = getattr(d, "kind", type(d).__name__)
    items: Any = d
    if kind == "normal_isotropic":
        return -namespace(items.var).log(items.var)
    if kind == "normal_diagonal":
        return -namespace(items.var).log(items.var).mean(-1)
    if kind == "vmf":
        return namespace(items.kappa).log(items.kappa)
    if kind == "nivmf":
        return namespace(items.kappa).log(items.kappa).mean(-1)
    if kind == "scaled":
        return items.scale
    raise TypeError(f"confidence: d must be a distribution with an uncertainty, got {kind}")


def fit_prior(d: Distribution, labels: Array) -> tuple[Array, Any]:
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
    prior_mean
        [D], of d's kind and dtype: the mean of the class means.
    prior_var
        A number, or [D] for diagonal normals.

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
    mu = as_numpy(d.mu).astype(np.float64)
    names = np.asarray(as_numpy(labels) if is_torch(labels) else labels)
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
        return _like(mean, d.mu), float(var.mean())
    return _like(mean, d.mu), _like(var, d.mu)


def _like(x: np.ndarray[Any, Any], mu: Array) -> Array:
    if is_torch(mu):
        return mu.new_tensor(x)
    return x.astype(np.float32 if dtype_name(mu) == "bfloat16" else mu.dtype)
