"""Peaccel against its peers, interleaved in one process, one thread each.

`python -m benches.ratios [--quick] [--only NAME]`. A goal that is not met is printed as "no". The run fails (exit 1)
only where the comparison itself is unsound: a side that does not compute what plain float64 numpy computes, one that
takes more than one thread, or a peer that looks starved.
"""

from __future__ import annotations

import argparse
import itertools
import math
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benches import ONE_THREAD, blas, main_job, search, training
from benches.common import (
    CASES,
    Goal,
    Side,
    Work,
    around,
    best,
    bind,
    compact,
    doubled,
    faiss,
    measure,
    rescored,
    row,
    special,
    torch,
)
from benches.data import distribution, fields, optional, pe
from benches.recall import digits

K = 10
CHECKED = 2  # rows of every result that are held against float64 numpy


# ---- 1. rerank -----------------------------------------------------------------------------------------------------

# On another machine: torch.compile / faiss.fvec_inner_products_by_idx (one row of the two: half the bytes). At D = 128
# the geometric mean of that machine's 601 / 142 and of 726 / 78 on an Intel Xeon with AVX-512.
RERANK_RELATION = {128: 6.3, 512: 1247 / 364}


def rerank(rows: int, dim: int, queries: int, goals: tuple[float, float], quick: bool) -> Work:
    """Diagonal MLS of 100 random candidates per query, and the best ten of them."""
    case, count = CASES["mls diagonal"], 100
    q, g = fields("diagonal", queries, dim, seed=1), fields("diagonal", rows, dim, seed=2)
    ids = np.random.default_rng(3).integers(0, rows, (queries, count))
    function = best(rescored(case), K)
    few = ids[:CHECKED]
    want = function(np, tuple(doubled(x[:CHECKED]) for x in q), *compact(g, few))[0]
    pq, raw = distribution("diagonal", q), distribution("diagonal", g)
    prepared, half = pe.prepare(raw, score="mls"), pe.prepare(raw, score="mls", dtype="float16")
    halved = tuple(x[few].astype(np.float16) for x in g)
    compact_ids = np.arange(few.size).reshape(few.shape)
    few_q = tuple(doubled(x[:CHECKED]) for x in q)
    want_half = function(np, few_q, tuple(doubled(x.reshape(-1, dim)) for x in halved), compact_ids)[0]
    tq, tg, tids = tuple(map(torch.from_numpy, q)), tuple(map(torch.from_numpy, g)), torch.from_numpy(ids)

    def chunked() -> Any:
        score = partial(rescored(case), torch)
        chunks = [score(tuple(x[i : i + 10] for x in tq), tg, tids[i : i + 10]) for i in range(0, queries, 10)]
        return torch.topk(torch.cat(chunks), K)

    products = np.empty((queries, count), np.float32)

    def inner_products() -> np.ndarray:
        pointers = map(faiss.swig_ptr, (products, q[0], g[0], ids))
        faiss.fvec_inner_products_by_idx(*pointers, dim, queries, count)
        return products

    def top(result: Any) -> tuple[Any, Any]:
        return result[0][:CHECKED], want

    def rounded(result: Any) -> tuple[Any, Any]:
        return result[0][:CHECKED], want_half

    def dots(result: Any) -> tuple[Any, Any]:
        return result[:CHECKED], np.einsum("qd,qkd->qk", doubled(q[0][:CHECKED]), doubled(g[0][few]))

    row, pairs = 8 * dim, queries * count
    compiled, eager = "torch.compile", "torch eager, chunks of 10"
    fast, plain = goals
    against = Goal("faster", compiled, fast), Goal("faster", eager, 7.0)
    return Work(
        f"rerank diagonal mls, {queries} x {count} into {rows:,} x {dim}",
        "ns/pair",
        pairs,
        "GB/s",
        5 if quick else 15,
        [
            Side("peaccel, prepared", partial(pe.rerank, pq, prepared, ids, K, score="mls"), top, row * pairs, against),
            Side(
                "peaccel, raw arrays",
                partial(pe.rerank, pq, raw, ids, K, score="mls"),
                top,
                row * pairs,
                (Goal("faster", compiled, plain),),
            ),
            Side(
                "peaccel, prepared in float16",
                partial(pe.rerank, pq, half, ids, K, score="mls"),
                rounded,
                row * pairs / 2,
                (Goal("faster", compiled, 3.5 if dim == 128 else 4.0),),
            ),
            Side(compiled, bind(compiled, function, q, g, ids), top, row * pairs),
            Side(eager, chunked, top, row * pairs),
            Side("faiss inner products by id", inner_products, dots, row * pairs / 2),
        ],
        (around(compiled, "faiss inner products by id", RERANK_RELATION[dim], "measured elsewhere"),),
    )


