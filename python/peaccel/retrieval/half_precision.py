"""Galleries in half precision, with directions whose length stays 1."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from peaccel._utils.arrays import HALVES, as_numpy, as_stored, is_torch
from peaccel.distributions import Distribution
from peaccel.distributions.checks import converted

__all__ = ["rounded"]

BLOCK = 8192  # rows that are rounded at a time, for the sake of memory


def rounded(d: Distribution, dtype: str) -> Distribution:
    """The items in a dtype: each number rounded to the nearest, but directions in halves to unit length.

    Items that have the dtype keep their bits, so that a prepared gallery scores as the gallery does.
    """
    nearest = converted(d, dtype)
    if nearest is d or dtype not in HALVES or not d._unit:
        return nearest
    # On the CPU, wherever the items are: it is done once for a gallery, and on the words of the halves.
    source = d.mu.cpu() if is_torch(d.mu) else d.mu
    mu = nearest.mu.cpu().clone() if is_torch(d.mu) else nearest.mu.copy()
    for start in range(0, len(mu), BLOCK):
        exact = as_numpy(source[start : start + BLOCK]).astype(np.float64)
        norms = np.linalg.norm(exact, axis=1, keepdims=True)
        exact /= np.where(np.isfinite(norms) & (norms > 0), norms, 1.0)
        block = mu[start : start + BLOCK]
        block[:] = sys.modules["torch"].from_numpy(exact) if is_torch(mu) else exact
        _round_to_unit_length(exact, as_stored(block).view(np.uint16), dtype)
    mu = mu.to(d.mu.device) if is_torch(mu) else mu
    return type(d)(mu, *nearest.arrays[1:])


def _round_to_unit_length(exact: np.ndarray[Any, Any], words: np.ndarray[Any, Any], dtype: str) -> None:
    """Improve the length of rows that were rounded to the nearest halves, in place.

    ``words`` are these halves as uint16, ``exact`` the rows of unit length that they stand for. A half is replaced by
    the one on the other side of its exact number where that brings the row's length closer to 1. Numbers near the
    middle between two halves come first, since they lose least by it. The error of the direction grows by a tenth,
    that of the length falls a hundredfold and more.
    """

    def numbers(words: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        if dtype == "float16":
            return words.view(np.float16).astype(np.float64)
        return (words.astype(np.uint32) << 16).view(np.float32).astype(np.float64)

    # A word is a sign and a magnitude; the one beyond 0 or infinity is NaN, which no comparison prefers.
    nearest = numbers(words)
    others = np.where(abs(nearest) < abs(exact), words + 1, words - 1)
    other = numbers(others)
    changes = np.ascontiguousarray((other**2 - nearest**2).T)
    middling = np.ascontiguousarray((abs(exact - nearest) > abs(other - nearest) / 4).T)
    excess, moved = (nearest**2).sum(1) - 1, np.zeros(changes.shape, bool)
    for eligible in (middling, ~middling):
        for d, change in enumerate(changes):
            closer = abs(excess + change) < abs(excess)
            closer &= eligible[d]
            moved[d] |= closer
            excess += np.where(closer, change, 0)
    words[:] = np.where(moved.T, others, words)
