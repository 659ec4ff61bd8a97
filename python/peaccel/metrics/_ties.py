"""Rankings in which scores are equal: metrics as means over all orders of the items that share a score."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Ties"]

Array = NDArray[Any]


class Ties:
    """Rankings of some queries, of which items with equal scores stand in any order, each as probable.

    Parameters
    ----------
    rows
        [T], the queries' places in their block.
    scores
        [T, K], best first; NaN is equal to nothing.
    right
        [T, K], whether the item is right.
    """

    def __init__(self, rows: Array, scores: Array, right: NDArray[np.bool_]) -> None:
        self.rows = rows
        width, place = scores.shape[1], np.arange(scores.shape[1])
        differs = scores[:, 1:] != scores[:, :-1]
        edge = np.ones((len(scores), 1), np.bool_)
        first = np.maximum.accumulate(np.where(np.c_[edge, differs], place, 0), 1)
        end = np.minimum.accumulate(np.where(np.c_[differs, edge], place + 1, width)[:, ::-1], 1)[:, ::-1]
        counted = np.c_[np.zeros(len(right), np.int64), right.cumsum(1)]
        self._before = np.take_along_axis(counted, first, 1)
        """[T, K], how many right items score higher; of these and the next, at each rank."""
        self._right = np.take_along_axis(counted, end, 1) - self._before
        """How many of the items with this score are right."""
        self._size = end - first
        self._place = place - first
        """How many of the items with this score have a lower rank."""

    def hit(self, k: int) -> NDArray[np.float64]:
        """[T], the probability that one of the first k is right."""
        missed = np.maximum(self._size - self._right - self._place, 0) / (self._size - self._place)
        return np.asarray(1 - missed[:, :k].prod(1))

    def precision(self) -> NDArray[np.float64]:
        """[T, K], the mean of the precision at each rank, which counts as 0 where the item there is wrong."""
        others = self._place * (self._right - 1) / np.maximum(self._size - 1, 1)  # right ones of this score before it
        return np.asarray(
            self._right / self._size * (self._before + 1 + others) / np.arange(1, self._size.shape[1] + 1)
        )
