"""Every path of retrieval beside its neighbour: other layouts, odd sizes, long lists, small calls, removals, memory.

docs/measurements.md says of the groups why some are behind.
"""

from __future__ import annotations

import copy
import math
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import Any

import numpy as np

from benches import peak
from benches.data import PRIOR, distribution, fields, pe
from benches.peers import (
    CASES,
    CHECKED,
    best,
    bind,
    compact,
    doubled,
    faiss,
    flat_index,
    llr_by_dots,
    pairwise,
    rescored,
    special,
    top,
    truth,
)
from benches.peers import candidates as random_candidates
from benches.rows.retrieval import FLAT, K
from benches.table import Row, Run, beside, close, equal

ROWS, DIM, CANDIDATES = 100_000, 128, 100
LLR = f"llr:prior_var={PRIOR}"
Rows = Iterator[Row]


# ---- data that groups share -----------------------------------------------------------------------------------------


@cache
def gallery(kind: str, rows: int = ROWS, dim: int = DIM) -> Any:
    return distribution(kind, fields(kind, rows, dim, seed=2))


@cache
def queries(kind: str, count: int = 256, dim: int = DIM) -> Any:
    return distribution(kind, fields(kind, count, dim, seed=1))


@cache
def prepared(kind: str, score: Any = "mls", rows: int = ROWS, dim: int = DIM) -> Any:
    return pe.prepare(gallery(kind, rows, dim), score)


@cache
def flat(dim: int) -> Any:
    """The means of the gallery in FAISS."""
    return flat_index(gallery("point", dim=dim).mu)


@cache
def lists() -> Any:
    """The same index in 256 lists, one of which a query searches."""
    index = faiss.index_factory(DIM, "IVF256,Flat", faiss.METRIC_INNER_PRODUCT)
    index.train(gallery("point").mu)
    index.add(gallery("point").mu)
    return index


def candidates(count: int, each: int = CANDIDATES, rows: int = ROWS) -> np.ndarray:
    return random_candidates(count, each, rows)


def against(want: Any) -> Callable[..., None]:
    """Whether the first scores of a ranking are those of numpy; the peer computes something else."""
    return lambda own, *others: close(want[: len(own.scores)], own.scores[: len(want)])


# ---- layouts and scores ----------------------------------------------------------------------------------------------


def rescore_halves(quick: bool) -> Rows:
    q, ids, raw = queries("diagonal")[:1], candidates(1), gallery("diagonal").to("float16")
    for layout, half in (("prepared", pe.prepare(raw, "mls")), ("raw", raw)):
        work, own = f"rescore, {layout} float16 gallery, 1 x {CANDIDATES}", partial(pe.rescore, q, half, ids)
        peers = {"peaccel rerank": partial(pe.rerank, q, half, ids, CANDIDATES)}
        yield beside(work, own, peers, lambda own, other: equal(other, top(own)))


def layouts(quick: bool) -> Rows:
    """The same numbers, column by column or in every second column of a wider array."""
    raw, q, ids = gallery("diagonal"), queries("diagonal")[:1], candidates(1)
    columns = pe.Normal(*map(np.asfortranarray, raw.arrays))
    seconds = pe.Normal(*(np.repeat(x, 2, axis=1)[:, ::2] for x in raw.arrays))
    rerank = partial(pe.rerank, q, candidates=ids, k=K)
    for name, odd in (("column-major", columns), ("every second column", seconds)):

        def taken(odd: Any = odd) -> Any:
            return rerank(odd[ids[0]], candidates=np.arange(CANDIDATES)[None])

        work, own = f"rerank, raw {name}, 1 x {CANDIDATES}", partial(rerank, odd)
        peers = {"peaccel row-major": partial(rerank, raw), "peaccel, candidates taken by numpy": taken}
        yield beside(work, own, peers, equal)
        work, own = f"rerank, prepared {name}, 1 x {CANDIDATES}", partial(rerank, pe.prepare(odd))
        yield beside(work, own, {"peaccel row-major": partial(rerank, prepared("diagonal"))}, equal)
        search, peer = (partial(pe.FaissReranker(lists(), d).search, q, K) for d in (odd, raw))
        yield beside(f"FaissReranker, {name}, 1 query", search, {"peaccel row-major": peer}, equal)


