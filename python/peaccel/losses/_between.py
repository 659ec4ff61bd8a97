"""Pairs of a batch, of a batch with a second set, or those that a miner chose; and the losses of such pairs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Generic, TypeVar

import torch
from torch import Tensor

from peaccel import retrieval
from peaccel.distributions import Distribution, Point
from peaccel.losses._batch import later_of_classes, may_look, mean_of, on_gpu, require_pairs, same_class_pairs
from peaccel.losses._directions import directions
from peaccel.losses._mean_score import mean_score
from peaccel.losses.base import Loss, full_precision, gathered, processes, require_batch, required_finite, widened
from peaccel.scores import Score, get

__all__ = ["ItemPairs", "PairLoss"]

D = TypeVar("D", bound=Distribution)


@dataclass(frozen=True)
class ItemPairs(Generic[D]):
    """The pairs of N items with M others that a loss compares: all pairs of a batch, unless it is said otherwise."""

    owner: str
    """The loss, which errors name."""
    d: D
    labels: Tensor
    reference: tuple[D, Tensor] | None = None
    """The M others and their labels; None where they are the items themselves."""
    mined: Sequence[Tensor] | None = None
    """Rows of the triplets, three tensors, or of the pairs, four, that a miner chose."""
    of_two: bool = True
    """Whether a batch without pairs of two classes is refused, as one without pairs of one class is."""
    itself: bool = False
    """Whether an item's pair with itself is one of its class."""

    @property
    def alone(self) -> bool:
        """Whether these are all pairs of one set."""
        return self.reference is None and self.mined is None

    @property
    def other(self) -> D:
        """The M others."""
        return self.d if self.reference is None else self.reference[0]

    def counts(self) -> tuple[Tensor, Tensor]:
        """How often each pair [N, M] counts as one of one class, and as one of two: numbers if mined, else bool.

        Raises
        ------
        ValueError
            All pairs of one set are of one class, or of two.
        """
        if self.mined is not None:
            none = torch.zeros(len(self.d), len(self.other), device=self.labels.device)
            one = none.new_ones(())
            same, different = (none.index_put(sides, one, accumulate=True) for sides in _sides_of(self.mined))
            return same, different
        if self.reference is not None:
            same = self.labels[:, None] == self.reference[1]
            return same, ~same
        require_pairs(self.owner, self.labels, of_two=self.of_two)
        same = same_class_pairs(self.labels)
        different = self.labels[:, None] != self.labels
        return ~different if self.itself else same, different

    def mean(self, score: str | Score, *, different: bool = False, costly: bool = False) -> Tensor:
        """The mean score of the pairs of one class, or of two.

        The others are not scored, but on a GPU, which multiplies matrices, unless a score is costly.

        Of one set each pair counts once, as the score is the same both ways.
        """
        d, labels, above = self.d, self.labels, self.alone and not self.itself
        draws = costly and get(score).pair(d.kind, d.kind).op.sampled
        if above and not different and (not on_gpu(labels) or (costly and may_look(labels) and not draws)):
            if torch.compiler.is_compiling():
                return mean_score(d, d, score, labels, of="labels", owner=self.owner)
            return mean_score(d, d, score, later_of_classes(self.owner, labels, of_two=self.of_two), of="rows")
        # Labels of a batch are refused where pairs of one class are scored.
        counts = labels[:, None] != labels if different and self.alone else self.counts()[different]
        counts = counts.triu() if above else counts
        if self.alone and on_gpu(labels) and not (costly and above):
            return mean_of(retrieval.pairwise(d, d, score), counts)
        of = ("many" if different else "few") if above and on_gpu(labels) and draws else "counts"
        return mean_score(d, self.other, score, counts, of=of)

    def scores(self, score: Score, seed: int | None) -> Tensor:
        """The scores of all pairs, [N, M]."""
        values: Tensor = retrieval.pairwise(self.d, self.other, score(seed=seed) if "seed" in score.params else score)
        return values

    def units(self, dtype: torch.dtype | None = None) -> tuple[Tensor, Tensor]:
        """Directions of the means of both sides; of a mean 0 it is 0, with gradient 0."""
        a = directions(self.d.mu.to(dtype))
        return a, a if self.reference is None else directions(self.other.mu.to(dtype))

    def distances(self) -> Tensor:
        """Distances of the directions of the means [N, M], by differences; where it is 0 so is its gradient."""
        a, b = self.units()
        point = Point(a)
        squares: Tensor = -retrieval.pairwise(point, point if a is b else Point(b), "neg_sq_l2")
        return squares.clamp(min=torch.finfo(squares.dtype).tiny).sqrt()

    def square_distances(self) -> Tensor:
        """Squared distances of the directions of the means [N, M]: float64, in which products err by some 1e-16, so
        that in float32 near duplicates keep their digits."""
        a, b = self.units(torch.float64)
        lengths = [x.detach().square().sum(1) for x in (a, b)]  # 1, or 0 of a mean 0, either way without gradient
        squares: Tensor = torch.addmm(lengths[1], a, b.T, alpha=-2) + lengths[0][:, None]
        return squares


