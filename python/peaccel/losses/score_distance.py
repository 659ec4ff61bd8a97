"""A score as a distance of pytorch-metric-learning, which `peaccel.losses` itself does not need."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from peaccel import retrieval, scores
from peaccel._utils.suggestions import unknown
from peaccel.distributions import (
    Distribution,
    NonIsotropicVonMisesFisher,
    Normal,
    Point,
    Scaled,
    VonMisesFisher,
)
from peaccel.scores import Score

try:
    from pytorch_metric_learning.distances import BaseDistance
except ImportError:
    needs = "pip install pytorch-metric-learning"
    raise ImportError(f"peaccel.losses.score_distance needs pytorch-metric-learning: {needs}") from None

__all__ = ["ScoreDistance"]

CLASSES: dict[str, Any] = {
    "point": Point,
    "normal_isotropic": Normal,
    "normal_diagonal": Normal,
    "vmf": VonMisesFisher,
    "nivmf": NonIsotropicVonMisesFisher,
    "scaled": Scaled,
}
BESIDE = {"point": 0, "normal_isotropic": 1, "vmf": 1, "scaled": 1}
"""Columns of the uncertainty; of the other kinds as many as of the mean."""


class ScoreDistance(BaseDistance):  # type: ignore[misc]  # its package has no types
    """A score between distributions for the losses and miners of pytorch-metric-learning, which take rows of numbers.

    Rows are the means, and beside them the uncertainties. A score is larger for items that are more alike, as its
    distances with ``is_inverted=True``: what these losses call a margin is one of the score.

    Parameters
    ----------
    score
        A name or `Score` that takes the kind with itself.
    kind
        Of the distributions: "point", "normal_isotropic", "normal_diagonal", "vmf", "nivmf" or "scaled".

    Raises
    ------
    ImportError
        On import of this file, where pytorch-metric-learning is not installed.
    TypeError
        The score does not take the kind, or the distributions are of another one.
    ValueError
        An unknown score or kind; rows of an odd number of columns where half of them are uncertainties.

    Notes
    -----
    Losses that are written for one distance, such as those of angles, refuse others. Its CrossBatchMemory keeps rows,
    whose ``embedding_size`` is their number of columns.

    Examples
    --------
    >>> import torch
    >>> from peaccel.losses.score_distance import ScoreDistance
    >>> from pytorch_metric_learning.losses import TripletMarginLoss
    >>> distance = ScoreDistance("mls", "normal_isotropic")
    >>> d = pe.Normal(torch.tensor([[0.0, 1.0], [0.1, 1.0], [0.2, 1.0]]), torch.full((3,), 0.1))
    >>> loss = TripletMarginLoss(margin=1.0, distance=distance)
    >>> round(loss(distance.rows(d), torch.tensor([0, 0, 1])).item(), 2)
    0.96
    """

    def __init__(self, score: str | Score, kind: str) -> None:
        super().__init__(normalize_embeddings=False, is_inverted=True)
        if kind not in CLASSES:
            raise ValueError(f"ScoreDistance: {unknown('kind', kind, CLASSES)}")
        self.score, self.kind = scores.get(score), kind
        if (kind, kind) not in self.score.pairs:
            raise TypeError(f"ScoreDistance: {self.score.name} does not take {kind} with itself")

    def rows(self, d: Distribution) -> Tensor:
        """The distributions as rows [N, columns], differentiable."""
        if getattr(d, "kind", None) != self.kind or not isinstance(d.mu, Tensor):
            raise TypeError(f"ScoreDistance: d is {d!r}, expected a {self.kind} with tensors")
        return torch.cat([x if x.ndim == 2 else x[:, None] for x in d.arrays], 1)

    def distributions(self, rows: Tensor) -> Distribution:
        """The distributions of rows."""
        columns = rows.shape[1]
        if self.kind not in BESIDE and columns % 2:
            raise ValueError(f"ScoreDistance: rows have {columns} columns, expected an even number of {self.kind}")
        dim = columns - BESIDE[self.kind] if self.kind in BESIDE else columns // 2
        mu, beside = rows[:, :dim], rows[:, dim:]
        uncertainty = () if self.kind == "point" else (beside[:, 0] if self.kind in BESIDE else beside,)
        found: Distribution = CLASSES[self.kind](mu, *uncertainty)
        return found

    def compute_mat(self, query_emb: Tensor, ref_emb: Tensor) -> Tensor:
        """The scores [N, M] of all pairs of rows."""
        scored: Tensor = retrieval.pairwise(self.distributions(query_emb), self.distributions(ref_emb), self.score)
        return scored

    def pairwise_distance(self, query_emb: Tensor, ref_emb: Tensor) -> Tensor:
        """The scores [N] of pairs of rows."""
        scored: Tensor = retrieval.paired(self.distributions(query_emb), self.distributions(ref_emb), self.score)
        return scored
