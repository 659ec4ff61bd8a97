"""Every public function on whatever arrays users hold: what its definition says, or an error that names the argument.

An entry of `CALLS` makes one call of arrays that it is handed, and says in plain numpy what must come of it. Sizes,
dtypes, memory layouts and values are drawn: each call is made twice, on arrays as they were drawn and on plain copies,
and both must end alike. Values that are not usual are held against the definition by other tests, here they must not
warn nor crash. `tests/test_fuzz.py` makes calls with arguments of wrong kinds.
"""

import dataclasses
import inspect
import re
import warnings

import numpy as np
import pytest
import reference
from conftest import CLASSES, EPS, expected, scored, to_numpy
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy.special import log_ndtr, ndtr
from scipy.stats import spearmanr
from sklearn.metrics import average_precision_score

import peaccel as pe
from peaccel import evaluation, io, metrics, special
from peaccel._utils.arrays import on_host
from peaccel.distributions import Distribution

# -- what calls are given ----------------------------------------------------------------------------------------------

LAYOUTS = {
    "plain": lambda x: x,
    "columns first": np.asfortranarray,
    "every other number": lambda x: np.repeat(x, 2, axis=-1)[..., ::2],
    "from the end": lambda x: x[::-1].copy()[::-1],
    "read only": lambda x: np.lib.stride_tricks.as_strided(x, writeable=False),
    "other byte order": lambda x: x.astype(x.dtype.newbyteorder()),
    "between words": lambda x: np.frombuffer(b"\0" + x.tobytes(), x.dtype, x.size, 1).reshape(x.shape),
}
USUAL = ("usual", "equal")
VALUES = (*USUAL, "tiny", "huge", "zero", "nan", "inf", "negative")
SIZES, DIMS = (0, 1, 2, 3, 7), (1, 2, 3, 5, 17)


@dataclasses.dataclass
class Hand:
    """Arguments of a call: arrays of a dtype and of one kind of values, the same each time of one seed."""

    seed: int
    n: int
    m: int
    dim: int
    dtype: str
    values: str
    layout: str

    def __post_init__(self):
        self.rng, self.made = np.random.default_rng(self.seed), []

    def give(self, x):
        """An array in the layout of this call, kept to see that it is left alone."""
        x = LAYOUTS[self.layout](x) if x.ndim and x.size else x
        self.made.append((x, x.copy()))
        return x

    def pick(self, among):
        """One of several."""
        among = list(among)
        return among[self.rng.integers(len(among))]

    def floats(self, *shape, positive=False):
        """Numbers, positive ones between 0.1 and 3; one of them is what is unusual, all of them are tiny or huge."""
        x = self.rng.uniform(0.1, 3, shape) if positive else self.rng.standard_normal(shape)
        if self.values == "equal" and shape and shape[0]:
            x = np.repeat(x[:1], shape[0], 0)
        limits = np.finfo(self.dtype)
        odd = {"zero": 0.0, "nan": np.nan, "inf": np.inf, "negative": -1.0}.get(self.values)
        if odd is not None and x.size:
            x.flat[self.rng.integers(x.size)] = odd
        with np.errstate(over="ignore", under="ignore"):
            x = x * {"tiny": limits.tiny / 4, "huge": float(limits.max) / 4}.get(self.values, 1)
            x = x.astype(self.dtype)
        return self.give(x)

    def unit(self, *shape):
        """Rows of unit length."""
        x = self.rng.standard_normal(shape)
        return self.give((x / np.linalg.norm(x, axis=-1, keepdims=True)).astype(self.dtype))

    def labels(self, n, classes=3):
        """Classes of n items."""
        return self.give(self.rng.integers(0, classes, n).astype(self.pick(("int64", "int32", "uint8"))))

    def flags(self, *shape):
        """Booleans."""
        return self.give(self.rng.random(shape) < 0.5)

    def ids(self, queries, gallery, k):
        """[queries, k] rows of a gallery, none of them twice, some of them -1."""
        ids = np.argsort(self.rng.random((queries, gallery)), axis=1)[:, : min(k, gallery)]
        return self.give(np.where(self.rng.random(ids.shape) < 0.1, -1, ids))

    def items(self, kind, n=None, dim=None):
        """Items of a kind."""
        n, dim = self.n if n is None else n, self.dim if dim is None else dim
        made, axes = CLASSES[kind]
        mu = self.unit(n, dim) if made._unit else self.floats(n, dim)
        return made(mu, *([self.floats(*(n, dim)[:axes], positive=True)] if axes else []))

    def scored(self, m=None):
        """A score, queries and a gallery of kinds that it takes."""
        name, *kinds = self.pick(PAIRS)
        queries, gallery = self.items(kinds[0]), self.items(kinds[1], self.m if m is None else m)
        return scored(name, *kinds), queries, gallery


def pairs():
    """Each score with the kinds that it takes."""
    for name, sides in reference.KINDS.items():
        for queries, gallery in (side.split(" x ") for side in sides.split("|")):
            yield from ((name, q, g) for q in queries.split() for g in gallery.split())


PAIRS = sorted(pairs())
EXACT = {name for name, *_ in PAIRS} - {"hib"}
"""Scores whose reference is quick."""

hands = st.builds(
    Hand,
    seed=st.integers(0, 2**32 - 1),
    n=st.sampled_from(SIZES),
    m=st.sampled_from(SIZES),
    dim=st.sampled_from(DIMS),
    dtype=st.sampled_from(["float32", "float64", "float16"]),
    values=st.one_of(st.sampled_from(USUAL), st.sampled_from(VALUES)),
    layout=st.sampled_from(list(LAYOUTS)),
)


# -- what they must give -----------------------------------------------------------------------------------------------

CALLS = {}
"""By public name, a function that makes the call of a `Hand`: (what it gave, None or what gives what it must be)."""


def call(*names):
    """Enter a function of a hand, or of a hand and a public function, in the table."""

    def enter(make):
        for name in names:
            assert name not in CALLS
            CALLS[name] = make if len(names) == 1 else lambda h, name=name: make(h, found(name))
        return make

    return enter


def of_record(function, record):
    """Enter a function of a hand for a public function and for the record that it returns."""

    def enter(make):
        call(function)(make)
        MADE_BY[record] = function
        return make

    return enter


MADE_BY = {}
"""Records, and the functions whose calls make them."""


def found(name):
    """The object of this name."""
    return getattr(MODULES.get(name.rpartition(".")[0], pe), name.rpartition(".")[2])


MODULES = {"special": special, "metrics": metrics, "io": io, "evaluation": evaluation}


def wide(*arrays):
    """float64 copies in plain memory."""
    return [np.array(on_host(x), np.float64) for x in arrays]


def two(d):
    """float64 means [N, D] and uncertainties [N, D] or [N, 1] of items."""
    mu, *others = wide(*d.arrays)
    uncertainty = others[0] if others else np.zeros(len(mu))
    return mu, uncertainty if uncertainty.ndim == 2 else uncertainty[:, None]


