"""How methods are wired: what each stage starts from, what learns in it and how fast, and which draws are new."""

import re
from dataclasses import fields, is_dataclass, replace
from typing import Literal, get_args, get_origin, get_type_hints

import numpy as np
import pytest
import torch
from torch import nn

from peaccel import train
from peaccel.heads import PointHead
from peaccel.methods.parts import class_directions
from peaccel.methods.records import Batch, Group, Schedule, Stage, Step, Training
from peaccel.train import fit
from peaccel.train.updating import optimizer_of

ROWS = [row for row in train.RECIPES if row != "text_to_image"]
CLASSES, EACH, FEATURES, DIM = 12, 32, 12, 8
LABELS = np.repeat(np.arange(CLASSES), EACH)  # sorted: rows side by side are of few classes, unlike those of a batch
TRAINS = Schedule(epochs=1, lr=1e-12, decay="constant", classes_per_batch=48, images_per_class=2)
"""Steps that are made, and move nothing."""


@pytest.fixture(scope="module")
def images():
    """Little pictures of classes; their pixels vary by a tenth, as those of an image that is mostly background."""
    rng = np.random.default_rng(0)
    pixels = 0.1 * (rng.normal(size=(CLASSES, 1, 4, 4))[LABELS] + 0.5 * rng.normal(size=(len(LABELS), 1, 4, 4)))
    return torch.tensor(0.3 + pixels, dtype=torch.float32)


def changed(settings, over, path=""):
    """Settings, nested, with `over` asked for each of their fields: its dotted name, its value -> the new value."""
    known = {f.name: getattr(settings, f.name) for f in fields(settings)}
    new = {
        name: changed(x, over, f"{path}{name}.") if is_dataclass(x) and not isinstance(x, Schedule) else x
        for name, x in known.items()
    }
    return replace(settings, **{name: over(path + name, x) for name, x in new.items()})


def build(row, over=lambda name, value: value, dropout=0.0):
    """A row on a small network with batch normalisation; stages that only classify have no epochs."""

    def short(name, value):
        if isinstance(value, Schedule):
            value = replace(TRAINS, epochs=int(name != "classify"))
        return over(name, {"dim": DIM}.get(name, value))

    method, settings = train.recipe(row, "mnist")
    settings = changed(settings, short)
    torch.manual_seed(0)
    linear, norm = nn.Linear(16, FEATURES), nn.BatchNorm1d(FEATURES)
    backbone = nn.Sequential(nn.Flatten(), linear, norm, nn.ReLU(), nn.Dropout(dropout))
    return method, settings, method.build(backbone, FEATURES, CLASSES, settings)


def everything(training):
    return nn.ModuleDict({"model": training.model, "criterion": training.criterion})


# -- what training starts from -----------------------------------------------------------------------------------------


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
def test_what_a_start_fits_is_what_it_would_be_on_training_batches(images, row):
    _, _, training = build(row)
    fresh, found = values(training), []

    def again(stage, batches):
        started = values(training)
        for earlier in (s for s in training.stages if s.start and s.schedule.epochs == 0):
            earlier.start(replace(batch, inputs=images[batch.rows]) for batch in batches)
        if stage.start:
            stage.start(batches)
        found.append((started, values(training)))

    fit(at_each_stage(training, again), images, LABELS)
    for started, fitted in found:
        for name, x in started.items():
            assert (x - fitted[name]).norm() <= 0.1 * fitted[name].norm() + 1e-9, name
    moved = {name for name, x in found[-1][0].items() if not torch.allclose(x, fresh[name], rtol=1e-3)}
    assert moved, "no start fits anything"


def on_training_batches(row, images, see):
    """What `see` makes of a training, its settings and the distributions that its first batches become."""
    _, settings, training = build(row, dropout=0.5)
    found = []

    def now(stage, batches):
        inputs = [batch.inputs for batch in batches]
        modules = training.model[1:] if stage.frozen else training.model
        found.append(see(training, settings, [modules(x) for x in inputs], [batch.labels for batch in batches]))

    fit(at_each_stage(training, now), images, LABELS)
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
def test_training_begins_at_the_scale_that_was_asked_for(images, row, quantity):
    """Of rows with dropout, which makes them longer and leaves the means of classes where they are."""
    assert on_training_batches(row, images, quantity) == pytest.approx(1, rel=0.1)


