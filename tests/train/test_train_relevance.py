"""Pairs that belong together in place of labels: classes are what they connect."""

import numpy as np
import pytest
from command import run

from peaccel import cli, io, train
from peaccel.data.features import connected_labels, features

CLASSES, EACH, WIDTH, ALONE = 12, 5, 8, 4
N = CLASSES * EACH + ALONE
LABELS = np.concatenate([np.arange(CLASSES).repeat(EACH), np.full(ALONE, -1)])
CHAINS = np.array([(i, i + 1) for i in range(N - 1) if LABELS[i] == LABELS[i + 1] >= 0])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Features of classes and of four items more, which no pair names."""
    folder, rng = tmp_path_factory.mktemp("relevance"), np.random.default_rng(0)
    x = (rng.normal(size=(CLASSES + 1, WIDTH))[LABELS] + 0.5 * rng.normal(size=(N, WIDTH))).astype(np.float32)
    np.save(folder / "f.npy", x)
    np.savez(folder / "f.npz", features=x)
    np.savez(folder / "labelled.npz", features=x[LABELS >= 0], labels=LABELS[LABELS >= 0])
    np.save(folder / "labels.npy", LABELS)
    np.save(folder / "rows.npy", np.arange(N))
    np.save(folder / "pairs.npy", CHAINS)
    np.savez(folder / "pairs.npz", relevance=CHAINS[::-1, ::-1].astype(np.int16))
    np.save(folder / "far.npy", [[0, 1], [2, N]])
    np.save(folder / "below.npy", [[0, 1], [2, -1]])
    np.save(folder / "self.npy", [[0, 1], [3, 3]])
    np.save(folder / "one.npy", [[0, 1], [2, 1]])
    np.save(folder / "wide.npy", [[0, 1, 2]])
    np.save(folder / "floats.npy", [[0.0, 1.0]])
    np.save(folder / "none.npy", np.empty((0, 2), int))
    (folder / "parts").mkdir()
    return folder


@pytest.fixture(autouse=True)
def here(folder, monkeypatch):
    monkeypatch.chdir(folder)


def test_groups_are_what_pairs_connect_in_any_order_and_direction(tmp_path):
    np.save(tmp_path / "p.npy", [[7, 2], [5, 7], [0, 9], [9, 0], [2, 7], [4, 3]])
    assert connected_labels(tmp_path / "p.npy", 11).tolist() == [0, -1, 1, 2, 2, 1, -1, 1, -1, 0, -1]


@pytest.mark.parametrize("pairs", ["pairs.npy", "pairs.npz"])
def test_items_in_no_pair_are_left_out_and_what_is_beside_the_others_stays_there(pairs):
    parts = features("f.npy", covariates=["rows.npy"], relevance=pairs)
    x, rows = np.load("f.npy"), [part.covariates[:, 0].astype(int) for part in parts.values()]
    assert sorted(np.concatenate(rows).tolist()) == list(range(N - ALONE))
    for part, of in zip(parts.values(), rows, strict=True):
        assert np.array_equal(part.features, x[of])
        assert np.array_equal(part.labels[:, None] == part.labels, LABELS[of][:, None] == LABELS[of])
    assert [len(part.classes) for part in parts.values()] == [CLASSES * 3 // 4, CLASSES // 4]


def test_a_head_by_pairs_is_the_head_by_the_classes_they_make(folder, capsys, tmp_path):
    by = {"pairs": "f.npz --relevance pairs.npy", "labels": "labelled.npz"}
    for name, words in by.items():
        code, _, err = run(capsys, f"fit-head {words} --threads 1 --match.epochs 1 --out {tmp_path / name}")
        assert code == 0, err
        told = f"pairs.npy: {N - ALONE} items in {CLASSES} groups; others are left out\n"
        assert (told in err) == (name == "pairs")
    models = [train.load(tmp_path / name).model.state_dict() for name in by]
    assert all((x == models[1][name]).all() for name, x in models[0].items())
    cli.main(f"embed --run {tmp_path / 'pairs'} --features f.npy --out {tmp_path / 'd.npz'}".split())
    assert len(io.read_distribution(tmp_path / "d.npz")) == N


WRONG = {
    "fit-head f.npy --relevance missing.npy": "missing.npy: there is no such file",
    "fit-head f.npy --relevance far.npy": f"far.npy: pair 1 is (2, {N}), expected rows in 0..{N - 1}",
    "fit-head f.npy --relevance below.npy": f"below.npy: pair 1 is (2, -1), expected rows in 0..{N - 1}",
    "fit-head f.npy --relevance self.npy": "self.npy: pair 1 is row 3 with itself, expected two rows",
    "fit-head f.npy --relevance one.npy": "one.npy: relevance connects all 3 items that it names, expected 2 groups",
    "fit-head f.npy --relevance wide.npy": "wide.npy: relevance is int64 (1, 3), expected integers (M, 2)",
    "fit-head f.npy --relevance floats.npy": "floats.npy: relevance is float64 (1, 2), expected integers (M, 2)",
    "fit-head f.npy --relevance none.npy": "none.npy: relevance is int64 (0, 2), expected integers (M, 2)",
    "fit-head f.npy --labels labels.npy --relevance pairs.npy": "labels.npy: labels are given, expected either these",
    "fit-head parts --relevance pairs.npy": "parts: is a folder, expected one file of features beside covariates or",
}


@pytest.mark.parametrize(("line", "message"), WRONG.items())
def test_what_is_wrong_with_pairs_is_told_in_one_line(folder, capsys, line, message):
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    code, out, err = run(capsys, line)
    assert (code, out) == (2, "") and err.count("\n") == 1, err
    assert err.startswith(f"peaccel fit-head: {message}")
    assert before == {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
