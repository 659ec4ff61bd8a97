"""What benchmarks share: peers, one thread for all libraries, and a timer that interleaves the sides."""

from __future__ import annotations

import gc
import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from types import ModuleType
from typing import Any, Literal, NamedTuple

import numpy as np

from benches import blas, limits
from benches.data import PRIOR, Arrays, optional

TOLERANCE = 1e-4  # relative to the largest value: tells another formula from float32 rounding


torch, special, faiss = optional("torch"), optional("scipy.special"), blas.load_faiss()
if torch is not None:
    torch.set_num_threads(1)


# ---- peers: each formula is written once, for numpy (in float64, as the truth) and for torch -----------------------


def _squared(a: Any, b: Any) -> Any:
    d = a - b
    return (d * d).sum(-1)


def _squared_dense(a: Any, b: Any) -> Any:
    return (a * a).sum(-1)[:, None] + (b * b).sum(-1) - 2 * (a @ b.T)


def _mls_diagonal(xp: ModuleType, a: Arrays, b: Arrays) -> Any:
    d, s = a[0] - b[0], a[1] + b[1]
    return -0.5 * ((d * d / s + xp.log(s)).sum(-1) + d.shape[-1] * math.log(2 * math.pi))


def _llr_diagonal(xp: ModuleType, a: Arrays, b: Arrays) -> Any:
    sa, sb = a[1] + PRIOR, b[1] + PRIOR
    det = sa * sb - PRIOR * PRIOR
    aa, bb, ab = a[0] * a[0], b[0] * b[0], a[0] * b[0]
    same = (sb * aa - 2 * PRIOR * ab + sa * bb) / det + xp.log(det / (sa * sb))
    return 0.5 * (aa / sa + bb / sb - same).sum(-1)


def _mls_isotropic(xp: ModuleType, squared: Any, va: Any, vb: Any, dim: int) -> Any:
    s = va + vb
    return -0.5 * (squared / s + dim * xp.log(2 * math.pi * s))


def _neg_expected_sq_l2(xp: ModuleType, squared: Any, va: Any, vb: Any, dim: int) -> Any:
    return -(squared + dim * (va + vb))


def _log_norm(dim: int, kappa: np.ndarray) -> np.ndarray:
    v = dim / 2 - 1
    return v * np.log(kappa) - dim / 2 * math.log(2 * math.pi) - np.log(special.ive(v, kappa)) - kappa


def _mls_vmf(xp: ModuleType, a: Arrays, b: Arrays) -> Any:
    dim = a[0].shape[-1]
    both = np.sqrt(a[1] ** 2 + b[1] ** 2 + 2 * a[1] * b[1] * (a[0] * b[0]).sum(-1))
    return _log_norm(dim, a[1]) + _log_norm(dim, b[1]) - _log_norm(dim, both)


def _expected_cosine_vmf(xp: ModuleType, a: Arrays, b: Arrays) -> Any:
    v = a[0].shape[-1] / 2
    length = [special.ive(v, kappa) / special.ive(v - 1, kappa) for kappa in (a[1], b[1])]
    return length[0] * length[1] * (a[0] * b[0]).sum(-1)


class Case(NamedTuple):
    """A score of one kind of distribution as a peer writes it: pair by pair and, where that is a product, dense."""

    score: str
    kind: str
    pair: Callable[[ModuleType, Arrays, Arrays], Any]
    dense: Callable[[ModuleType, Arrays, Arrays], Any] | None = None
    backends: tuple[str, ...] = ("numpy", "torch eager", "torch.compile")


def _isotropic(score: str, epilogue: Callable[..., Any]) -> Case:
    """A score of isotropic normals: an epilogue on the squared distance."""
    return Case(
        score,
        "isotropic",
        lambda xp, a, b: epilogue(xp, _squared(a[0], b[0]), a[1], b[1], a[0].shape[-1]),
        lambda xp, a, b: epilogue(xp, _squared_dense(a[0], b[0]), a[1][:, None], b[1], a[0].shape[-1]),
    )


