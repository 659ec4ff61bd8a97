"""Words of the field are answered by where they stand, and everything that is named there exists."""

import importlib

import numpy as np
import pytest

import peaccel as pe
from peaccel import data, losses, methods, metrics, special
from peaccel._utils.suggestions import unknown
from peaccel._utils.words import WORDS, place_of, plain_name, targets
from peaccel.cli import main

D = pe.VonMisesFisher(np.eye(2), np.ones(2))


def found(name):
    """The object of a full name: of a module, or an attribute of an object in one."""
    *module, last = name.split(".")
    try:
        return getattr(importlib.import_module(".".join(module)), last)
    except ModuleNotFoundError:
        return getattr(found(".".join(module)), last)


@pytest.mark.parametrize("place", sorted(set(WORDS.values())))
def test_every_place_exists(place):
    assert targets(place)
    for name in targets(place):
        assert found(name) is not None


def test_there_are_the_words_of_the_field_and_none_is_an_attribute_already():
    assert len(WORDS) > 150 and all(word == plain_name(word) for word in WORDS)
    assert place_of("Nearest-Neighbors") == "peaccel.search" and place_of("no such word") is None


@pytest.mark.parametrize(
    ("owner", "word", "answer"),
    [
        (pe, "eer", "module 'peaccel' has no attribute 'eer'; eer: peaccel.metrics.equal_error_rate"),
        (pe, "calibrate", "; calibrate: peaccel.fit_match_probability, of scores; peaccel.calibrate_variance, of unc"),
        (metrics, "ECE", "module 'peaccel.metrics' has no attribute 'ECE'; ECE: peaccel.metrics.calibration_error"),
        (losses, "InfoNCE", "module 'peaccel.losses' has no attribute 'InfoNCE'; InfoNCE: peaccel.losses.ScoreNCE"),
        (data, "CUB", "module 'peaccel.data' has no attribute 'CUB'; CUB: name='cub200' of peaccel.data.read"),
        (special, "ive", "module 'peaccel.special' has no attribute 'ive'; ive: peaccel.special.log_ive"),
        (D, "sample", "'VonMisesFisher' object has no attribute 'sample'; sample: peaccel.sample(d, n) draws"),
        (D, "log_prob", "; log_prob: peaccel.log_prob"),
        (pe, "qwertyuiop", "module 'peaccel' has no attribute 'qwertyuiop'"),
    ],
)
def test_unknown_attributes_are_answered(owner, word, answer):
    with pytest.raises(AttributeError) as caught:
        getattr(owner, word)
    assert answer in str(caught.value)
    assert not hasattr(owner, word) and not hasattr(owner, "__no_such__")


SCORES = {
    **dict.fromkeys(("l2", "euclidean", "squared_euclidean", "sqeuclidean"), "did you mean 'neg_sq_l2'?"),
    **dict.fromkeys(("ip", "dot", "dot_product", "max_inner_product"), "did you mean 'inner_product'?"),
    "wasserstein": "did you mean 'neg_w2'?",
    "mutual_likelihood_score": "did you mean 'mls'?",
    "MLS": "did you mean 'mls'?",
    "COSINE": "did you mean 'cosine'?",
    "Neg-KL": "did you mean 'neg_kl'?",
    "mlx": "did you mean 'mls'?",
}


@pytest.mark.parametrize(("name", "hint"), SCORES.items())
def test_names_of_scores_elsewhere_name_the_score_here(name, hint):
    with pytest.raises(ValueError) as caught:
        pe.paired(D, D, name)
    assert str(caught.value) == f"unknown score {name!r}; {hint}"


def test_words_that_mean_none_of_the_known_names_do_not_answer():
    assert unknown("kind", "eer", ["margin", "score"]) == "unknown kind 'eer'; expected one of margin, score"


def test_commands_and_methods(capsys):
    with pytest.raises(SystemExit):
        main(["eer"])
    assert capsys.readouterr().err == "peaccel: unknown command 'eer'; peaccel.metrics.equal_error_rate\n"
    assert methods.load("PFE") is methods.load("pfe")
    with pytest.raises(ValueError, match="unknown method 'Dul'; did you mean 'dul_"):
        methods.load("Dul")
