"""Every verb x kinds x dtype x library x score: computes what tests/reference.py says, or stands in one table."""

import functools
import itertools

import numpy as np
import pytest
import reference
import torch
from conftest import EPS, KINDS, NUMPY, SCORES, apart, build, by_verb, expected, is_drawn, make, scored, to_numpy, wide

import peaccel as pe
from peaccel.published import non_isotropic

DTYPES = ("float32", "float64", "float16", "bfloat16")
LIBRARIES = ("numpy", "torch")
NORMALS = ("normal_isotropic", "normal_diagonal")


def table(pairs_of):
    """The table of the pairs of kinds that `pairs_of(score)` gives."""
    lines = []
    for score in SCORES:
        galleries = {q: " ".join(g for g in KINDS if (q, g) in pairs_of(score)) for q in KINDS}
        queries = {}
        for q, accepted in galleries.items():
            queries.setdefault(accepted, []).append(q)
        groups = [f"{' '.join(kinds)} x {accepted}" for accepted, kinds in queries.items() if accepted]
        lines.append(f"{score}: {' | '.join(groups)}\n")
    return "".join(lines)


# Scores that compute more than casts and shifts before their kernels.
PREPROCESSED = ("expected_cosine", "neg_expected_sq_l2", "neg_csd", "neg_w2", "norm_cosine", "scale_cosine", "nivmf")
# Scores whose two sides play different parts.
DIRECTED = ("inclusion", "neg_kl")
# Other parameters than the tests' own.
PARAMETERS = (
    *("ppk:rho=1", "ppk:rho=0.3", "ppk:rho=2.5"),
    *("neg_kl:direction=gallery_to_query", "neg_kl:direction=symmetric"),
    *("scale_cosine:mu=0.3", "scale_cosine:mu=-0.2,sides=query", "norm_cosine:mu=0.3,sides=query"),
    *(non_isotropic.nivmf_paper, non_isotropic.nivmf_published),
)


SUPPORTED = [
    (score, q, g) for score, q, g in itertools.product(SCORES, KINDS, KINDS) if (q, g) in pe.scores.SCORES[score].pairs
]
UNSUPPORTED = [cell for cell in itertools.product(SCORES, KINDS, KINDS) if cell not in SUPPORTED]
SAME_KIND = [(score, q) for score, q, g in SUPPORTED if q == g]


def stated(name, q, g, dtype):
    """Stated absolute errors beyond rounding [Q, G] or a number."""
    name = pe.scores.get(name).name
    if name in ("mls", "llr", "ppk", "inclusion") and q.kind == "vmf":
        # Three log norms, 2e-15 relative to max(1, order); and R^2 = (kappa1 + kappa2)^2 - kappa1 kappa2 |mu1 - mu2|^2,
        # which cancels for opposite directions: four roundings of its last term.
        (_, a, x), (_, b, y) = wide(q, dtype), wide(g, dtype)
        last = x * y[:, 0] * ((a[:, None] - b[None]) ** 2).sum(-1)
        r = reference.resultant(x, y[:, 0], ((a[:, None] - b[None]) ** 2).sum(-1))
        moved = 4 * EPS[dtype] * last
        return 6e-15 * max(1, q.dim / 2 - 1) + moved / np.maximum(r, np.maximum(moved, 1e-300) ** 0.5)
    if name == "neg_kl" and q.kind == "vmf":
        return 2e-15  # two log 0F1, each right to 1e-15 relative to max(1, |value|): docs/numerics.md
    if name == "hib" and not is_drawn(name, q, g):
        return 1e-9
    if "nivmf" in name:
        return 1e-14 * q.dim
    return 2e-13 if name == "expected_cosine" and "normal_isotropic" in (q.kind, g.kind) else 0


def check(found, q, g, name, dtype):
    """The scores [Q, G] agree with the reference: 4 roundings of the sum of absolute terms, and what is stated.

    name may carry parameters, "ppk:rho=1", or be a Score.
    """
    value, size = expected(scored(name, q.kind) if isinstance(name, str) else name, q, g, dtype)
    with np.errstate(invalid="ignore", over="ignore"):  # infinities that agree, beyond the dtype's range too
        error = np.where(found == value.astype(NUMPY[dtype]), 0, np.abs(found.astype(reference.WIDE) - value))
    bound = 4 * EPS[dtype] * size + stated(name, q, g, dtype)
    assert found.shape == value.shape
    where = np.argwhere(~((error <= bound) | (np.isnan(found) & np.isnan(value))))
    assert not len(where), (
        f"{len(where)} of {found.size} pairs, first {where[0]}: got {found[tuple(where[0])]}, "
        f"expected {value[tuple(where[0])]}, {float((error / (EPS[dtype] * size)).max()):.3g} roundings off"
    )


