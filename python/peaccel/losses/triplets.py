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
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import embedding

from peaccel import scores, special
from peaccel.distributions import Distribution, Normal, VonMisesFisher
from peaccel.distributions.triplet_probability import Spread, moments_on_sphere, spread_on_sphere
from peaccel.losses._batch import (
    all_different,
    all_equal,
    listed,
    mean_of,
    on_gpu,
    require_pairs,
    same_class_pairs,
    square_distances,
)
from peaccel.losses._between import Chosen, PairLoss, scored
from peaccel.losses._directions import directions
from peaccel.losses.base import Loss, require_kind
from peaccel.scores import Score

__all__ = ["BayesianTriplet", "Triplet", "TripletRegression"]


class Triplets(NamedTuple):
    """All triplets of a batch: M pairs of one class, or where they may not be listed all N x N, with each item.

    The gradient of an embedding sorts no rows, as that of an index does on a GPU.
    """

    pairs: tuple[Tensor, Tensor] | None
    """[M], rows of the anchors and of the positives; None of all pairs."""
    negative: Tensor
    """[M, N] or [N, N, N] bool: which items are of another class, beside a pair of one class."""

    def near(self, x: Tensor) -> Tensor:
        """The entries [M, 1] or [N, N, 1] of a matrix [N, N] for anchor and positive."""
        return x[..., None] if self.pairs is None else x[*self.pairs, None]

    def far(self, x: Tensor) -> Tensor:
        """The entries [M, N] or [N, 1, N] of a matrix [N, N] for anchor and negative."""
        return x[:, None] if self.pairs is None else embedding(self.pairs[0], x)

    def apart(self, x: Tensor) -> Tensor:
        """The entries [M, N] or [N, N] of a matrix [N, N] for positive and negative."""
        return x if self.pairs is None else embedding(self.pairs[1], x)

    def anchor(self, x: Tensor) -> Tensor:
        """Numbers or rows of the anchors, [M, 1] or [N, 1, 1] of them."""
        return x[:, None, None] if self.pairs is None else x[self.pairs[0], None]

    def positive(self, x: Tensor) -> Tensor:
        """Numbers or rows of the positives, [M, 1] or [N, 1] of them."""
        return x[:, None] if self.pairs is None else x[self.pairs[1], None]


def triplets_of(owner: str, labels: Tensor) -> Triplets:
    """The triplets of a batch.

    Raises
    ------
    ValueError
        There are none.
    """
    same = same_class_pairs(labels)
    different, pairs = labels[:, None] != labels, listed(owner, same)
    return Triplets(pairs, same[..., None] & different[:, None] if pairs is None else different[pairs[0]])


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

    def loss(self, d: Distribution, labels: Tensor, seed: int | None) -> Tensor:
        if self.score is not None:
            return self.all_pairs(d, labels, seed)
        squares = _squares_of_directions(d)
        if on_gpu(labels):
            found_by: Any = _violating_by_sorting
        else:  # in a compiled function, whose shapes cannot depend on labels, it is one operator
            found_by = violating_triplets if torch.compiler.is_compiling() else _violating
        violating = Violating(*found_by(squares.detach().to(d.mu.dtype), labels, self.margin))
        return self._mean(squares, violating).to(d.mu.dtype)

    def between(self, d: Distribution, other: Distribution, chosen: Chosen, seed: int | None) -> Tensor:
        squares = _squares_between(d, other) if self.score is None else -scored(d, other, self.score, seed).double()
        if chosen.triplets is not None:
            anchors, positives, negatives = chosen.triplets
            hinges = (squares[anchors, positives] - squares[anchors, negatives] + self.margin).relu()
            counted = (hinges > 0) if self.only_violating else torch.ones_like(hinges, dtype=torch.bool)
            return mean_of(hinges, counted).to(d.mu.dtype)
        same, different = (x if x.dtype == torch.bool else x > 0 for x in (chosen.same, chosen.different))
        violating = _by_sorting(squares.detach().to(d.mu.dtype), same, different, self.margin)
        return self._mean(squares, violating).to(d.mu.dtype)

    def _mean(self, squares: Tensor, violating: Violating) -> Tensor:
        """The mean hinge."""
        hinges = torch.dot(violating.weights.double().flatten(), squares.flatten()) + self.margin * violating.found
        counted = violating.found if self.only_violating else violating.triplets
        return hinges / counted.clamp(min=1)


