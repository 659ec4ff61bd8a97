"""Verification of templates: several items of one identity that are fused into one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from peaccel._utils.arrays import on_host
from peaccel._utils.ids import SortedIds
from peaccel._utils.labels import classes_of
from peaccel._utils.seeds import SEEDS, as_integer
from peaccel._utils.suggestions import unknown
from peaccel.distributions import Distribution
from peaccel.distributions.fuse import fuse, rules
from peaccel.evaluation.answers import as_scores, of_pairs, require_items, require_sides
from peaccel.evaluation.columns import Column, table
from peaccel.evaluation.drawn_pairs import DIFFERENT, verification_pairs
from peaccel.evaluation.exported import Exported
from peaccel.evaluation.formatting import Table, as_text
from peaccel.evaluation.intervals import Resamples
from peaccel.evaluation.pair_rates import P_TARGET, PairRates, pair_rates
from peaccel.metrics.detection_cost import Costs
from peaccel.metrics.verification import warn_if_reversed
from peaccel.scores import Score

__all__ = ["TemplateEvaluation", "TemplateResult", "evaluate_templates"]

ALONE, BEST = "first item alone", "best"
BLOCK = 1 << 22  # pairs of items that are scored at a time for the best of each pair of templates


@dataclass(frozen=True)
class TemplateResult(PairRates):
    """How well a score separates templates that were fused by a rule; detection costs are at a prior of 0.01."""

    rule: Annotated[str, Column("fusion")]
    """The rule of `peaccel.fuse`; "best" pair of items; or the baseline that takes the first item of each template."""
    score: Annotated[str, Column("score")]


@dataclass(frozen=True)
class TemplateEvaluation(Exported):
    """Result of `evaluate_templates`; prints as a table."""

    items: int
    templates: int
    identities: int
    pairs: int
    same: int
    """How many of the pairs are of one identity."""
    results: tuple[TemplateResult, ...]
    seed: int

    def tables(self) -> dict[str, Table]:
        """Header and rows of the table, by its title."""
        return {"Verification of templates": table(self.results)}

    def summary(self) -> str:
        """Data and protocol of the evaluation, in one sentence."""
        return (
            f"{self.templates} templates of {self.items} items, {self.identities} identities; {self.pairs} pairs, "
            f"{self.same} of one identity; [95 % over identities], seed {self.seed}"
        )

    def __str__(self) -> str:
        """The table as text."""
        return as_text(self.summary(), self.tables())


def evaluate_templates(
    d: Distribution,
    templates: ArrayLike,
    labels: ArrayLike,
    scores: str | Score | Sequence[str | Score] | None = None,
    *,
    rule: str | Sequence[str] | None = None,
    pairs: ArrayLike | None = None,
    seed: int = 0,
) -> TemplateEvaluation:
    """Verify templates (N-to-1) by rules of fusion that are of d's kind, and by their first items alone.

    Parameters
    ----------
    d
        N items.
    templates
        [N] integers, the template of each item.
    labels
        [N] numbers or strings, the identity of each item, the same within a template.
    scores
        Names or scores that take d's kind, one or several. None: cosine and, where the kind has it, mls.
    rule
        Rules of `peaccel.fuse`, one or several, such as "mean" or, by precision, "product"; "best" takes the best score
        of all pairs of items of two templates, which takes as many times as long. None: every rule of fusion.
    pairs
        [P, 2] templates to compare, by number; None: as of items in `pe.evaluate`, all up to 20 000 of one identity and
        2 000 000 of two.
    seed
        Seed of drawn pairs.

    Returns
    -------
    TemplateEvaluation
        A result for each rule and score.

    Raises
    ------
    TypeError
        A score does not take this kind.
    ValueError
        Shapes disagree, there is no score, a rule is unknown or of another kind, a template has two
        identities, a pair names none of the templates, or no pair is of one identity or none of two.

    References
    ----------
    Maze et al., IARPA Janus Benchmark C, 2018; Kail et al., ScaleFace, 2022, supplement (rules of fusion).
    """
    owner = "evaluate_templates"
    require_items(owner, d=d)
    seed = as_integer(owner, "seed", seed, *SEEDS)
    named = as_scores(owner, scores, (d.kind, d.kind))
    require_sides(owner, d, None, named)
    known = (*rules(d.kind), BEST)
    wanted = rules(d.kind) if rule is None else (rule,) if isinstance(rule, str) else tuple(rule)
    for name in wanted:
        if name not in known:
            raise ValueError(f"{owner}: {unknown('rule', name, known)}")
    groups, identity = classes_of(owner, "templates", templates), classes_of(owner, "labels", labels)
    for name, x in (("templates", groups), ("labels", identity)):
        if x.shape != (len(d),):
            raise ValueError(f"{owner}: {name} has shape {x.shape}, expected ({len(d)},), one for each item")
    if groups.dtype.kind not in "iu":
        raise ValueError(f"{owner}: templates has dtype {groups.dtype}, expected integers")
    names, first, place = np.unique(groups, return_index=True, return_inverse=True)
    mixed = np.flatnonzero(identity != identity[first][place])
    if len(mixed):
        raise ValueError(f"{owner}: template {groups[mixed[0]]} has items of two labels")
    rows, same = _compared(owner, names, identity[first], pairs, seed)
    if same.all() or not same.any():
        raise ValueError(
            f"{owner}: {same.sum()} of {len(same)} pairs are of one identity, expected some of either kind"
        )
    fused = {ALONE: d[first], **{name: fuse(d, groups, name) for name in wanted if name != BEST}}
    resamples, costs, results = Resamples(identity[first][rows], seed), Costs(owner, P_TARGET), []
    for score in named:
        for name in (ALONE, *wanted):
            items = d[first] if name == ALONE else fused.get(name)
            found = (
                _best_of_items(owner, d, place, rows, score)
                if items is None
                else of_pairs(owner, items, items, rows, score)
            )
            warn_if_reversed(owner, f"scores {score.label}", found, same)
            rates = pair_rates(found, same, resamples, costs, score.name == "llr", seed)
            results.append(TemplateResult(rule=name, score=score.label, **rates))
    return TemplateEvaluation(
        items=len(d),
        templates=len(names),
        identities=len(np.unique(identity)),
        pairs=len(same),
        same=int(same.sum()),
        results=tuple(results),
        seed=seed,
    )


def _compared(
    owner: str, names: NDArray[Any], identity: NDArray[Any], pairs: ArrayLike | None, seed: int
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Pairs of templates [P, 2] by their places among the names, and which are of one identity; drawn where None is."""
    if pairs is None:
        return verification_pairs(identity, None, seed, different=DIFFERENT)
    asked = on_host(pairs, owner, "pairs")
    if asked.ndim != 2 or asked.shape[1] != 2:
        raise ValueError(f"{owner}: pairs has shape {asked.shape}, expected (P, 2)")
    rows = SortedIds(names).rows_of(asked)
    strange = np.flatnonzero((rows < 0).any(1))
    if len(strange):
        raise ValueError(f"{owner}: pair {strange[0]} is of templates {asked[strange[0]].tolist()}, not both there")
    itself = np.flatnonzero(rows[:, 0] == rows[:, 1])
    if len(itself):
        raise ValueError(f"{owner}: pairs hold template {asked[itself[0], 0]} with itself, expected different ones")
    return rows, identity[rows[:, 0]] == identity[rows[:, 1]]


def _best_of_items(
    owner: str, d: Distribution, place: NDArray[np.int64], pairs: NDArray[np.int64], score: Score
) -> NDArray[np.float64]:
    """The best score of two items, one of each template, for pairs of templates, from the template of each item."""
    order, sizes = place.argsort(kind="stable"), np.bincount(place)
    begins, counts = sizes.cumsum() - sizes, sizes[pairs].prod(1)
    found = [np.empty(0)]
    for some in np.split(np.arange(len(pairs)), np.flatnonzero(np.diff(counts.cumsum() // BLOCK)) + 1):
        starts = counts[some].cumsum() - counts[some]
        of = some.repeat(counts[some])
        first, second = np.divmod(np.arange(len(of)) - starts.repeat(counts[some]), sizes[pairs[of, 1]])
        rows = order[begins[pairs[of]] + np.stack([first, second], 1)]
        found.append(np.maximum.reduceat(of_pairs(owner, d, d, rows, score), starts))
    return np.concatenate(found)
