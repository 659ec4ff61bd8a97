"""`pe.answers_to_check` and `peaccel check-answers`: a threshold with a promise from few labels of traffic."""

import csv
import json
import math
import re
from pathlib import Path

import numpy as np
import pytest
from command import run

import peaccel as pe
from peaccel import io

ALPHA, DELTA = 0.02, 0.05


def wrong_at(z, share):
    """The probability of a wrong answer; at most `ALPHA` of the surest `share` are wrong."""
    bias = {0.44: 0.965, 0.05: -7.333}[share]
    return 1 / (1 + np.exp(bias + 6 * z))


def checked(scores, right, **how):
    labels = {}
    while len((plan := pe.answers_to_check(scores, labels, **how)).rows):
        labels |= {int(row): bool(right[row]) for row in plan.rows}
    return plan, labels


def simulated(share, runs, count, budget, rounded=0):
    """Share of runs in which the promise is broken, and the share that is accepted on average; at random likewise."""
    known = np.sort(np.random.default_rng(99).normal(size=200_000))[::-1]
    known = np.round(known * rounded) / rounded if rounded else known
    risk = wrong_at(known, share)
    outcomes = np.zeros(3)
    for seed in range(runs):
        rng = np.random.default_rng(seed)
        z = rng.normal(size=count)
        z = np.round(z * rounded) / rounded if rounded else z
        right = rng.random(count) >= wrong_at(z, share)
        plan, labels = checked(z, right, budget=budget, wrong=ALPHA, delta=DELTA, seed=seed)
        assert len(labels) == plan.checked == plan.budget <= budget
        kept = known >= plan.accept.threshold
        some = rng.permutation(count)[:budget]
        by_chance = pe.learn_then_test(z[some], right[some], np.arange(budget), ALPHA, DELTA)
        outcomes += kept.any() and risk[kept].mean() > ALPHA, kept.mean(), (known >= by_chance.threshold).mean()
    return outcomes / runs


@pytest.mark.filterwarnings("ignore:learn_then_test. confidences look reversed")  # of those above a limit, by chance
@pytest.mark.parametrize(
    ("share", "least", "rounded"), [(0.44, 0.2, 0), (0.05, 0.008, 0), (0.44, 0.2, 5)], ids=["44 %", "5 %", "ties"]
)
@pytest.mark.parametrize("runs", [25, pytest.param(2000, marks=pytest.mark.slow)])
def test_the_promise_is_kept_and_more_is_accepted_than_by_labels_at_random(share, least, rounded, runs):
    broken, accepted, at_random = simulated(share, runs, 10_000, 400, rounded)
    assert broken <= DELTA + 3.1 * (DELTA * (1 - DELTA) / runs) ** 0.5
    assert accepted > least and accepted > at_random


def test_the_limit_depends_on_no_answer_that_is_tested():
    rng = np.random.default_rng(0)
    z = rng.normal(size=5000)
    right = rng.random(5000) >= wrong_at(z, 0.44)
    first = pe.answers_to_check(z, budget=300)
    pilot = {int(row): bool(right[row]) for row in first.rows}
    second = pe.answers_to_check(z, pilot, budget=300)
    assert (first.stage, len(first.rows), second.stage) == ("pilot", 45, "test")
    assert not {*first.rows.tolist()} & {*second.rows.tolist()} and (z[second.rows] >= second.limit).all()
    # Labels of the test change nothing in what is tested, and rows that are not asked for count for nothing.
    some = {int(row): False for row in second.rows[:9]}
    others = {int(row): False for row in np.setdiff1d(np.arange(5000), np.r_[first.rows, second.rows])[:50]}
    third = pe.answers_to_check(z, pilot | some | others, budget=300)
    assert third.limit == second.limit and (third.rows == second.rows[9:]).all() and third.checked == 54
    # The tested answers are a sample of all that lie above the limit and outside the pilot's part.
    ranks = np.searchsorted(np.sort(z[z >= second.limit]), z[second.rows]) / (z >= second.limit).sum()
    assert abs(ranks.mean() - 0.5) < 3.5 / (12 * len(ranks)) ** 0.5


