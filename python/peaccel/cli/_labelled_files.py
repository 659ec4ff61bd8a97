"""Embeddings and their labels or relevance, as `peaccel evaluate` and `peaccel choose-threshold` read them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from peaccel import io
from peaccel.cli._fitted_files import AppliedFits, read_fit
from peaccel.distributions import Distribution
from peaccel.fits.plda import Plda
from peaccel.fits.records import Calibration, Centre
from peaccel.io._array_files import read_array
from peaccel.metrics import Relevance

__all__ = ["LabelledFiles", "applied", "array", "novel", "read_images", "sides"]


@dataclass(frozen=True, kw_only=True)
class LabelledFiles:
    """Embeddings, and what is right for them.

    Whatever comes in an .npy file may be a column of a table: items.parquet:label."""

    embeddings: Path | None = None
    """Items that are searched for among each other, each without itself; a file as 'peaccel search' takes it."""
    labels: Path | None = None
    """Their labels, [N] numbers or strings: .npy, or .npz with the key labels, or a column: items.parquet:label."""
    coords: Path | None = None
    """Instead of --labels, where they were taken, [N, 2] in metres, with --radius."""
    queries: Path | None = None
    """Instead of --embeddings: the queries; then --gallery is needed, and what is right for them."""
    gallery: Path | None = None
    """The gallery."""
    query_labels: Path | None = None
    """The queries' labels, [Q] numbers or strings, with --gallery-labels."""
    gallery_labels: Path | None = None
    """The gallery's labels, [G] numbers or strings."""
    query_coords: Path | None = None
    """Instead of labels, where they were taken, [Q, 2] in metres, with --gallery-coords and --radius."""
    gallery_coords: Path | None = None
    """Where the gallery was taken, [G, 2] in metres."""
    radius: float | None = None
    """Within how many metres an item counts as right, such as 25."""
    coords_metric: Literal["euclidean", "haversine"] = "euclidean"
    """With --radius: euclidean, of coordinates in metres, or haversine, of latitudes and longitudes in degrees."""
    relevance: Path | None = None
    """Or, with --embeddings or with --queries and --gallery, the pairs that are right: [M, 2] integers, rows of the
    query and of the gallery; (i, j) among --embeddings makes j right for i alone. .npy, or .npz with key relevance."""
    prior: Path | None = None
    """The prior of score llr: the result of pe.fit_prior, as pe.io.write_fit writes it."""
    calibration: Path | None = None
    """The result of pe.calibrate_variance, as pe.io.write_fit writes it; applied to both sides."""
    centre: Path | None = None
    """The result of pe.fit_centre, as pe.io.write_fit writes it: the mean of each side, which is subtracted."""
    novel: Path | None = None
    """Queries without a right item in the gallery, a file as --queries: how often a query finds its right item where
    few of these find anything (open-set identification), and how well confidences tell them."""
    novel_labels: Path | None = None
    """The classes of the novel queries, [M] numbers or strings, each of which counts as a whole."""
    skip_bad: bool = False
    """Leave out items that are NaN or null, and say which."""


COUNTED = ("relevance", "pairs", "quality", "images", "gallery_images", "templates", "groups")
"""Options whose files count the rows of others."""


AMONG = (("embeddings", "labels"), ("embeddings", "coords", "radius"), ("embeddings", "relevance"))
BETWEEN = (
    ("queries", "gallery", "query_labels", "gallery_labels"),
    ("queries", "gallery", "query_coords", "gallery_coords", "radius"),
    ("queries", "gallery", "relevance"),
)


def named_options(task: LabelledFiles) -> set[str]:
    """Which of the options that say what is searched for, and what is right, are there."""
    return {name for names in AMONG + BETWEEN for name in names if getattr(task, name) is not None}


def sides(task: LabelledFiles, instead: str = "") -> tuple[Distribution, Distribution | None, Any]:
    """Queries, gallery, and what is right; `instead` names what else would do."""
    named = named_options(task)
    if named not in map(set, AMONG + BETWEEN):
        found, *expected = (
            " ".join(f"--{name.replace('_', '-')}" for name in names) for names in (sorted(named), *AMONG, *BETWEEN)
        )
        ways = "; ".join([*expected, *filter(None, [instead])])
        raise ValueError(f"expected one of these together: {ways}; found {found or 'none'}")
    first = task.embeddings or task.queries
    assert first is not None
    if task.coords_metric != "euclidean" and task.radius is None:
        raise ValueError(f"--coords-metric is {task.coords_metric} without --radius, expected both")
    fits = applied(task)
    queries, asked = fits.read(first, 0)
    gallery, held = (None, None) if task.gallery is None else fits.read(task.gallery, 1)
    if asked is not None or held is not None:
        for name in COUNTED:
            if getattr(task, name, None) is not None:
                raise ValueError(f"--skip-bad left out rows, which --{name.replace('_', '-')} counts, expected none")
    if task.relevance is not None:
        pairs = array(task.relevance, "relevance")
        return queries, gallery, Relevance.from_pairs(pairs, len(queries), None if gallery is None else len(gallery))
    if task.radius is not None:
        of_queries, of_gallery = (
            None if path is None else _kept(array(path, "coords"), rows)
            for path, rows in ((task.coords or task.query_coords, asked), (task.gallery_coords, held))
        )
        assert of_queries is not None
        return queries, gallery, Relevance.within(of_queries, of_gallery, task.radius, metric=task.coords_metric)
    paths = (task.labels,) if task.labels is not None else (task.query_labels, task.gallery_labels)
    labels = tuple(
        _kept(io.read_labels(x), rows) for x, rows in zip(paths, (asked, held), strict=False) if x is not None
    )
    return queries, gallery, labels if gallery is not None else labels[0]


def novel(task: LabelledFiles) -> tuple[Distribution | None, NDArray[Any] | None]:
    """The novel queries and their classes, each None where it is not given."""
    items, rows = (None, None) if task.novel is None else applied(task).read(task.novel, 0)
    return items, None if task.novel_labels is None else _kept(io.read_labels(task.novel_labels), rows)


def _kept(values: NDArray[Any], rows: NDArray[Any] | None) -> NDArray[Any]:
    """The values of rows that were kept; of another number of rows all, which whoever takes them refuses."""
    return values if rows is None or len(values) != len(rows) else values[rows]


def applied(task: LabelledFiles) -> AppliedFits:
    """The fits that are applied to all items."""
    calibration = None if task.calibration is None else read_fit(task.calibration, Calibration)
    if calibration is not None and calibration.mean:
        raise ValueError(f"{task.calibration}: is of one side of two, expected one of both")
    centre = None if task.centre is None else read_fit(task.centre, Centre)
    if task.embeddings is not None and centre is not None and centre.query_mean != centre.gallery_mean:
        raise ValueError(f"{task.centre}: is of two sides, expected one of --embeddings")
    plda = read_fit(path, Plda) if (path := getattr(task, "plda", None)) is not None else None
    return AppliedFits((calibration, calibration), centre, plda, task.skip_bad)


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
