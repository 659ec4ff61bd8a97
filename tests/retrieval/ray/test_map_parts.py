"""Tables go through steps in batches of Arrow; parts that are there already are not made again."""

import importlib
import re
import types

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import ray
import torch
from clusters import start_ray
from conftest import make

import peaccel as pe
from peaccel.retrieval.ray import EmbedStep, RescoreStep, SearchStep, map_parts

bulk = importlib.import_module("peaccel.retrieval.ray.map_parts")  # the room gives the function of that name

GALLERY, QUERIES = make("normal_diagonal", 300, 8, dtype="float32"), make("normal_diagonal", 50, 8, 7, dtype="float32")
NAMES = np.array([f"item {i:x}" for i in range(300)])
EXPECTED = pe.search(QUERIES, GALLERY, 9)


def table(d, **columns):
    return pe.io.to_arrow(d, ids=np.arange(len(d)) + 1000, **columns)


def column(found, name):
    return np.array(found.column(name).to_pylist())


def test_search_adds_what_is_found_to_the_columns_that_are_kept():
    found = SearchStep(GALLERY, 9, keep=["id"])(table(QUERIES))
    assert found.column_names == ["id", "ids", "scores"] and column(found, "id").tolist() == list(range(1000, 1050))
    np.testing.assert_array_equal(column(found, "ids"), EXPECTED.ids)
    np.testing.assert_array_equal(column(found, "scores").astype("float32"), EXPECTED.scores)
    assert str(found.schema.field("scores").type) == "fixed_size_list<item: float>[9]"
    named = SearchStep((GALLERY, NAMES), 2, "cosine")(table(QUERIES))
    assert column(named, "ids").tolist() == NAMES[pe.search(QUERIES, GALLERY, 2, "cosine").ids].tolist()
    renamed = table(QUERIES).rename_columns(["id", "vector", "sigma2"])
    again = SearchStep(GALLERY, 9, columns={"mu": "vector", "var": "sigma2"})(renamed)
    np.testing.assert_array_equal(column(again, "ids"), EXPECTED.ids)


@pytest.mark.parametrize("ids", [None, NAMES])
def test_rescore_gives_the_scores_of_candidates(ids):
    rows = np.where(np.arange(9) < 7, EXPECTED.ids, -1)
    given = rows if ids is None else np.append(ids, "")[rows]
    source = GALLERY if ids is None else (GALLERY, ids)
    batch = table(QUERIES, near=pa.array(given.tolist()))
    found = RescoreStep(source, "near", "ppk", keep=["id", "near"])(batch)
    assert found.column_names == ["id", "near", "scores"]
    np.testing.assert_array_equal(column(found, "scores"), pe.rescore(QUERIES, GALLERY, rows, "ppk"))
    wrong = given.copy()
    wrong[3, 0] = 300 if ids is None else "nobody"
    with pytest.raises(ValueError, match=r"^RescoreStep: column near holds what the gallery lacks in row 3$"):
        RescoreStep(source, "near", "ppk")(table(QUERIES, near=pa.array(wrong.tolist())))


class Encoder:
    """A model of the tests: a mean, and a variance of half of its length."""

    def __call__(self, batch):
        x = torch.tensor(np.stack(batch.column("features").to_numpy()))
        return pe.Normal(2 * x, x.norm(dim=1) / 2)


def test_embed_writes_what_an_encoder_makes():
    batch = pa.table({"who": ["a", "b"], "features": [[3.0, 4.0], [0.0, 1.0]], "more": [1, 2]})
    found = EmbedStep(Encoder, keep=["who"])(batch)
    assert found.column_names == ["mu", "var", "who"]
    d = pe.io.from_arrow(found)
    assert (d.mu.tolist(), d.var.tolist()) == ([[6, 8], [0, 2]], [2.5, 0.5])
    with pytest.raises(TypeError, match=r"^EmbedStep: what the encoder returns must be a distribution, got list$"):
        EmbedStep(lambda: lambda batch: [1])(batch)
    with pytest.raises(ValueError, match=r"^EmbedStep: the encoder made 1 items of 2 rows, expected"):
        EmbedStep(lambda: lambda batch: pe.Point([[1.0]]))(batch)


# -- parts -------------------------------------------------------------------------------------------------------------


class Data:
    """Calls of Ray Data by `map_parts`, in this process."""

    def from_items(self, items, override_num_blocks):
        assert override_num_blocks == len(items)
        self.items = items
        return self

    def map_batches(self, step, fn_constructor_args, **options):
        self.options, self.step = options, step(*fn_constructor_args)
        return self

    def materialize(self):
        for item in self.items:
            self.step(pa.table({name: [value] for name, value in item.items()}))


@pytest.fixture
def data(monkeypatch):
    monkeypatch.setattr(bulk, "ray", types.SimpleNamespace(data=Data(), is_initialized=lambda: True))
    return bulk.ray.data


@pytest.fixture
def parts(tmp_path):
    """Three parts of queries, one of them empty, and their rows."""
    rows = {"a": (0, 20), "b": (20, 20), "c": (20, 50)}
    for name, (start, end) in rows.items():
        pq.write_table(table(QUERIES)[start:end], tmp_path / f"{name}.parquet", row_group_size=7)
    return {tmp_path / f"{name}.parquet": part for name, part in rows.items()}


SETTINGS = {"gallery": GALLERY, "k": 9, "keep": ["id"]}


