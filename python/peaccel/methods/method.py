"""The records that make a method; they have no behaviour, and `peaccel.train` carries them out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from peaccel._utils import config
from peaccel.distributions import Distribution
from peaccel.scores import Score

__all__ = [
    "AtLeast0",
    "AtLeast1",
    "Batch",
    "Embed",
    "Group",
    "Method",
    "NonNegative",
    "Positive",
    "Schedule",
    "Share",
    "Stage",
    "Step",
    "Training",
    "UpTo1024",
]

# Ranges of settings; a value outside is refused by name when settings are read.
Positive: TypeAlias = Annotated[float, msgspec.Meta(gt=0)]
NonNegative: TypeAlias = Annotated[float, msgspec.Meta(ge=0)]
Share: TypeAlias = Annotated[float, msgspec.Meta(ge=0, le=1)]
AtLeast0: TypeAlias = Annotated[int, msgspec.Meta(ge=0)]
UpTo1024: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=1024)]
AtLeast1: TypeAlias = Annotated[int, msgspec.Meta(ge=1)]


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """How long, how fast and on what batches a stage trains."""

    epochs: AtLeast0 = 10
    """Passes over the training items."""
    lr: Positive = 1e-3
    """Learning rate; the highest one where `decay` is one_cycle."""
    classes_per_batch: AtLeast1 = 32
    """How many groups of one class a batch has."""
    images_per_class: AtLeast1 = 4
    """How many items a group has."""
    optimizer: Literal["adam", "adamw", "sgd"] = "adam"
    """Name of the optimizer, which is torch's."""
    momentum: Share = 0.9
    """Momentum of SGD."""
    nesterov: bool = False
    """Whether SGD's momentum is in Nesterov's form; it is plain in the code of "Revisited", ScaleFace and MagFace."""
    weight_decay: NonNegative = 0.0
    """Weight decay of every group that has no other."""
    decay: Literal["one_cycle", "cosine", "step", "multistep", "exponential", "constant"] = "one_cycle"
    """How the learning rate falls. one_cycle rises over the first tenth of all steps and falls along a cosine; cosine
    falls from the first step on; the others change between epochs."""
    every: AtLeast1 = 5
    """With step, the epochs between two falls."""
    milestones: tuple[int, ...] = ()
    """With multistep, the epochs after which the rate falls."""
    gamma: Positive = 0.1
    """With step, multistep and exponential, the factor at each fall."""
    clip: Positive | None = None
    """Greatest norm of the gradient of everything that learns."""


@dataclass(frozen=True)
class Batch:
    """Some training items."""

    inputs: Any
    """The inputs of the model, or the outputs of the stage's frozen module: a tensor, or a tuple of tensors."""
    labels: Tensor
    """[N] int64 in 0..C-1."""
    rows: Tensor
    """[N] int64, their rows in the training data."""


@dataclass(frozen=True)
class Step:
    """Where training stands."""

    number: int
    """How many optimisation steps this stage has made."""
    of: int
    """How many it will make, unless it is stopped early."""
    seed: int
    """Seed of the draws of this step: another one at each step of each stage, the same in a resumed run."""

    @property
    def done(self) -> float:
        """The share of the steps that are made, in [0, 1)."""
        return self.number / self.of


@dataclass(frozen=True)
class Group:
    """Modules that learn at one rate."""

    trains: tuple[nn.Module | nn.Parameter, ...]
    rate: float = 1.0
    """Factor of the stage's learning rate. Proxies take 50 to 5000 times a pretrained backbone's rate."""
    weight_decay: float | None = None
    """Weight decay of the group; None takes the stage's."""


Terms: TypeAlias = Mapping[str, Tensor]
"""The terms of a loss by name, each a scalar with its weight; their sum is minimised."""

Embed: TypeAlias = Callable[[NDArray[np.int64]], NDArray[np.float32]]
"""A function from rows of the training data to the current means of the model, [N, D]."""


@dataclass(frozen=True)
class Stage:
    """One stage of training: what its groups name learns, all else is fixed, batch statistics included."""

    name: str
    schedule: Schedule
    groups: tuple[Group, ...]
    loss: Callable[[Batch, Step], Terms]
    frozen: nn.Module | None = None
    """Maps all inputs once before the stage, rather than at every step; None leaves them as they are."""
    start: Callable[[Iterable[Batch]], None] | None = None
    """Initialises class directions and scales from batches that hold every item once. No gradients; in the mode in
    which the stage trains (one without epochs: the next that has any), so that it sees what the first step will."""
    batches: Callable[[NDArray[np.int64], Schedule, np.random.Generator, Embed], Iterator[NDArray[np.int64]]] | None = (
        None
    )
    """The rows of each batch of an epoch, from labels [N]; None deals all items in groups of one class."""


@dataclass(frozen=True)
class Training:
    """A method put on a backbone: what embeds, what only training needs, and the stages."""

    model: nn.Module
    """The module that maps inputs to a distribution."""
    criterion: nn.Module
    """The module of all else that is learned or saved: class directions, temperatures, priors."""
    stages: tuple[Stage, ...]
    score: Callable[[Distribution, NDArray[np.int64]], Score] | None = None
    """A function from held-out items and their labels to the score, where parameters of it are learned or fitted; None
    where it is the method's."""


@dataclass(frozen=True)
class Method:
    """One paper's method, in the columns of Table 1 of Probabilistic Embeddings Revisited (Karpukhin et al., 2022)."""

    name: str
    paper: str
    """Authors, title and venue of the paper."""
    distribution: str
    sampling: bool
    """Whether its loss draws."""
    loss: str
    score: str
    """The score by which it retrieves, as `pe.scores.get` reads it."""
    confidence: str
    """A kind of `pe.confidence`; "default" is that of the distribution."""
    settings: type[Any]
    """The frozen dataclass of its settings."""
    build: Callable[[nn.Module, int, int, Any], Training] = field(repr=False)
    """Makes a `Training` from a backbone, the width of its features, the number of classes and settings."""


def described(name: str, settings: type[Any], build: Callable[[nn.Module, int, int, Any], Training]) -> Method:
    """A method of this package, of which the table [about] of its recipe says the rest."""
    recipe = config.read_mapping(Path(__file__).parent / "recipes" / f"{name}.toml")
    return Method(name, **recipe["about"], settings=settings, build=build)
