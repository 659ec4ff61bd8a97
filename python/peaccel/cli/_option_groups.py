"""Options that several commands have, each declared once: commands inherit the groups."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from peaccel._utils.exclusions import Exclusions
from peaccel._utils.table_paths import columns_in, file_of
from peaccel.cli._fitted_files import AppliedFits, read_fit
from peaccel.distributions import Distribution
from peaccel.fits.plda import Plda
from peaccel.fits.records import Calibration, Centre
from peaccel.io._array_files import read_array
from peaccel.retrieval.adaptive_norm import AdaptiveNorm
from peaccel.retrieval.exclude_same import exclude_same
from peaccel.scores import Score

__all__ = [
    "BY_LABELS",
    "ExcludedItems",
    "FitFiles",
    "LabelledSets",
    "NormFiles",
    "QueryFiles",
    "ScoreAndThreshold",
    "SkipBad",
    "dashed",
]


def dashed(names: Sequence[str]) -> str:
    """Options as a user writes them, by the names of fields."""
    return " ".join(f"--{name.replace('_', '-')}" for name in names)


@dataclass(frozen=True, kw_only=True)
class SkipBad:
    """Treatment of items without values."""

    skip_bad: bool = False
    """Leave out items that are NaN or null, and say which. Such queries find nothing."""


@dataclass(frozen=True, kw_only=True)
class FitFiles(SkipBad):
    """Fits that are applied to the items of both sides as they are read, and the prior of their score."""

    prior: Path | None = None
    """The prior of score llr: the result of pe.fit_prior, as pe.io.write_fit writes it."""
    calibration: Path | None = None
    """The result of pe.calibrate_variance, as pe.io.write_fit writes it; applied to gallery and queries."""
    gallery_calibration: Path | None = None
    """The gallery's, where pe.calibrate_variance(queries, gallery, ...) found two; --calibration is then the
    queries'."""
    centre: Path | None = None
    """The result of pe.fit_centre, as pe.io.write_fit writes it: the mean of each side, which is subtracted."""
    plda: Path | None = None
    """The result of pe.fit_plda, as pe.io.write_fit writes it: items are its normals, in place of --score."""

    def applied(self, one_set: bool = False) -> AppliedFits:
        """The fits that are applied; items that are searched for among each other, `one_set`, have one of each."""
        queries, gallery = self._calibrations()
        centre = None if self.centre is None else read_fit(self.centre, Centre)
        if one_set and self.gallery_calibration is not None:
            raise ValueError(f"{self.gallery_calibration}: is of two sides, expected one --calibration of --embeddings")
        if one_set and centre is not None and centre.query_mean != centre.gallery_mean:
            raise ValueError(f"{self.centre}: is of two sides, expected one of --embeddings")
        plda = None if self.plda is None else read_fit(self.plda, Plda)
        return AppliedFits((queries, gallery), centre, plda, self.skip_bad)

    def _calibrations(self) -> tuple[Calibration | None, Calibration | None]:
        """The calibrations of queries and of gallery."""
        if self.calibration is None:
            if self.gallery_calibration is not None:
                raise ValueError("--gallery-calibration is given without --calibration, which is of the queries then")
            return None, None
        queries = read_fit(self.calibration, Calibration)
        if self.gallery_calibration is not None:
            return queries, read_fit(self.gallery_calibration, Calibration)
        if queries.mean:
            raise ValueError(f"{self.calibration}: is of one side of two, expected --gallery-calibration too")
        return queries, queries


@dataclass(frozen=True, kw_only=True)
class NormFiles(FitFiles):
    """A cohort that scores are normalised by."""

    normalise: Literal["adaptive"] | None = None
    """adaptive: scores in standard deviations above those with the nearest of --cohort, of both sides (S-norm)."""
    cohort: Path | None = None
    """Items, as the gallery's, of nobody who is searched for. One of the classes that are fitted or tested flatters."""

    def check_norm(self) -> None:
        """Refuse one of the two that belong together alone."""
        if (self.normalise is None) != (self.cohort is None):
            raise ValueError("--normalise and --cohort belong together, found one of them")

    def norm(self, owner: str, gallery: Distribution, fits: AppliedFits, score: Score) -> AdaptiveNorm | None:
        """The norm by the cohort's items, to which what is applied to the gallery is applied too."""
        if self.cohort is None:
            return None
        return AdaptiveNorm(owner, gallery, fits.of_gallery(self.cohort), score)


