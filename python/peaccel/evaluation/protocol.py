"""`pe.evaluate`: what scores and confidences are worth on embeddings that somebody has."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

import peaccel as pe
from peaccel import metrics
from peaccel.distributions import Distribution, Normal, Point
from peaccel.evaluation.answers import Answers, answered, as_scores, as_truth, numbers, on_host, verification
from peaccel.evaluation.intervals import Interval, mean_interval
from peaccel.evaluation.pairs import verification_pairs
from peaccel.evaluation.records import Table, as_text, number, percent, save_json
from peaccel.files import PathLike
from peaccel.metrics import Relevance
from peaccel.metrics._relation import Relation
from peaccel.scores import Score

__all__ = ["ConfidenceResult", "Evaluation", "ScoreResult", "evaluate"]

SHARES = tuple(round(0.02 * n, 2) for n in range(46))
"""Shares of queries that the curves reject, least confident first."""


@dataclass(frozen=True)
class ScoreResult:
    """How well queries are answered where a score ranks the whole gallery."""

    score: str
    recall_at_1: Interval
    recall_at_k: Mapping[str, float]
    """Recall by k, which is text, as it must be in JSON."""
    map_at_r: Interval
    gain_at_1: Interval
    """Gain of Recall@1 over the first score, query by query; 0 for the first score itself."""
    roc_auc: float
    """ROC AUC of verification pairs, of which the next two are too; NaN without pairs of one class or of two."""
    equal_error_rate: float
    tar_at_far: float
    """TAR at a FAR of 0.001."""
    precision_recall_at_1: float
    """Area under precision and recall where queries whose best item scores low are not answered."""


@dataclass(frozen=True)
class ConfidenceResult:
    """Whether a confidence tells which queries are answered rightly by the first score."""

    confidence: str
    r_auroc: float
    """Probability that a query answered rightly has more of it than one that was not."""
    ausc: float
    """Area under `curve`."""
    ece: float
    """Expected calibration error of whether the first item is right, by ranks in bins of equal count."""
    spearman: float | None
    """Rank correlation with the quality of the queries, where it is given."""
    novel_auroc: float | None
    """Probability that a query has more of it than a novel one, where such are given."""
    calibration: tuple[tuple[float, float, int], ...]
    """For each bin of the ECE that is not empty: mean rank of confidence in [0, 1], Recall@1, number of queries."""
    curve: tuple[float, ...]
    """Recall@1 of the queries that are kept, at each share of `Evaluation.shares` rejected."""


@dataclass(frozen=True)
class Evaluation:
    """What `pe.evaluate` found; prints as two tables.

    Examples
    --------
    >>> d, labels = pe.Normal(np.eye(4).repeat(2, 0), var=0.1), np.arange(4).repeat(2)
    >>> e = pe.evaluate(d, None, labels, scores=["mls"])
    >>> e.queries, e.classes, e.scores[0].recall_at_1.value
    (8, 4, 1.0)
    """

    queries: int
    gallery: int
    dim: int
    classes: int
    """How many classes the queries have, or clusters, which a `peaccel.metrics.Relevance` names."""
    grouping: str
    """What `classes` counts: classes, or the kind of clusters."""
    unanswerable: int
    """How many queries have no right item in the gallery; they are left out of all means."""
    kinds: tuple[str, str]
    """The kinds of queries and of gallery."""
    scores: tuple[ScoreResult, ...]
    confidences: tuple[ConfidenceResult, ...]
    shares: tuple[float, ...]
    seed: int

    def tables(self) -> dict[str, Table]:
        """Header and rows of each table, by its title."""
        ks = tuple(self.scores[0].recall_at_k)
        header = (
            "score",
            "Recall@1 %",
            *(f"R@{k} %" for k in ks),
            "MAP@R %",
            "gain R@1",
            "AUC",
            "EER %",
            "TAR@FAR=0.1% %",
            "Pr-Re@1",
        )
        rows = [
            (
                *(s.score, str(s.recall_at_1)),
                *(percent(s.recall_at_k[k]) for k in ks),
                *(str(s.map_at_r), "" if s is self.scores[0] else str(s.gain_at_1)),
                *(
                    number(s.roc_auc),
                    percent(s.equal_error_rate),
                    percent(s.tar_at_far),
                    number(s.precision_recall_at_1),
                ),
            )
            for s in self.scores
        ]
        tables = {"Retrieval and verification": (header, rows)}
        given = {"Spearman": "spearman", "novel AUROC": "novel_auroc"}
        given = {name: key for name, key in given.items() if getattr(self.confidences[0], key) is not None}
        header = ("confidence", "AUROC", "AUSC", "ECE", *given)
        rows = [
            (
                *(c.confidence, number(c.r_auroc), number(c.ausc), number(c.ece)),
                *(number(getattr(c, key)) for key in given.values()),
            )
            for c in self.confidences
        ]
        return {**tables, f"Confidence of queries answered by {self.scores[0].score}": (header, rows)}

    def summary(self) -> str:
        """What was evaluated, in one sentence."""
        left_out = f", {self.unanswerable} of them without an answer in it" if self.unanswerable else ""
        return (
            f"{self.queries} queries of {self.classes} {self.grouping}{left_out}, {self.gallery} gallery items, "
            f"{self.dim} dimensions, {' and '.join(dict.fromkeys(self.kinds))}; [95 % over {self.grouping}], "
            f"seed {self.seed}"
        )

    def __str__(self) -> str:
        """The tables as text."""
        return as_text(self.summary(), self.tables())

    def save(self, path: PathLike) -> None:
        """Write all of it as JSON; NaN becomes null."""
        save_json(path, self)


def evaluate(
    queries: Distribution,
    gallery: Distribution | None,
    labels: ArrayLike | tuple[ArrayLike, ArrayLike] | Relevance,
    scores: str | Score | Sequence[str | Score] = ("cosine", "mls"),
    *,
    k: Sequence[int] = (5, 10),
    pairs: ArrayLike | None = None,
    quality: ArrayLike | None = None,
    novel: Distribution | None = None,
    seed: int = 0,
) -> Evaluation:
    """Evaluate embeddings by the papers' protocols: retrieval, verification, and what their confidence is worth.

    The whole gallery is ranked by each score (`pe.search`). Verification pairs are drawn from queries and gallery, all
    pairs of one class up to 20 000 and as many of two, unless they are given. Confidences are those of the queries:
    what the distributions say, and beside it the score of the best item, that less the next one's, and random numbers,
    which a learned confidence has to beat.

    Parameters
    ----------
    queries, gallery
        Q and G items of one dim, as every verb takes them. None for the gallery: the queries are searched for among
        each other, each without itself.
    labels
        (labels of the queries [Q], of the gallery [G]), numbers or strings; [Q] alone where there is no gallery. Or a
        `peaccel.metrics.Relevance`, which says by pairs or by places what is right.
    scores
        Names or scores, one or several. The first one is the baseline: gains are over it, and confidences are judged by
        its answers.
    k
        Recall@k beside Recall@1; at least 1.
    pairs
        [P, 2], rows of the queries and of the gallery, that are verified instead of drawn ones; labels say which are
        right.
    quality
        [Q] of the queries, higher = better, such as the size of the crop; ties are allowed.
    novel
        Queries that are out of distribution, of the queries' kind and dim: how well each confidence tells them from the
        queries.
    seed
        Seed of verification pairs, of the draws of intervals, and of the random confidence.

    Returns
    -------
    Evaluation
        ``print`` it, ``.save("results.json")``, or have ``peaccel evaluate`` write it as a page.

    Raises
    ------
    TypeError
        A score does not take these kinds.
    ValueError
        Shapes disagree, no query can be answered, there is no score, k is out of range, a score or a confidence that
        is not finite, novel queries of another kind or none, or as for `pe.search`.

    References
    ----------
    Karpukhin et al., Probabilistic Embeddings Revisited, 2022, section 5; Kirchhof et al., URL, NeurIPS 2023 (R-AUROC);
    Warburg et al., Bayesian Triplet Loss, ICCV 2021 (ECE of retrieval).

    Examples
    --------
    Sharp images and blurred ones, of which the variances tell:

    >>> rng, labels = np.random.default_rng(0), np.arange(100).repeat(4)
    >>> sigma = rng.choice([0.5, 4.0], (400, 1))
    >>> mu = rng.normal(size=(100, 64))[labels] + sigma * rng.normal(size=(400, 64))
    >>> e = pe.evaluate(pe.Normal(mu, sigma**2), None, labels, scores=["cosine", "llr:prior_var=1"])
    >>> [(s.score, round(s.recall_at_1.value, 2)) for s in e.scores]
    [('cosine', 0.47), ('llr:prior_var=1.0,prior_mean=0.0', 0.5)]
    """
    items = queries if gallery is None else gallery
    truth = as_truth("evaluate", labels, len(queries), None if gallery is None else len(gallery))
    named = as_scores("evaluate", scores)
    if not k or min(k) < 1:
        raise ValueError(f"evaluate: k is {tuple(k)}, expected numbers of at least 1")
    if quality is not None and np.shape(quality) != (len(queries),):
        raise ValueError(f"evaluate: quality has shape {np.shape(quality)}, expected ({len(queries)},) like queries")
    asked, same = verification_pairs(truth, None, seed) if pairs is None else _given("evaluate", pairs, truth)
    results: list[ScoreResult] = []
    first: Answers | None = None
    for score in named:
        answers = answered("evaluate", queries, gallery, truth, score, tuple(k))
        first = first or answers
        known = ~np.isnan(answers.right)
        together = pe.paired(queries[asked[:, 0]], items[asked[:, 1]], score)
        results.append(
            ScoreResult(
                score.label,
                mean_interval(answers.right, truth.clusters, seed=seed),
                {str(at): metrics.recall_at_k(answers.ids, truth, None, at) for at in k},
                mean_interval(metrics.average_precision_at_r(answers.ids, truth), truth.clusters, seed=seed),
                mean_interval(answers.right - first.right, truth.clusters, seed=seed),
                *verification(numbers("evaluate", together, score), same),
                metrics.precision_recall_auc_at_1(answers.right[known], answers.scores[known, 0]),
            )
        )
    assert first is not None
    confidences = _confidences(queries, first, quality, _novel(novel, queries, items, named[0], seed), seed)
    return Evaluation(
        queries=len(queries),
        gallery=len(items),
        dim=queries.dim,
        classes=len(np.unique(truth.clusters)),
        grouping=truth.grouping,
        unanswerable=int(np.isnan(first.right).sum()),
        kinds=(type(queries).__name__, type(items).__name__),
        scores=tuple(results),
        confidences=tuple(confidences),
        shares=SHARES,
        seed=seed,
    )


def _given(owner: str, pairs: ArrayLike, truth: Relation) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Pairs of rows that the caller listed, and which of them are right."""
    rows, sides = np.asarray(on_host(pairs)), (truth.queries, truth.gallery)
    if rows.ndim != 2 or rows.shape[1] != 2 or rows.dtype.kind not in "iu":
        raise ValueError(f"{owner}: pairs has shape {rows.shape} and dtype {rows.dtype}, expected (P, 2) integers")
    outside = np.flatnonzero((rows < 0) | (rows >= np.array(sides)))
    if len(outside):
        pair = outside[0] // 2
        raise ValueError(
            f"{owner}: pair {pair} is {rows[pair].tolist()}, expected rows below {sides[0]} and {sides[1]}"
        )
    same = truth.right(rows[:, 0], rows[:, 1])
    if same.all() or not same.any():
        raise ValueError(f"{owner}: {same.sum()} of {len(same)} pairs are right, expected some of either kind")
    return rows.astype(np.int64), same


