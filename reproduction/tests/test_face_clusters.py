"""Clusters of made-up faces, and the measures of clusters beside plain loops."""

import numpy as np
import pytest

import peaccel as pe
from reproduction import face_clusters
from reproduction.face_clusters import b_cubed


def test_b_cubed_is_that_of_loops():
    rng = np.random.default_rng(0)
    clusters, labels = rng.integers(0, 8, 60), rng.integers(0, 5, 60)
    shares = [
        (np.mean(labels[clusters == c] == k), np.mean(clusters[labels == k] == c))
        for c, k in zip(clusters, labels, strict=True)
    ]
    assert b_cubed(clusters, labels) == pytest.approx(np.mean(shares, 0), abs=1e-12)
    assert b_cubed(labels, labels) == (1, 1)
    assert b_cubed(np.arange(4), np.array([0, 0, 1, 1])) == (1, 0.5)


@pytest.fixture
def people():
    """Embeddings of forty people, some alone, and who each is."""
    rng = np.random.default_rng(1)
    labels = np.arange(40).repeat(rng.integers(1, 6, 40))
    centres = rng.normal(size=(40, 24)) + 3
    return 0.3 * centres[labels] + 0.06 * rng.normal(size=(len(labels), 24)), labels


def test_each_method_finds_people_who_are_far_apart(people):
    x, labels = people
    for name, method in face_clusters.methods(x, labels):
        if not name.startswith("dlib"):  # which the tests do without
            found = max(face_clusters.judged(method.clusters(method.items(x), t), labels)[0] for t in method.thresholds)
            assert found > 60, name


def test_average_linkage_is_that_of_scikit_learn(people):
    x, labels = people
    every = dict(face_clusters.methods(x, labels))
    clusters = [
        every[name].clusters(every[name].items(x), 0.95)
        for name in ("`pe.cluster`, cosine", "scikit-learn, average linkage, cosine")
    ]
    same = [c[:, None] == c for c in clusters]
    np.testing.assert_array_equal(*same)


def test_components_join_what_lies_within_the_distance():
    x = np.array([[0.0], [0.5], [1.0], [2.0]])
    clusters = face_clusters.components(pe.Point(x), 0.6)
    assert clusters[0] == clusters[1] == clusters[2] != clusters[3]
