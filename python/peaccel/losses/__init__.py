"""Losses, one family a file. Each is called with a distribution and labels, and gives a scalar."""

from typing import TYPE_CHECKING

from peaccel._utils.words import answered
from peaccel.losses import (
    bottleneck,
    likelihood,
    margin,
    matches,
    nca,
    nce,
    pairs,
    proxies,
    regression,
    triplets,
    vmf,
)
from peaccel.losses.base import Loss
from peaccel.losses.bottleneck import *  # noqa: F403  (a loss is named in its file alone)
from peaccel.losses.likelihood import *  # noqa: F403  (a loss is named in its file alone)
from peaccel.losses.margin import *  # noqa: F403  (a loss is named in its file alone)
from peaccel.losses.matches import *  # noqa: F403  (a loss is named in its file alone)
from peaccel.losses.nca import *  # noqa: F403  (a loss is named in its file alone)
from peaccel.losses.nce import *  # noqa: F403  (a loss is named in its file alone)
from peaccel.losses.pairs import *  # noqa: F403  (a loss is named in its file alone)
from peaccel.losses.proxies import *  # noqa: F403  (a loss is named in its file alone)
from peaccel.losses.regression import *  # noqa: F403  (a loss is named in its file alone)
from peaccel.losses.triplets import *  # noqa: F403  (a loss is named in its file alone)
from peaccel.losses.vmf import *  # noqa: F403  (a loss is named in its file alone)

__all__ = ["Loss"]
__all__ += bottleneck.__all__
__all__ += likelihood.__all__
__all__ += margin.__all__
__all__ += matches.__all__
__all__ += nca.__all__
__all__ += nce.__all__
__all__ += pairs.__all__
__all__ += proxies.__all__
__all__ += regression.__all__
__all__ += triplets.__all__
__all__ += vmf.__all__

if not TYPE_CHECKING:  # which would take every attribute for known
    __getattr__ = answered(__name__)
