"""The cosine between pairs that are alike and pairs that differ, fitted to labelled pairs."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from peaccel._utils.arrays import Array, on_host, quiet, require_finite
from peaccel.distributions import Distribution
from peaccel.distributions.checks import require_distribution
from peaccel.fits.labelled_pairs import by_blocks, different_rows, labelled_pairs
from peaccel.ops import Inputs, dot_scores, score

__all__ = ["fit_shift"]


@quiet
def fit_shift(d: Distribution, pairs: ArrayLike, labels: ArrayLike) -> float:
    """ScaleFace's mu, a cosine between alike and different: (mean of same pairs + mean of different pairs) / 2.

    Parameters
    ----------
    d
        N items of any kind; cosines are of means or directions. Detached.
    pairs
        [P, 2] integers: rows of d. Held-out identities, as the cosines of those trained on are wider apart.
    labels
        [P] booleans (or 0 and 1): whether a pair is of one identity; some are and some are not.

    Returns
    -------
    A number in [-1, 1]; the cosine of a mean of zero length counts as 0.

    Raises
    ------
    TypeError
        d is not a distribution.
    ValueError
        pairs or labels of wrong shape or dtype, rows out of range, a pair of a row with itself; no same or no
        different pair.

    References
    ----------
    "ScaleFace", the threshold of mu-ScaleFace; its code also tries the best F1 and the crossing of two normals, and
    uses this.

    Examples
    --------
    >>> d = pe.Scaled([[1.0, 0.0], [0.8, 0.6], [0.0, 1.0]], scale=[30.0, 10.0, 20.0])
    >>> mu = pe.fit_shift(d, [[0, 1], [0, 2]], labels=[True, False])
    >>> mu
    0.4
    >>> pe.pairwise(d[:1], d, pe.scores.scale_cosine(mu=mu)).round(2).tolist()
    [[18.0, 6.93, -9.8]]
    """
    require_distribution("fit_shift", "d", d)
    d.check_rows()
    mu = on_host(d.mu, "fit_shift", "d")
    require_finite("fit_shift", "d", mu)
    rows, same = labelled_pairs("fit_shift", {"d": d}, pairs, labels)
    means = []
    for label, what in ((True, "one identity"), (False, "different identities")):
        first, second = different_rows("fit_shift", rows[same == label], what)
        means.append(by_blocks(_cosine, mu, first, second).mean())
    return float(sum(means) / 2)


def _cosine(a: Array, b: Array) -> Array:
    one = np.ones(len(a))
    return score(dot_scores.cosine, Inputs(a, one, b, one, np.empty(0)))
