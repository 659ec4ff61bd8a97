"""Memory that a verb takes at its peak: `python -m benches.peak SCORE KIND VERB` prints bytes. Linux only."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benches.data import distribution, fields, pe

ROWS, DIM, QUERIES, CANDIDATES, K = 100_000, 32, 256, 100, 10
STEP = 4_000_000
STATUS, RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def resident(name: str) -> int:
    """VmRSS, or VmHWM, its maximum since the last reset, in bytes."""
    return 1024 * int(STATUS.read_text().split(name + ":")[1].split()[0])


def call(score: str, kind: str, verb: str) -> Callable[[], Any]:
    """The verb, ready to be called."""
    q, g = (distribution(kind, fields(kind, rows, DIM, seed)) for seed, rows in ((1, QUERIES), (2, ROWS)))
    ids = np.random.default_rng(3).integers(0, ROWS, (QUERIES, CANDIDATES))
    return {
        "prepare": partial(pe.prepare, g, score),
        "search": partial(pe.search, q, g, K, score),
        "search prepared": partial(pe.search, q, pe.prepare(g, score), K, score),
        "rerank": partial(pe.rerank, q, g, ids, K, score),
    }[verb]


def main() -> None:
    """Print how far the verb raises the process's memory, in steps of 4 MB, the error of the system's count."""
    run = call(*sys.argv[1:])
    RESET.write_text("5")
    before = resident("VmRSS")
    run()
    print(-(-(resident("VmHWM") - before) // STEP) * STEP)


if __name__ == "__main__":
    main()
