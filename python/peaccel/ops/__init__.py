"""Kernels as functions of numpy arrays and torch tensors. `OPS` lists them all; tests and benches run over it."""

from __future__ import annotations

import sys

from peaccel.ops import bessel, diag_scores, dot_scores, sampled_scores, samplers
from peaccel.ops._op import Op, PairOp, SampleOp, enable_torch

__all__ = ["OPS", "Op", "PairOp", "SampleOp", "enable_torch"]

OPS: tuple[Op | PairOp | SampleOp, ...] = (
    *bessel.OPS,
    *dot_scores.OPS,
    *diag_scores.OPS,
    *sampled_scores.OPS,
    *samplers.OPS,
)

if "torch" in sys.modules:
    enable_torch()
