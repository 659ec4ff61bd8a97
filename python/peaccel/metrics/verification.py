"""Verification: pairs are accepted as of one class where their score is at least a threshold.

Scores are [N], higher = more alike; `same` is [N], 1 or True where the pair is of one class. Both are arrays, lists,
columns of tables or tensors on the CPU. The order of the pairs does not matter, and pairs of equal scores are accepted
or rejected together. An infinite score counts as the greatest number of its dtype, or the least; a threshold is such
that ``scores >= threshold`` accepts what is counted here, of infinite scores too, or NaN where no number is.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from peaccel._utils.arrays import bounded
from peaccel._utils.numbers import array_of, as_classes, as_flags, as_ranks, require_length
from peaccel._utils.suggestions import unknown
from peaccel._utils.warn import warn
from peaccel.metrics._draws import percentiles, require_draws

__all__ = ["TarAtFar", "best_threshold", "roc_auc", "tar_at_far", "verification_accuracy"]

Array = NDArray[Any]

SURPRISING, REVERSED = 4, 0.45
"""Scores look reversed where their AUC lies below one half by so many standard deviations of scores that say nothing,
and below a bound that many pairs of few items, whose deviations are larger, hardly reach by chance."""


@dataclass(frozen=True)
class TarAtFar:
    """Share of accepted pairs of one class (TAR) at a wished share of accepted pairs of two classes (FAR).

    The intervals are percentiles of a bootstrap that draws pairs of one class and of two classes apart, and finds the
    threshold anew in each draw. It takes pairs for independent: where they share items, intervals are too narrow.

    Examples
    --------
    Four pairs of one class and four of two. Of four pairs a share of 0.3 is one, so that 0.25 is attained, and so few
    pairs leave the TAR uncertain:

    >>> same = [1, 1, 1, 1, 0, 0, 0, 0]
    >>> found = pe.metrics.tar_at_far([0.9, 0.8, 0.7, 0.3, 0.6, 0.5, 0.2, 0.1], same, far=0.3)
    >>> found.far, found.attained_far, found.threshold
    (0.3, 0.25, 0.6)
    >>> found.tar, found.tar_interval
    (0.75, (0.25, 1.0))
    """

    far: float
    """The FAR that was asked for."""
    attained_far: float
    """FAR of these pairs at the threshold: `far` rounded to a number of pairs, and less among equal scores."""
    attained_far_interval: tuple[float, float]
    """FAR of these pairs at the thresholds of the draws: in which that of this threshold on new pairs is expected."""
    tar: float
    tar_interval: tuple[float, float]
    threshold: float
    """Pairs are accepted where score >= threshold, in the dtype of the scores."""
    threshold_interval: tuple[float, float]


def best_threshold(scores: ArrayLike, same: ArrayLike, by: Literal["accuracy", "f1", "mcc"] = "accuracy") -> float:
    """Threshold that decides pairs best: score >= threshold exactly where `same`.

    The answer may be used on other pairs, and for confidences and right answers in place of scores and `same`. Of n
    pairs, tp are accepted rightly, fp wrongly, fn rejected wrongly and tn rightly.

    ========  ==========================================================================================
    by        is greatest
    ========  ==========================================================================================
    accuracy  (tp + tn) / n
    f1        2 tp / (2 tp + fp + fn), the harmonic mean of precision and recall; 0 where tp is
    mcc       (tp tn - fp fn) / sqrt((tp + fp) (tp + fn) (tn + fp) (tn + fn)), Matthews' correlation; 0
              where a factor is
    ========  ==========================================================================================

    Where few pairs are of one class, to reject nearly all of them has a high accuracy; F1 and Matthews' correlation
    are not so misled.

    Parameters
    ----------
    scores
        [N].
    same
        [N] 0 or 1; may be of one class.
    by
        A name of the table.

    Returns
    -------
    One of the scores, the highest of several that are as good; infinity where it is best to reject all, which no number
    does if a score is infinite, minus infinity where it is best to accept all.

    Warns
    -----
    UserWarning
        Scores look reversed, as distances are: their AUC is below 0.45, and below one half by more than 4 standard
        deviations of independent scores that say nothing, which happens to one set of such in 30,000.

    Raises
    ------
    ValueError
        Lengths differ, there is no pair, a score is NaN, `same` has another number than 0 and 1, or an unknown `by`.

    Examples
    --------
    At 0.6 both pairs of one class are accepted, and both of two are rejected:

    >>> pe.metrics.best_threshold([0.9, 0.6, 0.4, 0.1], same=[1, 1, 0, 0])
    0.6

    Of rare matches it may decide most pairs rightly to reject all, and find none:

    >>> scores, same = [0.9, 0.8, 0.7, 0.3, 0.2, 0.1], [0, 1, 0, 0, 0, 0]
    >>> pe.metrics.best_threshold(scores, same), pe.metrics.best_threshold(scores, same, by="f1")
    (inf, 0.8)

    Where all are of one class it is best to accept all:

    >>> pe.metrics.best_threshold([0.9, 0.6], same=[1, 1])
    -inf
    """
    owner = "best_threshold"
    if by not in CRITERIA:
        raise ValueError(f"{owner}: {unknown('by', by, CRITERIA)}")
    numbers, flags = as_ranks(owner, "scores", scores), as_flags(owner, "same", same)
    require_length(owner, "same", flags, "scores", numbers)
    warn_if_reversed(owner, "scores", numbers, flags)
    rejectable = not np.isposinf(array_of(owner, "scores", scores, "(N,)", np.float64)).any()
    return as_threshold(best_of(numbers, flags, by, rejectable)[0], scores)


def verification_accuracy(
    scores: ArrayLike, same: ArrayLike, threshold: float | None = None, *, folds: int | ArrayLike | None = None
) -> float:
    """Share of pairs that are decided rightly.

    Parameters
    ----------
    scores, same
        As the module's docstring says.
    threshold
        None = the best for these very pairs, as published; `best_threshold` of other pairs makes a fair one.
    folds
        In place of a threshold, [N], the fold of each pair, or how many folds of equal length they lie in, one after
        the other: each fold is decided by the best threshold of the others. LFW's protocol has 10, in the order of its
        pairs.txt.

    Returns
    -------
    In [0, 1]; without a threshold at least the share of the larger class; with folds the mean over folds.

    Raises
    ------
    ValueError
        Lengths differ, a score is NaN, `same` has one class or another number than 0 and 1, the threshold is
        NaN, or is given beside folds, or there are fewer than two folds or fewer pairs than folds.

    References
    ----------
    Karpukhin et al., Probabilistic Embeddings Revisited, 2022, section 4.2; Huang et al., Labeled Faces in the Wild,
    2007 (folds).

    Examples
    --------
    The best threshold, 0.9, decides all pairs rightly but the second. Higher is better:

    >>> scores, same = [0.9, 0.6, 0.7, 0.1], [1, 1, 0, 0]
    >>> pe.metrics.verification_accuracy(scores, same)
    0.75

    A threshold from other pairs rejects the second wrongly and accepts the third wrongly:

    >>> pe.metrics.verification_accuracy(scores, same, threshold=0.65)
    0.5

    Two folds, each decided by the threshold of the other, 0.7 and 0.8:

    >>> round(pe.metrics.verification_accuracy([0.9, 0.6, 0.8, 0.7, 0.1, 0.65], [1, 0, 1, 1, 0, 0], folds=2), 2)
    0.83
    """
    owner = "verification_accuracy"
    numbers, flags = as_pairs(owner, scores, same)
    warn_if_reversed(owner, "scores", numbers, flags)
    if folds is None:
        return accuracy(owner, numbers, flags, threshold)
    if threshold is not None:
        raise ValueError(f"{owner}: threshold is given beside folds, which find theirs, expected one of them")
    fold = _folds(owner, folds, numbers)
    shares = []
    for number in range(fold.max() + 1):
        mine = fold == number
        of_others, _ = best_of(numbers[~mine], flags[~mine])
        shares.append(((numbers[mine] >= of_others) == flags[mine]).mean())
    return float(np.mean(shares))


def roc_auc(scores: ArrayLike, same: ArrayLike) -> float:
    """Probability that a pair of one class has a higher score than one of two classes, half where they are equal.

    Parameters
    ----------
    scores, same
        As the module's docstring says.

    Returns
    -------
    In [0, 1]; 1/2 where all scores are equal.

    Raises
    ------
    ValueError
        Lengths differ, a score is NaN, or `same` has one class or another number than 0 and 1.

    Warns
    -----
    UserWarning
        Scores look reversed, as for `best_threshold`.

    Examples
    --------
    Of the four times that a pair of one class meets one of two, only 0.6 and 0.7 are in the wrong order. Higher is
    better:

    >>> pe.metrics.roc_auc([0.9, 0.6, 0.7, 0.1], same=[1, 1, 0, 0])
    0.75
    """
    numbers, flags = as_pairs("roc_auc", scores, same)
    warn_if_reversed("roc_auc", "scores", numbers, flags)
    return auroc(numbers, flags)


def tar_at_far(
    scores: ArrayLike, same: ArrayLike, far: float, *, resamples: int = 2000, level: float = 0.95, seed: int = 0
) -> TarAtFar:
    """Share of pairs of one class that are accepted where of pairs of two classes only a share `far` is.

    The threshold is the lowest of all scores that accepts at most this share, as that of `OpenSet.at_fpir`: the rate
    that is asked for is never exceeded, equal scores are accepted together or not at all. Where no score is above those
    that must be rejected, it is the next number above these. (The published threshold is the k-th largest score of two
    classes, k = round(N far), and accepts all that equal it.)

    Parameters
    ----------
    scores, same
        As the module's docstring says.
    far
        Wished false acceptance rate, in [0, 1].
    resamples
        How many draws the intervals are of, at least 1.
    level
        Share of the draws within the intervals, in (0, 1).
    seed
        Seed of the draws.

    Returns
    -------
    The rates, the threshold and their intervals, which are wide where N far is small. The threshold is NaN where an
    infinite score is to be rejected, which no number does.

    Warns
    -----
    UserWarning
        Scores look reversed, as for `best_threshold`.

    Raises
    ------
    ValueError
        As for `equal_error_rate`, or an argument is out of range.

    References
    ----------
    Kail et al., ScaleFace, 2022, section 3.4: TAR@FAR.

    Examples
    --------
    One of four pairs of two classes may be accepted, the one with 0.6. Then three of four of one class are too. Higher
    is better:

    >>> scores, same = [0.9, 0.8, 0.7, 0.3, 0.6, 0.5, 0.2, 0.1], [1, 1, 1, 1, 0, 0, 0, 0]
    >>> found = pe.metrics.tar_at_far(scores, same, far=0.25)
    >>> found.tar, found.threshold
    (0.75, 0.6)
    """
    owner = "tar_at_far"
    dtype = array_of(owner, "scores", scores, "(N,)").dtype.newbyteorder("=")
    numbers, flags = as_pairs(owner, scores, same)
    far = as_far(owner, far)
    require_draws(owner, resamples, level, seed)
    warn_if_reversed(owner, "scores", numbers, flags)
    rejected, accepted = np.sort(numbers[~flags])[::-1], np.sort(numbers[flags])
    n, k = len(rejected), most_at(far, len(rejected))
    levels = np.append(rejected, -np.inf)  # of places; what lies above the level of place k may be accepted
    found = at_far(numbers, flags, far, dtype)

    # The (k + 1)-th largest of a draw of N of N is the score whose place is the (k + 1)-th smallest of N uniform
    # numbers, and how many of the others a draw accepts is binomial: neither needs the draw itself.
    rng = np.random.default_rng(seed)
    places = np.minimum((rng.beta(k + 1, n - k, resamples) * n).astype(np.int64), n - 1) if k < n else [n] * resamples
    drawn = lowest_above(np.sort(numbers), levels[places], dtype)
    tars = rng.binomial(len(accepted), above(accepted, drawn) / len(accepted)) / len(accepted)

    def far_at(threshold: Array) -> Array:
        return above(rejected[::-1], threshold) / n

    return TarAtFar(
        far=far,
        attained_far=found.attained_far,
        attained_far_interval=percentiles(far_at(drawn), level),
        tar=found.tar,
        tar_interval=percentiles(tars, level),
        threshold=as_threshold(found.threshold, scores),
        threshold_interval=percentiles(drawn, level),
    )


def _folds(owner: str, folds: int | ArrayLike, scores: Array) -> Array:
    """[N], the number of each pair's fold, from names or of parts one after the other."""
    if np.ndim(folds):
        names = as_classes(owner, "folds", folds)
        require_length(owner, "folds", names, "scores", scores)
        of = np.unique(names, return_inverse=True)[1]
    elif isinstance(folds, int | np.integer) and 2 <= folds <= len(scores):
        of = np.repeat(np.arange(folds), [len(part) for part in np.array_split(scores, folds)])
    else:
        raise ValueError(f"{owner}: folds is {folds!r}, expected an integer from 2 to the {len(scores)} pairs, or [N]")
    if of.max() < 1:
        raise ValueError(f"{owner}: folds are all alike, expected at least two")
    return np.asarray(of)


