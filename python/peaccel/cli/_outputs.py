"""Where commands write their files: folders that are missing are made."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from peaccel._utils.atomic_files import check_outputs, check_suffix

__all__ = ["check_files", "inputs_of", "outputs"]


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


def outputs(folder: Path, task: Any, *names: str) -> list[Path]:
    """Files in a command's folder, made if it is missing; none of them may be one that the command reads."""
    if folder.is_file():
        raise ValueError(f"--out is {folder}, a file, expected a folder")
    files = [folder / name for name in names]
    check_files([(path, [path.suffix]) for path in files], inputs_of(task))
    return files


def inputs_of(task: Any) -> list[Path]:
    """The paths that a command reads."""
    return [x for name, x in vars(task).items() if name != "out" and isinstance(x, Path)]
