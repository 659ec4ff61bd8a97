"""Candidates, exact search and pairs of rows beside torch, FAISS and scipy."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from benches.data import DIM, candidates, clusters, distribution, doubled, fields, items, pe
from benches.peers import (
    CASES,
    CHECKED,
    best,
    by_torch,
    compact,
    compiled,
    flat_index,
    pairwise,
    products_by_id,
    rescored,
    tensors,
    top,
    torch,
    truth,
)
from benches.recall import digits
from benches.table import FASTEST, Plausible, Row, Run, Side, around, equal, expected, first

K = 10
FLAT, SCIPY = "faiss IndexFlatIP at its best", "numpy and scipy"
COMPILED, EAGER, BY_ID = "torch.compile", "torch eager", "faiss inner products by id"
MLS, PREPARED, RAW = "peaccel mls, prepared", "peaccel, prepared", "peaccel, raw arrays"
BY_CODES, NO_CODES = "peaccel mls, by codes", "peaccel mls, prune=never"
CODES, HALF = "peaccel, with codes", "peaccel, prepared in float16"
LAYOUTS: dict[str, dict[str, Any]] = {PREPARED: {}, CODES: {"codes": True}, HALF: {"dtype": "float16"}}
READ = {CODES: 1 / 4, HALF: 1 / 2}  # of the bytes of float32

# On another machine: torch.compile / faiss.fvec_inner_products_by_idx (one row of the two: half the bytes). At D = 128
# the geometric mean of that machine's 601 / 142 and of 726 / 78 on an Intel Xeon with AVX-512.
RERANK_RELATION = {128: 6.3, 512: 1247 / 364}
# On another machine, Q=256, top-10: torch.compile and topk / FAISS IndexFlatIP with the BLAS threshold at 20.
SEARCH_RELATION = {128: 11.2 / 4.68, 512: 19.5 / 14.5}


def by_parts(scores: Callable[..., Any], size: int, q: Any, *parts: Any) -> Any:
    """The ten best by a score in torch of so many queries at a time; `parts` have a row for each query."""
    starts = range(0, len(q[0]), size)
    found = [scores(tuple(x[i : i + size] for x in q), *(x[i : i + size] for x in parts)) for i in starts]
    return torch.topk(torch.cat(found), K)


# ---- candidates ------------------------------------------------------------------------------------------------------


def rerank(quick: bool) -> Iterator[Row]:
    """The ten best of random candidates, or of the 1000 nearest means, by several scores; and equal rows."""

    def diagonal(fast: float, plain: float, half: float) -> dict[str, Any]:
        goals = {PREPARED: {COMPILED: 1 / fast, EAGER: 1 / 7}, RAW: {COMPILED: 1 / plain}, HALF: {COMPILED: 1 / half}}
        return goals | dict.fromkeys((COMPILED, EAGER, BY_ID))

    def coded(faster: float) -> dict[str, Any]:
        goals = {CODES: {PREPARED: 1 / faster, COMPILED: None}}
        return goals | dict.fromkeys((PREPARED, HALF, COMPILED, BY_ID))

    for name, rows, dim, queries, count, sides in (
        ("mls diagonal", 1_000_000, 128, 1000, 100, diagonal(3, 2, 3.5)),
        ("mls diagonal", 400_000, 512, 300, 100, diagonal(2.5, 2.3, 4)),
        ("mls isotropic", 400_000, 128, 64, 1000, coded(1.5)),
        ("mls isotropic", 200_000, 512, 64, 1000, coded(2)),
        ("mls vmf", 200_000, 128, 100, 100, {PREPARED: {SCIPY: 1 / 15}, SCIPY: None}),
        ("mls vmf", 100_000, 512, 100, 100, {PREPARED: {SCIPY: 1 / 40}, SCIPY: None}),
    ):
        yield reranked(name, 20_000 if quick else rows, dim, min(queries, 100) if quick else queries, count, sides)
    for rows, dim in ((200_000, 128), (50_000, 512)):
        yield equal_rows(20_000 if quick else rows, dim)


def reranked(name: str, rows: int, dim: int, queries: int, count: int, goals: dict[str, Any]) -> Row:
    """The ten best of so many candidates for each query; the sides are those that have goals or None."""
    case = CASES[name]
    q, g = fields(case.kind, queries, dim, seed=1), fields(case.kind, rows, dim, seed=2)
    ids = candidates(queries, count, rows)
    if count == 1000:
        ids = np.ascontiguousarray(np.argpartition(-(q[0] @ g[0].T), count, axis=1)[:, :count])
    few, of = compact(g, ids[:CHECKED])
    halved = truth(case, q, tuple(x.astype(np.float16) for x in few), K, of)
    products = np.einsum("qd,qkd->qk", doubled(q[0][:CHECKED]), few[0].reshape(*of.shape, dim))
    raw, (tq, tg, tids), score = distribution(case.kind, g), tensors((q, g, ids)), best(rescored(case), K)
    peers: dict[str, Callable[[], Run]] = {
        COMPILED: lambda: by_torch(score, q, g, ids, compile=True),
        EAGER: lambda: partial(by_parts, lambda q, ids: rescored(case)(torch, q, tg, ids), 10, tq, tids),
        BY_ID: lambda: products_by_id(q[0], g[0], ids),
        # Where the values of scipy's Bessel function do not underflow.
        SCIPY: lambda: partial(score, np, tuple(map(doubled, q)), tuple(map(doubled, g)), ids),
    }
    ours, means = partial(pe.rerank, distribution(case.kind, q), candidates=ids, k=K, score="mls"), 4.0 * dim * ids.size
    work, sides = means * (2 if case.kind == "diagonal" else 1), {}
    for side, limits in goals.items():
        laid_out = pe.prepare(raw, "mls", **LAYOUTS[side]) if side in LAYOUTS else raw
        run = peers[side]() if side in peers else partial(ours, laid_out)
        sides[side] = Side(run, limits or {}, means if side == BY_ID else work * READ.get(side, 1))
    same = expected(sides, truth(case, q, g, K, ids), {HALF: halved, BY_ID: products})
    known = (around(COMPILED, BY_ID, RERANK_RELATION[dim]),) if EAGER in sides else ()
    work_name, seconds = f"rerank {case.kind} mls, {queries} x {count} into {rows:,} x {dim}", 8 if known else 3
    return Row(work_name, sides, same, (ids.size, "pair"), rate="GB/s", seconds=seconds, plausible=known)


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
        COMPILED: Side(by_torch(case.pair, a, b, compile=True), work=work),
        "numpy sums of the arrays": Side(stream, work=work),
    }
    name = f"paired diagonal mls, {rows:,} x {dim}"
    return Row(name, sides, lambda x, y, _: first(want, x, y), (rows, "pair"), rate="GB/s")


# ---- exact search ----------------------------------------------------------------------------------------------------


def search(quick: bool) -> Iterator[Row]:
    """The best ten of whole galleries."""
    yield from by_products(20_000 if quick else 200_000, 128)
    yield from by_products(20_000 if quick else 100_000, 512)
    yield from above_threshold(20_000 if quick else 100_000, 128)
    yield from without_some(20_000 if quick else 200_000, 128)
    yield by_divisions(2048 if quick else 16_384, 128)
    yield by_divisions(2048 if quick else 8192, 512)


def by_products(rows: int, dim: int) -> Iterator[Row]:
    """Scores of one inner product: batches, single queries, long lists; and what preparing costs."""
    q, g = fields("isotropic", 256, dim, seed=1), fields("isotropic", rows, dim, seed=2)
    queries, raw, index = distribution("isotropic", q), distribution("isotropic", g), flat_index(g[0])
    yield one_product(q, g, index)
    prepared, halves = pe.prepare(raw, "mls"), pe.prepare(raw, "mls", dtype="float16")
    for batch, k in ((1, K), (32, K), (256, 100)):
        part, work = queries[:batch], (4.0 if batch == 1 else 2.0 * batch) * rows * dim
        sides = {
            MLS: Side(partial(pe.search, part, prepared, k, "mls"), {FLAT: None}, work),
            "peaccel mls, in float16": Side(partial(pe.search, part, halves, k, "mls"), {MLS: 1.05}),
            FLAT: Side(partial(index.search, q[0][:batch], k), work=work),
        }
        name, rate = f"search, {batch} into {rows:,} x {dim}, top-{k}", "GB/s" if batch == 1 else "GF/s"
        yield Row(name, sides, per=(batch * rows, "pair"), rate=rate, seconds=3)
    add, size = "faiss IndexFlatIP.add", 4.0 * rows * dim
    sides = {
        "peaccel prepare": Side(partial(pe.prepare, raw, score="mls"), {add: None}, size + 4.0 * rows),
        add: Side(partial(flat_index, g[0]), work=size),
    }
    yield Row(f"prepare isotropic mls, {rows:,} x {dim}", sides, rate="GB/s")


def codes(quick: bool) -> Iterator[Row]:
    """Searches that read 8-bit integers first, beside the same without them and FAISS's exact index."""
    goals = {1: 0.35, 32: 0.4, 256: 0.45, 2048: 0.45}
    for dim, dtype in itertools.product((DIM, 256, 512), ("float32", "float16")):
        rows = 20_000 if quick else 100_000 if dim == 512 else 200_000
        q, raw = items("isotropic", 2048, dim, seed=1), items("isotropic", rows, dim)
        ready, plain = (pe.prepare(raw, "mls", dtype, codes=codes) for codes in (None, False))
        index, most = flat_index(raw.mu), 2048 if (dim, dtype) == (DIM, "float32") and not quick else 256
        for count, k in itertools.product((count for count in goals if count <= most), (K, 100)):
            run = partial(pe.search, q[:count], k=k, score="mls")
            sides = {
                BY_CODES: Side(partial(run, gallery=ready), dict.fromkeys((NO_CODES, FLAT), goals[count])),
                NO_CODES: partial(run, gallery=plain, prune="never"),
                FLAT: partial(index.search, q.mu[:count], k),
            }
            share = run(gallery=ready).scored
            name = f"search, {count} into {rows:,} x {dim}, {dtype}, top-{k}: {100 * share:.2g} % scored"
            yield Row(name, sides, found_alike, (count * rows, "pair"), clock=time.process_time)


