"""Special functions and samplers beside scipy and torch."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from benches import peers, plain_losses
from benches.data import doubled, fields, log_uniform, optional, pe, unit
from benches.peers import torch
from benches.table import Row, Side, beside, close, equal

# ---- Bessel functions ------------------------------------------------------------------------------------------------


def log_ive(quick: bool) -> Iterator[Row]:
    """x log-uniform in [1, 1e4]; scipy is fast where it underflows, and the work's name says how often."""
    count, run = 100_000 if quick else 1_000_000, partial(partial, pe.special.log_ive)
    for v, double, single in ((63, 60, 300), (255, 30, 150), (1023, 25, 80)):
        yield one_order(v, log_uniform(1, 1e4, count, v), double, single)
    # At small orders Debye's expansion alone is not accurate.
    x, usual = log_uniform(1, 1e4, count), "v=63"
    sides = {usual: run(63, x), **{f"v={v:g}": Side(run(v, x), {usual: 2.0}) for v in (0.0, 0.5, 3.0, 14.9)}}
    yield Row(f"log_ive of small orders, {len(x):,} float64", sides, per=(len(x), "element"))


def one_order(v: int, x: np.ndarray, double: float, single: float) -> Row:
    """Values of one order, so much faster than scipy in float64 and in float32, and the ratio of two orders."""
    finite, want = np.isfinite(peers.log_ive(v, x)), debye(v, x)

    def same(ours: Any, of_single: Any, ratio: Any, scipys: Any) -> None:
        close(want, ours, of_single)
        close(np.exp(want - debye(v - 1, x)), ratio)
        close(want[finite], scipys[finite])

    x32, size = x.astype(np.float32), x.nbytes
    sides = {
        "peaccel": Side(partial(pe.special.log_ive, v, x), {"scipy": 1 / double}, 2 * size),
        "peaccel, float32": Side(partial(pe.special.log_ive, v, x32), {"scipy": 1 / single}, size),
        "peaccel iv_ratio": Side(partial(pe.special.iv_ratio, v, x), {"peaccel": 1 / 1.5}, 2 * size),
        "scipy": Side(partial(peers.log_ive, v, x), work=2 * size),
    }
    name = f"log_ive, v={v}, {len(x):,} elements (scipy finite in {finite.mean():.0%})"
    return Row(name, sides, same, (len(x), "element"), rate="GB/s", seconds=2)


def debye(v: int, x: np.ndarray) -> np.ndarray:
    """log(I_v(x) exp(-x)) to two correction terms (DLMF 10.41.3), plenty for v >= 62."""
    return plain_losses.log_iv(v, torch.from_numpy(x)).numpy() - x


def many_orders(quick: bool) -> Iterator[Row]:
    """An order for each element, where scipy's functions do not underflow."""
    rng, count = np.random.default_rng(0), 100_000
    x, orders = rng.uniform(100, 1000, count), rng.uniform(1, 128, count)
    for name in ("log_ive", "iv_ratio"):
        for how, v in (("scattered", orders), ("sorted", np.sort(orders))):
            run, peer = (partial(getattr(module, name), v, x) for module in (pe.special, peers))
            work = f"{name}, {count:,} elements with an order each, {how}"
            yield beside(work, run, {"scipy": peer}, close, goal=1 / 8)


def float32_tables(quick: bool) -> Iterator[Row]:
    """float32 values of one order, which come from a table of that order."""
    rng, run = np.random.default_rng(1), partial(pe.special.log_ive, 63)
    inside = log_uniform(1, 1e4, 1_000_000).astype(np.float32)
    zeros = rng.random(len(inside)) < 0.05
    yield beside(
        "log_ive, v=63, float32, 5 % of the elements 0",
        partial(run, np.where(zeros, np.float32(0), inside)),
        {"peaccel, none": partial(run, inside)},
        lambda ours, other: equal(ours[~zeros], other[~zeros]),
        goal=1.4,  # the table is eight times as fast as what stands in for it
    )
    x = inside[:64]

    def rotated(orders: int, x: np.ndarray = x) -> np.ndarray:
        return np.stack([pe.special.log_ive(v % orders + 0.5, x) for v in range(256)])

    def same(ours: np.ndarray, other: np.ndarray) -> None:
        close(rotated(128, doubled(x)), ours)
        equal(ours[:32], other[:32])

    few = {"peaccel, 32 orders in rotation": partial(rotated, 32)}
    yield beside("log_ive, 256 calls of 64 float32, 128 orders in rotation", partial(rotated, 128), few, same)


# ---- samplers --------------------------------------------------------------------------------------------------------


def samplers(quick: bool) -> Iterator[Row]:
    """Thousands of different kappas, log-uniform in [10, 1e4]; then few, which is what a loop over scipy can bear."""
    for dim, limit in ((128, 0.5), (512, 0.28)):
        rows = 256 if quick else 4096
        kappa = log_uniform(10, 1e4, rows).astype(np.float32)
        d = pe.VonMisesFisher(fields("vmf", rows, dim, seed=1)[0], kappa)
        yield many_kappas(d, limit)
        yield few_kappas(d[: 4 if quick else 32 if dim > 128 else 256])


def many_kappas(d: Any, limit: float) -> Row:
    """In place at most `limit` of the time of torch's normals."""
    (rows, dim), draws, floor = d.mu.shape, 5, "torch normal_, in place"
    buffer, weights = torch.empty(draws, rows, dim), np.ones((draws, rows, dim), np.float32)
    kernel, work, sample = pe.ops.samplers.sample_vmf, 4.0 * dim * rows * draws, partial(pe.sample, n=draws, seed=1)
    in_place = partial(pe._core.sample, kernel.name, *d.arrays, 1, 0, 2, weights)
    backward = partial(pe.ops._numpy.sample_backward, kernel, weights, *d.arrays, 1, 0, 2)
    sides = {
        "peaccel, in place": Side(in_place, {floor: limit}, work),
        "peaccel sample": Side(partial(sample, d), {floor: None}, work),
        "peaccel sample of normals": Side(partial(sample, pe.Normal(*d.arrays)), {floor: None}, work),
        "peaccel backward": Side(backward, {floor: None}, work),
        floor: Side(buffer.normal_, work=work),
        "torch randn": Side(partial(torch.randn, draws, rows, dim), work=work),
    }
    name = f"vMF samples, {rows} kappas x {draws}, D={dim}, float32"
    return Row(name, sides, per=(rows * draws, "sample"), rate="GB/s", seconds=3)


def few_kappas(d: Any) -> Row:
    """Beside a loop over scipy."""
    draws, generator, rvs = 5, np.random.default_rng(0), optional("scipy.stats").vonmises_fisher.rvs
    means = unit(doubled(d.mu))

    def loop() -> Any:
        return [rvs(m, k, draws, random_state=generator) for m, k in zip(means, d.kappa.tolist(), strict=True)]

    name, per = f"vMF samples, {len(d)} kappas x {draws}, D={d.dim}", (len(d) * draws, "sample")
    return beside(name, partial(pe.sample, d, draws, seed=1), {"scipy rvs, a loop": loop}, goal=1 / 200, per=per)
