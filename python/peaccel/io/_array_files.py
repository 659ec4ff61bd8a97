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
from peaccel._utils.reading import named, reading
from peaccel._utils.table_paths import TABLES, file_of, is_table, name_in
from peaccel.io._arrow_columns import column_of_file
from peaccel.io._arrow_sources import arrow

__all__ = [
    "SEVERAL",
    "existing",
    "load",
    "names_in",
    "present",
    "read",
    "read_array",
    "text_rows",
    "write",
    "write_table",
    "write_text",
]

SEVERAL = (".npz", ".safetensors")  # suffixes of files with more than one array


def read(path: PathLike, required: tuple[str, ...], one_of: tuple[str, ...] = ()) -> dict[str, NDArray[Any]]:
    """The required arrays of a file and one of the others if it is there, in native byte order.

    What else the file holds is not read.
    """
    path = existing(path, SEVERAL)
    names = names_in(path)
    for key in required:
        if key not in names:
            expected = " and ".join(required) + (f" and at most one of {', '.join(one_of)}" if one_of else "")
            raise ValueError(f"{path}: key {key} is missing, found {named(sorted(names))}; expected {expected}")
    return load(path, [*required, *(key for key in one_of if key in names)])


def read_array(path: PathLike, *names: str) -> NDArray[Any]:
    """The array of an .npy file, or that of others, tables too, under the name behind the path or the first of these.

    "faces.parquet:label" and "faces.npz:label" name it.
    """
    if is_table(path):
        return column_of_file(path, *names)
    file = existing(file_of(path), (".npz", ".npy", ".safetensors", *TABLES))
    found = names_in(file)
    key = "" if file.suffix == ".npy" else name_in(path, names, found)
    if key not in found:
        raise ValueError(f"{path}: key {key} is missing, found {named(sorted(found))}; or name it: {file}:NAME")
    return load(file, [key])[key]


def names_in(path: Path) -> tuple[str, ...]:
    """The names of a file's arrays; an empty one for an .npy file."""
    if path.suffix != ".safetensors":
        return npy_files.names_in(path)
    with reading(path), _safetensors().safe_open(path, framework="numpy") as tensors:
        return tuple(tensors.keys())


def load(path: Path, names: Sequence[str]) -> dict[str, NDArray[Any]]:
    """Arrays of a file that are there, in native byte order."""
    if path.suffix == ".safetensors":
        arrays = dict[str, Any]()
        with reading(path), _safetensors().safe_open(path, framework="numpy") as tensors:
            for key in names:
                with reading(path, f"key {key} "):
                    if tensors.get_slice(key).get_dtype() == "BF16":
                        bfloat16()  # registers the dtype with numpy
                    arrays[key] = tensors.get_tensor(key)
    else:
        arrays = npy_files.load(path, names)
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
    with reading(path), present(path).open(encoding="utf-8-sig") as file:
        for number, line in enumerate(file, 1):
            if words := line.split():
                yield number, words


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
    _write(path, suffixes, lambda fresh: fresh.write_text(text, encoding="utf-8", newline=""))


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
