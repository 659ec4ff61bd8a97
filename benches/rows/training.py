"""Training ops beside torch: forward and backward of pairs, scores of draws and special functions, and small calls.

Every op of a loss is timed forward and backward, all inputs with gradients, beside what one writes in torch, eager and
compiled; scores of draws beside products of torch's own draws.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np

from benches import plain_losses
from benches.data import PRIOR, distribution, fields, pe
from benches.peers import CASES, CHECKED, compiled, gradients, pairwise, tensors, torch, without_gradient
from benches.table import Row, Side, close

COMPILED, ALONE = "torch.compile", "peaccel, forward alone"
DRAWS = {"hib": (8, 0.5), "neg_sampled_l2": (8, 0.5), "sampled_cosine": (8, 0.7), "el_nivmf": (5, 0.5)}
Scores = Callable[[], Any]


def leaves(kind: str, rows: int, dim: int, seed: int, dtype: Any = torch.float32) -> tuple[Any, ...]:
    """The fields of items as tensors with gradients."""
    return tuple(x.to(dtype).requires_grad_() for x in tensors(fields(kind, rows, dim, seed)))


def normal(*shape: int) -> Any:
    """Weights of scores."""
    return torch.from_numpy(np.random.default_rng(3).standard_normal(shape, dtype=np.float32))


def both(
    name: str,
    scores: Scores,
    inputs: Any,
    weights: Any,
    unit: str,
    goals: Mapping[str, float],
    peers: Mapping[str, Scores] = {},
    same: Callable[..., None] = lambda *results: None,
) -> Row:
    """A row of scores and all their gradients, beside the same of peers and beside the scores alone."""
    sides = {
        "peaccel": Side(partial(gradients, scores, inputs, weights), goals),
        **{peer: partial(gradients, of, inputs, weights) for peer, of in peers.items()},
        ALONE: partial(without_gradient, scores),
    }
    count = weights.numel() // (weights.shape[-1] if unit == "sample" else 1)
    return Row(f"forward + backward of {name}", sides, same, (count, unit))


def training(quick: bool) -> Iterator[Row]:
    """Forward alone; all pairs; listed pairs; scores without a peer; draws; elements; small calls."""
    queries, rows, n = (128, 1000, 128) if quick else (512, 10_000, 256)
    for name in ("mls isotropic", "cosine point"):
        for dim in (128,) if quick else (64, 128, 512, 1024):
            yield forward(name, queries, rows, dim)
    squares = (128,) if quick else (128, 256, 1024)
    for name, sizes in (("mls isotropic", squares), ("neg_sq_l2 point", squares[-2:])):
        for size in sizes:
            yield all_pairs(name, size, size, 1)
    yield all_pairs("mls isotropic", 256, rows, 1)
    for name in ("mls diagonal", "llr diagonal"):
        yield all_pairs(name, n, n, 5)
        yield all_pairs(name, n, None, 5)
    for size in squares[-2:]:
        yield all_pairs("mls isotropic", size, None, 1)
    for name, faster in (("mls isotropic", 1), ("cosine point", 1), ("mls diagonal", 5), ("llr diagonal", 5)):
        yield listed(name, True, faster)
        yield listed(name, False, faster)
    for kind, scores, within in (
        ("isotropic", (f"llr:prior_var={PRIOR}", "ppk", "inclusion", "neg_kl", "expected_cosine", "hib"), 4),
        ("diagonal", ("ppk", "inclusion", "neg_kl"), 4),
        ("vmf", ("mls", "llr", "ppk", "inclusion", "neg_kl"), 5),
    ):
        for score in scores:
            yield without_peer(kind, score, within)
    for size in (128,) if quick else (128, 10_000):
        for name in DRAWS:
            yield draws(name, 128, 100 if name == "el_nivmf" and size == 128 else size)
    count = 10_000 if quick else 1_000_000
    x = torch.linspace(0.5, 500, count).requires_grad_()
    for name in ("vmf_log_norm", "log_ive", "iv_ratio"):
        function = partial(getattr(pe.special, name), 64.0, x)
        yield both(f"{name}, {count:,} float32", function, [x], torch.ones(count), "element", {ALONE: 2.5})
    items = 256 if quick else 4096
    drawn = leaves("vmf", items, 128, 1)
    draw, weights = partial(pe.sample, pe.VonMisesFisher(*drawn), 5, seed=1), torch.ones(5, items, 128)
    yield both(f"sample, vmf, {items:,} x 5 x 128", draw, drawn, weights, "sample", {ALONE: 2.5})
    yield from little()


# ---- scores ----------------------------------------------------------------------------------------------------------


def forward(name: str, queries: int, rows: int, dim: int) -> Row:
    """All pairs, without gradients, beside torch.compile and the one product of matrices that it takes."""
    case = CASES[name]
    a, b = (fields(case.kind, n, dim, seed) for seed, n in ((1, queries), (2, rows)))
    (q, g), fused = tensors((a, b)), compiled(partial(pairwise(case), torch))
    sides = {
        "peaccel": Side(
            partial(pe.pairwise, distribution(case.kind, a), distribution(case.kind, b), case.score),
            {COMPILED: 1.0, "one product": 2.2},
        ),
        COMPILED: lambda: fused(q, g),
        "one product": lambda: q[0] @ g[0].T,
    }
    pairs, same = (queries * rows, "pair"), lambda ours, other, _: close(ours, other)
    return Row(f"{name}, {queries} x {rows:,} x {dim}", sides, same, pairs)


def all_pairs(name: str, queries: int, rows: int | None, faster: float) -> Row:
    """All pairs, as many times as fast as torch.compile; without `rows` the gallery is the queries themselves."""
    case, dim = CASES[name], 128
    function = partial(pairwise(case), torch)
    weights = normal(queries, rows or queries)

    def sides(dtype: Any) -> tuple[Any, Any, Any]:
        q = leaves(case.kind, queries, dim, 1, dtype)
        g = q if rows is None else leaves(case.kind, rows, dim, 2, dtype)
        return q, g, q if rows is None else (*q, *g)

    q, g, every = sides(torch.float64)
    exact = gradients(partial(function, q, g), every, weights.double())
    q, g, every = sides(torch.float32)
    a = distribution(case.kind, q)
    b = a if rows is None else distribution(case.kind, g)
    fused = compiled(lambda *x: function(x[: len(q)], x[-len(g) :]))

    def same(*results: Any) -> None:
        """The first rows of the first gradient, in units of its largest number, as sums over many pairs."""
        scale = exact[0].abs().max()
        close(exact[0][:CHECKED] / scale, *(x[0][:CHECKED] / scale for x in results[:-1]))

    of = f"{name}, {queries} x {'themselves' if rows is None else f'{rows:,}'} x {dim}"
    peers = {COMPILED: lambda: fused(*every), "torch eager": partial(function, q, g)}
    scores, goals = partial(pe.pairwise, a, b, case.score), {COMPILED: 1 / faster, ALONE: 4.0}
    return both(of, scores, every, weights, "pair", goals, peers, same)


def listed(name: str, paired: bool, faster: float) -> Row:
    """Pairs of equal rows, or candidates: a pair's own rows, which a compiled expression gathers."""
    case = CASES[name]
    q, g = leaves(case.kind, 4096 if paired else 256, 128, 1), leaves(case.kind, 4096 if paired else 2000, 128, 2)
    a, b = distribution(case.kind, q), distribution(case.kind, g)
    ids = torch.arange(25_600).reshape(256, 100) * 7919 % 2000

    def pairs(*x: Any) -> Any:
        return case.pair(torch, x[: len(q)], x[len(q) :])

    def gathered(*x: Any) -> Any:
        return case.pair(torch, tuple(y[:, None] for y in x[: len(q)]), tuple(y[ids] for y in x[len(q) :]))

    fused = compiled(pairs if paired else gathered)
    scores = partial(pe.paired, a, b, case.score) if paired else partial(pe.rescore, a, b, ids, case.score)
    peers: dict[str, Scores] = {COMPILED: lambda: fused(*q, *g)}

    def same(*results: Any) -> None:
        """Of the scores alone: the peer of the cosine takes rows for unit ones, which have another gradient."""
        close(without_gradient(peers[COMPILED]), without_gradient(scores))

    of = f"{name}, {'paired 4,096' if paired else 'rescored 256 x 100'} x 128"
    weights = normal(4096) if paired else normal(256, 100)
    return both(of, scores, [*q, *g], weights, "pair", {COMPILED: 1 / faster, ALONE: 4.0}, peers, same)


