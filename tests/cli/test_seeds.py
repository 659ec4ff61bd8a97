"""Seeds, priors and transforms arrive where they are meant to: in parts, in runs, and through the commands."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from command import run
from PIL import Image

import peaccel as pe
from peaccel import cli, io, retrieval
from peaccel.cli import _embed_data, choose_score, demo, evaluate
from peaccel.data import transforms
from peaccel.fits.records import Calibration
from peaccel.train import sources
from peaccel.train.backbones import ImageInput
from reproduction import tasks
from reproduction.plan import read_plan

QUICK = "--data digits8 --quick --device cpu --threads 1"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A run r of seed 3 on few digits, and embeddings e of labels."""
    folder = tmp_path_factory.mktemp("seeds")
    cli.main(f"train cosface {QUICK} --dim 8 --schedule.epochs 0 --seed 3 --out {folder}/r".split())
    rng, labels = np.random.default_rng(0), np.arange(48).repeat(4)
    mu = 2 + rng.normal(size=(48, 8))[labels] + 0.5 * rng.normal(size=(192, 8))
    io.write_distribution(folder / "e.npz", pe.Normal(mu, rng.uniform(0.1, 1, 192)))
    np.save(folder / "labels.npy", labels)
    io.write_fit(folder / "prior.json", pe.fit_prior(pe.Normal(mu, np.ones(192)), labels))
    return folder


@pytest.fixture(autouse=True)
def here(folder, monkeypatch):
    monkeypatch.chdir(folder)


@pytest.mark.parametrize(("words", "seed"), [("", 3), ("--seed 5", 5), ("--seed 0", 0)])
def test_a_run_embeds_the_parts_that_its_seed_dealt(folder, capsys, words, seed):
    """With another seed, numbers that it was trained on would be among those that it is tested on."""
    assert json.loads((folder / "r" / "run.json").read_text())["run"]["seed"] == 3
    assert run(capsys, f"embed --run r --part query {words} --out q.npz --labels-out l.npy --quality-out s.npy")[0] == 0
    dealt = sources.open_items("digits8", None, seed, quick=True)["query"]
    assert np.array_equal(np.load("s.npy"), dealt.quality) and np.array_equal(np.load("l.npy"), dealt.labels)
    model = sources_model(folder)
    assert np.allclose(io.read_distribution("q.npz").mu, model(dealt.data).mu.numpy(), atol=1e-5)


def sources_model(folder):
    model = _embed_data.load(folder / "r").model

    def embedded(images):
        with torch.no_grad():
            return model(images)

    return embedded


def test_captions_are_made_of_the_numbers_that_the_runs_seed_dealt(capsys, monkeypatch):
    asked = []

    def captioned(model, source, settings, seed, hidden):
        asked.append((source, settings, seed, hidden))
        return {}

    monkeypatch.setattr(_embed_data, "captioned_numbers", captioned)
    for words in ("", "--seed 7"):
        assert run(capsys, f"embed --run r --hidden-digits 0.25 {words} --out f")[0] == 0
    assert asked == [("digits8", sources.digits_settings(quick=True), seed, 0.25) for seed in (3, 7)]


def test_crops_are_of_the_seed(capsys, folder):
    rng = np.random.default_rng(0)
    for part, c in (("train", 0), ("train", 1), ("test", 2), ("test", 3)):
        place = folder / "images" / part / f"c{c}"
        place.mkdir(parents=True)
        for i in range(2):
            Image.fromarray(rng.integers(0, 255, (40, 50, 3), np.uint8)).save(place / f"{i}.png")
    found = []
    for seed in (0, 4):
        words = f"--crops 0.5 --seed {seed} --quality-out s.npy --out x.npz"
        assert run(capsys, f"embed --backbone test_resnet --data folder --root images {words}")[0] == 0
        found.append(np.load("s.npy"))
        assert np.array_equal(found[-1], _embed_data.crop_sizes(4, seed))
    assert not np.array_equal(*found)


