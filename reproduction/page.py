"""docs/reproduction.md: what to take, whether claims hold, all tables, and what failed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from reproduction.claims import FEWEST, Comparison, Decision, decided, differences, read_claims, values
from reproduction.failures import kept, rates
from reproduction.hedging import PICTURE
from reproduction.ledger import Record
from reproduction.measuring import CONDITIONS
from reproduction.plan import TASKS, WHOLE, Cell, Plan, Task, rows_of, trained
from reproduction.student import LEVEL, WhereMean, holm, where_mean

__all__ = ["SECTIONS", "markdown", "plane_of"]

Records = Mapping[Cell, Record]

ABOVE = (0.0, float("inf"))
LOWER_IS_BETTER = ("eer", "ece", "brier", "class_ece", "self_mismatch.clean")
"""Beginnings of the names of numbers of which less is better."""


@dataclass(frozen=True)
class PageSection:
    """A table of the page: a line for each row that has one of its measures."""

    about: str
    measures: Mapping[str, str]
    """By column."""
    tasks: tuple[Task, ...] = WHOLE
    picture: str = ""
    """A file beside the page, which a split's results draw."""


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
        "All pairs of one class and 100,000 of two, by each row's own score, by the cosine of its means, and of pfe by "
        "calibrated llr; of the EER lower is better. Seen: pairs without items that are corrupted as none in training "
        "was; unseen: pairs of clean items and of items that are so corrupted.",
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
    ),
    "Confidence": PageSection(
        "Rank correlation of confidence and severity (100 where confidence falls as severity grows), and AUROC of "
        "telling queries that are answered rightly from the others. Beside what is learned stand the score of the best "
        "item and its margin to the next one's, which cost nothing.",
        {f"severity, {name}": f"numbers.severity.{key}" for name, key in BASELINES.items()}
        | {f"AUROC, {name}": f"numbers.r_auroc.{key}" for name, key in (BASELINES | BEST).items()},
    ),
    "Seen and unseen corruption": PageSection(
        "The same AUROC among clean queries and those corrupted as training images were, and among clean queries and "
        "those corrupted by a kind that training never saw.",
        {
            f"{part}, {name}": f"numbers.r_auroc_{part}.{key}"
            for part in ("seen", "unseen")
            for name, key in {"own": "own", **BEST}.items()
        },
    ),
    "Rejection": PageSection(
        "Area under TAR at FAR 0.1 % with up to half of the pairs rejected, as published (divided by its greatest), "
        "the uncertainties of a pair's items multiplied, and what that gains over rejecting at random; area under "
        "Recall@1 of the queries that are kept.",
        {
            "verification": "numbers.rejection.own",
            "at random": "numbers.rejection.random",
            "gain": "numbers.rejection_gain.own",
            **{f"retrieval, {name}": f"numbers.ausc.{key}" for name, key in (BASELINES | BEST).items()},
        },
    ),
    "Calibration": PageSection(
        "ECE and Brier score of the probability that the first item is right, which is fitted to the confidence on "
        "queries of other classes; of both lower is better. ECE as published (minmax, equal width) and by ranks (equal "
        "count): neither tells a useful confidence from a useless one, since at a Recall@1 of 60 ranks that know all "
        "answers have 26 and so have random ones. On images of training classes composed of scans never seen, accuracy "
        "and ECE of the class probability, as it is and after temperature scaling on other such images.",
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
    ),
    "Errors": PageSection(
        "CEDA: how often the confidence tells rightly whether the query was answered; its threshold is of validation "
        "classes. Who says that all are right scores Recall@1.",
        {"Recall@1": "recall_at_1.own"}
        | {f"CEDA, {name}": f"numbers.ceda.{key}" for name, key in (BASELINES | BEST).items()},
    ),
    "Hard numbers": PageSection(
        "Trained on numbers of the digits 0 to 6, tested on numbers with a 7, 8 or 9; settings as above.",
        BRIEF,
        ("hard",),
    ),
    "Places": PageSection(
        "Patches of photographs that training never saw; right is what was seen near by. Settings as of the numbers.",
        BRIEF,
        ("places",),
    ),
    "HIB on its own task": PageSection(
        "Numbers of two digits, embeddings of two and three dimensions with diagonal variances; queries clean and with "
        "a rectangle over each digit, the gallery clean. Points are trained by the same loss without variances. "
        "Recall@1 and MAP@R by the match probability; the mean self-mismatch; rank correlation of each uncertainty and "
        "the occluded share of the image, over all queries and over the occluded ones alone; AUROC of telling queries "
        "that are answered rightly from the others, by each uncertainty and by the best item's match probability.",
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
        ("hib",),
        PICTURE,
    ),
}


