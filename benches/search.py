"""The works of `benches.ratios` that score many pairs: exact search, vMF reranking, equal rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from benches.blas import DefaultFlatIP
from benches.common import (
    CASES,
    Goal,
    Relation,
    Side,
    Work,
    around,
    best,
    bind,
    compact,
    doubled,
    faiss,
    pairwise,
    rescored,
    torch,
)
from benches.data import PRIOR, distribution, fields, pe

K = 10
CHECKED = 2  # rows of every result that are held against float64 numpy

# On another machine, Q=256, top-10: torch.compile and topk / FAISS IndexFlatIP with the BLAS threshold at 20.
SEARCH_RELATION = {128: 11.2 / 4.68, 512: 19.5 / 14.5}
FLAT, DEFAULT = "faiss IndexFlatIP at its best", "faiss IndexFlatIP at its default"


def dense(rows: int, dim: int, quick: bool) -> Iterator[Work]:
    """Exact search with scores of one inner product: batches, single queries, long lists; and what preparing costs."""
    case, queries, rounds = CASES["mls isotropic"], 256, 5 if quick else 11
    q, g = fields("isotropic", queries, dim, seed=1), fields("isotropic", rows, dim, seed=2)
    vq, vg = fields("vmf", queries, dim, seed=1), fields("vmf", rows, dim, seed=2)
    pq, raw, pvq = distribution("isotropic", q), distribution("isotropic", g), distribution("vmf", vq)
    llr = f"llr:prior_var={PRIOR}"
    prepared, likely = pe.prepare(raw, "mls"), pe.prepare(raw, llr)
    vmf, halves = pe.prepare(distribution("vmf", vg), "mls"), pe.prepare(raw, "mls", dtype="float16")
    index, default = faiss.IndexFlatIP(dim), DefaultFlatIP(g[0])
    index.add(g[0])
    few, gallery = tuple(doubled(x[:CHECKED]) for x in q), tuple(map(doubled, g))
    dots = few[0] @ gallery[0].T
    want = best(pairwise(case), K)(np, few, gallery)[0]
    want_llr = -np.sort(-llr_by_dots(few, gallery))[:, :K]
    few_vmf, gallery_vmf = tuple(doubled(x[:CHECKED]) for x in vq), tuple(map(doubled, vg))
    want_vmf = best(pairwise(CASES["mls vmf"]), K)(np, few_vmf, gallery_vmf)[0]
    del gallery, gallery_vmf

    def is_(truth: np.ndarray) -> Any:
        return lambda result: (result[0][:CHECKED], truth)

    top_dots = is_(-np.sort(-dots)[:, :K])
    compiled, sgemm, matrix = "torch.compile, top-k", "numpy sgemm alone", np.empty((queries, rows), np.float32)
    operations = 2.0 * dim * queries * rows
    name = f"search, {queries} into {rows:,} x {dim}, top-{K}"
    own, vmf_goal, shown = ((Goal("within", FLAT, limit), Goal("within", DEFAULT)) for limit in (1.0, 1.1, None))
    yield Work(
        name,
        "ns/pair",
        queries * rows,
        "GF/s",
        rounds,
        [
            Side("isotropic mls, prepared", partial(pe.search, pq, prepared, K, "mls"), is_(want), operations, own),
            Side("isotropic llr, prepared", partial(pe.search, pq, likely, K, llr), is_(want_llr), operations, own),
            Side("vmf mls, prepared", partial(pe.search, pvq, vmf, K, "mls"), is_(want_vmf), operations, vmf_goal),
            Side(
                "isotropic mls, raw",
                partial(pe.search, pq, raw, K, "mls"),
                is_(want),
                operations,
                shown,
            ),
            Side(FLAT, partial(index.search, q[0], K), top_dots, operations),
            Side(DEFAULT, partial(default.search, q[0], K), top_dots, operations),
            Side(compiled, bind("torch.compile", best(pairwise(case), K), q, g), is_(want), operations),
            Side(sgemm, partial(np.matmul, q[0], g[0].T, out=matrix), lambda m: (m[:CHECKED], dots), operations),
        ],
        (
            Relation(sgemm, FLAT, 0.7, math.inf, "faiss at 0.7 of numpy's sgemm rate or better"),
            around(compiled, FLAT, SEARCH_RELATION[dim], "measured elsewhere"),
        ),
    )
    for batch, k in ((1, K), (32, K), (queries, 100)):
        part, flat = pq[:batch], q[0][:batch]
        work = 4.0 * rows * dim if batch == 1 else operations * batch / queries
        yield Work(
            f"search, {batch} into {rows:,} x {dim}, top-{k}",
            "ns/pair",
            batch * rows,
            "GB/s" if batch == 1 else "GF/s",
            rounds,
            [
                Side(
                    "isotropic mls, prepared",
                    partial(pe.search, part, prepared, k, "mls"),
                    work=work,
                    goals=shown,
                ),
                Side(
                    "isotropic mls, prepared in float16",
                    partial(pe.search, part, halves, k, "mls"),
                    goals=(Goal("within", "isotropic mls, prepared", 1.05),),
                ),
                Side(FLAT, partial(index.search, flat, k), work=work),
                Side(DEFAULT, partial(default.search, flat, k), work=work),
            ],
        )
    default.close()
    add, size = "faiss IndexFlatIP.add", 4.0 * rows * (dim + 1)
    yield Work(
        f"prepare isotropic mls, {rows:,} x {dim}",
        "ms",
        1,
        "GB/s",
        5,
        [
            Side("peaccel prepare", partial(pe.prepare, raw, score="mls"), work=size, goals=(Goal("within", add),)),
            Side(add, lambda: faiss.IndexFlatIP(dim).add(g[0]), work=4.0 * rows * dim),
        ],
    )


def one_variance(dim: int, quick: bool) -> Iterator[Work]:
    """The likelihood ratio of a PLDA, whose items all have one variance, beside one product and a variance of each."""
    queries, rows, count = 256, 2000 if quick else 20_000, 200
    rng = np.random.default_rng(0)
    q, g = (rng.standard_normal((n, dim), np.float32) for n in (queries, rows))
    prior, ids = np.exp(rng.standard_normal(dim)).astype(np.float32), rng.integers(0, rows, (queries, count))
    llr, product = pe.scores.llr(prior_var=prior), pe.scores.get("neg_sq_l2")
    points = pe.Normal(q, 1.0), pe.Normal(g, 1.0)
    own = tuple(pe.Normal(d.mu, d.var.copy()) for d in points)
    weight, share = doubled(0.5 * prior / (2 * prior + 1)), doubled(1 / (prior + 1))
    x, y = (doubled(z)[:, None] for z in (q[:CHECKED], g))
    square = (x - y[:, 0]) ** 2 - share * x**2 - share * y[:, 0] ** 2
    want = 0.5 * np.log((prior + 1.0) ** 2 / (2.0 * prior + 1)).sum() - (weight * square).sum(-1)
    plain = "one squared distance of the same arrays"

    def sides(call: Callable[..., Any], gallery: int | None, truth: Callable[[Any], Any], prepared: bool) -> list[Side]:
        a, b = ((d[0], d[1] if gallery is None else d[1][:gallery]) for d in (points, own))
        laid_out = [pe.prepare(d, s) if prepared else d for d, s in ((a[1], llr), (b[1], llr), (a[1], product))]
        return [
            Side(
                "one variance", partial(call, a[0], laid_out[0], score=llr), truth, goals=(Goal("within", plain, 1.5),)
            ),
            Side("a variance of each", partial(call, b[0], laid_out[1], score=llr), truth),
            Side(plain, partial(call, a[0], laid_out[2], score=product)),
        ]

    best_of = -np.sort(-want)[:, :K]
    few = -np.sort(-np.take_along_axis(want, ids[:CHECKED], 1))[:, :K]
    verbs: dict[str, tuple[float, list[Side]]] = {
        f"pairwise, {queries} x 2000": (
            queries * 2000.0,
            sides(pe.pairwise, 2000, lambda s: (s[:CHECKED], want[:, :2000]), False),
        ),
        f"paired, {queries}": (
            queries,
            sides(pe.paired, queries, lambda s: (s[:CHECKED], want[range(CHECKED), range(CHECKED)]), False),
        ),
    }
    for how, prepared in (("prepared", True), ("raw", False)):
        verbs[f"search, {queries} into {rows:,}, top-{K}, {how}"] = (
            float(queries * rows),
            sides(partial(pe.search, k=K), None, lambda r: (r.scores[:CHECKED], best_of), prepared),
        )
        verbs[f"rerank, {queries} x {count} of {rows:,}, {how}"] = (
            float(queries * count),
            sides(partial(pe.rerank, candidates=ids, k=K), None, lambda r: (r.scores[:CHECKED], few), prepared),
        )
    for name, (pairs, contest) in verbs.items():
        yield Work(f"PLDA, {dim} dimensions, {name}", "ns/pair", pairs, "", 5 if quick else 15, contest)


def llr_by_dots(q: tuple[Any, ...], g: tuple[Any, ...]) -> np.ndarray:
    """The likelihood ratio of isotropic normals by its textbook form."""
    a, b, dim = PRIOR + q[1][:, None], PRIOR + g[1], q[0].shape[1]
    det, aa, bb = a * b - PRIOR**2, (q[0] ** 2).sum(1)[:, None], (g[0] ** 2).sum(1)
    joint = (b * aa - 2 * PRIOR * (q[0] @ g[0].T) + a * bb) / det + dim * np.log(det)
    return 0.5 * (aa / a + bb / b + dim * np.log(a * b) - joint)


def diagonal(rows: int, dim: int, quick: bool) -> Work:
    """Exact search with diagonal MLS: no product of matrices does it."""
    case, queries = CASES["mls diagonal"], 256
    q, g = fields("diagonal", queries, dim, seed=1), fields("diagonal", rows, dim, seed=2)
    pq, raw = distribution("diagonal", q), distribution("diagonal", g)
    prepared = pe.prepare(raw, "mls")
    want = best(pairwise(case), K)(np, tuple(doubled(x[:CHECKED]) for x in q), tuple(map(doubled, g)))[0]
    tq, tg = tuple(map(torch.from_numpy, q)), tuple(map(torch.from_numpy, g))
    tile = 64
    scores = torch.compile(lambda a, b: pairwise(case)(torch, a, b), dynamic=False)

    def compiled() -> Any:
        parts = [scores(tuple(x[i : i + tile] for x in tq), tg) for i in range(0, queries, tile)]
        return torch.topk(torch.cat(parts), K)

    def broadcast() -> Any:
        """PFE's own expression, eight queries at a time, then the halves and constants that it drops."""
        out = []
        for i in range(0, queries, 8):
            (m, s), (m2, s2) = (x[i : i + 8, None] for x in tq), tg
            out.append(((m - m2) ** 2 / (1e-10 + s + s2) + torch.log(s + s2)).sum(-1))
        return torch.topk(-0.5 * torch.cat(out) - dim / 2 * math.log(2 * math.pi), K)

    compiled()

    def top(result: Any) -> tuple[Any, Any]:
        return result[0][:CHECKED], want

    against = Goal("faster", "torch.compile, top-k", 8), Goal("faster", "torch eager, PFE's expression", 80)
    return Work(
        f"search diagonal mls, {queries} into {rows:,} x {dim}, top-{K}",
        "ns/pair",
        queries * rows,
        "GB/s",
        3 if quick else 5,
        [
            Side("peaccel, prepared", partial(pe.search, pq, prepared, K, "mls"), top, goals=against),
            Side("peaccel, raw", partial(pe.search, pq, raw, K, "mls"), top),
            Side("torch.compile, top-k", compiled, top),
            Side("torch eager, PFE's expression", broadcast, top),
        ],
    )


