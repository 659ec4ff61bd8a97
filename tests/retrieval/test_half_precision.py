"""Galleries in half precision: every verb and measure gives the bits that the same numbers give in float32."""

import numpy as np
import pytest
import torch
from conftest import KINDS, SCORES, as_library, make, scored, to_numpy

import peaccel as pe
from peaccel._utils.arrays import as_numpy

HALVES = ("float16", "bfloat16")
SINGLE = {"numpy": "float32", "torch": torch.float32}


@pytest.mark.one_in(5)
@pytest.mark.parametrize("library", ["numpy", "torch"])
@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("dim", [2, 16, 37])
@pytest.mark.parametrize("name", SCORES)
def test_every_verb_gives_the_bits_of_float32(name, dim, dtype, library):
    record = pe.scores.get(name)
    for query, gallery in ((q, g) for q in KINDS for g in KINDS if (q, g) in record.pairs):
        score = scored(name, query)
        q = make(query, 9, dim, 1, dtype="float32", library=library)
        half = make(gallery, 40, dim, 2, dtype=dtype, library=library)
        prepared = pe.prepare(half, score)
        ids = np.random.default_rng(3).integers(-1, 40, (9, 21))
        ids = as_library(ids, library, "int64") if library == "torch" else ids
        for given, single in ((half, half.to(SINGLE[library])), (prepared, half.to(SINGLE[library]))):
            for few in (q, q[:1]):
                ranking, want = pe.search(few, given, 5, score), pe.search(few, single, 5, score)
                np.testing.assert_array_equal(to_numpy(ranking.scores), to_numpy(want.scores))
                np.testing.assert_array_equal(to_numpy(ranking.ids), to_numpy(want.ids))
            ranking, want = pe.rerank(q, given, ids, 5, score), pe.rerank(q, single, ids, 5, score)
            np.testing.assert_array_equal(to_numpy(ranking.scores), to_numpy(want.scores))
            np.testing.assert_array_equal(to_numpy(ranking.ids), to_numpy(want.ids))
            by_pair = pe.rescore(q, given, ids, score), pe.pairwise(q, given, score)
            want = pe.rescore(q, single, ids, score), pe.pairwise(q, single, score)
            for got, wanted in zip(by_pair, want, strict=True):
                np.testing.assert_array_equal(to_numpy(got), to_numpy(wanted))


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("name", [name for name in SCORES if ("vmf", "vmf") in pe.scores.get(name).pairs])
def test_directions_in_halves_score_prepared_as_they_are(name, dtype):
    """The fewer dimensions, the further nearest rounding leaves them from unit length."""
    score, half = scored(name, "vmf"), make("vmf", 60, 3, dtype=dtype)
    q, prepared, ids = half.to("float32"), pe.prepare(half, score), np.tile(np.arange(60), (60, 1))
    for verb in (
        lambda g: pe.search(q, g, 60, score).scores,
        lambda g: pe.rescore(q, g, ids, score),
        lambda g: pe.paired(half, g, score),
    ):
        np.testing.assert_array_equal(verb(prepared), verb(half))


@pytest.mark.parametrize("library", ["numpy", "torch"])
@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("kind", ["normal_isotropic", "vmf"])
@pytest.mark.parametrize("dim", [2, 15, 16, 37, 130])
def test_panels_of_halves_give_the_bits_of_float32(dim, kind, dtype, library):
    """Galleries of whole panels and of parts of one, and batches of queries that fill tiles and that do not."""
    for size in (96, 700, 2049):
        half = make(kind, size, dim, size, dtype=dtype, library=library)
        prepared = pe.prepare(half)
        single = prepared.distribution.to(SINGLE[library])
        for count in (1, 5, 6, 13, 40):
            q = make(kind, count, dim, 1, dtype="float32", library=library)
            for given, want in ((prepared, pe.search(q, single, 3)), (half, pe.search(q, half.to(SINGLE[library]), 3))):
                ranking = pe.search(q, given, 3)
                np.testing.assert_array_equal(to_numpy(ranking.ids), to_numpy(want.ids))
                np.testing.assert_array_equal(to_numpy(ranking.scores), to_numpy(want.scores))


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("kind", ["normal_isotropic", "normal_diagonal", "vmf"])
def test_a_gallery_of_several_blocks(kind, dtype):
    half = make(kind, 140_001, 64, 2, dtype=dtype)
    q = half[::9001].to("float32")
    prepared = pe.prepare(half)
    for given, same in ((half, half), (prepared, prepared.distribution)):
        ranking, want = pe.search(q, given, 7), pe.search(q, same.to("float32"), 7)
        np.testing.assert_array_equal(ranking.scores, want.scores)
        np.testing.assert_array_equal(ranking.ids, want.ids)


