"""L2 in NCA++: the ablation whose proxies and images are vectors, lengths included."""

from dataclasses import dataclass, replace

from peaccel.methods import el_nivmf
from peaccel.methods.records import Positive


@dataclass(frozen=True, kw_only=True)
class Settings(el_nivmf.Settings):
    """Settings of NCA++ by this distance."""

    distance: el_nivmf.Distance = "l2"
    temperature: Positive = 1.0
    concentration: Positive = 200.0


METHOD = replace(el_nivmf.METHOD, name="l2_nca", sampling=False, loss="NCA++, squared distance", settings=Settings)
