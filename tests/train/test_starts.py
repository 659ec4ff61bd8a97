"""Starts of the stages of methods: what the first batch of training will see."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from rows import CLASSES, FEATURES, IMAGES, LABELS, ROWS, TRAINS, build, everything
from torch import nn

from peaccel.heads import PointHead
from peaccel.methods.method import Batch, Group, Stage, Training
from peaccel.methods.parts import class_directions
from peaccel.train import fit


def values(training):
    """All numbers of a method but running averages; logarithms as what they are of."""
    state = everything(training).state_dict().items()
    return {k: x.exp() if "log_" in k else x.clone() for k, x in state if "running" not in k and "batches" not in k}


def at_each_stage(training, see):
    """The training that calls `see` with a stage and its batches before the last step of an epoch."""

    def seeing(stage):
        batches = []

        def loss(batch, step):
            batches.append(batch)
            if step.number == step.of - 1:
                with torch.no_grad():
                    see(stage, batches)
            return stage.loss(batch, step)

        return replace(stage, loss=loss)

    return replace(training, stages=tuple(seeing(stage) for stage in training.stages))


STARTS = [row for row in ROWS if any(stage.start for stage in build(row)[2].stages)]


@pytest.mark.parametrize("row", STARTS)
def test_what_a_start_fits_is_what_it_would_be_on_training_batches(row):
    _, _, training = build(row)
    fresh, found = values(training), []

    def again(stage, batches):
        started = values(training)
        for earlier in (s for s in training.stages if s.start and s.schedule.epochs == 0):
            earlier.start(replace(batch, inputs=IMAGES[batch.rows]) for batch in batches)
        if stage.start:
            stage.start(batches)
        found.append((started, values(training)))

    fit(at_each_stage(training, again), IMAGES, LABELS)
    for started, fitted in found:
        for name, x in started.items():
            assert (x - fitted[name]).norm() <= 0.1 * fitted[name].norm() + 1e-9, name
    moved = {name for name, x in found[-1][0].items() if not torch.allclose(x, fresh[name], rtol=1e-3)}
    assert moved, "no start fits anything"


@pytest.mark.parametrize("row", STARTS)
def test_a_start_is_of_all_items_however_they_are_cut_into_batches(row):
    """In evaluation mode, where no statistics are of a batch; the first batch is of two classes alone."""
    found = []
    for cuts in ((), (50, 170, 300)):
        training = build(row)[2]
        everything(training).eval()
        with torch.no_grad():
            for stage in (stage for stage in training.stages if stage.start):
                parts = [torch.from_numpy(rows) for rows in np.split(np.arange(len(LABELS)), cuts)]
                inputs = stage.frozen(IMAGES) if stage.frozen else IMAGES
                stage.start(Batch(inputs[rows], torch.from_numpy(LABELS)[rows], rows) for rows in parts)
        found.append(values(training))
    for name, x in found[0].items():
        assert torch.allclose(x, found[1][name], rtol=1e-4, atol=1e-6), name


def on_training_batches(row, see):
    """The result of `see` on a training, its settings and the distributions of its first batches."""
    _, settings, training = build(row, dropout=0.5)
    found = []

    def now(stage, batches):
        inputs = [batch.inputs for batch in batches]
        modules = training.model[1:] if stage.frozen else training.model
        found.append(see(training, settings, [modules(x) for x in inputs], [batch.labels for batch in batches]))

    fit(at_each_stage(training, now), IMAGES, LABELS)
    return found[0]


def length_over_asked(training, settings, seen, labels):
    return torch.cat([d.kappa for d in seen]).mean() / settings.norm


def slope_by_size(training, settings, seen, labels):
    return training.criterion.log_a.exp() * torch.cat([d.mu for d in seen]).abs().mean()


def items_over_classes(training, settings, seen, labels):
    return torch.cat([d.kappa[:, None] * d.mu for d in seen]).abs().mean() / training.criterion.spread


def cosine_of_class_means(training, settings, seen, labels):
    mu, labels = torch.cat([d.mu for d in seen]), torch.cat(labels)
    means = torch.stack([mu[labels == c].mean(0) for c in range(CLASSES)])
    weights = next(x for name, x in training.criterion.named_parameters() if name.endswith(("weight", "directions")))
    return torch.nn.functional.cosine_similarity(means, weights).mean()


QUANTITIES = [
    *((row, length_over_asked) for row in ("el_nivmf", "el_vmf", "nivmf", "l2_nca", "panc_el_nivmf")),
    *((row, cosine_of_class_means) for row in ("el_nivmf", "vmf_fl", "scaleface", "scaleface_end_to_end", "scf")),
    ("hib", slope_by_size),
    ("vmf_loss", items_over_classes),
]


@pytest.mark.parametrize(("row", "quantity"), QUANTITIES)
def test_training_begins_at_the_scale_that_was_asked_for(row, quantity):
    """Of rows with dropout, which makes them longer and leaves the means of classes where they are."""
    assert on_training_batches(row, quantity) == pytest.approx(1, rel=0.1)


def directions(backbone, epochs=1):
    """The class directions from which a stage on a backbone starts, and the backbone's running averages then."""
    weight, found = nn.Parameter(torch.randn(CLASSES, FEATURES)), []

    def loss(batch, step):
        found.append((weight.clone(), {k: x.clone() for k, x in backbone.state_dict().items()}))
        return {"zero": 0 * (weight.sum() + backbone(batch.inputs).sum())}

    schedule = replace(TRAINS, epochs=epochs)
    stage = Stage("s", schedule, (Group((backbone,)), Group((weight,))), loss, start=class_directions(backbone, weight))
    fit(
        Training(nn.Sequential(backbone, PointHead(nn.Identity())), nn.ParameterList([weight]), (stage,)),
        IMAGES,
        LABELS,
    )
    return found[0] if found else (weight, None)


