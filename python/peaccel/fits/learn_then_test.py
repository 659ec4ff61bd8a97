"""Thresholds of confidence and of scores that keep a promise, from labelled answers or from searches without a mate."""

from __future__ import annotations

import bisect
import itertools
import math
from dataclasses import replace
from functools import lru_cache
from typing import Any, Literal, overload

import numpy as np
from numpy.typing import ArrayLike

from peaccel._utils.arrays import Array, bounded, on_host
from peaccel._utils.labels import classes_of
from peaccel._utils.numbers import as_flags, as_numbers, class_numbers, require_shares
from peaccel._utils.seeds import SEEDS, as_integer
from peaccel._utils.warn import warn
from peaccel.fits.answer_confidence import RankedAnswers
from peaccel.fits.records import FalseMatchLimit, Selection, fewest
from peaccel.metrics.verification import warn_if_reversed

__all__ = ["learn_then_test", "limit_false_matches"]

# The sequences of ranks at which answers are tested: the share of all answers at which each begins. Many labels bear
# three: the first finds right answers that are rare, the last a threshold also where the surest answers are wrong. Few
# are used up by one. Many are at least MANY, and TIMES as many as pass where none of them is wrong: with fewer, the
# first sequence would have no rank at which anything can pass before the second begins, and its part of delta be lost.
MANY = 150
TIMES = 10
STARTS_OF_MANY = (0.002, 0.1, 0.3)
STARTS_OF_FEW = (0.125,)
RANKS = 100  # how many ranks of a sequence are tested at most

SUREST = 0.1
"""The smallest share of answers whose risk tells how many labels are missing: of fewer it says little."""
REACH = 100
"""How many times as many labels as there are can perhaps be had."""


