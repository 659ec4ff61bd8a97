"""A gallery that is kept gives what `search` gives of the same items in memory, whatever came before."""

import importlib
import os
import pickle
import re
import shutil
import threading
from contextlib import contextmanager
from pathlib import Path

import faiss
import lance
import numpy as np
import pyarrow as pa
import pytest
from items import make

import peaccel as pe
from peaccel._utils import atomic_files
from peaccel._utils.atomic_files import temporary
from peaccel.retrieval.lance import commit_checksums, mapped_rows, version_rows
from peaccel.retrieval.lance import table as lance_table

Q, DIM = 5, 6
SCORES = {
    "normal_isotropic": "mls",
    "normal_diagonal": "llr:prior_var=1",
    "vmf": "ppk:rho=0.5",
    "nivmf": "nivmf",
    "scaled": "scale_cosine",
    "point": "neg_sq_l2",
}


def named(kind, numbers):
    """Ids of either kind, in an order of their own."""
    return np.asarray(numbers) if kind == "int" else np.array([f"é{x * 7919 % 10007}" for x in np.asarray(numbers)])


class Memory:
    """The items of a gallery, in memory."""

    def __init__(self, gallery, queries, score):
        self.gallery, self.queries, self.score, self.items = gallery, queries, score, {}

    def put(self, items, ids):
        self.items |= {id: items[i] for i, id in enumerate(ids.tolist())}

    def check(self):
        """The same ids and bits from the gallery, by every way to ask it."""
        ids = np.array(sorted(self.items))
        held, gallery = pe.concat([self.items[id] for id in ids.tolist()]), self.gallery
        assert len(gallery) == len(ids) and np.array_equal(gallery.ids, ids)
        scores, rows = pe.search(self.queries, held, 9, self.score)
        found = gallery.search(self.queries, 9, self.score)
        np.testing.assert_array_equal(found.ids, ids[rows])
        np.testing.assert_array_equal(found.scores, scores)
        rows = np.random.default_rng(0).integers(0, len(ids), (Q, 12))
        np.testing.assert_array_equal(
            gallery.rescore(self.queries, ids[rows], self.score), pe.rescore(self.queries, held, rows, self.score)
        )
        found = gallery.search(self.queries, 9, shortlist=len(ids), score=self.score)
        exact = gallery.search(self.queries, 9, self.score)
        np.testing.assert_array_equal(found.ids, exact.ids)
        assert all((x.dim, x.gallery_size) == (DIM, len(ids)) for x in (found, exact))
        assert gallery.verify() == []


@pytest.mark.parametrize(
    ("kind", "ids", "dtype"),
    [
        ("normal_isotropic", "int", "float32"),
        ("normal_diagonal", "str", "float32"),
        ("vmf", "int", "float64"),
        ("nivmf", "str", "float32"),
        ("scaled", "int", "float32"),
        ("point", "str", "float16"),
    ],
)
def test_a_gallery_answers_as_memory_does_after_every_change(tmp_path, kind, ids, dtype, monkeypatch):
    monkeypatch.setattr(version_rows, "BLOCK", 32)
    items, queries = make(kind, 260, DIM, dtype=dtype), make(kind, Q, DIM, 1, dtype=dtype)
    if kind == "nivmf":
        queries = pe.Point(queries.mu)
    order = np.random.default_rng(2).permutation(1000)[:260]
    names = named(ids, order)
    gallery = pe.Gallery.create(tmp_path / "g.lance", items[:100], names[:100])
    memory = Memory(gallery, queries, SCORES[kind])
    memory.put(items[:100], names[:100])
    memory.check()
    gallery.build_index("Flat", "cosine")
    assert gallery.add(items[100:180], names[100:180]) == 80
    memory.put(items[100:180], names[100:180])
    memory.check()
    assert gallery.upsert(items[180:240], names[150:210]) == 30
    memory.put(items[180:240], names[150:210])
    memory.check()
    with pytest.raises(ValueError, match=rf"^Gallery.remove: ids hold {names[250]} in row 20, which no item has"):
        gallery.remove(np.append(names[40:60], names[250:]))
    assert gallery.remove(np.append(names[40:60], names[250:]), skip_missing=True) == 20
    for id in names[40:60].tolist():
        del memory.items[id]
    memory.check()
    gallery.compact()
    assert gallery.info()["fragments"] == 1
    memory.check()
    gallery.upsert(items[:5], names[:5])  # as they are: the last change is one of a compacted fragment
    memory.check()
    memory.gallery = pe.Gallery.open(tmp_path / "g.lance")
    memory.check()


