"""Distributions, candidates and rankings in files: .npz, .npy or .safetensors.

Everything is checked on reading, values too. An error is one line that names the file and the key. Nothing is ever
unpickled.
"""

from __future__ import annotations

import os
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from peaccel.distributions import Distribution, NonIsotropicVonMisesFisher, Normal, Point, Scaled, VonMisesFisher

__all__ = [
    "check_output",
    "read_candidates",
    "read_distribution",
    "read_ranking",
    "write_distribution",
    "write_ranking",
]

PathLike: TypeAlias = str | os.PathLike[str]

MAGIC = {".npz": b"PK", ".npy": b"\x93NUMPY", ".safetensors": b""}  # how a file of each suffix begins


def read_distribution(path: PathLike) -> Distribution:
    """Read and validate a distribution, as numpy arrays.

    Parameters
    ----------
    path : path
        An .npz or .safetensors file with the key ``mu`` [N, D] and at most one of ``var`` [N] or [N, D] (VARIANCE, not
        sigma nor its logarithm), ``kappa`` [N] or [N, D] and ``scale`` [N]; or an .npy file with a plain [N, D] array.
        All float16, float32 or float64; .safetensors may hold bfloat16 as well.

    Returns
    -------
    distribution
        ``Normal`` where there is ``var``; ``VonMisesFisher`` where ``kappa`` is [N], ``NonIsotropicVonMisesFisher`` if
        it is [N, D]; ``Scaled`` where there is ``scale``; else ``Point``.

    Raises
    ------
    FileNotFoundError
        If there is no such file.
    ValueError
        If the file is not what its suffix says, or its keys, shapes, dtypes or values are wrong.
    ImportError
        If the file is .safetensors and safetensors is not installed.
    """
    arrays = _read(path, ("mu",), one_of=("var", "kappa", "scale"))
    try:
        return _distribution(**arrays).validate()
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def write_distribution(path: PathLike, d: Distribution) -> None:
    """Write a distribution so that ``read_distribution`` gives it back, as numpy arrays.

    Parameters
    ----------
    path : path
        .npz or .safetensors; .npy for a ``Point`` only. An existing file is overwritten.
    d : distribution
        Numpy or torch, on any device. bfloat16 is widened to float32, which loses nothing.

    Raises
    ------
    FileNotFoundError, ValueError, ImportError
        If the folder does not exist, the suffix does not fit, or safetensors is missing.
    """
    d = d.detach()
    d = d.to("float32") if str(d.mu.dtype).endswith("bfloat16") else d
    _write(path, {field.name: getattr(d, field.name) for field in fields(d)})


def read_candidates(path: PathLike) -> NDArray[np.int64]:
    """Read candidates: gallery rows for each query, [Q, K] ints, -1 = none.

    Parameters
    ----------
    path : path
        An .npy file with the array, or an .npz or .safetensors file that has it under the key ``candidates``.

    Raises
    ------
    FileNotFoundError, ValueError, ImportError
        As ``read_distribution``; ids beyond the gallery are for the verbs to find.
    """
    candidates = _read(path, ("candidates",))["candidates"]
    _check_matrix(path, "candidates", candidates, "int")
    bad = (candidates < -1).any(axis=1)
    if bad.any():
        raise ValueError(f"{path}: candidates is below -1 in row {bad.argmax()}, expected gallery rows, or -1 for none")
    return candidates.astype(np.int64, copy=False)


def write_ranking(path: PathLike, ranking: tuple[Any, Any]) -> None:
    """Write a ranking, that is (scores [Q, k], ids [Q, k]) of either kind, to an .npz or .safetensors file.

    Raises
    ------
    FileNotFoundError, ValueError, ImportError
        As ``write_distribution``.
    """
    scores, ids = ranking
    _write(path, {"scores": scores, "ids": ids})


