"""The ids of a gallery's rows, in files."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from peaccel._utils.atomic_files import PathLike
from peaccel._utils.ids import checked_ids
from peaccel.io._array_files import read_array

__all__ = ["read_ids"]


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
