"""Peaccel on a GPU against its peers there: `python -m benches.gpu [--rehearse] [--out FOLDER]`.

Medians of CUDA events after warm-up, sides in turn. Needs torch and numpy only. Writes FOLDER/<gpu>.json, from which
docs/performance.md takes its table. `--rehearse` runs all of it on the CPU in small sizes and writes nothing: it shows
that the code runs, not how fast.
"""

from __future__ import annotations

import argparse
import json
import math
import pathlib
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch

import peaccel as pe

Run = Callable[[], Any]


class Side(NamedTuple):
    """One contestant: its name, a call, and how many bytes it must move."""

    name: str
    run: Run
    bytes: float = 0.0


class Goal(NamedTuple):
    """What is asked of the first side beside a peer: at least `value` times as fast ("faster"), at most `value` times
    its time ("within"), or at least `value` of its rate in bytes ("share")."""

    kind: str
    value: float
    peer: str


class Work(NamedTuple):
    """Sides that do the same; the first is peaccel's."""

    name: str
    sides: list[Side]
    goals: list[Goal]


class Machine:
    """The device, how to time on it, and sizes."""

    def __init__(self, rehearse: bool) -> None:
        self.rehearse = rehearse
        self.device = "cpu" if rehearse else "cuda"
        self.generator = torch.Generator(self.device).manual_seed(0)

    def size(self, full: int) -> int:
        return max(2, int(full ** (1 / 3))) if self.rehearse else full

    def rows(self, n: int, dim: int) -> Any:
        return torch.randn(n, dim, generator=self.generator, device=self.device)

    def uniform(self, *shape: int) -> Any:
        return torch.rand(shape, generator=self.generator, device=self.device)

    def choose(self, n: int, *shape: int) -> Any:
        return torch.randint(n, shape, generator=self.generator, device=self.device)

    def seconds(self, sides: list[Side], rounds: int = 15) -> list[float]:
        """Medians, the sides in turn."""
        times: list[list[float]] = [[] for _ in sides]
        for side in sides:
            for _ in range(3):
                side.run()
        for _ in range(2 if self.rehearse else rounds):
            for own, side in zip(times, sides, strict=True):
                own.append(self._one(side.run))
        return [statistics.median(x) for x in times]

    def _one(self, run: Run) -> float:
        if self.rehearse:
            start = time.perf_counter()
            run()
            return time.perf_counter() - start
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        start.record()
        run()
        end.record()
        torch.cuda.synchronize()
        return start.elapsed_time(end) / 1e3


def copy(m: Machine) -> Side:
    """A copy on the device, by whose rate others are measured: bytes read and bytes written."""
    x = m.uniform(m.size(2**28))
    y = torch.empty_like(x)
    return Side("copy", lambda: y.copy_(x), 2 * x.nbytes)


def mls_by_formula(q: Any, v: Any, g: Any, w: Any) -> Any:
    s = v + w
    return -0.5 * ((q - g) ** 2 / s + s.log() + math.log(2 * math.pi)).sum(-1)


def rerank(m: Machine) -> Iterator[Work]:
    yield from rerank_into(m, m.size(1_000_000), 128)
    yield from rerank_into(m, m.size(400_000), 512)


def rerank_into(m: Machine, rows: int, dim: int) -> Iterator[Work]:
    queries, k = m.size(1000), 100
    mu, var = m.rows(rows, dim), m.uniform(rows, dim) + 0.1
    q, v = m.rows(queries, dim), m.uniform(queries, dim) + 0.1
    ids, own = m.choose(rows, queries, k), pe.Normal(q, v)
    compiled = torch.compile(
        lambda q, v, mu, var, ids: mls_by_formula(q[:, None], v[:, None], mu[ids], var[ids]).topk(10)
    )
    peer = Side("torch.compile float32", lambda: compiled(q, v, mu, var, ids))
    for dtype, faster in ((torch.float32, 1.5), (torch.float16, 3)):
        gallery = pe.prepare(pe.Normal(mu.to(dtype), var.to(dtype)))
        moved = 2 * queries * k * dim * dtype.itemsize
        side = Side("peaccel", lambda gallery=gallery: pe.rerank(own, gallery, ids, 10), moved)
        name = f"rerank diagonal {str(dtype)[6:]}, {queries} x {k} into {rows:,} x {dim}"
        yield Work(name, [side, peer, copy(m)], [Goal("share", 0.7, "copy"), Goal("faster", faster, peer.name)])


