"""The commands that train: `peaccel methods`, `train`, `fit-head`, `embed`, `tune`.

What is wrong with their arguments is told before torch is imported, as far as it can be told without.
"""

from __future__ import annotations

import inspect
import shlex
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, fields, make_dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

from peaccel import config, methods, options
from peaccel.data import TRAINED
from peaccel.data.features import features
from peaccel.train.arguments import Embed, HeadFiles, check_embed, check_head, check_run
from peaccel.train.recipes import RECIPES, check_row, recipe

if TYPE_CHECKING:
    from peaccel.methods.records import Method
    from peaccel.train.judging import Judgement
    from peaccel.train.runs import Job, Result, Run

__all__ = ["COMMANDS"]


def print_methods(arguments: Sequence[str]) -> None:
    """Print the methods that there are, from their files."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    options.parse(Nothing, "peaccel methods", print_methods.__doc__, arguments)
    rows: dict[str, list[str]] = {}
    for row in RECIPES:
        rows.setdefault(recipe(row, "")[0].name, []).append(row)
    papers: dict[str, list[Method]] = {}
    for method in methods.table():
        papers.setdefault(method.paper, []).append(method)
    console = Console()
    for paper, of_paper in papers.items():
        console.print(f"\n{paper}", markup=False, highlight=False, style="bold")
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False, expand=True)
        for header, width in (("method, rows", 20), ("distribution", 12), ("loss", None), ("score, confidence", 18)):
            table.add_column(header, min_width=width, ratio=None if width else 1, overflow="fold")
        for m in of_paper:
            named = "\n".join(dict.fromkeys([m.name, *rows[m.name]]))
            loss = f"{m.loss} (draws)" if m.sampling else m.loss
            table.add_row(named, m.distribution, loss, f"{m.score}\n{m.confidence}")
        console.print(table, markup=False)


@dataclass(frozen=True)
class Nothing:
    """A command without options."""


def train(arguments: Sequence[str]) -> None:
    """Train a method by its recipe; 'peaccel train METHOD --help' lists its settings."""
    name, rest = _row("train", train, arguments)
    check_run(rest, Path("runs") / name, TRAINED)
    from peaccel.train import runs

    _, method, settings, run = _parse(Nothing, "train", name, rest, runs.Run(out=Path("runs") / name), runs.Run)
    _tell(runs.train(name, method, settings, run), run.out)


def fit_head(arguments: Sequence[str]) -> None:
    """Learn an uncertainty for embeddings that you have, from labels: seconds to minutes on a CPU.

    A quarter of the classes is held out, by whose MAP@R the best epoch is chosen. 'peaccel embed --run OUT --features
    FILE' then gives your embeddings their uncertainty.
    """
    out = Path("runs/head")
    check_head(arguments)
    check_run(arguments, out)
    import torch

    from peaccel.train import judging, runs
    from peaccel.train.sources import Items

    name = options.value_of("--method", arguments) or HeadFiles.method
    start = runs.Run(data="features", out=out, device="cpu")
    files, method, settings, run = _parse(HeadFiles, "fit-head", name, arguments, start, runs.Job)
    found = features(files.features, files.labels)
    parts = {part: Items(torch.from_numpy(x.features), x.labels) for part, x in found.items()}
    result = runs.train(name, method, settings, run, parts)
    _tell(result, run.out, judging.judge_means(method, parts))
    print(
        shlex.join(["peaccel", "embed", "--run", f"{run.out}", "--features", f"{files.features}", "--out", "sure.npz"])
    )


def run_embed(arguments: Sequence[str]) -> None:
    """Embed a data set by a trained model or a backbone, into a file."""
    task = options.parse(Embed, "peaccel embed", run_embed.__doc__, arguments)
    check_embed(task)
    from peaccel.train.writing import write

    write(task)


def tune(arguments: Sequence[str]) -> None:
    """Search a method's settings with Optuna by MAP@R on validation classes; goes on where it was stopped."""
    name, rest = _row("tune", tune, arguments)
    check_run(rest, Path(f"runs/tune-{name}"), TRAINED)
    from peaccel.train import runs, tuning

    start = runs.Run(out=Path(f"runs/tune-{name}"))
    search, _, settings, run = _parse(tuning.Search, "tune", name, rest, start, runs.Run)
    best = tuning.tune(name, settings, run, search)
    reached = f"best MAP@R on validation {100 * best.value:.2f} %, of {best.trials} trials"
    print(f"{name} on {run.data}: {reached} -> {run.out / 'best.toml'}")
    chosen = options.words(best.chosen, recipe(name, run.data)[1])
    again = options.words(replace(run, out=run.out / "best", resume=False), runs.Run())
    print(shlex.join(["peaccel", "train", name, *again, *chosen]))


