"""The samplers in torch: its checks of operators, transforms of functions, and torch.compile."""

import pytest
import torch
from test_samplers import directions, each_op

import peaccel as pe
from peaccel.ops import sample

SEED = torch.tensor(7)


def tensors(count=5, dim=6):
    mu = torch.tensor(directions(count, dim), requires_grad=True)
    return mu, torch.linspace(0.5, 30, count, dtype=torch.float64).requires_grad_()


@each_op
def test_opcheck(op):
    for suffix in ("", "_bwd"):
        operator = getattr(torch.ops.peaccel, op.name + suffix)
        mu, uncertainty = (x.detach() for x in tensors())
        weights = [torch.ones(3, 5, 6, dtype=torch.float64)] if suffix else []
        torch.library.opcheck(operator.default, (*weights, mu, uncertainty, SEED, 3, 0, 2))


@each_op
def test_transforms_agree_with_autograd(op):
    mu, uncertainty = tensors()

    def loss(mu, uncertainty):
        return (sample(op, mu, uncertainty, SEED, 3, 0, 2) ** 3).sum()

    loss(mu, uncertainty).backward()
    by_func = torch.func.grad(loss, argnums=(0, 1))(mu.detach(), uncertainty.detach())
    torch.testing.assert_close(by_func, (mu.grad, uncertainty.grad))
    jacobian = torch.func.jacrev(lambda uncertainty: sample(op, mu.detach(), uncertainty, SEED, 3, 0, 2))(
        uncertainty.detach()
    )
    cube = 3 * sample(op, mu, uncertainty, SEED, 3, 0, 2).detach() ** 2
    torch.testing.assert_close((jacobian * cube[..., None]).sum((0, 1, 2)), uncertainty.grad)
    batch = torch.stack([mu.detach(), -mu.detach()])
    mapped = torch.func.vmap(lambda mu: sample(op, mu, uncertainty.detach(), SEED, 2, 0, 2))(batch)
    torch.testing.assert_close(mapped, torch.stack([sample(op, x, uncertainty.detach(), SEED, 2, 0, 2) for x in batch]))


@each_op
def test_draws_from_a_first_row_on_have_the_gradients_of_those_rows(op):
    mu, uncertainty = tensors()
    slopes = []
    for rows, first, stream in ((slice(None), 0, 2), (slice(2, None), 2, 2), (slice(2, None), 2, 1)):
        given = mu[rows].detach().requires_grad_(), uncertainty[rows].detach().requires_grad_()
        draws = sample(op, *given, SEED, 3, first, stream)
        slopes.append(torch.autograd.grad((draws**3).sum(), given))
    whole, part, other = slopes
    torch.testing.assert_close(part, tuple(slope[2:] for slope in whole), rtol=0, atol=0)
    assert not torch.allclose(other[1], part[1])


@each_op
def test_compiles_whole_with_its_gradient(op):
    mu, uncertainty = tensors()
    step = lambda mu, uncertainty, seed: (sample(op, mu, uncertainty, seed, 3, 0, 2) ** 2 * mu).sum()  # noqa: E731
    compiled = torch.compile(step, fullgraph=True, dynamic=True, backend="aot_eager")
    for seed in (SEED, SEED + 1):
        found = torch.autograd.grad(compiled(mu, uncertainty, seed), (mu, uncertainty))
        torch.testing.assert_close(found, torch.autograd.grad(step(mu, uncertainty, seed), (mu, uncertainty)))


def test_a_training_step_compiles_and_draws_anew():
    def step(mu, kappa):
        return pe.sample(pe.VonMisesFisher(mu, kappa), 2)

    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
    first, second = compiled(*tensors()), compiled(*tensors())
    assert (first != second).any(-1).all()


@each_op
@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")  # torch itself warns in forward mode
def test_second_derivatives_and_forward_mode_raise(op):
    mu, uncertainty = tensors()
    (slope,) = torch.autograd.grad(
        (sample(op, mu, uncertainty, SEED, 1, 0, 2) ** 2).sum(), uncertainty, create_graph=True
    )
    with pytest.raises(RuntimeError, match="can be differentiated once, not twice"):
        slope.sum().backward()
    with pytest.raises((NotImplementedError, RuntimeError)):
        torch.func.jvp(lambda mu: sample(op, mu, uncertainty.detach(), SEED, 1, 0, 2), (mu.detach(),), (mu.detach(),))


def test_gradient_none_detaches():
    assert not pe.sample(pe.VonMisesFisher(*tensors()), 1, gradient="none").requires_grad
