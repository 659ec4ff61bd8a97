"""The commands that train: `peaccel methods`, `train`, `fit-head`, `embed`, `tune`."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, make_dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import tyro

from peaccel import backbones, config, methods
from peaccel.data.features import features
from peaccel.files import aside, check_output
from peaccel.methods.records import Method
from peaccel.train import runs, tuning
from peaccel.train.embedding import apply, embed, tensors
from peaccel.train.sources import Items, open_items

__all__ = ["COMMANDS"]

HEADS = ("llr_nce", "pfe", "scaleface", "dul_reg", "scf", "mls_nce", "vmf_nce", "mu_scaleface")
"""Rows that can learn an uncertainty alone, on given means."""


def print_methods(arguments: Sequence[str]) -> None:
    """Print the methods that there are, from their files."""
    from rich.console import Console
    from rich.table import Table

    tyro.cli(Nothing, prog="peaccel methods", description=print_methods.__doc__, args=arguments)
    table = Table("method, rows", "distribution", "draws", "loss", "score, confidence", "paper", show_lines=True)
    rows: dict[str, list[str]] = {}
    for row in runs.RECIPES:
        rows.setdefault(runs.recipe(row, "")[0].name, []).append(row)
    for m in methods.table():
        named = "\n".join(dict.fromkeys([m.name, *rows.get(m.name, ())]))
        table.add_row(named, m.distribution, "yes" if m.sampling else "", m.loss, f"{m.score}\n{m.confidence}", m.paper)
    Console().print(table, markup=False)


@dataclass(frozen=True)
class Nothing:
    """No options."""


def train(arguments: Sequence[str]) -> None:
    """Train a method by its recipe; 'peaccel train METHOD --help' lists its settings."""
    name, rest = _row("train", arguments)
    method, settings, run = _parse(f"peaccel train {name}", name, rest, runs.Run())
    _tell(runs.train(name, method, settings, run), run.out)


@dataclass(frozen=True, kw_only=True)
class HeadFiles:
    """What a head is fitted to."""

    features: Annotated[Path, tyro.conf.Positional]
    """The means, [N, D] float in an .npy file, or .npz with the keys features and labels."""
    labels: Path | None = None
    """[N], integers or words, in an .npy file."""
    method: str = "llr_nce"
    """llr_nce, pfe, scaleface, dul_reg, scf, mls_nce, vmf_nce or mu_scaleface."""


def fit_head(arguments: Sequence[str]) -> None:
    """Learn an uncertainty for embeddings that you have, from labels: seconds to minutes on a CPU.

    A quarter of the classes is held out, by whose MAP@R the best epoch is chosen.
    """
    name = _option(arguments, "--method") or HeadFiles.method
    if name not in HEADS:
        raise ValueError(f"fit-head: method is {name!r}, expected one of {', '.join(HEADS)}")
    start = runs.Run(data="features", out=Path("runs/head"), device="cpu")
    files, method, settings, run = _parse_with(
        HeadFiles, "peaccel fit-head", name, arguments, start, fit_head.__doc__ or ""
    )
    found = features(files.features, files.labels)
    parts = {part: Items(torch.from_numpy(x.features), x.labels) for part, x in found.items()}
    _tell(runs.train(name, method, settings, run, parts), run.out)


@dataclass(frozen=True, kw_only=True)
class Embed:
    """What embeds what, and where that goes."""

    out: Path
    """The .npz file to write: mu and var, kappa or scale with --run, features with --backbone; and labels."""
    run: Path | None = None
    """The folder of a trained model; exactly one of this and --backbone."""
    backbone: str | None = None
    """A name of peaccel.backbones, for the features that fit-head takes."""
    weights: Path | None = None
    """Of the backbone."""
    data: str = "mnist"
    root: Path | None = None
    part: str = "test"
    """train, validation, test, query or gallery, as far as the data set has them."""
    seed: int = 0
    """Of numbers composed of digits."""
    quick: bool = False
    """Of digits: few of them."""


def run_embed(arguments: Sequence[str]) -> None:
    """Embed a data set by a trained model or a backbone, into a file."""
    task = tyro.cli(Embed, prog="peaccel embed", description=run_embed.__doc__, args=arguments)
    if (task.run is None) == (task.backbone is None):
        raise ValueError("embed: expected exactly one of --run and --backbone")
    check_output(task.out, [".npz"])
    if task.run is not None:
        trained = runs.load(task.run)
        parts = open_items(task.data, task.root, task.seed, runs.input_of(trained.model), task.quick)
        d = embed(trained.model, _part(task, parts).data)
        both = d if isinstance(d, tuple) else (d,)
        arrays = {
            name + suffix: getattr(x, name)
            for x, suffix in zip(both, ("", "_of_captions"), strict=False)
            for name in x._names
        }
    else:
        assert task.backbone is not None
        backbone = backbones.create(task.backbone, weights=task.weights)
        parts = open_items(task.data, task.root, task.seed, runs.input_of(backbone), task.quick)
        arrays = {"features": np.asarray(tensors(apply(backbone, _part(task, parts).data)))}
    with aside(task.out) as fresh:
        np.savez(fresh, **arrays, labels=parts[task.part].labels)
    shapes = ", ".join(f"{name} {x.shape}" for name, x in arrays.items())
    print(f"{task.part} of {task.data}: {shapes} -> {task.out}")


def tune(arguments: Sequence[str]) -> None:
    """Search a method's settings with Optuna by MAP@R on validation classes; goes on where it was stopped."""
    name, rest = _row("tune", arguments)
    search, _, settings, run = _parse_with(
        tuning.Search, f"peaccel tune {name}", name, rest, runs.Run(out=Path("runs/tune")), tune.__doc__ or ""
    )
    best = tuning.tune(name, settings, run, search)
    reached = f"best MAP@R on validation {100 * best.value:.2f} %, of {best.trials} trials"
    print(f"{name}: {reached} -> {run.out / 'best.toml'}")
    print("\n".join(f"  {key} = {value}" for key, value in best.settings.items()))


