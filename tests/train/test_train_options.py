"""Every option of training arrives where it is meant to: of schedules, of runs, of the commands that train."""

import json
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import peaccel as pe
from peaccel import cli, metrics, train
from peaccel.cli import fit_head
from peaccel.data.features import features
from peaccel.heads import PointHead
from peaccel.methods import mu_scaleface
from peaccel.methods.method import Group, Schedule, Stage, Training
from peaccel.train import fit, loop, recipe, runs, tuning
from peaccel.train.progress import ConsoleLogger, NullLogger
from peaccel.train.runs import Job, Run
from peaccel.train.sources import Items
from peaccel.train.tuning import SearchLimits

CLASSES, WIDTH = 5, 6
RNG = np.random.default_rng(0)
CENTRES = RNG.normal(size=(CLASSES, WIDTH))


def items(sizes, quality=False):
    """Features of classes of these sizes, not sorted."""
    labels = RNG.permutation(np.repeat(np.arange(len(sizes)), sizes))
    features = CENTRES[labels] + RNG.normal(size=(len(labels), WIDTH))
    return Items(torch.tensor(features, dtype=torch.float32), labels, RNG.random(len(labels)) if quality else None)


PARTS = {
    "train": items((4, 9, 6, 5, 7)),
    "validation": items((3, 2, 5, 4)),
    "test": items((5, 3)),
    "query": items((3, 6, 2), quality=True),
    "gallery": items((9, 4, 8, 5)),
}


# -- schedules ---------------------------------------------------------------------------------------------------------

FALLS = {"optimizer": "sgd", "momentum": 0.0, "lr": 0.1}
SCHEDULES = {
    "epochs": ({}, 5),
    "lr": ({}, 0.03),
    "classes_per_batch": ({}, 3),
    "images_per_class": ({}, 2),
    "optimizer": ({}, "sgd"),
    "momentum": ({"optimizer": "sgd"}, 0.5),
    "nesterov": ({"optimizer": "sgd"}, True),
    "weight_decay": ({}, 0.1),
    "decay": ({}, "constant"),
    "every": (FALLS | {"decay": "step", "every": 3}, 1),
    "milestones": (FALLS | {"decay": "multistep", "milestones": (2,)}, (1,)),
    "gamma": (FALLS | {"decay": "exponential"}, 0.5),
    "clip": (FALLS, 1e-3),
}
"""Of each field what it is seen beside, and another value."""


def learned(**schedule):
    """The weight that a linear map of features to the classes' centres learns."""
    torch.manual_seed(0)
    layer = nn.Linear(WIDTH, WIDTH)
    centres = torch.tensor(CENTRES, dtype=torch.float32)

    def loss(batch, step):
        return {"distance": (layer(batch.inputs) - centres[batch.labels]).square().mean()}

    whole = Schedule(**{"epochs": 4, "lr": 0.01, "classes_per_batch": 2, "images_per_class": 3, **schedule})
    stage = Stage("s", whole, (Group((layer,)),), loss)
    fit(Training(PointHead(layer), nn.Module(), (stage,)), PARTS["train"].data, PARTS["train"].labels)
    return layer.weight.detach()


def test_every_field_of_a_schedule_changes_what_is_learned():
    assert SCHEDULES.keys() == {f.name for f in fields(Schedule)}
    for name, (beside, value) in SCHEDULES.items():
        assert not torch.equal(learned(**beside), learned(**beside | {name: value})), name
    assert not torch.equal(learned(optimizer="adamw", weight_decay=0.1), learned(weight_decay=0.1))


# -- runs --------------------------------------------------------------------------------------------------------------


class Asked(Exception):
    """Ends a run where its work would begin."""


def asked_of(monkeypatch, name, ends=False):
    """The arguments, by place or name, with which a run calls a function, and then ends or goes on."""
    real, found = getattr(runs, name), {}

    def ask(*given, **named):
        found.update(dict(enumerate(given)), **named)
        if ends:
            raise Asked
        return real(*given, **named)

    monkeypatch.setattr(runs, name, ask)
    return found