@pytest.mark.parametrize("var", [0.5, np.exp(np.random.default_rng(3).normal(0, 1, (1, DIM)))])
def test_one_variance_is_one_as_long_as_all_items_have_it(tmp_path, var, monkeypatch):
    monkeypatch.setattr(version_rows, "BLOCK", 32)
    mu, var = make("point", 260, DIM).mu, np.asarray(var, np.float32)
    items, others, queries = pe.Normal(mu, var), pe.Normal(mu, var * 2), pe.Normal(mu[:Q] + 1, var * 3)
    ids, score = np.random.default_rng(2).permutation(1000)[:260], pe.scores.llr(prior_var=np.arange(1.0, DIM + 1))
    gallery = pe.Gallery.create(tmp_path / "g.lance", items[:100], ids[:100])
    memory = Memory(gallery, queries, score)
    memory.put(items[:100], ids[:100])
    memory.check()
    gallery.add(items[100:180], ids[100:180])
    memory.put(items[100:180], ids[100:180])
    memory.check()
    found, expected = gallery.duplicates(-8.0, score), pe.duplicates(items[:180][np.argsort(ids[:180])], -8.0, score)
    np.testing.assert_array_equal(found.scores, expected.scores)
    stored = pe.io.read_distribution(tmp_path / "g.lance")
    assert len(stored) == 180 and stored.common_parameter() is not None
    before = pe.Gallery.open(tmp_path / "g.lance", gallery.version)
    gallery.upsert(others[180:190], ids[175:185])
    memory.put(others[180:190], ids[175:185])
    memory.check()
    assert pe.io.read_distribution(tmp_path / "g.lance").common_parameter() is None
    assert all(block.common_parameter() is None for block in pe.io.arrow_blocks(lance.dataset(tmp_path / "g.lance")))
    np.testing.assert_array_equal(
        before.search(queries, 9, score).scores, pe.search(queries, items[:180], 9, score).scores
    )
    gallery.remove(ids[175:185])
    for id in ids[175:185].tolist():
        del memory.items[id]
    memory.check()
    gallery.add(pe.concat([items[190:200], others[200:210]]), ids[190:210])
    memory.put(items[190:200], ids[190:200])
    memory.put(others[200:210], ids[200:210])
    memory.check()
    gallery.remove(ids[200:210])
    for id in ids[200:210].tolist():
        del memory.items[id]
    memory.check()
    gallery.compact()
    memory.check()
    memory.gallery = pickle.loads(pickle.dumps(gallery))
    memory.check()


def test_items_with_a_variance_of_each_keep_it_though_all_are_equal(tmp_path):
    mu = make("point", 60, DIM).mu
    gallery = pe.Gallery.create(tmp_path / "g.lance", pe.Normal(mu, np.full((60, DIM), 0.5, np.float32)), np.arange(60))
    memory = Memory(gallery, pe.Normal(mu[:Q] + 1, np.float32(0.3)), "llr:prior_var=1")
    memory.put(pe.Normal(mu, np.full((60, DIM), 0.5, np.float32)), np.arange(60))
    memory.check()


def test_ties_go_to_the_lower_id_wherever_it_is(tmp_path):
    """Also where more are equal than are asked for, in one fragment and in several."""
    same = make("normal_diagonal", 1, DIM)
    queries = make("normal_diagonal", Q, DIM, 1)
    gallery = pe.Gallery.create(tmp_path / "g.lance", same[[0] * 5], [70, 50, 90, 30, 10])
    for _ in range(3):
        assert gallery.search(queries, 3).ids.tolist() == [sorted(gallery.ids.tolist())[:3]] * Q
        gallery.add(same[[0] * 2], [gallery.ids[0] - 1, 100 + len(gallery)])
        gallery.upsert(same, [10])
    gallery.compact()
    assert gallery.search(queries, 4).ids.tolist() == [gallery.ids[:4].tolist()] * Q
    gallery.build_index("Flat")
    assert gallery.search(queries, 3, shortlist=20).ids.tolist() == [gallery.ids[:3].tolist()] * Q


def test_padding_comes_after_what_cannot_match(tmp_path):
    """As from `search`."""
    items = pe.Normal(np.eye(3), np.array([0.1, 0.0, 0.2]))
    queries = pe.Normal(np.eye(3)[:1], np.array([0.0]))
    for ids, none in (([3, 1, 2], -1), (["c", "a", "b"], "")):
        gallery = pe.Gallery.create(tmp_path / f"{none}.lance", items, ids)
        scores, rows = pe.search(queries, items[[1, 2, 0]], 5)
        found = gallery.search(queries, 5)
        np.testing.assert_array_equal(found.scores, scores)
        assert np.isneginf(scores[0, 2]) and found.ids.tolist() == [[*np.sort(ids)[rows[0, :3]].tolist(), none, none]]
        assert gallery.remove(ids) == 3 and gallery.search(queries, 2).ids.tolist() == [[none] * 2]
        assert gallery.search(queries, 2).scores.tolist() == [[-np.inf] * 2]
        assert gallery.rescore(queries, [[none, none]]).tolist() == [[-np.inf] * 2]
        assert len(gallery) == 0 and gallery.ids.size == 0 and ids[0] not in gallery


@pytest.fixture
def gallery(tmp_path):
    """Ninety items of three commits, with years and places."""
    items = make("normal_diagonal", 90, DIM, dtype="float32")
    metadata = {"year": np.arange(90), "place": [("Rome", "Oslo")[i % 2] for i in range(90)]}
    made = pe.Gallery.create(tmp_path / "g.lance", items[:30], np.arange(30), {k: v[:30] for k, v in metadata.items()})
    for start in (30, 60):
        own = slice(start, start + 30)
        made.add(items[own], np.arange(90)[own], {k: v[own] for k, v in metadata.items()})
    made.items = items
    return made


