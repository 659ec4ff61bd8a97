"""Second derivatives where formulas divide by nothing: points in the place of normals, concentrations of 0."""

import pytest
import torch
from torch.autograd.functional import hessian
from torch.nn.functional import logsigmoid, normalize

import peaccel as pe

HIB = pe.scores.hib(a=2.0, b=1.0)
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")  # torch itself warns in forward mode


def rows(count, dim, seed=0):
    return torch.randn(count, dim, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def test_match_probability_of_points_is_a_sigmoid():
    a, b = rows(3, 4), rows(3, 4, 1)

    def found(x):
        return pe.paired(pe.Point(x), pe.Point(b), HIB).sum()

    def plain(x):
        return logsigmoid(1 - 2 * (x - b).norm(dim=1)).sum()

    torch.testing.assert_close(hessian(found, a), hessian(plain, a), rtol=1e-9, atol=1e-12)
    tangent = torch.ones_like(a)
    derivatives = [torch.func.jvp(f, (a,), (tangent,))[1] for f in (found, plain)]
    torch.testing.assert_close(*derivatives, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("dim", [1, 2, 64])
@pytest.mark.parametrize("var", [1e-13, 1e-11, 1e-9, 1e-6, 1e-3, 0.5])
def test_forward_and_reverse_derivatives_of_match_probability_agree(dim, var):
    """The one by the formula in torch, by quadrature or a series, the other by the kernel, which rearranges it."""
    a, b = rows(1, dim), rows(1, dim, 1)
    leaves = (a, torch.tensor([var], dtype=torch.float64))

    def found(mu, v):
        return pe.paired(pe.Normal(mu, v), pe.Normal(b, v), HIB)[0]

    reverse = torch.func.grad(found, (0, 1))(*leaves)
    for i, expected in enumerate(reverse):
        tangents = tuple(torch.ones_like(x) if j == i else torch.zeros_like(x) for j, x in enumerate(leaves))
        forward = torch.func.jvp(found, leaves, tangents)[1]
        assert forward.item() == pytest.approx(expected.sum().item(), rel=2e-5), (i, dim, var)


@pytest.mark.parametrize("score", ["mls", "ppk:rho=0.7", "llr"])
def test_second_derivatives_in_concentrations_go_on_to_zero(score):
    """log C is even, so mls has the second derivatives 0 and mu1.mu2 / D there."""
    mu = normalize(rows(2, 8))

    def found(kappa):
        return pe.paired(pe.VonMisesFisher(mu[:1], kappa[:1]), pe.VonMisesFisher(mu[1:], kappa[1:]), score)[0]

    at = [hessian(found, torch.full((2,), kappa, dtype=torch.float64)) for kappa in (0.0, 1e-9, 1e-6, 1e-5)]
    for other in at[1:]:
        torch.testing.assert_close(at[0], other, rtol=1e-6, atol=1e-9)
    if score == "mls":
        torch.testing.assert_close(at[0][0, 1], mu[0] @ mu[1] / 8, rtol=1e-9, atol=0)
