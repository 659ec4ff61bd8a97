"""A part of a gallery in one process: prepared for a score, with its place in the whole and its ids."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from peaccel import io
from peaccel._utils.atomic_files import PathLike
from peaccel.distributions import Distribution
from peaccel.retrieval.prepared import Prepared, prepare
from peaccel.retrieval.verbs import Ranking, rerank, rescore, search
from peaccel.scores import Score

__all__ = ["Items", "Part", "Source", "is_given", "none_like"]

Items: TypeAlias = Distribution[NDArray[Any]]
Source: TypeAlias = PathLike | Items | tuple[Any, Any] | Callable[[], Any]


class Part:
    """A part of a gallery that begins at the row `start` of the whole; errors are in the words of one gallery."""

    def __init__(self, items: Items, ids: NDArray[Any] | None, score: Score, dtype: str | None = None) -> None:
        self.gallery: Prepared[NDArray[Any]] = prepare(items, score, dtype)
        self._is_plain = False
        if ids is not None:
            self._order, ids = np.argsort(ids), np.append(ids, none_like(ids))  # the last one is that of row -1
        self.ids = ids

    @classmethod
    def opened(cls, source: Source, score: Score, dtype: str | None = None) -> Self:
        """The part that a source holds."""
        return cls(*_opened(source), score, dtype)

    def __len__(self) -> int:
        return len(self.gallery)

    def make_plain(self) -> None:
        """Give each item a variance of its own also where one was given for all.

        Scores by one variance are made by other sums, which one gallery would not make whose parts have different ones.
        """
        if not self._is_plain:
            items = self.gallery.distribution
            copied = type(items)(*(np.array(x) for x in items.arrays))
            self.gallery, self._is_plain = prepare(copied, self.gallery.score), True

    def search(self, queries: Items, k: int, start: int = 0) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any] | None]:
        """The best k: scores, rows of the whole gallery, and ids."""
        return self._found(search(queries, self.gallery, k, self.gallery.score), start)

    def rerank(
        self, queries: Items, candidates: NDArray[Any], k: int, start: int = 0
    ) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any] | None, NDArray[Any]]:
        """The best k of the candidates that are here, as `search`, and how many of each query's are here."""
        rows = self._rows(candidates, start)
        found = rerank(queries, self.gallery, rows, k, self.gallery.score)
        return *self._found(found, start), (rows >= 0).sum(1)

    def rescore(self, queries: Items, candidates: NDArray[Any], start: int = 0) -> tuple[NDArray[Any], NDArray[Any]]:
        """Which candidates are here, and the scores of these."""
        rows = self._rows(candidates, start)
        mine = rows >= 0
        return mine, rescore(queries, self.gallery, rows, self.gallery.score)[mine]

    def _rows(self, candidates: NDArray[Any], start: int) -> NDArray[Any]:
        """The rows of this part for candidates; -1 for what is elsewhere."""
        if self.ids is None:
            rows = candidates - start
            return np.where((rows >= 0) & (rows < len(self)), rows, -1)
        if not len(self):
            return np.full(candidates.shape, -1)
        near = np.searchsorted(self.ids[:-1], candidates, sorter=self._order).clip(max=len(self) - 1)
        rows = self._order[near]
        return np.where(self.ids[rows] == candidates, rows, -1)

    def _found(
        self, ranking: Ranking[NDArray[Any]], start: int
    ) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any] | None]:
        scores, rows = ranking
        return scores, np.where(rows < 0, -1, rows + start), None if self.ids is None else self.ids[rows]


def _opened(source: Source) -> tuple[Items, NDArray[Any] | None]:
    """The items of a source, and their ids where it has any."""
    if isinstance(source, tuple):
        items = _opened(source[0])[0]
        return items, _checked_ids(np.asarray(source[1]), len(items))
    if isinstance(source, Distribution):
        return source, None
    if callable(source):
        return _opened(source())
    if not isinstance(source, str | os.PathLike):
        raise TypeError(f"is {type(source).__name__}, expected a path, a distribution, a function or a pair with ids")
    return io.read_distribution(source), None


def _checked_ids(ids: NDArray[Any], size: int) -> NDArray[Any]:
    """Ids as int64 or strings: one for each item, all different."""
    if ids.shape != (size,) or ids.dtype.kind not in "iuU":
        got = f"shape {ids.shape} and dtype {ids.dtype}"
        raise ValueError(f"ids have {got}, expected integers or strings ({size},): one for each item")
    none = none_like(ids)
    ids = ids.astype(none.dtype, copy=False)
    known, count = np.unique(ids, return_counts=True)
    if size and count.max() > 1:
        raise ValueError(f"ids hold {known[count.argmax()].item()!r} twice, expected all different")
    if size and (known[0] < 0 if none.dtype.kind == "i" else known[0] == ""):
        raise ValueError(f"ids hold {known[0].item()!r}, expected integers >= 0 or strings that are not empty")
    return ids


def none_like(ids: NDArray[Any]) -> NDArray[Any]:
    """[1] what stands for no item among ids like these."""
    return np.zeros(1, ids.dtype) if ids.dtype.kind == "U" else np.array([-1])


def is_given(candidates: NDArray[Any]) -> NDArray[Any]:
    """Which candidates are there: not -1, and not ""."""
    return np.asarray(candidates != "") if candidates.dtype.kind == "U" else candidates != -1