def found_alike(ours: Any, plain: Any, _: Any) -> None:
    """Raise where codes change a bit of a ranking; the peer ranks by something else."""
    equal(plain, ours)
    equal(plain.ids, ours.ids)


def one_product(q: Any, g: Any, index: Any) -> Row:
    """A batch of queries by every score of one inner product."""
    (queries, dim), rows, mls, llr = q[0].shape, len(g[0]), CASES["mls isotropic"], CASES["llr isotropic"]
    vq, vg = fields("vmf", queries, dim, seed=1), fields("vmf", rows, dim, seed=2)
    pq, raw = distribution("isotropic", q), distribution("isotropic", g)
    dots = doubled(q[0][:CHECKED]) @ doubled(g[0]).T
    matrix, work = np.empty((queries, rows), np.float32), 2.0 * dim * queries * rows
    by_llr, by_vmf, torchs = "peaccel llr, prepared", "peaccel vmf mls, prepared", "torch.compile, top-k"
    vmf = partial(pe.search, distribution("vmf", vq), pe.prepare(distribution("vmf", vg), "mls"), K, "mls")
    sgemm = "numpy sgemm alone"
    sides = {
        MLS: Side(partial(pe.search, pq, pe.prepare(raw, "mls"), K, "mls"), {FLAT: 1.0}, work),
        by_llr: Side(partial(pe.search, pq, pe.prepare(raw, llr.score), K, llr.score), {FLAT: 1.0}, work),
        by_vmf: Side(vmf, {FLAT: 1.1}, work),
        "peaccel mls, raw": Side(partial(pe.search, pq, raw, K, "mls"), {FLAT: None}, work),
        FLAT: Side(partial(index.search, q[0], K), work=work),
        torchs: Side(by_torch(best(pairwise(mls), K), q, g, compile=True), work=work),
        sgemm: Side(partial(np.matmul, q[0], g[0].T, out=matrix), work=work),
    }
    others = {by_llr: truth(llr, q, g, K), by_vmf: truth(CASES["mls vmf"], vq, vg, K), FLAT: top(dots, K), sgemm: dots}
    same = expected(sides, truth(mls, q, g, K), others)
    known = (
        Plausible(sgemm, FLAT, 0.7, math.inf, "faiss at 0.7 of numpy's sgemm rate or better"),
        around(torchs, FLAT, SEARCH_RELATION[dim]),
    )
    name = f"search, {queries} into {rows:,} x {dim}, top-{K}"
    return Row(name, sides, same, (queries * rows, "pair"), rate="GF/s", seconds=15, plausible=known)


