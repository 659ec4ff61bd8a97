"""Gradients of more pairs than a tile holds, and of hard ones: near, over the range of numbers, NaN without weight."""

import itertools

import numpy as np
import pytest
import torch
from test_every_op import PAIRS, TWICE, pair_inputs, score_of, with_draws

import peaccel as pe
from peaccel.ops import OPS, Inputs, _numpy
from peaccel.ops._definitions import Gradients

OP = {op.name: op for op in OPS}
each_twice = pytest.mark.parametrize("op", TWICE, ids=lambda op: op.name)
each_drawn = pytest.mark.parametrize("op", [op for op in PAIRS if op.sampled], ids=lambda op: op.name)
each_dtype = pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 3e-5)])


def by_formula(op, inputs, weights, *, paired=False):
    """Gradients of sum(weights * scores) by autograd through the formula, in float64."""
    wide = [x.double().clone().requires_grad_() for x in inputs]
    mu1, uncertainty1, mu2, uncertainty2, shared = (
        x[:, None] if i in (1, 3) and x.ndim == 1 else x for i, x in enumerate(wide)
    )
    if not paired:
        mu1, uncertainty1 = mu1[:, None], uncertainty1[:, None]
    scores = op.formula(mu1, uncertainty1, mu2, uncertainty2, shared)
    return torch.autograd.grad((scores * weights.double()).sum(), wide, allow_unused=True)


def by_op(op, inputs, weights, candidates=None, *, pairwise=True):
    leaves = [x.clone().requires_grad_() for x in inputs]
    scores = score_of(op, leaves, candidates, pairwise=pairwise and candidates is None)
    return torch.autograd.grad((scores * weights).sum(), leaves, allow_unused=True)


def close(found, want, tolerance):
    """Relative to the largest number; terms of the formulas, up to 30, may cancel, and so do sums over pairs."""
    for own, other in zip(found, want, strict=True):
        if own is not None and other is not None and own.numel():
            error, scale = (own.double() - other.double()).abs().max(), other.double().abs().max()
            assert error <= tolerance * scale + 2e-13, error / scale


@each_twice
@each_dtype
def test_of_more_items_than_a_tile_holds_on_either_side(op, dtype, tolerance):
    for queries, gallery, dim in (
        (130, 70, 37),
        (3, 200, 100),
        (150, 1, 64),
        (66, 67, 1 if op.uncertainty == "var" else 2),
    ):
        inputs = [x.to(dtype) for x in pair_inputs(op, queries, gallery, dim, library="torch")]
        weights = torch.from_numpy(np.random.default_rng(0).standard_normal((queries, gallery))).to(dtype)
        # Sums of many terms of either sign.
        close(by_op(op, inputs, weights), by_formula(op, inputs, weights), 4 * tolerance)


@each_twice
@each_dtype
def test_of_more_pairs_of_equal_rows_than_a_block_holds(op, dtype, tolerance):
    inputs = [x.to(dtype) for x in pair_inputs(op, 150, 150, 100, library="torch")]
    weights = torch.linspace(-1, 2, 150, dtype=dtype)
    close(by_op(op, inputs, weights, pairwise=False), by_formula(op, inputs, weights, paired=True), 4 * tolerance)


@each_drawn
@each_dtype
def test_of_all_pairs_of_draws_are_those_of_each(op, dtype, tolerance):
    """All pairs go by tiles, candidates item by item."""
    inputs = [x.to(dtype) for x in pair_inputs(op, 70, 90, 19, library="torch")]
    weights = torch.from_numpy(np.random.default_rng(0).standard_normal((70, 90))).to(dtype)
    every = torch.arange(90).expand(70, 90).contiguous()
    close(by_op(op, inputs, weights), by_op(op, inputs, weights, every), 4 * tolerance)


