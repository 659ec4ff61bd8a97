"""MagFace: an angular margin that grows with the length of the embedding, which becomes the confidence."""

from dataclasses import dataclass

from torch import nn

from peaccel.heads import PointHead
from peaccel.losses.margin import MagFace
from peaccel.methods.method import (
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
from peaccel.methods.parts import Embedding, mean_head


@dataclass(frozen=True, kw_only=True)
class Settings(Embedding):
    """Settings of MagFace. Lengths and margins are the paper's; for a network whose lengths are near 1 its authors name
    lengths 1 to 51, margins 0.45 to 1 and a weight of 5."""

    scale: Positive = 64.0
    """Inverse temperature."""
    norms: tuple[Positive, Positive] = (10.0, 110.0)
    """The least and the greatest length."""
    margins: tuple[NonNegative, NonNegative] = (0.45, 0.8)
    """Margins at these lengths, in radians."""
    weight: NonNegative = 35.0
    """Weight of the term that rewards length."""
    class_rate: Positive = 1.0
    """The class directions' learning rate over the backbone's."""
    schedule: Schedule = Schedule()


def build(backbone: nn.Module, features: int, classes: int, settings: Settings) -> Training:
    """Put a location head on a backbone; the model gives `peaccel.Point`, whose length is the confidence."""
    mean, dim = mean_head(features, settings, unit=False)
    head = PointHead(mean)
    magface = MagFace(
        dim,
        classes,
        scale=settings.scale,
        norms=settings.norms,
        margins=settings.margins,
        regulariser=settings.weight,
    )

    def step(batch: Batch, step: Step) -> Terms:
        return {"magface": magface(head(backbone(batch.inputs)), batch.labels)}

    groups = (Group((backbone, head)), Group((magface,), settings.class_rate))
    return Training(nn.Sequential(backbone, head), magface, (Stage("MagFace", settings.schedule, groups, step),))


METHOD = described("magface", Settings, build)