def assert_whole(found, parts):
    for path, (start, end) in zip(found, parts.values(), strict=True):
        written = pq.read_table(path)
        assert column(written, "id").tolist() == list(range(1000 + start, 1000 + end))
        assert column(written, "ids").tolist() == EXPECTED.ids[start:end].tolist()


def test_each_part_is_written_once(data, parts, tmp_path):
    out = tmp_path / "found"
    found = map_parts(SearchStep, SETTINGS, list(parts), out, rows=8, concurrency=2, num_cpus=1.5, num_gpus=0.5)
    assert found == [out / f"{name}.parquet" for name in "abc"]
    assert_whole(found, parts)
    assert data.options == {
        **dict.fromkeys(("batch_size",), 1),
        **{"batch_format": "pyarrow", "concurrency": 2, "num_cpus": 1.5, "num_gpus": 0.5},
    }
    assert pe.build_info()["threads"] == 1 and pq.read_table(found[1]).schema == pq.read_table(found[0]).schema
    kept, times = found[0].read_bytes(), [path.stat().st_mtime_ns for path in found]
    found[2].unlink()
    assert_whole(map_parts(SearchStep, SETTINGS, list(parts), out, rows=11), parts)
    assert [item["part"] for item in data.items] == [str(list(parts)[2])]
    data.items = None
    map_parts(SearchStep, SETTINGS, list(parts), out)
    assert data.items is None and found[0].read_bytes() == kept and found[0].stat().st_mtime_ns == times[0]


def test_a_part_that_fails_leaves_no_file(data, parts, tmp_path):
    (tmp_path / "c.parquet").write_bytes(b"PAR1 no table")
    with pytest.raises(ValueError, match=r"c\.parquet: cannot be read, truncated or damaged"):
        map_parts(SearchStep, SETTINGS, list(parts), tmp_path / "found")
    assert sorted(path.name for path in (tmp_path / "found").iterdir()) == ["a.parquet", "b.parquet", "step.txt"]


def test_a_folder_is_for_one_call(data, parts, tmp_path):
    map_parts(SearchStep, SETTINGS, list(parts), tmp_path / "found")
    with pytest.raises(
        ValueError, match=r"^map_parts: .*found holds parts of SearchStep .*'k': 9.*, expected .*'k': 3"
    ):
        map_parts(SearchStep, SETTINGS | {"k": 3}, list(parts), tmp_path / "found")


def test_what_cannot_be_mapped_is_refused(data, parts, tmp_path, monkeypatch):
    path = next(iter(parts))
    with pytest.raises(
        ValueError, match=r"^map_parts: two parts have one name among " + re.escape(f"{path}, other/a.")
    ):
        map_parts(SearchStep, SETTINGS, [path, "other/a.parquet"], tmp_path / "found")
    with pytest.raises(ValueError, match=r"^map_parts: rows is 0, expected 1 \.\."):
        map_parts(SearchStep, SETTINGS, [path], tmp_path / "found", rows=0)
    monkeypatch.setattr(bulk.ray, "is_initialized", lambda: False)
    with pytest.raises(RuntimeError, match=r"^map_parts: Ray is not initialised, call ray\.init\(\) first"):
        map_parts(SearchStep, SETTINGS, [path], tmp_path / "found")
    assert not (tmp_path / "found").exists()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # Ray Data's own
def test_parts_on_ray_are_whole_and_go_on_where_they_were(parts, tmp_path):
    start_ray()
    try:
        pe.io.write_distribution(tmp_path / "gallery.npz", GALLERY)
        settings = {**SETTINGS, "gallery": str(tmp_path / "gallery.npz")}
        found = map_parts(SearchStep, settings, list(parts), tmp_path / "found", concurrency=2, num_cpus=0.5)
        assert_whole(found, parts)
        times = [path.stat().st_mtime_ns for path in found]
        found[0].unlink()
        assert_whole(map_parts(SearchStep, settings, list(parts), tmp_path / "found", num_cpus=0.5), parts)
        assert [path.stat().st_mtime_ns for path in found][1:] == times[1:]
        dataset = ray.data.read_parquet([str(path) for path in list(parts)[::2]])
        asked = {"fn_constructor_kwargs": settings, "batch_format": "pyarrow", "concurrency": 1}
        rows = sorted(dataset.map_batches(SearchStep, **asked).take_all(), key=lambda row: row["id"])
        np.testing.assert_array_equal(np.stack([row["ids"] for row in rows]), EXPECTED.ids)
    finally:
        ray.shutdown()


def test_settings_are_told_apart_by_what_they_hold():
    other = pe.Normal(GALLERY.mu + 1, GALLERY.var)
    assert repr(other) == repr(GALLERY) and bulk._as_text(other) != bulk._as_text(GALLERY) == bulk._as_text(GALLERY[:])
    assert bulk._as_text(GALLERY.mu) != bulk._as_text(other.mu) and bulk._as_text(torch.ones(2)) != bulk._as_text(
        torch.zeros(2)
    )
    assert bulk._as_text("a.npz") == "a.npz" and bulk._as_text(9) == 9


def test_a_batch_of_nothing_is_rescored_to_nothing():
    empty = table(QUERIES, ids_found=pa.array(EXPECTED.ids.tolist())).slice(0, 0)
    found = RescoreStep(GALLERY, "ids_found", keep=["id"])(empty)
    assert found.num_rows == 0 and found.column_names == ["id", "scores"]
