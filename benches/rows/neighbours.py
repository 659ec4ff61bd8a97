"""Every path of retrieval beside its neighbour: other layouts, odd sizes, long lists, small calls, removals, memory.

docs/measurements.md says of the groups why some are behind.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import Any

import numpy as np

from benches import peak
from benches.data import DIM, PRIOR, ROWS, candidates, doubled, gallery, items, pe, prepared, queries
from benches.peers import (
    CASES,
    CHECKED,
    best,
    by_torch,
    compact,
    faiss,
    flat_index,
    pairwise,
    rescored,
    special,
    top,
    truth,
)
from benches.rows.retrieval import FLAT, K
from benches.table import Row, beside, close, equal, first

CANDIDATES = 100
LLR = f"llr:prior_var={PRIOR}"
Rows = Iterator[Row]


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


def against(want: Any) -> Callable[..., None]:
    """Whether the first scores of a ranking are those of numpy; the peers compute something else."""
    return lambda ours, *others: first(want, ours)


# ---- layouts and scores ----------------------------------------------------------------------------------------------


def rescore_halves(quick: bool) -> Rows:
    """A gallery of halves, by the verb that keeps the order of candidates and by the one that sorts them."""
    q, ids, raw = queries("diagonal")[:1], candidates(1), gallery("diagonal").to("float16")
    for layout, half in (("prepared", pe.prepare(raw, "mls")), ("raw", raw)):
        work, run = f"rescore, {layout} float16 gallery, 1 x {CANDIDATES}", partial(pe.rescore, q, half, ids)
        peers = {"peaccel rerank": partial(pe.rerank, q, half, ids, CANDIDATES)}
        yield beside(work, run, peers, lambda ours, other: equal(other, top(ours)))


def layouts(quick: bool) -> Rows:
    """The same numbers, column by column or in every second column of a wider array."""
    raw, q, ids = gallery("diagonal"), queries("diagonal")[:1], candidates(1)
    rerank, usual = partial(pe.rerank, q, candidates=ids, k=K), "peaccel row-major"
    for name, arranged in (
        ("column-major", np.asfortranarray),
        ("every second column", lambda x: np.repeat(x, 2, axis=1)[:, ::2]),
    ):
        odd = pe.Normal(*map(arranged, raw.arrays))

        def taken(odd: Any = odd) -> Any:
            return rerank(odd[ids[0]], candidates=np.arange(CANDIDATES)[None])

        peers = {usual: partial(rerank, raw), "peaccel, candidates taken by numpy": taken}
        yield beside(f"rerank, raw {name}, 1 x {CANDIDATES}", partial(rerank, odd), peers, equal)
        run, peer = (partial(rerank, x) for x in (pe.prepare(odd), prepared("diagonal")))
        yield beside(f"rerank, prepared {name}, 1 x {CANDIDATES}", run, {usual: peer}, equal)
        run, peer = (partial(pe.FaissReranker(lists(), d).search, q, K) for d in (odd, raw))
        yield beside(f"FaissReranker, {name}, 1 query", run, {usual: peer}, equal)


def derived(quick: bool) -> Rows:
    """Scores whose kernels take other arrays than the gallery has."""
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
    q, item, raw = queries("isotropic")[:1], queries("isotropic")[1:2], gallery("isotropic")
    rerankers = {s: pe.FaissReranker(faiss.clone_index(lists()), raw, score=s) for s in (centred, "mls")}

    def added(reranker: Any) -> Any:
        reranker.add(item)
        return reranker.search(q, K)

    def same(*rankings: Any) -> None:
        for (score, reranker), ranking in zip(rerankers.items(), rankings, strict=True):
            close(pe.rescore(q, reranker.gallery, ranking.ids, score), ranking.scores)

    run, peer = (partial(added, reranker) for reranker in rerankers.values())
    yield beside("add one item, then search, llr with a vector prior_mean", run, {"peaccel, mls": peer}, same)


def expected_cosine(quick: bool) -> Rows:
    """The expected cosine of isotropic normals: the cosine times a factor of each item."""
    q, raw, ids = queries("isotropic")[:1], gallery("isotropic"), candidates(1)
    want = top(by_scipy(q, raw[ids[0]])[None], K)
    for name in ("raw", "prepared"):
        layouts = [(s, raw if name == "raw" else prepared("isotropic", s)) for s in ("expected_cosine", "cosine")]
        run, cosine = (partial(pe.rerank, q, d, ids, K, s) for s, d in layouts)
        work = f"rerank isotropic expected_cosine, {name}, 1 x {CANDIDATES}"
        yield beside(work, run, {"peaccel cosine": cosine}, against(want))
    a, b = raw[:20_000], raw[20_000:40_000]
    work, run, scipys = (
        f"paired isotropic expected_cosine, {len(a):,}",
        partial(pe.paired, a, b),
        partial(by_scipy, a, b),
    )
    for peers in ({"peaccel mls": partial(run, "mls")}, {"numpy and scipy": scipys}):
        yield beside(work, partial(run, "expected_cosine"), peers, lambda scores, _: close(scipys(), scores))


def by_scipy(a: Any, b: Any) -> np.ndarray:
    """The expected cosine of isotropic normals with means of unit length, by Kummer's function."""
    root = math.exp(math.lgamma((a.dim + 1) / 2) - math.lgamma(a.dim / 2 + 1))
    x = [1 / (2 * doubled(d.var)) for d in (a, b)]
    lengths = [np.sqrt(each) * root * special.hyp1f1(0.5, a.dim / 2 + 1, -each) for each in x]
    return lengths[0] * lengths[1] * (a.mu * b.mu).sum(1)


