"""Few candidates of a large gallery: only these are converted, if any are, and nothing else of the answer changes."""

import copy
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import faiss
import numpy as np
import pytest
import torch
from conftest import make, scored, to_numpy

import peaccel as pe
from peaccel.retrieval import plan as plan_module
from peaccel.retrieval import prepared as prepared_module
from peaccel.retrieval.plan import plan
from peaccel.scores._inputs import AS_THEY_LIE

DERIVED = [
    ("neg_w2", "normal_isotropic"),
    ("neg_w2", "normal_diagonal"),
    ("norm_cosine", "normal_isotropic"),
    ("expected_cosine", "normal_isotropic"),
    ("expected_cosine", "vmf"),
    ("neg_expected_sq_l2", "vmf"),
    (pe.scores.llr(prior_var=0.5, prior_mean=np.linspace(-1, 1, 6)), "normal_isotropic"),
    (pe.scores.llr(prior_var=0.5, prior_mean=np.linspace(-1, 1, 6)), "normal_diagonal"),
]
PLAIN = [("mls", "normal_isotropic"), ("mls", "normal_diagonal"), ("mls", "vmf"), ("cosine", "point")]
PLAIN += [(pe.scores.llr(prior_var=0.5), "normal_isotropic"), ("expected_cosine", "point"), ("neg_sq_l2", "vmf")]


def candidates(queries=3, gallery=90):
    ids = np.random.default_rng(0).integers(-1, gallery, (queries, 7))
    ids[:, 3] = -1
    ids[1] = -1
    return ids


def column_major(d):
    return d._map(np.asfortranarray)


def memory(x):
    return x.data_ptr() if isinstance(x, torch.Tensor) else x.__array_interface__["data"][0]


def picked(scores, ids):
    return np.where(ids < 0, -np.inf, np.take_along_axis(scores, np.maximum(ids, 0), 1))


@pytest.mark.parametrize(("score", "kind"), DERIVED + PLAIN, ids=str)
@pytest.mark.parametrize("layout", ["rows", "columns", "float16"])
def test_candidates_score_as_in_the_whole_gallery(score, kind, layout):
    q, g, ids = make(kind, 3, 6, 1), make(kind, 90, 6, 2), candidates()
    g = column_major(g) if layout == "columns" else g.to("float16") if layout == "float16" else g
    whole = picked(pe.pairwise(q, g, score), ids)
    np.testing.assert_array_equal(pe.rescore(q, g, ids, score), whole)
    best = pe.rerank(q, g, ids, 4, score)
    order = np.lexsort((np.where(ids < 0, 90, ids), -whole))[:, :4]
    np.testing.assert_array_equal(best.ids, np.take_along_axis(ids, order, 1))
    np.testing.assert_array_equal(best.scores, np.take_along_axis(whole, order, 1))


@pytest.mark.parametrize(("score", "kind"), DERIVED + PLAIN, ids=str)
@pytest.mark.parametrize("half", [False, True])
def test_gradients_reach_the_whole_gallery(score, kind, half):
    ids = torch.from_numpy(candidates())
    grads = []
    for by in ("candidates", "pairs"):
        q, g = (make(kind, n, 6, seed, dtype="float32")._map(torch.from_numpy) for n, seed in ((3, 1), (90, 2)))
        g = g.to(torch.float16) if half else g
        arrays = [x.requires_grad_() for x in (*q.arrays, *g.arrays)]
        if by == "candidates":
            scores = pe.rescore(q, g, ids, score)[ids >= 0]
        else:
            scores = pe.pairwise(q, g, score).gather(1, ids.clamp(min=0))[ids >= 0]
        scores.sum().backward()
        grads.append([x.grad for x in arrays])
    for few, whole in zip(*grads, strict=True):
        torch.testing.assert_close(few, whole, rtol=1e-3 if half else 1e-5, atol=1e-3 if half else 1e-5)


@pytest.mark.parametrize(("score", "kind"), DERIVED, ids=str)
def test_only_candidates_are_converted(score, kind):
    q, g, ids = make(kind, 3, 6, 1), make(kind, 90, 6, 2), candidates()
    planned = plan(q, g, score, detach=True, candidates=ids)
    assert len(planned.inputs.mu2) == len(np.unique(ids)) - 1 == len(planned.rows)


@pytest.mark.parametrize("library", ["numpy", "torch"])
@pytest.mark.parametrize(("score", "kind"), PLAIN, ids=str)
def test_a_gallery_is_read_as_it_lies(score, kind, library):
    q, g = (make(kind, n, 6, n, library=library) for n in (3, 90))
    ids = candidates() if library == "numpy" else torch.from_numpy(candidates())
    planned = plan(q, g, score, detach=True, candidates=ids)
    assert planned.rows is None and memory(planned.inputs.mu2) == memory(g.mu)


