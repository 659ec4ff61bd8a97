"""Fits in small .json files."""

from __future__ import annotations

import itertools
import json
import math
import reprlib
import zlib
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np

from peaccel._utils.arrays import Numpy, on_host
from peaccel._utils.atomic_files import PathLike
from peaccel.fits.answer_confidence import ANSWER_CONFIDENCES
from peaccel.fits.plda import Plda
from peaccel.fits.records import (
    Calibration,
    Centre,
    ConformalSets,
    FalseMatchLimit,
    IsotonicProbability,
    LogisticProbability,
    Prior,
    Selection,
    Threshold,
)
from peaccel.io._array_files import existing, write_text
from peaccel.io.states import Fit, Plain, to_state

__all__ = ["fingerprint", "read_fit", "write_fit"]

VERSION = 1
KINDS = {
    Prior: "prior",
    Calibration: "calibration",
    Centre: "centre",
    LogisticProbability: "logistic",
    IsotonicProbability: "isotonic",
    Selection: "selection",
    FalseMatchLimit: "false_match_limit",
    Threshold: "threshold",
    ConformalSets: "conformal_sets",
    Plda: "plda",
}
KEYS = {
    "prior": {"mean", "var"},
    "calibration": {"a", "b", "of"},  # and mean, where it is of one side of two
    "shift": {"value"},
}
KEYS |= {kind: {x.name for x in fields(fit)} for fit, kind in KINDS.items() if kind not in KEYS and is_dataclass(fit)}


