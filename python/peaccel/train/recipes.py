"""Recipes: for each row of the papers' table a method, its settings on each data set, and the ranges to search."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from peaccel import methods, published
from peaccel._utils import config
from peaccel._utils.suggestions import unknown
from peaccel.data import COMPOSED

if TYPE_CHECKING:
    from peaccel.methods.method import Method

__all__ = ["RECIPES", "check_row", "label", "load_method", "method_of", "ranges", "recipe"]

FOLDER = Path(__file__).parents[1] / "methods" / "recipes"

RECIPES = tuple(sorted({path.stem for path in FOLDER.glob("*.toml")} - {"demo", "digits"}))
"""The names of the recipes, one for each row of the papers' table."""


def recipe(name: str, data: str, changes: Mapping[str, Any] | None = None) -> tuple[Method, Any]:
    """The method and the settings of a row of the papers' table on a data set.

    Parameters
    ----------
    name
        One of `RECIPES`, with "published." before it where the method is to be as `peaccel.published` has it; or a
        method of another package or file, as `peaccel.methods.load` takes it, whose settings are its own defaults, or a
        recipe beside the file.
    data
        A table of the recipe with this name stands over its [settings].
    changes
        Over both, nested as the settings are.

    Raises
    ------
    ValueError
        An unknown name (the nearest is named), an unknown key, a value out of its range.

    Examples
    --------
    The recipe of PFE for features that are given, with a shorter training:

    >>> from peaccel.train import recipe
    >>> method, settings = recipe("pfe", "features", {"match": {"epochs": 2}})
    >>> method.score, settings.mean, settings.match.epochs, settings.match.lr
    ('mls', 'given', 2, 0.001)
    """
    values = _read(name)
    method = load_method(method_of(name))
    merged = config.merge(values.get("settings", {}), values.get("digits" if data in COMPOSED else data, {}))
    return method, config.from_mapping(config.merge(merged, changes or {}), method.settings, name)


def method_of(name: str) -> str:
    """The name or the path by which `load_method` finds the method of a row."""
    if _is_published(name):
        return published.PREFIX + method_of(name.removeprefix(published.PREFIX))
    alone = str(Path(name).resolve()) if name.endswith(".py") else name
    method: str = _read(name).get("method", alone)
    return method


def load_method(name: str) -> Method:
    """The method that `peaccel.published.load` or `peaccel.methods.load` has under a name, or a path."""
    return published.load(name) if _is_published(name) else methods.load(name)


def label(name: str) -> str:
    """The row's name in what a run writes and says: of a file its stem."""
    return Path(name).stem if name.endswith(".py") else name


def ranges(name: str) -> dict[str, tuple[float, float, bool]]:
    """The ranges in which a recipe's settings are searched: by dotted name, least, greatest, whether in logarithms.

    Raises
    ------
    ValueError
        An unknown name, or the recipe has no [tune] table.
    """
    found = _read(name).get("tune", {})
    if not found:
        raise ValueError(f"the recipe of {name} has no [tune] table: there is nothing to search")
    return {key: (float(x["low"]), float(x["high"]), bool(x.get("log", False))) for key, x in found.items()}


def check_row(name: str) -> None:
    """Refuse a name that is neither one of `RECIPES`, published or not, nor a method of another package or file.

    Raises
    ------
    ValueError
        There is no such row, and the nearest is named; or its method has no published form.
    FileNotFoundError
        There is no such file.
    """
    if name.endswith(".py"):
        if not Path(name).is_file():
            raise FileNotFoundError(f"{name}: there is no such file")
    elif _is_published(name):
        if (method := method_of(name)) not in published.NAMES:
            raise ValueError(unknown("published method", method, published.NAMES))
    elif name not in RECIPES and name not in (others := methods.installed()):
        raise ValueError(f"{unknown('method', name, (*RECIPES, *others))} See 'peaccel methods'")


def _is_published(name: str) -> bool:
    return name.startswith(published.PREFIX) and not name.endswith(".py")


def _read(name: str) -> dict[str, Any]:
    check_row(name)
    if _is_published(name):
        return _read(name.removeprefix(published.PREFIX))
    path = Path(name).with_suffix(".toml") if name.endswith(".py") else FOLDER / f"{name}.toml"
    found = config.read_mapping(path) if name in RECIPES or path.exists() else {}
    for key, value in found.items():
        if key != "method" and not isinstance(value, Mapping):
            raise ValueError(f"{path}: {key} is {value!r}, expected tables: [settings], [tune], those of data sets")
    return found
