"""Order, padding and exactness of rerank and search, and what a Prepared gallery is good for."""

import subprocess
import sys

import numpy as np
import pytest
import torch
from conftest import CLASSES, as_library, assert_ranking, build, every_score, make, to_numpy

import peaccel as pe

LLR = pe.scores.llr(prior_var=0.7)
# Every kernel of every score that searches: (score, query kind, gallery kind).
SEARCHES = [
    *(("mls", q, g) for q in ("normal_isotropic", "normal_diagonal", "point") for g in ("normal_isotropic",)),
    *(("mls", q, g) for q in ("normal_isotropic", "normal_diagonal", "point") for g in ("normal_diagonal",)),
    ("mls", "vmf", "vmf"),
    (LLR, "normal_isotropic", "normal_isotropic"),
    (LLR, "normal_diagonal", "normal_diagonal"),
    (LLR, "point", "normal_isotropic"),
    ("llr", "vmf", "vmf"),
    ("cosine", "point", "point"),
    ("inner_product", "point", "point"),
    ("neg_sq_l2", "point", "point"),
    ("expected_cosine", "normal_isotropic", "normal_isotropic"),
    ("expected_cosine", "vmf", "vmf"),
    ("neg_expected_sq_l2", "normal_diagonal", "normal_isotropic"),
    ("neg_expected_sq_l2", "vmf", "vmf"),
]
NAMES = [f"{s if isinstance(s, str) else s.name}-{q}-{g}" for s, q, g in SEARCHES]


def sorted_rows(scores, rows, k):
    """The contract, spelled out: higher first, NaN after all numbers, ties to the lower row, then padding."""
    order = np.lexsort((rows, -scores + 0.0, np.isnan(scores)))[:k]
    pad = k - len(order)
    return np.r_[scores[order], [-np.inf] * pad], np.r_[rows[order], [-1] * pad]


def brute_force(q, g, k, score):
    """The best k by sorting all scores."""
    found = [sorted_rows(row, np.arange(len(g)), k) for row in to_numpy(every_score(q, g, score))]
    return tuple(np.array(x).reshape(len(q), k) for x in zip(*found, strict=True))


# -- search is a sort of everything ------------------------------------------------------------------------------------


