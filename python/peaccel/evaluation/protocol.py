"""`pe.evaluate`: what scores and confidences are worth on embeddings that somebody has."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

import peaccel as pe
from peaccel import metrics
from peaccel.distributions import Distribution, Normal, Point
from peaccel.evaluation.intervals import Interval, mean_interval
from peaccel.files import PathLike, aside
from peaccel.scores import Score

__all__ = ["ConfidenceResult", "Evaluation", "ScoreResult", "evaluate", "verification_pairs"]

SHARES = tuple(round(0.02 * n, 2) for n in range(46))
"""Shares of queries that the curves reject, least confident first."""
PAIRS = 20_000
"""Verification pairs at most, of one class and of two classes each."""
FAR = 1e-3


@dataclass(frozen=True)
class ScoreResult:
    """How queries are answered by a score, the whole gallery ranked by it."""

    score: str
    recall_at_1: Interval
    recall_at_k: Mapping[str, float]
    """By k, as text: so it is in JSON too."""
    map_at_r: Interval
    gain_at_1: Interval
    """Of Recall@1 over the first score, query by query; 0 for that one itself."""
    roc_auc: float
    """Of verification pairs, as the next two; NaN where there are no pairs of one class or of two."""
    equal_error_rate: float
    tar_at_far: float
    """At a FAR of 0.001."""


@dataclass(frozen=True)
class ConfidenceResult:
    """Whether a confidence tells which queries are answered rightly by the first score."""

    confidence: str
    r_auroc: float
    """Probability that a query answered rightly has more of it than one that was not."""
    ausc: float
    """Area under the curve."""
    ece: float
    """Of whether the first item is right, by ranks and bins of equal count."""
    spearman: float | None
    """With the quality of the queries, where that is given."""
    calibration: tuple[tuple[float, float, int], ...]
    """Of each bin of the ECE that is not empty: mean rank of confidence in [0, 1], Recall@1, queries."""
    curve: tuple[float, ...]
    """Recall@1 of the queries that are kept, at each share of `Evaluation.shares` rejected."""


@dataclass(frozen=True)
class Evaluation:
    """What `pe.evaluate` found; prints as two tables."""

    queries: int
    gallery: int
    dim: int
    classes: int
    """Of the queries."""
    unanswerable: int
    """Queries of a class that the gallery lacks, which are left out of all means."""
    kinds: tuple[str, str]
    """Of queries and gallery."""
    scores: tuple[ScoreResult, ...]
    confidences: tuple[ConfidenceResult, ...]
    shares: tuple[float, ...]
    seed: int

    def tables(self) -> dict[str, tuple[tuple[str, ...], list[tuple[str, ...]]]]:
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
        )
        rows = [
            (
                *(s.score, str(s.recall_at_1)),
                *(_percent(s.recall_at_k[k]) for k in ks),
                *(str(s.map_at_r), "" if s is self.scores[0] else str(s.gain_at_1)),
                *(_number(s.roc_auc), _percent(s.equal_error_rate), _percent(s.tar_at_far)),
            )
            for s in self.scores
        ]
        tables = {"Retrieval and verification": (header, rows)}
        with_quality = any(c.spearman is not None for c in self.confidences)
        header = ("confidence", "AUROC", "AUSC", "ECE", *(["Spearman"] if with_quality else []))
        rows = [
            (
                *(c.confidence, _number(c.r_auroc), _number(c.ausc), _number(c.ece)),
                *([] if not with_quality else ["" if c.spearman is None else _number(c.spearman)]),
            )
            for c in self.confidences
        ]
        return {**tables, f"Confidence of queries answered by {self.scores[0].score}": (header, rows)}

    def summary(self) -> str:
        """What was evaluated, in one sentence."""
        left_out = f", {self.unanswerable} of them without an answer in it" if self.unanswerable else ""
        return (
            f"{self.queries} queries of {self.classes} classes{left_out}, {self.gallery} gallery items, "
            f"{self.dim} dimensions, {' and '.join(dict.fromkeys(self.kinds))}; [95 % over classes], seed {self.seed}"
        )

    def __str__(self) -> str:
        """The tables as text."""
        blocks = [self.summary()]
        for title, (header, rows) in self.tables().items():
            widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
            lines = ["  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)) for row in (header, *rows)]
            blocks.append("\n".join([title, *(line.rstrip() for line in lines)]))
        return "\n\n".join(blocks)

    def save(self, path: PathLike) -> None:
        """Write all of it as JSON; NaN becomes null."""
        with aside(path) as fresh:
            fresh.write_text(json.dumps(_plain(asdict(self)), indent=1, allow_nan=False) + "\n", encoding="utf-8")


def evaluate(
    queries: Distribution,
    gallery: Distribution | None,
    labels: ArrayLike | tuple[ArrayLike, ArrayLike],
    scores: Sequence[str | Score] = ("cosine", "mls"),
    *,
    k: Sequence[int] = (5, 10),
    quality: ArrayLike | None = None,
    seed: int = 0,
) -> Evaluation:
    """Evaluate embeddings by the papers' protocols: retrieval, verification, and what their confidence is worth.

    The whole gallery is ranked by each score (`pe.search`). Verification pairs are drawn from queries and gallery, all
    pairs of one class up to 20 000 and as many of two. Confidences are those of the queries: what the distributions
    say, and beside it the score of the best item, that less the next one's, and random numbers, which a learned
    confidence has to beat.

    Parameters
    ----------
    queries, gallery
        Q and G items of one dim, as every verb takes them. None for the gallery: the queries are searched for among
        each other, each without itself.
    labels
        (labels of the queries [Q], of the gallery [G]), numbers or words; [Q] alone where there is no gallery.
    scores
        The first one is the baseline: gains are over it, and confidences are judged by its answers.
    k
        Recall@k beside Recall@1; at least 1.
    quality
        [Q] of the queries, higher = better, such as the size of the crop; ties are allowed.
    seed
        Of verification pairs, of the draws of intervals, and of the random confidence.

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
        is not finite, or as for `pe.search`.

    References
    ----------
    Karpukhin et al., Probabilistic Embeddings Revisited, 2022, section 5; Kirchhof et al., URL, NeurIPS 2023 (R-AUROC);
    Warburg et al., Bayesian Triplet Loss, ICCV 2021 (ECE of retrieval).
    """
    items = queries if gallery is None else gallery
    query_labels, gallery_labels = _labels(labels, len(queries), None if gallery is None else len(gallery))
    named = [pe.scores.get(score) for score in scores]
    if not named:
        raise ValueError("evaluate: scores is empty, expected at least one")
    if not k or min(k) < 1:
        raise ValueError(f"evaluate: k is {tuple(k)}, expected numbers of at least 1")
    if quality is not None and np.shape(quality) != (len(queries),):
        raise ValueError(f"evaluate: quality has shape {np.shape(quality)}, expected ({len(queries)},) like queries")
    truth = query_labels, gallery_labels
    pairs, same = verification_pairs(query_labels, gallery_labels, seed)
    results: list[ScoreResult] = []
    first: _Answers | None = None
    for score in named:
        answers = _answers(queries, gallery, truth, score, tuple(k))
        first = first or answers
        together = _numbers(pe.paired(queries[pairs[:, 0]], items[pairs[:, 1]], score), score)
        results.append(
            ScoreResult(
                score.label,
                mean_interval(answers.right, query_labels, seed=seed),
                {str(at): metrics.recall_at_k(answers.ids, *truth, at) for at in k},
                mean_interval(metrics.average_precision_at_r(answers.ids, *truth), query_labels, seed=seed),
                mean_interval(answers.right - first.right, query_labels, seed=seed),
                *_verification(together, same),
            )
        )
    assert first is not None
    return Evaluation(
        queries=len(queries),
        gallery=len(items),
        dim=queries.dim,
        classes=len(np.unique(query_labels)),
        unanswerable=int(np.isnan(first.right).sum()),
        kinds=(type(queries).__name__, type(items).__name__),
        scores=tuple(results),
        confidences=tuple(_confidences(queries, first, quality, seed)),
        shares=SHARES,
        seed=seed,
    )


def verification_pairs(
    query_labels: ArrayLike, gallery_labels: ArrayLike | None, seed: int = 0
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Pairs of a query and a gallery item, as many of one class as of two.

    Parameters
    ----------
    query_labels, gallery_labels
        [Q] and [G]; None where the queries are the gallery: then no item is paired with itself.
    seed
        Of the draws.

    Returns
    -------
    pairs [P, 2] of rows, and whether they are of one class [P]: all pairs of one class, or 20 000 of them, drawn
    without repetition, and as many of two classes, drawn evenly from all such pairs; none where one kind is missing.
    """
    queries = np.asarray(query_labels)
    own = gallery_labels is None
    gallery = queries if gallery_labels is None else np.asarray(gallery_labels)
    rng, order = np.random.default_rng(seed), np.argsort(gallery, kind="stable")
    first, last = (np.searchsorted(gallery[order], queries, side) for side in ("left", "right"))
    sizes = last - first - own
    ends = sizes.cumsum()
    total = int(ends[-1]) if len(ends) else 0
    if not total or int((last - first).sum()) == len(queries) * len(gallery):
        return np.empty((0, 2), np.int64), np.empty(0, np.bool_)
    chosen = np.arange(total) if total <= PAIRS else np.sort(rng.choice(total, PAIRS, replace=False, shuffle=False))
    query = np.searchsorted(ends, chosen, "right")
    place = first[query] + chosen - (ends - sizes)[query]
    if own:  # an item's own place among its class is stepped over
        at = np.empty_like(order)
        at[order] = np.arange(len(order))
        place += place >= at[query]
    alike = np.stack([query, order[place]], 1)
    other = np.empty((0, 2), np.int64)
    while len(other) < len(alike):
        drawn = np.stack([rng.integers(0, n, len(alike)) for n in (len(queries), len(gallery))], 1)
        other = np.concatenate([other, drawn[queries[drawn[:, 0]] != gallery[drawn[:, 1]]]])
    other = other[: len(alike)]
    return np.concatenate([alike, other]), np.repeat([True, False], len(alike))


