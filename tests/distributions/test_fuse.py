"""Fused items against loops over groups, and against the product of the densities."""

import tracemalloc

import numpy as np
import pytest
import torch
from conftest import KINDS, NUMPY, build, make, to_numpy

import peaccel as pe
from peaccel.distributions import fuse as fusing

LIBRARIES = ("numpy", "torch")
GROUPS = np.array([4, -1, 4, 9, 9, -1, 4, 9, 0, 9])  # 0 has one item


def direction(x):
    return x / np.sqrt((x * x).sum())


def rows(x):
    return x.reshape(len(x), -1)


# What each rule makes of one group's means [n, D] and uncertainties [n, 1] or [n, D].
DEFINITIONS = {
    ("product", "normal"): lambda mu, var: ((mu / var).sum(0) / (1 / var).sum(0), 1 / (1 / var).sum(0)),
    ("pfe", "normal"): lambda mu, var: (direction((mu * (1 / var) / (1 / var).sum(0)).sum(0)), var.min(0)),
    ("natural", "vmf"): lambda mu, k: (direction((k * mu).sum(0)), np.sqrt(((k * mu).sum(0) ** 2).sum(keepdims=True))),
    ("mean", "normal"): lambda mu, var: (mu.mean(0), var.mean(0)),
    ("mean", "direction"): lambda mu, uncertainty: (direction(mu.mean(0)), uncertainty.mean(0)),
    ("direction", "point"): lambda mu, _: (direction(sum(direction(x) for x in mu)),),
    ("mean", "point"): lambda mu, _: (mu.mean(0),),
    ("max", "scaled"): lambda mu, scale: (direction(mu.mean(0)), scale.max(0)),
    ("harmonic", "scaled"): lambda mu, scale: (direction(mu.mean(0)), len(scale) / (1 / scale).sum(0)),
}
OF = {
    "product": ("normal_isotropic", "normal_diagonal"),
    "pfe": ("normal_isotropic", "normal_diagonal"),
    "natural": ("vmf",),
    "direction": ("point",),
    "mean": KINDS,
    "max": ("scaled",),
    "harmonic": ("scaled",),
}
CELLS = [(rule, kind) for rule, kinds in OF.items() for kind in kinds]
DEFAULTS = {"vmf": "natural", "nivmf": "mean", "scaled": "mean", "point": "direction"}


def definition(rule, kind):
    for name in (kind, kind.split("_")[0], "direction"):
        if (rule, name) in DEFINITIONS:
            return DEFINITIONS[rule, name]
    raise KeyError(rule)


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize(("rule", "kind"), CELLS)
def test_fuse_is_its_rule_for_each_group_in_sorted_order(rule, kind, library):
    for dtype in NUMPY:
        d = make(kind, 10, 6, dtype=dtype, library=library)
        found = pe.fuse(d, torch.tensor(GROUPS) if library == "torch" else GROUPS, rule)
        assert type(found) is type(d) and found.kind == kind and len(found) == 4
        assert type(found.mu) is type(d.mu)
        assert str(found.mu.dtype).endswith("float64" if dtype == "float64" else "float32")
        arrays = [rows(to_numpy(x)) for x in d.arrays]
        for i, group in enumerate(np.unique(GROUPS)):
            picked = [x[group == GROUPS] for x in arrays]
            value = definition(rule, kind)(*picked, *([None] if kind == "point" else []))
            for x, y in zip(found.arrays, value, strict=True):
                # Sums of at most four items in float64, rounded once.
                eps = 1e-14 if dtype == "float64" else 2.0**-23
                np.testing.assert_allclose(rows(to_numpy(x))[i], y, rtol=eps, atol=1e-15)


LABELS = {
    "one group": lambda rng: np.zeros(3000, int),
    "in order": lambda rng: np.sort(rng.integers(0, 50, 3000)),
    "of all sizes": lambda rng: rng.permutation(np.repeat(np.arange(76), np.arange(76))),
    "a long one among single ones": lambda rng: rng.permutation(np.r_[np.full(2500, 7), np.arange(8, 308)]),
    "beyond 16 bits": lambda rng: rng.choice([-(2**62), -1, 0, 70_000, 2**62], 3000),
}


@pytest.mark.parametrize("which", LABELS)
@pytest.mark.parametrize(("rule", "kind"), CELLS)
def test_groups_of_any_size_and_order_are_added_up_in_float64(rule, kind, which):
    labels = LABELS[which](np.random.default_rng(0))
    d = make(kind, len(labels), 40, dtype="float32")
    found, arrays = pe.fuse(d, labels, rule), [rows(x.astype(np.float64)) for x in d.arrays]
    names = np.unique(labels)
    assert len(found) == len(names)
    for i, name in enumerate(names):
        picked = [x[labels == name] for x in arrays]
        value = definition(rule, kind)(*picked, *([None] if kind == "point" else []))
        for x, y in zip(found.arrays, value, strict=True):
            np.testing.assert_allclose(rows(x)[i], y, rtol=2.0**-23, atol=1e-12)  # sums that may cancel


