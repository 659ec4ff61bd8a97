"""The plan: rows of the papers' table on four tasks, and HIB on its own.

Each training is known by its name and its settings' hash.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cache
from operator import attrgetter
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
import optuna

from peaccel.data.digits import DigitsSettings
from peaccel.methods.method import AtLeast1, Method, NonNegative, Positive, Schedule
from peaccel.published import PREFIX
from peaccel.train import recipe
from peaccel.train.backbones import small_cnn
from peaccel.train.recipes import ranges
from reproduction import photographs
from reproduction.files import merged, read_toml
from reproduction.photographs import PlacesSettings

__all__ = [
    "REFERENCE",
    "TASKS",
    "WHOLE",
    "Cell",
    "Form",
    "Plan",
    "cells",
    "changes",
    "changes_on",
    "common_changes",
    "read_plan",
    "resolved",
    "rows_of",
    "task_settings",
    "trained",
    "tried",
    "variation",
]

Task = Literal["numbers", "garments", "hard", "places", "hib"]
TASKS: tuple[Task, ...] = ("numbers", "garments", "hard", "places", "hib")
WHOLE: tuple[Task, ...] = ("numbers", "garments")
"""The tasks with all rows and forms, on each of which claims are decided but for those of HIB's own."""

Form = Literal[
    "", "published", "longer", "drawn", "drawn, longer", "reference", "3 dimensions", "point", "point, 3 dimensions"
]
"""Of a row: as its recipe is, with published defects, trained longer, with settings drawn alike for all rows, or for
the line below which others failed; of HIB on its own task, in two dimensions or three, with variances or without."""

REFERENCE = "cosface"
"""The row whose validation says below what others have failed: its margin is constant, and it never did."""

TRIAL_SPLIT = 1000
"""Seed of the first split on which settings are tried: none of those of final numbers."""
APART = 100
"""Between seeds of a split and those of the initialisations that are trained on it."""


@dataclass(frozen=True)
class Variation:
    """In what a form of a row differs from the recipe."""

    as_published: bool = False
    """Train by the method of `peaccel.published`."""
    one_batch: bool = False
    """Train on the classes of the first batch alone."""
    blended_draws: bool = False
    """Draw directions as the published samplers do."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Over those of the recipe."""


@dataclass(frozen=True)
class Seeds:
    """How many splits final numbers are of."""

    primary: AtLeast1
    """Of the rows of primary comparisons."""
    others: AtLeast1


@dataclass(frozen=True)
class Search:
    """How settings are searched, on `numbers` alone."""

    trials: AtLeast1
    """Settings that are tried for each row, the first of which are its recipe's own."""
    splits: AtLeast1
    """On each of which every trial is trained."""
    within: Annotated[float, msgspec.Meta(gt=1)]
    """Settings whose range is one of logarithms are drawn within this factor of the recipe's."""


@dataclass(frozen=True)
class Common:
    """Draws of settings that are the same for all rows, on the tasks of `WHOLE`."""

    draws: AtLeast1
    """Each of which is trained on a split of its number."""
    rows: tuple[str, ...]
    longer: tuple[str, ...]
    """Rows that are trained as `Plan.longer` says."""


@dataclass(frozen=True)
class Hedging:
    """HIB on its own task."""

    numbers: DigitsSettings
    """Its images, see `reproduction.occlusion`."""
    kl: tuple[NonNegative, ...]
    """Weights of the divergence from the prior that are tried beside that of `settings`, in two dimensions."""
    settings: Mapping[str, Any]
    """Over those of the recipe."""
    forms: Mapping[Form, Mapping[str, Any]]
    """Over these and the weight that was chosen."""


@dataclass(frozen=True)
class Plan:
    """plan.toml."""

    search: Search
    seeds: Seeds
    common: Common
    references: AtLeast1
    """Trainings of `REFERENCE` on each split beside its own, from other initialisations."""
    batch_share: Positive
    """Of the recipes' classes in a batch."""
    trained_kinds: tuple[str, ...]
    """Kinds of corruption in training and validation."""
    numbers: DigitsSettings
    hard: DigitsSettings
    places: PlacesSettings
    hib: Hedging
    rows: Mapping[str, tuple[str, ...]]
    """By task; `garments` has those of `numbers`, and its sizes."""
    primary: tuple[str, ...]
    """Names of the rows and forms, on the tasks of `WHOLE`, that the primary claims compare."""
    published: Mapping[str, Variation]
    """By row, on the tasks of `WHOLE`."""
    longer: Mapping[str, Variation]
    """By row, on the tasks of `WHOLE`: trained as long as another row that they are compared with."""
    quick: Mapping[str, Any] = field(default_factory=dict)

    def trials(self, task: Task) -> int:
        """How many settings are tried for each row of a search."""
        return 1 + len(self.hib.kl) if task == "hib" else self.search.trials


