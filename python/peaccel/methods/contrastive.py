"""The contrastive loss, a baseline: pairs of one class near, others further than a margin."""

from dataclasses import dataclass, replace

from torch import nn

from peaccel.losses.pairs import Contrastive
from peaccel.methods import proxy_anchor
from peaccel.methods.method import NonNegative, Positive, Training
from peaccel.methods.parts import PointSettings, point_training


@dataclass(frozen=True, kw_only=True)
class Settings(PointSettings):
    """Settings of Contrastive."""

    positive_margin: NonNegative = 0.0
    """Distance up to which pairs of one class cost nothing."""
    negative_margin: Positive = 1.0
    """Distance from which on pairs of two classes cost nothing."""


def build(backbone: nn.Module, features: int, classes: int, settings: Settings) -> Training:
    """Put a location head on a backbone; the model gives `peaccel.Point` of length 1."""

    def make(dim: int) -> Contrastive:
        return Contrastive(positive_margin=settings.positive_margin, negative_margin=settings.negative_margin)

    return point_training("contrastive", backbone, features, settings, make)


METHOD = replace(
    proxy_anchor.METHOD,
    name="contrastive",
    paper="Hadsell et al., Dimensionality Reduction by Learning an Invariant Mapping, CVPR 2006",
    loss="hinges of distances of pairs",
    settings=Settings,
    build=build,
)
