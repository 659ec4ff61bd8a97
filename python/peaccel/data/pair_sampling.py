"""Pairs to verify, sampled from labels."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from peaccel.data.datasets import Pairs

__all__ = ["sample_pairs"]


def sample_pairs(labels: ArrayLike, seed: int) -> Pairs:
    """A positive and a negative pair for each item, as far as its class has others.

    Each item is paired with the next one in a random cyclic order of its class, so with any other of them by equal
    chance and never with itself; items that are alone in their class have no positive pair. It is paired once more,
    with an item drawn evenly from all other classes.

    Parameters
    ----------
    labels
        [N] integers, of at least two classes, of which one has at least two items.
    seed
        Equal seeds give equal pairs.

    Returns
    -------
    First the positive pairs, N less the singletons, then N negative ones.

    Raises
    ------
    ValueError
        There is nothing to draw from.

    Source: the sizes are those of "Probabilistic Embeddings Revisited", section 5.1.
    """
    given = np.asarray(labels)
    if given.ndim != 1 or given.dtype.kind not in "iu":
        raise ValueError(f"sample_pairs: labels is {given.dtype} {given.shape}, expected integers [N]")
    _, label, sizes = np.unique(given, return_inverse=True, return_counts=True)
    if len(sizes) < 2:
        raise ValueError(f"sample_pairs: labels has {len(sizes)} classes, expected at least 2")
    if sizes.max() < 2:
        raise ValueError("sample_pairs: labels has no class with two items, expected at least one")
    rng = np.random.default_rng(seed)
    n = len(label)
    rows = np.lexsort((rng.random(n), label))  # sorted by class, in random order within each
    size, start = sizes[label[rows]], (np.cumsum(sizes) - sizes)[label[rows]]
    place = np.arange(n)
    mate = rows[start + (place - start + 1) % size]
    other = rng.integers(0, n - size)  # counts the items of all other classes
    stranger = rows[other + size * (other >= start)]
    shared = size > 1
    left = np.concatenate([rows[shared], rows]).astype(np.int64)
    right = np.concatenate([mate[shared], stranger]).astype(np.int64)
    return Pairs(left, right, np.arange(len(left)) < shared.sum())