@dataclass(frozen=True)
class Cell:
    """One training: a trial of settings, or a row's numbers of one split."""

    task: Task
    row: str
    form: Form
    trial: int | None
    """Of a search; None of final numbers."""
    split: int
    """Seed of the split into training, validation and test, and of their images."""
    initialisation: int
    """Seed of the weights, of the batches and of all draws in training."""
    attempt: int = 0
    """1 of the retry of a training that failed."""

    def __str__(self) -> str:
        """Such as "numbers pfe, split 3"."""
        which = f"split {self.split}" if self.trial is None else f"trial {self.trial}, split {self.split}"
        if self.form == "reference":
            which += f", initialisation {self.initialisation}"
        return f"{self.task} {self.name}, {which}{', retry' if self.attempt else ''}"

    @property
    def name(self) -> str:
        """The row with its form, as claims and tables name it: such as "pfe (published)"."""
        return f"{self.row} ({self.form})" if self.form else self.row

    @property
    def drawn(self) -> bool:
        """Whether its settings are a common draw, that of its split's number."""
        return self.form.startswith("drawn")

    @property
    def searches(self) -> bool:
        """Whether it is of the search: a trial, or a reference on a split of trials."""
        return self.split >= TRIAL_SPLIT

    @property
    def measured(self) -> bool:
        """Whether numbers are taken of it beside its validation."""
        return self.trial is None and self.form != "reference"


def trained(task: Task, row: str, split: int, form: Form = "", attempt: int = 0, number: int = 0) -> Cell:
    """The cell of final numbers, whose initialisation is fixed by its split, attempt and, of references, number.

    All rows of a split start from the same seed, so that those that share a stage share what it learned.
    """
    return Cell(
        task, row, form, None, split, split + APART * (1 + attempt + (2 + number) * (form == "reference")), attempt
    )


def tried(row: str, trial: int, number: int, task: Task = "numbers") -> Cell:
    """The cell of a trial on one of the splits of the search."""
    split = TRIAL_SPLIT + number
    return Cell(task, row, "", trial, split, split + APART)


@cache
def read_plan(quick: bool = False) -> Plan:
    """The plan; `quick` shrinks it to minutes."""
    values = read_toml("plan.toml")
    return msgspec.convert(merged(values, values["quick"] if quick else {}), Plan)


def cells(plan: Plan) -> Iterator[Cell]:
    """All cells but retries, in the order in which they are run: the search, then split after split.

    So any part of it is even.
    """
    for number in range(plan.search.splits):
        yield from (
            trained("numbers", REFERENCE, TRIAL_SPLIT + number, "reference", number=i) for i in range(plan.references)
        )
        for trial in range(plan.search.trials):
            yield from (tried(row, trial, number) for row in plan.rows["numbers"])
        yield from (tried("hib", trial, number, "hib") for trial in range(plan.trials("hib")))
    for task in WHOLE:
        for draw in range(plan.common.draws):
            yield from (trained(task, row, draw, "drawn") for row in plan.common.rows)
            yield from (trained(task, row, draw, "drawn, longer") for row in plan.common.longer)
    for split in range(max(plan.seeds.primary, plan.seeds.others)):
        for task in TASKS:
            forms: list[tuple[str, Form]] = [(row, "") for row in rows_of(plan, task)]
            if task in WHOLE:
                forms += [(row, "published") for row in plan.published] + [(row, "longer") for row in plan.longer]
            elif task == "hib":
                forms = [("hib", form) for form in plan.hib.forms]
            found = [trained(task, row, split, form) for row, form in forms]
            found = [cell for cell in found if split < _splits(plan, cell)]
            if found and task != "hib":
                yield from (trained(task, REFERENCE, split, "reference", number=i) for i in range(plan.references))
            yield from found


def _splits(plan: Plan, cell: Cell) -> int:
    """How many splits a row is trained on."""
    return plan.seeds.primary if cell.task in WHOLE and cell.name in plan.primary else plan.seeds.others


def rows_of(plan: Plan, task: Task) -> tuple[str, ...]:
    """The rows of a task."""
    return plan.rows["numbers" if task == "garments" else task]


def task_settings(plan: Plan, task: Task) -> DigitsSettings | PlacesSettings:
    """Sizes of a task."""
    if task in ("places", "hib"):
        return plan.places if task == "places" else plan.hib.numbers
    return plan.hard if task == "hard" else plan.numbers