@pytest.mark.parametrize("kind", KINDS)
def test_defaults_and_the_fusion_of_single_items(kind):
    d = make(kind, 5, 6)
    order = np.array([3, 0, 4, 1, 2])
    found = pe.fuse(d, order, "mean" if kind == "point" else None)  # of a point alone by its direction the length goes
    for x, y in zip(found.arrays, d[np.argsort(order)].arrays, strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-14)
    named = pe.fuse(d, [0, 0, 1, 1, 1], DEFAULTS.get(kind, "product"))
    for x, y in zip(pe.fuse(d, [0, 0, 1, 1, 1]).arrays, named.arrays, strict=True):
        np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize("kind", ["normal_isotropic", "normal_diagonal", "vmf"])
def test_default_fusion_is_the_normalised_product_of_densities(kind):
    d = make(kind, 4, 3)
    fused = pe.fuse(d, np.zeros(4, int))
    z = make("vmf", 50, 3, 9).mu
    product = pe.log_prob(d, np.repeat(z[:, None], 4, 1)).sum(1)
    offset = product - pe.log_prob(fused, z[:, None])[:, 0]
    np.testing.assert_allclose(offset, offset[0], rtol=1e-12)


@pytest.mark.parametrize("library", LIBRARIES)
def test_directions_that_cancel_fuse_to_the_first_axis(library):
    mu = np.array([[0.0, 1, 0], [0, -1, 0]])
    for kind in ("vmf", "scaled"):
        found = pe.fuse(build(kind, mu, np.array([2.0, 2]), library=library), [5, 5])
        np.testing.assert_array_equal(to_numpy(found.mu), [[1, 0, 0]])
        np.testing.assert_array_equal(to_numpy(found.arrays[1]), [0 if kind == "vmf" else 2])


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_scale_of_0_is_the_harmonic_mean_of_its_group(library):
    d = build("scaled", np.eye(3), np.array([2.0, 0, 5]), library=library)
    np.testing.assert_array_equal(to_numpy(pe.fuse(d, [0, 0, 1], "harmonic").scale), [0, 5])


