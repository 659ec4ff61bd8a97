"""Special functions and samplers beside scipy, torch and TensorFlow Probability."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from benches.data import distribution, fields, optional, pe, unit
from benches.peers import doubled, special, torch
from benches.table import Row, Side, beside, close


def log_uniform(low: float, high: float, count: int, seed: int = 0) -> np.ndarray:
    return np.exp(np.random.default_rng(seed).uniform(math.log(low), math.log(high), count))


# ---- Bessel functions ------------------------------------------------------------------------------------------------


def log_ive(quick: bool) -> Iterator[Row]:
    """x log-uniform in [1, 1e4]; scipy is fast where it underflows, and the work's name says how often."""
    count = 100_000 if quick else 1_000_000
    for v, double, single in ((63, 60, 300), (255, 30, 150), (1023, 25, 80)):
        x = log_uniform(1, 1e4, count, v)
        yield one_order(v, x, double, single)
    yield small_orders(log_uniform(1, 1e4, count))


def one_order(v: int, x: np.ndarray, double: float, single: float) -> Row:
    """Values of one order, so much faster than scipy in float64 and in float32, and the ratio of two orders."""
    finite, want, ratio = np.isfinite(scipy_log_ive(v, x)), debye(v, x), debye_ratio(v, x)

    def same(own: Any, of_single: Any, own_ratio: Any, scipys: Any) -> None:
        close(want, own, of_single)
        close(ratio, own_ratio)
        close(want[finite], scipys[finite])

    x32, size = x.astype(np.float32), x.nbytes
    sides = {
        "peaccel": Side(partial(pe.special.log_ive, v, x), {"scipy": 1 / double}, 2 * size),
        "peaccel, float32": Side(partial(pe.special.log_ive, v, x32), {"scipy": 1 / single}, size),
        "peaccel iv_ratio": Side(partial(pe.special.iv_ratio, v, x), {"peaccel": 1 / 1.5}, 2 * size),
        "scipy": Side(partial(scipy_log_ive, v, x), work=2 * size),
    }
    name = f"log_ive, v={v}, {len(x):,} elements (scipy finite in {finite.mean():.0%})"
    return Row(name, sides, same, (len(x), "element"), rate="GB/s", seconds=2)


def small_orders(x: np.ndarray) -> Row:
    """The cost of small orders, at which Debye's expansion alone is not accurate."""
    usual = "v=63"
    run = partial(partial, pe.special.log_ive)
    sides = {usual: run(63, x), **{f"v={v:g}": Side(run(v, x), {usual: 2.0}) for v in (0.0, 0.5, 3.0, 14.9)}}
    return Row(f"log_ive of small orders, {len(x):,} float64", sides, per=(len(x), "element"))


def scipy_log_ive(v: Any, x: np.ndarray) -> np.ndarray:
    """The form that one writes with scipy."""
    with np.errstate(divide="ignore"):
        return np.log(special.ive(v, x))  # type: ignore[no-any-return]


def debye(v: int, x: np.ndarray) -> np.ndarray:
    """log(I_v(x) exp(-x)) to two correction terms (DLMF 10.41.3), plenty for v >= 63."""
    r = np.hypot(v, x)
    t = v / r
    u1, u2 = (3 * t - 5 * t**3) / 24, (81 * t**2 - 462 * t**4 + 385 * t**6) / 1152
    return r - x + v * np.log(x / (v + r)) - 0.5 * np.log(2 * math.pi * r) + np.log1p(u1 / v + u2 / v**2)


def debye_ratio(v: int, x: np.ndarray) -> np.ndarray:
    """I_v / I_(v-1) by its continued fraction (DLMF 10.33.1), from far enough out."""
    ratio = x / (v + 400 + np.hypot(x, v + 400))
    for k in range(v + 399, v - 1, -1):
        ratio = 1 / (2 * k / x + ratio)
    return ratio


def many_orders(quick: bool) -> Iterator[Row]:
    """An order for each element, where scipy's functions do not underflow."""
    rng, count = np.random.default_rng(0), 100_000
    x, orders = rng.uniform(100, 1000, count), rng.uniform(1, 128, count)
    peers: dict[str, Callable[[Any, Any], Any]] = {
        "log_ive": scipy_log_ive,
        "iv_ratio": lambda v, x: special.ive(v, x) / special.ive(v - 1, x),
    }
    for name, peer in peers.items():
        for how, v in (("scattered", orders), ("sorted", np.sort(orders))):
            own, theirs = partial(getattr(pe.special, name), v, x), {"scipy": partial(peer, v, x)}
            yield beside(f"{name}, {count:,} elements with an order each, {how}", own, theirs, close, goal=1 / 8)


