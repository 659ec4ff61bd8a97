"""The verbs: score pairs, rerank candidates, search galleries; and FAISS as the first stage.

All verbs take distributions (or, as gallery, a `Prepared`) and a score by name or record. numpy in, numpy out; torch
in, torch out. `paired`, `pairwise` and `rescore` differentiate in torch (twice); `rerank` and `search` are detached. A
pair has the same score, to the last bit, from every verb.
"""

from __future__ import annotations

import operator
import os
import sys
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import numpy as np

from peaccel import _core
from peaccel.distributions import Distribution
from peaccel.ops._array import Array, as_array, as_numpy, device_of, dtype_name, is_torch
from peaccel.prepared import Plan, Prepared, cast, compute_dtype, plural, require_distribution, same, spell
from peaccel.prepared import plan as checked
from peaccel.scores import Score, get

__all__ = ["FaissReranker", "Ranking", "paired", "pairwise", "rerank", "rescore", "search"]


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


def _check_candidates(score: Score, queries: Distribution, candidates: Array) -> Array:
    """candidates as int64 [Q, K] of the queries' kind."""
    if not (is_torch(candidates) or isinstance(candidates, np.ndarray)):
        try:
            candidates = np.asarray(candidates)
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
    plan = checked(a, b, score, detach=False)
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
    plan = checked(queries, gallery, score, detach=False)
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
    plan = checked(queries, gallery, score, detach=False)
    rows = _check_candidates(plan.score, queries, candidates)
    try:
        return plan.pair.op.scores(plan.inputs, rows)
    except ValueError as error:
        raise _named(plan, error) from None


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
    plan = checked(queries, gallery, score, detach=True)
    k = _check_k(plan.score, k)
    rows = as_numpy(_check_candidates(plan.score, queries, candidates))
    return _returned(_best(plan, rows, k), queries)


def _named(plan: Plan, error: ValueError) -> ValueError:
    """What a kernel says of its input, in the name of the score that the caller knows."""
    return ValueError(str(error).replace(f"{plan.pair.op.name}:", f"{plan.score.name}:", 1))


