"""Records of the parts of a data set, of numpy arrays and paths, as readers return them; no pixel is read."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from peaccel._utils.atomic_files import PathLike

__all__ = [
    "CaptionFeatures",
    "Captions",
    "Features",
    "Images",
    "Pairs",
    "Part",
    "Places",
    "Templates",
    "Verification",
    "development",
    "labelled",
    "query_and_gallery",
    "reader",
    "zero_shot",
]

Rows = NDArray[np.int64]


@dataclass(frozen=True)
class Pairs:
    """Pairs to be verified: is it the same class on both sides?"""

    left: Rows
    """[P], rows of the first item of each pair (the first template, for `Templates`)."""
    right: Rows
    """[P], rows of the second item of each pair."""
    same: NDArray[np.bool_]
    """[P], whether both are of one class."""
    fold: Rows | None = None
    """[P], the fold in 0..F-1 of a protocol that is cross-validated."""

    def __len__(self) -> int:
        """Count the pairs."""
        return len(self.same)


@dataclass(frozen=True)
class Images:
    """Image files with the class of each."""

    paths: tuple[str, ...]
    """The paths of N images."""
    labels: Rows
    """[N], the classes as numbers in 0..C-1."""
    classes: tuple[str, ...]
    """The names of the C classes, by label; query and gallery share one list."""

    def __len__(self) -> int:
        """Count the images."""
        return len(self.paths)

    def take(self, rows: NDArray[Any]) -> Images:
        """Some of the images, given by rows or by a mask; labels and classes keep their meaning."""
        rows = np.arange(len(self))[rows]
        return Images(tuple(self.paths[row] for row in rows.tolist()), self.labels[rows], self.classes)

    def of_classes(self, first: int, last: int) -> Images:
        """The images of classes first..last-1, whose labels become 0..last-first-1."""
        part = self.take((self.labels >= first) & (self.labels < last))
        return replace(part, labels=part.labels - first, classes=self.classes[first:last])


@dataclass(frozen=True)
class Verification(Images):
    """Images with the pairs of them that are to be verified."""

    pairs: Pairs


@dataclass(frozen=True)
class Templates(Images):
    """Images of which several make one template; templates are what is verified.

    ``peaccel.fuse(embeddings[part.members], part.groups)`` has an item for each template, in their order.
    """

    members: Rows
    """[M], rows of images; an image may be in several templates."""
    groups: Rows
    """[M] in 0..T-1, the template that the member is of."""
    ids: Rows
    """[T], the templates' published ids, ascending."""
    subjects: Rows
    """[T], label of the class that the template is of."""
    matches: Pairs
    """The pairs of templates, as rows."""


@dataclass(frozen=True)
class Captions(Images):
    """Images with captions; each image is one class, and its label its row."""

    captions: tuple[str, ...]
    """The texts of T captions."""
    image: Rows
    """[T], row of the image that the caption describes."""


@dataclass(frozen=True)
class Places:
    """Photographs with the place where they were taken.

    What lies near a query, in its city: of ``at = np.c_[position, 1e9 * city]`` that is
    ``pe.metrics.Relevance.within(at[query], at[~query], 25.0)``, 25 m as in the Bayesian triplet paper; MSLS's code
    trains on positives within 10 m and on negatives beyond 25 m.
    """

    paths: tuple[str, ...]
    """The paths of N photographs."""
    position: NDArray[np.float64]
    """[N, 2], easting and northing in metres, in the city's system."""
    city: Rows
    """[N], index into cities."""
    cities: tuple[str, ...]
    query: NDArray[np.bool_]
    """[N], whether it is a query; else it is of the database."""

    def __len__(self) -> int:
        """Count the photographs."""
        return len(self.paths)


@dataclass(frozen=True)
class Features:
    """Features of a frozen backbone, with the class of each."""

    features: NDArray[np.float32]
    """[N, D], a row for each item."""
    labels: Rows
    """[N], the classes as numbers in 0..C-1."""
    classes: tuple[str, ...]
    """The names of the C classes, by label; query and gallery share one list."""
    covariates: NDArray[np.float32] | None = None
    """[N, Q], what was measured of each item beside its features, such as the duration of an utterance."""

    def __len__(self) -> int:
        """Count the items."""
        return len(self.features)

    def take(self, rows: NDArray[Any]) -> Features:
        """Some of the items, given by rows or by a mask; labels and classes keep their meaning."""
        covariates = None if self.covariates is None else self.covariates[rows]
        return Features(self.features[rows], self.labels[rows], self.classes, covariates)

    def of_classes(self, first: int, last: int) -> Features:
        """The items of classes first..last-1, whose labels become 0..last-first-1."""
        part = self.take((self.labels >= first) & (self.labels < last))
        return replace(part, labels=part.labels - first, classes=self.classes[first:last])


