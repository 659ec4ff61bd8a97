"""Fit the probability that a pair matches, and the likelihood ratio, to labelled scores of pairs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from peaccel import io
from peaccel._utils import options
from peaccel.cli._outputs import check_files
from peaccel.fits.fit_match_probability import fit_match_probability

__all__ = ["CalibrateScores", "main"]


@dataclass(frozen=True, kw_only=True)
class CalibrateScores:
    """Labelled scores of pairs, the function, and output."""

    pairs: Path
    """Verification pairs that are scored, of people whom nothing was trained on. .csv or .tsv with a first line that
    names the columns score and match (0 or 1, or yes or no); .parquet with these; .npz with these keys; or .npy, [P,
    2], score and match."""
    out: Path
    """The .json file to write: 'peaccel score-trials --match-probability' and pe.io.read_fit take it."""
    function: Literal["logistic", "isotonic"] = "logistic"
    """logistic: Platt's scaling. isotonic: any function that does not fall, from 1000 pairs on."""


def main(arguments: Sequence[str]) -> None:
    """Carry out the command."""
    task = options.parse(CalibrateScores, "peaccel calibrate-scores", __doc__, arguments)
    check_files([(task.out, [".json"])], [task.pairs])
    scores, match, _ = io.read_scored_pairs(task.pairs)
    found = fit_match_probability(scores, match, method=task.function)
    io.write_fit(task.out, found)
    print(f"{found}\n{len(match)} pairs, {match.sum()} of them matches -> {task.out}")
