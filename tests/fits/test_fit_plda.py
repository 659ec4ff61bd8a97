"""The two-covariance model against its density, Kaldi's formula and linear discriminant analysis, and hard inputs."""

import pickle
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

import peaccel as pe
from peaccel.distributions.fuse import Groups
from peaccel.fits import fit_plda as plda_fitting

PAGE = Path(__file__).parents[2] / "docs" / "plda.md"


def drawn(classes, dim, sizes, seed=0, between=1.0):
    """Items, labels, and the mean, W and B that they were drawn from."""
    rng = np.random.default_rng(seed)
    within, of_classes = rng.normal(size=(2, dim, dim)) / dim**0.5
    within, of_classes = within + np.eye(dim), between * (of_classes + np.eye(dim))
    mean = rng.normal(size=dim)
    labels = np.repeat(np.arange(classes), np.broadcast_to(sizes, classes))
    positions = mean + rng.normal(size=(classes, dim)) @ of_classes.T
    x = positions[labels] + rng.normal(size=(len(labels), dim)) @ within.T
    return x, labels, mean, within @ within.T, of_classes @ of_classes.T


def unequal(classes, seed=0):
    """Sizes 1 to 6; a third of the classes have one item."""
    return np.maximum(np.random.default_rng(seed).integers(-1, 7, classes), 1)


def covariances(plda):
    """W and B of a model that has kept all directions."""
    back = np.linalg.inv(plda.matrices[0])
    return back @ back.T, back * plda.psi @ back.T


def log_likelihood(x, labels, mean, within, between):
    """By the density of all items of a class, stacked."""
    value = 0.0
    for label in np.unique(labels):
        items = x[labels == label]
        n = len(items)
        covariance = np.kron(np.eye(n), within) + np.kron(np.ones((n, n)), between)
        value += stats.multivariate_normal(np.tile(mean, n), covariance).logpdf(items.reshape(-1))
    return value


def statistics(x, labels):
    _, of = np.unique(labels, return_inverse=True)
    columns = np.arange(x.shape[1])
    groups = Groups(of, of.max() + 1, np.argsort(of, kind="stable"))
    return plda_fitting._statistics(x, columns, np.zeros(len(columns)), np.ones(len(columns)), groups)


# -- the score ---------------------------------------------------------------------------------------------------------


def kaldi(psi, enrolled, n, test):
    """Kaldi's log-likelihood ratio: of a test vector given the mean of n enrolled ones, and given nothing."""
    value = 0.0
    for p, u, v in zip(psi, enrolled, test, strict=True):
        expected, variance = n * p / (n * p + 1) * u, 1 + p / (n * p + 1)
        value -= (np.log(2 * np.pi * variance) + (v - expected) ** 2 / variance) / 2
        value += (np.log(2 * np.pi * (1 + p)) + v**2 / (1 + p)) / 2
    return value


def test_the_score_of_fused_items_is_kaldis_formula():
    x, labels, *_ = drawn(60, 6, unequal(60))
    plda = pe.fit_plda(x, labels)
    items, groups = plda.transform(x[:40]), np.repeat(np.arange(8), [1, 2, 3, 4, 5, 6, 9, 10])
    enrolled, tests = pe.fuse(items, groups), plda.transform(x[40:60])
    found = pe.pairwise(tests, enrolled, plda.score)
    for j in range(8):
        mean, n = items.mu[groups == j].mean(0), int((groups == j).sum())
        expected = [kaldi(plda.psi, mean, n, test) for test in tests.mu]
        np.testing.assert_allclose(found[:, j], expected, rtol=1e-11, atol=1e-11)  # sums of terms of size 10


def test_the_score_is_the_ratio_of_densities_of_the_model():
    x, labels, *_ = drawn(80, 4, unequal(80), seed=1, between=2)
    plda = pe.fit_plda(x, labels)
    (within, between), mean = covariances(plda), plda.means[0]
    d = plda.transform(x[:12])
    together = stats.multivariate_normal(
        np.tile(mean, 2), np.kron(np.eye(2), within) + np.kron(np.ones((2, 2)), between)
    )
    alone = stats.multivariate_normal(mean, within + between)
    expected = [
        together.logpdf(np.r_[a, b]) - alone.logpdf(a) - alone.logpdf(b) for a, b in zip(x, x[6:12], strict=False)
    ]
    np.testing.assert_allclose(pe.paired(d[:6], d[6:], plda.score), expected, rtol=1e-10)


