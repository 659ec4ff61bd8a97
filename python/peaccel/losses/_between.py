"""Losses of pairs and triplets that also take a second set, whose items stand on the other side, and a miner's choice.

Without either a loss takes all pairs of its batch, by the shortest way that it knows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, NamedTuple, TypeVar

import torch
from torch import Tensor

from peaccel import retrieval
from peaccel.distributions import Distribution, Point
from peaccel.losses._batch import may_look, pairs_of, unit_means
from peaccel.losses.base import Loss, full_precision, gathered, processes, require_batch, required_finite, widened
from peaccel.scores import Score

__all__ = ["Chosen", "PairLoss", "distances_between", "mean_score", "scored", "weighted_mean"]

D = TypeVar("D", bound=Distribution)


class Chosen(NamedTuple):
    """The pairs of N items with M others that count."""

    same: Tensor
    """[N, M], how often a pair of one class counts."""
    different: Tensor
    """[N, M], how often a pair of two classes counts."""
    triplets: tuple[Tensor, Tensor, Tensor] | None
    """Rows of anchors, positives and negatives, where a miner chose triplets."""
    mined: bool
    """Whether a miner chose."""


class PairLoss(Loss[D]):
    """A loss of pairs or triplets; subclasses write `loss`, of all pairs of a batch, and `between`.

    Beside a batch of distributions and their labels it takes ``reference=(distributions, labels)``: the other side of
    all pairs is then there, such as a queue, a memory of past batches or another modality. And it takes
    ``mined=``, rows of anchors, positives and negatives that a miner of pytorch-metric-learning chose: three tensors of
    triplets, or four of pairs (anchors, positives, anchors, negatives); positives and negatives are rows of the
    reference where there is one.

    Examples
    --------
    >>> import torch
    >>> from peaccel.losses import Contrastive
    >>> d, labels = pe.Point(torch.eye(2)), torch.tensor([0, 1])
    >>> memory = pe.Point(torch.tensor([[1.0, 0.0], [0.6, 0.8]])), torch.tensor([0, 1])
    >>> round(Contrastive()(d, labels, reference=memory).item(), 3)
    0.369
    """

    across: ClassVar[bool] = True

    def forward(
        self,
        d: D,
        labels: Tensor,
        seed: int | None = None,
        *,
        reference: tuple[D, Tensor] | None = None,
        mined: Sequence[Tensor] | None = None,
    ) -> Tensor:
        """The loss.

        Parameters
        ----------
        d, labels, seed
            As of every loss.
        reference
            M distributions of d's kind and their labels, [M] int64, all of which stand on the other side of pairs: none
            is left out as an item itself. With gradients, unless they are detached. Where several processes train, each
            gives its part, of one length.
        mined
            Three or four tensors [M] int64, in place of all pairs or triplets.

        Returns
        -------
        Scalar, as of every loss. With a reference or mined pairs a kind of pairs of which there are none counts as 0,
        without an error.

        Raises
        ------
        TypeError
            As of every loss; the reference is no distribution of d's kind with labels.
        ValueError
            As of every loss; the reference has another dim; mined is of another number of tensors, or names rows that
            are not there; mined, where several processes train.
        """
        owner = type(self).__name__
        if reference is None and mined is None:
            return super().forward(d, labels, seed)
        require_batch(owner, d, labels)
        other, of_other = d, labels
        if reference is not None:
            if not (isinstance(reference, tuple) and len(reference) == 2):
                raise TypeError(f"{owner}: reference is {type(reference).__name__}, expected (distributions, labels)")
            other, of_other = reference
            require_batch(owner, other, of_other, "reference", "labels of reference")
            if (other.kind, other.dim) != (d.kind, d.dim):
                raise TypeError(f"{owner}: reference is {other!r}, expected a {d.kind} of dim {d.dim} like d")
        if mined is not None and processes() > 1:
            raise ValueError(f"{owner}: mined is of one process, and {processes()} train together; expected None")
        with full_precision(labels):
            d, other = widened(d), widened(other)
            if processes() > 1:
                d, labels = gathered(owner, d, labels)
                other, of_other = gathered(owner, other, of_other, "reference")
            chosen = _chosen(owner, labels, of_other, reference is None, mined)
            for side in (d, other):
                side.check_signs()
            return required_finite(owner, self.between(d, other, chosen, seed), d, other)

    def between(self, d: D, other: D, chosen: Chosen, seed: int | None) -> Tensor:
        """The loss of the pairs of two sides that count."""
        raise NotImplementedError

    def all_pairs(self, d: D, labels: Tensor, seed: int | None) -> Tensor:
        """`between` of the batch with itself; ValueError where there are no pairs of one class, or of two."""
        return self.between(d, d, Chosen(*pairs_of(type(self).__name__, labels), None, False), seed)


def _chosen(owner: str, labels: Tensor, others: Tensor, itself: bool, mined: Sequence[Tensor] | None) -> Chosen:
    """All pairs, but for those of items with themselves, or those that a miner chose."""
    if mined is None:
        same = labels[:, None] == others
        different = ~same
        if itself:
            same = same & ~torch.eye(len(labels), dtype=torch.bool, device=labels.device)
        return Chosen(same, different, None, False)
    if not isinstance(mined, Sequence) or len(mined) not in (3, 4):
        got = f"{len(mined)} tensors" if isinstance(mined, Sequence) else type(mined).__name__
        expected = "(anchors, positives, negatives) or (anchors, positives, anchors, negatives)"
        raise ValueError(f"{owner}: mined is {got}, expected {expected}")
    anchors, positives, *_ = mined
    of_negatives, negatives = mined[-2] if len(mined) == 4 else anchors, mined[-1]
    for rows, columns in ((anchors, positives), (of_negatives, negatives)):
        for x, count in ((rows, len(labels)), (columns, len(others))):
            if x.dtype != torch.int64 or x.shape != rows.shape or x.ndim != 1:
                got = f"{x.dtype} of shape {tuple(x.shape)}"
                raise ValueError(f"{owner}: mined holds {got}, expected int64 of shape ({len(rows)},)")
            if may_look(x) and len(x) and not 0 <= int(x.min()) <= int(x.max()) < count:
                raise ValueError(
                    f"{owner}: mined names rows {int(x.min())} .. {int(x.max())}, expected 0 .. {count - 1}"
                )
    counts = []
    for rows, columns in ((anchors, positives), (of_negatives, negatives)):
        none = torch.zeros(len(labels), len(others), device=labels.device)
        counts.append(none.index_put_((rows, columns), none.new_ones(()), accumulate=True))
    return Chosen(counts[0], counts[1], (anchors, positives, negatives) if len(mined) == 3 else None, True)


def weighted_mean(values: Tensor, counts: Tensor) -> Tensor:
    """The mean of values [N, M], each as often as it counts; 0 where none does; gradients of the others are 0."""
    weights = counts.to(values.dtype)
    return (values.masked_fill(weights == 0, 0) * weights).sum() / weights.sum().clamp(min=1)


def scored(d: Distribution, other: Distribution, score: Score, seed: int | None) -> Tensor:
    """The scores of all pairs, [N, M]."""
    values: Tensor = retrieval.pairwise(d, other, score(seed=seed) if "seed" in score.params else score)
    return values


def mean_score(d: Distribution, other: Distribution, counts: Tensor, score: str | Score) -> Tensor:
    """The mean score of the pairs that count; the others are not computed."""
    every = torch.arange(counts.shape[1], device=counts.device).expand_as(counts)
    return weighted_mean(retrieval.rescore(d, other, every.masked_fill(counts == 0, -1), score), counts)


def distances_between(d: Distribution, other: Distribution) -> Tensor:
    """Distances of the directions of the means, [N, M]; where it is 0 so is its gradient."""
    sides: tuple[Point, Point] = unit_means(d), unit_means(other)
    squares: Tensor = -retrieval.pairwise(*sides, "neg_sq_l2")
    return squares.clamp(min=torch.finfo(squares.dtype).tiny).sqrt()
