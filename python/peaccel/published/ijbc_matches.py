"""The evaluation of ScaleFace (Kail et al., 2022)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from peaccel.data.datasets import Pairs, Templates

__all__ = ["first_matches"]

MATCHES = {True: 5_000, False: 100_000}


def first_matches(templates: Templates) -> Templates:
    """IJB-C's templates with the first 5000 matches of one subject and the first 100,000 of two.

    The evaluation's numbers are of these, and so none of the official protocol.

    Parameters
    ----------
    templates
        Part "test" of `peaccel.data.read` of "ijbc".

    Examples
    --------
    ::

        templates = first_matches(peaccel.data.read("ijbc", "/data/ijbc")["test"])
    """
    found = templates.matches
    few = np.union1d(*(np.flatnonzero(found.same == kind)[:most] for kind, most in MATCHES.items()))
    return replace(templates, matches=Pairs(found.left[few], found.right[few], found.same[few]))
