"""Imports, threads, halves and shards: what a whole process, a second thread, fewer bits and Ray take or give."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from benches import ONE_THREAD
from benches.data import DIM, ROWS, candidates, fields, gallery, optional, pe, prepared, queries
from benches.peers import torch
from benches.rows.retrieval import K
from benches.table import Row, Run, Side, beside, equal


def imports(quick: bool) -> Iterator[Row]:
    """Whole processes, with the threads that a user's process would have."""
    env = {name: value for name, value in os.environ.items() if name not in ONE_THREAD}

    def load(name: str) -> Run:
        return partial(subprocess.run, [sys.executable, "-c", f"import {name}"], check=True, env=env)

    peers = {"import numpy": load("numpy")}
    yield beside("import, whole process", load("peaccel"), peers, goal=1.4, seconds=5, threads=os.cpu_count())


# ---- threads ---------------------------------------------------------------------------------------------------------


def on(threads: int, run: Run, choose: Callable[[int], None] = pe.set_num_threads) -> Any:
    """A call on so many threads."""
    choose(threads)
    try:
        return run()
    finally:
        choose(1)


def on_two(name: str, run: Run, limit: float | None, choose: Callable[[int], None] = pe.set_num_threads) -> Row:
    """A call on two threads beside the same on one, to the same bits."""
    one = "peaccel, one thread" if choose is pe.set_num_threads else "one thread"

    def same(*results: Any) -> None:
        if isinstance(results[0], pe.Prepared):
            results = tuple(pe.search(queries(x.kind.removeprefix("normal_"))[:1], x, K) for x in results)
        equal(*results)

    sides = {"two threads": Side(partial(on, 2, run, choose), {one: limit}), one: partial(on, 1, run, choose)}
    return Row(f"{name}, two threads", sides, same, threads=2)


def threads(quick: bool) -> Iterator[Row]:
    """Little work must not get slower, much should gain more than the noise; torch's product says what there is."""
    q, ready = queries("diagonal"), prepared("diagonal")
    a, b = gallery("diagonal")[: ROWS // 2], gallery("diagonal")[ROWS // 2 :]
    for n in (2, 8, 16):
        yield on_two(f"rerank {n} x 100", partial(pe.rerank, q[:n], ready, candidates(n), K), 1.0)
    yield on_two("pairwise 4 x 64", partial(pe.pairwise, q[:4], gallery("diagonal")[:64]), 1.0)
    for kind in ("isotropic", "diagonal"):
        yield on_two(f"prepare {kind}", partial(pe.prepare, gallery(kind)), 0.8)
    yield on_two(f"kl diagonal, {len(a):,}", partial(pe.kl, a, b), 0.8)
    yield on_two("rerank 1 x 50,000", partial(pe.rerank, q[:1], ready, candidates(1, 50_000), K), 0.8)
    isotropic = partial(pe.search, queries("isotropic"), prepared("isotropic"), K)
    yield on_two(f"search isotropic mls, 256 into {ROWS:,} x {DIM}", isotropic, None)
    near, some, large = (prepared("diagonal", "mls", n) for n in (8192, 32_768, 50_000 if quick else 400_000))
    search = partial(pe.search, q, some, K, prune="never")
    yield on_two(f"search diagonal mls, 256 into 32,768 x {DIM}", search, None)
    yield on_two(f"all pairs diagonal mls, 256 x 32,768 x {DIM}", partial(pe.pairwise, q, some), None)
    for d in (near, large):
        rerank = partial(pe.rerank, q, d, candidates(256, rows=len(d)), K)
        yield on_two(f"rerank diagonal mls, 256 x 100 into {len(d):,} x {DIM}", rerank, None)
    x = np.random.default_rng(0).uniform(1, 1000, 200_000 if quick else 2_000_000)
    yield on_two(f"log_ive, v = 63, {len(x):,} elements", partial(pe.special.log_ive, 63.0, x), None)
    c, d = (torch.from_numpy(fields("point", n, DIM, 1)[0]) for n in (2048, 20_000))
    yield on_two(f"torch's matrix product, 2048 x 20,000 x {DIM}", lambda: c @ d.T, None, torch.set_num_threads)


# ---- halves ----------------------------------------------------------------------------------------------------------


ERRORS = ("median error of the length", "rms error of vMF mls")


def halves(quick: bool) -> Iterator[Row]:
    """Directions in halves as `prepare` rounds them beside rounding to nearest: lengths, vMF mls; and its time."""
    rows, ml_dtypes = 2000 if quick else 20_000, optional("ml_dtypes")
    for dim in (64, 128, 512):
        mu = fields("point", rows, dim, 0)[0]
        d = pe.VonMisesFisher(mu, np.random.default_rng(0).uniform(100, 900, rows).astype(np.float32))
        want = pe.pairwise(d[:256], d)
        for dtype, of in {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16}.items():
            kept, nearest = (rounding(items, d, want) for items in (pe.prepare(d, dtype=dtype).distribution, d.to(of)))
            for what, ours, plain in zip(ERRORS, kept, nearest, strict=True):
                yield beside(f"{what}, D = {dim}, {dtype}", ours, {"rounding to nearest": plain}, unit="")
            peers = {"rounding to nearest": partial(d.to, of)}
            sides = {"peaccel prepare": Side(partial(pe.prepare, d, dtype=dtype), dict.fromkeys(peers)), **peers}
            yield Row(f"prepare directions, D = {dim}, {dtype}", sides, per=(rows, "row"))


def rounding(items: Any, d: Any, want: np.ndarray) -> tuple[float, float]:
    """The median error of the rows' length, and the rms error of the score."""
    length = np.linalg.norm(items.mu.astype(np.float64), axis=1)
    error = (pe.pairwise(d[: len(want)], items) - want).astype(np.float64)
    return float(np.median(abs(length - 1))), float(np.sqrt(np.mean(error**2)))


# ---- shards ----------------------------------------------------------------------------------------------------------


def shards(quick: bool) -> Iterator[Row]:
    """Two shards with a thread each in actors of Ray beside the same search here with two threads."""
    ray, of_ray = optional("ray"), optional("peaccel.retrieval.ray")
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="error")
    try:
        for size in (1000, 20_000) if quick else (1000, 20_000, 200_000):
            whole, q, half = gallery("isotropic", size), queries("isotropic", 64), size // 2
            search = partial(pe.search, q, pe.prepare(whole, "mls"), K)
            with of_ray.ShardedGallery([whole[:half], whole[half:]], "mls") as sharded:
                here = "peaccel in one process, two threads"
                sides = {
                    "two shards": Side(partial(sharded.search, q, K), {here: None}),
                    here: partial(on, 2, search),
                }
                yield Row(f"search in shards, 64 into {size:,} x {DIM}, top-{K}", sides, equal, threads=2)
    finally:
        ray.shutdown()
