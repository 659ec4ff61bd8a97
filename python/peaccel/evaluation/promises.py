"""Promises that a threshold keeps: what share may be wrong, which test finds the threshold, and how both are worded."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from peaccel.fits.learn_then_test import limit_false_matches, tested
from peaccel.fits.records import FalseMatchLimit, Selection

__all__ = [
    "FAR",
    "FPIR",
    "WRONG_ANSWERS",
    "WRONG_PAIRS",
    "JudgedAnswers",
    "Per",
    "Promise",
    "per_cent",
    "promise_of",
    "risks",
]

Per: TypeAlias = Literal["class", "query", "group", "pair"]
"""The unit of a promise: units are drawn independently, and one case of each is tested."""


def per_cent(x: float) -> str:
    """A share that somebody gave, in per cent, with all of its digits."""
    return f"{100 * x:.10g} %"


@dataclass(frozen=True)
class JudgedAnswers:
    """Answers to queries, or pairs, with labels that say which of them are right."""

    scores: NDArray[Any]
    """[N], the number that the threshold is of; scores in the dtype in which they were computed."""
    right: NDArray[np.bool_]
    """[N]: whether to accept is right."""
    classes: NDArray[np.int64]
    """[N], the class or the named group of each, 0, 1, ..."""
    matches: NDArray[np.bool_]
    """[N]: which queries have a right item, and which pairs match."""
    others: NDArray[Any]
    """[M], the same number of searches without a mate, or of pairs that do not match."""
    of_others: NDArray[np.int64] | None
    """[M], the class or group of each; None where each is independent."""
    within: NDArray[Any] | None = None
    """[N], the group within which the promise is kept too, such as a language; None where there are none."""

    def part(self, queries: NDArray[np.bool_], others: NDArray[np.bool_]) -> JudgedAnswers:
        """Some of the queries, and of the searches without a mate."""
        return JudgedAnswers(
            self.scores[queries],
            self.right[queries],
            np.unique(self.classes[queries], return_inverse=True)[1],
            self.matches[queries],
            self.others[others],
            None if self.of_others is None else self.of_others[others],
            None if self.within is None else self.within[queries],
        )

    def each(self) -> JudgedAnswers:
        """The same answers, each a class of its own."""
        return replace(self, classes=np.arange(len(self.scores)), of_others=None)


def risks(
    scores: NDArray[Any], right: NDArray[np.bool_], classes: NDArray[np.int64] | None = None
) -> NDArray[np.float64]:
    """[T, 2] over falling thresholds: the accepted share, and the wrong share of these, each class counting once."""
    order = np.argsort(-scores, kind="stable")
    last = np.flatnonzero(np.append(np.diff(scores[order]) != 0, True))  # equal scores are accepted together
    weights = np.ones(len(scores)) if classes is None else 1 / np.bincount(classes)[classes[order]]
    accepted, wrong = np.cumsum(weights)[last], np.cumsum(weights * ~right[order])[last]
    return np.stack([(last + 1) / len(scores), wrong / accepted], 1)


@dataclass(frozen=True)
class Promise(ABC):
    """At most a share alpha of some cases goes wrong, but for a chance delta."""

    name: str
    """The argument and the option that ask for it; their value is alpha."""
    title: str
    """Title of its table."""
    wording: str
    """The cases that go wrong, as the end of "at most 5 % of ..."."""
    case: str
    """One case: "query", "search" or "pair"."""
    ladder: tuple[float, ...]
    """The alphas that are shown beside the one that is asked for."""

    def __call__(self, alpha: float) -> str:
        """The promise as a clause."""
        precision = f" (a precision of {per_cent(1 - alpha)})" if self.name == "wrong" and self.case == "pair" else ""
        return f"at most {per_cent(alpha)} of {self.wording}{precision}"

    @abstractmethod
    def find(self, x: JudgedAnswers, alpha: float, delta: float, seed: int) -> Selection | FalseMatchLimit:
        """The threshold; inf where none keeps the promise with certainty."""

    @abstractmethod
    def answered(self, x: JudgedAnswers, alpha: float) -> float:
        """The share that is answered at the lowest threshold that just keeps the promise on these answers."""

    def alphas(self, asked: tuple[Promise, float] | None) -> list[float]:
        """The ladder and the alpha that is asked for, falling."""
        return sorted({*self.ladder, *([asked[1]] if asked is not None and asked[0] is self else [])}, reverse=True)

    @abstractmethod
    def cases(self, x: JudgedAnswers) -> int:
        """How many cases there are, of which a share may go wrong."""


class _OfAccepted(Promise):
    """Wrong ones among what is accepted (`pe.learn_then_test`)."""

    def find(self, x: JudgedAnswers, alpha: float, delta: float, seed: int) -> Selection:
        """The threshold of `pe.learn_then_test`."""
        return tested("learn_then_test", x.scores, x.right, x.classes, alpha, delta, seed, warned=True)

    def answered(self, x: JudgedAnswers, alpha: float) -> float:
        """The largest share whose risk is at most alpha."""
        coverage, risk = risks(x.scores, x.right).T
        return float(coverage[risk <= alpha].max(initial=0))

    def cases(self, x: JudgedAnswers) -> int:
        """The answers."""
        return len(x.scores)


class _OfOthers(Promise):
    """Accepted ones among what is to be refused (`pe.limit_false_matches`)."""

    def find(self, x: JudgedAnswers, alpha: float, delta: float, seed: int) -> FalseMatchLimit:
        """The threshold of `pe.limit_false_matches`."""
        return limit_false_matches(x.others, alpha, delta, x.of_others, seed=seed)

    def answered(self, x: JudgedAnswers, alpha: float) -> float:
        """The share that is answered rightly above the threshold that lets a share alpha of the others through."""
        if not len(x.others):
            return 0.0
        limit = np.sort(x.others)[::-1][int(alpha * len(x.others))]
        return float((x.right & (x.scores > limit)).mean())

    def cases(self, x: JudgedAnswers) -> int:
        """The others."""
        return len(x.others)


WRONG_ANSWERS = _OfAccepted(
    name="wrong",
    title="At most a share of the accepted answers is wrong",
    wording="the accepted answers are wrong",
    case="query",
    ladder=(0.2, 0.1, 0.05, 0.02, 0.01, 0.005, 0.001),
)
FPIR = _OfOthers(
    name="fpir",
    title="At most a share of searches without a mate returns anything",
    wording="searches without a mate return anything",
    case="search",
    ladder=(0.1, 0.05, 0.01, 0.001),
)
WRONG_PAIRS = _OfAccepted(
    name="wrong",
    title="At most a share of the accepted pairs does not match",
    wording="the accepted pairs do not match",
    case="pair",
    ladder=WRONG_ANSWERS.ladder,
)
FAR = _OfOthers(
    name="far",
    title="At most a share of pairs that do not match is accepted",
    wording="the pairs that do not match are accepted",
    case="pair",
    ladder=(0.1, 0.01, 0.001, 0.0001),
)


def promise_of(accept: Selection | FalseMatchLimit) -> Promise:
    """The promise that a threshold was found to keep."""
    if isinstance(accept, Selection):
        return WRONG_PAIRS if accept.of == "pairs" else WRONG_ANSWERS
    return FAR if accept.of == "pairs" else FPIR
