"""The rule for trainings that fail: by validation alone, one retry that stays, and rates with exact intervals."""

import csv
import io
import re
from dataclasses import replace

import numpy as np
import pytest

from reproduction import __main__ as commands
from reproduction import ledger, running
from reproduction.claims import Claim, Comparison, decided
from reproduction.failures import failed, kept, line, rates, retries
from reproduction.page import files, markdown
from reproduction.plan import cells, common_changes, read_plan, resolved, trained, tried
from reproduction.tables import pairs

QUICK = read_plan(quick=True)


def result(validation, recall=0.5):
    packed = ledger.packed(np.full(20, recall))
    own = {"recall_at_1": {"own": packed}, "map_at_r": {"own": packed}, "numbers": {"auc.own": 0.5}}
    return {"validation": validation, "commit": "0" * 40, "machine": "made up", "seconds": 1.0, **own}


def splits(levels, row="pfe", task="numbers"):
    """References at 0.4 on each split, and a row at these levels, its recall a tenth more."""
    found = {}
    for split, level in enumerate(levels):
        found[trained(task, "cosface", split)] = result(0.4)
        for number in range(2):
            found[trained(task, "cosface", split, "reference", number=number)] = {**result(0.4), "numbers": {}}
        found[trained(task, row, split)] = result(level, level + 0.1)
    return found


def test_a_training_has_failed_below_half_of_the_references_median_on_its_split():
    found = splits([0.4, 0.21, 0.19])
    assert [failed(found, trained("numbers", "pfe", split)) for split in range(3)] == [False, False, True]
    found[trained("numbers", "cosface", 1, "reference", number=0)] = {**result(0.6), "numbers": {}}
    found[trained("numbers", "cosface", 1)] = result(0.5)
    assert line(found, "numbers", 1) == 0.25 and line(found, "numbers", 2) == 0.2
    assert failed(found, trained("numbers", "pfe", 1))
    # A reference that failed itself does not lower the line, and is told by it.
    found[trained("numbers", "cosface", 0)] = result(0.02)
    assert line(found, "numbers", 0) == 0.2 and failed(found, trained("numbers", "cosface", 0))
    found[trained("numbers", "cosface", 0, attempt=1)] = result(0.9)
    assert line(found, "numbers", 0) == 0.2  # nor does its retry move it, nor its other forms
    for form in ("longer", "published"):
        found[trained("numbers", "cosface", 0, form)] = result(0.01)
    assert line(found, "numbers", 0) == 0.2
    assert line(found, "hard", 0) is None and failed(found, trained("hard", "pfe", 0)) is None


def test_a_common_draw_that_failed_is_left_out_and_not_retried():
    found = splits([0.4, 0.4])
    draws = [trained("numbers", "pfe", split, "drawn") for split in range(2)]
    found |= {draws[0]: result(0.19), draws[1]: result(0.21)}
    assert failed(found, draws[0]) and not list(retries(found))
    assert draws[0] not in kept(found) and draws[1] in kept(found)


def test_what_is_measured_on_test_classes_decides_no_failure():
    found = splits([0.4, 0.1])
    for cell in list(found):
        if cell.row == "pfe":
            found[cell] |= {"recall_at_1": {"own": ledger.packed([1 - found[cell]["validation"]])}}
    assert [cell.split for cell in retries(found)] == [1]


def test_a_failure_is_retried_once_and_that_result_stays():
    found = splits([0.4] * 5 + [0.1])
    (again,) = retries(found)
    assert (
        again == trained("numbers", "pfe", 5, attempt=1)
        and again.initialisation != trained("numbers", "pfe", 5).initialisation
    )
    for level in (0.35, 0.05):  # a retry that fails stays too
        done = found | {again: result(level)}
        assert list(retries(done)) == [again]
        assert done[again] is kept(done)[again] and trained("numbers", "pfe", 5) not in kept(done)
        assert again not in kept(done, retried=False) and trained("numbers", "pfe", 5) in kept(done, retried=False)
        assert len(kept(done)) == len(kept(done, retried=False)) == 12
    assert not any(cell.form == "reference" or cell.trial is not None for cell in kept(found))


def test_verdicts_stand_with_and_without_retries():
    found = splits([0.4] * 9 + [0.05])
    for split in range(10):
        found[trained("numbers", "cosface", split)] = result(0.4, 0.45 + 0.001 * split)
    found[trained("numbers", "pfe", 9, attempt=1)] = result(0.4, 0.5)
    claim = Claim(1, "", (Comparison(("pfe",), ("cosface",), ("recall_at_1.own",), (0, float("inf"))),))
    with_retries, without = (decided(kept(found, retried), [claim])[0] for retried in (True, False))
    assert (with_retries.verdict, without.verdict) == ("held", "not distinguishable")
    assert with_retries.comparisons[0].seeds == without.comparisons[0].seeds == 10


