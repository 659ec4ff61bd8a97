"""The Bessel family against arb's golden values, through the public functions and the derivative ops; and its edges."""

import csv
import pathlib

import numpy as np
import pandas as pd
import pytest
import torch
from flint import arb, ctx

import peaccel as pe
from peaccel.ops import OPS, Op
from peaccel.ops._dispatch import as_function

with (pathlib.Path(__file__).parents[1] / "golden" / "bessel.csv").open() as file:
    ROWS = list(csv.DictReader(file))
GOLDEN = {name: np.array([float(row[name] or "nan") for row in ROWS]) for name in ROWS[0]}
V, X, TOL, RATIO, BEND, REST = (GOLDEN[name] for name in ("v", "x", "tol", "tol_ratio", "tol_bend", "tol_rest"))
OP = {op.name: as_function(op) for op in OPS if isinstance(op, Op)}

# Quantity -> (function of the golden order and x, floor under the relative error, tolerance): as tests/oracle states.
QUANTITIES = {
    "log_ive": (pe.special.log_ive, np.ones_like(X), TOL),
    "iv_ratio": (pe.special.iv_ratio, 0 * X, RATIO),
    "vmf_log_norm": (lambda v, x: pe.special.vmf_log_norm(2 * v + 2, x), np.maximum(1, V), REST),
    "log_ive_dx": (OP["log_ive_dx"], np.minimum(1, 1 / X), REST),
    "log_ive_dxx": (OP["log_ive_dxx"], np.minimum(1, 1 / X) ** 2, BEND),
    "iv_ratio_dx": (OP["iv_ratio_dx"], 0 * X, BEND),
    "iv_ratio_dxx": (OP["iv_ratio_dxx"], 0 * X, BEND),
}
each_quantity = pytest.mark.parametrize("name", QUANTITIES)
PUBLIC = {"log_iv": "v", "log_ive": "v", "iv_ratio": "v", "vmf_log_norm": "dim"}
each_public = pytest.mark.parametrize("name", PUBLIC)
TINY = np.finfo(np.float64).tiny


def close(name, found, rows, tolerance):
    """found is the golden quantity of these rows within tolerance, relative to max(|value|, floor)."""
    value, floor = GOLDEN[name][rows], QUANTITIES[name][1][rows]
    error = np.abs(found - value) / np.maximum(np.abs(value), np.maximum(floor, TINY))
    worst = int(np.argmax(np.where(np.isnan(error), np.inf, error / tolerance)))
    told = f"v={V[rows][worst]} x={X[rows][worst]}: got {found[worst]!r}, expected {value[worst]!r}"
    assert (error <= tolerance).all(), f"{(error > tolerance).sum()} rows, worst {told}"


def usable(name):
    """Rows that hold a value which float64 represents."""
    return np.abs(GOLDEN[name]) >= TINY


@each_quantity
def test_float64_is_within_the_golden_tolerance_of_every_row(name):
    function, _, tolerance = QUANTITIES[name]
    rows = usable(name)
    assert rows.sum() > 4000
    found = function(V[rows], X[rows])
    close(name, found, rows, tolerance[rows])
    tensor = function(torch.tensor(V[rows]), torch.tensor(X[rows]))
    np.testing.assert_array_equal(tensor.numpy(), found)


def test_log_ive_at_orders_between_the_golden_ones():
    rng = np.random.default_rng(0)
    v = np.concatenate([(np.arange(1000) + rng.random(1000)) / 10, 10.0 ** rng.uniform(2, 4, 200)])
    x = (1 + v) * 10.0 ** rng.uniform(-3, 3, v.size)
    with ctx.workprec(160):
        want = np.array([float(arb(b).bessel_i(arb(a), scaled=True).log()) for a, b in zip(v, x, strict=True)])
    error = np.abs(pe.special.log_ive(v, x) - want) / np.maximum(1, np.abs(want))
    assert error.max() <= TOL.max(), f"v={v[error.argmax()]!r} x={x[error.argmax()]!r}"


def mean_direction(dim, x, derivative):
    """L = sqrt(x) G((D+1)/2) / G(D/2+1) 1F1(1/2; D/2+1; -x); its slope has 1F1(3/2; ...) / 2x in its place."""
    prec, value = 128, arb("nan")
    while not value.rel_accuracy_bits() >= 80:
        with ctx.workprec(prec):
            d, z = arb(dim), arb(x)
            gammas = ((d + 1) / 2).gamma() / (d / 2 + 1).gamma()
            value = gammas * z.sqrt() * (-z).hypgeom_1f1(arb(0.5) + derivative, d / 2 + 1) / (2 * z) ** derivative
        prec *= 2
    return float(value.mid())


