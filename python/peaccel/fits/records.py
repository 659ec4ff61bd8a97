"""Records of what is fitted to items, which can be saved: a prior of positions, a scale of uncertainties, the means of
both sides, the probability of a match, a threshold of confidence."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from peaccel._utils.arrays import ArrayT, Numpy, as_numpy, cast, dtype_name, is_torch, namespace, on_host, quiet
from peaccel._utils.numbers import require_shares
from peaccel._utils.warn import warn
from peaccel.distributions import Distribution
from peaccel.distributions._numerics import double
from peaccel.fits.answer_confidence import ANSWER_CONFIDENCES, RankedAnswers, answer_confidence
from peaccel.fits.saved_fit import SavedFit, refused, require_numbers
from peaccel.scores import Score

__all__ = [
    "CENTRED",
    "LEVELS",
    "Calibration",
    "Centre",
    "ConformalSets",
    "FalseMatchLimit",
    "IsotonicProbability",
    "LogisticProbability",
    "Prior",
    "Quality",
    "Selection",
    "Threshold",
    "behind_best",
    "fewest",
]

D = TypeVar("D", bound=Distribution)

CENTRED = ("point", "normal_isotropic", "normal_diagonal")
"""Kinds whose means can be moved; a direction less a mean is none."""
LEVELS = 100
"""Steps of a quality."""
GROWTH = 1.25
"""How many times as large as the threshold's gallery another one may be without a warning."""

R = TypeVar("R", bound=RankedAnswers)


class Prior(NamedTuple, Generic[ArrayT]):
    """The prior of ``llr``, as `fit_prior` finds it: ``pe.scores.llr(prior_mean=p.mean, prior_var=p.var)``.

    Attributes
    ----------
    mean
        [D]: the mean of the true positions of classes.
    var
        Their variance: a number, or [D].

    Examples
    --------
    >>> prior = pe.fit_prior(pe.Point([[0.0, 0.0], [0.0, 0.2], [1.0, 1.0], [1.0, 1.2]]), labels=[0, 0, 1, 1])
    >>> prior.mean.round(2).tolist(), round(prior.var, 2)
    ([0.5, 0.6], 0.5)
    """

    mean: ArrayT
    var: float | ArrayT


@dataclass(frozen=True)
class Calibration(SavedFit, kind="calibration"):
    """Correction of uncertainties that `calibrate_variance` fits. Called on a distribution it returns the corrected
    one.

    Attributes
    ----------
    a
        Factor: var <- a var + b of a Normal, kappa <- a kappa of a VonMisesFisher.
    b
        Offset of a Normal's variances, >= 0; 0 for a VonMisesFisher.
    of
        The class it was fitted on, the only one it applies to.
    mean
        D numbers, the mean of one side of two, which is subtracted from mu; none where one side was fitted.

    Examples
    --------
    >>> c = pe.Calibration(a=4.0, b=0.01, of="Normal")
    >>> c(pe.Normal([[0.0, 1.0]], var=[0.1])).var.round(3).tolist()
    [0.41]
    """

    a: float
    b: float
    of: str
    mean: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        require_numbers(self, "a", "b", least=0)
        require_numbers(self, "mean")
        _require_word(self, "of", "Normal", "VonMisesFisher")

    @quiet
    def __call__(self, d: D) -> D:
        """The items of d, in their dtype, with their uncertainty corrected; differentiable in torch.

        Raises
        ------
        TypeError
            d is of another class than the one it was fitted on.
        ValueError
            d has another dimension than the mean.
        """
        if type(d).__name__ != self.of:
            raise TypeError(f"calibrate_variance: fitted on {self.of}, cannot be applied to {type(d).__name__}")
        mu, spread = d.arrays
        if self.mean:
            if len(self.mean) != d.dim:
                raise ValueError(f"calibrate_variance: fitted on {len(self.mean)} dimensions, not on {d.dim}")
            mu = mu - (mu.new_tensor(self.mean) if is_torch(mu) else np.asarray(self.mean, mu.dtype))
        corrected = self.a * spread + self.b
        return type(d)(*[mu, corrected.to(mu.dtype) if is_torch(mu) else corrected.astype(mu.dtype, copy=False)])


