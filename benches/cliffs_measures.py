"""The points of `benches.cliffs` about special functions, samples, measures, first stages and metrics."""

from __future__ import annotations

import math
import tracemalloc
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from benches.common import Beside, Row, close, doubled, faiss, interleave, special, torch
from benches.data import distribution, fields, optional, pe, unit

ROWS, DIM = 100_000, 128
LOG_2PI = math.log(2 * math.pi)
Rows = Iterator[Beside | Row]


# ---- 16 and 17: special functions -----------------------------------------------------------------------------------


def many_orders() -> Rows:
    """An order for each element, where scipy's functions do not underflow."""
    rng = np.random.default_rng(0)
    x = rng.uniform(100, 1000, ROWS)
    with_scipy: dict[str, Callable[[Any, Any], Any]] = {
        "log_ive": lambda v, x: np.log(special.ive(v, x)),
        "iv_ratio": lambda v, x: special.ive(v, x) / special.ive(v - 1, x),
    }
    orders = rng.uniform(1, 128, ROWS)
    for name, peer in with_scipy.items():
        for how, v in (("scattered", orders), ("sorted", np.sort(orders))):
            own = partial(getattr(pe.special, name), v, x)
            work = f"{name}, {ROWS:,} elements with an order each, {how}"
            yield Beside(work, own, {"scipy": partial(peer, v, x)}, close, 1 / 8)


def tables() -> Rows:
    """float32 values of one order, which come from a table of that order."""
    rng = np.random.default_rng(0)
    inside = np.exp(rng.uniform(0, math.log(1e4), 1_000_000)).astype(np.float32)
    some, zeros = inside.copy(), rng.random(len(inside)) < 0.05
    some[zeros] = 0
    yield Beside(
        "log_ive, v=63, float32, 5 % of the elements 0",
        partial(pe.special.log_ive, 63, some),
        {"peaccel, none": partial(pe.special.log_ive, 63, inside)},
        lambda own, other: np.testing.assert_array_equal(own[~zeros], other[~zeros]),
        1.4,  # the table is eight times as fast as what stands in for it
    )
    x = inside[:64]

    def rotated(orders: int) -> np.ndarray:
        return np.stack([pe.special.log_ive(v % orders + 0.5, x) for v in range(256)])

    def same(own: np.ndarray, other: np.ndarray) -> None:
        close(own, np.stack([pe.special.log_ive(v % 128 + 0.5, doubled(x)) for v in range(256)]))
        np.testing.assert_array_equal(own[:32], other[:32])

    peers = {"peaccel, 32 orders in rotation": partial(rotated, 32)}
    yield Beside("log_ive, 256 calls of 64 float32, 128 orders in rotation", partial(rotated, 128), peers, same)


# ---- 18 to 20: measures ---------------------------------------------------------------------------------------------


def densities() -> Rows:
    a, b = (distribution("diagonal", fields("diagonal", ROWS, DIM, seed)) for seed in (1, 2))
    peers: dict[str, Callable[[], Any]] = {"peaccel paired neg_kl": partial(pe.paired, a, b, "neg_kl")}
    yield Beside(f"kl diagonal, {ROWS:,}", partial(pe.kl, a, b), peers, lambda own, other: close(own, -other))
    vmf, normal = (distribution(kind, fields(kind, ROWS, DIM, seed=1)) for kind in ("vmf", "isotropic"))
    z = b.mu

    def entropy_vmf() -> Any:
        kappa = vmf.kappa
        return -pe.special.vmf_log_norm(DIM, kappa) - kappa * pe.special.iv_ratio(DIM / 2, kappa)

    def log_prob_vmf() -> Any:
        return pe.special.vmf_log_norm(DIM, vmf.kappa) + vmf.kappa * np.einsum("nd,nd->n", vmf.mu, z)

    def entropy_normal() -> Any:
        return DIM / 2 * (1 + LOG_2PI + np.log(normal.var))

    def log_prob_normal() -> Any:
        d = z - normal.mu
        return -0.5 * (np.einsum("nd,nd->n", d, d) / normal.var + DIM * (LOG_2PI + np.log(normal.var)))

    for name, d, peer, entropy, log_prob in (
        ("vmf", vmf, "numpy and pe.special", entropy_vmf, log_prob_vmf),
        ("isotropic", normal, "numpy", entropy_normal, log_prob_normal),
    ):
        yield Beside(f"entropy {name}, {ROWS:,}", partial(pe.entropy, d), {peer: entropy}, close)
        yield Beside(f"log_prob {name}, {ROWS:,}", partial(pe.log_prob, d, z), {peer: log_prob}, close)


