"""Named arrays in .npz, .npy and .safetensors files, and text."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from peaccel._utils import npy_files
from peaccel._utils.arrays import bfloat16, is_torch, on_host
from peaccel._utils.atomic_files import PathLike, aside, check_output, check_suffix
from peaccel._utils.table_paths import TABLES, is_table
from peaccel.io._arrow_columns import column_of_file
from peaccel.io._arrow_sources import arrow

__all__ = ["SEVERAL", "existing", "present", "read", "text_rows", "write", "write_table", "write_text"]

SEVERAL = (".npz", ".safetensors")  # suffixes of files with more than one array


def read(path: PathLike, required: tuple[str, ...], one_of: tuple[str, ...] = ()) -> dict[str, NDArray[Any]]:
    """The arrays of a file, in native byte order, if it has the required keys and at most one of the others.

    A single required array may be a column of a table, "faces.parquet:label", or its column of that name.
    """
    if len(required) == 1 and not one_of and is_table(path):
        return {required[0]: column_of_file(path, required[0])}
    arrays = _load(
        existing(path, (".npz", ".npy", ".safetensors", *TABLES) if len(required) == 1 else SEVERAL), required
    )
    expected = " and ".join(required) + (f" and at most one of {', '.join(one_of)}" if one_of else "")
    found = f"found {', '.join(sorted(arrays)) or 'none'}; expected {expected}"
    for key in required:
        if key not in arrays:
            raise ValueError(f"{path}: key {key} is missing, {found}")
    for key in arrays:
        if key not in required + one_of:
            raise ValueError(f"{path}: unknown key {key}, {found}")
    if len(arrays) > len(required) + 1:
        raise ValueError(f"{path}: too many keys, {found}")
    return {key: x.astype(x.dtype.newbyteorder("="), copy=False) for key, x in arrays.items()}


def existing(path: PathLike, suffixes: Sequence[str]) -> Path:
    """The path of a file that is there, not empty, and has one of these suffixes."""
    check_suffix(Path(path), suffixes)
    return present(path)


def present(path: PathLike) -> Path:
    """The path of a file that is there and not empty."""
    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(f"{path}: no such file")
    if not path.is_file():
        raise ValueError(f"{path}: is not a file")
    if not path.stat().st_size:
        raise ValueError(f"{path}: is empty (0 bytes)")
    return path


def text_rows(path: PathLike) -> Iterator[tuple[int, list[str]]]:
    """The number of each line of a text file that is not empty, from 1, and its words, apart by spaces or tabs."""
    try:
        with present(path).open(encoding="utf-8-sig") as file:
            for number, line in enumerate(file, 1):
                if words := line.split():
                    yield number, words
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: cannot be read as text ({error})") from None


def _load(path: Path, required: tuple[str, ...]) -> dict[str, Any]:
    """All arrays of the file; that of an .npy file counts as the required one."""
    if path.suffix != ".safetensors":
        return {key or required[0]: x for key, x in npy_files.load(path).items()}
    safetensors, arrays, key = _safetensors(), {}, ""
    try:
        with safetensors.safe_open(path, framework="numpy") as tensors:
            for key in tensors.keys():  # noqa: SIM118  (it is no dict)
                if tensors.get_slice(key).get_dtype() == "BF16":
                    bfloat16()  # registers the dtype with numpy
                arrays[key] = tensors.get_tensor(key)
        return arrays
    except ImportError as error:
        raise ImportError(f"{path}: {error}") from None
    except Exception as error:  # SafetensorError, MemoryError, TypeError of a dtype that numpy has not, ...
        at = f"key {key} " if key else ""
        reason = str(error).partition("\n")[0]
        raise ValueError(f"{path}: {at}cannot be read, truncated or damaged? ({reason})") from None


def write(path: PathLike, suffixes: Sequence[str], arrays: Mapping[str, Any]) -> None:
    """Write arrays or tensors under their names, an .npy file's only one without."""
    path = Path(path)
    plain: dict[str, Any] = {key: np.ascontiguousarray(on_host(x) if is_torch(x) else x) for key, x in arrays.items()}
    safetensors = _safetensors() if path.suffix == ".safetensors" else None

    def save(fresh: Path) -> None:
        if safetensors:
            safetensors.numpy.save_file(plain, fresh)
        elif path.suffix == ".npy":
            np.save(fresh, next(iter(plain.values())))
        else:
            np.savez(fresh, **plain)

    _write(path, suffixes, save)


def write_text(path: PathLike, suffixes: Sequence[str], text: str) -> None:
    """Write text."""
    _write(path, suffixes, lambda fresh: fresh.write_text(text, encoding="utf-8"))


def write_table(path: PathLike, suffixes: Sequence[str], columns: Mapping[str, Any]) -> None:
    """Write columns of one length under their names as .parquet."""
    pa = arrow(f"{path}: {Path(path).suffix} files")
    table = pa.table(dict(columns))
    _write(path, suffixes, lambda fresh: pa.parquet.write_table(table, fresh))


def _write(path: PathLike, suffixes: Sequence[str], save: Callable[[Path], object]) -> None:
    check_output(path, suffixes)
    try:
        with aside(path) as fresh:
            save(fresh)
    except Exception as error:  # OSError, but safetensors has other errors
        reason = getattr(error, "strerror", None) or str(error).partition("\n")[0]
        raise OSError(f"{path}: cannot be written ({reason})") from None


def _safetensors() -> Any:
    try:
        import safetensors.numpy
    except ImportError:
        raise ImportError(".safetensors files need safetensors: pip install peaccel[cli]") from None
    return safetensors
