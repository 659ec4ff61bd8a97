"""Fits to held-out items: the probability of a match by its score, and the confidence from which to accept answers."""

from __future__ import annotations

import math
from typing import Any, Literal, NamedTuple

import numpy as np

from peaccel._utils.suggestions import require_classes
from peaccel.measures.fitted import IsotonicProbability, LogisticProbability, Selection
from peaccel.ops._array import Array, on_host

__all__ = ["ReliabilityCurve", "fit_match_probability", "learn_then_test", "reliability_curve"]

THRESHOLDS = 100  # how many thresholds are tested at most
LEARNING = 0.25  # share of the classes that determine the order in which thresholds are tested


def fit_match_probability(
    scores: Array, labels: Array, *confidences: Array, method: Literal["logistic", "isotonic"] = "logistic"
) -> LogisticProbability | IsotonicProbability:
    """The probability that a pair is of one identity, from its score and, logistic, from confidences.

    "logistic" is the likeliest 1 / (1 + exp(-(bias + weights . inputs))), with Platt's targets (n + 1) / (n + 2) and
    1 / (m + 2) for n same and m different pairs in place of 1 and 0: so it exists also where a score tells all pairs
    apart. "isotonic" is the likeliest function that never falls as the score rises. It takes 1000 pairs and more, and
    is 0 or 1 at its ends, where all pairs are of one kind: its logarithm need not be finite.

    Parameters
    ----------
    scores
        [P], any score, finite. Of held-out pairs, in the proportion of same to different in which pairs will come: of
        top-1 answers, for a probability that a top-1 answer is right. Other proportions shift the bias.
    labels
        [P] booleans (or 0 and 1): whether a pair is of one identity; some are and some are not.
    confidences
        [P] each, finite: what else is known of a pair, such as the confidence of its query and of its gallery item.
    method
        "logistic" or "isotonic", which takes the score alone.

    Returns
    -------
    LogisticProbability or IsotonicProbability
        ``p(scores, *confidences)`` are probabilities. ``pe.io.write_fit`` keeps it.

    Raises
    ------
    ValueError
        Another method, isotonic with confidences, wrong shapes or dtypes, NaN, labels of one kind only.

    References
    ----------
    Platt, "Probabilistic Outputs for Support Vector Machines", 1999; Zadrozny & Elkan, "Transforming Classifier Scores
    into Accurate Multiclass Probability Estimates", 2002, for isotonic regression.

    Examples
    --------
    >>> scores = np.array([-3.0, -2.0, -1.0, 0.0, 1.0, 2.0])
    >>> p = pe.fit_match_probability(scores, labels=[0, 0, 1, 0, 1, 1])
    >>> p([-2.5, 0.0, 2.5]).round(2).tolist()
    [0.26, 0.57, 0.83]
    """
    owner = "fit_match_probability"
    if method not in ("logistic", "isotonic"):
        raise ValueError(f"{owner}: method is {method!r}, expected 'logistic' or 'isotonic'")
    if method == "isotonic" and confidences:
        raise ValueError(f"{owner}: confidences are given, which isotonic does not take")
    inputs = [_numbers(owner, "scores", scores)]
    inputs += [_numbers(owner, "confidences", x, len(inputs[0])) for x in confidences]
    same = _booleans(owner, "labels", labels, len(inputs[0]))
    if same.all() or not same.any():
        raise ValueError(f"{owner}: labels name {same.sum()} same of {len(same)} pairs, expected some and not all")
    if method == "isotonic":
        return _isotonic(inputs[0], same)
    bias, *weights = _logistic(np.stack(inputs, 1), same)
    return LogisticProbability(float(bias), tuple(map(float, weights)))


