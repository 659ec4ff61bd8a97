"""Scores of pairs of distributions; always higher = more similar.

A `Score` maps pairs of kinds to what a kernel is called with. ``pe.scores.llr(prior_var=0.5)`` returns a copy with
parameters, and verbs take the same as a string, ``"llr:prior_var=0.5"``.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np

from peaccel.distributions import Distribution
from peaccel.ops import bessel, diag_scores, dot_scores
from peaccel.ops._array import Array, is_torch, namespace
from peaccel.ops._op import PairOp

__all__ = [
    "SCORES",
    "Pair",
    "Score",
    "cosine",
    "expected_cosine",
    "get",
    "llr",
    "mls",
    "neg_expected_sq_l2",
    "neg_sq_l2",
]

Kinds: TypeAlias = tuple[str, str]  # of the query, of the gallery
Params: TypeAlias = Mapping[str, Any]
Features: TypeAlias = Callable[[Distribution, Params], tuple[Array, Array]]

KINDS = ("normal_isotropic", "normal_diagonal", "vmf", "nivmf", "scaled", "point")


def _nothing_shared(mu: Array, params: Params) -> Array:
    return mu[:0, 0]


@dataclass(frozen=True)
class Pair:
    """How a pair of kinds is scored: the op, what each side hands to it, and the row that all pairs share."""

    op: PairOp
    query: Features
    gallery: Features
    shared: Callable[[Array, Params], Array] = _nothing_shared


@dataclass(frozen=True)
class Score:
    """A score of pairs. Calling it returns a copy with other parameters.

    Attributes
    ----------
    name
        As verbs take it.
    doc
        One sentence.
    pairs
        (query kind, gallery kind) -> `Pair`.
    params
        Parameters and their values; numbers, arrays or, to be trained, tensors. None = must be given.
    """

    name: str
    doc: str
    pairs: Mapping[Kinds, Pair]
    params: Params = field(default_factory=dict)

    def __call__(self, **params: Any) -> Score:
        for name, value in params.items():
            if name not in self.params:
                raise ValueError(f"{self.name}: {_unknown('parameter', name, self.params)}")
            if not (value is None or is_torch(value) or _numeric(value)):
                raise TypeError(f"{self.name}: {name} must be a number or an array of numbers, got {value!r}")
        return replace(self, params={**self.params, **params})

    def pair(self, query: str, gallery: str) -> Pair:
        """How these kinds are scored; TypeError listing what the score accepts."""
        if (query, gallery) not in self.pairs:
            accepted = ", ".join(sorted(f"{q} x {g}" for q, g in self.pairs))
            raise TypeError(f"{self.name}: cannot score {query} x {gallery} (query x gallery), only {accepted}")
        return self.pairs[query, gallery]


def _numeric(value: Any) -> bool:
    try:
        return np.asarray(value).dtype.kind in "iuf"
    except ValueError:  # rows of different lengths
        return False


def _unknown(what: str, name: str, known: Any) -> str:
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=0.4)
    hint = f"did you mean {near[0]!r}?" if near else f"expected one of {', '.join(known) or 'none'}"
    return f"unknown {what} {name!r}; {hint}"


# -- what each side hands to a kernel ----------------------------------------------------------------------------------


def _constant(d: Distribution, value: float) -> Array:
    """[N] of one value that takes no memory."""
    if is_torch(d.mu):
        return d.mu.new_full((1,), value).expand(len(d))
    return np.broadcast_to(np.asarray(value, d.mu.dtype), (len(d),))


def _direction(d: Distribution, params: Params) -> tuple[Array, Array]:
    return d.mu, _constant(d, 1.0)


def _location(d: Distribution, params: Params) -> tuple[Array, Array]:
    return d.mu, _constant(d, 0.0)


def _normal(d: Any, params: Params) -> tuple[Array, Array]:
    return d.mu, d.var


def _normal_rows(d: Any, params: Params) -> tuple[Array, Array]:
    """Variances as rows: a point's and an isotropic one have one element."""
    return d.mu, _variance(d)[:, None] if d.kind != "normal_diagonal" else d.var


def _variance(d: Any) -> Array:
    return _constant(d, 0.0) if d.kind == "point" else d.var


def _isotropic(d: Any, params: Params) -> tuple[Array, Array]:
    return d.mu, _variance(d)


