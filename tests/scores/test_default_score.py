"""The score of a call that names none: that of a prepared gallery, cosine of points, and else mls."""

import numpy as np
import pytest

import peaccel as pe

RNG = np.random.default_rng(0)
POINTS, MORE = (pe.Point(RNG.normal(size=(n, 4)).astype(np.float32)) for n in (6, 9))
NORMALS = pe.Normal(MORE.mu, RNG.uniform(0.5, 2, 9).astype(np.float32))
CANDIDATES = np.arange(9)[None].repeat(6, 0)


@pytest.mark.parametrize(("queries", "gallery", "score"), [(POINTS, MORE, "cosine"), (POINTS, NORMALS, "mls")])
def test_every_verb_scores_points_by_cosine_and_others_by_mls(queries, gallery, score):
    def same(one, other):
        for x, y in zip(*((x if isinstance(x, tuple) else (x,)) for x in (one, other)), strict=True):
            np.testing.assert_array_equal(x, y)

    same(pe.paired(queries, gallery[:6]), pe.paired(queries, gallery[:6], score))
    same(pe.pairwise(queries, gallery), pe.pairwise(queries, gallery, score))
    same(pe.rescore(queries, gallery, CANDIDATES), pe.rescore(queries, gallery, CANDIDATES, score))
    same(pe.rerank(queries, gallery, CANDIDATES, 3), pe.rerank(queries, gallery, CANDIDATES, 3, score))
    same(pe.search(queries, gallery, 3), pe.search(queries, gallery, 3, score))
    blocks = [gallery[:4], gallery[4:]]
    same(pe.search(queries, blocks, 3), pe.search(queries, gallery, 3, score))
    same(pe.search(queries, iter(blocks), 3), pe.search(queries, gallery, 3, score))
    same(pe.rescore(queries, iter(blocks), CANDIDATES), pe.rescore(queries, gallery, CANDIDATES, score))


def test_a_prepared_gallery_has_its_score():
    assert pe.prepare(MORE).score == pe.scores.cosine and pe.prepare(NORMALS).score == pe.scores.mls
    ready = pe.prepare(NORMALS, "ppk:rho=0.25")
    np.testing.assert_array_equal(pe.pairwise(NORMALS, ready), pe.pairwise(NORMALS, NORMALS, "ppk:rho=0.25"))
    with pytest.raises(ValueError, match=r"^mls: gallery is prepared for score ppk"):
        pe.pairwise(NORMALS, ready, "mls")


def test_an_error_of_a_score_names_one_that_works():
    with pytest.raises(TypeError, match=r"^mls: cannot score point x point .*; score 'cosine' takes these$"):
        pe.search(POINTS, MORE, 1, "mls")
    vmf = pe.VonMisesFisher([[1.0, 0.0]], [2.0])
    with pytest.raises(TypeError, match=r"^neg_w2: cannot score vmf x vmf .*; score '\w+' takes these$") as error:
        pe.paired(vmf, vmf, "neg_w2")
    pe.paired(vmf, vmf, str(error.value).split("'")[-2])
