"""log_prob, entropy and kl against scipy, arb, quadrature on spheres and simulation; derivatives, dtypes, bad input."""

import numpy as np
import pytest
import reference
import torch
from conftest import EPS, NUMPY, as_library, build, make, to_numpy
from quadrature import SPHERES
from scipy import stats

import peaccel as pe

LIBRARIES = ("numpy", "torch")
NORMALS = ("normal_isotropic", "normal_diagonal")
HARD_DIMS = (2, 3, 4, 16, 128, 512, 2048)
HARD_KAPPAS = np.array([0, 1e-8, 1e-3, 0.5, 1.9, 2, 3, 60, 127.9, 128, 700, 2047, 2049, 1e4, 1e6, 1e8])
WIDE = reference.WIDE


def at(d, z):
    """log_prob of every item at every row of z, [S, N]."""
    return pe.log_prob(d, np.repeat(z[:, None], len(d), 1))


# -- log_prob ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("kind", NORMALS)
def test_log_prob_of_normals_is_scipys(kind, library):
    d = make(kind, 5, 7)
    z = np.random.default_rng(1).standard_normal((3, 5, 7))
    value = [
        [stats.multivariate_normal(m, v).logpdf(x) for m, v, x in zip(d.mu, d.var, rows, strict=True)] for rows in z
    ]
    given = build(kind, *d.arrays, library=library)
    found = pe.log_prob(given, as_library(z, library))
    assert type(found) is type(given.mu)
    np.testing.assert_allclose(to_numpy(found), value, rtol=1e-14, atol=1e-13)
    # One row per item is the first of them.
    np.testing.assert_array_equal(to_numpy(pe.log_prob(given, as_library(z[0], library))), to_numpy(found)[0])


@pytest.mark.parametrize("dim", HARD_DIMS)
def test_log_prob_of_vmf_is_right_to_rounding_on_hard_inputs(dim):
    rng = np.random.default_rng(dim)
    mu = np.tile(np.eye(1, dim), (len(HARD_KAPPAS), 1))
    # Points some standard deviations off the mean, where all of the density is.
    angle = np.minimum(1, 2 * rng.random(len(HARD_KAPPAS)) * np.sqrt(dim / (HARD_KAPPAS + 1)))
    z = np.zeros_like(mu)
    z[:, 0], z[:, -1] = np.cos(angle), np.sin(angle)
    found = pe.log_prob(pe.VonMisesFisher(mu, HARD_KAPPAS), z)
    kappa, wide = HARD_KAPPAS.astype(WIDE), ((mu.astype(WIDE) - z) ** 2).sum(-1)
    value = reference.scaled_log_norm(WIDE(dim), kappa) - kappa * wide / 2
    # Five roundings of the sum of absolute terms, which are of the size of D and of kappa |mu - z|^2 / 2.
    bound = 5 * EPS["float64"] * (np.maximum(dim, np.abs(value)) + kappa * wide / 2)
    assert (np.abs(found - value) <= bound).all()


@pytest.mark.parametrize("dim", [2, 3, 10, 64])
def test_log_prob_of_vmf_is_scipys_where_scipy_is_finite(dim):
    d = make("vmf", 6, dim)
    z = make("vmf", 6, dim, 9).mu
    value = [stats.vonmises_fisher(m, k).logpdf(x) for m, k, x in zip(d.mu, d.kappa, z, strict=True)]
    assert np.isfinite(value).all()
    np.testing.assert_allclose(pe.log_prob(d, z), value, rtol=1e-12)


@pytest.mark.parametrize("dim", [2, 3])
@pytest.mark.parametrize("kind", ["vmf", "nivmf"])
def test_densities_on_the_sphere_integrate_to_1(kind, dim):
    rows, weights = SPHERES[dim]
    d = make(kind, 8, dim)
    np.testing.assert_allclose(weights @ np.exp(at(d, rows)), 1, rtol=1e-12)
    uniform = pe.VonMisesFisher(d.mu, np.zeros(8))
    np.testing.assert_allclose(at(uniform, rows), -np.log(weights.sum()), rtol=1e-14)