@pytest.mark.parametrize(("side", "shorter"), [(112, 112), (224, 256), (224, 235), (224, 224)])
def test_only_training_images_are_augmented_and_in_the_passes_of_training_alone(folder, tmp_path, side, shorter):
    rng = np.random.default_rng(0)
    for part in ("train", "validation", "test", "query", "gallery"):
        (tmp_path / part / "c").mkdir(parents=True)
        for i in range(8):
            Image.fromarray(rng.integers(0, 255, (60, 50, 3), np.uint8)).save(tmp_path / part / "c" / f"{i}.png")
    expected = ImageInput((side, side), (0.5, 0.4, 0.3), (0.2, 0.3, 0.4), {235: 0.95, 224: 1.0}.get(shorter, 0.875))
    parts = sources.open_items("folder", tmp_path, 0, expected)
    normalisation = transforms.Normalisation(expected.mean, expected.std)
    small = transforms.face_transform(side, normalisation=normalisation)
    plain = small if side == 112 else transforms.eval_transform(normalisation, shorter, side)
    torch.manual_seed(0)
    for part, items in parts.items():
        expected = [plain(Image.open(path)) for path in items.data.paths]
        seen, trained = ([data[i] for i in range(8)] for data in (items.data, items.data.augmented()))
        assert all(map(torch.equal, seen, expected)), part
        assert all(map(torch.equal, trained, expected)) == (part != "train"), part


def test_parts_of_a_task_are_damaged_by_draws_of_their_own():
    plan = read_plan(quick=True)
    sizes = replace(plan.numbers, classes=(10, 10, 10), images_per_class=(4, 4, 4, 4))
    severities = [x.mixed.severity for x in tasks.parts(sizes, ("crop", "occlusion", "blur"), 0).values()]
    assert len({x[:40].tobytes() for x in severities}) == len(severities) >= 4


def test_the_demo_begins_with_its_seed(capsys, monkeypatch):
    asked = []
    monkeypatch.setattr(demo, "run", asked.append)
    assert run(capsys, "demo --seed 4 --seeds 2 --data digits8 --quick --out d")[0] == 0
    assert (asked[0].seed, asked[0].seeds, asked[0].data, asked[0].quick) == (4, 2, "digits8", True)


class Asked(Exception):
    """Ends a command where its work would begin."""


def asked_of(monkeypatch, module, name, line):
    """Arguments of a command's call."""
    found = []

    def ask(*given, **named):
        found.append((given, named))
        raise Asked

    monkeypatch.setattr(module, name, ask)
    with pytest.raises(Asked):
        cli.main(line.split())
    return found[0]


def test_a_prior_and_a_seed_arrive_in_the_evaluation(monkeypatch):
    line = "evaluate --embeddings e.npz --labels labels.npy --scores cosine,llr --prior prior.json --seed 9 --out p"
    (_, _, _, scores), named = asked_of(monkeypatch, evaluate, "evaluate", line)
    prior = io.read_fit("prior.json")
    assert named["seed"] == 9 and [score.name for score in scores] == ["cosine", "llr"]
    assert np.array_equal(scores[1].params["prior_mean"], prior.mean) and np.abs(prior.mean).min() > 1
    assert np.array_equal(scores[1].params["prior_var"], prior.var)


def test_a_calibration_arrives_on_every_side_of_the_evaluation(folder, monkeypatch):
    fit = Calibration(3.0, 0.5, "Normal")
    io.write_fit("calibration.json", fit)
    words = "--queries e.npz --gallery e.npz --query-labels labels.npy --gallery-labels labels.npy --novel e.npz"
    line = f"evaluate {words} --calibration calibration.json --out p"
    (queries, gallery, *_), named = asked_of(monkeypatch, evaluate, "evaluate", line)
    expected = fit(io.read_distribution("e.npz")).var
    for d in (queries, gallery, named["novel"]):
        assert np.array_equal(d.var, expected)


def test_a_seed_arrives_in_the_templates(monkeypatch):
    np.save("templates.npy", np.arange(192) // 2)
    line = "evaluate --embeddings e.npz --labels labels.npy --templates templates.npy --seed 9 --out p"
    assert asked_of(monkeypatch, evaluate, "evaluate_templates", line)[1]["seed"] == 9


def test_a_seed_arrives_in_the_choice_and_in_its_fits(monkeypatch):
    line = "choose-score --embeddings e.npz --labels labels.npy --seed 9 --out p"
    assert asked_of(monkeypatch, choose_score, "choose_score", line)[1]["seed"] == 9
    monkeypatch.setattr(choose_score, "choose_score", lambda *_, **__: None)
    assert asked_of(monkeypatch, choose_score, "fit_all", line)[0][3] == 9


def test_a_prior_with_its_mean_arrives_in_a_search(monkeypatch):
    line = "search --queries e.npz --gallery e.npz --score llr --prior prior.json --out r.npz"
    score = asked_of(monkeypatch, retrieval, "search", line)[0][3]
    assert np.array_equal(score.params["prior_mean"], io.read_fit("prior.json").mean)
