"""`pe.choose_threshold`: from which score on to accept answers, or pairs, so that a promise is kept."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from peaccel import metrics, scores
from peaccel._utils.arrays import bounded, on_host
from peaccel._utils.exclusions import Exclusions
from peaccel._utils.labels import classes_of
from peaccel._utils.numbers import as_flags, as_numbers, class_numbers, require_shares
from peaccel._utils.seeds import SEEDS, as_integer
from peaccel.distributions import Distribution
from peaccel.evaluation.answers import GREAT, Answers, answered, as_truth, require_items, require_sides, warn_of_copies
from peaccel.evaluation.compared_confidences import (
    FEWEST,
    Candidate,
    best_of,
    candidates,
    kinds_of,
    third,
)
from peaccel.evaluation.identification import curve_of, novel_clusters
from peaccel.evaluation.intervals import Resamples
from peaccel.evaluation.pair_rates import P_TARGET, pair_rates
from peaccel.evaluation.promises import FAR, FPIR, WRONG_ANSWERS, WRONG_PAIRS, JudgedAnswers, Per, Promise, risks
from peaccel.evaluation.separation import calibration, probability
from peaccel.evaluation.threshold_results import CostResult, ThresholdChoice, ThresholdResult, ThresholdWithin
from peaccel.fits.fit_centre import fit_centre
from peaccel.fits.learn_then_test import one_of_each, tested_within
from peaccel.fits.records import Centre, Threshold
from peaccel.metrics import Relevance
from peaccel.metrics._draws import as_clusters
from peaccel.metrics._relation import Relation
from peaccel.metrics.detection_cost import Costs, least_and_actual
from peaccel.metrics.open_set import bin_edges
from peaccel.metrics.verification import warn_if_reversed
from peaccel.retrieval.adaptive_norm import AdaptiveNorm
from peaccel.scores import Score

__all__ = ["choose_pair_threshold", "choose_threshold"]

POINTS = 400
"""Points of the curve of risk, at most."""
BINS = 40
"""Bins of the scores."""
ENDS = 0.001
"""The share of scores that lie beyond the bins' ends on each side, and are counted in the first and in the last one."""
USUAL = (WRONG_ANSWERS, 0.05)
"""The promise by which confidences are compared where none is asked for."""


