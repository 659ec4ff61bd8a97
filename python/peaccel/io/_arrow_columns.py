"""Columns of Arrow tables as numpy arrays, without a copy where a column is one chunk; the way back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from peaccel._utils.atomic_files import PathLike
from peaccel._utils.reading import named, strings_of
from peaccel._utils.table_paths import name_in
from peaccel.io._arrow_sources import arrow, opened_file

__all__ = ["COMMON", "column_of", "column_of_file", "ids_of", "is_common", "numbers_of", "require_column"]

COMMON = {b"peaccel:common": b"true"}
"""Metadata of a column that was made of one parameter for all items; rows that came later may have others."""

# How Arrow calls its types.
FLOATS = ("halffloat", "float", "double")
INTEGERS = tuple(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64))
STRINGS = ("string", "large_string", "string_view")

FEW_ROWS = 1024  # chunks of fewer cost more than a copy of them


def numbers_of(owner: str, table: Any, name: str, first: int = 0, numbers: bool = False) -> NDArray[Any]:
    """[N, D], or with `numbers` perhaps [N]: a column of lists of one length, or of numbers, of floating-point numbers.

    A column of one chunk is not copied: the array, which cannot be written to, lies in Arrow's memory. What is null
    becomes NaN. Errors count rows from `first`.
    """
    column = _decoded(table.column(name))
    if _kind(column) not in FLOATS or not (numbers or _is_list(column)):
        numbers_too = ", or such numbers" if numbers else ""
        expected = f"lists of float16, float32 or float64{numbers_too}"
        raise ValueError(f"{owner}: column {name} is {column.type}, expected {expected}")
    return _values(owner, name, column, first, nulls=True)


def ids_of(owner: str, table: Any, name: str, first: int = 0) -> NDArray[Any]:
    """[N] int64, or strings: a column of integers or of strings, by which others know the rows."""
    column = _decoded(table.column(name))
    if _is_list(column) or _kind(column) not in (*INTEGERS, *STRINGS):
        raise ValueError(f"{owner}: column {name} is {column.type}, expected integers or strings")
    values = _values(owner, name, column, first)
    if values.dtype == np.uint64 and len(over := np.flatnonzero(values > np.iinfo(np.int64).max)):
        raise ValueError(f"{owner}: column {name} is {values[over[0]]} in row {first + over[0]}, beyond int64")
    return values if values.dtype.kind == "U" else values.astype(np.int64, copy=False)


def column_of_file(path: PathLike, *names: str) -> NDArray[Any]:
    """[N] or [N, D] numbers, booleans or strings: the column that the path names, or the first of these names."""
    source = opened_file(path)
    name = name_in(path, names, source.names)
    require_column(f"{path}", source.names, name)
    column = _decoded(source.table([name]).column(name))
    if _kind(column) not in (*FLOATS, *INTEGERS, *STRINGS, "bool"):
        raise ValueError(f"{path}: column {name} is {column.type}, expected numbers, booleans or strings, or lists")
    return _values(f"{path}", name, column, 0)


def require_column(owner: str, names: Sequence[str], name: str) -> None:
    """Refuse a column that is not there, or more than once."""
    if names.count(name) != 1:
        what = "is missing" if name not in names else "is there twice"
        raise ValueError(f"{owner}: column {name} {what}, found {named(names)}")


def is_common(schema: Any, name: str) -> bool:
    """Whether a column was made of one parameter for all items, which those of its rows may still be or not."""
    return COMMON.items() <= (schema.field(name).metadata or {}).items()


def column_of(owner: str, name: str, x: Any, length: int) -> Any:
    """An Arrow array of [N] or [N, D] numbers, which are not copied where they lie side by side, or of N objects."""
    pa = arrow()
    if not isinstance(x, np.ndarray):
        try:
            column = pa.chunked_array(x) if hasattr(x, "chunks") else pa.array(x)
        except (pa.ArrowException, TypeError) as error:
            raise ValueError(f"{owner}: {name} is no column: {str(error).partition(chr(10))[0]}") from None
    elif x.ndim == 2:
        column = pa.FixedSizeListArray.from_arrays(pa.array(_side_by_side(x).reshape(-1)), x.shape[1])
    elif x.ndim == 1:
        column = pa.array(_side_by_side(x))
    else:
        raise ValueError(f"{owner}: {name} has shape {x.shape}, expected ({length},) or ({length}, D)")
    if len(column) != length:
        raise ValueError(f"{owner}: {name} has {len(column)} rows, expected {length} like the distribution")
    return column


def _side_by_side(x: NDArray[Any]) -> NDArray[Any]:
    """The elements side by side in the machine's byte order: Arrow has no other."""
    return np.ascontiguousarray(x, x.dtype.newbyteorder("="))


