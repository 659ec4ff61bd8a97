"""Results of `pe.choose_threshold`, as numbers, as sentences and as tables."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Annotated

from peaccel._utils.atomic_files import PathLike
from peaccel.evaluation.columns import Column, table
from peaccel.evaluation.compared_confidences import ComparedConfidence
from peaccel.evaluation.formatting import Table, as_text, percent, save_json, six_digits
from peaccel.evaluation.intervals import Interval
from peaccel.evaluation.verified_pairs import ACTUAL_DCF, CLLR, EER, EER_THRESHOLD, MIN_DCF
from peaccel.fits.records import Centre, FalseMatchLimit, Selection, Threshold, fewest

__all__ = ["CostResult", "ThresholdChoice", "ThresholdResult", "out_of_reach"]

TITLES = {
    ("wrong", False): "At most a share of the answers that are accepted is wrong",
    ("wrong", True): "At most a share of the pairs that are accepted does not match",
    ("fpir", False): "At most a share of searches without a mate returns anything",
    ("far", True): "At most a share of pairs that do not match is accepted",
}

REACH = 100
"""How many times as many labels as there are can perhaps be had."""


def share(x: float) -> str:
    """A share that somebody gave, in per cent, with all of its digits."""
    return f"{100 * x:.10g} %"


def out_of_reach(more: int | None, number: int) -> bool:
    """Whether no number of labels will do: no more are known to, or more than REACH times as many as there are."""
    return more is None or more > REACH * number


@dataclass(frozen=True)
class ThresholdResult:
    """The threshold that keeps one promise, and what it does to the answers, or pairs, that it was found on."""

    promise: str
    """"wrong": of what is accepted at most a share is wrong; "fpir": of searches without a mate at most a share returns
    anything; "far": of pairs that do not match at most a share is accepted."""
    target: Annotated[float, Column("at most", "the share that is promised.", share)]
    threshold: Annotated[
        float,
        Column("threshold", "the least score that is accepted; - where none keeps the promise surely.", six_digits),
    ]
    """inf where no threshold keeps the promise with that certainty."""
    accepted: Annotated[
        float, Column("accepted %", "share of the queries that are answered, or of the pairs.", percent)
    ]
    wrong: Annotated[
        float,
        Column("wrong %", "share of what is accepted that is wrong, each query or pair counting alike.", percent),
    ]
    """NaN where nothing is accepted."""
    wrong_by_class: Annotated[
        float | None,
        Column(
            "wrong by class %",
            "the same, each class or group counting alike, however many it has: of this share is the promise.",
            percent,
        ),
    ]
    """NaN where nothing is accepted; None where all classes have as many items, so
    that both shares are one."""
    found: Annotated[
        float,
        Column(
            "right kept %",
            "share of the queries with a right item that are given it, the detection and identification rate; or of "
            "the matching pairs that are accepted (TAR).",
            percent,
        ),
    ]
    false: Annotated[
        float | None,
        Column(
            "false %",
            "share of the searches without a mate that return anything (FPIR); or of the pairs that do not match that "
            "are accepted (FAR).",
            partial(percent, digits=2),
        ),
    ]
    """None where there is no such search."""
    accept: Selection | FalseMatchLimit
    """The result of `pe.learn_then_test` or `pe.limit_false_matches`, to be applied and kept."""
    tested: int
    """How many answers, pairs or searches it was tested on, one of each class or group."""
    perhaps: int | None
    """Where there is no threshold for a share of wrong answers: about how many more it takes where others are like
    these; None where what scores best is wrong too often."""
    missing: Annotated[
        str,
        Column(
            "missing",
            "where there is no threshold: how many more classes, groups, pairs or searches it takes, or that more of "
            "them will not do.",
        ),
    ]


@dataclass(frozen=True)
class CostResult:
    """The threshold of the least detection cost of pairs, beside the equal error rate and the cost of ratios."""

    p_target: Annotated[float, Column("p_target", "the prior probability that a pair matches.", six_digits)]
    c_miss: Annotated[float, Column("c_miss", "cost of a matching pair that is refused.", six_digits)]
    c_fa: Annotated[float, Column("c_fa", "cost of another pair that is accepted.", six_digits)]
    threshold: Annotated[
        float,
        Column(
            "threshold", "the least score that is accepted; - where it costs least to accept all, or none.", six_digits
        ),
    ]
    min_dcf: Annotated[Interval, MIN_DCF]
    actual_dcf: Annotated[Interval, ACTUAL_DCF]
    cllr: Annotated[Interval, CLLR]
    equal_error_rate: Annotated[Interval, EER]
    eer_threshold: Annotated[float, EER_THRESHOLD]


@dataclass(frozen=True)
class ThresholdChoice:
    """Result of `pe.choose_threshold` or `pe.choose_pair_threshold`; prints as sentences and tables.

    Examples
    --------
    >>> scores = np.linspace(0, 1, 400)
    >>> found = pe.choose_pair_threshold(scores, match=scores > 0.3, wrong=0.05)
    >>> round(found.accept.threshold, 2), found.chosen.accepted, found.chosen.promise
    (0.29, 0.705, 'wrong')
    >>> found.accept([0.1, 0.9]).tolist()
    [False, True]
    """

    score: str | None
    """The score by which queries were answered; None of pairs."""
    about: str
    """Data of the choice, as the beginning of a sentence."""
    items: int
    """How many queries, or pairs."""
    matches: int
    """How many queries have a right item in the gallery, or how many pairs match."""
    units: int
    """How many classes these are of, or groups; all of them count alike."""
    grouping: str
    """Name of what `classes` counts: classes, groups, or pairs that are taken as independent."""
    others: int
    """How many searches have no mate, or how many pairs do not match."""
    other_units: int | None
    """How many classes or groups these are of; None where each is taken as independent."""
    apart: bool
    """Whether searches without a mate were given apart from the queries."""
    delta: float
    """The probability with which each threshold may break its promise."""
    asked: tuple[str, float] | None
    """The promise and its share that were asked for."""
    results: tuple[ThresholdResult, ...]
    """By promise, and by falling share."""
    coverage: tuple[tuple[float, float], ...]
    """(share of queries, or pairs, that is accepted; share of these that is wrong) over falling thresholds."""
    calibration: tuple[tuple[float, float, int], ...]
    """Of the probability of being right, fitted to the scores of other classes, in bins: its mean, the share that is
    right, how many these are."""
    trade_off: tuple[tuple[float, float], ...]
    """(FPIR, FNIR), or of pairs (FAR, share of rejected matches), over falling thresholds; empty where there is no
    search without a mate, or no pair of a kind."""
    edges: tuple[float, ...]
    """Of the bins of `counts`; the first and the last one hold what lies beyond."""
    counts: Mapping[str, tuple[int, ...]]
    """How many scores lie in each bin: of right answers, of wrong ones, of searches without a mate."""
    seed: int
    cost: CostResult | None = None
    """The least detection cost, where it was asked for."""
    confidence: str = "score"
    """The number that thresholds are of: a kind of `pe.answer_confidence`, or "probability"."""
    centre: Centre | None = None
    """The means that are to be subtracted first, where that was tried and answers more."""
    compared: tuple[ComparedConfidence, ...] = ()
    """The confidences that were tried, and what each answers of the queries that are set apart for that."""
    compared_on: str = ""
    """Queries and classes that are set apart, in words."""
    deepest: int = 1
    """How many items a search must find for each query, so that the confidence is known."""

    @property
    def chosen(self) -> ThresholdResult | None:
        """The result that was asked for, if one was."""
        return next((x for x in self.results if (x.promise, x.target) == self.asked), None)

    @property
    def accept(self) -> Threshold | None:
        """Acceptance at the rate, or the cost, of the call: ``accept(ranking)``, ``accept(scores)``."""
        if self.cost is not None:
            least = max(self.cost.threshold, -sys.float_info.max)  # a number of JSON
            return Threshold(threshold=least, of="pairs", fitted_on=self.about)
        return None if self.chosen is None else self.chosen.accept

    @property
    def of_pairs(self) -> bool:
        """Whether pairs were given, and not searches."""
        return self.score is None

    def sentence(self) -> str:
        """Which threshold keeps what was asked for, what remains, and what was counted; or what is missing."""
        if self.cost is not None:
            return self._cost(self.cost)
        if self.chosen is None:
            return "No target was named: each row of a table is the threshold for one."
        x = self.chosen
        certainly = f"with a certainty of {share(1 - self.delta)}"
        promise = f"{self._promise(x)}, {certainly}"
        tried = f" {self._tried()}" if self.compared_on else ""
        if math.isinf(x.threshold):
            return f"No threshold can be promised to keep this: {promise}. {self._lacking(x)} {self._unit(x)}{tried}"
        what = "pairs that score at least" if self.of_pairs else f"the best item of a query where {self._number}"
        return f"Accept {what} {six_digits(x.threshold)}: {promise}. {self._remaining(x)} {self._unit(x)}{tried}"

    def _cost(self, x: CostResult) -> str:
        prior = (
            f"where {share(x.p_target)} of the pairs match, a miss costs {x.c_miss:g} and a false acceptance {x.c_fa:g}"
        )
        if math.isinf(x.threshold):
            advice = f"{'Refuse' if x.threshold > 0 else 'Accept'} all pairs: no threshold costs less"
        else:
            advice = f"Accept pairs that score at least {six_digits(x.threshold)}: no threshold costs less"
        cost = f"on these {self.items} pairs, {prior} (minDCF {x.min_dcf.value:.4g})"
        return f"{advice} {cost}. Of others it promises nothing."

    @property
    def _number(self) -> str:
        """The number that thresholds are of, as the beginning of a clause."""
        return {
            "score": f"it has a {self.score} of at least",
            "margin": f"its {self.score} is above that of the next item by at least",
            "class_margin": f"its {self.score} is above that of the best item of another class by at least",
            "probability": f"the probability that is fitted to its {self.score} and margins is at least",
        }[self.confidence]

    def _tried(self) -> str:
        """Which confidence was chosen, and on what."""
        if not self.compared:
            what = "fit the probability to" if self.confidence == "probability" else "compare confidences on"
            return f"To {what}, {self.compared_on} are set apart."
        shares = ", ".join(f"{x.name} {percent(x.answered)} %" for x in self.compared)
        name = self.confidence if self.centre is None else f"{self.confidence} (centred)"
        return f"Of the confidences, compared on {self.compared_on}, {name} answers most: {shares}."

    def _promise(self, x: ThresholdResult) -> str:
        most = f"at most {share(x.target)} of"
        return {
            ("wrong", False): f"{most} the accepted answers are wrong",
            ("wrong", True): f"{most} the accepted pairs do not match (a precision of {share(1 - x.target)})",
            ("fpir", False): f"{most} searches without a mate return anything",
            ("far", True): f"{most} the pairs that do not match are accepted",
        }[x.promise, self.of_pairs]

    def _remaining(self, x: ThresholdResult) -> str:
        """Share of its data that the threshold accepts, and that of wrong ones among them, as a sentence."""
        accepted = round(x.accepted * self.items)
        wrong = str(round(x.wrong * accepted) if accepted else 0)
        if accepted and x.promise == "wrong" and x.wrong_by_class is not None:
            by_class = (
                f"{percent(x.wrong_by_class)} % where each of the {self.grouping} counts alike, as in the promise"
            )
            wrong += f" ({percent(x.wrong)} %; {by_class})"
        right, false = round(x.found * self.matches), "" if x.false is None else str(round(x.false * self.others))
        if self.of_pairs:
            said = f"Of these {self.items} pairs {accepted} are accepted, {wrong} of them wrongly"
            return f"{said}; of the {self.matches} that match {right} are."
        said = f"Of these {self.items} queries {accepted} are answered, {wrong} of them wrongly"
        said += f"; of the {self.matches} that have a right item {right} are given it"
        return f"{said}; of {self.others} searches without a mate {false} return something." if false else f"{said}."

    def _lacking(self, x: ThresholdResult) -> str:
        """Why nothing can be promised, and what would help."""
        what, least = self._counted(x), fewest(x.target, self.delta)
        if x.promise != "wrong":
            return f"It takes at least {least} {what}, and there are {x.tested}: {least - x.tested} more."
        worse = f"more than {share(x.target)} of the surest tenth are wrong, and of every greater part. {self._step}"
        if x.tested < least:
            few = f"It takes at least {least} {what}, and there are {x.tested}: {least - x.tested} more"
            if x.perhaps is None:
                return f"{few}; but {worse}"
            return f"{few} if the surest are all right, and {self._like_these(x)}"
        enough = f"There are {x.tested} {what}, of which {least} would do were all answers right"
        if x.perhaps is None:
            return f"{enough}; but {worse}"
        return f"{enough}; there are too many wrong ones, and {self._like_these(x)}"

    def _like_these(self, x: ThresholdResult) -> str:
        """About how many more it takes where others are like these, or the next step where these are out of reach."""
        more = f"about {x.perhaps} more if others are like these"
        return f"{more}, which is out of reach. {self._step}" if out_of_reach(x.perhaps, x.tested) else f"{more}."

    @property
    def _step(self) -> str:
        """The next step where no number of labels will do."""
        other = (
            "the score of another model" if self.of_pairs else "another score ('peaccel choose-score' compares them)"
        )
        return f"More labels will not do: it takes {other}, or a greater share that may be wrong."

    def _counted(self, x: ThresholdResult) -> str:
        """Name of the independent groups that are counted."""
        if x.promise == "wrong":
            return self.grouping
        each = "pairs that do not match" if self.of_pairs else "searches without a mate"
        return each if self.other_units is None else f"groups of {each}" if self.of_pairs else f"classes of {each}"

    def _unit(self, x: ThresholdResult) -> str:
        """Name of a case, and of the groups that are taken as independent."""
        alone = self.grouping == "pairs" if x.promise == "wrong" else self.other_units is None
        if self.of_pairs:
            if alone:
                return (
                    "No groups are given, so that pairs are taken as independent: where several share an item or a "
                    "person, the promise may be broken; say so by groups."
                )
            return f"One pair of each of {x.tested} groups was tested, since pairs of a group may be wrong together."
        if alone:
            return (
                "Searches without a mate are taken as independent: where several are of one person, say so by their "
                "labels (novel_labels)."
            )
        kind = "query" if x.promise == "wrong" else "search"
        of = self.grouping if x.promise == "wrong" else "classes without a mate"
        return (
            f"One {kind} of each of {x.tested} {of} was tested, since those of one are right or wrong together: each "
            "counts alike, however many it has."
        )

    def tables(self) -> dict[str, Table]:
        """Header and rows of each table, by its title."""
        promises = dict.fromkeys(x.promise for x in self.results)
        costs = {} if self.cost is None else {"Detection cost": table([self.cost])}
        found = costs | {
            TITLES[promise, self.of_pairs]: table([x for x in self.results if x.promise == promise])
            for promise in promises
        }
        if self.compared:
            found[f"Confidences, compared on {self.compared_on}"] = table(self.compared)
        return found

    def summary(self) -> str:
        """Data of the choice, in one sentence."""
        return (
            f"{self.about}; each row is kept with a certainty of {share(1 - self.delta)} by itself, not all of them at "
            f"once: name the target before you look; seed {self.seed}"
        )

    def __str__(self) -> str:
        """Sentences and tables as text."""
        return f"{as_text(self.summary(), self.tables())}\n\n{self.sentence()}"

    def save(self, path: PathLike) -> None:
        """Write all of it as JSON; what is not finite becomes null."""
        save_json(path, self)