def choose_threshold(
    queries: Distribution,
    gallery: Distribution | None,
    labels: ArrayLike | tuple[ArrayLike, ArrayLike] | Relevance,
    score: str | Score = "cosine",
    *,
    wrong: float | None = None,
    fpir: float | None = None,
    per: Literal["class", "query"] | None = None,
    groups: ArrayLike | None = None,
    within: ArrayLike | None = None,
    exclude: ArrayLike | Exclusions | None = None,
    delta: float = 0.1,
    novel: Distribution | None = None,
    novel_labels: ArrayLike | None = None,
    confidence: str = "score",
    try_centre: bool = False,
    cohort: Distribution | None = None,
    seed: int = 0,
) -> ThresholdChoice:
    """Choose the lowest score at which the best match is accepted, so that at most a stated share of matches is wrong.

    Each query is answered by the best item of the gallery (`pe.search`), and labels say whether the answer is right.
    `pe.learn_then_test` finds the threshold for a share of wrong answers among the accepted ones.
    `pe.limit_false_matches` finds the threshold for a share of searches without a mate that return anything. Tables
    show the share that is asked for beside usual ones. A query without a right item in the gallery counts as wrong
    where it is answered.

    Parameters
    ----------
    queries, gallery
        Q and G items of one dim, of classes that nothing was trained on; points will do. None for the gallery: the
        queries are searched for among each other, each without itself.
    labels
        (labels of the queries [Q], of the gallery [G]), numbers or strings; [Q] alone where there is no gallery. Or a
        `peaccel.metrics.Relevance`, which has the right answers by pairs or by places.
    score
        A name or a score, of whose best items thresholds are.
    wrong
        In (0, 1): the share of accepted answers that may be wrong.
    fpir
        In (0, 1), in place of `wrong`: the share of searches without a mate that may return anything (false positive
        identification rate).
    per
        The unit of the promise. "class": classes to come are new, and each counts once, however many queries it has.
        "query": queries to come are drawn as these were, with the same classes in the same shares, and each query
        counts. None: "class"; where classes repeat, the results of "query" stand beside them.
    groups
        [Q] numbers or strings in place of the classes: queries of one group, such as a document or a day, depend on
        each other and count once.
    within
        [Q] numbers or strings, beside `wrong`: the language, camera or source of each query. Each of these groups has a
        threshold too, and the promise is kept within all of them at once.
    exclude
        The rows that each query may not find, as in `pe.evaluate`.
    delta
        In (0, 1): the probability with which a threshold may break its promise; 1 - delta is its certainty.
    novel
        M searches without a mate: queries without a right item in the gallery, of the queries' kind and dim. None:
        those among the queries that have none.
    novel_labels
        [M], their classes, numbers or strings; one search of each class counts. None: each is independent.
    confidence
        The number that the threshold is of: "score", "margin", "class_margin" (`answer_confidence`), or "probability",
        a logistic one of these. "auto" tries all of them. A third of the classes is then for fitting the probability
        and for finding out which confidence keeps the promise with more answers; the promise is of the others.
    try_centre
        Whether to try likewise, on that third, the items less the mean of their side (`fit_centre`).
    cohort
        Items of nobody who is searched for, by which scores are normalised (adaptive S-norm). Scores of new queries are
        to be normalised likewise: `normalise_scores` shows how, ``normalise_scores(..., cohort=cohort)``.
    seed
        Which query of a class is tested, which classes a confidence is chosen on, and the parts of the fitted
        probability.

    Returns
    -------
    ThresholdChoice
        ``print`` it; ``.accept(ranking)`` takes out of a ranking what lies below the threshold that was asked for,
        ``pe.io.write_fit`` keeps it, and ``peaccel choose-threshold`` writes all of it as a page.

    Warns
    -----
    UserWarning
        The best item of a query equals the query bit for bit: queries that are in the gallery answer themselves. Or
        wrong answers score higher than right ones, as where scores are distances.

    Raises
    ------
    TypeError
        The score does not take these kinds.
    ValueError
        wrong and fpir both, or outside (0, 1); fpir without a search that has no mate; per beside groups; within
        without wrong, or with a group of too few labels; shapes
        disagree, labels that are NaN or of one class, no query can be answered, a score that is NaN or a best one of
        -inf, or as for `pe.search`; a confidence that is unknown, or that these scores or labels do not have, or that
        looks reversed where most answers above the threshold that was asked for are wrong.

    Notes
    -----
    The promise holds against this gallery or one drawn alike. Each row of the tables keeps its promise by itself: to
    choose among several rows, scores or seeds by their results voids it.

    Examples
    --------
    Points of 300 classes, half of them blurred; at most 5 % of the accepted answers may be wrong:

    >>> rng, labels = np.random.default_rng(0), np.arange(300).repeat(2)
    >>> blur = rng.choice([0.3, 3.0], (600, 1))
    >>> d = pe.Point(rng.normal(size=(300, 32))[labels] + blur * rng.normal(size=(600, 32)))
    >>> found = pe.choose_threshold(d, None, labels, wrong=0.05)
    >>> round(found.accept.threshold, 2), found.accept.number, found.chosen.missing
    (0.91, 300, 0)
    """
    owner = "choose_threshold"
    require_items(owner, queries=queries, gallery=gallery)
    seed, truth = as_integer(owner, "seed", seed, *SEEDS), as_truth(owner, labels, queries, gallery, exclude)
    named, asked = scores.get(score), _asked(owner, delta, (WRONG_ANSWERS, wrong), (FPIR, fpir))
    kinds = kinds_of(owner, confidence, not isinstance(labels, Relevance))
    of_novel = novel_clusters(owner, novel, novel_labels, queries)
    names = _named_groups(owner, within, wrong, len(queries))
    require_sides(owner, queries, gallery, [named], "score")
    units, grouping, pers = _units(owner, truth, per, groups)
    mated = _mated(owner, truth, fpir is not None and novel is None)
    apart = try_centre or kinds not in (("score",), ("margin",), ("class_margin",))
    # Once some are set apart, the rest is a random sample of one kind of units only.
    pers = pers[:1] if apart else pers
    some = third(owner, np.arange(len(units)) if pers == ("query",) else units, seed, FEWEST if apart else 0)
    of_others, some_others = None if mated.all() else units[~mated], some[~mated]
    if novel is not None:
        of_others, some_others = None if novel_labels is None else of_novel, third(owner, of_novel, seed)
    _require_others(owner, fpir, apart, some_others)
    classes = None if kinds == ("score",) else _classes(owner, labels, gallery, truth)
    sides, tried = _Sides(queries, gallery, novel, cohort), list[Candidate]()
    for centre in [None, fit_centre(queries[np.flatnonzero(some)], gallery)] if try_centre else [None]:
        found = _searched(owner, sides.centred(centre), truth, named, classes)
        if centre is None:
            warn_of_copies(owner, queries, gallery, found.answers.best)
        judged = _judged(owner, found, named, units, mated, of_others, names)
        tried += candidates(owner, kinds, named, found.answers, found.alone, judged, some, centre, found.norm)
    chosen, compared = best_of(tried, *(asked or USUAL), some, some_others)
    judged = chosen.judged.part(~some, ~some_others) if apart else chosen.judged
    about = _about(queries, gallery, named, judged, grouping, novel is not None, chosen.norm)
    terms = chosen.terms(named, queries.dim, truth.gallery, about)
    return replace(
        _chosen(owner, judged, (WRONG_ANSWERS, FPIR), asked, pers, delta, seed, terms, novel is not None),
        score=named.label,
        grouping=grouping,
        confidence=chosen.confidence,
        centre=chosen.centre,
        compared=compared,
        compared_on=f"{some.sum()} queries of {len(np.unique(units[some]))} other {grouping}" if apart else "",
        deepest=_deepest(chosen, truth, classes),
    )


