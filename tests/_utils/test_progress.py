"""Progress of work: a bar on a terminal, elsewhere lines, with an estimate of the time that is left."""

import time
from types import SimpleNamespace

import pytest
import torch

from peaccel._utils import progress_bar
from peaccel._utils.progress_bar import ProgressBar, duration
from peaccel.train import progress
from peaccel.train.progress import ConsoleLogger


@pytest.fixture
def often(monkeypatch):
    """Lines come a thousand times as often."""
    monkeypatch.setattr(progress_bar, "FIRST", 0.002)
    monkeypatch.setattr(progress_bar, "EVERY", 0.01)


@pytest.mark.parametrize(
    ("seconds", "told"), [(0.2, "0 s"), (99.4, "99 s"), (99.6, "2 min"), (5900, "98 min"), (6000, "1.7 h")]
)
def test_durations_are_told_in_two_digits(seconds, told):
    assert duration(seconds) == told


def told(capsys, count):
    """So many lines, as soon as there are."""
    text = ""
    while text.count("\n") < count:
        time.sleep(0.01)
        text += capsys.readouterr().err
    return text.splitlines()


def test_without_a_terminal_lines_tell_what_is_left_even_while_nothing_moves(often, capsys, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(progress_bar, "perf_counter", lambda: now[0])
    with ProgressBar("work", 4, seconds=80) as bar:
        assert told(capsys, 1)[0] == "work: 0 %, about 80 s"
        now[0] = 10.0
        bar.advance()
        assert "work: 25 %, about 30 s left" in told(capsys, 3)[-1]
        bar.advance(2)
        assert "work: 75 %, about 3 s left" in told(capsys, 3)[-1]
    now[0] = 0.0
    with ProgressBar("costs", 0.5) as bar:
        now[0] = 10.0
        bar.advance(0.1)
        assert "costs: 20 %, about 40 s left" in told(capsys, 3)[-1]
    now[0] = 0.0
    with ProgressBar("other work"):
        now[0] = 300.0
        assert told(capsys, 3)[-1] == "other work: 5 min"


def test_work_that_is_done_at_once_says_nothing(capsys):
    with ProgressBar("work", 4) as bar:
        bar.advance(4)
    assert capsys.readouterr().err == ""


def test_on_a_terminal_there_is_a_bar_and_there_are_no_lines(often, capsys, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")  # by which rich takes what it writes to for a terminal
    monkeypatch.setenv("TERM", "xterm")
    with ProgressBar("work", 4) as bar:
        bar.advance()
        time.sleep(0.1)
    err = capsys.readouterr().err
    assert "work" in err and "━" in err and "25 %" not in err


def test_what_is_left_of_a_stage_counts_its_validations(monkeypatch):
    """An epoch of 10 batches of 2 s, then 30 s of validation; of three epochs."""
    now = [0.0]
    monkeypatch.setattr(progress, "perf_counter", lambda: now[0])
    shown = []
    monkeypatch.setattr(ProgressBar, "show", lambda self, done, told: shown.append((done, told)))
    screen, stage = ConsoleLogger(), SimpleNamespace(name="one", schedule=SimpleNamespace(epochs=3))
    for epoch in range(2):
        screen.epoch_begins(stage, epoch, batches=10, done=0)
        for _ in range(10):
            now[0] += 2
            screen.step({"loss": torch.tensor(0.5)}, items=8)
        now[0] += 30
    screen.close()
    told = {done: text for done, text in shown}
    assert told[1] == "at least 58 s left  loss 0.5  4 items/s"
    assert told[10] == "at least 40 s left  loss 0.5  4 items/s"
    assert told[15] == "about 90 s left  loss 0.5  4 items/s"  # 15 steps of 2 s, two validations
