"""Scores that average over draws of both items, and densities at draws.

Draws come from the samplers of `peaccel.sample`, addressed by the seed, the side and the number of the row in its
distribution. So for an int seed a pair has the same score, to the last bit, from every verb that sees its rows under
the same numbers, but from `pairwise` on a GPU, where a library multiplies draws. ``seed=None`` draws a new seed at
every call: in torch from torch's generator (obeys ``torch.manual_seed``). So does a ``torch.Generator``, or beside
numpy arrays a ``numpy.random.Generator``. Gradients are those of the drawn function, by reparametrised draws; what is
drawn differentiates once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from peaccel._utils.arrays import Array, namespace
from peaccel.distributions.checks import EUCLIDEAN
from peaccel.ops import PairOp, dot_scores, sampled_scores
from peaccel.scores._inputs import isotropic, lengths, like, location, normal_rows, vmf
from peaccel.scores._score import ISOTROPIC, SCALAR, Choice, Kinds, Pair, Params, Score, every

__all__ = ["el_nivmf", "hib", "neg_sampled_l2", "nivmf", "sampled_cosine"]


def _line(mu: Array, params: Params) -> Array:
    """The row [a, b] of the match probability sigmoid(-a distance + b)."""
    for name in ("a", "b"):
        if params[name] is None or tuple(np.shape(params[name])) not in SCALAR:
            got = "None" if params[name] is None else f"shape {tuple(np.shape(params[name]))}"
            raise ValueError(f"hib: {name} must be a number, got {got}")
    a, b = (like(params[name], mu).reshape(1) for name in ("a", "b"))
    return namespace(mu).concatenate((a, b))


def _unit(d: Any, params: Params) -> tuple[Array, Array]:
    """The mean's direction alone, scaled to unit length where it is a point."""
    mu, zero = location(d, params)
    mu = _some_direction(mu)
    if d.kind == "point":
        mu = mu / lengths(mu)[:, None]
    return mu, zero


def _proxies(d: Any, params: Params) -> tuple[Array, Array]:
    """Directions and concentrations."""
    return _some_direction(d.mu), d.kappa


def _some_direction(mu: Array) -> Array:
    """The rows, and the first axis in place of those of 0, whose gradient is 0: a stretched 0 has no direction."""
    xp = namespace(mu)
    axis = xp.zeros_like(mu)
    axis[..., 0] = 1
    return xp.where((mu == 0).all(-1)[:, None], axis, mu)


def _of_draws(ops: Mapping[str, PairOp]) -> dict[Kinds, Choice]:
    """The pairs of normals and points, and of those on the sphere, where a point is the only draw of itself."""
    return {
        **every(EUCLIDEAN, Pair(ops["normal"], normal_rows, normal_rows)),
        ("vmf", "vmf"): Pair(ops["vmf"], vmf, vmf),
        ("vmf", "point"): Pair(ops["vmf_point"], vmf, location),
        ("point", "vmf"): Pair(ops["point_vmf"], location, vmf),
    }


hib = Score(
    "hib",
    """Log of the match probability, log E sigmoid(-a |z1 - z2| + b), with the distance, not its square.

    Isotropic normals (and points): the expectation by quadrature, without draws. A variance per dimension on either
    side: the mean over the n x n pairs of n draws of each.

    Parameters
    ----------
    a, b
        Numbers or, to be trained, tensors; 1 and 0 are where the paper's training starts.
    n
        Draws of each item, 1 .. 1024, where it draws.
    seed
        Of the draws, an integer 0 .. 2^63 - 1 or a generator; None draws anew at every call.

    References
    ----------
    Oh et al., "Modeling uncertainty with hedged instance embeddings", 2019, eq. 2 and 5; Karpukhin et al.,
    "Probabilistic Embeddings Revisited", 2022, eq. 9.

    Examples
    --------
    >>> a = pe.Normal([[0.0, 1.0], [0.0, 1.0]], var=[0.1, 0.5])
    >>> match = pe.paired(a, pe.Point([[0.6, 0.8], [0.6, 0.8]]), pe.scores.hib(a=10.0, b=5.0))
    >>> np.exp(match).round(3).tolist()
    [0.267, 0.168]
    """,
    {
        **every(EUCLIDEAN, Pair(sampled_scores.hib_sampled, normal_rows, normal_rows, _line)),
        **every(ISOTROPIC, Pair(dot_scores.hib_isotropic, isotropic, isotropic, _line)),
    },
    {"a": 1.0, "b": 0.0, "n": 8, "seed": None},
)

