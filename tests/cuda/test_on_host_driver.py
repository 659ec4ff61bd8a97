"""Proofs of CUDA without a GPU: kernels run whole on the host, through the core's own launches.

The driver is a library of ours (fake_cuda.cpp) that runs what the host's compiler made of cuda/families/, all threads
of a block as fibers, and knows only kernels that the embedded machine code holds too, with the shared memory that they
declare there. Not proved here: that code itself. This file is about launches, the others about what is computed.
"""

import itertools
import lzma
import os
import pathlib
import re
import subprocess
import sys
from contextlib import suppress
from types import SimpleNamespace

import pytest
import torch
from conftest import make

import peaccel as pe
from peaccel import _core
from peaccel.ops import OPS, Draws, Inputs, Op, SampleOp, _cuda
from peaccel.retrieval.plan import plan

FATBIN = (0xBA55ED50).to_bytes(4, "little")  # how a fatbin begins
(LOG_IVE,) = (op for op in OPS if op.name == "log_ive")


def printed(code, **environment):
    environment |= {
        name: os.environ[name] for name in ("LD_PRELOAD", "ASAN_OPTIONS", "PYTHONPATH") if name in os.environ
    }
    run = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert (run.returncode, run.stderr) == (0, "")
    return run.stdout.strip()


def info(**environment):
    return printed("import peaccel; print(peaccel.build_info()['cuda'])", **environment)


def run_elements(**environment):
    """Output of an element that is computed in a process of its own, since a process keeps the driver it has loaded."""
    code = """
import torch
from peaccel import CudaError
from peaccel.ops import OPS, _cuda

_cuda.place, x = lambda x: (0, 0), torch.ones(3, dtype=torch.float64)
try:
    print(_cuda.elementwise(next(op for op in OPS if op.name == "log_ive"), x[:1], x).tolist())
except CudaError as error:
    print(error)
"""
    return printed(code, **environment)


def test_a_driver_that_cannot_be_used_is_a_reason(libraries, tmp_path):
    path = {"PEACCEL_LIBCUDA": libraries["PEACCEL_LIBCUDA"]}
    assert info(**libraries) == f"{_core.cuda_info()[0]}; driver of CUDA 13.0"
    assert info(PEACCEL_LIBCUDA="libnone.so") == "no: there is no NVIDIA driver here (libnone.so cannot be loaded)"
    assert info(**path, FAKE_CUDA_STATUS="34") == "no: cuInit: CUDA_ERROR_STUB_LIBRARY"
    assert info(**path, FAKE_CUDA_STATUS="100") == "no: cuInit: CUDA_ERROR_NO_DEVICE"
    assert info(**path, FAKE_CUDA_STATUS="9999") == "no: cuInit: error 9999"
    old = "no: the NVIDIA driver supports CUDA 12.8, expected 13.0 (driver 580) or later"
    assert info(**path, FAKE_CUDA_VERSION="12080") == old
    empty = tmp_path / "libempty.so"
    subprocess.run(["g++", "-shared", "-x", "c++", "/dev/null", "-o", empty], check=True)
    assert info(PEACCEL_LIBCUDA=str(empty)) == "no: the driver library lacks cuInit: it is too old"


def test_what_cannot_be_launched_is_an_error(device, libraries, monkeypatch):
    x = torch.ones(3, dtype=torch.float64)
    with pytest.raises(ValueError, match=r'^no kernel is called "no_such_op"$'):
        _cuda.elementwise(SimpleNamespace(name="no_such_op", has_order=True), x[:1], x)
    with pytest.raises(ValueError, match=r'^no kernel is called "no_such_op"$'):
        _cuda.sample(SimpleNamespace(name="no_such_op", uncertainty="var"), x[:, None], x, torch.tensor(7), 1, 0, 0)
    assert run_elements(**{**libraries, "FAKE_CUDA_KERNELS": ""}) == "there is no CUDA kernel log_ive_f64"
    monkeypatch.setattr(_cuda, "place", lambda x: (7, 0))
    with pytest.raises(pe.CudaError, match=r"^cuDeviceGet: CUDA_ERROR_INVALID_DEVICE$"):
        _cuda.elementwise(LOG_IVE, x[:1], x)