@overload
def learn_then_test(
    confidence: ArrayLike | RankedAnswers,
    correct: ArrayLike,
    classes: ArrayLike,
    alpha: float,
    delta: float = 0.1,
    seed: int = 0,
    within: None = None,
) -> Selection: ...
@overload
def learn_then_test(
    confidence: ArrayLike | RankedAnswers,
    correct: ArrayLike,
    classes: ArrayLike,
    alpha: float,
    delta: float = 0.1,
    seed: int = 0,
    *,
    within: ArrayLike,
) -> dict[str, Selection]: ...
def learn_then_test(
    confidence: ArrayLike | RankedAnswers,
    correct: ArrayLike,
    classes: ArrayLike,
    alpha: float,
    delta: float = 0.1,
    seed: int = 0,
    within: ArrayLike | None = None,
) -> Selection | dict[str, Selection]:
    """A threshold of confidence above which at most a share alpha of answers is wrong, with probability 1 - delta.

    Learn then Test on the labelled answers alone: one answer of each class is drawn and they are put in order, surest
    first. At ranks that were fixed before any answer was looked at, the hypothesis "more than alpha of the answers that
    are as sure as these is wrong" is tested by the exact binomial probability of so few wrong ones, from surer answers
    to less sure ones, as long as it is refuted. The deepest rank at which it was gives the threshold.

    Parameters
    ----------
    confidence
        [Q], higher is surer, +inf of exact copies: of the top-1 answers to queries of held-out classes; `pe.confidence`
        of the queries, the score, the probability of `fit_match_probability`, ... Or the ranking that gave these
        answers, [Q, 1], longer where `normalise_scores` has put it in order: the threshold then refuses rankings of
        other scores.
    correct
        [Q] booleans (or 0 and 1): whether the answer is right.
    classes
        [Q] numbers or strings: the class of each query. ``np.arange(Q)`` claims that all answers are independent.
    alpha
        In (0, 1): the share of accepted answers that may be wrong.
    delta
        In (0, 1): the probability with which the threshold may break that.
    seed
        Which query of a class is tested.
    within
        [Q] numbers or strings: the group of each query, such as its language, camera or source. Each group then has a
        threshold for its own queries, and all of them keep the promise at once: delta is shared among the groups.

    Returns
    -------
    Selection
        ``s(confidence)`` says which answers to accept, ``s(ranking)`` takes the others away. Its threshold is inf where
        nothing was refuted, as always with fewer than log(delta) / log(1 - alpha) classes; ``missing`` says about how
        many more it takes. ``pe.io.write_fit`` keeps it. With `within`, one of each group, by its name.

    Raises
    ------
    ValueError
        alpha or delta outside (0, 1), wrong shapes or dtypes, NaN or -inf, as where a query has no answer, fewer than
        two classes; a group of so few classes that nothing could be promised if all its answers were right.

    Warns
    -----
    UserWarning
        No answer is right, or confidences look reversed.

    Notes
    -----
    Answers to queries of one class are right or wrong together. n answers in groups of m with a correlation of r tell
    no more than n / (1 + (m - 1) r) independent ones, and a binomial bound that counts all n is too narrow: with 100
    classes of 60 queries, as the tests simulate them, it breaks its promise in 19 % of draws where 5 % were allowed. So
    ONE query of each class is tested, drawn at random. What buys certainty is the number of classes, not of queries.

    The guarantee is of queries drawn as these are: of a new class of the same population, and of its queries one at
    random (each class counts alike, not each query), against the gallery that gave these answers, or one drawn alike.
    It holds over the draw of classes; to look at several seeds or kinds of confidence and choose among them voids it.
    That risk falls as confidence rises is not assumed. Why it holds at ranks of the sample that is tested:

    Call a threshold bad if more than alpha of what lies above it is wrong, and cut the axis of confidence wherever that
    share passes alpha. Each whole piece has an average risk of exactly alpha, and what lies above a bad threshold in
    its own piece one of alpha at least. Given how many answers fell into each piece it is fixed which ranks are bad,
    and at a bad rank k the number of wrong answers is stochastically at least Bin(k, alpha): each test is of its level.
    Levels are handed on as by Wiens' fallback: a sequence begins with its share of delta, hands on to the next rank
    what it passed with, and loses it where it fails. The bad ranks that can be passed first, one in each sequence, sum
    to delta. Equal confidences are tested together, since no threshold parts them.

    A share of the labels that only orders the tests, as in split fixed-sequence testing, is not needed. Where the
    logit of being right is 0.6 + 2.2 z, with z the standard normal confidence, and alpha = delta = 0.1, a threshold is
    found in 40, 63, 83 and 99.8 % of draws of 100, 200, 400 and 1000 labels, and broken in 3, 4, 4 and 7 %; a quarter
    set apart found 6, 22, 53 and 93 %.

    Of groups each is tested by itself at a level of delta over their number, so that the probability that any of them
    breaks its promise is at most delta, however they depend on each other (Bonferroni). Eight groups that each had all
    of delta would break one in 48 % of draws where 10 % were allowed; shared, in 7 % (200 draws, in the tests).

    References
    ----------
    Angelopoulos, Bates, Candes, Jordan & Lei, "Learn then Test: Calibrating Predictive Algorithms to Achieve Risk
    Control", 2021; Wiens, "A fixed sequence Bonferroni procedure for testing multiple endpoints", 2003; Geifman &
    El-Yaniv, "Selective Classification for Deep Neural Networks", 2017, for binomial bounds; Kish, "Survey Sampling",
    1965, for groups.

    Examples
    --------
    Answers of 400 classes, wrong below a confidence of 0.3; at most 5 % may be wrong:

    >>> confidence = np.linspace(0, 1, 400)
    >>> s = pe.learn_then_test(confidence, confidence > 0.3, np.arange(400), alpha=0.05)
    >>> round(s.threshold, 2), s.number, s.accepted, s.wrong
    (0.29, 400, 282, 2)
    >>> s([0.1, 0.9]).tolist()
    [False, True]

    Within each of two languages:

    >>> of_language = pe.learn_then_test(confidence, confidence > 0.3, np.arange(400), 0.05, within=["de", "fr"] * 200)
    >>> {name: round(s.threshold, 2) for name, s in of_language.items()}
    {'de': 0.38, 'fr': 0.38}
    """
    if within is not None:
        return tested_within("learn_then_test", confidence, correct, classes, within, alpha, delta, seed)
    return tested("learn_then_test", confidence, correct, classes, alpha, delta, seed)