class AtFar(NamedTuple):
    """The threshold at a FAR, and the rates of these pairs there."""

    threshold: float
    tar: float
    attained_far: float


def at_far(scores: Array, same: Array, far: float, dtype: Any = np.float64) -> AtFar:
    """The lowest of the scores, which are of a dtype, that accepts at most a share of the pairs of two classes."""
    rejected, accepted = np.sort(scores[~same]), np.sort(scores[same])
    levels = np.append(rejected[::-1], -np.inf)
    threshold = lowest_above(np.sort(scores), levels[[most_at(far, len(rejected))]], dtype)
    rates = (float(above(kind, threshold)[0] / len(kind)) for kind in (accepted, rejected))
    return AtFar(float(threshold[0]), *rates)


def as_far(owner: str, far: float) -> float:
    """The false acceptance rate after checks."""
    if not 0 <= far <= 1:
        raise ValueError(f"{owner}: far is {far}, expected [0, 1]")
    return float(far)


def most_at(rate: float, n: Any) -> Any:
    """The greatest k with k / n <= rate, of a number n or of several, for rates that are not to be exceeded."""
    k = np.minimum(np.floor(n * rate).astype(np.int64) + 1, n)  # one more, as the product may be rounded down
    return k - (k / n > rate)


def lowest_above(ascending: Array, level: Array, dtype: Any) -> Array:
    """The lowest of the scores above each level; where there is none the next number above it, in the scores' dtype, so
    that it parts them there too."""
    unit = dtype if dtype in (np.float16, np.float32) else np.float64
    place = np.searchsorted(ascending, level, side="right")
    with np.errstate(over="ignore"):  # above the greatest number is infinity, which nothing reaches
        beyond = np.nextafter(level.astype(unit), np.inf, dtype=unit).astype(np.float64)
    return np.where(place < len(ascending), ascending[np.minimum(place, len(ascending) - 1)], beyond)


