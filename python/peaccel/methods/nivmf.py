"""nivMF: NCA++ by the density of a non-isotropic proxy at an image's direction."""

from dataclasses import dataclass, replace

from peaccel.methods import el_nivmf
from peaccel.methods.records import Positive


@dataclass(frozen=True, kw_only=True)
class Settings(el_nivmf.Settings):
    """Settings of NCA++ by this distance."""

    distance: el_nivmf.Distance = "nivmf"
    temperature: Positive = 1 / 32
    concentration: Positive = 10.0


METHOD = replace(
    el_nivmf.METHOD, name="nivmf", sampling=False, loss="NCA++, density of non-isotropic vMF proxies", settings=Settings
)
