"""A training that fails says so within two epochs, and one that does not says nothing."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from command import run
from rows import CLASSES, FEATURES, IMAGES, LABELS, ROWS, build
from torch import nn

import peaccel as pe
from peaccel import train
from peaccel.data import digits
from peaccel.methods.method import Schedule
from peaccel.train import Options, fit, loop
from peaccel.train.backbones.small_cnn import small_cnn
from peaccel.train.diagnostics import Movement, above_chance, probe_rows, signs
from peaccel.train.sources import digits_settings

TWO = Schedule(epochs=2, lr=3e-3, classes_per_batch=12, images_per_class=4)


def with_epochs(training, **changes):
    """The training with stages of two epochs."""
    for module in training.model.modules():
        if isinstance(module, nn.BatchNorm1d):
            module.momentum = 0.5  # or running averages, by which stage 2 sees the means, are those of no training
    stages = (replace(s, schedule=replace(s.schedule, **{"epochs": 2, **changes})) for s in training.stages)
    return replace(training, stages=tuple(stages))


@pytest.fixture(scope="module")
def strips():
    found = digits.make("digits8", digits_settings(quick=True), 4)["train"]
    return torch.from_numpy(found.images)[:, None], np.searchsorted(np.unique(found.labels), found.labels)


@pytest.mark.parametrize(("end", "told"), [(False, True), (True, False)])
def test_a_network_that_ends_in_one_cone_is_named(strips, end, told):
    images, labels = strips
    torch.manual_seed(4)
    layers = small_cnn()
    backbone, features = (layers, 256) if end else (layers[:-2], 1728)
    method, settings = train.recipe("arcface", "mnist")
    settings = replace(settings, schedule=TWO)
    found = fit(method.build(backbone, features, int(labels.max()) + 1, settings), images, labels)
    assert any("in one cone (mean cosine 0.9" in sentence for sentence in found) == told, found


def test_what_learns_nothing_is_at_chance():
    _, _, training = build("cosface")
    noise = torch.rand(IMAGES.shape, generator=torch.Generator().manual_seed(0))
    found = fit(with_epochs(training), noise, LABELS)
    assert [sentence for sentence in found if "chance is 7.4 %: nothing is learned" in sentence], found


def test_concentrations_that_leave_their_decades_are_named():
    """At a rate at which training is chaos: what becomes of it differs by seed and by the last bit of a score."""
    told = []
    for seed in (1, 2, 3, 4):
        _, _, training = build("pfe_vmf")
        told += fit(with_epochs(training, lr=3.0), IMAGES, LABELS, Options(seed=seed))
        if any("kappa" in s and ("ranges from" in s or "is at its" in s) for s in told):
            return
    raise AssertionError(told)


def test_layers_without_a_gradient_did_not_change_by_one_bit():
    _, _, training = build("pfe")

    offset = training.model[-1].uncertainty.beta

    def loss(batch, step):
        return {"offset": (offset - 1).square()}

    cut = replace(training.stages[-1], schedule=TWO, loss=loss)
    found = fit(replace(training, stages=(cut,)), IMAGES, LABELS)
    assert any("uncertainty.layers.0" in s and "did not change by one bit" in s for s in found), found


QUICK = {"arcface", "dul_reg_cls", "el_nivmf", "pfe_vmf", "triplet", "vmf_loss"}


@pytest.mark.parametrize("row", [row if row in QUICK else pytest.param(row, marks=pytest.mark.slow) for row in ROWS])
def test_a_training_that_learns_says_nothing(row):
    _, _, training = build(row)
    assert fit(with_epochs(training, lr=1e-3), IMAGES, LABELS, Options(seed=1)) == ()


# -- the parts ---------------------------------------------------------------------------------------------------------


def test_rows_that_are_looked_at_are_of_classes_with_several_items():
    labels = np.array([5, 0, 0, 1, 2, 2, 2, 3, *[4] * 20])
    rows = probe_rows(labels)
    assert sorted(np.unique(labels[rows])) == [0, 2, 4] and (labels[rows] == 4).sum() == 8
    many = np.arange(1000).repeat(3)
    assert len(np.unique(many[probe_rows(many)])) == 32 and many[probe_rows(many)].max() == 999
    assert len(probe_rows(np.arange(20))) == 8


def test_uncertainties_at_a_bound_and_over_decades():
    rng = np.random.default_rng(0)
    mu, labels = np.repeat(np.eye(6), 20, 0) + 0.1 * rng.normal(size=(120, 6)), np.arange(6).repeat(20)
    var = rng.uniform(0.1, 1, 120)
    assert signs(pe.Normal(mu, var), labels) == {} and signs(pe.Normal(mu, np.full(120, 0.5)), labels) == {}
    low = signs(pe.Normal(mu, np.where(np.arange(120) < 70, 1e-6, var)), labels)
    assert "var of 58 % of the items is at its least value, 1e-06" in low["bound"]
    assert "greatest value, 3" in signs(pe.Normal(mu, np.where(np.arange(120) < 70, 3, var)), labels)["bound"]
    bound = pe.Normal(mu, np.where(np.arange(120) < 70, 3, var))
    assert "a lower rate of the uncertainty head" in signs(bound, labels)["bound"]
    assert "a lower learning rate" in signs(bound, labels, head=False)["bound"]
    wide = signs(pe.Normal(mu, np.geomspace(0.24, 431, 120)), labels)
    assert set(wide) == {"range"} and "var ranges from 0.2" in wide["range"]
    assert signs(pe.Normal(mu, np.geomspace(1, 500, 120)), labels) == {}


def test_looking_changes_nothing_of_the_training(monkeypatch):
    """Not even the draws of dropout, which goes on in training mode while it is looked."""

    def weights():
        torch.manual_seed(3)
        _, _, training = build("cosface", dropout=0.5)
        torch.manual_seed(4)
        fit(with_epochs(training), IMAGES, LABELS)
        return training.model.state_dict()

    looked = weights()
    monkeypatch.setattr(loop, "EPOCHS", 0)
    alone = weights()
    assert all(torch.equal(looked[name], alone[name]) for name in alone)


def test_scalars_in_float64_are_looked_at_too():
    _, _, training = build("vmf_loss")
    everything = nn.ModuleDict({"model": training.model, "criterion": training.criterion}).double().requires_grad_(True)
    assert "did not change" in Movement(everything, training.stages[0]).sign()["still"]


def test_chance_is_left_behind_by_more_than_luck():
    assert not above_chance(1, 100, 0.01) and not above_chance(5, 100, 0.01) and above_chance(6, 100, 0.01)
    assert above_chance(100, 100, 0.5) and not above_chance(0, 100, 0.01)


def test_movement_sees_one_bit():
    _, _, training = build("cosface")
    stage = training.stages[0]
    everything = nn.ModuleDict({"model": training.model, "criterion": training.criterion}).requires_grad_(True)
    movement = Movement(everything, stage)
    assert "did not change" in movement.sign()["still"]
    linear = training.model[0][1]
    with torch.no_grad():
        for name, p in everything.named_parameters():
            if p is not linear.weight and p is not linear.bias:
                p.view(-1)[0] = torch.nextafter(p.view(-1)[0], torch.tensor(9.0))
            assert name
    assert movement.sign()["still"].startswith("model.0.1 did not change by one bit")
    assert linear.weight.shape == (FEATURES, 16) and CLASSES == 12


def test_a_run_at_chance_ends_with_a_warning_and_by_strict_with_1(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    np.savez("noise.npz", features=rng.normal(size=(400, 8)).astype(np.float32), labels=np.arange(40).repeat(10))
    line = "train cosface --data features --root noise.npz --device cpu --threads 1 --dim 4 --schedule.epochs 1"
    code, _, err = run(capsys, f"{line} --out a")
    assert code == 0 and "cosface: training may have failed: Recall@1 of " in err and "is what chance gives" in err
    assert run(capsys, f"{line} --out b --strict")[0] == 1
