"""Scores that integrate the product of two densities: how likely two items are one."""

from __future__ import annotations

import numpy as np

from peaccel.ops import bessel, diag_scores, dot_scores
from peaccel.ops._array import Array, is_torch
from peaccel.scores._features import centred, isotropic, like, normal_rows, vmf
from peaccel.scores._record import ISOTROPIC, NORMALS, Choice, Kinds, Pair, Params, Score, every

__all__ = ["llr", "mls"]


def _prior_var(mu: Array, params: Params) -> Array:
    """[1], or [D] where the prior has a variance per dimension."""
    value = params["prior_var"]
    if value is None:
        raise ValueError("llr: prior_var must be given; pe.fit_prior(d, labels) estimates it with prior_mean")
    row = like(value, mu).reshape(-1)
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
    return like(surface, mu)


def _no_offset(mu: Array, params: Params) -> Array:
    return like(np.zeros(1), mu)


def _without_two_points(pairs: dict[Kinds, Choice]) -> dict[Kinds, Choice]:
    """Two points have no density in common."""
    return {kinds: pair for kinds, pair in pairs.items() if kinds != ("point", "point")}


def _normals(isotropic: Pair, diagonal: Pair) -> dict[Kinds, Choice]:
    return _without_two_points({**every(NORMALS, diagonal), **every(ISOTROPIC, isotropic)})


mls = Score(
    "mls",
    "Mutual likelihood score: log of the integrated product of the two densities.",
    {
        **_normals(
            Pair(dot_scores.mls_isotropic, isotropic, isotropic),
            Pair(diag_scores.mls_diagonal, normal_rows, normal_rows),
        ),
        ("vmf", "vmf"): Pair(dot_scores.mls_vmf, vmf, vmf, _no_offset),
    },
)

llr = Score(
    "llr",
    "Log-likelihood ratio of the same against different identities under a prior on their positions.",
    {
        **_normals(
            Pair(dot_scores.llr_isotropic, centred(isotropic), centred(isotropic), _one_prior_var),
            Pair(diag_scores.llr_diagonal, centred(normal_rows), centred(normal_rows), _prior_var_row),
        ),
        ("vmf", "vmf"): Pair(dot_scores.mls_vmf, vmf, vmf, _uniform_prior),
    },
    {"prior_var": None, "prior_mean": 0.0},
)
