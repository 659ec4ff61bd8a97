"""Losses of triplets: an anchor, a positive of its class and a negative of another, all those that a batch holds.

The sum of hinges is one of squared distances, each as often as triplets violate by it: `Triplet` counts these, and
keeps no number of a triplet. For the others the anchors with their positives are listed, M pairs, and each is put
beside all N items: tensors [M, N] in which negatives are marked. Moments of draws are made of [N, N] matrices of the
batch, never of a row per triplet. Differences of squared distances cancel: they are float64, and those of means of any
length, in `BayesianTriplet`, are made by differences, so that one is off by at most some 1e-15 of the distances
themselves. Compiled, or captured in a graph of CUDA, the others list all N^2 pairs, since a shape cannot depend on
labels.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import chain
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import embedding, pad

from peaccel import ops, retrieval, scores, special
from peaccel.distributions import Distribution, Normal, Point, VonMisesFisher
from peaccel.distributions.triplet_probability import Spread, moments_on_sphere, spread_on_sphere
from peaccel.losses._batch import may_look, mean_of, on_gpu, pairs_of_classes, sum_of
from peaccel.losses._between import D, ItemPairs, PairLoss
from peaccel.losses.base import require_kind
from peaccel.scores import Score

__all__ = ["BayesianTriplet", "Triplet", "TripletRegression"]


class Triplets(NamedTuple):
    """B pairs of an anchor and a positive, each with all M others; the same of all pairs [N, M] where they may not be
    listed; or T triplets that a miner chose.

    The gradient of an embedding sorts no rows, as that of an index does on a GPU.
    """

    pairs: tuple[Tensor, Tensor] | None
    """Rows of the anchors and of the positives; None of all pairs."""
    negatives: Tensor | None
    """[T], rows of the negatives; None of all others."""
    counts: Tensor
    """[B, M] or [N, M, M], whether or how often each counts; [T, 1] of listed ones."""

    def near(self, x: Tensor) -> Tensor:
        """The entries [B, 1] or [N, M, 1] of a matrix [N, M] for anchor and positive."""
        return x[..., None] if self.pairs is None else x[*self.pairs, None]

    def far(self, x: Tensor) -> Tensor:
        """The entries [B, M], [N, 1, M] or [T, 1] of a matrix [N, M] for anchor and negative."""
        return x[:, None] if self.pairs is None else self._negatives_of(x, self.pairs[0])

    def apart(self, x: Tensor) -> Tensor:
        """The entries [B, M], [M, M] or [T, 1] of a matrix [M, M] for positive and negative."""
        return x if self.pairs is None else self._negatives_of(x, self.pairs[1])

    def anchor(self, x: Tensor) -> Tensor:
        """Numbers or rows of the anchors, [B, 1] or [N, 1, 1] of them."""
        return x[:, None, None] if self.pairs is None else x[self.pairs[0], None]

    def positive(self, x: Tensor) -> Tensor:
        """Numbers or rows of the positives, [B, 1] or [M, 1] of them."""
        return x[:, None] if self.pairs is None else x[self.pairs[1], None]

    def negative(self, x: Tensor) -> Tensor:
        """Numbers or rows of the negatives, [M], or [T, 1] of them."""
        return x if self.negatives is None else x[self.negatives, None]

    def _negatives_of(self, x: Tensor, rows: Tensor) -> Tensor:
        return embedding(rows, x) if self.negatives is None else x[rows, self.negatives, None]


def triplets_of(pairs: ItemPairs[Any]) -> Iterator[Triplets]:
    """The triplets in blocks, each of no more numbers than `BLOCK`, or than there are pairs of items.

    Raises
    ------
    ValueError
        A batch has none.
    """
    if pairs.mined is not None and len(pairs.mined) == 3:
        one = torch.ones((), dtype=torch.bool, device=pairs.labels.device)
        for a, p, n in zip(*(torch.split(x, BLOCK) for x in pairs.mined), strict=True):
            yield Triplets((a, p), n, one.expand(len(n), 1))
        return
    if not may_look(pairs.labels):
        same, different = pairs.counts()
        yield Triplets(None, None, same[..., None] * different[:, None])
        return
    if pairs.alone:
        rows, different = pairs_of_classes(pairs.owner, pairs.labels), pairs.labels[:, None] != pairs.labels
    else:
        same, different = pairs.counts()
        rows = same.nonzero(as_tuple=True)  # type: ignore[assignment]  # a pair, of a matrix
    step = max(len(pairs.other), BLOCK // len(pairs.other))
    for a, p in zip(*(torch.split(x, step) for x in rows), strict=True):
        beside = different[a]
        yield Triplets((a, p), None, beside if pairs.mined is None else same[a, p, None] * beside)


class TripletLoss(PairLoss[D]):
    """A mean over triplets of numbers that are made of matrices of pairs; subclasses write `inputs` and `values`."""

    def of_pairs(self, pairs: ItemPairs[D], seed: int | None) -> Tensor:
        values, inputs, blocks = partial(self.values, pairs.d.dim), self.inputs(pairs), triplets_of(pairs)
        first, second = next(blocks), next(blocks, None)
        if second is None:
            return mean_of(*values(first, *inputs)).to(pairs.d.mu.dtype)
        all_blocks = chain((first, second), blocks)
        mean: Tensor = _MeanInBlocks.apply(values, all_blocks, torch.is_grad_enabled(), *inputs)
        return mean.to(pairs.d.mu.dtype)

    def inputs(self, pairs: ItemPairs[D]) -> tuple[Tensor, ...]:
        """Matrices of pairs, and numbers or rows of items, of which `values` are made."""
        raise NotImplementedError

    def values(self, dim: int, triplets: Triplets, *inputs: Tensor) -> tuple[Tensor, Tensor]:
        """The numbers of triplets of items of D dimensions, and whether or how often they count."""
        raise NotImplementedError


class _MeanInBlocks(torch.autograd.Function):
    """The mean over blocks of triplets: a block's gradient is found before the next one is made."""

    @staticmethod
    def forward(
        ctx: Any, values: Callable[..., Any], blocks: Iterable[Triplets], wanted: bool, *inputs: Tensor
    ) -> Tensor:
        leaves = [x.detach().requires_grad_(x.requires_grad) for x in inputs]
        totals, counts = [], []
        for triplets in blocks:
            with torch.set_grad_enabled(wanted):
                total, count = sum_of(*values(triplets, *leaves))
            if wanted:
                torch.autograd.backward(total)
            totals.append(total.detach())
            counts.append(count)
        count = torch.stack(counts).sum().clamp(min=1)
        ctx.save_for_backward(*(None if x.grad is None else x.grad / count for x in leaves))
        return torch.stack(totals).sum() / count

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return None, None, None, *(None if x is None else grad * x for x in ctx.saved_tensors)


