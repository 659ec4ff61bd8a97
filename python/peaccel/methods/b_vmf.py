"""B-vMF: NCA++ by the Bhattacharyya coefficient of an image's and a proxy's distribution."""

from dataclasses import dataclass, replace

from peaccel.methods import el_nivmf
from peaccel.methods.records import Positive


@dataclass(frozen=True, kw_only=True)
class Settings(el_nivmf.Settings):
    """Settings of NCA++ by this distance."""

    distance: el_nivmf.Distance = "b_vmf"
    temperature: Positive = 1.0
    concentration: Positive = 10.0


METHOD = replace(
    el_nivmf.METHOD, name="b_vmf", sampling=False, loss="NCA++, Bhattacharyya of vMF proxies", settings=Settings
)
