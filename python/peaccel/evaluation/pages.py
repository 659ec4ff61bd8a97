"""An evaluation, and the choice of a score, as sections of a report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from peaccel import metrics, retrieval
from peaccel._utils import report
from peaccel._utils.arrays import on_host
from peaccel.distributions import Distribution
from peaccel.evaluation import plot
from peaccel.evaluation.choose_score import BASE, RankedScore, ScoreChoice
from peaccel.evaluation.columns import explained
from peaccel.evaluation.formatting import Table
from peaccel.evaluation.intervals import Interval
from peaccel.evaluation.pair_rates import FEWEST
from peaccel.evaluation.results import ConfidenceResult, Evaluation, OpenSetResult, ScoreResult
from peaccel.fits.reliability_curve import ReliabilityCurve
from peaccel.metrics._relation import Relation
from peaccel.metrics.open_set import bin_edges
from peaccel.scores import Score

__all__ = ["calibration", "choice", "retrievals", "sections", "tables"]

PICTURED = 24
BINS = 6
RETRIEVED = 5
QUERIES = 12
ABOUT_CONFIDENCE = (
    "Of the queries that have an answer: whether each confidence tells which of them are answered rightly. What is "
    "worth something lies above random confidence in AUROC and AUSC, and below it in AURC and Brier score."
)
ABOUT_OPEN_SET = (
    "A query is returned its best item where that scores at least a threshold, and else nothing. A threshold chosen by "
    "these very queries keeps its FPIR on them; one that keeps it on others is what pe.limit_false_matches finds."
)


def sections(
    found: Evaluation,
    confidence: NDArray[Any] | None = None,
    quality: NDArray[Any] | None = None,
    images: NDArray[Any] | None = None,
    novel: NDArray[Any] | None = None,
) -> list[report.Section]:
    """Tables and pictures of an evaluation.

    Parameters
    ----------
    found
        The result of `pe.evaluate`.
    confidence
        [Q], the learned one; None where there is none: then its pictures are left out.
    quality
        [Q] of the queries, or None.
    images
        [Q, H, W] of the queries, ink in [0, 1], or None.
    novel
        [M], the learned confidence of novel queries, or None.
    """
    baseline = found.scores[0].score
    apart = "classes of novel ones" if found.novel_classes else "novel ones one by one, as their labels are not given"
    drawn = f"Intervals draw {found.grouping} of queries and, with a threshold for each draw, {apart}."
    about = (
        f"{found.sentence()} {found.summary()}.",
        *([f"{ABOUT_OPEN_SET} {drawn}"] if found.open_set else []),
        ABOUT_CONFIDENCE,
    )
    return [
        *tables(found.tables(), about, explained(ScoreResult, OpenSetResult, ConfidenceResult)),
        *_trade_off(found),
        report.Section(
            "Rejecting the least confident queries",
            f"Wrong answers by {baseline} among the queries that are kept. A learned confidence is worth something "
            "where its line lies below those of the scores themselves, which need no training.",
            report.drawn(plot.error_discard, found, size=(7, 4)),
        ),
        report.Section(
            "Calibration",
            f"The probability that {baseline} answers rightly, fitted to the confidence of queries of other classes, "
            "and the share that it does answer rightly, in bins of about equal count; below, how many queries these "
            "hold. On the grey line the probability may be believed; the further points spread along it, the more the "
            "confidence tells.",
            calibration({c.confidence: c.calibration for c in found.confidences}),
        ),
        *_of_items(confidence, quality, images, novel),
    ]


def choice(found: ScoreChoice) -> list[report.Section]:
    """Table and pictures of what `pe.choose_score` found."""
    names = [s.name for s in found.scores]
    recalls = {"Recall@1": [_ends(s.recall_at_1) for s in found.scores]}
    gains = {
        "over cosine": [None if s.name == BASE else _ends(s.gain) for s in found.scores],
        "over equal uncertainties": [None if s.worth is None else _ends(s.worth) for s in found.scores],
    }
    return [
        *tables(
            found.tables(),
            (f"{found.sentence()} {found.summary()}",),
            explained(RankedScore),
            text_columns=2,
            chosen=found.scores.index(found.best),
        ),
        report.Section(
            "Gains of Recall@1",
            "Intervals that hold for all scores at once: right of 0 a score is better than cosine on these items, or "
            "its uncertainties better than one and the same for all; where an interval holds 0, it may be chance.",
            report.intervals(names, gains, "gain of Recall@1, points of a hundred"),
        ),
        report.Section(
            "Recall@1",
            "Of each score, in its interval; items of a class are drawn together.",
            report.intervals(names, recalls, "Recall@1 %"),
        ),
    ]


def tables(
    found: Mapping[str, Table],
    about: Sequence[str],
    columns: Mapping[str, str],
    text_columns: int = 1,
    chosen: int | None = None,
) -> list[report.Section]:
    """Each table with a text above it, what its columns mean below, and the row that was chosen marked, if any."""
    shown = []
    for text, (title, (header, rows)) in zip(about, found.items(), strict=True):
        names = {("R@k %" if name.startswith("R@") else name): None for name in header}
        explained = {name: columns[name] for name in names if name in columns}
        shown.append(report.Section(title, text, report.Table(header, rows, text_columns, explained, chosen)))
    return shown


def _ends(x: Interval) -> tuple[float, float, float]:
    return 100 * x.value, 100 * x.low, 100 * x.high


def retrievals(
    queries: Distribution,
    gallery: Distribution | None,
    truth: Relation,
    scores: tuple[Score, Score],
    images: tuple[NDArray[Any], NDArray[Any]],
    seed: int = 0,
) -> report.Section:
    """Answers of some queries by two scores, with a mark where they are wrong.

    Parameters
    ----------
    queries, gallery
        As for `pe.evaluate`; at least one query can be answered.
    truth
        Which items are right for the queries.
    scores
        Queries are shown that only one of them answers rightly, if there are any; else those that both do not, or all.
    images
        Images of the queries [Q, H, W] and of the gallery [G, H, W], ink in [0, 1].
    seed
        Seed of the queries that are drawn where there are many.
    """
    items = queries if gallery is None else gallery
    found, right = [], []
    for score in scores:
        ids = on_host(
            retrieval.search(
                queries, items, min(RETRIEVED + truth.leave_one_out, len(items)), score, exclude=truth.exclude
            ).ids
        )
        right.append(metrics.relevance(ids, truth))
        found.append(metrics.without_self(ids) if truth.leave_one_out else ids)
    first, second = (hits[:, 0] for hits in right)
    answerable = truth.sizes() > 0
    kinds = {
        "queries that only one of the two answers rightly": first != second,
        "queries that both answer wrongly": answerable & ~first,
        "queries, all of which both answer rightly": answerable,
    }
    what, rows = next((what, np.flatnonzero(of)) for what, of in kinds.items() if of.any())
    shown = np.sort(np.random.default_rng(seed).permutation(rows)[:QUERIES])
    return report.Section(
        f"Retrievals by {scores[0].label} and {scores[1].label}",
        f"{len(shown)} of {len(rows)} {what}, drawn by the seed. Green: right, red: wrong.",
        report.retrievals(
            images[0][shown],
            images[1][np.stack(found, 1)[shown]],
            np.stack(right, 1)[shown],
            (scores[0].name, scores[1].name),
        ),
    )


def _trade_off(found: Evaluation) -> list[report.Section]:
    """The detection error trade-off of each score, where there are novel queries."""
    if not found.open_set:
        return []
    figure = report.drawn(plot.det, found)
    text = (
        "Share of queries that are not returned their right item (FNIR), against the share of novel queries that are "
        "returned anything (FPIR), over all thresholds: the lower a line, the better. In grey fewer than ten novel "
        "queries are returned anything, which may be chance. What is 0 is drawn as half a query."
    )
    return [report.Section("Detection error trade-off", text, figure)]


def calibration(
    points: Mapping[str, Sequence[tuple[float, float, int]]], counted: str = "queries", judged: str = "answer"
) -> Figure:
    """By the name of each probability the points over the line on which they should lie, and what each stands for."""
    shown = {name: each for name, each in points.items() if each}
    figure = Figure(figsize=(max(2.2 * len(shown) + 0.6, 4.4), 3.6), layout="constrained")
    panels = figure.subplots(2, max(len(shown), 1), sharex=True, sharey="row", height_ratios=[3, 1], squeeze=False)
    for (name, each), above, below in zip(shown.items(), *panels, strict=True):
        predicted, observed, count = zip(*each, strict=True)
        plot.reliability(ReliabilityCurve(*map(np.array, (predicted, observed, count))), ax=above)
        above.set(xlabel="", ylabel="")
        wrong = sum(n * (1 - share) for _, share, n in each)
        above.set_title(name if wrong >= FEWEST else f"{name}\n(too few are wrong to tell)", fontsize=9)
        below.vlines(predicted, 0, count, linewidth=3)
    for axes in panels.flat:
        axes.spines[["top", "right"]].set_visible(False)
    figure.supxlabel(f"probability that the {judged} is right", fontsize=10)
    panels[0, 0].set_ylabel(f"share of right {judged}s")
    most = max((x[2] for each in shown.values() for x in each), default=1)
    panels[1, 0].set(ylabel=counted, ylim=(0, 1.05 * most))
    return figure


def _of_items(
    confidence: NDArray[Any] | None,
    quality: NDArray[Any] | None,
    images: NDArray[Any] | None,
    novel: NDArray[Any] | None,
) -> list[report.Section]:
    if confidence is None:
        return []
    sides = {"queries": confidence} | ({} if novel is None else {"novel queries": novel})
    found = [
        report.Section(f"Confidence of the {' and of the '.join(sides)}", "How often each comes.", _histogram(sides))
    ]
    if quality is not None:
        about = "Each point is a query. Quality is what was given, and is never shown to a model."
        points = report.scatter({"queries": (quality, confidence)}, "quality", "confidence")
        found.append(report.Section("Confidence against quality", about, points))
    if images is not None:
        order = np.argsort(-confidence, kind="stable")
        bins = [images[rows].mean(0) for rows in np.array_split(order[::-1], min(BINS, len(order)))]
        names = [f"{i + 1} of {len(bins)}" for i in range(len(bins))]
        text = f"Mean of the queries in {len(bins)} bins of equal count, least confident first."
        found.append(report.Section("Mean image by confidence", text, report.image_grid(np.stack(bins), names)))
        for title, rows in (("Most", order[:PICTURED]), ("Least", order[::-1][:PICTURED])):
            pictures = report.image_grid(images[rows], [f"{confidence[row]:.3g}" for row in rows])
            found.append(report.Section(f"{title} confident queries", f"{title} confident first.", pictures))
    return found


def _histogram(sides: dict[str, NDArray[Any]]) -> Figure:
    figure = Figure(figsize=(7, 3), layout="constrained")
    axes = figure.subplots()
    edges = bin_edges(np.concatenate(list(sides.values())), 40)
    for name, confidence in sides.items():
        axes.hist(confidence, edges.tolist(), alpha=1 / len(sides), label=name)
    axes.set(xlabel="confidence", ylabel="queries")
    axes.spines[["top", "right"]].set_visible(False)
    if len(sides) > 1:
        report.legend(figure, axes)
    return figure
