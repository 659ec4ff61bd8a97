"""Clusters of one set by average linkage over the pairs that a search finds.

Average linkage is reducible, with a number in place of the pairs that are missing too: joining two clusters brings them
no nearer to a third one than the nearer of them was. So two clusters that are each other's best can be joined at once,
and the result is that of joining the best pair of all over and over (Murtagh's chain of nearest neighbours).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from peaccel._utils.arrays import like, on_host
from peaccel.distributions import Distribution, concat
from peaccel.distributions.checks import checked_k, require_distribution
from peaccel.fits.records import IsotonicProbability, LogisticProbability, Threshold
from peaccel.retrieval.duplicates import duplicates
from peaccel.retrieval.search_above import MOST, checked_number, search_above
from peaccel.retrieval.verbs import pairwise
from peaccel.scores import Score, named

__all__ = ["Clusters", "cluster"]

Ints: TypeAlias = NDArray[np.int64]
Floats: TypeAlias = NDArray[np.float64]
Probability: TypeAlias = LogisticProbability | IsotonicProbability

DRAWN = 1024, 8192
"""Items between which scores are looked at, to estimate how many pairs reach a floor."""


class _Graph(NamedTuple):
    """The pairs that were found, each once, and their scores."""

    first: Ints
    second: Ints
    scores: Floats


@dataclass(frozen=True, eq=False)
class _Linkage:
    """Items in an order that does not depend on that of the caller, the pairs among them, and how they are joined."""

    items: Distribution
    rows: Ints
    """[N]: the caller's row of each item."""
    graph: _Graph
    threshold: float
    floor: float
    margin: float
    probability: Probability | None
    most: int


@dataclass(frozen=True, eq=False)
class Clusters:
    """The clusters of N items, as `cluster` finds them; prints as a sentence.

    Examples
    --------
    >>> found = pe.cluster(pe.Point([[0.0, 1.0], [1.0, 0.0], [0.1, 1.0], [0.7, 0.7]]), 0.9)
    >>> print(found)
    4 items in 1 cluster of up to 2 and 2 items alone: average cosine from 0.9 on, over all pairs
    """

    labels: Ints
    """int64 [N]: the cluster of each item; 0 is the largest, and of equal sizes the one with the lowest row."""
    sizes: Ints
    """int64 [C]: the number of items of each cluster, 1 of an item that is alone."""
    scores: Floats
    """[N]: the average score of each item with the others of its cluster; NaN where it is alone."""
    next_scores: Floats
    """[N]: the greatest average score of each item with the items of another cluster; -inf where no pair was found."""
    probabilities: Floats | None
    """[N]: the average probability that the item matches another one of its cluster; None without a probability."""
    threshold: float
    """The least average score of two clusters that are joined."""
    floor: float
    """The score that pairs which were not found count as; -inf where all pairs were looked for."""
    score: Score
    _linkage: _Linkage = field(repr=False)

    def __str__(self) -> str:
        """The numbers of clusters and items, and how they were found."""
        alone, several = int((self.sizes == 1).sum()), self.sizes[self.sizes > 1]
        many = f"{len(several)} cluster{'s' * (len(several) != 1)}"
        largest = f" of up to {several.max()}" if len(several) else ""
        single = f"{alone} item{'s' * (alone != 1)} alone"
        rest = "over all pairs" if self.floor == -math.inf else f"where pairs below {self.floor:.6g} count as that"
        how = f"average {self.score.label} from {self.threshold:.6g} on, {rest}"
        return f"{len(self.labels)} items in {many}{largest} and {single}: {how}"

    def pairs_to_check(self) -> tuple[Ints, Floats]:
        """The pairs that were found, those nearest to the threshold first: rows [P, 2] and scores [P].

        `answers_to_check` takes the scores and says which pairs a person looks at.

        Examples
        --------
        >>> found = pe.cluster(pe.Point([[0.0, 1.0], [1.0, 0.0], [0.1, 1.0], [0.7, 0.7]]), 0.9)
        >>> pairs, scores = found.pairs_to_check()
        >>> pairs[:2].tolist(), scores[:2].round(3).tolist()
        ([[0, 2], [2, 3]], [0.995, 0.774])
        """
        graph, rows = self._linkage.graph, self._linkage.rows
        nearest = np.argsort(abs(graph.scores - self.threshold), kind="stable")
        pairs = np.stack([rows[graph.first[nearest]], rows[graph.second[nearest]]], 1)
        return np.sort(pairs, 1), graph.scores[nearest]

    def add(self, items: Distribution[Any]) -> Clusters:
        """Clusters of these and further items, which join a cluster or open one; the earlier items keep theirs.

        Parameters
        ----------
        items
            M items like the earlier ones.

        Returns
        -------
        Clusters
            Of N + M items, the further ones last. Earlier clusters keep their numbers, and new ones come after them.
            No two earlier clusters are joined, however alike they have become.

        Raises
        ------
        TypeError, ValueError
            As `cluster`.

        Examples
        --------
        >>> found = pe.cluster(pe.Point([[0.0, 1.0], [1.0, 0.0], [0.1, 1.0]]), 0.9)
        >>> found.add(pe.Point([[1.0, 0.1], [-1.0, 0.0]])).labels.tolist()
        [0, 1, 0, 1, 2]
        """
        require_distribution("cluster", "items", items)
        old, before = self._linkage, len(self.labels)
        rows = _order(items)
        further = items[like(items.mu, rows)]
        found = search_above(further, old.items, self.floor, self.score, most=old.most)
        among = duplicates(further, self.floor, self.score, most=old.most)
        parts = (
            old.graph,
            (on_host(found.ids), on_host(found.queries) + before, on_host(found.scores)),
            (on_host(among.queries) + before, on_host(among.ids) + before, on_host(among.scores)),
        )
        graph = _Graph(*map(np.concatenate, zip(*parts, strict=True)))
        together = concat([old.items, further])
        linkage = replace(old, items=together, rows=np.append(old.rows, rows + before), graph=graph)
        return _clusters(linkage, self.score, self.labels)


