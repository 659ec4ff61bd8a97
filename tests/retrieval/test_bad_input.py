"""Bad input gets one line that names the argument, what was expected and what came; never a crash."""

import os
import re
import subprocess
import sys

import faiss
import numpy as np
import pytest
import torch
from conftest import flat_index, make

import peaccel as pe

ISO, DIAG, VMF = (make(kind, 5, 4, dtype="float32") for kind in ("normal_isotropic", "normal_diagonal", "vmf"))
TENSORS = make("normal_isotropic", 5, 4, dtype="float32", library="torch")
X, IDS = ISO.mu, np.zeros((5, 2), np.int64)
INDEX = flat_index(ISO)
WITH_IDS, REPLICAS = flat_index(ISO, np.arange(5) + 100), faiss.IndexReplicas(4)
REPLICAS.add_replica(WITH_IDS)  # FAISS cannot say the ids of an index over others
REFERENCE = pe.first_stage_reference(ISO)
META = pe.Normal(torch.empty(5, 4, device="meta"), torch.empty(5, device="meta"))


def ids_with(value):
    ids = IDS.copy()
    ids[3, 1] = value
    return ids


BAD = [
    # kinds of object
    (
        lambda: pe.paired(X, ISO),
        TypeError,
        "mls: a must be a distribution, got ndarray; plain vectors go in pe.Point",
    ),
    (lambda: pe.pairwise(ISO, X), TypeError, "mls: gallery must be a distribution, got ndarray"),
    (lambda: pe.search(ISO, None, 1), TypeError, "mls: gallery must be a distribution, got NoneType"),
    (lambda: pe.search([ISO], ISO, 1), TypeError, "mls: queries must be a distribution, got list"),
    (lambda: pe.search(pe.prepare(ISO), ISO, 1), TypeError, "mls: queries must be a distribution, got Prepared"),
    (lambda: pe.search(torch.zeros(2, 4), TENSORS, 1), TypeError, "mls: queries must be a distribution, got Tensor"),
    (lambda: pe.prepare(X), TypeError, "mls: gallery must be a distribution, got ndarray"),
    (lambda: pe.prepare(pe.prepare(ISO)), TypeError, "prepare: gallery is prepared for 'mls' already"),
    (lambda: pe.prepare(make("scaled")), TypeError, "mls: no query can be scored against scaled"),
    (
        lambda: pe.search(ISO, ISO, 1, prune="perhaps"),
        ValueError,
        "mls: prune is 'perhaps', expected 'auto', 'never' or 'always'",
    ),
    (
        lambda: pe.prepare(ISO, dtype="int8"),
        ValueError,
        "prepare: dtype 'int8', expected float16, bfloat16, float32 or float64",
    ),
    # scores
    (lambda: pe.search(ISO, ISO, 1, "msl"), ValueError, "unknown score 'msl'; did you mean 'mls'?"),
    (lambda: pe.search(ISO, ISO, 1, "zzz"), ValueError, "unknown score 'zzz'; expected one of mls, "),
    (lambda: pe.search(ISO, ISO, 1, "ppk:rho=0"), ValueError, "ppk: rho is 0.0, expected a finite number above 0"),
    (
        lambda: pe.search(ISO, ISO, 1, "neg_kl:direction=back"),
        ValueError,
        "neg_kl: direction is 'back', expected one of 'query_to_gallery', 'gallery_to_query', 'symmetric'",
    ),
    (
        lambda: pe.scores.scale_cosine(sides=1),
        ValueError,
        "scale_cosine: sides is 1, expected one of 'both', 'query'",
    ),
    (
        lambda: pe.search(make("point"), make("point"), 1, pe.scores.norm_cosine(mu=[1, 2])),
        ValueError,
        "norm_cosine: mu has shape (2,), expected a number",
    ),
    (lambda: pe.search(ISO, ISO, 1, 3), TypeError, "score must be a name or a Score, got int"),
    (lambda: pe.search(ISO, ISO, 1, "mls:rho=1"), ValueError, "mls: unknown parameter 'rho'; expected one of none"),
    (lambda: pe.scores.llr(prior=1), ValueError, "llr: unknown parameter 'prior'; did you mean 'prior_var'?"),
    (
        lambda: pe.search(ISO, ISO, 1, "llr:prior_var=big"),
        ValueError,
        "score 'llr:prior_var=big': prior_var must be a number",
    ),
    (lambda: pe.search(ISO, ISO, 1, "llr"), ValueError, "llr: prior_var must be given; pe.fit_prior"),
    (
        lambda: pe.search(ISO, ISO, 1, "llr:prior_var=-0.5"),
        ValueError,
        "llr: prior_var is -0.5, expected finite numbers",
    ),
    (lambda: pe.search(ISO, ISO, 1, "llr:prior_var=nan"), ValueError, "llr: prior_var is nan, expected finite numbers"),
    (lambda: pe.search(ISO, ISO, 1, "ppk:rho=inf"), ValueError, "ppk: rho is inf, expected a finite number above 0"),
    (
        lambda: pe.search(VMF, VMF, 1, pe.scores.llr(prior_var=0.7)),
        ValueError,
        "llr: prior_var has no meaning for vmf x vmf",
    ),
    (
        lambda: pe.search(DIAG, DIAG, 1, pe.scores.llr(prior_var=np.ones(3))),
        ValueError,
        "llr: prior_var has shape (3,), expected () or (4,)",
    ),
    (
        lambda: pe.search(ISO, ISO, 1, pe.scores.llr(prior_var=np.ones(3))),
        ValueError,
        "llr: prior_var has shape (3,), expected () or (4,)",
    ),
    (
        lambda: pe.search(ISO, ISO, 1, pe.scores.llr(prior_var=1.0, prior_mean=np.zeros(3))),
        ValueError,
        "llr: prior_mean has shape (3,), expected () or (4,)",
    ),
    (
        lambda: pe.search(ISO, ISO, 1, pe.scores.llr(prior_var=1.0, prior_mean=np.zeros((5, 1)))),
        ValueError,
        "llr: prior_mean has shape (5, 1), expected () or (4,)",
    ),
    (lambda: pe.search(ISO, VMF, 1), TypeError, "mls: cannot score normal_isotropic x vmf (query x gallery), only "),
    # shapes, dtypes, devices
    (lambda: pe.search(make("point", 2, 3), ISO, 1), ValueError, "mls: dim of queries is 3, expected 4 like gallery"),
    (lambda: pe.paired(ISO, ISO[:3]), ValueError, "mls: b has 3 items, expected 5 like a"),
    (lambda: pe.paired(ISO, ISO.to("float64")), ValueError, "mls: b has dtype float64, expected float32 like a"),
    (
        lambda: pe.search(TENSORS, ISO, 1),
        TypeError,
        "mls: queries must be numpy arrays like gallery, got torch tensors on cpu",
    ),
    (lambda: pe.pairwise(ISO, TENSORS), TypeError, "mls: queries must be torch tensors on cpu like gallery"),
    (
        lambda: pe.pairwise(META, TENSORS),
        ValueError,
        "mls: queries must be torch tensors on cpu like gallery, got torch tensors on meta",
    ),
    (lambda: pe.pairwise(META, META), ValueError, "mls: queries and gallery are on meta, expected cpu or cuda"),
    (
        lambda: pe.FaissReranker.build(META, "Flat"),
        ValueError,
        "FaissReranker: mu is on meta, where tensors have no values",
    ),
    (
        lambda: pe.fit_prior(META, IDS[:, 0]),
        ValueError,
        "fit_prior: d is on meta, where tensors have no values",
    ),
    (
        lambda: pe.calibrate_variance(META, [[0, 1]], [1]),
        ValueError,
        "calibrate_variance: d is on meta, where tensors have no values",
    ),
    (
        lambda: pe.fit_shift(META, [[0, 1]], [1]),
        ValueError,
        "fit_shift: d is on meta, where tensors have no values",
    ),
    (lambda: pe.first_stage_features(META), ValueError, "first_stage_features: d is on meta, where tensors have no"),
    (
        lambda: pe.FaissReranker(INDEX, META),
        ValueError,
        "FaissReranker: index is IndexFlatL2 on the CPU, expected one on meta like gallery",
    ),
    # k
    (lambda: pe.search(ISO, ISO, 0), ValueError, "mls: k is 0, expected 1 .. 2147483647"),
    (lambda: pe.rerank(ISO, ISO, IDS, 2**70), ValueError, "mls: k is 1180591620717411303424, expected 1 .. 2147483647"),
    (
        lambda: pe.scores.llr(prior_mean="a"),
        TypeError,
        "llr: prior_mean must be a number or an array of numbers, got 'a'",
    ),
    (
        lambda: pe.scores.llr(prior_var=[[1], [2, 3]]),
        TypeError,
        "llr: prior_var must be a number or an array of numbers",
    ),
    (lambda: pe.rerank(ISO, ISO, IDS, -3), ValueError, "mls: k is -3, expected 1 .. 2147483647"),
    (lambda: pe.search(ISO, ISO, 1.5), TypeError, "mls: k must be an integer, got float"),
    (lambda: pe.search(ISO, ISO, "2"), TypeError, "mls: k must be an integer, got str"),
    (lambda: pe.search(ISO, ISO, True), TypeError, "mls: k must be an integer, got bool"),
    (lambda: pe.search(ISO, ISO, None), TypeError, "mls: k must be an integer, got NoneType"),
    # candidates
    (
        lambda: pe.rescore(ISO, ISO, IDS[:3]),
        ValueError,
        "mls: candidates have shape (3, 2), expected (5, K): a row per query",
    ),
    (lambda: pe.rescore(ISO, ISO, None), TypeError, "mls: candidates is None, expected integers [Q, K]"),
    (lambda: pe.rerank(ISO, ISO, None, 1, "ppk"), TypeError, "ppk: candidates is None, expected integers [Q, K]"),
    (lambda: pe.rescore(ISO, ISO, IDS[:, 0]), ValueError, "mls: candidates have shape (5,), expected (5, K)"),
    (lambda: pe.rescore(ISO, ISO, IDS[None]), ValueError, "mls: candidates have shape (1, 5, 2), expected (5, K)"),
    (
        lambda: pe.rescore(ISO, ISO, IDS * 1.0),
        ValueError,
        "mls: candidates have dtype float64, expected an integer dtype",
    ),
    (lambda: pe.rescore(ISO, ISO, IDS > 0), ValueError, "mls: candidates have dtype bool, expected an integer dtype"),
    (
        lambda: pe.rescore(ISO, ISO, ids_with(5)),
        ValueError,
        "mls: candidates of query 3 hold id 5, expected -1 (none) or a row of the gallery, which has 5",
    ),
    (
        lambda: pe.rerank(ISO, ISO, ids_with(-2), 1),
        ValueError,
        "mls: candidates of query 3 hold id -2, expected -1 (none)",
    ),
    (lambda: pe.rerank(ISO, ISO[:0], IDS, 1), ValueError, "mls: candidates of query 0 hold id 0, expected -1 (none)"),
    (
        lambda: pe.rerank(DIAG, DIAG, ids_with(2**62), 1),
        ValueError,
        f"mls: candidates of query 3 hold id {2**62}, expected -1",
    ),
    (
        lambda: pe.rescore(ISO, ISO, ids_with(0).astype(np.uint64) + np.uint64(2**63)),
        ValueError,
        f"mls: candidates hold id {2**63}, beyond int64",
    ),
    (
        lambda: pe.rescore(ISO, ISO, torch.zeros(5, 2, dtype=torch.int64)),
        TypeError,
        "mls: candidates are torch tensors on cpu, expected numpy arrays like queries",
    ),
    (
        lambda: pe.rescore(TENSORS, TENSORS, IDS),
        TypeError,
        "mls: candidates are numpy arrays, expected torch tensors on cpu like queries",
    ),
    (
        lambda: pe.rescore(TENSORS, TENSORS, torch.full((5, 2), 5)),
        ValueError,
        "mls: candidates of query 0 hold id 5, expected -1 (none) or a row of the gallery, which has 5",
    ),
    (lambda: pe.rescore(ISO, ISO, "abc"), ValueError, "mls: candidates have shape (), expected (5, K)"),
    # FAISS
    (lambda: pe.FaissReranker(np.ones(3), ISO), TypeError, "FaissReranker: index must be a FAISS index, got ndarray"),
    (lambda: pe.FaissReranker(INDEX, X), TypeError, "mls: gallery must be a distribution, got ndarray"),
    (
        lambda: pe.FaissReranker(INDEX, ISO[:4]),
        ValueError,
        "FaissReranker: index holds 5 items, expected 4 like gallery",
    ),
    (
        lambda: pe.FaissReranker(INDEX, ISO, features="mean"),
        ValueError,
        "FaissReranker: features 'mean', expected 'mu',",
    ),
    (
        lambda: pe.FaissReranker(INDEX, ISO, ids=np.arange(4)),
        ValueError,
        "FaissReranker: ids have shape (4,) and dtype int64, expected integers or strings (5,)",
    ),
    (
        lambda: pe.FaissReranker(INDEX, ISO, ids=np.ones(5)),
        ValueError,
        "FaissReranker: ids have shape (5,) and dtype float64, expected integers or strings (5,)",
    ),
    (lambda: pe.FaissReranker(INDEX, ISO, ids=[3, 1, 4, 1, 5]), ValueError, "FaissReranker: ids hold 1 twice"),
    (lambda: pe.FaissReranker(INDEX, ISO, ids=[3, -1, 4, 2, 5]), ValueError, "FaissReranker: ids hold -1"),
    (
        lambda: pe.FaissReranker(INDEX, ISO, ids=np.arange(5).astype(np.uint64) + np.uint64(2**63)),
        ValueError,
        f"FaissReranker: ids hold {2**63}",
    ),
    (
        lambda: pe.FaissReranker(INDEX, ISO, ids=np.arange(1, 6)).search(ISO, 2),
        ValueError,
        "FaissReranker: index returned id 0, which ids lacks",
    ),
    (
        lambda: pe.FaissReranker(REPLICAS, ISO).search(ISO, 2),
        ValueError,
        "FaissReranker: index returned id 104, gallery has 5 rows; pass its ids",
    ),
    (
        lambda: pe.FaissReranker(INDEX, ISO, features=lambda d: d.mu[:, :3]).search(ISO, 1),
        ValueError,
        "FaissReranker: features of the queries have shape (5, 3), the index takes (5, 4)",
    ),
    (
        lambda: pe.FaissReranker(INDEX, ISO, features=lambda d: d.mu[:3]).search(ISO, 1),
        ValueError,
        "FaissReranker: features of the queries have shape (3, 4), the index takes (5, 4)",
    ),
    (lambda: pe.FaissReranker(INDEX, ISO).search(X, 1), TypeError, "mls: queries must be a distribution, got ndarray"),
    (
        lambda: pe.FaissReranker(INDEX, ISO).search(ISO, 1, params="efSearch=3"),
        TypeError,
        "FaissReranker: params of type str do not fit IndexFlat",
    ),
    (lambda: pe.FaissReranker(INDEX, ISO).search(ISO, 0), ValueError, "mls: k is 0, expected 1 .. 2147483647"),
    (
        lambda: pe.FaissReranker(INDEX, ISO).search(ISO, 1, shortlist=0),
        ValueError,
        "mls: shortlist is 0, expected 1 .. 2147483647",
    ),
    (
        lambda: pe.FaissReranker(INDEX, ISO).search(TENSORS, 1),
        TypeError,
        "mls: queries must be numpy arrays like gallery, got torch tensors on cpu",
    ),
    (
        lambda: pe.FaissReranker.build(ISO, "Nonsense"),
        ValueError,
        "FaissReranker.build: factory 'Nonsense' is not a FAISS factory string",
    ),
    (
        lambda: pe.FaissReranker.build(ISO, "Flat", first_stage="l2"),
        ValueError,
        "FaissReranker.build: first_stage 'l2', expected 'cosine'",
    ),
    (lambda: pe.FaissReranker.build(X, "Flat"), TypeError, "mls: gallery must be a distribution, got ndarray"),
    # first-stage features
    (lambda: pe.first_stage_features(X), TypeError, "mls: d must be a distribution, got ndarray"),
    (
        lambda: pe.first_stage_features(ISO, side="queries"),
        ValueError,
        "first_stage_features: side 'queries', expected 'gallery' or 'query'",
    ),
    (
        lambda: pe.first_stage_features(ISO, side="query"),
        ValueError,
        "first_stage_features: reference must be given for queries",
    ),
    (
        lambda: pe.first_stage_features(ISO, "neg_sq_l2", reference=pe.first_stage_reference(ISO)),
        ValueError,
        "first_stage_features: reference is for score mls, got neg_sq_l2",
    ),
    (
        lambda: pe.first_stage_features(DIAG, reference=pe.first_stage_reference(ISO)),
        ValueError,
        "first_stage_features: reference is for normal_isotropic, got normal_diagonal",
    ),
    (
        lambda: pe.first_stage_features(make("point", 2, 3), "mls", "query", pe.first_stage_reference(ISO)),
        ValueError,
        "first_stage_features: dim of d is 3, expected 4 like the reference",
    ),
    (
        lambda: pe.first_stage_features(VMF, "mls", "query", pe.first_stage_reference(ISO)),
        TypeError,
        "mls: cannot score vmf x normal_isotropic (query x gallery), only ",
    ),
    (
        lambda: pe.first_stage_features(pe.Normal(X, np.full(5, np.nan, np.float32)), reference=REFERENCE),
        ValueError,
        "first_stage_features: row 0 has no finite features",
    ),
    (lambda: pe.first_stage_reference(make("point")), TypeError, "mls: cannot score point x point (query x gallery)"),
    (lambda: pe.first_stage_reference(ISO[:0]), ValueError, "first_stage_reference: queries has no items, expected at"),
    (lambda: pe.first_stage_reference(ISO, "llr"), ValueError, "llr: prior_var must be given"),
    (
        lambda: pe.first_stage_reference(ISO, queries=make("point", 2, 3)),
        ValueError,
        "first_stage_reference: dim of queries is 3, expected 4 like gallery",
    ),
    (
        lambda: pe.first_stage_reference(pe.Normal(X, -ISO.var)),
        ValueError,
        "first_stage_reference: mu must be finite, var or kappa finite and not negative",
    ),
    (
        lambda: pe.FaissReranker.build(make("nivmf"), "Flat", first_stage="surrogate"),
        TypeError,
        "mls: cannot score nivmf x nivmf (query x gallery), only ",
    ),
    # measures, threads
    (
        lambda: pe.triplet_probability(ISO, ISO, X),
        TypeError,
        "triplet_probability: n must be a distribution, got ndarray",
    ),
    (
        lambda: pe.triplet_probability(ISO, VMF, ISO),
        TypeError,
        "triplet_probability: no closed form for normal_isotropic x vmf (a x p), only ",
    ),
    (
        lambda: pe.triplet_probability(ISO, ISO, ISO[:3]),
        ValueError,
        "triplet_probability: n has 3 items, expected 5 like a",
    ),
    (
        lambda: pe.triplet_probability(ISO, ISO, ISO, margin="0"),
        TypeError,
        "triplet_probability: margin must be a number, got str",
    ),
    (
        lambda: pe.triplet_probability(ISO, ISO, ISO, match_moments=True),
        ValueError,
        "triplet_probability: match_moments is of VonMisesFisher only, got normal_isotropic",
    ),
    (lambda: pe.fit_shift(X, IDS, [0] * 5), TypeError, "fit_shift: d must be a distribution, got ndarray"),
    (
        lambda: pe.fit_shift(ISO, IDS, [0] * 5),
        ValueError,
        "fit_shift: labels name no pair of one identity, expected at least one",
    ),
    (lambda: pe.fit_prior(VMF, np.arange(5)), TypeError, "fit_prior: d must be a Normal or a Point, got vmf"),
    (lambda: pe.fit_prior(ISO, np.arange(4)), ValueError, "fit_prior: labels have shape (4,), expected (5,)"),
    (lambda: pe.fit_prior(ISO, np.zeros(5)), ValueError, "fit_prior: labels name 1 classes of 5 items"),
    (lambda: pe.fit_prior(ISO, np.arange(5)), ValueError, "fit_prior: labels name 5 classes of 5 items"),
    (lambda: pe.set_num_threads(0), ValueError, "set_num_threads: n is 0, expected 1 .. 4096"),
    (lambda: pe.set_num_threads(2.0), TypeError, "set_num_threads: n must be an integer, got float"),
    (lambda: pe.set_num_threads(True), TypeError, "set_num_threads: n must be an integer, got bool"),
]


