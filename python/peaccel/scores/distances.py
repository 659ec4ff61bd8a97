"""Scores that compare positions: cosines and distances of means, and their expectations over draws."""

from __future__ import annotations

from peaccel.ops import dot_scores
from peaccel.scores._features import direction, location, moments, resultant
from peaccel.scores._record import ISOTROPIC, KINDS, NORMALS, Pair, Score, every

__all__ = ["cosine", "expected_cosine", "neg_expected_sq_l2", "neg_sq_l2"]

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