def cluster(
    items: Distribution,
    threshold: float | Threshold,
    score: str | Score | None = None,
    *,
    floor: float | None = None,
    margin: float = 0.0,
    probability: Probability | None = None,
    most: int = MOST,
) -> Clusters:
    """Clusters of one set by average linkage: two are joined while their average score reaches a threshold.

    The pairs above a floor are found by an exact search, and any other pair counts as the floor. So memory is that of
    these pairs. Where all pairs are found this is average linkage as scipy computes it, cut at the threshold.

    Parameters
    ----------
    items
        N items.
    threshold
        The least average score of two clusters that are joined; or a threshold of pairs, as `choose_pair_threshold`
        finds it, which is refused if its score is another one. Its promise is of single pairs, not of clusters.
    score
        A name, ``"name:param=number"`` or a `Score`; higher = more similar. By default cosine of points, and else mls.
        Of a score that is not symmetric one direction is looked at.
    floor
        The least score of pairs that are found, below the threshold. A pair below counts as the floor, which is more
        than its score: the nearer the floor is to the threshold, the easier clusters are joined. By default all pairs
        are found if they are at most `most`, and else about half of `most`.
    margin
        In units of the score, >= 0. An item is unsure if its average score with its cluster lies less than this above
        the threshold, or above the average with another cluster. Unsure items are taken out, and assigned last: to
        clusters of the others, by the same rule, or to none.
    probability
        The result of `fit_match_probability` for this score, without confidences.
    most
        How many pairs may be found, >= 1; they take 24 bytes each, and some 100 while clusters are made.

    Returns
    -------
    Clusters
        Labels, sizes and scores, on the host.

    Raises
    ------
    TypeError, ValueError
        As `duplicates`; a floor that is not below the threshold; a margin below 0; a threshold that is not of pairs,
        or of another score; more than `most` pairs above the floor.

    Notes
    -----
    The order of the items does not matter. Of equal averages that of the items comes first whose numbers, as bytes,
    come first. Infinite scores, of exact copies, count as the greatest finite one; where all pairs are looked for, a
    score of -inf or NaN counts as far below the least finite one as the greatest lies above it. Scores are rounded to a
    grid whose sums are exact: for 10 million pairs to 2^-29 of their range above the floor.

    References
    ----------
    Murtagh, "A Survey of Recent Advances in Hierarchical Clustering Algorithms", 1983, for the chain.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> people = rng.normal(size=(20, 16))
    >>> items = pe.Point(people.repeat(5, axis=0) + 0.3 * rng.normal(size=(100, 16)))
    >>> found = pe.cluster(items, 0.6, "cosine")
    >>> print(found)
    100 items in 20 clusters of up to 5 and 0 items alone: average cosine from 0.6 on, over all pairs
    >>> found.labels[:7].tolist(), found.scores[:2].round(2).tolist()
    ([0, 0, 0, 0, 0, 1, 1], [0.93, 0.91])
    """
    owner = "cluster"
    require_distribution(owner, "items", items)
    most, record = checked_k(owner, most, "most"), named(score, items)
    least = _threshold(owner, threshold, record, items.dim)
    margin = checked_number(owner, "margin", margin)
    if not 0 <= margin < math.inf:
        raise ValueError(f"{owner}: margin is {margin:g}, expected a finite number >= 0")
    _require_probability(owner, probability)
    rows = _order(items)
    ordered = items[like(items.mu, rows)]
    bound = _floor(owner, ordered, record, most) if floor is None else checked_number(owner, "floor", floor)
    if not bound < least:
        reached = f"; about half of most={most} pairs reach it" if floor is None else ""
        raise ValueError(f"{owner}: floor is {bound:g}, expected less than the threshold, {least:g}{reached}")
    found = duplicates(ordered, bound, record, most=most)
    graph = _Graph(on_host(found.queries), on_host(found.ids), on_host(found.scores).astype(np.float64))
    linkage = _Linkage(ordered, rows, graph, least, bound, margin, probability, most)
    return _clusters(linkage, record, np.zeros(0, np.int64))


