"""Readers hold the lock together and a writer alone; a fork's child finds it free."""

import os
import threading
import time

import pytest

from peaccel._utils.shared_lock import SharedLock

PATIENCE = 30  # seconds after which something is taken for stuck; it should take none
MOMENT = 0.05  # seconds in which a thread would have gone on that should wait


def started(hold, during=lambda: None):
    """A thread that holds the lock."""

    def work():
        with hold():
            during()

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def ended(thread):
    thread.join(PATIENCE)
    return not thread.is_alive()


def test_readers_hold_it_together():
    lock, meet = SharedLock(), threading.Barrier(3)
    readers = [started(lock.together, lambda: meet.wait(PATIENCE)) for _ in range(3)]
    assert all(map(ended, readers)) and not meet.broken


@pytest.mark.parametrize("first", ["together", "alone"])
def test_a_writer_holds_it_alone(first):
    lock = SharedLock()
    with getattr(lock, first)():
        writer = started(lock.alone)
        time.sleep(MOMENT)
        assert writer.is_alive()
    assert ended(writer)


def test_readers_that_come_later_wait_for_a_writer():
    lock, order = SharedLock(), []
    with lock.together():
        writer = started(lock.alone, lambda: order.append("writer"))
        time.sleep(MOMENT)  # by then it waits
        reader = started(lock.together, lambda: order.append("reader"))
        time.sleep(MOMENT)
        assert order == []
    assert ended(writer) and ended(reader) and order == ["writer", "reader"]


@pytest.mark.parametrize("hold", ["together", "alone"])
def test_it_is_free_again_after_an_error(hold):
    lock = SharedLock()
    with pytest.raises(KeyError), getattr(lock, hold)():
        raise KeyError
    assert ended(started(lock.alone)) and ended(started(lock.together))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
@pytest.mark.parametrize("hold", ["together", "alone"])
def test_it_is_free_in_the_child_of_a_fork(hold):
    lock, done = SharedLock(), threading.Event()
    thread = started(getattr(lock, hold), lambda: done.wait(PATIENCE))
    time.sleep(MOMENT)
    child = os.fork()
    if not child:
        os._exit(0 if ended(started(lock.alone)) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    done.set()
    assert ended(thread)
