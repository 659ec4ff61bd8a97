"""The code of Spherical Confidence Learning for Face Recognition (Li et al., CVPR 2021)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from peaccel import special
from peaccel.distributions import Normal, VonMisesFisher
from peaccel.losses import regression
from peaccel.methods import scf
from peaccel.published import built_of
from peaccel.published.revisited import LinearUncertaintyHead

__all__ = ["FlooredClassLikelihood"]

FLOOR = 1e-6


class FlooredClassLikelihood(regression.ClassLikelihood):
    """`peaccel.losses.ClassLikelihood`, of VonMisesFisher with ``log(1e-6 + I_v(kappa) exp(-kappa))``.

    And with ``log(1e-6 + kappa)``. At D = 512 the first is its floor alone up to kappa = 3700, which moves the optimum:
    to kappa 850 in place of 702 at a cosine of 0.7, to 283 in place of 52 at 0.1. The code's constant D log 64 is left
    out.

    Examples
    --------
    An item of cosine 0.5 with its class, whose best kappa in 512 dimensions is 341: the code prefers 509.

    >>> import torch
    >>> from peaccel import losses
    >>> from peaccel.published import spherical_confidence
    >>> weight, labels = torch.eye(512)[:1], torch.tensor([0])
    >>> mu = 0.5 * torch.eye(512)[:1] + 0.75**0.5 * torch.eye(512)[1:2]
    >>> for make in (losses.ClassLikelihood, spherical_confidence.FlooredClassLikelihood):
    ...     at = [make(weight)(pe.VonMisesFisher(mu, torch.tensor([kappa])), labels) for kappa in (341.0, 509.0)]
    ...     print(bool(at[0] < at[1]))
    True
    False
    """

    def log_density(self, d: Normal | VonMisesFisher, z: Tensor) -> Tensor:
        """Log density of each item at its row of z [N, D]."""
        if not isinstance(d, VonMisesFisher):
            return super().log_density(d, z)
        kappa, v = d.kappa.double(), d.dim / 2 - 1
        # Where I_v underflows, the slope of its logarithm is infinite, and is multiplied by a share of 0.
        bessel = special.log_ive(v, kappa.clamp(min=FLOOR))
        floored = torch.logaddexp(bessel, torch.full_like(kappa, math.log(FLOOR)))
        log_norm = v * (FLOOR + kappa).log() - floored - kappa - d.dim / 2 * math.log(2 * math.pi)
        log_density: Tensor = log_norm + kappa * (d.mu * z).sum(1)
        return log_density.to(d.mu.dtype)


METHODS = {"scf": built_of(scf.METHOD, uncertainty=LinearUncertaintyHead, likelihood=FlooredClassLikelihood)}
"""SCF's head has its ReLUs; the linear one is that of "Revisited", as whose row it is trained."""