def calibration() -> Rows:
    """At most a tenth of the plain form with whole arrays; bytes against what a search may take beyond its gallery."""
    rng, items = np.random.default_rng(0), 20_000
    var = np.exp(0.7 * rng.standard_normal((items, DIM), dtype=np.float32)) / DIM
    noise = rng.standard_normal((items, DIM), dtype=np.float32)
    d = pe.Normal(np.sqrt(0.5 * var + 0.25 / DIM) * noise, var)  # all of one identity: a = 0.5, b = 0.25 / D
    pairs = distinct(rng, 100_000, items)
    minimize = optional("scipy.optimize").minimize_scalar

    def grid() -> tuple[float, float]:
        first, second = pairs.T
        square = (doubled(d.mu[first]) - d.mu[second]) ** 2
        total = doubled(var[first]) + var[second]
        typical = total.mean()

        def shape(w: float) -> np.ndarray:
            return (1 - w) * total / typical + w  # type: ignore[no-any-return]

        def loss(w: float) -> float:
            return float(np.log((square / shape(w)).mean()) + np.log(shape(w)).mean())

        places = np.r_[0.0, np.logspace(-9, 0, 37)]
        least = int(np.argmin([loss(w) for w in places]))
        low, high = places[max(least - 1, 0)], places[min(least + 1, len(places) - 1)]
        w = minimize(loss, bounds=(low, high), method="bounded", options={"xatol": 1e-6}).x
        t = (square / shape(w)).mean()
        return t * (1 - w) / typical, t * w / 2

    own = partial(pe.calibrate, d, pairs, np.ones(len(pairs), bool))
    work = f"calibrate diagonal, {len(pairs):,} pairs"
    peers: dict[str, Callable[[], Any]] = {"numpy and scipy, a grid over [P, D]": grid}
    yield Beside(work, own, peers, lambda fit, other: np.testing.assert_allclose((fit.a, fit.b), other, rtol=1e-3), 0.1)
    yield at_most(work, own, len(pairs))

    pairs = distinct(rng, 1_000_000, items)
    same = rng.random(len(pairs)) < 0.5

    def plain() -> float:
        first, second = (doubled(d.mu[rows]) for rows in pairs.T)
        lengths = np.linalg.norm(first, axis=1) * np.linalg.norm(second, axis=1)
        cosines = np.einsum("nd,nd->n", first, second) / lengths
        return float(cosines[same].mean() + cosines[~same].mean()) / 2

    own = partial(pe.fit_shift, d, pairs, same)
    work = f"fit_shift, {len(pairs):,} pairs"
    yield Beside(work, own, {"numpy, whole arrays of float64": plain}, close, 0.1)
    yield at_most(work, own, len(pairs))


def distinct(rng: np.random.Generator, count: int, items: int) -> np.ndarray:
    """Pairs of different rows."""
    first = rng.integers(0, items, count)
    return np.stack([first, (first + rng.integers(1, items, count)) % items], 1)


def at_most(work: str, run: Callable[[], Any], items: int) -> Row:
    """The peak of bytes in arrays during a call."""
    tracemalloc.start()
    run()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return Row(f"{work}, bytes at its peak", float(peak), "64 MB and 8 bytes a pair", 64e6 + 8 * items, 1.0, "B")


