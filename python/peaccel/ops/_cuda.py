"""Calls of the CUDA kernels on torch tensors: allocates outputs and workspaces, and passes addresses to the core.

Everything is allocated by torch and runs on torch's current stream, so calls can be captured in a CUDA graph once each
has run before. Nothing here waits for the device.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from peaccel import _core
from peaccel._utils.arrays import Array, dtype_name, require_same_kind
from peaccel.ops._definitions import Gradients, Inputs, Op, PairOp, SampleOp, listed, scores_shape

__all__ = [
    "elementwise",
    "norms",
    "rerank",
    "sample",
    "sample_backward",
    "score",
    "score_backward",
    "score_saving",
    "scores_and_gradients",
    "search",
]

Memory = tuple[int, tuple[int, ...], tuple[int, ...], str]


def memory(x: Array) -> Memory:
    """The address, shape, strides in elements, and dtype of x, as the core takes them."""
    return x.data_ptr(), tuple(x.shape), x.stride(), dtype_name(x)


def place(x: Array) -> tuple[int, int]:
    """The number of x's device, and the stream on which torch works there."""
    index = x.device.index
    return index, sys.modules["torch"].cuda.current_stream(index).cuda_stream


def blas(x: Array) -> int:
    """torch's handle of cuBLAS for x's device, on the stream on which torch works there."""
    cuda: Any = sys.modules["torch"].cuda
    with cuda.device(x.device):
        return int(cuda.current_blas_handle())


def _rows(x: Array) -> Array:
    """x with rows of adjacent elements."""
    return x if x.ndim < 2 or x.shape[1] < 2 or x.stride(1) == 1 else x.contiguous()


def _uncertainties(x: Array) -> Array:
    """x with rows of adjacent elements, or of one repeated element; not for means, from whose rows kernels take D."""
    return x if x.stride()[1:] == (0,) else _rows(x)


def _require_one_device(owner: str, **arguments: Array) -> None:
    """Raises an error unless all arguments of a kernel are on the device of the first, where addresses are valid."""
    (like, first), *others = arguments.items()
    for name, x in others:
        if x is not None and x.device != first.device:
            require_same_kind(owner, name, x, like, first)


# -- elements and draws ------------------------------------------------------------------------------------------------


def elementwise(op: Op, *arguments: Array) -> Array:
    """As `_numpy.elementwise`."""
    torch: Any = sys.modules["torch"]
    *_, x = arguments
    # The kernels of functions of x alone take an order too, and ignore it.
    order, x = arguments if op.has_order else (x.new_zeros((), dtype=torch.float64), x)
    _require_one_device(op.name, x=x, order=order)
    shape = torch.broadcast_shapes(order.shape, x.shape)
    order = order.reshape(1) if order.numel() == 1 else order.broadcast_to(shape).reshape(-1)
    x = x.broadcast_to(shape).reshape(-1)
    out = x.new_empty(x.shape)
    size = _core.cuda_table_size(op.name, dtype_name(x), order.numel(), x.numel())
    table = x.new_empty(size, dtype=torch.uint8)
    order, x = order.contiguous(), x.contiguous()
    _core.cuda_elementwise(op.name, place(x), *map(memory, (order, x, table, out)))
    return out.reshape(shape)


def sample(op: SampleOp, mu: Array, uncertainty: Array, seed: Array, n: int, first_row: int, stream: int) -> Array:
    """As `_numpy.sample`."""
    _require_one_device(op.name, mu=mu, **{op.uncertainty: uncertainty}, seed=seed)
    mu, uncertainty = _rows(mu), _uncertainties(uncertainty)
    out = mu.new_empty((n, *mu.shape))
    addresses = memory(mu), memory(uncertainty), memory(seed)
    _core.cuda_sample(op.name, place(mu), *addresses, first_row, stream, memory(out))
    return out


def sample_backward(
    op: SampleOp, weights: Array, mu: Array, uncertainty: Array, seed: Array, first_row: int, stream: int
) -> tuple[Array, Array]:
    """As `_numpy.sample_backward`."""
    _require_one_device(op.name, mu=mu, **{op.uncertainty: uncertainty}, seed=seed, weights=weights)
    mu, uncertainty = _rows(mu), _rows(uncertainty)  # gradients have no rows of one repeated element
    out = mu.new_empty(mu.shape), uncertainty.new_empty(uncertainty.shape)
    weights = weights.contiguous()
    addresses = memory(mu), memory(uncertainty), memory(seed), memory(weights)
    _core.cuda_sample_backward(op.name, place(mu), *addresses, memory(out[0]), memory(out[1]), first_row, stream)
    return out


# -- pairs -------------------------------------------------------------------------------------------------------------


