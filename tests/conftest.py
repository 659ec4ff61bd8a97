"""Items of every kind, and a pair's score from every verb, for several test files."""

import gc
import itertools
import math
import re
import shutil
from collections import Counter
from pathlib import Path

import faiss
import host_cuda
import numpy as np
import pytest
import reference
import torch
from items import CLASSES, KINDS, NUMPY, PRIOR_VAR, as_library, build, make, scored, to_numpy

import peaccel as pe
from peaccel import _core
from peaccel.distributions import Distribution
from peaccel.ops import _cuda

__all__ = ["CLASSES", "KINDS", "NUMPY", "PRIOR_VAR", "as_library", "build", "make", "scored", "to_numpy"]

# Tests run side by side, and their tensors are small.
torch.set_num_threads(1)

SCORES = tuple(pe.scores.SCORES)
EPS = {"float32": 2.0**-23, "float64": 2.0**-52}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Mark as slow what tests of many cases leave to `make test-all`: all but every n-th case.

    A case stays that has a value of an argument which none before it had, unless all values of that argument differ, as
    where each case is a row of its own: so every operation, kind, dtype and size of a grid is met.
    """
    marked = {}
    for item in items:
        if mark := item.get_closest_marker("one_in"):
            marked.setdefault((item.nodeid.partition("[")[0], mark.args[0]), []).append(item)
    for (_, n), cases in marked.items():
        values = [{(name, repr(value)) for name, value in case.callspec.params.items()} for case in cases]
        often = Counter(itertools.chain.from_iterable(values))
        arguments = {name for (name, _), times in often.items() if times > 1}
        met = set()
        for i, (case, own) in enumerate(zip(cases, values, strict=True)):
            fresh = {value for value in own if value[0] in arguments} - met
            if fresh or i % n == 0:
                met |= own
            else:
                case.add_marker(pytest.mark.slow)


def pytest_collection_finish():
    """Keep what imports have made out of garbage collections, of which Accelerate makes one a stage of training."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item):
    """Name the files that define what a row of a table of everything is about, where the row fails."""
    report = yield
    if report.failed and item.path.stem.startswith("test_every_"):
        words = re.findall(r"[A-Za-z_]\w+", item.name.partition("[")[2])
        report.sections.append(("files to open", "\n".join(defining(words)) or f"{item.path}: no row bears a name"))
    return report


def defining(words):
    """The files of the package that bear one of these names, or define a function, a class or a record of it."""
    top = re.compile(rf"^(def |class )?({'|'.join(map(re.escape, words)) or '$^'})\b(?! import)", re.MULTILINE)
    paths = sorted(path for path in Path(pe.__file__).parent.rglob("*") if path.suffix in (".py", ".toml"))
    return [
        str(path) for path in paths if path.stem in words or (path.suffix == ".py" and top.search(path.read_text()))
    ]


def pytest_unconfigure():
    """Let go of them at the end, where some libraries count what was left."""
    gc.unfreeze()


def wide(d, dtype, nearly=None):
    """Kind, means and uncertainties of a distribution for the reference, rounded to the compute dtype as verbs do.

    With ``nearly``, variances of 0 are this number, and infinite concentrations its reciprocal.
    """
    arrays = [to_numpy(x).astype(NUMPY[dtype]).astype(reference.WIDE) for x in d.arrays]
    mu = arrays[0]
    uncertainty = arrays[1] if len(arrays) == 2 else reference.WIDE(0) * mu[:, :1]
    if nearly is not None and d.kind in ("normal_isotropic", "normal_diagonal", "point", "vmf"):
        edge, near = (np.inf, 1 / nearly) if d.kind == "vmf" else (0, nearly)
        uncertainty = np.where(uncertainty == edge, near, uncertainty)
    return d.kind, mu, uncertainty if uncertainty.ndim == 2 else uncertainty[:, None]


def draws(d, n, seed, side, dtype):
    """The draws [n, N, D] that a score makes of one side; those of a point and of nivmf are copies of the mean."""
    if d.kind in ("point", "nivmf"):
        return np.repeat(to_numpy(d.mu).astype(NUMPY[dtype])[None], n, 0)
    op = pe.ops.samplers.sample_vmf if d.kind == "vmf" else pe.ops.samplers.sample_normal
    arrays = [to_numpy(x).astype(NUMPY[dtype]) for x in d.arrays]
    return pe.ops.sample(op, *arrays, np.asarray(seed), n, 0, pe.ops.samplers.STREAMS[side])


def is_drawn(score, q, g):
    """Whether the score of these items draws them."""
    return pe.scores.get(score).pair(q.kind, g.kind).op.draws


def expected_of_draws(score, q, g, dtype):
    """(value, size) [Q, G] by the reference, from the draws of both sides."""
    params, (_, mu2, uncertainty2) = score.params, wide(g, dtype)
    z1, z2 = (draws(d, params["n"], params["seed"], side, dtype) for d, side in ((q, "query"), (g, "gallery")))
    with np.errstate(all="ignore"):
        return reference.drawn(score.name, z1[:, :, None], z2[:, None], mu2[None], uncertainty2[None], params)


def expected_limits(score, q, g, dtype):
    """Scores [Q, G] in which variances of 0 go to 0 together, and infinite concentrations to infinity; and sizes.

    By the reference at two of them: where its values still move, they have no finite limit.
    """
    smaller = {"vmf": ("1e-30", "1e-60")}.get(g.kind, ("1e-1000", "1e-2000"))
    (first, _), (value, size) = (expected(score, q, g, dtype, reference.WIDE(x)) for x in smaller)
    with np.errstate(invalid="ignore"):
        moved = value - first
    moves = abs(moved) > 1 + 1e-16 * abs(value)
    return np.where(moves, np.where(moved > 0, np.inf, -np.inf), value), np.where(moves, 1, size)