def directions(backbone, images, epochs=1):
    """The class directions from which a stage on a backbone starts, and the backbone's running averages then."""
    weight, found = nn.Parameter(torch.randn(CLASSES, FEATURES)), []

    def loss(batch, step):
        found.append((weight.clone(), {k: x.clone() for k, x in backbone.state_dict().items()}))
        return {"zero": 0 * (weight.sum() + backbone(batch.inputs).sum())}

    schedule = replace(TRAINS, epochs=epochs)
    stage = Stage("s", schedule, (Group((backbone,)), Group((weight,))), loss, start=class_directions(backbone, weight))
    fit(
        Training(nn.Sequential(backbone, PointHead(nn.Identity())), nn.ParameterList([weight]), (stage,)),
        images,
        LABELS,
    )
    return found[0] if found else (weight, None)


def test_a_start_moves_no_running_average(images):
    backbone = build("cosface")[2].model[0]
    before = {name: x.clone() for name, x in backbone.state_dict().items()}
    _, after = directions(backbone, images)
    assert after.keys() == before.keys() and all(torch.equal(after[name], x) for name, x in before.items())
    assert backbone[2].track_running_stats and backbone[2].num_batches_tracked > 0  # steps move them again


class Frozen(nn.Sequential):
    """A network whose normalisation stays as it is, as `create(frozen_bn=True)` keeps it."""

    def train(self, mode=True):
        super().train(mode)
        self[2].eval()
        return self


def test_frozen_normalisation_stays_frozen_in_a_start(images):
    """And all of it in evaluation mode where nothing will be trained."""
    backbone = build("cosface")[2].model[0]
    backbone.eval()
    with torch.no_grad():
        backbone[2].running_mean.add_(0.1)
        features = backbone(images)
    means = torch.stack([features[torch.from_numpy(LABELS) == c].mean(0) for c in range(CLASSES)])
    expected = nn.functional.normalize(means)
    for module, epochs in ((Frozen(*backbone), 1), (backbone, 0)):
        assert torch.allclose(directions(module, images, epochs)[0], expected, atol=1e-5)
    assert not torch.allclose(directions(backbone, images)[0], expected, atol=0.05)


# -- what learns, and how fast -----------------------------------------------------------------------------------------


def is_rate(name):
    return name == "rate" or name.endswith((".rate", "_rate"))


def parameters(training):
    """All parameters by the part of the method that they are of, each by its own name."""
    found = {}
    for name, p in everything(training).named_parameters():
        side, own = name.split(".", 1)
        own = own.lstrip("0123456789.")
        part = next((part for part in ("uncertainty", "mean", "layers") if f".{part}." in name), "backbone")
        part = {"layers": "fresh head"}.get(part, own) if side == "criterion" else part
        found.setdefault(part, {})[id(p)] = name
    return found


def told(found, ids):
    """The parts of which these are all parameters; what is left, each by its name."""
    whole = [part for part, own in found.items() if own.keys() <= ids]
    left = ids - {p for part in whole for p in found[part]}
    return " ".join(whole + sorted(own[p] for own in found.values() for p in own.keys() & left))


def wiring(row):
    """A line for each stage of a row whose rates are 2, 3, 5 in their settings' order, at lr 1 and weight decay 0.1."""
    primes = iter((2, 3, 5))

    def over(name, value):
        if isinstance(value, Schedule):
            return replace(value, lr=1.0, weight_decay=0.1)
        return next(primes) if is_rate(name) else value

    _, _, training = build(row, over)
    found = parameters(training)
    for stage in training.stages:
        told_of, left = [], {p for own in found.values() for p in own}
        for group in optimizer_of(stage).param_groups:
            ids = {id(p) for p in group["params"]}
            told_of.append(f"{told(found, ids)} {group['lr']:g}{'' if group['weight_decay'] else ' undecayed'}")
            assert len(ids) == len(group["params"]) and ids <= left, "a parameter is in two groups"
            left -= ids
        fixed = f"; fixed {told(found, left)}" if left else ""
        yield f"  {'starts, ' * bool(stage.start)}{'features, ' * bool(stage.frozen)}{', '.join(told_of)}{fixed}"


