"""Multi-similarity, a baseline: mined pairs, weighted by how hard they are."""

from dataclasses import dataclass, replace

from torch import nn

from peaccel.losses.pairs import MultiSimilarity
from peaccel.methods import proxy_anchor
from peaccel.methods.method import NonNegative, Positive, Training
from peaccel.methods.parts import PointSettings, point_training


@dataclass(frozen=True, kw_only=True)
class Settings(PointSettings):
    """Settings of MultiSimilarity."""

    threshold: float = 0.5
    """Cosine around which pairs are weighted."""
    margin: NonNegative = 0.1
    """Margin of the mining."""
    alpha: Positive = 2.0
    """Inverse temperature of pairs of one class."""
    beta: Positive = 40.0
    """Inverse temperature of pairs of two classes."""


def build(backbone: nn.Module, features: int, classes: int, settings: Settings) -> Training:
    """Put a location head on a backbone; the model gives `peaccel.Point` of length 1."""

    def make(dim: int) -> MultiSimilarity:
        return MultiSimilarity(
            threshold=settings.threshold, margin=settings.margin, alpha=settings.alpha, beta=settings.beta
        )

    return point_training("multi_similarity", backbone, features, settings, make)


METHOD = replace(
    proxy_anchor.METHOD,
    name="multi_similarity",
    paper="Wang et al., Multi-Similarity Loss with General Pair Weighting for Deep Metric Learning, CVPR 2019, "
    "arXiv:1904.06627",
    loss="multi-similarity of mined pairs",
    settings=Settings,
    build=build,
)
