"""Commands read tables wherever they read arrays, and name what they find by the ids of the tables."""

import csv
import dataclasses
import json
from pathlib import Path

import faiss
import lance
import numpy as np
import pyarrow as pa
import pytest
from command import run
from pyarrow import parquet

import peaccel as pe
from peaccel import io

RNG, CLASSES, D = np.random.default_rng(0), 30, 8
LABELS = np.repeat([f"class {i}" for i in range(CLASSES)], 4)
MU = (RNG.normal(size=(CLASSES, D)).repeat(4, 0) + 0.4 * RNG.normal(size=(len(LABELS), D))).astype(np.float32)
ITEMS = pe.Normal(MU, RNG.uniform(0.1, 0.5, len(MU)).astype(np.float32))
IDS = np.array([f"é-{i}, of a table" for i in range(len(MU))])
SPOILT = MU.astype(float).tolist()
SPOILT[7][2] = None


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """The same items as arrays and as tables: queries are every second one."""
    folder = tmp_path_factory.mktemp("tables")
    for name, part in (("items", slice(None)), ("q", slice(0, None, 2)), ("g", slice(1, None, 2))):
        d, labels, ids = ITEMS[part], LABELS[part], IDS[part]
        io.write_distribution(folder / f"{name}.npz", d)
        np.save(folder / f"{name}-labels.npy", labels)
        table = io.to_arrow(d, ids=ids, label=labels)
        parquet.write_table(table, folder / f"{name}.parquet", row_group_size=7)
        parquet.write_table(table.rename_columns(["key", "vector", "sigma_sq", "name"]), folder / f"{name}-own.parquet")
        lance.write_dataset(table, folder / f"{name}.lance")
        for suffix, write in (("arrow", pa.ipc.new_file), ("feather", pa.ipc.new_stream)):
            with write(folder / f"{name}.{suffix}", table.schema) as file:
                file.write_table(table)
    np.save(folder / "mu.npy", MU)
    np.save(folder / "ids.npy", IDS[1::2])
    rows = RNG.integers(0, 60, (60, 5))
    np.save(folder / "rows.npy", rows)
    parquet.write_table(pa.table({"rows": list(rows), "candidates": IDS[1::2][rows].tolist()}), folder / "c.parquet")
    index = faiss.IndexFlatIP(D)
    index.add(MU[1::2])
    faiss.write_index(index, str(folder / "g.faiss"))
    parquet.write_table(pa.table({"mu": SPOILT, "id": IDS}), folder / "spoilt.parquet")
    (folder / "torn.parquet").write_bytes((folder / "g.parquet").read_bytes()[:-9])
    (folder / "torn.arrow").write_bytes(b"ARROW1\0\0nothing")
    return folder


@pytest.fixture
def here(prepared, monkeypatch):
    monkeypatch.chdir(prepared)
    return prepared


def lines(path):
    """The lines of a ranking, as texts."""
    if path.endswith(".csv"):
        with open(path, newline="") as file:
            return list(csv.reader(file))
    table = parquet.read_table(path)
    return [table.column_names, *zip(*(column.to_pylist() for column in table.columns), strict=True)]


@pytest.mark.parametrize("suffix", [".parquet", ".arrow", ".feather", ".lance", "-own.parquet"])
def test_search_finds_in_a_table_what_it_finds_in_arrays(here, capsys, suffix):
    assert run(capsys, "search --queries q.npz --gallery g.npz --k 3 --out arrays.npz")[0] == 0
    named = ":mu=vector,var=sigma_sq" if "own" in suffix else ""
    files = f"--queries q{suffix}{named} --gallery g{suffix}{named}"
    code, out, err = run(capsys, f"search {files} --k 3 --out table.npz")
    assert (code, err) == (0, "") and "mls: 60 queries, gallery 60 x 8, top 3 in " in out
    (scores, ids), (expected, rows) = io.read_ranking("table.npz"), io.read_ranking("arrays.npz")
    assert (scores == expected).all() and (ids == rows).all()