def expected(score, q, g, dtype, nearly=None):
    """(value, size) [Q, G] by the reference, from the items as `wide` rounds them to this dtype."""
    score = pe.scores.get(score)
    if is_drawn(score, q, g):
        return expected_of_draws(score, q, g, dtype)
    if score.name.startswith("nivmf"):
        (kind1, z, _), (_, mu2, uncertainty2) = wide(q, dtype), wide(g, dtype)
        z = z / np.sqrt((z * z).sum(-1, keepdims=True)) if kind1 == "point" else z
        return reference.drawn(score.name, z[None, :, None], None, mu2[None], uncertainty2[None], score.params)
    (kind1, a, x), (kind2, b, y) = wide(q, dtype, nearly), wide(g, dtype, nearly)
    with np.errstate(all="ignore"):
        return reference.score(score.name, (kind1, kind2), (a[:, None], x[:, None]), (b[None], y[None]), score.params)


def by_verb(q, g, score, prepared=None):
    """The scores [Q, G] of all pairs, by each verb; from `prepared` in place of g where a verb takes it."""
    library = "torch" if isinstance(q.mu, torch.Tensor) else "numpy"
    g = g if prepared is None else prepared.distribution  # which rounds directions in halves once more
    pool, (i, j) = g if prepared is None else prepared, np.divmod(np.arange(len(q) * len(g)), max(len(g), 1))
    every = np.tile(np.arange(len(g)), (len(q), 1))
    candidates = torch.tensor(every) if library == "torch" else every
    found = {
        "pairwise": pe.pairwise(q, pool, score),
        "rescore": pe.rescore(q, pool, candidates, score),
    }
    if is_drawn(score, q, g):
        # Draws belong to the number of a row: paired sees the diagonal only.
        n = min(len(q), len(g))
        found["paired"] = to_numpy(found["pairwise"]).copy()
        found["paired"][range(n), range(n)] = to_numpy(pe.paired(q[:n], g[:n], score))
    elif prepared is None:
        found["paired"] = pe.paired(q[i], g[j], score).reshape(len(q), len(g))
    for verb, ranking in (
        ("rerank", pe.rerank(q, pool, candidates, len(g), score)),
        ("search", pe.search(q, pool, len(g), score)),
    ):
        matrix = np.empty((len(q), len(g)), to_numpy(ranking.scores).dtype)
        np.put_along_axis(matrix, np.asarray(ranking.ids), to_numpy(ranking.scores), 1)
        found[verb] = matrix
    return {verb: to_numpy(x) for verb, x in found.items()}


def every_score(q, g, score):
    """The scores [Q, G] of all pairs in the bits of `paired`, `rescore`, `rerank` and `search`."""
    ids = np.tile(np.arange(len(g)), (len(q), 1))
    return pe.rescore(q, g, torch.tensor(ids) if isinstance(q.mu, torch.Tensor) else ids, score)


def roundings(dim, dtype):
    """Of an inner product of all pairs, and of a squared distance of rows that are not near, relative to |a|^2 + |b|^2.

    As proved in rust/kernels/dot_scores/all_pairs.rs.
    """
    lanes = {"float32": 16, "float64": 8}[dtype]
    product = min(dim, 128) + -(-dim // 128) - 1
    return product, product + -(-dim // (4 * lanes)) + 2 + math.log2(lanes) + 3


def of_products(name):
    """Whether a score is one of inner products, not of squared distances."""
    return "cosine" in name or name == "inner_product"


def apart(name, q, g, dtype):
    """Tolerance [Q, G] of scores of all pairs, to other verbs': docs/numerics.md, and a formula's roundings."""
    product, distance = roundings(q.dim, dtype)
    size = np.asarray(expected(scored(name, q.kind), q, g, dtype)[1], np.float64)
    return ((product if of_products(name) else 16 * distance) / 2 + 8) * EPS[dtype] * size


def assert_ranking(ranking, expected, what=""):
    """Assert that the ranking is (scores, ids), to the last bit."""
    np.testing.assert_array_equal(ranking.ids, expected[1], err_msg=f"ids {what}")
    np.testing.assert_array_equal(to_numpy(ranking.scores), expected[0], err_msg=f"scores {what}")


def flat_index(g, ids=None):
    """An exact FAISS index of a gallery's means, by rows or external ids."""
    index = faiss.IndexFlatL2(g.dim)
    index = index if ids is None else faiss.IndexIDMap(index)
    vectors = np.ascontiguousarray(to_numpy(g.mu), np.float32)
    _ = index.add(vectors) if ids is None else index.add_with_ids(vectors, ids)
    return index


@pytest.fixture
def unlooked(monkeypatch):
    """Lets negative parameters and NaN reach the kernels, as they do in rows that no verb looks at, and on a GPU."""
    monkeypatch.setattr(Distribution, "check_rows", lambda self: None)
    monkeypatch.setattr(Distribution, "check_finite", lambda *args: None)


@pytest.fixture(autouse=True)
def _two_threads():
    """Every test begins with two threads, however many the machine has and whatever the test before has set."""
    pe.set_num_threads(2)


@pytest.fixture(scope="session")
def libraries():
    """The environment in which the core finds a GPU that is the host."""
    if not _core.cuda_info()[0]:
        pytest.skip(f"{_core.cuda_info()[2]}")
    if shutil.which("g++") is None:
        pytest.skip("there is no g++ here to compile the kernels for the host")
    return host_cuda.compiled()


@pytest.fixture
def device(libraries, monkeypatch):
    """Torch CPU tensors are the memory of that GPU."""
    for name, value in libraries.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(_cuda, "place", lambda x: (0, 0))
    monkeypatch.setattr(_cuda, "blas", lambda x: 0)