@pytest.mark.parametrize(("call", "error", "begins"), BAD, ids=[re.sub(r"\W+", "-", b[2])[:60] for b in BAD])
def test_bad_input_gets_one_line_that_names_what_was_expected_and_what_came(call, error, begins):
    with pytest.raises(error) as caught:
        call()
    message = str(caught.value)
    assert message.startswith(begins), message
    assert "\n" not in message and type(caught.value) is error


GPU_CALLS = """
import torch
import peaccel as pe
from peaccel.ops import Inputs, _cuda, _dispatch

_dispatch._on_gpu = lambda x: isinstance(x, torch.Tensor)  # treats torch CPU tensors as CUDA ones
_cuda.place = lambda x: (0, 0)
d, ids = pe.Normal(torch.ones(3, 2), torch.ones(3)), torch.zeros(3, 1, dtype=torch.int64)
inputs = Inputs(d.mu, d.var, d.mu, d.var, torch.empty(0))
for call in (
    lambda: pe.search(d, d, 2),
    lambda: pe.rerank(d, d, ids, 2),
    lambda: _cuda.score(pe.ops.dot_scores.mls_isotropic, inputs, None, True),
):
    try:
        call()
    except pe.CudaError as error:
        print(error)
"""


def test_a_gpu_that_cannot_be_used_is_an_error_with_the_reason():
    """In a process of its own, as one that has loaded a driver keeps it."""
    environment = {**os.environ, "PEACCEL_LIBCUDA": "libnone.so"}
    command = [sys.executable, "-c", GPU_CALLS + "print(pe.build_info()['cuda'])"]
    found = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.splitlines()
    assert len(found) == 4 and {*found[:3]} == {found[3].removeprefix("no: ")}


def test_checks_come_before_any_work():
    # A search of this gallery, or a copy of the gallery, would take minutes.
    big = pe.VonMisesFisher(np.broadcast_to(np.float32(0.5), (10**9, 4)), np.broadcast_to(np.float32(1), 10**9))
    with pytest.raises(TypeError, match="cannot score"):
        pe.search(ISO, big, 1)
    with pytest.raises(ValueError, match="k is 0"):
        pe.search(VMF, big, 0)
