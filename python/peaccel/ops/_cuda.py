"""Calls of the CUDA kernels on torch tensors: shapes of outputs and workspaces; the core takes addresses.

Everything is allocated by torch and runs on torch's current stream, so calls can be captured in a CUDA graph once each
has run before. Nothing here waits for the device.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from peaccel import _core
from peaccel.ops._array import Array, dtype_name, require_same_kind

if TYPE_CHECKING:
    from peaccel.ops._op import Op, PairOp, SampleOp

__all__ = ["elementwise", "rerank", "sample", "sample_backward", "score", "score_backward", "search"]

Memory = tuple[int, tuple[int, ...], tuple[int, ...], str]


def memory(x: Array) -> Memory:
    """Address, shape, strides in elements and dtype."""
    return x.data_ptr(), tuple(x.shape), x.stride(), dtype_name(x)


def place(x: Array) -> tuple[int, int]:
    """The number of x's device, and the stream on which torch works there."""
    index = x.device.index
    return index, sys.modules["torch"].cuda.current_stream(index).cuda_stream


def _rows(x: Array) -> Array:
    """x with rows of adjacent elements."""
    return x if x.ndim < 2 or x.shape[1] < 2 or x.stride(1) == 1 else x.contiguous()


def _extras(x: Array) -> Array:
    """x with rows of adjacent elements, or of one that is repeated: not for means, whose rows tell the kernels D."""
    return x if x.stride()[1:] == (0,) else _rows(x)


def _require_one_device(owner: str, **arguments: Array) -> None:
    """Refuses arguments of a kernel that are not all where the first one is, whose address means nothing elsewhere."""
    (like, first), *others = arguments.items()
    for name, x in others:
        if x is not None and x.device != first.device:
            require_same_kind(owner, name, x, like, first)


# -- elements and draws ------------------------------------------------------------------------------------------------


def elementwise(op: Op, order: Array, x: Array) -> Array:
    """The op for tensors that broadcast."""
    _require_one_device(op.name, x=x, order=order)
    torch: Any = sys.modules["torch"]
    shape = torch.broadcast_shapes(order.shape, x.shape)
    order = order.reshape(1) if order.numel() == 1 else order.broadcast_to(shape).reshape(-1)
    x = x.broadcast_to(shape).reshape(-1)
    out = x.new_empty(x.shape)
    size = _core.cuda_table_size(op.name, dtype_name(x), order.numel(), x.numel())
    table = x.new_empty(size, dtype=torch.uint8)
    order, x = order.contiguous(), x.contiguous()
    _core.cuda_elementwise(op.name, place(x), *map(memory, (order, x, table, out)))
    return out.reshape(shape)


def sample(op: SampleOp, mu: Array, extra: Array, seed: Array, n: int, first_row: int, stream: int) -> Array:
    """Draws [n, N, D]."""
    _require_one_device(op.name, mu=mu, **{op.extra: extra}, seed=seed)
    mu, extra = _rows(mu), _extras(extra)
    out = mu.new_empty((n, *mu.shape))
    given = memory(mu), memory(extra), memory(seed)
    _core.cuda_sample(op.name, place(mu), *given, first_row, stream, memory(out))
    return out


def sample_backward(
    op: SampleOp, weights: Array, mu: Array, extra: Array, seed: Array, first_row: int, stream: int
) -> tuple[Array, Array]:
    """The gradients of sum(weights * draws) with respect to mu and extra."""
    _require_one_device(op.name, mu=mu, **{op.extra: extra}, seed=seed, weights=weights)
    mu, extra = _rows(mu), _rows(extra)  # gradients have no row that is one element
    out = mu.new_empty(mu.shape), extra.new_empty(extra.shape)
    weights = weights.contiguous()
    given = memory(mu), memory(extra), memory(seed), memory(weights)
    _core.cuda_sample_backward(op.name, place(mu), *given, memory(out[0]), memory(out[1]), first_row, stream)
    return out


# -- pairs -------------------------------------------------------------------------------------------------------------


def _inputs(op: PairOp, inputs: Sequence[Array], **others: Array | None) -> list[Array]:
    """The five arrays as the kernels read them: to be kept until the kernel is on its stream.

    The seed among the inputs, if there is one, and the other arguments must be where they are.
    """
    names = "mu1", f"{op.extra}1", "mu2", f"{op.extra}2", op.shared, "seed"
    _require_one_device(op.name, **dict(zip(names, inputs, strict=False)), **others)
    mu1, extra1, mu2, extra2, shared = inputs[:5]
    return [_rows(mu1), _extras(extra1), _rows(mu2), _extras(extra2), shared.contiguous()[None]]


def _memories(arrays: Sequence[Array]) -> list[Memory]:
    return [memory(x) for x in arrays]


def _memories_or_none(arrays: Sequence[Array | None]) -> list[Memory | None]:
    return [None if x is None else memory(x) for x in arrays]