@pytest.mark.parametrize(
    ("kind", "dtype", "dim", "k"),
    [
        ("normal_isotropic", "float32", 512, 10),
        ("normal_diagonal", "float32", 128, 50),
        ("normal_diagonal", "float64", 200, 0),
    ],
)
def test_launches_of_exactly_48_kb_beside_what_kernels_declare(device, kind, dtype, dim, k):
    """More than a launch may have without asking, though its own part alone is not."""
    q, g = (make(kind, n, dim, n, dtype=dtype, library="torch") for n in (4, 70))
    planned = plan(q, g, "mls", detach=True)
    op, inputs = planned.pair.op, planned.inputs
    every = torch.arange(len(g)).expand(len(q), len(g))
    listed = _cuda.score(op, inputs, every, False)
    if k == 0:
        assert torch.equal(_cuda.score(op, inputs, None, True), listed)
    else:
        want, found = _cuda.select(listed, every, k), _cuda.search(op, inputs, k)[:2]
        assert torch.equal(found[0], want[0])
        assert torch.equal(found[1], want[1])


def test_a_launch_with_more_shared_memory_than_there_is(device, monkeypatch):
    scores, ids = torch.zeros(1, 1024, dtype=torch.float64), torch.arange(1024)[None]
    assert torch.equal(_cuda.select(scores, ids, 1024)[1], ids)
    monkeypatch.setattr(_cuda, "place", lambda x: (1, 0))  # device 1 has less shared memory
    wants = r"^topk_f64: wants 16384 bytes of shared memory beside its own, device 1 has 16352$"
    with pytest.raises(pe.CudaError, match=wants):
        _cuda.select(scores, ids, 1024)
    assert torch.equal(_cuda.select(scores[:, :99], ids[:, :99], 99)[1], ids[:, :99])


def refused(call, **given):
    """The call with its arguments, each but the first on another device in turn: meta, as a CPU beside a GPU."""
    like, *others = given
    for name in others:
        moved = {**given, name: given[name].to("meta")}
        expected = rf"^\w+: {name} is a torch tensor on meta, expected a torch tensor on cpu like {like}$"
        with pytest.raises(ValueError, match=expected):
            call(*moved.values())


def test_elements_and_draws_take_no_address_of_another_device(device):
    op, d, seed = pe.ops.samplers.sample_normal, make("normal_isotropic", 3, 8, library="torch"), torch.tensor(7)
    refused(lambda x, order: _cuda.elementwise(LOG_IVE, order, x), x=d.var, order=d.var)
    refused(lambda *x: _cuda.sample(op, *x, 2, 0, 0), mu=d.mu, var=d.var, seed=seed)
    weights = _cuda.sample(op, d.mu, d.var, seed, 2, 0, 0)
    given = {"mu": d.mu, "var": d.var, "seed": seed, "weights": weights}
    refused(lambda *x: _cuda.sample_backward(op, x[3], *x[:3], 0, 0), **given)


@pytest.mark.parametrize("name", ["mls", "sampled_cosine"])
def test_scores_take_no_address_of_another_device(device, name):
    score = pe.scores.mls if name == "mls" else pe.scores.sampled_cosine(seed=torch.tensor(7))
    d = make("normal_diagonal", 3, 8, library="torch")
    planned = plan(d, d, score, detach=True)
    op, draws = planned.pair.op, planned.inputs.draws
    given = dict(zip(("mu1", "var1", "mu2", "var2", "none"), planned.inputs.arrays, strict=True))
    if draws is not None:
        given["seed"] = draws.seed

    def inputs(mu1, uncertainty1, mu2, uncertainty2, shared, seed=None):
        return Inputs(mu1, uncertainty1, mu2, uncertainty2, shared, draws and Draws(seed, draws.n))

    ids, weights = torch.zeros(3, 2, dtype=torch.int64), torch.ones(3, 2, dtype=torch.float64)
    refused(lambda *x: _cuda.score(op, inputs(*x), None, True), **given)
    refused(lambda *x: _cuda.search(op, inputs(*x), 1), **given)
    given["candidates"] = ids
    refused(lambda *x: _cuda.score(op, inputs(*x[:-1]), x[-1], False), **given)
    refused(lambda *x: _cuda.rerank(op, inputs(*x[:-1]), x[-1], 1), **given)
    given["weights"] = weights
    refused(lambda *x: _cuda.score_backward(op, x[-1], inputs(*x[:-2]), x[-2], False), **given)