CASES = {
    "mls diagonal": Case("mls", "diagonal", _mls_diagonal),
    "mls isotropic": _isotropic("mls", _mls_isotropic),
    "mls vmf": Case("mls", "vmf", _mls_vmf, backends=("scipy",)),
    "llr diagonal": Case(f"llr:prior_var={PRIOR}", "diagonal", _llr_diagonal),
    "neg_expected_sq_l2 isotropic": _isotropic("neg_expected_sq_l2", _neg_expected_sq_l2),
    "expected_cosine vmf": Case("expected_cosine", "vmf", _expected_cosine_vmf, backends=("scipy",)),
    # Unit rows: the peers need no norms.
    "cosine point": Case("cosine", "point", lambda xp, a, b: (a[0] * b[0]).sum(-1), lambda xp, a, b: a[0] @ b[0].T),
    "neg_sq_l2 point": Case(
        "neg_sq_l2", "point", lambda xp, a, b: -_squared(a[0], b[0]), lambda xp, a, b: -_squared_dense(a[0], b[0])
    ),
}


def rescored(case: Case) -> Callable[..., Any]:
    """Candidates gathered and scored in one expression, which torch.compile fuses into one pass over the rows."""
    return lambda xp, a, b, ids: case.pair(xp, tuple(x[:, None] for x in a), tuple(x[ids] for x in b))


def pairwise(case: Case) -> Callable[..., Any]:
    """Every query against every gallery row."""
    return case.dense or (lambda xp, a, b: case.pair(xp, tuple(x[:, None] for x in a), b))


def best(scores: Callable[..., Any], k: int) -> Callable[..., Any]:
    """`scores`, then the k best of each row."""

    def call(xp: ModuleType, *args: Any) -> Any:
        found = scores(xp, *args)
        if xp is torch:
            return torch.topk(found, k)
        ids = np.argpartition(found, -k)[..., -k:]
        found = np.take_along_axis(found, ids, -1)
        order = np.argsort(-found)
        return np.take_along_axis(found, order, -1), np.take_along_axis(ids, order, -1)

    return call


def bind(backend: str, function: Callable[..., Any], *args: Any) -> Callable[[], Any]:
    """`function(xp, *args)` ready to be timed on numpy or torch: moved, compiled and warmed up beforehand."""
    if backend in ("numpy", "scipy"):
        return lambda: function(np, *args)
    if torch is None:
        raise NotImplementedError("torch is not installed")
    moved = [tuple(map(torch.from_numpy, x)) if isinstance(x, tuple) else torch.from_numpy(x) for x in args]

    def call(*tensors: Any) -> Any:
        return function(torch, *tensors)

    if backend == "torch.compile":
        call = torch.compile(call, dynamic=False)
        call(*moved)
    return lambda: call(*moved)


def peer(case: Case, backend: str, function: Callable[..., Any], *args: Any) -> Callable[[], Any]:
    """`bind`, for the backends that can express the case; the asv suites skip the others by NotImplementedError."""
    if backend not in case.backends or (backend == "scipy" and special is None):
        raise NotImplementedError(f"{backend} has no {case.score} of {case.kind}")
    return bind(backend, function, *args)


def doubled(x: np.ndarray) -> np.ndarray:
    """`x` in float64, for the truth."""
    return x.astype(np.float64)


def compact(gallery: Arrays, ids: np.ndarray) -> tuple[Arrays, np.ndarray]:
    """The named rows in float64, and the same ids into them: no copy of a large gallery."""
    return tuple(doubled(x[ids.ravel()]) for x in gallery), np.arange(ids.size).reshape(ids.shape)


# ---- the timer -----------------------------------------------------------------------------------------------------


class Timing(NamedTuple):
    """Median wall time of a call; CPU time per wall time over all calls, about 1 for one thread."""

    seconds: float
    cores: float


