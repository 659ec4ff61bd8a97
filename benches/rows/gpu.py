"""Rows on a GPU: ours, the best that one writes in torch, the products of matrices alone, and the goals.

A goal that is a time is a side of that amount. `benches.gpu` runs them; needs torch and numpy alone.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import peaccel as pe
from benches import plain_losses
from benches.data import distribution, optional
from benches.peers import CASES, compiled, faiss, gradients, torch, without_gradient
from benches.plain_losses import DIM, IMAGES, PAIRED, Peer
from benches.table import Row, Run, Side, close
from peaccel.losses import HIB

if TYPE_CHECKING:
    from benches.gpu import Device

Rows = Iterator[Row]
Sides = dict[str, Side | Run | float]
Goals = dict[str, float | None]
COMPILED, PRODUCTS, PRODUCT, COPY = "torch.compile", "the products alone", "torch.mm", "copy"
GOAL = "the goal"
COPIED = 2.0**31  # bytes read and written
TF32 = 2e-2  # of the largest score: products of tf32 have ten bits, and variances are small


def mls(q: Any, v: Any, g: Any, w: Any) -> Any:
    """All pairs of isotropic normals by one product."""
    return CASES["mls isotropic"].dense(torch, (q, v), (g, w))


def mls_diagonal(q: Any, v: Any, g: Any, w: Any) -> Any:
    """Pairs of diagonal normals."""
    return CASES["mls diagonal"].pair(torch, (q, v), (g, w))


def in_tf32(run: Run) -> Any:
    """A call whose float32 products take tf32."""
    torch.backends.cuda.matmul.allow_tf32 = True
    try:
        return run()
    finally:
        torch.backends.cuda.matmul.allow_tf32 = False


def of_copy(share: float, moved: float) -> Goals:
    """The goal of at least so much of the rate of a copy, for a call that moves so many bytes."""
    return {COPY: moved / COPIED / share}


def copy(m: Device) -> Side:
    """A copy on the device, by whose rate others are measured."""
    x = m.uniform(m.size(2**28))
    y = torch.empty_like(x)
    return Side(lambda: y.copy_(x), work=2 * x.nbytes)


def diagonal(m: Device, rows: int, dim: int) -> tuple[Any, Any]:
    """The fields of diagonal normals."""
    return m.normal(rows, dim), m.uniform(rows, dim) + 0.1


# ---- the first call --------------------------------------------------------------------------------------------------

FIRST = """
import time, torch
x = torch.ones(40, 8, device="{0}")
import peaccel as pe
start = time.perf_counter()
pe.special.log_ive(3.0, x) if "{1}" == "log_ive" else pe.search(pe.Normal(x, x), pe.Normal(x, x), 3)
if x.is_cuda: torch.cuda.synchronize()
print(time.perf_counter() - start)
"""


def first(m: Device) -> Rows:
    """The first call of a process, whose context is there already."""
    for what in ("log_ive", "search"):
        command = [sys.executable, "-c", FIRST.format(m.name, what)]
        took = float(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
        yield Row(f"first call of a process, {what}", {"peaccel": Side(took, {GOAL: 1.0}), GOAL: 0.4})


# ---- candidates ------------------------------------------------------------------------------------------------------


def rerank(m: Device) -> Rows:
    """The ten best of random candidates by diagonal MLS."""
    for rows, dim, queries, count in (
        (1_000_000, 128, 1000, 100),
        (400_000, 512, 1000, 100),
        (1_000_000, 128, 256, 100),
        (1_000_000, 512, 256, 1000),
        (1_000_000, 512, 1, 1000),
        (1_000_000, 128, 4096, 100),
    ):
        yield from rerank_into(m, m.size(rows), dim, m.size(queries), m.size(count), halves=queries == 1000)


def rerank_into(m: Device, rows: int, dim: int, queries: int, count: int, halves: bool) -> Rows:
    """In float32 and, where it is asked for, from halves: so much faster than torch.compile, near to memory's rate."""
    k, ids = min(10, count), m.choose(rows, queries, count)
    (mu, var), (q, v) = diagonal(m, rows, dim), diagonal(m, queries, dim)
    fused = compiled(lambda q, v, mu, var: mls_diagonal(q[:, None], v[:, None], mu[ids], var[ids]).topk(k))
    for dtype, faster in ((torch.float32, 1.5 if halves else 1.0), (torch.float16, 3.0))[: 1 + halves]:
        gallery = pe.prepare(pe.Normal(mu.to(dtype), var.to(dtype)))
        moved = 2.0 * ids.numel() * dim * dtype.itemsize
        goals = {COMPILED: 1 / faster, **(of_copy(0.7, moved) if halves else {COPY: None})}
        sides = {
            "peaccel": Side(partial(pe.rerank, pe.Normal(q, v), gallery, ids, k), goals, moved),
            COMPILED: lambda: fused(q, v, mu, var),
            COPY: copy(m),
        }
        same = partial(agree, tolerance=1e-4 if dtype == torch.float32 else 1e-2)
        work = f"rerank diagonal mls, {str(dtype)[6:]}, {queries} x {count} into {rows:,} x {dim}"
        yield Row(work, sides, same, rate="GB/s")