@pytest.mark.parametrize("name", pe.scores.SCORES)
def test_what_is_said_to_lie_in_a_gallery_lies_there(name):
    """And what a score computes of each item is not said to."""
    for kinds in pe.scores.SCORES[name].pairs:
        score, g = scored(name, *kinds), make(kinds[1], 9, 6)
        pair = score.pair(*kinds)
        found = pair.gallery(g, score.params)
        lies = [0 in x.strides or any(memory(x) == memory(own) for own in g.arrays) for x in found]
        assert (pair.gallery in AS_THEY_LIE) == all(lies), kinds


@pytest.mark.parametrize("prepare", [pe.prepare, lambda g, score: g])
@pytest.mark.parametrize(("score", "kind"), PLAIN, ids=str)
def test_of_a_large_gallery_gradients_are_of_few_rows(score, kind, prepare, monkeypatch):
    q, g = (make(kind, n, 6, n, library="torch") for n in (3, 90))
    ids, found = torch.from_numpy(candidates()), []
    for bytes_, rows in ((90 * 6 * 8, 90), (90 * 6 * 8 - 1, len(np.unique(ids)) - 1)):
        monkeypatch.setattr(plan_module, "FRESH", bytes_)
        mu = q.mu.clone().requires_grad_()
        queries = type(q)(mu, *q.arrays[1:])
        gallery = prepare(g, score)
        assert len(plan(queries, gallery, score, detach=False, candidates=ids).inputs.mu2) == rows
        assert len(plan(q, gallery, score, detach=False, candidates=ids).inputs.mu2) == 90
        scores = pe.rescore(queries, gallery, ids, score)
        scores[ids >= 0].sum().backward()
        found.append((scores.detach(), mu.grad))
    for few, whole in zip(*found, strict=True):
        torch.testing.assert_close(few, whole, rtol=0, atol=0)


def calls(function):
    """How many calls of Python a function makes, when all that is made once is there."""
    function()
    count = 0

    def seen(frame, event, _):
        nonlocal count
        count += event == "call"

    sys.setprofile(seen)
    try:
        function()
    finally:
        sys.setprofile(None)
    return count - 1  # less its own


def test_a_call_is_short():
    """The calls of Python of two verbs, with numpy's and torch's; of a rerank the functions of the package, and those
    among them that are given the concentrations."""
    q, g = make("vmf", 3, 6, 1), make("vmf", 90, 6, 2)
    ids = candidates()
    assert 30 < calls(lambda: pe.search(q, g, 2)) <= 40 and 30 < calls(lambda: pe.rerank(q, g, ids, 2)) <= 45
    called, given, package = set(), set(), f"{Path(pe.__file__).parent}{os.sep}"

    def holds(x):
        return any(x is d or x is d.kappa for d in (q, g)) or (isinstance(x, tuple | list) and any(map(holds, x)))

    def seen(frame, event, _):
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(package):
            called.add(code)
            given.update([code] if any(map(holds, frame.f_locals.values())) else [])

    sys.setprofile(seen)
    try:
        pe.rerank(q, g, candidates(), 2)
    finally:
        sys.setprofile(None)
    # With the name of the score, by which a ranking knows what a threshold is for.
    assert 20 < len(called) <= 32, sorted(code.co_qualname for code in called)
    # One of them hands all arguments on to a function in which numpy does not warn.
    assert 10 < len(given) <= 24, sorted(code.co_qualname for code in given)


