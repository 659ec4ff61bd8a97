"""Two modalities: a mean and a scale for each side, found, applied, and missed where one of both was fitted."""

import pickle
import re
import warnings

import numpy as np
import pytest
import torch
from conftest import build, make, to_numpy
from scipy import optimize

import peaccel as pe
from peaccel.fits import sides
from peaccel.fits.records import Calibration

KINDS = ("normal_isotropic", "normal_diagonal")


def modalities(kind, n, dim, offset=0.0, scale=(1.0, 1.0), add=0.0, seed=0):
    """Queries and gallery, item i of both of class i: a class is N(0, I), its items have true variances around 0.6,
    ``scale`` times the given ones and ``add``, and those of the gallery are off by ``offset`` in each dimension."""
    rng = np.random.default_rng(seed)
    centre = rng.standard_normal((n, dim))
    found = []
    for off, factor in zip((0.0, offset), scale, strict=True):
        var = 0.6 * np.exp(rng.standard_normal((n, dim) if kind == "normal_diagonal" else n)) / factor
        true = factor * var + add
        noise = rng.standard_normal((n, dim)) * np.sqrt(true if true.ndim == 2 else true[:, None])
        found.append(pe.Normal(centre + noise + off, var))
    return found


def same(n):
    """Pairs (i, i), all of one identity."""
    return np.c_[np.arange(n), np.arange(n)], np.ones(n, bool)


def recall(q, g, score):
    return 100 * (pe.search(q, g, 1, score).ids[:, 0] == np.arange(len(q))).mean()


def llr(prior):
    return pe.scores.llr(prior_mean=prior.mean, prior_var=prior.var)


@pytest.mark.parametrize("scale", [(1, 1), (4, 0.25)])
def test_what_an_offset_between_modalities_takes_from_mls_and_llr_is_given_back(scale):
    def recalls(offset):
        q, g = modalities("normal_isotropic", 800, 128, offset, scale)
        (held_q, held_g), (q, g) = ((q[rows], g[rows]) for rows in (slice(0, 400), slice(400, 800)))
        labels = np.arange(400)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            one = pe.calibrate_variance(pe.concat([held_q, held_g]), np.c_[labels, labels + 400], np.ones(400, bool))
            prior = pe.fit_prior(one(pe.concat([held_q, held_g])), np.r_[labels, labels])
        yield recall(q, g, "cosine")
        yield recall(q, g, "mls")
        yield recall(one(q), one(g), llr(prior))
        of_q, of_g = pe.calibrate_variance(held_q, held_g, *same(400))
        prior = pe.fit_prior(of_q(held_q), of_g(held_g), labels, labels)
        yield recall(of_q(q), of_g(g), "mls")
        yield recall(of_q(q), of_g(g), llr(prior))

    cosine, mls, one, *two = recalls(2.0)
    assert cosine > 95  # it hardly sees the offset
    assert mls < 25 and one < 70
    # An offset of any size is removed entirely.
    np.testing.assert_allclose(two, list(recalls(0.0))[3:], atol=0.26)
    assert two[1] > 96.5 and two[1] > cosine and two[0] > 85


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("scale", "add"), [((1, 1), 0), ((4, 0.25), 0), ((0.5, 2), 0.3)])
def test_the_scales_and_means_of_simulated_sides_are_found(kind, scale, add):
    q, g = modalities(kind, 3000, 12, 2.0, scale, add)
    found = pe.calibrate_variance(q, g, *same(3000))
    for c, d, factor in zip(found, (q, g), scale, strict=True):
        np.testing.assert_allclose(c.mean, d.mu.mean(0), rtol=1e-12, atol=1e-14)
        # 36 000 numbers of a variance of 0.6 to 1.6 of which 1 is the class's: a few percent of the whole.
        assert c.a * d.var.mean() + c.b == pytest.approx(factor * d.var.mean() + add, rel=0.05)
        np.testing.assert_allclose((c.a / factor, c.b), (1, add), atol=0.08)


def loss(theta, q, g, prior):
    """Minus twice the mean log likelihood of pairs (i, i), plainly, by 2 x 2 matrices."""
    x, y = q.mu - q.mu.mean(0), g.mu - g.mu.mean(0)
    a, b, c, e = theta
    s, t = ((f * d.var + h).reshape(len(q), -1) + 0 * x for f, h, d in ((a, b, q), (c, e, g)))
    matrix = np.moveaxis(np.array([[prior + s, prior + 0 * s], [prior + 0 * s, prior + t]]), (0, 1), (-2, -1))
    z = np.stack([x, y], -1)
    return (np.linalg.slogdet(matrix)[1] + (z * np.linalg.solve(matrix, z[..., None])[..., 0]).sum(-1)).mean()