WIRING = """
arcface cosface magface
  backbone mean 1, weight 2
b_vmf el_nivmf el_vmf kl_vmf l2_nca nivmf panc_el_nivmf
  starts, backbone mean 1, directions 2 undecayed, log_temperature 5 undecayed, log_concentration 3 undecayed
bayesian_triplet bayesian_triplet_vmf triplet_regression
  backbone mean uncertainty 1
contrastive mc_dropout multi_similarity triplet
  backbone mean 1
cos_nca
  starts, backbone mean 1, directions 2 undecayed, log_temperature 5 undecayed
dul_cls dul_cls_vmf
  backbone mean uncertainty 1, weight 2
dul_reg dul_reg_vmf
  starts, backbone mean 1, weight 2; fixed uncertainty
  starts, backbone mean uncertainty 1; fixed weight
dul_reg_cls dul_reg_cls_vmf
  starts, backbone mean 1, weight 2; fixed uncertainty fresh head
  backbone mean uncertainty 1, weight 2; fixed fresh head
  starts, backbone mean uncertainty 1; fixed weight fresh head
hib hib_diagonal
  starts, backbone mean uncertainty 1, log_a b 2
llr_nce
  starts, backbone mean 1, weight 2; fixed uncertainty log_prior_var prior_mean
  starts, features, uncertainty log_prior_var prior_mean 1; fixed backbone mean weight
llr_nce_joint
  starts, backbone mean 1, weight 2; fixed uncertainty log_prior_var prior_mean
  starts, backbone mean uncertainty log_prior_var prior_mean 1; fixed weight
margin_dws
  backbone mean 1, beta 2 undecayed
mls_nce pfe pfe_vmf scf scf_normal vmf_nce
  starts, backbone mean 1, weight 2; fixed uncertainty
  starts, features, uncertainty 1; fixed backbone mean weight
mu_scaleface scaleface
  starts, backbone mean 1, weight 2; fixed uncertainty
  features, uncertainty 1; fixed backbone mean weight
proxy_anchor proxy_nca
  backbone mean 1, weight 2 undecayed
scaleface_end_to_end
  starts, backbone mean 1, weight 2; fixed uncertainty
  backbone mean uncertainty 1, weight 2
vmf_fl vmf_fl_normal
  starts, backbone mean 1, weight 2, uncertainty 3
vmf_loss
  starts, backbone mean 1, weight 2, log_scale 3
"""


def test_what_learns_in_each_stage_how_fast_and_with_what_decay():
    rows = {}
    for row in ROWS:
        rows.setdefault("\n".join(wiring(row)), []).append(row)
    assert [f"{' '.join(of)}\n{lines}" for lines, of in rows.items()] == re.split(r"\n(?=\w)", WIRING.strip())


LEARNS_AT = {
    "classifier.rate": r"(0\.)?weight",
    "class_rate": "weight",
    "loss_rate": "weight|beta",
    "proxy_rate": r"(0\.)?directions",
    "concentration_rate": r"(0\.)?log_concentration",
    "temperature_rate": r"(0\.)?log_temperature",
    "match_rate": "log_a|b",
    "scale_rate": "log_scale",
    "uncertainty_rate": r"model\.1\.uncertainty.*",
}
"""What each setting called a rate is the learning rate of."""
OF_NOTHING = {
    "contrastive loss_rate", "mc_dropout loss_rate", "multi_similarity loss_rate", "triplet loss_rate",
    "cos_nca concentration_rate",
}  # fmt: skip
"""Of losses that learn nothing themselves, and of proxies without concentrations."""


@pytest.mark.parametrize("row", ROWS)
def test_every_rate_is_that_of_what_it_names_in_every_stage(row):
    asked = []
    build(row, lambda name, value: asked.append(name) if is_rate(name) and name not in asked else value)
    for rate in asked:

        def over(name, value, rate=rate):
            if isinstance(value, Schedule):
                return replace(value, lr=1.0)
            return float(1 + 6 * (name == rate)) if is_rate(name) else value

        training = build(row, over)[2]
        known, found = {id(p): name for name, p in everything(training).named_parameters()}, {}
        for stage in training.stages:
            for group in optimizer_of(stage).param_groups:
                for p in group["params"]:
                    found.setdefault(known[id(p)].removeprefix("criterion."), set()).add(group["lr"])
        own = {name for name in found if re.fullmatch(LEARNS_AT[rate], name)}
        assert bool(own) == (f"{row} {rate}" not in OF_NOTHING)
        assert found == {name: {7.0 if name in own else 1.0} for name in found}, rate


@pytest.mark.parametrize("row", ROWS)
def test_a_step_of_adam_is_a_small_change_of_a_learned_scalar(row):
    """Adam's first steps are as long as its rate; scalars are logarithms, or thresholds and gains of about 1."""
    method, settings = train.recipe(row, "mnist")
    for stage in method.build(nn.Identity(), FEATURES, CLASSES, settings).stages:
        assert stage.schedule.optimizer == "adam"
        for group in optimizer_of(stage).param_groups:
            assert group["lr"] <= 0.05 or all(p.ndim for p in group["params"])


# -- draws, and what a score is made of --------------------------------------------------------------------------------

DRAW = {
    "dul_cls",
    "dul_cls_vmf",
    "dul_reg_cls",
    "dul_reg_cls_vmf",
    "el_nivmf",
    "panc_el_nivmf",
    "hib_diagonal",
    "vmf_loss",
}
DRAW |= {"margin_dws"}  # negatives, not embeddings
"""Rows whose loss draws; `hib` of isotropic normals is by quadrature."""


