"""The scale of uncertainties, fitted to labelled pairs."""

from __future__ import annotations

import inspect
import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, overload

import numpy as np
from numpy.typing import ArrayLike

from peaccel._utils.arrays import Array, ArrayT, on_host, quiet, require_finite
from peaccel.distributions import Distribution
from peaccel.distributions._numerics import double, one_minus_ratio, scaled_log_norm, square_distance
from peaccel.distributions.checks import NORMALS, require_kind
from peaccel.fits.labelled_pairs import BLOCK, by_blocks, different_rows, labelled_pairs
from peaccel.fits.records import Calibration
from peaccel.fits.sides import calibrate_sides, warn_if_sides_differ
from peaccel.metrics.verification import area_of_reversed

__all__ = ["calibrate_variance"]

FEW = 1 << 18  # evenly spaced numbers from which the start of a search for the maximum is estimated


@overload
def calibrate_variance(
    queries: Distribution[ArrayT], gallery: Distribution[ArrayT], pairs: ArrayLike, labels: ArrayLike
) -> tuple[Calibration, Calibration]: ...
@overload
def calibrate_variance(d: Distribution, pairs: ArrayLike, labels: ArrayLike, offset: bool = True) -> Calibration: ...
@quiet
def calibrate_variance(*arguments: Any, **named: Any) -> Any:
    """The scale at which uncertainties fit the pairs of one identity, for scores that need it right: mls, llr, ppk.

    ``calibrate_variance(d, pairs, labels, offset=True)``: by maximum likelihood of the same pairs under the model
    behind ``mls``. Normal: mu_i - mu_j is drawn from N(0, s_i + s_j) with s = a var + b; a, b >= 0. VonMisesFisher:
    mu_i and mu_j are drawn around one direction that is uniform on the sphere, with concentrations a kappa, which
    maximises the mean ``mls``.

    ``calibrate_variance(queries, gallery, pairs, labels)``: a scale and a mean for each side, where the sides are two
    modalities (image and text, day and night, old and new model). Normal alone: less its side's mean over same pairs,
    mu_i is drawn from N(0, p + s_i), mu_j from N(0, p + s_j), with the covariance p, the mean product, as in ``llr``;
    a, b >= 0 of either side are the likeliest.

    Parameters
    ----------
    d
        N items, Normal or VonMisesFisher; detached.
    queries, gallery
        The items of two sides, Normal, of one dimension; detached.
    pairs
        [P, 2] integers: rows of d, or of queries and of gallery. Held-out identities: a model is surer of those it was
        trained on. Of two sides 100 identities and more: the means are of the classes that pairs show.
    labels
        [P] booleans (or 0 and 1): whether a pair is of one identity. Different pairs do not enter: how far apart they
        are is for the prior to say (``pe.fit_prior``), not for the uncertainties.
    offset
        False fits a alone, with b = 0.

    Returns
    -------
    Calibration
        ``c = pe.calibrate_variance(d, pairs, labels)`` has ``c.a`` and ``c.b``, and ``c(gallery)`` applies them. a
        below 1: the model says it is less sure than it is (Normal), surer than it is (VonMisesFisher). a = 0 and b > 0:
        its variances say nothing that one constant does not. ``pe.io.write_fit`` keeps it. Of two sides a tuple of two,
        which subtract their side's ``mean`` too: ``q, g = pe.calibrate_variance(queries, gallery, pairs, labels)``,
        then score ``q(queries)`` against ``g(gallery)``, with the prior that `pe.fit_prior` finds of these.

    Warns
    -----
    UserWarning
        Labels look reversed: pairs of one identity are further apart than the others, by more than chance. Or one scale
        was fitted, and the first items of pairs have another mean than the second, or fit the variances by another
        factor: then they are two modalities.

    Raises
    ------
    TypeError
        d, queries or gallery is of another class.
    ValueError
        pairs or labels of wrong shape or dtype, rows out of range, no same pair, a same pair of a row of d with itself;
        same pairs for which no maximum exists: equal means, zero variances, directions no more alike than chance.

    References
    ----------
    Shi & Jain, "Probabilistic Face Embeddings", eq. 3, the likelihood for normals, here a function of the scale; Ioffe,
    "Probabilistic Linear Discriminant Analysis", 2006, for the model of two sides.

    Examples
    --------
    Items that are twice as far from the truth as their variances of 0.01 say:

    >>> rng = np.random.default_rng(0)
    >>> truth = np.repeat(rng.normal(size=(500, 8)), 2, axis=0)
    >>> d = pe.Normal(truth + 0.2 * rng.normal(size=truth.shape), var=0.01)
    >>> pairs = np.arange(1000).reshape(-1, 2)
    >>> c = pe.calibrate_variance(d, pairs, np.ones(500, bool), offset=False)
    >>> round(c.a), c(d).var[:2].round(2).tolist()
    (4, [0.04, 0.04])
    """
    sided = "gallery" in named or (len(arguments) > 1 and isinstance(arguments[1], Distribution))
    return (_calibrate_two if sided else _calibrate_one)(*arguments, **named)


