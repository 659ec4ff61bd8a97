"""Dispatch: numpy arrays go to the host's kernels, tensors to torch's operators or, where nothing is differentiated,
directly to the kernels of their device. `kernels_of` decides it once for a call.

torch is used from the first tensor on; an operator for each record is registered then.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from peaccel._utils.arrays import Array, is_torch, is_traced
from peaccel.ops import _autograd, _cpu, _cuda, _numpy
from peaccel.ops._definitions import Gradients, Inputs, Op, PairOp, SampleOp, records
from peaccel.ops._torch import Torch

__all__ = [
    "Kernels",
    "as_function",
    "define",
    "differentiates",
    "elementwise",
    "enable_torch",
    "kernels_of",
    "sample",
    "score",
    "scores_and_gradients",
    "transformed",
]


def elementwise(op: Op, *arguments: Array) -> Array:
    """The values of an op for order and x; differentiable in torch with respect to x."""
    *_, x = arguments
    return _torch().elementwise(op, *arguments) if is_torch(x) else _numpy.elementwise(op, *arguments)


def as_function(op: Op) -> Callable[..., Array]:
    """The op as a function of order and x."""
    return partial(elementwise, op)


def sample(op: SampleOp, mu: Array, uncertainty: Array, seed: Array, n: int, first_row: int, stream: int) -> Array:
    """n draws of each of N items, [n, N, D]; differentiable once in torch.

    mu [N, D] and uncertainty [N] or [N, D] have one kind, dtype (float32 or float64) and device; seed is int64 [] >= 0
    of that kind and device. Rows are numbered from ``first_row``; ``stream`` is a number of rust/rng.rs.
    """
    compute = _torch().sample if is_torch(mu) else _numpy.sample
    return compute(op, mu, uncertainty, seed, n, first_row, stream)


class Kernels(NamedTuple):
    """The functions that score pairs for arrays of one library on one device.

    ``score(op, inputs, candidates, pairwise)`` differentiates in torch. ``rerank(op, inputs, candidates, k, codes)``
    gives scores and ids [Q, k] of the best k candidates, -inf and -1 beyond them, and
    ``search(op, inputs, k, prune, panels)`` those of all rows, with the share of pairs scored, None where it is not
    known; both are detached. ``select(scores, ids, k)`` sorts, where a kernel does: higher scores, then NaN, then ids
    -1, ties by the lower id. ``codes`` and ``panels`` are what a prepared gallery has for these kernels, if any:
    ``panels(op, mu, uncertainty, coded)`` gives what search reads of a gallery of one inner product, with codes or
    not.
    """

    score: Callable[[PairOp, Inputs, Array | None, bool], Array]
    rerank: Callable[..., tuple[Array, Array]]
    search: Callable[..., tuple[Array, Array, float | None]]
    panels: Callable[[PairOp, Array, Array, bool], list[Array] | None]
    select: Callable[[Array, Array, int], tuple[Array, Array]] | None = None


def kernels_of(x: Array) -> Kernels:
    """The kernels for arrays like x; torch's operators where torch.compile traces it, which cost time elsewhere."""
    if isinstance(x, np.ndarray):
        return _HOST
    if is_traced(x):
        return _TRACED
    return _ON_GPU if _on_gpu(x) else _ON_CPU


def _on_gpu(x: Array) -> bool:
    return bool(x.is_cuda)


def _score_tensors(op: PairOp, inputs: Inputs, candidates: Array | None, pairwise: bool) -> Array:
    return _torch().score(op, inputs, candidates, pairwise)


def _rerank_traced(op: PairOp, inputs: Inputs, candidates: Array, k: int, codes: Array | None) -> tuple[Array, Array]:
    scores, ids = _torch().rerank(op, inputs, candidates, k)
    return scores, ids


def _search_traced(
    op: PairOp, inputs: Inputs, k: int, prune: str, panels: list[Array] | None
) -> tuple[Array, Array, float | None]:
    return *_torch().search(op, inputs, k, prune, panels), None


