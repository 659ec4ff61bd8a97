"""`peaccel gallery` keeps, indexes and searches as `pe.Gallery` does, goes on where it was stopped, tells errors."""

import json

import lance
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from command import run
from items import make
from safetensors.numpy import save_file

import peaccel as pe
from peaccel import io
from peaccel.cli import gallery as command

N, DIM = 60, 6
ITEMS, QUERIES = make("normal_diagonal", N, DIM, dtype="float32"), make("normal_diagonal", 5, DIM, 1, dtype="float32")
IDS = 1000 - 7 * np.arange(N)


@pytest.fixture
def files(tmp_path, monkeypatch):
    """The current folder: items with and without ids, and queries."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "160")
    io.write_distribution("items.npz", ITEMS)
    io.write_distribution("queries.npz", QUERIES)
    np.save("ids.npy", IDS)
    pq.write_table(io.to_arrow(ITEMS, IDS, year=np.arange(N)), "items.parquet")
    return tmp_path


def expected(k, ids=IDS, keep=slice(None)):
    order = np.argsort(ids[keep])
    scores, rows = pe.search(QUERIES, ITEMS[np.arange(N)[keep][order]], k)
    return scores, ids[keep][order][rows]


def answered(path, found):
    return all(np.array_equal(x, y) for x, y in zip(io.read_ranking(path), found, strict=True))


def test_items_of_a_file_are_kept_indexed_and_found(files, capsys):
    code, out, err = run(capsys, "gallery create --embeddings items.npz --ids ids.npy --out g.lance --rows 25")
    assert (code, err) == (0, "") and out == "g.lance: 60 items, version 3, 3 fragments\n"
    search = "gallery search --gallery g.lance --queries queries.npz --out r.npz"
    assert run(capsys, f"{search} --k 4")[0] == 0 and answered("r.npz", expected(4))
    code, out, _ = run(capsys, "gallery index --gallery g.lance --factory Flat")
    assert code == 0 and out.startswith("g.lance: Flat of 60 items in ")
    one = pe.Gallery.open("g.lance").search(QUERIES, 4, shortlist=1)
    assert run(capsys, f"{search} --k 4 --shortlist 1")[0] == 0 and answered("r.npz", one)
    code, out, _ = run(capsys, f"{search} --k 4")
    assert code == 0 and answered("r.npz", expected(4)) and out.startswith("mls: 5 queries, 60 items, top 4 in ")
    code, out, _ = run(capsys, "gallery info --gallery g.lance")
    assert code == 0 and "Flat of version 3" in out and "id, mu, var" in out
    assert run(capsys, "gallery verify --gallery g.lance")[1].startswith("g.lance: version 3 is as it was written")
    _, _, err = run(capsys, search.replace("r.npz", "g.lance/r.npz"))
    assert "--out is g.lance/r.npz, inside the gallery, expected a place of its own" in err


def test_tables_bring_ids_and_metadata(files, capsys):
    assert run(capsys, "gallery create --embeddings items.parquet --out g.lance")[0] == 0
    line = "gallery search --gallery g.lance --queries queries.npz --out r.npz --k 3 --score mls --filter year>=40"
    assert run(capsys, line)[0] == 0 and answered("r.npz", expected(3, keep=slice(40, None)))
    assert run(capsys, "gallery add --gallery g.lance --embeddings items.parquet --replace")[0] == 0
    assert len(pe.Gallery.open("g.lance")) == N
    line = "gallery create --embeddings items.parquet:var=var --ids items.parquet:year --out h.lance"
    assert run(capsys, line)[0] == 0 and pe.Gallery.open("h.lance").ids.tolist() == [*range(N)]
    assert run(capsys, "gallery create --embeddings items.npz --out i.lance")[0] == 0
    assert pe.Gallery.open("i.lance").ids.tolist() == [*range(N)]


def test_every_form_of_a_file_keeps_its_metadata_and_ids(files, capsys):
    """Under names of their own, which the path names; the columns that are not the items' become metadata."""
    named = {"key": IDS, "vector": list(ITEMS.mu), "sigma2": list(ITEMS.var), "year": np.arange(N), "place": ["a"] * N}
    table = pa.table(named)
    pq.write_table(table, "t.parquet", row_group_size=7)
    lance.write_dataset(table, "t.lance")
    with pa.ipc.new_file("t.arrow", table.schema) as file:
        file.write_table(table)
    np.savez("t.npz", **{**named, "vector": ITEMS.mu, "sigma2": ITEMS.var}, model="an array of other rows")
    save_file({"vector": ITEMS.mu, "sigma2": ITEMS.var, "key": IDS, "year": np.arange(N)}, "t.safetensors")
    plain = {name: x.tolist() if isinstance(x, np.ndarray) else x for name, x in named.items()}
    plain |= {"vector": ITEMS.mu.astype(float).tolist(), "sigma2": ITEMS.var.astype(float).tolist()}
    with open("t.jsonl", "w") as file:
        file.writelines(
            json.dumps(dict(zip(plain, row, strict=True))) + "\n" for row in zip(*plain.values(), strict=True)
        )
    pd.DataFrame(plain).to_csv("t.csv", index=False)
    for suffix in ("parquet", "lance", "arrow", "npz", "safetensors", "jsonl", "csv"):
        out, columns = f"{suffix}.lance", {"id", "mu", "var", "year", *(["place"] * (suffix != "safetensors"))}
        line = f"gallery create --embeddings t.{suffix}:mu=vector,var=sigma2,id=key --rows 25 --out {out}"
        code, text, err = run(capsys, line)
        assert (code, err) == (0, "") and f"{out}: 60 items, version 3" in text
        gallery = pe.Gallery.open(out)
        assert {*gallery.info()["columns"]} == columns and gallery.ids.tolist() == sorted(IDS)
        found = gallery.search(QUERIES, 3, "mls", filter="year >= 40")
        assert (found.ids == expected(3, keep=slice(40, None))[1]).all()
    assert run(capsys, "gallery create --embeddings t.npz:mu=vector --out p.lance")[0] == 0
    assert {*pe.Gallery.open("p.lance").info()["columns"]} == {"id", "mu", "key", "sigma2", "year", "place"}


