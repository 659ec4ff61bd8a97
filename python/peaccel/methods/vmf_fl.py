"""The von Mises-Fisher mixture classifier (vMF-FL): a softmax whose temperature is each item's concentration.

The item's log normaliser is the same for every class and cancels, so this is ScaleFace without a margin, and nothing
holds the concentration back.
"""

from dataclasses import dataclass

from torch import nn

from peaccel.heads import UncertaintyHead
from peaccel.losses.margin import VMFFL
from peaccel.methods.method import Batch, Group, Positive, Schedule, Stage, Step, Terms, Training, described
from peaccel.methods.parts import Kind, Uncertain, class_directions, distribution_head


@dataclass(frozen=True, kw_only=True)
class Settings(Uncertain):
    """Settings of vMF-FL. With distribution normal the scale is 1 / var."""

    distribution: Kind = "vmf"
    start: Positive = 1 / 16
    class_rate: Positive = 1.0
    """The class directions' learning rate over the backbone's."""
    uncertainty_rate: Positive = 1.0
    """The uncertainty head's rate over the backbone's; near 1, scales fall to 0 before directions are learned."""
    schedule: Schedule = Schedule()


def build(
    backbone: nn.Module,
    features: int,
    classes: int,
    settings: Settings,
    uncertainty: type[UncertaintyHead] = UncertaintyHead,
) -> Training:
    """Put the heads on a backbone; the model gives `peaccel.VonMisesFisher` or `peaccel.Normal`.

    Class directions start at their classes' means: from random ones, as published, a free temperature first learns that
    nothing can be told.
    """
    head, dim = distribution_head(features, settings, uncertainty)
    classifier = VMFFL(dim, classes)

    def classify(batch: Batch, step: Step) -> Terms:
        return {"softmax": classifier(head(backbone(batch.inputs)), batch.labels)}

    groups = (
        Group((backbone, head.mean)),
        Group((classifier,), settings.class_rate),
        Group((head.uncertainty,), settings.uncertainty_rate),
    )
    start = class_directions(nn.Sequential(backbone, head.mean), classifier.weight)  # type: ignore[arg-type]
    stage = Stage("vMF-FL", settings.schedule, groups, classify, start=start)
    return Training(nn.Sequential(backbone, head), classifier, (stage,))


METHOD = described("vmf_fl", Settings, build)