def choose_pair_threshold(
    scores: ArrayLike,
    match: ArrayLike,
    groups: ArrayLike | None = None,
    *,
    wrong: float | None = None,
    far: float | None = None,
    p_target: float | None = None,
    c_miss: float = 1.0,
    c_fa: float = 1.0,
    clusters: ArrayLike | None = None,
    delta: float = 0.1,
    seed: int = 0,
) -> ThresholdChoice:
    """Choose the lowest score at which a pair is accepted as a match, so that at most a stated share is wrong.

    `pe.learn_then_test` finds the threshold for a share of accepted pairs that do not match. `pe.limit_false_matches`
    finds the threshold for a share of pairs that do not match and are accepted.

    Parameters
    ----------
    scores
        [P], higher = more similar; of any model. +inf counts as the greatest number, and is refused with p_target.
    match
        [P] booleans (or 0 and 1): whether a pair matches. Matches are to be as frequent as they will be.
    groups
        [P] numbers or strings: what pairs have in common that may make them wrong together, such as a person; one pair
        of each counts. None: pairs are independent, which they are not where several share an item.
    wrong
        In (0, 1): the share of accepted pairs that may not match. 1 less it is the precision: 0.01 for one of 99 %.
    far
        In (0, 1), in place of `wrong`: the share of pairs that do not match that may be accepted (false acceptance
        rate).
    p_target, c_miss, c_fa
        In place of these: the prior probability that a pair matches, and what a matching pair costs that is refused,
        and another that is accepted. The threshold is that of the least detection cost on these pairs, as of
        `peaccel.metrics.detection_cost`, and of others nothing is promised.
    clusters
        With p_target, [P, 2] numbers or strings, as of `peaccel.metrics.trial_clusters`: what intervals draw as a
        whole. None: the groups, or each pair by itself.
    delta
        In (0, 1): the probability with which a threshold may break its promise; 1 - delta is its certainty.
    seed
        Which pair of a group is tested, and the parts of the fitted probability.

    Returns
    -------
    ThresholdChoice
        ``print`` it; ``.accept(scores)`` says which pairs to accept, and ``pe.io.write_fit`` keeps it.

    Raises
    ------
    ValueError
        More than one of wrong, far and p_target, or one outside (0, 1); far where all pairs match, p_target where all
        do or none; a cost not above 0; shapes disagree, NaN or -inf, fewer than two pairs or groups; scores that look
        reversed, where most pairs above the threshold that was asked for are wrong.

    Warns
    -----
    UserWarning
        Scores look reversed, as distances are.

    Examples
    --------
    >>> rng, match = np.random.default_rng(0), np.arange(4000) % 2 == 0
    >>> scores = rng.normal(size=4000) + 3 * match
    >>> found = pe.choose_pair_threshold(scores, match, far=0.01)
    >>> round(found.accept.threshold, 1), round(found.chosen.found, 1)
    (2.5, 0.7)
    """
    owner = "choose_pair_threshold"
    seed = as_integer(owner, "seed", seed, *SEEDS)
    asked = _asked(owner, delta, (WRONG_PAIRS, wrong), (FAR, far), p_target=p_target)
    costs = Costs(owner, P_TARGET if p_target is None else p_target, c_miss, c_fa)
    raw = on_host(scores, owner, "scores")
    finite = "" if p_target is None else "Cllr is a mean of them as log-likelihood ratios"
    pairs = as_numbers(owner, "scores", raw, above="no threshold accepts it", finite=finite)
    pairs = bounded(pairs, raw.dtype)
    right = as_flags(owner, "match", match, (len(pairs),))
    units = np.arange(len(pairs)) if groups is None else class_numbers(owner, "groups", groups, len(pairs))
    drawn = None if groups is None else units
    if clusters is not None:
        if p_target is None or groups is not None:
            raise ValueError(f"{owner}: clusters are of p_target alone, expected neither groups nor another promise")
        drawn = as_clusters(owner, clusters, len(pairs))
    kind = "pairs" if groups is None else "groups"
    if units.max() < 1:
        raise ValueError(f"{owner}: scores are of one of the {kind}, expected at least two")
    if far is not None and right.all():
        raise ValueError(f"{owner}: far needs pairs that do not match; all {len(pairs)} do")
    if p_target is not None and (right.all() or not right.any()):
        raise ValueError(
            f"{owner}: p_target needs pairs that match and pairs that do not; {right.sum()} of {len(pairs)} do"
        )
    kept = pairs.astype(raw.dtype if raw.dtype.kind == "f" else np.float64)
    grouped = "" if groups is None else f" of {units.max() + 1} groups"
    about = f"{len(pairs)} scored pairs{grouped}, {right.sum()} of them matches"
    judged = JudgedAnswers(kept, right, units, right, kept[~right], None if groups is None else units[~right])
    pers: tuple[Per, ...] = ("pair",) if groups is None else ("group",)
    terms = Threshold(of="pairs", fitted_on=about, threshold=math.inf)
    return replace(
        _chosen(owner, judged, (WRONG_PAIRS, FAR), asked, pers, delta, seed, terms, apart=False),
        grouping=kind,
        cost=None if p_target is None else _cost(pairs, right, costs, drawn, seed),
    )


