"""Inputs and outputs of `peaccel search` and `peaccel rerank`."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from peaccel import io, scores
from peaccel._utils.exclusions import Exclusions
from peaccel._utils.ids import Ids, SortedIds, and_none, are_strings, none_like, there
from peaccel._utils.table_paths import columns_in
from peaccel.cli._fitted_files import read_fit, with_prior
from peaccel.cli._option_groups import ExcludedItems, NormFiles, QueryFiles
from peaccel.cli._outputs import check_files, inputs_of
from peaccel.distributions import Distribution
from peaccel.fits.records import Threshold
from peaccel.retrieval.adaptive_norm import SHORTLIST, AdaptiveNorm
from peaccel.retrieval.verbs import Ranking
from peaccel.scores import Score

__all__ = ["SearchFiles", "SearchInputs", "read", "write"]


@dataclass(frozen=True, kw_only=True)
class SearchFiles(QueryFiles, NormFiles, ExcludedItems):
    """Gallery, queries, score and output of a search."""

    gallery: Path
    """The gallery, G items in D dimensions. An .npz or .safetensors file with the keys
    mu: float [G, D]; and at most one of
    var: float [G] or [G, D], VARIANCE, neither sigma nor its logarithm;
    kappa: float [G] or [G, D], concentrations, where rows of mu have length 1;
    scale: float [G], where rows of mu have length 1.
    Or an .npy file with an array [G, D], which has no uncertainty.
    Float is float16, float32 or float64, the same for all keys; .safetensors may hold bfloat16 too.
    Or a table, .parquet, .arrow, .feather, .lance, .csv or .jsonl, with such columns. In place of mu, a key or column
    embeddings, embedding, vectors, vector, features or x will do. Others are named, ids too:
    gallery.parquet:mu=vector,var=sigma_sq,id=key, and gallery.npz:mu=e likewise."""
    ids: Path | None = None
    """Ids of the gallery's rows, int [G], none negative, or strings, none twice. An .npy file, or .npz or .safetensors
    with the key ids, or a column of a table: gallery.parquet:key.
    """
    query_ids: Path | None = None
    """The queries' ids, in a file of the same form; an --out of .csv or .parquet then has these in place of rows."""
    gallery_labels: Path | None = None
    """The gallery's labels, [G] numbers or strings, or a column: gallery.parquet:label; for an --accept of the margin
    to the next class. --k must then be large enough to meet another class."""
    strict: bool = False
    """End with exit code 1 where --accept accepts nothing."""

    def file_of_ids(self, side: Literal["gallery", "queries"]) -> Path | None:
        """The file of the ids of one side: that of the option, or that of the items if it names a column of ids."""
        items = getattr(self, side)
        return (self.ids if side == "gallery" else self.query_ids) or (items if "id" in columns_in(items) else None)

    def check_output(self) -> None:
        """Refuse an output that cannot be written, or that is one of the other files."""
        if self.query_ids is not None and self.out.suffix not in io.LINES:
            raise ValueError(f"--query-ids is for --out of {' or '.join(io.LINES)}, got {self.out}")
        check_files([(self.out, io.RANKINGS)], inputs_of(self))
        self.check_norm()
        if self.plda is not None and self.score is not None:
            raise ValueError(f"--plda has a score of its own, found --score {self.score}")
        for name in ("gallery_labels", "strict"):
            if getattr(self, name) and self.accept is None:
                raise ValueError(f"--{name.replace('_', '-')} is for --accept, which is not there")


@dataclass(frozen=True)
class SearchInputs:
    """The contents of a task's files."""

    gallery: Distribution
    queries: Distribution
    score: Score
    ids: Ids | None
    query_ids: Ids | None
    accept: Threshold | None
    labels: Any
    """[G], the classes of the gallery; None where they are not needed."""
    norm: AdaptiveNorm | None
    applied: str
    """The fits that were applied to the items, as a threshold names them."""
    kept: np.ndarray[Any, np.dtype[np.bool_]] | None = None
    """By row of the file of queries, whether it was kept; None for all."""
    exclude: Exclusions | None = None
    """The rows that each query may not find."""

    def depth(self, k: int) -> int:
        """How many items to find, of which k are kept."""
        return k if self.norm is None else max(k, SHORTLIST)

    def named(self, rows: Ids) -> Ids:
        """The ids of rows of the gallery; of -1 the one that stands for no item."""
        return rows if self.ids is None else and_none(self.ids)[rows]

    def rows(self, candidates: Ids, path: Path) -> Ids:
        """The rows of candidates, -1 for none."""
        if self.kept is not None and len(candidates) == len(self.kept):
            candidates = candidates[self.kept]
        strings = are_strings(self.ids)
        if are_strings(candidates) != strings:
            expected = "strings like --ids" if strings else "integers, since there are no --ids of strings"
            raise ValueError(f"{path}: candidates holds {candidates.dtype}, expected {expected}")
        if self.ids is None:
            return candidates
        rows = SortedIds.of(self.ids).rows_of(candidates)
        unknown = candidates[(rows < 0) & there(candidates)]
        if len(unknown):
            raise ValueError(f"{path}: candidates holds {unknown[0]}, which --ids lacks")
        return rows