def derived(quick: bool) -> Rows:
    """Scores whose kernels take other arrays than the gallery's own."""
    centred = pe.scores.llr(prior_var=PRIOR, prior_mean=np.full(DIM, 0.01, np.float32))
    for kind, score in (
        ("isotropic", "neg_w2"),
        ("diagonal", "neg_w2"),
        ("isotropic", "norm_cosine"),
        ("isotropic", centred),
        ("vmf", "neg_expected_sq_l2"),
    ):
        rerank = partial(pe.rerank, queries(kind)[:1], candidates=candidates(1), k=K, score=score)
        name = score if isinstance(score, str) else "llr with a vector prior_mean"
        peers = {"peaccel prepared": partial(rerank, prepared(kind, score))}
        yield beside(f"rerank {kind} {name}, raw, 1 x {CANDIDATES}", partial(rerank, gallery(kind)), peers, equal)
    q, item = queries("isotropic")[:1], queries("isotropic")[1:2]
    own, peer = (pe.FaissReranker(faiss.clone_index(lists()), gallery("isotropic"), score=s) for s in (centred, "mls"))

    def added(reranker: Any) -> Any:
        reranker.add(item)
        return reranker.search(q, K)

    def same(ranking: Any, other: Any) -> None:
        close(pe.rescore(q, own.gallery, ranking.ids, centred), ranking.scores)
        close(pe.rescore(q, peer.gallery, other.ids, "mls"), other.scores)

    peers = {"peaccel, mls": partial(added, peer)}
    yield beside("add one item, then search, llr with a vector prior_mean", partial(added, own), peers, same)


def expected_cosine(quick: bool) -> Rows:
    """The expected cosine of isotropic normals: the cosine times a factor of each item."""
    q, raw, ids = queries("isotropic")[:1], gallery("isotropic"), candidates(1)
    want = top(by_scipy(q, raw[ids[0]])[None], K)
    for name in ("raw", "prepared"):
        layouts = [(s, raw if name == "raw" else prepared("isotropic", s)) for s in ("expected_cosine", "cosine")]
        own, cosine = (partial(pe.rerank, q, d, ids, K, s) for s, d in layouts)
        work = f"rerank isotropic expected_cosine, {name}, 1 x {CANDIDATES}"
        yield beside(work, own, {"peaccel cosine": cosine}, against(want))
    a, b = raw[:20_000], raw[20_000:40_000]
    own = partial(pe.paired, a, b, "expected_cosine")
    work, peers = f"paired isotropic expected_cosine, {len(a):,}", {"peaccel mls": partial(pe.paired, a, b, "mls")}
    yield beside(work, own, peers, lambda scores, _: close(by_scipy(a, b), scores))
    yield beside(work, own, {"numpy and scipy": partial(by_scipy, a, b)}, close)


def by_scipy(a: Any, b: Any) -> np.ndarray:
    """The expected cosine of isotropic normals with means of unit length, by Kummer's function."""
    dim = a.dim
    root = math.exp(math.lgamma((dim + 1) / 2) - math.lgamma(dim / 2 + 1))
    x = [1 / (2 * doubled(d.var)) for d in (a, b)]
    lengths = [np.sqrt(each) * root * special.hyp1f1(0.5, dim / 2 + 1, -each) for each in x]
    expected: np.ndarray = lengths[0] * lengths[1] * (a.mu * b.mu).sum(1)
    return expected


def nivmf(quick: bool) -> Rows:
    """A point's log density under every class."""
    z, classes = queries("point"), distribution("nivmf", fields("nivmf", 1000, DIM, seed=2))

    def plain() -> np.ndarray:
        mu, kappa = classes.arrays
        square = kappa * kappa
        lengths = z.mu**2 @ square.T  # squared lengths of K z
        constant = pe.special.vmf_log_norm(DIM, np.sqrt((square * mu * mu).sum(1))) + np.log(kappa).sum(1)
        scores: np.ndarray = constant + z.mu @ (square * mu).T / np.sqrt(lengths) - DIM / 2 * np.log(lengths)
        return scores

    own = partial(pe.pairwise, z, classes, "nivmf")
    yield beside("pairwise nivmf of points, 256 x 1000", own, {"numpy, two products": plain}, close)


