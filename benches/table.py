"""The table of peaccel beside its peers: a row is a piece of work, its sides, and goals.

    Row("search of 200,000 x 128", {"peaccel": Side(ours, {"faiss": 1.0}), "faiss": theirs}, same=close)

A goal is the largest ratio of a side's time to that of another. Before anything is timed the results of all sides are
held against each other, or against numpy in float64. Sides then run by turns in one process, A B A B ..., so that a
machine that drifts or is shared is unfair to none of them; medians count.
"""

from __future__ import annotations

import gc
import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import peaccel as pe
from benches import limits

Run = Callable[[], Any]
FASTEST = "the fastest peer"
TOLERANCE = 1e-4  # relative to the largest value: tells another formula from float32 rounding
NOISE = 1.05  # ratio by which medians of the same work differ
LEAST, MOST = 3, 1001  # rounds
LONG = 5.0  # seconds of a round of which one is enough


class Side(NamedTuple):
    """One contestant: a call that is timed, or an amount that was measured already.

    `goals` are the largest ratios of its amount to that of other sides, `FASTEST` among them; None: shown alone.
    """

    run: Run | float
    goals: Mapping[str, float | None] = {}
    work: float = 0.0
    """Bytes or floating-point operations of one call."""


class Plausible(NamedTuple):
    """The range of the time of one side over that of another; outside it one of the two is starved."""

    side: str
    other: str
    low: float
    high: float
    source: str


class Row(NamedTuple):
    """One piece of work, done by every side. Sides without goals are the peers of those that have some."""

    work: str
    sides: Mapping[str, Side | Run | float]
    same: Callable[..., object] = lambda *results: None
    """Raises AssertionError where the results of the calls, in the order of the sides, are not what they should be."""
    per: tuple[float, str] = (1, "")
    """How many of what a call does, as in (25_600, "pair")."""
    unit: str = "s"
    """Of amounts that were measured already: "s", "B", or "" for numbers."""
    rate: str = ""
    """The unit of `Side.work` per time, GB/s or GF/s."""
    seconds: float = 1.0
    """How long all rounds take together, if three of them take less."""
    clock: Callable[[], float] = time.perf_counter
    turn: float = 0.0
    """Seconds for which a side runs in a turn; turns then go forwards and backwards, as each pays for what the side
    before it has freed."""
    threads: int = 1
    plausible: tuple[Plausible, ...] = ()


def beside(
    work: str, run: Run | float, peers: Mapping[str, Run | float], *same: Any, goal: float = 1, **how: Any
) -> Row:
    """A row of one path of peaccel beside its peers, the fastest of which counts."""
    return Row(work, {"peaccel": Side(run, {FASTEST: goal}), **peers}, *same, **how)


def around(side: str, other: str, measured: float) -> Plausible:
    """Within a factor of two of a ratio of times that was measured on another machine."""
    return Plausible(side, other, measured / 2, measured * 2, "measured elsewhere")


# ---- checks ----------------------------------------------------------------------------------------------------------


def doubles(x: Any) -> np.ndarray:
    """An array, or a tensor wherever it lies, in float64."""
    return np.asarray(x.detach().cpu() if hasattr(x, "detach") else x, dtype=np.float64)


def close(want: Any, *results: Any, tolerance: float = TOLERANCE) -> None:
    """Raise where results differ from the first by more than a share of the largest value."""
    want = doubles(want)
    for got in results:
        np.testing.assert_allclose(doubles(got), want, rtol=0, atol=tolerance * max(1.0, np.abs(want).max()))


def same_arrays(ours: Any, other: Any, *_: Any) -> None:
    """Raise where a distribution has not the arrays of another, or these."""
    for got, want in zip(ours.arrays, getattr(other, "arrays", other), strict=True):
        close(want, got)


def equal(want: Any, *results: Any) -> None:
    """Raise where results, or the scores of rankings, are not the same to the last bit."""
    for got in results:
        np.testing.assert_array_equal(getattr(got, "scores", got), getattr(want, "scores", want))


def first(want: np.ndarray, *results: Any) -> None:
    """Raise where the first scores of results are not these; a result is scores, or (scores, ids)."""
    for result in results:
        got = doubles(result[0] if isinstance(result, tuple) else result)[: len(want)]
        close(want[tuple(map(slice, got.shape))], got)