def test_the_page_has_both_verdicts():
    found = splits([0.4] * 10)
    for split in range(10):
        numbers = {"severity.own": 0.5 + 0.01 * split}
        found[trained("numbers", "hib", split)] = {**result(0.4), "numbers": numbers}
    bad, again = trained("numbers", "hib", 9), trained("numbers", "hib", 9, attempt=1)
    found |= {bad: {**result(0.1), "numbers": {"severity.own": -9}}, again: found[bad]}
    lines = list(csv.DictReader(io.StringIO(files(read_plan(), found)["claims.csv"])))
    own = next(line for line in lines if (line["claim"], line["task"]) == ("18", "numbers"))
    assert own["difference"] == "hib: numbers.severity.own" and own["splits"] == "10"
    assert [own[name] for name in ("claimed from", "to", "found", "low", "high")] == [
        "0",
        "inf",
        "54.5",
        "52.33",
        "56.67",
    ]
    assert own["verdict of the claim"] == "held" and own["found without retries"] == "-41.4" and float(own["p"]) < 1e-3
    assert "| 18 | HIB's uncertainty follows corruption | numbers held" in markdown(read_plan(), found, 100, 100)


@pytest.mark.parametrize(
    ("by_draws", "said"),
    [([], "held°"), ([0.1] * 6, "held"), ([-0.1] * 6, "turns with the search"), ([-0.1] * 4, "held°")],
)
def test_a_verdict_at_chosen_settings_lies_on_the_same_side_by_common_draws(by_draws, said):
    found = splits([0.4] * 10)
    for split in range(10):
        numbers = {"severity.own": 0.5 + 0.01 * split}
        found[trained("numbers", "hib", split)] = {**result(0.4), "numbers": numbers}
    for split, severity in enumerate(by_draws):
        found[trained("numbers", "hib", split, "drawn")] = {**result(0.4), "numbers": {"severity.own": severity}}
    text = markdown(read_plan(), found, 100, 100)
    (line,) = re.findall(r"^\| 18 \|.*numbers (.*?); garments", text, re.MULTILINE)
    assert line.replace("†", "") == said
    (row,) = (
        x
        for x in csv.DictReader(io.StringIO(files(read_plan(), found)["claims.csv"]))
        if (x["claim"], x["task"]) == ("18", "numbers")
    )
    assert (row["draws"], row["found by draws"]) == (str(len(by_draws)), f"{100 * by_draws[0]:g}" if by_draws else "")


def test_the_page_compares_trainings_by_common_draws_beside_chosen_settings_and_recipes():
    plan, found = read_plan(), splits([0.4] * 6) | splits([0.4] * 6, "pfe_vmf")
    for row, level, by_draw in (("pfe", 0.4, 0.0), ("pfe_vmf", 0.3, 0.2)):
        for draw in range(6):
            found[trained("numbers", row, draw, "drawn")] = result(0.4, 0.4 + by_draw * (draw % 2))
        for trial in range(plan.search.trials):
            for split in range(plan.search.splits):
                found[tried(row, trial, split)] = {**result(level), "numbers": {}}
    pair = next(pair for pair in pairs(plan, kept(found), found) if pair.name == "pfe_vmf less pfe")
    assert (pair.drawn.seeds, pair.drawn.value, pair.chosen.value) == (6, pytest.approx(10), 0)
    assert pair.recipe == pytest.approx(-10) and pair.drawn.high - 10 == pytest.approx(2.571 * 10.95 / 6**0.5, abs=0.01)
    text, written = markdown(plan, found, 100, 100), files(plan, found)
    assert "numbers,pfe_vmf less pfe,6,10,-1.496,21.5,0.07559,6,0,0,0,-10\n" in written["pairs.csv"]
    assert "pairs.svg" in written and "(1 of 42 pairs have some)" in text and "pairs.svg" in text
    claims = csv.DictReader(io.StringIO(written["claims.csv"]))
    own = next(line for line in claims if line["difference"] == "recall_at_1.own: pfe_vmf (drawn) less pfe (drawn)")
    assert own["splits"] == "6" and own["p"] == own["p with search"] and float(own["p"]) < float(own["p with overlap"])
    assert "| 1 | Normal and vMF are on par | too few draws |" in text  # of the other pairs


def test_the_share_that_fails_has_an_exact_interval():
    assert [(rate.name, rate.trained, rate.failed) for rate in rates(splits([0.4] * 20))] == [
        ("cosface", 20, 0),
        ("pfe", 20, 0),
    ]
    none = rates(splits([0.4] * 20))[1]
    assert none.low == 0 and none.high == pytest.approx(1 - 0.05 ** (1 / 20)) == pytest.approx(0.139, abs=5e-4)
    found = splits([0.4] * 17 + [0.1] * 3)
    found[trained("numbers", "pfe", 18, attempt=1)] = result(0.1)
    found[trained("numbers", "pfe", 19, attempt=1)] = result(0.4)
    found[trained("numbers", "pfe", 17)]["numbers"] = {}
    some = rates(found)[1]
    assert (some.failed, some.retried, some.failed_again, some.not_finite) == (3, 2, 1, 1)
    assert (some.low, some.high) == pytest.approx((0.0422, 0.3437), abs=1e-4)  # of the beta distribution


