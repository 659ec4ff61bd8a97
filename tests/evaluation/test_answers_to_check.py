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


PERSON = np.arange(600) // 3
ITEMS = pe.Point(
    np.float32(
        np.random.default_rng(0).normal(size=(200, 32))[PERSON] + 0.6 * np.random.default_rng(1).normal(size=(600, 32))
    )
)


def test_a_threshold_of_pairs_is_what_clusters_need():
    pairs = pe.duplicates(ITEMS, 0.3, "cosine")
    right = PERSON[pairs.queries] == PERSON[pairs.ids]
    plan, labels = checked(pairs, right, wrong=0.2, budget=200, groups=pairs.queries)
    assert (plan.accept.of, plan.accept.score, plan.accept.dim, plan.of) == ("pairs", "cosine", 32, "pairs")
    assert len({int(pairs.queries[row]) for row in labels}) == len(labels) and math.isfinite(plan.accept.threshold)
    assert "Accept pairs that score at least" in str(plan) and "20 % of the accepted pairs do not match" in str(plan)
    assert "Check 30 pairs (0 of 200" in str(pe.answers_to_check(pairs, wrong=0.2, budget=200))
    found = pe.cluster(ITEMS, plan.accept, "cosine")
    assert found.labels.tolist() == pe.cluster(ITEMS, plan.accept.threshold, "cosine").labels.tolist()
    assert pe.learn_then_test(pairs, right, pairs.queries, 0.2).of == "pairs"
    for call, message in (
        (
            lambda: pe.cluster(ITEMS, plan.accept, "neg_sq_l2"),
            "the threshold is of cosine, and scores are of neg_sq_l2",
        ),
        (lambda: pe.cluster(ITEMS.truncate(4), plan.accept, "cosine"), "is of items of 32 dimensions, got 4"),
        (lambda: plan.accept(pe.search(ITEMS, ITEMS, 1, "cosine")), "the threshold is of scored pairs, and a search"),
    ):
        with pytest.raises(ValueError, match=message):
            call()


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


@pytest.mark.filterwarnings("ignore:answers_to_check")
def test_pairs_are_checked_and_their_threshold_finds_duplicates_and_clusters(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    io.write_distribution("items.npy", ITEMS)
    np.save("texts.npy", [f"text {i}" for i in range(600)])
    assert run(capsys, "duplicates --embeddings items.npy --score cosine --above 0.3 --out pairs.csv")[0] == 0
    line = "check-answers --pairs pairs.csv --item-texts texts.npy --wrong 20% --budget 200 --score cosine --out o"
    for _ in range(2):
        code, out, err = run(capsys, line)
        assert code == 0 and " pairs (" in out, err
        of = {int(x["answer"]): PERSON[int(x["first"])] == PERSON[int(x["second"])] for x in lines()}
        fill(lambda row, of=of: "y" if of[row] else "n")
    code, out, err = run(capsys, line)
    assert code == 0 and out.splitlines()[-1] == "peaccel duplicates ... --accept o/accept.json --out ...", err
    assert lines()[0]["first_text"] == f"text {lines()[0]['first']}"
    accept = io.read_fit("o/accept.json")
    assert (accept.of, accept.score) == ("pairs", "cosine") and math.isfinite(accept.threshold)
    assert accept.fitted_on.endswith("in pairs.csv") and " checked pairs of " in accept.fitted_on
    kept = pe.duplicates(ITEMS, accept.threshold, "cosine")
    assert run(capsys, "duplicates --embeddings items.npy --score cosine --accept o/accept.json --out d.npz")[0] == 0
    assert np.array_equal(np.load("d.npz")["second"], kept.ids)
    assert run(capsys, "cluster --embeddings items.npy --score cosine --accept o/accept.json --out c.csv")[0] == 0
    Path("words.csv").write_text("first,second,score\n0,1,high\n")
    for change, message in (
        ("--ranking pairs.csv", "expected exactly one of --ranking and --pairs"),
        ("--query-texts texts.npy", "--query-texts is for --ranking; of --pairs it is --item-texts"),
        ("--pairs words.csv", "words.csv: score holds <U4, expected numbers"),
    ):
        code, _, err = run(capsys, f"{line} {change}")
        assert code == 2 and err.startswith(f"peaccel check-answers: {message}"), err


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
