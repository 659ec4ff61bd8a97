"""`pe.choose_score`: which score to use on embeddings that somebody has, and whether their uncertainty is worth it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import Annotated, Any, NamedTuple, TypeGuard

import numpy as np
from numpy.typing import ArrayLike, NDArray

from peaccel import metrics, retrieval
from peaccel._utils.arrays import on_host, quiet
from peaccel._utils.numbers import require_shares
from peaccel._utils.progress_bar import ProgressBar
from peaccel._utils.seeds import SEEDS, as_integer
from peaccel.distributions import Distribution, Normal, Point, Scaled, VonMisesFisher, concat
from peaccel.evaluation.answers import answered, as_truth, of_pairs, require_items
from peaccel.evaluation.columns import Column, ranked, table
from peaccel.evaluation.criteria import CRITERIA, By, Comparison, Criterion, Judgements, Measured
from peaccel.evaluation.drawn_pairs import compared_pairs, verification_pairs
from peaccel.evaluation.exported import Exported
from peaccel.evaluation.formatting import Table, as_text, percent
from peaccel.evaluation.intervals import Interval, Resamples, TooFew, at_once, compared, ends, plainly
from peaccel.evaluation.pair_rates import AUC, P_TARGET, not_calibrated
from peaccel.evaluation.separation import CountedAnswers, Separation, learned
from peaccel.fits.calibrate_variance import calibrate_variance
from peaccel.fits.fit_centre import fit_centre
from peaccel.fits.fit_plda import fit_plda
from peaccel.fits.fit_prior import fit_prior
from peaccel.fits.fit_shift import fit_shift
from peaccel.fits.plda import Plda
from peaccel.fits.records import Calibration, Centre
from peaccel.metrics._relation import Relation
from peaccel.metrics.detection_cost import Costs
from peaccel.retrieval.adaptive_norm import AdaptiveNorm
from peaccel.scores import SCORES, Score
from peaccel.scores._common_variance import ranking_weights

__all__ = ["BASE", "Fits", "RankedScore", "ScoreChoice", "choose_score", "fit", "fit_all"]

OF_MEANS = ("cosine", "neg_sq_l2", "norm_cosine")
"""Scores of the means alone."""
BASE = "cosine, raw"
"""The score that all others are compared with."""
FEWEST = 20
"""The fewest classes of two items or more; intervals from fewer than half as many are not reliable."""
ITEMS = 10_000
"""How many items, of classes that are drawn, are looked at unless another number is given."""
COMPARED = ("equal_error_rate", "min_dcf", "answered")
"""Fields that are filled where scores are compared by them."""
PROBE = 64
"""Queries by which the time of all of them is estimated."""


@dataclass(frozen=True)
class RankedScore:
    """How well a score separates items. Intervals of gains hold for all scores at once, of Recall@1 and of AUROC."""

    score: Annotated[str, Column("score")]
    form: Annotated[str, Column("form")]
    """"calibrated": uncertainties by `pe.calibrate_variance`, a prior by `pe.fit_prior`, a shift by `pe.fit_shift`; of
    points "centred" and "whitened" by `pe.fit_centre`, "PLDA" by `pe.fit_plda`, "S-norm" by the fitted items; or
    "raw"."""
    recall_at_1: Annotated[
        Interval,
        Column(
            "Recall@1 %",
            "share of items whose best other item is of their class; higher is better.",
            metric=metrics.hit_at_k,
        ),
    ]
    map_at_r: Annotated[
        Interval,
        Column(
            "MAP@R %",
            "average precision among as many items as are of the class; higher is better.",
            metric=metrics.average_precision_at_r,
        ),
    ]
    roc_auc: Annotated[float, replace(AUC, show=percent)]
    """ROC AUC of verification pairs."""
    gain: Annotated[
        Interval,
        Column(
            "gain over cosine",
            "the gain over cosine in the number that scores are compared by, Recall@1 unless another is named; above 0 "
            "is better than it.",
        ),
    ]
    """Gain over cosine on the same queries or pairs; 0 for cosine itself."""
    equal_error_rate: Annotated[
        Interval | None,
        Column("EER %", "equal error rate of the pairs; lower is better."),
    ]
    """This, `min_dcf` and `answered` are None unless scores are compared by them."""
    min_dcf: Annotated[
        Interval | None,
        Column("minDCF", "least detection cost of the pairs; lower is better.", plainly),
    ]
    answered: Annotated[
        Interval | None,
        Column(
            "answered %",
            "the largest share of queries that can be answered with the stated share of wrong answers; higher is "
            "better.",
        ),
    ]
    best_auroc: Annotated[
        Interval,
        Column(
            "AUROC of best %",
            "how probably an item that is answered rightly has a higher best score than one that is answered wrongly; "
            "50: the score says nothing of its answers, higher is better.",
        ),
    ]
    """How well the score of the best item tells right answers of this score from wrong ones."""
    best_auroc_gain: Annotated[
        Interval, Column("AUROC over cosine", "that less the one of cosine, in the same draws; above 0 is better.")
    ]
    """Gain of `best_auroc` over cosine; 0 for cosine itself."""
    worth: Annotated[
        Interval | None,
        Column(
            "over equal uncertainties",
            "Recall@1 less that of the same score with the mean uncertainty for all items; above 0 the uncertainties "
            "are worth something.",
        ),
    ]
    """Gain over the same score with the mean uncertainty for all items; None where it uses none."""
    cllr: float | None
    """Cost of the pairs' scores as log-likelihood ratios, in bits; None where they are no such ratios."""
    min_cllr: float | None
    """The least Cllr of the pairs in the same order."""

    @property
    def name(self) -> str:
        """Score and form."""
        return f"{self.score}, {self.form}"