def nivmf(quick: bool) -> Rows:
    """A point's log density under every class."""
    z, classes = queries("point"), items("nivmf", 1000)

    def plain() -> np.ndarray:
        mu, kappa = classes.arrays
        square = kappa * kappa
        lengths = z.mu**2 @ square.T  # squared lengths of K z
        constant = pe.special.vmf_log_norm(DIM, np.sqrt((square * mu * mu).sum(1))) + np.log(kappa).sum(1)
        return constant + z.mu @ (square * mu).T / np.sqrt(lengths) - DIM / 2 * np.log(lengths)

    run = partial(pe.pairwise, z, classes, "nivmf")
    yield beside("pairwise nivmf of points, 256 x 1000", run, {"numpy, two products": plain}, close)


# ---- long lists, removals --------------------------------------------------------------------------------------------


def beside_faiss(work: str, q: Any, ready: Any, score: str, k: int, limit: float, tops: tuple[Any, Any]) -> Row:
    """Exact search beside FAISS's by inner products; `tops` are the true best of both for the first queries."""

    def same(*results: Any) -> None:
        for want, found in zip(tops, results, strict=True):
            first(want, found)

    peers = {FLAT: partial(flat(q.dim).search, q.mu, k)}
    return beside(work, partial(pe.search, q, ready, k, score), peers, same, goal=limit)


def best_dots(q: Any, mu: np.ndarray) -> np.ndarray:
    """The largest inner products of the first queries."""
    return top(q.mu[:CHECKED] @ mu.T)


