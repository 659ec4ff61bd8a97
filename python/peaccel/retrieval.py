"""The verbs: score pairs, rerank candidates, search galleries; and FAISS as the first stage.

All verbs take distributions (or, as gallery, a `Prepared`) and a score by name or record. numpy in, numpy out; torch in,
torch out. `paired`, `pairwise` and `rescore` differentiate in torch (twice); `rerank` and `search` are detached. A pair has
the same score, to the last bit, from every verb.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import numpy as np

from peaccel import _core
from peaccel.distributions import Distribution
from peaccel.ops._array import (
    FLOATS,
    Array,
    as_numpy,
    describe,
    device_of,
    dtype_name,
    is_torch,
)
from peaccel.scores import Pair, Score, get

__all__ = ["CudaError", "FaissReranker", "Prepared", "Ranking", "paired", "pairwise", "prepare", "rerank", "rescore", "search"]


class CudaError(RuntimeError):
    """CUDA cannot be used; the message says why."""


class Ranking(NamedTuple):
    """The best items of each query, best first: higher score, then NaN, then padding; ties go to the lower gallery row.

    Attributes
    ----------
    scores
        [Q, k]; -inf where there are fewer than k items.
    ids
        int64 [Q, k]; gallery rows (or external ids); -1 where there are fewer than k items.
    """

    scores: Array
    ids: Array


class Prepared:
    """A gallery with all that a score can compute ahead: made by `prepare`, taken by every verb in place of a gallery."""

    def __init__(self, gallery: Distribution, score: Score) -> None:
        self.score = score
        self._gallery = gallery
        self._inputs: dict[int, tuple[Array, Array]] = {}
        self._packed: dict[int, list[np.ndarray[Any, Any]]] = {}

    @property
    def kind(self) -> str:
        """The kind of the gallery."""
        return self._gallery.kind

    @property
    def dim(self) -> int:
        """D."""
        return self._gallery.dim

    def __len__(self) -> int:
        return len(self._gallery)

    def __repr__(self) -> str:
        return f"Prepared({self._gallery!r}, score={self.score.name!r}, {self.nbytes / 2**20:.1f} MB)"

    @property
    def mu(self) -> Array:
        """[G, D], in the compute dtype."""
        return self._gallery.mu

    @property
    def nbytes(self) -> int:
        """Bytes held, the gallery's own arrays included."""
        arrays = list(self._gallery.arrays)
        for mu, extra in self._inputs.values():
            arrays += [x for x in (mu, extra) if not any(x is own for own in arrays)]
        packed = sum(x.nbytes for pack in self._packed.values() for x in pack)
        return packed + sum(_stored_bytes(x) for x in arrays)

    def inputs(self, pair: Pair) -> tuple[Array, Array]:
        """What the gallery hands to the pair's op; kept."""
        key = id(pair)
        if key not in self._inputs:
            self._inputs[key] = pair.gallery(self._gallery, self.score.params)
        return self._inputs[key]

    def packed(self, pair: Pair) -> list[np.ndarray[Any, Any]] | None:
        """The packed gallery, for ops that search one; kept."""
        if pair.op.packs and id(pair) not in self._packed:
            self._packed[id(pair)] = pair.op.pack(self.inputs(pair)[0])
        return self._packed.get(id(pair))


def _stored_bytes(x: Array) -> int:
    """Bytes behind an array; one that repeats an element takes none worth counting."""
    x = as_numpy(x)
    return 0 if 0 in x.strides else x.nbytes


def prepare(gallery: Distribution, score: str | Score = "mls", dtype: str | None = None) -> Prepared:
    """All that a score can compute ahead of its queries: a copy of the gallery packed for search, norms, shifted means.

    Parameters
    ----------
    gallery
        G items. Detached; not to be changed while the result is in use.
    score
        The score that the result is for; another one with it raises ValueError.
    dtype
        "float32" or "float64": the compute dtype; by default the gallery's own (float32 for halves).

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
    """
    record = get(score)
    if isinstance(gallery, Prepared):
        raise TypeError(f"prepare: gallery is prepared for {gallery.score.name!r} already, expected a distribution")
    _require_distribution(record, gallery, "gallery")
    if dtype is not None and dtype not in FLOATS:
        raise ValueError(f"prepare: dtype {dtype!r}, expected 'float32' or 'float64'")
    prepared = Prepared(_cast(gallery.detach(), dtype or _compute_dtype(gallery)), record)
    pairs = [pair for (_, kind), pair in record.pairs.items() if kind == gallery.kind]
    if not pairs:
        raise TypeError(f"{record.name}: no query can be scored against {gallery.kind}")
    # Most queries are of the gallery's own kind; what others need is computed when they come.
    pair = record.pairs.get((gallery.kind, gallery.kind), pairs[0])
    prepared.inputs(pair)
    prepared.packed(pair)
    return prepared


