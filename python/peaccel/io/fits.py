"""Fits in small .json files."""

from __future__ import annotations

import json
import math
import reprlib
import zlib
from typing import Any

import numpy as np

from peaccel._utils.arrays import Numpy, on_host
from peaccel._utils.atomic_files import PathLike
from peaccel.fits import plda  # noqa: F401  (whose class enters itself, as those of the records do)
from peaccel.fits.records import Prior
from peaccel.fits.saved_fit import SavedFit, fit_of, keys_of
from peaccel.io._array_files import existing, write_text
from peaccel.io.states import Fit, Plain, to_state

__all__ = ["as_record", "fingerprint", "of_record", "read_fit", "read_json", "write_fit"]

VERSION = 1
NULL = ("threshold", "gap")
"""Fields that may be infinite, for which JSON has null."""


def write_fit(path: PathLike, fit: Fit | float) -> None:
    """Write what `fit_prior`, `calibrate_variance`, `fit_centre`, `fit_shift`, `fit_match_probability`,
    `learn_then_test`, `limit_false_matches`, `conformal_sets` or `fit_plda` found, so that ``read_fit`` gives it back.

    Parameters
    ----------
    path : path
        A .json file: {"peaccel": "prior", "version": 1, "mean": [...], "var": 0.5}, every number in full; of a
        "calibration" a, b, of and, for one side of two, mean; of a "shift" its value; of the others the attributes; a
        threshold that accepts nothing and a gap that leaves out nothing are null. An existing file is replaced once the
        new one is whole.
    fit
        What one of these found, or a float.

    Raises
    ------
    TypeError
        If fit is anything else.
    ValueError, FileNotFoundError, PermissionError, OSError
        As ``write_distribution``; if a value is not finite, or negative where it cannot be.

    Examples
    --------
    >>> pe.io.write_fit("calibration.json", pe.Calibration(a=4.0, b=0.01, of="Normal"))
    >>> pe.io.read_fit("calibration.json")(pe.Normal([[0.0, 1.0]], var=[0.1])).var.round(3).tolist()
    [0.41]
    """
    write_text(path, (".json",), json.dumps(as_record("write_fit", path, fit)) + "\n")


def as_record(owner: str, path: PathLike, fit: Fit | float) -> dict[str, Any]:
    """The object that the file of a fit holds; errors of its values begin with the path."""
    kind, plain = _plain_fit(owner, fit)
    record = {"peaccel": kind, "version": VERSION, **plain}
    try:
        _fit(kind, plain)
        json.dumps(record, allow_nan=False)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    return record


def fingerprint(fit: Fit | float) -> str:
    """The kind of a fit and a checksum of its values, by which files of thresholds know what was applied to items."""
    kind, plain = _plain_fit("fingerprint", fit)
    return f"{kind} {zlib.crc32(json.dumps(plain).encode()):08x}"


def _plain_fit(owner: str, fit: Fit | float) -> tuple[str, dict[str, Any]]:
    """The kind of a fit and its values, as JSON has them."""
    values: dict[str, Any]
    if isinstance(fit, float):
        kind, values = "shift", {"value": fit}
    elif isinstance(fit, Prior | SavedFit):
        kinds: dict[type, str] = {known: name for name, known in SavedFit.kinds.items()} | {Prior: "prior"}
        kind, values = kinds[type(fit)], to_state(fit)
    else:
        raise TypeError(f"{owner}: fit must be a fit, such as a Prior, or a float, got {type(fit).__name__}")
    values = {key: None if key in NULL and x == math.inf else x for key, x in values.items()}
    return kind, {key: x if x is None or isinstance(x, str) else _plain(x) for key, x in values.items()}


def read_fit(path: PathLike) -> Prior[Numpy] | Plain | float:
    """Read a fit that ``write_fit`` wrote: a ``Prior``, its arrays float64, another fit, or a shift, a float.

    Raises
    ------
    FileNotFoundError
        If there is no such file.
    ValueError
        If it is not a .json file that holds a fit, or one of a later format; if its values are wrong.

    Examples
    --------
    >>> pe.io.write_fit("shift.json", 0.25)
    >>> pe.io.read_fit("shift.json")
    0.25
    """
    return of_record(path, read_json(path))


def read_json(path: PathLike) -> Any:
    """Content of a .json file; ValueError where it is damaged."""
    path = existing(path, (".json",))
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: cannot be read as JSON, truncated or damaged? ({error})") from None


def of_record(path: PathLike, record: Any) -> Prior[Numpy] | Plain | float:
    """The fit that an object of `as_record` describes; errors begin with the path."""
    values = dict(record) if isinstance(record, dict) else {}
    kind = values.pop("peaccel", None)
    known = ("prior", "shift", *SavedFit.kinds)
    if not isinstance(kind, str) or kind not in known:
        raise ValueError(f'{path}: is not a fit: expected an object with the key "peaccel", one of {", ".join(known)}')
    if (version := values.pop("version", None)) != VERSION:
        raise ValueError(f"{path}: has format version {version}, expected {VERSION}")
    try:
        return _fit(kind, values)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def _plain(value: Any) -> Any:
    """A number or lists of numbers as JSON has them, without loss."""
    if isinstance(value, tuple):
        return [_plain(x) for x in value]
    if isinstance(value, int):
        return value
    return np.asarray(on_host(value.double() if hasattr(value, "double") else value), np.float64).tolist()


def _fit(kind: str, values: dict[str, Any]) -> Prior[Numpy] | Plain | float:
    """The fit that these values describe; ValueError where they describe none."""
    alone = {"prior": {"mean", "var"}, "shift": {"value"}}
    allowed, required = (alone[kind], alone[kind]) if kind in alone else keys_of(SavedFit.kinds[kind])
    if not required <= set(values) <= allowed:
        found, expected = (", ".join(sorted(keys)) or "none" for keys in (values, required))
        more = f", and may have {', '.join(sorted(allowed - required))}" if allowed > required else ""
        raise ValueError(f"{kind} has the keys {found}; expected {expected}{more}")
    if kind == "shift":
        return float(_numbers("value", values["value"], rank=0))
    if kind == "prior":
        return _prior(**values)
    values = {key: math.inf if x is None and key in NULL else x for key, x in values.items()}
    fit: Plain = fit_of(SavedFit.kinds[kind], values)
    return fit


def _prior(mean: Any, var: Any) -> Prior[Numpy]:
    """A prior, which is of arrays of either kind, and a tuple: its numbers are looked at in files alone."""
    mean, var = _numbers("mean", mean, rank=1), _numbers("var", var, rank=1, least=0)
    if mean.ndim == var.ndim == 1 and len(mean) != len(var):
        raise ValueError(f"var has {len(var)} numbers, expected {len(mean)} like mean")
    numbers: list[Any] = [x if x.ndim else float(x) for x in (mean, var)]
    return Prior(*numbers)


def _numbers(key: str, value: Any, rank: int, least: float = -math.inf) -> Numpy:
    """The number, or by the rank the list of them, under a key."""
    try:
        x = np.asarray(value)
    except ValueError:  # lists of different lengths
        x = np.empty(0)
    if not (x.dtype.kind in "iuf" and x.ndim <= rank and x.size and np.isfinite(x).all() and x.min() >= least):
        expected = f"a finite number{'' if least else ' >= 0'}{' or a list of them' * rank}"
        raise ValueError(f"{key} is {reprlib.repr(value)}, expected {expected}")
    return x.astype(np.float64)