@dataclass(frozen=True)
class Centre(SavedFit, kind="centre"):
    """The means of both sides of searches, as `fit_centre` finds them, to be subtracted from their items.

    Attributes
    ----------
    query_mean, gallery_mean
        D numbers each.
    matrix
        D rows of D numbers, by which the centred items are multiplied; empty unless items are whitened.

    Examples
    --------
    >>> centre = pe.Centre(query_mean=(1.0, 0.0), gallery_mean=(0.0, 2.0))
    >>> centre.of_queries(pe.Point([[3.0, 4.0]])).mu.tolist(), centre.of_gallery(pe.Point([[3.0, 4.0]])).mu.tolist()
    ([[2.0, 4.0]], [[3.0, 2.0]])
    """

    query_mean: tuple[float, ...]
    gallery_mean: tuple[float, ...]
    matrix: tuple[tuple[float, ...], ...] = ()

    def __post_init__(self) -> None:
        require_numbers(self, "query_mean", "gallery_mean")
        _require_length(self, "gallery_mean", "query_mean")
        if self.matrix == ():
            return
        try:
            matrix = np.asarray(self.matrix, np.float64)
        except (TypeError, ValueError):  # words, or rows of different lengths
            matrix = np.full((1, 1), np.nan)
        expected = (len(self.query_mean),) * 2
        if not np.isfinite(matrix).all():
            raise refused(self, "matrix", self.matrix, f"finite numbers {expected}")
        if matrix.shape != expected:
            raise ValueError(f"Centre: matrix has shape {matrix.shape}, expected {expected} like query_mean")

    def of_queries(self, d: D) -> D:
        """The queries less their mean, in their dtype; differentiable in torch.

        Raises
        ------
        TypeError
            d is of a kind that cannot be centred.
        ValueError
            d has another dimension than the mean.
        """
        return self._centred("queries", d, self.query_mean)

    def of_gallery(self, d: D) -> D:
        """The gallery's items less their mean, likewise."""
        return self._centred("gallery", d, self.gallery_mean)

    @quiet
    def _centred(self, side: str, d: D, mean: tuple[float, ...]) -> D:
        kinds = ("point",) if self.matrix else CENTRED
        if (kind := getattr(d, "kind", type(d).__name__)) not in kinds:
            raise TypeError(f"Centre: {side} are {kind}, expected {' or '.join(kinds)}")
        if d.dim != len(mean):
            raise ValueError(f"Centre: fitted on {len(mean)} dimensions, cannot be applied to {side} of {d.dim}")
        mu, *uncertainty = d.arrays
        left = double(mu) - _like(mean, mu)
        left = left @ _like(self.matrix, mu) if self.matrix else left
        return type(d)(cast(left, dtype_name(mu)), *uncertainty)


def _require_word(fit: SavedFit, name: str, *words: str) -> None:
    if getattr(fit, name) not in words:
        raise refused(fit, name, getattr(fit, name), " or ".join(map(repr, words)))


def _require_counts(fit: SavedFit, *names: str) -> None:
    for name in names:
        value = getattr(fit, name)
        if not isinstance(value, (int, np.integer)) or isinstance(value, bool) or value < 0:
            raise refused(fit, name, value, "an integer >= 0")


def _require_length(fit: SavedFit, name: str, like: str) -> None:
    found, expected = len(getattr(fit, name)), len(getattr(fit, like))
    if found != expected:
        raise ValueError(f"{type(fit).__name__}: {name} has {found} numbers, expected {expected} like {like}")


def _like(x: tuple[Any, ...], like: Any) -> Any:
    """Numbers in float64, as the kind of array that `like` is, on its device."""
    return like.new_tensor(x, dtype=namespace(like).float64) if is_torch(like) else np.asarray(x, np.float64)


