"""Numbers with captions as features of both: what the encoder of captions says, and the way to text-to-image."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from command import run

import peaccel as pe
from peaccel import train
from peaccel.backbones.small_cnn import small_cnn
from peaccel.data.digits import WORDS
from peaccel.train.captioned import captioned_numbers
from peaccel.train.sources import digits_settings

SETTINGS = replace(digits_settings(quick=True), digits=2, classes=(60, 20, 20))
IMAGES = "train arcface --data digits8 --quick --dim 8 --device cpu --threads 1 --out a"


class Points(torch.nn.Module):
    """Features of a network that learned nothing."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.network = small_cnn()

    def forward(self, images):
        return pe.Point(self.network(images)[:, :24])


def parts(hidden):
    return captioned_numbers(Points(), "digits8", SETTINGS, 3, hidden)


def test_captions_are_sums_of_a_vector_for_each_place():
    whole = parts(0.0)
    captions = np.concatenate([x["captions"] for x in whole.values()])
    assert np.linalg.matrix_rank(captions - captions.mean(0), tol=1e-3) == 2 * (len(WORDS) - 1)
    train_part = whole["train"]
    residual = train_part["images"] - train_part["captions"]
    for part in (train_part["captions"],):
        assert np.abs(part.T @ residual).max() < 1e-2 * np.abs(part.T @ train_part["images"]).max()


def test_an_open_digit_has_the_mean_of_its_place():
    captions = {hidden: parts(hidden)["test"]["captions"] for hidden in (0.0, 1.0)}
    assert np.ptp(captions[1.0], axis=0).max() < 1e-6
    assert np.unique(captions[0.0].round(5), axis=0).shape[0] == 20


@pytest.mark.parametrize("hidden", [0.0, 0.5, 1.0])
def test_relevance_is_what_captions_describe(hidden):
    x = parts(hidden)["test"]
    pairs = np.zeros((len(x["captions"]), len(x["images"])), bool)
    pairs[tuple(x["relevance"].T)] = True
    assert pairs[x["image"], x["image"]].all()
    per_caption = pairs.sum(1)
    own = SETTINGS.images_per_class[2] + SETTINGS.images_per_class[3]
    assert (per_caption >= own).all()
    assert (per_caption == own).all() == (hidden == 0) and (per_caption == pairs.shape[1]).all() == (hidden == 1)


def test_the_commands_lead_from_images_of_numbers_to_text_to_image(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run(capsys, f"{IMAGES} --schedule.epochs 1")[0] == 0
    code, out, _ = run(capsys, "embed --run a --hidden 0.3 --out features")
    assert code == 0 and "captions (" in out
    words = "--data caption-features --root features --schedule.epochs 1 --hidden 8 --device cpu --threads 1 --out t"
    assert run(capsys, f"train text_to_image {words}")[0] == 0
    assert run(capsys, "embed --run t --out images.npz")[0] == 0
    assert run(capsys, "embed --run t --side captions --out captions.npz")[0] == 0
    sides = "--queries captions.npz --gallery images.npz --relevance features/test-relevance.npy"
    code, out, _ = run(capsys, f"evaluate {sides} --scores cosine,scale_cosine --out page")
    assert code == 0 and "240 queries" in out
    assert isinstance(train.load(tmp_path / "t").training.model, torch.nn.Module)


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ("--backbone small_cnn --hidden 0.3", "--hidden needs --run of a model trained on mnist or digits8"),
        ("--run a --hidden 1.5", "--hidden is 1.5, expected a probability"),
    ],
)
def test_bad_options_are_refused(capsys, tmp_path, monkeypatch, words, error):
    monkeypatch.chdir(tmp_path)
    if "--run" in words:
        assert run(capsys, f"{IMAGES} --schedule.epochs 0")[0] == 0
    code, _, err = run(capsys, f"embed {words} --out features")
    assert code == 2 and error in err
