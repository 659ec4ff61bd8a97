"""Sizes of galleries: bytes and processor time of an item and a query, measured; shards and replicas from these.

Prints the tables `sizes` and `machines` of docs/performance: one thread, processor time, medians of rounds by turns.
"""

from __future__ import annotations

import argparse
import math
import pickle
import time
from collections.abc import Iterable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from threadpoolctl import threadpool_limits

from benches.data import fields, items, pe
from benches.peers import faiss, flat_index
from benches.table import Run, by_turns, headed, printed

QUERIES, K, SHORTLISTS, LISTS, PROBES = 64, 10, (100, 1000), 16, 8
KINDS = {"point": "cosine", "isotropic": "mls", "diagonal": "mls", "vmf": "mls"}
MEASURED = "D,items,B in float32,in float16,prepared,rerank 100 us,rerank 1000 us,exact ns a pair,query B,answer B"
SIZED = "D,items,kind,GB in halves,GB of IVF-PQ,shards,exact,with IVF-PQ,replicas,network B,IVF-PQ alone: shards,q/s"

# ---- measured --------------------------------------------------------------------------------------------------------


class Constants(NamedTuple):
    """Of one kind of items and dimension: bytes an item, and microseconds of a core a query."""

    name: str
    bytes: float
    half: float
    prepared: float
    rerank: tuple[float, ...]  # of each shortlist
    pair: float  # of an exact search, an item
    query: float  # bytes of a query as it is sent
    answer: float  # bytes of its best k from a shard


class Index(NamedTuple):
    """Of FAISS alone: bytes an item of IVF-PQ and microseconds a code; microseconds an item of a flat index."""

    bytes: float
    code: float
    flat: float


def a_query(calls: Iterable[Run]) -> list[float]:
    """Microseconds of a core that each call takes a query."""
    found = by_turns(dict(enumerate(calls)), 0.5, time.process_time)
    return [timing.seconds * 1e6 / QUERIES for timing in found.values()]


def measured(size: int, dim: int) -> tuple[dict[str, Constants], Index]:
    """The constants of every kind and of FAISS, all calls of one kind by turns."""
    found, rng = {}, np.random.default_rng(0)
    for name, score in KINDS.items():
        gallery, queries = items(name, size, dim, 1, classes=200), items(name, QUERIES, dim, 2, classes=200)
        ready = pe.prepare(gallery, score)
        search = partial(pe.search, queries, ready, K, score)
        lists = [rng.integers(0, size, (QUERIES, n)) for n in SHORTLISTS]
        *reranks, exact = a_query([*(partial(pe.rerank, queries, gallery, x, K, score) for x in lists), search])
        sent, got = (len(pickle.dumps(x, protocol=5)) / QUERIES for x in (queries, tuple(search())))
        full, half = (sum(x.nbytes for x in d.arrays) / size for d in (gallery, gallery.to("float16")))
        found[name] = Constants(name, full, half, ready.nbytes / size, tuple(reranks), exact / size, sent, got)
    with threadpool_limits(limits=1):  # FAISS's BLAS has threads of its own
        return found, of_faiss(*(fields("point", n, dim, seed, 200)[0] for n, seed in ((size, 1), (QUERIES, 2))))


def of_faiss(mu: np.ndarray, queries: np.ndarray) -> Index:
    """The constants of IVF-PQ with a byte for eight dimensions, and of a flat index by inner product."""
    (size, dim), flat = mu.shape, flat_index(mu)
    coded = faiss.index_factory(dim, f"IVF{LISTS},PQ{dim // 8}", faiss.METRIC_INNER_PRODUCT)
    coded.cp.niter = coded.pq.cp.niter = 2  # what is found is not looked at
    coded.do_polysemous_training = False
    coded.train(mu[:10_000])
    coded.add(mu)
    coded.nprobe = PROBES
    of_flat, of_codes = a_query([partial(flat.search, queries, K), partial(coded.search, queries, SHORTLISTS[0])])
    code = max(0.0, of_codes - LISTS * of_flat / size) / (size * PROBES / LISTS)
    return Index(len(faiss.serialize_index(coded)) / size, code, of_flat / size)


# ---- calculated ------------------------------------------------------------------------------------------------------


class Machine(NamedTuple):
    """A shard's machine, and the demands on the gallery."""

    memory: float = 48e9
    cores: int = 16
    rate: float = 10_000.0  # queries a second


class Size(NamedTuple):
    """The needs of so many items: shards by memory; queries a second of all of them, and replicas for the rate.

    `alone` and `shards_alone` are of an index without items.
    """

    shards: int
    shards_alone: int
    items: float
    index: float
    exact: float
    staged: float
    alone: float
    replicas: int
    network: float


def sized(count: float, of: Constants, index: Index, machine: Machine) -> Size:
    """From the constants: items in halves beside an index; every shard answers every query.

    An index of n items has 4 sqrt(n) lists, of which 64 are scanned. Exact search takes the items alone.
    """
    shards, alone = (max(1, math.ceil(count * x / machine.memory)) for x in (of.half + index.bytes, index.bytes))
    first = [first_stage(count / x, index) for x in (shards, alone)]
    costs = count / shards * of.pair, first[0] + of.rerank[0], first[1]
    exact, staged, of_index = (1e6 * machine.cores / x for x in costs)
    replicas = math.ceil(machine.rate / staged)
    held = count * of.half, count * index.bytes
    return Size(shards, alone, *held, exact, staged, of_index, replicas, shards * (of.query + of.answer))


def first_stage(count: float, index: Index) -> float:
    """Microseconds of a core for a query of an index of so many items."""
    lists = 4 * math.sqrt(count)
    return lists * index.flat + min(64 / lists, 1) * count * index.code


# ---- printed ---------------------------------------------------------------------------------------------------------


def amount(x: float) -> str:
    """A number as the tables show it."""
    return f"{x:,.0f}" if x >= 100 else f"{x:.1f}" if x >= 1 else f"{x:.2g}"


def row(*cells: Any) -> None:
    """A row of a table."""
    printed(*(x if isinstance(x, str) else amount(x) for x in cells))


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--items", type=int, default=32_768, help="how many are measured")
    parser.add_argument("--dims", type=int, nargs="+", default=[128, 512])
    options, machine = parser.parse_args(), Machine()
    tables = {dim: measured(options.items, dim) for dim in options.dims}
    headed(*MEASURED.split(","))
    for dim, (found, index) in tables.items():
        for one in found.values():
            numbers = one.bytes, one.half, one.prepared, *one.rerank, 1e3 * one.pair, one.query, one.answer
            row(str(dim), f"{one.name} {KINDS[one.name]}", *numbers)
        row(str(dim), "FAISS flat", 4 * dim, *[""] * 4, 1e3 * index.flat, "", "")
        row(str(dim), "FAISS IVF-PQ", index.bytes, *[""] * 4, f"{amount(1e3 * index.code)} a code", "", "")
    print(f"\n{machine.memory / 1e9:.0f} GB and {machine.cores} cores a machine; queries/s of all shards, and replicas")
    print(f"of all shards for {machine.rate:.0f} of them by IVF-PQ and reranking:\n")
    headed(*SIZED.split(","))
    for dim, (found, index) in tables.items():
        for count in (1e6, 1e8, 1e10):
            for one in found.values():
                x = sized(count, one, index, machine)
                size = str(dim), f"1e{math.log10(count):.0f}", one.name, x.items / 1e9, x.index / 1e9, str(x.shards)
                row(*size, x.exact, x.staged, str(x.replicas), x.network, str(x.shards_alone), x.alone)


if __name__ == "__main__":
    main()
