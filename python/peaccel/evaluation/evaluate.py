"""`pe.evaluate`: what scores and confidences are worth on embeddings that somebody has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from peaccel._utils.exclusions import Exclusions
from peaccel._utils.numbers import as_numbers
from peaccel._utils.seeds import SEEDS, as_integer
from peaccel.distributions import Distribution
from peaccel.evaluation.answers import (
    Answers,
    answered,
    as_scores,
    as_truth,
    of_pairs,
    require_items,
    require_sides,
    warn_of_copies,
    warn_of_ties,
)
from peaccel.evaluation.columns import Metric, RankedMetric, by_row, ranked
from peaccel.evaluation.drawn_pairs import compared_pairs
from peaccel.evaluation.identification import best_two, identified, novel_clusters
from peaccel.evaluation.intervals import Resamples
from peaccel.evaluation.pair_rates import P_TARGET, pair_rates
from peaccel.evaluation.results import Evaluation, OpenSetResult, ScoreResult
from peaccel.evaluation.separation import SHARES, CountedAnswers, Separation, by_name, judged, learned
from peaccel.metrics import Relevance, hit_at_k, precision_recall_auc_at_1
from peaccel.metrics._relation import Relation
from peaccel.metrics.detection_cost import Costs
from peaccel.metrics.verification import warn_if_reversed
from peaccel.scores import Score

__all__ = ["evaluate"]

DEPTHS = (5, 10)
"""Recall is at these depths, of those that the gallery has, unless others are named."""
GIVEN = "metrics."
"""Before the names of the metrics that the caller gave, so that they are not taken for fields of the result."""


def evaluate(
    queries: Distribution,
    gallery: Distribution | None,
    labels: ArrayLike | tuple[ArrayLike, ArrayLike] | Relevance,
    scores: str | Score | Sequence[str | Score] | None = None,
    *,
    k: int | Sequence[int] | None = None,
    metrics: Mapping[str, Metric] | None = None,
    exclude: ArrayLike | Exclusions | None = None,
    pairs: ArrayLike | None = None,
    p_target: float = P_TARGET,
    quality: ArrayLike | None = None,
    novel: Distribution | None = None,
    novel_labels: ArrayLike | None = None,
    seed: int = 0,
) -> Evaluation:
    """Evaluate embeddings by the papers' protocols: retrieval, verification, and what their confidence is worth.

    The whole gallery is ranked by each score (`pe.search`). Items that share a score count by the mean over all their
    orders, and as an answer, for confidences, one of them is drawn. Verification pairs are pairs of a query and a
    gallery item, all pairs of one class up to 20 000 and of two up to 2 000 000, and as many drawn evenly where there
    are more, unless they are given. Confidences belong to the queries: the distributions' confidence, and beside it the
    score of the best item, that less the next one's, and random numbers, which a learned confidence has to beat.

    Intervals are of 95 %, by a bootstrap over classes: of the queries, and for pairs of both sides. Probabilities that
    an answer is right are isotonic regressions on its confidence, fitted to four fifths of the classes and judged on
    the others.

    Parameters
    ----------
    queries, gallery
        Q and G items of one dim, as every verb takes them. None for the gallery: the queries are searched for among
        each other, each without itself.
    labels
        (labels of the queries [Q], of the gallery [G]), numbers or strings; [Q] alone where there is no gallery. Or a
        `peaccel.metrics.Relevance`, which has the right answers by pairs or by places.
    scores
        Names or scores, one or several. The first one is the baseline: gains are over it, and confidences are judged by
        its answers. None: cosine and, where these kinds have it, mls.
    k
        Recall@k beside Recall@1, one or several, at most the items that are ranked. None: 5 and 10, if there are as
        many.
    metrics
        By name, functions of ranked ids [Q, K] and of the right answers of the queries that give a number [Q], such as
        the functions of `pe.metrics`: their means beside the others. K is as large as k and the largest class need;
        where there is no gallery, one more, and queries are among their ids (`pe.metrics.relevance` leaves them out).
        Such a function sees no scores: items with equal ones stand in the order of the gallery's rows.
    exclude
        The rows that each query may not find, as in `pe.search`: its own where queries are a part of the gallery, or,
        by `pe.exclude_same`, the images of the same identity and camera (Market-1501, VeRi). They are neither ranked
        nor verified, and a query with no right item left is not counted.
    pairs
        [P, 2], rows of the queries and of the gallery, that are verified instead; labels say which are right. None of
        a row with itself where there is no gallery.
    p_target
        In (0, 1): prior probability of a right pair, at which detection costs are, as of
        `peaccel.metrics.detection_cost`.
    quality
        [Q] of the queries, higher = better, such as the size of the crop; ties are allowed.
    novel
        M queries without a right item in the gallery, of the queries' kind and dim: how well each confidence tells them
        from the queries, and open-set identification by each score, FNIR at an FPIR of 1 % and of 10 %, where a query
        is returned its best item or nothing.
    novel_labels
        [M], the classes of the novel queries, numbers or strings: intervals draw these as a whole, beside the classes
        of the queries. None: each novel query by itself, which is too sure where several are of one class.
    seed
        Seed of verification pairs, of the draws of intervals, and of the random confidence.

    Returns
    -------
    Evaluation
        ``print`` it, ``.save("results.json")``, or have ``peaccel evaluate`` write it as a page.

    Warns
    -----
    UserWarning
        The best item of a query equals the query bit for bit: queries that are in the gallery answer themselves. Or
        rankings end among items of equal scores, and scores of pairs look reversed, as distances are.

    Raises
    ------
    TypeError
        A score does not take these kinds.
    ValueError
        Shapes disagree, no query can be answered, there is no score, or one without its parameters, k, p_target or seed
        is out of range, a score, a quality, a metric or an uncertainty that is NaN, novel queries of another kind or
        none, novel_labels of another length or without novel, or as for `pe.search`.

    References
    ----------
    Karpukhin et al., Probabilistic Embeddings Revisited, 2022, section 5; Kirchhof et al., URL, NeurIPS 2023 (R-AUROC);
    Geifman & El-Yaniv, Selective Classification for Deep Neural Networks, 2017 (AURC); Zadrozny & Elkan, 2002 (isotonic
    regression); ISO/IEC 19795-1 (FPIR and FNIR). `pe.metrics.calibration_error` has the published ECE of retrieval,
    which no useful confidence lowers.

    Examples
    --------
    Sharp images and blurred ones, with fitting variances:

    >>> rng, labels = np.random.default_rng(0), np.arange(100).repeat(4)
    >>> sigma = rng.choice([0.5, 4.0], (400, 1))
    >>> mu = rng.normal(size=(100, 64))[labels] + sigma * rng.normal(size=(400, 64))
    >>> e = pe.evaluate(pe.Normal(mu, sigma**2), None, labels, scores=["cosine", "llr:prior_var=1"])
    >>> [(s.score, round(s.recall_at_1.value, 2)) for s in e.scores]
    [('cosine', 0.47), ('llr:prior_var=1.0,prior_mean=0.0', 0.5)]
    """
    items = queries if gallery is None else gallery
    require_items("evaluate", queries=queries, gallery=gallery)
    seed, truth = as_integer("evaluate", "seed", seed, *SEEDS), as_truth("evaluate", labels, queries, gallery, exclude)
    named, costs = as_scores("evaluate", scores, (queries.kind, items.kind)), Costs("evaluate", p_target)
    depths = _depths(k, len(items) - truth.leave_one_out)
    qualities = None if quality is None else _qualities(quality, len(queries))
    wanted = _wanted(metrics, depths)
    of_novel = novel_clusters("evaluate", novel, novel_labels, queries)
    require_sides("evaluate", queries, gallery, named)
    _require_certain(queries=queries, novel=novel)
    known = _answerable(truth)
    asked, same = compared_pairs("evaluate", pairs, truth, seed)
    clusters = np.unique(np.concatenate([truth.clusters, truth.gallery_clusters]), return_inverse=True)[1]
    of_queries, of_items = np.split(clusters, [len(queries)])
    resamples = Resamples(of_queries[known], seed)
    of_both = Resamples(np.stack([of_queries[asked[:, 0]], of_items[asked[:, 1]]], 1), seed)
    every, verifications = list[Answers](), list[dict[str, Any]]()
    for score in named:
        every.append(answered("evaluate", queries, gallery, truth, score, wanted, max(depths, default=2), seed=seed))
        scored = of_pairs("evaluate", queries, items, asked, score), same
        warn_if_reversed("evaluate", f"scores {score.label}", *scored)
        verifications.append(pair_rates(*scored, of_both, costs, score.name == "llr", seed))
    warn_of_copies("evaluate", queries, gallery, every[0].best)
    warn_of_ties("evaluate", named, every)
    open_set, novel_ones = _identified(novel, of_novel, items, named, every, resamples, seed)
    return Evaluation(
        queries=len(queries),
        gallery=len(items),
        dim=queries.dim,
        classes=len(np.unique(truth.clusters)),
        grouping=truth.grouping,
        unanswerable=int((~known).sum()),
        kinds=(type(queries).__name__, type(items).__name__),
        pairs=(int(same.sum()), int((~same).sum())),
        p_target=float(p_target),
        novel=len(of_novel),
        novel_classes=None if novel_labels is None else len(np.unique(of_novel)),
        scores=_results(named, every, verifications, known, resamples),
        open_set=open_set,
        confidences=tuple(judged(queries, every[0], qualities, novel_ones, of_queries[known], resamples, seed)),
        shares=SHARES,
        seed=seed,
    )


def _results(
    named: Sequence[Score],
    every: Sequence[Answers],
    verifications: Sequence[dict[str, Any]],
    known: NDArray[np.bool_],
    resamples: Resamples,
) -> tuple[ScoreResult, ...]:
    """The results of all scores."""
    counted = [CountedAnswers(answers.right[known], answers.scores[known, 0], resamples) for answers in every]
    both = [(answers, count.separation()) for answers, count in zip(every, counted, strict=True)]
    return tuple(
        _result(score, of_score, both[0], known, resamples, verification)
        for score, of_score, verification in zip(named, both, verifications, strict=True)
    )


def _result(
    score: Score,
    of_score: tuple[Answers, Separation],
    first: tuple[Answers, Separation],
    known: NDArray[np.bool_],
    resamples: Resamples,
    verification: dict[str, Any],
) -> ScoreResult:
    """The result of a score, of the queries that have an answer; gains are over the first score's answers."""
    (answers, separation), (of_first, first_separation) = of_score, first
    means: dict[str, Any] = {
        name: resamples.mean(x[known]) for name, x in answers.values.items() if isinstance(name, str)
    }
    by_name = {name.removeprefix(GIVEN): means.pop(name) for name in tuple(means) if name.startswith(GIVEN)}
    return ScoreResult(
        score=score.label,
        recall_at_k={str(at): float(x[known].mean()) for at, x in answers.values.items() if isinstance(at, int)},
        metrics=by_name,
        gain_at_1=resamples.mean(answers.values["recall_at_1"][known] - of_first.values["recall_at_1"][known]),
        precision_recall_at_1=precision_recall_auc_at_1(answers.right[known], answers.scores[known, 0]),
        best_auroc=separation.auroc,
        best_auroc_gain=separation.gain(first_separation),
        **means,
        **verification,
    )


