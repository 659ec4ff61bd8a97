"""The samplers: draws of normal and von Mises-Fisher distributions with exact gradients."""

from __future__ import annotations

from peaccel.ops._definitions import SampleOp

__all__ = ["OPS", "STREAMS", "sample_normal", "sample_vmf"]

# The streams of random numbers, as rust/rng.rs numbers them.
STREAMS = {"query": 0, "gallery": 1, "user": 2}

sample_normal = SampleOp("sample_normal", uncertainty="var")
sample_vmf = SampleOp("sample_vmf", uncertainty="kappa")

OPS = (sample_normal, sample_vmf)
