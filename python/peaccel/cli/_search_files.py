"""What `peaccel search` and `peaccel rerank` read and write."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import numpy as np

from peaccel import io, scores
from peaccel.distributions import Distribution
from peaccel.measures.fitted import Calibration, Prior, Threshold
from peaccel.retrieval.verbs import Ranking
from peaccel.scores import Score

__all__ = ["SearchFiles", "SearchInputs", "read", "write"]

Ints: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]
F = TypeVar("F")


@dataclass(frozen=True, kw_only=True)
class SearchFiles:
    """What to search, by what, and where the ranking goes."""

    gallery: Path
    """The gallery, G items in D dimensions. An .npz or .safetensors file with the keys
    mu: float [G, D]; and at most one of
    var: float [G] or [G, D], VARIANCE, neither sigma nor its logarithm;
    kappa: float [G] or [G, D], concentrations, where rows of mu have length 1;
    scale: float [G], where rows of mu have length 1.
    Or an .npy file with an array [G, D], which has no uncertainty.
    Float is float16, float32 or float64, the same for all keys; .safetensors may hold bfloat16 too."""
    queries: Path
    """The queries, Q items in D dimensions, in a file of the same form."""
    out: Path
    """The ranking to write, best first. .npz or .safetensors, with the keys
    scores: float [Q, k], padded with -inf;
    ids: int64 [Q, k], rows of the gallery, or their --ids, padded with -1.
    Or .json, the same as lists, with null for scores that are not finite;
    or .csv, a line query,rank,id,score for each item found, ranks from 1."""
    k: int = 10
    """How many to keep for each query, at least 1."""
    score: str = "mls"
    """A name that 'peaccel scores' lists, perhaps with parameters: "ppk:rho=0.5"."""
    prior: Path | None = None
    """The prior of score llr: what pe.fit_prior found, as pe.io.write_fit writes it."""
    calibration: Path | None = None
    """What pe.calibrate found, as pe.io.write_fit writes it; applied to gallery and queries."""
    gallery_calibration: Path | None = None
    """The gallery's, where pe.calibrate(queries, gallery, ...) found two; --calibration is then the queries'."""
    ids: Path | None = None
    """The ids by which the rows of the gallery are known elsewhere, int [G], none negative, none twice:
    an .npy file, or .npz or .safetensors with the key ids."""
    accept: Path | None = None
    """A threshold of this score: what pe.learn_then_test or pe.limit_false_matches found, as pe.io.write_fit writes it.
    Answers below it are left out."""

    def check_output(self) -> None:
        """Refuse an output that cannot be written, or that is one of the other files."""
        files = [value for name, value in vars(self).items() if name != "out" and isinstance(value, Path)]
        io.check_output(self.out, io.RANKINGS, files)


@dataclass(frozen=True)
class SearchInputs:
    """The contents of a task's files."""

    gallery: Distribution
    queries: Distribution
    score: Score
    ids: Ints | None
    accept: Threshold | None

    def named(self, rows: Ints) -> Ints:
        """The ids of rows of the gallery; -1 for -1."""
        return rows if self.ids is None else np.append(self.ids, -1)[rows]

    def rows(self, candidates: Ints, path: Path) -> Ints:
        """The rows of candidates, -1 for -1."""
        if self.ids is None:
            return candidates
        order = np.argsort(self.ids)
        rows = np.append(order, -1)[np.searchsorted(self.ids, candidates, sorter=order)]
        rows = np.where(self.named(rows) == candidates, rows, -1)
        unknown = candidates[(rows < 0) & (candidates >= 0)]
        if len(unknown):
            raise ValueError(f"{path}: candidates holds {unknown[0]}, which --ids lacks")
        return rows


def read(task: SearchFiles) -> SearchInputs:
    score = scores.get(task.score)
    if task.prior is not None:
        prior = _read_fit(task.prior, Prior)
        if score.params.get("prior_var", 0) is not None:
            raise ValueError(f"--prior is for score llr without a prior of its own, got score {score.label}")
        score = score(prior_mean=prior.mean, prior_var=prior.var)
    calibrations = _read_calibrations(task)
    ids = None if task.ids is None else io.read_ids(task.ids)
    accept = None if task.accept is None else _read_fit(task.accept, Threshold)
    sides = []
    for path, calibrate in zip((task.queries, task.gallery), calibrations, strict=True):
        d = io.read_distribution(path)
        try:
            sides.append(d if calibrate is None else calibrate(d))
        except (TypeError, ValueError) as error:
            raise type(error)(f"{path}: {error}") from None
    queries, gallery = sides
    if ids is not None and len(ids) != len(gallery):
        raise ValueError(f"{task.ids}: ids holds {len(ids)} ids, expected {len(gallery)}, one for each row of gallery")
    return SearchInputs(gallery, queries, score, ids, accept)


def _read_calibrations(task: SearchFiles) -> tuple[Calibration | None, Calibration | None]:
    """The calibrations of queries and of gallery."""
    if task.calibration is None:
        if task.gallery_calibration is not None:
            raise ValueError("--gallery-calibration is given without --calibration, which is of the queries then")
        return None, None
    queries = _read_fit(task.calibration, Calibration)
    if task.gallery_calibration is not None:
        return queries, _read_fit(task.gallery_calibration, Calibration)
    if queries.mean:
        raise ValueError(f"{task.calibration}: is of one side of two, expected --gallery-calibration too")
    return queries, queries


def _read_fit(path: Path, kind: type[F]) -> F:
    fit = io.read_fit(path)
    if not isinstance(fit, kind):
        found = "shift" if isinstance(fit, float) else type(fit).__name__.lower()
        raise ValueError(f"{path}: is a {found}, expected a {kind.__name__.lower()}")
    return fit


def write(task: SearchFiles, inputs: SearchInputs, ranking: Ranking[Any], seconds: float) -> None:
    """Write a ranking, without what is not accepted, and say what was done."""
    kept = ranking if inputs.accept is None else inputs.accept.select(ranking)
    io.write_ranking(task.out, kept)
    size = f"{len(inputs.queries)} queries, gallery {len(inputs.gallery)} x {inputs.gallery.dim}"
    answered = "" if inputs.accept is None else f", {(kept.ids[:, 0] >= 0).sum()} queries answered"
    print(f"{inputs.score.label}: {size}, top {task.k} in {seconds:.3f} s{answered} -> {task.out}")
