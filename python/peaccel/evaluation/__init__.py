"""Evaluation by the papers' protocols: what scores and confidences are worth."""

from peaccel.evaluation.intervals import Interval, mean_interval
from peaccel.evaluation.protocol import ConfidenceResult, Evaluation, ScoreResult, evaluate, verification_pairs

__all__ = [
    "ConfidenceResult",
    "Evaluation",
    "Interval",
    "ScoreResult",
    "evaluate",
    "mean_interval",
    "verification_pairs",
]
