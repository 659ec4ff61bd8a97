"""Recall of the true best ten by a first stage: `python -m benches.recall [--quick] [--curve]` prints a table.

The true best ten are those of an exact search by the score. A row is the share of them among the first 10, 50, 100, 500
of a first stage: cosine, or the surrogate features of the score. All sets but the digits are drawn from the model that
the score assumes, with variances that really made the noise; nothing here is a trained model. `--curve`: recall and
time of a search by the length of its shortlist, which also sets how much of the index is looked at.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from functools import partial
from time import process_time
from typing import Any, NamedTuple

import numpy as np

from benches.data import clusters, pe, unit
from benches.peers import faiss
from benches.table import by_turns, headed, printed

K, QUERIES = 10, 200
SHORTLISTS = (10, 50, 100, 500)
INDEXES = ("Flat", "HNSW32", "IVF256,Flat", "PQ32np", "IVF256,PQ32np")  # np: no minute of polysemous training
PROBES = 16  # of the 256 lists
PAST = "surrogate of past queries"
CURVE = (10, 25, 50, 100, 200, 400)


def share(true: np.ndarray, found: np.ndarray) -> float:
    """How much of the true best is found."""
    return float(np.mean([np.isin(t, f).mean() for t, f in zip(true, found, strict=True)]))


# ---- sets ------------------------------------------------------------------------------------------------------------


class Set(NamedTuple):
    """A gallery and its queries; `past` are earlier queries, from which a reference may be made."""

    name: str
    gallery: Any
    queries: Any
    score: str = "mls"
    past: Any = None
    indexes: tuple[str, ...] = ("Flat",)


def directions(rows: int, dim: int, het: float) -> tuple[Any, Any]:
    """Clusters on the sphere, concentrations lognormal around D."""
    rng = np.random.default_rng(0)
    centres = unit(rng.standard_normal((rows // 50, dim)))

    def draw(count: int, seed: int) -> Any:
        kappa = dim * np.exp(het * rng.standard_normal(count))
        around = pe.VonMisesFisher(centres[rng.integers(0, len(centres), count)], kappa)
        mu = pe.sample(around, 1, seed=seed)[0]
        return pe.VonMisesFisher(mu.astype(np.float32), kappa.astype(np.float32))

    return draw(rows, 1), draw(QUERIES, 2)


def digits(rows: int, dim: int, het: float) -> tuple[Any, Any]:
    """MNIST scans in their leading principal components, which then are moved by noise of half their spread."""
    from peaccel.data.digits import load_scans

    scans, _ = load_scans("mnist")
    flat = scans.reshape(len(scans), -1) - scans.reshape(len(scans), -1).mean(0)
    axes = np.linalg.svd(flat, full_matrices=False)[2][:dim]
    found = flat @ axes.T
    rng = np.random.default_rng(0)
    var = np.exp(het * rng.standard_normal(found.shape)) * (0.5 * found.std()) ** 2
    mu = found + np.sqrt(var) * rng.standard_normal(found.shape)
    order = rng.permutation(len(mu))
    moved = pe.Normal(mu[order].astype(np.float32), var[order].astype(np.float32))
    return moved[QUERIES : QUERIES + rows], moved[:QUERIES]


def sets(quick: bool) -> Iterator[Set]:
    """Each gallery with its score."""
    rows = 10_000 if quick else 50_000
    for het in (0.5, 1.0):
        for kind, indexes in (("diagonal", INDEXES), ("isotropic", INDEXES[:1])):
            yield Set(f"{kind} D=128 N={rows} het {het}", *clusters(rows, 128, het, kind=kind), indexes=indexes)
        yield Set(f"vMF D=128 N={rows} het {het}", *directions(rows, 128, het))
    yield Set(f"diagonal D=128 N={rows} het 1.0", *clusters(rows, 128, 1.0), "llr:prior_var=1")
    gallery, queries = clusters(rows, 128, 0.5, spread=10.0, queries=2 * QUERIES)
    name = f"diagonal D=128 N={rows} het 0.5, queries 10 x"
    yield Set(name, gallery, queries[:QUERIES], past=queries[QUERIES:])
    yield Set(f"diagonal D=512 N={rows // 5} het 0.7", *clusters(rows // 5, 512, 0.7))
    yield Set("digits D=64 N=4800 het 0.7", *digits(4800, 64, 0.7))


# ---- rows ------------------------------------------------------------------------------------------------------------


def row(of: Set, index: str, first_stage: Any) -> None:
    """One line of the table; no reranking: a shortlist of n holds n of the gallery."""
    stage = pe.first_stage_reference(of.gallery, of.score, of.past) if first_stage == PAST else first_stage
    reranker = pe.FaissReranker.build(of.gallery, index, first_stage=stage, score=of.score)
    if hasattr(reranker.index, "hnsw"):
        reranker.index.hnsw.efSearch = max(SHORTLISTS)
    if hasattr(reranker.index, "nprobe"):
        reranker.index.nprobe = PROBES
    true = pe.search(of.queries, of.gallery, K, of.score).ids
    # True items in the shortlist rank first.
    found = [share(true, reranker.search(of.queries, K, shortlist=count).ids) for count in SHORTLISTS]
    printed(of.name, of.score, index, first_stage, reranker.index.d, *(f"{x:.3f}" for x in found))


def curve(rows: int) -> None:
    """Recall and microseconds a query by shortlist, one thread, of normals: exactly, and under two indexes."""
    gallery, queries = clusters(rows, 128, 0.5, kind="isotropic")
    name, prepared, threads = f"{rows:,} isotropic normals, D = 128", pe.prepare(gallery), faiss.omp_get_max_threads()
    headed("gallery", "index", "shortlist", "recall of the best ten", "us a query")

    def measured(index: str, shortlist: Any, search: Any) -> None:
        time, found = by_turns({"": search}, 0.5, process_time)[""].seconds, search().ids
        printed(name, index, shortlist, f"{share(true, found):.4f}", f"{1e6 * time / QUERIES:.0f}")

    pe.set_num_threads(1)
    true = pe.search(queries, prepared, K).ids
    measured("exact search", "all", partial(pe.search, queries, prepared, K))
    for index in ("HNSW32", "IVF1024,Flat"):
        faiss.omp_set_num_threads(threads)
        reranker = pe.FaissReranker.build(gallery, index)
        faiss.omp_set_num_threads(1)
        for shortlist in CURVE:
            measured(index, shortlist, partial(reranker.search, queries, K, shortlist=shortlist))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m benches.recall", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="10 000 items in place of 50 000")
    parser.add_argument(
        "--curve", action="store_true", help="by shortlist, with times, of 1,000,000 items (half an hour)"
    )
    options = parser.parse_args()
    if faiss is None:
        parser.error("FAISS is not installed: pip install peaccel[faiss]")
    if options.curve:
        return curve(40_000 if options.quick else 1_000_000)
    headed("set", "score", "index", "first stage", "width", *(f"@{n}" for n in SHORTLISTS))
    for each in sets(options.quick):
        for index in each.indexes:
            for first_stage in ("cosine", "surrogate", *([PAST] if each.past is not None else [])):
                row(each, index, first_stage)


if __name__ == "__main__":
    main()
