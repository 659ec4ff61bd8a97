"""`peaccel.metrics.Relevance`: what is right by pairs or by places, in metrics, in `pe.evaluate` and in the command."""

import json
import re

import command
import numpy as np
import pytest

import peaccel as pe
from peaccel import io, metrics
from peaccel.evaluation import mean_interval, verification_pairs
from peaccel.metrics import Relevance
from peaccel.metrics._relation import as_relation

Q, G = 40, 50


def sparse(own, seed=0, share=0.06):
    """Pairs at random, in disorder and some twice; and the matrix of them, without the diagonal where that is own."""
    rng = np.random.default_rng(seed)
    matrix = rng.random((Q, Q if own else G)) < share
    matrix[:3] = False  # these queries have no answer
    if own:
        matrix[5, 5] = True
    pairs = np.argwhere(matrix)
    pairs = rng.permutation(np.concatenate([pairs, pairs[:7]]))
    if own:
        np.fill_diagonal(matrix, False)
    return pairs, matrix, Relevance.from_pairs(pairs, Q, None if own else G)


def components(matrix, own):
    """Numbers of connected components [Q]: the smaller number goes along pairs until nothing changes."""
    of_queries = np.arange(Q)
    of_items = of_queries if own else Q + np.arange(matrix.shape[1])
    while True:
        before = of_queries.copy(), of_items.copy()
        for i, j in np.argwhere(matrix):
            of_queries[i] = of_items[j] = min(of_queries[i], of_items[j])
        if (before[0] == of_queries).all() and (before[1] == of_items).all():
            return of_queries


@pytest.mark.parametrize("own", [True, False])
@pytest.mark.parametrize("dtype", [np.int64, np.uint8, np.uint64])
def test_metrics_are_those_of_a_loop(own, dtype):
    _, matrix, relevance = sparse(own)
    items = matrix.shape[1]
    ids = np.random.default_rng(1).permuted(np.tile(np.arange(items), (Q, 1)), axis=1).astype(dtype)
    rows = [[j for j in row if not (own and j == i)] for i, row in enumerate(ids.tolist())]
    hits = np.array([[matrix[i, j] for j in row] for i, row in enumerate(rows)])
    sizes = matrix.sum(1)
    precision = hits * hits.cumsum(1) / np.arange(1, hits.shape[1] + 1)
    with np.errstate(invalid="ignore"):
        at_r = [p[:r].sum() / r for p, r in zip(precision, sizes, strict=True)]
        at_9 = precision[:, :9].sum(1) / np.minimum(sizes, 9)
    np.testing.assert_array_equal(metrics.relevance(ids, relevance), hits)
    np.testing.assert_array_equal(metrics.hit_at_k(ids, relevance, k=4), np.where(sizes, hits[:, :4].any(1), np.nan))
    np.testing.assert_allclose(metrics.average_precision_at_r(ids, relevance), at_r)
    np.testing.assert_allclose(metrics.average_precision_at_k(ids, relevance, k=9), at_9)
    assert metrics.recall_at_k(ids, relevance, k=4) == pytest.approx(hits[sizes > 0, :4].any(1).mean())
    assert metrics.map_at_r(ids, relevance) == pytest.approx(np.nanmean(at_r))


def test_no_id_is_right_for_nobody():
    relevance = Relevance.from_pairs([[0, 1], [1, 0]], 2, 2)  # (1, -1) has the code of (0, 1)
    assert metrics.relevance([[-1, 1], [-1, 0]], relevance).tolist() == [[False, True], [False, True]]
    assert not metrics.relevance([[0, 1]], Relevance.from_pairs(np.empty((0, 2), int), 1, 2)).any()


@pytest.mark.parametrize("own", [True, False])
def test_labels_and_the_pairs_that_they_mean_are_evaluated_alike(own):
    rng = np.random.default_rng(0)
    labels, others = rng.integers(0, 12, Q), rng.integers(2, 14, G)
    gallery = labels if own else others
    centres = 2 * rng.normal(size=(14, 4))
    d, g = (pe.Normal(centres[y] + rng.normal(size=(len(y), 4)), rng.uniform(1, 2, len(y))) for y in (labels, others))
    relevance = Relevance.from_pairs(np.argwhere(labels[:, None] == gallery), Q, None if own else G)
    by_labels = pe.evaluate(d, None if own else g, labels if own else (labels, others), k=(2,))
    by_pairs = pe.evaluate(d, None if own else g, relevance, k=(2,))
    for a, b in zip(by_labels.scores, by_pairs.scores, strict=True):
        for name in ("recall_at_1", "map_at_r", "gain_at_1"):  # the order of clusters is another
            one, two = getattr(a, name), getattr(b, name)
            assert (one.value, one.low, one.high) == pytest.approx((two.value, two.low, two.high), abs=0.04)
        assert (a.recall_at_k, a.roc_auc.value) == (b.recall_at_k, pytest.approx(b.roc_auc.value))
    for a, b in zip(by_labels.confidences, by_pairs.confidences, strict=True):
        assert (a.r_auroc.value, a.aurc.value, a.curve) == (b.r_auroc.value, b.aurc.value, b.curve)
    assert by_labels.unanswerable == by_pairs.unanswerable and by_labels.pairs == by_pairs.pairs
    assert f"{Q} queries of {len(np.unique(relevance.clusters))} groups" in str(by_pairs)