class ReliabilityCurve(NamedTuple):
    """The points of a reliability plot.

    Attributes
    ----------
    predicted
        [B]: the mean probability in each bin.
    observed
        [B]: the share of same pairs in it.
    count
        [B]: how many pairs are in it.

    Examples
    --------
    >>> curve = pe.reliability_curve([0.1, 0.2, 0.8, 0.9], labels=[0, 1, 1, 1], bins=2)
    >>> [(round(p, 2), round(o, 2), n) for p, o, n in zip(*(x.tolist() for x in curve))]
    [(0.15, 0.5, 2), (0.85, 1.0, 2)]
    """

    predicted: Array
    observed: Array
    count: Array


def reliability_curve(probabilities: Array, labels: Array, bins: int = 10) -> ReliabilityCurve:
    """The points of a reliability plot: what was predicted against what was observed, in bins of as many pairs each.

    Parameters
    ----------
    probabilities
        [P], of pairs to which they were not fitted.
    labels
        [P] booleans (or 0 and 1): whether a pair is of one identity.
    bins
        At least 1. Pairs of one probability are in one bin, so that there may be fewer.

    Returns
    -------
    ReliabilityCurve
        On the diagonal, observed = predicted, where probabilities are calibrated; an observed share has a standard
        error of sqrt(observed (1 - observed) / count), more where pairs share items.

    Raises
    ------
    ValueError
        Wrong shapes or dtypes, probabilities outside [0, 1], no pair, bins below 1.

    Examples
    --------
    >>> predicted, observed, count = pe.reliability_curve([0.1, 0.2, 0.8, 0.9], labels=[0, 0, 0, 1], bins=2)
    >>> predicted.round(2).tolist(), observed.tolist(), count.tolist()
    ([0.15, 0.85], [0.0, 0.5], [2, 2])
    """
    owner = "reliability_curve"
    p = _numbers(owner, "probabilities", probabilities)
    same = _booleans(owner, "labels", labels, len(p))
    if not (p.min() >= 0 and p.max() <= 1):
        raise ValueError(f"{owner}: probabilities are {p.min():g} to {p.max():g}, expected 0 to 1")
    if isinstance(bins, bool) or not isinstance(bins, int) or bins < 1:
        raise ValueError(f"{owner}: bins is {bins!r}, expected an integer >= 1")
    edges = np.quantile(p, np.linspace(0, 1, bins + 1)[1:-1])
    number = np.searchsorted(np.unique(edges), p, side="left")
    count = np.bincount(number)
    full = count > 0
    sums = [np.bincount(number, x)[full] for x in (p, same)]
    return ReliabilityCurve(sums[0] / count[full], sums[1] / count[full], count[full])