@pytest.mark.parametrize("block", [1, 100])
def test_groups_are_the_same_whatever_a_block_holds(block, monkeypatch):
    d, labels = make("normal_diagonal", 700, 40), np.random.default_rng(0).permutation(np.arange(700) ** 2 // 9000)
    whole = pe.fuse(d, labels)
    monkeypatch.setattr(fusing, "BLOCK", block)
    for x, y in zip(pe.fuse(d, labels).arrays, whole.arrays, strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-12, atol=1e-14)


def test_what_is_not_finite_stays_in_its_group():
    d = pe.Normal(np.array([[1.0, 2], [np.nan, 2], [3, np.inf], [5, 6]]), np.ones(4))
    np.testing.assert_array_equal(pe.fuse(d, [0, 1, 1, 0]).mu, [[3, 4], [np.nan, np.inf]])


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_what_is_not_finite_gives_no_direction(library):
    wrap = torch.tensor if library == "torch" else np.array
    mu = wrap([[1.0, 0], [np.nan, 1], [0, 1], [0, 1]])
    for d in (pe.VonMisesFisher(mu, wrap([1.0, 1, 2, 2])), pe.Scaled(mu, wrap([1.0, 1, 2, 2]))):
        fused = pe.fuse(d, [0, 0, 1, 1])
        assert np.isnan(np.asarray(fused.mu[0])).any() and np.asarray(fused.mu[1]).tolist() == [0, 1]
    unsure = pe.fuse(pe.VonMisesFisher(wrap([[1.0, 0], [0, 1]]), wrap([np.nan, 1.0])), [0, 0])
    assert np.isnan(np.asarray(unsure.mu)).all() and np.isnan(np.asarray(unsure.kappa)).all()
    sharp = pe.fuse(pe.VonMisesFisher(wrap([[0.0, 1], [0.6, 0.8]]), wrap([np.inf, 1.0])), [0, 0])
    assert not np.isfinite(np.asarray(sharp.kappa)).any()
    with pytest.raises(ValueError, match=r"^fit_vmf: z: 1 of 2 rows are not finite, first 0; leave these out"):
        pe.fit_vmf(wrap([[np.nan, 1.0], [0.0, 1.0]]))


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_memory_is_that_of_the_result_and_blocks(dtype):
    d = make("normal_diagonal", 50_000, 64, dtype=dtype)  # as float64, means and variances are 51 MB
    labels = np.random.default_rng(0).integers(0, 500, len(d))
    z = (d.mu / np.linalg.norm(d.mu.astype("float32"), axis=1, keepdims=True)).astype(dtype)
    for call in (lambda: pe.fuse(d, labels), lambda: pe.fit_vmf(z, groups=labels), lambda: pe.fit_prior(d, labels)):
        tracemalloc.start()
        call()
        assert tracemalloc.get_traced_memory()[1] < 10e6
        tracemalloc.stop()


def test_halves_do_not_overflow_where_concentrations_add_up():
    d = pe.VonMisesFisher(np.repeat(np.eye(1, 3), 4, 0).astype(np.float16), np.full(4, 6e4, np.float16))
    np.testing.assert_array_equal(pe.fuse(d, [0] * 4).kappa, np.float32(4 * 6e4))


@pytest.mark.parametrize("library", LIBRARIES)
def test_no_items_fuse_to_none(library):
    for kind in KINDS:
        found = pe.fuse(make(kind, 3, 4, library=library)[:0], np.zeros(0, int))
        assert len(found) == 0 and found.dim == 4


@pytest.mark.parametrize(("rule", "kind"), CELLS)
def test_fuse_differentiates(rule, kind):
    d = make(kind, 10, 3, library="torch")
    used = [x.clone().requires_grad_() for x in d.arrays]
    assert torch.autograd.gradcheck(lambda *arrays: pe.fuse(type(d)(*arrays), GROUPS, rule).arrays, used)


def test_gradients_stay_finite_where_directions_cancel():
    mu = torch.tensor([[0.0, 1], [0, -1]], dtype=torch.float64, requires_grad=True)
    kappa = torch.ones(2, dtype=torch.float64, requires_grad=True)
    found = pe.fuse(pe.VonMisesFisher(mu, kappa), [0, 0])
    grads = torch.autograd.grad(found.mu.sum() + found.kappa.sum(), (mu, kappa))
    assert all(torch.isfinite(x).all() for x in grads)


ISO, VMF = make("normal_isotropic", 5, 4), make("vmf", 5, 4)


@pytest.mark.parametrize(
    ("function", "error", "begins"),
    [
        (lambda: pe.fuse(ISO.mu, [0] * 5), TypeError, "fuse: d must be a distribution, got ndarray"),
        (lambda: pe.fuse(ISO, [0] * 5, "prodct"), ValueError, "fuse: unknown rule 'prodct'; did you mean 'product'?"),
        (
            lambda: pe.fuse(ISO, [0] * 5, "q"),
            ValueError,
            "fuse: unknown rule 'q'; expected one of product, natural, direction,",
        ),
        (lambda: pe.fuse(ISO, [0] * 5, 1), TypeError, "fuse: rule must be a name or None, got int"),
        (
            lambda: pe.fuse(VMF, [0] * 5, "pfe"),
            TypeError,
            "fuse: rule 'pfe' is of normal_isotropic, normal_diagonal, got",
        ),
        (
            lambda: pe.fuse(ISO, [0] * 4),
            ValueError,
            "fuse: groups have shape (4,) and dtype int64, expected integers or strings (5,)",
        ),
        (
            lambda: pe.fuse(ISO, np.zeros((5, 1), int)),
            ValueError,
            "fuse: groups have shape (5, 1) and dtype int64, expec",
        ),
        (
            lambda: pe.fuse(ISO, np.ones(5, bool)),
            ValueError,
            "fuse: groups have shape (5,) and dtype bool, expected integ",
        ),
        (
            lambda: pe.fuse(ISO, None),
            ValueError,
            "fuse: groups have shape () and dtype object, expected integers or strings (5,)",
        ),
    ],
)
def test_bad_input_gets_one_line(function, error, begins):
    with pytest.raises(error) as caught:
        function()
    assert str(caught.value).startswith(begins), str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("library", LIBRARIES)
def test_points_of_any_length_count_alike_and_zeros_for_nothing(library):
    mu = np.array([[3e200, 0], [0, 1e-200], [0, 0], [0, 0], [1, 1], [-1, -1]])
    found = pe.fuse(build("point", mu, None, library=library), [0, 0, 0, 1, 2, 2])
    np.testing.assert_allclose(to_numpy(found.mu), [[0.5**0.5] * 2, [1, 0], [1, 0]], rtol=1e-15)
    assert pe.fuse(build("point", mu, None, library=library), [0, 0, 0, 1, 2, 2], "mean").mu[0, 0] == 1e200


def test_persons_of_five_photographs_are_found_more_often_fused_than_by_single_ones():
    """Where lengths say nothing of who it is, as those of most embeddings: with lengths fusing loses."""
    rng = np.random.default_rng(0)
    persons, who = rng.normal(size=(400, 24)), np.arange(400).repeat(5)

    def photographs(of):
        x = persons[of] + 0.6 * rng.normal(size=(len(of), 24))
        return pe.Point((x * rng.lognormal(0, 2, size=(len(of), 1))).astype(np.float32))

    gallery, queries = photographs(who), photographs(np.arange(400))
    right = {rule: (pe.search(queries, pe.fuse(gallery, who, rule), 1).ids[:, 0] == np.arange(400)).mean()
             for rule in (None, "mean")}  # fmt: skip
    alone = (who[pe.search(queries, gallery, 1).ids[:, 0]] == np.arange(400)).mean()
    assert right[None] > alone + 0.01 and right["mean"] < alone - 0.02  # .99, .97, .945
