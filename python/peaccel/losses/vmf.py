"""vMF-loss: softmax between images and classes that are both von Mises-Fisher distributions."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import embedding, linear, normalize

from peaccel import special
from peaccel.distributions import Point, VonMisesFisher
from peaccel.distributions.sample import sample
from peaccel.heads import from_embedding
from peaccel.losses._batch import require_labels
from peaccel.losses._directions import directions_and_lengths
from peaccel.losses.base import Loss, first_row, require_kind

__all__ = ["VMFLoss"]


class VMFLoss(Loss[Point | VonMisesFisher]):
    """vMF-loss: an upper bound of the expected softmax loss of cosines of draws of an image and of each class.

    ``mean over draws z of log sum_c exp(log C(|w_c|) - log C(|beta z + w_c|)) - beta A(kappa) A(|w_y|) cos(mu, w_y)``,
    C = C_D the von Mises-Fisher normaliser, A = A_D the length of the mean, w_c the class's vector, whose length is its
    concentration. The expectation over classes is inside the logarithm, where it has a closed form: hence the bound.

    Parameters
    ----------
    dim, classes
        D >= 2 and C: ``weight`` [C, D] holds w_c, and starts as N(0, s^2) with ``s = l / (1 - l^2) (D-1) / sqrt(D)``,
        whose concentrations have mean length l = confidence.
    samples
        Draws of each image.
    scale
        beta at the start, > 0; ``log_scale``, its logarithm, is learned.
    confidence
        l, in 0 .. 1 exclusively; see `fit_alpha`.
    deterministic_classes
        Classes are their directions alone, as if of infinite length: ``log sum_c exp(beta z.w_c)``, A(|w_y|) = 1.

    Raises
    ------
    TypeError
        d is of another kind.
    ValueError
        A setting out of its range; labels beyond 0 .. C-1.

    Notes
    -----
    Takes VonMisesFisher, or Point: raw embeddings f; the length of alpha f is the concentration. `peaccel.sample`
    draws, with exact gradients. Gradients are found along with the value, some draws at a time: no [samples N, C] is
    held (58 MB for 10 draws of 128 images and 11,318 classes), but 2^21 numbers at a time on the CPU; they are not
    differentiated again. With deterministic_classes [samples N, C] is.

    References
    ----------
    Scott, Gallagher & Mozer, von Mises-Fisher Loss: An Exploration of Embedding Geometries for Supervised Learning,
    ICCV 2021; "Probabilistic Embeddings Revisited", eq. 13. The published sampler draws from another distribution where
    10 < kappa < D.

    Examples
    --------
    A seed makes draws repeatable. Both items have the direction of class 0, and the concentrated one is surely of it:

    >>> import torch
    >>> from peaccel.losses import VMFLoss
    >>> loss = VMFLoss(dim=2, classes=2, samples=1000)
    >>> loss.weight.data = 5 * torch.eye(2)
    >>> d, labels = pe.VonMisesFisher(torch.eye(2)[[0, 0]], torch.tensor([100.0, 0.5])), torch.tensor([0, 0])
    >>> (loss(d, labels, seed=0) == loss(d, labels, seed=0)).item()
    True
    >>> [round(p, 1) for p in loss.class_probabilities(d, seed=0)[:, 0].tolist()]
    [1.0, 0.6]
    """

    alpha: Tensor

    def __init__(
        self,
        dim: int,
        classes: int,
        *,
        samples: int = 10,
        scale: float = 16.0,
        confidence: float = 0.4,
        deterministic_classes: bool = False,
    ) -> None:
        super().__init__()
        for name, value, least in (("dim", dim, 2), ("classes", classes, 1), ("samples", samples, 1)):
            if value < least:
                raise ValueError(f"VMFLoss: {name} is {value}, expected at least {least}")
        if not scale > 0:
            raise ValueError(f"VMFLoss: scale is {scale}, expected a number above 0")
        if not 0 < confidence < 1:
            raise ValueError(f"VMFLoss: confidence is {confidence}, expected a number between 0 and 1")
        self.samples, self.deterministic_classes = samples, deterministic_classes
        self.spread = confidence / (1 - confidence**2) * (dim - 1) / math.sqrt(dim)
        self.weight = nn.Parameter(self.spread * torch.randn(classes, dim))
        self.log_scale = nn.Parameter(torch.tensor(math.log(scale)))
        self.register_buffer("alpha", torch.ones(()))

    @torch.no_grad()
    def fit_alpha(self, embeddings: Tensor) -> None:
        """Set alpha so that images start about as concentrated as classes: ``s / mean |f|`` over items and dimensions.

        Parameters
        ----------
        embeddings
            [N, D] raw embeddings of some batches, before training.

        Raises
        ------
        ValueError
            Their mean size is 0 or not finite.
        """
        size = embeddings.double().abs().mean()
        if not (size.isfinite() and size > 0):
            raise ValueError(f"VMFLoss: embeddings have mean size {size.item()}, expected a finite number above 0")
        self.alpha.copy_(self.spread / size)

    def loss(self, d: Point | VonMisesFisher, labels: Tensor, seed: int | None) -> Tensor:
        require_kind(self, d, ["point", "vmf"])
        classes, dim = self.weight.shape
        if d.dim != dim:
            raise ValueError(f"VMFLoss: d has dimension {d.dim}, expected {dim}, that of weight")
        require_labels(self, labels, classes)
        if isinstance(d, Point):
            d = from_embedding(self.alpha.to(d.mu.dtype) * d.mu)
        weight, scale = self.weight.to(d.mu.dtype), self.log_scale.to(d.mu.dtype).exp()
        draws = sample(d, self.samples, seed, first_row=first_row(len(d))).flatten(0, 1)
        units, lengths = directions_and_lengths(weight)
        partition: Tensor
        if self.deterministic_classes:
            means, partition = units, linear(scale * draws, units).logsumexp(1).mean()
        else:
            means = units * mean_length(dim, lengths)[:, None]
            partition = _LogPartition.apply(scale * draws, weight, special.vmf_log_norm(dim, lengths))
        # The gradient of an embedding sorts no labels.
        cosines: Tensor = (d.mu * embedding(labels, means)).sum(1) * mean_length(dim, d.kappa)
        return partition - (scale * cosines).mean()

    @torch.no_grad()
    def class_probabilities(self, d: Point | VonMisesFisher, seed: int | None = None) -> Tensor:
        """Probability of each class: the softmax of the loss, its mean over draws.

        Parameters
        ----------
        d
            N items, as the loss takes them.
        seed
            Seed of the draws.

        Returns
        -------
        [N, C], rows sum to 1.
        """
        if isinstance(d, Point):
            d = from_embedding(self.alpha.to(d.mu.dtype) * d.mu)
        weight, scale = self.weight.to(d.mu.dtype), self.log_scale.to(d.mu.dtype).exp()
        log_norms = special.vmf_log_norm(d.dim, torch.linalg.vector_norm(weight, dim=1))
        found = []
        for rows in sample(d, self.samples, seed).split(64, dim=1):
            if self.deterministic_classes:
                logits = linear(scale * rows, normalize(weight))
            else:
                square = (weight * weight).sum(1) + 2 * scale * rows @ weight.T + scale**2
                r = square.clamp(min=torch.finfo(square.dtype).tiny).sqrt()
                logits = log_norms - special.vmf_log_norm(d.dim, r)
            found.append(logits.softmax(-1).mean(0))
        return torch.cat(found)


def mean_length(dim: int, kappa: Tensor) -> Tensor:
    """A_D(kappa), the length of each distribution's mean."""
    length: Tensor = special.iv_ratio(dim / 2, kappa)
    return length


