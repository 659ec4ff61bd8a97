"""Surrogate features rank as the score does; an index that grows and shrinks finds what one made anew finds."""

import faiss
import numpy as np
import pytest
from conftest import CLASSES, assert_ranking, build, make, to_numpy

import peaccel as pe

faiss.omp_set_num_threads(1)  # its threads spin for minutes where cores are few and shared

LLR = pe.scores.llr(prior_var=1.5, prior_mean=0.25)
NORMALS = ("normal_isotropic", "normal_diagonal")


def like_one(d, query):
    """Queries with other means and equal uncertainties."""
    others = make(d.kind, 7, d.dim, 5)
    arrays = [x for x in (others.mu, *(np.repeat(x[query : query + 1], 7, 0) for x in d.arrays[1:]))]
    return build(d.kind, *arrays)


def products(queries, gallery, score, reference):
    """Inner products, less the mean over each query's row."""
    q = pe.first_stage_features(queries, score, "query", reference)
    g = pe.first_stage_features(gallery, score, reference=reference)
    assert q.dtype == g.dtype == np.float32 and q.shape[1] == g.shape[1]
    found = to_numpy(q) @ to_numpy(g).T
    return found - found.mean(1, keepdims=True)


def same_up_to_a_constant_of_the_query(found, scores):
    scores = scores - scores.mean(1, keepdims=True)
    np.testing.assert_allclose(found, scores, atol=3e-5 * np.abs(scores).max())


# -- features ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("library", ["numpy", "torch"])
@pytest.mark.parametrize("score", ["mls", LLR], ids=["mls", "llr"])
@pytest.mark.parametrize("kinds", [(q, g) for q in (*NORMALS, "point") for g in (*NORMALS, "point")][:-1])
def test_features_are_exact_for_queries_of_the_references_variance(kinds, score, library):
    queries, gallery = like_one(make(kinds[0], 40, 6), 3), make(kinds[1], 40, 6, 8)
    queries, gallery = (build(d.kind, *d.arrays, library=library) for d in (queries, gallery))
    reference = pe.first_stage_reference(gallery, score, queries=queries)
    found = products(queries, gallery, score, reference)
    same_up_to_a_constant_of_the_query(found, to_numpy(pe.pairwise(queries, gallery, score)))


@pytest.mark.parametrize(
    ("kind", "score"),
    [
        *((kind, name) for kind in CLASSES for name in ("cosine", "inner_product")),
        *((kind, "neg_sq_l2") for kind in CLASSES),
        *((kind, "neg_expected_sq_l2") for kind in (*NORMALS, "vmf", "point")),
        *((kind, "expected_cosine") for kind in ("normal_isotropic", "vmf", "point")),
    ],
)
def test_scores_of_positions_are_exact_for_every_query(kind, score):
    queries, gallery = make(kind, 9, 6, 1), make(kind, 40, 6, 2)
    found = products(queries, gallery, score, pe.first_stage_reference(gallery, score))
    scores = pe.pairwise(queries, gallery, score)
    if score.endswith("cosine"):  # equal up to a factor, the length of the query
        spread = np.abs(scores - scores.mean(1, keepdims=True)).sum(1, keepdims=True)
        found, scores = found / np.abs(found).sum(1, keepdims=True), scores / spread
    same_up_to_a_constant_of_the_query(found, scores)


def test_an_index_by_inner_product_is_the_first_stage_of_inner_products():
    rng = np.random.default_rng(0)
    mu = (rng.standard_normal((500, 8)) * rng.uniform(0.1, 3, (500, 1))).astype(np.float32)
    queries, gallery = pe.Point(mu[:20]), pe.Point(mu)
    index = faiss.IndexFlatIP(8)
    index.add(mu)
    exact = pe.search(queries, gallery, 5, "inner_product")
    for reranker in (
        pe.FaissReranker(index, gallery, score="inner_product"),
        pe.FaissReranker.build(gallery, "Flat", score="inner_product", first_stage="surrogate"),
    ):
        assert_ranking(reranker.search(queries, 5, shortlist=5), (exact.scores, exact.ids))


