"""docs/reproduction.md: claims and tables as they came out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from reproduction.claims import (
    PUBLISHED,
    Comparison,
    Decision,
    by_claim,
    difference,
    interval,
    resampled,
    values,
)
from reproduction.ledger import Record
from reproduction.measuring import CONDITIONS
from reproduction.plan import Cell, Plan

__all__ = ["SECTIONS", "markdown"]

Records = Mapping[Cell, Record]


@dataclass(frozen=True)
class PageSection:
    """A table of the page: a line for each row that has one of its measures."""

    about: str
    measures: Mapping[str, str]
    """By column."""
    task: str = "numbers"


BASELINES = {"own": "own", "norm": "norm", "class probability": "class_probability", "random": "random"}

BRIEF = {
    "Recall@1": "recall_at_1.own",
    "MAP@R": "map_at_r.own",
    "severity, own": "numbers.severity.own",
    "AUROC, own": "numbers.r_auroc.own",
    "mixed/mixed cosine": "recall_at_1.mixed/mixed cosine",
    "mixed/mixed llr calibrated": "recall_at_1.mixed/mixed llr calibrated",
}
"""Of the tasks that few rows are run on."""

SECTIONS: Mapping[str, PageSection] = {
    "Retrieval": PageSection(
        "The whole gallery ranked by each row's own score, both sides mixed.",
        {"Recall@1": "recall_at_1.own", "MAP@R": "map_at_r.own"},
    ),
    "Scores": PageSection(
        "Recall@1 of scores of the same embeddings, queries/gallery. Calibration and prior are of validation classes.",
        {
            f"{queries}/{gallery} {score}": f"recall_at_1.{queries}/{gallery} {score}"
            for queries, gallery in CONDITIONS
            for score in ("cosine", "mls", "llr calibrated", "own")
        },
    ),
    "Verification": PageSection(
        "As many pairs of one class as of two, by each row's own score and by the cosine of its means; of the EER "
        "lower is better.",
        {
            "AUC": "numbers.auc.own",
            "AUC, cosine": "numbers.auc.cosine",
            "EER": "numbers.eer.own",
            "TAR at FAR 0.1 %": "numbers.tar.own",
            "TAR, cosine": "numbers.tar.cosine",
        },
    ),
    "Confidence": PageSection(
        "Rank correlation of confidence and severity (100 where confidence falls as severity grows), and AUROC of "
        "telling queries that are answered rightly from the others.",
        {f"severity, {name}": f"numbers.severity.{key}" for name, key in BASELINES.items()}
        | {f"AUROC, {name}": f"numbers.r_auroc.{key}" for name, key in BASELINES.items()},
    ),
    "Rejection": PageSection(
        "Area under TAR at FAR 0.1 % with up to half of the pairs rejected, as published (divided by its greatest), "
        "the uncertainties of a pair's items multiplied; area under Recall@1 of the queries that are kept.",
        {
            "verification": "numbers.rejection.own",
            "at random": "numbers.rejection.random",
            **{f"retrieval, {name}": f"numbers.ausc.{key}" for name, key in BASELINES.items()},
        },
    ),
    "Calibration": PageSection(
        "ECE of the first item's being right, as published (minmax, equal width) and by ranks (equal count). Neither "
        "tells a useful confidence from a useless one: at a Recall@1 of 60, ranks that know all answers have an ECE of "
        "26 and so have random ones. On images of training classes composed of scans never seen, accuracy and ECE of "
        "the class probability; of this ECE lower is better.",
        {
            "ECE, minmax": "numbers.ece_minmax.own",
            "ECE, ranks": "numbers.ece_rank.own",
            "class accuracy": "numbers.class_accuracy",
            "class ECE": "numbers.class_ece",
        },
    ),
    "Errors": PageSection(
        "CEDA: how often the confidence tells rightly whether the query was answered; its threshold is of validation "
        "classes. Who says that all are right scores Recall@1.",
        {"Recall@1": "recall_at_1.own"} | {f"CEDA, {name}": f"numbers.ceda.{key}" for name, key in BASELINES.items()},
    ),
    "Hard numbers": PageSection(
        "Trained on numbers of the digits 0 to 6, tested on numbers with a 7, 8 or 9; settings as above.",
        BRIEF,
        "hard",
    ),
    "Places": PageSection(
        "Patches of photographs that training never saw; right is what was seen near by. Settings as of the numbers.",
        BRIEF,
        "places",
    ),
}


def markdown(plan: Plan, records: Records, of: int, decisions: Sequence[Decision]) -> str:
    """The claims and all tables; `of` cells there are, finished or not."""
    blocks = [*_head(records, of), *_claims(decisions), *_sections(plan, records), *_defects(plan, records)]
    return "\n\n".join(blocks) + "\n"


def _head(records: Records, of: int) -> Iterator[str]:
    yield "## What was run"
    if not records:
        yield f"Nothing yet, of {of} trainings."
        return
    seconds = [record["seconds"] for record in records.values()]
    commits = dict.fromkeys(str(record["commit"])[:7] for record in records.values())
    machines = dict.fromkeys(record["machine"] for record in records.values())
    trials = sum(cell.trial is not None for cell in records)
    yield (
        f"{len(records)} of {of} trainings, {trials} of them trials of settings; {sum(seconds) / 3600:.1f} hours of "
        f"one thread, {np.median(seconds):.0f} s the median, {max(seconds):.0f} s the longest. Commits "
        f"{', '.join(commits)}. Machines: {'; '.join(machines)}. All numbers are in points of a hundred, means and "
        f"standard deviations over seeds."
    )


def _claims(decisions: Sequence[Decision]) -> Iterator[str]:
    yield "## Claims"
    lines = []
    for claim, verdict, own in by_claim(decisions):
        lines.append((str(claim.number), f"{claim.text}: **{verdict}**", "", "", "", "", ""))
        for decision in own:
            found = (
                (_interval(decision.value, decision.low, decision.high), _p(decision.p), decision.verdict)
                if decision.seeds
                else ("", "", "")
            )
            claimed = " .. ".join(f"{x:g}" for x in decision.comparison.between)
            lines.append(("", f"{decision.comparison}", claimed, str(decision.seeds), *found))
    yield _table(("claim", "difference", "claimed", "seeds", "found [95 %]", "p", "verdict"), lines)


def _sections(plan: Plan, records: Records) -> Iterator[str]:
    for title, section in SECTIONS.items():
        yield f"## {title}"
        rows = plan.rows[section.task]
        seeds = _common(records, section.task, rows)
        yield f"{section.about} Seeds that all rows have: {len(seeds)}."
        cells = {
            (row, column): _spread(
                [x.mean() for seed, x in values(records, row, measure, section.task).items() if seed in seeds]
            )
            for row in rows
            for column, measure in section.measures.items()
        }
        # Where columns are many and rows few, as of scores, the table lies on its side.
        known = [row for row in rows if any(cells[row, column] for column in section.measures)]
        columns = [column for column in section.measures if any(cells[row, column] for row in known)]
        if not known:
            yield "Not run."
        elif len(columns) > 2 * len(known):
            yield _table(("", *known), [(column, *(cells[row, column] for row in known)) for column in columns])
        else:
            yield _table(("row", *columns), [(row, *(cells[row, column] for column in columns)) for row in known])


def _defects(plan: Plan, records: Records) -> Iterator[str]:
    yield "## Defects"
    yield (
        'Rows with `variant="published"`, trained on the classes of one batch alone (arcface), or by the published '
        "samplers of directions (vmf_loss; dul_cls_vmf, which has both defects), less the right ones: same settings, "
        "seeds and classes; intervals are of 95 %, not corrected."
    )
    lines = []
    for row in plan.published:
        cells = [row]
        for measure in ("recall_at_1.own", "map_at_r.own", "numbers.severity.own", "numbers.r_auroc.own"):
            by_seed = difference(records, Comparison((row + PUBLISHED,), (row,), (measure,), (0, 0)))
            if len(by_seed) < 2:
                cells.append("")
                continue
            cells.append(_interval(*interval(by_seed, resampled(by_seed))))
        lines.append(tuple(cells))
    yield _table(("row", "Recall@1", "MAP@R", "severity, own", "AUROC, own"), lines)


def _common(records: Records, task: str, rows: Sequence[str]) -> set[int]:
    """Seeds whose numbers all of the rows have."""
    of_rows = [
        {cell.seed for cell in records if (cell.task, cell.row, cell.trial, cell.published) == (task, row, None, False)}
        for row in rows
    ]
    return set.intersection(*of_rows)


def _spread(means: Sequence[float]) -> str:
    if not means:
        return ""
    x = 100 * np.array(means)
    return f"{x.mean():.1f} ± {x.std(ddof=1):.1f}" if len(x) > 1 else f"{x[0]:.1f}"


def _interval(value: float, low: float, high: float) -> str:
    return f"{value:+.1f} [{low:+.1f}, {high:+.1f}]"


def _p(p: float) -> str:
    if np.isnan(p):
        return ""
    return f"{p:.3f}" if p >= 0.001 else "< 0.001"


def _table(header: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    rows = [header, ["---"] * len(header), *lines]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)
