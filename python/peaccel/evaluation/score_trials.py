"""`pe.score_trials`: scores of pairs of names, of speakers that are enrolled with several utterances."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from peaccel import scores
from peaccel._utils.ids import SortedIds
from peaccel._utils.labels import plain
from peaccel._utils.suggestions import require_classes
from peaccel.distributions import Distribution
from peaccel.distributions.checks import require_distribution
from peaccel.distributions.fuse import fuse
from peaccel.evaluation.answers import of_pairs
from peaccel.retrieval.adaptive_norm import AdaptiveNorm
from peaccel.retrieval.normalise_scores import NEAREST
from peaccel.scores import Score

__all__ = ["rows_of_names", "score_trials"]


def score_trials(
    d: Distribution,
    ids: ArrayLike,
    enrol: ArrayLike,
    test: ArrayLike,
    score: str | Score | None = None,
    *,
    enrolment: Mapping[str, Sequence[str]] | None = None,
    rule: str | None = None,
    cohort: Distribution | None = None,
    k: int = NEAREST,
) -> NDArray[np.float64]:
    """Score a list of trials by names, as VoxCeleb and Kaldi's recipes have them.

    Parameters
    ----------
    d
        N utterances, of the enrolment and of the tests.
    ids
        [N], the name of each, none twice.
    enrol, test
        [P] names of each pair, as `peaccel.io.read_trials` gives them: who is enrolled, and the tested utterance.
    score
        A name or a score, of the tested utterance as query and the enrolled one as gallery item; None: cosine of
        points, else mls.
    enrolment
        By who is enrolled the names of their utterances, as `peaccel.io.read_enrolment` gives them; they are fused.
        None: those who are enrolled are utterances.
    rule
        Of `peaccel.fuse`, for the enrolment.
    cohort
        Utterances of others, of d's kind: scores are normalised by those with the cohort (adaptive S-norm of
        `peaccel.normalise_scores`).
    k
        How many of the cohort are taken, the nearest of each side; at least 2.

    Returns
    -------
    [P], float64, for `peaccel.metrics.equal_error_rate`, `peaccel.metrics.detection_cost` or
    `peaccel.choose_pair_threshold`.

    Raises
    ------
    TypeError
        The score does not take these kinds.
    ValueError
        ids are not N different names; a name that they, or the enrolment, lack; k below 2; or as for the functions
        named.

    Examples
    --------
    Ann is enrolled with two utterances, whose mean is near the third:

    >>> d = pe.Point([[1.0, 0.0], [0.0, 1.0], [0.7, 0.7], [1.0, -1.0]])
    >>> enrol, test = ["ann", "ann"], ["u3", "u4"]
    >>> found = pe.score_trials(d, ["u1", "u2", "u3", "u4"], enrol, test, enrolment={"ann": ["u1", "u2"]})
    >>> found.round(2).tolist()
    [1.0, 0.0]
    """
    owner = "score_trials"
    require_distribution(owner, "d", d)
    named = scores.named(score, d, d)
    known = _names(owner, "ids", ids)
    if len(known) != len(d) or len(np.unique(known)) != len(known):
        raise ValueError(f"{owner}: ids are {len(np.unique(known))} different names, expected {len(d)} like d")
    first, second = _names(owner, "enrol", enrol), _names(owner, "test", test)
    if len(first) != len(second):
        raise ValueError(f"{owner}: test has shape {second.shape}, expected {first.shape} like enrol")
    if rule is not None and enrolment is None:
        raise ValueError(f"{owner}: rule is {rule!r} without an enrolment to fuse, expected both or none")
    if cohort is not None and k < 2:
        raise ValueError(f"{owner}: k is {k}, expected at least 2 of the cohort")
    (enrolled, of_enrol), (tested, of_test) = (np.unique(x, return_inverse=True) for x in (first, second))
    of_models: dict[str, tuple[str, ...]] = {name: (name,) for name in enrolled.tolist()}
    if enrolment is not None:
        keys = np.array([str(key) for key in enrolment])
        rows_of_names(owner, "enrol", enrolled, keys, "enrolment")
        of_models = {name: tuple(map(str, enrolment[name])) for name in enrolled.tolist()}
    sizes = [len(names) for names in of_models.values()]
    if 0 in sizes:
        raise ValueError(f"{owner}: enrolment of {str(enrolled[sizes.index(0)])!r} has no utterance")
    utterances = np.array([name for names in of_models.values() for name in names])
    models = d[rows_of_names(owner, "enrolment" if enrolment else "enrol", utterances, known, "ids")]
    if enrolment is not None:
        models = fuse(models, np.arange(len(sizes)).repeat(sizes), rule)
    queries, pairs = d[rows_of_names(owner, "test", tested, known, "ids")], np.stack([of_test, of_enrol], 1)
    norm = None if cohort is None else AdaptiveNorm(owner, models, cohort, named, k)
    found = of_pairs(owner, queries, models, pairs, named)
    return found if norm is None else norm.of_pairs(found, queries, pairs)


def _names(owner: str, name: str, x: ArrayLike) -> NDArray[np.str_]:
    """Names as text, none missing."""
    require_classes(owner, name, x, "names")
    found = plain(owner, name, x)
    if found.ndim != 1 or found.dtype.kind not in "iuU":
        raise ValueError(f"{owner}: {name} has shape {found.shape} and dtype {found.dtype}, expected (N,) names")
    return found.astype(str)


def rows_of_names(
    owner: str, name: str, wanted: NDArray[np.str_], known: NDArray[np.str_], where: str
) -> NDArray[np.int64]:
    """The rows of names among those that are known; ValueError where one is not."""
    rows = SortedIds.of(known).rows_of(wanted)
    missing = wanted[rows < 0]
    if len(missing):
        raise ValueError(f"{owner}: {where} lacks {len(missing)} of the names of {name}, the first {str(missing[0])!r}")
    return rows
