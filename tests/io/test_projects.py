"""Files of other projects, and several embeddings of an item, become the distributions that they mean."""

import re

import ml_dtypes
import numpy as np
import pytest
import torch
from scipy import stats

import peaccel as pe
from peaccel import io

RNG = np.random.default_rng(0)
MU = 3 * RNG.standard_normal((5, 4))
UNIT = MU / np.linalg.norm(MU, axis=1, keepdims=True)
VAR = np.exp(RNG.uniform(-12, -1, (5, 4)))
LENGTH = np.linalg.norm(MU, axis=1)


def kept(tmp_path, name, **arrays):
    """The path of a file of these arrays."""
    path = tmp_path / name
    np.savez(path, **arrays) if path.suffix == ".npz" else np.save(path, *arrays.values())
    return path


# -- PFE, PCME++, ProLIP, URL, norms -----------------------------------------------------------------------------------


@pytest.mark.parametrize("var", [VAR, VAR[:, 0]], ids=["diagonal", "isotropic"])
def test_variances_of_pfe_are_variances(tmp_path, var):
    ways = [
        io.from_pfe(MU, var),
        io.from_pfe({"mu": MU, "sigma_sq": var}),
        io.from_pfe(kept(tmp_path, "pfe.npz", mu=MU, sigma_sq=var)),
        io.from_pfe(kept(tmp_path, "mu.npy", mu=MU), str(kept(tmp_path, "var.npy", var=var))),
    ]
    if var.ndim == 2:
        both = np.c_[MU, var]
        ways += [io.from_pfe(both), io.from_pfe(kept(tmp_path, "both.npy", both=both))]
    for d in ways:
        assert type(d) is pe.Normal and d.mu.dtype == np.float64
        np.testing.assert_allclose(d.mu, UNIT, rtol=1e-15)
        np.testing.assert_array_equal(d.var, var)


@pytest.mark.parametrize("read", [io.from_pcmepp, io.from_prolip])
def test_std_of_pcmepp_and_prolip_is_the_logarithm_of_a_variance(tmp_path, read):
    std = np.log(VAR)
    for d in (
        read(MU, std),
        read({"mean": MU, "std": std, "other": 0}),
        read(kept(tmp_path, "out.npz", mean=MU, std=std)),
        read(torch.tensor(MU, requires_grad=True), torch.tensor(std)),
    ):
        assert type(d) is pe.Normal and isinstance(d.mu, np.ndarray)
        np.testing.assert_allclose(d.mu, UNIT, rtol=1e-15)
        np.testing.assert_allclose(d.var, VAR, rtol=1e-13)


@pytest.mark.parametrize("column", [False, True])
def test_unc_of_url_is_one_over_kappa(tmp_path, column):
    unc = VAR[:, :1] if column else VAR[:, 0]
    for d in (
        io.from_url(MU, unc),
        io.from_url({"features": MU, "unc": unc}),
        io.from_url(kept(tmp_path, "features.npy", features=MU), kept(tmp_path, "unc.npy", unc=unc)),
    ):
        assert type(d) is pe.VonMisesFisher
        np.testing.assert_allclose(d.mu, UNIT, rtol=1e-15)
        np.testing.assert_allclose(d.kappa, 1 / VAR[:, 0], rtol=1e-15)


def test_norms_are_concentrations(tmp_path):
    for d in (io.from_norms(MU), io.from_norms(kept(tmp_path, "features.npy", features=MU))):
        assert type(d) is pe.VonMisesFisher
        np.testing.assert_allclose(d.mu, UNIT, rtol=1e-15)
        np.testing.assert_allclose(d.kappa, LENGTH, rtol=1e-15)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, np.float16, ml_dtypes.bfloat16, np.float32])
def test_halves_become_float32_in_which_small_variances_have_a_number(dtype):
    std = np.full((5, 4), -40.0)  # of float16 the exponential is 0
    library = torch.tensor if isinstance(dtype, torch.dtype) else np.asarray
    d = io.from_pcmepp(library(MU, dtype=dtype), library(std, dtype=dtype))
    assert d.mu.dtype == d.var.dtype == np.float32
    np.testing.assert_allclose(d.var, np.exp(-40), rtol=1e-6)