def markdown(plan: Plan, records: Records, of: int) -> str:
    """What to take, the claims, all tables and what failed; `of` cells there are, finished or not."""
    last, first = kept(records), kept(records, retried=False)
    claims = read_claims()
    claimed = [task for task in TASKS if any(task in claim.tasks for claim in claims)]
    by_task = {task: (decided(last, claims, task), decided(first, claims, task)) for task in claimed}
    blocks = [
        *_choice(plan, last),
        *_claims(by_task),
        *_sections(plan, last),
        *_defects(plan, last),
        *_failures(records),
        *_run(records, of),
    ]
    return "\n\n".join(blocks) + "\n"


def _choice(plan: Plan, records: Records) -> Iterator[str]:
    yield "## Which method to take"
    yield (
        "Both sides corrupted. In brackets: 95 % intervals over splits, by Student's t. What stands first does so "
        "partly by luck; a row is said to be as good as can be told where its difference from the first, over the "
        "splits that both have, is not distinguishable at 5 % (corrected by Holm over the rows)."
    )
    auroc = "numbers.r_auroc"
    beside = {"best by cosine": f"{auroc}.best_cosine", "best by own score": f"{auroc}.best_own"}
    for what, measure, others in (
        ("For retrieval", "recall_at_1.own", {}),
        ("For confidence, the AUROC of telling which queries are answered rightly", f"{auroc}.own", beside),
    ):
        for task in WHOLE:
            yield from _first(plan, records, task, f"{what}, on {task}", measure, others)


def _first(plan: Plan, records: Records, task: Task, what: str, title: str, beside: Mapping[str, str]) -> Iterator[str]:
    """A sentence of the row that came first and of those as good, and the table of all, by their means."""
    found = {row: where_mean(_points(records, row, title, task), ABOVE) for row in rows_of(plan, task)}
    order = sorted((row for row in found if found[row].seeds >= FEWEST), key=lambda row: -found[row].value)
    if not order:
        yield f"{what}: nothing yet, of {FEWEST} splits."
        return
    first = order[0]

    def less(row: str, measure: str, other: str) -> WhereMean:
        return where_mean(differences(records, Comparison((row,), (other,), (title, measure), ABOVE), task), ABOVE)

    gaps = {row: less(row, title, first) for row in order[1:]}
    p = holm(np.array([min(gap.inside, gap.beyond) for gap in gaps.values()]))
    equal = [row for row, x in zip(gaps, p.tolist(), strict=True) if not x < LEVEL]
    said = f"as good as can be told: {', '.join(equal)}" if equal else "all others are below it"
    yield f"{what}, **{first}** comes first with {_interval(found[first])}; {said}."
    lines = []
    for row in order:
        cells = [row, str(found[row].seeds), _interval(found[row])]
        cells.append("" if row == first else _interval(gaps[row], signed=True))
        for measure in beside.values():
            gain = less(row, measure, row)
            cells.append(_interval(gain, signed=True) if gain.seeds >= FEWEST else "")
        lines.append(cells)
    yield _table(("row", "splits", "found", f"less {first}", *(f"less its {name}" for name in beside)), lines)


def plane_of(records: Records) -> Record | None:
    """What the picture of HIB's own task shows: items of the first split that has them."""
    found = {cell.split: record["plane"] for cell, record in records.items() if not cell.form and "plane" in record}
    return found[min(found)] if found else None


def _points(records: Records, row: str, measure: str, task: Task) -> list[float]:
    """A measure of a row in points of a hundred, of each split."""
    return [100 * float(x.mean()) for x in values(records, row, measure, task).values()]


