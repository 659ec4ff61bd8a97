"""Learn an uncertainty for embeddings that you have, from labels: seconds to minutes on a CPU.

A quarter of the classes is held out, by whose MAP@R the best epoch is chosen. 'peaccel embed --run OUT --features FILE'
then gives your embeddings their uncertainty.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from peaccel.cli._training import check_run, check_there, early, parse, tell
from peaccel.data.features import features

__all__ = ["HEADS", "Head", "HeadFiles", "main"]

Head = Literal["pfe", "llr_nce", "scaleface", "dul_reg", "scf", "mls_nce", "vmf_nce", "mu_scaleface"]

HEADS: tuple[str, ...] = get_args(Head)
"""Rows of the table that can learn an uncertainty alone, on given means: their recipes have settings for features."""


@dataclass(frozen=True, kw_only=True)
class HeadFiles:
    """The files that a head is fitted to."""

    features: Path
    """The means, [N, D] float in an .npy file, or .npz with the keys features and labels."""
    labels: Path | None = None
    """Their labels, [N] numbers or strings, in an .npy file."""
    method: Head = "pfe"
    """The method that learns the uncertainty: pfe, calibrated afterwards, did best on validation classes
    (docs/choosing-a-score.md)."""


def main(arguments: Sequence[str]) -> None:
    """Carry out the command."""
    out = Path("runs/head")
    check_head(arguments)
    check_run(arguments, out)
    import torch

    from peaccel.train import evaluation, runs
    from peaccel.train.sources import Items

    name = early(arguments).method or HeadFiles.method
    start = runs.Run(data="features", out=out, device="cpu")
    files, method, settings, run = parse(HeadFiles, "peaccel fit-head", __doc__, name, arguments, start, given=True)
    found = features(files.features, files.labels)
    parts = {part: Items(torch.from_numpy(x.features), x.labels) for part, x in found.items()}
    result = runs.train(name, method, settings, run, parts)
    tell(result, run, evaluation.evaluate_means(method, parts))
    print(
        shlex.join(["peaccel", "embed", "--run", f"{run.out}", "--features", f"{files.features}", "--out", "sure.npz"])
    )


def check_head(arguments: Sequence[str]) -> None:
    """Refuse what the words of `fit-head` show to be wrong."""
    given = early(arguments)
    method = given.method or HeadFiles.method
    if method not in HEADS:
        raise ValueError(f"method is {method!r}, expected one of {', '.join(HEADS)}")
    files = [word for word in arguments[:1] if not word.startswith("-")]
    check_there(*map(Path, filter(None, (*files, given.labels))))