# Bytes of a side's draws that a call keeps, made once for all pairs; more are made for each pair.
KEPT = 2**28


class _Draws:
    """What the scores that compare draws are given beyond arrays: seed, number of draws, workspace, and the draws that
    were made; None for others."""

    def __init__(
        self,
        op: PairOp,
        arrays: Sequence[Array],
        draws: Sequence[Any],
        rows: int,
        columns: int | None,
        made: Sequence[Array | None],
    ) -> None:
        self.memory = None
        if op.sampled:
            seed, n = draws or (None, 1)
            size = _core.cuda_workspace(op.name, place(arrays[0]), _memories(arrays), n, rows, columns)
            self.kept = arrays[0].new_empty(size), seed, made  # until the kernel is on its stream
            query, gallery = _memories_or_none(made)
            self.memory = None if seed is None else memory(seed), n, memory(self.kept[0]), query, gallery


def _made(op: PairOp, arrays: Sequence[Array], draws: Sequence[Any], pairs: int) -> list[Array | None]:
    """The draws [n, N, D] of either side, as its sampler makes them; None where that does not pay or they are many."""
    made: list[Array | None] = [None, None]
    for side, name in enumerate(op.samplers):
        mu, extra = arrays[2 * side : 2 * side + 2]
        if not name or pairs < 2 * len(mu) or not mu.numel() or draws[1] * mu.numel() * mu.element_size() > KEPT:
            continue
        out = mu.new_empty((draws[1], *mu.shape))
        _core.cuda_sample(name, place(mu), memory(mu), memory(extra), memory(draws[0]), 0, side, memory(out))
        made[side] = out
    return made


def _own(op: PairOp, arrays: Sequence[Array], pairs: int) -> list[Array | None]:
    """Memory for what either side's items are alone, which a call then makes once; None where it makes nothing, or
    where an item is in too few pairs for that to pay: it is made for each pair then."""
    torch: Any = sys.modules["torch"]
    return [
        mu.new_empty((len(mu), 3), dtype=torch.float64) if has and 0 < 2 * len(mu) <= pairs else None
        for mu, has in zip(arrays[:4:2], op.own, strict=True)
    ]


def score(op: PairOp, inputs: Sequence[Array], candidates: Array | None, pairwise: bool) -> Array:
    """As `PairOp.numpy_scores`."""
    arrays = _inputs(op, inputs, candidates=candidates)
    shape = (len(arrays[0]), len(arrays[2])) if pairwise else (len(arrays[0]),)
    candidates = None if candidates is None else candidates.contiguous()
    out = arrays[0].new_empty(shape if candidates is None else candidates.shape)
    given = None if candidates is None else memory(candidates)
    (rows, columns), made = (1, *out.shape)[-2:], _made(op, arrays, inputs[5:], out.numel())
    draws, own = _Draws(op, arrays, inputs[5:], rows, columns, made), _own(op, arrays, out.numel())
    own_memories = _memories_or_none(own)
    _core.cuda_score(op.name, place(out), _memories(arrays), draws.memory, own_memories, given, memory(out))
    return out


def score_backward(
    op: PairOp,
    weights: Array,
    inputs: Sequence[Array],
    candidates: Array | None,
    pairwise: bool,
    wanted: int = _core.EVERY_GRADIENT,
) -> list[Array]:
    """As `PairOp.numpy_backward`."""
    torch: Any = sys.modules["torch"]
    arrays = [x.contiguous() for x in _inputs(op, inputs, weights=weights, candidates=candidates)]
    weights, size = weights.contiguous(), arrays[4].shape[1]
    given, lists = None, None
    if candidates is not None:
        # For each gallery row the pairs that it is in, in order: what -1 sorts to stands before the first list.
        candidates = candidates.contiguous()
        rows, places = candidates.reshape(-1).sort(stable=True)
        offsets = torch.searchsorted(rows, torch.arange(len(arrays[2]) + 1, device=rows.device))
        given, lists = memory(candidates), [memory(offsets), memory(places)]
    made, own = _made(op, arrays, inputs[5:], weights.numel()), _own(op, arrays, weights.numel())
    out: list[Array] = []
    sides, kept = [], []
    for side, (mu, extra) in enumerate((arrays[0:2], arrays[2:4])):
        gradients = [mu.new_zeros(mu.shape), mu.new_zeros(extra.shape), mu.new_zeros((len(mu), size))]
        out += gradients
        if wanted & (_core.QUERY | _core.SHARED, _core.GALLERY)[side]:
            kept.append(_Draws(op, arrays, inputs[5:], len(mu), None, made))
            sides.append((side, kept[-1].memory, _memories(gradients)))
    items = _memories(arrays), _memories_or_none(own)
    _core.cuda_score_backward(op.name, place(weights), *items, given, lists, memory(weights), sides)
    # Each pair counts once for the shared row: by its query.
    return [out[0], out[1], out[3], out[4], out[2].sum(0)]


