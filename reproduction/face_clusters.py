"""Clusters of faces: a table of docs/clusters.md, written by `python -m reproduction.faces`.

Half of the people of Labeled Faces in the Wild is tested. Models are fitted to a quarter, and each method's threshold
is the best one on the other quarter, by B-cubed F.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

import peaccel as pe
from reproduction.lfw import DISTANCE, MOST, Faces, drawn_order

Floats: TypeAlias = NDArray[np.float64]
Ints: TypeAlias = NDArray[np.int64]

CLUSTERED = ("B-cubed F", "B-cubed precision", "B-cubed recall", "ARI")


class Method(NamedTuple):
    """A way to make clusters, and the thresholds that it is tried with."""

    clusters: Callable[[Any, float], Ints]
    """The cluster of each item, by a threshold."""
    items: Callable[[Floats], Any]
    """The items that it takes, of embeddings [N, D]."""
    thresholds: tuple[float, ...]


def steps(first: float, last: float, count: int = 11) -> tuple[float, ...]:
    """Evenly spaced numbers, rounded."""
    return tuple(np.linspace(first, last, count).round(4).tolist())


def unit(x: Floats) -> Floats:
    """Rows of length 1."""
    found: Floats = x / np.linalg.norm(x, axis=1, keepdims=True)
    return found


def by(score: Any, floor: float) -> Callable[[Any, float], Ints]:
    """The clusters of `peaccel.cluster` by a score, over the pairs above a floor."""
    return lambda items, threshold: np.asarray(pe.cluster(items, threshold, score, floor=floor).labels)


def components(items: Any, threshold: float) -> Ints:
    """Connected components of the pairs within a distance."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    found = pe.duplicates(items, -(threshold**2), "neg_sq_l2", most=50_000_000)
    queries = np.repeat(np.arange(len(items)), np.diff(found.offsets))
    graph = coo_array((np.ones(len(queries), bool), (queries, found.ids)), shape=(len(items), len(items)))
    return np.asarray(connected_components(graph, directed=False)[1])


def agglomerative(x: Floats, threshold: float) -> Ints:
    """scikit-learn's average linkage by cosine."""
    from sklearn.cluster import AgglomerativeClustering

    made = AgglomerativeClustering(None, metric="cosine", linkage="average", distance_threshold=1 - threshold)
    return np.asarray(made.fit_predict(x))


def hdbscan(x: Floats, samples: float) -> Ints:
    """scikit-learn's HDBSCAN, by `min_samples`; each item that it calls noise is alone."""
    from sklearn.cluster import HDBSCAN

    found = HDBSCAN(2, min_samples=int(samples), copy=True).fit_predict(x)
    return np.where(found < 0, len(x) + np.arange(len(x)), found)


def whispers(x: Floats, threshold: float) -> Ints:
    """dlib's Chinese whispers by distance."""
    dlib: Any = import_module("dlib")
    return np.array(dlib.chinese_whispers_clustering([dlib.vector(row) for row in x], threshold))


def methods(x: Floats, labels: Ints) -> Iterator[tuple[str, Method]]:
    """The name of each method, with models fitted to embeddings [N, D] and their labels."""
    plda = pe.fit_plda(x, labels, length_norm=True, shrinkage=0.5)
    mean = x.mean(0)
    yield "`pe.cluster`, cosine", Method(by("cosine", 0.9), pe.Point, steps(0.92, 0.96, 9))
    yield "`pe.cluster`, centred cosine", Method(by("cosine", 0.4), lambda x: pe.Point(x - mean), steps(0.5, 0.7, 5))
    yield "`pe.cluster`, `llr` of a PLDA", Method(by(plda.score, 0), plda.transform, steps(5, 20, 6))
    yield "scikit-learn, average linkage, cosine", Method(agglomerative, np.asarray, steps(0.92, 0.96, 9))
    yield "scikit-learn, HDBSCAN", Method(hdbscan, unit, (1, 2, 3))
    yield "dlib, Chinese whispers", Method(whispers, np.asarray, steps(0.4, 0.5, 6))
    yield "connected components", Method(components, pe.Point, steps(0.38, 0.48, 6))
    yield "connected components at 0.6", Method(components, pe.Point, (DISTANCE,))


def clustered(x: Faces, split: int) -> dict[str, list[float]]:
    """The `CLUSTERED` of each method, and its threshold."""
    rng, people = np.random.default_rng(split), x.people
    order = rng.permutation(people.max() + 1)
    part = np.searchsorted((0.25, 0.5), np.argsort(order)[people] / len(order), side="right")
    kept = drawn_order(people, split) < MOST
    features = x.clean.astype(np.float64)
    fit, chosen, tested = (np.flatnonzero(kept & (part == i)) for i in range(3))
    found = {}
    for name, method in methods(features[fit], people[fit]):
        best, items = method.thresholds[0], method.items(features[chosen])
        if len(method.thresholds) > 1:
            best = max(method.thresholds, key=lambda t: judged(method.clusters(items, t), people[chosen])[0])
        found[name] = [*judged(method.clusters(method.items(features[tested]), best), people[tested]), best]
    return found


def judged(clusters: Ints, labels: Ints) -> list[float]:
    """The `CLUSTERED` of clusters [N] by labels [N]."""
    from sklearn.metrics import adjusted_rand_score

    precision, recall = b_cubed(clusters, labels)
    shares = 2 * precision * recall / (precision + recall), precision, recall, adjusted_rand_score(labels, clusters)
    return [100 * float(x) for x in shares]


def b_cubed(clusters: Ints, labels: Ints) -> tuple[float, float]:
    """Precision and recall: of an item's cluster the share that has its label, and the other way, over all items."""
    _, cells, sizes = np.unique(np.stack([clusters, labels]), axis=1, return_inverse=True, return_counts=True)
    both = sizes[cells.ravel()]
    of_cluster, of_label = (np.unique(x, return_inverse=True, return_counts=True)[1:] for x in (clusters, labels))
    precision, recall = ((both / counts[inverse]).mean() for inverse, counts in (of_cluster, of_label))
    return float(precision), float(recall)
