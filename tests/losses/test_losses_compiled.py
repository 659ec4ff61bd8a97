"""torch.compile(fullgraph=True) takes every loss, whose value and gradients stay what they are."""

import pytest
import torch
from loss_cases import CASES, KINDS, classes
from torch.nn.functional import normalize

import peaccel as pe
from peaccel import losses
from peaccel._core import EVERY_GRADIENT
from peaccel.losses._batch import later_of_classes
from peaccel.losses._mean_score import mean_score_operator
from peaccel.retrieval.plan import plan

# Of items 0 to 2 there is one of another class, so that what MarginLoss draws is the same each time; 3 is alone.
LABELS = torch.tensor([0, 0, 0, 1])
MU, KAPPA = normalize(torch.randn(4, 6, generator=torch.Generator().manual_seed(0))), torch.tensor([1.0, 4, 2, 9])


def test_every_loss_has_a_case():
    assert {loss for loss, _, _ in CASES} == set(classes())
    right = {loss.__name__ for loss in classes() if loss.__module__.startswith("peaccel.losses.")}
    assert right == set(losses.__all__) - {"Loss"}


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
    assert any(x is not None and x.abs().max() > 0 for x in found[0][1:])
    for eager, compiled in zip(*found, strict=True):
        assert (eager is None) == (compiled is None)
        if eager is not None:  # sums go over all pairs rather than over those that count
            torch.testing.assert_close(compiled, eager, rtol=1e-4, atol=1e-5)


UNEVEN = torch.tensor([4, 0, 4, 7, 0, 4, 1])


@pytest.mark.parametrize(
    ("make", "kind"), [(losses.NegativeMLS, "isotropic"), (losses.NegativeMLS, "vmf"), (losses.HIB, "diagonal")]
)
def test_scores_of_classes_of_any_size_compiled(make, kind):
    loss = make()
    mu = torch.nn.functional.normalize(torch.randn(len(UNEVEN), 5, generator=torch.Generator().manual_seed(1)))
    leaves = [mu.requires_grad_(), (mu.detach().norm(dim=1) + 0.2).requires_grad_(), *loss.parameters()]

    def of():
        return 3 * loss(KINDS[kind](*leaves[:2]), UNEVEN, seed=5)

    expected = of()
    torch._dynamo.reset()
    compiled = torch.compile(of, fullgraph=True, backend="aot_eager")
    found = compiled()
    torch.testing.assert_close(found, expected)
    pairs = zip(*(torch.autograd.grad(x, leaves) for x in (found, expected)), strict=True)
    for one, other in pairs:
        assert other.abs().max() > 0
        torch.testing.assert_close(one, other)
    with torch.no_grad():
        torch.testing.assert_close(compiled(), expected)


@pytest.mark.parametrize("wanted", [False, True])
@pytest.mark.parametrize("of", ["labels", "rows", "counts", "few", "many"])
@pytest.mark.parametrize("score", ["mls", "hib:n=4,seed=3"])
def test_the_operator_of_mean_scores_is_one(score, of, wanted):
    if of in ("few", "many") and score == "mls":
        return  # those of a score that draws
    d = pe.Normal(torch.randn(7, 5), torch.rand(7, 5))
    planned = plan(d, d, score, detach=False)
    seed, n, _ = planned.inputs.draws or (None, 0, 0)
    items, flags = [*planned.inputs.arrays], EVERY_GRADIENT if wanted else 0
    above = (UNEVEN[:, None] == UNEVEN).triu(1)
    chosen = {"labels": UNEVEN, "rows": later_of_classes("A", UNEVEN)}.get(of, above)
    call = (planned.pair.op.name, items, seed, n, chosen, of, "A", flags)
    torch.library.opcheck(mean_score_operator, call, test_utils=("test_schema", "test_faketensor"))
    mean, gradients = mean_score_operator(*call)
    assert [x.shape for x in gradients] == [x.shape if wanted else (0,) for x in items]
    torch.testing.assert_close(mean, pe.pairwise(d, d, score)[above].mean())


def test_compiled_scores_of_classes_refuse_labels_without_pairs():
    loss = torch.compile(losses.NegativeMLS(), fullgraph=True, backend="eager")
    with pytest.raises(ValueError, match=r"^NegativeMLS: labels are all different, expected"):
        loss(pe.Normal(torch.eye(3), torch.ones(3)), torch.arange(3))
