"""Every op of peaccel.ops.OPS in numpy and torch: bits, shapes, memory layouts, and all ways to differentiate it."""

from functools import partial

import numpy as np
import pytest
import torch
from conftest import as_library
from items import given_to, values

import peaccel as pe
from peaccel import _core
from peaccel.ops import OPS, Draws, Inputs, Op, PairOp, _numpy, elementwise, score

ELEMENTWISE = [op for op in OPS if isinstance(op, Op)]
PAIRS = [op for op in OPS if isinstance(op, PairOp)]  # samplers: test_samplers.py
ORDERED = [op for op in ELEMENTWISE if op.has_order]
each_elementwise = pytest.mark.parametrize("op", ELEMENTWISE, ids=lambda op: op.name)
TWICE = [op for op in PAIRS if op.formula]  # ops that can be differentiated twice
each_pair = pytest.mark.parametrize("op", PAIRS, ids=lambda op: op.name)
each_twice = pytest.mark.parametrize("op", TWICE, ids=lambda op: op.name)
each_dtype = pytest.mark.parametrize("dtype", ["float32", "float64"])
each_form = pytest.mark.parametrize("form", ["paired", "pairwise", "candidates"])

CANDIDATES = np.array([[0, 2, -1, 2], [3, 1, 1, -1], [-1, -1, -1, -1]])  # with -1, repeated ids and a row without any
# What an op's shared row holds: these numbers, or a number per dimension ("prior_var" of llr_diagonal).
NUMBERS = {
    "prior_var": [0.7],
    "offset": [1.5],
    "shift": [0.3],
    "powers": [0.7, 1.6],
    "share": [0.3],
    "line": [0.7, 0.4],
}

BY_NAME = {op.name: op for op in OPS}


def pair_inputs(op, queries=3, gallery=4, dim=5, *, dtype="float64", library="numpy"):
    """The op's inputs; rows are of unit length for vMF ops, whose maths assumes it."""
    rng = np.random.default_rng([queries, gallery, dim])
    arrays = []
    for side, n in ((0, queries), (1, gallery)):
        mu = rng.standard_normal((n, dim))
        if "vmf" in op.name:
            mu /= np.linalg.norm(mu, axis=1, keepdims=True)
        arrays += [mu, rng.uniform(0.5, 3, (n, dim) if has_rows(op, side) else n)]
    shared = rng.uniform(0.5, 2, dim) if op.name == "llr_diagonal" else np.array(NUMBERS.get(op.shared, []))
    return [as_library(x, library, dtype) for x in (*arrays, shared)]


def has_rows(op, side):
    """Whether the uncertainty of a side is a row."""
    return op.name.endswith(("_diagonal", "hib_sampled", "_normal")) or ("nivmf" in op.name and side == 1)


def with_draws(op, inputs, n=2):
    """The op's inputs, with a seed and n draws where it draws."""
    seed = torch.tensor(3) if isinstance(inputs[0], torch.Tensor) else np.asarray(3)
    return Inputs(*inputs, Draws(seed, n) if op.draws else None)


def score_of(op, inputs, candidates=None, *, pairwise=False):
    """The op's scores, of three draws where it draws."""
    return score(op, with_draws(op, inputs, 3), candidates, pairwise=pairwise)


def call(op, inputs, form):
    """The op's scores in a form; "paired" takes as many gallery rows as there are queries."""
    if form == "candidates":
        ids = torch.tensor(CANDIDATES) if isinstance(inputs[0], torch.Tensor) else CANDIDATES
        return score_of(op, inputs, ids)
    return score_of(op, inputs, pairwise=form == "pairwise")


def function(op, form):
    """The op of its inputs alone, finite everywhere: the -inf of a missing candidate as 0."""
    if form == "candidates":
        return lambda *inputs: call(op, inputs, form).masked_fill(torch.tensor(CANDIDATES < 0), 0)
    return lambda *inputs: call(op, inputs, form)


def differentiable(op, form, dim=3):
    inputs = pair_inputs(op, 3, 3 if form == "paired" else 4, dim, library="torch")
    return [x.requires_grad_() for x in inputs]


def elementwise_inputs(dtype="float64", library="numpy"):
    """Orders (or dimensions) that every op takes and arguments over its regimes."""
    order, x = np.array([2.0, 3, 8, 17.5, 64, 512]), np.array([0.03, 0.9, 4, 20, 300, 70])
    return as_library(order, library), as_library(x, library, dtype)


# -- values ------------------------------------------------------------------------------------------------------------


