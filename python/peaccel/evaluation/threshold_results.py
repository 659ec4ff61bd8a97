"""Results of `pe.choose_threshold`, as numbers, as sentences and as tables."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Annotated

from peaccel.evaluation.columns import Column, explained, table
from peaccel.evaluation.compared_confidences import ComparedConfidence
from peaccel.evaluation.exported import Exported
from peaccel.evaluation.formatting import Table, as_text, percent, six_digits
from peaccel.evaluation.pair_rates import PairRates
from peaccel.evaluation.promises import FAR, FPIR, WRONG_ANSWERS, WRONG_PAIRS, Per, Promise, per_cent
from peaccel.fits.records import Centre, FalseMatchLimit, Selection, Threshold, fewest

__all__ = ["CostResult", "ThresholdChoice", "ThresholdResult", "ThresholdWithin"]


EXPLAINED = {"right kept %", "false %", "missing"}
"""Columns whose meaning stands below the tables in a terminal; the page explains all."""


@dataclass(frozen=True)
class ThresholdResult:
    """The threshold that keeps one promise, and what it does to the answers, or pairs, that it was found on."""

    promise: str
    """"wrong": at most a share of the accepted answers, or pairs, is wrong; "fpir": at most a share of searches without
    a mate returns anything; "far": at most a share of pairs that do not match is accepted."""
    alpha: Annotated[float, Column("at most", "the share that is promised.", per_cent)]
    per: Annotated[
        Per,
        Column(
            "per",
            "the unit that counts once and is drawn anew: class (classes to come are new), query (queries to come are "
            "drawn as these were, with the same classes in the same shares), a named group, or pair.",
        ),
    ]
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
            "the same, each class or group counting once, however many it has: the promise per class is of this share.",
            percent,
        ),
    ]
    """NaN where nothing is accepted; None where all classes have as many items, so
    that both shares are one."""
    found: Annotated[
        float,
        Column(
            "right kept %",
            "share of what matches that is accepted: of searches the detection and identification rate, of pairs TAR.",
            percent,
        ),
    ]
    false: Annotated[
        float | None,
        Column(
            "false %",
            "share of what has no match that is accepted: of searches FPIR, of pairs FAR.",
            partial(percent, digits=2),
        ),
    ]
    """None where there is no such search."""
    accept: Selection | FalseMatchLimit
    """The result of `pe.learn_then_test` or `pe.limit_false_matches`, to be applied and kept."""
    tested: int
    """How many answers, pairs or searches it was tested on, one of each unit."""
    missing: Annotated[
        int | None,
        Column(
            "missing",
            "where there is no threshold: about how many more classes, queries, groups, pairs or searches it takes if "
            "others are like these; blank where no number will do.",
            lambda x: str(x or ""),
        ),
    ]
    """As of ``accept``; 0 where there is a threshold."""


@dataclass(frozen=True)
class ThresholdWithin:
    """The threshold that keeps the promise within one named group of queries, and its effect on the answers to them."""

    name: Annotated[str, Column("group", "the queries that have this name; each group has a threshold of its own.")]
    items: Annotated[int, Column("queries", "how many queries it has.")]
    threshold: Annotated[
        float,
        Column("threshold", "the least score that is accepted; - where none keeps the promise surely.", six_digits),
    ]
    """inf where no threshold keeps the promise with that certainty."""
    accepted: Annotated[float, Column("accepted %", "share of its queries that are answered.", percent)]
    wrong: Annotated[float, Column("wrong %", "share of the accepted answers that is wrong.", percent)]
    """NaN where nothing is accepted."""
    cost: Annotated[
        int,
        Column(
            "cost",
            "answers that the promise within the group costs: accepted by the threshold for all queries, less those "
            "accepted by the threshold of the group.",
        ),
    ]
    accept: Selection
    """The threshold, to be applied to queries of this group alone, and kept."""
    missing: Annotated[
        int | None,
        Column(
            "missing",
            "where there is no threshold: about how many more labels of the group it takes; blank where no number "
            "will do.",
            lambda x: str(x or ""),
        ),
    ]


@dataclass(frozen=True)
class CostResult(PairRates):
    """The threshold of the least detection cost of pairs, and their rates, with scores as log-likelihood ratios."""

    p_target: Annotated[float, Column("p_target", "the prior probability that a pair matches.", six_digits)]
    c_miss: Annotated[float, Column("c_miss", "cost of a matching pair that is refused.", six_digits)]
    c_fa: Annotated[float, Column("c_fa", "cost of another pair that is accepted.", six_digits)]
    threshold: Annotated[
        float,
        Column(
            "threshold", "the least score that is accepted; - where it costs least to accept all, or none.", six_digits
        ),
    ]


@dataclass(frozen=True)
class ThresholdChoice(Exported):
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
    classes: int
    """How many classes these are of, or groups."""
    grouping: str
    """Name of what `classes` counts: classes, groups, squares of a map, or pairs that are taken as independent."""
    others: int
    """How many searches have no mate, or how many pairs do not match."""
    other_classes: int | None
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
    """(share of queries, or pairs, that is accepted; share of these that is wrong) over falling thresholds, counted as
    the promise counts: each class once where it is per class."""
    bound: tuple[tuple[float, float], ...]
    """(share of the tested answers that is accepted; upper confidence bound of the share of these that is wrong), each
    for one threshold by itself, at the level 1 - delta (Clopper and Pearson)."""
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
    within: tuple[ThresholdWithin, ...] = ()
    """The thresholds of named groups, where these were named; all keep the promise at once."""

    @property
    def chosen(self) -> ThresholdResult | None:
        """The result that was asked for, if one was; per class where the unit was not named."""
        return next((x for x in self.results if (x.promise, x.alpha) == self.asked), None)

    @property
    def per_query(self) -> ThresholdResult | None:
        """The result that was asked for, per query, where the unit was not named and classes repeat."""
        found = [x for x in self.results if (x.promise, x.alpha) == self.asked]
        return found[1] if len(found) > 1 else None

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
        """The threshold that keeps the promise, its effect on these answers, and its unit; or the missing labels."""
        if self.cost is not None:
            return self._cost(self.cost)
        if self.chosen is None:
            return "No target was named: each row of a table is the threshold for one."
        x = self.chosen
        promise = f"{self._promise(x)(x.alpha)}, with a certainty of {per_cent(1 - self.delta)}"
        said = [f"No threshold can be promised to keep this: {promise}.", self._lacking(x), self._unit(x)]
        if not math.isinf(x.threshold):
            what = "pairs that score at least" if self.of_pairs else f"the best item of a query where {self._number}"
            said = [f"Accept {what} {six_digits(x.threshold)}: {promise}.", self._remaining(x), self._unit(x)]
        said += [self._tried()] if self.compared_on else []
        said += [self._otherwise(self.per_query)] if self.per_query is not None else []
        said += [self._within(x)] if self.within else []
        return " ".join(said + self._steps(x))

    def _cost(self, x: CostResult) -> str:
        costs = f"a miss costs {x.c_miss:g} and a false acceptance {x.c_fa:g}"
        prior = f"where {per_cent(x.p_target)} of the pairs match, {costs}"
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

    def _promise(self, x: ThresholdResult) -> Promise:
        """The record of a result's promise."""
        promises = (WRONG_PAIRS, FAR) if self.of_pairs else (WRONG_ANSWERS, FPIR)
        return next(promise for promise in promises if promise.name == x.promise)

    def _remaining(self, x: ThresholdResult) -> str:
        """Share of its data that the threshold accepts, and that of wrong ones among them, as a sentence."""
        accepted = round(x.accepted * self.items)
        wrong = str(round(x.wrong * accepted) if accepted else 0)
        if accepted and x.promise == "wrong" and x.wrong_by_class is not None:
            by_class = f"{percent(x.wrong_by_class)} % where each of the {self.grouping} counts once, as in the promise"
            wrong += f" ({percent(x.wrong)} %; {by_class})"
        right, false = round(x.found * self.matches), "" if x.false is None else str(round(x.false * self.others))
        if self.of_pairs:
            said = f"Of these {self.items} pairs {accepted} are accepted, {wrong} of them wrongly"
            return f"{said}; of the {self.matches} that match {right} are."
        said = f"Of these {self.items} queries {accepted} are answered, {wrong} of them wrongly"
        said += f"; of the {self.matches} that have a right item {right} are given it"
        return f"{said}; of {self.others} searches without a mate {false} return something." if false else f"{said}."

    def _lacking(self, x: ThresholdResult) -> str:
        """Reason why nothing can be promised."""
        units, least = self._units(x), fewest(x.alpha, self.delta)
        if x.tested < least:
            few = f"It takes at least {least} {units}, and there are {x.tested}"
        else:
            few = f"There are {x.tested} {units}, and {least} would do were all answers right"
        if x.missing is None:
            return f"{few}; but more than {per_cent(x.alpha)} of the surest tenth are wrong, and of every greater part."
        about = "" if x.missing == least - x.tested else "about "
        return f"{few}: {about}{x.missing} more{' if others are like these' if about else ''}."

    def _steps(self, x: ThresholdResult) -> list[str]:
        """Steps that may give a threshold, or more answers, where nothing can be promised."""
        if not math.isinf(x.threshold) or x.promise != "wrong":
            return []
        if self.of_pairs:
            return ["Scores of another model, or a greater share, may do."]
        untried = {
            "confidence='auto' (margins)": self.confidence == "score" and not self.compared_on,
            "try_centre": not self.compared_on,
            "another score or PLDA ('peaccel choose-score' compares them)": True,
        }
        return [f"What may do: {', '.join(name for name, open_ in untried.items() if open_)}, or a greater share."]

    def _otherwise(self, x: ThresholdResult) -> str:
        """The result per query, beside the one per class."""
        of = f"Per query, of queries drawn as these were with the same {self.grouping} in the same shares,"
        if math.isinf(x.threshold):
            return f"{of} nothing can be promised either."
        return f"{of} a threshold of {six_digits(x.threshold)} keeps it and answers {percent(x.accepted)} %."

    def _within(self, x: ThresholdResult) -> str:
        """The promise within groups, and the groups in which nothing can be promised."""
        kept, lost = (
            [group.name for group in self.within if math.isinf(group.threshold) is lost] for lost in (False, True)
        )
        promise = f"{per_cent(x.alpha)} wrong, with a certainty of {per_cent(1 - self.delta)} for all of them together"
        said = f"Within {', '.join(kept)}, each with its own threshold: at most {promise}." if kept else ""
        none = f"Nothing can be promised within {', '.join(lost)}." if lost else ""
        return f"{said} {none}".strip()

    def _units(self, x: ThresholdResult) -> str:
        """Name of the units that are tested."""
        if x.promise != "wrong":
            each = "pairs that do not match" if self.of_pairs else "searches without a mate"
            alone = self.other_classes is None or x.per == "query"
            return each if alone else f"groups of {each}" if self.of_pairs else f"classes of {each}"
        return "queries" if x.per == "query" else self.grouping

    def _unit(self, x: ThresholdResult) -> str:
        """The unit of the promise, and how many were tested."""
        case, units = self._promise(x).case, self._units(x)
        if x.per == "query":
            return f"The promise is of queries drawn as these were, with the same {self.grouping} in the same shares."
        if x.per == "pair" or (x.promise != "wrong" and self.other_classes is None):
            name = "groups" if self.of_pairs else "novel_labels"
            cases = "Pairs" if self.of_pairs else "Searches without a mate"
            return (
                f"{cases} are taken as independent: where several share an item or a person, the promise may be "
                f"broken; name these by {name}."
            )
        plural = "queries" if case == "query" else f"{case}es" if case == "search" else f"{case}s"
        return (
            f"One {case} of each of {x.tested} {units} was tested, since {plural} of one are right or wrong together. "
            f"The promise is of new {self.grouping}, each counting once."
        )

    def tables(self) -> dict[str, Table]:
        """Header and rows of each table, by its title."""
        promises = dict.fromkeys(map(self._promise, self.results))
        costs = {} if self.cost is None else {"Detection cost": table([self.cost])}
        found = costs | {promise.title: table(self._shown(promise.name)) for promise in promises}
        if self.within:
            found["Within each group, all at once"] = table(self.within)
        if self.compared:
            found[f"Confidences, compared on {self.compared_on}"] = table(self.compared)
        return found

    def _shown(self, promise: str) -> list[ThresholdResult]:
        """Results of a promise, but for rows that accept more than a looser one, which is asked for or shown.

        Thresholds are tested at some ranks only, which differ by alpha: a stricter promise may accept more by chance.
        """
        rows = [x for x in self.results if x.promise == promise]
        shown: list[ThresholdResult] = []
        for per in dict.fromkeys(x.per for x in rows):
            of = [x for x in rows if x.per == per]
            asked = next((x for x in of if (x.promise, x.alpha) == self.asked), None)
            least = 0.0
            for x in reversed(of):  # from the strictest on
                most = asked.accepted if asked is not None and x.alpha < asked.alpha else 1.0
                if x is asked or least <= x.accepted <= most:
                    shown.append(x)
                    least = x.accepted
        return [x for x in rows if x in shown]

    def summary(self) -> str:
        """Data of the choice, in one sentence."""
        return (
            f"{self.about}; each row is kept with a certainty of {per_cent(1 - self.delta)} by itself, not all of them "
            f"at once: name the target before you look; seed {self.seed}"
        )

    def __str__(self) -> str:
        """Sentences and tables as text."""
        tables = self.tables()
        heads = {head for header, _ in tables.values() for head in header}
        notes = [f"{head}: {about}" for head, about in explained(ThresholdResult).items() if head in heads & EXPLAINED]
        return "\n\n".join([as_text(self.summary(), tables), *(["\n".join(notes)] if notes else []), self.sentence()])
