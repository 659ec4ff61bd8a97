"""Try an installed peaccel by what an extra promises: check_wheel.py EXTRA [--without-cuda]."""

import os
import re
import subprocess
import sys
import sysconfig
from importlib.util import find_spec
from pathlib import Path

import numpy as np

import peaccel as pe
from peaccel import _core

README = Path(__file__).resolve().parent.parent / "README.md"


def check_core() -> None:
    """Where there is numpy alone: kernels for GPUs are inside, and searches need none of them."""
    assert find_spec("torch") is None, "torch is installed here, expected numpy alone"
    rng = np.random.default_rng(0)
    gallery = pe.Normal(rng.standard_normal((100, 8)), rng.uniform(0.5, 1, 100))
    found = pe.search(gallery, gallery, 3, "cosine")
    assert (found.ids[:, 0] == np.arange(100)).all(), "an item is not its own best answer by cosine"
    np.testing.assert_allclose(found.scores, pe.rerank(gallery, gallery, found.ids, 3, "cosine").scores)
    targets, _, why = _core.cuda_info()
    assert bool(targets) != ("--without-cuda" in sys.argv), f"CUDA kernels for {targets or 'nothing'}: {why}"
    print(f"CUDA kernels for {targets or 'nothing'}")


def check_torch() -> None:
    """Gradients of a score and of draws."""
    import torch

    mu = torch.zeros(2, 3, requires_grad=True)
    d = pe.Normal(mu, torch.ones(2, 1, requires_grad=True))
    (pe.pairwise(d, d, "mls").sum() + pe.sample(d, 2, seed=1).square().sum()).backward()
    assert mu.grad is not None and mu.grad.isfinite().all()


def check_cuda() -> None:
    """The wheel's images on a GPU that is the host, whose driver PEACCEL_LIBCUDA names; and without a driver."""
    import torch

    from peaccel.ops import _cuda
    from peaccel.retrieval.plan import plan

    driver = pe.build_info()["cuda"]
    assert driver.endswith("driver of CUDA 13.0"), driver
    rng = np.random.default_rng(0)
    q, g = (pe.Normal(*map(torch.tensor, (rng.normal(size=(n, 8)), rng.uniform(0.5, 1, (n, 8))))) for n in (5, 40))
    inner = plan(pe.Point(q.mu), pe.Point(g.mu), "cosine", detach=True)
    drawn = plan(q, g, pe.scores.sampled_cosine(n=3, seed=torch.tensor(7)), detach=True)
    likelihood = plan(q, g, "mls", detach=True)
    place, _cuda.place = _cuda.place, lambda x: (0, 0)
    try:
        for planned in (likelihood, inner, drawn):
            wanted = pe.ops.score(planned.pair.op, planned.inputs, pairwise=True)
            torch.testing.assert_close(_cuda.score(planned.pair.op, planned.inputs, None, True), wanted)
        best = pe.search(q, g, 3)
        scores, ids, *_ = _cuda.search(likelihood.pair.op, likelihood.inputs, 3)
        torch.testing.assert_close((scores, ids), tuple(best))
        draws = pe.ops.samplers.sample_normal, q.mu, q.var, torch.tensor(7), 2, 0, 0
        torch.testing.assert_close(_cuda.sample(*draws), pe.ops.sample(*draws))
        os.environ["PEACCEL_LIBCUDA"] = "libnone.so"
        try:
            _cuda.score(likelihood.pair.op, likelihood.inputs, None, True)
        except pe.CudaError as error:
            assert str(error) == "there is no NVIDIA driver here (libnone.so cannot be loaded)", error
        else:
            raise AssertionError("a GPU without a driver raised no error")
    finally:
        _cuda.place = place


def check_cli() -> None:
    """The command names itself and its build."""
    run("peaccel", "info")


def check_gallery() -> None:
    """A gallery finds its items; without pandas, which older pyarrow asks for the dtype of a table without rows."""
    items = pe.Normal(np.eye(8, dtype=np.float32), np.ones(8, np.float32))
    assert pe.Gallery.create("items.lance", items, np.arange(8)).search(items, 1).ids.ravel().tolist() == [*range(8)]
    assert pe.FaissReranker.build(items, "Flat").search(items, 1).ids.ravel().tolist() == [*range(8)]


def check_train() -> None:
    """A training and what it wrote."""
    run("peaccel", "train", "cosface", "--quick")


def check_readme() -> None:
    """All blocks of README, one after the other, and a training."""
    names: dict[str, object] = {}
    for block in re.findall(r"^```python\n(.*?)^```$", README.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL):
        exec(block, names)
    check_train()


def run(command: str, *arguments: str) -> None:
    """Run a command of this environment."""
    subprocess.run([str(Path(sysconfig.get_path("scripts"), command)), *arguments], check=True)


CHECKS = {
    "core": check_core,
    "torch": check_torch,
    "cuda": check_cuda,
    "cli": check_cli,
    "gallery": check_gallery,
    "train": check_train,
    "all": check_readme,
}

assert "site-packages" in pe.__file__, f"peaccel comes from {pe.__file__}, expected an installed one"
CHECKS[sys.argv[1]]()
print(f"peaccel {pe.__version__} with numpy {np.__version__} of Python {sys.version.split()[0]}")
