"""Fits that files keep: a class names its kind and checks its values, and nothing else has to know of it."""

from __future__ import annotations

import math
import reprlib
from collections.abc import Mapping
from dataclasses import MISSING, fields
from numbers import Real
from typing import Any, ClassVar, cast

__all__ = ["SavedFit", "fit_of", "keys_of", "refused", "require_numbers"]


class SavedFit:
    """The base class of fits in files, which are frozen dataclasses of numbers, words and tuples of numbers.

    ``class Margin(SavedFit, kind="margin")`` enters a class under the word by which its files begin. ``__post_init__``
    refuses values that it cannot have, whether they come from a file or a call.
    """

    kinds: ClassVar[dict[str, type[SavedFit]]] = {}

    def __init_subclass__(cls, kind: str, **options: Any) -> None:
        super().__init_subclass__(**options)
        SavedFit.kinds[kind] = cls


def keys_of(kind: Any) -> tuple[set[str], set[str]]:
    """The fields of a class of fits: all, and those without a default."""
    names = {x.name for x in fields(kind)}
    return names, {x.name for x in fields(kind) if x.default is MISSING and x.default_factory is MISSING}


def fit_of(kind: Any, values: Mapping[str, Any]) -> Any:
    """The fit of values as files and dicts have them: lists for tuples, whole numbers for floats, None for infinity."""
    types = {x.name: str(x.type) for x in fields(kind)}
    return kind(**{key: _typed(x) if "float" in types[key] else x for key, x in values.items()})


def _typed(x: Any) -> Any:
    if isinstance(x, (list, tuple)):
        return tuple(map(_typed, x))
    return float(x) if isinstance(x, int) and not isinstance(x, bool) else x


def require_numbers(
    fit: SavedFit, *names: str, least: float = -math.inf, most: float = math.inf, infinite: bool = False
) -> None:
    """Refuse fields that are no numbers, or tuples of them, in [least, most], finite unless they may be infinite."""
    types = {x.name: str(x.type) for x in fields(cast("Any", fit))}
    for name in names:
        value, many = getattr(fit, name), types[name].startswith("tuple")
        numbers = value if many and isinstance(value, tuple) else (value,)
        found = all(isinstance(x, Real) and not isinstance(x, bool) for x in numbers)
        if not (found and all(least <= x <= most and (infinite or math.isfinite(x)) for x in numbers)) or (
            isinstance(value, tuple) is not many
        ):
            bounds = (
                f" from {least:g} to {most:g}" if most < math.inf else f" >= {least:g}" if least > -math.inf else ""
            )
            raise refused(fit, name, value, f"{'finite numbers' if many else 'a finite number'}{bounds}")


def refused(fit: SavedFit, name: str, value: Any, expected: str) -> ValueError:
    """The error of a field that has this value."""
    return ValueError(f"{type(fit).__name__}: {name} is {reprlib.repr(value)}, expected {expected}")
