"""Lists of answers that hold a right one: by plain loops, and their promise by simulation over draws of classes."""

import pickle
import re

import numpy as np
import pytest
import torch

import peaccel as pe

ANSWERS = 60


def drawn(classes, rng, alike=0.5, unanswerable=0.0):
    """Rankings of queries of classes of one to nine queries, which differ in how hard they are and in their level.

    One answer is right; its score falls behind the others as queries get harder.
    """
    each = rng.integers(1, 10, classes)
    of = np.repeat(np.arange(classes), each)
    hard = alike * rng.normal(size=classes)[of] + (1 - alike) * rng.normal(size=len(of))
    level = 5 * rng.normal(size=classes)[of]
    scores = rng.normal(size=(len(of), ANSWERS))
    scores[:, 0] += 3 - 1.5 * hard
    relevant = np.zeros(scores.shape, bool)
    answerable = rng.random(len(of)) >= unanswerable
    relevant[:, 0] = answerable
    order = np.argsort(-scores, axis=1)
    rows = np.arange(len(of))[:, None]
    return level[:, None] + scores[rows, order], relevant[rows, order], of, answerable


def plain_gap(scores, relevant, classes, alpha):
    """The least gap that covers 1 - alpha, with a new class of which nothing is covered, weighing each class alike."""
    gaps = [
        min([s[0] - x for x, r in zip(s, row, strict=True) if r], default=np.inf)
        for s, row in zip(scores, relevant, strict=True)
    ]
    names = sorted(set(classes.tolist()))
    for gap in sorted(gaps):
        shares = [np.mean([g <= gap for g, c in zip(gaps, classes, strict=True) if c == name]) for name in names]
        if sum(shares) / (len(names) + 1) >= 1 - alpha - 1e-12:
            return gap
    return np.inf


@pytest.mark.parametrize("alpha", [0.05, 0.1, 0.3])
@pytest.mark.parametrize("seed", range(4))
def test_the_gap_is_the_least_that_covers_enough(seed, alpha):
    scores, relevant, classes, _ = drawn(40, np.random.default_rng(seed))
    found = pe.conformal_sets(scores, relevant, classes[::-1], alpha)
    assert found.gap == plain_gap(scores, relevant, classes[::-1], alpha) and found.classes == 40
    shuffled = np.random.default_rng(9).permutation(len(classes))
    assert pe.conformal_sets(scores[shuffled], relevant[shuffled], classes[::-1][shuffled], alpha) == found


@pytest.mark.parametrize("runs", [300, pytest.param(10_000, marks=pytest.mark.slow)])
@pytest.mark.parametrize(("classes", "alpha", "alike"), [(60, 0.1, 0.9), (200, 0.05, 0.5), (19, 0.05, 1.0)])
def test_a_query_of_a_new_class_has_its_right_answer_as_often_as_promised(classes, alpha, alike, runs):
    rng, held, sizes = np.random.default_rng(classes), [], []
    for _ in range(runs):
        scores, relevant, of, _ = drawn(classes + 1, rng, alike)
        new = of == classes
        found = pe.conformal_sets(scores[~new], relevant[~new], of[~new], alpha)
        given = found(pe.Ranking(scores[new], np.tile(np.arange(ANSWERS), (new.sum(), 1)))).ids >= 0
        held.append((given & relevant[new]).any(1).mean())  # each class counts alike
        sizes.append(given.sum(1).mean())
    error = np.std(held) / runs**0.5
    assert np.mean(held) >= 1 - alpha - 3.1 * error
    # And no longer than it takes: a new class weighs 1 in C + 1, beyond which steps of one query are lost.
    assert np.mean(held) <= 1 - alpha + 2 / (classes + 1) + 3.1 * error
    assert np.mean(sizes) < ANSWERS / 2 or classes == 19


def test_a_gap_takes_fewer_answers_than_a_rank_or_a_score():
    """All three cover nine queries of ten; levels of queries differ, which a fixed score does not know."""
    scores, relevant, classes, _ = drawn(2000, np.random.default_rng(0))
    found = pe.conformal_sets(scores, relevant, classes, 0.1)
    by_gap = (found(pe.Ranking(scores, np.zeros(scores.shape, int))).ids >= 0).sum(1).mean()
    rank = np.quantile(relevant.argmax(1) + 1, 0.9, method="higher")
    level = np.quantile(scores[relevant], 0.1, method="lower")
    assert by_gap < rank < (scores >= level).sum(1).mean()