def long_lists(quick: bool) -> Rows:
    """The best 10 to 1000, by two ranges of variances and by other scores of one product."""
    for dim in (DIM, 512):
        mu, q = gallery("point", dim=dim).mu, queries("point", dim=dim)
        for regime, low, high in (("(.1 .. 1.1) / D", 0.1 / dim, 1.1 / dim), (".01 .. .2", 0.01, 0.2)):
            var = np.random.default_rng(0).uniform(low, high, ROWS + len(q)).astype(np.float32)
            both = pe.Normal(q.mu, var[ROWS:]), pe.Normal(mu, var[:ROWS])
            ready, case = pe.prepare(both[1], "mls"), CASES["mls isotropic"]
            tops = top(pairwise(case)(np, both[0][:CHECKED].arrays, both[1].arrays)), best_dots(q, mu)
            for k in (10, 100, 300, 1000):
                limit = 1 + 0.1 * math.log10(k / 10)  # 1.0 at k = 10 and 1.2 at k = 1000
                for count in (1, 64, 256):
                    work = f"search isotropic mls, var {regime}, {count} into {ROWS:,} x {dim}, top-{k}"
                    yield beside_faiss(work, both[0][:count], ready, "mls", k, limit, tops)
    for case in (CASES["llr isotropic"], CASES["mls vmf"]):
        q, raw = queries(case.kind)[:64], gallery(case.kind)
        tops = truth(case, q.arrays, raw.arrays, 1000), best_dots(q, gallery("point").mu)
        work = f"search {case.kind} {case.score}, 64 into {ROWS:,} x {DIM}, top-100"
        yield beside_faiss(work, q, prepared(case.kind, case.score), case.score, 100, 1.1, tops)
    yield from lists_of_few(10_000)


def lists_of_few(rows: int) -> Rows:
    """Long lists of a small gallery beside torch's product of matrices, scores and topk, eager or compiled."""
    case = CASES["mls isotropic"]
    for dim in (DIM, 512):
        q, raw = queries("isotropic", 64, dim), gallery("isotropic", rows, dim)
        same = partial(first, truth(case, q.arrays, raw.arrays, rows))
        for k in (500, 1000, 2000, 5000, rows):
            scores = partial(by_torch, best(pairwise(case), k), q.arrays, raw.arrays)
            peers = {"torch eager": scores(), "torch.compile": scores(compile=True)}
            run = partial(pe.search, q, prepared("isotropic", "mls", rows, dim), k, "mls")
            yield beside(f"search isotropic mls, 64 into {rows:,} x {dim}, top-{k}", run, peers, same, goal=0.9)


def removals(quick: bool) -> Rows:
    """A tenth of the items replaced by the same items: the index holds a tenth more, and the results are the same."""
    rows, changed = 20_000, 2000
    kept, q = items("diagonal", rows, classes=20), items("diagonal", 1, seed=1, classes=20)
    ids = np.random.default_rng(3).permutation(rows)[:changed]

    def same(ours: Any, other: Any) -> None:
        assert np.isin(ours.ids, other.ids).mean() >= 0.8, "fewer than eight of the ten items are the same"

    for factory in ("Flat", "HNSW32", "IVF256,Flat", "PQ32np"):
        fresh = pe.FaissReranker.build(kept, factory)
        upserted = copy.copy(fresh)
        upserted.upsert(kept[ids], ids)
        work = f"FaissReranker over {factory}, {changed} of {rows:,} upserted"
        peers = {"peaccel, none upserted": partial(fresh.search, q, K)}
        yield beside(work, partial(upserted.search, q, K), peers, same, goal=1 + changed / rows)
        compacted = copy.copy(upserted)
        compacted.compact()
        yield beside(f"{work}, compacted", partial(compacted.search, q, K), peers, same)


# ---- values, sizes, batches ------------------------------------------------------------------------------------------


def not_finite(quick: bool) -> Rows:
    """Every second row of a gallery in halves holds an infinity."""
    for kind, score in (("diagonal", "mls"), ("isotropic", "mls"), ("point", "cosine")):
        q, finite = queries(kind, 4, 1024), gallery(kind, 300, 1024).to("float16")
        mu = finite.mu.copy()
        mu[::2, 0] = np.inf
        run, peer = (partial(pe.pairwise, q, d, score) for d in (type(finite)(mu, *finite.arrays[1:]), finite))
        work = f"pairwise {kind} {score}, float16 x 1024, half of the rows not finite"
        yield beside(work, run, {"peaccel, all finite": peer}, lambda x, y: equal(y[:, 1::2], x[:, 1::2]))