QUERIES = make("normal_diagonal", Q, DIM, 1, dtype="float32")


@pytest.mark.parametrize("factory", [None, "Flat", "HNSW8", "IVF4,Flat", "PQ2x4"])
@pytest.mark.filterwarnings("ignore")
def test_a_filter_leaves_out_what_does_not_fulfil_it(gallery, factory):
    if factory is not None:
        gallery.build_index(factory)
    gallery.remove([4, 6])
    gallery.upsert(gallery.items[:2], [10, 11], {"year": [10, 1999], "place": ["Rome", "Rome"]})
    rows = [i for i in range(0, 41, 2) if i not in (4, 6)]
    held = pe.concat([gallery.items[0] if i == 10 else gallery.items[i] for i in rows])
    scores, found = pe.search(QUERIES, held, 9)
    params = faiss.SearchParametersIVF(nprobe=4) if factory == "IVF4,Flat" else None
    where = "year <= 40 AND place = 'Rome'"
    for ranking in (
        gallery.search(QUERIES, 9, filter=where),
        gallery.search(QUERIES, 9, shortlist=90, filter=where, params=params),
    ):
        np.testing.assert_array_equal(ranking.ids, np.array(rows)[found])
        np.testing.assert_array_equal(ranking.scores, scores)


@pytest.mark.parametrize(("factory", "first_stage"), [("Flat", "surrogate"), ("IVF4,Flat", "cosine")])
@pytest.mark.filterwarnings("ignore")
def test_an_index_proposes_what_a_reranker_s_proposes(gallery, factory, first_stage):
    gallery.compact()
    gallery.build_index(factory, first_stage)
    reranker = pe.FaissReranker.build(gallery.items, factory, first_stage=first_stage, recall=None)
    for shortlist in (5, 20):
        expected, found = (r.search(QUERIES, 5, shortlist=shortlist) for r in (reranker, gallery))
        np.testing.assert_array_equal(found.ids, expected.ids)
        np.testing.assert_array_equal(found.scores, expected.scores)
    again = pe.Gallery.open(gallery.info()["path"])
    np.testing.assert_array_equal(again.search(QUERIES, 5, shortlist=20).ids, found.ids)


def test_what_an_index_has_not_seen_is_scored_exactly(gallery):
    """New items, and those that were written again; and no more of the others than the shortlist."""
    gallery.build_index("Flat")
    gallery.add(gallery.items[:3], [200, 201, 202], {"year": [0] * 3, "place": [""] * 3})
    gallery.upsert(gallery.items[3:5], [50, 51], {"year": [0] * 2, "place": [""] * 2})
    for _ in range(2):
        assert gallery.info()["unseen"] == 5
        found = gallery.search(QUERIES, 90, shortlist=1)
        assert {200, 201, 202, 50, 51} <= set(found.ids[0].tolist()) and (found.ids >= 0).sum(1).max() <= 6
        gallery.compact()  # after which no fragment is that which the index has seen
    gallery.build_index("Flat")
    assert gallery.info()["unseen"] == 0


def test_a_version_stays_what_it_was(gallery):
    path, before = gallery.info()["path"], gallery.search(QUERIES, 5)
    other, old = pe.Gallery.open(path), pe.Gallery.open(path, version=gallery.version)
    gallery.remove(before.ids[:, 0])
    for unmoved in (other, old, pickle.loads(pickle.dumps(old))):
        np.testing.assert_array_equal(unmoved.search(QUERIES, 5).ids, before.ids)
    expected = gallery.search(QUERIES, 5)
    assert not np.isin(before.ids[:, 0], expected.ids).any()
    for moved in (other.refresh(), pickle.loads(pickle.dumps(gallery))):
        np.testing.assert_array_equal(moved.search(QUERIES, 5).ids, expected.ids)
    with pytest.raises(ValueError, match=r"^Gallery.remove: the gallery was opened at version 3, expected the newest$"):
        old.remove([1])


def test_tables_become_galleries_in_blocks(tmp_path):
    items = make("vmf", 50, DIM, dtype="float32")
    table = pe.io.to_arrow(items, np.arange(50)[::-1], name=[f"n{i}" for i in range(50)])
    done = []
    gallery = pe.Gallery.create(tmp_path / "g.lance", table.slice(0, 20), rows=8, progress=done.append)
    assert done == [8, 8, 4] and gallery.version == 3
    with pytest.raises(ValueError, match=r"^Gallery.add: ids hold \d+, which an item has already; see upsert$"):
        gallery.add(table)
    assert gallery.add(pa.RecordBatchReader.from_batches(table.schema, table.to_batches()), skip_existing=True) == 30
    queries = items[:3]
    scores, rows = pe.search(queries, items[::-1], 4)
    found = gallery.search(queries, 4, filter="name <> 'x'")
    np.testing.assert_array_equal(found.ids, rows)
    np.testing.assert_array_equal(found.scores, scores)
    back, ids = pe.io.from_arrow(gallery._table.dataset, ids="id")
    np.testing.assert_array_equal(back.mu[np.argsort(ids)], items.mu[::-1])


