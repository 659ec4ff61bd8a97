"""Training: the loop for every method, what it deals out, what it keeps, and whole runs from recipes.

All of it needs torch, whose import takes seconds: names are imported at their first use, so that commands can refuse
their arguments before.

The way of one batch through the floors::

    cli/train.py  main                      options; what they get wrong is refused before torch is imported
        recipes.py  recipe                      the method, and its settings on the data set
    runs.py  train                          data, backbone, folder
        sources.py  open_items                  Items: what the network takes, labels, quality
        resuming.py                             whether a resumed run is the one that began
        methods/<paper>.py  build               Training: model, criterion, stages
    loop.py  fit                            a stage: its start on batches, then its epochs
        batch_sampling.py  balanced, deliver    rows of a batch; Batch: inputs, labels, rows
    methods/<paper>.py  Stage.loss          the terms of the loss, by name
        train/backbones/, heads.py                    images -> features -> a distribution
        losses/<family>.py                      a distribution and labels -> a number
    retrieval/verbs.py, distributions/sample.py     from here on as `rust/kernels/mod.rs` draws it
    loop.py                                 backward, a clipped step, the schedule
        progress.py, diagnostics.py             what is said of it
        checkpoint.py                           what a resumed run goes on from
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
