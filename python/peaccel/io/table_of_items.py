"""Items of any file as a table, with all that stands beside them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from peaccel._utils.atomic_files import PathLike
from peaccel._utils.ids import checked_ids
from peaccel._utils.table_paths import file_of, is_table
from peaccel.io._array_files import load, names_in
from peaccel.io._arrow_columns import require_column
from peaccel.io._arrow_sources import TableSource, arrow, opened, opened_file
from peaccel.io._item_columns import chosen_in
from peaccel.io.arrow_tables import to_arrow, without_bad
from peaccel.io.distribution_files import COMMON, items_in_file

__all__ = ["table_of_items"]

IDS = ("id", "ids")


def table_of_items(
    path: PathLike, ids: NDArray[Any] | None = None, skip_bad: bool = False
) -> tuple[TableSource, int | None]:
    """The items of a file as a table of the columns id, mu, ... and all others; and their number, where it is known.

    Ids are those given, or the column that the path names, or else "id" or "ids"; of arrays without them, rows.
    """
    if not is_table(path):
        return _table_of_arrays(path, ids, skip_bad)
    owner, source = f"{path}", opened_file(path)
    chosen = chosen_in(path, source.names)
    if ids is None and "id" not in chosen:
        chosen["id"] = next((name for name in IDS if name in source.names), IDS[0])
        require_column(owner, source.names, chosen["id"])
    renamed = {name: key for key, name in chosen.items()}
    read_columns = [name for name in source.names if name in renamed or name not in IDS]
    parameters = [key for key in chosen if key != "id"]

    def batches(_: Sequence[str], rows: int) -> Iterator[Any]:
        stop = 0
        for batch in source.batches(read_columns, rows):
            fields = [batch.schema.field(name).with_name(renamed.get(name, name)) for name in read_columns]
            table = arrow().Table.from_arrays(batch.columns, schema=arrow().schema(fields))
            start, stop = stop, stop + len(table)
            if ids is not None:
                if stop > len(ids):
                    raise ValueError(f"{owner}: has more than {len(ids)} rows, expected so many, as there are ids")
                table = table.append_column("id", arrow().array(ids[start:stop]))
            yield from (without_bad(owner, table, parameters, start) if skip_bad else table).to_batches()
        if ids is not None and stop != len(ids):
            raise ValueError(f"{owner}: has {stop} rows, expected {len(ids)}, as there are ids")

    names = tuple(renamed.get(name, name) for name in read_columns) + (() if ids is None else ("id",))
    return source._replace(names=names, batches=batches), None


def _table_of_arrays(path: PathLike, ids: NDArray[Any] | None, skip_bad: bool) -> tuple[TableSource, int]:
    """Items, and beside them all arrays of a file that have a row for each."""
    file, (items, named, kept) = file_of(path), items_in_file(path, skip_bad)
    count, names = len(items) if kept is None else len(kept), names_in(file)
    others = load(file, [name for name in names if name not in {COMMON, *chosen_in(path, names).values()}])
    beside = {name: x for name, x in others.items() if x.shape[:1] == (count,)}
    found = [beside.pop(name) for name in IDS if name in beside]
    if ids is None and named is None:
        ids = checked_ids(f"{path}", found[0] if found else np.arange(count))
    if ids is not None:
        if len(ids) != count:
            raise ValueError(f"{path}: has {count} rows, expected {len(ids)}, as there are ids")
        named = ids if kept is None else ids[kept]
    rows = slice(None) if kept is None else kept
    table = to_arrow(items, named, **{name: x[rows] for name, x in beside.items()})
    return opened(f"{path}", table), len(table)