# ---- 2. log_ive ----------------------------------------------------------------------------------------------------


def log_ive(v: int, count: int, goals: tuple[float, float], quick: bool) -> Work:
    """x log-uniform in [1, 1e4]; scipy is fast where it underflows, and the work's name says how often."""
    x = np.exp(np.random.default_rng(v).uniform(0, math.log(1e4), count))
    single = x.astype(np.float32)
    finite, truth, ratio = np.isfinite(scipy_log_ive(v, x)), debye(v, x), debye_ratio(v, x)
    double, table = (Goal("faster", "scipy", goal) for goal in goals)
    value = "peaccel"
    return Work(
        f"log_ive, v={v}, {count:,} elements (scipy finite in {finite.mean():.0%})",
        "ns/element",
        count,
        "GB/s",
        3 if quick else 7,
        [
            Side(value, partial(pe.special.log_ive, v, x), lambda r: (r, truth), 16 * count, (double,)),
            Side("peaccel, float32", partial(pe.special.log_ive, v, single), lambda r: (r, truth), 8 * count, (table,)),
            Side(
                "peaccel iv_ratio",
                partial(pe.special.iv_ratio, v, x),
                lambda r: (r, ratio),
                16 * count,
                (Goal("faster", value, 1.5),),
            ),
            Side("scipy", partial(scipy_log_ive, v, x), lambda r: (r[finite], truth[finite]), 16 * count),
        ],
    )


def small_orders(count: int, quick: bool) -> Work:
    """The cost of small orders, at which Debye's expansion alone is not accurate."""
    x = np.exp(np.random.default_rng(0).uniform(0, math.log(1e4), count))
    usual = "v=63"
    sides = [Side(usual, partial(pe.special.log_ive, 63, x), work=16 * count)]
    goals = (Goal("within", usual, 2.0),)
    sides += [
        Side(f"v={v:g}", partial(pe.special.log_ive, v, x), work=16 * count, goals=goals) for v in (0.0, 0.5, 3.0, 14.9)
    ]
    return Work(f"log_ive of small orders, {count:,} float64", "ns/element", count, "GB/s", 3 if quick else 7, sides)


def scipy_log_ive(v: int, x: np.ndarray) -> np.ndarray:
    """What one writes with scipy."""
    with np.errstate(divide="ignore"):
        return np.log(special.ive(v, x))


def debye(v: int, x: np.ndarray) -> np.ndarray:
    """log(I_v(x) exp(-x)) to two correction terms (DLMF 10.41.3), plenty for v >= 63."""
    r = np.hypot(v, x)
    t = v / r
    u1, u2 = (3 * t - 5 * t**3) / 24, (81 * t**2 - 462 * t**4 + 385 * t**6) / 1152
    return r - x + v * np.log(x / (v + r)) - 0.5 * np.log(2 * math.pi * r) + np.log1p(u1 / v + u2 / v**2)


def debye_ratio(v: int, x: np.ndarray) -> np.ndarray:
    """I_v / I_(v-1) by its continued fraction (DLMF 10.33.1), from far enough out."""
    ratio = x / (v + 400 + np.hypot(x, v + 400))
    for k in range(v + 399, v - 1, -1):
        ratio = 1 / (2 * k / x + ratio)
    return ratio


# ---- 3. samplers ---------------------------------------------------------------------------------------------------


