"""Candidates, exact search and pairs of rows beside torch, FAISS and scipy."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np

from benches.blas import DefaultFlatIP
from benches.data import PRIOR, clusters, distribution, fields, pe
from benches.peers import (
    CASES,
    CHECKED,
    best,
    bind,
    candidates,
    compact,
    compiled,
    doubled,
    faiss,
    flat_index,
    llr_by_dots,
    pairwise,
    products_by_id,
    rescored,
    top,
    torch,
    truth,
)
from benches.recall import digits
from benches.table import FASTEST, Plausible, Row, Side, around, close, equal, first

K = 10
FLAT, DEFAULT = "faiss IndexFlatIP at its best", "faiss IndexFlatIP at its default"
COMPILED, EAGER, BY_ID = "torch.compile", "torch eager", "faiss inner products by id"
MLS = "peaccel mls, prepared"

# On another machine: torch.compile / faiss.fvec_inner_products_by_idx (one row of the two: half the bytes). At D = 128
# the geometric mean of that machine's 601 / 142 and of 726 / 78 on an Intel Xeon with AVX-512.
RERANK_RELATION = {128: 6.3, 512: 1247 / 364}
# On another machine, Q=256, top-10: torch.compile and topk / FAISS IndexFlatIP with the BLAS threshold at 20.
SEARCH_RELATION = {128: 11.2 / 4.68, 512: 19.5 / 14.5}


# ---- candidates ------------------------------------------------------------------------------------------------------


def rerank(quick: bool) -> Iterator[Row]:
    """The ten best of random candidates, by several scores; and equal rows."""
    few = 20_000
    yield diagonal_candidates(few if quick else 1_000_000, 128, 100 if quick else 1000, (3, 2, 3.5))
    yield diagonal_candidates(few if quick else 400_000, 512, 100 if quick else 300, (2.5, 2.3, 4))
    yield nearest_candidates(few if quick else 400_000, 128, 1.5)
    yield nearest_candidates(few if quick else 200_000, 512, 2)
    yield vmf_candidates(few if quick else 200_000, 128, 15)
    yield vmf_candidates(few if quick else 100_000, 512, 40)
    yield equal_rows(few if quick else 200_000, 128)
    yield equal_rows(few if quick else 50_000, 512)


def diagonal_candidates(rows: int, dim: int, queries: int, faster: tuple[float, float, float]) -> Row:
    """Diagonal MLS of 100 random candidates for each query; prepared, raw and in halves so much faster than torch."""
    case, ids = CASES["mls diagonal"], candidates(queries, 100, rows)
    q, g = fields("diagonal", queries, dim, seed=1), fields("diagonal", rows, dim, seed=2)
    few, of = compact(g, ids[:CHECKED])
    want, halved = truth(case, q, g, K, ids), truth(case, q, tuple(x.astype(np.float16) for x in few), K, of)
    products = np.einsum("qd,qkd->qk", doubled(q[0][:CHECKED]), few[0].reshape(*of.shape, dim))
    pq, raw = distribution("diagonal", q), distribution("diagonal", g)
    tq, tg, tids = tuple(map(torch.from_numpy, q)), tuple(map(torch.from_numpy, g)), torch.from_numpy(ids)

    def chunked() -> Any:
        score = partial(rescored(case), torch)
        parts = [score(tuple(x[i : i + 10] for x in tq), tg, tids[i : i + 10]) for i in range(0, queries, 10)]
        return torch.topk(torch.cat(parts), K)

    def same(prepared: Any, plain: Any, half: Any, compiled: Any, eager: Any, dots: Any) -> None:
        first(want, prepared, plain, compiled, eager)
        first(halved, half)
        close(products, dots[:CHECKED])

    ours, work = partial(pe.rerank, pq, candidates=ids, k=K, score="mls"), 8.0 * dim * ids.size
    fast, plain, half = (1 / x for x in faster)
    sides = {
        "peaccel, prepared": Side(partial(ours, pe.prepare(raw, "mls")), {COMPILED: fast, EAGER: 1 / 7}, work),
        "peaccel, raw arrays": Side(partial(ours, raw), {COMPILED: plain}, work),
        "peaccel, prepared in float16": Side(
            partial(ours, pe.prepare(raw, "mls", dtype="float16")), {COMPILED: half}, work / 2
        ),
        COMPILED: Side(bind(COMPILED, best(rescored(case), K), q, g, ids), work=work),
        EAGER: Side(chunked, work=work),
        BY_ID: Side(products_by_id(q[0], g[0], ids), work=work / 2),
    }
    name = f"rerank diagonal mls, {queries} x 100 into {rows:,} x {dim}"
    known = (around(COMPILED, BY_ID, RERANK_RELATION[dim]),)
    return Row(name, sides, same, (ids.size, "pair"), rate="GB/s", seconds=8, plausible=known)


def nearest_candidates(rows: int, dim: int, faster: float) -> Row:
    """The best ten of the 1000 means nearest to each query, by isotropic MLS: from codes, and from the means alone."""
    case, queries, count = CASES["mls isotropic"], 64, 1000
    q, g = fields("isotropic", queries, dim, seed=1), fields("isotropic", rows, dim, seed=2)
    ids = np.ascontiguousarray(np.argpartition(-(q[0] @ g[0].T), count, axis=1)[:, :count])
    want, pq, raw = truth(case, q, g, K, ids), distribution("isotropic", q), distribution("isotropic", g)
    products = np.einsum("qd,qkd->qk", doubled(q[0][:CHECKED]), doubled(g[0][ids[:CHECKED]]))

    def same(coded: Any, prepared: Any, half: Any, compiled: Any, dots: Any) -> None:
        first(want, coded, prepared, compiled)
        close(products, dots[:CHECKED])

    ours, plain, work = partial(pe.rerank, pq, candidates=ids, k=K), "peaccel, prepared", 4.0 * dim * ids.size
    faster_than = {plain: 1 / faster, COMPILED: None}
    sides = {
        "peaccel, with codes": Side(partial(ours, pe.prepare(raw, "mls", codes=True)), faster_than, work / 4),
        plain: Side(partial(ours, pe.prepare(raw, "mls")), work=work),
        "peaccel, prepared in float16": Side(partial(ours, pe.prepare(raw, "mls", dtype="float16")), work=work / 2),
        COMPILED: Side(bind(COMPILED, best(rescored(case), K), q, g, ids), work=work),
        BY_ID: Side(products_by_id(q[0], g[0], ids), work=work),
    }
    name = f"rerank isotropic mls, {queries} x {count} into {rows:,} x {dim}"
    return Row(name, sides, same, (ids.size, "pair"), rate="GB/s", seconds=3)


def vmf_candidates(rows: int, dim: int, faster: float) -> Row:
    """The best ten of 100 random candidates by vMF MLS; scipy's Bessel function where its values do not underflow."""
    case, ids = CASES["mls vmf"], candidates(100, 100, rows)
    q, g = fields("vmf", 100, dim, seed=1), fields("vmf", rows, dim, seed=2)
    ours = partial(pe.rerank, distribution("vmf", q), pe.prepare(distribution("vmf", g), "mls"), ids, K, "mls")
    theirs = partial(best(rescored(case), K), np, tuple(map(doubled, q)), tuple(map(doubled, g)), ids)
    work, peer = 4.0 * dim * ids.size, "numpy and scipy"
    sides = {"peaccel, prepared": Side(ours, {peer: 1 / faster}, work), peer: Side(theirs, work=work)}
    same, name = partial(first, truth(case, q, g, K, ids)), f"rerank vmf mls, 100 x 100 into {rows:,} x {dim}"
    return Row(name, sides, same, (ids.size, "pair"), rate="GB/s", seconds=3)


