"""Confidence of every kind, and the prior of labelled items, against their definitions and simulated data."""

import numpy as np
import pytest
import reference
import torch
from conftest import EPS, KINDS, NUMPY, build, make, to_numpy, wide

import peaccel as pe


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
    np.testing.assert_allclose(to_numpy(var), expected_var if kind == "normal_diagonal" else expected_var.mean(), 1e-12)
    score = pe.scores.llr(prior_var=var, prior_mean=mean)
    if kind != "point":
        assert np.isfinite(to_numpy(pe.pairwise(d, d, score))).all()


@pytest.mark.parametrize("kind", ["normal_isotropic", "normal_diagonal", "vmf", "nivmf"])
def test_confidence_rises_with_certainty_and_is_infinite_at_the_ends(kind):
    extra = np.array([1e-8, 0.5, 3, 1e6])[:, None] * np.ones(3)
    mu = np.eye(4, 3) + np.eye(4, 3, -3)
    found = pe.confidence(build(kind, mu, extra if kind in ("normal_diagonal", "nivmf") else extra[:, 0]))
    assert (np.diff(found) * (-1 if kind.startswith("normal") else 1) > 0).all()


def test_confidence_differentiates():
    var = torch.tensor([[0.5, 2.0], [1.0, 4.0]], requires_grad=True)
    pe.confidence(pe.Normal(torch.zeros(2, 2), var)).sum().backward()
    np.testing.assert_allclose(var.grad, -1 / (2 * var.detach()))


@pytest.mark.parametrize(("kind", "truth"), [("normal_diagonal", (0.5, 2.0, 0.05)), ("point", (0.8, 0.8, 0.8))])
def test_fit_prior_finds_the_prior_of_simulated_classes(kind, truth):
    rng = np.random.default_rng(1)
    truth, mean = np.array(truth), np.array([3.0, -1.0, 0.0])
    labels = rng.integers(0, 4000, 20_000)
    centres = mean + rng.standard_normal((4000, 3)) * truth**0.5
    mu = centres[labels] + rng.standard_normal((20_000, 3)) * 0.6
    found_mean, found = pe.fit_prior(build(kind, mu, np.full_like(mu, 0.36)), labels)
    # Of 4000 classes of 5: a variance has a standard error of (truth + 0.36 / 5) sqrt(2 / 4000); 4.5 of them.
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
