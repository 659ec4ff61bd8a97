"""Numbers of one item alone, such as Bessel functions of its concentration, in CUDA kernels on the host.

They are computed once for a call where items are in several pairs, else for each pair; both ways must give the same
bits. How the kernels run without a GPU is said in test_on_host_cuda.py.
"""

import itertools
import re

import numpy as np
import pytest
import torch
from conftest import make
from test_on_host_draws import planned

from peaccel import _core
from peaccel.ops import OPS, Inputs, PairOp, _cuda
from peaccel.ops._definitions import listed
from peaccel.published.non_isotropic import el_nivmf_paper, el_nivmf_published, nivmf_paper, nivmf_published

CASES = [(name, "vmf", "vmf") for name in ("mls", "llr", "ppk", "inclusion", "neg_kl")]
CASES += [(score, "point", "nivmf") for score in ("nivmf", nivmf_paper, nivmf_published)]
CASES += [(score, "vmf", "nivmf") for score in ("el_nivmf", el_nivmf_paper, el_nivmf_published)]
each_case = pytest.mark.parametrize(("score", "q_kind", "g_kind"), CASES, ids=str)


def hard(d, n):
    """Concentrations that are not of a distribution, have no density or leave the range."""
    edges = torch.tensor([0.0, -1.0, torch.nan, torch.inf, 1e-30, 1e30, 3e4])[:n]
    d.arrays[1][: len(edges)] = (edges if d.arrays[1].ndim == 1 else edges[:, None]).to(d.arrays[1].dtype)


def everything(op, inputs, halves):
    """Scores by each verb, and gradients, where items are in more than one pair."""
    q, g = len(inputs.mu1), len(inputs.mu2)
    rng = np.random.default_rng(0)
    candidates = torch.from_numpy(rng.integers(-1, g, (q, 3 * g)))
    two = inputs._replace(mu1=inputs.mu1[:2], uncertainty1=inputs.uncertainty1[:2])  # fewer queries than take a tile
    found = []
    if not op.sampled:  # whose pairs a library multiplies, where there is that memory
        found += [_cuda.score(op, inputs, None, True), _cuda.score(op, two, None, True)]
    found.append(_cuda.score(op, inputs, candidates, False))
    found += _cuda.rerank(op, inputs, candidates, 4)
    for prune in ("never", "always"):
        found += _cuda.search(op, inputs, 4, prune)[:2]
    if halves:
        return found
    for given, shape in ((None, (q, g)), (candidates, candidates.shape))[op.sampled :]:
        weights = torch.from_numpy(rng.standard_normal(shape)).to(inputs.mu1.dtype)
        found += _cuda.score_backward(op, weights, inputs, given, given is None)
    return found


@pytest.mark.one_in(3)
@each_case
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
@pytest.mark.usefixtures("unlooked")
def test_made_once_it_gives_the_bits_of_made_for_each_pair(device, monkeypatch, score, q_kind, g_kind, dtype):
    halves = dtype in ("float16", "bfloat16")
    for dim, edges in ((5, False), (33, True)):
        compute = "float32" if halves else dtype
        q = make(q_kind, 6, dim, 1, dtype=compute, library="torch")
        # More items than a block of threads, or of warps; and than a tile of a sieve.
        g = make(g_kind, 150 if g_kind == "vmf" else 9, dim, 2, dtype=dtype, library="torch")
        for d in (q, g) if edges else ():
            if len(d.arrays) > 1:
                hard(d, len(d))
        op, inputs = planned(score, q, g, n=3)
        with monkeypatch.context() as patch:
            patch.setattr(_cuda, "_per_item", lambda *args: [None, None])
            want = everything(op, inputs, halves)
        found = everything(op, inputs, halves)
        for one, other in zip(found, want, strict=True):
            np.testing.assert_array_equal(one, other)


@each_case
def test_every_verb_computes_and_reads_the_numbers_of_items(device, monkeypatch, score, q_kind, g_kind):
    """Where queries and gallery each have memory, one memory for both gives other scores and gradients."""
    n, dim = 8, 12
    q = make(q_kind, n, dim, 1, library="torch")
    g = make(g_kind, n, dim, 2, library="torch")
    op, inputs = planned(score, q, g, n=3)
    candidates = torch.arange(n).expand(n, n).contiguous()
    weights = torch.ones(n, n, dtype=torch.float64)
    calls = {
        "pairwise": lambda: _cuda.score(op, inputs, None, True),
        "rescore": lambda: _cuda.score(op, inputs, candidates, False),
        "rerank": lambda: _cuda.rerank(op, inputs, candidates, n)[0],
        "search": lambda: _cuda.search(op, inputs, n)[0],
        "by queries": lambda: _cuda.score_backward(op, weights, inputs, None, True, _core.QUERY).uncertainty1,
        "by gallery": lambda: _cuda.score_backward(op, weights, inputs, None, True, _core.GALLERY).uncertainty2,
    }
    original, given, shared = _cuda._per_item, [], False

    def emptied(*args):
        given[:] = original(*args)
        for memory in given:
            if memory is not None:
                memory.fill_(torch.nan)
        return [given[1], given[1]] if shared else given

    monkeypatch.setattr(_cuda, "_per_item", emptied)
    for verb, call in calls.items():
        shared = False
        want = call()
        made = [memory for memory in given if memory is not None]
        assert len(made) == 1 + (op.name.endswith("vmf") and not op.sampled), verb
        assert all(memory.isfinite().all() for memory in made), verb
        # The gallery's numbers are computed last: with memory that both sides share, its gradients may be right.
        if len(made) == 2 and verb != "by gallery":
            shared = True
            assert not torch.equal(call(), want), verb


def test_where_it_pays():
    """Numbers are computed for a side whose items are in two pairs on average, and that has such numbers."""
    mu = torch.ones(4, 3), torch.ones(9, 3)
    for op in (op for op in OPS if isinstance(op, PairOp)):
        sides = "vmf" in op.name and not op.sampled, ("vmf" in op.name and not op.sampled) or "nivmf" in op.name
        for pairs, pays in ((4, (0, 0)), (7, (0, 0)), (8, (1, 0)), (17, (1, 0)), (18, (1, 1))):
            given = _cuda._per_item(op, Inputs(mu[0], mu[0], mu[1], mu[1], mu[0]), pairs)
            assert [x is not None for x in given] == [a and bool(b) for a, b in zip(sides, pays, strict=True)]
            assert all(x.shape == (n, 3) for x, n in zip(given, (4, 9), strict=True) if x is not None)
    assert _cuda._per_item(op, Inputs(*[mu[0][:0]] * 5), 0) == [None, None]


def test_memory_of_another_size_is_refused(device):
    d = make("vmf", 3, 8, library="torch")
    op, inputs = planned("mls", d, d)
    arrays = [_cuda.memory(x) for x in listed(inputs)]
    out = _cuda.memory(torch.ones(3, 3, dtype=torch.float64))
    for side, shape in itertools.product((0, 1), ((3, 2), (4, 3))):
        per_item = [None, None]
        per_item[side] = _cuda.memory(torch.ones(shape, dtype=torch.float64))
        refusal = f"numbers per item have shape {list(shape)}, expected [3, 3]"
        with pytest.raises(ValueError, match=f"^{re.escape(refusal)}$"):
            _core.cuda_score(op.name, (0, 0), arrays, None, per_item, None, out)
