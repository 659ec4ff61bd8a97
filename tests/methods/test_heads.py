"""Heads: shapes, initial values, and the ranges of their outputs."""

import math

import pytest
import torch

import peaccel as pe
from peaccel import heads
from peaccel.methods.parts import Given
from peaccel.published.revisited import LinearUncertaintyHead


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def test_variance_head_starts_from_one_variance():
    var = heads.VarianceHead(5, 4, 8)(torch.randn(64, 5))
    assert var.shape == (64, 4)
    assert torch.allclose(var, torch.full_like(var, math.exp(-7) + 1e-6), rtol=1e-3)


def test_positive_is_what_it_says():
    x = torch.tensor([-1e6, -1.0, -1e-3, 0.0, 1e-3, 1.0, 1e6], dtype=torch.float64, requires_grad=True)
    y = heads.positive(x)
    assert y.tolist() == pytest.approx([1 / (1 + 1e6), 0.5, 1 / 1.001, 1, 1.001, 2, 1e6 + 1])
    (slope,) = torch.autograd.grad(y.sum(), x)
    assert torch.isfinite(slope).all() and (slope > 0).all() and slope[3] == 1
    assert (y.diff() > 0).all()


@pytest.mark.parametrize("out", [1, 6])
def test_uncertainty_head_is_positive_and_starts_where_asked(out):
    head = heads.UncertaintyHead(16, out, start=0.01)
    x = head(torch.randn(200, 16))
    assert x.shape == ((200,) if out == 1 else (200, out))
    assert x.min() > heads.FLOOR and 0.005 < x.mean() < 0.02


def test_published_uncertainty_head_is_linear_before_its_last_map():
    x = torch.randn(3, 16)
    between = LinearUncertaintyHead(16).layers
    assert torch.allclose(between(2 * x) - between(torch.zeros_like(x)), 2 * (between(x) - between(0 * x)), atol=1e-6)
    bent = heads.UncertaintyHead(16).layers
    assert not torch.allclose(bent(2 * x) - bent(0 * x), 2 * (bent(x) - bent(0 * x)), atol=1e-3)


def test_softplus_head_starts_where_asked():
    x = heads.SoftplusHead(8, start=0.3)(0 * torch.randn(50, 8))
    assert torch.allclose(x, torch.full((50,), x[0].item())) and (x > 0).all() and 0.2 < x[0] < 0.45


@pytest.mark.parametrize("activation", heads.ACTIVATIONS)
@pytest.mark.parametrize("hidden", [(), (8,), (8, 4)])
def test_scale_head_has_every_activation_and_depth(activation, hidden):
    head = heads.ScaleHead(6, hidden, activation, constant=3.0)
    scale = head(torch.randn(40, 6))
    assert scale.shape == (40,) and torch.isfinite(scale).all()
    assert sum(isinstance(layer, torch.nn.Linear) for layer in head.layers) == len(hidden) + 1
    bounds = {"sigmoid": (0, 3), "one_plus_sigmoid": (3, 6), "shifted_sigmoid": (3, 4), "relu": (0, math.inf)}
    low, high = bounds.get(activation, (-math.inf if activation == "identity" else 0, math.inf))
    assert scale.min() >= low and scale.max() <= high


def test_heads_give_distributions_that_are_valid():
    features = torch.randn(30, 12)
    mean = heads.MeanHead(12, 5)
    normal = heads.NormalHead(mean, heads.UncertaintyHead(12))(features)
    vmf = heads.VonMisesFisherHead(mean, heads.UncertaintyHead(12))(features)
    by_length = heads.VonMisesFisherHead(heads.MeanHead(12, 5, unit=False))(features)
    scaled = heads.ScaledHead(mean, heads.ScaleHead(12))(features)
    for d, kind in ((normal, pe.Normal), (vmf, pe.VonMisesFisher), (by_length, pe.VonMisesFisher), (scaled, pe.Scaled)):
        assert isinstance(d.validate(), kind) and len(d) == 30 and d.dim == 5
    assert heads.PointHead(heads.MeanHead(12, 5, unit=False))(features).mu.norm(dim=1).std() > 0


@pytest.mark.parametrize("of_backbone", [torch.float32, torch.bfloat16])
def test_under_autocast_every_head_gives_float32_and_unit_rows(of_backbone):
    """All is as in float32: in bfloat16 lengths of means would be off by 0.4 %, and uncertainties have three digits."""
    features, mean = torch.randn(30, 12).to(of_backbone), heads.MeanHead(12, 5)
    given = Given(12)
    assert torch.equal(given(features), torch.nn.functional.normalize(features.float()))
    every = [
        heads.PointHead(mean),
        heads.PointHead(given),
        heads.NormalHead(mean, heads.UncertaintyHead(12)),
        heads.NormalHead(mean, heads.VarianceHead(12, 5, 8)),
        heads.NormalHead(given, heads.SoftplusHead(12, 0.01)),
        heads.VonMisesFisherHead(mean, heads.UncertaintyHead(12)),
        heads.ScaledHead(mean, heads.ScaleHead(12)),
    ]
    for head in every:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            d = head(features)
        assert {x.dtype for x in d.arrays} == {torch.float32}
        torch.testing.assert_close(d.mu, head.mean(features.float()))
        if len(d.arrays) == 2:  # in bfloat16 many of these would be equal
            torch.testing.assert_close(d.arrays[1], head(features.float()).arrays[1])
        assert (d.mu.norm(dim=1) - 1).abs().max() < 1e-6
    for length in (heads.ScaledMean(mean), heads.MeanHead(12, 5, unit=False)):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert torch.equal(heads.VonMisesFisherHead(length)(features).kappa, length(features.float()).norm(dim=1))


def test_concentration_is_one_over_uncertainty_or_the_length():
    features = torch.randn(9, 12)
    head = heads.VonMisesFisherHead(heads.MeanHead(12, 5), heads.UncertaintyHead(12))
    assert torch.equal(head(features).kappa, 1 / head.uncertainty(features))
    rows = heads.MeanHead(12, 5, unit=False)
    assert torch.equal(heads.VonMisesFisherHead(rows)(features).kappa, rows(features).norm(dim=1))


def test_a_sphere_whose_radius_is_learned():
    head = heads.ScaledMean(heads.MeanHead(12, 5))
    with torch.no_grad():
        head.log_radius.fill_(math.log(3))
    assert torch.allclose(head(torch.randn(7, 12)).norm(dim=1), torch.full((7,), 3.0))


def test_a_direction_of_length_zero_is_no_nan():
    head = heads.VonMisesFisherHead(torch.nn.Identity())
    features = torch.zeros(2, 3, requires_grad=True)
    d = head(features)
    (grad,) = torch.autograd.grad(d.kappa.sum() + d.mu.sum(), features)
    assert torch.isfinite(d.mu).all() and torch.isfinite(grad).all() and (d.kappa == 0).all()