def _centred(features: Features) -> Features:
    """The features with the prior's mean subtracted."""

    def centre(d: Distribution, params: Params) -> tuple[Array, Array]:
        mu, extra = features(d, params)
        mean = params["prior_mean"]
        if isinstance(mean, (int, float)):
            return (mu - mean if mean else mu), extra
        if tuple(np.shape(mean)) not in ((), (1,), (mu.shape[-1],)):
            raise ValueError(f"llr: prior_mean has shape {tuple(np.shape(mean))}, expected () or ({mu.shape[-1]},)")
        return mu - _like(mean, mu), extra

    return centre


def _vmf(d: Any, params: Params) -> tuple[Array, Array]:
    return d.mu, d.kappa


def _resultant(d: Any, params: Params) -> tuple[Array, Array]:
    """The expected direction's length, E[z / |z|] = resultant * mu / |mu|."""
    if d.kind == "point":
        return _direction(d, params)
    if d.kind == "vmf":
        return d.mu, bessel.iv_ratio(_order(d.dim / 2, d.kappa), d.kappa)
    return d.mu, _projected_length(d.mu, d.var)


def _order(v: float, like: Array) -> Any:
    return v if is_torch(like) else np.asarray(v)


def _projected_length(mu: Array, var: Array) -> Array:
    """Length of the mean of z/|z|, z ~ N(mu, var I): with x = |mu|^2 / (2 var),

    ``sqrt(x) Gamma((D+1)/2) / Gamma(D/2+1) 1F1(1/2; D/2+1; -x)``, as the integral
    ``2 sqrt(x/pi) int_0^(pi/2) exp(-x sin^2 t) cos^D t dt``.

    Gauss-Legendre over the 12 standard deviations that count; error below 1e-13.
    """
    xp = namespace(mu)
    nodes, weights = np.polynomial.legendre.leggauss(64)
    dim, dtype, double = mu.shape[-1], mu.dtype, xp.float64
    mu, var = (x.to(double) if is_torch(x) else x.astype(double) for x in (mu, var))
    square = (mu * mu).sum(-1)
    # Far out the first term of the series in var is exact, down to a variance of 0; below 0 there is no length.
    far = (2e-30 * square >= var) & (var >= 0)
    x = square / (2 * xp.where(far, 1, xp.where(var > 0, var, math.nan)))
    width = 12 / xp.sqrt(2 * x + dim)
    width = xp.where(width > math.pi / 2, math.pi / 2, width)
    total = 0 * x
    for node, weight in zip(0.5 * (nodes + 1), 0.5 * weights, strict=True):
        t = width * node
        total = total + weight * xp.exp(-x * xp.sin(t) ** 2) * xp.cos(t) ** dim
    near = 2 / math.sqrt(math.pi) * xp.sqrt(x) * width * total
    length = xp.where(far, 1 - (dim - 1) / 2 * var / xp.where(far, square, 1), near)
    return length.to(dtype) if is_torch(mu) else length.astype(dtype)


def _moments(d: Any, params: Params) -> tuple[Array, Array]:
    """The mean and the trace of the covariance."""
    if d.kind == "vmf":
        order = _order(d.dim / 2, d.kappa)
        return bessel.iv_ratio(order, d.kappa)[:, None] * d.mu, bessel.iv_ratio_complement(order, d.kappa)
    if d.kind == "normal_diagonal":
        # A negative variance must not hide in a sum.
        return d.mu, namespace(d.var).where(d.var >= 0, d.var, math.nan).sum(-1)
    return d.mu, d.dim * _variance(d)


def _like(value: Any, mu: Array) -> Array:
    """A parameter as an array of mu's kind, dtype and device."""
    if is_torch(mu):
        return value.to(mu) if is_torch(value) else mu.new_tensor(value)
    return np.asarray(value, mu.dtype)


# -- the scores --------------------------------------------------------------------------------------------------------


def _prior_var(mu: Array, params: Params) -> Array:
    """[1], or [D] where the prior has a variance per dimension."""
    value = params["prior_var"]
    if value is None:
        raise ValueError("llr: prior_var must be given; pe.fit_prior(d, labels) estimates it with prior_mean")
    row = _like(value, mu).reshape(-1)
    if tuple(np.shape(value)) not in ((), (1,), (mu.shape[-1],)):
        raise ValueError(f"llr: prior_var has shape {tuple(np.shape(value))}, expected () or ({mu.shape[-1]},)")
    return row


def _one_prior_var(mu: Array, params: Params) -> Array:
    row = _prior_var(mu, params)
    if len(row) > 1:
        raise ValueError(f"llr: prior_var has shape {tuple(row.shape)}, expected () for isotropic variances")
    return row


