"""KL-vMF: NCA++ by the Kullback-Leibler divergence of an image's distribution from a proxy's."""

from dataclasses import dataclass, replace

from peaccel.methods import el_nivmf
from peaccel.methods.records import Positive


@dataclass(frozen=True, kw_only=True)
class Settings(el_nivmf.Settings):
    """Settings of NCA++ by this distance."""

    distance: el_nivmf.Distance = "kl_vmf"
    temperature: Positive = 1.0
    concentration: Positive = 10.0


METHOD = replace(
    el_nivmf.METHOD, name="kl_vmf", sampling=False, loss="NCA++, divergence from vMF proxies", settings=Settings
)
