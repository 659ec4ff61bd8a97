"""An evaluation as sections of a report."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

import peaccel as pe
from peaccel import metrics, report
from peaccel.distributions import Distribution
from peaccel.evaluation.answers import on_host
from peaccel.evaluation.protocol import Evaluation
from peaccel.metrics._relation import Relation
from peaccel.scores import Score

__all__ = ["retrievals", "sections"]

PICTURED = 24
BINS = 6
RETRIEVED = 5
QUERIES = 12


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
    baseline, about = found.scores[0].score, (found.summary(), _about_confidence(found))
    tables = [
        report.Section(title, text, report.table(*cells, text_columns=1))
        for text, (title, cells) in zip(about, found.tables().items(), strict=True)
    ]
    curves = {c.confidence: c.curve for c in found.confidences}
    return [
        *tables,
        report.Section(
            "Rejecting the least confident queries",
            f"Recall@1 of {baseline} over the queries that are kept. A learned confidence is worth something where its "
            "line lies above those of the scores themselves, which need no training.",
            report.curves(found.shares, curves, "share of queries rejected", "Recall@1"),
        ),
        report.Section(
            "Calibration",
            f"Recall@1 of {baseline} in bins of equal count, from the least confident queries to the most confident.",
            _calibration(found),
        ),
        *_of_items(confidence, quality, images, novel),
    ]


def retrievals(
    queries: Distribution,
    gallery: Distribution | None,
    truth: Relation,
    scores: tuple[Score, Score],
    images: tuple[NDArray[Any], NDArray[Any]],
    seed: int = 0,
) -> report.Section:
    """What some queries find by two scores, with a mark where it is wrong.

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
        ids = on_host(pe.search(queries, items, min(RETRIEVED + truth.own, len(items)), score).ids)
        right.append(metrics.relevance(ids, truth))
        found.append(metrics.without_self(ids) if truth.own else ids)
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


def _about_confidence(found: Evaluation) -> str:
    return (
        f"Of the queries that have an answer. AUROC: how probably a query answered rightly by {found.scores[0].score} "
        "has more confidence than one answered wrongly (0.5: it says nothing). AUSC: mean Recall@1 while queries are "
        "rejected. ECE: of ranks."
    )


def _calibration(found: Evaluation) -> Figure:
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    for c in found.confidences:
        ranks, values, _ = zip(*c.calibration, strict=True)
        axes.plot(ranks, values, "o-", label=c.confidence, markersize=4)
    axes.set(xlabel="rank of confidence", ylabel="Recall@1", xlim=(0, 1), ylim=(0, 1))
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
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
    edges = np.histogram_bin_edges(np.concatenate(list(sides.values())), 40)
    for name, confidence in sides.items():
        axes.hist(confidence, edges.tolist(), alpha=1 / len(sides), label=name)
    axes.set(xlabel="confidence", ylabel="queries")
    if len(sides) > 1:
        axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    return figure
