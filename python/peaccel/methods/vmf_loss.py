"""vMF-loss: items and classes are von Mises-Fisher distributions whose concentration is the length of a vector."""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import nn

from peaccel.heads import VonMisesFisherHead
from peaccel.losses.vmf import VMFLoss
from peaccel.methods.method import (
    AtLeast1,
    Batch,
    Group,
    Positive,
    Schedule,
    Share,
    Stage,
    Step,
    Terms,
    Training,
    described,
)
from peaccel.methods.parts import Embedding, mean_head


@dataclass(frozen=True, kw_only=True)
class Settings(Embedding):
    """Settings of vMF-loss."""

    samples: AtLeast1 = 10
    """Draws of each item."""
    scale: Positive = 16.0
    """Inverse temperature that training starts from."""
    confidence: Share = 0.7
    """Mean resultant length of items and classes that training starts from; 0.4 in the paper."""
    class_rate: Positive = 1.0
    """The class vectors' learning rate over the backbone's."""
    scale_rate: Positive = 1.0
    """The learning rate of the scale's logarithm over the backbone's."""
    schedule: Schedule = Schedule()


class Multiplied(nn.Module):
    """Rows times one number, which is kept and not learned."""

    factor: torch.Tensor

    def __init__(self, rows: nn.Module) -> None:
        super().__init__()
        self.rows = rows
        self.register_buffer("factor", torch.ones(()))

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """Map features [N, F] to rows [N, D]."""
        product: torch.Tensor = self.rows(features) * self.factor
        return product


def build(backbone: nn.Module, features: int, classes: int, settings: Settings) -> Training:
    """Put the head on a backbone; the model gives `peaccel.VonMisesFisher`."""
    rows, dim = mean_head(features, settings, unit=False)
    multiplied = Multiplied(rows)
    head = VonMisesFisherHead(multiplied)
    loss = VMFLoss(dim, classes, samples=settings.samples, scale=settings.scale, confidence=settings.confidence)

    def start(batches: Iterable[Batch]) -> None:
        loss.fit_alpha(torch.cat([rows(backbone(batch.inputs)).float() for batch in batches]))
        multiplied.factor.copy_(loss.alpha)

    def step(batch: Batch, step: Step) -> Terms:
        return {"vmf_loss": loss(head(backbone(batch.inputs)), batch.labels, step.seed)}

    groups = (
        Group((backbone, head)),
        Group((loss.weight,), settings.class_rate),
        Group((loss.log_scale,), settings.scale_rate),
    )
    stage = Stage("vMF-loss", settings.schedule, groups, step, start=start)
    return Training(nn.Sequential(backbone, head), loss, (stage,))


METHOD = described("vmf_loss", Settings, build)