def _require_probability(owner: str, x: object) -> None:
    """Refuse anything but None or a fitted probability."""
    if x is not None and not isinstance(x, (LogisticProbability, IsotonicProbability)):
        what = "expected the result of pe.fit_match_probability"
        raise TypeError(f"{owner}: probability is {type(x).__name__}, {what}")


def _threshold(owner: str, threshold: float | Threshold, score: Score, dim: int) -> float:
    """The least score; that of a record if it is of pairs of this score."""
    if not isinstance(threshold, Threshold):
        return checked_number(owner, "threshold", threshold)
    if threshold.of != "pairs":
        what = "expected one of pairs, as pe.choose_pair_threshold finds it"
        raise ValueError(f"{owner}: threshold is of the answers of searches, {what}")
    threshold.check_score(owner, score, dim=dim)
    return threshold.threshold


def _order(items: Distribution[Any]) -> Ints:
    """The rows of the items in the order of their bytes, which only copies share."""
    if len(items) == 0:
        return np.zeros(0, np.int64)
    columns = [np.ascontiguousarray(on_host(x)).reshape(len(items), -1) for x in items.arrays]
    data = np.concatenate([x.view(np.uint8) for x in columns], 1)
    return np.argsort(data.view(f"V{data.shape[1]}")[:, 0], kind="stable")


def _floor(owner: str, items: Distribution[Any], score: Score, most: int) -> float:
    """The score that about half of `most` pairs reach, by pairs of items that lie evenly; -inf if there are no more."""
    count = len(items)
    if count * (count - 1) // 2 <= most:
        return -math.inf
    some = [np.unique(np.linspace(0, count - 1, min(count, n)).round().astype(np.int64)) for n in DRAWN]
    one, other = (items[like(items.mu, x)] for x in some)
    scores = on_host(pairwise(one, other, score)).astype(np.float64)
    others = scores[some[0][:, None] != some[1]]
    return float(np.quantile(others, max(1 - most / (count * (count - 1.0)), 0), method="higher"))


# -- clusters ----------------------------------------------------------------------------------------------------------


def _clusters(of: _Linkage, score: Score, before: Ints) -> Clusters:
    """The clusters of a linkage, of which the items of the first rows have theirs already."""
    graph, floor = _finite(of)
    earlier = np.flatnonzero(of.rows < len(before))
    _, first, named_so = np.unique(before[of.rows[earlier]], return_index=True, return_inverse=True)
    names, held = np.arange(len(of.rows)), np.zeros(len(of.rows), np.bool_)
    names[earlier], held[earlier] = earlier[first][named_so], True
    names = _linked(*_exact(graph, floor, of.threshold), names, held)
    if of.margin > 0:
        names = _settled(graph, names, ~held, floor, of.threshold, of.margin)
    place = np.argsort(of.rows)
    labels = _numbered(names[place], before)
    clusters, chances = labels[of.rows], None
    if of.probability is not None:
        below = 0.0 if of.floor == -math.inf else float(of.probability(of.floor))
        chances = _inside(graph._replace(scores=of.probability(of.graph.scores)), clusters, below)[place]
    inside, outside = _inside(graph, clusters, floor)[place], np.full(len(labels), -math.inf)
    items, _, average = _outside(graph, clusters, floor)
    np.maximum.at(outside, items, average)
    return Clusters(labels, np.bincount(labels), inside, outside[place], chances, of.threshold, of.floor, score, of)