class Triplet(PairLoss[Distribution]):
    """Triplet loss of the directions of the means, over all triplets of the batch: the mean of ::

        [|a - p|^2 - |a - n|^2 + margin]_+

    Parameters
    ----------
    margin
        >= 0, of squared distances, which are in [0, 4], or of the score.
    score
        A name or `Score` that takes d with itself, which in place of minus the squared distance is to be larger for p.
    only_violating
        True: the mean is over triplets whose hinge is above 0; 0, with gradient 0, where there are none.

    Raises
    ------
    ValueError
        No two labels are equal, or all are; margin below 0.

    Notes
    -----
    Memory: a few numbers for each pair of items, none for each triplet. Variances have no part in it.

    References
    ----------
    Weinberger & Saul, Distance Metric Learning for Large Margin Nearest Neighbor Classification, JMLR 2009; as the
    baseline of Warburg et al., Bayesian Triplet Loss, ICCV 2021, eq. 2.

    Examples
    --------
    Of two triplets the first holds by more than the margin, and the second lacks all of it:

    >>> import torch
    >>> from peaccel.losses import Triplet
    >>> d, labels = pe.Point(torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]])), torch.tensor([0, 0, 1])
    >>> [round(Triplet(margin=0.2, only_violating=only)(d, labels).item(), 3) for only in (False, True)]
    [0.1, 0.2]
    """

    def __init__(self, *, margin: float = 0.2, only_violating: bool = False, score: str | Score | None = None) -> None:
        super().__init__()
        self.margin, self.only_violating = checked_margin("Triplet", margin), only_violating
        self.score = None if score is None else scores.get(score)

    def of_pairs(self, pairs: ItemPairs[Distribution], seed: int | None) -> Tensor:
        dtype = pairs.d.mu.dtype
        squares = pairs.square_distances() if self.score is None else -pairs.scores(self.score, seed).double()
        if pairs.mined is not None and len(pairs.mined) == 3:
            anchors, positives, negatives = pairs.mined
            hinges = (squares[anchors, positives] - squares[anchors, negatives] + self.margin).relu()
            counted = (hinges > 0) if self.only_violating else torch.ones_like(hinges, dtype=torch.bool)
            return mean_of(hinges, counted).to(dtype)
        narrow = squares.detach().to(dtype)
        if pairs.alone and not on_gpu(narrow):  # in a compiled function, whose shapes depend on no label, an operator
            found_by: Any = violating_triplets if torch.compiler.is_compiling() else _violating
            violating = Violating(*found_by(narrow, pairs.labels, self.margin))
        else:
            violating = _by_sorting(narrow, *pairs.counts(), self.margin)
        return self._mean(squares, violating).to(dtype)

    def _mean(self, squares: Tensor, violating: Violating) -> Tensor:
        """The mean hinge."""
        hinges = torch.dot(violating.weights.double().flatten(), squares.flatten()) + self.margin * violating.found
        counted = violating.found if self.only_violating else violating.triplets
        return hinges / counted.clamp(min=1)


