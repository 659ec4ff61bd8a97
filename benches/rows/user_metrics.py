"""Diagonal MLS as a metric of the user's own in other libraries.

USearch and PyNNDescent take a numba function of two vectors, here [mu, var], and walk their graphs by it; peaccel scans
everything, or reranks what a graph of surrogate features proposes. Recall of the true ten against time for a batch. The
set is that of `benches.recall`: clusters, with variances that made the noise.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from benches.data import clusters, optional, pe
from benches.peers import faiss
from benches.recall import K, share
from benches.table import Row, Run, Side

DIM = 64
TOGETHER = 16  # variances that share a logarithm: 16 within 1e-2 .. 1e2 stay inside float32

numba, usearch, pynndescent = (optional(name) for name in ("numba", "usearch.index", "pynndescent"))


class Way(NamedTuple):
    """One way to search, at one setting; seconds to compile and to build, and the ids that it finds."""

    library: str
    setting: str
    compiled: float
    built: float
    search: Run


def metric(offset: float) -> Callable[[Any, Any], float]:
    """Minus MLS, but for a constant, as numba makes it fast: no test for a zero divisor in the loop, few logarithms."""
    half, zero, one, start = (np.float32(x) for x in (0.5, 0, 1, offset))

    def distance(a: Any, b: Any) -> Any:
        total = zero
        for i in range(DIM):
            d = a[i] - b[i]
            total += d * d / (a[DIM + i] + b[DIM + i])
        for i in range(DIM, 2 * DIM, TOGETHER):
            product = one
            for j in range(i, i + TOGETHER):
                product *= a[j] + b[j]
            total += np.log(product)
        return half * total + start

    return numba.njit(fastmath=True, error_model="numpy")(distance)


def timed(call: Callable[[], Any]) -> tuple[float, Any]:
    """The seconds of a call, and what it returns."""
    start = time.perf_counter()
    result = call()
    return time.perf_counter() - start, result


def peaccels(gallery: Any, queries: Any) -> Iterator[Way]:
    """An exact search, and the reranker."""
    built, prepared = timed(partial(pe.prepare, gallery))
    yield Way("peaccel search", "exact", 0, built, lambda: pe.search(queries, prepared, K).ids)
    built, reranker = timed(partial(pe.FaissReranker.build, gallery, "HNSW32", first_stage="surrogate"))
    for shortlist, ef in ((20, 20), (20, 40), (50, 50), (100, 100), (200, 200)):
        params = faiss.SearchParametersHNSW(efSearch=ef)
        setting = f"HNSW32, surrogate, shortlist {shortlist}, efSearch {ef}"
        search = partial(reranker.search, queries, K, shortlist=shortlist, params=params)
        yield Way("peaccel FaissReranker", setting, 0, built, lambda search=search: search().ids)


def usearchs(x: np.ndarray, q: np.ndarray, offset: float) -> Iterator[Way]:
    """USearch's graph, which keeps the compiled function alive."""
    pointer = numba.types.CPointer(numba.types.float32)
    distance = metric(offset)

    def compile_() -> Any:
        @numba.cfunc(numba.types.float32(pointer, pointer), fastmath=True, error_model="numpy")
        def of_pointers(a: Any, b: Any) -> Any:
            return distance(numba.carray(a, 2 * DIM), numba.carray(b, 2 * DIM))

        return of_pointers

    compiled, function = timed(compile_)
    kinds = usearch.MetricKind.Unknown, usearch.MetricSignature.ArrayArray
    own = usearch.CompiledMetric(function.address, *kinds)
    index = usearch.Index(ndim=2 * DIM, metric=own, dtype="f32", connectivity=32, expansion_add=128)
    built, _ = timed(partial(index.add, np.arange(len(x)), x, threads=1))

    def search(ef: int, _keep: Any = function) -> np.ndarray:
        index.expansion_search = ef
        return index.search(q, K, threads=1).keys

    for ef in (16, 32, 64, 128, 256):
        yield Way("USearch", f"connectivity 32, expansion_search {ef}", compiled, built, partial(search, ef))


def pynndescents(x: np.ndarray, q: np.ndarray, offset: float) -> Iterator[Way]:
    """PyNNDescent's graph."""
    distance = metric(offset)

    def build(rows: int, neighbours: int) -> Any:
        index = pynndescent.NNDescent(x[:rows], metric=distance, n_neighbors=neighbours, n_jobs=1, random_state=0)
        index.prepare()
        index.query(q, K)
        return index

    compiled, _ = timed(partial(build, 1000, 30))
    for neighbours in (30, 50):
        built, index = timed(partial(build, len(x), neighbours))
        for epsilon in (0.05, 0.1, 0.2, 0.3, 0.5):
            search = partial(index.query, q, K, epsilon)
            setting = f"n_neighbors {neighbours}, epsilon {epsilon}"
            yield Way("PyNNDescent", setting, compiled, built, lambda search=search: search()[0])


def user_metrics(quick: bool) -> Iterator[Row]:
    """Every way at every setting, with its recall; then what is compiled and built beforehand."""
    numba.set_num_threads(1)
    rows = 5000 if quick else 50_000
    gallery, queries = clusters(rows, DIM, 0.7)
    x, q = (np.hstack([d.mu, d.var]).astype(np.float32) for d in (gallery, queries))
    true = pe.search(queries, gallery, K).ids
    # PyNNDescent's epsilon is a share of a distance, so that is positive: none outscores the sharpest with itself.
    offset = float(pe.paired(gallery, gallery).max()) + DIM / 2 * np.log(2 * np.pi)
    ways = [*peaccels(gallery, queries), *usearchs(x, q, offset), *pynndescents(x, q, offset)]
    sides, before = {}, {}
    for way in ways:
        goals = {next(iter(sides)): None} if sides else {}  # beside the exact search
        sides[f"{way.library}, {way.setting}, recall {share(true, way.search()):.3f}"] = Side(way.search, goals)
        before[f"{way.library}, {way.setting.partition(',')[0]}"] = way.built, way.compiled
    work = f"{len(q)} queries into {rows:,} x {DIM} by diagonal mls"
    yield Row(work, sides, per=(len(q), "query"), seconds=30)
    for i, what in enumerate(("index built", "metric compiled")):
        (plain, seconds), *others = ((name, took[i]) for name, took in before.items() if took[i])
        yield Row(f"{work}, {what}", {plain: seconds, **{name: Side(took, {plain: None}) for name, took in others}})
