"""A set with itself: one of two pairs that mirror each other is scored, and adds to the gradients of both its items."""

import numpy as np
import pytest
import torch
from test_every_op import NUMBERS, PAIRS, pair_inputs, score_of
from test_gradients_of_many import OP, by_formula, close

import peaccel as pe
from peaccel import _core
from peaccel.ops import Inputs, _numpy
from peaccel.ops._definitions import Gradients

SYMMETRIC = [op for op in PAIRS if op.symmetric]
each_symmetric = pytest.mark.parametrize("op", SYMMETRIC, ids=lambda op: op.name)
each_dtype = pytest.mark.parametrize("dtype", ["float32", "float64"])
SIZES = ((1, 5), (63, 17), (64, 2), (65, 40), (200, 37), (530, 24))


def one_set(op, n, dim, dtype="float64", library="numpy"):
    """The op's inputs, of which the gallery is the queries themselves."""
    mu, uncertainty, *_, shared = pair_inputs(op, n, 1, dim, dtype=dtype, library=library)
    return [mu, uncertainty, mu, uncertainty, shared]


def apart(inputs):
    """The same inputs, the gallery in memory of its own."""
    copies = [x.copy() if isinstance(x, np.ndarray) else x.clone() for x in inputs[2:4]]
    return [*inputs[:2], *copies, inputs[4]]


def weights_of(n, dtype="float64"):
    """Weights of all pairs, about a tenth of them 0."""
    rng = np.random.default_rng(n)
    return torch.from_numpy((rng.standard_normal((n, n)) * (rng.random((n, n)) > 0.1)).astype(dtype))


def test_every_score_of_which_the_order_of_items_does_not_matter_is_known():
    asked = {"offset", "shift", "prior_var", "line", "none"}  # of two numbers that change places, or a share, it does
    names = {op.name for op in PAIRS if not op.sampled and op.shared in asked}
    assert {op.name for op in SYMMETRIC} == names


@each_symmetric
@each_dtype
def test_scores_and_what_they_save_have_the_bits_of_those_of_two_sets(op, dtype):
    for n, dim in SIZES:
        inputs = one_set(op, n, dim, dtype)
        inputs[0][n // 2] = np.nan
        inputs[0][n // 3] = inputs[0][n // 4]
        found = [np.full((2, n, n), 7, dtype) for _ in range(2)]
        for (_, saved), given in zip(found, (inputs, apart(inputs)), strict=True):
            scores = _numpy.score(op, Inputs(*given), None, True, saved=saved if op.saves else None)
            np.testing.assert_array_equal(scores, scores.T)
            found[0 if given is inputs else 1][0] = scores
        np.testing.assert_array_equal(*found)


@each_symmetric
@each_dtype
def test_a_pair_has_the_same_bits_from_either_side_over_the_range_of_numbers(op, dtype):
    rng, n, dim = np.random.default_rng(1), 400, 23
    a, v, b, w, shared = pair_inputs(op, n, n, dim, dtype=dtype)
    most = np.log(np.finfo(dtype).max) / 3
    v, w = (x * np.exp(rng.uniform(-most, most, x.shape)).astype(dtype) for x in (v, w))
    if op.name == "llr_diagonal":
        shared = np.exp(rng.uniform(-most, most, dim)).astype(dtype)
    with np.errstate(all="ignore"):
        one, other = score_of(op, [a, v, b, w, shared]), score_of(op, [b, w, a, v, shared])
    np.testing.assert_array_equal(one, other)


@each_symmetric
@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 3e-5), ("float64", 1e-12)])
def test_gradients_are_those_of_both_sides(op, dtype, tolerance):
    for n, dim in SIZES[:-1]:
        inputs, weights = one_set(op, n, dim, dtype, "torch"), weights_of(n, dtype)
        leaves = [x.clone().requires_grad_() for x in (inputs[0], inputs[1], inputs[4])]
        mu, uncertainty, shared = leaves
        scores = score_of(op, [mu, uncertainty, mu, uncertainty, shared], pairwise=True)
        found = torch.autograd.grad((scores * weights).sum(), leaves, allow_unused=True)
        mu1, uncertainty1, mu2, uncertainty2, by_shared = by_formula(op, apart(inputs), weights)
        want = mu1 + mu2, None if uncertainty1 is None else uncertainty1 + uncertainty2, by_shared
        # `close` passes over what has no gradient: only what the formula gives none may have none.
        assert all(x is not None for x, y in zip(found, want, strict=True) if y is not None)
        close(found, want, 4 * tolerance)