def test_a_far_centre_costs_no_digits():
    near = make("normal_isotropic", 40, 6)
    queries = like_one(near, 0)
    gallery, far = pe.Normal(near.mu + 1e4, near.var), pe.Normal(queries.mu + 1e4, queries.var)
    found = products(far, gallery, "mls", pe.first_stage_reference(gallery, "mls", far))
    same_up_to_a_constant_of_the_query(found, pe.pairwise(far, gallery))


@pytest.mark.parametrize("kind", ["normal_isotropic", "normal_diagonal", "vmf"])
def test_queries_at_random_find_most_of_the_best_ten(kind):
    gallery, queries = make(kind, 2000, 12, 1), make(kind, 50, 12, 2)
    reference = pe.first_stage_reference(gallery)
    found = np.argsort(-products(queries, gallery, "mls", reference), 1)[:, :50]
    cosine = pe.search(queries, gallery, 50, "cosine").ids
    best = pe.search(queries, gallery, 10).ids
    recall, plain = (np.mean([np.isin(b, f).mean() for b, f in zip(best, x, strict=True)]) for x in (found, cosine))
    assert recall > 0.9 and recall > plain


def test_features_of_a_batch_are_those_of_its_rows_and_the_reference_is_small():
    gallery = make("normal_diagonal", 20_000, 3)
    reference = pe.first_stage_reference(gallery)
    whole = pe.first_stage_features(gallery)
    np.testing.assert_array_equal(
        whole[16_000:16_500], pe.first_stage_features(gallery[16_000:16_500], reference=reference)
    )
    assert whole.shape == (20_000, 3 * 3 + 5)
    assert sum(x.size for x in (reference.offset, reference.scale, reference.mean)) < 50


# -- indexes -----------------------------------------------------------------------------------------------------------

GALLERY, QUERIES = (make("normal_diagonal", n, 16, n, dtype="float32") for n in (600, 20))
MORE = make("normal_diagonal", 200, 16, 77, dtype="float32")
FEW = MORE[:2]
GIVEN = 5 + np.arange(600)
FACTORIES = ["Flat", "IVF4,Flat", "HNSW16", "PQ8x4", "SQ8"]


def thorough(reranker):
    """Sets the index to search all that it holds."""
    for setting in ("nprobe=256", "efSearch=800", "k_factor_rf=10"):
        try:
            faiss.ParameterSpace().set_index_parameters(reranker.index, setting)
        except RuntimeError:  # the index has no such setting
            continue
    return reranker


def recall(reranker, score="mls", shortlist=100):
    best = pe.search(QUERIES, GALLERY, 10, score).ids
    found = reranker.search(QUERIES, 10, shortlist=shortlist).ids
    return np.mean([np.isin(b, f).mean() for b, f in zip(best, found, strict=True)])


@pytest.mark.parametrize("factory", FACTORIES)
def test_build_with_surrogates_finds_the_best_in_every_index(factory):
    reranker = thorough(pe.FaissReranker.build(GALLERY, factory, first_stage="surrogate"))
    assert recall(reranker) >= (0.85 if factory.startswith("PQ") else 0.99)  # four bits a number, of few items
    ranking = reranker.search(QUERIES, 5, shortlist=50)
    np.testing.assert_array_equal(pe.rescore(QUERIES, GALLERY, ranking.ids), ranking.scores)


def test_an_index_by_distance_proposes_what_the_one_by_inner_product_does():
    flat = pe.FaissReranker.build(GALLERY, "Flat", first_stage="surrogate")
    sphere = pe.FaissReranker.build(GALLERY, "IVF1,Flat", first_stage="surrogate")
    for shortlist in (1, 10, 50):
        one, two = (r.search(QUERIES, 10, shortlist=shortlist) for r in (flat, sphere))
        assert_ranking(one, (two.scores, two.ids))


