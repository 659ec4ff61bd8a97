"""The literature: one paper a file, each with a `METHOD`; the papers' table is collected from the files.

``build(backbone, features, classes, settings)`` of a method returns the model (inputs -> distribution), what else is
learned with it, and the stages that train them; `peaccel.train.fit` carries these out.
"""

from __future__ import annotations

from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, cast

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
        nearest = get_close_matches(name, NAMES, n=1, cutoff=0)[0]
        raise ValueError(f"method {name!r} is unknown, the nearest is {nearest!r}; there are {', '.join(NAMES)}")
    return cast("Method", import_module(f"peaccel.methods.{name}").METHOD)


def table() -> tuple[Method, ...]:
    """All methods, in the order of their names."""
    return tuple(load(name) for name in NAMES)
