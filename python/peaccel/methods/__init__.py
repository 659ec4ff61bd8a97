"""The literature: one paper a file, each with a `METHOD`; the papers' table is collected from the files.

``build(backbone, features, classes, settings)`` of a method returns the model (inputs -> distribution), what else is
learned with it, and the stages that train them; `peaccel.train.fit` carries these out.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, cast

from peaccel.names import unknown

if TYPE_CHECKING:
    from peaccel.methods.records import Method

__all__ = ["NAMES", "load", "table"]

SHARED = ("__init__", "parts", "records")

NAMES = tuple(sorted({path.stem for path in Path(__file__).parent.glob("*.py")} - {*SHARED}))
"""One for each file."""


def load(name: str) -> Method:
    """Import a method's file.

    Parameters
    ----------
    name
        One of `NAMES`.

    Raises
    ------
    ValueError
        There is no such method; the nearest is named.
    """
    if name not in NAMES:
        raise ValueError(unknown("method", name, NAMES))
    return cast("Method", import_module(f"peaccel.methods.{name}").METHOD)


def table() -> tuple[Method, ...]:
    """All methods, in the order of their names."""
    return tuple(load(name) for name in NAMES)
