"""What a method is made of: records without behaviour that `peaccel.train` carries out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from peaccel.distributions import Distribution
from peaccel.scores import Score

__all__ = [
    "AtLeast0",
    "AtLeast1",
    "Batch",
    "Group",
    "Method",
    "NonNegative",
    "Positive",
    "Schedule",
    "Share",
    "Stage",
    "Step",
    "Training",
]

# Ranges of settings; a value outside is refused by name when settings are read.
Positive: TypeAlias = Annotated[float, msgspec.Meta(gt=0)]
NonNegative: TypeAlias = Annotated[float, msgspec.Meta(ge=0)]
Share: TypeAlias = Annotated[float, msgspec.Meta(ge=0, le=1)]
AtLeast0: TypeAlias = Annotated[int, msgspec.Meta(ge=0)]
AtLeast1: TypeAlias = Annotated[int, msgspec.Meta(ge=1)]


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """How long, how fast and on what batches a stage trains."""

    epochs: AtLeast0 = 10
    """Passes over the training items."""
    lr: Positive = 1e-3
    """Learning rate; the highest one where `decay` is one_cycle."""
    classes_per_batch: AtLeast1 = 32
    """Groups of one class in a batch."""
    images_per_class: AtLeast1 = 4
    """Items in a group."""
    optimizer: Literal["adam", "adamw", "sgd"] = "adam"
    """By torch."""
    momentum: Share = 0.9
    """Of SGD, with Nesterov's form."""
    weight_decay: NonNegative = 0.0
    """Of every group that names none of its own."""
    decay: Literal["one_cycle", "cosine", "step", "multistep", "exponential", "constant"] = "one_cycle"
    """How the learning rate falls. one_cycle rises over the first tenth of all steps and falls along a cosine; cosine
    falls from the first step on; the others change between epochs."""
    every: AtLeast1 = 5
    """Of step: epochs between two falls."""
    milestones: tuple[int, ...] = ()
    """Of multistep: the epochs after which the rate falls."""
    gamma: Positive = 0.1
    """Of step, multistep, exponential: the factor at each fall."""
    clip: Positive | None = None
    """Greatest norm of the gradient of everything that learns."""


@dataclass(frozen=True)
class Batch:
    """Some training items."""

    inputs: Any
    """What the model, or the stage's frozen module, makes of them: a tensor, or a tuple of tensors."""
    labels: Tensor
    """[N] int64 in 0..C-1."""
    rows: Tensor
    """[N] int64: where they stand in the training data."""


@dataclass(frozen=True)
class Step:
    """Where training stands."""

    number: int
    """Optimisation steps that this stage has behind it."""
    of: int
    """All that it will make, unless it is stopped early."""
    seed: int
    """Of the draws of this step: another one at each step of each stage, the same for a resumed run."""

    @property
    def done(self) -> float:
        """The share that is behind, in [0, 1)."""
        return self.number / self.of


@dataclass(frozen=True)
class Group:
    """What learns at a rate of its own."""

    trains: tuple[nn.Module | nn.Parameter, ...]
    rate: float = 1.0
    """Times the stage's learning rate. Proxies take 50 to 5000 times a pretrained backbone's."""
    weight_decay: float | None = None
    """None takes the stage's."""


Terms: TypeAlias = Mapping[str, Tensor]
"""The terms of a loss by name, each a scalar with its weight; their sum is minimised."""

Embed: TypeAlias = Callable[[NDArray[np.int64]], NDArray[np.float32]]
"""From rows of the training data to the means of the model as it is now, [N, D]."""


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
    """Initialises from batches that cover every class: class directions, scales. In evaluation mode, no gradients."""
    batches: Callable[[NDArray[np.int64], Schedule, np.random.Generator, Embed], Iterator[NDArray[np.int64]]] | None = (
        None
    )
    """The rows of each batch of an epoch, from labels [N]; None deals all items in groups of one class."""


@dataclass(frozen=True)
class Training:
    """A method put on a backbone: what embeds, what only training needs, and the stages."""

    model: nn.Module
    """From inputs to a distribution."""
    criterion: nn.Module
    """All else that is learned or kept: class directions, temperatures, priors."""
    stages: tuple[Stage, ...]
    score: Callable[[Distribution, NDArray[np.int64]], Score] | None = None
    """Of a score with parameters that are learned, or fitted on held-out items and their labels; None takes the
    method's."""


@dataclass(frozen=True)
class Method:
    """One paper's method, in the columns of Table 1 of Probabilistic Embeddings Revisited (Karpukhin et al., 2022)."""

    name: str
    paper: str
    """Authors, title, venue."""
    distribution: str
    sampling: bool
    """Whether its loss draws."""
    loss: str
    score: str
    """By which it retrieves, as `pe.scores.get` reads it."""
    confidence: str
    """A kind of `pe.confidence`; "default" is that of the distribution."""
    settings: type[Any]
    """A frozen dataclass."""
    build: Callable[[nn.Module, int, int, Any], Training] = field(repr=False)
    """From a backbone, the width of its features, the number of classes and settings."""
