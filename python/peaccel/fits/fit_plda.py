"""Fits of the two-covariance model to labelled items, by maximum likelihood.

A class of n items is known by n, its mean and the scatter around it. In the directions that make the covariance within
classes W the identity and that between them B a diagonal psi, class means are independent: N(offset, psi + 1 / n).
"""

from __future__ import annotations

import warnings
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from peaccel._utils.arrays import Array, as_array, on_host, require_finite
from peaccel._utils.labels import classes_of
from peaccel.distributions import Distribution
from peaccel.distributions._numerics import double
from peaccel.distributions.checks import checked_k
from peaccel.distributions.fuse import Groups, group_sum, unit
from peaccel.fits.plda import BLOCK, Plda

__all__ = ["fit_plda"]

STEPS = 1000  # of EM, at most; a hundred are usual
GAIN = 1e-8  # log-likelihood of an item below which a step is the last; where tried, 1e-7 to 1e-6 were left to gain
NEGLIGIBLE = 1e-8  # variance between classes, where that within is 1, that is taken for 0
ROUNDING = 2.0**-52


class _Classes(NamedTuple):
    """Sufficient statistics of the likelihood."""

    sizes: Array  # [C, 1]
    means: Array  # [C, D]
    scatter: Array  # [D, D]: of items around the means of their classes


class _Model(NamedTuple):
    """W and B by the directions A that diagonalise them, A W A^T = I and A B A^T = diag(psi), psi falling."""

    directions: Array  # [D, D], a row for each
    offset: Array  # [D]: directions @ mean
    psi: Array  # [D]


def fit_plda(
    x: ArrayLike | Distribution,
    labels: ArrayLike,
    dim: int | None = None,
    length_norm: bool = False,
    *,
    shrinkage: float = 0.0,
) -> Plda:
    """Probabilistic linear discriminant analysis: the likeliest two-covariance model of labelled embeddings.

    ``x = mean + y + e``: positions of classes y are drawn from N(0, B), items around them by e from N(0, W), with full
    covariances. Where all classes have as many items the likeliest W and B have a closed form, else they are found by
    EM, with expanded parameters; mean, W and B are the likeliest alike. The result has the directions in which classes
    differ, most telling first.

    Parameters
    ----------
    x
        [N, D] embeddings, D >= 1: an array, a tensor on the CPU, or a Point. Columns that are constant get weights 0.
    labels
        [N]: the class of each, at least two classes and one of them with at least two items. Classes of one item tell
        of B alone.
    dim
        How many directions are kept; None for all with a psi above 0, at most the classes less one.
    length_norm
        Whether to project on the directions, bring the projections to unit length, and fit again, as is usual for
        embeddings of speakers, whose lengths follow duration and noise rather than the normal model.
    shrinkage
        In [0, 1]: W's estimate is moved so far towards its diagonal. It takes a number above 0 where W has no inverse,
        as with fewer items less classes than dimensions, where the likelihood has no maximum; nothing is added unless
        it is asked for.

    Returns
    -------
    Plda
        ``plda.transform(x)`` is a Normal, ``plda.score`` its ``llr``; several items of one identity become one by
        `pe.fuse`, which takes and returns names. ``pe.io.write_fit`` keeps it.

    Warns
    -----
    UserWarning
        The likelihood still grew after 1000 steps.

    Raises
    ------
    TypeError
        x is no array and no Point, dim no integer.
    ValueError
        Wrong shapes, values of x that are not finite, NaN or None among labels, too few classes or items, more dim than
        there are directions in which classes differ, shrinkage outside [0, 1]; W without an inverse: a column that is
        constant within classes alone, or too few items.

    Notes
    -----
    Time goes with N D^2, and of EM with C D^2 a step. W and B are float64 whatever x is, and columns are scaled first,
    so that badly scaled ones keep their digits.

    References
    ----------
    Ioffe, "Probabilistic Linear Discriminant Analysis", 2006; Anderson, Anderson & Olkin, "Maximum Likelihood
    Estimators and Likelihood Ratio Criteria in Multivariate Components of Variance", 1986, for classes of one size;
    Liu, Rubin & Wu, "Parameter expansion to accelerate EM", 1998; Garcia-Romero & Espy-Wilson, "Analysis of i-vector
    length normalization in speaker recognition systems", 2011.

    Examples
    --------
    Two enrolled items of one person, one of another, and a query of the first:

    >>> rng = np.random.default_rng(0)
    >>> labels = np.repeat(np.arange(50), 6)
    >>> positions = rng.normal(size=(50, 4)) * [3.0, 2.0, 1.0, 0.1]
    >>> x = positions[labels] + rng.normal(size=(300, 4)) @ [[1, 1, 0, 0], [0, 1, 1, 0], [0, 0, 1, 1], [0, 0, 0, 1]]
    >>> plda = pe.fit_plda(x[:240], labels[:240], dim=3)
    >>> plda
    Plda(4 -> 3 dimensions)
    >>> enrolled, names = pe.fuse(plda.transform(x[[240, 241, 246]]), groups=["bob", "bob", "cy"], names=True)
    >>> names.tolist(), enrolled.var.tolist()
    (['bob', 'cy'], [0.5, 1.0])
    >>> pe.pairwise(plda.transform(x[242:243]), enrolled, plda.score).round(1).tolist()
    [[1.3, -8.6]]
    """
    rows, of = _checked(x, labels, dim, length_norm, shrinkage)
    mean, directions, psi = _fitted(rows, of, dim, shrinkage)
    if not length_norm:
        return Plda((mean,), (directions,), psi)
    first = Plda((mean,), (directions,), psi)
    again = _fitted(unit(double(first.transform(rows).mu))[0], of, None, shrinkage)
    return Plda((mean, again[0]), (directions, again[1]), again[2])