@dataclass(frozen=True)
class ScoreChoice(Exported):
    """Result of `pe.choose_score`; prints as a table and a sentence.

    Examples
    --------
    >>> labels = np.arange(40).repeat(2)
    >>> choice = pe.choose_score(pe.Normal(np.eye(40)[labels] + 0.1 * np.eye(80, 40), var=0.1), labels)
    >>> choice.judged, choice.classes, choice.best.name
    (40, 20, 'cosine, raw')
    """

    kind: str
    dim: int
    items: int
    """How many items were given; of more than were to be looked at, classes are drawn."""
    fitted: int
    """How many items the calibrated forms were fitted to."""
    judged: int
    """How many items, of other classes, all scores are judged by."""
    classes: int
    """How many classes those items have."""
    scores: tuple[RankedScore, ...]
    """The scores by the number that they are compared by, then by Recall@1 and MAP@R, best first."""
    gallery: int | None
    """How many items of these classes they are searched for in; None where they are among each other."""
    learned_auroc: Interval | None
    """How well what `pe.confidence` says of the items tells cosine's right answers from wrong ones; None of points."""
    learned_auroc_gain: Interval | None
    """Gain of `learned_auroc` over the score of the best item by cosine, held at once with those of all scores."""
    by: By
    """"recall", "eer", "dcf" or "answered": the number that scores are compared by."""
    seed: int

    @property
    def best(self) -> RankedScore:
        """The first score whose gain over cosine is above 0 with its interval; cosine where there is none."""
        above = (s for s in self.scores if s.gain.low > 0)
        return next(above, next(s for s in self.scores if s.name == BASE))

    def sentence(self) -> str:
        """Which score to use, and whether the uncertainty is worth anything here."""
        said = [self._of_choice(), self._of_confidence()]
        return " ".join(said + not_calibrated(self.best.name, self.best.cllr, self.best.min_cllr))

    def _of_confidence(self) -> str:
        """Which best score tells most of its answers, and whether the learned confidence tells more than cosine's."""
        cosine = next(s for s in self.scores if s.name == BASE)
        if isinstance(cosine.best_auroc, TooFew) or np.isnan(cosine.best_auroc.value):
            return "Fewer than ten of cosine's answers are wrong, or right: too few to compare confidences by."
        others = [s for s in self.scores if s is not cosine]
        above = [s for s in others if s.best_auroc_gain.low > 0]
        said = [f"As a confidence, the best score by cosine has an AUROC of {cosine.best_auroc} %"]
        if above:
            best = max(above, key=lambda s: s.best_auroc_gain.value)
            said.append(f"that by {best.name}, in its own answers, is {compared(best.best_auroc_gain)}")
        else:
            said.append(f"that of none of the {len(others)} others is distinguishably better")
        if self.learned_auroc_gain is not None:
            said.append(f"the learned confidence is {compared(self.learned_auroc_gain)}")
        return "; ".join(said) + "."

    def _of_choice(self) -> str:
        """Which score to use, and whether its use of the uncertainty is what gains Recall@1."""
        best, others, criterion = self.best, len(self.scores) - 1, CRITERIA[self.by]
        uncertain = any(s.worth is not None for s in self.scores)
        if best.name == BASE:
            about = f"Use cosine: none of the {others} others, tried together, is distinguishably better"
        else:
            way = "above" if criterion.sign > 0 else "below"
            gain = f"{criterion.name} is {best.gain} {criterion.unit} {way} that of cosine"
            about = f"Use {best.name}: {gain}, with {others} scores tried"
        if self.by != "recall":
            return f"{about}, by {criterion.name}."
        if not uncertain:
            return f"{about}; a {self.kind} has no uncertainty that a score could use."
        if best.worth is None:
            return f"{about}; so nothing shows that the uncertainty is worth anything here."
        with_equal = f"{best.worth} points above its own with equal uncertainties"
        if best.worth.low > 0:
            return f"{about}, and {with_equal}: the uncertainty is worth something here."
        return f"{about}, but {with_equal}: nothing shows that the uncertainty is worth anything here."

    def tables(self) -> dict[str, Table]:
        """Header and rows of the table, by its title."""
        shown = table(self.scores, lambda s, name: name in ("gain", "best_auroc_gain") and s.name == BASE)
        gains = f"gains of {CRITERIA[self.by].name}, in intervals that hold for all of them at once"
        return {f"Scores, best first; {gains}": shown}

    def summary(self) -> str:
        """Data and setting of the choice, in one sentence."""
        looked = self.fitted + self.judged + (self.gallery or 0)
        drawn = f"A sample of {looked} of {self.items} items: " if looked < self.items else ""
        what = f"items of {self.classes} classes searched for among each other"
        if self.gallery is not None:
            what = f"queries of {self.classes} classes searched for in {self.gallery} items"
        return (
            f"{drawn}{self.judged} {what}, {self.dim} dimensions, {self.kind}; other forms than raw are "
            f"fitted to {self.fitted} items of other classes; "
            f"[95 % over classes], seed {self.seed}"
        )

    def __str__(self) -> str:
        """The sentence and the table as text."""
        return f"{self.sentence()}\n\n{as_text(self.summary(), self.tables())}"