def clusters(rows: int, dim: int, het: float, noise: float) -> tuple[Any, Any]:
    """A hundred clusters, whose items were moved by noise of their own, of lognormal variances; 256 queries."""
    rng = np.random.default_rng(0)
    centres = rng.standard_normal((100, dim), dtype=np.float32)

    def draw(count: int) -> Any:
        var = np.float32(noise**2) * np.exp(np.float32(het) * rng.standard_normal((count, dim), dtype=np.float32))
        moved = np.sqrt(var) * rng.standard_normal((count, dim), dtype=np.float32)
        return pe.Normal(centres[rng.integers(0, len(centres), count)] + moved, var)

    return draw(rows), draw(256)


def pruned(name: str, make: Callable[..., tuple[Any, Any]], rows: int, *rest: float, quick: bool) -> Work:
    """Diagonal MLS with and without the bound that prunes."""
    raw, queries = make(rows, *rest)
    gallery = pe.prepare(raw, "mls")
    want = pe.search(queries, gallery, K, prune="never")
    share = pe.search(queries, gallery, K).scored
    search, never = partial(pe.search, queries, gallery, K), "peaccel, prune=never"
    return Work(
        f"search diagonal mls, {name}, {len(queries)} into {len(raw):,} x {raw.dim}: {100 * share:.2g} % scored",
        "ns/pair",
        len(queries) * len(raw),
        "GB/s",
        3 if quick else 5,
        [
            Side("peaccel, prune=auto", search, lambda r: (r.ids, want.ids), goals=(Goal("faster", never, 1.5),)),
            Side("peaccel, prune=always", partial(search, prune="always"), lambda r: (r.ids, want.ids)),
            Side(never, partial(search, prune="never"), lambda r: (r.ids, want.ids)),
        ],
    )


