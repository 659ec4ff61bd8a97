"""The vectors that an index holds for items, and those that it is searched with for queries."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np

from peaccel._utils.arrays import Array, as_array, as_numpy, on_host, require_same_kind
from peaccel.distributions import Distribution
from peaccel.retrieval.faiss.first_stage_features import (
    FirstStageReference,
    first_stage_features,
    first_stage_reference,
)
from peaccel.retrieval.faiss.index import width
from peaccel.scores import Score

__all__ = ["FirstStage", "Vectors", "checked_features", "first_vectors"]

HEADROOM = 1.1  # how much longer than the longest at first the features of an added item may be, and still be exact

FirstStage: TypeAlias = Literal["mu", "unit", "surrogate"] | FirstStageReference | Callable[[Distribution], Array]


def checked_features(features: FirstStage, score: Score, gallery: Distribution) -> FirstStage:
    """The features after checks; "surrogate" as the reference of the gallery."""
    is_reference = isinstance(features, FirstStageReference)
    known = isinstance(features, str) and features in ("mu", "unit", "surrogate")
    if not (known or callable(features) or is_reference):
        got = features if isinstance(features, str) else type(features).__name__
        raise ValueError(f"FaissReranker: features {got!r}, expected 'mu', 'unit', 'surrogate' or a callable")
    if isinstance(features, FirstStageReference) and features.score != score:
        raise ValueError(f"FaissReranker: features are for score {features.score.label}, got {score.label}")
    return first_stage_reference(gallery, score) if features == "surrogate" else features


@dataclass(frozen=True)
class Vectors:
    """How items become vectors.

    Attributes
    ----------
    features
        "mu", "unit", a `FirstStageReference` for surrogates, or a function that computes them from items.
    score
        The score that surrogates stand for.
    width
        The width of the vectors that the index takes.
    radius
        The radius of the sphere on which surrogates lie in an index by L2; None in one by inner product.
    on_gpu
        Whether items are tensors on a GPU, as their vectors must be then.
    """

    features: FirstStage
    score: Score
    width: int
    radius: float | None = None
    on_gpu: bool = False

    @property
    def by_function(self) -> bool:
        """Whether a function of the caller's computes them."""
        return callable(self.features)

    def query(self, queries: Distribution) -> Array:
        """The vectors of queries, with which an index is searched: float32 [Q, width]."""
        return self._vectors(queries, "query")

    def gallery(self, items: Distribution) -> np.ndarray[Any, np.dtype[np.float32]]:
        """The vectors of items, which an index on the CPU holds: float32 [N, width]."""
        vectors: np.ndarray[Any, np.dtype[np.float32]] = self._vectors(items, "gallery")
        return vectors

    def _vectors(self, items: Distribution, side: Literal["query", "gallery"]) -> Array:
        of = "queries" if side == "query" else "items"
        vectors: Array = self._on_gpu(items) if self.on_gpu else self._on_cpu(items, side, of)
        expected = len(items), self.width
        if tuple(vectors.shape) != expected:
            got = tuple(vectors.shape)
            raise ValueError(f"FaissReranker: features of the {of} have shape {got}, the index takes {expected}")
        return vectors.float().contiguous() if self.on_gpu else np.ascontiguousarray(vectors, np.float32)

    def _on_cpu(self, items: Distribution, side: Literal["query", "gallery"], of: str) -> np.ndarray[Any, Any]:
        if isinstance(self.features, FirstStageReference):
            surrogates = first_stage_features(items, self.score, side, self.features)
            if self.radius is None:
                return surrogates
            return (_on_sphere if side == "gallery" else _scaled)(surrogates, self.radius, self.width)
        if callable(self.features):
            return as_numpy(as_array(self.features(items), "FaissReranker", f"features of the {of}"))
        return _directions(items) if self.features == "unit" else as_numpy(items.mu)

    def _on_gpu(self, items: Distribution) -> Array:
        if isinstance(self.features, FirstStageReference):
            return items.mu.new_tensor(self._on_cpu(items, "query", "queries")).float()
        vectors = self.features(items) if callable(self.features) else items.mu.detach().float()
        if self.features == "unit":
            lengths = vectors.double().norm(dim=1, keepdim=True)
            vectors = vectors / lengths.masked_fill(lengths == 0, 1)
        require_same_kind("FaissReranker", "features of the queries", vectors, "gallery", items.mu)
        return vectors


def first_vectors(
    gallery: Distribution, score: Score, first_stage: str | FirstStageReference, factory: str
) -> tuple[FirstStage, float | None, np.ndarray[Any, Any]]:
    """The features by which an index of this factory ranks, their sphere's radius, and the vectors of a gallery."""
    if first_stage == "cosine":
        return "unit", None, _directions(gallery)
    reference = first_stage if isinstance(first_stage, FirstStageReference) else first_stage_reference(gallery, score)
    vectors = first_stage_features(gallery, score, reference=reference)
    if factory == "Flat":
        return reference, None, vectors
    radius = HEADROOM * float(np.sqrt((vectors**2).sum(1).max()))
    return reference, radius, _on_sphere(vectors, radius, width(vectors.shape[1] + 1, factory))


def _directions(d: Distribution) -> np.ndarray[Any, Any]:
    """mu scaled to norm 1, float32 [N, D]; a zero vector stays zero."""
    mu = on_host(d.mu, "FaissReranker", "mu").astype(np.float32)
    norms = np.linalg.norm(mu.astype(np.float64), axis=1, keepdims=True)  # squares may leave the range of float32
    return (mu / np.where(norms > 0, norms, 1)).astype(np.float32)


def _on_sphere(x: np.ndarray[Any, Any], radius: float, width: int) -> np.ndarray[Any, Any]:
    """Items with one more coordinate, which makes all as long as the radius, except those that are longer already."""
    on = np.zeros((len(x), width), np.float32)
    on[:, : x.shape[1]] = x
    on[:, x.shape[1]] = np.sqrt(np.maximum(radius**2 - (x.astype(np.float64) ** 2).sum(1), 0))
    return on


def _scaled(x: np.ndarray[Any, Any], radius: float, width: int) -> np.ndarray[Any, Any]:
    """Queries scaled to the radius, where the items lie; no factor of a query changes its ranking."""
    norms = np.linalg.norm(x, axis=1, keepdims=True)
    return np.pad(x * (radius / np.where(norms > 0, norms, 1)), ((0, 0), (0, width - x.shape[1])))