SHORT = {
    "cosface": {"dim": 4, "schedule": {"epochs": 1, "classes_per_batch": 2, "images_per_class": 3}},
    "pfe": {"match": {"epochs": 1}},
    "mu_scaleface": {"scale": {"epochs": 1}},
}


def carry_out(out, row="cosface", parts=PARTS, **options):
    method, settings = train.recipe(row, "features", SHORT[row])
    given = {"data": "features", "device": "cpu", "threads": 1, "out": out}
    return train.train(row, method, settings, Run(**given | options), parts)


def test_data_are_opened_as_the_run_says(monkeypatch, tmp_path):
    listed = {"test": object()}
    monkeypatch.setattr(runs, "list_parts", lambda *place: listed if place == ("folder", tmp_path) else {})
    asked = asked_of(monkeypatch, "open_items", ends=True)
    of_data = {"data": "folder", "root": tmp_path, "seed": 7, "quick": True, "skip_bad": True}
    with pytest.raises(Asked):
        carry_out(tmp_path / "a", parts=None, backbone="test_resnet", **of_data)
    name, root, seed, expected, quick = (asked[i] for i in range(5))
    assert (name, root, seed, quick, asked["skip_bad"]) == ("folder", tmp_path, 7, True, True)
    assert expected.size == (160, 160) and asked["listed"] is listed


def test_devices_are_as_the_run_says(monkeypatch, tmp_path):
    asked = asked_of(monkeypatch, "Accelerator", ends=True)
    for device, precision in (("auto", "bf16"), ("cpu", "no")):
        with pytest.raises(Asked):
            carry_out(tmp_path / "a", device=device, precision=precision)
        assert asked == {"cpu": device == "cpu", "mixed_precision": precision}


def test_batches_threads_and_files_are_as_the_run_says(monkeypatch, tmp_path):
    batches, told = (asked_of(monkeypatch, name) for name in ("fit", "ConsoleLogger"))
    how = {"seed": 3, "patience": 2, "accumulate": 2, "workers": 1}
    carry_out(tmp_path, **how, threads=2)
    assert torch.get_num_threads() == 2
    assert {name: getattr(batches[3], name) for name in how} == how and batches["folder"] == tmp_path
    assert told == {0: tmp_path, 1: "cosface: ", 2: False}
    carry_out(tmp_path, **{**how, "workers": 0}, threads=1, resume=True)
    assert torch.get_num_threads() == 1 and batches[3].resume


def test_a_run_trains_on_one_part_and_is_judged_by_the_others(tmp_path):
    """Parts differ in their sizes: queries in the gallery, and halves of the classes of validation in each other."""
    result = carry_out(tmp_path, "pfe")
    read = train.load(tmp_path)
    d = {part: train.embed(read.model, x.data) for part, x in PARTS.items()}
    query, gallery, held = (PARTS[part].labels for part in ("query", "gallery", "validation"))
    found = pe.search(d["query"], d["gallery"], len(gallery), read.score).ids, query, gallery
    chance = np.mean([(gallery == label).mean() for label in query])
    place = np.array([(held[:i] == label).sum() for i, label in enumerate(held)])
    sides = d["validation"][place % 2 == 1], d["validation"][place % 2 == 0]
    halves = pe.search(*sides, len(sides[1]), read.score).ids, held[place % 2 == 1], held[place % 2 == 0]
    expected = {
        "part": "query",
        "recall_at_1": metrics.recall_at_k(*found),
        "map_at_r": metrics.map_at_r(*found),
        "chance": pytest.approx(chance),
        "queries": len(query),
        "uncertainty_and_severity": metrics.spearman(PARTS["query"].quality, pe.confidence(d["query"])),
        "method": "pfe",
        "data": "features",
        "seed": 0,
        "validation": metrics.map_at_r(*halves),
    }
    assert {name: getattr(result, name) for name in expected} == expected
    assert read.score == pe.scores.mls and read.features == WIDTH


