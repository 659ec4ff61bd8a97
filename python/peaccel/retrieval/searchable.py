"""Contract of the galleries that are searched by their own methods."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from peaccel.distributions import Distribution
from peaccel.retrieval.prepared import Prepared
from peaccel.retrieval.ranking import Ranking, RankingAbove
from peaccel.scores import Score

if TYPE_CHECKING:
    from typing_extensions import TypeIs

    from peaccel.fits.records import Threshold


__all__ = ["Searchable", "is_searchable"]


@runtime_checkable
class Searchable(Protocol):
    """Contract of `FaissReranker`, `Gallery` and `ShardedGallery`: an argument means the same in all of them.

    `pe.search`, `pe.search_above`, `pe.rerank` and `pe.rescore` take such a gallery in place of a distribution, which
    has no ids but its rows, and pass the call on. All arguments and results are ids where a gallery has ids, else rows.

    The score is fixed where a gallery was prepared or built for it (`prepare`, `FaissReranker`, `ShardedGallery`): a
    call may name it, and another one is an error. Else (distributions, `Gallery`) a call names it; by default it is
    cosine of points, and else mls.

    Galleries that change have `add`, `upsert`, `remove` and `compact`. An id that no item has is an error of `remove`,
    unless ``skip_missing=True``, and of candidates; among `allowed` it finds nothing, in `exclude` it excludes nothing.

    Examples
    --------
    >>> items = pe.Point(np.eye(3))
    >>> reranker = pe.FaissReranker.build(items, "Flat", ids=["ann", "bob", "cy"])
    >>> pe.search(items[:1], reranker, k=2, exclude=["ann"]).ids.tolist()
    [['bob', 'cy']]
    """

    def __len__(self) -> int:
        """Count the items."""

    def search(
        self,
        queries: Distribution[Any],
        k: int,
        score: str | Score | None = None,
        *,
        shortlist: int | None = ...,
        allowed: Any = None,
        exclude: Any = None,
        accept: Threshold | None = None,
    ) -> Ranking[Any]:
        """The best k for each query: of the shortlist that an index proposes, or, with None, the exact ones."""

    def search_above(
        self,
        queries: Distribution[Any],
        threshold: float,
        score: str | Score | None = None,
        *,
        allowed: Any = None,
        exclude: Any = None,
        most: int = ...,
    ) -> RankingAbove[Any]:
        """All items whose score reaches a threshold, exactly, for each query."""

    def rerank(
        self,
        queries: Distribution[Any],
        candidates: Any,
        k: int,
        score: str | Score | None = None,
        *,
        exclude: Any = None,
    ) -> Ranking[Any]:
        """The best k of each query's candidates [Q, K]."""

    def rescore(self, queries: Distribution[Any], candidates: Any, score: str | Score | None = None) -> Any:
        """Scores [Q, K] of each query with its candidates."""


def is_searchable(gallery: object) -> TypeIs[Searchable]:
    """Whether a gallery is searched by its methods."""
    return not isinstance(gallery, (Distribution, Prepared)) and isinstance(gallery, Searchable)
