"""Losses of distances between the means of pairs."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from peaccel import scores
from peaccel.distributions import Distribution, Normal
from peaccel.distributions.sample import sample
from peaccel.losses._batch import entries_of_classes, is_static, mean_of, others_of_classes
from peaccel.losses._between import ItemPairs, PairLoss
from peaccel.losses.base import Loss
from peaccel.scores import Score

__all__ = ["Contrastive", "MarginLoss", "MultiSimilarity"]


DIRECT = 70.0
"""The greatest exponent of which exponentials are summed as they are: a hundred million times e^70 = 3e30 is in
float32's range, and it takes less than half of the time of logsumexp."""


BLOCK = 1 << 18
"""How many distances negatives are drawn by at a time."""


class Contrastive(PairLoss[Distribution]):
    """Contrastive loss: pairs of one class nearer than one margin, pairs of two further than another.

    With d_ij the distance of the directions of the means, in [0, 2], the means over pairs of::

        [d_ij - positive_margin]_+ of one class, and [negative_margin - d_ij]_+ of two, added

    Parameters
    ----------
    positive_margin
        >= 0; 0 asks for equal directions. With a score of either sign.
    negative_margin
        Above positive_margin.
    score
        A name or `Score` that takes d with itself: d_ij is minus the score. None: the distance of directions.

    Raises
    ------
    ValueError
        No two labels are equal, or all are; margins out of range.

    Notes
    -----
    The mean is over all pairs of a kind, satisfied ones too. Variances have no part in it. At distance 0 the gradient
    is 0. N x N numbers.

    References
    ----------
    Hadsell, Chopra & LeCun, Dimensionality Reduction by Learning an Invariant Mapping, CVPR 2006, without the
    squares, as in Karpukhin et al., Probabilistic Embeddings Revisited, 2022, eq. 2, whose minus between the terms is a
    misprint.

    Examples
    --------
    Items of a class are equal. Items of two classes are 1.414 apart, which the first margin allows and the second does
    not:

    >>> import torch
    >>> from peaccel.losses import Contrastive
    >>> d, labels = pe.Point(torch.eye(2)[[0, 0, 1, 1]]), torch.tensor([0, 0, 1, 1])
    >>> [round(Contrastive(negative_margin=margin)(d, labels).item(), 3) for margin in (1.0, 1.5)]
    [0.0, 0.086]
    """

    def __init__(
        self, *, positive_margin: float = 0.0, negative_margin: float = 1.0, score: str | Score | None = None
    ) -> None:
        super().__init__()
        self.score = None if score is None else scores.get(score)
        if not (0 if score is None else -math.inf) <= positive_margin < negative_margin:
            got = f"positive_margin is {positive_margin}, negative_margin {negative_margin}"
            expected = f"{'0 <= ' if score is None else ''}positive_margin < negative_margin"
            raise ValueError(f"Contrastive: {got}, expected {expected}")
        self.positive_margin, self.negative_margin = positive_margin, negative_margin

    def of_pairs(self, pairs: ItemPairs[Distribution], seed: int | None) -> Tensor:
        same, different = pairs.counts()
        apart = pairs.distances() if self.score is None else -pairs.scores(self.score, seed)
        near = mean_of((apart - self.positive_margin).relu(), same)
        return near + mean_of((self.negative_margin - apart).relu(), different)


