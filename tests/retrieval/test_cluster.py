"""`pe.cluster` beside scipy and a plain reference in float64, in any order of rows, and with further items."""

import numpy as np
import pytest
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.spatial.distance import squareform

import peaccel as pe


def made(seed, dtype=np.float64):
    """Items about 20 points, some of which are copies, so that scores are tied."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(2, 200))
    spread = rng.choice([0.1, 0.5, 1.0, 0.0], (n, 1))
    return pe.Point((rng.normal(size=(20, 6))[rng.integers(0, 20, n)] + rng.normal(size=(n, 6)) * spread).astype(dtype))


def among(items, score="neg_sq_l2"):
    """[N, N] scores, symmetric, an item's with itself 0."""
    scores = pe.pairwise(items, items, score).astype(np.float64)
    scores = (scores + scores.T) / 2
    np.fill_diagonal(scores, 0)
    return scores


def reference(scores, threshold):
    """Labels of average linkage: the best pair of all is joined, over and over."""
    groups = [[i] for i in range(len(scores))]
    while True:
        best, x, y = -np.inf, 0, 0
        for i, a in enumerate(groups):
            for j, b in enumerate(groups[:i]):
                if scores[np.ix_(a, b)].mean() > best:
                    best, x, y = scores[np.ix_(a, b)].mean(), i, j
        if best < threshold:
            return np.array([next(k for k, group in enumerate(groups) if i in group) for i in range(len(scores))])
        groups[y] += groups.pop(x)


def same(one, other):
    """Whether two labellings are of the same clusters."""
    pairs = set(zip(one.tolist(), other.tolist(), strict=True))
    return len(pairs) == len(set(one.tolist())) == len(set(other.tolist()))


@pytest.mark.parametrize("seed", range(20))
def test_over_all_pairs_it_is_scipys_average_linkage_in_any_order_of_rows(seed):
    items = made(seed, np.float32 if seed % 2 else np.float64)
    scores, rng = among(items), np.random.default_rng(seed)
    tree = linkage(squareform(-scores, checks=False), "average")
    order = rng.permutation(len(items))
    for share in (0.01, 0.05, 0.3):
        threshold = float(np.quantile(scores, share if share > 0.01 else 0.9))
        found = pe.cluster(items, threshold, "neg_sq_l2")
        assert same(found.labels, fcluster(tree, -threshold, "distance"))
        moved = pe.cluster(items[order], threshold, "neg_sq_l2")
        assert same(moved.labels, found.labels[order])
        for name in ("scores", "next_scores"):
            np.testing.assert_array_equal(getattr(moved, name), getattr(found, name)[order])


@pytest.mark.parametrize("seed", range(4))
def test_where_many_averages_are_tied_the_order_of_rows_changes_nothing(seed):
    """Of points of a grid, with copies: a tie is broken by what the items are, never by where they stand."""
    rng = np.random.default_rng(seed)
    items = pe.Point(rng.integers(0, 5, (80, 2)).astype(np.float32))
    found = pe.cluster(items, -1.5, "neg_sq_l2")
    assert 3 < len(found.sizes) < 20
    for _ in range(5):
        order = rng.permutation(80)
        assert same(pe.cluster(items[order], -1.5, "neg_sq_l2").labels, found.labels[order])


@pytest.mark.parametrize("seed", range(6))
def test_pairs_below_the_floor_count_as_the_floor(seed):
    items = made(seed)[:40]
    scores = among(items)
    threshold, floor = np.quantile(scores, [0.8, 0.5])
    found = pe.cluster(items, threshold, "neg_sq_l2", floor=floor)
    raised = np.maximum(scores, floor)
    assert same(found.labels, reference(raised, threshold)) and found.floor == floor
    for i, label in enumerate(found.labels):
        others = np.setdiff1d(np.flatnonzero(found.labels == label), [i])
        expected = raised[i, others].mean() if len(others) else np.nan
        np.testing.assert_allclose(found.scores[i], expected, rtol=1e-12)  # sums of 40 float64
        parts = [raised[i, found.labels == x] for x in range(len(found.sizes)) if x != label]
        means = [x.mean() for x in parts if (x > floor).any()]
        np.testing.assert_allclose(found.next_scores[i], max(means, default=-np.inf), rtol=1e-12)


