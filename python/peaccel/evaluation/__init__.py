"""Evaluation by the papers' protocols: what scores and confidences are worth.

The way of one evaluation through the floors::

    cli/evaluate.py  main                   files -> distributions, what is right
    protocol.py  evaluate                   checks; one draw of classes for all intervals
        answers.py  as_truth, as_scores         labels, pairs or places -> a relation; names -> scores
        drawn_pairs.py  verification_pairs      right pairs and wrong ones
    answers.py  answered                    for each score: queries by blocks
        retrieval.search                        the ranking of the gallery, without a query's own row
        metrics.hit_at_k, average_precision_at_r
    verifying.py  verified                  AUC, equal error rate, TAR at FAR of the pairs' scores
    confidences.py  judged                  of each confidence whether it tells right answers from wrong ones
    intervals.py  Resamples                 intervals over classes, of all of these
    results.py  Evaluation                  text and JSON; pages.py makes the report of it
"""

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
