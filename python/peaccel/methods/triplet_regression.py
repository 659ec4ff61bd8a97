"""Triplet regression: the triplet loss with a noise for each item, as in heteroscedastic regression.

No code of it was published; this is our reading of the paper.
"""

from dataclasses import dataclass

from torch import nn

from peaccel.heads import NormalHead, SoftplusHead
from peaccel.losses.triplets import TripletRegression
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
from peaccel.methods.parts import Embedding, mean_head
from peaccel.methods.triplet import batches_of


@dataclass(frozen=True, kw_only=True)
class Settings(Embedding):
    """Settings of triplet regression."""

    margin: NonNegative = 0.2
    """Margin of squared distances of unit means."""
    start: Positive = 1.0
    """The variance that training starts from."""
    negatives: AtLeast1 | None = None
    """Hard negatives in a batch for each anchor and its positive; None makes batches of groups of one class."""
    schedule: Schedule = Schedule()


def build(backbone: nn.Module, features: int, classes: int, settings: Settings) -> Training:
    """Put the heads on a backbone; the model gives isotropic `peaccel.Normal` with unit means."""
    mean, _ = mean_head(features, settings)
    head = NormalHead(mean, SoftplusHead(features, settings.start))
    triplet = TripletRegression(margin=settings.margin)

    def step(batch: Batch, step: Step) -> Terms:
        return {"triplet": triplet(head(backbone(batch.inputs)), batch.labels)}

    stage = Stage(
        "triplet regression",
        settings.schedule,
        (Group((backbone, head)),),
        step,
        batches=batches_of(settings.negatives),
    )
    return Training(nn.Sequential(backbone, head), triplet, (stage,))


METHOD = described("triplet_regression", Settings, build)