def search(m: Machine) -> Iterator[Work]:
    queries, rows, dim = m.size(256), m.size(1_000_000), 512
    mu, var = torch.nn.functional.normalize(m.rows(rows, dim)), m.uniform(rows) * 0.01 + 0.001
    q = torch.nn.functional.normalize(m.rows(queries, dim))
    gallery, own = pe.prepare(pe.Normal(mu, var)), pe.Normal(q, var[:queries].clone())

    def product() -> Any:
        torch.backends.cuda.matmul.allow_tf32 = True
        found = (q @ mu.T).topk(10)
        torch.backends.cuda.matmul.allow_tf32 = False
        return found

    yield Work(
        f"search isotropic, {queries} into {rows:,} x {dim}, top-10",
        [
            Side("peaccel", lambda: pe.search(own, gallery, 10)),
            Side("peaccel, every pair scored", lambda: pe.search(own, gallery, 10, prune="never")),
            Side("torch.mm tf32 + topk", product),
        ],
        [Goal("within", 1.3, "torch.mm tf32 + topk")],
    )
    rows = m.size(200_000)
    mu, var = m.rows(rows, dim), m.uniform(rows, dim) + 0.1
    q, v = m.rows(queries, dim), m.uniform(queries, dim) + 0.1
    gallery, normal = pe.prepare(pe.Normal(mu, var)), pe.Normal(q, v)
    compiled = torch.compile(mls_by_formula)

    def chunked() -> Any:
        parts = [compiled(q[i : i + 8, None], v[i : i + 8, None], mu[None], var[None]) for i in range(0, queries, 8)]
        return torch.cat(parts).topk(10)

    yield Work(
        f"search diagonal, {queries} into {rows:,} x {dim}, top-10",
        [
            Side("peaccel", lambda: pe.search(normal, gallery, 10)),
            Side("peaccel, bounded by tensor cores", lambda: pe.search(normal, gallery, 10, prune="always")),
            Side("torch.compile", chunked),
        ],
        [Goal("faster", 5, "torch.compile")],
    )


def bessel(m: Machine) -> Iterator[Work]:
    for dtype in (torch.float32, torch.float64):
        x = 10 ** (4 * m.uniform(m.size(100_000_000))).to(dtype)
        goals = [Goal("share", 0.6, "copy")] if dtype == torch.float32 else []
        for name, call, order in (("log_ive", pe.special.log_ive, 63.0), ("iv_ratio", pe.special.iv_ratio, 64.0)):
            side = Side("peaccel", lambda call=call, order=order, x=x: call(order, x), 2 * x.nbytes)
            yield Work(f"{name}, {len(x):,} elements, v = {order:g}, {str(dtype)[6:]}", [side, copy(m)], goals)


def wood(mu: Any, kappa: Any, n: int) -> Any:
    """A vectorised sampler in torch: rounds of proposals until all are accepted."""
    dim = mu.shape[-1]
    k = kappa.expand(n, -1)
    b = (dim - 1) / (2 * k + (4 * k * k + (dim - 1) ** 2).sqrt())
    x0 = (1 - b) / (1 + b)
    c = k * x0 + (dim - 1) * (1 - x0 * x0).log()
    w, todo = torch.zeros_like(k), torch.ones_like(k, dtype=torch.bool)
    beta = torch.distributions.Beta(torch.full_like(k, (dim - 1) / 2), torch.full_like(k, (dim - 1) / 2))
    while todo.any():
        z, u = beta.sample(), torch.rand_like(k)
        proposal = (1 - (1 + b) * z) / (1 - (1 - b) * z)
        accepted = todo & (k * proposal + (dim - 1) * (1 - x0 * proposal).log() - c >= u.log())
        w, todo = torch.where(accepted, proposal, w), todo & ~accepted
    normals = torch.randn(n, *mu.shape, device=mu.device)
    normals -= (normals * mu).sum(-1, keepdim=True) * mu
    return w[..., None] * mu + (1 - w * w).sqrt()[..., None] * torch.nn.functional.normalize(normals, dim=-1)