def test_a_dataset_in_an_object_store_has_its_derived_files_here(tmp_path, monkeypatch):
    """By Lance's object store over local files, as there is no other here; its keys are handed on."""
    given, lance = [], lance_table._lance()
    for name in ("dataset", "write_dataset"):
        whole = getattr(lance, name)
        monkeypatch.setattr(
            lance, name, lambda *a, whole=whole, **k: given.append(k["storage_options"]) or whole(*a, **k)
        )
    uri, keys = f"file-object-store://{tmp_path}/g.lance", {"allow_http": "true"}
    items = make("vmf", 20, DIM)
    gallery = pe.Gallery.create(uri, items, range(20), derived=tmp_path / "here", storage_options=keys, sync=True)
    gallery = pe.Gallery.open(uri, derived=tmp_path / "here", storage_options=keys)
    np.testing.assert_array_equal(gallery.search(items[:3], 4).ids, pe.search(items[:3], items, 4).ids)
    assert set(map(str, given)) == {str(keys)} and len(list((tmp_path / "here").iterdir())) == 1
    assert not (tmp_path / "g.lance" / "_peaccel").exists()


def test_a_distribution_may_be_kept_in_several_commits(tmp_path):
    items, done = make("vmf", 20, DIM), []
    gallery = pe.Gallery.create(tmp_path / "g.lance", items, range(20), {"name": ["a"] * 20})
    assert gallery.upsert(items, range(10, 30), {"name": ["b"] * 20}, rows=15, progress=done.append) == 10
    assert done == [15, 5] and gallery.version == 3
    assert (
        gallery.add(items, range(20, 40), {"name": ["c"] * 20}, rows=20, skip_existing=True, progress=done.append) == 10
    )
    assert done == [15, 5, 20] and [
        (gallery.search(items, 99, filter=f"name = '{x}'").ids[0] >= 0).sum() for x in "abc"
    ] == [10, 20, 10]


def test_what_the_page_shows_runs_and_prints_what_it_says(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    text = (Path(__file__).parents[3] / "docs/galleries.md").read_text()
    (block,) = (x for x in re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL) if "pe.Gallery" in x)
    exec(block, {})
    assert capsys.readouterr().out.splitlines() == re.findall(r"^# (.*)", block, re.MULTILINE)


def test_embeddings_alone_take_the_place_of_others_and_leave_metadata_as_they_are(gallery):
    before = gallery.items[:3]
    year = gallery.search(before, 1, filter="year = 11").ids[0, 0]
    assert gallery.upsert(gallery.items[5:8], [12, 10, 11]) == 0
    assert gallery.search(gallery.items[7:8], 1, filter="year = 11").ids[0, 0] == year == 11
    item = gallery.items[5:6]
    assert gallery.rescore(item, [[12]])[0] == pe.paired(item, item)
    assert gallery.upsert(gallery.items[:1], [12], {"place": ["Oslo"]}) == 0
    assert gallery.search(item, 2, filter="place = 'Oslo' AND year = 12").ids.tolist() == [[12, -1]]
    with pytest.raises(ValueError, match=r"^Gallery.upsert: metadata lack place, year, .* for id 950 in row 1"):
        gallery.upsert(gallery.items[:2], [12, 950])


# -- what goes wrong ---------------------------------------------------------------------------------------------------