@pytest.mark.parametrize("row", ROWS)
def test_a_loss_draws_by_the_seed_of_its_step(images, row):
    _, _, training = build(row, lambda name, value: 0.0 if name == "feature_dropout" else value)
    images, labels = images[::16], torch.from_numpy(LABELS[::16])
    drawn = set()
    for stage in training.stages:
        with torch.no_grad():
            inputs = stage.frozen(images) if stage.frozen else images
        batch = Batch(inputs, labels, torch.arange(len(labels)))
        first, again, other = ([x.item() for x in stage.loss(batch, Step(0, 10, seed)).values()] for seed in (1, 1, 2))
        assert first == again
        drawn.add(first != other)
    assert (True in drawn) == (row in DRAW)


def test_the_score_of_hib_has_the_slope_and_the_offset_that_were_learned():
    _, settings, training = build("hib_diagonal")
    with torch.no_grad():
        training.criterion.log_a.fill_(0.7)
        training.criterion.b.fill_(-0.3)
    score = training.score(None, None)
    assert (score.params["a"], score.params["b"]) == pytest.approx((np.exp(0.7), -0.3))
    assert score.params["n"] == settings.n


# -- settings ----------------------------------------------------------------------------------------------------------


def other(settings, name, value):
    """Another value of a setting."""
    for part in name.split(".")[:-1]:
        settings = getattr(settings, part)
    hint = get_type_hints(type(settings))[name.split(".")[-1]]
    known = [x for side in (hint, *get_args(hint)) if get_origin(side) is Literal for x in get_args(side)]
    if known:
        return next(x for x in known if x != value)
    if isinstance(value, tuple):
        return tuple(other_number(x) for x in value)
    return 2 if value is None else other_number(value)


def other_number(x):
    return not x if isinstance(x, bool) else x + 1 if isinstance(x, int) else 0.7 * x + 0.01


def all_that_comes_of(row, images, over=lambda name, value: value):
    """What a row starts from, its losses, rates and distributions, on some images, in numbers."""
    _, _, training = build(row, over)
    labels = torch.from_numpy(LABELS[::16])
    found = [len(training.stages), *(stage.batches is None for stage in training.stages)]
    for stage in training.stages:
        with torch.no_grad():
            batch = Batch(stage.frozen(images) if stage.frozen else images, labels, torch.arange(len(labels)))
            if stage.start:
                stage.start([batch])
        found += [x.item() for x in stage.loss(batch, Step(0, 10, 1)).values()]
        found += [group["lr"] for group in optimizer_of(stage).param_groups]
    d = training.model.eval()(images)
    score = training.score(d, LABELS[::16]) if training.score else ""
    return [*found, type(d).__name__, *(x.shape for x in d.arrays), *(x.sum().item() for x in d.arrays), str(score)]


BY_METHOD = {}
for row in ROWS:
    BY_METHOD.setdefault(train.recipe(row, "mnist")[0].name, []).append(row)
FOR_OTHERS = {
    "contrastive loss_rate", "mc_dropout loss_rate", "multi_similarity loss_rate", "triplet loss_rate",
    "dul_reg start", "llr_nce start", "mls_nce start", "scf start", "vmf_nce start",
    "bayesian_triplet variant", "hib hidden", "vmf_fl hidden", "vmf_nce hidden",
}  # fmt: skip
"""Settings that are nothing to a method: rates of losses that learn nothing, starts of what starts from the data, the
sign of a margin that no row has, and the width of a head that no row has."""


@pytest.mark.parametrize("method", BY_METHOD)
def test_every_setting_is_handed_on(images, method):
    """In one of the method's rows at least, or beside another choice: some settings are of one kind of head alone."""
    images, left = images[::16], None
    for row in BY_METHOD[method]:
        settings, asked = build(row)[1], {}
        build(row, lambda name, value, asked=asked: asked.setdefault(name, value))
        new = {k: other(settings, k, x) for k, x in asked.items() if not is_dataclass(x)}
        choices = [k for k, x in new.items() if isinstance(x, str | bool)]
        left = set(new) if left is None else left
        for beside in ({}, *({k: new[k]} for k in choices)):
            try:
                plain = all_that_comes_of(row, images, lambda k, x, beside=beside: beside.get(k, x))
            except (TypeError, ValueError):  # this is refused
                left -= beside.keys()
                continue
            for name in left - beside.keys():
                over = beside | {name: new[name]}
                try:
                    same = all_that_comes_of(row, images, lambda k, x, over=over: over.get(k, x)) == plain
                except (TypeError, ValueError):
                    same = False
                left -= set() if same else {name}
    assert {f"{method} {name}" for name in left} == {x for x in FOR_OTHERS if x.split()[0] == method}
