"""Same bits for any number of threads and any SIMD level; Ctrl-C, fork, and other Python threads meanwhile."""

import os
import pathlib
import platform
import re
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
import torch
from conftest import CLASSES, KINDS, SCORES, make, scored
from items import values

import peaccel as pe
from peaccel.ops import OPS, Op, _numpy

SUPPORTED = [(s, q, g) for s in SCORES for q in KINDS for g in KINDS if (q, g) in pe.scores.SCORES[s].pairs]
# A score and kinds for each kernel and each pair of widths of the two sides' arrays.
KERNELS = {
    (scored(s, q).pair(q, g).op.name, CLASSES[q][1] == 2, CLASSES[g][1] == 2): (s, q, g)
    for s, q, g in reversed(SUPPORTED)
}
CPU_INFO = pathlib.Path("/proc/cpuinfo")
CPU_HAS = set(CPU_INFO.read_text().split()) if CPU_INFO.exists() else set()
LEVELS = [
    "baseline",
    *(["neon"] * (platform.machine() in ("aarch64", "arm64"))),
    *(["avx2"] * ("avx2" in CPU_HAS)),
    *(["avx512"] * ("avx512f" in CPU_HAS)),
]


def everything(queries, gallery, dim):
    """Scores and gradients of every kernel and verb, and the Bessel functions, as one list of arrays."""
    out = []
    for name, q_kind, g_kind in KERNELS.values():
        score = scored(name, q_kind)
        q, g = make(q_kind, queries, dim, 1, dtype="float32"), make(g_kind, gallery, dim, 2, dtype="float32")
        out += [pe.pairwise(q, g, score), *pe.search(q, g, 5, score), *pe.search(q, pe.prepare(g, score), 5, score)]
        q, g = make(q_kind, queries, dim, 1, library="torch"), make(g_kind, gallery, dim, 2, library="torch")
        leaves = [x.requires_grad_() for x in (*q.arrays, *g.arrays)]
        ids = torch.arange(3 * queries).reshape(queries, 3) % gallery
        total = pe.pairwise(q, g, score).sum() + pe.rescore(q, g, ids, score).sin().sum()
        out += [x.numpy() for x in torch.autograd.grad(total, leaves, allow_unused=True) if x is not None]
    for dtype in (np.float32, np.float64):
        x = (10.0 ** np.linspace(-6, 8, 400)).astype(dtype)
        for op in (op for op in OPS if isinstance(op, Op)):
            out += [values(op, np.array(v), x) for v in (2.5, 64.0)]
        for kind, columns in (("normal_isotropic", dim), ("normal_diagonal", dim), ("vmf", dim), ("vmf", 3)):
            d = make(kind, queries, columns, 3, dtype=np.dtype(dtype).name)
            draws = pe.sample(d, 4, seed=7)
            op = pe.ops.samplers.sample_vmf if kind == "vmf" else pe.ops.samplers.sample_normal
            out += [draws, *_numpy.sample_backward(op, draws, *d.arrays, 7, 0, 2)]
    return out


def fingerprint(arrays):
    return [(x.dtype.str, x.shape, x.tobytes()) for x in arrays]


def test_any_number_of_threads_gives_the_same_bits_forward_and_backward():
    results = {}
    for threads in (1, 2, 3, 7):
        pe.set_num_threads(threads)
        assert pe.build_info()["threads"] == threads
        results[threads] = fingerprint(everything(70, 150, 19))
    assert all(found == results[1] for found in results.values())


@pytest.mark.parametrize(("name", "kind"), [("mls", "normal_isotropic"), ("mls", "normal_diagonal"), ("mls", "vmf")])
def test_gradients_of_many_rows_and_searches_of_many_shards_do_not_depend_on_threads(name, kind):
    q, g = (make(kind, n, 8, n, library="torch") for n in (300, 2000))
    far = make(kind, 40_000, 8, 5, dtype="float32")
    results = []
    for threads in (1, 2, 7):
        pe.set_num_threads(threads)
        leaves = [x.detach().clone().requires_grad_() for x in (*q.arrays, *g.arrays)]
        scores = pe.pairwise(type(q)(*leaves[:2]), type(g)(*leaves[2:]), name)
        found = [x.numpy() for x in torch.autograd.grad((scores * scores.cos()).sum(), leaves)]
        found += pe.search(make(kind, 9, 8, 6, dtype="float32"), far, 30, name)
        results.append(fingerprint(found))
    assert results[0] == results[1] == results[2]