def anything(*shape):
    """An array of which the shape alone is known."""
    return np.full(shape, None)


def compute(h):
    """The dtype in which distributions are computed."""
    return "float32" if h.dtype == "float16" else h.dtype


# -- distributions -----------------------------------------------------------------------------------------------------


def made(kind):
    """A builder of items that also gives their arrays back."""

    def make(h):
        d = h.items(kind)
        taken = [x for x, _ in h.made]
        return (*d.arrays, len(d), d.dim, *d[:1].arrays), lambda: (*taken, h.n, h.dim, *(x[:1] for x in taken))

    return make


call("Normal")(lambda h: made(h.pick(["normal_isotropic", "normal_diagonal"]))(h))
call("VonMisesFisher")(made("vmf"))
call("NonIsotropicVonMisesFisher")(made("nivmf"))
call("Scaled")(made("scaled"))
call("Point")(made("point"))


@call("concat")
def concat(h):
    kind = h.pick(CLASSES)
    a, b = h.items(kind), h.items(kind, h.m)
    return pe.concat([a, b]), lambda: tuple(
        np.concatenate(x) for x in zip(wide(*a.arrays), wide(*b.arrays), strict=True)
    )


# -- verbs -------------------------------------------------------------------------------------------------------------


def matrix(h, score, q, g):
    """(scores, sizes) [Q, G] of all pairs by the reference, or None where it is slow or there is nothing."""
    known = score.name in EXACT and len(q) * len(g) and h.dim > 1
    return expected(score, q, g, compute(h)) if known else None


@call("pairwise")
def pairwise(h):
    score, q, g = h.scored()
    return pe.pairwise(q, g, score), lambda: matrix(h, score, q, g) or anything(h.n, h.m)


@call("paired")
def paired(h):
    score, q, g = h.scored(h.n)

    def want():
        every = matrix(h, score, q, g)
        return anything(h.n) if every is None else tuple(np.diagonal(x) for x in every)

    return pe.paired(q, g, score), want


def ranked(h, scores, ids, k):
    """Scores and ids [Q, k], best first, padded."""
    top = np.full((h.n, k), -np.inf), np.full((h.n, k), -1)
    for i, row in enumerate(ids):
        kept = [j for j in row if j >= 0]
        best = sorted(dict.fromkeys(kept), key=lambda j: (-scores[i, j], j))[:k]
        top[0][i, : len(best)], top[1][i, : len(best)] = scores[i, best], best
    return top


@call("rescore")
def rescore(h):
    score, q, g = h.scored()
    ids = h.ids(h.n, h.m, 4)

    def want():
        every = matrix(h, score, q, g)
        if every is None:
            return anything(*ids.shape)
        return tuple(np.where(ids < 0, x, np.take_along_axis(y, np.maximum(ids, 0), 1))
                     for x, y in zip((-np.inf, 1.0), every, strict=True))  # fmt: skip

    return pe.rescore(q, g, ids, score), want


def selected(h, q, g, score, ids, ranking):
    """The ranking that the verb's own scores of listed pairs make: rescore's, which are held against the reference."""
    every = to_numpy(pe.rescore(q, g, np.tile(np.arange(h.m), (h.n, 1)), score))
    if np.isnan(every).any():
        return tuple(anything(*x.shape) for x in ranking)
    return ranked(h, every, ids, ranking.ids.shape[1])


@call("rerank")
def rerank(h):
    score, q, g = h.scored()
    ids, k = h.ids(h.n, h.m, 5), h.pick([1, 3, 9])
    ranking = pe.rerank(q, g, ids, k, score)
    return tuple(ranking), lambda: selected(h, q, g, score, ids, ranking)


@call("search")
def search(h):
    score, q, g = h.scored()
    k, pool = h.pick([1, 3, 9]), h.pick([g, pe.prepare(g, score)] if h.m else [g])
    ranking = pe.search(q, pool, k, score)
    if isinstance(pool, pe.Prepared):
        g = pool.distribution  # whose directions in halves are rounded once more
    return tuple(ranking), lambda: selected(h, q, g, score, np.tile(np.arange(h.m), (h.n, 1)), ranking)


def above(scores, threshold):
    """Offsets, ids and scores of what reaches a threshold, best first."""
    queries, ids = np.nonzero(scores >= threshold)
    order = np.lexsort((ids, -scores[queries, ids], queries))
    offsets = np.append(0, np.bincount(queries, minlength=len(scores)).cumsum())
    return offsets, ids[order], scores[queries, ids][order]


@call("search_above")
def search_above(h):
    score, q, g = h.scored()
    threshold, pool = h.pick([-np.inf, -3.0, 0.5]), h.pick([g, pe.prepare(g, score)] if h.m else [g])
    g = pool.distribution if isinstance(pool, pe.Prepared) else g
    every = np.tile(np.arange(h.m), (h.n, 1))
    return tuple(pe.search_above(q, pool, threshold, score)), lambda: above(
        to_numpy(pe.rescore(q, g, every, score)), threshold
    )


@of_record("exclude_same", "Exclusions")
def exclude_same(h):
    queries, gallery = ({"person": h.labels(n), "camera": h.labels(n, 2)} for n in (h.n, h.m))
    found = pe.exclude_same(queries, gallery)
    return (found.counts, *(found.of_query(i) for i in range(h.n))), lambda: (
        (same := np.all([queries[name][:, None] == gallery[name] for name in queries], 0)).sum(1),
        *map(np.flatnonzero, same),
    )


@call("RankingAbove")
def ranking_above(h):
    given = pe.RankingAbove(h.give(np.arange(h.n + 1)), h.ids(h.n, 9, 1), h.floats(h.n))
    return (*given, given.queries), lambda: (*(x for x, _ in h.made), np.arange(h.n))


@call("duplicates")
def duplicates(h):
    name, *kinds = h.pick([pair for pair in PAIRS if pair[1] == pair[2]])
    score, d, threshold = scored(name, *kinds), h.items(kinds[0]), h.pick([-np.inf, -3.0, 0.5])
    every, later = np.tile(np.arange(h.n), (h.n, 1)), np.tri(h.n, dtype=bool)
    return tuple(pe.duplicates(d, threshold, score)), lambda: above(
        np.where(later, np.nan, to_numpy(pe.rescore(d, d, every, score))), threshold
    )


@call("prepare", "Prepared")
def prepare(h, function):
    score, q, g = h.scored()
    prepared = function(g, score)
    return pe.pairwise(q, prepared, score), lambda: matrix(h, score, q, prepared.distribution) or anything(h.n, h.m)


@call("merge")
def merge(h):
    parts = [h.items("normal_isotropic", n) for n in (h.m, 3)]
    rankings = [pe.search(h.items("normal_isotropic"), part, 3) for part in parts]
    return tuple(pe.merge(rankings, 4, [0, h.m])), None


