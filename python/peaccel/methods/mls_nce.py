"""As llr_nce, by the mutual likelihood score: without a prior, which favours sharp items."""

from dataclasses import dataclass, replace
from typing import Literal

from peaccel.methods import llr_nce


@dataclass(frozen=True, kw_only=True)
class Settings(llr_nce.Settings):
    """Settings of mls_nce."""

    score: Literal["llr", "mls"] = "mls"


METHOD = replace(llr_nce.METHOD, name="mls_nce", score="mls", settings=Settings)
