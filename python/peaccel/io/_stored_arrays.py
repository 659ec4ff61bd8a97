"""Where arrays lie in files, to be read in parts or mapped."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from peaccel.distributions import bfloat16

__all__ = ["StoredArray", "in_safetensors"]

# By the names of safetensors, of which BF16 needs a package.
DTYPES = {
    **{"F16": "float16", "F32": "float32", "F64": "float64", "BOOL": "bool"},
    **{f"{name}{bits}": f"{kind}{bits}" for name, kind in (("I", "int"), ("U", "uint")) for bits in (8, 16, 32, 64)},
}


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
        """The array in the file's own pages; what is written to it, where that is allowed, stays in memory."""
        if self.offset < 0 or self.stop > (size := self.path.stat().st_size):
            raise ValueError(f"{self.path}: holds {size} bytes, expected an array in bytes {self.offset}..{self.stop}")
        if not math.prod(self.shape):  # no pages to be mapped
            return np.empty(self.shape, self.dtype)
        return np.asarray(np.memmap(self.path, self.dtype, "c" if writable else "r", self.offset, self.shape))


def in_safetensors(path: Path) -> dict[str, StoredArray]:
    """The arrays of a .safetensors file, which is the length of a description, the description, and their bytes."""
    with path.open("rb") as file:
        start = 8 + int.from_bytes(file.read(8), "little")
        try:
            about = json.loads(file.read(min(start, path.stat().st_size) - 8))
            about.pop("__metadata__", None)
            arrays = {
                name: StoredArray(path, start + x["data_offsets"][0], tuple(map(_size, x["shape"])), _dtype(x["dtype"]))
                for name, x in about.items()
            }
        except (ValueError, KeyError, TypeError, AttributeError):
            raise ValueError(f"{path}: is not a .safetensors file, or damaged") from None
    return arrays


def _size(x: Any) -> int:
    if not isinstance(x, int) or x < 0:
        raise ValueError
    return x


def _dtype(name: str) -> np.dtype[Any]:
    return np.dtype(bfloat16() if name == "BF16" else DTYPES[name])
