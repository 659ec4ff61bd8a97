"""Search leaves most pairs unscored and finds, to the last bit, what scoring all finds; on hostile galleries too."""

import itertools

import numpy as np
import pytest
from conftest import CLASSES, assert_ranking, build, every_score, make, to_numpy

import peaccel as pe
from peaccel.retrieval.plan import plan

SCORES = {
    "normal_isotropic": (
        *("mls", "llr:prior_var=0.01", "llr:prior_var=30", "ppk", "neg_kl", "inclusion", "neg_expected_sq_l2"),
        *("cosine", "expected_cosine", "norm_cosine:mu=0.2", "neg_w2"),
    ),
    "normal_diagonal": (
        *(*["mls"] * 4, "neg_w2", "llr:prior_var=0.3", "llr:prior_var=30", "ppk:rho=0.7", "ppk:rho=3", "inclusion"),
        *("neg_kl", "neg_kl:direction=gallery_to_query", "neg_kl:direction=symmetric", *["neg_mahalanobis"] * 3),
    ),
    "vmf": ("mls", "llr", "ppk:rho=0.3", "neg_kl", "inclusion", "expected_cosine"),
    "point": ("cosine", "inner_product", "neg_sq_l2", "norm_cosine:sides=query,mu=-0.1"),
    "scaled": ("scale_cosine:mu=0.1", "scale_cosine:mu=-0.3,sides=query"),
}
DIMS = (1, 2, 3, 5, 16, 33, 64, 128, 300)


def items(rng, kind, n, dim, shape):
    """Items around centres or not, unit or long; uncertainties over `powers` powers of ten around `base`."""
    mu = rng.standard_normal((n, dim))
    if shape["clustered"]:
        mu = np.random.default_rng(0).standard_normal((8, dim))[rng.integers(0, 8, n)] + shape["near"] * mu
    if CLASSES[kind][0]._unit or shape["unit"]:
        mu /= np.linalg.norm(mu, axis=1, keepdims=True)
    else:
        mu *= shape["length"] * shape["base"] ** 0.5
    uncertainty = 10.0 ** rng.uniform(-shape["powers"], shape["powers"], (n, dim) if CLASSES[kind][1] == 2 else n)
    return mu, uncertainty * (dim if kind == "vmf" else shape["base"])


def by_sorting(scores, k):
    """The best k of all scores: numbers, then NaN; ties to the lower row."""
    rows = np.broadcast_to(np.arange(scores.shape[1]), scores.shape)
    with np.errstate(invalid="ignore"):
        order = np.lexsort((rows, -np.nan_to_num(scores, nan=-np.inf, posinf=np.inf, neginf=-np.inf), np.isnan(scores)))
    order = order[:, :k]
    return np.take_along_axis(scores, order, 1), order


UNDERFLOWING = {
    "normal_isotropic": ("neg_kl", "neg_w2"),
    "vmf": ("neg_kl", "expected_cosine"),
    "scaled": ("scale_cosine",),
    "point": ("inner_product",),
}


@pytest.mark.parametrize(("dtype", "powers"), [("float32", range(-46, -8)), ("float64", range(-323, -300))])
@pytest.mark.parametrize("kind", UNDERFLOWING)
def test_scores_that_round_to_one_number_tie(kind, dtype, powers):
    """A score below the threshold that rounds to it, to a subnormal number or to 0, wins if its row is lower."""
    for score, power in itertools.product(UNDERFLOWING[kind], powers):
        rng, base = np.random.default_rng(power + 400), 10.0**power
        sides = []
        for n in (16, 300):
            mu = rng.standard_normal((n, 8))
            mu *= (1 if CLASSES[kind][0]._unit else base**0.5) / np.linalg.norm(mu, axis=1, keepdims=True)
            sides.append(build(kind, mu, base * rng.uniform(0.5, 2, n), dtype=dtype))
        q, g = sides
        expected = by_sorting(every_score(q, g, score), 12)
        for gallery, k in itertools.product((g, pe.prepare(g, score)), (1, 12)):
            assert_ranking(pe.search(q, gallery, k, score), [x[:, :k] for x in expected], f"{score} 1e{power}")


OVERFLOWING = {
    "normal_isotropic": ("mls", "llr:prior_var=1", "ppk", "inclusion", "neg_kl", "neg_mahalanobis"),
    "point": ("inner_product", "neg_sq_l2"),
}


