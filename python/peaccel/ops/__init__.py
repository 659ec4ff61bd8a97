"""Kernels as functions of numpy arrays and torch tensors. `OPS` lists them all; tests and benches run over it."""

from __future__ import annotations

import sys

from peaccel.ops import bessel, diag_scores, dot_scores, sampled_scores, samplers
from peaccel.ops._op import Op, PairOp, SampleOp, enable_torch, records

__all__ = [
    "OPS",
    "Op",
    "PairOp",
    "SampleOp",
    "bessel",
    "diag_scores",
    "dot_scores",
    "enable_torch",
    "sampled_scores",
    "samplers",
]

OPS = records()

if "torch" in sys.modules:
    enable_torch()
