"""Proxy-Anchor, a baseline: each proxy pulls and pushes all items of the batch, the hard ones most.

The other baselines that put one loss on points are built here.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import nn

from peaccel.heads import PointHead
from peaccel.losses.base import Loss
from peaccel.losses.proxies import ProxyAnchor
from peaccel.methods.parts import Embedding, mean_head
from peaccel.methods.records import Batch, Group, Method, Positive, Schedule, Stage, Step, Terms, Training


@dataclass(frozen=True, kw_only=True)
class Plain(Embedding):
    """Settings of every baseline with one loss on points."""

    loss_rate: Positive = 1.0
    """The learning rate of what the loss itself learns (proxies, thresholds) over the backbone's."""
    schedule: Schedule = Schedule()


@dataclass(frozen=True, kw_only=True)
class Settings(Plain):
    """Settings of Proxy-Anchor."""

    scale: Positive = 32.0
    """Inverse temperature."""
    margin: float = 0.1
    """Margin of the cosine."""


def plain(
    name: str, backbone: nn.Module, features: int, settings: Plain, make: Callable[[int], Loss[Any]], unit: bool = True
) -> Training:
    """One stage of one loss on points; `make` makes the loss from the dimension."""
    mean, dim = mean_head(features, settings, unit)
    head, loss = PointHead(mean), make(dim)

    def step(batch: Batch, step: Step) -> Terms:
        return {name: loss(head(backbone(batch.inputs)), batch.labels, step.seed)}

    groups = (Group((backbone, head)),)
    if list(loss.parameters()):
        groups = (*groups, Group((loss,), settings.loss_rate, 0.0))  # type: ignore[assignment]
    return Training(nn.Sequential(backbone, head), loss, (Stage(name, settings.schedule, groups, step),))


def build(backbone: nn.Module, features: int, classes: int, settings: Settings) -> Training:
    """Put a location head on a backbone; the model gives `peaccel.Point` of length 1."""

    def make(dim: int) -> ProxyAnchor:
        return ProxyAnchor(dim, classes, scale=settings.scale, margin=settings.margin)

    return plain("proxy_anchor", backbone, features, settings, make)


METHOD = Method(
    "proxy_anchor",
    "Kim et al., Proxy Anchor Loss for Deep Metric Learning, CVPR 2020, arXiv:2003.13911",
    distribution="point",
    sampling=False,
    loss="Proxy-Anchor",
    score="cosine",
    confidence="-",
    settings=Settings,
    build=build,
)
