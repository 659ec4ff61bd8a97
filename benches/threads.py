"""What a second thread gains: `python -m benches.threads`.

Medians of calls with one and with two threads, in turn; torch's matrix product says what the machine gives.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

import peaccel as pe

ROUNDS = 21


def share(run: Callable[[], Any], threads: Callable[[int], None]) -> float:
    """The time on two threads as a share of that on one."""
    times: dict[int, list[float]] = {1: [], 2: []}
    for _ in range(ROUNDS):
        for n, own in times.items():
            threads(n)
            start = time.perf_counter()
            run()
            own.append(time.perf_counter() - start)
    return statistics.median(times[2]) / statistics.median(times[1])


def main() -> None:
    rng = np.random.default_rng(0)
    mu = rng.standard_normal((400_000, 128), dtype=np.float32)
    var = rng.uniform(0.1, 1, mu.shape).astype(np.float32)
    isotropic, q = pe.prepare(pe.Normal(mu[:100_000], var[:100_000, 0])), pe.Normal(mu[:256], var[:256, 0])
    large, near, some = (pe.prepare(pe.Normal(mu[:n], var[:n])) for n in (400_000, 8192, 32_768))
    d = pe.Normal(mu[:256], var[:256])
    far_ids, near_ids = (rng.integers(0, len(gallery), (256, 100)) for gallery in (large, near))
    x, (a, b) = rng.uniform(1, 1000, 2_000_000), (torch.from_numpy(mu[:n]) for n in (2048, 20_000))
    print("| work | time on two threads, of that on one |\n|---|---|")
    for name, run in (
        ("search isotropic mls, 256 into 100,000 x 128", lambda: pe.search(q, isotropic, 10)),
        ("search diagonal mls, 256 into 32,768 x 128", lambda: pe.search(d, some, 10, prune="never")),
        ("all pairs diagonal mls, 256 x 32,768 x 128", lambda: pe.pairwise(d, some)),
        ("rerank diagonal mls, 256 x 100 into 8,192 x 128", lambda: pe.rerank(d, near, near_ids, 10)),
        ("rerank diagonal mls, 256 x 100 into 400,000 x 128", lambda: pe.rerank(d, large, far_ids, 10)),
        ("log_ive, v = 63, 2,000,000 elements", lambda: pe.special.log_ive(63.0, x)),
    ):
        print(f"| {name} | {share(run, pe.set_num_threads):.2f} |", flush=True)
    print(f"| torch's matrix product, 2048 x 20,000 x 128 | {share(lambda: a @ b.T, torch.set_num_threads):.2f} |")


if __name__ == "__main__":
    main()
