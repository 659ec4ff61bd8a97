"""The rows of one version of a gallery: which are there, where an id is, and the best of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from peaccel import retrieval
from peaccel.distributions import Distribution
from peaccel.gallery import lance_table, mapped_rows
from peaccel.gallery.item_tables import NO_ID, decoded, padding
from peaccel.gallery.lance_table import LanceTable
from peaccel.gallery.mapped_rows import MappedRows
from peaccel.retrieval.merging import best_first
from peaccel.retrieval.verbs import Ranking
from peaccel.scores import Score

__all__ = ["BestOfParts", "Bools", "Ints", "Part", "blocks", "chosen", "mask_of", "parts_of", "rows_of_ids"]

Bools = np.ndarray[Any, np.dtype[np.bool_]]
Ints = np.ndarray[Any, np.dtype[np.int64]]

BLOCK = 65_536  # rows that are scored at a time
HELD = 8  # rankings that are held until they are merged


class Part(NamedTuple):
    """A fragment of a version."""

    fragment: Any
    rows: MappedRows
    deletions: str
    there: Bools | None  # by row; None where all are


def parts_of(table: LanceTable, folder: Path, before: Sequence[Part]) -> list[Part]:
    """The parts of a version; what those of another version have in common with it is not opened again."""
    known = {part.rows.name: part for part in before}
    parts = []
    for fragment in table.fragments():
        name, deletions = lance_table.name_of(fragment), lance_table.deletions_of(fragment)
        old = known.get(name)
        rows = mapped_rows.mapped(folder, table, fragment) if old is None else old.rows
        if old is not None and old.deletions == deletions:
            there = old.there
        else:
            there = mask_of(rows, table.addresses(fragments=[fragment])) if deletions else None
        parts.append(Part(fragment, rows, deletions, there))
    return parts


def chosen(parts: Sequence[Part], table: LanceTable, filter: str | None) -> list[Bools | None]:
    """For each part which rows are there and fulfil a filter; None where all do."""
    if filter is None:
        return [part.there for part in parts]
    addresses = table.addresses(filter=filter)
    numbers = addresses >> 32
    return [mask_of(part.rows, addresses[numbers == part.fragment.fragment_id]) for part in parts]


def mask_of(rows: MappedRows, addresses: Ints) -> Bools:
    """Which rows lie at these addresses of their fragment."""
    found = np.zeros(len(rows.ids), bool)
    found[addresses & 0xFFFFFFFF] = True
    try:
        there: Bools = found[rows.places]
    except IndexError:
        raise ValueError(
            f"{rows.name}.safetensors: is damaged, expected places below {len(found)}; see verify"
        ) from None
    return there


def rows_of_ids(part: Part, ids: np.ndarray[Any, Any]) -> Ints:
    """The rows of ids in a part, which may be [N] of any order; -1 where they are not there."""
    ascending = part.rows.ids
    near = np.minimum(np.searchsorted(ascending, ids), len(ascending) - 1)
    there = ascending[near] == ids
    if part.there is not None:
        there &= part.there[near]
    return np.where(there, near, -1)


def blocks(part: Part, mask: Bools | None) -> Iterator[tuple[Distribution, np.ndarray[Any, Any]]]:
    """Items of a part and their ids, as views of its map, or copied where the mask leaves some out."""
    items, ids = part.rows.items, part.rows.ids
    for start in range(0, len(ids), BLOCK):
        own = slice(start, start + BLOCK)
        if mask is None or mask[own].all():
            yield items[own], ids[own]
        elif mask[own].any():
            rows = start + np.flatnonzero(mask[own])
            yield items[rows], ids[rows]


class BestOfParts:
    """The best k of several parts, ties by the lower id.

    Parameters
    ----------
    nothing
        What a search of no items gives, [Q, k].
    like
        Ids of the gallery's kind.
    """

    def __init__(self, nothing: Ranking[Any], like: np.ndarray[Any, Any]) -> None:
        self.k = nothing.ids.shape[1]
        self._held = [(nothing.scores, padding(like, nothing.ids.shape))]

    def add(self, found: Ranking[Any], ids: np.ndarray[Any, Any]) -> None:
        """Add what was found among items with these ids, ascending."""
        none = found.ids < 0
        named = (
            np.where(none, padding(ids, ()), ids[np.where(none, 0, found.ids)])
            if len(ids)
            else padding(ids, none.shape)
        )
        self._held.append((found.scores, named))
        if len(self._held) >= HELD:
            self._merge()

    def add_exact(self, queries: Distribution, part: Part, mask: Bools | None, score: Score) -> None:
        """Add the best of a part's rows, all or those of a mask."""
        for items, ids in blocks(part, mask):
            self.add(retrieval.search(queries, items, self.k, score), ids)

    def _merge(self) -> None:
        scores, ids = (np.concatenate(x, 1) for x in zip(*self._held, strict=True))
        if ids.dtype.kind == "i":
            scores, ids = (x[:, : self.k] for x in best_first(scores, ids, by_row=True))
        else:
            names, numbers = np.unique(ids, return_inverse=True)
            numbers = np.where(ids == NO_ID, -1, numbers.reshape(ids.shape))
            scores, numbers = (x[:, : self.k] for x in best_first(scores, numbers, by_row=True))
            ids = np.where(numbers < 0, NO_ID, names[numbers])
        self._held = [(scores, ids)]

    def ranking(self) -> Ranking[Any]:
        """The best of all, under ids as callers know them."""
        self._merge()
        scores, ids = self._held[0]
        return Ranking(np.ascontiguousarray(scores), np.ascontiguousarray(decoded(ids)))
