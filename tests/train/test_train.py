"""The training loop: batches, learning, checkpoints, and messages when something goes wrong."""

import json
import os
import signal
import subprocess
import sys
from contextlib import nullcontext
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
import torch
from safetensors import SafetensorError
from stand_in_gpu import OnGpu, on_gpu, stand_in
from torch import nn
from torch.overrides import TorchFunctionMode

import peaccel as pe
from peaccel import methods
from peaccel._utils import progress_bar
from peaccel.heads import PointHead
from peaccel.losses._batch import sent
from peaccel.methods.method import Batch, Group, Schedule, Stage, Training
from peaccel.methods.triplet import hard_negatives
from peaccel.train import ConsoleLogger, Options, checkpoint, embed, fit, loop
from peaccel.train.backbones.small_cnn import FEATURES, small_cnn
from peaccel.train.batch_sampling import balanced, deliver
from peaccel.train.optim import optimizer_of, schedule_of
from peaccel.train.progress import NullLogger

CLASSES, EACH, WIDTH = 12, 6, 10
LABELS = np.repeat(np.arange(CLASSES), EACH)


@pytest.fixture
def items():
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(CLASSES, WIDTH))
    return torch.tensor(centres[LABELS] + rng.normal(size=(len(LABELS), WIDTH)), dtype=torch.float32)


def build(name, seed=0, **changes):
    """A method on a small backbone with dropout, with short schedules."""
    method = methods.load(name)
    short = Schedule(epochs=3, lr=1e-2, classes_per_batch=4, images_per_class=3)
    known = method.settings.__dataclass_fields__
    schedules = {key: short for key, f in known.items() if isinstance(f.default, Schedule)}
    settings = method.settings(**{**schedules, "dim": 6, **changes})
    torch.manual_seed(seed)
    backbone = nn.Sequential(nn.Linear(WIDTH, 8), nn.ReLU(), nn.Dropout(0.2))
    return method.build(backbone, 8, CLASSES, settings)


def weights(training):
    both = nn.ModuleDict({"model": training.model, "criterion": training.criterion})
    return {name: x.clone() for name, x in both.state_dict().items()}


def equal(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


# -- what is dealt -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sizes", [[6] * 32, [1, 2, 3, 4, 5, 9, 1, 1], [1], [7], list(range(1, 60))])
@pytest.mark.parametrize("per_class", [1, 2, 4])
def test_every_item_and_class_comes_up_each_epoch(sizes, per_class):
    labels = np.repeat(np.arange(len(sizes)), sizes)
    schedule = Schedule(classes_per_batch=5, images_per_class=per_class)
    for epoch in range(3):
        batches = list(balanced(labels, schedule, np.random.default_rng(epoch)))
        rows = np.concatenate(batches)
        assert set(rows) == set(range(len(labels)))
        assert len({len(batch) for batch in batches}) == 1 and len(batches[0]) <= 5 * per_class
        assert len(rows) < len(labels) + 5 * per_class + per_class  # only what fills the last group and batch repeats


def test_groups_are_of_one_class_where_sizes_allow():
    labels = np.repeat(np.arange(32), 8)
    schedule = Schedule(classes_per_batch=16, images_per_class=4)
    batches = np.stack(list(balanced(labels, schedule, np.random.default_rng(0))))
    assert sorted(batches.ravel().tolist()) == list(range(len(labels)))
    assert (np.ptp(labels[batches.reshape(-1, 4)], axis=1) == 0).all()
    again = np.stack(list(balanced(labels, schedule, np.random.default_rng(1))))
    assert not np.array_equal(batches, again)


def test_hard_negatives_are_the_nearest_of_other_classes():
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(10), [1, 2, 3, 4, 5, 6, 7, 8, 9, 10])
    mu = rng.normal(size=(len(labels), 4)).astype(np.float32)
    schedule = Schedule(classes_per_batch=4, images_per_class=5)
    groups = np.concatenate([rows.reshape(-1, 5) for rows in hard_negatives(labels, schedule, rng, mu.__getitem__, 3)])
    assert set(groups[:, 0]) == set(range(1, len(labels)))  # all but the single one of its class
    for anchor, positive, *negatives in groups:
        assert labels[anchor] == labels[positive] and anchor != positive
        distances = ((mu - mu[anchor]) ** 2).sum(1)
        distances[labels == labels[anchor]] = np.inf
        assert set(negatives) == set(np.argsort(distances)[:3])
    with pytest.raises(ValueError, match="no anchor has a positive and 3 negatives"):
        list(hard_negatives(np.arange(5), schedule, rng, mu.__getitem__, 3))


def test_hard_negatives_are_found_behind_the_whole_of_the_largest_class():
    rng, labels = np.random.default_rng(0), np.repeat(np.arange(4), [3, 9, 5, 2])
    mu = (10 * np.eye(4)[labels] + 0.1 * rng.normal(size=(19, 4))).astype(np.float32)  # all of a class are nearest
    dealt = np.concatenate([*hard_negatives(labels, Schedule(images_per_class=2), rng, mu.__getitem__, 3)])
    assert set(dealt.reshape(-1, 5)[:, 0]) == set(range(19))


class Noisy:
    """A dataset that draws for each item, as augmentation does."""

    def __len__(self):
        return 40

    def __getitem__(self, row):
        return torch.tensor([float(row)]), torch.rand(2)


