"""Every kernel of scores, timed for the history."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from benches.data import DIM, items, kernels

KERNELS = kernels()


@cache  # asv sets up anew for each sample
def calls(name: str) -> dict[str, Callable[[], Any]]:
    """Each verb, ready to be called."""
    kernel = KERNELS[name]
    pairs, rows = (50, 50) if kernel.costly else (500, 5_000)
    counts = zip((*kernel.kinds, kernel.kinds[1]), (pairs, pairs, rows), strict=True)
    return kernel.calls(*(items(kind, n, DIM, seed) for seed, (kind, n) in enumerate(counts)), 16, 100, 10)


class Kernels:
    """500 pairs; the gradient of 16 x 500; 16 shortlists of 100; 16 queries in 5,000 rows (costly ones: 50)."""

    param_names = ("kernel", "verb")
    params = (tuple(KERNELS), ("paired", "backward of all pairs", "rerank", "search"))

    def setup(self, kernel: str, verb: str) -> None:
        """Make the call."""
        self.call = calls(kernel)[verb]

    def time_call(self, kernel: str, verb: str) -> None:
        """One call."""
        self.call()