def above_threshold(rows: int, dim: int) -> Iterator[Row]:
    """All items above a threshold that three of a query reach on average, beside a search for ten."""
    for kind in ("isotropic", "diagonal"):
        q, ready = items(kind, 256, dim, 1), pe.prepare(items(kind, rows, dim), "mls")
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


def without_some(rows: int, dim: int) -> Iterator[Row]:
    """The ten best without each query's own row, and without the items of its person and camera, 1 in 4,096."""
    for kind in ("point", "isotropic", "diagonal"):
        gallery, own = items(kind, rows, dim), np.linspace(0, rows - 1, 256).astype(np.int64)
        person, camera = (np.random.default_rng(0).integers(0, n, rows) for n in (1024, 4))
        columns = {"person": person, "camera": camera}
        same = pe.exclude_same({name: x[own] for name, x in columns.items()}, columns)
        run = partial(pe.search, gallery[own], pe.prepare(gallery), K)

        def found(
            plain: Any, mine: Any, others: Any, own: Any = own, person: Any = person, camera: Any = camera
        ) -> None:
            kept = [row[row != own[i]][: K - 1] for i, row in enumerate(plain.ids)]
            equal(mine.ids[:, : K - 1], np.stack(kept))
            junk = (person[others.ids] == person[own, None]) & (camera[others.ids] == camera[own, None])
            equal(junk.any(), False)

        sides = {
            PREPARED: Side(run),
            "peaccel without own rows": Side(partial(run, exclude=own), {PREPARED: 1.1}),
            "peaccel without the same person and camera": Side(partial(run, exclude=same), {PREPARED: None}),
        }
        yield Row(f"search with exclusions, {kind}, 256 into {rows:,} x {dim}", sides, found, (256 * rows, "pair"))