META = {"year": [1], "place": ["Rome"]}


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda g: g.add(g.items[:1], [5], META),
            "Gallery.add: ids hold 5, which an item has already; see upsert",
        ),
        (lambda g: g.add(g.items[:2], [95, 95]), "Gallery.add: ids hold 95 twice"),
        (lambda g: g.add(g.items[:1]), "Gallery.add: ids is None, expected an id for each of 1 items"),
        (lambda g: g.add(g.items[:1], [-1]), r"Gallery.add: ids hold -1, expected 0 .. 2\^63 - 1"),
        (lambda g: g.add(g.items[:1], ["a"], META), "Gallery.add: column id is string, expected int64 as in .*"),
        (
            lambda g: g.add(g.items[:1], [1.5]),
            "Gallery.add: ids have shape .* float64, expected integers or strings .*",
        ),
        (lambda g: g.add(g.items[:1], [95]), "Gallery.add: column year is missing, expected int64 as in .*"),
        (lambda g: g.add(g.items[:1], [95], {"mu": [1]}), "Gallery.add: metadata has a column mu, expected .*"),
        (
            lambda g: g.add(g.items[:1], [95], {"year": ["x"], "place": ["Rome"]}),
            "Gallery.add: metadata do not fit those of .*",
        ),
        (
            lambda g: g.add(g.items.to("float64")[:1], [95], META),
            r"Gallery.add: column mu is .*double.*, expected fixed_size_list<.*float>\[6\] as in .*",
        ),
        (
            lambda g: g.upsert(pe.Normal(g.items.mu[:1], -g.items.var[:1]), [95], META),
            "Gallery.upsert: Normal: var is negative in row 0: .*",
        ),
        (
            lambda g: g.add(g.items[:1], [95], META, rows=0),
            "Gallery.add: rows is 0, expected an integer from 1 on",
        ),
        (lambda g: g.add(pa.table({"mu": [[1.0]]})), "Gallery.add: column id is missing, found mu"),
        (lambda g: g.add(3), "Gallery.add: source must be a table of .*, got int"),
        (lambda g: g.remove(["a"]), "Gallery.remove: ids have shape .* and dtype .*, expected integers .*"),
        (lambda g: g.search(QUERIES, 0), "mls: k is 0, expected 1 .. 2147483647"),
        (lambda g: g.search(QUERIES.mu, 1), "mls: queries must be a distribution, got ndarray; .*"),
        (lambda g: g.search(QUERIES, 1, "hib:a=1,b=0,n=4,seed=1"), "hib: draws by the number of a row, .*"),
        (lambda g: g.search(QUERIES, 1, filter="yer > 3"), "Gallery: filter 'yer > 3': .*No field named yer.*"),
        (lambda g: g.search(QUERIES, 1, shortlist=0), "mls: shortlist is 0, expected 1 .. 2147483647"),
        (
            lambda g: g.rescore(QUERIES, [[1, 999]] * Q),
            "Gallery.rescore: candidates hold 999 in row 0, which no item has",
        ),
        (
            lambda g: g.rerank(QUERIES, [1, 2], 3),
            r"Gallery.rerank: candidates have shape \(2,\), expected \(5, .*",
        ),
        (lambda g: g.build_index("Flet"), "Gallery.build_index: factory 'Flet' is not a FAISS factory string"),
        (lambda g: g.build_index("Flat", "mu"), "Gallery.build_index: first_stage 'mu', expected 'cosine' or .*"),
        (lambda g: g.compact(-1), "Gallery.compact: keep_days is -1, expected a number from 0 on"),
        (
            lambda g: pe.Gallery.open(g.info()["path"], version=99),
            r".*: version 99 cannot be opened \(there are .*\): .*",
        ),
        (lambda g: pe.Gallery.open("nowhere"), "nowhere: no such gallery"),
        (
            lambda g: pe.Gallery.create(g.info()["path"], QUERIES, range(Q)),
            ".*: is there already, expected a new or .*",
        ),
        (
            lambda g: pe.Gallery.create("x", QUERIES[:0], []),
            "Gallery.create: items are none, expected at least one, .*",
        ),
        (lambda g: pe.Gallery.open("s3://bucket/g.lance"), "Gallery.open: derived is None, expected a folder on .*"),
    ],
)
def test_errors_are_one_line_and_change_nothing(gallery, call, message):
    version = gallery.version
    with pytest.raises((ValueError, TypeError, OSError), match=f"^{message}$") as error:
        call(gallery)
    assert "\n" not in str(error.value) and ".rs" not in str(error.value)
    assert gallery.refresh().version == version and len(gallery) == 90 and not Path("x").exists()


def test_metadata_that_no_file_holds_are_refused(tmp_path):
    with pytest.raises(OSError, match=r"^Gallery.create: .*: The struct field `x` contains 1 null value"):
        pe.Gallery.create(tmp_path / "g.lance", QUERIES[:2], [1, 2], {"x": [{"y": 1}, None]})


def test_a_dataset_that_is_no_gallery_is_refused(tmp_path):
    lance = lance_table._lance()
    lance.write_dataset(pe.io.to_arrow(QUERIES, np.arange(Q)), tmp_path / "plain.lance")
    with pytest.raises(ValueError, match=r"is a Lance dataset that Gallery.create has not made, expected one of its$"):
        pe.Gallery.open(tmp_path / "plain.lance")


def derived_files(path):
    return sorted((path / "_peaccel").glob("*.safetensors"))


def test_derived_files_are_made_again_where_they_are_missing_or_cut_short(gallery, tmp_path):
    expected = gallery.search(QUERIES, 5)
    first, second, third = derived_files(tmp_path / "g.lance")
    contents = first.read_bytes()
    first.unlink()
    second.write_bytes(second.read_bytes()[:-8])
    third.write_bytes(b"")
    again = pe.Gallery.open(tmp_path / "g.lance")
    np.testing.assert_array_equal(again.search(QUERIES, 5).ids, expected.ids)
    assert first.read_bytes() == contents and len(derived_files(tmp_path / "g.lance")) == 3


def flipped(paths, item):
    """The file that holds a mean, a bit of which is flipped in it."""
    (path,) = (x for x in paths if item.mu.tobytes() in x.read_bytes())
    content = bytearray(path.read_bytes())
    content[content.index(item.mu.tobytes()) + 12] ^= 4
    path.write_bytes(content)
    return path


def test_verify_tells_a_damaged_file_from_a_damaged_fragment(gallery, tmp_path):
    path = tmp_path / "g.lance"
    gallery.build_index("Flat")
    damaged = flipped(derived_files(path), gallery.items[5])
    columns = flipped((path / "data").iterdir(), gallery.items[40])
    index = path / "_peaccel" / "index-3" / "index.faiss"
    index.write_bytes(index.read_bytes()[:-1] + b"\xff")
    first, second, third = pe.Gallery.open(path).verify()
    assert first.startswith(f"{columns}: is not what was written for version 3; delete ")
    assert second == f"{damaged}: is damaged; it can be deleted, and is then made again of fragment 0"
    assert third == f"{index.parent}: is damaged; build_index again"
    damaged.unlink()
    assert pe.Gallery.open(path).verify() == [first, third]
    (path / "_peaccel" / "commit-3.json").unlink()
    assert pe.Gallery.open(path).verify()[0].startswith("fragment 1: column mu is not what it was in 1 rows when ")


