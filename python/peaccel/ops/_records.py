"""What a kernel is, and what it is given: records that declare, and compute nothing.

A record declares a kernel once, its name, inputs and derivatives; the calls of numpy and of CUDA, torch's operators
with their schemas, and the autograd functions derive from it. `_dispatch` says who computes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from peaccel import _core
from peaccel.ops._array import Array

__all__ = ["Draws", "Gradients", "Inputs", "Op", "PairOp", "SampleOp", "listed", "pair_op", "records", "scores_shape"]

# -- what is given -----------------------------------------------------------------------------------------------------


class Draws(NamedTuple):
    """How the items of a pair op are drawn: by a seed, int64 [], >= 0, of the inputs' kind, ``n`` times (1 .. 1024)."""

    seed: Array
    n: int


class Inputs(NamedTuple):
    """What a pair op is given: arrays of one kind, dtype (float32 or float64) and device; draws for an op that draws.

    On the host, and on a GPU, the gallery may be in halves, which are widened as they are read.
    """

    mu1: Array  # [Q, D]
    extra1: Array  # [Q], [Q, 1] or [Q, D]
    mu2: Array  # [G, D]
    extra2: Array  # [G], [G, 1] or [G, D]
    shared: Array  # [S], S in 0, 1, 2, D
    draws: Draws | None = None

    @property
    def arrays(self) -> tuple[Array, Array, Array, Array, Array]:
        """All but the draws."""
        return self.mu1, self.extra1, self.mu2, self.extra2, self.shared

    def mapped(self, function: Callable[[Array], Array]) -> Inputs:
        """The inputs with a function of each array in its place."""
        sides = function(self.mu1), function(self.extra1), function(self.mu2), function(self.extra2)
        return Inputs(*sides, function(self.shared), self.draws)


class Gradients(NamedTuple):
    """The gradients by the arrays of `Inputs`, in their shapes."""

    mu1: Array
    extra1: Array
    mu2: Array
    extra2: Array
    shared: Array


def listed(arrays: Inputs | Gradients) -> list[Array]:
    """The five arrays as the core takes them: what is shared is one row."""
    return [arrays.mu1, arrays.extra1, arrays.mu2, arrays.extra2, arrays.shared[None]]


def scores_shape(inputs: Inputs, candidates: Array | None, pairwise: bool) -> tuple[int, ...]:
    """The shape of an op's scores."""
    if candidates is not None:
        return tuple(candidates.shape)
    queries = inputs.mu1.shape[0]
    return (queries, inputs.mu2.shape[0]) if pairwise else (queries,)


# -- kernels -----------------------------------------------------------------------------------------------------------

_records: list[Op | PairOp | SampleOp] = []
_KERNELS = {kernel["name"]: kernel for kernel in _core.kernels()}


class _Record:
    """A kernel's record: known by its name, copied and pickled by it, and equal to itself alone."""

    name: str

    def __reduce__(self) -> tuple[Callable[[str], Any], tuple[str]]:
        return _named, (self.name,)


def _named(name: str) -> Any:
    return next(record for record in _records if record.name == name)


@dataclass(frozen=True, eq=False)
class Op(_Record):
    """A function of an order (no gradient) and x, or of x alone, element by element.

    The order is float64, x float32 or float64; they have one shape or broadcast, and are of one kind.

    Parameters
    ----------
    name
        Of the kernel and of the torch operator.
    derivative
        ``derivative(call, order, x)``: the derivative in x, made of other ops by ``call(name, order, x)``; None where
        there is none. Names, since torch.compile cannot see through records.
    has_order
        Whether there is an order; where not, all that is said of (order, x), here and elsewhere, is so of x alone.
    """

    name: str
    derivative: Callable[..., Array] | None = None
    has_order: bool = True

    def __post_init__(self) -> None:
        _records.append(self)


@dataclass(frozen=True, eq=False)
class PairOp(_Record):
    """A score of pairs of items, each given by a row ``mu`` [D] and an extra number or row, with one shared row.

    What follows from the kernel, all that is not given, is told by the core's table of kernels (rust/kernels/table.rs).

    Parameters
    ----------
    name
        Of the kernel and of the torch operator.
    formula
        The score in plain torch, ``formula(mu1, extra1, mu2, extra2, shared)`` on arrays that broadcast to [..., D]
        (extras to [..., 1] or [..., D]) -> [...]. Second derivatives are taken from it; None: there are none.

    Attributes
    ----------
    extra, shared
        What the extra input and the shared row are called.
    layout
        How a gallery that is used often is kept for the kernel: "panels" for tiled products, "rows" with mu and extra
        side by side, one stretch of memory per item; None as it is.
    samplers
        The op that draws the queries, and the one that draws the gallery; None where an item is its own only draw.
    sampled
        Whether the kernel is one of `sampled_scores`, where an item may also be its own only draw: galleries of halves
        are widened before, and on a GPU the best are selected from the scores of all.
    keeps
        Whether scores keep a number of each pair for its gradient, which else would find it again.
    own
        Whether a GPU makes numbers of each query, and of each gallery item, alone: once for all of its pairs.
    """

    name: str
    formula: Callable[..., Array] | None = None
    extra: str = field(init=False)
    shared: str = field(init=False)
    layout: Literal["panels", "rows"] | None = field(init=False)
    samplers: tuple[str | None, str | None] = field(init=False)
    sampled: bool = field(init=False)
    keeps: bool = field(init=False)
    own: tuple[bool, bool] = field(init=False)

    def __post_init__(self) -> None:
        for name, value in _KERNELS[self.name].items():
            object.__setattr__(self, name, tuple(value) if isinstance(value, list) else value)
        _records.append(self)

    @property
    def draws(self) -> bool:
        """Whether items are drawn."""
        return any(self.samplers)


@dataclass(frozen=True, eq=False)
class SampleOp(_Record):
    """Draws of N items, each given by a row ``mu`` [D] and an extra number or row; a function of its seed.

    Parameters
    ----------
    name
        Of the kernel and of the torch operator.
    extra
        What the extra input is called.
    """

    name: str
    extra: str

    def __post_init__(self) -> None:
        _records.append(self)


def pair_op(formula: Callable[..., Array]) -> PairOp:
    """The record of the kernel that a formula in torch is named after."""
    return PairOp(formula.__name__, formula)


def records() -> tuple[Op | PairOp | SampleOp, ...]:
    """All that have been made."""
    return tuple(_records)
