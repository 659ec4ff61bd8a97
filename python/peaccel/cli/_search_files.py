"""Inputs and outputs of `peaccel search` and `peaccel rerank`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import numpy as np

from peaccel import io, scores
from peaccel.distributions import Distribution
from peaccel.fits.records import Calibration, Prior, Threshold
from peaccel.retrieval.verbs import Ranking
from peaccel.scores import Score

__all__ = ["SearchFiles", "SearchInputs", "read", "read_fit", "write"]

Ids: TypeAlias = np.ndarray[Any, np.dtype[Any]]  # int64, or strings
F = TypeVar("F")


@dataclass(frozen=True, kw_only=True)
class SearchFiles:
    """Gallery, queries, score and output of a search."""

    gallery: Path
    """The gallery, G items in D dimensions. An .npz or .safetensors file with the keys
    mu: float [G, D]; and at most one of
    var: float [G] or [G, D], VARIANCE, neither sigma nor its logarithm;
    kappa: float [G] or [G, D], concentrations, where rows of mu have length 1;
    scale: float [G], where rows of mu have length 1.
    Or an .npy file with an array [G, D], which has no uncertainty.
    Float is float16, float32 or float64, the same for all keys; .safetensors may hold bfloat16 too.
    Or a table, .parquet, .arrow, .feather or .lance, with such columns, or with others that are named:
    gallery.parquet:mu=vector,var=sigma_sq."""
    queries: Path
    """The queries, Q items in D dimensions, in a file of the same form."""
    out: Path
    """The ranking to write, best first. .npz or .safetensors, with the keys
    scores: float [Q, k], padded with -inf;
    ids: int64 [Q, k], rows of the gallery, or their --ids, padded with -1; in .npz strings too, padded with empty ones.
    Or .json, the same as lists, with null for scores that are not finite;
    or .csv or .parquet, a line query,rank,id,score for each item found, ranks from 1."""
    k: int = 10
    """How many to keep for each query, at least 1."""
    score: str | None = None
    """A name that 'peaccel scores' lists, perhaps with parameters: "ppk:rho=0.5". By default cosine of points, else
    mls."""
    prior: Path | None = None
    """The prior of score llr: the result of pe.fit_prior, as pe.io.write_fit writes it."""
    calibration: Path | None = None
    """The result of pe.calibrate, as pe.io.write_fit writes it; applied to gallery and queries."""
    gallery_calibration: Path | None = None
    """The gallery's, where pe.calibrate(queries, gallery, ...) found two; --calibration is then the queries'."""
    ids: Path | None = None
    """The ids by which the rows of the gallery are known elsewhere, int [G], none negative, or strings, none twice:
    an .npy file, or .npz or .safetensors with the key ids, or a column of a table: gallery.parquet:key."""
    query_ids: Path | None = None
    """The queries' ids, in a file of the same form; an --out of .csv or .parquet then has these in place of rows."""
    accept: Path | None = None
    """A threshold of this score: what pe.learn_then_test or pe.limit_false_matches found, as pe.io.write_fit writes it.
    Answers below it are left out. One of pairs, or of another score, is refused."""

    def check_output(self) -> None:
        """Refuse an output that cannot be written, or that is one of the other files."""
        if self.query_ids is not None and self.out.suffix not in io.LINES:
            raise ValueError(f"--query-ids is for --out of {' or '.join(io.LINES)}, got {self.out}")
        files = [value for name, value in vars(self).items() if name != "out" and isinstance(value, Path)]
        io.check_output(self.out, io.RANKINGS, files)


@dataclass(frozen=True)
class SearchInputs:
    """The contents of a task's files."""

    gallery: Distribution
    queries: Distribution
    score: Score
    ids: Ids | None
    query_ids: Ids | None
    accept: Threshold | None

    @property
    def none(self) -> int | str:
        """Padding among ids: -1, or "" among strings."""
        return "" if self.ids is not None and self.ids.dtype.kind == "U" else -1

    def named(self, rows: Ids) -> Ids:
        """The ids of rows of the gallery; `none` for -1."""
        return rows if self.ids is None else np.append(self.ids, self.none)[rows]

    def rows(self, candidates: Ids, path: Path) -> Ids:
        """The rows of candidates, -1 for none."""
        if (candidates.dtype.kind == "U") != (self.none == ""):
            expected = "strings like --ids" if self.none == "" else "integers, since there are no --ids of strings"
            raise ValueError(f"{path}: candidates holds {candidates.dtype}, expected {expected}")
        if self.ids is None:
            return candidates
        order = np.argsort(self.ids)
        rows = np.append(order, -1)[np.searchsorted(self.ids, candidates, sorter=order)]
        rows = np.where(self.named(rows) == candidates, rows, -1)
        unknown = candidates[(rows < 0) & (candidates != self.none)]
        if len(unknown):
            raise ValueError(f"{path}: candidates holds {unknown[0]}, which --ids lacks")
        return rows


