"""docs/reproduction.md: what to choose, whether claims hold, a figure of each kind of number, and what failed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np

from peaccel.methods.method import Schedule
from peaccel.train import recipe
from reproduction.claims import (
    FEWEST,
    Claim,
    Comparison,
    Decision,
    Verdicts,
    decided,
    differences,
    read_claims,
)
from reproduction.failures import failed, kept, rates
from reproduction.figures import figures, forest
from reproduction.hedging import PICTURE
from reproduction.ledger import Record
from reproduction.plan import TASKS, WHOLE, Cell, Plan, Task
from reproduction.search import called_different, called_different_by_draws, overlap, trials, variance_of_search
from reproduction.sections import FOLDER, LOWER_IS_BETTER, SECTIONS, file_of, measured
from reproduction.student import LEVEL, holm, where_mean
from reproduction.tables import ABOVE, claims_table, interval, pairs, power, tables

__all__ = ["files", "markdown", "plane_of"]

Records = Mapping[Cell, Record]


@dataclass(frozen=True)
class Purpose:
    """A measure by which a row and a score, or a confidence, are chosen."""

    name: str
    measures: Mapping[str, str]
    """By the score or the confidence."""


CONFIDENCES = {
    "learned confidence": "own",
    "best own score": "best_own",
    "best cosine": "best_cosine",
    "best llr": "best_llr",
}
PAIRS = {"own score": "own", "cosine": "cosine", "llr": "llr"}

PURPOSES = (
    Purpose("retrieve: Recall@1", {"own score": "recall_at_1.own"}),
    Purpose("know right answers: AUROC", {name: f"numbers.r_auroc.{key}" for name, key in CONFIDENCES.items()}),
    Purpose("refuse: area under Recall@1", {name: f"numbers.ausc.{key}" for name, key in CONFIDENCES.items()}),
    Purpose("verify: EER, less is better", {name: f"numbers.eer.{key}" for name, key in PAIRS.items()}),
    Purpose("verify: TAR at FAR 0.1 %", {name: f"numbers.tar.{key}" for name, key in PAIRS.items()}),
)

LOST = ("8cf9b8a", "7d41dbc")
"""Commits that trained and are in no history."""
STEADY = 4
"""Rows that are named by the worst of their settings."""
NAMED = 1
"""Rows that cannot be told from the first and are named."""
WORDS = {"not distinguishable": "open", "too few seeds": "too few splits"}
TURNS = "turns with the search"
OVERLAPS = "†"
"""After a verdict that Nadeau and Bengio's correction takes away."""
UNKNOWN = "°"
"""After a verdict of which common draws know too little."""


def markdown(plan: Plan, records: Records, of: int, lines: int) -> str:
    """The page; `of` cells there are, finished or not, and `lines` of the ledger, superseded ones too."""
    last = kept(records)
    blocks = [
        *_choice(plan, last, records),
        *_claims(plan, records),
        *_settings(plan, records),
        *_sections(plan, last),
        *_defects(),
        *_failures(records),
        *_limits(),
        *_run(records, of, lines),
    ]
    return "\n\n".join(blocks) + "\n"


def files(plan: Plan, records: Records) -> dict[str, str]:
    """The texts of all figures and tables, by their names in `FOLDER`."""
    last, by_task = kept(records), _decisions(plan, records)
    found = {**dict(tables(plan, last, records)), **dict(figures(plan, last, records))}
    found["claims.csv"] = claims_table(by_task)
    found["claims.svg"] = forest({task: verdicts.final for task, verdicts in by_task.items()})
    return found


def _decisions(plan: Plan, records: Records) -> dict[Task, Verdicts]:
    last, first, claims = kept(records), kept(records, retried=False), read_claims()
    by_draws = [replace(claim, comparisons=tuple(x.by_draws for x in claim.comparisons)) for claim in claims]
    return {
        task: Verdicts(
            final=decided(last, claims, task),
            without_retries=decided(first, claims, task),
            with_search=decided(last, claims, task, variance_of_search(plan, records, task)),
            with_overlap=decided(last, claims, task, overlap=overlap(plan, task)),
            by_draws=decided(last, by_draws, task),
        )
        for task in TASKS
        if any(task in claim.tasks for claim in claims)
    }


