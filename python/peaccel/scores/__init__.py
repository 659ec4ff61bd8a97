"""Scores of pairs of distributions; always higher = more similar.

A `Score` maps pairs of kinds to what a kernel is called with. ``pe.scores.llr(prior_var=0.5)`` returns a copy with
parameters, and verbs take the same as a string, ``"llr:prior_var=0.5"``.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from peaccel._utils.suggestions import unknown
from peaccel.distributions import Distribution
from peaccel.scores import densities, distances, sampled
from peaccel.scores._score import INTEGERS, KNOWN, Fitted, Pair, Score
from peaccel.scores.densities import *  # noqa: F403  (a score is named in its file alone)
from peaccel.scores.distances import *  # noqa: F403  (a score is named in its file alone)
from peaccel.scores.sampled import *  # noqa: F403  (a score is named in its file alone)

__all__ = ["SCORES", "Fitted", "Pair", "Score", "get", "spelled"]
__all__ += densities.__all__
__all__ += distances.__all__
__all__ += sampled.__all__

SCORES: dict[str, Score] = {
    score.name: score
    for module in (densities, distances, sampled)
    for score in vars(module).values()
    if isinstance(score, Score)
}


KNOWN.update(SCORES)


def named(score: str | Score | None, *sides: Any) -> Score:
    """The score of a name, as `get` reads it; where none is named that of a prepared gallery among the sides of a call,
    cosine where all are points, and else mls.
    """
    if score is not None:
        return get(score)
    points = len(sides) > 0
    for side in sides:
        if not isinstance(side, Distribution) and isinstance(prepared := getattr(side, "score", None), Score):
            return prepared
        points = points and getattr(side, "kind", None) == "point"
    return SCORES["cosine" if points else "mls"]


def get(score: str | Score) -> Score:
    """The score of a name, with parameters after a colon: "mls", "llr:prior_var=0.5,prior_mean=[0.25 -1]".

    Raises
    ------
    TypeError
        score is neither text nor a Score.
    ValueError
        An unknown name, parameter or choice, the nearest known one named; a number that is none.

    Examples
    --------
    >>> pe.scores.get("ppk:rho=0.25")
    Score('ppk:rho=0.25')
    >>> pe.scores.get("ppk:rho=0.25") == pe.scores.ppk(rho=0.25)
    True
    """
    if isinstance(score, Score):
        return score
    if not isinstance(score, str):
        raise TypeError(f"score must be a name or a Score, got {type(score).__name__}")
    name, _, text = score.partition(":")
    if name not in SCORES:
        raise ValueError(unknown("score", name, SCORES))
    params: dict[str, Any] = {}
    for item in _items(text) if text else ():
        key, _, value = (part.strip() for part in item.partition("="))
        parse: Any = str if key in SCORES[name].choices else int if key in INTEGERS else _number
        try:
            params[key] = parse(value)
        except ValueError:
            wanted = "an integer" if parse is int else "a number, or numbers in brackets"
            raise ValueError(f"score {score!r}: {key} must be {wanted}, got {value!r}") from None
    return SCORES[name](**params) if params else SCORES[name]


def spelled(score: Score) -> str:
    """The text of a score, ``str(score)``, after a check that `get` reads it back as an equal one.

    Arrays stand in it in full, each number in at most 24 characters.

    Raises
    ------
    ValueError
        A score that is none of `SCORES`; a parameter without a text: a generator, NaN, or an array of two dimensions.

    Examples
    --------
    >>> pe.scores.spelled(pe.scores.llr(prior_var=np.array([0.1, 1 / 3])))
    'llr:prior_var=[0.1 0.3333333333333333],prior_mean=0.0'
    """
    try:
        text = str(score)
        if get(text) == score:
            return text
    except ValueError:
        pass
    raise ValueError(f"score {score.label} has no text that pe.scores.get reads back")


def _items(text: str) -> list[str]:
    """The parts of a text between commas outside brackets."""
    items: list[str] = []
    for part in text.split(","):
        if items and items[-1].count("[") > items[-1].count("]"):
            items[-1] += f" {part}"
        else:
            items.append(part)
    return [item for item in items if item]


def _number(text: str) -> float | np.ndarray[Any, np.dtype[np.float64]]:
    """A number, or a row of them in brackets, between commas or spaces."""
    if text[:1] == "[" and text[-1:] == "]":
        return np.array([float(part) for part in text[1:-1].replace(",", " ").split()])
    return float(text)
