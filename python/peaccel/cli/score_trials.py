"""Score a list of pairs by name, and apply a threshold and a probability that were found before."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from peaccel import io, scores
from peaccel._utils import options
from peaccel.cli._fitted_files import AppliedFits, read_fit, with_prior
from peaccel.cli._option_groups import NormFiles
from peaccel.cli._outputs import COLUMNS, check_files, inputs_of, write_columns
from peaccel.cli._trial_files import TrialFiles
from peaccel.distributions import Distribution
from peaccel.evaluation.score_trials import score_trials
from peaccel.fits.plda import Plda
from peaccel.fits.records import IsotonicProbability, LogisticProbability, Threshold
from peaccel.scores import Score

__all__ = ["ScoreTrials", "main"]


@dataclass(frozen=True, kw_only=True)
class ScoreTrials(TrialFiles, NormFiles):
    """Pairs by name, their score, threshold and probability, and output."""

    embeddings: Path
    """Items of both sides, a file as 'peaccel search' takes it, in the order of --ids."""
    out: Path
    """The file to write, .csv, .tsv, .parquet or .npz: columns enrol, test, score, and accepted or probability."""
    score: str | None = None
    """A name that 'peaccel scores' lists, perhaps with parameters: "ppk:rho=0.5". By default cosine of points, else
    mls."""
    accept: Path | None = None
    """A threshold of pairs that 'peaccel choose-threshold --trial-list' or '--pairs' found for the same score."""
    match_probability: Path | None = None
    """The probability of a match that 'peaccel calibrate-scores' fitted to the same score."""


def main(arguments: Sequence[str]) -> None:
    """Carry out the command."""
    task = options.parse(ScoreTrials, "peaccel score-trials", __doc__, arguments)
    task.check_norm()
    named = task.read_trials("embeddings")
    if named is None:
        raise ValueError("--trial-list is missing")
    check_files([(task.out, COLUMNS)], inputs_of(task))
    fits = task.applied()
    accept = None if task.accept is None else read_fit(task.accept, Threshold)
    probability = None if task.match_probability is None else _probability(task.match_probability)
    d = fits.of_gallery(task.embeddings)
    score, trials = _score(task, d), named.trials
    if accept is not None:
        norm = task.norm("--normalise", d[:2], fits, score)
        if accept.of != "pairs":
            raise ValueError(f"{task.accept}: is a threshold of searches, expected one of pairs")
        label = "" if norm is None else norm.label
        accept.check_score(str(task.accept), score, label, dim=d.dim, applied=str(fits))
    found = score_trials(
        d,
        named.ids,
        trials.enrol,
        trials.test,
        score,
        enrolment=named.enrolment,
        rule=task.rule,
        cohort=_cohort(task, fits),
    )
    columns: dict[str, Any] = {"enrol": trials.enrol, "test": trials.test, "score": found}
    said = f"{len(found)} pairs by {score.label}"
    if accept is not None:
        columns["accepted"] = np.asarray(accept(found))
        said += f", {columns['accepted'].sum()} accepted"
    if probability is not None:
        columns["probability"] = probability(found)
    write_columns(task.out, columns)
    print(f"{said} -> {task.out}")


def _cohort(task: ScoreTrials, fits: AppliedFits) -> Distribution | None:
    """The items that scores are normalised by."""
    return None if task.cohort is None else fits.of_gallery(task.cohort)


def _score(task: ScoreTrials, d: Distribution) -> Score:
    """The score that is named, the one of the model, or that of the items' kind."""
    if task.plda is not None:
        if task.score is not None:
            raise ValueError(f"--plda has a score of its own, found --score {task.score}")
        return read_fit(task.plda, Plda).score
    [score] = with_prior([scores.named(task.score, d, d)], task.prior)
    return score


def _probability(path: Path) -> LogisticProbability | IsotonicProbability:
    """The probability of a file, which takes the score alone."""
    found = io.read_fit(path)
    if not isinstance(found, LogisticProbability | IsotonicProbability):
        raise ValueError(f"{path}: is a {type(found).__name__.lower()}, expected the probability of a match")
    return found