def test_surrogates_in_a_given_index_and_around_a_given_reference():
    index = faiss.IndexFlatIP(3 * 16 + 5)
    index.add(pe.first_stage_features(GALLERY))
    own = pe.FaissReranker(index, GALLERY, features="surrogate").search(QUERIES, 10, shortlist=20)
    built = pe.FaissReranker.build(GALLERY, "Flat", first_stage="surrogate").search(QUERIES, 10, shortlist=20)
    assert_ranking(own, (built.scores, built.ids))
    unsure = pe.Normal(QUERIES.mu, 4 * QUERIES.var)
    reference = pe.first_stage_reference(GALLERY, queries=unsure)
    around = pe.FaissReranker.build(GALLERY, "Flat", first_stage=reference)
    assert around.features is reference
    best = pe.search(unsure, GALLERY, 10).ids
    found = [r.search(unsure, 10, shortlist=15).ids for r in (around, pe.FaissReranker.build(GALLERY, "Flat"))]
    assert np.mean(found[0] == best) > np.mean(found[1] == best)


# -- items that come and go --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("first_stage", ["cosine", "surrogate"])
@pytest.mark.parametrize("factory", FACTORIES)
@pytest.mark.parametrize("external", [False, True])
def test_items_come_and_go_and_search_is_exact_over_those_that_are_there(factory, external, first_stage):
    names = 1000 + 7 * np.random.default_rng(0).permutation(800)
    if not external:
        names = np.arange(800)
    reranker = thorough(
        pe.FaissReranker.build(GALLERY, factory, first_stage=first_stage, ids=names[:600] if external else None)
    )
    present = dict(zip(names[:600].tolist(), range(600), strict=True))
    whole = pe.concat([GALLERY, MORE])

    def check():
        rows = np.array(sorted(present.values()))
        of_row = {row: name for name, row in present.items()}
        best = pe.search(QUERIES, whole[rows], 10)
        ids = np.array([of_row[r] for r in rows])[best.ids]
        found = reranker.search(QUERIES, 10, shortlist=len(rows))
        assert set(found.ids.ravel().tolist()) <= set(present)
        if factory == "HNSW16":  # a graph does not lead to every item
            assert np.mean([np.isin(b, f).mean() for b, f in zip(ids, found.ids, strict=True)]) > 0.98
        else:
            assert_ranking(found, (best.scores, ids))

    for start in range(0, 150, 30):  # in parts, so that arrays grow more than once
        given = names[600 + start : 630 + start]
        added = reranker.add(MORE[start : start + 30], given if external else None)
        np.testing.assert_array_equal(added, given)
        present |= dict(zip(given.tolist(), range(600 + start, 630 + start), strict=True))
    check()
    gone = names[np.r_[5:400, 620:640]]
    reranker.remove(gone)
    for name in gone.tolist():
        del present[name]
    check()
    # The shortlist is of items that are there: k results come, though most of the index is of removed ones.
    assert (reranker.search(QUERIES, 10, shortlist=10).ids >= 0).all()
    replaced = names[[0, 450, 650]]
    reranker.upsert(MORE[150:153], replaced)
    present |= dict(zip(replaced.tolist(), (750, 751, 752), strict=True))
    check()
    if external:
        back = np.r_[gone[:20], 5]
        reranker.upsert(MORE[160:181], back)
        present |= dict(zip(back.tolist(), range(760, 781), strict=True))
        check()
    assert reranker.search(QUERIES, 900, shortlist=2000).ids.shape == (20, 900)