def _identified(
    novel: Distribution | None,
    clusters: NDArray[np.int64],
    items: Distribution,
    named: Sequence[Score],
    every: Sequence[Answers],
    resamples: Resamples,
    seed: int,
) -> tuple[tuple[OpenSetResult, ...], dict[str, NDArray[np.float64]]]:
    """Identification by each score where novel queries search the same items, and their confidences by the first."""
    if novel is None:
        return (), {}
    found = [best_two("evaluate", novel, items, score) for score in named]
    apart = Resamples(clusters, seed + 1)  # by other draws than the queries
    results = (
        identified(score, answers, best[:, 0], resamples, apart)
        for score, answers, best in zip(named, every, found, strict=True)
    )
    return tuple(results), by_name(novel, found[0], seed + 1)


def _qualities(quality: ArrayLike, count: int) -> NDArray[np.float64]:
    """The quality of each query, after checks."""
    found = as_numbers("evaluate", "quality", quality)
    if len(found) != count:
        raise ValueError(f"evaluate: quality has shape {found.shape}, expected ({count},) like queries")
    return found


def _answerable(truth: Relation) -> NDArray[np.bool_]:
    """The queries [Q] that have an answer in the gallery."""
    known: NDArray[np.bool_] = truth.sizes() > 0
    if not known.any():
        raise ValueError("evaluate: no query has an answer in the gallery")
    return known


