"""Scores, prepared galleries and what was fitted are data: they are spelled, compared, copied, pickled and sent."""

import copy
import multiprocessing
import pickle
from concurrent.futures import ProcessPoolExecutor

import numpy as np
import pytest
import torch
from conftest import SCORES, assert_ranking, make, scored

import peaccel as pe

WAYS = {"pickled": lambda x: pickle.loads(pickle.dumps(x)), "copied": copy.deepcopy}
WITH_ARRAYS = (
    pe.scores.llr(prior_var=np.float32([0.1, 2.5, 1 / 3]), prior_mean=np.array([1 / 3, -1e-300, 2.0])),
    pe.scores.llr(prior_var=torch.tensor(0.1, requires_grad=True), prior_mean=torch.tensor([0.1, 0.2])),
    pe.scores.llr(prior_var=[0.5], prior_mean=(1, 2, 3)),
    pe.scores.hib(a=np.float32(0.1), b=-np.inf, n=np.int64(3), seed=torch.tensor(2**62)),
)
EVERY = (*map(pe.scores.get, SCORES), *WITH_ARRAYS)


def kinds(score):
    """Pairs of kinds, each with its own way to the kernel."""
    return {score.pair(*kinds): kinds for kinds in score.pairs}.values()


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
@pytest.mark.parametrize("score", EVERY, ids=repr)
def test_a_score_that_was_sent_is_the_same(score, way):
    twin = way(score)
    assert twin is not score and twin == score and hash(twin) == hash(score)
    for pair in score.pairs:
        assert twin.pair(*pair) == score.pair(*pair)
        assert twin.pair(*pair).op is score.pair(*pair).op


@pytest.mark.parametrize("score", EVERY, ids=repr)
def test_a_score_is_spelled_and_read_back_without_loss(score):
    twin = pe.scores.get(str(score))
    assert twin == score
    assert pe.scores.spelled(score) == str(score)
    assert pe.scores.get(str(twin)) == twin


@pytest.mark.parametrize("name", SCORES)
def test_what_was_sent_scores_to_the_last_bit(name):
    for query, gallery in kinds(scored(name, "normal_isotropic")):
        score = scored(name, query)
        q, g = make(query, 3, 8, seed=1), make(gallery, 20, 8, seed=2)
        expected = pe.pairwise(q, g, score)
        for way in WAYS.values():
            np.testing.assert_array_equal(pe.pairwise(way(q), way(g), way(score)), expected)
            np.testing.assert_array_equal(pe.pairwise(q, way(pe.prepare(g, score)), score), expected)


def test_scores_differ_by_name_parameters_and_pairs():
    mls, llr = pe.scores.mls, pe.scores.llr
    assert mls not in (pe.scores.cosine, "mls")
    assert llr(prior_var=0.5) != llr(prior_var=0.25)
    assert llr(prior_var=np.ones(2)) != llr(prior_var=np.ones(3))
    assert llr(prior_var=np.ones(2)) != llr(prior_var=1.0) != llr(prior_var=np.ones(2))
    assert [pe.scores.get(name).params["n"] for name in ("hib", "sampled_cosine", "neg_sampled_l2", "el_nivmf")] == [
        8,
        10,
        10,
        5,
    ]
    own = pe.scores.Score(
        "mls", "Another one.", {**mls.pairs, ("point", "point"): pe.scores.cosine.pair("point", "point")}
    )
    assert own != mls
    with pytest.raises(ValueError, match="is prepared for score mls"):
        pe.pairwise(make("point", 2, 4), pe.prepare(make("normal_isotropic", 2, 4)), own)


def test_what_cannot_be_spelled_says_so():
    with pytest.raises(ValueError, match="has no text: expected a word, a number or a row of numbers"):
        str(pe.scores.llr(prior_var=np.ones((2, 2))))
    own = pe.scores.Score("mls", "Another one.", {("point", "point"): pe.scores.cosine.pair("point", "point")})
    for score in (
        own,
        pe.scores.llr(prior_var=np.ones((2, 2))),
        pe.scores.llr(prior_var=1.0, prior_mean=None),
        pe.scores.llr(prior_var=2**53 + 1),
        pe.scores.llr(prior_var=np.array([1.0, np.nan])),
        pe.scores.el_nivmf(seed=np.random.default_rng(0)),
    ):
        with pytest.raises(ValueError, match=r"^score \S.* has no text that pe\.scores\.get reads back$"):
            pe.scores.spelled(score)
    with pytest.raises(ValueError, match="prior_var must be a number, or numbers in brackets, got '\\[1 x\\]'"):
        pe.scores.get("llr:prior_var=[1 x]")


def test_a_prepared_gallery_knows_scores_that_come_and_go():
    """Scores unpickled for a call leave their address to the next one."""
    g = make("normal_isotropic", 300, 16, seed=2)
    score = pe.scores.llr(prior_var=0.5, prior_mean=np.linspace(-1, 1, 16))
    text, prepared = pickle.dumps(score), pe.prepare(g, score)
    queries = [make(kind, 2, 16, seed=3) for kind in ("normal_isotropic", "normal_diagonal", "point")]
    expected = [pe.search(q, g, 5, score) for q in queries]
    sizes = []
    for call in range(60):
        found = pe.search(queries[call % 3], prepared, 5, pickle.loads(text))
        assert_ranking(found, expected[call % 3], f"in call {call}")
        sizes.append(prepared.nbytes)
    assert len(set(sizes[2:])) == 1


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_a_parameter_that_changes_is_another_score(library):
    mean = np.zeros(8, np.float32) if library == "numpy" else torch.zeros(8)
    score = pe.scores.llr(prior_var=0.5, prior_mean=mean)
    q, g = (make("normal_isotropic", n, 8, library=library) for n in (2, 9))
    prepared = pe.prepare(g, score)
    mean += 1
    with pytest.raises(ValueError, match="is prepared for score llr"):
        pe.search(q, prepared, 3, score)
    assert_ranking(pe.search(q, prepared, 3, prepared.score), pe.search(q, g, 3, pe.scores.llr(prior_var=0.5)))


@pytest.mark.parametrize("library", ["numpy", "torch"])
@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_a_prepared_gallery_that_was_sent_is_laid_out_as_before(library, way):
    for kind, dtype in (("normal_isotropic", None), ("normal_diagonal", None), ("vmf", "float16")):
        prepared = pe.prepare(make(kind, 50, 8, library=library), dtype=dtype)
        twin = way(prepared)
        assert twin.nbytes == prepared.nbytes and twin.score == prepared.score
        q = make(kind, 3, 8, seed=4, library=library)
        assert_ranking(pe.search(q, twin, 5), pe.search(q, prepared, 5))
        assert twin.nbytes == prepared.nbytes


def test_spawned_workers_take_all_of_it():
    q, g = make("normal_diagonal", 4, 8, seed=1), make("normal_diagonal", 40, 8, seed=2)
    score = pe.scores.llr(prior_var=np.full(8, 0.5), prior_mean=np.ones(8))
    prepared = pe.prepare(g, score)
    labels = np.arange(40) % 4
    pairs = np.array([[0, 4], [1, 5], [2, 3]])
    fitted = pe.calibrate_variance(g, pairs, [True, True, False])
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        assert_ranking(pool.submit(pe.search, q, prepared, 5, score).result(), pe.search(q, g, 5, score))
        np.testing.assert_array_equal(pool.submit(fitted, g).result().var, fitted(g).var)
        assert pool.submit(pe.fit_prior, g, labels).result()[1].shape == (8,)