@call("Ranking")
def ranking(h):
    given = pe.Ranking(h.floats(h.n, 3), h.ids(h.n, 9, 3))
    return tuple(given), lambda: tuple(x for x, _ in h.made)


@call("normalise_scores")
def normalise_scores(h):
    scores, queries, gallery = h.floats(h.n, h.m), h.floats(h.n, 5), h.floats(h.m, 4)

    def want():
        s, q, g = wide(scores, queries, gallery)
        by_query = (s - q.mean(1)[:, None]) / q.std(1)[:, None]
        return (by_query + (s - g.mean(1)) / g.std(1)) / 2

    return pe.normalise_scores(scores, queries=queries, gallery=gallery), want


@call("first_stage_features")
def first_stage_features(h):
    gallery = h.items("normal_isotropic")
    vectors = pe.first_stage_features(gallery, "cosine")
    asked = pe.first_stage_features(
        gallery, "cosine", side="query", reference=pe.first_stage_reference(gallery, "cosine")
    )
    with np.errstate(all="ignore"):
        found = asked @ vectors.T

    def want():
        (mu,) = wide(gallery.mu)
        cosine = directions(mu) @ directions(mu).T
        first = np.take_along_axis(cosine, found.argmax(1)[:, None], 1)
        assert (first[:, 0] > cosine.max(1) - 1e-5).all()
        return found

    return found, want


@call("first_stage_reference")
def first_stage_reference(h):
    return pe.first_stage_reference(h.items("normal_isotropic"), "mls"), None


# -- measures ----------------------------------------------------------------------------------------------------------


@call("log_prob")
def log_prob(h):
    d = h.items(h.pick(["normal_isotropic", "normal_diagonal", "vmf"]))
    z = h.unit(h.n, h.dim) if d.kind == "vmf" else h.floats(h.n, h.dim)

    def want():
        (mu, s), (x,) = two(d), wide(z)
        if d.kind == "vmf":
            # Unit rows are so to a rounding of their dtype: mu.z is 1 - |mu - z|^2 / 2.
            return np.float64(reference.scaled_log_norm(h.dim, s[:, 0])) - s[:, 0] * ((mu - x) ** 2).sum(1) / 2
        return -0.5 * ((x - mu) ** 2 / s + np.log(2 * np.pi * s)).sum(1)

    return pe.log_prob(d, z), want if h.dim > 1 else None


@call("entropy")
def entropy(h):
    d = h.items(h.pick(["normal_isotropic", "normal_diagonal", "vmf"]))

    def want():
        mu, s = two(d)
        if d.kind == "vmf":
            k = s[:, 0]
            return np.float64(k * (1 - reference.resultant_length(h.dim, k)) - reference.scaled_log_norm(h.dim, k))
        return 0.5 * np.log(2 * np.pi * np.e * (s + 0 * mu)).sum(1)

    return pe.entropy(d), want if h.dim > 1 else None


@call("confidence")
def confidence(h):
    d = h.items(h.pick(set(CLASSES) - {"point"}))
    return pe.confidence(d), lambda: reference.confidence(d.kind, two(d)[1])


@call("kl")
def kl(h):
    kind = h.pick(["normal_isotropic", "normal_diagonal", "vmf"])
    p, q = h.items(kind), h.items(kind)

    def want():
        (a, s), (b, t) = two(p), two(q)
        if kind == "vmf":
            k, m, c = s[:, 0], t[:, 0], 1 - ((a - b) ** 2).sum(1) / 2
            log_norms = reference.scaled_log_norm(h.dim, k) - k - reference.scaled_log_norm(h.dim, m) + m
            return np.float64(log_norms + reference.resultant_length(h.dim, k) * (k - m * c))
        return 0.5 * ((a - b) ** 2 / t + s / t - 1 - np.log(s / t)).sum(1)

    return pe.kl(p, q), want if h.dim > 1 else None


@call("match_variance")
def match_variance(h):
    q, g = (h.items(h.pick(["normal_isotropic", "normal_diagonal", "point"])) for _ in range(2))

    def want():
        (a, s), (b, t) = two(q), two(g)
        return (2 * (s + t) ** 2 + 4 * (s + t) * (a - b) ** 2).sum(1)

    return pe.match_variance(q, g), want


@call("triplet_probability")
def triplet_probability(h):
    a, p, n = (h.items(h.pick(["normal_isotropic", "normal_diagonal"])) for _ in range(3))
    log = h.pick([False, True])

    def want():
        (a_, u), (p_, v), (n_, w) = two(a), two(p), two(n)
        mean = ((p_ - n_) * (p_ + n_ - 2 * a_) + v - w).sum(1)
        square = 2 * v**2 + 2 * w**2 + 4 * u * (v + w) + 4 * v * (p_ - a_) ** 2 + 4 * w * (n_ - a_) ** 2
        z = (-0.5 - mean) / np.sqrt((square + 4 * u * (p_ - n_) ** 2).sum(1))
        return (log_ndtr if log else ndtr)(z)

    return pe.triplet_probability(a, p, n, 0.5, log=log), want


@call("sample")
def sample(h):
    d = h.items(h.pick(set(CLASSES) - {"point", "scaled", "nivmf"}))
    z = pe.sample(d, 3, seed=h.pick([0, 7]))

    def want():
        mu, s = two(d)
        if d.kind == "vmf":
            assert (abs(np.linalg.norm(z, axis=-1) - 1) < 1e-3).all()  # as directions in float16 are unit
            return z
        away = (z - mu) / np.sqrt(s)
        assert (abs(away) < 7).all() and len(np.unique(away)) == away.size
        return z

    return z, want if h.dim > 1 else None


@call("fuse")
def fuse(h):
    kind = h.pick(["normal_isotropic", "normal_diagonal", "point", "scaled"])
    d, groups = h.items(kind), h.labels(h.n)

    def want():
        mu, s = two(d)
        each = [groups == g for g in np.unique(groups)]
        if kind in ("scaled", "point"):
            if kind == "point":
                mu = mu / np.maximum(np.linalg.norm(mu, axis=1, keepdims=True), 1e-300)
            means = [mu[g].mean(0) for g in each]  # what cancels has the first axis as its direction
            means = [x / np.linalg.norm(x) if x.any() else np.eye(h.dim)[0] for x in means]
            return (np.reshape(means, (-1, h.dim)), *([np.array([s[g].mean() for g in each])] * (kind == "scaled")))
        var = np.reshape([1 / (1 / s[g]).sum(0) for g in each], (-1, s.shape[1]))
        means = np.reshape([v * (mu[g] / s[g]).sum(0) for g, v in zip(each, var, strict=True)], (-1, h.dim))
        return means, var if kind == "normal_diagonal" else var[:, 0]

    return pe.fuse(d, groups), want


