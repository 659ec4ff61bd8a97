"""Whole runs: recipes, the folder they leave, Ctrl-C and resuming, two processes, and what they refuse."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import nullcontext
from dataclasses import replace
from operator import attrgetter
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from peaccel import methods, train
from peaccel._utils import config
from peaccel.data import READERS
from peaccel.data.images import ImageRows
from peaccel.methods.method import Schedule
from peaccel.train import backbones, checkpoint, encoder, evaluation, recipes, resuming, runs, sources, tuning
from peaccel.train import folder as folder_of_run
from peaccel.train.resuming import digest_of_images, digest_of_items
from peaccel.train.sources import Items

CLASSES, EACH, WIDTH = 12, 6, 10


@pytest.fixture(scope="module")
def parts():
    """Features of classes that overlap; train and validation."""
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(CLASSES), EACH)
    found = {}
    for part in ("train", "validation"):
        features = rng.normal(size=(CLASSES, WIDTH))[labels] + 0.6 * rng.normal(size=(len(labels), WIDTH))
        found[part] = Items(torch.tensor(features, dtype=torch.float32), labels)
    return found


def settings(row, **changes):
    return train.recipe(row, "features", changes)


def carry_out(row, parts, out, run=None, **changes):
    run = run or train.Run(data="features", device="cpu", threads=1)
    return train.train(row, *settings(row, **changes), replace(run, out=out), parts)


class Killed(BaseException):
    pass


RESUMED = train.Run(data="features", device="cpu", threads=1, resume=True)
SHORT = {"dim": 6, "schedule": {"epochs": 2, "classes_per_batch": 4, "images_per_class": 3}}


def weights(folder):
    return load_file(folder / "model.safetensors")


def equal(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


# -- what epochs are compared by ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("most", "kept"), [(72, 72), (71, 66), (20, 18), (3, 12)])
def test_epochs_are_compared_by_whole_classes(parts, monkeypatch, most, kept):
    monkeypatch.setattr(evaluation, "VALIDATED", most)
    labels = parts["validation"].labels
    rows = evaluation.validation_rows(labels, 0)
    assert len(rows) == kept and (np.diff(rows) > 0).all()
    assert set(np.bincount(labels[rows]).tolist()) <= {0, EACH}
    assert np.array_equal(rows, evaluation.validation_rows(labels, 0))
    assert kept == len(labels) or not np.array_equal(rows, evaluation.validation_rows(labels, 1))


def test_what_epochs_are_compared_by_has_a_class_of_two_items(monkeypatch):
    monkeypatch.setattr(evaluation, "VALIDATED", 10)
    labels = np.append(np.arange(60), 7)
    for seed in range(20):
        assert np.bincount(labels[evaluation.validation_rows(labels, seed)]).max() == 2


@pytest.mark.parametrize(("most", "after_epochs", "at_the_end"), [(72, 72, [72]), (20, 18, [72, 18])])
def test_no_search_is_made_twice(parts, tmp_path, monkeypatch, capsys, most, after_epochs, at_the_end):
    """One after each epoch, and at the end one of all held-out items, which is that of epochs where these are all."""
    monkeypatch.setattr(evaluation, "VALIDATED", most)
    searched, search = [], evaluation.map_at_r

    def spy(d, labels, score):
        searched.append((len(labels), search(d, labels, score)))
        return searched[-1][1]

    for module in (evaluation, runs):
        monkeypatch.setattr(module, "map_at_r", spy)
    result = carry_out("cosface", parts, tmp_path / "x", **SHORT)
    assert [size for size, _ in searched] == [after_epochs, after_epochs, *at_the_end]
    assert result.validation == searched[-1][1].map_at_r == max(found.map_at_r for _, found in searched[:2])
    told = "cosface: epochs are compared by 18 of 72 held-out items, of whole classes"
    assert (told in capsys.readouterr().err) == (most == 20)


# -- recipes -----------------------------------------------------------------------------------------------------------

TABLES = {"method", "about", "settings", "digits", "tune"}


@pytest.mark.parametrize("row", train.RECIPES)
def test_a_recipe_fits_its_method_on_every_data_set_it_names(row):
    values = config.read_mapping(recipes.FOLDER / f"{row}.toml")
    named = values.keys() - TABLES
    assert named <= set(READERS)
    for data in ("", "mnist", *named):
        method, found = train.recipe(row, data)
        assert method.name == values["method"] and isinstance(found, method.settings)
    for key, (low, high, log) in recipes.ranges(row).items():
        place = found
        for part in key.split("."):
            place = getattr(place, part)
        assert isinstance(place, float) and low < high and (low > 0 or not log), key
        for value in (low, high):  # what is searched is allowed
            nested = value
            for part in reversed(key.split(".")):
                nested = {part: nested}
            train.recipe(row, "mnist", nested)


def test_every_method_has_a_recipe():
    assert {train.recipe(row, "")[0].name for row in train.RECIPES} == set(methods.NAMES)


def test_a_recipe_without_ranges_is_refused(monkeypatch):
    monkeypatch.setattr(config, "read_mapping", lambda path: {"method": "cosface"})
    with pytest.raises(ValueError, match=r"the recipe of cosface has no \[tune\] table"):
        recipes.ranges("cosface")


# Numbers of the papers, or of their code, as the recipes' comments say which.
PUBLISHED = [
    ("arcface", "cub200", {"classifier.scale": 46.4, "classifier.rate": 28.8, "schedule.lr": 3.48e-4}),
    ("cosface", "in-shop", {"schedule.epochs": 256, "schedule.every": 10, "schedule.gamma": 0.945}),
    ("pfe", "cars196", {"head": "mlp", "diagonal": False, "match.lr": 7.26e-4, "match.clip": 10.0}),
    ("dul_cls", "cub200", {"kl": 3.34e-3, "start": 1.0, "draw.lr": 4.62e-4, "classifier.rate": 1.45}),
    ("vmf_fl", "cars196", {"start": 1.0, "class_rate": 6.32, "uncertainty_rate": 1.0}),
    ("vmf_loss", "sop", {"confidence": 0.493, "scale": 5.65, "samples": 10}),
    ("hib", "cars196", {"kl": 1.51e-6, "start": 1.0, "n": 8}),
    ("panc_el_nivmf", "cub200", {"concentration": 6.0, "concentration_rate": 2e4, "norm_multiplier": 30.0, "n": 5}),
    ("panc_el_nivmf", "cars196", {"concentration": 9.0, "concentration_rate": 7500.0, "proxy_rate": 7500.0}),
    ("panc_el_nivmf", "cars196", {"norm_multiplier": 12.0, "schedule.epochs": 300, "temperature": 0.003, "omega": 0.3}),
    ("bayesian_triplet", "cars196", {"negatives": 5, "only_violating": True, "dim": 2047, "schedule.lr": 1e-5}),
    ("magface", "ms1m", {"norms": (10.0, 110.0), "margins": (0.45, 0.8), "weight": 35.0, "schedule.nesterov": False}),
    ("scaleface", "ms1m", {"hidden": (512,), "constant": 64.0, "scale.lr": 1e-4, "scale.clip": 5.0}),
    ("proxy_nca", "mnist", {"scale": 9.0}),
]


@pytest.mark.parametrize(("row", "data", "numbers"), PUBLISHED)
def test_published_numbers_are_those_of_the_recipes(row, data, numbers):
    found = train.recipe(row, data)[1]
    assert {key: attrgetter(key)(found) for key in numbers} == numbers


@pytest.mark.parametrize("row", ["arcface", "cosface", "hib", "pfe", "dul_cls", "vmf_fl", "vmf_loss"])
def test_revisited_trains_by_plain_sgd_and_clips(row):
    tables = config.read_mapping(recipes.FOLDER / f"{row}.toml").keys() & {"cars196", "cub200", "in-shop", "sop"}
    assert tables
    for data in tables:
        of_row = vars(train.recipe(row, data)[1]).values()
        for x in (x for x in of_row if isinstance(x, Schedule)):
            assert (x.optimizer, x.momentum, x.nesterov, x.weight_decay, x.clip) == ("sgd", 0.9, False, 1e-4, 10.0)
            assert (x.classes_per_batch, x.images_per_class, x.decay) == (32, 4, "step")


# -- the folder --------------------------------------------------------------------------------------------------------


def test_a_run_can_be_read_back_from_its_folder(parts, tmp_path):
    result = carry_out("scaleface", parts, tmp_path / "a" / "b", scale={"epochs": 2})
    folder = tmp_path / "a" / "b"
    assert {path.name for path in folder.iterdir()} == {
        "run.json", "log.jsonl", "state.safetensors", "best.safetensors", "model.safetensors", "result.json",
        "queries.npz",
    }  # fmt: skip
    record = json.loads((folder / "run.json").read_text())
    assert record["versions"]["numpy"] == np.__version__ and record["settings"]["scale"]["epochs"] == 2
    assert (
        json.loads((folder / "result.json").read_text()) == vars(result) | {"warnings": [*result.warnings]}
        and result.part == "validation"
    )
    assert len({path.stat().st_mode for path in folder.iterdir()}) == 1  # whoever reads one may read all
    read = train.load(str(folder))
    held = parts["validation"]
    d = train.embed(read.model, held.data)
    assert evaluation.map_at_r(d, held.labels, read.score)[:2] == (result.recall_at_1, result.map_at_r)
    assert result.validation == result.map_at_r and (read.features, read.run.out) == (WIDTH, folder)
    assert json.loads((folder / "log.jsonl").read_text().splitlines()[-1])["best_validation"] == result.validation


def test_options_of_the_backbone_arrive_there(monkeypatch):
    asked = []

    def create(name, **how):
        asked.append((name, how))
        return SimpleNamespace(features=7, input=backbones.ImageInput((96, 96)))

    monkeypatch.setattr(encoder.backbones, "create", create)
    how = {"weights": Path("w.pth"), "pooling": "gem", "frozen_bn": True, "dropout": 0.3, "image_size": 96}
    made = encoder.encoder(train.Run(data="cub200", **how), on_features=False, side=300)
    assert (made.features, made.image_size) == (7, 96) and asked == [("resnet50", how)]


@pytest.mark.parametrize(
    ("side", "options", "expected"),
    [
        (32, {}, ("small_cnn", 32)),
        (100, {}, ("small_cnn", 128)),
        (160, {}, ("resnet50", 160)),
        (500, {}, ("resnet50", 224)),
        (None, {}, ("resnet50", 224)),
        (32, {"image_size": 64}, ("small_cnn", 64)),
        (500, {"backbone": "small_cnn"}, ("small_cnn", 128)),
        (32, {"backbone": "test_resnet"}, ("test_resnet", 32)),
        (32, {"backbone": "iresnet18"}, ("iresnet18", 112)),
        (32, {"backbone": "iresnet18", "pooling": "avg"}, ("iresnet18", 32)),
    ],
)
def test_images_decide_on_the_network_and_are_not_enlarged(side, options, expected):
    asked = train.Run(data="folder", **options)
    made = encoder.encoder(asked, on_features=False, side=side)
    made = made if asked.image_size else encoder.shrunk(made, side)
    assert (made.name, made.image_size) == expected
    assert made.module(made.module.input.zeros().expand(2, -1, -1, -1)).shape == (2, made.features)


def test_a_run_that_is_read_back_needs_its_pretrained_weights_no_more(parts, tmp_path, monkeypatch):
    carry_out("cosface", parts, tmp_path, **SHORT)
    record, asked, real = json.loads((tmp_path / "run.json").read_text()), [], encoder.encoder
    record["run"]["weights"] = "gone.pth"
    (tmp_path / "run.json").write_text(json.dumps(record))
    monkeypatch.setattr(runs, "encoder", lambda run, on: asked.append(run) or real(run, on))
    assert train.load(tmp_path).run.weights == Path("gone.pth") and {run.weights for run in asked} == {None}


def test_a_prior_that_was_learned_along_is_read_back(parts, tmp_path):
    result = carry_out("llr_nce", parts, tmp_path, tell={"epochs": 1})
    read, held = train.load(tmp_path), parts["validation"]
    assert len(np.atleast_1d(read.score.params["prior_var"])) == WIDTH
    found = evaluation.map_at_r(train.embed(read.model, held.data), held.labels, read.score)
    assert found[:2] == (result.recall_at_1, result.map_at_r)


@pytest.mark.parametrize("epochs", [0, 2])
def test_the_same_seed_gives_the_same_weights_and_another_one_others(parts, tmp_path, epochs):
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        run = train.Run(data="features", device="cpu", threads=1, seed=seed)
        carry_out("cosface", parts, tmp_path / name, run, dim=6, schedule=SHORT["schedule"] | {"epochs": epochs})
    assert equal(weights(tmp_path / "a"), weights(tmp_path / "b"))
    first, other = weights(tmp_path / "a"), weights(tmp_path / "c")
    assert not any(torch.equal(first[name], other[name]) for name in first)


def test_a_folder_with_a_run_is_resumed_or_refused(parts, tmp_path):
    carry_out("cosface", parts, tmp_path, **SHORT)
    before = weights(tmp_path)
    with pytest.raises(ValueError, match=r"which holds a run: resume it .* or choose another folder"):
        carry_out("cosface", parts, tmp_path, **SHORT)
    carry_out("cosface", parts, tmp_path, RESUMED, **SHORT)
    assert equal(before, weights(tmp_path)) and len((tmp_path / "log.jsonl").read_text().splitlines()) == 2
    with pytest.raises(ValueError, match=r"holds a run of cosface, expected pfe"):
        runs.resumed(tmp_path, "pfe")


@pytest.fixture(scope="module")
def ended(parts, tmp_path_factory):
    """The folder of a run that came to its end, begun from the model of another."""
    folder = tmp_path_factory.mktemp("ended")
    carry_out("cosface", parts, folder / "first", **SHORT)
    run = replace(RESUMED, resume=False, begin=folder / "first" / "model.safetensors")
    carry_out("cosface", parts, folder / "second", run, **SHORT)
    return folder


def other_labels(parts):
    return {**parts, "train": Items(parts["train"].data, parts["train"].labels[::-1].copy())}


def fewer(parts):
    return {**parts, "validation": parts["validation"].take(np.arange(36))}


@pytest.mark.parametrize(
    ("changes", "settings", "change", "message"),
    [
        ({"seed": 1, "pooling": "gem"}, {}, None, r"seed is 1, expected 0; pooling is gem, expected own$"),
        ({"patience": 3}, {}, None, "patience is 3, expected None"),
        ({"accumulate": 2}, {}, None, "accumulate is 2, expected 1"),
        ({"data": "digits8"}, {}, None, "data is digits8, expected features"),
        ({"begin": None}, {}, None, r"sha256\.begin is None, expected \w{16}$"),
        ({"begin": Path("state.safetensors")}, {}, None, r"sha256\.begin is \w{16}, expected \w{16}$"),
        ({}, {"dim": 7}, None, "dim is 7, expected 6"),
        ({}, {"schedule": {**SHORT["schedule"], "lr": 10.0}}, None, r"schedule\.lr is 10\.0, expected 0\.001"),
        ({}, {"schedule": {**SHORT["schedule"], "epochs": 3}}, None, r"schedule\.epochs is 3, expected 2"),
        ({}, {}, other_labels, r"sha256\.train is \w{16}, expected \w{16}$"),
        ({}, {}, fewer, r"sha256\.validation is \w{16}, expected \w{16}$"),
        ({}, {}, lambda parts: {"train": parts["train"]}, r"sha256\.validation is None, expected \w{16}$"),
    ],
)
def test_a_run_is_resumed_as_it_began_or_not_at_all(parts, ended, changes, settings, change, message):
    out = ended / "second"
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    begin = {"begin": ended / "first" / "model.safetensors", **changes}
    run = replace(RESUMED, **{name: ended / "first" / x if isinstance(x, Path) else x for name, x in begin.items()})
    with pytest.raises(ValueError, match=rf"run\.json: a run goes on as it began: .*{message}"):
        carry_out("cosface", parts if change is None else change(parts), out, run, **{**SHORT, **settings})
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before


def test_what_changes_no_training_may_be_another(parts, ended, tmp_path):
    shutil.copytree(ended / "second", tmp_path / "moved")
    begin = Path(shutil.copy(ended / "first" / "model.safetensors", tmp_path / "other.safetensors"))
    run = replace(RESUMED, begin=begin, device="auto", workers=1, threads=2, strict=False)
    carry_out("cosface", {**parts, "test": parts["train"]}, tmp_path / "moved", run, **SHORT)
    assert equal(weights(ended / "second"), weights(tmp_path / "moved"))
    assert json.loads((tmp_path / "moved" / "run.json").read_text())["run"]["workers"] == 1
    record = json.loads((tmp_path / "moved" / "run.json").read_text())
    del record["sha256"]  # as records of before are
    (tmp_path / "moved" / "run.json").write_text(json.dumps(record))
    carry_out("cosface", parts, tmp_path / "moved", run, **SHORT)
    assert "sha256" in json.loads((tmp_path / "moved" / "run.json").read_text())


@pytest.mark.parametrize("torn", [False, True])
@pytest.mark.parametrize(("row", "lines"), [("cosface", 1), ("cosface", 2), ("pfe", 2), ("pfe", 3)])
def test_an_epoch_that_is_trained_again_has_one_line(parts, tmp_path, monkeypatch, row, lines, torn):
    """The run is killed between the line of an epoch, whole or half, and its state."""
    how = SHORT if row == "cosface" else {"mean": "linear", "dim": 6, "classify": {"epochs": 2}, "match": {"epochs": 2}}
    log = tmp_path / "a" / "log.jsonl"
    log.parent.mkdir()

    def written(folder):
        found = [json.loads(line) for line in (tmp_path / folder / "log.jsonl").read_text().splitlines()]
        return [{name: x for name, x in line.items() if "second" not in name} for line in found]

    def write(self, *state):
        if log.read_text().count("\n") == lines:
            raise Killed
        return keep(self, *state)

    keep = checkpoint.Checkpointer.write
    with monkeypatch.context() as patched:
        patched.setattr(checkpoint.Checkpointer, "write", write)
        patched.setattr(runs, "withdrawn", nullcontext)
        with pytest.raises(Killed):
            carry_out(row, parts, tmp_path / "a", **how)
    if torn:
        text = log.read_text()
        log.write_text(text[: (text[:-1].rfind("\n") + 1 + len(text)) // 2])
    carry_out(row, parts, tmp_path / "a", RESUMED, **how)
    carry_out(row, parts, tmp_path / "b", **how)
    assert written("a") == written("b") and len(written("a")) == (2 if row == "cosface" else 4)


def test_a_state_that_is_damaged_leaves_the_record_as_it_was(parts, tmp_path):
    carry_out("cosface", parts, tmp_path, **SHORT)
    (tmp_path / "state.safetensors").write_bytes(b"nothing")
    before = (tmp_path / "run.json").read_bytes()
    with pytest.raises(ValueError, match=r"state\.safetensors: is no .safetensors file"):
        carry_out("cosface", parts, tmp_path, replace(RESUMED, workers=1), **SHORT)
    assert (tmp_path / "run.json").read_bytes() == before


def test_images_are_the_same_in_another_folder():
    labels = np.arange(3)

    def digest(*paths, labels=labels):
        return digest_of_items(Items(ImageRows(paths), labels))

    paths = "a/x/1.png", "a/x/2.png", "a/y/1.png"
    assert digest(*paths) == digest(*(str(Path("b", path).resolve()) for path in paths))
    assert len({digest(*paths), digest(*paths[::-1]), digest(*paths, labels=labels[::-1].copy())}) == 3


def test_images_that_have_changed_are_others(tmp_path, monkeypatch):
    paths = [str(tmp_path / f"{i}.ppm") for i in range(9)]
    for i, path in enumerate(paths):
        Path(path).write_bytes(bytes([i]) * (20 + i))
    items = Items(ImageRows(paths), np.arange(9))
    before = digest_of_images(items)
    os.utime(paths[0], (0, 0))
    assert digest_of_images(items) == before and digest_of_images(None) is None
    assert digest_of_images(Items(torch.zeros(9, 2), np.arange(9))) is None
    for i in (0, 4, 8):  # pixels alone
        old = Path(paths[i]).read_bytes()
        Path(paths[i]).write_bytes(old[:-1] + b"x")
        assert digest_of_images(items) != before
        Path(paths[i]).write_bytes(old)
    assert digest_of_images(items) == before
    monkeypatch.setattr(resuming, "READ", 2)  # of more images, sizes of all and some whole
    before = digest_of_images(items)
    Path(paths[7]).write_bytes(b"another size")
    assert digest_of_images(items) != before


@pytest.mark.parametrize("text", ["{", "{}", "[]", '{"method": "cosface"}'])
def test_a_damaged_record_is_named(tmp_path, text):
    (tmp_path / "run.json").write_text(text)
    with pytest.raises(ValueError, match=r"run\.json: is not the record of a run"):
        train.load(tmp_path)


def test_files_of_no_run_are_neither_replaced_nor_removed(parts, tmp_path):
    (tmp_path / "model.safetensors").write_text("theirs")
    for run in (None, RESUMED):
        with pytest.raises(ValueError, match=r"which holds model.safetensors of no run: choose another folder"):
            carry_out("cosface", parts, tmp_path, *([] if run is None else [run]), **SHORT)
    assert [path.name for path in tmp_path.iterdir()] == ["model.safetensors"]
    out = tmp_path / "new"
    out.mkdir()
    (out / "events.out.tfevents.theirs").write_text("theirs")
    with pytest.raises(OSError, match="the disk"), folder_of_run.withdrawn(out):
        (out / "run.json").touch()
        raise OSError("the disk is full")
    assert [path.name for path in out.iterdir()] == ["events.out.tfevents.theirs"]


def test_a_resumed_run_writes_through_no_link(parts, tmp_path):
    """Whoever made the folder may have put a link in the place of each file that a run writes."""
    carry_out("cosface", parts, tmp_path / "run", **SHORT)
    for name in folder_of_run.WRITTEN:
        (tmp_path / "run" / name).rename(tmp_path / name)
        (tmp_path / "run" / name).symlink_to(tmp_path / name)
    before = {name: (tmp_path / name).read_bytes() for name in folder_of_run.WRITTEN}
    carry_out("cosface", parts, tmp_path / "run", replace(RESUMED, workers=1), **SHORT)
    assert {name: (tmp_path / name).read_bytes() for name in before} == before
    through = {name for name in before if (tmp_path / "run" / name).is_symlink()}
    assert through <= {"state.safetensors", "best.safetensors"}, "written anew, or not at all"


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"covariates": 10**9}, r"model\.safetensors: .* has shape|lacks|has an unexpected"),
        ({"features": 10**9}, r"model\.safetensors: .* has shape"),
        ({"classes": 10**9}, r"model\.safetensors: .* has shape"),
        ({"features": 10**12}, r"run\.json: is not the record of a run"),
        ({"settings": {"dim": 10**12}}, r"model\.safetensors: .* has shape"),
        ({"settings": {"dim": 10**30}}, r"run\.json: makes no model"),
        ({"run": {"workers": 10**9}}, r"run\.json: workers: .*<= 1024"),
        ({"run": {"threads": 10**9}}, r"run\.json: threads: .*<= 1024"),
        ({"classes": -1}, r"run\.json: is not the record of a run"),
    ],
)
def test_sizes_in_a_record_are_not_believed(parts, tmp_path, monkeypatch, sizes, message):
    """They are compared with the weights before any memory is taken for them."""
    carry_out("cosface", parts, tmp_path, **SHORT)
    record = json.loads((tmp_path / "run.json").read_text())
    (tmp_path / "run.json").write_text(
        json.dumps(record | sizes | {"settings": record["settings"] | sizes.get("settings", {})})
    )
    real = runs._built

    def built(*arguments):
        assert torch.get_default_device().type == "meta", "memory is taken"
        return real(*arguments)

    monkeypatch.setattr(runs, "_built", built)
    with pytest.raises(ValueError, match=message):
        train.load(tmp_path)


def test_settings_of_which_no_model_can_be_made_name_the_record(parts, tmp_path):
    carry_out("pfe", parts, tmp_path, mean="given", hidden=4, match={"epochs": 1})
    record = json.loads((tmp_path / "run.json").read_text())
    (tmp_path / "run.json").write_text(json.dumps(record | {"settings": record["settings"] | {"dim": 10_000}}))
    with pytest.raises(ValueError, match=r"run\.json: makes no model \(mean_head: dim is 10000, expected at most the"):
        train.load(tmp_path)


# -- another checkpoint ------------------------------------------------------------------------------------------------


def test_beginning_takes_what_is_shared(parts, tmp_path):
    carry_out("cosface", parts, tmp_path / "c", **SHORT)
    run = train.Run(data="features", device="cpu", threads=1, begin=tmp_path / "c" / "model.safetensors")
    two = {"mean": "linear", "dim": 6, "hidden": 4, "match": {"epochs": 1}}
    for name in ("model.safetensors", "state.safetensors"):
        carry_out("pfe", parts, tmp_path / name, replace(run, begin=tmp_path / "c" / name), **two)
    first, second = weights(tmp_path / "c"), weights(tmp_path / "model.safetensors")
    assert second.keys() > {name for name in first if name.startswith("model.")}
    assert all(torch.equal(x, second[name]) for name, x in first.items() if name.startswith("model."))

    with pytest.raises(ValueError, match=r"mean\.linear\.bias has shape \(6,\), expected \(5,\)"):
        carry_out("pfe", parts, tmp_path / "x", run, **{**two, "dim": 5})
    with pytest.raises(ValueError, match=r"model\.safetensors: holds nothing of this method"):
        carry_out("scaleface", parts, tmp_path / "x", run)
    few = {part: Items(x.data[: 4 * EACH], x.labels[: 4 * EACH]) for part, x in parts.items()}
    carry_out("cosface", few, tmp_path / "few", run, **SHORT)  # directions of other classes are not taken over
    assert len(weights(tmp_path / "few")["criterion.weight"]) == 4


def test_another_backbone_is_not_taken_in_part(tmp_path):
    rng = np.random.default_rng(0)
    images = Items(torch.tensor(rng.random((16, 3, 32, 32)), dtype=torch.float32), np.repeat(np.arange(4), 4))
    run = train.Run(data="folder", device="cpu", threads=1, backbone="test_resnet", out=tmp_path / "a")
    method, chosen = train.recipe("cosface", "folder", {"dim": 4, "schedule": {"epochs": 0}})
    train.train("cosface", method, chosen, run, {"train": images})
    other = replace(run, backbone="test_vit", begin=run.out / "model.safetensors", out=tmp_path / "b")
    with pytest.raises(ValueError, match=r"model\.0\..*: it was written with another backbone"):
        train.train("cosface", method, chosen, other, {"train": images})


def test_a_checkpoint_to_begin_from_must_be_one(parts, tmp_path):
    (tmp_path / "x.safetensors").write_bytes(b"no checkpoint")
    for name, message in (("x.safetensors", "is no .safetensors file"), ("none.safetensors", "no such file")):
        run = train.Run(data="features", device="cpu", begin=tmp_path / name)
        with pytest.raises((ValueError, FileNotFoundError), match=message):
            carry_out("cosface", parts, tmp_path / "out", run)
    assert not (tmp_path / "out").exists()


# -- what is refused before the work -----------------------------------------------------------------------------------


def with_labels(parts, part, labels):
    return {**parts, part: Items(parts[part].data, np.asarray(labels))}


def test_parts_in_which_nothing_can_be_told_apart_are_refused(parts, tmp_path):
    n = CLASSES * EACH
    for part in parts:
        with pytest.raises(ValueError, match=f"data features: part {part} has 1 class, expected at least 2"):
            carry_out("cosface", with_labels(parts, part, np.zeros(n, int)), tmp_path / "x")
    with pytest.raises(ValueError, match="no class of part validation has two items"):
        carry_out("cosface", with_labels(parts, "validation", np.arange(n)), tmp_path / "x")
    with pytest.raises(ValueError, match="no class of part train has two items"):
        carry_out("cosface", {"train": Items(parts["train"].data, np.arange(n))}, tmp_path / "x")
    assert not (tmp_path / "x").exists()


def test_classes_of_one_item_and_two_classes_train(parts, tmp_path):
    labels = np.append(parts["train"].labels[:-1], CLASSES)
    carry_out("cosface", with_labels(parts, "train", labels), tmp_path / "one", **SHORT)
    halves = with_labels(with_labels(parts, "train", labels % 2), "validation", labels % 2)
    assert carry_out("cosface", halves, tmp_path / "two", **SHORT).recall_at_1 > 0


def test_items_that_a_model_cannot_take_are_named(parts, tmp_path):
    pairs = {part: Items((x.data, x.data), x.labels) for part, x in parts.items()}
    for row, items in (("cosface", pairs), ("text_to_image", parts)):
        with pytest.raises(ValueError, match=f"{row} cannot take the items of data features: "):
            carry_out(row, items, tmp_path / "x")
    assert not (tmp_path / "x").exists()


def test_out_must_be_a_folder_that_can_be_written(parts, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="a file, expected a folder"):
        carry_out("cosface", parts, tmp_path / "file")
    with pytest.raises(ValueError, match="a file, expected a folder"):
        tuning.tune("cosface", None, train.Run(out=tmp_path / "file"), tuning.SearchLimits())

    def refuse(**_):
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr("tempfile.TemporaryFile", refuse)
    with pytest.raises(PermissionError, match=r"cannot write in the folder .*Read-only"):
        carry_out("cosface", parts, tmp_path / "x")
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize("there", [False, True])
def test_a_run_that_fails_in_its_first_epoch_is_not_in_the_way(parts, tmp_path, there, monkeypatch):
    """A folder with a state stays, and so does what is not the run's."""
    out, bad = tmp_path / "a" / "b", {**parts, "train": Items(parts["train"].data * torch.nan, parts["train"].labels)}
    if there:
        out.mkdir(parents=True)
        (out / "notes.txt").write_text("mine")
    with pytest.raises(FloatingPointError):
        carry_out("cosface", bad, out, **SHORT)
    assert [path.name for path in tmp_path.rglob("*")] == (["a", "b", "notes.txt"] if there else [])
    carry_out("cosface", parts, out, **SHORT)
    monkeypatch.setattr(runs, "fit", lambda *how, **more: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        carry_out("cosface", parts, out, RESUMED, **SHORT)
    assert (out / "state.safetensors").exists() and (out / "run.json").exists()


def test_data_names_and_roots_are_checked_first(tmp_path):
    with pytest.raises(ValueError, match=r"unknown data 'cub20'; did you mean 'cub200'"):
        sources.open_items("cub20", None, 0)
    with pytest.raises(ValueError, match="data cub200: root is missing"):
        sources.open_items("cub200", None, 0)
    with pytest.raises(ValueError, match="its scans come inside a package"):
        sources.open_items("mnist", tmp_path, 0)
    np.savez(tmp_path / "test.npz", features=np.ones((2, 2)), labels=np.arange(2))
    run = train.Run(data="features", root=tmp_path, out=tmp_path / "out", device="cpu")
    with pytest.raises(ValueError, match="data features: has no labelled items to train on, only test"):
        train.train("cosface", *settings("cosface"), run)


@pytest.mark.parametrize(
    ("option", "value"),
    [("weights", Path("some.npy")), ("pooling", "gem"), ("frozen_bn", True), ("dropout", 0.5), ("dropout", 2.0)],
)
def test_options_of_a_backbone_are_refused_where_there_is_none(parts, tmp_path, option, value):
    run = train.Run(device="cpu", threads=1, out=tmp_path / "x", **{option: value})
    for data, message in (("features", "but features need no backbone"), ("digits8", "which auto does not take: name")):
        with pytest.raises(ValueError, match=f"data {data}: {option} is {value}, {message}"):
            train.train("cosface", *settings("cosface"), replace(run, data=data), parts)
    assert not (tmp_path / "x").exists()


# -- searching ---------------------------------------------------------------------------------------------------------


def test_a_search_goes_on_where_it_was_stopped(parts, tmp_path, monkeypatch):
    """Ctrl-C costs the trial that it hits, and no more; a loss that is not finite is a bad trial."""
    ends = [None, KeyboardInterrupt, FloatingPointError, None]
    seen = []

    def trained(name, method, chosen, run):
        seen.append((run.out, chosen.schedule.lr, chosen.dim))
        if (end := ends.pop(0)) is not None:
            raise end
        return runs.Result("validation", 0.0, 0.0, 0.0, 1, None, name, run.data, 0, chosen.schedule.lr, 0.0)

    monkeypatch.setattr(tuning, "train", trained)
    run = train.Run(data="features", out=tmp_path)
    _, chosen = settings("cosface", dim=6)
    with pytest.raises(KeyboardInterrupt):
        tuning.tune("cosface", chosen, run, tuning.SearchLimits(trials=3))
    best = tuning.tune("cosface", chosen, run, tuning.SearchLimits(trials=3))
    assert not ends and best.trials == 2 and best.value == max(seen[0][1], seen[3][1])
    assert len({out for out, *_ in seen}) == len({lr for _, lr, _ in seen}) == 4 and {dim for *_, dim in seen} == {6}
    assert config.read_mapping(tmp_path / "best.toml")["schedule"]["lr"] == best.settings["schedule.lr"] == best.value
    assert tuning.tune("cosface", chosen, run, tuning.SearchLimits(trials=1)) == best and len(seen) == 4

    ends.append(FloatingPointError)
    with pytest.raises(ValueError, match="no trial of cosface came to an end"):
        tuning.tune("cosface", chosen, replace(run, out=tmp_path / "bad"), tuning.SearchLimits(trials=1))


def test_a_search_refuses_trials_that_cannot_be_compared_with_its(parts, tmp_path, monkeypatch):
    """Of other data, seeds, backbones or settings; threads, limits and what is searched may differ."""

    def trained(name, method, chosen, run):
        return runs.Result("validation", 0.0, 0.0, 0.0, 1, None, name, run.data, 0, 0.5, 0.0)

    monkeypatch.setattr(tuning, "train", trained)
    (tmp_path / "folder").mkdir()
    files = [tmp_path / "f.npz", tmp_path / "g.npz", tmp_path / "folder" / "train.npz"]
    for i, path in enumerate(files):
        np.savez(path, features=parts["train"].data + i, labels=parts["train"].labels)
    run = train.Run(data="features", root=files[0], out=tmp_path / "out")

    def search(run, row="cosface", trials=1, **changes):
        return tuning.tune(row, settings(row, **changes)[1], run, tuning.SearchLimits(trials)).trials

    assert search(run) == 1
    best = (run.out / "best.toml").read_bytes()
    for differ, message in (
        (lambda: search(replace(run, root=files[1])), r"root is .*g\.npz \(\w{16}\), expected .*f\.npz \(\w{16}\)\)"),
        (lambda: search(replace(run, seed=3)), r"\(seed is 3, expected 0\)"),
        (lambda: search(replace(run, quick=True)), "quick is True, expected False"),
        (lambda: search(replace(run, backbone="resnet18")), "backbone is resnet18, expected auto"),
        (lambda: search(run, dim=4, schedule={"epochs": 1}), "dim is 4, expected 128; schedule.epochs is 1, expected "),
        (lambda: search(run, "arcface"), "method is arcface, expected cosface; "),
        (lambda: search(replace(run, data="digits8", root=None)), "data is digits8, expected features; root is None, "),
    ):
        with pytest.raises(ValueError, match=rf"out is {run.out}, whose trials are of another search .*{message}"):
            differ()
    assert (run.out / "best.toml").read_bytes() == best
    assert search(replace(run, threads=2, workers=1), trials=2, schedule={"lr": 0.07}) == 2
    np.savez(files[0], features=parts["train"].data + 1, labels=parts["train"].labels)
    with pytest.raises(ValueError, match=r"search \(root is .*f\.npz \(\w{16}\), expected .*f\.npz \(\w{16}\)\)"):
        search(run)
    of_folder = replace(run, root=tmp_path / "folder", out=tmp_path / "other")
    assert search(of_folder) == search(of_folder) == 1
    files[2].unlink()
    with pytest.raises(ValueError, match="root is "):
        search(of_folder)


def test_a_search_without_trials_may_be_changed(parts, tmp_path):
    np.savez(tmp_path / "train.npz", features=parts["train"].data, labels=parts["train"].labels)
    run = train.Run(data="features", root=tmp_path, out=tmp_path / "out", device="cpu", threads=1)
    with pytest.raises(ValueError, match="no validation part"):
        tuning.tune("cosface", settings("cosface", **SHORT)[1], run, tuning.SearchLimits(trials=1))
    np.savez(tmp_path / "validation.npz", features=parts["validation"].data, labels=parts["validation"].labels)
    assert tuning.tune("cosface", settings("cosface", **SHORT)[1], run, tuning.SearchLimits(trials=1)).trials == 1


def test_a_search_tries_settings_that_its_seed_draws_and_says_if_none_changes_anything(tmp_path, monkeypatch, capsys):
    tried = {}

    def trained(name, method, chosen, run):
        tried.setdefault(run.out.parent.name, []).append(chosen.schedule.lr)
        return runs.Result("validation", 0.0, 0.0, 0.0, 1, None, name, run.data, 0, 0.5, 0.0)

    monkeypatch.setattr(tuning, "train", trained)
    for name, seed in (("a", 3), ("b", 3), ("c", 4)):
        run = train.Run(data="features", out=tmp_path / name, seed=seed)
        tuning.tune("cosface", settings("cosface", dim=6)[1], run, tuning.SearchLimits(trials=2))
    assert tried["a"] == tried["b"] and not {*tried["a"]} & {*tried["c"]}
    assert capsys.readouterr().err.count("cosface on features: all 2 trials reached the same") == 3


def test_a_search_needs_a_validation_part(parts, tmp_path, monkeypatch):
    np.savez(tmp_path / "train.npz", features=parts["train"].data, labels=parts["train"].labels)
    run = train.Run(data="features", root=tmp_path, out=tmp_path / "out", device="cpu", threads=1)
    with pytest.raises(ValueError, match="data features has no validation part to search by"):
        tuning.tune("cosface", settings("cosface", **SHORT)[1], run, tuning.SearchLimits(trials=1))


# -- processes ---------------------------------------------------------------------------------------------------------


def command(*words, out, **environment):
    line = [sys.executable, "-m", *words, "--out", str(out), "--device", "cpu", "--threads", "1"]
    known = {**os.environ, "OMP_NUM_THREADS": "1", **environment}
    return subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=known)