def same_bits(found, name, apart=None):
    """All verbs gave the same scores, to the last bit; `pairwise` within `apart` of them, if that is given."""
    for verb, scores in found.items():
        if verb == "pairwise" and apart is not None:
            with np.errstate(invalid="ignore"):  # infinities that agree
                close = (scores == found["rescore"]) | (abs(scores.astype(np.float64) - found["rescore"]) <= apart)
            assert close.all(), f"{name}: pairwise against rescore"
        else:
            np.testing.assert_array_equal(scores, found["rescore"], err_msg=f"{name}: {verb} against rescore")


def test_the_table_of_what_can_be_scored_is_exact():
    assert reference.KINDS.keys() == set(SCORES)
    expected = "".join(f"{score}: {reference.KINDS[score]}\n" for score in SCORES)
    assert table(lambda score: pe.scores.SCORES[score].pairs) == expected


@pytest.mark.one_in(2)
@pytest.mark.parametrize(("name", "q_kind", "g_kind"), SUPPORTED)
def test_a_supported_pair_of_kinds_computes_in_every_verb_dtype_and_library(name, q_kind, g_kind):
    score = scored(name, q_kind)
    for dtype in DTYPES:
        compute = dtype if dtype in EPS else "float32"
        by_library = []
        for library in LIBRARIES:
            q = make(q_kind, 3, 17, 1, dtype=dtype, library=library)
            g = make(g_kind, 5, 17, 2, dtype=dtype, library=library)
            raw = pe.pairwise(q, g, score)
            assert type(raw) is (torch.Tensor if library == "torch" else np.ndarray)
            assert str(raw.dtype).removeprefix("torch.") == compute
            found = by_verb(q, g, score)
            same_bits(found, f"{dtype} {library}")
            same_bits(by_verb(q, g, score, prepared=pe.prepare(g, score)), f"{dtype} {library} prepared")
            by_library.append(found["pairwise"])
        check(by_library[0], q, g, name, compute)
        if name in PREPROCESSED:  # what precedes the kernel may differ in the last bits
            # For nivmf that is a direction, whose error the concentration multiplies.
            size = expected(score, q, g, compute)[1].astype(float) if name == "nivmf" else 1
            error = abs(np.asarray(by_library[1]) - by_library[0])
            assert (error <= 8 * EPS[compute] * (abs(by_library[0]) + size)).all()
        else:
            np.testing.assert_array_equal(by_library[1], by_library[0], err_msg=f"{dtype}: torch against numpy")


@pytest.mark.parametrize(("name", "q_kind", "g_kind"), UNSUPPORTED)
def test_an_unsupported_pair_of_kinds_is_a_type_error_in_every_verb_dtype_and_library(name, q_kind, g_kind):
    score = scored(name, q_kind)
    begins = f"^{name}: cannot score {q_kind} x {g_kind} "
    for dtype, library in itertools.product(DTYPES, LIBRARIES):
        q, g = (make(kind, 2, 4, dtype=dtype, library=library) for kind in (q_kind, g_kind))
        ids = np.zeros((2, 1), np.int64)
        ids = torch.tensor(ids) if library == "torch" else ids
        calls = [
            lambda q=q, g=g: pe.paired(q, g, score),
            lambda q=q, g=g: pe.pairwise(q, g, score),
            lambda q=q, g=g, ids=ids: pe.rescore(q, g, ids, score),
            lambda q=q, g=g, ids=ids: pe.rerank(q, g, ids, 1, score),
            lambda q=q, g=g: pe.search(q, g, 1, score),
        ]
        for call in calls:
            with pytest.raises(TypeError, match=begins):
                call()