@pytest.mark.parametrize("dim", [2, 5, 300])
def test_non_isotropic_vmf_of_one_kappa_is_vmf(dim):
    scale = make("vmf", 6, dim).kappa * dim
    d = make("vmf", 6, dim)
    vmf = pe.VonMisesFisher(d.mu, scale)
    same = pe.NonIsotropicVonMisesFisher(d.mu, np.repeat(scale[:, None], dim, 1))
    z = make("vmf", 6, dim, 3).mu
    value = pe.log_prob(vmf, z)
    np.testing.assert_allclose(pe.log_prob(same, z), value, rtol=1e-12)


@pytest.mark.parametrize("dim", [2, 16, 512])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_log_prob_of_non_isotropic_vmf_is_right_to_rounding(dim, dtype):
    rng = np.random.default_rng(dim)
    scale = np.geomspace(1e-4, 1e7, 12)[:, None]
    mu = make("vmf", 12, dim).mu
    z = mu + rng.standard_normal(mu.shape) / np.sqrt(scale + dim)
    arrays = (mu, scale * np.exp(rng.uniform(-1, 1, mu.shape)), z / np.linalg.norm(z, axis=1, keepdims=True))
    mu, kappa, z = (x.astype(dtype) for x in arrays)
    found = pe.log_prob(pe.NonIsotropicVonMisesFisher(mu, kappa), z)
    mu, kappa, z = (x.astype(WIDE) for x in (mu, kappa, z))
    peak, length = (np.sqrt(((kappa * x) ** 2).sum(-1)) for x in (mu, z))
    turned = peak * ((kappa * z / length[:, None] - kappa * mu / peak[:, None]) ** 2).sum(-1) / 2
    norm, logs = reference.scaled_log_norm(WIDE(dim), peak), np.log(kappa)
    size = np.abs(norm) + turned + np.abs(logs).sum(-1) + dim * np.abs(np.log(length))
    value = norm - turned + logs.sum(-1) - dim * np.log(length)
    # Some roundings of each term, of which they take 2 together.
    assert (np.abs(found - value) <= 3 * EPS[dtype] * size).all()


# -- entropy -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", NORMALS)
def test_entropy_of_normals_is_scipys(kind):
    d = make(kind, 5, 7)
    value = [stats.multivariate_normal(m, v).entropy() for m, v in zip(d.mu, d.var, strict=True)]
    np.testing.assert_allclose(pe.entropy(d), value, rtol=1e-14)


@reference.precise
def vmf_entropy(dim, k):
    v = dim / 2 - 1
    ratio = k.bessel_i(v + 1, scaled=True) / k.bessel_i(v, scaled=True)
    return (v + 1) * (2 * k.pi()).log() - v * k.log() + k.bessel_i(v, scaled=True).log() + k * (1 - ratio)


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("dim", HARD_DIMS)
def test_entropy_of_vmf_is_right_to_rounding_on_hard_inputs(dim, library):
    kappa = HARD_KAPPAS[1:]
    found = pe.entropy(build("vmf", np.tile(np.eye(1, dim), (len(kappa), 1)), kappa, library=library))
    value = vmf_entropy(WIDE(dim), kappa.astype(WIDE))
    assert (np.abs(to_numpy(found) - value) <= 1e-15 * np.maximum(dim, np.abs(value))).all()
    uniform = pe.entropy(build("vmf", np.eye(1, dim), np.zeros(1), library=library))
    assert uniform == pytest.approx(float(-reference.scaled_log_norm(WIDE(dim), WIDE(0))), rel=1e-14)


def test_entropy_is_minus_the_mean_of_log_prob():
    rows, weights = SPHERES[3]
    d = make("vmf", 8, 3)
    found = at(d, rows)
    np.testing.assert_allclose(pe.entropy(d), -(weights @ (np.exp(found) * found)), rtol=1e-12)


# -- kl ----------------------------------------------------------------------------------------------------------------


