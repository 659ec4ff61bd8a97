"""Paths of files that hold columns or arrays, behind which some may be named: "faces.parquet:mu=vector,id=key"."""

from __future__ import annotations

import os
import re
from collections.abc import Collection
from pathlib import Path

__all__ = ["TABLES", "columns_in", "file_of", "is_table", "name_in"]

TABLES = (".parquet", ".arrow", ".feather", ".lance", ".csv", ".jsonl")  # suffixes of files, or folders, with a table
ARRAYS = (".npz", ".safetensors")  # suffixes of files with arrays under names
ITEM = ("mu", "var", "kappa", "scale", "id")
NAMED = re.compile(rf"(.*(?:{'|'.join(map(re.escape, TABLES + ARRAYS))})):(.+)")


def is_table(path: str | os.PathLike[str]) -> bool:
    """Whether the path is that of a table."""
    return file_of(path).suffix in TABLES


def file_of(path: str | os.PathLike[str]) -> Path:
    """The path without the columns that it names."""
    found = NAMED.fullmatch(os.fspath(path))
    return Path(found[1] if found else path)


def columns_in(path: str | os.PathLike[str]) -> dict[str, str]:
    """The names behind "mu=", "var=", "kappa=", "scale=" and "id=" of a path; behind an empty key one that stands
    alone.

    Raises
    ------
    ValueError
        Of several names one has another key or none.
    """
    found = NAMED.fullmatch(os.fspath(path))
    if not found:
        return {}
    words = [word.partition("=") for word in found[2].split(",")]
    if not any(key in ITEM and equals for key, equals, _ in words):
        return {"": found[2]}
    columns = {key if equals else "mu": name if equals else key for key, equals, name in words}
    if wrong := [key for key in columns if key not in ITEM or not columns[key]]:
        raise ValueError(
            f"{path}: {wrong[0]!r} names no column, expected mu=, var=, kappa=, scale= or id= and its name"
        )
    return columns


def name_in(path: str | os.PathLike[str], names: tuple[str, ...], found: Collection[str]) -> str:
    """The name of one array of a file: that behind its path, or the first of some that is found, else the first."""
    columns = columns_in(path)
    for key in ("", *("id" if name == "ids" else name for name in names)):
        if key in columns:
            return columns[key]
    return next((name for name in names if name in found), names[0])
