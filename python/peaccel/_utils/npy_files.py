"""Arrays in .npy and .npz files, whose headers are looked at before anything is read or inflated."""

from __future__ import annotations

import math
import os
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from peaccel._utils.reading import reading, require_proportion

__all__ = ["header", "load", "names_in"]

MAGIC = {".npz": b"PK", ".npy": b"\x93NUMPY"}  # first bytes of a file of each suffix
END = 22  # bytes of the record behind the list of an archive's members, with their number at 10
MANY = 0xFFFF  # which stands in the place of a larger one


def load(path: Path, names: Sequence[str] | None = None) -> dict[str, NDArray[Any]]:
    """The arrays of an .npz file by their names, or that of an .npy file by an empty one; nothing is unpickled.

    Parameters
    ----------
    path
        A file that is there.
    names
        Those of an .npz file's arrays that are read, as far as there are any; None for all. Others are not inflated.

    Raises
    ------
    ValueError
        It is not what its suffix says, is damaged, or inflates out of all proportion.
    """
    size, found = path.stat().st_size, {}
    with _opened(path) as file:
        if path.suffix == ".npy":
            return {"": _array(path, "", file, size)}
        with zipfile.ZipFile(file) as archive:
            members = {key: x for key, x in _members(archive, file).items() if names is None or key in names}
            asked = sum(x.file_size for x in members.values())
            require_proportion(path, f"inflating {', '.join(members)}", asked, size)
            for key, x in members.items():
                with archive.open(x) as member:
                    found[key] = _array(path, f"key {key} ", member, x.file_size)
                    if member.read(1):  # at its end the checksum is compared
                        raise ValueError(f"key {key} goes on after its array")
    return found


def names_in(path: Path) -> tuple[str, ...]:
    """The names of an .npz file's arrays; an empty one for an .npy file."""
    with _opened(path) as file:
        if path.suffix == ".npy":
            return ("",)
        with zipfile.ZipFile(file) as archive:
            return tuple(_members(archive, file))


def header(file: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """The shape of an array that an .npy file holds, whether it lies in Fortran's order, and its dtype."""
    version = np.lib.format.read_magic(file)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    return read(file)


@contextmanager
def _opened(path: Path) -> Iterator[IO[bytes]]:
    """The file, if it begins as one of its suffix."""
    with reading(path), path.open("rb") as file:
        if not file.read(8).startswith(MAGIC[path.suffix]):
            raise ValueError(f"{path}: is not an {path.suffix} file")
        file.seek(0)
        yield file


def _members(archive: zipfile.ZipFile, file: IO[bytes]) -> dict[str, zipfile.ZipInfo]:
    """The members by their arrays' names: all that the archive counts, since a damaged list may lose or rename one."""
    found: dict[str, zipfile.ZipInfo] = {}
    for x in archive.infolist():
        archive.open(x).close()  # compares the name with the one that stands before the array
        if found.setdefault(x.filename.removesuffix(".npy"), x) is not x:
            raise ValueError(f"{x.filename!r} is there twice")
    file.seek(-END - len(archive.comment), os.SEEK_END)
    count = int.from_bytes(file.read(END)[10:12], "little")
    if count not in (len(found), MANY):
        raise ValueError(f"it lists {len(found)} arrays, expected {count}")
    return found


def _array(path: Path, at: str, file: IO[bytes], size: int) -> NDArray[Any]:
    """The array in a file, or in a member of one, of so many bytes."""
    with reading(path, at):
        shape, _, dtype = header(file)
        if dtype.hasobject:
            raise ValueError(f"{path}: {at}is an object array; save numbers or strings")
        count, left = math.prod(shape), size - file.tell()
        if min(shape, default=0) < 0 or count * max(1, dtype.itemsize) > left:  # strings of no characters have no bytes
            raise ValueError(f"{count} of {dtype} in {left} bytes")
        file.seek(0)
        x = np.asarray(np.lib.format.read_array(file, allow_pickle=False))
        if dtype.kind == "U" and x.size:  # Python fails over code points that there are not once it looks at them
            points = np.ascontiguousarray(x).view(f"{x.dtype.byteorder}u4")
            if points.max() > 0x10FFFF:
                raise ValueError(f"{points.max():#x} is no character")
        return x
