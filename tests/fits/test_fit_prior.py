"""fit_prior, fit_vmf and calibrate_variance against their definitions, exact answers and simulated data."""

import numpy as np
import pytest
import reference
import torch
from conftest import NUMPY, as_library, build, make, to_numpy
from flint import arb
from scipy import optimize, stats

import peaccel as pe

LIBRARIES = ("numpy", "torch")

# -- fit_prior ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("library", ("numpy", "torch"))
@pytest.mark.parametrize("kind", ["normal_isotropic", "normal_diagonal", "point"])
def test_fit_prior_is_the_analysis_of_variance(kind, library):
    rng = np.random.default_rng(3)
    labels = np.array([0, 0, 0, 1, 1, 2, 2, 2, 2, 7, 7, 5])
    mu = rng.standard_normal((8, 6))[labels] * np.array([2, 1, 1, 0.5, 0, 0]) + rng.standard_normal((12, 6)) * 0.3
    d = build(kind, mu, np.ones_like(mu) if kind == "normal_diagonal" else np.ones(12), library=library)
    mean, var = pe.fit_prior(d, torch.tensor(labels) if library == "torch" else labels)
    assert type(mean) is type(d.mu)
    expected_mean, expected_var = reference.fit_prior(mu, labels)
    np.testing.assert_allclose(to_numpy(mean), expected_mean, atol=1e-13)
    assert (expected_var < 0).any()  # for which 0 stands, once they are averaged
    expected_var = np.maximum(expected_var if kind == "normal_diagonal" else expected_var.mean(), 0)
    np.testing.assert_allclose(to_numpy(var), expected_var, 1e-12)
    score = pe.scores.llr(prior_var=var, prior_mean=mean)
    if kind != "point":
        assert np.isfinite(to_numpy(pe.pairwise(d, d, score))).all()


@pytest.mark.parametrize(("kind", "truth"), [("normal_diagonal", (0.5, 2.0, 0.05)), ("point", (0.8, 0.8, 0.8))])
def test_fit_prior_finds_the_prior_of_simulated_classes(kind, truth):
    rng = np.random.default_rng(1)
    truth, mean = np.array(truth), np.array([3.0, -1.0, 0.0])
    labels = rng.integers(0, 4000, 20_000)
    centres = mean + rng.standard_normal((4000, 3)) * truth**0.5
    mu = centres[labels] + rng.standard_normal((20_000, 3)) * 0.6
    found_mean, found = pe.fit_prior(build(kind, mu, np.full_like(mu, 0.36)), labels)
    # 4000 classes of 5: a variance has a standard error of (truth + 0.36 / 5) sqrt(2 / 4000); allowed are 4.5 of them.
    error = 4.5 * (truth + 0.1) / 4000**0.5
    assert (abs(found - truth) < error * 2**0.5).all()
    assert (abs(found_mean - mean) < 4.5 * ((truth + 0.12) / 4000) ** 0.5).all()


def test_fit_prior_takes_labels_of_any_values_and_is_never_negative():
    mu = np.array([[0.0], [1.0], [0.0], [1.0], [0.0], [1.0]])  # classes of one mean: between < within
    for labels in ([5, 5, -3, -3, 9, 9], np.array(["a", "a", "b", "b", "c", "c"])):
        mean, var = pe.fit_prior(pe.Point(mu), labels)
        assert (mean, var) == (np.array([0.5]), 0.0)


D = make("normal_isotropic", 5, 4)


