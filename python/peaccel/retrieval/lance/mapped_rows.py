"""The rows of a fragment as the kernels read them, in a file that is mapped into memory and can be made again.

A file is a .safetensors of the fragment's rows, deleted ones too, in ascending order of their ids. As fragments never
change, neither do these files; which rows are there depends on the version, and is asked of it.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from peaccel._utils.atomic_files import sweep_temporary
from peaccel.distributions import Distribution
from peaccel.io import from_arrow, to_state
from peaccel.io._stored_arrays import in_safetensors, new_safetensors
from peaccel.io.states import distribution_of
from peaccel.retrieval.lance import table as lance_table
from peaccel.retrieval.lance.item_tables import ITEM, ids_of
from peaccel.retrieval.lance.table import LanceTable

__all__ = ["MappedRows", "damage", "mapped", "named", "sweep", "writable"]

SUFFIX = ".safetensors"
CHECKSUM = "crc32"  # the name of an array of one number, the checksum of the others
WRITTEN = re.compile(rf"[0-9a-f]{{24}}{re.escape(SUFFIX)}")  # names of files that are written here
TRIES = 5  # how often a file is made that is deleted before it is opened

Arrays = dict[str, np.ndarray[Any, Any]]


class MappedRows(NamedTuple):
    """A fragment's rows, deleted ones too, in ascending order of their ids."""

    name: str
    ids: np.ndarray[Any, Any]  # int64, or bytes: the UTF-8 of strings
    places: np.ndarray[Any, Any]  # uint32: where the row is in the fragment
    items: Distribution | None  # None where only ids were asked for


def mapped(folder: Path, table: LanceTable, fragment: Any) -> MappedRows:
    """The rows of a fragment from its file, which is made where it is missing or cut short."""
    path = _path(folder, fragment)
    found, left = _rows(path), TRIES
    while found is None:  # more than once beside a compaction, which deletes files of fragments that are gone
        if not left:
            raise OSError(f"{path}: was deleted {TRIES} times as soon as it was made; see Gallery.compact")
        ids, places = _ids_and_places(table, fragment)
        with writable(path), new_safetensors(path, _shapes(table, ids)) as arrays:
            _fill(arrays, table, fragment, ids, places)
            del arrays  # Windows renames no file that is mapped
        found, left = _rows(path), left - 1
    return found


def named(folder: Path, table: LanceTable, fragment: Any) -> MappedRows:
    """The same, but where there is no file only the ids are read, and kept in memory."""
    path = _path(folder, fragment)
    return _rows(path) or MappedRows(path.stem, *_ids_and_places(table, fragment), items=None)


