"""A gallery with all that a score can compute ahead of its queries."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, Generic

import numpy as np

from peaccel._utils.arrays import (
    FLOATING,
    Array,
    ArrayT,
    adjacent,
    appended,
    device_of,
    dtype_name,
    empty,
    is_captured,
    is_repeated,
    is_torch,
    is_traced,
    namespace,
    quiet,
    times_written,
)
from peaccel.distributions import Distribution
from peaccel.distributions.checks import converted, require_distribution
from peaccel.ops import _numpy
from peaccel.ops._dispatch import kernels_of, transformed
from peaccel.retrieval.half_precision import rounded
from peaccel.scores import Pair, Score, named
from peaccel.scores._common_variance import CommonVariance, common_variance, weighted_pair
from peaccel.scores._inputs import like

__all__ = ["LaidOut", "Prepared", "gallery_inputs", "prepare"]

BLOCK = 8192  # rows of halves that are converted at a time
MUCH = 1 << 19  # elements of a gallery from which on a search gains by codes
CODES = 2  # the position of codes beside the inputs, which are mu 0 and uncertainty 1


class Prepared(Generic[ArrayT]):
    """A gallery with all that a score can compute ahead: made by `prepare`, taken by every verb in place of a gallery.

    It can be copied, pickled and sent to other processes: the gallery and the score are sent, and the rest is computed
    again.

    Attributes
    ----------
    score
        The score that it is for: a copy, whose parameters nobody else changes. A verb that is given this very object
        need not compare it.
    packed
        Whether rows or panels are laid out for search, which takes memory.
    coded
        Whether there are 8-bit codes of the means, by which `rerank` rules candidates out.
    distribution
        The gallery itself, in the dtype in which it is stored; and its `kind`, `dim` and `mu` [G, D].

    Examples
    --------
    >>> gallery = pe.prepare(pe.Normal(np.zeros((3, 2)), np.ones((3, 2))), "llr:prior_var=1")
    >>> gallery.score, len(gallery), gallery.dim
    (Score('llr:prior_var=1.0,prior_mean=0.0'), 3, 2)
    """

    def __init__(
        self,
        gallery: Distribution[ArrayT],
        score: Score,
        *,
        pack: bool = True,
        codes: bool | None = None,
        pairs: Sequence[Pair] = (),
    ) -> None:
        self.score = score.snapshot()
        self.distribution = gallery
        self.kind, self.dim, self.mu, self.home = gallery.kind, gallery.dim, gallery.mu, gallery.home
        # Tensors that were parameters, and how often they had been written: nobody looks at these again.
        self._written: dict[str, tuple[Any, object]] = {
            name: (x, times_written(x)) for name, x in score.params.items() if is_torch(x) and not is_traced(x)
        }
        # The score as kernels take it, with its arrays on the device: those of the host would be copied at every call.
        self.near = replace(self.score, params={name: self._near(x) for name, x in self.score.params.items()})
        self.packed, self.coded, self._codes = pack, bool(codes), codes
        # Keys compare by value: a score that was unpickled has other pairs, equal to those of the first.
        self._by_pair: dict[Pair, LaidOut] = {}
        # Where all items have one variance: the one that all queries have, and what is laid out for these.
        self._variance = common_variance(gallery)
        self._weighted: tuple[CommonVariance, LaidOut] | None = None
        for pair in pairs:
            self.laid_out(pair).complete()

    def __reduce__(self) -> tuple[Any, ...]:
        weighted = self._weighted is not None
        return _made_again, (self.distribution, self.score, self.packed, self._codes, tuple(self._by_pair), weighted)

    def __len__(self) -> int:
        return len(self.distribution)

    def __repr__(self) -> str:
        return f"Prepared({self.distribution!r}, score={self.score.name!r}, {self.nbytes / 2**20:.1f} MB)"

    @property
    def nbytes(self) -> int:
        """Bytes held, the gallery's arrays included."""
        return _bytes(self.distribution.arrays) + sum(made.nbytes for made in self.made())

    def made(self) -> list[LaidOut]:
        """All that is laid out."""
        return [*self._by_pair.values()] + ([] if self._weighted is None else [self._weighted[1]])

    def laid_out(self, pair: Pair) -> LaidOut:
        """Layout of the gallery for a pair's op, computed at the first call for a pair."""
        if pair not in self._by_pair:
            self._by_pair[pair] = self._lay_out(pair)
        return self._by_pair[pair].here()

    def laid_out_for(self, queries: Distribution) -> LaidOut:
        """Layout that scores these queries: by weighted squares where all have one variance, and all items.

        These are laid out for one variance of queries at a time, and anew in each graph of CUDA.
        """
        pair = self.score.pair(queries.kind, self.kind)
        var1 = None if pair.weighted is None or self._variance is None else common_variance(queries)
        if var1 is None or is_traced(queries.mu):
            return self.laid_out(pair)
        known, variance = self._weighted, CommonVariance(queries)
        if known is None or known[0] != variance or is_captured(self.mu):
            weighted = weighted_pair(pair, self.mu, var1, self._variance, self.near.params)
            # A search in another thread goes on with what it was given.
            known = variance, self._lay_out(weighted)
            if not is_captured(self.mu):
                self._weighted = known
        return known[1].here()

    def is_for(self, score: Score) -> bool:
        """Whether this is the score that was given, or an equal one."""
        kept = {
            name: self.score.params[name]
            for name, (x, version) in self._written.items()
            if times_written(x) == version and score.params.get(name) is x
        }
        return score is self.score or (replace(score, params={**score.params, **kept}) if kept else score) == self.score

    def _near(self, value: Any) -> Any:
        """A parameter as it is, or an array of numbers of the host on the device of a gallery on a GPU."""
        is_array = is_torch(value) or isinstance(value, (np.ndarray, list, tuple))
        mu: Array = self.mu
        return like(value, mu) if is_array and is_torch(mu) and mu.is_cuda else value

    def _lay_out(self, pair: Pair) -> LaidOut:
        mu, uncertainty = (adjacent(_detached(x)) for x in gallery_inputs(pair, self.distribution, self.near))
        if not (self.packed and pair.op.layout == "rows" and uncertainty.shape == mu.shape):
            return LaidOut(pair, (mu, uncertainty), self._copies(mu, uncertainty), pack=self.packed, codes=self._codes)
        rows = _side_by_side(mu, uncertainty)  # the kernel reads views of the halves
        laid_out = LaidOut(pair, (rows[:, : self.dim], rows[:, self.dim :]), [rows], pack=True, codes=self._codes)
        if device_of(mu) in ("numpy", "cpu") and not self._copies(mu, uncertainty):
            laid_out.apart = mu, uncertainty
        return laid_out

    def _copies(self, *inputs: Array) -> list[Array]:
        """The inputs that take memory beside the gallery's arrays."""
        return [x for x in inputs if not _takes_no_memory(x, self.distribution)]

    def extended(self, gallery: Distribution[ArrayT]) -> Prepared[ArrayT]:
        """The same for a gallery that begins with the items of this one. Nothing of these is computed again."""
        new = Prepared(gallery, self.score, pack=False, codes=self._codes)
        if not len(self):  # arrays of no items share an address
            return new
        for pair, made in self._by_pair.items():
            new._by_pair[pair] = made.extended(self.distribution, gallery, self.score)
        if self._weighted is not None and new._variance is not None:
            variance, made = self._weighted
            new._weighted = variance, made.extended(self.distribution, gallery, self.score)
        return new