def _unit(mu: NDArray[Any]) -> bool:
    """Whether all rows have unit length, so that their lengths say nothing."""
    return bool(np.all(np.abs(np.linalg.norm(mu, axis=1) - 1) < 1e-3))


def _confidences_by_name(d: Distribution, scores: NDArray[np.float64], seed: int) -> dict[str, NDArray[np.float64]]:
    """The confidences of queries whose best two items have these scores, by name."""
    kinds: dict[str, Any] = {}
    if not isinstance(d, Point):
        with np.errstate(divide="ignore"):  # a variance of 0 raises below
            kinds["learned"] = on_host(pe.confidence(d))
    if isinstance(d, Normal | Point) and not _unit(mu := on_host(d.mu)):
        kinds["norm of the mean"] = metrics.norm_confidence(mu)
    kinds["score of the best"] = metrics.top_score_confidence(scores)
    if np.isfinite(scores).all():
        kinds["best less second"] = metrics.margin_confidence(scores)
    kinds["random"] = metrics.random_confidence(len(d), seed)
    for name, values in kinds.items():
        if not np.isfinite(values).all():
            raise ValueError(
                f"evaluate: the confidence {name!r} of {(~np.isfinite(values)).sum()} queries is not finite"
            )
    return {name: np.asarray(x, np.float64) for name, x in kinds.items()}


