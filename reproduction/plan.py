"""What is run: rows of the papers' table on three tasks, each training known by its name and its settings' hash."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal

import optuna

from peaccel._utils import config
from peaccel.data import photographs
from peaccel.data.digits import DigitsSettings
from peaccel.data.photographs import PlacesSettings
from peaccel.methods.method import AtLeast1, Method, Positive, Schedule
from peaccel.train import recipe
from peaccel.train.recipes import ranges

__all__ = ["TASKS", "Cell", "Plan", "cells", "changes", "read_plan", "resolved", "task_settings"]

Task = Literal["numbers", "hard", "places"]
TASKS: tuple[Task, ...] = ("numbers", "hard", "places")

TRIAL_SEED = 1000
"""Of the split on which settings are tried: none of the seeds of final numbers."""


@dataclass(frozen=True)
class Published:
    """In what a row with a published defect differs from the right one."""

    variant: Literal["published"] | None = None
    """Of the method's settings."""
    one_batch: bool = False
    """Train on the classes of the first batch alone."""
    blended_draws: bool = False
    """Draw directions as the published samplers do."""


@dataclass(frozen=True)
class Plan:
    """plan.toml."""

    trials: AtLeast1
    seeds: AtLeast1
    batch_share: Positive
    """Of the recipes' classes in a batch."""
    trained_kinds: tuple[str, ...]
    """Kinds of corruption in training and validation."""
    numbers: DigitsSettings
    hard: DigitsSettings
    places: PlacesSettings
    rows: Mapping[str, tuple[str, ...]]
    """By task."""
    published: Mapping[str, Published]
    """By row, on `numbers`."""
    quick: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Cell:
    """One training: a trial of settings, or a row's numbers of one seed."""

    task: Task
    row: str
    published: bool = False
    trial: int | None = None
    """Of a search; None of final numbers."""
    seed: int = TRIAL_SEED

    def __str__(self) -> str:
        """Such as "numbers pfe, seed 3"."""
        which = f"seed {self.seed}" if self.trial is None else f"trial {self.trial}"
        return f"{self.task} {self.row}{' as published' if self.published else ''}, {which}"


@cache
def read_plan(quick: bool = False) -> Plan:
    """The plan; `quick` shrinks it to minutes."""
    path = Path(__file__).parent / "plan.toml"
    values = config.read_mapping(path)
    return config.from_mapping(config.merge(values, values["quick"] if quick else {}), Plan, str(path))


def cells(plan: Plan) -> Iterator[Cell]:
    """All cells, in the order in which they are run: trials, then seed after seed, so that any part of it is even."""
    for trial in range(plan.trials):
        yield from (Cell("numbers", row, trial=trial) for row in plan.rows["numbers"])
    for seed in range(plan.seeds):
        yield from (Cell("numbers", row, seed=seed) for row in plan.rows["numbers"])
        yield from (Cell("numbers", row, published=True, seed=seed) for row in plan.published)
        yield from (Cell(task, row, seed=seed) for task in TASKS[1:] for row in plan.rows[task])


def task_settings(plan: Plan, task: Task) -> DigitsSettings | PlacesSettings:
    """Sizes of a task."""
    if task == "places":
        return plan.places
    return plan.hard if task == "hard" else plan.numbers


@cache
def changes(row: str, trial: int) -> dict[str, Any]:
    """A trial's settings, nested, over those of the recipe: none for the first one.

    Trials are drawn from the recipe's ranges, by Optuna: none depends on what came of the others, so that a search goes
    on from any of them.
    """
    if trial == 0:
        return {}
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    space: dict[str, optuna.distributions.BaseDistribution] = {
        key: optuna.distributions.FloatDistribution(low, high, log=log) for key, (low, high, log) in ranges(row).items()
    }
    for _ in range(trial + 1):
        asked = study.ask(space)
    nested: dict[str, Any] = {}
    for key, value in asked.params.items():
        over: Any = value
        for part in reversed(key.split(".")):
            over = {part: over}
        nested = config.merge(nested, over)
    return nested


def resolved(plan: Plan, cell: Cell, chosen: Mapping[str, Any]) -> tuple[Method, Any, str]:
    """The method of a cell, its settings, and the hash of all that decides what comes out.

    Parameters
    ----------
    plan, cell
        What is run.
    chosen
        `changes` of the trial that was best for the row, or of the trial that the cell is.
    """
    published = plan.published[cell.row] if cell.published else Published()
    over = config.merge(chosen, {"variant": published.variant} if published.variant else {})
    method, settings = recipe(cell.row, "mnist", over)
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
        "task": asdict(task_settings(plan, cell.task)),
        "trained_kinds": plan.trained_kinds,
        "photographs": photographs.PHOTOGRAPHS,
        "settings": asdict(settings),
        "one_batch": published.one_batch,
    }
    if published.blended_draws:
        decides["blended_draws"] = True
    text = json.dumps(decides, sort_keys=True, default=str)
    return method, settings, hashlib.sha256(text.encode()).hexdigest()[:12]