def above(ascending: Array, threshold: Array) -> Array:
    """How many of the scores are at least each threshold."""
    return np.asarray(len(ascending) - np.searchsorted(ascending, threshold))


def auroc(scores: Array, positive: Array) -> float:
    """Area under the ROC curve of scores that may be infinite; correctly rounded, as the pairs won are counted."""
    negative, won = np.sort(scores[~positive]), scores[positive]
    twice = np.searchsorted(negative, won, side="left").sum() + np.searchsorted(negative, won, side="right").sum()
    return int(twice) / (2 * len(negative) * len(won))


def warn_if_reversed(owner: str, name: str, scores: Array, positive: Array) -> bool:
    """Say that scores look like distances: their AUC is below one half by more than chance (Mann & Whitney, 1947)."""
    if (area := area_of_reversed(scores, positive)) is not None:
        what = f"their AUC is {area:.3f}, below one half by more than chance; expected higher = more similar, or surer"
        warn(f"{owner}: {name} look reversed, as distances are: {what}")
    return area is not None


def area_of_reversed(scores: Array, positive: Array) -> float | None:
    """The AUC where it is below one half by more than chance, else None."""
    count, won = len(scores), int(positive.sum())
    if not 0 < won < count:
        return None
    area = auroc(scores, positive)
    chance = 0.5 - SURPRISING * math.sqrt((count + 1) / (12 * won * (count - won)))
    return area if area < min(chance, REVERSED) else None


