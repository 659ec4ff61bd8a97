"""What a first stage finds of the true best ten: `python -m benches.recall [--quick] [--curve]` prints a table.

The true best ten are those of an exact search by the score. A row is the share of them among the first 10, 50, 100, 500
of a first stage: cosine, or the surrogate features of the score. All sets but the digits are drawn from the model that
the score assumes, with variances that really made the noise; nothing here is a trained model. `--curve`: recall and
time of a search by the length of its shortlist, which also sets how much of the index is looked at.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np

from benches.data import pe, unit
from benches.peers import faiss

K = 10
SHORTLISTS = (10, 50, 100, 500)
MEMBERS = 50  # items of a cluster
QUERIES = 200
INDEXES = ("Flat", "HNSW32", "IVF256,Flat", "PQ32np", "IVF256,PQ32np")  # np: no minute of polysemous training
PROBES = 16  # of the 256 lists
PAST = "surrogate of past queries"
CURVE = (10, 25, 50, 100, 200, 400)
HEADER = ("set", "score", "index", "first stage", "width", *(f"@{n}" for n in SHORTLISTS))


# ---- sets ------------------------------------------------------------------------------------------------------------


class Set(NamedTuple):
    """A gallery and its queries; `past` are earlier queries, from which a reference may be made."""

    name: str
    gallery: Any
    queries: Any
    score: str = "mls"
    past: Any = None
    indexes: tuple[str, ...] = ("Flat",)


def normals(kind: str, rows: int, dim: int, het: float, spread: float = 1.0, queries: int = QUERIES) -> tuple[Any, Any]:
    """Clusters whose items were moved by noise of their own, lognormal variances; queries' are `spread` times these."""
    rng = np.random.default_rng(0)
    centres = rng.standard_normal((rows // MEMBERS, dim), dtype=np.float32)

    def draw(count: int, scale: float) -> Any:
        shape = (count, dim) if kind == "diagonal" else (count, 1)
        var = np.float32(scale) * np.exp(np.float32(het) * rng.standard_normal(shape, dtype=np.float32))
        noise = np.sqrt(var) * rng.standard_normal((count, dim), dtype=np.float32)
        mu = centres[rng.integers(0, len(centres), count)] + noise
        return pe.Normal(mu, var if kind == "diagonal" else var[:, 0])

    return draw(rows, 1.0), draw(queries, spread)


def directions(rows: int, dim: int, het: float) -> tuple[Any, Any]:
    """Clusters on the sphere, concentrations lognormal around D."""
    rng = np.random.default_rng(0)
    centres = unit(rng.standard_normal((rows // MEMBERS, dim)))

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
    all_of_them = pe.Normal(mu[order].astype(np.float32), var[order].astype(np.float32))
    return all_of_them[QUERIES : QUERIES + rows], all_of_them[:QUERIES]


def sets(quick: bool) -> Iterator[Set]:
    rows = 10_000 if quick else 50_000
    for het in (0.5, 1.0):
        for kind in ("diagonal", "isotropic"):
            pair = normals(kind, rows, 128, het)
            yield Set(f"{kind} D=128 N={rows} het {het}", *pair, indexes=INDEXES if kind == "diagonal" else ("Flat",))
        yield Set(f"vMF D=128 N={rows} het {het}", *directions(rows, 128, het))
    yield Set(f"diagonal D=128 N={rows} het 1.0", *normals("diagonal", rows, 128, 1.0), "llr:prior_var=1")
    gallery, queries = normals("diagonal", rows, 128, 0.5, 10.0, 2 * QUERIES)
    name = f"diagonal D=128 N={rows} het 0.5, queries 10 x"
    yield Set(name, gallery, queries[:QUERIES], past=queries[QUERIES:])
    wide = rows // 5
    yield Set(f"diagonal D=512 N={wide} het 0.7", *normals("diagonal", wide, 512, 0.7))
    yield Set("digits D=64 N=4800 het 0.7", *digits(4800, 64, 0.7))


# ---- rows ------------------------------------------------------------------------------------------------------------


def row(of: Set, index: str, first_stage: str) -> str:
    """One line of the table; no reranking: a shortlist of n holds n of the gallery."""
    stage: Any = first_stage
    if first_stage == PAST:
        stage = pe.first_stage_reference(of.gallery, of.score, of.past)
    reranker = pe.FaissReranker.build(of.gallery, index, first_stage=stage, score=of.score)
    if hasattr(reranker.index, "hnsw"):
        reranker.index.hnsw.efSearch = max(SHORTLISTS)
    if hasattr(reranker.index, "nprobe"):
        reranker.index.nprobe = PROBES
    true = pe.search(of.queries, of.gallery, K, of.score).ids
    cells = []
    for count in SHORTLISTS:
        found = reranker.search(of.queries, K, shortlist=count).ids  # true items in the shortlist rank first
        cells.append(f"{np.mean([np.isin(t, f).mean() for t, f in zip(true, found, strict=True)]):.3f}")
    return line(of.name, of.score, index, first_stage, reranker.index.d, *cells)


def curve(rows: int) -> Iterator[str]:
    """Recall and microseconds a query by shortlist, one thread, of isotropic normals under two indexes."""
    gallery, queries = normals("isotropic", rows, 128, 0.5)
    true = pe.search(queries, gallery, K).ids
    yield line("gallery", "index", "shortlist", "recall of the best ten", "us a query")
    for index in ("HNSW32", "IVF1024,Flat"):
        reranker = pe.FaissReranker.build(gallery, index)
        for shortlist in CURVE:
            times = []
            for _ in range(5):
                start = perf_counter()
                found = reranker.search(queries, K, shortlist=shortlist).ids
                times.append(perf_counter() - start)
            recall = np.mean([np.isin(t, f).mean() for t, f in zip(true, found, strict=True)])
            name = f"{rows:,} isotropic normals, D = 128"
            yield line(name, index, shortlist, f"{recall:.4f}", f"{1e6 * np.median(times) / QUERIES:.0f}")


def line(*cells: Any) -> str:
    return "| " + " | ".join(str(cell) for cell in cells) + " |"


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m benches.recall", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="10 000 items in place of 50 000")
    parser.add_argument("--curve", action="store_true", help="recall and time by shortlist, 1,000,000 items (half an hour)")
    options = parser.parse_args()
    if faiss is None:
        print("benches.recall needs FAISS: pip install peaccel[faiss]")
        return 1
    if options.curve:
        faiss.omp_set_num_threads(1)
        pe.set_num_threads(1)
        print(*curve(40_000 if options.quick else 1_000_000), sep="\n", flush=True)
        return 0
    print(line(*HEADER), line(*["---"] * len(HEADER)), sep="\n")
    for each in sets(options.quick):
        for index in each.indexes:
            for first_stage in ("cosine", "surrogate", *([PAST] if each.past is not None else [])):
                print(row(each, index, first_stage), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