# Factory strings of every kind to which items can be added; with LSQ, whose codes are drawn, no two indexes are alike.
NUMBERED = [
    *("Flat", "SQ4", "SQ8", "SQfp16", "PQ8x4np", "PQ8x4fs", "LSH", "LSHrt", "RQ4x4", "RaBitQ", "RaBitQfs", "HNSW16"),
    *("HNSW16,SQ8", "PCA8,Flat", "L2norm,Flat", "OPQ8,PQ8x4np", "RR16,Flat", "ITQ16,LSH", "Flat,RFlat"),
    *("PQ8x4fs,RFlat", "SQ8,Refine(SQ4)", "HNSW16,RFlat", "IVF4,Flat,RFlat", "IVF4,PQ4+4", "IDMap,Flat", "IDMap2,SQ8"),
    "IDMap,IVF4,Flat",
]
NAMED = [
    *("IVF4,Flat", "IVF4,SQ8", "IVF4,PQ8x4np", "IVF4,PQ8x4fs", "IVF4,RQ4x4", "IVF4,RaBitQ", "IVF4,ITQ16,SH"),
    *("IVF4,FlatDedup", "IVF4_HNSW8,Flat", "IVF4(PQ2x2),Flat", "IMI2x2,Flat", "PCA8,IVF4,Flat", "OPQ8,IVF4,PQ8x4np"),
    *("IDMap,Flat", "IDMap2,Flat", "IDMap,SQ8", "IDMap,PQ8x4np", "IDMap,PQ8x4fs", "IDMap2,LSH", "IDMap,RQ4x4"),
    *("IDMap,RaBitQ", "IDMap2,PCA8,Flat", "PCA8,IDMap,Flat"),
]


@pytest.mark.parametrize(("factory", "named"), [*((f, False) for f in NUMBERED), *((f, True) for f in NAMED)])
def test_every_index_that_changed_finds_what_one_made_anew_finds(factory, named, tmp_path):
    trained = faiss.index_factory(16, factory)
    trained.train(GALLERY.mu)
    trained = faiss.serialize_index(trained)
    whole = pe.concat([GALLERY, MORE])
    names = 10**12 + np.random.default_rng(1).permutation(640) if named else np.arange(640)

    def made(rows, ids):
        index = faiss.deserialize_index(trained)
        _ = index.add_with_ids(whole.mu[rows], ids) if named or "IDMap" in factory else index.add(whole.mu[rows])
        return thorough(pe.FaissReranker(index, whole[rows], ids=ids if named else None))

    reranker = made(np.arange(600), names[:600])
    reranker.add(whole[600:630], names[600:630] if named else None)
    reranker.remove(names[np.r_[5:250, 603]])
    reranker.upsert(whole[630:633], names[[0, 300, 601]])
    reranker.add(whole[633:640], names[633:640] if named else None)
    reranker.save(tmp_path / "kept")
    reranker = thorough(pe.FaissReranker.open(tmp_path / "kept"))
    reranker.remove(names[np.r_[260:290, 602]])

    both = np.r_[1:5, 250:260, 290:300, 301:601, 604:630, 633:640]
    rows, ids = np.r_[both, 630:633], names[np.r_[both, 0, 300, 601]]
    anew = made(rows, ids if named else np.arange(len(rows))).search(QUERIES, 20, shortlist=20).ids
    anew = anew if named else ids[anew]
    best = pe.search(QUERIES, whole[rows], 10)
    for compacted in (False, True):
        if compacted:
            reranker.compact()
        np.testing.assert_array_equal(np.sort(reranker.ids), np.sort(ids))
        assert_ranking(reranker.search(QUERIES, 10, shortlist=640), (best.scores, ids[best.ids]))
        found = reranker.search(QUERIES, 20, shortlist=20).ids
        if compacted or not factory.startswith("HNSW"):  # a graph is not asked for some of so few: all are scored
            # Codes of few bits leave ties, which go by the order in which items came.
            assert np.mean([np.isin(a, b).mean() for a, b in zip(found, anew, strict=True)]) > 0.9


@pytest.mark.parametrize("first_stage", ["cosine", "surrogate"])
@pytest.mark.parametrize("factory", ["Flat", "SQ8"])
def test_items_that_take_their_own_place_are_proposed_as_before(factory, first_stage):
    reranker = pe.FaissReranker.build(GALLERY, factory, first_stage=first_stage)
    before = reranker.search(QUERIES, 5, shortlist=5)
    reranker.upsert(GALLERY[100:500], np.arange(100, 500))
    assert_ranking(reranker.search(QUERIES, 5, shortlist=5), before)