def learn_then_test(
    confidence: Array, correct: Array, classes: Array, alpha: float, delta: float = 0.1, seed: int = 0
) -> Selection:
    """A threshold of confidence above which at most a share alpha of answers is wrong, with probability 1 - delta.

    Learn then Test, by fixed-sequence testing: a quarter of the classes, drawn at random, says which thresholds are
    tried and which first (that which would be surest); on the others thresholds are tested from there to looser ones,
    each for the hypothesis "more than alpha of what it accepts is wrong", which is refuted where the exact binomial
    probability of so few wrong answers is at most delta; the last before the first that fails is returned.

    Parameters
    ----------
    confidence
        [Q], higher is surer: of the top-1 answers to queries of held-out classes; `pe.confidence` of the queries, the
        score, the probability of `fit_match_probability`, ...
    correct
        [Q] booleans (or 0 and 1): whether the answer is right.
    classes
        [Q] integers: the class of each query. ``np.arange(Q)`` claims that all answers are independent.
    alpha
        In (0, 1): the share of accepted answers that may be wrong.
    delta
        In (0, 1): the probability with which the threshold may break that.
    seed
        Which classes are for which part, and which query of a class is tested.

    Returns
    -------
    Selection
        ``s(confidence)`` says which answers to accept. Its threshold is inf where none passed, as always with fewer
        than log(delta) / log(1 - alpha) classes tested. ``pe.io.write_fit`` keeps a finite one.

    Raises
    ------
    ValueError
        alpha or delta outside (0, 1), wrong shapes or dtypes, NaN, fewer than two classes.

    Notes
    -----
    Answers to queries of one class are right or wrong together. n answers in groups of m with a correlation of r tell
    no more than n / (1 + (m - 1) r) independent ones, and a binomial bound that counts all n is too narrow: with 100
    classes of 60 queries, as the tests simulate them, it breaks its promise in 19 % of draws where 5 % were allowed. So
    ONE query of each class is tested, drawn at random, and no class is in both parts; further queries of a class only
    help to put the thresholds in order. What buys certainty is the number of classes, not of queries.

    The guarantee is of queries drawn as these are: of a new class of the same population, and of its queries one at
    random (each class counts alike, not each query), against the gallery that gave these answers, or one drawn alike.
    It holds over the draw of classes; to look at several seeds or kinds of confidence and choose among them voids it.

    References
    ----------
    Angelopoulos, Bates, Candes, Jordan & Lei, "Learn then Test: Calibrating Predictive Algorithms to Achieve Risk
    Control", 2021, split fixed-sequence testing; Geifman & El-Yaniv, "Selective
    Classification for Deep Neural Networks", 2017, for binomial bounds; Kish, "Survey Sampling", 1965, for groups.

    Examples
    --------
    Answers of 400 classes, of which those below a confidence of 0.3 are wrong; at most 5 % may be:

    >>> confidence = np.linspace(0, 1, 400)
    >>> s = pe.learn_then_test(confidence, confidence > 0.3, np.arange(400), alpha=0.05)
    >>> round(s.threshold, 1), s.number, s.wrong
    (0.3, 300, 6)
    >>> s([0.1, 0.9]).tolist()
    [False, True]
    """
    owner = "learn_then_test"
    for name, value in (("alpha", alpha), ("delta", delta)):
        if not (isinstance(value, (int, float)) and 0 < value < 1):
            raise ValueError(f"{owner}: {name} is {value!r}, expected a number between 0 and 1")
    sure = _numbers(owner, "confidence", confidence)
    wrong = ~_booleans(owner, "correct", correct, len(sure))
    names = on_host(owner, "classes", classes)
    if names.shape != sure.shape:
        raise ValueError(f"{owner}: classes have shape {names.shape}, expected ({len(sure)},) like confidence")
    require_classes(owner, "classes", names)
    _, of = np.unique(names, return_inverse=True)
    number = int(of.max()) + 1
    if number < 2:
        raise ValueError(f"{owner}: classes name {number} class, expected at least two")
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(sure))
    one = order[np.unique(of[order], return_index=True)[1]]  # a query of each class, at random
    learning = np.zeros(number, bool)
    learning[rng.permutation(number)[: max(1, int(LEARNING * number))]] = True
    tested = one[~learning]

    mine = learning[of]
    thresholds = np.unique(np.quantile(sure[mine], np.linspace(0, 1, THRESHOLDS), method="lower"))[::-1]
    accepted, failed = _counts(sure[mine], wrong[mine], thresholds)
    # Counts of the learning part are scaled to the number of answers that will be tested.
    share = len(tested) / mine.sum()
    expected = [
        _binomial_tail(round(share * n), math.ceil(share * k), alpha) for n, k in zip(accepted, failed, strict=True)
    ]
    thresholds = thresholds[int(np.argmin(expected)) :]

    found = Selection(math.inf, float(alpha), float(delta), len(tested), 0, 0)
    for threshold, n, k in zip(thresholds, *_counts(sure[tested], wrong[tested], thresholds), strict=True):
        if _binomial_tail(n, k, alpha) > delta:
            break
        found = Selection(float(threshold), float(alpha), float(delta), len(tested), int(n), int(k))
    return found


# -- what is fitted ----------------------------------------------------------------------------------------------------