def agree(ours: Any, other: Any, *_: Any, tolerance: float = 1e-4) -> None:
    """The scores, or first gradients, of two sides, where the second is of the same score and both did run."""
    if ours is not None and other is not None:
        got, want = (x[0] if isinstance(x, tuple) else x for x in (ours, other))
        close(want, got, tolerance=tolerance)


# ---- exact search ----------------------------------------------------------------------------------------------------


GALLERIES = ((1_000_000, 128), (1_000_000, 512), (500_000, 768))
PLAIN = "torch's product and topk"


def search(m: Device) -> Rows:
    """Whole galleries in float32, by scores of one product and by diagonal MLS."""
    for rows, dim in GALLERIES:
        yield from of_gallery(m, m.size(rows), dim, torch.float32)
    yield from common_mean(m, m.size(1_000_000), 128)
    yield by_divisions(m, m.size(200_000), 512)


def halves(m: Device) -> Rows:
    """The same galleries in halves."""
    for rows, dim in GALLERIES:
        yield from of_gallery(m, m.size(rows), dim, torch.float16)


def of_gallery(m: Device, rows: int, dim: int, dtype: Any) -> Rows:
    """One gallery, searched by 1 to 2048 queries."""
    mu, var = m.directions(rows, dim).to(dtype), (m.uniform(rows) * 0.01 + 0.001).to(dtype)
    gallery = pe.prepare(pe.Normal(mu, var))
    for queries, k in ((1, 10), (32, 10), (256, 10), (2048, 10), (1, 100), (256, 100)):
        if k == 10 or dtype == torch.float32:
            yield isotropic(m, mu, var, gallery, m.size(queries) if queries > 1 else 1, k)
    if dtype == torch.float32:
        points = pe.prepare(pe.Point(mu), "cosine")
        for queries in (1, 256):
            q = m.directions(m.size(queries) if queries > 1 else 1, dim)
            sides = {
                "peaccel": Side(partial(pe.search, pe.Point(q), points, 10, "cosine"), within(len(q))),
                **plain_points(q, mu, 10),
            }
            work = f"search cosine, {len(q)} into {rows:,} x {dim}, top-10"
            yield Row(work, sides, partial(agree, tolerance=TF32))


def common_mean(m: Device, rows: int, dim: int) -> Rows:
    """Features whose distances are small beside their lengths, as fast as others."""
    x = m.normal(rows + 1, dim)
    for name, mu in {"1 + 0.05 x": 1 + 0.05 * x, "relu(x) + 3": x.relu() + 3}.items():
        sides: Sides = {}
        few = m.size(256)
        for side, of in (("peaccel", mu), (PLAIN, x)):
            d = pe.Normal(of, torch.full_like(of[:, 0], of.var(0).mean().item()))
            sides[side] = partial(pe.search, d[:few], pe.prepare(d[1:]), 10)
        sides["peaccel"] = Side(sides["peaccel"], {PLAIN: 1.2})
        yield Row(f"search isotropic mls of {name}, {few} into {rows:,} x {dim}, top-10", sides)


def within(queries: int) -> Goals:
    """The limit of a search beside the products alone."""
    return {PRODUCTS: 1.15 if queries <= 32 else 1.5, PLAIN: None}


