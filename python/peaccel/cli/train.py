"""Train a method by its recipe; 'peaccel train METHOD --help' lists its settings."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from peaccel.cli._training import check_run, parse, row, tell
from peaccel.data import TRAINED

__all__ = ["main"]


def main(arguments: Sequence[str]) -> None:
    """Carry out the command."""
    name, rest = row("train", __doc__, arguments)
    out = Path("runs") / Path(name).stem
    check_run(rest, out, TRAINED)
    from peaccel.train import runs

    start = runs.Run(out=out)
    _, method, settings, run = parse(None, f"peaccel train {name}", __doc__, name, rest, start)
    command = shlex.join(["peaccel", "train", *arguments])
    tell(runs.train(name, method, settings, run, command=command), run)
