"""The probability that a pair matches, fitted to the scores of labelled pairs."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from peaccel._utils.arrays import Array, bounded, quiet
from peaccel._utils.numbers import as_flags, as_numbers, require_length
from peaccel.fits.records import IsotonicProbability, LogisticProbability

__all__ = ["fit_match_probability"]


@quiet
def fit_match_probability(
    scores: ArrayLike, labels: ArrayLike, *confidences: ArrayLike, method: Literal["logistic", "isotonic"] = "logistic"
) -> LogisticProbability | IsotonicProbability:
    """The probability that a pair is of one identity, from its score and, logistic, from confidences.

    "logistic" is the likeliest 1 / (1 + exp(-(bias + weights . inputs))), with Platt's targets (n + 1) / (n + 2) and
    1 / (m + 2) for n same and m different pairs in place of 1 and 0: so it exists also where a score tells all pairs
    apart. "isotonic" is the likeliest function that never falls as the score rises. It takes 1000 pairs and more, and
    is 0 or 1 at its ends, where all pairs are of one kind: its logarithm need not be finite.

    Parameters
    ----------
    scores
        [P], any score, finite for "logistic". Of held-out pairs, drawn as pairs will come: top-1 answers, for a
        probability that a top-1 answer is right. Where another share matches, ``p(scores, prior=share)`` says so.
    labels
        [P] booleans (or 0 and 1): whether a pair is of one identity; some are and some are not.
    confidences
        [P] each, finite: what else is known of a pair, such as the confidence of its query and of its gallery item.
    method
        "logistic" or "isotonic", which takes the score alone.

    Returns
    -------
    LogisticProbability or IsotonicProbability
        ``p(scores, *confidences)`` are probabilities, ``p.log_likelihood_ratio(scores)`` what they say at any share of
        matches. ``pe.io.write_fit`` keeps it.

    Raises
    ------
    ValueError
        Another method, isotonic with confidences, wrong shapes or dtypes, NaN, infinite numbers for "logistic", labels
        of one kind only.

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
    reason = "a logistic function computes with their size" if method == "logistic" else ""
    inputs = [as_numbers(owner, "scores", scores, finite=reason)]
    inputs += [as_numbers(owner, "confidences", x, finite=reason) for x in confidences]
    for x in inputs[1:]:
        require_length(owner, "confidences", x, "scores", inputs[0])
    same = as_flags(owner, "labels", labels, (len(inputs[0]),))
    if same.all() or not same.any():
        raise ValueError(f"{owner}: labels name {same.sum()} same of {len(same)} pairs, expected some and not all")
    if method == "isotonic":
        return _isotonic(bounded(inputs[0]), same)
    for name, x in zip(("scores", *["confidences"] * len(confidences)), inputs, strict=True):
        if not (np.ptp(x) == 0 or 1e-150 < np.ptp(x) < 1e150):
            raise ValueError(f"{owner}: {name} span {np.ptp(x):g}, expected 0, or 1e-150 to 1e150")
    bias, *weights = _logistic(np.stack(inputs, 1), same)
    return LogisticProbability(float(bias), tuple(map(float, weights)), prior=float(same.mean()))


def _logistic(inputs: Array, same: Array) -> Array:
    """Bias and weights by Newton's method; the loss is convex."""
    middle, width = inputs.mean(0), inputs.std(0)
    width = np.where(np.ptp(inputs, 0) > 0, width, 1.0)  # of equal inputs it is their mean's rounding
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
    """The isotonic fit by pooling adjacent violators: neighbours out of order become one block with their mean.

    Whole runs of them are pooled at once as long as that leaves half of the blocks; of the rest one after the other.
    """
    values, of = np.unique(scores, return_inverse=True)
    sums, counts, starts = np.bincount(of, same), np.bincount(of), np.arange(len(values))
    while True:
        risen = np.flatnonzero(np.r_[True, sums[:-1] * counts[1:] < sums[1:] * counts[:-1]])
        many = 2 * len(risen) > len(starts)
        sums, counts, starts = np.add.reduceat(sums, risen), np.add.reduceat(counts, risen), starts[risen]
        if many:
            break
    ends = np.r_[starts[1:], len(values)] - 1
    blocks: list[tuple[float, int, int, int]] = []  # sum, count, first and last value
    for pooled in zip(sums.tolist(), counts.tolist(), starts.tolist(), ends.tolist(), strict=True):
        block = pooled
        while blocks and blocks[-1][0] * block[1] >= block[0] * blocks[-1][1]:
            last = blocks.pop()
            block = (last[0] + block[0], last[1] + block[1], last[2], block[3])
        blocks.append(block)
    points = [(i, total / count) for total, count, first, last in blocks for i in dict.fromkeys((first, last))]
    return IsotonicProbability(
        tuple(float(values[i]) for i, _ in points), tuple(p for _, p in points), float(same.mean())
    )
