"""Data Uncertainty Learning by regression: the likelihood of the class directions that a classifier has learned."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn
from torch.nn.functional import normalize

from peaccel.heads import NormalHead, UncertaintyHead, VonMisesFisherHead
from peaccel.losses.regression import ClassLikelihood
from peaccel.methods.method import Batch, Group, Schedule, Stage, Step, Terms, Training, described
from peaccel.methods.parts import Classifier, Uncertain, classify, distribution_head, init_scale_from_distance, points


@dataclass(frozen=True, kw_only=True)
class Settings(Uncertain):
    """Settings of DUL-reg."""

    classifier: Classifier = Classifier()
    learns: Literal["all", "uncertainty"] = "all"
    """Parameters that stage 2 learns. all: the means too, as in "Revisited"; uncertainty: no means, as in the paper."""
    classify: Schedule = Schedule()
    """Settings of stage 1."""
    regress: Schedule = Schedule()
    """Settings of stage 2."""


def build(
    backbone: nn.Module,
    features: int,
    classes: int,
    settings: Settings,
    uncertainty: type[UncertaintyHead] = UncertaintyHead,
) -> Training:
    """Put DUL-reg's heads on a backbone; the model gives `peaccel.Normal` or `peaccel.VonMisesFisher`."""
    head, dim = distribution_head(features, settings, uncertainty)
    classifier = settings.classifier.build(dim, classes)
    likelihood = ClassLikelihood(classifier.weight)
    stages = (
        classify(backbone, head, classifier, settings.classify, settings.classifier),
        regression("DUL-reg", backbone, head, likelihood, settings.regress, settings.learns),
    )
    return Training(nn.Sequential(backbone, head), classifier, stages)


def regression(
    name: str,
    backbone: nn.Module,
    head: NormalHead | VonMisesFisherHead,
    likelihood: ClassLikelihood,
    schedule: Schedule,
    learns: Literal["all", "uncertainty"],
) -> Stage:
    """The stage that fits distributions to the directions of a trained classifier, which stay.

    Uncertainties start from the mean distance of the training items to these.
    """

    def regress(batch: Batch, step: Step) -> Terms:
        features = batch.inputs if learns == "uncertainty" else backbone(batch.inputs)
        return {"nll": likelihood(head(features), batch.labels)}

    def start(batches: Iterable[Batch]) -> None:
        squares = []
        for batch in batches:
            mu = points(head, batch.inputs if learns == "uncertainty" else backbone(batch.inputs)).mu
            centres = likelihood.weight[batch.labels]
            squares.append((normalize(mu, dim=1) - normalize(centres, dim=1)).square().sum(1))
        init_scale_from_distance(head, likelihood.weight.shape[1], torch.cat(squares).mean().item())

    if learns == "uncertainty":
        return Stage(name, schedule, (Group((head.uncertainty,)),), regress, frozen=backbone, start=start)
    return Stage(name, schedule, (Group((backbone, head)),), regress, start=start)


METHOD = described("dul_reg", Settings, build)
