"""Verification pairs out of labels."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["verification_pairs"]

PAIRS = 20_000
"""Verification pairs at most, of one class and of two classes each."""


def verification_pairs(
    query_labels: ArrayLike, gallery_labels: ArrayLike | None, seed: int = 0
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Pairs of a query and a gallery item, as many of one class as of two.

    Parameters
    ----------
    query_labels, gallery_labels
        [Q] and [G]; None where the queries are the gallery: then no item is paired with itself.
    seed
        Of the draws.

    Returns
    -------
    pairs [P, 2] of rows, and whether they are of one class [P]: all pairs of one class, or 20 000 of them, drawn
    without repetition, and as many of two classes, drawn evenly from all such pairs; none where one kind is missing.
    """
    queries = np.asarray(query_labels)
    own = gallery_labels is None
    gallery = queries if gallery_labels is None else np.asarray(gallery_labels)
    rng, order = np.random.default_rng(seed), np.argsort(gallery, kind="stable")
    first, last = (np.searchsorted(gallery[order], queries, side) for side in ("left", "right"))
    sizes = last - first - own
    ends = sizes.cumsum()
    total = int(ends[-1]) if len(ends) else 0
    if not total or int((last - first).sum()) == len(queries) * len(gallery):
        return np.empty((0, 2), np.int64), np.empty(0, np.bool_)
    chosen = np.arange(total) if total <= PAIRS else np.sort(rng.choice(total, PAIRS, replace=False, shuffle=False))
    query = np.searchsorted(ends, chosen, "right")
    place = first[query] + chosen - (ends - sizes)[query]
    if own:  # an item's own place among its class is stepped over
        at = np.empty_like(order)
        at[order] = np.arange(len(order))
        place += place >= at[query]
    alike = np.stack([query, order[place]], 1)
    other = np.empty((0, 2), np.int64)
    while len(other) < len(alike):
        drawn = np.stack([rng.integers(0, n, len(alike)) for n in (len(queries), len(gallery))], 1)
        other = np.concatenate([other, drawn[queries[drawn[:, 0]] != gallery[drawn[:, 1]]]])
    other = other[: len(alike)]
    return np.concatenate([alike, other]), np.repeat([True, False], len(alike))