@pytest.fixture
def file(parts, tmp_path):
    path = tmp_path / "f.npz"
    np.savez(path, features=parts["train"].data.numpy(), labels=parts["train"].labels)
    return path


def test_a_run_stopped_by_ctrl_c_goes_on_as_if_it_had_not(file, tmp_path):
    rates = ["--schedule.lr", "0.01", "--schedule.classes-per-batch", "2"]
    options = ["--data", "features", "--root", str(file), *rates, "--dim", "6", "--schedule.epochs", "300"]
    log = tmp_path / "a" / "log.jsonl"
    with command("peaccel", "train", "cosface", *options, out=tmp_path / "a") as running:
        while running.poll() is None and not log.exists():
            time.sleep(0.01)
        running.send_signal(signal.SIGINT)
        _, err = running.communicate(timeout=60)
    assert running.returncode == 130 and "Traceback" not in err, err
    assert not (tmp_path / "a" / "model.safetensors").exists()
    done = len(log.read_text().splitlines())
    assert 1 <= done < 300
    chosen, run = runs.resumed(tmp_path / "a", "cosface")
    assert chosen.schedule.epochs == 300
    train.train("cosface", methods.load("cosface"), chosen, replace(run, resume=True))
    train.train("cosface", methods.load("cosface"), chosen, replace(run, out=tmp_path / "b"))
    assert equal(weights(tmp_path / "a"), weights(tmp_path / "b"))
    assert [json.loads(line)["epoch"] for line in log.read_text().splitlines()] == [*range(1, 301)]


