"""Dispatch: numpy arrays go to the host's kernels, tensors to torch's operators or, where nothing is differentiated,
directly to the kernels of their device.

torch is used from the first tensor on; an operator for each record is registered then.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from peaccel._utils.arrays import Array, is_torch, is_traced
from peaccel.ops import _autograd, _cpu, _cuda, _numpy
from peaccel.ops._definitions import Gradients, Inputs, Op, PairOp, SampleOp, records
from peaccel.ops._torch import Torch

__all__ = [
    "as_function",
    "differentiates",
    "elementwise",
    "enable_torch",
    "rerank",
    "sample",
    "score",
    "score_backward",
    "search",
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
    compute = _torch().score if is_torch(inputs.mu1) else _numpy.score
    return compute(op, inputs, candidates, pairwise)


def score_backward(op: PairOp, weights: Array, inputs: Inputs, candidates: Array) -> Gradients:
    """The gradients of sum(weights * scores) of candidates, weights [Q, K], of tensors; they have none themselves."""
    gradients = _cuda.score_backward if _on_gpu(inputs.mu1) else _cpu.score_backward
    return gradients(op, weights, inputs, candidates)


def rerank(
    op: PairOp, inputs: Inputs, candidates: Array, k: int, codes: np.ndarray[Any, Any] | None = None
) -> tuple[Array, Array]:
    """Scores and ids [Q, k] of the best k candidates, -inf and -1 beyond them; of the inputs' kind, and detached.

    ``codes`` are those of the gallery's means, by which the host rules candidates out, if it has any.
    """
    if not is_torch(inputs.mu1):
        return _numpy.rerank(op, inputs, candidates, k, codes)
    if is_traced(inputs.mu1):  # eager calls do without an operator, which costs time
        scores, ids = _torch().rerank(op, inputs, candidates, k)
        return scores, ids
    if _on_gpu(inputs.mu1):
        return _cuda.rerank(op, inputs, candidates, k)
    return _cpu.rerank(op, inputs, candidates, k, codes)


def search(
    op: PairOp, inputs: Inputs, k: int, prune: str, packed: list[np.ndarray[Any, Any]] | None
) -> tuple[Array, Array, float | None]:
    """Scores and ids [Q, k] of the exact best k, as `rerank`, and the share of pairs scored, None on a GPU and in
    torch.compile. ``packed`` are the gallery's panels, which the host searches, if it has any."""
    if not is_torch(inputs.mu1):
        return _numpy.search(op, inputs, k, prune, packed)
    if is_traced(inputs.mu1):
        return *_torch().search(op, inputs, k, prune, packed), None
    search = _cuda.search if _on_gpu(inputs.mu1) else _cpu.search
    return search(op, inputs, k, prune, packed)


def _on_gpu(x: Array) -> bool:
    return bool(x.is_cuda)


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
        _made = Torch(torch, records())
    return _made


_made: Torch | None = None
