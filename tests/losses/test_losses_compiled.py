"""torch.compile(fullgraph=True) takes every loss, whose value and gradients stay what they are."""

import pytest
import torch
from loss_cases import CASES, classes
from torch.nn.functional import normalize

import peaccel as pe
from peaccel import losses

# Of items 0 to 2 there is one of another class, so that what MarginLoss draws is the same each time; 3 is alone.
LABELS = torch.tensor([0, 0, 0, 1])
MU, KAPPA = normalize(torch.randn(4, 6, generator=torch.Generator().manual_seed(0))), torch.tensor([1.0, 4, 2, 9])
KINDS = {
    "point": lambda mu, kappa: pe.Point(3 * mu),
    "isotropic": lambda mu, kappa: pe.Normal(mu, 1 / kappa),
    "diagonal": lambda mu, kappa: pe.Normal(mu, mu**2 + 1 / kappa[:, None]),
    "vmf": pe.VonMisesFisher,
    "scaled": pe.Scaled,
}


def test_every_loss_has_a_case():
    assert {loss for loss, _, _ in CASES} == set(classes())
    assert {loss.__name__ for loss in classes()} == set(losses.__all__) - {"Loss"}


@pytest.mark.one_in(2)
@pytest.mark.parametrize(("make", "settings", "kind"), CASES, ids=[f"{case[0].__name__}-{case[2]}" for case in CASES])
def test_every_loss_compiles_without_a_graph_break(make, settings, kind):
    torch.manual_seed(0)
    loss = make(**settings)

    def of(mu, kappa):
        return loss(KINDS[kind](mu, kappa), LABELS, seed=None)

    torch._dynamo.reset()
    found = []
    for function in (of, torch.compile(of, fullgraph=True, backend="eager")):
        torch.manual_seed(0)
        leaves = [x.clone().requires_grad_() for x in (MU, KAPPA)]
        learned = [x for x in loss.parameters() if x.requires_grad]
        value = function(*leaves)
        found.append([value, *torch.autograd.grad(value, leaves + learned, allow_unused=True)])
    assert found[0][1].abs().max() > 0
    for eager, compiled in zip(*found, strict=True):
        assert (eager is None) == (compiled is None)
        if eager is not None:  # sums go over all pairs rather than over those that count
            torch.testing.assert_close(compiled, eager, rtol=1e-4, atol=1e-5)