@call("fit_vmf")
def fit_vmf(h):
    z, weights = h.unit(h.n, h.dim), h.floats(h.n, positive=True)
    fit = pe.fit_vmf(z, weights=weights)

    def want():
        x, w = wide(z, weights)
        mean = (w[:, None] * x).sum(0) / w.sum()
        if np.isfinite(fit.kappa).all() and h.n > 2:  # the length of the mean is that of draws of kappa
            length = reference.resultant_length(h.dim, np.float64(fit.kappa))
            np.testing.assert_allclose(np.float64(length), np.linalg.norm(mean), rtol=1e-3)
        return (mean / np.linalg.norm(mean))[None], fit.kappa

    return fit, want if h.n > 0 else None


@call("fit_prior")
def fit_prior(h):
    d, labels = h.items(h.pick(["normal_diagonal", "point"])), h.labels(h.n)

    def want():
        mean, var = reference.fit_prior(wide(d.mu)[0], labels.tolist())
        return mean, var if d.kind == "normal_diagonal" else None

    prior = pe.fit_prior(d, labels)
    return (prior.mean, prior.var if d.kind == "normal_diagonal" else None), want


@call("fit_shift")
def fit_shift(h):
    d, chosen = h.items(h.pick(CLASSES)), h.give(np.argwhere(np.triu(np.ones((h.n, h.n)), 1)))
    labels = h.flags(len(chosen))

    def want():
        (mu, _), (i, j) = two(d), chosen.T
        cosine = (mu[i] * mu[j]).sum(1) / np.linalg.norm(mu[i], axis=1) / np.linalg.norm(mu[j], axis=1)
        return (cosine[labels].mean() + cosine[~labels].mean()) / 2

    return pe.fit_shift(d, chosen, labels), want


@call("calibrate_variance")
def calibrate_variance(h):
    d, chosen = (
        h.items(h.pick(["normal_diagonal", "normal_isotropic", "vmf"])),
        np.argwhere(np.triu(np.ones((h.n, h.n)), 1)),
    )
    fit = pe.calibrate_variance(d, h.give(chosen), h.flags(len(chosen)), offset=False)
    return (fit.a, fit.b, fit(d)), lambda: (fit.a, 0.0, type(d)(d.mu, np.asarray(d.arrays[1] * fit.a, d.mu.dtype)))


@call("Calibration")
def calibration(h):
    d = h.items("normal_diagonal")
    return pe.Calibration(2.0, 0.5, "Normal")(d), lambda: (d.mu, 2 * wide(d.var)[0] + 0.5)


@of_record("fit_centre", "Centre")
def fit_centre(h):
    d = h.items(h.pick(["normal_diagonal", "normal_isotropic", "point"]))
    fit = pe.fit_centre(d)
    return (fit.query_mean, fit.of_queries(d)), lambda: (
        wide(d.mu)[0].mean(0),
        type(d)(d.mu - d.mu.mean(0), *d.arrays[1:]),
    )


@of_record("fit_plda", "Plda")
def fit_plda(h):
    x, labels = h.floats(3 * h.n, min(h.dim, 3)), h.labels(3 * h.n)
    fit = pe.fit_plda(x, labels, shrinkage=0.5)
    return (fit, fit.transform(x)), None


@call("Prior")
def prior(h):
    x = h.floats(h.dim)
    return tuple(pe.Prior(x, 0.5)), lambda: (x, 0.5)


# -- probabilities and promises ----------------------------------------------------------------------------------------


@of_record("fit_match_probability", "LogisticProbability")
def fit_match_probability(h):
    scores, labels = h.floats(h.n), h.flags(h.n)
    fit = pe.fit_match_probability(scores, labels)
    logit = fit.bias + fit.weights[0] * wide(scores)[0]
    return (fit.bias, *fit.weights, fit(scores)), lambda: (fit.bias, *fit.weights, 1 / (1 + np.exp(-logit)))


@call("IsotonicProbability")
def isotonic(h):
    scores, labels = h.floats(h.n), h.flags(h.n)
    fit = pe.fit_match_probability(scores, labels, method="isotonic")

    def want():
        (x,), order = wide(scores), np.argsort(scores, kind="stable")
        rising = fit(scores)[order]
        assert (np.diff(rising) >= 0).all() and np.isclose(rising.mean(), labels.mean())
        return fit(x)

    return fit(scores), want


@of_record("reliability_curve", "ReliabilityCurve")
def reliability_curve(h):
    p, labels = h.floats(h.n, positive=True), h.flags(h.n)
    p = h.give((on_host(p) / 4).astype(h.dtype))
    found = pe.reliability_curve(p, labels, bins=1)
    return tuple(found), lambda: ([wide(p)[0].mean()], [wide(labels)[0].mean()], [h.n])


@of_record("learn_then_test", "Selection")
def learn_then_test(h):
    sure, right, classes = h.floats(40 * h.n), h.flags(40 * h.n), h.give(np.arange(40 * h.n))
    rule = pe.learn_then_test(sure, right, classes, 0.4)
    return (rule.threshold, rule(sure)), lambda: (rule.threshold, wide(sure)[0] >= rule.threshold)


@of_record("limit_false_matches", "FalseMatchLimit")
def limit_false_matches(h):
    scores = h.floats(40 * h.n)
    limit = pe.limit_false_matches(scores, 0.3)

    def want():
        accepted = wide(scores)[0] >= limit.threshold
        assert accepted.sum() <= limit.allowed
        return limit.threshold, accepted

    return (limit.threshold, limit(scores)), want


@call("answer_confidence")
def answer_confidence(h):
    scores = h.give(-np.sort(-on_host(h.floats(h.n, 4)), axis=1).astype(h.dtype))
    ids = h.give(np.tile(np.arange(4), (h.n, 1)))
    found = pe.answer_confidence(pe.Ranking(scores, ids), "class_margin", [0, 0, 1, 0])
    return found, lambda: wide(scores)[0][:, 0] - wide(scores)[0][:, 2]


@of_record("conformal_sets", "ConformalSets")
def conformal_sets(h):
    scores = h.give(-np.sort(-on_host(h.floats(h.n, 4)), axis=1).astype(h.dtype))
    return pe.conformal_sets(scores, h.flags(h.n, 4), h.labels(h.n), 0.5), None


@of_record("fit_quality", "Quality")
def fit_quality(h):
    return pe.fit_quality(h.floats(120)), None


# -- what is judged ----------------------------------------------------------------------------------------------------


@of_record("evaluate", "Evaluation")
def evaluate(h):
    d = h.items(h.pick(CLASSES), 6 * h.n)
    return pe.evaluate(d, None, h.labels(6 * h.n), k=1), None


@of_record("choose_score", "ScoreChoice")
def choose_score(h):
    n = 120 if h.n else 0
    return pe.choose_score(h.items(h.pick(CLASSES), n), h.labels(n, 24)), None


@of_record("choose_threshold", "ThresholdChoice")
def choose_threshold(h):
    d = h.items(h.pick(CLASSES), 6 * h.n)
    return pe.choose_threshold(d, None, h.labels(6 * h.n), wrong=0.5), None


