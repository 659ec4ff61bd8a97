"""FAISS as the first stage: its index proposes, a score of distributions decides."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Literal

import numpy as np

from peaccel.distributions import Distribution
from peaccel.ops._array import Array, as_array, as_numpy, is_torch
from peaccel.prepared import Prepared, cast, compute_dtype, require_distribution, same, spell
from peaccel.prepared import plan as checked
from peaccel.retrieval import Ranking, best, check_k, returned
from peaccel.scores import Score, get

__all__ = ["FaissReranker"]

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
        faiss = _faiss()
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
        k, shortlist = check_k(self.score, k), check_k(self.score, shortlist, "shortlist")
        vectors = self._vectors(queries)
        given = {} if params is None else {"params": params}
        try:
            _, found = self.index.search(vectors, shortlist, **given)
        except (TypeError, AttributeError, RuntimeError) as error:
            if params is None:
                raise
            own, got = type(self.index).__name__, type(params).__name__
            raise TypeError(f"FaissReranker: params of type {got} do not fit {own}") from error
        scores, rows = best(plan, self._to_rows(found), k)
        if self._external is not None:
            rows = np.where(rows >= 0, self._external[rows], -1) if len(self._external) else rows
        return returned((scores, rows), queries)

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
    except RuntimeError:
        raise ValueError(f"{path}: is not a FAISS index, or is truncated") from None


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
