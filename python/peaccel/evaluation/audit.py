"""`pe.audit`: items of a labelled gallery that harm searches, and the gain if they go."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from peaccel import scores
from peaccel._utils.arrays import on_host
from peaccel._utils.atomic_files import PathLike
from peaccel._utils.labels import classes_of
from peaccel._utils.seeds import SEEDS, as_integer
from peaccel.distributions import Distribution
from peaccel.evaluation.answers import BLOCK, of_pairs, require_items, require_sides
from peaccel.evaluation.drawn_pairs import verification_pairs
from peaccel.evaluation.formatting import save_json
from peaccel.evaluation.intervals import Interval, Resamples
from peaccel.fits.fit_match_probability import fit_match_probability
from peaccel.io._array_files import write_text
from peaccel.io._text_columns import csv_text
from peaccel.metrics._judged_ranking import drop_self
from peaccel.metrics.equal_error_rate import equal_error_rate
from peaccel.retrieval.prepared import prepare
from peaccel.retrieval.verbs import pairwise, search
from peaccel.scores import Score

__all__ = ["AuditedItem", "GalleryAudit", "audit"]

WRONG = 0.01
"""Share of labels that are expected to be wrong."""
GREAT = 500.0
"""Log likelihood ratios beyond this are as sure."""
CHANCE = 0.01
"""Probability that any item is called a hub by chance."""
NONE = Interval(np.nan, np.nan, np.nan)
REASONS = {
    "no direction": "the mean is zero or not finite, or the uncertainty NaN",
    "copy": "equal to an item of a lower row",
    "label": "probably of another class",
    "stranger": "resembles neither its class nor another one",
    "hub": "the best match of many items of other classes",
}


@dataclass(frozen=True)
class AuditedItem:
    """An item that should be looked at."""

    row: int
    label: str
    reasons: tuple[str, ...]
    """Some of "no direction", "copy", "label", "stranger" and "hub"."""
    resembles: str
    """The class that it resembles most, or the row that it copies; empty where it has no direction."""
    probability: float
    """Probability that it is of its class, if 1 % of labels are wrong; NaN where it is alone or a copy."""
    wrong_first: int
    """How many items of other classes it is the best match of."""


@dataclass(frozen=True)
class GalleryAudit:
    """Result of `audit`; prints as a table.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> labels = np.arange(300) // 10
    >>> mu = rng.normal(size=(30, 32))[labels] + 0.7 * rng.normal(size=(300, 32))
    >>> labels[17] = 9  # it was 1
    >>> found = pe.audit(pe.Point(mu), labels)
    >>> [(item.row, item.reasons, item.resembles) for item in found.items]
    [(17, ('label',), '1')]
    """

    items: tuple[AuditedItem, ...]
    """The items to look at, by row."""
    keep: tuple[bool, ...]
    """Of each row whether it is kept."""
    typical: tuple[int, ...]
    """Of each row its place in its class, 1 the item that resembles the others most; 0 of one that is not kept."""
    score: str
    queries: int
    """Kept items whose class has others that are kept; recall is of these."""
    recall_before: Interval
    """Recall@1 of these, each searched in all others, copies apart."""
    recall_after: Interval
    """Recall@1 of these in the kept items."""
    recall_gain: Interval
    """The difference."""
    error_before: Interval
    """Equal error rate of pairs of a kept item and any other."""
    error_after: Interval
    """Equal error rate of pairs of kept items."""
    seed: int

    def __str__(self) -> str:
        """The counts, the gain, and the first items."""
        counts = {reason: sum(reason in item.reasons for item in self.items) for reason in REASONS}
        lines = [
            f"{len(self.items)} of {len(self.keep)} items should be looked at, {len(self.keep) - sum(self.keep)} of "
            f"them left out ({self.score}, seed {self.seed})",
            *(f"  {count} {reason}: {REASONS[reason]}" for reason, count in counts.items() if count),
            f"Recall@1 of {self.queries} kept items, in %: {self.recall_before} -> {self.recall_after}, "
            f"gain {self.recall_gain}",
            f"EER in %: {self.error_before} -> {self.error_after}",
        ]
        return "\n".join(lines)

    def save(self, path: PathLike) -> None:
        """Write all of it as JSON; NaN becomes null."""
        save_json(path, self)

    def write_csv(self, path: PathLike) -> None:
        """Write a line for each item to look at, as .csv."""
        rows = [{**asdict(item), "reasons": " ".join(item.reasons), "keep": self.keep[item.row]} for item in self.items]
        names = [*AuditedItem.__dataclass_fields__, "keep"]
        columns = [np.array([row[name] for row in rows], object) for name in names]
        write_text(path, (".csv",), csv_text(names, columns, ","))


def audit(d: Distribution, labels: ArrayLike, score: str | Score = "cosine", *, seed: int = 0) -> GalleryAudit:
    """Find the items of a labelled gallery that harm searches, and what recall and EER gain if they go.

    Each item is compared with the others of its class and with all other classes, without itself, by mean scores. A
    logistic function of the mean score is fitted on these data.

    ============  ====================================================================================================
    reason        rule
    ============  ====================================================================================================
    no direction  its mean is zero or not finite, or its uncertainty is NaN
    copy          its arrays equal the arrays of an item of a lower row
    label         it is less probably of its class than not, and resembles another as pairs of one class do
    stranger      it is less probably of its class than not, and resembles no other so
    hub           it is the best match of so many items of other classes that one less would be too many by chance
    ============  ====================================================================================================

    All of these are left out but copies of another class, where both items are shown and neither is kept.

    Parameters
    ----------
    d
        N items.
    labels
        [N] classes, numbers or strings.
    score
        The score by which the gallery is searched.
    seed
        Draws of the pairs of the EER, and of the intervals.

    Returns
    -------
    GalleryAudit

    Raises
    ------
    TypeError
        d is no distribution, or of a kind that the score lacks.
    ValueError
        Labels of another length; an unknown score; fewer than two classes of two items; scores that are not finite.

    Notes
    -----
    Each item is of its class with a prior of 99 %, of another with 0.5 %, and of none with 0.5 %. The likelihood ratios
    of its mean scores with all classes make these posterior. By chance a hub is found in 1 % of galleries (Poisson,
    over all items). Items alone in their class are not judged. Gains are of kept items, which are searched with and
    without the others; intervals, 95 %, are over classes. An item is judged with the help of those that are searched,
    which flatters the gain where classes are small. Time grows with the square of N.

    Examples
    --------
    >>> d = pe.Point(np.array([[1.0, 0.0], [0.9, 0.1], [0.8, 0.3], [0.0, 1.0], [0.1, 0.9], [0.3, 0.9], [0.0, 0.0]]))
    >>> pe.audit(d, list("aaabbbb")).items[0].reasons
    ('no direction',)
    """
    owner = "audit"
    seed = as_integer(owner, "seed", seed, *SEEDS)
    require_items(owner, d=d)
    named = scores.get(score)
    require_sides(owner, d, None, [named], "score")
    words = classes_of(owner, "labels", labels)
    if words.shape != (len(d),):
        raise ValueError(f"{owner}: labels have shape {words.shape}, expected ({len(d)},)")
    arrays = [on_host(x).astype(np.float64) for x in d.arrays]
    directed = np.isfinite(arrays[0]).all(1) & (arrays[0] != 0).any(1) & ~np.isnan(np.column_stack(arrays)).any(1)
    original = _originals(np.column_stack(arrays), directed)
    copies = directed & (original != np.arange(len(d)))
    rows = np.flatnonzero(directed & ~copies)
    names, classes = np.unique(words[rows], return_inverse=True)
    if (several := int((np.bincount(classes, minlength=1) > 1).sum())) < 2:
        raise ValueError(f"{owner}: labels have {several} classes of two different items, expected 2 or more")
    judged = _judged(owner, d[rows], classes, named, seed)
    flaws: dict[int, AuditedItem] = {}
    for row in np.flatnonzero(~directed).tolist():
        flaws[row] = AuditedItem(row, str(words[row]), ("no direction",), "", np.nan, 0)
    for row in np.flatnonzero(copies).tolist():
        flaws[row] = AuditedItem(row, str(words[row]), ("copy",), f"row {original[row]}", np.nan, 0)
    doubtful = {int(original[row]) for row in np.flatnonzero(copies) if words[row] != words[original[row]]}
    for i, row in enumerate(rows.tolist()):
        reasons = ("copy",) * (row in doubtful)
        reasons += tuple(name for name in ("label", "stranger", "hub") if getattr(judged, name)[i])
        if reasons:
            numbers = float(judged.probability[i]), int(judged.votes[i])
            flaws[row] = AuditedItem(row, str(words[row]), reasons, str(names[judged.nearest[i]]), *numbers)
    kept = np.array([row not in flaws for row in rows.tolist()])
    typical = np.zeros(len(d), np.int64)
    typical[rows] = _places(classes, np.where(kept, judged.mean, np.nan), kept)
    items = tuple(flaws[row] for row in sorted(flaws))
    keep = tuple(row not in flaws for row in range(len(d)))
    gains = _gains(owner, d[rows], classes, judged.first, kept, named, seed)
    return GalleryAudit(items, keep, tuple(typical.tolist()), named.label, *gains, seed)


def _originals(x: NDArray[np.float64], directed: NDArray[np.bool_]) -> NDArray[np.int64]:
    """[N]: the lowest row that has the same numbers."""
    found = np.arange(len(x))
    _, first, of = np.unique(x[directed], axis=0, return_index=True, return_inverse=True)
    found[directed] = np.flatnonzero(directed)[first[of.reshape(-1)]]
    return found


@dataclass(frozen=True, eq=False)
class Judged:
    """Judgement of items that differ, [M] each."""

    mean: NDArray[np.float64]
    """Mean score with the others of the class; NaN of one alone."""
    probability: NDArray[np.float64]
    """Probability of the class, NaN likewise."""
    nearest: NDArray[np.int64]
    """The class with the greatest mean score."""
    first: NDArray[np.int64]
    """The best match."""
    label: NDArray[np.bool_]
    stranger: NDArray[np.bool_]
    hub: NDArray[np.bool_]
    votes: NDArray[np.int64]
    """How many items of other classes, not suspect themselves, have it as their best match."""


def _judged(owner: str, d: Distribution, classes: NDArray[np.int64], score: Score, seed: int) -> Judged:
    mean, rng, each = _class_means(owner, d, classes, score), np.random.default_rng(seed), np.arange(len(d))
    score_of_class, other = mean[each, classes], mean.copy()
    other[each, classes] = -np.inf
    drawn = rng.integers(0, mean.shape[1] - 1, len(d))
    apart = mean[each, drawn + (drawn >= classes)]
    sure = together = np.isfinite(score_of_class)
    values = np.where(sure, score_of_class, 0.0)
    for _ in range(2):  # wrong labels among the items of the first fit would flatten it
        same = np.repeat([True, False], [together.sum(), len(d)])
        fitted = fit_match_probability(np.r_[values[together], apart], same)
        likely = sure & (fitted(values, prior=0.5) >= 0.5)
        together = likely if likely.any() else sure
    ratios = np.clip(fitted.log_likelihood_ratio(np.where(np.isfinite(mean), mean, 0.0)), -GREAT, GREAT)
    of_class = np.log(1 - WRONG) + ratios[each, classes]
    ratios[each, classes] = -np.inf
    of_others = np.log(WRONG / 2 / (mean.shape[1] - 1)) + np.logaddexp.reduce(ratios, 1)
    total = np.logaddexp.reduce([of_class, of_others, np.full(len(d), np.log(WRONG / 2))])
    probability = np.where(sure, np.exp(of_class - total), np.nan)
    suspect = sure & (probability < 0.5)
    elsewhere = ratios.max(1) > 0
    first = _best_other(owner, d, score)
    votes = np.bincount(first[(classes[first] != classes) & ~suspect], minlength=len(d))
    hub = votes - 1 > _most_by_chance(votes.mean(), CHANCE / len(d))
    nearest = np.where(sure & (values >= other.max(1)), classes, other.argmax(1))
    return Judged(score_of_class, probability, nearest, first, suspect & elsewhere, suspect & ~elsewhere, hub, votes)


def _class_means(owner: str, d: Distribution, classes: NDArray[np.int64], score: Score) -> NDArray[np.float64]:
    """[M, classes]: the mean score of each item with the items of each class, without itself; NaN where it is alone."""
    order, sizes = np.argsort(classes, kind="stable"), np.bincount(classes)
    starts, ready, step = np.cumsum(sizes) - sizes, prepare(d, score), max(BLOCK // len(d), 1)
    found = np.empty((len(d), len(sizes)))
    for start in range(0, len(d), step):
        block = on_host(pairwise(d[start : start + step], ready, score)).astype(np.float64)
        if not np.isfinite(block).all():
            raise ValueError(f"{owner}: scores of {score.label} are not all finite, as the mean of a class needs")
        rows = np.arange(start, start + len(block))
        block[rows - start, rows] = 0
        found[rows] = np.add.reduceat(block[:, order], starts, axis=1)
    others = np.broadcast_to(sizes, found.shape).copy()
    others[np.arange(len(d)), classes] -= 1
    return np.asarray(np.divide(found, others, out=np.full(found.shape, np.nan), where=others > 0))


def _best_other(owner: str, d: Distribution, score: Score) -> NDArray[np.int64]:
    """[M]: the best match of each item, without itself."""
    ids = on_host(search(d, d, 2, score).ids)
    return np.asarray(drop_self(owner, ids, ids, 0)[:, 0])


def _most_by_chance(mean: float, chance: float) -> int:
    """The greatest count that a Poisson variable reaches with at least this probability."""
    count, term, left = 0, math.exp(-mean), 1.0
    while left - term >= chance:  # the probability of more than count
        left -= term
        count += 1
        term *= mean / count
    return count


def _places(classes: NDArray[np.int64], mean: NDArray[np.float64], kept: NDArray[np.bool_]) -> NDArray[np.int64]:
    """The place of each kept item in its class, 1 the greatest mean score; 0 of others."""
    order = np.lexsort((-np.nan_to_num(mean, nan=-np.inf), ~kept, classes))
    starts = np.searchsorted(classes[order], classes[order])
    found = np.empty(len(order), np.int64)
    found[order] = np.arange(len(order)) - starts + 1
    return np.where(kept, found, 0)


def _gains(
    owner: str,
    d: Distribution,
    classes: NDArray[np.int64],
    first: NDArray[np.int64],
    kept: NDArray[np.bool_],
    score: Score,
    seed: int,
) -> tuple[int, Interval, Interval, Interval, Interval, Interval]:
    """Number of queries, recall before and after and its gain, and the equal error rate before and after."""
    rows = np.flatnonzero(kept)
    part, of = d[rows], classes[rows]
    asked = np.bincount(of)[of] > 1
    if not asked.any():
        return 0, NONE, NONE, NONE, NONE, NONE
    again = _best_other(owner, part, score)
    before, after = (x[asked].astype(np.float64) for x in (classes[first[rows]] == of, of[again] == of))
    draws = Resamples(of[asked], seed)
    pairs, same = verification_pairs(classes, None, seed)
    found = of_pairs(owner, d, d, pairs, score)
    one, both = (
        _equal_error(found[part_of], same[part_of], classes[pairs[part_of]], seed)
        for part_of in (kept[pairs[:, 0]], kept[pairs].all(1))
    )
    return int(asked.sum()), draws.mean(before), draws.mean(after), draws.mean(after - before), one, both


def _equal_error(
    found: NDArray[np.float64], same: NDArray[np.bool_], classes: NDArray[np.int64], seed: int
) -> Interval:
    if same.all() or not same.any():
        return NONE
    error = equal_error_rate(found, same, clusters=classes, seed=seed)
    return Interval(error.rate, *error.rate_interval)