def test_the_page_shows_means_medians_the_worst_seed_and_what_failed():
    found = splits([0.4] * 5 + [0.1])
    retried = found | {trained("numbers", "pfe", 5, attempt=1): result(0.3, 0.4)}
    text, tables = markdown(read_plan(), retried, 100, 101), files(read_plan(), retried)
    assert "numbers,pfe,Recall@1,6,48.5,4.163,50.2,40\n" in tables["retrieval.csv"]
    assert "numbers,pfe,6,1,16.67,0.8512,58.18,0,1,0\n" in tables["failures.csv"]
    assert "1 of 12 first trainings failed, 1 of them pfe" in text
    assert "how other splits of it would come out, no more" in text and f"{101 - 25} of 101 lines" in text
    # Of an error the worst seed is the greatest.
    for split in range(6):
        found[trained("numbers", "pfe", split)]["numbers"]["eer.own"] = 0.1 + 0.01 * split
    assert 'numbers,pfe,"EER, own",6,12.5,1.871,12.5,15\n' in files(read_plan(), found)["verification.csv"]
    order = [text.index(f"## {title}\n") for title in ("What to choose", "Claims", "What was measured", "What failed")]
    assert order == sorted(order)


def test_retries_are_run_after_all_others_and_shown(monkeypatch, capsys, tmp_path):
    results = tmp_path / "results.jsonl"
    bad = trained("numbers", "pfe", 1)
    for cell in cells(QUICK):
        told = result(0.1 if cell == bad else 0.4) if cell.measured else {**result(0.4), "numbers": {}}
        changed = common_changes(cell.row, cell.split, QUICK.search.within) if cell.drawn else {}
        ledger.append(results, cell, {**told, "settings": resolved(QUICK, cell, changed)[2]})
    asked = []

    def carried(plan, task, wanted, path, until):
        asked.append([cell for cell in wanted if cell not in ledger.read(path)])

    monkeypatch.setattr(commands, "_carry_out", carried)
    commands.main(["--quick", "--results-out", str(results)])
    again = trained("numbers", "pfe", 1, attempt=1)
    assert asked == [[], [], [again]]
    total = sum(1 for _ in cells(QUICK)) + 1
    assert f"{total - 1} of {total} trainings" in (tmp_path / "page.md").read_text()
    ledger.append(results, again, {**result(0.4), "settings": resolved(QUICK, again, {})[2]})
    commands.main(["--quick", "--results-out", str(results)])
    assert (
        f"{total} of {total} trainings, 35 of them trials of settings and 1 retries"
        in (tmp_path / "page.md").read_text()
    )
    capsys.readouterr()
    # Rows with published defects are told to have failed by the same references.
    asked.clear()
    results.unlink()
    commands.main(["--quick", "--only", "published", "--results-out", str(results)])
    wanted = {cell for cell in cells(QUICK) if cell.form == "published" and cell.task == "numbers"}
    own = {cell for cell in asked[1] if cell.row == "cosface"}
    assert wanted <= set(asked[1]) and len(own) == 4 and set(asked[1]) == wanted | own
    assert tried("cosface", 0, 0) in asked[0]


def test_a_loss_that_is_not_finite_is_a_failure_without_numbers(monkeypatch):
    def broken(*args, **kwargs):
        raise FloatingPointError

    tiny = replace(QUICK, numbers=replace(QUICK.numbers, classes=(24, 20, 20), images_per_class=(4, 4, 4, 2)))
    monkeypatch.setattr(running, "read_plan", lambda quick: tiny)
    monkeypatch.setattr(running, "fit", broken)
    cell = trained("numbers", "arcface", 0)
    record = running.run(True, cell, {})
    assert record["validation"] == 0 and record["numbers"] == {} == record["recall_at_1"]
    found = splits([0.4]) | {cell: record}
    assert [again.name for again in retries(found)] == ["arcface"]
    assert len(kept(found)) == 3


def test_weights_are_of_the_initialisation_and_images_of_the_split(monkeypatch):
    tiny = replace(QUICK, numbers=replace(QUICK.numbers, classes=(24, 20, 20), images_per_class=(4, 4, 4, 2)))
    monkeypatch.setattr(running, "read_plan", lambda quick: tiny)
    seen = []

    def watched(training, inputs, labels, options, name):
        seen.append((inputs.sum().item(), next(training.model.parameters()).sum().item(), options.seed))

    monkeypatch.setattr(running, "fit", watched)
    first, again, other = (trained("numbers", "arcface", *of) for of in ((0,), (0, "", 1), (1,)))
    reference = replace(other, form="reference", initialisation=first.initialisation)
    for cell in (first, again, reference):
        record = running.run(True, cell, {})
        assert ("numbers" in record) == cell.measured
    assert seen[0][0] == seen[1][0] != seen[2][0]
    assert seen[0][1] == seen[2][1] != seen[1][1]
    assert [of[2] for of in seen] == [first.initialisation, again.initialisation, first.initialisation]
