"""A gallery of items in a Lance dataset, larger than memory if need be, that changes and is searched."""

from __future__ import annotations

import functools
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime, timedelta
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self, TypeAlias, TypedDict, TypeVar

import numpy as np

from peaccel import retrieval
from peaccel._utils.arrays import Numpy
from peaccel._utils.atomic_files import PathLike
from peaccel._utils.exclusions import Exclusions
from peaccel._utils.ids import are_strings, candidate_ids, checked_allowed, checked_ids, require_known, there
from peaccel._utils.words import no_attribute
from peaccel.distributions import Distribution
from peaccel.distributions.checks import checked_k, require_distribution
from peaccel.fits.records import Threshold
from peaccel.retrieval.faiss.first_stage_features import FirstStageReference
from peaccel.retrieval.findable import Pairs
from peaccel.retrieval.lance import commit_checksums, item_tables, mapped_rows, seen_rows, version_rows
from peaccel.retrieval.lance import table as lance_table
from peaccel.retrieval.lance.item_tables import decoded, encoded
from peaccel.retrieval.lance.table import LanceTable
from peaccel.retrieval.lance.version_rows import Part
from peaccel.retrieval.ranking import RankingAbove, of_score
from peaccel.retrieval.search_above import MOST, checked_threshold, listed
from peaccel.retrieval.verbs import Ranking
from peaccel.scores import Score, named, spelled

__all__ = ["Gallery"]

DERIVED = "_peaccel"  # the folder of derived files, in that of the dataset or in another

Progress: TypeAlias = Callable[[int], object] | None
Known: TypeAlias = Literal["refuse", "skip", "replace", "require"]  # what becomes of items whose ids are there

T = TypeVar("T")

GalleryInfo = TypedDict(
    "GalleryInfo",
    {
        "path": str,
        "version": int,
        "items": int,
        "columns": tuple[str, ...],
        "fragments": int,
        "deleted rows": int,
        "derived bytes": int,
        "index": str | None,
        "unseen": int,
    },
)


