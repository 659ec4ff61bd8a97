"""How sure an item is of itself, by the names under which it is known."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from peaccel._utils.arrays import Array, ArrayT, as_array, cast, dtype_name, namespace, quiet
from peaccel._utils.seeds import as_integer, as_seed
from peaccel._utils.suggestions import unknown
from peaccel.distributions._numerics import double
from peaccel.distributions.checks import compute_dtype
from peaccel.distributions.classes import Distribution
from peaccel.distributions.entropy import entropy
from peaccel.ops import Draws, Inputs, dot_scores, sampled_scores, score

__all__ = ["confidence"]


@quiet
def confidence(
    d: Distribution[ArrayT],
    kind: str | None = None,
    *,
    a: Any = None,
    b: Any = None,
    n: int | None = None,
    seed: Any = None,
) -> ArrayT:
    """How sure, or how unsure, each item is of itself. Comparable within one model only.

    =================  ===========  ============================================  =====================================
    kind               of           formula                                       used by
    =================  ===========  ============================================  =====================================
    neg_log_var        Normal       -mean_d log var; Normal's default             HIB, PFE, DUL in "Revisited"
    neg_entropy        Normal, vMF  -entropy / D, all constants, nats             "Revisited", sec. 5.5, by its words
    log_kappa          vMF, nivMF   log kappa, nivMF: mean_d; their default       SCF, vMF-FL, vMF-loss in "Revisited"
    kappa              vMF, nivMF   kappa, nivMF: mean_d                          SCF; the image norm of EL-nivMF
    scale              Scaled       scale; Scaled's default                       ScaleFace, MagFace
    self_match         Normal       E sigmoid(b - a d), d apart are two draws     HIB: 1 less the self-mismatch
    norm               Normal,      the length of means that are no directions    the baseline in "Revisited"
                       Point
    *harmonic_var*     Normal       1 / mean_d(1 / var), isotropic: var           PFE in ScaleFace; Bayesian triplet
    *inverse_kappa*    vMF, nivMF   1 / kappa, nivMF: 1 / mean_d kappa            URL; "Revisited", as network output
    *inverse_scale*    Scaled       1 / scale                                     pair rules for ScaleFace
    =================  ===========  ============================================  =====================================

    Higher is surer, except for the three kinds in asterisks, which are uncertainties: higher is less sure. Rules that
    make one number of a pair's two (product, harmonic or geometric mean) need these: they are positive, and a product
    of log variances or entropies, of any sign, orders nothing.

    Parameters
    ----------
    d
        N items; differentiable in torch.
    kind
        A name of the table; None for the default of d's kind.
    a, b
        Of self_match: numbers or, to be trained, tensors, as `peaccel.scores.hib` takes them; None is 1 and 0.
    n, seed
        Of self_match where variances are diagonal: how many draws, 1 .. 1024 (None is 8), and their seed as
        `peaccel.scores.hib` takes it. Isotropic normals are not drawn.

    Returns
    -------
    [N], of d's kind and dtype.

    Raises
    ------
    TypeError
        d is not a distribution, has no confidence (Point, by default), or not one of this kind; a, b, n or seed is
        given to another kind than self_match.
    ValueError
        Unknown kind; the nearest one is named. A negative variance, kappa or scale, in the 64 rows that are looked at.
        a or b is not one number; n or seed is out of range.

    References
    ----------
    "Probabilistic Embeddings Revisited", sec. 5.5 and its code; "ScaleFace", sec. 3; Shi & Jain, "Probabilistic Face
    Embeddings", sec. 4; Oh et al., "Modeling uncertainty with hedged instance embeddings", 2019.

    Examples
    --------
    >>> faces = pe.Normal([[0.0, 1.0], [1.0, 0.0]], var=[0.1, 0.5])
    >>> pe.confidence(faces).round(3).tolist()
    [2.303, 0.693]
    >>> pe.confidence(faces, kind="harmonic_var").tolist()
    [0.1, 0.5]
    >>> pe.confidence(faces, kind="self_match", a=10.0, b=5.0).round(2).tolist()
    [0.46, 0.13]
    """
    item_kind = d.kind if isinstance(d, Distribution) else type(d).__name__
    if not isinstance(d, Distribution) or (kind is None and item_kind not in _DEFAULTS):
        raise TypeError(f"confidence: d must be a distribution with an uncertainty, got {item_kind}")
    name = _DEFAULTS[item_kind] if kind is None else kind
    if not isinstance(name, str):
        raise TypeError(f"confidence: kind must be a name or None, got {type(name).__name__}")
    if name not in _KINDS:
        raise ValueError(f"confidence: {unknown('kind', name, _KINDS)}")
    if item_kind not in _KINDS[name]:
        raise TypeError(f"confidence: kind {name!r} is of {', '.join(_KINDS[name])}, got {item_kind}")
    match = {"a": a, "b": b, "n": n, "seed": seed}
    options = {key: value for key, value in match.items() if value is not None}
    if options and name != "self_match":
        raise TypeError(f"confidence: {', '.join(options)} must not be given to kind {name!r}, only to 'self_match'")
    d.check_rows()
    value = _KINDS[name][item_kind](d._map(lambda x: cast(x, compute_dtype(x))), **options)
    return cast(value, dtype_name(d.mu))


def _norm(d: Any) -> Array:
    return namespace(d.mu).linalg.norm(double(d.mu), None, -1)


def _self_match(d: Any, a: Any = 1.0, b: Any = 0.0, n: int = 8, seed: Any = None) -> Array:
    xp, line = namespace(d.mu), []
    for name, value in (("a", a), ("b", b)):
        number = as_array(value, "confidence", name, like=d.mu)
        if math.prod(number.shape) != 1:
            raise ValueError(f"confidence: {name} must be a number, got shape {tuple(number.shape)}")
        line.append(cast(number, dtype_name(d.mu)).reshape(1))
    mu = xp.zeros_like(d.mu)  # where both draws lie is of no consequence, and about 0 they have all their digits
    inputs = Inputs(mu, d.var, mu, d.var, xp.concatenate(line))
    if d.kind == "normal_isotropic":
        return xp.exp(score(dot_scores.hib_isotropic, inputs))
    draws = Draws(as_seed("confidence", seed, mu), as_integer("confidence", "n", n, 1, 1024))
    return xp.exp(score(sampled_scores.hib_sampled, inputs._replace(draws=draws)))


def _log(x: Array) -> Array:
    return namespace(x).log(x)


_KINDS: Mapping[str, Mapping[str, Callable[..., Array]]] = {
    "neg_log_var": {
        "normal_isotropic": lambda d: -_log(d.var),
        "normal_diagonal": lambda d: -_log(d.var).mean(-1),
    },
    "neg_entropy": dict.fromkeys(("normal_isotropic", "normal_diagonal", "vmf"), lambda d: -entropy(d) / d.dim),
    "log_kappa": {"vmf": lambda d: _log(d.kappa), "nivmf": lambda d: _log(d.kappa).mean(-1)},
    "kappa": {"vmf": lambda d: d.kappa, "nivmf": lambda d: d.kappa.mean(-1)},
    "scale": {"scaled": lambda d: d.scale},
    "self_match": dict.fromkeys(("normal_isotropic", "normal_diagonal"), _self_match),
    "norm": dict.fromkeys(("normal_isotropic", "normal_diagonal", "point"), _norm),
    "harmonic_var": {
        "normal_isotropic": lambda d: d.var,
        "normal_diagonal": lambda d: 1 / (1 / d.var).mean(-1),
    },
    "inverse_kappa": {"vmf": lambda d: 1 / d.kappa, "nivmf": lambda d: 1 / d.kappa.mean(-1)},
    "inverse_scale": {"scaled": lambda d: 1 / d.scale},
}
_DEFAULTS = {
    "normal_isotropic": "neg_log_var",
    "normal_diagonal": "neg_log_var",
    "vmf": "log_kappa",
    "nivmf": "log_kappa",
    "scaled": "scale",
}