def write_fit(path: PathLike, fit: Fit | float) -> None:
    """Write what `fit_prior`, `calibrate_variance`, `fit_centre`, `fit_shift`, `fit_match_probability`,
    `learn_then_test`, `limit_false_matches`, `conformal_sets` or `fit_plda` found, so that ``read_fit`` gives it back.

    Parameters
    ----------
    path : path
        A .json file: {"peaccel": "prior", "version": 1, "mean": [...], "var": 0.5}, every number in full; of a
        "calibration" a, b, of and, where it is of one side of two, mean; of a "shift" its value; of
        the others the attributes; a threshold that accepts nothing and a gap that leaves out nothing are null. An
        existing file is replaced once the new one is whole.
    fit
        A ``Prior``, ``Calibration``, ``Centre``, ``LogisticProbability``, ``IsotonicProbability``, ``Selection``,
        ``FalseMatchLimit``, ``Threshold``, ``ConformalSets``, ``Plda`` or a float.

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
    kind, plain = _plain_fit("write_fit", fit)
    try:
        _fit(kind, plain)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    write_text(path, (".json",), json.dumps({"peaccel": kind, "version": VERSION, **plain}) + "\n")


def fingerprint(fit: Fit | float) -> str:
    """The kind of a fit and a checksum of its values, by which files of thresholds know what was applied to items."""
    kind, plain = _plain_fit("fingerprint", fit)
    return f"{kind} {zlib.crc32(json.dumps(plain).encode()):08x}"


def _plain_fit(owner: str, fit: Fit | float) -> tuple[str, dict[str, Any]]:
    """The kind of a fit and its values, as JSON has them."""
    values: dict[str, Any]
    if isinstance(fit, float):
        kind, values = "shift", {"value": fit}
    elif type(fit) in KINDS:
        kind, values = KINDS[type(fit)], to_state(fit)
    else:
        raise TypeError(f"{owner}: fit must be a fit, such as a Prior, or a float, got {type(fit).__name__}")
    values = {key: None if key in ("threshold", "gap") and x == math.inf else x for key, x in values.items()}  # no JSON
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
    path = existing(path, (".json",))
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: cannot be read as JSON, truncated or damaged? ({error})") from None
    kind = record.pop("peaccel", None) if isinstance(record, dict) else None
    if not isinstance(kind, str) or kind not in KEYS:
        raise ValueError(f'{path}: is not a fit: expected an object with the key "peaccel", one of {", ".join(KEYS)}')
    if (version := record.pop("version", None)) != VERSION:
        raise ValueError(f"{path}: has format version {version}, expected {VERSION}")
    try:
        return _fit(kind, record)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def _plain(value: Any) -> Any:
    """A number or lists of numbers as JSON has them, without loss."""
    if isinstance(value, tuple):
        return [_plain(x) for x in value]
    return np.asarray(on_host(value.double() if hasattr(value, "double") else value), np.float64).tolist()


def _fit(kind: str, values: dict[str, Any]) -> Prior[Numpy] | Plain | float:
    """The fit that these values describe; ValueError where they describe none."""
    sided = kind == "calibration" and "mean" in values
    if set(values) - ({"mean"} if sided else set()) != KEYS[kind]:
        found, expected = (", ".join(sorted(keys)) or "none" for keys in (values, KEYS[kind]))
        raise ValueError(f"{kind} has the keys {found}; expected {expected}")
    if kind == "shift":
        return float(_numbers("value", values, rank=0))
    if kind == "calibration":
        if values["of"] not in ("Normal", "VonMisesFisher"):
            raise ValueError(f"of is {values['of']!r}, expected 'Normal' or 'VonMisesFisher'")
        a, b = (float(_numbers(key, values, rank=0, least=0)) for key in "ab")
        return Calibration(a, b, values["of"], _row("mean", values) if sided else ())
    if kind == "centre":
        return _centre(values)
    if kind == "logistic":
        return LogisticProbability(float(_numbers("bias", values, rank=0)), _row("weights", values))
    if kind == "isotonic":
        return _isotonic(_row("scores", values), _row("probabilities", values, least=0))
    if kind == "conformal_sets":
        if values["of"] not in ("answerable", "all"):
            raise ValueError(f"of is {values['of']!r}, expected 'answerable' or 'all'")
        gap = math.inf if values["gap"] is None else float(_numbers("gap", values, rank=0, least=0))
        alpha, classes = (float(_numbers(key, values, rank=0, least=0)) for key in ("alpha", "classes"))
        return ConformalSets(gap, alpha, int(classes), values["of"])
    if kind in ("selection", "false_match_limit", "threshold"):
        threshold = math.inf if values["threshold"] is None else float(_numbers("threshold", values, rank=0))
        if values["of"] not in ("answers", "pairs"):
            raise ValueError(f"of is {values['of']!r}, expected 'answers' or 'pairs'")
        terms = _terms(values)
        if kind == "threshold":
            return Threshold(threshold=threshold, **terms)
        alpha, delta = (float(_numbers(key, values, rank=0, least=0)) for key in ("alpha", "delta"))
        names = ("number", "accepted", "wrong", "missing") if kind == "selection" else ("number", "allowed")
        counts: list[Any] = [
            None if key == "missing" and values[key] is None else int(_numbers(key, values, rank=0, least=0))
            for key in names
        ]
        return (Selection if kind == "selection" else FalseMatchLimit)(threshold, alpha, delta, *counts, **terms)
    if kind == "plda":
        return Plda(_list("means", values, rank=1), _list("matrices", values, rank=2), _numbers("psi", values, rank=1))
    mean, var = _numbers("mean", values, rank=1), _numbers("var", values, rank=1, least=0)
    if mean.ndim == var.ndim == 1 and len(mean) != len(var):
        raise ValueError(f"var has {len(var)} numbers, expected {len(mean)} like mean")
    numbers: list[Any] = [x if x.ndim else float(x) for x in (mean, var)]
    return Prior(*numbers)


def _terms(values: dict[str, Any]) -> dict[str, Any]:
    """The terms of a threshold: what it must be applied to."""
    words = {key: values[key] for key in ("of", "score", "normalisation", "confidence", "applied", "fitted_on")}
    for key, word in words.items():
        if not isinstance(word, str):
            raise ValueError(f"{key} is {reprlib.repr(word)}, expected text")
    kinds = (*ANSWER_CONFIDENCES, "probability")
    if words["confidence"] not in kinds:
        raise ValueError(f"confidence is {words['confidence']!r}, expected one of {', '.join(kinds)}")
    weights = _row("weights", values) if values["weights"] else ()
    if len(weights) not in ((3, 4) if words["confidence"] == "probability" else (0,)):
        expected = "3 or 4 numbers of a probability, and none of other confidences"
        raise ValueError(f"weights has {len(weights)} numbers, expected {expected}")
    return {**words, "weights": weights, "dim": int(_numbers("dim", values, rank=0, least=0))}


def _centre(values: dict[str, Any]) -> Centre:
    queries, gallery = (_row(key, values) for key in ("query_mean", "gallery_mean"))
    if len(queries) != len(gallery):
        raise ValueError(f"gallery_mean has {len(gallery)} numbers, expected {len(queries)} like query_mean")
    if values["matrix"] == []:
        return Centre(queries, gallery)
    matrix = _numbers("matrix", values, rank=2)
    if matrix.shape != (len(queries), len(queries)):
        raise ValueError(f"matrix has shape {matrix.shape}, expected ({len(queries)}, {len(queries)}) like query_mean")
    return Centre(queries, gallery, tuple(map(tuple, matrix.tolist())))


def _isotonic(scores: tuple[float, ...], probabilities: tuple[float, ...]) -> IsotonicProbability:
    if len(scores) != len(probabilities):
        raise ValueError(f"probabilities has {len(probabilities)} numbers, expected {len(scores)} like scores")
    if any(x >= y for x, y in itertools.pairwise(scores)):
        raise ValueError(f"scores is {reprlib.repr(list(scores))}, expected rising numbers")
    return IsotonicProbability(scores, probabilities)


def _row(key: str, values: dict[str, Any], least: float = -math.inf) -> tuple[float, ...]:
    return tuple(_numbers(key, values, rank=1, least=least).reshape(-1).tolist())


def _list(key: str, values: dict[str, Any], rank: int) -> tuple[np.ndarray[Any, Any], ...]:
    """The arrays, of this rank, whose list is under a key."""
    found = values[key] if isinstance(values[key], list) else []
    return tuple(_numbers(name, {name: x}, rank) for name, x in ((f"{key}[{i}]", x) for i, x in enumerate(found)))


def _numbers(key: str, values: dict[str, Any], rank: int, least: float = -math.inf) -> np.ndarray[Any, Any]:
    """The number, or the list of them, or the list of such lists, by the rank, under a key."""
    try:
        x = np.asarray(values[key])
    except ValueError:  # lists of different lengths
        x = np.empty(0)
    if not (x.dtype.kind in "iuf" and x.ndim <= rank and x.size and np.isfinite(x).all() and x.min() >= least):
        lists = ("", " or a list of them", ", a list of them or lists of one length")[rank]
        expected = f"a finite number{'' if least else ' >= 0'}{lists}"
        raise ValueError(f"{key} is {reprlib.repr(values[key])}, expected {expected}")
    return x.astype(np.float64)