# -- the fit -----------------------------------------------------------------------------------------------------------


def test_no_step_of_em_lowers_the_likelihood_which_is_that_of_the_density():
    x, labels, *_ = drawn(40, 3, unequal(40), seed=2)
    given = statistics(x, labels)
    model = plda_fitting._Model(np.eye(3), np.zeros(3), np.full(3, 5.0))
    values, expected = [], []
    for _ in range(30):
        after, value = plda_fitting._step(given, model)
        back = np.linalg.inv(model.directions)
        # The value is at the mean that is the likeliest for the W and B of the model.
        precision = 1 / (model.psi + 1 / given.sizes)
        mean = back @ ((precision * (given.means @ model.directions.T)).sum(0) / precision.sum(0))
        values.append(value)
        expected.append(log_likelihood(x, labels, mean, back @ back.T, back * model.psi @ back.T))
        model = after
    assert (np.diff(expected) > -1e-9).all() and expected[-1] > expected[0] + 1
    np.testing.assert_allclose(np.diff(values), np.diff(expected), rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("sizes", [4, unequal(60, 3)], ids=["equal", "unequal"])
def test_nothing_near_the_fit_is_likelier(sizes):
    x, labels, *_ = drawn(60, 3, sizes, seed=3, between=1.5)
    plda = pe.fit_plda(x, labels)
    (within, between), mean = covariances(plda), plda.means[0]
    best = log_likelihood(x, labels, mean, within, between)
    rng = np.random.default_rng(0)
    for _ in range(20):
        for scale in (1e-3, 1e-1):
            a, b = (np.eye(3) + scale * rng.normal(size=(3, 3)) for _ in range(2))
            moved = mean + scale * rng.normal(size=3)
            assert log_likelihood(x, labels, mean, a @ within @ a.T, between) < best + 1e-6
            assert log_likelihood(x, labels, mean, within, b @ between @ b.T) < best + 1e-6
            assert log_likelihood(x, labels, moved, within, between) < best + 1e-6


@pytest.mark.parametrize("between", [2.0, 0.3])
def test_em_and_the_closed_form_agree_where_classes_have_one_size(between):
    """Also where classes do not differ along all directions, of which W then keeps more than the mean square."""
    x, labels, *_ = drawn(50, 4, 5, seed=4, between=between)
    plda, given = pe.fit_plda(x, labels), statistics(x, labels)
    model = plda_fitting._Model(np.eye(4), np.zeros(4), np.ones(4))
    for _ in range(3000):
        model, _ = plda_fitting._step(given, model)
    kept = len(plda.psi)
    assert kept == 4 if between == 2 else 0 < kept < 4
    np.testing.assert_allclose(model.psi[:kept], plda.psi, rtol=1e-6)
    assert (model.psi[kept:] < 1e-6).all()
    np.testing.assert_allclose(abs(model.directions[:kept]), abs(plda.matrices[0]), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(np.linalg.solve(model.directions, model.offset), plda.means[0], atol=1e-8)


def test_the_fit_finds_what_items_were_drawn_from():
    x, labels, mean, within, between = drawn(20_000, 3, unequal(20_000, 5), seed=5)
    plda = pe.fit_plda(x, labels)
    found = covariances(plda)
    np.testing.assert_allclose(found[0], within, atol=0.06)  # 4 standard errors of 5e4 items
    np.testing.assert_allclose(found[1], between, atol=0.15)  # and of 2e4 classes, whose means have errors of their own
    np.testing.assert_allclose(plda.means[0], mean, atol=0.06)


@pytest.mark.parametrize("between", [2.0, 0.3])
def test_em_stops_where_little_is_left_to_gain(between):
    x, labels, *_ = drawn(300, 10, unequal(300, 6), seed=19, between=between)
    given = statistics(x, labels)
    model = plda_fitting._likeliest(given)
    _, value = plda_fitting._step(given, model)
    for _ in range(2000):
        model, best = plda_fitting._step(given, model)
    assert 0 <= best - value < 1e-6 * len(x)  # what the constant GAIN says


def test_directions_are_those_of_linear_discriminant_analysis():
    """Where classes have one size, up to sign and length."""
    x, labels, *_ = drawn(40, 8, 6, seed=6)
    plda = pe.fit_plda(x, labels, dim=5)
    other = LinearDiscriminantAnalysis(solver="eigen", n_components=5).fit(x, labels)
    scale = (240 - 40) / 240  # its covariance within classes is divided by the number of items
    sign = np.sign((plda.matrices[0] * other.scalings_[:, :5].T).sum(1))
    np.testing.assert_allclose(plda.matrices[0], sign[:, None] * scale**0.5 * other.scalings_[:, :5].T, atol=1e-9)
    shares = (plda.psi + 1 / 6) / (pe.fit_plda(x, labels).psi + 1 / 6).sum()
    np.testing.assert_allclose(
        shares / shares.sum(), other.explained_variance_ratio_ / other.explained_variance_ratio_.sum()
    )


def test_fewer_directions_are_the_first_of_all():
    x, labels, *_ = drawn(60, 6, unequal(60), seed=7)
    some, every = pe.fit_plda(x, labels, dim=2), pe.fit_plda(x, labels)
    assert (np.diff(every.psi) <= 0).all()
    for a, b in ((some.psi, every.psi), (some.matrices[0], every.matrices[0])):
        np.testing.assert_array_equal(a, b[:2])


def test_normalised_lengths_are_a_fit_of_unit_vectors_of_directions():
    x, labels, *_ = drawn(80, 6, unequal(80), seed=8, between=2)
    x *= np.random.default_rng(0).gamma(4, size=(len(x), 1))
    plda = pe.fit_plda(x, labels, dim=4, length_norm=True)
    first = pe.fit_plda(x, labels, dim=4).transform(x).mu
    lengths = np.array([[sum(v * v for v in row) ** 0.5] for row in first])
    again = pe.fit_plda(first / lengths, labels)
    np.testing.assert_allclose(plda.transform(x).mu, again.transform(first / lengths).mu, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(plda.score.params["prior_var"], again.psi, rtol=1e-12)
    assert repr(plda) == "Plda(6 -> 4 dimensions, lengths normalised)"


# -- hard inputs -------------------------------------------------------------------------------------------------------


def scores(plda, x):
    d = plda.transform(x)
    return pe.pairwise(d[:10], d[10:30], plda.score)


@pytest.mark.parametrize(("dtype", "least"), [("float64", -140), ("float32", -16)])
def test_scales_of_columns_do_not_matter(dtype, least):
    x, labels, *_ = drawn(60, 6, unequal(60), seed=9)
    scale = np.exp2(np.linspace(3.3 * least, -3.3 * least, 6).round())  # powers of two, which round nothing
    x = x.astype(dtype)
    scaled = (x * scale).astype(dtype)
    plda, other = pe.fit_plda(x, labels), pe.fit_plda(scaled, labels)
    # What moves the scores is the rounding of the moved items alone.
    tolerance = 1e-8 if dtype == "float64" else 1e-4
    np.testing.assert_allclose(scores(other, scaled), scores(plda, x), rtol=tolerance, atol=tolerance)


def test_constant_columns_get_weight_0():
    x, labels, *_ = drawn(60, 4, unequal(60), seed=10)
    more = np.insert(x, [0, 2, 4], [0.1, -7.0, 0.0], axis=1).astype(np.float32)
    plda, other = pe.fit_plda(x.astype(np.float32), labels), pe.fit_plda(more, labels)
    np.testing.assert_array_equal(other.matrices[0][:, [0, 3, 6]], 0)
    np.testing.assert_allclose(other.means[0][[0, 3, 6]], np.float32([0.1, -7, 0]))
    np.testing.assert_array_equal(np.delete(other.matrices[0], [0, 3, 6], 1), plda.matrices[0])


def test_a_mean_far_from_0_takes_the_digits_of_the_items_alone():
    x, labels, *_ = drawn(60, 4, unequal(60), seed=11)
    far = x + 2.0**20
    near = far - 2.0**20  # what rounding left
    np.testing.assert_allclose(
        scores(pe.fit_plda(far, labels), far), scores(pe.fit_plda(near, labels), near), rtol=1e-7, atol=1e-7
    )


def test_float32_of_512_columns_is_fitted_and_moved_in_float64():
    x, labels, *_ = drawn(250, 512, 6, seed=12)
    x = x.astype(np.float32)
    plda = pe.fit_plda(x, labels, dim=40)
    moved = plda.transform(x)
    assert moved.mu.dtype == np.float32 and plda.matrices[0].dtype == np.float64
    expected = (x.astype(np.float64) - plda.means[0]) @ plda.matrices[0].T
    np.testing.assert_array_equal(moved.mu, expected.astype(np.float32))
    wide = pe.fit_plda(x.astype(np.float64), labels, dim=40)
    np.testing.assert_allclose(plda.psi, wide.psi, rtol=1e-9)
    # The directions diagonalise the mean square within classes, which these recompute plainly.
    left = x - np.stack([x[labels == label].astype(np.float64).mean(0) for label in range(250)])[labels]
    np.testing.assert_allclose(np.cov((left @ plda.matrices[0].T).T, ddof=250), np.eye(40), atol=1e-9)


def test_too_few_items_are_refused_unless_shrinkage_is_asked_for():
    x, labels, *_ = drawn(12, 30, 3, seed=13)
    message = "the covariance within 12 classes of 36 items has rank 24 of 30, expected full rank: more items, fewer"
    with pytest.raises(ValueError, match=re.escape(f"fit_plda: {message}")):
        pe.fit_plda(x, labels)
    plda = pe.fit_plda(x, labels, shrinkage=0.1)
    assert 0 < len(plda.psi) <= 11 and np.isfinite(scores(plda, x)).all()
    assert np.isfinite(pe.fit_plda(x, labels, dim=5, length_norm=True, shrinkage=0.1).psi).all()
    twice = np.c_[x[:, :5], x[:, :1]]
    with pytest.raises(ValueError, match=re.escape("of 36 items has rank 5 of 6, expected full rank")):
        pe.fit_plda(twice, labels)


def test_shrinkage_moves_the_covariance_within_classes_to_its_diagonal():
    x, labels, *_ = drawn(60, 3, 5, seed=14, between=5)
    (plain, _), (half, _), (whole, _) = (covariances(pe.fit_plda(x, labels, shrinkage=s)) for s in (0, 0.5, 1))
    np.testing.assert_allclose(half, (plain + np.diag(np.diag(plain))) / 2, rtol=1e-9)
    np.testing.assert_allclose(whole, np.diag(np.diag(plain)), atol=1e-12)


def test_rows_of_length_1_are_fitted_as_the_first_ones_are():
    x, labels, *_ = drawn(40, 6, unequal(40), seed=16, between=2)
    first = pe.fit_plda(x, labels, dim=4, shrinkage=0.4)
    rows = first.transform(x).mu
    second = pe.fit_plda(rows / np.linalg.norm(rows, axis=1, keepdims=True), labels, shrinkage=0.4)
    both = pe.fit_plda(x, labels, dim=4, length_norm=True, shrinkage=0.4)
    for step, alone in enumerate((first, second)):
        np.testing.assert_allclose(both.means[step], alone.means[0], rtol=1e-12)
        np.testing.assert_allclose(both.matrices[step], alone.matrices[0], rtol=1e-12)
    np.testing.assert_allclose(both.psi, second.psi, rtol=1e-12)


def test_a_column_that_is_constant_within_classes_alone_is_refused():
    x, labels, *_ = drawn(20, 3, 4, seed=15)
    with pytest.raises(ValueError, match="fit_plda: column 3 of x is constant within classes and differs between them"):
        pe.fit_plda(np.c_[x, 0.1 * labels], labels, shrinkage=0.5)


def test_classes_that_do_not_differ_are_refused():
    x = np.array([[-1.0], [1], [-1], [1], [-1], [1]])
    with pytest.raises(ValueError, match="expected other labels: classes differ in 0 directions"):
        pe.fit_plda(x, [0, 0, 1, 1, 2, 2])
    x, labels, *_ = drawn(50, 4, 5, seed=4, between=0.3)
    with pytest.raises(ValueError, match=r"dim is 4, expected 1 \.\. \d: classes differ in \d directions"):
        pe.fit_plda(x, labels, dim=4)


def test_a_fit_that_is_not_done_warns(monkeypatch):
    monkeypatch.setattr(plda_fitting, "STEPS", 2)
    x, labels, *_ = drawn(40, 3, unequal(40))
    with pytest.warns(UserWarning, match="fit_plda: the likelihood still grows after 2 steps of EM"):
        pe.fit_plda(x, labels)


X = np.arange(12.0).reshape(6, 2)
LABELS = [0, 0, 0, 1, 1, 2]


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ((pe.Normal(X, 1.0), LABELS), TypeError, "x is normal_isotropic, expected an array or a Point"),
        (("x", LABELS), TypeError, "x is text, such as"),
        ((X[0], [0, 1]), ValueError, "x has shape (2,), expected (N, D)"),
        ((X[:, :0], LABELS), ValueError, "x has shape (6, 0), expected (N, D)"),
        ((X, [0, 1]), ValueError, "labels have shape (2,), expected (6,)"),
        ((X, [0.0, np.nan, 1, 1, 2, 2]), ValueError, "1 of the 6 labels are missing"),
        ((X, [0] * 6), ValueError, "labels name 1 classes of 6 items, expected two classes and a repeated one"),
        ((X, range(6)), ValueError, "labels name 6 classes of 6 items, expected two classes and a repeated one"),
        ((X, LABELS, 3), ValueError, "dim is 3, expected 1 .. 2: D, and at most the classes less one"),
        ((X, LABELS, 0), ValueError, "dim is 0, expected 1 .. "),
        ((X, LABELS, 1.5), TypeError, "dim must be an integer, got float"),
        ((X, LABELS, 1, True), ValueError, "length_norm takes two directions and more"),
        ((np.where(X == 7, np.inf, X), LABELS), ValueError, "x: 1 of 6 rows are not finite, first 3; leave these out"),
    ],
)
def test_what_cannot_be_fitted_is_refused(given, error, message):
    with pytest.raises(error, match="^" + re.escape(f"fit_plda: {message}")) as caught:
        pe.fit_plda(*given)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("shrinkage", [-0.1, 1.5, "0.5", np.nan])
def test_shrinkage_is_a_share(shrinkage):
    with pytest.raises(ValueError, match=r"fit_plda: shrinkage is .*, expected a number from 0 to 1"):
        pe.fit_plda(X, LABELS, shrinkage=shrinkage)


# -- the record --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def fitted():
    x, labels, *_ = drawn(60, 5, unequal(60), seed=16, between=2)
    return x, labels, pe.fit_plda(x, labels, dim=3, length_norm=True)


def test_items_keep_their_kind_of_array(fitted):
    x, labels, plda = fitted
    expected = plda.transform(x)
    assert repr(expected) == f"Normal(N={len(x)}, D=3, isotropic, float64, numpy)" and (expected.var == 1).all()
    np.testing.assert_array_equal(plda.transform(pe.Point(x)).mu, expected.mu)
    tensors = torch.tensor(x, requires_grad=True)
    moved = plda.transform(tensors)
    np.testing.assert_allclose(moved.mu.detach(), expected.mu, rtol=1e-12, atol=1e-12)
    assert torch.autograd.gradcheck(lambda rows: plda.transform(rows).mu, (tensors[:3],))
    half = plda.transform(tensors.half())
    assert half.mu.dtype == half.var.dtype == torch.float32
    assert len(plda.transform(x[:0])) == 0
    np.testing.assert_array_equal(pe.fit_plda(tensors, labels, 3, True).psi, plda.psi)
    np.testing.assert_array_equal(pe.fit_plda(pe.Point(x), labels, 3, True).psi, plda.psi)


def test_blocks_of_rows_do_not_show(fitted, monkeypatch):
    x, _, plda = fitted
    expected = plda.transform(x).mu
    monkeypatch.setattr("peaccel.fits.plda.BLOCK", 7)
    np.testing.assert_allclose(plda.transform(x).mu, expected, rtol=1e-12, atol=1e-14)


def test_a_copy_scores_alike(fitted):
    x, _, plda = fitted
    copy = pickle.loads(pickle.dumps(plda))
    np.testing.assert_array_equal(scores(copy, x), scores(plda, x))
    assert copy.score == plda.score == pe.scores.get(str(plda.score))


def test_isotropic_uncertainties_pass_where_directions_are_orthogonal():
    """By the densities: items x + e with W and a variance v of their own, whose sum directions make a diagonal."""
    rng = np.random.default_rng(17)
    turn, _ = np.linalg.qr(rng.normal(size=(3, 3)))
    plda = pe.Plda((rng.normal(size=3),), (turn * [[2.0], [2], [2]],), rng.gamma(2, size=3))
    (within, between), mean = covariances(plda), plda.means[0]
    x, v = rng.normal(size=(8, 3)), rng.gamma(1, size=8)
    d = plda.transform(pe.Normal(x, v))
    for i, found in enumerate(pe.paired(d[:4], d[4:], plda.score)):
        own = [within + v[j] * np.eye(3) for j in (i, i + 4)]
        zero = np.zeros((3, 3))
        together = np.block([[own[0], zero], [zero, own[1]]]) + np.kron(np.ones((2, 2)), between)
        expected = stats.multivariate_normal(np.tile(mean, 2), together).logpdf(np.r_[x[i], x[i + 4]])
        for j, covariance in zip((i, i + 4), own, strict=True):
            expected -= stats.multivariate_normal(mean, covariance + between).logpdf(x[j])
        assert found == pytest.approx(expected, rel=1e-10)


def test_factors_of_the_covariance_within_classes_are_exact_for_every_model():
    x, labels, *_ = drawn(60, 3, unequal(60), seed=18)
    plda = pe.fit_plda(x, labels)
    (within, between), mean = covariances(plda), plda.means[0]
    factor = np.array([0.5, 3.0])
    d = pe.Normal(plda.transform(x[:2]).mu, factor)
    zero = np.zeros((3, 3))
    together = np.block([[factor[0] * within, zero], [zero, factor[1] * within]]) + np.kron(np.ones((2, 2)), between)
    expected = stats.multivariate_normal(np.tile(mean, 2), together).logpdf(x[:2].reshape(-1))
    for row, f in zip(x, factor, strict=False):
        expected -= stats.multivariate_normal(mean, f * within + between).logpdf(row)
    assert pe.paired(d[:1], d[1:], plda.score)[0] == pytest.approx(expected, rel=1e-9)


def test_uncertainties_that_would_become_full_covariances_are_refused(fitted):
    x, labels, plda = fitted
    plain = pe.fit_plda(x, labels, dim=3)
    for model, d, error, message in (
        (
            plain,
            pe.Normal(x, np.ones_like(x)),
            TypeError,
            "x is normal_diagonal, expected an array, a Point or an isotr",
        ),
        (plain, pe.Normal(x, 0.1), ValueError, "x is a Normal, whose covariance becomes a full one, as directions are"),
        (
            plda,
            pe.Normal(x, 0.1),
            ValueError,
            "x is a Normal, and no normal stays one where its length becomes 1; give",
        ),
        (plain, pe.Scaled(x, 0.1), TypeError, "x is scaled, expected an array, a Point or an isotropic Normal"),
        (plain, x[:, :4], ValueError, f"x has shape ({len(x)}, 4), expected (N, 5)"),
        (plain, x[0], ValueError, "x has shape (5,), expected (N, 5)"),
    ):
        with pytest.raises(error, match="^" + re.escape(f"Plda.transform: {message}")) as caught:
            model.transform(d)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (((), (), [1.0]), "means are 0 and matrices 0, expected one a step"),
        ((([0.0],), (), [1.0]), "means are 1 and matrices 0, expected one a step"),
        ((([[0.0]],), ([[1.0]],), [1.0]), "means[0] has shape (1, 1), expected (1,)"),
        ((([0.0, 1.0],), ([[1.0]],), [1.0]), "matrices[0] has shape (1, 1), expected (K, 2) like means[0]"),
        ((([0.0], [0.0, 1.0]), ([[1.0]], [[1.0]]), [1.0]), "means[1] has shape (2,), expected (1,)"),
        ((([0.0],), ([[1.0]],), [1.0, 2.0]), "psi has shape (2,), expected (1,) like the last matrix"),
        ((([0.0],), ([[1.0]],), [-1.0]), "psi holds -1, expected variances >= 0"),
        ((([np.nan],), ([[1.0]],), [1.0]), "means[0] are of dtype float64 or not finite, expected finite numbers"),
        ((([0.0],), ([["a"]],), [1.0]), "matrices[0] are of dtype <U1 or not finite, expected finite numbers"),
    ],
)
def test_steps_must_follow_on_each_other(given, message):
    with pytest.raises(ValueError, match="^" + re.escape(f"Plda: {message}")):
        pe.Plda(*given)


def test_what_the_page_shows_runs_and_prints_what_it_says(capsys):
    (block,) = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    exec(block, {})
    assert capsys.readouterr().out.splitlines() == re.findall(r"print\(.*# (.*)", block)


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (np.ones((6, 2)), "the 6 rows of x are equal, expected some that differ"),
        (np.full((6, 1), 1e200) * np.arange(6)[:, None], "x reaches 5e+200, expected 1e150 at most"),
        (np.full((6, 1), 1e-200) * np.arange(6)[:, None], "a column of x spans 5e-200, expected 0, or 1e-150 at least"),
    ],
)
def test_what_cannot_be_scaled_is_said(x, message):
    with pytest.raises(ValueError, match="^" + re.escape(f"fit_plda: {message}") + "$"):
        pe.fit_plda(x, [0, 0, 1, 1, 2, 2], shrinkage=0.5)