def test_no_test_here_depends_on_the_folders_above(tmp_path):
    """In a clone of the natural name that holds its environment, with a blank and an umlaut above it."""
    clone, root = tmp_path / "Maja Bär" / "peaccel", Path(__file__).parents[2]
    clone.mkdir(parents=True)
    parts = {"python": Path(pe.__file__).parents[1], "site-packages": sysconfig.get_path("purelib")}
    for name, leads_to in ({path.name: path for path in root.iterdir()} | parts).items():
        (clone / name).symlink_to(leads_to)
    paths = os.pathsep.join(str(clone / name) for name in ("python", "site-packages"))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", clone]
    command += ["tests/ops/test_few_candidates.py", "-k", "not folders_above"]
    environment = {**os.environ, "PYTHONPATH": paths}
    done = subprocess.run(command, cwd=clone, env=environment, text=True, capture_output=True, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("wrong", [90, -2, 2**40])
def test_what_is_out_of_range_is_named_as_it_was_given(wrong):
    q, g, ids = make("normal_isotropic", 3, 6, 1), make("normal_isotropic", 90, 6, 2), candidates()
    ids[2, 5] = wrong
    for verb in (pe.rescore, lambda *args: pe.rerank(*args[:3], 2, args[3])):
        with pytest.raises(ValueError, match=f"neg_w2: candidates of query 2 hold id {wrong}, expected -1 .*has 90"):
            verb(q, g, ids, "neg_w2")


@pytest.mark.parametrize(("score", "kind"), DERIVED + PLAIN, ids=str)
def test_a_gallery_that_grows_is_converted_by_what_is_new(score, kind, monkeypatch):
    g, q = make(kind, 90, 6, 2), make(kind, 3, 6, 1)
    index = faiss.IndexFlatIP(6)
    index.add(np.ascontiguousarray(g.mu[:40], np.float32))
    reranker = pe.FaissReranker(index, g[:40], score=score)
    reranker.search(q, 3)
    converted = []
    real = prepared_module.gallery_inputs

    def counted(pair, d, score):
        converted.append(len(d))
        return real(pair, d, score)

    monkeypatch.setattr(prepared_module, "gallery_inputs", counted)
    for first, last in ((40, 41), (41, 60), (60, 90)):
        reranker.add(g[first:last])
        other = copy.deepcopy(reranker)
        for r in (reranker, other):
            found = r.search(q, 5, shortlist=last)
            expected = pe.search(q, g[:last], 5, reranker.score)
            np.testing.assert_array_equal(found.ids, expected.ids)
            np.testing.assert_array_equal(found.scores, expected.scores)
    assert converted[0] == 1


@pytest.mark.parametrize("library", ["numpy", "torch"])
@pytest.mark.parametrize(("score", "kind"), DERIVED[:3], ids=str)
def test_a_gallery_that_begins_empty_is_converted(score, kind, library):
    g = make(kind, 20, 6, 2, dtype="float32")
    g = g if library == "numpy" else g._map(torch.from_numpy)
    reranker = pe.FaissReranker(faiss.IndexFlatIP(6), g[:0], score=score)
    reranker.search(g[:2], 3)
    reranker.add(g)
    found, expected = reranker.search(g[:2], 5, shortlist=20), pe.search(g[:2], g, 5, score)
    np.testing.assert_array_equal(found.ids, expected.ids)
    np.testing.assert_array_equal(found.scores, expected.scores)


@pytest.mark.filterwarnings("ignore:.torch.jit.script:FutureWarning")  # torch itself warns where it decomposes gather
def test_transforms_of_torch_see_few_candidates_as_all_pairs():
    q, g = (make("normal_isotropic", n, 6, n)._map(torch.from_numpy) for n in (3, 90))
    ids = torch.from_numpy(candidates()).clamp(min=0)

    def few(mu):
        return pe.rescore(pe.Normal(mu, q.var), g, ids, "neg_w2").sum()

    def whole(mu):
        return pe.pairwise(pe.Normal(mu, q.var), g, "neg_w2").gather(1, ids).sum()

    for transform in (torch.func.grad, torch.func.hessian):
        torch.testing.assert_close(transform(few)(q.mu), transform(whole)(q.mu))
    several = torch.stack([q.mu, q.mu + 1])
    torch.testing.assert_close(torch.func.vmap(few)(several), torch.func.vmap(whole)(several))


def test_a_gallery_by_columns_is_laid_out_once():
    g = column_major(make("normal_diagonal", 90, 6, 2))
    prepared = pe.prepare(g)
    pair = prepared.score.pair(g.kind, g.kind)
    assert all(x.strides[1] == x.itemsize for x in prepared.laid_out(pair).inputs)


@pytest.mark.parametrize("library", ["numpy", "torch"])
@pytest.mark.parametrize(
    ("kind", "name"), [("normal_diagonal", "neg_sampled_l2"), ("normal_diagonal", "hib"), ("vmf", "sampled_cosine")]
)
def test_few_candidates_in_halves_are_drawn_by_their_rows_of_the_gallery(kind, name, library):
    """Also where gradients make them float32."""
    score = pe.scores.get(name)(seed=3)
    queries, gallery = (
        make(kind, 3, 6, 1, dtype="float32", library=library),
        make(kind, 40, 6, 2, dtype="float16", library=library),
    )
    candidates = np.array([[7], [31], [-1]])
    candidates = torch.from_numpy(candidates) if library == "torch" else candidates
    whole = to_numpy(pe.pairwise(queries, gallery, score))
    expected = [whole[0, 7], whole[1, 31], -np.inf]
    if library == "torch":
        queries.mu.requires_grad_()
    assert to_numpy(pe.rescore(queries, gallery, candidates, score))[:, 0].tolist() == expected
    assert to_numpy(pe.rerank(queries, gallery, candidates, 1, score).scores)[:, 0].tolist() == expected