# -- checks ------------------------------------------------------------------------------------------------------------


def _require_distribution(score: Score, d: object, name: str) -> None:
    if not isinstance(d, Distribution):
        hint = "; plain vectors go in pe.Point(x)" if is_torch(d) or isinstance(d, np.ndarray) else ""
        raise TypeError(f"{score.name}: {name} must be a distribution, got {type(d).__name__}{hint}")


def _compute_dtype(d: Distribution | Prepared) -> str:
    name = dtype_name(d.mu)
    return name if name in FLOATS else "float32"


def _cast(d: Distribution, dtype: str) -> Distribution:
    return d if dtype_name(d.mu) == dtype else d.to(dtype if not is_torch(d.mu) else getattr(sys.modules["torch"], dtype))


class _Plan(NamedTuple):
    """A checked call: the op's inputs, and the gallery's packed form if it has one."""

    score: Score
    pair: Pair
    inputs: list[Array]
    packed: Callable[[], list[np.ndarray[Any, Any]] | None]


def _plan(queries: Distribution, gallery: Distribution | Prepared, score: str | Score, *, detach: bool) -> _Plan:
    prepared = gallery if isinstance(gallery, Prepared) else None
    record = get(score)
    if prepared is not None and not _same(record, prepared.score):
        got, own = _spell(record), _spell(prepared.score)
        raise ValueError(f"{record.name}: gallery is prepared for score {own}, got {got}")
    _require_distribution(record, queries, "queries")
    if prepared is None:
        _require_distribution(record, gallery, "gallery")
    pair = record.pair(queries.kind, gallery.kind)
    if queries.dim != gallery.dim:
        raise ValueError(f"{record.name}: queries have dim {queries.dim}, expected {gallery.dim} like gallery")
    device, expected = device_of(queries.mu), device_of(gallery.mu)
    if device != expected:
        kind = TypeError if "numpy" in (device, expected) else ValueError
        raise kind(f"{record.name}: queries are {_plural(device)}, expected {_plural(expected)} like gallery")
    if device not in ("numpy", "cpu"):
        raise CudaError(f"{record.name}: queries and gallery are on {device}, and this build has no kernels for it")

    dtype = _compute_dtype(gallery)
    if detach:
        queries = queries.detach()
    first = pair.query(_cast(queries, dtype), record.params)
    if prepared is not None:
        second = prepared.inputs(pair)
    else:
        plain: Any = gallery.detach() if detach and isinstance(gallery, Distribution) else gallery
        second = pair.gallery(_cast(plain, dtype), record.params)
    shared = _shared_row(pair.shared(gallery.dim, record.params), first[0])
    return _Plan(
        record, pair, [*first, *second, shared], lambda: prepared.packed(pair) if prepared is not None else None
    )


def _plural(device: str) -> str:
    return describe(device).removeprefix("a ").replace("array", "arrays").replace("tensor", "tensors")


def _shared_row(value: Any, mu: Array) -> Array:
    """The shared numbers as [S] of mu's kind and dtype; gradients of a tensor are kept."""
    if is_torch(mu):
        torch = sys.modules["torch"]
        return value.to(mu).reshape(-1) if is_torch(value) else torch.as_tensor(value, dtype=mu.dtype).reshape(-1)
    return np.asarray(value, mu.dtype).reshape(-1)


def _same(a: Score, b: Score) -> bool:
    if a is b:
        return True
    if a.name != b.name:
        return False
    return all(a.params[k] is b.params[k] or np.array_equal(a.params[k], b.params[k]) for k in a.params)


def _spell(score: Score) -> str:
    return score.name + "".join(f" {k}={np.asarray(v).tolist() if np.ndim(v) == 0 else '[...]'}" for k, v in score.params.items())


