"""Confidences that a threshold may be of, compared on the labels of some classes, of which the promise then is not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from peaccel._utils.suggestions import unknown
from peaccel.evaluation.answers import GREAT, Answers
from peaccel.evaluation.columns import Column
from peaccel.evaluation.formatting import percent
from peaccel.evaluation.promises import JudgedAnswers, Promise
from peaccel.fits.answer_confidence import ANSWER_CONFIDENCES
from peaccel.fits.fit_match_probability import fit_match_probability
from peaccel.fits.records import Centre, LogisticProbability, Threshold
from peaccel.io.fits import fingerprint
from peaccel.scores import Score

__all__ = ["Candidate", "ComparedConfidence", "best_of", "candidates", "kinds_of", "third"]

FEWEST = 20
"""The fewest classes of queries of which a third is set apart to choose on."""


@dataclass(frozen=True)
class ComparedConfidence:
    """A confidence, and how much it answers of the queries that confidences are compared on."""

    name: Annotated[str, Column("confidence")]
    answered: Annotated[
        float,
        Column(
            "answered %",
            "share of the queries, of the classes that are set apart, that a threshold answers which just keeps the "
            "promise on them; of searches without a mate, that it answers rightly.",
            percent,
        ),
    ]


@dataclass(frozen=True)
class Candidate:
    """A number that a threshold may be of, and what it is for all answers."""

    confidence: str
    weights: tuple[float, ...]
    centre: Centre | None
    norm: str
    judged: JudgedAnswers

    @property
    def name(self) -> str:
        """The confidence, and whether items are centred."""
        return self.confidence if self.centre is None else f"{self.confidence} (centred)"

    def terms(self, score: Score, dim: int, gallery_size: int, fitted_on: str) -> Threshold:
        """A threshold's terms: what it must be applied to."""
        return Threshold(
            score=score.fingerprint,
            normalisation=self.norm,
            confidence=self.confidence,
            weights=self.weights,
            dim=dim,
            gallery_size=gallery_size,
            applied="" if self.centre is None else fingerprint(self.centre),
            fitted_on=fitted_on,
            threshold=np.inf,
        )


def kinds_of(owner: str, confidence: str, of_classes: bool) -> tuple[str, ...]:
    """The confidences to try, of those that answers have."""
    every = (*ANSWER_CONFIDENCES, "probability")
    if confidence not in (*every, "auto"):
        raise ValueError(f"{owner}: {unknown('confidence', confidence, (*every, 'auto'))}")
    if confidence == "class_margin" and not of_classes:
        raise ValueError(f"{owner}: confidence class_margin needs labels of the gallery, got pairs or places")
    return tuple(x for x in every if x != "class_margin" or of_classes) if confidence == "auto" else (confidence,)


def third(owner: str, classes: NDArray[np.int64], seed: int, least: int = 0) -> NDArray[np.bool_]:
    """A mask of the items of a third of their classes."""
    names, of = np.unique(classes, return_inverse=True)
    if len(names) < least:
        raise ValueError(
            f"{owner}: queries are of {len(names)} classes, expected {least} to compare confidences on a third of them"
        )
    return np.asarray((np.random.default_rng(seed).permutation(len(names)) < len(names) // 3)[of])


def candidates(
    owner: str,
    kinds: Sequence[str],
    score: Score,
    answers: Answers,
    alone: Answers | None,
    judged: JudgedAnswers,
    fitted: NDArray[np.bool_],
    centre: Centre | None,
    norm: str,
) -> list[Candidate]:
    """The confidences of these kinds; a probability is fitted to some of the answers.

    `judged` has the scores. Of several kinds those are left out that these answers do not have: margins of scores that
    are infinite, a probability where all answers are right or none.
    """
    found, several = [], len(kinds) > 1
    needed = [kind for kind in ANSWER_CONFIDENCES if kind in kinds or "probability" in kinds]
    if answers.other is None:
        needed = [kind for kind in needed if kind != "class_margin"]
    of_answers, of_alone = (None if x is None else _numbers(x, needed) for x in (answers, alone))
    assert of_answers is not None
    if any((abs(x) >= GREAT).any() for of in (of_answers, of_alone or {}) for x in of.values()):
        if not several and kinds != ("score",):
            raise ValueError(
                f"{owner}: confidence {kinds[0]} is not finite: a best score by {score.label} is, or no "
                "other item was found"
            )
        kinds = ("score",)
    for kind in kinds:
        if kind == "score":
            found.append(Candidate(kind, (), centre, norm, judged))
            continue
        weights: tuple[float, ...] = ()
        if kind == "probability":
            right = judged.right[fitted]
            if right.all() or not right.any():
                if several:
                    continue
                which = "right" if right.all() else "wrong"
                raise ValueError(f"{owner}: all {len(right)} answers that a probability is to be fitted to are {which}")
            first, *rest = (x[fitted] for x in of_answers.values())
            p = fit_match_probability(first, right, *rest)
            assert isinstance(p, LogisticProbability)
            weights = (p.bias, *p.weights)
            values, others = (None if of is None else p(*of.values()) for of in (of_answers, of_alone))
        else:
            values, others = of_answers[kind], None if of_alone is None else of_alone[kind]
        assert values is not None
        if others is None:
            others = values[~judged.matches]
        found.append(
            Candidate(
                kind,
                weights,
                centre,
                norm,
                replace(judged, scores=values, others=others),
            )
        )
    return found


def _numbers(answers: Answers, kinds: Sequence[str]) -> dict[str, NDArray[np.float64]]:
    """The confidences [Q] of answers, as `answer_confidence` defines them; great ones where a score is infinite."""
    best, second = answers.scores.T
    found = {"score": best, "margin": best - second}
    if answers.other is not None:
        found["class_margin"] = best - answers.other
    lost = abs(best) >= GREAT
    return {kind: np.where(lost, GREAT, np.minimum(found[kind], GREAT)) for kind in kinds}


def best_of(
    tried: Sequence[Candidate],
    promise: Promise,
    alpha: float,
    queries: NDArray[np.bool_],
    others: NDArray[np.bool_],
) -> tuple[Candidate, tuple[ComparedConfidence, ...]]:
    """The candidate that answers most of some queries where it keeps the promise on them, the first of equals."""
    if len(tried) == 1:
        return tried[0], ()
    shares = [promise.answered(x.judged.part(queries, others), alpha) for x in tried]
    compared = tuple(ComparedConfidence(x.name, share) for x, share in zip(tried, shares, strict=True))
    return tried[int(np.argmax(shares))], compared
