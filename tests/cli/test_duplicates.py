"""`peaccel search --above` and `peaccel duplicates`: what the functions find, in every file, by every threshold."""

import csv
import shlex

import numpy as np
import pyarrow.parquet
import pytest

import peaccel as pe
from peaccel import io
from peaccel.cli import main

N = 60


@pytest.fixture(autouse=True)
def items(tmp_path, monkeypatch):
    """Thirty pairs of alike items, of which a third is blurred; and their ids."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    labels = np.arange(N) // 2
    mu = rng.normal(size=(N // 2, 8))[labels] + rng.choice([0.1, 1.5], (N, 1), p=[2 / 3, 1 / 3]) * rng.normal(
        size=(N, 8)
    )
    d = pe.Normal(mu.astype(np.float32), rng.uniform(0.1, 0.5, N).astype(np.float32))
    io.write_distribution("d.npz", d)
    io.write_distribution("q.npz", d[:7])
    np.save("labels.npy", labels)
    np.save("ids.npy", [f"item {i * 37 % N}" for i in range(N)])
    return d


def run(line):
    main(shlex.split(line))


def test_a_threshold_that_promises_nothing_finds_no_copies():
    io.write_distribution("d.npz", pe.Normal(np.ones((3, 2)), np.zeros(3)))  # whose scores are inf
    for number, threshold in ((2, np.inf), (1000, 9.0)):
        limit = pe.FalseMatchLimit(threshold, 0.01, 0.05, number, 0, of="pairs", score="mls")
        io.write_fit("a.json", limit)
        run("duplicates --embeddings d.npz --accept a.json --score mls --out pairs.npz")
        assert len(np.load("pairs.npz")["score"]) == (0 if number == 2 else 3)


@pytest.mark.parametrize(
    ("suffix", "ids"),
    [
        *((suffix, False) for suffix in (".npz", ".safetensors", ".json", ".csv", ".parquet")),
        *((suffix, True) for suffix in (".npz", ".json", ".csv", ".parquet")),  # safetensors holds no strings
    ],
)
def test_search_above_writes_all_of_each_query(suffix, ids, items):
    run(f"search --queries q.npz --gallery d.npz --above -9.5 --out found{suffix}" + " --ids ids.npy" * ids)
    found = pe.search_above(items[:7], items, -9.5)
    assert len({*np.diff(found.offsets)}) > 2
    scores, there = io.read_ranking(f"found{suffix}")
    for query in range(7):
        own = slice(*found.offsets[query : query + 2])
        kept = np.isfinite(scores[query])
        want = np.load("ids.npy")[found.ids[own]] if ids else found.ids[own]
        np.testing.assert_array_equal(there[query][kept], want)
        np.testing.assert_allclose(scores[query][kept], found.scores[own], rtol=1e-6)
    if not ids:
        run(f"rerank --queries q.npz --gallery d.npz --candidates found{suffix} --k 3 --out again.npz")
        reranked = io.read_ranking("again.npz")[1][0]
        np.testing.assert_array_equal(reranked[reranked >= 0], found.ids[: found.offsets[1]][:3])


@pytest.mark.parametrize("ids", [False, True])
@pytest.mark.parametrize("suffix", [".npz", ".csv", ".tsv", ".parquet"])
def test_duplicates_are_written_as_pairs(suffix, ids, items):
    run(f"duplicates --embeddings d.npz --above 0.9 --score cosine --out pairs{suffix}" + " --ids ids.npy" * ids)
    found = pe.duplicates(items, 0.9, "cosine")
    assert len(found.ids) > 5
    if suffix == ".npz":
        columns = dict(np.load("pairs.npz"))
    elif suffix == ".parquet":
        columns = {name: np.array(x) for name, x in pyarrow.parquet.read_table("pairs.parquet").to_pydict().items()}
    else:
        with open(f"pairs{suffix}", newline="") as file:
            head, *lines = csv.reader(file, delimiter="\t" if suffix == ".tsv" else ",")
        columns = dict(zip(head, map(np.array, zip(*lines, strict=True)), strict=True))
    names = np.load("ids.npy") if ids else np.arange(N)
    for key, rows in (("first", found.queries), ("second", found.ids)):
        np.testing.assert_array_equal(columns[key].astype(names.dtype), names[rows])
    np.testing.assert_allclose(columns["score"].astype(float), found.scores, rtol=1e-6)


def test_choose_threshold_among_one_set_ends_with_the_command_that_finds_its_duplicates(items, capsys):
    """In which no item finds itself, and what is written has the answers that the promise was made of."""
    run("choose-threshold --embeddings d.npz --labels labels.npy --wrong 50% --score mls --out chosen")
    line = capsys.readouterr().out.strip().splitlines()[-1]
    assert line.startswith("peaccel duplicates --embeddings d.npz --score mls --accept chosen/accept.json")
    run(line.removeprefix("peaccel ").replace("--out ...", "--out pairs.npz"))
    accept = io.read_fit("chosen/accept.json")
    pairs = np.load("pairs.npz")
    scores, ids = pe.search(items, items, 2, "mls")
    own = ids[:, 0] == np.arange(N)
    other, best = np.where(own, ids[:, 1], ids[:, 0]), np.where(own, scores[:, 1], scores[:, 0])
    kept = best.astype(float) >= accept.threshold
    np.testing.assert_array_equal(pairs["first"], np.flatnonzero(kept))
    np.testing.assert_array_equal(pairs["second"], other[kept])
    assert kept.any() and (pairs["first"] != pairs["second"]).all()


@pytest.mark.parametrize("of", ["pairs", "answers"])
def test_all_pairs_are_found_by_a_threshold_of_pairs_or_of_searches_without_a_mate(of, items):
    about = {"of": of, "score": pe.scores.cosine.fingerprint}
    io.write_fit("a.json", pe.FalseMatchLimit(threshold=0.9, alpha=0.01, delta=0.1, number=500, allowed=1, **about))
    run("duplicates --embeddings d.npz --accept a.json --score cosine --out pairs.npz")
    np.testing.assert_array_equal(np.load("pairs.npz")["second"], pe.duplicates(items, 0.9, "cosine").ids)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("duplicates --embeddings d.npz --out p.csv", "expected exactly one of --above and --accept"),
        (
            "duplicates --embeddings d.npz --above 1 --accept a.json --out p.csv",
            "expected exactly one of --above and --accept",
        ),
        ("duplicates --embeddings d.npz --above nan --out p.csv", "duplicates: threshold is nan, expected a number"),
        ("duplicates --embeddings d.npz --above -1e9 --most 9 --out p.csv", "more than 9 pairs reach the threshold"),
        ("duplicates --embeddings d.npz --above 0 --out p.json", "unsupported suffix '.json', expected .csv or .tsv"),
        ("duplicates --embeddings d.npz --above 0 --out d.npz", "d.npz"),
        (
            "duplicates --embeddings d.npz --accept a.json --out p.csv",
            "the threshold is of cosine, and scores are of mls",
        ),
        (
            "search --queries q.npz --gallery d.npz --above 0 --k 3 --out p.csv",
            "--k is of the best answers, found --above",
        ),
        (
            "search --queries q.npz --gallery d.npz --above 0 --accept a.json --out p.csv",
            "--accept is of the best answers",
        ),
        ("search --queries q.npz --gallery d.npz --most 3 --out p.csv", "--most is for --above"),
    ],
)
def test_what_does_not_fit_is_said_in_one_line(line, says, capsys):
    about = {"of": "pairs", "score": pe.scores.cosine.fingerprint}
    io.write_fit("a.json", pe.FalseMatchLimit(threshold=0.9, alpha=0.01, delta=0.1, number=500, allowed=1, **about))
    with pytest.raises(SystemExit) as ended:
        run(line)
    error = capsys.readouterr().err
    assert ended.value.code == 2 and says in error and error.count("\n") == 1, error