class LaidOut:
    """Inputs of the op of one pair, of a gallery; panels and codes are made at their first use."""

    def __init__(
        self, pair: Pair, inputs: tuple[Array, Array], copies: list[Array], *, pack: bool, codes: bool | None
    ) -> None:
        self.pair, self.inputs, self._copies = pair, inputs, copies
        self._to_pack, self._to_code = pack, codes
        self._panels: list[Array] | None = None
        self._made = _event(inputs[0])
        self._codes: np.ndarray[Any, Any] | None = None
        # Buffers with spare rows, of a gallery that grows: of the inputs, by their positions, and of the codes.
        self._growing: dict[int, Array] = {}
        self.apart: tuple[Array, Array] | None = None
        """The gallery's arrays, of which the inputs are copies side by side: few queries search them sooner."""

    @property
    def nbytes(self) -> int:
        """Bytes held beside the gallery's arrays."""
        return _bytes([*self._copies, *(self._panels or ()), *(() if self._codes is None else (self._codes,))])

    @property
    def is_read_here(self) -> bool:
        """Whether an op of one inner product reads it on this machine: others take neither panels nor codes."""
        mu = self.inputs[0]
        return self.pair.op.layout == "panels" and device_of(mu) in ("numpy", "cpu") and not is_traced(mu)

    def complete(self) -> None:
        """Compute panels and codes ahead, too."""
        self.panels()
        self.codes()

    def panels(self) -> list[Array] | None:
        """The gallery as panels, with codes or not, or its squared norms on a GPU, for ops that search by products."""
        mu = self.inputs[0]
        if self._to_pack and self._panels is None and self.pair.op.layout == "panels":
            gains = len(mu) * mu.shape[1] >= MUCH
            coded = gains if self._to_code is None else self._to_code
            self._panels = kernels_of(mu).panels(self.pair.op, *self.inputs, coded)
            self._made = _event(mu)
        return self._panels

    def here(self) -> LaidOut:
        """Itself; on a GPU a stream that has not made it waits, on the device, for the one that has."""
        if self._made is not None and not is_captured(self.inputs[0]):
            stream = namespace(self.inputs[0]).cuda.current_stream(self.inputs[0].device)
            stream.wait_event(self._made)
            for x in (*self._copies, *(self._panels or ())):
                x.record_stream(stream)  # whose memory nobody else takes before
        return self

    def codes(self) -> np.ndarray[Any, Any] | None:
        """8-bit codes of the means, for the same ops; None for others."""
        if self._to_code and self._codes is None and self.is_read_here:
            self._codes = _numpy.codes(*self.inputs)
        return self._codes

    def extended(self, before: Distribution, gallery: Distribution, score: Score) -> LaidOut:
        """The same for a gallery that begins with the items `before`."""
        added = gallery_inputs(self.pair, gallery[len(before) :], score)
        new = LaidOut(self.pair, self.inputs, [], pack=False, codes=self._to_code)
        arrays = []
        for i, (old, rows) in enumerate(zip(self.inputs, added, strict=True)):
            if _takes_no_memory(old, before):
                arrays.append(_counterpart(old, before, gallery))
            else:
                arrays.append(self._grown(i, old, _detached(rows), new))
                new._copies.append(arrays[-1])
        new.inputs = arrays[0], arrays[1]
        if self._codes is not None:
            new._codes = self._grown(CODES, self._codes, _numpy.codes(*map(_detached, added)), new)
        return new

    def _grown(self, position: int, old: Array, rows: Array, new: LaidOut) -> Array:
        """An array with more rows, in its buffer if that has room, which is the new one's then and no other's."""
        new._growing[position] = appended(self._growing.pop(position, old), len(old), rows)
        return new._growing[position][: len(old) + len(rows)]