def _check_candidates(score: Score, queries: Distribution, candidates: Array) -> Array:
    """candidates as int64 [Q, K] of the queries' kind."""
    if not (is_torch(candidates) or isinstance(candidates, np.ndarray)):
        candidates = np.asarray(candidates)
    if candidates.ndim != 2 or candidates.shape[0] != len(queries):
        shape = tuple(candidates.shape)
        raise ValueError(f"{score.name}: candidates have shape {shape}, expected ({len(queries)}, K): a row per query")
    name = dtype_name(candidates)
    if not name.startswith(("int", "uint")):
        raise ValueError(f"{score.name}: candidates have dtype {name}, expected an integer dtype")
    device, expected = device_of(candidates), device_of(queries.mu)
    if device != expected:
        raise TypeError(f"{score.name}: candidates are {_plural(device)}, expected {_plural(expected)} like queries")
    if is_torch(candidates):
        return candidates.long()
    if name == "uint64" and candidates.size and candidates.max() > np.iinfo(np.int64).max:
        raise ValueError(f"{score.name}: candidates hold id {candidates.max()}, beyond int64")
    return candidates.astype(np.int64, copy=False)


def _check_k(score: Score, k: int, name: str = "k") -> int:
    try:
        k = operator.index(k)
    except TypeError:
        raise TypeError(f"{score.name}: {name} must be an integer, got {type(k).__name__}") from None
    if k < 1:
        raise ValueError(f"{score.name}: {name} is {k}, expected at least 1")
    return k


def _returned(arrays: tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]], queries: Distribution) -> Ranking:
    if is_torch(queries.mu):
        torch = sys.modules["torch"]
        return Ranking(*map(torch.from_numpy, arrays))
    return Ranking(*arrays)


# -- verbs -------------------------------------------------------------------------------------------------------------


def paired(a: Distribution, b: Distribution | Prepared, score: str | Score = "mls") -> Array:
    """Scores of item i of `a` with item i of `b`.

    Parameters
    ----------
    a, b
        N items each, of one dim, kind of array, dtype and device.
    score
        A name, ``"name:param=number"`` or a `Score`; higher = more similar.

    Returns
    -------
    [N], in the compute dtype (float32 for halves). Differentiable in torch, twice.

    Raises
    ------
    TypeError
        Not distributions, a pair of kinds that the score lacks, numpy beside torch.
    ValueError
        Different lengths, dims, dtypes or devices; an unknown score.
    """
    plan = _plan(a, b, score, detach=False)
    if len(a) != len(b):
        raise ValueError(f"{plan.score.name}: b has {len(b)} items, expected {len(a)} like a")
    if dtype_name(a.mu) != dtype_name(b.mu):
        raise ValueError(f"{plan.score.name}: b has dtype {dtype_name(b.mu)}, expected {dtype_name(a.mu)} like a")
    return plan.pair.op.scores(plan.inputs)


def pairwise(queries: Distribution, gallery: Distribution | Prepared, score: str | Score = "mls") -> Array:
    """Scores of every query with every gallery item.

    Parameters
    ----------
    queries, gallery
        Q and G items of one dim; queries are cast to the gallery's dtype.
    score
        As in `paired`.

    Returns
    -------
    [Q, G]. Differentiable in torch, twice.

    Raises
    ------
    TypeError, ValueError
        As `paired`.
    """
    plan = _plan(queries, gallery, score, detach=False)
    return plan.pair.op.scores(plan.inputs, pairwise=True)


def rescore(
    queries: Distribution, gallery: Distribution | Prepared, candidates: Array, score: str | Score = "mls"
) -> Array:
    """Scores of each query with its candidates.

    Parameters
    ----------
    queries, gallery
        Q and G items of one dim; queries are cast to the gallery's dtype.
    candidates
        Integers [Q, K]: rows of the gallery; -1 = none.
    score
        As in `paired`.

    Returns
    -------
    [Q, K]; -inf for candidate -1. Differentiable in torch, twice.

    Raises
    ------
    TypeError, ValueError
        As `paired`; candidates of another shape or dtype or outside -1 .. G-1.
    """
    plan = _plan(queries, gallery, score, detach=False)
    return plan.pair.op.scores(plan.inputs, _check_candidates(plan.score, queries, candidates))


def rerank(
    queries: Distribution, gallery: Distribution | Prepared, candidates: Array, k: int, score: str | Score = "mls"
) -> Ranking:
    """The best k candidates of each query.

    Parameters
    ----------
    queries, gallery, candidates, score
        As in `rescore`.
    k
        How many to return, >= 1; more than K pads.

    Returns
    -------
    Ranking
        Scores and gallery rows [Q, k], best first. Detached.

    Raises
    ------
    TypeError, ValueError
        As `rescore`; k below 1 or not an integer.
    """
    plan = _plan(queries, gallery, score, detach=True)
    k = _check_k(plan.score, k)
    rows = as_numpy(_check_candidates(plan.score, queries, candidates))
    return _returned(_best(plan, rows, k), queries)


