"""Search the whole gallery for the exact best by a score that knows uncertainty."""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter

from peaccel import retrieval
from peaccel._utils import options
from peaccel.cli._search_files import SearchFiles, read, write

__all__ = ["main"]


def main(arguments: Sequence[str]) -> None:
    """Carry out the command."""
    task = options.parse(SearchFiles, "peaccel search", __doc__, arguments)
    task.check_output()
    inputs = read(task)
    start = perf_counter()
    found = retrieval.search(inputs.queries, inputs.gallery, inputs.depth(task.k), inputs.score)
    write(task, inputs, found, perf_counter() - start)