def _best(plan: Plan, rows: np.ndarray[Any, Any], k: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    try:
        scores = plan.pair.op.numpy_scores(plan.inputs, rows, False)
    except ValueError as error:
        raise _named(plan, error) from None
    best = np.empty((len(rows), k), scores.dtype), np.empty((len(rows), k), np.int64)
    _core.select(scores, np.ascontiguousarray(rows), *best)
    return best


def search(queries: Distribution, gallery: Distribution | Prepared, k: int, score: str | Score = "mls") -> Ranking:
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
    plan = checked(queries, gallery, score, detach=True)
    k = _check_k(plan.score, k)
    return _returned(plan.pair.op.numpy_search(plan.inputs, plan.panels(), k), queries)


# -- FAISS -------------------------------------------------------------------------------------------------------------

Features = Literal["mu", "unit"] | Callable[[Distribution], Array]


class FaissReranker:
    """A FAISS index as the first stage, a score of distributions as the second.

    The index proposes a shortlist by whatever it holds; the gallery's own parameters, never the index's (which may be
    lossy), decide the ranking.

    Parameters
    ----------
    index
        Any FAISS index of G items, flat, IVF, HNSW, PQ, IDMap ..., or the path of a file that holds one.
    gallery
        The G items, in the order in which they were added to the index; or a `Prepared`.
    score
        As in `paired`.
    ids
        Integers [G]: the ids that the index returns for the gallery's rows, all different; None where they are the
        rows.
    features
        What of the queries is sent to the index: "mu", "unit" (mu scaled to norm 1), or ``queries -> [Q, d]``.

    Raises
    ------
    TypeError
        index is not a FAISS index; gallery is not a distribution.
    ValueError
        index, gallery and ids of different sizes; repeated ids; unknown features; a file that holds no index.
    FileNotFoundError, ImportError
        No such file; FAISS is not installed.
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
        if isinstance(index, (str, os.PathLike)):
            index = _read_index(os.fspath(index))
        if not (hasattr(index, "search") and hasattr(index, "ntotal")):
            raise TypeError(f"FaissReranker: index must be a FAISS index, got {type(index).__name__}")
        if isinstance(gallery, Prepared):
            if not same(self.score, gallery.score):
                own = spell(gallery.score)
                raise ValueError(f"FaissReranker: gallery is prepared for score {own}, got {spell(self.score)}")
            self.gallery = gallery
        else:
            require_distribution(self.score, gallery, "gallery")
            self.gallery = Prepared(cast(gallery.detach(), compute_dtype(gallery)), self.score, pack=False)
        if index.ntotal != len(gallery):
            raise ValueError(f"FaissReranker: index holds {index.ntotal} items, expected {len(gallery)} like gallery")
        if not (callable(features) or (isinstance(features, str) and features in ("mu", "unit"))):
            got = features if isinstance(features, str) else type(features).__name__
            raise ValueError(f"FaissReranker: features {got!r}, expected 'mu', 'unit' or a callable")
        self.index = index
        self.features = features
        self._external = None if ids is None else _external_ids(ids, len(gallery))
        self._rows = None if self._external is None else np.argsort(self._external)

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
        require_distribution(get(score), gallery, "gallery")
        try:
            import faiss
        except ImportError:
            raise ImportError("FaissReranker.build needs FAISS: pip install peaccel[faiss]") from None
        try:
            index = faiss.index_factory(gallery.dim, factory, faiss.METRIC_INNER_PRODUCT)
        except RuntimeError:
            raise ValueError(f"FaissReranker.build: factory {factory!r} is not a FAISS factory string") from None
        vectors = _unit(gallery)
        try:
            if not index.is_trained:
                index.train(vectors)
            index.add(vectors)
        except RuntimeError:
            what = f"factory {factory!r} cannot be trained on {len(gallery)} items"
            raise ValueError(f"FaissReranker.build: {what}") from None
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
        plan = checked(queries, self.gallery, self.score, detach=True)
        k, shortlist = _check_k(self.score, k), _check_k(self.score, shortlist, "shortlist")
        vectors = self._vectors(queries)
        _, found = (
            self.index.search(vectors, shortlist, params=params) if params else self.index.search(vectors, shortlist)
        )
        scores, rows = _best(plan, self._to_rows(found), k)
        if self._external is not None:
            rows = np.where(rows >= 0, self._external[rows], -1) if len(self._external) else rows
        return _returned((scores, rows), queries)

    def _vectors(self, queries: Distribution) -> np.ndarray[Any, Any]:
        """What is sent to the index: float32 [Q, d]."""
        if callable(self.features):
            vectors = as_numpy(as_array(self.features(queries), "FaissReranker", "features of the queries"))
        else:
            vectors = _unit(queries) if self.features == "unit" else as_numpy(queries.mu)
        if vectors.shape != (len(queries), self.index.d):
            expected = (len(queries), self.index.d)
            raise ValueError(
                f"FaissReranker: features of the queries have shape {vectors.shape}, the index takes {expected}"
            )
        return np.ascontiguousarray(vectors, np.float32)

    def _to_rows(self, found: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Gallery rows of the index's ids; -1 stays -1."""
        if self._external is None or self._rows is None:
            if found.size and found.max() >= len(self.gallery):
                got, rows = found.max(), len(self.gallery)
                raise ValueError(f"FaissReranker: index returned id {got}, gallery has {rows} rows; pass its ids")
            return found
        if not len(self.gallery):
            return np.full_like(found, -1)
        places = np.searchsorted(self._external, found, sorter=self._rows).clip(max=len(self._rows) - 1)
        rows = self._rows[places]
        known = self._external[rows] == found
        if not (known | (found < 0)).all():
            raise ValueError(f"FaissReranker: index returned id {found[~known & (found >= 0)][0]}, which ids lacks")
        return np.where(known, rows, -1)


def _faiss() -> Any:
    try:
        import faiss
    except ImportError:
        raise ImportError("FaissReranker needs FAISS: pip install peaccel[faiss]") from None
    return faiss


def _read_index(path: str) -> Any:
    """The FAISS index in a file."""
    if not os.path.isfile(path):
        raise FileNotFoundError(f"{path}: no such file")
    faiss = _faiss()
    try:
        return faiss.read_index(path)
    except RuntimeError as error:
        reason = str(error).strip().rpartition("\n")[2]
        raise ValueError(f"{path}: is not a FAISS index, or is truncated ({reason})") from None


def _external_ids(ids: Array, size: int) -> np.ndarray[Any, Any]:
    """Checked ids, int64 [G]."""
    given = as_numpy(ids) if is_torch(ids) else np.asarray(ids)
    if given.shape != (size,) or given.dtype.kind not in "iu":
        got = f"shape {given.shape} and dtype {given.dtype}"
        raise ValueError(f"FaissReranker: ids have {got}, expected integers ({size},)")
    outside = given[(given < 0) | (given > np.iinfo(np.int64).max)]
    if len(outside):
        raise ValueError(f"FaissReranker: ids hold {outside[0]}, expected 0 .. 2^63 - 1")
    ordered = np.sort(given)
    repeated = ordered[1:][ordered[1:] == ordered[:-1]]
    if len(repeated):
        raise ValueError(f"FaissReranker: ids hold {repeated[0]} twice")
    return given.astype(np.int64)


def _unit(d: Distribution) -> np.ndarray[Any, Any]:
    """The directions, float32 [N, D]; a zero vector stays zero."""
    mu = as_numpy(d.mu).astype(np.float32)
    norms = np.linalg.norm(mu, axis=1, keepdims=True)
    return mu / np.where(norms > 0, norms, 1)
