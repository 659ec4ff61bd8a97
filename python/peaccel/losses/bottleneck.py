"""The divergence from a prior: the term of an information bottleneck."""

from __future__ import annotations

import torch
from torch import Tensor

from peaccel.distributions import Normal, VonMisesFisher
from peaccel.distributions.kl import kl
from peaccel.losses.base import Loss, require_kind

__all__ = ["PriorDivergence"]


class PriorDivergence(Loss[Normal | VonMisesFisher]):
    """Mean Kullback-Leibler divergence of the items' distributions from a prior.

    Of Normal the prior is ``N(0, prior_var I)``, of VonMisesFisher the uniform distribution on the sphere:
    ``kappa A_D(kappa) + log C_D(kappa) + log |S^(D-1)|``.

    Parameters
    ----------
    prior_var
        > 0; VonMisesFisher has none.

    Raises
    ------
    TypeError
        d is of another kind.
    ValueError
        prior_var is not positive.

    Notes
    -----
    In nats, summed over dimensions; labels are not looked at.

    References
    ----------
    Oh et al., Modeling Uncertainty with Hedged Instance Embedding, ICLR 2019, sec. 3.3; "Probabilistic Embeddings
    Revisited", eq. 10.

    Examples
    --------
    The first item is the prior itself, with divergence 0; the mean of the second is 2 away, which is 2^2 / 2:

    >>> import torch
    >>> from peaccel.losses import PriorDivergence
    >>> d = pe.Normal(torch.tensor([[0.0, 0.0], [2.0, 0.0]]), torch.ones(2))
    >>> PriorDivergence(prior_var=1.0)(d, labels=torch.tensor([0, 1]))
    tensor(1.)
    """

    def __init__(self, prior_var: float = 1.0) -> None:
        super().__init__()
        if not prior_var > 0:
            raise ValueError(f"PriorDivergence: prior_var is {prior_var}, expected a number above 0")
        self.prior_var = prior_var

    def loss(self, d: Normal | VonMisesFisher, labels: Tensor, seed: int | None) -> Tensor:
        require_kind(self, d, ("normal_isotropic", "normal_diagonal", "vmf"))
        if isinstance(d, Normal):
            prior: Normal | VonMisesFisher = Normal(torch.zeros_like(d.mu), d.mu.new_full((len(d),), self.prior_var))
        else:
            prior = VonMisesFisher(d.mu.detach(), torch.zeros_like(d.kappa))
        divergences: Tensor = kl(d, prior)
        return divergences.mean()
