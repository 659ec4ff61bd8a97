"""What a gallery takes: bytes and processor time of an item and a query, measured; shards and replicas from these.

Prints the tables `sizes` and `machines` of docs/performance: one thread, processor time, the least of several rounds by
turns.
"""

from __future__ import annotations

import argparse
import math
import pickle
import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from threadpoolctl import threadpool_limits

import peaccel as pe
from benches import blas

faiss: Any = blas.load_faiss()

QUERIES, K, SHORTLISTS, ROUNDS, LISTS, PROBES = 64, 10, (100, 1000), 4, 16, 8
KINDS = {"point": "cosine", "isotropic": "mls", "diagonal": "mls", "vmf": "mls"}


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


class Machine(NamedTuple):
    """What a shard's machine has, and what is asked of the gallery."""

    memory: float = 48e9
    cores: int = 16
    rate: float = 10_000.0  # queries a second


def made(kind: str, n: int, dim: int, seed: int) -> Any:
    """Unit means about 200 centres, as embeddings lie, and uncertainties over a decade."""
    rng = np.random.default_rng([seed, dim])
    centres = np.random.default_rng(dim).standard_normal((200, dim), np.float32)
    mu = centres[rng.integers(0, 200, n)] + rng.standard_normal((n, dim), np.float32)
    mu /= np.linalg.norm(mu, axis=1, keepdims=True)
    spread = np.exp(rng.uniform(-1, 1, (n, dim) if kind == "diagonal" else n)).astype(np.float32)
    if kind == "point":
        return pe.Point(mu)
    return pe.VonMisesFisher(mu, dim * spread) if kind == "vmf" else pe.Normal(mu, spread / dim)


def by_turns(calls: list[Callable[[], object]]) -> list[float]:
    """Microseconds of a core that each call takes a query: the least of the rounds."""
    least = [math.inf] * len(calls)
    for _ in range(ROUNDS):
        for i, call in enumerate(calls):
            begun = time.process_time()
            call()
            least[i] = min(least[i], (time.process_time() - begun) * 1e6 / QUERIES)
    return least


def nbytes(d: Any) -> float:
    """Bytes an item."""
    return sum(x.nbytes for x in d.arrays) / len(d)


def measured(size: int, dim: int) -> tuple[dict[str, Constants], Index]:
    """The constants of every kind and of FAISS, all calls of one kind by turns."""
    pe.set_num_threads(1)
    faiss.omp_set_num_threads(1)
    rng = np.random.default_rng(0)
    found: dict[str, Constants] = {}
    for name, score in KINDS.items():
        gallery, queries = made(name, size, dim, 1), made(name, QUERIES, dim, 2)
        ready = pe.prepare(gallery, score)
        lists = [rng.integers(0, size, (QUERIES, n)) for n in SHORTLISTS]
        *reranks, exact = by_turns(
            [*(partial(pe.rerank, queries, gallery, x, K, score) for x in lists),
             partial(pe.search, queries, ready, K, score)]
        )  # fmt: skip
        answer = tuple(pe.search(queries, ready, K, score))
        sent, got = (len(pickle.dumps(x, protocol=5)) / QUERIES for x in (queries, answer))
        half, prepared = nbytes(gallery.to("float16")), ready.nbytes / size
        found[name] = Constants(name, nbytes(gallery), half, prepared, tuple(reranks), exact / size, sent, got)
    with threadpool_limits(limits=1):  # FAISS's BLAS has threads of its own
        return found, of_faiss(made("point", size, dim, 1).mu, made("point", QUERIES, dim, 2).mu)


def of_faiss(mu: Any, queries: Any) -> Index:
    """The constants of IVF-PQ with a byte for eight dimensions, and of a flat index by inner product."""
    size, dim = mu.shape
    flat, coded = (
        faiss.IndexFlatIP(dim),
        faiss.index_factory(dim, f"IVF{LISTS},PQ{dim // 8}", faiss.METRIC_INNER_PRODUCT),
    )
    flat.add(mu)
    coded.cp.niter = coded.pq.cp.niter = 2  # what is found is not looked at
    coded.do_polysemous_training = False
    coded.train(mu[:10_000])
    coded.add(mu)
    coded.nprobe = PROBES
    of_flat, of_codes = by_turns([lambda: flat.search(queries, K), lambda: coded.search(queries, SHORTLISTS[0])])
    scanned = size * PROBES / LISTS
    code = max(0.0, of_codes - LISTS * of_flat / size) / scanned
    return Index(len(faiss.serialize_index(coded)) / size, code, of_flat / size)