class _LogPartition(torch.autograd.Function):
    """mean_i log sum_c exp(n_c - log C(|a_i + w_c|)), of rows a [R, D], w [C, D] and numbers n [C].

    With r = |a + w|, p the softmax and g = p A(r) / r the slopes are ``sum_c g (a + w)`` in a, ``sum_i g (a + w)`` in w
    and ``sum_i p`` in n. All are computed while a block of r is in the cache, since memory traffic would
    take most of the time.
    """

    @staticmethod
    def forward(ctx: Any, a: Tensor, w: Tensor, n: Tensor) -> Tensor:
        dim = a.shape[1]
        wanted = any(ctx.needs_input_grad)
        by_a, by_w, by_n = (torch.zeros_like(x) for x in (a, w, n))
        slopes, total = torch.zeros_like(n), a.new_zeros(())
        square_w = (w * w).sum(1)
        step = max(1, (1 << 24 if a.is_cuda else 1 << 21) // len(w))
        for rows in (slice(start, start + step) for start in range(0, len(a), step)):
            some = a[rows]
            r = torch.addmm(square_w, some, w.T, alpha=2).add_((some * some).sum(1, keepdim=True))
            # Rounding may make a tiny square negative, by far less than log C, which is flat there, can show.
            r = r.clamp_(min=torch.finfo(r.dtype).tiny).sqrt_()
            logits = n - special.vmf_log_norm(dim, r)
            log_p = logits.log_softmax(1)
            total += (logits[:, 0] - log_p[:, 0]).sum()
            if wanted:
                p = log_p.exp_()
                by_n += p.sum(0)
                g = special.iv_ratio(dim / 2, r).mul_(p).div_(r)
                slopes += g.sum(0)
                by_a[rows] = torch.addmm(g.sum(1, keepdim=True) * some, g, w)
                by_w.addmm_(g.T, some)
        if wanted:
            by_w.addcmul_(slopes[:, None], w)
            ctx.save_for_backward(by_a, by_w, by_n)
        ctx.rows = len(a)
        return total / len(a)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, ...]:
        share = grad / ctx.rows
        return tuple(share * x for x in ctx.saved_tensors)