def _choice(plan: Plan, last: Records, records: Records) -> Iterator[str]:
    yield "## What to choose"
    yield (
        "A half of the images of both sides are corrupted. First is the best of all rows and scores, a best score "
        "being that of the item found, which needs nothing learned. The last column has those that cannot be told "
        "from it at 5 % (Holm). Both hold the chance of splits and, where common draws tell of it, of another search "
        "of settings. `llr` is calibrated."
    )
    lines = []
    for purpose in PURPOSES:
        lines += [_first(plan, last, records, task, purpose) for task in WHOLE]
    yield _table(("to", "images", "first", "by", "epochs", "found [95 %]", "not told from it"), lines)


def _first(plan: Plan, last: Records, records: Records, task: Task, purpose: Purpose) -> list[str]:
    """The row and score that came first by their means over common splits, and those that cannot be told from it."""
    sign = -1 if next(iter(purpose.measures.values())).removeprefix("numbers.").startswith(LOWER_IS_BETTER) else 1
    found = {key: x for key, x in measured(plan, last, purpose.measures, task).items() if len(x) >= FEWEST}
    if not found:
        return [purpose.name, task, "nothing yet", "", "", "", ""]

    def mean(key: tuple[str, str]) -> float:
        return sign * float(np.mean(list(found[key].values())))

    first = max(found, key=mean)
    variance = variance_of_search(plan, records, task)
    gaps = {}
    for (row, name), points in found.items():
        of = (purpose.measures[name], purpose.measures[first[1]])
        comparison = Comparison((row,), (first[0],), of)
        # A row whose own score is the cosine has one entry, and is not its own rival.
        if (row, name) != first and points != found[first]:
            gaps[row, name] = where_mean(differences(last, comparison, task), ABOVE, variance(comparison))
    p = holm(np.array([min(gap.inside, gap.beyond) for gap in gaps.values()]))
    equal = [key for key, x in zip(gaps, p.tolist(), strict=True) if not x < LEVEL]
    equal.sort(key=mean, reverse=True)
    named = [row if name == first[1] else f"{row} by {name}" for row, name in equal[:NAMED]]
    others = [f"{len(equal) - NAMED} more"] * (len(equal) > NAMED)
    alone = Comparison((first[0],), (), (purpose.measures[first[1]],))
    where = where_mean(list(found[first].values()), ABOVE, variance(alone))
    alike = ", ".join([*named, *others]) or "none"
    return [purpose.name, task, f"`{first[0]}`", first[1], str(_epochs(first[0])), interval(where, ""), alike]


def _epochs(row: str) -> int:
    """Epochs of all stages of a row together."""
    name, _, form = row.partition(" (")
    settings = recipe(name, "mnist")[1]
    schedules = (getattr(settings, field.name) for field in fields(settings))
    return 15 if form else sum(x.epochs for x in schedules if isinstance(x, Schedule))


def plane_of(records: Records) -> Record | None:
    """The items in the picture of HIB's own task: those of the first split that has them."""
    found = {cell.split: record["plane"] for cell, record in records.items() if not cell.form and "plane" in record}
    return found[min(found)] if found else None