@pytest.mark.parametrize(
    ("parts", "of"), [(("train", "validation", "test"), "validation"), (("train", "test"), "train")]
)
def test_a_score_is_fitted_to_validation_where_there_is_one(tmp_path, parts, of):
    carry_out(tmp_path, "mu_scaleface", {part: PARTS[part] for part in parts})
    read = train.load(tmp_path)
    fitted = {part: mu_scaleface.score(train.embed(read.model, x.data), x.labels) for part, x in PARTS.items()}
    assert [part for part, score in fitted.items() if score == read.score] == [of]


def test_the_first_part_that_there_is_is_judged(tmp_path):
    for missing, part in ((("query",), "test"), (("gallery", "test"), "validation")):
        parts = {name: x for name, x in PARTS.items() if name not in missing}
        found = carry_out(tmp_path / part, parts=parts)
        assert (found.part, found.queries) == (part, {"test": 3, "validation": 6}[part])


class Writer:
    """A record for TensorBoard."""

    def __init__(self):
        self.told = []

    def add_scalar(self, *told):
        self.told.append(told)


def test_a_line_of_the_log_has_what_its_headings_say(monkeypatch, tmp_path):
    """Two terms, two rates, uncertainties, and the best validation."""
    mean, other = nn.Linear(WIDTH, 3), nn.Parameter(torch.ones(2))
    seen, values, writer = [], iter([0.25, 0.125]), Writer()

    def loss(batch, step):
        terms = {"one": mean(batch.inputs).square().mean(), "two": other.square().sum()}
        seen.append({name: x.item() for name, x in terms.items()})
        return terms

    def uncertain(x):
        return pe.Normal(mean(x), x[:, 0].exp())

    model = nn.Sequential(mean)
    model.forward = uncertain
    schedule = Schedule(epochs=2, lr=0.1, decay="step", every=1, gamma=0.5, classes_per_batch=2, images_per_class=3)
    stage = Stage("both", schedule, (Group((mean,)), Group((other,), 3.0)), loss)
    monkeypatch.setattr("peaccel.train.progress._event_writer", lambda folder: writer)
    fit(
        Training(model, nn.ParameterList([other]), (stage,)),
        PARTS["train"].data,
        PARTS["train"].labels,
        validate=lambda model: next(values),
        logger=ConsoleLogger(tmp_path, "x: ", tensorboard=True),
    )
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    var = PARTS["train"].data[:, 0].exp().numpy().astype(float)
    for epoch, line in enumerate(lines):
        of_epoch = seen[epoch * len(seen) // 2 : (epoch + 1) * len(seen) // 2]
        expected = {
            "stage": "both",
            "epoch": epoch + 1,
            **{name: pytest.approx(np.mean([terms[name] for terms in of_epoch])) for name in ("one", "two")},
            "lr": pytest.approx([0.05 / 2**epoch, 0.15 / 2**epoch]),
            "best_validation": 0.25,
            "var_mean": pytest.approx(var.mean(), rel=1e-5),
            "var_spread": pytest.approx(np.log(var).std(), rel=1e-5),
        }
        assert {name: x for name, x in line.items() if "second" not in name} == expected
    assert ("both/one", lines[1]["one"], 2) in writer.told and ("both/best_validation", 0.25, 1) in writer.told


# -- commands ----------------------------------------------------------------------------------------------------------

WORDS = {
    "seed": ("--seed 3", 3),
    "patience": ("--patience 4", 4),
    "accumulate": ("--accumulate 2", 2),
    "workers": ("--workers 1", 1),
    "resume": ("--resume", True),
    "out": ("--out elsewhere", Path("elsewhere")),
    "begin": ("--begin begin.safetensors", Path("begin.safetensors")),
    "precision": ("--precision bf16", "bf16"),
    "device": ("--device auto", "auto"),
    "tensorboard": ("--tensorboard", True),
    "strict": ("--strict", True),
    "threads": ("--threads 2", 2),
    "data": ("--data digits8", "digits8"),
    "root": ("--data folder --root .", Path()),
    "quick": ("--quick", True),
    "skip_bad": ("--skip-bad", True),
    "backbone": ("--backbone test_resnet", "test_resnet"),
    "image_size": ("--image-size 64", 64),
    "weights": ("--weights weights.pth", Path("weights.pth")),
    "pooling": ("--pooling gem", "gem"),
    "frozen_bn": ("--frozen-bn", True),
    "dropout": ("--dropout 0.3", 0.3),
}
"""Of each field of a run the words that ask for another value, and that value."""
COMMANDS = {"train": (Run, runs, "train", 3), "tune": (Run, tuning, "tune", 2), "fit-head": (Job, runs, "train", 3)}
"""Of each command that trains the options of its runs, and where the run arrives: a function, and its place there."""


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("begin.safetensors", "weights.pth"):
        (tmp_path / name).write_bytes(b"")
    np.savez("features.npz", features=PARTS["train"].data, labels=PARTS["train"].labels)
    return tmp_path


def run_of(monkeypatch, line):
    """The run that a command asks for, and the other arguments beside it."""
    _, owner, name, place = COMMANDS[line.split()[0]]
    found = []

    def ask(*given, **named):
        found.append(given)
        raise SystemExit

    monkeypatch.setattr(owner, name, ask)
    with pytest.raises(SystemExit):
        cli.main(line.split())
    return found[0][place], found[0]


@pytest.mark.parametrize("command", ["train cosface", "tune cosface", "fit-head features.npz"])
def test_every_option_of_a_run_arrives_in_it_and_changes_nothing_else(command, here, monkeypatch):
    plain, known = run_of(monkeypatch, command)[0], {f.name for f in fields(COMMANDS[command.split()[0]][0])}
    assert WORDS.keys() == {f.name for f in fields(Run)}
    for name in sorted(known):
        words, value = WORDS[name]
        beside = {"data": "folder"} if name == "root" else {}
        assert run_of(monkeypatch, f"{command} {words}")[0] == replace(plain, **beside, **{name: value}), name


def test_limits_arrive_in_the_search(here, monkeypatch):
    asked = run_of(monkeypatch, "tune cosface --trials 4 --seconds 9 --dim 7")[1]
    assert (asked[0], asked[1].dim, asked[3]) == ("cosface", 7, SearchLimits(4, 9.0))


@pytest.mark.parametrize("method", fit_head.HEADS)
def test_features_labels_and_the_method_arrive_in_the_head(here, monkeypatch, method):
    found = features("features.npz")
    np.save("f.npy", PARTS["train"].data)
    np.save("l.npy", PARTS["train"].labels)
    for words in ("features.npz", "f.npy --labels l.npy"):
        name, own, _, _, parts, command = run_of(monkeypatch, f"fit-head {words} --method {method}")[1]
        assert (name, own) == (method, train.recipe(method, "features")[0])
        assert command.startswith(f"peaccel fit-head {words} --method {method}")
        assert parts.keys() == found.keys()
        for part, x in found.items():
            assert np.array_equal(parts[part].data, x.features) and np.array_equal(parts[part].labels, x.labels)


def test_a_step_on_features_takes_as_many_threads_as_it_keeps_at_work(monkeypatch):
    features, labels = torch.eye(4).repeat(8, 1), np.tile(np.arange(4), 8)
    before, seen = torch.get_num_threads(), set()

    class Threads(NullLogger):
        def step(self, terms, items):
            seen.add(torch.get_num_threads())

    torch.set_num_threads(3)
    try:
        for work, taken in ((loop.WORK, {1}), (1e3, {1, 3})):
            monkeypatch.setattr(loop, "WORK", work)
            method, settings = recipe("cosface", "features", {"dim": 4, "schedule": {"epochs": 1, "lr": 0.01}})
            loop.fit(method.build(torch.nn.Identity(), 4, 4, settings), features, labels, logger=Threads())
            assert seen == taken and torch.get_num_threads() == 3
        seen.clear()
        monkeypatch.undo()
        images = torch.rand(32, 1, 2, 2)
        loop.fit(method.build(torch.nn.Flatten(), 4, 4, settings), images, labels, logger=Threads())
    finally:
        torch.set_num_threads(before)
    assert seen == {3}