class TripletRegression(TripletLoss[Normal]):
    """Triplet loss with a learned noise per image, over all triplets of the batch: the mean of ::

        h / (2 s) + log(s) / 2, h = [|a - p|^2 - |a - n|^2 + margin]_+, s = (var_a + var_p + var_n) / 3

    Our reading: the paper takes the form of Kendall & Gal (2017) and says neither how three images share a variance nor
    what the hinge's distances are; no code of it is public. Where all hinges are 0 the loss falls with s without end:
    give variances a floor.

    Parameters
    ----------
    margin
        >= 0, of squared distances of directions, which are in [0, 4].

    Raises
    ------
    TypeError
        d is not an isotropic Normal.
    ValueError
        No two labels are equal, or all are; margin below 0.

    Notes
    -----
    Memory: a few numbers for each pair of one class and item.

    References
    ----------
    Taha et al., Unsupervised Data Uncertainty Learning in Visual Retrieval Systems, 2019 (arXiv:1902.02586).

    Examples
    --------
    All hinges are 0 - 2 + 3 = 1, and the loss is least where variances are as large:

    >>> import torch
    >>> from peaccel.losses import TripletRegression
    >>> loss, mu, labels = TripletRegression(margin=3.0), torch.eye(2)[[0, 0, 1]], torch.tensor([0, 0, 1])
    >>> [round(loss(pe.Normal(mu, torch.full((3,), var)), labels).item(), 2) for var in (0.5, 1.0, 2.0)]
    [0.65, 0.5, 0.6]
    """

    def __init__(self, *, margin: float = 0.2) -> None:
        super().__init__()
        self.margin = checked_margin("TripletRegression", margin)

    def inputs(self, pairs: ItemPairs[Normal]) -> tuple[Tensor, ...]:
        require_kind(self, pairs.d, ("normal_isotropic",))
        return pairs.square_distances().to(pairs.d.mu.dtype), pairs.d.var.double(), pairs.other.var.double()

    def values(self, dim: int, triplets: Triplets, *inputs: Tensor) -> tuple[Tensor, Tensor]:
        squares, var, of_other = inputs
        shared = (triplets.anchor(var) + triplets.positive(of_other) + triplets.negative(of_other)) / 3
        hinges = (triplets.near(squares) - triplets.far(squares) + self.margin).relu()
        return hinges / (2 * shared) + shared.log() / 2, triplets.counts


