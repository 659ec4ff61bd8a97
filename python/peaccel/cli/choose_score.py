"""Rank all scores on embeddings with labels, raw and calibrated, and say which to use and what for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from peaccel import io, scores
from peaccel._utils import options
from peaccel.cli._option_groups import BY_LABELS, LabelledSets
from peaccel.cli._outputs import outputs, save_numbers
from peaccel.cli._shares import share
from peaccel.cli._trial_files import TrialFiles
from peaccel.distributions import Distribution
from peaccel.evaluation.choose_score import ITEMS, Fits, RankedScore, choose_score, fit_all
from peaccel.evaluation.criteria import By
from peaccel.evaluation.pair_rates import P_TARGET

__all__ = ["ChooseScore", "main"]

FITS = "prior", "calibration", "centre", "plda"
"""The fits that are written, by the names of their files and of the options that take them."""


@dataclass(frozen=True, kw_only=True)
class ChooseScore(LabelledSets, TrialFiles):
    """Labelled data to choose a score on, and output.

    Items are of classes that nothing was trained on, at least 20 of two items or more."""

    out: Path
    """A folder that receives choice.json and report.html; made if missing. Fits to all items are for 'peaccel search':
    prior.json of Normals, calibration.json of Normals and of items with kappa, centre.json and plda.json of points.
    """
    by: By = "recall"
    """The number that scores are compared by. recall: Recall@1. eer: equal error rate of verification pairs, drawn or,
    with --trial-list, --ids and --labels, of the list's pairs. dcf: their least detection cost at --p-target. answered:
    the largest share of queries that can be answered with a share --wrong of wrong answers."""
    wrong: str = "5%"
    """The target of --by answered: the share of accepted answers that may be wrong."""
    p_target: float = P_TARGET
    """Prior probability of a right pair, for --by dcf (minDCF)."""
    draws: bool = False
    """Rank scores that draw, too."""
    items: int = ITEMS
    """How many items to look at: of more, classes are drawn. Time grows with its square."""
    seed: int = 0
    """Seed of the sample, of the halves, of drawn pairs, of intervals, and of draws."""


def main(arguments: Sequence[str]) -> None:
    """Carry out the command."""
    task = options.parse(ChooseScore, "peaccel choose-score", __doc__, arguments)
    named = task.read_trials("embeddings", "labels")
    if named is not None and task.by not in ("eer", "dcf"):
        raise ValueError(f"--trial-list is for --by eer or dcf, got {task.by}")
    d, labels, gallery = _read(task)
    names = "choice.json", "report.html", *(f"{name}.json" for name in FITS)
    numbers, page, *files = outputs(task.out, task, *names)
    found = choose_score(
        d,
        labels,
        gallery=gallery,
        by=task.by,
        pairs=None if named is None else named.rows(),
        wrong=float(share("wrong", task.wrong)),
        p_target=task.p_target,
        draws=task.draws,
        items=task.items,
        progress=True,
        seed=task.seed,
    )
    fits = fit_all(d, labels, gallery, task.seed)
    best, paths = found.best, dict(zip(FITS, files, strict=True))
    kept: dict[str, Any] = {**fits.of_scores, "calibration": fits.calibration, "plda": fits.plda}
    kept["centre"] = fits.whitening if best.form == "whitened" else fits.centre
    print(found)
    save_numbers(numbers, found, {path: kept.get(name) is not None for name, path in paths.items()})
    from peaccel._utils import report
    from peaccel.evaluation.pages import choice

    report.write(page, "Choice of a score", choice(found), ["choose-score", *arguments])
    for name, path in paths.items():
        if (fit := kept.get(name)) is not None:
            io.write_fit(path, fit)
    print(f"\n-> {page}")
    print(f"\npeaccel search {_flags(best, fits, paths, gallery is not None)} --gallery ... --queries ... --out ...")


def _read(task: ChooseScore) -> tuple[Distribution, Any, Distribution | None]:
    """The items, their labels, and the gallery if there is one."""
    task.require_way(BY_LABELS)
    if task.embeddings is not None and task.labels is not None:
        return io.read_distribution(task.embeddings), io.read_labels(task.labels), None
    assert task.queries and task.gallery and task.query_labels and task.gallery_labels
    labels = io.read_labels(task.query_labels), io.read_labels(task.gallery_labels)
    return io.read_distribution(task.queries), labels, io.read_distribution(task.gallery)


def _flags(best: RankedScore, fits: Fits, paths: dict[str, Path], two_sides: bool) -> str:
    """The options by which a search is of the score in its form."""
    of_form = {
        "centred": ["centre"],
        "whitened": ["centre"],
        "PLDA": ["centre", "plda"] if two_sides else ["plda"],
        "calibrated": ["calibration"] if fits.calibration is not None else [],
    }
    score, names = scores.get(best.score), of_form.get(best.form, [])
    flags = [] if best.form == "PLDA" else ["--score", score.name]
    if best.form == "calibrated":
        for kind in sorted({x.kind for x in score.fits.values()} & {*fits.of_scores}):
            if kind in paths:
                flags += [f"--{kind}", str(paths[kind])]
            else:
                flags[1] = scores.spelled(score.fitted(kind, fits.of_scores[kind]))
    for name in names:
        flags += [f"--{name}", str(paths[name])]
    return " ".join([*flags, *(["--normalise adaptive --cohort ..."] if best.form == "S-norm" else [])])
