"""Probabilistic Face Embeddings (Shi & Jain, ICCV 2019, arXiv:1904.09658) on a CosFace backbone.

Stage 1 learns where images lie on the sphere; stage 2 keeps that and learns how far each image is to be trusted.
"""

from dataclasses import dataclass

from torch import Tensor, nn

import peaccel as pe
from peaccel.heads import MeanHead, NormalHead, VarianceHead
from peaccel.losses.likelihood import negative_mls
from peaccel.losses.margin import CosFace
from peaccel.methods import Schedule, Stage


@dataclass(frozen=True)
class Settings:
    """Settings of PFE."""

    dim: int
    """Dimension of the embedding."""
    hidden: int
    """Width of the variance head's hidden layer."""
    scale: float
    """CosFace's inverse temperature."""
    margin: float
    """CosFace's margin."""
    cosface: Schedule
    """Stage 1."""
    likelihood: Schedule
    """Stage 2."""


def build(backbone: nn.Module, features: int, classes: int, settings: Settings) -> tuple[nn.Module, tuple[Stage, ...]]:
    """Put PFE's heads on a backbone.

    Parameters
    ----------
    backbone
        Module from images to features [N, features].
    features
        Width of the features.
    classes
        Training classes.
    settings
        Sizes, margin and schedules.

    Returns
    -------
    Module from images to `peaccel.Normal` (unit mu [N, dim], var [N, dim]), and the two stages.
    """
    head = NormalHead(MeanHead(features, settings.dim), VarianceHead(features, settings.dim, settings.hidden))
    cosface = CosFace(settings.dim, classes, scale=settings.scale, margin=settings.margin)

    def classify(images: Tensor, labels: Tensor) -> Tensor:
        loss: Tensor = cosface(pe.Point(head.mean(backbone(images))), labels)
        return loss

    def match(pooled: Tensor, labels: Tensor) -> Tensor:
        return negative_mls(head(pooled), labels)

    return nn.Sequential(backbone, head), (
        Stage("CosFace", settings.cosface, trains=(backbone, head.mean, cosface), loss=classify),
        Stage("PFE", settings.likelihood, trains=(head.variance,), loss=match, frozen=backbone),
    )