def samplers(dim: int, goal: float, quick: bool) -> Iterator[Work]:
    """Thousands of different kappas, log-uniform in [10, 1e4]; then few, which is what a loop over scipy can bear."""
    rows, draws = 256 if quick else 4096, 5
    items = distribution("vmf", fields("vmf", rows, dim, seed=1))
    kappa = np.exp(np.random.default_rng(0).uniform(math.log(10), math.log(1e4), rows)).astype(np.float32)
    items = pe.VonMisesFisher(items.mu, kappa)
    normal, buffer = pe.Normal(items.mu, kappa), torch.empty(draws, rows, dim)
    written = 4.0 * dim * rows * draws
    weights = np.ones((draws, rows, dim), np.float32)
    floor = "torch normal_, in place"
    kernel = pe.ops.samplers.sample_vmf

    def in_place() -> None:
        pe._core.sample(kernel.name, items.mu, kappa, 1, 0, 2, weights)

    backward = partial(pe.ops._numpy.sample_backward, kernel, weights, items.mu, kappa, 1, 0, 2)
    tfp = tfp_sampler(items.mu, kappa, draws)
    goals = (Goal("within", floor), *([Goal("faster", "tfp on jax, jit", 15 if dim > 128 else 8)] if tfp else []))
    yield Work(
        f"vMF samples, {rows} kappas x {draws}, D={dim}, float32",
        "ns/sample",
        rows * draws,
        "GB/s",
        5 if quick else 15,
        [
            Side("peaccel, in place", in_place, work=written, goals=(Goal("within", floor, goal),)),
            Side("peaccel sample", partial(pe.sample, items, draws, seed=1), work=written, goals=goals),
            Side("peaccel sample of normals", partial(pe.sample, normal, draws, seed=1), work=written),
            Side("peaccel backward", backward, work=written),
            Side(floor, buffer.normal_, work=written),
            Side("torch randn", partial(torch.randn, draws, rows, dim), work=written),
            *([Side("tfp on jax, jit", tfp, work=written)] if tfp else []),
        ],
    )
    few = 4 if quick else 32 if dim > 128 else 256
    some, generator = items[:few], np.random.default_rng(0)
    means, rvs = some.mu.astype(np.float64), optional("scipy.stats").vonmises_fisher.rvs
    means /= np.linalg.norm(means, axis=1, keepdims=True)

    def loop() -> Any:
        return [rvs(m, k, draws, random_state=generator) for m, k in zip(means, kappa[:few].tolist(), strict=True)]

    yield Work(
        f"vMF samples, {few} kappas x {draws}, D={dim}",
        "us/sample",
        few * draws,
        "",
        3 if quick else 5,
        [
            Side(
                "peaccel sample",
                partial(pe.sample, some, draws, seed=1),
                goals=(Goal("faster", "scipy rvs, a loop", 200),),
            ),
            Side("scipy rvs, a loop", loop),
        ],
    )


def tfp_sampler(mu: np.ndarray, kappa: np.ndarray, draws: int) -> Callable[[], Any] | None:
    """TensorFlow Probability on JAX, compiled, where it is installed (tfp-nightly: the release lags behind jax)."""
    jax, tfp = optional("jax"), optional("tensorflow_probability.substrates.jax")
    if jax is None or tfp is None:
        return None
    law = tfp.distributions.VonMisesFisher(jax.numpy.asarray(mu), jax.numpy.asarray(kappa))
    draw, keys = jax.jit(lambda key: law.sample(draws, seed=key)), itertools.count()
    return lambda: jax.block_until_ready(draw(jax.random.PRNGKey(next(keys))))


# ---- 4. import -----------------------------------------------------------------------------------------------------


def imports(quick: bool) -> Work:
    """Whole processes, with the threads that a user's process would have."""
    env = {name: value for name, value in os.environ.items() if name not in ONE_THREAD}

    def load(name: str) -> Callable[[], Any]:
        return partial(subprocess.run, [sys.executable, "-c", f"import {name}"], check=True, env=env)

    goal = Goal("within", "import numpy", 1.4)
    sides = [Side("import peaccel", load("peaccel"), goals=(goal,)), Side("import numpy", load("numpy"))]
    return Work("import, whole process", "ms", 1, "", 5 if quick else 15, sides)


# ---- checks and the table ------------------------------------------------------------------------------------------