def expected(sides: Mapping[str, Any], want: Any, others: Mapping[str, Any] = {}) -> Callable[..., None]:
    """Whether the first scores of the sides are what is expected of all of them, or of one by its name."""

    def same(*results: Any) -> None:
        for name, result in zip(sides, results, strict=True):
            first(others.get(name, want), result)

    return same


# ---- the timer -------------------------------------------------------------------------------------------------------


class Timing(NamedTuple):
    """The median time of a call; processor time per wall time over all calls, about 1 for one thread."""

    seconds: float
    cores: float


def by_turns(
    calls: Mapping[str, Run], seconds: float, clock: Callable[[], float] = time.perf_counter, turn: float = 0.0
) -> dict[str, Timing]:
    """Time calls by turns; without `seconds` in a single round."""
    found: dict[str, list[float]] = {name: [] for name in calls}
    walls, cpus = dict.fromkeys(calls, 0.0), dict.fromkeys(calls, 0.0)
    gc.collect()
    gc.disable()
    begun = time.perf_counter()
    try:
        for rounds in range(1, MOST + 1):
            for name, run in [*calls.items()][:: -1 if turn and rounds % 2 else 1]:
                steps, wall, cpu, start = 0, time.perf_counter(), time.process_time(), clock()
                while not steps or clock() - start < turn:
                    run()
                    steps += 1
                found[name].append((clock() - start) / steps)
                cpus[name] += time.process_time() - cpu
                walls[name] += time.perf_counter() - wall
            spent = time.perf_counter() - begun
            if not seconds or (spent > seconds and (rounds >= LEAST or spent > LONG)):
                break
    finally:
        gc.enable()
    return {name: Timing(statistics.median(times), cpus[name] / walls[name]) for name, times in found.items()}


# ---- lines -----------------------------------------------------------------------------------------------------------

HEADER = ("group", "work", "side", "amount", "rate", "beside", "ratio", "goal", "met")


class Verdict(NamedTuple):
    """A side's ratio to a peer, and the goal for it."""

    peer: str
    ratio: float
    limit: float | None

    @property
    def met(self) -> bool | None:
        """Whether the goal is reached. As fast as another path of peaccel means within the noise of the medians."""
        noise = NOISE if self.limit == 1 and self.peer.startswith("peaccel") else 1.0
        return None if self.limit is None else self.ratio <= self.limit * noise


class Line(NamedTuple):
    """A side with goals, as measured."""

    work: str
    side: str
    amount: float
    beside: dict[str, float]
    verdicts: list[Verdict]


def sides_of(row: Row) -> dict[str, Side]:
    """The sides as records."""
    return {name: side if isinstance(side, Side) else Side(side) for name, side in row.sides.items()}


def judged(row: Row, amounts: Mapping[str, float]) -> Iterator[Line]:
    """A line for each side that has goals, the first of them with all peers; sides that have no amount are left out."""
    sides = sides_of(row)
    peers = {name: amounts[name] for name, side in sides.items() if name in amounts and not side.goals}
    shown = peers
    for name, side in sides.items():
        if not side.goals or name not in amounts:
            continue
        best = min(peers, key=peers.__getitem__, default="")
        goals = [(best if peer is FASTEST else peer, limit) for peer, limit in side.goals.items()]
        own, others = amounts[name], shown | {peer: amounts[peer] for peer, _ in goals if peer in amounts}
        verdicts = [Verdict(peer, own / others[peer], limit) for peer, limit in goals if peer in others]
        yield Line(row.work, name, own, others, verdicts)
        shown = {}


def amount(value: float, unit: str, per: str = "") -> str:
    """Bytes in MB, seconds in what suits them."""
    scales = {"B": ((1e-6, "MB"),), "s": ((1, "s"), (1e3, "ms"), (1e6, "us"), (1e9, "ns"))}.get(unit, ((1, unit),))
    scale, name = next((x for x in scales if value * x[0] >= 1), scales[-1])
    return f"{value * scale:.4g} {name}{f'/{per}' if per else ''}".strip()