class MultiSimilarity(PairLoss[Distribution]):
    """Multi-similarity loss: the hard pairs of each anchor, weighed among each other.

    With s_ij the cosine of the means, of anchor i are kept: items of its class with s_ip - margin below its largest
    s_in, and items of others with s_in + margin above its smallest s_ip. Mean over all anchors of::

        log(1 + sum over p of exp(-alpha (s_ip - threshold))) / alpha
        + log(1 + sum over n of exp(beta (s_in - threshold))) / beta

    Parameters
    ----------
    threshold
        In [-1, 1], with a score any number.
    margin
        Margin of the mining, >= 0; mined pairs are all kept.
    alpha, beta
        Sharpness for pairs of one class and of two, > 0.
    score
        A name or `Score` that takes d with itself, in place of the cosine of the means, which None is.

    Raises
    ------
    ValueError
        No two labels are equal, or all are; a setting out of range.

    Notes
    -----
    An anchor without kept pairs counts as 0, also one alone in its class. Mining has no gradient. N x N numbers.

    References
    ----------
    Wang et al., Multi-Similarity Loss with General Pair Weighting, CVPR 2019, eqs. 11, 12 and 15.

    Examples
    --------
    Cosines are 1 within a class and 0 between two: mining by the first margin keeps no pair, by the second all of them:

    >>> import torch
    >>> from peaccel.losses import MultiSimilarity
    >>> d, labels = pe.Point(torch.eye(2)[[0, 0, 1, 1]]), torch.tensor([0, 0, 1, 1])
    >>> [round(MultiSimilarity(margin=margin)(d, labels).item(), 3) for margin in (0.1, 1.5)]
    [0.0, 0.157]
    """

    def __init__(
        self,
        *,
        threshold: float = 0.5,
        margin: float = 0.1,
        alpha: float = 2.0,
        beta: float = 40.0,
        score: str | Score | None = None,
    ) -> None:
        super().__init__()
        self.score = None if score is None else scores.get(score)
        if not (-1 <= threshold <= 1 if score is None else math.isfinite(threshold)):
            expected = "-1 .. 1" if score is None else "a finite number"
            raise ValueError(f"MultiSimilarity: threshold is {threshold}, expected {expected}")
        if not margin >= 0:
            raise ValueError(f"MultiSimilarity: margin is {margin}, expected a number of at least 0")
        for name, value in (("alpha", alpha), ("beta", beta)):
            if not value > 0:
                raise ValueError(f"MultiSimilarity: {name} is {value}, expected a number above 0")
        self.threshold, self.margin, self.alpha, self.beta = threshold, margin, alpha, beta

    def of_pairs(self, pairs: ItemPairs[Distribution], seed: int | None) -> Tensor:
        if self.score is None:
            a, b = pairs.units()
            values = a @ b.T
        else:
            values = pairs.scores(self.score, seed)
        if pairs.alone:
            rows, counted = others_of_classes(pairs.owner, pairs.labels)
            near, beside, same = entries_of_classes(values, rows), ~counted, pairs.labels[:, None] == pairs.labels
        else:
            near, (beside, same) = values, (x == 0 for x in pairs.counts())
        if pairs.mined is None:
            far = values.detach().masked_fill(same, -math.inf)
            hardest = far.amax(1, keepdim=True)
            easiest = near.detach().masked_fill(beside, math.inf).amin(1, keepdim=True)
            beside, same = beside | (near.detach() >= hardest + self.margin), far <= easiest - self.margin
        return (self._soft_hinge(near, beside, -self.alpha) + self._soft_hinge(values, same, self.beta)).mean()

    def _soft_hinge(self, values: Tensor, dropped: Tensor, sharpness: float) -> Tensor:
        """log(1 + sum of exp(sharpness (x - threshold)) over x of a row that are not dropped) / |sharpness|."""
        exponents = (sharpness * values).masked_fill_(dropped, -math.inf)
        if self.score is None and abs(sharpness) * (1 + abs(self.threshold)) <= DIRECT:
            return (exponents.exp_().sum(1) * math.exp(-sharpness * self.threshold)).log1p() / abs(sharpness)
        beyond = exponents.logsumexp(1) - sharpness * self.threshold
        return softplus(beyond, threshold=40) / abs(sharpness)  # from where on float64 has no digit of the 1


