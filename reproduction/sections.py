"""Sections of the page, one for each kind of number: a figure of a few measures, a file of all of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from reproduction.claims import values
from reproduction.ledger import Record
from reproduction.measuring import CONDITIONS
from reproduction.plan import WHOLE, Cell, Plan, Task, rows_of, trained

__all__ = ["FOLDER", "LOWER_IS_BETTER", "SECTIONS", "Section", "file_of", "measured", "names_of"]

Records = Mapping[Cell, Record]

FOLDER = "reproduction"
"""Of figures and tables, beside the page."""
LOWER_IS_BETTER = ("eer", "ece", "brier", "class_ece", "self_mismatch.clean")
"""Beginnings of the names of numbers of which less is better."""


@dataclass(frozen=True)
class Section:
    """A kind of number."""

    about: str
    measures: Mapping[str, str]
    """By name, in the file."""
    drawn: tuple[str, ...]
    """Names of those in the figure; the first is sorted by."""
    tasks: tuple[Task, ...] = WHOLE


BASELINES = {"own": "own", "norm": "norm", "class probability": "class_probability", "random": "random"}

BEST = {
    "best by cosine": "best_cosine",
    "margin by cosine": "margin_cosine",
    "best by own score": "best_own",
    "margin by own score": "margin_own",
    "best by llr": "best_llr",
    "margin by llr": "margin_llr",
}
"""Confidences that need nothing learned: the best item's score, and its margin to the next."""

BRIEF = {
    "Recall@1": "recall_at_1.own",
    "MAP@R": "map_at_r.own",
    "severity, own": "numbers.severity.own",
    "AUROC, own": "numbers.r_auroc.own",
    "AUROC, best by cosine": "numbers.r_auroc.best_cosine",
    "mixed/mixed cosine": "recall_at_1.mixed/mixed cosine",
    "mixed/mixed llr calibrated": "recall_at_1.mixed/mixed llr calibrated",
}
"""Of the tasks that few rows are run on."""

