"""Scores, reranking and search for probabilistic embeddings.

Each item is a distribution, not a point. numpy arrays in, numpy arrays out; torch tensors in, torch tensors out, with
gradients.

Examples
--------
Here and in all docstrings ``np`` is numpy, and ``pe`` peaccel:

>>> import numpy as np
>>> import peaccel as pe
>>> gallery = pe.Normal(mu=np.array([[0.0, 1.0], [1.0, 0.0], [0.6, 0.8]]), var=np.array([0.1, 0.1, 0.4]))
>>> queries = pe.Point(np.array([[0.8, 0.6]]))
>>> scores, ids = pe.search(queries, gallery, k=2, score="mls")
>>> ids.tolist()
[[2, 1]]
"""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import Any

from peaccel._core import __version__ as __version__
from peaccel._utils.words import no_attribute

# A relative line is of a module. Names are imported at their first use: all together take twice the time of the verbs.
_LINE = re.compile(r"^from (\S+) import (\w+) as \2$", re.MULTILINE)
_MODULE_OF = {name: module for module, name in _LINE.findall(Path(__file__).with_suffix(".pyi").read_text("utf-8"))}

__all__ = list(_MODULE_OF | {"__version__": "_core"})


def __getattr__(name: str) -> Any:
    if name == "scaleout":
        return importlib.import_module("peaccel.retrieval.ray")
    if name not in _MODULE_OF:
        raise no_attribute("module 'peaccel'", name)
    module = _MODULE_OF[name]
    if module.startswith("."):
        return importlib.import_module(f"{module.rstrip('.')}.{name}", "peaccel")
    globals()[name] = getattr(importlib.import_module(module), name)
    return globals()[name]


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


importlib.import_module("peaccel.retrieval.normalise_scores")  # brings what verbs need
