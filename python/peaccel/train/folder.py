"""The folder of a run: whether one may begin there, and how one that came to nothing leaves it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from peaccel._utils.atomic_files import check_output
from peaccel._utils.python_files import is_file, is_function

__all__ = ["check_folder", "check_named", "withdrawn"]

WRITTEN = (
    "run.json",
    "log.jsonl",
    "state.safetensors",
    "best.safetensors",
    "model.safetensors",
    "result.json",
    "queries.npz",
)


def check_folder(out: Path, resume: bool, inputs: Iterable[Path | None] = ()) -> None:
    """Refuse a folder that is none, whose run or other files would be lost, or whose files a run begins from.

    Raises
    ------
    ValueError
        As said.
    """
    if out.exists() and not out.is_dir():
        raise ValueError(f"out is {out}, a file, expected a folder")
    if not resume and (out / "run.json").exists():
        raise ValueError(f"out is {out}, which holds a run: resume it (--resume) or choose another folder")
    if not (out / "run.json").exists() and (others := [name for name in WRITTEN if os.path.lexists(out / name)]):
        raise ValueError(f"out is {out}, which holds {others[0]} of no run: choose another folder")
    for path in (out / name for name in WRITTEN):
        if path.exists():
            check_output(path, None, [path for path in inputs if path is not None])


def check_named(folder: Path, option: str, name: str) -> None:
    """Refuse a reader or an encoder in a Python file that run.json alone names, which must not run: ValueError."""
    if is_file(name) or is_function(name):
        what = f"{option} is {name!r}, a file, which is not run because a run names it; name it yourself"
        raise ValueError(f"{folder / 'run.json'}: {what}: --{option} {Path(name).name}")


@contextmanager
def withdrawn(out: Path) -> Iterator[None]:
    """Make a run's folder; remove what the run wrote there where it ends before there is a state to go on from.

    So a run that failed in its first epoch is not in the way of the next one. Files that were there before stay.
    """
    before = set(_written(out))
    missing = [folder for folder in (out, *out.parents) if not folder.exists()]
    try:
        out.mkdir(parents=True, exist_ok=True)
        yield
    except BaseException:
        if not (out / "state.safetensors").exists():
            with suppress(OSError):  # of a folder that could not be made, or that has other files
                for path in set(_written(out)) - before:
                    path.unlink(missing_ok=True)
                for folder in missing:
                    folder.rmdir()
        raise


def _written(out: Path) -> list[Path]:
    """Files that a run may have written in a folder."""
    return [path for path in (*(out / name for name in WRITTEN), *out.glob("events.out.tfevents.*")) if path.exists()]
