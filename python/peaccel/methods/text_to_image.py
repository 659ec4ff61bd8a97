"""Uncertainty heads for two modalities: captions and images whose means a pretrained encoder gives.

A batch is a pair of features (images, captions) of one row each; a caption's label is its image's. The paper does not
say by what its scales were trained: a symmetric softmax over the batch of the score is our choice.
"""

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from peaccel import retrieval
from peaccel.heads import NormalHead, PointHead, ScaledHead, ScaleHead, UncertaintyHead
from peaccel.losses.base import gather, processes
from peaccel.methods.method import (
    AtLeast1,
    Batch,
    Group,
    Positive,
    Schedule,
    Stage,
    Step,
    Terms,
    Training,
    described,
)
from peaccel.methods.parts import Given


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of the heads."""

    kind: Literal["scale", "pfe", "norm"] = "scale"
    """scale: sqrt(s1 s2) cos, as ScaleFace; pfe: the mutual likelihood of normals; norm: the encoders' lengths, of
    which nothing is trained."""
    hidden: tuple[AtLeast1, ...] = (512, 512, 512, 512)
    """Widths of the scale heads' hidden layers."""
    constant: Positive = 64.0
    """Greatest scale."""
    start: Positive = 0.05
    """The variance that training starts from."""
    schedule: Schedule = Schedule(images_per_class=1, classes_per_batch=128)


class TwoSides(nn.Module):
    """A head for each modality."""

    def __init__(self, backbone: nn.Module, images: nn.Module, captions: nn.Module) -> None:
        super().__init__()
        self.backbone, self.images, self.captions = backbone, images, captions

    def forward(self, inputs: tuple[Tensor, Tensor]) -> tuple[Any, Any]:
        """Map (images, captions) to their distributions."""
        images, captions = self.backbone(inputs)
        return self.images(images), self.captions(captions)


def build(backbone: nn.Module, features: int, classes: int, settings: Settings) -> Training:
    """Put heads on an encoder of (images, captions) to features of one width; the model gives a pair."""

    def head() -> nn.Module:
        if settings.kind == "scale":
            return ScaledHead(Given(features), ScaleHead(features, settings.hidden, constant=settings.constant))
        if settings.kind == "pfe":
            return NormalHead(Given(features), UncertaintyHead(features, 1, settings.start))
        return PointHead(nn.Identity())

    model = TwoSides(backbone, head(), head())
    if settings.kind == "norm":
        return Training(model, nn.Module(), ())
    score = "scale_cosine" if settings.kind == "scale" else "mls"

    def match(batch: Batch, step: Step) -> Terms:
        images, captions = (d if processes() == 1 else type(d)(*map(gather, d.arrays)) for d in model(batch.inputs))
        with torch.autocast(batch.labels.device.type, enabled=False):
            scores = retrieval.pairwise(captions, images, score)
            targets = torch.arange(len(scores), device=scores.device)
            return {"captions": cross_entropy(scores, targets) / 2, "images": cross_entropy(scores.T, targets) / 2}

    group = Group((model.images, model.captions))
    return Training(model, nn.Module(), (Stage("text to image", settings.schedule, (group,), match),))


METHOD = described("text_to_image", Settings, build)
