"""Wiring of methods: what learns in each stage and how fast, which draws are new, what settings come to."""

import re
from dataclasses import is_dataclass, replace
from typing import Literal, get_args, get_origin, get_type_hints

import numpy as np
import pytest
import torch
from rows import CLASSES, DIM, FEATURES, IMAGES, LABELS, ROWS, build, everything
from torch import nn

import peaccel as pe
from peaccel import methods, published, train
from peaccel.heads import UncertaintyHead
from peaccel.losses import ArcFace, CosFace
from peaccel.methods import mu_scaleface, parts
from peaccel.methods.method import Batch, Schedule, Step
from peaccel.published.revisited import LinearUncertaintyHead
from peaccel.train.optim import optimizer_of

SOME = IMAGES[::16]


def batch_of(stage):
    """Some images, two of each class, as a stage takes them."""
    with torch.no_grad():
        inputs = stage.frozen(SOME) if stage.frozen else SOME
    return Batch(inputs, torch.from_numpy(LABELS[::16]), torch.arange(len(SOME)))


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
"""Parameters that learn at each setting called a rate."""
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
def test_a_loss_draws_by_the_seed_of_its_step(row):
    _, _, training = build(row, lambda name, value: 0.0 if name == "feature_dropout" else value)
    drawn = set()
    for stage in training.stages:
        batch = batch_of(stage)
        first, again, other = ([x.item() for x in stage.loss(batch, Step(0, 10, seed)).values()] for seed in (1, 1, 2))
        assert first == again
        drawn.add(first != other)
    assert (True in drawn) == (row in DRAW)


def test_the_score_of_hib_has_the_slope_and_the_offset_that_were_learned():
    training = build("hib_diagonal", lambda name, value: 5 if name == "n" else value)[2]
    with torch.no_grad():
        training.criterion.log_a.fill_(0.7)
        training.criterion.b.fill_(-0.3)
    score = training.score(None, None)
    assert (score.params["a"], score.params["b"]) == pytest.approx((np.exp(0.7), -0.3))
    assert score.params["n"] == training.criterion.score.params["n"] == 5


def test_captions_find_images_and_images_captions_under_these_names():
    """Of a batch in which the two differ; each term is half of a cross-entropy over the other side."""
    method, settings = train.recipe("text_to_image", "caption-features")
    torch.manual_seed(0)
    training = method.build(nn.Identity(), 6, 9, settings)
    inputs, rows = (torch.randn(9, 6), torch.randn(9, 6)), torch.arange(9)
    terms = training.stages[0].loss(Batch(inputs, rows, rows), Step(0, 10, 1))
    images, captions = training.model(inputs)
    for name, asked, found in (("captions", captions, images), ("images", images, captions)):
        scores = pe.pairwise(asked, found, "scale_cosine")
        assert terms[name].item() == pytest.approx(nn.functional.cross_entropy(scores, rows).item() / 2, rel=1e-4)
    assert abs(terms["captions"] - terms["images"]) > 1e-3


GIVES = {
    "point": "arcface cosface magface",
    "point, of length 1": "contrastive margin_dws multi_similarity proxy_anchor proxy_nca triplet",
    "normal_isotropic": "hib",
    "normal_isotropic, of length 1": "bayesian_triplet dul_cls dul_reg dul_reg_cls scf_normal triplet_regression "
    "vmf_fl_normal",
    "normal_diagonal": "hib_diagonal",
    "normal_diagonal, of length 1": "llr_nce llr_nce_joint mc_dropout mls_nce pfe",
    "vmf, of length 1": "b_vmf bayesian_triplet_vmf cos_nca dul_cls_vmf dul_reg_cls_vmf dul_reg_vmf el_nivmf el_vmf "
    "kl_vmf l2_nca nivmf panc_el_nivmf pfe_vmf scf vmf_fl vmf_loss vmf_nce",
    "scaled, of length 1": "mu_scaleface scaleface scaleface_end_to_end",
}


@pytest.mark.parametrize("row", ROWS)
def test_what_a_model_gives(row):
    """And it leaves torch's generator as it was, whatever it draws."""
    model = build(row)[2].model.eval()
    before = torch.get_rng_state()
    d = model(SOME)
    assert torch.equal(before, torch.get_rng_state())
    unit = torch.allclose(d.mu.norm(dim=1), torch.ones(len(SOME)), atol=1e-5)
    assert row in GIVES[f"{d.kind}{', of length 1' * unit}"].split()
    assert all((x > 0).any() for x in d.arrays[1:])  # what says how uncertain they are


