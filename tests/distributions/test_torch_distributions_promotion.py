"""peaccel.torch_distributions: parameters of two shapes and of two dtypes, as torch broadcasts and promotes them."""

import re

import pytest
import torch
from test_torch_distributions import WIDE, directions, vmf
from torch.distributions import kl_divergence
from torch.nn.functional import normalize

from peaccel.distributions.torch_distributions import HypersphericalUniform, NonIsotropicVonMisesFisher, VonMisesFisher


def test_parameters_broadcast():
    loc = directions(4, 1, 5)
    d = VonMisesFisher(loc, torch.rand(3, dtype=WIDE))
    assert (d.batch_shape, d.loc.shape, d.concentration.shape) == ((4, 3), (4, 3, 5), (4, 3))
    assert VonMisesFisher(loc, 7).concentration.dtype == WIDE
    d = NonIsotropicVonMisesFisher(loc, torch.rand(3, 5, dtype=WIDE))
    assert (d.batch_shape, d.concentration.shape) == ((4, 3), (4, 3, 5))
    assert NonIsotropicVonMisesFisher(loc, 7.0).concentration.shape == (4, 1, 5)


@pytest.mark.parametrize(
    ("shape", "batch"), [((4,), (4, 4)), ((1, 4), (1, 4, 4)), ((4, 1), (4, 4, 1)), ((2, 2, 2), (2, 2, 2, 2))]
)
def test_a_column_of_concentrations_that_makes_a_square_is_warned_of(shape, batch):
    message = rf"^VonMisesFisher: concentration .* broadcast to batch shape {re.escape(str(batch))}; for one"
    with pytest.warns(UserWarning, match=message) as warned:
        assert VonMisesFisher(directions(*shape, 5), torch.ones(*shape, 1, dtype=WIDE)).batch_shape == batch
    assert warned[0].filename == __file__


@pytest.mark.filterwarnings("error")
def test_shapes_that_are_meant_are_not_warned_of():
    for loc, concentration in (
        ((4,), (4,)),
        ((4,), (3, 1)),
        ((1, 4), (4, 1)),
        ((4, 1), (4,)),
        ((1,), (1, 1)),
        ((), (1,)),
    ):
        d = VonMisesFisher(directions(*loc, 5), torch.ones(concentration, dtype=WIDE))
        assert d.batch_shape == torch.broadcast_shapes(loc, concentration)
    NonIsotropicVonMisesFisher(directions(4, 5), torch.ones(4, 1, dtype=WIDE))
    HypersphericalUniform(5).expand((4, 1))


@pytest.mark.parametrize("half", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("kind", [VonMisesFisher, NonIsotropicVonMisesFisher])
def test_dtypes_promote_and_halves_are_computed_in_float32(kind, half):
    loc, z = directions(4, 5), directions(4, 5)
    k = 0.5 + 9 * torch.rand((4, 5) if kind is NonIsotropicVonMisesFisher else (4,), dtype=WIDE)
    points = normalize(z.to(half).to(WIDE), dim=-1)
    for a, b in ((half, half), (half, WIDE), (WIDE, half), (torch.float32, WIDE), (WIDE, torch.float32)):
        dtype = torch.float32 if a == b else WIDE
        with torch.autocast("cpu", half):
            d = kind(loc.to(a), k.to(b))
            assert d.rsample().dtype == dtype
            found = d.log_prob(z.to(half))
            assert d.log_prob(z).dtype == WIDE
        same = kind(normalize(loc.to(a).to(WIDE), dim=-1), k.to(b).to(WIDE))
        assert found.dtype == dtype
        torch.testing.assert_close(found, same.log_prob(points).to(dtype), rtol=1e-5, atol=1e-5)


def test_divergences_promote_dtypes():
    wide, narrow = vmf((3,)), vmf((3,), dtype=torch.float32)
    as_wide = VonMisesFisher(narrow.loc.to(WIDE), narrow.concentration.to(WIDE))
    uniform = HypersphericalUniform(5)
    assert uniform.loc.dtype == kl_divergence(narrow, uniform).dtype == torch.float32
    for found, expected in (
        (kl_divergence(wide, narrow), kl_divergence(wide, as_wide)),
        (kl_divergence(narrow, wide), kl_divergence(as_wide, wide)),
        (kl_divergence(wide, uniform), kl_divergence(wide, HypersphericalUniform(5, dtype=WIDE))),
        (kl_divergence(uniform, wide), kl_divergence(HypersphericalUniform(5, dtype=WIDE), wide)),
    ):
        assert found.dtype == WIDE
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
