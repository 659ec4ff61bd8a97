"""Scores, reranking and search for probabilistic embeddings.

Each item is a distribution, not a point. numpy arrays in, numpy arrays out; torch tensors in, torch tensors out, with
gradients.

Examples
--------
Here and in all docstrings ``np`` is numpy, and ``pe`` peaccel:

>>> import numpy as np
>>> import peaccel as pe
>>> gallery = pe.Normal(mu=np.array([[0.0, 1.0], [1.0, 0.0], [0.6, 0.8]]), var=np.array([0.1, 0.1, 0.4]))
>>> queries = pe.Point(np.array([[0.8, 0.6]]))
>>> scores, ids = pe.search(queries, gallery, k=2, score="mls")
>>> ids.tolist()
[[2, 1]]
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from peaccel import _core, scores, special
from peaccel._core import CudaError
from peaccel._utils.runtime import build_info, set_num_threads
from peaccel._utils.words import no_attribute
from peaccel.distributions import (
    Distribution,
    NonIsotropicVonMisesFisher,
    Normal,
    Point,
    Scaled,
    VonMisesFisher,
    concat,
)
from peaccel.ops import enable_torch
from peaccel.retrieval.normalise_scores import normalise_scores
from peaccel.retrieval.prepared import Prepared, prepare
from peaccel.retrieval.ranking import Ranking, merge
from peaccel.retrieval.verbs import paired, pairwise, rerank, rescore, search

if TYPE_CHECKING:
    from peaccel import hub, io, metrics
    from peaccel.distributions import torch_distributions
    from peaccel.distributions.confidence import confidence
    from peaccel.distributions.entropy import entropy
    from peaccel.distributions.fuse import fuse
    from peaccel.distributions.kl import kl
    from peaccel.distributions.log_prob import log_prob
    from peaccel.distributions.match_variance import match_variance
    from peaccel.distributions.sample import sample
    from peaccel.distributions.triplet_probability import triplet_probability
    from peaccel.evaluation import plot
    from peaccel.evaluation.answers_to_check import AnswersToCheck, answers_to_check
    from peaccel.evaluation.audit import GalleryAudit, audit
    from peaccel.evaluation.choose_score import ScoreChoice, choose_score
    from peaccel.evaluation.choose_threshold import choose_pair_threshold, choose_threshold
    from peaccel.evaluation.evaluate import evaluate
    from peaccel.evaluation.promise_monitor import PromiseMonitor, WatchedPromise
    from peaccel.evaluation.results import Evaluation
    from peaccel.evaluation.score_trials import score_trials
    from peaccel.evaluation.threshold_results import ThresholdChoice
    from peaccel.fits.answer_confidence import answer_confidence
    from peaccel.fits.calibrate_variance import calibrate_variance
    from peaccel.fits.conformal_sets import conformal_sets
    from peaccel.fits.fit_centre import fit_centre
    from peaccel.fits.fit_match_probability import fit_match_probability
    from peaccel.fits.fit_plda import fit_plda
    from peaccel.fits.fit_prior import fit_prior
    from peaccel.fits.fit_quality import fit_quality
    from peaccel.fits.fit_shift import fit_shift
    from peaccel.fits.fit_vmf import fit_vmf
    from peaccel.fits.learn_then_test import learn_then_test, limit_false_matches
    from peaccel.fits.plda import Plda
    from peaccel.fits.records import (
        Calibration,
        Centre,
        ConformalSets,
        FalseMatchLimit,
        IsotonicProbability,
        LogisticProbability,
        Prior,
        Quality,
        Selection,
        Threshold,
    )
    from peaccel.fits.reliability_curve import ReliabilityCurve, reliability_curve
    from peaccel.retrieval.cluster import Clusters, cluster
    from peaccel.retrieval.duplicates import duplicates
    from peaccel.retrieval.faiss.faiss_reranker import FaissReranker
    from peaccel.retrieval.faiss.first_stage_features import (
        FirstStageReference,
        first_stage_features,
        first_stage_reference,
    )
    from peaccel.retrieval.lance import Gallery
    from peaccel.retrieval.search_above import RankingAbove, search_above

__version__ = _core.__version__

__all__ = [
    "AnswersToCheck",
    "Calibration",
    "Centre",
    "Clusters",
    "ConformalSets",
    "CudaError",
    "Distribution",
    "Evaluation",
    "FaissReranker",
    "FalseMatchLimit",
    "FirstStageReference",
    "Gallery",
    "GalleryAudit",
    "IsotonicProbability",
    "LogisticProbability",
    "NonIsotropicVonMisesFisher",
    "Normal",
    "Plda",
    "Point",
    "Prepared",
    "Prior",
    "PromiseMonitor",
    "Quality",
    "Ranking",
    "RankingAbove",
    "ReliabilityCurve",
    "Scaled",
    "ScoreChoice",
    "Selection",
    "Threshold",
    "ThresholdChoice",
    "VonMisesFisher",
    "WatchedPromise",
    "__version__",
    "answer_confidence",
    "answers_to_check",
    "audit",
    "build_info",
    "calibrate_variance",
    "choose_pair_threshold",
    "choose_score",
    "choose_threshold",
    "cluster",
    "concat",
    "confidence",
    "conformal_sets",
    "duplicates",
    "enable_torch",
    "entropy",
    "evaluate",
    "first_stage_features",
    "first_stage_reference",
    "fit_centre",
    "fit_match_probability",
    "fit_plda",
    "fit_prior",
    "fit_quality",
    "fit_shift",
    "fit_vmf",
    "fuse",
    "hub",
    "io",
    "kl",
    "learn_then_test",
    "limit_false_matches",
    "log_prob",
    "match_variance",
    "merge",
    "metrics",
    "normalise_scores",
    "paired",
    "pairwise",
    "plot",
    "prepare",
    "reliability_curve",
    "rerank",
    "rescore",
    "sample",
    "score_trials",
    "scores",
    "search",
    "search_above",
    "set_num_threads",
    "special",
    "torch_distributions",
    "triplet_probability",
]


# The verbs do not need these, which take half of the time of `import peaccel`: they are imported at their first use.
_MODULES = {
    "hub": "hub",
    "io": "io",
    "metrics": "metrics",
    "plot": "evaluation.plot",
    "scaleout": "retrieval.ray",
    "torch_distributions": "distributions.torch_distributions",
}
_NAMES_OF = {
    "distributions.confidence": ("confidence",),
    "distributions.entropy": ("entropy",),
    "distributions.fuse": ("fuse",),
    "distributions.kl": ("kl",),
    "distributions.log_prob": ("log_prob",),
    "distributions.match_variance": ("match_variance",),
    "distributions.sample": ("sample",),
    "distributions.triplet_probability": ("triplet_probability",),
    "evaluation.answers_to_check": ("AnswersToCheck", "answers_to_check"),
    "evaluation.audit": ("GalleryAudit", "audit"),
    "evaluation.choose_score": ("ScoreChoice", "choose_score"),
    "evaluation.choose_threshold": ("choose_pair_threshold", "choose_threshold"),
    "evaluation.evaluate": ("evaluate",),
    "evaluation.promise_monitor": ("PromiseMonitor", "WatchedPromise"),
    "evaluation.results": ("Evaluation",),
    "evaluation.score_trials": ("score_trials",),
    "evaluation.threshold_results": ("ThresholdChoice",),
    "fits.answer_confidence": ("answer_confidence",),
    "fits.calibrate_variance": ("calibrate_variance",),
    "fits.conformal_sets": ("conformal_sets",),
    "fits.fit_centre": ("fit_centre",),
    "fits.fit_match_probability": ("fit_match_probability",),
    "fits.fit_plda": ("fit_plda",),
    "fits.fit_prior": ("fit_prior",),
    "fits.fit_quality": ("fit_quality",),
    "fits.fit_shift": ("fit_shift",),
    "fits.fit_vmf": ("fit_vmf",),
    "fits.learn_then_test": ("learn_then_test", "limit_false_matches"),
    "fits.plda": ("Plda",),
    "fits.records": (
        *("Calibration", "Centre", "ConformalSets", "FalseMatchLimit", "IsotonicProbability", "LogisticProbability"),
        *("Prior", "Quality", "Selection", "Threshold"),
    ),
    "fits.reliability_curve": ("ReliabilityCurve", "reliability_curve"),
    "retrieval.cluster": ("Clusters", "cluster"),
    "retrieval.duplicates": ("duplicates",),
    "retrieval.faiss": ("FaissReranker", "FirstStageReference", "first_stage_features", "first_stage_reference"),
    "retrieval.lance": ("Gallery",),
    "retrieval.search_above": ("RankingAbove", "search_above"),
}
_MODULE_OF = {name: module for module, names in _NAMES_OF.items() for name in names}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"peaccel.{_MODULES[name]}")
    if name in _MODULE_OF:
        globals()[name] = getattr(importlib.import_module(f"peaccel.{_MODULE_OF[name]}"), name)
        return globals()[name]
    raise no_attribute("module 'peaccel'", name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