def test_queries_without_an_answer_are_left_out_or_count_as_never_missed():
    rng = np.random.default_rng(1)
    scores, relevant, classes, answerable = drawn(300, rng, unanswerable=0.4)
    found = pe.conformal_sets(scores, relevant, classes, 0.1, answerable)
    assert found == pe.conformal_sets(scores[answerable], relevant[answerable], classes[answerable], 0.1)
    every = pe.conformal_sets(scores, relevant, classes, 0.1, answerable, of="all")
    assert every.gap < found.gap and (every.of, every.classes) == ("all", 300)
    missed = answerable & ~((scores[:, :1] - scores <= every.gap) & relevant).any(1)
    assert np.mean([missed[classes == c].mean() for c in range(300)]) == pytest.approx(0.1, abs=0.01)
    # Those that are answerable, but not within the answers that are looked at, are missed.
    cut = pe.conformal_sets(scores[:, :2], relevant[:, :2], classes, 0.1, answerable)
    assert cut.gap == np.inf


def test_too_few_classes_promise_nothing():
    """1 / alpha - 1 = 9 classes."""
    for classes, finite in ((8, False), (9, True)):
        scores, relevant = np.array([[2.0, 1.0]] * classes), np.array([[False, True]] * classes)
        found = pe.conformal_sets(scores, relevant, np.arange(classes), 0.1)
        assert found.gap == (1 if finite else np.inf)
        assert str(found).startswith("give answers down to 1 below" if finite else "give all answers")


def test_scores_alone_are_no_ranking():
    with pytest.raises(TypeError, match=r"^conformal_sets: ranking is ndarray, expected a pe.Ranking$"):
        pe.ConformalSets(0.5, 0.1, 99, "answerable")(np.ones((2, 3)))


@pytest.mark.parametrize("kind", [np.asarray, torch.tensor])
def test_answers_beyond_the_gap_are_taken_out(kind):
    found = pe.ConformalSets(0.5, 0.1, 99, "answerable")
    ranking = pe.Ranking(
        kind(np.array([[3, 2.5, 2], [1, -np.inf, -np.inf]], np.float32)), kind(np.array([[4, 5, 6], [7, -1, -1]]))
    )
    given = found(ranking)
    assert type(given) is pe.Ranking and given.ids.tolist() == [[4, 5, -1], [7, -1, -1]]
    assert given.scores.tolist() == [[3, 2.5, -np.inf], [1, -np.inf, -np.inf]]
    assert given.scores.dtype == ranking.scores.dtype and pickle.loads(pickle.dumps(found)) == found


SCORES, RIGHT = np.array([[2.0, 1.0], [3.0, 2.0]]), np.array([[0, 1], [1, 0]])
WRONG = [
    (lambda: pe.conformal_sets(SCORES, RIGHT, [0, 1], 1.5), "alpha is 1.5, expected a number between 0 and 1"),
    (
        lambda: pe.conformal_sets(SCORES[0], RIGHT, [0, 1], 0.1),
        "scores have shape (2,) and dtype float64, expected num",
    ),
    (lambda: pe.conformal_sets(SCORES[:, ::-1], RIGHT, [0, 1], 0.1), "scores of query 0 rise, expected best first"),
    (lambda: pe.conformal_sets(SCORES * np.nan, RIGHT, [0, 1], 0.1), "4 of the 4 numbers of scores are NaN, first"),
    (lambda: pe.conformal_sets(SCORES, RIGHT[:1], [0, 1], 0.1), "relevant has shape (1, 2), expected"),
    (lambda: pe.conformal_sets(SCORES, RIGHT, [0], 0.1), "classes has shape (1,), expected (2,)"),
    (
        lambda: pe.conformal_sets(SCORES, RIGHT, [0, np.nan], 0.1),
        "1 of the 2 classes are missing (None, NaN or masked), the first in row 1",
    ),
    (lambda: pe.conformal_sets(SCORES, 0 * RIGHT, [0, 1], 0.1, [0, 0]), "answerable names no query, expected some"),
    (lambda: pe.conformal_sets(SCORES, RIGHT, [0, 1], 0.1, [1, 0]), "query 1 has a right answer and is not answerable"),
    (
        lambda: pe.conformal_sets(SCORES, RIGHT, [0, 1], 0.1, of="every"),
        "of is 'every', expected 'answerable' or 'all'",
    ),
]


@pytest.mark.filterwarnings("ignore:invalid value")
@pytest.mark.parametrize(("call", "message"), WRONG)
def test_bad_input_is_named(call, message):
    with pytest.raises(ValueError, match="^conformal_sets: " + re.escape(message)) as caught:
        call()
    assert "\n" not in str(caught.value)
