"""Every kind of confidence against its definition."""

import numpy as np
import pytest
import reference
import torch
from conftest import EPS, KINDS, NUMPY, build, make, to_numpy, wide

import peaccel as pe

LIBRARIES = ("numpy", "torch")


@pytest.mark.parametrize("library", ("numpy", "torch"))
@pytest.mark.parametrize("kind", [k for k in KINDS if k != "point"])
def test_confidence_is_its_definition_and_keeps_kind_and_dtype(kind, library):
    for dtype in NUMPY:
        d = make(kind, 6, 9, 1, dtype=dtype, library=library)
        found = pe.confidence(d)
        assert type(found) is type(d.mu) and found.dtype == d.mu.dtype
        eps = {"float16": 2.0**-10, "bfloat16": 2.0**-7}.get(dtype, EPS.get(dtype))
        value = reference.confidence(kind, wide(d, "float64")[2])
        np.testing.assert_allclose(to_numpy(found), value.astype(float), atol=8 * eps)


@pytest.mark.parametrize("kind", ["point", None, "array"])
def test_confidence_of_what_has_none_is_a_type_error(kind):
    d = {"point": make("point"), None: None, "array": np.ones((2, 3))}[kind]
    with pytest.raises(TypeError, match=r"^confidence: d must be a distribution with an uncertainty, got "):
        pe.confidence(d)


@pytest.mark.parametrize("kind", ["normal_isotropic", "normal_diagonal", "vmf", "nivmf"])
def test_confidence_rises_with_certainty_and_is_infinite_at_the_ends(kind):
    uncertainty = np.array([1e-8, 0.5, 3, 1e6])[:, None] * np.ones(3)
    mu = np.eye(4, 3) + np.eye(4, 3, -3)
    found = pe.confidence(build(kind, mu, uncertainty if kind in ("normal_diagonal", "nivmf") else uncertainty[:, 0]))
    assert (np.diff(found) * (-1 if kind.startswith("normal") else 1) > 0).all()


def test_confidence_differentiates():
    var = torch.tensor([[0.5, 2.0], [1.0, 4.0]], requires_grad=True)
    pe.confidence(pe.Normal(torch.zeros(2, 2), var)).sum().backward()
    np.testing.assert_allclose(var.grad, -1 / (2 * var.detach()))


def length(x):
    return np.sqrt((x * x).sum(-1))


# What each kind is of an item's mean and uncertainty (rows, of one element if there is one number per item).
DEFINITIONS = {
    "neg_log_var": (("normal_isotropic", "normal_diagonal"), lambda mu, var: -np.log(var).mean(-1)),
    "neg_entropy": (
        ("normal_isotropic", "normal_diagonal"),
        lambda mu, var: -0.5 * np.log(2 * np.pi * np.e * var).mean(-1),
    ),
    "log_kappa": (("vmf", "nivmf"), lambda mu, kappa: np.log(kappa).mean(-1)),
    "kappa": (("vmf", "nivmf"), lambda mu, kappa: kappa.mean(-1)),
    "scale": (("scaled",), lambda mu, scale: scale[:, 0]),
    "norm": (("normal_isotropic", "normal_diagonal", "point"), lambda mu, _: length(mu)),
    "harmonic_var": (("normal_isotropic", "normal_diagonal"), lambda mu, var: var.shape[1] / (1 / var).sum(-1)),
    "inverse_kappa": (("vmf", "nivmf"), lambda mu, kappa: kappa.shape[1] / kappa.sum(-1)),
    "inverse_scale": (("scaled",), lambda mu, scale: 1 / scale[:, 0]),
}
CELLS = [(name, kind) for name, (kinds, _) in DEFINITIONS.items() for kind in kinds]


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize(("name", "kind"), CELLS)
def test_named_confidence_is_its_definition_and_keeps_kind_and_dtype(name, kind, library):
    for dtype in NUMPY:
        d = make(kind, 6, 9, 1, dtype=dtype, library=library)
        found = pe.confidence(d, name)
        assert type(found) is type(d.mu) and found.dtype == d.mu.dtype
        _, mu, uncertainty = wide(d, "float64")
        value = DEFINITIONS[name][1](mu, uncertainty).astype(float)
        # Computed in float32 at least; then one rounding to the dtype.
        eps = {"float16": 2.0**-10, "bfloat16": 2.0**-7}.get(dtype, 4 * EPS.get(dtype, 0))
        np.testing.assert_allclose(to_numpy(found), value, rtol=eps, atol=eps)


@pytest.mark.parametrize("library", LIBRARIES)
def test_neg_entropy_of_vmf_is_minus_the_entropy_per_dimension(library):
    d = make("vmf", 6, 9, library=library)
    np.testing.assert_allclose(pe.confidence(d, "neg_entropy"), -pe.entropy(d) / 9, rtol=1e-15)


@pytest.mark.parametrize("kind", [k for k in KINDS if k != "point"])
def test_every_kind_but_the_uncertainties_orders_items_as_the_default_does(kind):
    shares = np.linspace(1, 30, 8)
    d = make(kind, 1, 5)
    factor = shares if d.arrays[1].ndim == 1 else shares[:, None]
    d = type(d)(np.repeat(d.mu, 8, 0), np.repeat(d.arrays[1], 8, 0) * factor)
    order = np.argsort(pe.confidence(d))
    for name in (name for name, of in CELLS if of == kind and name != "norm"):
        found = pe.confidence(d, name)
        unsure = name in ("harmonic_var", "inverse_kappa", "inverse_scale")
        np.testing.assert_array_equal(np.argsort(-found if unsure else found), order, err_msg=name)
        assert not unsure or (found > 0).all()


@pytest.mark.parametrize(("name", "kind"), [*CELLS, ("neg_entropy", "vmf")])
def test_named_confidence_differentiates(name, kind):
    d = make(kind, 4, 5, library="torch")
    used = [x.clone().requires_grad_() for x in d.arrays]
    assert torch.autograd.gradcheck(lambda *arrays: pe.confidence(type(d)(*arrays), name), used)


@pytest.mark.parametrize(
    ("kind", "name", "error", "begins"),
    [
        ("vmf", "kapa", ValueError, "confidence: unknown kind 'kapa'; did you mean 'kappa'?"),
        (
            "vmf",
            "zz",
            ValueError,
            "confidence: unknown kind 'zz'; expected one of neg_log_var, neg_entropy, log_kappa,",
        ),
        ("vmf", "scale", TypeError, "confidence: kind 'scale' is of scaled, got vmf"),
        (
            "point",
            "harmonic_var",
            TypeError,
            "confidence: kind 'harmonic_var' is of normal_isotropic, normal_diagonal, ",
        ),
        (
            "nivmf",
            "neg_entropy",
            TypeError,
            "confidence: kind 'neg_entropy' is of normal_isotropic, normal_diagonal, vmf",
        ),
        ("vmf", 3, TypeError, "confidence: kind must be a name or None, got int"),
    ],
)
def test_bad_kinds_get_one_line(kind, name, error, begins):
    with pytest.raises(error) as caught:
        pe.confidence(make(kind), name)
    assert str(caught.value).startswith(begins), str(caught.value)
    assert "\n" not in str(caught.value)