def test_augmentation_depends_on_the_batch_and_not_on_workers_or_interruptions():
    batches = np.random.default_rng(0).integers(0, 40, (5, 6))

    def drawn(seed, first=0, workers=0):
        return [torch.cat(x, 1) for _, x in deliver(Noisy(), batches, seed, first, workers)]

    whole = drawn(1)
    assert len({x[:, 1].sum().item() for x in whole}) == 5 and torch.equal(
        whole[0][:, 0], torch.tensor(batches[0]) * 1.0
    )
    for other in (drawn(1), drawn(1, workers=2)):
        assert all(map(torch.equal, whole, other))
    assert all(map(torch.equal, whole[3:], drawn(1, first=3)))
    assert not torch.equal(whole[0], drawn(2)[0])


# -- what learns -------------------------------------------------------------------------------------------------------


def test_only_what_a_stage_names_learns(items):
    training = build("pfe", hidden=8)
    mean, classifier = training.model[1].mean, training.criterion
    before = weights(training)
    fit(Training(training.model, classifier, training.stages[:1]), items, LABELS)
    first = weights(training)
    moved = {name for name in before if not torch.equal(before[name], first[name])}
    assert moved and not any("uncertainty" in name for name in moved)
    mu = embed(training.model, items).mu
    fit(Training(training.model, classifier, training.stages[1:]), items, LABELS)
    second = weights(training)
    moved = {name for name in first if not torch.equal(first[name], second[name])}
    assert moved and all("uncertainty" in name for name in moved)
    assert np.array_equal(mu, embed(training.model, items).mu)
    assert not any(p.requires_grad for p in [*mean.parameters(), *classifier.parameters()])


def test_groups_have_rates_and_weight_decays_of_their_own():
    a, b = nn.Linear(2, 2), nn.Parameter(torch.ones(3))
    schedule = Schedule(lr=0.1, weight_decay=0.01, decay="step", every=2, gamma=0.5)
    stage = Stage("s", schedule, (Group((a,)), Group((b,), 50.0, 0.0)), lambda batch, step: {})
    optimizer = optimizer_of(stage)
    assert [(g["lr"], g["weight_decay"]) for g in optimizer.param_groups] == [(0.1, 0.01), (5.0, 0.0)]
    rates = schedule_of(optimizer, schedule, 40)
    for _ in range(4):
        rates.after_step()
        rates.after_epoch()
    assert [g["lr"] for g in optimizer.param_groups] == pytest.approx([0.025, 1.25])


@pytest.mark.parametrize(
    ("name", "made"), {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}.items()
)
def test_optimizers_step_as_torch_s_own_bit_for_bit(name, made):
    parameters = [nn.Parameter(torch.linspace(-1, 1, 7)) for _ in range(2)]
    own = optimizer_of(Stage("s", Schedule(lr=0.1, weight_decay=0.3, optimizer=name), (Group((parameters[0],)),), {}))
    more = {"momentum": 0.9} if name == "sgd" else {"fused": True}
    theirs = made([parameters[1]], 0.1, weight_decay=0.3, **more)
    assert isinstance(own, made)
    for step in range(4):
        for parameter, optimizer in zip(parameters, (own, theirs), strict=True):
            optimizer.zero_grad()
            ((parameter - step) ** 3).sum().backward()
            optimizer.step()
            if step == 1:
                optimizer.load_state_dict(optimizer.state_dict())
        assert torch.equal(*parameters) and not torch.equal(parameters[0], torch.linspace(-1, 1, 7))
    assert str(own.state_dict()["state"]) == str(theirs.state_dict()["state"])


def test_training_does_not_import_the_compiler(tmp_path):
    code = """
import sys, torch
from pathlib import Path
from torch import nn
from peaccel.distributions import Point
from peaccel.methods.method import Group, Schedule, Stage, Training
from peaccel.train import Options, fit

class Head(nn.Linear):
    def forward(self, x):
        return Point(super().forward(x))

x, labels = torch.randn(8, 2), torch.arange(2).repeat(4)
for name in ("sgd", "adam", "adamw"):
    model = Head(2, 2)
    loss = lambda batch, step: {"loss": nn.functional.cross_entropy(model(batch.inputs).mu, batch.labels)}
    schedule = Schedule(epochs=1, optimizer=name, clip=1.0)
    training = Training(model, nn.Module(), (Stage("s", schedule, (Group((model,)),), loss),))
    for options in (Options(), Options(resume=True)):
        fit(training, x, labels.numpy(), options, folder=Path(sys.argv[1]) / name)
    print("torch._dynamo" in sys.modules)
"""
    for name in ("sgd", "adam", "adamw"):
        (tmp_path / name).mkdir()
    made = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True)
    assert made.stdout == 3 * "False\n", made.stderr


def test_sgd_is_plain_unless_it_is_nesterov_s():
    groups = (Group((nn.Parameter(torch.ones(1)),)),)
    for settings in ({}, {"nesterov": True}, {"nesterov": True, "momentum": 0.0}):
        schedule = Schedule(optimizer="sgd", **settings)
        made = optimizer_of(Stage("s", schedule, groups, lambda batch, step: {})).param_groups[0]
        assert made["momentum"] == schedule.momentum
        assert made["nesterov"] == (settings == {"nesterov": True})  # without momentum there is no such form


