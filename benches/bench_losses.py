"""Training: each loss and its head alone, forward and backward, on a batch of 128; see `benches.rows.losses`."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cache

from benches.rows.losses import FEW, LOSSES, alone, features, found, labels_of


@cache  # asv sets up anew for each sample
def steps() -> dict[str, Callable[[], None]]:
    """Each loss that this version has, ready to be called."""
    x, labels = features(), labels_of(FEW)
    return {entry.name: alone(head, loss, x, labels) for entry, head, loss in found(FEW)}


class Losses:
    """Ten steps, as the quickest take less than a millisecond; seconds of the processor."""

    timer = time.process_time
    param_names = ("loss",)
    params = ([entry.name for entry in LOSSES],)

    def setup(self, name: str) -> None:
        if name not in steps():
            raise NotImplementedError  # which asv takes for one that is not there

    def time_step(self, name: str) -> None:
        for _ in range(10):
            steps()[name]()