def _cost(
    pairs: NDArray[np.float64],
    right: NDArray[np.bool_],
    costs: Costs,
    clusters: NDArray[Any] | None,
    seed: int,
) -> CostResult:
    """The least detection cost, and the rates of the pairs with intervals over draws of their clusters."""
    drawn = None if clusters is None else Resamples(clusters, seed)
    rates = pair_rates(pairs, right, drawn, costs, True, seed)
    return CostResult(
        p_target=costs.p_target,
        c_miss=costs.c_miss,
        c_fa=costs.c_fa,
        threshold=least_and_actual(pairs, right, costs).threshold,
        **rates,
    )


def _units(
    owner: str, truth: Relation, per: Literal["class", "query"] | None, groups: ArrayLike | None
) -> tuple[NDArray[np.int64], str, tuple[Per, ...]]:
    """The class or group of each query, the name of these, and the units of the promises."""
    if per not in (None, "class", "query"):
        raise ValueError(f"{owner}: per is {per!r}, expected 'class' or 'query'")
    if groups is not None and per is not None:
        raise ValueError(f"{owner}: per is {per!r} beside groups, expected one of them")
    units, grouping = np.unique(truth.clusters, return_inverse=True)[1], truth.grouping
    if groups is not None:
        units, grouping = class_numbers(owner, "groups", groups, truth.queries), "groups"
    if units.max(initial=0) < 1 and per != "query":
        raise ValueError(f"{owner}: the queries are of one of the {grouping}, expected at least two")
    if groups is not None:
        return units, grouping, ("group",)
    if per is not None:
        return units, grouping, (per,)
    return units, grouping, (("class", "query") if units.max() + 1 < len(units) else ("class",))


