"""log Phi and its two derivatives against arb, over the whole range; and its edges."""

import numpy as np
import pytest
import torch
from flint import arb, ctx

import peaccel as pe
from peaccel.ops import OPS, Op
from peaccel.ops._dispatch import as_function

OP = {op.name: as_function(op) for op in OPS if isinstance(op, Op)}
RNG = np.random.default_rng(0)
POINTS = np.concatenate(
    [
        np.linspace(-45, 37.5, 1500),
        RNG.normal(0, 2, 800),
        *(s * 10.0 ** np.linspace(-300, e, 60) for s, e in ((-1, 150), (1, 1.57))),
    ]
)
TINY = np.finfo(np.float64).tiny


def exact(x):
    """log Phi, phi / Phi and -(phi / Phi) (x + phi / Phi), to float64."""
    ctx.prec = 2400  # the last cancels like x^2, and 1 - Phi(37) is 1e-300
    z = arb(float(x))
    tail = (abs(z) / arb(2).sqrt()).erfc() / 2
    density = (-z * z / 2).exp() / (2 * arb.pi()).sqrt()
    ratio = density / (tail if x < 0 else 1 - tail)
    value = tail.log() if x < 0 else (-tail).log1p()
    return [float(y.mid()) for y in (value, ratio, -ratio * (z + ratio))]


@pytest.fixture(scope="module")
def wanted():
    points = POINTS[abs(POINTS) < 1e4]  # beyond, arb's erfc takes long
    return points, np.array([exact(x) for x in points]).T


def test_the_value_and_two_derivatives_keep_their_digits_over_the_whole_range(wanted):
    points, values = wanted
    for name, want in zip(("log_ndtr", "log_ndtr_dx", "log_ndtr_dxx"), values, strict=True):
        found, usable = OP[name](points), abs(want) >= TINY
        error = abs(found - want)[usable] / abs(want)[usable]
        assert error.max() < 1e-15, f"{name} at {points[usable][error.argmax()]}: {error.max():.2g}"
        single = points.astype(np.float32).astype(np.float64)
        usable &= (single == points) | (abs(points) < 5)
        rounded = OP[name](single.astype(np.float32))
        np.testing.assert_array_equal(rounded, OP[name](single).astype(np.float32))


def test_far_below_it_is_minus_half_a_square():
    x = -(10.0 ** np.linspace(4, 150, 100))
    np.testing.assert_allclose(pe.special.log_ndtr(x), -0.5 * x * x, rtol=1e-6)
    np.testing.assert_allclose(OP["log_ndtr_dx"](x), -x, rtol=1e-7)
    np.testing.assert_allclose(OP["log_ndtr_dxx"](x), -1, rtol=1e-7)


def test_edges():
    inf = np.inf
    x = np.array([-inf, inf, -0.0, 0.0, 60.0, 1e300, np.nan])
    assert pe.special.log_ndtr(x)[:2].tolist() == [-inf, 0.0]
    np.testing.assert_array_equal(OP["log_ndtr_dx"](x[:2]), [inf, 0])
    np.testing.assert_array_equal(OP["log_ndtr_dxx"](x[:2]), [-1, 0])
    for name in ("log_ndtr", "log_ndtr_dx", "log_ndtr_dxx"):
        found = OP[name](x)
        assert found[2] == pytest.approx(found[3], rel=1e-15) and found[4] == found[5] == 0 and np.isnan(found[6])


def test_numbers_lists_and_dtypes():
    assert pe.special.log_ndtr(0) == pytest.approx(-np.log(2), rel=1e-15)
    assert pe.special.log_ndtr([0.0, 1.0]).dtype == np.float64
    assert pe.special.log_ndtr(np.zeros((2, 0, 3), np.float32)).shape == (2, 0, 3)
    assert pe.special.log_ndtr(torch.zeros(3)).dtype == torch.float32
    assert pe.special.log_ndtr(np.zeros(3, np.float16)).dtype == np.float32
    with pytest.raises(TypeError, match=r"^log_ndtr: x must be a numpy array or a torch tensor, got None$"):
        pe.special.log_ndtr(None)


def test_derivatives_in_torch():
    x = torch.tensor([-30.0, -3.0, -1e-3, 0.0, 0.5, 6.0], dtype=torch.float64, requires_grad=True)
    torch.autograd.gradcheck(pe.special.log_ndtr, x, rtol=1e-6)
    torch.autograd.gradgradcheck(pe.special.log_ndtr, x, rtol=1e-6)
    torch.testing.assert_close(torch.vmap(pe.special.log_ndtr)(x[:, None])[:, 0], torch.special.log_ndtr(x))
