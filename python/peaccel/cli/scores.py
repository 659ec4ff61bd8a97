"""Print the scores, their parameters and the kinds of distributions they take; or all about one."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated

import tyro

from peaccel import scores
from peaccel._utils import options
from peaccel.cli._tables import print_table
from peaccel.scores import Score

__all__ = ["Scores", "main"]


@dataclass(frozen=True)
class Scores:
    """Which scores to print."""

    name: Annotated[str | None, tyro.conf.Positional] = None
    """The one to print whole."""


def main(arguments: Sequence[str]) -> None:
    """Carry out the command."""
    task = options.parse(Scores, "peaccel scores", __doc__, arguments)
    if task.name is None:
        print_table(
            ("score, parameters", "what it is, kinds of queries: kinds of galleries"),
            (
                ["\n".join([s.name, *_parameters(s)]), "\n".join([_paragraphs(s)[0], *_pairs(s.pairs)])]
                for s in scores.SCORES.values()
            ),
        )
        return
    score = scores.get(task.name)
    blocks = [score.name, *_paragraphs(score)]
    if score.params:
        blocks.append("\n  ".join(["parameters", *_parameters(score)]))
    blocks.append("\n  ".join(["kinds of queries: kinds of galleries", *_pairs(score.pairs)]))
    print("\n\n".join(blocks))


def _paragraphs(score: Score) -> list[str]:
    return inspect.cleandoc(score.doc).split("\n\n")


def _parameters(score: Score) -> list[str]:
    """A line for each parameter of a score, with its value and its other choices."""
    lines = []
    for name, value in score.params.items():
        others = [choice for choice in score.choices.get(name, ()) if choice != value]
        # A seed of None means a new one at every call; another parameter of None, that there is none.
        start = value if value is not None else "(any)" if name == "seed" else "(none)" if others else "(needed)"
        lines.append(f"{name}={' | '.join(map(str, (start, *others)))}")
    return lines


def _pairs(pairs: Iterable[tuple[str, str]]) -> list[str]:
    """A line for each set of gallery kinds, after the query kinds that the score takes with exactly these."""
    galleries: dict[str, list[str]] = {}
    for query, gallery in pairs:
        galleries.setdefault(query, []).append(gallery)
    queries: dict[str, list[str]] = {}
    for query, kinds in galleries.items():
        queries.setdefault(", ".join(kinds), []).append(query)
    return [f"{', '.join(names)}: {kinds}" for kinds, names in queries.items()]
