"""The samplers: the distributions that they draw from, their gradients, and the address of every number.

What torch does with them (operators, transforms, torch.compile) is in test_samplers_torch.py.
"""

import itertools
import math
import secrets

import numpy as np
import pytest
import torch
from conftest import make
from scipy import stats

import peaccel as pe
from peaccel.ops import _numpy, bessel, samplers

# At least forty cells of the law of mu.x.
DIMS = (2, 3, 4, 5, 8, 16, 64, 512, 2048)
KAPPAS = (0.0, 0.7, 8.0, 50.0, 1e3, 1e6)
CELLS = [(d, k) for d, k in itertools.product(DIMS, KAPPAS) if not (d == 2048 and k in (0.7, 50.0))]
DRAWS = 100_000
NODES = np.polynomial.legendre.leggauss(600)
FRESH = secrets.randbits(63)
each_op = pytest.mark.parametrize("op", samplers.OPS, ids=lambda op: op.name)


def directions(count, dim, seed=0):
    mu = np.random.default_rng(seed).normal(size=(count, dim))
    return mu / np.linalg.norm(mu, axis=1, keepdims=True)


class Law:
    """mu.x of a von Mises-Fisher distribution by its angle: density exp(kappa cos a) sin^(D-2) a on a fine grid."""

    def __init__(self, dim, kappa):
        self.dim, self.kappa = dim, kappa
        mode = math.acos(2 * kappa / (dim - 2 + math.hypot(dim - 2, 2 * kappa))) if dim > 2 or kappa else math.pi / 2
        width = 14 / math.sqrt(kappa + dim - 1) if kappa + dim > 400 else math.pi
        self.angles = np.linspace(max(0.0, mode - width), min(math.pi, mode + width), 200_001)
        density = np.exp(self.log_density(self.angles) - self.log_density(np.array([mode])))
        cells = (density[:-1] + density[1:]) / 2
        self.cdf = np.concatenate([[0], np.cumsum(cells)]) / cells.sum()

    def log_density(self, angles):
        # From 1 - cos a, which keeps its digits at large kappa; 0 log 0 = 0 in two dimensions.
        rise = 2 * np.sin(angles / 2) ** 2
        with np.errstate(divide="ignore"):
            sines = (self.dim - 2) * np.log(np.sin(angles)) if self.dim > 2 else 0
        return sines - self.kappa * rise

    def quantile(self, angle):
        return np.interp(angle, self.angles, self.cdf)

    def slope(self, angle):
        """dw/dkappa at a fixed quantile, by 600 nodes over the nearer of the two tails."""
        _, below = ratio_and_rest(self.dim, self.kappa)
        upper = 2 * math.sin(angle / 2) ** 2 < below  # w > A
        own = self.log_density(np.array([angle]))
        # As far as the density matters.
        grid = np.linspace(0 if upper else angle, angle if upper else math.pi, 4001)[1:-1]
        near = grid[self.log_density(grid) - own > -45]
        low, high = (max(0, near.min() - 2 * grid[0]), angle) if upper else (angle, min(math.pi, near.max() + 1e-3))
        nodes, weights = NODES
        at = 0.5 * (high - low) * (nodes + 1) + low
        excess = below - 2 * np.sin(at / 2) ** 2  # t - A
        inside = np.exp(self.log_density(at) - own) * excess
        return abs(0.5 * (high - low) * (weights * inside).sum()) * math.sin(angle)


def ratio_and_rest(dim, kappa):
    """A(kappa) and 1 - A(kappa)."""
    mean = pe.special.iv_ratio(dim / 2, np.float64(kappa))
    complement = bessel.iv_ratio_complement(np.array(dim / 2), np.array([kappa]))[0]
    return float(mean), float(complement / (1 + mean))


def angles_of(mu, draws):
    """The angle between unit rows, to all digits at both ends."""
    return 2 * np.arctan2(np.linalg.norm(draws - mu, axis=-1), np.linalg.norm(draws + mu, axis=-1))