@dataclass(frozen=True)
class _Answers:
    """How one score ranks the gallery for each query."""

    ids: NDArray[np.int64]
    """[Q, K]; where the queries are the gallery with their own rows."""
    scores: NDArray[np.float64]
    """[Q, 2], of the best two, own rows left out; -inf where there is none."""
    right: NDArray[np.float64]
    """[Q], 1 where the first item is of the query's class, else 0; NaN where none in the gallery is."""


def _answers(
    queries: Distribution,
    gallery: Distribution | None,
    truth: tuple[NDArray[Any], NDArray[Any] | None],
    score: Score,
    ks: tuple[int, ...],
) -> _Answers:
    own, items = gallery is None, queries if gallery is None else gallery
    largest = int(np.unique(truth[0] if truth[1] is None else truth[1], return_counts=True)[1].max())
    depth = max(largest, 2 + own, *(at + own for at in ks))
    found, ids = (_host(x) for x in pe.search(queries, items, depth, score))
    best = found if gallery is not None else metrics.without_self(ids, found)
    right = metrics.hit_at_k(ids, *truth, 1)
    if np.isnan(right).all():
        raise ValueError("evaluate: no query has an item of its class in the gallery")
    return _Answers(ids, _numbers(best[:, :2], score), right)


def _numbers(scores: Any, score: Score) -> NDArray[np.float64]:
    numbers = _host(scores).astype(np.float64)
    if np.isnan(numbers).any():
        raise ValueError(f"evaluate: score {score.label} is NaN for some pairs: see validate() of both sides")
    return numbers


