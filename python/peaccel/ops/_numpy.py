"""Calls of the host's kernels on numpy arrays: brings inputs into the layout that the core reads, allocates outputs.

The inputs of pairs may be torch's CPU tensors too, which are read in place; outputs are numpy arrays.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np

from peaccel import _core
from peaccel._utils.arrays import Array, as_stored, lies_adjacent, widened
from peaccel._utils.seeds import SEEDS, as_integer
from peaccel.ops._definitions import Draws, Gradients, Inputs, Op, PairOp, SampleOp, listed, scores_shape

__all__ = ["codes", "elementwise", "panels", "rerank", "sample", "sample_backward", "score", "score_backward", "search"]

Numpy: TypeAlias = np.ndarray[Any, Any]

_NO_ORDER = np.zeros(())  # the order for functions of x alone, whose kernels ignore it


def _buffer(x: Array, *, repeats: bool = True) -> Numpy:
    """An array as the core reads it: native, aligned, rows of adjacent elements, or of one repeated; else a copy.

    Rows of means and of candidates must not be of one repeated, since the core takes D and K from what lies in memory.
    """
    stored: Numpy = x if type(x) is np.ndarray and x.dtype.kind != "V" else as_stored(x)
    flags = stored.flags
    lies = (flags.c_contiguous or lies_adjacent(stored)) and (repeats or 0 not in stored.strides)
    if lies and flags.aligned and stored.dtype.isnative:
        return stored
    return np.array(stored, dtype=stored.dtype.newbyteorder("="), order="C")


def _checked_seed(op: PairOp | SampleOp, seed: Any) -> int:
    return as_integer(op.name, "seed", int(seed), *SEEDS)


# -- elements and draws ------------------------------------------------------------------------------------------------


def elementwise(op: Op, *arguments: Numpy) -> Numpy:
    """The values of a function for order and x, which broadcast."""
    order, x = arguments if op.has_order else (_NO_ORDER, *arguments)
    shape = np.broadcast_shapes(order.shape, x.shape)
    x = np.broadcast_to(x, shape)
    if order.size != 1:
        order = np.broadcast_to(order, shape)
    out = np.empty(x.shape, x.dtype.newbyteorder("="))
    flat = np.require(x, out.dtype, ["C", "A"]).reshape(-1)
    _core.elementwise(op.name, np.require(order, np.float64, ["C", "A"]).reshape(-1), flat, out.reshape(-1))
    return out


def sample(op: SampleOp, mu: Numpy, uncertainty: Numpy, seed: Any, n: int, first_row: int, stream: int) -> Numpy:
    """n draws of each of N items, [n, N, D]."""
    seed = _checked_seed(op, seed)
    mu, uncertainty = np.ascontiguousarray(_buffer(mu)), np.ascontiguousarray(_buffer(uncertainty))
    out = np.empty((n, *mu.shape), mu.dtype)
    _core.sample(op.name, mu, uncertainty, seed, first_row, stream, out)
    return out


def sample_backward(
    op: SampleOp,
    weights: Numpy,
    mu: Numpy,
    uncertainty: Numpy,
    seed: Any,
    first_row: int,
    stream: int,
    *,
    out: tuple[Numpy, Numpy] | None = None,
) -> tuple[Numpy, Numpy]:
    """The gradients of sum(weights * draws) with respect to mu and uncertainty, written to ``out`` if that is given."""
    seed = _checked_seed(op, seed)
    mu, uncertainty = np.ascontiguousarray(_buffer(mu)), np.ascontiguousarray(_buffer(uncertainty))
    out = (np.empty_like(mu), np.empty_like(uncertainty)) if out is None else out
    _core.sample_backward(op.name, mu, uncertainty, seed, first_row, stream, np.ascontiguousarray(weights), [*out])
    return out


# -- pairs -------------------------------------------------------------------------------------------------------------


def _buffers(op: PairOp, inputs: Inputs) -> tuple[list[Numpy], Draws | None]:
    """The five arrays as the core reads them, of which the shared numbers are one row [1, S], and a checked seed."""
    mu1, uncertainty1, mu2, uncertainty2, shared, draws = inputs
    queries = _buffer(mu1, repeats=False), _buffer(uncertainty1)
    of_one_set = mu2 is mu1 and uncertainty2 is uncertainty1  # the core sees that by where they lie
    gallery = queries if of_one_set else (_buffer(mu2, repeats=False), _buffer(uncertainty2))
    checked = None if draws is None else draws._replace(seed=_checked_seed(op, draws.seed))
    return [*queries, *gallery, np.ascontiguousarray(_buffer(shared))[None]], checked


def score(
    op: PairOp,
    inputs: Inputs,
    candidates: Array | None = None,
    pairwise: bool = False,
    *,
    saved: Numpy | None = None,
) -> Numpy:
    """Scores of each query with its candidates [Q, K], of all pairs [Q, G], or of rows i with i [Q].

    ``saved``, of the scores' shape, is filled with the numbers that an op that `saves` leaves for the backward pass.
    """
    arrays, draws = _buffers(op, inputs)
    candidates = None if candidates is None else _buffer(candidates, repeats=False)
    out = np.empty(scores_shape(inputs, candidates, pairwise), arrays[0].dtype)
    _core.score(op.name, arrays, draws, candidates, out, saved)
    return out


def score_backward(
    op: PairOp,
    weights: Numpy,
    inputs: Inputs,
    candidates: Array | None = None,
    pairwise: bool = False,
    wanted: int = _core.EVERY_GRADIENT,
    *,
    saved: Numpy | None = None,
    out: Gradients | None = None,
) -> Gradients:
    """The gradients of sum(weights * scores), written to ``out`` if that is given.

    Those that are not ``wanted`` are 0 or correct.
    """
    arrays, draws = _buffers(op, inputs)
    arrays = [np.ascontiguousarray(x) for x in arrays]
    out = Gradients(*(np.empty(x.shape, arrays[0].dtype) for x in inputs.arrays)) if out is None else out
    candidates = None if candidates is None else _buffer(candidates, repeats=False)
    weights = np.ascontiguousarray(weights)
    _core.score_backward(op.name, arrays, draws, candidates, weights, listed(out), wanted, saved)
    return out


def rerank(op: PairOp, inputs: Inputs, candidates: Array, k: int, codes: Numpy | None = None) -> tuple[Numpy, Numpy]:
    """The scores and ids [Q, k] of the best k candidates; -inf and -1 where there are fewer than k.

    ``codes`` are those of the gallery's means, if it has any: by them candidates are ruled out, with the same result.
    """
    arrays, draws = _buffers(op, inputs)
    scores = np.empty((len(candidates), k), arrays[0].dtype)
    ids = np.empty(scores.shape, np.int64)
    _core.rerank(op.name, arrays, draws, _buffer(candidates, repeats=False), codes, scores, ids)
    return scores, ids


def search(
    op: PairOp, inputs: Inputs, k: int, prune: str = "auto", packed: list[Numpy] | None = None
) -> tuple[Numpy, Numpy, float]:
    """The scores and ids [Q, k] of the exact best k (-inf and -1 where there are fewer), and the share of pairs scored.

    ``packed`` are the gallery's `panels`, if it was prepared; without them the search packs the gallery itself.
    """
    arrays, draws = _buffers(op, inputs)
    scores = np.empty((len(inputs.mu1), k), arrays[0].dtype)
    ids = np.empty(scores.shape, np.int64)
    return scores, ids, _core.search(op.name, arrays, draws, packed, prune, scores, ids)


def panels(mu: Array, uncertainty: Array, coded: bool = False) -> list[Numpy]:
    """Panels of the gallery's means [G, D] by uncertainty [G], their squared norms in that order, and the order.

    The panels have the dtype of the means as it is stored, the norms that of scores. With ``coded`` there are 8-bit
    codes in the same order too, by which a search rules rows out, where this processor is fast at them.
    """
    stored = np.ascontiguousarray(_buffer(mu))
    double = stored.dtype == np.float64
    order = np.argsort(as_stored(widened(uncertainty)), kind="stable").astype(np.int64, copy=False)
    panels = np.empty(_core.panels_shape(len(stored), stored.shape[1], double), stored.dtype)
    norms = np.empty(len(stored), np.float64 if double else np.float32)
    _core.pack(stored, order, panels, norms)
    shapes = _core.coded_shape(*stored.shape) if coded else None
    if shapes is None:
        return [panels, norms, order]
    of_codes = np.empty(shapes[0], np.uint8), np.empty(shapes[1], np.float32), np.empty(stored.shape[1])
    _core.encode_panels(stored, order, double, *of_codes)
    return [panels, norms, order, *of_codes]


def codes(mu: Array, uncertainty: Array) -> Numpy:
    """8-bit codes of the gallery's means [G, D], a row of bytes for each, with its uncertainty [G]."""
    stored = _buffer(mu, repeats=False)
    codes = np.empty((len(stored), _core.codes_width(stored.shape[1])), np.uint8)
    _core.encode(stored, _buffer(uncertainty), stored.dtype == np.float64, codes)
    return codes