@pytest.mark.parametrize("read", [io.from_pfe, io.from_pcmepp, io.from_prolip, io.from_url])
def test_both_arrays_come_in_the_wider_dtype_of_the_two(read):
    of_log = read in (io.from_pcmepp, io.from_prolip)
    beside = np.log(VAR) if of_log else VAR[:, 0]
    expected = read(MU, beside)
    for wide in (0, 1):
        given = [x if i == wide else x.astype(np.float32) for i, x in enumerate((MU, beside))]
        d = read(*given)
        assert all(x.dtype == np.float64 for x in d.arrays)
        exact = d.arrays[wide] - expected.arrays[wide]
        assert np.abs(exact / expected.arrays[wide]).max() < 1e-14  # what was wide has kept its digits


def test_features_of_any_float32_length_have_a_direction():
    for scale in (1e-30, 1e30):
        d = io.from_norms((scale * MU).astype(np.float32))
        np.testing.assert_allclose(d.mu, UNIT, rtol=1e-6)
        np.testing.assert_allclose(d.kappa, scale * LENGTH, rtol=1e-6)


def changed(x, row, value):
    x = x.copy()
    x[row] = value
    return x


LOG = np.log(VAR)
WRONG = {
    "Normal: var is negative in row 0: a variance is expected, not its logarithm": lambda: io.from_pfe(MU, LOG),
    "mu alone has shape (5, 5), expected means beside variances (N, 2 D)": lambda: io.from_pfe(np.ones((5, 5))),
    "sigma_sq has shape (4, 4), expected (5, 4) or (5,) like mu": lambda: io.from_pfe(MU, VAR[:4]),
    "mu has shape (4,), expected (N, D)": lambda: io.from_pfe(MU[0], VAR[0]),
    "sigma_sq is not finite in row 3": lambda: io.from_pfe(MU, changed(VAR, 3, np.nan)),
    "mu has length 0 in row 2, expected a direction": lambda: io.from_pfe(changed(MU, 2, 0), VAR),
    "std holds numbers from ": lambda: io.from_pcmepp(MU, VAR),
    "std holds numbers from 0 on, expected log sigma^2, below 0; sigma^2 belongs in pe.Normal": (
        lambda: io.from_prolip(MU, changed(VAR, 0, 0))
    ),
    "Normal: var is not finite in row 1": lambda: io.from_prolip(MU, changed(LOG, 1, 1000)),
    "key std is missing, found mean, var; expected mean and std": lambda: io.from_prolip({"mean": MU, "var": VAR}),
    "key mean is missing, found none; expected mean and std": lambda: io.from_pcmepp({}),
    "unc is 0 in row 4, expected 1 / kappa, above 0": lambda: io.from_url(MU, changed(LENGTH, 4, 0)),
    "unc has shape (5, 4), expected (5,)": lambda: io.from_url(MU, VAR),
    "features all have length 1, expected them as they were before normalisation": lambda: io.from_norms(UNIT),
    "features is not finite in row 0": lambda: io.from_norms(changed(MU, 0, np.inf)),
    "features has shape (5,), expected (N, D)": lambda: io.from_norms(LENGTH),
}


@pytest.mark.parametrize("message", WRONG)
def test_what_cannot_be_right_is_refused(message):
    with pytest.raises(ValueError, match=r"^from_\w+: " + re.escape(message)) as caught:
        WRONG[message]()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: io.from_pcmepp(MU),
            "from_pcmepp: std must be given, or both in a dict or an .npz file, got ndarray al",
        ),
        (
            lambda: io.from_url("features.npy"),
            "from_url: unc must be given, or both in a dict or an .npz file, got str a",
        ),
        (lambda: io.from_pfe(MU, [[1.0], [2.0, 3.0]]), "from_pfe: sigma_sq must be an array, got list"),
        (lambda: io.from_norms(MU.astype(str)), "from_norms: features must be an array of floats, got ndarray of <U"),
        (lambda: io.from_norms(MU + 0j), "from_norms: features must be an array of floats, got ndarray of complex128"),
    ],
)
def test_what_is_no_array_is_refused(call, message):
    with pytest.raises(TypeError, match="^" + re.escape(message)):
        call()