def read(task: SearchFiles) -> SearchInputs:
    score = scores.named(task.score)  # one that is named is refused before anything is read
    if task.prior is not None:
        prior = read_fit(task.prior, Prior)
        if score.params.get("prior_var", 0) is not None:
            raise ValueError(f"--prior is for score llr without a prior of its own, got score {score.label}")
        score = score(prior_mean=prior.mean, prior_var=prior.var)
    calibrations = _read_calibrations(task)
    ids, query_ids = (None if path is None else io.read_ids(path) for path in (task.ids, task.query_ids))
    if ids is not None and ids.dtype.kind == "U" and task.out.suffix == ".safetensors":
        raise ValueError(f"{task.out}: safetensors holds no strings, as {task.ids} are; expected another suffix")
    accept = None if task.accept is None else read_fit(task.accept, Threshold)
    sides: list[Distribution] = []
    for path, calibrate in zip((task.queries, task.gallery), calibrations, strict=True):
        d = sides[0] if sides and path == task.queries and task.gallery_calibration is None else None
        if d is not None:  # of a set that is searched for among itself
            sides.append(d)
            continue
        d = io.read_distribution(path)
        try:
            sides.append(d if calibrate is None else calibrate(d))
        except (TypeError, ValueError) as error:
            raise type(error)(f"{path}: {error}") from None
    queries, gallery = sides
    for given, named, name, d in ((task.ids, ids, "gallery", gallery), (task.query_ids, query_ids, "queries", queries)):
        if named is not None and len(named) != len(d):
            raise ValueError(f"{given}: ids holds {len(named)} ids, expected {len(d)}, one for each row of {name}")
    score = scores.named(score if task.score else None, queries, gallery)
    if accept is not None:
        accept.check(str(task.accept), score, task.k)
    return SearchInputs(gallery, queries, score, ids, query_ids, accept)


def _read_calibrations(task: SearchFiles) -> tuple[Calibration | None, Calibration | None]:
    """The calibrations of queries and of gallery."""
    if task.calibration is None:
        if task.gallery_calibration is not None:
            raise ValueError("--gallery-calibration is given without --calibration, which is of the queries then")
        return None, None
    queries = read_fit(task.calibration, Calibration)
    if task.gallery_calibration is not None:
        return queries, read_fit(task.gallery_calibration, Calibration)
    if queries.mean:
        raise ValueError(f"{task.calibration}: is of one side of two, expected --gallery-calibration too")
    return queries, queries


def read_fit(path: Path, kind: type[F]) -> F:
    """The fit in a file, which must be of a kind."""
    fit = io.read_fit(path)
    if not isinstance(fit, kind):
        found = "shift" if isinstance(fit, float) else type(fit).__name__.lower()
        raise ValueError(f"{path}: is a {found}, expected a {kind.__name__.lower()}")
    return fit


def write(task: SearchFiles, inputs: SearchInputs, ranking: Ranking[Any], seconds: float) -> None:
    """Write a ranking, without what is not accepted, and say what was done."""
    kept = ranking if inputs.accept is None else inputs.accept.select(ranking)
    io.write_ranking(task.out, kept, inputs.query_ids)
    size = f"{len(inputs.queries)} queries, gallery {len(inputs.gallery)} x {inputs.gallery.dim}"
    answered = "" if inputs.accept is None else f", {(kept.ids[:, 0] != inputs.none).sum()} queries answered"
    if inputs.accept is not None and not inputs.accept.score:
        answered += f" (by {task.accept}, which does not say of which score it is)"
    print(f"{inputs.score.label}: {size}, top {task.k} in {seconds:.3f} s{answered} -> {task.out}")