@pytest.mark.parametrize("op", [op for op in PAIRS if op.saves], ids=lambda op: op.name)
@pytest.mark.parametrize("form", ["paired", "pairwise", "candidates"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_by_what_scores_saved_have_the_bits_of_those_that_find_it_again(op, form, dtype):
    queries, gallery = 70, 70 if form == "paired" else 80
    inputs = Inputs(*pair_inputs(op, queries, gallery, 37, dtype=dtype))
    rng = np.random.default_rng(0)
    shape = {"paired": (queries,), "pairwise": (queries, gallery), "candidates": (queries, 90)}[form]
    candidates = rng.integers(-1, gallery, shape) if form == "candidates" else None
    weights, saved = rng.standard_normal(shape).astype(dtype), np.full(shape, np.nan, dtype)
    scores = _numpy.score(op, inputs, candidates, form == "pairwise", saved=saved)
    np.testing.assert_array_equal(scores, _numpy.score(op, inputs, candidates, form == "pairwise"))
    assert np.isfinite(saved[... if candidates is None else candidates >= 0]).all()
    for wanted in (1, 2, 7):
        given = op, weights, inputs, candidates, form == "pairwise", wanted
        by_saved, found_again = _numpy.score_backward(*given, saved=saved), _numpy.score_backward(*given)
        for one, other in zip(by_saved, found_again, strict=True):
            np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("name", ["mls_isotropic", "cosine"])
def test_of_many_weights_at_once_are_those_of_each(name):
    inputs = [x.requires_grad_() for x in pair_inputs(OP[name], 5, 4, 6, library="torch")]
    scores = score_of(OP[name], inputs, pairwise=True)
    weights = torch.from_numpy(np.random.default_rng(0).standard_normal((3, 5, 4)))
    every = torch.autograd.grad(scores, inputs[:4], weights, is_grads_batched=True, retain_graph=True)
    for k in range(3):
        each = torch.autograd.grad(scores, inputs[:4], weights[k], retain_graph=True)
        for own, other in zip(every, each, strict=True):
            torch.testing.assert_close(own[k], other, rtol=0, atol=0)


@pytest.mark.parametrize("op", PAIRS, ids=lambda op: op.name)
def test_a_pair_without_weight_spreads_no_nan(op):
    inputs = pair_inputs(op, 70, 80, 20, dtype="float32", library="torch")
    weights = torch.from_numpy(np.random.default_rng(0).standard_normal((70, 80), dtype="f"))
    weights[:, 7], weights[3] = 0, 0
    want = by_op(op, inputs, weights)
    for spoil in (np.nan, np.inf):
        spoiled = [x.clone() for x in inputs]
        spoiled[0][3], spoiled[2][7] = spoil, spoil
        found = by_op(op, spoiled, weights)
        for i, (a, b) in enumerate(zip(found, want, strict=True)):
            if a is None or not a.numel():
                continue
            others = torch.ones(len(a), dtype=bool)
            if i < 4:
                others[3 if i < 2 else 7] = False
            assert a[others].isfinite().all(), i
            torch.testing.assert_close(a[others], b[others], rtol=1e-3, atol=1e-4 * float(b.abs().max()))
            assert i == 4 or (a[~others] == 0).all()


@pytest.mark.parametrize("name", ["mls_isotropic", "neg_sq_l2", "overlap_isotropic", "mls_diagonal", "llr_diagonal"])
def test_of_near_duplicates_keep_their_digits(name):
    """Rows that differ in their last digits: products of means would lose them."""
    op = OP[name]
    inputs = pair_inputs(op, 70, 65, 96, dtype="float32", library="torch")
    inputs[0] = inputs[0][:1] + 1e-5 * torch.from_numpy(np.random.default_rng(1).standard_normal((70, 96), dtype="f"))
    inputs[2] = inputs[0][:65] + 1e-5 * inputs[2]
    if name == "llr_diagonal":  # gradients then are differences of near means
        inputs[4] = inputs[4] * 1e8
    weights = torch.ones(70, 65)
    found, want = by_op(op, inputs, weights), by_formula(op, inputs, weights)
    for i in (0, 2):
        scale = want[i].abs().amax(1, keepdim=True)
        assert ((found[i].double() - want[i]).abs() <= 2e-4 * scale).all()


@pytest.mark.parametrize("name", ["mls_diagonal", "llr_diagonal", "overlap_diagonal", "neg_kl_diagonal"])
@pytest.mark.parametrize("form", ["pairwise", "paired", "candidates"])
def test_of_variances_all_over_the_range(name, form):
    """Products of variances may leave the range of float32; such pairs are computed again."""
    op = OP[name]
    for low, high in ((-30, -20), (-9, 9), (8, 18), (-3, 3)):
        inputs = pair_inputs(op, 66, 66, 40, dtype="float32", library="torch")
        rng = np.random.default_rng(5)
        level = 10 ** rng.uniform(low, high, 40)
        for i in (1, 3):
            inputs[i] = torch.from_numpy((level * rng.uniform(0.5, 2, (66, 40))).astype("f"))
            inputs[i - 1] = inputs[i - 1] * torch.from_numpy(np.sqrt(level).astype("f"))
        if name == "llr_diagonal":
            inputs[4] = torch.from_numpy((level * 10 ** rng.uniform(-3, 3, 40)).astype("f"))
        if form == "pairwise":
            weights = torch.ones(66, 66)
            found, want = by_op(op, inputs, weights), by_formula(op, inputs, weights)
        elif form == "paired":
            weights = torch.ones(66)
            found = by_op(op, inputs, weights, pairwise=False)
            want = by_formula(op, inputs, weights, paired=True)
        else:
            weights, every = torch.ones(66, 66), torch.arange(66).expand(66, 66).contiguous()
            found, want = by_op(op, inputs, weights, every), by_formula(op, inputs, weights)
        for i in range(4):
            # Compared by dimension, as each has its own size.
            error = (found[i].double() - want[i]).abs().amax(0) / want[i].abs().amax(0)
            assert error.max() <= 1e-4, (low, high, i, float(error.max()))


def test_what_is_wanted_of_few_or_many_has_the_same_bits_on_any_number_of_threads():
    for op, (queries, gallery) in itertools.product(
        (OP["mls_isotropic"], OP["llr_diagonal"], OP["hib_sampled"], OP["el_nivmf"]), ((300, 40), (40, 300))
    ):
        inputs = pair_inputs(op, queries, gallery, 24, dtype="float32")
        given, weights = with_draws(op, inputs), np.ones((queries, gallery), "f")
        results = []
        for threads in (1, 2, 3):
            pe.set_num_threads(threads)
            results.append(_numpy.score_backward(op, weights, given, None, True))
        pe.set_num_threads(2)
        for other in results[1:]:
            for a, b in zip(results[0], other, strict=True):
                np.testing.assert_array_equal(a, b)


def test_match_probabilities_too_small_for_numbers_have_gradients():
    mu = torch.zeros(2, 8, dtype=torch.float64)
    mu[1] += 500
    q = [mu.clone().requires_grad_(), torch.full((2, 8), 1e-3, dtype=torch.float64, requires_grad=True)]
    g = [torch.zeros(3, 8, dtype=torch.float64, requires_grad=True), torch.full((3, 8), 1e-3, dtype=torch.float64)]
    score = pe.scores.hib(a=2.0, b=0.0, n=4, seed=1)
    found = pe.pairwise(pe.Normal(*q), pe.Normal(*g), score)
    assert (found[1] < -2800).all() and found.isfinite().all()
    by_mu = torch.autograd.grad(found[1].sum(), q[0])[0][1]
    torch.testing.assert_close(by_mu, torch.full((8,), -3 * 2 / 8**0.5, dtype=torch.float64), rtol=1e-3, atol=0)


@pytest.mark.parametrize("name", ["mls_isotropic", "llr_diagonal", "hib_sampled", "el_nivmf"])
@pytest.mark.parametrize("form", ["paired", "pairwise", "candidates"])
def test_what_the_memory_of_gradients_held_does_not_matter(name, form):
    op, queries = OP[name], 70
    for gallery, dim in ((70, 9), (70, 0)) if form == "paired" else ((80, 9), (3, 9), (0, 9), (80, 0)):
        if name == "el_nivmf" and dim == 0:
            continue  # has no direction
        inputs = with_draws(op, pair_inputs(op, queries, gallery, dim, dtype="float32"))
        shape = {"paired": (queries,), "pairwise": (queries, gallery), "candidates": (queries, 2)}[form]
        candidates = np.full(shape, gallery - 1) if form == "candidates" else None
        for wanted in (1, 2, 4, 7):
            found = []
            for held in (0, np.nan):
                out = Gradients(*(np.full_like(x, held) for x in inputs.arrays))
                given = op, np.ones(shape, "f"), inputs, candidates, form == "pairwise", wanted
                assert _numpy.score_backward(*given, out=out) is out
                found.append(out)
            for own, other in zip(*found, strict=True):
                np.testing.assert_array_equal(own, other)
                assert np.isfinite(own).all()
