"""Forward mode of every op that differentiates twice, alone and with reverse mode; of others, an error that says so."""

import itertools
from functools import partial

import pytest
import torch
from conftest import make
from items import values
from test_every_op import (
    CANDIDATES,
    ELEMENTWISE,
    PAIRS,
    TWICE,
    call,
    differentiable,
    each_form,
    each_twice,
    elementwise_inputs,
    function,
    pair_inputs,
)

import peaccel as pe
from peaccel.ops import Inputs
from peaccel.ops._autograd import _by_formula

# torch's own, of what it does in forward mode
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")

forward_ad = torch.autograd.forward_ad
hessian, jacfwd, jacrev, jvp = torch.func.hessian, torch.func.jacfwd, torch.func.jacrev, torch.func.jvp
SMOOTH = [op for op in ELEMENTWISE if op.derivative is not None]
TOLERANCE = {"rtol": 1e-10, "atol": 1e-11}


def close(found, want):
    torch.testing.assert_close(found, want, **TOLERANCE)


@pytest.mark.parametrize("op", SMOOTH, ids=lambda op: op.name)
def test_elements(op):
    order, x = elementwise_inputs(library="torch")
    leaf, f = x.clone().requires_grad_(), partial(values, op, order)
    assert torch.autograd.gradcheck(f, leaf, check_forward_ad=True, check_backward_ad=False)
    value, tangent = jvp(f, (x,), (torch.ones_like(x),))
    assert torch.equal(value, values(op, order, x))
    each = torch.vmap(lambda v, x: jvp(lambda x: values(op, v, x), (x,), (torch.ones_like(x),))[1])(order, x)
    assert torch.equal(each, tangent)
    batched = partial(torch.vmap(partial(values, op)), order)
    assert torch.equal(jvp(batched, (x,), (torch.ones_like(x),))[1], tangent)


@pytest.mark.parametrize("op", [op for op in SMOOTH if op.name.count("_d") == 0], ids=lambda op: op.name)
def test_elements_by_any_two_modes(op):
    order, x = elementwise_inputs(library="torch")
    want = jacrev(jacrev(lambda x: values(op, order, x).sum()))(x)
    for outer, inner in itertools.product((jacfwd, jacrev), repeat=2):
        close(outer(inner(lambda x: values(op, order, x).sum()))(x), want)


@pytest.mark.parametrize("op", [op for op in SMOOTH if op.has_order], ids=lambda op: op.name)
def test_an_order_with_a_tangent_raises_however_deep(op):
    order, x = elementwise_inputs(library="torch")
    ones = torch.ones_like(order)
    message = f"^{op.name}: the order must have no tangent: derivatives exist in x only$"
    with pytest.raises(ValueError, match=message):
        jvp(lambda v: values(op, v, x), (order,), (ones,))
    with pytest.raises(ValueError, match=message):
        jvp(lambda v: torch.func.grad(lambda x: values(op, v, x).sum())(x), (order,), (ones,))
    with forward_ad.dual_level(), pytest.raises(ValueError, match=message):
        values(op, forward_ad.make_dual(order, ones), x)


@pytest.mark.parametrize("name", ["cosine", "llr_diagonal", "mls_vmf"])
@each_form
def test_pairs_by_finite_differences(name, form):
    """Some ops suffice: all must agree with reverse mode, which finite differences check elsewhere."""
    (op,) = (op for op in PAIRS if op.name == name)
    inputs = differentiable(op, form)
    assert torch.autograd.gradcheck(function(op, form), inputs, check_forward_ad=True, check_backward_ad=False)
    assert torch.autograd.gradgradcheck(function(op, form), inputs, check_fwd_over_rev=True, fast_mode=True)


@each_twice
@each_form
def test_pairs_by_any_two_modes(op, form):
    inputs = pair_inputs(op, 3, 3 if form == "paired" else 4, 2, library="torch")
    f, every = function(op, form), tuple(range(5))
    for found, want in zip(jacfwd(f, every)(*inputs), jacrev(f, every)(*inputs), strict=True):
        close(found, want)

    def total(x):
        return f(x, *inputs[1:]).square().sum()

    want = jacrev(jacrev(total))(inputs[0])
    close(hessian(total)(inputs[0]), want)
    close(jacrev(jacfwd(total))(inputs[0]), want)
    close(jacfwd(jacfwd(total))(inputs[0]), want)


