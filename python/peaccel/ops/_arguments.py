"""The flat argument lists of torch's operators for pair ops, in the order of their schemas.

Saved programs depend on that order, and no other module knows it. Schemas, packing and unpacking derive
from the two records below.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from peaccel._utils.arrays import Array
from peaccel.ops._definitions import Draws, Gradients, Inputs, PairOp

__all__ = ["RANKED", "Signature", "pack", "pack_ranked", "unpack_ranked"]


class _Plain(NamedTuple):
    """The arguments of the operators of an op without draws: tensors, then numbers."""

    mu1: Array
    uncertainty1: Array
    mu2: Array
    uncertainty2: Array
    shared: Array
    candidates: Array | None
    pairwise: bool


class _Drawn(NamedTuple):
    """The arguments of the operators of an op that draws items: tensors, then numbers."""

    mu1: Array
    uncertainty1: Array
    mu2: Array
    uncertainty2: Array
    shared: Array
    candidates: Array | None
    seed: Array
    pairwise: bool
    n: int
    first_row: int


_NUMBERS = {"pairwise": "bool", "n": "int", "first_row": "int"}
_TYPES = {"candidates": "Tensor?", **_NUMBERS}  # types in schemas; all other arguments are tensors


class Signature:
    """The arguments of a pair op's operators.

    Attributes
    ----------
    schema
        The types and names of the arguments, in the syntax of torch's schemas.
    numbers
        How many of the arguments, at the end, are not tensors.
    others
        How many of the arguments, after the arrays, have no gradient.
    """

    def __init__(self, op: PairOp) -> None:
        self._flat = _Drawn if op.draws else _Plain
        names = self._flat._fields
        called = {"uncertainty1": f"{op.uncertainty}1", "uncertainty2": f"{op.uncertainty}2", "shared": op.shared}
        self.schema = ", ".join(f"{_TYPES.get(name, 'Tensor')} {called.get(name, name)}" for name in names)
        self.numbers = sum(name in _NUMBERS for name in names)
        self.others = len(names) - len(Gradients._fields)

    def unpack(self, arguments: Sequence[Any]) -> tuple[Inputs, Array | None, bool]:
        """The inputs, the candidates, and whether all pairs are scored, from the arguments of an operator."""
        fields = self._flat(*arguments)
        draws = Draws(fields.seed, fields.n, fields.first_row) if isinstance(fields, _Drawn) else None
        inputs = Inputs(fields.mu1, fields.uncertainty1, fields.mu2, fields.uncertainty2, fields.shared, draws)
        return inputs, fields.candidates, fields.pairwise


def pack(inputs: Inputs, candidates: Array | None, pairwise: bool) -> tuple[Any, ...]:
    """The arguments of an operator for one call."""
    if inputs.draws is None:
        return _Plain(*inputs.arrays, candidates, pairwise)
    seed, *numbers = inputs.draws
    return _Drawn(*inputs.arrays, candidates, seed, pairwise, *numbers)


# -- rankings ----------------------------------------------------------------------------------------------------------

# The first arguments of the operators that rank by any op.
RANKED = "str name, Tensor[] items, Tensor? seed, int n, int first_row"


def pack_ranked(op: PairOp, inputs: Inputs) -> tuple[str, list[Array], Array | None, int, int]:
    """The first arguments of a call that ranks, detached from autograd."""
    seed, n, first_row = inputs.draws or (None, 0, 0)
    return op.name, [x.detach() for x in inputs.arrays], seed, n, first_row


def unpack_ranked(items: Sequence[Array], seed: Array | None, n: int, first_row: int) -> Inputs:
    """The inputs of a call that ranks, from its arguments."""
    mu1, uncertainty1, mu2, uncertainty2, shared = items
    draws = None if seed is None else Draws(seed, n, first_row)
    return Inputs(mu1, uncertainty1, mu2, uncertainty2, shared, draws)