def _require_others(owner: str, fpir: float | None, apart: bool, compared_on: NDArray[np.bool_]) -> None:
    """Refuse to promise an FPIR where all searches without a mate are set apart."""
    if fpir is not None and apart and compared_on.all():
        raise ValueError(f"{owner}: fpir needs more searches without a mate: all {len(compared_on)} are compared on")


def _named_groups(owner: str, within: ArrayLike | None, wrong: float | None, queries: int) -> NDArray[Any] | None:
    """[Q] the name of the group of each query, if there are any."""
    if within is None:
        return None
    if wrong is None:
        raise ValueError(f"{owner}: within needs wrong, the share that is promised within each group")
    names = classes_of(owner, "within", within)
    if names.shape != (queries,):
        raise ValueError(f"{owner}: within has shape {names.shape}, expected ({queries},)")
    return names


def _within(
    owner: str, x: JudgedAnswers, wanted: Sequence[ThresholdResult], delta: float, seed: int, terms: Threshold
) -> tuple[ThresholdWithin, ...]:
    """The threshold of each named group, if there are any, for the promise that is asked for."""
    if x.within is None:
        return ()
    of_all, results = wanted[0], []
    found = tested_within(owner, x.scores, x.right, x.classes, x.within, of_all.alpha, delta, seed, warned=True)
    for name, accept in found.items():
        group = x.within.astype(str) == name
        accepted = accept(x.scores[group])
        about = f"{terms.fitted_on}; of these {group.sum()} in the group {name}"
        results.append(
            ThresholdWithin(
                name=name,
                items=int(group.sum()),
                threshold=accept.threshold,
                accepted=float(accepted.mean()),
                wrong=float((~x.right[group][accepted]).mean()) if accepted.any() else math.nan,
                cost=int(of_all.accept(x.scores[group]).sum() - accepted.sum()),
                accept=replace(accept, **(_carried(terms) | {"fitted_on": about})),
                missing=accept.missing,
            )
        )
    return tuple(results)


def _carried(terms: Threshold) -> dict[str, Any]:
    """The terms of a threshold by field, without the threshold."""
    return {field.name: getattr(terms, field.name) for field in fields(Threshold) if field.name != "threshold"}


