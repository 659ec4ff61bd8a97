"""Kernels as functions of numpy arrays and torch tensors. `OPS` lists them all, for tests and benchmarks."""

from __future__ import annotations

import sys

from peaccel.ops import bessel, diag_scores, dot_scores, sampled_scores, samplers
from peaccel.ops._definitions import Draws, Inputs, Op, PairOp, SampleOp, records
from peaccel.ops._dispatch import (
    Kernels,
    define,
    elementwise,
    enable_torch,
    kernels_of,
    sample,
    score,
    scores_and_gradients,
)

__all__ = [
    "OPS",
    "Draws",
    "Inputs",
    "Kernels",
    "Op",
    "PairOp",
    "SampleOp",
    "bessel",
    "define",
    "diag_scores",
    "dot_scores",
    "elementwise",
    "enable_torch",
    "kernels_of",
    "sample",
    "sampled_scores",
    "samplers",
    "score",
    "scores_and_gradients",
]

OPS = records()

if "torch" in sys.modules:
    enable_torch()
