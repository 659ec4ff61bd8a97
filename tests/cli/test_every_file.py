"""A command reads what any other writes: rankings of `search` and `rerank` as candidates, in every file."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

import peaccel as pe
from peaccel import io
from peaccel.cli import main
from peaccel.io import _text_columns

RNG = np.random.default_rng(0)
SUFFIXES = (".npz", ".safetensors", ".json", ".csv", ".parquet")


@pytest.fixture
def files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, n in (("q", 5), ("g", 12)):
        d = pe.Normal(RNG.normal(size=(n, 4)).astype(np.float32), RNG.uniform(0.5, 2, n).astype(np.float32))
        io.write_distribution(f"{name}.npz", d)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_what_search_and_rerank_find_is_reranked(files, suffix):
    sides = "--queries q.npz --gallery g.npz"
    main(f"search {sides} --k 6 --out found{suffix}".split())
    main(f"rerank {sides} --candidates found{suffix} --k 4 --out again{suffix}".split())
    main(f"rerank {sides} --candidates again{suffix} --k 2 --score ppk --out last.npz".split())
    q, g = io.read_distribution("q.npz"), io.read_distribution("g.npz")
    want = pe.search(q, g, 6)
    for name, k in (("found", 6), ("again", 4)):
        scores, ids = io.read_ranking(f"{name}{suffix}")
        np.testing.assert_array_equal(ids, want.ids[:, :k])
        np.testing.assert_allclose(scores, want.scores[:, :k], rtol=1e-6)
    np.testing.assert_array_equal(io.read_ranking("last.npz")[1], pe.rerank(q, g, want.ids[:, :4], 2, "ppk").ids)


@pytest.mark.parametrize("suffix", sorted({*SUFFIXES} - {".safetensors"}))  # which holds no strings
def test_ids_that_are_strings_and_what_is_padded(files, suffix):
    io.write_ranking(f"r{suffix}", (np.array([[1.5, -np.inf], [2.0, 1.0]]), np.array([["b", ""], ["a", "c"]])))
    assert io.read_candidates(f"r{suffix}").tolist() == [["b", ""], ["a", "c"]]


@pytest.mark.parametrize("first", ["000", "100"])
@pytest.mark.parametrize("suffix", sorted({*SUFFIXES} - {".safetensors"}))
def test_ids_of_digits_stay_strings(files, suffix, first):
    q, g = io.read_distribution("q.npz"), io.read_distribution("g.npz")
    ids = np.array([f"{int(first) + row:03}" for row in range(12)])
    np.save("digits.npy", ids)
    sides = "--queries q.npz --gallery g.npz --ids digits.npy"
    main(f"search {sides} --k 6 --out found{suffix}".split())
    main(f"rerank {sides} --candidates found{suffix} --k 4 --out again{suffix}".split())
    want = ids[pe.search(q, g, 4).ids]
    for found in (
        io.read_candidates(f"again{suffix}", strings=True),
        io.read_ranking(f"again{suffix}", strings=True)[1],
    ):
        np.testing.assert_array_equal(found, want)
    if first == "000":
        np.testing.assert_array_equal(io.read_candidates(f"again{suffix}"), want)


@pytest.mark.parametrize("ids", [["1e5", "nan"], ["1_0", "+1"], ["1.5", "2"], ["9" * 19, "9" * 20], [" 1", "2"]])
def test_what_is_written_otherwise_than_integers_is_a_string(files, ids):
    io.write_ranking("r.csv", (np.array([[2.0, 1.0]]), np.array([ids])))
    assert io.read_candidates("r.csv").tolist() == [ids]


def test_lines_of_named_queries_and_other_files_are_refused(files, tmp_path):
    ranking = np.array([[1.0]]), np.array([[3]])
    io.write_ranking("named.csv", ranking, queries=["ann"])
    with pytest.raises(ValueError, match=r"^named.csv: query holds what is no number of a row"):
        io.read_candidates("named.csv")
    for name, text, says in (
        ("a.csv", "score,match\n1,0\n", "is no ranking, expected lines of query,rank,id,score"),
        ("a.json", "[1]", "is no ranking, expected an object of two lists of lists"),
        ("b.json", "{", "cannot be read"),
        ("b.csv", "query,rank,id,score\n999999999999,1,3,0.5\n", "a ranking of 1,000,000,000,000 queries x 1 ranks"),
        ("c.csv", "query,rank,id,score\n0,99999999999,3,0.5\n", "a ranking of 1 queries x 99,999,999,999 ranks"),
        ("d.csv", "query,rank,id,score\n0,0,3,0.5\n", "rank holds what is no number of a row"),
        ("e.csv", "query,rank,id,score\n007,1,3,0.5\n", "query holds what is no number of a row"),
        ("f.csv", "query,rank,id,score\n0,1,3,high\n", "score holds what is no number"),
        ("g.csv", "query,rank,id,score\n0,1,3,0.5\n0,1,4,0.5\n", "query 0 has rank 1 twice"),
        (
            "h.csv",
            "query,rank,id,score\n0,1,3,0.53",
            "ends within a line, as if cut off; where it is whole, end it with",
        ),
        ("i.csv", "query,rank,id,score\n0,1,3\n", "line 2: has 3 columns, expected 4, query, rank, id, score"),
    ):
        (tmp_path / name).write_text(text)
        with pytest.raises(ValueError, match=f"^{name}: {says}"):
            io.read_candidates(name)
    ids = np.array([3, 2**64 - 1], np.uint64)  # as int64 the second is -1, which is none
    parquet.write_table(pa.table({"query": [0, 0], "rank": [1, 2], "id": ids, "score": [1.0, 0.5]}), "u.parquet")
    with pytest.raises(ValueError, match=r"^u\.parquet: ids holds 18446744073709551615"):
        io.read_ranking("u.parquet")


@pytest.mark.parametrize("loop", [True, False])
@pytest.mark.parametrize("ids", [np.arange(7), np.array(["a", "b\rc", 'd"e', "f,g", "ä\nh", "007", " i "])])
def test_lines_come_back_by_every_way_of_reading(files, monkeypatch, ids, loop):
    """A lone carriage return is quoted too, which csv of Python 3.11 leaves bare and then refuses."""
    ranking = RNG.normal(size=(3, 7)), ids[[[0, 1, 2, 3, 4, 5, 6], [6, 5, 4, 3, 2, 1, 0], [1, 3, 5, 0, 2, 4, 6]]]
    ranking[0][0, :3] = np.inf, np.nan, -np.inf
    io.write_ranking("r.csv", ranking)
    monkeypatch.setattr(_text_columns, "SHORT", 1 << 30 if loop else 0)
    found = io.read_ranking("r.csv")
    np.testing.assert_array_equal(found[0], ranking[0])
    assert (found[1] == ranking[1]).all() and found[1].dtype.kind == ids.dtype.kind


def test_a_folder_that_is_missing_is_made(files):
    """By every command that writes into one; `train`, `fit-head` and `tune` make theirs with the run."""
    pytest.importorskip("lance")
    values = RNG.normal(size=(12, 4)).astype(np.float32)
    np.savez("f.npz", features=values, labels=np.arange(6).repeat(2))
    io.write_distribution("d.npz", pe.Normal(values, np.ones(12, np.float32)))
    np.save("y.npy", np.arange(6).repeat(2))
    sides, run = "--queries q.npz --gallery g.npz", "fit/deep/run"
    for line, made in (
        ("fit-head f.npz --threads 1 --match.epochs 1", "fit/run"),
        (f"search {sides} --k 3", "search/r.npz"),
        (f"rerank {sides} --candidates search/deep/r.npz --k 2", "rerank/r.json"),
        ("duplicates --embeddings g.npz --above -1e9", "duplicates/r.csv"),
        ("cluster --embeddings g.npz --above 0", "cluster/r.csv"),
        (f"embed --run {run} --features f.npz", "embed/e.npz"),
        ("embed --backbone small_cnn --data digits8 --quick --labels-out other/y.npy --part query", "embed/f.npz"),
        ("gallery create --embeddings g.npz", "gallery/g.lance"),
        ("gallery search --gallery gallery/deep/g.lance --queries q.npz --k 3", "found/r.npz"),
        ("evaluate --embeddings d.npz --labels y.npy", "evaluate/page"),
    ):
        path = Path(made)
        path = path.parent / "deep" / path.name
        main(f"{line} --out {path}".split())
        assert path.exists(), line
    assert Path("other/y.npy").exists()