def _inputs(op: PairOp, inputs: Inputs, **others: Array | None) -> Inputs:
    """The inputs as the kernels read them; callers must hold them until the kernel is on its stream.

    The seed, if there is one, and the other arguments must be on the same device.
    """
    mu1, uncertainty1, mu2, uncertainty2, shared = inputs.arrays
    seed = inputs.draws and inputs.draws.seed
    if inputs.draws and inputs.draws.first_row:
        raise ValueError(f"{op.name}: a gallery that is drawn cannot be scored by blocks on a GPU; give it whole")
    names = "mu1", f"{op.uncertainty}1", "mu2", f"{op.uncertainty}2", op.shared
    named = {**dict(zip(names, inputs.arrays, strict=True)), "seed": seed}
    _require_one_device(op.name, **named, **others)
    sides = _rows(mu1), _uncertainties(uncertainty1), _rows(mu2), _uncertainties(uncertainty2)
    return Inputs(*sides, shared.contiguous(), inputs.draws)


def _memories(arrays: Sequence[Array]) -> list[Memory]:
    return [memory(x) for x in arrays]


def _memories_or_none(arrays: Sequence[Array | None]) -> list[Memory | None]:
    return [None if x is None else memory(x) for x in arrays]


# The pairs that a search scores at a time where it sorts: scores, rows, copies of both and places take 60 bytes each.
BLOCK = 2**21
# The largest size in bytes of the draws of a side that a call makes once for all pairs; larger ones are made per pair.
CACHED = 2**28


class _Drawing:
    """Arguments of kernels that compare draws, beside the arrays, as `memory`: seed, number of draws, workspace, the
    draws that were made for all pairs, and gradients by a side's draws that products gave; None for other kernels."""

    def __init__(
        self,
        op: PairOp,
        inputs: Inputs,
        rows: int,
        columns: int | None,
        samples: Sequence[Array | None],
        by_draws: Array | None = None,
    ) -> None:
        self.memory = None
        if op.sampled:
            seed, n = inputs.draws[:2] if inputs.draws else (None, 1)
            size = _core.cuda_workspace(op.name, place(inputs.mu1), _memories(listed(inputs)), n, rows, columns)
            workspace = inputs.mu1.new_empty(size)
            self.buffers = workspace, seed, samples, by_draws  # held until the kernel is on its stream
            at_seed, gradients = _memories_or_none((seed, by_draws))
            self.memory = at_seed, n, memory(workspace), _memories_or_none(samples), gradients


def _samples(op: PairOp, inputs: Inputs, pairs: int) -> list[Array | None]:
    """The draws [n, N, D] of each side, by its sampler; None where that does not pay or would take too much memory."""
    samples: list[Array | None] = [None, None]
    if inputs.draws is None:
        return samples
    seed, n = inputs.draws[:2]
    sides = (inputs.mu1, inputs.uncertainty1), (inputs.mu2, inputs.uncertainty2)
    for side, (name, (mu, uncertainty)) in enumerate(zip(op.samplers, sides, strict=True)):
        if not name or pairs < 2 * len(mu) or not mu.numel() or n * mu.numel() * mu.element_size() > CACHED:
            continue
        out = mu.new_empty((n, *mu.shape))
        _core.cuda_sample(name, place(mu), memory(mu), memory(uncertainty), memory(seed), 0, side, memory(out))
        samples[side] = out
    return samples


def _per_item(op: PairOp, inputs: Inputs, pairs: int) -> list[Array | None]:
    """Memory for the numbers per item of each side, which a call makes once; None for a kernel without them, or
    where an item is in too few pairs for that to pay, so that they are computed for each pair."""
    torch: Any = sys.modules["torch"]
    return [
        mu.new_empty((len(mu), 3), dtype=torch.float64) if has and 0 < 2 * len(mu) <= pairs else None
        for mu, has in zip((inputs.mu1, inputs.mu2), op.per_item, strict=True)
    ]


def score(op: PairOp, inputs: Inputs, candidates: Array | None = None, pairwise: bool = False) -> Array:
    """As `_numpy.score`."""
    if op.one_product and pairwise and candidates is None:
        scores, _ = _score_by_products(op, inputs, keep=False)
        return scores
    inputs = _inputs(op, inputs, candidates=candidates)
    candidates = None if candidates is None else candidates.contiguous()
    out = inputs.mu1.new_empty(scores_shape(inputs, candidates, pairwise))
    samples, per_item = _samples(op, inputs, out.numel()), _per_item(op, inputs, out.numel())
    if pairwise and candidates is None and _multiplies(op, inputs, samples, per_item):
        return _AllDraws(op, inputs, samples, per_item).scores(out)
    return _one_by_one(op, inputs, samples, per_item, candidates, out)


def _one_by_one(
    op: PairOp,
    inputs: Inputs,
    samples: Sequence[Array | None],
    per_item: Sequence[Array | None],
    candidates: Array | None,
    out: Array,
) -> Array:
    """The scores of the pairs that ``out`` has places for, to it."""
    asked = None if candidates is None else memory(candidates)
    rows, columns = (1, *out.shape)[-2:]
    draws = _Drawing(op, inputs, rows, columns, samples)
    items = _memories(listed(inputs)), draws.memory, _memories_or_none(per_item)
    _core.cuda_score(op.name, place(out), *items, asked, memory(out))
    return out


