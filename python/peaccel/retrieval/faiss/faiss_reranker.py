"""FAISS as the first stage: its index proposes, a score of distributions decides."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Generic, Literal, Self, TypeVar, cast

import numpy as np
from numpy.typing import ArrayLike

from peaccel._utils.arrays import Array, ArrayT, KindT, device_of, full, like, on_host
from peaccel._utils.atomic_files import PathLike
from peaccel._utils.exclusions import Exclusions
from peaccel._utils.ids import Ids, are_strings, checked_ids, none_like
from peaccel._utils.shared_lock import SharedLock
from peaccel.distributions import Distribution
from peaccel.distributions.checks import checked_candidates, checked_k, require_distribution
from peaccel.fits.records import Threshold
from peaccel.retrieval.duplicates import pairs_of_one_set
from peaccel.retrieval.faiss import index as faiss_index
from peaccel.retrieval.faiss import serialization
from peaccel.retrieval.faiss.first_stage_features import FirstStageReference
from peaccel.retrieval.faiss.indexed_items import Indexed
from peaccel.retrieval.faiss.items import RowsAndIds, StoredItems, StoredItemsOnGpu
from peaccel.retrieval.faiss.vectors import FirstStage, Vectors, checked_features, first_vectors
from peaccel.retrieval.findable import Findable
from peaccel.retrieval.plan import Plan, plan
from peaccel.retrieval.prepared import Prepared
from peaccel.retrieval.ranking import Ranking, RankingAbove, best_of_each_id, of_score
from peaccel.retrieval.search_above import MOST, checked_threshold, listed, pairs_above
from peaccel.scores import Score, named

__all__ = ["FaissReranker"]

Method = TypeVar("Method", bound=Callable[..., Any])


def _holding(hold: Callable[[SharedLock], AbstractContextManager[None]]) -> Callable[[Method], Method]:
    """A decorator of methods that hold the lock of the items."""

    def decorated(method: Method) -> Method:
        @functools.wraps(method)
        def locked(self: Any, *args: Any, **options: Any) -> Any:
            with hold(self._indexed.lock):
                return method(self, *args, **options)

        return cast(Method, locked)

    return decorated


_together, _alone = _holding(SharedLock.together), _holding(SharedLock.alone)


class FaissReranker(Generic[ArrayT]):
    """A FAISS index as the first stage, a score of distributions as the second.

    The index proposes a shortlist by whatever it holds; the gallery's parameters, never the index's (which may be
    lossy), decide the ranking.

    Items come and go by `add`, `remove`, `upsert` and `compact`. On the CPU any number of threads may `search` at once;
    a change waits until searches that run have ended, and later ones wait for it. Where they are not to wait, change a
    copy, ``changed = copy.copy(r)``, and let it take ``r``'s place.

    ``len(r)`` counts the items that are there, ``id in r`` asks for one. `save` keeps all of it in a folder; it can
    also be pickled, copied (by `copy.copy` too with another index) and sent to other processes.

    Parameters
    ----------
    index
        Any FAISS index of G items, flat, IVF, HNSW, PQ, IDMap ..., or the path of a file that holds one.
    gallery
        The G items, in the order in which they were added to the index; or a `Prepared`: one with codes (`pe.prepare`)
        takes less time with long shortlists of a large gallery. On a GPU: then the index must be one of faiss-gpu's,
        queries are there too, and so is all that is found; items cannot come or go.
    score
        A name, ``"name:param=number"`` or a `Score`; higher = more similar.
    ids
        [G], all different. Integers: the ids that the index returns for the gallery's rows. Strings: names of these
        rows, which the index returns. None: the ids of an IDMap, else the rows of the items. Where several items of an
        IDMap or IVF share an id, as photographs of a person do, `search` returns different ids, each by the best of its
        items. All of these are scored where the index proposes one; such items cannot come or go.
    features
        How queries (and added items) become the index's vectors: "mu", "unit" (mu scaled to norm 1), "surrogate"
        for an index by inner product of ``first_stage_features(gallery, score)``, a `FirstStageReference` for one of
        features made with that, or ``items -> [N, d]``.

    Raises
    ------
    TypeError
        index is not a FAISS index; gallery is not a distribution; the score has no surrogate.
    ValueError
        index, gallery and ids of different sizes; rows of the gallery that are not finite; repeated ids; ids other than
        those that an IDMap or an IVF holds; an index whose vectors are, by 32 rows of the gallery, in another order
        than these rows; unknown features, or for another score; a file that holds no index.
    FileNotFoundError, ImportError
        No such file; FAISS is not installed.

    Attributes
    ----------
    first_stage
        What `build` has set and measured: the setting's name, its value and the share of the nearest items that the
        index finds. None of a reranker that was not built here, of copies and of loaded ones.

    Notes
    -----
    Memory beside the index: the gallery's arrays, as they are until the first `add` copies them into arrays that grow
    by doubling, and a byte an item, with ids (of the caller, or after `upsert` or `compact`) 9, or 25 to 40
    once they are looked up; strings take 4 bytes a character, as many as the longest has, and twice that once they are
    looked up. What a removed item takes there is not freed, nor is its vector in the index, except where
    the index was given with ids: `compact` frees it.

    Examples
    --------
    >>> gallery = pe.Normal([[0.0, 1.0], [1.0, 0.0], [0.6, 0.8]], var=[0.1, 0.1, 0.4])
    >>> reranker = pe.FaissReranker.build(gallery, "Flat", score="mls", ids=[10, 20, 30])
    >>> reranker.search(gallery[:1], k=2, shortlist=3).ids.tolist()
    [[10, 30]]
    """

    first_stage: faiss_index.Tuned | None = None

    def __init__(
        self,
        index: Any,
        gallery: Distribution[ArrayT] | Prepared[ArrayT],
        *,
        score: str | Score | None = None,
        ids: ArrayLike | None = None,
        features: FirstStage = "mu",
    ) -> None:
        record = named(score, gallery)
        if isinstance(gallery, Prepared):
            if record != gallery.score:
                label = gallery.score.label
                raise ValueError(f"FaissReranker: gallery is prepared for score {label}, got {record.label}")
            prepared = gallery
        else:
            require_distribution(record.name, "gallery", gallery)
            gallery.check_rows()
            prepared = Prepared(gallery.detach(), record, pack=False)
        prepared.distribution.check_finite("FaissReranker", "gallery")
        indexed = Indexed.filled(index, prepared.distribution, ids)
        features = checked_features(features, record, prepared.distribution)
        self._set(indexed, Vectors(features, prepared.score, indexed.index.d, on_gpu=indexed.on_gpu), prepared)
        indexed.require_order(self._vectors)

    def _set(self, indexed: Indexed, vectors: Vectors, prepared: Prepared) -> None:
        self._indexed, self._vectors, self._prepared = indexed, vectors, prepared
        self.score, self.features = prepared.score, vectors.features

    @classmethod
    def _of(cls, indexed: Indexed, vectors: Vectors, pack: bool = False, codes: bool = False) -> Self:
        """A reranker of parts that fit each other; `pack` and `codes` as in `Prepared`."""
        reranker = cls.__new__(cls)
        reranker._set(indexed, vectors, Prepared(indexed.items.gallery, vectors.score, pack=pack, codes=codes))
        return reranker

    def _over(self, gallery: Distribution[ArrayT]) -> Self:
        """The same index and ids over the same rows in other arrays."""
        reranker = type(self).__new__(type(self))
        reranker._set(self._indexed, self._vectors, Prepared(gallery, self.score, pack=False))
        return reranker

    def __reduce__(self) -> tuple[Any, ...]:
        return self._of, (self._indexed, self._vectors, self._prepared.packed, self._prepared.coded)

    def __copy__(self) -> Self:
        return copy.deepcopy(self)  # two rerankers that shared an index would find each other's items

    @classmethod
    def build(
        cls,
        gallery: Distribution[KindT],
        factory: str = "HNSW32",
        *,
        first_stage: Literal["cosine", "surrogate"] | FirstStageReference = "cosine",
        score: str | Score | None = None,
        ids: ArrayLike | None = None,
        recall: float | None = 0.99,
    ) -> FaissReranker[KindT]:
        """Build an index of the gallery, and a reranker over it.

        Parameters
        ----------
        gallery
            G items; of one on a GPU the index is moved there, which takes faiss-gpu.
        factory
            A FAISS factory string, such as "Flat", "HNSW32", "IVF1024,Flat", "IVF1024,PQ32"; on a GPU there are flat
            and IVF indexes.
        first_stage
            What the index ranks by. "cosine": directions, by inner product. "surrogate": `first_stage_features`, which
            follow the score, by inner product in "Flat". Other indexes rank by L2, where inner products of vectors as
            uneven as these search badly: one more coordinate puts all items on a sphere, zeros fill up to what PQ
            divides by, and queries are scaled to the sphere's radius. A `FirstStageReference`: the surrogate around
            that, where queries are not as uncertain as the gallery.
        score
            A name, ``"name:param=number"`` or a `Score`; higher = more similar. By default cosine of points, else mls.
        ids
            [G] integers >= 0 or strings, all different, by which the items go; None for their rows.
        recall
            In (0, 1]: the share of the ten nearest items that a graph or an IVF is to find, by 256 items of the gallery
            beside an exact search among all, which takes as long as these 256 searches do. It is set to the least
            effort that does, or beyond which it finds no more; ``.first_stage`` says what was reached. None leaves
            FAISS's settings.

        Raises
        ------
        ImportError
            FAISS is not installed, or has no GPU where the gallery is on one.
        TypeError
            gallery is not a distribution; the score has no surrogate.
        ValueError
            A factory string that FAISS does not take, or has no index for on a GPU; an unknown first stage; rows of the
            gallery that are not finite; ids as for the constructor.
        """
        if not (first_stage in ("cosine", "surrogate") or isinstance(first_stage, FirstStageReference)):
            raise ValueError(f"FaissReranker.build: first_stage {first_stage!r}, expected 'cosine' or 'surrogate'")
        record = named(score, gallery).snapshot()
        require_distribution(record.name, "gallery", gallery)
        if recall is not None and not 0 < recall <= 1:
            raise ValueError(f"FaissReranker.build: recall is {recall}, expected a share above 0, up to 1, or None")
        checked = None if ids is None else checked_ids("FaissReranker.build", ids, len(gallery))
        on_gpu = device_of(gallery.mu) not in ("numpy", "cpu")
        gallery = gallery.detach()
        gallery.check_rows()
        gallery.check_finite("FaissReranker.build", "gallery")
        features, radius, vectors = first_vectors(gallery, record, first_stage, factory)
        index = faiss_index.built(vectors, factory, inner_product=radius is None)
        first = None if recall is None else faiss_index.tuned(index, vectors, recall)
        items: RowsAndIds = StoredItems(gallery, checked, by_row=True)
        if on_gpu:
            index = faiss_index.moved_to_gpu(index, gallery.mu)
            items = StoredItemsOnGpu(gallery, checked, by_row=True)
        reranker: FaissReranker[Any] = cls._of(
            Indexed(index, items), Vectors(features, record, index.d, radius, on_gpu=on_gpu)
        )
        reranker.first_stage = first
        return reranker

    @_together
    def search(
        self,
        queries: Distribution[ArrayT],
        k: int,
        score: str | Score | None = None,
        *,
        shortlist: int | None = 100,
        params: Any = None,
        allowed: ArrayLike | None = None,
        exclude: ArrayLike | Exclusions | None = None,
        accept: Threshold | None = None,
    ) -> Ranking[ArrayT]:
        """The best k of the shortlist that the index proposes for each query.

        Parameters
        ----------
        queries
            Q items that the score takes beside the gallery.
        k
            How many to return, >= 1; more than the shortlist pads.
        score
            The score that it was built for, or None; another one is refused.
        shortlist
            How many the index proposes, >= 1, of the items that are there: with an exact index the result is that of an
            index without removed ones. It grows by the items that a query may not find. None: the index is not asked,
            and the best are the exact ones.
        params
            FAISS search parameters (``faiss.SearchParametersHNSW(efSearch=128)`` ...), passed through. None: the index
            looks at enough for the shortlist, whatever it is set to: a graph compares as many items and 64 at least, an
            IVF looks into lists that hold four times as many. A selector among
            them selects what the index itself returns; where that is rows but items go by other ids, it is refused.
        allowed
            The items that may be found, for all queries: ids (those that no item has find nothing), in an array, a
            list or a set, or a single one; or a bool for each of `ids`. The shortlist is then of these. In indexes that
            FAISS can select in: flat, HNSW, IVF, scalar quantizers, also below IDMap, a transform, or refined. Not in
            PQ without IVF, nor on a GPU.
        exclude
            The items that each query may not find, as in `pe.search`, by ids; those that no item has exclude nothing.
        accept
            What `learn_then_test` or `limit_false_matches` found for the score: answers below its threshold are left
            out. One of another score, or of pairs, is refused. One of a class margin takes the ids for classes where
            items share them; elsewhere it is applied afterwards, ``accept(ranking, labels)``. None returns all.

        Returns
        -------
        Ranking
            Scores and ids [Q, k], best first; ids are the external ones where the reranker was given any; -inf and -1
            where there are fewer, or what there is was not accepted. Ids that are strings are a numpy array of strings,
            beside tensors too, with empty ones in place of -1.

        Raises
        ------
        TypeError, ValueError
            As `rerank`; features of another width than the index; ids from the index that the gallery lacks (on a GPU
            such an item scores NaN); params and allowed that do not fit the index or each other.

        Notes
        -----
        Where the index holds removed items, or not all are allowed, FAISS passes over the others by a selector. Unless
        params are given, HNSW goes as much deeper, and IVF into as many more lists, as there are others, and on until
        each query has its shortlist; where that would compare more items than are allowed, or where no more are than
        the shortlist, all of them are scored.
        An index without selectors is asked for as many more as the share of the removed, then for twice as many, as
        long as a query has fewer than the shortlist.
        """
        planned = plan(queries, self._prepared, score or self.score, detach=True)
        if accept is not None:
            accept.check("accept", planned.score, k, dim=queries.dim)
        k, items = checked_k(self.score.name, k), self._items
        owner, shared = "FaissReranker.search", items.share_ids
        excluded = items.excluded(owner, exclude, len(queries))
        if shortlist is None:
            found = self._exact(planned, k, self._findable(owner, allowed, excluded))
        else:
            shortlist = checked_k(self.score.name, shortlist, "shortlist")
            choice = self._indexed.choice(params, allowed)
            vectors = self._vectors.query(queries)
            proposed = self._indexed.proposed(vectors, shortlist, params, choice, k, excluded)
            found = self._best(planned, proposed if excluded is None else excluded.masked(proposed), k)
            if shortlist < k:  # also where all that are allowed were scored, and more could be returned
                found.scores[:, shortlist:] = -np.inf
                found.ids[:, shortlist:] = full((), none_like(found.ids), found.ids)
        return found if accept is None else accept.select(found, labels=found.ids if shared else None)

    def _best(self, planned: Plan, rows: Array, k: int) -> Ranking[ArrayT]:
        """The best k of rows [Q, R] under their ids, each id once."""
        shared = self._items.share_ids
        try:
            scores, rows = planned.best(rows, max(k, rows.shape[1]) if shared else k)
        except ValueError:
            size = len(self._items)
            if (rows >= size).any():
                what = f"index returned id {rows.max()}, gallery has {size} rows; pass its ids"
                raise ValueError(f"FaissReranker: {what}") from None
            raise
        ids = self._items.ids_of_rows(rows)
        return self._known(best_of_each_id(scores, ids, k) if shared else Ranking(scores, ids), planned)

    def _known(self, found: Ranking[ArrayT], planned: Plan) -> Ranking[ArrayT]:
        """The ranking, which knows what its scores are of."""
        size, dim = len(self._items) - self._items.removed, self._prepared.dim
        return of_score(found, planned.score, dim=dim, gallery_size=size)

    def _exact(self, planned: Plan, k: int, findable: Findable) -> Ranking[ArrayT]:
        """The best k of all rows that may be found."""
        if not self._items.share_ids:
            scores, rows, _ = findable.best(planned, k)
            return self._known(Ranking(scores, self._items.ids_of_rows(rows)), planned)
        rows = np.arange(len(self._items)) if findable.rows is None else findable.rows
        every = np.tile(rows, (len(planned.inputs.mu1), 1))
        return self._best(planned, every if findable.excluded is None else findable.excluded.masked(every), k)

    def _candidates(self, owner: str, queries: Distribution[ArrayT], candidates: ArrayLike) -> Array:
        """The rows of candidates, on the device where the index returns its own."""
        asked: Array = checked_candidates(owner, queries, candidates) if self._indexed.on_gpu else candidates
        return self._items.rows_of_candidates(owner, asked, len(queries))

    def _findable(self, owner: str, allowed: ArrayLike | None, excluded: Exclusions | None) -> Findable:
        """The rows that may be found: of allowed items that are there."""
        items = self._items
        if allowed is not None and not isinstance(items, StoredItems):
            raise TypeError(f"{owner}: allowed must be None where the gallery is on a GPU")
        rows = None
        if isinstance(items, StoredItems) and (allowed is not None or items.removed):
            rows = np.flatnonzero(items.live) if allowed is None else items.rows_allowed(owner, allowed)
        return Findable(rows, excluded)

    @_together
    def rerank(
        self,
        queries: Distribution[ArrayT],
        candidates: ArrayLike,
        k: int,
        score: str | Score | None = None,
        *,
        exclude: ArrayLike | Exclusions | None = None,
    ) -> Ranking[ArrayT]:
        """The best k of each query's candidates, ids [Q, K]; -1 or "" for none.

        Parameters
        ----------
        queries, k, score, exclude
            As in `search`.
        candidates
            [Q, K] ids of items that are there. Where items share an id, all of them are scored, and the best counts.

        Raises
        ------
        TypeError, ValueError
            As `pe.rerank`; an id that no item has.
        """
        owner = "FaissReranker.rerank"
        planned = plan(queries, self._prepared, score or self.score, detach=True)
        excluded = self._items.excluded(owner, exclude, len(queries))
        rows = self._candidates(owner, queries, candidates)
        return self._best(planned, rows if excluded is None else excluded.masked(rows), checked_k(self.score.name, k))

    @_together
    def rescore(self, queries: Distribution[ArrayT], candidates: ArrayLike, score: str | Score | None = None) -> ArrayT:
        """Scores [Q, K] of each query with its candidates, ids [Q, K]; of -1 or "" the score is -inf.

        Parameters
        ----------
        queries, score
            As in `search`.
        candidates
            As in `rerank`.

        Raises
        ------
        TypeError, ValueError
            As `pe.rescore`; an id that no item has, or that several share.
        """
        owner = "FaissReranker.rescore"
        if self._items.share_ids:
            raise ValueError(f"{owner}: items share ids, expected one item an id, whose score it is")
        rows = self._candidates(owner, queries, candidates)
        rows = rows if self._indexed.on_gpu else like(queries.mu, rows)
        scores: ArrayT = plan(queries, self._prepared, score or self.score, detach=False, candidates=rows).scores()
        return scores

    @_together
    def search_above(
        self,
        queries: Distribution[ArrayT],
        threshold: float,
        score: str | Score | None = None,
        *,
        allowed: ArrayLike | None = None,
        exclude: ArrayLike | Exclusions | None = None,
        most: int = MOST,
    ) -> RankingAbove[ArrayT]:
        """All items whose score reaches a threshold, exactly, for each query.

        The index is not asked, although FAISS has a range search: what it holds bounds no score of distributions, and
        an approximate index leaves items out. All items that may be found are scored, as `pe.search_above` does.

        Parameters
        ----------
        queries, score, exclude
            As in `search`.
        threshold, most
            As in `pe.search_above`.
        allowed
            The items that may be found, as in `search`; of any index on the CPU. Where there are any, or where items
            were removed, the others are copied for the call.

        Returns
        -------
        RankingAbove
            Under the external ids where there are any, an id once for each query, by its best item.

        Raises
        ------
        TypeError, ValueError
            As `pe.search_above`; allowed as in `search`, and on a GPU.
        """
        owner = "FaissReranker.search_above"
        threshold, most = checked_threshold(owner, threshold, most)
        planned, items = plan(queries, self._prepared, score or self.score, detach=True), self._items
        findable = self._findable(owner, allowed, items.excluded(owner, exclude, len(queries)))
        found = listed(owner, pairs_above(planned, threshold, findable), len(queries), most, planned.score, queries.dim)
        found = found.under(items.ids_of_rows(found.ids))
        return found.of_different_ids() if items.share_ids else found

    @_together
    def duplicates(self, threshold: float, *, most: int = MOST) -> RankingAbove[ArrayT]:
        """All pairs of items whose score reaches a threshold, exactly, as `pe.duplicates` finds them.

        Parameters
        ----------
        threshold, most
            As in `pe.duplicates`.

        Returns
        -------
        RankingAbove
            For each of `ids` those after it in their order: the pairs are
            ``zip(reranker.ids[found.queries], found.ids, found.scores)``.

        Raises
        ------
        ValueError
            As `pe.duplicates`.
        """
        owner, items, ids = "FaissReranker.duplicates", self._items.present, self._items.ids
        threshold, most = checked_threshold(owner, threshold, most)
        planned = plan(items, items, self.score, detach=True)
        found = listed(owner, pairs_of_one_set(planned, threshold), len(items), most, planned.score, items.dim)
        named = ids[on_host(found.ids)]
        return found.under(named if are_strings(named) else like(found.ids, named))

    # -- items ---------------------------------------------------------------------------------------------------------

    @property
    def index(self) -> faiss_index.Index:
        """The FAISS index."""
        index: faiss_index.Index = self._indexed.index
        return index

    @property
    @_together
    def gallery(self) -> Distribution[ArrayT]:
        """The items that are there, in the order of `ids`; a copy where some were removed."""
        return self._items.present

    @property
    @_together
    def ids(self) -> Ids:
        """[N] int64, or strings: the ids of the items that are there."""
        return self._items.ids

    @property
    def has_ids(self) -> bool:
        """Whether items were given ids; else those are the numbers of their rows."""
        return self._items.named

    @_together
    def __len__(self) -> int:
        """Count the items that are there."""
        return len(self._items) - self._items.removed

    @_together
    def __contains__(self, id: Any) -> bool:
        """Whether an item that is there has this id."""
        if isinstance(id, str):
            return self._items.has(str(id))
        return isinstance(id, (int, np.integer)) and self._items.has(int(id))

    @_together
    def __repr__(self) -> str:
        features = self.features if isinstance(self.features, str) else type(self.features).__name__
        removed = f", {self._items.removed} removed" if self._items.removed else ""
        what = f"{type(self.index).__name__}, {self._items.gallery!r}{removed}, score={self.score.label!r}"
        return f"FaissReranker({what}, features={features})"

    # -- files ---------------------------------------------------------------------------------------------------------

    @_together
    def save(self, folder: PathLike) -> None:
        """Save all of it in a folder: FAISS's file of the index, a .safetensors file with the items, and a description.

        Parameters
        ----------
        folder
            A new one, an empty one, or one with a saved reranker, which is overwritten: written beside it and renamed,
            so that it is never half written.

        Raises
        ------
        TypeError
            features are a callable, which no file holds (`pickle` keeps functions of modules); an index that FAISS
            cannot write, such as one on a GPU.
        ValueError
            The folder holds anything else; a score that is none of `pe.scores`, or without a text.
        FileNotFoundError, ImportError
            There is no folder to make it in; safetensors is not installed.
        """
        serialization.write(folder, self._indexed, self._vectors, self._prepared)

    @classmethod
    def open(cls, folder: PathLike, *, mmap: bool = False) -> Self:
        """Open what `save` has saved: the same items under the same ids, found in the same way.

        Parameters
        ----------
        folder
            The folder.
        mmap
            Whether index and items stay in their files, which are mapped: it is open in some milliseconds, takes memory
            for what searches read, and processes share that. Sizes of files are checked, checksums by `verify` alone.
            Items cannot come or go, and nothing is packed or coded (`pe.prepare`), nor is what it saves. Do not write
            into the files; `save` may replace them, which a map does not see.

        Raises
        ------
        FileNotFoundError, ImportError
            No such folder, or a file is missing there; FAISS, safetensors or the arrays' library is not installed.
        ValueError
            Another format version; a file that is damaged, or not the one that was saved.
        """
        return cls._of(*serialization.read(folder, mmap=mmap))

    def verify(self) -> Self:
        """The reranker itself, after its mapped files were read and compared with the checksums of when it was saved.

        Raises
        ------
        TypeError
            It is not mapped from files.
        ValueError, FileNotFoundError
            A file is not the one that was saved, or is gone.
        """
        if self._indexed.mapped_from is None:
            raise TypeError("FaissReranker.verify: the reranker is in memory, expected one by open(folder, mmap=True)")
        serialization.verify(self._indexed.mapped_from)
        return self

    @_alone
    def add(self, items: Distribution[ArrayT], ids: ArrayLike | None = None) -> Ids:
        """Add items to the index and to the gallery.

        Their surrogate features are made with the reference of the first gallery. Those more than 10 % longer than the
        longest then lie off the sphere that ``build`` made (`first_stage`), and are proposed later than they should be.

        Parameters
        ----------
        items
            N items of the gallery's kind, dimension, dtype and kind of array.
        ids
            [N] integers >= 0 or strings, as the reranker was given, that no item has; else None: items are numbered on,
            and no number is used twice.

        Returns
        -------
        [N] int64, or strings: the ids.

        Raises
        ------
        TypeError
            items are of another kind; an index that takes no more items, or none under ids where it was given ids.
        ValueError
            items of another dimension or dtype, or not finite; ids that are missing, not wanted, repeated or taken.
        """
        stored = self._indexed.changeable_items("add")
        items = stored.checked("FaissReranker.add", self.score, items)
        new = stored.new_ids("FaissReranker.add", ids, len(items))
        vectors = self._vectors.gallery(items)
        self._indexed.require_changeable("add")
        self._indexed.put(stored, items, new, vectors)
        self._changed()
        return new

    @_alone
    def remove(self, ids: ArrayLike, *, skip_missing: bool = False) -> int:
        """Remove items, so that they are not found any more; their memory is free after `compact`.

        Parameters
        ----------
        ids
            [N], all different, of items that are there.
        skip_missing
            Pass over ids that no item has, rather than refuse all.

        Returns
        -------
        int
            How many items were removed.

        Raises
        ------
        TypeError
            An index that was given with ids but cannot remove, as a graph cannot, nor an IDMap over IVF: FAISS would
            remove other items from it. IVF holds ids itself.
        ValueError
            Ids that no item has, that are repeated, or of another kind. Nothing is removed then.
        """
        stored = self._indexed.changeable_items("remove")
        old = stored.checked_ids("FaissReranker.remove", ids)
        rows = stored.rows_of_ids(old) if skip_missing else stored.known_rows("FaissReranker.remove", old)
        self._indexed.require_changeable("remove")
        self._indexed.remove(stored, old[rows >= 0], rows[rows >= 0])
        return int((rows >= 0).sum())

    @_alone
    def upsert(self, items: Distribution[ArrayT], ids: ArrayLike) -> int:
        """Put items in the place of those that have their ids, or add them where none has.

        What was replaced takes memory until `compact`, as what was removed does: call that now and then.

        Parameters
        ----------
        items
            As in `add`.
        ids
            [N], all different; where items go by the numbers of their rows, numbers of items that are there.

        Returns
        -------
        int
            How many items were added under new ids.

        Raises
        ------
        TypeError, ValueError
            As `add` and `remove`.
        """
        stored = self._indexed.changeable_items("upsert")
        items = stored.checked("FaissReranker.upsert", self.score, items)
        checked = stored.checked_ids("FaissReranker.upsert", ids, len(items))
        rows = (
            stored.rows_of_ids(checked)
            if stored.next_id is None
            else stored.known_rows("FaissReranker.upsert", checked)
        )
        vectors = self._vectors.gallery(items)
        self._indexed.require_changeable("upsert")
        self._indexed.put(stored, items, checked, vectors, rows)
        self._changed()
        return int((rows < 0).sum())

    @_alone
    def compact(self) -> None:
        """Free what removed items take, in the gallery and in the index; ids stay.

        An index that returns rows is emptied and filled anew, trained as it is, with the features of the items that are
        there: features must be what the index was filled with at first.

        Raises
        ------
        ValueError
            features of another width than the index.
        """
        stored = self._indexed.changeable_items("compact")
        if not stored.removed:
            return
        items = stored.compacted()
        self._indexed.replace(items, self._vectors.gallery(items.gallery) if items.by_row else None)
        self._changed()

    @property
    def _items(self) -> RowsAndIds:
        return self._indexed.items

    def _changed(self) -> None:
        """Prepare the gallery after rows were added; all of it where rows have gone."""
        gallery = self._items.gallery
        longer = len(gallery) >= len(self._prepared)
        codes = self._prepared.coded
        self._prepared = (
            self._prepared.extended(gallery) if longer else Prepared(gallery, self.score, pack=False, codes=codes)
        )
