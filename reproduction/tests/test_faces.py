"""The measures of `reproduction.faces`, on made-up faces and heads that see how spoilt each is."""

import numpy as np
import pytest

import peaccel as pe
from reproduction import faces, frozen
from reproduction.lfw import CHIP, Faces, drawn_order, fitted, marks


@pytest.fixture(scope="module")
def made():
    """Faces that lie the farther from their person the more they are spoilt; three of five people have one."""
    rng = np.random.default_rng(0)
    counts = np.where(rng.random(300) < 0.6, 1, rng.integers(2, 12, 300))
    people = np.arange(300).repeat(counts)
    centres, drawn = rng.normal(size=(300, 24))[people], marks(len(people))
    names = np.array([f"{p:03d}_{i:04d}" for p, count in enumerate(counts) for i in range(count)])

    def version(noise):
        return (centres + noise[:, None] * rng.normal(size=centres.shape)).astype(np.float32)

    of_small, of_marred = 6 / drawn["side"] + 0.6, 0.6 + drawn["blur"] / 8 + drawn["cover"]
    several = np.flatnonzero(np.bincount(people)[people] > 1)
    same = np.array([rng.permutation(np.flatnonzero(people == people[i]))[:2] for i in rng.choice(several, 100)])
    other = (same[:, 0] + rng.integers(20, 200, 100)) % len(people)
    pairs = np.stack([same, np.stack([same[:, 0], other], 1)]).reshape(2, 10, 10, 2).swapaxes(0, 1).reshape(-1, 2)
    clean, small, marred = map(version, (np.full(len(people), 0.6), of_small, of_marred))
    spoilt = (drawn[k] for k in ("side", "blur", "cover"))
    return Faces(names, clean, small, marred, *spoilt, rng.normal(size=len(people)), pairs)


@pytest.fixture
def heads(monkeypatch):
    """In place of those that are trained."""

    def learned(method, features, labels, fit, measured, *more):
        sums = np.zeros((labels.max() + 1, features.shape[1]))
        np.add.at(sums, labels, features)
        var = ((features - sums[labels] / np.bincount(labels)[labels][:, None]) ** 2).mean(1) + 0.1
        direction = features / np.linalg.norm(features, axis=1, keepdims=True)
        if "scaleface" in method:
            return pe.Scaled(direction, 1 / var)
        return pe.VonMisesFisher(direction, 1 / var) if method == "scf" else pe.Normal(features, var)

    monkeypatch.setattr(frozen, "learned", learned)


def test_a_watch_list_has_a_photograph_of_each_who_has_several(made):
    people, place = made.people, drawn_order(made.people, 0)
    counts, tested = np.bincount(people), ~fitted(people, 0)
    one, more = (faces.watch(people, place, tested, most) for most in (1, 99))
    np.testing.assert_array_equal(np.sort(people[one.enrolled]), np.sort(people[one.mates]))
    assert not set(one.enrolled) & set(more.mates) and set(counts[people[one.strangers]]) == {1}
    assert len(more.mates) == counts[people[one.enrolled]].sum() - len(one.enrolled)
    assert tested[np.concatenate(more)].all()


def test_the_best_item_is_another_one(made):
    rows = np.arange(60)
    way = faces.Way(pe.Point(made.clean), "cosine")
    best, scores = way.best(rows, rows)
    unit = made.clean[:60] / np.linalg.norm(made.clean[:60], axis=1, keepdims=True)
    cosine = unit @ unit.T - 2 * np.eye(60)
    np.testing.assert_array_equal(best, cosine.argmax(1))
    np.testing.assert_allclose(scores, cosine.max(1), atol=1e-6)  # of float32
    np.testing.assert_allclose(way.pairs(np.stack([rows, best], 1)), scores, atol=1e-6)


