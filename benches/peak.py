"""Memory that a verb takes at its peak: `python -m benches.peak SCORE KIND VERB` prints bytes. Linux only."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from benches.data import candidates, items, pe

ROOT = Path(__file__).parents[1]
ROWS, DIM, K = 100_000, 32, 10
STEP = 4_000_000
STATUS, RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def resident(name: str) -> int:
    """VmRSS, or VmHWM, its maximum since the last reset, in bytes."""
    return 1024 * int(STATUS.read_text().split(name + ":")[1].split()[0])


def call(score: str, kind: str, verb: str) -> Callable[[], Any]:
    """The verb, ready to be called."""
    q, g = items(kind, 256, DIM, 1), items(kind, ROWS, DIM)
    return {
        "prepare": partial(pe.prepare, g, score),
        "search": partial(pe.search, q, g, K, score),
        "search prepared": partial(pe.search, q, pe.prepare(g, score), K, score),
        "rerank": partial(pe.rerank, q, g, candidates(256), K, score),
    }[verb]


def of_process(score: str, kind: str, verb: str) -> float:
    """The same in a process of its own."""
    command = [sys.executable, "-m", "benches.peak", score, kind, verb]
    return float(subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout)


def main() -> None:
    """Print how far the verb raises the process's memory, in steps of 4 MB, the error of the system's count."""
    run = call(*sys.argv[1:])
    RESET.write_text("5")
    before = resident("VmRSS")
    run()
    print(-(-(resident("VmHWM") - before) // STEP) * STEP)


if __name__ == "__main__":
    main()
