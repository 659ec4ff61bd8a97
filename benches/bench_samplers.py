"""Samples of von Mises-Fisher and normal distributions, 4096 items x 5 draws."""

from __future__ import annotations

import math

import numpy as np

from benches.data import distribution, fields, pe
from benches.peers import torch


class Samplers:
    """float32; concentrations log-uniform in [10, 1e4]. The floor is torch's generator of as many normals."""

    param_names = ("law", "dim", "direction", "backend")
    params = (("vmf", "normal"), (2, 16, 128), ("forward", "backward"), ("peaccel", "torch eager"))

    def setup(self, law: str, dim: int, direction: str, backend: str) -> None:
        missing = backend == "torch eager" and (law, direction) != ("normal", "forward")
        if missing or (torch if backend == "torch eager" else pe) is None:
            raise NotImplementedError
        kappa = np.exp(np.random.default_rng(0).uniform(math.log(10), math.log(1e4), 4096)).astype(np.float32)
        mu = distribution("vmf", fields("vmf", 4096, dim, seed=1)).mu
        items = pe.VonMisesFisher(mu, kappa) if law == "vmf" else pe.Normal(mu, kappa)
        op = pe.ops.samplers.sample_vmf if law == "vmf" else pe.ops.samplers.sample_normal
        weights = np.ones((5, 4096, dim), np.float32)
        self.run = {
            ("peaccel", "forward"): lambda: pe.sample(items, 5, seed=1),
            ("peaccel", "backward"): lambda: pe.ops._numpy.sample_backward(op, weights, mu, kappa, 1, 0, 2),
            ("torch eager", "forward"): lambda: torch.randn(5, 4096, dim),
        }[backend, direction]

    def time_samplers(self, law: str, dim: int, direction: str, backend: str) -> None:
        self.run()
