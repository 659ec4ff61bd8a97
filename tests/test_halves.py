"""Galleries kept in half precision: whatever they are asked gives the bits of the same numbers in float32."""

import numpy as np
import pytest
import torch
from conftest import KINDS, SCORES, as_library, make, scored, to_numpy

import peaccel as pe

HALVES = ("float16", "bfloat16")
SINGLE = {"numpy": "float32", "torch": torch.float32}


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
        single = half.to(SINGLE[library])
        ids = np.random.default_rng(3).integers(-1, 40, (9, 21))
        ids = as_library(ids, library, "int64") if library == "torch" else ids
        for given in (half, pe.prepare(half, score)):
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
@pytest.mark.parametrize("kind", ["normal_isotropic", "normal_diagonal", "vmf"])
def test_a_gallery_of_several_blocks(kind, dtype):
    half = make(kind, 140_001, 64, 2, dtype=dtype)
    q = half[::9001].to("float32")
    want = pe.search(q, half.to("float32"), 7)
    for given in (half, pe.prepare(half)):
        ranking = pe.search(q, given, 7)
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
def test_prepare_rounds_to_halves_and_takes_half_the_memory(dtype):
    g = make("normal_diagonal", 300, 24, dtype="float32")
    q = make("normal_diagonal", 4, 24, 1, dtype="float32")
    prepared, single = pe.prepare(g, dtype=dtype), pe.prepare(g)
    assert prepared.nbytes == single.nbytes // 2
    np.testing.assert_array_equal(pe.search(q, prepared, 3).scores, pe.search(q, g.to(dtype), 3).scores)


def test_gradients_flow_through_halves():
    q = make("normal_diagonal", 3, 8, 1, dtype="float32", library="torch")
    half = make("normal_diagonal", 5, 8, 2, dtype="bfloat16", library="torch")
    for x in half.arrays:
        x.requires_grad_()
    pe.pairwise(q, half).sum().backward()
    assert all(x.grad is not None and x.grad.dtype == torch.bfloat16 and x.grad.abs().sum() > 0 for x in half.arrays)
