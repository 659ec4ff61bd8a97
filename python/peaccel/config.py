"""Settings: frozen dataclasses read from TOML, with one-line errors that name the key."""

import tomllib
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from difflib import get_close_matches
from os import PathLike
from pathlib import Path
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

T = TypeVar("T")


def read(path: str | PathLike[str], schema: type[T]) -> T:
    """Read a TOML file as a frozen dataclass.

    Parameters
    ----------
    path
        The file.
    schema
        A dataclass; its fields are int, float, str, bool, tuples of these, mappings, or dataclasses.

    Returns
    -------
    An instance of `schema`.

    Raises
    ------
    ValueError
        The file is not TOML, a key is unknown (the nearest known one is named) or missing.
    TypeError
        A value is of the wrong kind.
    """
    try:
        values = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{path}: not TOML: {error}") from None
    return from_mapping(values, schema, str(path))


def from_mapping(values: Mapping[str, Any], schema: type[T], where: str = "settings") -> T:
    """Build a frozen dataclass from nested mappings; see `read` for what is checked.

    Parameters
    ----------
    values
        As TOML gives them.
    schema
        A dataclass.
    where
        Begins each message.
    """
    known = {field.name: field for field in fields(schema)}  # type: ignore[arg-type]
    for key in values:
        if key not in known:
            near = get_close_matches(key, known, n=1, cutoff=0)
            raise ValueError(
                f"{where}: unknown key {key!r}, nearest known key is {near[0]!r}"
                if near
                else f"{where}: unknown key {key!r}"
            )
    for name, field in known.items():
        if name not in values and field.default is MISSING and field.default_factory is MISSING:
            raise ValueError(f"{where}: key {name!r} is missing, expected {_kind(field.type)}")
    hints = get_type_hints(schema)
    return schema(**{key: _convert(value, hints[key], f"{where}: {key}") for key, value in values.items()})


def _convert(value: Any, kind: Any, where: str) -> Any:
    origin = get_origin(kind) or kind
    if is_dataclass(kind) and isinstance(kind, type) and isinstance(value, Mapping):
        return from_mapping(value, kind, where)
    if origin is tuple and isinstance(value, list):
        kinds = get_args(kind)
        if len(value) != len(kinds):
            raise ValueError(f"{where} has {len(value)} values, expected {len(kinds)}")
        return tuple(_convert(item, item_kind, where) for item, item_kind in zip(value, kinds, strict=True))
    if origin is float and type(value) is int:
        return float(value)
    # bool is an int to isinstance, never to somebody who writes settings
    if not isinstance(value, origin) or (isinstance(value, bool) and origin is not bool):
        raise TypeError(f"{where} is {value!r}, expected {_kind(kind)}")
    return value


def _kind(kind: Any) -> str:
    return kind.__name__ if isinstance(kind, type) else str(kind)