def as_threshold(threshold: float, scores: ArrayLike) -> float:
    """A threshold of scores in which infinite ones counted as the greatest or least number, as it parts these."""
    raw = array_of("as_threshold", "scores", scores, "(N,)")
    infinite = np.isinf(raw.astype(np.float64))
    if threshold == math.inf:
        return math.nan if (infinite & (raw > 0)).any() else threshold
    least = bounded(np.array(-math.inf), raw.dtype)
    return -math.inf if threshold == least and (infinite & (raw < 0)).any() else threshold


def accuracy(owner: str, scores: Array, positive: Array, threshold: float | None) -> float:
    """Share of pairs that a threshold decides rightly, by default the best one."""
    if threshold is None:
        return best_of(scores, positive)[1]
    if np.isnan(threshold):
        raise ValueError(f"{owner}: threshold is NaN, expected a number")
    return float(((scores >= threshold) == positive).mean())


def _accuracy(tp: Array, fp: Array, matches: int, others: int) -> Array:
    return np.asarray((tp + others - fp) / (matches + others))


def _f1(tp: Array, fp: Array, matches: int, others: int) -> Array:
    return np.asarray(2 * tp / np.maximum(tp + fp + matches, 1))


def _mcc(tp: Array, fp: Array, matches: int, others: int) -> Array:
    product = np.sqrt(tp + fp) * np.sqrt(matches + others - tp - fp) * math.sqrt(matches) * math.sqrt(others)
    return np.asarray((tp * (others - fp) - fp * (matches - tp)) / np.where(product > 0, product, 1))


