"""What a kernel is to numpy and to torch.

A record declares a kernel once, its name, inputs and derivatives; the numpy call, the torch operator with its schema
and fake, and the autograd functions derive from it. In torch a forward kernel is an operator of its own and
differentiation is an ``autograd.Function`` around it: the form that works under ``torch.func``, double backward and
``torch.compile`` at the lowest cost per call. Gradients exist to second order, in forward and in reverse mode; of what
is drawn to first order, in reverse mode. Beyond, they are right or raise.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from peaccel import _core
from peaccel.ops import _cuda
from peaccel.ops._array import Array, adjacent, as_numpy, as_stored, is_torch, is_traced, namespace
from peaccel.ops._seed import SEEDS, as_integer

__all__ = ["Op", "PairOp", "SampleOp", "differentiates", "enable_torch", "pair_op", "records", "transformed"]

_records: list[Op | PairOp | SampleOp] = []
_KERNELS = {kernel["name"]: kernel for kernel in _core.kernels()}


class _Record:
    """A kernel's record: known by its name, copied and pickled by it, and equal to itself alone."""

    name: str

    def __reduce__(self) -> tuple[Callable[[str], Any], tuple[str]]:
        return _named, (self.name,)


def _named(name: str) -> Any:
    return next(record for record in _records if record.name == name)


def _buffer(array: Array) -> np.ndarray[Any, Any]:
    """The array as the core reads it: native, aligned, rows of adjacent (or one repeated) elements; else a copy."""
    x: np.ndarray[Any, Any] = adjacent(as_stored(array))
    if x.flags.aligned and x.dtype.isnative:
        return x
    return np.array(x, dtype=x.dtype.newbyteorder("="), order="C")


def _empty(like: np.ndarray[Any, Any], allocator: Array) -> np.ndarray[Any, Any]:
    """Memory of a shape and dtype, of the allocator of an array's library: torch's keeps what steps free."""
    if is_torch(allocator):
        memory: np.ndarray[Any, Any] = allocator.new_empty(like.shape).numpy()
        return memory
    return np.empty(like.shape, like.dtype)


def _on_gpu(x: Array) -> bool:
    return is_torch(x) and x.is_cuda


def _as_kind(like: Array, arrays: tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]) -> tuple[Array, Array]:
    if not is_torch(like):
        return arrays
    from_numpy = sys.modules["torch"].from_numpy
    return from_numpy(arrays[0]), from_numpy(arrays[1])


def _checked_seed(name: str, seed: Any) -> int:
    return as_integer(name, "seed", int(seed), *SEEDS)