def test_a_row_that_is_one_element_is_no_mean_and_has_no_gradient(device):
    """The core takes D from the rows of means, and would leave most of such a gradient as it was."""
    mu, flat, seed, z = torch.ones(3, 8), torch.ones(3, 1).expand(3, 8), torch.tensor(7), torch.ones(2, 3, 8)
    own, other, seed, z = (_cuda.memory(x) for x in (mu, flat, seed, z))
    shared = _cuda.memory(torch.ones(1, 0))
    for call in (
        lambda: _core.cuda_sample("sample_normal", (0, 0), other, own, seed, 0, 0, z),
        lambda: _core.cuda_sample_backward("sample_normal", (0, 0), own, other, seed, z, own, own, 0, 0),
        lambda: _core.cuda_cut("mls_diagonal", (0, 0), [other, own, other, own, shared], 1, "auto"),
    ):
        with pytest.raises(ValueError, match=r"^expected rows of 8 elements, got one for all of a row$"):
            call()


def kernels_of(op):
    """The names of an op's kernels."""
    full, halves = ("f32", "f64"), ("f32_f16", "f32_bf16")
    if isinstance(op, Op):
        return [f"{op.name}_{types}" for types in full]
    if isinstance(op, SampleOp):
        return [f"{op.name}{way}_{types}" for way in ("", "_backward") for types in full]
    drivers = ("pairs",) if op.sampled else ("pairs", "rerank", "search")
    drivers += ("per_item",) * any(op.per_item)
    drivers += ("scores", "weights") * (op.compares not in (None, "directions"))
    forward = itertools.product(drivers, full if op.sampled else full + halves)
    return [f"{op.name}_{driver}_{types}" for driver, types in (*forward, *itertools.product(("backward",), full))]


def images():
    """The fatbins that the core holds: LZMA streams, which begin with settings and the size of what they unpack to."""
    embedded = pathlib.Path(_core.__file__).read_bytes()
    for header in re.finditer(rb"\xd8\0\0[^\0]\0.{4}\0{4}", embedded, re.DOTALL):
        with suppress(lzma.LZMAError):
            image = lzma.LZMADecompressor(lzma.FORMAT_ALONE).decompress(embedded[header.start() :])
            if image.startswith(FATBIN):
                yield image


def test_every_op_has_its_kernels():
    if not _core.cuda_info()[0]:
        pytest.skip(f"{_core.cuda_info()[2]}")
    code = b"".join(images())
    wanted = [name for op in OPS for name in kernels_of(op)]
    assert len(set(wanted)) == len(wanted) > 250
    assert [name for name in wanted if f".text.{name}".encode() + bytes(1) not in code] == []


@pytest.mark.parametrize(("k", "queries"), [(1024, 16), (1024, 256), (100, 2048), (1, 4096)])
def test_lists_of_a_search_and_the_best_of_its_shards_take_128_mb(libraries, k, queries):
    """On a device with the processors of an H100."""
    shapes = (queries, 64), (queries, 64), (10_000_000, 64), (10_000_000, 64), (1, 0)
    arrays = [(0, shape, (shape[1], 1), "float32") for shape in shapes]
    code = f"from peaccel import _core; print(*_core.cuda_cut('mls_diagonal', (0, 0), {arrays}, {k}, 'auto')[:2])"
    shards, items = map(int, printed(code, **libraries, FAKE_CUDA_MULTIPROCESSORS="132").split())
    assert shards * queries <= 4 * 132 * 16 and (items + shards * queries * k) * 12 <= 2**27