@pytest.mark.parametrize(
    ("d", "labels", "error", "begins"),
    [
        (make("vmf", 5), np.arange(5), TypeError, "fit_prior: d must be a Normal or a Point, got vmf"),
        (D.mu, np.arange(5), TypeError, "fit_prior: d must be a Normal or a Point, got ndarray"),
        (D, np.arange(4), ValueError, "fit_prior: labels have shape (4,), expected (5,)"),
        (D, np.zeros((5, 1)), ValueError, "fit_prior: labels have shape (5, 1), expected (5,)"),
        (D, None, ValueError, "fit_prior: labels have shape (), expected (5,)"),
        (
            D,
            np.zeros(5),
            ValueError,
            "fit_prior: labels name 1 classes of 5 items, expected two classes and a repeated",
        ),
        (
            D,
            np.arange(5),
            ValueError,
            "fit_prior: labels name 5 classes of 5 items, expected two classes and a repeated",
        ),
        (D[:0], np.zeros(0), ValueError, "fit_prior: labels name 0 classes of 0 items"),
    ],
)
def test_fit_prior_says_what_it_was_given_and_expects(d, labels, error, begins):
    with pytest.raises(error) as caught:
        pe.fit_prior(d, labels)
    assert str(caught.value).startswith(begins), str(caught.value)
    assert "\n" not in str(caught.value)


# -- fit_vmf -----------------------------------------------------------------------------------------------------------


def two_rows(dim, kappa):
    """Two unit rows whose mean has the length A(kappa), to float64's last digit along and across the first axis."""
    ratio = arb(kappa).bessel_i(arb(dim) / 2, scaled=True) / arb(kappa).bessel_i(arb(dim) / 2 - 1, scaled=True)
    rows = np.zeros((2, dim))
    rows[:, 0], rows[0, -1] = float(ratio), float((1 - ratio**2).sqrt())
    rows[1, -1] = -rows[0, -1]
    return rows


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("dim", [2, 3, 4, 16, 128, 512, 2048])
def test_fit_vmf_finds_kappa_to_rounding_from_1e_8_to_1e8(dim, library):
    kappas = np.geomspace(1e-8, 1e8, 33)
    z = np.concatenate([two_rows(dim, k) for k in kappas])
    d = pe.fit_vmf(as_library(z, library), groups=np.repeat(np.arange(33), 2))
    np.testing.assert_allclose(to_numpy(d.kappa), kappas, rtol=1e-15)
    np.testing.assert_allclose(to_numpy(d.mu), np.tile(np.eye(1, dim), (33, 1)), atol=1e-15)


@pytest.mark.parametrize("library", LIBRARIES)
def test_fit_vmf_maximises_the_weighted_likelihood(library):
    rng = np.random.default_rng(0)
    z, weights = make("vmf", 12, 5, 3).mu + 2 * np.eye(1, 5), rng.random(12)
    z /= np.linalg.norm(z, axis=1, keepdims=True)

    def loss(kappa_mu):
        kappa = np.linalg.norm(kappa_mu)
        one = pe.VonMisesFisher(kappa_mu[None] / kappa, np.array([kappa]))
        return -(weights * pe.log_prob(one, z[:, None])[:, 0]).sum()

    best = optimize.minimize(loss, np.ones(5), tol=1e-12).x
    d = pe.fit_vmf(as_library(z, library), weights=as_library(weights, library))
    assert type(d.mu) is type(as_library(z, library))
    np.testing.assert_allclose(to_numpy(d.kappa[0] * d.mu[0]), best, atol=1e-5)  # what the search for it leaves
    # Ratios of weights count, and a weight of 0 is no row.
    same = pe.fit_vmf(np.r_[z, -z], weights=np.r_[7 * weights, np.zeros(12)])
    np.testing.assert_allclose(to_numpy(d.kappa), same.kappa, rtol=1e-13)


def test_fit_vmf_finds_the_distribution_of_draws():
    for kappa in (2.0, 50.0):
        z = stats.vonmises_fisher(np.eye(16)[3], kappa).rvs(20_000, random_state=np.random.default_rng(1))
        d = pe.fit_vmf(z)
        ratio = pe.special.iv_ratio(8.0, kappa)
        slope = 1 - ratio**2 - 15 * ratio / kappa
        assert abs(d.kappa[0] - kappa) < 4.5 / np.sqrt(20_000 * slope)  # the information in n draws is n A'
        assert d.mu[0, 3] > 1 - 4.5 * 15 / (2 * 20_000 * kappa * ratio)


