"""Verification pairs."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from peaccel._utils.arrays import on_host
from peaccel.metrics._relation import Relation, as_relation, count_compared, denied

__all__ = ["DIFFERENT", "compared_pairs", "verification_pairs"]

PAIRS = 20_000
"""How many verification pairs of one class are drawn at most."""
DIFFERENT = 2_000_000
"""How many of two classes are verified at most, where not as many are wanted as of one."""
BLOCK = 1 << 20
"""Pairs that are looked at at once."""


def verification_pairs(
    query_labels: ArrayLike | Relation,
    gallery_labels: ArrayLike | None,
    seed: int = 0,
    *,
    different: int | None = None,
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Pairs of a query and a gallery item: by default as many of one class as of two.

    Parameters
    ----------
    query_labels, gallery_labels
        [Q] and [G]; None where the queries are the gallery: then no item is paired with itself. Or a
        `peaccel.metrics.Relevance` and None: its pairs are those "of one class".
    seed
        Seed of the draws.
    different
        How many pairs of two classes at most: all of them, if there are no more. None: as many as of one class, drawn.

    Returns
    -------
    pairs [P, 2] of rows, and whether they are of one class [P]: all pairs of one class, or 20 000 of them, drawn
    without repetition, and pairs of two classes, drawn evenly from all such pairs; none where one kind is missing.
    """
    relation = as_relation("verification_pairs", query_labels, gallery_labels)
    rng = np.random.default_rng(seed)
    total = int(relation.sizes().sum())
    others = count_compared(relation) - total
    if 0 in (total, others):
        return np.empty((0, 2), np.int64), np.empty(0, np.bool_)
    chosen = np.arange(total) if total <= PAIRS else np.sort(rng.choice(total, PAIRS, replace=False, shuffle=False))
    alike = relation.pairs(chosen)
    if different is not None and others <= different:
        other = _all_different(relation)
    else:
        other = _some_different(relation, len(alike) if different is None else different, rng)
    return np.concatenate([alike, other]), np.repeat([True, False], [len(alike), len(other)])


def compared_pairs(
    owner: str, pairs: ArrayLike | None, truth: Relation, seed: int
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Pairs of rows that the caller listed, and which of them are right; drawn where None is."""
    if pairs is None:
        return verification_pairs(truth, None, seed, different=DIFFERENT)
    rows, sides = on_host(pairs, owner, "pairs"), (truth.queries, truth.gallery)
    if rows.ndim != 2 or rows.shape[1] != 2 or rows.dtype.kind not in "iu":
        raise ValueError(f"{owner}: pairs has shape {rows.shape} and dtype {rows.dtype}, expected (P, 2) integers")
    outside = np.flatnonzero((rows < 0) | (rows >= np.array(sides)))
    if len(outside):
        pair = outside[0] // 2
        raise ValueError(
            f"{owner}: pair {pair} is {rows[pair].tolist()}, expected rows below {sides[0]} and {sides[1]}"
        )
    if (left_out := denied(truth, rows[:, 0], rows[:, 1])).any():
        query, item = rows[left_out][0].tolist()
        what = f"[{query}, {item}], which exclude leaves out"
        if truth.leave_one_out and query == item:
            what = f"row {query} with itself, expected different rows"
        raise ValueError(f"{owner}: pairs hold {what}")
    same = truth.right(rows[:, 0], rows[:, 1])
    if same.all() or not same.any():
        raise ValueError(f"{owner}: {same.sum()} of {len(same)} pairs are right, expected some of either kind")
    return rows.astype(np.int64), same


def _all_different(relation: Relation) -> NDArray[np.int64]:
    """Every pair of two classes, query by query."""
    found, step = [], max(BLOCK // relation.gallery, 1)
    for start in range(0, relation.queries, step):
        query = np.arange(start, min(start + step, relation.queries))
        items = np.broadcast_to(np.arange(relation.gallery), (len(query), relation.gallery))
        wrong = ~(relation.right(query[:, None], items) | denied(relation, query[:, None], items))
        found.append(np.argwhere(wrong) + np.array([start, 0]))
    return np.concatenate(found)


def _some_different(relation: Relation, count: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Pairs of two classes, drawn evenly from all of them."""
    other = np.empty((0, 2), np.int64)
    while len(other) < count:
        query, item = (rng.integers(0, n, count) for n in (relation.queries, relation.gallery))
        wrong = ~(relation.right(query, item) | denied(relation, query, item))
        other = np.concatenate([other, np.stack([query, item], 1)[wrong]])
    return other[:count]