def score_saving(op: PairOp, inputs: Inputs, candidates: Array | None, pairwise: bool) -> tuple[Array, Array]:
    """Scores, and the inner products of all pairs; an empty tensor where gradients compute them again."""
    if op.one_product and pairwise and candidates is None:
        return _score_by_products(op, inputs, keep=True)
    return score(op, inputs, candidates, pairwise), inputs.mu1.new_empty(0)


def score_backward(
    op: PairOp,
    weights: Array,
    inputs: Inputs,
    candidates: Array | None = None,
    pairwise: bool = False,
    wanted: int = _core.EVERY_GRADIENT,
    saved: Array | None = None,
) -> Gradients:
    """As `_numpy.score_backward`; ``saved`` are inner products of all pairs, or empty."""
    if wanted & _core.TOGETHER:  # of one set by a symmetric score: a pair and its mirror image are one
        found = score_backward(op, weights + weights.T, inputs, None, True, wanted - _core.TOGETHER, saved)
        return found._replace(shared=found.shared / 2)
    if op.one_product and pairwise and candidates is None:
        return _backward_by_products(op, weights, inputs, wanted, saved)
    inputs = _inputs(op, inputs, weights=weights, candidates=candidates).mapped(lambda x: x.contiguous())
    weights = weights.contiguous()
    samples, per_item = _samples(op, inputs, weights.numel()), _per_item(op, inputs, weights.numel())
    if pairwise and candidates is None and _multiplies(op, inputs, samples, per_item):
        return _AllDraws(op, inputs, samples, per_item).gradients(weights, wanted)
    return _gradients_one_by_one(op, inputs, samples, per_item, candidates, weights, wanted)


def _gradients_one_by_one(
    op: PairOp,
    inputs: Inputs,
    samples: Sequence[Array | None],
    per_item: Sequence[Array | None],
    candidates: Array | None,
    weights: Array,
    wanted: int,
) -> Gradients:
    """The gradients of sum(weights * scores) of pairs; a weight of 0 costs next to nothing."""
    torch: Any = sys.modules["torch"]
    asked, lists = None, None
    if candidates is not None:
        # The pairs of each gallery row, in order, as consecutive lists; pairs without a row (-1) come before the first.
        candidates = candidates.contiguous()
        rows, places = candidates.reshape(-1).sort(stable=True)
        offsets = torch.searchsorted(rows, torch.arange(len(inputs.mu2) + 1, device=rows.device))
        asked, lists = memory(candidates), [memory(offsets), memory(places)]
    out, sides, drawing = _gradients(inputs, _sides(wanted)), [], []
    for side in _sides(wanted):
        drawing.append(_Drawing(op, inputs, len(out[side][0]), None, samples))
        memories = _memories(out[side])
        if side or not wanted & _core.SHARED:  # kernels leave out what has no address, and are the faster for it
            memories[2] = 0, *memories[2][1:]
        sides.append((side, drawing[-1].memory, memories))
    items = _memories(listed(inputs)), _memories_or_none(per_item)
    _core.cuda_score_backward(op.name, place(weights), *items, asked, lists, memory(weights), sides, None)
    return _joined(out, wanted)


def scores_and_gradients(
    op: PairOp, weights: Array, inputs: Inputs, few: bool, wanted: bool
) -> tuple[Array, Gradients | None]:
    """Scores of the pairs i < j of one set that have a weight [N, N], and, if wanted, the gradients of
    sum(weights * scores).

    A few pairs are compared one by one; of many, draws are multiplied, but for those of i > j.
    """
    torch: Any = sys.modules["torch"]
    inputs, weights = _inputs(op, inputs, weights=weights).mapped(lambda x: x.contiguous()), weights.contiguous()
    samples, per_item = _samples(op, inputs, weights.numel()), _per_item(op, inputs, weights.numel())
    out, all_gradients = weights.new_zeros(weights.shape), _core.EVERY_GRADIENT
    if not few and _multiplies(op, inputs, samples, per_item):
        draws = _AllDraws(op, inputs, samples, per_item, above=True)
        return (out, draws.gradients(weights, all_gradients, out)) if wanted else (draws.scores(out), None)
    rows = torch.arange(len(weights), device=weights.device).expand_as(weights).masked_fill(weights == 0, -1)
    _one_by_one(op, inputs, samples, per_item, rows, out)
    return out, _gradients_one_by_one(op, inputs, samples, per_item, None, weights, all_gradients) if wanted else None


def _sides(wanted: int) -> list[int]:
    """The sides whose gradients are wanted: 0 for the queries, to whom those by shared numbers belong, and 1."""
    flags = _core.QUERY | _core.SHARED, _core.GALLERY
    return [side for side, flag in enumerate(flags) if wanted & flag]


