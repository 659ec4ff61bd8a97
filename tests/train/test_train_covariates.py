"""Covariates beside features: the uncertainty sees them and the means do not, from files to a head and back."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from command import run

import peaccel as pe
from peaccel import cli, io, train
from peaccel.cli import fit_head
from peaccel.data.features import covariate_rows, features
from peaccel.heads import Covariates
from peaccel.methods.parts import Given

CLASSES, EACH, WIDTH = 80, 12, 16
N = CLASSES * EACH
STAGES = {"pfe": "match", "llr_nce": "tell", "mls_nce": "tell", "vmf_nce": "tell", "dul_reg": "regress"} | {
    "scf": "regress", "scaleface": "scale", "mu_scaleface": "scale"}  # fmt: skip


def unit(x):
    return (x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Directions about those of classes, farther off the shorter an item was, which nothing in them tells."""
    folder, rng = tmp_path_factory.mktemp("covariates"), np.random.default_rng(0)
    seconds = rng.uniform(0.5, 4, N)
    labels = np.arange(CLASSES).repeat(EACH)
    noise = rng.normal(size=(N, WIDTH)) * (0.5 / seconds)[:, None]
    np.save(folder / "f.npy", unit(unit(rng.normal(size=(CLASSES, WIDTH)))[labels] + noise))
    np.save(folder / "labels.npy", labels)
    np.save(folder / "seconds.npy", seconds)
    np.save(folder / "ms.npy", np.round(1000 * seconds).astype(np.int64))
    np.save(folder / "random.npy", rng.normal(size=(N, 2)))
    np.savez(folder / "snr.npz", covariates=rng.uniform(0, 30, N))
    np.save(folder / "longer.npy", seconds + 1)
    np.save(folder / "short.npy", seconds[:-1])
    np.save(folder / "same.npy", np.full(N, 3.0))
    np.save(folder / "words.npy", labels.astype(str))
    np.save(folder / "nan.npy", np.where(np.arange(N) == 3, np.nan, seconds))
    np.save(folder / "huge.npy", np.where(np.arange(N) == 5, 1e39, seconds))
    np.save(folder / "few.npy", np.load(folder / "f.npy")[:5])
    (folder / "parts").mkdir()
    line = f"fit-head {folder}/f.npy --labels {folder}/labels.npy --threads 1"
    cli.main(f"{line} --covariates {folder}/seconds.npy --out {folder}/h".split())
    cli.main(f"{line} --match.epochs 1 --out {folder}/plain".split())
    return folder