@pytest.mark.parametrize("kind", OVERFLOWING)
@pytest.mark.filterwarnings("ignore:(invalid value|overflow|divide by zero):RuntimeWarning")
def test_scores_that_overflow_tie(kind):
    """In float32, of squared distances over variances, or of squared distances alone, some of which stay finite."""
    rng = np.random.default_rng(0)
    for score, power in itertools.product(OVERFLOWING[kind], np.linspace(36, 41, 21)):
        sides = []
        for n in (4, 400):
            mu = rng.standard_normal((n, 8)) * (1 if kind == "normal_isotropic" else 10.0 ** (power / 2 - 1))
            sides.append(build(kind, mu, np.full(n, 10.0**-power) * rng.choice([1, 2, 3], n), dtype="float32"))
        q, g = sides
        expected = by_sorting(every_score(q, g, score), 12)
        rows = np.tile(np.arange(400), (4, 1))
        for k in (1, 12):
            best, what = [x[:, :k] for x in expected], f"{score} 1e{power}"
            for gallery in (g, pe.prepare(g, score)):
                assert_ranking(pe.search(q, gallery, k, score), best, what)
            assert_ranking(pe.rerank(q, pe.prepare(g, score, codes=True), rows, k, score), best, what)


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("kind", SCORES)
@pytest.mark.filterwarnings("ignore:(invalid value|overflow|divide by zero):RuntimeWarning")
@pytest.mark.usefixtures("unlooked")
def test_search_finds_what_scoring_every_pair_finds(kind, seed):
    rng = np.random.default_rng([seed, list(SCORES).index(kind)])
    for score in SCORES[kind]:
        shape = {
            "clustered": rng.random() < 0.4,
            "unit": rng.random() < 0.5,
            "near": 10.0 ** rng.uniform(-4, 0),
            "length": rng.choice([0.01, 1, 1, 100, 1e6]),
            "powers": rng.choice([0, 0.01, 0.3, 1, 4]),
            "base": 10.0 ** rng.uniform(-6, 6),
        }
        dim = int(rng.choice(DIMS if not CLASSES[kind][0]._unit else DIMS[1:]))
        n, count, k = int(rng.integers(1, 4000)), int(rng.integers(1, 30)), int(rng.choice([1, 3, 10, 100]))
        dtype = str(rng.choice(["float32", "float64"]))
        (mu, uncertainty), (q_mu, q_uncertainty) = (items(rng, kind, m, dim, shape) for m in (n, count))
        if shape["clustered"]:
            q_mu[: count // 2] = mu[rng.integers(0, n, count // 2)]  # equal rows
        if rng.random() < 0.3:
            uncertainty[rng.integers(0, n, 1 + n // 10)] = rng.choice([np.nan, -1, 0, np.inf])
        if rng.random() < 0.2:
            mu[rng.integers(0, n)] = rng.choice([np.nan, 0, np.inf, 1e20])
        q, g = build(kind, q_mu, q_uncertainty, dtype=dtype), build(kind, mu, uncertainty, dtype=dtype)
        expected = by_sorting(every_score(q, g, score), k)
        bounded = kind == "normal_diagonal" and score.startswith(("mls", "llr", "ppk", "inclusion"))
        prunes = ("never", "always") if bounded else ("auto",)
        for pool, prune in itertools.product((g, pe.prepare(g, score)), prunes):
            ranking = pe.search(q, pool, k, score, prune=prune)
            kept = pe.Ranking(*(x[:, : expected[1].shape[1]] for x in ranking))
            assert_ranking(kept, expected, f"{score} {dtype} {n} x {dim}, {count} queries, k={k}, {prune}, {shape}")


def test_a_prepared_gallery_is_searched_in_the_order_of_its_uncertainty_and_answers_by_row():
    rng = np.random.default_rng(0)
    g = build("normal_isotropic", rng.standard_normal((3000, 8)), rng.permutation(3000) + 1.0, dtype="float32")
    prepared = pe.prepare(g, "mls")
    found = pe.search(g, prepared, 1, "mls")
    np.testing.assert_array_equal(found.ids, pe.search(g, g, 1).ids)
    assert prepared.nbytes <= 2 * g.mu.nbytes + 16 * len(g) + 4 * 64 * 8  # one packed copy, 16 bytes an item, padding


@pytest.mark.parametrize(
    ("kind", "score", "count"),
    [
        *((kind, "mls", 20) for kind in ("normal_isotropic", "vmf", "normal_diagonal")),
        ("normal_diagonal", "neg_mahalanobis", 20),
        ("point", "cosine", 1),
    ],
)
def test_search_says_how_much_it_scored(kind, score, count):
    rng = np.random.default_rng(1)
    shape = {"clustered": True, "unit": False, "near": 0.3, "length": 1, "powers": 0.2, "base": 0.05}
    g, q = (build(kind, *items(rng, kind, n, 32, shape), dtype="float32") for n in (9000, count))
    scored = pe.search(q, g, 5, score).scored
    assert scored == 1 if count == 1 else 0 < scored < 0.1


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
@pytest.mark.parametrize("kind", ["normal_isotropic", "vmf", "point", "normal_diagonal"])
@pytest.mark.parametrize("n", [63, 1100])
@pytest.mark.filterwarnings("ignore:(invalid value|overflow|divide by zero):RuntimeWarning")
@pytest.mark.usefixtures("unlooked")
def test_lists_of_any_length_hold_what_scoring_every_pair_finds(kind, dtype, n):
    """Lists from a few items to more than there are, with rows that are equal, NaN or not valid."""
    rng, score = np.random.default_rng(n), "neg_sq_l2" if kind == "point" else "mls"
    shape = {"clustered": True, "unit": False, "near": 0.4, "length": 1, "powers": 0.3, "base": 0.1}
    for dim in (3, 33, 97):
        mu, uncertainty = items(rng, kind, n, dim, shape)
        mu[rng.integers(0, n, n // 8)] = mu[rng.integers(0, n, n // 8)]
        mu[5] = np.nan
        uncertainty[6], uncertainty[n - 1] = np.nan, -1
        q = build(kind, mu[9:20], uncertainty[9:20], dtype="float64" if dtype == "float64" else "float32")
        g = build(kind, mu, uncertainty, dtype=dtype)
        for pool in (g, pe.prepare(g, score)):
            everything = every_score(q, pool, score)
            for k in (1, n // 20, n // 11, n // 10 + 1, n // 3, n - 1, n, n + 5):
                ranking, want = pe.search(q, pool, k, score), by_sorting(everything, k)
                assert_ranking(pe.Ranking(*(x[:, :n] for x in ranking)), want, f"k={k}, D={dim}")
                assert (ranking.ids[:, n:] == -1).all()
                assert np.isneginf(ranking.scores[:, n:]).all()


DIAGONAL = ("mls", "llr:prior_var=0.3", "ppk:rho=0.7", "inclusion")


@pytest.mark.parametrize(
    ("dtype", "score"),
    [
        *itertools.product(("float32", "float64"), DIAGONAL),
        ("float16", "mls"),
        ("bfloat16", "mls"),
        ("float16", "inclusion"),
    ],
)
def test_the_bound_rules_out_most_pairs_of_clustered_rows_and_no_right_one(dtype, score):
    rng = np.random.default_rng(2)
    shape = {"clustered": True, "unit": False, "near": 0.4, "length": 1, "powers": 0.3, "base": 0.1}
    g, q = (build("normal_diagonal", *items(rng, "normal_diagonal", n, 48, shape), dtype=dtype) for n in (20_000, 80))
    want = pe.search(q, g, 10, score, prune="never")
    assert want.scored < 0.4
    for pool in (g, pe.prepare(g, score)):
        for prune in ("auto", "always"):
            ranking = pe.search(q, pool, 10, score, prune=prune)
            assert_ranking(ranking, tuple(want), prune)
            assert ranking.scored < 0.4


@pytest.mark.parametrize("prune", ["never", "always"])
@pytest.mark.parametrize(("base", "rho"), [(1e-40, 1e-5), (1e-40, 1.0), (1e30, 1e-30), (1e34, 1e5), (1e-30, 1e30)])
def test_powers_that_move_variances_across_the_range_of_float32_lose_no_row(prune, base, rho):
    """A search scales variances by 1 / rho and a power of 4, whose product may be no number of float32."""
    rng, score = np.random.default_rng(6), pe.scores.ppk(rho=rho)
    shape = {"clustered": False, "unit": False, "length": 1, "powers": 0.5, "base": base}
    g, q = (build("normal_diagonal", *items(rng, "normal_diagonal", n, 21, shape), dtype="float32") for n in (700, 9))
    assert_ranking(pe.search(q, g, 5, score, prune=prune), by_sorting(every_score(q, g, score), 5), prune)


@pytest.mark.parametrize("direction", ["query_to_gallery", "gallery_to_query", "symmetric"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_divergences_are_found_by_their_inner_product(dtype, direction):
    rng, score = np.random.default_rng(4), f"neg_kl:direction={direction}"
    shape = {"clustered": True, "unit": False, "near": 0.4, "length": 1, "powers": 0.3, "base": 0.1}
    g, q = (build("normal_diagonal", *items(rng, "normal_diagonal", n, 48, shape), dtype=dtype) for n in (9000, 20))
    ranking = pe.search(q, g, 10, score)
    assert_ranking(ranking, by_sorting(every_score(q, g, score), 10), score)
    assert ranking.scored < 0.2


@pytest.mark.parametrize(("powers", "count", "taken"), [(0.1, 256, True), (0.1, 24, False), (1.5, 256, False)])
def test_auto_takes_the_bound_where_it_leaves_few_pairs_of_many_queries(powers, count, taken):
    rng = np.random.default_rng(3)
    shape = {"clustered": True, "unit": False, "near": 0.4, "length": 1, "powers": powers, "base": 0.1}
    g, q = (
        build("normal_diagonal", *items(rng, "normal_diagonal", n, 96, shape), dtype="float32") for n in (9000, count)
    )
    pe.set_num_threads(1)  # what threads find in each other's time rules out more or fewer pairs
    always, auto, never = (pe.search(q, g, 10, prune=prune) for prune in ("always", "auto", "never"))
    for found in (always, auto):
        assert_ranking(found, tuple(never))
    assert always.scored != never.scored
    assert auto.scored == (always if taken else never).scored


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("dim", [128, 256, 512])
def test_a_row_whose_inner_product_is_rounded_as_far_as_can_be_is_found(dim, dtype):
    """Each product is just below half a unit in the last place of a sum just above 1, so all are lost, on one side."""
    unit = np.finfo(dtype).eps
    a, b, near = np.zeros((3, dim), dtype)
    a[0], b[0] = -0.6185, 1
    a, b = a * (1.0005 / 1.1185) ** 0.5, b * (1.0005 / 1.1185) ** 0.5  # |b|^2 / 2 - a.b = 1.0005
    a[1:] = b[1:] = (0.49 * unit) ** 0.5
    # Another row, first in the gallery, is farther by a few roundings.
    near[0] = a[0] + ((a[0] - b[0]) ** 2 - (a[1:] @ a[1:])) ** 0.5 * (1 + 4 * unit)
    q, g = pe.Point(np.tile(a, (8, 1)).astype(dtype)), pe.Point(np.stack([near, *[10 * near] * 300, b]).astype(dtype))
    far, best = pe.pairwise(q[:1], g, "neg_sq_l2")[0, [0, -1]]
    assert far < best
    for pool in (g, pe.prepare(g, "neg_sq_l2")):
        ranking = pe.search(q, pool, 1, "neg_sq_l2")
        assert (ranking.ids == 301).all() and ranking.scored < 0.2


# Variances of both items at which the number under the logarithm is 1, where the scan's bound of it is tight.
TIGHT = {"mls": 0.5, "llr": 0.2 + 0.34**0.5, "ppk": 0.35, "inclusion": 2 / 3, "neg_kl": 1.0, "neg_mahalanobis": 0.5}


@pytest.mark.parametrize("score", [*DIAGONAL, "neg_kl", "neg_kl:direction=symmetric", "neg_mahalanobis"])
@pytest.mark.parametrize("prune", ["never", "always"])
def test_diagonal_rows_that_differ_by_roundings_are_told_apart(prune, score):
    rng = np.random.default_rng(0)
    for dim, far in itertools.product((1, 3, 8, 20, 64), (0, 0, 1, 30)):
        mu = rng.standard_normal(dim)
        q, g = (
            build(
                "normal_diagonal",
                np.tile(mu, (n, 1)) + far,
                TIGHT[score.partition(":")[0]] * (1 + 2.0**-22 * rng.uniform(-1, 1, (n, dim))),
                dtype="float32",
            )
            for n in (8, 600)
        )
        found = pe.search(q, g, 5, score, prune=prune)
        assert_ranking(found, by_sorting(every_score(q, g, score), 5), f"D={dim}, means around {far}")


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_few_queries_read_a_prepared_gallery_of_diagonal_normals_as_it_lies(library, monkeypatch):
    """More of them read its rows, means beside variances."""
    q, g = (make("normal_diagonal", n, 8, n, library=library) for n in (6, 300))
    prepared, seen = pe.prepare(g), []
    kernels = plan(q, prepared, "mls", detach=True).kernels

    def search(op, inputs, *rest):
        seen.append(np.shares_memory(to_numpy(inputs.mu2), to_numpy(g.mu)))
        return kernels.search(op, inputs, *rest)

    monkeypatch.setattr("peaccel.retrieval.plan.kernels_of", lambda mu: kernels._replace(search=search))
    for n, as_it_lies in ((1, True), (5, True), (6, False)):
        assert_ranking(pe.search(q[:n], prepared, 4), pe.search(q[:n], g, 4))
        assert seen == [as_it_lies, True]
        seen.clear()