def _event(x: Array) -> Any:
    """An event after the work that the current stream has, for an array on a GPU that is in use; None elsewhere."""
    if not is_torch(x) or not x.is_cuda or not namespace(x).cuda.is_initialized() or is_captured(x):
        return None
    return namespace(x).cuda.current_stream(x.device).record_event()


def _bytes(arrays: Iterable[Array]) -> int:
    """Bytes of arrays, of which one row may stand for all."""
    return sum(int((x[:1] if is_repeated(x) else x).nbytes) for x in arrays)


def _side_by_side(mu: Array, uncertainty: Array) -> Array:
    if is_traced(mu) or transformed(mu):
        return namespace(mu).concatenate((mu, uncertainty), -1)
    rows = empty((len(mu), 2 * mu.shape[1]), mu)
    rows[:, : mu.shape[1]], rows[:, mu.shape[1] :] = mu, uncertainty
    return rows


def _made_again(
    gallery: Distribution[ArrayT], score: Score, pack: bool, codes: bool | None, pairs: Sequence[Pair], weighted: bool
) -> Prepared[ArrayT]:
    prepared = Prepared(gallery, score, pack=pack, codes=codes, pairs=pairs)
    if weighted:
        prepared.laid_out_for(gallery).complete()
    return prepared


def _detached(x: Array) -> Array:
    return x.detach() if is_torch(x) and x.requires_grad else x


def _address(x: Array) -> int:
    return int(x.data_ptr() if is_torch(x) else x.__array_interface__["data"][0])


def _takes_no_memory(x: Array, d: Distribution) -> bool:
    """Whether an input of an op is an array of the distribution itself, or one number that is repeated for all rows."""
    if is_traced(x) or transformed(x):  # such tensors have no address
        return any(x is array for array in d.arrays)
    strides = x.stride() if is_torch(x) else x.strides
    return 0 in strides or any(_address(x) == _address(array) for array in d.arrays)


def _counterpart(x: Array, d: Distribution, other: Distribution) -> Array:
    """The input of another distribution that corresponds to x, which `_takes_no_memory` beside the first."""
    for array, counterpart in zip(d.arrays, other.arrays, strict=True):
        if _address(x) == _address(array):
            return counterpart if x.ndim == array.ndim else counterpart[:, None]
    return namespace(x).broadcast_to(x[:1], (len(other), *x.shape[1:]))


