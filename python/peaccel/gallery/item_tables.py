"""What callers give a gallery: items, ids of either kind and metadata, as Arrow tables and arrays after all checks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from peaccel.distributions import Distribution
from peaccel.io import from_arrow, to_arrow
from peaccel.io._arrow_sources import TableSource, in_blocks, opened
from peaccel.reranker.items import checked_ids

__all__ = ["NO_ID", "blocks", "decoded", "encoded", "padding"]

COMMIT = 131_072  # rows of a block of a table
LONGEST_ID = 255  # bytes of UTF-8: a file of rows has as many for each id as the longest takes
OWN = ("id", "mu", "var", "kappa", "scale")  # columns that are no metadata
NO_ID = b"\xff"  # stands for no id among UTF-8, in which this byte never occurs


def blocks(owner: str, items: Any, ids: Any, metadata: Mapping[str, Any] | None, rows: int | None) -> Iterator[Any]:
    """Arrow tables with the columns id, mu, ... of validated items, whose ids are all different in each table."""
    if rows is not None and not (isinstance(rows, int) and rows >= 1):
        raise ValueError(f"{owner}: rows is {rows!r}, expected an integer from 1 on")
    if isinstance(items, Distribution):
        if ids is None:
            raise ValueError(f"{owner}: ids is None, expected an id for each of {len(items)} items")
        return _of_distribution(owner, items, ids, dict(metadata or {}), rows)
    if ids is not None or metadata is not None:
        raise ValueError(f"{owner}: ids and metadata must be None, since the table has columns of them")
    source = items if isinstance(items, TableSource) else opened(owner, items)
    if "id" not in source.names:
        raise ValueError(f"{owner}: column id is missing, found {', '.join(map(str, source.names)) or 'none'}")
    _require_free(owner, [name for name in source.names if name not in OWN])
    return _of_table(owner, source, COMMIT if rows is None else rows)


def _of_distribution(
    owner: str, items: Distribution, ids: Any, metadata: dict[str, Any], rows: int | None
) -> Iterator[Any]:
    _require_free(owner, metadata)
    named = checked_ids(owner, ids, len(items))
    encoded(owner, named)
    try:
        table = to_arrow(items.validate(), named, **metadata)
    except ValueError as error:
        raise ValueError(f"{owner}: {error}") from None
    rows = rows or max(len(items), 1)
    return (table.slice(start, rows) for start in range(0, len(items), rows))


def _of_table(owner: str, source: Any, rows: int) -> Iterator[Any]:
    for table in in_blocks(source.batches(source.names, rows), rows):
        try:
            d, ids = from_arrow(table, ids="id")
        except ValueError as error:
            raise ValueError(f"{owner}: {error}") from None
        metadata = {name: table.column(name) for name in source.names if name not in OWN}
        yield next(_of_distribution(owner, d, ids, metadata, None))


def _require_free(owner: str, names: Any) -> None:
    """Refuse columns of metadata whose names mean something else, here or to Lance."""
    for name in names:
        if name in OWN or name.startswith("_"):
            raise ValueError(f"{owner}: metadata has a column {name}, expected a name of its own")


def encoded(owner: str, ids: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Ids as files hold them: int64, or bytes, the UTF-8 of strings, whose order is that of the strings."""
    if ids.dtype.kind == "i":
        return ids
    found = np.char.encode(ids, "utf-8") if ids.size else ids.astype("S1")
    if found.dtype.itemsize > LONGEST_ID:
        raise ValueError(f"{owner}: ids hold one of {found.dtype.itemsize} bytes, expected at most {LONGEST_ID}")
    return found


def decoded(ids: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Ids as callers know them; "" where there is none."""
    if ids.dtype.kind == "i":
        return ids
    return np.char.decode(np.where(ids == NO_ID, b"", ids), "utf-8")


def padding(like: np.ndarray[Any, Any], shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """No ids, beside ids of this kind."""
    return np.full(shape, -1) if like.dtype.kind == "i" else np.full(shape, NO_ID)