def tested_within(
    owner: str,
    confidence: ArrayLike | RankedAnswers,
    correct: ArrayLike,
    classes: ArrayLike,
    within: ArrayLike,
    alpha: float,
    delta: float,
    seed: int,
    warned: bool = False,
) -> dict[str, Selection]:
    """The threshold of each group, each at its share of delta."""
    require_shares(owner, alpha=alpha, delta=delta)
    confidence, known = of_ranking(owner, "confidence", confidence)
    sure = on_host(confidence, owner, "confidence")
    names = classes_of(owner, "within", within)
    if names.shape != sure.shape:
        raise ValueError(f"{owner}: within has shape {names.shape}, expected {sure.shape}")
    right, of = as_flags(owner, "correct", correct, (len(sure),)), class_numbers(owner, "classes", classes, len(sure))
    groups, numbers = np.unique(names, return_inverse=True)
    share = delta / max(len(groups), 1)
    least, rows = fewest(alpha, share), [np.flatnonzero(numbers == i) for i in range(len(groups))]
    for group, some in zip(groups, rows, strict=True):
        if (count := len(np.unique(of[some]))) < least:
            shared = f" and delta shared by {len(groups)} groups" if len(groups) > 1 else ""
            raise ValueError(
                f"{owner}: within: group {str(group)!r} has {count} independent answers, expected at least {least} (at "
                f"alpha {alpha:g}{shared}); label more of it, or leave its queries out"
            )
    return {
        str(group): replace(tested(owner, sure[some], right[some], of[some], alpha, share, seed, warned), **known)
        for group, some in zip(groups, rows, strict=True)
    }


def tested(
    owner: str,
    confidence: ArrayLike | RankedAnswers,
    correct: ArrayLike,
    classes: ArrayLike,
    alpha: float,
    delta: float,
    seed: int,
    warned: bool = False,
) -> Selection:
    """The threshold of `learn_then_test`, called by an owner, who may have been told already of reversed scores."""
    seed = as_integer(owner, "seed", seed, *SEEDS)
    require_shares(owner, alpha=alpha, delta=delta)
    confidence, known = of_ranking(owner, "confidence", confidence)
    sure = as_numbers(owner, "confidence", confidence, above="no answer was found, or no threshold accepts it")
    sure = bounded(sure, _dtype_of(confidence))
    wrong = ~as_flags(owner, "correct", correct, (len(sure),))
    one = one_of_each(owner, "classes", classes, len(sure), seed)
    if len(one) < 2:
        raise ValueError(f"{owner}: classes name {len(one)} class, expected at least two")
    if wrong.all():
        right = "gallery_labels[ranking.ids[:, 0]] == labels"
        what = f"none of the {len(sure)} answers is right: expected correct of labels, not of rows, such as {right}"
        warn(f"{owner}: {what}")
    if not warned:
        warn_if_reversed(owner, "confidences", sure[one], ~wrong[one])
    one = one[np.argsort(-sure[one], kind="stable")]
    falling, errors = sure[one], np.cumsum(wrong[one])
    alike = np.searchsorted(-falling, -falling, side="right")  # how many are at least as sure as each
    log_factorial = _log_factorials(len(one))
    level, deepest = 0.0, 0
    for rank, share in _ranks(len(one), alpha, delta):
        level += share
        accepted = int(alike[rank - 1])
        most = int(errors[accepted - 1])
        if level and np.exp(_log_binomial(accepted, alpha, log_factorial, most)).sum() <= level:
            deepest = accepted
        else:
            level = 0.0
    if not deepest:
        missing = _missing(alike, errors[alike - 1], alpha, delta)
        return Selection(math.inf, float(alpha), float(delta), len(one), 0, 0, missing, **known)
    threshold = float(falling[-1]) if deepest == len(one) else _above(falling[deepest], confidence)
    return Selection(threshold, float(alpha), float(delta), len(one), deepest, int(errors[deepest - 1]), **known)