def equal_rows(rows: int, dim: int) -> Row:
    """Diagonal MLS of equal rows: a stream of four arrays."""
    case = CASES["mls diagonal"]
    a, b = fields("diagonal", rows, dim, seed=1), fields("diagonal", rows, dim, seed=2)
    want = case.pair(np, *(tuple(doubled(x[:CHECKED]) for x in d) for d in (a, b)))
    ours, work = partial(pe.paired, distribution("diagonal", a), distribution("diagonal", b), "mls"), 16.0 * rows * dim

    def stream() -> float:
        return sum(float(np.add.reduce(x.reshape(-1))) for x in (*a, *b))

    sides = {
        "peaccel": Side(ours, {COMPILED: 1 / 2.7}, work),
        COMPILED: Side(bind(COMPILED, case.pair, a, b), work=work),
        "numpy sums of the arrays": Side(stream, work=work),
    }
    name = f"paired diagonal mls, {rows:,} x {dim}"
    return Row(name, sides, lambda x, y, _: close(want, x[:CHECKED], y[:CHECKED]), (rows, "pair"), rate="GB/s")


# ---- exact search ----------------------------------------------------------------------------------------------------


def search(quick: bool) -> Iterator[Row]:
    """The best ten of whole galleries."""
    yield from by_products(20_000 if quick else 200_000, 128)
    yield from by_products(20_000 if quick else 100_000, 512)
    yield from above_threshold(20_000 if quick else 100_000, 128)
    yield by_divisions(2048 if quick else 16_384, 128)
    yield by_divisions(2048 if quick else 8192, 512)


