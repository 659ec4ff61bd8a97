"""Measures of a row: what needs no learned confidence, what was seen in training, and errors that compare."""

from types import SimpleNamespace

import numpy as np
import pytest

import peaccel as pe
from peaccel import metrics
from peaccel.evaluation.choose_score import fit
from peaccel.evaluation.separation import probability
from reproduction import measuring

RNG = np.random.default_rng(0)
CLEAN, CROP, OCCLUSION = 0, 1, 2


def normals(seed, items=60, classes=8):
    rng = np.random.default_rng(seed)
    labels = rng.permutation(np.arange(items) % classes)
    var = rng.uniform(0.05, 0.8, items)
    mu = np.eye(8)[labels] + np.sqrt(var)[:, None] * rng.normal(size=(items, 8))
    return pe.Normal(mu / np.linalg.norm(mu, axis=1, keepdims=True), var), labels


def part(labels, kind=None, severity=None):
    kind = np.zeros(len(labels), int) if kind is None else kind
    return SimpleNamespace(labels=labels, mixed=SimpleNamespace(kind=kind, severity=severity))


@pytest.fixture(scope="module")
def rivals():
    held, labels = normals(1)
    return measuring._rivals(SimpleNamespace(name="pfe"), pe.scores.mls, held, labels), fit(held, labels, None, 0)


def test_the_best_score_and_its_margin_are_of_each_score(rivals):
    rivals, fits = rivals
    (queries, _), (items, _) = normals(2), normals(3)
    found = measuring._of_best(rivals, queries, items)
    llr = pe.scores.llr(prior_mean=fits.of_scores["prior"].mean, prior_var=fits.of_scores["prior"].var)
    expected = {
        "cosine": pe.pairwise(queries, items, "cosine"),
        "own": pe.pairwise(queries, items, "mls"),
        "llr": pe.pairwise(fits.calibration(queries), fits.calibration(items), llr),
    }
    assert found.keys() == {f"{kind}_{name}" for kind in ("best", "margin") for name in expected}
    for name, scores in expected.items():
        best = np.sort(scores, axis=1)[:, ::-1]
        assert found[f"best_{name}"] == pytest.approx(best[:, 0], rel=1e-6)
        assert found[f"margin_{name}"] == pytest.approx(best[:, 0] - best[:, 1], rel=1e-5, abs=1e-6)
    # A row whose own score is the cosine has it once; other methods have no likelihood ratio fitted to them.
    alone = measuring._rivals(SimpleNamespace(name="dul_cls"), pe.scores.cosine, queries, None)
    assert measuring._of_best(alone, queries, items).keys() == {"best_cosine", "margin_cosine"}


def test_thresholds_are_of_every_second_validation_item_that_searches_the_others(rivals):
    """61 items, so that the two halves differ in size too."""
    (rivals, _), (held, labels) = rivals, normals(6, 61)
    method, training = SimpleNamespace(confidence="default"), SimpleNamespace(criterion=None)
    sure, right = measuring._held_out(method, training, rivals, held, labels)
    asked, items = held[::2], held[1::2]
    found = pe.search(asked, items, 2, "mls")
    assert np.array_equal(right, labels[::2] == labels[1::2][found.ids[:, 0]])
    assert np.array_equal(sure["own"], pe.confidence(asked))
    of_best = measuring._of_best(rivals, asked, items)
    assert sure.keys() == {"own"} | of_best.keys()
    assert all(np.array_equal(sure[name], x) for name, x in of_best.items())
    assert sure["best_own"] == pytest.approx(found.scores[:, 0])