def _mated(owner: str, truth: Relation, others_needed: bool) -> NDArray[np.bool_]:
    """Which queries have a right item; some have none where the promise is of these."""
    mated = truth.sizes() > 0
    if not mated.any():
        raise ValueError(f"{owner}: no query has an answer in the gallery")
    if others_needed and mated.all():
        raise ValueError(f"{owner}: fpir needs searches without a mate, novel or among queries")
    return mated


def _classes(owner: str, labels: Any, gallery: Distribution | None, truth: Relation) -> NDArray[np.int64] | None:
    """[G] the numbers of the classes of the gallery; None where pairs or places say what is right."""
    if isinstance(labels, Relevance):
        return None
    numbers: NDArray[np.int64] = class_numbers(owner, "labels", labels if gallery is None else labels[1], truth.gallery)
    return numbers


class _Sides(NamedTuple):
    """Queries, and the sets that they are searched in or compared with; all but the queries may be None."""

    queries: Distribution
    gallery: Distribution | None
    novel: Distribution | None
    cohort: Distribution | None

    def centred(self, centre: Centre | None) -> _Sides:
        """Each less the mean of its side, where there is a centre; the cohort is of the gallery's."""
        if centre is None:
            return self
        gallery, novel, cohort = self.gallery, self.novel, self.cohort
        return _Sides(
            centre.of_queries(self.queries),
            None if gallery is None else centre.of_gallery(gallery),
            None if novel is None else centre.of_queries(novel),
            None if cohort is None else centre.of_gallery(cohort),
        )


class _Found(NamedTuple):
    """Answers to the queries, those of searches without a mate that were given apart, and the norm of all scores."""

    answers: Answers
    alone: Answers | None
    norm: str


def _searched(owner: str, sides: _Sides, truth: Relation, score: Score, classes: NDArray[np.int64] | None) -> _Found:
    """The best items of the queries, and of searches without a mate that are given apart."""
    queries, gallery, novel, cohort = sides
    items = queries if gallery is None else gallery
    norm = None if cohort is None else AdaptiveNorm(owner, items, cohort, score)
    how: dict[str, Any] = {"whole": False, "classes": classes, "norm": norm}
    answers = answered(owner, queries, gallery, truth, score, {}, **how)
    alone = None
    if novel is not None:
        nothing = Relevance.from_pairs(np.empty((0, 2), np.int64), len(novel), len(items))
        alone = answered(owner, novel, items, nothing, score, {}, **how)
    return _Found(answers, alone, "" if norm is None else norm.label)


def _judged(
    owner: str,
    found: _Found,
    score: Score,
    units: NDArray[np.int64],
    mated: NDArray[np.bool_],
    of_others: NDArray[np.int64] | None,
    within: NDArray[Any] | None,
) -> JudgedAnswers:
    """The best scores of the queries, and of searches without a mate, given apart or among them."""
    best = _in_dtype(owner, found.answers, score)
    others = best[~mated] if found.alone is None else _in_dtype(owner, found.alone, score)
    return JudgedAnswers(best, found.answers.right == 1, units, mated, others, of_others, within)


def _deepest(chosen: Candidate, truth: Relation, classes: NDArray[np.int64] | None) -> int:
    """How many items a search must find for each query, so that it has its confidence."""
    if chosen.confidence == "score":
        return 1
    if classes is None or chosen.confidence == "margin":
        return 2
    return min(int(np.bincount(classes).max()) + 1, truth.gallery)


def _asked(
    owner: str, delta: float, *alphas: tuple[Promise, float | None], p_target: float | None = None
) -> tuple[Promise, float] | None:
    """The promise that is asked for, and its alpha; None where none is."""
    named = {promise.name: (promise, alpha) for promise, alpha in alphas if alpha is not None}
    shares = {name: alpha for name, (_, alpha) in named.items()} | ({} if p_target is None else {"p_target": p_target})
    require_shares(owner, delta=delta, **shares)
    if len(shares) > 1:
        raise ValueError(f"{owner}: {' and '.join(shares)} are given, expected one")
    return next(((promise, float(alpha)) for promise, alpha in named.values()), None)