@each_elementwise
@each_dtype
def test_elementwise_numpy_and_torch_give_the_same_bits(op, dtype):
    found = values(op, *elementwise_inputs(dtype))
    tensor = values(op, *elementwise_inputs(dtype, "torch"))
    assert found.dtype == np.dtype(dtype) and tensor.dtype == getattr(torch, dtype) and np.isfinite(found).all()
    np.testing.assert_array_equal(tensor.numpy(), found)
    # One order for all; float32 by its table, within the roundings of that.
    alone = values(op, np.float64(8), elementwise_inputs(dtype)[1])[2]
    np.testing.assert_allclose(alone, found[2], rtol=3e-7 if dtype == "float32" else 0)


@each_pair
@each_dtype
@each_form
def test_pair_numpy_and_torch_give_the_same_bits_in_every_form(op, dtype, form):
    n = 3 if form == "paired" else 4
    for dim in (1, 5, 40):
        found = call(op, pair_inputs(op, 3, n, dim, dtype=dtype), form)
        tensor = call(op, pair_inputs(op, 3, n, dim, dtype=dtype, library="torch"), form)
        assert found.dtype == np.dtype(dtype) and tensor.dtype == getattr(torch, dtype)
        np.testing.assert_array_equal(tensor.numpy(), found)
        every = score_of(op, pair_inputs(op, 3, n, dim, dtype=dtype), pairwise=True)
        expected = {"paired": every.diagonal(), "pairwise": every}.get(form)
        if expected is None:
            expected = np.where(CANDIDATES < 0, -np.inf, np.take_along_axis(every, CANDIDATES, 1))
        np.testing.assert_array_equal(found, expected)


@each_elementwise
def test_elementwise_broadcasts_and_takes_empty_arrays(op):
    order, x = elementwise_inputs()
    table = values(op, order[:, None], x[None])
    assert table.shape == (6, 6)
    np.testing.assert_array_equal(np.diagonal(table), values(op, order, x))
    np.testing.assert_array_equal(values(op, torch.tensor(order)[:, None], torch.tensor(x)).numpy(), table)
    assert values(op, order[:0], x[:0]).shape == (0,) and values(op, order, np.empty((0, 6))).shape == (0, 6)
    assert values(op, torch.tensor(order), torch.empty(0, 6, dtype=torch.float64)).shape == (0, 6)
    assert values(op, np.float64(2), np.float64(3)).shape == ()


@each_elementwise
def test_elementwise_of_any_memory_layout_is_that_of_a_copy(op):
    order, x = np.meshgrid(*elementwise_inputs(), indexing="ij")
    expected, frozen = values(op, order.copy(), x.copy()), x.copy()
    frozen.flags.writeable = False
    for same in (np.asfortranarray(x), x[::-1, ::-1].copy()[::-1, ::-1], frozen, x.astype(">f8")):
        np.testing.assert_array_equal(values(op, order, same), expected)
    row = torch.tensor(x[0])
    for same in (row.expand(6, 6), torch.tensor(x.T.copy()).T, torch.tensor(np.repeat(x, 2, 1))[:, ::2]):
        np.testing.assert_array_equal(values(op, torch.tensor(order), same).numpy(), expected)


@each_pair
def test_pair_of_any_memory_layout_is_that_of_a_copy(op):
    inputs = pair_inputs(op, 4, 4, 6)
    expected = score_of(op, inputs, pairwise=True)

    def read_only(x):
        x = x.copy()
        x.flags.writeable = False
        return x

    layouts = [
        np.asfortranarray,
        lambda x: x[::-1].copy()[::-1],
        lambda x: x[..., ::-1].copy()[..., ::-1],
        lambda x: np.repeat(x, 2, -1)[..., ::2],
        lambda x: np.repeat(x, 3, 0)[::3],
        lambda x: x.astype(">f8"),
        lambda x: np.frombuffer(b"\0" + x.tobytes(), np.uint8)[1:].view(np.float64).reshape(x.shape),  # misaligned
        read_only,
    ]
    for layout in layouts:
        np.testing.assert_array_equal(score_of(op, [layout(x) for x in inputs], pairwise=True), expected)
    weights = torch.randn(4, 4, dtype=torch.float64)
    gradients = []
    for layout in (lambda x: x, lambda x: x.repeat_interleave(2, 0)[::2], lambda x: x.T.contiguous().T):
        leaves = [torch.tensor(x, requires_grad=True) for x in inputs]
        scores = score_of(op, [layout(x) if x.ndim == 2 else x for x in leaves], pairwise=True)
        np.testing.assert_array_equal(scores.detach().numpy(), expected)
        gradients.append(torch.autograd.grad((scores * weights.T.contiguous().T).sum(), leaves))
    for other in gradients[1:]:
        assert all(torch.equal(a, b) for a, b in zip(gradients[0], other, strict=True))


