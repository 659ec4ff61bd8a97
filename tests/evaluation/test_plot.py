"""Pictures of results: what is drawn is what results hold, on the axes that are passed or on new ones."""

import re

import numpy as np
import pytest
from matplotlib.figure import Figure

import peaccel as pe

LABELS = np.arange(60).repeat(4)
RNG = np.random.default_rng(0)
D = pe.Normal(RNG.normal(size=(60, 6))[LABELS] + 0.7 * RNG.normal(size=(240, 6)), RNG.uniform(0.1, 2, 240))
NOVEL = pe.Normal(RNG.normal(size=(50, 6)), RNG.uniform(0.1, 2, 50))
EVALUATION = pe.evaluate(D, None, LABELS, novel=NOVEL)
MATCH = RNG.random(4000) < 0.5
SCORES = RNG.normal(size=4000) + 2 * MATCH
CHOICE = pe.choose_pair_threshold(SCORES, MATCH, wrong=0.05)
ERRORS = pe.metrics.open_set(SCORES[MATCH], SCORES[~MATCH])
CURVE = pe.reliability_curve(1 / (1 + np.exp(-SCORES)), MATCH)
REJECTED = pe.metrics.reject_verification(SCORES, MATCH, RNG.random(4000), far=0.1, shares=[0, 0.25, 0.5])
TAKEN = [
    (pe.plot.risk_coverage, CHOICE),
    (pe.plot.det, CHOICE),
    (pe.plot.det, EVALUATION),
    (pe.plot.det, ERRORS),
    (pe.plot.roc, CHOICE),
    (pe.plot.roc, EVALUATION),
    (pe.plot.roc, {"a": ERRORS, "b": ERRORS}),
    (pe.plot.reliability, CURVE),
    (pe.plot.reliability, {"a": CURVE}),
    (pe.plot.error_discard, EVALUATION),
    (pe.plot.error_discard, REJECTED),
    (pe.plot.score_histogram, CHOICE),
    (pe.plot.score_histogram, {"matches": SCORES[MATCH], "others": SCORES[~MATCH]}),
]


def axes():
    return Figure().subplots()


def lines(ax):
    return {line.get_label(): line.get_xydata() for line in ax.get_lines()}


@pytest.mark.parametrize("draw, found", TAKEN)
def test_results_are_drawn_on_the_axes_that_are_passed(draw, found):
    ax = axes()
    assert draw(found, ax) is ax and ax.get_xlabel() and ax.get_ylabel()
    assert ax.get_lines() or ax.patches
    ax.figure.savefig("/dev/null", format="png")


def test_errors_of_searches_are_those_of_the_metric():
    ax = pe.plot.roc(ERRORS, axes(), threshold=1.0)
    assert np.array_equal(ax.get_lines()[0].get_xydata(), 100 * np.c_[ERRORS.fpir, 1 - ERRORS.fnir])
    at = ERRORS.at_threshold(1.0)
    assert lines(ax)["the threshold"].tolist() == [[100 * at.fpir, 100 * (1 - at.fnir)]]
    ax = pe.plot.det({"a": ERRORS}, axes(), threshold=1.0)
    least = 1 / (2 * (~MATCH).sum()), 1 / (2 * MATCH.sum())
    assert np.array_equal(lines(ax)["a"], np.maximum(np.c_[ERRORS.fpir, ERRORS.fnir], least))
    assert lines(ax)["the threshold"].tolist() == [[at.fpir, at.fnir]]


def test_the_threshold_of_a_choice_is_marked_in_each_picture():
    x = CHOICE.chosen
    assert lines(pe.plot.det(CHOICE, axes()))["the threshold"].tolist() == [[x.false, 1 - x.found]]
    assert lines(pe.plot.roc(CHOICE, axes()))["the threshold"] == pytest.approx(
        np.array([[100 * x.false, 100 * x.found]])
    )
    assert lines(pe.plot.risk_coverage(CHOICE, axes()))["the threshold"].tolist() == [[100 * x.accepted, 100 * x.wrong]]
    assert lines(pe.plot.score_histogram(CHOICE, axes()))["the threshold"][:, 0].tolist() == [x.threshold] * 2


def test_errors_after_discarding_are_those_of_the_metric():
    ax = pe.plot.error_discard({"a": REJECTED}, axes())
    assert np.allclose(lines(ax)["a"], 100 * np.c_[REJECTED.shares, 1 - REJECTED.tar])
    shown = lines(pe.plot.error_discard(EVALUATION, axes()))
    for c in EVALUATION.confidences:
        assert np.allclose(shown[c.confidence], 100 * np.c_[EVALUATION.shares, 1 - np.array(c.curve)])


def test_bins_of_scores_hold_shares_of_their_kind():
    ax = pe.plot.score_histogram({"matches": SCORES[MATCH], "others": SCORES[~MATCH]}, axes(), threshold=0.5)
    for patch in ax.patches:
        assert patch.get_data().values.sum() == pytest.approx(100)
    assert lines(ax)["the threshold"][0, 0] == 0.5


@pytest.mark.parametrize(
    "call, kind, message",
    [
        (lambda: pe.plot.det(3), TypeError, "det: found is int, expected a result of open_set"),
        (lambda: pe.plot.risk_coverage(ERRORS), TypeError, "risk_coverage: found is OpenSet, expected ThresholdChoice"),
        (lambda: pe.plot.roc({}), ValueError, "roc: found has no errors of both kinds"),
        (lambda: pe.plot.det(pe.evaluate(D, None, LABELS)), ValueError, "det: found has no errors of both kinds"),
        (lambda: pe.plot.score_histogram({}), ValueError, "score_histogram: found holds 0 scores, expected some"),
        (lambda: pe.plot.score_histogram({"a": [np.nan]}), ValueError, "score_histogram: found holds 1 scores"),
    ],
)
def test_what_cannot_be_drawn_is_refused(call, kind, message):
    with pytest.raises(kind, match=re.escape(message)):
        call()