@dataclass(frozen=True)
class Fits:
    """Fits to labelled items; None where their kind has no such fit."""

    calibration: Calibration | None
    of_scores: Mapping[str, Any] = field(default_factory=dict)
    """By kind the fits that give scores their parameters."""
    centre: Centre | None = None
    whitening: Centre | None = None
    plda: Plda | None = None

    def __call__(self, score: Score) -> Score:
        """The score with the parameters that were fitted."""
        for kind, fit in self.of_scores.items():
            score = score.fitted(kind, fit)
        return score


OF_SCORES: dict[str, Callable[[Distribution, Any, Any, Any], Any]] = {
    "prior": lambda d, labels, pairs, same: fit_prior(d, labels) if isinstance(d, Normal) else None,
    "shift": lambda d, labels, pairs, same: fit_shift(d, pairs, same),
}
"""By kind the fits that scores name, to items, their labels, pairs of them, and whether each is of one class; None
where the items have no such fit."""


def choose_score(
    d: Distribution,
    labels: ArrayLike | tuple[ArrayLike, ArrayLike],
    *,
    gallery: Distribution | None = None,
    by: By = "recall",
    pairs: ArrayLike | None = None,
    wrong: float = 0.05,
    p_target: float = P_TARGET,
    draws: bool = False,
    items: int = ITEMS,
    progress: bool = False,
    seed: int = 0,
) -> ScoreChoice:
    """Rank the scores that a kind of items has, and say which to use and whether the uncertainty is worth anything.

    Half of the classes are for fitting: `pe.calibrate_variance`, `pe.fit_prior`, `pe.fit_shift`. The items of the other
    half are searched for among each other, each without itself, by every score: raw, and with what was fitted. Each is
    compared with cosine, and, where it uses the uncertainty, with itself when all items have the mean uncertainty: a
    gain over cosine alone may be owed to the prior. Of points cosine is also tried on centred and on whitened items
    (`pe.fit_centre`), by PLDA (`pe.fit_plda`, where there are items enough) and with adaptive S-norm, whose cohort is
    of the classes that are fitted to: one of those that are tested would flatter. The best of many is picked, so that
    the intervals of all gains hold at once (`simultaneous_intervals`). Recall@1 itself is that of the picked one, and a
    little too high.

    Parameters
    ----------
    d
        N items of one kind, of classes that nothing was trained on.
    labels
        [N] numbers, none of them NaN, or strings; at least 20 classes of two items or more. With a gallery a tuple: of
        d, and of the gallery.
    gallery
        G points, in which the items of d are searched for; None to search d in itself.
    by
        The number that scores are compared by. "recall": Recall@1. "eer": the equal error rate of verification pairs.
        "dcf": their least detection cost at ``p_target``. "answered": the largest share of queries that can be answered
        with a share ``wrong`` of wrong answers.
    pairs
        [P, 2], rows of d and of the gallery, that are verified in place of drawn pairs, such as a list of trials. Those
        count whose items are both of the judged classes.
    wrong
        In (0, 1): the share of accepted answers that may be wrong, for "answered".
    p_target
        In (0, 1): the prior probability of a right pair, for "dcf".
    draws
        Whether scores that draw are ranked too, with this seed; by default those in closed form.
    items
        How many items to look at, at least 2: of more, classes are drawn, and of each at most a fortieth of this
        number. Time grows with its square.
    progress
        Whether to say on stderr how long it takes, and how far it is.
    seed
        Seed of the sample, of the halves, of verification pairs, of intervals, and of draws.

    Returns
    -------
    ScoreChoice
        ``print`` it, ``.best``, ``.sentence()``, ``.save("choice.json")``. Afterwards fit to all items.

    Raises
    ------
    ValueError
        labels of another shape or NaN, too few classes, a score that is NaN, another criterion, pairs that are no rows
        or of one kind only, wrong or p_target outside (0, 1), or as for `pe.calibrate_variance`.

    Examples
    --------
    Sharp images and blurred ones, with fitting variances:

    >>> rng, labels = np.random.default_rng(0), np.arange(100).repeat(4)
    >>> sigma = rng.choice([0.5, 4.0], (400, 1))
    >>> mu = rng.normal(size=(100, 64))[labels] + sigma * rng.normal(size=(400, 64))
    >>> pe.choose_score(pe.Normal(mu, sigma**2), labels).best.name
    'llr, calibrated'
    """
    owner = "choose_score"
    seed, items = as_integer(owner, "seed", seed, *SEEDS), as_integer(owner, "items", items, 2, sys.maxsize)
    require_items(owner, d=d, gallery=gallery)
    if by not in CRITERIA:
        raise ValueError(f"{owner}: by is {by!r}, expected one of {', '.join(map(repr, CRITERIA))}")
    require_shares(owner, wrong=wrong)
    costs = Costs(owner, p_target)
    truth = as_truth(owner, labels, d, gallery)
    listed, queries = None if pairs is None else compared_pairs(owner, pairs, truth, seed)[0], truth.queries
    d, numbers, asked = _both_sides(d, gallery, truth)
    if isinstance(d, Point) and not np.isfinite(on_host(d.mu).astype(np.float64)).all():
        raise ValueError(f"{owner}: d or gallery holds numbers that are not finite: see validate()")
    every = learned(owner, "d", d)
    rows, classes, sizes = _sampled(numbers, items, seed)
    halves, asked = _second_half(sizes, seed)[classes], asked[rows]
    fits = fit(d[rows[~halves]], classes[~halves], None if gallery is None else asked[~halves], seed)
    one, other = halves & asked, halves & ~asked
    sure = None if every is None else every[rows[one]]
    sides = d[rows[one]], None if gallery is None else d[rows[other]]
    cohort = d[rows[~halves & (asked if gallery is None else ~asked)]] if isinstance(d, Point) else None
    forms = list(_forms(*sides, cohort, fits, draws, seed))
    judged_classes = classes[one] if gallery is None else (classes[one], classes[other])
    truth = as_truth(owner, judged_classes, *sides)
    if listed is not None:
        listed = _among(listed, rows[one], rows[one] if gallery is None else rows[other] - queries)
    comparison = _comparison(listed, truth, CRITERIA[by], costs, wrong, seed)
    found = _all_judged(forms, truth, comparison, progress)
    return ScoreChoice(
        kind=type(d).__name__,
        dim=d.dim,
        items=len(d),
        fitted=int((~halves).sum()),
        judged=len(sides[0]),
        classes=len(np.unique(classes[one])),
        gallery=None if sides[1] is None else len(sides[1]),
        by=by,
        seed=seed,
        **_compared(found, sure, comparison),
    )


