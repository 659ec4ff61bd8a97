"""Distributions in files that are larger than memory, block after block."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import ExitStack
from io import FileIO
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from peaccel._utils import npy_files
from peaccel._utils.arrays import FLOATING, Numpy, repeated
from peaccel._utils.atomic_files import PathLike
from peaccel._utils.reading import named, reading
from peaccel.distributions import Distribution
from peaccel.distributions.checks import checked_k
from peaccel.io._array_files import existing
from peaccel.io._item_columns import PARAMETERS
from peaccel.io._stored_arrays import StoredArray, in_safetensors
from peaccel.io.states import distribution_of, from_state

__all__ = ["BlocksOfFiles", "read_blocks"]

ROWS = 65_536


class BlocksOfFiles:
    """The distribution in files as its blocks, each time that it is iterated; see `read_blocks`.

    Attributes
    ----------
    size, dim
        How many items there are, of how many dimensions.
    rows
        How many items a block has, but for the last.
    """

    def __init__(self, arrays: dict[str, StoredArray], common: dict[str, NDArray[Any]], rows: int) -> None:
        self._arrays, self._common, self.rows = arrays, common, rows
        self.size, self.dim = arrays["mu"].shape

    def __iter__(self) -> Iterator[Distribution[Numpy]]:
        with ExitStack() as opened:
            # Unbuffered, since a block is read at once, into new memory.
            files = {name: opened.enter_context(x.path.open("rb", buffering=0)) for name, x in self._arrays.items()}
            for start in range(0, self.size, self.rows) or [0]:
                stop = min(start + self.rows, self.size)
                block = {name: _read(files[name], x, start, stop) for name, x in self._arrays.items()}
                common = {name: repeated(x, stop - start) for name, x in self._common.items()}
                yield distribution_of(**block, **common)
                del block

    def __repr__(self) -> str:
        mu = self._arrays["mu"]
        return f"BlocksOfFiles({mu.path}: N={self.size}, D={self.dim}, {mu.dtype}, blocks of {self.rows} rows)"


def read_blocks(
    mu: PathLike,
    *,
    var: PathLike | None = None,
    kappa: PathLike | None = None,
    scale: PathLike | None = None,
    rows: int = ROWS,
) -> BlocksOfFiles:
    """A distribution in files as a source of blocks, for `pe.search` and `pe.rescore` of galleries larger than memory.

    Blocks are read, not mapped: pages of a map that are not in memory come one by one, many times slower.

    Parameters
    ----------
    mu
        A .npy file with the rows [N, D]; or a .safetensors file with all arrays, as `write_distribution` writes it.
    var, kappa, scale
        Beside an .npy file at most one: that of the parameter, [N] or [N, D], or [1] or [1, D] for one of all items,
        which makes the distribution what it is in `read_distribution`.
    rows
        How many items a block has, >= 1.

    Returns
    -------
    An iterable of distributions of numpy arrays, which reads the files anew each time; nothing is read before but the
    headers. The values are not validated, unlike in `read_distribution`.

    Raises
    ------
    FileNotFoundError
        No such file.
    TypeError, ValueError
        A file of another kind, truncated, or in Fortran's order; arrays that do not fit; several parameters; rows
        below 1. While it is read: a file that has become shorter.

    Examples
    --------
    >>> np.save("mu.npy", np.eye(5, dtype=np.float32))
    >>> np.save("var.npy", np.full(5, 0.1, np.float32))
    >>> gallery = pe.io.read_blocks("mu.npy", var="var.npy", rows=2)
    >>> [len(block) for block in gallery]
    [2, 2, 1]
    >>> pe.search(pe.Point(np.eye(5, dtype=np.float32)[3:4]), gallery, k=1).ids.tolist()
    [[3]]
    """
    path, rows = existing(mu, (".npy", ".safetensors")), checked_k("read_blocks", rows, "rows")
    beside = {name: x for name, x in (("var", var), ("kappa", kappa), ("scale", scale)) if x is not None}
    if path.suffix == ".safetensors":
        if beside:
            raise ValueError(f"read_blocks: {next(iter(beside))} is given beside {path}, which holds all arrays")
        stored = in_safetensors(path)
        if "mu" not in stored:
            raise ValueError(f"{path}: key mu is missing, found {named(sorted(stored))}")
        arrays = {name: x for name, x in stored.items() if name in ("mu", *PARAMETERS)}
    else:
        arrays = {name: _of_npy(existing(x, (".npy",))) for name, x in {"mu": path, **beside}.items()}
    for name, x in arrays.items():
        if str(x.dtype) not in FLOATING or not x.dtype.isnative:
            raise ValueError(f"{x.path}: {name} has dtype {x.dtype}, expected float16, bfloat16, float32 or float64")
        if (missing := x.stop - x.path.stat().st_size) > 0:
            raise ValueError(f"{x.path}: {name} is truncated, {missing} bytes are missing")
    try:
        from_state({name: np.broadcast_to(np.zeros((), x.dtype), x.shape) for name, x in arrays.items()})
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    return BlocksOfFiles(*_apart(arrays), rows)


def _apart(arrays: dict[str, StoredArray]) -> tuple[dict[str, StoredArray], dict[str, NDArray[Any]]]:
    """The arrays that have a row for each item, and the row [1] or [1, D] of a parameter that is one for all."""
    size, dim = arrays["mu"].shape
    common = {}
    for name, x in arrays.items():
        if name != "mu" and size != 1 and math.prod(x.shape[:1]) == 1:
            with x.path.open("rb", buffering=0) as file:
                one = _read(file, x._replace(shape=(1, *x.shape)), 0, 1)[0]
            common[name] = distribution_of(np.zeros((2, dim), x.dtype), **{name: one}).arrays[-1][:1]
    return {name: x for name, x in arrays.items() if name not in common}, common


def _of_npy(path: Path) -> StoredArray:
    """The array of an .npy file."""
    with reading(path), path.open("rb") as file:
        shape, by_columns, dtype = npy_files.header(file)
        if by_columns and len(shape) > 1:
            raise ValueError(f"{path}: lies in Fortran's order, expected rows one after the other")
        return StoredArray(path, file.tell(), shape, dtype)


def _read(file: FileIO, x: StoredArray, start: int, stop: int) -> NDArray[Any]:
    """Rows of an array, from the file that holds it."""
    rows = np.empty((stop - start, *x.shape[1:]), x.dtype)
    file.seek(x.offset + start * x.dtype.itemsize * math.prod(x.shape[1:]))
    left = rows.reshape(-1).view(np.uint8).data
    while left:
        count = file.readinto(left)
        if not count:
            raise ValueError(f"{x.path}: has become shorter, it ends within rows {start} .. {stop - 1}")
        left = left[count:]
    return rows
