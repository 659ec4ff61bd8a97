"""The room of published code: rows give the numbers that their ledger has, names are checked, densities are none.

Its losses and scores are held against plain forms beside the right ones, in tests/losses and tests/scores.
"""

import ast
import pathlib

import numpy as np
import pytest
import torch
from conftest import make
from quadrature import SPHERES
from rows import IMAGES, LABELS, build

import peaccel as pe
from peaccel import methods, published, train
from peaccel.heads import UncertaintyHead
from peaccel.methods.method import Batch, Step
from peaccel.published import non_isotropic, revisited

# Losses of each stage, of all of the batch at the start, as the code gave them by which reproduction/results.jsonl was
# trained, when a loss had its published form by an option.
LEDGER = {
    "pfe": [0.958406, 43.829891],
    "pfe_vmf": [0.958406, -2.023513],
    "dul_cls": [21.133577, 0.013699],
    "dul_cls_vmf": [21.260208, 0.010585],
    "dul_reg": [0.958406, -5.23439],
    "dul_reg_vmf": [0.958406, -4.205168],
    "dul_reg_cls": [0.958406, 1.101071, 0.013699, -5.23439],
    "dul_reg_cls_vmf": [0.958406, 1.253387, 0.010585, -4.205168],
    "scf": [0.958406, -4.205154],
    "scf_normal": [0.958406, -5.23439],
    "vmf_fl": [0.23714],
    "vmf_fl_normal": [0.23714],
    "hib": [0.432178, 1.4e-05],
    "hib_diagonal": [0.44294, 1.5e-05],
    "el_nivmf": [0.945702],
    "nivmf": [0.068889],
    "kl_vmf": [13.219521],
    "panc_el_nivmf": [0.945702, 1.504866],
    "bayesian_triplet": [0.12533, 1e-05],
    "bayesian_triplet_vmf": [0.12533, 9e-06],
}


def losses_of(row, **changes):
    """The terms of each stage's loss, after its start, of some images."""
    _, _, training = build(row, lambda name, value: changes.get(name, value))
    labels, found = torch.from_numpy(LABELS[::16]), []
    for stage in training.stages:
        with torch.no_grad():
            images = IMAGES[::16]
            batch = Batch(stage.frozen(images) if stage.frozen else images, labels, torch.arange(len(labels)))
            if stage.start:
                stage.start([batch])
            found += [x.item() for x in stage.loss(batch, Step(0, 10, 1)).values()]
    return found


@pytest.mark.parametrize("row", LEDGER)
def test_a_published_row_trains_by_the_losses_of_the_ledger(row):
    changes = {"margin": 0.1} if row.startswith("bayesian") else {}
    assert losses_of(f"published.{row}", **changes) == pytest.approx(LEDGER[row], rel=1e-4, abs=1e-6)
    if "el_nivmf" not in row and row != "nivmf":  # whose forms differ by a constant while all concentrations are equal
        assert losses_of(row, **changes) != pytest.approx(LEDGER[row], rel=1e-4, abs=1e-6)


def test_every_published_method_is_one_of_the_rows_above():
    assert {train.recipes.method_of(f"published.{row}") for row in LEDGER} == set(published.NAMES)
    for name in published.NAMES:
        assert published.load(name).name == name.removeprefix("published.")
        assert published.load(name).build is not methods.load(name.removeprefix("published.")).build


def test_what_is_published_stands_in_its_room_alone():
    """Elsewhere no argument chooses between what is right and what is not."""
    package = pathlib.Path(pe.__file__).parent
    for path in package.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            assert not isinstance(node, ast.arg) or node.arg != "variant", path


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("published.arcface", "unknown published method 'published.arcface'; did you mean "),
        ("published.pfee", "unknown method 'pfee'; did you mean 'pfe'"),
    ],
)
def test_rows_without_a_published_form_are_refused(row, message):
    with pytest.raises(ValueError, match=f"^{message}"):
        train.recipe(row, "mnist")


def test_settings_of_a_published_row_are_those_of_its_recipe():
    method, settings = train.recipe("published.dul_cls_vmf", "mnist", {"kl": 0.5})
    assert settings == train.recipe("dul_cls_vmf", "mnist", {"kl": 0.5})[1]
    assert method is published.load("published.dul_cls")


def test_a_run_of_a_published_row_is_read_back_as_such(tmp_path):
    rng, labels = np.random.default_rng(0), np.arange(20).repeat(4)
    np.savez(tmp_path / "items.npz", features=rng.normal(size=(80, 8)), labels=labels)
    method, settings = train.recipe("published.scf", "features", {"regress": {"epochs": 1}})
    run = train.Run(data="features", root=tmp_path / "items.npz", out=tmp_path / "run", device="cpu")
    assert train.train("published.scf", method, settings, run).method == "published.scf"
    read = train.load(tmp_path / "run")
    assert read.method is method
    assert not any(isinstance(x, torch.nn.ReLU) for x in read.model[1].uncertainty.layers)


def test_a_head_without_relus_starts_from_the_weights_of_the_one_with_them():
    heads = []
    for kind in (UncertaintyHead, revisited.LinearUncertaintyHead):
        torch.manual_seed(0)
        heads.append(kind(16, 3, start=2.0))
    for one, other in zip(*(head.parameters() for head in heads), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("dim", [2, 5, 300])
def test_of_one_kappa_the_paper_s_density_is_vmf_and_the_code_s_is_not(dim):
    d, z = make("vmf", 6, dim), pe.Point(make("vmf", 6, dim, 3).mu)
    kappa = d.kappa * dim
    same = pe.NonIsotropicVonMisesFisher(d.mu, np.repeat(kappa[:, None], dim, 1))
    value = pe.log_prob(pe.VonMisesFisher(d.mu, kappa), z.mu)
    np.testing.assert_allclose(pe.paired(z, same, non_isotropic.nivmf_paper), value, rtol=1e-9)
    found = pe.paired(z, same, non_isotropic.nivmf_published)
    np.testing.assert_allclose(found, value + (dim - 1) * np.log(kappa), rtol=1e-9)


@pytest.mark.parametrize("dim", [2, 3])
def test_the_code_s_density_does_not_integrate_to_1(dim):
    rows, weights = SPHERES[dim]
    d = pe.NonIsotropicVonMisesFisher(np.eye(1, dim), np.linspace(4, 8, dim)[None])
    integrals = {
        score.name: weights @ np.exp(pe.pairwise(pe.Point(rows), d, score))[:, 0]
        for score in (pe.scores.nivmf, non_isotropic.nivmf_paper, non_isotropic.nivmf_published)
    }
    assert integrals["nivmf"] == pytest.approx(1, rel=1e-6)
    assert abs(integrals["nivmf_paper"] - 1) > 0.05
    assert integrals["nivmf_published"] > 3


def test_scores_of_the_room_are_no_names_of_the_package():
    for score in (
        revisited.hib_drawn,
        *(getattr(non_isotropic, name) for name in ("nivmf_published", "el_nivmf_paper")),
    ):
        assert score.name not in pe.scores.SCORES
        with pytest.raises(ValueError, match="has no text that"):
            pe.scores.spelled(score)
