"""Proxy-Anchor, a baseline: each proxy pulls and pushes all items of the batch, the hard ones most."""

from dataclasses import dataclass

from torch import nn

from peaccel.losses.proxies import ProxyAnchor
from peaccel.methods.method import Method, Positive, Training
from peaccel.methods.parts import PointSettings, point_training


@dataclass(frozen=True, kw_only=True)
class Settings(PointSettings):
    """Settings of Proxy-Anchor."""

    scale: Positive = 32.0
    """Inverse temperature."""
    margin: float = 0.1
    """Margin of the cosine."""


def build(backbone: nn.Module, features: int, classes: int, settings: Settings) -> Training:
    """Put a location head on a backbone; the model gives `peaccel.Point` of length 1."""

    def make(dim: int) -> ProxyAnchor:
        return ProxyAnchor(dim, classes, scale=settings.scale, margin=settings.margin)

    return point_training("proxy_anchor", backbone, features, settings, make)


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
