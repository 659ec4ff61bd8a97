"""What of CUDA can be proved without a GPU: kernels run whole on the host, through the core's own launches.

The driver is a library of ours (fake_cuda.cpp) that runs what the host's compiler made of cuda/*.cu, all threads of a
block as fibers, and knows only kernels that the embedded machine code holds too. Not proved here: that code itself.
"""

import csv
import pathlib
import subprocess
import sys
from types import SimpleNamespace

import host_cuda
import numpy as np
import pytest
import torch

import peaccel as pe
from peaccel import _core
from peaccel.ops import OPS, _cuda, bessel
from peaccel.ops._op import Op

ROOT = pathlib.Path(__file__).parent.parent
GOLDEN = ROOT / "tests" / "golden" / "bessel.csv"

if not _core.cuda_info()[0]:
    pytest.skip(f"{_core.cuda_info()[2]}", allow_module_level=True)


@pytest.fixture(scope="module")
def libraries(tmp_path_factory):
    return host_cuda.compiled(tmp_path_factory.mktemp("cuda"))


@pytest.fixture
def device(libraries, monkeypatch):
    """Torch CPU tensors are the device's memory."""
    for name, value in libraries.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(_cuda, "place", lambda x: (0, 0))


# -- the driver --------------------------------------------------------------------------------------------------------


def info(**environment):
    code = "import peaccel; print(peaccel.build_info()['cuda'])"
    run = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert (run.returncode, run.stderr) == (0, "")
    return run.stdout.strip()


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


def test_what_cannot_be_launched_is_an_error(device, monkeypatch):
    x = torch.ones(3, dtype=torch.float64)
    with pytest.raises(pe.CudaError, match=r"^there is no CUDA kernel no_such_op_f64$"):
        _cuda.elementwise(SimpleNamespace(name="no_such_op"), x[:1], x)
    monkeypatch.setattr(_cuda, "place", lambda x: (7, 0))
    with pytest.raises(pe.CudaError, match=r"^cuDeviceGet: CUDA_ERROR_INVALID_DEVICE$"):
        _cuda.elementwise(bessel.log_ive, x[:1], x)


# -- elements ----------------------------------------------------------------------------------------------------------


def golden():
    with GOLDEN.open() as file:
        rows = list(csv.DictReader(file))
    return {name: np.array([float(row[name] or "nan") for row in rows]) for name in rows[0]}


FLOORS = {
    "log_ive": ("tol", lambda v, x: 1),
    "vmf_log_norm": ("tol_rest", lambda v, x: np.maximum(v, 1)),
    "iv_ratio": ("tol_ratio", lambda v, x: 0),
    "log_ive_dx": ("tol_rest", lambda v, x: np.minimum(1 / x, 1)),
    "log_ive_dxx": ("tol_bend", lambda v, x: np.minimum(1 / x**2, 1)),
    "iv_ratio_dx": ("tol_bend", lambda v, x: 0),
    "iv_ratio_dxx": ("tol_bend", lambda v, x: 0),
}


@pytest.mark.parametrize("name", FLOORS)
@pytest.mark.filterwarnings("ignore:(divide by zero|overflow):RuntimeWarning")
def test_golden_values(device, name):
    """Orders that differ by element; then one order at a time."""
    table, (tolerance, floor) = golden(), FLOORS[name]
    v, x, want = table["v"], table["x"], table[name]
    order = 2 * v + 2 if name == "vmf_log_norm" else v
    op = next(op for op in OPS if op.name == name)
    lone = _cuda.elementwise(op, torch.from_numpy(order), torch.from_numpy(x)).numpy()
    one = np.concatenate(
        [
            _cuda.elementwise(
                op, torch.tensor([value], dtype=torch.float64), torch.from_numpy(x[order == value])
            ).numpy()
            for value in dict.fromkeys(order.tolist())
        ]
    )
    rows = np.concatenate([np.flatnonzero(order == value) for value in dict.fromkeys(order.tolist())])
    known = ~np.isnan(want)
    for got in (lone, one[np.argsort(rows)]):
        error = np.abs(got - want) / np.maximum(np.abs(want), floor(v, x))
        assert (error[known] <= table[tolerance][known]).all()


@pytest.mark.parametrize("op", [op for op in OPS if isinstance(op, Op)], ids=lambda op: op.name)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("n", [0, 1, 3, 1023, 70_001])
def test_elements_are_those_of_the_cpu(device, op, dtype, n):
    """One order of many elements goes by a table in float32; edges are in every size."""
    rng = np.random.default_rng(n)
    x = torch.from_numpy(10 ** rng.uniform(-6, 9, n)).to(dtype)
    edges = torch.tensor([0.0, -0.0, torch.inf, torch.nan, -1.0, 0.25, 2.0**24, 1e-40], dtype=dtype)
    x[: min(n, len(edges))] = edges[:n]
    for order in (torch.tensor([64.0], dtype=torch.float64), torch.from_numpy(rng.uniform(2, 600, n))):
        found, want = _cuda.elementwise(op, order, x), torch.from_numpy(op.numpy(order.numpy(), x.numpy()))
        eps = 4e-7 if dtype == torch.float32 else 2e-14
        # vmf_log_norm: relative to the order as well.
        scale = want.abs().nan_to_num(0, 0, 0).clamp(min=0 if "_dx" in op.name else 1)
        scale = scale.maximum(order.to(dtype)) if op.name == "vmf_log_norm" else scale
        same = (found == want) | (found.isnan() & want.isnan())
        assert (same | ((found - want).abs() <= eps * scale)).all()


def test_elements_broadcast(device):
    order, x = torch.arange(2.0, 5.0, dtype=torch.float64)[:, None], torch.linspace(0.5, 9, 7)
    found = _cuda.elementwise(bessel.iv_ratio, order, x)
    torch.testing.assert_close(found, bessel.iv_ratio(order, x), rtol=2e-7, atol=0)
