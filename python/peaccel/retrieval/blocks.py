"""Galleries in blocks, such as those that do not fit into memory: read one after the other, each scored as it passes.

A source of blocks is any iterable of distributions, whose items are the gallery's rows in their order: a list, a
generator, `pe.io.read_blocks`. One thread asks it for the next block while the last one is scored.
"""

from __future__ import annotations

import contextvars
import itertools
import sys
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from peaccel._utils.arrays import Array, ArrayT, dtype_name, is_torch, namespace, on_host
from peaccel._utils.seeds import as_seed, is_source
from peaccel.distributions import Distribution
from peaccel.distributions.checks import checked_candidates, converted, require_distribution
from peaccel.retrieval.plan import Plan, plan
from peaccel.retrieval.prepared import Prepared
from peaccel.scores import Score, get, named
from peaccel.scores._common_variance import CommonVariance, common_variance

if TYPE_CHECKING:
    from typing_extensions import TypeIs

__all__ = ["Block", "BlockPlans", "ListedRows", "each_block", "in_blocks", "named_for_blocks"]

Block: TypeAlias = Distribution | Prepared
END = object()


def in_blocks(gallery: object) -> TypeIs[Iterable[Block]]:
    """Whether a gallery is a source of blocks: no distribution, no array, and something that can be iterated."""
    whole = isinstance(gallery, (Distribution, Prepared)) or hasattr(gallery, "__array__")
    return not whole and isinstance(gallery, Iterable)


def named_for_blocks(
    score: str | Score | None, queries: Distribution, blocks: Iterable[Block]
) -> tuple[Score, Iterable[Block]]:
    """The score of a call, which where none is named depends on the kind of the first block; and all blocks."""
    if score is not None:
        return get(score), blocks
    iterator = iter(blocks)
    first = list(itertools.islice(iterator, 1))
    return named(None, queries, *first), itertools.chain(first, iterator)


def each_block(owner: str, blocks: Iterable[Block]) -> closing[Generator[tuple[int, Block]]]:
    """The blocks, to be used by `with`, which ends the thread that reads: the number of the first row, and the items.

    All are checked against the first, which is there even if it has no items; later ones without items are left out.
    Whoever takes a block lets go of it before asking for the next, or three are in memory.
    """
    return closing(_each_block(owner, blocks))


def _each_block(owner: str, blocks: Iterable[Block]) -> Generator[tuple[int, Block]]:
    number, row, like = 0, 0, ""
    with closing(_read_ahead(blocks)) as read:
        for block in read:
            like = _checked(owner, f"block {number} of gallery, from row {row} on", block, like)
            if number == 0 or len(block):
                yield row, block
            number, row = number + 1, row + len(block)
            del block
    if not number:
        raise ValueError(f"{owner}: gallery has no blocks; was it an iterator that has been used up?")


def _read_ahead(blocks: Iterable[Any]) -> Generator[Any]:
    """Iterate with one element read ahead: a thread takes the next one while the caller works with the last.

    What the source computes runs as it would in the caller: with its context variables, torch's modes and streams.
    """
    run: Callable[..., Any] = contextvars.copy_context().run
    iterator, enter = iter(blocks), _modes_of_torch()
    with ThreadPoolExecutor(1, "peaccel-blocks") as thread:  # waits for it at the end, however that comes about
        modes = thread.submit(run, enter).result()
        try:
            ahead = thread.submit(run, next, iterator, END)
            while (block := ahead.result()) is not END:
                ahead = thread.submit(run, next, iterator, END)
                yield block
                del block
        finally:
            thread.submit(run, modes.close)


def _modes_of_torch() -> Callable[[], ExitStack]:
    """Enters, in another thread, what torch keeps for this one: whether it follows gradients, autocast, and streams.

    They stay entered, as a source may be left in the middle of a `torch.no_grad()` of its own. What a block and its
    scores are computed on is one stream, so that neither is read, or its memory taken, before it is done.
    """
    torch: Any = sys.modules.get("torch")
    modes: list[tuple[Callable[..., Any], tuple[Any, ...]]] = []
    if torch is not None:
        modes.append((torch.inference_mode, (torch.is_inference_mode_enabled(),)))
        modes.append((torch.set_grad_enabled, (torch.is_grad_enabled(),)))
        for kind in ("cpu", "cuda"):
            if torch.is_autocast_enabled(kind):
                cached = torch.is_autocast_cache_enabled()
                modes.append((torch.autocast, (kind, torch.get_autocast_dtype(kind), True, cached)))
        if torch.cuda.is_initialized():
            streams = map(torch.cuda.current_stream, range(torch.cuda.device_count()))
            modes += [(torch.cuda.stream, (stream,)) for stream in streams]
            modes.append((torch.cuda.device, (torch.cuda.current_device(),)))

    def enter() -> ExitStack:
        entered = ExitStack()
        for mode, arguments in modes:
            entered.enter_context(mode(*arguments))
        return entered

    return enter