@pytest.fixture(autouse=True)
def here(folder, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.chdir(folder)


def embedded(capsys, line, out="e.npz"):
    code, _, err = run(capsys, f"embed {line} --out {out}")
    assert code == 0, err
    return io.read_distribution(out)


def test_a_head_learns_a_quality_that_its_features_do_not_tell(capsys):
    """On classes that were held out, by rank: by the features alone there is next to nothing to be learned."""
    held, seconds = np.load("labels.npy") < CLASSES // 4, np.load("seconds.npy")
    line = "fit-head f.npy --labels labels.npy --threads 1 --out alone"
    assert run(capsys, line)[0] == 0
    beside = embedded(capsys, "--run h --features f.npy --covariates seconds.npy")
    alone = embedded(capsys, "--run alone --features f.npy")
    found = [pe.metrics.spearman(seconds[held], np.asarray(pe.confidence(d))[held]) for d in (beside, alone)]
    assert found[0] > 0.8 and abs(found[1]) < 0.4, found


@pytest.mark.parametrize("method", fit_head.HEADS)
def test_a_covariate_changes_the_uncertainty_of_every_method_and_no_mean(capsys, tmp_path, method):
    files = "--covariates random.npy snr.npz"
    line = f"fit-head f.npy --labels labels.npy --threads 1 --method {method} --{STAGES[method]}.epochs 1 {files}"
    code, out, err = run(capsys, f"{line} --out {tmp_path / 'h'}")
    assert code == 0, err
    told = out.splitlines()[-1]
    assert told == f"peaccel embed --run {tmp_path / 'h'} --features f.npy {files} --out sure.npz"
    d = embedded(capsys, told.removeprefix("peaccel embed "), "sure.npz")
    np.save(tmp_path / "turned.npy", np.load("random.npy")[:, ::-1])
    turned = embedded(capsys, f"--run {tmp_path / 'h'} --features f.npy --covariates {tmp_path}/turned.npy snr.npz")
    assert np.array_equal(d.mu, turned.mu) and np.allclose(d.mu, np.load("f.npy"), atol=1e-6)
    assert (d.arrays[1] != turned.arrays[1]).any()
    record = json.loads((tmp_path / "h" / "run.json").read_text())
    assert (record["covariates"], record["features"], record["settings"]["dim"]) == (3, WIDTH + 3, WIDTH)
    trained = train.load(tmp_path / "h")
    assert (trained.features, trained.covariates) == (WIDTH + 3, 3)


def test_covariates_are_standardised_by_the_training_classes(capsys, tmp_path):
    """So their unit does not matter; and what a run embeds is by its own mean, whatever the items have."""
    parts = features("f.npy", "labels.npy", covariates=["seconds.npy"])
    assert {part: len(x) for part, x in parts.items()} == {"train": N * 3 // 4, "validation": N // 4}
    kept = next(x for x in train.load(Path("h")).model.modules() if isinstance(x, Covariates))
    column = parts["train"].covariates[:, 0].astype(np.float64)
    assert kept.mean.item() == pytest.approx(column.mean(), rel=1e-6)
    assert kept.deviation.item() == pytest.approx(column.std(ddof=1), rel=1e-6)
    line = "fit-head f.npy --labels labels.npy --threads 1 --covariates ms.npy"
    assert run(capsys, f"{line} --out {tmp_path / 'ms'}")[0] == 0
    seconds = embedded(capsys, "--run h --features f.npy --covariates seconds.npy")
    ms = embedded(capsys, f"--run {tmp_path / 'ms'} --features f.npy --covariates ms.npy")
    np.testing.assert_allclose(ms.var, seconds.var, rtol=0.02)  # milliseconds were rounded before training
    longer = embedded(capsys, "--run h --features f.npy --covariates longer.npy")
    assert abs(longer.var / seconds.var - 1).mean() > 0.005


def test_labels_and_covariates_stay_side_by_side():
    """Whatever the order of the items, as classes are parted by their numbers."""
    order, x = np.random.default_rng(1).permutation(N), np.load("f.npy")
    np.save("shuffled.npy", x[order])
    np.save("their_labels.npy", np.load("labels.npy")[order])
    np.save("their_seconds.npy", np.load("seconds.npy")[order])
    of = {row.tobytes(): value for row, value in zip(x, np.load("seconds.npy").astype(np.float32), strict=True)}
    for items in features("shuffled.npy", "their_labels.npy", covariates=["their_seconds.npy"]).values():
        assert [of[row.tobytes()] for row in items.features] == items.covariates[:, 0].tolist()


def test_cosine_is_told_of_the_features_alone(capsys, tmp_path):
    def cosine(more, out):
        line = f"fit-head f.npy --labels labels.npy --threads 1 --match.epochs 1 --out {tmp_path / out} {more}"
        return re.search(r"by cosine ([\d.]+ % and [\d.]+ %)", run(capsys, line)[1])[1]

    assert cosine("--covariates random.npy", "a") == cosine("", "b")


def test_what_is_resumed_takes_the_covariates_it_had(capsys, tmp_path):
    line = f"fit-head f.npy --labels labels.npy --threads 1 --match.epochs 2 --out {tmp_path / 'h'}"
    assert run(capsys, f"{line} --covariates seconds.npy")[0] == 0
    assert run(capsys, f"{line} --covariates seconds.npy --resume")[0] == 0
    code, _, err = run(capsys, f"{line} --resume")
    assert code == 2 and err.count("\n") == 1 and "covariates is 0, expected 1" in err, err


def test_given_means_are_the_first_features():
    x = torch.randn(5, 7)
    assert torch.equal(Given(4)(x), torch.nn.functional.normalize(x[:, :4], dim=1))
    assert torch.equal(Given(4, unit=False)(x), x[:, :4])
    method, settings = train.recipe("pfe", "features")
    with pytest.raises(ValueError, match="mean_head: dim is 128, expected at most the 7 given features"):
        method.build(torch.nn.Identity(), 7, 3, settings)


def test_files_of_covariates_are_columns():
    assert covariate_rows(["seconds.npy", "random.npy", "snr.npz"], N).shape == (N, 4)


WRONG = {
    "fit-head f.npy --labels labels.npy --covariates none.npy": "none.npy: there is no such file",
    "fit-head f.npy --labels labels.npy --covariates seconds.npy short.npy": (
        f"short.npy: covariates is float64 ({N - 1},), expected numbers ({N},) or ({N}, Q), a row for each item"
    ),
    "fit-head f.npy --labels labels.npy --covariates words.npy": "words.npy: covariates is <U21 ",
    "fit-head f.npy --labels labels.npy --covariates nan.npy": "nan.npy: covariates has NaN or infinity in row 3",
    "fit-head f.npy --labels labels.npy --covariates huge.npy": "huge.npy: covariates has NaN or infinity in row 5",
    "embed --run h --features f.npy --out new.npz": "h: was fitted to 1 covariates, found 0",
    "embed --run h --features f.npy --covariates random.npy --out new.npz": "h: was fitted to 1 covariates, found 2",
    "embed --run plain --features f.npy --covariates seconds.npy --out new.npz": (
        "plain: was fitted to 0 covariates, found 1"
    ),
    "embed --run h --features few.npy --covariates seconds.npy --out new.npz": (
        f"seconds.npy: covariates is float64 ({N},), expected numbers (5,) or (5, Q)"
    ),
    "embed --run h --data features --root f.npy --out new.npz": "h: was fitted to 1 covariates, found 0",
    "embed --run h --covariates seconds.npy --out new.npz": "--covariates needs --run of a head and --features",
    "embed --backbone small_cnn --data mnist --covariates seconds.npy --out new.npz": "--covariates needs --run of",
    "embed --run h --features f.npy --covariates snr.npz --out snr.npz": "snr.npz: is also an input",
}


@pytest.mark.parametrize(("line", "message"), WRONG.items())
def test_what_is_wrong_with_covariates_is_told_before_work(folder, capsys, line, message):
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    code, out, err = run(capsys, line)
    assert (code, out) == (2, "") and err.count("\n") == 1, err
    assert err.startswith(f"peaccel {line.split()[0]}: {message}")
    assert before == {path: path.stat().st_mtime_ns for path in folder.rglob("*")}


@pytest.mark.parametrize(
    ("line", "message"),
    {
        "fit-head f.npy --labels labels.npy --covariates same.npy": "covariates: column 0 is 3 for all training items",
        "fit-head parts --covariates seconds.npy": "parts: is a folder, expected one file of features beside",
    }.items(),
)
def test_what_only_the_data_show_is_told_before_a_run_begins(folder, capsys, line, message):
    code, out, err = run(capsys, f"{line} --out new")
    assert (code, out) == (2, "") and err.startswith(f"peaccel fit-head: {message}") and err.count("\n") == 1
    assert not (folder / "new").exists()


def test_a_damaged_record_is_named(folder, capsys):
    (folder / "bad").mkdir(exist_ok=True)
    (folder / "bad" / "run.json").write_text("[]")
    line = "embed --run bad --features f.npy --covariates seconds.npy --out new.npz"
    assert run(capsys, line)[2] == "peaccel embed: bad/run.json: is not the record of a run\n"


def test_items_that_are_taken_keep_their_covariates_and_quality():
    data, labels = torch.arange(12.0).reshape(4, 3), np.array([0, 0, 1, 1])
    taken = train.sources.Items(data, labels, np.array([0.1, 0.2, 0.3, 0.4]), covariates=2).take(np.array([1, 3]))
    assert (taken.covariates, taken.labels.tolist(), taken.quality.tolist()) == (2, [0, 1], [0.2, 0.4])
    assert torch.equal(taken.data, data[[1, 3]])