# -- SIMD --------------------------------------------------------------------------------------------------------------


def python(code, *, timeout=120, check=True, **env):
    """A fresh interpreter that runs the code with this folder and that of helpers on its path."""
    path = os.pathsep.join((*map(str, pathlib.Path(__file__).parents[:2]), os.environ.get("PYTHONPATH", "")))
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=timeout,
        env={**os.environ, "PYTHONPATH": path, **env},
        check=False,
    )
    assert done.returncode == 0 or not check, done.stderr
    return done


HASH = """
import hashlib, peaccel as pe, test_parallel
arrays = test_parallel.everything(5, 20, 21)
print(pe.build_info()["simd"], hashlib.sha256(repr(test_parallel.fingerprint(arrays)).encode()).hexdigest())
"""


def test_every_simd_level_of_this_machine_gives_the_same_bits_forward_and_backward():
    found = dict(python(HASH, PEACCEL_SIMD=level).stdout.split() for level in LEVELS)
    assert set(found) == set(LEVELS)
    assert len(set(found.values())) == 1, found


def test_a_simd_level_that_does_not_exist_is_told_in_one_line():
    done = python("import peaccel", PEACCEL_SIMD="nonsense", check=False)
    last = done.stderr.strip().splitlines()[-1]
    assert done.returncode == 1 and last.startswith("ValueError: PEACCEL_SIMD") and "nonsense" in last
    assert all(level in last for level in LEVELS)


def test_an_empty_simd_level_is_none():
    code = "import peaccel as pe; print(pe.build_info()['simd'])"
    assert python(code, PEACCEL_SIMD="").stdout == f"{LEVELS[-1]}\n"


def test_the_number_of_threads_is_taken_from_the_environment():
    code = "import peaccel as pe; print(pe.build_info()['threads'])"
    for ours, omp, expected in (("3", "", 3), ("3", "5", 3), ("", "5", 5), ("0", " 5 ", 5), ("many", "5,2", 5)):
        assert python(code, PEACCEL_NUM_THREADS=ours, OMP_NUM_THREADS=omp).stdout == f"{expected}\n"
    for ignored in ("", "0", "many"):
        assert int(python(code, PEACCEL_NUM_THREADS=ignored, OMP_NUM_THREADS=ignored).stdout) >= 1


def test_what_the_environment_asks_for_is_told():
    code = "import peaccel as pe; print(pe.build_info()['environment'])"
    assert (
        python(code, OMP_NUM_THREADS="5", PEACCEL_SIMD="baseline").stdout == "PEACCEL_SIMD=baseline OMP_NUM_THREADS=5\n"
    )


# -- interrupts, forks, the GIL ----------------------------------------------------------------------------------------

LONG = """
import os, signal, threading, time, numpy as np, peaccel as pe
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs start with it ignored
pe.set_num_threads({threads})
rng = np.random.default_rng(0)
make = lambda n: pe.Normal(rng.standard_normal((n, 256), np.float32), rng.random((n, 256), np.float32) + 1)
q, g = make(20_000), make(20_000)
pe.pairwise(q[:2], g[:2])
sent = []
def press():
    sent.append(time.process_time())
    os.kill(os.getpid(), signal.SIGINT)
try:
    threading.Timer(0.7, press).start()
    {call}
    print("finished")
except KeyboardInterrupt:
    print("interrupted", time.process_time() - sent[0])
"""


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(
    "call",
    [
        "pe.search(q, g, 10)",
        "pe.pairwise(q, g)",
        *(
            call.replace("DRAWN", "pe.scores.hib(n=256, seed=1)")
            for call in (
                "pe.search(q[:64], g, 10, DRAWN)",
                "pe.rescore(q[:64], g, np.tile(np.arange(2000), (64, 1)), DRAWN)",
                "pe.rerank(q[:64], g, np.tile(np.arange(2000), (64, 1)), 10, DRAWN)",
            )
        ),
    ],
)
def test_ctrl_c_ends_a_long_call_within_a_second(call, threads):
    """A second of processors' time, which does not run while others have them."""
    what, *seconds = python(LONG.format(threads=threads, call=call)).stdout.split()
    assert what == "interrupted" and float(seconds[0]) < 1


