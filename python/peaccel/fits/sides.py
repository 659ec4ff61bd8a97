"""Pairs whose two sides are of two modalities: a mean and a scale of variances for each, and whether they need that."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from peaccel._utils.arrays import Array, on_host
from peaccel.distributions import Distribution
from peaccel.distributions._numerics import double
from peaccel.fits.records import Calibration

__all__ = ["calibrate_sides", "warn_if_sides_differ"]

BLOCK = 1 << 15  # numbers that are gathered at a time, so that they stay in a core's cache
FEW = 1 << 18  # evenly spaced numbers from which the start of a search for the maximum is estimated
FEWER = 1 << 15  # numbers from which it is estimated whether the sides differ


def calibrate_sides(queries: Distribution, gallery: Distribution, rows: Array) -> tuple[Calibration, Calibration]:
    """A calibration of each side by same pairs [P, 2], rows of queries and of gallery.

    x and y, the means of a pair less those of their sides, are drawn from a normal with the covariance
    [[p + s, p], [p, p + t]] in each dimension: s = a var + b of the query, t = a' var' + b' of the gallery item, p the
    variance of the prior. p is the mean of x y, by dimension; a, b, a' and b', >= 0, are the likeliest.
    """
    pairs = _centred("calibrate_variance", {"queries": queries, "gallery": gallery}, rows.T)
    xx, xy, yy, v, w = pairs.means()
    typical = v.mean(), w.mean()
    least = np.min([(of_query.min(), of_item.min()) for *_, of_query, of_item in pairs], 0)
    for name, value, low in zip(("queries", "gallery"), typical, least, strict=True):
        if not (0 < value < np.inf and low >= 0):
            raise ValueError(f"calibrate_variance: var of {name} in the same pairs must be finite, >= 0 and not all 0")
    square = (xx - 2 * xy + yy).mean()
    if not 0 < square < np.inf:
        raise ValueError(
            "calibrate_variance: mu of the same pairs must be finite and not all equal: no scale is likeliest"
        )
    prior = np.maximum(xy, 0)
    # The start follows E x (x - y) = s and E y (y - x) = t, half of each as a factor and half as an offset.
    start = np.repeat(np.maximum([(xx - xy).mean(), (yy - xy).mean()], square / 1000), 2) / 2
    step = -(-len(rows) * len(xx) // FEW)
    if step > 1:
        start, _ = _likeliest(pairs.some(step), prior, typical, start)
    (a, b, c, e), _ = _likeliest(pairs, prior, typical, start)
    first, second = (tuple(side.mean.tolist()) for side in pairs.sides)
    return (
        Calibration(float(a / typical[0]), float(b), "Normal", first),
        Calibration(float(c / typical[1]), float(e), "Normal", second),
    )


def warn_if_sides_differ(
    owner: str, remedy: str, sides: Mapping[str, Distribution], rows: Sequence[Array], fitted: Calibration | None = None
) -> None:
    """Warn where the two sides of pairs of one identity have other means; or, of a calibration, other scales.

    Other means: the square of their distance is a tenth of the mean square of differences and more, by five standard
    errors. Other scales: of one given variance each side fits another, one more than twice the other, and that is
    likelier than one scale of both by a ratio of exp(12.5) and more, were a pair one number. As a pair counts what has
    items that no other has, on both sides; of fewer than 20 nothing is said.
    """
    dim = next(iter(sides.values())).dim
    rows = [side[:: -(-len(side) * dim // FEWER)] for side in rows]
    number = min(len(np.unique(side)) for side in rows)
    if number < 20:
        return
    pairs = _centred(owner, sides, rows)
    xx, xy, yy, v, w = pairs.means()
    apart = ((pairs.sides[0].mean - pairs.sides[1].mean) ** 2).mean()
    square = (xx - 2 * xy + yy).mean() + apart
    if not 0 < square < np.inf:
        return
    share = (apart / square - 1 / number) / (1 - 1 / number)
    if share > 0.1 + 5 * (2 / (number * (number - 1))) ** 0.5:
        distance = (dim * apart) ** 0.5
        found = f"their means are {distance:.3g} apart, {share:.0%} of the mean square between items of one identity"
        _warn(f"{owner}: the two sides differ: {found}; {remedy}")
    typical = v.mean(), w.mean()
    if fitted is None or fitted.of != "Normal" or not all(0 < var < np.inf for var in typical):
        return
    prior = np.maximum(xy, 0)
    one = np.array([[typical[0], 0], [0, 1], [typical[1], 0], [0, 1]])
    common, worse = _likeliest(pairs, prior, typical, np.array([fitted.a, fitted.b]), one)
    (a, b, c, e), least = _likeliest(pairs, prior, typical, one @ common)
    middle = (typical[0] * typical[1]) ** 0.5
    s, t = a * middle / typical[0] + b, c * middle / typical[1] + e
    if number * (worse - least) > 25 and max(s, t) > 2 * min(s, t):
        found = f"of a variance of {middle:.3g} one fits {s:.3g}, the other {t:.3g}"
        _warn(f"{owner}: the two sides differ: {found}; {remedy}")


def _warn(message: str) -> None:
    # Level 6 is the line on which the user calls the public function, of which `quiet` is one.
    warnings.warn(message, UserWarning, stacklevel=6)


# -- pairs -------------------------------------------------------------------------------------------------------------


def _centred(owner: str, sides: Mapping[str, Distribution], rows: Iterable[Array]) -> _Pairs:
    """Pairs of rows, from each side of which its mean is subtracted; a point's variance is 0."""
    found = []
    for (name, d), side in zip(sides.items(), rows, strict=True):
        mu, *var = (on_host(x, owner, name) for x in d.arrays)
        uncentred = _Side(mu, var[0] if var else np.zeros(len(mu)), side)
        found.append(replace(uncentred, mean=sum(mu.sum(0) for mu, _ in uncentred.blocks()) / len(side)))
    return _Pairs(tuple(found))


