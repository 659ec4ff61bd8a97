"""PANC + EL-nivMF: EL-nivMF guided by Proxy-Anchor on the same directions (eq. 7)."""

from dataclasses import dataclass, replace

from peaccel.methods import el_nivmf
from peaccel.methods.records import NonNegative, Positive


@dataclass(frozen=True, kw_only=True)
class Settings(el_nivmf.Settings):
    """Settings of PANC + EL-nivMF; omega 3 (CUB, 128 dimensions), 5 (512), Cars 0.3 and 0.1."""

    omega: NonNegative = 3.0
    temperature: Positive = 0.003


METHOD = replace(
    el_nivmf.METHOD, name="panc_el_nivmf", loss=f"{el_nivmf.METHOD.loss}, and Proxy-Anchor", settings=Settings
)
