"""A checked call of a score, and a gallery with all that a score can compute ahead of its queries."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from peaccel.distributions import Distribution
from peaccel.ops._array import (
    FLOATING,
    FLOATS,
    HALVES,
    Array,
    adjacent,
    appended,
    as_numpy,
    as_stored,
    describe,
    device_of,
    dtype_name,
    is_torch,
    is_traced,
    lies_adjacent,
    namespace,
    widened,
)
from peaccel.ops._op import differentiates, transformed
from peaccel.scores import Pair, Score, get

__all__ = ["Prepared", "prepare"]


class Prepared:
    """A gallery with all that a score can compute ahead: made by `prepare`, taken by every verb in place of a gallery.

    It can be copied, pickled and sent to other processes: as the gallery and the score, laid out anew where it arrives.

    Attributes
    ----------
    score
        What it is for: a copy, whose parameters nobody else changes. Passed to a verb, it need not be compared.
    distribution
        The gallery itself, in the dtype it is kept in; and its `kind`, `dim` and `mu` [G, D].

    Examples
    --------
    >>> gallery = pe.prepare(pe.Normal(np.zeros((3, 2)), np.ones((3, 2))), "llr:prior_var=1")
    >>> gallery.score, len(gallery), gallery.dim
    (Score('llr:prior_var=1.0,prior_mean=0.0'), 3, 2)
    """

    def __init__(self, gallery: Distribution, score: Score, *, pack: bool = True, pairs: Sequence[Pair] = ()) -> None:
        self.score = score.snapshot()
        self.distribution = gallery
        self.kind, self.dim, self.mu = gallery.kind, gallery.dim, gallery.mu
        self._pack = pack
        # By what a pair is, not by where it lies in memory: a score that was unpickled has pairs of its own.
        self._inputs: dict[Pair, tuple[Array, Array]] = {}
        self._panels: dict[Pair, list[np.ndarray[Any, Any]]] = {}
        self._copies: list[Array] = []
        # What was computed of a gallery that grows, with room for more rows, by pair and which of the two inputs it is.
        self._growing: dict[tuple[Pair, int], Array] = {}
        for pair in pairs:
            self.inputs(pair)
            self.panels(pair)

    def __reduce__(self) -> tuple[Any, ...]:
        return _laid_out, (self.distribution, self.score, self._pack, tuple(self._inputs))

    def __len__(self) -> int:
        return len(self.distribution)

    def __repr__(self) -> str:
        return f"Prepared({self.distribution!r}, score={self.score.name!r}, {self.nbytes / 2**20:.1f} MB)"

    @property
    def nbytes(self) -> int:
        """Bytes held, the gallery's own arrays included."""
        panels = (x for pair in self._panels.values() for x in pair)
        return sum(int(x.nbytes) for x in (*self.distribution.arrays, *self._copies, *panels))

    def inputs(self, pair: Pair) -> tuple[Array, Array]:
        """What the gallery hands to the pair's op; kept."""
        if pair not in self._inputs:
            mu, extra = (adjacent(_detached(x)) for x in handed(pair, self.distribution, self.score))
            if self._pack and pair.op.layout == "rows" and extra.shape == mu.shape:
                rows = pair.op.rows(mu, extra)
                self._copies.append(rows)
                mu, extra = rows[:, : self.dim], rows[:, self.dim :]
            else:
                self._copies += [x for x in (mu, extra) if not _is_read(x, self.distribution)]
            self._inputs[pair] = mu, extra
        return self._inputs[pair]

    def extended(self, gallery: Distribution) -> Prepared:
        """The same for a gallery whose first items are those of this one; nothing of these is computed again."""
        size, new = len(self), Prepared(gallery, self.score, pack=False)
        if not size:  # arrays of no items share an address
            return new
        for pair, inputs in self._inputs.items():
            arrays = []
            for i, (old, rows) in enumerate(zip(inputs, handed(pair, gallery[size:], self.score), strict=True)):
                if _is_read(old, self.distribution):
                    arrays.append(_read_likewise(old, self.distribution, gallery))
                else:
                    buffer = appended(self._growing.get((pair, i), old), size, _detached(rows))
                    new._growing[pair, i], grown = buffer, buffer[: len(gallery)]
                    arrays.append(grown)
                    new._copies.append(grown)
            new._inputs[pair] = arrays[0], arrays[1]
        return new

    def panels(self, pair: Pair) -> list[np.ndarray[Any, Any]] | None:
        """The gallery as panels, for ops that search such; kept."""
        wanted = self._pack and pair.op.layout == "panels" and dtype_name(self.mu) not in HALVES
        wanted = wanted and device_of(self.mu) in ("numpy", "cpu") and not is_traced(self.mu)
        if wanted and pair not in self._panels:
            self._panels[pair] = pair.op.panels(*self.inputs(pair))
        return self._panels.get(pair)