@reference.precise
def normal_kl(m1, v1, m2, v2):
    return (v1 / v2 + (m1 - m2) ** 2 / v2 - 1 + (v2 / v1).log()) / 2


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("p", NORMALS)
@pytest.mark.parametrize("q", NORMALS)
def test_kl_of_normals_is_right_to_rounding_down_to_equal_ones(p, q, library):
    for gap in (1.0, 0.3, 0.2, 1e-2, 1e-4, 1e-8, 1e-12):
        first, second = make(p, 12, 9), make(q, 12, 9, 5)
        # Near-equal: each variance of q off one of p's (the first where p is diagonal and q is not) by a share.
        var = np.ones((12, 9)) * first.var.reshape(12, -1)
        var = (var if q == "normal_diagonal" else var[:, 0]) * (1 + gap * (second.var - 2) / 2)
        second = pe.Normal(first.mu + gap * second.mu, var)
        columns = [np.repeat(d.var.reshape(12, -1), 9 // d.var.reshape(12, -1).shape[1], 1) for d in (first, second)]
        value = normal_kl(first.mu, columns[0], second.mu, columns[1]).sum(-1)
        found = pe.kl(*(build(d.kind, *d.arrays, library=library) for d in (first, second)))
        # Each term is right to some roundings of itself, and all are positive.
        np.testing.assert_allclose(to_numpy(found), value.astype(float), rtol=12 * EPS["float64"])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_kl_keeps_its_digits_where_near_and_far_rows_share_a_block_and_there_are_many(dtype):
    n, dim = 5000, 33
    rng = np.random.default_rng(0)
    gap = 10.0 ** rng.integers(-7 if dtype == "float32" else -4, 1, (n, 1))
    mu, var = rng.standard_normal((n, dim)), np.exp(rng.standard_normal((n, dim)))
    other = mu + gap * rng.standard_normal((n, dim)), var * np.exp(gap * rng.standard_normal((n, dim)))
    a, v, b, w = (x.astype(dtype) for x in (mu, var, *other))
    found = pe.kl(pe.Normal(a, v), pe.Normal(b, w))
    a, v, b, w = (x.astype(np.longdouble) for x in (a, v, b, w))
    value = ((v - w) / w - np.log1p((v - w) / w) + (a - b) ** 2 / w).sum(1) / 2
    # A rounding to the dtype, and some of float64 of the terms that are not negative.
    rounding = 12 * EPS["float64"] + (EPS["float32"] if dtype == "float32" else 0)
    np.testing.assert_allclose(found, value.astype(float), rtol=rounding)


@pytest.mark.usefixtures("unlooked")
def test_kl_of_zero_variances_is_infinite_and_of_negative_ones_nan():
    mu, one, some = np.zeros((4, 3)), np.ones((4, 3)), np.ones((4, 3))
    some[:, 1] = 0, -1, 1, np.nan
    np.testing.assert_array_equal(pe.kl(pe.Normal(mu, some), pe.Normal(mu, one)), [np.inf, np.nan, 0, np.nan])
    np.testing.assert_array_equal(pe.kl(pe.Normal(mu, one), pe.Normal(mu, some)), [np.inf, np.nan, 0, np.nan])


@pytest.mark.parametrize("kind", NORMALS)
def test_kl_of_normals_is_the_mean_log_ratio_of_draws(kind):
    p, q = make(kind, 4, 3), make(kind, 4, 3, 5)
    noise = np.random.default_rng(0).standard_normal((200_000, 4, 3))
    z = p.mu + noise * np.sqrt(p.var if p.var.ndim == 2 else p.var[:, None])
    ratio = pe.log_prob(p, z) - pe.log_prob(q, z)
    error = ratio.std(0) / len(noise) ** 0.5
    assert (np.abs(pe.kl(p, q) - ratio.mean(0)) < 4.5 * error).all()


@reference.precise
def vmf_kl(dim, kappa1, kappa2, square):
    v = dim / 2 - 1
    bessel1, bessel2 = (k.bessel_i(v, scaled=True) for k in (kappa1, kappa2))
    logs = v * (kappa1 / kappa2).log() - (bessel1 / bessel2).log() - (kappa1 - kappa2)
    return logs + kappa1.bessel_i(v + 1, scaled=True) / bessel1 * (kappa1 - kappa2 * (1 - square / 2))


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("dim", HARD_DIMS)
def test_kl_of_vmf_is_right_to_rounding_down_to_equal_ones(dim, library):
    rng = np.random.default_rng(dim)
    kappa = np.exp(rng.uniform(np.log(1e-8), np.log(1e8), 300))
    ratio = 1 + np.exp(rng.uniform(np.log(1e-12), np.log(1e4), 300))
    pairs = np.r_[np.c_[kappa, kappa * ratio], np.c_[kappa, kappa / ratio], [[1e-8, 1e8], [1e8, 1e-8]]]
    turn = np.r_[np.zeros(300), np.exp(rng.uniform(np.log(1e-8), 0, 302))]
    mu, other = np.tile(np.eye(1, dim), (602, 1)), np.zeros((602, dim))
    other[:, 0], other[:, -1] = np.cos(turn), np.sin(turn)
    square = ((mu.astype(WIDE) - other) ** 2).sum(-1)
    value = vmf_kl(WIDE(dim), *pairs.T.astype(WIDE), square)
    found = pe.kl(*(build("vmf", m, k, library=library) for m, k in zip((mu, other), pairs.T, strict=True)))
    np.testing.assert_allclose(to_numpy(found), value.astype(float), rtol=1e-14)


@pytest.mark.parametrize("kind", [*NORMALS, "vmf"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_kl_of_an_item_from_itself_is_0(kind, dtype):
    d = make(kind, 50, 33, dtype=dtype)
    np.testing.assert_array_equal(pe.kl(d, d), 0)


def test_kl_of_vmf_is_the_integral_over_the_sphere_and_from_uniform_the_lost_entropy():
    rows, weights = SPHERES[3]
    p, q = make("vmf", 8, 3), make("vmf", 8, 3, 5)
    first, second = at(p, rows), at(q, rows)
    np.testing.assert_allclose(pe.kl(p, q), weights @ (np.exp(first) * (first - second)), rtol=1e-11)
    uniform = pe.VonMisesFisher(q.mu, np.zeros(8))
    np.testing.assert_allclose(pe.kl(p, uniform), np.log(4 * np.pi) - pe.entropy(p), rtol=1e-12)


# -- all of them -------------------------------------------------------------------------------------------------------

CALLS = {
    "log_prob normal_isotropic": (pe.log_prob, "normal_isotropic", None),
    "log_prob normal_diagonal": (pe.log_prob, "normal_diagonal", None),
    "log_prob vmf": (pe.log_prob, "vmf", None),
    "log_prob nivmf": (pe.log_prob, "nivmf", None),
    **{f"entropy {kind}": (pe.entropy, kind, False) for kind in (*NORMALS, "vmf")},
    **{f"kl {p} {q}": (pe.kl, p, q) for p in NORMALS for q in NORMALS},
    "kl vmf": (pe.kl, "vmf", "vmf"),
    **{f"match_variance {q}": (pe.match_variance, q, "normal_diagonal") for q in (*NORMALS, "point")},
}


def call(name, d, z=None, other=None):
    function, _, second = CALLS[name]
    return function(d, *([z] if second is None else [other] if second else []))


def inputs(name, **how):
    _, kind, second = CALLS[name]
    z = as_library(make("vmf", 5, 4, 7).mu, how.get("library", "numpy"), how.get("dtype", "float64"))
    return make(kind, 5, 4, **how), z, make(second or kind, 5, 4, 8, **how)


@pytest.mark.parametrize("name", CALLS)
def test_first_and_second_derivatives(name):
    d, z, other = inputs(name, library="torch")
    count, second = len(d.arrays), CALLS[name][2]
    rest = [z] if second is None else [*other.arrays] if second else []
    used = [x.clone().requires_grad_() for x in (*d.arrays, *rest)]

    def function(*arrays):
        rest = arrays[count:]
        return call(name, type(d)(*arrays[:count]), *rest[:1], type(other)(*rest) if second else None)

    assert torch.autograd.gradcheck(function, used)
    assert torch.autograd.gradgradcheck(function, used)


@pytest.mark.slow
def test_compiled_whole_they_compute_the_same():
    p, q = make("vmf", 5, 4, library="torch"), make("vmf", 5, 4, 8, library="torch")

    def function(kappa):
        d = pe.VonMisesFisher(p.mu, kappa)
        return (
            pe.kl(d, q) + pe.log_prob(d, q.mu) + pe.entropy(d) + pe.kl(pe.Normal(p.mu, kappa), pe.Normal(q.mu, kappa))
        )

    pe.enable_torch()
    kappa = p.kappa.clone().requires_grad_()
    values = [f(kappa) for f in (function, torch.compile(function, fullgraph=True, backend="aot_eager"))]
    np.testing.assert_allclose(*(x.detach() for x in values), rtol=1e-14)
    np.testing.assert_allclose(*(torch.autograd.grad(x.sum(), kappa)[0] for x in values), rtol=1e-14)


@pytest.mark.parametrize("kappa", [0.0, 1e-6, 3.9, 4.0, 4.1, 1e5])
def test_derivatives_in_kappa_exist_at_both_ends_and_where_formulas_change(kappa):
    mu, z = (torch.eye(4, dtype=torch.float64)[i : i + 1] for i in (0, 1))
    k = torch.tensor([kappa], dtype=torch.float64, requires_grad=True)
    ratio = pe.special.iv_ratio(2.0, np.array([kappa]))
    (found,) = torch.autograd.grad(pe.log_prob(pe.VonMisesFisher(mu, k), z).sum(), k)
    # Derivatives of terms near 1, as A = 1 - (1 - A) is of kappa near 0: a rounding or two of 1.
    np.testing.assert_allclose(found, -ratio, rtol=1e-12, atol=4e-16)
    slope = 1 / 4 if kappa == 0 else 1 - ratio**2 - 3 * ratio / kappa
    (found,) = torch.autograd.grad(pe.entropy(pe.VonMisesFisher(mu, k)).sum(), k)
    np.testing.assert_allclose(found, -kappa * slope, rtol=1e-5, atol=4e-16)  # the expression for A' cancels at 1e5
    q = pe.VonMisesFisher(z, torch.tensor([2.0], dtype=torch.float64, requires_grad=True))
    found = torch.autograd.grad(pe.kl(pe.VonMisesFisher(mu, k), q).sum(), (k, q.kappa))
    np.testing.assert_allclose(found[0], kappa * slope, rtol=1e-5, atol=4e-16)
    np.testing.assert_allclose(found[1], pe.special.iv_ratio(2.0, 2.0), rtol=1e-12)  # A(kq) - A(kp) cos, cos = 0


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("name", CALLS)
def test_results_come_in_the_compute_dtype_and_are_those_of_float64(name, library):
    for dtype in NUMPY:
        given = inputs(name, library=library, dtype=dtype)
        found = call(name, *given)
        assert type(found) is type(given[0].mu)
        assert str(found.dtype).endswith("float64" if dtype == "float64" else "float32")
        wide = [type(x)(*map(to_numpy, x.arrays)) if isinstance(x, pe.Normal.__base__) else to_numpy(x) for x in given]
        # Some roundings of terms, which here are of the size of 1 to 100.
        eps = EPS.get(dtype, EPS["float32"])
        np.testing.assert_allclose(to_numpy(found), call(name, *wide), rtol=4 * eps, atol=100 * eps)


@pytest.mark.parametrize("dim", [16, 512])
def test_float32_keeps_its_digits_at_high_concentration(dim):
    # By inner products, 1 - mu.z of float32 would leave kappa times 1e-7 of nats, here 10 at 1e8.
    rng = np.random.default_rng(0)
    mu = make("vmf", 20, dim).mu.astype(np.float32)
    kappa = np.geomspace(10, 1e8, 20).astype(np.float32)
    z = (mu + rng.standard_normal(mu.shape) / np.sqrt(kappa + dim)[:, None]).astype(np.float32)
    square = ((mu.astype(WIDE) - z) ** 2).sum(-1)
    value = reference.scaled_log_norm(WIDE(dim), kappa.astype(WIDE)) - kappa.astype(WIDE) * square / 2
    found = pe.log_prob(pe.VonMisesFisher(mu, kappa), z)
    # mu - z rounds by half a unit of itself, three times over in its square's half.
    bound = 4 * EPS["float32"] * (np.abs(value) + kappa * square / 2)
    assert (np.abs(found - value) <= bound).all()


ISO, VMF, NIVMF = make("normal_isotropic", 5, 4), make("vmf", 5, 4), make("nivmf", 5, 4)
POINT, SCALED, X = make("point", 5, 4), make("scaled", 5, 4), np.zeros((5, 4))
TENSORS = make("vmf", 5, 4, library="torch")


@pytest.mark.parametrize(
    ("function", "error", "begins"),
    [
        (lambda: pe.log_prob(POINT, X), TypeError, "log_prob: d must be a distribution with a density (normal_iso"),
        (lambda: pe.log_prob(SCALED, X), TypeError, "log_prob: d must be a distribution with a density (normal_iso"),
        (lambda: pe.log_prob(X, X), TypeError, "log_prob: d must be a distribution with a density (normal_isotropic, "),
        (lambda: pe.log_prob(ISO, None), TypeError, "log_prob: z must be a numpy array or a torch tensor, got None"),
        (
            lambda: pe.log_prob(ISO, X[0]),
            ValueError,
            "log_prob: z has shape (4,), expected (5, 4) or (S, 5, 4) like mu",
        ),
        (lambda: pe.log_prob(ISO, X[:, :3]), ValueError, "log_prob: z has shape (5, 3), expected (5, 4) or (S, 5, 4)"),
        (lambda: pe.log_prob(ISO, X[None, :4]), ValueError, "log_prob: z has shape (1, 4, 4), expected (5, 4) or (S, "),
        (
            lambda: pe.log_prob(ISO, X.astype(bool)),
            ValueError,
            "log_prob: z has dtype bool, expected float16, bfloat16",
        ),
        (
            lambda: pe.log_prob(ISO, torch.zeros(5, 4)),
            TypeError,
            "log_prob: z is a torch tensor on cpu, expected a numpy array like d",
        ),
        (lambda: pe.entropy(NIVMF), TypeError, "entropy: d must be a distribution with an entropy in closed form ("),
        (lambda: pe.entropy(None), TypeError, "entropy: d must be a distribution with an entropy in closed form ("),
        (lambda: pe.kl(X, ISO), TypeError, "kl: p must be a distribution, got ndarray"),
        (lambda: pe.kl(ISO, X), TypeError, "kl: q must be a distribution, got ndarray"),
        (
            lambda: pe.kl(VMF, ISO),
            TypeError,
            "kl: no closed form for vmf x normal_isotropic (p x q), only normal_isotr",
        ),
        (
            lambda: pe.kl(NIVMF, NIVMF),
            TypeError,
            "kl: no closed form for nivmf x nivmf (p x q), only normal_isotropic x",
        ),
        (lambda: pe.kl(VMF, TENSORS), TypeError, "kl: q is a torch tensor on cpu, expected a numpy array like p"),
        (lambda: pe.kl(VMF, VMF[:3]), ValueError, "kl: q has 3 items, expected 5 like p"),
        (lambda: pe.kl(VMF, make("vmf", 5, 3)), ValueError, "kl: dim of q is 3, expected 4 like p"),
        (lambda: pe.kl(VMF, VMF.to("float32")), ValueError, "kl: q has dtype float32, expected float64 like p"),
        (
            lambda: pe.match_variance(ISO, VMF),
            TypeError,
            "match_variance: no closed form for normal_isotropic x vmf (q x g), only normal_isotropic x normal_isotr",
        ),
        (lambda: pe.match_variance(ISO, ISO[:1]), ValueError, "match_variance: g has 1 items, expected 5 like q"),
    ],
)
def test_bad_input_gets_one_line(function, error, begins):
    with pytest.raises(error) as caught:
        function()
    assert str(caught.value).startswith(begins), str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_overflows_or_is_infinite_does_not_warn():
    """Warnings are errors in these tests."""
    d = pe.Normal([[0.0, np.inf], [1e200, 0.0], [0.0, 0.0]], var=[1.0, 1e-300, 0.0])
    other = pe.Normal([[np.inf, 0.0], [0.0, 0.0], [0.0, 1.0]], var=[1.0, 1.0, 0.0])
    for found in (
        *(pe.entropy(d), pe.confidence(d), pe.log_prob(d, other.mu)),
        *(pe.kl(d, other), pe.match_variance(d, other), pe.triplet_probability(d, other, other)),
        *(pe.fuse(d, [0, 0, 0]).mu, pe.pairwise(d, other, "expected_cosine"), pe.pairwise(d, other, "hib")),
    ):
        assert np.shape(found)[-1] in (2, 3)