# -- several embeddings of an item -------------------------------------------------------------------------------------


def ensemble(members, items, dim, seed=0):
    """Embeddings [M, N, D] of isotropic noise, and the true variance of each item, lognormal."""
    rng = np.random.default_rng(seed)
    var = np.exp(0.8 * rng.standard_normal(items))
    noise = rng.standard_normal((members, items, dim)) * np.sqrt(var)[:, None]
    return 5 * rng.standard_normal((items, dim)) + noise, var


def test_an_ensemble_gives_its_mean_and_the_variance_of_one_embedding():
    x, _ = ensemble(4, 300, 16)
    plain = x.var(0, ddof=1)
    for given in (x, list(x), [torch.tensor(member) for member in x]):
        d = io.from_ensemble(given)
        np.testing.assert_allclose(d.mu, x.mean(0), rtol=1e-12, atol=1e-14)
        # Drawn to the mean, which stays; n = 3 * 16 degrees of freedom leave most of what was found.
        np.testing.assert_allclose(d.var.mean(), plain.mean(), rtol=1e-12)
        slope = np.polyfit(plain.mean(1), d.var, 1)[0]
        assert 0.9 < slope < 1
    d = io.from_ensemble(x.astype(np.float32), diagonal=True)
    assert d.var.shape == (300, 16) and d.var.dtype == np.float32
    np.testing.assert_allclose(d.var.mean(0), plain.mean(0), rtol=1e-5)


@pytest.mark.parametrize("correlated", [False, True])
def test_shrunk_variances_are_nearer_the_truth_than_found_ones_and_than_their_mean(correlated):
    """Embeddings that vary in 3 directions only say little of the variance, however many dimensions they have."""
    x, var = ensemble(3, 2000, 3 if correlated else 4)
    if correlated:
        x = x @ np.linalg.qr(np.random.default_rng(1).standard_normal((64, 3)))[0].T * np.sqrt(64 / 3)
    found = x.var(0, ddof=1).mean(1)
    error = ((io.from_ensemble(x).var - var) ** 2).mean()
    freedom = 2 * (3 if correlated else 4)
    best = min(((found.mean() + w * (found - found.mean()) - var) ** 2).mean() for w in np.linspace(0, 1, 101))
    assert error < 1.03 * best  # the weight is estimated to a few percent, the loss is flat there
    assert error < 0.9 * min(((found - var) ** 2).mean(), ((var.mean() - var) ** 2).mean())
    assert ((found - var) ** 2).mean() == pytest.approx((2 * var**2).mean() / freedom, rel=0.25)


def test_items_of_one_variance_get_one_variance():
    x = np.random.default_rng(2).standard_normal((2, 4000, 8))
    spread = io.from_ensemble(x).var.std() / x.var(0, ddof=1).mean(1).std()
    assert spread < 0.3  # as found they differ by chance alone: the weight is 0 up to the error of its estimate


def test_directions_of_an_ensemble_find_the_concentration():
    rng = np.random.default_rng(3)
    kappa = np.exp(rng.uniform(np.log(100), np.log(1000), 400))
    mean = rng.standard_normal((400, 16))
    mean /= np.linalg.norm(mean, axis=1, keepdims=True)
    x = pe.sample(pe.VonMisesFisher(mean, kappa), 5, seed=1)
    d = io.from_ensemble(7 * x, kind="vmf")  # lengths do not matter
    assert type(d) is pe.VonMisesFisher
    np.testing.assert_allclose(d.mu, x.mean(0) / np.linalg.norm(x.mean(0), axis=1, keepdims=True), rtol=1e-12)
    # As found, 1 / kappa would err by 2 / (4 * 15) of its square; drawn to the mean it is nearer, also to this one's.
    assert (1 / d.kappa).mean() == pytest.approx((1 / kappa).mean(), rel=0.03)
    assert ((1 / d.kappa - 1 / kappa) ** 2).mean() < 0.95 * 2 / (4 * 15) * (1 / kappa**2).mean()
    assert stats.spearmanr(d.kappa, kappa).statistic > 0.95