def test_a_threshold_is_that_of_the_tested_answers_and_nobody_knows_is_wrong():
    rng = np.random.default_rng(1)
    z = rng.normal(size=4000).astype("f4")
    right = rng.random(4000) >= wrong_at(z, 0.44)
    plan, labels = checked(z, right, budget=350, seed=3)
    tested = np.array([*labels])[52:]
    expected = pe.learn_then_test(z[tested], right[tested], np.arange(len(tested)), 0.02, 0.05)
    assert plan.accept == expected and plan.accepted == expected(z).mean() and plan.stage == "done"
    clean, _ = checked(z, z > -9, budget=350, seed=3)
    pilot, tested = (
        pe.answers_to_check(z, dict.fromkeys(rows, True), budget=350, seed=3).rows.tolist()
        for rows in ([], pe.answers_to_check(z, budget=350, seed=3).rows.tolist())
    )
    doubtful = dict.fromkeys(pilot + tested, True) | dict.fromkeys(tested[:60])
    assert clean.accepted > 0 and pe.answers_to_check(z, doubtful, budget=350, seed=3).accepted == 0


def test_one_answer_of_each_group_is_used():
    z, of = np.arange(3000.0), np.arange(3000) // 3
    plan, labels = checked(z, z > 500, groups=of, budget=300)
    assert len({of[row] for row in labels}) == len(labels) == 300 and math.isfinite(plan.accept.threshold)


def test_a_ranking_binds_the_threshold_to_its_score():
    rng = np.random.default_rng(0)
    gallery, queries = (pe.Normal(rng.normal(size=(n, 8)), np.ones(n)) for n in (50, 400))
    found = pe.search(queries, gallery, 1, "cosine")
    plan, _ = checked(found, np.ones(400, bool), budget=180)
    assert plan.accept.score == "cosine" and (plan.accept(found).ids >= 0).mean() == plan.accepted
    with pytest.raises(ValueError, match="the threshold is of cosine, and scores are of mls"):
        plan.accept(pe.search(queries, gallery, 1, "mls"))


