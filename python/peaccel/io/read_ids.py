"""The ids of a gallery's rows, in files."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from peaccel._utils.atomic_files import PathLike
from peaccel.io._array_files import read_array

__all__ = ["checked_ids", "read_ids"]


def read_ids(path: PathLike) -> NDArray[Any]:
    """Read the ids by which others know the rows of a gallery: [G] ints, none negative, or strings, none empty.

    Parameters
    ----------
    path : path
        An .npy file with the array, or an .npz or .safetensors file that has it under the key ``ids``; or a table with
        a column ``ids`` or ``id``. Another key or column stands behind the path: "gallery.parquet:key".

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
    return checked_ids(f"{path}", read_array(path, "ids", "id"))


def checked_ids(owner: str, ids: NDArray[Any]) -> NDArray[Any]:
    """Ids as int64 or strings, none of them empty, negative or there twice."""
    if ids.ndim != 1 or ids.dtype.kind not in "iuU":
        expected = "an integer or a string for each row"
        raise ValueError(f"{owner}: ids has shape {ids.shape} and dtype {ids.dtype}, expected {expected}")
    if ids.dtype.kind == "U":
        if (ids == "").any():
            raise ValueError(f"{owner}: ids is an empty string in row {(ids == '').argmax()}")
    else:
        outside = ids[(ids < 0) | (ids > np.iinfo(np.int64).max)]
        if len(outside):
            raise ValueError(f"{owner}: ids holds {outside[0]}, expected 0 .. 2^63 - 1")
        ids = ids.astype(np.int64, copy=False)
    values, counts = np.unique(ids, return_counts=True)
    if (counts > 1).any():
        raise ValueError(f"{owner}: ids holds {values[counts > 1][0].item()!r} twice")
    return ids
