"""A part of a gallery in one process: prepared for a score, with its place in the whole and its ids."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from peaccel import io
from peaccel._utils.atomic_files import PathLike
from peaccel._utils.exclusions import Exclusions
from peaccel._utils.ids import SortedIds, and_none, checked_ids, none_like
from peaccel.distributions import Distribution
from peaccel.retrieval.faiss.faiss_reranker import FaissReranker
from peaccel.retrieval.faiss.serialization import ABOUT
from peaccel.retrieval.lance import Gallery
from peaccel.retrieval.prepared import Prepared, prepare
from peaccel.retrieval.search_above import search_above
from peaccel.retrieval.verbs import Ranking, rerank, rescore, search
from peaccel.scores import Score

__all__ = ["Among", "GalleryPart", "Items", "Source", "spelled"]

Items: TypeAlias = Distribution[NDArray[Any]]
Source: TypeAlias = PathLike | Items | FaissReranker[NDArray[Any]] | Gallery | tuple[Any, Any] | Callable[[], Any]


class Among(NamedTuple):
    """The items of the whole gallery that may be found, by names or by a mask, and those that each query may not."""

    allowed: NDArray[Any] | None = None
    exclude: Exclusions | None = None

    def sliced(self, start: int, count: int) -> Among:
        """The same for a part: of a mask its rows."""
        if self.allowed is None or self.allowed.dtype != bool:
            return self
        return Among(self.allowed[start : start + count], self.exclude)


ALL = Among()


class GalleryPart:
    """A part of a gallery that begins at the row `start` of the whole, prepared for a score.

    What is found goes by names: ids where the part has any, else rows of the whole gallery.
    """

    is_indexed = False

    def __init__(
        self, items: Items, ids: NDArray[Any] | None, score: Score, dtype: str | None = None, *, pack: bool = True
    ) -> None:
        self._gallery = prepare(items, score, dtype) if pack else Prepared(items, score, pack=False)
        self._is_plain = False
        self._size = len(items)
        self.no_ids = None if ids is None else ids[:0]
        if ids is not None:
            self._sorted, ids = SortedIds.of(ids), and_none(ids)  # the last one is that of row -1
        self._ids = ids

    @classmethod
    def opened(cls, source: Source, score: Score, dtype: str | None = None) -> GalleryPart:
        """The part that a source holds."""
        found = _opened(source)
        if isinstance(found, FaissReranker):
            return IndexedPart(found, score, dtype)
        if isinstance(found, Gallery):
            return StoredPart(found, score, dtype)
        items, ids = found
        return cls(items, ids, score, dtype)

    def __len__(self) -> int:
        return self._size

    @property
    def like(self) -> Items:
        """A distribution like the part's, without items."""
        items = self._gallery.distribution
        return type(items)(*(np.array(x[:0]) for x in items.arrays))

    @property
    def common_parameter(self) -> NDArray[Any] | None:
        """As that of a distribution."""
        return self._gallery.distribution.common_parameter()

    def make_plain(self) -> None:
        """Give each item a variance also where one was given for all.

        Scores by one variance are made by other sums, which one gallery would not make whose parts have different ones.
        """
        if not self._is_plain:
            self._gallery, self._is_plain = prepare(_plain(self._gallery.distribution), self._gallery.score), True

    def search(
        self, queries: Items, k: int, shortlist: int | None, start: int = 0, among: Among = ALL
    ) -> tuple[NDArray[Any], ...]:
        """The best k, and with a shortlist of those that an index proposes: scores and names."""
        if shortlist is not None:
            raise ValueError(f"{self._gallery.score.name}: shortlist is {shortlist}, expected None without an index")
        return self._named(
            search(queries, self._gallery, k, self._gallery.score, **self._rows_among(among, start)), start
        )

    def search_above(
        self, queries: Items, threshold: float, most: int, start: int, among: Among
    ) -> tuple[NDArray[Any], ...]:
        """All items that reach a threshold: for each query how many, and their rows in the whole, names and scores."""
        score, options = self._gallery.score, self._rows_among(among, start)
        found = search_above(queries, self._gallery, threshold, score, most=most, **options)
        names = found.ids + start if self._ids is None else self._ids[found.ids]
        return np.diff(found.offsets), found.ids + start, names, found.scores

    def rerank(
        self, queries: Items, candidates: NDArray[Any], k: int, start: int = 0, exclude: Exclusions | None = None
    ) -> tuple[NDArray[Any], ...]:
        """The best k of the candidates that are here, as `search`, and how many of each query's are here."""
        rows, score = self._rows(candidates, start), self._gallery.score
        excluded = self._rows_among(Among(None, exclude), start)["exclude"]
        found = rerank(queries, self._gallery, rows, k, score, exclude=excluded)
        return *self._named(found, start), (rows >= 0).sum(1)

    def rescore(self, queries: Items, candidates: NDArray[Any], start: int = 0) -> tuple[NDArray[Any], ...]:
        """Which candidates are here, and the scores of these."""
        rows = self._rows(candidates, start)
        mine = rows >= 0
        return mine, rescore(queries, self._gallery, rows, self._gallery.score)[mine]

    def _rows(self, candidates: NDArray[Any], start: int) -> NDArray[Any]:
        """The rows of this part for candidates; -1 for what is elsewhere."""
        if self._ids is None:
            rows = candidates - start
            return np.where((rows >= 0) & (rows < len(self)), rows, -1)
        return self._sorted.rows_of(candidates)

    def _rows_among(self, among: Among, start: int) -> dict[str, Any]:
        """The arguments of a verb by which it finds only items that may be found."""
        allowed, exclude = among.sliced(start, len(self))
        if allowed is not None and allowed.dtype != bool:
            allowed = self._rows(allowed, start)
        if exclude is not None:
            exclude = exclude.within(start, len(self)) if self._ids is None else exclude.among(self._sorted)
        return {"allowed": allowed, "exclude": exclude}

    def _named(self, ranking: Ranking[NDArray[Any]], start: int) -> tuple[NDArray[Any], ...]:
        scores, rows = ranking
        return scores, np.where(rows < 0, -1, rows + start) if self._ids is None else self._ids[rows]