COMMANDS: dict[str, Callable[[Sequence[str]], None]] = {
    "methods": print_methods,
    "train": train,
    "fit-head": fit_head,
    "embed": run_embed,
    "tune": tune,
}


def _row(command: str, arguments: Sequence[str]) -> tuple[str, Sequence[str]]:
    """The row of the table that a command names first, and the other arguments."""
    if not arguments or arguments[0].startswith("-"):
        raise ValueError(f"{command}: the method is missing, expected one of {', '.join(runs.RECIPES)}")
    return arguments[0], arguments[1:]


def _option(arguments: Sequence[str], name: str) -> str | None:
    """The value of an option on which others depend."""
    for i, word in enumerate(arguments):
        if word.startswith(f"{name}="):
            return word.split("=", 1)[1]
        if word == name and i + 1 < len(arguments):
            return arguments[i + 1]
    return None


def _parse(prog: str, name: str, arguments: Sequence[str], run: runs.Run) -> tuple[Method, Any, runs.Run]:
    _, method, settings, parsed = _parse_with(Nothing, prog, name, arguments, run, train.__doc__ or "")
    return method, settings, parsed


def _parse_with(
    own: type[Any], prog: str, name: str, arguments: Sequence[str], run: runs.Run, description: str
) -> tuple[Any, Method, Any, runs.Run]:
    """A command's own options, the run's and the method's settings, which are as the recipe says them for the data."""
    data = _option(arguments, "--data") or run.data
    method, start = runs.recipe(name, data)
    flat = tyro.conf.arg(name="")
    kinds = make_dataclass(
        "Arguments",
        [
            ("own", Annotated[own, flat]),
            ("run", Annotated[runs.Run, flat], field(default=run)),
            ("settings", Annotated[method.settings, flat], field(default=start)),
        ],
    )
    parsed: Any = tyro.cli(kinds, prog=prog, description=description, args=arguments)
    # Ranges are those of the recipes.
    settings = config.from_mapping(asdict(parsed.settings), method.settings, name)
    return parsed.own, method, settings, config.from_mapping(vars(parsed.run), runs.Run, prog)


def _part(task: Embed, parts: dict[str, Items]) -> Items:
    if task.part not in parts:
        raise ValueError(f"embed: {task.data} has no part {task.part!r}, expected one of {', '.join(parts)}")
    return parts[task.part]


def _tell(result: runs.Result, out: Path) -> None:
    with aside(out / "result.json") as fresh:
        fresh.write_text(json.dumps(asdict(result), indent=1) + "\n", encoding="utf-8")
    line = f"Recall@1 {100 * result.recall_at_1:.2f} %, MAP@R {100 * result.map_at_r:.2f} %"
    if result.confidence_and_severity is not None:
        line += f", Spearman of confidence and severity {result.confidence_and_severity:.2f}"
    print(f"{result.method} on {result.data}, seed {result.seed}: {line}, {result.seconds:.0f} s -> {out}")
