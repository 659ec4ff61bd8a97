"""Columns of text in files, read by pyarrow where it is installed and nothing is out of the ordinary, or by a loop."""

from __future__ import annotations

import codecs
import csv
import functools
import itertools
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from peaccel._utils.reading import named, reading, strings_of
from peaccel.io._array_files import existing, present, text_rows
from peaccel.io._arrow_sources import arrow, texts_in

__all__ = ["TextColumns", "csv_text", "floats_of", "integers_of", "spaced_columns"]

BLOCK = 1024  # lines that a loop turns into columns at a time
SHORT = 1 << 20  # bytes: importing pyarrow takes longer than to read so few


class TextColumns:
    """The columns of a .csv or .tsv file whose first line names them.

    Parameters
    ----------
    path
        The file.
    suffixes
        Those that it may have.
    delimiters
        Characters that may part columns, of which the first line has the most.

    Attributes
    ----------
    names
        The names, as they stand in the first line.
    columns
        [P] texts of each: lists, or Arrow's strings.
    """

    def __init__(self, path: Path, suffixes: Sequence[str], delimiters: str) -> None:
        self.path = existing(path, suffixes)
        content = path.read_bytes().removeprefix(codecs.BOM_UTF8)
        if not content.endswith((b"\n", b"\r")):
            raise ValueError(f"{path}: ends within a line, as if cut off; where it is whole, end it with a newline")
        self.size = len(content)
        with reading(path):
            head = content[: content.find(b"\n") + 1].decode()
            self._delimiter = max(delimiters, key=head.count)
            self.names = next(csv.reader([head], delimiter=self._delimiter), [])
        columns = None if self.size < SHORT else texts_in(content, self._delimiter, len(self.names), skip=1)
        self.columns: list[Any] = self._lists() if columns is None else columns

    def __len__(self) -> int:
        """Count the lines below the first."""
        return len(self.columns[0]) if self.columns else 0

    def strings(self, place: int) -> NDArray[np.str_]:
        """A column as an array."""
        return strings_of(self.path, self.names[place], _listed(self.columns[place]), self.size)

    def line(self, row: int) -> str:
        """The place of a row, for messages; lines count from 1."""
        return f"{self.path}: line {self._numbers[row]}"

    def _lists(self) -> list[list[str]]:
        width = len(self.names)
        columns: list[list[str]] = [[] for _ in self.names]
        with self._below_the_first() as lines:
            while block := list(itertools.islice(lines, BLOCK)):
                if {*map(len, block)} - {0, width}:
                    break
                texts = list(itertools.chain.from_iterable(block))
                for place, column in enumerate(columns):
                    column.extend(texts[place::width])
        if block:
            number, found = next((number, len(words)) for number, words in self._rows() if len(words) != width)
            what = f"has {found} columns, expected {width}, {named(self.names)}"
            raise ValueError(f"{self.path}: line {number}: {what}")
        return columns

    @functools.cached_property
    def _numbers(self) -> list[int]:
        return [number for number, _ in self._rows()]

    def _rows(self) -> Iterator[tuple[int, list[str]]]:
        """The number of each line that is not empty, and its words."""
        with self._below_the_first() as lines:
            for words in lines:
                if words:
                    yield lines.line_num, words

    @contextmanager
    def _below_the_first(self) -> Iterator[Any]:
        with reading(self.path), self.path.open(newline="", encoding="utf-8-sig") as file:
            lines = csv.reader(file, delimiter=self._delimiter)
            next(lines, None)
            yield lines


def integers_of(column: Any) -> NDArray[np.int64] | None:
    """A column as integers, if all of its texts are how such integers are written, without zeros before them."""
    try:
        if isinstance(column, list):
            numbers = np.array(list(map(int, column)), np.int64)
            length = sum(map(len, column))
        else:
            numbers = column.cast("int64").to_numpy()
            length = arrow().compute.sum(arrow().compute.binary_length(column)).as_py() or 0
    except (ValueError, OverflowError):
        return None
    # Any other spelling of the same integer is longer.
    digits = np.searchsorted(10 ** np.arange(1, 19), np.abs(numbers), side="right") + 1 + (numbers < 0)
    return numbers if length == digits.sum() else None


def floats_of(column: Any) -> NDArray[np.float64] | None:
    """A column as numbers; None where a text is none."""
    try:
        found: NDArray[np.float64] = (
            np.array(list(map(float, column))) if isinstance(column, list) else column.cast("double").to_numpy()
        )
    except ValueError:
        return None if isinstance(column, list) else floats_of(_listed(column))
    # What other spellings of NaN there are is for Python to say.
    return floats_of(_listed(column)) if not isinstance(column, list) and np.isnan(found).any() else found


def spaced_columns(path: Path, count: int, expected: str) -> list[list[str]]:
    """So many columns of texts apart by spaces or tabs; another number of them in a line is an error that names it."""
    content = present(path).read_bytes()
    single = len(content) > SHORT and content.isascii() and not any(x in content for x in (b"  ", b" \n", b"\n "))
    found = texts_in(content, " ", count, skip=0) if single and not content.startswith(b" ") else None
    if found is not None:
        return [column.to_pylist() for column in found]
    columns: list[list[str]] = [[] for _ in range(count)]
    for number, words in text_rows(path):
        if len(words) != count:
            raise ValueError(f"{path}: line {number} has {len(words)} columns, expected {count}, {expected}")
        for column, word in zip(columns, words, strict=True):
            column.append(word)
    return columns


def csv_text(names: Sequence[str], columns: Sequence[NDArray[Any]], delimiter: str = ",") -> str:
    """A line for each row of columns, below one of their names."""
    text = StringIO()
    text.write(delimiter.join(names) + "\n")
    words = [_cells(x, delimiter) for x in columns]
    text.writelines(map((delimiter.join(["%s"] * len(words)) + "\n").__mod__, zip(*words, strict=True)))
    return text.getvalue()


def _cells(x: NDArray[Any], delimiter: str) -> list[Any]:
    """Numbers as they are, and strings, in quotes where they hold what has a meaning: a lone carriage return too."""
    values: list[Any] = x.tolist()
    if x.dtype.kind not in "OU":
        return values
    special = re.compile(f'["\\r\\n{delimiter}]')
    quoted = (isinstance(value, str) and special.search(value) for value in values)
    return [f'"{x.replace(chr(34), chr(34) * 2)}"' if quote else x for x, quote in zip(values, quoted, strict=True)]


def _listed(column: Any) -> list[str]:
    return column if isinstance(column, list) else column.to_pylist()