@of_record("choose_pair_threshold", "Threshold")
def choose_pair_threshold(h):
    return pe.choose_pair_threshold(h.floats(9 * h.n), h.flags(9 * h.n), h.labels(9 * h.n, 99), wrong=0.5), None


@of_record("answers_to_check", "AnswersToCheck")
def answers_to_check(h):
    return pe.answers_to_check(h.floats(60 * h.n), {}, wrong=0.2, budget=30, groups=h.labels(60 * h.n, 60)).rows, None


@of_record("compare", "ModelComparison")
def compare_models(h):
    values = {name: h.floats(6 * h.n) for name in ("one", "other")}
    return pe.compare(values, h.labels(6 * h.n)), None


@of_record("audit", "GalleryAudit")
def audit(h):
    d = h.items(h.pick(CLASSES), 6 * h.n)
    return pe.audit(d, h.labels(6 * h.n), "cosine"), None


@of_record("cluster", "Clusters")
def cluster(h):
    return pe.cluster(h.items(h.pick(CLASSES), 6 * h.n), 0.5, "cosine"), None


@of_record("PromiseMonitor", "WatchedPromise")
def promise_monitor(h):
    accept = pe.Selection(threshold=0.5, alpha=0.02, delta=0.05, number=400, accepted=300, wrong=1)
    monitor = pe.PromiseMonitor(accept, {"score": h.floats(h.n), "norm": h.floats(h.n)}, begun="2026-01-01")
    monitor.audit(h.flags(9), "2026-01-02")
    monitor.traffic({"norm": h.floats(h.m), "score": h.floats(h.m)}, "2026-01-02")
    return monitor.state(), None


@call("evaluation.probability")
def probability(h):
    confidence, right, clusters = h.floats(h.n), h.flags(h.n), h.labels(h.n)

    def want():
        (sure,) = wide(confidence)
        order = np.argsort(sure, kind="stable")
        for of in np.unique(on_host(clusters)):
            assert not (np.diff(found[order][on_host(clusters)[order] == of]) < 0).any()  # one class has one regression
        return found

    found = evaluation.probability(confidence, right, clusters)
    return found, want


@call("evaluation.mean_interval")
def mean_interval(h):
    x, clusters = h.floats(h.n), h.labels(h.n)
    interval = evaluation.mean_interval(x, clusters)
    return interval.value, lambda: wide(x)[0].mean() if h.n else np.nan


@call("evaluation.simultaneous_intervals")
def simultaneous_intervals(h):
    return evaluation.simultaneous_intervals(h.floats(h.n, 2), h.labels(h.n)), None


@call("evaluation.evaluate_trials")
def evaluate_trials(h):
    rows = np.arange(6 * h.n)
    trials = rows, np.roll(rows, 1), h.labels(6 * h.n, 2)
    return evaluation.evaluate_trials(h.items(h.pick(CLASSES), 6 * h.n), rows, *trials), None


@call("evaluation.evaluate_templates")
def evaluate_templates(h):
    labels = h.labels(6 * h.n)
    templates = h.give(on_host(labels).astype(np.int64) * 2 + h.rng.integers(0, 2, 6 * h.n))
    return evaluation.evaluate_templates(h.items(h.pick(CLASSES), 6 * h.n), templates, labels), None


@call("evaluation.verification_pairs")
def verification_pairs(h):
    return evaluation.verification_pairs(h.labels(h.n), h.labels(h.m)), None


# -- special functions -------------------------------------------------------------------------------------------------


@call("special.log_ive", "special.log_iv", "special.iv_ratio", "special.vmf_log_norm")
def bessel(h, function):
    v, x = h.pick([2, 2.5, 64.0]), h.floats(h.n, h.m, positive=True)

    def want():
        (y,) = wide(x)
        log_ive = np.float64(-reference.scaled_log_norm(2 * v + 2, y) + v * np.log(y) - (v + 1) * np.log(2 * np.pi))
        return {
            "log_ive": lambda: log_ive,
            "log_iv": lambda: (log_ive + y, abs(log_ive) + y),
            "iv_ratio": lambda: np.float64(reference.resultant_length(2 * v, y)),
            "vmf_log_norm": lambda: np.float64(reference.scaled_log_norm(v, y)) - y,
        }[function.__name__]()

    return function(v, x), want if h.n * h.m < 10 else None


@call("special.log_ndtr")
def normal(h):
    x = h.floats(h.n, h.m)
    return special.log_ndtr(x), lambda: log_ndtr(wide(x)[0])


# -- metrics -----------------------------------------------------------------------------------------------------------


def curve(values, confidence, share):
    """The mean value of the most confident queries; among equal confidences all values are their mean."""
    values, confidence = wide(values, confidence)
    mean = {c: values[confidence == c].mean() for c in confidence.tolist()}
    kept = -np.sort(-confidence)[: int(np.ceil(round(len(values) * (1 - share), 9)))]
    return np.mean([mean[c] for c in kept.tolist()])


def judged(h):
    """Values in [0, 1] of queries and their confidences."""
    return h.give(np.array(h.rng.random(h.n), h.dtype)), h.floats(h.n)


@call("metrics.rejection_area")
def rejection_area(h):
    values, confidence = judged(h)
    kind = str(h.rng.choice(["aurc", "augrc", "ausc", "nauc"]))

    def error():
        return np.mean([1 - curve(values, confidence, n / h.n) for n in range(h.n)])

    def sparsification():
        steps = [curve(values, confidence, i / 100) for i in range(99)]
        return np.trapezoid(steps, dx=1 / 98)

    def generalised():
        risks = [0.0, *(i / h.n * (1 - curve(values, confidence, 1 - i / h.n)) for i in range(1, h.n + 1))]
        return np.trapezoid(risks, dx=1 / h.n)

    wants = {"aurc": error, "ausc": sparsification, "augrc": generalised}
    return metrics.rejection_area(values, confidence, kind), wants.get(kind)


@call("metrics.rejection_curve")
def rejection_curve(h):
    values, confidence = judged(h)
    shares = np.array([0, 0.3, 0.9])
    return metrics.rejection_curve(values, confidence, h.give(shares)), lambda: [
        curve(values, confidence, share) for share in shares
    ]


@of_record("metrics.calibration_error", "metrics.CalibrationBins")
def calibration_error(h):
    values, confidence = judged(h)
    result = metrics.calibration_error(values, confidence, scale="rank", bins=1)

    def want():
        (v,) = wide(values)
        return abs(v.mean() - 0.5), [0.5], [v.mean()], [h.n], "rank", "equal-width"

    return result, want


