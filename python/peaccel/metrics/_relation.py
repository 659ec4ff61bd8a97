"""Which gallery items are right answers to which queries: those of a class, or those that pairs or places say."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from peaccel._utils.exclusions import Exclusions
from peaccel._utils.labels import alike
from peaccel._utils.numbers import array_of, as_classes, as_numbers
from peaccel._utils.suggestions import unknown

__all__ = ["Labels", "Relation", "Relevance", "as_relation", "count_compared", "denied"]

METRICS = ("euclidean", "haversine")
EARTH = 6_371_008.8
"""The mean radius of the Earth in metres, (2 a + b) / 3 of the ellipsoid WGS 84."""
DEGREES = (90.0, 180.0)
"""The greatest latitude and longitude."""

Array = NDArray[Any]
Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Labels:
    """Items of a query's class are right, but for the query itself and what it may not find."""

    query_labels: Array
    gallery_labels: Array
    leave_one_out: bool
    """Whether the queries are the gallery."""
    first: int = 0
    """The gallery's row of the first query, where they are; above 0 in a `part`."""
    exclude: Exclusions | None = None
    """The rows that each query may not find."""

    grouping = "classes"

    @property
    def queries(self) -> int:
        """How many queries there are."""
        return len(self.query_labels)

    @property
    def gallery(self) -> int:
        """How many items the gallery has."""
        return len(self.gallery_labels)

    @property
    def clusters(self) -> Array:
        """[Q]: clusters of queries for which the same items are right."""
        return self.query_labels

    @property
    def gallery_clusters(self) -> Array:
        """[G]: the clusters of the gallery items."""
        return self.gallery_labels

    def part(self, start: int, stop: int) -> Labels:
        """The same of some of the queries only."""
        exclude = None if self.exclude is None else self.exclude[start:stop]
        return replace(self, query_labels=self.query_labels[start:stop], first=self.first + start, exclude=exclude)

    def without(self, exclude: Exclusions) -> Labels:
        """The same, where queries may not find rows."""
        return replace(self, exclude=exclude)

    def right(self, queries: Ints, items: Array) -> NDArray[np.bool_]:
        """Whether items are of the class of the queries, row by row; arbitrary for items that are no rows."""
        if not self.gallery:
            return np.zeros(items.shape, np.bool_)
        # With "clip" numpy does not check each id, which is faster.
        right = np.asarray(self.gallery_labels.take(items, mode="clip") == self.query_labels[queries])
        return right if self.exclude is None else right & ~self.exclude.has(queries, items)

    def sizes(self) -> Ints:
        """[Q]: how many items are right for each query."""
        sizes = _counted(self.query_labels, self.gallery_labels)
        if self.exclude is not None:
            first, last, _ = self._excluded_of_class(self.exclude)
            sizes = sizes - (last - first)
        return np.maximum(sizes - _denied_by_itself(self), 0)

    def pairs(self, places: Ints) -> Ints:
        """[P, 2], the right pairs at these places of the list of all of them, which goes query by query."""
        sizes = self.sizes()
        ends = sizes.cumsum()
        query = np.searchsorted(ends, places, "right")
        order = np.argsort(self.gallery_labels, kind="stable")
        first = np.searchsorted(self.gallery_labels[order], self.query_labels)
        place = places - (ends - sizes)[query]
        at = np.empty_like(order)  # of each item, its place among all by class
        at[order] = np.arange(len(order))
        of, left_out = self._left_out(at, first)
        # Of the places that are left out up to one of a query, the i-th moves it on where it is at most i further.
        moved = of * (len(order) + 1) + left_out - _numbered(of)
        place += np.searchsorted(moved, query * (len(order) + 1) + place, "right") - np.searchsorted(of, query)
        return np.stack([query, order[first[query] + place]], 1)

    def _left_out(self, at: Ints, first: Ints) -> tuple[Ints, Ints]:
        """Queries, ascending, and the places within their classes of the items that they may not find, ascending."""
        itself = np.flatnonzero(_denied_by_itself(self))
        of, places = itself, at[self.first + itself] - first[itself]
        if self.exclude is not None:
            begin, end, rows = self._excluded_of_class(self.exclude)
            counts = end - begin
            queries = np.repeat(np.arange(self.queries), counts)
            held = rows[np.repeat(begin, counts) + _numbered(queries)]
            of, places = np.append(of, queries), np.append(places, at[held] - first[queries])
        order = np.lexsort((places, of))
        return of[order], places[order]

    def _excluded_of_class(self, exclude: Exclusions) -> tuple[Ints, Ints, Ints]:
        """For each query from where up to where its excluded items of its class stand among rows, and these rows."""
        both = np.unique(np.concatenate([self.query_labels, self.gallery_labels]), return_inverse=True)[1]
        of_queries, of_items = both[: self.queries], both[self.queries :]
        lists = np.repeat(np.arange(exclude.count_lists()), np.diff(exclude.offsets))
        keys, wanted = (x * (len(both) + 1) for x in (lists, exclude.lists))
        keys = keys + of_items[exclude.ids]
        order = np.argsort(keys, kind="stable")
        first, last = (np.searchsorted(keys[order], wanted + of_queries, side) for side in ("left", "right"))
        return first, last, exclude.ids[order]