def _novel(
    novel: Distribution | None, queries: Distribution, items: Distribution, score: Score, seed: int
) -> dict[str, NDArray[np.float64]]:
    """The confidences of novel queries, which search the same gallery; none where there are none."""
    if novel is None:
        return {}
    if (novel.kind, novel.dim) != (queries.kind, queries.dim) or not len(novel):
        given, expected = (f"{d.kind} of dim {d.dim}" for d in (novel, queries))
        raise ValueError(f"evaluate: novel is {len(novel)} {given}, expected {expected} like queries, at least one")
    found = numbers("evaluate", pe.search(novel, items, min(2, len(items)), score).scores, score)
    best = np.full((len(novel), 2), -np.inf)
    best[:, : found.shape[1]] = found
    return _confidences_by_name(novel, best, seed + 1)


def _confidences(
    queries: Distribution,
    answers: Answers,
    quality: ArrayLike | None,
    novel: dict[str, NDArray[np.float64]],
    seed: int,
) -> Iterator[ConfidenceResult]:
    known = ~np.isnan(answers.right)
    right = answers.right[known]
    for name, confidence in _confidences_by_name(queries[np.flatnonzero(known)], answers.scores[known], seed).items():
        bins = metrics.calibration_error(right, confidence, scale="rank", binning="equal-count")
        points = zip(bins.confidence.tolist(), bins.value.tolist(), bins.count.tolist(), strict=True)
        yield ConfidenceResult(
            name,
            metrics.r_auroc(right, confidence),
            metrics.ausc(right, confidence),
            bins.ece,
            None if quality is None else metrics.spearman(np.asarray(quality)[known], confidence),
            metrics.novelty_detection(-confidence, -novel[name]).auroc if name in novel else None,
            tuple(point for point in points if point[2]),
            tuple(metrics.rejection_curve(right, confidence, SHARES).tolist()),
        )