@pytest.mark.parametrize(("name", "kind"), SAME_KIND)
def test_queries_of_another_dtype_are_cast_to_the_gallerys(name, kind):
    score = scored(name, kind)
    for library, ours, theirs in itertools.product(LIBRARIES, DTYPES, DTYPES):
        q, g = make(kind, 3, 9, 1, dtype=ours, library=library), make(kind, 4, 9, 2, dtype=theirs, library=library)
        compute = theirs if theirs in EPS else "float32"
        cast = build(kind, *(to_numpy(x).astype(NUMPY[compute]) for x in q.arrays), dtype=compute, library=library)
        np.testing.assert_array_equal(pe.pairwise(q, g, score), pe.pairwise(cast, g, score))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", ["mls", "neg_sq_l2", "llr", "cosine"])
def test_prepare_with_a_dtype_computes_in_it(name, dtype):
    score = scored(name)
    q, g = make("normal_diagonal", 3, 20, 1, dtype="float32"), make("normal_diagonal", 7, 20, 2, dtype="float16")
    prepared = pe.prepare(g, score, dtype=dtype)
    np.testing.assert_array_equal(pe.pairwise(q, prepared, score), pe.pairwise(q, g.to(dtype), score))
    same_bits(by_verb(q, g.to(dtype), score, prepared=prepared), f"prepared in {dtype}")


# -- hard inputs -------------------------------------------------------------------------------------------------------

DIMS = (1, 2, 3, 15, 16, 17, 31, 64, 100, 129, 512)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    ("name", "kind"),
    [
        *((name, "normal_diagonal") for name in ("mls", "llr", "ppk", "neg_kl")),
        ("cosine", "point"),
        ("inner_product", "point"),
        ("neg_sq_l2", "point"),
    ],
)
def test_every_dimension_to_two_groups_of_lanes_and_beyond(name, kind, dtype):
    for dim in range(1, 131):
        q, g = make(kind, 2, dim, 1, dtype=dtype), make(kind, 3, dim, 2, dtype=dtype)
        check(pe.pairwise(q, g, scored(name, kind)), q, g, name, dtype)


def spread(kind, n, dim, seed, powers):
    """Items whose uncertainties are spread over powers of ten, within a row too."""
    rng = np.random.default_rng([seed, dim])
    items = make(kind, n, dim, seed)
    return build(kind, items.mu, None if kind == "point" else 10.0 ** rng.uniform(*powers, items.arrays[-1].shape))


@pytest.mark.one_in(3)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("dim", DIMS)
def test_variances_over_sixteen_powers_of_ten_in_every_dimension(dim, dtype):
    for name, q_kind, g_kind in SUPPORTED:
        if q_kind not in NORMALS or g_kind not in (*NORMALS, "point") or "seed" in pe.scores.SCORES[name].params:
            continue
        for powers in ((-8, 8), (-8, -7), (7, 8), (-30, 30)):
            q = spread(q_kind, 2, dim, 1, powers).to(dtype)
            g = spread(g_kind, 3, dim, 2, powers).to(dtype)
            found = by_verb(q, g, scored(name))
            same_bits(found, f"{name} {q_kind} x {g_kind}")
            check(found["search"], q, g, name, dtype)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", ["mls", "llr", "expected_cosine", "neg_expected_sq_l2"])
def test_a_variance_of_zero_on_one_side_is_a_point(name, dtype):
    for kind, other in itertools.product(NORMALS, NORMALS):
        if (name, kind, other) not in SUPPORTED:
            continue
        q, g = make(kind, 3, 33, 1, dtype=dtype), make(other, 4, 33, 2, dtype=dtype)
        zero = build(other, g.mu, 0 * g.var, dtype=dtype)
        score, point = scored(name), pe.Point(g.mu)
        check(pe.pairwise(q, zero, score), q, zero, name, dtype)
        found = pe.pairwise(zero, q, score).T
        check(found, q, zero, name, dtype)  # the scores are symmetric
        if (name, kind, "point") in SUPPORTED and kind == other:
            np.testing.assert_array_equal(found, pe.pairwise(point, q, score).T)


@pytest.mark.parametrize("name", ["mls", "llr", "expected_cosine", "neg_expected_sq_l2"])
def test_gradients_are_finite_at_a_variance_of_zero_on_one_side(name):
    for small in (0.0, 1e-30):
        q, g = (make("normal_isotropic", 3, 6, seed, library="torch") for seed in (1, 2))
        q.var[1] = small
        leaves = [x.requires_grad_() for x in (*q.arrays, *g.arrays)]
        gradients = torch.autograd.grad(pe.pairwise(q, g, scored(name)).sum(), leaves)
        assert all(x.isfinite().all() for x in gradients), (small, gradients)


