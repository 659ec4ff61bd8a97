"""Settings: frozen dataclasses read from TOML or mappings, with one-line errors that name the key."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from os import PathLike
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

import msgspec

from peaccel._utils.suggestions import unknown

__all__ = ["from_mapping", "merge", "read", "read_mapping"]

T = TypeVar("T")


def read_mapping(path: str | PathLike[str]) -> dict[str, Any]:
    """Read a TOML file.

    Raises
    ------
    ValueError
        The file is not TOML.
    """
    try:
        return tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, RecursionError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: not TOML: {error}") from None


def read(path: str | PathLike[str], schema: type[T]) -> T:
    """Read a TOML file as a frozen dataclass; see `from_mapping` for what is checked."""
    return from_mapping(read_mapping(path), schema, str(path))


def from_mapping(values: Mapping[str, Any], schema: type[T], where: str = "settings") -> T:
    """Build a frozen dataclass from nested mappings.

    Parameters
    ----------
    values
        The values as TOML has them.
    schema
        A dataclass; its fields are numbers, bools, strings, tuples of these, mappings, or dataclasses, with ranges as
        `msgspec.Meta` says them.
    where
        Begins each message.

    Raises
    ------
    ValueError
        A key is unknown (the nearest known one is named) or missing, a value is of the wrong kind or out of range.
    """
    _refuse_unknown(values, schema, where)
    try:
        return msgspec.convert(values, schema, dec_hook=_path)
    except msgspec.ValidationError as error:
        reason, _, place = str(error).partition(" - at `$")
        place = place.strip("`.")
        got = "" if "got" in reason else _got(values, place)
        raise ValueError(f"{where}: {place + ': ' if place else ''}{_lower(reason)}{got}") from None


def merge(values: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Nested mappings with some values replaced, table by table."""
    merged = dict(values)
    for key, value in changes.items():
        old = merged.get(key)
        both = isinstance(old, Mapping) and isinstance(value, Mapping)
        merged[key] = merge(old, value) if both else value  # type: ignore[arg-type]
    return merged


def _refuse_unknown(values: Mapping[str, Any], schema: Any, where: str) -> None:
    known = [f.name for f in fields(schema)]
    for key in values:
        if key not in known:
            raise ValueError(f"{where}: {unknown('key', key, known)}")
    hints = get_type_hints(schema)
    for key, value in values.items():
        if isinstance(value, Mapping) and is_dataclass(hints[key]):
            _refuse_unknown(value, hints[key], f"{where}: {key}")


def _path(kind: type[Any], value: Any) -> Any:
    """Convert a value that TOML has no type for, which is a path."""
    if kind is Path and isinstance(value, (str, Path)):
        return Path(value)
    raise ValueError(f"expected {kind.__name__}, got {value!r}")


def _got(values: Any, place: str) -> str:
    """The value at a dotted place as text for an error; "" where there is none."""
    for key in place.split("."):
        values = values.get(key) if isinstance(values, Mapping) else None
    return "" if values is None else f", got {values!r}"


def _lower(reason: str) -> str:
    return reason[:1].lower() + reason[1:]
