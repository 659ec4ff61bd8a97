"""Every kind of confidence against its definition."""

import re

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
@pytest.mark.parametrize(("a", "b"), [(1.0, 0.0), (3.0, 6.0)])
def test_self_match_is_the_probability_that_an_item_matches_itself(a, b, library):
    for dtype in NUMPY:
        d = make("normal_isotropic", 6, 9, 1, dtype=dtype, library=library)
        found = pe.confidence(d, "self_match", a=a, b=b)
        assert type(found) is type(d.mu) and found.dtype == d.mu.dtype
        value = np.exp(reference.match_probability(9, 0.0, 2 * wide(d, "float64")[2][:, 0], a, b))
        eps = {"float16": 2.0**-10, "bfloat16": 2.0**-7}.get(dtype, 16 * EPS.get(dtype, 0))
        np.testing.assert_allclose(to_numpy(found), value.astype(float), rtol=max(eps, 1e-9))
    # Of one variance in all dimensions, by draws: the mean over n n pairs, seeds apart.
    one = make("normal_isotropic", 6, 9, 1, library=library)
    same = type(one)(one.mu, one.var[:, None] + 0 * one.mu)
    drawn = [to_numpy(pe.confidence(same, "self_match", a=a, b=b, n=64, seed=seed)) for seed in range(32)]
    exact = to_numpy(pe.confidence(one, "self_match", a=a, b=b))
    assert (abs(np.mean(drawn, 0) - exact) < 5 * np.std(drawn, 0) / np.sqrt(31)).all()


def test_self_match_falls_with_variance_and_not_with_where_an_item_lies():
    var = np.geomspace(1e-16, 1e6, 30)
    near = pe.confidence(pe.Normal(np.zeros((30, 4)), var), "self_match", a=2.0, b=1.0)
    far = pe.confidence(pe.Normal(np.full((30, 4), 1e8), var), "self_match", a=2.0, b=1.0)
    np.testing.assert_array_equal(far, near)
    assert (np.diff(near) < 0).all() and near[0] == pytest.approx(1 / (1 + np.exp(-1))) and near[-1] < 1e-3


def test_self_match_trains_its_line():
    line = [torch.tensor(x, dtype=torch.float64, requires_grad=True) for x in (2.0, 1.0)]
    for kind in ("normal_isotropic", "normal_diagonal"):
        d = make(kind, 4, 5, library="torch")
        assert torch.autograd.gradcheck(
            lambda var, a, b, d=d: pe.confidence(type(d)(d.mu, var), "self_match", a=a, b=b, seed=3),
            [d.var.clone().requires_grad_(), *line],
        )


@pytest.mark.parametrize(("arguments", "error", "message"), [
    (("vmf", "self_match"), TypeError, "confidence: kind 'self_match' is of normal_isotropic, "),
    (("normal_isotropic", "norm", {"a": 2.0}), TypeError, "confidence: a must not be given to kind 'norm', only"),
    (("normal_isotropic", "self_match", {"b": [1.0, 2.0]}), ValueError, "confidence: b must be a number, got shape (2"),
    (("normal_diagonal", "self_match", {"n": 0}), ValueError, "confidence: n is 0, expected 1 .. 1024"),
    (("normal_diagonal", "self_match", {"seed": -1}), ValueError, "confidence: seed is -1, expected 0 .. "),
])  # fmt: skip
def test_bad_arguments_of_self_match_get_one_line(arguments, error, message):
    kind, name, *given = arguments
    with pytest.raises(error, match="^" + re.escape(message)):
        pe.confidence(make(kind), name, **(given[0] if given else {}))


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
