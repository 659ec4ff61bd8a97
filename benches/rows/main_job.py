"""The main job: an index of FAISS proposes a shortlist of 100, diagonal MLS ranks it. Time and recall."""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Iterator
from typing import Any

import numpy as np

from benches.data import Arrays, distribution, doubled, fields, pe
from benches.peers import CASES, CHECKED, compact, faiss, rescored, squared
from benches.recall import share
from benches.rows.retrieval import K
from benches.table import Row, Side, beside, first

DIM, SHORTLIST = 128, 100
JUDGED = 256  # queries whose recall is counted
MISSED, ADDED = {"the goal": 0.01}, {"the goal": 50e-6}
HNSW_BUDGET = 600.0  # seconds


def hnsw(mu: np.ndarray) -> Any:
    """As much of `mu` as goes into an HNSW graph within the budget, on both cores; back to one thread afterwards."""
    index, stop = faiss.IndexHNSWFlat(mu.shape[1], 32), time.monotonic() + HNSW_BUDGET
    index.hnsw.efSearch = 2 * SHORTLIST  # with the default, 16, half of the best ten are not proposed
    faiss.omp_set_num_threads(2)
    while index.ntotal < len(mu) and time.monotonic() < stop:
        index.add(mu[index.ntotal : index.ntotal + 10_000])
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


def main_job(quick: bool) -> Iterator[Row]:
    """The best ten of the shortlist beside the index's own search for it, for indexes over the means."""
    rows = 20_000 if quick else 1_000_000
    classes = rows // 200  # more members than the shortlist: smaller clusters tear the graph, fast and wrong
    g, q = fields("diagonal", rows, DIM, 2, classes), fields("diagonal", 1024, DIM, 1, classes)
    queries, true = distribution("diagonal", q), None
    for build in (hnsw, ivf):
        index, name = build(g[0]), build.__name__.upper()
        g = tuple(x[: index.ntotal] for x in g)
        reranker, of = pe.FaissReranker(index, distribution("diagonal", g), score="mls"), f"{len(g[0]):,} x {DIM}"
        for batch, limit in ((1, None), (256, 1.25)):
            yield both(name, index, reranker, (g, q), batch, limit)
        beyond = added(index, reranker, queries, 200 if quick else 2000)
        work = f"added to the index's part of a call, {name} over {of}, shortlist {SHORTLIST}, Q=1"
        yield beside(work, beyond, ADDED)
        few = queries[:JUDGED]
        true = pe.search(few, reranker.gallery, K).ids if true is None else true
        missed = 1 - share(true, reranker.search(few, K, shortlist=SHORTLIST).ids)
        work = f"missed of the {K} best by mls, {name} over {of}, shortlist {SHORTLIST}, first stage: means"
        yield beside(work, missed, MISSED, unit="")


def both(name: str, index: Any, reranker: Any, data: tuple[Arrays, Arrays], batch: int, limit: float | None) -> Row:
    """Both searches of one batch size."""
    g, q = data
    # The sides go through the same queries half a turn apart: none finds the graph warm from the other's query.
    batches = [tuple(x[i : i + batch] for x in q) for i in range(0, len(q[0]), batch)]
    half = batches[len(batches) // 2 :] + batches[: len(batches) // 2]
    plain, ours = itertools.cycle(batches), itertools.cycle(half)

    def same(ranking: Any, found: Any) -> None:
        few = tuple(doubled(x[:CHECKED]) for x in half[0])
        first(rescored(CASES["mls diagonal"])(np, few, *compact(g, ranking.ids[:CHECKED])), ranking)
        first(squared(doubled(batches[0][0][:CHECKED, None]), doubled(g[0][found[1][:CHECKED]])), found)

    alone, work = f"faiss {name} alone", batch * 4.0 * DIM * looked_at(index, q[0])
    sides = {
        "peaccel FaissReranker": Side(
            lambda: reranker.search(distribution("diagonal", next(ours)), K, shortlist=SHORTLIST),
            {alone: limit},
            work + batch * 8 * DIM * SHORTLIST,
        ),
        alone: Side(lambda: index.search(next(plain)[0], SHORTLIST), work=work),
    }
    name = f"main job, {name} over {len(g[0]):,} x {DIM}, shortlist {SHORTLIST}, Q={batch}"
    return Row(name, sides, same, (batch, "query"), rate="GB/s", seconds=3)


class Timed:
    """An index that knows how long its last search took."""

    def __init__(self, index: Any) -> None:
        self.index, self.d, self.ntotal, self.seconds = index, index.d, index.ntotal, 0.0

    def search(self, *args: Any, **kwargs: Any) -> Any:
        """The index's search."""
        start = time.perf_counter()
        found = self.index.search(*args, **kwargs)
        self.seconds = time.perf_counter() - start
        return found


def added(index: Any, reranker: Any, queries: Any, rounds: int) -> float:
    """The median time of a call for one query beyond the index's part of it.

    The difference of two calls, with and without the reranker, would be lost in the noise between runs.
    """
    timed, beyond = Timed(index), []
    reranker = pe.FaissReranker(timed, reranker.gallery, score="mls")
    for i in range(rounds):
        start = time.perf_counter()
        query = distribution("diagonal", tuple(x[i % len(x)][None] for x in queries.arrays))
        reranker.search(query, K, shortlist=SHORTLIST)
        beyond.append(time.perf_counter() - start - timed.seconds)
    return float(np.median(beyond))