@pytest.mark.parametrize("own", [True, False])
@pytest.mark.parametrize("share", [0.005, 0.02, 0.06])
def test_clusters_are_connected_components(own, share):
    _, matrix, relevance = sparse(own, share=share)
    of = components(matrix, own)
    same = np.equal.outer(of, of)
    np.testing.assert_array_equal(np.equal.outer(relevance.clusters, relevance.clusters), same)


@pytest.mark.parametrize("own", [True, False])
@pytest.mark.parametrize("most", [10**6, 20])
def test_pairs_are_right_or_not_and_none_is_of_an_item_with_itself(own, most, monkeypatch):
    monkeypatch.setattr("peaccel.evaluation.drawn_pairs.PAIRS", most)
    _, matrix, relevance = sparse(own)
    pairs, same = verification_pairs(relevance, None, seed=2)
    assert (matrix[pairs[:, 0], pairs[:, 1]] == same).all() and same.sum() == (~same).sum() == min(most, matrix.sum())
    assert len(np.unique(pairs[same], axis=0)) == same.sum()
    assert not (own and (pairs[:, 0] == pairs[:, 1]).any())
    every = Relevance.from_pairs(np.argwhere(np.ones((3, 3))), 3, None if own else 3)
    assert verification_pairs(every, None)[0].shape == (0, 2)


@pytest.mark.parametrize("own", [True, False])
def test_places_within_a_radius(own):
    rng = np.random.default_rng(0)
    a = np.concatenate([rng.uniform(-200, 200, (Q - 3, 2)), [[0, 0], [15, 20], [0, 0]]])  # 25 away, and 0
    b = a if own else rng.uniform(-200, 200, (G, 2))
    found = Relevance.within(a, None if own else b, 25)
    near = np.hypot(*(a[:, None] - b).transpose(2, 0, 1)) <= 25
    if own:
        np.fill_diagonal(near, False)
        assert near[Q - 3, Q - 2] and near[Q - 3, Q - 1]
    np.testing.assert_array_equal(metrics.relevance(np.tile(np.arange(len(b)), (Q, 1)), found).sum(1), near.sum(1))
    np.testing.assert_array_equal(np.stack(np.divmod(found.codes, len(b)), 1), np.argwhere(near))
    together = np.equal.outer(found.clusters, found.clusters)
    apart = np.abs(a[:, None] - a).max(2)
    assert (apart[together] <= 50).all() and together.sum() > Q and not together.all()


def great_circle(a, b):
    """Metres by the spherical law of haversines, in its textbook form."""
    (lat1, lon1), (lat2, lon2) = np.radians(a), np.radians(b)
    h = np.sin((lat2 - lat1) / 2) ** 2 + np.cos(lat1) * np.cos(lat2) * np.sin((lon2 - lon1) / 2) ** 2
    return 2 * 6_371_008.8 * np.arcsin(np.sqrt(h))


@pytest.mark.parametrize(("centre", "radius"), [((52.5, 13.4), 25.0), ((-89.9999, 0), 25.0), ((0.0, 180), 3e6)])
def test_places_on_the_sphere_within_metres(centre, radius):
    """Also about a pole, and across the line where longitudes jump by 360."""
    rng = np.random.default_rng(0)
    spread = 2 * radius / 111_195  # degrees of latitude
    at = np.array(centre) + rng.uniform(-spread, spread, (60, 2)) * [1, 1 / np.cos(np.radians(centre[0]))]
    at[:, 1] = (at[:, 1] + 180) % 360 - 180
    at[:, 0] = at[:, 0].clip(-90, 90)
    a, b = at[:20], at[20:]
    far = np.array([[great_circle(x, y) for y in b] for x in a])
    assert np.abs(far / radius - 1).min() > 1e-6  # none so near the border that rounding decides
    found = Relevance.within(a, b, radius, metric="haversine")
    np.testing.assert_array_equal(np.stack(np.divmod(found.codes, 40), 1), np.argwhere(far <= radius))
    assert 50 < len(found.codes) < 700
    together = np.equal.outer(found.clusters, found.gallery_clusters)
    assert together.any() and (far[together] < 2 * np.sqrt(3) * radius * 1.1).all()  # the diagonal of a cube


