"""Arrays in .npy and .npz files, of which numpy raises nearly anything where they are damaged."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["load"]

MAGIC = {".npz": b"PK", ".npy": b"\x93NUMPY"}  # first bytes of a file of each suffix


def load(path: Path, names: Sequence[str] | None = None) -> dict[str, NDArray[Any]]:
    """The arrays of an .npz file by their names, or that of an .npy file by an empty one; nothing is unpickled.

    Parameters
    ----------
    path
        A file that is there.
    names
        Those of an .npz file's arrays that are read, as far as there are any; None for all.

    Raises
    ------
    ValueError
        It is not what its suffix says, or is damaged.
    """
    found, key = {}, ""
    with path.open("rb") as file:  # opened here, because numpy leaves a damaged file open
        if not file.read(8).startswith(MAGIC[path.suffix]):
            raise ValueError(f"{path}: is not an {path.suffix} file")
        file.seek(0)
        try:
            if path.suffix == ".npy":
                found[""] = np.asarray(np.load(file, allow_pickle=False))
            else:
                with np.load(file, allow_pickle=False) as members:
                    for key in members:
                        if names is None or key in names:
                            found[key] = np.asarray(members[key])  # a member that is no array comes as bytes
            for key, x in found.items():  # noqa: B007  (for the message)
                _require_characters(x)
            return found
        except Exception as error:  # zlib.error, EOFError, MemoryError, tokenize.TokenError, ...
            at = f"key {key} " if key else ""
            reason = str(error).partition("\n")[0]
            if reason.startswith("Object arrays"):
                raise ValueError(f"{path}: {at}is an object array; save numbers or strings") from None
            raise ValueError(f"{path}: {at}cannot be read, truncated or damaged? ({reason})") from None


def _require_characters(x: NDArray[Any]) -> None:
    """Refuse strings with code points that there are not, at which Python fails once it looks at them: ValueError."""
    if x.dtype.kind == "U" and x.size:
        points = np.ascontiguousarray(x).view(f"{x.dtype.byteorder}u4")
        if points.max() > 0x10FFFF:
            raise ValueError(f"{points.max():#x} is no character")