@call("metrics.ceda", "metrics.verification_accuracy", "metrics.best_threshold")
def decided(h, function):
    scores, same = h.floats(h.n), h.flags(h.n)
    arguments = (same, scores) if function is metrics.ceda else (scores, same)

    def want():
        (s,) = wide(scores)
        right = {t: (same == (s >= t)).mean() for t in (-np.inf, *s.tolist(), np.inf)}
        top = max(right.values())
        if function is not metrics.best_threshold:
            return top
        assert right[result.item()] == top
        return result

    result = np.asarray(function(*arguments))
    return result, want


@call("metrics.r_auroc", "metrics.roc_auc")
def areas_of_ranks(h, function):
    scores, same = h.floats(h.n), h.flags(h.n)

    def want():
        (s,) = wide(scores)
        apart = s[same][:, None] - s[~same]
        return np.mean((apart > 0) + (apart == 0) / 2) if apart.size else np.nan

    return function(*((same, scores) if function is metrics.r_auroc else (scores, same))), want


@of_record("metrics.equal_error_rate", "metrics.EqualError")
def equal_error_rate(h):
    scores, same = h.floats(h.n), h.flags(h.n)

    def want():
        (s,) = wide(scores)
        at = [np.inf, *sorted(set(s.tolist()), reverse=True)]
        accepted = np.array([(s[~same] >= t).mean() for t in at])
        rejected = np.array([(s[same] < t).mean() for t in at])
        i = int(np.argmax(accepted >= rejected))
        a, b = (rejected - accepted)[i - 1 : i + 1]
        return accepted[i - 1] + (accepted[i] - accepted[i - 1]) * a / (a - b)

    result = metrics.equal_error_rate(scores, same, resamples=5)
    return result, lambda: tuple((dataclasses.asdict(result) | {"rate": want()}).values())


@of_record("metrics.tar_at_far", "metrics.TarAtFar")
def tar_at_far(h):
    scores, same, far = h.floats(h.n), h.flags(h.n), h.pick([0.0, 0.4, 1.0])
    result = metrics.tar_at_far(scores, same, far, resamples=5)

    def want():
        (s,) = wide(scores)
        accepted = s >= result.threshold
        assert accepted[~same].sum() <= round((~same).sum() * far)
        mine = dataclasses.asdict(result) | {"tar": accepted[same].mean(), "attained_far": accepted[~same].mean()}
        return tuple(mine.values())

    return result, want


@of_record("metrics.detection_cost", "metrics.DetectionCost")
def detection_cost(h):
    scores, same, p = h.floats(h.n), h.flags(h.n), h.pick([0.01, 0.5, 0.9])
    result = metrics.detection_cost(scores, same, p, resamples=5)

    def want():
        (s,) = wide(scores)
        at = [np.inf, *s.tolist()]
        costs = [p * (s[same] < t).mean() + (1 - p) * (s[~same] >= t).mean() for t in at]
        mine = dataclasses.asdict(result) | {"min_dcf": min(costs) / min(p, 1 - p)}
        return tuple(mine.values())

    return result, want


@of_record("metrics.reject_verification", "metrics.RejectVerification")
def reject_verification(h):
    return metrics.reject_verification(h.floats(h.n), h.flags(h.n), h.floats(h.n), 0.5, [0.0, 0.4]), None


@of_record("metrics.error_versus_discard", "metrics.ErrorVersusDiscard")
def error_versus_discard(h):
    pairs = np.arange(h.n)[:, None] // [1, 2]
    return metrics.error_versus_discard(h.floats(h.n), pairs, h.floats(h.n), 0.1, [0.0, 0.4]), None


@call("metrics.pair_uncertainty")
def pair_uncertainty(h):
    a, b = (h.floats(h.n, positive=True) for _ in range(2))
    return metrics.pair_uncertainty(a, b), lambda: np.sqrt(wide(a)[0]) * np.sqrt(wide(b)[0])


@call("metrics.spearman")
def spearman(h):
    a, b = h.floats(h.n), h.floats(h.n)
    constant = h.n < 2 or h.values == "equal"
    return metrics.spearman(a, b), lambda: np.nan if constant else spearmanr(*wide(a, b)).statistic


@call("metrics.cropped_less_confident")
def cropped_less_confident(h):
    a, b = h.floats(h.n), h.floats(h.n)
    return metrics.cropped_less_confident(a, b), lambda: np.mean((a > b) + (a == b) / 2)


@call("metrics.precision_recall_auc_at_1")
def precision_recall_auc_at_1(h):
    right, scores = h.flags(h.n), h.floats(h.n)

    def want():
        return average_precision_score(right, wide(scores)[0]) * right.mean() if right.any() else 0.0

    return metrics.precision_recall_auc_at_1(right, scores), want


@call("metrics.precision_recall_auc")
def precision_recall_auc(h):
    scores, relevant = h.floats(h.n, h.m), h.flags(h.n, h.m)
    kept = h.give(on_host(scores)[on_host(relevant)])
    return metrics.precision_recall_auc(kept, scores), lambda: average_precision_score(
        relevant.ravel(), wide(scores)[0].ravel()
    )


@of_record("metrics.open_set", "metrics.OpenSet")
def open_set(h):
    mated, others = h.floats(h.n), h.floats(h.m)
    result = metrics.open_set(mated, others)

    def want():
        m, o = wide(mated, others)
        at = np.array([np.inf, *sorted({*m.tolist(), *o.tolist()}, reverse=True)])
        fpir, fnir = np.array([(o >= t).mean() for t in at]), np.array([(m < t).mean() for t in at])
        best = int(np.flatnonzero(fnir == fnir.min())[-1])
        return at, fpir, fnir, (at[best], fpir[best], fnir[best])

    return (result, result.at_fpir(1.0)), want


@call("metrics.mate_scores")
def mate_scores(h):
    scores, relevant = h.give(-np.sort(-on_host(h.floats(h.n, 4)), axis=1).astype(h.dtype)), h.flags(h.n, 4)
    return metrics.mate_scores(scores, relevant, 2), lambda: np.where(relevant[:, :2], scores[:, :2], -np.inf).max(1)


@of_record("metrics.novelty_detection", "metrics.Novelty")
def novelty_detection(h):
    known, novel = h.floats(h.n), h.floats(h.m)
    result = metrics.novelty_detection(known, novel, bins=2)

    def want():
        a, b = wide(known, novel)
        apart = b[:, None] - a
        auroc = np.mean((apart > 0) + (apart == 0) / 2)
        auprc = average_precision_score([0] * len(a) + [1] * len(b), np.concatenate([a, b]))
        return auroc, auprc, result.edges, result.known, result.novel

    return result, want


@call("metrics.class_probability_confidence")
def class_probability(h):
    x = h.floats(h.n, h.m)

    def want():
        y = np.exp(wide(x)[0] - wide(x)[0].max(1, keepdims=True))
        return (y / y.sum(1, keepdims=True)).max(1)

    return metrics.class_probability_confidence(x), want


