"""Training: each loss and its head alone, forward and backward, on a batch of 128; see `benches.rows.losses`."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cache

from benches.rows.losses import FEW, LOSSES, alone, found


@cache  # asv sets up anew for each sample
def step(name: str) -> Callable[[], None]:
    """A step, ready to be made."""
    for _, head, loss in found(FEW, [name]):
        return alone(head, loss, FEW)
    raise NotImplementedError  # which asv takes for one that is not there


class Losses:
    """A step of each loss; seconds of the processor."""

    timer = time.process_time
    param_names = ("loss",)
    params = (list(LOSSES),)

    def setup(self, name: str) -> None:
        """Make the step."""
        self.run = step(name)

    def time_step(self, name: str) -> None:
        """One step."""
        self.run()