def items(kind, data, n, dim, seed):
    """Items of a kind that are hard to rank in one way; float32."""
    rng = np.random.default_rng([seed, n, dim])
    mu = rng.standard_normal((n, dim))
    uncertainty = np.exp(rng.uniform(-2, 2, (n, dim)))
    if data == "clustered":  # all within rounding of a few centres, far from the origin
        mu = 100 + rng.standard_normal((3, dim))[rng.integers(0, 3, n)] + 1e-6 * mu
    elif data == "duplicated":
        rows = rng.integers(0, max(1, n // 10), n)
        mu, uncertainty = mu[rows], uncertainty[rows]
    elif data == "integers":  # few distinct scores: many ties
        mu, uncertainty = rng.integers(-1, 2, (n, dim)).astype(float), 2.0 ** rng.integers(0, 2, (n, dim))
    elif data == "huge":  # squared norms of some overflow float32
        mu *= 10.0 ** rng.choice([0, 6, 15, 18, 19, 20], (n, 1))
    elif data == "tiny":  # squares of some underflow
        mu *= 10.0 ** rng.choice([0, -6, -15, -20, -23, -30], (n, 1))
    elif data == "uncertain":
        uncertainty = 10.0 ** rng.uniform(-12, 12, (n, dim))
    elif data == "broken":  # NaN, infinite, negative, zero
        mu[rng.random(n) < 0.2, 0] = np.nan
        mu[rng.random(n) < 0.1, -1] = np.inf
        mu[rng.random(n) < 0.1] = 0
        uncertainty[rng.random(n) < 0.2] = -1
    elif data == "identical":
        mu, uncertainty = mu[:1].repeat(n, 0), uncertainty[:1].repeat(n, 0)
    if CLASSES[kind][0]._unit and data in ("plain", "uncertain", "duplicated", "identical"):
        mu /= np.linalg.norm(mu, axis=1, keepdims=True)
    with np.errstate(over="ignore"):
        return build(kind, mu, uncertainty[:, 0] if CLASSES[kind][1] == 1 else uncertainty, dtype="float32")


DATA = ("plain", "clustered", "duplicated", "integers", "huge", "tiny", "uncertain", "broken", "identical")
SIZES = [(1, 17, 8), (5, 1, 3), (3, 100, 33), (70, 211, 16), (4, 1000, 2), (300, 65, 4)]  # Q, G, D


@pytest.mark.one_in(2)
@pytest.mark.parametrize("data", DATA)
@pytest.mark.parametrize(("score", "q_kind", "g_kind"), SEARCHES, ids=NAMES)
@pytest.mark.filterwarnings("ignore:(invalid value|overflow|divide by zero):RuntimeWarning")  # numpy, of broken data
@pytest.mark.usefixtures("unlooked")
def test_search_is_a_sort_of_all_scores(score, q_kind, g_kind, data):
    for queries, gallery, dim in SIZES:
        q, g = items(q_kind, data, queries, dim, 1), items(g_kind, data, gallery, dim, 2)
        if data == "clustered":  # the hardest: queries among the gallery's own items
            q = items(q_kind, data, queries, dim, 2)
        prepared = pe.prepare(g, score)
        widths = sorted({1, 2, 10, gallery, gallery + 3})
        whole = brute_force(q, g, widths[-1], score)
        for k in widths:
            expected = tuple(x[:, :k] for x in whole)
            assert_ranking(pe.search(q, g, k, score), expected, f"Q={queries} G={gallery} D={dim} k={k}")
            assert_ranking(pe.search(q, prepared, k, score), expected, f"prepared Q={queries} G={gallery} k={k}")


@pytest.mark.parametrize(
    ("score", "kind"), [("mls", "normal_isotropic"), ("mls", "normal_diagonal"), ("cosine", "point")]
)
@pytest.mark.parametrize("data", ["duplicated", "integers", "identical", "broken"])
@pytest.mark.usefixtures("unlooked")
def test_ties_go_to_the_lower_row_over_shards_and_threads(score, kind, data):
    q, g = items(kind, data, 5, 3, 1), items(kind, data, 50_001, 3, 2)
    prepared = pe.prepare(g, score)
    expected = brute_force(q, g, 40, score)
    for threads in (1, 3):
        pe.set_num_threads(threads)
        assert_ranking(pe.search(q, g, 40, score), expected)
        assert_ranking(pe.search(q, prepared, 40, score), expected)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("dim", [1, 7, 16, 65, 130])
def test_search_holds_in_both_dtypes_and_all_widths(dim, dtype):
    for score, kind in (("mls", "normal_isotropic"), ("cosine", "point"), ("mls", "normal_diagonal"), (LLR, "point")):
        g = make("normal_isotropic" if score is LLR else kind, 333, dim, 1, dtype=dtype)
        q = make(kind, 20, dim, 2, dtype=dtype)
        assert_ranking(pe.search(q, g, 9, score), brute_force(q, g, 9, score))
        assert_ranking(pe.search(q, pe.prepare(g, score), 9, score), brute_force(q, g, 9, score))


@pytest.mark.parametrize(("dtype", "exponents"), [("float32", (-24, -21)), ("float64", (-163, -160))])
@pytest.mark.parametrize("score", ["mls", LLR, "neg_sq_l2", "cosine"], ids=["mls", "llr", "neg_sq_l2", "cosine"])
def test_search_is_exact_where_squares_are_subnormal(score, dtype, exponents):
    """There a rounding is no longer relative to the number, so a relative slack of the sieve is not enough."""
    rng = np.random.default_rng(0)
    for exponent in np.linspace(*exponents, 7):
        scale = 10.0**exponent
        q, g = (pe.Normal(rng.standard_normal((n, 19)) * scale, np.full(n, scale) * scale) for n in (20, 301))
        if dtype == "float32":
            q, g = q.to(dtype), g.to(dtype)
        for k in (1, 10):
            assert_ranking(pe.search(q, g, k, score), brute_force(q, g, k, score), f"scale 1e{exponent}")


MEMORY = """
import numpy as np, peaccel as pe

def peak():
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM")) / 1024

def items(n):
    rng = np.random.default_rng(n)
    shape = (n, 8) if {diagonal} else n
    mu = rng.standard_normal((n, 8), dtype=np.float32)
    mu /= np.linalg.norm(mu, axis=1, keepdims=True)
    return pe.{kind}(mu, rng.random(shape, dtype=np.float32) + 0.5)

queries, gallery = items(512), items({size})
gallery = pe.prepare(gallery, "{score}") if {prepared} else gallery
pe.search(queries[:4], gallery, 10, "{score}")  # threads and their stacks
before = peak()
pe.search(queries, gallery, 10, "{score}")
print(peak() - before)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
@pytest.mark.parametrize("prepared", [False, True])
@pytest.mark.parametrize(
    ("score", "kind", "diagonal", "size"),
    [
        ("mls", "Normal", False, 200_000),
        ("expected_cosine", "Normal", False, 200_000),
        ("neg_expected_sq_l2", "Normal", True, 200_000),
        ("mls", "Normal", True, 40_000),  # fewer where every pair is scored, as it takes seconds
        ("mls", "VonMisesFisher", False, 20_000),
    ],
)
def test_search_never_holds_a_matrix_of_scores(score, kind, diagonal, size, prepared):
    # In a process of its own: the peak of a process never falls, and tracemalloc does not see Rust.
    code = MEMORY.format(score=score, kind=kind, diagonal=diagonal, size=size, prepared=prepared)
    grown = float(subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout)
    matrix = 512 * size * 4 / 2**20
    assert grown < matrix / 4, f"{grown:.1f} MB more, the matrix would take {matrix:.1f} MB"


# -- rerank ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("score", "q_kind", "g_kind"), SEARCHES, ids=NAMES)
@pytest.mark.parametrize("data", ["plain", "integers", "broken"])
@pytest.mark.filterwarnings("ignore:(invalid value|overflow|divide by zero):RuntimeWarning")
@pytest.mark.usefixtures("unlooked")
def test_rerank_is_a_sort_of_the_candidates_without_the_missing(score, q_kind, g_kind, data):
    rng = np.random.default_rng(0)
    q, g = items(q_kind, data, 6, 12, 1), items(g_kind, data, 40, 12, 2)
    candidates = np.array([rng.permutation(np.arange(-10, 40).clip(min=-1))[:25] for _ in range(6)])
    candidates[0] = -1
    scores = pe.rescore(q, g, candidates, score)
    assert (scores[candidates == -1] == -np.inf).all()
    for k in (1, 7, 25, 30):
        kept = [(row[ids >= 0], ids[ids >= 0]) for row, ids in zip(scores, candidates, strict=True)]
        expected = [np.array(x) for x in zip(*(sorted_rows(row, ids, k) for row, ids in kept), strict=True)]
        assert_ranking(pe.rerank(q, g, candidates, k, score), expected, f"k={k}")
        assert_ranking(pe.rerank(q, pe.prepare(g, score), candidates, k, score), expected, f"prepared k={k}")


def test_numbers_come_before_nan_and_nan_before_padding_and_minus_infinity_is_a_number():
    q = pe.Normal(np.zeros((1, 2)), np.ones(1))
    g = pe.Normal(np.array([[0, 1], [np.nan, 0], [0, 1e200], [0, 0], [np.nan, 1], [0, 0]]), np.ones(6))
    for ranking in (pe.search(q, g, 8), pe.rerank(q, g, np.array([[5, 4, 3, 2, 1, 0]]), 8)):
        assert ranking.ids.tolist() == [[3, 5, 0, 2, 1, 4, -1, -1]]
        assert np.isnan(ranking.scores[0, 4:6]).all() and (ranking.scores[0, [3, 6, 7]] == -np.inf).all()


def test_a_candidate_listed_twice_is_ranked_twice():
    q, g = make("point", 1, 3), make("point", 4, 3, 1)
    ranking = pe.rerank(q, g, np.array([[2, 1, 2]]), 3, "neg_sq_l2")
    assert sorted(ranking.ids[0].tolist()) == [1, 2, 2]


DRAWN = [
    *(("hib", kind, kind) for kind in ("normal_isotropic", "normal_diagonal")),
    *(("sampled_cosine", kind, kind) for kind in ("normal_diagonal", "vmf")),
    *(("nivmf", kind, "nivmf") for kind in ("vmf", "point")),
    ("el_nivmf", "vmf", "nivmf"),
]


@pytest.mark.parametrize("library", ["numpy", "torch"])
@pytest.mark.parametrize(
    ("score", "q_kind", "g_kind"),
    [
        ("nivmf", "point", "nivmf"),
        ("norm_cosine", "point", "point"),
        *((name, "normal_diagonal", "normal_diagonal") for name in ("neg_expected_sq_l2", "neg_csd")),
    ],
)
def test_lengths_and_traces_of_rows_that_lie_across_memory_have_the_same_bits(score, q_kind, g_kind, library):
    """Sums of numpy and torch go by the layout."""

    def across(d):
        return type(d)(*(x.T.contiguous().T if library == "torch" else np.asfortranarray(x) for x in d.arrays))

    q, g = (make(kind, 40, 37, seed, dtype="float32", library=library) for kind, seed in ((q_kind, 0), (g_kind, 1)))
    assert np.array_equal(pe.pairwise(across(q), across(g), score), pe.pairwise(q, g, score))
    assert np.array_equal(pe.paired(across(q), across(g), score), pe.paired(q, g, score))


@pytest.mark.parametrize("library", ["numpy", "torch"])
@pytest.mark.parametrize(("score", "q_kind", "g_kind"), [*SEARCHES, *DRAWN])
def test_no_queries_no_gallery_and_no_candidates_are_empty_results(score, q_kind, g_kind, library):
    def ids(*shape):
        return as_library(np.zeros(shape), library).to(torch.int64) if library == "torch" else np.zeros(shape, np.int64)

    none_q, q = (make(q_kind, n, 6, library=library) for n in (0, 3))
    none_g, g = (make(g_kind, n, 6, library=library) for n in (0, 4))
    for gallery, empty in ((g, none_g), (pe.prepare(g, score), pe.prepare(none_g, score))):
        assert tuple(pe.pairwise(none_q, gallery, score).shape) == (0, 4)
        assert tuple(pe.pairwise(q, empty, score).shape) == (3, 0)
        assert tuple(pe.paired(none_q, empty, score).shape) == (0,)
        assert tuple(pe.rescore(q, gallery, ids(3, 0), score).shape) == (3, 0)
        assert tuple(pe.rescore(none_q, gallery, ids(0, 5), score).shape) == (0, 5)
        assert bool((pe.rescore(q, empty, ids(3, 2) - 1, score) == -np.inf).all())
        for ranking in (
            pe.search(q, empty, 2, score),
            pe.rerank(q, gallery, ids(3, 0), 2, score),
            pe.rerank(q, empty, ids(3, 2) - 1, 2, score),
        ):
            assert bool((ranking.ids == -1).all()) and bool((ranking.scores == -np.inf).all())
            assert tuple(ranking.ids.shape) == tuple(ranking.scores.shape) == (3, 2)
        assert tuple(pe.search(none_q, gallery, 2, score).ids.shape) == (0, 2)


def test_arrays_that_are_strided_reversed_misaligned_expanded_or_read_only_score_as_their_copies():
    base, rows = np.random.default_rng(0).standard_normal((20, 24)), np.arange(5)
    constant = np.broadcast_to(np.float64(0.5), (5, 6))
    own = pe.search(pe.Normal(base[:5, :6].copy(), constant.copy()), pe.Normal(base[:5, :6].copy(), np.ones(5)), 3)
    expected = pe.search(pe.Normal(base[:5, :6].copy(), constant), pe.Normal(base[:5, :6].copy(), 1.0), 3)
    # Variances that are one in memory are scored by one product, whose sums have another order.
    np.testing.assert_array_equal(own.ids, expected.ids)
    np.testing.assert_allclose(own.scores, expected.scores, rtol=1e-14)
    frozen = base[:5, :6].copy()
    frozen.flags.writeable = False
    transposed = np.asfortranarray(base[:5, :6])
    spread = np.zeros((10, 12))
    spread[::2, ::2] = base[:5, :6]
    backwards = base[:5, :6][::-1, ::-1].copy()[::-1, ::-1]
    swapped = base[:5, :6].astype(">f8")
    misaligned = np.frombuffer(b"\0" + frozen.tobytes(), np.uint8)[1:].view(np.float64).reshape(5, 6)
    for mu in (base[:5, :6], frozen, transposed, spread[::2, ::2], backwards, swapped, misaligned):
        ranking = pe.search(pe.Normal(mu, constant), pe.Normal(mu, np.broadcast_to(np.float64(1), 5)), 3)
        assert_ranking(ranking, expected)
        candidates = np.tile(rows[::-1], (5, 2))[:, ::2]
        full = pe.rerank(pe.Normal(mu, constant), pe.Normal(mu, np.ones(5)), candidates, 3)
        assert full.ids.shape == (5, 3)


@pytest.mark.parametrize("library", ["numpy", "torch"])
@pytest.mark.parametrize("score", ["mls", "cosine", "neg_sq_l2"])
def test_broadcast_arrays_score_as_their_copies(score, library):
    """A view that repeats one element takes no memory: rows of mu, of var, and all of both."""
    q, g = make("normal_diagonal", 3, 4), make("normal_diagonal", 5, 4, 1)
    for mu, var in ((g.mu[:, :1], g.var), (g.mu[:1], g.var), (g.mu, g.var[:, :1]), (g.mu[:1, :1], g.var[:1, :1])):
        views = [np.broadcast_to(x, (5, 4)) for x in (mu, var)]
        expanded = [torch.tensor(x).expand(5, 4) for x in (mu, var)] if library == "torch" else views
        other, copied = (build("normal_diagonal", *d, library=library) for d in (q.arrays, views))
        repeated = pe.Normal(*expanded)
        expected = to_numpy(pe.pairwise(other, copied, score))
        np.testing.assert_array_equal(pe.pairwise(other, repeated, score), expected)
        np.testing.assert_array_equal(
            to_numpy(pe.pairwise(repeated, other, score)), to_numpy(pe.pairwise(copied, other, score))
        )
        np.testing.assert_array_equal(pe.pairwise(other, pe.prepare(repeated, score), score), expected)


def test_candidates_of_any_integer_dtype_and_layout_give_the_same():
    q, g = make("point", 3, 5), make("point", 9, 5, 1)
    ids = np.array([[0, 3, 8, 1], [4, 4, 2, 0], [8, 7, 6, 5]])
    expected = pe.rerank(q, g, ids, 4, "cosine")
    for dtype in (np.int8, np.int16, np.int32, np.uint8, np.uint64, ">i8"):
        assert_ranking(pe.rerank(q, g, ids.astype(dtype), 4, "cosine"), (expected.scores, expected.ids))
    for same in (ids.tolist(), np.asfortranarray(ids), ids[:, ::-1].copy()[:, ::-1]):
        assert_ranking(pe.rerank(q, g, same, 4, "cosine"), (expected.scores, expected.ids))


@pytest.mark.parametrize("of_one", [[[3], [2], [5]], [[3, 1, 5, 1]], [[4]]])
def test_candidates_that_repeat_one_number_or_one_row_in_memory(of_one):
    q, g = make("point", 3, 5), make("point", 9, 5, 1)
    ids = np.broadcast_to(of_one, (3, 4))
    expected, scores = pe.rerank(q, g, ids.copy(), 4, "cosine"), pe.rescore(q, g, ids.copy(), "cosine")
    assert_ranking(pe.rerank(q, g, ids, 4, "cosine"), (expected.scores, expected.ids))
    np.testing.assert_array_equal(pe.rescore(q, g, ids, "cosine"), scores)
    leaves = [torch.tensor(d.mu).requires_grad_() for d in (q, g)]
    repeated = torch.tensor(of_one).expand(3, 4)
    gradients = []
    for candidates in (repeated, repeated.clone()):
        scores = pe.rescore(*map(pe.Point, leaves), candidates, "cosine")
        gradients.append(torch.autograd.grad(scores.square().sum(), leaves))
    torch.testing.assert_close(*gradients, rtol=0, atol=0)


def test_one_row_under_a_new_axis_is_its_items_own():
    rng = np.random.default_rng(0)
    mu, var = rng.normal(size=(5, 4)), rng.uniform(0.1, 1, (5, 4))
    blocks = [pe.Normal(m[None], v[None]) for m, v in zip(mu, var, strict=True)]
    found = pe.search(pe.Point(mu), blocks, 2)
    assert_ranking(found, tuple(pe.search(pe.Point(mu), pe.Normal(mu, var), 2)))
    assert pe.Normal(mu[:1], np.broadcast_to(var[0], (1, 4))).common_parameter() is not None


def test_a_prior_mean_may_be_a_number_of_numpy():
    d = make("normal_isotropic", 4, 3, dtype="float32")
    for scalar in (np.float64(0.3), np.float32(0.3), 0.3):
        found = pe.pairwise(d, d, pe.scores.llr(prior_var=1.0, prior_mean=scalar))
        np.testing.assert_allclose(found, pe.pairwise(d, d, "llr:prior_var=1,prior_mean=0.3"), rtol=1e-5)
        assert found.dtype == np.float32


# -- torch -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["prior_mean", "prior_var"])
@pytest.mark.parametrize("shape", [(), (3,)])
def test_gradients_of_a_prior_are_those_of_a_gallery_that_is_not_prepared(name, shape):
    value = torch.full(shape, 0.7, dtype=torch.float64, requires_grad=True)
    score = pe.scores.llr(**{"prior_var": 1.0, "prior_mean": 0.1, name: value})
    mu, var = (torch.randn(9, 3, dtype=torch.float64) for _ in range(2))
    q, g = pe.Normal(mu[:4], var[:4].exp()), pe.Normal(mu[4:], var[4:].exp())
    found = [torch.autograd.grad(pe.pairwise(q, x, score).sum(), value)[0] for x in (g, pe.prepare(g, score))]
    torch.testing.assert_close(*found)
    assert found[0].abs().min() > 1e-3


def test_gradients_of_an_expanded_variance_are_those_of_its_items():
    mu, g = torch.randn(4, 3), pe.Normal(torch.randn(5, 3).double(), torch.rand(5).double() + 0.1)
    rows = torch.tensor([2, 0, 3])
    for given in (lambda d: d, lambda d: d[1:], lambda d: d[rows], lambda d: d.to("float64")):
        gradients = []
        for var in (torch.full((1,), 0.3).expand(4), torch.full((4,), 0.3)):
            leaf = var.requires_grad_()
            gradients.append(torch.autograd.grad(pe.pairwise(given(pe.Normal(mu, leaf)), g).sum(), leaf)[0])
        torch.testing.assert_close(*gradients)


def test_rankings_of_tensors_are_detached_tensors_and_rescore_differentiates():
    mu, var = torch.randn(8, 5, dtype=torch.float64), torch.rand(8, dtype=torch.float64) + 0.5
    q = pe.Normal(mu[:3].clone().requires_grad_(), var[:3].clone().requires_grad_())
    g = pe.Normal(mu[3:].clone().requires_grad_(), var[3:].clone().requires_grad_())
    candidates = torch.tensor([[0, 1], [-1, 4], [2, -1]])
    for ranking in (pe.search(q, g, 2), pe.rerank(q, g, candidates, 2)):
        assert isinstance(ranking.scores, torch.Tensor) and ranking.scores.dtype == torch.float64
        assert ranking.ids.dtype == torch.int64 and not ranking.scores.requires_grad
    scores = pe.rescore(q, g, candidates)
    scores[candidates >= 0].sum().backward()
    for x in (*q.arrays, *g.arrays):
        assert x.grad.isfinite().all() and x.grad.abs().sum() > 0
    assert (g.mu.grad[3] == 0).all()  # no query has row 3 as a candidate


def test_a_prepared_gallery_is_detached_but_its_queries_are_not():
    q, g = make("normal_isotropic", 2, 4, library="torch"), make("normal_isotropic", 5, 4, 1, library="torch")
    q.mu.requires_grad_()
    g.mu.requires_grad_()
    pe.pairwise(q, pe.prepare(g)).sum().backward()
    assert q.mu.grad is not None and g.mu.grad is None


# -- Prepared ----------------------------------------------------------------------------------------------------------


def test_prepared_says_what_it_holds():
    g = make("normal_isotropic", 100, 16)
    prepared = pe.prepare(g, "mls")
    assert (len(prepared), prepared.dim, prepared.kind) == (100, 16, "normal_isotropic")
    assert prepared.nbytes >= 2 * g.mu.nbytes  # the rows and their panels
    assert "mls" in repr(prepared)


def test_prepared_for_another_score_or_other_parameters_is_refused_by_every_verb():
    g, prior = make("normal_isotropic", 5, 4), torch.tensor(0.5, requires_grad=True)
    ids = np.zeros((5, 1), np.int64)
    pairs = [("mls", "llr:prior_var=1"), (LLR, pe.scores.llr(prior_var=0.6)), ("mls", "neg_expected_sq_l2")]
    for own, other in [*pairs, (pe.scores.llr(prior_var=prior), LLR)]:
        prepared = pe.prepare(g, own)
        for call in (
            lambda p=prepared, s=other: pe.paired(g, p, s),
            lambda p=prepared, s=other: pe.pairwise(g, p, s),
            lambda p=prepared, s=other: pe.rescore(g, p, ids, s),
            lambda p=prepared, s=other: pe.rerank(g, p, ids, 1, s),
            lambda p=prepared, s=other: pe.search(g, p, 1, s),
        ):
            with pytest.raises(ValueError, match=r"(gallery|b) is prepared for score .+, got "):
                call()
    same = pe.prepare(g, "llr:prior_var=0.7")
    np.testing.assert_array_equal(pe.pairwise(g, same, LLR), pe.pairwise(g, g, LLR))


def test_a_prepared_half_precision_gallery_pairs_with_halves():
    half = pe.Normal(np.ones((3, 4), np.float16), np.ones((3, 4), np.float16))
    np.testing.assert_array_equal(pe.paired(half, pe.prepare(half)), pe.paired(half, half))


def test_candidates_as_lists_may_be_empty():
    g = make("normal_diagonal", 5, 4)
    ranking = pe.rerank(g[:2], g, [[], []], 2)
    assert ranking.ids.tolist() == [[-1, -1]] * 2
    assert (ranking.scores == -np.inf).all()