class PairLoss(Loss[D]):
    """A loss of pairs or triplets; subclasses write `of_pairs`.

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
    of_two: ClassVar[bool] = True
    itself: ClassVar[bool] = False

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
            if other.kind != d.kind:
                raise TypeError(f"{owner}: reference is {other!r}, expected a {d.kind} like d")
            if other.dim != d.dim:
                raise ValueError(f"{owner}: dim of reference is {other.dim}, expected {d.dim} like d")
        if mined is not None and processes() > 1:
            raise ValueError(f"{owner}: mined is of one process, and {processes()} train together; expected None")
        with full_precision(labels):
            d, other = widened(d), widened(other)
            if processes() > 1:
                d, labels = gathered(owner, d, labels)
                other, of_other = gathered(owner, other, of_other, "reference")
            for side in (d, other):
                side.check_rows()
            sides = None if reference is None else (other, of_other)
            if mined is not None:
                _check_mined(owner, mined, len(labels), len(of_other))
            value = self.of_pairs(ItemPairs(owner, d, labels, sides, mined, self.of_two, self.itself), seed)
            return required_finite(owner, value, d, other)

    def loss(self, d: D, labels: Tensor, seed: int | None) -> Tensor:
        return self.of_pairs(ItemPairs(type(self).__name__, d, labels, None, None, self.of_two, self.itself), seed)

    def of_pairs(self, pairs: ItemPairs[D], seed: int | None) -> Tensor:
        """The loss of the pairs that count."""
        raise NotImplementedError


def _sides_of(mined: Sequence[Tensor]) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Rows of anchors and positives, and of anchors and negatives."""
    return (mined[0], mined[1]), (mined[-2] if len(mined) == 4 else mined[0], mined[-1])


def _check_mined(owner: str, mined: Sequence[Tensor], items: int, others: int) -> None:
    """Refuse what is neither triplets nor pairs of rows that are there: ValueError."""
    if not isinstance(mined, Sequence) or len(mined) not in (3, 4):
        got = f"{len(mined)} tensors" if isinstance(mined, Sequence) else type(mined).__name__
        expected = "(anchors, positives, negatives) or (anchors, positives, anchors, negatives)"
        raise ValueError(f"{owner}: mined is {got}, expected {expected}")
    for rows, columns in _sides_of(mined):
        for x, count in ((rows, items), (columns, others)):
            if x.dtype != torch.int64 or x.shape != rows.shape or x.ndim != 1:
                got = f"{x.dtype} of shape {tuple(x.shape)}"
                raise ValueError(f"{owner}: mined holds {got}, expected int64 of shape ({len(rows)},)")
            if may_look(x) and len(x) and not 0 <= int(x.min()) <= int(x.max()) < count:
                raise ValueError(
                    f"{owner}: mined names rows {int(x.min())} .. {int(x.max())}, expected 0 .. {count - 1}"
                )