def by_products(rows: int, dim: int) -> Iterator[Row]:
    """Scores of one inner product: batches, single queries, long lists; and what preparing costs."""
    queries, default = 256, DefaultFlatIP(fields("isotropic", rows, dim, seed=2)[0])
    q, g = fields("isotropic", queries, dim, seed=1), fields("isotropic", rows, dim, seed=2)
    pq, raw, index = distribution("isotropic", q), distribution("isotropic", g), flat_index(g[0])
    yield one_product(q, g, index, default)
    prepared, halves = pe.prepare(raw, "mls"), pe.prepare(raw, "mls", dtype="float16")
    for batch, k in ((1, K), (32, K), (queries, 100)):
        part, flat, work = pq[:batch], q[0][:batch], (4.0 if batch == 1 else 2.0 * batch) * rows * dim
        sides = {
            MLS: Side(partial(pe.search, part, prepared, k, "mls"), {FLAT: None, DEFAULT: None}, work),
            "peaccel mls, in float16": Side(partial(pe.search, part, halves, k, "mls"), {MLS: 1.05}),
            FLAT: Side(partial(index.search, flat, k), work=work),
            DEFAULT: Side(partial(default.search, flat, k), work=work),
        }
        how: dict[str, Any] = {"rate": "GB/s" if batch == 1 else "GF/s", "seconds": 3}
        yield Row(f"search, {batch} into {rows:,} x {dim}, top-{k}", sides, per=(batch * rows, "pair"), **how)
    default.close()
    add, size = "faiss IndexFlatIP.add", 4.0 * rows * dim
    sides = {
        "peaccel prepare": Side(partial(pe.prepare, raw, score="mls"), {add: None}, size + 4.0 * rows),
        add: Side(lambda: faiss.IndexFlatIP(dim).add(g[0]), work=size),
    }
    yield Row(f"prepare isotropic mls, {rows:,} x {dim}", sides, rate="GB/s")


def one_product(q: Any, g: Any, index: Any, default: Any) -> Row:
    """A batch of queries by every score of one inner product."""
    (queries, dim), rows, llr = q[0].shape, len(g[0]), f"llr:prior_var={PRIOR}"
    case, pq, raw = CASES["mls isotropic"], distribution("isotropic", q), distribution("isotropic", g)
    vq, vg = fields("vmf", queries, dim, seed=1), fields("vmf", rows, dim, seed=2)
    few, gallery = tuple(doubled(x[:CHECKED]) for x in q), tuple(map(doubled, g))
    dots = few[0] @ gallery[0].T
    want, want_llr, want_vmf = (
        truth(case, q, g, K),
        top(llr_by_dots(few, gallery), K),
        truth(CASES["mls vmf"], vq, vg, K),
    )
    matrix, work = np.empty((queries, rows), np.float32), 2.0 * dim * queries * rows
    ours, vmf, shown = ({FLAT: limit, DEFAULT: None} for limit in (1.0, 1.1, None))

    def same(
        mls: Any, by_llr: Any, by_vmf: Any, plain: Any, flat: Any, at_default: Any, compiled: Any, product: Any
    ) -> None:
        first(want, mls, plain, compiled)
        first(want_llr, by_llr)
        first(want_vmf, by_vmf)
        first(top(dots, K), flat, at_default)
        close(dots, product[:CHECKED])

    compiled, sgemm = "torch.compile, top-k", "numpy sgemm alone"
    by_vmf = partial(pe.search, distribution("vmf", vq), pe.prepare(distribution("vmf", vg), "mls"), K, "mls")
    sides = {
        MLS: Side(partial(pe.search, pq, pe.prepare(raw, "mls"), K, "mls"), ours, work),
        "peaccel llr, prepared": Side(partial(pe.search, pq, pe.prepare(raw, llr), K, llr), ours, work),
        "peaccel vmf mls, prepared": Side(by_vmf, vmf, work),
        "peaccel mls, raw": Side(partial(pe.search, pq, raw, K, "mls"), shown, work),
        FLAT: Side(partial(index.search, q[0], K), work=work),
        DEFAULT: Side(partial(default.search, q[0], K), work=work),
        compiled: Side(bind(COMPILED, best(pairwise(case), K), q, g), work=work),
        sgemm: Side(partial(np.matmul, q[0], g[0].T, out=matrix), work=work),
    }
    known = (
        Plausible(sgemm, FLAT, 0.7, math.inf, "faiss at 0.7 of numpy's sgemm rate or better"),
        around(compiled, FLAT, SEARCH_RELATION[dim]),
    )
    name = f"search, {queries} into {rows:,} x {dim}, top-{K}"
    return Row(name, sides, same, (queries * rows, "pair"), rate="GF/s", seconds=15, plausible=known)


