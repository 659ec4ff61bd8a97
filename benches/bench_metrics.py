"""Metrics of rankings, of confidences and of verification pairs."""

from __future__ import annotations

import time
from functools import partial
from typing import Any

import numpy as np

from benches.data import pe

QUERIES, CLASSES, K, PAIRS = 5_000, 500, 50, 100_000


class Metrics:
    """Ten calls of each, on 5,000 queries with lists of 50, or on 100,000 pairs; seconds of the processor."""

    timer = time.process_time
    param_names = ("metric",)
    params = (
        [
            *("recall_at_k", "map_at_r", "average_precision_at_k"),
            *("rejection_area", "calibration_error", "ceda", "r_auroc"),
            *("roc_auc", "equal_error_rate", "verification_accuracy", "open_set", "novelty_detection"),
        ],
    )

    def setup(self, name: str) -> None:
        rng = np.random.default_rng(0)
        metric = getattr(pe.metrics, name)
        gallery = np.arange(QUERIES) % CLASSES  # ten items of each class
        labels, ids = rng.integers(0, CLASSES, QUERIES), rng.integers(0, QUERIES, (QUERIES, K))
        right, sure = rng.random(QUERIES) < 0.8, rng.random(QUERIES)
        scores, same = rng.normal(size=PAIRS), rng.random(PAIRS) < 0.1
        calls: dict[str, Any] = {
            **dict.fromkeys(("recall_at_k", "map_at_r"), (ids, labels, gallery)),
            "average_precision_at_k": (ids, labels, gallery, K),
            **dict.fromkeys(("roc_auc", "equal_error_rate", "verification_accuracy"), (scores, same)),
            **dict.fromkeys(("open_set", "novelty_detection"), (scores[same], scores[~same])),
        }
        values = right if name in ("ceda", "r_auroc") else right.astype(float)
        self.call = partial(metric, *calls.get(name, (values, sure)))

    def time_metric(self, name: str) -> None:
        for _ in range(10):
            self.call()