@pytest.mark.parametrize("few", [1 << 18, 1500])
@pytest.mark.parametrize("kind", KINDS)
def test_the_scales_of_sides_are_the_likeliest(kind, few, monkeypatch):
    monkeypatch.setattr(sides, "BLOCK", 100)
    monkeypatch.setattr(sides, "FEW", few)
    q, g = modalities(kind, 400, 6, 1.0, (2, 0.5), 0.2)
    of_q, of_g = pe.calibrate_variance(q, g, *same(400))
    prior = np.maximum(((q.mu - q.mu.mean(0)) * (g.mu - g.mu.mean(0))).mean(0), 0)
    prior = prior if kind == "normal_diagonal" else prior.mean()
    theta = np.array([of_q.a, of_q.b, of_g.a, of_g.b])
    start = loss(theta, q, g, prior)
    best = optimize.minimize(lambda x: loss(np.exp(x), q, g, prior), np.log(theta + 1e-3), options={"gtol": 1e-8})
    assert start <= best.fun + 1e-11
    np.testing.assert_allclose(theta, np.exp(best.x), atol=2e-5)


def test_a_factor_or_an_offset_that_would_be_negative_is_0():
    q, g = modalities("normal_isotropic", 500, 8, 0, (1, 1))
    wrong = pe.Normal(q.mu, 1 / q.var)  # surer where it errs more
    of_q, of_g = pe.calibrate_variance(wrong, g, *same(500))
    assert of_q.a == 0 and of_q.b > 0.5 and of_g.a > 0.5
    prior = ((q.mu - q.mu.mean(0)) * (g.mu - g.mu.mean(0))).mean()
    theta = np.array([of_q.a, of_q.b, of_g.a, of_g.b])
    least = loss(theta, wrong, g, prior)
    for i, step in ((0, 1e-3), (1, 1e-3), (1, -1e-3), (2, 1e-3), (2, -1e-3)):
        moved = theta.copy()
        moved[i] += step
        assert loss(moved, wrong, g, prior) > least


def test_of_one_variance_for_all_the_factor_alone_is_fitted():
    q, g = modalities("normal_isotropic", 500, 8)
    of_q, of_g = pe.calibrate_variance(
        pe.Normal(q.mu, np.full(500, 3.0)), pe.Normal(g.mu, np.full(500, 0.1)), *same(500)
    )
    assert (of_q.b, of_g.b) == (0, 0)
    # Both sides have a true variance of 0.6 sqrt(e) on average.
    np.testing.assert_allclose((of_q.a * 3.0, of_g.a * 0.1), 0.6 * np.exp(0.5), rtol=0.15)