class BayesianTriplet(TripletLoss[Normal | VonMisesFisher]):
    """Minus the mean log probability that triplets hold, over all of the batch, without the regulariser.

    tau = |a - p|^2 - |a - n|^2 of draws is near normal, so that with its exact mean E and variance V::

        -log P(tau < -margin) = -log Phi((-margin - E) / sqrt V)
        E = |p - a|^2 - |n - a|^2 + D (v_p - v_n)
        V = 2 D (v_p^2 + v_n^2 + 2 v_a (v_p + v_n)) + 4 v_p |p - a|^2 + 4 v_n |n - a|^2 + 4 v_a |p - n|^2

    of means and variances. These are numbers of pairs of items, made for the whole batch by its matrices. Variances per
    dimension stand inside the sums, which are products of matrices too. KL to the prior, which the paper adds, is
    `pe.kl`: the method weighs it.

    Parameters
    ----------
    margin
        Margin of squared distances of draws.
    only_violating
        True: the mean is over triplets whose means violate the margin, |a - p|^2 - |a - n|^2 > -margin, as in the
        paper's training; 0, with gradient 0, where there are none. An untrained network collapses by it, see Notes.
    match_moments
        For von Mises-Fisher. False: mu and 1 / kappa stand for a normal's mean and variance, as in the paper. True: the
        moments of its draws.

    Raises
    ------
    TypeError
        d is neither Normal nor VonMisesFisher; match_moments of Normal.
    ValueError
        No two labels are equal, or all are.

    Notes
    -----
    In float64 within; of each triplet one variance at least must be above 0, and kappa is taken for at least 1e-30.
    With the listing's polynomial of means, float32 loses all digits of V where variances are small; its log(Phi + 1e-8)
    has no gradient beyond 5.6 standard deviations. `pe.triplet_probability` is the same of listed triplets.

    With only_violating no triplet that holds is there to lose. Of one variance for all, each that counts has P < 1/2,
    and P rises to 1/2, the loss falls to log 2, as distances shrink beside variances, until all means are one point.
    There the gradient by the means is 0, and only variances are left to learn. One seed of numbers of digits (``peaccel
    train bayesian_triplet --quick --schedule.epochs 40``) has Recall@1 54 % and mean cosine 0.47 with all triplets, 11
    % and 0.97 with violating ones, and with the violating ones of ``--negatives 5`` 2.5 %, which is chance, and 0.998;
    with all of these 51 %. Leave it False but to repeat the paper's training.

    Memory: a few float64 numbers for each pair of one class and item; for variances per dimension also D for each pair
    of one class.

    References
    ----------
    Warburg et al., Bayesian Triplet Loss, ICCV 2021, eqs. 3 and 11, supplement 17, 18 and 26. Eq. 12 has a wrong sign,
    and eq. 8 is not divided by the standard deviation.

    Examples
    --------
    Two items of a class at one place, one of another class: where variances are small the triplets hold for sure, where
    they are large by chance, with loss log 2:

    >>> import torch
    >>> from peaccel.losses import BayesianTriplet
    >>> loss, mu, labels = BayesianTriplet(), torch.eye(2)[[0, 0, 1]], torch.tensor([0, 0, 1])
    >>> [round(loss(pe.Normal(mu, torch.full((3,), var)), labels).item(), 2) for var in (0.01, 1.0, 100.0)]
    [0.0, 0.47, 0.69]
    """

    def __init__(self, *, margin: float = 0.0, only_violating: bool = False, match_moments: bool = False) -> None:
        super().__init__()
        self.margin, self.only_violating, self.match_moments = margin, only_violating, match_moments

    def inputs(self, pairs: ItemPairs[Any]) -> tuple[Tensor, ...]:
        require_kind(self, pairs.d, ("vmf",) if self.match_moments else ("normal_isotropic", "normal_diagonal", "vmf"))
        d = pairs.d.to(torch.float64)
        other = d if pairs.reference is None else pairs.other.to(torch.float64)
        squares = _squares(d, other)
        if d.kind == "normal_diagonal":
            return squares, *_of_diagonal(d, other, squares)
        between = squares if other is d else _squares(other, other)
        if self.match_moments:
            return squares, between, *spread_on_sphere(d.dim, d.kappa), *spread_on_sphere(d.dim, other.kappa)
        return squares, *_of_isotropic(d.dim, _variances(d), _variances(other), squares), between, _variances(d)

    def values(self, dim: int, triplets: Triplets, *inputs: Tensor) -> tuple[Tensor, Tensor]:
        squares = inputs[0]
        if self.match_moments:
            mean, var = _on_sphere(dim, triplets, *inputs)
        else:
            _, of_mean, of_variance, *of_three = inputs
            mean = triplets.near(of_mean) - triplets.far(of_mean)
            var = _with_three(triplets, triplets.near(of_variance) + triplets.far(of_variance), *of_three)
        log_probability: Tensor = special.log_ndtr((-self.margin - mean) * var.rsqrt())
        counts = triplets.counts
        if self.only_violating:
            counts = counts * (triplets.near(squares) - triplets.far(squares) > -self.margin)
        return -log_probability, counts


