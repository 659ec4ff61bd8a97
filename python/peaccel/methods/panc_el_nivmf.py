"""PANC + EL-nivMF: EL-nivMF guided by Proxy-Anchor on the same directions (eq. 7)."""

from dataclasses import dataclass

from torch import nn

from peaccel.losses.nca import ProxyNCAPP
from peaccel.methods import el_nivmf
from peaccel.methods.method import NonNegative, Positive, Training, described


@dataclass(frozen=True, kw_only=True)
class Settings(el_nivmf.Settings):
    """Settings of PANC + EL-nivMF; omega 3 (CUB, 128 dimensions), 5 (512), Cars 0.3 and 0.1."""

    omega: NonNegative = 3.0
    """Weight of Proxy-Anchor on the same directions (eq. 7)."""
    scale: Positive = 32.0
    """Proxy-Anchor's inverse temperature."""
    temperature: Positive = 0.003


def build(
    backbone: nn.Module,
    features: int,
    classes: int,
    settings: Settings,
    loss: type[ProxyNCAPP] = ProxyNCAPP,
) -> Training:
    """Put EL-nivMF's head on a backbone, and train it by both losses."""
    return el_nivmf.build(backbone, features, classes, settings, loss, settings.omega, settings.scale)


METHOD = described("panc_el_nivmf", Settings, build)