@pytest.mark.parametrize(("dim", "error"), [(2, 0.07), (8, 0.021), (32, 0.006), (512, 4e-4)])
def test_the_closed_form_of_kappa_is_as_near_as_it_says(dim, error):
    """Of two embeddings with a mean cosine of r^2 each, the kappa with A(kappa) = r."""
    kappa = np.geomspace(0.1, 1e4, 50)
    r = pe.special.iv_ratio(dim / 2, kappa)
    x = np.zeros((2, 50, dim))
    x[:, :, 0] = np.sqrt((1 + r**2) / 2)
    x[:, :, 1] = np.array([[1], [-1]]) * np.sqrt((1 - r**2) / 2)
    for i in range(50):
        found = io.from_ensemble(x[:, i : i + 1], kind="vmf").kappa[0]
        assert found == pytest.approx(kappa[i], rel=error)


def test_directions_no_more_alike_than_chance_have_no_concentration():
    d = io.from_ensemble(np.array([[[1.0, 0, 0]], [[0, 1, 0]]]), kind="vmf")
    assert d.kappa[0] == 0


ENSEMBLE = ensemble(3, 6, 4)[0]
WRONG_ENSEMBLES = {
    "embeddings have shape (6, 4), expected (M, N, D) with M >= 2": lambda: io.from_ensemble(ENSEMBLE[0]),
    "embeddings have shape (1, 6, 4), expected (M, N, D) with M >= 2": lambda: io.from_ensemble(ENSEMBLE[:1]),
    "embeddings have shapes (6, 4) and (5, 4), expected one for all": (
        lambda: io.from_ensemble([ENSEMBLE[0], ENSEMBLE[1, :5]])
    ),
    "embeddings are not finite in row 2 of embedding 1": (
        lambda: io.from_ensemble(changed(ENSEMBLE, (1, 2, 0), np.nan))
    ),
    "embeddings of every item are equal, expected several": lambda: io.from_ensemble(ENSEMBLE[[0, 0]]),
    "embeddings of every item are equal in dimension 1, which has no variance": (
        lambda: io.from_ensemble(ENSEMBLE * np.array([1, 0, 1, 1]), diagonal=True)
    ),
    "embeddings of row 3 have length 0": lambda: io.from_ensemble(changed(ENSEMBLE, (0, 3), 0), kind="vmf"),
    "embeddings of row 0 have length 0, or add up to it": (
        lambda: io.from_ensemble(np.array([[[1.0, 0]], [[-1.0, 0]]]), kind="vmf")
    ),
    "kind is 'gauss', expected 'normal' or 'vmf'": lambda: io.from_ensemble(ENSEMBLE, kind="gauss"),
    "diagonal is True, expected False for 'vmf'": lambda: io.from_ensemble(ENSEMBLE, kind="vmf", diagonal=True),
}


@pytest.mark.parametrize("message", WRONG_ENSEMBLES)
def test_what_is_no_ensemble_is_refused(message):
    with pytest.raises(ValueError, match="^from_ensemble: " + re.escape(message)) as caught:
        WRONG_ENSEMBLES[message]()
    assert "\n" not in str(caught.value)


def test_words_are_no_embeddings():
    with pytest.raises(TypeError, match=r"^from_ensemble: embeddings must be arrays of floats, got <U1"):
        io.from_ensemble(["a", "b"])


@pytest.mark.parametrize(("dtype", "size"), [("f4", 3e38), ("f4", 1e-44), ("f8", 1.7e308), ("f8", 1e-320)])
def test_directions_of_lengths_that_overflow_or_vanish(dtype, size):
    """They were rows of zeros."""
    mu = np.array([[1, -1, 1, 1]], dtype) * np.dtype(dtype).type(size)
    assert pe.io.from_pfe(mu, np.ones((1, 4), dtype)).mu.tolist() == [[0.5, -0.5, 0.5, 0.5]]