def plain_points(q: Any, mu: Any, k: int) -> dict[str, Run]:
    """Plain points in torch, and products by blocks whose results fit the second-level cache."""
    q, block = q.to(mu.dtype), max(4096, min(len(mu), (32 << 20) // (4 * len(q))))
    out = {"out_dtype": torch.float32} if mu.is_cuda and mu.dtype == torch.float16 else {}

    def products() -> Any:
        return [torch.mm(q, mu[i : i + block].T, **out) for i in range(0, len(mu), block)][-1]

    sides: dict[str, Run] = {PLAIN: partial(in_tf32, lambda: (q @ mu.T).topk(k)), PRODUCTS: partial(in_tf32, products)}
    if mu.is_cuda and hasattr(faiss, "knn_gpu"):
        resources, _ = faiss.StandardGpuResources(), optional("faiss.contrib.torch_utils")
        ip = {"metric": faiss.METRIC_INNER_PRODUCT}
        sides["faiss.knn_gpu"] = lambda: faiss.knn_gpu(resources, q, mu, k, **ip)
    return sides


def isotropic(m: Device, mu: Any, var: Any, gallery: Any, queries: int, k: int) -> Row:
    """Isotropic MLS beside the same score by one product in tf32, plain points, and the products alone."""
    (rows, dim), q, v = mu.shape, m.directions(queries, mu.shape[1]), m.uniform(queries) * 0.01 + 0.001
    k = min(k, rows)
    run, exact = partial(pe.search, pe.Normal(q, v), gallery, k), "torch's mls and topk, tf32"
    sides: Sides = {"peaccel": Side(run, within(queries))}
    if mu.dtype == torch.float32:
        sides[exact] = partial(in_tf32, lambda: mls(q, v, mu, var).topk(k))
    sides |= plain_points(q, mu, k)
    if (queries, dim, k, mu.dtype) == (256, 512, 10, torch.float32):
        sides["peaccel, every pair scored"] = partial(run, prune="never")

    def same(own: Any, plain: Any, *_: Any) -> None:
        agree(own, plain if exact in sides else None, tolerance=TF32)

    work = f"search isotropic mls, {str(mu.dtype)[6:]}, {queries} into {rows:,} x {dim}, top-{k}"
    return Row(work, sides, same)


def by_divisions(m: Device, rows: int, dim: int) -> Row:
    """Diagonal MLS, which no product gives."""
    queries = m.size(256)
    (mu, var), (q, v) = diagonal(m, rows, dim), diagonal(m, queries, dim)
    run = partial(pe.search, pe.Normal(q, v), pe.prepare(pe.Normal(mu, var)), 10)
    fused = compiled(mls_diagonal)

    def chunked() -> Any:
        parts = [fused(q[i : i + 8, None], v[i : i + 8, None], mu[None], var[None]) for i in range(0, queries, 8)]
        return torch.cat(parts).topk(10)

    sides = {
        "peaccel": Side(run, {COMPILED: 1 / 5, GOAL: 1.0}),
        COMPILED: chunked,
        GOAL: 6e-3,
    }
    return Row(f"search diagonal mls, {queries} into {rows:,} x {dim}, top-10", sides, agree)


# ---- special functions and draws -------------------------------------------------------------------------------------


def bessel(m: Device) -> Rows:
    """Elementwise, near to memory's rate in float32."""
    for dtype in (torch.float32, torch.float64):
        x = 10 ** (4 * m.uniform(m.size(100_000_000))).to(dtype)
        for name, call, order in (("log_ive", pe.special.log_ive, 63.0), ("iv_ratio", pe.special.iv_ratio, 64.0)):
            goals = of_copy(0.6, 2 * x.nbytes) if dtype == torch.float32 else {COPY: None}
            sides = {"peaccel": Side(partial(call, order, x), goals, 2 * x.nbytes), COPY: copy(m)}
            yield Row(f"{name}, {len(x):,} elements, v = {order:g}, {str(dtype)[6:]}", sides, rate="GB/s")


def sampling(m: Device) -> Rows:
    """Draws alone, and with the gradients of their parameters."""
    seed, items, n = torch.zeros((), dtype=torch.int64, device=m.name), m.size(65_536), 5
    for dim in (128, 512):
        mu, kappa = m.directions(items, dim), 10 ** (1 + 3 * m.uniform(items))
        normals, wood, size = "torch.randn", "Wood in torch", n * mu.nbytes
        run = partial(pe.sample, pe.VonMisesFisher(mu, kappa), n, seed=seed)
        sides = {
            "peaccel": Side(run, {normals: 2, wood: 1 / 50}, size),
            normals: Side(partial(torch.randn, n, items, dim, device=m.name), work=size),
            wood: partial(plain_losses.wood, mu, kappa, n),
            COPY: copy(m),
        }
        yield Row(f"vMF samples, {items:,} kappas x {n}, D={dim}, float32", sides, rate="GB/s")
    for dim in (128, 512):
        yield from with_gradients(m, 8, m.size(16_384), dim)


def with_gradients(m: Device, n: int, items: int, dim: int) -> Rows:
    """Draws forward and backward; the goals in milliseconds are for 128 dimensions."""
    up, mu, kappa = m.normal(n, items, dim), m.directions(items, dim), m.uniform(items) * 500 + 5
    var = m.uniform(items, dim) + 0.1
    mu, kappa, var = (x.requires_grad_() for x in (mu, kappa, var))
    randn = partial(torch.randn, n, items, dim, device=m.name)
    for name, d, inputs, goal, peers in (
        ("vMF", pe.VonMisesFisher(mu, kappa), (mu, kappa), 0.2e-3, {}),
        ("normal", pe.Normal(mu, var), (mu, var), 0.25e-3, {"torch": lambda: mu + var.sqrt() * randn()}),
    ):
        wanted = {GOAL: goal} if dim == 128 else {}
        others = {peer: partial(gradients, draw, inputs, up) for peer, draw in peers.items()}
        goals = {"torch.randn": None, **dict.fromkeys(wanted, 1.0), **dict.fromkeys(others)}
        run = partial(gradients, partial(pe.sample, d, n, seed=1), inputs, up)
        sides = {"peaccel": Side(run, goals), **others, "torch.randn": randn, **wanted}
        yield Row(f"forward + backward of {name} samples, {n} x {items:,}, D={dim}", sides)


# ---- all pairs -------------------------------------------------------------------------------------------------------


def all_pairs(m: Device) -> Rows:
    """Matrices of scores, alone and with their gradients, beside torch.compile and the products that they take."""
    for n, dim in ((256, 128), (1024, 128), (4096, 128), (4096, 512)):
        yield from square(m, m.size(n), dim, diagonals=n <= 1024)
    queries, rows, dim = m.size(4096), m.size(65_536), 512
    q, g = m.directions(queries, dim), m.directions(rows, dim)
    a, b = (pe.VonMisesFisher(x, 10 ** (2 + m.uniform(len(x)))) for x in (q, g))
    sides = {"peaccel": Side(partial(pe.pairwise, a, b), {PRODUCT: 1.3}), PRODUCT: lambda: q @ g.T}
    yield Row(f"all pairs vMF mls, {queries:,} x {rows:,}, D={dim}", sides)


def square(m: Device, n: int, dim: int, diagonals: bool) -> Rows:
    """Isotropic MLS, cosine, vMF MLS and, where a user would write it, diagonal MLS of one size.

    The scores alone, and scores and gradients; the goals hold for both.
    """
    q, g = (m.directions(n, dim).requires_grad_() for _ in range(2))
    v, w, k, c = ((m.uniform(n) * scale + low).requires_grad_() for scale, low in ((1, 0.1),) * 2 + ((500, 50),) * 2)
    up, normalised = m.normal(n, n), torch.nn.functional.normalize
    forms = [
        ("isotropic mls", pe.Normal, (q, v, g, w), {COMPILED: 1.0}, compiled(mls)),
        ("cosine", pe.Point, (q, g), {"torch": 1.0}, lambda q, g: normalised(q) @ normalised(g).T),
        ("vMF mls", pe.VonMisesFisher, (q, k, g, c), {PRODUCTS: 1.3}, None),
    ]
    if diagonals:
        v, w = ((m.uniform(n, dim) + 0.1).requires_grad_() for _ in range(2))
        by_pairs = compiled(lambda q, v, g, w: mls_diagonal(q[:, None], v[:, None], g, w))
        forms.append(("diagonal mls", pe.Normal, (q, v, g, w), {COMPILED: 0.5}, by_pairs))
    for name, of, inputs, goals, peer in forms:
        runs = {"peaccel": (partial(scores, name.split()[-1], of, *inputs), inputs)}
        if peer is not None:
            runs[next(iter(goals))] = (partial(peer, *inputs), inputs)
        if name != "diagonal mls":
            runs[PRODUCTS] = (lambda: q @ g.T, (q, g))
        for how, wrap in (
            ("", lambda run, _: partial(without_gradient, run)),
            ("forward + backward of ", lambda run, leaves: partial(gradients, run, leaves, up)),
        ):
            sides: Sides = {side: wrap(*run) for side, run in runs.items()}
            sides["peaccel"] = Side(sides["peaccel"], goals)
            same = partial(agree, tolerance=1e-3) if peer is not None else lambda *results: None
            yield Row(f"{how}all pairs {name}, {n:,} x {n:,}, D={dim}", sides, same)


def scores(score: str, of: Any, *inputs: Any) -> Any:
    """All pairs of two sides, whose fields are the inputs."""
    half = len(inputs) // 2
    return pe.pairwise(of(*inputs[:half]), of(*inputs[half:]), score)


# ---- losses ----------------------------------------------------------------------------------------------------------

LOSSES = {
    "NegativeMLS": PAIRED["NegativeMLS isotropic"],
    **{name: PAIRED[name] for name in ("MultiSimilarity", "ScoreNCE mls", "Triplet", "ArcFace, 100,000 classes")},
    "HIB, 8 draws": Peer(HIB, None, "diagonal"),  # of isotropic normals there are no draws
}
HIB_MS, QUICK = {1024: 2.0, 4096: 30.0}, "the goal of a graph"


def losses(m: Device) -> Rows:
    """A step of each loss: no slower than plain torch, and replayed from a graph in 0.15 ms at 256 items."""
    for name in LOSSES:
        for batch in (64, 256, 1024, 4096):
            yield one_loss(m, name, batch)


def one_loss(m: Device, name: str, batch: int) -> Row:
    """A forward and a backward of one loss; compiled as well at 256 and 4096 items."""
    peer, items = LOSSES[name], max(2, m.size(batch) // IMAGES) * IMAGES
    loss, labels = peer.make().to(m.name), torch.arange(items // IMAGES, device=m.name).repeat_interleave(IMAGES)
    leaves = [m.directions(items, DIM).requires_grad_()]
    if peer.kind != "point":
        shape = (items,) if peer.kind == "isotropic" else (items, DIM)
        leaves.append((m.uniform(*shape) * 0.01 + 0.001).requires_grad_())
    inputs = [*leaves, *loss.parameters()]

    def step(value: Run) -> Run:
        return lambda: torch.autograd.grad(value().sum(), inputs, allow_unused=True)

    def value() -> Any:
        return loss(distribution(peer.kind, leaves), labels)

    sides: Sides = {}
    goals: Goals = {}
    if peer.plain is not None:
        plain = partial(peer.plain, loss, leaves, labels)
        goals, sides["plain torch"] = {"plain torch": 1.0}, step(plain)
        if batch in (256, 4096):
            sides["plain torch, compiled"] = step(compiled(plain))
            sides["peaccel, compiled"] = Side(step(compiled(value)), {"plain torch, compiled": None})
    elif batch in HIB_MS:
        goals[GOAL], sides[GOAL] = 1.0, HIB_MS[batch] / 1e3
    if not m.rehearse:
        replayed: Goals = {"peaccel": None}
        if batch == 256:
            replayed[QUICK], sides[QUICK] = 1.0, 0.15e-3
        sides["peaccel, replayed"] = Side(Replayed(step(value)), replayed)
    sides = {"peaccel": Side(step(value), goals or {"peaccel, replayed": None}), **sides}

    def same(*results: Any) -> None:
        if peer.plain is not None:
            close(without_gradient(plain), without_gradient(value), tolerance=1e-3)

    return Row(f"loss {name}, {items} items, forward + backward", sides, same)


class Replayed:
    """A call that is captured in a CUDA graph the first time, and replayed from then on."""

    def __init__(self, run: Run) -> None:
        self.run, self.graph = run, None

    def __call__(self) -> None:
        """The call."""
        if self.graph is None:
            stream = torch.cuda.Stream()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                for _ in range(3):
                    self.run()
            torch.cuda.current_stream().wait_stream(stream)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                self.run()
            self.graph = graph
        self.graph.replay()
