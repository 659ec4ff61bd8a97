"""Reports of a run in training: a bar or lines, a JSON line per epoch, and a warning of dead branches."""

from __future__ import annotations

import json
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch
from rich.console import Console

from peaccel._utils.atomic_files import PathLike, naming_errors, unlinked
from peaccel._utils.progress_bar import ProgressBar, duration
from peaccel.distributions import Distribution
from peaccel.methods.method import Stage, Terms
from peaccel.train.diagnostics import has_head

__all__ = ["ConsoleLogger", "NullLogger", "ProgressLogger", "spread"]

DEAD = 1e-3  # a spread of uncertainties below this share of their mean shows that a branch learns nothing


class ProgressLogger:
    """Receiver of the progress of training. This one reports nothing; subclasses replace what they report."""

    def epoch_begins(self, stage: Stage, epoch: int, batches: int, done: int) -> None:
        """Say that an epoch of so many batches begins, of which some are done."""

    def step(self, terms: Terms, items: int) -> None:
        """Report the loss of a batch of so many items; the terms lie on the host, and on a GPU steps come together."""

    def epoch_ends(
        self, stage: Stage, epoch: int, optimizer: torch.optim.Optimizer, probe: Any, validation: float | None
    ) -> None:
        """Say that so many epochs are done; `probe` is what the model says of some training items."""

    def warn(self, sentence: str) -> None:
        """Report a sign that training fails."""

    def close(self) -> None:
        """Report that training is over."""


class NullLogger(ProgressLogger):
    """A logger that reports nothing."""