def _claims(by_task: Mapping[Task, tuple[Sequence[Decision], Sequence[Decision]]]) -> Iterator[str]:
    """Verdicts on each task, with retries and without."""
    yield "## Claims"
    yield (
        "By Student's t over splits. p of a claim is corrected by Holm over the claims that were tested on the task, p "
        "of a difference is not; intervals are of 95 %. The last column has the same without retries of trainings that "
        "failed. Splits are drawn from one pool of scans, and seeds say nothing beyond splits of this pool: not what "
        "other images, networks or sizes would give."
    )
    lines = []
    for claim in read_claims():
        own = {task: x for task, (with_retries, _) in by_task.items() for x in with_retries if x.claim == claim}
        said = [_said(own[task]) if task in own else "" for task in by_task]
        known = {decision.verdict for decision in own.values() if not np.isnan(decision.p)}
        lines.append([str(claim.number), claim.text, *said, "yes" if len(known) > 1 else ""])
    yield _table(("claim", "", *(f"on {task}" for task in by_task), "differ"), lines)
    for task, (with_retries, without) in by_task.items():
        tested = sum(not np.isnan(decision.p) for decision in with_retries)
        yield f"### On {task}: {tested} claims tested"
        yield _comparisons(with_retries, without)


def _comparisons(decisions: Sequence[Decision], first: Sequence[Decision]) -> str:
    """The table of all differences that claims are decided by."""
    lines = []
    for decision, without in zip(decisions, first, strict=True):
        claim, p = decision.claim, _p(decision.p)
        lines.append(
            [str(claim.number), f"{claim.text}: **{decision.verdict}**", *[""] * 3, p, *map(_said, (decision, without))]
        )
        for comparison, where, other in zip(claim.comparisons, decision.comparisons, without.comparisons, strict=True):
            claimed = " .. ".join(f"{x:g}" for x in comparison.between)
            found = ["", "", "", ""]
            if where.seeds >= FEWEST:
                found = [_interval(where, signed=True), _p(min(where.inside, where.beyond)), _side(where), "same"]
            if where.seeds >= FEWEST and other != where:
                found[3] = _interval(other, signed=True)
            lines.append(["", str(comparison), claimed, str(where.seeds), *found])
    header = ("claim", "difference", "claimed", "splits", "found [95 %]", "p", "verdict", "without retries")
    return _table(header, lines)


def _said(decision: Decision) -> str:
    """The verdict, and what it would have been if nothing else had been tested."""
    if decision.verdict != "not distinguishable" or decision.before == decision.verdict:
        return decision.verdict
    side = "inside" if decision.before == "held" else "beyond"
    return f"not distinguishable ({side} the bound before correction)"


def _side(where: WhereMean) -> str:
    """On which side of its bound a difference lies by itself."""
    if min(where.inside, where.beyond) >= LEVEL:
        return "not distinguishable"
    return f"{'inside' if where.inside <= where.beyond else 'beyond'} the bound before correction"


def _sections(plan: Plan, records: Records) -> Iterator[str]:
    for title, section in SECTIONS.items():
        yield f"## {title}"
        yield section.about
        for task in section.tasks:
            yield from _measures(plan, records, section, task)
        if section.picture and plane_of(records) is not None:
            yield f"![Numbers clean and occluded in the plane]({section.picture})"
            yield (
                "The same test images of ten numbers, clean and occluded, of the first split in two dimensions: "
                "ellipses of one standard deviation."
            )


def _measures(plan: Plan, records: Records, section: PageSection, task: Task) -> Iterator[str]:
    """A section's table of one task."""
    names = [*rows_of(plan, task)]
    if task in WHOLE:
        names += [f"{row} (longer)" for row in plan.longer]
    elif task == "hib":
        names = [trained(task, "hib", 0, form).name for form in plan.hib.forms]
    found = {
        (row, column): _points(records, row, measure, task)
        for row in names
        for column, measure in section.measures.items()
    }
    cells = {key: _spread(points, section.measures[key[1]]) for key, points in found.items()}
    # Where columns are many and rows few, as of scores, the table lies on its side.
    known = [row for row in names if any(cells[row, column] for column in section.measures)]
    columns = [column for column in section.measures if any(cells[row, column] for row in known)]
    splits = sorted({len(points) for points in found.values() if points})
    if not known:
        yield f"On {task}: not run."
        return
    yield f"On {task}, splits of a row: {' to '.join(map(str, dict.fromkeys(splits[:1] + splits[-1:])))}."
    if len(columns) > 2 * len(known):
        yield _table(("", *known), [(column, *(cells[row, column] for row in known)) for column in columns])
    else:
        yield _table(("row", *columns), [(row, *(cells[row, column] for column in columns)) for row in known])