@dataclass(frozen=True, kw_only=True)
class ExcludedItems:
    """Items that a query may not find."""

    exclude_same: tuple[str, ...] = ()
    """Leave out, for each query, the gallery items that have its values in all of these columns. They are columns of
    the tables, or keys of .npz files: person camera as in Market-1501, or id for its own row."""

    def exclusions(self, sides: Sequence[tuple[Path, NDArray[np.bool_] | None]]) -> Exclusions | None:
        """The rows that each query may not find, by the files of queries and gallery and by which of their rows were
        kept."""
        if not self.exclude_same:
            return None
        queries, gallery = ({name: _column(path, name, kept) for name in self.exclude_same} for path, kept in sides)
        return exclude_same(queries, gallery)


def _column(path: Path, name: str, kept: NDArray[np.bool_] | None) -> NDArray[Any]:
    """A column of a table of items, or an array beside them."""
    if path.suffix == ".npy":
        raise ValueError(f"{path}: has no columns, expected a table or .npz with {name} for --exclude-same")
    column = read_array(f"{file_of(path)}:{columns_in(path).get(name, name)}")
    return column if kept is None else column[kept]


@dataclass(frozen=True, kw_only=True)
class ScoreAndThreshold:
    """The score, and a threshold that is applied to it."""

    score: str | None = None
    """A name that 'peaccel scores' lists, perhaps with parameters: "ppk:rho=0.5". By default cosine of points, else
    mls."""
    accept: Path | None = None
    """A threshold of this score: what 'peaccel choose-threshold', pe.learn_then_test or pe.limit_false_matches found,
    as pe.io.write_fit writes it. What lies below it is left out. One of another score, norm, dimension or fit is
    refused."""


@dataclass(frozen=True, kw_only=True)
class QueryFiles(ScoreAndThreshold):
    """Queries, score and output of a search."""

    queries: Path
    """The queries, Q items in D dimensions; a file of the form that 'peaccel search' takes as its gallery."""
    out: Path
    """The ranking to write, best first. .npz or .safetensors, with the keys
    scores: float [Q, k], padded with -inf;
    ids: int64 [Q, k], rows of the gallery, or their ids, padded with -1; in .npz strings too, padded with empty ones.
    Or .json, the same as lists, with null for scores that are not finite;
    or .csv or .parquet, a line query,rank,id,score for each item found, ranks from 1."""
    k: int = 10
    """How many to keep for each query, at least 1."""


@dataclass(frozen=True, kw_only=True)
class LabelledSets:
    """Items that are searched for among each other, or queries and a gallery, and their labels.

    Whatever comes in an .npy file may be a column of a table: items.parquet:label."""

    embeddings: Path | None = None
    """Items that are searched for among each other, each without itself; a file as 'peaccel search' takes it."""
    labels: Path | None = None
    """Their labels, [N] numbers or strings: .npy, or .npz with the key labels, or a column: items.parquet:label."""
    queries: Path | None = None
    """Instead of --embeddings: the queries; then --gallery is needed, and labels, places or pairs."""
    gallery: Path | None = None
    """The gallery."""
    query_labels: Path | None = None
    """The queries' labels, [Q] numbers or strings, with --gallery-labels."""
    gallery_labels: Path | None = None
    """The gallery's labels, [G] numbers or strings."""

    def require_way(self, ways: Sequence[Sequence[str]], instead: str = "") -> None:
        """Refuse options that do not go together: just those of one way; `instead` names what else would do."""
        named = self.named(ways)
        if named not in map(set, ways):
            expected = "; ".join([*map(dashed, ways), *filter(None, [instead])])
            raise ValueError(f"expected one of these together: {expected}; found {dashed(sorted(named)) or 'none'}")

    def named(self, ways: Sequence[Sequence[str]]) -> set[str]:
        """The options of these ways that are there."""
        return {name for names in ways for name in names if getattr(self, name) is not None}


BY_LABELS = ("embeddings", "labels"), ("queries", "gallery", "query_labels", "gallery_labels")
"""The options that go together where labels say what is right."""