@pytest.mark.parametrize(
    "factory", ["IDMap,IVF4,Flat", "IDMap2,IVF4,PQ8x4np", "PCA8,IDMap,IVF4,Flat", "IDMap,PCA8,IMI2x2,Flat"]
)
def test_ids_of_a_map_over_lists_are_not_removed(factory, monkeypatch):
    index = faiss.index_factory(16, factory)
    index.train(GALLERY.mu)
    index.add_with_ids(GALLERY.mu, GIVEN)
    # FAISS would remove other items than these, and end the process where it should remove as many again.
    monkeypatch.setattr(faiss.Index, "remove_ids", lambda *_: pytest.fail("asked to remove"))
    reranker = thorough(pe.FaissReranker(index, GALLERY, ids=GIVEN))
    for verb, change in (("remove", lambda: reranker.remove([7])), ("upsert", lambda: reranker.upsert(FEW, [7, 8]))):
        with pytest.raises(
            TypeError, match=f"^FaissReranker.{verb}: FAISS removes wrong items from an IDMap over IVF, wh"
        ):
            change()
    reranker.add(FEW, [1000, 1001])
    best = pe.search(QUERIES, pe.concat([GALLERY, FEW]), 10)
    assert_ranking(reranker.search(QUERIES, 10, shortlist=602), (best.scores, np.r_[GIVEN, 1000, 1001][best.ids]))


@pytest.mark.parametrize("factory", ["NSG8", "shards"])
def test_an_index_that_takes_no_more_items_keeps_those_it_has(factory):
    index = faiss.IndexShards(16, False, True) if factory == "shards" else faiss.index_factory(16, factory)
    if factory == "shards":
        index.add_shard(faiss.IndexFlatL2(16))
    index.add(GALLERY.mu)
    reranker = pe.FaissReranker(index, GALLERY)
    for change in (lambda: reranker.add(FEW), lambda: reranker.upsert(FEW, [7, 8])):
        with pytest.raises(TypeError, match=r"^FaissReranker: FAISS adds no items to this Index(NSG|Shards)"):
            change()
        assert 7 in reranker.search(GALLERY[7:8], 1).ids and len(reranker) == len(reranker.gallery) == 600
    reranker.remove([7])
    reranker.compact()
    assert 8 in reranker.search(GALLERY[8:9], 1).ids and index.ntotal == 599


def test_tensors_come_and_go():
    gallery, more, queries = (make("vmf", n, 8, n, dtype="float16", library="torch") for n in (50, 9, 4))
    reranker = pe.FaissReranker.build(gallery, "Flat", first_stage="surrogate", score="llr")
    reranker.add(more)
    reranker.remove(range(10, 50))
    expected = pe.search(queries, pe.concat([gallery[:10], more]), 5, "llr")
    found = reranker.search(queries, 5)
    rows = np.r_[0:10, 50:59]
    assert_ranking(found, (to_numpy(expected.scores), rows[np.asarray(expected.ids)]))
    assert gallery.mu.shape == (50, 8)  # the caller's own arrays are as they were


def test_a_graph_goes_deep_enough_to_pass_removed_items():
    reranker = pe.FaissReranker.build(GALLERY, "HNSW16")
    reranker.remove(np.setdiff1d(np.arange(600), np.arange(0, 600, 20)))
    assert reranker.index.hnsw.efSearch == 16
    found = reranker.search(QUERIES, 10, shortlist=20)
    assert (found.ids >= 0).all() and (found.ids % 20 == 0).all()
    few = reranker.search(QUERIES, 10, shortlist=20, params=faiss.SearchParametersHNSW(efSearch=16))
    assert (few.ids == -1).any()