@pytest.mark.parametrize("row", [row for row in ROWS if row != "mc_dropout"])  # whose head is within its passes
def test_means_that_are_given_have_the_length_of_the_models_own(row):
    """Features themselves, of any length, where the row's means have any; directions where they have length 1."""
    training = build(row, lambda name, value: "given" if name == "mean" else value)[2].model.eval()
    features, mean = training[0](SOME), training[1].mean
    lengths = mean(features).norm(dim=1)
    of_any = build(row)[2].model.eval()[1].mean(features).norm(dim=1)
    assert torch.allclose(lengths, torch.ones(())) == torch.allclose(of_any, torch.ones(()))


ANSWERS_BY = {
    "cosine, norm": "arcface cosface magface",
    "cosine, kappa": "b_vmf cos_nca el_nivmf el_vmf kl_vmf l2_nca nivmf panc_el_nivmf",
    "cosine, -": "contrastive margin_dws multi_similarity proxy_anchor proxy_nca triplet",
    "cosine, default": "dul_cls dul_reg dul_reg_cls mc_dropout scaleface triplet_regression vmf_fl",
    "expected_cosine, default": "vmf_loss",
    "hib, default": "hib",
    "llr, default": "llr_nce",
    "mls, default": "mls_nce pfe scf vmf_nce",
    "neg_expected_sq_l2, default": "bayesian_triplet",
    "scale_cosine, default": "mu_scaleface text_to_image",
}


def test_what_methods_rank_by_and_are_sure_by():
    for method in methods.table():
        assert method.name in ANSWERS_BY[f"{method.score}, {method.confidence}"].split()


@pytest.mark.parametrize(
    ("row", "prior"), [("hib", 1.0), ("dul_cls", 1.0), ("dul_reg_cls", 1.0), ("bayesian_triplet", 1 / DIM)]
)
def test_the_divergence_is_from_the_prior_of_the_paper(row, prior):
    _, settings, training = build(row)
    stage = next(stage for stage in training.stages if stage.schedule.epochs)
    d = training.model(SOME)
    of_one_dimension = (d.var[:, None] + d.mu**2) / prior - 1 - (d.var[:, None] / prior).log()
    expected = settings.kl * of_one_dimension.sum(1).mean() / 2
    assert stage.loss(batch_of(stage), Step(0, 10, 1))["kl"].item() == pytest.approx(expected.item(), rel=1e-4)


@pytest.mark.parametrize(
    ("row", "term"),
    [
        ("dul_cls_vmf", "kl"),
        ("dul_reg_cls_vmf", "kl"),
        ("hib_diagonal", "hib"),
        ("pfe", "negative_mls"),
        ("scf", "nll"),
    ],
)
def test_a_published_method_has_another_loss_and_not_another_head_alone(row, term, monkeypatch):
    monkeypatch.setattr(LinearUncertaintyHead, "__init__", UncertaintyHead.__init__)

    def found(row):
        training = build(row)[2]
        of_stages = [stage.loss(batch_of(stage), Step(0, 10, 1)) for stage in training.stages]
        return next(terms[term].item() for terms in of_stages if term in terms)

    assert found(row) == found(row) != found(f"published.{row}")


def test_dul_reg_cls_makes_its_uncertainty_head_anew():
    _, _, training = build("dul_reg_cls")
    head, last = training.model[1].uncertainty, training.stages[-1]
    fresh = head.layers[0].weight.detach().clone()
    with torch.no_grad():
        head.layers[0].weight.zero_()
        last.start([batch_of(last)])
    assert torch.equal(head.layers[0].weight, fresh)


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


def all_that_comes_of(row, over=lambda name, value: value):
    """A row's stages, losses, rates and distributions, on some images."""
    _, _, training = build(row, over)
    found = [len(training.stages), *(stage.batches is None for stage in training.stages)]
    for stage in training.stages:
        batch = batch_of(stage)
        with torch.no_grad():
            if stage.start:
                stage.start([batch])
        found += [x.item() for x in stage.loss(batch, Step(0, 10, 1)).values()]
        found += [group["lr"] for group in optimizer_of(stage).param_groups]
    d = training.model.eval()(SOME)
    score = training.score(d, LABELS[::16]) if training.score else ""
    return [*found, type(d).__name__, *(x.shape for x in d.arrays), *(x.sum().item() for x in d.arrays), str(score)]


BY_METHOD = {}
for row in ROWS:
    BY_METHOD.setdefault(train.recipe(row, "mnist")[0].name, []).append(row)