def test_sides_of_two_kinds_and_pairs_in_any_order():
    q, g = modalities("normal_diagonal", 300, 5, 1.0)
    g = pe.Normal(g.mu, g.var.mean(1))
    rng = np.random.default_rng(4)
    order, mixed = rng.permutation(300), rng.permutation(300)
    pairs = np.r_[np.c_[np.arange(300), np.argsort(order)], np.c_[np.arange(300), mixed]]
    labels = np.r_[np.ones(300, bool), np.zeros(300, bool)]
    found, plain = pe.calibrate_variance(q, g[order], pairs, labels), pe.calibrate_variance(q, g, *same(300))
    for c, d in zip(found, plain, strict=True):
        np.testing.assert_allclose([c.a, c.b, *c.mean], [d.a, d.b, *d.mean], rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("library", ["numpy", "torch"])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_a_calibration_with_a_mean_keeps_kind_and_dtype(library, dtype):
    c = Calibration(2.0, 0.5, "Normal", (1.0, -2.0, 0.25, 3.0))
    d = make("normal_diagonal", 6, 4, dtype=dtype, library=library)
    found = c(d)
    assert type(found.mu) is type(d.mu) and found.mu.dtype == d.mu.dtype
    eps = {"float16": 2.0**-9, "float32": 2.0**-22, "float64": 2.0**-51}[dtype]
    np.testing.assert_allclose(to_numpy(found.mu), to_numpy(d.mu) - np.array(c.mean), rtol=eps, atol=4 * eps)
    assert pickle.loads(pickle.dumps(c)) == c and hash(c) == hash(pickle.loads(pickle.dumps(c)))


def test_tensors_give_what_arrays_give():
    q, g = modalities("normal_diagonal", 50, 4)
    tensors = [build("normal_diagonal", *d.arrays, library="torch") for d in (q, g)]
    pairs, labels = same(50)
    assert pe.calibrate_variance(*tensors, torch.tensor(pairs), torch.tensor(labels)) == pe.calibrate_variance(
        q, g, pairs, labels
    )
    names = np.arange(50)
    found = pe.fit_prior(*tensors, torch.tensor(names), torch.tensor(names))
    np.testing.assert_array_equal(to_numpy(found.var), pe.fit_prior(q, g, names, names).var)


def test_the_prior_of_two_sides_is_that_of_both_together():
    q, g = modalities("normal_diagonal", 40, 4)
    names = np.arange(40) % 13
    found = pe.fit_prior(q, g, names, names[::-1])
    expected = pe.fit_prior(pe.concat([q, g]), np.r_[names, names[::-1]])
    np.testing.assert_array_equal(found.mean, expected.mean)
    np.testing.assert_array_equal(found.var, expected.var)
    by_name = pe.fit_prior(queries=q, gallery=g, query_labels=names, gallery_labels=names[::-1])
    np.testing.assert_array_equal(by_name.var, expected.var)


# -- warnings ----------------------------------------------------------------------------------------------------------

APART = r"the two sides differ: their means are [\d.]+ apart, \d+% of the mean square between items of one identity; "
SCALES = r"the two sides differ: of a variance of [\d.]+ one fits [\d.]+, the other [\d.]+; "


def one_scale(q, g):
    """One calibration of both sides together, as someone who does not see two modalities makes it."""
    return pe.calibrate_variance(pe.concat([q, g]), np.c_[: len(q), len(q) : 2 * len(q)], np.ones(len(q), bool))


@pytest.mark.parametrize("kind", KINDS)
def test_one_scale_of_sides_that_differ_is_warned_of(kind):
    with pytest.warns(
        UserWarning, match="^calibrate_variance: " + APART + r"one mean and one scale were fitted; pe\.cal"
    ) as seen:
        one_scale(*modalities(kind, 200, 16, 1.0))
    assert [w.filename for w in seen] == [__file__]
    with pytest.warns(
        UserWarning, match="^calibrate_variance: " + SCALES + r"one mean and one scale were fitted; pe\.cal"
    ) as seen:
        one_scale(*modalities(kind, 200, 16, 0.0, (3, 1 / 3)))
    assert [w.filename for w in seen] == [__file__]


def test_directions_of_two_modalities_are_warned_of_too():
    q, g = modalities("normal_isotropic", 200, 16, 1.5)
    mu = np.r_[q.mu, g.mu]
    d = pe.VonMisesFisher(mu / np.linalg.norm(mu, axis=1)[:, None], np.full(400, 20.0))
    with pytest.warns(UserWarning, match="^calibrate_variance: " + APART):
        pe.calibrate_variance(d, np.c_[:200, 200:400], np.ones(200, bool))


def test_one_prior_of_sides_with_two_means_is_warned_of():
    q, g = modalities("normal_isotropic", 200, 16, 1.5)
    with pytest.warns(UserWarning, match="^fit_prior: " + APART + r"one prior was fitted to both; apply what") as seen:
        pe.fit_prior(q, g, np.arange(200), np.arange(200))
    assert [w.filename for w in seen] == [__file__]
    points = [pe.Point(d.mu) for d in (q, g)]
    with pytest.warns(UserWarning, match="^fit_prior: " + APART):
        pe.fit_prior(*points, np.arange(200), np.arange(200))


def test_items_of_one_class_are_compared_wherever_they_stand():
    """With the gallery in another order, and items in it of classes that no query has, the warning is the same."""
    q, g = modalities("normal_isotropic", 200, 16, 1.5)
    order = np.random.default_rng(0).permutation(200)
    mixed = pe.concat([pe.Normal(g.mu[:30] + 9, g.var[:30]), g[order]])
    told = []
    for gallery, labels in ((g, np.arange(200)), (mixed, np.r_[900:930, order])):
        with pytest.warns(UserWarning, match="^fit_prior: " + APART) as seen:
            pe.fit_prior(q, gallery, np.arange(200), labels)
        told.append(str(seen[0].message))
    assert told[0] == told[1]


@pytest.mark.parametrize("kind", KINDS)
def test_sides_that_are_alike_are_not_warned_of(kind):
    """Warnings are errors here. In 60 draws of few and of many pairs, with wrong scales, and offsets of variances."""
    for seed in range(30):
        one_scale(*modalities(kind, (2, 5, 25, 60)[seed % 4], 6, 0, (3, 3), 0.5, seed))
        q, g = modalities(kind, 60, 6, 0, (3, 3), 0.0, seed + 30)
        one_scale(q[:20], g[:20])
        pe.fit_prior(q, g, np.arange(60), np.arange(60))
        # Sides of which one is less sure, and says so, fit one scale.
        rng = np.random.default_rng(seed)
        more = 2 * np.ones_like(g.var)
        noise = rng.standard_normal(g.mu.shape) * np.sqrt(3 * 2)
        one_scale(q, pe.Normal(g.mu + noise, g.var + more))


def test_of_many_pairs_some_tell(monkeypatch):
    monkeypatch.setattr(sides, "FEWER", 1000)
    with pytest.warns(UserWarning, match=APART):
        one_scale(*modalities("normal_diagonal", 2000, 8, 2.0))


# -- what is wrong -----------------------------------------------------------------------------------------------------

Q, G = modalities("normal_isotropic", 4, 3)
P, YES = same(4)
WRONG = [
    (
        lambda: pe.calibrate_variance(Q, make("vmf", 4, 3), P, YES),
        TypeError,
        "calibrate_variance: gallery must be a distribution with a v",
    ),
    (
        lambda: pe.calibrate_variance(Q.mu, G, P, YES),
        TypeError,
        "calibrate_variance: queries must be a distribution with a variance",
    ),
    (
        lambda: pe.calibrate_variance(Q, make("normal_isotropic", 4, 5), P, YES),
        ValueError,
        "calibrate_variance: dim of gallery is 5, exp",
    ),
    (
        lambda: pe.calibrate_variance(Q, G[:3], P, YES),
        ValueError,
        "calibrate_variance: pairs hold 3, expected rows of gallery, 0 .. 2",
    ),
    (
        lambda: pe.calibrate_variance(Q[:3], G, P, YES),
        ValueError,
        "calibrate_variance: pairs hold 3, expected rows of queries, 0 .. 2",
    ),
    (
        lambda: pe.calibrate_variance(Q, G, P, ~YES),
        ValueError,
        "calibrate_variance: labels name no pair of one identity, expected at lea",
    ),
    (
        lambda: pe.calibrate_variance(Q, G, P, YES[:2]),
        ValueError,
        "calibrate_variance: labels has shape (2,), expected",
    ),
    (
        lambda: pe.calibrate_variance(Q, G, P * 1.0, YES),
        ValueError,
        "calibrate_variance: pairs have shape (4, 2) and dtype float64, exp",
    ),
    (
        lambda: pe.calibrate_variance(Q, pe.Normal(G.mu, 0 * G.var), P, YES),
        ValueError,
        "calibrate_variance: var of gallery in the same pairs must be finite, >= 0 and not all 0",
    ),
    (
        lambda: pe.calibrate_variance(Q, Q, P, YES),
        ValueError,
        "calibrate_variance: mu of the same pairs must be finite and not all equal",
    ),
    (
        lambda: pe.calibrate_variance(Q, pe.Normal(G.mu * np.nan, G.var), P, YES),
        ValueError,
        "calibrate_variance: gallery: 4 of 4 rows are not finite, first 0, 1, 2; leave these out",
    ),
    (
        lambda: Calibration(1.0, 0.0, "Normal", (1.0, 2.0))(Q),
        ValueError,
        "calibrate_variance: fitted on 2 dimensions, not on 3",
    ),
    (
        lambda: pe.fit_prior(Q, make("vmf", 4, 3), P[:, 0], P[:, 0]),
        TypeError,
        "fit_prior: gallery must be a Normal or a Point, got vmf",
    ),
    (
        lambda: pe.fit_prior(Q, G, P[:, 0], P[:3, 0]),
        ValueError,
        "fit_prior: gallery_labels have shape (3,), expected (4,)",
    ),
    (
        lambda: pe.fit_prior(Q, G, P[:2, 0], P[:, 0]),
        ValueError,
        "fit_prior: query_labels have shape (2,), expected (4,)",
    ),
]


@pytest.mark.parametrize(("call", "error", "message"), WRONG)
def test_what_is_no_pair_of_sides_is_refused(call, error, message):
    with pytest.raises(error, match="^" + re.escape(message)) as caught:
        call()
    assert "\n" not in str(caught.value)
