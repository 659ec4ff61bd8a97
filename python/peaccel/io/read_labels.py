"""The labels of items, in files."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from peaccel._utils.atomic_files import PathLike
from peaccel._utils.suggestions import require_classes
from peaccel.io._array_files import read_array

__all__ = ["read_labels"]


def read_labels(path: PathLike) -> NDArray[Any]:
    """Read a label, or another number, of each item: [N] numbers or strings.

    Parameters
    ----------
    path : path
        An .npy file with the array, or an .npz or .safetensors file that has it under the key ``labels``; or a table
        with a column ``labels`` or ``label``. Another key or column stands behind the path: "items.parquet:class".

    Raises
    ------
    FileNotFoundError, ValueError, ImportError
        As ``read_distribution``.

    Examples
    --------
    >>> np.save("labels.npy", ["cat", "dog", "cat"])
    >>> pe.io.read_labels("labels.npy").tolist()
    ['cat', 'dog', 'cat']
    """
    labels = read_array(path, "labels", "label")
    if labels.ndim != 1 or labels.dtype.kind not in "iufbUS":
        found = f"labels has shape {labels.shape} and dtype {labels.dtype}"
        raise ValueError(f"{path}: {found}, expected a number or a string for each row")
    require_classes(f"{path}", "labels", labels)
    return labels