@pytest.mark.parametrize("kappa", [0.0, 1e-200, 1.0, 1e6])
@pytest.mark.parametrize("name", ["mls", "expected_cosine", "neg_expected_sq_l2"])
def test_vmf_gradients_are_finite_for_equal_opposite_and_orthogonal_rows(name, kappa):
    mu = torch.eye(4, dtype=torch.float64)[:2]
    for other in (mu, -mu, mu.flip(0)):
        arrays = [mu.clone(), torch.tensor([kappa, 0.0]).double(), other.clone(), torch.tensor([kappa, 5.0]).double()]
        leaves = [x.requires_grad_() for x in arrays]
        score = pe.paired(pe.VonMisesFisher(*leaves[:2]), pe.VonMisesFisher(*leaves[2:]), name).sum()
        first = torch.autograd.grad(score, leaves, create_graph=True)
        second = torch.autograd.grad(sum((x * x).sum() for x in first), leaves)
        assert all(x.isfinite().all() for x in (*first, *second))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", ["mls", "llr", "neg_sq_l2", "neg_expected_sq_l2", "expected_cosine"])
def test_equal_rows_and_near_duplicates_keep_their_digits(name, dtype):
    rng = np.random.default_rng(7)
    for kind, dim in itertools.product(("normal_isotropic", "normal_diagonal", "vmf"), (2, 16, 100, 512)):
        if (name, kind, kind) not in SUPPORTED:
            continue
        mu = make("vmf", 6, dim, 3).mu
        near = mu + rng.standard_normal(mu.shape) * 1e-4 / dim**0.5
        mu, near = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (mu, near))
        near[0] = mu[0]
        uncertainty = np.full(len(mu), 1e6 if kind == "vmf" else 1e-8)
        uncertainty = uncertainty if kind != "normal_diagonal" else np.repeat(uncertainty[:, None], dim, 1)
        q, g = build(kind, mu, uncertainty, dtype=dtype), build(kind, near, uncertainty, dtype=dtype)
        found = by_verb(q, g, scored(name, kind))
        same_bits(found, kind, apart(name, q, g, dtype))
        if name == "neg_expected_sq_l2" and kind == "vmf":
            # Means A mu are rounded before they are subtracted: an error of a rounding of their length.
            value, size = expected(name, q, g, dtype)
            assert (abs(found["search"] - value) <= 4 * EPS[dtype] * (size + 2 * size**0.5)).all()
        else:
            check(found["search"], q, g, name, dtype)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("dim", [2, 3, 16, 17, 128, 512])
def test_concentrations_from_nothing_to_a_million(dim, dtype):
    rng = np.random.default_rng(dim)
    kappa = np.array([0, 1e-3, 1e-2, 0.3, 1, 10, 100, 1e3, 1e4, 1e6])
    mu = make("vmf", len(kappa), dim, 5).mu
    near = mu + rng.standard_normal(mu.shape) * 10.0 ** rng.uniform(-5, 0, (len(mu), 1))
    near /= np.linalg.norm(near, axis=1, keepdims=True)
    near[-1] = -mu[-1]  # opposite: |kappa1 mu1 + kappa2 mu2| = 0
    q, g = build("vmf", mu, kappa, dtype=dtype), build("vmf", near, kappa, dtype=dtype)
    for name in ("mls", "llr", "expected_cosine"):
        found = by_verb(q, g, name)
        same_bits(found, name, apart(name, q, g, dtype) + stated(name, q, g, dtype))
        check(found["search"], q, g, name, dtype)


POISONED = ("mls", "llr", "ppk", "inclusion", "neg_kl", "neg_w2")


