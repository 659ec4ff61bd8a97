"""Too little memory is a MemoryError, of numpy or of the core, which names the call; the process goes on."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import peaccel as pe

MANY = 400_000
ROOMS = 0.5, 1, 1.5, 2, 3, 4, 6, 8, 12, 16, 24, 48
"""Megabytes that a call may take beyond what there is: from too little for anything on."""


def points(n, dim, seed):
    return pe.Point(np.random.default_rng(seed).standard_normal((n, dim), dtype=np.float32))


def diagonal(items):
    return pe.Normal(items.mu, np.ones_like(items.mu))


def calls():
    """The name of a call, who says that memory is too little for it, if that is not numpy, and the call."""
    few, many, line, one = points(8, 4, 1), points(MANY, 4, 2), points(2 * MANY, 1, 3), points(1, 1, 5)
    blurred, sharp = diagonal(points(4, 64, 6)), diagonal(points(400, 64, 7))
    all_rows, listed = np.tile(np.arange(MANY), (4, 1)), np.zeros((2 * MANY, 1), np.int64)
    order, of_search = np.array([1.5, 2.5]).repeat(MANY), "search of neg_sq_l2"
    wide = diagonal(few), diagonal(many)
    yield "search, large k", of_search, lambda: pe.search(few, many, MANY // 4, "neg_sq_l2")
    yield "search, many queries", of_search, lambda: pe.search(line, one, 1, "neg_sq_l2")
    yield "search, many rows", of_search, lambda: pe.search(few, many, 10, "neg_sq_l2")
    yield "search of diagonal normals", "search of mls_diagonal", lambda: pe.search(*wide, 10, "mls")
    yield "search by draws", "search of hib_sampled", lambda: pe.search(blurred, sharp, 1, "hib:n=128,seed=1")
    yield "rerank, large k", "rerank of neg_sq_l2", lambda: pe.rerank(few[:4], many, all_rows, MANY, "neg_sq_l2")
    yield "rescore, many queries", "scores of neg_sq_l2", lambda: pe.rescore(line, one, listed, "neg_sq_l2")
    yield "pairwise, many queries", "scores of neg_sq_l2", lambda: pe.pairwise(line, one, "neg_sq_l2")
    yield "pairwise", None, lambda: pe.pairwise(few, many, "neg_sq_l2")
    yield "prepare", None, lambda: pe.prepare(many, "neg_sq_l2")
    yield "search_above", of_search, lambda: pe.search_above(few, many, -1e9, "neg_sq_l2")
    yield "duplicates", of_search, lambda: pe.duplicates(many[:5_000], -1e9, "neg_sq_l2")
    yield "sample", None, lambda: pe.sample(blurred, 100_000, seed=1)
    yield "Bessel functions", "elements of log_ive", lambda: pe.special.log_ive(order, np.abs(line.mu[:, 0]))


def tried(room, call):
    """The outcome of a call that may take so many megabytes."""
    import resource

    before = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (before + int(room * 2**20), resource.RLIM_INFINITY))
    try:
        call()
        return "found"
    except MemoryError as error:
        return f"MemoryError: {error}"
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


if __name__ == "__main__":
    pe.search(points(64, 8, 1), points(20_000, 8, 2), 3, "neg_sq_l2")  # starts the threads
    print(json.dumps([(name, by, [tried(room, call) for room in ROOMS]) for name, by, call in calls()]))
    assert pe.search(points(8, 4, 1), points(8, 4, 1), 1, "neg_sq_l2").ids[:, 0].tolist() == list(range(8))


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not bound a process's memory")
def test_too_little_memory_is_an_error_that_names_the_call():
    # An allocator that gives back what is freed: else later calls live on what earlier ones took.
    settings = {"PEACCEL_NUM_THREADS": "2", "MALLOC_ARENA_MAX": "1", "MALLOC_MMAP_THRESHOLD_": "131072"}
    env = {**os.environ, **settings}
    run = subprocess.run([sys.executable, __file__], env=env, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    for name, by, outcomes in json.loads(run.stdout):
        says = re.compile(rf"MemoryError: {by}: unable to allocate \d+ bytes")
        assert all(re.match("found$|MemoryError", outcome) for outcome in outcomes), name
        assert any(says.fullmatch(outcome) if by else outcome != "found" for outcome in outcomes), (name, outcomes)