SECTIONS: Mapping[str, Section] = {
    "Retrieval": Section(
        "The whole gallery ranked by each row's own score.",
        {"Recall@1": "recall_at_1.own", "MAP@R": "map_at_r.own"},
        ("Recall@1", "MAP@R"),
    ),
    "Scores": Section(
        "Recall@1 by several scores of the same embeddings, both sides mixed; the table has clean sides too. "
        "Calibration and prior are of validation classes.",
        {
            f"{queries}/{gallery} {score}": f"recall_at_1.{queries}/{gallery} {score}"
            for queries, gallery in CONDITIONS
            for score in ("cosine", "mls", "llr calibrated", "own")
        },
        ("mixed/mixed cosine", "mixed/mixed mls", "mixed/mixed llr calibrated"),
    ),
    "Verification": Section(
        "All pairs of one class and 100,000 of two, by each row's own score, by cosine and by calibrated `llr`.",
        {
            "AUC": "numbers.auc.own",
            "AUC, cosine": "numbers.auc.cosine",
            "TAR at FAR 0.1 %": "numbers.tar.own",
            "TAR, cosine": "numbers.tar.cosine",
        }
        | {
            f"EER{words}, {name}": f"numbers.eer{part}.{key}"
            for part, words in {"": "", "_seen": " seen", "_unseen": " unseen"}.items()
            for name, key in {"own": "own", "cosine": "cosine", "llr": "llr"}.items()
        },
        ("EER, own", "EER, cosine", "EER, llr"),
    ),
    "Confidence": Section(
        "AUROC of telling queries that are answered rightly from the others, by the learned confidence and by the "
        "best item's score. The table has the rank correlation with severity too (100 where "
        "confidence falls as severity grows).",
        {f"severity, {name}": f"numbers.severity.{key}" for name, key in BASELINES.items()}
        | {f"AUROC, {name}": f"numbers.r_auroc.{key}" for name, key in (BASELINES | BEST).items()},
        ("AUROC, own", "AUROC, best by cosine", "AUROC, best by llr"),
    ),
    "Seen and unseen corruption": Section(
        "The same AUROC among clean queries and those corrupted as training images were (seen), or by a kind that "
        "training never saw.",
        {
            f"{part}, {name}": f"numbers.r_auroc_{part}.{key}"
            for part in ("seen", "unseen")
            for name, key in {"own": "own", **BEST}.items()
        },
        ("seen, own", "unseen, own", "seen, best by cosine", "unseen, best by cosine"),
    ),
    "Rejection": Section(
        "Area under Recall@1 of the queries that are kept as the least sure are rejected. The table has the area "
        "under TAR at FAR 0.1 % as pairs are rejected (divided by its greatest, as published), and its gain over "
        "rejecting at random.",
        {
            "verification": "numbers.rejection.own",
            "at random": "numbers.rejection.random",
            "gain": "numbers.rejection_gain.own",
            **{f"retrieval, {name}": f"numbers.ausc.{key}" for name, key in (BASELINES | BEST).items()},
        },
        ("retrieval, own", "retrieval, best by cosine", "retrieval, best by llr"),
    ),
    "Calibration": Section(
        "Brier score of the probability that the first item is right, fitted to a confidence on queries of other "
        "classes; lower is better. The published forms of the ECE, in the table, do not tell a useful confidence from "
        "a useless one.",
        {
            "ECE, fitted": "numbers.ece_fitted.own",
            "Brier": "numbers.brier.own",
            "Brier, best by cosine": "numbers.brier.best_cosine",
            "Brier, random": "numbers.brier.random",
            "ECE, minmax": "numbers.ece_minmax.own",
            "ECE, ranks": "numbers.ece_rank.own",
            "class accuracy": "numbers.class_accuracy",
            "class ECE": "numbers.class_ece",
            "class ECE, scaled": "numbers.class_ece_scaled",
        },
        ("Brier", "Brier, best by cosine", "Brier, random"),
    ),
    "Errors": Section(
        "CEDA: how often a confidence tells rightly whether the query was answered, by a threshold of validation "
        "classes. Who says that all are right scores Recall@1.",
        {"Recall@1": "recall_at_1.own"}
        | {f"CEDA, {name}": f"numbers.ceda.{key}" for name, key in (BASELINES | BEST).items()},
        ("Recall@1", "CEDA, own", "CEDA, best by cosine"),
    ),
    "Hard numbers": Section(
        "Trained on digits 0 to 6, tested with 7, 8 or 9; settings as above.",
        BRIEF,
        ("Recall@1", "AUROC, own", "AUROC, best by cosine"),
        ("hard",),
    ),
    "Places": Section(
        "Photographs that training never saw; settings as above.",
        BRIEF,
        ("Recall@1", "AUROC, own", "AUROC, best by cosine"),
        ("places",),
    ),
    "HIB on its own task": Section(
        "Queries clean and with a rectangle over each digit, the gallery clean. The table has the rank correlation of "
        "each uncertainty and the occluded share of the image.",
        {
            f"{name}, {queries}": f"{key}.{queries}"
            for name, key in {
                "Recall@1": "recall_at_1",
                "MAP@R": "map_at_r",
                "self-mismatch": "numbers.self_mismatch",
            }.items()
            for queries in ("clean", "occluded")
        }
        | {
            f"{name}, {kind.replace('_', '-')}": f"numbers.{key}.{kind}"
            for name, key in {
                "occlusion": "occlusion",
                "occlusion of the occluded": "occlusion_occluded",
                "AUROC": "r_auroc",
                "AUROC of the occluded": "r_auroc_occluded",
            }.items()
            for kind in ("self_mismatch", "variance")
        }
        | {"AUROC, best match": "numbers.r_auroc.best"},
        ("Recall@1, clean", "Recall@1, occluded", "AUROC, self-mismatch", "AUROC, best match"),
        ("hib",),
    ),
}


def file_of(title: str, suffix: str) -> str:
    """The name of a section's figure or table."""
    return f"{title.lower().replace(' ', '-')}.{suffix}"


def names_of(plan: Plan, task: Task) -> Iterator[str]:
    """The rows of a task and their forms that are measured beside them, those with published defects aside."""
    if task == "hib":
        yield from (trained(task, "hib", 0, form).name for form in plan.hib.forms)
        return
    yield from rows_of(plan, task)
    if task in WHOLE:
        yield from (f"{row} (longer)" for row in plan.longer)


def measured(
    plan: Plan, records: Records, measures: Mapping[str, str], task: Task
) -> dict[tuple[str, str], dict[int, float]]:
    """Points of a hundred by split, of each row of a task and each measure that it has.

    Of the splits that all rows have: others are harder, or easier.
    """
    found = {}
    for row in names_of(plan, task):
        for name, measure in measures.items():
            by_split = values(records, row, measure, task)
            points = {split: 100 * float(x.mean()) for split, x in by_split.items() if split < plan.seeds.others}
            if points:
                found[row, name] = points
    return found
