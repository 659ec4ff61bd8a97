"""The file of results: a line of JSON for each cell, appended when it is finished."""

from __future__ import annotations

import base64
import fcntl
import json
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from reproduction.files import written
from reproduction.plan import Cell

__all__ = ["Record", "append", "count", "packed", "read", "unpacked"]

Record: TypeAlias = dict[str, Any]

KEYS = ("task", "row", "form", "trial", "split", "initialisation", "attempt")


def read(path: Path) -> dict[Cell, Record]:
    """Read the finished cells, the later line where a cell has two; none where there is no file.

    Raises
    ------
    ValueError
        A line is not one of results.
    """
    found: dict[Cell, Record] = {}
    for number, line in enumerate(_text(path).splitlines(), 1):
        try:
            record = json.loads(line)
            found[Cell(**{key: record[key] for key in KEYS})] = record
        except (ValueError, KeyError, TypeError):
            raise ValueError(f"{path}: line {number} is no result of python -m reproduction") from None
    return found


def count(path: Path) -> int:
    """How many lines there are, those that a later one supersedes too."""
    return len(_text(path).splitlines())


def append(path: Path, cell: Cell, record: Record) -> None:
    """Add a finished cell as a line of its own; processes that append at once wait for each other."""
    line = json.dumps({**{key: getattr(cell, key) for key in KEYS}, **record}, separators=(",", ":"), allow_nan=False)
    with _alone_in(path.parent):
        text = _text(path)
        with written(path) as fresh:
            fresh.write_text(f"{text}{line}\n", encoding="utf-8")


@contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Hold a folder's lock, for which others wait. The file itself is another one after each line."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def packed(values: Iterable[float] | ArrayLike) -> str:
    """Numbers in [0, 1] to 1/255, exactly where they are shares of 1, 3 or 5; in base64."""
    return base64.b64encode(np.rint(255 * np.asarray(values)).astype(np.uint8).tobytes()).decode()


def unpacked(text: str) -> NDArray[np.float64]:
    """Undo `packed`."""
    return np.frombuffer(base64.b64decode(text), np.uint8) / 255


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.exists() else ""
