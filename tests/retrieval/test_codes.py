"""Codes rule candidates out and change nothing: ids and scores are, to the last bit, those of scoring all."""

import copy
import pickle

import numpy as np
import pytest
import torch
from conftest import CLASSES, assert_ranking, build, flat_index, make, to_numpy
from test_search import DIMS, SCORES, items

import peaccel as pe
from peaccel.ops import _numpy

OF_ONE_PRODUCT = {kind: scores for kind, scores in SCORES.items() if kind != "normal_diagonal"}
HOSTILE = (0.0, np.nan, np.inf, -np.inf, 1e20, -1e30, 1e38, 1e-30, 1e-42)


def hard(rng, kind):
    """Queries, and rows that are equal, long, short, far apart or near, some of no number; and what they are."""
    shape = {
        "clustered": rng.random() < 0.5,
        "unit": rng.random() < 0.5,
        "near": 10.0 ** rng.uniform(-6, 0),
        "length": rng.choice([1e-150, 1e-90, 1e-80, 1e-18, 0.01, 1, 1, 100, 1e6, 1e18, 1e90, 1e150]),
        "powers": rng.choice([0, 0.01, 0.3, 1, 4]),
        "base": 10.0 ** rng.uniform(-6, 6),
    }
    dim = int(rng.choice(DIMS if not CLASSES[kind][0]._unit else DIMS[1:]))
    n = int(rng.integers(100, 3000))
    dtype = "float32" if 1e-20 < shape["length"] < 1e20 and rng.random() < 0.5 else "float64"
    with np.errstate(over="ignore"):
        (mu, uncertainty), (q_mu, q_uncertainty) = (items(rng, kind, m, dim, shape) for m in (n, 9))
    q_mu[:3] = mu[rng.integers(0, n, 3)]
    mu[rng.integers(0, n, n // 9)] = mu[rng.integers(0, n, n // 9)]
    if rng.random() < 0.3:
        uncertainty[rng.integers(0, n, 1 + n // 10)] = rng.choice([np.nan, -1, 0, np.inf])
    if rng.random() < 0.4:
        mu[rng.integers(0, n, 5)] = rng.choice(HOSTILE)
        mu[rng.integers(0, n, 5), rng.integers(0, dim)] = rng.choice(HOSTILE)
    q, g = build(kind, q_mu, q_uncertainty, dtype=dtype), build(kind, mu, uncertainty, dtype=dtype)
    return q, g, f"{dtype} {n} x {dim}, {shape}"


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("kind", OF_ONE_PRODUCT)
@pytest.mark.filterwarnings("ignore:(invalid value|overflow|divide by zero):RuntimeWarning")
@pytest.mark.usefixtures("unlooked")
def test_codes_change_no_bit_of_what_is_found(kind, seed):
    """Candidates that name a row twice or none; as many as one part of the work takes, and more."""
    rng = np.random.default_rng([seed, list(OF_ONE_PRODUCT).index(kind)])
    for score in OF_ONE_PRODUCT[kind]:
        q, g, what = hard(rng, kind)
        k, coded = int(rng.choice([1, 3, 10])), pe.prepare(g, score, codes=True)
        for length in (8 * k, 8 * k + 7, 500, 2500):
            candidates = rng.integers(-1, len(g), (9, length))
            found, expected = (pe.rerank(q, x, candidates, k, score) for x in (coded, g))
            assert_ranking(found, expected, f"{score} {what}, {length} candidates, k={k}")


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("kind", OF_ONE_PRODUCT)
@pytest.mark.filterwarnings("ignore:(invalid value|overflow|divide by zero):RuntimeWarning")
@pytest.mark.usefixtures("unlooked")
def test_codes_change_no_bit_of_a_search(kind, seed):
    """Prepared or not, while codes pay and where they do not, of one query and of some."""
    rng = np.random.default_rng([seed, 1, list(OF_ONE_PRODUCT).index(kind)])
    for score in OF_ONE_PRODUCT[kind]:
        q, g, what = hard(rng, kind)
        if seed % 3 == 0 and kind != "scaled":
            # Encoders' rows have a mean in common, beside which they hardly differ.
            mu = g.mu + (1 if CLASSES[kind][0]._unit else 30 * np.nanmax(np.abs(g.mu[:50])))
            unit = CLASSES[kind][0]._unit
            g = type(g)(mu / np.linalg.norm(mu, axis=1, keepdims=True) if unit else mu, *g.arrays[1:])
        k, coded = int(rng.choice([1, 3, 10, 40])), pe.prepare(g, score, codes=True)
        for queries in (q, q[:1]):
            expected = pe.search(queries, pe.prepare(g, score, codes=False), k, score, prune="never")
            for gallery, prune in ((coded, "auto"), (coded, "always"), (g, "always")):
                found = pe.search(queries, gallery, k, score, prune=prune)
                assert_ranking(found, expected, f"{score} {what}, {prune}, k={k}")


@pytest.mark.parametrize("score", ["cosine", "neg_sq_l2"])
@pytest.mark.parametrize("library", ["numpy", "torch"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("dim", [1, 3, 63, 64, 130, 1024])
def test_searches_by_codes_in_every_dtype(dim, dtype, library, score):
    """Many queries of a raw gallery, and few of a prepared one, whose last panels and tiles are not whole."""
    if dtype == "bfloat16" and library == "numpy":
        pytest.importorskip("ml_dtypes")
    q = make("point", 61, dim, 1, dtype="float64" if dtype == "float64" else "float32", library=library)
    g = make("point", 1205, dim, 2, dtype=dtype, library=library)
    coded = pe.prepare(g, score, codes=True)
    expected = pe.search(q, pe.prepare(g, score, codes=False), 9, score, prune="never")
    expected = [to_numpy(expected.scores), to_numpy(expected.ids)]
    for count in (1, 2, 5, 61):
        for gallery in (coded, g):
            found = pe.search(q[:count], gallery, 9, score, prune="always")
            assert_ranking(found, [x[:count] for x in expected], f"{count} queries")
    assert_ranking(pe.search(q, g, 9, score), expected)


def test_searches_by_codes_score_few_rows_and_find_duplicates():
    """Also those of verbs that search for all above a threshold, and of lists as long as much of the gallery."""
    g, q = make("normal_isotropic", 9000, 64, 1, dtype="float32"), make("normal_isotropic", 60, 64, 2, dtype="float32")
    mu = g.mu.copy()
    mu[5000:5100] = mu[:100]
    g = pe.Normal(mu, g.var)
    coded, plain = pe.prepare(g, "mls"), pe.prepare(g, "mls", codes=False)
    assert coded.nbytes > plain.nbytes and not coded.coded
    for k in (1, 10, 500):
        found, expected = pe.search(q, coded, k, "mls"), pe.search(q, plain, k, "mls", prune="never")
        assert_ranking(found, expected)
        assert found.scored < (0.1 if k < 500 else 1)
    threshold = float(pe.search(q, coded, 40, "mls").scores[:, -1].mean())
    for found, expected in (
        (pe.search_above(q, coded, threshold, "mls"), pe.search_above(q[:5], g, threshold, "mls")),
        (pe.duplicates(coded, threshold, "mls"), pe.duplicates(plain, threshold, "mls")),
    ):
        count = len(expected.ids)
        np.testing.assert_array_equal(found.ids[:count], expected.ids)
        np.testing.assert_array_equal(found.scores[:count], expected.scores)
        assert count > 100


def test_a_search_reads_codes():
    """Codes of other rows lose the best one: it is ruled out unread."""
    if pe._core.coded_shape(1, 48) is None:
        pytest.skip("this processor gains nothing by codes")
    rng = np.random.default_rng(0)
    g = build("normal_isotropic", rng.standard_normal((12_000, 48)), np.full(12_000, 0.1), dtype="float32")
    coded = pe.prepare(g, "mls")
    q = g[11_000:11_001]  # the first rows that are visited are all scored
    assert pe.search(q, coded, 1, "mls").ids.tolist() == [[11_000]]
    (made,) = coded.made()
    made.panels()[3][:] = np.roll(made.panels()[3], 1, axis=0)
    assert pe.search(q, coded, 1, "mls", prune="always").ids.tolist() != [[11_000]]
    assert pe.search(q, coded, 1, "mls", prune="never").ids.tolist() == [[11_000]]


@pytest.mark.parametrize("library", ["numpy", "torch"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("kind", ["normal_isotropic", "vmf", "point"])
def test_codes_of_halves(kind, dtype, library):
    score = "cosine" if kind == "point" else "mls"
    q = make(kind, 5, 37, 1, dtype="float32", library=library)
    coded = pe.prepare(make(kind, 900, 37, 2, dtype=dtype, library=library), score, codes=True)
    candidates = np.random.default_rng(0).permuted(np.tile(np.arange(900), (5, 1)), axis=1)
    candidates = torch.from_numpy(candidates) if library == "torch" else candidates
    found = pe.rerank(q, coded, candidates, 7, score)
    expected = pe.search(q, coded, 7, score)
    assert_ranking(found, [to_numpy(expected.scores), to_numpy(expected.ids)])


def test_rows_that_codes_rule_out_are_not_read():
    """Codes of other rows make those the answer, whose own numbers are worse: they alone were read."""
    rng = np.random.default_rng(0)
    g = build("normal_isotropic", rng.standard_normal((1000, 48)), np.full(1000, 0.1), dtype="float32")
    q, candidates = g[:1], np.arange(1000)[None]
    coded = pe.prepare(g, "mls", codes=True)
    assert pe.rerank(q, coded, candidates, 1, "mls").ids.tolist() == [[0]]
    (made,) = coded.made()
    made._codes = np.roll(made.codes(), 1, axis=0)  # those of the query's own row are row 1's
    assert pe.rerank(q, coded, candidates, 1, "mls").ids.tolist() == [[1]]
    assert pe.rerank(q, coded, candidates[:, :7], 1, "mls").ids.tolist() == [[0]]  # too few to look at codes
    assert pe.rescore(q, coded, candidates, "mls").argmax() == 0


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@pytest.mark.parametrize("dim", [1, 15, 16, 17, 200])
def test_codes_are_the_nearest_integers_and_say_what_they_leave_out(dim, dtype):
    """Scale and length of the rest as float32, squared norm and uncertainty as float64, integers, zeros."""
    g = make("normal_isotropic", 50, dim, 3, dtype=dtype)
    stored = _numpy.codes(g.mu, g.var)
    assert stored.shape == (50, 24 + -(-dim // 16) * 16) and not stored[:, 24 + dim :].any()
    scale, rest = (np.ascontiguousarray(stored[:, at : at + 4]).view(np.float32).astype(np.float64) for at in (0, 4))
    norm, var = (np.ascontiguousarray(stored[:, at : at + 8]).view(np.float64) for at in (8, 16))
    integers, mu = stored[:, 24 : 24 + dim].view(np.int8), to_numpy(g.mu)
    assert (np.abs(integers).max(1) == 127).all()
    np.testing.assert_array_equal(integers, np.round(mu / scale))
    left = np.linalg.norm(mu - scale * integers, axis=1, keepdims=True)
    assert (rest >= left).all() and (rest <= left * (1 + 1e-6) + 1e-40).all()
    np.testing.assert_allclose(norm[:, 0], (mu**2).sum(1), rtol=1e-6)
    np.testing.assert_array_equal(var[:, 0], to_numpy(g.var))


def test_codes_go_where_the_gallery_goes():
    g, more = (make("normal_isotropic", n, 24, n, dtype="float32") for n in (400, 60))
    coded = pe.prepare(g, "mls", codes=True)
    plain = pe.prepare(g, "mls")
    (made,) = coded.made()
    assert coded.nbytes - plain.nbytes == 400 * (24 + 32) + sum(x.nbytes for x in made.panels()[3:])
    for twin in (copy.deepcopy(coded), pickle.loads(pickle.dumps(coded))):
        assert twin.coded and twin.nbytes == coded.nbytes
    grown = coded
    for n in (1, 30, 60):
        grown = grown.extended(pe.concat([g, more[:n]]))
    want = pe.prepare(pe.concat([g, more]), "mls", codes=True)
    (found,), (expected,) = grown.made(), want.made()
    np.testing.assert_array_equal(found.codes(), expected.codes())
    assert not coded.extended(pe.concat([g, more])).packed and not plain.extended(pe.concat([g, more])).coded


def test_two_galleries_that_grow_out_of_one_keep_apart():
    """Rows that one appends to a buffer with spare rows are not overwritten by the other."""
    g, *added = (make("normal_isotropic", n, 24, n, dtype="float32") for n in (40, 1, 9, 8))
    grown = pe.prepare(g, "neg_w2", codes=True).extended(pe.concat([g, added[0]]))
    galleries = [pe.concat([g, added[0], more]) for more in added[1:]]
    twins = [grown.extended(gallery) for gallery in galleries]
    for twin, gallery in zip(twins, galleries, strict=True):
        (made,), (expected,) = twin.made(), pe.prepare(gallery, "neg_w2", codes=True).made()
        np.testing.assert_array_equal(made.codes(), expected.codes())
        for x, y in zip(made.inputs, expected.inputs, strict=True):
            np.testing.assert_array_equal(x, y)


def test_a_reranker_keeps_its_codes(tmp_path):
    pytest.importorskip("faiss")
    g, more, q = (make("normal_isotropic", n, 24, n, dtype="float32") for n in (400, 60, 5))
    reranker = pe.FaissReranker(flat_index(g), pe.prepare(g, "mls", codes=True))
    plain = pe.FaissReranker(flat_index(g), g)
    reranker.save(tmp_path / "saved")
    pe.FaissReranker(flat_index(g), g).save(tmp_path / "plain")
    loaded = pe.FaissReranker.open(tmp_path / "saved")
    for twin in (reranker, loaded, copy.copy(reranker), pickle.loads(pickle.dumps(reranker))):
        assert twin._prepared.coded
        assert_ranking(twin.search(q, 3, shortlist=300), plain.search(q, 3, shortlist=300))
    assert not pe.FaissReranker.open(tmp_path / "plain")._prepared.coded
    assert not pe.FaissReranker.open(tmp_path / "saved", mmap=True)._prepared.coded
    for changed in (loaded, plain):
        changed.add(more)
        changed.remove([3, 405])
        changed.upsert(q, [7, 8, 9, 10, 11])
    assert_ranking(loaded.search(q, 3, shortlist=300), plain.search(q, 3, shortlist=300))
    assert [changed.compact() for changed in (loaded, plain)] and loaded._prepared.coded
    assert_ranking(loaded.search(q, 3, shortlist=300), plain.search(q, 3, shortlist=300))
    (made,) = loaded._prepared.made()
    assert len(made.codes()) == len(loaded._prepared)


@pytest.mark.parametrize(
    ("kind", "score"), [("normal_diagonal", "mls"), ("normal_isotropic", "hib"), ("nivmf", "el_nivmf")]
)
def test_scores_that_read_galleries_in_another_way_have_no_codes(kind, score):
    with pytest.raises(TypeError, match=r"^prepare: codes=True, expected a score of one inner product on the CPU, got"):
        pe.prepare(make(kind, 9, dtype="float32"), score, codes=True)


def test_codes_are_asked_for_by_a_bool():
    for codes in ("no", 1, np.array([True, False])):
        with pytest.raises(TypeError, match=r"^prepare: codes is .*, expected True, False or None$"):
            pe.prepare(make("point", 9, dtype="float32"), "cosine", codes=codes)
    assert pe.prepare(make("point", 9, dtype="float32"), "cosine", codes=np.True_).coded
