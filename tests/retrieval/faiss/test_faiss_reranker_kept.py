"""A reranker that was saved and loaded, pickled, copied or compacted finds what it found, under the same ids."""

import copy
import json
import multiprocessing
import pickle
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor

import faiss
import numpy as np
import pytest
from conftest import assert_ranking, flat_index, make, to_numpy

import peaccel as pe
from peaccel import io
from peaccel.retrieval.faiss import serialization

faiss.omp_set_num_threads(1)  # its threads spin for minutes where cores are few and shared

GALLERY, MORE, QUERIES = (make("normal_diagonal", n, 16, n, dtype="float32") for n in (300, 60, 7))
IDS = 1000 + 7 * np.random.default_rng(0).permutation(360)
LLR = pe.scores.llr(prior_var=np.linspace(0.3, 2, 16), prior_mean=np.float32(0.1) * np.arange(16))


def in_index_with_ids():
    index = faiss.index_factory(16, "IDMap,Flat")
    index.add_with_ids(GALLERY.mu, IDS[:300])
    return pe.FaissReranker(index, GALLERY, ids=IDS[:300])


def in_index_of_surrogates():
    index = faiss.IndexFlatIP(3 * 16 + 5)
    index.add(pe.first_stage_features(GALLERY, LLR))
    return pe.FaissReranker(index, pe.prepare(GALLERY, LLR), score=LLR, features="surrogate")


def around_a_reference():
    unsure = pe.Normal(QUERIES.mu, 4 * QUERIES.var)
    return pe.FaissReranker.build(GALLERY, "Flat", first_stage=pe.first_stage_reference(GALLERY, queries=unsure))


MAKERS = {
    "means": lambda: pe.FaissReranker(flat_index(GALLERY), GALLERY, score="neg_w2"),
    "ids in the index": in_index_with_ids,
    "surrogates in a given index": in_index_of_surrogates,
    "around a reference": around_a_reference,
    **{
        f"{factory} {stage} {ids}": lambda f=factory, s=stage, i=ids: pe.FaissReranker.build(
            GALLERY, f, first_stage=s, ids=IDS[:300] if i else None
        )
        for factory, stage, ids in (
            ("Flat", "cosine", ""),
            ("Flat", "surrogate", "ids"),
            ("HNSW8", "surrogate", "ids"),
            ("IVF4,Flat", "surrogate", ""),
            ("IVF4,PQ6x4", "surrogate", ""),
            ("PQ8x4", "cosine", "ids"),
            ("SQ8", "cosine", ""),
        )
    },
}
makers = pytest.mark.parametrize("make_it", MAKERS.values(), ids=MAKERS)


def changed(reranker):
    """Items have come, gone and been replaced, the first row's among them."""
    names = reranker.ids
    numbered = reranker._items.next_id is not None
    added = reranker.add(MORE[:30], None if numbered else IDS[300:330])
    reranker.remove(np.r_[names[5:180], added[:3]])
    reranker.upsert(MORE[30:33], np.r_[names[[0, 200]], added[5]])
    return reranker


def by_file(reranker, folder):
    reranker.save(folder / "kept")
    return pe.FaissReranker.open(folder / "kept")


WAYS = {
    "saved": by_file,
    "pickled": lambda reranker, folder: pickle.loads(pickle.dumps(reranker)),
    "copied": lambda reranker, folder: copy.deepcopy(reranker),
    "copied shallowly": lambda reranker, folder: copy.copy(reranker),
}


def assert_alike(one, two):
    """Assert that both rerankers hold and find the same, to the last bit."""
    assert repr(one).replace("IndexFlatIP", "IndexFlat") == repr(two).replace("IndexFlatIP", "IndexFlat")
    assert len(one) == len(two)
    np.testing.assert_array_equal(one.ids, two.ids)
    for x, y in zip(one.gallery.arrays, two.gallery.arrays, strict=True):
        np.testing.assert_array_equal(x, y)
    for k, shortlist in ((5, 20), (20, 400)):
        expected = one.search(QUERIES, k, shortlist=shortlist)
        assert_ranking(two.search(QUERIES, k, shortlist=shortlist), (expected.scores, expected.ids))


