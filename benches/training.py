"""Training ops against torch: forward and backward of pairs, scores of draws, log norms, and calls on little.

Part of `python -m benches.ratios --only training`. Every op of a loss is timed forward and backward, all inputs with
gradients, beside what one writes in torch, eager and compiled; scores of draws beside products of torch's own draws.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from benches.common import CASES, Goal, Side, Work, pairwise, torch
from benches.data import PRIOR, distribution, fields, pe

if torch is not None:  # one expression is compiled for many works; from the ninth on it would run eagerly
    torch._dynamo.config.recompile_limit = 64

CHECKED = 2
DRAWS = {"hib": 8, "neg_sampled_l2": 8, "sampled_cosine": 8, "el_nivmf": 5}


def leaves(arrays: Any, dtype: Any = None) -> list[Any]:
    return [torch.from_numpy(x).to(dtype or torch.float32).requires_grad_() for x in arrays]


def stepped(scores: Callable[[], Any], inputs: list[Any], weights: Any) -> Callable[[], Any]:
    """A forward and a backward of sum(weights * scores); returns the first rows of the first input's gradient."""

    def step() -> Any:
        for x in inputs:
            x.grad = None
        (scores() * weights).sum().backward()
        return inputs[0].grad[:CHECKED]

    return step


def pairs(name: str, queries: int, rows: int | None, dim: int, goals: tuple[float, float], quick: bool) -> Work:
    """Pairwise scores and gradients against torch.compile: at least so many times as fast, at most so many forwards.

    Without `rows` the gallery is the queries themselves.
    """
    case, faster, within = CASES[name], *goals
    sizes = ((1, queries),) if rows is None else ((1, queries), (2, rows))
    function, arrays = pairwise(case), [fields(case.kind, n, dim, seed) for seed, n in sizes]
    weights = torch.from_numpy(np.random.default_rng(3).standard_normal((queries, sizes[-1][1]), dtype=np.float32))

    def sides(dtype: Any = None) -> tuple[Any, ...]:
        own = [leaves(x, dtype) for x in arrays]
        return (own[0], own[-1]), [x for side in own for x in side]

    (q, g), every = sides(torch.float64)
    exact = stepped(lambda: function(torch, q, g), every, weights.double())().clone()
    (q, g), every = sides()
    a = distribution(case.kind, tuple(q))
    b = a if rows is None else distribution(case.kind, tuple(g))
    compiled = torch.compile(lambda *x: function(torch, x[: len(q)], x[-len(g) :]), dynamic=False)

    def truth(found: Any) -> tuple[Any, Any]:
        scale = exact.abs().max()  # sums over many pairs
        return found / scale, exact / scale

    def forward() -> Any:
        with torch.no_grad():
            return pe.pairwise(a, b, case.score)

    own = stepped(lambda: pe.pairwise(a, b, case.score), every, weights)
    against = Goal("faster", "torch.compile", faster), Goal("within", "peaccel, forward alone", within)
    return Work(
        f"forward + backward of {name}, {queries} x {'themselves' if rows is None else f'{rows:,}'} x {dim}",
        "ns/pair",
        weights.numel(),
        "",
        3 if quick else 9,
        [
            Side("peaccel", own, truth, goals=against),
            Side("peaccel, forward alone", forward),
            Side("torch.compile", stepped(lambda: compiled(*every), every, weights), truth),
            Side("torch eager", stepped(lambda: function(torch, q, g), every, weights), truth),
        ],
    )


