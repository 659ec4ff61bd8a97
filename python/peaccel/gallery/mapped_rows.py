"""The rows of a fragment as the kernels read them, in a file that is mapped into memory and can be made again.

A file is a .safetensors of the fragment's rows, deleted ones too, in ascending order of their ids. As fragments never
change, neither do these files; which rows are there depends on the version, and is asked of it.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from peaccel._utils.atomic_files import aside
from peaccel.distributions import Distribution
from peaccel.gallery import lance_table
from peaccel.gallery.item_tables import encoded
from peaccel.gallery.lance_table import LanceTable
from peaccel.io import from_arrow, to_state
from peaccel.io.states import distribution_of

__all__ = ["MappedRows", "damage", "mapped", "sweep", "writable"]

DTYPES = {"F16": "<f2", "F32": "<f4", "F64": "<f8", "I64": "<i8", "U32": "<u4", "U8": "|u1"}
NAMES = {np.dtype(code): name for name, code in DTYPES.items()}
SUFFIX = ".safetensors"
BLOCK = 1 << 20  # bytes that are written at a time
ABANDONED = 3600.0  # seconds after which a file that is being written is taken for one of a process that was killed


class MappedRows(NamedTuple):
    """A fragment's rows, deleted ones too, in ascending order of their ids."""

    name: str
    items: Distribution
    ids: np.ndarray[Any, Any]  # int64, or bytes: the UTF-8 of strings
    places: np.ndarray[Any, Any]  # uint32: where the row is in the fragment


def mapped(folder: Path, table: LanceTable, fragment: Any) -> MappedRows:
    """The rows of a fragment from its file, which is made where it is missing or cut short."""
    name = lance_table.name_of(fragment)
    path = folder / f"{name}{SUFFIX}"
    arrays = _opened(path)
    if arrays is None:
        with writable(path):
            _write(path, table, fragment)
        arrays = _opened(path)
        assert arrays is not None
    ids, places = arrays.pop("id"), arrays.pop("place")
    ids = ids if ids.ndim == 1 else ids.view(f"S{ids.shape[1]}")[:, 0]
    return MappedRows(name, distribution_of(**arrays), ids, places)


@contextmanager
def writable(path: Path) -> Iterator[None]:
    """What derives a file or a folder from the dataset; where it cannot be written, that is told in one line."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        reason = error.strerror or " ".join(str(error).split())
        raise OSError(f"{path}: cannot be written ({reason}); another folder can be given as derived") from None


def damage(folder: Path, table: LanceTable, fragment: Any) -> str:
    """What is wrong with the file of a fragment, or with the fragment beside it, in one line; empty for nothing."""
    path = folder / f"{lance_table.name_of(fragment)}{SUFFIX}"
    of_fragment = f"fragment {fragment.fragment_id}"
    arrays = _opened(path)
    intact = arrays is not None and _checksum(arrays) == int(_header(path)["__metadata__"]["crc32"])
    if arrays is not None and not intact:
        return f"{path}: is damaged; it can be deleted, and is then made again of {of_fragment}"
    try:
        fresh = _read(table, fragment)
    except ValueError as error:
        return str(error)
    if arrays is None:
        return ""
    for name, x in fresh.items():
        differ = (
            np.flatnonzero((x != arrays[name]).reshape(len(x), -1).any(1)) if x.shape == arrays[name].shape else [0]
        )
        if len(differ):
            return f"{of_fragment}: column {name} is not what it was in {len(differ)} rows when {path} was made of it"
    return ""


def sweep(folder: Path, names: set[str]) -> None:
    """Delete the files of fragments of other names, and what killed processes have left."""
    if not folder.is_dir():
        return
    abandoned = time.time() - ABANDONED
    for path in (*folder.glob(f"*{SUFFIX}"), *folder.glob(".*")):
        try:
            if path.name.startswith(".") and path.stat().st_mtime < abandoned:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
            elif not path.name.startswith(".") and path.stem not in names:
                path.unlink()
        except OSError:  # another process has deleted it, or has it open where that forbids to
            continue


# -- files -------------------------------------------------------------------------------------------------------------


def _read(table: LanceTable, fragment: Any) -> dict[str, np.ndarray[Any, Any]]:
    """The arrays of a fragment in memory, in ascending order of ids."""
    layout = _Layout(table, fragment)
    arrays = {name: np.empty(shape, dtype) for name, (shape, dtype) in layout.arrays.items()}
    layout.fill(arrays)
    return arrays


def _write(path: Path, table: LanceTable, fragment: Any) -> None:
    """Write the file of a fragment, in parts: the fragment need not fit into memory."""
    layout = _Layout(table, fragment)
    header: dict[str, Any] = {}
    end = 0
    for name, (shape, dtype) in layout.arrays.items():
        start, end = end, end + math.prod(shape) * dtype.itemsize
        header[name] = {"dtype": NAMES[dtype], "shape": list(shape), "data_offsets": [start, end]}
    text = _text(header, 0)
    with aside(path) as fresh:
        with fresh.open("wb") as file:
            file.write(text)
            _reserve(file, len(text) + end)
        arrays = _views(np.memmap(fresh, np.uint8, "r+"), header, len(text)) if end else {}
        layout.fill(arrays)
        with fresh.open("r+b") as file:
            file.write(_text(header, _checksum(arrays)))
        del arrays


def _reserve(file: Any, size: int) -> None:
    """Make the file as long as it will be, on a disk that has the room: writing to a map of it must not fail."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(file.fileno(), 0, size)
    else:
        for start in range(file.tell(), size, BLOCK):
            file.write(bytes(min(BLOCK, size - start)))


