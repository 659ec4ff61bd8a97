"""Print the methods that there are, from their files and from packages that are installed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from peaccel import methods, published
from peaccel._utils import options
from peaccel.train.recipes import RECIPES, recipe

if TYPE_CHECKING:
    from peaccel.methods.method import Method

__all__ = ["main"]


def main(arguments: Sequence[str]) -> None:
    """Carry out the command."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    options.parse(options.Nothing, "peaccel methods", __doc__, arguments)
    rows: dict[str, list[str]] = {}
    for row in RECIPES:
        rows.setdefault(recipe(row, "")[0].name, []).append(row)
    for name in methods.installed():
        rows.setdefault(methods.load(name).name, []).append(name)
    papers: dict[str, list[Method]] = {}
    for method in (*methods.table(), *map(methods.load, methods.installed())):
        papers.setdefault(method.paper, []).append(method)
    console = Console()
    for paper, of_paper in papers.items():
        console.print(f"\n{paper}", markup=False, highlight=False, style="bold")
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False, expand=True)
        for header, width in (("method, rows", 20), ("distribution", 12), ("loss", None), ("score, confidence", 18)):
            table.add_column(header, min_width=width, ratio=None if width else 1, overflow="fold")
        for m in of_paper:
            as_published = [f"{published.PREFIX}{m.name}"] if f"{published.PREFIX}{m.name}" in published.NAMES else []
            named = "\n".join(dict.fromkeys([m.name, *rows[m.name], *as_published]))
            loss = f"{m.loss} (draws)" if m.sampling else m.loss
            table.add_row(named, m.distribution, loss, f"{m.score}\n{m.confidence}")
        console.print(table, markup=False)
