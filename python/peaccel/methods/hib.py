"""Hedged Instance Embeddings: the probability that two items match, of distributions anywhere in space."""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import nn

from peaccel import scores
from peaccel.heads import NormalHead, UncertaintyHead
from peaccel.losses.bottleneck import PriorDivergence
from peaccel.losses.matches import HIB
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
from peaccel.methods.parts import Uncertain, mean_head


@dataclass(frozen=True, kw_only=True)
class Settings(Uncertain):
    """Settings of HIB, of normals alone: diagonal in the paper, one variance an item in "Revisited"'s code."""

    n: AtLeast1 = 8
    """Draws of each item, where variances are diagonal."""
    kl: NonNegative = 1e-6
    """Weight of the divergence from N(0, I); 1e-6 .. 1e-2 in "Revisited"."""
    match_rate: Positive = 1.0
    """The learning rate of a and b over the backbone's."""
    schedule: Schedule = Schedule()


def build(
    backbone: nn.Module,
    features: int,
    classes: int,
    settings: Settings,
    uncertainty: type[UncertaintyHead] = UncertaintyHead,
    loss: type[HIB] = HIB,
) -> Training:
    """Put HIB's heads on a backbone; the model gives `peaccel.Normal`, means of any length."""
    for name, only in (("distribution", "normal"), ("head", "mlp")):
        if (value := getattr(settings, name)) != only:
            raise ValueError(f"hib: {name} is {value!r}, expected {only!r}")
    mean, dim = mean_head(features, settings, unit=False)
    out = dim if settings.diagonal else 1
    head = NormalHead(mean, uncertainty(features, out, settings.start))
    hib = loss(n=settings.n)
    divergence = PriorDivergence()

    def start(batches: Iterable[Batch]) -> None:
        hib.fit_scale(torch.cat([mean(backbone(batch.inputs)).float() for batch in batches]))

    def match(batch: Batch, step: Step) -> Terms:
        d = head(backbone(batch.inputs))
        return {"hib": hib(d, batch.labels, step.seed), "kl": settings.kl * divergence(d, batch.labels)}

    def score(_: object, __: object) -> scores.Score:
        return scores.hib(a=hib.log_a.exp().item(), b=hib.b.item(), n=settings.n, seed=0)

    groups = (Group((backbone, head)), Group((hib,), settings.match_rate))
    stage = Stage("HIB", settings.schedule, groups, match, start=start)
    return Training(nn.Sequential(backbone, head), hib, (stage,), score)


METHOD = described("hib", Settings, build)
