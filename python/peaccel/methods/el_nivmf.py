"""EL-nivMF: NCA++ between images and proxies that are distributions on the sphere, by the expected likelihood.

The paper's other distances follow below.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from peaccel.heads import VonMisesFisherHead
from peaccel.losses.nca import ProxyNCAPP
from peaccel.losses.proxies import ProxyAnchor
from peaccel.methods.method import (
    AtLeast1,
    Batch,
    Group,
    Positive,
    Schedule,
    Stage,
    Step,
    Terms,
    Training,
    described,
)
from peaccel.methods.parts import Embedding, mean_head

Distance = Literal["el_nivmf", "nivmf", "el_vmf", "b_vmf", "kl_vmf", "l2", "cos"]


@dataclass(frozen=True, kw_only=True)
class Settings(Embedding):
    """Settings of EL-nivMF and of the paper's other distances."""

    distance: Distance = "el_nivmf"
    """Distance of an item and a proxy, in the softmax over proxies."""
    temperature: Positive = 1.0
    """The temperature that training starts from."""
    concentration: Positive = 10.0
    """The concentration of every proxy that training starts from."""
    n: AtLeast1 = 5
    """How many draws of each image the loss averages."""
    norm: Positive = 10.0
    """Mean length of the embeddings, the images' concentration, from which training starts."""
    norm_multiplier: Positive | None = None
    """Factor of the embedding layer's initial weight, as published; None takes the one that gives `norm`."""
    proxy_rate: Positive = 5000.0
    """The proxies' learning rate over the backbone's; 5000 to 7500 in the paper, beside 1e-5 for a pretrained one."""
    concentration_rate: Positive = 50000.0
    """The concentrations' learning rate over the backbone's; 7500 to 50 000 in the paper."""
    temperature_rate: Positive = 200.0
    """The temperature's learning rate over the backbone's; 200 to 500 in the paper."""
    schedule: Schedule = Schedule(images_per_class=2)


def build(
    backbone: nn.Module,
    features: int,
    classes: int,
    settings: Settings,
    loss: type[ProxyNCAPP] = ProxyNCAPP,
    omega: float = 0.0,
    scale: float = 32.0,
) -> Training:
    """Put the head on a backbone; the model gives `peaccel.VonMisesFisher`, the embedding's length its concentration.

    Before training the embedding's layer is scaled as the settings ask, and proxies stand at their classes' means.
    Proxy-Anchor of this scale on the same directions has the weight omega (eq. 7).
    """
    mean, dim = mean_head(features, settings, unit=False)
    head = VonMisesFisherHead(mean)
    nca = loss(
        dim,
        classes,
        distance=settings.distance,
        temperature=settings.temperature,
        concentration=settings.concentration,
        n=settings.n,
    )
    anchor = ProxyAnchor(dim, classes, scale=scale, weight=nca.directions) if omega > 0 else None

    def start(batches: Iterable[Batch]) -> None:
        seen = [(head(backbone(batch.inputs)), batch.labels) for batch in batches]
        nca.start(torch.cat([d.mu for d, _ in seen]), torch.cat([labels for _, labels in seen]))
        if isinstance(linear := getattr(mean, "linear", None), nn.Linear):
            if settings.norm_multiplier:
                linear.weight.mul_(settings.norm_multiplier)
                return
            for parameter in linear.parameters():
                parameter.mul_(settings.norm / torch.cat([d.kappa for d, _ in seen]).mean())

    def step(batch: Batch, step: Step) -> Terms:
        d = head(backbone(batch.inputs))
        terms: dict[str, Tensor] = {settings.distance: nca(d, batch.labels, step.seed)}
        if anchor is not None:
            terms["proxy_anchor"] = omega * anchor(d, batch.labels)
        return terms

    groups = [
        Group((backbone, head)),
        Group((nca.directions,), settings.proxy_rate, 0.0),
        Group((nca.log_temperature,), settings.temperature_rate, 0.0),
    ]
    if nca.log_concentration is not None:
        groups.append(Group((nca.log_concentration,), settings.concentration_rate, 0.0))
    stage = Stage("NCA++", settings.schedule, tuple(groups), step, start=start)
    criterion = nca if anchor is None else nn.ModuleList([nca, anchor])
    return Training(nn.Sequential(backbone, head), criterion, (stage,))


METHOD = described("el_nivmf", Settings, build)


@dataclass(frozen=True, kw_only=True)
class NivMFSettings(Settings):
    """NCA++ by the density of a non-isotropic proxy at an image's direction."""

    distance: Distance = "nivmf"
    temperature: Positive = 1 / 32


NIVMF = described("nivmf", NivMFSettings, build)


@dataclass(frozen=True, kw_only=True)
class ELVMFSettings(Settings):
    """NCA++ by EL-nivMF's with one concentration a proxy, where the expected likelihood has a closed form."""

    distance: Distance = "el_vmf"


EL_VMF = described("el_vmf", ELVMFSettings, build)


@dataclass(frozen=True, kw_only=True)
class BVMFSettings(Settings):
    """NCA++ by the Bhattacharyya coefficient of an image's and a proxy's distribution."""

    distance: Distance = "b_vmf"


B_VMF = described("b_vmf", BVMFSettings, build)


@dataclass(frozen=True, kw_only=True)
class KLVMFSettings(Settings):
    """NCA++ by the Kullback-Leibler divergence of an image's distribution from a proxy's."""

    distance: Distance = "kl_vmf"


KL_VMF = described("kl_vmf", KLVMFSettings, build)


@dataclass(frozen=True, kw_only=True)
class L2NCASettings(Settings):
    """NCA++ by squared distance of vectors, lengths included: an ablation."""

    distance: Distance = "l2"
    concentration: Positive = 200.0


L2_NCA = described("l2_nca", L2NCASettings, build)


@dataclass(frozen=True, kw_only=True)
class CosNCASettings(Settings):
    """NCA++ by cosine: the ablation whose proxies are directions alone."""

    distance: Distance = "cos"
    temperature: Positive = 1 / 256


COS_NCA = described("cos_nca", CosNCASettings, build)