def float32_tables(quick: bool) -> Iterator[Row]:
    """float32 values of one order, which come from a table of that order."""
    rng = np.random.default_rng(0)
    inside = np.exp(rng.uniform(0, math.log(1e4), 1_000_000)).astype(np.float32)
    some, zeros = inside.copy(), rng.random(len(inside)) < 0.05
    some[zeros] = 0
    run = partial(pe.special.log_ive, 63)
    yield beside(
        "log_ive, v=63, float32, 5 % of the elements 0",
        partial(run, some),
        {"peaccel, none": partial(run, inside)},
        lambda own, other: np.testing.assert_array_equal(own[~zeros], other[~zeros]),
        goal=1.4,  # the table is eight times as fast as what stands in for it
    )
    x = inside[:64]

    def rotated(orders: int) -> np.ndarray:
        return np.stack([pe.special.log_ive(v % orders + 0.5, x) for v in range(256)])

    def same(own: np.ndarray, other: np.ndarray) -> None:
        close(np.stack([pe.special.log_ive(v % 128 + 0.5, doubled(x)) for v in range(256)]), own)
        np.testing.assert_array_equal(own[:32], other[:32])

    peers = {"peaccel, 32 orders in rotation": partial(rotated, 32)}
    yield beside("log_ive, 256 calls of 64 float32, 128 orders in rotation", partial(rotated, 128), peers, same)


# ---- samplers --------------------------------------------------------------------------------------------------------


def samplers(quick: bool) -> Iterator[Row]:
    """Thousands of different kappas, log-uniform in [10, 1e4]; then few, which is what a loop over scipy can bear."""
    for dim, limit in ((128, 0.5), (512, 0.28)):
        rows = 256 if quick else 4096
        kappa = log_uniform(10, 1e4, rows).astype(np.float32)
        items = pe.VonMisesFisher(distribution("vmf", fields("vmf", rows, dim, seed=1)).mu, kappa)
        yield many_kappas(items, limit)
        yield few_kappas(items[: 4 if quick else 32 if dim > 128 else 256])


def many_kappas(items: Any, limit: float) -> Row:
    """In place at most `limit` of the time of torch's normals, and so much faster than TensorFlow Probability."""
    (rows, dim), draws, floor, tfps = items.mu.shape, 5, "torch normal_, in place", "tfp on jax, jit"
    normal, buffer = pe.Normal(items.mu, items.kappa), torch.empty(draws, rows, dim)
    weights, kernel, work = (
        np.ones((draws, rows, dim), np.float32),
        pe.ops.samplers.sample_vmf,
        4.0 * dim * rows * draws,
    )
    in_place = partial(pe._core.sample, kernel.name, items.mu, items.kappa, 1, 0, 2, weights)
    backward = partial(pe.ops._numpy.sample_backward, kernel, weights, items.mu, items.kappa, 1, 0, 2)
    tfp = tfp_sampler(items.mu, items.kappa, draws)
    goals = {floor: None, **({tfps: 1 / 15 if dim > 128 else 1 / 8} if tfp else {})}
    sides = {
        "peaccel, in place": Side(in_place, {floor: limit}, work),
        "peaccel sample": Side(partial(pe.sample, items, draws, seed=1), goals, work),
        "peaccel sample of normals": Side(partial(pe.sample, normal, draws, seed=1), {floor: None}, work),
        "peaccel backward": Side(backward, {floor: None}, work),
        floor: Side(buffer.normal_, work=work),
        "torch randn": Side(partial(torch.randn, draws, rows, dim), work=work),
        **({tfps: Side(tfp, work=work)} if tfp else {}),
    }
    name = f"vMF samples, {rows} kappas x {draws}, D={dim}, float32"
    return Row(name, sides, per=(rows * draws, "sample"), rate="GB/s", seconds=3)


def few_kappas(items: Any) -> Row:
    """Beside a loop over scipy."""
    draws, generator, rvs = 5, np.random.default_rng(0), optional("scipy.stats").vonmises_fisher.rvs
    means = doubled(items.mu)
    means /= np.linalg.norm(means, axis=1, keepdims=True)

    def loop() -> Any:
        return [rvs(m, k, draws, random_state=generator) for m, k in zip(means, items.kappa.tolist(), strict=True)]

    name, peers = f"vMF samples, {len(items)} kappas x {draws}, D={items.dim}", {"scipy rvs, a loop": loop}
    return beside(
        name, partial(pe.sample, items, draws, seed=1), peers, goal=1 / 200, per=(len(items) * draws, "sample")
    )


def tfp_sampler(mu: np.ndarray, kappa: np.ndarray, draws: int) -> Callable[[], Any] | None:
    """TensorFlow Probability on JAX, compiled, where it is installed (tfp-nightly: the release lags behind jax)."""
    jax, tfp = optional("jax"), optional("tensorflow_probability.substrates.jax")
    if jax is None or tfp is None:
        return None
    law = tfp.distributions.VonMisesFisher(jax.numpy.asarray(mu), jax.numpy.asarray(kappa))
    draw, keys = jax.jit(lambda key: law.sample(draws, seed=key)), itertools.count()
    return lambda: jax.block_until_ready(draw(jax.random.PRNGKey(next(keys))))


def few_dimensions(quick: bool) -> Iterator[Row]:
    """Draws of 2, 3 and 8 dimensions."""
    count, draws, rng = 10_000, 10, np.random.default_rng(0)
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
        yield beside(work, partial(pe.sample, normal, draws, seed=1), {"torch": by_torch}, alike)
        if dim < 8:
            peers = {"numpy": partial((circle, sphere)[dim - 2], rng, vmf, draws)}
            work = f"sample vmf, {count:,} x {draws}, D = {dim}"
            yield beside(work, partial(pe.sample, vmf, draws, seed=1), peers, alike)


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
