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
from peaccel.retrieval.merging import Ranking, merge
from peaccel.retrieval.prepared import Prepared, prepare
from peaccel.retrieval.score_norms import normalise_scores
from peaccel.retrieval.verbs import paired, pairwise, rerank, rescore, search

if TYPE_CHECKING:
    from peaccel import hub, io, metrics, torch_distributions
    from peaccel.evaluation import (
        Evaluation,
        ScoreChoice,
        ThresholdChoice,
        choose_pair_threshold,
        choose_score,
        choose_threshold,
        evaluate,
    )
    from peaccel.gallery import Gallery
    from peaccel.measures import (
        ReliabilityCurve,
        calibrate,
        confidence,
        conformal_sets,
        entropy,
        fit_match_probability,
        fit_plda,
        fit_prior,
        fit_shift,
        fit_vmf,
        fuse,
        kl,
        learn_then_test,
        limit_false_matches,
        log_prob,
        match_variance,
        reliability_curve,
        sample,
        triplet_probability,
    )
    from peaccel.measures.fitted import (
        Calibration,
        ConformalSets,
        FalseMatchLimit,
        IsotonicProbability,
        LogisticProbability,
        Prior,
        Selection,
    )
    from peaccel.measures.plda import Plda
    from peaccel.reranker.inner_product_features import FirstStageReference, first_stage_features, first_stage_reference
    from peaccel.reranker.reranker import FaissReranker

__version__ = _core.__version__

__all__ = [
    "Calibration",
    "ConformalSets",
    "CudaError",
    "Distribution",
    "Evaluation",
    "FaissReranker",
    "FalseMatchLimit",
    "FirstStageReference",
    "Gallery",
    "IsotonicProbability",
    "LogisticProbability",
    "NonIsotropicVonMisesFisher",
    "Normal",
    "Plda",
    "Point",
    "Prepared",
    "Prior",
    "Ranking",
    "ReliabilityCurve",
    "Scaled",
    "ScoreChoice",
    "Selection",
    "ThresholdChoice",
    "VonMisesFisher",
    "__version__",
    "build_info",
    "calibrate",
    "choose_pair_threshold",
    "choose_score",
    "choose_threshold",
    "concat",
    "confidence",
    "conformal_sets",
    "enable_torch",
    "entropy",
    "evaluate",
    "first_stage_features",
    "first_stage_reference",
    "fit_match_probability",
    "fit_plda",
    "fit_prior",
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
    "prepare",
    "reliability_curve",
    "rerank",
    "rescore",
    "sample",
    "scores",
    "search",
    "set_num_threads",
    "special",
    "torch_distributions",
    "triplet_probability",
]


# The verbs do not need these, which take half of the time of `import peaccel`: they are imported at their first use.
_MODULES = ("hub", "io", "metrics", "torch_distributions")
_MODULE_OF = {
    "FaissReranker": "reranker",
    "Gallery": "gallery",
    **dict.fromkeys(("Evaluation", "ScoreChoice", "ThresholdChoice"), "evaluation"),
    **dict.fromkeys(("choose_pair_threshold", "choose_score", "choose_threshold", "evaluate"), "evaluation"),
    **dict.fromkeys(("FirstStageReference", "first_stage_features", "first_stage_reference"), "reranker"),
}  # the modules of names; all other names are those of measures


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"peaccel.{name}")
    if name in __all__:
        module = importlib.import_module(f"peaccel.{_MODULE_OF.get(name, 'measures')}")
        globals()[name] = getattr(module, name)
        return globals()[name]
    raise AttributeError(f"module 'peaccel' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