def _in_dtype(owner: str, answers: Answers, score: Score) -> NDArray[Any]:
    """Best scores in the dtype in which they were computed; that of an exact copy, infinity, as its greatest number."""
    found, dtype = answers.scores[:, 0], answers.dtype
    if (found <= -GREAT).any():
        count = (found <= -GREAT).sum()
        raise ValueError(f"{owner}: the best score by {score.label} of {count} queries is -inf: nothing is like them")
    return bounded(found, dtype).astype(dtype)


def _about(
    queries: Distribution,
    gallery: Distribution | None,
    score: Score,
    judged: JudgedAnswers,
    grouping: str,
    apart: bool,
    norm: str,
) -> str:
    """Queries and gallery, as the beginning of a sentence."""
    among = "among each other" if gallery is None else f"in {len(gallery)} gallery items"
    without = int((~judged.matches).sum())
    missing = f", {without} of them without a right item" if without else ""
    novel = f" and {len(judged.others)} searches without a mate apart" if apart else ""
    return (
        f"{len(judged.scores)} queries of {judged.classes.max() + 1} {grouping}{missing}{novel}, searched for {among} "
        f"by {score.label}{f' with {norm}' if norm else ''}; {queries.dim} dimensions, {type(queries).__name__}"
    )


def _chosen(
    owner: str,
    x: JudgedAnswers,
    promises: tuple[Promise, Promise],
    asked: tuple[Promise, float] | None,
    pers: tuple[Per, ...],
    delta: float,
    seed: int,
    terms: Threshold,
    apart: bool,
) -> ThresholdChoice:
    """The thresholds for all promises, and the curves that the page draws."""
    number = "scores" if terms.of == "pairs" else "confidences"
    reversed_ = warn_if_reversed(owner, number, x.scores, x.right)
    of = {per: x.each() if per == "query" else x for per in pers}
    results = [
        _result(of[per], promise, per, alpha, delta, seed, terms)
        for promise in promises
        if promise.cases(x)
        for alpha in promise.alphas(asked)
        for per in pers
    ]
    target = None if asked is None else (asked[0].name, asked[1])
    wanted = [x for x in results if (x.promise, x.alpha) == target]
    if reversed_:
        _require_mostly_right(owner, number, wanted)
    counted = of[pers[0]]
    right = x.right.astype(np.float64)
    chances = probability(x.scores.astype(np.float64), right, x.classes, seed)
    known = ~np.isnan(chances)
    both = x.matches.any() and len(x.others) > 0
    edges, counts = _histograms(x, terms.of == "pairs", apart)
    return ThresholdChoice(
        score=None,
        about=terms.fitted_on,
        items=len(x.scores),
        matches=int(x.matches.sum()),
        classes=int(x.classes.max()) + 1,
        grouping="",
        others=len(x.others),
        other_classes=None if x.of_others is None else len(np.unique(x.of_others)),
        apart=apart,
        delta=float(delta),
        asked=target,
        results=tuple(results),
        within=_within(owner, counted, wanted, delta, seed, terms),
        coverage=_shown(risks(x.scores, x.right, counted.classes)),
        bound=_shown(_bound(counted, delta, seed)),
        calibration=calibration(chances[known], right[known])[0] if known.any() else (),
        trade_off=curve_of(_errors(x)) if both else (),
        edges=edges,
        counts=counts,
        seed=seed,
    )


def _require_mostly_right(owner: str, number: str, results: Sequence[ThresholdResult]) -> None:
    """Refuse a threshold of scores that look reversed, above which most are wrong."""
    for found in results:
        if found.wrong > 0.5:
            raise ValueError(
                f"{owner}: {number} look reversed, as distances are, and {found.wrong:.0%} of those above the "
                f"threshold for {found.promise}={found.alpha:g} are wrong; expected higher = more similar"
            )