@dataclass(frozen=True)
class LogisticProbability(SavedFit, kind="logistic"):
    """The probability of a match as `fit_match_probability` finds it, 1 / (1 + exp(-(bias + weights . inputs))).

    Attributes
    ----------
    bias
        A number.
    weights
        The weights of the score and, after it, of each confidence.
    prior
        The share of the fitted pairs that match.

    Examples
    --------
    >>> p = pe.LogisticProbability(bias=-1.0, weights=(2.0,))
    >>> p([0.0, 0.5, 1.0]).round(2).tolist()
    [0.27, 0.5, 0.73]

    Half of the fitted pairs match. Where one of a hundred does, the same scores mean less:

    >>> p([0.0, 0.5, 1.0], prior=0.01).round(3).tolist()
    [0.004, 0.01, 0.027]
    """

    bias: float
    weights: tuple[float, ...]
    prior: float = 0.5

    def __post_init__(self) -> None:
        require_numbers(self, "bias", "weights")
        require_shares(type(self).__name__, prior=self.prior)

    @quiet
    def __call__(self, scores: Any, *confidences: Any, prior: float | None = None) -> Numpy:
        """Probabilities, float64, of scores of any shape, and as many confidences as were fitted, which broadcast.

        ``prior`` is the share of pairs that match where the scores come from, by default that of the fitted pairs.

        Raises
        ------
        ValueError
            Other inputs than were fitted, in number, or shapes that do not broadcast; a prior outside (0, 1).
        """
        return _probability(self._log_odds(scores, *confidences) + _moved(self.prior, prior))

    @quiet
    def log_likelihood_ratio(self, scores: Any, *confidences: Any) -> Numpy:
        """The logarithm of how much likelier a match has these scores than another pair, at any share of matches."""
        return self._log_odds(scores, *confidences) - _log_odds_of(self.prior)

    def _log_odds(self, scores: Any, *confidences: Any) -> Numpy:
        if 1 + len(confidences) != len(self.weights):
            expected = f"{len(self.weights) - 1} confidences beside scores"
            raise ValueError(f"fit_match_probability: fitted with {expected}, got {len(confidences)}")
        inputs = (_numbers(x) for x in (scores, *confidences))
        return np.asarray(self.bias + sum(weight * x for weight, x in zip(self.weights, inputs, strict=True)))

    def __str__(self) -> str:
        """The formula."""
        names = ("score", *(f"confidence {i}" for i in range(1, len(self.weights))))
        terms = "".join(f" {w:+.6g} * {name}" for w, name in zip(self.weights, names, strict=True))
        return f"the probability of a match is 1 / (1 + exp(-z)) with z = {self.bias:.6g}{terms}"


