"""Options of commands: how a dataclass is read from words, and how it is written as words."""

from __future__ import annotations

import argparse
import inspect
import os
from collections.abc import Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from peaccel._utils.table_paths import file_of

__all__ = ["Nothing", "about", "check_inputs", "parse", "without_none", "words"]

T = TypeVar("T")

NO_INPUTS = ("out", "root", "run")
"""How the names of paths end that are written, or that are folders of which commands say more."""


@dataclass(frozen=True)
class Nothing:
    """A command without options."""


def about(doc: str | None) -> str:
    """Help text of a command: the docstring of its file."""
    return inspect.cleandoc(doc or "")


def parse(
    kind: type[T],
    prog: str,
    description: str | None,
    arguments: Sequence[str],
    *,
    pairs: bool = False,
    positional: bool = False,
) -> T:
    """Read a dataclass from a command's arguments, whose errors and whose --help end the process.

    An input that is not there is refused first, since tyro takes a tenth of a second to import.

    Parameters
    ----------
    kind
        The dataclass: a field is an option, the docstring below it the option's help.
    prog, description
        The head of the help.
    arguments
        The words after the command's name.
    pairs
        Whether each flag has its opposite, --no-quick beside --quick; else only that which changes the default.
    positional
        Whether what has no default is given without its name.

    Raises
    ------
    FileNotFoundError
        The arguments name an input that is not there.
    ValueError
        A seed is below 0.
    """
    check_inputs(kind, arguments)
    import tyro

    config: list[Any] = [] if pairs else [tyro.conf.FlagCreatePairsOff]
    config += [tyro.conf.PositionalRequiredArgs] if positional else []
    with without_none():
        found = tyro.cli(
            kind,
            prog=prog,
            description=about(description),
            args=arguments,
            config=config,
        )
    seed = getattr(found, "seed", None)
    if seed is not None and seed < 0:
        raise ValueError(f"--seed is {seed}, expected at least 0")
    return found


def check_inputs(kind: type[Any], arguments: Sequence[str]) -> None:
    """Refuse a file to be read that is not there: a path whose name ends with none of `NO_INPUTS`.

    Raises
    ------
    FileNotFoundError
        Naming the file.
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("-h", "--help", action="store_true")
    for name, of in get_type_hints(kind).items():
        if Path in (of, *get_args(of)) and not name.endswith(NO_INPUTS):
            parser.add_argument(f"--{name.replace('_', '-')}", nargs="?")
    parsed = vars(parser.parse_known_args(arguments)[0])
    if parsed.pop("help"):
        return
    for path in filter(None, parsed.values()):
        if path != "None" and not os.path.exists(file_of(path)):
            raise FileNotFoundError(f"{path}: no such file")


def without_none() -> Any:
    """A context in which tyro's help says PATH of an option that takes a path or None, and the option takes both."""
    from tyro.constructors import ConstructorRegistry

    registry = ConstructorRegistry()
    registry.primitive_rule(_optional)
    return registry


def _optional(info: Any) -> Any:
    """How tyro reads a type that may be None: as the type without None, and "None"."""
    from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec, PrimitiveTypeInfo

    kinds = tuple(kind for kind in get_args(info.type) if kind is not type(None))
    if get_origin(info.type) is tuple or len(kinds) == len(get_args(info.type)):
        return None
    without: Any = Union[kinds]  # noqa: UP007  (of a tuple)
    spec = ConstructorRegistry.get_primitive_spec(PrimitiveTypeInfo.make(without, info.markers))
    if not isinstance(spec, PrimitiveConstructorSpec):
        return spec
    return replace(
        spec,
        instance_from_str=lambda words: None if words == ["None"] else spec.instance_from_str(words),
        is_instance=lambda x: x is None or spec.is_instance(x),
        str_from_instance=lambda x: ["None"] if x is None else spec.str_from_instance(x),
        choices=None if spec.choices is None else (*spec.choices, "None"),
    )


def words(values: Any, defaults: Any, prefix: str = "") -> list[str]:
    """The options that make `values` of the `defaults` that `parse` begins with.

    Parameters
    ----------
    values, defaults
        Of one dataclass; of the dataclasses in it, options have dotted names.
    prefix
        Begins each name.

    Examples
    --------
    >>> from dataclasses import dataclass
    >>> from peaccel._utils.options import words
    >>> @dataclass
    ... class Search:
    ...     at_most: float = 1.0
    ...     quick: bool = False
    >>> words(Search(0.1, quick=True), Search())
    ['--at-most', '0.1', '--quick']
    """
    found: list[str] = []
    for f in fields(values):
        value, default, name = getattr(values, f.name), getattr(defaults, f.name), f.name.replace("_", "-")
        if is_dataclass(value):
            found += words(value, default, f"{prefix}{name}.")
        elif value != default and isinstance(value, bool):
            found.append(f"--{prefix}{'' if value else 'no-'}{name}")
        elif value != default:
            found += [f"--{prefix}{name}", *map(str, value if isinstance(value, tuple) else (value,))]
    return found
