"""Regression to class directions that an earlier stage has learned."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn.functional import normalize

from peaccel.distributions import Normal, VonMisesFisher
from peaccel.distributions.log_prob import log_prob
from peaccel.losses._batch import require_labels
from peaccel.losses.base import Loss, require_kind

__all__ = ["ClassLikelihood"]


class ClassLikelihood(Loss[Normal | VonMisesFisher]):
    """Minus the mean log density of the items' distributions at the directions of their classes: DUL-reg and SCF.

    ``-log p(w_y)``, w the unit rows of weight, with all constants. Of Normal (DUL-reg) it is least at
    ``var = |w_y - mu|^2 / D`` (isotropic), of VonMisesFisher (SCF) where ``A_D(kappa) = mu.w_y``.

    Parameters
    ----------
    weight
        [C, D], the classes' directions, of any length, as an earlier stage has them. A parameter is neither trained nor
        copied, so that this loss may be made before that stage.

    Raises
    ------
    TypeError
        d is of another kind.
    ValueError
        weight is no matrix, d is of another dimension; labels beyond 0 .. C-1.

    Notes
    -----
    Sees the label's row of weight only: [N, D] of memory. Sums over dimensions are of float64. var > 0.

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

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        if weight.ndim != 2:
            raise ValueError(f"{type(self).__name__}: weight has shape {tuple(weight.shape)}, expected (C, D)")
        self.weight = weight if isinstance(weight, nn.Parameter) else nn.Parameter(weight, requires_grad=False)

    def loss(self, d: Normal | VonMisesFisher, labels: Tensor, seed: int | None) -> Tensor:
        require_kind(self, d, ("normal_isotropic", "normal_diagonal", "vmf"))
        classes, dim = self.weight.shape
        if d.dim != dim:
            raise ValueError(f"{type(self).__name__}: d has dimension {d.dim}, expected {dim}, that of weight")
        require_labels(self, labels, classes)
        return -self.log_density(d, normalize(self.weight.detach()[labels].to(d.mu.dtype))).mean()

    def log_density(self, d: Normal | VonMisesFisher, z: Tensor) -> Tensor:
        """Log density of each item at its row of z [N, D]."""
        log_density: Tensor = log_prob(d, z)
        return log_density
