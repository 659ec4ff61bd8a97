"""The literature: one paper a file, each with a ``METHOD``; baselines of points are the table of ``points``.

``build(backbone, features, classes, settings)`` of a method returns the model (inputs -> distribution), what else is
learned with it, and the stages that train them; `peaccel.train.fit` carries these out.
"""

from __future__ import annotations

from dataclasses import is_dataclass
from importlib import import_module, metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from peaccel._utils.python_files import load_file
from peaccel._utils.suggestions import unknown
from peaccel._utils.words import plain_name

if TYPE_CHECKING:
    from peaccel.methods.method import Method

__all__ = ["NAMES", "installed", "load", "table"]

SHARED = ("__init__", "method", "parts", "points")

VARIANTS = {
    "el_nivmf": ("nivmf", "el_vmf", "b_vmf", "kl_vmf", "l2_nca", "cos_nca"),
    "llr_nce": ("mls_nce", "vmf_nce"),
    "points": ("contrastive", "margin_dws", "multi_similarity", "proxy_anchor", "proxy_nca"),
}
"""Methods that a file has beside its METHOD: for "nivmf" the constant NIVMF."""

FILES = {path.stem: path.stem for path in Path(__file__).parent.glob("*.py") if path.stem not in SHARED} | {
    name: stem for stem, names in VARIANTS.items() for name in names
}

NAMES = tuple(sorted(FILES))


def load(name: str) -> Method:
    """Import a method's file.

    Parameters
    ----------
    name
        One of `NAMES`, in any case, or of `installed`, or the path of a Python file with a ``METHOD``, which is run
        once.

    Raises
    ------
    ValueError
        There is no such method, and the nearest is named; the file is no Python, or its ``METHOD`` no ``Method``.
    FileNotFoundError
        There is no such file.
    ImportError
        The file imports a module that is not installed.
    """
    if name.endswith(".py"):
        return _checked(getattr(load_file(Path(name)), "METHOD", None), name)
    if (known := plain_name(name)) in FILES:
        module = import_module(f"peaccel.methods.{FILES[known]}")
        return cast("Method", getattr(module, "METHOD" if FILES[known] == known else known.upper()))
    if name in (points := _entry_points()):
        return _from_package(points[name])
    raise ValueError(unknown("method", name, (*NAMES, *points)))


def installed() -> tuple[str, ...]:
    """The names of methods of other packages: entry points of the group ``peaccel.methods``, each a ``Method``."""
    return tuple(sorted(_entry_points()))


def table() -> tuple[Method, ...]:
    """All methods of this package, in the order of their names."""
    return tuple(load(name) for name in NAMES)


def _entry_points() -> dict[str, metadata.EntryPoint]:
    return {point.name: point for point in metadata.entry_points(group="peaccel.methods")}


def _from_package(point: metadata.EntryPoint) -> Method:
    where = f"entry point {point.name} = {point.value}"
    try:
        found = point.load()
    except (ImportError, AttributeError) as error:  # of that package, which no extra of peaccel brings
        raise ImportError(f"{where}: {error}") from error
    return _checked(found, where)


def _checked(found: Any, where: str) -> Method:
    from peaccel.methods.method import Method

    if found is None:
        raise ValueError(f"{where}: has no METHOD, expected a peaccel.methods.method.Method of this name")
    if not isinstance(found, Method):
        raise ValueError(f"{where}: METHOD is {type(found).__name__}, expected a peaccel.methods.method.Method")
    if not is_dataclass(found.settings):
        raise ValueError(f"{where}: settings of METHOD are {found.settings!r}, expected a frozen dataclass")
    return found
