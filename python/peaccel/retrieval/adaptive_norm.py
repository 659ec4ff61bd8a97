"""Adaptive S-norm of searches by one cohort."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from peaccel._utils.arrays import on_host, require_same_kind
from peaccel.distributions import Distribution
from peaccel.distributions.checks import require_distribution
from peaccel.retrieval.normalise_scores import NEAREST, norm_by, normalise_scores
from peaccel.retrieval.ranking import Ranking, of_score
from peaccel.retrieval.verbs import pairwise, search
from peaccel.scores import Score

__all__ = ["SHORTLIST", "AdaptiveNorm"]

SHORTLIST = 100
"""How many items a search finds at least, of which the best by normalised scores are kept."""
PROBE = 8
"""Items on which it is seen whether a score is symmetric."""


class AdaptiveNorm:
    """Scores of a search in standard deviations above those with the nearest of a cohort, of both sides.

    Called with a ranking of rows of the gallery and its queries it returns the normalised one, best first.
    """

    def __init__(
        self, owner: str, gallery: Distribution, cohort: Distribution, score: Score, nearest: int = NEAREST
    ) -> None:
        require_distribution(owner, "cohort", cohort)
        require_same_kind(owner, "cohort", cohort.mu, "gallery", gallery.mu)
        if cohort.dim != gallery.dim or len(cohort) < 2:
            found, expected = (f"{len(d)} items of {d.dim} dimensions" for d in (cohort, gallery))
            raise ValueError(f"{owner}: cohort has {found}, expected two or more like the gallery's {expected}")
        one, other = gallery[:PROBE], cohort[:PROBE]
        if not np.allclose(on_host(pairwise(one, other, score)), on_host(pairwise(other, one, score)).T, rtol=1e-4):
            raise ValueError(f"{owner}: score {score.label} is not symmetric, as S-norm needs")
        self._cohort, self._score, self._number = cohort, score, min(nearest, len(cohort))
        self._of_gallery = self._nearest(gallery)
        self.label = norm_by("S-norm", cohort, self._number)

    def __call__(self, ranking: Ranking[Any], queries: Distribution) -> Ranking[Any]:
        normed: Ranking[Any] = normalise_scores(ranking, queries=self._nearest(queries), gallery=self._of_gallery)
        return of_score(normed, self._score, self.label, dim=ranking.dim, gallery_size=ranking.gallery_size)

    def of_pairs(self, scores: NDArray[Any], queries: Distribution, pairs: NDArray[np.int64]) -> NDArray[Any]:
        """Scores [P] of pairs [P, 2] of rows of queries and of the gallery, normalised."""
        of_queries, of_gallery = (on_host(x.scores) for x in (self._nearest(queries), self._of_gallery))
        return normalise_scores(scores, queries=of_queries, gallery=of_gallery, pairs=pairs)

    def _nearest(self, d: Distribution) -> Ranking[Any]:
        return search(d, self._cohort, self._number, self._score)
