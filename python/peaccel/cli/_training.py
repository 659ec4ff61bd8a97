"""Reading of options and early refusals, before torch is imported, of the commands that train."""

from __future__ import annotations

import argparse
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import asdict, field, fields, make_dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

from peaccel._utils import config, options
from peaccel._utils.table_paths import file_of
from peaccel.data import check_known, check_name
from peaccel.train.folder import check_folder, check_named
from peaccel.train.recipes import RECIPES, check_row, recipe

if TYPE_CHECKING:
    from peaccel.methods.method import Method
    from peaccel.train.evaluation import HeldOutMetrics
    from peaccel.train.runs import Result, Run

__all__ = ["check_run", "check_there", "early", "parse", "row", "tell"]


OTHERS = """or one of these as its authors' code has it, such as published.pfe (docs/differences.md);
or the path of a Python file with a METHOD (docs/extend/method.md), or the name of
a method of another package, which 'peaccel methods' lists."""


def row(name: str, about: str | None, arguments: Sequence[str]) -> tuple[str, Sequence[str]]:
    """The row of the table that a command names first, and the other arguments."""
    if arguments and arguments[0] in ("-h", "--help"):
        rows = textwrap.fill(", ".join(RECIPES), 78, initial_indent="  ", subsequent_indent="  ")
        print(f"usage: peaccel {name} METHOD [OPTIONS]\n\n{options.about(about)}\n\nMETHOD is one of\n{rows}\n{OTHERS}")
        raise SystemExit(0)
    if not arguments or arguments[0].startswith("-"):
        raise ValueError(f"the method is missing: 'peaccel {name} METHOD'; see 'peaccel methods'")
    check_row(arguments[0])
    return arguments[0], arguments[1:]


def parse(
    command: type[Any] | None,
    prog: str,
    about: str | None,
    name: str,
    arguments: Sequence[str],
    run: Run,
    fixed_means: bool = False,
) -> tuple[Any, Method, Any, Run]:
    """Read the options of a command that trains.

    Parameters
    ----------
    command
        A dataclass of options that the command alone has.
    prog, about
        The head of its help.
    name
        A row of the papers' table.
    arguments
        What follows it.
    run
        The run unless they say otherwise.
    fixed_means
        Whether the means are those of the items: then options of means, of the data and of the backbone are not shown.

    Returns
    -------
    The command's options, the method, its settings (those of the recipe for the data, or of the run that is
    resumed, with the options over them), and the run.
    """
    import tyro

    from peaccel.train.runs import Job, Run, resumed

    first = early(arguments)
    method, settings = recipe(name, first.data or run.data)
    out = Path(first.out or run.out)
    again = first.resume and (out / "run.json").exists()
    if again:
        settings, run = resumed(out, name)
        for option in ("data", "backbone"):
            if getattr(first, option) is None:
                check_named(out, option, getattr(run, option))
    elif not fixed_means:  # so that --help shows what holds for them
        run = replace(run, data=first.data or run.data, root=None if first.root is None else Path(first.root))
    if fixed_means:
        settings = _without_means(settings)
    kind: type[Job] = Job if fixed_means else Run
    command = options.Nothing if command is None else command
    flat = tyro.conf.arg(name="")
    kinds = make_dataclass(
        "Arguments",
        [
            ("command", Annotated[command, flat]),
            ("run", Annotated[kind, flat], field(default=kind(**{f.name: getattr(run, f.name) for f in fields(kind)}))),
            ("settings", Annotated[type(settings), flat], field(default=settings)),
        ],
    )
    head = f"{options.about(about)}\n\n{name}: {method.paper}"
    parsed: Any = options.parse(kinds, prog, head, arguments, pairs=again, positional=fixed_means)
    # Settings are read again as a mapping, which checks ranges that tyro does not know.
    chosen = (
        config.from_mapping(vars(parsed.command), command, name),
        method,
        config.from_mapping(asdict(parsed.settings), method.settings, name),
        config.from_mapping({**vars(run), **vars(parsed.run)}, Run, name),
    )
    check_folder(chosen[-1].out, chosen[-1].resume)
    return chosen


def _without_means(settings: Any) -> Any:
    """The settings without options of the means, which are those of the items: their width is that of the features."""
    import tyro

    from peaccel.methods.parts import Embedding

    kinds = get_type_hints(Embedding, include_extras=True)
    hidden = [(f.name, Annotated[kinds[f.name], tyro.conf.Suppress], f) for f in fields(Embedding)]
    kind = make_dataclass("Settings", hidden, bases=(type(settings),), frozen=True, kw_only=True)
    return kind(**vars(settings))


def tell(result: Result, run: Run, cosine: HeldOutMetrics | None = None) -> None:
    """Print what a run reached, beside it what the cosine of the same means reaches, and whether it failed.

    Raises
    ------
    SystemExit
        1 where something shows that it failed, and the run is strict.
    """
    from accelerate import PartialState

    if not PartialState().is_main_process:
        return
    line = f"Recall@1 {100 * result.recall_at_1:.2f} %, MAP@R {100 * result.map_at_r:.2f} % ({result.part})"
    if cosine is not None:
        line += f", by cosine {100 * cosine.recall_at_1:.2f} % and {100 * cosine.map_at_r:.2f} %"
    if result.uncertainty_and_severity is not None:
        line += f", Spearman of uncertainty and severity {result.uncertainty_and_severity:.2f}"
    print(f"{result.method} on {result.data}, seed {result.seed}: {line}, {result.seconds:.0f} s -> {run.out}")
    if result.warnings:
        print(f"{result.method}: training may have failed: {result.warnings[-1]}", file=sys.stderr)
        if run.strict:
            raise SystemExit(1)


def check_run(arguments: Sequence[str], out: Path, names: Sequence[str] = ()) -> None:
    """Refuse what the words of a run show to be wrong.

    Parameters
    ----------
    arguments
        Of a command that trains; their other options are those of a method, which cannot be read without torch.
    out
        The folder of the run unless they name one.
    names
        The data sets that may be trained on, the first one unless they name one; none where they cannot.
    """
    parsed = early(arguments)
    if parsed.help:
        return
    if names and parsed.resume and parsed.data is not None:  # with the root of the run unless another is named
        check_known(parsed.data, names)
    elif names and not parsed.resume:
        check_name(parsed.data or names[0], None if parsed.root is None else Path(parsed.root), names)
    check_there(*(Path(path) for path in (parsed.begin, parsed.weights) if path))
    if not parsed.others:  # which may be none: then `parse` checks their names first
        check_folder(Path(parsed.out or out), parsed.resume)


def early(arguments: Sequence[str]) -> argparse.Namespace:
    """Options on which others depend, or which can be refused before torch is imported; None where not given; and the
    names of others.
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("-h", "--help", action="store_true")
    parser.add_argument("--resume", action="store_true")
    for name in ("data", "root", "out", "begin", "weights", "backbone", "method", "labels", "relevance"):
        parser.add_argument(f"--{name}", nargs="?")
    parser.add_argument("--covariates", nargs="*", default=())
    parsed, rest = parser.parse_known_args(arguments)
    parsed.others = [word for word in rest if word.startswith("-")]
    return parsed


def check_there(*paths: Path | None) -> None:
    """Refuse a path that does not exist: FileNotFoundError."""
    for path in paths:
        if path is not None and not file_of(path).exists():
            raise FileNotFoundError(f"{path}: there is no such file")
