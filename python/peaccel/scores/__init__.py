"""Scores of pairs of distributions; always higher = more similar.

A `Score` maps pairs of kinds to what a kernel is called with. ``pe.scores.llr(prior_var=0.5)`` returns a copy with
parameters, and verbs take the same as a string, ``"llr:prior_var=0.5"``.
"""

from __future__ import annotations

from typing import Any

from peaccel.scores._record import Pair, Score, unknown
from peaccel.scores.densities import inclusion, llr, mls, neg_kl, ppk
from peaccel.scores.distances import (
    cosine,
    expected_cosine,
    neg_csd,
    neg_expected_sq_l2,
    neg_sq_l2,
    neg_w2,
    norm_cosine,
    scale_cosine,
)

__all__ = [
    "SCORES",
    "Pair",
    "Score",
    "cosine",
    "expected_cosine",
    "get",
    "inclusion",
    "llr",
    "mls",
    "neg_csd",
    "neg_expected_sq_l2",
    "neg_kl",
    "neg_sq_l2",
    "neg_w2",
    "norm_cosine",
    "ppk",
    "scale_cosine",
]

SCORES: dict[str, Score] = {
    score.name: score
    for score in (
        *(mls, llr, ppk, inclusion, neg_kl),
        *(cosine, neg_sq_l2, expected_cosine, neg_expected_sq_l2, neg_csd, neg_w2, scale_cosine, norm_cosine),
    )
}


def get(score: str | Score) -> Score:
    """The score of a name, with parameters after a colon: "mls", "llr:prior_var=0.5,prior_mean=0"."""
    if isinstance(score, Score):
        return score
    if not isinstance(score, str):
        raise TypeError(f"score must be a name or a Score, got {type(score).__name__}")
    name, _, text = score.partition(":")
    if name not in SCORES:
        raise ValueError(unknown("score", name, SCORES))
    params: dict[str, Any] = {}
    for item in filter(None, text.split(",")):
        key, _, value = item.partition("=")
        try:
            params[key.strip()] = value.strip() if key.strip() in SCORES[name].choices else float(value)
        except ValueError:
            raise ValueError(f"score {score!r}: {key.strip()} must be a number, got {value!r}") from None
    return SCORES[name](**params)