@pytest.mark.parametrize("out", ["csv", "parquet", "npz", "json"])
@pytest.mark.parametrize(
    "command",
    [
        "search",
        "rerank --candidates c.parquet",
        "rerank --index g.faiss --shortlist 9",
    ],
)
def test_what_is_found_goes_by_the_ids_of_tables(here, capsys, command, out):
    lined = out in ("csv", "parquet")
    files = "--queries q.parquet --gallery g.parquet --ids g.parquet:id"
    code, _, err = run(capsys, f"{command} {files} {'--query-ids q.lance:id' * lined} --k 3 --out r.{out}")
    assert (code, err) == (0, "")
    plain = command.replace("c.parquet", "rows.npy")
    assert run(capsys, f"{plain} --queries q.npz --gallery g.npz --k 3 --out plain.npz")[0] == 0
    scores, rows = io.read_ranking("plain.npz")
    ids = IDS[1::2][rows]
    if out == "npz":
        found = io.read_ranking("r.npz")
        assert (found[0] == scores).all() and (found[1] == ids).all()
    elif out == "json":
        assert json.loads((here / "r.json").read_text())["ids"] == ids.tolist()
    else:
        first, *found = lines(f"r.{out}")
        names = np.repeat(IDS[::2], 3)
        assert first == ["query", "rank", "id", "score"]
        assert [(a, c) for a, _, c, _ in found] == list(zip(names, ids.ravel(), strict=True))
        assert [(int(b), float(d)) for _, b, _, d in found] == list(zip([1, 2, 3] * 60, scores.ravel(), strict=True))


def test_candidates_may_be_rows_in_a_table_and_none_may_be_found(here, capsys):
    files = "--queries q.parquet --gallery g.parquet"
    assert run(capsys, f"rerank {files} --candidates c.parquet:rows --k 3 --out r.npz")[0] == 0
    assert run(capsys, "rerank --queries q.npz --gallery g.npz --candidates rows.npy --k 3 --out s.npz")[0] == 0
    assert (io.read_ranking("r.npz")[1] == io.read_ranking("s.npz")[1]).all()
    few = np.full((60, 2), "", "U20")
    few[:, 0] = IDS[1::2]
    np.save("few.npy", few)
    assert run(capsys, f"rerank {files} --ids ids.npy --candidates few.npy --k 2 --out r.csv")[0] == 0
    assert [line[:3] for line in lines("r.csv")[1:]] == [[str(i), "1", name] for i, name in enumerate(few[:, 0])]
    io.write_fit("accept.json", pe.FalseMatchLimit(np.inf, 0.01, 0.05, 1000, 4))
    code, out, _ = run(capsys, f"search {files} --ids g.arrow:id --accept accept.json --out r.npz")
    assert (
        code == 0
        and ", 0 queries answered (by accept.json, which does not say" in out
        and (io.read_ranking("r.npz")[1] == "").all()
    )


@pytest.mark.parametrize("suffix", [".parquet", ".lance", ".jsonl", ".npz"])
def test_a_path_names_the_ids_too(here, capsys, suffix):
    for name, part in (("q", slice(0, None, 2)), ("g", slice(1, None, 2))):
        columns = {"key": IDS[part], "e": list(MU[part]), "v": ITEMS.var[part]}
        if suffix == ".npz":
            np.savez(f"{name}-named.npz", **columns)
        elif suffix == ".jsonl":
            rows = zip(IDS[part].tolist(), MU[part].astype(float).tolist(), ITEMS.var[part].tolist(), strict=True)
            with open(f"{name}-named.jsonl", "w") as file:
                file.writelines(json.dumps(dict(zip(columns, row, strict=True))) + "\n" for row in rows)
        elif suffix == ".lance":
            lance.write_dataset(pa.table(columns), f"{name}-named.lance", mode="overwrite")
        else:
            parquet.write_table(pa.table(columns), f"{name}-named.parquet")
    files = " ".join(f"--{side} {side[0]}-named{suffix}:mu=e,var=v,id=key" for side in ("queries", "gallery"))
    assert run(capsys, f"search {files} --k 3 --score cosine --out named.csv")[::2] == (0, "")
    plain = "search --queries q.npz --gallery g.npz --ids ids.npy --query-ids q.parquet:id --k 3 --score cosine"
    assert run(capsys, f"{plain} --out p.csv")[0] == 0
    assert [line[:3] for line in lines("named.csv")] == [line[:3] for line in lines("p.csv")]
    np.save("found.npy", IDS[1::2][np.arange(120).reshape(60, 2) % 60])
    assert run(capsys, f"rerank {files} --candidates found.npy --k 2 --out r.npz")[::2] == (0, "")
    assert {*io.read_ranking("r.npz")[1].ravel()} <= {*IDS[1::2]}


