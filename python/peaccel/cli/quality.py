"""Rate the quality of items from 0 to 100, by the quantiles of a reference set."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from peaccel import io
from peaccel._utils import options
from peaccel._utils.arrays import on_host
from peaccel.cli._fitted_files import read_fit
from peaccel.cli._outputs import outputs, write_columns
from peaccel.distributions.confidence import confidence
from peaccel.fits.fit_quality import fit_quality
from peaccel.fits.records import Quality

__all__ = ["RateQuality", "main"]


@dataclass(frozen=True, kw_only=True)
class RateQuality:
    """Items, the reference set, and output."""

    embeddings: Path
    """The items to rate, a file as 'peaccel search' takes it."""
    reference: Path
    """The reference set: at least 100 items of the same model, or the quality.json of an earlier run."""
    out: Path
    """A folder that receives quality.csv, the quality of each row, and quality.json, the scale; made if missing."""
    kind: Literal["neg_log_var", "neg_entropy", "log_kappa", "kappa", "scale", "norm"] | None = None
    """The confidence, as of pe.confidence; by default that of the kind of items."""


def main(arguments: Sequence[str]) -> None:
    """Carry out the command."""
    task = options.parse(RateQuality, "peaccel quality", __doc__, arguments)
    table, kept = outputs(task.out, task, "quality.csv", "quality.json")
    if task.reference.suffix == ".json":
        scale = read_fit(task.reference, Quality)
    else:
        scale = fit_quality(confidence(io.read_distribution(task.reference), task.kind))
    found = scale(on_host(confidence(io.read_distribution(task.embeddings), task.kind)))
    write_columns(table, {"row": np.arange(len(found)), "quality": found})
    io.write_fit(kept, scale)
    low, middle, high = np.percentile(found, [10, 50, 90]).round().astype(int) if len(found) else (0, 0, 0)
    print(f"{len(found)} items, quality {middle} in the middle, {low} to {high} for 80 % of them -> {table}")