def _verification(scores: NDArray[np.float64], same: NDArray[np.bool_]) -> tuple[float, float, float]:
    """ROC AUC, EER and TAR at `FAR`; scores of -inf or inf are kept in their order."""
    if not len(same):
        return np.nan, np.nan, np.nan
    finite = np.clip(scores, -1e300, 1e300)
    rate = metrics.tar_at_far(finite, same, FAR).tar
    return metrics.roc_auc(finite, same), metrics.equal_error_rate(finite, same), rate


def _confidences(
    queries: Distribution, answers: _Answers, quality: ArrayLike | None, seed: int
) -> Iterator[ConfidenceResult]:
    known = ~np.isnan(answers.right)
    right = answers.right[known]
    kinds: dict[str, Any] = {}
    if not isinstance(queries, Point):
        with np.errstate(divide="ignore"):  # a variance of 0 is told below
            kinds["learned"] = _host(pe.confidence(queries))
    if isinstance(queries, Normal | Point):
        kinds["norm of the mean"] = metrics.norm_confidence(_host(queries.mu))
    kinds["score of the best"] = metrics.top_score_confidence(answers.scores)
    if np.isfinite(answers.scores).all():
        kinds["best less second"] = metrics.margin_confidence(answers.scores)
    kinds["random"] = metrics.random_confidence(len(queries), seed)
    for name, confidence in kinds.items():
        values = np.asarray(confidence, np.float64)[known]
        if not np.isfinite(values).all():
            raise ValueError(
                f"evaluate: the confidence {name!r} of {(~np.isfinite(values)).sum()} queries is not finite"
            )
        bins = metrics.calibration_error(right, values, scale="rank", binning="equal-count")
        points = zip(bins.confidence.tolist(), bins.value.tolist(), bins.count.tolist(), strict=True)
        yield ConfidenceResult(
            name,
            metrics.r_auroc(right, values),
            metrics.ausc(right, values),
            bins.ece,
            None if quality is None else metrics.spearman(np.asarray(quality)[known], values),
            tuple(point for point in points if point[2]),
            tuple(metrics.rejection_curve(right, values, SHARES).tolist()),
        )