@dataclass(frozen=True)
class IsotonicProbability(SavedFit, kind="isotonic"):
    """Probability of a match, isotonic in the score, as `fit_match_probability` finds it. It is linear between points,
    and constant beyond the first and the last point.

    Attributes
    ----------
    scores
        The scores of the points, rising.
    probabilities
        The probabilities of the points, never falling.
    prior
        The share of the fitted pairs that match.

    Examples
    --------
    >>> p = pe.IsotonicProbability(scores=(0.0, 1.0), probabilities=(0.2, 0.6))
    >>> p([-1.0, 0.5, 2.0]).round(2).tolist()
    [0.2, 0.4, 0.6]
    """

    scores: tuple[float, ...]
    probabilities: tuple[float, ...]
    prior: float = 0.5

    def __post_init__(self) -> None:
        require_numbers(self, "scores")
        require_numbers(self, "probabilities", least=0, most=1)
        require_shares(type(self).__name__, prior=self.prior)
        _require_length(self, "probabilities", "scores")
        if not self.scores or any(x >= y for x, y in itertools.pairwise(self.scores)):
            raise refused(self, "scores", self.scores, "rising numbers")
        if any(x > y for x, y in itertools.pairwise(self.probabilities)):
            raise refused(self, "probabilities", self.probabilities, "numbers that never fall")

    @quiet
    def __call__(self, scores: Any, *, prior: float | None = None) -> Numpy:
        """Probabilities, float64, of scores of any shape.

        ``prior`` is the share of pairs that match where the scores come from, by default that of the fitted pairs;
        ValueError where it is not in (0, 1).
        """
        found = np.asarray(np.interp(_numbers(scores), self.scores, self.probabilities))
        return found if prior is None else _probability(_log_odds_of(found) + _moved(self.prior, prior))

    @quiet
    def log_likelihood_ratio(self, scores: Any) -> Numpy:
        """The logarithm of how much likelier a match has these scores than another pair, at any share of matches.

        It is infinite where all fitted pairs are of one kind.
        """
        found = np.interp(_numbers(scores), self.scores, self.probabilities)
        return np.asarray(_log_odds_of(found) - _log_odds_of(self.prior))

    def __str__(self) -> str:
        """From where to where it rises."""
        ends = (f"{p:.6g} at a score of {s:.6g}" for p, s in ((self.probabilities[i], self.scores[i]) for i in (0, -1)))
        return f"the probability of a match rises from {' to '.join(ends)}, by {len(self.scores)} points"


def _log_odds_of(probability: Any) -> Any:
    return np.log(probability) - np.log1p(-np.asarray(probability))


def _probability(log_odds: Numpy) -> Numpy:
    return np.exp(-np.logaddexp(0, -log_odds))  # a form that never overflows


def _moved(fitted: float, prior: float | None) -> float:
    """The summand of log odds where this share of pairs matches, in place of that of the fitted pairs."""
    if prior is None:
        return 0.0
    require_shares("fit_match_probability", prior=prior)
    return float(_log_odds_of(prior) - _log_odds_of(fitted))


def fewest(alpha: float, delta: float) -> int:
    """How many trials it takes until none of them failing shows that at most alpha fail, but for a chance of delta."""
    return math.ceil(math.log(delta) / math.log1p(-alpha))


