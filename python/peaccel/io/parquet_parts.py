"""Tables larger than memory: read by blocks, written by blocks as one Parquet file."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from peaccel._utils.atomic_files import PathLike, aside
from peaccel.io._arrow_columns import column_of
from peaccel.io._arrow_sources import arrow, in_blocks, opened_file

__all__ = ["map_table", "with_columns"]


def map_table(source: PathLike, target: PathLike, function: Callable[[Any], Any], rows: int) -> None:
    """Write what a function makes of a table's blocks of so many rows; the file is there once it is whole.

    The function is given a pyarrow table and returns one, of the same columns each time; of a table without rows it is
    given that.
    """
    table = opened_file(source)
    blocks = map(function, in_blocks(table.batches(table.names, rows), rows))
    first = next(blocks, None)
    if first is None:
        first = function(table.table(table.names))
    with aside(Path(target), follow=False) as fresh, arrow().parquet.ParquetWriter(fresh, first.schema) as writer:
        for block in chain([first], blocks):
            writer.write_table(block)


def with_columns(owner: str, table: Any, keep: Sequence[str], columns: Mapping[str, Any]) -> Any:
    """Some columns of a pyarrow table, and new ones, each [N] or [N, K]."""
    found = {name: table.column(name) for name in keep}
    return arrow().table(found | {name: column_of(owner, name, x, len(table)) for name, x in columns.items()})
