"""Numbers with captions as features of both: what the encoder of captions says, and the way to text-to-image."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from command import run

import peaccel as pe
from peaccel.data.digits import WORDS
from peaccel.train import captioned
from peaccel.train.backbones.small_cnn import small_cnn
from peaccel.train.captioned import captioned_numbers
from peaccel.train.embedding import embed
from peaccel.train.evaluation import map_at_r
from peaccel.train.sources import digits_settings, of_digits

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


def test_images_stand_beside_the_captions_of_their_numbers():
    """In test, too, where those of the gallery come first: rows of a caption are of images that show its number."""
    model, dealt = Points(), of_digits("digits8", SETTINGS, 3)
    for part, names in {"train": ["train"], "validation": ["validation"], "test": ["gallery", "query"]}.items():
        found = parts(0.0)[part]
        shown = np.concatenate([embed(model, dealt[name].data).mu for name in names])
        assert np.allclose(found["images"][found["image"]], shown, atol=1e-5)
        same = np.concatenate([dealt[name].labels for name in names])
        assert np.array_equal(np.argwhere(same[:, None] == same), found["relevance"])


def test_an_open_digit_has_the_mean_of_its_place():
    captions = {hidden: parts(hidden)["test"]["captions"] for hidden in (0.0, 1.0)}
    assert np.ptp(captions[1.0], axis=0).max() < 1e-6
    assert np.unique(captions[0.0].round(5), axis=0).shape[0] == 20


def test_one_seed_decides_numbers_their_corruption_and_what_is_hidden(monkeypatch):
    found = []
    for name, seed_of in (
        ("make", lambda given: given[2]),
        ("corrupted", lambda x: x[2]),
        ("captions", lambda x: x[3]),
    ):
        real = getattr(captioned, name)

        def spy(*given, real=real, seed_of=seed_of):
            found.extend([seed_of(given)] if len(given) > 2 else [])  # digits are told whole once, without draws
            return real(*given)

        monkeypatch.setattr(captioned, name, spy)
    parts(0.5)
    assert found == [3] * 5  # captions of three parts


def test_captions_are_the_queries():
    """Two captions of the first image, of which one is nearer to the other image; each image's nearest is its own."""
    labels = np.array([0, 0, 1])
    images = pe.Point(np.eye(2)[labels])
    captions = pe.Point(np.array([[1.0, 0.0], [0.6, 0.8], [0.0, 1.0]]))
    assert map_at_r((images, captions), labels, pe.scores.cosine)[:2] == pytest.approx((2 / 3, 2 / 3))


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


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (
            "--backbone small_cnn --hidden-digits 0.3",
            "--hidden-digits needs --run of a model trained on mnist or digits8",
        ),
        ("--run a --hidden-digits 1.5", "--hidden-digits is 1.5, expected a probability"),
    ],
)
def test_bad_options_are_refused(capsys, tmp_path, monkeypatch, words, error):
    monkeypatch.chdir(tmp_path)
    if "--run" in words:
        assert run(capsys, f"{IMAGES} --schedule.epochs 0")[0] == 0
    code, _, err = run(capsys, f"embed {words} --out features")
    assert code == 2 and error in err