class Size(NamedTuple):
    """What so many items take: shards by memory; queries a second of all of them, and replicas for the rate.

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


def sized(items: float, of: Constants, index: Index, machine: Machine) -> Size:
    """From the constants: items in halves beside an index; every shard answers every query.

    An index of n items has 4 sqrt(n) lists, of which 64 are scanned. Exact search takes the items alone.
    """
    shards, alone = (max(1, math.ceil(items * x / machine.memory)) for x in (of.half + index.bytes, index.bytes))
    first = [first_stage(items / x, index) for x in (shards, alone)]
    costs = items / shards * of.pair, first[0] + of.rerank[0], first[1]
    exact, staged, of_index = (1e6 * machine.cores / x for x in costs)
    replicas = math.ceil(machine.rate / staged)
    held = items * of.half, items * index.bytes
    return Size(shards, alone, *held, exact, staged, of_index, replicas, shards * (of.query + of.answer))


def first_stage(items: float, index: Index) -> float:
    """Microseconds of a core for a query of an index of so many items."""
    lists = 4 * math.sqrt(items)
    return lists * index.flat + min(64 / lists, 1) * items * index.code


def amount(x: float) -> str:
    """A number as the tables show it."""
    return f"{x:,.0f}" if x >= 100 else f"{x:.1f}" if x >= 1 else f"{x:.2g}"


MEASURED = "D,items,B in float32,in float16,prepared,rerank 100 us,rerank 1000 us,exact ns a pair,query B,answer B"
SIZED = "D,items,kind,GB in halves,GB of IVF-PQ,shards,exact,with IVF-PQ,replicas,network B,IVF-PQ alone: shards,q/s"


def row(*cells: object) -> str:
    """A row of a table."""
    return f"| {' | '.join(x if isinstance(x, str) else amount(x) for x in cells)} |"  # type: ignore[arg-type]


def head(names: str) -> str:
    """The head of a table."""
    return row(*names.split(",")) + "\n" + "|---" * len(names.split(",")) + "|"


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--items", type=int, default=32_768, help="how many are measured")
    parser.add_argument("--dims", type=int, nargs="+", default=[128, 512])
    given, machine = parser.parse_args(), Machine()
    tables = {dim: measured(given.items, dim) for dim in given.dims}
    print(head(MEASURED))
    for dim, (found, index) in tables.items():
        for one in found.values():
            what = f"{one.name} {KINDS[one.name]}"
            numbers = one.bytes, one.half, one.prepared, *one.rerank, 1e3 * one.pair, one.query, one.answer
            print(row(str(dim), what, *numbers))
        print(row(str(dim), "FAISS flat", 4 * dim, *[""] * 4, 1e3 * index.flat, "", ""))
        print(row(str(dim), "FAISS IVF-PQ", index.bytes, *[""] * 4, f"{amount(1e3 * index.code)} a code", "", ""))
    print(f"\n{machine.memory / 1e9:.0f} GB and {machine.cores} cores a machine; queries/s of all shards, and replicas")
    print(f"of all shards for {machine.rate:.0f} of them by IVF-PQ and reranking:\n\n{head(SIZED)}")
    for dim, (found, index) in tables.items():
        for items in (1e6, 1e8, 1e10):
            for one in found.values():
                x = sized(items, one, index, machine)
                size = str(dim), f"1e{math.log10(items):.0f}", one.name, x.items / 1e9, x.index / 1e9, str(x.shards)
                print(row(*size, x.exact, x.staged, str(x.replicas), x.network, str(x.shards_alone), x.alone))


if __name__ == "__main__":
    main()
