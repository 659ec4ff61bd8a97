"""Means of both sides, and what is left without them."""

import re

import numpy as np
import pytest
import torch

import peaccel as pe

RNG = np.random.default_rng(0)
TOPICS = RNG.normal(size=(300, 16))
OF_QUERIES, OF_GALLERY = 3 * RNG.normal(size=(2, 16))


def sides(dtype="f4"):
    return tuple(
        pe.Point((TOPICS + mean + RNG.normal(size=TOPICS.shape)).astype(dtype)) for mean in (OF_QUERIES, OF_GALLERY)
    )


def recall(queries, gallery):
    return (pe.search(queries, gallery, 1, "cosine").ids[:, 0] == np.arange(len(gallery))).mean()


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8"])
@pytest.mark.parametrize("library", [np.asarray, torch.as_tensor])
def test_cosines_are_of_what_is_left_without_the_means(dtype, library):
    queries, gallery = (pe.Point(library(d.mu)) for d in sides(dtype))
    centre = pe.fit_centre(queries, gallery)
    left = centre.of_queries(queries), centre.of_gallery(gallery)
    for d, given, mean in zip(left, (queries, gallery), (centre.query_mean, centre.gallery_mean), strict=True):
        assert type(d.mu) is type(given.mu) and d.mu.dtype == given.mu.dtype
        wide = np.asarray(given.mu, np.float64)
        np.testing.assert_allclose(mean, wide.mean(0), rtol=1e-12)
        assert np.array_equal(np.asarray(d.mu), (wide - mean).astype(dtype))
    if dtype == "f4" and library is np.asarray:
        assert recall(*left) > recall(queries, gallery) + 0.2
    alone = pe.fit_centre(queries)
    assert alone.gallery_mean == alone.query_mean == centre.query_mean


def test_what_is_whitened_has_the_covariance_of_the_identity():
    stretch = RNG.normal(size=(16, 16)) @ np.diag(np.logspace(0, -3, 16))
    queries, gallery = (pe.Point(d.mu @ stretch) for d in sides("f8"))
    centre = pe.fit_centre(queries, gallery, whiten=True)
    left = np.concatenate([centre.of_queries(queries).mu, centre.of_gallery(gallery).mu])
    np.testing.assert_allclose(left.T @ left / len(left), np.eye(16), atol=1e-8)
    constant = pe.Point(np.c_[queries.mu, np.full(len(queries), 7.0)])
    assert abs(pe.fit_centre(constant, whiten=True).of_queries(constant).mu[:, -1]).max() < 1e-6


def test_normals_keep_their_variances_and_gradients_pass():
    d = pe.Normal(torch.randn(9, 4, requires_grad=True), torch.ones(9, 4))
    found = pe.fit_centre(d).of_queries(d)
    assert torch.equal(found.var, d.var) and found.mu.requires_grad


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: pe.fit_centre(TOPICS), TypeError, "fit_centre: queries must be a distribution that has a mean to sub"),
        (lambda: pe.fit_centre(pe.Point(TOPICS[:0])), ValueError, "fit_centre: queries has shape (0, 16), expected (N"),
        (lambda: pe.fit_centre(pe.Point(TOPICS), pe.Point(TOPICS[:, :3])), ValueError,
         "fit_centre: gallery has shape (300, 3), expected (N, 16), N > 0"),
        (lambda: pe.fit_centre(pe.Point(TOPICS * np.inf)), ValueError, "fit_centre: queries: 300 of 300 rows"),
        (lambda: pe.fit_centre(pe.Point(TOPICS[:16]), whiten=True), ValueError,
         "fit_centre: 16 items of 16 dimensions, expected more items than dimensions to whiten"),
        (lambda: pe.fit_centre(pe.Normal(TOPICS, 1.0), whiten=True), TypeError,
         "fit_centre: queries must be a distribution that can be whitened (point), got normal_isotropic"),
        (lambda: pe.fit_centre(pe.Point(TOPICS)).of_gallery(pe.Point(TOPICS[:, :3])), ValueError,
         "Centre: fitted on 16 dimensions, cannot be applied to gallery of 3"),
        (lambda: pe.fit_centre(pe.Point(TOPICS)).of_queries(pe.Scaled(TOPICS, np.ones(300))), TypeError,
         "Centre: queries are scaled, expected point or normal_isotropic or normal_diagonal"),
    ],
)  # fmt: skip
def test_what_cannot_be_centred_is_refused(call, error, message):
    with pytest.raises(error, match="^" + re.escape(message)) as caught:
        call()
    assert "\n" not in str(caught.value)