def cells(line: Line, row: Row, limit: float = 0.0) -> tuple[str, ...]:
    """A line as it is printed; `limit` is what the core can do, in the unit of the row's rate."""
    count, per = row.per

    def shown(value: float) -> str:
        return amount(value / count, row.unit, per)

    def rate(name: str, value: float) -> str:
        work = sides_of(row)[name].work
        return f"{work / value / 1e9:.3g}" if work and value else ""

    def of(verdict: Verdict) -> str:
        return f" of {verdict.peer}" if len(line.beside) > 1 else ""

    own = rate(line.side, line.amount)
    others = (
        f"{shown(value)} {name}{f' ({rate(name, value)} {row.rate})' if rate(name, value) else ''}"
        for name, value in line.beside.items()
    )
    return (
        line.work,
        line.side,
        shown(line.amount),
        f"{own} {f'of {limit:.3g} ' if limit else ''}{row.rate}" if own else "",
        "; ".join(others),
        "; ".join(f"{x.ratio:.3g}x{of(x)}" for x in line.verdicts),
        "; ".join(f"<= {x.limit:.3g}x{of(x)}" for x in line.verdicts if x.limit is not None),
        "; ".join("yes" if x.met else "no" for x in line.verdicts if x.limit is not None),
    )


def printed(*words: object) -> None:
    """Print one line of a table."""
    print("| " + " | ".join(map(str, words)) + " |", flush=True)


def headed(*names: str) -> None:
    """Print the head of a table."""
    printed(*names)
    printed(*["---"] * len(names))


def machine() -> str:
    """Processor, instruction set and cores."""
    cpuinfo = Path("/proc/cpuinfo")
    names = [x for x in cpuinfo.read_text().splitlines() if x.startswith("model name")] if cpuinfo.exists() else []
    processor = names[0].partition(": ")[2] if names else "unknown processor"
    return f"{processor}, {pe.build_info()['simd']}, {os.cpu_count()} cores"


# ---- the table -------------------------------------------------------------------------------------------------------


def starved(row: Row, times: Mapping[str, Timing]) -> Iterator[str]:
    """The reasons why the comparison is unsound."""
    for name, timing in times.items():
        if timing.cores > row.threads + 0.3:
            yield f"{name}: {timing.cores:.1f} cores, expected {row.threads}"
    for side, other, low, high, source in row.plausible:
        ratio = times[side].seconds / times[other].seconds
        if not low <= ratio <= high:
            yield f"{side} / {other} = {ratio:.2f}, expected {low:.2f} to {high:.2f} ({source}): a peer is starved"


def measured(row: Row, quick: bool) -> tuple[dict[str, float], float, list[str]]:
    """The amounts of a row, what the core can do, and what is unsound; `quick`: nothing is said of speed."""
    sides = sides_of(row)
    calls = {name: side.run for name, side in sides.items() if callable(side.run)}
    failures, limit = [], 0.0
    try:
        row.same(*(run() for run in calls.values()))
    except AssertionError as error:
        failures.append(" ".join(str(error).split())[:400] or "the sides do not agree")
    if row.rate and not quick:
        # Not in turn with the sides: to measure the memory is to empty the caches.
        burst = by_turns({"": partial(limits.burst, row.rate)}, 0.1)[""]
        limit = limits.work(row.rate) / burst.seconds / 1e9
    times = by_turns(calls, 0.0 if quick else row.seconds, row.clock, row.turn)
    failures += [] if quick else starved(row, times)
    amounts = {name: times[name].seconds if callable(side.run) else float(side.run) for name, side in sides.items()}
    return amounts, limit, failures


def show(groups: Mapping[str, Callable[[bool], Iterator[Row]]], quick: bool) -> int:
    """Print the table of groups of rows; 1 where a comparison was unsound. A row's data is released before the next."""
    headed(*HEADER)
    failures = []
    for group, rows in groups.items():
        made = rows(quick)
        for row in iter(partial(next, made, None), None):
            amounts, limit, unsound = measured(row, quick)
            for line in judged(row, amounts):
                printed(group, *cells(line, row, limit))
            failures += [f"FAILED {group}, {row.work}: {message}" for message in unsound]
            del row
    print(*failures, sep="\n")
    return 1 if failures else 0