def read_ranking(path: PathLike) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Read a ranking that ``write_ranking`` wrote: scores, float [Q, k], and ids, int64 [Q, k], best first.

    Raises
    ------
    FileNotFoundError, ValueError, ImportError
        As ``read_distribution``.
    """
    arrays = _read(path, ("scores", "ids"))
    scores, ids = arrays["scores"], arrays["ids"]
    _check_matrix(path, "scores", scores, "float")
    _check_matrix(path, "ids", ids, "int")
    if ids.shape != scores.shape:
        raise ValueError(f"{path}: ids has shape {ids.shape}, expected {scores.shape} like scores")
    return scores, ids.astype(np.int64, copy=False)


def check_output(path: PathLike, keys: int = 2) -> Path:
    """The path, if a file with this number of arrays can be written there; work that takes long asks before it starts.

    Raises
    ------
    FileNotFoundError
        If the folder does not exist.
    ValueError
        If the suffix is unsupported.
    """
    path = Path(path)
    _check_suffix(path, keys)
    if not path.parent.is_dir():
        raise FileNotFoundError(f"{path}: there is no folder {path.parent}")
    return path


def _distribution(mu: Any, var: Any = None, kappa: Any = None, scale: Any = None) -> Distribution:
    """The distribution that these keys stand for."""
    if var is not None:
        return Normal(mu, var)
    if scale is not None:
        return Scaled(mu, scale)
    if kappa is None:
        return Point(mu)
    # [N, 1] is a slip for [N], not one concentration for each of D >= 2 dimensions.
    diagonal = kappa.ndim == 2 and kappa.shape[1] > 1
    return NonIsotropicVonMisesFisher(mu, kappa) if diagonal else VonMisesFisher(mu, kappa)


def _check_suffix(path: Path, keys: int) -> None:
    supported = [suffix for suffix in MAGIC if suffix != ".npy" or keys == 1]  # .npy holds one array
    if path.suffix not in supported:
        raise ValueError(f"{path}: unsupported suffix {path.suffix!r}, expected {' or '.join(supported)}")


def _check_matrix(path: PathLike, key: str, x: NDArray[Any], expected: str) -> None:
    if x.ndim != 2:
        raise ValueError(f"{path}: {key} has shape {x.shape}, expected a row for each query: (Q, K)")
    if expected not in x.dtype.name:  # "uint8" is one of the ints
        raise ValueError(f"{path}: {key} has dtype {x.dtype}, expected {expected}")


def _read(path: PathLike, required: tuple[str, ...], one_of: tuple[str, ...] = ()) -> dict[str, NDArray[Any]]:
    """The arrays of a file, in native byte order, if it has the required keys and at most one of the others."""
    path = Path(path)
    arrays = _load(path, required)
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


def _load(path: Path, required: tuple[str, ...]) -> dict[str, Any]:
    """Whatever arrays the file holds; that of an .npy file counts as the one required."""
    _check_suffix(path, len(required))
    if not path.exists():
        raise FileNotFoundError(f"{path}: no such file")
    if not path.is_file():
        raise ValueError(f"{path}: is not a file")
    if not path.stat().st_size:
        raise ValueError(f"{path}: is empty (0 bytes)")
    safetensors = _safetensors() if path.suffix == ".safetensors" else None
    arrays, key = {}, ""
    with path.open("rb") as file:  # opened here, because numpy leaves a damaged file open
        if not file.read(8).startswith(MAGIC[path.suffix]):
            raise ValueError(f"{path}: is not an {path.suffix} file")
        file.seek(0)
        try:
            if safetensors:
                return dict(safetensors.load_file(path))
            if path.suffix == ".npy":
                return {required[0]: np.load(file, allow_pickle=False)}
            with np.load(file, allow_pickle=False) as members:
                for key in members:
                    arrays[key] = np.asarray(members[key])  # a member that is no array comes as bytes
            return arrays
        except Exception as error:  # readers raise nearly anything over damage: zlib.error, EOFError, ...
            at = f"key {key} " if key else ""
            reason = str(error).partition("\n")[0]
            raise ValueError(f"{path}: {at}cannot be read, truncated or damaged? ({reason})") from None


def _write(path: PathLike, arrays: dict[str, Any]) -> None:
    path = check_output(path, len(arrays))
    plain: dict[str, Any] = {
        key: np.ascontiguousarray(x.cpu() if hasattr(x, "cpu") else x) for key, x in arrays.items()
    }
    if path.suffix == ".safetensors":
        _safetensors().save_file(plain, path)
    elif path.suffix == ".npy":
        np.save(path, next(iter(plain.values())))
    else:
        np.savez(path, **plain)


def _safetensors() -> Any:
    try:
        import safetensors.numpy
    except ImportError:
        raise ImportError(".safetensors files need safetensors: pip install peaccel[cli]") from None
    return safetensors.numpy
