"""Pairs of rows that are labelled as of one identity or of two, to which scales and shifts are fitted."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from peaccel._utils.arrays import Array
from peaccel._utils.labels import plain
from peaccel._utils.numbers import as_flags
from peaccel.distributions import Distribution
from peaccel.distributions._numerics import double

__all__ = ["BLOCK", "by_blocks", "different_rows", "labelled_pairs"]

BLOCK = 1 << 15  # numbers that are gathered at a time, so that they stay in a core's cache


def labelled_pairs(owner: str, sides: dict[str, Distribution], pairs: Array, labels: Array) -> tuple[Array, Array]:
    """Rows of the one distribution or the two, [P, 2], and booleans [P]."""
    rows = plain(owner, "pairs", pairs)
    if rows.ndim != 2 or rows.shape[1] != 2 or rows.dtype.kind not in "iu":
        raise ValueError(f"{owner}: pairs have shape {rows.shape} and dtype {rows.dtype}, expected integers (P, 2)")
    same = as_flags(owner, "labels", labels, (len(rows),))
    for (name, d), column in zip(sides.items(), (rows,) if len(sides) == 1 else rows.T, strict=True):
        wrong = (column < 0) | (column >= len(d))
        if wrong.any():
            raise ValueError(f"{owner}: pairs hold {column[wrong][0]}, expected rows of {name}, 0 .. {len(d) - 1}")
    return rows, same


def different_rows(owner: str, rows: Array, what: str) -> tuple[Array, Array]:
    """The two sides of the pairs, of which there must be at least one and none of a row with itself."""
    first, second = rows.T
    if not len(first):
        raise ValueError(f"{owner}: labels name no pair of {what}, expected at least one")
    if (first == second).any():
        raise ValueError(f"{owner}: pairs hold row {first[first == second][0]} with itself, expected different rows")
    return first, second


def by_blocks(function: Callable[[Array, Array], Array], mu: Array, first: Array, second: Array) -> Array:
    """A function of rows of mu in float64, [P], for the two sides of the pairs."""
    value = np.empty(len(first))
    step = -(-BLOCK // mu.shape[1])
    for block in (slice(start, start + step) for start in range(0, len(first), step)):
        value[block] = function(*(double(mu.take(rows[block], 0, mode="clip")) for rows in (first, second)))
    return value