@dataclass(frozen=True, eq=False)
class Relevance:
    """Which gallery items are right for which queries, where no classes say it; metrics take it in place of labels.

    Built by `from_pairs` or `within`.

    Examples
    --------
    Image 0 has captions 0 and 1, image 1 has caption 2; of the captions that are ranked first, one is right:

    >>> right = pe.metrics.Relevance.from_pairs([[0, 0], [0, 1], [1, 2]], queries=2, gallery=3)
    >>> right.sizes().tolist()
    [2, 1]
    >>> pe.metrics.recall_at_k([[1, 2], [0, 2]], right)
    0.5

    Of two places only the first was taken within 25 m of the query:

    >>> pe.metrics.Relevance.within([[0.0, 0.0]], [[15.0, 20.0], [30.0, 0.0]], radius=25).sizes().tolist()
    [1]
    """

    codes: Ints
    """[M], query * gallery + item of each right pair, in order, none twice and none of an item with itself."""
    queries: int
    gallery: int
    leave_one_out: bool
    """Whether the queries are the gallery."""
    clusters: Ints
    """[Q]: queries whose answers are no independent evidence; intervals draw them together."""
    gallery_clusters: Ints
    """[G]: the clusters of the gallery items, in the same numbers."""
    grouping: str
    """The word for a cluster, in texts."""
    first: int = 0
    """The gallery's row of the first query, where the queries are the gallery; above 0 in a `part`."""
    exclude: Exclusions | None = None
    """The rows that each query may not find, of which none is right."""

    @staticmethod
    def from_pairs(pairs: ArrayLike, queries: int, gallery: int | None = None) -> Relevance:
        """Right are the pairs that are listed, such as images and their captions.

        Clusters are the connected components: queries that share an answer, and those that share one with these.

        Parameters
        ----------
        pairs
            [M, 2] integers, rows of the query and of the gallery; a pair that is listed twice counts once. Where the
            queries are the gallery (i, j) makes j right for i alone, and (i, i) is left out.
        queries, gallery
            How many; None: the queries are the gallery.

        Raises
        ------
        ValueError
            pairs of another shape or dtype, or rows out of range.
        """
        owner, leave_one_out = "Relevance.from_pairs", gallery is None
        items = queries if gallery is None else gallery
        rows = array_of(owner, "pairs", pairs, "(M, 2)")
        if rows.shape[1] != 2 or rows.dtype.kind not in "iu":
            raise ValueError(f"{owner}: pairs has shape {rows.shape} and dtype {rows.dtype}, expected integers (M, 2)")
        for side, column, count in (("queries", rows[:, 0], queries), ("gallery", rows[:, 1], items)):
            if len(column) and not 0 <= column.min() <= column.max() < count:
                raise ValueError(
                    f"{owner}: pairs name rows {column.min()}..{column.max()} of {side}, expected 0..{count - 1}"
                )
        query, item = rows.astype(np.int64).T
        clusters = _components(query, item, queries, items, leave_one_out)
        of_gallery = clusters if leave_one_out else clusters[queries:]
        return Relevance(
            _codes(query, item, items, leave_one_out),
            queries,
            items,
            leave_one_out,
            clusters[:queries],
            of_gallery,
            "groups",
        )

    @staticmethod
    def within(
        query_coords: ArrayLike,
        gallery_coords: ArrayLike | None,
        radius: float,
        *,
        metric: Literal["euclidean", "haversine"] = "euclidean",
    ) -> Relevance:
        """Right is what was taken at most a radius away: place recognition.

        Clusters are the squares of a grid, two radii wide: the connected components of a road are the whole road.
        Queries further apart than that share no answer, but those on both sides of a line do.

        Parameters
        ----------
        query_coords, gallery_coords
            [Q, C] and [G, C], in a plane or in space, in metres; of metric "haversine" [Q, 2] and [G, 2], latitudes and
            longitudes in degrees. None: the queries are the gallery.
        radius
            Above 0, in metres; the papers' is 25 m.
        metric
            "euclidean", or "haversine": the great-circle distance on a sphere of the Earth's mean radius, 6,371,008.8
            m, which is within 0.6 % of that on the ellipsoid.

        Raises
        ------
        ValueError
            Shapes disagree, coordinates or a radius that are not finite, a radius that is not above 0, or an unknown
            metric. Coordinates that look like degrees without metric "haversine": two columns within [-90, 90] and
            [-180, 180], where no two rows are further apart than the radius, so that every item would be right for
            every query. Degrees that span more than the radius cannot be told from metres.

        Examples
        --------
        Of two places near a point in Berlin, the first is 22 m away and the second 1.3 km:

        >>> berlin, places = [[52.5, 13.4]], [[52.5002, 13.4], [52.51, 13.41]]
        >>> pe.metrics.Relevance.within(berlin, places, radius=25, metric="haversine").sizes().tolist()
        [1]
        """
        from scipy.spatial import KDTree

        owner, leave_one_out = "Relevance.within", gallery_coords is None
        if metric not in METRICS:
            raise ValueError(f"{owner}: {unknown('metric', metric, METRICS)}")
        finite = {"finite": "they have no distances"}
        a = as_numbers(owner, "query_coords", query_coords, "(Q, C)", **finite)
        b = a if gallery_coords is None else as_numbers(owner, "gallery_coords", gallery_coords, "(G, C)", **finite)
        if a.shape[1] != b.shape[1]:
            raise ValueError(f"{owner}: gallery_coords has shape {b.shape}, expected ({len(b)}, {a.shape[1]})")
        if not 0 < radius < np.inf:
            raise ValueError(f"{owner}: radius is {radius}, expected a finite number above 0")
        if (largest := max(np.abs(x).max() for x in (a, b))) > 1e150:
            raise ValueError(f"{owner}: query_coords and gallery_coords reach {largest:g}, expected 1e150 at most")
        if metric == "haversine":
            a, b = (_on_sphere(owner, name, x) for name, x in (("query_coords", a), ("gallery_coords", b)))
            radius = 2 * EARTH * math.sin(min(radius / EARTH, math.pi) / 2)  # the chord below the arc
        elif _look_like_degrees(np.concatenate([a, b]), radius):
            raise ValueError(
                f"{owner}: query_coords and gallery_coords look like degrees, as all of them lie within {radius:g} of "
                "each other; expected metres, or metric='haversine' (--coords-metric haversine) for degrees"
            )
        near = KDTree(a).sparse_distance_matrix(KDTree(b), radius, output_type="ndarray")
        cells = np.floor((np.concatenate([a, b]) - a.min(0)) / (2 * radius))
        clusters = np.unique(cells, axis=0, return_inverse=True)[1].reshape(-1)
        codes = _codes(near["i"].astype(np.int64), near["j"].astype(np.int64), len(b), leave_one_out)
        return Relevance(codes, len(a), len(b), leave_one_out, clusters[: len(a)], clusters[len(a) :], "squares")

    def part(self, start: int, stop: int) -> Relevance:
        """The same of some of the queries only."""
        low, high = np.searchsorted(self.codes, [start * self.gallery, stop * self.gallery])
        return replace(
            self,
            codes=self.codes[low:high] - start * self.gallery,
            queries=len(self.clusters[start:stop]),
            clusters=self.clusters[start:stop],
            first=self.first + start,
            exclude=None if self.exclude is None else self.exclude[start:stop],
        )

    def without(self, exclude: Exclusions) -> Relevance:
        """The same, where queries may not find rows."""
        query, item = np.divmod(self.codes, max(self.gallery, 1))
        return replace(self, codes=self.codes[~exclude.has(query, item)], exclude=exclude)

    def right(self, queries: Ints, items: Array) -> NDArray[np.bool_]:
        """Whether items are right for the queries, row by row; arbitrary for items that are no rows."""
        wanted = queries * self.gallery + items.astype(np.int64, copy=False)
        if not len(self.codes):
            return np.zeros(wanted.shape, np.bool_)
        return np.asarray(self.codes.take(np.searchsorted(self.codes, wanted), mode="clip") == wanted)

    def sizes(self) -> Ints:
        """[Q]: how many items are right for each query."""
        return np.bincount(self.codes // max(self.gallery, 1), minlength=self.queries)

    def pairs(self, places: Ints) -> Ints:
        """[P, 2], the right pairs at these places of the list of all of them, which goes query by query."""
        return np.stack(np.divmod(self.codes[places], max(self.gallery, 1)), 1)


Relation: TypeAlias = Labels | Relevance


def denied(relation: Relation, queries: Ints, items: Array) -> NDArray[np.bool_]:
    """Whether queries may not find items, row by row: themselves, and what is excluded."""
    itself = np.asarray((items == relation.first + queries) & relation.leave_one_out)
    return itself if relation.exclude is None else itself | relation.exclude.has(queries, items)


def count_compared(relation: Relation) -> int:
    """How many pairs of a query and an item that it may find there are."""
    excluded = 0 if relation.exclude is None else int(relation.exclude.counts.sum())
    return relation.queries * relation.gallery - excluded - int(_denied_by_itself(relation).sum())


def _denied_by_itself(relation: Relation) -> NDArray[np.bool_]:
    """[Q]: whether a query is a row of the gallery, which nothing else excludes."""
    queries = np.arange(relation.queries)
    if relation.exclude is None or not relation.leave_one_out:
        return np.full(len(queries), relation.leave_one_out)
    return np.asarray(~relation.exclude.has(queries, relation.first + queries))


def as_relation(
    owner: str,
    query_labels: ArrayLike | Relation,
    gallery_labels: ArrayLike | None,
    names: Sequence[str] = ("query_labels", "gallery_labels"),
    exclude: ArrayLike | Exclusions | None = None,
) -> Relation:
    """The relation of labels of both sides, or of one where the queries are the gallery, or that of a `Relevance`;
    without the rows that queries may not find.
    """
    relation = _as_relation(owner, query_labels, gallery_labels, names)
    excluded = Exclusions.checked(owner, exclude, relation.queries)
    if excluded is None:
        return relation
    excluded.require_like(owner, None)
    return relation.without(excluded.within(0, relation.gallery))


def _as_relation(
    owner: str, query_labels: ArrayLike | Relation, gallery_labels: ArrayLike | None, names: Sequence[str]
) -> Relation:
    if isinstance(query_labels, Relation):
        if gallery_labels is not None:
            raise ValueError(f"{owner}: gallery_labels is given beside a {type(query_labels).__name__}, expected none")
        return query_labels
    queries = as_classes(owner, names[0], query_labels, "(Q,)")
    leave_one_out = gallery_labels is None
    gallery = queries if gallery_labels is None else as_classes(owner, names[1], gallery_labels, "(G,)")
    return Labels(*alike(owner, names, queries, gallery), leave_one_out)


def _look_like_degrees(coords: Array, radius: float) -> bool:
    """Whether coordinates may be latitudes and longitudes, and a radius is so large that all of them are near."""
    return (
        coords.shape[1] == 2
        and bool((np.abs(coords) <= DEGREES).all())
        and math.hypot(*np.ptp(coords, axis=0).tolist()) <= radius
    )


def _on_sphere(owner: str, name: str, degrees: Array) -> Array:
    """[N, 3], the points of latitudes and longitudes on a sphere, in metres."""
    if degrees.shape[1] != 2 or (np.abs(degrees) > DEGREES).any():
        raise ValueError(
            f"{owner}: {name} has shape {degrees.shape} and reaches {np.abs(degrees).max():g}, expected latitudes in "
            "[-90, 90] and longitudes in [-180, 180] for metric 'haversine'"
        )
    latitude, longitude = np.radians(degrees).T
    across = np.cos(latitude)
    return EARTH * np.stack([across * np.cos(longitude), across * np.sin(longitude), np.sin(latitude)], 1)


def _numbered(of: Ints) -> Ints:
    """The number of each element among those of its query, of ascending queries."""
    return np.arange(len(of)) - np.searchsorted(of, of)


def _codes(query: Ints, item: Ints, gallery: int, leave_one_out: bool) -> Ints:
    kept = query != item if leave_one_out else np.ones(len(query), np.bool_)
    return np.unique(query[kept] * gallery + item[kept])


def _components(query: Ints, item: Ints, queries: int, gallery: int, leave_one_out: bool) -> Ints:
    """[Q] or [Q + G], the component of each query, and of each item, in the graph of the pairs."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    size = queries if leave_one_out else queries + gallery
    edges = coo_array((np.ones(len(query), np.int8), (query, item if leave_one_out else queries + item)), (size, size))
    return np.asarray(connected_components(edges, directed=False)[1], np.int64)


def _counted(query_labels: Array, gallery_labels: Array) -> Ints:
    """[Q]: how many of the gallery are of each query's class."""
    if len(gallery_labels) and all(np.can_cast(x.dtype, np.int64) for x in (query_labels, gallery_labels)):
        low, high = int(gallery_labels.min()), int(gallery_labels.max())
        if high - low <= 4 * len(gallery_labels):  # labels can index a table
            sizes = np.bincount(gallery_labels.astype(np.int64) - low)
            here = (query_labels >= low) & (query_labels <= high)
            return np.where(here, sizes[np.where(here, query_labels, low).astype(np.int64) - low], 0)
    count = Counter(gallery_labels.tolist())
    sizes = np.array([count[label] for label in query_labels.tolist()], np.int64)
    missing = query_labels != query_labels  # noqa: PLR0124  (NaN, which no other label equals)
    return np.where(missing, 0, sizes)