def limit_false_matches(
    scores: ArrayLike | RankedAnswers,
    alpha: float,
    delta: float = 0.1,
    groups: ArrayLike | None = None,
    each: Literal["one", "greatest"] = "one",
    seed: int = 0,
) -> FalseMatchLimit:
    """A threshold of scores at which at most a share alpha of searches without a mate return anything.

    With probability 1 - delta over the draw of the searches, whatever the distribution of scores: m of n are allowed to
    lie above the threshold, the largest m with P(Bin(n, alpha) <= m) <= delta, and the threshold lies just above the
    (m + 1)-th greatest score. (A tolerance limit without a distribution.)

    Parameters
    ----------
    scores
        [N]: the best score of each search whose subject is not in the gallery, higher = more similar, -inf where it
        found nothing. Or the ranking of these searches, [N, 1], longer where `normalise_scores` has put it in order:
        the threshold then refuses rankings of other scores.
    alpha
        In (0, 1): the share of such searches that may return anything, the false positive identification rate (FPIR).
    delta
        In (0, 1): the probability with which the threshold may break that.
    groups
        [N]: the person of each search, where a person has several; None where all are independent.
    each
        "one" search of each person, drawn at random, and the promise is of a new person's one search at random; or the
        "greatest" score of each person, and at most a share alpha of persons is ever returned a match by as many
        searches. To count all searches of a person as independent breaks the promise: at a correlation of .8, ten
        each, in 22 % of draws where 5 % were allowed.
    seed
        Which search of a person is taken.

    Returns
    -------
    FalseMatchLimit
        ``limit(scores)`` says which scores are matches, ``limit(ranking)`` takes the others away. Its threshold is inf
        with fewer than log(delta) / log(1 - alpha) searches (299 for 1 % and 5 %, 2995 for 0.1 % and 5 %); ``missing``
        says how many more it takes. ``pe.io.write_fit`` keeps it.

    Raises
    ------
    ValueError
        alpha or delta outside (0, 1), wrong shapes or dtypes, NaN, another `each`.

    Notes
    -----
    The promise is of the gallery that gave these scores; delta does not cover the draw of another one. If each part of
    the present size gives the present rate, a gallery n times as large has a rate of at most n alpha, whatever depends
    on what; 1 - (1 - alpha)^n where the parts are alike and independent given the search. Scores that are equal to the
    threshold's neighbour are refused with it: accepted from the (m + 1)-th score on, rounded scores would break the
    promise in 25 % of draws.

    References
    ----------
    Wilks, "Determination of Sample Sizes for Setting Tolerance Limits", 1941; ISO/IEC 19795-1 for FPIR.

    Examples
    --------
    >>> limit = pe.limit_false_matches(np.linspace(0, 1, 1001), alpha=0.01, delta=0.05)
    >>> round(limit.threshold, 3), limit.number, limit.allowed
    (0.996, 1001, 4)
    >>> limit([0.5, 0.999]).tolist()
    [False, True]
    """
    owner = "limit_false_matches"
    seed = as_integer(owner, "seed", seed, *SEEDS)
    require_shares(owner, alpha=alpha, delta=delta)
    if each not in ("one", "greatest"):
        raise ValueError(f"{owner}: each is {each!r}, expected 'one' or 'greatest'")
    scores, known = of_ranking(owner, "scores", scores)
    found = bounded(as_numbers(owner, "scores", scores), _dtype_of(scores))
    if groups is not None and each == "one":
        found = found[one_of_each(owner, "groups", groups, len(found), seed)]
    elif groups is not None:
        of = class_numbers(owner, "groups", groups, len(found))
        greatest = np.full(of.max() + 1, -math.inf)
        np.maximum.at(greatest, of, found)
        found = greatest
    n = len(found)
    tails = np.cumsum(np.exp(_log_binomial(n, alpha, _log_factorials(n))))
    allowed = int(np.searchsorted(tails, delta, side="right")) - 1
    threshold = math.inf if allowed < 0 else _above(np.sort(found)[n - 1 - allowed], scores)
    return FalseMatchLimit(threshold, float(alpha), float(delta), n, max(allowed, 0), **known)


def _missing(accepted: Array, wrong: Array, alpha: float, delta: float) -> int | None:
    """About how many more answers it takes if others are like these; None where no number will do.

    By Chernoff's bound k answers with a share r of wrong ones show that the risk is below alpha where
    k KL(r, alpha) >= log(1 / delta), with KL the divergence of two coins. They are the surest of k / coverage.
    """
    number = len(accepted)
    coverage, risk = accepted / number, wrong / accepted
    coverage, risk = (x[(coverage >= SUREST) & (risk < alpha)] for x in (coverage, risk))
    if not len(risk):
        return None
    with np.errstate(divide="ignore", invalid="ignore"):
        apart = np.where(risk > 0, risk * np.log(risk / alpha), 0) + (1 - risk) * np.log((1 - risk) / (1 - alpha))
        needed = float((math.log(1 / delta) / apart / coverage).min())
    least = fewest(alpha, delta) - number
    more = max(math.ceil(needed) - number, least if least > 0 else number / 4)  # these were not enough
    if more > REACH * number:
        return None
    digits = 10 ** max(math.floor(math.log10(more)) - 1, 0)
    return least if more == least else math.ceil(more / digits) * digits


# -- ranks and levels --------------------------------------------------------------------------------------------------


