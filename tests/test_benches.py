"""The grammar of the tables: sides that disagree are told, ratios and goals follow from amounts, groups are there."""

import math
import pathlib
import re
import subprocess
import sys

import numpy as np
import pytest

from benches import charts, ratios, table
from benches.table import FASTEST, Plausible, Row, Side, beside, by_turns, cells, close, equal, judged, measured


def lines(row, **amounts):
    return {line.side: {x.peer: (x.ratio, x.limit, x.met) for x in line.verdicts} for line in judged(row, amounts)}


def test_ratios_are_to_the_peers_that_goals_name():
    sides = {"a": Side(0, {"c": 2.0, "b": None}), "b": Side(0, {FASTEST: 0.5}), "c": 0, "d": 0}
    found = lines(Row("work", sides), a=3.0, b=1.0, c=2.0, d=4.0)
    assert found == {"a": {"c": (1.5, 2.0, True), "b": (3.0, None, None)}, "b": {"c": (0.5, 0.5, True)}}
    assert lines(Row("work", sides), a=5.0, b=1.1, c=2.0, d=4.0)["b"] == {"c": (0.55, 0.5, False)}


def test_a_peer_may_have_a_goal_of_its_own_and_be_the_fastest():
    row = Row("work", {"own": Side(0, {"peer": 0.5, FASTEST: 1.1}), "peer": 0, "slow": 0})
    (line,) = judged(row, {"own": 1.0, "peer": 1.0, "slow": 9.0})
    assert [(x.peer, x.limit, x.met) for x in line.verdicts] == [("peer", 0.5, False), ("peer", 1.1, True)]


def test_a_side_that_has_no_amount_is_in_no_ratio():
    sides = {"own": Side(0, {"gone": 1.0, "peer": 1.0}), "gone": 0, "peer": 0, "mute": Side(0, {"own": 1.0})}
    assert lines(Row("work", sides), own=2.0, peer=1.0) == {"own": {"peer": (2.0, 1.0, False)}}


@pytest.mark.parametrize(("peer", "met"), [("peaccel raw", True), ("numpy", False)])
def test_as_fast_as_another_path_is_within_the_noise_and_as_another_library_is_not(peer, met):
    row = Row("work", {"own": Side(0, {peer: 1.0}), peer: 0})
    assert lines(row, own=1.04, **{peer: 1.0})["own"][peer][2] == met


def test_sides_that_do_not_agree_are_told_and_timed_all_the_same():
    row = beside("work", lambda: np.ones(3), {"peer": lambda: np.ones(3) + 1e-3}, close)
    amounts, _, failures = measured(row, quick=True)
    assert len(failures) == 1 and "Not equal to tolerance" in failures[0] and amounts.keys() == {"peaccel", "peer"}
    assert not measured(row._replace(same=lambda own, other: close(own, other, tolerance=1e-2)), quick=True)[2]
    with pytest.raises(AssertionError):
        equal(np.zeros(2), np.array([0, 1e-30]))


def test_numbers_that_are_not_are_not_close():
    with pytest.raises(AssertionError):
        close(np.zeros(2), np.array([0, math.nan]))


def test_an_implausible_peer_and_a_second_thread_are_told():
    times = {"a": table.Timing(1.0, 1.0), "b": table.Timing(5.0, 1.9)}
    row = Row("work", {"a": 0, "b": 0}, plausible=(Plausible("b", "a", 0.5, 2, "elsewhere"),))
    thread, starved = table.starved(row, times)
    assert thread == "b: 1.9 cores, expected 1" and starved.startswith("b / a = 5.00, expected 0.50 to 2.00")
    assert len(list(table.starved(row._replace(threads=2), times))) == 1


def test_sides_are_timed_by_turns_and_by_any_clock():
    called, now = [], [0.0]

    def side(name, takes):
        def run():
            called.append(name)
            now[0] += takes

        return run

    found = by_turns({"a": side("a", 1.0), "b": side("b", 3.0)}, 1e-9, clock=lambda: now[0])
    assert called == ["a", "b"] * table.LEAST and (found["a"].seconds, found["b"].seconds) == (1, 3)
    called.clear()
    by_turns({"a": side("a", 1.0), "b": side("b", 1.0)}, 1e-9, clock=lambda: now[0], turn=1.5)
    assert called == [*"bbaa", *"aabb", *"bbaa"]
    called.clear()
    by_turns({"a": side("a", 1.0)}, 0)
    assert called == ["a"]