def test_normalised_pairs_and_best_items_agree(made):
    way = faces.Way(pe.Point(made.clean), "cosine", pe.Point(made.small))
    best, scores = way.best(np.arange(20), np.arange(50, 400))
    pairs = np.stack([np.arange(20), best], 1)
    np.testing.assert_allclose(way.pairs(pairs), scores, atol=1e-4)  # float32 scores over deviations of 0.05


def test_the_whole_set_agrees_with_plain_numpy(made):
    found = faces.whole(made, 0)
    unit = made.clean / np.linalg.norm(made.clean, axis=1, keepdims=True)
    cosine = unit @ unit.T - 2 * np.eye(len(unit))
    several = np.bincount(made.people)[made.people] > 1
    recall = 100 * (made.people[cosine.argmax(1)] == made.people)[several].mean()
    assert found["number, Recall@1, all photographs"] == pytest.approx([recall])
    assert found["spoilt, clean"][:2] == pytest.approx([several.sum(), recall])
    scores = unit[made.pairs[:, 0]] * unit[made.pairs[:, 1]]
    same, fold = made.people[made.pairs[:, 0]] == made.people[made.pairs[:, 1]], np.arange(200) // 20
    assert [int(same[fold == i].sum()) for i in range(10)] == 10 * [10]
    right = []
    for i in range(10):
        thresholds = np.unique(scores.sum(1)[fold != i])
        best = max(thresholds, key=lambda t: ((scores.sum(1) >= t) == same)[fold != i].mean())
        right.append(((scores.sum(1) >= best) == same)[fold == i].mean())
    assert found["number, ten folds by cosine, with standard error"][0] == pytest.approx(
        100 * np.mean(right), abs=1
    )  # thresholds may differ in a gap
    small = [found[f"spoilt, {side} pixels"][1] for side in (12, 96)]
    assert small[0] < small[1] <= recall + 5


def test_pixels_that_are_visible():
    x = Faces(*(np.zeros(3) for _ in range(4)), *(np.array(v) for v in ([12, 24, 38], [0, 4.0, 0], [0.3, 0, 0.45])),
              np.zeros(3), np.zeros((0, 2)))  # fmt: skip
    assert faces.visible(x, np.array([0, 1, 2])).tolist() == pytest.approx([CHIP**2, 24**2, 0.55 * CHIP**2])
    assert faces.visible(x, np.array([2, 2, 2]))[1] == pytest.approx((CHIP / 8) ** 2)


def test_promises_are_kept_by_tests_and_broken_by_curves(made):
    found = faces.promised(made, 0)
    for name, (broken, _, by_curve, _) in faces.starting("threshold", found).items():
        assert broken <= 15 and by_curve >= broken, name  # 10 % may be broken; 500 draws have a deviation of 1.3 points


def test_a_sure_head_gains_by_discarding_and_by_templates(made, heads):
    found = faces.mixed(made, 0)
    first, last = found["discard, pfe"][0], found["discard, pfe"][-1]
    assert found["discard, oracle"][-1] <= last < 0.8 * first
    assert found["learnable, head"][0] > 0.6
    for name, recalls in faces.starting("template", found).items():
        assert recalls[-1] > recalls[0], name


def test_a_way_without_error_is_judged_so(made):
    people = made.people
    centres = np.eye(people.max() + 1)[people]
    perfect = made._replace(clean=centres + 1e-3 * made.clean @ np.zeros((24, len(centres[0]))))
    way = faces.Way(pe.Point(perfect.clean), "cosine")
    tested = np.flatnonzero(~fitted(people, 0))
    of = faces.watch(people, drawn_order(people, 0), ~fitted(people, 0), 1)
    pairs = np.stack(np.triu_indices(len(tested), 1), 1)
    found = faces.judged(
        way, people, tested, tested[pairs], people[tested[pairs[:, 0]]] == people[tested[pairs[:, 1]]], of
    )
    np.testing.assert_allclose(found[:6], [100, 0, 100, 100, 100, 100])
