"""Regression to class directions that an earlier stage has learned."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from peaccel import special
from peaccel.distributions import Normal, VonMisesFisher
from peaccel.distributions.log_prob import log_prob
from peaccel.losses.base import Loss, require_kind
from peaccel.losses.margin import require_labels

__all__ = ["ClassLikelihood"]

PUBLISHED_FLOOR = 1e-6


class ClassLikelihood(Loss[Normal | VonMisesFisher]):
    """Minus the mean log density of the items' distributions at the directions of their classes: DUL-reg and SCF.

    ``-log p(w_y)``, w the unit rows of weight, with all constants. Of Normal (DUL-reg) it is least at
    ``var = |w_y - mu|^2 / D`` (isotropic), of VonMisesFisher (SCF) where ``A_D(kappa) = mu.w_y``.

    Parameters
    ----------
    weight
        [C, D], the classes' directions, of any length, as an earlier stage has them. A parameter is neither trained nor
        copied, so that this loss may be made before that stage.
    variant
        "exact", or for VonMisesFisher "published", SCF's own code: ``log(1e-6 + I_v(kappa) exp(-kappa))`` and
        ``log(1e-6 + kappa)`` in its log density. At D = 512 the first is its floor alone up to kappa = 3700, which
        moves the optimum: to kappa 850 in place of 702 at mu.w = 0.7, 283 in place of 52 at 0.1. SCF's constant
        D log 64 is left out.

    Raises
    ------
    TypeError
        d is of another kind; with "published", other than VonMisesFisher (what is published for Normal differs by
        constants).
    ValueError
        weight is no matrix, d is of another dimension; on the CPU also labels beyond 0 .. C-1.

    Notes
    -----
    Sees the label's row of weight only: [N, D] of memory. What is one number an item is of float64 in between. var > 0.

    References
    ----------
    Chang et al., Data Uncertainty Learning in Face Recognition, CVPR 2020 (DUL-reg); Li et al., Spherical Confidence
    Learning for Face Recognition, CVPR 2021 (SCF); "Probabilistic Embeddings Revisited", eq. 11.

    Examples
    --------
    The cosine of an item with its class is 0.8. The loss is least near kappa = 5, where that is A_3(kappa):

    >>> import torch
    >>> from peaccel.losses import ClassLikelihood
    >>> loss, mu = ClassLikelihood(torch.eye(3)), torch.tensor([[0.6, 0.8, 0.0]])
    >>> items = [pe.VonMisesFisher(mu, torch.tensor([kappa])) for kappa in (1.0, 5.0, 25.0)]
    >>> [round(loss(d, torch.tensor([1])).item(), 2) for d in items]
    [1.89, 1.23, 3.62]
    """

    def __init__(self, weight: Tensor, *, variant: Literal["exact", "published"] = "exact") -> None:
        super().__init__()
        if weight.ndim != 2:
            raise ValueError(f"ClassLikelihood: weight has shape {tuple(weight.shape)}, expected (C, D)")
        if variant not in ("exact", "published"):
            raise ValueError(f"ClassLikelihood: variant is {variant!r}, expected 'exact' or 'published'")
        self.weight = weight if isinstance(weight, nn.Parameter) else nn.Parameter(weight, requires_grad=False)
        self.variant = variant

    def loss(self, d: Normal | VonMisesFisher, labels: Tensor, seed: int | None) -> Tensor:
        normals = ["normal_isotropic", "normal_diagonal"]
        require_kind(self, d, ["vmf"] if self.variant == "published" else [*normals, "vmf"])
        classes, dim = self.weight.shape
        if d.dim != dim:
            raise ValueError(f"ClassLikelihood: d has dimension {d.dim}, expected {dim}, that of weight")
        require_labels(self, labels, classes)
        own = normalize(self.weight.detach()[labels].to(d.mu.dtype))
        if isinstance(d, VonMisesFisher) and self.variant == "published":
            log_density = published_log_density(d, own)
        else:
            log_density = log_prob(d, own)
        return -log_density.mean()


def published_log_density(d: VonMisesFisher, z: Tensor) -> Tensor:
    """SCF's log density of each item at unit rows z [N, D]."""
    kappa, v = d.kappa.double(), d.dim / 2 - 1
    # Where I_v underflows, the slope of its logarithm is infinite, and is multiplied by a share of 0.
    bessel = special.log_ive(v, kappa.clamp(min=PUBLISHED_FLOOR))
    floored = torch.logaddexp(bessel, kappa.new_tensor(math.log(PUBLISHED_FLOOR)))
    log_norm = v * (PUBLISHED_FLOOR + kappa).log() - floored - kappa - d.dim / 2 * math.log(2 * math.pi)
    log_density: Tensor = log_norm + kappa * (d.mu * z).sum(1)
    return log_density.to(d.mu.dtype)
