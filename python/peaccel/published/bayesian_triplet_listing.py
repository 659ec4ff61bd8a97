"""The listing of Bayesian Triplet Loss (Warburg et al., ICCV 2021), in its supplement."""

from __future__ import annotations

from peaccel.losses import triplets
from peaccel.methods import bayesian_triplet
from peaccel.published import built_of

__all__ = ["FlippedBayesianTriplet"]


class FlippedBayesianTriplet(triplets.BayesianTriplet):
    """`peaccel.losses.BayesianTriplet` with the listing's sign of margin, P(tau < +margin).

    By it a larger margin makes the constraint easier, unlike in eq. 3.

    Examples
    --------
    >>> import torch
    >>> from peaccel import losses
    >>> from peaccel.published.bayesian_triplet_listing import FlippedBayesianTriplet
    >>> d, labels = pe.Normal(torch.eye(2)[[0, 0, 1]], torch.full((3,), 0.1)), torch.tensor([0, 0, 1])
    >>> for make in (losses.BayesianTriplet, FlippedBayesianTriplet):
    ...     print([round(make(margin=margin)(d, labels).item(), 2) for margin in (0.0, 1.0)])
    [0.07, 0.26]
    [0.07, 0.01]
    """

    def __init__(self, *, margin: float = 0.0, only_violating: bool = False, match_moments: bool = False) -> None:
        super().__init__(margin=-margin, only_violating=only_violating, match_moments=match_moments)


METHODS = {"bayesian_triplet": built_of(bayesian_triplet.METHOD, loss=FlippedBayesianTriplet)}
