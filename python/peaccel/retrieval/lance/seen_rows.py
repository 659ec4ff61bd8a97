"""A FAISS index of the rows of one version, which proposes candidates for later versions too.

A later version has rows that the index has not seen: new ones, and those that were written again since. Which these are
is told by fragments, which never change, and after a compaction by the version in which each row was last written.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from peaccel._utils.atomic_files import aside, temporary
from peaccel._utils.exclusions import Exclusions
from peaccel.distributions import Distribution, concat
from peaccel.retrieval.faiss import index as faiss_index
from peaccel.retrieval.faiss.indexed_items import AllowedItems, Indexed
from peaccel.retrieval.faiss.serialization import about_features, arrays_of_features, checksum, features_of
from peaccel.retrieval.faiss.vectors import Vectors, first_vectors
from peaccel.retrieval.lance.mapped_rows import writable
from peaccel.retrieval.lance.table import LanceTable
from peaccel.retrieval.lance.version_rows import Bools, Ints, Part, blocks
from peaccel.scores import Score, get, spelled

__all__ = ["PlacedRows", "SeenRows", "is_damaged", "remove"]

INDEX, ROWS, SUMS = "index.faiss", "rows.npz", "checksums.json"
SAMPLE = 262_144  # rows of which an index learns, and of which surrogates are made


class PlacedRows(NamedTuple):
    """Where in a version the rows of an index are."""

    places: Ints  # [n] the row among those of all parts, one part after another; -1 where it is there no more
    unseen: list[Bools]  # for each part, the rows that are there and not in the index


class SeenRows(NamedTuple):
    """A FAISS index and the rows that it holds."""

    index: Any  # which returns the numbers 0 .. n-1
    vectors: Vectors
    version: int
    factory: str
    fragments: list[tuple[str, int]]  # the names of fragments, and how many rows each has in the index, in its order
    rows: Ints  # [n] the row in its fragment's file
    ids: np.ndarray[Any, Any]  # [n] as files hold them

    @classmethod
    def built(cls, table: LanceTable, parts: Sequence[Part], factory: str, first_stage: Any, score: Score) -> SeenRows:
        """An index of all rows that are there, read in blocks: only a sample of them is held in memory."""
        there = [np.flatnonzero(part.mask) for part in parts]
        step = -(-sum(map(len, there)) // SAMPLE)
        sample = concat([part.items[rows[::step]] for part, rows in zip(parts, there, strict=True)])
        try:
            features, radius, first = first_vectors(sample, score, first_stage, factory)
            index = faiss_index.built(first, factory, inner_product=radius is None)
        except (TypeError, ValueError) as error:
            raise type(error)(str(error).replace("FaissReranker.build", "Gallery.build_index")) from None
        vectors = Vectors(features, score, index.d, radius)
        index.reset()
        for part in parts:
            for items, _ in blocks(part, part.there):
                faiss_index.add(index, vectors.gallery(items), index.ntotal)
        fragments = [(part.rows.name, len(rows)) for part, rows in zip(parts, there, strict=True)]
        ids = np.concatenate([part.rows.ids[rows] for part, rows in zip(parts, there, strict=True)])
        return cls(index, vectors, table.version, factory, fragments, np.concatenate(there), ids)

    def write(self, folder: Path) -> None:
        """Save it in a folder, in the place of what is there."""
        about = {
            "version": self.version,
            "factory": self.factory,
            "fragments": self.fragments,
            "score": spelled(self.vectors.score),
            "radius": self.vectors.radius,
            **about_features(self.vectors.features),
        }
        arrays = arrays_of_features(self.vectors.features)
        with writable(folder), aside(folder, folder=True, follow=False) as fresh:
            faiss_index.write(self.index, fresh / INDEX)
            np.savez(fresh / ROWS, rows=self.rows, ids=self.ids, about=np.array(json.dumps(about)), **arrays)
            (fresh / SUMS).write_text(json.dumps({name: checksum(fresh / name) for name in (INDEX, ROWS)}))

    @classmethod
    def read(cls, folder: Path) -> SeenRows:
        """The index that `write` has saved; ValueError where that is damaged."""
        expected = "expected what build_index has written; build it again, or delete it"
        damaged = ValueError(f"{folder}: is damaged, {expected}")
        if is_damaged(folder):
            raise damaged
        try:
            with np.load(folder / ROWS, allow_pickle=False) as arrays:
                named = dict(arrays)
            about = json.loads(str(named.pop("about")))
            rows, ids = named.pop("rows"), named.pop("ids")
            index, score = faiss_index.read(str(folder / INDEX)), get(about["score"])
            vectors = Vectors(features_of(about, named, score), score, index.d, about["radius"])
            return cls(index, vectors, about["version"], about["factory"], about["fragments"], rows, ids)
        except (AttributeError, KeyError, RecursionError, TypeError):  # of a file with checksums that are right
            raise damaged from None

    def placed(self, table: LanceTable, parts: Sequence[Part]) -> PlacedRows:
        """Where its rows are in a version that is not older than it, and what it has not seen of that."""
        ends = np.cumsum([count for _, count in self.fragments])
        slices = {name: slice(end - count, end) for (name, count), end in zip(self.fragments, ends, strict=True)}
        places, gone = np.full(len(self.rows), -1), np.ones(len(self.rows), bool)
        for part in parts:
            gone[slices.get(part.rows.name, slice(0))] = False
        lost, unseen, start = np.flatnonzero(gone), [], 0
        unchanged = f"_row_last_updated_at_version <= {self.version}"
        for part in parts:
            left = part.mask
            if part.rows.name in slices:
                rows = self.rows[slices[part.rows.name]]
                places[slices[part.rows.name]] = np.where(left[rows], start + rows, -1)
                left = left.copy()  # of a version that was restored, rows that were deleted when it was built
                left[rows] = False
            elif len(lost):  # a compaction has put some of them here
                rows, old = (
                    part.rows_of_ids(self.ids[lost]),
                    part.mask_of(table.addresses(unchanged, [part.fragment])),
                )
                found = (rows >= 0) & old[rows]
                places[lost[found]] = start + rows[found]
                left = left.copy()
                left[rows[found]] = False
            unseen.append(left)
            start += len(left)
        return PlacedRows(places, unseen)

    def proposed(
        self,
        queries: Distribution,
        placed: PlacedRows,
        masks: Sequence[Bools | None],
        shortlist: int,
        params: Any,
        excluded: Exclusions | None,
    ) -> Ints:
        """The rows [Q, S] among those of all parts that it thinks best of those of the masks; -1 for none. The
        shortlist grows by the items that a query may not find."""
        allowed = placed.places >= 0
        if any(mask is not None for mask in masks):
            sizes = map(len, placed.unseen)
            every = [np.ones(size, bool) if mask is None else mask for mask, size in zip(masks, sizes, strict=True)]
            allowed &= np.concatenate(every)[placed.places]
        rows = np.flatnonzero(allowed)
        if not len(rows):
            return np.full((len(queries), 1), -1)
        choice = None if allowed.all() else AllowedItems(rows, faiss_index.row_selector(rows, len(allowed)))
        items: Any = _Allowed(allowed)
        vectors = self.vectors.query(queries)
        found = Indexed(self.index, items).proposed(vectors, shortlist, params, choice, excluded=excluded)
        return np.where(found < 0, -1, placed.places[found])


def remove(folder: Path) -> None:
    """Remove what `write` has saved, so that no part of it is ever taken for all; a folder with other files stays."""
    gone = temporary(folder, "old")
    with suppress(OSError):  # another process was first
        if folder.is_symlink() or not {path.name for path in folder.iterdir()} <= {INDEX, ROWS, SUMS}:
            return
        folder.rename(gone)
        shutil.rmtree(gone, ignore_errors=True)


def is_damaged(folder: Path) -> bool:
    """Whether a folder does not hold what `write` has saved in it."""
    try:
        sums = json.loads((folder / SUMS).read_text())
        whole = (folder / name for name in (INDEX, ROWS))
        return any(not path.is_file() or checksum(path) != sums[path.name] for path in whole)
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return True


class _Allowed:
    """The rows of an index that may be found, as a search of `Indexed` needs them."""

    share_ids = False
    by_row = True

    def __init__(self, allowed: Bools) -> None:
        self._allowed = allowed

    def rows_of_labels(self, labels: Ints) -> Ints:
        return np.where((labels >= 0) & self._allowed[labels], labels, -1)
