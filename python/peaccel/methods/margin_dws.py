"""The margin loss with distance-weighted sampling, a baseline: negatives are drawn evenly over distances."""

from dataclasses import dataclass, replace

from torch import nn

from peaccel.losses.pairs import MarginLoss
from peaccel.methods import proxy_anchor
from peaccel.methods.method import NonNegative, Positive, Training
from peaccel.methods.parts import PointSettings, point_training


@dataclass(frozen=True, kw_only=True)
class Settings(PointSettings):
    """Settings of MarginLoss."""

    margin: NonNegative = 0.2
    """How far below beta the distances of pairs of one class should be, and above it those of two."""
    beta: Positive = 1.2
    """The distance between near and far, from which training starts."""


def build(backbone: nn.Module, features: int, classes: int, settings: Settings) -> Training:
    """Put a location head on a backbone; the model gives `peaccel.Point` of length 1."""

    def make(dim: int) -> MarginLoss:
        return MarginLoss(margin=settings.margin, beta=settings.beta)

    return point_training("margin_dws", backbone, features, settings, make)


METHOD = replace(
    proxy_anchor.METHOD,
    name="margin_dws",
    paper="Wu et al., Sampling Matters in Deep Embedding Learning, ICCV 2017, arXiv:1706.07567",
    loss="margin of distances, distance-weighted negatives",
    settings=Settings,
    build=build,
)
