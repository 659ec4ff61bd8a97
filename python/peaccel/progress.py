"""How far a loop is: a bar on a terminal, a line every ten seconds elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from time import perf_counter
from typing import TypeVar

__all__ = ["told"]

EVERY = 10.0
"""Seconds between lines where stderr is no terminal."""
T = TypeVar("T")


def told(steps: Sequence[T], seconds: Sequence[float], what: str) -> Iterator[T]:
    """Go through the steps, saying on stderr first about how long they take, and then how far they are.

    Parameters
    ----------
    steps, seconds
        Of each step, about how long it takes: what is left is estimated by them and by how long the first ones took.
    what
        The name of the work, which begins each line.

    Examples
    --------
    >>> from peaccel.progress import told
    >>> list(told(["a", "b"], [1.0, 2.0], "letters"))
    ['a', 'b']
    """
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    total, done, start = sum(seconds), 0.0, perf_counter()
    said, console = start, Console(stderr=True)
    print(f"{what}: {len(steps)} steps, about {total:.0f} s", file=sys.stderr, flush=True)
    columns = TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn()
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task(what, total=total)
        for number, (step, cost) in enumerate(zip(steps, seconds, strict=True), 1):
            yield step
            done, now = done + cost, perf_counter()
            bar.advance(task, cost)
            if not console.is_terminal and now - said >= EVERY:
                said, left = now, (now - start) * (total - done) / max(done, 1e-9)
                print(f"{what}: {number} of {len(steps)}, about {left:.0f} s left", file=sys.stderr, flush=True)