def rerank_vmf(rows: int, dim: int, goal: float, quick: bool) -> Work:
    """The best ten of 100 random candidates by vMF MLS; scipy's Bessel function where its values do not underflow."""
    case, queries, count = CASES["mls vmf"], 100, 100
    q, g = fields("vmf", queries, dim, seed=1), fields("vmf", rows, dim, seed=2)
    ids = np.random.default_rng(3).integers(0, rows, (queries, count))
    function = best(rescored(case), K)
    want = function(np, tuple(doubled(x[:CHECKED]) for x in q), *compact(g, ids[:CHECKED]))[0]
    pq, prepared = distribution("vmf", q), pe.prepare(distribution("vmf", g), "mls")

    def top(result: Any) -> tuple[Any, Any]:
        return result[0][:CHECKED], want

    peer, work = "numpy and scipy", 4.0 * dim * queries * count
    goals = (Goal("faster", peer, goal),)
    return Work(
        f"rerank vmf mls, {queries} x {count} into {rows:,} x {dim}",
        "ns/pair",
        queries * count,
        "GB/s",
        3 if quick else 9,
        [
            Side(
                "peaccel, prepared",
                partial(pe.rerank, pq, prepared, ids, K, "mls"),
                top,
                work,
                goals,
            ),
            Side(peer, partial(function, np, tuple(map(doubled, q)), tuple(map(doubled, g)), ids), top, work),
        ],
    )