def _gradients(inputs: Inputs, wanted: Sequence[int]) -> list[list[Array]]:
    """Memory for the gradients of the wanted sides, zeros for those of others: by the means, the uncertainties, and for
    each item the shared numbers."""
    sides = (inputs.mu1, inputs.uncertainty1), (inputs.mu2, inputs.uncertainty2)
    new_of_side = [mu.new_empty if side in wanted else mu.new_zeros for side, (mu, _) in enumerate(sides)]
    shapes = [(mu.shape, uncertainty.shape, (len(mu), len(inputs.shared))) for mu, uncertainty in sides]
    return [[make(shape) for shape in of_side] for make, of_side in zip(new_of_side, shapes, strict=True)]


def _joined(out: list[list[Array]], wanted: int) -> Gradients:
    (mu1, uncertainty1, shared), (mu2, uncertainty2, _) = out
    # Each pair counts once in the gradient of the shared row: with its query.
    summed = shared.sum(0) if wanted & _core.SHARED and shared.numel() else shared.new_zeros(shared.shape[1])
    return Gradients(mu1, uncertainty1, mu2, uncertainty2, summed)


# -- all pairs of scores of one inner product --------------------------------------------------------------------------


def _product(left: Array, right: Array, out: Array | None = None) -> Array:
    """The matrix product in the dtype of its factors: autocast leaves products alone that are told where they go."""
    torch: Any = sys.modules["torch"]
    return torch.mm(left, right, out=left.new_empty((len(left), right.shape[1])) if out is None else out)


def norms(rows: Array) -> Array:
    """The squared norms [N] of rows [N, D], to the bits of those that kernels of pairs compute; of halves, float32."""
    torch: Any = sys.modules["torch"]
    out = rows.new_empty(len(rows), dtype=torch.promote_types(rows.dtype, torch.float32))
    _core.cuda_norms(place(rows), [memory(rows)], [memory(out)], [], None, None)
    return out


def panels(op: PairOp, rows: Array) -> list[Array]:
    """Arrays that a search by products reads of a gallery [G, D]: squared norms and, of float32, rows in float16 and
    factors of their products; of scores of distances, less a mean."""
    torch: Any = sys.modules["torch"]
    like = rows if op.by_distance else None
    return [norms(rows)] if rows.dtype != torch.float32 else _narrowed(rows, torch.float16, like)


def _narrowed(rows: Array, dtype: Any, like: Array | None) -> list[Array]:
    """The squared norms [N] of float32 rows less the mean of rows `like` them, these rows in halves, and the factors of
    their products."""
    buffers = rows.new_empty(len(rows)), rows.new_empty(rows.shape, dtype=dtype), rows.new_empty(len(rows))
    of_norms, *halves = _memories(buffers)
    _core.cuda_norms(place(rows), [memory(rows)], [of_norms], [], None if like is None else memory(like), halves)
    return list(buffers)


class _AllPairs:
    """Inputs of all pairs of a score of one inner product, as kernels take them, and the rows that are multiplied, with
    their squared norms; ``call`` begins the arguments of kernels.

    Rows are copied where the scores are those of distances, from which a mean is subtracted then, and for gradients, in
    which rows that are not finite are 0, since factors of 0 must not be multiplied by NaN.
    """

    def __init__(self, op: PairOp, inputs: Inputs, gradients: bool = False, **others: Array) -> None:
        dtype = inputs.mu1.dtype
        if inputs.mu2.dtype != dtype or inputs.uncertainty2.dtype != dtype:  # products are of one dtype
            inputs = inputs._replace(mu2=inputs.mu2.to(dtype), uncertainty2=inputs.uncertainty2.to(dtype))
        self.inputs = inputs = _inputs(op, inputs, **others)
        self.per_item = _per_item(op, inputs, len(inputs.mu1) * len(inputs.mu2))
        arrays, at = _memories(listed(inputs)), place(inputs.mu1)
        self.call = op.name, at, arrays, _memories_or_none(self.per_item)
        sides = [inputs.mu1, inputs.mu2][: 1 if memory(inputs.mu1) == memory(inputs.mu2) else 2]
        self.rows, self.norms = sides, [x.new_empty(len(x)) for x in sides]
        if op.by_distance or gradients:
            self.rows = [x.new_empty(x.shape) for x in sides]
        copies, like = self.rows if self.rows is not sides else [], memory(inputs.mu2) if op.by_distance else None
        _core.cuda_norms(at, _memories(sides), _memories(self.norms), _memories(copies), like, None)
        self.rows, self.norms = (2 * x if len(x) == 1 else x for x in (self.rows, self.norms))

    def products(self) -> Array:
        """The inner products [Q, G]."""
        return _product(self.rows[0], self.rows[1].T)


def _score_by_products(op: PairOp, inputs: Inputs, *, keep: bool) -> tuple[Array, Array]:
    """Scores of all pairs [Q, G], and the inner products of which they are made, unless scores take their memory."""
    pairs = _AllPairs(op, inputs)
    products = pairs.products()
    out = products.new_empty(products.shape) if keep else products
    _core.cuda_scores_of_products(*pairs.call, memory(products), _memories(pairs.norms), memory(out))
    return out, products