@each_pair
def test_pair_expanded_rows_and_constant_extras_are_those_of_copies(op):
    mu1, uncertainty1, mu2, uncertainty2, shared = pair_inputs(op, 1, 4, 6, library="torch")
    one = uncertainty2[:1] if uncertainty2.ndim == 1 else uncertainty2[:1, :1].expand(1, 6)
    stretched = [
        mu1.expand(3, 6),
        uncertainty1.expand(3, *uncertainty1.shape[1:]),
        mu2,
        one.expand(4, *one.shape[1:]),
        shared,
    ]
    copied = [x.clone(memory_format=torch.contiguous_format) for x in stretched]
    gradients = []
    for inputs in (stretched, copied):
        leaves = [x.detach().requires_grad_() for x in inputs]
        scores = score_of(op, leaves, pairwise=True)
        gradients.append([scores, *torch.autograd.grad(scores.sum(), leaves)])
    assert all(torch.equal(a, b) for a, b in zip(*gradients, strict=True))


@each_pair
def test_pair_of_nothing_is_empty_with_gradients_of_zero(op):
    for queries, gallery in ((0, 4), (3, 0), (0, 0)):
        inputs = [x.requires_grad_() for x in pair_inputs(op, queries, gallery, 5, library="torch")]
        scores = score_of(op, inputs, pairwise=True)
        assert scores.shape == (queries, gallery)
        assert all((g == 0).all() for g in torch.autograd.grad(scores.sum(), inputs))
        none = torch.full((queries, 2), -1)
        scores = score_of(op, inputs, none)
        assert (scores == -torch.inf).all()
        assert all((g == 0).all() for g in torch.autograd.grad(scores[none >= 0].sum(), inputs, allow_unused=True))


# -- gradients ---------------------------------------------------------------------------------------------------------


@each_elementwise
def test_elementwise_derivatives_by_finite_differences(op):
    order, x = elementwise_inputs(library="torch")
    x.requires_grad_()
    if op.derivative is None:
        with pytest.raises(RuntimeError, match=f"^peaccel::{op.name} has no further derivative$"):
            values(op, order, x).sum().backward()
        return
    assert torch.autograd.gradcheck(lambda x: values(op, order, x), x)
    (first,) = torch.autograd.grad(values(op, order, x).sum(), x, create_graph=True)
    if first.requires_grad and op.name.count("_d") == 0:
        assert torch.autograd.gradgradcheck(lambda x: values(op, order, x), x)


@each_elementwise
def test_elementwise_gradients_of_broadcast_arguments_are_summed(op):
    if op.derivative is None:
        return
    order, x = elementwise_inputs(library="torch")
    column = x[:, None].clone().requires_grad_()
    values(op, order, column).sum().backward()
    every = x[:, None].expand(6, 6).clone().requires_grad_()
    values(op, order, every).sum().backward()
    torch.testing.assert_close(column.grad, every.grad.sum(1, keepdim=True))


@pytest.mark.parametrize("op", ORDERED, ids=lambda op: op.name)
def test_an_order_that_requires_grad_raises(op):
    order, x = elementwise_inputs(library="torch")
    with pytest.raises(ValueError, match=f"^{op.name}: the order must not require grad"):
        values(op, order.requires_grad_(), x)


@pytest.mark.one_in(2)
@each_pair
@each_form
def test_pair_first_and_second_derivatives_by_finite_differences(op, form):
    if op.draws and "vmf" in op.name:
        return  # draws move by implicit differentiation, not as the sampler's proposals do: test_sampled_scores.py
    inputs = differentiable(op, form)
    assert torch.autograd.gradcheck(function(op, form), inputs)
    if op in TWICE:
        assert torch.autograd.gradgradcheck(function(op, form), inputs)


