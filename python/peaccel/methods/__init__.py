"""The literature: one paper a file, each with a `METHOD`; the papers' table is collected from the files.

``build(backbone, features, classes, settings)`` of a method returns the model (inputs -> distribution), what else is
learned with it, and the stages that train them; `peaccel.train.fit` carries these out.
"""

from __future__ import annotations

import importlib.util
import sys
from importlib import import_module, metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from peaccel._utils.suggestions import unknown

if TYPE_CHECKING:
    from peaccel.methods.method import Method

__all__ = ["NAMES", "installed", "load", "table"]

SHARED = ("__init__", "method", "parts")

VARIANTS = {
    "el_nivmf": ("nivmf", "el_vmf", "b_vmf", "kl_vmf", "l2_nca", "cos_nca"),
    "llr_nce": ("mls_nce", "vmf_nce"),
}
"""What else a paper's file has: for "nivmf" the constant NIVMF beside METHOD."""

FILES = {path.stem: path.stem for path in Path(__file__).parent.glob("*.py") if path.stem not in SHARED} | {
    name: stem for stem, names in VARIANTS.items() for name in names
}

NAMES = tuple(sorted(FILES))


def load(name: str) -> Method:
    """Import a method's file.

    Parameters
    ----------
    name
        One of `NAMES` or of `installed`, or the path of a Python file with a `METHOD`.

    Raises
    ------
    ValueError
        There is no such method, and the nearest is named; the file has no `METHOD`.
    FileNotFoundError
        There is no such file.
    """
    if name.endswith(".py"):
        return _from_file(Path(name))
    if name in FILES:
        module = import_module(f"peaccel.methods.{FILES[name]}")
        return cast("Method", getattr(module, "METHOD" if FILES[name] == name else name.upper()))
    if name in (points := _entry_points()):
        return _checked(points[name].load(), f"the entry point {name}")
    raise ValueError(unknown("method", name, (*NAMES, *points)))


def installed() -> tuple[str, ...]:
    """The names of methods of other packages: entry points of the group ``peaccel.methods``, each a `Method`."""
    return tuple(sorted(_entry_points()))


def table() -> tuple[Method, ...]:
    """All methods of this package, in the order of their names."""
    return tuple(load(name) for name in NAMES)


def _entry_points() -> dict[str, metadata.EntryPoint]:
    return {point.name: point for point in metadata.entry_points(group="peaccel.methods")}


def _from_file(path: Path) -> Method:
    if not path.is_file():
        raise FileNotFoundError(f"{path}: there is no such file")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module  # where the annotations of its dataclasses are looked up
    spec.loader.exec_module(module)
    return _checked(getattr(module, "METHOD", None), str(path))


def _checked(found: Any, where: str) -> Method:
    from peaccel.methods.method import Method

    if not isinstance(found, Method):
        raise ValueError(f"{where}: METHOD is {type(found).__name__}, expected a peaccel.methods.method.Method")
    return found
