"""Scores of some pairs of a batch, and distances between its means, which several losses need.

In compiled functions no shape and no branch can depend on labels: there these checks are left out, and lists of pairs
are of all pairs, with a mask. A device-side assertion in their place would leave CUDA unusable.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import normalize

from peaccel import retrieval
from peaccel.distributions import Distribution, Point
from peaccel.losses.base import same_class_pairs
from peaccel.scores import Score


def all_different(owner: str) -> ValueError:
    """What a loss raises where no two labels are equal."""
    return ValueError(f"{owner}: labels are all different, expected at least one pair of one class")


def all_equal(owner: str) -> ValueError:
    """What a loss raises where there is one class."""
    return ValueError(f"{owner}: labels are all equal, expected at least two classes")


def pairs_of(owner: str, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Which ordered pairs are of one class, i != j, and which of two, [N, N] bool.

    Raises
    ------
    ValueError
        There are none of one or the other.
    """
    return pairs_of_one_class(owner, labels), different_classes(owner, labels)


def pairs_of_one_class(owner: str, labels: Tensor) -> Tensor:
    """Which ordered pairs i != j are of one class, [N, N] bool; ValueError where there are none."""
    same = same_class_pairs(labels)
    if not torch.compiler.is_compiling() and not same.any():
        raise all_different(owner)
    return same


def different_classes(owner: str, labels: Tensor) -> Tensor:
    """Which ordered pairs are of two classes, [N, N] bool; ValueError where there are none."""
    different = labels[:, None] != labels
    if not torch.compiler.is_compiling() and not different.any():
        raise all_equal(owner)
    return different


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


def others_of_classes(owner: str, labels: Tensor) -> tuple[Tensor, Tensor]:
    """For each item the rows of the others of its class, and which of them count, [N, K]: K is as many as the most
    have, or, compiled, all N.

    Raises
    ------
    ValueError
        No two labels are equal, or all are.
    """
    if torch.compiler.is_compiling():
        same = same_class_pairs(labels)
        return torch.arange(len(labels), device=labels.device).expand_as(same), same
    rows, counted = _rows_of_classes(owner, labels)
    if rows.shape[1] == len(labels):
        raise all_equal(owner)
    return rows, counted & (rows != _itself(labels))


def mean_score_of_classes(
    owner: str, d: Distribution, labels: Tensor, score: str | Score, *, ordered: bool = False
) -> Tensor:
    """The mean score of the pairs i < j of one class, or of all `ordered` ones, those of an item with itself too; no
    other pair is scored.

    Raises
    ------
    ValueError
        No two labels are equal.
    """
    if torch.compiler.is_compiling():
        same = labels[:, None] == labels
        return mean_score_of_pairs(d, same if ordered else same.triu(1), score)
    rows, counted = _rows_of_classes(owner, labels)
    if not ordered:
        counted = counted & (rows > _itself(labels))
    return mean_of(retrieval.rescore(d, d, rows.masked_fill(~counted, -1), score), counted)


def _itself(labels: Tensor) -> Tensor:
    """Each item's own row, [N, 1]."""
    return torch.arange(len(labels), device=labels.device)[:, None]


def _rows_of_classes(owner: str, labels: Tensor) -> tuple[Tensor, Tensor]:
    """For each item the rows of its class, its own among them, and which count, as many as the most have: by sorted
    labels, whose work grows with the pairs of one class and not with all pairs.

    Raises
    ------
    ValueError
        No two labels are equal.
    """
    by_class, order = labels.sort(stable=True)
    own = labels.contiguous()  # torch warns of others
    start, stop = (torch.searchsorted(by_class, own, right=right)[:, None] for right in (False, True))
    most = int((stop - start).max())
    if most == 1:
        raise all_different(owner)
    place = start + torch.arange(most, device=labels.device)
    return order[place.clamp(max=len(labels) - 1)], place < stop


def mean_score_of_pairs(d: Distribution, pairs: Tensor, score: str | Score) -> Tensor:
    """The mean score of the pairs in a mask [N, N]; the others are not computed."""
    every = torch.arange(len(pairs), device=pairs.device).expand_as(pairs)
    return mean_of(retrieval.rescore(d, d, every.masked_fill(~pairs, -1), score), pairs)


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