@dataclass(frozen=True, kw_only=True)
class Threshold(SavedFit, kind="threshold"):
    """Acceptance from a threshold on: of values, or of the answers of a ranking.

    Attributes
    ----------
    of
        "answers": of the best answers of searches; "pairs": of scored pairs, whose promise a search breaks, since it
        takes the best of many.
    score
        The `Score.fingerprint` of the score that the threshold is of; empty where it is not known.
    normalisation
        The norm of its scores, as a ranking's ``normalisation``.
    confidence
        The number that is compared: a kind of `answer_confidence`, or "probability", the logistic one of `weights`.
    weights
        Of a probability, the bias and the weights of the score, the margin and, if they are four, the class margin.
    dim
        Dimensions of the items; 0 where they are not known.
    gallery_size
        How many items were searched; 0 where that is not known. Beyond 1.25 times as many a warning says that the
        promise has ended.
    applied
        The fits that were applied to the items, such as "centre 1c291ca3", or "none"; empty where they are not known.
    fitted_on
        Data that it was found on, in words; empty where they are not known.
    threshold
        The least value that is accepted.

    Examples
    --------
    >>> accept = pe.Threshold(threshold=0.5, of="pairs")
    >>> accept([0.4, 0.5]).tolist(), str(accept)
    ([False, True], 'accept pairs from a score of 0.5 on')
    """

    of: str = "answers"
    score: str = ""
    normalisation: str = ""
    confidence: str = "score"
    weights: tuple[float, ...] = ()
    dim: int = 0
    gallery_size: int = 0
    applied: str = ""
    fitted_on: str = ""
    threshold: float

    def __post_init__(self) -> None:
        require_numbers(self, "threshold", infinite=True)
        require_numbers(self, "weights")
        _require_counts(self, "dim", "gallery_size")
        _require_word(self, "of", "answers", "pairs")
        _require_word(self, "confidence", *ANSWER_CONFIDENCES, "probability")
        for name in ("score", "normalisation", "applied", "fitted_on"):
            if not isinstance(getattr(self, name), str):
                raise refused(self, name, getattr(self, name), "text")
        if len(self.weights) not in ((3, 4) if self.confidence == "probability" else (0,)):
            expected = "3 or 4 of a probability, and none of other confidences"
            raise refused(self, "weights", self.weights, f"numbers, {expected}")

    @overload
    def __call__(self, values: R, labels: ArrayLike | None = None) -> R: ...
    @overload
    def __call__(self, values: Any, labels: ArrayLike | None = None) -> Numpy: ...
    def __call__(self, values: Any, labels: ArrayLike | None = None) -> Any:
        """Booleans: which values, of any shape, to accept, NaN not; or a `pe.Ranking` as `select` gives it."""
        if hasattr(values, "scores"):
            return self.select(values, labels=labels)
        return _numbers(values) >= self._least

    def __str__(self) -> str:
        """The rule of acceptance, without a promise."""
        return f"accept {self.of} from a {self.score or 'score'} of {self.threshold:.6g} on"

    @property
    def _least(self) -> float:
        """The threshold; NaN in place of inf, which nothing is to reach, the infinite score of a copy neither."""
        return math.nan if self.threshold == math.inf else self.threshold

    @property
    def of_classes(self) -> bool:
        """Whether its confidence needs the classes of the gallery."""
        return self.confidence == "class_margin" or len(self.weights) > len(ANSWER_CONFIDENCES)

    def check(
        self,
        owner: str,
        score: Score | None,
        k: int,
        normalisation: str = "",
        *,
        dim: int | None = None,
        applied: str | None = None,
        gallery_size: int = 0,
    ) -> None:
        """Refuse answers of another score, norm, dimension or fit, where both are known, and those that nothing was
        promised of.
        """
        if self.of != "answers":
            what = "a search takes the best of many pairs, of which more are wrong; expected one of answers"
            raise ValueError(f"{owner}: the threshold is of scored pairs, and {what}")
        if isinstance(self, Selection) and self.confidence == "score" and k > 1:
            raise ValueError(f"{owner}: the threshold is of the best answer of each query, expected k = 1, got {k}")
        if self.confidence != "score" and k < 2:
            raise ValueError(
                f"{owner}: the threshold is of a {self.confidence}, which needs other items: expected k > 1"
            )
        self.check_score(owner, score, normalisation, dim=dim, applied=applied)
        if self.gallery_size and gallery_size > GROWTH * self.gallery_size:
            of = f"the gallery has more than {GROWTH:g} times the {self.gallery_size} items that the threshold is of"
            warn(f"{owner}: {of}; {self._when_larger}")

    @property
    def _when_larger(self) -> str:
        """The effect of a larger gallery, as a clause."""
        return "it may accept more wrong answers: choose a threshold for this gallery"

    def check_score(
        self,
        owner: str,
        score: Score | None,
        normalisation: str = "",
        *,
        dim: int | None = None,
        applied: str | None = None,
    ) -> None:
        """Refuse scores of another score, norm, dimension or fit, where both are known."""
        if dim and self.dim and dim != self.dim:
            raise ValueError(f"{owner}: the threshold is of items of {self.dim} dimensions, got {dim}")
        if applied and self.applied and applied != self.applied:
            raise ValueError(f"{owner}: fits applied to the threshold's items: {self.applied}; to these: {applied}")
        if score is None or not self.score:
            return
        expected, got = (
            f"{name} with {norm}" if norm else name
            for name, norm in ((self.score, self.normalisation), (score.fingerprint, normalisation))
        )
        if got != expected:
            what = f"the threshold is of {expected}, and scores are of {got}"
            if normalisation and normalisation in self.normalisation:
                what += " of some cohort (see cohort= of normalise_scores)"
            raise ValueError(f"{owner}: {what}; choose one of these")

    def confidence_of(self, ranking: RankedAnswers, labels: ArrayLike | None = None) -> Numpy:
        """The number [Q] that the threshold is of, of the best answer to each query; labels as `answer_confidence`."""
        if self.confidence != "probability":
            return answer_confidence(ranking, self.confidence, labels)
        bias, *weights = self.weights
        inputs = [answer_confidence(ranking, kind, labels) for kind in ANSWER_CONFIDENCES[: len(weights)]]
        return LogisticProbability(bias, tuple(weights))(*inputs)

    def select(self, ranking: R, confidence: Any = None, labels: ArrayLike | None = None) -> R:
        """Take refused answers out of a ranking.

        Parameters
        ----------
        ranking
            A `pe.Ranking`, whose scores the threshold is of. Where both are known to be of different scores it is
            refused. What a `Selection` promises is of the best answer of each query: of a ranking of one. The best
            answers are returned of a longer one too where the threshold is of a margin, or where scores are normalised,
            after which another item is the best.
        confidence
            [Q], where the threshold is of another confidence than the ranking tells, such as one of the queries: of a
            query that is refused all answers are.
        labels
            The classes of the gallery, as `answer_confidence` takes them, where the threshold is of a class margin.

        Returns
        -------
        The ranking with id -1, an empty one among strings, and score -inf in place of refused answers.

        Raises
        ------
        ValueError
            Confidences of another number of queries; a threshold of pairs, of another score or another norm than the
            ranking, or of best answers where the ranking has more than one; a margin of a ranking that has no other
            item, or class, for each query.
        """
        scores = ranking.scores
        if scores.ndim != 2:
            what = f"{type(ranking).__name__} of scores {tuple(scores.shape)}, expected a pe.Ranking, [Q, k]"
            raise ValueError(f"accept: ranking is a {what}; pe.search_above takes the threshold itself")
        if confidence is None:
            norm = getattr(ranking, "normalisation", "")
            if norm and isinstance(self, Selection) and self.confidence == "score":
                ranking, scores = _best(ranking), scores[:, :1]
            dim, size = (getattr(ranking, name, 0) for name in ("dim", "gallery_size"))
            self.check("accept", getattr(ranking, "score", None), scores.shape[1], norm, dim=dim, gallery_size=size)
            if self.confidence != "score":
                sure = self.confidence_of(ranking, labels)
                return self.select(_best(ranking), sure)
        if confidence is None:  # in float64, since a threshold lies between two numbers of float32
            refused = ~((scores.double() if is_torch(scores) else _numbers(scores)) >= self._least)
        elif np.shape(confidence) == (len(scores),):
            of_query = ~(_numbers(confidence) >= self._least)[:, None]
            refused = scores.new_tensor(of_query).bool() if is_torch(scores) else of_query
        else:
            raise ValueError(f"select: confidence has shape {np.shape(confidence)}, expected ({len(scores)},)")
        return _without(ranking, refused)


