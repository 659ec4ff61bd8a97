"""Learn an uncertainty for embeddings that you have, from labels: seconds to minutes on a CPU.

A quarter of the classes is held out, by whose MAP@R the best epoch is chosen. 'peaccel embed --run OUT --features FILE'
then gives your embeddings their uncertainty.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from peaccel._utils.table_paths import is_table
from peaccel.cli._feature_files import column, columns
from peaccel.cli._training import check_run, check_there, early, parse, tell
from peaccel.data.features import connected_labels, covariate_rows, feature_rows, features

__all__ = ["HEADS", "Head", "HeadFiles", "main"]

Head = Literal["pfe", "llr_nce", "scaleface", "dul_reg", "scf", "mls_nce", "vmf_nce", "mu_scaleface"]

HEADS: tuple[str, ...] = get_args(Head)
"""Rows of the table that can learn an uncertainty alone, on given means: their recipes have settings for features."""

FIRST = "Try centring, PLDA and score normalisation first: on real embeddings they gain more (docs/real-embeddings.md)"


@dataclass(frozen=True, kw_only=True)
class HeadFiles:
    """The files that a head is fitted to."""

    features: Path
    """The means, [N, D] float in an .npy file, or .npz with the keys features and labels. Or the column mu of a table,
    or another: items.parquet:vector.
    """
    labels: Path | None = None
    """Their labels, [N] numbers or strings, in an .npy file, or a column of a table: items.parquet:label."""
    relevance: Path | None = None
    """In place of labels, pairs that are right: [M, 2] integers, rows that belong together, such as a query and its
    document. .npy, or .npz with key relevance. Connected pairs make a class; items in no pair are left out.
    """
    covariates: tuple[Path, ...] = ()
    """Measurements of the items beside their features, such as duration, signal-to-noise ratio or size of a crop. [N]
    or [N, Q] numbers, .npy, or .npz with the key covariates. The uncertainty sees them too, standardised by the
    training classes; the means do not."""
    method: Head = "pfe"
    """The method that learns the uncertainty: pfe, calibrated afterwards, did best on validation classes
    (docs/score-comparison.md)."""


def main(arguments: Sequence[str]) -> None:
    """Carry out the command."""
    out = Path("runs/head")
    check_head(arguments)
    check_run(arguments, out)
    from peaccel.train import evaluation, runs
    from peaccel.train.sources import of_features

    name = early(arguments).method or HeadFiles.method
    start = runs.Run(data="features", out=out, device="cpu")
    files, method, settings, run = parse(
        HeadFiles, "peaccel fit-head", __doc__, name, arguments, start, fixed_means=True
    )
    found = features(
        column(files.features, "mu"),
        column(files.labels, "labels"),
        covariates=columns(files.covariates, "covariates"),
        relevance=column(files.relevance, "relevance"),
    )
    if files.relevance is not None:
        items, groups = (
            sum(map(len, column)) for column in zip(*((x, x.classes) for x in found.values()), strict=True)
        )
        print(f"{files.relevance}: {items} items in {groups} groups; others are left out", file=sys.stderr)
    parts = {part: of_features(x.features, x.labels, x.covariates) for part, x in found.items()}
    result = runs.train(name, method, settings, run, parts, shlex.join(["peaccel", "fit-head", *arguments]))
    tell(result, run, evaluation.evaluate_means(method, parts))
    beside = ["--covariates", *map(str, files.covariates)] if files.covariates else []
    words = ["--run", f"{run.out}", "--features", f"{files.features}", *beside, "--out", "sure.npz"]
    print(shlex.join(["peaccel", "embed", *words]))
    print(FIRST, file=sys.stderr)


def check_head(arguments: Sequence[str]) -> None:
    """Refuse what the words of `fit-head` show to be wrong."""
    parsed = early(arguments)
    method = parsed.method or HeadFiles.method
    if method not in HEADS:
        raise ValueError(f"method is {method!r}, expected one of {', '.join(HEADS)}")
    files = [word for word in arguments[:1] if not word.startswith("-")]
    check_there(*map(Path, filter(None, (*files, parsed.labels, parsed.relevance, *parsed.covariates))))
    if files and (Path(files[0]).is_file() or is_table(files[0])) and (parsed.covariates or parsed.relevance):
        count = len(feature_rows(column(Path(files[0]), "mu")))
        if parsed.covariates:
            covariate_rows(columns(map(Path, parsed.covariates), "covariates"), count)
        if parsed.relevance:
            connected_labels(column(Path(parsed.relevance), "relevance"), count)