@pytest.mark.filterwarnings("ignore:invalid value encountered in sqrt:RuntimeWarning")  # from numpy, by neg_w2
@pytest.mark.parametrize(("name", "kind"), [c for c in SAME_KIND if c[0] in POISONED or c[0].count("expected")])
@pytest.mark.parametrize("bad", [-1.0, -1e-30, np.nan])
def test_a_negative_or_nan_uncertainty_poisons_its_own_row_and_no_other(name, kind, bad):
    if kind == "point":
        return
    score = scored(name, kind)
    for dtype in ("float32", "float64"):
        q, g = make(kind, 3, 20, 1, dtype=dtype), make(kind, 70, 20, 2, dtype=dtype)
        clean = pe.pairwise(q, g, score)
        for row in (1, 33, 69):  # retrieval checks the signs of none of these
            g.arrays[1][row] = bad if kind != "normal_diagonal" else [*g.arrays[1][row][:-1], bad]
        rest = np.setdiff1d(np.arange(70), (1, 33, 69))
        found = by_verb(q, g, score)
        same_bits(found, f"{dtype} raw")
        same_bits(by_verb(q, g, score, prepared=pe.prepare(g, score)), f"{dtype} prepared")
        assert np.isnan(found["search"][:, [1, 33, 69]]).all()
        np.testing.assert_array_equal(found["search"][:, rest], clean[:, rest])


@pytest.mark.parametrize(("name", "kind"), SAME_KIND)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_mean_that_is_not_finite_never_gets_a_finite_score_and_leaves_other_rows_alone(name, kind, bad):
    score = scored(name, kind)
    q, g = make(kind, 3, 20, 1), make(kind, 40, 20, 2)
    clean = pe.pairwise(q, g, score)
    g.mu[17, 3] = bad
    rest = np.setdiff1d(np.arange(40), 17)
    with np.errstate(invalid="ignore"):  # from numpy, in what precedes the kernels
        found = by_verb(q, g, score)
    same_bits(found, name)
    assert not np.isfinite(found["search"][:, 17]).any()
    assert np.isnan(found["search"][:, 17]).all() or not np.isnan(bad)
    np.testing.assert_array_equal(found["search"][:, rest], clean[:, rest])


@pytest.mark.one_in(3)
@pytest.mark.parametrize(("name", "q_kind", "g_kind"), [c for c in SUPPORTED if c[0] not in DIRECTED])
def test_scores_are_symmetric_in_their_two_sides(name, q_kind, g_kind):
    q, g, score = make(q_kind, 3, 21, 1), make(g_kind, 4, 21, 2), scored(name, q_kind)
    if (g_kind, q_kind) not in pe.scores.SCORES[name].pairs or is_drawn(score, q, g):
        return  # the score takes no such pair, or draws differ by side
    check(pe.pairwise(g, q, score).T, q, g, name, "float64")


# -- parameters and agreements -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("score", PARAMETERS)
def test_parameters_mean_what_they_say(score):
    made = pe.scores.get(score)
    for (q_kind, g_kind), dtype in itertools.product(made.pairs, ("float32", "float64")):
        for dim in (2, 17, 64):
            q, g = make(q_kind, 3, dim, 1, dtype=dtype), make(g_kind, 5, dim, 2, dtype=dtype)
            found = by_verb(q, g, score)
            same_bits(found, score)
            same_bits(by_verb(q, g, score, prepared=pe.prepare(g, score)), score)
            check(found["search"], q, g, score, dtype)
            if made.name == "neg_kl":
                back = {"gallery_to_query": "query_to_gallery"}.get(score.partition("=")[2], "symmetric")
                check(pe.pairwise(g, q, f"neg_kl:direction={back}").T, q, g, score, dtype)


def test_ppk_of_one_is_mls_and_of_a_half_is_zero_for_equal_items():
    for kind in ("normal_isotropic", "normal_diagonal", "vmf"):
        q, g = make(kind, 3, 12, 1), make(kind, 4, 12, 2)
        np.testing.assert_allclose(pe.pairwise(q, g, "ppk:rho=1"), pe.pairwise(q, g, "mls"), rtol=1e-13)
        np.testing.assert_allclose(pe.paired(q, q, "ppk"), 0, atol=1e-13)
        assert (pe.pairwise(q, g, "ppk") < 0).all()


@pytest.mark.usefixtures("unlooked")
def test_divergence_from_a_certain_item_is_infinite_and_a_negative_variance_has_none():
    for kind, other in itertools.product(NORMALS, NORMALS):
        q, g = make(kind, 2, 20, 1), make(other, 3, 20, 2)
        for direction in ("query_to_gallery", "gallery_to_query", "symmetric"):
            score = f"neg_kl:direction={direction}"
            for certain in (build(other, g.mu, 0 * g.var), g[:0]):
                assert (pe.pairwise(q, certain, score) == -np.inf).all()
                assert (pe.pairwise(certain, q, score) == -np.inf).all()
            assert np.isnan(pe.pairwise(q, build(other, g.mu, -g.var), score)).all()


