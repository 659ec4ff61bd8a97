"""torch.compile(fullgraph=True) takes every loss, whose value and gradients stay what they are."""

import importlib
import pkgutil

import pytest
import torch
from torch.nn.functional import normalize

import peaccel as pe
from peaccel import losses
from peaccel.losses.base import Loss
from peaccel.losses.bottleneck import PriorDivergence
from peaccel.losses.likelihood import NegativeMLS
from peaccel.losses.margin import VMFFL, ArcFace, ClassDirections, CosFace, MagFace, ScaleFace
from peaccel.losses.matches import HIB
from peaccel.losses.nca import ProxyNCAPP
from peaccel.losses.nce import ScoreNCE
from peaccel.losses.pairs import Contrastive, MarginLoss, MultiSimilarity
from peaccel.losses.proxies import ProxyAnchor, ProxyNCA
from peaccel.losses.regression import ClassLikelihood
from peaccel.losses.triplets import BayesianTriplet, Triplet, TripletRegression
from peaccel.losses.vmf import VMFLoss

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
LOSSES = [
    *((kind(6, 2), "point") for kind in (ArcFace, CosFace, MagFace, ProxyAnchor, ProxyNCA, VMFLoss)),
    *((kind(6, 2), "vmf") for kind in (VMFFL, ProxyNCAPP)),
    *((ClassLikelihood(MU[:2], variant=variant), "vmf") for variant in ("exact", "published")),
    *((kind(margin=2.0), "point") for kind in (MultiSimilarity, Triplet)),
    *((MarginLoss(far=2.0, margin=2.0), "point"), (TripletRegression(margin=2.0), "isotropic")),
    *((HIB(), "isotropic"), (BayesianTriplet(), "isotropic"), (NegativeMLS(), "diagonal"), (HIB(), "diagonal")),
    *((PriorDivergence(), "diagonal"), (BayesianTriplet(), "diagonal"), (ScoreNCE("llr", prior_var=1.0), "diagonal")),
    *((Contrastive(), "point"), (ScoreNCE("cosine"), "point"), (ScaleFace(6, 2), "scaled")),
    (BayesianTriplet(match_moments=True), "vmf"),
]


def every_loss(base=Loss):
    for module in pkgutil.iter_modules(losses.__path__):
        importlib.import_module(f"{losses.__name__}.{module.name}")
    for own in base.__subclasses__():
        yield own
        yield from every_loss(own)


def test_every_loss_is_compiled_here():
    assert {type(loss) for loss, _ in LOSSES} == set(every_loss()) - {ClassDirections}


@pytest.mark.parametrize(("loss", "kind"), LOSSES, ids=lambda x: x if isinstance(x, str) else type(x).__name__)
def test_every_loss_compiles_without_a_graph_break(loss, kind):
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