def fusing() -> Rows:
    groups = np.random.default_rng(0).permutation(ROWS) // 10
    sparse = optional("scipy.sparse")

    def sums(*arrays: np.ndarray) -> list[np.ndarray]:
        matrix = sparse.csr_array((np.ones(ROWS, np.float32), (groups, np.arange(ROWS))))
        return [matrix @ x for x in arrays]

    normal, vmf = (distribution(kind, fields(kind, ROWS, DIM, seed=1)) for kind in ("diagonal", "vmf"))

    def product() -> tuple[np.ndarray, ...]:
        precision = 1 / normal.var
        total, weighted = sums(precision, precision * normal.mu)
        return weighted / total, 1 / total

    def natural() -> tuple[np.ndarray, ...]:
        (total,) = sums(vmf.kappa[:, None] * vmf.mu)
        kappa = np.linalg.norm(total, axis=1)
        return total / kappa[:, None], kappa

    def mean() -> tuple[np.ndarray, ...]:
        return tuple(total / 10 for total in sums(*normal.arrays))

    def same(own: Any, other: Any) -> None:
        for got, want in zip(own.arrays, other.arrays if isinstance(other, pe.Normal) else other, strict=True):
            close(got, want)

    for d, rule, peer in ((normal, "product", product), (vmf, "natural", natural), (normal, "mean", mean)):
        work = f"fuse {d.kind.removeprefix('normal_')} by {rule}, {ROWS:,} in groups of 10"
        yield Beside(work, partial(pe.fuse, d, groups, rule), {"scipy, a sparse product": peer}, same)
    tensors = pe.Normal(*map(torch.from_numpy, normal.arrays))
    yield Beside(
        f"fuse diagonal by pfe, numpy, {ROWS:,} in groups of 10",
        partial(pe.fuse, normal, groups, "pfe"),
        {"peaccel in torch": partial(pe.fuse, tensors, torch.from_numpy(groups), "pfe")},
        same,
    )
    yield Beside(
        f"fit_vmf, one group of {ROWS:,}",
        partial(pe.fit_vmf, centred := unit(vmf.mu + 0.5 * vmf.mu[0])),
        {"numpy, a mean and Newton": partial(mean_and_newton, centred)},
        same_fit,
    )


def mean_and_newton(z: np.ndarray) -> tuple[np.ndarray, float]:
    mean = z.mean(0, dtype=np.float64)
    r = float(np.linalg.norm(mean))
    kappa = r * (DIM - r * r) / (1 - r * r)
    for _ in range(4):
        ratio = pe.special.iv_ratio(DIM / 2, kappa)
        kappa -= (ratio - r) / (1 - ratio * ratio - (DIM - 1) / kappa * ratio)
    return mean / r, kappa


def same_fit(own: Any, other: tuple[np.ndarray, float]) -> None:
    close(own.mu[0], other[0])
    np.testing.assert_allclose(own.kappa[0], other[1], rtol=1e-4)


# ---- 21 to 23: samples, first stages, metrics -----------------------------------------------------------------------


def samples() -> Rows:
    count, draws = 10_000, 10
    rng = np.random.default_rng(0)
    kappa = rng.uniform(10, 100, count).astype(np.float32)
    for dim in (2, 3, 8):
        mu = unit(rng.standard_normal((count, dim), dtype=np.float32))
        normal, vmf = pe.Normal(mu, 1 / kappa), pe.VonMisesFisher(mu, kappa)
        centre, deviation = torch.from_numpy(mu), torch.from_numpy(1 / np.sqrt(kappa))[:, None]

        def by_torch(centre: Any = centre, deviation: Any = deviation) -> Any:
            return torch.randn(draws, *centre.shape).mul_(deviation).add_(centre)

        def alike(own: Any, other: Any, mu: Any = mu) -> None:
            """The mean of draws along their own mean, which 100 000 of them have to three digits."""
            along = [np.einsum("snd,nd->sn", np.asarray(x), mu) for x in (own, other)]
            np.testing.assert_allclose(along[0].mean(), along[1].mean(), atol=5e-3)
            np.testing.assert_allclose(along[0].std(), along[1].std(), rtol=0.02)

        work = f"sample isotropic, {count:,} x {draws}, D = {dim}"
        yield Beside(work, partial(pe.sample, normal, draws, seed=1), {"torch": by_torch}, alike)
        if dim < 8:
            peers = {"numpy": partial((circle, sphere)[dim - 2], rng, vmf, draws)}
            work = f"sample vmf, {count:,} x {draws}, D = {dim}"
            yield Beside(work, partial(pe.sample, vmf, draws, seed=1), peers, alike)