@call("metrics.margin_confidence", "metrics.top_score_confidence", "metrics.spread_confidence")
def of_scores(h, function):
    x = h.give(-np.sort(-on_host(h.floats(h.n, h.m)), axis=1).astype(h.dtype))
    wants = {"margin": lambda y: y[:, 0] - y[:, 1], "top": lambda y: y[:, 0], "spread": lambda y: y.std(1)}
    return function(x), lambda: wants[function.__name__.partition("_")[0]](wide(x)[0])


@call("metrics.norm_confidence")
def norm(h):
    x = h.floats(h.n, h.dim)
    return metrics.norm_confidence(x), lambda: np.sqrt((wide(x)[0] ** 2).sum(1))


@call("metrics.nmi")
def nmi(h):
    x, labels = h.floats(h.n, h.dim), h.labels(h.n)

    def want():
        assert 0 <= result <= 1 + 1e-12
        return result

    result = metrics.nmi(x, labels)
    return result, want


@call("metrics.trial_clusters")
def trial_clusters(h):
    enrol, test, same = h.labels(h.n), h.labels(h.n), h.flags(h.n)

    def want():
        groups = [{name} for name in {*enrol.tolist(), *test.tolist()}]
        for a, b in zip(enrol[same].tolist(), test[same].tolist(), strict=True):
            joined = [group for group in groups if group & {a, b}]
            groups = [group for group in groups if group not in joined] + [set().union(*joined)]
        of = {name: i for i, group in enumerate(groups) for name in group}
        mine = np.array([[of[a], of[b]] for a, b in zip(enrol.tolist(), test.tolist(), strict=True)])
        assert (np.equal.outer(mine, mine) == np.equal.outer(result, result)).all()
        return result

    result = metrics.trial_clusters(enrol, test, same)
    return result, want


@call("metrics.truncated_rows")
def truncated_rows(h):
    labels = h.labels(3 * h.n)
    rows = metrics.truncated_rows(labels, 2 * h.n)

    def want():
        assert len(rows) <= 2 * h.n
        return np.flatnonzero(np.isin(labels, labels[rows]))  # of classes that are there the whole

    return rows, want


@call("metrics.relevance")
def relevance(h):
    ids, q, g = h.ids(h.n, h.m, 4), h.labels(h.n), h.labels(h.m)
    return metrics.relevance(ids, q, g), lambda: hits(ids, q, g)


def hits(ids, q, g):
    """[Q, K] whether an item is there and of the query's class."""
    return np.array([[j >= 0 and g[j] == label for j in row] for row, label in zip(ids, q, strict=True)]).reshape(
        ids.shape
    )


@call("metrics.hit_at_k", "metrics.average_precision_at_k", "metrics.average_precision_at_r",
      "metrics.recall_at_k", "metrics.map_at_k", "metrics.map_at_r")  # fmt: skip
def of_rankings(h, function):
    ids, q, g = h.ids(h.n, h.m, 9), h.labels(h.n), h.labels(h.m)
    name, k = function.__name__, h.pick([1, 2])
    at_r = name.endswith("r")

    def want():
        each = np.full(h.n, np.nan)
        for i, row in enumerate(hits(ids, q, g)):
            if size := int((g == q[i]).sum()):
                seen = row[: size if at_r else k]
                precisions = [seen[: j + 1].mean() for j in np.flatnonzero(seen)]
                each[i] = (
                    sum(precisions) / (size if at_r else min(size, k))
                    if "recision" in name or "map" in name
                    else seen.any()
                )
        if not name.startswith(("map", "recall")):
            return each
        return np.nanmean(each) if np.isfinite(each).any() else np.nan

    return function(ids, q, g, **({} if at_r else {"k": k})), want


@call("metrics.without_self")
def without_self(h):
    ids = h.give(np.argsort(h.rng.random((h.n, h.n)), axis=1))
    return metrics.without_self(ids), lambda: np.array(
        [[j for j in row if j != i] for i, row in enumerate(ids)]
    ).reshape(h.n, -1)


@call("metrics.random_confidence")
def random_confidence(h):
    return metrics.random_confidence(h.n, h.m), lambda: np.random.default_rng(h.m).random(h.n)


@call("metrics.Relevance")
def relation(h):
    return metrics.Relevance.within(h.floats(h.n, 2), h.floats(h.m, 2), 1.0).queries, lambda: h.n


# -- other people's embeddings -----------------------------------------------------------------------------------------


def directions(x):
    """Rows of unit length."""
    return x / np.linalg.norm(x, axis=1, keepdims=True)


@call("io.from_pfe", "io.from_pcmepp", "io.from_prolip")
def from_means(h, function):
    mu, s = h.floats(h.n, h.dim), h.floats(h.n, h.dim, positive=True)
    s = s if function is io.from_pfe else h.give((-on_host(s)).astype(h.dtype))

    def want():
        x, y = wide(mu, s)
        y = y[:, 0] if h.dim == 1 else y  # one variance for all dimensions
        return directions(x), y if function is io.from_pfe else np.exp(y)

    return function(mu, s), want


@call("io.from_url")
def from_url(h):
    x, unc = h.floats(h.n, h.dim), h.floats(h.n, positive=True)
    return io.from_url(x, unc), lambda: (directions(wide(x)[0]), 1 / wide(unc)[0])


@call("io.from_norms")
def from_norms(h):
    x = h.floats(h.n, h.dim)
    return io.from_norms(x), lambda: (directions(wide(x)[0]), np.linalg.norm(wide(x)[0], axis=1))


@call("io.from_ensemble")
def from_ensemble(h):
    x = h.floats(3, h.n, h.dim)
    d = io.from_ensemble(x)
    return d, lambda: (wide(x)[0].mean(0), d.var)


@call("io.to_arrow", "io.from_arrow", "io.arrow_blocks")
def through_arrow(h, function):
    d, ids = h.items(h.pick(CLASSES)), h.labels(h.n, 99)
    table = io.to_arrow(d, ids=ids)
    if function is io.arrow_blocks:
        blocks = list(io.arrow_blocks(table, rows=3))
        return pe.concat(blocks) if blocks else d, lambda: tuple(wide(*d.arrays))
    return io.from_arrow(table, ids="id"), lambda: (*wide(*d.arrays), ids)


@call("io.to_state", "io.from_state")
def through_state(h, _):
    d = h.items(h.pick(CLASSES))
    return io.from_state(io.to_state(d)), lambda: tuple(wide(*d.arrays))


# -- the table is whole ------------------------------------------------------------------------------------------------