@pytest.mark.parametrize("decay", ["one_cycle", "cosine", "step", "multistep", "exponential", "constant"])
def test_a_schedule_goes_on_where_it_was(decay):
    schedule = Schedule(lr=0.1, decay=decay, every=2, milestones=(1, 4), gamma=0.7)
    stage = Stage("s", schedule, (Group((nn.Parameter(torch.ones(1)),)),), lambda batch, step: {})

    def rates(epochs, step=0, epoch=0):
        optimizer = optimizer_of(stage)
        told = schedule_of(optimizer, schedule, 60, step, epoch)
        for _ in range(epochs):
            for _ in range(10):
                yield optimizer.param_groups[0]["lr"]
                optimizer.step()
                told.after_step()
            told.after_epoch()

    whole = list(rates(6))
    assert whole[20:] == list(rates(4, step=20, epoch=2))
    assert max(whole) == pytest.approx(0.1, rel=0.01) and (decay == "constant") == (min(whole) == max(whole))


@pytest.mark.parametrize("steps", range(1, 31))
def test_a_cycle_of_few_steps_rises_and_falls(steps):
    schedule = Schedule(lr=0.1, decay="one_cycle")
    optimizer = optimizer_of(Stage("s", schedule, (Group((nn.Parameter(torch.ones(1)),)),), lambda batch, step: {}))
    told, rates = schedule_of(optimizer, schedule, steps), []
    for _ in range(steps):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        told.after_step()
    top = int(np.argmax(rates))
    assert top <= max(steps // 10, 1) and rates[:top] == sorted(rates[:top])
    assert rates[top:] == sorted(rates[top:], reverse=True)
    assert steps == 1 or rates[top] > 0.09


def test_draws_are_new_at_each_step_and_the_same_for_one_seed(items):
    seen = []

    def loss(batch, step):
        seen.append((step.seed, step.number, tuple(batch.rows.tolist())))
        return {"zero": 0 * part.sum()}

    part = nn.Parameter(torch.ones(1))
    holder = nn.ParameterList([part])
    schedule = Schedule(epochs=3, classes_per_batch=4, images_per_class=3)
    stages = tuple(Stage(name, schedule, (Group((part,)),), loss) for name in "ab")
    training = Training(nn.Identity(), holder, stages)
    training.model.forward = lambda x: pe.Point(x)
    fit(training, items, LABELS, Options(seed=4))
    first = list(seen)
    assert len({seed for seed, *_ in first}) == len(first) and len({rows for *_, rows in first}) == len(first)
    assert [number for _, number, _ in first] == 2 * list(range(len(first) // 2))
    seen.clear()
    fit(training, items, LABELS, Options(seed=4))
    assert seen == first
    seen.clear()
    fit(training, items, LABELS, Options(seed=5))
    assert not {seed for seed, *_ in seen} & {seed for seed, *_ in first}


class Drawn:
    """A dataset of draws alone."""

    def __len__(self):
        return len(LABELS)

    def __getitem__(self, row):
        return torch.rand(3)


def test_each_epoch_of_each_stage_has_draws_of_its_own():
    seen = []

    def loss(batch, step):
        seen.append(batch.inputs)
        return {"zero": 0 * part.sum()}

    part = nn.Parameter(torch.ones(1))
    schedule = Schedule(epochs=2, classes_per_batch=4, images_per_class=3)
    stages = tuple(Stage(name, schedule, (Group((part,)),), loss) for name in "ab")
    fit(Training(PointHead(nn.Identity()), nn.ParameterList([part]), stages), Drawn(), LABELS)
    assert len(torch.cat(seen).unique(dim=0)) == 2 * 2 * len(LABELS)


def test_batches_that_make_one_step_together_are_one_batch(items):
    """A loss that is a mean over items: two half batches accumulated move as one whole batch does."""

    def moved(per_batch, accumulate):
        torch.manual_seed(0)
        layer = nn.Linear(WIDTH, 1)
        schedule = Schedule(
            epochs=2, lr=0.1, optimizer="sgd", momentum=0, decay="constant", classes_per_batch=per_batch
        )
        ordered = iter_in_order(per_batch * schedule.images_per_class)
        model = nn.Sequential(layer)
        stage = Stage(
            "s", schedule, (Group((layer,)),), lambda b, s: {"x": layer(b.inputs).square().mean()}, None, None, ordered
        )
        model.forward = lambda x: pe.Point(layer(x))
        fit(Training(model, nn.Module(), (stage,)), items[:64], LABELS[:64], Options(accumulate=accumulate))
        return layer.weight.detach()

    assert torch.allclose(moved(8, 1), moved(4, 2), rtol=1e-5)
    assert not torch.allclose(moved(8, 1), moved(4, 1), rtol=1e-3)
    for accumulate in (3, 8, 10**9):  # a step ends with the epoch, and is the mean of what was left
        assert torch.allclose(moved(16, 1), moved(8, accumulate), rtol=1e-5)


@pytest.mark.parametrize("accumulate", [1, 4, 10**9])
def test_rates_have_fallen_to_nothing_when_the_last_step_is_made(items, accumulate):
    """However many batches make a step: a longer schedule would stop half-way, a shorter one would rise again."""
    rates = []

    class Rates(NullLogger):
        def epoch_ends(self, stage, epoch, optimizer, probe, validation):
            rates.append(optimizer.param_groups[0]["lr"])

    training = build("cosface", schedule=Schedule(epochs=3, decay="cosine", classes_per_batch=4, images_per_class=3))
    fit(training, items, LABELS, Options(accumulate=accumulate), logger=Rates())
    assert rates[0] > rates[1] > 1e-6 and rates[2] == pytest.approx(0, abs=1e-12)


def test_a_gradient_is_clipped_with_all_that_learns(items):
    """The first step of SGD at rate 1 is the gradient, which has the norm that it is clipped to."""
    training = build("cosface")
    before = weights(training)
    one = Schedule(epochs=1, lr=1.0, optimizer="sgd", momentum=0.0, decay="constant", clip=1e-3, classes_per_batch=72)
    stages = tuple(replace(stage, schedule=replace(one, images_per_class=1)) for stage in training.stages)
    fit(replace(training, stages=stages), items, LABELS)
    assert optimizer_of(stages[0]).param_groups[0]["momentum"] == 0
    moved = {name: (x - before[name]).norm() for name, x in weights(training).items()}
    assert all(moved.values()) and torch.stack([*moved.values()]).norm().item() == pytest.approx(1e-3, rel=1e-3)


def iter_in_order(size):
    def deal(labels, schedule, rng, embed):
        yield from np.arange(len(labels)).reshape(-1, size)

    return deal


# -- what is kept ------------------------------------------------------------------------------------------------------


def test_el_nivmf_starts_at_a_length_or_by_the_published_factor(items):
    batch = Batch(items, torch.tensor(LABELS), torch.arange(len(LABELS)))
    for changes in ({"norm": 7.0}, {"norm_multiplier": 30.0}):
        training = build("el_nivmf", **changes)
        model, linear = training.model.eval(), training.model[1].mean.linear
        with torch.no_grad():
            linear.bias.zero_()
            before = linear.weight.clone()
            training.stages[0].start([batch])
            length = model(items).kappa.mean().item()
        factor = (linear.weight / before).mean().item()
        assert (length if "norm" in changes else factor) == pytest.approx(next(iter(changes.values())), rel=1e-5)


@dataclass
class Interrupting(NullLogger):
    """Presses Ctrl-C, or dies, at a step."""

    at: int
    how: str
    steps: int = field(default=0)

    def step(self, terms, items):
        self.steps += 1
        if self.steps == self.at:
            if self.how == "killed":
                raise SystemExit
            os.kill(os.getpid(), signal.SIGINT)


STOPS = [("killed", 7), ("Ctrl-C", 3), ("Ctrl-C", 14)]
RESUMED = [(name, *stop) for name in ("dul_reg_cls", "el_nivmf", "llr_nce", "vmf_loss") for stop in STOPS]


@pytest.mark.parametrize(
    ("name", "how", "at"),
    # Each row is stopped in one way, and one row in all; the others are left to `make test-all`.
    [
        c if c[0] == "dul_reg_cls" or c[1:] == STOPS[i // 3 % 3] else pytest.param(*c, marks=pytest.mark.slow)
        for i, c in enumerate(RESUMED)
    ],
)
def test_a_resumed_run_ends_as_one_that_never_stopped(items, tmp_path, name, how, at):
    rates = {"proxy_rate": 10.0, "concentration_rate": 10.0, "temperature_rate": 1.0}
    changes = {"llr_nce": {"hidden": 8}, "el_nivmf": rates}.get(name, {})
    whole = build(name, **changes)
    torch.manual_seed(7)
    fit(whole, items, LABELS, Options(seed=3), name=name)
    broken, before = build(name, **changes), signal.getsignal(signal.SIGINT)
    torch.manual_seed(7)
    with pytest.raises(SystemExit if how == "killed" else KeyboardInterrupt):
        fit(broken, items, LABELS, Options(seed=3), name=name, folder=tmp_path, logger=Interrupting(at, how))
    assert signal.getsignal(signal.SIGINT) is before  # that of Python, or of a shell whose background jobs ignore it
    resumed = build(name, seed=99, **changes)
    fit(resumed, items, LABELS, Options(seed=3, resume=True), name=name, folder=tmp_path)
    assert equal(weights(whole), weights(resumed))
    assert not equal(weights(whole), weights(broken))


@pytest.mark.parametrize("at", [7, 14])
def test_moments_of_a_network_in_channels_last_go_on(tmp_path, at):
    """Of the default backbone and optimizer; matrices, all that the other networks here have, have one layout."""
    images = torch.rand(len(LABELS), 1, 16, 48, generator=torch.Generator().manual_seed(0))
    schedule = Schedule(epochs=3, classes_per_batch=4, images_per_class=3)

    def carried_out(seed=0, stop=0, **changes):
        torch.manual_seed(seed)
        backbone, method = small_cnn(), methods.load("cosface")
        training = method.build(backbone, FEATURES, CLASSES, method.settings(dim=6, schedule=schedule))
        assert any(not p.is_contiguous() for p in training.model.parameters())
        with pytest.raises(KeyboardInterrupt) if stop else nullcontext():
            logger = Interrupting(stop, "Ctrl-C")
            fit(training, images, LABELS, Options(resume=seed > 0), logger=logger, **changes)
        return weights(training)

    whole = carried_out()
    carried_out(stop=at, folder=tmp_path)
    assert equal(whole, carried_out(99, folder=tmp_path))


@dataclass
class Rates(Interrupting):
    """Keeps the learning rates of all groups after each epoch."""

    found: list = field(default_factory=list)

    def epoch_ends(self, stage, epoch, optimizer, probe, validation):
        self.found.append([group["lr"] for group in optimizer.param_groups])


@pytest.mark.parametrize("decay", ["step", "one_cycle"])
def test_a_resumed_run_goes_on_with_its_rates_its_best_epoch_and_its_patience(items, tmp_path, decay):
    """The first epoch stays the best one, and the fourth is the last that patience allows."""
    schedule = Schedule(epochs=9, lr=1e-2, decay=decay, every=2, classes_per_batch=4, images_per_class=3)
    values, options = [0.9, 0.2, 0.5, 0.4, 0.3], Options(seed=3, patience=2)

    def carried_out(stop, values, seed=0, **changes):
        training, logger, seen = build("cosface", seed, schedule=schedule), Rates(stop, "killed"), iter(values)
        torch.manual_seed(7)
        given = {"validate": lambda model: next(seen), "logger": logger}
        with pytest.raises(SystemExit) if stop else nullcontext():
            fit(training, items, LABELS, replace(options, resume=not stop and seed > 0), **given, **changes)
        return weights(training), logger.found, [*seen]

    whole, rates, unseen = carried_out(0, values)
    assert unseen == [0.3] and rates[0] != rates[2]
    _, before, left = carried_out(15, values, folder=tmp_path)  # in the third epoch
    resumed, after, unseen = carried_out(0, left, seed=99, folder=tmp_path)
    assert equal(whole, resumed) and before + after == rates and (len(before), unseen) == (2, [0.3])


def test_a_stage_ends_with_its_best_epoch_and_stops_without_hope(items, tmp_path):
    values, seen = iter([0.3, 0.2, 0.5, 0.4, 0.1, 0.9]), []
    training = build("triplet")
    stage = training.stages[0]
    long = Stage(stage.name, Schedule(epochs=20, classes_per_batch=4), stage.groups, stage.loss)

    def validate(model):
        seen.append(weights(training))
        return next(values)

    fit(
        Training(training.model, training.criterion, (long,)),
        items,
        LABELS,
        Options(patience=1),
        folder=tmp_path,
        validate=validate,
    )
    assert len(seen) == 5  # training stops after two epochs below 0.5, one more than patience allows
    assert equal(weights(training), seen[2])
    other = build("triplet", seed=5)
    both = nn.ModuleDict({"model": other.model, "criterion": other.criterion})
    about, held = checkpoint.load_tensors(tmp_path / "best.safetensors")
    both.load_state_dict(held)
    assert about["validation"] == 0.5
    assert equal(weights(other), seen[2])


def test_of_equal_validations_the_last_epoch_stays(items, tmp_path):
    """As beside means that do not learn, judged by cosine; NaN is below all."""
    for number, values in enumerate(([0.4, 0.4, 0.4], [float("nan"), 0.1, 0.4], [0.4, float("nan"), 0.4])):
        training, told = build("triplet"), iter(values)
        fit(
            training,
            items,
            LABELS,
            Options(patience=0),
            folder=tmp_path / str(number),
            validate=lambda model, told=told: next(told),
        )
        assert [*told] == ([0.4] if values[1] != values[1] else []), values  # a NaN is an epoch without hope
        plain = build("triplet")
        fit(plain, items, LABELS)
        assert equal(weights(training), weights(plain)) == (values[1] == values[1])


def test_a_run_that_dies_in_the_next_stage_has_the_best_of_this_one(items, tmp_path, monkeypatch):
    """The first epoch of a stage overwrites the best weights of the stage before, and dies before its state is kept."""
    values = [0.1, 0.5, 0.2, 0.3, 0.4, 0.6]

    def carried_out(values, resume=False, seed=0, **changes):
        training, told = build("dul_reg", seed), iter(values)
        torch.manual_seed(7)
        fit(training, items, LABELS, Options(resume=resume), validate=lambda model: next(told), **changes)
        return weights(training)

    whole = carried_out(values)
    keep, kept = checkpoint.Checkpointer.keep_best, []

    def dying(self, at, value):
        keep(self, at, value)
        kept.append(value)
        if value == 0.3:
            raise SystemExit

    monkeypatch.setattr(checkpoint.Checkpointer, "keep_best", dying)
    with pytest.raises(SystemExit):
        carried_out(values, folder=tmp_path)
    monkeypatch.undo()
    assert kept == [0.1, 0.5, 0.3]
    assert equal(carried_out(values[3:], True, 99, folder=tmp_path), whole)


class Images:
    """A data set that draws, in the passes of training alone."""

    def __init__(self, items, noise=0.0):
        self.items, self.noise = items, noise

    def __len__(self):
        return len(self.items)

    def __getitem__(self, row):
        return self.items[row] + self.noise * torch.randn(WIDTH)

    def augmented(self):
        return Images(self.items, 0.5)


@pytest.mark.parametrize(("name", "at"), [("mc_dropout", 3), ("mc_dropout", 14), ("dul_reg", 7), ("pfe", 14)])
def test_a_resumed_run_draws_what_one_that_never_stopped_draws(items, tmp_path, name, at):
    """Of images, of features that are dropped, and of what a backbone that does not learn makes of images."""

    def carried_out(data, seed=0, stop=0, **changes):
        training = build(name, seed)
        torch.manual_seed(7)
        with pytest.raises(KeyboardInterrupt) if stop else nullcontext():
            fit(
                training, data, LABELS, Options(seed=3, resume=seed > 0), logger=Interrupting(stop, "Ctrl-C"), **changes
            )
        return weights(training)

    whole = carried_out(Images(items))
    carried_out(Images(items), stop=at, folder=tmp_path)
    assert equal(whole, carried_out(Images(items), 99, folder=tmp_path))
    assert not equal(whole, carried_out(items))  # of which nothing is drawn


class Modes(NullLogger):
    """Keeps how all modules of a stage stand at each step."""

    def __init__(self, training):
        self.modules, self.found = [*training.model.modules(), *training.criterion.modules()], {}

    def epoch_begins(self, stage, epoch, batches, done):
        self.stage = stage.name

    def step(self, terms, items):
        self.found.setdefault(self.stage, []).append([module.training for module in self.modules])


@pytest.mark.parametrize("name", sorted({*methods.NAMES} - {"text_to_image"}))
def test_what_drops_and_normalises_does_so_at_every_step(items, name):
    """Whatever looks at the model between epochs."""
    known = methods.load(name).settings.__dataclass_fields__
    training = build(name, **{key: 1.0 for key in known if key.endswith("_rate")})
    logger = Modes(training)
    fit(training, items, LABELS, logger=logger)
    assert all(at == steps[0] for steps in logger.found.values() for at in steps)
    assert any(any(steps[0]) for steps in logger.found.values())


def test_what_was_warned_of_before_an_interruption_is_told_at_the_end(tmp_path):
    same = torch.ones(len(LABELS), WIDTH)  # no item can be told from another
    whole = fit(build("cosface"), same, LABELS, Options(seed=3))
    with pytest.raises(KeyboardInterrupt):
        fit(build("cosface"), same, LABELS, Options(seed=3), folder=tmp_path, logger=Interrupting(17, "Ctrl-C"))
    assert whole and fit(build("cosface"), same, LABELS, Options(seed=3, resume=True), folder=tmp_path) == whole


def test_a_folder_is_made_and_a_state_in_it_is_resumed_as_it_began(items, tmp_path):
    folder, longer = tmp_path / "new" / "run", Schedule(epochs=9, lr=1e-2, classes_per_batch=4, images_per_class=3)
    fit(build("cosface"), items, LABELS, folder=f"{folder}")
    before = (folder / "state.safetensors").read_bytes()
    with pytest.raises(ValueError, match=r"fit: folder is .*run, which holds a state: Options\(resume=True\) goes on"):
        fit(build("cosface"), items, LABELS, folder=folder)
    with pytest.raises(ValueError, match=r"a run goes on as it began: CosFace.epochs is 9, expected \d+"):
        fit(build("cosface", schedule=longer), items, LABELS, Options(resume=True), folder=folder)
    assert (folder / "state.safetensors").read_bytes() == before
    fit(build("cosface"), items, LABELS, Options(resume=True), folder=folder)


def test_a_bar_at_its_end_does_not_say_that_no_time_is_left(items):
    shown, logger = [], ConsoleLogger()
    show = progress_bar.ProgressBar.show
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(progress_bar.ProgressBar, "show", lambda bar, *of: shown.append(of[1]) or show(bar, *of))
        fit(build("cosface"), items, LABELS, logger=logger)
    assert shown[-1].startswith("judging the last epoch") and not any("judging" in text for text in shown[:-1])
    bar = progress_bar.ProgressBar("work", total=1000)
    bar.show(999, "")
    assert bar.line() == "work: 99 %, "


def test_a_checkpoint_of_something_else_is_refused(items, tmp_path):
    fit(build("cosface"), items, LABELS, name="cosface", folder=tmp_path)
    again = Options(resume=True)
    with pytest.raises(ValueError, match=r"is of method 'cosface', seed 0, expected method 'arcface', seed 0"):
        fit(build("arcface"), items, LABELS, again, name="arcface", folder=tmp_path)
    with pytest.raises(ValueError, match="expected method 'cosface', seed 1"):
        fit(build("cosface"), items, LABELS, Options(resume=True, seed=1), name="cosface", folder=tmp_path)
    with pytest.raises(ValueError, match=r"criterion.weight has shape \(12, 6\), expected \(12, 7\)"):
        fit(build("cosface", dim=7), items, LABELS, again, name="cosface", folder=tmp_path)
    (tmp_path / "state.safetensors").write_bytes(b"nothing")
    with pytest.raises(ValueError, match=r"is no .safetensors file"):
        fit(build("cosface"), items, LABELS, again, name="cosface", folder=tmp_path)
    checkpoint.save_weights(tmp_path / "state.safetensors", nn.Linear(1, 1), {"some": 1})
    with pytest.raises(ValueError, match="is not the state of a run"):
        fit(build("cosface"), items, LABELS, again, name="cosface", folder=tmp_path)


def test_a_full_disk_leaves_the_state_before(items, tmp_path, monkeypatch):
    with pytest.raises(KeyboardInterrupt):
        fit(build("cosface"), items, LABELS, folder=tmp_path, logger=Interrupting(7, "Ctrl-C"))
    good = (tmp_path / "state.safetensors").read_bytes()

    def full(tensors, path, metadata):
        path.write_bytes(b"half")
        raise SafetensorError("I/O error: No space left on device (os error 28)")

    monkeypatch.setattr(checkpoint, "save_file", full)
    with pytest.raises(OSError, match=r"state.safetensors: cannot be written: .*No space left on device"):
        fit(build("cosface"), items, LABELS, Options(resume=True), folder=tmp_path)
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("state.safetensors", good)]


# -- what is said ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("together", [1, 3, 1000])
def test_a_loss_that_is_not_finite_names_its_term_and_keeps_the_last_good_state(items, tmp_path, monkeypatch, together):
    monkeypatch.setattr("peaccel.train.loop._read_together", lambda device: together)
    training = build("dul_cls")
    stage = training.stages[0]

    def poisoned(batch: Batch, step):
        terms = dict(stage.loss(batch, step))
        return terms | {"kl": terms["kl"] * float("nan")} if step.number == 9 else terms

    bad = Stage(stage.name, stage.schedule, stage.groups, poisoned)
    with pytest.raises(FloatingPointError, match=r"kl is nan at stage 'DUL-cls', epoch 2, batch 4 \(rows \["):
        fit(Training(training.model, training.criterion, (bad,)), items, LABELS, name="x", folder=tmp_path)
    read = build("dul_cls", seed=8)
    checkpointer = checkpoint.Checkpointer(
        tmp_path, nn.ModuleDict({"model": read.model, "criterion": read.criterion}), True
    )
    assert checkpointer.resume(checkpoint.TrainingState("x", 0)).epoch == 1
    assert all(torch.isfinite(x).all() for x in weights(read).values())


@pytest.mark.parametrize("together", [1, 1000])
def test_items_that_are_not_finite_are_named_by_the_loss_that_meets_them(items, monkeypatch, together):
    monkeypatch.setattr("peaccel.train.loop._read_together", lambda device: together)
    training = build("pfe")
    stage = training.stages[1]

    def diverged(batch: Batch, step):
        if step.number == 9:
            with torch.no_grad():
                next(training.model[1].uncertainty.parameters()).fill_(float("nan"))
        return stage.loss(batch, step)

    bad = replace(stage, loss=diverged)
    message = r"^fit: NegativeMLS: the loss is nan: Normal: var is not finite in row 0 at stage 'PFE', epoch 2, batch"
    with pytest.raises(FloatingPointError, match=message):
        fit(replace(training, stages=(bad,)), items, LABELS, name="x")


WAITS = {
    "item",
    "__bool__",
    "__int__",
    "__float__",
    "__index__",
    "tolist",
    "cpu",
    "numpy",
    "nonzero",
    "equal",
    "allclose",
}


class Waits(TorchFunctionMode):
    """Counts the calls that wait for the stand-in of a GPU: reads of its values, and copies of pageable memory."""

    def __init__(self):
        super().__init__()
        self.seen, self.pinned = [], []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs, name = kwargs or {}, getattr(func, "__name__", "")
        if name == "pin_memory":
            self.pinned.append(args[0])
        there = args and isinstance(args[0], OnGpu)
        if there and name in WAITS:
            self.seen.append(name)
        sends = name in ("to", "cuda") and args and not there and "cuda" in str((args[1:], kwargs))
        if sends and not (kwargs.get("non_blocking") and any(x is args[0] for x in self.pinned)):
            self.seen.append("a copy")
        return func(*args, **kwargs)


@pytest.mark.parametrize(
    "name", ["cosface", "hib", "triplet", "bayesian_triplet", "llr_nce", "contrastive", "proxy_anchor"]
)
def test_a_step_does_not_wait_for_a_gpu(items, monkeypatch, name):
    """Of as many steps as are read together: labels are checked on the host, and batches sent while it goes on."""
    monkeypatch.setattr(loop, "SECONDS", 1e9)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    training, waits = build(name), Waits()
    for module in (*training.model.modules(), *training.criterion.modules()):
        for key, x in module._parameters.items():
            if x is not None:
                module._parameters[key] = nn.Parameter(on_gpu(x.detach()), x.requires_grad)
    stage, rng = training.stages[0], np.random.default_rng(0)
    with stand_in(monkeypatch):
        there, report = sent(LABELS, torch.device("cuda", 0)), loop._Report(stage, NullLogger(), 1, loop.STEPS)
        with waits:
            for number in range(loop.STEPS):
                rows = next(balanced(LABELS, stage.schedule, rng))
                batch, at = (
                    loop._batch(items[rows], rows, LABELS, there),
                    checkpoint.TrainingState(name, 0, step=number),
                )
                assert isinstance(batch.inputs, OnGpu) and isinstance(batch.labels, OnGpu)
                step, at = loop.Step(number, loop.STEPS, 1), checkpoint.TrainingState(name, 0, step=number)
                report.add(loop._StageLoss(training.model, stage), batch, step, at, rows).backward()
    assert waits.seen == ["cpu"]


def test_steps_that_are_read_together_are_reported_one_by_one(items, monkeypatch):
    """As on a GPU, where each reading waits."""

    @dataclass
    class Kept(NullLogger):
        found: list = field(default_factory=list)
        epochs: list = field(default_factory=list)

        def step(self, terms, items):
            self.found.append((items, {name: float(x) for name, x in terms.items()}))

        def epoch_ends(self, *_):
            self.epochs.append(len(self.found))

    runs = []
    for together in (1, 3, 1000):
        monkeypatch.setattr("peaccel.train.loop._read_together", lambda device, together=together: together)
        training = build("dul_cls")
        fit(training, items, LABELS, logger=(logger := Kept()))
        runs.append((logger.found, logger.epochs, weights(training)))
    (found, epochs, trained), *others = runs
    assert len(found) == epochs[-1] > len(epochs) > 1 and found[0][1].keys() == {"arcface", "kl"}
    for other in others:
        assert other[:2] == (found, epochs)
        assert all(torch.equal(x, trained[name]) for name, x in other[2].items())


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (LABELS[:-1], r"labels are int64 of shape \(71,\), expected integers of \(72,\)"),
        (LABELS * 1.0, "labels are float64"),
        (LABELS - 1, "labels are empty or negative"),
        (np.where(LABELS == 3, 4, LABELS), "class 3 has no item, expected labels without gaps in 0 .. 11"),
    ],
)
def test_labels_that_do_not_fit_are_named(items, labels, message):
    with pytest.raises(ValueError, match=message):
        fit(build("cosface"), items, labels)


def test_a_class_with_one_item_trains(items):
    labels = np.r_[LABELS[:-1], CLASSES]
    for name in ("cosface", "pfe", "triplet", "hib"):
        method = methods.load(name)
        torch.manual_seed(0)
        short = Schedule(epochs=1, classes_per_batch=4)
        schedules = {
            k: short for k, f in method.settings.__dataclass_fields__.items() if isinstance(f.default, Schedule)
        }
        training = method.build(nn.Identity(), WIDTH, CLASSES + 1, method.settings(dim=4, **schedules))
        fit(training, items, labels)
        assert np.isfinite(embed(training.model, items).mu).all()


@pytest.mark.parametrize("at", [10, 12])  # of 6 batches an epoch
def test_the_line_of_an_epoch_that_was_interrupted_has_no_losses(items, tmp_path, at):
    """Those of the batches before are gone, and the mean of the others would be another."""

    class Stopped(ConsoleLogger):
        steps = 0

        def step(self, terms, items):
            super().step(terms, items)
            self.steps += 1
            if self.steps == at:
                os.kill(os.getpid(), signal.SIGINT)

    def lines(folder):
        found = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
        return [{name: x for name, x in line.items() if "second" not in name} for line in found], found

    for name in ("whole", "stopped"):
        (tmp_path / name).mkdir()
    fit(build("cosface"), items, LABELS, folder=tmp_path / "whole", logger=ConsoleLogger(tmp_path / "whole"))
    stopped = tmp_path / "stopped"
    with pytest.raises(KeyboardInterrupt):
        fit(build("cosface"), items, LABELS, folder=stopped, logger=Stopped(stopped))
    again = Options(resume=True)
    fit(build("cosface", seed=9), items, LABELS, again, folder=stopped, logger=ConsoleLogger(stopped))
    (whole, _), (found, seconds) = lines(tmp_path / "whole"), lines(stopped)
    assert [line["epoch"] for line in found] == [1, 2, 3]
    del whole[1]["cosface"]
    assert found == whole and ["seconds" in line for line in seconds] == [True, False, True]


def test_a_run_leaves_a_line_an_epoch_and_says_when_a_branch_is_dead(items, tmp_path, capsys):
    training = build("cosface")
    fit(training, items, LABELS, folder=tmp_path, logger=ConsoleLogger(tmp_path, "run: "), validate=lambda model: 0.25)
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert [line["epoch"] for line in lines] == [1, 2, 3] and lines[0]["best_validation"] == 0.25
    assert {"stage", "cosface", "lr", "items_per_second", "seconds"} <= lines[0].keys()
    assert "does not tell" not in capsys.readouterr().err

    training = build("dul_reg")
    only_means = Training(training.model, training.criterion, training.stages[:1])
    with torch.no_grad():
        training.model[1].uncertainty.layers[-1].weight.zero_()
    fit(only_means, items, LABELS, folder=tmp_path / "dead", logger=ConsoleLogger(tmp_path, "run: "))
    told = " ".join(capsys.readouterr().err.split())
    assert "run: var is 1 for every item" in told and "does not tell sure from unsure items" in told


def test_embedding_leaves_the_mode_as_it_was(items):
    training = build("mc_dropout", passes=5)
    training.model.train()
    d = embed(training.model, items, batch=7)
    assert isinstance(d, pe.Normal) and len(d) == len(items) and training.model.training
    assert all(part.training for part in training.model.modules())
    assert np.array_equal(d.mu, embed(training.model, items, batch=7).mu)
