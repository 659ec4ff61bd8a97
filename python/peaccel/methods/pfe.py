"""Probabilistic Face Embeddings: uncertainties for a trained classifier's means.

Stage 1 learns where items lie on the sphere; stage 2 keeps that and learns how far each item is to be trusted.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from torch import nn

from peaccel.heads import UncertaintyHead
from peaccel.losses.likelihood import NegativeMLS
from peaccel.methods.method import Batch, Group, Schedule, Stage, Step, Terms, Training, described
from peaccel.methods.parts import Classifier, Uncertain, classify, distribution_head, init_scale_within_classes


@dataclass(frozen=True, kw_only=True)
class Settings(Uncertain):
    """Settings of PFE. In "Revisited" head is mlp, one variance an item, and vmf is the second row."""

    head: Literal["mlp", "pfe"] = "pfe"
    classifier: Classifier = Classifier()
    classify: Schedule = Schedule()
    """Settings of stage 1."""
    match: Schedule = Schedule()
    """Settings of stage 2."""


def build(
    backbone: nn.Module,
    features: int,
    classes: int,
    settings: Settings,
    uncertainty: type[UncertaintyHead] = UncertaintyHead,
    loss: type[NegativeMLS] = NegativeMLS,
) -> Training:
    """Put PFE's heads on a backbone; the model gives `peaccel.Normal` or `peaccel.VonMisesFisher`.

    Variances start from those of items about their classes.
    """
    head, dim = distribution_head(features, settings, uncertainty)
    classifier = settings.classifier.build(dim, classes)
    negative_mls = loss()

    def match(batch: Batch, step: Step) -> Terms:
        return {"negative_mls": negative_mls(head(batch.inputs), batch.labels)}

    def start(batches: Iterable[Batch]) -> None:
        init_scale_within_classes(head, dim, lambda batch: batch.inputs, batches)

    stages = (
        classify(backbone, head, classifier, settings.classify, settings.classifier),
        Stage("PFE", settings.match, (Group((head.uncertainty,)),), match, frozen=backbone, start=start),
    )
    return Training(nn.Sequential(backbone, head), classifier, stages)


METHOD = described("pfe", Settings, build)
