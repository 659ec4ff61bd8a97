"""Cosine in NCA++: the ablation whose proxies are directions alone."""

from dataclasses import dataclass, replace

from peaccel.methods import el_nivmf
from peaccel.methods.records import Positive


@dataclass(frozen=True, kw_only=True)
class Settings(el_nivmf.Settings):
    """Settings of NCA++ by this distance."""

    distance: el_nivmf.Distance = "cos"
    temperature: Positive = 1 / 256
    concentration: Positive = 10.0


METHOD = replace(el_nivmf.METHOD, name="cos_nca", sampling=False, loss="NCA++, cosine", settings=Settings)