def common_mean(quick: bool) -> Rows:
    """Features of an untrained network, and after a ReLU, whose distances are small beside their lengths."""
    source, (rows, dim) = np.random.default_rng(0), (20_000, 128)
    x, count = source.standard_normal((rows + 256, dim)).astype(np.float32), 256
    plain = {"without a mean": x}
    for name, features in {"1 + 0.05 x": 1 + 0.05 * x, "relu(x) + 3": np.maximum(x, 0) + 3}.items():
        sides = {}
        for side, mu in {name: np.float32(features), **plain}.items():
            d = pe.Normal(mu, np.full(len(mu), mu.var(0).mean()))
            sides[side] = d[:count], d[count:], pe.prepare(d[count:])
        (q, g, ready), (q1, g1, ready1) = sides.values()
        for work, run, peer in (
            ("pairwise", partial(pe.pairwise, q, g[:2000]), partial(pe.pairwise, q1, g1[:2000])),
            ("search, prepared", partial(pe.search, q, ready, K), partial(pe.search, q1, ready1, K)),
        ):
            yield beside(f"{work} isotropic mls, {name}", run, {"peaccel, without a mean": peer}, lambda x, y: None)


def odd_dimensions(quick: bool) -> Rows:
    """The last vector of 16 may be partial: at most 1.05 (D + 15) / D of the time per dimension at a multiple of 64."""
    rows, count = 2000, 64
    ids = candidates(count, rows=rows)
    verbs: dict[str, Callable[..., Any]] = {
        "pairwise": pe.pairwise,
        "rescore": partial(pe.rescore, candidates=ids),
        "rerank": partial(pe.rerank, candidates=ids, k=CANDIDATES),
    }
    for kind in ("diagonal", "isotropic"):
        for dim in (2, 48, 96, 100, 1000):
            multiple = -(-dim // 64) * 64
            (q, ready), other = ((queries(kind, count, d), prepared(kind, "mls", rows, d)) for d in (dim, multiple))
            few = tuple(doubled(x[:CHECKED]) for x in q.arrays)
            want = top(rescored(CASES[f"mls {kind}"])(np, few, *compact(ready.distribution.arrays, ids[:CHECKED])))

            def same(ours: Any, _: Any, want: Any = want) -> None:
                found = ours.scores if isinstance(ours, pe.Ranking) else ours
                first(want, top(found if found.shape == ids.shape else np.take_along_axis(found, ids, 1)))

            for verb, run in verbs.items():
                peers, limit = {f"peaccel, D = {multiple}": partial(run, *other)}, 1.05 * (dim + 15) / multiple
                yield beside(f"{verb} {kind} mls, D = {dim}", partial(run, q, ready), peers, same, goal=limit)


def few_queries(quick: bool) -> Rows:
    """Search by isotropic mls of one query and of a few queries."""
    q, layouts = queries("isotropic"), {"raw": gallery("isotropic"), "prepared": prepared("isotropic")}
    search = {name: partial(pe.search, gallery=d, k=K) for name, d in layouts.items()}
    want = best(pairwise(CASES["mls isotropic"]), K)(np, q[:CHECKED].arrays, gallery("isotropic").arrays)[0]
    work, run = "search, 1 query, prepared", partial(search["prepared"], q[:1])
    yield beside(work, run, {"peaccel raw": partial(search["raw"], q[:1])}, equal)
    yield beside(work, run, {"numpy, the product alone": lambda: gallery("isotropic").mu @ q.mu[0]}, against(want))

    def singly(run: Callable[..., Any], count: int) -> np.ndarray:
        return np.concatenate([run(q[i : i + 1]).scores for i in range(count)])

    for name, run in search.items():
        peers = {"peaccel, 3 queries": partial(run, q[:3])}
        yield beside(f"search, 4 queries, {name}", partial(run, q[:4]), peers, against(want), goal=4 / 3)
        for count in (2, 4, 16, 64):
            peers = {f"peaccel, {count} calls": partial(singly, run, count)}
            yield beside(f"search, {count} queries, {name}", partial(run, q[:count]), peers, equal)


# ---- other scores, wide concentrations, memory -----------------------------------------------------------------------


def diagonal_scores(quick: bool) -> Rows:
    """Searches by scores of diagonal normals that no bound prunes, beside mls; neg_kl beside a product of features."""
    q, rows = queries("diagonal"), 20_000
    mls = partial(pe.search, q, prepared("diagonal", "mls", rows), K)
    for score in ("neg_kl", "ppk", "inclusion", LLR):
        want = top(pe.pairwise(q[:CHECKED].to("float64"), gallery("diagonal", rows).to("float64"), score), K)
        work = f"search diagonal {score}, 256 into {rows:,}"
        run = partial(pe.search, q, prepared("diagonal", score, rows), K, score)
        yield beside(work, run, {"peaccel mls": mls}, against(want))
        if score == "neg_kl":
            mu, var = gallery("diagonal", rows).arrays
            constant = (mu * mu / var + np.log(var)).sum(1, keepdims=True)
            index = flat_index(np.hstack([1 / var, mu / var, constant]))
            features = np.hstack([-(q.mu**2 + q.var) / 2, q.mu, np.full((len(q), 1), -0.5, np.float32)])
            rest = (1 + np.log(doubled(q.var))).sum(1, keepdims=True) / 2  # the term of the query alone
            peers = {"faiss IndexFlatIP of 2 D + 1 features": partial(index.search, features, K)}
            yield beside(work, run, peers, lambda ours, found, rest=rest: close(found[0] + rest, ours.scores))


def wide_concentrations(quick: bool) -> Rows:
    """Concentrations over four decades."""
    kappa = np.exp(np.random.default_rng(0).uniform(0, 9, ROWS + 256)).astype(np.float32)
    q = pe.VonMisesFisher(queries("point").mu, kappa[ROWS:])
    raw = pe.VonMisesFisher(gallery("point").mu, kappa[:ROWS])
    # By peaccel's pairs in float64: scipy's Bessel functions underflow here.
    tops = top(pe.pairwise(q[:CHECKED].to("float64"), raw.to("float64"))), best_dots(q, raw.mu)
    ready = pe.prepare(raw)
    for count in (1, 64, 256):
        work = f"search vmf mls, kappa e^0 .. e^9, {count} into {ROWS:,} x {DIM}, top-{K}"
        yield beside_faiss(work, q[:count], ready, "mls", K, 1.0, tops)


def memory(quick: bool) -> Rows:
    """Bytes of prepared galleries, and at the peak of preparing one."""

    def kept(*of: Any) -> float:
        return float(prepared(*of).nbytes)

    for kind, score in (("isotropic", "neg_w2"), ("diagonal", "neg_w2"), ("vmf", "neg_expected_sq_l2")):
        work = f"prepared {kind} {score}, bytes kept"  # one packed copy, a dimension wider for isotropic normals
        yield beside(work, kept(kind, score), {"peaccel mls": kept(kind, "mls")}, goal=1.05, unit="B")
    work, half = "prepared diagonal mls in float16, bytes kept", pe.prepare(gallery("diagonal"), dtype="float16")
    yield beside(work, float(half.nbytes), {"peaccel float32": kept("diagonal", "mls")}, goal=0.5, unit="B")
    if peak.RESET.exists():
        of, size = ("isotropic", "expected_cosine"), (peak.ROWS, peak.DIM)
        work = f"prepare {' '.join(of)}, {peak.ROWS:,} x {peak.DIM}, bytes at its peak"
        peers = {"bytes that it keeps": kept(*of, *size)}
        yield beside(work, peak.of_process(*of[::-1], "prepare"), peers, unit="B")
