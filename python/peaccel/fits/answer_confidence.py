"""How sure the best answer to each query is, by the scores of what a search has found."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike

from peaccel._utils.arrays import Array, Numpy, on_host, require_numbers
from peaccel._utils.labels import classes_of
from peaccel._utils.suggestions import unknown

__all__ = ["ANSWER_CONFIDENCES", "RankedAnswers", "answer_confidence"]

ANSWER_CONFIDENCES = ("score", "margin", "class_margin")
"""The confidences of an answer; a fitted probability takes the first two, or all, in this order."""


class RankedAnswers(Protocol):
    """A ranking, of which thresholds need no more than this."""

    @property
    def ids(self) -> Any: ...
    @property
    def scores(self) -> Any: ...
    @property
    def _replace(self) -> Callable[..., Any]: ...


def answer_confidence(ranking: RankedAnswers, kind: str = "score", labels: ArrayLike | None = None) -> Numpy:
    """How sure the best answer to each query is. Higher is surer, comparable within one score and one gallery.

    ================  ==============================================================================================
    kind              formula
    ================  ==============================================================================================
    score             the score of the best item
    margin            that less the score of the next item
    class_margin      that less the score of the best item of another class than the best one's: where a class has
                      several items, as photographs of a person, the next item tends to be a sibling
    ================  ==============================================================================================

    Parameters
    ----------
    ranking
        [Q, K], as `search` returns it; a margin needs two items, a class margin so many that each query meets another
        class: one more than the largest class has is always enough.
    kind
        A name of the table.
    labels
        Of a class margin: [G] the class of each row of the gallery, where ids are rows; or [Q, K] that of each item
        found, such as ``ranking.ids`` where the items of a class go by one id.

    Returns
    -------
    [Q], float64; a margin of an exact copy, whose score is inf, is inf, or 0 to another copy.

    Raises
    ------
    TypeError
        ranking is no ranking.
    ValueError
        An unknown kind; no labels, or of another shape; scores that are NaN, or a best one of -inf; a query that meets
        no other item, or no other class.

    Examples
    --------
    The first query's best two items are of one person, and the next person is far off:

    >>> found = pe.Ranking(np.array([[0.9, 0.88, 0.3], [0.8, 0.5, 0.4]]), np.array([[0, 1, 2], [2, 0, 1]]))
    >>> pe.answer_confidence(found, "margin").round(2).tolist()
    [0.02, 0.3]
    >>> pe.answer_confidence(found, "class_margin", labels=["ann", "ann", "bob"]).round(2).tolist()
    [0.6, 0.3]
    """
    owner = "answer_confidence"
    if kind not in ANSWER_CONFIDENCES:
        raise ValueError(f"{owner}: {unknown('kind', kind, ANSWER_CONFIDENCES)}")
    if not hasattr(ranking, "scores"):
        raise TypeError(f"{owner}: ranking is {type(ranking).__name__}, expected a pe.Ranking")
    scores, ids = on_host(ranking.scores, owner, "scores").astype(np.float64), on_host(ranking.ids)
    found = ids != ("" if ids.dtype.kind == "U" else -1)
    if kind == "score":
        return np.asarray(scores[:, 0])
    if kind == "margin":
        others = found & (np.arange(scores.shape[1]) > 0)
    else:
        classes = _classes(owner, ids, labels)
        others = found & (classes != classes[:, :1])
    missing = ~others.any(1)
    if missing.any():
        what = "item" if kind == "margin" else "class"
        raise ValueError(
            f"{owner}: query {missing.argmax()} of ranking meets no other {what} among its {scores.shape[1]} items, "
            f"which a {kind} needs; search with a greater k"
        )
    best, next_best = scores[:, 0], np.take_along_axis(scores, others.argmax(1)[:, None], 1)[:, 0]
    require_numbers(owner, "scores of ranking", np.stack([best, next_best], 1))
    require_numbers(owner, "best scores of ranking", best, above=f"what nothing is like has no {kind}")
    with np.errstate(invalid="ignore"):
        return np.where(best == next_best, 0.0, best - next_best)


def _classes(owner: str, ids: Array, labels: Any) -> Array:
    """The class of each item found."""
    if labels is None:
        raise ValueError(f"{owner}: a class_margin needs labels, the classes of the gallery")
    classes = classes_of(owner, "labels", labels)
    if classes.shape == ids.shape:
        return classes
    rows = ids.dtype.kind in "iu" and classes.ndim == 1 and int(ids.max(initial=-1)) < len(classes)
    if not rows:
        raise ValueError(
            f"{owner}: labels have shape {classes.shape}, expected (G,), that of rows which ids are, or {ids.shape}"
        )
    return np.asarray(classes[ids])