def drawn_angles(dim, kappa, seed, count=DRAWS):
    """Angles to mu and projections of the tangent parts on a fixed direction, of `count` draws in batches."""
    mu, other = directions(2, dim, seed=dim)
    other -= (other @ mu) * mu
    other /= np.linalg.norm(other)
    angles, along = [], []
    batch = max(1, 4_000_000 // dim)
    for first in range(0, count, batch):
        rows = min(batch, count - first)
        items = pe.VonMisesFisher(np.broadcast_to(mu, (rows, dim)), np.full(rows, kappa))
        draws = pe.sample(items, 1, seed=seed, first_row=first)[0]
        assert np.abs(np.linalg.norm(draws, axis=1) - 1).max() < 1e-14
        part = angles_of(mu, draws)
        angles.append(part)
        along.append(draws @ other / np.maximum(np.sin(part), 1e-300))
    return np.concatenate(angles), np.concatenate(along)


# -- the laws ----------------------------------------------------------------------------------------------------------


@pytest.mark.one_in(5)
@pytest.mark.parametrize(
    ("dim", "kappa"),
    [pytest.param(d, k, marks=pytest.mark.slow) if d == 2048 and k != 1e3 else (d, k) for d, k in CELLS],
)
@pytest.mark.parametrize("seeds", [(0, FRESH), pytest.param((1, 2), marks=pytest.mark.slow)], ids=["0", "1"])
def test_von_mises_fisher_draws_from_its_law(dim, kappa, seeds):
    assert len(CELLS) >= 40
    law = Law(dim, kappa)
    for seed in seeds:
        angles, along = drawn_angles(dim, kappa, seed)
        # Bonferroni over all cells, seeds and the three tests of each.
        smallest = 1e-3 / (3 * 4 * len(CELLS))
        told = f"D={dim} kappa={kappa} seed={seed}"
        assert stats.kstest(law.quantile(angles), "uniform").pvalue > smallest, told
        # The tangent direction is uniform: mean 0, square 1 / (D - 1), fourth power 3 / (D^2 - 1).
        square, fourth = 1 / (dim - 1), 3 / (dim**2 - 1)
        score = along.mean() / math.sqrt(square / DRAWS)
        assert 2 * stats.norm.sf(abs(score)) > smallest, told
        spread = math.sqrt(max(fourth - square**2, 0) / DRAWS)
        assert abs((along**2).mean() - square) <= 7 * spread + 1e-9, told


def published_heights(dim, kappa, count, rng):
    """Heights as six published samplers draw them: b is approximate, everything else takes the exact root."""
    m = dim - 1
    root = math.sqrt(4 * kappa**2 + m**2)
    b = m / (4 * kappa) if kappa > 11 else m / (2 * kappa + root)
    a = (m + 2 * kappa + root) / 4
    limit = 4 * a * b / (1 + b) - m * math.log(m)
    found = np.empty(0)
    while len(found) < count:
        z = rng.beta(m / 2, m / 2, count)
        t = 2 * a * b / (1 - (1 - b) * z)
        accepted = m * np.log(t) - t + limit >= np.log(rng.uniform(size=count))
        found = np.concatenate([found, ((1 - (1 + b) * z) / (1 - (1 - b) * z))[accepted]])
    return found[:count]


@pytest.mark.parametrize(("dim", "kappa"), [(64, 20.0), (128, 50.0), (512, 200.0)])
def test_the_published_sampler_fails_where_this_one_passes(dim, kappa):
    law, rng = Law(dim, kappa), np.random.default_rng(0)
    theirs = np.arccos(published_heights(dim, kappa, DRAWS, rng))
    ours, _ = drawn_angles(dim, kappa, 0)
    wrong, right = (stats.kstest(law.quantile(x), "uniform").statistic for x in (theirs, ours))
    assert wrong > 0.05 and wrong > 20 * right
    assert abs(np.cos(theirs).mean() - ratio_and_rest(dim, kappa)[0]) > 0.005


@pytest.mark.parametrize(("kappa", "told"), [(50.0, 0.22), (12.0, -0.45)])
def test_mean_cosines_of_the_published_sampler_are_those_of_the_page(kappa, told):
    """docs/differences.md, at D = 128, where 0.35 and 0.09 are right."""
    theirs = published_heights(128, kappa, DRAWS, np.random.default_rng(1)).mean()
    assert round(theirs, 2) == told and ratio_and_rest(128, kappa)[0] > theirs + 0.1


# -- gradients ---------------------------------------------------------------------------------------------------------


def height_slopes(dim, kappa, count, seed):
    """Angles and dw/dkappa of `count` draws: the gradient of x.mu with respect to kappa, with mu fixed."""
    mu = directions(1, dim, seed=dim)[0]
    rows = np.broadcast_to(mu, (count, dim))
    items = np.ascontiguousarray(rows), np.full(count, float(kappa))
    draws = _numpy.sample(samplers.sample_vmf, *items, seed, 1, 0, 2)
    slopes = _numpy.sample_backward(samplers.sample_vmf, rows[None], *items, seed, 0, 2)[1]
    return angles_of(mu, draws[0]), slopes


@pytest.mark.parametrize("dim", [2, 3, 4, 5, 8, 9, 16, 31, 32, 64, 128, 512, 2048])
def test_the_slope_of_the_height_is_exact(dim):
    for kappa in (1e-3, 0.3, 2.0, 10.0, 30.0, 100.0, 1e3, 1e4, 1e6):
        angles, slopes = height_slopes(dim, kappa, 2000, seed=5)
        scale, law = math.sqrt((slopes**2).mean()), Law(dim, kappa)
        order = np.argsort(angles)
        for i in order[[0, 1, 5, 50, 300, 800, 1000, 1300, 1800, 1990, 1998, 1999]]:
            error = abs(slopes[i] - law.slope(angles[i])) / scale
            assert error <= 1e-8, f"kappa={kappa} angle={angles[i]}: {error:.2g} of rms"


@pytest.mark.parametrize("dim", [8, 9, 16, 64, 512])
def test_the_slope_of_the_height_in_float32_is_that_in_float64(dim):
    """Fewer nodes. Directions are rounded too, whose part across the mean counts by w / sqrt(1 - w^2)."""
    mu = directions(1, dim, seed=dim)[0].astype("f")
    rows = np.ascontiguousarray(np.broadcast_to(mu, (2000, dim)))
    for kappa in (1e-3, 0.3, 2.0, 10.0, 30.0, 100.0, 1e3):
        found, exact = (
            _numpy.sample_backward(samplers.sample_vmf, x[None], x, np.full(2000, kappa, x.dtype), 5, 0, 2)[1]
            for x in (rows, rows.astype("d"))
        )
        amplified = 1 + math.sqrt(kappa / dim)
        assert np.abs(found - exact).max() <= 3e-7 * amplified * math.sqrt((exact**2).mean()), kappa


@pytest.mark.parametrize(("dim", "kappa"), [(d, k) for d, k in CELLS if k])
def test_the_slope_of_the_height_is_unbiased(dim, kappa):
    _, slopes = height_slopes(dim, kappa, 20_000, seed=1)
    want = bessel.iv_ratio_dx(np.array(dim / 2), np.array([kappa]))[0]
    error = slopes.std() / math.sqrt(len(slopes))
    assert abs(slopes.mean() - want) <= 5 * error + 1e-9 * abs(want)


@pytest.mark.parametrize("dim", [2, 3, 7, 40])
def test_gradients_are_those_of_the_projection_form(dim):
    """With respect to mu by finite differences along paths that leave w as it is; to kappa through dw alone."""
    mu = torch.tensor(directions(3, dim), requires_grad=True)
    kappa = torch.tensor([0.5, 20.0, 3000.0], dtype=torch.float64, requires_grad=True)
    weights = torch.tensor(np.random.default_rng(1).normal(size=(4, 3, dim)))
    (pe.sample(pe.VonMisesFisher(mu, kappa), 4, seed=11) * weights).sum().backward()

    def total(moved):
        # The form itself, as a function of any mu: w and n do not depend on it.
        fixed = mu.detach().numpy()
        x = pe.sample(pe.VonMisesFisher(fixed, kappa.detach().numpy()), 4, seed=11)
        w = (x * fixed).sum(-1, keepdims=True)
        tangent = x - w * fixed
        noise = _numpy.sample(samplers.sample_vmf, fixed, kappa.detach().numpy(), 11, 4, 0, 2) * 0
        noise += normals_behind(fixed, kappa.detach().numpy(), 11, 4)
        p = noise - (noise * moved).sum(-1, keepdims=True) * moved
        s = np.linalg.norm(tangent, axis=-1, keepdims=True)
        return ((w * moved + s * p / np.linalg.norm(p, axis=-1, keepdims=True)) * weights.numpy()).sum()

    step = 1e-6
    for i, j in itertools.product(range(3), range(dim)):
        up, down = mu.detach().numpy().copy(), mu.detach().numpy().copy()
        up[i, j] += step
        down[i, j] -= step
        assert abs((total(up) - total(down)) / (2 * step) - mu.grad[i, j].item()) < 1e-6 * max(1, mu.grad.abs().max())


# -- random numbers and seeds ------------------------------------------------------------------------------------------


def normals_behind(mu, kappa, seed, n):
    """The normal numbers at the same addresses, as a normal distribution draws them."""
    return _numpy.sample(samplers.sample_normal, np.zeros_like(mu), np.ones_like(kappa), seed, n, 0, 2)


def test_normals_are_normal_and_their_gradients_exact():
    for dtype, seed in ((np.float32, 0), (np.float64, 1), (np.float32, FRESH)):
        zero = pe.Normal(np.zeros((2000, 50), dtype), np.ones(2000, dtype))
        z = pe.sample(zero, 10, seed=seed)
        assert z.dtype == dtype
        assert stats.kstest(z.ravel().astype(np.float64), "norm").pvalue > 1e-4, seed
        pairs = z[..., :25].ravel() * z[..., 25:].ravel()
        assert abs(pairs.mean()) < 6 / math.sqrt(pairs.size)
    rng = np.random.default_rng(0)
    for shape in ((4,), (4, 37)):
        mu = torch.tensor(rng.normal(size=(4, 37)), requires_grad=True)
        var = torch.tensor(np.exp(rng.normal(size=shape)), requires_grad=True)
        draw = lambda mu, var: pe.sample(pe.Normal(mu, var), 3, seed=5)  # noqa: E731
        assert torch.autograd.gradcheck(draw, (mu, var))


def test_every_number_has_an_address():
    items = pe.VonMisesFisher(directions(40, 24), np.geomspace(0.1, 1e5, 40))
    whole = pe.sample(items, 6, seed=9)
    np.testing.assert_array_equal(pe.sample(items, 2, seed=9), whole[:2])
    np.testing.assert_array_equal(pe.sample(items[13:21], 6, seed=9, first_row=13), whole[:, 13:21])
    tensors = pe.VonMisesFisher(torch.tensor(items.mu), torch.tensor(items.kappa))
    np.testing.assert_array_equal(pe.sample(tensors, 6, seed=9).numpy(), whole)
    np.testing.assert_array_equal(pe.sample(tensors, 6, seed=torch.tensor(9)).numpy(), whole)
    assert (pe.sample(items, 6, seed=10) != whole).any(-1).all()
    assert (pe.sample(items, 6) != pe.sample(items, 6)).any()
    longer = pe.sample(pe.Normal(np.zeros((2, 100)), np.ones(2)), 1, seed=3)
    np.testing.assert_array_equal(pe.sample(pe.Normal(np.zeros((2, 33)), np.ones(2)), 1, seed=3), longer[..., :33])


@each_op
@pytest.mark.parametrize("first_row", [0, 2**32 - 50_000])
def test_no_two_of_many_rows_draw_alike(op, first_row):
    mu = np.ones((100_000, 3)) / 3**0.5
    draws = _numpy.sample(op, mu, np.ones(len(mu)), 1, 1, first_row, 2)[0]
    assert len(np.unique(draws[:, 0])) == len(mu)


def test_the_last_row_that_there_can_be_has_its_own_draws():
    draws = [pe.sample(pe.Normal(np.zeros((1, 3)), np.ones(1)), 1, seed=1, first_row=2**63 - k) for k in (1, 2)]
    assert (draws[0] != draws[1]).all()


@each_op
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_few_dimensions_are_the_first_of_many_rows_at_once(op, dtype):
    """Noise of several rows is made together: a row's is as if alone, and the first of that in more dimensions."""
    rng = np.random.default_rng(0)
    for dim in (2, 3, 5, 7, 8, 9, 15, 16, 17, 33):
        mu = rng.standard_normal((21, dim)).astype(dtype)
        mu /= np.linalg.norm(mu, axis=1, keepdims=True)
        uncertainty = rng.uniform(0.5, 2, 21).astype(dtype)
        whole = _numpy.sample(op, mu, uncertainty, 9, 4, 0, 2)
        for row in (0, 7, 8, 20):
            np.testing.assert_array_equal(
                _numpy.sample(op, mu[row : row + 1], uncertainty[row : row + 1], 9, 4, row, 2)[:, 0], whole[:, row]
            )
        if "normal" in op.name:
            noise = _numpy.sample(op, np.zeros((21, 40), dtype), np.ones(21, dtype), 9, 4, 0, 2)[..., :dim]
            np.testing.assert_allclose(
                whole, np.sqrt(uncertainty)[:, None] * noise + mu, rtol=4 * np.finfo(dtype).eps, atol=1e-6
            )


def test_without_a_seed_no_two_of_many_calls_draw_alike():
    items = pe.Normal(np.zeros((1, 1)), np.ones(1))
    assert len({pe.sample(items, 1).item() for _ in range(3000)}) == 3000


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_a_generator_gives_each_call_a_seed_of_its_own(library):
    d = make("normal_diagonal", library=library)
    generators = [np.random.default_rng(7) if library == "numpy" else torch.Generator().manual_seed(7) for _ in "ab"]
    first, second = ([pe.sample(d, 2, seed=generator) for _ in range(3)] for generator in generators)
    assert all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))
    assert len({x.tobytes() for x in map(np.asarray, first)}) == 3