def test_a_start_sees_batches_as_the_next_stage_that_trains_deals_them():
    """Whatever its own stage would deal, which has no epochs: normalisation is by batches of that size."""
    weight, seen = nn.Parameter(torch.ones(1)), []

    def loss(batch, step):
        return {"zero": 0 * weight.sum()}

    def start(batches):
        seen.extend(batch.rows for batch in batches)

    none, groups = replace(TRAINS, epochs=0, classes_per_batch=2), (Group((weight,)),)
    stages = Stage("none", none, groups, loss, start=start), Stage("trains", TRAINS, groups, loss)
    fit(Training(PointHead(nn.Flatten()), nn.ParameterList([weight]), stages), IMAGES, LABELS)
    assert [len(rows) for rows in seen] == [96] * 4 and len(torch.cat(seen).unique()) == len(LABELS)


def test_a_start_moves_no_running_average():
    backbone = build("cosface")[2].model[0]
    before = {name: x.clone() for name, x in backbone.state_dict().items()}
    _, after = directions(backbone)
    assert after.keys() == before.keys() and all(torch.equal(after[name], x) for name, x in before.items())
    assert backbone[2].track_running_stats and backbone[2].num_batches_tracked > 0  # steps move them again


class Frozen(nn.Sequential):
    """A network whose normalisation stays as it is, as `create(frozen_bn=True)` keeps it."""

    def train(self, mode=True):
        super().train(mode)
        self[2].eval()
        return self


def test_frozen_normalisation_stays_frozen_in_a_start():
    """And all of it in evaluation mode where nothing will be trained."""
    backbone = build("cosface")[2].model[0]
    backbone.eval()
    with torch.no_grad():
        backbone[2].running_mean.add_(0.1)
        features = backbone(IMAGES)
    means = torch.stack([features[torch.from_numpy(LABELS) == c].mean(0) for c in range(CLASSES)])
    expected = nn.functional.normalize(means)
    for module, epochs in ((Frozen(*backbone), 1), (backbone, 0)):
        assert torch.allclose(directions(module, epochs)[0], expected, atol=1e-5)
    assert not torch.allclose(directions(backbone)[0], expected, atol=0.05)