def _checked(x: Any, labels: Array, dim: int | None, length_norm: bool, shrinkage: float) -> tuple[Array, Groups]:
    """The rows as a numpy array, and their classes."""
    owner = "fit_plda"
    if isinstance(x, Distribution) and x.kind != "point":
        raise TypeError(f"{owner}: x is {x.kind}, expected an array or a Point: both covariances are the model's own")
    rows = on_host(x.mu if isinstance(x, Distribution) else as_array(x, owner, "x"))
    if rows.ndim != 2 or not rows.size:
        raise ValueError(f"{owner}: x has shape {rows.shape}, expected (N, D)")
    names = classes_of(owner, "labels", labels)
    if names.shape != rows.shape[:1]:
        raise ValueError(f"{owner}: labels have shape {names.shape}, expected ({len(rows)},)")
    _, classes, sizes = np.unique(names, return_inverse=True, return_counts=True)
    if not 2 <= len(sizes) < len(rows):
        found = f"{len(sizes)} classes of {len(rows)} items"
        raise ValueError(f"{owner}: labels name {found}, expected two classes and a repeated one")
    most = min(rows.shape[1], len(sizes) - 1)
    if dim is not None and checked_k(owner, dim, "dim") > most:
        raise ValueError(f"{owner}: dim is {dim}, expected 1 .. {most}: D, and at most the classes less one")
    if length_norm and (most if dim is None else dim) < 2:
        raise ValueError(f"{owner}: length_norm takes two directions and more, as in one all lengths are signs")
    if not (isinstance(shrinkage, (int, float, np.floating)) and 0 <= shrinkage <= 1):
        raise ValueError(f"{owner}: shrinkage is {shrinkage!r}, expected a number from 0 to 1")
    require_finite(owner, "x", rows)
    return rows, Groups(classes, len(sizes), np.argsort(classes, kind="stable"))


def _fitted(x: Array, of: Groups, dim: int | None, shrinkage: float) -> tuple[Array, Array, Array]:
    """Mean [D], directions [K, D] and psi [K] of the rows; columns are brought to 0 .. 1, constant ones left out."""
    low, high = double(x.min(0)), double(x.max(0))
    varying = np.flatnonzero(high > low)
    if not len(varying):
        raise ValueError(f"fit_plda: the {len(x)} rows of x are equal, expected some that differ")
    if (largest := max(-low.min(), high.max())) > 1e150:
        raise ValueError(f"fit_plda: x reaches {largest:g}, expected 1e150 at most")
    width = (high - low)[varying]
    if width.min() < 1e-150:
        raise ValueError(f"fit_plda: a column of x spans {width.min():g}, expected 0, or 1e-150 at least")
    statistics = _statistics(x, varying, low[varying], width, of)
    model = _likeliest(statistics._replace(scatter=_invertible(statistics, varying, shrinkage)))
    kept = int((model.psi > NEGLIGIBLE).sum())
    if kept < (dim or 1):
        expected = f"1 .. {kept}" if kept else "other labels"
        raise ValueError(f"fit_plda: dim is {dim}, expected {expected}: classes differ in {kept} directions")
    kept = dim or kept
    mean, directions = low.copy(), np.zeros((kept, len(low)))
    mean[varying] += width * np.linalg.solve(model.directions, model.offset)
    directions[:, varying] = model.directions[:kept] / width
    return mean, directions, model.psi[:kept]


def _statistics(x: Array, columns: Array, low: Array, width: Array, of: Groups) -> _Classes:
    """The statistics of (x - low) / width, in two passes over the rows."""

    def scaled(rows: Array) -> Array:
        return (double(rows[:, columns]) - low) / width

    sizes = np.bincount(of.rows, minlength=of.number)[:, None]
    (sums,) = group_sum(lambda rows: (scaled(rows),), [x], of)
    means = sums / sizes
    scatter = np.zeros((len(columns), len(columns)))
    for start in range(0, len(x), BLOCK):
        left = scaled(x[start : start + BLOCK]) - means[of.rows[start : start + BLOCK]]
        scatter += left.T @ left
    return _Classes(sizes, means, scatter)


