"""Kernels as functions of numpy arrays and torch tensors. `OPS` lists them all; tests and benches run over it."""

from __future__ import annotations

import sys

from peaccel.ops import bessel, diag_scores, dot_scores, sampled_scores, samplers  # noqa: F401  (which make records)
from peaccel.ops._op import Op, PairOp, SampleOp, enable_torch, records

__all__ = ["OPS", "Op", "PairOp", "SampleOp", "enable_torch"]

OPS = records()

if "torch" in sys.modules:
    enable_torch()