def _claims(plan: Plan, records: Records) -> Iterator[str]:
    """A line for each claim."""
    yield "## Claims"
    by_task = _decisions(plan, records)
    by_claim = _words(by_task)
    yield _in_short(by_claim)
    yield (
        "**Open**: neither held nor reversed; of several comparisons, how many hold by themselves. In brackets the "
        "distance from a bound that these splits or draws see in four of five cases, and how many of them would see "
        f"the distance found. **Too few draws**: more than one of six failed. **{TURNS.capitalize()}**: decided over "
        "splits, but not with the search of settings as a source of chance, or not on that side by the mean of common "
        f"draws. {UNKNOWN}: no common draws to see it by. {OVERLAPS}: open for other scans, by Nadeau and Bengio's "
        "correction. Beside verdicts are differences of numbers / garments, which decide nothing. All are in "
        f"[claims.csv]({FOLDER}/claims.csv), what decides in [claims](claims.md)."
    )
    yield f"![Forest plot of all differences that claims are decided by]({FOLDER}/claims.svg)"
    lines, last = [], kept(records)
    for claim in read_claims():
        words = by_claim[claim.number]
        same = len(set(words.values())) == 1
        said = next(iter(words.values())) if same else "; ".join(f"{task} {word}" for task, word in words.items())
        lines.append([str(claim.number), claim.text, said, _remark(claim, last)])
    yield _table(("#", "claim", "verdict", "but"), lines)


def _words(by_task: Mapping[Task, Verdicts]) -> dict[int, dict[Task, str]]:
    """The verdicts of each claim's number, by task."""
    found: dict[int, dict[Task, str]] = {}
    for task, verdicts in by_task.items():
        for of in zip(verdicts.final, verdicts.with_search, verdicts.with_overlap, verdicts.by_draws, strict=True):
            word = _word(*of)
            seen = _seen(of[0], len(verdicts.final)) if word.startswith("open") else ""
            found.setdefault(of[0].claim.number, {})[task] = word + seen
    return found


def _seen(decision: Decision, claims: int) -> str:
    """The distance that is seen in four of five cases and the splits that see the one found, in points."""
    enough = decision.claim.enough or len(decision.comparisons)
    wheres = zip(decision.claim.comparisons, decision.comparisons, strict=True)
    seen, takes = np.array([power(x, c.between, claims) for c, x in wheres]).T
    return f" ({np.sort(seen)[enough - 1]:.1f}; {np.sort(takes)[enough - 1]:,.0f})"


def _in_short(by_claim: Mapping[int, Mapping[Task, str]]) -> str:
    """The numbers of claims that are decided, by verdict."""
    found = []
    for word in ("held", "reversed"):
        decided = {n: [said.startswith(word) for said in words.values()] for n, words in by_claim.items()}
        whole = [str(n) for n, of in sorted(decided.items()) if all(of)]
        half = [str(n) for n, of in sorted(decided.items()) if any(of) and not all(of)]
        found += [f"{', '.join(whole)} {word}"] * bool(whole)
        found += [f"{', '.join(half)} {word} on one of two data sets"] * bool(half)
    replaced = ", ".join(str(claim.number) for claim in read_claims() if claim.instead)
    found.append(f"{replaced} were replaced by what the table says")
    return (
        f"In short: {'; '.join(found)}. All others in this table are not decided. Of claim 30 see "
        "[novel inputs](kanji.md#novel-inputs)."
    )


def _word(decision: Decision, searched: Decision, overlapping: Decision, drawn: Decision) -> str:
    claim, word = decision.claim, WORDS.get(decision.verdict, decision.verdict)
    if claim.instead or word not in ("held", "reversed"):
        if word == "open" and len(decision.comparisons) > 1:
            word = f"open, {sum(x.inside < LEVEL for x in decision.comparisons)} of {len(decision.comparisons)}"
        few = decision.verdict == "too few seeds" and any(c.drawn for c in claim.comparisons)
        return claim.instead or ("too few draws" if few else word)
    wheres = zip(claim.comparisons, drawn.comparisons, strict=True)
    inside = [c.between[0] < x.value < c.between[1] for c, x in wheres if x.seeds >= FEWEST]
    n, enough = len(claim.comparisons), claim.enough or len(claim.comparisons)
    needed, agree = (enough, sum(inside)) if word == "held" else (n - enough + 1, len(inside) - sum(inside))
    if searched.verdict != decision.verdict or agree + n - len(inside) < needed:
        return TURNS
    return word + OVERLAPS * (overlapping.verdict != decision.verdict) + UNKNOWN * (agree < needed)