# ---- long lists, removals --------------------------------------------------------------------------------------------


def beside_faiss(work: str, q: Any, own: Any, score: str, k: int, limit: float, tops: tuple[Any, Any]) -> Row:
    """Exact search beside FAISS's by inner products; `tops` are the true best of both for the first queries."""

    def same(ranking: Any, found: Any) -> None:
        for got, want in zip((ranking.scores, found[0]), tops, strict=True):
            close(want[: len(q), :k], got[:CHECKED])

    peers = {FLAT: partial(flat(q.dim).search, q.mu, k)}
    return beside(work, partial(pe.search, q, own, k, score), peers, same, goal=limit)


def long_lists(quick: bool) -> Rows:
    for dim in (DIM, 512):
        mu, q = gallery("point", dim=dim).mu, queries("point", dim=dim).mu
        dots = top(q[:CHECKED] @ mu.T)
        for regime, low, high in (("(.1 .. 1.1) / D", 0.1 / dim, 1.1 / dim), (".01 .. .2", 0.01, 0.2)):
            var = np.random.default_rng(0).uniform(low, high, ROWS + len(q)).astype(np.float32)
            both = pe.Normal(q, var[ROWS:]), pe.Normal(mu, var[:ROWS])
            own = pe.prepare(both[1], "mls")
            tops = top(pairwise(CASES["mls isotropic"])(np, both[0][:CHECKED].arrays, both[1].arrays)), dots
            for k in (10, 100, 300, 1000):
                limit = 1 + 0.1 * math.log10(k / 10)  # 1.0 at k = 10 and 1.2 at k = 1000
                for count in (1, 64, 256):
                    work = f"search isotropic mls, var {regime}, {count} into {ROWS:,} x {dim}, top-{k}"
                    yield beside_faiss(work, both[0][:count], own, "mls", k, limit, tops)
    dots = top(queries("point").mu[:CHECKED] @ gallery("point").mu.T)
    for kind, score in (("isotropic", LLR), ("vmf", "mls")):
        q, raw = queries(kind), gallery(kind)
        few, all_of_it = (tuple(map(doubled, d.arrays)) for d in (q[:CHECKED], raw))
        want = llr_by_dots(few, all_of_it) if score == LLR else pairwise(CASES["mls vmf"])(np, few, all_of_it)
        work = f"search {kind} {score}, 64 into {ROWS:,} x {DIM}, top-100"
        yield beside_faiss(work, q[:64], prepared(kind, score), score, 100, 1.1, (top(want), dots))
    yield from lists_of_few(10_000)


def lists_of_few(rows: int) -> Rows:
    """Long lists of a small gallery beside torch's product of matrices, scores and topk, eager or compiled."""
    case = CASES["mls isotropic"]
    for dim in (DIM, 512):
        q, raw = queries("isotropic", 64, dim), gallery("isotropic", rows, dim)
        want = truth(case, q.arrays, raw.arrays, rows)

        def same(ranking: Any, *others: Any, want: np.ndarray = want) -> None:
            for scores in (ranking.scores, *(found[0] for found in others)):
                close(want[:, : scores.shape[1]], scores[:CHECKED])

        for k in (500, 1000, 2000, 5000, rows):
            forms = ("torch eager", "torch.compile")
            peers = {form: bind(form, best(pairwise(case), k), q.arrays, raw.arrays) for form in forms}
            own = partial(pe.search, q, prepared("isotropic", "mls", rows, dim), k, "mls")
            yield beside(f"search isotropic mls, 64 into {rows:,} x {dim}, top-{k}", own, peers, same, goal=0.9)