def test_files_of_columns_are_read_once_for_their_checksums(gallery, tmp_path, monkeypatch):
    asked = []
    sums = commit_checksums._sums
    monkeypatch.setattr(commit_checksums, "_sums", lambda table, names: asked.extend(names) or sums(table, names))
    gallery.remove([gallery.ids[0]])
    assert asked and not any(name.startswith("data/") for name in asked)
    assert pe.Gallery.open(tmp_path / "g.lance").verify() == []
    assert sum(name.startswith("data/") for name in asked) == len(list((tmp_path / "g.lance" / "data").iterdir()))


def test_compaction_sweeps_what_nobody_needs(gallery, tmp_path):
    gallery.search(QUERIES, 1)
    folder = tmp_path / "g.lance" / "_peaccel"
    old, young = (temporary(folder / f"{24 * digit}.safetensors", "new") for digit in "ab")
    for path in (old, young):
        path.touch()
    os.utime(old, (0, 0))
    orphan = folder.parent / "data" / "orphan.lance"
    orphan.touch()
    os.utime(orphan, (0, 0))
    gallery.compact(keep_days=0)
    assert derived_files(folder.parent) == [young] and not orphan.exists()
    with pytest.raises(ValueError, match=r"version 1 cannot be opened"):
        pe.Gallery.open(folder.parent, version=1)
    gallery.remove([1])
    gallery.compact()
    assert len(pe.Gallery.open(folder.parent, version=gallery.version - 1)) == 90  # young versions stay


def test_compaction_and_building_delete_nothing_of_others(gallery, tmp_path):
    """Also where a folder of theirs is named for derived files."""
    gallery = pe.Gallery.open(tmp_path / "g.lance", derived=tmp_path / "theirs")
    gallery.search(QUERIES, 1)
    old = (0, 0)
    theirs = ["model.safetensors", ".ssh/id", "index-1/text.md", f"{24 * '0'}.safetensors"]
    theirs += [f"_peaccel/{name}" for name in ("model.safetensors", ".ssh/id", ".a-old.npz", "index-1/text.md")]
    for name in theirs:
        path = tmp_path / "theirs" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("theirs")
        os.utime(path, old)
        os.utime(path.parent, old)
    gallery.build_index("Flat")
    gallery.remove([1])
    gallery.compact(keep_days=0)
    assert all((tmp_path / "theirs" / name).read_text() == "theirs" for name in theirs)
    assert pickle.loads(pickle.dumps(gallery))._derived == gallery._derived == tmp_path / "theirs" / "_peaccel"


def test_links_in_place_of_derived_files_are_not_followed(gallery, tmp_path):
    gallery.search(QUERIES, 1)
    folder, theirs = tmp_path / "g.lance" / "_peaccel", tmp_path / "theirs"
    (theirs / "index").mkdir(parents=True)
    (theirs / "index" / "text.md").write_text("theirs")
    (theirs / "model").write_text("theirs")
    derived = derived_files(tmp_path / "g.lance")[0]
    derived.unlink()
    derived.symlink_to(theirs / "model")
    (folder / "index-3").symlink_to(theirs / "index")
    gallery = pe.Gallery.open(tmp_path / "g.lance")
    gallery.search(QUERIES, 1)
    gallery.build_index("Flat")
    assert not derived.is_symlink() and not (folder / "index-3").is_symlink()
    (folder / "index-2").symlink_to(theirs / "index")
    gallery.build_index("Flat")
    folder.rename(theirs / "_peaccel")
    folder.symlink_to(theirs)
    with pytest.raises(ValueError, match=r"_peaccel: is a link, expected a folder of the gallery's own"):
        pe.Gallery.open(tmp_path / "g.lance")
    assert (theirs / "model").read_text() == (theirs / "index" / "text.md").read_text() == "theirs"
    assert [path.name for path in (theirs / "index").iterdir()] == ["text.md"]


def test_pipes_in_place_of_derived_files_are_not_waited_for(gallery, tmp_path):
    gallery.build_index("Flat")
    expected = gallery.search(QUERIES, 5)
    first, index = derived_files(tmp_path / "g.lance")[0], tmp_path / "g.lance/_peaccel/index-3/index.faiss"
    for path in (first, index):
        path.unlink()
        os.mkfifo(path)
    again = pe.Gallery.open(tmp_path / "g.lance")
    np.testing.assert_array_equal(again.search(QUERIES, 5).ids, expected.ids)
    with pytest.raises(ValueError, match=r"index-3: is damaged, expected what build_index has written"):
        again.search(QUERIES, 5, shortlist=100)


def test_a_gallery_that_was_half_created_says_so(tmp_path):
    (tmp_path / "half.lance" / "_transactions").mkdir(parents=True)
    (tmp_path / "half.lance" / "_versions").mkdir()
    with pytest.raises(FileNotFoundError, match=r"half.lance: no such gallery: Gallery.create was interrupted here"):
        pe.Gallery.open(tmp_path / "half.lance")


