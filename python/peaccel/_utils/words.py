"""Words of the field and where what they mean stands: unknown attributes, scores and commands are answered by them."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

__all__ = ["WORDS", "answered", "no_attribute", "place_of", "plain_name", "targets"]

_PLACES = {
    # metrics
    "peaccel.metrics.equal_error_rate": "eer equal_error_rates",
    "peaccel.metrics.calibration_error": "ece expected_calibration_error reliability_diagram",
    "peaccel.metrics.detection_cost": "dcf min_dcf mindcf act_dcf cllr detection_cost_function",
    "peaccel.metrics.map_at_r": "mean_average_precision_at_r",
    "peaccel.metrics.map_at_k": "mean_average_precision average_precision map",
    "peaccel.metrics.recall_at_k": "recall recall_at_1 r_at_k cmc rank_1 top_k_accuracy precision_at_1",
    "peaccel.metrics.hit_at_k": "hit_rate hits",
    "peaccel.metrics.rejection_curve": "risk_coverage accuracy_rejection",
    "peaccel.metrics.rejection_area": "aurc risk_coverage_area",
    "peaccel.metrics.error_versus_discard": "edc erc error_vs_discard error_versus_reject",
    "peaccel.metrics.reject_verification": "error_reject",
    "peaccel.fit_quality": "quality quality_score ofiq serfiq",
    "peaccel.metrics.roc_auc": "auc auroc roc roc_curve det_curve det",
    "peaccel.metrics.tar_at_far": "tar far frr tpr_at_fpr fmr fnmr true_accept_rate",
    "peaccel.metrics.open_set": "fpir fnir dir watchlist open_set_identification",
    "peaccel.metrics.novelty_detection": "ood out_of_distribution novelty",
    "peaccel.metrics.verification_accuracy": "accuracy lfw_accuracy",
    "peaccel.metrics.nmi": "normalized_mutual_information normalised_mutual_information",
    "peaccel.metrics.spearman": "spearmanr rank_correlation",
    # fits and what they are for
    "peaccel.fit_match_probability, of scores; peaccel.calibrate_variance, of uncertainties": (
        "calibrate calibration calibrator recalibrate"
    ),
    "peaccel.fit_match_probability": (
        "platt platt_scaling isotonic isotonic_regression temperature temperature_scaling probability match_probability"
    ),
    "peaccel.fit_centre": "whiten whitening pca_whiten zca center fit_center centre mean_center",
    "peaccel.fit_plda": "plda plda_score lda fit_lda",
    "peaccel.normalise_scores": "as_norm asnorm snorm s_norm znorm z_norm tnorm t_norm normalize_scores score_norm",
    "peaccel.choose_threshold": (
        "abstain reject rejection selective selective_prediction threshold choose_cutoff find_threshold"
    ),
    "peaccel.learn_then_test": "ltt risk_control",
    "peaccel.conformal_sets": "conformal conformal_prediction prediction_sets",
    "peaccel.reliability_curve": "reliability calibration_curve",
    # measures
    "peaccel.kl": "kl_divergence kl_div kullback_leibler",
    "peaccel.sample(d, n) draws": "sample rvs rsample draw samples",
    "peaccel.log_prob": "log_prob logpdf pdf log_pdf log_density density",
    "peaccel.entropy": "entropy differential_entropy",
    "peaccel.confidence": "confidence uncertainty certainty",
    "peaccel.fuse": "fuse pool pooling average_embeddings template templates aggregate mean_embedding",
    "peaccel.special.log_iv": "iv besseli bessel log_bessel log_besseli",
    "peaccel.special.log_ive": "ive",
    "peaccel.special.iv_ratio": "bessel_ratio a_d",
    "peaccel.special.vmf_log_norm": "log_c vmf_log_normalizer vmf_normalizer log_normalizer",
    "peaccel.special.log_ndtr": "log_cdf norm_logcdf",
    # retrieval
    "peaccel.search": "knn nearest_neighbors nearest_neighbours neighbors topk top_k nn_search",
    "peaccel.exclude_same": "exclude junk exclude_self ignore_self leave_out same_camera",
    "peaccel.search_above": "range_search radius_search radius_neighbors",
    "peaccel.duplicates": "find_duplicates dedup deduplicate near_duplicates paraphrase_mining",
    "peaccel.FaissReranker": "faiss index ann hnsw ivf build_index",
    "peaccel.Gallery": "lance database vector_store store",
    "peaccel.Gallery.add": "append insert",
    "peaccel.Gallery.remove": "delete",
    "peaccel.Gallery.search": "search_exact",
    "peaccel.Distribution.truncate": "matryoshka truncate_dim mrl",
    # scores
    "peaccel.scores.mls": "mutual_likelihood_score mutual_likelihood",
    "peaccel.scores.neg_sq_l2": "l2 euclidean squared_euclidean sqeuclidean sq_l2 l2_distance",
    "peaccel.scores.neg_w2": "wasserstein wasserstein_2 w2 earth_mover",
    "peaccel.scores.ppk": "bhattacharyya hellinger probability_product_kernel",
    "peaccel.scores.neg_kl": "neg_kl_divergence",
    "peaccel.scores.neg_mahalanobis": "mahalanobis",
    "peaccel.scores.llr": "log_likelihood_ratio likelihood_ratio",
    "peaccel.scores.cosine": "cos cosine_similarity cosine_distance",
    "peaccel.scores.inner_product": "ip dot dot_product max_inner_product mips",
    # training, data, files
    "mined= of peaccel.losses.Triplet": "miner miners hard_negatives hard_negative_mining semi_hard",
    "peaccel.losses.ScoreNCE": "infonce info_nce ntxent nt_xent supcon",
    "peaccel.losses.Triplet": "triplet_margin triplet_margin_loss triplet_loss",
    "peaccel.losses.Contrastive": "contrastive_loss",
    "peaccel.compare": "compare_models significance paired_test bootstrap_test",
    "peaccel.train.fit": "trainer mperclasssampler sampler",
    "peaccel.train.embed": "encode infer predict",
    "name='cub200' of peaccel.data.read": "cub cub_200",
    "name='sop' of peaccel.data.read": "stanford_online_products",
    "name='cars196' of peaccel.data.read": "cars cars_196",
    "peaccel.io.write_distribution": "save export write dump",
    "peaccel.io.read_distribution": "load open from_file",
    "peaccel.io.from_arrow": "from_pandas from_polars read_parquet parquet",
    "peaccel.hub": "push_to_hub from_pretrained huggingface",
}

WORDS = {word: place for place, words in _PLACES.items() for word in words.split()}
"""Word -> where it stands: full names of this package, with what else a line has to say."""


def plain_name(name: str) -> str:
    """A name in small letters, with '_' for '-' and blanks."""
    return re.sub(r"[-\s]+", "_", name.strip().lower())


def place_of(name: str) -> str | None:
    """Where the thing that a word means stands; None for a word that is not in the table."""
    return WORDS.get(plain_name(name))


def targets(place: str) -> list[str]:
    """The full names in a place."""
    return re.findall(r"\bpeaccel(?:\.\w+)+", place)


def no_attribute(owner: str, name: str) -> AttributeError:
    """The error of an unknown attribute, with the place of the word where it is one of the field."""
    place = None if name.startswith("_") else place_of(name)
    return AttributeError(f"{owner} has no attribute {name!r}" + (f"; {name}: {place}" if place else ""))


def answered(module: str) -> Callable[[str], Any]:
    """The ``__getattr__`` of a module that answers the words of the table."""

    def answer(name: str) -> Any:
        raise no_attribute(f"module {module!r}", name)

    return answer