def forward(name: str, queries: int, rows: int, dim: int, quick: bool) -> Work:
    """All pairs, without gradients, against torch.compile and against the one product of matrices that it takes."""
    case = CASES[name]
    a, b = (fields(case.kind, n, dim, seed) for seed, n in ((1, queries), (2, rows)))
    function, tensors = pairwise(case), [tuple(map(torch.from_numpy, x)) for x in (a, b)]
    compiled = torch.compile(lambda q, g: function(torch, q, g), dynamic=False)
    own = partial(pe.pairwise, distribution(case.kind, a), distribution(case.kind, b), case.score)
    goals = Goal("within", "torch.compile", 1.0), Goal("within", "one product", 2.2)
    return Work(
        f"{name}, {queries} x {rows:,} x {dim}",
        "ns/pair",
        queries * rows,
        "",
        3 if quick else 9,
        [
            Side("peaccel", own, goals=goals),
            Side("torch.compile", lambda: compiled(*tensors)),
            Side("one product", lambda: tensors[0][0] @ tensors[1][0].T),
        ],
    )


def listed(name: str, form: str, goals: tuple[float, float], quick: bool) -> Work:
    """Pairs of equal rows, or candidates: a pair's own rows, which a compiled expression gathers."""
    case, faster, within = CASES[name], *goals
    queries, rows = (4096, 4096) if form == "paired" else (256, 2000)
    (q, g) = (leaves(fields(case.kind, n, 128, seed)) for seed, n in ((1, queries), (2, rows)))
    a, b, ids = (
        distribution(case.kind, tuple(q)),
        distribution(case.kind, tuple(g)),
        torch.arange(25_600).reshape(256, 100),
    )
    ids = ids * 7919 % rows
    weights = torch.from_numpy(np.random.default_rng(3).standard_normal(4096 if form == "paired" else (256, 100), "f"))

    def peer(*x: Any) -> Any:
        if form == "paired":
            return case.pair(torch, x[: len(q)], x[len(q) :])
        return case.pair(torch, tuple(y[:, None] for y in x[: len(q)]), tuple(y[ids] for y in x[len(q) :]))

    def own() -> Any:
        return pe.paired(a, b, case.score) if form == "paired" else pe.rescore(a, b, ids, case.score)

    def alone() -> Any:
        with torch.no_grad():
            return own()

    compiled = torch.compile(peer, dynamic=False)
    return Work(
        f"forward + backward of {name}, {'paired 4,096' if form == 'paired' else 'rescored 256 x 100'} x 128",
        "ns/pair",
        weights.numel(),
        "",
        3 if quick else 9,
        [
            Side(
                "peaccel",
                stepped(own, [*q, *g], weights),
                goals=(Goal("faster", "torch.compile", faster), Goal("within", "peaccel, forward alone", within)),
            ),
            Side("peaccel, forward alone", alone),
            Side("torch.compile", stepped(lambda: compiled(*q, *g), [*q, *g], weights)),
        ],
    )


def sampled(quick: bool) -> Work:
    """Draws of von Mises-Fisher distributions and their gradients."""
    n = 256 if quick else 4096
    mu, kappa = leaves(fields("vmf", n, 128, 1))
    d, weights = pe.VonMisesFisher(mu, kappa), torch.ones(5, n, 128)

    def alone() -> Any:
        with torch.no_grad():
            return pe.sample(d, 5, seed=1)

    def both() -> Any:
        return torch.autograd.grad(pe.sample(d, 5, seed=1), (mu, kappa), weights)

    goal = Goal("within", "forward alone", 2.5)
    sides = [Side("peaccel", both, goals=(goal,)), Side("forward alone", alone)]
    return Work(f"forward + backward of sample, vmf, {n:,} x 5 x 128", "ns/sample", 5 * n, "", 3 if quick else 9, sides)


def multiples(kind: str, score: str, within: float, quick: bool) -> Work:
    """A score that nobody writes in torch: against its own forward."""
    n, dim = 192, 128
    q, g = (leaves(fields(kind, n, dim, seed)) for seed in (1, 2))
    a, b, weights = distribution(kind, tuple(q)), distribution(kind, tuple(g)), torch.ones(n, n)

    def forward() -> Any:
        with torch.no_grad():
            return pe.pairwise(a, b, score)

    both = stepped(lambda: pe.pairwise(a, b, score), [*q, *g], weights)
    goal = Goal("within", "forward alone", within)
    name = f"forward + backward of {kind} {score}, {n} x {n} x {dim}"
    return Work(
        name,
        "ns/pair",
        n * n,
        "",
        3 if quick else 9,
        [Side("peaccel", both, goals=(goal,)), Side("forward alone", forward)],
    )