@lru_cache(maxsize=8)
def _ranks(n: int, alpha: float, delta: float) -> tuple[tuple[int, float], ...]:
    """The ranks that are tested, by falling confidence, and the level that is added at each.

    A rank at which no more wrong answers pass than at the one before is harder to pass than that; the next at which one
    more does takes its place. After the last such rank all are tested, up to the last answer: nothing comes after them
    that a failure could cost.
    """
    many = max(MANY, TIMES * fewest(alpha, delta / len(STARTS_OF_MANY)))
    starts = STARTS_OF_MANY if n >= many else STARTS_OF_FEW
    share = delta / len(starts)
    log_factorial = _log_factorials(n)

    def passes(k: int) -> int:
        """How many numbers of wrong answers, from 0 on, pass at rank k; below `least` is less than exp(-800)."""
        least, most = max(0, math.floor(k * alpha - 20 * k**0.5)), math.ceil(k * alpha + 40 + 4 * k**0.5)
        tails = np.cumsum(np.exp(_log_binomial(k, alpha, log_factorial, most, least)))
        return least + int(np.searchsorted(tails, share, side="right"))

    ends = [*(max(1, math.ceil(start * n)) for start in starts), n + 1]
    found, last, step = [], 0, fewest(alpha, share)
    for begin, end in itertools.pairwise(ends):
        added = share
        for k in np.unique(np.linspace(begin, n, RANKS).round().astype(int)).tolist():
            before, near = passes(k - 1), min(k + step, n)
            rank = bisect.bisect_right(range(near + 1), before, lo=k, key=passes)
            if near < rank <= n:
                rank = bisect.bisect_right(range(n + 1), before, lo=rank, key=passes)
            if last < rank < end:
                found.append((rank, added))
                last, added = rank, 0.0
    if found:
        latest = bisect.bisect_left(range(n + 1), passes(n), lo=1, key=passes)
        found += [(rank, 0.0) for rank in range(max(latest, last + 1), n + 1)]
    return tuple(found)


def _log_factorials(n: int) -> Array:
    """log 0!, ..., log n!."""
    return np.r_[0.0, np.cumsum(np.log(np.arange(1, n + 1)))]


def _log_binomial(n: int, p: float, log_factorial: Array, most: int | None = None, least: int = 0) -> Array:
    """log P(Bin(n, p) = k) for k = 0..n, or from the least up to the most that are asked for."""
    k = np.arange(least, n + 1 if most is None else min(n, most) + 1)
    return log_factorial[n] - log_factorial[k] - log_factorial[n - k] + k * math.log(p) + (n - k) * math.log1p(-p)


# -- what is given -----------------------------------------------------------------------------------------------------


def of_ranking(owner: str, name: str, x: Any) -> tuple[Any, dict[str, Any]]:
    """The best scores of a ranking, or those of all pairs of a `pe.RankingAbove`, and the terms of a threshold of them;
    other numbers as they are."""
    if not hasattr(x, "scores"):
        return x, {}
    pairs = hasattr(x, "offsets")
    if not pairs and (k := x.scores.shape[1]) != 1 and not getattr(x, "normalisation", ""):
        raise ValueError(f"{owner}: {name} is a ranking of {k}, expected one of the best answer of each query")
    known = {name: getattr(x, name) for name in ("normalisation", "dim", "gallery_size") if getattr(x, name, None)}
    known |= {"of": "pairs"} if pairs else {}
    score = getattr(x, "score", None)
    values = x.scores if pairs else x.scores[:, 0]
    return values, known if score is None else known | {"score": score.fingerprint}


def one_of_each(owner: str, name: str, classes: Array, length: int, seed: int) -> Array:
    """The row of one item of each class, drawn at random."""
    of = class_numbers(owner, name, classes, length)
    order = np.random.default_rng(seed).permutation(length)
    return order[np.unique(of[order], return_index=True)[1]]


def _above(value: float, like: Any) -> float:
    """The next greater number in the dtype in which numbers were given, so that it parts them in that dtype too."""
    dtype = _dtype_of(like)
    with np.errstate(over="ignore"):  # above the greatest is infinity, which accepts nothing
        return float(np.nextafter(dtype.type(value), dtype.type(math.inf)))


def _dtype_of(x: Any) -> np.dtype[Any]:
    """The floating-point dtype in which numbers were given; float64 where they are of another kind."""
    dtype = np.asarray(on_host(x, "thresholds", "values")).dtype
    return dtype if dtype.kind == "f" else np.dtype(np.float64)
