"""The choice of a threshold as sections of a report."""

from __future__ import annotations

from peaccel._utils import report
from peaccel.evaluation import plot
from peaccel.evaluation.columns import explained
from peaccel.evaluation.compared_confidences import ComparedConfidence
from peaccel.evaluation.formatting import percent
from peaccel.evaluation.pages import calibration, tables
from peaccel.evaluation.threshold_results import CostResult, ThresholdChoice, ThresholdResult, ThresholdWithin

__all__ = ["threshold_sections"]


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
        *tables(dict(others), [_about(title) for title, _ in others], explained(ComparedConfidence, ThresholdWithin)),
        report.Section(
            "Risk against coverage",
            f"Share of the accepted {accepted} that is wrong, against the share of the {accepted} that is accepted, "
            f"over all thresholds{_counted(found)}. The dashed line is its upper confidence bound at one threshold by "
            f"itself ({percent(1 - found.delta, 0)} %), on the tested {accepted}: a promise is possible where it lies "
            "below the promised share.",
            report.drawn(plot.risk_coverage, found),
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
            report.drawn(plot.score_histogram, found),
        ),
    ]


def _about(title: str) -> str:
    """Meaning of a table after the first."""
    if title.startswith("Within"):
        return "Each group has its own threshold, for its queries alone; the certainty is that of all groups together."
    if title.startswith("Confidences"):
        return "The promise is not of these labels: by them the confidence is chosen that answers most."
    return "The same, by another promise."


def _counted(found: ThresholdChoice) -> str:
    """Unit of the curve of risk, as a clause."""
    each = {"class": f", each of the {found.grouping} counting once", "group": ", each group counting once"}
    return each.get(found.results[0].per, "")


def _trade_off(found: ThresholdChoice) -> report.Section:
    """Both kinds of errors against each other."""
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
    return report.Section("Detection error trade-off", text, report.drawn(plot.det, found))