CRITERIA: dict[str, Callable[[Array, Array, int, int], Array]] = {"accuracy": _accuracy, "f1": _f1, "mcc": _mcc}
"""By name, how good it is to accept tp of the matches and fp of the others."""


def best_of(scores: Array, positive: Array, by: str = "accuracy", rejectable: bool = True) -> tuple[float, float]:
    """The best threshold, infinity among them where all pairs can be rejected, and how good it is."""
    accepted, right = (np.concatenate([[0], count]) for count in accepted_counts(scores, positive))
    good = CRITERIA[by](right, accepted - right, int(positive.sum()), int((~positive).sum()))
    good = good if rejectable else good[1:]
    best = int((good >= good.max() - 1e-12).argmax())  # equal ones differ by rounding
    levels = np.concatenate([[np.inf], np.unique(scores)[:0:-1], [-np.inf]])[not rejectable :]
    return float(levels[best]), float(good[best])


def as_pairs(owner: str, scores: ArrayLike, same: ArrayLike, **reasons: str) -> tuple[Array, Array]:
    """The pairs after checks, some of one class and some of two."""
    numbers, flags = as_ranks(owner, "scores", scores, **reasons), as_flags(owner, "same", same)
    require_length(owner, "same", flags, "scores", numbers)
    if flags.all() or not flags.any():
        raise ValueError(f"{owner}: same is {flags[0]} for all {len(flags)} pairs, expected both")
    return numbers, flags


def rates_over(scores: Array, same: Array) -> tuple[Array, Array, Array]:
    """The different scores, highest first and infinity before them, with FAR and TAR at each of these thresholds."""
    accepted, right = accepted_counts(scores, same)
    far, tar = (np.concatenate([[0], count]) / count[-1] for count in (accepted - right, right))
    return np.concatenate([[np.inf], np.unique(scores)[::-1]]), far, tar


def accepted_counts(scores: Array, same: Array) -> tuple[Array, Array]:
    """How many pairs have at least each of the different scores, highest first, and how many of them are positive."""
    levels, place = np.unique(-scores, return_inverse=True)
    count = np.bincount(place, minlength=len(levels)).cumsum()
    return count, np.bincount(place[same], minlength=len(levels)).cumsum()
