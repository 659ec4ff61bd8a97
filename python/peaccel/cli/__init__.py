"""The command ``peaccel``: each command is a file of this folder, whose first sentence is what ``--help`` says of it.

A command's file is imported when it is called, since some import torch for seconds. An unknown name and a missing file
are told before tyro is imported, which reads the options. An error of the user's is one line on stderr and exit code 2;
Ctrl-C exits 130 without a word.
"""

from __future__ import annotations

import ast
import csv
import os
import struct
import sys
import warnings
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NoReturn

from peaccel._core import __version__
from peaccel._utils import options
from peaccel._utils.suggestions import printable, unknown
from peaccel._utils.words import place_of

__all__ = ["COMMANDS", "main", "user_errors"]

DESCRIPTION = """Score, search and rerank probabilistic embeddings. 'peaccel COMMAND --help' says more, files included;
'peaccel --version' says which this is."""

COMMANDS = (
    "demo",
    "methods",
    "train",
    "fit-head",
    "embed",
    "tune",
    "evaluate",
    "compare",
    "choose-score",
    "choose-threshold",
    "calibrate-scores",
    "score-trials",
    "check-answers",
    "check-threshold",
    "audit",
    "quality",
    "search",
    "duplicates",
    "cluster",
    "rerank",
    "gallery",
    "info",
    "scores",
)
"""In the order of ``--help``; '-' stands for '_' of the file's name."""

OF_FILES = (
    *(ArithmeticError, EOFError, RecursionError, UnicodeError),
    *(csv.Error, struct.error, zipfile.BadZipFile, zlib.error),
)
"""Errors of libraries over files that are damaged or too deep, which do not name these."""

USER_ERRORS = (ValueError, TypeError, OSError, ImportError, MemoryError, FloatingPointError, *OF_FILES)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command; ``arguments`` are those of the process unless given."""
    arguments = sys.argv[1:] if arguments is None else arguments
    command = " ".join(["peaccel", *arguments[:1]])
    if list(arguments) == ["--version"]:
        print(f"peaccel {__version__}")
        return
    if None in map(find_spec, ("rich", "tyro")):  # not after the work is done
        _fail(command, "the command line needs tyro and rich: pip install peaccel[cli]")
    if arguments and arguments[0] not in COMMANDS and not arguments[0].startswith("-"):
        place = place_of(arguments[0])
        message = f"unknown command {arguments[0]!r}; {place}" if place else unknown("command", arguments[0], COMMANDS)
        _fail("peaccel", message)
    with user_errors(command, arguments), warnings_in_one_line(command):
        if arguments and arguments[0] in COMMANDS:
            _run(arguments[0], arguments[1:])
        else:
            import tyro

            with options.without_none():
                named = {name: _stands_for(name) for name in COMMANDS}
                tyro.extras.subcommand_cli_from_dict(named, prog="peaccel", description=DESCRIPTION, args=arguments)


@contextmanager
def user_errors(command: str, arguments: Sequence[str] = ()) -> Iterator[None]:
    """End the process with 2 and one line that begins with the command where an error is the user's; 130 at Ctrl-C."""
    try:
        yield
    except USER_ERRORS as error:
        files = [path for path in arguments if isinstance(error, OF_FILES) and os.path.isfile(path)]
        where = "" if any(path in str(error) for path in files) else " or ".join(files)
        _fail(command, f"{where}: cannot be read ({_one_line(error)})" if where else _one_line(error))
    except KeyboardInterrupt:
        sys.exit(130)


@contextmanager
def warnings_in_one_line(command: str) -> Iterator[None]:
    """Print warnings of the package without a line of its source."""
    before = warnings.formatwarning

    def one_line(message: Warning | str, category: type[Warning], *place: Any, **line: Any) -> str:
        ours = category is UserWarning
        return f"{command}: {printable(_joined(message))}\n" if ours else before(message, category, *place, **line)

    warnings.formatwarning = one_line
    try:
        yield
    finally:
        warnings.formatwarning = before


def _run(name: str, arguments: Sequence[str]) -> None:
    try:
        command = import_module(f"peaccel.cli.{name.replace('-', '_')}").main
        command(arguments)
    except ModuleNotFoundError as error:
        extra = "tune" if error.name == "optuna" else "all" if name == "demo" else "train"
        raise ImportError(f"{name} needs {error.name}: pip install peaccel[{extra}]") from None


def _stands_for(name: str) -> Callable[[], None]:
    """A function with the first sentence of a command's file, which is read without being imported."""

    def command() -> None: ...

    path = Path(__file__).parent / f"{name.replace('-', '_')}.py"
    command.__doc__ = (ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "").partition("\n\n")[0]
    return command


def _one_line(error: BaseException) -> str:
    if isinstance(error, MemoryError):
        return f"not enough memory ({error})"
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return _joined(error) or type(error).__name__


def _joined(message: BaseException | str) -> str:
    return " ".join(str(message).split())


def _fail(command: str, message: str) -> NoReturn:
    print(f"{command}: {printable(message)}", file=sys.stderr)
    sys.exit(2)


if __name__ == "__main__":
    main()