def _remark(claim: Claim, records: Records) -> str:
    """The remark with its differences, on each task, in points."""
    found = []
    for comparison in claim.other_forms:
        wheres = (where_mean(differences(records, comparison, task), ABOVE) for task in claim.tasks)
        known = [where for where in wheres if where.seeds >= FEWEST]
        if known:
            numbers = " / ".join(f"{where.value:{'+' if comparison.right else ''}.1f}" for where in known)
            found.append(f"{comparison.text} {numbers}")
    beside = ", ".join(found)
    if not claim.remark:
        return beside[:1].upper() + beside[1:]
    return ": ".join(filter(None, (claim.remark, beside)))


def _settings(plan: Plan, records: Records) -> Iterator[str]:
    found = {row: np.sort(x) for row in plan.rows["numbers"] if len(x := trials(plan, records, row)) > 1}
    yield "## Settings are a lottery"
    if not found:
        yield "No row has all of its trials yet."
        return
    recipe_to_best = np.median([found[row][-1] - trials(plan, records, row)[0] for row in found])
    best_to_second = np.median([x[-1] - x[-2] for x in found.values()])
    apart = _percent(called_different(plan, records, task) for task in WHOLE)
    yield (
        f"Each row has its recipe's settings and {plan.search.trials - 1} drawn for it alone. By MAP@R of validation "
        f"classes the best lies {recipe_to_best:.1f} points above the recipe (median over rows) and "
        f"{best_to_second:.1f} above the second best: more than most rows lie apart. At 5 % {apart} of pairs of equal "
        "rows would be called different in Recall@1 of numbers / garments. "
        f"By a row's worst come first {_steadiest({row: x[0] for row, x in found.items()})}. "
        f"[search.csv]({FOLDER}/search.csv)"
    )
    yield f"![MAP@R of each setting that was tried]({FOLDER}/search.svg)"
    every = list(pairs(plan, kept(records), records))
    known = [pair for pair in every if pair.drawn.seeds > 1]
    worst: dict[str, float] = {}
    for cell, record in records.items():
        if cell.form == "drawn" and cell.task == "numbers":
            worst[cell.row] = min(worst.get(cell.row, np.inf), 100 * record["validation"])
    if not known or not worst:
        return
    some = f" ({len(known)} of {len(every)} pairs have some)" if len(known) < len(every) else ""
    common = _percent(called_different_by_draws(records, task) for task in WHOLE)
    turned = sum(pair.chosen.value * pair.recipe < 0 for pair in known)
    yield (
        f"So trainings are compared by {plan.common.draws} draws of settings that are the same for both rows, each on "
        f"a split of its own{some}: the mean difference of Recall@1 with its 95 % interval. Of equal rows, either as "
        f"likely to be ahead by each draw, {common} of pairs would be called different. Beside it the difference at "
        "the settings chosen for each row alone, and of the recipes' validation MAP@R; between these two the sign "
        f"changes in {turned} of {len(known)}. By the worst of common draws come "
        f"first {_steadiest(worst)}. "
        f"[pairs.csv]({FOLDER}/pairs.csv)"
    )
    yield f"![Differences of pairs of rows by common draws, at chosen settings and at recipes]({FOLDER}/pairs.svg)"


def _percent(shares: Iterable[float]) -> str:
    """Such as "52 / 48 %", of what is known."""
    return f"{' / '.join(f'{100 * x:.0f}' for x in shares if not np.isnan(x)) or 'not known'} %"


def _steadiest(worst: Mapping[str, float]) -> str:
    """The rows that are the least bad, and the one that follows."""
    *first, following = sorted(worst, key=lambda row: -worst[row])[: STEADY + 1]
    return f"{', '.join(f'{row} {worst[row]:.1f}' for row in first)}, then {following} {worst[following]:.1f}"