def every_number(dtype):
    words = np.arange(2**16, dtype=np.uint16)
    numbers = words.view(np.float16) if dtype == "float16" else as_library(np.zeros(2**16), dtype=dtype)
    if dtype == "bfloat16":
        numbers.view(np.uint16)[:] = words
    return numbers


@pytest.mark.parametrize("dtype", HALVES)
def test_every_half_there_is(dtype):
    numbers = every_number(dtype).reshape(-1, 32)
    half = pe.Normal(numbers, np.ones_like(numbers))
    single = pe.Normal(numbers.astype(np.float32), np.ones(numbers.shape, np.float32))
    q, ids = single[:1], np.arange(len(numbers))[None]
    want = pe.rescore(q, single, ids, "neg_sq_l2")
    got = pe.rerank(q, half, ids, len(numbers), "neg_sq_l2")
    assert np.isnan(want).any()
    assert np.isfinite(want).any()
    np.testing.assert_array_equal(got.scores[0, np.argsort(got.ids[0])], want[0])


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("kind", ["normal_isotropic", "normal_diagonal", "vmf"])
def test_prepare_rounds_to_halves_and_takes_half_the_memory(kind, dtype):
    g = make(kind, 320, 24, dtype="float32")
    q = make(kind, 4, 24, 1, dtype="float32")
    prepared, single = pe.prepare(g, dtype=dtype), pe.prepare(g)
    beside = 0 if kind == "normal_diagonal" else 12 * len(g)  # norms and order, the same for both
    assert prepared.nbytes - beside == (single.nbytes - beside) // 2
    single = prepared.distribution.to("float32")
    np.testing.assert_array_equal(pe.search(q, prepared, 3).scores, pe.search(q, single, 3).scores)


@pytest.mark.parametrize("library", ["numpy", "torch"])
@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("dim", [1, 2, 8, 64, 512])
def test_directions_stay_of_unit_length(dim, dtype, library):
    exact = make("scaled", 3000, dim, 1, dtype="float32", library=library)
    given = exact.mu.clone() if library == "torch" else exact.mu.copy()
    prepared = pe.prepare(exact, "cosine", dtype=dtype)
    assert prepared.distribution.mu.dtype == exact.to(getattr(torch, dtype) if library == "torch" else dtype).mu.dtype
    np.testing.assert_array_equal(to_numpy(exact.mu), to_numpy(given))  # the caller's array is unchanged
    halves = exact.mu, exact.to(prepared.mu.dtype).mu, prepared.mu
    want, nearest, rounded = (as_numpy(x).astype(np.float64) for x in halves)
    off, before = (abs(np.linalg.norm(x, axis=1) - 1) for x in (rounded, nearest))
    assert np.median(off) <= np.median(before) / {1: 1, 2: 1.1, 8: 4, 64: 300, 512: 1e4}[dim]
    assert off.max() <= 1.01 * before.max() / {1: 1, 2: 1, 8: 1.2, 64: 8, 512: 1e3}[dim]
    turned, least = (
        np.linalg.norm(x / np.linalg.norm(x, axis=1, keepdims=True) - want, axis=1) for x in (rounded, nearest)
    )
    assert turned.max() <= 2.1 * max(least.max(), 2**-24)


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.filterwarnings("ignore:(invalid value|overflow):RuntimeWarning")
@pytest.mark.usefixtures("unlooked")
def test_rows_that_are_no_directions_stay_what_they_are(dtype):
    mu = np.zeros((5, 3), np.float32)
    mu[1], mu[2, 1], mu[3, 0], mu[4] = np.nan, np.inf, 1.0, [0.6, 0.0, -0.8]
    prepared = pe.prepare(pe.Scaled(mu, np.ones(5, np.float32)), "cosine", dtype=dtype)
    np.testing.assert_array_equal(prepared.mu[:4].astype("f4"), mu[:4])
    scores = pe.pairwise(pe.Point(mu[3:]), prepared, "cosine")
    np.testing.assert_array_equal(np.isnan(scores), [[False, True, True, False, False]] * 2)  # that of zeros is 0


def test_gradients_flow_through_halves():
    q = make("normal_diagonal", 3, 8, 1, dtype="float32", library="torch")
    half = make("normal_diagonal", 5, 8, 2, dtype="bfloat16", library="torch")
    for x in half.arrays:
        x.requires_grad_()
    pe.pairwise(q, half).sum().backward()
    assert all(x.grad is not None and x.grad.dtype == torch.bfloat16 and x.grad.abs().sum() > 0 for x in half.arrays)