def by_divisions(rows: int, dim: int) -> Row:
    """Exact search with diagonal MLS: no product of matrices does it."""
    case, queries = CASES["mls diagonal"], 256
    q, g = fields("diagonal", queries, dim, seed=1), fields("diagonal", rows, dim, seed=2)
    raw, (tq, tg) = distribution("diagonal", g), tensors((q, g))
    scores = compiled(lambda a, b: pairwise(case)(torch, a, b))

    def of_pfe(a: Any) -> Any:
        """PFE's own expression, then the halves and constants that it drops."""
        (m, s), (m2, s2) = (x[:, None] for x in a), tg
        apart = ((m - m2) ** 2 / (1e-10 + s + s2) + torch.log(s + s2)).sum(-1)
        return -0.5 * apart - dim / 2 * math.log(2 * math.pi)

    ours = partial(pe.search, distribution("diagonal", q), k=K, score="mls")
    peer, eager = "torch.compile, top-k", "torch eager, PFE's expression"
    sides = {
        PREPARED: Side(partial(ours, pe.prepare(raw, "mls")), {peer: 1 / 8, eager: 1 / 80}),
        "peaccel, raw": Side(partial(ours, raw), {peer: None}),
        peer: partial(by_parts, lambda a: scores(a, tg), 64, tq),
        eager: partial(by_parts, of_pfe, 8, tq),
    }
    name = f"search diagonal mls, {queries} into {rows:,} x {dim}, top-{K}"
    return Row(name, sides, partial(first, truth(case, q, g, K)), (queries * rows, "pair"), seconds=10)


