"""Figures of docs/reproduction, as SVG: a forest of claims, settings that were tried, a few measures of each row."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from reproduction.claims import Decision
from reproduction.ledger import Record
from reproduction.plan import WHOLE, Cell, Plan, Task, rows_of
from reproduction.search import trials
from reproduction.sections import SECTIONS, Section, file_of, measured
from reproduction.student import where_mean
from reproduction.tables import ABOVE, pairs

__all__ = ["figures", "forest"]

Records = Mapping[Cell, Record]

STYLE: dict[Any, Any] = {
    "svg.hashsalt": "reproduction",
    "svg.fonttype": "none",
    "font.size": 8,
    "axes.spines.top": False,
    "axes.spines.right": False,
}
COLOURS = ("#2166ac", "#e08214", "#1b7837", "#c51b7d")
LINEAR = 5
"""Points to either side of zero within which the forest's axis is linear."""
FARTHEST = 100


def figures(plan: Plan, last: Records, records: Records) -> Iterator[tuple[str, str]]:
    """Names and texts of all figures but the forest; `last` has a retry in place of what failed."""
    for title, section in SECTIONS.items():
        if text := _section(plan, last, section):
            yield file_of(title, "svg"), text
    if text := _search(plan, records):
        yield "search.svg", text
    if text := _pairs(plan, last, records):
        yield "pairs.svg", text


@mpl.rc_context(STYLE)
def _section(plan: Plan, records: Records, section: Section) -> str | None:
    """A panel for each task: rows from the best down, a dot with its 95 % interval for each measure."""
    measures = {name: section.measures[name] for name in section.drawn}
    panels = {task: found for task in section.tasks if (found := measured(plan, records, measures, task))}
    if not panels:
        return None
    order = _order(next(iter(panels.values())), section.drawn)
    figure = Figure((9, 1.2 + 0.19 * len(order)), layout="constrained")
    axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    for ax, (task, found) in zip(axes, panels.items(), strict=True):
        for colour, name in zip(COLOURS, section.drawn, strict=False):
            known = [row for row in order if (row, name) in found]
            wheres = [where_mean(list(found[row, name].values()), ABOVE) for row in known]
            y = [order.index(row) for row in known]
            reach = [where.high - where.value if where.seeds > 1 else 0 for where in wheres]
            ax.errorbar([w.value for w in wheres], y, xerr=reach, fmt="o", ms=3.5, lw=1, color=colour, label=name)
        ax.set_title("" if section.tasks == ("hib",) else task)
        _lined(ax, order)
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False)
    return _svg(figure)


def _order(found: Mapping[tuple[str, str], Mapping[int, float]], names: Sequence[str]) -> list[str]:
    """Rows by the first measure, those that lack it last."""
    rows = dict.fromkeys(row for row, _ in found)

    def mean(row: str) -> float:
        points = found.get((row, names[0]), {})
        return float(np.mean(list(points.values()))) if points else -np.inf

    return sorted(rows, key=mean, reverse=True)


@mpl.rc_context(STYLE)
def _search(plan: Plan, records: Records) -> str | None:
    """MAP@R on validation classes of each row's settings: chance, of which the best was taken."""
    found = {row: x for row in rows_of(plan, "numbers") if len(x := trials(plan, records, row))}
    if not found:
        return None
    order = sorted(found, key=lambda row: -found[row].max())
    figure = Figure((9, 1.2 + 0.19 * len(order)), layout="constrained")
    ax = figure.subplots()
    for y, row in enumerate(order):
        ax.plot(found[row], [y] * len(found[row]), "o", ms=3.5, color=COLOURS[0], alpha=0.5)
    ax.plot(
        [found[row][0] for row in order], range(len(order)), "D", ms=4, color=COLOURS[1], label="the recipe's settings"
    )
    ax.plot(
        [found[row].max() for row in order],
        range(len(order)),
        "o",
        ms=7,
        mfc="none",
        color="black",
        label="taken: the best",
    )
    ax.set_xlabel("MAP@R of validation classes in points, mean of three splits")
    _lined(ax, order)
    figure.legend(loc="outside upper center", ncols=2, frameon=False)
    return _svg(figure)


