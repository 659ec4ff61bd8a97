"""One table over all galleries: what an argument means does not depend on the gallery that is searched."""

import inspect
import itertools
import types

import faiss
import numpy as np
import pytest
import torch
from items import make

import peaccel as pe
from peaccel.retrieval.ray import ShardedGallery
from peaccel.retrieval.ray import sharded_gallery as sharded
from peaccel.retrieval.searchable import Searchable

N, Q, DIM, SCORE = 61, 7, 6, "mls"
RNG = np.random.default_rng(8)
ROWS = np.sort(RNG.choice(N, Q, replace=False))  # of the gallery, which the queries are
IDS = {
    "int": np.sort(RNG.choice(900, N, replace=False)),
    "str": np.array([f"item {i:03}" for i in range(N)]),
    "rows": None,
}
CUTS = (0, 20, 21, N)


class Ref(types.SimpleNamespace):
    """An answer, by which waiting calls are looked up."""

    __hash__ = object.__hash__


class Actor:
    """A shard in this process, whose answers are there at once."""

    def __init__(self, *arguments):
        self.shard = sharded._Shard(*arguments)

    def __getattr__(self, name):
        return types.SimpleNamespace(remote=lambda *arguments: Ref(answer=getattr(self.shard, name)(*arguments)))


RAY = types.SimpleNamespace(
    is_initialized=lambda: True,
    remote=lambda cls: types.SimpleNamespace(options=lambda **_: types.SimpleNamespace(remote=Actor)),
    put=lambda x: x,
    get=lambda ref: ref.answer,
    wait=lambda refs, timeout: (refs[:1], refs[1:]),
    cancel=lambda ref: None,
)


@pytest.fixture
def _here(monkeypatch):
    """Ray's calls in this process."""
    monkeypatch.setattr(sharded, "ray", RAY)


def with_ids(items, ids):
    return items if ids is None else (items, ids)


MAKE = {
    "distribution": lambda items, ids, folder: items,
    "prepared": lambda items, ids, folder: pe.prepare(items, SCORE),
    "blocks": lambda items, ids, folder: [items[a:b] for a, b in itertools.pairwise(CUTS)],
    "faiss": lambda items, ids, folder: pe.FaissReranker.build(items, "Flat", score=SCORE, ids=ids),
    "lance": lambda items, ids, folder: pe.Gallery.create(folder / "g.lance", items, ids),
    "sharded": lambda items, ids, folder: ShardedGallery(
        [with_ids(items[a:b], None if ids is None else ids[a:b]) for a, b in itertools.pairwise(CUTS)], SCORE
    ),
}
HAVE_IDS = ("faiss", "lance", "sharded")
CASES = [
    (name, ids, library)
    for name in MAKE
    for ids in IDS
    for library in ("numpy", "torch")
    if (ids == "rows" or name in HAVE_IDS)
    and (ids != "rows" or name != "lance")
    and (library == "numpy" or name not in ("lance", "sharded"))
]


@pytest.fixture(params=CASES, ids="-".join)
def case(request, tmp_path, _here):
    """A gallery, its queries, ids of rows, and all pairs' scores."""
    name, kind, library = request.param
    items = make("normal_isotropic", N, DIM, library=library)
    ids = IDS[kind]
    plain = make("normal_isotropic", N, DIM)
    rows = np.tile(np.arange(N), (Q, 1))
    scores = pe.rescore(plain[ROWS], plain, rows, SCORE)
    named = np.arange(N) if ids is None else ids
    return types.SimpleNamespace(
        name=name, searched=MAKE[name](items, ids, tmp_path), queries=items[ROWS], ids=named, scores=scores
    )


def wanted(case, k, may):
    """Ids and scores [Q, k] of the best of the items that each query may find, of a mask [Q, N]."""
    none = "" if case.ids.dtype.kind == "U" else -1
    ids, scores = np.full((Q, k), none, case.ids.dtype), np.full((Q, k), -np.inf)
    for query in range(Q):
        rows = sorted(np.flatnonzero(may[query]), key=lambda row: (-case.scores[query, row], row))[:k]
        ids[query, : len(rows)], scores[query, : len(rows)] = case.ids[rows], case.scores[query, rows]
    return ids, scores


def assert_equal(found, want):
    np.testing.assert_array_equal(np.asarray(found.ids), want[0])
    np.testing.assert_array_equal(np.asarray(found.scores), want[1])


