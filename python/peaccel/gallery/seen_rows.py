"""A FAISS index of the rows of one version, which proposes candidates for later versions too.

A later version has rows that the index has not seen: new ones, and those that were written again since. Which these are
is told by fragments, which never change, and after a compaction by the version in which each row was last written.
"""

from __future__ import annotations

import json
import shutil
import uuid
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from peaccel._utils.atomic_files import aside
from peaccel.distributions import Distribution, concat
from peaccel.gallery.lance_table import LanceTable
from peaccel.gallery.mapped_rows import writable
from peaccel.gallery.version_rows import Bools, Ints, Part, blocks, mask_of, rows_of_ids
from peaccel.reranker import faiss_index
from peaccel.reranker.indexed_items import AllowedItems, Indexed
from peaccel.reranker.serialization import about_features, arrays_of_features, checksum, features_of
from peaccel.reranker.vectors import Vectors, first_vectors
from peaccel.scores import Score, get, spelled

__all__ = ["PlacedRows", "SeenRows", "is_damaged", "remove"]

INDEX, ROWS, ABOUT = "index.faiss", "rows.npz", "about.json"
FORMAT = 1  # the version of the folder's format
SAMPLE = 262_144  # rows of which an index learns, and of which surrogates are made


class PlacedRows(NamedTuple):
    """Where in a version the rows of an index are."""

    places: Ints  # [n] the row among those of all parts, one part after another; -1 where it is there no more
    unseen: list[Bools]  # for each part, the rows that are there and not in the index


