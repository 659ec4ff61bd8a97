"""`pe.audit` and `peaccel audit`: planted flaws are found, and the gain is that of searches without them."""

import csv
import json
import math
import re
from pathlib import Path

import numpy as np
import pytest
from command import run

import peaccel as pe
from peaccel import io
from peaccel.evaluation.audit import _most_by_chance

CLASSES, EACH, DIM = 40, 8, 24


def planted(seed=0):
    """Items, labels, and the rows of each flaw."""
    rng = np.random.default_rng(seed)
    labels = np.arange(CLASSES).repeat(EACH)
    centres = rng.normal(size=(CLASSES, DIM))
    mu = centres[labels] + 0.6 * rng.normal(size=(len(labels), DIM))
    rows = {"label": [3, 77, 200], "stranger": [30, 150], "copy": [101], "no direction": [250]}
    labels[rows["label"]] = (labels[rows["label"]] + 7) % CLASSES
    mu[rows["stranger"]] = 8 * np.linalg.svd(centres)[2][-2:]  # beside all centres
    mu[101], mu[250] = mu[100], 0
    return mu, labels, rows


def reference(mu, labels, rows):
    """Mean cosines with each class, and the best match, each without the item itself; float64."""
    unit = mu[rows] / np.linalg.norm(mu[rows], axis=1, keepdims=True)
    scores, of = unit @ unit.T, labels[rows]
    np.fill_diagonal(scores, np.nan)
    means = np.stack([np.nanmean(scores[:, of == c], 1) for c in range(CLASSES)], 1)
    return means, np.nanargmax(scores, 1)


@pytest.mark.parametrize("seed", range(3))
def test_planted_flaws_are_found_and_nothing_else(seed):
    mu, labels, rows = planted(seed)
    found = pe.audit(pe.Point(mu), labels)
    reasons = {item.row: item.reasons for item in found.items}
    assert reasons == {row: (name,) for name, of in rows.items() for row in of}
    flaws = {item.row: item for item in found.items}
    assert all(flaws[row].resembles == str((labels[row] - 7) % CLASSES) for row in rows["label"])
    assert flaws[101].resembles == "row 100" and flaws[250].resembles == ""
    assert all(flaws[row].probability < 0.5 for row in rows["label"] + rows["stranger"])
    assert [*np.flatnonzero(~np.array(found.keep))] == sorted(reasons)


def test_means_places_and_gains_are_those_of_ten_plain_lines():
    mu, labels, _ = planted()
    found = pe.audit(pe.Point(mu), labels)
    rows = np.setdiff1d(np.arange(len(mu)), [101, 250])  # those that differ and have a direction
    means, first = reference(mu, labels, rows)
    kept = np.flatnonzero(found.keep)
    own = dict(zip(rows, means[np.arange(len(rows)), labels[rows]], strict=True))
    for c in range(CLASSES):
        best = sorted((row for row in kept if labels[row] == c), key=lambda row: -own[row])
        assert [found.typical[row] for row in best] == [*range(1, len(best) + 1)]
    before = np.array([labels[rows[first[i]]] == labels[row] for i, row in enumerate(rows) if found.keep[row]])
    _, again = reference(mu, labels, kept)
    after = labels[kept[again]] == labels[kept]
    assert found.queries == len(kept)
    assert found.recall_before.value == before.mean() and found.recall_after.value == after.mean()
    assert found.recall_gain.value == pytest.approx(after.mean() - before.mean(), abs=1e-15)
    assert found.recall_gain.low <= found.recall_gain.value <= found.recall_gain.high
    assert found.error_after.value < found.error_before.value  # pairs with wrong labels are gone


def test_a_hub_is_found_and_recall_gains_by_its_absence():
    rng = np.random.default_rng(1)
    labels = np.arange(60).repeat(5)
    mu = rng.normal(size=(60, 64))[labels] + 2 * rng.normal(size=(300, 64)) + 1.5
    mu[42] = mu.mean(0)  # near to all
    found = pe.audit(pe.Point(mu), labels)
    (hub,) = (item for item in found.items if "hub" in item.reasons)
    assert hub.row == 42 and hub.wrong_first > 20 and found.recall_gain.low > 0


