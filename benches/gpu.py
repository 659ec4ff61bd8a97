"""Peaccel on a GPU against its peers there: `python -m benches.gpu [--only WORK] [--rehearse] [--out FOLDER]`.

How it is timed: the device is put to sleep, a call goes on the stream between two events, and the time from one to the
other is the device's alone, since all of the call's work was waiting for it. That the first event has not passed when
the host is done proves it. Where it has, because a side asks the device for a value on its way, the row says so
("waits": true): its time includes the host's. Before each call the caches are filled with other data. Medians of 15
calls after 3 to warm up, the sides in turn.

Needs torch and numpy only. FOLDER/<gpu>.json, of which docs/measurements.md is to have a table, is written after each
piece of work; what it has of other works stays, so that each can be run in a process of its own. `--rehearse` runs all
of it on the CPU in small sizes, which shows that the code runs, not how fast.
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

SLEEP = 50_000_000  # cycles: some 30 ms, longer than the host takes to launch any call here


class Side(NamedTuple):
    """One contestant: its name, a call, and how many bytes it must move."""

    name: str
    run: Run
    bytes: float = 0.0


class Goal(NamedTuple):
    """The first side's goal beside a peer: at least `value` times as fast ("faster"), at most `value` times its time
    ("within"), or at least `value` of its rate in bytes ("share")."""

    kind: str
    value: float
    peer: str


class Work(NamedTuple):
    """Sides that do the same; the first is peaccel's."""

    name: str
    sides: list[Side]
    goals: list[Goal]


class Timing(NamedTuple):
    """The median of a side's times, and whether one of them includes the host's time."""

    seconds: float
    waits: bool


class Machine:
    """The device, how to time on it, and sizes."""

    def __init__(self, rehearse: bool) -> None:
        self.rehearse = rehearse
        self.device = "cpu" if rehearse else "cuda"
        self.generator = torch.Generator(self.device).manual_seed(0)
        self.other = torch.zeros(self.size(2**28), dtype=torch.uint8, device=self.device)

    def size(self, full: int) -> int:
        return max(2, int(full ** (1 / 3))) if self.rehearse else full

    def rows(self, n: int, dim: int) -> Any:
        return torch.randn(n, dim, generator=self.generator, device=self.device)

    def uniform(self, *shape: int) -> Any:
        return torch.rand(shape, generator=self.generator, device=self.device)

    def choose(self, n: int, *shape: int) -> Any:
        return torch.randint(n, shape, generator=self.generator, device=self.device)

    def timings(self, sides: list[Side]) -> list[Timing | str]:
        """The timings of the sides, taken in turn; for a side that fails, the reason, while the others go on."""
        calls: list[list[Timing]] = [[] for _ in sides]
        failed: dict[int, str] = {}
        warm_up, rounds = (1, 2) if self.rehearse else (3, 15)
        for _ in range(warm_up + rounds):
            for i, side in enumerate(sides):
                if i not in failed:
                    try:
                        calls[i].append(self._one(side.run))
                    except Exception as error:
                        failed[i] = reason(error)
        return [failed.get(i) or median(own[warm_up:]) for i, own in enumerate(calls)]

    def _one(self, run: Run) -> Timing:
        if self.rehearse:
            start = time.perf_counter()
            run()
            return Timing(time.perf_counter() - start, False)
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        self.other.sum()  # read, not written: nothing is left to be written back
        torch.cuda.synchronize()
        torch.cuda._sleep(SLEEP)
        start.record()
        run()
        end.record()
        waits = start.query()
        torch.cuda.synchronize()
        return Timing(start.elapsed_time(end) / 1e3, waits)


def reason(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".partition("\n")[0]


def median(calls: list[Timing]) -> Timing:
    return Timing(statistics.median(call.seconds for call in calls), any(call.waits for call in calls))


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


WORKS = {"rerank": rerank, "search": search, "bessel": bessel, "sampling": sampling, "all_pairs": all_pairs}


def judged(work: Work, timings: list[Timing | str]) -> Iterator[dict[str, Any]]:
    """A row for each side."""
    found = {side.name: timing for side, timing in zip(work.sides, timings, strict=True)}
    moved = {side.name: side.bytes for side in work.sides}
    for i, (name, timing) in enumerate(found.items()):
        if isinstance(timing, str):
            yield {"work": work.name, "side": name, "error": timing}
            continue
        goals = []
        for kind, value, peer in work.goals if i == 0 else ():
            other = found[peer]
            if isinstance(other, str):
                continue
            faster = other.seconds / timing.seconds
            share = faster * moved[name] / moved[peer] if kind == "share" else 0.0
            ratio = {"faster": faster, "within": 1 / faster, "share": share}[kind]
            met = ratio <= value if kind == "within" else ratio >= value
            sign = "<=" if kind == "within" else ">="
            goals.append({"ratio": round(ratio, 3), "goal": f"{sign} {value:g}x {peer}", "met": met})
        rate = round(moved[name] / timing.seconds / 1e9, 1) or None
        row = {"work": work.name, "side": name, "ms": round(1e3 * timing.seconds, 4), "waits": timing.waits}
        yield {**row, "GB/s": rate, "goals": goals}


class Report:
    """The rows so far, printed as they come and kept in a file from the first one on."""

    def __init__(self, path: pathlib.Path, facts: dict[str, Any]) -> None:
        self.path, self.facts = path, facts
        before = json.loads(path.read_text()) if path.exists() else {}
        same = all(before.get(name) == fact for name, fact in facts.items())
        self.rows: list[dict[str, Any]] = before.get("rows", []) if same else []
        print("| work | side | ms | GB/s | ratio | goal | met |\n|---|---|---|---|---|---|---|", flush=True)

    def add(self, rows: list[dict[str, Any]]) -> None:
        """Replaces the rows of one work."""
        self.rows = [row for row in self.rows if row["work"] != rows[0]["work"]] + rows
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text(json.dumps({**self.facts, "rows": self.rows}, indent=1) + "\n")
        for row in rows:
            goals = row.get("goals", [])
            time = row["error"] if "error" in row else f"{row['ms']}{' with the host' if row['waits'] else ''}"
            cells = [
                *(row["work"], row["side"], time, row.get("GB/s") or ""),
                *("; ".join(str(goal[key]) for goal in goals) for key in ("ratio", "goal", "met")),
            ]
            print("| " + " | ".join(map(str, cells)) + " |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=list(WORKS), help="one kind of work")
    parser.add_argument("--rehearse", action="store_true", help="on the CPU, in small sizes; writes rehearsal.json")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path(__file__).parent / "results")
    options = parser.parse_args()
    if not (options.rehearse or torch.cuda.is_available()):
        parser.error("torch sees no GPU here; --rehearse runs the code on the CPU")
    machine = Machine(options.rehearse)
    gpu = "rehearsal" if options.rehearse else torch.cuda.get_device_name()
    versions = {"python": platform.python_version(), "torch": torch.__version__, "cuda": torch.version.cuda}
    facts = {"gpu": gpu, "versions": versions, "peaccel": pe.build_info()}
    report = Report(options.out / f"{gpu.replace(' ', '-')}.json", facts)
    failed = []
    for name in [options.only] if options.only else WORKS:
        try:
            for work in WORKS[name](machine):
                rows = list(judged(work, machine.timings(work.sides)))
                report.add(rows)
                failed += [row["work"] for row in rows if "error" in row]
        except Exception as error:  # of making the data
            report.add([{"work": name, "side": "", "error": reason(error)}])
            failed.append(name)
    if failed:
        sys.exit(f"did not run: {'; '.join(failed)}")


if __name__ == "__main__":
    main()
