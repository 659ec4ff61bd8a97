"""Comparison of models: pairs of queries and seeds, and the level of the intervals."""

import json

import numpy as np
import pytest
from command import run

import peaccel as pe

RNG = np.random.default_rng(0)


def drawn(rng, queries=40, each=3, seeds=3, gain=0.05):
    """Two models whose queries have classes and whose seeds differ; the second one is better by `gain`."""
    clusters = np.repeat(np.arange(queries), each)
    of_class = rng.normal(0, 0.3, queries)[clusters]
    both = of_class + rng.normal(0, 0.1, len(clusters))

    def make(more):
        return np.stack([both + more + rng.normal(0, 0.05) + rng.normal(0, 0.1, len(both)) for _ in range(seeds)])

    return {"one": make(0), "other": make(gain) + rng.normal(0, 0.05, queries)[clusters]}, clusters


@pytest.mark.parametrize("seeds", [2, 4])
def test_intervals_of_gains_hold_as_often_as_they_say(seeds):
    """95 % of 300 comparisons hold 0.05, with a standard error of 1.3 points; percentiles of 40 classes lack 1."""
    held = 0
    for i in range(300):
        values, clusters = drawn(np.random.default_rng((seeds, i)), seeds=seeds)
        gain = pe.compare(values, clusters).models[1].gain
        held += gain.low <= 0.05 <= gain.high
    assert held / 300 > 0.95 - 0.01 - 3 * 0.013


def test_pairs_of_queries_and_seeds_take_what_they_share_out():
    values, clusters = drawn(RNG)
    paired = pe.compare(values, clusters).models[1].gain
    apart = pe.compare({"one": values["one"], "other": values["other"][:2]}, clusters).models[1].gain
    assert paired.high - paired.low < apart.high - apart.low
    assert paired.value == pytest.approx(values["other"].mean() - values["one"].mean(), abs=1e-12)


def test_queries_that_a_model_lacks_are_left_out_of_all():
    found = pe.compare({"one": [1.0, np.nan, 0.0], "other": [0.0, 1.0, 0.0]})
    assert (found.queries, found.models[1].mean.value, found.models[1].gain.value) == (2, 0.0, -0.5)
    assert "other is" in found.sentence() and "than one" in str(found)


@pytest.mark.parametrize(
    ("values", "clusters", "message"),
    [
        ({"one": [1.0]}, None, "values has 1 models, expected at least 2"),
        ({"one": [1.0, 0], "other": [1.0]}, None, "other has 1 queries, expected 2 like one"),
        ({"one": [1.0], "other": ["a"]}, None, "values of other have shape"),
        ({"one": [1.0], "other": [np.inf]}, None, "values of other are infinite"),
        ({"one": [1.0], "other": [np.nan]}, None, "no query has a number from every model"),
        ({"one": [1.0], "other": [0.0]}, [1, 2], r"clusters has shape \(2,\), expected \(1,\)"),
    ],
)
def test_what_cannot_be_compared_is_named(values, clusters, message):
    with pytest.raises(ValueError, match=f"compare: {message}"):
        pe.compare(values, clusters)
    with pytest.raises(TypeError, match="values is list, expected a mapping"):
        pe.compare([[1.0]])


def test_runs_are_compared_by_their_queries(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    labels = np.arange(20).repeat(4)
    features = np.eye(20)[labels] + 0.7 * RNG.normal(size=(80, 20))
    np.savez("items.npz", features=features, labels=labels)
    for row in ("pfe", "cosface"):
        for seed in (0, 1):
            epochs = "--match.epochs 1" if row == "pfe" else "--schedule.epochs 1 --dim 3"
            words = f"train {row} --data features --root items.npz --seed {seed} --device cpu --threads 1 {epochs}"
            assert run(capsys, f"{words} --out {row}-{seed}")[0] == 0
    code, out, err = run(capsys, "compare --runs pfe-0 pfe-1 cosface-0 cosface-1 --metric map_at_r --out page")
    assert code == 0 and "cosface is not distinguishably better (" in out, err
    record = json.loads((tmp_path / "page/compare.json").read_text())
    reached = [json.loads((tmp_path / f"cosface-{seed}/result.json").read_text())["map_at_r"] for seed in (0, 1)]
    assert record["models"][1]["mean"]["value"] == pytest.approx(np.mean(reached), rel=1e-12)
    assert (tmp_path / "page/table.tex").read_text().startswith(r"\begin{tabular}")
    page = (tmp_path / "page/report.html").read_text()
    command = "peaccel compare --runs pfe-0 pfe-1 cosface-0 cosface-1 --metric map_at_r --out page"
    assert f"<code>{command}</code>, peaccel {pe.__version__}, 20" in page
    twice = run(capsys, "compare --runs pfe-0 pfe-0 cosface-0 --out page")
    assert twice[0] == 2 and "is a second run of pfe with seed 0: name one NAME=pfe-0" in twice[2]
    assert run(capsys, "compare --runs pfe-0 again=pfe-0 --out named")[0] == 0
    assert (
        "none/queries.npz: there is no such file: is none a run that has ended?"
        in run(capsys, "compare --runs pfe-0 none --out page")[2]
    )
