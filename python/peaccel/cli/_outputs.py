"""Where commands write their files: folders that are missing are made."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from peaccel._utils.atomic_files import check_outputs, check_suffix
from peaccel.evaluation.formatting import save_json
from peaccel.io._array_files import write, write_table, write_text
from peaccel.io._text_columns import csv_text

__all__ = ["COLUMNS", "check_files", "inputs_of", "outputs", "save_numbers", "write_columns"]

DELIMITERS = {".csv": ",", ".tsv": "\t"}
COLUMNS = (*DELIMITERS, ".parquet", ".npz")
"""Suffixes of files of columns."""


def check_files(files: Sequence[tuple[Path, Sequence[str]]], inputs: Iterable[Path] = ()) -> None:
    """Check files that a command is to write, each with its suffixes, as `check_outputs`, and make their folders."""
    for path, suffixes in files:
        check_suffix(path, suffixes)
    for path, _ in files:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError):
            raise ValueError(f"{path}: {path.parent} is a file or in one, expected a folder") from None
    check_outputs(files, inputs)


def outputs(folder: Path, task: Any, numbers: str, page: str, *others: str) -> list[Path]:
    """Files in a command's folder, made if it is missing; none of them may be a link, or one that the command reads.

    Parameters
    ----------
    folder, task
        The folder, and the command's options.
    numbers, page
        Names of the files that each run of the command writes.
    others
        Names of files that some runs write: one that is there must be that of an earlier run, as `numbers` names it.
    """
    if folder.is_file():
        raise ValueError(f"--out is {folder}, a file, expected a folder")
    files = [folder / name for name in (numbers, page, *others)]
    check_files([(path, [path.suffix]) for path in files], inputs_of(task))
    before = _named_by(folder / numbers)
    for path in files:
        if path.is_symlink() or (path.name in others and path.exists() and path.name not in before):
            what = "a link" if path.is_symlink() else f"which {numbers} does not name as that of an earlier run"
            raise ValueError(f"--out is {folder}, but {path} is there, {what}: choose another folder")
    return files


def save_numbers(numbers: Path, found: Any, others: Mapping[Path, bool]) -> None:
    """Write a command's numbers, with the names of other files that come beside them; those of an earlier run go.

    Parameters
    ----------
    numbers
        The file to write.
    found
        A dataclass, see `save_json`.
    others
        Files that `outputs` has checked, and whether this run writes them.
    """
    for path, comes in others.items():
        if not comes:
            path.unlink(missing_ok=True)
    names = [path.name for path, comes in others.items() if comes]
    save_json(numbers, found, **({"files": names} if names else {}))


def _named_by(numbers: Path) -> list[str]:
    """The other files that an earlier run wrote beside its numbers; none where that cannot be read."""
    try:
        found = json.loads(numbers.read_text(encoding="utf-8"))["files"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return []
    return found if isinstance(found, list) else []


def inputs_of(task: Any) -> list[Path]:
    """The paths that a command reads."""
    values = [x if isinstance(x, tuple) else (x,) for name, x in vars(task).items() if name != "out"]
    return [x for of_option in values for x in of_option if isinstance(x, Path)]


def write_columns(path: Path, columns: dict[str, Any]) -> None:
    """Write columns of one length, by the suffix, which is one of `COLUMNS`."""
    if path.suffix == ".npz":
        write(path, COLUMNS, columns)
    elif path.suffix == ".parquet":
        write_table(path, COLUMNS, columns)
    else:
        write_text(path, COLUMNS, csv_text([*columns], [*columns.values()], DELIMITERS[path.suffix]))
