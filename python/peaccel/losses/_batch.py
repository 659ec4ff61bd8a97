"""Scores of some pairs of a batch, and distances between its means, which several losses need.

In compiled functions no shape and no branch can depend on labels: there checks are left out, and lists of pairs are of
all pairs, with a mask. A device-side assertion in their place would leave CUDA unusable.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import normalize

from peaccel import retrieval
from peaccel.distributions import Distribution, Point
from peaccel.losses.base import same_class_pairs
from peaccel.scores import Score


def pairs_of(owner: str, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Which ordered pairs are of one class, i != j, and which of two, [N, N] bool.

    Raises
    ------
    ValueError
        There are none of one or the other.
    """
    same, different = pairs_of_one_class(owner, labels), labels[:, None] != labels
    if not torch.compiler.is_compiling() and not different.any():
        raise ValueError(f"{owner}: labels are all equal, expected at least two classes")
    return same, different


def pairs_of_one_class(owner: str, labels: Tensor) -> Tensor:
    """Which ordered pairs i != j are of one class, [N, N] bool; ValueError where there are none."""
    same = same_class_pairs(labels)
    if not torch.compiler.is_compiling() and not same.any():
        raise ValueError(f"{owner}: labels are all different, expected at least one pair of one class")
    return same


def listed(pairs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Rows and columns [M] of the pairs in a mask [N, N], and which of those listed are in it."""
    if torch.compiler.is_compiling():
        rows = torch.arange(len(pairs), device=pairs.device)
        return rows[:, None].expand_as(pairs).flatten(), rows.expand_as(pairs).flatten(), pairs.flatten()
    rows, columns = pairs.nonzero(as_tuple=True)
    return rows, columns, torch.ones_like(rows, dtype=torch.bool)


def mean_of(values: Tensor, counted: Tensor) -> Tensor:
    """The mean of the values that count, 0 where none does; gradients of the others are 0."""
    return values.masked_fill(~counted, 0).sum() / counted.sum().clamp(min=1)


def mean_score(d: Distribution, pairs: Tensor, score: str | Score) -> Tensor:
    """The mean score of the pairs in a mask [N, N]; the others are not computed."""
    most = len(d) if torch.compiler.is_compiling() else int(pairs.sum(1).max())
    found, rows = pairs.byte().topk(most, 1)
    return mean_of(retrieval.rescore(d, d, rows.masked_fill(found == 0, -1), score), found > 0)


def unit_means(d: Distribution) -> Point:
    """The directions of the means; of a mean 0 it is 0, with gradient 0."""
    return Point(normalize(d.mu))


def square_distances(d: Distribution) -> Tensor:
    """Squared distances of the means [N, N], by differences: those of near duplicates keep their digits."""
    means = Point(d.mu)
    squares: Tensor = -retrieval.pairwise(means, means, "neg_sq_l2")
    return squares


def distances(d: Distribution) -> Tensor:
    """Distances of the means [N, N]; where it is 0 so is its gradient."""
    squares = square_distances(d)
    return squares.clamp(min=torch.finfo(squares.dtype).tiny).sqrt()
