"""Every verb x kinds x dtype x library x score: computes what tests/reference.py says, or stands in one table."""

import itertools

import numpy as np
import pytest
import reference
import torch
from conftest import EPS, KINDS, NUMPY, SCORES, build, by_verb, expected, is_drawn, make, seeded, to_numpy, wide

import peaccel as pe

PRIOR_VAR = 0.7
DTYPES = ("float32", "float64", "float16", "bfloat16")
LIBRARIES = ("numpy", "torch")
NORMALS = ("normal_isotropic", "normal_diagonal")

# All that cannot be scored: "score: query kind x gallery kinds". Everything else computes.
UNSUPPORTED = """\
mls: normal_isotropic x vmf nivmf scaled
mls: normal_diagonal x vmf nivmf scaled
mls: vmf x normal_isotropic normal_diagonal nivmf scaled point
mls: nivmf x normal_isotropic normal_diagonal vmf nivmf scaled point
mls: scaled x normal_isotropic normal_diagonal vmf nivmf scaled point
mls: point x vmf nivmf scaled point
llr: normal_isotropic x vmf nivmf scaled
llr: normal_diagonal x vmf nivmf scaled
llr: vmf x normal_isotropic normal_diagonal nivmf scaled point
llr: nivmf x normal_isotropic normal_diagonal vmf nivmf scaled point
llr: scaled x normal_isotropic normal_diagonal vmf nivmf scaled point
llr: point x vmf nivmf scaled point
expected_cosine: normal_isotropic x normal_diagonal vmf nivmf scaled
expected_cosine: normal_diagonal x normal_isotropic normal_diagonal vmf nivmf scaled point
expected_cosine: vmf x normal_isotropic normal_diagonal nivmf scaled point
expected_cosine: nivmf x normal_isotropic normal_diagonal vmf nivmf scaled point
expected_cosine: scaled x normal_isotropic normal_diagonal vmf nivmf scaled point
expected_cosine: point x normal_diagonal vmf nivmf scaled
neg_expected_sq_l2: normal_isotropic x vmf nivmf scaled
neg_expected_sq_l2: normal_diagonal x vmf nivmf scaled
neg_expected_sq_l2: vmf x normal_isotropic normal_diagonal nivmf scaled point
neg_expected_sq_l2: nivmf x normal_isotropic normal_diagonal vmf nivmf scaled point
neg_expected_sq_l2: scaled x normal_isotropic normal_diagonal vmf nivmf scaled point
neg_expected_sq_l2: point x vmf nivmf scaled
hib: normal_isotropic x vmf nivmf scaled
hib: normal_diagonal x vmf nivmf scaled
hib: vmf x normal_isotropic normal_diagonal vmf nivmf scaled point
hib: nivmf x normal_isotropic normal_diagonal vmf nivmf scaled point
hib: scaled x normal_isotropic normal_diagonal vmf nivmf scaled point
hib: point x vmf nivmf scaled
sampled_cosine: normal_isotropic x vmf nivmf scaled
sampled_cosine: normal_diagonal x vmf nivmf scaled
sampled_cosine: vmf x normal_isotropic normal_diagonal nivmf scaled
sampled_cosine: nivmf x normal_isotropic normal_diagonal vmf nivmf scaled point
sampled_cosine: scaled x normal_isotropic normal_diagonal vmf nivmf scaled point
sampled_cosine: point x nivmf scaled
neg_sampled_l2: normal_isotropic x vmf nivmf scaled
neg_sampled_l2: normal_diagonal x vmf nivmf scaled
neg_sampled_l2: vmf x normal_isotropic normal_diagonal nivmf scaled
neg_sampled_l2: nivmf x normal_isotropic normal_diagonal vmf nivmf scaled point
neg_sampled_l2: scaled x normal_isotropic normal_diagonal vmf nivmf scaled point
neg_sampled_l2: point x nivmf scaled
el_nivmf: normal_isotropic x normal_isotropic normal_diagonal vmf nivmf scaled point
el_nivmf: normal_diagonal x normal_isotropic normal_diagonal vmf nivmf scaled point
el_nivmf: vmf x normal_isotropic normal_diagonal vmf scaled point
el_nivmf: nivmf x normal_isotropic normal_diagonal vmf nivmf scaled point
el_nivmf: scaled x normal_isotropic normal_diagonal vmf nivmf scaled point
el_nivmf: point x normal_isotropic normal_diagonal vmf nivmf scaled point
nivmf: normal_isotropic x normal_isotropic normal_diagonal vmf nivmf scaled point
nivmf: normal_diagonal x normal_isotropic normal_diagonal vmf nivmf scaled point
nivmf: vmf x normal_isotropic normal_diagonal vmf scaled point
nivmf: nivmf x normal_isotropic normal_diagonal vmf nivmf scaled point
nivmf: scaled x normal_isotropic normal_diagonal vmf nivmf scaled point
nivmf: point x normal_isotropic normal_diagonal vmf scaled point
"""


