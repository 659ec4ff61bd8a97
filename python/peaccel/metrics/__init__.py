"""Metrics, in numpy alone: ranked ids and labels in, numbers out."""

from peaccel.metrics._ranking import relevance, without_self
from peaccel.metrics.error_detection import ceda, r_auroc, truncated
from peaccel.metrics.reject_verification import RejectVerification, pair_uncertainty, reject_verification
from peaccel.metrics.rejection import (
    ErrorDiscard,
    augrc,
    ausc,
    erc,
    error_discard,
    filter_out_curve,
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
from peaccel.metrics.verification import (
    TarAtFar,
    best_threshold,
    equal_error_rate,
    roc_auc,
    tar_at_far,
    verification_accuracy,
)

__all__ = [
    "ErrorDiscard",
    "RejectVerification",
    "TarAtFar",
    "augrc",
    "ausc",
    "average_precision_at_k",
    "average_precision_at_r",
    "best_threshold",
    "ceda",
    "equal_error_rate",
    "erc",
    "error_discard",
    "filter_out_curve",
    "hit_at_k",
    "map_at_k",
    "map_at_r",
    "pair_uncertainty",
    "r_auroc",
    "recall_at_k",
    "reject_verification",
    "rejection_curve",
    "relevance",
    "roc_auc",
    "tar_at_far",
    "truncated",
    "verification_accuracy",
    "without_self",
]
