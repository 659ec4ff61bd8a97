"""Paths of files that hold tables, behind which columns may be named: "faces.parquet:id"."""

from __future__ import annotations

import os
import re
from pathlib import Path

__all__ = ["TABLES", "columns_in", "file_of", "is_table"]

TABLES = (".parquet", ".arrow", ".feather", ".lance")  # suffixes of files, and of folders, that hold a table
NAMED = re.compile(rf"(.*(?:{'|'.join(map(re.escape, TABLES))})):(.+)")


def is_table(path: str | os.PathLike[str]) -> bool:
    """Whether the path is that of a table."""
    return file_of(path).suffix in TABLES


def file_of(path: str | os.PathLike[str]) -> Path:
    """The path without the columns that it names."""
    found = NAMED.fullmatch(os.fspath(path))
    return Path(found[1] if found else path)


def columns_in(path: str | os.PathLike[str]) -> str:
    """The columns that the path names; an empty string where it names none."""
    found = NAMED.fullmatch(os.fspath(path))
    return found[2] if found else ""