def test_more_items_than_most_allows_have_a_floor_of_their_own():
    rng = np.random.default_rng(0)
    who = np.arange(300) // 3
    items = pe.Point(rng.normal(size=(100, 64))[who] + 0.2 * rng.normal(size=(300, 64)))
    found = pe.cluster(items, 0.7, "cosine", most=10_000)
    pairs, _ = found.pairs_to_check()  # half of them; all items are looked at, as there are fewer than are drawn
    assert len(pairs) == pytest.approx(5_000, rel=0.01) and same(found.labels, who)
    assert found.floor == pe.cluster(items[rng.permutation(300)], 0.7, "cosine", most=10_000).floor
    assert str(found).endswith(f"where pairs below {found.floor:.6g} count as that")


@pytest.mark.parametrize("seed", range(6))
def test_further_items_join_or_open_a_cluster_and_earlier_ones_keep_theirs(seed):
    items = made(seed)[:40]
    scores, first = among(items), len(items) * 2 // 3
    threshold = float(np.quantile(scores, 0.7))
    before = pe.cluster(items[:first], threshold, "neg_sq_l2")
    after = before.add(items[first:])
    np.testing.assert_array_equal(after.labels[:first], before.labels)
    # Earlier clusters stand for one item each, as wide as they are, which the reference does not join.
    groups = [np.flatnonzero(before.labels == x) for x in range(len(before.sizes))]
    groups += [np.array([i]) for i in range(first, len(items))]
    assert same(after.labels, grouped(scores, groups, len(before.sizes), threshold))
    assert (np.diff(after.sizes[len(before.sizes) :]) <= 0).all() and after.sizes.sum() == len(items)
    order = np.random.default_rng(seed).permutation(len(items) - first)
    moved = before.add(items[first:][order])
    assert same(moved.labels[first:], after.labels[first:][order])


def grouped(scores, groups, held, threshold):
    """`reference` from groups on, of which the first are never joined with each other."""
    groups, held = [list(x) for x in groups], [True] * held + [False] * (len(groups) - held)
    while True:
        pairs = [(scores[np.ix_(groups[i], groups[j])].mean(), i, j) for i in range(len(groups)) for j in range(i)
                 if not (held[i] and held[j])]  # fmt: skip
        best, x, y = max(pairs, default=(-np.inf, 0, 0))
        if best < threshold:
            break
        groups[y] += groups.pop(x)
        held[y] |= held.pop(x)
    labels = np.empty(len(scores), np.int64)
    for label, group in enumerate(groups):
        labels[group] = label
    return labels


def test_unsure_items_are_assigned_last_or_stay_alone():
    """One between two clusters stays alone, whatever it was joined with; one beside a single cluster joins it."""
    angles = np.radians([0, 1, 2, 60, 61, 62, 30.5, -20])
    items = pe.Point(np.stack([np.cos(angles), np.sin(angles)], 1))
    assert pe.cluster(items, 0.85).labels.tolist() in ([0, 0, 0, 1, 1, 1, 1, 0], [0, 0, 0, 1, 1, 1, 0, 0])
    found = pe.cluster(items, 0.85, margin=0.05)
    assert found.labels.tolist() == [0, 0, 0, 1, 1, 1, 2, 0]
    unsure = found.add(items[[6, 1]])
    assert unsure.labels[-1] == 0 and unsure.labels[-2] == 2  # a copy of the one that is alone is surely with it


def test_probabilities_are_those_of_the_other_items_of_the_cluster():
    items, probability = made(3), pe.LogisticProbability(bias=3.0, weights=(0.5,))
    scores = among(items)
    found = pe.cluster(items, float(np.quantile(scores, 0.8)), "neg_sq_l2", probability=probability)
    label = found.labels[0]
    others = np.flatnonzero(found.labels == label)[1:]
    np.testing.assert_allclose(found.probabilities[0], probability(scores[0, others]).mean(), rtol=1e-6)  # of float32
    assert pe.cluster(items, -1.0, "neg_sq_l2").probabilities is None


def test_exact_copies_are_joined_and_nothing_else_is():
    """Whose scores are infinite, between items without variance."""
    found = pe.cluster(pe.Normal(np.eye(4)[[0, 1, 1, 2]], np.zeros(4)), 0.0, "mls")
    assert found.labels.tolist() == [1, 0, 0, 2] and found.sizes.tolist() == [2, 1, 1]


