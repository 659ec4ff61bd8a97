"""Rankings: ids of a gallery's rows beside the labels of both sides."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from peaccel.metrics._arrays import as_array

__all__ = ["Ranking", "relevance", "without_self"]

Array = NDArray[Any]
BLOCK = 1 << 16  # ids that are looked up at a time, and stay in a core's cache


def without_self(ids: ArrayLike, values: ArrayLike | None = None) -> Array:
    """Rankings of items among themselves, without each item's own row.

    Row i is removed wherever it stands among the ids of query i, also behind duplicates of it; where it is not among
    them the last column goes.

    Parameters
    ----------
    ids
        [N, K] rows of the N items, best first; -1 = none.
    values
        [N, K] what is to be shortened in the same way, such as the scores; the ids themselves by default.

    Returns
    -------
    [N, K - 1] of the dtype of `values`.

    Raises
    ------
    ValueError
        Shapes disagree, ids are no integers, K = 0, or an item stands twice among its own ids.
    """
    owner = "without_self"
    found = as_ids(owner, ids)
    given = found if values is None else as_array(owner, "values", values, "(N, K)")
    if given.shape != found.shape or not found.shape[1]:
        raise ValueError(f"{owner}: values has shape {given.shape}, expected (N, K) with K > 0 like ids, {found.shape}")
    shorter = np.empty((len(found), found.shape[1] - 1), given.dtype)
    for rows in blocks(found):
        shorter[rows] = drop_own(owner, found[rows], given[rows], rows.start)
    return shorter


def relevance(ids: ArrayLike, query_labels: ArrayLike, gallery_labels: ArrayLike | None = None) -> NDArray[np.bool_]:
    """Say which of the ranked gallery items are of the query's class.

    Parameters
    ----------
    ids
        [Q, K] gallery rows, best first; -1 = none, which is never relevant.
    query_labels
        [Q]: numbers or words.
    gallery_labels
        [G], of the same kind; None = the queries are the gallery, and their own rows are removed.

    Returns
    -------
    [Q, K] bool; [Q, K - 1] where own rows are removed.

    Raises
    ------
    ValueError
        Shapes disagree, ids are no integers, an id lies outside the gallery, one side's labels are numbers and the
        other's words, or an item stands twice among its own ids.
    """
    ranking = Ranking.of("relevance", ids, query_labels, gallery_labels)
    relevant = np.empty((len(ranking.ids), ranking.columns), np.bool_)
    for rows, hit in ranking.hits(ranking.columns):
        relevant[rows] = hit
    return relevant


@dataclass(frozen=True, eq=False)
class Ranking:
    """Ids and labels that fit each other."""

    owner: str
    ids: Array
    """[Q, columns], one column more where own rows are among them."""
    queries: Array
    gallery: Array
    own: bool
    """The queries are the gallery."""

    @staticmethod
    def of(owner: str, ids: ArrayLike, query_labels: ArrayLike, gallery_labels: ArrayLike | None) -> "Ranking":
        """Check what the owner was given."""
        found = as_ids(owner, ids)
        queries = as_array(owner, "query_labels", query_labels, "(Q,)")
        own = gallery_labels is None
        gallery = queries if gallery_labels is None else as_array(owner, "gallery_labels", gallery_labels, "(G,)")
        if len(found) != len(queries):
            raise ValueError(f"{owner}: ids has shape {found.shape}, expected ({len(queries)}, K) like query_labels")
        kinds = ["words" if isinstance(x[0], (str, bytes)) else "numbers" for x in (queries, gallery) if len(x)]
        if len(set(kinds)) > 1:
            raise ValueError(f"{owner}: query_labels are {kinds[0]}, gallery_labels {kinds[1]}: no class is in both")
        return Ranking(owner, found, queries, gallery, own)

    @property
    def columns(self) -> int:
        """How many items are ranked for each query, its own row left out."""
        return max(int(self.ids.shape[1]) - self.own, 0)

    def hits(self, columns: int) -> Iterator[tuple[slice, NDArray[np.bool_]]]:
        """Which of the first ids are of the query's class, by blocks of queries."""
        ids = self.ids[:, : columns + self.own]
        if ids.size and not -1 <= ids.min() <= ids.max() < len(self.gallery):
            expected = f"expected -1..{len(self.gallery) - 1}"
            raise ValueError(f"{self.owner}: ids span {ids.min()}..{ids.max()}, {expected}")
        for rows in blocks(ids):
            block = ids[rows]
            if self.own and block.shape[1]:
                block = drop_own(self.owner, block, block, rows.start)
            if not len(self.gallery):
                yield rows, np.zeros(block.shape, np.bool_)
                continue
            # "clip" is faster than a check of each id; what is no id counts for nothing.
            hit = np.asarray(self.gallery.take(block, mode="clip") == self.queries[rows, None])
            hit &= block >= 0
            yield rows, hit

    def class_sizes(self) -> NDArray[np.int64]:
        """[Q]: how many gallery items, but for the query itself, are of each query's class."""
        return np.maximum(counted(self.queries, self.gallery) - self.own, 0)


def as_ids(owner: str, ids: ArrayLike) -> Array:
    """Ids as integers."""
    found = as_array(owner, "ids", ids, "(Q, K)")
    found = found if found.size else found.astype(np.int64)  # an empty list has no dtype
    if found.dtype.kind not in "iu":
        raise ValueError(f"{owner}: ids has dtype {found.dtype}, expected integers")
    return found


def blocks(ids: Array) -> Iterator[slice]:
    """Slices of rows."""
    step = -(-BLOCK // max(ids.shape[1], 1))
    for start in range(0, len(ids), step):
        yield slice(start, start + step)


def drop_own(owner: str, ids: Array, values: Array, first: int) -> Array:
    """Values without those of the items' own ids, the first of which is `first`."""
    here = ids == np.arange(first, first + len(ids))[:, None]
    times = here.sum(1)
    if times.max(initial=0) > 1:
        raise ValueError(f"{owner}: ids of query {first + times.argmax()} name its own row {times.max()} times")
    last = ids.shape[1] - 1
    place = np.where(times > 0, here.argmax(1), last)
    return np.where(np.arange(last) < place[:, None], values[:, :-1], values[:, 1:])


def counted(query_labels: Array, gallery_labels: Array) -> NDArray[np.int64]:
    """[Q]: how many of the gallery are of each query's class."""
    if len(gallery_labels) and all(np.can_cast(x.dtype, np.int64) for x in (query_labels, gallery_labels)):
        low, high = int(gallery_labels.min()), int(gallery_labels.max())
        if high - low <= 4 * len(gallery_labels):  # numbers that can be places of a table
            sizes = np.bincount(gallery_labels.astype(np.int64) - low)
            here = (query_labels >= low) & (query_labels <= high)
            return np.where(here, sizes[np.where(here, query_labels, low).astype(np.int64) - low], 0)
    count = Counter(gallery_labels.tolist())
    sizes = np.array([count[label] for label in query_labels.tolist()], np.int64)
    missing = query_labels != query_labels  # noqa: PLR0124  (NaN, which no other label equals)
    return np.where(missing, 0, sizes)