def _backward_by_products(op: PairOp, weights: Array, inputs: Inputs, wanted: int, products: Array | None) -> Gradients:
    """As `score_backward`, of all pairs: a kernel makes the factors of the means and the sums of all else, torch
    multiplies factors and means, and a kernel adds the sums, and pairs of rows near each other one by one."""
    torch: Any = sys.modules["torch"]
    pairs = _AllPairs(op, inputs.mapped(lambda x: x.contiguous()), gradients=True, weights=weights)
    inputs, sides = pairs.inputs, _sides(wanted)
    if products is None or not products.numel():
        products = pairs.products()
    weights, factors = weights.contiguous(), products.new_empty(products.shape)
    scratch = factors.new_empty(_core.cuda_scratch(*products.shape), dtype=torch.uint8)
    weights_at, scratch_at = memory(weights), memory(scratch)
    products_at, of_norms = memory(products), _memories(pairs.norms)
    _core.cuda_weights_of_products(
        *pairs.call, products_at, of_norms, weights_at, memory(factors), scratch_at, 1 in sides
    )
    out = _gradients(inputs, sides)
    for side, factor_of_side in enumerate((factors, factors.T)):
        if side in sides:
            _product(factor_of_side, pairs.rows[1 - side], out[side][0])
    of_sides = [(side, _memories(out[side]), memory(pairs.rows[side])) for side in sides]
    _core.cuda_add_to_products(*pairs.call, weights_at, scratch_at, of_sides)
    return _joined(out, wanted)


# -- all pairs of draws ------------------------------------------------------------------------------------------------

# The bytes of a tile of products, which the second-level cache of a large GPU holds until they are used.
TILE = 2**25
# The most queries of a tile, of which the grid of a kernel has a row of blocks for every 32.
ROWS = 2**20
# The most draws of an item of which a block can keep sums; of more, pairs are compared one by one.
SUMMED = 64


def _multiplies(op: PairOp, inputs: Inputs, samples: Sequence[Array | None], per_item: Sequence[Array | None]) -> bool:
    """Whether a library multiplies the draws of all pairs: they have been made, and are not too many."""
    needed = *zip(samples, op.samplers, strict=True), (per_item[1], op.per_item[1])
    few = inputs.draws is None or inputs.draws.n <= SUMMED
    return op.sampled and few and all(x is not None or not has for x, has in needed) and bool(inputs.mu1.numel())


def _finite(x: Array) -> Array:
    """x with 0 for what is not finite: factors of 0 must not be multiplied by NaN."""
    return x.nan_to_num(0, 0, 0)


def _block(x: Array, rows: slice) -> Array:
    """All draws of some rows of x [n, N, D], as rows."""
    return x[:, rows].reshape(-1, x.shape[-1])


def _added(total: Array | None, part: Array, rows: slice, like: Array) -> Array:
    """The sums [n, N, D] over tiles, with those of all draws of some rows added; of all rows, these themselves."""
    part = part.view(like.shape[0], -1, like.shape[2])
    if total is None and part.shape == like.shape:
        return part
    total = like.new_zeros(like.shape) if total is None else total
    total[:, rows].add_(part)
    return total


_ByDraws = tuple[list[Array | None], list[Array], Array | None, Array | None]


