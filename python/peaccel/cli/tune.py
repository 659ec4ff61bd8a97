"""Search a method's settings with Optuna by MAP@R on validation classes; goes on where it was stopped."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from peaccel._utils import options
from peaccel.cli._training import check_run, parse, row
from peaccel.data import TRAINED
from peaccel.train.recipes import recipe

__all__ = ["main"]


def main(arguments: Sequence[str]) -> None:
    """Carry out the command."""
    name, rest = row("tune", __doc__, arguments)
    out = Path(f"runs/tune-{Path(name).stem}")
    check_run(rest, out, TRAINED)
    from peaccel.train import runs, tuning

    start = runs.Run(out=out)
    search, _, settings, run = parse(tuning.SearchLimits, f"peaccel tune {name}", __doc__, name, rest, start)
    best = tuning.tune(name, settings, run, search)
    reached = f"best MAP@R on validation {100 * best.value:.2f} %, of {best.trials} trials"
    print(f"{name} on {run.data}: {reached} -> {run.out / 'best.toml'}")
    chosen = options.words(best.chosen, recipe(name, run.data)[1])
    again = options.words(replace(run, out=run.out / "best", resume=False), runs.Run())
    print(shlex.join(["peaccel", "train", name, *again, *chosen]))
