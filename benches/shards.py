"""Ray's overhead: 64 queries over two shards in actors beside the same search here, by turns."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import ray

import peaccel as pe
from peaccel.retrieval.ray import ShardedGallery

QUERIES, DIM, K, ROUNDS = 64, 128, 10, 30
SIZES = (1_000, 20_000, 200_000)


def normals(n: int, seed: int) -> pe.Normal[Any]:
    """Unit means with a variance each."""
    rng = np.random.default_rng(seed)
    mu = rng.standard_normal((n, DIM), np.float32)
    return pe.Normal(mu / np.linalg.norm(mu, axis=1, keepdims=True), rng.uniform(0.5, 2, n).astype(np.float32) / DIM)


def by_turns(*calls: Callable[[], object]) -> list[list[float]]:
    """Seconds of each call, all of them in turn, once they are warm."""
    for call in calls:
        call()
    seconds: list[list[float]] = [[] for _ in calls]
    for _ in range(ROUNDS):
        for call, of_call in zip(calls, seconds, strict=True):
            begun = time.perf_counter()
            call()
            of_call.append(time.perf_counter() - begun)
    return seconds


def measured(size: int) -> tuple[str, ...]:
    """A row of the table: seconds here and in shards, of searches with the same bits."""
    gallery, queries = normals(size, 1), normals(QUERIES, 2)
    ready, half = pe.prepare(gallery, "mls"), size // 2
    with ShardedGallery([gallery[:half], gallery[half:]], "mls") as shards:
        here, there = pe.search(queries, ready, K), shards.search(queries, K)
        assert all(np.array_equal(x, y) for x, y in zip(here, there, strict=True))
        pe.set_num_threads(2)
        one, two = by_turns(lambda: pe.search(queries, ready, K), lambda: shards.search(queries, K))
    p50 = 1e3 * statistics.median(one), 1e3 * statistics.median(two)
    return f"{size:,}", f"{p50[0]:.1f}", f"{p50[1]:.1f}", f"{1e3 * max(two):.1f}", f"{p50[1] - p50[0]:.1f}"


def main() -> None:
    """Print the table."""
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="error")
    print(f"{QUERIES} queries, D = {DIM}, isotropic mls, k = {K}; milliseconds, {ROUNDS} rounds\n")
    print("| items | here | two shards | slowest of 30 | Ray's part |")
    print("|---|---|---|---|---|")
    for size in SIZES:
        print("|", " | ".join(measured(size)), "|", flush=True)
    ray.shutdown()


if __name__ == "__main__":
    main()