def rerank(op: PairOp, inputs: Sequence[Array], candidates: Array, k: int) -> tuple[Array, Array]:
    """As `PairOp.numpy_rerank`."""
    if k > _core.CUDA_BEST or op.sampled:
        return select(score(op, inputs, candidates, False), candidates, k)
    arrays, candidates = _inputs(op, inputs, candidates=candidates), candidates.contiguous()
    out, own = _best(arrays[0], len(candidates), k), _own(op, arrays, candidates.numel())
    given = _memories(arrays), _memories_or_none(own), memory(candidates)
    _core.cuda_rerank(op.name, place(candidates), *given, *map(memory, out))
    return out


def search(op: PairOp, inputs: Sequence[Array], k: int, prune: str = "auto") -> tuple[Array, Array]:
    """As `PairOp.numpy_search`; tensor cores pass over pairs of scores of one inner product, and of `mls_diagonal`."""
    torch: Any = sys.modules["torch"]
    arrays = _inputs(op, inputs)
    queries, gallery, at = len(arrays[0]), len(arrays[2]), place(arrays[0])
    if k > _core.CUDA_BEST or op.sampled:
        # More than the kernels keep: blocks of rows, the best of each beside the best so far.
        best = _best(arrays[0], queries, 0)
        step = max(k, 2**26 // max(1, queries))
        for first in range(0, max(gallery, 1), step):
            block = slice(first, first + step)
            rows = torch.arange(first, min(first + step, gallery), device=arrays[0].device).expand(queries, -1)
            if op.sampled:  # whose draws are those of the row's number
                part = score(op, inputs, rows, False)
            else:
                part = score(op, [*inputs[:2], inputs[2][block], inputs[3][block], *inputs[4:]], None, True)
            best = select(torch.cat((best[0], part), 1), torch.cat((best[1], rows), 1), k)
        return best
    given, own = _memories(arrays), _own(op, arrays, queries * gallery)
    shards, listed, first, most, tiles = _core.cuda_cut(op.name, at, given, k, prune)
    parts, lists = _best(arrays[0], queries, shards * k), _best(arrays[0], 1, listed)
    out = _best(arrays[0], queries, k)
    survivors = arrays[0].new_empty((queries, most), dtype=torch.int32), out[1].new_zeros(queries, dtype=torch.int32)
    bounding = _bounding(arrays, first, tiles) if tiles else None
    workspace = _memories(parts), _memories(lists), _memories(survivors), bounding and _memories(bounding)
    _core.cuda_search(op.name, at, given, _memories_or_none(own), prune, *workspace, *map(memory, out))
    return out


def _bounding(arrays: Sequence[Array], first: int, tiles: int) -> list[Array]:
    """What bounds the scores of tiles of rows, from ``first`` on: their order by mean variance, the queries' mean
    variances, and memory for the tiles' ranges and the rows' sums."""
    torch: Any = sys.modules["torch"]
    like, dim = arrays[0], arrays[0].shape[1]
    var = arrays[3][first:].reshape(len(arrays[3]) - first, -1)
    order = (var.mean(1, dtype=torch.float32).argsort() + first).int()
    reference = arrays[1].reshape(len(arrays[1]), -1).mean(0).expand(dim).contiguous()
    return [order, reference, like.new_empty((tiles, 2, dim)), like.new_empty((len(var), 2))]


def _best(like: Array, rows: int, k: int) -> tuple[Array, Array]:
    """Memory for scores and ids."""
    torch: Any = sys.modules["torch"]
    return like.new_empty((rows, k)), like.new_empty((rows, k), dtype=torch.int64)


def select(scores: Array, ids: Array, k: int) -> tuple[Array, Array]:
    """The best k of each row: higher scores, then NaN, then padding (id -1); ties to the lower id."""
    torch: Any = sys.modules["torch"]
    if k <= _core.CUDA_BEST:
        out, scores, ids = _best(scores, len(scores), k), scores.contiguous(), ids.contiguous()
        _core.cuda_select(place(scores), memory(scores), memory(ids), *map(memory, out))
        return out
    # Sorts that keep the order of equals, from the least key to the greatest.
    order = ids.argsort(dim=1, stable=True)
    for key in (
        -scores.nan_to_num(-torch.inf, torch.inf, -torch.inf),
        scores.isnan().to(torch.int8),
        (ids < 0).to(torch.int8),
    ):
        order = order.gather(1, key.gather(1, order).argsort(dim=1, stable=True))
    order = order[:, :k]
    scores, ids = scores.gather(1, order), ids.gather(1, order)
    scores = scores.masked_fill(ids < 0, -torch.inf)
    short = k - scores.shape[1]
    if short > 0:
        scores = torch.nn.functional.pad(scores, (0, short), value=-torch.inf)
        ids = torch.nn.functional.pad(ids, (0, short), value=-1)
    return scores, ids