@quiet
def prepare(
    gallery: Distribution[ArrayT],
    score: str | Score | None = None,
    dtype: str | None = None,
    *,
    codes: bool | None = None,
) -> Prepared[ArrayT]:
    """All that a score can compute ahead of its queries: a copy of the gallery packed for search, norms, shifted means.

    Parameters
    ----------
    gallery
        G items. Detached; not to be changed while the result is in use.
    score
        The score that the result is for, by default cosine of points and else mls; another one with it raises
        ValueError.
    dtype
        "float32", "float64", "float16" or "bfloat16", in which the copy is stored; by default the gallery's. Halves
        take half the memory, and half of what reranking and search read of it; they are widened to float32 and scored
        as that. A gallery in halves keeps its bits. Directions that become halves are rounded so that their length
        stays 1, by 1e-7 or so from D = 64 on: nearest rounding would move it by 1e-4 (float16) or 1e-3 (bfloat16), and
        the scores of sharp distributions with it.
    codes
        Whether to keep the means as 8-bit integers too, for scores of one inner product. What verbs return is the same
        to the last bit. By default `search` reads such integers first, and the means themselves of items that may be
        among the best k: D and some 5 bytes an item, from 4,096 items of 128 dimensions on, where the processor has
        AVX2. With True, `rerank` and `FaissReranker` do so too: D, rounded up to a multiple of 16, and 24 bytes an
        item. That pays where the gallery is larger than the cache, from D = 128 or so and several hundred candidates
        on. Lists of fewer than 8 k rows are scored without them, and of lists of more than 2048 those parts of 2048
        that have fewer. False: no integers.

    Returns
    -------
    Prepared
        With ``.nbytes``; every verb takes it wherever it takes a gallery.

    Raises
    ------
    TypeError
        gallery is not a distribution, or the score takes no such gallery; codes is not a bool or None, or they are
        asked for of a gallery that the score reads in another way, or on a GPU.
    ValueError
        Unknown score or dtype.

    Examples
    --------
    A gallery that is searched again and again, kept in halves:

    >>> gallery = pe.Normal([[0.0, 1.0], [1.0, 0.0], [0.6, 0.8]], var=[0.1, 0.1, 0.4])
    >>> ready = pe.prepare(gallery, "mls", dtype="float16")
    >>> pe.search(gallery[1:], ready, k=1, score="mls").ids.tolist()
    [[1], [0]]
    """
    record = named(score, gallery)
    if isinstance(gallery, Prepared):
        raise TypeError(f"prepare: gallery is prepared for {gallery.score.name!r} already, expected a distribution")
    require_distribution(record.name, "gallery", gallery)
    if dtype is not None and dtype not in FLOATING:
        raise ValueError(f"prepare: dtype {dtype!r}, expected float16, bfloat16, float32 or float64")
    if not (codes is None or isinstance(codes, (bool, np.bool_))):
        raise TypeError(f"prepare: codes is {codes!r}, expected True, False or None")
    codes = None if codes is None else bool(codes)
    gallery = gallery.detach()
    gallery.check_rows()
    kinds = [query for query, kind in record.pairs if kind == gallery.kind]
    if not kinds:
        raise TypeError(f"{record.name}: no query can be scored against {gallery.kind}")
    # Most queries have the gallery's kind and variance; what others need is computed when they come.
    prepared = Prepared(rounded(gallery, dtype or dtype_name(gallery.mu)), record, codes=codes)
    same_kind = gallery.kind in kinds
    if same_kind:
        laid_out = prepared.laid_out_for(prepared.distribution)
    else:
        laid_out = prepared.laid_out(record.pair(kinds[0], gallery.kind))
    if codes and not laid_out.is_read_here:
        what = f"{gallery.kind} on {device_of(gallery.mu)}"
        raise TypeError(
            f"prepare: codes=True, expected a score of one inner product on the CPU, got {record.name} of {what}"
        )
    laid_out.complete()
    return prepared


def gallery_inputs(pair: Pair, gallery: Distribution, score: Score) -> tuple[Array, Array]:
    """The gallery's inputs of the pair's op, in the compute dtype; halves where they are the gallery's arrays."""
    params = score.params
    dtype = gallery.home.compute_dtype
    if dtype == gallery.home.dtype:
        return pair.gallery(gallery, params)
    first = converted(gallery[:1], dtype)  # one row shows what the score makes of the arrays
    mu, uncertainty = pair.gallery(first, params)
    if pair.op.sampled or mu is not first.mu:
        return pair.gallery(converted(gallery, dtype), params)
    if uncertainty is first.arrays[-1]:
        return gallery.mu, gallery.arrays[-1]
    # The uncertainty is computed from the arrays; by blocks, so that they are not converted all at once.
    starts = range(0, len(gallery), BLOCK) or [0]
    parts = [pair.gallery(converted(gallery[i : i + BLOCK], dtype), params)[1] for i in starts]
    return gallery.mu, namespace(gallery.mu).concatenate(parts)