def removals(quick: bool) -> Rows:
    """A tenth of the items replaced by the same items: the index holds a tenth more, and the results are the same."""
    rows, changed = 20_000, 2000
    items = distribution("diagonal", fields("diagonal", rows, DIM, seed=2, classes=20))
    q = distribution("diagonal", fields("diagonal", 1, DIM, seed=1, classes=20))
    ids = np.random.default_rng(3).permutation(rows)[:changed]

    def same(own: Any, other: Any) -> None:
        assert np.isin(own.ids, other.ids).mean() >= 0.8, "fewer than eight of the ten items are the same"

    for factory in ("Flat", "HNSW32", "IVF256,Flat", "PQ32np"):
        fresh = pe.FaissReranker.build(items, factory)
        upserted = copy.copy(fresh)
        upserted.upsert(items[ids], ids)
        work = f"FaissReranker over {factory}, {changed} of {rows:,} upserted"
        peers = {"peaccel, none upserted": partial(fresh.search, q, K)}
        yield beside(work, partial(upserted.search, q, K), peers, same, goal=1 + changed / rows)
        compacted = copy.copy(upserted)
        compacted.compact()
        yield beside(f"{work}, compacted", partial(compacted.search, q, K), peers, same)


# ---- values, sizes, batches ------------------------------------------------------------------------------------------


def not_finite(quick: bool) -> Rows:
    """Every second row of a gallery in halves holds an infinity."""
    rows, dim, count = 300, 1024, 4
    for kind, score in (("diagonal", "mls"), ("isotropic", "mls"), ("point", "cosine")):
        q, finite = queries(kind, count, dim), gallery(kind, rows, dim).to("float16")
        mu = finite.mu.copy()
        mu[::2, 0] = np.inf
        own, peer = (partial(pe.pairwise, q, d, score) for d in (type(finite)(mu, *finite.arrays[1:]), finite))
        work = f"pairwise {kind} {score}, float16 x {dim}, half of the rows not finite"
        yield beside(work, own, {"peaccel, all finite": peer}, lambda x, y: equal(y[:, 1::2], x[:, 1::2]))


