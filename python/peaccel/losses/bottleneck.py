"""The divergence from a prior: the term of an information bottleneck."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from peaccel import special
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
    variant
        "exact", or for VonMisesFisher "published": ``kappa + log C_D(kappa) - log C_D(1e-6)``, which is no divergence:
        with kappa in place of ``kappa A_D(kappa)`` it rises with slope 1 from kappa = 0, where a divergence is flat.

    Raises
    ------
    TypeError
        d is of another kind; with "published", other than VonMisesFisher.
    ValueError
        prior_var is not positive, or an unknown variant.

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

    def __init__(self, prior_var: float = 1.0, *, variant: Literal["exact", "published"] = "exact") -> None:
        super().__init__()
        if not prior_var > 0:
            raise ValueError(f"PriorDivergence: prior_var is {prior_var}, expected a number above 0")
        if variant not in ("exact", "published"):
            raise ValueError(f"PriorDivergence: variant is {variant!r}, expected 'exact' or 'published'")
        self.prior_var, self.variant = prior_var, variant

    def loss(self, d: Normal | VonMisesFisher, labels: Tensor, seed: int | None) -> Tensor:
        normals = ["normal_isotropic", "normal_diagonal"]
        require_kind(self, d, ["vmf"] if self.variant == "published" else [*normals, "vmf"])
        if isinstance(d, Normal):
            prior: Normal | VonMisesFisher = Normal(torch.zeros_like(d.mu), d.mu.new_full((len(d),), self.prior_var))
        elif self.variant == "exact":
            prior = VonMisesFisher(d.mu.detach(), torch.zeros_like(d.kappa))
        else:
            kappa = d.kappa.double()
            log_norm = special.vmf_log_norm(d.dim, torch.stack([kappa, torch.full_like(kappa, 1e-6)]))
            value: Tensor = (kappa + log_norm[0] - log_norm[1]).mean()
            return value.to(d.mu.dtype)
        divergences: Tensor = kl(d, prior)
        return divergences.mean()
