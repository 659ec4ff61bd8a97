"""The rows of one version of a gallery: which are there, where an id is, and the best of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from peaccel import retrieval
from peaccel._utils.arrays import Numpy, repeated
from peaccel._utils.exclusions import Exclusions
from peaccel._utils.ids import SortedIds, and_none
from peaccel.distributions import Distribution
from peaccel.retrieval import search_above
from peaccel.retrieval.findable import Findable, Pairs
from peaccel.retrieval.lance import mapped_rows
from peaccel.retrieval.lance import table as lance_table
from peaccel.retrieval.lance.item_tables import decoded
from peaccel.retrieval.lance.mapped_rows import MappedRows
from peaccel.retrieval.lance.table import LanceTable
from peaccel.retrieval.plan import plan
from peaccel.retrieval.ranking import best_first, known_as
from peaccel.retrieval.verbs import Ranking
from peaccel.scores import Score

__all__ = [
    "Bools",
    "Ints",
    "Part",
    "best",
    "blocks",
    "chosen",
    "found",
    "ids_there",
    "pairs_above",
    "pairs_of_one_set",
    "parts_of",
    "reranked",
    "searched",
    "under_ids",
    "within",
]

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
    common: Numpy | None = None  # the one parameter [1, ...] of all items of the version, if any

    @property
    def mask(self) -> Bools:
        """By row, whether it is there."""
        return np.ones(len(self.rows.ids), bool) if self.there is None else self.there

    @property
    def items(self) -> Distribution:
        """All rows, deleted ones too."""
        items = self.rows.items
        assert items is not None
        if self.common is None:
            return items
        arrays: list[Any] = [items.mu, repeated(self.common, len(items))]
        return type(items)(*arrays)

    def mask_of(self, addresses: Ints) -> Bools:
        """By row, whether it lies at one of these addresses of the fragment."""
        listed = np.zeros(len(self.rows.ids), bool)
        listed[addresses & 0xFFFFFFFF] = True
        try:
            mask: Bools = listed[self.rows.places]
        except IndexError:
            what = f"{self.rows.name}{mapped_rows.SUFFIX}: is damaged, expected places below {len(listed)}"
            raise ValueError(f"{what}; see verify") from None
        return mask

    def rows_of_ids(self, ids: np.ndarray[Any, Any]) -> Ints:
        """The rows of ids of any order; -1 where they are not there."""
        rows = SortedIds(self.rows.ids).rows_of(ids)
        return rows if self.there is None else np.where(self.there[rows], rows, -1)


def parts_of(table: LanceTable, folder: Path, before: Sequence[Part], *, items: bool, common: bool) -> list[Part]:
    """The parts of a version, without items if only ids are of interest; what `before` has of them is kept. `common` is
    whether one parameter of all items is looked for."""
    known = {part.rows.name: part for part in before if part.rows.items is not None or not items}
    parts = []
    for fragment in table.fragments():
        deletions, old = lance_table.deletions_of(fragment), known.get(lance_table.name_of(fragment))
        rows = (
            (mapped_rows.mapped if items else mapped_rows.named)(folder, table, fragment) if old is None else old.rows
        )
        part = Part(fragment, rows, deletions, None if old is None else old.there)
        if old is None or old.deletions != deletions:
            there = part.mask_of(table.addresses(fragments=[fragment])) if deletions else None
            part = part._replace(there=there)
        if old is not None and old.common is not None and not (part.mask & ~old.mask).any():
            part = part._replace(common=old.common)
        parts.append(part)
    one = _common(parts) if items and common else None
    return [part._replace(common=one) for part in parts] if items else parts


def _common(parts: Sequence[Part]) -> Numpy | None:
    """The one parameter of all items that are there; of parts that had one before, a single item is looked at."""
    filled = [part for part in parts if part.mask.any()]
    rows: list[Numpy] = [part.items.arrays[-1][part.mask.argmax()][None] for part in filled]
    if not rows or any((row != rows[0]).any() for row in rows):
        return None
    for part in filled:
        x, mask = part.items.arrays[-1], part.mask
        for start in () if part.common is not None else range(0, len(x), BLOCK):
            block = slice(start, start + BLOCK)
            if ((x[block] != rows[0]).reshape(len(mask[block]), -1).any(1) & mask[block]).any():
                return None
    return rows[0].copy()


def found(parts: Sequence[Part], ids: np.ndarray[Any, Any]) -> tuple[Bools, list[tuple[Any, np.ndarray[Any, Any]]]]:
    """Which of these ids are there, and the fragments that have any, with their places in each."""
    there, places = np.zeros(len(ids), bool), []
    for part in parts:
        rows = part.rows_of_ids(ids)
        if (rows >= 0).any():
            there |= rows >= 0
            places.append((part.fragment, part.rows.places[rows[rows >= 0]]))
    return there, places


def ids_there(parts: Sequence[Part], like: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """All ids that are there, ascending, as files hold them; of the kind of others where there are none."""
    return np.sort(np.concatenate([like[:0], *(part.rows.ids[part.mask] for part in parts)]))


def chosen(
    parts: Sequence[Part], table: LanceTable, filter: str | None, allowed: np.ndarray[Any, Any] | None = None
) -> list[Bools | None]:
    """For each part which rows are there, fulfil a filter, and have one of the ids that are allowed; None where all
    do."""
    masks = [part.there for part in parts]
    if filter is not None:
        addresses = table.addresses(filter=filter)
        numbers = addresses >> 32
        masks = [part.mask_of(addresses[numbers == part.fragment.fragment_id]) for part in parts]
    if allowed is not None:
        masks = [_with_ids(part, mask, allowed) for part, mask in zip(parts, masks, strict=True)]
    return masks


def _with_ids(part: Part, mask: Bools | None, ids: np.ndarray[Any, Any]) -> Bools:
    """The rows of a mask that have these ids."""
    rows = part.rows_of_ids(ids)
    listed = np.zeros(len(part.rows.ids), bool)
    listed[rows[rows >= 0]] = True
    return listed if mask is None else listed & mask


def blocks(part: Part, mask: Bools | None) -> Iterator[tuple[Distribution, np.ndarray[Any, Any]]]:
    """Items of a part and their ids, as views of its map, or copied where the mask leaves some out."""
    for start in range(0, len(part.rows.ids), BLOCK):
        rows: Any = slice(start, start + BLOCK)
        if mask is not None and not mask[rows].all():
            rows = start + np.flatnonzero(mask[rows])
            if not len(rows):
                continue
        yield part.items[rows], part.rows.ids[rows]


def under_ids(ranking: Ranking[Any], ids: np.ndarray[Any, Any]) -> Ranking[Any]:
    """Ranking of rows as one of their ids; -1 or "" for padding."""
    return known_as(Ranking(ranking.scores, decoded(and_none(ids)[ranking.ids])), ranking)


def searched(
    queries: Distribution,
    parts: Sequence[Part],
    masks: Sequence[Bools | None],
    k: int,
    score: Score,
    excluded: Exclusions | None,
) -> Iterator[Ranking[Any]]:
    """The best k of each block of the parts' rows, all or those of masks."""
    for part, mask in zip(parts, masks, strict=True):
        for items, ids in blocks(part, mask):
            yield under_ids(retrieval.search(queries, items, k, score, exclude=among(excluded, ids)), ids)