def odd_dimensions(quick: bool) -> Rows:
    """The last vector of 16 may be partial: at most 1.05 (D + 15) / D of the time per dimension at a multiple of 64."""
    rows, count = 2000, 64
    ids = candidates(count, rows=rows)
    for kind in ("diagonal", "isotropic"):
        case = CASES[f"mls {kind}"]
        for dim in (2, 48, 96, 100, 1000):
            multiple = -(-dim // 64) * 64
            q, own = queries(kind, count, dim), prepared(kind, "mls", rows, dim)
            other_q, other = queries(kind, count, multiple), prepared(kind, "mls", rows, multiple)
            few = tuple(doubled(x[:CHECKED]) for x in q.arrays)
            want = rescored(case)(np, few, *compact(own.distribution.arrays, ids[:CHECKED]))

            def same(own: Any, _: Any, want: Any = want) -> None:
                scores = own.scores if isinstance(own, pe.Ranking) else own
                of_candidates = scores if scores.shape == ids.shape else np.take_along_axis(scores, ids, 1)
                close(top(want), top(of_candidates[:CHECKED]))

            for verb, run in (
                ("pairwise", pe.pairwise),
                ("rescore", partial(pe.rescore, candidates=ids)),
                ("rerank", partial(pe.rerank, candidates=ids, k=CANDIDATES)),
            ):
                peers, limit = {f"peaccel, D = {multiple}": partial(run, other_q, other)}, 1.05 * (dim + 15) / multiple
                yield beside(f"{verb} {kind} mls, D = {dim}", partial(run, q, own), peers, same, goal=limit)


def few_queries(quick: bool) -> Rows:
    """Search by isotropic mls of one query and of a few queries."""
    q, layouts = queries("isotropic"), {"raw": gallery("isotropic"), "prepared": prepared("isotropic")}
    search: dict[str, Callable[..., Any]]
    search = {name: partial(pe.search, gallery=d, k=K) for name, d in layouts.items()}
    want = best(pairwise(CASES["mls isotropic"]), K)(np, q[:CHECKED].arrays, gallery("isotropic").arrays)[0]
    peers: dict[str, Run] = {"peaccel raw": partial(search["raw"], q[:1])}
    yield beside("search, 1 query, prepared", partial(search["prepared"], q[:1]), peers, equal)
    peers = {"numpy, the product alone": lambda: gallery("isotropic").mu @ q.mu[0]}
    yield beside("search, 1 query, prepared", partial(search["prepared"], q[:1]), peers, against(want))

    def singly(run: Callable[..., Any], count: int) -> list[Any]:
        return [run(q[i : i + 1]) for i in range(count)]

    for name, run in search.items():
        peers = {"peaccel, 3 queries": partial(run, q[:3])}
        yield beside(f"search, 4 queries, {name}", partial(run, q[:4]), peers, against(want), goal=4 / 3)
        for count in (2, 4, 16, 64):
            peers = {f"peaccel, {count} calls": partial(singly, run, count)}
            work, own = f"search, {count} queries, {name}", partial(run, q[:count])
            yield beside(work, own, peers, lambda own, each: equal(own, np.concatenate([x.scores for x in each])))


# ---- other scores, wide concentrations, memory -----------------------------------------------------------------------


def diagonal_scores(quick: bool) -> Rows:
    q, rows = queries("diagonal"), 20_000
    mls = partial(pe.search, q, prepared("diagonal", "mls", rows), K)
    for score in ("neg_kl", "ppk", "inclusion", LLR):
        want = top(pe.pairwise(q[:CHECKED].to("float64"), gallery("diagonal", rows).to("float64"), score), K)
        own = partial(pe.search, q, prepared("diagonal", score, rows), K, score)
        work = f"search diagonal {score}, 256 into {rows:,}"
        yield beside(work, own, {"peaccel mls": mls}, against(want))
        if score == "neg_kl":
            mu, var = gallery("diagonal", rows).arrays
            constant = (mu * mu / var + np.log(var)).sum(1, keepdims=True)
            index = flat_index(np.hstack([1 / var, mu / var, constant]))
            features = np.hstack([-(q.mu**2 + q.var) / 2, q.mu, np.full((len(q), 1), -0.5, np.float32)])
            rest = (1 + np.log(doubled(q.var))).sum(1, keepdims=True) / 2  # the term of the query alone
            peers = {"faiss IndexFlatIP of 2 D + 1 features": partial(index.search, features, K)}
            yield beside(work, own, peers, lambda ours, found, rest=rest: close(found[0] + rest, ours.scores))


def wide_concentrations(quick: bool) -> Rows:
    kappa = np.exp(np.random.default_rng(0).uniform(0, 9, ROWS + 256)).astype(np.float32)
    q = pe.VonMisesFisher(queries("point").mu, kappa[ROWS:])
    raw = pe.VonMisesFisher(gallery("point").mu, kappa[:ROWS])
    # By peaccel's pairs in float64: scipy's Bessel functions underflow here.
    tops = top(pe.pairwise(q[:CHECKED].to("float64"), raw.to("float64"))), top(q.mu[:CHECKED] @ raw.mu.T)
    own = pe.prepare(raw)
    for count in (1, 64, 256):
        work = f"search vmf mls, kappa e^0 .. e^9, {count} into {ROWS:,} x {DIM}, top-{K}"
        yield beside_faiss(work, q[:count], own, "mls", K, 1.0, tops)


def memory(quick: bool) -> Rows:
    def kept(kind: str, score: str) -> float:
        return float(prepared(kind, score).nbytes)

    for kind, score in (("isotropic", "neg_w2"), ("diagonal", "neg_w2"), ("vmf", "neg_expected_sq_l2")):
        work = f"prepared {kind} {score}, bytes kept"  # one packed copy, a dimension wider for isotropic normals
        yield beside(work, kept(kind, score), {"peaccel mls": kept(kind, "mls")}, goal=1.05, unit="B")
    work, half = "prepared diagonal mls in float16, bytes kept", pe.prepare(gallery("diagonal"), dtype="float16")
    yield beside(work, float(half.nbytes), {"peaccel float32": kept("diagonal", "mls")}, goal=0.5, unit="B")
    if peak.RESET.exists():
        command = [sys.executable, "-m", "benches.peak", "expected_cosine", "isotropic", "prepare"]
        most = float(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
        own = float(prepared("isotropic", "expected_cosine", peak.ROWS, peak.DIM).nbytes)
        work = f"prepare isotropic expected_cosine, {peak.ROWS:,} x {peak.DIM}, bytes at its peak"
        yield beside(work, most, {"bytes that it keeps": own}, unit="B")