def sampling(m: Machine) -> Iterator[Work]:
    items, n = m.size(65_536), 5
    seed = torch.zeros((), dtype=torch.int64, device=m.device)
    for dim in (128, 512):
        mu, kappa = torch.nn.functional.normalize(m.rows(items, dim)), 10 ** (1 + 3 * m.uniform(items))
        d = pe.VonMisesFisher(mu, kappa)
        yield Work(
            f"vMF samples, {items:,} kappas x {n}, D={dim}, float32",
            [
                Side("peaccel", lambda d=d: pe.sample(d, n, seed=seed), n * mu.nbytes),
                Side("torch.randn", lambda dim=dim: torch.randn(n, items, dim, device=m.device), n * mu.nbytes),
                Side("Wood in torch", lambda mu=mu, kappa=kappa: wood(mu, kappa, n)),
                copy(m),
            ],
            [Goal("within", 2, "torch.randn"), Goal("faster", 50, "Wood in torch")],
        )


def all_pairs(m: Machine) -> Iterator[Work]:
    queries, rows, dim = m.size(4096), m.size(65_536), 512
    q, g = (torch.nn.functional.normalize(m.rows(n, dim)) for n in (queries, rows))
    a, b = (pe.VonMisesFisher(x, 10 ** (2 + m.uniform(len(x)))) for x in (q, g))
    yield Work(
        f"all pairs vMF mls, {queries:,} x {rows:,}, D={dim}",
        [Side("peaccel", lambda: pe.pairwise(a, b)), Side("torch.mm float32", lambda: q @ g.T)],
        [Goal("within", 1.3, "torch.mm float32")],
    )


def judged(work: Work, seconds: list[float]) -> Iterator[dict[str, Any]]:
    """A row for each side."""
    rates = [side.bytes / s / 1e9 for side, s in zip(work.sides, seconds, strict=True)]
    names = [side.name for side in work.sides]
    for i, (side, s) in enumerate(zip(work.sides, seconds, strict=True)):
        goals = []
        for kind, value, peer in work.goals if i == 0 else ():
            other = names.index(peer)
            share = rates[0] / rates[other] if kind == "share" else 0.0
            ratio = {"faster": seconds[other] / s, "within": s / seconds[other], "share": share}[kind]
            met = ratio <= value if kind == "within" else ratio >= value
            sign = "<=" if kind == "within" else ">="
            goals.append({"ratio": round(ratio, 3), "goal": f"{sign} {value:g}x {peer}", "met": met})
        rate = round(rates[i], 1) or None
        yield {"work": work.name, "side": side.name, "ms": round(1e3 * s, 4), "GB/s": rate, "goals": goals}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rehearse", action="store_true", help="on the CPU, in small sizes; writes nothing")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path(__file__).parent / "results")
    options = parser.parse_args()
    if not (options.rehearse or torch.cuda.is_available()):
        parser.error("torch sees no GPU here; --rehearse runs the code on the CPU")
    machine, rows = Machine(options.rehearse), []
    print("| work | side | ms | GB/s | ratio | goal | met |\n|---|---|---|---|---|---|---|", flush=True)
    for plan in (rerank, search, bessel, sampling, all_pairs):
        for work in plan(machine):
            try:
                found = list(judged(work, machine.seconds(work.sides)))
            except (RuntimeError, NotImplementedError) as error:  # one piece of work must not cost the others
                found = [{"work": work.name, "side": "peaccel", "error": str(error).partition("\n")[0]}]
            rows += found
            for row in found:
                goals = row.get("goals", [])
                cells = [
                    *(row["work"], row["side"], row.get("ms", row.get("error")), row.get("GB/s") or ""),
                    *("; ".join(str(goal[key]) for goal in goals) for key in ("ratio", "goal", "met")),
                ]
                print("| " + " | ".join(map(str, cells)) + " |", flush=True)
    if not options.rehearse:
        name = torch.cuda.get_device_name()
        versions = {"python": platform.python_version(), "torch": torch.__version__, "cuda": torch.version.cuda}
        text = json.dumps({"gpu": name, "versions": versions, "peaccel": pe.build_info(), "rows": rows}, indent=1)
        options.out.mkdir(parents=True, exist_ok=True)
        (options.out / f"{name.replace(' ', '-')}.json").write_text(text + "\n")
    if failed := [row["work"] for row in rows if "error" in row]:
        sys.exit(f"did not run: {'; '.join(failed)}")


if __name__ == "__main__":
    main()
