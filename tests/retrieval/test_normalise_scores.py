"""Normalised scores against the plain forms, one score at a time, in float64."""

import math
import re
import statistics

import numpy as np
import pytest
import torch
from conftest import make, to_numpy

import peaccel as pe

SCORE = "llr:prior_var=0.5"
QUERIES, GALLERY, COHORT = (make("normal_isotropic", n, 4, seed=seed) for seed, n in enumerate((7, 9, 30)))
RAW = pe.pairwise(QUERIES, GALLERY, SCORE)


def best(items, n):
    """The n greatest scores of each item with the cohort."""
    return [sorted(row, reverse=True)[:n] for row in pe.pairwise(items, COHORT, SCORE).tolist()]


def plain(score, of_query, of_item):
    """One normalised score; None for a side that is not given."""
    terms = [(score - statistics.fmean(x)) / statistics.pstdev(x) for x in (of_query, of_item) if x is not None]
    return math.fsum(terms) / len(terms)


def expected(of_queries, of_gallery):
    return np.array([
        [plain(float(RAW[q, g]), of_queries and of_queries[q], of_gallery and of_gallery[g]) for g in range(9)]
        for q in range(7)
    ])  # fmt: skip


NORMS = {"Z": (False, True), "T": (True, False), "S": (True, True)}


@pytest.mark.parametrize("n", [30, 5], ids=["whole", "adaptive"])
@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_norms_of_a_matrix_are_the_plain_ones(norm, n, library):
    q, g = NORMS[norm]
    of = [pe.search(items, COHORT, n, SCORE) if given else None for items, given in ((QUERIES, q), (GALLERY, g))]
    raw = RAW
    if library == "torch":
        raw = torch.tensor(RAW)
        of = [pe.Ranking(torch.tensor(x.scores), torch.tensor(x.ids)) if x else None for x in of]
    found = pe.normalise_scores(raw, queries=of[0], gallery=of[1])
    assert type(found) is type(raw) and found.dtype == raw.dtype
    plainly = expected(best(QUERIES, n) if q else None, best(GALLERY, n) if g else None)
    np.testing.assert_allclose(to_numpy(found), plainly, rtol=1e-5, atol=1e-6)  # of float32
    if n == 30:  # a matrix of all of the cohort says the same
        of = [
            None if x is None else pe.pairwise(items, COHORT, SCORE)
            for items, x in ((QUERIES, of[0]), (GALLERY, of[1]))
        ]
        again = pe.normalise_scores(RAW, queries=of[0], gallery=of[1])
        np.testing.assert_allclose(again, to_numpy(found), rtol=1e-5, atol=1e-6)


def test_sums_are_float64():
    """Scores far from 0, with a deviation that float32 sums would not keep."""
    rng = np.random.default_rng(0)
    raw, of = (1e4 + rng.normal(size=shape) for shape in ((3, 4), (3, 300)))
    found = pe.normalise_scores(raw, queries=of)
    for i in range(3):
        for j in range(4):
            assert found[i, j] == pytest.approx(plain(raw[i, j], of[i].tolist(), None), rel=1e-10)
    single = pe.normalise_scores(raw.astype("f4"), queries=of.astype("f4"))
    again = pe.normalise_scores(raw.astype("f4").astype("f8"), queries=of.astype("f4").astype("f8"))
    np.testing.assert_array_equal(single, again.astype("f4"))


@pytest.mark.parametrize("library", ["numpy", "torch"])
@pytest.mark.parametrize("norm", NORMS)
def test_a_ranking_is_put_in_the_order_of_its_new_scores(norm, library):
    q, g = NORMS[norm]
    queries, gallery, cohort = (d if library == "numpy" else as_tensors(d) for d in (QUERIES, GALLERY, COHORT))
    of = {
        name: pe.search(items, cohort, 5, SCORE)
        for name, items, given in (("queries", queries, q), ("gallery", gallery, g))
        if given
    }
    found = pe.normalise_scores(pe.search(queries, gallery, 12, SCORE), **of)
    matrix = to_numpy(pe.normalise_scores(pe.pairwise(queries, gallery, SCORE), **of))
    assert isinstance(found, pe.Ranking) and type(found.ids) is type(queries.mu)
    order = np.argsort(-matrix, 1, kind="stable")
    np.testing.assert_array_equal(to_numpy(found.ids), np.pad(order, ((0, 0), (0, 3)), constant_values=-1))
    np.testing.assert_array_equal(to_numpy(found.scores)[:, :9], np.take_along_axis(matrix, order, 1))
    assert (to_numpy(found.scores)[:, 9:] == -np.inf).all()


