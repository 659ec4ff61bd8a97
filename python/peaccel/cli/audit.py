"""Audit a labelled gallery: wrong labels, strangers, hubs and copies, and the gain if they go."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from peaccel import io, scores
from peaccel._utils import options
from peaccel.cli._fitted_files import with_prior
from peaccel.cli._labelled_files import read_images
from peaccel.cli._outputs import outputs, save_numbers
from peaccel.evaluation.audit import audit

__all__ = ["Audit", "main"]


@dataclass(frozen=True, kw_only=True)
class Audit:
    """The gallery and its labels, the score, and output."""

    embeddings: Path
    """Items of the gallery, a file as 'peaccel search' takes it."""
    labels: Path
    """Their labels, [N] numbers or strings: .npy, or .npz with the key labels, or a column: items.parquet:label."""
    out: Path
    """A folder that receives items.csv, the items to look at, audit.json and report.html; made if missing."""
    score: str = "cosine"
    """A name that 'peaccel scores' lists: the score of the searches."""
    prior: Path | None = None
    """The prior of score llr: the result of pe.fit_prior, as pe.io.write_fit writes it."""
    images: Path | None = None
    """Images of the items, [N, H, W] in an .npy file, 0 to 255 or in [0, 1]; the page shows some."""
    seed: int = 0
    """Seed of drawn pairs and of intervals."""


def main(arguments: Sequence[str]) -> None:
    """Carry out the command."""
    task = options.parse(Audit, "peaccel audit", __doc__, arguments)
    numbers, page, table = outputs(task.out, task, "audit.json", "report.html", "items.csv")
    d, labels = io.read_distribution(task.embeddings), io.read_labels(task.labels)
    (score,) = with_prior([scores.get(task.score)], task.prior)
    images = None if task.images is None else read_images(task.images, len(d))
    found = audit(d, labels, score, seed=task.seed)
    print(found)
    save_numbers(numbers, found, {table: True})
    found.write_csv(table)
    from peaccel._utils import report
    from peaccel.evaluation.audit_pages import audit_sections

    report.write(page, "Audit of a gallery", audit_sections(found, images), ["audit", *arguments])
    print(f"\n-> {table}, {page}")
