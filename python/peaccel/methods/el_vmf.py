"""EL-vMF: as EL-nivMF, with one concentration a proxy, where the expected likelihood has a closed form."""

from dataclasses import dataclass, replace

from peaccel.methods import el_nivmf
from peaccel.methods.records import Positive


@dataclass(frozen=True, kw_only=True)
class Settings(el_nivmf.Settings):
    """Settings of NCA++ by this distance."""

    distance: el_nivmf.Distance = "el_vmf"
    temperature: Positive = 1.0
    concentration: Positive = 10.0


METHOD = replace(
    el_nivmf.METHOD, name="el_vmf", sampling=False, loss="NCA++, expected likelihood of vMF proxies", settings=Settings
)