def _finite(of: _Linkage) -> tuple[_Graph, float]:
    """The graph, in which infinite scores are finite, and the score of pairs that it lacks."""
    every = np.append(of.graph.scores, of.threshold)
    usual = every[np.isfinite(every)]
    least, greatest = (float(usual.min()), float(usual.max())) if len(usual) else (0.0, 0.0)
    floor = of.floor if of.floor > -math.inf else least - (greatest - least or 1.0)
    return of.graph._replace(scores=np.clip(of.graph.scores, floor, greatest)), floor


def _exact(graph: _Graph, floor: float, threshold: float) -> tuple[_Graph, float]:
    """The graph, and the threshold, in whole numbers above the floor, whose sums are exact in float64.

    So an average over a join is never above the greater of its parts, as rounding might make it, and a chain ends.
    """
    span = float((graph.scores - floor).max(initial=0.0)) * max(len(graph.scores), 1)
    unit = 2.0 ** (math.ceil(math.log2(span)) - 53) if span > 0 else 1.0
    return graph._replace(scores=np.rint((graph.scores - floor) / unit)), float(np.rint((threshold - floor) / unit))


def _linked(graph: _Graph, threshold: float, names: Ints, held: NDArray[np.bool_]) -> Ints:
    """The cluster of each item, named by its first one, once all that reach the threshold are joined.

    A chain goes from a cluster to its best other one, and on, until two are each other's best, which are joined. Of
    equal averages the pair whose names come first is taken.
    """
    near = _Near(graph, names, held)
    for start in near.reaching(threshold):
        chain: list[int] = [start] if near.parent[start] == start else []
        links: list[tuple[float, int, int]] = []
        while chain:
            here = chain[-1]
            average, other = near.best(here)
            link = -average, min(here, other), max(here, other)
            if links and link == links[-1]:
                joined = near.join(chain.pop(), chain.pop())
                del links[-2:]
                chain = chain or [joined]
            elif average < threshold:  # and stays so: joining others raises no average above all that it is of
                chain.pop()
            else:
                chain.append(other)
                links.append(link)
    return near.named(names)


class _Near:
    """For each cluster the others with which pairs were found, and the sums of their scores above the floor.

    Clusters that were joined stand under their old names in the lists of others until these are read.
    """

    def __init__(self, graph: _Graph, names: Ints, held: NDArray[np.bool_]) -> None:
        count = len(names)
        self.parent, self._size, self._held = np.arange(count), np.bincount(names, minlength=count), held.copy()
        a, b = names[graph.first], names[graph.second]
        apart = (a != b) & ~(held[a] & held[b])
        ends, others = np.concatenate([a[apart], b[apart]]), np.concatenate([b[apart], a[apart]])
        order, starts = _runs(ends, others)
        self._ends, self._others = ends[order][starts], others[order][starts]
        self._totals = _sums(np.tile(graph.scores[apart], 2)[order], starts)
        self._offsets = np.searchsorted(self._ends, np.arange(count + 1))
        self._lists: dict[int, tuple[Ints, Floats]] = {}

    def reaching(self, threshold: float) -> list[int]:
        """The clusters that have an average with another one that reaches the threshold."""
        average = self._totals / (self._size[self._ends] * self._size[self._others])
        return [int(x) for x in np.unique(self._ends[average >= threshold])]

    def best(self, cluster: int) -> tuple[float, int]:
        """The greatest average with another cluster, and the first one that has it; -inf and -1 where there is none."""
        others, totals = self._of(cluster)
        if self._held[cluster]:
            free = ~self._held[others]
            others, totals = others[free], totals[free]
        if len(others) == 0:
            return -math.inf, -1
        average = totals / (self._size[others] * self._size[cluster])
        place = int(average.argmax())
        return float(average[place]), int(others[place])

    def join(self, one: int, other: int) -> int:
        """Join two clusters under the lower name, which is returned."""
        into, gone = min(one, other), max(one, other)
        (a, x), (b, y) = self._of(into), self._of(gone)
        self.parent[gone] = into
        self._size[into] += self._size[gone]
        self._held[into] |= self._held[gone]
        self._lists[into] = self._summed(into, np.concatenate([a, b]), np.concatenate([x, y]))
        self._lists.pop(gone, None)
        return into

    def named(self, names: Ints) -> Ints:
        """The names of clusters after all joins."""
        while True:
            names, before = self.parent[names], names
            if (names == before).all():
                return names

    def _of(self, cluster: int) -> tuple[Ints, Floats]:
        part = slice(self._offsets[cluster], self._offsets[cluster + 1])
        others, totals = self._lists.get(cluster) or (self._others[part], self._totals[part])
        if (self.parent[others] != others).any():
            self._lists[cluster] = others, totals = self._summed(cluster, others, totals)
        return others, totals

    def _summed(self, cluster: int, others: Ints, totals: Floats) -> tuple[Ints, Floats]:
        """The list of a cluster under the names of now, each once, ascending."""
        others = self.named(others)
        order = np.argsort(others, kind="stable")
        order = order[others[order] != cluster]
        starts = np.flatnonzero(np.diff(others[order], prepend=-1))
        return others[order][starts], _sums(totals[order], starts)