def read(task: SearchFiles, one_set: bool = False) -> SearchInputs:
    """Read the files; of `one_set`, whose items are queries and gallery, fits are of one side."""
    score = scores.named(task.score)  # one that is named is refused before anything is read
    [score] = with_prior([score], task.prior)
    fits = task.applied(one_set)
    files = task.file_of_ids("gallery"), task.file_of_ids("queries") if task.out.suffix in io.LINES else None
    ids, query_ids = (None if path is None else io.read_ids(path) for path in files)
    if are_strings(ids) and task.out.suffix == ".safetensors":
        raise ValueError(f"{task.out}: safetensors holds no strings, as {files[0]} are; expected another suffix")
    accept = None if task.accept is None else read_fit(task.accept, Threshold)
    labels = None if task.gallery_labels is None else io.read_labels(task.gallery_labels)
    queries, asked = fits.read(task.queries, 0)
    of_one_set = task.queries == task.gallery and not fits.of_two_sides
    gallery, held = (queries, asked) if of_one_set else fits.read(task.gallery, 1)
    rows = len(gallery) if held is None else len(held), len(queries) if asked is None else len(asked)
    for path, named, name, count in zip(files, (ids, query_ids), ("gallery", "queries"), rows, strict=True):
        if named is not None and len(named) != count:
            raise ValueError(f"{path}: ids holds {len(named)} ids, expected {count}, one for each row of {name}")
    if held is not None:  # rows are those of the file
        ids = np.flatnonzero(held) if ids is None else ids[held]
        labels = labels[held] if labels is not None and len(labels) == len(held) else labels
    score = scores.named(score if task.score else None, queries, gallery) if fits.plda is None else fits.plda.score
    norm = task.norm("--normalise", gallery, fits, score)
    if accept is not None:
        label = "" if norm is None else norm.label
        dim, size = queries.dim, len(gallery)
        accept.check(str(task.accept), score, task.k, label, dim=dim, applied=str(fits), gallery_size=size)
        _check_labels(task, accept, labels, len(gallery))
    exclude = task.exclusions([(task.queries, asked), (task.gallery, held)])
    return SearchInputs(gallery, queries, score, ids, query_ids, accept, labels, norm, str(fits), asked, exclude)


def _check_labels(task: SearchFiles, accept: Threshold, labels: Any, size: int) -> None:
    """Refuse labels that a threshold does not need, and a threshold that needs them without."""
    if accept.of_classes != (labels is not None):
        what = "expected --gallery-labels" if labels is None else "found --gallery-labels, which it does not need"
        raise ValueError(f"{task.accept}: is of the {accept.confidence}, {what}")
    if labels is not None and len(labels) != size:
        raise ValueError(f"{task.gallery_labels}: holds {len(labels)} labels, expected {size}, one for each item")


def write(task: SearchFiles, inputs: SearchInputs, rows: Ranking[Any], seconds: float) -> None:
    """Write a ranking of the gallery's rows, normalised where that is asked for and without what is not accepted, and
    say what was done.
    """
    found = rows if inputs.norm is None else inputs.norm(rows, inputs.queries)
    kept = Ranking(found.scores[:, : task.k], found.ids[:, : task.k])
    if inputs.accept is not None:
        kept = inputs.accept.select(kept, labels=inputs.labels)
    answered = int((kept.ids[:, 0] >= 0).sum())
    ranking = Ranking(kept.scores, inputs.named(kept.ids))
    if inputs.kept is not None:
        every = np.where(inputs.kept, np.cumsum(inputs.kept) - 1, -1)  # queries that were left out find nothing
        of_none = np.full((1, task.k), -np.inf, ranking.scores.dtype), np.full((1, task.k), none_like(inputs.ids))
        ranking = Ranking(*(np.concatenate([x, none])[every] for x, none in zip(ranking, of_none, strict=True)))
    io.write_ranking(task.out, ranking, inputs.query_ids)
    size = f"{len(inputs.queries)} queries, gallery {len(inputs.gallery)} x {inputs.gallery.dim}"
    accepted = "" if inputs.accept is None else f", {answered} queries answered"
    if inputs.accept is not None and not inputs.accept.score:
        accepted += f" (by {task.accept}, which does not say of which score it is)"
    name = inputs.score.label if inputs.norm is None else f"{inputs.score.label} with {inputs.norm.label}"
    print(f"{name}: {size}, top {task.k} in {seconds:.3f} s{accepted} -> {task.out}")
    if task.strict and not answered:
        sys.exit(1)
