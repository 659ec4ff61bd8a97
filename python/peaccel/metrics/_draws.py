"""Draws of scored pairs, of which the intervals of all rates of pairs are percentiles."""

from __future__ import annotations

from functools import cached_property
from math import prod
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from peaccel._utils.labels import plain
from peaccel._utils.seeds import SEEDS, as_integer
from peaccel._utils.suggestions import require_classes

__all__ = ["ClusterDraws", "PairDraws", "as_clusters", "counted_levels", "pair_draws", "percentiles", "require_draws"]

Array = NDArray[Any]

RESAMPLES = 2000
GROUPS = 4096
"""The most that is drawn of: more clusters than that are put into so many groups, which says as much of the spread."""
LEVELS = 200
"""Thresholds among the pairs of either kind at which draws are counted."""


class ClusterDraws:
    """Draws of whole clusters, with replacement, as many as there are: made once for all numbers of an evaluation.

    Parameters
    ----------
    clusters
        [N] of what is counted, such as the classes of queries; [N, 2] of pairs, one of each side.
    seed
        Seed of the draws.
    resamples
        How many draws; None: `RESAMPLES`.
    """

    def __init__(self, clusters: ArrayLike, seed: int, resamples: int | None = None) -> None:
        array = np.asarray(clusters)
        names, of = _numbered(array)
        rng, count = np.random.default_rng(seed), min(names, GROUPS)
        groups = np.arange(names) if count == names else rng.permutation(names) % count
        self.sides: NDArray[np.int64] = groups[of].reshape(len(array), prod(array.shape[1:]))
        """[N, 1 or 2], the groups that each item, or pair, belongs to."""
        drawn = (
            rng.multinomial(count, np.full(count, 1 / count), resamples or RESAMPLES)
            if count > 1
            else np.empty((0, count))
        )
        self.times: NDArray[np.float64] = drawn.astype(np.float64)
        """[draws, groups], how often each group is drawn; no draws of one cluster alone."""

    def sums(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """[draws, M], the sums of [N, M] numbers of what is drawn; of items, not of pairs."""
        count = self.times.shape[1]
        return self.times @ np.stack([np.bincount(self.sides[:, 0], x, count) for x in values.T], 1)

    def counts(self, places: NDArray[np.int64], bins: int) -> NDArray[np.float64]:
        """[draws, bins], how many items, or pairs, of what is drawn are in each bin, given the bin of each [N].

        A pair of two clusters, drawn n and m times, counts as n + m - 1 for n m: what they differ by vanishes as
        clusters become many (Janssen, 1994), and only so all draws are one matrix product.
        """
        count, (first, second) = self.times.shape[1], self.sides[:, [0, -1]].T
        apart = first != second
        table = np.bincount(first * bins + places, minlength=count * bins)
        table += np.bincount(second[apart] * bins + places[apart], minlength=count * bins)
        table = table.reshape(count, bins)
        # float32, which is twice as fast, adds whole numbers without rounding as long as no sum reaches 2^24.
        exact = self.times.max(initial=0) * table.sum(0).max(initial=0) < 1 << 24
        kind: type[np.float32] | type[np.float64] = np.float32 if exact else np.float64
        drawn = self.times.astype(kind, copy=False) @ table.astype(kind)
        return np.asarray(drawn - np.bincount(places[apart], minlength=bins), np.float64)


class PairDraws:
    """Pairs of one class and of two in each draw, counted between thresholds; rates between two of these are linear.

    Parameters
    ----------
    scores, same
        [N] of the pairs.
    levels
        [T] rising, the thresholds.
    clusters
        Draws of the pairs' clusters; None: pairs are drawn one by one, those of one class and those of two apart.
    resamples, seed
        Of pairs that are drawn one by one.
    """

    def __init__(
        self,
        scores: Array,
        same: Array,
        levels: Array,
        clusters: ClusterDraws | None = None,
        resamples: int = RESAMPLES,
        seed: int = 0,
    ) -> None:
        self.levels, bins = levels, len(levels) + 1
        self._places = len(levels) - np.searchsorted(levels, scores, side="right") + bins * same
        """[N], 0 holds the highest scores of two classes."""
        if clusters is None:
            rng, observed = np.random.default_rng(seed), np.bincount(self._places, minlength=2 * bins).reshape(2, bins)
            counts = np.stack([rng.multinomial(x.sum(), x / x.sum(), resamples) for x in observed], 1).astype(
                np.float64
            )
        else:
            counts = clusters.counts(self._places, 2 * bins).reshape(-1, 2, bins)
            counts = counts[(counts.sum(2) > 0).all(1)]  # of few classes, some draws have no pair of a kind
        self._counts, self._seed = counts, seed

    @cached_property
    def rates(self) -> tuple[Array, Array]:
        """FAR and TAR [draws, T + 2], from the threshold that nothing reaches to that which everything does."""
        far, tar = self._shares(self._counts)
        return far, tar

    @cached_property
    def rates_beyond(self) -> tuple[Array, Array]:
        """The same where half a pair of each kind, on average, lies beyond either end of the scores.

        What no pair has come to is then not taken for impossible: of k of n pairs the share has about the distribution
        Beta(k + 1/2, n - k + 1/2), as from Jeffreys' prior.
        """
        ends = np.random.default_rng(self._seed).standard_gamma(0.5, (len(self._counts), 2, 2))
        far, tar = self._shares(np.concatenate([ends[..., :1], self._counts, ends[..., 1:]], 2))
        return far[:, 1:], tar[:, 1:]

    def place(self, threshold: float) -> int:
        """The column of the rates at a threshold, which is one of the levels, or infinite."""
        if threshold == -np.inf:
            return len(self.levels) + 1
        return len(self.levels) - int(np.searchsorted(self.levels, threshold))

    def means(self, values: Array) -> tuple[Array, Array]:
        """The mean [draws] of a number [N] over the pairs of two classes, and over those of one.

        In every draw the pairs between two thresholds have their mean of all pairs.
        """
        bins = 2 * (len(self.levels) + 1)
        mean = np.bincount(self._places, values, bins) / np.maximum(np.bincount(self._places, minlength=bins), 1)
        of_two, of_one = (np.diff(x, axis=1) @ y for x, y in zip(self.rates, mean.reshape(2, -1), strict=True))
        return of_two, of_one

    @staticmethod
    def _shares(counts: Array) -> Array:
        """[2, draws, bins + 1], the shares of each kind that are accepted."""
        accepted = counts.cumsum(2) / counts.sum(2, keepdims=True)
        return np.concatenate([np.zeros((len(counts), 2, 1)), accepted], 2).swapaxes(0, 1)


def pair_draws(
    owner: str, scores: Array, same: Array, levels: Array, clusters: ArrayLike | None, resamples: int, seed: int
) -> PairDraws:
    """Draws of pairs one by one, or of their clusters [N], or of those of both sides [N, 2], after checks."""
    if clusters is None:
        return PairDraws(scores, same, levels, None, resamples, seed)
    names = as_clusters(owner, clusters, len(scores))
    return PairDraws(scores, same, levels, ClusterDraws(names, seed, resamples), seed=seed)


def as_clusters(owner: str, clusters: ArrayLike, count: int) -> Array:
    """The clusters [N] of pairs, or [N, 2] of their sides, after checks."""
    require_classes(owner, "clusters", clusters, "the cluster of each pair, or of each of its sides")
    names = plain(owner, "clusters", clusters)
    if names.shape not in ((count,), (count, 2)):
        raise ValueError(f"{owner}: clusters has shape {names.shape}, expected ({count},) or ({count}, 2)")
    return names


def counted_levels(scores: Array, same: Array) -> Array:
    """Rising scores at which draws of pairs are counted: at ranks of either kind, denser where FAR is low."""
    kinds = [np.sort(scores[of])[::-1] for of in (same, ~same)]
    ranks = np.linspace(0, len(kinds[0]) - 1, LEVELS), np.geomspace(1, len(kinds[1]), LEVELS) - 1
    return np.unique(np.concatenate([x[at.astype(np.int64)] for x, at in zip(kinds, ranks, strict=True)]))


def require_draws(owner: str, resamples: int, level: float, seed: int) -> None:
    """Refuse less than one draw, a level outside (0, 1), and what is no seed."""
    as_integer(owner, "seed", seed, *SEEDS)
    if resamples < 1 or not 0 < level < 1:
        raise ValueError(f"{owner}: resamples is {resamples} and level {level}, expected at least 1 and within (0, 1)")


def percentiles(drawn: Array, level: float) -> tuple[float, float]:
    """The interval that holds a share of the draws, as much of the others on either side; NaN where there is none."""
    if not len(drawn):
        return np.nan, np.nan
    with np.errstate(invalid="ignore"):  # thresholds of draws may be infinite
        low, high = np.quantile(drawn, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def _numbered(names: NDArray[Any]) -> tuple[int, NDArray[np.int64]]:
    """How many different names there are, and the number of each in their order; without sorting numbers that can
    index a table."""
    low, high = (int(names.min()), int(names.max())) if names.size and names.dtype.kind == "i" else (0, names.size)
    if high - low >= names.size:
        found, of = np.unique(names, return_inverse=True)
        return len(found), of
    place, known = names.astype(np.int64) - low, np.zeros(high - low + 1, np.bool_)
    known[place] = True
    return int(known.sum()), (known.cumsum() - 1)[place]
