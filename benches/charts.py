"""Draw the bars of docs/performance.md from the tables beside it: `python -m benches.charts`."""

from __future__ import annotations

import csv
import io
import re
import textwrap
from collections.abc import Sequence

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benches.record import FOLDER

STYLE = {"svg.hashsalt": "performance", "svg.fonttype": "none", "font.size": 8, "axes.spines.top": False}
STYLE |= {"axes.spines.right": False}
BEFORE, BEHIND = "#2166ac", "#e08214"
COLOURS = ("#c6dbef", "#6baed6", "#2171b5", "#08306b")
COSTS = {"bytes": "B in float32", "rerank 100": "rerank 100 us", "exact search": "exact ns a pair"}


def table(name: str) -> list[dict[str, str]]:
    """The rows of a table, by the names of its columns."""
    with (FOLDER / f"{name}.csv").open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def charts() -> dict[str, str]:
    """The texts of all charts, by the names of their files."""
    with mpl.rc_context(STYLE):
        return {"summary.svg": _summary(), "losses.svg": _losses(), "sizes.svg": _sizes(), "recall.svg": _recall()}


def _summary() -> str:
    """How many times as fast as a peer: above 1 ahead."""
    found = []
    for row in table("summary"):
        if ratio := re.match(r"([\d.]+)x (as fast|of its time)", row["reached"]):
            times = float(ratio[1]) if ratio[2] == "as fast" else 1 / float(ratio[1])
            found.append((f"{row['work']}\nbeside {row['against']}", times))
    figure = Figure((9, 0.55 * len(found) + 0.6), layout="constrained")
    ax = figure.subplots()
    for y, (_, times) in enumerate(found):
        ax.barh(y, times - 1, left=1, height=0.6, color=BEFORE if times >= 1 else BEHIND)
        ax.annotate(f"{times:.3g}x", (times, y), xytext=(4, 0), textcoords="offset points", va="center")
    ax.set_xscale("log")
    ax.set_xlim(0.7, 400)
    ax.set_xticks(ticks := [1, 2, 5, 10, 50, 200], [f"{x}x" for x in ticks])
    ax.set_xlabel("times as fast")
    return _labelled(figure, ax, [label for label, _ in found])


def _losses() -> str:
    """Time over that of plain torch, by batch."""
    rows = table("losses")
    batches = [name for name in rows[0] if name.isdigit()]
    figure = Figure((9, 0.5 * len(rows) + 0.8), layout="constrained")
    ax = figure.subplots()
    for i, batch in enumerate(batches):
        known = [(y, float(row[batch].rstrip("x"))) for y, row in enumerate(rows) if row[batch]]
        places = [y + 0.2 * (i - (len(batches) - 1) / 2) for y, _ in known]
        ax.barh(places, [x for _, x in known], height=0.18, color=COLOURS[i], label=f"{batch} items")
    ax.axvline(1, color="black", lw=0.8)
    ax.set_xlabel("time of a loss, of that of the best plain form in torch (1: the same; less is faster)")
    ax.legend(frameon=False)
    return _labelled(figure, ax, [row["loss, batch"] for row in rows])


def _sizes() -> str:
    """The cost of an uncertainty over plain vectors, of the largest dimension."""
    rows = [row for row in table("sizes") if row["D"] == "128" and "FAISS" not in row["items"]]
    plain, *others = rows
    figure = Figure((9, 0.6 * len(others) + 0.8), layout="constrained")
    ax = figure.subplots()
    for i, (name, column) in enumerate(COSTS.items()):
        x = [float(row[column].replace(",", "")) / float(plain[column].replace(",", "")) for row in others]
        places = [y + 0.25 * (i - 1) for y in range(len(others))]
        ax.barh(places, x, height=0.22, color=COLOURS[i + 1], label=name)
    ax.axvline(1, color="black", lw=0.8)
    ax.set_xlabel("of what plain vectors take by cosine (1: the same), 128 dimensions")
    ax.legend(frameon=False)
    return _labelled(figure, ax, [row["items"] for row in others])


def _recall() -> str:
    """Recall and time of a reranked search by the length of its shortlist, and the time of an exact one."""
    figure = Figure((9, 2.6), layout="constrained")
    panels = figure.subplots(1, 2)
    names = {"recall of the best ten": "share of the true best ten", "us a query": "us a query, one thread"}
    exact, *found = table("recall")
    for i, index in enumerate(dict.fromkeys(row["index"] for row in found)):
        rows = [row for row in found if row["index"] == index]
        x = [int(row["shortlist"]) for row in rows]
        for ax, name in zip(panels, names, strict=True):
            y = [float(row[name]) for row in rows]
            ax.plot(x, y, "os"[i] + "-", color=COLOURS[i + 1], label=index, markersize=4)
    for ax, label in zip(panels, names.values(), strict=True):
        ax.set(xscale="log", xlabel="shortlist", ylabel=label)
        ax.set_xticks(x, map(str, x))
        ax.minorticks_off()
    panels[1].axhline(float(exact["us a query"]), color=COLOURS[3], linewidth=1, label=exact["index"])
    panels[1].set_ylim(0)
    panels[1].legend(frameon=False)
    return _written(figure)


def _labelled(figure: Figure, ax: Axes, labels: Sequence[str]) -> str:
    """A chart with a label for each row, from above."""
    ax.set_yticks(range(len(labels)), ["\n".join(textwrap.fill(x, 60) for x in y.split("\n")) for y in labels])
    ax.set_ylim(len(labels) - 0.5, -0.5)
    return _written(figure)


def _written(figure: Figure) -> str:
    """The text of a chart, without its date."""
    stream = io.StringIO()
    figure.savefig(stream, format="svg", metadata={"Date": None})
    return stream.getvalue()


def main() -> None:
    """Write all charts beside their tables."""
    for name, text in charts().items():
        (FOLDER / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
