"""The code of Probabilistic Embeddings Revisited (Karpukhin et al., 2022)."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from peaccel import scores, special
from peaccel.distributions import Normal, VonMisesFisher
from peaccel.distributions.checks import EUCLIDEAN
from peaccel.heads import UncertaintyHead
from peaccel.losses import bottleneck, likelihood, matches
from peaccel.methods import dul_cls, dul_reg, dul_reg_cls, hib, pfe, vmf_fl
from peaccel.methods.method import Training
from peaccel.published import built_of

__all__ = ["DrawnHIB", "KappaDivergence", "LinearUncertaintyHead", "SelfPairedMLS", "hib_drawn"]


class LinearUncertaintyHead(UncertaintyHead):
    """`peaccel.heads.UncertaintyHead` without its ReLUs.

    The code makes them and never inserts them, so that its head is linear, against the paper's section 4.3.

    Examples
    --------
    >>> from peaccel.published.revisited import LinearUncertaintyHead
    >>> LinearUncertaintyHead(16).layers
    Sequential(
      (0): Linear(in_features=16, out_features=8, bias=True)
      (1): Linear(in_features=8, out_features=4, bias=True)
      (2): Linear(in_features=4, out_features=1, bias=True)
    )
    """

    def __init__(self, features: int, out: int = 1, start: float = 1.0) -> None:
        super().__init__(features, out, start)
        self.layers = nn.Sequential(*(layer for layer in self.layers if isinstance(layer, nn.Linear)))


_drawn = scores.hib.pairs["normal_diagonal", "normal_diagonal"]

hib_drawn = replace(
    scores.hib,
    name="hib_drawn",
    doc="""`peaccel.scores.hib` by draws of isotropic normals too.

    Noise that is not needed, and a log of a mean that is too low on average.
    """,
    pairs={(query, gallery): _drawn for query in EUCLIDEAN for gallery in EUCLIDEAN},
)


class DrawnHIB(matches.HIB):
    """`peaccel.losses.HIB` by `hib_drawn`, an image's pair with itself, of independent draws, among those of its class.

    Noise that is not needed, and pairs that say nothing of the class and pull variances down. The code also starts from
    b = 0, where in 32 dimensions no two items match.

    Examples
    --------
    The pair with itself lowers the loss where items of a class lie apart:

    >>> import torch
    >>> from peaccel import losses
    >>> from peaccel.published import revisited
    >>> d = pe.Normal(torch.tensor([[0.0, 0.0], [3.0, 0.0], [9.0, 0.0]]), torch.full((3,), 1e-4))
    >>> labels = torch.tensor([0, 0, 1])
    >>> [round(loss(d, labels, seed=1).item(), 2) for loss in (losses.HIB(), revisited.DrawnHIB())]
    [1.52, 0.82]
    """

    itself = True

    def __init__(self, *, n: int = 8) -> None:
        super().__init__(n=n)
        self.score = hib_drawn(n=n)


class SelfPairedMLS(likelihood.NegativeMLS):
    """`peaccel.losses.NegativeMLS` with an image's pair with itself among those of its class.

    Such a pair has distance 0 and only pulls variances down.

    Examples
    --------
    Variances that are right, half the mean squared distance of items of a class, are still pulled down:

    >>> import torch
    >>> from peaccel import losses
    >>> from peaccel.published import revisited
    >>> var = torch.full((2,), 0.5, requires_grad=True)
    >>> for loss in (losses.NegativeMLS(), revisited.SelfPairedMLS()):
    ...     value = loss(pe.Normal(torch.tensor([[0.0], [1.0]]), var), torch.tensor([0, 0]))
    ...     (torch.autograd.grad(value, var)[0] + 0).tolist()
    [0.0, 0.0]
    [0.25, 0.25]
    """

    itself = True


class KappaDivergence(bottleneck.PriorDivergence):
    """`peaccel.losses.PriorDivergence`, but of VonMisesFisher ``kappa + log C_D(kappa) - log C_D(1e-6)``.

    That is no divergence: with kappa in place of ``kappa A_D(kappa)`` it rises with slope 1 from kappa = 0, where a
    divergence is flat. It explains a part of the collapse of DUL-cls on the sphere in the paper's table 4.

    Examples
    --------
    >>> import torch
    >>> from peaccel import losses
    >>> from peaccel.published import revisited
    >>> d, labels = pe.VonMisesFisher(torch.eye(8)[:1], torch.tensor([0.5])), torch.tensor([0])
    >>> [round(loss(d, labels).item(), 3) for loss in (losses.PriorDivergence(), revisited.KappaDivergence())]
    [0.016, 0.484]
    """

    def loss(self, d: Normal | VonMisesFisher, labels: Tensor, seed: int | None) -> Tensor:
        if not isinstance(d, VonMisesFisher):
            return super().loss(d, labels, seed)
        kappa = d.kappa.double()
        log_norm = special.vmf_log_norm(d.dim, torch.stack([kappa, torch.full_like(kappa, 1e-6)]))
        value: Tensor = (kappa + log_norm[0] - log_norm[1]).mean()
        return value.to(d.mu.dtype)


def _pfe(backbone: nn.Module, features: int, classes: int, settings: pfe.Settings) -> Training:
    """PFE whose variances start where its head does, wherever the data lie: at 1, or at e^-7 with PFE's head.

    From there a short training does not come back: they stay several times too large or too small.
    """
    training = pfe.build(backbone, features, classes, settings, LinearUncertaintyHead, SelfPairedMLS)
    first, second = training.stages
    return replace(training, stages=(first, replace(second, start=None)))


METHODS = {
    "dul_cls": built_of(dul_cls.METHOD, uncertainty=LinearUncertaintyHead, divergence=KappaDivergence),
    "dul_reg": built_of(dul_reg.METHOD, uncertainty=LinearUncertaintyHead),
    "dul_reg_cls": built_of(dul_reg_cls.METHOD, uncertainty=LinearUncertaintyHead, divergence=KappaDivergence),
    "hib": built_of(hib.METHOD, uncertainty=LinearUncertaintyHead, loss=DrawnHIB),
    "pfe": replace(pfe.METHOD, build=_pfe),
    "vmf_fl": built_of(vmf_fl.METHOD, uncertainty=LinearUncertaintyHead),
}