class IndexedPart(GalleryPart):
    """A part whose FAISS index proposes shortlists."""

    is_indexed = True

    def __init__(self, reranker: FaissReranker[NDArray[Any]], score: Score, dtype: str | None) -> None:
        if dtype is not None or reranker.score != score:
            label, asked = reranker.score.label, f"{score.label} and dtype={dtype!r}"
            raise ValueError(f"is a reranker of score {label} in the dtype of its items, got score {asked}")
        super().__init__(reranker.gallery, reranker.ids if reranker.has_ids else None, score, pack=False)
        self._reranker = reranker

    def make_plain(self) -> None:
        if not self._is_plain:
            super().make_plain()
            self._reranker = self._reranker._over(_plain(self._reranker._items.gallery))

    def search(
        self, queries: Items, k: int, shortlist: int | None, start: int = 0, among: Among = ALL
    ) -> tuple[NDArray[Any], ...]:
        if shortlist is None:
            return super().search(queries, k, None, start, among)
        options = self._rows_among(among, start) if self._ids is None else among.sliced(start, len(self))._asdict()
        scores, ids = self._reranker.search(queries, k, shortlist=shortlist, **options)
        return scores, np.where(ids < 0, -1, ids + start) if self._ids is None else ids


class StoredPart(GalleryPart):
    """A `Gallery`, which reads what it needs from its maps; names are its ids."""

    is_indexed = True

    def __init__(self, gallery: Gallery, score: Score, dtype: str | None) -> None:
        if dtype is not None:
            raise ValueError(f"is a Gallery, whose items have a dtype, expected dtype=None, got {dtype!r}")
        self._stored, self._score, self._is_plain = gallery, score, False
        self._known = gallery.ids  # ascending
        self._size, self.no_ids = len(self._known), self._known[:0]

    @property
    def like(self) -> Items:
        return self._stored.like

    @property
    def common_parameter(self) -> NDArray[Any] | None:
        return self._stored._common_parameter()

    def make_plain(self) -> None:
        if not self._is_plain:
            self._stored, self._is_plain = self._stored._plain(), True

    def search(
        self, queries: Items, k: int, shortlist: int | None, start: int = 0, among: Among = ALL
    ) -> tuple[NDArray[Any], ...]:
        options = among.sliced(start, len(self))._asdict()
        return tuple(self._stored.search(queries, k, self._score, shortlist=shortlist, **options))

    def search_above(
        self, queries: Items, threshold: float, most: int, start: int, among: Among
    ) -> tuple[NDArray[Any], ...]:
        options = among.sliced(start, len(self))._asdict()
        found = self._stored.search_above(queries, threshold, self._score, most=most, **options)
        rows = SortedIds(self._known).rows_of(found.ids) + start
        return np.diff(found.offsets), rows, found.ids, found.scores

    def rerank(
        self, queries: Items, candidates: NDArray[Any], k: int, start: int = 0, exclude: Exclusions | None = None
    ) -> tuple[NDArray[Any], ...]:
        mine = self._are_here(candidates)
        known = np.where(mine, candidates, none_like(self._known))
        return *self._stored.rerank(queries, known, k, self._score, exclude=exclude), mine.sum(1)

    def rescore(self, queries: Items, candidates: NDArray[Any], start: int = 0) -> tuple[NDArray[Any], ...]:
        mine = self._are_here(candidates)
        known = np.where(mine, candidates, none_like(self._known))
        return mine, self._stored.rescore(queries, known, self._score)[mine]

    def _are_here(self, candidates: NDArray[Any]) -> NDArray[Any]:
        return SortedIds(self._known).rows_of(candidates) >= 0


def _plain(items: Items) -> Items:
    """The same items, each with its parameter in memory."""
    return type(items)(*(np.array(x) for x in items.arrays))


def _opened(source: Source) -> Any:
    """A gallery or a reranker, or the items of a source and their ids where it has any."""
    if isinstance(source, tuple):
        items, _ = _opened(source[0])
        return items, checked_ids(spelled(source), source[1], len(items))
    if isinstance(source, Distribution):
        return source, None
    if isinstance(source, FaissReranker | Gallery):
        return source
    if callable(source):
        return _opened(source())
    if not isinstance(source, str | os.PathLike):
        raise TypeError(f"is {type(source).__name__}, expected a path, a distribution, a function or a pair with ids")
    if not os.path.isdir(source):
        return io.read_distribution(source), None
    return FaissReranker.open(source) if os.path.exists(os.path.join(source, ABOUT)) else Gallery.open(source)


def spelled(source: Source) -> str:
    """A source as errors name it."""
    if isinstance(source, tuple):
        return spelled(source[0])
    if isinstance(source, Distribution) or not callable(source):
        return str(source)
    return getattr(source, "__name__", type(source).__name__)