COMMANDS: dict[str, Callable[[Sequence[str]], None]] = {
    "methods": print_methods,
    "train": train,
    "fit-head": fit_head,
    "embed": run_embed,
    "tune": tune,
}


def _row(name: str, command: Callable[..., None], arguments: Sequence[str]) -> tuple[str, Sequence[str]]:
    """The row of the table that a command names first, and the other arguments."""
    if arguments and arguments[0] in ("-h", "--help"):
        rows = textwrap.fill(", ".join(RECIPES), 78, initial_indent="  ", subsequent_indent="  ")
        about = inspect.getdoc(command)
        print(f"usage: peaccel {name} METHOD [OPTIONS]\n\n{about}\n\nMETHOD is one of\n{rows}")
        raise SystemExit(0)
    if not arguments or arguments[0].startswith("-"):
        raise ValueError(f"the method is missing: 'peaccel {name} METHOD'; see 'peaccel methods'")
    check_row(arguments[0])
    return arguments[0], arguments[1:]


def _parse(
    own: type[Any], command: str, name: str, arguments: Sequence[str], run: Run, kind: type[Job]
) -> tuple[Any, Method, Any, Run]:
    """A command's own options, the method, its settings, and the run, of which `kind` has the options.

    Settings are those of the recipe for the data, or of the run that is resumed, with what is given over them.
    """
    import tyro

    from peaccel.train.runs import Run, resumed

    method, settings = recipe(name, options.value_of("--data", arguments) or run.data)
    out = Path(options.value_of("--out", arguments) or run.out)
    again = "--resume" in arguments and (out / "run.json").exists()
    if again:
        settings, run = resumed(out, name)
    if own is HeadFiles:
        settings = _without_means(settings)
    flat = tyro.conf.arg(name="")
    of_run = {f.name: getattr(run, f.name) for f in fields(kind)}
    kinds = make_dataclass(
        "Arguments",
        [
            ("own", Annotated[own, flat]),
            ("run", Annotated[kind, flat], field(default=kind(**of_run))),
            ("settings", Annotated[type(settings), flat], field(default=settings)),
        ],
    )
    about = f"{inspect.getdoc(COMMANDS[command])}\n\n{name}: {method.paper}"
    prog = f"peaccel {command}" + (f" {name}" if own is not HeadFiles else "")
    parsed: Any = options.parse(kinds, prog, about, arguments, pairs=again)
    # Settings are read again as a mapping, which checks ranges that tyro does not know.
    return (
        config.from_mapping(vars(parsed.own), own, name),
        method,
        config.from_mapping(asdict(parsed.settings), method.settings, name),
        config.from_mapping({**vars(run), **vars(parsed.run)}, Run, name),
    )


def _without_means(settings: Any) -> Any:
    """The settings without options of the means, which are given: their width is that of the features."""
    import tyro

    from peaccel.methods.parts import Embedding

    kinds = get_type_hints(Embedding, include_extras=True)
    hidden = [(f.name, Annotated[kinds[f.name], tyro.conf.Suppress], f) for f in fields(Embedding)]
    kind = make_dataclass("Settings", hidden, bases=(type(settings),), frozen=True, kw_only=True)
    return kind(**vars(settings))


def _tell(result: Result, out: Path, cosine: Judgement | None = None) -> None:
    """Print what a run reached, and beside it what the cosine of the same means reaches."""
    from accelerate import PartialState

    if not PartialState().is_main_process:
        return
    line = f"Recall@1 {100 * result.recall_at_1:.2f} %, MAP@R {100 * result.map_at_r:.2f} % ({result.part})"
    if cosine is not None:
        line += f", by cosine {100 * cosine.recall_at_1:.2f} % and {100 * cosine.map_at_r:.2f} %"
    if result.confidence_and_severity is not None:
        line += f", Spearman of confidence and severity {result.confidence_and_severity:.2f}"
    print(f"{result.method} on {result.data}, seed {result.seed}: {line}, {result.seconds:.0f} s -> {out}")
