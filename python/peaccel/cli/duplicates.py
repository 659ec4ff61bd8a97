"""Find the pairs of a set that are alike: all from a score on, or each item's best where a promise accepts it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from peaccel import retrieval
from peaccel._utils import options
from peaccel.cli._fitted_files import read_fit
from peaccel.cli._option_groups import FitFiles, ScoreAndThreshold
from peaccel.cli._outputs import COLUMNS, check_files, inputs_of, write_columns
from peaccel.cli._search_files import SearchFiles, SearchInputs, read
from peaccel.fits.records import Selection, Threshold
from peaccel.retrieval.duplicates import duplicates
from peaccel.retrieval.search_above import MOST

__all__ = ["Duplicates", "main"]

PAIR = ("first", "second", "score")  # the columns of a pair


@dataclass(frozen=True, kw_only=True)
class Duplicates(ScoreAndThreshold, FitFiles):
    """Items, threshold, score and output."""

    embeddings: Path
    """The items, N in D dimensions; a file as 'peaccel search' takes it."""
    out: Path
    """The pairs to write: .csv, .tsv or .parquet, a line first,second,score for each; or .npz with these keys. first
    and second are rows of the items, or their --ids. Where --accept is of pairs, or of searches without a mate, all
    pairs from its threshold on are written. Where it bounds a share of wrong answers, each item is written beside
    its best other one, so that two items may name each other."""
    above: float | None = None
    """All pairs whose score is this at least, each once, in the order of the first, the surest first.
    Exactly one of this and --accept is needed."""
    ids: Path | None = None
    """The ids of the items, int [N] or strings, none twice: a file as 'peaccel search' takes it."""
    most: int = MOST
    """How many pairs may be found; where there are more it is an error."""


def main(arguments: Sequence[str]) -> None:
    """Carry out the command."""
    task = options.parse(Duplicates, "peaccel duplicates", __doc__, arguments)
    if (task.above is None) == (task.accept is None):
        raise ValueError("expected exactly one of --above and --accept")
    check_files([(task.out, COLUMNS)], inputs_of(task))
    accept = None if task.accept is None else read_fit(task.accept, Threshold)
    shared = {name: getattr(task, name) for name in ("out", "score", "ids", *(f.name for f in fields(FitFiles)))}
    inputs = read(SearchFiles(gallery=task.embeddings, queries=task.embeddings, **shared), one_set=True)
    if accept is not None:
        if accept.confidence != "score":
            raise ValueError(f"{task.accept}: the threshold is of a {accept.confidence}, expected one of the score")
        accept.check_score(str(task.accept), inputs.score, dim=inputs.gallery.dim, applied=inputs.applied)
    start = perf_counter()
    if isinstance(accept, Selection) and accept.of == "answers":
        first, second, scores = _best_of_each(inputs, accept)
    else:
        threshold = task.above if accept is None else accept.threshold
        assert threshold is not None
        found = duplicates(inputs.gallery, threshold, inputs.score, most=task.most)
        # A threshold that promises nothing accepts no copy either, whose score is infinite.
        kept = slice(None) if accept is None else accept(found.scores)
        first, second, scores = found.queries[kept], found.ids[kept], found.scores[kept]
    seconds = perf_counter() - start
    write_columns(task.out, dict(zip(PAIR, (inputs.named(first), inputs.named(second), scores), strict=True)))
    unknown = accept is not None and not accept.score
    by = f" (by {task.accept}, which does not say of which score it is)" if unknown else ""
    size = f"{len(inputs.gallery)} items x {inputs.gallery.dim}"
    print(f"{inputs.score.label}: {size}, {len(scores)} pairs in {seconds:.3f} s{by} -> {task.out}")


def _best_of_each(inputs: SearchInputs, accept: Selection) -> tuple[Any, Any, Any]:
    """Items whose best other one is accepted, that one, and the score."""
    scores, ids = retrieval.search(inputs.gallery, inputs.gallery, 2, inputs.score)
    rows = np.arange(len(ids))
    place = (ids[:, 0] == rows).astype(np.int64)
    second, best = ids[rows, place], scores[rows, place]
    kept = np.flatnonzero(accept(best) & (second >= 0))
    return kept, second[kept], best[kept]