@dataclass(frozen=True, eq=False)
class Op(_Record):
    """A function of an order (no gradient) and x, element by element.

    Parameters
    ----------
    name
        Of the kernel and of the torch operator.
    derivative
        ``derivative(call, order, x)``: the derivative in x, made of other ops by ``call(name, order, x)``; None where
        there is none. Names, since torch.compile cannot see through records.
    """

    name: str
    derivative: Callable[[Callable[..., Array], Array, Array], Array] | None = None

    def __post_init__(self) -> None:
        _records.append(self)

    def __call__(self, order: Array, x: Array) -> Array:
        """order float64, x float32 or float64, of one shape or broadcast against each other; same kind of arrays."""
        return _torch().elementwise(self, order, x) if is_torch(x) else self.numpy(order, x)

    def numpy(self, order: np.ndarray[Any, Any], x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """The values for numpy arrays."""
        shape = np.broadcast_shapes(order.shape, x.shape)
        x = np.broadcast_to(x, shape)
        if order.size != 1:
            order = np.broadcast_to(order, shape)
        out = np.empty(x.shape, x.dtype.newbyteorder("="))
        flat = np.ascontiguousarray(x, dtype=out.dtype).reshape(-1)
        _core.elementwise(self.name, np.ascontiguousarray(order, dtype=np.float64).reshape(-1), flat, out.reshape(-1))
        return out


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
        The op that draws the queries, and the one that draws the gallery; None where an item is its own only draw. With
        one, the inputs go on with a seed and the number of draws of each.
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

    def scores(self, inputs: Sequence[Array], candidates: Array | None = None, *, pairwise: bool = False) -> Array:
        """Scores of pairs; differentiable in torch.

        Parameters
        ----------
        inputs
            mu1 [Q, D], extra1 [Q], [Q, 1] or [Q, D], mu2 [G, D], extra2 likewise, shared [S] with S in 0, 1, 2, D: one
            kind, dtype (float32 or float64) and device. Of an op that draws, then seed, int64 [] of that kind, >= 0,
            and n, 1 .. 1024.
        candidates
            int64 [Q, K] rows of the gallery, -1 = none; else all pairs with ``pairwise``, else rows i with i.

        Returns
        -------
        [Q, K], [Q, G] or [Q].
        """
        if is_torch(inputs[0]):
            return _torch().scores(self, inputs, candidates, pairwise)
        return self.numpy_scores(inputs, candidates, pairwise)

    def numpy_scores(
        self,
        inputs: Sequence[Array],
        candidates: Array | None,
        pairwise: bool,
        *,
        kept: np.ndarray[Any, Any] | None = None,
    ) -> np.ndarray[Any, Any]:
        """`scores` for numpy arrays (torch CPU tensors are read in place); writes what is kept."""
        arrays = self._buffers(inputs)
        shape: tuple[int, ...] = (len(arrays[0]), len(arrays[2])) if pairwise else (len(arrays[0]),)
        if candidates is not None:
            candidates = _buffer(candidates)
            shape = candidates.shape
        out = np.empty(shape, arrays[0].dtype)
        _core.score(self.name, arrays, self._draws(inputs), candidates, out, kept)
        return out

    def numpy_backward(
        self,
        weights: Array,
        inputs: Sequence[Array],
        candidates: Array | None,
        pairwise: bool,
        wanted: int = _core.EVERY_GRADIENT,
        *,
        kept: Array | None = None,
    ) -> list[np.ndarray[Any, Any]]:
        """The gradients of sum(weights * scores) by the five inputs, in their shapes; 0 or right where not wanted."""
        arrays = [np.ascontiguousarray(x) for x in self._buffers(inputs)]
        out = [_empty(x, inputs[0]) for x in arrays]
        weights = np.ascontiguousarray(as_numpy(weights))
        candidates = None if candidates is None else _buffer(candidates)
        kept = None if kept is None else as_numpy(kept)
        _core.score_backward(self.name, arrays, self._draws(inputs), candidates, weights, out, wanted, kept)
        return [*out[:4], out[4].reshape(-1)]

    def rerank(self, inputs: Sequence[Array], candidates: Array, k: int) -> tuple[Array, Array]:
        """Scores and ids [Q, k] of the best k candidates, -inf and -1 beyond them; of the inputs' kind, detached."""
        if is_traced(inputs[0]):  # nothing else pays for an operator
            scores, ids = _torch().rerank(self, inputs, candidates, k)
            return scores, ids
        if _on_gpu(inputs[0]):
            return _cuda.rerank(self, inputs, candidates, k)
        return _as_kind(inputs[0], self.numpy_rerank(inputs, as_numpy(candidates), k))

    def search(
        self, inputs: Sequence[Array], packed: list[np.ndarray[Any, Any]] | None, k: int, prune: str
    ) -> tuple[tuple[Array, Array], float | None]:
        """Scores and ids [Q, k] of the exact best k, as `rerank`; the share of pairs scored, None on a GPU and in
        torch.compile."""
        if is_traced(inputs[0]):
            return _torch().search(self, inputs, packed, k, prune), None
        if _on_gpu(inputs[0]):
            return _cuda.search(self, inputs, k, prune), None
        *best, scored = self.numpy_search(inputs, packed, k, prune)
        return _as_kind(inputs[0], (best[0], best[1])), scored

    def numpy_rerank(
        self, inputs: Sequence[Array], candidates: np.ndarray[Any, Any], k: int
    ) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """Scores and ids [Q, k] of the best k candidates, -inf and -1 beyond them."""
        arrays = self._buffers(inputs)
        scores = np.empty((len(candidates), k), arrays[0].dtype)
        ids = np.empty(scores.shape, np.int64)
        _core.rerank(self.name, arrays, self._draws(inputs), _buffer(candidates), scores, ids)
        return scores, ids

    def numpy_search(
        self, inputs: Sequence[Array], packed: list[np.ndarray[Any, Any]] | None, k: int, prune: str
    ) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any], float]:
        """Scores and ids [Q, k] of the exact best k, -inf and -1 beyond the gallery; the share of pairs scored."""
        arrays = self._buffers(inputs)
        scores = np.empty((len(arrays[0]), k), arrays[0].dtype)
        ids = np.empty(scores.shape, np.int64)
        return scores, ids, _core.search(self.name, arrays, self._draws(inputs), packed, prune, scores, ids)

    @staticmethod
    def panels(mu: Array, extra: Array) -> list[np.ndarray[Any, Any]]:
        """The gallery's means [G, D] as panels, ordered by their extras [G]; in that order squared norms; the order."""
        mu = np.ascontiguousarray(_buffer(mu))
        order = np.argsort(as_numpy(extra), kind="stable").astype(np.int64, copy=False)
        panels = np.empty((_core.panel_rows(len(mu), mu.dtype == np.float64), mu.shape[1]), mu.dtype)
        norms = np.empty(len(mu), mu.dtype)
        _core.pack(mu, order, panels, norms)
        return [panels, norms, order]

    @staticmethod
    def rows(mu: Array, extra: Array) -> Array:
        """mu and extra, both [G, D], as [G, 2 D]: views of the halves are what the kernel reads."""
        return namespace(mu).concatenate((mu, extra), -1)

    def _draws(self, inputs: Sequence[Array]) -> tuple[int, int] | None:
        if not self.draws:
            return None
        seed, n = inputs[5:]
        return _checked_seed(self.name, seed), n

    @staticmethod
    def _buffers(inputs: Sequence[Array]) -> list[np.ndarray[Any, Any]]:
        mu1, extra1, mu2, extra2, shared = map(_buffer, inputs[:5])
        # A row of mu is never constant to the kernels: they take D from it.
        mu1, mu2 = (np.ascontiguousarray(x) if 0 in x.strides else x for x in (mu1, mu2))
        return [mu1, extra1, mu2, extra2, np.ascontiguousarray(shared)[None]]


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

    def __call__(self, mu: Array, extra: Array, seed: Array, n: int, first_row: int, stream: int) -> Array:
        """Draws [n, N, D]; differentiable once in torch.

        mu [N, D] and extra [N] or [N, D] of one kind, dtype (float32 or float64) and device; seed int64 [] of that
        kind, >= 0; rows are numbered from first_row; stream as in rust/rng.rs.
        """
        if is_torch(mu):
            return _torch().sample(self, mu, extra, seed, n, first_row, stream)
        return self.numpy(mu, extra, int(seed), n, first_row, stream)

    def numpy(self, mu: Array, extra: Array, seed: int, n: int, first_row: int, stream: int) -> np.ndarray[Any, Any]:
        """The draws for numpy arrays (torch CPU tensors are read in place)."""
        seed = _checked_seed(self.name, seed)
        mu, extra = np.ascontiguousarray(_buffer(mu)), np.ascontiguousarray(_buffer(extra))
        out = np.empty((n, *mu.shape), mu.dtype)
        _core.sample(self.name, mu, extra, seed, first_row, stream, out)
        return out

    def numpy_backward(
        self, weights: Array, mu: Array, extra: Array, seed: int, first_row: int, stream: int
    ) -> list[np.ndarray[Any, Any]]:
        """The gradients of sum(weights * draws) with respect to mu and extra."""
        given, mu, extra = mu, np.ascontiguousarray(_buffer(mu)), np.ascontiguousarray(_buffer(extra))
        out = [_empty(mu, given), _empty(extra, given)]
        weights = np.ascontiguousarray(as_numpy(weights))
        _core.sample_backward(self.name, mu, extra, seed, first_row, stream, weights, out)
        return out