def circle(rng: np.random.Generator, d: Any, draws: int) -> np.ndarray:
    """Draws of von Mises distributions, as unit vectors."""
    angle = rng.vonmises(np.arctan2(d.mu[:, 1], d.mu[:, 0]), d.kappa, (draws, len(d))).astype(np.float32)
    return np.stack([np.cos(angle), np.sin(angle)], -1)


def sphere(rng: np.random.Generator, d: Any, draws: int) -> np.ndarray:
    """Draws in three dimensions: the cosine to the mean by its inverse distribution function, then a turn around it."""
    u = rng.random((draws, len(d)), np.float32)
    cosine = 1 + np.log(u + (1 - u) * np.exp(-2 * d.kappa)) / d.kappa
    across = rng.standard_normal((draws, len(d), 3), np.float32)
    across -= np.einsum("snd,nd->sn", across, d.mu)[..., None] * d.mu
    across *= (np.sqrt(np.maximum(1 - cosine * cosine, 0)) / np.linalg.norm(across, axis=-1))[..., None]
    across += cosine[..., None] * d.mu
    return across


def first_stages() -> Rows:
    d = distribution("diagonal", fields("diagonal", ROWS, DIM, seed=2))
    q = distribution("diagonal", fields("diagonal", 8, DIM, seed=1))
    reference = pe.first_stage_reference(d, "mls")
    features = partial(pe.first_stage_features, d, "mls", reference=reference)
    seconds = interleave({"own": features}, 3)["own"].seconds
    yield Row(f"first_stage_features diagonal mls, {ROWS:,}", seconds, "one microsecond a row", 1e-6 * ROWS)

    def parts() -> Any:
        index = faiss.IndexFlatIP(3 * DIM + 5)
        index.add(features())
        return index

    def same(own: Any, index: Any) -> None:
        of_queries = pe.first_stage_features(q, "mls", "query", reference)
        close(*(x.search(of_queries, 10)[0] for x in (own.index, index)))

    build = partial(pe.FaissReranker.build, d, "Flat", reference)
    yield Beside(f'build("Flat") of surrogates, {ROWS:,}', build, {"features and IndexFlatIP.add": parts}, same)


def metrics() -> Rows:
    rng, k = np.random.default_rng(0), 1000
    # Steps by a prime do not come back to a row. An id that a ranking repeats counts once, which numpy does not see.
    ids = (rng.integers(0, ROWS, (10_000, 1)) + 7919 * np.arange(k)) % ROWS
    labels, own = rng.integers(0, 200, ROWS), rng.integers(0, 200, 10_000)
    sizes = np.bincount(labels)[own]

    def relevance(columns: int = k) -> np.ndarray:
        found: np.ndarray = labels[ids[:, :columns]] == own[:, None]
        return found

    def average_precision() -> np.ndarray:
        ranks = np.arange(1, sizes.max() + 1)
        hits = relevance(len(ranks)) & (ranks <= sizes[:, None])
        precisions: np.ndarray = (hits * hits.cumsum(1) / ranks).sum(1) / sizes
        return precisions

    plain: dict[str, Callable[[], Any]] = {
        "relevance": relevance,
        "recall_at_k, k = 10": lambda: relevance(10).any(1).mean(),
        "recall_at_k, k = 1000": lambda: relevance().any(1).mean(),
        "average_precision_at_r": average_precision,
        "map_at_r": lambda: average_precision().mean(),
    }
    for name, peer in plain.items():
        metric, _, of = name.partition(", k = ")
        run = partial(getattr(pe.metrics, metric), ids, own, labels, **({"k": int(of)} if of else {}))
        yield Beside(f"{name}, 10,000 x {k}", run, {"numpy": peer}, close)


POINTS = (many_orders, tables, densities, calibration, fusing, samples, first_stages, metrics)