@each_twice
def test_scores_keep_their_bits_and_a_missing_candidate_does_not_move(op):
    inputs = pair_inputs(op, 3, 4, 5, library="torch")
    scores, tangents = jvp(lambda *x: call(op, x, "candidates"), tuple(inputs), tuple(map(torch.ones_like, inputs)))
    assert torch.equal(scores, call(op, inputs, "candidates"))
    missing = torch.tensor(CANDIDATES < 0)
    assert (tangents[missing] == 0).all()
    assert tangents.isfinite().all()


def test_a_tangent_is_differentiated_by_autograd():
    """Reverse over forward outside torch.func."""
    (op,) = (op for op in PAIRS if op.name == "llr_diagonal")
    x, *rest = pair_inputs(op, 3, 4, 5, library="torch")
    x.requires_grad_()
    with forward_ad.dual_level():
        scores = call(op, [forward_ad.make_dual(x, torch.ones_like(x)), *rest], "pairwise")
        (found,) = torch.autograd.grad(forward_ad.unpack_dual(scores).tangent.sum(), x)
    want = hessian(lambda x: call(op, [x, *rest], "pairwise").sum())(x.detach()).sum((2, 3))
    close(found, want)


@pytest.mark.parametrize("modes", [*itertools.product(("jacfwd", "jacrev"), repeat=3)], ids="-".join)
def test_a_third_derivative_is_right_or_raises(modes):
    (op,) = (op for op in PAIRS if op.name == "mls_isotropic")
    x, *rest = pair_inputs(op, 2, 2, 2, library="torch")

    def third(scores):
        total = lambda x: scores(x).square().sum()  # noqa: E731
        for mode in modes[::-1]:
            total = getattr(torch.func, mode)(total)
        return total(x)

    if modes[1:] == ("jacrev", "jacrev"):  # a third derivative, which ops do not have
        with pytest.raises(
            RuntimeError, match=r"^peaccel::mls_isotropic can be differentiated twice, not three times$"
        ):
            third(lambda x: call(op, [x, *rest], "pairwise"))
    else:
        found = third(lambda x: call(op, [x, *rest], "pairwise"))
        close(found, third(lambda x: _by_formula(op, Inputs(x, *rest), None, True)))


@pytest.mark.parametrize("op", [op for op in PAIRS if op not in TWICE], ids=lambda op: op.name)
def test_scores_of_draws_have_none(op):
    x, *rest = pair_inputs(op, library="torch")
    message = rf"^peaccel::{op.name} has no forward mode \(jvp\): use reverse mode, as torch.func.jacrev$"
    f = lambda x: call(op, [x, *rest], "pairwise")  # noqa: E731
    with pytest.raises(NotImplementedError, match=message):
        jvp(f, (x,), (torch.ones_like(x),))
    with pytest.raises(NotImplementedError, match=message):
        hessian(lambda x: f(x).sum())(x)
    with forward_ad.dual_level(), pytest.raises(NotImplementedError, match=message):
        f(forward_ad.make_dual(x, torch.ones_like(x)))


@pytest.mark.parametrize("kind", ["normal_isotropic", "vmf"])
def test_draws_have_none(kind):
    d = make(kind, library="torch")
    f = lambda mu: pe.sample(type(d)(mu, d.arrays[1]), 2, seed=1)  # noqa: E731
    with pytest.raises(NotImplementedError, match=r"^peaccel::sample_\w+ has no forward mode \(jvp\): use"):
        jvp(f, (d.mu,), (d.mu,))
    with pytest.raises(NotImplementedError, match=r"^peaccel::sample_\w+ has no forward mode \(jvp\): use"):
        hessian(lambda mu: f(mu).sum())(d.mu)


def test_the_hessian_of_a_verb():
    q, g = (make("normal_diagonal", n, 3, n, library="torch") for n in (2, 4))
    prior = torch.tensor([0.5, 1.0, 2.0], dtype=torch.float64)
    gallery = pe.prepare(g)

    def loss(mu, var, prior):
        llr = pe.pairwise(pe.Normal(mu, var), g, pe.scores.llr(prior_var=prior)).logsumexp(1).sum()
        return llr + pe.pairwise(pe.Normal(mu, var), gallery).logsumexp(1).sum()

    inputs = q.mu, q.var, prior
    found, want = hessian(loss, (0, 1, 2))(*inputs), jacrev(jacrev(loss, (0, 1, 2)), (0, 1, 2))(*inputs)
    for row, wanted in zip(found, want, strict=True):
        for a, b in zip(row, wanted, strict=True):
            close(a, b)