def _all_judged(forms: Sequence[_Form], truth: Relation, comparison: Comparison, progress: bool) -> list[_Judged]:
    """The answers of each form; those that S-norm is not defined for are left out."""
    seconds, equal = _seconds(forms), _IfEqual(truth)
    found: list[tuple[_Form, _Judged]] = []
    with ProgressBar("choose-score", sum(seconds), sum(seconds)) if progress else nullcontext() as bar:
        for form, cost in zip(forms, seconds, strict=True):
            twin = next((judged for at, judged in found if _twins(form, at)), None)
            # Scores with the cohort that are all one number have no deviation to be normalised by.
            with suppress(ValueError) if form.form == "S-norm" else nullcontext():
                if twin is None:
                    twin = _judged(form, truth, comparison, equal)
                found.append((form, replace(twin, score=form.score.name)))
            if bar is not None:
                bar.advance(cost)
    return [judged for _, judged in found]


def _comparison(
    listed: NDArray[np.int64] | None, truth: Relation, criterion: Criterion, costs: Costs, wrong: float, seed: int
) -> Comparison:
    """Queries and pairs that all scores are compared on, with draws of both."""
    if listed is None:
        pairs, same = verification_pairs(truth, None, seed, different=criterion.different)
    else:
        pairs, same = listed, truth.right(listed[:, 0], listed[:, 1])
        if same.all() or not same.any():
            number = f"{same.sum()} of {len(same)} pairs of judged items"
            raise ValueError(f"choose_score: {number} are right, expected some of either kind")
    clusters = np.unique(np.concatenate([truth.clusters, truth.gallery_clusters]), return_inverse=True)[1]
    of_queries, of_items = clusters[: truth.queries], clusters[truth.queries :]
    both, known = np.stack([of_queries[pairs[:, 0]], of_items[pairs[:, 1]]], 1), truth.sizes() > 0
    return Comparison(criterion, known, Resamples(of_queries[known], seed), pairs, same, both, costs, wrong, seed)