@contextmanager
def writable(path: Path) -> Iterator[None]:
    """Context that derives a file or a folder from the dataset; says in one line if it cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        reason = error.strerror or " ".join(str(error).split())
        raise OSError(f"{path}: cannot be written ({reason}); another folder can be given as derived") from None


def damage(folder: Path, table: LanceTable, fragment: Any) -> str:
    """Fault of the file of a fragment, or of the fragment beside it, in one line; empty if there is none."""
    path, of_fragment = _path(folder, fragment), f"fragment {fragment.fragment_id}"
    arrays = _opened(path)
    if arrays is not None and _checksum(arrays) != arrays.pop(CHECKSUM, None):
        return f"{path}: is damaged; it can be deleted, and is then made again of {of_fragment}"
    try:
        ids, places = _ids_and_places(table, fragment)
        fresh = {name: np.empty(*x) for name, x in _shapes(table, ids).items()}
        _fill(fresh, table, fragment, ids, places)
    except ValueError as error:
        return str(error)
    for name, kept in (arrays or {}).items():
        rows = (kept != fresh[name]).reshape(len(kept), -1).any(1).sum() if kept.shape == fresh[name].shape else "all"
        if rows:
            return f"{of_fragment}: column {name} is not what it was in {rows} rows when {path} was made of it"
    return ""


def sweep(folder: Path, fragments: list[Any]) -> None:
    """Delete the files of other fragments, and what killed processes have left; nothing of another name."""
    kept = {_path(folder, fragment) for fragment in fragments}
    for path in folder.glob(f"*{SUFFIX}"):
        if WRITTEN.fullmatch(path.name) and path not in kept:
            with suppress(OSError):  # another process has deleted it, or has it open where that forbids to
                path.unlink()
    if folder.is_dir():
        sweep_temporary(folder)


def _path(folder: Path, fragment: Any) -> Path:
    return folder / f"{lance_table.name_of(fragment)}{SUFFIX}"


def _opened(path: Path) -> Arrays | None:
    """The arrays of a file, mapped; None where there is none, or none that is whole."""
    if not path.is_file():  # a pipe would be waited for
        return None
    try:
        arrays = in_safetensors(path)
        complete = {"mu", "id", "place", CHECKSUM} <= arrays.keys() <= {*ITEM, "place", CHECKSUM}
        if not complete or path.stat().st_size != max(x.stop for x in arrays.values()):
            return None
        return {name: x.mapped(writable=False) for name, x in arrays.items()}
    except (OSError, ValueError):
        return None


def _rows(path: Path) -> MappedRows | None:
    """The rows in a file, mapped; None where there is none, or none that is whole."""
    arrays = _opened(path)
    if arrays is None:
        return None
    ids, places, _ = (arrays.pop(name) for name in ("id", "place", CHECKSUM))
    try:
        ids = ids if ids.ndim == 1 else ids.view(f"S{ids.shape[1]}")[:, 0]
        return MappedRows(path.stem, ids, places, distribution_of(**arrays))
    except (ValueError, TypeError):
        return None


def _shapes(table: LanceTable, ids: np.ndarray[Any, Any]) -> dict[str, tuple[tuple[int, ...], np.dtype[Any]]]:
    """The shapes and dtypes of a fragment's arrays."""
    like = to_state(table.nothing[0]) | {"id": _as_words(ids), "place": np.empty(0, np.uint32)}
    shapes = {name: ((len(ids), *x.shape[1:]), x.dtype) for name, x in like.items()}
    shapes[CHECKSUM] = (1,), np.dtype(np.uint32)
    # The widest first, so that each array begins at a multiple of what its numbers take.
    return dict(sorted(shapes.items(), key=lambda x: -x[1][1].itemsize))


def _fill(
    arrays: Arrays, table: LanceTable, fragment: Any, ids: np.ndarray[Any, Any], places: np.ndarray[Any, Any]
) -> None:
    """Write a fragment's rows into its arrays, in parts: they need not fit into memory."""
    arrays["id"][:], arrays["place"][:] = _as_words(ids), places
    rank = np.empty(len(places), np.int64)
    rank[places] = np.arange(len(rank))
    first = 0
    for batch in table.batches(fragment, [name for name in ITEM if name in table.columns and name != "id"]):
        to = rank[first : first + len(batch)]
        for name, x in to_state(from_arrow(batch)).items():
            arrays[name][to] = x
        first += len(batch)
    arrays[CHECKSUM][:] = _checksum(arrays)


def _ids_and_places(table: LanceTable, fragment: Any) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """The ids of a fragment, ascending, and the place of each."""
    ids = np.concatenate([ids_of(batch) for batch in table.batches(fragment, ["id"])])
    places = np.argsort(ids, kind="stable")
    return ids[places], places.astype(np.uint32)


def _as_words(ids: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """int64 as it is, byte strings as [N, width] bytes, which a .safetensors file can hold."""
    return ids if ids.dtype.kind != "S" else ids.view(np.uint8).reshape(len(ids), ids.dtype.itemsize)


def _checksum(arrays: Arrays) -> int:
    value = 0
    for name, x in arrays.items():
        value = value if name == CHECKSUM else zlib.crc32(np.ascontiguousarray(x).data.cast("B"), value)
    return value