@pytest.mark.parametrize("source", ["s.parquet", "s.npz"])
def test_items_that_are_null_are_left_out(files, capsys, source):
    mu = ITEMS.mu.copy()
    mu[[3, 30]] = np.nan
    np.savez("s.npz", mu=mu, var=ITEMS.var, ids=IDS, year=np.arange(N))
    table = pa.table({"mu": [None if i == 3 else x for i, x in enumerate(mu)], "var": list(ITEMS.var), "id": IDS})
    pq.write_table(table.append_column("year", [range(N)]), "s.parquet")
    code, _, err = run(capsys, f"gallery create --embeddings {source} --out g.lance --rows 25")
    assert code == 2 and "is NaN or null in" in err and not (files / "g.lance" / "_versions").exists()
    with pytest.warns(UserWarning, match=rf"{source}: left out what is NaN or null in .*30?"):
        assert run(capsys, f"gallery create --embeddings {source} --out h.lance --rows 25 --skip-bad")[0] == 0
    gallery, kept = pe.Gallery.open("h.lance"), np.delete(np.arange(N), [3, 30])
    assert gallery.ids.tolist() == sorted(IDS[kept])
    assert (gallery.search(QUERIES, 3, filter="year > 2").ids == expected(3, keep=kept[3:])[1]).all()


def test_items_are_deleted_and_versions_come_back(files, capsys):
    pe.Gallery.create("g.lance", ITEMS, IDS)
    np.save("gone.npy", IDS[:5])
    code, out, err = run(capsys, f"gallery remove --gallery g.lance --ids gone.npy --id {IDS[7]} 3 --skip-missing")
    assert (code, err) == (0, "") and out.startswith(
        "6 items removed; 'peaccel gallery restore --version 1' undoes it\n"
    )
    assert len(pe.Gallery.open("g.lance")) == N - 6
    _, out, _ = run(capsys, "gallery versions --gallery g.lance")
    assert [line.split()[1] for line in out.splitlines() if line[1:3].strip().isdigit()] == ["1", "2"], out
    code, out, _ = run(capsys, "gallery restore --gallery g.lance --version 1")
    assert code == 0 and out == "g.lance: 60 items, version 3, 1 fragments\n"
    assert run(capsys, "gallery compact --gallery g.lance --keep-days 0")[0] == 0
    assert len(pe.Gallery.open("g.lance").versions()) == 1 and len(pe.Gallery.open("g.lance")) == N


def test_a_threshold_is_applied_to_what_a_gallery_finds(files, capsys):
    pe.Gallery.create("g.lance", ITEMS, IDS)
    scores, ids = expected(3)
    accept = pe.FalseMatchLimit(float(np.sort(scores[:, 0])[2]), 0.1, 0.1, 100, 3, score="mls", dim=DIM)
    io.write_fit("accept.json", accept)
    search = "gallery search --gallery g.lance --queries queries.npz --k 3 --out r.npz --accept accept.json"
    assert run(capsys, search)[0] == 0
    found, names = io.read_ranking("r.npz")
    kept = accept.select(pe.Ranking(scores, ids))
    assert (names == kept.ids).all() and (found == kept.scores).all() and (names[:, 0] >= 0).sum() == 3
    _, _, err = run(capsys, f"{search} --score cosine")
    assert err.startswith("peaccel gallery: accept.json: ") and "cosine" in err