@each_twice
@each_form
def test_pair_gradients_are_those_of_the_formula_in_both_dtypes(op, form):
    """At a width of many lanes, where finite differences are too slow; the formula is plain torch."""
    inputs = pair_inputs(op, 3, 3 if form == "paired" else 4, 37, library="torch")
    expand = {"paired": 0, "pairwise": 1}
    wide = [x.clone().requires_grad_() for x in inputs]
    mu1, uncertainty1, mu2, uncertainty2, shared = (
        x[:, None] if i in (1, 3) and x.ndim == 1 else x for i, x in enumerate(wide)
    )
    if form in expand:
        lift = (lambda x: x[:, None]) if expand[form] else (lambda x: x)
        scores = op.formula(lift(mu1), lift(uncertainty1), mu2, uncertainty2, shared)
    else:
        rows = torch.tensor(CANDIDATES.clip(0))
        scores = op.formula(mu1[:, None], uncertainty1[:, None], mu2[rows], uncertainty2[rows], shared)
    weights = torch.linspace(-1, 2, scores.numel(), dtype=torch.float64).reshape(scores.shape)
    if form == "candidates":
        weights = weights * torch.tensor(CANDIDATES >= 0)
    expected = torch.autograd.grad((scores * weights).sum(), wide, allow_unused=True)
    for dtype, tolerance in ((torch.float64, 1e-12), (torch.float32, 2e-5)):
        leaves = [x.to(dtype, copy=True).requires_grad_() for x in inputs]
        found = torch.autograd.grad((function(op, form)(*leaves) * weights.to(dtype)).sum(), leaves)
        for a, b in zip(found, expected, strict=True):
            if a.numel() and b is None:
                assert not a.any()
            elif a.numel():
                # The formula's own terms of up to 30 may cancel to a difference of two divergences.
                assert a.dtype == dtype and (a - b).abs().max() <= tolerance * b.abs().max() + 2e-14


@each_pair
@pytest.mark.filterwarnings("ignore:Anomaly Detection")
def test_a_third_derivative_raises_and_a_second_of_draws(op):
    x, *rest = pair_inputs(op, 3, 4, 5, library="torch")
    x.requires_grad_()
    value = score_of(op, [x, *rest], pairwise=True).pow(2).sum()
    times = "twice, not three times" if op in TWICE else "once, not twice"
    for _ in range(2 if op in TWICE else 1):
        (value,) = torch.autograd.grad(value, x, create_graph=True)
        value = value.pow(2).sum()
    with pytest.raises(RuntimeError, match=f"^peaccel::{op.name} can be differentiated {times}$"):
        torch.autograd.grad(value, x)


@pytest.mark.parametrize(("form", "gallery", "dim"), [("paired", 3, 2**21), ("pairwise", 2**11, 2**10)])
def test_second_derivatives_of_inputs_so_large_that_they_go_in_blocks(form, gallery, dim):
    (op,) = (op for op in PAIRS if op.name == "mls_isotropic")
    generator = torch.Generator().manual_seed(0)
    mu1, mu2 = (torch.rand(n, dim, generator=generator) / dim**0.5 for n in (3, gallery))
    inputs = [mu1, torch.rand(3, generator=generator) + 1, mu2, torch.rand(gallery, generator=generator) + 1]

    def formula(mu1, var1, mu2, var2):
        mu1, var1 = (mu1[:, None], var1[:, None, None]) if form == "pairwise" else (mu1, var1[:, None])
        return op.formula(mu1, var1, mu2, var2[:, None], None)

    found = []
    for f in (lambda *x: score_of(op, [*x, x[0].new_zeros(0)], pairwise=form == "pairwise"), formula):
        leaves = [x.clone().requires_grad_() for x in inputs]
        first = torch.autograd.grad(f(*leaves).sum(), leaves, create_graph=True)
        found.append(torch.autograd.grad(sum((g * g).sum() for g in first), leaves))
    for a, b in zip(*found, strict=True):
        assert (a - b).abs().max() <= 1e-4 * b.abs().max()


@pytest.mark.parametrize("op", [op for op in PAIRS if op.shared != "none"], ids=lambda op: op.name)
def test_what_all_pairs_share_gets_the_gradient_of_every_query(op):
    for queries in (64, 65, 130):  # whole blocks of queries, and parts of one
        *sides, shared = pair_inputs(op, queries, 2, 3, library="torch")
        total = lambda shared, sides=sides: score_of(op, [*sides, shared], pairwise=True).sum()  # noqa: E731
        assert torch.autograd.gradcheck(total, shared.requires_grad_())


