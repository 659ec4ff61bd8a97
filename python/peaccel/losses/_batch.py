"""Scores of some pairs of a batch, and distances between its means, which several losses need."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import normalize

import peaccel as pe
from peaccel.distributions import Distribution
from peaccel.losses.base import same_class_pairs


def pairs_of(owner: str, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Which ordered pairs are of one class, i != j, and which of two, [N, N] bool.

    Raises
    ------
    ValueError
        There are none of one or the other.
    """
    same, different = same_class_pairs(labels), labels[:, None] != labels
    if not same.any():
        raise ValueError(f"{owner}: labels are all different, expected at least one pair of one class")
    if not different.any():
        raise ValueError(f"{owner}: labels are all equal, expected at least two classes")
    return same, different


def scores_of(d: Distribution, pairs: Tensor, score: str | pe.Score) -> Tensor:
    """Scores of the pairs in a mask [N, N], row after row; the others are not computed."""
    found, rows = pairs.byte().topk(int(pairs.sum(1).max()), 1)
    scores: Tensor = pe.rescore(d, d, rows.masked_fill(found == 0, -1), score)
    return scores[found > 0]


def unit_means(d: Distribution) -> pe.Point:
    """The directions of the means; of a mean 0 it is 0, with gradient 0."""
    return pe.Point(normalize(d.mu))


def square_distances(d: Distribution) -> Tensor:
    """Squared distances of the means [N, N], by differences: those of near duplicates keep their digits."""
    means = pe.Point(d.mu)
    squares: Tensor = -pe.pairwise(means, means, "neg_sq_l2")
    return squares


def distances(d: Distribution) -> Tensor:
    """Distances of the means [N, N]; where it is 0 so is its gradient."""
    squares = square_distances(d)
    return squares.clamp(min=torch.finfo(squares.dtype).tiny).sqrt()