# -- kept --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
@makers
def test_what_was_kept_goes_on_as_it_would_have(make_it, way, tmp_path):
    reranker = changed(make_it())
    twin = way(reranker, tmp_path)
    assert_alike(reranker, twin)
    # A change of one leaves the other as it is.
    before = reranker.search(QUERIES, 20)
    numbered = reranker._items.next_id is not None
    for name, r in (("twin", twin), ("original", reranker)):
        if name == "original":
            found = r.search(QUERIES, 20)
            assert_ranking(found, (before.scores, before.ids))
        r.remove(r.ids[10:20])
        added = r.add(MORE[40:50], None if numbered else IDS[340:350])
        if numbered:
            np.testing.assert_array_equal(added, 333 + np.arange(10))  # 300, 30 more, 3 replaced: no number twice
        r.upsert(MORE[50:52], added[:2])
    assert_alike(reranker, twin)


@pytest.mark.parametrize("library", ["numpy", "torch"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_arrays_stay_what_they_were(way, dtype, library, tmp_path):
    gallery, more, queries = (make("vmf", n, 8, n, dtype=dtype, library=library) for n in (40, 3, 4))
    reranker = pe.FaissReranker.build(gallery, "Flat", first_stage="surrogate", score="llr")
    reranker.add(more)
    reranker.remove([2, 41])
    twin = way(reranker, tmp_path)
    for x, y in zip(reranker.gallery.arrays, twin.gallery.arrays, strict=True):
        assert type(x) is type(y) and x.dtype == y.dtype
        np.testing.assert_array_equal(to_numpy(x), to_numpy(y))
    expected = reranker.search(queries, 5)
    found = twin.search(queries, 5)
    assert type(found.ids) is type(expected.ids) and found.scores.dtype == expected.scores.dtype
    assert_ranking(found, (to_numpy(expected.scores), np.asarray(expected.ids)))
    twin.add(more)
    assert len(twin) == 44 and len(reranker) == 41


@pytest.mark.parametrize(("kind", "dtype"), [("vmf", "float16"), ("normal_diagonal", "float32")])
def test_a_prepared_gallery_stays_packed_and_halves_as_they_were_rounded(kind, dtype, tmp_path):
    prepared, query = pe.prepare(make(kind, 50, 32), dtype=dtype), make(kind, 1, 32)
    reranker = pe.FaissReranker(flat_index(prepared.distribution), prepared)
    reranker.search(query, 1)
    for way in WAYS.values():
        twin = way(reranker, tmp_path)
        np.testing.assert_array_equal(twin.gallery.mu, prepared.mu)
        twin.search(query, 1)
        assert kept(twin._prepared) == kept(reranker._prepared)


def kept(prepared):
    """Types and bytes of what reranking reads; panels are for searches, and are made with the first one."""
    arrays = [*prepared.distribution.arrays, *(x for made in prepared.made() for x in made._copies)]
    return [(x.dtype, x.nbytes) for x in arrays]


def test_a_copy_is_changed_and_takes_the_place_of_one_that_threads_search():
    holder = [pe.FaissReranker.build(GALLERY, "HNSW8", ids=IDS[:300])]
    before = holder[0].search(QUERIES, 5)
    with ThreadPoolExecutor(2) as pool:
        found = [pool.submit(lambda: holder[0].search(QUERIES, 5)) for _ in range(40)]
        changed = copy.copy(holder[0])
        changed.upsert(MORE[:60], IDS[:60])
        holder[0] = changed
        found += [pool.submit(lambda: holder[0].search(QUERIES, 5)) for _ in range(5)]
    after = changed.search(QUERIES, 5)
    rankings = [x.result().ids.tolist() for x in found]
    assert before.ids.tolist() != after.ids.tolist() == rankings[-1]
    assert all(x in (before.ids.tolist(), after.ids.tolist()) for x in rankings)


def test_tensors_that_are_part_of_larger_ones_are_kept_alone():
    reranker = pe.FaissReranker.build(make("vmf", 1000, 64, dtype="float32", library="torch"), "Flat")
    small = len(pickle.dumps(reranker))
    reranker.add(make("vmf", 1, 64, 1, dtype="float32", library="torch"))  # in buffers of twice the size
    assert len(pickle.dumps(reranker)) < 1.01 * small


def test_spawned_workers_take_it():
    reranker = changed(pe.FaissReranker.build(GALLERY, "HNSW8", first_stage="surrogate", score=LLR))
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        found = pool.submit(reranker.search, QUERIES, 5).result()
    assert_ranking(found, reranker.search(QUERIES, 5))


def test_a_callable_is_pickled_but_not_saved(tmp_path):
    reranker = pe.FaissReranker(flat_index(GALLERY), GALLERY, features=means)
    assert_alike(reranker, pickle.loads(pickle.dumps(reranker)))
    with pytest.raises(TypeError, match=r"^FaissReranker.save: features are a callable, which no file holds"):
        reranker.save(tmp_path / "kept")
    assert list(tmp_path.iterdir()) == []


def means(d):
    return d.mu


# -- what is there -----------------------------------------------------------------------------------------------------


@makers
def test_ids_and_the_gallery_are_of_what_is_there(make_it, tmp_path):
    reranker = make_it()
    names = reranker.ids
    assert names.dtype == np.int64 and len(names) == len(reranker) == 300
    assert all(name in reranker for name in names)
    reranker = changed(reranker)
    there = set(reranker.ids.tolist())
    assert len(there) == len(reranker) == len(reranker.gallery) == 300 + 30 - 175 - 3
    assert names[0] in reranker and int(names[4]) in reranker
    for absent in (names[5], -1, 10**6, 2**70, 1.5, "1", None):
        assert absent not in reranker
    # Each item has the score of the gallery's row at its position.
    found = reranker.search(QUERIES, 400, shortlist=400)
    places = {name: place for place, name in enumerate(reranker.ids.tolist())}
    rows = np.array([[places.get(i, -1) for i in row] for row in found.ids.tolist()])
    np.testing.assert_array_equal(pe.rescore(QUERIES, reranker.gallery, rows, reranker.score), found.scores)
    io.write_distribution(tmp_path / "gallery.safetensors", reranker.gallery)
    np.testing.assert_array_equal(io.read_distribution(tmp_path / "gallery.safetensors").var, reranker.gallery.var)


def test_its_repr_says_what_it_holds():
    reranker = pe.FaissReranker.build(GALLERY, "Flat", first_stage="surrogate", score=LLR)
    reranker.remove([3, 4])
    assert repr(reranker) == (
        "FaissReranker(IndexFlat, Normal(N=300, D=16, diagonal, float32, numpy), 2 removed, "
        "score='llr:prior_var=[...],prior_mean=[...]', features=FirstStageReference)"
    )


# -- compacted ---------------------------------------------------------------------------------------------------------


@makers
def test_compacting_frees_rows_and_keeps_ids(make_it, tmp_path):
    reranker = changed(make_it())
    if hasattr(reranker.index, "nprobe"):
        reranker.index.nprobe = 4
    if hasattr(reranker.index, "hnsw"):
        reranker.index.hnsw.efSearch = 400
    ids, gallery, numbered = reranker.ids, reranker.gallery, reranker._items.next_id is not None
    before = [reranker.search(QUERIES, k, shortlist=s) for k, s in ((5, 20), (152, 200))]
    for _ in range(2):  # a second time there is nothing to do
        reranker.compact()
        assert reranker.index.ntotal == len(reranker._items) == len(reranker) == 152
        np.testing.assert_array_equal(reranker.ids, ids)
        np.testing.assert_array_equal(reranker.gallery.var, gallery.var)
        after = [reranker.search(QUERIES, k, shortlist=s) for k, s in ((5, 20), (152, 200))]
        for one, two in zip(before, after, strict=True):
            if isinstance(reranker.index, faiss.IndexHNSW):  # another graph, which does not lead to every item
                assert np.mean([np.isin(a, b).mean() for a, b in zip(one.ids, two.ids, strict=True)]) > 0.98
            else:
                assert_ranking(two, (one.scores, one.ids))
    twin = by_file(reranker, tmp_path)
    for r in (reranker, twin):
        added = r.add(MORE[40:43], None if numbered else IDS[340:343])
        assert not numbered or added.tolist() == [333, 334, 335]
        r.upsert(MORE[43:44], added[:1])
        r.remove(added[1:2])
        with pytest.raises(ValueError, match="which no item has"):
            r.remove(ids[:1].tolist() + added[1:2].tolist())
    assert_alike(reranker, twin)


def test_compacting_what_cannot_be_made_anew_changes_nothing():
    asked = []

    def features(d):
        asked.append(len(d))
        return d.mu[:, : 16 if len(d) < 50 else 3]

    reranker = pe.FaissReranker(flat_index(GALLERY), GALLERY, features=features)
    reranker.remove([0])
    before = reranker.search(QUERIES, 5)
    with pytest.raises(ValueError, match=r"^FaissReranker: features of the items have shape \(299, 3\)"):
        reranker.compact()
    assert_ranking(reranker.search(QUERIES, 5), (before.scores, before.ids))
    assert reranker.index.ntotal == 300


# -- files: one line for what is wrong, and nothing is lost ------------------------------------------------------------


def small():
    return pe.FaissReranker.build(GALLERY[:20], "Flat", first_stage="surrogate")


def test_saving_again_replaces_what_was_saved(tmp_path):
    folder = tmp_path / "kept"
    folder.mkdir()
    reranker = small()
    for number in (20, 19):
        reranker.save(str(folder))
        assert len(pe.FaissReranker.open(str(folder))) == number
        reranker.remove([number - 1])
    assert sorted(p.name for p in folder.iterdir()) == ["index.faiss", "items.safetensors", "reranker.json"]
    assert [p.name for p in tmp_path.iterdir()] == ["kept"]


@pytest.mark.parametrize(
    ("names", "begins"),
    [
        (["notes.txt"], "holds notes.txt and is no saved reranker, expected one"),
        (
            ["index.faiss", "items.safetensors", "reranker.json", "notes.txt"],
            "holds notes.txt and is no saved reranker",
        ),
        (["index.faiss"], "holds index.faiss and is no saved reranker"),
        (None, "is a file, expected a folder"),
    ],
)
def test_other_peoples_files_are_not_replaced(names, begins, tmp_path):
    folder = tmp_path / "kept"
    if names is None:
        folder.write_text("mine")
    else:
        folder.mkdir()
        for name in names:
            (folder / name).write_text("mine")
    with pytest.raises(ValueError) as caught:
        small().save(folder)
    assert str(caught.value).startswith(f"{folder}: {begins}")
    for path in [folder] if names is None else [folder / name for name in names]:
        assert path.read_text() == "mine"


def test_what_cannot_be_saved_leaves_what_was_there(tmp_path, monkeypatch):
    folder, reranker = tmp_path / "kept", small()
    reranker.save(folder)
    own = pe.scores.Score(
        "mls", "Mine.", {**pe.scores.mls.pairs, ("point", "point"): pe.scores.cosine.pair("vmf", "vmf")}
    )
    wide = pe.scores.llr(prior_var=np.ones((2, 2)))
    for score in (own, wide):
        with pytest.raises(ValueError, match=r"^FaissReranker.save: score (mls|llr.*) has no text that pe.scores.get"):
            pe.FaissReranker(flat_index(GALLERY), GALLERY, score=score).save(folder)
    shards = faiss.IndexShards(16)
    shards.add_shard(flat_index(GALLERY))
    for call in (lambda r: r.save(folder), pickle.dumps, copy.deepcopy):
        with pytest.raises(TypeError, match=r"^FaissReranker: FAISS writes no IndexShards"):
            call(pe.FaissReranker(shards, GALLERY))
    with pytest.raises(FileNotFoundError, match=r"there is no folder"):
        reranker.save(tmp_path / "none" / "kept")

    def fails(path):
        raise OSError("the disk is full")

    monkeypatch.setattr(serialization, "checksum", fails)
    with pytest.raises(OSError, match="the disk is full"):
        reranker.save(folder)
    monkeypatch.undo()
    assert_ranking(pe.FaissReranker.open(folder).search(QUERIES, 3), small().search(QUERIES, 3))
    assert [p.name for p in tmp_path.iterdir()] == ["kept"]


def edit(**values):
    """Another description; the file of it is whole."""

    def damage(folder):
        about = json.loads((folder / "reranker.json").read_text()) | values
        (folder / "reranker.json").write_text(json.dumps(about))

    return damage


def flip(name):
    def damage(folder):
        content = bytearray((folder / name).read_bytes())
        content[-5] ^= 1
        (folder / name).write_bytes(content)

    return damage


def cut(name):
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes()[:-3])


def other_index(folder):
    faiss.write_index(flat_index(GALLERY), str(folder / "index.faiss"))
    edit(**{"crc32 of index.faiss": serialization.checksum(folder / "index.faiss")})(folder)


@pytest.mark.parametrize(
    ("damage", "error", "says"),
    [
        *(
            (lambda f, n=name: (f / n).unlink(), FileNotFoundError, f"{name}: no such file")
            for name in serialization.NAMES
        ),
        *((do(name), ValueError, f"{name}: is damaged") for name in serialization.NAMES[:2] for do in (flip, cut)),
        (cut("reranker.json"), ValueError, "reranker.json: is damaged, or does not describe a reranker"),
        (lambda f: (f / "reranker.json").write_text("[]"), ValueError, "reranker.json: is damaged, or does not"),
        (edit(version=2), ValueError, "reranker.json: format version 2, expected 1"),
        (edit(score=3), ValueError, "reranker.json: score is 3, expected str"),
        (edit(by_row=1), ValueError, "reranker.json: by_row is 1, expected bool"),
        (edit(following="1"), ValueError, "reranker.json: following is '1', expected int"),
        (edit(radius=[1.0]), ValueError, "reranker.json: radius is [1.0], expected float"),
        (edit(features=["mu"]), ValueError, "reranker.json: features is ['mu'], expected str"),
        (edit(library="jax"), ValueError, "reranker.json: library is 'jax', expected one of numpy, torch"),
        (edit(dtype="int8"), ValueError, "reranker.json: dtype is 'int8', expected one of float32"),
        (other_index, ValueError, "does not describe the files beside it: the index holds 300 items, expected 20"),
        (edit(gallery="Point", score="mlx"), ValueError, "the files beside it: unknown score 'mlx'"),
        (edit(gallery="Cloud"), ValueError, "does not describe the files beside it: 'Cloud'"),
        (edit(features="unit3"), ValueError, "the files beside it: features 'unit3', expected 'mu', 'unit' or"),
        (lambda f: (f / "index.faiss").rename(f / "reranker.json"), ValueError, "reranker.json: is damaged"),
    ],
)
def test_loading_what_is_damaged_says_what(damage, error, says, tmp_path):
    small().save(tmp_path / "kept")
    damage(tmp_path / "kept")
    with pytest.raises(error) as caught:
        pe.FaissReranker.open(tmp_path / "kept")
    assert says in str(caught.value) and str(caught.value).startswith(str(tmp_path)) and "\n" not in str(caught.value)


def test_loading_what_is_not_there(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"none: no such folder$"):
        pe.FaissReranker.open(tmp_path / "none")
