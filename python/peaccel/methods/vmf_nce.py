"""As llr_nce, of von Mises-Fisher distributions, whose likelihood ratio is the MLS and a constant."""

from dataclasses import dataclass, replace
from typing import Literal

from peaccel.methods import mls_nce
from peaccel.methods.parts import Kind


@dataclass(frozen=True, kw_only=True)
class Settings(mls_nce.Settings):
    """Settings of vmf_nce."""

    distribution: Kind = "vmf"
    head: Literal["mlp", "pfe"] = "mlp"


METHOD = replace(mls_nce.METHOD, name="vmf_nce", settings=Settings)