class MarginLoss(Loss[Distribution]):
    """Margin loss with distance-weighted sampling: distances on either side of a learned boundary beta.

    With d_ij the distance of the directions of the means, each pair (i, p) of one class draws an n of another class for
    its anchor i, with probabilities inverse to how distances of directions are distributed in D dimensions::

        1 / q(max(d_in, cutoff)), log q(d) = (D - 2) log d + (D - 3)/2 log(1 - d^2/4), of those with d_in < far

    The loss is the sum of ``[margin + d_ip - beta]_+ + [margin + beta - d_in]_+`` over the number of these above 0.

    Parameters
    ----------
    margin
        >= 0.
    beta
        Start of the boundary, in (0, 2).
    cutoff
        Distances below weigh as it does; > 0.
    far
        Items further are not drawn, in (cutoff, 2]; their part is 0 from beta + margin on. Anchors all whose items of
        other classes are further draw none.

    Attributes
    ----------
    beta
        Parameter []; the paper's beta per class, its regulariser with it, is left out.

    Raises
    ------
    ValueError
        No two labels are equal, or all are; a setting out of range.

    Notes
    -----
    Weights are relative to the largest of their anchor. Where it is the batch's largest, as in the paper's code and
    pytorch-metric-learning's DistanceWeightedMiner, one close pair leaves other anchors without any: of D = 256,
    distances .5 and 1.38 weigh e^184 to 1. Draws have no gradient; their noise is that of `peaccel.sample`. N x N
    distances, and on the CPU no more of weights than some rows.

    References
    ----------
    Wu et al., Sampling Matters in Deep Embedding Learning, ICCV 2017, sec. 4.

    Examples
    --------
    Items of one class are 1.414 apart, 0.214 further than beta. The loss is that plus the margin; a step raises beta:

    >>> import torch
    >>> from peaccel.losses import MarginLoss
    >>> loss, labels = MarginLoss(margin=0.2, beta=1.2), torch.tensor([0, 0, 1, 1])
    >>> value = loss(pe.Point(torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0], [0.0, -1.0]])), labels)
    >>> value.backward()
    >>> round(value.item(), 3), -loss.beta.grad.item()
    (0.414, 1.0)
    """

    across = True

    def __init__(self, *, margin: float = 0.2, beta: float = 1.2, cutoff: float = 0.5, far: float = 1.4) -> None:
        super().__init__()
        if not margin >= 0:
            raise ValueError(f"MarginLoss: margin is {margin}, expected a number of at least 0")
        if not 0 < beta < 2:
            raise ValueError(f"MarginLoss: beta is {beta}, expected a number between 0 and 2")
        if not 0 < cutoff < far <= 2:
            raise ValueError(f"MarginLoss: cutoff is {cutoff}, far {far}, expected 0 < cutoff < far <= 2")
        self.margin, self.cutoff, self.far = margin, cutoff, far
        self.beta = nn.Parameter(torch.tensor(float(beta)))

    def loss(self, d: Distribution, labels: Tensor, seed: int | None) -> Tensor:
        rows, counted = others_of_classes("MarginLoss", labels)
        apart = ItemPairs("MarginLoss", d, labels).distances()
        negatives, drawn = self._negatives(apart.detach(), labels[:, None] != labels, rows, d.dim, seed)
        beyond = torch.stack((entries_of_classes(apart, rows) - self.beta, self.beta - apart.gather(1, negatives)))
        hinges = (beyond + self.margin).relu() * torch.stack((counted, counted & drawn))
        return hinges.sum() / (hinges > 0).sum().clamp(min=1)

    def _negatives(
        self, apart: Tensor, different: Tensor, rows: Tensor, dim: int, seed: int | None
    ) -> tuple[Tensor, Tensor]:
        """For each pair [N, K] of an anchor with one of `rows` a drawn item of another class, and whether it is one."""
        count, items = apart.shape
        step = count if is_static(apart) else max(1, BLOCK // items)
        negatives, drawn = [], []
        for start in range(0, count, step):
            some, of = slice(start, start + step), apart[start : start + step]
            near = different[some] & (of < self.far)
            at = of.clamp(self.cutoff, self.far)
            log_weights = (2 - dim) * at.log() + (3 - dim) / 2 * torch.log1p(-at.square() / 4)
            shares = log_weights.masked_fill(~near, -math.inf).softmax(1).cumsum(1)
            normals = sample(Normal(torch.zeros_like(of), 1.0), 1, seed, first_row=start)[0]
            uniform = torch.special.ndtr(entries_of_classes(normals, rows[some]))
            negatives.append(torch.searchsorted(shares, uniform, right=True).clamp(max=items - 1))
            drawn.append(near.gather(1, negatives[-1]))
        return torch.cat(negatives), torch.cat(drawn)