def as_tensors(d):
    return type(d)(*map(torch.tensor, d.arrays))


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_ties_go_to_the_lower_row_and_nan_before_padding(library):
    scores, ids = np.array([[3.0, 2, 2, np.nan, -np.inf, -np.inf]]), np.array([[4, 3, 1, 0, 2, -1]])
    of = np.array([[0.0, 2.0]]), np.array([[1.0, 3.0]] * 5)
    if library == "torch":
        scores, ids, *of = map(torch.tensor, (scores, ids, *of))
    found = pe.normalise_scores(pe.Ranking(scores, ids), queries=of[0], gallery=of[1])
    assert to_numpy(found.ids).tolist() == [[4, 1, 3, 2, 0, -1]]
    np.testing.assert_array_equal(to_numpy(found.scores), [[1.5, 0.5, 0.5, -np.inf, np.nan, -np.inf]])


def test_a_norm_by_the_gallery_changes_the_order():
    ranking = pe.Ranking(np.array([[3.0, 2.0]]), np.array([[0, 1]]))
    found = pe.normalise_scores(ranking, gallery=[[2.0, 4.0], [0.0, 2.0]])
    assert found.ids.tolist() == [[1, 0]] and found.scores.tolist() == [[1.0, 0.0]]


def test_no_queries_have_no_scores():
    none = pe.search(QUERIES[:0], GALLERY, 3, SCORE)
    found = pe.normalise_scores(none, queries=pe.search(QUERIES[:0], COHORT, 5, SCORE), gallery=RAW.T)
    assert found.scores.shape == found.ids.shape == (0, 3)


def test_gradients_of_a_matrix_and_halves():
    raw, of = torch.randn(3, 4, dtype=torch.float64, requires_grad=True), torch.randn(3, 6, dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda x, y: pe.normalise_scores(x, queries=y), (raw, of.requires_grad_()))
    half = pe.normalise_scores(raw.detach().half(), queries=of.detach().half())
    assert half.dtype == torch.float32


FINE = np.array([[0.0, 1.0], [2.0, 5.0]])
RANKING = pe.Ranking(np.zeros((2, 2)), np.array([[0, 1], [1, 0]]))
FEW = pe.Point(np.eye(3))


@pytest.mark.parametrize(
    ("scores", "given", "error", "message"),
    [
        (FINE, {}, TypeError, "expected queries, gallery or both, their scores with the cohort"),
        ((FINE, FINE), {"queries": "x"}, ValueError, "scores have shape (2, 2, 2), expected (Q, G)"),
        (FINE[0], {"queries": FINE}, ValueError, "scores have shape (2,), expected (Q, G)"),
        (FINE, {"queries": FINE[:1]}, ValueError, "queries has shape (1, 2), expected (2, N) with N >= 2 items of"),
        (FINE, {"gallery": FINE[:, :1]}, ValueError, "gallery has shape (2, 1), expected (2, N) with N >= 2 items of"),
        (FINE, {"gallery": FINE[0]}, ValueError, "gallery has shape (2,), expected (2, N) with N >= 2 items of"),
        (RANKING, {"gallery": FINE[:, :1]}, ValueError, "gallery has shape (2, 1), expected (G, N) with N >= 2 items"),
        (RANKING, {"gallery": FINE[:1]}, ValueError, "ids of scores are not -1 .. 0, rows of gallery"),
        (
            FINE,
            {"queries": np.where(FINE == 2, -np.inf, FINE)},
            ValueError,
            "queries has -inf in row 1; was k more than the cohort has?",
        ),
        (FINE, {"queries": np.where(FINE < 2, 0.1, FINE)}, ValueError, "queries is one number in row 0, whose devi"),
        (FINE, {"queries": FINE, "cohort": FEW}, TypeError, "cohort names the norm of a Ranking, got scores of ndarr"),
        (RANKING, {"queries": RANKING, "cohort": FINE}, TypeError, "cohort must be a distribution, got ndarray"),
        (RANKING, {"queries": FINE, "cohort": FEW}, TypeError, "queries beside cohort is ndarray, expected a Ranking"),
        (RANKING, {"queries": RANKING, "cohort": FEW[:1]}, ValueError, "ids of queries are not 0 .. 0, rows of coho"),
        (
            RANKING,
            {"queries": RANKING, "gallery": pe.search(FEW, FEW, 3), "cohort": FEW},
            ValueError,
            "queries and gallery have the nearest [2, 3] of cohort, expected as many",
        ),
        (
            pe.search(FEW, FEW, 3),
            {"queries": pe.search(FEW, FEW, 3, "neg_sq_l2")},
            ValueError,
            "queries has scores of neg_sq_l2, expected cosine like scores",
        ),
        (FINE, {"queries": torch.tensor(FINE)}, TypeError, "queries is a torch tensor on cpu, expected a numpy array"),
    ],
)
def test_what_cannot_be_normalised_is_refused(scores, given, error, message):
    with pytest.raises(error, match="^" + re.escape(f"normalise_scores: {message}")) as caught:
        pe.normalise_scores(scores, **given)
    assert "\n" not in str(caught.value)