@mpl.rc_context(STYLE)
def _pairs(plan: Plan, last: Records, records: Records) -> str | None:
    """Differences of pairs of rows: by common draws with their intervals, at chosen settings and at recipes."""
    found = [pair for pair in pairs(plan, last, records) if pair.drawn.seeds > 1]
    if not found:
        return None
    names = list(dict.fromkeys(pair.name for pair in found))
    figure = Figure((9, 1.2 + 0.19 * len(names)), layout="constrained")
    panels = [task for task in WHOLE if any(pair.task == task for pair in found)]
    axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    for ax, task in zip(axes, panels, strict=True):
        shown = [pair for pair in found if pair.task == task]
        y = [names.index(pair.name) for pair in shown]
        drawn = [pair.drawn for pair in shown]
        reach = [where.high - where.value for where in drawn]
        ax.plot([pair.recipe for pair in shown], y, "D", ms=4, color=COLOURS[1], label="recipes, validation MAP@R")
        ax.plot([pair.chosen.value for pair in shown], y, "o", ms=7, mfc="none", color="black", label="chosen settings")
        ax.errorbar(
            [w.value for w in drawn], y, xerr=reach, fmt="o", ms=3.5, lw=1, color=COLOURS[0], label="common draws"
        )
        ax.axvline(0, color="#888888", lw=0.7)
        ax.set_title(task)
        _lined(ax, names)
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False)
    return _svg(figure)


@mpl.rc_context(STYLE)
def forest(by_task: Mapping[Task, Sequence[Decision]]) -> str:
    """Each difference with its 95 % interval, over a band where it is claimed to lie."""
    every = (decision.claim for decisions in by_task.values() for decision in decisions)
    claims = {claim.number: claim for claim in sorted(every, key=lambda claim: claim.number)}
    heights = {number: max(2, len(claim.comparisons)) for number, claim in claims.items()}
    tops = dict(zip(claims, np.cumsum([0, *(h + 1 for h in heights.values())]).tolist(), strict=False))
    total = sum(heights.values()) + len(heights)
    figure = Figure((9, 1 + 0.115 * total), layout="constrained")
    ax = figure.subplots()
    for number, claim in claims.items():
        words = textwrap.shorten(claim.text, 92, placeholder=" ...")
        label = "\n".join(textwrap.wrap(f"{number}  {words}", 48))
        ax.text(-1.35 * FARTHEST, tops[number] + heights[number] / 2 - 0.5, label, ha="right", va="center", fontsize=7)
        for i, comparison in enumerate(claim.comparisons):
            low, high = np.clip(comparison.between, -FARTHEST, FARTHEST)
            ax.add_patch(Rectangle((low, tops[number] + i - 0.5), high - low, 1, color="#d9ecd3", lw=0))
    seen: list[Task] = []
    for task, decisions in by_task.items():
        shift = 0.2 * (WHOLE.index(task) * 2 - 1) if task in WHOLE else 0.0
        for decision in decisions:
            for i, where in enumerate(decision.comparisons):
                if where.seeds < 2:
                    continue
                y = tops[decision.claim.number] + i + shift
                named = task if task not in seen else None
                seen.append(task)
                colour = COLOURS[list(by_task).index(task)]
                reach = where.high - where.value
                ax.errorbar([where.value], [y], xerr=[reach], fmt="o", ms=2.5, lw=1, color=colour, label=named)
    ax.axvline(0, color="#888888", lw=0.7)
    ax.set_xscale("symlog", linthresh=LINEAR)
    ax.set_xlim(-FARTHEST, FARTHEST)
    ax.set_xticks(ticks := [-50, -20, -10, -5, -2, 0, 2, 5, 10, 20, 50], [f"{x:g}" for x in ticks])
    ax.set_ylim(total, -1)
    ax.set_yticks([])
    ax.spines["left"].set_visible(False)
    ax.set_xlabel("points of a hundred, 95 % interval over splits or common draws; green: as claimed")
    if seen:
        figure.legend(loc="outside upper center", ncols=len(by_task), frameon=False)
    return _svg(figure)


def _lined(ax: Axes, rows: Sequence[str]) -> None:
    ax.set_yticks(range(len(rows)), rows)
    ax.set_ylim(len(rows) - 0.5, -0.5)
    ax.grid(axis="both", color="#e5e5e5", lw=0.6)
    ax.set_axisbelow(True)


def _svg(figure: Figure) -> str:
    """The same text whenever the figure is the same."""
    stream = io.StringIO()
    figure.savefig(stream, format="svg", metadata={"Date": None})
    return stream.getvalue()
