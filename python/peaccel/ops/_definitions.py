"""Records of kernels and of their inputs, which declare and compute nothing.

A record declares a kernel once: its name, inputs and derivatives. The calls on numpy arrays and on CUDA tensors,
torch's operators with their schemas, and the autograd functions derive from it. `_dispatch` chooses between them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from peaccel import _core
from peaccel._utils.arrays import Array

__all__ = ["Draws", "Gradients", "Inputs", "Op", "PairOp", "SampleOp", "listed", "pair_op", "records", "scores_shape"]

# -- inputs ------------------------------------------------------------------------------------------------------------


class Draws(NamedTuple):
    """The draws of a pair op's items: a seed, int64 [] >= 0 of the inputs' kind; n draws (1 .. 1024) of each item; the
    number of the gallery's first row, where it is a part of another gallery."""

    seed: Array
    n: int
    first_row: int = 0


class Inputs(NamedTuple):
    """The inputs of a pair op: arrays of one kind, dtype (float32 or float64) and device; draws for an op that draws.

    The gallery may also be float16 or bfloat16, which kernels widen as they read it.
    """

    mu1: Array  # [Q, D]
    uncertainty1: Array  # [Q], [Q, 1] or [Q, D]
    mu2: Array  # [G, D]
    uncertainty2: Array  # [G], [G, 1] or [G, D]
    shared: Array  # [S], S in 0, 1, 2, D
    draws: Draws | None = None

    @property
    def arrays(self) -> tuple[Array, Array, Array, Array, Array]:
        """The five arrays, without the draws."""
        return self.mu1, self.uncertainty1, self.mu2, self.uncertainty2, self.shared

    @property
    def of_one_set(self) -> bool:
        """Whether the gallery is the queries themselves."""
        return self.mu1 is self.mu2 and self.uncertainty1 is self.uncertainty2

    def mapped(self, function: Callable[[Array], Array]) -> Inputs:
        """The inputs with each array replaced by a function of it."""
        sides = function(self.mu1), function(self.uncertainty1), function(self.mu2), function(self.uncertainty2)
        return Inputs(*sides, function(self.shared), self.draws)


class Gradients(NamedTuple):
    """The gradients with respect to the arrays of `Inputs`, in their shapes."""

    mu1: Array
    uncertainty1: Array
    mu2: Array
    uncertainty2: Array
    shared: Array


def listed(arrays: Inputs | Gradients) -> list[Array]:
    """The five arrays as the core takes them: the shared numbers are one row [1, S]."""
    return [arrays.mu1, arrays.uncertainty1, arrays.mu2, arrays.uncertainty2, arrays.shared[None]]


def scores_shape(inputs: Inputs, candidates: Array | None, pairwise: bool) -> tuple[int, ...]:
    """The shape of an op's scores: [Q, K] for candidates, else [Q, G] with ``pairwise``, else [Q]."""
    if candidates is not None:
        return tuple(candidates.shape)
    queries = inputs.mu1.shape[0]
    return (queries, inputs.mu2.shape[0]) if pairwise else (queries,)


# -- kernels -----------------------------------------------------------------------------------------------------------

_records: list[Op | PairOp | SampleOp] = []
_KERNELS = {kernel["name"]: kernel for kernel in _core.kernels()}


class _Record:
    """The record of a kernel: it is copied and pickled by its name, and equal only to itself."""

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
        The name of the kernel and of the torch operator.
    derivative
        ``derivative(call, order, x)``: the derivative with respect to x, computed by other ops,
        ``call(name, order, x)``; None if there is none. It calls ops by name, as torch.compile cannot trace records.
    has_order
        Whether there is an order; without one, arguments (order, x) are (x) alone, here and elsewhere.
    """

    name: str
    derivative: Callable[..., Array] | None = None
    has_order: bool = True

    def __post_init__(self) -> None:
        _records.append(self)


@dataclass(frozen=True, eq=False)
class PairOp(_Record):
    """A score of pairs of items, each given by a row ``mu`` [D] and an uncertainty, with one shared row.

    The attributes come from the core's table of kernels (rust/kernels/table.rs).

    Parameters
    ----------
    name
        The name of the kernel and of the torch operator.
    formula
        The score in plain torch, ``formula(mu1, uncertainty1, mu2, uncertainty2, shared)`` on arrays that broadcast
        to [..., D] (uncertainties to [..., 1] or [..., D]) -> [...]. Second derivatives are computed from it; with None
        there are none.

    Attributes
    ----------
    uncertainty, shared
        The names of what stands beside an item's mean (its variance, concentration, scale or weight, or a row of
        them), such as "var", and of the shared row.
    layout
        The layout of a prepared gallery: "panels" for tiled products; "rows" with the mu and uncertainty of an item
        side by side in memory; None for the arrays as they are.
    samplers
        The op that draws the queries, and the one that draws the gallery; None for a side that is not drawn.
    sampled
        Whether the kernel is one of `sampled_scores`, even if no side is drawn. Galleries in half precision are then
        widened before the call, and on a GPU the best rows are selected from the scores of all rows.
    one_product
        Whether the score is monotone in one inner product or squared distance: a GPU takes the inner products of all
        pairs from its library of matrix products.
    saves
        Whether scoring can save a number of each pair for the backward pass, which then need not compute it again.
    symmetric
        Whether a pair's score is the same, to the last bit, when its two items change places.
    by_distance
        Whether a score of one inner product depends on the distance of the means alone, which a shift of all leaves.
    per_item
        Whether a GPU makes numbers of each query, and of each gallery item, once for all of its pairs.
    compares
        By what a score compares draws: "directions", "distances" or "densities", at "stretched" draws or at draws.
    draws
        Whether the items of a side are drawn.
    """

    name: str
    formula: Callable[..., Array] | None = None
    uncertainty: str = field(init=False)
    shared: str = field(init=False)
    layout: Literal["panels", "rows"] | None = field(init=False)
    samplers: tuple[str | None, str | None] = field(init=False)
    sampled: bool = field(init=False)
    one_product: bool = field(init=False)
    saves: bool = field(init=False)
    symmetric: bool = field(init=False)
    by_distance: bool = field(init=False)
    per_item: tuple[bool, bool] = field(init=False)
    compares: Literal["directions", "distances", "stretched", "densities"] | None = field(init=False)
    draws: bool = field(init=False)

    def __post_init__(self) -> None:
        for name, value in _KERNELS[self.name].items():
            object.__setattr__(self, name, tuple(value) if isinstance(value, list) else value)
        object.__setattr__(self, "draws", any(self.samplers))
        _records.append(self)


@dataclass(frozen=True, eq=False)
class SampleOp(_Record):
    """Draws of N items, each given by a row ``mu`` [D] and an uncertainty; a function of its seed.

    Parameters
    ----------
    name
        The name of the kernel and of the torch operator.
    uncertainty
        The name of the uncertainty: "var" or "kappa".
    """

    name: str
    uncertainty: str

    def __post_init__(self) -> None:
        _records.append(self)


def pair_op(formula: Callable[..., Array]) -> PairOp:
    """The record of the kernel whose name is that of the formula, a function in torch."""
    return PairOp(formula.__name__, formula)


def records() -> tuple[Op | PairOp | SampleOp, ...]:
    """All records that have been made."""
    return tuple(_records)
