"""Embeddings and their labels or relevance, as `peaccel evaluate` and `peaccel choose-threshold` read them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from peaccel import io
from peaccel._utils.exclusions import Exclusions
from peaccel.cli._option_groups import BY_LABELS, ExcludedItems, FitFiles, LabelledSets
from peaccel.distributions import Distribution
from peaccel.io._array_files import read_array
from peaccel.metrics import Relevance

__all__ = ["WAYS", "LabelledFiles", "array", "novel", "read_images", "sides"]


@dataclass(frozen=True, kw_only=True)
class LabelledFiles(LabelledSets, FitFiles, ExcludedItems):
    """Embeddings, and their right answers."""

    coords: Path | None = None
    """Instead of --labels, where they were taken, [N, 2] in metres, with --radius."""
    query_coords: Path | None = None
    """Instead of labels, where they were taken, [Q, 2] in metres, with --gallery-coords and --radius."""
    gallery_coords: Path | None = None
    """Where the gallery was taken, [G, 2] in metres."""
    radius: float | None = None
    """Within how many metres an item counts as right, such as 25."""
    coords_metric: Literal["euclidean", "haversine"] = "euclidean"
    """With --radius: euclidean, of coordinates in metres, or haversine, of latitudes and longitudes in degrees."""
    relevance: Path | None = None
    """Or, with --embeddings or with --queries and --gallery, the pairs that are right. [M, 2] integers, rows of the
    query and of the gallery; (i, j) among --embeddings makes j right for i alone. .npy, or .npz with key relevance.
    """
    novel: Path | None = None
    """Queries without a right item in the gallery, a file as --queries. They measure open-set identification: how often
    other queries find their right item where few of these find anything. Confidences are tested on them too.
    """
    novel_labels: Path | None = None
    """The classes of the novel queries, [M] numbers or strings; each class counts once."""


COUNTED = ("relevance", "pairs", "quality", "images", "gallery_images", "templates", "groups")
"""Options whose files count the rows of others."""


WAYS = (
    BY_LABELS[0],
    *(("embeddings", "coords", "radius"), ("embeddings", "relevance")),
    BY_LABELS[1],
    *(("queries", "gallery", "query_coords", "gallery_coords", "radius"), ("queries", "gallery", "relevance")),
)
"""The options that go together to name the items that are searched and the right answers."""


class SearchedSets(NamedTuple):
    """Queries, gallery, right answers, and the rows that queries may not find."""

    queries: Distribution
    gallery: Distribution | None
    labels: Any
    exclude: Exclusions | None


def sides(task: LabelledFiles, instead: str = "") -> SearchedSets:
    """The contents of the files; `instead` names what else would do."""
    task.require_way(WAYS, instead)
    first = task.embeddings or task.queries
    assert first is not None
    if task.coords_metric != "euclidean" and task.radius is None:
        raise ValueError(f"--coords-metric is {task.coords_metric} without --radius, expected both")
    fits = task.applied(one_set=task.embeddings is not None)
    queries, asked = fits.read(first, 0)
    gallery, held = (None, None) if task.gallery is None else fits.read(task.gallery, 1)
    if asked is not None or held is not None:
        for name in COUNTED:
            if getattr(task, name, None) is not None:
                raise ValueError(f"--skip-bad left out rows, which --{name.replace('_', '-')} counts, expected none")
    of_gallery = (first, asked) if task.gallery is None else (task.gallery, held)
    labels = _labels(task, queries, gallery, asked, held)
    return SearchedSets(queries, gallery, labels, task.exclusions([(first, asked), of_gallery]))


def _labels(
    task: LabelledFiles,
    queries: Distribution,
    gallery: Distribution | None,
    asked: NDArray[Any] | None,
    held: NDArray[Any] | None,
) -> Any:
    """Labels or relevance of the rows that were kept."""
    if task.relevance is not None:
        pairs = array(task.relevance, "relevance")
        return Relevance.from_pairs(pairs, len(queries), None if gallery is None else len(gallery))
    if task.radius is not None:
        of_queries, of_gallery = (
            None if path is None else _kept(array(path, "coords"), rows)
            for path, rows in ((task.coords or task.query_coords, asked), (task.gallery_coords, held))
        )
        assert of_queries is not None
        return Relevance.within(of_queries, of_gallery, task.radius, metric=task.coords_metric)
    paths = (task.labels,) if task.labels is not None else (task.query_labels, task.gallery_labels)
    labels = tuple(
        _kept(io.read_labels(x), rows) for x, rows in zip(paths, (asked, held), strict=False) if x is not None
    )
    return labels if gallery is not None else labels[0]


def novel(task: LabelledFiles) -> tuple[Distribution | None, NDArray[Any] | None]:
    """The novel queries and their classes, each None where it is not given."""
    items, rows = (None, None) if task.novel is None else task.applied().read(task.novel, 0)
    return items, None if task.novel_labels is None else _kept(io.read_labels(task.novel_labels), rows)


def _kept(values: NDArray[Any], rows: NDArray[Any] | None) -> NDArray[Any]:
    """The values of rows that were kept; of another number of rows all, which whoever takes them refuses."""
    return values if rows is None or len(values) != len(rows) else values[rows]


def array(path: Path, key: str) -> NDArray[Any]:
    """An array of an .npy file, or under a key."""
    return read_array(path, key)


def read_images(path: Path, count: int) -> NDArray[np.float64]:
    """Images of `count` items, ink in [0, 1], of a file."""
    pixels = array(path, "images")
    if pixels.ndim != 3 or len(pixels) != count:
        raise ValueError(f"{path}: has shape {pixels.shape}, expected ({count}, H, W), an image for each")
    # Resampling moves numbers in [0, 1] a little beyond 1; other dtypes than uint8 may hold 0 to 255, too.
    of_bytes = pixels.dtype == np.uint8 or pixels.max(initial=0) > 2
    return np.asarray(pixels / (255 if of_bytes else 1), np.float64)