@pytest.mark.parametrize("command", ["search", "rerank --candidates rows-bad.npy"])
@pytest.mark.parametrize("out", ["npz", "csv"])
def test_items_left_out_move_no_row(here, capsys, command, out):
    """Ids are rows of the files, and a query that was left out finds nothing."""
    bad_queries, bad_items = [0, 17, 59], [1, 30]
    for name, bad, part in (("q", bad_queries, slice(0, None, 2)), ("g", bad_items, slice(1, None, 2))):
        mu = MU[part].copy()
        mu[bad] = np.nan
        np.savez(f"{name}-bad.npz", mu=mu, var=ITEMS.var[part])
    rows = np.load("rows.npy")
    rows[np.isin(rows, bad_items)] = 2
    np.save("rows-bad.npy", rows)
    line = f"{command} --queries q-bad.npz --gallery g-bad.npz --k 4 --out bad.{out}"
    code, _, err = run(capsys, line)
    assert code == 2 and "q-bad.npz: mu is NaN or null in 3 of 60 rows: 0, 17, 59; skip_bad=True" in err
    with pytest.warns(UserWarning, match="left out what is NaN or null in .* rows: "):
        assert run(capsys, f"{line} --skip-bad")[0] == 0
    left = np.delete(np.arange(60), bad_items)
    if command == "search":
        scores, found = pe.search(ITEMS[::2], ITEMS[1::2][left], 4)
        found = left[found]
    else:
        scores, found = pe.rerank(ITEMS[::2], ITEMS[1::2], rows, 4)
    scores[bad_queries], found[bad_queries] = -np.inf, -1
    count = 60 if out == "npz" else 59  # the last query of the lines is the last that found any
    read = io.read_ranking(f"bad.{out}")
    assert len(read[1]) == count and (read[1] == found[:count]).all()
    np.testing.assert_array_equal(read[0], scores[:count])


def test_labels_of_items_left_out_are_left_out(here, capsys):
    mu = MU.copy()
    mu[[5, 50]] = np.nan
    np.savez("bad.npz", mu=mu, labels=LABELS)
    kept = np.delete(np.arange(len(MU)), [5, 50])
    np.savez("kept.npz", mu=MU[kept], labels=LABELS[kept])
    line = "choose-threshold --embeddings {0}.npz --labels {0}.npz --score cosine --wrong 30% --out {0}"
    with pytest.warns(UserWarning, match="rows: 5, 50"):
        code, out, _ = run(capsys, f"{line.format('bad')} --skip-bad")
    assert code == 0 and out.partition("->")[0] == run(capsys, line.format("kept"))[1].partition("->")[0]
    np.save("right.npy", np.array([[0, 1]]))
    with pytest.warns(UserWarning, match="rows: 5, 50"):
        _, _, err = run(capsys, "evaluate --embeddings bad.npz --relevance right.npy --skip-bad --out bad")
    assert "--skip-bad left out rows, which --relevance counts, expected none" in err


OF_TABLES = "--queries q.{0} --gallery g.{0} --query-labels q.{0}:label --gallery-labels g.{0}:label"
OF_ARRAYS = "--queries q.npz --gallery g.npz --query-labels q-labels.npy --gallery-labels g-labels.npy"


