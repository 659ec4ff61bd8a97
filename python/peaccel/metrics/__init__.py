"""Metrics, in numpy alone: ranked ids and labels in, numbers out."""

from peaccel.metrics._ranking import relevance, without_self
from peaccel.metrics.rejection import rejection_curve
from peaccel.metrics.retrieval import (
    average_precision_at_k,
    average_precision_at_r,
    hit_at_k,
    map_at_k,
    map_at_r,
    recall_at_k,
)

__all__ = [
    "average_precision_at_k",
    "average_precision_at_r",
    "hit_at_k",
    "map_at_k",
    "map_at_r",
    "recall_at_k",
    "rejection_curve",
    "relevance",
    "without_self",
]