def above_threshold(rows: int, dim: int) -> Iterator[Row]:
    """All items above a threshold that three of a query reach on average, beside a search for ten."""
    for kind in ("isotropic", "diagonal"):
        q, g = (distribution(kind, fields(kind, n, dim, seed)) for n, seed in ((256, 1), (rows, 2)))
        ready = pe.prepare(g, "mls")
        best = pe.search(q, ready, 1000, "mls")
        threshold = float(np.sort(best.scores, axis=None)[-3 * len(q)])

        def same(ranking: Any, found: Any, best: Any = best, threshold: float = threshold) -> None:
            equal(found.ids, best.ids[best.scores >= threshold])
            equal(ranking.ids, best.ids[:, :K])

        sides = {
            MLS: Side(partial(pe.search, q, ready, K, "mls")),
            "peaccel mls above a threshold": Side(partial(pe.search_above, q, ready, threshold, "mls"), {MLS: 1.2}),
        }
        yield Row(f"search_above, {kind}, 256 into {rows:,} x {dim}", sides, same, (256 * rows, "pair"), seconds=3)


def by_divisions(rows: int, dim: int) -> Row:
    """Exact search with diagonal MLS: no product of matrices does it."""
    case, queries, tile = CASES["mls diagonal"], 256, 64
    q, g = fields("diagonal", queries, dim, seed=1), fields("diagonal", rows, dim, seed=2)
    pq, raw = distribution("diagonal", q), distribution("diagonal", g)
    tq, tg = tuple(map(torch.from_numpy, q)), tuple(map(torch.from_numpy, g))
    scores = compiled(lambda a, b: pairwise(case)(torch, a, b))

    def tiled() -> Any:
        parts = [scores(tuple(x[i : i + tile] for x in tq), tg) for i in range(0, queries, tile)]
        return torch.topk(torch.cat(parts), K)

    def broadcast() -> Any:
        """PFE's own expression, eight queries at a time, then the halves and constants that it drops."""
        out = []
        for i in range(0, queries, 8):
            (m, s), (m2, s2) = (x[i : i + 8, None] for x in tq), tg
            out.append(((m - m2) ** 2 / (1e-10 + s + s2) + torch.log(s + s2)).sum(-1))
        return torch.topk(-0.5 * torch.cat(out) - dim / 2 * math.log(2 * math.pi), K)

    peer, eager = "torch.compile, top-k", "torch eager, PFE's expression"
    sides = {
        "peaccel, prepared": Side(
            partial(pe.search, pq, pe.prepare(raw, "mls"), K, "mls"), {peer: 1 / 8, eager: 1 / 80}
        ),
        "peaccel, raw": Side(partial(pe.search, pq, raw, K, "mls"), {peer: None}),
        peer: tiled,
        eager: broadcast,
    }
    name = f"search diagonal mls, {queries} into {rows:,} x {dim}, top-{K}"
    return Row(name, sides, partial(first, truth(case, q, g, K)), (queries * rows, "pair"), seconds=10)


def plda(quick: bool) -> Iterator[Row]:
    """The likelihood ratio of a PLDA, whose items all have one variance, beside one product and a variance of each."""
    for dim in (64, 128, 512):
        yield from one_variance(dim, 2000 if quick else 20_000)


