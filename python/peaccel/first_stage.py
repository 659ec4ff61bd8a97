"""FAISS as the first stage: its index proposes, a score of distributions decides."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Literal

import numpy as np

from peaccel import indexes
from peaccel.distributions import Distribution
from peaccel.items import Items, ItemsOnGpu, checked_ids
from peaccel.ops._array import Array, as_array, as_numpy, device_of, require_on_host, require_same_kind
from peaccel.prepared import Prepared, require_distribution
from peaccel.prepared import plan as checked
from peaccel.retrieval import Ranking, best, check_k
from peaccel.scores import Score, get
from peaccel.surrogate import FirstStageReference, first_stage_features, first_stage_reference, on_sphere, scaled

__all__ = ["FaissReranker"]

Features = Literal["mu", "unit", "surrogate"] | FirstStageReference | Callable[[Distribution], Array]

HEADROOM = 1.1  # how much longer than the longest at build an added item's features may be, and still be in place


class FaissReranker:
    """A FAISS index as the first stage, a score of distributions as the second.

    The index proposes a shortlist by whatever it holds; the gallery's own parameters, never the index's (which may be
    lossy), decide the ranking. Items come and go by `add`, `remove`, `upsert`; not while another thread searches.

    Parameters
    ----------
    index
        Any FAISS index of G items, flat, IVF, HNSW, PQ, IDMap ..., or the path of a file that holds one.
    gallery
        The G items, in the order in which they were added to the index; or a `Prepared`. On a GPU: then the index must
        be one of faiss-gpu's, queries are there too, and so is all that is found; items cannot come or go.
    score
        As in `paired`.
    ids
        Integers [G]: the ids that the index returns for the gallery's rows, all different; None where they are the
        rows.
    features
        What of the queries (and of added items) is sent to the index: "mu", "unit" (mu scaled to norm 1), "surrogate"
        for an index by inner product of ``first_stage_features(gallery, score)``, a `FirstStageReference` for one of
        features made with that, or ``items -> [N, d]``.

    Raises
    ------
    TypeError
        index is not a FAISS index; gallery is not a distribution; the score has no surrogate.
    ValueError
        index, gallery and ids of different sizes; repeated ids; unknown features; a file that holds no index.
    FileNotFoundError, ImportError
        No such file; FAISS is not installed.

    Notes
    -----
    Memory beside the index: the gallery's arrays, as they are until the first `add` copies them into arrays that grow
    by doubling, and 9 bytes an item for ids (25 to 40 where ids are looked up: given ones, or after a change). What a
    removed item takes there is not freed, nor is its vector in the index, except where the index was given with ids.
    Rebuild when removed items outnumber the others. What a score derives from the whole gallery, such as llr's centred
    means, is derived anew at the first search after a change; mls of normals derives nothing.
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
            index = indexes.read(os.fspath(index))
        if not (hasattr(index, "search") and hasattr(index, "ntotal")):
            raise TypeError(f"FaissReranker: index must be a FAISS index, got {type(index).__name__}")
        if isinstance(gallery, Prepared):
            if self.score != gallery.score:
                own = gallery.score.label
                raise ValueError(f"FaissReranker: gallery is prepared for score {own}, got {self.score.label}")
            self.gallery = gallery
        else:
            require_distribution(self.score, gallery, "gallery")
            self.gallery = Prepared(gallery.detach(), self.score, pack=False)
        self._on_gpu = device_of(self.gallery.mu) not in ("numpy", "cpu")
        if self._on_gpu and not hasattr(index, "getDevice"):
            own, where = type(index).__name__, device_of(self.gallery.mu)
            raise ValueError(f"FaissReranker: index is {own} on the CPU, expected one on {where} like gallery")
        if index.ntotal != len(gallery):
            raise ValueError(f"FaissReranker: index holds {index.ntotal} items, expected {len(gallery)} like gallery")
        known = isinstance(features, str) and features in ("mu", "unit", "surrogate")
        if not (known or callable(features) or isinstance(features, FirstStageReference)):
            got = features if isinstance(features, str) else type(features).__name__
            raise ValueError(f"FaissReranker: features {got!r}, expected 'mu', 'unit', 'surrogate' or a callable")
        self.index = index
        self._width = index.d
        external = None if ids is None else checked_ids("FaissReranker", ids, len(gallery))
        items = self.gallery.distribution
        if self._on_gpu and (features == "surrogate" or isinstance(features, FirstStageReference)):
            raise ValueError(
                "FaissReranker: surrogate features are made by numpy, gallery is on a GPU; give a callable"
            )
        self.features = first_stage_reference(items, self.score) if features == "surrogate" else features
        self._items: Any = (ItemsOnGpu if self._on_gpu else Items)(items, external)
        self._numbered = external is None  # whether ids are the numbers of rows
        self._by_row = external is None  # whether the index returns rows rather than ids
        self._radius: float | None = None  # of the sphere on which `build` puts surrogate features

    @classmethod
    def build(
        cls,
        gallery: Distribution,
        factory: str = "HNSW32",
        first_stage: Literal["cosine", "surrogate"] | FirstStageReference = "cosine",
        score: str | Score = "mls",
        ids: Array | None = None,
    ) -> FaissReranker:
        """An index of the gallery, and a reranker over it.

        Parameters
        ----------
        gallery
            G items.
        factory
            A FAISS factory string, such as "Flat", "HNSW32", "IVF1024,Flat", "IVF1024,PQ32".
        first_stage
            What the index ranks by. "cosine": directions, by inner product. "surrogate": `first_stage_features`, which
            follow the score, by inner product in "Flat". Other indexes rank by L2, where inner products of vectors as
            uneven as these search badly: one more coordinate puts all items on a sphere, zeros fill up to what PQ
            divides by, and queries are scaled to the sphere's radius. A `FirstStageReference`: the surrogate around
            that, where queries are not as uncertain as the gallery.
        score
            As in `paired`.
        ids
            Integers [G] >= 0, all different, by which the items go; None for their rows.

        Raises
        ------
        ImportError
            FAISS is not installed.
        TypeError
            gallery is not a distribution; the score has no surrogate.
        ValueError
            A factory string that FAISS does not take; an unknown first stage; ids as for the constructor.
        """
        surrogate = first_stage == "surrogate" or isinstance(first_stage, FirstStageReference)
        if not (surrogate or first_stage == "cosine"):
            raise ValueError(f"FaissReranker.build: first_stage {first_stage!r}, expected 'cosine' or 'surrogate'")
        require_distribution(get(score), gallery, "gallery")
        require_on_host("FaissReranker.build", "gallery", gallery.mu)
        external = None if ids is None else checked_ids("FaissReranker.build", ids, len(gallery))
        features: Features = "unit"
        radius = None
        if surrogate:
            features = (
                first_stage if isinstance(first_stage, FirstStageReference) else first_stage_reference(gallery, score)
            )
            vectors = first_stage_features(gallery, score, reference=features)
            if factory != "Flat":
                radius = HEADROOM * float(np.sqrt((vectors**2).sum(1).max()))
                vectors = on_sphere(vectors, radius, indexes.width(vectors.shape[1] + 1, factory))
        else:
            vectors = _unit(gallery)
        index = indexes.built(vectors, factory, inner_product=radius is None)
        reranker = cls(index, gallery, score=score, features=features)
        reranker._radius = radius
        if external is not None:
            reranker._items, reranker._numbered = Items(reranker.gallery.distribution, external), False
        return reranker

    def search(self, queries: Distribution, k: int, shortlist: int = 100, params: Any = None) -> Ranking:
        """The best k of the shortlist that the index proposes for each query.

        Parameters
        ----------
        queries
            Q items that the score takes beside the gallery.
        k
            How many to return, >= 1; more than the shortlist pads.
        shortlist
            How many the index proposes, >= 1. Where it still holds removed items it is asked for as many more as their
            share among all, then for twice as many until no query has fewer than the shortlist: with an exact index
            the result is that of an index without them. (HNSW: with efSearch as large, unless params say otherwise.)
        params
            FAISS search parameters (``faiss.SearchParametersHNSW(efSearch=128)`` ...), passed through.

        Returns
        -------
        Ranking
            Scores and ids [Q, k], best first; ids are the external ones where the reranker was given any.

        Raises
        ------
        TypeError, ValueError
            As `rerank`; features of another width than the index; ids from the index that the gallery lacks (on a GPU
            such an item scores NaN).
        """
        plan = checked(queries, self.gallery, self.gallery.score, detach=True)
        k, shortlist = check_k(self.score, k), check_k(self.score, shortlist, "shortlist")
        vectors = self._vectors(queries, "query")
        proposed = self._proposed(vectors, shortlist, params)
        try:
            scores, rows = best(plan, proposed, k)
        except ValueError:
            size = len(self._items)
            if (proposed >= size).any():
                what = f"index returned id {proposed.max()}, gallery has {size} rows; pass its ids"
                raise ValueError(f"FaissReranker: {what}") from None
            raise
        return Ranking(scores, self._items.named(rows))

    def add(self, items: Distribution, ids: Array | None = None) -> np.ndarray[Any, np.dtype[np.int64]]:
        """New items, in the index and in the gallery.

        Their surrogate features are made with the reference of the first gallery. Those more than 10 % longer than the
        longest then lie off the sphere that ``build`` made (`first_stage`), and are proposed later than they should be.

        Parameters
        ----------
        items
            N items of the gallery's kind, dimension, dtype and kind of array.
        ids
            Integers [N] >= 0 that no item has, where the reranker was given ids; else None: items are numbered on, and
            no number is used twice.

        Returns
        -------
        int64 [N]: the ids.

        Raises
        ------
        TypeError
            items are of another kind; an index that was given with ids but cannot add under ids.
        ValueError
            items of another dimension or dtype; ids that are missing, not wanted, repeated or taken.
        """
        self._require_on_cpu("add")
        items = self._items.alike("FaissReranker.add", self.score, items)
        if self._numbered:
            if ids is not None:
                raise ValueError("FaissReranker.add: ids must be None, since items go by the numbers of their rows")
            names = np.arange(len(self._items), len(self._items) + len(items))
        else:
            if ids is None:
                raise ValueError(f"FaissReranker.add: ids must be given for {len(items)} items, as for the first ones")
            names = checked_ids("FaissReranker.add", ids, len(items))
            taken = names[self._items.rows(names) >= 0]
            if len(taken):
                raise ValueError(f"FaissReranker.add: ids hold {taken[0]}, which an item has already; see upsert")
        vectors = self._vectors(items, "gallery")
        self._changeable("add")
        self._append(items, names, vectors)
        return names

    def remove(self, ids: Array) -> None:
        """Items that are not to be found any more.

        Parameters
        ----------
        ids
            Integers [N] of items that are there, all different.

        Raises
        ------
        TypeError
            An index that was given with ids but cannot remove.
        ValueError
            ids that are unknown or repeated, or not integers.
        """
        self._require_on_cpu("remove")
        names = checked_ids("FaissReranker.remove", ids)
        rows = self._known("remove", names)
        self._changeable("remove")
        self._drop(names, rows)

    def upsert(self, items: Distribution, ids: Array) -> None:
        """Items in place of those that have their ids, or as new ones where none has.

        Parameters
        ----------
        items
            As in `add`.
        ids
            Integers [N], all different; where items go by the numbers of their rows, numbers of items that are there.

        Raises
        ------
        TypeError, ValueError
            As `add` and `remove`.
        """
        self._require_on_cpu("upsert")
        items = self._items.alike("FaissReranker.upsert", self.score, items)
        names = checked_ids("FaissReranker.upsert", ids, len(items))
        rows = self._known("upsert", names) if self._numbered else self._items.rows(names)
        vectors = self._vectors(items, "gallery")
        self._changeable("upsert")
        self._drop(names[rows >= 0], rows[rows >= 0])
        self._append(items, names, vectors)

    # -- the index -----------------------------------------------------------------------------------------------------

    def _proposed(self, vectors: Array, shortlist: int, params: Any) -> Array:
        """Rows of live items, the best by the index first, -1 where it has no more."""
        if self._on_gpu:
            return self._items.rows(self._found(vectors, shortlist, params))
        dead = self._items.dead if self._by_row else 0
        if not dead:
            return self._to_rows(self._found(vectors, shortlist, params))
        wanted = min(shortlist, len(self._items) - dead)
        fetch = shortlist + min(dead, shortlist * dead // max(wanted, 1))
        while True:
            found = self._found(vectors, fetch, indexes.deep_enough(self.index, fetch) if params is None else params)
            rows = self._to_rows(found)
            if fetch >= shortlist + dead:
                break
            more = found[:, -1] >= 0  # the index has more to give
            if not (more & ((rows >= 0).sum(1) < wanted)).any():
                break
            fetch = min(2 * fetch, shortlist + dead)
        return np.take_along_axis(rows, np.argsort(rows < 0, axis=1, kind="stable")[:, :shortlist], 1)

    def _found(self, vectors: Array, fetch: int, params: Any) -> Any:
        """What the index returns; not every one takes params."""
        try:
            return indexes.search(self.index, vectors, fetch, params)
        except (TypeError, AttributeError, RuntimeError) as error:
            if params is None:
                raise
            own, got = type(self.index).__name__, type(params).__name__
            raise TypeError(f"FaissReranker: params of type {got} do not fit {own}") from error

    def _to_rows(self, found: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Rows of what the index returned; -1 for none and for removed items."""
        rows: np.ndarray[Any, Any]
        if self._by_row:
            if not self._items.dead:
                return found
            # Rows beyond the gallery stay: who reads it finds them.
            live = self._items.live
            return np.where((found >= len(live)) | live[np.minimum(found, len(live) - 1)], found, -1)
        rows = self._items.rows(found)
        if not ((rows >= 0) | (found < 0)).all():
            raise ValueError(f"FaissReranker: index returned id {found[(rows < 0) & (found >= 0)][0]}, which ids lacks")
        return rows

    def _vectors(self, items: Distribution, side: Literal["query", "gallery"]) -> Array:
        """What the index is asked with, or given: float32 [N, d]."""
        vectors: Array
        if self._on_gpu:
            vectors = self.features(items) if callable(self.features) else items.mu.detach().float()
            if self.features == "unit":
                vectors = vectors / vectors.norm(dim=1, keepdim=True).clamp(min=1e-38)
            require_same_kind("FaissReranker", "features of the queries", vectors, "gallery", self.gallery.mu)
        elif isinstance(self.features, FirstStageReference):
            vectors = first_stage_features(items, self.score, side, self.features)
            if self._radius is not None:
                on = on_sphere if side == "gallery" else scaled
                vectors = on(vectors, self._radius, self._width)
        elif callable(self.features):
            vectors = as_numpy(as_array(self.features(items), "FaissReranker", "features of the queries"))
        else:
            vectors = _unit(items) if self.features == "unit" else as_numpy(items.mu)
        expected = len(items), self._width
        if tuple(vectors.shape) != expected:
            got = tuple(vectors.shape)
            raise ValueError(f"FaissReranker: features of the queries have shape {got}, the index takes {expected}")
        return vectors.float().contiguous() if self._on_gpu else np.ascontiguousarray(vectors, np.float32)

    # -- changes: whatever can be wrong is found out before anything is changed ----------------------------------------

    def _require_on_cpu(self, verb: str) -> None:
        if self._on_gpu:
            raise TypeError(f"FaissReranker.{verb}: the gallery is on a GPU, where items cannot come or go")

    def _known(self, verb: str, names: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """The rows of ids that items have."""
        rows: np.ndarray[Any, Any] = self._items.rows(names)
        if (rows < 0).any():
            raise ValueError(f"FaissReranker.{verb}: ids hold {names[rows < 0][0]}, which no item has")
        return rows

    def _changeable(self, verb: str) -> None:
        """An index that was given with ids must add and remove by them; asking for nothing tells."""
        if self._by_row:
            return
        try:
            self.index.add_with_ids(np.empty((0, self.index.d), np.float32), np.empty(0, np.int64))
            if verb != "add":
                self.index.remove_ids(np.empty(0, np.int64))
        except RuntimeError:
            own = type(self.index).__name__
            raise TypeError(
                f"FaissReranker.{verb}: this {own} cannot by ids; FaissReranker.build(gallery, factory, ids=...) can"
            ) from None

    def _drop(self, names: np.ndarray[Any, Any], rows: np.ndarray[Any, Any]) -> None:
        if not self._by_row:
            self.index.remove_ids(names)
        self._items.remove(rows)

    def _append(self, items: Distribution, names: np.ndarray[Any, Any], vectors: np.ndarray[Any, Any]) -> None:
        if self._by_row:
            self.index.add(vectors)
        else:
            self.index.add_with_ids(vectors, names)
        self._items.add(items, names)
        self.gallery = Prepared(self._items.gallery, self.score, pack=False)


def _unit(d: Distribution) -> np.ndarray[Any, Any]:
    """The directions, float32 [N, D]; a zero vector stays zero."""
    mu = as_numpy(d.mu).astype(np.float32)
    norms = np.linalg.norm(mu, axis=1, keepdims=True)
    return mu / np.where(norms > 0, norms, 1)