def _settled(
    graph: _Graph, names: Ints, movable: NDArray[np.bool_], floor: float, threshold: float, margin: float
) -> Ints:
    """The clusters where unsure items are in none, or in the one of sure items that they are surely in."""
    count, outside = len(names), np.full(len(names), -math.inf)
    items, _, average = _outside(graph, names, floor)
    np.maximum.at(outside, items, average)
    unsure = movable & (_inside(graph, names, floor) < np.maximum(outside, threshold) + margin)
    names = np.where(unsure, count + np.arange(count), names)
    between = unsure[graph.first] != unsure[graph.second]
    items, clusters, average = _outside(_Graph(*(x[between] for x in graph)), names, floor)
    items, clusters, average = (x[unsure[items]] for x in (items, clusters, average))
    order = np.lexsort((clusters, -average, items))
    items, clusters, average = items[order], clusters[order], average[order]
    best = np.flatnonzero(np.diff(items, prepend=-1))
    following = np.append(items[1:], -1)[best] == items[best]
    bound = np.where(following, np.append(average[1:], 0)[best], threshold)
    sure = best[average[best] >= np.maximum(bound, threshold) + margin]
    names[items[sure]] = clusters[sure]
    return names


def _runs(x: Ints, y: Ints) -> tuple[Ints, Ints]:
    """The order by x, then y, and the places in it where another pair of both begins."""
    key = x * (int(y.max(initial=0)) + 1) + y
    order = np.argsort(key, kind="stable")
    return order, np.flatnonzero(np.diff(key[order], prepend=-1))


def _sums(x: Floats, starts: Ints) -> Floats:
    """The sum of each run."""
    return np.add.reduceat(x, starts) if len(starts) else x[:0]


def _average(total: Floats, found: Floats, pairs: Ints, floor: float) -> Floats:
    """The average over so many pairs, where those that were not found count as the floor."""
    return (total + (pairs - found) * floor) / pairs


def _inside(graph: _Graph, names: Ints, floor: float) -> Floats:
    """[N]: the average of each item with the others of its cluster; NaN where there are none."""
    first, second, scores = (x[names[graph.first] == names[graph.second]] for x in graph)
    ends, count = np.concatenate([first, second]), len(names)
    total: Floats = np.bincount(ends, np.tile(scores, 2), count).astype(np.float64)
    found: Floats = np.bincount(ends, minlength=count).astype(np.float64)
    others = np.bincount(names)[names] - 1
    return np.where(others > 0, _average(total, found, np.maximum(others, 1), floor), math.nan)


def _outside(graph: _Graph, names: Ints, floor: float) -> tuple[Ints, Ints, Floats]:
    """Items, other clusters with which pairs of theirs were found, and the average scores."""
    first, second, scores = (x[names[graph.first] != names[graph.second]] for x in graph)
    items, others = np.concatenate([first, second]), names[np.concatenate([second, first])]
    order, starts = _runs(items, others)
    total, found = _sums(np.tile(scores, 2)[order], starts), np.diff(np.append(starts, len(order)))
    items, others = items[order][starts], others[order][starts]
    return items, others, _average(total, found.astype(np.float64), np.bincount(names)[others], floor)


def _numbered(names: Ints, before: Ints) -> Ints:
    """Labels of the rows: earlier clusters keep theirs, and others follow by size, then by their first row."""
    _, first, labels, sizes = np.unique(names, return_index=True, return_inverse=True, return_counts=True)
    earlier = first < len(before)
    number = np.empty(len(first), np.int64)
    number[earlier] = before[first[earlier]]
    order = np.lexsort((first, -sizes, earlier))[: int((~earlier).sum())]
    number[order] = before.max(initial=-1) + 1 + np.arange(len(order))
    return number[labels]