def _among(listed: NDArray[np.int64], queries: NDArray[np.int64], gallery: NDArray[np.int64]) -> NDArray[np.int64]:
    """The listed pairs whose items are both among these rows, as places among them."""
    sides = list(zip((queries, gallery), listed.T, strict=True))
    places = [np.searchsorted(rows, x).clip(max=len(rows) - 1) for rows, x in sides]
    held = [rows[place] == x for (rows, x), place in zip(sides, places, strict=True)]
    return np.stack(places, 1)[np.all(held, 0)]


def _both_sides(
    d: Distribution, gallery: Distribution | None, truth: Relation
) -> tuple[Distribution, NDArray[np.int64], NDArray[np.bool_]]:
    """The items of both sides, the number of each one's class, and which are queries."""
    if gallery is None:
        return d, np.unique(truth.clusters, return_inverse=True)[1], np.ones(len(d), np.bool_)
    if not (isinstance(d, Point) and isinstance(gallery, Point) and d.dim == gallery.dim):
        found = " and ".join(f"{type(x).__name__} of {x.dim} dimensions" for x in (d, gallery))
        raise ValueError(f"choose_score: d and gallery are {found}, expected points of one dimension")
    names = np.concatenate([truth.clusters, truth.gallery_clusters])
    sides = concat([Point(on_host(d.mu)), Point(on_host(gallery.mu).astype(on_host(d.mu).dtype))])
    return sides, np.unique(names, return_inverse=True)[1], np.arange(len(names)) < len(d)


