"""Speakers of trial lists, which intervals draw as a whole."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from peaccel._utils.labels import alike
from peaccel._utils.numbers import as_classes, as_flags, require_length
from peaccel.metrics._relation import Relevance

__all__ = ["trial_clusters"]


def trial_clusters(enrol: ArrayLike, test: ArrayLike, same: ArrayLike) -> NDArray[np.int64]:
    """Speakers of both sides of trials: names that a trial of one speaker joins, or several in a chain.

    Parameters
    ----------
    enrol, test
        [N] numbers or strings, the names on both sides of each trial, as `peaccel.io.read_trials` gives them. A name
        that stands on both sides is one.
    same
        [N], 1 or True where the trial is of one speaker.

    Returns
    -------
    [N, 2] integers, for ``clusters`` of `equal_error_rate` and `detection_cost`: trials that share a speaker, on
    whichever side, are not independent. Of names without a trial of one speaker each is a speaker.

    Raises
    ------
    ValueError
        Lengths differ, a name is missing, or `same` has another number than 0 and 1.

    Examples
    --------
    The first two trials make a1, a2 and a3 one speaker, b1 is another:

    >>> enrol, test = ["a1", "a2", "a1"], ["a2", "a3", "b1"]
    >>> pe.metrics.trial_clusters(enrol, test, same=[1, 1, 0]).tolist()
    [[0, 0], [0, 0], [0, 1]]
    """
    owner = "trial_clusters"
    sides = as_classes(owner, "enrol", enrol), as_classes(owner, "test", test)
    flags = as_flags(owner, "same", same)
    for name, x in (("test", sides[1]), ("same", flags)):
        require_length(owner, name, x, "enrol", sides[0])
    names, of = np.unique(np.concatenate(alike(owner, ("enrol", "test"), *sides)), return_inverse=True)
    pairs = of.reshape(2, -1).T
    return Relevance.from_pairs(pairs[flags], len(names)).clusters[pairs]