def unsupported():
    """Triples (score, query kind, gallery kind) of the table."""
    rows = (line.replace(":", "").replace(" x ", " ").split() for line in UNSUPPORTED.splitlines())
    return {(score, q, g) for score, q, *galleries in rows for g in galleries}


SUPPORTED = [cell for cell in itertools.product(SCORES, KINDS, KINDS) if cell not in unsupported()]
SAME_KIND = [(score, q) for score, q, g in SUPPORTED if q == g]


def with_prior(name, *kinds):
    """The score; llr of normals with the tests' prior, draws with their seed."""
    return pe.scores.llr(prior_var=PRIOR_VAR) if name == "llr" and "vmf" not in kinds else seeded(name)


def stated(name, q, g, dtype):
    """Stated absolute errors beyond rounding [Q, G] or a number."""
    if name in ("mls", "llr") and q.kind == "vmf":
        # Three log norms, 2e-15 relative to max(1, order); and R^2 = (k1 + k2)^2 - k1 k2 |mu1 - mu2|^2, which cancels
        # for opposite directions: four roundings of its last term.
        (_, a, x), (_, b, y) = wide(q, dtype), wide(g, dtype)
        last = x * y[:, 0] * ((a[:, None] - b[None]) ** 2).sum(-1)
        r = reference.resultant(x, y[:, 0], ((a[:, None] - b[None]) ** 2).sum(-1))
        moved = 4 * EPS[dtype] * last
        return 6e-15 * max(1, q.dim / 2 - 1) + moved / np.maximum(r, np.maximum(moved, 1e-300) ** 0.5)
    if name == "hib" and not is_drawn(name, q, g):
        return 1e-9
    if name in ("el_nivmf", "nivmf"):
        return 1e-14 * q.dim
    return 2e-13 if name == "expected_cosine" and "normal_isotropic" in (q.kind, g.kind) else 0


def check(found, q, g, name, dtype):
    """The scores [Q, G] agree with the reference: 4 roundings of the sum of absolute terms, and what is stated."""
    value, size = expected(name, q, g, dtype, PRIOR_VAR)
    error = np.abs(found.astype(reference.WIDE) - value)
    bound = 4 * EPS[dtype] * size + stated(name, q, g, dtype)
    assert found.shape == value.shape
    where = np.argwhere(~((error <= bound) | (np.isnan(found) & np.isnan(value))))
    assert not len(where), (
        f"{len(where)} of {found.size} pairs, first {where[0]}: got {found[tuple(where[0])]}, "
        f"expected {value[tuple(where[0])]}, {float((error / (EPS[dtype] * size)).max()):.3g} roundings off"
    )


def same_bits(found, name):
    """All verbs gave the same scores, to the last bit."""
    for verb, scores in found.items():
        np.testing.assert_array_equal(scores, found["pairwise"], err_msg=f"{name}: {verb} against pairwise")


def test_the_table_of_unsupported_pairs_is_exact(capsys):
    found = []
    for score, q in itertools.product(SCORES, KINDS):
        lacking = [g for g in KINDS if (q, g) not in pe.scores.SCORES[score].pairs]
        found += [f"{score}: {q} x {' '.join(lacking)}"] * bool(lacking)
    with capsys.disabled():
        print("\nCannot be scored (score: query x galleries):", *found, sep="\n  ")
    assert found == UNSUPPORTED.splitlines()