def _calibrate_one(d: Distribution, pairs: ArrayLike, labels: ArrayLike, offset: bool = True) -> Calibration:
    kind = require_kind("calibrate_variance", "d", d, (*NORMALS, "vmf"), "with a variance or concentration")
    rows, same = labelled_pairs("calibrate_variance", {"d": d}, pairs, labels)
    first, second = different_rows("calibrate_variance", rows[same], "one identity")
    mu, spread = (on_host(x, "calibrate_variance", "d") for x in d.arrays)
    require_finite("calibrate_variance", "d", mu, spread)
    near = -by_blocks(square_distance, mu, *rows.T)
    if (area := area_of_reversed(near[np.isfinite(near)], same[np.isfinite(near)])) is not None:
        apart = f"pairs of one identity are further apart than others, by an AUC of {area:.3f}"
        what = f"calibrate_variance: labels look reversed: {apart}; expected 1, or True, for one identity"
        warnings.warn(what, UserWarning, stacklevel=4)  # the caller's line; `quiet` is a frame
    if kind == "normal_diagonal":
        differences = _Differences(mu, spread, first, second)
        few = differences.some(-(-len(first) * d.dim // FEW))
        found = Calibration(*_fit_var(differences, few, offset), "Normal")
    else:
        found = _calibrate_rows(kind, mu, spread, first, second, offset)
    remedy = "one mean and one scale were fitted; pe.calibrate_variance(queries, gallery, ...) fits them for each side"
    warn_if_sides_differ("calibrate_variance", remedy, {"first": d, "second": d}, (first, second), found)
    return found


# What help() shows is one of the two forms; the docstring has both.
calibrate_variance.__signature__ = inspect.signature(_calibrate_one)  # type: ignore[attr-defined]


def _calibrate_rows(kind: str, mu: Array, spread: Array, first: Array, second: Array, offset: bool) -> Calibration:
    """The calibration of items with one variance or concentration each."""
    dim = mu.shape[1]
    square = by_blocks(square_distance, mu, first, second)
    columns = double(spread[first]), double(spread[second]), square
    few = -(-16 * len(first) // FEW)
    some = columns if few == 1 else [x[::few] for x in columns]
    if kind == "vmf":
        return Calibration(_fit_kappa(dim, columns, some), 0.0, "VonMisesFisher")
    one, some_of_it = ([(square / dim, first + second)] for first, second, square in (columns, some))
    return Calibration(*_fit_var(one, one if few == 1 else some_of_it, offset), "Normal")


def _calibrate_two(
    queries: Distribution, gallery: Distribution, pairs: ArrayLike, labels: ArrayLike
) -> tuple[Calibration, Calibration]:
    sides = {"queries": queries, "gallery": gallery}
    for name, d in sides.items():
        require_kind("calibrate_variance", name, d, NORMALS, "with a variance")
        require_finite("calibrate_variance", name, *(on_host(x, "calibrate_variance", name) for x in d.arrays))
    if queries.dim != gallery.dim:
        raise ValueError(f"calibrate_variance: dim of gallery is {gallery.dim}, expected {queries.dim} like queries")
    rows, same = labelled_pairs("calibrate_variance", sides, pairs, labels)
    if not same.any():
        raise ValueError("calibrate_variance: labels name no pair of one identity, expected at least one")
    return calibrate_sides(queries, gallery, rows[same])


# -- pairs -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Differences:
    """Squared differences of means and sums of variances, both [., D] in float64, block by block of the pairs."""

    mu: Array
    var: Array
    first: Array
    second: Array

    def __iter__(self) -> Iterator[tuple[Array, Array]]:
        step = -(-BLOCK // self.mu.shape[1])
        for start in range(0, len(self.first), step):
            sides = [rows[start : start + step] for rows in (self.first, self.second)]
            (a, b), (v, w) = ([double(x.take(rows, 0, mode="clip")) for rows in sides] for x in (self.mu, self.var))
            square = np.subtract(a, b)
            square *= square
            v = v + w
            yield square, v

    def some(self, step: int) -> _Differences:
        """Every step-th pair."""
        return self if step == 1 else replace(self, first=self.first[::step], second=self.second[::step])


# -- the likeliest scale -----------------------------------------------------------------------------------------------

Blocks = Iterable[tuple[Array, Array]]  # squared differences and variances, which are read many times


class _Problem(NamedTuple):
    """A function of one number that is to be minimised, and its derivative."""

    loss: Callable[[float], float]
    slope: Callable[[float], float]


def _fit_var(pairs: Blocks, some: Blocks, offset: bool) -> tuple[float, float]:
    """The likeliest a and b where squared differences have the expectation a var + 2 b, var the variance of a pair.

    Written as t ((1 - w) var / mean(var) + w), the best t is known for each w. What is left is a search over w in
    [0, 1]: w = 0 is a alone, w = 1 is b alone.
    """
    table = np.array([(square.sum(), var.sum(), var.size, var.min()) for square, var in pairs]).T
    square, typical = table[:2].sum(1) / table[2].sum()
    least = table[3].min()
    if not (0 < typical < math.inf and least >= 0):
        raise ValueError("calibrate_variance: var of the same pairs must be finite, >= 0 and not all 0")
    if not 0 < square < math.inf:
        raise ValueError(
            "calibrate_variance: mu of the same pairs must be finite and not all equal: no scale is likeliest"
        )
    w = 0.0
    if least == 0 and not offset:
        raise ValueError("calibrate_variance: var of a same pair is 0, which no factor changes; offset=True adds to it")
    if offset:
        places = np.r_[0.0, np.logspace(-9, 0, 37)]
        problems = [_variance_problem(x, typical) for x in ((pairs,) if some is pairs else (pairs, some))]
        w = _minimum(problems[0], problems[-1], places[1:] if least == 0 else places)
    (t,) = _means(lambda square, var: ((square / _shape(var, w, typical)).sum(),), pairs)
    return float(t * (1 - w) / typical), float(t * w / 2)


def _shape(var: Array, w: float, typical: float) -> Array:
    shape = var * ((1 - w) / typical)
    shape += w
    return shape


def _variance_problem(pairs: Blocks, typical: float) -> _Problem:
    def loss(w: float) -> float:
        def sums(square: Array, var: Array) -> tuple[float, ...]:
            shape = _shape(var, w, typical)
            return (square / shape).sum(), np.log(shape).sum()

        scaled, log = _means(sums, pairs)
        return float(np.log(scaled) + log)

    def slope(w: float) -> float:
        def sums(square: Array, var: Array) -> tuple[float, ...]:
            inverse = 1 / _shape(var, w, typical)
            tilt = 1 - var / typical
            tilt *= inverse
            inverse *= square
            return tilt.sum(), inverse.sum(), np.vdot(inverse, tilt)

        tilt, scaled, tilted = _means(sums, pairs)
        return float(tilt - tilted / scaled)

    return _Problem(loss, slope)


def _means(sums: Callable[[Array, Array], tuple[float, ...]], pairs: Blocks) -> Array:
    """Sums over all blocks, divided by the number of elements."""
    table = np.array([(*sums(square, var), var.size) for square, var in pairs]).sum(0)
    return table[:-1] / table[-1]


def _fit_kappa(dim: int, pairs: Sequence[Array], some: Sequence[Array]) -> float:
    """The factor c on all concentrations that maximises log C(c kappa1) + log C(c kappa2) - log C(c R), with the length
    R = |kappa1 mu1 + kappa2 mu2|.
    """
    places = math.log(10) * np.linspace(-8, 8, 65)
    problems = [_kappa_problem(dim, *x) for x in ((pairs,) if some is pairs else (pairs, some))]
    log_a = _minimum(problems[0], problems[-1], places)
    if not places[0] < log_a < places[-1]:
        raise ValueError(
            "calibrate_variance: no factor from 1e-8 to 1e8 is likeliest: same pairs are all equal or unlike"
        )
    return math.exp(log_a)


def _kappa_problem(dim: int, kappa1: Array, kappa2: Array, square: Array) -> _Problem:
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

    return _Problem(loss, slope)


def _minimum(problem: _Problem, some: _Problem, places: Array) -> float:
    """The minimum: a search with some of the pairs finds about where, the root of all pairs' slope finds it exactly."""
    if problem is some:
        return _searched(problem, places)
    with np.errstate(all="ignore"):  # where some pairs do not determine it, all are searched
        x = _searched(some, places)
        at = problem.slope(x)
        if at == 0 or (x == places[0] and at > 0) or (x == places[-1] and at < 0):
            return x
        gap = 0.01 * np.diff(places)[max(np.searchsorted(places, x) - 1, 0)]
        bend = (some.slope(x + gap) - some.slope(x - gap)) / (2 * gap)
        # Twice the step of Newton's method, to the other side of the root.
        other = float(np.clip(x - 2 * at / bend, places[0], places[-1]))
    if bend > 0 and at * (beyond := problem.slope(other)) < 0:
        return _root(problem.slope, *((x, other, at, beyond) if at < 0 else (other, x, beyond, at)))
    return _searched(problem, places)


def _searched(problem: _Problem, places: Array) -> float:
    """The best of the places, and from there the root of the slope between its neighbours.

    Of a function that is flat up to rounding the first place is the minimum.
    """
    losses = np.array([problem.loss(x) for x in places])
    best = int(np.argmax(losses <= losses.min() + 1e-13 * max(1, abs(losses.min()))))
    low, high = (float(places[i]) for i in (max(best - 1, 0), min(best + 1, len(places) - 1)))
    at_low, at_high = problem.slope(low), problem.slope(high)
    return _root(problem.slope, low, high, at_low, at_high) if at_low < 0 < at_high else float(places[best])


def _root(slope: Callable[[float], float], low: float, high: float, at_low: float, at_high: float) -> float:
    """The root by the Illinois form of false position, which brackets it and is about as fast as Newton's method."""
    side, last, tolerance = 0, math.inf, 1e-12 * max(abs(low), abs(high))
    for _ in range(100):
        x = (low * at_high - high * at_low) / (at_high - at_low)
        if abs(x - last) < tolerance:
            return x
        if not low < x < high:
            break
        value, last = slope(x), x
        if value == 0:
            return x
        if value < 0:
            low, at_low, at_high, side = x, value, at_high / (2 if side == -1 else 1), -1
        else:
            high, at_high, at_low, side = x, value, at_low / (2 if side == 1 else 1), 1
    return low if abs(at_low) < abs(at_high) else high