def _invertible(statistics: _Classes, columns: Array, shrinkage: float) -> Array:
    """The scatter within classes, moved towards its diagonal; ValueError where it has no inverse."""
    diagonal, items = np.diagonal(statistics.scatter), int(statistics.sizes.sum())
    alike = diagonal <= items * (32 * ROUNDING) ** 2
    if alike.any():
        column = columns[np.argmax(alike)]
        raise ValueError(
            f"fit_plda: column {column} of x is constant within classes and differs between them: no W is the likeliest"
        )
    scatter = (1 - shrinkage) * statistics.scatter + shrinkage * np.diag(diagonal)
    values = np.linalg.eigvalsh(scatter / np.sqrt(np.outer(diagonal, diagonal)))
    rank = int((values > len(values) * ROUNDING * values[-1]).sum())
    if rank < len(values):
        raise ValueError(
            f"fit_plda: the covariance within {len(statistics.sizes)} classes of {items} items has rank {rank} of "
            f"{len(values)}, expected full rank: more items, fewer columns, or shrinkage above 0"
        )
    return scatter


# -- maximum likelihood ------------------------------------------------------------------------------------------------


def _likeliest(statistics: _Classes) -> _Model:
    """In closed form where classes have one size. There directions with a mean square between classes below that within
    have psi 0, and the others are as if they were alone; so what W is along the former is not asked for."""
    start = _moments(statistics)
    if (statistics.sizes == statistics.sizes[0]).all():
        return start._replace(psi=np.maximum(start.psi, 0))
    items = int(statistics.sizes.sum())
    # EM leaves 0 at 0: all directions get a chance.
    model, last = start._replace(psi=np.maximum(start.psi, 0.01 * len(statistics.sizes) / items)), -np.inf
    for _ in range(STEPS):
        model, value = _step(statistics, model)
        if value - last < GAIN * items:
            return model
        last = value
    warnings.warn(f"fit_plda: the likelihood still grows after {STEPS} steps of EM", stacklevel=4)
    return model


def _moments(statistics: _Classes) -> _Model:
    """The model by mean squares; psi may be below 0. Where all classes have n items: W is the mean square within, and
    B + W / n that of class means."""
    sizes, means, scatter = statistics
    items, classes = int(sizes.sum()), len(sizes)
    typical = (items - (sizes**2).sum() / items) / (classes - 1)
    mean = (sizes * means).sum(0) / items
    left = means - mean
    directions, squares = _diagonalised(scatter / (items - classes), (sizes * left).T @ left / classes)
    return _Model(directions, directions @ mean, (squares - 1) / typical)


def _step(statistics: _Classes, model: _Model) -> tuple[_Model, float]:
    """A step of EM, and the log-likelihood that the given W and B reach, up to a constant.

    The mean is the likeliest for W and B. Positions y of classes have a posterior for each direction, with the mean
    ``share z`` and the variance ``share / n``. The likeliest model of these is allowed a linear map of y, which in the
    end becomes part of B: without it directions with small psi would take thousands of steps.
    """
    sizes, means, scatter = statistics
    directions, items, classes = model.directions, int(sizes.sum()), len(sizes)
    z = means @ directions.T
    precision = 1 / (model.psi + 1 / sizes)
    offset = (precision * z).sum(0) / precision.sum(0)
    z -= offset
    within = directions @ scatter @ directions.T
    value = items * np.linalg.slogdet(directions)[1]
    value += (np.log(precision).sum() - (precision * z * z).sum() - np.trace(within)) / 2

    some = model.psi > NEGLIGIBLE
    share = model.psi[some] * precision[:, some]
    y, spread = share * z[:, some], share.sum(0)
    weighted = sizes * y
    linear = np.linalg.solve(weighted.T @ y + np.diag(spread), weighted.T @ z).T
    left = z - y @ linear.T
    within += (sizes * left).T @ left + (linear * spread) @ linear.T
    between = linear @ (y.T @ y + np.diag((share / sizes).sum(0))) @ linear.T
    turn, psi = _diagonalised(within / items, between / classes)
    return _Model(turn @ directions, turn @ offset, np.maximum(psi, 0)), float(value)


def _diagonalised(within: Array, between: Array) -> tuple[Array, Array]:
    """The matrix that makes the first covariance the identity and the second a diagonal, falling."""
    whitening = np.linalg.inv(np.linalg.cholesky(within))
    values, vectors = np.linalg.eigh(whitening @ between @ whitening.T)
    return vectors.T[::-1] @ whitening, values[::-1]