def test_a_hub_is_more_than_chance():
    for mean in (0.2, 1.0, 3.0):
        for chance in (1e-2, 1e-6):
            k = _most_by_chance(mean, chance)
            at_least = [1 - sum(math.exp(-mean) * mean**i / math.factorial(i) for i in range(n)) for n in (k, k + 1)]
            assert at_least[0] >= chance > at_least[1]


def test_items_of_equal_numbers_and_two_classes_are_both_shown():
    mu, labels, _ = planted()
    labels[101] = (labels[100] + 1) % CLASSES
    reasons = {item.row: item.reasons for item in pe.audit(pe.Point(mu), labels).items}
    assert reasons[100] == reasons[101] == ("copy",)


def test_clean_galleries_lose_about_one_in_a_hundred():
    """That is the share of wrong labels that is expected."""
    lost = []
    for seed in range(5):
        rng = np.random.default_rng(seed)
        labels = np.arange(50).repeat(8)
        mu = rng.normal(size=(50, 24))[labels] + 1.2 * rng.normal(size=(400, 24))
        lost.append(1 - np.mean(pe.audit(pe.Point(mu), labels).keep))
    assert np.mean(lost) < 0.02


def test_normals_and_words_as_labels():
    mu, labels, rows = planted()
    d = pe.Normal(mu, np.full(len(mu), 0.36))
    words = np.array([f"class {c}" for c in labels])
    found = pe.audit(d, words, pe.scores.llr(prior_var=1.0))
    assert {item.row for item in found.items if "label" in item.reasons} >= set(rows["label"])
    assert {item.label for item in found.items} <= set(words)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"d": np.eye(3)}, "audit: d must be a distribution, got ndarray"),
        ({"labels": [0, 1]}, "audit: labels have shape (2,), expected (320,)"),
        ({"labels": np.arange(320)}, "audit: labels have 0 classes of two different items, expected 2 or more"),
        ({"score": "cosin"}, "unknown score 'cosin'"),
        ({"seed": -1}, "audit: seed is -1"),
    ],
)
def test_wrong_arguments_are_refused_by_name(change, message):
    mu, labels, _ = planted()
    with pytest.raises((TypeError, ValueError), match=re.escape(message)) as caught:
        pe.audit(**{"d": pe.Point(mu), "labels": labels, **change})
    assert "\n" not in str(caught.value)


def test_the_command_writes_a_table_and_a_page(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    mu, labels, rows = planted()
    np.save("mu.npy", mu)
    np.save("labels.npy", [f"Doe, {label}" for label in labels])
    np.save("images.npy", np.random.default_rng(0).random((len(mu), 4, 4)))
    line = "audit --embeddings mu.npy --labels labels.npy --out out"
    code, out, err = run(capsys, f"{line} --images images.npy")
    assert code == 0, err
    with Path("out/items.csv").open(newline="") as file:
        lines = list(csv.DictReader(file))
    assert {int(x["row"]): x["reasons"] for x in lines} == {r: name for name, of in rows.items() for r in of}
    assert {x["label"] for x in lines} <= {f"Doe, {label}" for label in labels}
    assert {x["keep"] for x in lines} == {"False"} and json.loads(Path("out/audit.json").read_text())["queries"] == 313
    assert "3 label: probably of another class" in out and "Recall@1 of 313 kept items" in out
    assert "data:image/png" in Path("out/report.html").read_text()
    assert run(capsys, line)[0] == 0  # again, in the same folder
    np.save("few.npy", labels[:3])
    code, out, err = run(capsys, f"{line} --labels few.npy")
    assert (code, out) == (2, "") and err == "peaccel audit: audit: labels have shape (3,), expected (320,)\n"
    io.write_fit("prior.json", 0.5)
    assert "prior.json: is a shift, expected a prior" in run(capsys, f"{line} --score llr --prior prior.json")[2]
