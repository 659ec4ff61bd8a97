"""Python files of users, which are named by their paths."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

__all__ = ["is_file", "is_function", "load_file", "load_function"]


def is_file(name: str) -> bool:
    """Whether a name of a method or a data set is the path of a Python file, and none that peaccel knows."""
    return name.endswith(".py")


def is_function(name: str) -> bool:
    """Whether a name is the path of a Python file and a function in the file, such as my_file.py:make."""
    return is_file(name.rpartition(":")[0])


def load_function(name: str) -> Callable[..., Any]:
    """Run a Python file and give one of its functions; arguments and errors as `load_file` and `is_function` have them.

    Raises
    ------
    ValueError
        The file has no such function.
    """
    path, _, function = name.rpartition(":")
    found = getattr(load_file(Path(path)), function, None)
    if not callable(found):
        raise ValueError(f"{path}: has no function {function!r}")
    made: Callable[..., Any] = found
    return made


def load_file(path: Path) -> ModuleType:
    """Run a Python file once, as an import does, and give its module.

    The module's name is the file's path, so that no file hides a module, or another file, of the same stem. It may
    import files beside it, as one that Python runs may; they hide nothing that is installed.

    Raises
    ------
    FileNotFoundError
        There is no such file.
    ValueError
        It is no Python.
    ImportError
        It imports what is not there.
    """
    if not path.is_file():
        raise FileNotFoundError(f"{path}: there is no such file")
    name = str(path.resolve())
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    if (folder := str(Path(name).parent)) not in sys.path:
        sys.path.append(folder)
    sys.modules[name] = module  # where the annotations of its dataclasses are looked up
    try:
        spec.loader.exec_module(module)
    except BaseException as error:
        del sys.modules[name]
        if isinstance(error, SyntaxError):
            raise ValueError(f"{error.filename}:{error.lineno}: {error.msg}") from None
        if isinstance(error, ImportError):  # of a library that no extra of peaccel brings
            raise ImportError(f"{path}: {error}") from error
        raise
    return module