def _best(
    plan: _Plan, rows: np.ndarray[Any, Any], k: int
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    scores = plan.pair.op.numpy_scores(plan.inputs, rows, False)
    best = np.empty((len(rows), k), scores.dtype), np.empty((len(rows), k), np.int64)
    _core.select(scores, np.ascontiguousarray(rows), *best)
    return best


def search(
    queries: Distribution, gallery: Distribution | Prepared, k: int, score: str | Score = "mls"
) -> Ranking:
    """The exact best k of the whole gallery for each query, without a Q x G matrix.

    Parameters
    ----------
    queries, gallery, score
        As in `pairwise`; `prepare` the gallery where it is searched more than once.
    k
        How many to return, >= 1; more than G pads.

    Returns
    -------
    Ranking
        Scores and gallery rows [Q, k], best first. Detached.

    Raises
    ------
    TypeError, ValueError
        As `pairwise`; k below 1 or not an integer.
    """
    plan = _plan(queries, gallery, score, detach=True)
    k = _check_k(plan.score, k)
    return _returned(plan.pair.op.numpy_search(plan.inputs, plan.packed(), k), queries)


# -- FAISS -------------------------------------------------------------------------------------------------------------

Features = Literal["mu", "unit"] | Callable[[Distribution], Array]


class FaissReranker:
    """A FAISS index as the first stage, a score of distributions as the second.

    The index proposes a shortlist by whatever it holds; the gallery's own parameters, never the index's (which may be
    lossy), decide the ranking.

    Parameters
    ----------
    index
        Any FAISS index of G items: flat, IVF, HNSW, PQ, IDMap ...
    gallery
        The G items, in the order in which they were added to the index; or a `Prepared`.
    score
        As in `paired`.
    ids
        Integers [G]: the ids that the index returns for the gallery's rows, all different; None where they are the rows.
    features
        What of the queries is sent to the index: "mu", "unit" (mu scaled to norm 1), or ``queries -> [Q, d]``.

    Raises
    ------
    TypeError
        index is not a FAISS index; gallery is not a distribution.
    ValueError
        index, gallery and ids of different sizes; repeated ids; unknown features.
    """

    def __init__(
        self,
        index: Any,
        gallery: Distribution | Prepared,
        score: str | Score = "mls",
        ids: Array | None = None,
        features: Features = "mu",
    ) -> None:
        self.score = get(score)
        if not (hasattr(index, "search") and hasattr(index, "ntotal")):
            raise TypeError(f"FaissReranker: index must be a FAISS index, got {type(index).__name__}")
        if isinstance(gallery, Prepared):
            if not _same(self.score, gallery.score):
                own = _spell(gallery.score)
                raise ValueError(f"FaissReranker: gallery is prepared for score {own}, got {_spell(self.score)}")
            self.gallery = gallery
        else:
            _require_distribution(self.score, gallery, "gallery")
            self.gallery = Prepared(_cast(gallery.detach(), _compute_dtype(gallery)), self.score)
        if index.ntotal != len(gallery):
            raise ValueError(f"FaissReranker: index holds {index.ntotal} items, expected {len(gallery)} like gallery")
        if not (callable(features) or features in ("mu", "unit")):
            raise ValueError(f"FaissReranker: features {features!r}, expected 'mu', 'unit' or a callable")
        self.index = index
        self.features = features
        self._ids, self._rows = _sorted_ids(ids, len(gallery))
        self._external = None if ids is None else np.asarray(as_numpy(ids), np.int64)

    @classmethod
    def build(
        cls,
        gallery: Distribution,
        factory: str = "HNSW32",
        first_stage: Literal["cosine"] = "cosine",
        score: str | Score = "mls",
    ) -> FaissReranker:
        """An index of the gallery's directions, by inner product, and a reranker over it.

        Parameters
        ----------
        gallery
            G items.
        factory
            A FAISS factory string, such as "Flat", "HNSW32", "IVF1024,Flat", "IVF1024,PQ32".
        first_stage
            "cosine": what the index ranks by.
        score
            As in `paired`.

        Raises
        ------
        ImportError
            FAISS is not installed.
        ValueError
            A factory string that FAISS does not take; an unknown first stage.
        """
        if first_stage != "cosine":
            raise ValueError(f"FaissReranker.build: first_stage {first_stage!r}, expected 'cosine'")
        _require_distribution(get(score), gallery, "gallery")
        try:
            import faiss  # noqa: PLC0415  (an optional dependency)
        except ImportError:
            raise ImportError("FaissReranker.build needs FAISS: pip install peaccel[faiss]") from None
        try:
            index = faiss.index_factory(gallery.dim, factory, faiss.METRIC_INNER_PRODUCT)
        except RuntimeError:
            raise ValueError(f"FaissReranker.build: factory {factory!r} is not a FAISS factory string") from None
        vectors = _unit(gallery)
        if not index.is_trained:
            index.train(vectors)
        index.add(vectors)
        return cls(index, gallery, score=score, features="unit")

    def search(self, queries: Distribution, k: int, shortlist: int = 100, params: Any = None) -> Ranking:
        """The best k of the shortlist that the index proposes for each query.

        Parameters
        ----------
        queries
            Q items that the score takes beside the gallery.
        k
            How many to return, >= 1; more than the shortlist pads.
        shortlist
            How many the index proposes, >= 1.
        params
            FAISS search parameters (``faiss.SearchParametersHNSW(efSearch=128)`` ...), passed through.

        Returns
        -------
        Ranking
            Scores and ids [Q, k], best first; ids are the external ones where the reranker was given any.

        Raises
        ------
        TypeError, ValueError
            As `rerank`; features of another width than the index; ids from the index that the gallery lacks.
        """
        plan = _plan(queries, self.gallery, self.score, detach=True)
        k, shortlist = _check_k(self.score, k), _check_k(self.score, shortlist, "shortlist")
        vectors = self._vectors(queries)
        _, found = self.index.search(vectors, shortlist, params=params) if params else self.index.search(vectors, shortlist)
        scores, rows = _best(plan, self._to_rows(found), k)
        if self._external is not None:
            rows = np.where(rows >= 0, self._external[rows], -1)
        return _returned((scores, rows), queries)

    def _vectors(self, queries: Distribution) -> np.ndarray[Any, Any]:
        """What is sent to the index: float32 [Q, d]."""
        if callable(self.features):
            vectors = as_numpy(self.features(queries))
        else:
            vectors = _unit(queries) if self.features == "unit" else as_numpy(queries.mu)
        if vectors.shape != (len(queries), self.index.d):
            expected = (len(queries), self.index.d)
            raise ValueError(f"FaissReranker: features of the queries have shape {vectors.shape}, the index takes {expected}")
        return np.ascontiguousarray(vectors, np.float32)

    def _to_rows(self, found: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Gallery rows of the index's ids; -1 stays -1."""
        if self._ids is None or self._rows is None:
            if found.size and found.max() >= len(self.gallery):
                raise ValueError(
                    f"FaissReranker: index returned id {found.max()}, gallery has {len(self.gallery)} rows; pass its ids"
                )
            return found
        places = np.searchsorted(self._ids, found).clip(max=len(self._ids) - 1)
        known = self._ids[places] == found
        if not (known | (found < 0)).all():
            raise ValueError(f"FaissReranker: index returned id {found[~known & (found >= 0)][0]}, which ids lacks")
        return np.where(known, self._rows[places], -1)


def _sorted_ids(
    ids: Array | None, size: int
) -> tuple[np.ndarray[Any, Any] | None, np.ndarray[Any, Any] | None]:
    """External ids in ascending order and the rows that they stand for."""
    if ids is None:
        return None, None
    given = np.asarray(as_numpy(ids) if is_torch(ids) else ids)
    if given.shape != (size,) or given.dtype.kind not in "iu":
        raise ValueError(f"FaissReranker: ids have shape {given.shape} and dtype {given.dtype}, expected integers ({size},)")
    rows = np.argsort(given, kind="stable")
    ordered = given[rows].astype(np.int64)
    if (ordered[1:] == ordered[:-1]).any():
        raise ValueError(f"FaissReranker: ids hold {ordered[:-1][ordered[1:] == ordered[:-1]][0]} twice")
    return ordered, rows


def _unit(d: Distribution) -> np.ndarray[Any, Any]:
    """The directions, float32 [N, D]; a zero vector stays zero."""
    mu = as_numpy(d.mu).astype(np.float32)
    norms = np.linalg.norm(mu, axis=1, keepdims=True)
    return mu / np.where(norms > 0, norms, 1)