def test_a_threshold_that_promises_nothing_joins_nothing():
    limit = pe.FalseMatchLimit(np.inf, 0.01, 0.05, 2, 0, of="pairs", score="cosine")
    assert (pe.cluster(pe.Point(np.ones((3, 2))), limit).sizes == 1).all()


def test_the_threshold_of_pairs_is_applied_and_pairs_are_checked_by_its_scores():
    rng = np.random.default_rng(0)
    who = np.arange(400) // 4
    items = pe.Point(rng.normal(size=(100, 16))[who] + 0.5 * rng.normal(size=(400, 16)))
    pairs = rng.integers(0, 400, (4000, 2))
    pairs = np.concatenate([pairs[pairs[:, 0] != pairs[:, 1]], np.stack([np.arange(399), np.arange(1, 400)], 1)])
    scores = pe.paired(items[pairs[:, 0]], items[pairs[:, 1]], "cosine")
    choice = pe.choose_pair_threshold(scores, who[pairs[:, 0]] == who[pairs[:, 1]], far=0.01)
    found = pe.cluster(items, choice.accept)
    assert found.threshold == choice.accept.threshold
    pairs, scores = found.pairs_to_check()
    assert (np.diff(abs(scores - found.threshold)) >= 0).all() and (pairs[:, 0] < pairs[:, 1]).all()
    labels = {}
    while len((plan := pe.answers_to_check(scores, labels, wrong=0.1)).rows):
        labels |= {int(row): bool(who[pairs[row, 0]] == who[pairs[row, 1]]) for row in plan.rows}
    again = pe.cluster(items, plan.accept.threshold)
    together = again.labels[pairs[:, 0]] == again.labels[pairs[:, 1]]
    assert together.sum() > 300 and (who[pairs[:, 0]] == who[pairs[:, 1]])[together].mean() > 0.9


def test_tensors_have_the_clusters_of_arrays():
    torch = pytest.importorskip("torch")
    items = made(5, np.float32)
    tensors = pe.Point(torch.from_numpy(items.mu))
    one, other = (pe.cluster(x[:30], -4.0, "neg_sq_l2").add(x[30:]) for x in (items, tensors))
    np.testing.assert_array_equal(one.labels, other.labels)


@pytest.mark.parametrize("count", [0, 1])
def test_no_pair_is_no_error(count):
    found = pe.cluster(pe.Point(np.ones((count, 3))), 0.5)
    assert len(found.labels) == count and str(found).startswith(f"{count} items in 0 clusters")
    assert found.add(pe.Point(np.ones((2, 3)))).labels.tolist() == [0] * (count + 2)


OF_ANSWERS = pe.FalseMatchLimit(0.5, 0.01, 0.05, 1000, 4)
OF_MLS = pe.FalseMatchLimit(0.5, 0.01, 0.05, 1000, 4, of="pairs", score="mls")


@pytest.mark.parametrize(
    ("options", "kind", "says"),
    [
        ({"threshold": "high"}, TypeError, "cluster: threshold must be a number, got str"),
        ({"threshold": np.nan}, ValueError, "cluster: threshold is nan"),
        ({"threshold": OF_ANSWERS}, ValueError, "cluster: threshold is of the answers of searches"),
        ({"threshold": OF_MLS}, ValueError, "cluster: the threshold is of mls, and scores are of cosine"),
        ({"floor": 0.5}, ValueError, "cluster: floor is 0.5, expected less than the threshold, 0.5"),
        ({"floor": "low"}, TypeError, "cluster: floor must be a number, got str"),
        ({"margin": -1.0}, ValueError, "cluster: margin is -1, expected a finite number >= 0"),
        ({"most": 0}, ValueError, "cluster: most is 0"),
        ({"most": 2, "floor": -1.0}, ValueError, "more than 2 pairs reach the threshold"),
        ({"most": 2, "threshold": 0.0}, ValueError, "about half of most=2 pairs reach it"),
        ({"probability": OF_MLS}, TypeError, "cluster: probability is FalseMatchLimit, expected the result of"),
        ({"items": np.ones((3, 2))}, TypeError, "cluster: items must be a distribution, got ndarray"),
    ],
)
def test_errors_name_the_argument(options, kind, says):
    with pytest.raises(kind, match=says):
        pe.cluster(**{"items": pe.Point(np.ones((5, 2))), "threshold": 0.5, **options})
