"""Bayesian Triplet Loss: the probability that the anchor's draw is nearer to the positive's than to the negative's."""

from dataclasses import dataclass

from torch import nn

from peaccel.heads import NormalHead, ScaledMean, SoftplusHead, VonMisesFisherHead
from peaccel.losses.bottleneck import PriorDivergence
from peaccel.losses.triplets import BayesianTriplet
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
from peaccel.methods.parts import Embedding, Kind, mean_head
from peaccel.methods.triplet import batches_of


@dataclass(frozen=True, kw_only=True)
class Settings(Embedding):
    """Settings of the Bayesian triplet loss."""

    distribution: Kind = "normal"
    """normal: means on a sphere whose radius is learned; vmf: on the unit sphere."""
    margin: NonNegative = 0.0
    """Margin of squared distances."""
    kl: NonNegative = 1e-6
    """Weight of the divergence from the prior, which is N(0, I / D), or the uniform distribution."""
    start: Positive = 1e-2
    """The variance, or 1 / kappa, that training starts from."""
    match_moments: bool = False
    """With vmf, use the moments of the draws rather than those of a normal with variance 1 / kappa."""
    only_violating: bool = False
    """Leave out triplets whose means keep the margin."""
    negatives: AtLeast1 | None = None
    """Hard negatives in a batch for each anchor and its positive; None makes batches of groups of one class."""
    schedule: Schedule = Schedule()


def build(
    backbone: nn.Module,
    features: int,
    classes: int,
    settings: Settings,
    loss: type[BayesianTriplet] = BayesianTriplet,
) -> Training:
    """Put the heads on a backbone; the model gives isotropic `peaccel.Normal` or `peaccel.VonMisesFisher`."""
    mean, dim = mean_head(features, settings)
    uncertainty = SoftplusHead(features, settings.start)
    normal = settings.distribution == "normal"
    head = NormalHead(ScaledMean(mean), uncertainty) if normal else VonMisesFisherHead(mean, uncertainty)
    triplet = loss(margin=settings.margin, only_violating=settings.only_violating, match_moments=settings.match_moments)
    divergence = PriorDivergence(1 / dim)

    def step(batch: Batch, step: Step) -> Terms:
        d = head(backbone(batch.inputs))
        return {"triplet": triplet(d, batch.labels), "kl": settings.kl * divergence(d, batch.labels)}

    stage = Stage(
        "Bayesian triplet", settings.schedule, (Group((backbone, head)),), step, batches=batches_of(settings.negatives)
    )
    return Training(nn.Sequential(backbone, head), triplet, (stage,))


METHOD = described("bayesian_triplet", Settings, build)