@pytest.mark.parametrize(
    ("command", "tables", "arrays", "written"),
    [
        pytest.param(
            "evaluate --scores cosine,mls",
            OF_TABLES.format("parquet"),
            OF_ARRAYS,
            "results.json",
            marks=pytest.mark.slow,
        ),
        ("choose-threshold --score mls --wrong 30%", OF_TABLES.format("lance"), OF_ARRAYS, "threshold.json"),
        pytest.param(
            "choose-score",
            "--embeddings items.arrow --labels items.arrow:label",
            "--embeddings items.npz --labels items-labels.npy",
            "choice.json",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_labels_are_columns_of_the_same_table(here, capsys, monkeypatch, command, tables, arrays, written):
    monkeypatch.setattr("peaccel.metrics._draws.RESAMPLES", 20)
    for files, out in ((tables, "of-tables"), (arrays, "of-arrays")):
        code, _, err = run(capsys, f"{command} {files} --out {out}")
        assert code == 0, err
    assert (here / "of-tables" / written).read_bytes() == (here / "of-arrays" / written).read_bytes()


def test_a_head_is_fitted_to_a_table_and_gives_it_its_uncertainty(here, capsys):
    for features, labels in (("mu.npy", "items-labels.npy"), ("items.parquet", "items.parquet:label")):
        out = "head-t" if "parquet" in features else "head-a"
        code, said, err = run(capsys, f"fit-head {features} --labels {labels} --match.epochs 1 --out {out}")
        assert code == 0, err
        assert f"--features {features}" in said
        code, _, err = run(capsys, f"embed --run {out} --features {features} --out {out}.npz")
        assert code == 0, err
    a, t = (io.read_distribution(f"head-{x}.npz") for x in "at")
    assert (a.var == t.var).all()


def test_scored_pairs_are_read_of_any_table(here):
    table = pa.table({"score": [0.5, 1.0], "match": [True, False], "group": ["a", "b"]})
    lance.write_dataset(table, "pairs.lance")
    assert io.read_scored_pairs("pairs.lance").groups.tolist() == ["a", "b"]


FILES = "--queries q.parquet --gallery g.parquet --out r.csv"


@pytest.mark.parametrize(
    ("line", "message"),
    {
        "search --queries q.parquet --gallery none.parquet --out r.csv": "none.parquet: no such file",
        "search --queries q.parquet --gallery none.parquet:vector --out r.csv": "none.parquet:vector: no such file",
        "search --queries q.parquet --gallery spoilt.parquet --out r.csv": (
            "spoilt.parquet: mu is NaN or null in row 7; skip_bad=True or --skip-bad leaves such rows out"
        ),
        "search --queries q.parquet --gallery torn.parquet --out r.csv": "torn.parquet: cannot be read, truncated or",
        "search --queries q.parquet --gallery torn.arrow --out r.csv": "torn.arrow: cannot be read, truncated or",
        "search --queries q.parquet --gallery g.parquet:vector --out r.csv": (
            "g.parquet:vector: column vector is missing, found id, mu, var, label"
        ),
        "search --queries q.parquet --gallery g.parquet:mu=mu,sigma=var --out r.csv": (
            "g.parquet:mu=mu,sigma=var: 'sigma' names no column, expected mu=, var=, kappa=, scale= or id= and its name"
        ),
        f"search {FILES} --ids c.parquet": "c.parquet: column ids is missing, found rows, candidates",
        f"search {FILES} --ids g.parquet:label": "g.parquet:label: ids hold 'class 0' twice",
        f"search {FILES} --ids g.parquet:mu": "g.parquet:mu: ids have shape (60, 8) and dtype float32, expected",
        f"search {FILES} --ids items.parquet:id": "items.parquet:id: ids holds 120 ids, expected 60, one for each",
        f"search {FILES} --query-ids items.parquet:id": "items.parquet:id: ids holds 120 ids, expected 60, one",
        "search --queries q.parquet --gallery g.parquet --query-ids q.parquet:id --out r.npz": (
            "--query-ids is for --out of .csv or .parquet, got r.npz"
        ),
        "search --queries q.parquet --gallery g.parquet --ids g.parquet:id --out r.safetensors": (
            "r.safetensors: safetensors holds no strings, as g.parquet:id are; expected another suffix"
        ),
        "search --queries q.parquet:mu=mu --gallery g.parquet --out q.parquet": (
            "q.parquet: is also an input (q.parquet), and would be overwritten"
        ),
        f"rerank {FILES} --candidates c.parquet": "c.parquet: candidates holds <U",
        f"rerank {FILES} --candidates rows.npy --ids g.parquet:id": "rows.npy: candidates holds int64, expected str",
        f"rerank {FILES} --candidates c.parquet --ids q.parquet:id": "c.parquet: candidates holds é-",
        "evaluate --embeddings items.parquet --labels items.parquet:class --out page": (
            "items.parquet:class: column class is missing"
        ),
        "fit-head items.parquet": "items.parquet: has no labels",
        "fit-head none.lance": "none.lance: there is no such file",
    }.items(),
)
def test_what_is_wrong_with_a_table_is_said_in_one_line_before_work(here, capsys, line, message):
    code, out, err = run(capsys, line)
    assert code == 2 and not out and err.count("\n") == 1, err
    assert err.startswith(f"peaccel {line.split()[0]}: {message}"), err


def test_a_ranking_with_queries_that_fit_nowhere_is_refused(tmp_path):
    ranking = np.zeros((2, 1)), np.array([["a"], [""]])
    with pytest.raises(ValueError, match=r"r\.npz: has no place for ids of queries, expected \.csv or \.parquet"):
        io.write_ranking(tmp_path / "r.npz", ranking, queries=["x", "y"])
    with pytest.raises(ValueError, match=r"write_ranking: queries has shape \(1,\), expected \(2,\)"):
        io.write_ranking(tmp_path / "r.csv", ranking, queries=["x"])
    with pytest.raises(ValueError, match=r"r\.safetensors: safetensors holds no strings"):
        io.write_ranking(tmp_path / "r.safetensors", ranking)
    io.write_ranking(tmp_path / "r.csv", ranking, queries=["x", "y"])
    assert lines(str(tmp_path / "r.csv")) == [["query", "rank", "id", "score"], ["x", "1", "a", "0.0"]]


def test_columns_say_what_a_query_may_not_find(tmp_path, monkeypatch, capsys):
    """The same person by the same camera, and each query's own row, of tables and of arrays beside items."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(4)
    person, camera = np.repeat(np.arange(12), 6), np.tile(np.arange(3), 24)
    mu = rng.normal(size=(12, 5))[person] + rng.normal(size=(72, 5))
    rows = np.arange(0, 72, 4)
    for name, some in (("g", np.arange(72)), ("q", rows)):
        columns = {"key": some + 100, "person": person[some], "camera": camera[some]}
        parquet.write_table(pa.table({"mu": list(mu[some]), **columns}), f"{name}.parquet")
        np.savez(f"{name}.npz", mu=mu[some], **columns)
    same = pe.exclude_same(*({"p": person[x], "c": camera[x]} for x in (rows, np.arange(72))))
    for suffix in ("parquet", "npz"):
        sides = f"--queries q.{suffix} --gallery g.{suffix}"
        for names, exclude in (("key", rows), ("person camera", same)):
            want = pe.search(pe.Point(mu[rows]), pe.Point(mu), 5, exclude=exclude)
            assert run(capsys, f"search {sides} --out r.npz --k 5 --exclude-same {names}")[0] == 0
            np.testing.assert_array_equal(np.load("r.npz")["ids"], want.ids)
            assert run(capsys, f"search {sides} --out a.npz --above 0.5 --exclude-same {names}")[0] == 0
            above = pe.search_above(pe.Point(mu[rows]), pe.Point(mu), 0.5, exclude=exclude)
            np.testing.assert_array_equal(np.load("a.npz")["ids"], above.ids)
            np.save("c.npy", pe.search(pe.Point(mu[rows]), pe.Point(mu), 40).ids)
            assert run(capsys, f"rerank {sides} --out r.npz --k 5 --candidates c.npy --exclude-same {names}")[0] == 0
            np.testing.assert_array_equal(np.load("r.npz")["ids"][:, 0], want.ids[:, 0])
    labels = "--query-labels q.npz:person --gallery-labels g.npz:person"
    assert run(capsys, f"evaluate {sides} {labels} --out e --exclude-same person camera")[0] == 0
    found = pe.evaluate(pe.Point(mu[rows]), pe.Point(mu), (person[rows], person), exclude=same)
    [written] = json.loads(Path("e/results.json").read_text())["scores"]
    assert written["recall_at_1"] == dataclasses.asdict(found.scores[0].recall_at_1)
    assert run(capsys, f"choose-threshold {sides} {labels} --out t --wrong 50% --exclude-same key")[0] == 0
    chosen = pe.choose_threshold(pe.Point(mu[rows]), pe.Point(mu), (person[rows], person), wrong=0.5, exclude=rows)
    assert io.read_fit("t/accept.json").threshold == chosen.accept.threshold
    code, _, error = run(capsys, f"search {sides} --out r.npz --exclude-same day")
    assert (code, error) == (
        2,
        "peaccel search: q.npz:day: key day is missing, found camera, key, mu, person; or name it: q.npz:NAME\n",
    )
    np.save("q.npy", mu[rows])
    code, _, error = run(capsys, "search --queries q.npy --gallery g.npz --out r.npz --exclude-same day")
    assert error == "peaccel search: q.npy: has no columns, expected a table or .npz with day for --exclude-same\n"
