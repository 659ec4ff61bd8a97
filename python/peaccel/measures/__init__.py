"""Densities, entropies and divergences of distributions, and what is fitted to them, fused or drawn from them.

`density`: log_prob, entropy; `divergence`: kl, match_variance; `certainty`: confidence; `fitting`: fit_prior, fit_vmf;
`calibrating`: calibrate, fit_shift; `sides`: two modalities; `deciding`: fit_match_probability, reliability_curve,
learn_then_test; `fusing`: fuse; `sampling`: sample; `triplet_margins`: triplet_probability.
"""

from peaccel.measures.calibrating import calibrate, fit_shift
from peaccel.measures.certainty import confidence
from peaccel.measures.deciding import ReliabilityCurve, fit_match_probability, learn_then_test, reliability_curve
from peaccel.measures.density import entropy, log_prob
from peaccel.measures.divergence import kl, match_variance
from peaccel.measures.fitted import Calibration, IsotonicProbability, LogisticProbability, Prior, Selection
from peaccel.measures.fitting import fit_prior, fit_vmf
from peaccel.measures.fusing import fuse
from peaccel.measures.sampling import sample
from peaccel.measures.triplet_margins import triplet_probability

__all__ = [
    "Calibration",
    "IsotonicProbability",
    "LogisticProbability",
    "Prior",
    "ReliabilityCurve",
    "Selection",
    "calibrate",
    "confidence",
    "entropy",
    "fit_match_probability",
    "fit_prior",
    "fit_shift",
    "fit_vmf",
    "fuse",
    "kl",
    "learn_then_test",
    "log_prob",
    "match_variance",
    "reliability_curve",
    "sample",
    "triplet_probability",
]