@pytest.mark.parametrize(("name", "q_kind", "g_kind"), SUPPORTED)
def test_a_supported_pair_of_kinds_computes_in_every_verb_dtype_and_library(name, q_kind, g_kind):
    score = with_prior(name, q_kind)
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
        if name in ("expected_cosine", "neg_expected_sq_l2", "nivmf"):  # what precedes the kernel: last bits
            np.testing.assert_allclose(by_library[1], by_library[0], rtol=16 * EPS[compute], atol=16 * EPS[compute])
        else:
            np.testing.assert_array_equal(by_library[1], by_library[0], err_msg=f"{dtype}: torch against numpy")


@pytest.mark.parametrize(("name", "q_kind", "g_kind"), sorted(unsupported()))
def test_an_unsupported_pair_of_kinds_is_a_type_error_in_every_verb_dtype_and_library(name, q_kind, g_kind):
    score = with_prior(name, q_kind)
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
    score = with_prior(name, kind)
    for library, ours, theirs in itertools.product(LIBRARIES, DTYPES, DTYPES):
        q, g = make(kind, 3, 9, 1, dtype=ours, library=library), make(kind, 4, 9, 2, dtype=theirs, library=library)
        compute = theirs if theirs in EPS else "float32"
        cast = build(kind, *(to_numpy(x).astype(NUMPY[compute]) for x in q.arrays), dtype=compute, library=library)
        np.testing.assert_array_equal(pe.pairwise(q, g, score), pe.pairwise(cast, g, score))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", ["mls", "neg_sq_l2", "llr", "cosine"])
def test_prepare_with_a_dtype_computes_in_it(name, dtype):
    score = with_prior(name)
    q, g = make("normal_diagonal", 3, 20, 1, dtype="float32"), make("normal_diagonal", 7, 20, 2, dtype="float16")
    prepared = pe.prepare(g, score, dtype=dtype)
    np.testing.assert_array_equal(pe.pairwise(q, prepared, score), pe.pairwise(q, g.to(dtype), score))
    same_bits(by_verb(q, g.to(dtype), score, prepared=prepared), f"prepared in {dtype}")


# -- hard inputs -------------------------------------------------------------------------------------------------------

DIMS = (1, 2, 3, 15, 16, 17, 31, 64, 100, 129, 512)


def spread(kind, n, dim, seed, powers):
    """Items whose uncertainties are spread over powers of ten, within a row too."""
    rng = np.random.default_rng([seed, dim])
    items = make(kind, n, dim, seed)
    return build(kind, items.mu, None if kind == "point" else 10.0 ** rng.uniform(*powers, items.arrays[-1].shape))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("dim", DIMS)
def test_variances_over_sixteen_powers_of_ten_in_every_dimension(dim, dtype):
    for name, q_kind, g_kind in SUPPORTED:
        if q_kind not in NORMALS or g_kind not in (*NORMALS, "point") or "seed" in pe.scores.SCORES[name].params:
            continue
        for powers in ((-8, 8), (-8, -7), (7, 8), (-30, 30)):
            q = spread(q_kind, 2, dim, 1, powers).to(dtype)
            g = spread(g_kind, 3, dim, 2, powers).to(dtype)
            found = by_verb(q, g, with_prior(name))
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
        score, point = with_prior(name), pe.Point(g.mu)
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
        gradients = torch.autograd.grad(pe.pairwise(q, g, with_prior(name)).sum(), leaves)
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
        extra = np.full(len(mu), 1e6 if kind == "vmf" else 1e-8)
        extra = extra if kind != "normal_diagonal" else np.repeat(extra[:, None], dim, 1)
        q, g = build(kind, mu, extra, dtype=dtype), build(kind, near, extra, dtype=dtype)
        found = by_verb(q, g, with_prior(name, kind))
        same_bits(found, kind)
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
    near[-1] = -mu[-1]  # opposite: |k1 mu1 + k2 mu2| = 0
    q, g = build("vmf", mu, kappa, dtype=dtype), build("vmf", near, kappa, dtype=dtype)
    for name in ("mls", "llr", "expected_cosine"):
        found = by_verb(q, g, name)
        same_bits(found, name)
        check(found["search"], q, g, name, dtype)


def test_an_infinite_concentration_never_gets_a_finite_score():
    q, g = make("vmf", 3, 8), make("vmf", 3, 8, 1)
    g.kappa[1] = np.inf
    for name in ("mls", "llr"):
        assert not np.isfinite(pe.pairwise(q, g, name)[:, 1]).any()


