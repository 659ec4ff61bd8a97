"""Uncertainties trained to tell: a softmax over the batch of the likelihood ratio itself, its prior learned along.

PFE fits variances to pairs of one class and never sees a wrong pair; here every other item of the batch is one.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

from peaccel import scores
from peaccel.losses.nce import ScoreNCE
from peaccel.methods.method import Batch, Group, Positive, Schedule, Stage, Step, Terms, Training, described
from peaccel.methods.parts import Classifier, Kind, Uncertain, classify, distribution_head, init_scale_within_classes


@dataclass(frozen=True, kw_only=True)
class Settings(Uncertain):
    """Settings of llr_nce, and of mls_nce and vmf_nce."""

    head: Literal["mlp", "pfe"] = "pfe"
    score: Literal["llr", "mls"] = "llr"
    """The score whose softmax over the batch is trained."""
    learns: Literal["uncertainty", "all"] = "uncertainty"
    """Parameters that stage 2 learns. uncertainty: the means stay; all: the means too."""
    temperature: Positive = 1.0
    """The divisor of the scores in the softmax; larger is softer."""
    classifier: Classifier = Classifier()
    classify: Schedule = Schedule()
    """Settings of stage 1."""
    tell: Schedule = Schedule()
    """Settings of stage 2."""


def build(backbone: nn.Module, features: int, classes: int, settings: Settings) -> Training:
    """Put the heads on a backbone; the model gives `peaccel.Normal` or `peaccel.VonMisesFisher`."""
    head, dim = distribution_head(features, settings)
    classifier = settings.classifier.build(dim, classes)
    prior = settings.score == "llr" and settings.distribution == "normal"
    ones = torch.full((dim,), 1.0 / dim)
    nce = ScoreNCE(
        settings.score,
        temperature=settings.temperature,
        prior_var=ones if prior else None,
        prior_mean=torch.zeros(dim) if prior else None,
    )
    alone = settings.learns == "uncertainty"

    def features_of(batch: Batch) -> Tensor:
        x: Tensor = batch.inputs if alone else backbone(batch.inputs)
        return x

    def tell(batch: Batch, step: Step) -> Terms:
        return {"nce": nce(head(features_of(batch)), batch.labels)}

    def start(batches: Iterable[Batch]) -> None:
        fitted = init_scale_within_classes(head, dim, features_of, batches)
        if prior:
            nce.restart(prior_var=torch.as_tensor(fitted.var).clamp(min=1e-6), prior_mean=fitted.mean)

    def score(_: object, __: object) -> scores.Score:
        learned = nce.learned_score()
        return learned(**{name: _array(x) for name, x in learned.params.items() if isinstance(x, Tensor)})

    groups = (Group((head.uncertainty, nce)),) if alone else (Group((backbone, head, nce)),)
    stages = (
        classify(backbone, head, classifier, settings.classify, settings.classifier),
        Stage("NCE", settings.tell, groups, tell, frozen=backbone if alone else None, start=start),
    )
    return Training(nn.Sequential(backbone, head), nn.ModuleList([classifier, nce]), stages, score)


def _array(x: Tensor) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    return np.asarray(x.detach().float().cpu())


METHOD = described("llr_nce", Settings, build)


@dataclass(frozen=True, kw_only=True)
class MLSSettings(Settings):
    """As llr_nce, by the mutual likelihood score: without a prior, which favours sharp items."""

    score: Literal["llr", "mls"] = "mls"


MLS_NCE = described("mls_nce", MLSSettings, build)


@dataclass(frozen=True, kw_only=True)
class VMFSettings(MLSSettings):
    """As mls_nce, of von Mises-Fisher distributions, whose likelihood ratio is the MLS and a constant."""

    distribution: Kind = "vmf"
    head: Literal["mlp", "pfe"] = "mlp"


VMF_NCE = described("vmf_nce", VMFSettings, build)