class TripletRegression(Loss[Normal]):
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

    across = True

    def __init__(self, *, margin: float = 0.2) -> None:
        super().__init__()
        self.margin = checked_margin("TripletRegression", margin)

    def loss(self, d: Normal, labels: Tensor, seed: int | None) -> Tensor:
        require_kind(self, d, ("normal_isotropic",))
        triplets, var = triplets_of("TripletRegression", labels), d.var.double()
        shared = (triplets.anchor(var) + triplets.positive(var) + var) / 3
        values = _hinges(d, triplets, self.margin) / (2 * shared) + shared.log() / 2
        return mean_of(values, triplets.negative).to(d.mu.dtype)


class BayesianTriplet(Loss[Normal | VonMisesFisher]):
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
        True: the mean is over triplets of which the means do not hold, |a - p|^2 - |a - n|^2 > -margin, as in the
        paper's training; 0, with gradient 0, where there are none. An untrained network collapses by it, see Notes.
    match_moments
        For von Mises-Fisher. False: mu and 1 / kappa stand for a normal's mean and variance, as in the paper. True: the
        moments are those of its draws.

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
    There the gradient by the means is 0, and what is left to learn is variances. One seed of numbers of digits
    (``peaccel train bayesian_triplet --quick --schedule.epochs 40``) has Recall@1 54 % and mean cosine 0.47 with all
    triplets, 11 % and 0.97 with violating ones, and with those of ``--negatives 5`` 2.5 %, which is chance, and 0.998;
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

    across = True

    def __init__(self, *, margin: float = 0.0, only_violating: bool = False, match_moments: bool = False) -> None:
        super().__init__()
        self.margin, self.only_violating, self.match_moments = margin, only_violating, match_moments

    def loss(self, d: Any, labels: Tensor, seed: int | None) -> Tensor:
        require_kind(self, d, ("vmf",) if self.match_moments else ("normal_isotropic", "normal_diagonal", "vmf"))
        triplets = triplets_of(type(self).__name__, labels)
        wide = d.to(torch.float64)
        squares = square_distances(wide)
        if self.match_moments:
            mean, var = _of_vmf(wide, squares, triplets)
        elif d.kind == "normal_diagonal":
            mean, var = _of_diagonal(wide, squares, triplets)
        else:
            mean, var = _of_isotropic(wide.dim, _variances(wide), squares, triplets)
        log_probability: Tensor = special.log_ndtr((-self.margin - mean) * var.rsqrt())
        counted = triplets.negative
        if self.only_violating:
            counted = counted & (triplets.near(squares) - triplets.far(squares) > -self.margin)
        return -mean_of(log_probability, counted).to(d.mu.dtype)


def checked_margin(owner: str, margin: float) -> float:
    if not margin >= 0:
        raise ValueError(f"{owner}: margin is {margin}, expected a number of at least 0")
    return margin


def _squares_of_directions(d: Distribution) -> Tensor:
    """Squared distances of the directions of the means [N, N]: float64, in which products err by some 1e-16, so that
    in float32 near duplicates keep their digits."""
    unit = directions(d.mu.double())
    lengths = unit.detach().square().sum(1)  # 1, or 0 of a mean 0, either way without gradient
    squares: Tensor = torch.addmm(lengths, unit, unit.T, alpha=-2) + lengths[:, None]
    return squares


def _squares_between(d: Distribution, other: Distribution) -> Tensor:
    """`_squares_of_directions` of two sides [N, M]."""
    a, b = (directions(side.mu.double()) for side in (d, other))
    lengths = [x.detach().square().sum(1) for x in (a, b)]
    squares: Tensor = torch.addmm(lengths[1], a, b.T, alpha=-2) + lengths[0][:, None]
    return squares


BLOCK = 1 << 18
"""How many triplets are compared together: as many numbers as stay in a core's cache."""


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
    near, far, same = _compared(squares, labels, margin)
    anchors, positives = same.nonzero(as_tuple=True)
    if not len(anchors):
        raise all_different("Triplet")
    if len(anchors) == len(labels) * (len(labels) - 1):
        raise all_equal("Triplet")
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


def _violating_by_sorting(squares: Tensor, labels: Tensor, margin: float) -> Violating:
    """`_violating` in shapes that do not depend on labels."""
    same = same_class_pairs(labels)
    require_pairs("Triplet", same)
    return _by_sorting(squares, same, labels[:, None] != labels, margin)