@dataclass(frozen=True)
class Selection(Threshold, kind="selection"):
    """Which answers to accept, as `learn_then_test` finds it: those at least as confident as a threshold.

    Attributes
    ----------
    threshold
        The least confidence that is accepted; inf where no threshold was certain enough: nothing is accepted.
    alpha
        The share of accepted answers that may be wrong.
    delta
        The probability that it is more than alpha nevertheless.
    number
        How many answers, one of a class, the threshold was tested on.
    accepted, wrong
        How many of these it accepts, and how many of the accepted are wrong.
    missing
        Where nothing is accepted: about how many more classes it takes if others are like these. None: no number of
        labels will do.

    Examples
    --------
    >>> s = pe.Selection(threshold=0.4, alpha=0.05, delta=0.1, number=100, accepted=60, wrong=0)
    >>> s([0.3, 0.4, float("nan")]).tolist()
    [False, True, False]
    >>> s.missing
    0
    """

    threshold: float
    alpha: float
    delta: float
    number: int
    accepted: int
    wrong: int
    missing: int | None = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        require_shares(type(self).__name__, alpha=self.alpha, delta=self.delta)
        _require_counts(self, "number", "accepted", "wrong", *(() if self.missing is None else ("missing",)))

    def __str__(self) -> str:
        """A sentence of what is promised."""
        promise = f"at most {100 * self.alpha:g} % of them are wrong, with a certainty of {100 * (1 - self.delta):g} %"
        if np.isinf(self.threshold):
            more = f"; about {self.missing} more may do, if they are like these" if self.missing else ""
            none = f"of {self.number} labelled ones none could be shown to be such that {promise}"
            return f"accept no {self.of}: {none}{more}"
        share = f"{self.accepted} of {self.number} labelled {self.of}, {self.wrong} of them wrong"
        return (
            f"accept {self.of} from a {_number_of(self, 'confidence')} of {self.threshold:.6g} on: {promise} ({share})"
        )