def _checked(owner: str, name: str, block: object, like: str) -> str:
    """Require a block of the kind, dimension, dtype and device of those before it; return these in words."""
    if not isinstance(block, Prepared):
        require_distribution(owner, name, block)
    assert isinstance(block, (Distribution, Prepared))
    arrays = "torch tensors" if is_torch(block.mu) else "numpy arrays"
    what = f"{block.kind} of D={block.dim}, {dtype_name(block.mu)}, {arrays}"
    if like not in ("", what):
        raise ValueError(f"{owner}: {name}, is {what}, expected {like} like block 0")
    try:
        _items(block).detach().check_rows()
    except ValueError as error:
        raise ValueError(f"{owner}: {name}: {error}") from None
    return what


def _items(block: Block) -> Distribution:
    """The distribution that a block holds."""
    return block.distribution if isinstance(block, Prepared) else block


class BlockPlans:
    """Checked calls of a score for one block after the other, which give pairs the bits that they have of one gallery.

    The queries are seen once for all blocks: so is a seed drawn, and so is it settled whether the items have one
    variance, whose scores are sums in another order.
    """

    def __init__(self, queries: Distribution, score: str | Score) -> None:
        self.score = get(score).snapshot()  # detached from what trains its parameters
        require_distribution(self.score.name, "queries", queries)
        self._queries = queries
        self._moved = {queries.home.device: queries}  # the queries on each device on which a block lies
        self._settled = False
        self._common: CommonVariance | None = None  # the one variance of all items of the first block
        self._weighted = False  # whether they are scored by it

    def admitted(self, first_row: int, block: Block) -> Block:
        """A block, each of them in their order, as it is scored beside the others."""
        items, pair = _items(block), self.score.pair(self._queries.kind, block.kind)
        variance = None if common_variance(items) is None else CommonVariance(items)
        seed = self.score.params.get("seed", 0)
        if pair.op.draws and is_source(seed):
            self.score = self.score(seed=int(as_seed(self.score.name, seed, self._queries.mu)))
        if not len(block):
            return block
        if not self._settled:
            self._settled, self._common = True, variance
            queries = converted(self._queries, block.home.compute_dtype)
            self._weighted = pair.weighted is not None and variance is not None and common_variance(queries) is not None
        elif self._common is None and variance is not None:  # as one that has a variance for each item
            *others, var = items.arrays
            arrays: list[Any] = [*others, var[namespace(var).arange(len(var))]]
            return type(items)(*arrays)
        elif self._weighted and variance != self._common:
            what = f"{self.score.name}: the block of gallery from row {first_row} on"
            raise ValueError(f"{what} has not the one variance that all items of block 0 have; give each item its own")
        return block

    def of(self, first_row: int, block: Block, candidates: Array = None) -> Plan:
        """The call for an admitted block, on its device; candidates are rows counted from its first."""
        device = block.home.device
        if device not in self._moved and "numpy" not in (device, self._queries.home.device):
            self._moved[device] = self._queries.to(device=device)
        queries = self._moved.get(device, self._queries)
        if candidates is not None:
            candidates = _beside(candidates, queries.mu)
        planned = plan(queries, block, self.score, detach=True, candidates=candidates)
        draws = planned.inputs.draws
        if draws is None or planned.pair.op.samplers[1] is None:
            return planned
        return planned._replace(inputs=planned.inputs._replace(draws=draws._replace(first_row=first_row)))

    def returned(self, found: ArrayT) -> ArrayT:
        """Scores or ids of a block, on the device of the queries."""
        moved: ArrayT = _beside(found, self._queries.mu)
        return moved


class ListedRows:
    """Candidates [Q, K] that are rows of a gallery in blocks: each block takes those that it holds."""

    def __init__(self, owner: str, queries: Distribution, candidates: Array) -> None:
        self._owner = owner
        self._candidates = checked_candidates(owner, queries, candidates)
        self._rows = on_host(self._candidates)
        self.shape = self._rows.shape
        self._refuse(self._rows < -1, "")

    def within(self, first_row: int, count: int) -> tuple[tuple[Array, Array], tuple[Array, Array], Array]:
        """Where the candidates stand that are in these rows, where the block's list has them, and this list.

        It has a row for each query, of rows counted from the block's first, and -1 after those.
        """
        queries, columns = np.nonzero((self._rows >= first_row) & (self._rows < first_row + count))
        places = np.arange(len(queries)) - np.searchsorted(queries, queries)
        listed = np.full((len(self._rows), places.max(initial=-1) + 1), -1)
        listed[queries, places] = self._rows[queries, columns] - first_row
        return (queries, columns), (queries, places), _like(self._candidates, listed)

    def require_below(self, size: int) -> None:
        """Refuse candidates beyond the last row, which is known once all blocks have passed."""
        self._refuse(self._rows >= size, f", which has {size}")

    def _refuse(self, wrong: np.ndarray[Any, Any], known: str) -> None:
        if wrong.any():
            query, column = np.argwhere(wrong)[0]
            what = f"candidates of query {query} hold id {self._rows[query, column]}"
            raise ValueError(f"{self._owner}: {what}, expected -1 (none) or a row of the gallery{known}")


def _beside(x: Array, other: Array) -> Array:
    """An array on the device of another."""
    return x.to(other.device) if is_torch(x) and is_torch(other) and x.device != other.device else x


def _like(x: Array, values: np.ndarray[Any, Any]) -> Array:
    """A numpy array of integers as an array of x's kind and device."""
    return x.new_tensor(values) if is_torch(x) else values
