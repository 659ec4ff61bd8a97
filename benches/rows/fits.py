"""What is fitted to many items, measured of one, or counted of rankings, beside the plain line in numpy or scipy."""

from __future__ import annotations

import math
import tracemalloc
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from benches.data import distribution, fields, optional, pe, unit
from benches.peers import doubled, flat_index, torch
from benches.table import Row, Run, beside, close

ROWS, DIM = 100_000, 128
LOG_2PI = math.log(2 * math.pi)
Rows = Iterator[Row]


def densities(quick: bool) -> Rows:
    a, b = (distribution("diagonal", fields("diagonal", ROWS, DIM, seed)) for seed in (1, 2))
    peers: dict[str, Run] = {"peaccel paired neg_kl": partial(pe.paired, a, b, "neg_kl")}
    yield beside(f"kl diagonal, {ROWS:,}", partial(pe.kl, a, b), peers, lambda own, other: close(-other, own))
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
        yield beside(f"entropy {name}, {ROWS:,}", partial(pe.entropy, d), {peer: entropy}, close)
        yield beside(f"log_prob {name}, {ROWS:,}", partial(pe.log_prob, d, z), {peer: log_prob}, close)


def calibration(quick: bool) -> Rows:
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
    peers: dict[str, Run] = {"numpy and scipy, a grid over [P, D]": grid}
    yield beside(
        work, own, peers, lambda fit, other: np.testing.assert_allclose((fit.a, fit.b), other, rtol=1e-3), goal=0.1
    )
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
    yield beside(work, own, {"numpy, whole arrays of float64": plain}, close, goal=0.1)
    yield at_most(work, own, len(pairs))


def distinct(rng: np.random.Generator, count: int, items: int) -> np.ndarray:
    """Pairs of different rows."""
    first = rng.integers(0, items, count)
    return np.stack([first, (first + rng.integers(1, items, count)) % items], 1)


def at_most(work: str, run: Run, items: int) -> Row:
    """The peak of bytes in arrays during a call."""
    tracemalloc.start()
    run()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    allowed = {"64 MB and 8 bytes a pair": 64e6 + 8 * items}
    return beside(f"{work}, bytes at its peak", float(peak), allowed, unit="B")


def fusing(quick: bool) -> Rows:
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
            close(want, got)

    for d, rule, peer in ((normal, "product", product), (vmf, "natural", natural), (normal, "mean", mean)):
        work = f"fuse {d.kind.removeprefix('normal_')} by {rule}, {ROWS:,} in groups of 10"
        yield beside(work, partial(pe.fuse, d, groups, rule), {"scipy, a sparse product": peer}, same)
    tensors = pe.Normal(*map(torch.from_numpy, normal.arrays))
    yield beside(
        f"fuse diagonal by pfe, numpy, {ROWS:,} in groups of 10",
        partial(pe.fuse, normal, groups, "pfe"),
        {"peaccel in torch": partial(pe.fuse, tensors, torch.from_numpy(groups), "pfe")},
        same,
    )
    yield beside(
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
    close(other[0], own.mu[0])
    np.testing.assert_allclose(own.kappa[0], other[1], rtol=1e-4)


# ---- first stages and metrics ----------------------------------------------------------------------------------------


def first_stages(quick: bool) -> Rows:
    d = distribution("diagonal", fields("diagonal", ROWS, DIM, seed=2))
    q = distribution("diagonal", fields("diagonal", 8, DIM, seed=1))
    reference = pe.first_stage_reference(d, "mls")
    features = partial(pe.first_stage_features, d, "mls", reference=reference)
    allowed = {"one microsecond a row": 1e-6 * ROWS}
    yield beside(f"first_stage_features diagonal mls, {ROWS:,}", features, allowed)

    def parts() -> Any:
        return flat_index(features())

    def same(own: Any, index: Any) -> None:
        of_queries = pe.first_stage_features(q, "mls", "query", reference)
        close(*(x.search(of_queries, 10)[0] for x in (own.index, index)))

    build = partial(pe.FaissReranker.build, d, "Flat", first_stage=reference)
    yield beside(f'build("Flat") of surrogates, {ROWS:,}', build, {"features and IndexFlatIP.add": parts}, same)


def metrics(quick: bool) -> Rows:
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

    plain: dict[str, Run] = {
        "relevance": relevance,
        "recall_at_k, k = 10": lambda: relevance(10).any(1).mean(),
        "recall_at_k, k = 1000": lambda: relevance().any(1).mean(),
        "average_precision_at_r": average_precision,
        "map_at_r": lambda: average_precision().mean(),
    }
    for name, peer in plain.items():
        metric, _, of = name.partition(", k = ")
        run = partial(getattr(pe.metrics, metric), ids, own, labels, **({"k": int(of)} if of else {}))
        yield beside(f"{name}, 10,000 x {k}", run, {"numpy": peer}, close)
