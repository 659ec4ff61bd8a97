"""Rank all scores on embeddings with labels, raw and calibrated, and say which to use and what for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from peaccel import io, scores
from peaccel._utils import options
from peaccel.cli._outputs import outputs
from peaccel.evaluation.choose_score import ITEMS, choose_score, fit

__all__ = ["ChooseScore", "main"]


@dataclass(frozen=True, kw_only=True)
class ChooseScore:
    """Labelled data to choose a score on, and output."""

    embeddings: Path
    """Items of classes that nothing was trained on; a file as 'peaccel search' takes it."""
    labels: Path
    """Their labels, [N] numbers or strings: .npy, or .npz with the key labels, or a column of a table:
    items.parquet:label. At least 20 classes of two or more."""
    out: Path
    """A folder that receives choice.json, report.html, and, fitted to all items, prior.json of Normals and
    calibration.json of Normals and of items with kappa, for 'peaccel search'; made if missing."""
    draws: bool = False
    """Rank scores that draw, too."""
    items: int = ITEMS
    """How many items to look at: of more, classes are drawn. Time grows with its square."""
    seed: int = 0
    """Seed of the sample, of the halves, of drawn pairs, of intervals, and of draws."""


def main(arguments: Sequence[str]) -> None:
    """Carry out the command."""
    task = options.parse(ChooseScore, "peaccel choose-score", __doc__, arguments)
    d, labels = io.read_distribution(task.embeddings), io.read_labels(task.labels)
    names = "choice.json", "report.html", "prior.json", "calibration.json"
    numbers, page, prior, calibration = outputs(task.out, task, *names)
    found = choose_score(d, labels, draws=task.draws, items=task.items, progress=True, seed=task.seed)
    fits = fit(d, labels, task.seed)
    print(found)
    found.save(numbers)
    from peaccel._utils import report
    from peaccel.evaluation.pages import choice

    report.write(page, "Choice of a score", choice(found))
    for path in (prior, calibration):
        path.unlink(missing_ok=True)  # of an earlier run
    best, flags = scores.get(found.best.score), []
    if fits.prior is not None:
        io.write_fit(prior, fits.prior)
        flags += ["--prior", str(prior)] if "prior_var" in best.params else []
    if fits.calibration is not None:
        io.write_fit(calibration, fits.calibration)
        flags += ["--calibration", str(calibration)] if found.best.form == "calibrated" else []
    shifted = found.best.form == "calibrated" and "mu" in best.params
    name = f"{best.name}:mu={fits.shift!r}" if shifted else best.name
    print(f"\n-> {page}")
    print(f"\npeaccel search --score {' '.join([name, *flags])} --gallery ... --queries ... --out ...")