@pytest.mark.parametrize("dim", [1, 2, 3, 5, 8, 12, 31, 64, 128, 512, 4096])
def test_the_length_of_a_normals_mean_direction(dim):
    rng = np.random.default_rng(dim)
    x = np.concatenate([10.0 ** rng.uniform(-6, 4, 60), dim * 10.0 ** rng.uniform(-1, 0.7, 60), [1e-200, 1e-12]])
    value, slope = (np.array([mean_direction(dim, float(z), n) for z in x]) for n in (0, 1))
    for name, want, tolerance in (
        ("normal_length", value, (3e-14, 2e-15)),
        ("normal_length_dx", slope, (8e-14, 6e-15)),
    ):
        found = OP[name](np.array(float(dim)), x)
        reached = np.abs(want) >= TINY
        error = np.abs(found / np.where(reached, want, 1) - 1)[reached]
        assert error.max() <= tolerance[dim >= 12], f"{name} at x={x[reached][error.argmax()]!r}"


def test_the_length_of_a_normals_mean_direction_ends_as_it_should():
    with np.errstate(invalid="ignore"):
        found = OP["normal_length"](
            np.array([3.0, 1, 3, 0.5, np.nan, 3, 3]), np.array([0, np.inf, 1e300, 1, 1, np.nan, -1])
        )
    np.testing.assert_array_equal(found, [0, 1, 1, *[np.nan] * 4])
    x = torch.tensor([0.3, 7.0, 90.0], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradgradcheck(lambda x: OP["normal_length"](5.0, x), x)


@each_quantity
def test_float32_is_the_rounding_of_float64(name):
    function, _, _ = QUANTITIES[name]
    with np.errstate(over="ignore"):
        exact = np.float32(X).astype(np.float64) == X  # elsewhere float32 rounds the argument
    rows = usable(name) & exact
    assert rows.sum() > 100
    found = function(V[rows], np.float32(X[rows]))
    assert found.dtype == np.float32
    with np.errstate(over="ignore", under="ignore"):
        rounded = function(V[rows], X[rows]).astype(np.float32)
    np.testing.assert_array_max_ulp(found, rounded, maxulp=1)
    tensor = function(torch.tensor(V[rows]), torch.tensor(np.float32(X[rows])))
    np.testing.assert_array_equal(tensor.numpy(), found)


@each_quantity
def test_one_order_for_all_arguments_gives_the_bits_of_an_order_each(name):
    function, _, _ = QUANTITIES[name]
    for v in np.unique(V):
        rows = usable(name) & (v == V)
        if rows.any():
            np.testing.assert_array_equal(function(np.float64(v), X[rows]), function(V[rows], X[rows]))


@pytest.mark.parametrize(
    ("name", "tolerance"),
    [
        *(("log_ive", 5e-7), ("log_iv", 5e-7), ("iv_ratio", 3e-7), ("vmf_log_norm", 3e-7), ("vmf_log_norm_dx", 3e-7)),
        *(("log_ive_dx", 5e-7), ("log_ive_dxx", 5e-7), ("iv_ratio_dx", 5e-7), ("iv_ratio_dxx", 5e-7)),
        ("iv_ratio_complement", 5e-7),
    ],
)
@pytest.mark.parametrize("v", [1, 1.5, 2, 7, 15, 63, 255.5, 1023, 1e5])
def test_float32_of_one_order_by_its_table(name, tolerance, v):
    order = 2 * v + (2 if name == "vmf_log_norm" else 0) if "norm" in name else v
    function = getattr(pe.special, name, None) or (lambda order, x: OP[name](np.array([float(order)]), x))
    octaves = 2.0 ** np.arange(-3, 26)
    edges = np.concatenate([octaves * (1 + i / 64) * (1 + e) for i in range(64) for e in (-1e-7, 0, 1e-7)])
    x = np.concatenate([edges, 10.0 ** np.random.default_rng(0).uniform(-30, 30, 20_000)]).astype(np.float32)
    found, want = function(order, x), function(order, x.astype(np.float64))
    assert found.dtype == np.float32
    # vmf_log_norm is log C, whose terms are of the size of the dimension.
    floors = {"vmf_log_norm": v, "log_iv": 1 + x, "log_ive": 1, "log_ive_dx": np.minimum(1, 1 / x.astype(float))}
    # Derivatives are accurate down to the smallest normal number.
    floor = np.maximum(floors.get(name, 0), 1e-38 if "_d" in name else 0)
    if name == "log_ive_dxx":
        floor = np.minimum(1, 1 / x.astype(float)) ** 2
    with np.errstate(over="ignore", invalid="ignore"):  # where both are infinite in float32
        error = np.where(found == want.astype(np.float32), 0, np.abs(found - want) / np.maximum(np.abs(want), floor))
    assert error.max() <= tolerance, f"{error.max():.2g} at x = {x[error.argmax()]!r}"
    # The table belongs to the order: neither the length nor the place of an element matters.
    np.testing.assert_array_equal(np.concatenate([function(order, part) for part in np.split(x, [1, 18, 901])]), found)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_log_iv_loses_nothing_where_it_crosses_zero(dtype):
    with np.errstate(over="ignore"):
        rows = usable("log_ive") & (X < 1e30) & (X.astype(dtype) == X)
    found, value = pe.special.log_iv(V[rows], X[rows].astype(dtype)), GOLDEN["log_ive"][rows]
    want = value.astype(np.longdouble) + X[rows]
    bound = 4 * np.finfo(dtype).eps * np.maximum(1, np.abs(value) + X[rows])
    assert (np.abs(found - want) <= bound).all()


@pytest.mark.parametrize("v", [0, 0.5, 3.7, 14.9999, 15.0001, 63, 255, 4321.5, 1e5])
def test_log_ive_never_fails_and_falls_with_the_order(v):
    x = np.concatenate([[5e-324, 1e-310], 10.0 ** np.linspace(-300, 12, 3000)])
    value = pe.special.log_ive(v, x)
    assert np.isfinite(value).all() and (value <= 1e-13).all()
    assert (pe.special.log_ive(v + 1, x) <= value).all()


def test_the_limits_at_zero():
    x = np.zeros(3)
    np.testing.assert_array_equal(pe.special.log_ive(np.array([0, 0.5, 7]), x), [0, -np.inf, -np.inf])
    np.testing.assert_array_equal(pe.special.log_iv(np.array([0, 0.5, 7]), x), [0, -np.inf, -np.inf])
    np.testing.assert_array_equal(pe.special.iv_ratio(np.array([1, 2.5, 100]), x), x)
    surface = [np.log(2 * np.pi), np.log(4 * np.pi), 3 * np.log(np.pi)]  # log areas of circle, sphere and S^5
    np.testing.assert_allclose(pe.special.vmf_log_norm(np.array([2, 3, 6]), x), -np.array(surface), rtol=1e-15)
    for dim, value in ((128, 127.0535), (512, 867.9681)):
        assert abs(pe.special.vmf_log_norm(dim, 0.0) - value) < 1e-4


def test_iv_ratio_tends_to_one_and_its_complement_keeps_its_digits():
    x = 10.0 ** np.linspace(1, 15, 30)
    ratio = pe.special.iv_ratio(64.0, x)
    assert (ratio <= 1).all() and (np.diff(ratio) >= 0).all()
    complement = OP["iv_ratio_complement"](np.array(64.0), x)
    np.testing.assert_allclose(complement[15:], 127 / x[15:], rtol=1e-4)  # (D - 1) / kappa
    np.testing.assert_allclose(complement[:8], 1 - ratio[:8] ** 2, rtol=1e-10)


@each_public
def test_outside_the_domain_is_nan_and_nan_stays_nan(name):
    function, low = getattr(pe.special, name), {"iv_ratio": 1, "vmf_log_norm": 2}.get(name, 0)
    bad = [(5.0, -1.0), (5.0, -1e-30), (5.0, np.nan), (np.nan, 2.0), (low - 0.01, 2.0), (-3.0, 2.0)]
    order, x = np.array(bad).T
    for dtype in (np.float32, np.float64):
        assert np.isnan(function(order, x.astype(dtype))).all()
    assert function(torch.tensor(order), torch.tensor(x)).isnan().all()
    around = function(5.0, np.array([1.0, np.nan, 2.0]))  # a NaN does not affect its neighbours
    assert np.isfinite(around[[0, 2]]).all()


@each_public
def test_infinite_arguments_raise_no_alarm(name):
    value = getattr(pe.special, name)(5.0, np.array([np.inf, 1.0]))
    assert not np.isfinite(value[0]) or name == "iv_ratio"
    assert np.isfinite(value[1])


@each_public
def test_numbers_arrays_lists_and_tensors_are_taken(name):
    function = getattr(pe.special, name)
    number = function(3, 2)
    assert isinstance(number, np.float64) and number.shape == ()
    for v, x in ((3, [2.0]), ([3], 2.0), (np.array([3]), np.array([2.0])), (np.int64(3), np.array([2.0]))):
        assert function(v, x).tolist() == [number]
    assert function(np.full((2, 1), 3), np.full(4, 2.0)).shape == (2, 4)
    assert function(3, np.empty((0, 2))).shape == (0, 2)
    for v in (3, 3.0, torch.tensor(3), torch.tensor([3.0]), np.float64(3)):
        tensor = function(v, torch.tensor([2.0], dtype=torch.float64))
        assert isinstance(tensor, torch.Tensor) and tensor.tolist() == [number]
    assert function(3, torch.tensor(2.0, dtype=torch.float64)).shape == ()
    for make in (np.array, torch.tensor, pd.Series):
        for v, x in ((3, make([2])), (make([3]), make([2])), (3, make([2]))):
            value = function(v, x)
            assert value.tolist() == [number] and str(value.dtype).endswith("float64")
    with torch.autocast("cpu", torch.bfloat16):
        for half in (torch.float16, torch.bfloat16):
            value = function(torch.tensor([3.0], dtype=half), torch.tensor([2.0], dtype=half))
            assert value.dtype == torch.float32 and value == function(3, torch.tensor([2.0]))
    assert function(3, np.array([2], np.float16)) == function(3, np.array([2], np.float32))


@each_public
def test_gradients_go_through_the_public_functions(name):
    x = torch.tensor([0.5, 3.0, 40.0], dtype=torch.float64, requires_grad=True)
    for order in (4.0, 65.0):
        assert torch.autograd.gradcheck(lambda x, order=order: getattr(pe.special, name)(order, x), x)
        assert torch.autograd.gradgradcheck(lambda x, order=order: getattr(pe.special, name)(order, x), x)


BAD = [
    (lambda f: f(3, np.array([True])), ValueError, "{name}: {x} has dtype bool, expected float16, bfloat16, float32"),
    (lambda f: f(3, torch.ones(1) + 1j), ValueError, "{name}: {x} has dtype complex64, expected float16"),
    (lambda f: f(3, None), TypeError, "{name}: {x} must be a numpy array or a torch tensor, got None"),
    (lambda f: f(3, "abc"), TypeError, "{name}: {x} is text, such as 'abc', expected numbers"),
    (lambda f: f("abc", np.ones(2)), TypeError, "{name}: {v} is text, such as 'abc', expected numbers"),
    (lambda f: f(None, np.ones(2)), TypeError, "{name}: {v} must be a numpy array or a torch tensor, got "),
    (lambda f: f(np.ones(3), np.ones(2)), ValueError, "{name}: {v} has shape (3,), {x} (2,): they do not broadcast"),
    (
        lambda f: f(torch.ones(3), torch.ones(2)),
        ValueError,
        "{name}: {v} has shape (3,), {x} (2,): they do not broadcast",
    ),
    (lambda f: f(np.ones(2), torch.ones(2)), TypeError, "{name}: {v} and {x} must both be numpy arrays or both torch"),
    (lambda f: f(torch.ones(2), np.ones(2)), TypeError, "{name}: {v} and {x} must both be numpy arrays or both torch"),
    (
        lambda f: f(torch.ones(2, device="meta"), torch.ones(2)),
        ValueError,
        "{name}: {v} is on meta, expected cpu like {x}",
    ),
    (
        lambda f: f(torch.tensor(3.0, requires_grad=True), torch.ones(2)),
        ValueError,
        "{name}: {v} must not require grad",
    ),
]


@each_public
@pytest.mark.parametrize(("call", "error", "begins"), BAD, ids=[b[2].replace(" ", "-")[:50] for b in BAD])
def test_bad_arguments_get_one_line(call, error, begins, name):
    begins = begins.format(name=name, v=PUBLIC[name], x="kappa" if name == "vmf_log_norm" else "x")
    with pytest.raises(error) as caught:
        call(getattr(pe.special, name))
    assert str(caught.value).startswith(begins), str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_arrays_that_begin_between_words(dtype):
    x = np.linspace(0.5, 9, 7).astype(dtype)
    between = np.frombuffer(b"\0" + x.tobytes(), dtype, offset=1)
    assert not between.flags.aligned
    np.testing.assert_array_equal(pe.special.log_ive(2.5, between), pe.special.log_ive(2.5, x))
    np.testing.assert_array_equal(pe.special.log_ive(between, x), pe.special.log_ive(x, x))