def by_products(name: str, q: list[Any], g: list[Any]) -> Any:
    """A score of draws as one writes it in torch: draws once an item, pairs of them by products."""
    n, dim = DRAWS[name], q[0].shape[-1]
    if name == "el_nivmf":
        (mu, kappa), (mean, concentrations) = q, g
        z = pe.sample(pe.VonMisesFisher(mu, kappa), n, seed=1).reshape(-1, dim)
        square, length = concentrations**2, (concentrations * mean).norm(dim=-1)
        stretched = (z**2 @ square.T).sqrt()
        cosine = z @ (square * mean).T / (stretched * length)
        peak = pe.special.vmf_log_norm(dim, length) + concentrations.log().sum(-1)
        logs = peak + length * cosine - dim * stretched.log()
        return logs.reshape(n, len(mu), -1).logsumexp(0) - math.log(n)
    draws = [mu + var.sqrt() * torch.randn(n, *mu.shape) for mu, var in (q, g)]
    if name == "sampled_cosine":
        means = [torch.nn.functional.normalize(z, dim=-1).mean(0) for z in draws]
        return means[0] @ means[1].T
    distances = torch.cdist(*(z.reshape(-1, dim) for z in draws)).reshape(n, len(q[0]), n, len(g[0]))
    if name == "neg_sampled_l2":
        return -distances.mean((0, 2))
    return torch.sigmoid(-distances).mean((0, 2)).log()


def flushed(step: Callable[[], Any]) -> Callable[[], Any]:
    """A step with subnormal numbers set to 0: sharp densities are full of them, which makes torch four times slower."""

    def run() -> Any:
        torch.set_flush_denormal(True)
        found = step()
        torch.set_flush_denormal(False)
        return found

    return run


def draws(name: str, queries: int, rows: int, goal: float, quick: bool) -> Work:
    dim = 128
    kinds = ("vmf", "nivmf") if name == "el_nivmf" else ("diagonal", "diagonal")
    q, g = (
        leaves(fields(kind, n, dim, seed)) for seed, (kind, n) in enumerate(zip(kinds, (queries, rows), strict=True))
    )
    a, b = distribution(kinds[0], tuple(q)), distribution(kinds[1], tuple(g))
    score, weights = getattr(pe.scores, name)(n=DRAWS[name], seed=1), torch.ones(queries, rows)
    return Work(
        f"forward + backward of {name}, n = {DRAWS[name]}, {queries} x {rows:,} x {dim}",
        "ns/pair",
        queries * rows,
        "",
        3 if quick else 5,
        [
            Side(
                "peaccel",
                stepped(lambda: pe.pairwise(a, b, score), [*q, *g], weights),
                goals=(Goal("within", "torch, products", goal),),
            ),
            Side("torch, products", flushed(stepped(lambda: by_products(name, q, g), [*q, *g], weights))),
        ],
    )


def elements(name: str, count: int, quick: bool) -> Work:
    """A special function and its derivative."""
    x = torch.linspace(0.5, 500, count).requires_grad_()
    function, weights = partial(getattr(pe.special, name), 64.0), torch.ones(count)

    def forward() -> Any:
        with torch.no_grad():
            return function(x)

    def both() -> Any:
        return torch.autograd.grad(function(x), x, weights)

    goal = Goal("within", "forward alone", 2.5)
    sides = [Side("peaccel", both, goals=(goal,)), Side("forward alone", forward)]
    return Work(f"forward + backward of {name}, {count:,} float32", "ns/elem.", count, "", 3 if quick else 9, sides)


