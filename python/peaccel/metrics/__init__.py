"""Metrics, in numpy alone: ids, labels, scores and confidences in, numbers and frozen records out.

scikit-learn and scipy compute what they define as the papers do: `nmi`, `spearman` and `Relevance` need them (the extra
`train`).
"""

from typing import TYPE_CHECKING

from peaccel._utils.words import answered
from peaccel.metrics._judged_ranking import relevance, without_self
from peaccel.metrics._relation import Relevance
from peaccel.metrics.calibration_error import CalibrationBins, calibration_error
from peaccel.metrics.confidences import (
    class_probability_confidence,
    cropped_less_confident,
    margin_confidence,
    norm_confidence,
    random_confidence,
    spearman,
    spread_confidence,
    top_score_confidence,
)
from peaccel.metrics.detection_cost import DetectionCost, detection_cost
from peaccel.metrics.equal_error_rate import EqualError, equal_error_rate
from peaccel.metrics.error_versus_discard import ErrorVersusDiscard, error_versus_discard
from peaccel.metrics.open_set import Novelty, OpenSet, OpenSetPoint, mate_scores, novelty_detection, open_set
from peaccel.metrics.reject_verification import RejectVerification, pair_uncertainty, reject_verification
from peaccel.metrics.rejection import ceda, r_auroc, rejection_area, rejection_curve, truncated_rows
from peaccel.metrics.retrieval import (
    average_precision_at_k,
    average_precision_at_r,
    hit_at_k,
    map_at_k,
    map_at_r,
    nmi,
    precision_recall_auc,
    precision_recall_auc_at_1,
    recall_at_k,
)
from peaccel.metrics.trial_clusters import trial_clusters
from peaccel.metrics.verification import (
    TarAtFar,
    best_threshold,
    roc_auc,
    tar_at_far,
    verification_accuracy,
)

__all__ = [
    "CalibrationBins",
    "DetectionCost",
    "EqualError",
    "ErrorVersusDiscard",
    "Novelty",
    "OpenSet",
    "OpenSetPoint",
    "RejectVerification",
    "Relevance",
    "TarAtFar",
    "average_precision_at_k",
    "average_precision_at_r",
    "best_threshold",
    "calibration_error",
    "ceda",
    "class_probability_confidence",
    "cropped_less_confident",
    "detection_cost",
    "equal_error_rate",
    "error_versus_discard",
    "hit_at_k",
    "map_at_k",
    "map_at_r",
    "margin_confidence",
    "mate_scores",
    "nmi",
    "norm_confidence",
    "novelty_detection",
    "open_set",
    "pair_uncertainty",
    "precision_recall_auc",
    "precision_recall_auc_at_1",
    "r_auroc",
    "random_confidence",
    "recall_at_k",
    "reject_verification",
    "rejection_area",
    "rejection_curve",
    "relevance",
    "roc_auc",
    "spearman",
    "spread_confidence",
    "tar_at_far",
    "top_score_confidence",
    "trial_clusters",
    "truncated_rows",
    "verification_accuracy",
    "without_self",
]

if not TYPE_CHECKING:  # which would take every attribute for known
    __getattr__ = answered(__name__)