def _text(header: dict[str, Any], checksum: int) -> bytes:
    """The header of a .safetensors file, which fills whole lines of a cache; it is as long for every checksum."""
    about = {"__metadata__": {"crc32": f"{checksum:010d}", "header": str(_crc32(header))}, **header}
    text = json.dumps(about).encode()
    text += b" " * (-(8 + len(text)) % 64)
    return len(text).to_bytes(8, "little") + text


def _crc32(header: dict[str, Any]) -> int:
    return zlib.crc32(json.dumps(header).encode())


def _header(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        header: dict[str, Any] = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    return header


def _opened(path: Path) -> dict[str, np.ndarray[Any, Any]] | None:
    """The arrays of a file, mapped; None where there is none, or none that is whole."""
    try:
        size, header = path.stat().st_size, _header(path)
        intact = header.pop("__metadata__")["header"] == str(_crc32(header))
        with path.open("rb") as file:
            start = 8 + int.from_bytes(file.read(8), "little")
        if not intact or size != start + max(x["data_offsets"][1] for x in header.values()):
            return None
        return _views(np.asarray(np.memmap(path, np.uint8, "r")), header, start)
    except (OSError, ValueError, KeyError, TypeError, MemoryError):
        return None


def _views(words: np.ndarray[Any, Any], header: dict[str, Any], start: int) -> dict[str, np.ndarray[Any, Any]]:
    found = {}
    for name, x in header.items():
        first, end = (start + offset for offset in x["data_offsets"])
        found[name] = words[first:end].view(DTYPES[x["dtype"]]).reshape(x["shape"])
    return found


def _checksum(arrays: dict[str, np.ndarray[Any, Any]]) -> int:
    value = 0
    for x in arrays.values():
        value = zlib.crc32(np.ascontiguousarray(x).data.cast("B"), value)
    return value


class _Layout:
    """What a fragment's arrays are, and where its rows go in them."""

    def __init__(self, table: LanceTable, fragment: Any) -> None:
        self._table, self._fragment = table, fragment
        ids = np.concatenate([self._ids(batch) for batch in table.batches(fragment, ["id"])])
        order = np.argsort(ids, kind="stable")
        self._ids_in_order, self._order = ids[order], order
        self._columns = [name for name in ("mu", "var", "kappa", "scale") if name in table.columns]
        like = next(iter(table.batches(fragment, self._columns))).slice(0, 1)
        named = ("id", self._as_words(self._ids_in_order)), ("place", order.astype(np.uint32))
        own = [(name, (len(ids), *x.shape[1:]), x.dtype) for name, x in to_state(from_arrow(like)).items()]
        own += [(name, x.shape, x.dtype) for name, x in named]
        # The widest first, so that each array begins at a multiple of what its numbers take.
        self.arrays = {name: (shape, dtype) for name, shape, dtype in sorted(own, key=lambda x: -x[2].itemsize)}

    def fill(self, arrays: dict[str, np.ndarray[Any, Any]]) -> None:
        """Write the fragment's rows into arrays, in ascending order of their ids."""
        arrays["id"][:] = self._as_words(self._ids_in_order)
        arrays["place"][:] = self._order
        rank = np.empty(len(self._order), np.int64)
        rank[self._order] = np.arange(len(rank))
        first = 0
        for batch in self._table.batches(self._fragment, self._columns):
            to = rank[first : first + len(batch)]
            for name, x in to_state(from_arrow(batch)).items():
                arrays[name][to] = x
            first += len(batch)

    @staticmethod
    def _ids(batch: Any) -> np.ndarray[Any, Any]:
        column = batch.column("id")
        if str(column.type) == "int64":
            return np.asarray(column.to_numpy())
        return encoded("Gallery", np.array(column.to_pylist(), str))

    @staticmethod
    def _as_words(ids: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """int64 as it is, byte strings as [N, width] bytes, which a .safetensors file can hold."""
        return ids if ids.dtype.kind == "i" else ids.view(np.uint8).reshape(len(ids), ids.dtype.itemsize)