FOR_OTHERS = {
    "contrastive loss_rate", "mc_dropout loss_rate", "multi_similarity loss_rate", "triplet loss_rate",
    "dul_reg start", "llr_nce start", "mls_nce start", "pfe start", "scf start", "vmf_nce start",
    "hib hidden", "vmf_fl hidden", "vmf_nce hidden",
}  # fmt: skip
"""Settings that are nothing to a method: rates of losses that learn nothing, starts of what starts from the data,
and the width of a head that no row has."""


@pytest.mark.parametrize("method", BY_METHOD)
def test_every_setting_is_handed_on(method):
    """In one of the method's rows at least, or beside another choice: some settings are of one kind of head alone."""
    left = None
    for row in BY_METHOD[method]:
        settings, asked = build(row)[1], {}
        build(row, lambda name, value, asked=asked: asked.setdefault(name, value))
        new = {k: other(settings, k, x) for k, x in asked.items() if not is_dataclass(x)}
        choices = [k for k, x in new.items() if isinstance(x, str | bool)]
        left = set(new) if left is None else left
        for beside in ({}, *({k: new[k]} for k in choices)):
            try:
                plain = all_that_comes_of(row, lambda k, x, beside=beside: beside.get(k, x))
            except (TypeError, ValueError):  # this is refused
                left -= beside.keys()
                continue
            for name in left - beside.keys():
                over = beside | {name: new[name]}
                try:
                    same = all_that_comes_of(row, lambda k, x, over=over: over.get(k, x)) == plain
                except (TypeError, ValueError):
                    same = False
                left -= set() if same else {name}
    assert {f"{method} {name}" for name in left} == {x for x in FOR_OTHERS if x.split()[0] == method}


def test_a_margin_rises_over_the_first_steps_where_it_is_asked_to():
    settings = parts.Classifier(margin=0.4, warmup=0.5)
    margins = [settings.margin_at(Step(number, 8, 0)) for number in range(8)]
    assert margins == pytest.approx([0.0, 0.1, 0.2, 0.3, 0.4, 0.4, 0.4, 0.4])
    assert {parts.Classifier(margin=0.4).margin_at(Step(number, 8, 0)) for number in range(8)} == {0.4}


@pytest.mark.parametrize("name", ["arcface", "pfe", "dul_cls", "dul_reg_cls", "scaleface"])
def test_a_rising_margin_is_that_of_the_loss_at_each_step(name):
    rising = parts.Classifier(margin=0.3, warmup=0.5)
    training = build(name, lambda key, value: rising if key == "classifier" else value)[2]
    stage = training.stages[1 if name == "dul_reg_cls" else 0]
    loss = training.criterion if isinstance(training.criterion, ArcFace | CosFace) else training.criterion[0]
    batch = batch_of(stage)
    for number, margin in ((0, 0.0), (2, 0.15), (4, 0.3), (7, 0.3)):
        stage.loss(batch, Step(number, 8, 0))
        assert loss.margin == pytest.approx(margin)


def test_mu_of_mu_scaleface_is_that_of_all_pairs():
    rng = np.random.default_rng(0)
    mu = rng.normal(size=(60, 5))
    d = pe.Scaled(mu / np.linalg.norm(mu, axis=1, keepdims=True), rng.uniform(1, 9, 60))
    labels = rng.integers(0, 7, 60) * 3
    rows = np.argwhere(np.triu(np.ones((60, 60), bool), k=1))
    expected = pe.fit_shift(d, rows, labels[rows[:, 0]] == labels[rows[:, 1]])
    assert mu_scaleface.score(d, labels).params["mu"] == pytest.approx(expected, abs=1e-12)
    for wrong, alike in ((np.arange(60), "different"), (np.zeros(60, int), "equal")):
        with pytest.raises(ValueError, match=f"^mu_scaleface: labels are all {alike}, expected pairs of one class"):
            mu_scaleface.score(d, wrong)


@pytest.mark.parametrize("row", ["dul_cls", "dul_reg_cls", "dul_reg", "scf", "pfe"])
@pytest.mark.parametrize("distribution", ["normal", "vmf"])
def test_published_methods_are_of_every_distribution(row, distribution):
    method = published.load(f"published.{row}")
    torch.manual_seed(0)
    settings = method.settings(dim=4, distribution=distribution)
    training = method.build(torch.nn.Identity(), 8, 3, settings)
    batch = Batch(torch.randn(6, 8), torch.arange(3).repeat(2), torch.arange(6))
    for stage in training.stages:
        terms = stage.loss(batch, Step(0, 10, 0))
        assert all(torch.isfinite(x) for x in terms.values())
