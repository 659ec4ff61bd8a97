"""Data Uncertainty Learning by classification: one draw an item goes through a softmax with a margin."""

from dataclasses import dataclass

from torch import nn

from peaccel.distributions import Point
from peaccel.distributions.sample import sample
from peaccel.heads import UncertaintyHead
from peaccel.losses.base import first_row
from peaccel.losses.bottleneck import PriorDivergence
from peaccel.losses.margin import ArcFace, CosFace
from peaccel.methods.method import Batch, Group, NonNegative, Schedule, Stage, Step, Terms, Training, described
from peaccel.methods.parts import Classifier, Uncertain, distribution_head


@dataclass(frozen=True, kw_only=True)
class Settings(Uncertain):
    """Settings of DUL-cls."""

    classifier: Classifier = Classifier()
    kl: NonNegative = 1e-3
    """Weight of the divergence from the prior; 1e-4 .. 1e-2 in "Revisited", 1e-2 in the paper."""
    draw: Schedule = Schedule()


def build(
    backbone: nn.Module,
    features: int,
    classes: int,
    settings: Settings,
    uncertainty: type[UncertaintyHead] = UncertaintyHead,
    divergence: type[PriorDivergence] = PriorDivergence,
) -> Training:
    """Put DUL-cls's heads on a backbone; the model gives `peaccel.Normal` or `peaccel.VonMisesFisher`."""
    head, dim = distribution_head(features, settings, uncertainty)
    classifier = settings.classifier.build(dim, classes)
    stage = draws(backbone, head, classifier, settings, divergence())
    return Training(nn.Sequential(backbone, head), classifier, (stage,))


def draws(
    backbone: nn.Module,
    head: nn.Module,
    classifier: ArcFace | CosFace,
    settings: Settings,
    divergence: PriorDivergence,
) -> Stage:
    """The stage that classifies a draw of each item."""

    def classify_draws(batch: Batch, step: Step) -> Terms:
        d = head(backbone(batch.inputs))
        z = sample(d, 1, step.seed, first_row=first_row(len(d)))[0]
        name = settings.classifier.loss
        classifier.margin = settings.classifier.margin_at(step)
        return {name: classifier(Point(z), batch.labels), "kl": settings.kl * divergence(d, batch.labels)}

    groups = (Group((backbone, head)), Group((classifier,), settings.classifier.rate))
    return Stage("DUL-cls", settings.draw, groups, classify_draws)


METHOD = described("dul_cls", Settings, build)
