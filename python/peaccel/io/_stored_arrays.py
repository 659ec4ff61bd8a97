"""Where arrays lie in files, to be read in parts or mapped."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from peaccel._utils.arrays import bfloat16
from peaccel._utils.atomic_files import aside
from peaccel._utils.reading import reading

__all__ = ["StoredArray", "in_safetensors", "new_safetensors"]

# By the names of safetensors, of which BF16 needs a package.
DTYPES = {
    **{"F16": "float16", "F32": "float32", "F64": "float64", "BOOL": "bool"},
    **{f"{name}{bits}": f"{kind}{bits}" for name, kind in (("I", "int"), ("U", "uint")) for bits in (8, 16, 32, 64)},
}

BLOCK = 1 << 20  # bytes that are written at a time


class StoredArray(NamedTuple):
    """An array that lies in a file, row after row."""

    path: Path
    offset: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @property
    def stop(self) -> int:
        """The number of bytes in the file up to the end of the array."""
        return self.offset + self.dtype.itemsize * math.prod(self.shape)

    def mapped(self, *, writable: bool) -> np.ndarray[Any, Any]:
        """The array in the pages of the file; what is written to it, where that is allowed, stays in memory."""
        if self.offset < 0 or self.stop > (size := self.path.stat().st_size):
            raise ValueError(f"{self.path}: holds {size} bytes, expected an array in bytes {self.offset}..{self.stop}")
        if not math.prod(self.shape):  # no pages to be mapped
            return np.empty(self.shape, self.dtype)
        return np.asarray(np.memmap(self.path, self.dtype, "c" if writable else "r", self.offset, self.shape))


def in_safetensors(path: Path) -> dict[str, StoredArray]:
    """The arrays of a .safetensors file, which is the length of a description, the description, and their bytes.

    As the library has it, arrays follow each other without a gap, and each takes what its shape and dtype say. A file
    that is too short is for the caller.
    """
    with reading(path), path.open("rb") as file:
        start = 8 + int.from_bytes(file.read(8), "little")
        about = json.loads(file.read(min(start, path.stat().st_size) - 8))
        about.pop("__metadata__", None)
        stop, arrays = 0, dict[str, StoredArray]()
        for name, x in sorted(about.items(), key=lambda x: x[1]["data_offsets"]):
            found = StoredArray(path, start + stop, tuple(map(_size, x["shape"])), _dtype(x["dtype"]))
            if list(map(_size, x["data_offsets"])) != [stop, stop := found.stop - start]:
                raise ValueError(f"{name} lies at {x['data_offsets']}, expected an end at {stop} and no gap before it")
            arrays[name] = found
    return arrays


def _size(x: Any) -> int:
    if type(x) is not int or x < 0:
        raise ValueError(f"{x!r} is no size")
    return x


@contextmanager
def new_safetensors(
    path: Path, arrays: Mapping[str, tuple[tuple[int, ...], np.dtype[Any]]]
) -> Iterator[dict[str, np.ndarray[Any, Any]]]:
    """Arrays of these shapes and dtypes, mapped, to be filled: a .safetensors file then; OSError without the room."""
    names = {np.dtype(dtype): name for name, dtype in DTYPES.items()}
    about: dict[str, Any] = {}
    end = 0
    for name, (shape, dtype) in arrays.items():
        start, end = end, end + math.prod(shape) * dtype.itemsize
        about[name] = {"dtype": names[dtype], "shape": shape, "data_offsets": [start, end]}
    text = json.dumps(about).encode()
    text += b" " * (-(8 + len(text)) % 64)
    with aside(path, follow=False) as fresh:
        with fresh.open("wb") as file:
            file.write(len(text).to_bytes(8, "little") + text)
            file.flush()
            _reserve(file.fileno(), 8 + len(text), end)
        yield {
            name: np.memmap(fresh, x.dtype, "r+", x.offset, x.shape)
            if x.stop > x.offset
            else np.empty(x.shape, x.dtype)
            for name, x in in_safetensors(fresh).items()
        }


def _reserve(file: int, start: int, size: int) -> None:
    """Make a file longer on a disk that has the room: what is written to a map of it must not fail."""
    if hasattr(os, "posix_fallocate"):
        if size:
            os.posix_fallocate(file, start, size)
    else:
        os.lseek(file, start, os.SEEK_SET)
        for written in range(0, size, BLOCK):
            os.write(file, bytes(min(BLOCK, size - written)))


def _dtype(name: str) -> np.dtype[Any]:
    return np.dtype(bfloat16() if name == "BF16" else DTYPES[name])
