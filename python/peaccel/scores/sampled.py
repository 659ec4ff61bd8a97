"""Scores that average over draws of both items, and densities at draws.

Draws come from the samplers of `peaccel.sample`, addressed by the seed, the side and the number of the row in its
distribution. So for an int seed a pair has the same score, to the last bit, from every verb that sees its rows under
the same numbers. ``seed=None`` draws a new seed at every call: in torch from torch's generator (obeys
``torch.manual_seed``). So does a ``torch.Generator``, or beside numpy arrays a ``numpy.random.Generator``. Gradients
are those of the drawn function, by reparametrised draws; what is drawn differentiates once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from peaccel.ops import dot_scores, sampled_scores
from peaccel.ops._array import Array, namespace
from peaccel.ops._op import PairOp
from peaccel.scores._features import isotropic, like, location, normal_rows, vmf
from peaccel.scores._record import ISOTROPIC, NORMALS, SCALAR, ByWord, Choice, Kinds, Pair, Params, Score, every

__all__ = ["el_nivmf", "hib", "neg_sampled_l2", "nivmf", "sampled_cosine"]

VARIANT = {"variant": (None, "published")}


def _line(mu: Array, params: Params) -> Array:
    """[a, b]"""
    for name in ("a", "b"):
        if params[name] is None or tuple(np.shape(params[name])) not in SCALAR:
            got = "None" if params[name] is None else f"shape {tuple(np.shape(params[name]))}"
            raise ValueError(f"hib: {name} must be a number, got {got}")
    a, b = (like(params[name], mu).reshape(1) for name in ("a", "b"))
    return namespace(mu).concatenate((a, b))


def _unit(d: Any, params: Params) -> tuple[Array, Array]:
    """The direction alone."""
    mu, zero = location(d, params)
    if d.kind == "point":
        length = (mu * mu).sum(-1)[:, None] ** 0.5
        mu = mu / length
    return mu, zero


def _of_draws(ops: Mapping[str, PairOp]) -> dict[Kinds, Choice]:
    """Of normals and points, or on the sphere; a point is its own only draw."""
    return {
        **every(NORMALS, Pair(ops["normal"], normal_rows, normal_rows)),
        ("vmf", "vmf"): Pair(ops["vmf"], vmf, vmf),
        ("vmf", "point"): Pair(ops["vmf_point"], vmf, location),
        ("point", "vmf"): Pair(ops["point_vmf"], location, vmf),
    }


_DRAWN_MATCH = Pair(sampled_scores.hib_sampled, normal_rows, normal_rows, _line)
_EXACT_MATCH = Pair(dot_scores.hib_isotropic, isotropic, isotropic, _line)

hib = Score(
    "hib",
    """Log of the match probability, log E sigmoid(-a |z1 - z2| + b), with the distance, not its square.

    Isotropic normals (and points): the expectation by quadrature, without draws. A variance per dimension on either
    side: the mean over the n x n pairs of n draws of each. ``variant="published"`` draws for isotropic ones too, as the
    paper does, which is what is wrong in it: noise that is not needed, and a log of a mean that is too low on average.

    a and b are numbers or, to be trained, tensors; n 1 .. 1024. Oh et al., "Modeling uncertainty with hedged instance
    embeddings", 2019, eq. 2 and 5; a = 1, b = 0 and n = 8 are where its training starts.
    """,
    {
        **every(NORMALS, _DRAWN_MATCH),
        **every(ISOTROPIC, ByWord("variant", {None: _EXACT_MATCH, "published": _DRAWN_MATCH})),
    },
    {"a": 1.0, "b": 0.0, "n": 8, "seed": None, "variant": None},
    VARIANT,
)

sampled_cosine = Score(
    "sampled_cosine",
    """Mean cosine of the n x n pairs of n draws of each item.

    "Probabilistic embeddings revisited", eq. 7, "Sampling + Cosine". For von Mises-Fisher distributions and isotropic
    normals `expected_cosine` is its exact expectation.
    """,
    _of_draws(sampled_scores.sampled_cosine),
    {"n": 10, "seed": None},
)

neg_sampled_l2 = Score(
    "neg_sampled_l2",
    """Minus the mean Euclidean distance of the n x n pairs of n draws of each item.

    "Probabilistic embeddings revisited", eq. 7, "Sampling + L2". The distance is not squared, as HIB's is not: the mean
    square needs no draws, it is `neg_expected_sq_l2`.
    """,
    _of_draws(sampled_scores.neg_sampled_l2),
    {"n": 10, "seed": None},
)

_AT_DRAWS = ByWord("variant", {name: Pair(op, vmf, vmf) for name, op in sampled_scores.el_nivmf.items()})
_AT_DIRECTION = ByWord("variant", {name: Pair(op, _unit, vmf) for name, op in sampled_scores.nivmf.items()})

el_nivmf = Score(
    "el_nivmf",
    """Log of the mean density of the gallery item at n draws of the query: the expected likelihood kernel.

    With K = diag(kappa), n = |K mu|: ``rho(z) = C(n) exp(n cos(K z, K mu)) det K / |K z|^D``, which integrates to 1.
    ``variant="published"`` is what the published code computes: cos(z, K mu), without K on the draws, so that kappa
    only turns and sharpens an isotropic density; and det K / n, whose integral grows as the power D - 1 of kappa, a
    bonus for sharp items. log C is exact here; the code fits quadratics that hold for kappa below about 50.

    Kirchhof et al., "A non-isotropic probabilistic take on proxy-based deep metric learning", 2022, eq. 4 and 5.
    """,
    {("vmf", "nivmf"): _AT_DRAWS},
    {"n": 5, "seed": None, "variant": None},
    VARIANT,
)

nivmf = Score(
    "nivmf",
    """Log density of the gallery item at the query's direction.

    As in `el_nivmf`, without draws. ``variant="published"`` is the paper's d_nivMF with its code's det K / n for the
    last factor, which does not integrate to 1. Kirchhof et al. 2022, sec. 3.3.
    """,
    {(query, "nivmf"): _AT_DIRECTION for query in ("point", "vmf")},
    {"variant": None},
    VARIANT,
)
