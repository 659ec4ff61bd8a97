"""The literature: one paper a file, one line of `TABLE` each.

A method's file holds `Settings`, a frozen dataclass, and `build(backbone, features, classes, settings)`, which returns
the model (images -> distribution) and the stages that train it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol, cast

if TYPE_CHECKING:
    from torch import Tensor, nn


@dataclass(frozen=True)
class Method:
    """What a method is, in the columns of Table 1 of Probabilistic Embeddings Revisited (Karpukhin et al., 2022)."""

    paper: str
    distribution: str
    sampling: bool
    loss: str
    stages: int
    score: str
    confidence: str


TABLE = {
    "pfe": Method(
        "Shi & Jain, ICCV 2019",
        "normal, diagonal",
        False,
        "negative MLS of same-class pairs",
        2,
        "mls",
        "-mean log var",
    ),
}


@dataclass(frozen=True)
class Schedule:
    """How long and how fast a stage trains."""

    epochs: int
    """Passes over the images."""
    lr: float
    """Peak learning rate of Adam; it rises over the first tenth and falls along a cosine."""
    classes_per_batch: int
    """Groups of one class in a batch."""
    images_per_class: int
    """Images in a group."""


@dataclass(frozen=True)
class Stage:
    """One stage of training: everything in `trains` learns, everything else is fixed, batch statistics included."""

    name: str
    schedule: Schedule
    trains: tuple[nn.Module, ...]
    loss: Callable[[Tensor, Tensor], Tensor]
    """From a batch of inputs and its labels [N] to a scalar."""
    frozen: nn.Module | None = None
    """Maps images to inputs once, before the stage, rather than at every step; None leaves images as they are."""


class MethodFile(Protocol):
    """What a file of this folder holds."""

    Settings: type[Any]

    def build(
        self, backbone: nn.Module, features: int, classes: int, settings: Any
    ) -> tuple[nn.Module, tuple[Stage, ...]]:
        """Return the model, images -> distribution, and the stages that train it."""


def load(name: str) -> MethodFile:
    """Import a method's file.

    Parameters
    ----------
    name
        A key of `TABLE`.

    Raises
    ------
    ValueError
        There is no such method.
    """
    if name not in TABLE:
        raise ValueError(f"load: method is {name!r}, expected one of {', '.join(TABLE)}")
    return cast(MethodFile, import_module(f"peaccel.methods.{name}"))