def _laid_out(gallery: Distribution, score: Score, pack: bool, pairs: Sequence[Pair]) -> Prepared:
    return Prepared(gallery, score, pack=pack, pairs=pairs)


def _detached(x: Array) -> Array:
    return x.detach() if is_torch(x) and x.requires_grad else x


def _start(x: Array) -> int:
    return int(x.data_ptr() if is_torch(x) else x.__array_interface__["data"][0])


def _is_read(x: Array, d: Distribution) -> bool:
    """Whether what is handed to an op costs no memory: an array of the distribution itself, or one number for all."""
    if is_traced(x) or transformed(x):  # which have no address
        return any(x is own for own in d.arrays)
    strides = x.stride() if is_torch(x) else x.strides
    return 0 in strides or any(_start(x) == _start(own) for own in d.arrays)


def _read_likewise(x: Array, d: Distribution, other: Distribution) -> Array:
    """What is to another distribution as x, which `_is_read`, is to the first."""
    for own, others in zip(d.arrays, other.arrays, strict=True):
        if _start(x) == _start(own):
            return others if x.ndim == own.ndim else others[:, None]
    return namespace(x).broadcast_to(x[:1], (len(other), *x.shape[1:]))


def prepare(gallery: Distribution, score: str | Score = "mls", dtype: str | None = None) -> Prepared:
    """All that a score can compute ahead of its queries: a copy of the gallery packed for search, norms, shifted means.

    Parameters
    ----------
    gallery
        G items. Detached; not to be changed while the result is in use.
    score
        The score that the result is for; another one with it raises ValueError.
    dtype
        "float32", "float64", "float16" or "bfloat16", which the copy is kept in; by default the gallery's own. Halves
        take half the memory, and half of what reranking reads of it; they are widened to float32 and scored as that.
        Directions are rounded so that their length stays 1, by 1e-7 or so from D = 64 on: nearest rounding would move
        it by 1e-4 (float16) or 1e-3 (bfloat16), and the scores of sharp distributions with it. Searched by many
        queries, halves are as fast as plain arrays, not as float32 panels.

    Returns
    -------
    Prepared
        With ``.nbytes``; every verb takes it wherever it takes a gallery.

    Raises
    ------
    TypeError
        gallery is not a distribution, or the score takes no such gallery.
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
    record = get(score)
    if isinstance(gallery, Prepared):
        raise TypeError(f"prepare: gallery is prepared for {gallery.score.name!r} already, expected a distribution")
    require_distribution(record, gallery, "gallery")
    if dtype is not None and dtype not in FLOATING:
        raise ValueError(f"prepare: dtype {dtype!r}, expected float16, bfloat16, float32 or float64")
    gallery = gallery.detach()
    gallery.check_signs()
    kinds = [query for query, kind in record.pairs if kind == gallery.kind]
    if not kinds:
        raise TypeError(f"{record.name}: no query can be scored against {gallery.kind}")
    # Most queries are of the gallery's own kind; what others need is computed when they come.
    pair = record.pair(gallery.kind if gallery.kind in kinds else kinds[0], gallery.kind)
    return Prepared(kept(gallery, dtype or dtype_name(gallery.mu)), record, pairs=[pair])


# -- checks ------------------------------------------------------------------------------------------------------------


def require_distribution(score: Score, d: object, name: str) -> None:
    if not isinstance(d, Distribution):
        hint = "; plain vectors go in pe.Point(x)" if is_torch(d) or isinstance(d, np.ndarray) else ""
        raise TypeError(f"{score.name}: {name} must be a distribution, got {type(d).__name__}{hint}")


def compute_dtype(d: Distribution | Prepared) -> str:
    name = dtype_name(d.mu)
    return name if name in FLOATS else "float32"


def cast(d: Distribution, dtype: str) -> Distribution:
    return (
        d if dtype_name(d.mu) == dtype else d.to(dtype if not is_torch(d.mu) else getattr(sys.modules["torch"], dtype))
    )


def kept(gallery: Distribution, dtype: str) -> Distribution:
    """The gallery in a dtype; in halves, with directions of unit length."""
    if dtype not in HALVES or not gallery._unit:
        return cast(gallery, dtype)
    narrow = cast(gallery, dtype)
    # On the CPU, wherever it is: once for a gallery, and bit by bit.
    given = gallery.mu.cpu() if is_torch(gallery.mu) else gallery.mu
    mu = narrow.mu.cpu().clone() if is_torch(gallery.mu) else narrow.mu.copy()
    for i in range(0, len(mu), HALVES_AT_ONCE):
        exact = as_numpy(given[i : i + HALVES_AT_ONCE]).astype(np.float64)
        norms = np.linalg.norm(exact, axis=1, keepdims=True)
        exact /= np.where(np.isfinite(norms) & (norms > 0), norms, 1.0)
        nearest = mu[i : i + HALVES_AT_ONCE]
        nearest[:] = sys.modules["torch"].from_numpy(exact) if is_torch(mu) else exact
        round_to_unit_length(exact, as_stored(nearest).view(np.uint16), dtype)
    mu = mu.to(gallery.mu.device) if is_torch(mu) else mu
    return type(gallery)(mu, *narrow.arrays[1:])


def round_to_unit_length(exact: np.ndarray[Any, Any], words: np.ndarray[Any, Any], dtype: str) -> None:
    """Moves halves, given as words next to the `exact` rows of unit length, to the other of the two halves around a
    number wherever that brings the row's length closer to 1; those first that lie near the middle of the two, which
    lose least by it. The direction's error grows by a tenth, that of the length falls a hundredfold and more."""

    def numbers(words: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        if dtype == "float16":
            return words.view(np.float16).astype(np.float64)
        return (words.astype(np.uint32) << 16).view(np.float32).astype(np.float64)

    # A word is sign and magnitude; beyond 0 and infinity it is NaN, which is closer to nothing.
    nearest = numbers(words)
    others = np.where(abs(nearest) < abs(exact), words + 1, words - 1)
    other = numbers(others)
    changes = np.ascontiguousarray((other**2 - nearest**2).T)
    middling = np.ascontiguousarray((abs(exact - nearest) > abs(other - nearest) / 4).T)
    excess, moved = (nearest**2).sum(1) - 1, np.zeros(changes.shape, bool)
    for eligible in (middling, ~middling):
        for d, change in enumerate(changes):
            closer = abs(excess + change) < abs(excess)
            closer &= eligible[d]
            moved[d] |= closer
            excess += np.where(closer, change, 0)
    words[:] = np.where(moved.T, others, words)


def handed(pair: Pair, gallery: Distribution, score: Score) -> tuple[Array, Array]:
    """What a gallery hands to the pair's op: in the compute dtype, but halves that the op takes as they are stay so."""
    params = score.params
    if dtype_name(gallery.mu) in FLOATS:
        return pair.gallery(gallery, params)
    dtype = compute_dtype(gallery)
    few = cast(gallery[:1], dtype)
    mu, extra = pair.gallery(few, params)
    if pair.op.sampled or mu is not few.mu:
        return pair.gallery(cast(gallery, dtype), params)
    if extra is few.arrays[-1]:
        return gallery.mu, gallery.arrays[-1]
    # An extra of its own; by blocks, for the sake of memory.
    starts = range(0, len(gallery), HALVES_AT_ONCE) or [0]
    parts = [pair.gallery(cast(gallery[i : i + HALVES_AT_ONCE], dtype), params)[1] for i in starts]
    return gallery.mu, namespace(gallery.mu).concatenate(parts)


HALVES_AT_ONCE = 8192  # rows


class Plan(NamedTuple):
    """A checked call: the op's inputs, the gallery's panels if it has any, and the candidates.

    Where not the whole gallery is among the inputs, candidates are numbers of those rows of it, ascending, that `rows`
    holds.
    """

    score: Score
    pair: Pair
    inputs: list[Array]
    panels: Callable[[], list[np.ndarray[Any, Any]] | None]
    candidates: Array = None
    rows: Array = None


def plan(
    queries: Distribution,
    gallery: Distribution | Prepared,
    score: str | Score,
    *,
    detach: bool,
    names: tuple[str, str] = ("queries", "gallery"),
    candidates: Array = None,
) -> Plan:
    prepared = gallery if isinstance(gallery, Prepared) else None
    record = get(score)
    if prepared is not None and record is not prepared.score and record != prepared.score:
        raise ValueError(f"{record.name}: {names[1]} is prepared for score {prepared.score.label}, got {record.label}")
    require_distribution(record, queries, names[0])
    if prepared is None:
        require_distribution(record, gallery, names[1])
    pair = record.pair(queries.kind, gallery.kind)
    if queries.dim != gallery.dim:
        raise ValueError(f"{record.name}: dim of {names[0]} is {queries.dim}, expected {gallery.dim} like {names[1]}")
    device, expected = device_of(queries.mu), device_of(gallery.mu)
    if device != expected:
        kind = TypeError if "numpy" in (device, expected) else ValueError
        raise kind(f"{record.name}: {names[0]} must be {plural(expected)} like {names[1]}, got {plural(device)}")
    if device not in ("numpy", "cpu") and not device.startswith("cuda"):
        raise ValueError(f"{record.name}: {names[0]} and {names[1]} are on {device}, expected cpu or cuda")

    dtype = compute_dtype(gallery)
    if candidates is not None:
        candidates = check_candidates(record, queries, candidates)
    if detach:
        queries = queries.detach()
        queries.check_signs()
        if isinstance(gallery, Distribution):
            gallery = gallery.detach()
            gallery.check_signs()
    first = pair.query(cast(queries, dtype), record.params)
    rest = pair.shared(first[0], record.params), *record.draws(pair, first[0])
    rows = None
    if prepared is not None:
        second = prepared.inputs(pair)
    else:
        plain: Any = gallery
        if candidates is not None and not (is_traced(plain.mu) or _is_taken_as_it_is(pair, plain, record)):
            candidates, rows = _touched(pair, plain.mu, candidates)
        second = handed(pair, plain if rows is None else plain[rows], record)
    if not detach and dtype_name(second[0]) in HALVES and differentiates([*first, *second, *rest]):
        # Gradients are those of float32.
        if candidates is not None and rows is None:
            candidates, rows = _touched(pair, second[0], candidates)
            second = second if rows is None else (second[0][rows], second[1][rows])
        second = widened(second[0]), widened(second[1])
    panels = prepared.panels if prepared is not None else _no_panels
    return Plan(record, pair, [*first, *second, *rest], lambda: panels(pair), candidates, rows)


def _no_panels(pair: Pair) -> None:
    return None


def _is_taken_as_it_is(pair: Pair, gallery: Distribution, score: Score) -> bool:
    """Whether the kernel reads the gallery's own arrays, so that all of it costs no more than a few candidates."""
    if not all(map(lies_adjacent, gallery.arrays)) or (pair.op.sampled and dtype_name(gallery.mu) in HALVES):
        return False
    few = cast(gallery[:1], compute_dtype(gallery))
    return all(_is_read(x, few) for x in pair.gallery(few, score.params))


def _touched(pair: Pair, mu: Array, candidates: Array) -> tuple[Array, Array]:
    """Candidates as numbers of the rows that they name, and these rows, ascending; the candidates and None where all
    rows are needed: draws go by the row, and what is traced, transformed or on a GPU cannot be looked at here."""
    free = device_of(mu) in ("numpy", "cpu") and not is_traced(mu) and not transformed(mu)
    if not free or pair.op.draws or math.prod(candidates.shape) >= len(mu):
        return candidates, None
    ids = as_numpy(candidates)
    rows, numbers = np.unique(ids, return_inverse=True)
    if len(rows) and (rows[0] < -1 or rows[-1] >= len(mu)):
        return candidates, None  # the kernel says so
    none = int(len(rows) > 0 and rows[0] == -1)
    rows, numbers = rows[none:], numbers.reshape(ids.shape) - none
    from_numpy = sys.modules["torch"].from_numpy if is_torch(mu) else np.asarray
    return from_numpy(numbers), from_numpy(rows)


def check_candidates(score: Score, queries: Distribution, candidates: Array) -> Array:
    """candidates as int64 [Q, K] of the queries' kind."""
    if not (is_torch(candidates) or isinstance(candidates, np.ndarray)):
        try:
            candidates = np.asarray(candidates)
            candidates = candidates if candidates.size else candidates.astype(np.int64)  # an empty list has no dtype
        except ValueError:
            raise ValueError(f"{score.name}: candidates have rows of different lengths, expected [Q, K]") from None
    if candidates.ndim != 2 or candidates.shape[0] != len(queries):
        shape = tuple(candidates.shape)
        raise ValueError(f"{score.name}: candidates have shape {shape}, expected ({len(queries)}, K): a row per query")
    name = dtype_name(candidates)
    if not name.startswith(("int", "uint")):
        raise ValueError(f"{score.name}: candidates have dtype {name}, expected an integer dtype")
    device, expected = device_of(candidates), device_of(queries.mu)
    if device != expected:
        raise TypeError(f"{score.name}: candidates are {plural(device)}, expected {plural(expected)} like queries")
    if is_torch(candidates):
        return candidates.long()
    if name == "uint64" and candidates.size and candidates.max() > np.iinfo(np.int64).max:
        raise ValueError(f"{score.name}: candidates hold id {candidates.max()}, beyond int64")
    return candidates.astype(np.int64, copy=False)


def plural(device: str) -> str:
    return describe(device).removeprefix("a ").replace("array", "arrays").replace("tensor", "tensors")