sampled_cosine = Score(
    "sampled_cosine",
    """Mean cosine of the n x n pairs of n draws of each item.

    For von Mises-Fisher distributions and isotropic normals `expected_cosine` is its exact expectation.

    Parameters
    ----------
    n
        Draws of each item, 1 .. 1024.
    seed
        Of the draws, an integer 0 .. 2^63 - 1 or a generator; None draws anew at every call.

    References
    ----------
    Karpukhin et al., "Probabilistic Embeddings Revisited", 2022, eq. 7, "Sampling + Cosine".

    Examples
    --------
    >>> a, b = (pe.VonMisesFisher([[0.0, 1.0]], kappa=[kappa]) for kappa in (1000.0, 2.0))
    >>> score = pe.scores.sampled_cosine(n=1000, seed=0)
    >>> pe.paired(a, b, score).round(2).tolist(), pe.paired(a, b, "expected_cosine").round(2).tolist()
    ([0.7], [0.7])
    """,
    _of_draws(sampled_scores.sampled_cosine),
    {"n": 10, "seed": None},
)

neg_sampled_l2 = Score(
    "neg_sampled_l2",
    """Minus the mean Euclidean distance of the n x n pairs of n draws of each item.

    The distance is not squared, as HIB's is not: the mean square needs no draws, it is `neg_expected_sq_l2`.

    Parameters
    ----------
    n
        Draws of each item, 1 .. 1024.
    seed
        Of the draws, an integer 0 .. 2^63 - 1 or a generator; None draws anew at every call.

    References
    ----------
    Karpukhin et al., "Probabilistic Embeddings Revisited", 2022, eq. 7, "Sampling + L2".

    Examples
    --------
    >>> a = pe.Normal([[0.0, 1.0], [0.0, 1.0]], var=[0.0001, 0.5])
    >>> pe.paired(a, pe.Point([[0.6, 0.8], [0.6, 0.8]]), pe.scores.neg_sampled_l2(n=1000, seed=0)).round(2).tolist()
    [-0.63, -1.08]
    """,
    _of_draws(sampled_scores.neg_sampled_l2),
    {"n": 10, "seed": None},
)

el_nivmf = Score(
    "el_nivmf",
    """Log of the mean density of the gallery item at n draws of the query: the expected likelihood kernel.

    With K = diag(kappa), m = |K mu|: ``rho(z) = C(m) exp(m cos(K z, K mu)) det K / |K z|^D``, which integrates to 1.

    Parameters
    ----------
    n
        Draws of each item, 1 .. 1024.
    seed
        Of the draws, an integer 0 .. 2^63 - 1 or a generator; None draws anew at every call.

    References
    ----------
    Kirchhof et al., "A non-isotropic probabilistic take on proxy-based deep metric learning", 2022, eq. 4 and 5.

    Examples
    --------
    >>> images = pe.VonMisesFisher([[0.6, 0.8], [0.6, 0.8]], kappa=[1000.0, 2.0])
    >>> proxies = pe.NonIsotropicVonMisesFisher([[0.6, 0.8]], kappa=[[50.0, 20.0]])
    >>> pe.pairwise(images, proxies, pe.scores.el_nivmf(n=1000, seed=0)).round(1).tolist()
    [[0.7], [-0.7]]
    """,
    {("vmf", "nivmf"): Pair(sampled_scores.el_nivmf, vmf, _proxies)},
    {"n": 5, "seed": None},
)

nivmf = Score(
    "nivmf",
    """Log density of the gallery item at the query's direction.

    ``log rho(mu1)``, rho as in `el_nivmf`, without draws; `pe.log_prob` is the same of items one by one. For an item of
    zeros, which has no direction, stands the first axis, (1, 0, ..., 0), as in `pe.fuse`.

    References
    ----------
    Kirchhof et al., "A non-isotropic probabilistic take on proxy-based deep metric learning", 2022, eq. 4, sec. 3.3.

    Examples
    --------
    >>> proxies = pe.NonIsotropicVonMisesFisher([[0.6, 0.8], [0.8, 0.6]], kappa=[[50.0, 20.0], [50.0, 20.0]])
    >>> pe.pairwise(pe.Point([[0.6, 0.8]]), proxies, "nivmf").round(3).tolist()
    [[0.696, -0.021]]
    """,
    {(query, "nivmf"): Pair(sampled_scores.nivmf, _unit, _proxies) for query in ("point", "vmf")},
)
