"""The promise of a threshold whose confidence was chosen, by simulation: classes and what tells of them are drawn."""

import numpy as np
import pytest
from scipy import special

import peaccel as pe
from peaccel.evaluation.answers import Answers
from peaccel.evaluation.choose_threshold import FEWEST
from peaccel.evaluation.compared_confidences import best_of, candidates, kinds_of, third
from peaccel.evaluation.promises import WRONG_ANSWERS, JudgedAnswers

ALPHA, DELTA = 0.1, 0.1
CLASSES = 300
SOME = 500
KINDS = kinds_of("", "auto", True)
COSINE = pe.scores.cosine
SHAPES = {
    "nearly all right": lambda z: special.expit(2.6 + 2.2 * z),
    "surest half wrong": lambda z: np.where(z > 1.88, 0.5, special.expit(1.6 + 2.2 * z)),
    "risk rises and falls": lambda z: np.select(
        [z > low for low in (1.2, 0.6, 0.0, -0.3, -9.0)], [0.97, 0.7, 0.97, 0.5, 0.96]
    ),
    "flat, a little too much": lambda z: np.full(np.shape(z), 1 - ALPHA - 1e-9),  # any threshold breaks the promise
}
SIZES = np.minimum(np.random.default_rng(4).pareto(0.8, 10**5).astype(int) + 1, 60)


def population(rng, classes, shape, rounded, unequal):
    """Answers to queries of classes that differ in ease, what the score hides more of than its margins; the class of
    each, and how probably it is right."""
    each = rng.choice(SIZES, classes) if unequal else np.ones(classes, int)
    of = np.repeat(np.arange(classes), each)
    ease = rng.standard_normal(classes)[of]
    if unequal:
        ease = ease + 0.3 * (np.log(each)[of] - 1)
    best = 0.4 * ease + rng.standard_normal(len(of))
    second, other = (best - np.exp(x + n * rng.standard_normal(len(of))) for x, n in ((0.3 * ease, 1), (ease - 1, 0.3)))
    if rounded:
        best, second, other = (np.round(x * rounded) / rounded for x in (best, second, other))
    scores = np.stack([best, np.maximum(second, other)], 1)
    return (
        Answers(np.zeros(len(of), int), scores, scores.dtype, {}, np.zeros(len(of)), 0, other),
        of,
        SHAPES[shape](ease),
    )


def chosen(answers, of, right, seed):
    """The candidate that `choose_threshold` takes, and the threshold."""
    some = third("", of, seed, FEWEST)
    given = JudgedAnswers(answers.scores[:, 0], right, of, np.ones(len(of), bool), np.empty(0), None)
    tried = candidates("", KINDS, COSINE, answers, None, given, some, None, "")
    best, _ = best_of(tried, WRONG_ANSWERS, ALPHA, some, np.empty(0, bool))
    part = best.judged.part(~some, np.empty(0, bool))
    return best, pe.learn_then_test(part.scores, part.right, part.classes, ALPHA, DELTA, seed)


def values(best, answers):
    """The confidence that was chosen, of other answers."""
    found = pe.Ranking(
        np.c_[answers.scores[:, 0], answers.scores[:, 1], answers.other], np.tile([0, 1, 2], (len(answers.best), 1))
    )
    threshold = pe.Selection(0.0, ALPHA, DELTA, 1, 1, 0, confidence=best.confidence, weights=best.weights)
    return threshold.confidence_of(found, [0, 0, 1])


def simulated(shape, rounded, unequal, runs):
    """The shares of draws in which a threshold is found, and in which it is broken; and what is answered by the chosen
    confidence, and, over some draws, by the score with all labels."""
    rng = np.random.default_rng(0)
    outcomes, (others, of, right_of_others) = (
        np.zeros(4),
        population(rng, 6000 if unequal else 20_000, shape, rounded, unequal),
    )
    weight = 1 / np.bincount(of)[of]  # each class counts alike
    for seed in range(runs):
        answers, classes, p = population(rng, CLASSES, shape, rounded, unequal)
        right = rng.random(len(p)) < p
        best, found = chosen(answers, classes, right, seed)
        broken = answered = share = 0.0
        if np.isfinite(found.threshold):
            accepted = weight * found(values(best, others))
            answered = accepted.sum() / weight.sum()
            broken = accepted @ (1 - right_of_others) > ALPHA * accepted.sum()
        if seed < SOME:
            by_score = pe.learn_then_test(answers.scores[:, 0], right, classes, ALPHA, DELTA, seed)
            share = (weight * by_score(others.scores[:, 0])).sum() / weight.sum()
        outcomes += np.isfinite(found.threshold), broken, answered, share
    return outcomes / (runs, runs, runs, min(runs, SOME))


@pytest.mark.filterwarnings("ignore:learn_then_test. confidences look reversed")  # as they are
@pytest.mark.parametrize(("rounded", "unequal"), [(0, False), (2, False), (0, True)])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("runs", [60, pytest.param(10_000, marks=pytest.mark.slow)])
def test_a_confidence_that_was_chosen_on_other_classes_keeps_the_promise(shape, rounded, unequal, runs):
    """In 10 000 draws: broken in at most 4.7, 2.8, 4.1 and 9.7 %, in the order of `SHAPES`; of the first 65 % are
    answered, where the score answers 4 %."""
    found, broken, answered, by_score = simulated(shape, rounded, unequal, runs)
    assert broken <= DELTA + 3.1 * (DELTA * (1 - DELTA) / runs) ** 0.5
    assert shape != "flat, a little too much" or found == broken
    if shape == "nearly all right" and not rounded and not unequal:
        assert answered > by_score + 0.05


@pytest.mark.parametrize("runs", [60, pytest.param(2000, marks=pytest.mark.slow)])
@pytest.mark.filterwarnings("ignore:.*look reversed")  # as of 40,000 that say nothing some do by chance
def test_a_confidence_that_is_chosen_on_the_classes_of_the_promise_breaks_it(runs):
    """Show why classes are set apart: of twenty confidences that say nothing, the best by the labels of the promise
    breaks it far more often."""
    rng, broken = np.random.default_rng(0), 0
    for seed in range(runs):
        right = rng.random(CLASSES) < 1 - ALPHA - 0.01  # any threshold breaks the promise
        tried = rng.standard_normal((20, CLASSES))
        accepted = [pe.learn_then_test(x, right, np.arange(CLASSES), ALPHA, DELTA, seed).accepted for x in tried]
        broken += max(accepted) > 0
    assert broken / runs > 2 * DELTA