@pytest.mark.parametrize("library", LIBRARIES)
def test_fit_vmf_by_group_is_that_of_each_group_in_sorted_order(library):
    z = make("vmf", 9, 4).mu
    groups = np.array([7, -2, 7, 7, -2, 0, 0, 0, -2])
    d = pe.fit_vmf(as_library(z, library), groups=torch.tensor(groups) if library == "torch" else groups)
    for i, group in enumerate((-2, 0, 7)):
        one = pe.fit_vmf(z[groups == group])
        np.testing.assert_allclose(to_numpy(d.mu)[i], one.mu[0], rtol=1e-13)
        np.testing.assert_allclose(to_numpy(d.kappa)[i], one.kappa[0], rtol=1e-13)


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_row_counts_as_often_as_its_weight_says(library):
    """Also in groups whose rows are so alike that they are summed again, beside others whose rows are not."""
    rng = np.random.default_rng(6)
    groups, times = rng.permutation(np.arange(4).repeat(6)), rng.integers(1, 5, 24)
    z = np.eye(1, 5) + np.array([1.0, 1e-3, 0.3, 1e-4])[groups, None] * rng.standard_normal((24, 5))
    z /= np.linalg.norm(z, axis=1, keepdims=True)
    again = np.repeat(np.arange(24), times)
    d = pe.fit_vmf(as_library(z, library), weights=as_library(times * 0.5, library), groups=groups)
    expected = pe.fit_vmf(z[again], groups=groups[again])
    np.testing.assert_allclose(to_numpy(d.mu), expected.mu, rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(to_numpy(d.kappa), expected.kappa, rtol=1e-9)
    assert expected.kappa.min() < 50 and expected.kappa.max() > 1e6


@pytest.mark.parametrize("library", LIBRARIES)
def test_fit_vmf_at_the_ends(library):
    row, axis = make("vmf", 1, 4).mu, np.eye(1, 4)
    groups = np.array([0, 1, 1, 1, 2, 2, 3])
    z = as_library(np.concatenate([row] * 4 + [row, -row, row]), library)
    weights = as_library(np.array([3.0, 1, 0.7, 0.1, 1, 1, 0]), library)
    d = pe.fit_vmf(z, weights=weights, groups=groups)
    # One row, equal rows, opposite rows, whose spread goes for the others too, and a row that does not count.
    np.testing.assert_allclose(to_numpy(d.kappa), [0, 0, 0, 0], atol=1e-5)
    np.testing.assert_allclose(to_numpy(d.mu), np.concatenate([row, row, axis, axis]), rtol=1e-15)
    kept = np.flatnonzero(groups < 2)
    alone = pe.fit_vmf(z[kept], weights=weights[kept], groups=groups[kept])
    np.testing.assert_array_equal(to_numpy(alone.kappa), np.inf)  # no other group says how far rows are spread
    np.testing.assert_array_equal(to_numpy(pe.fit_vmf(z[:1]).kappa), np.inf)


@pytest.mark.parametrize("library", ["numpy", "torch"])
@pytest.mark.parametrize("weighted", [False, True])
def test_persons_of_one_photograph_are_as_spread_as_the_others(library, weighted):
    """And so are ranked like the others: with kappa = inf, which few queries lie near enough, .31 were found first."""
    rng = np.random.default_rng(0)
    centres = make("vmf", 300, 96, 1).mu
    labels = np.concatenate([np.arange(300), np.repeat(np.arange(150), 4)])
    z = pe.sample(pe.VonMisesFisher(centres[labels], np.full(len(labels), 90.0)), 1, seed=1)[0]
    weights = rng.uniform(0.5, 2, len(z)) if weighted else None
    given = None if weights is None else as_library(weights, library)
    d = pe.fit_vmf(as_library(z, library), weights=given, groups=labels)
    kappa = to_numpy(d.kappa)
    assert (
        np.ptp(kappa[150:]) == 0 and abs(kappa[200] / 90 - 1) < 0.05
    )  # the true one: of 600 differences, in 96 dimensions
    w = np.ones(len(z)) if weights is None else weights
    squares, count = 0.0, 0.0
    for label in range(150):
        rows, own = z[labels == label], w[labels == label]
        mean = own @ rows / own.sum()
        size = own.sum() ** 2 / (own**2).sum()
        squares, count = squares + size * (own @ ((rows - mean) ** 2).sum(1)) / own.sum(), count + size - 1
    kept = pe.special.iv_ratio(48.0, kappa[200])
    np.testing.assert_allclose(1 - kept**2, squares / count, rtol=1e-10)
    queries = pe.sample(pe.VonMisesFisher(centres, np.full(300, 90.0)), 1, seed=2)[0]
    gallery = pe.VonMisesFisher(to_numpy(d.mu), kappa)
    found = pe.search(pe.VonMisesFisher(queries, np.full(300, 90.0)), gallery, 1, "mls").ids[:, 0] == np.arange(300)
    assert found[150:].mean() > 0.6


def test_fit_vmf_differentiates():
    z = make("vmf", 9, 4, library="torch").mu
    z[5:] = torch.nn.functional.normalize(z[5:] * 0.05 + z[0], dim=1)  # the second group is concentrated
    weights = torch.linspace(0.5, 2, 9, dtype=torch.float64)
    groups = torch.tensor([0] * 5 + [1] * 4)
    used = [x.requires_grad_() for x in (z.clone(), weights)]
    # What does not, gradcheck passes over.
    assert all(x.requires_grad for x in pe.fit_vmf(used[0], weights=used[1], groups=groups).arrays)
    # On unit rows only, as elsewhere the mean length is not that of directions.
    assert torch.autograd.gradcheck(
        lambda z, w: pe.fit_vmf(torch.nn.functional.normalize(z, dim=1), weights=w, groups=groups).arrays, used
    )
    row = z[0].clone().requires_grad_()
    ends = pe.fit_vmf(torch.stack([row, -row, row]), groups=torch.tensor([0, 0, 1]))
    (grad,) = torch.autograd.grad(ends.mu.sum() + ends.kappa[0], row)
    assert torch.isfinite(grad).all()


@pytest.mark.parametrize("library", LIBRARIES)
def test_fit_vmf_of_rounded_rows(library):
    z = make("vmf", 40, 6).mu + 3 * np.eye(1, 6)
    z /= np.linalg.norm(z, axis=1, keepdims=True)
    value = pe.fit_vmf(z)
    for dtype in NUMPY:
        d = pe.fit_vmf(as_library(z, library, dtype))
        assert str(d.mu.dtype).endswith("float64" if dtype == "float64" else "float32")
        # A row's rounding, and through 1 - r^2 = 0.09 some ten times that in kappa; never the loss of its sign.
        eps = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float32": 2.0**-24, "float64": 2.0**-50}[dtype]
        np.testing.assert_allclose(to_numpy(d.kappa), value.kappa, rtol=20 * eps)


def test_fit_vmf_takes_a_common_error_of_the_lengths_out():
    for spread in (0.3, 3):  # on both sides of the mean length where the equation changes its form
        z = make("vmf", 40, 6).mu * spread + np.eye(1, 6)
        z /= np.linalg.norm(z, axis=1, keepdims=True)
        np.testing.assert_allclose(pe.fit_vmf(1.004 * z).kappa, pe.fit_vmf(z).kappa, rtol=1e-13)


# -- rows that are not finite, directions that are not of unit length ------------------------------------------------


BAD = pe.Normal(np.r_[np.nan, np.arange(7.0)].reshape(4, 2), np.ones(4))
FITS = {
    "fit_prior": lambda d: pe.fit_prior(d, [0, 0, 1, 1]),
    "fit_prior of two sides": lambda d: pe.fit_prior(d, d, [0, 0, 1, 1], [0, 0, 1, 1]),
    "calibrate_variance": lambda d: pe.calibrate_variance(d, [[0, 1], [2, 3]], [1, 1]),
    "calibrate_variance of two sides": lambda d: pe.calibrate_variance(d, d, [[0, 1], [2, 3]], [1, 1]),
    "fit_shift": lambda d: pe.fit_shift(d, [[0, 1], [1, 2]], [1, 0]),
    "fit_centre": lambda d: pe.fit_centre(d),
    "fit_plda": lambda d: pe.fit_plda(d.mu, [0, 0, 1, 1]),
    "fit_vmf": lambda d: pe.fit_vmf(d.mu),
}


@pytest.mark.parametrize("library", ["numpy", "torch"])
@pytest.mark.parametrize("fit", FITS.values(), ids=FITS)
def test_rows_that_are_not_finite_are_refused_by_every_fit(fit, library):
    d = BAD if library == "numpy" else pe.Normal(*map(torch.tensor, BAD.arrays))
    with pytest.raises(
        ValueError, match=r"^(fit_\w+|calibrate_variance): (d|x|z|queries): 1 of 4 rows are not finite, first 0;"
    ):
        fit(d)


def test_directions_that_are_not_of_unit_length_are_refused_by_every_fit():
    raw = pe.VonMisesFisher(np.array([[3.0, 4], [4, 3], [3, 0], [0, 3]]), np.ones(4))
    message = r"in row 0 has length 5, expected 1 within 0\.01: divide (mu|z) by its length"
    for name in ("calibrate_variance", "fit_shift", "fit_vmf"):
        with pytest.raises(ValueError, match=message):
            FITS[name](raw)


# -- calibrate_variance ------------------------------------------------------------------------------------------------


def pairs_of_normals(kind, a, b, n=3000, dim=12):
    """Items 2 i and 2 i + 1 around one centre, with variances a var + b where the distribution says var."""
    rng = np.random.default_rng(5)
    centre = np.repeat(rng.standard_normal((n, dim)) * 5, 2, 0)
    var = np.exp(rng.uniform(-3, 2, (2 * n, dim) if kind == "normal_diagonal" else 2 * n))
    true = (a * var + b).reshape(2 * n, -1)
    mu = centre + rng.standard_normal(centre.shape) * np.sqrt(true)
    return pe.Normal(mu, var), np.arange(2 * n).reshape(-1, 2)


@pytest.mark.parametrize("kind", ["normal_isotropic", "normal_diagonal"])
@pytest.mark.parametrize(("a", "b"), [(4, 0), (0.3, 0.2), (0, 1.5), (1e-4, 1e-5)])
def test_calibrate_finds_the_scale_of_simulated_variances(kind, a, b):
    d, pairs = pairs_of_normals(kind, a, b)
    found = pe.calibrate_variance(d, pairs, np.ones(3000, bool))
    # 36 000 squared differences: standard errors of a percent of either, where both matter.
    np.testing.assert_allclose((found.a, found.b), (a, b), rtol=0.06, atol=0.02 * (a + b))

    def loss(a, b, rows=slice(None)):
        corrected = pe.Normal(d.mu, a * d.var + b)
        return -pe.paired(corrected[pairs[:, 0]], corrected[pairs[:, 1]], "mls").mean()

    least, step = loss(found.a, found.b), 1e-3 * (found.a + found.b)
    for da, db in ((step, 0), (-step, 0), (0, step), (0, -step)):
        if found.a + da >= 0 and found.b + db >= 0:
            assert loss(found.a + da, found.b + db) > least


def test_calibrate_to_the_last_digits_on_pairs_whose_maximum_is_known():
    # Differences of exactly the expected size, everywhere: then the model's variances are the likeliest ones.
    var = np.repeat(np.array([0.01, 0.3, 2, 50]), 2)
    d = pe.Normal(np.array([0, 1] * 4)[:, None] * np.sqrt(2 * (0.25 * var + 0.125))[:, None] * np.ones(3), var)
    found = pe.calibrate_variance(d, np.arange(8).reshape(4, 2), np.ones(4, bool))
    np.testing.assert_allclose((found.a, found.b), (0.25, 0.125), rtol=1e-12)


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("kind", ["normal_isotropic", "normal_diagonal"])
def test_calibrate_without_offset_is_the_mean_ratio(kind, library):
    d, pairs = pairs_of_normals(kind, 3, 1.0, n=50)
    labels = np.arange(50) % 3 > 0
    assert pe.calibrate_variance(d, pairs, labels).b > 0
    rows = pairs[labels]
    var = d.var.reshape(100, -1)
    ratio = (d.mu[rows[:, 0]] - d.mu[rows[:, 1]]) ** 2 / (var[rows[:, 0]] + var[rows[:, 1]])
    given = build(kind, *d.arrays, library=library)
    found = pe.calibrate_variance(
        given, *(torch.tensor(x) if library == "torch" else x for x in (pairs, labels)), offset=False
    )
    assert found.b == 0 and found.of == "Normal"
    np.testing.assert_allclose(found.a, ratio.mean(), rtol=1e-14)
    corrected = found(given)
    assert type(corrected.var) is type(given.var)
    np.testing.assert_allclose(to_numpy(corrected.var), found.a * d.var, rtol=1e-15)


def test_calibrate_of_one_variance_for_all_is_the_factor_alone():
    d, pairs = pairs_of_normals("normal_isotropic", 1, 0)
    found = pe.calibrate_variance(pe.Normal(d.mu, np.full_like(d.var, 3)), pairs, np.ones(3000, int))
    assert found.b == 0 and found.a > 0


def test_calibrate_finds_the_factor_of_simulated_concentrations():
    rng = np.random.default_rng(2)
    kappa, n, dim = np.exp(rng.uniform(1, 4, 1200)), 600, 8
    centres = np.repeat(make("vmf", n, dim).mu, 2, 0)
    mu = np.stack(
        [stats.vonmises_fisher(m, k).rvs(1, random_state=rng)[0] for m, k in zip(centres, kappa, strict=True)]
    )
    pairs, same = np.arange(2 * n).reshape(-1, 2), np.ones(n, bool)
    d = pe.VonMisesFisher(mu, 4 * kappa)
    found = pe.calibrate_variance(d, pairs, same)
    assert found.a == pytest.approx(0.25, rel=0.1) and (found.b, found.of) == (0, "VonMisesFisher")

    def mean_mls(a):
        corrected = pe.VonMisesFisher(d.mu, a * d.kappa)
        return pe.paired(corrected[pairs[:, 0]], corrected[pairs[:, 1]], "mls").mean()

    assert mean_mls(found.a) > max(mean_mls(found.a * 0.99), mean_mls(found.a * 1.01))
    # The slope is 0 there to rounding: differences over a thousandth would show 1e-9.
    assert abs(mean_mls(found.a * 1.001) - mean_mls(found.a / 1.001)) < 1e-8
    # A model's kappas a million times off are the same problem.
    far = pe.calibrate_variance(pe.VonMisesFisher(mu, 1e6 * kappa), pairs, same)
    assert far.a == pytest.approx(4e-6 * found.a, rel=1e-10)
    # Two uniform directions say nothing of the factor.
    more = pe.VonMisesFisher(np.concatenate([mu, mu[:2]]), np.append(4 * kappa, [0, 0]))
    assert pe.calibrate_variance(
        more, np.append(pairs, [[2 * n, 2 * n + 1]], 0), np.ones(n + 1, bool)
    ).a == pytest.approx(found.a)


@pytest.mark.parametrize("dtype", NUMPY)
@pytest.mark.parametrize("library", LIBRARIES)
def test_a_calibration_keeps_dtype_and_gradients(library, dtype):
    found = pe.Calibration(0.5, 0.25, "Normal")
    d = make("normal_diagonal", dtype=dtype, library=library)
    corrected = found(d)
    assert corrected.var.dtype == d.var.dtype and corrected.mu is d.mu
    eps = {"float16": 2.0**-10, "bfloat16": 2.0**-7}.get(dtype, 2.0**-22)
    np.testing.assert_allclose(to_numpy(corrected.var), 0.5 * to_numpy(d.var) + 0.25, rtol=eps)
    if library == "torch":
        d = pe.Normal(d.mu, d.var.clone().requires_grad_())
        found(d).var.sum().backward()
        assert (d.var.grad == 0.5).all()


# -- fit_shift ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("kind", ["scaled", "normal_diagonal", "vmf", "point"])
def test_fit_shift_is_between_the_mean_cosines_of_same_and_different_pairs(kind, library):
    d = make(kind, 30, 6)
    pairs = np.random.default_rng(0).permutation(30).reshape(15, 2)
    same = np.arange(15) % 3 == 0
    cosine = pe.paired(pe.Point(d.mu[pairs[:, 0]]), pe.Point(d.mu[pairs[:, 1]]), "cosine")
    given = (torch.tensor(x) if library == "torch" else x for x in (pairs, same))
    found = pe.fit_shift(build(kind, *d.arrays, library=library), *given)
    assert type(found) is float
    np.testing.assert_allclose(found, (cosine[same].mean() + cosine[~same].mean()) / 2, rtol=1e-12)


# -- bad input ---------------------------------------------------------------------------------------------------------

Z = make("vmf", 4, 3).mu
VMF = make("vmf", 4, 3)
PAIRS, SAME = np.array([[0, 1], [2, 3]]), np.array([True, True])
EQUAL = pe.Normal(np.ones((4, 3)), np.ones(4))


@pytest.mark.parametrize(
    ("function", "error", "begins"),
    [
        (lambda: pe.fit_vmf(Z[0]), ValueError, "fit_vmf: z has shape (3,), expected (N, D) with N >= 1 and D >= 2"),
        (lambda: pe.fit_vmf(Z[:0]), ValueError, "fit_vmf: z has shape (0, 3), expected (N, D) with N >= 1 and D >= 2"),
        (
            lambda: pe.fit_vmf(Z[:, :1]),
            ValueError,
            "fit_vmf: z has shape (4, 1), expected (N, D) with N >= 1 and D >= 2",
        ),
        (lambda: pe.fit_vmf(Z, [0, 0, 1, 1]), TypeError, "fit_vmf() takes 1 positional argument but 2 were given"),
        (lambda: pe.fit_vmf(VMF), TypeError, "fit_vmf: z: expected an array, got a distribution, VonMisesFisher("),
        (lambda: pe.fit_vmf(Z, weights=np.ones(3)), ValueError, "fit_vmf: weights have shape (3,), expected (4,)"),
        (lambda: pe.fit_vmf(Z, weights=[1, 0.5, -2, 1]), ValueError, "fit_vmf: weights hold -2, expected numbers >= 0"),
        (
            lambda: pe.fit_vmf(Z, weights=[1, 1, np.nan, 1]),
            ValueError,
            "fit_vmf: weights hold nan, expected numbers >= 0",
        ),
        (
            lambda: pe.fit_vmf(Z, weights=torch.ones(4)),
            TypeError,
            "fit_vmf: weights is a torch tensor on cpu, expected a numpy",
        ),
        (
            lambda: pe.fit_vmf(Z, groups=[0, 1]),
            ValueError,
            "fit_vmf: groups have shape (2,) and dtype int64, expected integers or strings (4,)",
        ),
        (
            lambda: pe.fit_vmf(Z, groups=np.ones(4)),
            ValueError,
            "fit_vmf: groups have shape (4,) and dtype float64, expected integers or strings (4,)",
        ),
        (
            lambda: pe.calibrate_variance(make("scaled"), PAIRS, SAME),
            TypeError,
            "calibrate_variance: d must be a distribution with a variance or concentration (normal_isotropic, ",
        ),
        (
            lambda: pe.calibrate_variance(VMF, PAIRS[0], SAME),
            ValueError,
            "calibrate_variance: pairs have shape (2,) and dtype int64, expected integers (P, 2)",
        ),
        (
            lambda: pe.calibrate_variance(VMF, PAIRS * 1.0, SAME),
            ValueError,
            "calibrate_variance: pairs have shape (2, 2) and dtype float64,",
        ),
        (
            lambda: pe.calibrate_variance(VMF, PAIRS + 1, SAME),
            ValueError,
            "calibrate_variance: pairs hold 4, expected rows of d, 0 .. 3",
        ),
        (
            lambda: pe.calibrate_variance(VMF, PAIRS - 1, SAME),
            ValueError,
            "calibrate_variance: pairs hold -1, expected rows of d, 0 .. 3",
        ),
        (
            lambda: pe.calibrate_variance(VMF, PAIRS, SAME[:1]),
            ValueError,
            "calibrate_variance: labels has shape (1,), expected",
        ),
        (
            lambda: pe.calibrate_variance(VMF, PAIRS, [0, 2]),
            ValueError,
            "calibrate_variance: labels has 2 in row 1, expected only 0 and 1",
        ),
        (
            lambda: pe.calibrate_variance(VMF, PAIRS, ~SAME),
            ValueError,
            "calibrate_variance: labels name no pair of one identity, expected at least one",
        ),
        (
            lambda: pe.calibrate_variance(VMF, PAIRS[:, :1] + [0, 0], SAME),
            ValueError,
            "calibrate_variance: pairs hold row 0 with itself, expected different rows",
        ),
        (
            lambda: pe.calibrate_variance(EQUAL, PAIRS, SAME),
            ValueError,
            "calibrate_variance: mu of the same pairs must be finite and not",
        ),
        (
            lambda: pe.calibrate_variance(pe.Normal(Z, np.zeros(4)), PAIRS, SAME),
            ValueError,
            "calibrate_variance: var of the same pairs must be finite, >= 0 and not all 0",
        ),
        (
            lambda: pe.calibrate_variance(pe.Normal(Z, np.array([0.0, 0, 1, 1])), PAIRS, SAME, offset=False),
            ValueError,
            "calibrate_variance: var of a same pair is 0, which no factor changes; offset=True adds to it",
        ),
        (
            lambda: pe.calibrate_variance(pe.VonMisesFisher(np.eye(4, 3)[[0, 0, 1, 1]], np.ones(4)), PAIRS, SAME),
            ValueError,
            "calibrate_variance: no factor from 1e-8 to 1e8 is likeliest: same pairs are all equal or unlike",
        ),
        (
            lambda: pe.calibrate_variance(pe.VonMisesFisher(np.eye(3)[[0, 1, 1, 2]], np.ones(4)), PAIRS, SAME),
            ValueError,
            "calibrate_variance: no factor from 1e-8 to 1e8 is likeliest: same pairs are all equal or unlike",
        ),
        (lambda: pe.fit_shift(Z, PAIRS, SAME), TypeError, "fit_shift: d must be a distribution, got ndarray"),
        (
            lambda: pe.fit_shift(VMF, PAIRS, SAME),
            ValueError,
            "fit_shift: labels name no pair of different identities, expected at least one",
        ),
        (lambda: pe.fit_shift(VMF, PAIRS + 1, SAME), ValueError, "fit_shift: pairs hold 4, expected rows of d, 0 .. 3"),
        (
            lambda: pe.fit_shift(VMF, PAIRS[:, :1] + [0, 0], [0, 1]),
            ValueError,
            "fit_shift: pairs hold row 2 with itself, expected different rows",
        ),
        (
            lambda: pe.Calibration(2.0, 0.0, "Normal")(VMF),
            TypeError,
            "calibrate_variance: fitted on Normal, cannot be applied to VonMisesFisher",
        ),
    ],
)
def test_bad_input_gets_one_line(function, error, begins):
    with pytest.raises(error) as caught:
        function()
    assert str(caught.value).startswith(begins), str(caught.value)
    assert "\n" not in str(caught.value)
