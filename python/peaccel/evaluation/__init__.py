"""Evaluation by the papers' protocols: what scores and confidences are worth."""

from peaccel.evaluation.choosing import RankedScore, ScoreChoice, choose_score
from peaccel.evaluation.drawn_pairs import verification_pairs
from peaccel.evaluation.intervals import Interval, mean_interval, simultaneous_intervals
from peaccel.evaluation.protocol import evaluate
from peaccel.evaluation.results import ConfidenceResult, Evaluation, ScoreResult
from peaccel.evaluation.templates import TemplateEvaluation, TemplateResult, evaluate_templates

__all__ = [
    "ConfidenceResult",
    "Evaluation",
    "Interval",
    "RankedScore",
    "ScoreChoice",
    "ScoreResult",
    "TemplateEvaluation",
    "TemplateResult",
    "choose_score",
    "evaluate",
    "evaluate_templates",
    "mean_interval",
    "simultaneous_intervals",
    "verification_pairs",
]
