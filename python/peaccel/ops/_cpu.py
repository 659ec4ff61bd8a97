"""Calls of the host's kernels on torch CPU tensors, which are read in place; torch allocates the gradients."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from peaccel import _core
from peaccel._utils.arrays import Array, Numpy, as_numpy, as_stored
from peaccel.ops import _numpy
from peaccel.ops._definitions import Gradients, Inputs, Op, PairOp, SampleOp, scores_shape

__all__ = [
    "elementwise",
    "rerank",
    "sample",
    "sample_backward",
    "score",
    "score_backward",
    "score_saving",
    "scores_and_gradients",
    "search",
]


def _tensor(x: Any) -> Array:
    """A tensor that shares the memory of a numpy array."""
    return sys.modules["torch"].from_numpy(x)


def _stored(x: Array | None) -> Any:
    return None if x is None else as_stored(x)


def elementwise(op: Op, *arguments: Array) -> Array:
    """As `_numpy.elementwise`."""
    return _tensor(_numpy.elementwise(op, *map(as_numpy, arguments)))


def sample(op: SampleOp, mu: Array, uncertainty: Array, seed: Array, n: int, first_row: int, stream: int) -> Array:
    """As `_numpy.sample`."""
    return _tensor(_numpy.sample(op, as_stored(mu), as_stored(uncertainty), as_stored(seed), n, first_row, stream))


def sample_backward(
    op: SampleOp, weights: Array, mu: Array, uncertainty: Array, seed: Array, first_row: int, stream: int
) -> tuple[Array, Array]:
    """As `_numpy.sample_backward`."""
    # torch's allocator, unlike numpy's, reuses the memory that earlier training steps freed; likewise below.
    by_mu, by_uncertainty = mu.new_empty(mu.shape), uncertainty.new_empty(uncertainty.shape)
    weights, mu, uncertainty, seed = map(as_stored, (weights, mu, uncertainty, seed))
    _numpy.sample_backward(
        op, weights, mu, uncertainty, seed, first_row, stream, out=(by_mu.numpy(), by_uncertainty.numpy())
    )
    return by_mu, by_uncertainty


def score(
    op: PairOp, inputs: Inputs, candidates: Array | None = None, pairwise: bool = False, *, saved: Array | None = None
) -> Array:
    """As `_numpy.score`."""
    return _tensor(_numpy.score(op, inputs, candidates, pairwise, saved=_stored(saved)))


def score_saving(op: PairOp, inputs: Inputs, candidates: Array | None, pairwise: bool) -> tuple[Array, Array]:
    """Scores, and the number of each pair that is saved for the backward pass."""
    saved = inputs.mu1.new_empty(scores_shape(inputs, candidates, pairwise))
    return score(op, inputs, candidates, pairwise, saved=saved), saved


def score_backward(
    op: PairOp,
    weights: Array,
    inputs: Inputs,
    candidates: Array | None = None,
    pairwise: bool = False,
    wanted: int = _core.EVERY_GRADIENT,
    saved: Array | None = None,
) -> Gradients:
    """As `_numpy.score_backward`."""
    out = Gradients(*(x.new_empty(x.shape) for x in inputs.arrays))
    memory = Gradients(*(x.numpy() for x in out))
    arguments = as_stored(weights), inputs, candidates, pairwise, wanted
    _numpy.score_backward(op, *arguments, saved=_stored(saved), out=memory)
    return out


def scores_and_gradients(
    op: PairOp, weights: Array, inputs: Inputs, few: bool, wanted: bool
) -> tuple[Array, Gradients | None]:
    """As `_cuda.scores_and_gradients`, of all pairs."""
    gradients = score_backward(op, weights, inputs, None, True) if wanted else None
    return score(op, inputs, None, True), gradients


def rerank(op: PairOp, inputs: Inputs, candidates: Array, k: int, codes: Numpy | None = None) -> tuple[Array, Array]:
    """As `_numpy.rerank`."""
    scores, ids = _numpy.rerank(op, inputs, candidates, k, codes)
    return _tensor(scores), _tensor(ids)


def search(
    op: PairOp, inputs: Inputs, k: int, prune: str = "auto", packed: Sequence[Array] | None = None
) -> tuple[Array, Array, float]:
    """As `_numpy.search`; the panels may be numpy arrays or tensors."""
    panels = [as_stored(x) for x in packed or ()]
    scores, ids, scored = _numpy.search(op, inputs, k, prune, panels or None)
    return _tensor(scores), _tensor(ids), scored