def _prior_var_row(mu: Array, params: Params) -> Array:
    row = _prior_var(mu, params)
    return row.expand(mu.shape[-1]) if is_torch(row) else np.broadcast_to(row, mu.shape[-1:])


def _uniform_prior(mu: Array, params: Params) -> Array:
    if params["prior_var"] is not None:
        raise ValueError("llr: prior_var has no meaning for vmf x vmf, whose prior is uniform")
    surface = -bessel.vmf_log_norm(np.asarray(float(mu.shape[-1])), np.zeros(1))
    return _like(surface, mu)


def _no_offset(mu: Array, params: Params) -> Array:
    return _like(np.zeros(1), mu)


_ISOTROPIC = ("normal_isotropic", "point")
_NORMAL = ("normal_isotropic", "normal_diagonal", "point")


def _every(kinds: tuple[str, ...], pair: Pair) -> dict[Kinds, Pair]:
    return {(q, g): pair for q in kinds for g in kinds}


def _without_two_points(pairs: dict[Kinds, Pair]) -> dict[Kinds, Pair]:
    """Two points have no density in common."""
    return {kinds: pair for kinds, pair in pairs.items() if kinds != ("point", "point")}


def _normals(isotropic: Pair, diagonal: Pair) -> dict[Kinds, Pair]:
    return _without_two_points({**_every(_NORMAL, diagonal), **_every(_ISOTROPIC, isotropic)})


mls = Score(
    "mls",
    "Mutual likelihood score: log of the integrated product of the two densities.",
    {
        **_normals(
            Pair(dot_scores.mls_isotropic, _isotropic, _isotropic),
            Pair(diag_scores.mls_diagonal, _normal_rows, _normal_rows),
        ),
        ("vmf", "vmf"): Pair(dot_scores.mls_vmf, _vmf, _vmf, _no_offset),
    },
)

llr = Score(
    "llr",
    "Log-likelihood ratio of the same against different identities under a prior on their positions.",
    {
        **_normals(
            Pair(dot_scores.llr_isotropic, _centred(_isotropic), _centred(_isotropic), _one_prior_var),
            Pair(diag_scores.llr_diagonal, _centred(_normal_rows), _centred(_normal_rows), _prior_var_row),
        ),
        ("vmf", "vmf"): Pair(dot_scores.mls_vmf, _vmf, _vmf, _uniform_prior),
    },
    {"prior_var": None, "prior_mean": 0.0},
)

cosine = Score(
    "cosine",
    "Cosine of the two means or directions.",
    _every(KINDS, Pair(dot_scores.cosine, _direction, _direction)),
)

neg_sq_l2 = Score(
    "neg_sq_l2",
    "Minus the squared Euclidean distance of the two means or directions.",
    _every(KINDS, Pair(dot_scores.neg_sq_l2, _location, _location)),
)

expected_cosine = Score(
    "expected_cosine",
    "Expected cosine of two draws, in closed form.",
    {
        **_every(_ISOTROPIC, Pair(dot_scores.cosine, _resultant, _resultant)),
        **_every(("vmf",), Pair(dot_scores.cosine, _resultant, _resultant)),
    },
)

neg_expected_sq_l2 = Score(
    "neg_expected_sq_l2",
    "Minus the expected squared Euclidean distance of two draws, in closed form.",
    {
        **_every(_NORMAL, Pair(dot_scores.neg_sq_l2, _moments, _moments)),
        **_every(("vmf",), Pair(dot_scores.neg_sq_l2, _moments, _moments)),
    },
)

SCORES: dict[str, Score] = {s.name: s for s in (mls, llr, cosine, neg_sq_l2, expected_cosine, neg_expected_sq_l2)}


def get(score: str | Score) -> Score:
    """The score of a name, with parameters after a colon: "mls", "llr:prior_var=0.5,prior_mean=0"."""
    if isinstance(score, Score):
        return score
    if not isinstance(score, str):
        raise TypeError(f"score must be a name or a Score, got {type(score).__name__}")
    name, _, text = score.partition(":")
    if name not in SCORES:
        raise ValueError(_unknown("score", name, SCORES))
    params = {}
    for item in filter(None, text.split(",")):
        key, _, value = item.partition("=")
        try:
            params[key.strip()] = float(value)
        except ValueError:
            raise ValueError(f"score {score!r}: {key.strip()} must be a number, got {value!r}") from None
    return SCORES[name](**params)
