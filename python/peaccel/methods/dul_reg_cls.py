"""DUL-reg on the class directions of DUL-cls.

Three stages: a point classifier from which draws can start, DUL-cls, and DUL-reg with an uncertainty head made anew.
The first may have no epochs, as in "Revisited"; the last starts from the data.
"""

from collections.abc import Iterable
from copy import deepcopy
from dataclasses import dataclass, replace

from torch import nn

from peaccel.heads import UncertaintyHead
from peaccel.losses.bottleneck import PriorDivergence
from peaccel.losses.regression import ClassLikelihood
from peaccel.methods import dul_cls, dul_reg
from peaccel.methods.method import Batch, Schedule, Training, described
from peaccel.methods.parts import classify, distribution_head


@dataclass(frozen=True, kw_only=True)
class Settings(dul_cls.Settings):
    """Settings of DUL-reg-cls."""

    classify: Schedule = Schedule(epochs=0)
    """Settings of stage 1, which learns means alone; `draw` is stage 2."""
    regress: Schedule = Schedule()
    """Settings of stage 3."""


def build(
    backbone: nn.Module,
    features: int,
    classes: int,
    settings: Settings,
    uncertainty: type[UncertaintyHead] = UncertaintyHead,
    divergence: type[PriorDivergence] = PriorDivergence,
) -> Training:
    """Put the heads on a backbone; the model gives `peaccel.Normal` or `peaccel.VonMisesFisher`."""
    head, dim = distribution_head(features, settings, uncertainty)
    classifier = settings.classifier.build(dim, classes)
    likelihood = ClassLikelihood(classifier.weight)
    regress = dul_reg.regression("DUL-reg", backbone, head, likelihood, settings.regress, "all")
    fresh = deepcopy(head.uncertainty)

    def restart(batches: Iterable[Batch]) -> None:
        head.uncertainty.load_state_dict(fresh.state_dict())
        assert regress.start is not None
        regress.start(batches)

    stages = (
        classify(backbone, head, classifier, settings.classify, settings.classifier),
        dul_cls.draws(backbone, head, classifier, settings, divergence()),
        replace(regress, start=restart),
    )
    return Training(nn.Sequential(backbone, head), nn.ModuleList([classifier, fresh]), stages)


METHOD = described("dul_reg_cls", Settings, build)