def _logistic(inputs: Array, same: Array) -> Array:
    """Bias and weights by Newton's method; the loss is convex."""
    middle, width = inputs.mean(0), inputs.std(0)
    width = np.where(width > 0, width, 1.0)
    x = np.c_[np.ones(len(inputs)), (inputs - middle) / width]
    targets = np.where(same, (same.sum() + 1) / (same.sum() + 2), 1 / ((~same).sum() + 2))

    def loss(w: Array) -> float:
        logit = x @ w
        return float((np.logaddexp(0, logit) - targets * logit).mean())

    w = np.zeros(x.shape[1])
    value = loss(w)
    for _ in range(100):
        p = np.exp(-np.logaddexp(0, -(x @ w)))
        slope = x.T @ (p - targets)
        # Where inputs are collinear, least squares gives the shortest step.
        step = np.linalg.lstsq((x.T * (p * (1 - p))) @ x, slope, rcond=1e-12)[0]
        while (new := loss(w - step)) > value and abs(step).max() > 1e-12:
            step /= 2
        if not new < value:
            break
        w, value = w - step, new
    weights = w[1:] / width
    return np.r_[w[0] - weights @ middle, weights]


def _isotonic(scores: Array, same: Array) -> IsotonicProbability:
    """The isotonic fit by pooling adjacent violators: neighbours out of order become one block with their mean."""
    values, of = np.unique(scores, return_inverse=True)
    sums, counts = np.bincount(of, same), np.bincount(of)
    blocks: list[tuple[float, int, int, int]] = []  # sum, count, first and last value
    for i, (total, count) in enumerate(zip(sums.tolist(), counts.tolist(), strict=True)):
        block = (total, count, i, i)
        while blocks and blocks[-1][0] * block[1] >= block[0] * blocks[-1][1]:
            last = blocks.pop()
            block = (last[0] + block[0], last[1] + block[1], last[2], block[3])
        blocks.append(block)
    points = [(i, total / count) for total, count, first, last in blocks for i in dict.fromkeys((first, last))]
    return IsotonicProbability(tuple(float(values[i]) for i, _ in points), tuple(p for _, p in points))


def _counts(sure: Array, wrong: Array, thresholds: Array) -> tuple[Array, Array]:
    """How many answers are at least as confident as each threshold, and how many of these are wrong."""
    order = np.argsort(-sure, kind="stable")
    accepted = np.searchsorted(-sure[order], -thresholds, side="right")
    return accepted, np.r_[0, np.cumsum(wrong[order])][accepted]


def _binomial_tail(n: int, k: int, p: float) -> float:
    """P(Bin(n, p) <= k), as the sum of its terms; 1 for n = 0."""
    j = np.arange(min(k, n) + 1)
    log_factorial = np.r_[0.0, np.cumsum(np.log(np.arange(1, n + 1)))]
    terms = log_factorial[n] - log_factorial[j] - log_factorial[n - j] + j * math.log(p) + (n - j) * math.log1p(-p)
    return min(float(np.exp(terms).sum()), 1.0)


# -- what is given -----------------------------------------------------------------------------------------------------


def _numbers(owner: str, name: str, x: Any, length: int | None = None) -> Array:
    """[P] finite numbers as float64, at least one."""
    found = on_host(owner, name, x)
    if found.ndim != 1 or found.dtype.kind not in "fiu" or not len(found) or length not in (None, len(found)):
        expected = f"({'P' if length is None else length},)"
        raise ValueError(
            f"{owner}: {name} have shape {found.shape} and dtype {found.dtype}, expected numbers {expected}"
        )
    found = found.astype(np.float64)
    if not np.isfinite(found).all():
        raise ValueError(f"{owner}: {name} are not finite in place {int(np.argmin(np.isfinite(found)))}")
    return found


def _booleans(owner: str, name: str, x: Any, length: int) -> Array:
    found = on_host(owner, name, x)
    if found.shape != (length,) or not (found.dtype.kind in "biu" and ((found == 0) | (found == 1)).all()):
        what = f"shape {found.shape} and dtype {found.dtype}"
        raise ValueError(f"{owner}: {name} have {what}, expected booleans ({length},)")
    return found.astype(bool)
