"""The watch of a promise as sections of a report."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from peaccel._utils import report
from peaccel.evaluation.formatting import percent, six_digits
from peaccel.evaluation.promise_monitor import WatchedPromise

__all__ = ["monitor_sections"]


def monitor_sections(found: WatchedPromise) -> list[report.Section]:
    """Alarms, the risk and the evidence by day, and the numbers of traffic that have moved."""
    sections = [report.Section("The promise", str(found))]
    if found.days:
        certainty = percent(1 - found.delta, 0)
        sections += [
            report.Section(
                "Risk",
                "Share of wrong audits so far, and its upper confidence bound: the mean risk has not been above this "
                f"line on any day, with a certainty of {certainty} %.",
                _risk(found),
            ),
            report.Section(
                "Evidence",
                "Evidence against the promise, on a logarithmic axis. It begins at 1. While the promise holds it ever "
                f"reaches the dashed line with a probability of at most {percent(found.delta, 0)} %.",
                _evidence(found),
            ),
            report.Section("Audits", "Counts up to the end of each day.", _table(found)),
        ]
    if found.moved:
        header = ("number", "value", "below it in the reference %", "below it in the last 7 days %", "known since")
        rows = [(x.number, six_digits(x.below), percent(x.share), percent(x.seen), x.day) for x in found.moved]
        table = report.Table(header, rows, 1)
        sections.append(report.Section("Traffic", "Numbers that are not as in the reference.", table))
    return sections


def _risk(found: WatchedPromise) -> Figure:
    figure, days = Figure(figsize=(7, 3.6), layout="constrained"), _days(found)
    axes = figure.subplots()
    shares = [100 * x.wrong / x.audits for x in found.days]
    axes.plot(days, shares, ".-", label="wrong so far")
    axes.plot(days, [100 * x.upper for x in found.days], "--", color="C0", label="upper confidence bound")
    axes.axhline(100 * found.alpha, color="#999", linewidth=1, label="promised at most")
    most = max(100 * found.alpha, 100 * found.days[-1].upper, *shares)
    axes.set(ylabel="wrong %", ylim=(0, min(1.5 * most, 102)))
    return _finished(found, figure, shares)


def _evidence(found: WatchedPromise) -> Figure:
    figure = Figure(figsize=(7, 3.6), layout="constrained")
    axes = figure.subplots()
    exponents = [x.evidence / math.log(10) for x in found.days]
    axes.plot(_days(found), exponents, ".-", label="evidence")
    axes.axhline(-math.log10(found.delta), color="#999", linestyle="--", label="where there is an alarm")
    axes.yaxis.set_major_formatter(lambda exponent, place: f"$10^{{{exponent:g}}}$")
    axes.set(ylabel="evidence")
    return _finished(found, figure, exponents)


def _finished(found: WatchedPromise, figure: Figure, curve: Sequence[float]) -> Figure:
    """The picture with its legend, and with the alarm on its curve."""
    (axes,), days = figure.axes, _days(found)
    if found.alarm is not None:
        first = days == np.datetime64(found.alarm)
        axes.plot(days[first], np.array(curve)[first], "o", color=report.WRONG, label="alarm", zorder=3)
    axes.tick_params(axis="x", rotation=30)
    axes.spines[["top", "right"]].set_visible(False)
    report.legend(figure, axes)
    return figure


def _days(found: WatchedPromise) -> NDArray[np.datetime64]:
    return np.array([x.day for x in found.days], "datetime64[D]")


def _table(found: WatchedPromise) -> report.Table:
    header = ("day", "audits", "wrong", "risk at most %", "evidence")
    rows = [
        (x.day, str(x.audits), str(x.wrong), percent(x.upper), six_digits(math.exp(min(x.evidence, 700))))
        for x in found.days
    ]
    days = [x.day for x in found.days]
    return report.Table(header, rows, 1, chosen=days.index(found.alarm) if found.alarm else None)
