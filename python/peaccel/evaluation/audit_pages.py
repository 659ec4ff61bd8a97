"""The audit of a gallery as sections of a report."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from peaccel._utils import report
from peaccel.evaluation.audit import REASONS, GalleryAudit
from peaccel.evaluation.formatting import number

__all__ = ["audit_sections"]

SHOWN = 48
"""Pictures and rows of the page; the table in the .csv file has all."""


def audit_sections(found: GalleryAudit, images: NDArray[Any] | None = None) -> list[report.Section]:
    """The gain, the items to look at, and their pictures where there are any.

    Parameters
    ----------
    found
        The audit.
    images
        [N, H, W], ink in [0, 1], of the items.
    """
    shown = sorted(found.items, key=lambda x: (-x.wrong_first, np.nan_to_num(x.probability, nan=2.0)))[:SHOWN]
    gains = [
        ("Recall@1 %", *map(str, (found.recall_before, found.recall_after, found.recall_gain))),
        ("EER %", str(found.error_before), str(found.error_after), ""),
    ]
    header = ("row", "class", "reasons", "resembles", "probability of its class", "wrong first")
    rows = [
        (str(x.row), x.label, ", ".join(x.reasons), x.resembles, number(x.probability), str(x.wrong_first))
        for x in shown
    ]
    sections = [
        report.Section(
            "The gain",
            f"Of {found.queries} kept items, searched among all others and among those that are kept, with intervals "
            "(95 %) over classes.",
            report.Table(("", "before", "after", "gain"), gains, 1),
        ),
        report.Section(
            "Items to look at",
            f"{len(found.items)} of {len(found.keep)} items, the first {len(shown)} of them, hubs first.",
            report.Table(header, rows, 4, {name: f"{text}." for name, text in REASONS.items()}),
        ),
    ]
    if images is not None and shown:
        captions = [f"{x.row}: {x.label}, {x.reasons[0]}" for x in shown]
        grid = report.image_grid(images[[x.row for x in shown]], captions)
        sections.append(report.Section("Pictures", "The same items, with their rows and classes.", grid))
    return sections
