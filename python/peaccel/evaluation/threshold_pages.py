"""The choice of a threshold as sections of a report."""

from __future__ import annotations

import math

import numpy as np
from matplotlib.figure import Figure

from peaccel._utils import report
from peaccel.evaluation.columns import explained
from peaccel.evaluation.compared_confidences import ComparedConfidence
from peaccel.evaluation.formatting import percent
from peaccel.evaluation.pages import calibration, tables
from peaccel.evaluation.pair_rates import FEWEST
from peaccel.evaluation.threshold_results import CostResult, ThresholdChoice, ThresholdResult

__all__ = ["threshold_sections"]

SURE = 0.05
"""The share of what is accepted from which on the curve of risk decides how high its axis goes."""


def threshold_sections(found: ThresholdChoice) -> list[report.Section]:
    """Tables and pictures of what `pe.choose_threshold` or `pe.choose_pair_threshold` found."""
    accepted = "pairs" if found.of_pairs else "queries"
    (title, first), *others = found.tables().items()
    name = found.score or "score"
    if found.confidence != "score":
        name = f"{found.confidence} of {name}"
    sections = [
        report.Section("The threshold", found.sentence()),
        *tables({title: first}, (f"{found.summary()}.",), explained(CostResult, ThresholdResult)),
        *tables(dict(others), [_about(title) for title, _ in others], explained(ComparedConfidence)),
        report.Section(
            "Risk against coverage",
            f"Share of the accepted {accepted} that is wrong, against the share of the {accepted} that is accepted, "
            f"over all thresholds{_counted(found)}. The dashed line is its upper confidence bound at one threshold by "
            f"itself ({percent(1 - found.delta, 0)} %), on the tested {accepted}: a promise is possible where it lies "
            "below the promised share.",
            _coverage(found),
        ),
        report.Section(
            "Reliability",
            f"The probability that {'a pair' if found.of_pairs else 'an answer'} is right, fitted to the scores of "
            f"{'other' if found.of_pairs else 'queries of other'} {found.grouping}, and the share that is right, in "
            "bins of about equal count: on the grey line it may be believed, and the further points spread along it, "
            "the more the score tells.",
            calibration({name: found.calibration}, accepted, "pair" if found.of_pairs else "answer"),
        ),
    ]
    if found.trade_off:
        sections.append(_trade_off(found))
    return [
        *sections,
        report.Section(
            "Scores",
            "Where the scores of each kind lie, in shares of it: the less they overlap, the more a threshold tells. "
            "The first and the last bin hold what lies beyond.",
            _histogram(found, name),
        ),
    ]


def _about(title: str) -> str:
    """Meaning of a table after the first."""
    if title.startswith("Confidences"):
        return "The promise is not of these labels: by them the confidence is chosen that answers most."
    return "The same, by another promise."


def _counted(found: ThresholdChoice) -> str:
    """Unit of the curve of risk, as a clause."""
    each = {"class": f", each of the {found.grouping} counting once", "group": ", each group counting once"}
    return each.get(found.results[0].per, "")


def _coverage(found: ThresholdChoice) -> Figure:
    (coverage, risk), (tested, upper) = np.array(found.coverage).T, np.array(found.bound).T
    figure = Figure(figsize=(5.5, 3.6), layout="constrained")
    axes = figure.subplots()
    axes.plot(100 * coverage, 100 * risk, linewidth=2, label="wrong on these data", drawstyle="steps-pre")
    axes.plot(100 * tested, 100 * upper, linewidth=1, linestyle="--", color="C0", label="upper confidence bound")
    chosen, highest = found.chosen, max(risk[coverage >= SURE].max(), upper[tested >= SURE].min())
    if chosen is not None and chosen.promise == "wrong":
        axes.axhline(100 * chosen.alpha, color="#999", linewidth=1, label="promised at most")
        highest = max(highest, chosen.alpha)
    if chosen is not None and not math.isinf(chosen.threshold) and chosen.accepted:
        wrong = chosen.wrong if chosen.wrong_by_class is None else chosen.wrong_by_class
        point = 100 * chosen.accepted, 100 * wrong
        axes.plot(*point, "o", color=report.WRONG, label="the threshold", zorder=3, clip_on=False)
        highest = max(highest, wrong)
    accepted = "pairs" if found.of_pairs else "queries"
    axes.set(xlabel=f"accepted {accepted} %", ylabel="wrong of these %", xlim=(0, 100))
    axes.set_ylim(0, min(105 * highest, 102) or 1)
    axes.spines[["top", "right"]].set_visible(False)
    report.legend(figure, axes)
    return figure


def _trade_off(found: ThresholdChoice) -> report.Section:
    """Both kinds of errors against each other."""
    chosen, point = found.chosen, None
    if chosen is not None and chosen.false is not None and not math.isinf(chosen.threshold):
        point = chosen.false, 1 - chosen.found
    if found.of_pairs:
        text = (
            "Share of matching pairs that are rejected (FRR), against the share of pairs that do not match that are "
            "accepted (FAR), over all thresholds: the lower the line, the better. In grey fewer than ten pairs that do "
            "not match are accepted, which may be chance; what is 0 is drawn as half a pair."
        )
    else:
        text = (
            "Share of queries that are not given their right item (FNIR), against the share of searches without a mate "
            "that return anything (FPIR), over all thresholds: the lower the line, the better. In grey fewer than ten "
            "of these return anything, which may be chance; what is 0 is drawn as half a search."
        )
    figure = report.trade_off(
        {found.score or "score": found.trade_off},
        (1 / (2 * found.others), 1 / (2 * found.matches)),
        FEWEST / found.others,
        ("FAR %", "FRR %") if found.of_pairs else ("FPIR %", "FNIR %"),
        point,
    )
    return report.Section("Detection error trade-off", text, figure)


def _histogram(found: ThresholdChoice, number: str) -> Figure:
    figure = Figure(figsize=(5.5, 3.6), layout="constrained")
    axes = figure.subplots()
    for i, (name, counts) in enumerate(found.counts.items()):
        shares = 100 * np.array(counts) / sum(counts)
        axes.stairs(shares, found.edges, fill=True, alpha=0.25, color=f"C{i}")
        axes.stairs(shares, found.edges, linestyle=report.STYLES[i], linewidth=1.5, color=f"C{i}", label=name)
    if found.chosen is not None and found.edges[0] <= found.chosen.threshold <= found.edges[-1]:
        axes.axvline(found.chosen.threshold, color=report.WRONG, linewidth=1.5, label="the threshold")
    axes.set(xlabel=number, ylabel="share of the kind %", xlim=(found.edges[0], found.edges[-1]))
    axes.spines[["top", "right"]].set_visible(False)
    report.legend(figure, axes)
    return figure
