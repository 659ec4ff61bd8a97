"""Memory beyond the gallery: 64 MB and 8 bytes an item, whatever the search; one packed copy where it is prepared."""

import json
import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest

import peaccel as pe

G, D, Q, K = 1_000_000, 32, 256, 10
LIMIT = 64e6 + 8 * G
SHOWN = 4e6  # what the system's own count of pages is off by, and what an allocator keeps
STATUS, RESET = pathlib.Path("/proc/self/status"), pathlib.Path("/proc/self/clear_refs")


def resident(name):
    """VmRSS, or VmHWM, its maximum since the last reset, in bytes."""
    return 1024 * int(STATUS.read_text().split(name + ":")[1].split()[0])


def growth(call):
    """Bytes that a call takes at its peak, those that it leaves behind, and its result."""
    RESET.write_text("5")
    before = resident("VmRSS")
    result = call()
    return resident("VmHWM") - before, resident("VmRSS") - before, result


def items(family, n, seed):
    rng = np.random.default_rng(seed)
    mu = rng.standard_normal((n, D), dtype=np.float32)
    mu /= np.sqrt(np.einsum("nd,nd->n", mu, mu))[:, None]
    uncertainty = np.exp(rng.standard_normal((n, D) if family == "diagonal" else n, dtype=np.float32))
    return (pe.VonMisesFisher if family == "vmf" else pe.Normal)(mu, uncertainty)


def measured(family):
    """Bytes that each verb takes, in a process that did little else."""
    q, g = items(family, Q, 1), items(family, G, 2)
    ids = np.random.default_rng(3).integers(0, G, (Q, 100))
    own = sum(x.nbytes for x in g.arrays)
    packing, kept, prepared = growth(lambda: pe.prepare(g))
    return {
        "an array of 100 MB": growth(lambda: np.ones(100_000_000, np.uint8))[0],
        "packed": own,
        "prepare": packing,
        "kept": kept,
        "reported": prepared.nbytes - own,
        "search raw": growth(lambda: pe.search(q, g, K))[0],
        "search raw, Q=1": growth(lambda: pe.search(q[:1], g, K))[0],
        "rerank raw": growth(lambda: pe.rerank(q, g, ids, K))[0],
        "search prepared": growth(lambda: pe.search(q, prepared, K))[0],
        "search prepared, Q=1": growth(lambda: pe.search(q[:1], prepared, K))[0],
        "rerank prepared": growth(lambda: pe.rerank(q, prepared, ids, K))[0],
    }


@pytest.mark.skipif(not RESET.exists(), reason="peaks of memory are read from /proc, which only Linux has")
@pytest.mark.parametrize("family", ["isotropic", "diagonal", "vmf"])
def test_no_verb_takes_more_than_64_mb_and_8_bytes_an_item(family):
    paths = os.pathsep.join((str(pathlib.Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")))
    env = {**os.environ, "PYTHONPATH": paths, "MALLOC_MMAP_THRESHOLD_": "65536"}  # freed memory goes back to the system
    command = [sys.executable, __file__, family]
    run = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300, env=env)
    found = json.loads(run.stdout)
    assert found.pop("an array of 100 MB") > 100e6 - SHOWN
    packed, kept, reported = (found.pop(name) for name in ("packed", "kept", "reported"))
    assert found.pop("prepare") <= packed + LIMIT
    assert reported <= packed + LIMIT
    assert abs(kept - reported) <= SHOWN
    assert {name: size for name, size in found.items() if size > LIMIT} == {}


if __name__ == "__main__":
    print(json.dumps(measured(sys.argv[1])))