def interleave(sides: Mapping[str, Callable[[], Any]], rounds: int) -> dict[str, Timing]:
    """Time the sides in turn, A B A B ..., so that a machine that drifts or is shared is unfair to none of them."""
    walls: dict[str, list[float]] = {name: [] for name in sides}
    cpus = dict.fromkeys(sides, 0.0)
    gc.collect()
    gc.disable()
    try:
        for _ in range(rounds):
            for name, run in sides.items():
                cpu, wall = time.process_time(), time.perf_counter()
                run()
                walls[name].append(time.perf_counter() - wall)
                cpus[name] += time.process_time() - cpu
    finally:
        gc.enable()
    return {name: Timing(statistics.median(wall), cpus[name] / sum(wall)) for name, wall in walls.items()}


# ---- a contest: sides, goals, checks and the table -------------------------------------------------------------------


class Goal(NamedTuple):
    """A goal beside a peer: at least `limit` times as fast, or at most `limit` times its time."""

    kind: Literal["faster", "within"]
    peer: str
    limit: float | None = None  # None: the ratio is printed without a goal

    def texts(self, own: float, other: float) -> tuple[str, str, str]:
        """(ratio, goal, met) as printed."""
        value = other / own if self.kind == "faster" else own / other
        if self.limit is None:
            return f"{value:.3g}x of {self.peer}", "", ""
        goal = f"{'>=' if self.kind == 'faster' else '<='} {self.limit:g}x {self.peer}"
        met = value >= self.limit if self.kind == "faster" else value <= self.limit
        return f"{value:.3g}x", goal, "yes" if met else "no"


class Side(NamedTuple):
    """One contestant. `truth(result)` gives (what it computed, what float64 numpy computes) for a few rows."""

    name: str
    run: Callable[[], Any]
    truth: Callable[[Any], tuple[Any, Any]] | None = None
    work: float = 0.0  # bytes or floating-point operations of one call
    goals: tuple[Goal, ...] = ()


class Relation(NamedTuple):
    """The range of the time of one side over that of another; outside it one of the two is starved."""

    side: str
    other: str
    low: float
    high: float
    source: str


class Work(NamedTuple):
    """One piece of work, done by every side."""

    name: str
    unit: str
    per_call: float  # units in one call
    rate: str  # the unit of `Side.work` per time, and of its limit: GB/s, GF/s or nothing
    rounds: int
    sides: list[Side]
    relations: tuple[Relation, ...] = ()


def around(side: str, other: str, measured: float, source: str) -> Relation:
    """A relation within a factor of two of a measured ratio of times."""
    return Relation(side, other, measured / 2, measured * 2, source)


def wrong(side: Side) -> Iterator[str]:
    """Run a side once, which also warms it up, and hold a few rows against float64 numpy."""
    result = side.run()
    if side.truth is None:
        return
    got, want = (np.asarray(x, dtype=np.float64) for x in side.truth(result))
    error, scale = np.abs(got - want).max(), max(1.0, np.abs(want).max())
    if not error <= TOLERANCE * scale:
        yield f"{side.name}: off by {error:.3g} from float64 numpy, on values up to {scale:.3g}"


def starved(work: Work, times: dict[str, Timing]) -> Iterator[str]:
    """What makes the comparison unsound; not for --quick: relations are those of large galleries."""
    for name, timing in times.items():
        if timing.cores > 1.3:
            yield f"{name}: {timing.cores:.1f} cores, expected one thread"
    for side, other, low, high, source in work.relations:
        ratio = times[side].seconds / times[other].seconds
        if not low <= ratio <= high:
            yield f"{side} / {other} = {ratio:.2f}, expected {low:.2f} to {high:.2f} ({source}): a peer is starved"