ELSEWHERE = {
    **dict.fromkeys(("build_info", "enable_torch", "set_num_threads"), "take no array: tests/ops, tests/test_fuzz.py"),
    "Distribution": "the class of all kinds, of which there is no object",
    "CudaError": "an error",
    "FaissReranker": "tests/retrieval/faiss",
    "Gallery": "tests/retrieval/lance",
    "FirstStageReference": "what first_stage_reference returns",
    "metrics.OpenSetPoint": "what an OpenSet returns",
    **dict.fromkeys((f"evaluation.{name}" for name in (
        *("ConfidenceResult", "Interval", "OpenSetResult", "RankedScore", "ScoreResult", "TemplateEvaluation"),
        *("TemplateResult", "ThresholdResult", "ThresholdWithin", "TrialEvaluation", "TrialResult"))),
        "records of results"),
    "io.ScoredPairs": "what read_scored_pairs returns",
    "io.Trials": "what read_trials returns",
    "score_trials": "tests/evaluation/test_score_trials.py: of distributions alone",
    "io.check_output": "takes paths: tests/io/test_io.py",
    **dict.fromkeys((f"io.{name}" for name in io.__all__ if name.startswith("read_")),
                    "take files: tests/io/test_damaged_files.py"),
    **dict.fromkeys((f"io.{name}" for name in io.__all__ if name.startswith("write_")), "write files: tests/io"),
}  # fmt: skip
"""Public names that are called with no array, or elsewhere on arrays of all kinds."""


def public():
    """All callables of a name of these modules' own; those of `pe` that another module exports too are once there."""
    for prefix, module in {"": pe, **MODULES}.items():
        for name in module.__all__:
            if callable(getattr(module, name)) and not (prefix and name in pe.__all__):
                yield f"{prefix}.{name}" if prefix else name


def test_every_public_callable_has_a_call_here_or_a_reason_that_it_has_none():
    tables = (CALLS, MADE_BY, ELSEWHERE)
    names = [name for table in tables for name in table]
    assert sorted(names) == sorted(public())


# -- the calls ---------------------------------------------------------------------------------------------------------


def leaves(x):
    """The arrays, numbers and words in a result, one after the other."""
    if isinstance(x, Distribution):
        x = x.arrays
    elif isinstance(x, pe.scores.Score):
        x = x.label
    elif dataclasses.is_dataclass(x):
        x = [getattr(x, f.name) for f in dataclasses.fields(x)]
    elif isinstance(x, dict):
        x = [*x, *x.values()]
    if isinstance(x, list | tuple) and not all(isinstance(y, float | int) for y in x):
        return [leaf for y in x for leaf in leaves(y)]
    return [x if isinstance(x, str | None | type) else on_host(x)]


SAME_BITS = {"paired", "pairwise", "rescore", "rerank", "search", "prepare", "Prepared", "merge", "sample"} | {
    *("search_above", "RankingAbove", "duplicates")
}
"""Calls of kernels alone; the others call functions of numpy, whose last bit goes by the layout, and fits make some
more of it: half of the digits agree."""


def outcome(name, hand):
    """A call's result and what it must be; or its error, whose message says which argument is wrong."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", UserWarning)
        try:
            result, want = CALLS[name](hand)
        except (TypeError, ValueError) as error:
            return error, None
        finally:
            for x, copy in hand.made:
                assert x.tobytes() == copy.tobytes(), "an argument was changed"
    return leaves(result), want


TAKE_TWO_SIDES = ("calibrate_variance", "fit_prior")
USES = {
    "PromiseMonitor": ("found",),
    "first_stage_features": ("queries",),
    "metrics.Relevance": ("query_coords", "gallery_coords"),
    "IsotonicProbability": ("labels",),
    "merge": ("queries",),
    "choose_score": ("score", "pairs"),
    "evaluation.evaluate_trials": ("score", "pairs"),
    "metrics.precision_recall_auc": ("scores",),
}
"""Arguments of other functions that a call goes through, which its errors may name beside its own."""


def arguments(name):
    """Words for what a function is given, one of which its errors hold."""
    given = {*inspect.signature(found(name)).parameters} - {"args", "kwargs"}
    if name in TAKE_TWO_SIDES:
        given = {"d", "pairs", "labels"}
    return {*given, "mu", "var", "kappa", "scale", *USES.get(name, ())}


def check(name, hand):
    """Make a call twice and hold it against its definition."""
    (one, want), (other, _) = outcome(name, hand), outcome(name, dataclasses.replace(hand, layout="plain"))
    if isinstance(one, Exception) or isinstance(other, Exception):
        assert isinstance(one, Exception), f"only plain arrays raise: {other!r}"
        message = str(one)
        assert "\n" not in message.strip() and re.search(
            rf"\b({'|'.join(map(re.escape, arguments(name)))})s?\b", message
        ), message
        if hand.layout != "other byte order":
            assert (type(other), str(other)) == (type(one), message)
        return
    assert len(one) == len(other)
    for x, y in zip(one, other, strict=True):
        if name in SAME_BITS or not isinstance(x, np.ndarray) or x.dtype.kind != "f":
            np.testing.assert_array_equal(x, y)
        else:
            np.testing.assert_allclose(x, y, rtol=np.finfo(x.dtype).eps ** 0.5)
        assert not isinstance(x, np.ndarray) or (x.shape, x.dtype.newbyteorder("=")) == (y.shape, y.dtype)
    if want is None or hand.values not in USUAL:
        return
    with np.errstate(all="ignore"):
        wanted = want()
    sized = isinstance(wanted, tuple) and len(one) == 1 and len(wanted) == 2
    values, sizes = wanted if sized else (wanted, None)
    for x, y in zip(one, leaves(values), strict=True):
        if isinstance(y, np.ndarray):
            assert x.shape == y.shape
            if y.dtype != object:
                compare(hand, x, y.astype(np.float64), sizes)


def compare(hand, x, y, sizes):
    """Hold numbers against those of the definition: within a thousand roundings of the terms' size."""
    eps = max(EPS[compute(hand)], float(np.finfo(x.dtype).eps)) if x.dtype.kind == "f" else 0.0
    x = x.astype(np.float64)
    assert np.array_equal(np.isfinite(x), np.isfinite(y)), (x, y)
    size = np.maximum(1, abs(y)) if sizes is None else np.asarray(sizes, np.float64)
    with np.errstate(invalid="ignore"):
        worst = np.where(np.isfinite(y), abs(x - y) / size, 0).max(initial=0)
    assert worst <= 1000 * eps, (worst, x, y)


@pytest.fixture(autouse=True)
def _few_draws(monkeypatch):
    """Intervals of fifty draws are as good as others for what is looked at here."""
    monkeypatch.setattr("peaccel.metrics._draws.RESAMPLES", 50)


def settings_of(examples):
    """Always the same examples: `make fuzz` draws fresh ones of other arguments."""
    return settings(
        max_examples=examples, derandomize=True, deadline=None, database=None, suppress_health_check=list(HealthCheck)
    )


@pytest.mark.parametrize("name", CALLS)
@settings_of(30)
@given(hand=hands)
def test_what_the_definition_says_or_an_error_that_names_the_argument(name, hand):
    check(name, hand)


@pytest.mark.slow
@pytest.mark.parametrize("name", CALLS)
@settings_of(300)
@given(hand=hands)
def test_many_more_of_them(name, hand):
    check(name, hand)