def pair_op(formula: Callable[..., Array]) -> PairOp:
    """The record of the kernel that a formula in torch is named after."""
    return PairOp(formula.__name__, formula)


def records() -> tuple[Op | PairOp | SampleOp, ...]:
    """All that have been made."""
    return tuple(_records)


def enable_torch() -> None:
    """Registers the operators ``torch.ops.peaccel.*`` now, rather than with the first tensor that needs one.

    Examples
    --------
    >>> import torch
    >>> pe.enable_torch()
    >>> hasattr(torch.ops.peaccel, "mls_isotropic")
    True
    """
    _torch()


def differentiates(arrays: Sequence[Array]) -> bool:
    """Whether torch may ask for derivatives of what is computed of these."""
    return is_torch(arrays[0]) and bool(_torch().differentiates(arrays))


def transformed(x: Array) -> bool:
    """Whether x may be a tensor that a transform of torch.func, or forward mode, is at work on."""
    return is_torch(x) and bool(_torch().transformed())


def _torch() -> Any:
    """The torch side of all records; made once, when first needed."""
    global _made  # noqa: PLW0603  (a cache that dynamo can see through)
    if _made is None:
        import torch

        if torch.compiler.is_compiling():
            raise RuntimeError("peaccel: call peaccel.enable_torch() before torch.compile (torch was imported later)")
        from peaccel.ops._torch import Torch

        _made = Torch(torch, _records)
    return _made


_made: Any = None
