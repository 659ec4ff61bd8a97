"""Rows scaled to length 1 are those of torch's `normalize`, with its derivatives."""

import pytest
import torch
from torch.nn.functional import normalize

from peaccel.losses._directions import directions

ROWS = torch.tensor([[3.0, 4, 0], [1e-6, -2e-6, 1e-6], [1e12, 2e12, -1e12], [1, 0, 0]], dtype=torch.float64)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_directions_are_those_of_normalize(dtype):
    x, weights = ROWS.to(dtype).requires_grad_(), torch.randn(4, 3, dtype=dtype)
    torch.testing.assert_close(directions(x), normalize(x), rtol=0, atol=0)
    found, want = (torch.autograd.grad(function(x), x, weights)[0] for function in (directions, normalize))
    scale = want.norm(dim=1, keepdim=True)
    torch.testing.assert_close(found / scale, want / scale, rtol=1e-5, atol=10 * torch.finfo(dtype).eps)


def test_a_row_of_zeros_remains():
    x = torch.zeros(1, 3, requires_grad=True)
    found, want = (torch.autograd.grad(function(x), x, torch.ones(1, 3))[0] for function in (directions, normalize))
    assert not directions(x).any() and torch.equal(found, want)


def test_directions_are_differentiated_twice():
    x = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(directions, x) and torch.autograd.gradgradcheck(directions, x)


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")  # torch itself warns in forward mode
def test_directions_under_transforms():
    x = torch.randn(3, 4)
    for jacobian in (torch.func.jacrev, torch.func.jacfwd):
        torch.testing.assert_close(jacobian(directions)(x), jacobian(normalize)(x))
    batched = torch.randn(2, 3, 4)
    torch.testing.assert_close(torch.func.vmap(directions)(batched), normalize(batched, dim=2))