def test_a_generator_draws_what_torch_s_own_would():
    d = pe.Normal(torch.zeros(3, 4), torch.ones(3))
    torch.manual_seed(7)
    assert torch.equal(pe.sample(d, 2), pe.sample(d, 2, seed=torch.Generator().manual_seed(7)))


def test_torch_draws_anew_each_step_and_again_after_manual_seed():
    items = pe.Normal(torch.zeros(2, 3), torch.ones(2))
    torch.manual_seed(4)
    first, second = pe.sample(items, 2), pe.sample(items, 2)
    torch.manual_seed(4)
    assert (first == pe.sample(items, 2)).all() and (first != second).all()


# -- the ends of the range ---------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("unlooked")
def test_the_ends_of_kappa():
    mu = directions(6, 9)
    kappa = np.array([0.0, 1e-300, 1e12, 1e300, np.inf, 1e-3])
    draws = pe.sample(pe.VonMisesFisher(mu, kappa), 500, seed=0)
    assert np.abs(np.linalg.norm(draws, axis=-1) - 1).max() < 1e-14
    np.testing.assert_array_equal(draws[:, 4], np.broadcast_to(mu[4], (500, 9)))
    assert np.abs(draws[:, 3] - mu[3]).max() < 1e-14
    far = ((draws[:, 2] - mu[2]) ** 2).sum(-1) * 1e12  # chi square with D - 1 degrees
    assert stats.kstest(far, stats.chi2(8).cdf).pvalue > 1e-4
    bad = pe.sample(pe.VonMisesFisher(mu[:3], np.array([-1.0, np.nan, 1.0])), 4, seed=0)
    assert np.isnan(bad[:, :2]).all() and np.isfinite(bad[:, 2]).all()
    slopes = _numpy.sample_backward(samplers.sample_vmf, np.ones((1, 6, 9)), mu, kappa, 0, 0, 2)
    assert all(np.isfinite(x).all() for x in slopes)
    single = pe.sample(pe.VonMisesFisher(np.float32(mu), np.float32([0, 1e-30, 1e12, 1e30, np.inf, 5])), 50, seed=0)
    assert np.abs(np.linalg.norm(single, axis=-1) - 1).max() < 5e-7