def facts() -> str:
    """The machine and the versions."""
    cpuinfo = Path("/proc/cpuinfo")
    names = [x for x in cpuinfo.read_text().splitlines() if x.startswith("model name")] if cpuinfo.exists() else []
    cpu = names[0].partition(": ")[2] if names else platform.processor()
    versions = ", ".join(f"{m} {sys.modules[m].__version__}" for m in ("numpy", "torch", "faiss", "scipy"))
    default = blas.DefaultFlatIP(np.zeros((1, 1), np.float32))
    default.close()
    mkl = "; torch: MKL, which does not say" if torch.backends.mkl.is_available() else ""
    return (
        f"cpu: {cpu}, {os.cpu_count()} cores, one used\npeaccel: {pe.build_info()}\nversions: {versions}\n"
        f"BLAS kernels: {blas.kernels()}, by default {default.kernels}{mkl}\n"
        "a rate stands beside what the core did just before: multiply-adds of float32, or sums of an array in memory\n"
    )


def plan(quick: bool) -> dict[str, list[Callable[[], Any]]]:
    """Everything to measure, by name; each builder's data is released before the next one is called."""
    small, rows, bessel = 20_000, 10_000 if quick else 100_000, 100_000 if quick else 1_000_000
    return {
        "rerank": [
            partial(rerank, small if quick else 1_000_000, 128, 100 if quick else 1000, (3.0, 2.0), quick),
            partial(rerank, small if quick else 400_000, 512, 100 if quick else 300, (2.5, 2.3), quick),
            partial(search.rerank_long, small if quick else 400_000, 128, 1.5, quick),
            partial(search.rerank_long, small if quick else 200_000, 512, 2, quick),
            partial(search.rerank_vmf, small if quick else 200_000, 128, 15, quick),
            partial(search.rerank_vmf, small if quick else 100_000, 512, 40, quick),
            partial(search.paired, small if quick else 200_000, 128, quick),
            partial(search.paired, small if quick else 50_000, 512, quick),
        ],
        "search": [
            partial(search.dense, small if quick else 200_000, 128, quick),
            partial(search.dense, small if quick else 100_000, 512, quick),
            partial(search.diagonal, 2048 if quick else 16_384, 128, quick),
            partial(search.diagonal, 2048 if quick else 8192, 512, quick),
        ],
        "plda": [partial(search.one_variance, dim, quick) for dim in (64, 128, 512)],
        "prune": [
            partial(search.pruned, "clusters, het .5", search.clusters, rows, 128, 0.5, 0.5, quick=quick),
            partial(search.pruned, "clusters, het 1", search.clusters, rows, 128, 1.0, 0.5, quick=quick),
            partial(search.pruned, "clusters, het .7", search.clusters, rows // 2, 512, 0.7, 1.0, quick=quick),
            partial(search.pruned, "clusters, het .3", search.clusters, rows // 2, 512, 0.3, 0.5, quick=quick),
            partial(search.pruned, "digits and noise", digits, rows, 128, 0.7, quick=quick),
        ],
        "main": [partial(main_job.main_job, small if quick else 1_000_000, quick)],
        "log_ive": [
            partial(log_ive, 63, bessel, (60, 300), quick),
            partial(log_ive, 255, bessel, (30, 150), quick),
            partial(log_ive, 1023, bessel, (25, 80), quick),
            partial(small_orders, bessel, quick),
        ],
        "samplers": [partial(samplers, 128, 0.5, quick), partial(samplers, 512, 0.28, quick)],
        "training": training.plan(quick),
        "import": [partial(imports, quick)],
    }


def main() -> int:
    """Run the plan; 1 where a comparison was unsound."""
    parser = argparse.ArgumentParser(prog="python -m benches.ratios", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small sizes: shows that all of it runs, judges no peer")
    parser.add_argument("--only", choices=list(plan(True)), help="one kind of work")
    options = parser.parse_args()
    print(facts())
    print(row("work", "side", "time", "rate", "ratio", "goal", "met"), row(*["---"] * 7), sep="\n")
    failures = []
    for name, builders in plan(options.quick).items():
        for build in builders if options.only in (None, name) else ():
            built = build()
            for work in [built] if isinstance(built, Work) else built:
                if isinstance(work, str):  # a line about what was measured before
                    print(work, flush=True)
                else:
                    failures += measure(work, judge=not options.quick)
            del built, work
    print(*(f"FAILED {message}" for message in failures), sep="\n")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