@pytest.mark.parametrize("op", PAIRS, ids=lambda op: op.name)
def test_gradients_that_nobody_wants_are_not_computed(op):
    """Wanted gradients have the bits of a full call; others are 0, but for the queries' beside the shared row's."""
    inputs = [x.numpy() for x in pair_inputs(op, 5, 4, 5, library="torch")]
    given, weights = with_draws(op, inputs), np.linspace(-1, 2, 20).reshape(5, 4)
    every = _numpy.score_backward(op, weights, given, None, True)
    of = [_core.QUERY, _core.QUERY, _core.GALLERY, _core.GALLERY, _core.SHARED]
    for wanted in range(8):
        some = _numpy.score_backward(op, weights, given, None, True, wanted)
        for bit, found, want in zip(of, some, every, strict=True):
            if wanted & bit or not (bit == _core.QUERY and wanted & _core.SHARED):
                np.testing.assert_array_equal(found, want if wanted & bit else 0 * found)
    asked, tensors = [], [torch.from_numpy(x) for x in inputs]
    backward = _numpy.score_backward

    def spied(op, weights, inputs, candidates, pairwise, wanted, *, saved, out):
        asked.append(wanted)
        assert (saved is not None) == op.saves
        return backward(op, weights, inputs, candidates, pairwise, wanted, saved=saved, out=out)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_numpy, "score_backward", spied)
        for i in range(4):
            tensors[i].requires_grad_()
            score_of(op, tensors, pairwise=True).sum().backward()
            tensors[i].requires_grad_(False)
    assert asked == of[:4]


@each_twice
def test_a_missing_candidate_has_no_second_derivative(op):
    ids, weights = torch.tensor(CANDIDATES), torch.linspace(0.5, 2, 12, dtype=torch.float64).reshape(3, 4)
    found = []
    for scores_of in (lambda *x: score_of(op, x, ids), function(op, "candidates")):
        leaves = [x.clone().requires_grad_() for x in (*pair_inputs(op, library="torch"), weights)]
        first = torch.autograd.grad(scores_of(*leaves[:5]), leaves[:5], leaves[5], create_graph=True)
        found.append(torch.autograd.grad(sum((g * g).sum() for g in first), leaves))
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0)


@each_pair
def test_a_missing_candidate_spreads_no_nan(op):
    inputs = pair_inputs(op, 3, 4, 5, library="torch")
    inputs[2][0] = torch.nan  # row 0 is a candidate of query 0 only
    leaves = [x.requires_grad_() for x in inputs]
    scores = score_of(op, leaves, torch.tensor(CANDIDATES))
    keep = torch.tensor((CANDIDATES > 0).tolist())
    grads = torch.autograd.grad(scores[keep].sum(), leaves)
    assert all(g.isfinite().all() for g in grads)


# -- torch.func, vmap --------------------------------------------------------------------------------------------------


@pytest.mark.one_in(2)
@each_pair
@each_form
def test_func_grad_jacrev_and_vmap_agree_with_autograd(op, form):
    inputs = pair_inputs(op, 3, 3 if form == "paired" else 4, 5, library="torch")
    f = function(op, form)
    leaves = [x.clone().requires_grad_() for x in inputs]
    expected = torch.autograd.grad(f(*leaves).sum(), leaves)
    argnums = tuple(range(5))
    found = torch.func.grad(lambda *x: f(*x).sum(), argnums)(*inputs)
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    jacobian = torch.func.jacrev(f, argnums)(*inputs)
    for a, b in zip(jacobian, expected, strict=True):
        torch.testing.assert_close(a.flatten(0, -b.ndim - 1).sum(0), b)
    if op not in TWICE:
        return
    hessian = torch.func.jacrev(torch.func.jacrev(lambda x: f(x, *inputs[1:]).sum()))(inputs[0])
    leaf = inputs[0].clone().requires_grad_()
    reference = torch.autograd.functional.hessian(lambda x: f(x, *inputs[1:]).sum(), leaf)
    torch.testing.assert_close(hessian, reference)


@each_pair
def test_vmap_over_any_input_is_a_loop(op):
    inputs = pair_inputs(op, 3, 4, 5, library="torch")
    f = function(op, "pairwise")
    batch = torch.stack([inputs[0], 2 * inputs[0], inputs[0] + 1])
    expected = torch.stack([f(x, *inputs[1:]) for x in batch])
    torch.testing.assert_close(torch.vmap(lambda x: f(x, *inputs[1:]))(batch), expected, rtol=0, atol=0)
    moved = torch.vmap(lambda x: f(x, *inputs[1:]), in_dims=2)(batch.movedim(0, 2))
    torch.testing.assert_close(moved, expected, rtol=0, atol=0)
    both = torch.vmap(f, in_dims=(0, None, 0, None, None))(batch, inputs[1], torch.stack([inputs[2]] * 3), *inputs[3:])
    torch.testing.assert_close(both, expected, rtol=0, atol=0)
    grads = torch.vmap(torch.func.grad(lambda x: f(x, *inputs[1:]).sum()))(batch)
    each = torch.stack([torch.func.grad(lambda x: f(x, *inputs[1:]).sum())(x) for x in batch])
    torch.testing.assert_close(grads, each)