def lines(work: Work, times: dict[str, Timing]) -> Iterator[str]:
    """The table's rows, one per side; a rate is shown beside what the core can do, measured just before."""
    limit = f"of {limits.work(work.rate) / times[work.rate].seconds / 1e9:.3g} {work.rate}" if work.rate else ""
    scale = {"ns": 1e9, "us": 1e6, "ms": 1e3}[work.unit[:2]]
    for side in work.sides:
        seconds = times[side.name].seconds
        rate = f"{side.work / seconds / 1e9:.3g} {limit}" if side.work else ""
        judged = [goal.texts(seconds, times[goal.peer].seconds) for goal in side.goals]
        cells = ("; ".join(filter(None, column)) for column in zip(*judged, strict=True)) if judged else ("", "", "")
        yield row(work.name, side.name, f"{seconds * scale / work.per_call:.4g} {work.unit}", rate, *cells)


def row(*cells: str) -> str:
    """One line of the table."""
    widths = (66, 32, 18, 20, 34, 56, 8)
    return "| " + " | ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)) + " |"


def measure(work: Work, judge: bool) -> list[str]:
    """Check, time and print one piece of work; returns what is unsound about it."""
    failures = [message for side in work.sides for message in wrong(side)]
    # Not in turn with the sides: to measure the memory is to empty the caches.
    times = interleave({work.rate: partial(limits.burst, work.rate)} if work.rate else {}, 9)
    times |= interleave({side.name: side.run for side in work.sides}, work.rounds)
    print(*lines(work, times), sep="\n", flush=True)
    if judge:
        failures += starved(work, times)
    return [f"{work.name}: {message}" for message in failures]


# ---- a path beside its neighbour ------------------------------------------------------------------------------------

SHARE = 1.0  # seconds that the rounds of a row take together, if three of them take less
LONG = 5.0  # seconds that a round takes of which one is enough
NOISE = 1.05  # ratio by which medians of the same work differ


class Row(NamedTuple):
    """Two amounts of one unit, "s" or "B"; `limit` is the largest ratio of peaccel's to the peer's."""

    work: str
    own: float
    peer: str
    other: float
    limit: float = 1.0
    unit: str = "s"


class Beside(NamedTuple):
    """A path and its peers, the fastest of which counts; `same(own, *others)` raises where results do not agree."""

    work: str
    run: Callable[[], Any]
    peers: Mapping[str, Callable[[], Any]]
    same: Callable[..., None]
    limit: float = 1.0


def close(got: Any, want: Any) -> None:
    """Raise where two arrays differ by more than `TOLERANCE` of the largest value."""
    got, want = (np.asarray(x, dtype=np.float64) for x in (got, want))
    scale = max(1.0, np.abs(want).max())
    np.testing.assert_allclose(got, want, rtol=0, atol=TOLERANCE * scale)


def beside(of: Beside) -> Row:
    """Check and time a path and its peers."""
    start = time.perf_counter()
    of.same(of.run(), *(peer() for peer in of.peers.values()))
    spent = time.perf_counter() - start
    rounds = min(51, max(1 if spent > LONG else 3, int(SHARE / spent)))
    times = interleave({"peaccel": of.run, **of.peers}, rounds)
    best_peer = min(of.peers, key=lambda name: times[name].seconds)
    return Row(of.work, times["peaccel"].seconds, best_peer, times[best_peer].seconds, of.limit)


def amount(value: float, unit: str) -> str:
    """Bytes in MB, seconds in what suits them."""
    if unit == "B":
        return f"{value / 1e6:.4g} MB"
    scale, name = (1.0, "s") if value >= 1 else (1e3, "ms") if value >= 1e-3 else (1e6, "us")
    return f"{value * scale:.4g} {name}"


def judged(point: str, of: Row) -> str:
    """A row of the table of cliffs. As fast as another path of peaccel means within the noise of the medians."""
    ratio = of.own / of.other
    limit = NOISE if of.limit == 1 and of.peer.startswith("peaccel") else of.limit
    peers = f"{amount(of.other, of.unit)} {of.peer}"
    cells = (point, of.work, amount(of.own, of.unit), peers, f"{ratio:.3g}x", f"<= {of.limit:.3g}x")
    return "| " + " | ".join((*cells, "yes" if ratio <= limit else "no")) + " |"