@cache
def changes(row: str, trial: int, within: float) -> dict[str, Any]:
    """A trial's settings, nested, over those of the recipe: none for the first one.

    Trials are drawn from the recipe's ranges, by Optuna, other ones for each row: none depends on what came of the
    others, so that a search goes on from any of them.
    """
    if trial == 0:
        return {}
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=zlib.crc32(row.encode())))
    space: dict[str, optuna.distributions.BaseDistribution] = {
        key: optuna.distributions.FloatDistribution(low, high, log=log)
        for key, (low, high, log) in _narrowed(row, within).items()
    }
    for _ in range(trial):
        asked = study.ask(space)
    return _nested(asked.params)


@cache
def common_changes(row: str, draw: int, within: float) -> dict[str, Any]:
    """Settings of a common draw, nested, over those of the recipe.

    Where a setting lies in its range is drawn by the last part of its name, of stages' rates by their order too: rows
    that share a range share the value.
    """
    drawn, seen = {}, Counter[str]()
    for key, (low, high, log) in _narrowed(row, within).items():
        name = key.rpartition(".")[2]
        place = np.random.default_rng((draw, seen[name], zlib.crc32(name.encode()))).random()
        seen[name] += 1
        drawn[key] = float(low * (high / low) ** place if log else low + (high - low) * place)
    return _nested(drawn)


def _narrowed(row: str, within: float) -> dict[str, tuple[float, float, bool]]:
    """Ranges of a row's settings, those of logarithms within a factor of the recipe's own, and whether they are."""
    found = {}
    for key, (low, high, log) in ranges(row).items():
        if log:
            centre = attrgetter(key)(recipe(row, "mnist")[1])
            low, high = max(low, centre / within), min(high, centre * within)  # noqa: PLW2901  (the range, narrowed)
        found[key] = (low, high, log)
    return found


def _nested(params: Mapping[str, Any]) -> dict[str, Any]:
    """Settings by their dotted names as mappings in mappings."""
    nested: dict[str, Any] = {}
    for key, value in params.items():
        over: Any = value
        for part in reversed(key.split(".")):
            over = {part: over}
        nested = merged(nested, over)
    return nested


def changes_on(plan: Plan, task: Task, row: str, trial: int) -> dict[str, Any]:
    """A trial's settings over those of the recipe, of HIB on its own task over those of the plan."""
    if task == "hib":
        return {"kl": plan.hib.kl[trial - 1]} if trial else {}
    return changes(row, trial, plan.search.within)


def variation(plan: Plan, cell: Cell) -> Variation:
    """In what a cell's form differs from the recipe."""
    if cell.task == "hib":
        return Variation(settings=plan.hib.forms[cell.form])
    forms = {"published": plan.published, "longer": plan.longer, "drawn, longer": plan.longer}
    return forms[cell.form][cell.row] if cell.form in forms else Variation()


@cache
def network() -> str:
    """The layers of the network that all rows stand on: results of another one are not those of the plan."""
    return str(small_cnn.small_cnn())


def resolved(plan: Plan, cell: Cell, chosen: Mapping[str, Any]) -> tuple[Method, Any, str]:
    """The method of a cell, its settings, and the hash of all that decides what comes out.

    Parameters
    ----------
    plan, cell
        What is run.
    chosen
        `changes_on` of the trial that was best for the row, or of the trial that the cell is.
    """
    varied = variation(plan, cell)
    under = plan.hib.settings if cell.task == "hib" else {}
    over = merged(merged(under, chosen), varied.settings)
    method, settings = recipe(f"{PREFIX}{cell.row}" if varied.as_published else cell.row, "mnist", over)
    known = {f.name: getattr(settings, f.name) for f in fields(settings)}
    schedules = {name: x for name, x in known.items() if isinstance(x, Schedule)}
    settings = replace(
        settings,
        **{
            name: replace(x, classes_per_batch=max(1, round(plan.batch_share * x.classes_per_batch)))
            for name, x in schedules.items()
        },
    )
    decides = {
        "source": "fashion" if cell.task == "garments" else "mnist",
        "task": asdict(task_settings(plan, cell.task)),
        "trained_kinds": plan.trained_kinds,
        "photographs": photographs.PHOTOGRAPHS,
        "settings": asdict(settings),
        "network": network(),
        "one_batch": varied.one_batch,
    }
    decides |= {name: True for name in ("as_published", "blended_draws") if getattr(varied, name)}
    text = json.dumps(decides, sort_keys=True, default=str)
    return method, settings, hashlib.sha256(text.encode()).hexdigest()[:12]