def among(excluded: Exclusions | None, ids: np.ndarray[Any, Any]) -> Exclusions | None:
    """Exclusions by rows of ascending ids."""
    return None if excluded is None else excluded.among(SortedIds(ids))


def pairs_above(
    queries: Distribution,
    parts: Sequence[Part],
    masks: Sequence[Bools | None],
    threshold: float,
    score: Score,
    excluded: Exclusions | None = None,
) -> Iterator[Pairs]:
    """Pairs of queries and ids that reach a threshold, of the parts' rows, all or those of masks."""
    for part, mask in zip(parts, masks, strict=True):
        for items, ids in blocks(part, mask):
            planned = plan(queries, items, score, detach=True)
            findable = Findable(None, among(excluded, ids))
            for of, rows, scores in search_above.pairs_above(planned, threshold, findable):
                yield of, ids[rows], scores


def pairs_of_one_set(
    parts: Sequence[Part], ascending: np.ndarray[Any, Any], threshold: float, score: Score
) -> Iterator[Pairs]:
    """Pairs of the parts' rows that reach a threshold, the lower id first, by its place among all, ascending."""
    masks = [part.there for part in parts]
    for part, mask in zip(parts, masks, strict=True):
        for items, first in blocks(part, mask):
            for of, ids, scores in pairs_above(items, parts, masks, threshold, score):
                after = ids > first[of]
                yield SortedIds(ascending).rows_of(first[of[after]]), ids[after], scores[after]


def within(parts: Sequence[Part], rows: Ints) -> list[tuple[Part, Ints]]:
    """Rows [Q, S] among those of all parts, one part after another, as rows of each part that has any; -1 for none."""
    ends = np.cumsum([len(part.rows.ids) for part in parts])
    by_part = [
        (part, np.where((rows >= end - len(part.rows.ids)) & (rows < end), rows - end + len(part.rows.ids), -1))
        for part, end in zip(parts, ends, strict=True)
    ]
    return [(part, rows) for part, rows in by_part if (rows >= 0).any()]


def reranked(
    queries: Distribution, candidates: Sequence[tuple[Part, Ints]], k: int, score: Score, excluded: Exclusions | None
) -> Iterator[Ranking[Any]]:
    """The best k of each part's candidates, which are rows [Q, S] of it, -1 for none."""
    for part, rows in candidates:
        ids = part.rows.ids
        yield under_ids(retrieval.rerank(queries, part.items, rows, k, score, exclude=among(excluded, ids)), ids)


def best(rankings: Iterable[Ranking[Any]], k: int) -> Ranking[Any]:
    """The best k of several rankings, ties by the lower id."""
    held: list[Ranking[Any]] = []
    for ranking in rankings:
        held.append(ranking)
        if len(held) == HELD:
            held = [_merged(held, k)]
    return _merged(held, k)


def _merged(rankings: list[Ranking[Any]], k: int) -> Ranking[Any]:
    scores, ids = best_first(*(np.concatenate(x, 1) for x in zip(*rankings, strict=True)), by_row=True)
    return Ranking(np.ascontiguousarray(scores[:, :k]), np.ascontiguousarray(ids[:, :k]))
