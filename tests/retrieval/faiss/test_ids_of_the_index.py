"""An index that has ids of its own: what it returns is never taken for rows; items of one id are one answer."""

import re

import faiss
import numpy as np
import pytest
from conftest import assert_ranking, flat_index, make, to_numpy

import peaccel as pe

faiss.omp_set_num_threads(1)  # its threads spin for minutes where cores are few and shared

GALLERY, QUERIES = (make("normal_diagonal", n, 16, n, dtype="float32") for n in (300, 9))
IDS = np.random.default_rng(0).permutation(300)
PERSONS = 100 + np.random.default_rng(1).integers(0, 60, 300)  # of each photograph


def index_of(factory, ids, gallery=GALLERY):
    index = faiss.index_factory(16, factory)
    index.train(to_numpy(gallery.mu))
    index.add_with_ids(to_numpy(gallery.mu), ids)
    return index


def best_persons(queries, k, gallery=GALLERY, persons=PERSONS):
    """By the best photograph of each person, from the scores of all pairs."""
    scores = to_numpy(pe.rescore(queries, gallery, np.tile(np.arange(len(gallery)), (len(queries), 1))))
    names = np.unique(persons)
    best = np.stack([scores[:, persons == name].max(1) for name in names], 1)
    order = (-best).argsort(1, kind="stable")[:, :k]
    return np.take_along_axis(best, order, 1), names[order]


@pytest.mark.parametrize("factory", ["IDMap,Flat", "IDMap2,Flat", "IDMap,HNSW8", "PCA16,IDMap,Flat", "IDMap,IVF4,Flat"])
@pytest.mark.parametrize("ids", [IDS, 10**12 + 7 * IDS], ids=["a permutation of rows", "other numbers"])
def test_ids_of_a_map_are_read_from_it(factory, ids):
    index = index_of(factory, ids)
    found = pe.FaissReranker(index, GALLERY).search(QUERIES, 5, shortlist=300)
    expected = pe.FaissReranker(index, GALLERY, ids=ids).search(QUERIES, 5, shortlist=300)
    assert_ranking(found, (expected.scores, expected.ids))
    exact = pe.search(QUERIES, GALLERY, 5)
    assert_ranking(found, (exact.scores, ids[exact.ids]))


def test_ids_in_the_lists_of_an_ivf_are_asked_for():
    index = index_of("IVF4,Flat", 1000 + IDS)
    with pytest.raises(ValueError, match=r"^FaissReranker: ids must be those that index returns, such as 1\d\d\d"):
        pe.FaissReranker(index, GALLERY)
    exact = pe.search(QUERIES, GALLERY, 5)
    found = pe.FaissReranker(index, GALLERY, ids=1000 + IDS).search(QUERIES, 5, shortlist=300)
    assert_ranking(found, (exact.scores, 1000 + IDS[exact.ids]))
    index = faiss.index_factory(16, "IVF4,Flat")
    index.train(GALLERY.mu)
    index.add(GALLERY.mu)
    assert not pe.FaissReranker(index, GALLERY).has_ids


@pytest.mark.parametrize(
    ("factory", "held", "ids", "says"),
    [
        ("IDMap,Flat", IDS + 1, IDS, "ids hold 0 1 times, expected 0 times as in index"),
        ("IVF4,Flat", IDS + 1, IDS + 2, "ids hold 1 0 times, expected 1 times as in index"),
        ("IVF4,Flat", PERSONS, IDS, "ids hold 0 1 times, expected 0 times as in index"),
        ("IDMap,Flat", IDS + 1, IDS.astype(str), "ids must be those that index returns, such as"),
        ("IVF4,Flat", PERSONS, PERSONS.astype(str), "ids hold"),
        ("IDMap,Flat", IDS, np.minimum(IDS, 298), "ids hold 298 twice"),
        ("IDMap,Flat", IDS - 5, None, "ids hold -"),
    ],
)
def test_ids_other_than_those_of_the_index_are_refused(factory, held, ids, says):
    with pytest.raises(ValueError, match="^FaissReranker: " + re.escape(says)):
        pe.FaissReranker(index_of(factory, held), GALLERY, ids=ids)


@pytest.mark.parametrize("library", ["numpy", "torch"])
@pytest.mark.parametrize("factory", ["IDMap,Flat", "IDMap,HNSW16", "IVF4,Flat"])
def test_photographs_of_a_person_are_one_answer_by_the_best(factory, library):
    gallery, queries = (make("normal_diagonal", n, 16, n, dtype="float32", library=library) for n in (300, 9))
    reranker = pe.FaissReranker(index_of(factory, PERSONS, gallery), gallery, ids=PERSONS)
    found = reranker.search(queries, 7, shortlist=300)
    assert type(found.scores) is type(gallery.mu)
    assert_ranking(found, best_persons(QUERIES, 7))
    assert len(reranker) == 300 and 100 in reranker and 5 not in reranker
    padded = reranker.search(queries, 70, shortlist=300)
    count = len(np.unique(PERSONS))
    assert (np.asarray(padded.ids)[:, count:] == -1).all() and (np.asarray(padded.ids)[:, :count] >= 100).all()
    assert np.isneginf(np.asarray(padded.scores)[:, count:]).all()


