"""ScaleFace: a scale for each item, learned as the temperature of its softmax with an angular margin.

Its score of a pair, sqrt(s1 s2) cos, is made for verification; as a ranking it puts the items with the largest scales
first whatever the query, so that this row retrieves by cosine. `mu_scaleface` retrieves by the score itself.
"""

from dataclasses import dataclass
from typing import Literal

from torch import nn

from peaccel.heads import Activation, ScaledHead, ScaleHead
from peaccel.losses.margin import ScaleFace
from peaccel.methods.method import (
    AtLeast1,
    Batch,
    Group,
    NonNegative,
    Positive,
    Schedule,
    Stage,
    Step,
    Terms,
    Training,
    described,
)
from peaccel.methods.parts import Classifier, Embedding, classify, mean_head


@dataclass(frozen=True, kw_only=True)
class Settings(Embedding):
    """Settings of ScaleFace."""

    learns: Literal["scale", "all"] = "scale"
    """Parameters that stage 2 learns. scale: the scale alone; all: everything, and stage 1 may have no epochs."""
    hidden: tuple[AtLeast1, ...] = (512,)
    """Widths of the scale head's hidden layers; () is a linear head."""
    activation: Activation = "sigmoid"
    """The function from the head's output to a scale; sigmoid is c sigmoid(x)."""
    constant: Positive = 64.0
    """The activation's c."""
    margin: NonNegative = 0.5
    """Margin of the angle, in radians."""
    classifier: Classifier = Classifier()
    classify: Schedule = Schedule()
    """Settings of stage 1."""
    scale: Schedule = Schedule()
    """Settings of stage 2."""


def build(backbone: nn.Module, features: int, classes: int, settings: Settings) -> Training:
    """Put ScaleFace's heads on a backbone; the model gives `peaccel.Scaled`."""
    mean, dim = mean_head(features, settings)
    head = ScaledHead(mean, ScaleHead(features, settings.hidden, settings.activation, settings.constant))
    classifier = settings.classifier.build(dim, classes)
    scaleface = ScaleFace(dim, classes, margin=settings.margin)
    scaleface.weight = classifier.weight
    alone = settings.learns == "scale"

    def scale(batch: Batch, step: Step) -> Terms:
        return {"scaleface": scaleface(head(batch.inputs if alone else backbone(batch.inputs)), batch.labels)}

    groups = (
        (Group((head.uncertainty,)),)
        if alone
        else (Group((backbone, head)), Group((scaleface,), settings.classifier.rate))
    )
    stages = (
        classify(backbone, head, classifier, settings.classify, settings.classifier),
        Stage("ScaleFace", settings.scale, groups, scale, frozen=backbone if alone else None),
    )
    return Training(nn.Sequential(backbone, head), nn.ModuleList([classifier, scaleface]), stages)


METHOD = described("scaleface", Settings, build)