def _shown(curve: NDArray[np.float64]) -> tuple[tuple[float, float], ...]:
    """Some points of a curve, evenly, the first and the last among them."""
    some = np.unique(np.linspace(0, len(curve) - 1, min(len(curve), POINTS)).round().astype(np.int64))
    return tuple(map(tuple, curve[some].tolist()))


def _bound(x: JudgedAnswers, delta: float, seed: int) -> NDArray[np.float64]:
    """[T, 2]: the share of the tested answers that is accepted, and the upper bound of its risk at one threshold."""
    from scipy.stats import beta

    one = one_of_each("choose_threshold", "classes", x.classes, len(x.scores), seed)
    coverage, risk = risks(x.scores[one], x.right[one]).T
    accepted = (coverage * len(one)).round()
    wrong = (risk * accepted).round()
    upper = np.where(wrong < accepted, beta.ppf(1 - delta, wrong + 1, np.maximum(accepted - wrong, 1)), 1.0)
    return np.stack([coverage, upper], 1)


def _errors(x: JudgedAnswers) -> metrics.OpenSet:
    """Errors over all thresholds: of searches FNIR and FPIR, of pairs the shares of both kinds decided wrongly."""
    mates = metrics.mate_scores(x.scores[x.matches, None].astype(np.float64), x.right[x.matches, None])
    return metrics.open_set(mates, x.others.astype(np.float64))


def _result(
    x: JudgedAnswers, promise: Promise, per: Per, alpha: float, delta: float, seed: int, terms: Threshold
) -> ThresholdResult:
    """The threshold for one promise, with the terms that it carries, and its effect on the answers."""
    found = promise.find(x, alpha, delta, seed)
    accepted = found(x.scores)
    return ThresholdResult(
        promise=promise.name,
        alpha=alpha,
        per=per,
        threshold=found.threshold,
        accepted=float(accepted.mean()),
        wrong=float((~x.right[accepted]).mean()) if accepted.any() else math.nan,
        wrong_by_class=_wrong_by_class(x, accepted),
        found=float((accepted & x.right)[x.matches].mean()) if x.matches.any() else math.nan,
        false=float(found(x.others).mean()) if len(x.others) else None,
        accept=replace(found, **_carried(terms)),
        tested=found.number,
        missing=found.missing if math.isinf(found.threshold) else 0,
    )


def _wrong_by_class(x: JudgedAnswers, accepted: NDArray[np.bool_]) -> float | None:
    """Share of accepted answers that is wrong, each class counting once; None where all have as many items."""
    size = np.bincount(x.classes)
    if size.max() == size.min():
        return None
    weight = accepted / size[x.classes]
    return float(weight[~x.right].sum() / weight.sum()) if accepted.any() else math.nan


def _histograms(x: JudgedAnswers, pairs: bool, apart: bool) -> tuple[tuple[float, ...], dict[str, tuple[int, ...]]]:
    """Edges of bins, and how many scores of each kind lie in them."""
    if pairs:
        kinds = {"pairs that match": x.scores[x.right], "pairs that do not": x.scores[~x.right]}
    else:
        wrong = ~x.right if apart else ~x.right & x.matches
        kinds = {"right answers": x.scores[x.right], "wrong answers": x.scores[wrong], "without a mate": x.others}
    kinds = {name: found.astype(np.float64) for name, found in kinds.items() if len(found)}
    every = np.concatenate(list(kinds.values()))
    usual = every[np.abs(every) < np.finfo(x.scores.dtype).max]  # infinite ones, of copies, lie beyond the bins
    low, high = np.quantile(usual if len(usual) else np.zeros(1), [ENDS, 1 - ENDS])
    edges = bin_edges(np.array([low, high]), BINS)
    counts = {name: np.histogram(np.clip(found, edges[0], edges[-1]), edges)[0] for name, found in kinds.items()}
    return tuple(edges.tolist()), {name: tuple(found.tolist()) for name, found in counts.items()}