@dataclass(frozen=True)
class _Side:
    """One side of pairs: rows of items, from whose means one mean is subtracted."""

    mu: Array
    var: Array
    rows: Array
    mean: Array = 0.0

    def blocks(self) -> Iterator[tuple[Array, Array]]:
        """Means [., D] and variances [., D] or [., 1] in float64."""
        step = -(-BLOCK // self.mu.shape[1])
        for start in range(0, len(self.rows), step):
            mu, var = (double(x.take(self.rows[start : start + step], 0, mode="clip")) for x in (self.mu, self.var))
            yield mu - self.mean, var if var.ndim == 2 else var[:, None]


@dataclass(frozen=True)
class _Pairs:
    """Blocks [., D] of x^2, x y, y^2 and the two variances.

    Where all variances are isotropic, it is one block [P, 1] with the means over dimensions.
    """

    sides: tuple[_Side, ...]

    def __iter__(self) -> Iterator[tuple[Array, ...]]:
        return iter(self.isotropic) if all(side.var.ndim == 1 for side in self.sides) else self.products()

    def products(self) -> Iterator[tuple[Array, ...]]:
        for (x, v), (y, w) in zip(*(side.blocks() for side in self.sides), strict=True):
            yield x * x, x * y, y * y, v, w

    @cached_property
    def isotropic(self) -> list[tuple[Array, ...]]:
        columns = zip(*([z.mean(1, keepdims=True) for z in block] for block in self.products()), strict=True)
        return [tuple(map(np.concatenate, columns))]

    def some(self, step: int) -> _Pairs:
        """Every step-th pair."""
        return _Pairs(tuple(replace(side, rows=side.rows[::step]) for side in self.sides))

    def means(self) -> list[Array]:
        """The means over pairs of each of the five, [D] or [1]."""
        sums = [sum(column) for column in zip(*([z.sum(0) for z in block] for block in self), strict=True)]
        return [z / len(self.sides[0].rows) for z in sums]


# -- the likeliest scales ----------------------------------------------------------------------------------------------


def _likeliest(
    pairs: _Pairs, prior: Array, typical: tuple[float, float], start: Array, tie: Array | None = None
) -> tuple[Array, float]:
    """The likeliest phi >= 0 and its loss, by Fisher's scoring. Variances are a var / typical + b with (a, b, a', b') =
    tie phi."""
    tie = np.eye(4) if tie is None else tie
    phi = start
    loss, slope, information = _scores(pairs, prior, typical, tie @ phi)
    for _ in range(200):
        matrix = tie.T @ information @ tie
        target, step, tolerance = _least_square(matrix, matrix @ phi - tie.T @ slope), 1.0, 1e-13 * max(1, abs(loss))
        while True:
            found = phi + step * (target - phi)
            new, *derivatives = _scores(pairs, prior, typical, tie @ found)
            if new <= loss + tolerance or step < 1e-6:
                break
            step /= 2
        if not new <= loss + tolerance:
            break
        done = loss - new < tolerance
        phi, loss, (slope, information) = found, new, derivatives
        if done:
            break
    return phi, loss


def _scores(pairs: _Pairs, prior: Array, typical: tuple[float, float], theta: Array) -> tuple[float, Array, Array]:
    """Minus twice the mean log likelihood, without constants, its derivatives, and Fisher's information."""
    loss, slope, information, size = 0.0, np.zeros(4), np.zeros((4, 4)), 0
    a, b, c, e = theta
    with np.errstate(divide="ignore", invalid="ignore"):  # a loss that is NaN counts as no improvement
        for xx, xy, yy, var, war in pairs:
            v, w = var / typical[0], war / typical[1]
            s, t = a * v + b, c * w + e
            det = prior * (s + t) + s * t
            # [[k, -m], [-m, n]] is the inverse covariance.
            k, m, n = (prior + t) / det, prior / det, (prior + s) / det
            kk, mm, nn = k * k, m * m, n * n
            loss += float((np.log(det) + k * xx - 2 * m * xy + n * yy).sum())
            of_query = k - kk * xx + 2 * k * m * xy - mm * yy
            of_item = n - mm * xx + 2 * m * n * xy - nn * yy
            query, item = (np.stack(np.broadcast_arrays(z, np.ones_like(xx))).reshape(2, -1) for z in (v, w))
            slope += np.r_[query @ of_query.ravel(), item @ of_item.ravel()]
            crossed = (query * mm.ravel()) @ item.T
            information += np.block(
                [[(query * kk.ravel()) @ query.T, crossed], [crossed.T, (item * nn.ravel()) @ item.T]]
            )
            size += xx.size
    return (loss if np.isfinite(loss) else np.inf) / size, slope / size, information / size


def _least_square(matrix: Array, vector: Array) -> Array:
    """phi >= 0 that makes phi . matrix phi / 2 - vector . phi least: the best of all sets of what is not 0.

    Where a variance is one number for all, its factor and its offset are one parameter: then the factor alone.
    """
    best, least, size = np.zeros(len(vector)), np.inf, len(vector)
    for support in map(list, itertools.chain(*(itertools.combinations(range(size), n) for n in range(size, 0, -1)))):
        part = matrix[np.ix_(support, support)]
        scale = np.diag(part) ** 0.5
        if np.linalg.cond(part / np.outer(scale, scale)) > 1e10:
            continue
        phi = np.linalg.solve(part, vector[support])
        value = -phi @ vector[support] / 2
        if (phi >= 0).all() and (least == np.inf or value < least - 1e-12 * abs(least)):
            least, best = value, np.zeros(size)
            best[support] = phi
            if len(support) == size:  # where all are at least 0, no solution with one more 0 is better
                break
    return best