def test_an_earlier_version_is_restored_as_a_new_one(tmp_path):
    """With the index of a version that is newer than what comes back, and beside a gallery that stays at another."""
    rng = np.random.default_rng(0)
    items, more = (pe.Point(rng.normal(size=(count, DIM))) for count in (40, 20))
    gallery = pe.Gallery.create(tmp_path / "g.lance", items, np.arange(40))
    other = pe.Gallery.open(tmp_path / "g.lance")
    gallery.add(more, np.arange(40, 60))
    gallery.upsert(more[:5], np.arange(5))
    gallery.build_index("Flat")
    shutil.copytree(tmp_path / "g.lance" / "_peaccel", tmp_path / "elsewhere" / "_peaccel")
    gallery.restore(1)
    assert gallery.version == 4 and [number for number, _ in gallery.versions()] == [1, 2, 3, 4]
    expected = pe.search(more, items, 5)
    stale = pe.Gallery.open(tmp_path / "g.lance", derived=tmp_path / "elsewhere")  # which has the index still
    assert gallery.info()["index"] is None and stale.info()["index"] == "Flat of version 3"
    for found in (gallery.search(more, 5), stale.search(more, 5), other.search(more, 5)):
        assert (found.ids == expected.ids).all() and (found.scores == expected.scores).all()
    assert gallery.verify() == [] and other.refresh().version == 4
    gallery.add(more, np.arange(40, 60))
    assert len(gallery) == 60 and len(pe.Gallery.open(tmp_path / "g.lance", version=3)) == 60
    with pytest.raises(ValueError, match="version 9 cannot be opened"):
        gallery.restore(9)
    with pytest.raises(ValueError, match=r"^Gallery.restore: the gallery was opened at version 3, expected the newest"):
        pe.Gallery.open(tmp_path / "g.lance", version=3).restore(1)


def test_a_bit_flipped_in_what_lance_does_not_check_is_found(tmp_path):
    """Of deletion files and the newest manifest, by verify and where a gallery is opened or goes on."""
    items = pe.Point(np.random.default_rng(0).normal(size=(100, DIM)))
    gallery = pe.Gallery.create(tmp_path / "g.lance", items, np.arange(100))
    assert gallery.version == 1 and (tmp_path / "g.lance" / "_peaccel" / "commit-1.json").is_file()
    gallery.remove(np.arange(0, 60, 2))
    assert [x.name for x in (tmp_path / "g.lance" / "_peaccel").glob("commit-*")] == ["commit-2.json"]
    files = [*(tmp_path / "g.lance" / "_deletions").iterdir(), min((tmp_path / "g.lance" / "_versions").glob("*.man*"))]
    assert len(files) == 2
    for path in files:
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
        says = rf"{path.name}: is not what was written for version 2; delete .*commit-2.json to read it nevertheless"
        assert re.search(says, "\n".join(gallery.verify()))
        for read in (lambda: pe.Gallery.open(tmp_path / "g.lance"), lambda: gallery.refresh()):
            with pytest.raises(ValueError, match=f"{says}|version cannot be opened"):
                read()
        assert len(pe.Gallery.open(tmp_path / "g.lance", version=1)) == 100
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
    assert pe.Gallery.open(tmp_path / "g.lance").verify() == []
    for _ in range(2):  # in the place of a gallery whose derived files are still there
        shutil.rmtree(tmp_path / "h.lance", ignore_errors=True)
        items = pe.Point(np.random.default_rng().normal(size=(9, DIM)))
        pe.Gallery.create(tmp_path / "h.lance", items, np.arange(9), derived=tmp_path / "derived")
        assert pe.Gallery.open(tmp_path / "h.lance", derived=tmp_path / "derived").verify() == []
    shutil.rmtree(tmp_path / "g.lance" / "_peaccel")  # derived files can be deleted
    assert len(pe.Gallery.open(tmp_path / "g.lance")) == 70


def test_a_torn_newest_version_is_named_and_the_others_open(gallery):
    path = Path(gallery.info()["path"])
    newest = min((path / "_versions").glob("*.manifest"))
    newest.write_bytes(b"")
    with pytest.raises(ValueError, match=rf"{newest.name} is empty, .*; without that file version 2 is the newest"):
        pe.Gallery.open(path)
    assert len(pe.Gallery.open(path, version=2)) == 60
    newest.unlink()
    assert pe.Gallery.open(path).version == 2


def test_sync_brings_what_a_commit_wrote_to_the_disk(gallery, monkeypatch):
    synced = []
    monkeypatch.setattr(lance_table, "synchronise", lambda path: synced.append(Path(path)))
    path = Path(gallery.info()["path"])
    before = {x for x in path.rglob("*") if "_peaccel" not in x.parts}
    gallery.remove([0])
    assert not synced
    other = pe.Gallery.open(path, sync=True)
    other.upsert(gallery.items[:2], [1, 900], {"year": [1, 2], "place": ["", ""]})
    written = {x for x in path.rglob("*") if x.is_file() and "_peaccel" not in x.parts} - before
    assert {"data", "_deletions", "_transactions", "_versions"} <= {x.parent.name for x in written}
    assert written <= set(synced) and {path, *(x.parent for x in written)} <= set(synced)
    assert atomic_files.synchronise is not lance_table.synchronise


