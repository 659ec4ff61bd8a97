"""Checked items, ids of either kind and metadata of a gallery's callers, as Arrow tables and arrays."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from peaccel._utils.ids import Ids, are_strings, checked_ids
from peaccel.distributions import Distribution
from peaccel.io import from_arrow, to_arrow
from peaccel.io._arrow_sources import TableSource, in_blocks, opened

__all__ = ["ITEM", "blocks", "decoded", "encoded", "ids_of"]

COMMIT = 131_072  # rows of a block of a table
LONGEST_ID = 255  # bytes of UTF-8: a file of rows has as many for each id as the longest takes
ITEM = ("id", "mu", "var", "kappa", "scale")  # columns that are no metadata


def blocks(owner: str, items: Any, ids: Any, metadata: Mapping[str, Any] | None, rows: int | None) -> Iterator[Any]:
    """Arrow tables with the columns id, mu, ... of validated items, whose ids are all different in each table."""
    if rows is not None and not (isinstance(rows, int) and rows >= 1):
        raise ValueError(f"{owner}: rows is {rows!r}, expected an integer from 1 on")
    if isinstance(items, Distribution):
        if ids is None:
            raise ValueError(f"{owner}: ids is None, expected an id for each of {len(items)} items")
        table, rows = _checked(owner, items, ids, dict(metadata or {})), rows or max(len(items), 1)
        return (table.slice(start, rows) for start in range(0, len(items), rows))
    if ids is not None or metadata is not None:
        raise ValueError(f"{owner}: ids and metadata must be None, since the table has columns of them")
    source = items if isinstance(items, TableSource) else opened(owner, items)
    if "id" not in source.names:
        raise ValueError(f"{owner}: column id is missing, found {', '.join(map(str, source.names)) or 'none'}")
    return _of_table(owner, source, rows or COMMIT)


def _of_table(owner: str, source: TableSource, rows: int) -> Iterator[Any]:
    for table in in_blocks(source.batches(source.names, rows), rows):
        try:
            items, ids = from_arrow(table, ids="id")
        except ValueError as error:
            raise ValueError(f"{owner}: {error}") from None
        yield _checked(owner, items, ids, {name: table.column(name) for name in source.names if name not in ITEM})


def _checked(owner: str, items: Distribution, ids: Any, metadata: dict[str, Any]) -> Any:
    """The Arrow table of items; refused where values are wrong, ids repeat, or metadata have a name that is taken."""
    for name in metadata:
        if name in ITEM or name.startswith("_"):  # which means something to Lance
            raise ValueError(f"{owner}: metadata has a column {name}, expected a name of its own")
    ids = checked_ids(owner, ids, len(items))
    encoded(owner, ids)
    try:
        return to_arrow(items.validate(), ids, **metadata)
    except ValueError as error:
        raise ValueError(f"{owner}: {error}") from None


def ids_of(table: Any) -> Ids:
    """The ids of an Arrow table or batch, as files hold them."""
    column = table.column("id")
    if str(column.type) == "int64":
        return np.asarray(column.to_numpy())
    return encoded("Gallery", np.array(column.to_pylist(), str))


def encoded(owner: str, ids: Ids) -> Ids:
    """Ids as files hold them: int64, or bytes, the UTF-8 of strings, whose order is that of the strings."""
    if not are_strings(ids):
        return ids
    found = np.char.encode(ids, "utf-8") if ids.size else ids.astype("S1")
    if found.dtype.itemsize > LONGEST_ID:
        raise ValueError(f"{owner}: ids hold one of {found.dtype.itemsize} bytes, expected at most {LONGEST_ID}")
    return found


def decoded(ids: Ids) -> Ids:
    """Ids as callers know them."""
    return np.char.decode(ids, "utf-8") if ids.dtype.kind == "S" else ids