Z = np.arange(1000.0)
REFUSED = [
    ({"budget": 150}, "budget is 150, expected 171 (with fewer labels nothing can be promised) to 1000 (one for each"),
    ({"budget": 1001}, "budget is 1001, expected 299 "),
    ({"budget": 300.0}, "budget is 300.0, expected 194 "),
    ({"wrong": 0.0}, "wrong is 0.0, expected a number between 0 and 1"),
    ({"delta": 1.0}, "delta is 1.0, expected a number between 0 and 1"),
    ({"checked": {1000: True}}, "checked names row 1000, expected 0 .. 999"),
    ({"checked": {True: True}}, "checked names row True, expected 0 .. 999"),
    ({"checked": {3: "y"}}, "checked has 'y' for row 3, expected True, False or None"),
    ({"found": Z * np.nan}, "1000 of the 1000 numbers of found are NaN"),
    ({"groups": np.arange(999)}, "groups has shape (999,), expected (1000,)"),
    (
        {"groups": np.arange(1000) // 4},
        "budget is 300, expected 194 (with fewer labels nothing can be promised) to 250",
    ),
    ({"seed": -1}, "seed is -1, expected 0 .."),
]


@pytest.mark.parametrize(("change", "message"), REFUSED)
def test_wrong_arguments_are_refused_by_name(change, message):
    with pytest.raises(ValueError, match="^answers_to_check: " + re.escape(message)) as caught:
        pe.answers_to_check(**{"found": Z, **change})
    assert "\n" not in str(caught.value)


# -- the command -------------------------------------------------------------------------------------------------------

LINE = (
    "check-answers --ranking r.csv --budget 200 --query-texts texts.npy --item-texts words.npy --out o --score cosine"
)


@pytest.fixture
def right(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    scores = np.sort(rng.normal(size=(2000, 2)))[:, ::-1]
    io.write_ranking("r.csv", (scores, rng.integers(0, 40, (2000, 2))))
    np.save("texts.npy", [f"query, {i}" for i in range(2000)])
    np.save("words.npy", [f"word {i}" for i in range(40)])
    return scores[:, 0] > -1


def lines():
    return list(csv.DictReader(Path("o/answers.csv").read_text().splitlines()))


def fill(word):
    found = lines()
    with Path("o/answers.csv").open("w", newline="") as file:
        out = csv.DictWriter(file, found[0])
        out.writeheader()
        out.writerows({**line, "right": word(int(line["answer"]))} for line in found)


def test_a_table_is_filled_until_the_threshold_is_there(right, capsys):
    scores, ids = io.read_ranking("r.csv")
    for count in (30, 200):
        code, out, err = run(capsys, LINE)
        assert code == 0, err
        assert len(lines()) == count and "fill its column right" in out and not Path("o/accept.json").exists()
        fill(lambda row: "yes" if right[row] else "N")
    assert run(capsys, LINE)[0] == 0
    expected, labels = checked(scores[:, 0], right, budget=200)
    accept = io.read_fit("o/accept.json")
    assert accept.threshold == expected.accept.threshold and accept.score == "cosine"
    assert {int(line["answer"]): line["right"] == "y" for line in lines()} == labels
    line = lines()[7]
    row = int(line["answer"])
    assert (line["query_text"], line["item_text"]) == (f"query, {row}", f"word {ids[row, 0]}")
    assert float(line["score"]) == scores[row, 0] and json.loads(Path("o/check.json").read_text())["budget"] == 200


def test_the_terminal_asks_and_goes_on_where_it_was_left(right, capsys, monkeypatch):
    words = iter(["y", "perhaps", "y", "?", "q"])
    monkeypatch.setattr("builtins.input", lambda text: next(words))
    assert run(capsys, f"{LINE} --ask")[0] == 0
    assert [line["right"] for line in lines()] == ["y", "y", "?"] + [""] * 27
    monkeypatch.setattr("builtins.input", lambda text: "y")
    code, out, _ = run(capsys, f"{LINE} --ask")
    assert code == 0 and "Check 27 answers (3 of 200 are checked)" in out and "query_text: query, " in out
    assert "at most 2 % of the accepted answers are wrong, with a certainty of 95 %" in out.splitlines()[-3]
    assert [line["right"] for line in lines()[:4]] == ["y", "y", "?", "y"] and Path("o/accept.json").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("--wrong 3%", "o/check.json: was begun with wrong 0.02, got 0.03; choose another --out"),
        ("--ranking s.csv", "o/check.json: was begun with answers "),
        ("--budget 100", "answers_to_check: budget is 100, expected 164"),
        ("--item-texts few.npy", "few.npy: holds 2 texts, expected one for row 39 of r.csv"),
        ("--certainty 1", "--certainty is '1', expected a share"),
        ("--ranking none.csv", "none.csv: no such file"),
    ],
)
def test_the_command_refuses_in_one_line(right, capsys, change, message):
    scores, ids = io.read_ranking("r.csv")
    io.write_ranking("s.csv", (scores + 1, ids))
    np.save("few.npy", ["a", "b"])
    assert run(capsys, LINE)[0] == 0
    before = Path("o/answers.csv").read_text()
    if "--budget" in change:
        Path("o/answers.csv").unlink()
    code, out, err = run(capsys, f"{LINE} {change}")
    assert (code, out) == (2, "") and err.startswith(f"peaccel check-answers: {message}"), err
    assert "--budget" in change or Path("o/answers.csv").read_text() == before


def test_damaged_tables_are_refused_by_line(right, capsys):
    assert run(capsys, LINE)[0] == 0
    fill(lambda row: "perhaps")
    code, _, err = run(capsys, LINE)
    assert code == 2 and re.match(r"peaccel check-answers: o/answers.csv: answer '\d+' has right 'perhaps', expec", err)
    Path("o/check.json").write_text("[]")
    assert "o/check.json: is missing or no JSON beside answers.csv" in run(capsys, LINE)[2]