def test_confidence_is_judged_where_corruption_was_seen_and_where_it_was_not():
    kind, n = np.repeat([CLEAN, CROP, OCCLUSION], 40), 120
    right = RNG.permutation(np.arange(n) % 3 > 0).astype(float)
    sure = {"own": right * np.where(kind == OCCLUSION, -1, 1) + 0.1 * RNG.random(n), "best_cosine": RNG.random(n)}
    query = part(np.arange(n) // 5, kind, RNG.random(n))
    unseen = measuring._unseen(kind, np.array([CLEAN, CROP, CROP]))
    assert (unseen == (kind == OCCLUSION)).all()
    found = measuring._numbers(sure, ({}, None), right, query, unseen)
    for name, parts in {"seen": (CLEAN, CROP), "unseen": (CLEAN, OCCLUSION)}.items():
        of = np.isin(kind, parts)
        for confidence in ("own", "best_cosine"):
            expected = metrics.r_auroc(right[of], sure[confidence][of])
            assert found[f"r_auroc_{name}.{confidence}"] == expected
    assert found["r_auroc_seen.own"] == 1 > found["r_auroc_unseen.own"]
    # Where all was seen there is nothing to tell apart.
    every = measuring._numbers(sure, ({}, None), right, query, np.zeros(n, bool))
    assert not any("seen" in name for name in every) and every["r_auroc.own"] == found["r_auroc.own"]


def test_errors_of_a_fitted_probability_are_out_of_fold_and_brier_tells_useful_from_useless():
    n = 600
    right, labels = (RNG.random(n) < 0.6).astype(float), np.arange(n) // 5
    sure = {"own": right + 0.5 * RNG.random(n), "best_cosine": RNG.random(n)}
    found = measuring._numbers(sure, ({}, None), right, part(labels, severity=RNG.random(n)), np.zeros(n, bool))
    for name, confidence in sure.items():
        p = probability(confidence, right, labels, 0)
        assert found[f"brier.{name}"] == pytest.approx(np.mean((p - right) ** 2))
        bins = np.array_split(np.argsort(p, kind="stable"), 10)
        by_hand = sum(len(b) * abs(p[b].mean() - right[b].mean()) for b in bins) / n
        assert found[f"ece_fitted.{name}"] == pytest.approx(by_hand, abs=0.02)  # equal p may fall into either bin
    assert found["brier.own"] < 0.01 and found["brier.best_cosine"] == pytest.approx(0.24, abs=0.02)
    assert found["ece_fitted.own"] < 0.01 and found["ece_fitted.best_cosine"] < 0.1
    assert found["ece_rank.own"] > 0.2  # what the published form says of a confidence that knows all


def test_verification_is_by_each_score_on_pairs_that_were_seen_or_not(rivals):
    rivals, _ = rivals
    (queries, q), (items, g) = normals(4), normals(5)
    kinds = [np.random.default_rng(i).choice([CLEAN, CROP, OCCLUSION], 60) for i in range(2)]
    method = SimpleNamespace(confidence="default")
    held = part(q, np.array([CLEAN, CROP]))
    found = measuring._of_pairs(method, rivals, queries, items, part(q, kinds[0]), part(g, kinds[1]), held)
    same = q[:, None] == g
    for part_name, allowed in {"": (0, 1, 2), "_seen": (CLEAN, CROP), "_unseen": (CLEAN, OCCLUSION)}.items():
        of = np.isin(kinds[0], allowed)[:, None] & np.isin(kinds[1], allowed)
        for name, score in {"cosine": "cosine", "own": "mls"}.items():
            expected = metrics.equal_error_rate(pe.pairwise(queries, items, score)[of], same[of]).rate
            assert found[f"eer{part_name}.{name}"] == pytest.approx(expected)
    assert {"eer.llr", "eer_seen.llr", "eer_unseen.llr", "auc.llr"} <= found.keys()


def test_what_rejecting_gains_is_over_rejecting_at_random():
    """Whatever the embedding is worth, doubts that know nothing gain nothing, and those that know gain."""
    labels = np.arange(300) % 10
    gains, areas = {}, {}
    for noise in (0.25, 0.45):
        rng = np.random.default_rng(1)
        level = rng.uniform(0, 2 * noise, 300)
        mu = np.eye(10)[labels] + level[:, None] * rng.normal(size=(300, 10))
        unit = mu / np.linalg.norm(mu, axis=1, keepdims=True)
        for name, var in {"knows": level + 1e-3, "nothing": rng.uniform(0.1, 1, 300)}.items():
            d = pe.Normal(unit, var)
            method, rival = SimpleNamespace(confidence="default"), {"own": measuring.Rival(pe.scores.cosine)}
            half = np.arange(300) % 20 < 10
            sides = [part(labels[half]), part(labels[~half])]
            found = measuring._of_pairs(method, rival, d[half], d[~half], *sides, part(labels))
            assert found["rejection_gain.own"] == found["rejection.own"] - found["rejection.random"]
            gains[noise, name], areas[noise, name] = found["rejection_gain.own"], found["rejection.own"]
    assert areas[0.25, "nothing"] > areas[0.45, "knows"]  # by the area itself, the better embedding wins
    assert max(abs(gains[noise, "nothing"]) for noise in (0.25, 0.45)) < 0.02
    assert min(gains[noise, "knows"] for noise in (0.25, 0.45)) > 0.05


def test_temperature_is_found_on_the_other_half():
    rng = np.random.default_rng(2)
    logits = rng.normal(0, 1.5, (4000, 6))
    p = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    labels = (p.cumsum(1) > rng.random((4000, 1))).argmax(1)
    sharp = p**3 / (p**3).sum(1, keepdims=True)
    found = measuring.tempered(sharp, labels)
    assert found.sum(1) == pytest.approx(np.ones(4000)) and (found.argmax(1) == p.argmax(1)).all()
    assert np.abs(found - p).max() < 0.06
    right = (p.argmax(1) == labels).astype(float)
    errors = [metrics.calibration_error(right, x.max(1), scale="probability").ece for x in (sharp, found)]
    assert errors[0] > 0.15 and errors[1] < 0.03
    # Of each class every second image belongs to either half, whose labels say nothing of its own temperature.
    order = np.argsort(labels, kind="stable")
    half = np.zeros(4000, bool)
    half[order[::2]] = True
    sharper = np.where(half[:, None], sharp**2, sharp)
    again = measuring.tempered(sharper / sharper.sum(1, keepdims=True), labels)
    assert np.log(again[half][:, 0] / again[half][:, 1]) == pytest.approx(
        2 * np.log(found[half][:, 0] / found[half][:, 1]), abs=1e-6
    )
    assert not np.allclose(again[~half], found[~half])