@dataclass(frozen=True)
class FalseMatchLimit(Threshold, kind="false_match_limit"):
    """From which score on to return matches, as `limit_false_matches` finds it.

    Attributes
    ----------
    threshold
        The least score that is a match; inf where there were too few searches: there are no matches.
    alpha
        The share of searches without a mate that may return anything.
    delta
        The probability that it is more than alpha nevertheless.
    number
        How many searches without a mate, one of a person, the threshold was found on.
    allowed
        How many of these were allowed to return something.

    Examples
    --------
    >>> limit = pe.FalseMatchLimit(threshold=0.5, alpha=0.01, delta=0.05, number=1000, allowed=4)
    >>> limit(pe.Ranking(np.array([[0.9, 0.4]]), np.array([[7, 3]]))).ids.tolist()
    [[7, -1]]
    >>> limit.missing
    0
    """

    threshold: float
    alpha: float
    delta: float
    number: int
    allowed: int

    def __post_init__(self) -> None:
        super().__post_init__()
        require_shares(type(self).__name__, alpha=self.alpha, delta=self.delta)
        _require_counts(self, "number", "allowed")

    @property
    def _when_larger(self) -> str:
        each = f"at most {100 * self.alpha:g} % of searches without a mate, times the growth, return anything"
        return f"{each}: for a lower share choose a threshold for this gallery"

    @property
    def missing(self) -> int:
        """How many more searches it takes to promise anything."""
        return max(0, fewest(self.alpha, self.delta) - self.number)

    def __str__(self) -> str:
        """A sentence of what is promised."""
        what, verb = ("searches without a mate", "return anything")
        if self.of == "pairs":
            what, verb = ("pairs that do not match", "are accepted")
        promise = f"at most {100 * self.alpha:g} % of {what} {verb}, with a certainty of {100 * (1 - self.delta):g} %"
        counted = what.split()[0]
        if np.isinf(self.threshold):
            missing = f"takes {self.missing} more {counted} than {self.number}"
            return f"return no matches: to promise that {promise}, {missing}"
        number = _number_of(self, "score")
        return f"return matches from a {number} of {self.threshold:.6g} on: {promise} ({self.number} {counted})"


@dataclass(frozen=True)
class Quality(SavedFit, kind="quality"):
    """The quality of items from 0 to 100, as `fit_quality` finds it.

    Attributes
    ----------
    quantiles
        The confidence of the reference set at 1, 2, ... 100 %.

    Examples
    --------
    >>> q = pe.Quality(tuple(float(i) for i in range(100)))
    >>> q([-3.0, 49.5, 99.0]).tolist()
    [0, 50, 100]
    """

    quantiles: tuple[float, ...]

    def __post_init__(self) -> None:
        require_numbers(self, "quantiles")
        if len(self.quantiles) != LEVELS or any(x > y for x, y in itertools.pairwise(self.quantiles)):
            raise refused(self, "quantiles", self.quantiles, f"{LEVELS} ascending numbers")

    def __call__(self, confidence: Any) -> NDArray[np.int64]:
        """Integers from 0 to 100, of any shape: how many per cent of the reference set are at most as confident."""
        x = _numbers(confidence)
        if np.isnan(x).any():
            raise ValueError(f"Quality: {np.isnan(x).sum()} of the {x.size} numbers of confidence are NaN")
        return np.asarray(np.searchsorted(self.quantiles, x, side="right"), np.int64)