def _defects(plan: Plan, records: Records) -> Iterator[str]:
    yield "## Defects"
    yield (
        "Rows by the methods of `peaccel.published`, trained on the classes of one batch alone (arcface), or by the "
        "published samplers of directions (vmf_loss; dul_cls_vmf, which has both defects), less the right ones: same "
        "settings and splits; intervals are of 95 %, by Student's t, not corrected."
    )
    for task in WHOLE:
        lines = []
        for row in plan.published:
            cells = [row]
            for measure in ("recall_at_1.own", "map_at_r.own", "numbers.severity.own", "numbers.r_auroc.own"):
                gaps = differences(records, Comparison((f"{row} (published)",), (row,), (measure,), ABOVE), task)
                cells.append(_interval(where_mean(gaps, ABOVE), signed=True) if len(gaps) >= 2 else "")
            lines.append(tuple(cells))
        yield f"On {task}:"
        yield _table(("row", "Recall@1", "MAP@R", "severity, own", "AUROC, own"), lines)


def _failures(records: Records) -> Iterator[str]:
    yield "## What failed"
    yield (
        "A training has failed if its MAP@R of validation classes is below half of the median of cosface's trainings "
        "on the same split; no test class is looked at. It is retried once, from an initialisation fixed beforehand, "
        "and that result stays. The share that fails is of first attempts; its interval is exact (Clopper and "
        "Pearson), each end by itself at 95 %."
    )
    lines = [
        [
            rate.task,
            rate.name,
            f"{rate.failed} of {rate.trained}",
            f"{100 * rate.failed / rate.trained:.1f} [{100 * rate.low:.1f}, {100 * rate.high:.1f}]",
            str(rate.not_finite or ""),
            f"{rate.failed_again} of {rate.retried}" if rate.retried else "",
        ]
        for rate in rates(records)
    ]
    header = ("task", "row", "failed", "share % [exact]", "loss not finite", "failed again")
    yield _table(header, lines) if lines else "Nothing that could be told."


def _run(records: Records, of: int) -> Iterator[str]:
    yield "## What was run"
    if not records:
        yield f"Nothing yet, of {of} trainings."
        return
    seconds = [record["seconds"] for record in records.values()]
    commits = dict.fromkeys(str(record["commit"])[:7] for record in records.values())
    machines = dict.fromkeys(record["machine"] for record in records.values())
    trials = sum(cell.trial is not None for cell in records)
    retried = sum(cell.attempt for cell in records)
    yield (
        f"{len(records)} of {of} trainings, {trials} of them trials of settings and {retried} retries; "
        f"{sum(seconds) / 3600:.1f} hours of one thread, {np.median(seconds):.0f} s the median, {max(seconds):.0f} s "
        f"the longest. Commits {', '.join(commits)}. Machines: {'; '.join(machines)}. All numbers are in points of a "
        f"hundred; in tables the mean and the standard deviation over all splits, retries in place of what failed, "
        f"and in brackets the median and the worst split."
    )


def _spread(points: Sequence[float], measure: str) -> str:
    """Mean, deviation, median and the worst split."""
    if not points:
        return ""
    lower = measure.removeprefix("numbers.").startswith(LOWER_IS_BETTER)
    x = np.array(points)
    spread = f"{x.mean():.1f} ± {x.std(ddof=1):.1f}" if len(x) > 1 else f"{x[0]:.1f}"
    return f"{spread} ({np.median(x):.1f}, {x.max() if lower else x.min():.1f})"


def _interval(where: WhereMean, signed: bool = False) -> str:
    sign = "+" if signed else ""
    return f"{where.value:{sign}.1f} [{where.low:{sign}.1f}, {where.high:{sign}.1f}]"


def _p(p: float) -> str:
    if np.isnan(p):
        return ""
    return f"{p:.3f}" if p >= 0.001 else "< 0.001"


def _table(header: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    rows = [header, ["---"] * len(header), *lines]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)