class ConsoleLogger(ProgressLogger):
    """A ``ProgressBar`` for each stage with loss, speed and the time left; and log.jsonl, a line an epoch.

    Parameters
    ----------
    folder
        Receives log.jsonl, to which a resumed run adds; None for none. The line of an epoch that was interrupted has no
        losses and no seconds, since the losses of the batches before are gone.
    description
        Before the stage's name.
    tensorboard
        Also write TensorBoard's event files to the folder.

    Examples
    --------
    The loss of each epoch, read back from log.jsonl, has fallen:

    >>> import json, torch
    >>> from pathlib import Path
    >>> from peaccel.train import ConsoleLogger, fit, recipe
    >>> method, settings = recipe("cosface", "features", {"dim": 4, "schedule": {"epochs": 10, "lr": 0.01}})
    >>> training = method.build(torch.nn.Identity(), 4, 4, settings)
    >>> warnings = fit(training, torch.eye(4).tile(8, 1), np.tile(np.arange(4), 8), logger=ConsoleLogger(Path()))
    >>> losses = [json.loads(line)["cosface"] for line in Path("log.jsonl").read_text().splitlines()]
    >>> len(losses), losses[-1] < losses[0]
    (10, True)
    """

    def __init__(self, folder: PathLike | None = None, description: str = "", tensorboard: bool = False) -> None:
        self._file = None if folder is None else unlinked(Path(folder) / "log.jsonl")
        self._description = description
        self._console = Console(stderr=True)
        self._bar: ProgressBar | None = None
        self._stage: Stage | None = None
        self._pauses: list[float] = []
        self._last_step = 0.0
        self._writer = _event_writer(folder) if tensorboard and folder is not None else None
        self._last: dict[str, Any] = {}

    def epoch_begins(self, stage: Stage, epoch: int, batches: int, done: int) -> None:
        """Open the stage's bar with its first epoch."""
        now = perf_counter()
        if self._stage is not stage:
            self.close_bar()
            self._stage, self._pauses = stage, []
            self._total = batches * stage.schedule.epochs
            self._bar = ProgressBar(f"{self._description}{stage.name}", self._total)
            self._bar.__enter__()
        else:
            self._pauses.append(now - self._last_step)
        self._sums: dict[str, float] = {}
        self._items, self._count, self._since, self._last_step = 0, 0, now, now
        self._whole = done == 0
        self._steps, self._epochs_left = epoch * batches + done, stage.schedule.epochs - epoch

    def step(self, terms: Terms, items: int) -> None:
        """Move the bar."""
        for name, x in terms.items():
            self._sums[name] = self._sums.get(name, 0.0) + float(x.detach())
        self._count += 1
        self._steps += 1
        self._items += items
        self._last_step = perf_counter()
        seconds = max(self._last_step - self._since, 1e-9)
        left = seconds / self._count * (self._total - self._steps)
        if self._pauses:  # between epochs, for validation
            left += self._epochs_left * sum(self._pauses) / len(self._pauses)
        if self._bar is not None:
            losses = "  ".join(f"{name} {total / self._count:.4g}" for name, total in self._sums.items())
            least = "about" if self._pauses else "at least"
            # Validation and searches after the last step are no steps.
            ends = f"{least} {duration(left)} left" if self._steps < self._total else "judging the last epoch"
            text = f"{ends}  {losses}  {self._items / seconds:.0f} items/s"
            self._bar.show(self._steps, text)

    def epoch_ends(
        self, stage: Stage, epoch: int, optimizer: torch.optim.Optimizer, probe: Any, validation: float | None
    ) -> None:
        """Write the epoch's line."""
        seconds = perf_counter() - self._since
        record: dict[str, Any] = {"stage": stage.name, "epoch": epoch}
        if self._whole:
            record |= {name: total / max(self._count, 1) for name, total in self._sums.items()}
            record |= {"items_per_second": round(self._items / max(seconds, 1e-9), 1), "seconds": round(seconds, 3)}
        record["lr"] = [group["lr"] for group in optimizer.param_groups]
        if validation is not None:
            record["best_validation"] = validation
        for d in probe if isinstance(probe, tuple) else (probe,):
            if (found := spread(d)) is not None:
                name, mean, share = found
                record |= {f"{name}_mean": mean, f"{name}_spread": share}
        if self._file is not None:
            with naming_errors(self._file), self._file.open("a", encoding="utf-8") as file:
                file.write(json.dumps(record) + "\n")
        if self._writer is not None:
            for name, value in record.items():
                if isinstance(value, float):
                    self._writer.add_scalar(f"{stage.name}/{name}", value, epoch)
        self._last = record

    def warn(self, sentence: str) -> None:
        """Print the sentence."""
        self._console.print(f"{self._description}{sentence}", markup=False, highlight=False, soft_wrap=True)

    def close(self) -> None:
        """End the bar, and say whether the trained model tells sure from unsure items."""
        self.close_bar()
        for key in [key for key in self._last if key.endswith("_spread") and self._last[key] < DEAD]:
            name = key.removesuffix("_spread")
            rate = "rate of the uncertainty head" if self._stage and has_head(self._stage) else "learning rate"
            self._console.print(
                f"{self._description}{name} is {self._last[name + '_mean']:.3g} for every item (its spread is "
                f"{self._last[key]:.1g} of that): the model does not tell sure from unsure items. A "
                f"higher {rate}, or a smaller weight of the prior, may help."
            )

    def close_bar(self) -> None:
        """End the stage's bar."""
        if self._bar is not None:
            self._bar.__exit__()
            self._bar = None


def spread(d: Distribution) -> tuple[str, float, float] | None:
    """How uncertain items are, and how much that differs between them.

    Returns
    -------
    The name of the parameter, its mean, and the standard deviation of its logarithm over items (mean over dimensions
    first), which is the relative spread where it is small; None for points.
    """
    name = d._names[-1]
    if name == "mu" or len(d) == 0:
        return None
    x = np.asarray(getattr(d, name), np.float64)
    per_item = x.reshape(len(d), -1).mean(1)
    return name, float(per_item.mean()), float(np.log(np.maximum(per_item, 1e-300)).std())


def _event_writer(folder: PathLike) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise ImportError("TensorBoard's files need tensorboard: pip install tensorboard") from None
    return SummaryWriter(str(folder))