def test_two_processes_write_one_folder_that_one_process_would(file, tmp_path):
    options = ["--data", "features", "--root", str(file), "--dim", "6", "--schedule.epochs", "2", "--seed", "3"]
    port = ["--nproc_per_node", "2", "--rdzv_backend", "c10d", "--rdzv_endpoint", "localhost:0"]
    words = ["torch.distributed.run", *port, "-m", "peaccel", "train", "cosface", *options]
    with command(*words, out=tmp_path / "two") as running:
        out, err = running.communicate(timeout=120)
    assert running.returncode == 0, err
    assert out.count("cosface on features, seed 3: ") == 1
    run = train.Run(data="features", root=file, out=tmp_path / "one", seed=3, device="cpu", threads=1)
    result = train.train("cosface", *settings("cosface", dim=6, schedule={"epochs": 2}), run)
    one, two = weights(tmp_path / "one"), weights(tmp_path / "two")
    assert one.keys() == two.keys()
    assert all(torch.allclose(x, two[name], rtol=1e-4, atol=1e-5) for name, x in one.items())
    assert json.loads((tmp_path / "two" / "result.json").read_text())["map_at_r"] == pytest.approx(result.map_at_r)
    log = (tmp_path / "two" / "log.jsonl").read_text().splitlines()
    assert [json.loads(line)["epoch"] for line in log] == [1, 2]