def _labels(labels: Any, queries: int, gallery: int | None) -> tuple[NDArray[Any], NDArray[Any] | None]:
    """Labels of both sides, of the lengths of these."""
    pair = isinstance(labels, tuple) and len(labels) == 2 and not np.isscalar(labels[0])
    if pair != (gallery is not None):
        expected = "(labels of the queries, labels of the gallery)" if gallery is not None else "labels of the queries"
        raise ValueError(f"evaluate: labels is {type(labels).__name__}, expected {expected}")
    sides = [np.asarray(_host(x)) for x in (labels if pair else (labels,))]
    for side, found, count in zip(("queries", "gallery"), sides, (queries, gallery), strict=False):
        if found.shape != (count,):
            raise ValueError(f"evaluate: labels of {side} has shape {found.shape}, expected ({count},)")
    return sides[0], sides[1] if pair else None


def _host(x: Any) -> NDArray[Any]:
    """An array or a tensor as an array on the host."""
    if hasattr(x, "detach"):
        x = x.detach().cpu()
        x = x.float() if str(x.dtype) == "torch.bfloat16" else x
    return np.asarray(x)


def _percent(x: float) -> str:
    return "-" if np.isnan(x) else f"{100 * x:.1f}"


def _number(x: float) -> str:
    return "-" if np.isnan(x) else f"{x:.3f}"


def _plain(x: Any) -> Any:
    """What JSON can hold."""
    if isinstance(x, Mapping):
        return {key: _plain(value) for key, value in x.items()}
    if isinstance(x, (tuple, list)):
        return [_plain(value) for value in x]
    return None if isinstance(x, float) and not np.isfinite(x) else x