@each_elementwise
def test_elementwise_vmap_and_func_grad(op):
    order, x = elementwise_inputs(library="torch")
    table = values(op, order[:, None], x)
    call = partial(values, op)
    assert torch.equal(torch.vmap(call)(order, x), call(order, x))
    assert torch.equal(torch.vmap(lambda v: values(op, v, x))(order), table)
    assert torch.equal(torch.vmap(lambda y: values(op, order, y), out_dims=1)(x), table)
    assert torch.equal(torch.vmap(torch.vmap(call, (None, 0)), (0, None))(order, x), table)
    if op.derivative is not None:
        expected = op.derivative(lambda name, *given: elementwise(BY_NAME[name], *given), *given_to(op, order, x))
        torch.testing.assert_close(torch.func.grad(lambda x: values(op, order, x).sum())(x), expected, rtol=0, atol=0)
        torch.testing.assert_close(torch.vmap(torch.func.grad(call, 1))(order, x), expected, rtol=0, atol=0)


# -- torch's own checks ------------------------------------------------------------------------------------------------

CHECKS = ("test_schema", "test_faketensor", "test_autograd_registration")


@pytest.mark.parametrize("op", [*ELEMENTWISE, *PAIRS], ids=lambda op: op.name)
def test_opcheck(op):
    pe.enable_torch()
    registered = getattr(torch.ops.peaccel, op.name)
    if isinstance(op, Op):
        torch.library.opcheck(registered, given_to(op, *elementwise_inputs(library="torch")), test_utils=CHECKS)
        order, x = elementwise_inputs("float32", "torch")
        torch.library.opcheck(registered, given_to(op, order[:, None], x), test_utils=CHECKS)
        return
    backward = getattr(torch.ops.peaccel, f"{op.name}_bwd")
    for dtype in ("float32", "float64"):
        for form, shape in (("paired", (4,)), ("pairwise", (3, 4)), ("candidates", (3, 4))):
            inputs = pair_inputs(op, 4 if form == "paired" else 3, 4, 5, dtype=dtype, library="torch")
            candidates = torch.tensor(CANDIDATES) if form == "candidates" else None
            args = (*inputs, candidates, form == "pairwise")
            if op.draws:
                args = (*args[:6], torch.tensor(3), args[6], 3, 7)
            torch.library.opcheck(registered, args, test_utils=CHECKS)
            weights = torch.ones(shape, dtype=inputs[0].dtype)
            torch.library.opcheck(backward, (weights, *args, _core.EVERY_GRADIENT), test_utils=CHECKS)
            if op.saves:
                saving, by_saved = (getattr(torch.ops.peaccel, f"{op.name}_saving{end}") for end in ("", "_bwd"))
                torch.library.opcheck(saving, args, test_utils=CHECKS)
                given = weights, saving(*args)[1], *args, _core.EVERY_GRADIENT
                torch.library.opcheck(by_saved, given, test_utils=CHECKS)
        items = pair_inputs(op, 3, 4, 5, dtype=dtype, library="torch")
        given = op.name, items, *((torch.tensor(3), 3, 7) if op.draws else (None, 0, 0))
        panels = _numpy.panels(items[2].numpy(), items[3].numpy()) if op.layout == "panels" else ()
        packed = map(torch.from_numpy, panels)
        torch.library.opcheck(torch.ops.peaccel.rerank, (*given, torch.tensor(CANDIDATES), 2), test_utils=CHECKS)
        torch.library.opcheck(torch.ops.peaccel.search, (*given, [*packed], 2, "auto"), test_utils=CHECKS)


def test_autocast_leaves_inputs_and_results_as_they_are():
    order, x = elementwise_inputs("float32", "torch")
    inputs = pair_inputs(PAIRS[0], dtype="float32", library="torch")
    plain = elementwise(BY_NAME["log_ive"], order, x), score_of(PAIRS[0], inputs, pairwise=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = elementwise(BY_NAME["log_ive"], order, x), score_of(PAIRS[0], inputs, pairwise=True)
    assert all(torch.equal(a, b) and a.dtype == torch.float32 for a, b in zip(plain, found, strict=True))
