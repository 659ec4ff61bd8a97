"""Defects of published code that no method has as a setting, since nobody would want them but to see what they did."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any
from unittest import mock

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from peaccel import VonMisesFisher, sample
from peaccel.losses import vmf
from peaccel.methods.method import Embed, Schedule

__all__ = ["blended_draws", "first_classes", "with_blended_draws"]


def first_classes(
    labels: NDArray[np.int64], schedule: Schedule, rng: np.random.Generator, embed: Embed
) -> Iterator[NDArray[np.int64]]:
    """Batches as many as an epoch has, all of the classes that the labels begin with.

    The published sampler of batches never advances: what is drawn for the first batch is drawn for all.
    """
    known = np.flatnonzero(labels < schedule.classes_per_batch)
    size = schedule.classes_per_batch * schedule.images_per_class
    for _ in range(max(1, len(labels) // size)):
        yield rng.permutation(known)[:size]


def with_blended_draws() -> AbstractContextManager[Any]:
    """Have `peaccel.sample` draw directions by `blended_draws`."""
    exact = sample

    def drawn(d: Any, n: int, seed: Any = None, **others: Any) -> Any:
        return blended_draws(d, n, seed) if isinstance(d, VonMisesFisher) else exact(d, n, seed, **others)

    return mock.patch.object(vmf, "sample", drawn)


def blended_draws(d: Any, n: int, seed: int) -> Tensor:
    """Draws [n, N, D] of `peaccel.VonMisesFisher` by Wood's sampler with an envelope that holds for kappa >> D alone.

    The published samplers replace the envelope's b, from kappa 10 on and wholly from 11 on, by its expansion (D - 1) /
    (4 kappa). Where D is not far below kappa everything is then accepted, and the draws are of another distribution.
    Gradients go through the accepted proposals.
    """
    mu, kappa = d.mu.double(), d.kappa.double()[:, None].expand(-1, n)
    generator = torch.Generator().manual_seed(seed)
    m = mu.shape[1] - 1
    root = torch.sqrt(4 * kappa**2 + m**2)
    share = (kappa - 10).clamp(0, 1)
    b = (1 - share) * m / (2 * kappa + root) + share * m / (4 * kappa)
    a = (m + 2 * kappa + root) / 4
    log_accept = 4 * a * b / (1 + b) - m * np.log(m)
    half = torch.full((), m / 2, dtype=torch.float64)
    proposals = torch.full_like(b, torch.nan)
    with torch.no_grad():
        while (missing := proposals.isnan()).any():
            gammas = torch._standard_gamma(half.expand(2, *b.shape), generator=generator)
            e = gammas[0] / gammas.sum(0)
            t = 2 * a * b / (1 - (1 - b) * e)
            level = torch.rand(b.shape, generator=generator, dtype=torch.float64).log()
            refused = m * t.log() - t + log_accept <= level  # nothing is where kappa is NaN: the draw is, too
            proposals = torch.where(missing & ~refused, e, proposals)
    w = ((1 - (1 + b) * proposals) / (1 - (1 - b) * proposals)).T[..., None]
    other = torch.randn((n, *mu.shape), generator=generator, dtype=torch.float64)
    tangent = other - (other * mu).sum(-1, keepdim=True) * mu
    z = w * mu + torch.sqrt((1 - w**2).clamp_min(1e-7)) * tangent / tangent.norm(dim=-1, keepdim=True)
    draws: Tensor = z.to(d.mu.dtype)
    return draws