def little(quick: bool) -> Iterator[Work]:
    """Calls on 32 x 32 x 64, of which losses make many."""
    q, g = (leaves(fields("isotropic", 32, 64, seed)) for seed in (1, 2))
    a, b, weights = distribution("isotropic", tuple(q)), distribution("isotropic", tuple(g)), torch.ones(32, 32)
    function, score = pairwise(CASES["mls isotropic"]), partial(pe.pairwise, a, b, "mls")

    def without(call: Callable[[], Any]) -> Callable[[], Any]:
        def run() -> Any:
            with torch.no_grad():
                return call()

        return run

    plain = partial(function, torch, tuple(q), tuple(g))
    for name, wrap in (
        ("forward without gradient", without),
        ("forward with gradient", lambda call: call),
        ("forward + backward", lambda call: stepped(call, [*q, *g], weights)),
    ):
        goal = (Goal("within", "torch eager"),)
        sides = [Side("peaccel", wrap(score), goals=goal), Side("torch eager", wrap(plain))]
        yield Work(f"{name} of mls isotropic, 32 x 32 x 64", "us/call", 1, "", 20 if quick else 200, sides)


def plan(quick: bool) -> list[Callable[[], Any]]:
    """The pieces of work that `benches.ratios` measures under the name "training"."""
    squares = (128,) if quick else (128, 256, 1024)
    llr = f"llr:prior_var={PRIOR}"
    return [
        *(
            partial(forward, name, 128 if quick else 512, 1000 if quick else 10_000, dim, quick)
            for name in ("mls isotropic", "cosine point")
            for dim in ((128,) if quick else (64, 128, 512, 1024))
        ),
        *(partial(pairs, "mls isotropic", n, n, 128, (1.0, 4.0), quick) for n in squares),
        *(partial(pairs, "neg_sq_l2 point", n, n, 128, (1.0, 4.0), quick) for n in squares[-2:]),
        partial(pairs, "mls isotropic", 256, 1000 if quick else 10_000, 128, (1.0, 4.0), quick),
        *(
            partial(pairs, name, 128 if quick else 256, 128 if quick else 256, 128, (5.0, 4.0), quick)
            for name in ("mls diagonal", "llr diagonal")
        ),
        *(
            partial(pairs, name, 128 if quick else n, None, 128, (faster, 4.0), quick)
            for name, faster in (("mls isotropic", 1.0), ("mls diagonal", 5.0), ("llr diagonal", 5.0))
            for n in ((256, 1024) if name == "mls isotropic" else (256,))
        ),
        *(
            partial(listed, name, form, (faster, 4.0), quick)
            for name, faster in (
                ("mls isotropic", 1.0),
                ("cosine point", 1.0),
                ("mls diagonal", 5.0),
                ("llr diagonal", 5.0),
            )
            for form in ("paired", "rescored")
        ),
        *(
            partial(multiples, "isotropic", score, 4.0, quick)
            for score in (llr, "ppk", "inclusion", "neg_kl", "expected_cosine", "hib")
        ),
        *(partial(multiples, "diagonal", score, 4.0, quick) for score in ("ppk", "inclusion", "neg_kl")),
        *(partial(multiples, "vmf", score, 5.0, quick) for score in ("mls", "llr", "ppk", "inclusion", "neg_kl")),
        partial(draws, "hib", 128, 128, 0.5, quick),
        partial(draws, "neg_sampled_l2", 128, 128, 0.5, quick),
        partial(draws, "sampled_cosine", 128, 128, 0.7, quick),
        partial(draws, "el_nivmf", 128, 100, 0.5, quick),
        *(
            partial(draws, name, 128, 10_000, goal, quick)
            for name, goal in (("hib", 0.5), ("neg_sampled_l2", 0.5), ("sampled_cosine", 0.7), ("el_nivmf", 0.5))
            if not quick
        ),
        *(
            partial(elements, name, 10_000 if quick else 1_000_000, quick)
            for name in ("vmf_log_norm", "log_ive", "iv_ratio")
        ),
        partial(sampled, quick),
        partial(little, quick),
    ]
