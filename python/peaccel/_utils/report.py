"""A report as one HTML file that needs nothing beside it: tables, and matplotlib pictures embedded as base64."""

import shlex
from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure
from numpy.typing import NDArray

from peaccel._core import __version__
from peaccel._utils.atomic_files import aside

RIGHT, WRONG = "#1b7f4b", "#c0392b"
PAGE = "report.html"  # the template of a report, beside this file


@dataclass(frozen=True)
class Table:
    """A table of plain text, which takes the width of the window and scrolls within itself where it is wider.

    Parameters
    ----------
    header, rows
        Equally long.
    text_columns
        How many of the first columns are words, set flush left; a line is drawn where the first of them is not empty.
    about
        What columns mean, by what is in the header; stands under the table.
    chosen
        The number of the row that is marked, if any.
    """

    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    text_columns: int
    about: Mapping[str, str] | None = None
    chosen: int | None = None


@dataclass(frozen=True)
class Section:
    """A heading, a paragraph of plain text, and a picture or a table, if any."""

    heading: str
    text: str
    content: Figure | Table | None = None


def write(path: Path, title: str, sections: Sequence[Section], command: Sequence[str]) -> None:
    """Write the report.

    Parameters
    ----------
    path
        The HTML file; its folder must exist.
    title
        Plain text.
    sections
        In order.
    command
        The words of the command that makes the report: they name its files. Stands with version and date at the end.
    """
    from jinja2 import Environment, FileSystemLoader

    pages = FileSystemLoader(Path(__file__).parent)
    template = Environment(loader=pages, autoescape=True, trim_blocks=True, lstrip_blocks=True).get_template(PAGE)
    made_by = shlex.join(["peaccel", *command]), __version__, str(datetime.now(UTC).date())
    with aside(path, follow=False) as fresh:
        fresh.write_text(
            template.render(title=title, sections=map(_laid_out, sections), made_by=made_by), encoding="utf-8"
        )


def _laid_out(section: Section) -> dict[str, Any]:
    """A section as the template takes it."""
    shown: dict[str, Any] = {"heading": section.heading, "text": section.text}
    if isinstance(section.content, Table):
        table = section.content
        shown["table"] = table.header, table.rows, table.text_columns, table.about, table.chosen
    elif section.content is not None:
        buffer = BytesIO()
        section.content.savefig(buffer, format="png", dpi=120)
        shown["picture"] = b64encode(buffer.getvalue()).decode()
    return shown


def image_grid(images: NDArray[Any], captions: Sequence[str], columns: int = 6) -> Figure:
    """Show images [N, H, W], ink in [0, 1], with a caption each."""
    count = -(-len(images) // columns)
    figure = Figure(figsize=(10, 0.75 * count), layout="constrained")
    for axes, image, caption in zip(
        figure.subplots(count, columns, squeeze=False).flat, images, captions, strict=False
    ):
        _show(axes, image)
        axes.set_title(caption, fontsize=7, pad=2)
    for axes in figure.axes:
        axes.set_axis_off()
    return figure


def retrievals(queries: NDArray[Any], found: NDArray[Any], right: NDArray[Any], names: tuple[str, str]) -> Figure:
    """Show what each query found under two scores.

    Parameters
    ----------
    queries
        [N, H, W], ink in [0, 1].
    found
        [N, 2, K, H, W], before and after, best first; of another size.
    right
        [N, 2, K] bool.
    names
        The names of the two scores.
    """
    n, _, k = right.shape
    figure = Figure(figsize=(11, 0.55 * n + 0.3), layout="constrained")
    left, *sides = figure.subfigures(1, 3, width_ratios=[1, k, k], squeeze=False)[0]
    for axes, query in zip(_grid(left, n, 1, "query"), queries, strict=True):
        _show(axes, query)
    for side, name in enumerate(names):
        panel = _grid(sides[side], n, k, f"{name}, best first")
        cells = zip(found[:, side].reshape(-1, *found.shape[3:]), right[:, side].flat, strict=True)
        for axes, (image, hit) in zip(panel, cells, strict=True):
            _show(axes, image, frame=RIGHT if hit else WRONG)
    return figure


def drawn(draw: Callable[..., Axes], *found: Any, size: tuple[float, float] = (5.5, 3.6)) -> Figure:
    """A figure of a function that draws on the axes that it takes as ``ax``."""
    figure = Figure(figsize=size, layout="constrained")
    draw(*found, ax=figure.subplots())
    return figure


def legend(figure: Figure, axes: Axes) -> None:
    """Name the lines of the axes below the figure, where they lie on none of them."""
    handles, names = axes.get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=3, frameon=False)


def intervals(
    names: Sequence[str], groups: Mapping[str, Sequence[tuple[float, float, float] | None]], x_label: str
) -> Figure:
    """Draw a row for each name, first at the top, with a point and its interval for each group.

    Parameters
    ----------
    names
        Of the rows.
    groups
        By the name of each group, for each row the value and the ends, or None where there is none.
    x_label
        What is drawn.
    """
    figure = Figure(figsize=(8, 1.2 + 0.3 * len(names)), layout="constrained")
    axes = figure.subplots()
    for i, (group, found) in enumerate(groups.items()):
        rows = [(row, *x) for row, x in enumerate(found) if x is not None]
        if rows:
            place, value, low, high = map(np.array, zip(*rows, strict=True))
            ends = np.abs([value - low, high - value])
            axes.errorbar(value, place + 0.25 * i, xerr=ends, fmt="os^"[i % 3], markersize=4, capsize=2, label=group)
    axes.set(xlabel=x_label, yticks=range(len(names)), yticklabels=names, ylim=(len(names) - 0.4, -0.6))
    axes.grid(axis="x", color="#ddd")
    axes.spines[["top", "right"]].set_visible(False)
    legend(figure, axes)
    return figure


def scatter(groups: Mapping[str, tuple[NDArray[Any], NDArray[Any]]], x_label: str, y_label: str) -> Figure:
    """Draw one panel of points (x, y) for each named group, on shared axes."""
    figure = Figure(figsize=(10, 3), layout="constrained")
    panels = figure.subplots(1, len(groups), sharex=True, sharey=True, squeeze=False)[0]
    for axes, (name, (x, y)) in zip(panels, groups.items(), strict=True):
        axes.plot(x, y, ".", markersize=3, alpha=0.5)
        axes.set(title=name, xlabel=x_label)
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel(y_label)
    return figure


def _grid(figure: SubFigure, rows: int, columns: int, title: str) -> list[Axes]:
    figure.suptitle(title, fontsize=9)
    return list(figure.subplots(rows, columns, squeeze=False).flat)


def _show(axes: Axes, image: NDArray[Any], frame: str | None = None) -> None:
    axes.imshow(1 - image, cmap="gray", vmin=0, vmax=1)
    axes.set(xticks=[], yticks=[])
    for spine in axes.spines.values():
        spine.set(edgecolor=frame or "#bbb", linewidth=2.5 if frame else 1)