def without_peer(kind: str, score: str, within: float) -> Row:
    """A score that nobody writes in torch, beside its own forward."""
    n, dim = 192, 128
    q, g = (leaves(kind, n, dim, seed) for seed in (1, 2))
    scores = partial(pe.pairwise, distribution(kind, q), distribution(kind, g), score)
    return both(f"{kind} {score}, {n} x {n} x {dim}", scores, [*q, *g], torch.ones(n, n), "pair", {ALONE: within})


# ---- draws -----------------------------------------------------------------------------------------------------------


def by_products(name: str, q: Any, g: Any) -> Any:
    """A score of draws as one writes it in torch: draws once an item, pairs of them by products."""
    n, dim = DRAWS[name][0], q[0].shape[-1]
    if name == "el_nivmf":
        z, (mean, kappa) = pe.sample(pe.VonMisesFisher(*q), n, seed=1), g
        return plain_losses.nivmf(z, kappa, mean).logsumexp(0) - math.log(n)
    drawn = [mu + var.sqrt() * torch.randn(n, *mu.shape) for mu, var in (q, g)]
    if name == "sampled_cosine":
        means = [torch.nn.functional.normalize(z, dim=-1).mean(0) for z in drawn]
        return means[0] @ means[1].T
    distances = torch.cdist(*(z.reshape(-1, dim) for z in drawn)).reshape(n, len(q[0]), n, len(g[0]))
    if name == "neg_sampled_l2":
        return -distances.mean((0, 2))
    return torch.sigmoid(-distances).mean((0, 2)).log()


