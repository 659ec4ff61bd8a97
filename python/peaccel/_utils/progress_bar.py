"""How far work is: a bar on a terminal, lines elsewhere."""

from __future__ import annotations

from threading import Event, Thread
from time import perf_counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress

__all__ = ["ProgressBar", "duration"]

FIRST, EVERY = 2.0, 10.0  # seconds until the first line, and between lines, where there is no terminal


class ProgressBar:
    """A bar on a terminal; elsewhere a line after two seconds and every ten, whatever the work is busy with.

    Parameters
    ----------
    description
        What is done.
    total
        Steps of the work, or what they cost in any unit; None where they cannot be counted.
    seconds
        About how long all of it takes, where that is known beforehand: it is said at once.

    Examples
    --------
    >>> from peaccel._utils.progress_bar import ProgressBar
    >>> with ProgressBar("reading", total=3) as bar:
    ...     for _ in range(3):
    ...         bar.advance()
    """

    def __init__(self, description: str, total: float | None = None, seconds: float | None = None) -> None:
        from rich.console import Console

        self._console = Console(stderr=True)
        self._description, self._total, self._done, self._text = description, total, 0.0, ""
        self._seconds = seconds
        self._since, self._over = perf_counter(), Event()
        self._lines = Thread(target=self._print_lines, daemon=True)
        self._bar: Progress | None = None

    def __enter__(self) -> ProgressBar:
        """Show it."""
        from rich.progress import BarColumn, Progress, TextColumn

        if self._seconds is not None:  # before the first line is printed
            self._text = f"about {duration(self._seconds)}"
        if self._console.is_terminal:
            columns = TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[text]}")
            self._bar = Progress(*columns, console=self._console)
            self._task = self._bar.add_task(self._description, total=self._total, text=self._text)
            self._bar.start()
        else:
            self._lines.start()
            if self._seconds is not None:
                self._print()
        return self

    def __exit__(self, *_: object) -> None:
        """End it."""
        self._over.set()
        if self._bar is not None:
            self._bar.stop()
        else:
            self._lines.join()

    def advance(self, steps: float = 1) -> None:
        """Count steps as done; what is left is estimated by their mean time."""
        done, seconds = self._done + steps, perf_counter() - self._since
        self.show(done, "" if self._total is None else f"about {duration(seconds / done * (self._total - done))} left")

    def show(self, done: float, text: str) -> None:
        """Show so many steps as done, with a text beside."""
        self._done, self._text = done, text
        if self._bar is not None:
            self._bar.update(self._task, completed=done, text=text)

    def line(self) -> str:
        """Text of a progress line."""
        if self._total is None:
            return f"{self._description}: {duration(perf_counter() - self._since)}"
        return f"{self._description}: {int(100 * self._done / (self._total or 1))} %, {self._text}"

    def _print_lines(self) -> None:
        wait = FIRST
        while not self._over.wait(wait):
            self._print()
            wait = EVERY

    def _print(self) -> None:
        self._console.print(self.line(), markup=False, highlight=False, soft_wrap=True)


def duration(seconds: float) -> str:
    """Such as "40 s" or "7 min" or "3.5 h"."""
    if seconds < 99.5:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 99.5 * 60 else f"{seconds / 3600:.1f} h"
