"""Rows scaled to length 1, with which most losses begin."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize

from peaccel.ops._dispatch import transformed

__all__ = ["directions", "directions_and_lengths"]

LEAST = 1e-12
"""The length by which shorter rows are divided, as torch's `normalize` does."""


def directions(x: Tensor) -> Tensor:
    """The rows [N, D] scaled to length 1, those of 0 remain: torch's `normalize`, whose gradient takes three times as
    many operators. It is used where these are fused, in compiled functions, and under transforms."""
    return directions_and_lengths(x)[0]


def directions_and_lengths(x: Tensor) -> tuple[Tensor, Tensor]:
    """`directions`, and the lengths [N] of the rows."""
    if torch.compiler.is_compiling() or transformed(x):
        return normalize(x), torch.linalg.vector_norm(x, dim=1)
    units, lengths = _Directions.apply(x)
    return units, lengths[:, 0]


class _Directions(torch.autograd.Function):
    """Units x / |x|, with the lengths, of which its gradient can be differentiated again."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        lengths = torch.linalg.vector_norm(x, dim=1, keepdim=True).clamp_(min=LEAST)
        units = x / lengths
        ctx.save_for_backward(units, lengths)
        ctx.set_materialize_grads(False)
        return units, lengths

    @staticmethod
    def backward(ctx: Any, by_units: Tensor | None, by_lengths: Tensor | None) -> Tensor | None:
        units, lengths = ctx.saved_tensors
        if by_units is None:
            return None if by_lengths is None else units * by_lengths
        along = (units * by_units).sum(1, keepdim=True)
        across = torch.addcmul(by_units, units, along, value=-1) / lengths
        return across if by_lengths is None else torch.addcmul(across, units, by_lengths)