# ---- one variance for all items --------------------------------------------------------------------------------------


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
    few, diagonal = np.take_along_axis(want, ids[:CHECKED], 1), want[range(CHECKED), range(CHECKED)]

    def row(verb: str, run: Callable[..., Any], count: int, pairs: int, want: np.ndarray, ready: bool = False) -> Row:
        points = pe.Normal(q, 1.0), pe.Normal(g[:count], 1.0)
        each = tuple(pe.Normal(d.mu, d.var.copy()) for d in points)
        laid_out = pe.prepare if ready else lambda d, score: d
        sides = {
            "one variance": Side(partial(run, points[0], laid_out(points[1], llr), score=llr), {plain: 1.5}),
            "a variance of each": partial(run, each[0], laid_out(each[1], llr), score=llr),
            plain: partial(run, points[0], laid_out(points[1], product), score=product),
        }

        def same(ours: Any, each: Any, _: Any) -> None:
            first(want, ours, each)

        return Row(f"PLDA, {dim} dimensions, {verb}", sides, same, (pairs, "pair"))

    yield row(f"pairwise, {queries} x 2000", pe.pairwise, 2000, queries * 2000, want[:, :2000])
    yield row(f"paired, {queries}", pe.paired, queries, queries, diagonal)
    for how, ready in (("prepared", True), ("raw", False)):
        name, run = f"search, {queries} into {rows:,}, top-{K}, {how}", partial(pe.search, k=K)
        yield row(name, run, rows, queries * rows, top(want, K), ready)
        name, run = f"rerank, {queries} x 200 of {rows:,}, {how}", partial(pe.rerank, candidates=ids, k=K)
        yield row(name, run, rows, ids.size, top(few, K), ready)


# ---- pruning ---------------------------------------------------------------------------------------------------------


def prune(quick: bool) -> Iterator[Row]:
    """Diagonal MLS with and without the bound that prunes: clusters, where it should gain, and scattered items.

    Automatically it is never much slower than the better of both.
    """
    rows, of_hundred = 10_000 if quick else 100_000, partial(clusters, centres=100, queries=256)
    for name, make, faster, *of in (
        ("clusters, het .5", of_hundred, 1.5, rows, 128, 0.5, 0.5),
        ("clusters, het 1", of_hundred, 1.5, rows, 128, 1.0, 0.5),
        ("clusters, het .7", of_hundred, 1.5, rows // 2, 512, 0.7, 1.0),
        ("clusters, het .3", of_hundred, 1.5, rows // 2, 512, 0.3, 0.5),
        ("digits and noise", digits, 1.5, rows, 128, 0.7),
        *(("scattered", scattered, None, count) for count in (rows // 20, rows // 5, rows)),
    ):
        raw, queries = make(*of)
        run, never = partial(pe.search, queries, pe.prepare(raw, "mls"), K), "peaccel, prune=never"
        sides = {
            "peaccel, prune=auto": Side(run, {never: faster and 1 / faster, FASTEST: 1.1}),
            "peaccel, prune=always": partial(run, prune="always"),
            never: partial(run, prune="never"),
        }
        size = f"{len(queries)} into {len(raw):,} x {raw.dim}: {100 * run().scored:.2g} % scored"
        yield Row(f"search diagonal mls, {name}, {size}", sides, equal, (len(queries) * len(raw), "pair"), seconds=3)


def scattered(rows: int) -> tuple[Any, Any]:
    """A gallery without clusters, and queries."""
    return items("diagonal", rows), items("diagonal", 64, seed=1)