def _by_sorting(squares: Tensor, same: Tensor, different: Tensor, margin: float) -> Violating:
    """The violating triplets of an anchor's pairs of one class [N, M] with those of two."""
    near, far = (squares + margin).masked_fill(~same, -math.inf), squares.masked_fill(~different, math.inf)
    near_in = torch.searchsorted(far.sort(1).values, near)
    far_in = far.shape[1] - torch.searchsorted(near.sort(1).values, far, right=True)
    triplets = (same.sum(1) * different.sum(1)).sum()
    return Violating((near_in - far_in).to(far.dtype), near_in.sum(dtype=torch.float64), triplets)


def _compared(squares: Tensor, labels: Tensor, margin: float) -> tuple[Tensor, Tensor, Tensor]:
    """`near` of all pairs, `far`, infinite for those of one class, and which pairs are an anchor and a positive."""
    same = labels[:, None] == labels
    near, far = squares + margin, squares.masked_fill(same, math.inf)
    return near, far, same.fill_diagonal_(False)


violating_triplets = torch.library.custom_op(
    "peaccel::violating_triplets",
    _violating,
    mutates_args=(),
    device_types="cpu",
    schema="(Tensor squares, Tensor labels, float margin) -> (Tensor, Tensor, Tensor)",
)


@violating_triplets.register_fake
def _shapes(squares: Tensor, labels: Tensor, margin: float) -> Violating:
    found, triplets = (squares.new_empty((), dtype=dtype) for dtype in (torch.float64, torch.int64))
    return Violating(torch.empty_like(squares), found, triplets)


def _hinges(d: Distribution, triplets: Triplets, margin: float) -> Tensor:
    """The hinges of all triplets in d's dtype."""
    squares = _squares_of_directions(d).to(d.mu.dtype)
    return (triplets.near(squares) - triplets.far(squares) + margin).relu()


def _variances(d: Any) -> Tensor:
    var: Tensor = 1 / d.kappa.clamp(min=1e-30) if d.kind == "vmf" else d.var
    return var


def _of_isotropic(dim: int, var: Tensor, squares: Tensor, triplets: Triplets) -> tuple[Tensor, Tensor]:
    """Mean and variance of tau, from variances [N]: all but the last term are of an anchor's pairs with p or with n."""
    of_mean = squares + dim * var
    of_variance = var * (2 * dim * (var + 2 * var[:, None]) + 4 * squares)
    near, far = triplets.near(of_variance), triplets.far(of_variance)
    of_three = torch.addcmul(near + far, 4 * triplets.anchor(var), triplets.apart(squares))
    return triplets.near(of_mean) - triplets.far(of_mean), of_three


def _of_diagonal(d: Any, squares: Tensor, triplets: Triplets) -> tuple[Tensor, Tensor]:
    """Mean and variance of tau, from variances [N, D], as `_of_isotropic`."""
    mu, var = d.mu - d.mu.detach().mean(0), d.var  # centred, since less cancels near 0
    of_mean, products, spread = squares + var.sum(1), var @ var.T, var @ (mu**2).T
    # weighted[i, j] = sum of v_j (mu_i - mu_j)^2
    weighted = (var * mu**2).sum(1) - 2 * mu @ (var * mu).T + spread.T
    of_variance = 2 * products.diagonal() + 4 * (products + weighted)
    # The sum of v_a (p - n)^2 has three items in it, but only pairs are multiplied by items.
    v_a, mu_p = triplets.anchor(var), triplets.positive(mu)
    apart = (v_a * mu_p**2).sum(-1) - 2 * ((v_a * mu_p) @ mu.T).squeeze(-2) + triplets.far(spread)
    near, far = triplets.near(of_variance), triplets.far(of_variance)
    return triplets.near(of_mean) - triplets.far(of_mean), near + far + 4 * apart


def _of_vmf(d: Any, squares: Tensor, triplets: Triplets) -> tuple[Tensor, Tensor]:
    """Mean and variance of tau, for draws of von Mises-Fisher distributions."""
    spread = spread_on_sphere(d.dim, d.kappa)
    a, p = (Spread(*map(of, spread)) for of in (triplets.anchor, triplets.positive))
    near, far, apart = triplets.near(squares), triplets.far(squares), triplets.apart(squares)
    return moments_on_sphere(d.dim, a, p, spread, near, far, apart)