def _sections(plan: Plan, records: Records) -> Iterator[str]:
    yield "## What was measured"
    yield (
        f"In points of a hundred, over the {plan.seeds.others} splits that all rows have: figures with 95 % intervals, "
        "the best row first; tables with the deviation, the median and the worst."
    )
    for title, section in SECTIONS.items():
        yield f"### {title}"
        yield f"{section.about} Table: [{file_of(title, 'csv')}]({FOLDER}/{file_of(title, 'csv')})."
        if any(cell.task in section.tasks for cell in records):
            yield f"![{title}]({FOLDER}/{file_of(title, 'svg')})"
        if "hib" in section.tasks and plane_of(records) is not None:
            yield f"![Numbers clean and occluded in the plane, ellipses of one standard deviation]({FOLDER}/{PICTURE})"


def _defects() -> Iterator[str]:
    yield "### Defects"
    yield (
        "Rows of `peaccel.published`, trained with their authors' defects, less the right ones: "
        f"[defects.csv]({FOLDER}/defects.csv)."
    )


def _failures(records: Records) -> Iterator[str]:
    yield "## What failed"
    trained, failures = 0, Counter[str]()
    for rate in rates(records):
        trained += rate.trained
        failures[rate.name] += rate.failed
    worst = "".join(f", {count} of them {name}" for name, count in failures.most_common(1) if count)
    yield (
        f"By the rule of [claims](claims.md), {failures.total()} of {trained} first trainings failed{worst}: "
        f"[failures.csv]({FOLDER}/failures.csv). {_searches(records)}The page of [kanji](kanji.md) and HIB's task have "
        "no such line."
    )


def _searches(records: Records) -> str:
    """How many trials of settings fell below the line of failures."""
    outcomes = [failed(records, cell) for cell in records if cell.trial is not None]
    known = [bad for bad in outcomes if bad is not None]
    return f"So did {sum(known)} of {len(known)} trials of settings. " if known else ""


def _limits() -> Iterator[str]:
    yield "## Where it does not carry"
    yield (
        "- **Other images, networks and sizes.** One small convolutional network, strips of 28 x 84 pixels, 600 "
        "training classes. Splits are drawn from one pool of scans: intervals say how other splits of it would come "
        "out, no more. On [real encoders](real-embeddings.md) centring and PLDA gain, heads next to nothing.\n"
        "- **Thousands of classes** (Revisited's first headline), **novel inputs** (claim 30): "
        "[a page apart](kanji.md).\n"
        "- **Not tried:** images found by text (ScaleFace's largest gain)."
    )


def _run(records: Records, of: int, lines: int) -> Iterator[str]:
    yield "## What was run"
    if not records:
        yield f"Nothing yet, of {of} trainings."
        return
    seconds = [record["seconds"] for record in records.values()]
    commits = Counter(str(record["commit"])[:7] for record in records.values())
    lost = sum(commits[name] for name in LOST)
    unknown = f"; {', '.join(LOST)}, of {lost} trainings of garments, are in no history" if lost else ""
    machines = dict.fromkeys(record["machine"] for record in records.values())
    tried = sum(cell.trial is not None for cell in records)
    retried = sum(cell.attempt for cell in records)
    yield (
        f"{len(records)} of {of} trainings, {tried} of them trials of settings and {retried} retries; "
        f"{sum(seconds) / 3600:.1f} hours of one thread, {np.median(seconds):.0f} s the median, {max(seconds):.0f} s "
        f"the longest. {lines - len(records)} of {lines} lines of the ledger are superseded by later ones. Commits "
        f"{', '.join(commits)}{unknown}. Machines: {'; '.join(machines)}."
    )


def _table(header: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    rows = [header, ["---"] * len(header), *lines]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)
