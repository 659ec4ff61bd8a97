"""What distributions say of points, of themselves and of each other, and what is fitted to them or fused from them.

`density`: log_prob, entropy, kl, match_variance; `certainty`: confidence; `fitting`: fit_prior, fit_vmf; `calibrating`:
calibrate, fit_shift; `fusing`: fuse; `sampling`: sample; `triplets`: triplet_probability.
"""

from peaccel.fits import Calibration, Prior
from peaccel.measures.calibrating import calibrate, fit_shift
from peaccel.measures.certainty import confidence
from peaccel.measures.density import entropy, kl, log_prob, match_variance
from peaccel.measures.fitting import fit_prior, fit_vmf
from peaccel.measures.fusing import fuse
from peaccel.measures.sampling import sample
from peaccel.measures.triplets import triplet_probability

__all__ = [
    "Calibration",
    "Prior",
    "calibrate",
    "confidence",
    "entropy",
    "fit_prior",
    "fit_shift",
    "fit_vmf",
    "fuse",
    "kl",
    "log_prob",
    "match_variance",
    "sample",
    "triplet_probability",
]