def _require_certain(**sides: Distribution | None) -> None:
    """Refuse queries whose uncertainty is NaN."""
    for name, d in sides.items():
        if d is not None:
            learned("evaluate", name, d)


def _wanted(metrics: Mapping[str, Metric] | None, depths: Sequence[int]) -> dict[Any, RankedMetric]:
    """By name or depth all metrics of rankings, of which those that the caller gave are told apart."""
    if not isinstance(metrics, Mapping | None):
        raise TypeError(f"evaluate: metrics is {type(metrics).__name__}, expected functions by name")
    for name, metric in (metrics or {}).items():
        if not callable(metric):
            raise TypeError(f"evaluate: metrics has {type(metric).__name__} for {name!r}, expected a function")
    by_depth: dict[Any, RankedMetric] = {at: partial(hit_at_k, k=at) for at in depths}
    return {**ranked(ScoreResult), **by_depth, **{f"{GIVEN}{name}": by_row(x) for name, x in (metrics or {}).items()}}


def _depths(k: int | Sequence[int] | None, ranked: int) -> tuple[int, ...]:
    """The depths of recall, none beyond the items that are ranked."""
    if k is None:
        return tuple(at for at in DEPTHS if at <= ranked)
    depths = tuple(np.atleast_1d(k).tolist())
    if not depths or not all(isinstance(at, int) and 1 <= at <= ranked for at in depths):
        raise ValueError(f"evaluate: k is {k}, expected integers from 1 to {ranked}, the items that are ranked")
    return depths
