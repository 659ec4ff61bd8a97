"""Metrics, in numpy alone: ranked ids and labels in, numbers out."""

from peaccel.metrics.rejection import rejection_curve
from peaccel.metrics.retrieval import average_precision_at_r, map_at_r, recall_at_k, relevance

__all__ = ["average_precision_at_r", "map_at_r", "recall_at_k", "rejection_curve", "relevance"]
