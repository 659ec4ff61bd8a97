"""Metrics, in numpy alone: ids, labels, scores and confidences in, numbers and frozen records out.

scikit-learn and scipy compute what they define as the papers do: `nmi`, `spearman` and `Relevance` need them (the extra
`train`).
"""

from peaccel.metrics._judged_ranking import relevance, without_self
from peaccel.metrics._relation import Relevance
from peaccel.metrics.calibration_error import CalibrationBins, calibration_error
from peaccel.metrics.confidences import (
    class_probability_confidence,
    margin_confidence,
    norm_confidence,
    random_confidence,
    spread_confidence,
    top_score_confidence,
)
from peaccel.metrics.error_detection import ceda, r_auroc, truncated_rows
from peaccel.metrics.nmi import nmi
from peaccel.metrics.novelty_detection import Novelty, novelty_detection
from peaccel.metrics.open_set import OpenSet, OpenSetPoint, mate_scores, open_set
from peaccel.metrics.pair_rejection import RejectVerification, pair_uncertainty, reject_verification
from peaccel.metrics.precision_recall import precision_recall_auc, precision_recall_auc_at_1
from peaccel.metrics.rejection import (
    ErrorDiscard,
    augrc,
    ausc,
    e_aurc,
    erc,
    error_discard,
    filter_out_curve,
    nauc,
    rejection_curve,
)
from peaccel.metrics.retrieval import (
    average_precision_at_k,
    average_precision_at_r,
    hit_at_k,
    map_at_k,
    map_at_r,
    recall_at_k,
)
from peaccel.metrics.spearman import cropped_less_confident, spearman
from peaccel.metrics.verification import (
    TarAtFar,
    best_threshold,
    equal_error_rate,
    roc_auc,
    tar_at_far,
    verification_accuracy,
)

__all__ = [
    "CalibrationBins",
    "ErrorDiscard",
    "Novelty",
    "OpenSet",
    "OpenSetPoint",
    "RejectVerification",
    "Relevance",
    "TarAtFar",
    "augrc",
    "ausc",
    "average_precision_at_k",
    "average_precision_at_r",
    "best_threshold",
    "calibration_error",
    "ceda",
    "class_probability_confidence",
    "cropped_less_confident",
    "e_aurc",
    "equal_error_rate",
    "erc",
    "error_discard",
    "filter_out_curve",
    "hit_at_k",
    "map_at_k",
    "map_at_r",
    "margin_confidence",
    "mate_scores",
    "nauc",
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
    "rejection_curve",
    "relevance",
    "roc_auc",
    "spearman",
    "spread_confidence",
    "tar_at_far",
    "top_score_confidence",
    "truncated_rows",
    "verification_accuracy",
    "without_self",
]