def _decoded(column: Any) -> Any:
    """A column whose values are not behind a dictionary, nor an extension of a plain type such as a tensor."""
    pa = arrow()
    if isinstance(column.type, pa.BaseExtensionType):
        return pa.chunked_array([chunk.storage for chunk in column.chunks], column.type.storage_type)
    return column.cast(column.type.value_type) if pa.types.is_dictionary(column.type) else _joined(column)


def _joined(column: Any) -> Any:
    """The column in larger chunks where they are of few rows, such as one in each of a shuffled dataset."""
    count = column.num_chunks
    if count * FEW_ROWS <= len(column) or count < 2:
        return column
    pa, chunks, step = arrow(), column.chunks, max(1, 64 * FEW_ROWS * count // max(1, len(column)))
    return pa.chunked_array([pa.concat_arrays(chunks[i : i + step]) for i in range(0, count, step)], column.type)


def _is_list(column: Any) -> bool:
    return str(column.type).startswith(("fixed_size_list<", "list<", "large_list<", "list_view<", "large_list_view<"))


def _kind(column: Any) -> str:
    """Arrow's name of the type of a column's values, or of those in its lists."""
    return str(column.type.value_type if _is_list(column) else column.type)


def _values(owner: str, name: str, column: Any, first: int, nulls: bool = False) -> NDArray[Any]:
    """The values of a column as [N] or, where they are in lists, [N, D]; what is null is refused, or becomes NaN."""
    listed, kind = _is_list(column), _kind(column)
    width = _width(owner, name, column) if listed else 1
    parts, row = [], first
    for chunk in column.chunks:
        if len(chunk):
            if not nulls:
                _require_filled(owner, name, chunk, row)
            flat = _flat(owner, name, chunk, width, row, nulls) if listed else chunk
            values = _strings(owner, name, flat, width, row) if kind in STRINGS else _numbers(flat)
            if listed and chunk.null_count:
                filled = np.full((len(chunk), width), np.nan, values.dtype)
                filled[~_is_null(chunk)] = values.reshape(-1, width)
                values = filled.reshape(-1)
            parts.append(values)
            row += len(chunk)
    if len(parts) != 1:
        element = column.type.value_type if listed else column.type
        none = np.empty(0, str) if kind in STRINGS else _numbers(arrow().array([], element))  # without pandas
        parts = [np.concatenate([none, *parts])]
    found: NDArray[Any] = parts[0]
    return found.reshape(len(column), width) if listed else found


def _numbers(flat: Any) -> NDArray[Any]:
    values: NDArray[Any] = flat.to_numpy(zero_copy_only=str(flat.type) != "bool" and not flat.null_count)
    return values


def _is_null(x: Any) -> NDArray[np.bool_]:
    return np.asarray(x.is_null().to_numpy(zero_copy_only=False))


def _strings(owner: str, name: str, flat: Any, width: int, row: int) -> NDArray[Any]:
    strings = flat.to_pylist()
    if cut := [i for i, x in enumerate(strings) if x.endswith("\0")]:  # which numpy would cut
        raise ValueError(f"{owner}: column {name} ends in a zero character in row {row + cut[0] // width}")
    return strings_of(owner, f"column {name}", strings, flat.nbytes)


def _width(owner: str, name: str, column: Any) -> int:
    """D, the length of the first list, or that of all of them by their type."""
    if hasattr(column.type, "list_size"):
        return int(column.type.list_size)
    for chunk in column.chunks:
        for value in chunk.drop_null()[:1]:
            return len(value)
    raise ValueError(f"{owner}: column {name} is {column.type} without rows, so that nothing tells how long lists are")


def _flat(owner: str, name: str, chunk: Any, width: int, row: int, nulls: bool) -> Any:
    """The numbers of a chunk's lists, one list after another; lists that are sliced away or null are not among them."""
    flat = chunk.flatten()
    if not hasattr(chunk.type, "list_size"):
        found = arrow().compute.list_value_length(chunk).fill_null(width).to_numpy(zero_copy_only=False)
        if len(other := np.flatnonzero(found != width)):
            what = f"{found[other[0]]} numbers in row {row + other[0]}, expected {width} as in the first row"
            raise ValueError(f"{owner}: column {name} has {what}")
    if flat.null_count and not nulls:
        place = int(np.argmax(_is_null(flat)))
        raise ValueError(f"{owner}: column {name} holds null in row {row + place // width}, expected numbers")
    return flat


def _require_filled(owner: str, name: str, chunk: Any, row: int) -> None:
    if chunk.null_count:
        raise ValueError(f"{owner}: column {name} is null in row {row + int(np.argmax(_is_null(chunk)))}")