def flushed(step: Callable[[], Any]) -> Any:
    """A step with subnormal numbers set to 0: sharp densities are full of them, which makes torch four times slower."""
    torch.set_flush_denormal(True)
    found = step()
    torch.set_flush_denormal(False)
    return found


def draws(name: str, queries: int, rows: int) -> Row:
    """A score of draws beside products of draws."""
    dim, kinds, (n, limit) = 128, ("vmf", "nivmf") if name == "el_nivmf" else ("diagonal", "diagonal"), DRAWS[name]
    q, g = leaves(kinds[0], queries, dim, 0), leaves(kinds[1], rows, dim, 1)
    score, weights = getattr(pe.scores, name)(n=n, seed=1), torch.ones(queries, rows)
    scores = partial(pe.pairwise, distribution(kinds[0], q), distribution(kinds[1], g), score)
    peer = "torch, products"
    sides = {
        "peaccel": Side(partial(gradients, scores, [*q, *g], weights), {peer: limit}),
        peer: partial(flushed, partial(gradients, partial(by_products, name, q, g), [*q, *g], weights)),
    }
    of = f"forward + backward of {name}, n = {n}, {queries} x {rows:,} x {dim}"
    return Row(of, sides, per=(queries * rows, "pair"))


# ---- small calls -----------------------------------------------------------------------------------------------------


def little() -> Iterator[Row]:
    """Calls on 32 x 32 x 64, of which losses make many."""
    q, g = (leaves("isotropic", 32, 64, seed) for seed in (1, 2))
    ours = partial(pe.pairwise, distribution("isotropic", q), distribution("isotropic", g), "mls")
    theirs, weights = partial(pairwise(CASES["mls isotropic"]), torch, q, g), torch.ones(32, 32)
    ways: dict[str, Callable[[Scores], Scores]] = {
        "forward without gradient": lambda call: partial(without_gradient, call),
        "forward with gradient": lambda call: call,
        "forward + backward": lambda call: partial(gradients, call, [*q, *g], weights),
    }
    for way, wrap in ways.items():
        sides = {"peaccel": Side(wrap(ours), {"torch eager": None}), "torch eager": wrap(theirs)}
        yield Row(f"{way} of mls isotropic, 32 x 32 x 64", sides, per=(1, "call"))
