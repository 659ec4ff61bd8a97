"""Scores that compare positions: cosines and distances of means, and their expectations over draws."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from peaccel.ops import dot_scores
from peaccel.ops._array import Array
from peaccel.scores._features import (
    direction,
    like,
    location,
    moments,
    norm,
    resultant,
    root_norm,
    root_scale,
    scale,
    spread_diagonal,
    spread_isotropic,
)
from peaccel.scores._record import (
    ISOTROPIC,
    KINDS,
    NORMALS,
    SCALAR,
    ByWord,
    Choice,
    Features,
    Pair,
    Params,
    Score,
    Shared,
    every,
)

__all__ = [
    "cosine",
    "expected_cosine",
    "neg_csd",
    "neg_expected_sq_l2",
    "neg_sq_l2",
    "neg_w2",
    "norm_cosine",
    "scale_cosine",
]

cosine = Score(
    "cosine",
    "Cosine of the two means or directions.",
    every(KINDS, Pair(dot_scores.cosine, direction, direction)),
)

neg_sq_l2 = Score(
    "neg_sq_l2",
    "Minus the squared Euclidean distance of the two means or directions.",
    every(KINDS, Pair(dot_scores.neg_sq_l2, location, location)),
)

expected_cosine = Score(
    "expected_cosine",
    "Expected cosine of two draws, in closed form.",
    {
        **every(ISOTROPIC, Pair(dot_scores.cosine, resultant, resultant)),
        **every(("vmf",), Pair(dot_scores.cosine, resultant, resultant)),
    },
)

neg_expected_sq_l2 = Score(
    "neg_expected_sq_l2",
    "Minus the expected squared Euclidean distance of two draws, in closed form.",
    {
        **every(NORMALS, Pair(dot_scores.neg_sq_l2, moments, moments)),
        **every(("vmf",), Pair(dot_scores.neg_sq_l2, moments, moments)),
    },
)

neg_csd = replace(
    neg_expected_sq_l2,
    name="neg_csd",
    doc="Minus the closed-form sampled distance of PCME++: another name of neg_expected_sq_l2.",
)

neg_w2 = Score(
    "neg_w2",
    "Minus the squared 2-Wasserstein distance.",
    {
        **every(NORMALS, Pair(dot_scores.neg_sq_l2, spread_diagonal, spread_diagonal)),
        **every(ISOTROPIC, Pair(dot_scores.neg_sq_l2, spread_isotropic, spread_isotropic)),
    },
)


def _shift(name: str, mu: Array, params: Params) -> Array:
    if tuple(np.shape(params["mu"])) not in SCALAR:
        raise ValueError(f"{name}: mu has shape {tuple(np.shape(params['mu']))}, expected a number")
    return like(params["mu"], mu).reshape(-1)


def _scale_shift(mu: Array, params: Params) -> Array:
    return _shift("scale_cosine", mu, params)


def _norm_shift(mu: Array, params: Params) -> Array:
    return _shift("norm_cosine", mu, params)


def _weighted(both: Features, query: Features, shift: Shared) -> Choice:
    """Roots of both sides' scales as weights, or the query's scale alone."""
    return ByWord(
        "sides",
        {
            "both": Pair(dot_scores.shifted_cosine, both, both, shift),
            "query": Pair(dot_scores.shifted_cosine, query, direction, shift),
        },
    )


_SIDES = {"mu": 0.0, "sides": "both"}

scale_cosine = Score(
    "scale_cosine",
    "ScaleFace: sqrt(scale1 scale2) (cosine - mu), or scale1 (cosine - mu) with sides=query; pe.fit_shift finds mu.",
    {("scaled", "scaled"): _weighted(root_scale, scale, _scale_shift)},
    _SIDES,
    {"sides": ("both", "query")},
)

norm_cosine = Score(
    "norm_cosine",
    "scale_cosine with the norms of the means as scales: the score of features that were not normalised.",
    every(NORMALS, _weighted(root_norm, norm, _norm_shift)),
    _SIDES,
    {"sides": ("both", "query")},
)
