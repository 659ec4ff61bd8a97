"""Recipes: for each row of the papers' table a method, its settings on each data set, and the ranges to search."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from peaccel import config, methods
from peaccel.data import DIGITS
from peaccel.names import unknown

if TYPE_CHECKING:
    from peaccel.methods.records import Method

__all__ = ["RECIPES", "check_row", "ranges", "recipe"]

FOLDER = Path(__file__).parent.parent / "recipes"

RECIPES = tuple(sorted({path.stem for path in FOLDER.glob("*.toml")} - {"demo", "digits"}))
"""The names of the recipes, one for each row of the papers' table."""


def recipe(name: str, data: str, changes: Mapping[str, Any] | None = None) -> tuple[Method, Any]:
    """The method and the settings of a row of the papers' table on a data set.

    Parameters
    ----------
    name
        One of `RECIPES`.
    data
        A table of the recipe with this name stands over its [settings].
    changes
        Over both, nested as the settings are.

    Raises
    ------
    ValueError
        An unknown name (the nearest is named), an unknown key, a value out of its range.
    """
    values = _read(name)
    method = methods.load(values["method"])
    merged = config.merge(values.get("settings", {}), values.get("digits" if data in DIGITS else data, {}))
    return method, config.from_mapping(config.merge(merged, changes or {}), method.settings, name)


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
    """Refuse a name that is none of `RECIPES`: ValueError."""
    if name not in RECIPES:
        raise ValueError(f"{unknown('method', name, RECIPES)} See 'peaccel methods'")


def _read(name: str) -> dict[str, Any]:
    check_row(name)
    return config.read_mapping(FOLDER / f"{name}.toml")