@dataclass(frozen=True)
class ConformalSets(SavedFit, kind="conformal_sets"):
    """How far behind the best score answers are still given, as `conformal_sets` finds it.

    Attributes
    ----------
    gap
        The greatest difference from the best score, >= 0; inf where all answers are given.
    alpha
        The probability that a list holds no right answer.
    classes
        How many classes the gap was found on.
    of
        "answerable": the promise is of queries that have a right answer; "all": of all queries.

    Examples
    --------
    >>> found = pe.ConformalSets(gap=0.5, alpha=0.1, classes=200, of="answerable")
    >>> found(pe.Ranking(np.array([[0.9, 0.4, 0.3]]), np.array([[7, 3, 5]]))).ids.tolist()
    [[7, 3, -1]]
    """

    gap: float
    alpha: float
    classes: int
    of: str

    def __post_init__(self) -> None:
        require_numbers(self, "gap", least=0, infinite=True)
        require_shares(type(self).__name__, alpha=self.alpha)
        _require_counts(self, "classes")
        _require_word(self, "of", "answerable", "all")

    def __call__(self, ranking: R) -> R:
        """The ranking with id -1 and score -inf in place of what is further from the best of its query."""
        if not hasattr(ranking, "scores"):
            raise TypeError(f"conformal_sets: ranking is {type(ranking).__name__}, expected a pe.Ranking")
        scores = ranking.scores.double() if is_torch(ranking.scores) else ranking.scores.astype(np.float64)
        return _without(ranking, ~(behind_best(scores) <= self.gap))

    def __str__(self) -> str:
        """A sentence of what is promised."""
        whom = "that have one " if self.of == "answerable" else ""
        miss = "hold no right answer" if self.of == "answerable" else "have a right answer and miss it"
        promise = f"at most {100 * self.alpha:g} % of queries {whom}{miss} ({self.classes} classes)"
        if np.isinf(self.gap):
            return f"give all answers: that {promise} is promised of no shorter list"
        return f"give answers down to {self.gap:.6g} below the best score: {promise}"


@quiet
def behind_best(scores: Any) -> Any:
    """How far each score [Q, K] lies behind the first of its query; 0 where it equals an infinite one."""
    return namespace(scores).where(scores == scores[:, :1], 0.0, scores[:, :1] - scores)


def _number_of(threshold: Threshold, unknown: str) -> str:
    """Name of the number that a threshold is of."""
    if threshold.confidence == "score":
        return threshold.score or unknown
    return f"{threshold.confidence} of {threshold.score}" if threshold.score else threshold.confidence


def _best(ranking: R) -> R:
    """The first answers alone."""
    return _with(ranking, ranking.ids[:, :1], ranking.scores[:, :1])


def _without(ranking: R, refused: Any) -> R:
    ids, where = ranking.ids, namespace(ranking.scores).where
    if isinstance(ids, np.ndarray) and ids.dtype.kind == "U":  # a numpy array beside tensors of scores too
        ids = np.where(as_numpy(refused), "", ids)
    else:
        ids = where(refused, -1, ids)
    return _with(ranking, ids, where(refused, -np.inf, ranking.scores))


def _with(ranking: R, ids: Any, scores: Any) -> R:
    """The ranking with other ids and scores."""
    found: R = ranking._replace(ids=ids, scores=scores)
    for name, value in getattr(ranking, "__dict__", {}).items():  # what was scored, and which shards are missing
        setattr(found, name, value)
    return found


def _numbers(x: Any) -> Numpy:
    """Numbers of either kind of array, or of lists, as float64 on the host."""
    return np.asarray(on_host(x), np.float64)