class Gallery:
    """Items in a Lance dataset under ids, larger than memory if need be, that come and go in commits.

    The dataset is the truth, and any Lance reader opens it: columns ``id``, ``mu``, one of ``var``, ``kappa`` and
    ``scale``, and the columns of the metadata. Beside it lie files that are derived from it and can be deleted: maps of
    its rows as the kernels read them, made at the first search, and a FAISS index.

    An object stands for one version, which each search sees whole. It goes on to the newest with each change that it
    makes and with `refresh`. Any number of threads and processes may search and change one gallery at once. A change is
    one commit (a table's, one for each block): after a crash all of it is there, or nothing.

    `create` makes one, `open` opens it. ``len(g)`` counts the items, ``id in g`` asks for one.

    Notes
    -----
    Results equal `search` over the same items in memory, in ascending order of their ids, to the last bit. So ties go
    to the lower id, integers by value and strings by code points, and no result depends on the order in which items
    came, on compaction, or on what a gallery is split into.

    Network file systems (NFS) are not supported: Lance's commits rest on renames that replace nothing.

    Examples
    --------
    >>> items = pe.Normal([[0.0, 1.0], [1.0, 0.0], [0.6, 0.8]], var=[0.1, 0.1, 0.4])
    >>> gallery = pe.Gallery.create("faces.lance", items, ids=["ann", "bob", "cy"])
    >>> gallery.search(items[:1], k=2).ids.tolist()
    [['ann', 'cy']]
    >>> gallery.remove(["ann"])
    1
    >>> gallery.search(items[:1], k=1).ids.tolist()
    [['cy']]
    """

    def __init__(self, table: LanceTable, derived: Path, pinned: bool) -> None:
        self._table, self._derived, self._pinned, self._is_plain = table, derived, pinned, False
        self._lock = threading.Lock()  # held while a newer table takes the place of this one
        # Of the version that was asked last: its parts, and whether with items; the index, and where its rows are.
        self._known: tuple[LanceTable | None, list[Part], bool] = None, [], False
        self._seen: tuple[LanceTable, seen_rows.SeenRows, seen_rows.PlacedRows] | None = None

    @classmethod
    def create(
        cls,
        path: PathLike,
        items: Any,
        ids: Any = None,
        metadata: Mapping[str, Any] | None = None,
        *,
        derived: PathLike | None = None,
        storage_options: Mapping[str, str] | None = None,
        sync: bool = False,
        rows: int | None = None,
        progress: Progress = None,
    ) -> Self:
        """Create a gallery of these items, which decide its kind, dimension, dtype and columns.

        Parameters
        ----------
        path
            A folder that is not there, or empty, by custom one that ends in .lance; or a URI of an object store, such
            as ``s3://bucket/faces.lance``.
        items, ids, metadata, rows, progress
            As in `add`; at least one item.
        derived
            The folder in which the folder of derived files is, ``_peaccel``; by default the dataset's. Needed where
            that is in an object store.
        storage_options
            Keys and endpoints of an object store, as Lance takes them.
        sync
            Whether each commit of this object is on the disk before it is acknowledged, for which Lance itself does not
            ask: without it a power loss, though not the end of a process, can undo the last seconds.

        Raises
        ------
        FileExistsError
            There is something at the path.
        TypeError, ValueError, OSError, ImportError
            As `add`; Lance is not installed.
        """
        uri, options = str(path), None if storage_options is None else dict(storage_options)
        folder = _derived_folder("Gallery.create", uri, derived)
        blocks = item_tables.blocks("Gallery.create", items, ids, metadata, rows)
        first = next(blocks, None)
        if first is None:
            raise ValueError("Gallery.create: items are none, expected at least one, which decides the columns")
        gallery = cls(LanceTable.create(uri, first, options, sync), folder, pinned=False)
        commit_checksums.record(folder, gallery._table)
        if progress is not None:
            progress(len(first))
        gallery._add("Gallery.create", blocks, "refuse", progress)
        return gallery

    @classmethod
    def open(
        cls,
        path: PathLike,
        version: int | None = None,
        *,
        derived: PathLike | None = None,
        storage_options: Mapping[str, str] | None = None,
        sync: bool = False,
    ) -> Self:
        """Open a gallery.

        Parameters
        ----------
        path, derived, storage_options, sync
            As in `create`.
        version
            The number of an earlier version, which cannot be changed; None for the newest.

        Raises
        ------
        FileNotFoundError, ImportError
            There is no gallery; Lance is not installed.
        ValueError
            No such version; one that is damaged; a dataset that `create` has not made.
        """
        uri, options = str(path), None if storage_options is None else dict(storage_options)
        folder = _derived_folder("Gallery.open", uri, derived)
        table = LanceTable.open(uri, version, options, sync)
        return cls(table if version is not None else _undamaged(folder, table), folder, pinned=version is not None)

    # -- what there is -------------------------------------------------------------------------------------------------

    @property
    def version(self) -> int:
        """The number of the version, which each commit raises."""
        return self._table.version

    @property
    def ids(self) -> Numpy:
        """[N] all ids, ascending: int64, or strings."""
        return decoded(self._ids())

    @property
    def kind(self) -> str:
        """The kind of the items, by which scores choose a formula."""
        return self._table.nothing[0].kind

    def __len__(self) -> int:
        """Count the items."""
        return len(self._table)

    def __contains__(self, id: Any) -> bool:
        """Whether an item has this id."""
        try:
            wanted = self._encoded("Gallery", [id])
        except ValueError:
            return False
        return bool(version_rows.found(self._parts(self._table, items=False), wanted)[0].any())

    def __repr__(self) -> str:
        return f"Gallery({self._table.uri!r}, version={self.version}, N={len(self)})"

    if not TYPE_CHECKING:  # which would take every attribute for known

        def __getattr__(self, name: str) -> Any:
            """Answer the field's words, such as ``gallery.append``, by where they stand."""
            raise no_attribute("'Gallery' object", name)

    def __reduce__(self) -> tuple[Any, ...]:
        version = self.version if self._pinned else None
        return _reopened, (self._table.uri, version, self._derived.parent, self._table.options, self._table.sync)

    def info(self) -> GalleryInfo:
        """Description of the gallery: path, version, items, columns, fragments, derived files and index."""
        table, fragments = self._table, self._table.fragments()
        derived = [path.stat().st_size for path in self._derived.rglob("*") if path.is_file()]
        indexed = self._indexed(table, self._parts(table, items=False))
        return {
            "path": table.uri,
            "version": table.version,
            "items": len(table),
            "columns": table.columns,
            "fragments": len(fragments),
            "deleted rows": sum(fragment.num_deletions for fragment in fragments),
            "derived bytes": sum(derived),
            "index": None if indexed is None else f"{indexed[0].factory} of version {indexed[0].version}",
            "unseen": len(table) if indexed is None else sum(int(rows.sum()) for rows in indexed[1].unseen),
        }

    def refresh(self) -> Self:
        """Go on to the newest version, and return the gallery."""
        self._require_newest("Gallery.refresh")
        self._go_on(_undamaged(self._derived, self._table.newest()), None)
        return self

    # -- changes -------------------------------------------------------------------------------------------------------

    def add(
        self,
        items: Any,
        ids: Any = None,
        metadata: Mapping[str, Any] | None = None,
        *,
        skip_existing: bool = False,
        rows: int | None = None,
        progress: Progress = None,
    ) -> int:
        """Add items under ids that no item has yet.

        Parameters
        ----------
        items
            A distribution of N items, which becomes one commit. Or a table, whatever `io.from_arrow` takes, with the
            columns ``id``, ``mu``, at most one of ``var``, ``kappa`` and ``scale``, and the columns of the metadata: it
            is read and committed in blocks.
        ids
            [N] for a distribution: integers >= 0, or strings of at most 255 bytes in UTF-8, all different.
        metadata
            For a distribution, columns by their names: [N] numbers, strings, or what else ``pyarrow.array`` takes, but
            no maps, nor structs with nulls.
        skip_existing
            Leave out items whose ids are there, rather than refuse all: so goes on what was interrupted.
        rows
            How many rows a commit has, >= 1; None for all of a distribution, and 131,072 of a table.
        progress
            Called after each commit with the number of items that were read for it.

        Returns
        -------
        int
            How many items were added.

        Raises
        ------
        TypeError
            items are neither a distribution nor a table.
        ValueError
            Ids that are there, or twice, or of another type; other columns than the gallery's; values that `validate`
            refuses. Nothing of the commit is there then.
        OSError
            The disk is full, or others change the same ids again and again. Nothing of the commit is there then.
        """
        blocks = item_tables.blocks("Gallery.add", items, ids, metadata, rows)
        return self._add("Gallery.add", blocks, "skip" if skip_existing else "refuse", progress)

    def upsert(
        self,
        items: Any,
        ids: Any = None,
        metadata: Mapping[str, Any] | None = None,
        *,
        rows: int | None = None,
        progress: Progress = None,
    ) -> int:
        """Add items, in the place of those that have their ids; parameters and errors as in `add`.

        Replaced items keep metadata for which no column is passed; new ids need all of them.

        Returns
        -------
        int
            How many items were added under new ids.
        """
        blocks = item_tables.blocks("Gallery.upsert", items, ids, metadata, rows)
        return self._add("Gallery.upsert", blocks, "replace", progress)

    def remove(self, ids: Any, *, skip_missing: bool = False) -> int:
        """Remove the items with these ids, all different, in one commit.

        Parameters
        ----------
        ids
            [N] ids of items that are there.
        skip_missing
            Pass over ids that no item has, rather than refuse all: so goes on what was interrupted.

        Returns
        -------
        int
            How many items were removed.

        Raises
        ------
        ValueError
            Ids that no item has, of another type, or twice. Nothing is removed then.
        """
        self._require_newest("Gallery.remove")
        asked = self._encoded("Gallery.remove", ids)
        return self._put("Gallery.remove", asked, None, "replace" if skip_missing else "require")

    def versions(self) -> list[tuple[int, datetime]]:
        """The numbers of the versions that there are, ascending, and when each was committed.

        Examples
        --------
        >>> gallery = pe.Gallery.create("cars.lance", pe.Point(np.eye(3)), ids=[1, 2, 3])
        >>> gallery.remove([2])
        1
        >>> [number for number, _ in gallery.versions()]
        [1, 2]
        """
        return self._table.newest().versions()

    def restore(self, version: int) -> None:
        """Restore the items of an earlier version as a new version, in one commit; later versions stay as they are.

        An index of a later version is removed, since it knows items as they are no more.

        Parameters
        ----------
        version
            One of `versions`.

        Raises
        ------
        ValueError
            No such version; one that is damaged.

        Examples
        --------
        >>> gallery = pe.Gallery.create("cats.lance", pe.Point(np.eye(3)), ids=[1, 2, 3])
        >>> gallery.remove([2])
        1
        >>> gallery.restore(1)
        >>> gallery.version, gallery.ids.tolist()
        (3, [1, 2, 3])
        """
        self._require_newest("Gallery.restore")
        earlier = LanceTable.open(self._table.uri, version, self._table.options, self._table.sync)
        self._commit("Gallery.restore", lambda _: (earlier.restored(), None))
        for number in self._indexes():
            if number > version:
                seen_rows.remove(self._index_folder(number))
        self._seen = None

    def compact(self, keep_days: float = 14.0) -> None:
        """Rewrite small fragments as large ones without deleted rows, and delete what nobody needs any more.

        Parameters
        ----------
        keep_days
            Versions younger than this stay. Files of commits that were interrupted go after seven days. Derived files
            of fragments that the newest version lacks go too: who searches an older version makes them again. With 0
            nobody else may be changing the gallery, since what came before a change could not be told any more.
        """
        self._require_newest("Gallery.compact")
        if not keep_days >= 0:
            raise ValueError(f"Gallery.compact: keep_days is {keep_days}, expected a number from 0 on")
        self._commit("Gallery.compact", lambda table: (table.compacted(), None))
        self._table.clean(timedelta(days=keep_days))
        mapped_rows.sweep(self._derived, self._table.fragments())

    def verify(self) -> list[str]:
        """Read all of this version, and hold derived files against it: a line for each thing that is wrong.

        A bit that is flipped in the columns, in a derived file, in the newest manifest or in the files that say which
        rows are deleted is found; `open` compares the last two. In a gallery of an earlier version of peaccel a bit in
        the columns is found where the derived file was made before. A bit in earlier versions' files is not found.
        """
        table = self._table
        found = commit_checksums.damaged(self._derived, table, whole=True)
        for part in table.fragments():  # Lance may end the process over damaged columns
            if not any(x.path in line for x in part.metadata.files for line in found):
                found += [line] if (line := mapped_rows.damage(self._derived, table, part)) else []
        for version in self._indexes():
            folder = self._index_folder(version)
            found += [f"{folder}: is damaged; build_index again"] if seen_rows.is_damaged(folder) else []
        if not found:
            ids = self._ids()
            found += [f"id {decoded(x)[0]} is there twice" for x in ids[1:][ids[1:] == ids[:-1]][:, None]]
        return found

    def _add(self, owner: str, blocks: Iterator[Any], known: Known, progress: Progress) -> int:
        """Commit one block after the other, and return how many ids are new."""
        self._require_newest(owner)
        count = 0
        for block in blocks:
            ids, rows = item_tables.ids_of(block), self._table.fitting(owner, block, partly=known == "replace")
            count += len(ids) - self._put(owner, ids, rows, known)
            if progress is not None:
                progress(len(ids))
        return count

    def _put(self, owner: str, ids: np.ndarray[Any, Any], rows: Any, known: Known) -> int:
        """Commit an Arrow table of rows with these ids, or None where they are to go; how many ids were there."""

        @functools.cache  # for another try, which seldom finds that other items are new
        def written(new: bytes) -> list[Any]:
            chosen = np.flatnonzero(np.frombuffer(new, bool))
            if rows is None or not len(chosen):
                return []
            return self._table.written(rows if len(chosen) == len(ids) else rows.take(chosen))

        def change(table: LanceTable) -> tuple[LanceTable, int]:
            there, places = version_rows.found(self._parts(table, items=False), ids)
            if known == "refuse" and there.any():
                raise ValueError(f"ids hold {decoded(ids[there])[0]}, which an item has already; see upsert")
            if known == "require" and not there.all():
                row = int(np.argmin(there))
                raise ValueError(f"ids hold {decoded(ids[[row]])[0]} in row {row}, which no item has; see skip_missing")
            gone = places if known in ("replace", "require") else []
            absent = [] if rows is None or not len(rows) else sorted({*table.columns} - {*rows.column_names})
            if absent:
                if not there.all():
                    row = int(np.argmin(there))
                    what = f"id {decoded(ids[[row]])[0]} in row {row}, which no item has"
                    raise ValueError(f"metadata lack {', '.join(absent)}, expected them for {what}")
                return table.replaced(gone, table.written(table.completed(rows, gone))), len(ids)
            new = written((np.full(len(ids), True) if known == "replace" else ~there).tobytes())
            return table.replaced(gone, new) if gone or new else table, int(there.sum())

        return self._commit(owner, change)

    def _commit(self, owner: str, change: Callable[[LanceTable], tuple[LanceTable, T]]) -> T:
        """Commit a change, keep its checksums and go on to it."""
        table, result = self._table.changed(owner, change)
        if table.is_new:
            commit_checksums.record(self._derived, table)
        return self._go_on(table, result)

    def _go_on(self, table: LanceTable, result: T) -> T:
        """Take a table for this gallery's, unless another thread has gone on to a newer one; returns the result."""
        with self._lock:
            if table.version > self._table.version:
                self._table = table
        return result

    def _require_newest(self, owner: str) -> None:
        if self._pinned:
            raise ValueError(f"{owner}: the gallery was opened at version {self.version}, expected the newest")

    # -- the index -----------------------------------------------------------------------------------------------------

    def build_index(
        self,
        factory: str = "HNSW32",
        first_stage: Literal["cosine", "surrogate"] | FirstStageReference = "cosine",
        score: str | Score | None = None,
    ) -> None:
        """Build a FAISS index of this version, which `search` asks first; it takes the place of an earlier one.

        Later versions use it too: what they have that it has not seen is scored exactly, so build it again when that
        has become much (``info()["unseen"]``).

        Parameters
        ----------
        factory, first_stage
            As in `FaissReranker.build`. Learnt from 262,144 items, evenly spaced; all are added in blocks, and what the
            factory keeps of them is held in memory: PQ little, Flat and HNSW all.
        score
            The score that surrogates stand for.

        Raises
        ------
        ImportError
            FAISS is not installed.
        TypeError, ValueError, OSError
            As `FaissReranker.build`; a score that no file can hold; the disk is full.
        """
        if not (first_stage in ("cosine", "surrogate") or isinstance(first_stage, FirstStageReference)):
            raise ValueError(f"Gallery.build_index: first_stage {first_stage!r}, expected 'cosine' or 'surrogate'")
        table = self._table
        record = named(score, table.nothing[0]).snapshot()
        spelled(record)
        if not len(table):
            raise ValueError("Gallery.build_index: the gallery has no items, expected at least one")
        built = seen_rows.SeenRows.built(table, self._parts(table), factory, first_stage, record)
        built.write(self._index_folder(table.version))
        for version in self._indexes():
            if version != table.version:
                seen_rows.remove(self._index_folder(version))
        self._seen = None

    def _index_folder(self, version: int) -> Path:
        return self._derived / f"index-{version}"

    def _indexes(self) -> list[int]:
        """The versions of which there are indexes."""
        found = (re.fullmatch(r"index-(\d+)", path.name) for path in self._derived.glob("index-*"))
        return sorted(int(name[1]) for name in found if name)

    def _indexed(self, table: LanceTable, parts: list[Part]) -> tuple[seen_rows.SeenRows, seen_rows.PlacedRows] | None:
        """The newest index that is not newer than a version, and where its rows are in that; None without one."""
        usable = [version for version in self._indexes() if version <= table.version]
        if not usable:
            return None
        known = self._seen
        if known is None or known[0] is not table or known[1].version != usable[-1]:
            seen = None if known is None or known[1].version != usable[-1] else known[1]
            try:
                seen = seen or seen_rows.SeenRows.read(self._index_folder(usable[-1]))
            except ValueError:
                if usable[-1] in self._indexes():
                    raise
                return self._indexed(table, parts)  # another process has built a newer one, and removed this
            known = table, seen, seen.placed(table, parts)
            self._seen = known
        return known[1:]

    # -- searches ------------------------------------------------------------------------------------------------------

    def search(
        self,
        queries: Distribution,
        k: int,
        score: str | Score | None = None,
        *,
        shortlist: int | None = None,
        params: Any = None,
        filter: str | None = None,
        allowed: Any = None,
        exclude: Any = None,
        accept: Threshold | None = None,
    ) -> Ranking[Numpy]:
        """The best k of the gallery for each query: the exact ones, in one pass over it, or the best of shortlists.

        Parameters
        ----------
        queries
            Q items, in numpy arrays, that the score takes beside the gallery's.
        k
            How many to return, >= 1; more than there are pads.
        score
            As in `paired`; not one of draws, which belong to the number of a row.
        shortlist
            None for the exact best; else how many the index proposes for each query, >= 1, of the items that are there
            and fulfil the filter. Items that the index has not seen are scored besides; without an index, all are.
        params
            FAISS search parameters, as in `FaissReranker.search`.
        filter
            A condition in SQL over the columns, such as ``"year >= 2020 AND place = 'Rome'"``: only items that fulfil
            it are found.
        allowed, exclude, accept
            As in `FaissReranker.search`, by ids: the items that may be found, or a bool for each of `ids`; those that
            each query may not find; the threshold of answers. ``pe.exclude_same(queries, columns, ids=ids)`` makes
            exclusions of columns.

        Returns
        -------
        Ranking
            Scores and ids [Q, k], best first, padded with -inf, and with -1 or, among strings, "".

        Raises
        ------
        TypeError, ValueError
            As `search`; a filter that Lance cannot read; params without a shortlist, or that do not fit the index; an
            index that is damaged.
        """
        record, nothing = self._planned(queries, score, k)
        if accept is not None:
            accept.check("accept", record, k, dim=queries.dim)
        if shortlist is not None:
            shortlist = checked_k(record.name, shortlist, "shortlist")
        elif params is not None:
            raise ValueError("Gallery.search: params are for a shortlist of the index, expected one beside them")
        table, candidates = self._table, []
        parts, excluded = self._parts(table), self._excluded("Gallery.search", exclude, queries)
        masks = version_rows.chosen(parts, table, filter, self._allowed("Gallery.search", allowed))
        if shortlist is not None and (indexed := self._indexed(table, parts)):
            seen, placed = indexed
            proposed = seen.proposed(queries, placed, masks, shortlist, params, excluded)
            candidates = version_rows.within(parts, proposed)
            masks = [new if old is None else new & old for new, old in zip(placed.unseen, masks, strict=True)]
        reranked = version_rows.reranked(queries, candidates, k, record, excluded)
        searched = version_rows.searched(queries, parts, masks, k, record, excluded)
        found = version_rows.best(chain([nothing], reranked, searched), k)
        found = of_score(found, record, dim=queries.dim, gallery_size=len(table))
        return found if accept is None else accept.select(found)

    def _allowed(self, owner: str, allowed: Any) -> np.ndarray[Any, Any] | None:
        """The ids that may be found, as files hold them."""
        if allowed is None:
            return None
        ids = self._ids()
        asked = checked_allowed(owner, allowed, len(ids), strings=are_strings(self._table.nothing[1]))
        return ids[asked] if asked.dtype == bool else encoded(owner, asked)

    def _excluded(self, owner: str, exclude: Any, queries: Distribution) -> Exclusions | None:
        """The ids that each query may not find, as files hold them."""
        excluded = Exclusions.checked(owner, exclude, len(queries))
        if excluded is None:
            return None
        excluded.require_like(owner, self._table.nothing[1])
        return excluded.under(encoded(owner, excluded.ids))

    def search_above(
        self,
        queries: Distribution,
        threshold: float,
        score: str | Score | None = None,
        *,
        filter: str | None = None,
        allowed: Any = None,
        exclude: Any = None,
        most: int = MOST,
    ) -> RankingAbove[Numpy]:
        """All items whose score reaches a threshold, exactly, for each query, in one pass over the gallery.

        Parameters
        ----------
        queries, score, filter, allowed, exclude
            As in `search`.
        threshold, most
            As in `pe.search_above`.

        Returns
        -------
        RankingAbove
            Offsets [Q + 1], ids and scores [M], best first for each query, ties by the lower id.

        Raises
        ------
        TypeError, ValueError
            As `search` and `pe.search_above`.
        """
        owner = "Gallery.search_above"
        threshold, most = checked_threshold(owner, threshold, most)
        record, nothing = self._planned(queries, score, 1)
        table = self._table
        parts = self._parts(table)
        masks = version_rows.chosen(parts, table, filter, self._allowed(owner, allowed))
        excluded = self._excluded(owner, exclude, queries)
        pairs = version_rows.pairs_above(queries, parts, masks, threshold, record, excluded)
        return self._listed(owner, pairs, len(queries), most, nothing)

    def duplicates(
        self, threshold: float, score: str | Score | None = None, *, most: int = MOST
    ) -> RankingAbove[Numpy]:
        """All pairs of items whose score reaches a threshold, exactly: the first, of the lower id, scored as the query.

        Parameters
        ----------
        threshold, most
            As in `pe.duplicates`.
        score
            As in `search`.

        Returns
        -------
        RankingAbove
            For each of `ids` those after it; the pairs are
            ``zip(gallery.ids[found.queries], found.ids, found.scores)``.

        Raises
        ------
        TypeError, ValueError
            As `search_above`.
        """
        owner = "Gallery.duplicates"
        threshold, most = checked_threshold(owner, threshold, most)
        record, nothing = self._planned(self.like, score, 1)
        parts, ids = self._parts(self._table), self._ids()
        pairs = version_rows.pairs_of_one_set(parts, ids, threshold, record)
        return self._listed(owner, pairs, len(ids), most, nothing)

    def _listed(
        self, owner: str, pairs: Iterator[Pairs], queries: int, most: int, nothing: Ranking[Numpy]
    ) -> RankingAbove[Numpy]:
        """Pairs in their order, under ids as callers know them; those of no pairs are as those of a ranking."""
        none: Pairs = np.empty(0, np.int64), encoded("Gallery", nothing.ids[:0, 0]), nothing.scores[:0, 0]
        assert nothing.score is not None
        found = listed(owner, chain([none], pairs), queries, most, nothing.score, nothing.dim, in_parts=True)
        return found.under(decoded(found.ids))

    def rescore(self, queries: Distribution, candidates: Any, score: str | Score | None = None) -> Numpy:
        """Scores [Q, K] of each query with its candidates, ids [Q, K]; of -1 or "" the score is -inf.

        Raises
        ------
        TypeError, ValueError
            As `rescore`; an id that no item has.
        """
        record, nothing = self._planned(queries, score, 1)
        located = self._located("Gallery.rescore", queries, candidates)
        scores = np.full(np.shape(candidates), -np.inf, nothing.scores.dtype)
        for part, rows in located:
            scores = np.where(rows < 0, scores, retrieval.rescore(queries, part.items, rows, record))
        return scores

    def rerank(
        self, queries: Distribution, candidates: Any, k: int, score: str | Score | None = None, *, exclude: Any = None
    ) -> Ranking[Numpy]:
        """The best k of each query's candidates, ids [Q, K]; -1 or "" for none, and `exclude` as in `search`.

        Raises
        ------
        TypeError, ValueError
            As `rerank`; an id that no item has.
        """
        record, nothing = self._planned(queries, score, k)
        located = self._located("Gallery.rerank", queries, candidates)
        excluded = self._excluded("Gallery.rerank", exclude, queries)
        found = version_rows.best(chain([nothing], version_rows.reranked(queries, located, k, record, excluded)), k)
        return of_score(found, record, dim=queries.dim, gallery_size=len(self))

    def _located(self, owner: str, queries: Distribution, candidates: Any) -> list[tuple[Part, Numpy]]:
        """The parts that have candidates, each with their rows [Q, K] in it, -1 for those that are elsewhere."""
        array = candidate_ids(owner, candidates, len(queries), self._table.nothing[1])
        none = ~there(array)
        unique, numbers = np.unique(array[~none], return_inverse=True)
        wanted = self._encoded(owner, unique)
        found, missing = [], np.ones(len(wanted), bool)
        for part in self._parts(self._table):
            rows = part.rows_of_ids(wanted)
            if (rows >= 0).any():
                placed = np.full(array.shape, -1)
                placed[~none] = rows[numbers]
                found.append((part, placed))
                missing &= rows < 0
        require_known(owner, array, np.isin(array, unique[~missing]))
        return found

    def _planned(self, queries: Distribution, score: str | Score | None, k: int) -> tuple[Score, Ranking[Numpy]]:
        """The score, and what a search of no items gives, after all checks of the arguments."""
        empty, no_ids = self._table.nothing
        record = named(score, queries, empty)
        require_distribution(record.name, "queries", queries)
        if record.pair(queries.kind, empty.kind).op.draws:
            raise ValueError(f"{record.name}: draws by the number of a row, which items of a Gallery have not")
        found = retrieval.search(queries, empty, checked_k(record.name, k), record)
        return record, version_rows.under_ids(found, encoded("Gallery", no_ids))

    def _parts(self, table: LanceTable, *, items: bool = True) -> list[Part]:
        """The parts of a version."""
        last, parts, complete = self._known
        if last is not table or (items and not complete):
            common = table.has_common and not self._is_plain
            parts = version_rows.parts_of(table, self._derived, parts, items=items, common=common)
            self._known = table, parts, items
        return parts

    def _common_parameter(self) -> Numpy | None:
        """As that of a distribution."""
        table = self._table
        return next((part.common for part in self._parts(table, items=table.has_common)), None)

    def _plain(self) -> Self:
        """The same, whose items are scored as if each had a parameter of itself, as beside galleries with others."""
        plain = type(self)(self._table, self._derived, self._pinned)
        plain._is_plain = True
        return plain

    def _ids(self) -> np.ndarray[Any, Any]:
        """All ids that are there, ascending, as files hold them."""
        like = encoded("Gallery", self._table.nothing[1])
        return version_rows.ids_there(self._parts(self._table, items=False), like)

    @property
    def like(self) -> Distribution[Numpy]:
        """A distribution of the gallery's kind, dim and dtype without items."""
        return self._table.nothing[0]

    def _encoded(self, owner: str, ids: Any) -> Numpy:
        """Ids, all different, as files hold them, which must be of the gallery's kind."""
        expected = "strings" if are_strings(self._table.nothing[1]) else "integers"
        return encoded(owner, checked_ids(owner, ids, None, expected))


def _derived_folder(owner: str, uri: str, derived: PathLike | None) -> Path:
    if derived is None and not lance_table.is_local(uri):
        raise ValueError(f"{owner}: derived is None, expected a folder on this machine beside {uri}")
    folder = Path(uri if derived is None else derived, DERIVED)
    if folder.is_symlink():
        raise ValueError(f"{folder}: is a link, expected a folder of the gallery's own; derived can name another place")
    return folder


def _undamaged(folder: Path, table: LanceTable) -> LanceTable:
    """The table, unless what its commit wrote has changed since: ValueError."""
    for line in commit_checksums.damaged(folder, table):
        raise ValueError(line)
    return table


def _reopened(uri: str, version: int | None, derived: Path, options: dict[str, str] | None, sync: bool) -> Gallery:
    return Gallery.open(uri, version, derived=derived, storage_options=options, sync=sync)