def test_items_off_the_sphere_are_found_later_but_found():
    reranker = pe.FaissReranker.build(GALLERY, "IVF1,Flat", first_stage="surrogate")
    far = pe.Normal(GALLERY.mu[:3] * 50, GALLERY.var[:3])
    ids = reranker.add(far)
    np.testing.assert_array_equal(reranker.search(far, 1, shortlist=603).ids[:, 0], ids)
    wide = pe.Normal(GALLERY.mu[:3], GALLERY.var[:3] * 1e4)
    ids = reranker.add(wide)
    assert np.isin(ids, reranker.search(QUERIES, 606, shortlist=606).ids).all()


def test_all_can_be_removed_and_others_come():
    reranker = pe.FaissReranker.build(GALLERY[:40], "Flat")
    reranker.remove(np.arange(40))
    assert (reranker.search(QUERIES, 3).ids == -1).all()
    ids = reranker.add(MORE[:5])
    np.testing.assert_array_equal(ids, np.arange(40, 45))
    np.testing.assert_array_equal(np.sort(reranker.search(QUERIES, 5).ids), np.tile(ids, (20, 1)))
    reranker.add(MORE[:0])
    reranker.remove([])


def test_the_first_row_is_replaced_too():
    reranker = pe.FaissReranker.build(GALLERY, "Flat")
    reranker.upsert(MORE[:1], [0])
    found = reranker.search(GALLERY[:1], 601, shortlist=601).ids[0]
    np.testing.assert_array_equal(np.sort(found), np.r_[-1, np.arange(600)])
    assert found[0] != 0  # the query's own item was removed


def test_ids_are_looked_up_among_items_that_are_there():
    gallery, queries = (make("normal_isotropic", n, 4, n, dtype="float32") for n in (1200, 3))
    names = 10 * np.arange(1200)
    reranker = pe.FaissReranker.build(gallery, "Flat", ids=names)
    for _ in range(3):  # each time more than the table of ids takes before it is made anew
        for start in range(0, 1200, 300):
            reranker.upsert(gallery[start : start + 300], names[start : start + 300])
        np.testing.assert_array_equal(np.sort(reranker.ids), names)
    found = reranker.search(queries, 1300, shortlist=1300).ids
    np.testing.assert_array_equal(np.sort(found[:, :1200]), np.tile(names, (3, 1)))
    assert (found[:, 1200:] == -1).all()
    for start in range(0, 1200, 300):
        reranker.remove(names[start : start + 300])
    assert len(reranker) == 0


@pytest.mark.parametrize("factory", ["Flat", "HNSW16", "PQ8x4"])
def test_no_more_than_the_shortlist_is_found_where_items_were_removed(factory):
    reranker = pe.FaissReranker.build(GALLERY, factory)
    reranker.remove(np.arange(100))
    found = reranker.search(QUERIES, 6, shortlist=3).ids
    assert (found[:, :3] >= 100).all() and (found[:, 3:] == -1).all()


def test_a_gallery_of_views_and_of_arrays_that_cannot_be_written_grows():
    mu = GALLERY.mu.copy()
    mu.flags.writeable = False
    reranker = pe.FaissReranker.build(pe.Normal(mu, 0.5), "Flat")
    more = pe.Normal(MORE.mu, 0.25)
    reranker.add(more[:0])
    reranker.add(more)
    best = pe.search(QUERIES, pe.concat([pe.Normal(mu, 0.5), more]), 10)
    assert_ranking(reranker.search(QUERIES, 10, shortlist=800), (best.scores, best.ids))


# -- bad input: one line, and nothing has changed ----------------------------------------------------------------------


def numbered():
    return pe.FaissReranker.build(GALLERY, "Flat")


def named():
    return pe.FaissReranker.build(GALLERY, "Flat", ids=GIVEN)


def by_ids(factory):
    index = faiss.index_factory(16, factory)
    _ = index.add_with_ids(GALLERY.mu, GIVEN) if factory.startswith("IDMap") else index.add(GALLERY.mu)
    return pe.FaissReranker(index, GALLERY, ids=GIVEN if factory.startswith("IDMap") else np.arange(600))


