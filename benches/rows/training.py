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

from benches.data import PRIOR, distribution, fields, pe
from benches.peers import CASES, CHECKED, compiled, pairwise, torch
from benches.table import Row, Side, close

COMPILED, ALONE = "torch.compile", "peaccel, forward alone"
DRAWS = {"hib": (8, 0.5), "neg_sampled_l2": (8, 0.5), "sampled_cosine": (8, 0.7), "el_nivmf": (5, 0.5)}
Scores = Callable[[], Any]


def leaves(arrays: Any, dtype: Any = None) -> list[Any]:
    return [torch.from_numpy(x).to(dtype or torch.float32).requires_grad_() for x in arrays]


def gradients(scores: Scores, inputs: list[Any], weights: Any) -> Any:
    """A forward and a backward of sum(weights * scores)."""
    return torch.autograd.grad(scores(), inputs, weights)


def without_gradient(scores: Scores) -> Any:
    with torch.no_grad():
        return scores()


def both(
    name: str,
    scores: Scores,
    inputs: list[Any],
    weights: Any,
    per: tuple[int, str],
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
    return Row(f"forward + backward of {name}", sides, same, per)


def agree(exact: Any, *results: Any) -> None:
    """The first rows of the first gradient, in units of its largest number, as sums over many pairs."""
    scale = exact[0].abs().max()
    close(exact[0][:CHECKED] / scale, *(x[0][:CHECKED] / scale for x in results))


def training(quick: bool) -> Iterator[Row]:
    """Forward alone; all pairs; listed pairs; scores without a peer; draws; elements; small calls."""
    queries, rows = (128, 1000) if quick else (512, 10_000)
    for name in ("mls isotropic", "cosine point"):
        for dim in (128,) if quick else (64, 128, 512, 1024):
            yield forward(name, queries, rows, dim)
    squares = (128,) if quick else (128, 256, 1024)
    for n in squares:
        yield all_pairs("mls isotropic", n, n, 1)
    for n in squares[-2:]:
        yield all_pairs("neg_sq_l2 point", n, n, 1)
    yield all_pairs("mls isotropic", 256, 1000 if quick else 10_000, 1)
    n = 128 if quick else 256
    for name in ("mls diagonal", "llr diagonal"):
        yield all_pairs(name, n, n, 5)
        yield all_pairs(name, n, None, 5)
    for n in (128,) if quick else (256, 1024):
        yield all_pairs("mls isotropic", n, None, 1)
    for name, faster in (("mls isotropic", 1), ("cosine point", 1), ("mls diagonal", 5), ("llr diagonal", 5)):
        yield listed(name, "paired", faster)
        yield listed(name, "rescored", faster)
    for kind, scores, within in (
        ("isotropic", (f"llr:prior_var={PRIOR}", "ppk", "inclusion", "neg_kl", "expected_cosine", "hib"), 4),
        ("diagonal", ("ppk", "inclusion", "neg_kl"), 4),
        ("vmf", ("mls", "llr", "ppk", "inclusion", "neg_kl"), 5),
    ):
        for score in scores:
            yield without_peer(kind, score, within)
    for rows in (128,) if quick else (128, 10_000):
        for name in DRAWS:
            yield draws(name, 128, 100 if name == "el_nivmf" and rows == 128 else rows)
    for name in ("vmf_log_norm", "log_ive", "iv_ratio"):
        yield elements(name, 10_000 if quick else 1_000_000)
    yield sampled(256 if quick else 4096)
    yield from little()


def forward(name: str, queries: int, rows: int, dim: int) -> Row:
    """All pairs, without gradients, beside torch.compile and the one product of matrices that it takes."""
    case = CASES[name]
    a, b = (fields(case.kind, n, dim, seed) for seed, n in ((1, queries), (2, rows)))
    function, (q, g) = pairwise(case), [tuple(map(torch.from_numpy, x)) for x in (a, b)]
    fused = compiled(lambda q, g: function(torch, q, g))
    own = partial(pe.pairwise, distribution(case.kind, a), distribution(case.kind, b), case.score)
    sides = {
        "peaccel": Side(own, {COMPILED: 1.0, "one product": 2.2}),
        COMPILED: lambda: fused(q, g),
        "one product": lambda: q[0] @ g[0].T,
    }
    pairs, same = (queries * rows, "pair"), lambda own, other, _: close(own, other)
    return Row(f"{name}, {queries} x {rows:,} x {dim}", sides, same, pairs)


def all_pairs(name: str, queries: int, rows: int | None, faster: float) -> Row:
    """All pairs, as many times as fast as torch.compile; without `rows` the gallery is the queries themselves."""
    case, dim = CASES[name], 128
    sizes = ((1, queries),) if rows is None else ((1, queries), (2, rows))
    function, arrays = pairwise(case), [fields(case.kind, n, dim, seed) for seed, n in sizes]
    weights = torch.from_numpy(np.random.default_rng(3).standard_normal((queries, sizes[-1][1]), dtype=np.float32))

    def sides(dtype: Any = None) -> tuple[Any, Any, list[Any]]:
        own = [leaves(x, dtype) for x in arrays]
        return own[0], own[-1], [x for side in own for x in side]

    q, g, every = sides(torch.float64)
    exact = gradients(partial(function, torch, q, g), every, weights.double())
    q, g, every = sides()
    a = distribution(case.kind, tuple(q))
    b = a if rows is None else distribution(case.kind, tuple(g))
    fused = compiled(lambda *x: function(torch, x[: len(q)], x[-len(g) :]))
    of = f"{name}, {queries} x {'themselves' if rows is None else f'{rows:,}'} x {dim}"
    peers = {COMPILED: lambda: fused(*every), "torch eager": partial(function, torch, q, g)}
    goals, pairs = {COMPILED: 1 / faster, ALONE: 4.0}, (weights.numel(), "pair")
    scores = partial(pe.pairwise, a, b, case.score)
    return both(of, scores, every, weights, pairs, goals, peers, lambda *x: agree(exact, *x[:-1]))


def listed(name: str, form: str, faster: float) -> Row:
    """Pairs of equal rows, or candidates: a pair's own rows, which a compiled expression gathers."""
    case, paired = CASES[name], form == "paired"
    queries, rows = (4096, 4096) if paired else (256, 2000)
    q, g = (leaves(fields(case.kind, n, 128, seed)) for seed, n in ((1, queries), (2, rows)))
    a, b = distribution(case.kind, tuple(q)), distribution(case.kind, tuple(g))
    ids = torch.arange(25_600).reshape(256, 100) * 7919 % rows
    weights = torch.from_numpy(np.random.default_rng(3).standard_normal(4096 if paired else (256, 100), "f"))

    def peer(*x: Any) -> Any:
        if paired:
            return case.pair(torch, x[: len(q)], x[len(q) :])
        return case.pair(torch, tuple(y[:, None] for y in x[: len(q)]), tuple(y[ids] for y in x[len(q) :]))

    fused = compiled(peer)
    scores = partial(pe.paired, a, b, case.score) if paired else partial(pe.rescore, a, b, ids, case.score)
    of = f"{name}, {'paired 4,096' if paired else 'rescored 256 x 100'} x 128"
    goals, peers = {COMPILED: 1 / faster, ALONE: 4.0}, {COMPILED: lambda: fused(*q, *g)}
    pairs = (weights.numel(), "pair")

    def same(*results: Any) -> None:
        """Of the scores alone: the peer of the cosine takes rows for unit ones, which have another gradient."""
        close(without_gradient(peers[COMPILED]), without_gradient(scores))

    return both(of, scores, [*q, *g], weights, pairs, goals, peers, same)


def without_peer(kind: str, score: str, within: float) -> Row:
    """A score that nobody writes in torch, beside its own forward."""
    n, dim = 192, 128
    q, g = (leaves(fields(kind, n, dim, seed)) for seed in (1, 2))
    scores = partial(pe.pairwise, distribution(kind, tuple(q)), distribution(kind, tuple(g)), score)
    of = f"{kind} {score}, {n} x {n} x {dim}"
    return both(of, scores, [*q, *g], torch.ones(n, n), (n * n, "pair"), {ALONE: within})


def elements(name: str, count: int) -> Row:
    """A special function and its derivative."""
    x = torch.linspace(0.5, 500, count).requires_grad_()
    of, function = f"{name}, {count:,} float32", partial(getattr(pe.special, name), 64.0, x)
    return both(of, function, [x], torch.ones(count), (count, "element"), {ALONE: 2.5})


def sampled(n: int) -> Row:
    """Draws of von Mises-Fisher distributions and their gradients."""
    mu, kappa = leaves(fields("vmf", n, 128, 1))
    draw, weights = partial(pe.sample, pe.VonMisesFisher(mu, kappa), 5, seed=1), torch.ones(5, n, 128)
    return both(f"sample, vmf, {n:,} x 5 x 128", draw, [mu, kappa], weights, (5 * n, "sample"), {ALONE: 2.5})


def by_products(name: str, q: list[Any], g: list[Any]) -> Any:
    """A score of draws as one writes it in torch: draws once an item, pairs of them by products."""
    n, dim = DRAWS[name][0], q[0].shape[-1]
    if name == "el_nivmf":
        (mu, kappa), (mean, concentrations) = q, g
        z = pe.sample(pe.VonMisesFisher(mu, kappa), n, seed=1).reshape(-1, dim)
        square, length = concentrations**2, (concentrations * mean).norm(dim=-1)
        stretched = (z**2 @ square.T).sqrt()
        cosine = z @ (square * mean).T / (stretched * length)
        peak = pe.special.vmf_log_norm(dim, length) + concentrations.log().sum(-1)
        logs = peak + length * cosine - dim * stretched.log()
        return logs.reshape(n, len(mu), -1).logsumexp(0) - math.log(n)
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
    q, g = (
        leaves(fields(kind, n, dim, seed)) for seed, (kind, n) in enumerate(zip(kinds, (queries, rows), strict=True))
    )
    a, b = distribution(kinds[0], tuple(q)), distribution(kinds[1], tuple(g))
    scores, weights = partial(pe.pairwise, a, b, getattr(pe.scores, name)(n=n, seed=1)), torch.ones(queries, rows)
    peer = "torch, products"
    sides = {
        "peaccel": Side(partial(gradients, scores, [*q, *g], weights), {peer: limit}),
        peer: partial(flushed, partial(gradients, partial(by_products, name, q, g), [*q, *g], weights)),
    }
    of = f"forward + backward of {name}, n = {n}, {queries} x {rows:,} x {dim}"
    return Row(of, sides, per=(queries * rows, "pair"))


def little() -> Iterator[Row]:
    """Calls on 32 x 32 x 64, of which losses make many."""
    q, g = (leaves(fields("isotropic", 32, 64, seed)) for seed in (1, 2))
    a, b, weights = distribution("isotropic", tuple(q)), distribution("isotropic", tuple(g)), torch.ones(32, 32)
    calls: dict[str, Scores] = {
        "peaccel": partial(pe.pairwise, a, b, "mls"),
        "torch eager": partial(pairwise(CASES["mls isotropic"]), torch, tuple(q), tuple(g)),
    }
    ways: dict[str, Callable[[Scores], Scores]] = {
        "forward without gradient": lambda call: partial(without_gradient, call),
        "forward with gradient": lambda call: call,
        "forward + backward": lambda call: partial(gradients, call, [*q, *g], weights),
    }
    for way, wrap in ways.items():
        own, peer = (wrap(call) for call in calls.values())
        sides = {"peaccel": Side(own, {"torch eager": None}), "torch eager": peer}
        yield Row(f"{way} of mls isotropic, 32 x 32 x 64", sides, per=(1, "call"))
