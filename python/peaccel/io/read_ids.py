"""The ids of a gallery's rows, in files."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from peaccel._utils.atomic_files import PathLike
from peaccel.io._array_files import read

__all__ = ["read_ids"]


def read_ids(path: PathLike) -> NDArray[Any]:
    """Read the ids by which others know the rows of a gallery: [G] ints, none negative, or strings, none empty.

    Parameters
    ----------
    path : path
        An .npy file with the array, or an .npz or .safetensors file that has it under the key ``ids``; or a table with
        such a column, or one that the path names: "gallery.parquet:key".

    Raises
    ------
    FileNotFoundError, ValueError, ImportError
        As ``read_distribution``; if an id is there twice.

    Examples
    --------
    >>> np.save("ids.npy", ["b", "a", "c"])
    >>> pe.io.read_ids("ids.npy").tolist()
    ['b', 'a', 'c']
    """
    ids = read(path, ("ids",))["ids"]
    if ids.ndim != 1 or ids.dtype.kind not in "iuU":
        expected = "an integer or a string for each row"
        raise ValueError(f"{path}: ids has shape {ids.shape} and dtype {ids.dtype}, expected {expected}")
    if ids.dtype.kind == "U":
        if (ids == "").any():
            raise ValueError(f"{path}: ids is an empty string in row {(ids == '').argmax()}")
    else:
        outside = ids[(ids < 0) | (ids > np.iinfo(np.int64).max)]
        if len(outside):
            raise ValueError(f"{path}: ids holds {outside[0]}, expected 0 .. 2^63 - 1")
        ids = ids.astype(np.int64, copy=False)
    values, counts = np.unique(ids, return_counts=True)
    if (counts > 1).any():
        raise ValueError(f"{path}: ids holds {values[counts > 1][0]} twice")
    return ids
