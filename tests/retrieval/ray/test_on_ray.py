"""A sharded gallery on a cluster of this machine: whole answers while actors are killed, and nothing left running."""

import os
import queue
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import psutil
import pytest
import ray
from clusters import start_ray
from conftest import assert_ranking, make

import peaccel as pe
from peaccel.retrieval.ray import ShardedGallery

# A start of Ray that was late leaves sockets behind.
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"),
]

# An actor takes a second of a processor to start, and others use these processors too.
PATIENCE = 180.0


@pytest.fixture(scope="module")
def cluster():
    """Ray on this machine, for actors that ask for little of it."""
    start_ray()
    yield
    ray.shutdown()
    assert not wait_until(lambda: not children(psutil.Process()))


def wait_until(true, seconds=PATIENCE):
    """Whether it did not become true in time."""
    end = time.monotonic() + seconds
    while not (found := true()) and time.monotonic() < end:
        time.sleep(0.1)
    return not found


def children(process):
    """All processes below this one that have not ended."""
    found = process.children(recursive=True)
    return [child for child in found if child.is_running() and child.status() != psutil.STATUS_ZOMBIE]


def actors():
    return [child for child in children(psutil.Process()) if "_Shard" in child.name()]


def pids(shards):
    """The processes of the replicas of each shard, once all of them are running."""
    found = [[None for _ in replicas] for replicas in shards._shards]
    for replicas, known in zip(shards._shards, found, strict=True):
        for i, one in enumerate(replicas):
            while known[i] is None:
                try:
                    known[i] = ray.get(one.actor.__ray_call__.remote(lambda _: os.getpid()), timeout=PATIENCE)
                except ray.exceptions.ActorUnavailableError:
                    time.sleep(0.1)
    return found


GALLERY, QUERIES = (
    make("normal_diagonal", 4000, 16, dtype="float32"),
    make("normal_diagonal", 40, 16, 7, dtype="float32"),
)
EXPECTED = pe.search(QUERIES, GALLERY, 20)
CUT = 1500  # shards are unequal


@pytest.fixture
def opened(cluster, tmp_path):
    """Opens galleries of two files with other settings, and ends them."""
    for name, part in {"a": GALLERY[:CUT], "b": GALLERY[CUT:]}.items():
        pe.io.write_distribution(tmp_path / f"{name}.npz", part)
    made = []

    def make_one(**settings):
        made.append(
            ShardedGallery([tmp_path / "a.npz", tmp_path / "b.npz"], num_cpus=0.25, timeout=PATIENCE, **settings)
        )
        return made[-1]

    yield make_one
    for one in made:
        one.close()
    assert not wait_until(lambda: not actors()), "actors are left"


@pytest.mark.parametrize("replicas", [1, 2])
def test_answers_are_whole_while_actors_are_killed_during_calls(opened, replicas):
    """Stopped first, so that the call waits for it; with two replicas all of them are killed too."""
    shards = opened(replicas=replicas)
    for which in range(2 * replicas):
        assert_ranking(shards.search(QUERIES, 20, timeout=PATIENCE), EXPECTED)
        shard, all_of_it = which % 2, which >= 2
        victims = pids(shards)[shard][: None if all_of_it else 1]
        for pid in victims:
            os.kill(pid, signal.SIGSTOP)
        threading.Timer(0.5, lambda pids: [os.kill(pid, signal.SIGKILL) for pid in pids], [victims]).start()
        begun = time.monotonic()
        assert_ranking(shards.search(QUERIES, 20, timeout=PATIENCE), EXPECTED)
        took = time.monotonic() - begun
        print(f"{replicas} replicas, {len(victims)} of them killed: a whole answer after {took:.1f} s")


def test_a_shard_kept_in_memory_is_there_again_after_its_actor_was_killed(cluster):
    parts = [(x, np.array([f"item {i}" for i in i_]).astype(str)) for x, i_ in (
        (GALLERY[:CUT], range(CUT)), (GALLERY[CUT:], range(CUT, 4000)))]  # fmt: skip
    with ShardedGallery(parts, num_cpus=0.25, timeout=PATIENCE) as shards:
        os.kill(pids(shards)[0][0], signal.SIGKILL)
        found = shards.search(QUERIES, 20, timeout=PATIENCE)
        assert found.ids.tolist() == [[f"item {i}" for i in row] for row in EXPECTED.ids]


