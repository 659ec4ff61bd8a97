"""Proxy-NCA, a baseline: an item's own proxy against those of all other classes, by squared distances of directions."""

from dataclasses import dataclass, replace

from torch import nn

from peaccel.losses.proxies import ProxyNCA
from peaccel.methods import proxy_anchor
from peaccel.methods.method import Positive, Training
from peaccel.methods.parts import PointSettings, point_training


@dataclass(frozen=True, kw_only=True)
class Settings(PointSettings):
    """Settings of Proxy-NCA."""

    scale: Positive = 1.0
    """Inverse temperature of squared distances of unit vectors: 1 in "Revisited"; 9 in the Non-isotropic paper's code,
    whose items and proxies have length 3, since |3 x - 3 p|^2 = 9 |x - p|^2."""


def build(backbone: nn.Module, features: int, classes: int, settings: Settings) -> Training:
    """Put a location head on a backbone; the model gives `peaccel.Point` of length 1."""

    def make(dim: int) -> ProxyNCA:
        return ProxyNCA(dim, classes, scale=settings.scale)

    return point_training("proxy_nca", backbone, features, settings, make)


METHOD = replace(
    proxy_anchor.METHOD,
    name="proxy_nca",
    paper="Movshovitz-Attias et al., No Fuss Distance Metric Learning using Proxies, ICCV 2017, arXiv:1703.07464",
    loss="Proxy-NCA",
    settings=Settings,
    build=build,
)