@dataclass(frozen=True)
class CaptionFeatures:
    """Features of images and of their captions, each by its frozen backbone."""

    images: NDArray[np.float32]
    """[N, D], a row for each item."""
    captions: NDArray[np.float32]
    """[T, E], a row for each caption."""
    image: Rows
    """[T], row of the image that the caption describes."""

    def __len__(self) -> int:
        """Count the images."""
        return len(self.images)


Part = Images | Places | Features | CaptionFeatures
Labelled = TypeVar("Labelled", Images, Features)
ReaderFunction = TypeVar("ReaderFunction", bound=Callable[..., Mapping[str, Part]])

Use: TypeAlias = Literal["images", "features", "captions", "evaluation"]
"""Purpose of a data set: training on images, or on features that need no backbone; embedding of images with their
captions; evaluation alone."""

READERS: dict[str, Callable[..., Mapping[str, Part]]] = {}
"""The reader of each data set: (root, its options) -> its parts by name; those of imported files."""

USES: dict[str, Use] = {}


def reader(name: str, use: Use = "images") -> Callable[[ReaderFunction], ReaderFunction]:
    """Make a function the reader of a data set, whose name commands take.

    Parameters
    ----------
    name
        The data set.
    use
        What it is there for.

    Raises
    ------
    ValueError
        At the function: another file has a reader of this name.

    Examples
    --------
    >>> from peaccel.data.datasets import Features, reader
    >>> @reader("random", "features")
    ... def random_features(root):
    ...     return {"train": Features(np.zeros((2, 3), np.float32), np.arange(2), ("a", "b"))}
    >>> pe.data.datasets.READERS.pop("random") is random_features
    True
    """

    def register(function: ReaderFunction) -> ReaderFunction:
        if name in READERS and READERS[name].__module__ != function.__module__:
            raise ValueError(f"reader: {name!r} is the name of another data set")
        READERS[name], USES[name] = function, use
        return function

    return register


def labelled(paths: Sequence[PathLike], classes: ArrayLike, names: Sequence[str] | None = None) -> Images:
    """Images with labels 0..C-1 in the order of their sorted classes, whatever gaps the classes have.

    Parameters
    ----------
    paths
        The paths of N images.
    classes
        [N] numbers or strings.
    names
        [N], the name of each image's class; None for the class as it is written.
    """
    found, first, labels = np.unique(np.asarray(classes), return_index=True, return_inverse=True)
    class_names = found.tolist() if names is None else [names[row] for row in first.tolist()]
    return Images(tuple(map(str, paths)), labels.astype(np.int64), tuple(map(str, class_names)))


def development(items: Labelled, folds: int) -> dict[str, Labelled]:
    """Parts "train" and "validation": the latter is the first of so many folds of the classes; 0 folds make none.

    The first fold has ceil(C / folds) classes, as that of scikit-learn's `KFold` without shuffling.

    Raises
    ------
    ValueError
        folds is 1 or below 0, or no class is left to train on.
    """
    classes = len(items.classes)
    if folds == 0:
        return {"train": items}
    if folds < 2:
        raise ValueError(f"development: folds is {folds}, expected 0 or at least 2")
    first = -(-classes // folds)
    if first == classes:
        raise ValueError(f"development: classes are {classes}, expected at least 2 to hold some out for validation")
    return {"train": items.of_classes(first, classes), "validation": items.of_classes(0, first)}


def zero_shot(items: Labelled, classes: int, folds: int) -> dict[str, Labelled]:
    """The first classes for development (see `development`), all others for part "test"."""
    return development(items.of_classes(0, classes), folds) | {"test": items.of_classes(classes, len(items.classes))}


def query_and_gallery(items: Labelled, query: NDArray[np.bool_]) -> dict[str, Labelled]:
    """Parts "query" and "gallery", and "test" with both merged, for retrieval with each item left out in turn."""
    return {"query": items.take(query), "gallery": items.take(~query), "test": items}