def test_as_many_persons_as_are_asked_for_are_found_behind_many_photographs_of_one():
    persons = np.where(np.arange(300) < 250, 1, 2 + np.arange(300))
    mu = np.where(np.arange(300)[:, None] < 250, np.float32(1), GALLERY.mu)
    gallery = pe.Normal(mu, GALLERY.var)
    reranker = pe.FaissReranker(index_of("IDMap,Flat", persons, gallery), gallery)
    found = reranker.search(gallery[:1], 4, shortlist=10)
    assert found.ids[0, 0] == 1 and len(set(found.ids[0].tolist())) == 4 and (found.ids > 0).all()
    assert_ranking(reranker.search(QUERIES, 4, shortlist=300), best_persons(QUERIES, 4, gallery, persons))


def test_some_of_the_persons_or_of_their_photographs_are_allowed():
    reranker = pe.FaissReranker(index_of("IDMap,Flat", PERSONS), GALLERY)
    some = np.unique(PERSONS)[::3]
    allowed = np.isin(PERSONS, some)
    expected = best_persons(QUERIES, 5, GALLERY[allowed], PERSONS[allowed])
    assert_ranking(reranker.search(QUERIES, 5, shortlist=300, allowed=[*some, 10**6]), expected)
    every_other = np.arange(300) % 2 == 0
    expected = best_persons(QUERIES, 5, GALLERY[every_other], PERSONS[every_other])
    assert_ranking(reranker.search(QUERIES, 5, shortlist=100, allowed=every_other), expected)


def test_photographs_of_a_person_are_kept_and_stay(tmp_path):
    reranker = pe.FaissReranker(index_of("IDMap,Flat", PERSONS), GALLERY)
    expected = reranker.search(QUERIES, 5)
    reranker.save(tmp_path / "persons")
    for kept in (pe.FaissReranker.open(tmp_path / "persons"), pe.FaissReranker.open(tmp_path / "persons", mmap=True)):
        assert_ranking(kept.search(QUERIES, 5), (expected.scores, expected.ids))
    for change in (lambda: reranker.add(GALLERY[:1], [7]), lambda: reranker.remove([100]), reranker.compact):
        with pytest.raises(TypeError, match=r"^FaissReranker\.\w+: items share ids, expected one item an id"):
            change()


# -- rows in another order ---------------------------------------------------------------------------------------------

ORDER = np.random.default_rng(2).permutation(300)
LOSSY = ("Flat", "HNSW8", "SQ4", "PQ1x4", "IVF4,Flat", "IVF4,RaBitQ")
SETS = {
    "normal": GALLERY.mu,
    "positive": np.maximum(GALLERY.mu + 0.5, 0),
    "uneven": GALLERY.mu * np.exp(2 * np.random.default_rng(3).normal(size=(300, 1))).astype("float32"),
    "far from 0": 100 + GALLERY.mu,
    "clusters": GALLERY.mu[PERSONS % 5],
    "alike": GALLERY.mu[np.zeros(300, int)],
    "alike but one": GALLERY.mu[(np.arange(300) == 31).astype(int)],
    "two": GALLERY.mu[:2],
    "one": GALLERY.mu[:1],
}  # fmt: skip


@pytest.mark.parametrize("metric", [faiss.METRIC_L2, faiss.METRIC_INNER_PRODUCT])
@pytest.mark.parametrize("mu", SETS.values(), ids=SETS)
def test_an_index_that_is_lossy_or_holds_items_alike_is_taken(mu, metric):
    for factory in LOSSY:
        index = faiss.index_factory(16, factory, metric)
        if len(mu) < 16 and factory not in ("Flat", "HNSW8"):  # too few to train
            continue
        index.train(mu)
        index.add(mu)
        pe.FaissReranker(index, pe.Point(mu), score="cosine")


@pytest.mark.parametrize("features", ["mu", "unit", "surrogate"])
@pytest.mark.parametrize(
    "factory", ["IVF4,Flat", "IVF4,SQ8", "IVF4,PQ1x4", "PCA8,IVF4,Flat", "IDMap,IVF4,Flat", "IDMap,HNSW8", "Flat"]
)
def test_rows_that_an_index_holds_in_another_order_are_refused(factory, features):
    if features == "surrogate":
        vectors = pe.first_stage_features(GALLERY, "mls")
    else:
        vectors = GALLERY.mu / (np.linalg.norm(GALLERY.mu, axis=1, keepdims=True) if features == "unit" else 1)
    metric = faiss.METRIC_INNER_PRODUCT if features == "surrogate" else faiss.METRIC_L2
    index = faiss.index_factory(vectors.shape[1], factory, metric)
    index.train(vectors)
    ids = None if factory == "Flat" else ORDER
    _ = index.add(vectors[ORDER]) if ids is None else index.add_with_ids(vectors, ids)
    wrong = ORDER[::-1].copy() if "IDMap" in factory else None
    got = "None" if wrong is None else "others"
    what = f"ids must be those that index returns, in the order of gallery, got {got}"
    with pytest.raises(ValueError, match=f"^FaissReranker: {what}: index holds its rows in another order$"):
        pe.FaissReranker(index, GALLERY, ids=wrong, features=features)
    rows = ORDER if ids is None else slice(None)
    found = pe.FaissReranker(index, GALLERY[rows], ids=ids, features=features).search(GALLERY[rows], 1, shortlist=300)
    exact = pe.search(GALLERY[rows], GALLERY[rows], 1)
    expected = exact.ids if ids is None else ids[exact.ids]
    assert (found.ids == expected).mean() > 0.95  # an IVF looks into lists that hold four shortlists


def test_features_of_a_function_are_not_compared():
    reranker = pe.FaissReranker(flat_index(GALLERY), GALLERY[::-1], features=lambda queries: queries.mu)
    assert len(reranker) == 300
