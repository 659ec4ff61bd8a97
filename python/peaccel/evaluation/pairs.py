"""Verification pairs."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from peaccel.metrics._relation import Relation, as_relation

__all__ = ["verification_pairs"]

PAIRS = 20_000
"""How many verification pairs are drawn at most, of one class and of two classes each."""


def verification_pairs(
    query_labels: ArrayLike | Relation, gallery_labels: ArrayLike | None, seed: int = 0
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Pairs of a query and a gallery item, as many of one class as of two.

    Parameters
    ----------
    query_labels, gallery_labels
        [Q] and [G]; None where the queries are the gallery: then no item is paired with itself. Or a
        `peaccel.metrics.Relevance` and None: its pairs are those "of one class".
    seed
        Seed of the draws.

    Returns
    -------
    pairs [P, 2] of rows, and whether they are of one class [P]: all pairs of one class, or 20 000 of them, drawn
    without repetition, and as many of two classes, drawn evenly from all such pairs; none where one kind is missing.
    """
    relation = as_relation("verification_pairs", query_labels, gallery_labels)
    rng, sides = np.random.default_rng(seed), (relation.queries, relation.gallery)
    total = int(relation.sizes().sum())
    if total in (0, sides[0] * (sides[1] - relation.own)):
        return np.empty((0, 2), np.int64), np.empty(0, np.bool_)
    chosen = np.arange(total) if total <= PAIRS else np.sort(rng.choice(total, PAIRS, replace=False, shuffle=False))
    alike, other = relation.pairs(chosen), np.empty((0, 2), np.int64)
    while len(other) < len(alike):
        query, item = (rng.integers(0, n, len(alike)) for n in sides)
        wrong = ~relation.right(query, item)
        if relation.own:
            wrong &= query != item
        other = np.concatenate([other, np.stack([query, item], 1)[wrong]])
    return np.concatenate([alike, other[: len(alike)]]), np.repeat([True, False], len(alike))