class SeenRows:
    """A FAISS index and the rows that it holds.

    Parameters
    ----------
    index
        The index, which returns rows of its own: 0 .. n-1.
    vectors
        How items become its vectors.
    about
        The version, the factory, and the names of fragments with how many rows each has in the index, in its order.
    rows
        [n] the row in its fragment's file.
    ids
        [n] the ids, as files hold them.
    """

    def __init__(
        self, index: Any, vectors: Vectors, about: dict[str, Any], rows: Ints, ids: np.ndarray[Any, Any]
    ) -> None:
        self.index, self.vectors, self.about, self.rows, self.ids = index, vectors, about, rows, ids
        self.version = int(about["version"])

    @classmethod
    def built(cls, table: LanceTable, parts: Sequence[Part], factory: str, first_stage: Any, score: Score) -> SeenRows:
        """An index of all rows that are there, read in blocks: only a sample of them is held in memory."""
        there = [np.arange(len(part.rows.ids)) if part.there is None else np.flatnonzero(part.there) for part in parts]
        step = -(-sum(map(len, there)) // SAMPLE)
        sample = concat([part.rows.items[rows[::step]] for part, rows in zip(parts, there, strict=True)])
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
        fragments = [[part.rows.name, len(rows)] for part, rows in zip(parts, there, strict=True)]
        about = {"version": table.version, "factory": factory, "fragments": fragments}
        ids = np.concatenate([part.rows.ids[rows] for part, rows in zip(parts, there, strict=True)])
        return cls(index, vectors, about, np.concatenate(there), ids)

    def write(self, folder: Path) -> None:
        """Save it in a folder, in the place of what is there."""
        with aside(folder) as fresh, writable(folder):
            fresh.mkdir()
            faiss_index.write(self.index, fresh / INDEX)
            np.savez(fresh / ROWS, rows=self.rows, ids=self.ids, **arrays_of_features(self.vectors.features))
            about = {
                "saved": "peaccel.Gallery index",
                "format": FORMAT,
                **self.about,
                "score": spelled(self.vectors.score),
                "radius": self.vectors.radius,
                **about_features(self.vectors.features),
                **{f"crc32 of {name}": checksum(fresh / name) for name in (INDEX, ROWS)},
            }
            (fresh / ABOUT).write_text(json.dumps(about | {"crc32": _crc32(about)}, indent=2) + "\n")

    @classmethod
    def read(cls, folder: Path) -> SeenRows:
        """The index that `write` has saved; ValueError where that is damaged."""
        if is_damaged(folder):
            raise ValueError(
                f"{folder}: is damaged, expected what build_index has written; build it again, or delete it"
            )
        about = json.loads((folder / ABOUT).read_text())
        with np.load(folder / ROWS, allow_pickle=False) as arrays:
            named = dict(arrays)
        index, rows, ids, score = (
            faiss_index.read(str(folder / INDEX)),
            named.pop("rows"),
            named.pop("ids"),
            get(about["score"]),
        )
        return cls(index, Vectors(features_of(about, named, score), score, index.d, about["radius"]), about, rows, ids)

    def placed(self, table: LanceTable, parts: Sequence[Part]) -> PlacedRows:
        """Where its rows are in a version that is not older than it, and what it has not seen of that."""
        names, counts = zip(*self.about["fragments"], strict=True)
        ends = np.cumsum(counts)
        own = {name: slice(end - count, end) for name, count, end in zip(names, counts, ends, strict=True)}
        gone = np.ones(len(self.rows), bool)
        for part in parts:
            if part.rows.name in own:
                gone[own[part.rows.name]] = False
        lost, places, unseen, start = np.flatnonzero(gone), np.full(len(self.rows), -1), [], 0
        for part in parts:
            there = np.ones(len(part.rows.ids), bool) if part.there is None else part.there
            if part.rows.name in own:
                rows = self.rows[own[part.rows.name]]
                places[own[part.rows.name]] = np.where(there[rows], start + rows, -1)
                there = np.zeros(len(there), bool)
            elif len(lost):  # a compaction has put some of them here
                addresses, versions = table.updated(part.fragment)
                old = mask_of(part.rows, addresses[versions <= self.version])
                rows = rows_of_ids(part, self.ids[lost])
                found = (rows >= 0) & old[rows]
                places[lost[found]] = start + rows[found]
                there = there.copy()
                there[rows[found]] = False
            unseen.append(there)
            start += len(part.rows.ids)
        return PlacedRows(places, unseen)

    def proposed(
        self, queries: Distribution, placed: PlacedRows, masks: Sequence[Bools | None], shortlist: int, params: Any
    ) -> Ints:
        """The rows [Q, S] among those of all parts that it thinks best of those of the masks; -1 for none."""
        allowed = placed.places >= 0
        if any(mask is not None for mask in masks):
            sizes = [len(unseen) for unseen in placed.unseen]
            every = [np.ones(size, bool) if mask is None else mask for mask, size in zip(masks, sizes, strict=True)]
            allowed &= np.concatenate(every)[placed.places]
        rows = np.flatnonzero(allowed)
        choice = None if len(rows) == len(allowed) else AllowedItems(rows, faiss_index.row_selector(rows, len(allowed)))
        if not len(rows):
            return np.full((len(queries), 1), -1)
        items: Any = _Allowed(allowed)
        found = Indexed(self.index, items).proposed(self.vectors.query(queries), shortlist, params, choice)
        return np.where(found < 0, -1, placed.places[found])


def remove(folder: Path) -> None:
    """Remove what `write` has saved, so that no part of it is ever taken for all."""
    gone = folder.with_name(f".{folder.name}-{uuid.uuid4().hex[:12]}-old")
    try:
        folder.rename(gone)
    except OSError:  # another process was first
        return
    shutil.rmtree(gone, ignore_errors=True)


def is_damaged(folder: Path) -> bool:
    """Whether a folder does not hold what `write` has saved in it."""
    try:
        about = json.loads((folder / ABOUT).read_text())
        intact = about.pop("crc32") == _crc32(about) and about["format"] == FORMAT
        return not intact or any(checksum(folder / name) != about[f"crc32 of {name}"] for name in (INDEX, ROWS))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return True


def _crc32(about: dict[str, Any]) -> int:
    return zlib.crc32(json.dumps(about, sort_keys=True).encode())


class _Allowed:
    """The rows of an index that may be found, as a search of `Indexed` needs them."""

    by_row = True

    def __init__(self, allowed: Bools) -> None:
        self._allowed = allowed

    def rows_of_labels(self, labels: Ints) -> Ints:
        return np.where((labels >= 0) & self._allowed[labels], labels, -1)
