"""The main job: an index of FAISS proposes a shortlist of 100, diagonal MLS ranks it. Time and recall."""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Iterator
from typing import Any

import numpy as np

from benches.common import CASES, Goal, Side, Work, compact, doubled, faiss, rescored
from benches.common import row as table_row
from benches.data import Arrays, distribution, fields, pe

K = 10
DIM, SHORTLIST = 128, 100
CHECKED = 2  # rows of every result that are held against float64 numpy
ASKED = 256  # queries whose recall is counted
RECALL = 0.99
ADDED_US = 50
HNSW_BUDGET_S = 600.0


def data(rows: int) -> tuple[Arrays, Arrays]:
    """A gallery and 1024 queries, unit means in clusters."""
    classes = rows // 200  # more members than the shortlist: smaller clusters tear the graph, fast and wrong
    return fields("diagonal", rows, DIM, 2, classes), fields("diagonal", 1024, DIM, 1, classes)


def hnsw(mu: np.ndarray) -> Any:
    """As much of `mu` as goes into an HNSW graph within the budget, on both cores; back to one thread afterwards."""
    index, stop = faiss.IndexHNSWFlat(mu.shape[1], 32), time.monotonic() + HNSW_BUDGET_S
    index.hnsw.efSearch = 2 * SHORTLIST  # with the default, 16, half of the best ten are not proposed
    faiss.omp_set_num_threads(2)
    block = 10_000
    while index.ntotal < len(mu) and time.monotonic() < stop:
        index.add(mu[index.ntotal : index.ntotal + block])
        print(f"\rhnsw: {index.ntotal:,} of {len(mu):,} rows", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    faiss.omp_set_num_threads(1)
    return index


def ivf(mu: np.ndarray) -> Any:
    """`mu` in a list for every 250 rows, of which a query looks at a 64th."""
    lists = len(mu) // 250
    index = faiss.index_factory(mu.shape[1], f"IVF{lists},Flat")
    index.nprobe = -(-lists // 64)
    faiss.omp_set_num_threads(2)
    index.train(mu[: 39 * lists])  # the fewest vectors that FAISS takes without a warning
    index.add(mu)
    faiss.omp_set_num_threads(1)
    return index


def looked_at(index: Any, queries: np.ndarray) -> float:
    """Vectors that a query is compared with on average: nodes of the graph, or centres and members of lists."""
    graph = hasattr(index, "hnsw")
    stats = faiss.cvar.hnsw_stats if graph else faiss.cvar.indexIVF_stats
    stats.reset()
    index.search(queries, SHORTLIST)
    return stats.ndis / len(queries) + (0 if graph else index.nlist)


def main_job(rows: int, quick: bool) -> Iterator[Work | str]:
    """The best ten of the shortlist beside the index's own search for it, for indexes over the means."""
    g, q = data(rows)
    true = None
    for build in (hnsw, ivf):
        index = build(g[0])
        g = tuple(x[: index.ntotal] for x in g)
        reranker = pe.FaissReranker(index, distribution("diagonal", g), score="mls")
        name, work = build.__name__.upper(), 4 * DIM * looked_at(index, q[0])
        for batch, rounds, goal in (
            (1, 201 if quick else 1001, None),
            (256, 9 if quick else 25, Goal("within", f"faiss {name} alone", 1.25)),
        ):
            yield beside(name, index, reranker, (g, q), batch, rounds, goal, work)
        yield added(name, index, reranker, q, 200 if quick else 2000)
        queries = distribution("diagonal", q)[:ASKED]
        true = pe.search(queries, reranker.gallery, K).ids if true is None else true
        yield share(f"{name} over {len(g[0]):,} x {DIM}", "means", true, reranker.search(queries, K, SHORTLIST).ids)
    del g, index, reranker
    yield from recall(rows // 5)


def beside(
    name: str,
    index: Any,
    reranker: Any,
    data: tuple[Arrays, Arrays],
    batch: int,
    rounds: int,
    goal: Goal | None,
    work: float,
) -> Work:
    """Both searches of one batch size; `work` bytes are what the index looks at for a query."""
    g, q = data
    # The sides go through the same queries half a turn apart: none finds the graph warm from the other's query.
    batches = [tuple(x[i : i + batch] for x in q) for i in range(0, len(q[0]), batch)]
    half = batches[len(batches) // 2 :] + batches[: len(batches) // 2]
    plain, ours = itertools.cycle(batches), itertools.cycle(half)

    def rerank_one() -> Any:
        return reranker.search(distribution("diagonal", next(ours)), K, shortlist=SHORTLIST)

    def own_truth(result: Any) -> tuple[Any, Any]:
        d = doubled(batches[0][0][:CHECKED, None]) - doubled(g[0][result[1][:CHECKED]])
        return result[0][:CHECKED], (d * d).sum(-1)

    def mls_truth(result: Any) -> tuple[Any, Any]:
        few = tuple(doubled(x[:CHECKED]) for x in half[0])
        scores = rescored(CASES["mls diagonal"])
        return result.scores[:CHECKED], scores(np, few, *compact(g, result.ids[:CHECKED]))

    return Work(
        f"main job, {name} over {len(g[0]):,} x {DIM}, shortlist {SHORTLIST}, Q={batch}",
        "us/query",
        batch,
        "GB/s",
        rounds,
        [
            Side(f"faiss {name} alone", lambda: index.search(next(plain)[0], SHORTLIST), own_truth, batch * work),
            Side(
                "peaccel FaissReranker",
                rerank_one,
                mls_truth,
                batch * (work + 8 * DIM * SHORTLIST),
                () if goal is None else (goal,),
            ),
        ],
    )


class Timed:
    """An index that knows how long its last search took."""

    def __init__(self, index: Any) -> None:
        self.index, self.d, self.ntotal, self.seconds = index, index.d, index.ntotal, 0.0

    def search(self, *args: Any, **kwargs: Any) -> Any:
        start = time.perf_counter()
        found = self.index.search(*args, **kwargs)
        self.seconds = time.perf_counter() - start
        return found


def added(name: str, index: Any, reranker: Any, q: Arrays, rounds: int) -> str:
    """A line of the table: what a call for one query takes beyond the index's own part of it.

    The difference of two calls, with and without the reranker, would be lost in the noise between runs.
    """
    timed = Timed(index)
    reranker = pe.FaissReranker(timed, reranker.gallery, score="mls")
    beyond = []
    for i in range(rounds):
        start = time.perf_counter()
        query = distribution("diagonal", tuple(x[i % len(x)][None] for x in q))
        reranker.search(query, K, shortlist=SHORTLIST)
        beyond.append(time.perf_counter() - start - timed.seconds)
    value = 1e6 * float(np.median(beyond))
    what = f"main job, {name} over {index.ntotal:,} x {DIM}, shortlist {SHORTLIST}, Q=1"
    met = "yes" if value <= ADDED_US else "no"
    return table_row(what, "added to the index's part of the call", f"{value:.3g} us", "", "", f"<= {ADDED_US} us", met)


def recall(rows: int) -> Iterator[str]:
    """The share of the true best ten that either first stage of `FaissReranker.build` finds.

    Galleries are smaller than above: surrogate features are three times as wide as means, and their graphs as costly.
    """
    g, q = (distribution("diagonal", x) for x in data(rows))
    queries, lists = q[:ASKED], rows // 250
    true = pe.search(queries, g, K).ids
    for name, factory, params in (
        ("HNSW", "HNSW32", faiss.SearchParametersHNSW(efSearch=2 * SHORTLIST)),
        ("IVF", f"IVF{lists},Flat", faiss.SearchParametersIVF(nprobe=-(-lists // 64))),
    ):
        for first_stage in ("cosine", "surrogate"):
            faiss.omp_set_num_threads(2)
            reranker = pe.FaissReranker.build(g, factory, first_stage)
            faiss.omp_set_num_threads(1)
            found = reranker.search(queries, K, SHORTLIST, params).ids
            yield share(f"{name} over {rows:,} x {DIM}", first_stage, true, found)


def share(name: str, first_stage: str, true: np.ndarray, found: np.ndarray) -> str:
    """A line of the table: how much of the true best ten is found."""
    value = float(np.mean([np.isin(t, f).mean() for t, f in zip(true, found, strict=True)]))
    met = "yes" if value >= RECALL else "no"
    what = f"recall@{K} by mls, {name}, shortlist {SHORTLIST}"
    return table_row(what, f"first stage: {first_stage}", f"{value:.4f}", "", "", f">= {RECALL} with the better", met)
