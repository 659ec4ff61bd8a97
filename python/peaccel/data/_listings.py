"""Lists and folders of data sets; errors name the file, the line and what is expected there."""

from __future__ import annotations

import csv
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

import numpy as np
from numpy.typing import NDArray

from peaccel._utils import npy_files
from peaccel._utils.atomic_files import PathLike

__all__ = ["arrays", "by_class", "columns", "existing", "fields", "folder", "images_in", "integers", "lines", "table"]

SUFFIXES = (".bmp", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp")

Kind = Callable[[str], Any]


def folder(path: PathLike, holds: str) -> Path:
    """The path of a folder that is there."""
    path = Path(path)
    if not path.is_dir():
        raise FileNotFoundError(f"{path}: no such folder, expected one with {holds}")
    return path


def existing(path: Path, holds: str) -> Path:
    """The path of a file that is there."""
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file, expected one with {holds}")
    return path


def lines(path: Path, holds: str) -> Iterator[tuple[str, str]]:
    """The lines that are not blank, each after its place, "file:number"."""
    with _opened(path, holds) as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                yield f"{path}:{number}", line.rstrip("\n")


@contextmanager
def _opened(path: Path, holds: str, newline: str | None = None) -> Iterator[TextIO]:
    """A file of text; what is found to be none while it is read is told with its name."""
    with existing(path, holds).open(encoding="utf-8", newline=newline) as file:
        try:
            yield file
        except (UnicodeDecodeError, csv.Error) as error:
            raise ValueError(f"{path}: cannot be read as text, expected {holds} ({error})") from None


def fields(line: tuple[str, str], /, separator: str | None = None, **kinds: Kind) -> list[Any]:
    """The fields of a line, converted to `kinds`; a line with more or fewer fields is refused."""
    place, text = line
    words = text.split(separator)
    if len(words) == len(kinds):
        try:
            return [_converted(kind, word) for kind, word in zip(kinds.values(), words, strict=True)]
        except ValueError:
            pass
    raise ValueError(f"{place}: {text!r} is not of the form {(separator or ' ').join(kinds)!r}")


def _converted(kind: Kind, word: str) -> Any:
    """A word as its kind has it; ValueError where it is none, or a number that no array holds."""
    value = kind(word)
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise ValueError
    return value


def table(path: Path, /, separator: str | None = None, skip: int = 0, **kinds: Kind) -> list[list[Any]]:
    """The columns of a file whose lines, but for the first few, have just these fields."""
    form = (separator or " ").join(kinds)
    rows = [fields(line, separator, **kinds) for line in list(lines(path, f"lines {form!r}"))[skip:]]
    if not rows:
        raise ValueError(f"{path}: is empty, expected lines {form!r}")
    return list(map(list, zip(*rows, strict=True)))


def columns(path: Path, /, **kinds: Kind) -> list[list[Any]]:
    """Some columns of a comma-separated file with a header, by name."""
    with _opened(path, f"columns {', '.join(kinds)}", newline="") as file:
        reader = csv.DictReader(file)
        for name in kinds:
            if name not in (reader.fieldnames or ()):
                found = ", ".join(reader.fieldnames or ()) or "nothing"
                raise ValueError(f"{path}:1: column {name} is missing, found {found}")
        found_columns: list[list[Any]] = [[] for _ in kinds]
        for row in reader:
            for values, (name, kind) in zip(found_columns, kinds.items(), strict=True):
                try:
                    values.append(_converted(kind, row[name] or ""))
                except ValueError:
                    place = f"{path}:{reader.line_num}"
                    raise ValueError(f"{place}: column {name} is {row[name]!r}, expected {kind.__name__}") from None
    return found_columns


def arrays(path: Path, *names: str) -> list[NDArray[Any]]:
    """The named arrays of an .npz file, or the only one of an .npy file."""
    holds = f"arrays {' and '.join(names)}" if path.suffix == ".npz" else f"an array of {names[0]}"
    found = npy_files.load(existing(path, holds), names)
    if missing := [name for name in names if name not in found and found.keys() != {""}]:
        raise ValueError(f"{path}: key {missing[0]} is missing, expected {holds}")
    return list(found.values()) if "" in found else [found[name] for name in names]


def by_class(root: Path) -> tuple[list[str], list[str]]:
    """Paths and classes of the images in a folder of one folder for each class, both sorted by name."""
    paths, classes = [], []
    for name in sorted(os.listdir(folder(root, "one folder for each class"))):
        each = root / name
        if each.is_dir() and not name.startswith("."):
            files = images_in(each)
            paths += [str(each / file) for file in files]
            classes += [name] * len(files)
    if not paths:
        raise FileNotFoundError(f"{root}: holds no images, expected <class>/<image> with suffix {', '.join(SUFFIXES)}")
    return paths, classes


def images_in(path: Path) -> list[str]:
    """Sorted names of the images in a folder; those with a dot in front are what some systems leave beside images."""
    return sorted(name for name in os.listdir(path) if name.lower().endswith(SUFFIXES) and not name.startswith("."))


def integers(values: Any) -> NDArray[np.int64]:
    """An array of 64-bit integers."""
    return np.asarray(values, np.int64)