def test_degrees_are_told_from_metres():
    """A city in degrees is refused for any radius in metres; metres are not, unless every item is right for all."""
    rng = np.random.default_rng(0)
    for centre in ((52.5, 13.4), (-33.9, 151.2), (0.3, -78.5)):
        city = centre + rng.uniform(-0.1, 0.1, (50, 2))
        for radius in (5, 25, 100):
            for gallery in (None, city[::2]):
                with pytest.raises(
                    ValueError,
                    match=r"^Relevance\.within: query_coords and gallery_coords look like degrees, as all of them",
                ):
                    Relevance.within(city, gallery, radius)
            with pytest.raises(ValueError, match="look like degrees"):
                Relevance.within(city[:5], city[5:], radius)
        Relevance.within(city, None, 0.001)  # degrees that are said to be so
    for size, radius in ((300, 25), (50, 5), (20, 1), (26, 25)):
        Relevance.within(rng.uniform(0, size, (50, 2)), None, radius)
    Relevance.within(rng.uniform(0, 3, (50, 3)), None, 25)  # in space
    Relevance.within(rng.uniform(4e5, 4e5 + 3, (50, 2)), None, 25)  # a grid of a country


def test_a_part_of_a_part_is_of_the_rows_of_the_whole():
    pairs, labels = Relevance.from_pairs([(7, 2), (6, 9), (8, 1)], 12), as_relation("", np.arange(12) % 3, None)
    for whole in (pairs, labels):
        once, twice = whole.part(6, 9), whole.part(2, 11).part(4, 7)
        assert (once.first, once.queries) == (twice.first, twice.queries) == (6, 3)
        asked = np.arange(3)[:, None], np.tile(np.arange(12), (3, 1))
        assert np.array_equal(once.right(*asked), twice.right(*asked))


def test_a_query_and_an_item_of_one_place_are_of_one_cluster():
    rng = np.random.default_rng(0)
    at = rng.uniform(0, 200, (30, 2))
    order = rng.integers(0, 30, 47)  # the gallery has as many places, some of them twice
    places = Relevance.within(at, at[order], 20)
    assert np.array_equal(places.gallery_clusters, places.clusters[order]) and len(np.unique(places.clusters)) > 5
    right = np.c_[np.arange(30), rng.permutation(47)[:30]]
    pairs = Relevance.from_pairs(right, 30, 47)
    assert np.array_equal(pairs.gallery_clusters[right[:, 1]], pairs.clusters)
    assert len(pairs.gallery_clusters) == 47 and len(np.unique(pairs.gallery_clusters)) == 47


def test_a_road_is_not_one_cluster():
    """Images 10 m apart are all connected; a bootstrap over the one component would have no width."""
    road = np.stack([np.arange(0, 2000, 10.0), np.zeros(200)], 1)
    found = Relevance.within(road, None, 25)
    assert len(np.unique(found.clusters)) == 40
    right = np.repeat(np.arange(40) % 2, 5)
    assert mean_interval(right, found.clusters).high - mean_interval(right, found.clusters).low > 0.2