def test_two_writers_of_one_new_id_leave_it_once(tmp_path):
    """Two that upsert it, and two that append it, of whom one is told that it is there."""
    items = make("normal_diagonal", 40, DIM)
    pe.Gallery.create(tmp_path / "g.lance", items[:1], [1000])
    errors = []

    def write(number):
        gallery = pe.Gallery.open(tmp_path / "g.lance")
        for id in range(6):
            try:
                gallery.upsert(items[[number, 2]], [id, 100 * number + id])
                gallery.add(items[[number]], [10 + id])
            except Exception as error:
                errors.append(str(error))

    threads = [threading.Thread(target=write, args=(number,)) for number in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    gallery = pe.Gallery.open(tmp_path / "g.lance")
    told = [f"Gallery.add: ids hold {id}, which an item has already; see upsert" for id in range(10, 16)]
    assert sorted(errors) == told and gallery.verify() == []
    assert gallery.ids.tolist() == [*range(6), *range(10, 16), *range(100, 106), *range(200, 206), 1000]


def test_a_thread_that_returns_late_leaves_the_newest_version(gallery):
    """Of two threads that have committed, the first is the last to say so."""
    go_on, waits = gallery._go_on, threading.Event()

    def late(table, result):
        if threading.current_thread() is first:
            waits.wait()
        return go_on(table, result)

    gallery._go_on = late
    first = threading.Thread(target=gallery.add, args=(gallery.items[:1], [500], META))
    first.start()
    while gallery._table.newest().version == gallery.version:
        pass
    gallery.add(gallery.items[:1], [501], META)
    version = gallery.version
    waits.set()
    first.join()
    assert gallery.version == version and {500, 501} <= {*gallery.ids.tolist()}


def test_a_change_is_refused_where_others_have_changed_what_it_has_read(gallery):
    """Whatever they have changed, also nothing but the last item or the first; compaction does not stand in the way."""
    rows = gallery._table.fitting("", pe.io.to_arrow(gallery.items[:1], [500], year=[1], place=[""]))
    for other in (
        lambda: gallery.add(gallery.items[:1], [500], META),
        lambda: gallery.remove([500]),
        lambda: gallery.upsert(gallery.items[:1], [7], META),
        lambda: gallery.remove(gallery.ids),
        lambda: gallery.add(gallery.items[:1], [500], META),
    ):
        old = gallery._table
        other()
        with pytest.raises(OSError, match="preempted by concurrent transaction"):
            old.replaced([], old.written(rows))
    old = gallery._table
    gallery.add(gallery.items[:1], [501], META)
    gallery.compact()
    with pytest.raises(OSError, match="preempted by concurrent transaction"):
        old.replaced([], old.written(rows))


def test_what_is_added_while_fragments_are_compacted_does_not_hold_that_up(gallery):
    optimize = importlib.import_module("lance.optimize")
    old = gallery._table.dataset
    tasks = [task.execute(old) for task in optimize.Compaction.plan(old, {}).tasks]
    gallery.add(gallery.items[:1], [500], META)
    gallery.upsert(gallery.items[:1], [501], META)
    optimize.Compaction.commit(old, tasks)
    assert gallery.refresh().info()["fragments"] == 3 and len(gallery) == 92


def test_a_commit_names_nothing_that_is_not_on_the_disk(gallery, monkeypatch):
    """Its rows and deletions are there before it is, so that a power loss can tear no more than the commit."""
    gallery, folders = pe.Gallery.open(gallery.info()["path"], sync=True), []
    synchronise = lance_table.LanceTable._synchronise
    monkeypatch.setattr(
        lance_table.LanceTable,
        "_synchronise",
        lambda table, since, names: folders.append((names, table.newest().version)) or synchronise(table, since, names),
    )
    before = gallery.version
    gallery.remove([0])
    assert folders[0] == (("data", "_deletions"), before) and folders[1][1] == before + 1
    assert {"_transactions", "_versions"} <= set(folders[1][0])


@pytest.mark.parametrize("times", [1, 4, 5])
def test_a_file_that_a_compaction_deletes_before_it_is_opened_is_made_again(times, tmp_path, monkeypatch):
    items, queries = make("normal_isotropic", 20, DIM), make("normal_isotropic", Q, DIM, seed=1)
    gallery, made = pe.Gallery.create(tmp_path / "gallery", items, np.arange(20)), []
    write = mapped_rows.new_safetensors

    @contextmanager
    def deleted(path, shapes):
        with write(path, shapes) as arrays:
            yield arrays
        made.append(path)
        if len(made) <= times:
            mapped_rows.sweep(path.parent, [])

    monkeypatch.setattr(mapped_rows, "new_safetensors", deleted)
    if times == 5:
        with pytest.raises(OSError, match=r"was deleted 5 times as soon as it was made; see Gallery\.compact$"):
            gallery.search(queries, 3)
        return
    np.testing.assert_array_equal(gallery.search(queries, 3).ids, pe.search(queries, items, 3).ids)
    assert len(made) == times + 1