def rerank_long(rows: int, dim: int, goal: float, quick: bool) -> Work:
    """The best ten of the 1000 means nearest to each query, by isotropic MLS: from codes, and from the means alone."""
    case, queries, count = CASES["mls isotropic"], 64, 1000
    q, g = fields("isotropic", queries, dim, seed=1), fields("isotropic", rows, dim, seed=2)
    ids = np.ascontiguousarray(np.argpartition(-(q[0] @ g[0].T), count, axis=1)[:, :count])
    function = best(rescored(case), K)
    want = function(np, tuple(doubled(x[:CHECKED]) for x in q), *compact(g, ids[:CHECKED]))[0]
    pq, raw = distribution("isotropic", q), distribution("isotropic", g)
    coded, prepared = pe.prepare(raw, "mls", codes=True), pe.prepare(raw, "mls")
    half, products = pe.prepare(raw, "mls", dtype="float16"), np.empty((queries, count), np.float32)

    def inner_products() -> np.ndarray:
        faiss.fvec_inner_products_by_idx(*map(faiss.swig_ptr, (products, q[0], g[0], ids)), dim, queries, count)
        return products

    def top(result: Any) -> tuple[Any, Any]:
        return result[0][:CHECKED], want

    def dots(result: Any) -> tuple[Any, Any]:
        return result[:CHECKED], np.einsum("qd,qkd->qk", doubled(q[0][:CHECKED]), doubled(g[0][ids[:CHECKED]]))

    plain, work = "peaccel, prepared", 4.0 * dim * queries * count
    faster = (Goal("faster", plain, goal), Goal("faster", "torch.compile"))
    return Work(
        f"rerank isotropic mls, {queries} x {count} into {rows:,} x {dim}",
        "ns/pair",
        queries * count,
        "GB/s",
        5 if quick else 15,
        [
            Side("peaccel, with codes", partial(pe.rerank, pq, coded, ids, K), top, work / 4, faster),
            Side(plain, partial(pe.rerank, pq, prepared, ids, K), top, work),
            Side("peaccel, prepared in float16", partial(pe.rerank, pq, half, ids, K), work=work / 2),
            Side("torch.compile", bind("torch.compile", function, q, g, ids), top, work),
            Side("faiss inner products by id", inner_products, dots, work),
        ],
    )


def paired(rows: int, dim: int, quick: bool) -> Work:
    """Diagonal MLS of equal rows: a stream of four arrays."""
    case = CASES["mls diagonal"]
    a, b = fields("diagonal", rows, dim, seed=1), fields("diagonal", rows, dim, seed=2)
    want = case.pair(np, *(tuple(doubled(x[:CHECKED]) for x in d) for d in (a, b)))
    da, db = distribution("diagonal", a), distribution("diagonal", b)
    work, compiled = 16.0 * rows * dim, "torch.compile"

    def first(result: Any) -> tuple[Any, Any]:
        return result[:CHECKED], want

    def stream() -> float:
        return sum(float(np.add.reduce(x.reshape(-1))) for x in (*a, *b))

    return Work(
        f"paired diagonal mls, {rows:,} x {dim}",
        "ns/pair",
        rows,
        "GB/s",
        5 if quick else 15,
        [
            Side("peaccel", partial(pe.paired, da, db, "mls"), first, work, (Goal("faster", compiled, 2.7),)),
            Side(compiled, bind("torch.compile", case.pair, a, b), first, work),
            Side("numpy sums of the arrays", stream, work=work),
        ],
    )