def checked_margin(owner: str, margin: float) -> float:
    if not margin >= 0:
        raise ValueError(f"{owner}: margin is {margin}, expected a number of at least 0")
    return margin


def _squares(d: Distribution, other: Distribution) -> Tensor:
    """Squared distances of the means [N, M], by differences: those of near duplicates keep their digits."""
    means = Point(d.mu)
    squares: Tensor = -retrieval.pairwise(means, means if other is d else Point(other.mu), "neg_sq_l2")
    return squares


BLOCK = 1 << 18
"""How many triplets are compared together: as many numbers as stay in a core's cache."""


SORTED = 64
"""How many positives anchors have on average from where on their distances are sorted rather than compared."""


class Violating(NamedTuple):
    """The triplets of a batch whose hinge is above 0."""

    weights: Tensor
    """[N, N]: how many of them a pair is the anchor and positive of, or minus how many the anchor and negative."""
    found: Tensor
    """[]: how many there are."""
    triplets: Tensor
    """[]: how many triplets the batch has."""


def _violating(squares: Tensor, labels: Tensor, margin: float) -> Violating:
    """The triplets with near = squares[anchor, positive] + margin > far = squares[anchor, negative].

    The sum of their hinges is that of weights * squares, and the margin for each: no number of a triplet is kept.

    Raises
    ------
    ValueError
        No two labels are equal, or all are.
    """
    anchors, positives = pairs_of_classes("Triplet", labels)
    different = labels[:, None] != labels
    if len(anchors) > SORTED * len(labels):
        return _by_sorting(squares, (~different).fill_diagonal_(False), different, margin)
    near, far = squares + margin, squares.masked_fill(~different, math.inf)
    weights, of_pairs = torch.zeros_like(far), []
    thresholds, rows = near[anchors, positives, None], max(1, BLOCK // len(labels))
    for block, threshold in zip(torch.split(anchors, rows), torch.split(thresholds, rows), strict=True):
        violates = far.index_select(0, block).lt_(threshold)
        of_pairs.append(violates.sum(1))
        weights.index_add_(0, block, violates, alpha=-1)
    counts = torch.cat(of_pairs)
    weights[anchors, positives] = counts
    positives_of = torch.bincount(anchors)
    triplets = (positives_of * (len(labels) - 1 - positives_of)).sum()
    return Violating(weights, counts.sum(dtype=torch.float64), triplets)


def _by_sorting(squares: Tensor, same: Tensor, different: Tensor, margin: float) -> Violating:
    """The violating triplets of an anchor's pairs of one class [N, M] with those of two, as often as both count."""
    near, far = (squares + margin).masked_fill(same == 0, -math.inf), squares.masked_fill(different == 0, math.inf)
    near_in, far_in = _below(far, different, near), _below(-near, same, -far)
    if same.dtype != torch.bool:
        near_in, far_in = same * near_in, different * far_in
    triplets = (same.sum(1) * different.sum(1)).sum()
    return Violating((near_in - far_in).to(far.dtype), near_in.sum(dtype=torch.float64), triplets)


def _below(values: Tensor, counts: Tensor, limits: Tensor) -> Tensor:
    """How many values of a row lie below each of its limits [N, M], each as often as it counts; the others are inf."""
    ordered, order = values.sort(1)
    below = torch.searchsorted(ordered, limits)
    if counts.dtype == torch.bool:
        return below
    totals = pad(counts.double().gather(1, order).cumsum(1), (1, 0))
    return totals.gather(1, below)


def _shapes(squares: Tensor, labels: Tensor, margin: float) -> Violating:
    found, triplets = (squares.new_empty((), dtype=dtype) for dtype in (torch.float64, torch.int64))
    return Violating(torch.empty_like(squares), found, triplets)


violating_triplets = ops.define(
    "violating_triplets",
    "Tensor squares, Tensor labels, float margin",
    "(Tensor, Tensor, Tensor)",
    _violating,
    _shapes,
)


def _variances(d: Any) -> Tensor:
    var: Tensor = 1 / d.kappa.clamp(min=1e-30) if d.kind == "vmf" else d.var
    return var


def _of_isotropic(dim: int, var: Tensor, of_other: Tensor, squares: Tensor) -> tuple[Tensor, Tensor]:
    """Terms of each pair [N, M] in the mean and the variance of tau, from variances [N] and [M]: all but that of
    `_with_three` are of an anchor's pairs with p or with n."""
    return squares + dim * of_other, of_other * (2 * dim * (of_other + 2 * var[:, None]) + 4 * squares)


def _of_diagonal(d: Any, other: Any, squares: Tensor) -> tuple[Tensor, ...]:
    """`_of_isotropic` from variances [N, D] and [M, D], and what `_with_three` takes."""
    centre, (v, w) = d.mu.detach().mean(0), (d.var, other.var)  # centred, since less cancels near 0
    x, y = d.mu - centre, other.mu - centre
    # weighted[i, j] = sum of w_j (x_i - y_j)^2
    weighted = (w * y**2).sum(1) - 2 * x @ (w * y).T + x**2 @ w.T
    return squares + w.sum(1), 2 * (w * w).sum(1) + 4 * (v @ w.T + weighted), v @ (y**2).T, v, y


def _with_three(triplets: Triplets, of_pairs: Tensor, between: Tensor, var: Tensor, *mu: Tensor) -> Tensor:
    """The variance of tau: that of its pairs, and 4 times the sum of v_a (p - n)^2, which has three items in it.

    Of variances per dimension, with means mu, only pairs are multiplied by items.
    """
    v_a = triplets.anchor(var)
    if not mu:
        return torch.addcmul(of_pairs, 4 * v_a, triplets.apart(between))
    p, (n,) = triplets.positive(*mu), mu
    weighted = v_a * p
    products = weighted @ n.T if triplets.negatives is None else (weighted * n[triplets.negatives, None]).sum(-1)
    return of_pairs + 4 * ((weighted * p).sum(-1) - 2 * products.squeeze(-2) + triplets.far(between))


def _on_sphere(
    dim: int, triplets: Triplets, squares: Tensor, between: Tensor, *spreads: Tensor
) -> tuple[Tensor, Tensor]:
    """Mean and variance of tau, for draws of von Mises-Fisher distributions."""
    of_items, of_others = spreads[:3], spreads[3:]
    a = Spread(*map(triplets.anchor, of_items))
    p, n = (Spread(*map(of, of_others)) for of in (triplets.positive, triplets.negative))
    return moments_on_sphere(dim, a, p, n, triplets.near(squares), triplets.far(squares), triplets.apart(between))