@pytest.mark.parametrize(("name", "kind"), [c for c in SAME_KIND if c[0] in ("mls", "llr") or c[0].count("expected")])
@pytest.mark.parametrize("bad", [-1.0, -1e-30, np.nan])
def test_a_negative_or_nan_uncertainty_poisons_its_own_row_and_no_other(name, kind, bad):
    if kind == "point":
        return
    score = with_prior(name, kind)
    for dtype in ("float32", "float64"):
        q, g = make(kind, 3, 20, 1, dtype=dtype), make(kind, 70, 20, 2, dtype=dtype)
        clean = pe.pairwise(q, g, score)
        for row in (0, 33, 69):
            g.arrays[1][row] = bad if kind != "normal_diagonal" else [*g.arrays[1][row][:-1], bad]
        rest = np.setdiff1d(np.arange(70), (0, 33, 69))
        found = by_verb(q, g, score)
        same_bits(found, f"{dtype} raw")
        same_bits(by_verb(q, g, score, prepared=pe.prepare(g, score)), f"{dtype} prepared")
        assert np.isnan(found["search"][:, [0, 33, 69]]).all()
        np.testing.assert_array_equal(found["search"][:, rest], clean[:, rest])


@pytest.mark.parametrize(("name", "kind"), SAME_KIND)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_mean_that_is_not_finite_never_gets_a_finite_score_and_leaves_other_rows_alone(name, kind, bad):
    score = with_prior(name, kind)
    q, g = make(kind, 5, 20, 1), make(kind, 40, 20, 2)
    clean = pe.pairwise(q, g, score)
    g.mu[17, 3] = bad
    rest = np.setdiff1d(np.arange(40), 17)
    with np.errstate(invalid="ignore"):  # of numpy, in what precedes the kernels
        found = by_verb(q, g, score)
    same_bits(found, name)
    assert not np.isfinite(found["search"][:, 17]).any()
    assert np.isnan(found["search"][:, 17]).all() or not np.isnan(bad)
    np.testing.assert_array_equal(found["search"][:, rest], clean[:, rest])


@pytest.mark.parametrize(("name", "q_kind", "g_kind"), SUPPORTED)
def test_scores_are_symmetric_in_their_two_sides(name, q_kind, g_kind):
    q, g, score = make(q_kind, 3, 21, 1), make(g_kind, 4, 21, 2), with_prior(name, q_kind)
    if (g_kind, q_kind) not in pe.scores.SCORES[name].pairs or is_drawn(name, q, g):
        return  # by their nature, or by their draws, which belong to a side
    check(pe.pairwise(g, q, score).T, q, g, name, "float64")


# -- parameters and agreements -----------------------------------------------------------------------------------------


def test_isotropic_and_diagonal_forms_of_equal_variances_agree():
    for name in ("mls", "llr", "neg_expected_sq_l2"):
        q, g = make("normal_isotropic", 3, 40, 1), make("normal_isotropic", 4, 40, 2)
        wide_g = pe.Normal(g.mu, np.repeat(g.var[:, None], 40, 1))
        check(pe.pairwise(q, wide_g, with_prior(name)), q, g, name, "float64")


@pytest.mark.parametrize("library", LIBRARIES)
def test_llr_takes_a_prior_per_dimension_and_a_prior_mean(library):
    rng = np.random.default_rng(5)
    mean, var = rng.standard_normal(12), rng.uniform(0.2, 3, 12)
    q, g = (make("normal_diagonal", n, 12, n, library=library) for n in (3, 4))
    (_, a, v), (_, b, w) = wide(q, "float64"), wide(g, "float64")
    value, size = reference.llr(a[:, None] - mean, v[:, None], b[None] - mean, w[None], var)
    as_given = (lambda x: torch.tensor(x)) if library == "torch" else np.asarray
    for convert in (as_given, np.asarray):  # numpy parameters go with tensors too
        found = to_numpy(pe.pairwise(q, g, pe.scores.llr(prior_var=convert(var), prior_mean=convert(mean))))
        assert (abs(found - value) <= 8 * EPS["float64"] * size).all()


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
