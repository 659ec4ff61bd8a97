"""Densities, entropies and divergences of distributions, and what is fitted to them, fused or drawn from them.

`density`: log_prob, entropy; `divergence`: kl, match_variance; `certainty`: confidence; `fitting`: fit_prior, fit_vmf;
`plda_fitting`: fit_plda; `calibrating`: calibrate, fit_shift; `sides`: two modalities; `probability`:
fit_match_probability, reliability_curve; `thresholds`: learn_then_test, limit_false_matches; `conformal`:
conformal_sets; `fusing`: fuse; `sampling`: sample; `triplet_margins`: triplet_probability.
"""

from peaccel.measures.calibrating import calibrate, fit_shift
from peaccel.measures.certainty import confidence
from peaccel.measures.conformal import conformal_sets
from peaccel.measures.density import entropy, log_prob
from peaccel.measures.divergence import kl, match_variance
from peaccel.measures.fitted import (
    Calibration,
    ConformalSets,
    FalseMatchLimit,
    IsotonicProbability,
    LogisticProbability,
    Prior,
    Selection,
)
from peaccel.measures.fitting import fit_prior, fit_vmf
from peaccel.measures.fusing import fuse
from peaccel.measures.plda import Plda
from peaccel.measures.plda_fitting import fit_plda
from peaccel.measures.probability import ReliabilityCurve, fit_match_probability, reliability_curve
from peaccel.measures.sampling import sample
from peaccel.measures.thresholds import learn_then_test, limit_false_matches
from peaccel.measures.triplet_margins import triplet_probability

__all__ = [
    "Calibration",
    "ConformalSets",
    "FalseMatchLimit",
    "IsotonicProbability",
    "LogisticProbability",
    "Plda",
    "Prior",
    "ReliabilityCurve",
    "Selection",
    "calibrate",
    "confidence",
    "conformal_sets",
    "entropy",
    "fit_match_probability",
    "fit_plda",
    "fit_prior",
    "fit_shift",
    "fit_vmf",
    "fuse",
    "kl",
    "learn_then_test",
    "limit_false_matches",
    "log_prob",
    "match_variance",
    "reliability_curve",
    "sample",
    "triplet_probability",
]
