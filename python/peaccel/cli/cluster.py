"""Find the clusters of a set: two are joined while the average score between them reaches a threshold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from time import perf_counter

import numpy as np

from peaccel import io
from peaccel._utils import options
from peaccel.cli._fitted_files import read_fit
from peaccel.cli._option_groups import FitFiles, ScoreAndThreshold
from peaccel.cli._outputs import COLUMNS, check_files, inputs_of, write_columns
from peaccel.cli._search_files import SearchFiles, read
from peaccel.fits.records import IsotonicProbability, LogisticProbability, Threshold
from peaccel.retrieval.cluster import cluster
from peaccel.retrieval.search_above import MOST

__all__ = ["Cluster", "main"]


@dataclass(frozen=True, kw_only=True)
class Cluster(ScoreAndThreshold, FitFiles):
    """Items, threshold, score and output."""

    embeddings: Path
    """The items, N in D dimensions; a file as 'peaccel search' takes it."""
    out: Path
    """The clusters to write: .csv, .tsv or .parquet, a line item,cluster,score,next_score for each item, perhaps with
    its probability; or .npz with these keys. item is a row, or one of --ids; clusters are numbered from 0 by size;
    score is the average with the others of the cluster, next_score the greatest with another cluster.
    """
    above: float | None = None
    """Two clusters are joined if their average score is this at least. Exactly one of this and --accept is needed; a
    threshold of --accept must be of pairs."""
    floor: float | None = None
    """Pairs with lower scores are not looked for, and count as this score. By default all pairs are looked for if they
    are at most --most, else about half of --most."""
    margin: float = 0.0
    """Margin of unsure items. Items whose average score lies less than this above the threshold, or above another
    cluster's, are assigned last, and stay alone if they are still unsure.
    """
    probability: Path | None = None
    """The result of pe.fit_match_probability, as pe.io.write_fit writes it: a column probability is added."""
    ids: Path | None = None
    """The ids of the items, int [N] or strings, none twice: a file as 'peaccel search' takes it."""
    most: int = MOST
    """How many pairs may be found; where there are more it is an error."""


def main(arguments: Sequence[str]) -> None:
    """Carry out the command."""
    task = options.parse(Cluster, "peaccel cluster", __doc__, arguments)
    if (task.above is None) == (task.accept is None):
        raise ValueError("expected exactly one of --above and --accept")
    check_files([(task.out, COLUMNS)], inputs_of(task))
    threshold = task.above if task.accept is None else read_fit(task.accept, Threshold)
    assert threshold is not None
    probability: LogisticProbability | IsotonicProbability | None = None
    if task.probability is not None:
        fit = io.read_fit(task.probability)
        if not isinstance(fit, (LogisticProbability, IsotonicProbability)):
            raise ValueError(f"{task.probability}: is a {type(fit).__name__}, expected one of pe.fit_match_probability")
        probability = fit
    shared = {name: getattr(task, name) for name in ("out", "score", "ids", *(f.name for f in fields(FitFiles)))}
    inputs = read(SearchFiles(gallery=task.embeddings, queries=task.embeddings, **shared), one_set=True)
    if isinstance(threshold, Threshold):
        threshold.check_score(str(task.accept), inputs.score, dim=inputs.gallery.dim, applied=inputs.applied)
    start = perf_counter()
    terms = {name: getattr(task, name) for name in ("floor", "margin", "most")}
    found = cluster(inputs.gallery, threshold, inputs.score, probability=probability, **terms)
    seconds = perf_counter() - start
    columns = {"item": inputs.named(np.arange(len(found.labels))), "cluster": found.labels}
    columns |= {"score": found.scores, "next_score": found.next_scores}
    if found.probabilities is not None:
        columns["probability"] = found.probabilities
    write_columns(task.out, columns)
    print(f"{found}; {seconds:.3f} s -> {task.out}")