def one_variance(dim: int, rows: int) -> Iterator[Row]:
    """Every verb with the one variance of all items, raw and prepared."""
    queries, rng, plain = 256, np.random.default_rng(0), "one squared distance of the same arrays"
    q, g = (rng.standard_normal((n, dim), np.float32) for n in (queries, rows))
    prior, ids = np.exp(rng.standard_normal(dim)).astype(np.float32), candidates(queries, 200, rows)
    llr, product = pe.scores.llr(prior_var=prior), pe.scores.get("neg_sq_l2")
    weight, share = doubled(0.5 * prior / (2 * prior + 1)), doubled(1 / (prior + 1))
    x, y = (doubled(z)[:, None] for z in (q[:CHECKED], g))
    square = (x - y[:, 0]) ** 2 - share * x**2 - share * y[:, 0] ** 2
    want = 0.5 * np.log((prior + 1.0) ** 2 / (2.0 * prior + 1)).sum() - (weight * square).sum(-1)
    few = np.take_along_axis(want, ids[:CHECKED], 1)

    def row(verb: str, run: Callable[..., Any], count: int, pairs: int, same: Callable[..., None], ready: bool) -> Row:
        points = pe.Normal(q, 1.0), pe.Normal(g[:count], 1.0)
        each = tuple(pe.Normal(d.mu, d.var.copy()) for d in points)
        laid_out = pe.prepare if ready else lambda d, score: d
        sides: Mapping[str, Side | Callable[[], Any]] = {
            "one variance": Side(partial(run, points[0], laid_out(points[1], llr), score=llr), {plain: 1.5}),
            "a variance of each": partial(run, each[0], laid_out(each[1], llr), score=llr),
            plain: partial(run, points[0], laid_out(points[1], product), score=product),
        }
        return Row(f"PLDA, {dim} dimensions, {verb}", sides, same, (pairs, "pair"))

    def scores(of: np.ndarray) -> Callable[..., None]:
        return lambda own, each, _: close(of, *(x[:CHECKED] for x in (own, each)))

    def rankings(of: np.ndarray) -> Callable[..., None]:
        return lambda own, each, _: first(top(of, K), own, each)

    yield row(f"pairwise, {queries} x 2000", pe.pairwise, 2000, queries * 2000, scores(want[:, :2000]), False)
    diagonal = want[range(CHECKED), range(CHECKED)]
    yield row(f"paired, {queries}", pe.paired, queries, queries, scores(diagonal), False)
    for how, ready in (("prepared", True), ("raw", False)):
        name = f"search, {queries} into {rows:,}, top-{K}, {how}"
        yield row(name, partial(pe.search, k=K), rows, queries * rows, rankings(want), ready)
        name = f"rerank, {queries} x 200 of {rows:,}, {how}"
        yield row(name, partial(pe.rerank, candidates=ids, k=K), rows, ids.size, rankings(few), ready)


def prune(quick: bool) -> Iterator[Row]:
    """Diagonal MLS with and without the bound that prunes: clusters, where it should gain, and scattered items."""
    rows = 10_000 if quick else 100_000
    for name, make, faster, *of in (
        ("clusters, het .5", clusters, 1.5, rows, 128, 0.5, 0.5),
        ("clusters, het 1", clusters, 1.5, rows, 128, 1.0, 0.5),
        ("clusters, het .7", clusters, 1.5, rows // 2, 512, 0.7, 1.0),
        ("clusters, het .3", clusters, 1.5, rows // 2, 512, 0.3, 0.5),
        ("digits and noise", digits, 1.5, rows, 128, 0.7),
        *(("scattered", scattered, None, count) for count in (rows // 20, rows // 5, rows)),
    ):
        yield pruned(name, faster, *make(*of))


def scattered(rows: int) -> tuple[Any, Any]:
    gallery, queries = (distribution("diagonal", fields("diagonal", n, 128, seed)) for seed, n in ((2, rows), (1, 64)))
    return gallery, queries


def pruned(name: str, faster: float | None, raw: Any, queries: Any) -> Row:
    """One gallery, searched with and without the bound: automatically never much slower than the better of both."""
    run, never = partial(pe.search, queries, pe.prepare(raw, "mls"), K), "peaccel, prune=never"
    scored = f"{100 * run().scored:.2g} % scored"
    name = f"search diagonal mls, {name}, {len(queries)} into {len(raw):,} x {raw.dim}: {scored}"
    sides = {
        "peaccel, prune=auto": Side(run, {never: faster and 1 / faster, FASTEST: 1.1}),
        "peaccel, prune=always": partial(run, prune="always"),
        never: partial(run, prune="never"),
    }
    return Row(name, sides, equal, (len(queries) * len(raw), "pair"), seconds=3)