class _Form(NamedTuple):
    """A score in a form, and the items that it is judged on."""

    score: Score
    form: str
    queries: Distribution
    gallery: Distribution | None
    cohort: Distribution | None = None


def _twins(one: _Form, other: _Form) -> bool:
    """Whether two scores in their forms are one by two names."""
    return one.form == other.form and replace(one.score, name=other.score.name) == other.score


def _finite(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """Infinite numbers as great ones, which keep their order and can be subtracted."""
    return np.clip(x, -1e300, 1e300)


def _compared(
    found: list[_Judged],
    learned: NDArray[np.float64] | None,
    comparison: Comparison,
) -> dict[str, Any]:
    """The scores, best first, and the learned confidence, with intervals of one set of draws.

    Queries without an answer are left out.
    """
    known, resamples = comparison.known, comparison.resamples
    cosine = next(x for x in found if f"{x.score}, {x.form}" == BASE)
    separations = [CountedAnswers(x.right[known], x.confidence[known], resamples).separation() for x in found]
    if learned is not None:
        separations.append(CountedAnswers(cosine.right[known], learned[known], resamples).separation())
    base = separations[found.index(cosine)]
    above = at_once(
        np.array([x.auroc.value - base.auroc.value for x in separations]),
        np.stack([x.drawn - base.drawn for x in separations], 1),
    )
    ranked = _ranked(found, cosine, separations, above, comparison)
    return {
        "scores": ranked,
        "learned_auroc": None if learned is None else separations[-1].auroc,
        "learned_auroc_gain": None if learned is None else above[-1],
    }


def _ranked(
    found: list[_Judged],
    cosine: _Judged,
    separations: list[Separation],
    above: tuple[Interval, ...],
    comparison: Comparison,
) -> tuple[RankedScore, ...]:
    """The scores, best first."""
    criterion, resamples, known = comparison.criterion, comparison.resamples, comparison.known
    base, sign = cosine.measured, criterion.sign
    worths = np.stack(
        [x.recall - x.right_if_equal for x in found if x.right_if_equal is not None] or [np.zeros(len(known))], 1
    )
    values, drawn = resamples.drawn_means(worths[known])
    gains = [sign * (x.measured.value - base.value) for x in found]
    drawn_gains = np.stack([sign * (x.measured.drawn - base.drawn) for x in found], 1)
    several = at_once(np.concatenate([gains, values]), np.c_[drawn_gains, drawn])
    of_gains, intervals = several[: len(found)], iter(several[len(found) :])
    ranked = [
        RankedScore(
            score=x.score,
            form=x.form,
            recall_at_1=resamples.mean(x.recall[known]),
            map_at_r=resamples.mean(x.precision[known]),
            roc_auc=x.roc_auc,
            gain=gain,
            **{name: ends(*x.measured) if name == criterion.field else None for name in COMPARED},
            best_auroc=separation.auroc,
            best_auroc_gain=over,
            worth=None if x.right_if_equal is None else next(intervals),
            cllr=x.cllr,
            min_cllr=x.min_cllr,
        )
        for x, gain, separation, over in zip(found, of_gains, separations, above, strict=False)
    ]
    best = {id(s): x.measured.value for s, x in zip(ranked, found, strict=True)}
    return tuple(sorted(ranked, key=lambda s: (-sign * best[id(s)], -s.recall_at_1.value, -s.map_at_r.value)))


def fit_all(d: Distribution, labels: Any, gallery: Distribution | None, seed: int) -> Fits:
    """Fit the parameters of scores to all items, as `choose_score` takes them."""
    truth = as_truth("choose_score", labels, d, gallery)
    both, numbers, asked = _both_sides(d, gallery, truth)
    return fit(both, numbers, None if gallery is None else asked, seed)


def fit(d: Distribution, labels: NDArray[Any], asked: NDArray[np.bool_] | None, seed: int) -> Fits:
    """Fit the parameters of scores to these items, of which some are queries; pairs are drawn by the seed."""
    rows = [np.arange(len(d))] if asked is None else [np.flatnonzero(asked), np.flatnonzero(~asked)]
    of_gallery = None if asked is None else labels[rows[1]]
    pairs, same = verification_pairs(labels[rows[0]], of_gallery, seed)
    pairs = np.stack([rows[0][pairs[:, 0]], rows[-1][pairs[:, 1]]], 1)
    of_points = _of_points(d, labels, rows) if isinstance(d, Point) else {}
    return Fits(
        calibrate_variance(d, pairs, same) if isinstance(d, Normal | VonMisesFisher) else None,
        {kind: found for kind, fit in OF_SCORES.items() if (found := fit(d, labels, pairs, same)) is not None},
        **of_points,
    )


def _of_points(d: Point, labels: NDArray[Any], rows: list[NDArray[np.int64]]) -> dict[str, Any]:
    """The means of the sides, the covariance around them, and the model of what is left; None where items are few."""
    sides = [d[x] for x in rows]
    found: dict[str, Any] = {"centre": fit_centre(*sides)}
    if len(d) - len(rows) >= d.dim:
        found["whitening"] = fit_centre(*sides, whiten=True)
    centre = found["centre"]
    moved = [centre.of_queries(sides[0]), *map(centre.of_gallery, sides[1:])] if len(sides) > 1 else sides
    if len(d) - len(np.unique(labels)) > d.dim:
        with suppress(ValueError):  # columns that are constant within classes, or classes that do not differ
            found["plda"] = fit_plda(concat(moved), np.concatenate([labels[x] for x in rows]))
    return found


def _sampled(
    labels: NDArray[Any], items: int, seed: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """At most so many rows, their classes as numbers, and how many each class has."""
    rows = np.arange(len(labels))
    if len(rows) > items:
        drawn = np.random.default_rng(seed).permutation(len(labels))
        drawn = drawn[np.argsort(labels[drawn], kind="stable")]
        place = np.arange(len(drawn)) - np.searchsorted(labels[drawn], labels[drawn])
        rows = np.sort(drawn[place < max(items // (2 * FEWEST), 2)])
        rows = rows[metrics.truncated_rows(labels[rows], items, seed)]
    _, classes, sizes = np.unique(labels[rows], return_inverse=True, return_counts=True)
    repeated = int((sizes > 1).sum())
    if repeated < FEWEST:
        of = f" among the {items} items that are drawn" if len(rows) < len(labels) else ""
        raise ValueError(f"choose_score: labels name {repeated} classes of two items or more{of}, expected {FEWEST}")
    return rows, classes, sizes


def _seconds(forms: Sequence[_Form]) -> list[float]:
    """About how long each form takes to judge, by a few of its queries."""
    seconds = []
    for score, _, queries, gallery, _ in forms:
        start = perf_counter()
        retrieval.search(queries[:PROBE], queries if gallery is None else gallery, 2, score)
        seconds.append((perf_counter() - start) * len(queries) / min(PROBE, len(queries)))
    return seconds


def _uncertain(d: Distribution, score: Score) -> TypeGuard[Normal | VonMisesFisher | Scaled]:
    """Whether the score uses the uncertainty of items."""
    return isinstance(d, Normal | VonMisesFisher | Scaled) and score.name not in OF_MEANS


def _second_half(sizes: NDArray[np.int64], seed: int) -> NDArray[np.bool_]:
    """A mask [classes] of half of the classes of two items or more, and half of the others."""
    order = np.random.default_rng(seed).permutation(len(sizes))
    order = order[np.argsort(sizes[order] == 1, kind="stable")]
    second = np.zeros(len(sizes), np.bool_)
    second[order[1::2]] = True
    return second


def _forms(
    d: Distribution, gallery: Distribution | None, cohort: Distribution | None, fits: Fits, draws: bool, seed: int
) -> Iterator[_Form]:
    """Each score that takes these items, in the forms it has; of points those of means, since others equal them."""
    for known in SCORES.values():
        if (d.kind, d.kind) not in known.pairs or (isinstance(d, Point) and known.name not in OF_MEANS):
            continue
        drawn = known.pair(d.kind, d.kind).op.draws
        if drawn and not draws:
            continue
        score = known(seed=seed) if drawn else known
        if not any(map(score.lacks, fits.of_scores)):  # llr of normals has no form without a prior
            yield _Form(score, "raw", d, gallery)
        calibrated = fits.calibration is not None and score.name not in OF_MEANS
        if calibrated or any(x.kind in fits.of_scores for x in score.fits.values()):
            yield _Form(
                fits(score), "calibrated", fits.calibration(d) if calibrated and fits.calibration else d, gallery
            )
    if not isinstance(d, Point) or fits.centre is None:
        return
    cosine = SCORES["cosine"]
    for name, centre in (("centred", fits.centre), ("whitened", fits.whitening)):
        if centre is not None:
            yield _Form(cosine, name, centre.of_queries(d), None if gallery is None else centre.of_gallery(gallery))
    yield _Form(cosine, "S-norm", d, gallery, cohort)
    if fits.plda is not None:
        one, other = (d, None) if gallery is None else (fits.centre.of_queries(d), fits.centre.of_gallery(gallery))
        move = fits.plda.transform
        yield _Form(fits.plda.score, "PLDA", move(one), None if other is None else move(other))


@dataclass(frozen=True)
class _Judged:
    """How one form of a score answers, query by query."""

    score: str
    form: str
    right: NDArray[np.float64]
    recall: NDArray[np.float64]
    """Recall@1, between 0 and 1 where items share the best score."""
    precision: NDArray[np.float64]
    """Average precision at R."""
    roc_auc: float
    confidence: NDArray[np.float64]
    """The score of the best item."""
    right_if_equal: NDArray[np.float64] | None
    """`recall`, with the mean uncertainty for all items; None where the score uses none."""
    measured: Measured
    """The number that scores are compared by."""
    cllr: float | None
    min_cllr: float | None


class _IfEqual:
    """The answers of scores where all items have the mean uncertainty, from as few searches as there are rankings.

    Most scores of diagonal normals then rank by one and the same weighted distance; where two items are equally far up
    to rounding, which of them is the first is that of the score that came first.
    """

    def __init__(self, truth: Relation) -> None:
        self._truth = truth
        self._known: list[tuple[NDArray[np.float64], NDArray[np.float64]]] = []

    @quiet
    def right(self, d: Normal | VonMisesFisher | Scaled, score: Score) -> NDArray[np.float64]:
        """Recall@1 of each query."""
        mu, uncertainty = d.arrays
        mean = type(d)(mu, uncertainty.mean(0)[None])
        weights = ranking_weights(score.pair(mean.kind, mean.kind), mean, score.params)
        if weights is not None:
            weights = on_host(weights)
            for others, right in self._known:
                if np.allclose(weights, others, rtol=1e-12, atol=0):  # far below the rounding of scores
                    return right
        asked = {"recall_at_1": metrics.hit_at_k}
        right = answered("choose_score", mean, None, self._truth, score, asked, whole=False).values["recall_at_1"]
        if weights is not None:
            self._known.append((weights, right))
        return right


def _judged(form: _Form, truth: Relation, comparison: Comparison, if_equal: _IfEqual) -> _Judged:
    owner, asked, (score, name, d, gallery, cohort) = "choose_score", ranked(RankedScore), form
    items = d if gallery is None else gallery
    norm = None if cohort is None else AdaptiveNorm(owner, items, cohort, score)
    answers = answered(owner, d, gallery, truth, score, asked, norm=norm, seed=comparison.seed)
    equal = if_equal.right(d, score) if _uncertain(d, score) and name != "PLDA" else None
    found = _finite(of_pairs(owner, d, items, comparison.pairs, score))
    found = found if norm is None else norm.of_pairs(found, d, comparison.pairs)
    roc_auc = metrics.roc_auc(found, comparison.same)
    recall, precision = (answers.values[key] for key in ("recall_at_1", "map_at_r"))
    confidence = _finite(answers.scores[:, 0])
    known = comparison.known
    x = Judgements(comparison, recall[known], answers.right[known], confidence[known], found)
    ratios = (x.pairs.cost.cllr, x.pairs.least_cllr) if score.name == "llr" else (None, None)
    measured = comparison.criterion.measure(x)
    return _Judged(score.name, name, answers.right, recall, precision, roc_auc, confidence, equal, measured, *ratios)
