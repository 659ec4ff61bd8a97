"""Limits of one core, for rates to stand beside: multiply-adds and sums from memory, by `limits.rs`."""

from __future__ import annotations

import json
import os
import subprocess
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]


@cache
def _process() -> tuple[subprocess.Popen[str], dict[str, float]]:
    """The process that does it, compiled where that is needed, and the work of a burst of each kind."""
    command = ["cargo", "bench", "--quiet", "--bench", "limits"]
    env = os.environ | {"PEACCEL_CUDA": "off"}
    process = subprocess.Popen(command, cwd=ROOT, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return process, json.loads(process.stdout.readline())


def work(unit: str) -> float:
    """Floating-point operations (of "GF/s") or bytes (of "GB/s") of a burst."""
    return _process()[1][unit]


def burst(unit: str) -> None:
    """Do as much as the core can, for about ten milliseconds."""
    process, _ = _process()
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write(f"{unit}\n")
    process.stdin.flush()
    process.stdout.readline()
