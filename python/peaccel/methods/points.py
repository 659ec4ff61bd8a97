"""Baselines of points: one loss a row, on a location head whose rows have length 1.

A row is a paper, its settings and its loss, which takes its settings by their names.
"""

from dataclasses import dataclass, fields
from functools import partial
from typing import Any

from torch import nn

from peaccel.losses.base import Loss
from peaccel.losses.pairs import Contrastive, MarginLoss, MultiSimilarity
from peaccel.losses.proxies import ProxyAnchor, ProxyNCA
from peaccel.methods.method import NonNegative, Positive, Training, described
from peaccel.methods.parts import PointSettings, point_training

SHARED = {field.name for field in fields(PointSettings)}


def build(
    name: str, loss: type[Loss[Any]], backbone: nn.Module, features: int, classes: int, settings: PointSettings
) -> Training:
    """Put a location head on a backbone; the model gives `peaccel.Point` of length 1."""
    of_loss = {setting: value for setting, value in vars(settings).items() if setting not in SHARED}

    def make(dim: int) -> Loss[Any]:
        proxies = {"dim": dim, "classes": classes} if issubclass(loss, (ProxyAnchor, ProxyNCA)) else {}
        return loss(**proxies, **of_loss)

    return point_training(name, backbone, features, settings, make)


@dataclass(frozen=True, kw_only=True)
class ProxyAnchorSettings(PointSettings):
    """Settings of Proxy-Anchor."""

    scale: Positive = 32.0
    """Inverse temperature."""
    margin: float = 0.1
    """Margin of the cosine."""


PROXY_ANCHOR = described("proxy_anchor", ProxyAnchorSettings, partial(build, "proxy_anchor", ProxyAnchor))
"""Each proxy pulls and pushes all items of the batch, the hard ones most."""


@dataclass(frozen=True, kw_only=True)
class ProxyNCASettings(PointSettings):
    """Settings of Proxy-NCA."""

    scale: Positive = 1.0
    """Inverse temperature of squared distances of unit vectors: 1 in "Revisited"; 9 in the Non-isotropic paper's code,
    whose items and proxies have length 3, since |3 x - 3 p|^2 = 9 |x - p|^2."""


PROXY_NCA = described("proxy_nca", ProxyNCASettings, partial(build, "proxy_nca", ProxyNCA))
"""The proxy of an item's class against those of all others, by squared distances of directions."""


@dataclass(frozen=True, kw_only=True)
class ContrastiveSettings(PointSettings):
    """Settings of Contrastive."""

    positive_margin: NonNegative = 0.0
    """Distance up to which pairs of one class cost nothing."""
    negative_margin: Positive = 1.0
    """Distance from which on pairs of two classes cost nothing."""


CONTRASTIVE = described("contrastive", ContrastiveSettings, partial(build, "contrastive", Contrastive))
"""Pairs of one class near, others further than a margin."""


@dataclass(frozen=True, kw_only=True)
class MultiSimilaritySettings(PointSettings):
    """Settings of MultiSimilarity."""

    threshold: float = 0.5
    """Cosine around which pairs are weighted."""
    margin: NonNegative = 0.1
    """Margin of the mining."""
    alpha: Positive = 2.0
    """Inverse temperature of pairs of one class."""
    beta: Positive = 40.0
    """Inverse temperature of pairs of two classes."""


MULTI_SIMILARITY = described(
    "multi_similarity", MultiSimilaritySettings, partial(build, "multi_similarity", MultiSimilarity)
)
"""Mined pairs, weighted by how hard they are."""


@dataclass(frozen=True, kw_only=True)
class MarginSettings(PointSettings):
    """Settings of MarginLoss."""

    margin: NonNegative = 0.2
    """How far below beta the distances of pairs of one class should be, and above it those of two."""
    beta: Positive = 1.2
    """The distance between near and far, from which training starts."""


MARGIN_DWS = described("margin_dws", MarginSettings, partial(build, "margin_dws", MarginLoss))
"""Distance-weighted sampling: negatives are drawn evenly over distances."""