class _AllDraws:
    """All pairs of a score that compares draws, or of one set those ``above`` the diagonal: a library multiplies the
    draws [n, N, D] of both sides tile by tile."""

    def __init__(
        self,
        op: PairOp,
        inputs: Inputs,
        samples: Sequence[Array | None],
        per_item: Sequence[Array | None],
        above: bool = False,
    ) -> None:
        torch: Any = sys.modules["torch"]
        self.above = above
        self.op, self.inputs, self.samples, self.per_item = op, inputs, samples, per_item
        mu = inputs.mu1, inputs.mu2
        self.z = [x[None] if z is None else z for x, z in zip(mu, samples, strict=True)]
        # The factors: draws; of densities with K y of each class, and their squares with the diagonal of K^2.
        self.left, self.right = [self.z[0]], [self.z[1]]
        self.norms: list[Array] = []
        if op.compares == "distances":
            self.norms = [norms(z.reshape(-1, z.shape[-1])) for z in self.z]
        elif op.compares != "directions":
            self.kappa = inputs.uncertainty2.reshape(len(inputs.mu2), -1)
            self.stretch = self.kappa if op.compares == "stretched" else torch.ones_like(self.kappa)
            self.y = self.kappa * inputs.mu2
            squares = (self.stretch * self.stretch).expand_as(inputs.mu2)
            self.left, self.right = [self.z[0], self.z[0].square()], [(self.stretch * self.y)[None], squares[None]]

    def _tiles(self) -> Iterator[tuple[slice, slice]]:
        """Rows of the queries and of the gallery, which begin at multiples of 32."""
        (n, queries, _), (m, gallery, _) = (z.shape for z in self.z)
        pairs = TILE // (n * m * len(self.left) * self.z[0].element_size())
        most = max(pairs // min(queries, 128) // 32 * 32, 32)
        start = 0
        while start < queries:
            first = start if self.above else 0
            left = gallery - first
            parts = -(-left // most)  # of about one length
            columns = min(left, -(-left // (32 * parts)) * 32)
            rows = max(min(pairs // columns, ROWS) // 32 * 32, 32)
            for begin in range(first, gallery, columns):
                yield slice(start, min(start + rows, queries)), slice(begin, min(begin + columns, gallery))
            start += rows

    def _products(self, tile: tuple[slice, slice]) -> list[Array]:
        """The products of a tile."""
        q, g = tile
        return [_product(_block(a, q), _block(b, g).T) for a, b in zip(self.left, self.right, strict=True)]

    def _fold(self, tile: tuple[slice, slice], products: list[Array], out: Array | None, weights: Any = None) -> None:
        """Writes the scores of a tile of products, or with weights the factors of its gradients in place of these."""
        inputs, (q, g) = self.inputs, tile
        seed, n = inputs.draws[:2] if inputs.draws else (None, 1)
        draws = seed if seed is None else memory(seed), n, memory(inputs.mu1), _memories_or_none(self.samples), None
        arrays, per_item = _memories(listed(inputs)), _memories_or_none(self.per_item)
        at = q.start, q.stop - q.start, g.start, g.stop - g.start
        sources, target = (_memories(products), _memories(self.norms)), out if out is None else memory(out)
        _core.cuda_fold(self.op.name, place(inputs.mu1), arrays, draws, per_item, at, *sources, target, weights)

    def scores(self, out: Array) -> Array:
        """The scores [Q, G], to ``out``."""
        if self.op.compares == "directions":
            means = [(z / length).mean(0) for z, length in zip(self.z, self._lengths(), strict=True)]
            return _product(means[0], means[1].T, out).clamp_(-1, 1)
        for tile in self._tiles():
            self._fold(tile, self._products(tile), out)
        return out

    def gradients(self, weights: Array, wanted: int, scores: Array | None = None) -> Gradients:
        """The gradients of sum(weights * scores); the scores too, to ``scores`` if there is memory for them."""
        inputs, op, sides = self.inputs, self.op, _sides(wanted)
        out = _gradients(inputs, sides)
        if op.compares == "directions":
            found = self._by_directions(weights)
            if scores is not None:
                self.scores(scores)
        else:
            found = self._by_products(weights, sides, scores)
        by_draws, marks, line_sums, by_kappa = found
        drawing = [_Drawing(op, inputs, len(out[side][0]), None, self.samples, by_draws[side]) for side in sides]
        of_sides = [(side, of.memory, _memories(out[side])) for side, of in zip(sides, drawing, strict=True)]
        arrays, per_item = _memories(listed(inputs)), _memories_or_none(self.per_item)
        operands = arrays, per_item, None, None, memory(weights)
        _core.cuda_score_backward(op.name, place(weights), *operands, of_sides, _memories(marks))
        if by_kappa is not None:
            out[1][1] += by_kappa.reshape(out[1][1].shape)
        joined = _joined(out, wanted)
        return joined if line_sums is None else joined._replace(shared=joined.shared + line_sums)

    def _lengths(self) -> list[Array]:
        """The lengths [n, N, 1] of the draws of each side; that of 0, which has no direction, is infinite."""
        torch: Any = sys.modules["torch"]
        lengths = (torch.linalg.vector_norm(z, dim=-1, keepdim=True, dtype=torch.float64) for z in self.z)
        return [x.masked_fill(x == 0, torch.inf).to(self.z[0].dtype) for x in lengths]

    def _by_directions(self, weights: Array) -> _ByDraws:
        """As `_by_products`, through the lengths of draws and the means of their directions."""
        lengths = self._lengths()
        by_draws: list[Array | None] = []
        units = [z / length for z, length in zip(self.z, lengths, strict=True)]
        for side, (unit, length) in enumerate(zip(units, lengths, strict=True)):
            other = _finite(units[1 - side].mean(0))
            by_mean = _product(weights if side == 0 else weights.T, other)
            across = by_mean - (by_mean * unit).sum(-1, keepdim=True) * unit
            by_draws.append((across / (length * len(unit))).masked_fill((by_mean == 0).all(-1, keepdim=True), 0))
        return by_draws, [], None, None

    def _by_products(self, weights: Array, sides: Sequence[int], scores: Array | None) -> _ByDraws:
        """The gradients by the draws of each side, the masks of the pairs that they lack, and the gradients by the
        shared numbers and by the uncertainties of classes, where there are any."""
        torch: Any = sys.modules["torch"]
        (n, queries, _), (m, gallery, _) = (z.shape for z in self.z)
        words, tiles, distances = -(-gallery // 32), -(-queries // 32), self.op.compares == "distances"
        allocate = torch.zeros if self.above else torch.empty  # of pairs that no tile has, zeros
        marks = [
            allocate(shape, dtype=torch.int32, device=weights.device) for shape in ((queries, words), (tiles, gallery))
        ]

        def sums(*shape: int) -> Array:
            return allocate(shape, dtype=torch.float64, device=weights.device)

        columns, rows = sums(tiles, m, gallery), sums(words, n, queries) if distances else None
        line_sums = sums(tiles, words, _core.cuda_warps(m), 2) if self.inputs.shared.numel() == 2 else None
        targets = memory(weights), _memories(marks), *_memories_or_none((rows, columns, line_sums))
        left, right = ([_finite(x) for x in side] for side in (self.left, self.right))
        by_left: list[Any] = [None] * len(left)
        by_right: list[Any] = [None] * len(right)
        for tile in self._tiles():
            (q, g), products = tile, self._products(tile)
            if scores is not None:
                self._fold(tile, products, scores)
            self._fold(tile, products, None, targets)
            for i, factors in enumerate(products):
                if 0 in sides:
                    part = _product(factors, _block(right[i], g))
                    by_left[i] = _added(by_left[i], part, q, left[i])
                if 1 in sides:
                    part = _product(factors.T, _block(left[i], q))
                    by_right[i] = _added(by_right[i], part, g, right[i])
        by_shared = None if line_sums is None else line_sums.sum((0, 1, 2)).to(weights.dtype)
        by_draws: list[Array | None] = [None, None]
        if rows is not None:
            for side, (of_factors, total, z) in enumerate(((by_left, rows, left), (by_right, columns, right))):
                if side in sides:
                    sums = total.sum(0, dtype=weights.dtype)[..., None]
                    by_draws[side] = torch.addcmul(of_factors[0], sums, z[0])
            return by_draws, marks, by_shared, None
        by_kappa = None
        if 0 in sides:
            by_draws[0] = torch.addcmul(by_left[0], left[0], by_left[1], value=-1)
        if 1 in sides:
            by_mu, by_kappa = self._by_classes(columns.sum(0)[0][:, None], by_right[0][0], by_right[1][0])
            by_draws[1] = by_mu[None]
        return by_draws, marks, by_shared, by_kappa

    def _by_classes(self, weights: Array, along: Array, across: Array) -> tuple[Array, Array]:
        """The gradients by the means and concentrations of classes, of the sums over draws that products give: of
        shares [G, 1], and of factors times the draws z and times their squares [G, D]."""
        kappa, mu, stretch, y = map(_finite, (self.kappa, self.inputs.mu2, self.stretch, self.y))
        shapes: Any = self.per_item[1]
        by_y = stretch * along - _finite(weights * shapes[:, 2:] / shapes[:, :1]).to(y.dtype) * y
        by_kappa = mu * by_y + _finite(weights.to(y.dtype) / kappa)
        if self.op.compares == "stretched":
            by_kappa += y * along - kappa * across
        return kappa * by_y, by_kappa.sum(1, keepdim=True) if kappa.shape[1] == 1 else by_kappa


# -- the best ----------------------------------------------------------------------------------------------------------


def rerank(op: PairOp, inputs: Inputs, candidates: Array, k: int, codes: Array | None = None) -> tuple[Array, Array]:
    """As `_numpy.rerank`, without codes."""
    if k > _core.CUDA_BEST or op.sampled:
        return select(score(op, inputs, candidates), candidates, k)
    inputs, candidates = _inputs(op, inputs, candidates=candidates), candidates.contiguous()
    (queries, listed_each), arrays = candidates.shape, _memories(listed(inputs))
    out, per_item = _best(inputs.mu1, queries, k), _per_item(op, inputs, candidates.numel())
    shares = _core.cuda_shares(op.name, place(candidates), arrays, listed_each)
    parts = _best(inputs.mu1, queries, shares * k if shares > 1 else 0)
    asked = arrays, _memories_or_none(per_item), memory(candidates), _memories(parts)
    _core.cuda_rerank(op.name, place(candidates), *asked, *map(memory, out))
    return out


def search(
    op: PairOp, inputs: Inputs, k: int, prune: str = "auto", packed: Sequence[Array] | None = None
) -> tuple[Array, Array, None]:
    """As `_numpy.search`, with squared norms in place of panels; the share of pairs scored is None, as reading it would
    wait for the device.

    For scores of one inner product, products by cuBLAS rule pairs out.
    """
    torch: Any = sys.modules["torch"]
    inputs = _inputs(op, inputs)
    queries, gallery, at = len(inputs.mu1), len(inputs.mu2), place(inputs.mu1)
    if k > _core.CUDA_BEST or op.sampled:
        # More than the search kernels can select, or draws: blocks of rows, each merged with the best rows so far.
        best, pairs = _best(inputs.mu1, queries, 0), queries * gallery
        samples, per_item = _samples(op, inputs, pairs), _per_item(op, inputs, pairs)
        step = max(k, BLOCK // max(1, queries))
        for first in range(0, max(gallery, 1), step):
            rows = torch.arange(first, min(first + step, gallery), device=inputs.mu1.device).repeat(queries, 1)
            part = _one_by_one(op, inputs, samples, per_item, rows, inputs.mu1.new_empty(rows.shape))
            best = select(torch.cat((best[0], part), 1), torch.cat((best[1], rows), 1), k)
        return *best, None
    cut = _core.cuda_cut(op.name, at, _memories(listed(inputs)), k, prune)
    if cut[2]:  # products take rows that lie apart
        inputs = inputs._replace(mu1=_apart(inputs.mu1), mu2=_apart(inputs.mu2))
    arrays, per_item = _memories(listed(inputs)), _per_item(op, inputs, queries * gallery)
    shares, items, at_a_time, *_ = cut
    parts = _best(inputs.mu1, at_a_time or queries, shares * k if shares > 1 else 0)
    lists, out = _best(inputs.mu1, 1, items), _best(inputs.mu1, queries, k)
    products = _of_products(op, inputs, cut[2:], packed)
    of_products = products and _of_products_as_memory(inputs, products)
    workspace = _memories(parts), _memories(lists), of_products
    _core.cuda_search(op.name, at, arrays, _memories_or_none(per_item), prune, *workspace, *map(memory, out))
    return *out, None


def _apart(x: Array) -> Array:
    """x, or a copy of it whose rows lie apart in memory."""
    return x if x.ndim < 2 or x.stride(0) >= x.shape[1] else x.contiguous()


class _Products(NamedTuple):
    """The memory of a search by products."""

    products: Array
    norms: list[Array]
    narrow: list[Array]
    copies: list[Array]
    numbers: Array
    survivors: list[Array]


def _of_products(op: PairOp, inputs: Inputs, cut: Sequence[int], packed: Sequence[Array] | None) -> _Products | None:
    """Memory for a search by products, and the norms and halves that it reads; None for another search."""
    torch: Any = sys.modules["torch"]
    queries, first, rows, survivors = cut
    if not queries:
        return None
    mu1, mu2 = inputs.mu1, inputs.mu2
    of_gallery, *copies = packed or [norms(mu2)]
    of_queries, *narrow = [norms(mu1)]
    if copies or mu2.dtype != mu1.dtype:
        like = mu2 if copies and op.by_distance else None
        of_queries, *narrow = _narrowed(mu1, copies[0].dtype if copies else mu2.dtype, like)
    lists = [mu1.new_empty(shape, dtype=torch.int32) for shape in ((queries, survivors), (queries,))]
    numbers = torch.arange(first, device=mu1.device)
    return _Products(mu1.new_empty((queries, rows)), [of_queries, of_gallery], narrow, copies, numbers, lists)


def _of_products_as_memory(inputs: Inputs, arrays: _Products) -> tuple[Any, ...]:
    """The memory of a search by products as the core takes it, with torch's handle of cuBLAS."""
    halves = (_memories(x) or None for x in (arrays.narrow, arrays.copies))
    lists = _memories(arrays.survivors)
    return blas(inputs.mu1), memory(arrays.products), _memories(arrays.norms), *halves, memory(arrays.numbers), lists


def _best(like: Array, rows: int, k: int) -> tuple[Array, Array]:
    """Memory for scores and ids [rows, k]."""
    torch: Any = sys.modules["torch"]
    return like.new_empty((rows, k)), like.new_empty((rows, k), dtype=torch.int64)


def select(scores: Array, ids: Array, k: int) -> tuple[Array, Array]:
    """The best k of each row: higher scores, then NaN, then padding (id -1); ties to the lower id."""
    torch: Any = sys.modules["torch"]
    if k <= _core.CUDA_BEST:
        out, scores, ids = _best(scores, len(scores), k), scores.contiguous(), ids.contiguous()
        _core.cuda_select(place(scores), memory(scores), memory(ids), *map(memory, out))
        return out
    # By ids, those of padding last; then, stably, by falling scores, of which NaN come last, and padding as NaN.
    ids, order = ids.masked_fill(ids < 0, torch.iinfo(ids.dtype).max).sort(dim=1)
    scores, padding = scores.gather(1, order), ids == torch.iinfo(ids.dtype).max
    key = (0 - scores).masked_fill(padding | scores.isnan(), torch.nan)
    order, ids = key.argsort(dim=1, stable=True)[:, :k], ids.masked_fill(padding, -1)
    scores, ids = scores.gather(1, order), ids.gather(1, order)
    scores = scores.masked_fill(ids < 0, -torch.inf)
    short = k - scores.shape[1]
    if short > 0:
        scores = torch.nn.functional.pad(scores, (0, short), value=-torch.inf)
        ids = torch.nn.functional.pad(ids, (0, short), value=-1)
    return scores, ids
