"""Search the whole gallery for the exact best by a score that knows uncertainty, or for all above a threshold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter

from peaccel import io, retrieval
from peaccel._utils import options
from peaccel.cli._search_files import SearchFiles, read, write
from peaccel.retrieval.search_above import MOST, search_above

__all__ = ["Search", "main"]


@dataclass(frozen=True, kw_only=True)
class Search(SearchFiles):
    """Gallery, queries, score and output of a search."""

    above: float | None = None
    """In place of the best --k: all items whose score is this at least. --out as .npz or .safetensors then holds
    ids [M] and scores [M] of one query after the other, and offsets: int64 [Q + 1], where each of these begins."""
    most: int = MOST
    """With --above: how many may be found in all; where there are more it is an error."""


def main(arguments: Sequence[str]) -> None:
    """Carry out the command."""
    task = options.parse(Search, "peaccel search", __doc__, arguments)
    for name in ("k", "accept", "normalise"):
        if task.above is not None and getattr(task, name) != getattr(Search, name):
            raise ValueError(f"--{name} is of the best answers, found --above, of all from a score on")
    if task.above is None and task.most != Search.most:
        raise ValueError("--most is for --above; of the best, --k are found")
    task.check_output()
    inputs = read(task)
    start = perf_counter()
    if task.above is None:
        depth, score = inputs.depth(task.k), inputs.score
        found = retrieval.search(inputs.queries, inputs.gallery, depth, score, exclude=inputs.exclude)
        write(task, inputs, found, perf_counter() - start)
        return
    if inputs.kept is not None:
        raise ValueError(f"{task.queries}: --skip-bad left out queries, which --above cannot show, expected none")
    above = search_above(
        inputs.queries, inputs.gallery, task.above, inputs.score, most=task.most, exclude=inputs.exclude
    )
    seconds = perf_counter() - start
    io.write_ranking(task.out, above.under(inputs.named(above.ids)), inputs.query_ids)
    size = f"{len(inputs.queries)} queries, gallery {len(inputs.gallery)} x {inputs.gallery.dim}"
    print(
        f"{inputs.score.label}: {size}, {len(above.ids)} items from {task.above:g} on in {seconds:.3f} s -> {task.out}"
    )
