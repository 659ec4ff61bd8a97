"""Rerank candidates, given or found by a FAISS index, by a score that knows uncertainty."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Literal

from peaccel import io, retrieval
from peaccel._utils import options
from peaccel._utils.ids import are_strings
from peaccel.cli._search_files import SearchFiles, read, write
from peaccel.retrieval.faiss import index as faiss_index
from peaccel.retrieval.faiss.faiss_reranker import FaissReranker
from peaccel.retrieval.verbs import Ranking

__all__ = ["Rerank", "main"]


@dataclass(frozen=True, kw_only=True)
class Rerank(SearchFiles):
    """Candidates to rerank, score and output."""

    candidates: Path | None = None
    """Rows of the gallery to choose from, or their --ids, int [Q, K], -1 for none, or strings, empty for none. An .npy
    file, or .npz or .safetensors with the key candidates, or lists in a table: queries.parquet:candidates.
    Exactly one of this and --index is needed."""
    index: Path | None = None
    """A FAISS index of the rows of the gallery, in their order, as faiss.write_index writes it;
    with --ids that are integers, one that returns these."""
    index_features: Literal["mu", "unit", "surrogate"] = "mu"
    """With --index: what it holds of the gallery, and is asked with. mu: means; unit: means scaled to length 1;
    surrogate: pe.first_stage_features(gallery, score), by inner product."""
    shortlist: int = 100
    """With --index: how many candidates to ask of it for each query."""


def main(arguments: Sequence[str]) -> None:
    """Carry out the command."""
    task = options.parse(Rerank, "peaccel rerank", __doc__, arguments)
    if (task.candidates is None) == (task.index is None):
        raise ValueError("expected exactly one of --candidates and --index")
    if task.candidates is not None:
        for name in ("shortlist", "index_features"):
            if getattr(task, name) != getattr(Rerank, name):
                raise ValueError(f"--{name.replace('_', '-')} is for --index, found --candidates")
    task.check_output()
    if task.candidates is not None:
        ids = task.file_of_ids("gallery")
        strings = ids is not None and are_strings(io.read_ids(ids))
        candidates = io.read_candidates(task.candidates, strings=strings)
        inputs = read(task)
        start = perf_counter()
        chosen = inputs.rows(candidates, task.candidates)
        depth, score, exclude = inputs.depth(task.k), inputs.score, inputs.exclude
        ranking = retrieval.rerank(inputs.queries, inputs.gallery, chosen, depth, score, exclude=exclude)
    else:
        assert task.index is not None
        index = faiss_index.read(str(task.index))
        inputs = read(task)
        start = perf_counter()
        reranker = FaissReranker(
            index, inputs.gallery, score=inputs.score, ids=inputs.ids, features=task.index_features
        )
        if inputs.ids is None and reranker.has_ids and (inputs.norm is not None or inputs.labels is not None):
            raise ValueError(f"{task.index}: returns ids, not rows of the gallery; expected --ids")
        depth, exclude = inputs.depth(task.k), inputs.exclude
        exclude = None if exclude is None else exclude.under(reranker.ids[exclude.ids])
        found = reranker.search(inputs.queries, depth, shortlist=task.shortlist, exclude=exclude)
        ranking = Ranking(found.scores, inputs.rows(found.ids, task.index))
    write(task, inputs, ranking, perf_counter() - start)