@each_symmetric
def test_gradients_are_near_those_of_two_sets_of_near_duplicates_and_of_any_shape(op):
    """Two sums of the same numbers in another order; a gradient that is wanted alone is that of all."""
    for n in (70, 300):
        inputs, weights = one_set(op, n, 19, "float32"), weights_of(n, "float32").numpy()
        inputs[0][: n // 2] = inputs[0][n // 2 : 2 * (n // 2)] + 1e-4
        separate = _numpy.score_backward(op, weights, Inputs(*apart(inputs)), None, True)
        together = _numpy.score_backward(op, weights, Inputs(*inputs), None, True, wanted=13)
        for i in (0, 1):
            want = separate[i].astype(np.float64) + separate[i + 2]
            np.testing.assert_allclose(together[i], want, rtol=0, atol=2e-5 * abs(want).max())
            assert not together[i + 2].any()
        np.testing.assert_allclose(together.shared, separate.shared, rtol=1e-4, atol=1e-4 * abs(weights).sum())
        for wanted, of in ((9, (0, 1)), (12, (4,))):
            alone = _numpy.score_backward(op, weights, Inputs(*inputs), None, True, wanted=wanted)
            for i in of:
                np.testing.assert_array_equal(alone[i], together[i])


@pytest.mark.parametrize("name", ["mls_isotropic", "llr_diagonal"])
def test_gradients_have_the_same_bits_on_any_number_of_threads_whatever_their_memory_held(name):
    op, n = OP[name], 700
    inputs, weights = Inputs(*one_set(op, n, 12, "float32")), weights_of(n, "float32").numpy()
    results = []
    for threads in (1, 2, 3):
        pe.set_num_threads(threads)
        out = Gradients(*(np.full_like(x, np.nan) for x in inputs.arrays))
        results.append(_numpy.score_backward(op, weights, inputs, None, True, wanted=13, out=out))
    pe.set_num_threads(2)
    for other in results[1:]:
        for a, b in zip(results[0], other, strict=True):
            np.testing.assert_array_equal(a, b)


@each_symmetric
def test_a_pair_without_weight_either_way_spreads_no_nan(op):
    mu, uncertainty, _, _, shared = inputs = one_set(op, 150, 20, "float32")
    weights = weights_of(150, "float32").numpy().copy()
    weights[:, 97], weights[97] = 0, 0
    want = _numpy.score_backward(op, weights, Inputs(*inputs), None, True, wanted=9)
    for spoil in (np.nan, np.inf):
        spoiled = mu.copy()
        spoiled[97] = spoil
        given = Inputs(spoiled, uncertainty, spoiled, uncertainty, shared)
        found = _numpy.score_backward(op, weights, given, None, True, wanted=9)
        assert not found.mu1[97].any() and not found.uncertainty1[97].any()
        np.testing.assert_allclose(found.mu1, want.mu1, rtol=1e-3, atol=1e-4 * abs(want.mu1).max())


@pytest.mark.parametrize(("score", "kind"), [("mls", 1), ("mls", 2), ("llr:prior_var=0.5", 2), ("neg_sq_l2", 0)])
def test_the_verb_takes_gradients_together_where_the_gallery_is_the_queries(score, kind, monkeypatch):
    asked = []

    def told(*arguments):
        asked.append(arguments[6])
        return backward(*arguments)

    backward = _core.score_backward
    monkeypatch.setattr(_core, "score_backward", told)
    mu = torch.randn(70, 5, requires_grad=True)
    var = torch.rand(70, 5)[:, : 1 if kind == 1 else 5].add(0.1).requires_grad_()
    d, same = (pe.Normal(x, y) if kind else pe.Point(x) for x, y in ((mu, var), (1 * mu, 1 * var)))
    weights = weights_of(70, "float32")
    together = torch.autograd.grad(pe.pairwise(d, d, score), [mu, var][: 1 + (kind > 0)], weights)
    separate = torch.autograd.grad(pe.pairwise(d, same, score), [mu, var][: 1 + (kind > 0)], weights)
    assert asked[0] & _core.TOGETHER and not asked[1] & _core.TOGETHER
    for a, b in zip(together, separate, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


def test_tensors_of_one_memory_that_are_two_leaves_have_gradients_of_their_own():
    mu, var, weights = torch.randn(70, 6), torch.rand(70, 1) + 0.1, weights_of(70, "float32")
    a, b = mu.requires_grad_(), mu.detach().requires_grad_()
    scores = pe.pairwise(pe.Normal(a, var), pe.Normal(b, var))
    c, d = mu.detach().clone().requires_grad_(), mu.detach().clone().requires_grad_()
    others = pe.pairwise(pe.Normal(c, var.clone()), pe.Normal(d, var.clone()))
    found = torch.autograd.grad(scores, [a, b], weights)
    for own, other in zip(found, torch.autograd.grad(others, [c, d], weights), strict=True):
        assert torch.equal(own, other)


@pytest.mark.parametrize("name", ["mls_isotropic", "mls_diagonal", "llr_isotropic", "cosine"])
def test_gradients_can_be_differentiated_batched_and_compiled(name):
    op = OP[name]
    mu, uncertainty, *_, shared = one_set(op, 4, 3, library="torch")
    leaves = [x.requires_grad_() for x in (mu, uncertainty, shared) if x.numel()]

    def scores(mu, uncertainty, shared=shared):
        return score_of(op, [mu, uncertainty, mu, uncertainty, shared], pairwise=True)

    assert torch.autograd.gradcheck(scores, leaves) and torch.autograd.gradgradcheck(scores, leaves)
    weights, found = torch.randn(3, 4, 4, dtype=torch.float64), scores(*leaves)
    batched = torch.autograd.grad(found, leaves[:2], weights, is_grads_batched=True, retain_graph=True)
    with_graph = torch.autograd.grad(found, leaves, weights[0], create_graph=True)
    compiled = torch.compile(scores, backend="aot_eager", fullgraph=True)(*leaves)
    torch.testing.assert_close(compiled, found, rtol=0, atol=0)
    own, of_compiled = (torch.autograd.grad(x, leaves, weights[0]) for x in (found, compiled))
    for i, (a, b) in enumerate(zip(own, of_compiled, strict=True)):
        assert torch.equal(a, b)
        torch.testing.assert_close(with_graph[i], a, rtol=1e-12, atol=1e-12)
        if i < 2:
            torch.testing.assert_close(batched[i][0], a, rtol=1e-12, atol=1e-12)


def test_what_has_no_gradient_together_is_refused():
    for name, form in (("neg_kl_isotropic", (70, 70)), ("mls_isotropic", (70,))):
        inputs = Inputs(*one_set(OP[name], 70, 5))
        with pytest.raises(ValueError, match="need all pairs of one set"):
            _numpy.score_backward(OP[name], np.ones(form), inputs, None, len(form) == 2, wanted=9)
    inputs = Inputs(*pair_inputs(OP["mls_isotropic"], 3, 4, 5))
    with pytest.raises(ValueError, match="need all pairs of one set"):
        _numpy.score_backward(OP["mls_isotropic"], np.ones((3, 4)), inputs, None, True, wanted=9)


def test_names_of_shared_numbers_are_known():
    assert {op.shared for op in SYMMETRIC} <= {*NUMBERS, "none"}


def test_a_set_that_has_to_be_copied_is_copied_once():
    mu, uncertainty, *_, shared = one_set(OP["mls_isotropic"], 70, 5)
    columns = np.asfortranarray(mu)
    arrays, _ = _numpy._buffers(OP["mls_isotropic"], Inputs(columns, uncertainty, columns, uncertainty, shared))
    assert arrays[0] is arrays[2] is not columns and arrays[1] is arrays[3]


@each_symmetric
@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_no_items_with_themselves(op, library):
    inputs = Inputs(*one_set(op, 0, 3, library=library))
    if library == "numpy":
        assert _numpy.score(op, inputs, None, True).shape == (0, 0)
        assert _numpy.score_backward(op, np.zeros((0, 0)), inputs, None, True).mu1.shape == (0, 3)
        return
    leaves = [x.requires_grad_() for x in inputs[:2]]
    scores = pe.ops.score(op, inputs._replace(mu2=leaves[0], uncertainty2=leaves[1]), pairwise=True)
    assert scores.shape == (0, 0)
    assert [x.shape for x in torch.autograd.grad(scores.sum(), leaves)] == [x.shape for x in leaves]
