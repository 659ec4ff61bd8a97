"""Kernels as functions of numpy arrays and torch tensors. `OPS` lists them all, for tests and benchmarks."""

from __future__ import annotations

import sys

from peaccel.ops import bessel, diag_scores, dot_scores, sampled_scores, samplers
from peaccel.ops._definitions import Draws, Inputs, Op, PairOp, SampleOp, records
from peaccel.ops._dispatch import elementwise, enable_torch, rerank, sample, score, score_backward, search

__all__ = [
    "OPS",
    "Draws",
    "Inputs",
    "Op",
    "PairOp",
    "SampleOp",
    "bessel",
    "diag_scores",
    "dot_scores",
    "elementwise",
    "enable_torch",
    "rerank",
    "sample",
    "sampled_scores",
    "samplers",
    "score",
    "score_backward",
    "search",
]

OPS = records()

if "torch" in sys.modules:
    enable_torch()