@pytest.mark.parametrize(("name", "kind"), SAME_KIND)
def test_one_object_on_both_sides_gets_the_gradients_of_both(name, kind):
    score, ids = scored(name, kind), torch.tensor([[0, 3], [1, 1], [2, 0], [3, 2]])
    d, copy = (make(kind, 4, 6, library="torch") for _ in range(2))
    own, others = ([x.requires_grad_() for x in items.arrays] for items in (d, copy))
    for verb in (pe.paired, pe.pairwise, lambda q, g, score: pe.rescore(q, g, ids, score)):
        grad = functools.partial(torch.autograd.grad, allow_unused=True, materialize_grads=True)
        found = grad(verb(d, d, score).sum(), own)
        sides = grad(verb(d, copy, score).sum(), own + others)
        for both, query, gallery in zip(found, sides[: len(own)], sides[len(own) :], strict=True):
            torch.testing.assert_close(both, query + gallery)


def test_rho_can_be_trained():
    rho = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)
    for kind in ("normal_isotropic", "normal_diagonal", "vmf"):
        q, g = make(kind, 3, 5, 1, library="torch"), make(kind, 4, 5, 2, library="torch")
        assert torch.autograd.gradcheck(lambda r, q=q, g=g: pe.pairwise(q, g, pe.scores.ppk(rho=r)), rho)


def test_isotropic_and_diagonal_forms_of_equal_variances_agree():
    for name in ("mls", "llr", "neg_expected_sq_l2", "ppk", "inclusion", "neg_kl", "neg_w2"):
        q, g = make("normal_isotropic", 3, 40, 1), make("normal_isotropic", 4, 40, 2)
        wide_g = pe.Normal(g.mu, np.repeat(g.var[:, None], 40, 1))
        check(pe.pairwise(q, wide_g, scored(name)), q, g, name, "float64")


@pytest.mark.parametrize("library", LIBRARIES)
def test_llr_takes_a_prior_per_dimension_and_a_prior_mean(library):
    rng = np.random.default_rng(5)
    mean, var = rng.standard_normal(12), rng.uniform(0.2, 3, 12)
    q, g = (make("normal_diagonal", n, 12, n, library=library) for n in (3, 4))
    (_, a, v), (_, b, w) = wide(q, "float64"), wide(g, "float64")
    value, size = reference.llr(a[:, None] - mean, v[:, None], b[None] - mean, w[None], var)
    as_given = (lambda x: torch.tensor(x)) if library == "torch" else np.asarray
    for convert in (as_given, np.asarray):  # numpy parameters go with tensors too
        score = pe.scores.llr(prior_var=convert(var), prior_mean=convert(mean))
        found = to_numpy(pe.pairwise(q, g, score))
        assert (abs(found - value) <= 8 * EPS["float64"] * size).all()
    narrow = [make("normal_isotropic", n, 12, n, library=library) for n in (3, 4)]  # the prior makes them diagonal
    broad = [pe.Normal(d.mu, d.var[:, None] * (0 * d.mu + 1)) for d in narrow]
    np.testing.assert_array_equal(*(to_numpy(pe.pairwise(*items, score)) for items in (narrow, broad)))
    prepared = pe.prepare(narrow[1], score)
    np.testing.assert_array_equal(*(to_numpy(pe.pairwise(narrow[0], x, score)) for x in (prepared, narrow[1])))


def test_a_string_with_parameters_is_the_score_called_with_them():
    q, g = make("normal_diagonal", 3, 6, 1), make("normal_diagonal", 4, 6, 2)
    record = pe.scores.llr(prior_var=0.5, prior_mean=0.25)
    np.testing.assert_array_equal(pe.pairwise(q, g, "llr:prior_var=0.5,prior_mean=0.25"), pe.pairwise(q, g, record))
    with pytest.raises(ValueError, match=r"^llr: prior_var must be given"):
        pe.pairwise(q, g, "llr")


def test_vmf_llr_is_mls_plus_the_log_of_the_spheres_surface():
    q, g = make("vmf", 3, 30, 1), make("vmf", 4, 30, 2)
    surface = -pe.special.vmf_log_norm(30, 0.0)
    np.testing.assert_allclose(pe.pairwise(q, g, "llr"), pe.pairwise(q, g, "mls") + surface, atol=1e-12)