@pytest.mark.parametrize("source", ["items.npz --ids ids.npy", "items.parquet"])
@pytest.mark.parametrize("action", ["create --out g.lance", "add --gallery g.lance"])
def test_what_was_interrupted_goes_on(files, capsys, monkeypatch, source, action):
    def stop(self, steps):
        raise KeyboardInterrupt

    line = f"gallery {action} --rows 20 --embeddings {source}"
    first = 0
    if action.startswith("add"):
        metadata = {"year": [0]} if "parquet" in source else None
        pe.Gallery.create("g.lance", ITEMS[:1], [5000], metadata)
        first = 1
    with monkeypatch.context() as patch:
        patch.setattr(command.ProgressBar, "advance", stop)
        assert run(capsys, line)[0] == 130
    assert len(pe.Gallery.open("g.lance")) == first + 20
    code, _, err = run(capsys, line)
    refusal = "is there already" if first == 0 else "which an item has already; see upsert"
    assert code == 2 and refusal in err and err.count("\n") == 1
    assert run(capsys, f"{line} --resume")[0] == 0
    gallery = pe.Gallery.open("g.lance")
    assert len(gallery) == first + N and gallery.verify() == []


def test_sync_is_handed_on(files, capsys, monkeypatch):
    synced = []
    monkeypatch.setattr("peaccel.retrieval.lance.table.synchronise", synced.append)
    assert run(capsys, "gallery create --embeddings items.npz --out g.lance")[0] == 0 and not synced
    assert run(capsys, "gallery create --embeddings items.npz --out h.lance --sync")[0] == 0 and synced


@pytest.mark.parametrize(
    ("line", "message"),
    {
        "": "the action is missing: 'peaccel gallery ACTION'",
        "serch": "unknown action 'serch'; did you mean 'search'?",
        "delete --gallery g.lance": "unknown action 'delete'; did you mean 'remove'?",
        "append --gallery g.lance": "unknown action 'append'; did you mean 'add'?",
        "remov --gallery g.lance": "unknown action 'remov'; did you mean 'remove'?",
        "remove --gallery g.lance": "expected --ids or --id, found none",
        "remove --gallery g.lance --id ann": "--id is 'ann', expected an integer, as the gallery's ids are",
        "restore --gallery g.lance --version 9": "g.lance: version 9 cannot be opened (there are 1 .. 1)",
        "info --gallery none.lance": "none.lance: no such file",
        "info --gallery .": ".: no such gallery",
        "create --embeddings none.npz --out g.lance": "none.npz: no such file",
        "add --gallery g.lance --embeddings items.npz --replace --resume": "expected at most one of --replace and",
        "search --gallery g.lance --queries queries.npz --out queries.npz": "queries.npz: is also an input",
        "search --gallery g.lance --queries queries.npz --out r.npz --filter yer>1": "Gallery: filter 'yer>1': ",
        "index --gallery g.lance --factory Flet": "Gallery.build_index: factory 'Flet' is not a FAISS factory string",
    }.items(),
)
def test_errors_are_one_line(files, capsys, line, message):
    if "g.lance" in line and "create" not in line:
        pe.Gallery.create("g.lance", ITEMS, IDS)
    code, out, err = run(capsys, f"gallery {line}")
    assert (code, out) == (2, "") and err.startswith(f"peaccel gallery: {message}") and err.count("\n") == 1, err


def test_verify_says_what_is_damaged(files, capsys):
    gallery = pe.Gallery.create("g.lance", ITEMS, IDS)
    gallery.search(QUERIES, 1)
    (derived,) = (files / "g.lance" / "_peaccel").glob("*.safetensors")
    derived.write_bytes(derived.read_bytes()[:-1] + b"\xff")
    code, out, err = run(capsys, "gallery verify --gallery g.lance")
    assert (
        code == 2 and "is damaged; it can be deleted" in out and err == "peaccel gallery: g.lance: 1 things are wrong\n"
    )


def test_help_lists_actions_and_each_its_options(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    code, out, _ = run(capsys, "gallery --help")
    assert code == 0 and all(f"    {action} " in out for action in command.ACTIONS)
    for action in command.ACTIONS:
        code, out, _ = run(capsys, f"gallery {action} --help")
        assert code == 0 and (f"usage: peaccel gallery {action}" in out) and ("--gallery" in out or action == "create")