def test_a_rate_stands_beside_what_the_core_does(monkeypatch):
    monkeypatch.setattr(table.limits, "burst", lambda unit: None)
    monkeypatch.setattr(table.limits, "work", {"GB/s": 1e9}.__getitem__)
    row = beside("work", lambda: 1, {"peer": lambda: 1}, close, rate="GB/s", seconds=0.01)
    amounts, limit, failures = measured(row, quick=False)
    assert limit > 0 and amounts.keys() == {"peaccel", "peer"} and not failures
    assert measured(row, quick=True)[1] == 0


def test_amounts_are_told_in_what_suits_them():
    row = Row("work", {"own": Side(0, {"peer": 0.5}, work=4e9), "peer": 0}, per=(1000, "pair"), rate="GB/s")
    (line,) = judged(row, {"own": 2.0, "peer": 8.0})
    assert cells(line, row, 10.0) == (
        *("work", "own", "2 ms/pair", "2 of 10 GB/s", "8 ms/pair peer", "0.25x", "<= 0.5x", "yes"),
    )
    assert [table.amount(x, "s") for x in (2, 2e-3, 2e-6, 2e-9)] == ["2 s", "2 ms", "2 us", "2 ns"]
    assert (table.amount(3e6, "B"), table.amount(0.25, "")) == ("3 MB", "0.25")


def test_every_group_is_there_under_one_name():
    names = [*ratios.TABLES, *(group for groups in ratios.TABLES.values() for group in groups)]
    assert len(names) == len(set(names)) and all(map(callable, ratios.groups([]).values()))
    assert ratios.groups(["log_ive"]).keys() == {"log_ive"}
    assert ratios.groups(["cliffs"]).keys() == ratios.TABLES["cliffs"].keys()


@pytest.mark.slow
@pytest.mark.parametrize("group", ratios.groups([]))
def test_every_row_runs_in_its_quick_form_and_its_sides_agree(group):
    root = pathlib.Path(__file__).parents[1]
    subprocess.run([sys.executable, "-m", "benches.ratios", "--quick", "--only", group], cwd=root, check=True)


RUNS = (run for run in charts.table("runs") if "benches.ratios" in run["command"])
KEPT = {run["table"]: run["command"].split(" --only ")[1].split()[0] for run in RUNS}
# The program now prints what is missed, 1 less these: the table's next run will have that.
BEFORE = {f"recall@10 by mls, {index} over 1,000,000 x 128, shortlist 100" for index in ("HNSW", "IVF")}


def without_sizes(work):
    """The name of a row, which has other numbers in its quick form."""
    return re.sub(r"\d[\d,.]*", "#", work.removesuffix(", two threads"))


@pytest.mark.slow
@pytest.mark.parametrize("kept", [name for name in KEPT if "work" in charts.table(name)[0]])
def test_every_row_that_is_kept_is_of_a_benchmark(kept):
    """Rows are listed and not run."""
    listed = {without_sizes(row.work) for rows in ratios.groups([KEPT[kept]]).values() for row in rows(True)}
    works = {row["work"] for row in charts.table(kept)} - BEFORE
    assert {work for work in works if without_sizes(work) not in listed} == set()


def test_sides_are_held_against_what_is_expected_of_them():
    same = table.expected({"a": 0, "b": 0}, np.array([[3.0, 2.0], [5.0, 4.0]]), {"b": np.array([[7.0]])})
    same(np.array([[3.0, 2.0]]), (np.array([[7.0, 1.0]])[:, :1], "ids"))  # fewer queries, a shorter list
    with pytest.raises(AssertionError):
        same(np.array([[3.0, 2.1]]), (np.array([[7.0]]),))
    with pytest.raises(AssertionError):
        same(np.array([[3.0, 2.0]]), (np.array([[3.0]]),))