def options(case):
    """Arguments that say what may be found, and masks [Q, N] of it."""
    every, own = np.ones((Q, N), bool), np.arange(N) != ROWS[:, None]
    some = RNG.random(N) < 0.5
    listed = np.where(RNG.random((Q, 5)) < 0.3, -1, RNG.integers(0, N, (Q, 5)))
    padded = np.append(case.ids, "" if case.ids.dtype.kind == "U" else -1)[listed]
    unlisted = np.array([[row not in one for row in range(N)] for one in listed])
    place = RNG.integers(0, 3, N)
    missing = "nobody" if case.ids.dtype.kind == "U" else 99_999
    by_place = pe.exclude_same({"place": place[ROWS]}, {"place": place}, ids=case.ids)
    yield {}, every
    yield {"exclude": case.ids[ROWS]}, own
    yield {"exclude": padded}, unlisted
    yield {"exclude": [case.ids[:query] for query in range(Q)]}, np.arange(N) >= np.arange(Q)[:, None]
    yield {"exclude": by_place}, place != place[ROWS][:, None]
    yield {"exclude": np.full((Q, 1), missing)}, every
    yield {"allowed": case.ids[some]}, every & some
    yield {"allowed": [*case.ids[some].tolist(), missing]}, every & some
    yield {"allowed": case.ids[:0].tolist()}, every & False
    yield {"allowed": case.ids[some], "exclude": case.ids[ROWS]}, own & some
    yield {"exclude": [case.ids] * Q}, every & False
    if case.name != "blocks":
        yield {"allowed": some, "exclude": padded}, unlisted & some


def test_searches_agree_to_the_last_bit(case):
    for chosen, may in options(case):
        for k in (1, 5, N + 3):
            want = wanted(case, k, may)
            assert_equal(pe.search(case.queries, case.searched, k, SCORE, **chosen), want)
            if case.name in HAVE_IDS:
                assert_equal(case.searched.search(case.queries, k, SCORE, shortlist=None, **chosen), want)
        if case.name == "faiss":
            assert_equal(case.searched.search(case.queries, 5, shortlist=N, **chosen), wanted(case, 5, may))
    empty = pe.search(case.queries[:0], case.searched, 2, SCORE, exclude=[])
    assert tuple(empty.ids.shape) == tuple(empty.scores.shape) == (0, 2)


def test_items_above_a_threshold_agree(case):
    threshold = float(np.quantile(case.scores, 0.7))
    for chosen, may in options(case):
        ids, scores = wanted(case, N, may)
        found = pe.search_above(case.queries, case.searched, threshold, SCORE, **chosen)
        assert np.asarray(found.ids).tolist() == ids[scores >= threshold].tolist()
        assert np.diff(np.asarray(found.offsets)).tolist() == (scores >= threshold).sum(1).tolist()
        np.testing.assert_array_equal(np.asarray(found.scores), scores[scores >= threshold])


def test_candidates_agree(case):
    if case.name == "blocks":
        return  # of which there are no candidates
    rows = RNG.permuted(np.tile(np.arange(N), (Q, 1)), axis=1)[:, :20]
    listed = RNG.random((Q, N)) < 0  # none
    np.put_along_axis(listed, rows, True, 1)
    candidates = case.ids[rows]
    if isinstance(case.queries.mu, torch.Tensor) and case.name != "faiss":
        candidates = torch.from_numpy(candidates)
    found = pe.rescore(case.queries, case.searched, candidates, SCORE)
    np.testing.assert_array_equal(np.asarray(found), np.take_along_axis(case.scores, rows, 1))
    own = np.arange(N) != ROWS[:, None]
    for k in (4, 25):
        assert_equal(pe.rerank(case.queries, case.searched, candidates, k, SCORE), wanted(case, k, listed))
        found = pe.rerank(case.queries, case.searched, candidates, k, SCORE, exclude=case.ids[ROWS])
        assert_equal(found, wanted(case, k, listed & own))


def test_answers_below_a_threshold_are_left_out(case):
    least = float(np.quantile(case.scores, 0.95))
    accept = pe.FalseMatchLimit(threshold=least, alpha=0.1, delta=0.1, number=100, allowed=1)
    found = pe.search(case.queries, case.searched, 5, SCORE, exclude=case.ids[ROWS], accept=accept)
    assert_equal(found, wanted(case, 5, (np.arange(N) != ROWS[:, None]) & (case.scores >= least)))


def test_another_score_than_that_of_the_gallery_is_refused(case):
    if case.name in ("distribution", "blocks", "lance"):
        assert pe.search(case.queries, case.searched, 1, "cosine").scores.max() <= 1 + 1e-6
        return
    for call in (
        lambda: pe.search(case.queries, case.searched, 1, "cosine"),
        lambda: pe.search_above(case.queries, case.searched, 0.0, "cosine"),
        lambda: pe.rerank(case.queries, case.searched, case.ids[ROWS][:, None], 1, "cosine"),
        lambda: pe.rescore(case.queries, case.searched, case.ids[ROWS][:, None], "cosine"),
    ):
        with pytest.raises(ValueError, match=r"^cosine: gallery is prepared for score mls, got cosine$"):
            call()


def test_ids_of_another_kind_are_refused(case):
    other = np.array(["a"] * Q) if case.ids.dtype.kind != "U" else np.arange(Q)
    for call in (
        lambda: pe.search(case.queries, case.searched, 1, SCORE, exclude=other),
        lambda: pe.search_above(case.queries, case.searched, 0.0, SCORE, exclude=other),
    ):
        with pytest.raises(
            ValueError, match=r"exclude holds (strings|integer ids), expected (rows|integer ids|strings)"
        ):
            call()
    with pytest.raises(ValueError, match="allowed has shape"):
        pe.search(case.queries, case.searched, 1, SCORE, allowed=other)