def test_candidates_that_another_thread_changes_are_an_error_of_ours():
    items = make("normal_isotropic", 500, 8)
    candidates = np.random.default_rng(0).integers(0, 500, (50, 400))
    kept, stop, said = candidates.copy(), threading.Event(), set()

    def change():
        while not stop.is_set():
            candidates[40:] = 10**6
            candidates[40:] = kept[40:]

    thread = threading.Thread(target=change)
    thread.start()
    try:
        end = time.monotonic() + 1
        while time.monotonic() < end:
            for call in (
                lambda: pe.rescore(items[:50], items, candidates),
                lambda: pe.rerank(items[:50], items, candidates, 3),
            ):
                try:
                    call()
                except BaseException as error:  # a panic is no Exception
                    said.add(f"{type(error).__name__}: {error}")
    finally:
        stop.set()
        thread.join()
    before = r"of query 4\d hold id \d+, expected -1 \(none\) or a row of the gallery, which has 500"
    expected = rf"ValueError: mls: candidates ({before}|were changed by another thread during the call)"
    assert said and all(re.fullmatch(expected, x) for x in said)


def in_child(work, seconds=20):
    """The exit status of a forked child that does the work; a child that hangs is ended."""
    child = os.fork()
    if child == 0:
        try:
            work()
            os._exit(0)
        except BaseException:
            os._exit(1)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.02)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return "hung"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")  # Python 3.12 on
def test_a_forked_child_works_after_threads_were_used():
    pe.set_num_threads(3)
    q, g = make("normal_isotropic", 100, 16, 1), make("normal_isotropic", 3000, 16, 2)
    expected, best = pe.pairwise(q, g), pe.search(q, g, 5)

    def work():
        assert np.array_equal(pe.pairwise(q, g), expected)
        assert np.array_equal(pe.search(q, g, 5).ids, best.ids)
        assert in_child(lambda: pe.search(q, g, 5), seconds=5) == 0  # and its own child

    assert in_child(work) == 0
    assert np.array_equal(pe.pairwise(q, g), expected)  # the parent is as it was


def test_other_python_threads_run_meanwhile():
    pe.set_num_threads(1)
    q, g = make("normal_diagonal", 400, 128, 1), make("normal_diagonal", 4000, 128, 2)
    start = time.perf_counter()
    pe.pairwise(q, g)
    alone = time.perf_counter() - start
    ticks, stop = [], threading.Event()

    def tick():
        while not stop.is_set():
            ticks.append(time.perf_counter())
            time.sleep(alone / 100)

    other = threading.Thread(target=tick)
    other.start()
    start = time.perf_counter()
    pe.pairwise(q, g)
    end = time.perf_counter()
    stop.set()
    other.join()
    during = [t for t in ticks if start < t < end]
    # A held GIL would allow ticks at the edges only.
    assert len(during) > 10 and max(np.diff([start, *during, end])) < 0.5 * (end - start)


def test_several_python_threads_may_call_at_once():
    pe.set_num_threads(3)
    q, g = make("normal_isotropic", 64, 32, 1), make("normal_isotropic", 2000, 32, 2)
    expected, results = pe.pairwise(q, g), []
    threads = [threading.Thread(target=lambda: results.append(pe.pairwise(q, g))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 8 and all(np.array_equal(x, expected) for x in results)


def test_threads_whose_first_tensors_come_at_once_register_the_operators_once():
    code = """
import sys, threading
import peaccel as pe, torch

sys.setswitchinterval(1e-6)
start, found = threading.Barrier(4), []

def first():
    start.wait()
    try:
        found.append(pe.special.log_iv(2.0, torch.ones(1)).item())
    except RuntimeError as error:
        found.append(error)

threads = [threading.Thread(target=first) for _ in range(4)]
for thread in threads: thread.start()
for thread in threads: thread.join()
assert len(set(found)) == 1 and isinstance(found[0], float), found
"""
    subprocess.run([sys.executable, "-c", code], check=True)