def test_empty_and_spread_inputs():
    mu, kappa = directions(6, 9), np.ones(6)
    whole = pe.sample(pe.VonMisesFisher(mu, kappa), 2, seed=1)
    assert pe.sample(pe.VonMisesFisher(mu[:0], kappa[:0]), 2, seed=1).shape == (2, 0, 9)
    assert pe.sample(pe.VonMisesFisher(mu, kappa), 0, seed=1).shape == (0, 6, 9)
    spread = pe.VonMisesFisher(np.asfortranarray(mu), np.broadcast_to(np.float64(1), 6))
    np.testing.assert_array_equal(pe.sample(spread, 2, seed=1), whole)
    grad = torch.tensor(mu, requires_grad=True)
    pe.sample(pe.VonMisesFisher(grad, torch.ones(6, dtype=torch.float64)), 0, seed=1).sum().backward()
    assert (grad.grad == 0).all()
    half = pe.sample(pe.Normal(np.zeros((2, 3), np.float16), np.ones(2, np.float16)), 1, seed=1)
    assert half.dtype == np.float32


# -- bad input ---------------------------------------------------------------------------------------------------------


D2, T2 = pe.VonMisesFisher(np.eye(2), np.ones(2)), pe.Normal(torch.zeros(1, 2), torch.ones(1))


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: pe.sample(pe.Point(np.eye(2)), 1), TypeError, "sample: d must be one of normal_isotropic"),
        (lambda: pe.sample(np.eye(2), 1), TypeError, "sample: d must be one of"),
        (lambda: pe.sample(D2, -1), ValueError, "sample: n is -1, expected 0 .."),
        (lambda: pe.sample(D2, 1.5), TypeError, "sample: n must be an integer, got float"),
        (lambda: pe.sample(D2, True), TypeError, "sample: n must be an integer, got bool"),
        (lambda: pe.sample(D2, 2**32), ValueError, "sample: n is 4294967296"),
        (lambda: pe.sample(D2, 1, seed=-1), ValueError, "sample: seed is -1"),
        (lambda: pe.sample(D2, 1, seed=2**63), ValueError, "sample: seed is 9223372036854775808"),
        (lambda: pe.sample(D2, 1, seed="a"), TypeError, "sample: seed must be an integer, got str"),
        (lambda: pe.sample(D2, 1, seed=torch.tensor(1)), TypeError, "sample: seed is a torch tensor"),
        (
            lambda: pe.sample(D2, 1, seed=torch.Generator()),
            TypeError,
            "sample: seed is a torch generator on cpu, expected a numpy generator like mu",
        ),
        (
            lambda: pe.sample(T2, 1, seed=np.random.default_rng()),
            TypeError,
            "sample: seed is a numpy generator, expected a torch generator on cpu like mu",
        ),
        (
            lambda: pe.sample(pe.Normal(*(x.to("meta") for x in T2.arrays)), 1, seed=torch.Generator()),
            ValueError,
            "sample: seed is a torch generator on cpu, expected a torch generator on meta like mu",
        ),
        (
            lambda: pe.sample(T2, 1, seed=torch.tensor(1, device="meta")),
            ValueError,
            "sample: seed is a torch tensor on meta, expected a torch tensor on cpu like mu",
        ),
        (lambda: pe.sample(D2, 1, seed=np.random.RandomState()), TypeError, "sample: seed must be an integer"),
        (lambda: pe.sample(D2, 1, first_row=-1), ValueError, "sample: first_row is -1"),
        (lambda: pe.sample(D2, 1, first_row=2**63), ValueError, f"sample: first_row is {2**63}"),
        (lambda: pe.sample(D2, 1, gradient="implict"), ValueError, "sample: unknown gradient 'implict'; did you mean"),
        (
            lambda: pe.sample(T2, 1, seed=torch.tensor(-1)),
            ValueError,
            "sample_normal: seed is -1",
        ),
    ],
)
def test_bad_input(call, error, message):
    with pytest.raises(error) as caught:
        call()
    assert str(caught.value).startswith(message) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("op", "dim", "uncertainties", "message"),
    [
        (samplers.sample_vmf, 1, (), "sample_vmf: D is 1, expected at least 2"),
        (samplers.sample_vmf, 4, (4,), "sample_vmf: an item has 4 uncertainties, expected 1"),
        (samplers.sample_normal, 4, (3,), "sample_normal: an item has 3 uncertainties, expected 1 or D"),
    ],
)
def test_distributions_that_do_not_exist_are_refused(op, dim, uncertainties, message):
    mu, uncertainty = np.ones((2, dim)), np.ones((2, *uncertainties))
    with pytest.raises(ValueError, match=f"^{message}$"):
        _numpy.sample(op, mu, uncertainty, 1, 1, 0, 0)
    with pytest.raises(ValueError, match=f"^{message}$"):
        _numpy.sample_backward(op, np.ones((1, 2, dim)), mu, uncertainty, 1, 0, 0)
