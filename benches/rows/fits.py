"""Fits to many items and measures of one beside the plain line in numpy or scipy."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from benches.data import DIM, ROWS, gallery, items, optional, pe, queries, unit
from benches.peers import flat_index, torch
from benches.table import Row, Run, beside, close, same_arrays

LOG_2PI = math.log(2 * math.pi)
Rows = Iterator[Row]


def densities(quick: bool) -> Rows:
    """Measures of one item, and divergences of two."""
    a, b, vmf, normal = items("diagonal", ROWS, seed=1), gallery("diagonal"), gallery("vmf"), gallery("isotropic")
    mu, z = vmf.mu, a.mu
    peers: dict[str, Run] = {"peaccel paired neg_kl": partial(pe.paired, a, b, "neg_kl")}
    yield beside(f"kl diagonal, {ROWS:,}", partial(pe.kl, a, b), peers, lambda ours, other: close(-other, ours))

    def entropy_vmf() -> Any:
        return -pe.special.vmf_log_norm(DIM, vmf.kappa) - vmf.kappa * pe.special.iv_ratio(DIM / 2, vmf.kappa)

    def log_prob_vmf() -> Any:
        return pe.special.vmf_log_norm(DIM, vmf.kappa) + vmf.kappa * np.einsum("nd,nd->n", mu, z)

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


# ---- groups ----------------------------------------------------------------------------------------------------------


def fusing(quick: bool) -> Rows:
    """Items of a group fused into one, and a distribution fitted to one large group."""
    normal, vmf = items("diagonal", ROWS, seed=1), items("vmf", ROWS, seed=1)
    groups, sparse = np.random.default_rng(0).permutation(ROWS) // 10, optional("scipy.sparse")

    def sums(*arrays: np.ndarray) -> list[np.ndarray]:
        matrix = sparse.csr_array((np.ones(ROWS, np.float32), (groups, np.arange(ROWS))))
        return [matrix @ x for x in arrays]

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

    tensors = pe.Normal(*map(torch.from_numpy, normal.arrays))
    in_torch = partial(pe.fuse, tensors, torch.from_numpy(groups), "pfe")
    for name, d, rule, peer in (
        ("diagonal by product", normal, "product", {"scipy, a sparse product": product}),
        ("vmf by natural", vmf, "natural", {"scipy, a sparse product": natural}),
        ("diagonal by mean", normal, "mean", {"scipy, a sparse product": mean}),
        ("diagonal by pfe, numpy", normal, "pfe", {"peaccel in torch": in_torch}),
    ):
        yield beside(f"fuse {name}, {ROWS:,} in groups of 10", partial(pe.fuse, d, groups, rule), peer, same_arrays)
    z = unit(vmf.mu + 0.5 * vmf.mu[0])
    peer = {"numpy, a mean and Newton": partial(mean_and_newton, z)}
    yield beside(f"fit_vmf, one group of {ROWS:,}", partial(pe.fit_vmf, z), peer, same_fit)


def mean_and_newton(z: np.ndarray) -> tuple[np.ndarray, float]:
    """The mean direction and the concentration of one group."""
    mean = z.mean(0, dtype=np.float64)
    r = float(np.linalg.norm(mean))
    kappa = r * (DIM - r * r) / (1 - r * r)
    for _ in range(4):
        ratio = pe.special.iv_ratio(DIM / 2, kappa)
        kappa -= (ratio - r) / (1 - ratio * ratio - (DIM - 1) / kappa * ratio)
    return mean / r, kappa


def same_fit(ours: Any, other: tuple[np.ndarray, float]) -> None:
    """Whether two fits are of one direction and concentration."""
    close(other[0], ours.mu[0])
    np.testing.assert_allclose(ours.kappa[0], other[1], rtol=1e-4)


# ---- first stages ----------------------------------------------------------------------------------------------------


def first_stages(quick: bool) -> Rows:
    """Surrogate features of a gallery, and an index of them."""
    d, q = gallery("diagonal"), queries("diagonal", 8)
    reference = pe.first_stage_reference(d, "mls")
    features = partial(pe.first_stage_features, d, "mls", reference=reference)
    allowed = {"one microsecond a row": 1e-6 * ROWS}
    yield beside(f"first_stage_features diagonal mls, {ROWS:,}", features, allowed)

    def same(ours: Any, index: Any) -> None:
        of_queries = pe.first_stage_features(q, "mls", "query", reference)
        close(*(x.search(of_queries, 10)[0] for x in (ours.index, index)))

    build = partial(pe.FaissReranker.build, d, "Flat", first_stage=reference)
    parts = {"features and IndexFlatIP.add": lambda: flat_index(features())}
    yield beside(f'build("Flat") of surrogates, {ROWS:,}', build, parts, same)