WRONG = {
    "pairs of three": (
        lambda: Relevance.from_pairs([[0, 1, 2]], 3),
        "pairs has shape (1, 3) and dtype int64, expected",
    ),
    "pairs of floats": (lambda: Relevance.from_pairs([[0.0, 1.0]], 3), "dtype float64, expected integers (M, 2)"),
    "query": (lambda: Relevance.from_pairs([[3, 1]], 3, 9), "pairs name rows 3..3 of queries, expected 0..2"),
    "gallery": (lambda: Relevance.from_pairs([[0, -1]], 3, 9), "pairs name rows -1..-1 of gallery, expected 0..8"),
    "radius": (lambda: Relevance.within([[0.0, 1.0]], None, 0), "radius is 0, expected a finite number above 0"),
    "metric": (lambda: Relevance.within([[0.0, 1]], None, 1, metric="havesine"), "did you mean 'haversine'?"),
    "latitude": (
        lambda: Relevance.within([[0.0, 1]], [[91.0, 1]], 1, metric="haversine"),
        "gallery_coords has shape (1, 2) and reaches 91, expected latitudes in [-90, 90]",
    ),
    "space in degrees": (
        lambda: Relevance.within([[0.0, 1, 2]], None, 1, metric="haversine"),
        "query_coords has shape (1, 3) and reaches 2",
    ),
    "far": (
        lambda: Relevance.within([[0, 1e200]], None, 1),
        "query_coords and gallery_coords reach 1e+200, expected 1e150",
    ),
    "NaN": (lambda: Relevance.within([[0.0, np.nan]], None, 1), "1 of the 2 numbers of query_coords are NaN"),
    "space and plane": (lambda: Relevance.within([[0.0, 1]], [[0.0, 1, 2]], 1), "shape (1, 3), expected (1, 2)"),
    "both": (lambda: metrics.hit_at_k([[0]], sparse(False)[2], [1]), "gallery_labels is given beside a Relevance"),
    "ids": (lambda: metrics.hit_at_k([[0]], sparse(False)[2]), "ids has shape (1, 1), expected (40, K)"),
    "ids beyond": (lambda: metrics.hit_at_k([[G]] * Q, sparse(False)[2]), "ids span 50..50, expected -1..49"),
    "of others": (
        lambda: pe.evaluate(pe.Point(np.ones((Q, 2))), None, sparse(False)[2]),
        "labels is a Relevance of 40 queries and 50 gallery items, expected 40 queries among themselves",
    ),
    "nobody": (
        lambda: pe.evaluate(pe.Point(np.eye(2)), None, Relevance.from_pairs([[0, 0]], 2)),
        "no query has an answer in the gallery",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_is_said_in_one_line(case):
    call, message = WRONG[case]
    with pytest.raises(ValueError, match=re.escape(message)) as error:
        call()
    assert "\n" not in str(error.value)


# -- the command -------------------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    monkeypatch.chdir(tmp_path)
    for name, count in (("q", Q), ("g", G)):
        io.write_distribution(f"{name}.npz", pe.Normal(rng.normal(size=(count, 4)), rng.uniform(1, 2, count)))
        np.save(f"at_{name}.npy", rng.uniform(0, 150, (count, 2)))
    np.save("pairs.npy", sparse(False)[0])
    np.save("own.npy", sparse(True)[0])
    return tmp_path


def run(capsys, line):
    return command.run(capsys, "evaluate", line)


@pytest.mark.filterwarnings("ignore:.*look reversed")  # scores of random items
@pytest.mark.parametrize("own", [True, False])
@pytest.mark.parametrize("places", [True, False])
def test_the_command_takes_pairs_and_places(folder, capsys, own, places):
    sides = "--embeddings q.npz" if own else "--queries q.npz --gallery g.npz"
    coords = "--coords at_q.npy" if own else "--query-coords at_q.npy --gallery-coords at_g.npy"
    right = f"{coords} --radius 25" if places else f"--relevance {'own' if own else 'pairs'}.npy"
    code, out, err = run(capsys, f"{sides} {right} --out o")
    assert code == 0, err
    q, g, a, b = (*map(io.read_distribution, ("q.npz", "g.npz")), *map(np.load, ("at_q.npy", "at_g.npy")))
    relevance = Relevance.within(a, None if own else b, 25) if places else sparse(own)[2]
    assert str(pe.evaluate(q, None if own else g, relevance)) in out
    assert json.loads((folder / "o" / "results.json").read_text())["grouping"] == ("squares" if places else "groups")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("--embeddings q.npz --coords at_q.npy --out o", "; found --coords --embeddings"),
        ("--queries q.npz --gallery g.npz --relevance own.npy --radius 3 --out o", "--relevance; found --gallery --qu"),
        ("--queries q.npz --gallery g.npz --relevance at_q.npy --out o", "pairs has shape (40, 2) and dtype float64"),
        ("--embeddings q.npz --coords at_g.npy --radius 25 --out o", "a Relevance of 50 queries among themselves, exp"),
        ("--embeddings q.npz --coords at_q.npy --radius -1 --out o", "radius is -1.0, expected a finite number above"),
        ("--embeddings q.npz --relevance none.npy --out o", "none.npy: no such file"),
        ("--embeddings q.npz --relevance own.npy --coords-metric haversine --out o", "is haversine without --radius"),
        ("--embeddings q.npz --coords at_q.npy --radius 900 --coords-metric haversine --out o", "in [-90, 90]"),
    ],
)
def test_the_command_refuses_in_one_line(folder, capsys, line, message):
    code, _, err = run(capsys, line)
    assert code == 2 and err.count("\n") == 1 and message in err
