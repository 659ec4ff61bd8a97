"""Training: the loop for every method, what it deals out, what it keeps, and whole runs from recipes.

All of it needs torch, whose import takes seconds: names are imported at their first use, so that commands can refuse
their arguments before.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from peaccel.train.embedding import embed
    from peaccel.train.loop import Options, fit
    from peaccel.train.progress import ConsoleLogger
    from peaccel.train.recipes import RECIPES, recipe
    from peaccel.train.runs import Result, Run, Trained, load, train

__all__ = ["RECIPES", "ConsoleLogger", "Options", "Result", "Run", "Trained", "embed", "fit", "load", "recipe", "train"]

_MODULE_OF = {
    "embed": "embedding",
    **dict.fromkeys(("Options", "fit"), "loop"),
    **dict.fromkeys(("RECIPES", "recipe"), "recipes"),
    **dict.fromkeys(("Result", "Run", "Trained", "load", "train"), "runs"),
    "ConsoleLogger": "progress",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"peaccel.train.{_MODULE_OF[name]}"), name)
