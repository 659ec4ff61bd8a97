"""Search for a method's settings, by Optuna."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import msgspec

from peaccel._utils import config
from peaccel._utils.atomic_files import aside, check_output, unlinked
from peaccel.methods.method import AtLeast1
from peaccel.train.recipes import label, ranges, recipe
from peaccel.train.resuming import digest_of_file, flat
from peaccel.train.runs import Run, train

__all__ = ["Best", "SearchLimits", "tune"]

FREE = ("out", "resume", "threads", "workers", "device", "tensorboard", "strict")
"""Options of a run in which trials of one search may differ: their results differ by rounding at most."""

LISTED = 5
"""How many options that differ a message names."""


@dataclass(frozen=True)
class SearchLimits:
    """The limits of a search."""

    trials: AtLeast1 = 50
    """How many trials to make, those of earlier searches in the same folder included."""
    seconds: Annotated[float, msgspec.Meta(gt=0)] | None = None
    """Seconds after which no new trial begins."""


@dataclass(frozen=True)
class Best:
    """Result of a search."""

    value: float
    """MAP@R on validation classes."""
    settings: Mapping[str, float]
    """The best settings, by dotted name."""
    chosen: Any
    """All settings of the method, with the best ones."""
    trials: int
    """How many trials were finished."""


def tune(name: str, settings: Any, run: Run, search: SearchLimits) -> Best:
    """Search the ranges of a recipe's [tune] table for the best MAP@R on validation.

    Trials are kept in study.db of the run's folder: a search that was stopped goes on, also by several processes at
    once. Each trial trains with the same seed, in a folder of its own; all have the same data and fixed settings.

    Parameters
    ----------
    name
        A row of the papers' table.
    settings
        Those that are not searched.
    run
        Data, backbone, devices; its folder receives the study and best.toml.
    search
        How far.

    Raises
    ------
    ValueError
        The recipe has no ranges, or the data no validation part; the folder's trials are of another method, of other
        data or other fixed settings.
    ImportError
        Optuna is not installed.
    """
    try:
        import optuna
    except ImportError:
        raise ImportError("tune needs optuna: pip install 'peaccel[tune]'") from None
    known = ranges(name)
    if run.out.exists() and not run.out.is_dir():
        raise ValueError(f"out is {run.out}, a file, expected a folder")
    run.out.mkdir(parents=True, exist_ok=True)
    best = check_output(run.out / "best.toml")
    optuna.logging.set_verbosity(optuna.logging.CRITICAL)
    study = optuna.create_study(
        storage=f"sqlite:///{unlinked(run.out / 'study.db')}",
        study_name="search",
        direction="maximize",
        load_if_exists=True,
    )
    _check_study(study, run.out, _shared(name, settings, run, known))
    # A search that goes on with the seed it began with would try the same settings again.
    study.sampler = optuna.samplers.TPESampler(seed=run.seed + len(study.trials))

    method, _ = recipe(name, run.data)

    def objective(trial: Any) -> float:
        found = {key: trial.suggest_float(key, low, high, log=log) for key, (low, high, log) in known.items()}
        chosen = _changed(settings, found)
        folder = run.out / f"{Path(name).stem}-{Path(run.data).stem}-{trial.number}"
        try:
            result = train(name, method, chosen, replace(run, out=folder, resume=False))
        except FloatingPointError as error:  # a trial that diverged does not end the search
            raise optuna.TrialPruned(str(error)) from None
        if result.validation is None:
            raise ValueError(f"data {run.data} has no validation part to search by")
        return result.validation

    state = optuna.trial.TrialState
    # Trials that Ctrl-C or an error ended do not count.
    done = len(study.get_trials(states=(state.COMPLETE, state.PRUNED)))
    if done < search.trials:
        study.optimize(objective, search.trials - done, search.seconds)
    finished = study.get_trials(states=(state.COMPLETE,))
    if not finished:
        raise ValueError(f"no trial of {name} came to an end: their losses were not finite, or time ran out")
    if len(finished) > 1 and len({trial.value for trial in finished}) == 1:
        sentence = (
            f"all {len(finished)} trials reached the same: nothing of what was searched changes MAP@R by this score"
        )
        print(f"{name} on {run.data}: {sentence}", file=sys.stderr)
    with aside(best, follow=False) as fresh:
        fresh.write_text("".join(f"{key} = {value!r}\n" for key, value in study.best_params.items()), encoding="utf-8")
    chosen = _changed(settings, study.best_params)
    return Best(study.best_value, study.best_params, chosen, len(finished))


def _shared(name: str, settings: Any, run: Run, known: Mapping[str, tuple[float, float, bool]]) -> dict[str, Any]:
    """Data, options and settings that all trials of a search must have, by dotted name, as JSON has them."""
    options = {key: value for key, value in asdict(run).items() if key not in FREE}
    paths = {key: _identity(value) for key, value in options.items() if isinstance(value, Path)}
    # What is searched has no fixed value.
    fixed = asdict(_changed(settings, {key: low for key, (low, _, _) in known.items()}))
    shared = dict(flat({"method": label(name), **options, **paths, **fixed, "ranges": known}))
    return dict(json.loads(json.dumps(shared, default=str)))


def _identity(path: Path) -> str:
    """A path with the digest of its file, or of each of the features in its folder."""
    files = sorted(path.glob("*.npz")) if path.is_dir() else [path] if path.is_file() else []
    return f"{path.resolve()} ({' '.join(str(digest_of_file(file)) for file in files)})"


def _check_study(study: Any, out: Path, shared: Mapping[str, Any]) -> None:
    """Refuse a study of trials that do not have this in common; one without any records it."""
    if all(trial.state.name == "FAIL" for trial in study.trials):
        study.set_user_attr("shared", shared)
    held = study.user_attrs["shared"]
    differ = [key for key in {**held, **shared} if held.get(key) != shared.get(key)]
    if differ:
        what = "; ".join(f"{key} is {shared.get(key)}, expected {held.get(key)}" for key in differ[:LISTED])
        what += f"; and {len(differ) - LISTED} more" if len(differ) > LISTED else ""
        raise ValueError(f"out is {out}, whose trials are of another search ({what}): choose another folder")


def _changed(settings: Any, found: Mapping[str, Any]) -> Any:
    """The settings with others by dotted name."""
    values = asdict(settings)
    for key, value in found.items():
        for part in reversed(key.split(".")):
            value = {part: value}  # noqa: PLW2901  (nested from the inside out)
        values = config.merge(values, value)
    return config.from_mapping(values, type(settings))