def test_a_stopped_actor_is_missing_in_time_and_back_afterwards(opened):
    shards = opened(queue=1)
    pid = pids(shards)[1][0]
    os.kill(pid, signal.SIGSTOP)
    try:
        begun = time.monotonic()
        found = shards.search(QUERIES, 20, timeout=2.0, partial=True)
        assert 2.0 <= time.monotonic() - begun < 20.0
        assert [name.partition(" (")[0] for name in found.missing] == ["shard 1"] and found.ids.max() < CUT
        assert_ranking(found, pe.search(QUERIES, GALLERY[:CUT], 20))
        caught = []

        def late():
            with pytest.raises(TimeoutError) as error:
                shards.search(QUERIES, 20, timeout=4)
            caught.append(str(error.value))

        thread = threading.Thread(target=late)
        thread.start()
        time.sleep(1)
        with pytest.raises(queue.Full):
            shards.search(QUERIES, 20, timeout=1)
        thread.join()
        assert caught[0].startswith("ShardedGallery: no answer in 4 s from shard 1 (")
    finally:
        os.kill(pid, signal.SIGCONT)
    assert_ranking(shards.search(QUERIES, 20, timeout=PATIENCE), EXPECTED)


def test_an_actor_that_may_not_be_started_again_is_an_error_in_one_line(opened):
    shards = opened(restarts=0)
    os.kill(pids(shards)[0][0], signal.SIGKILL)
    with pytest.raises(RuntimeError, match=r"^ShardedGallery: shard 0 \(.*a\.npz\) died more often than `restarts`.*$"):
        shards.search(QUERIES, 20, timeout=PATIENCE)
    assert shards.search(QUERIES, 20, partial=True).missing[0].startswith("shard 0 (")


def test_a_file_that_is_lost_or_torn_is_named_and_nothing_is_left(opened, tmp_path):
    shards = opened()
    whole = (tmp_path / "a.npz").read_bytes()
    (tmp_path / "a.npz").write_bytes(whole[: len(whole) // 2])
    os.kill(pids(shards)[0][0], signal.SIGKILL)
    for call in (lambda: shards.search(QUERIES, 20, timeout=PATIENCE), opened):
        with pytest.raises(ValueError, match=r"^ShardedGallery: shard 0 \(.*a\.npz\): cannot be read, truncated.*$"):
            call()
    (tmp_path / "b.npz").unlink()
    with pytest.raises(OSError, match=r"^ShardedGallery: shard 1 \(.*b\.npz\): no such file$"):
        ShardedGallery([GALLERY, tmp_path / "b.npz"], num_cpus=0.25, timeout=PATIENCE)


def test_answers_that_no_shard_has_no_items_for(cluster):
    empty, few = GALLERY[:0], GALLERY[:3]
    with ShardedGallery([empty, few, empty], num_cpus=0.25, timeout=PATIENCE) as shards:
        torn = pe.Normal(np.full_like(QUERIES.mu, np.nan), QUERIES.var)
        for queries in (QUERIES, torn, QUERIES[:0]):
            assert_ranking(shards.search(queries, 5), pe.search(queries, few, 5))


DRIVER = """
import sys
from clusters import start_ray
from peaccel.retrieval.ray import ShardedGallery
start_ray()
shards = ShardedGallery(sys.argv[1:], num_cpus=0.25)
print("ready", flush=True)
sys.stdin.read()
"""


def test_a_dead_driver_leaves_nothing_running(tmp_path):
    pe.io.write_distribution(tmp_path / "a.npz", GALLERY)
    command = [sys.executable, "-c", DRIVER, str(tmp_path / "a.npz")]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    driver = subprocess.Popen(command, cwd=Path(__file__).parent, text=True, **pipes)  # where `clusters` is
    while "ready" not in driver.stdout.readline():
        assert driver.poll() is None
    started = children(psutil.Process(driver.pid))
    assert any("_Shard" in child.name() for child in started)
    driver.kill()
    driver.communicate()
    begun = time.monotonic()
    shards = [child for child in started if "_Shard" in child.name()]
    for what, processes in {"the actor": shards, "all of Ray": started}.items():  # Ray's agents wait for a lost node
        assert not psutil.wait_procs(processes, timeout=PATIENCE)[1]
        print(f"{what} had ended {time.monotonic() - begun:.1f} s after its driver was killed")