def _no_panels(op: PairOp, mu: Array, uncertainty: Array, coded: bool) -> None:
    return None


def _panels_of_host(op: PairOp, mu: Array, uncertainty: Array, coded: bool) -> list[Array]:
    return _numpy.panels(mu, uncertainty, coded)


def _panels_of_gpu(op: PairOp, mu: Array, uncertainty: Array, coded: bool) -> list[Array]:
    return _cuda.panels(op, mu)


_HOST = Kernels(_numpy.score, _numpy.rerank, _numpy.search, _panels_of_host)
_ON_CPU = Kernels(_score_tensors, _cpu.rerank, _cpu.search, _panels_of_host)
_ON_GPU = Kernels(_score_tensors, _cuda.rerank, _cuda.search, _panels_of_gpu, _cuda.select)
_TRACED = Kernels(_score_tensors, _rerank_traced, _search_traced, _no_panels)


def score(op: PairOp, inputs: Inputs, candidates: Array | None = None, *, pairwise: bool = False) -> Array:
    """Scores of pairs; differentiable in torch.

    Parameters
    ----------
    op, inputs
        The score and its inputs.
    candidates
        Rows of the gallery for each query, int64 [Q, K]; -1 for none.
    pairwise
        Without candidates: whether all pairs are scored, or else the pairs of query i and gallery row i.

    Returns
    -------
    Scores [Q, K] of candidates, [Q, G] of all pairs, or [Q].
    """
    return kernels_of(inputs.mu1).score(op, inputs, candidates, pairwise)


def scores_and_gradients(
    op: PairOp, weights: Array, inputs: Inputs, candidates: Array | None = None, *, few: bool = False, wanted: int
) -> tuple[Array, Gradients | None]:
    """Scores of tensors' candidates, and the gradients of sum(weights * scores) if any are wanted, by the core's flags.

    Without candidates the scores [N, N] are those of pairs i < j of one set that have a weight, and others any numbers;
    ``few`` says that most have none.
    """
    kernels: Any = _cuda if _on_gpu(inputs.mu1) else _cpu
    if candidates is None:
        scores, gradients = kernels.scores_and_gradients(op, weights, inputs, few, bool(wanted))
        return scores, gradients
    if not wanted:
        return kernels.score(op, inputs, candidates), None
    if op.saves:
        scores, saved = kernels.score_saving(op, inputs, candidates, False)
    else:
        scores, saved = kernels.score(op, inputs, candidates), None
    return scores, kernels.score_backward(op, weights, inputs, candidates, False, wanted, saved)


# -- torch -------------------------------------------------------------------------------------------------------------


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


def define(
    name: str, arguments: str, returns: str, compute: Callable[..., Any], fake: Callable[..., Any]
) -> Callable[..., Any]:
    """Registers and returns an operator of torch that calls others, on every device; autograd does not see into it."""
    operator: Callable[..., Any] = _torch().define(name, arguments, returns, compute, fake)
    return operator


def differentiates(inputs: Inputs) -> bool:
    """Whether torch may differentiate what is computed from these inputs."""
    return is_torch(inputs.mu1) and _torch().differentiates(inputs.arrays)


def transformed(x: Array) -> bool:
    """Whether x may be a tensor under a transform of torch.func, or in forward mode."""
    return is_torch(x) and _autograd.transformed(sys.modules["torch"])


def _torch() -> Torch:
    """The torch side of all records; made once, when first needed."""
    global _made  # noqa: PLW0603  (a cache that dynamo can trace)
    if _made is None:
        import torch

        if torch.compiler.is_compiling():
            raise RuntimeError("peaccel: call peaccel.enable_torch() before torch.compile (torch was imported later)")
        with _making:  # torch registers a library once
            _made = _made or Torch(torch, records())
    return _made


_made: Torch | None = None
_making = threading.Lock()
