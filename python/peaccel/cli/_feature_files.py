"""Features, labels and covariates that are columns of tables, as the readers of arrays take them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import overload

from peaccel._utils.table_paths import columns_in, is_table
from peaccel.data.features import TableColumn
from peaccel.io._array_files import read_array
from peaccel.io._item_columns import MEANS

__all__ = ["column", "columns"]


@overload
def column(path: Path, name: str) -> Path | TableColumn: ...
@overload
def column(path: None, name: str) -> None: ...
def column(path: Path | None, name: str) -> Path | TableColumn | None:
    """The column that the path of a file names, or that of this name in a table; any other path as it is."""
    if path is None or not (is_table(path) or columns_in(path)):
        return path
    return TableColumn(f"{path}", read_array(path, *(MEANS if name == "mu" else (name,))))


def columns(paths: Iterable[Path], name: str) -> list[Path | TableColumn]:
    """`column` of each path."""
    return [column(path, name) for path in paths]