CHANGING = ("faiss", "lance")


@pytest.mark.parametrize("ids", ["int", "str"])
@pytest.mark.parametrize("name", CHANGING)
def test_items_come_and_go_by_the_same_words(name, ids, tmp_path):
    items, ids = make("normal_isotropic", N, DIM), IDS[ids]
    gallery = MAKE[name](items[:40], ids[:40], tmp_path)
    gallery.add(items[40:50], ids[40:50])
    assert len(gallery) == 50 and gallery.upsert(items[45:55], ids[45:55]) == 5
    assert gallery.remove(ids[:5]) == 5 and len(gallery) == 50
    with pytest.raises(ValueError, match=rf"remove: ids hold {ids[2]} in row 1, which no item has"):
        gallery.remove(ids[[10, 2]])
    assert len(gallery) == 50 and gallery.remove(ids[[10, 2]], skip_missing=True) == 1
    gallery.compact()
    there = np.setdiff1d(np.arange(5, 55), [10])
    want = pe.search(items, items[there], 9, SCORE)
    assert_equal(pe.search(items, gallery, 9, SCORE), (ids[there][want.ids], want.scores))


def test_the_methods_of_galleries_have_the_parameters_of_the_contract():
    for kind in (pe.FaissReranker, pe.Gallery, ShardedGallery):
        for name in ("search", "search_above", "rerank", "rescore"):
            parameters = inspect.signature(getattr(kind, name)).parameters
            contract = inspect.signature(getattr(Searchable, name)).parameters
            assert contract.keys() <= parameters.keys(), (kind, name)
            assert [parameters[x].kind for x in contract] == [x.kind for x in contract.values()], (kind, name)


@pytest.mark.parametrize("factory", ["HNSW16", "IVF4,Flat", "Flat"])
@pytest.mark.parametrize("name", ["faiss", "lance", "sharded"])
def test_shortlists_grow_by_what_a_query_may_not_find(name, factory, tmp_path, _here):
    """Of an index that finds all that it is asked for, the best of a shortlist of ten others are the ten best."""
    items = pe.Point(make("point", 400, 8).mu)
    ids = np.char.mod("item %04d", np.arange(400))
    place = RNG.integers(0, 4, 400)
    if name == "lance":
        gallery = pe.Gallery.create(tmp_path / "g.lance", items[:300], ids[:300])
        gallery.build_index(factory)
        gallery.add(items[300:], ids[300:])
    elif name == "faiss":
        gallery = pe.FaissReranker.build(items, factory, ids=ids, recall=1.0)
    else:
        parts = (slice(0, 150), slice(150, 400))
        gallery = ShardedGallery(
            [pe.FaissReranker.build(items[part], factory, ids=ids[part], recall=1.0) for part in parts],
            "cosine",
        )
    queries = items[:50]
    for exclude, by_row in (
        (ids[:50], np.arange(50)),
        (pe.exclude_same({"x": place[:50]}, {"x": place}, ids=ids), pe.exclude_same({"x": place[:50]}, {"x": place})),
    ):
        want = pe.search(queries, items, 5, "cosine", exclude=by_row)
        found = gallery.search(queries, 5, "cosine", shortlist=40, exclude=exclude)
        hit = (found.ids == ids[want.ids]).mean()
        assert hit > 0.97, hit
        assert not (found.ids == "").any()
        above = gallery.search_above(queries, 0.5, "cosine", exclude=exclude)
        assert above.ids.tolist() == ids[pe.search_above(queries, items, 0.5, "cosine", exclude=by_row).ids].tolist()


def test_items_that_share_an_id_are_excluded_by_it():
    """As the photographs of a person: all of them, and the shortlist has other persons."""
    items, persons = pe.Point(make("point", 300, 8).mu), np.repeat(np.arange(60), 5)
    index = faiss.IndexIDMap(faiss.IndexFlatIP(8))
    unit = (items.mu / np.linalg.norm(items.mu, axis=1, keepdims=True)).astype(np.float32)
    index.add_with_ids(unit, persons)
    reranker = pe.FaissReranker(index, pe.Point(items.mu.astype(np.float32)), ids=persons, features="unit")
    queries = pe.Point(items.mu[::10].astype(np.float32))
    scores = pe.pairwise(queries, pe.Point(items.mu.astype(np.float32)), "cosine")
    best = scores.reshape(30, 60, 5).max(2)
    best[np.arange(30), persons[::10]] = -9
    want = np.argsort(-best, axis=1)[:, :4]
    for shortlist in (8, 300, None):
        found = reranker.search(queries, 4, shortlist=shortlist, exclude=persons[::10])
        assert not (found.ids == persons[::10][:, None]).any()
        if shortlist != 8:
            np.testing.assert_array_equal(found.ids, want)
    np.testing.assert_array_equal(reranker.rerank(queries, np.tile(np.arange(60), (30, 1)), 4).ids[:, 0], persons[::10])
    with pytest.raises(ValueError, match=r"^FaissReranker\.rescore: items share ids, expected one item an id"):
        reranker.rescore(queries, np.zeros((30, 1), int))