@pytest.mark.parametrize(
    ("make_it", "change", "error", "begins"),
    [
        (numbered, lambda r: r.add(FEW.mu), TypeError, "mls: items must be a distribution, got ndarray"),
        (
            numbered,
            lambda r: r.add(pe.Normal(FEW.mu, FEW.var[:, 0])),
            TypeError,
            "FaissReranker.add: items are normal_is",
        ),
        (
            numbered,
            lambda r: r.add(make("normal_diagonal", 2, 5, dtype="float32")),
            ValueError,
            "FaissReranker.add: dim of",
        ),
        (
            numbered,
            lambda r: r.add(FEW.to("float64")),
            ValueError,
            "FaissReranker.add: items have dtype float64, expected",
        ),
        (
            numbered,
            lambda r: r.add(build("normal_diagonal", *FEW.arrays, dtype="float32", library="torch")),
            TypeError,
            "FaissReranker.add: items must be numpy arrays like gallery, got torch tensors on cpu",
        ),
        (numbered, lambda r: r.add(FEW, [700, 701]), ValueError, "FaissReranker.add: ids must be None"),
        (numbered, lambda r: r.add(pe.Normal(FEW.mu, -FEW.var)), ValueError, "Normal: var is negative in row 0"),
        (
            numbered,
            lambda r: r.upsert(FEW, [3, 600]),
            ValueError,
            "FaissReranker.upsert: ids hold 600 in row 1, which no item has",
        ),
        (numbered, lambda r: r.remove([3, 600]), ValueError, "FaissReranker.remove: ids hold 600 in row 1, which"),
        (numbered, lambda r: r.remove([3, 3]), ValueError, "FaissReranker.remove: ids hold 3 twice"),
        (
            numbered,
            lambda r: r.remove([3.0]),
            ValueError,
            "FaissReranker.remove: ids have shape (1,) and dtype float64",
        ),
        (
            numbered,
            lambda r: r.remove(3),
            ValueError,
            "FaissReranker.remove: ids have shape () and dtype int64, expected",
        ),
        (named, lambda r: r.add(FEW), ValueError, "FaissReranker.add: ids must be given for 2 items"),
        (named, lambda r: r.add(FEW, [1, 7]), ValueError, "FaissReranker.add: ids hold 7, which an item has already"),
        (
            named,
            lambda r: r.add(FEW, [1]),
            ValueError,
            "FaissReranker.add: ids have shape (1,) and dtype int64, expected",
        ),
        (named, lambda r: r.add(FEW, [1, -7]), ValueError, "FaissReranker.add: ids hold -7, expected 0 .. 2^63 - 1"),
        (named, lambda r: r.upsert(FEW, [1, 1]), ValueError, "FaissReranker.upsert: ids hold 1 twice"),
        (named, lambda r: r.remove([0]), ValueError, "FaissReranker.remove: ids hold 0 in row 0, which no item has"),
        (
            lambda: by_ids("IDMap,HNSW8"),
            lambda r: r.remove([7]),
            TypeError,
            "FaissReranker.remove: this IndexIDMap cannot",
        ),
        (lambda: by_ids("Flat"), lambda r: r.add(FEW, [1000, 1001]), TypeError, "FaissReranker.add: this IndexFlat"),
        (lambda: by_ids("Flat"), lambda r: r.upsert(FEW, [1, 2]), TypeError, "FaissReranker.upsert: this IndexFlat"),
    ],
)
def test_bad_changes_change_nothing(make_it, change, error, begins):
    reranker = make_it()
    before = reranker.search(QUERIES, 10)
    with pytest.raises(error) as caught:
        change(reranker)
    assert str(caught.value).startswith(begins) and "\n" not in str(caught.value), str(caught.value)
    assert_ranking(reranker.search(QUERIES, 10), (before.scores, before.ids))
    assert reranker.index.ntotal == len(reranker.gallery) == 600
