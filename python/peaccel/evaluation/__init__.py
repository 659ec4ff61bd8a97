"""Evaluation by the papers' protocols: what scores and confidences are worth.

The way of one evaluation through the floors::

    cli/evaluate.py  main                   files -> distributions, what is right
    evaluate.py  evaluate                   checks; one draw of classes for all intervals
        answers.py  as_truth, as_scores         labels, pairs or places -> a relation; names -> scores
        drawn_pairs.py  verification_pairs      right pairs and wrong ones
    answers.py  answered                    for each score: queries by blocks
        retrieval.search                        the ranking of the gallery, without the row of the query
        columns.py  ranked                      metrics.hit_at_k, average_precision_at_r, and those of the caller
    pair_rates.py  pair_rates               AUC, equal error rate, TAR at FAR, detection costs of the pairs' scores
    identification.py  identified           where there are novel queries: FNIR at an FPIR, by each score
    separation.py  judged                   of each confidence whether it tells right answers from wrong ones
    intervals.py  Resamples                 intervals over classes, of all of these
    results.py  Evaluation                  fields annotated with columns.Column: text, JSON; pages.py makes the report

`choose_score` and `choose_threshold` ask ``answers.answered`` the same way: which score to
use, and from which score on to accept an answer.
"""

from peaccel.evaluation.choose_score import RankedScore, ScoreChoice
from peaccel.evaluation.drawn_pairs import verification_pairs
from peaccel.evaluation.evaluate_trials import TrialEvaluation, TrialResult, evaluate_trials
from peaccel.evaluation.intervals import Interval, mean_interval, simultaneous_intervals
from peaccel.evaluation.results import ConfidenceResult, Evaluation, OpenSetResult, ScoreResult
from peaccel.evaluation.separation import probability
from peaccel.evaluation.templates import TemplateEvaluation, TemplateResult, evaluate_templates
from peaccel.evaluation.threshold_results import ThresholdChoice, ThresholdResult, ThresholdWithin

__all__ = [
    "ConfidenceResult",
    "Evaluation",
    "Interval",
    "OpenSetResult",
    "RankedScore",
    "ScoreChoice",
    "ScoreResult",
    "TemplateEvaluation",
    "TemplateResult",
    "ThresholdChoice",
    "ThresholdResult",
    "ThresholdWithin",
    "TrialEvaluation",
    "TrialResult",
    "evaluate_templates",
    "evaluate_trials",
    "mean_interval",
    "probability",
    "simultaneous_intervals",
    "verification_pairs",
]
