"""`pe.PromiseMonitor` and `peaccel check-threshold`: alarms at their level, power, merged counts, files."""

import csv
import itertools
import json
import math
import re
from datetime import date, timedelta
from pathlib import Path

import numpy as np
import pytest
from command import run

import peaccel as pe
from peaccel import io
from peaccel.evaluation import evidence
from peaccel.evaluation.evidence import FEWER, MORE, log_evidence, upper_bound

ALPHA, DELTA = 0.02, 0.05
ACCEPT = pe.Selection(threshold=0.5, alpha=ALPHA, delta=DELTA, number=400, accepted=300, wrong=1)
BEGUN = date(2026, 1, 1)


def on(day):
    return BEGUN + timedelta(day)


def monitor(accept=ACCEPT, reference=None, **how):
    return pe.PromiseMonitor(accept, reference, begun=BEGUN, **how)


def watched(right, per_day=20):
    """A monitor of audits in their order."""
    m = monitor()
    for day, some in enumerate(np.array_split(right, range(per_day, len(right), per_day))):
        m.audit(some, on(day))
    return m


# -- evidence ----------------------------------------------------------------------------------------------------------

DAYS = np.array([0, 1, 2, 5, 9, 30, 31, 400])
EVERY = np.array([*itertools.product([0, 1], repeat=len(DAYS))])


def expected(share, factors, truth):
    """Expectation of the evidence after eight cases, over all of their courses."""
    found = np.exp(log_evidence(DAYS, np.ones(EVERY.shape), EVERY, share, factors))
    return (truth**EVERY * (1 - truth) ** (1 - EVERY)).prod(1) @ found


@pytest.mark.parametrize("share", [0.02, 0.5])
def test_evidence_does_not_grow_in_expectation_while_the_promise_holds(share):
    """Exactly: 1 at the share itself to rounding, and less on the side that is allowed."""
    for factors, allowed in ((MORE, share / 2), (FEWER, 1.5 * share)):
        assert expected(share, factors, share) == pytest.approx(np.ones(len(DAYS)), rel=1e-12)
        assert (np.diff(expected(share, factors, allowed)) < 0).all()
        assert (np.diff(expected(share, factors, 3 * share - 2 * allowed)) > 0).all()


@pytest.mark.parametrize("later", [lambda day: 1.0 if day >= 0 else 2.0, lambda day: 1.0], ids=["twice", "none"])
def test_a_mistake_in_the_weights_shows_in_the_expectation(later, monkeypatch):
    right = evidence.later
    monkeypatch.setattr(evidence, "later", later if later(-1) == 2 else lambda day: right(day) if day < 5 else right(0))
    with np.errstate(all="ignore"):
        assert not np.allclose(expected(0.02, MORE, 0.02), 1, rtol=1e-6)


def test_evidence_is_the_mean_over_starts_and_factors():
    rng = np.random.default_rng(0)
    days = np.array([0, 3, 4, 20])
    cases, events = np.array([10, 4, 30, 7]), rng.integers(0, 4, 4)
    for t in range(4):
        total = 1.0
        for start in range(21):
            weight = 0.5 if start == 0 else 0.5 / math.log2(start + 1) - 0.5 / math.log2(start + 2)
            for f in MORE:
                s = (days >= start) & (np.arange(4) <= t)
                bet = f ** events[s].sum() / (1 + ALPHA * (f - 1)) ** cases[s].sum()
                total += weight / 5 * (bet - 1)  # what begins later is 1 so far
        assert np.exp(log_evidence(days, cases, events, ALPHA, MORE)[t]) == pytest.approx(total, rel=1e-12)


def first_alarms(risks, draws, seed=0):
    """The number of the audit, one a day, at which each draw has its alarm; inf where it has none."""
    wrong = np.random.default_rng(seed).random((draws, len(risks))) < risks
    found = log_evidence(np.arange(len(risks)), np.ones(wrong.shape), wrong, ALPHA, MORE) >= -math.log(DELTA)
    return np.where(found.any(1), found.argmax(1) + 1.0, np.inf)


@pytest.mark.parametrize("draws", [1000, pytest.param(10_000, marks=pytest.mark.slow)])
def test_false_alarms_keep_their_level(draws):
    share = np.isfinite(first_alarms(np.full(2000, ALPHA), draws)).mean()
    assert 0.3 * DELTA < share <= DELTA + 3.1 * (DELTA * (1 - DELTA) / draws) ** 0.5


@pytest.mark.parametrize(
    ("risks", "median"),
    [
        (np.full(1000, 0.06), 140),
        (np.full(300, 0.1), 60),
        (np.r_[np.full(1000, 0.014), np.full(1500, 0.06)], 1450),  # abrupt, late
        (np.r_[np.full(500, 0.014), np.linspace(0.014, 0.1, 1500)], 1500),  # slow
    ],
)
def test_a_broken_promise_is_seen(risks, median):
    """Half of the draws have their alarm by then; measured 119, 40, 1387 and 1369."""
    assert np.median(first_alarms(risks, 400)) < median


def test_the_upper_bound_is_never_below_the_mean_risk():
    rng = np.random.default_rng(0)
    broken = 0
    for _ in range(400):
        risks = rng.choice([0.0, 0.02, 0.3], 400, p=[0.3, 0.5, 0.2])  # which change with each case
        wrong = (rng.random(400) < risks).cumsum()
        cases = np.arange(1, 401)
        broken += (upper_bound(cases, wrong, 0.2) < risks.cumsum() / cases).any()
    assert broken / 400 <= 0.2 + 3.1 * (0.2 * 0.8 / 400) ** 0.5
    none, some, all_wrong = upper_bound(np.array([300, 300, 300]), np.array([0, 6, 300]), DELTA)
    assert 1 - DELTA ** (1 / 300) < none < 0.015 and 0.039 < some < 0.055 and all_wrong == 1
    value = np.mean([f**6 / (1 - some * (1 - f)) ** 300 for f in evidence.BOUND])
    assert value == pytest.approx(1 / DELTA, rel=1e-9)


# -- the monitor -------------------------------------------------------------------------------------------------------


def test_the_alarm_is_at_one_over_delta():
    right = np.random.default_rng(3).random(600) > np.where(np.arange(600) < 200, 0.01, 0.08)
    state = watched(right).state()
    first = next(day for day in state.days if day.evidence >= math.log(1 / DELTA))
    assert state.alarm == first.day and f"ALARM on {first.day}" in str(state)
    assert (state.days[-1].audits, state.days[-1].wrong) == (600, (~right).sum())
    surer, m = monitor(delta=1e-6), monitor()
    for day, some in enumerate(np.array_split(right, 30)):
        surer.audit(some, on(day))
    assert surer.state().alarm > state.alarm
    assert m.audits_per_week(0.06, weeks=8) < m.audits_per_week(0.06) < m.audits_per_week(0.06, power=0.99)
    calm = watched(np.ones(300, bool)).state()
    assert calm.alarm is None and "No alarm: at most 2 % of the accepted answers are wrong (300 audits" in str(calm)


def test_processes_merge_to_what_one_would_have():
    rng = np.random.default_rng(0)
    reference = {"score": rng.normal(size=300), "norm": rng.random(300)}
    one, *parts = (monitor(reference=reference) for _ in range(4))
    for day in range(30):
        for part in (parts[i] for i in rng.integers(0, 3, 4)):
            right, x = rng.random(15) > 0.05, {"norm": rng.random(9), "score": rng.normal(size=9)}
            for m in (one, part):
                m.audit(right, on(day))
                m.traffic(x, on(day))
    for part in parts[1:]:
        parts[0].merge(part)
    assert parts[0].state() == one.state() and one.state().alarm
    for name, m in {"one": one, "merged": parts[0]}.items():
        m.save(f"{name}.json")
    assert Path("one.json").read_bytes() == Path("merged.json").read_bytes()
    assert pe.PromiseMonitor.load("one.json").state() == one.state()


def test_audits_per_week_suffice_and_fewer_do_not():
    rng, m = np.random.default_rng(5), monitor()
    count = m.audits_per_week(0.06, weeks=4, power=0.8)

    def power(count):
        wrong = rng.binomial(count, 0.06, (1000, 4))
        found = log_evidence(7 * np.arange(4), np.full(wrong.shape, count), wrong, ALPHA, MORE)
        return (found >= -math.log(DELTA)).any(1).mean()

    # Of 400 and of 1,000 draws, each with a standard deviation below 0.02.
    assert power(count) > 0.72 and power(count * 2 // 3) < 0.72
    m.audit([True], on(700))
    assert m.audits_per_week(0.06, weeks=4, power=0.8) > count  # of days that have passed


LIMIT = pe.FalseMatchLimit(threshold=0.5, alpha=0.01, delta=0.05, number=1000, allowed=4)


def test_every_promise_is_named():
    for accept, words in (
        (ACCEPT, "the accepted answers are wrong"),
        (LIMIT, "searches without a mate return anything"),
        (pe.Selection(**{**vars(ACCEPT), "of": "pairs"}), "the accepted pairs do not match"),
        (pe.FalseMatchLimit(**{**vars(LIMIT), "of": "pairs"}), "the pairs that do not match are accepted"),
    ):
        assert words in str(monitor(accept).state())


# -- traffic -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rounded", [0, 2], ids=["", "ties"])
@pytest.mark.parametrize("runs", [60, pytest.param(1000, marks=pytest.mark.slow)])
def test_traffic_like_the_reference_raises_no_alarm(runs, rounded):
    rng, alarms = np.random.default_rng(0), 0

    def draw(n):
        x = rng.normal(size=n)
        return {"score": np.round(x * rounded) / rounded if rounded else x, "margin": rng.exponential(size=n)}

    for _ in range(runs):
        m = monitor(reference=draw(150), delta=0.2)
        for day in range(10):
            m.traffic(draw(300), on(day))
        alarms += bool(m.state().moved)
    assert alarms / runs <= 0.2 + 3.1 * (0.2 * 0.8 / runs) ** 0.5


@pytest.mark.parametrize("shift", [-0.5, 0.5])
def test_traffic_that_moves_is_seen_by_name(shift):
    rng = np.random.default_rng(0)
    m = monitor(reference={"score": rng.normal(size=2000), "norm": rng.random(2000)})
    for day in range(20):
        m.traffic({"score": rng.normal(size=500) + shift * (day >= 10), "norm": rng.random(500)}, on(day))
    (moved,) = m.state().moved
    assert moved.number == "score" and str(on(10)) <= moved.day <= str(on(11))
    assert (moved.seen > moved.share + 0.1) == (shift < 0) and "ALARM: traffic is not that" in str(m.state())


def test_a_ranking_is_watched_by_its_score_and_margin_and_the_share_that_is_answered():
    rng = np.random.default_rng(0)
    gallery = pe.Normal(rng.normal(size=(50, 8)), np.ones(50))
    found = [pe.search(pe.Normal(rng.normal(size=(n, 8)), np.ones(n)), gallery, 2, "cosine") for n in (500, 80)]
    accept = pe.Selection(**{**vars(ACCEPT), "score": "cosine", "threshold": 0.71234})
    m = monitor(accept, found[0])
    assert [*m.reference.cuts] == ["score", "margin"] and len(m.reference.cuts["margin"]) == 3
    assert m.reference.cuts["score"][0.71234] == (found[0].scores[:, 0].astype(float) < 0.71234).mean()
    m.traffic(found[1])
    assert m.state().traffic == 80
    with pytest.raises(ValueError, match="traffic: the threshold is of cosine, and scores are of mls"):
        m.traffic(pe.search(gallery, gallery, 2, "mls"))
    with pytest.raises(ValueError, match="best scores of found are NaN or -inf, first in row 0; expected the answers"):
        m.traffic(pe.Ranking(np.array([[-np.inf, -np.inf]]), np.array([[-1, -1]])))


# -- errors and files --------------------------------------------------------------------------------------------------

X = np.arange(9.0)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m: monitor(pe.Threshold(threshold=0.5)), "PromiseMonitor: accept is Threshold, which promises nothing"),
        (lambda m: monitor(pe.Selection(**{**vars(ACCEPT), "threshold": np.inf})), "PromiseMonitor: accept accepts no"),
        (lambda m: monitor(delta=0.0), "PromiseMonitor: delta is 0.0, expected a number between 0 and 1"),
        (
            lambda m: pe.PromiseMonitor(ACCEPT, begun="today"),
            "PromiseMonitor: begun is 'today', expected a day",
        ),
        (lambda m: monitor(reference={}), "PromiseMonitor: reference has the keys [], expected names of numbers"),
        (
            lambda m: monitor(reference={"a": X, "b": X[:3]}),
            "PromiseMonitor: reference has numbers of different",
        ),
        (lambda m: m.audit([0.5]), "audit: right has 0.5 in row 0, expected only 0 and 1"),
        (lambda m: m.audit([True], "2025-12-31"), "audit: day is 2025-12-31, expected 2026-01-01, the first one, or l"),
        (lambda m: m.audit([True], 3), "audit: day is 3, expected a day"),
        (lambda m: [m.audit([True], source="a") for _ in range(2)], "audit: source is 'a', which is counted already"),
        (lambda m: m.traffic({"norm": X}), "traffic: found has the numbers norm, expected score like the reference"),
        (lambda m: m.traffic(X * np.nan), "traffic: 9 of the 9 numbers of found are NaN"),
        (lambda m: monitor().traffic(X), "traffic: the monitor has no reference"),
        (lambda m: m.merge(monitor(delta=0.1)), "merge: the other monitor has another delta: '0.1', expected '0.05'"),
        (lambda m: m.merge(monitor()), "merge: the other monitor has another reference"),
        (lambda m: m.audits_per_week(0.02), "audits_per_week: risk is 0.02, expected more than the promised 0.02"),
        (lambda m: m.audits_per_week(0.1, weeks=0), "audits_per_week: weeks is 0, expected 1"),
    ],
)
def test_wrong_arguments_are_refused_by_name(call, message):
    with pytest.raises((TypeError, ValueError), match="^" + re.escape(message)) as caught:
        call(monitor(reference=X))
    assert "\n" not in str(caught.value)


def test_what_is_counted_in_two_monitors_is_refused():
    one, two = monitor(), monitor()
    for m in (one, two):
        m.audit([True], BEGUN, source="a.csv")
    with pytest.raises(ValueError, match=r"merge: a\.csv is counted in both"):
        one.merge(two)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"peaccel": "prior"}, "is no monitor"),
        ({"version": 2}, "has version 2 and the keys"),
        ({"more": 1}, "has version 1 and the keys"),
        ({"accept": {}}, "is not a fit"),
        ({"accept": {"peaccel": "shift", "version": 1, "value": 1.0}}, "PromiseMonitor: accept is float"),
        ({"delta": "x"}, "PromiseMonitor: delta is 'x'"),
        ({"begun": 3}, "PromiseMonitor: begun is 3"),
        ({"reference": [1]}, "reference is [1], expected null or a count"),
        ({"reference": {"count": 3, "numbers": {"score": [[1.0, 2.0]]}}}, "reference is {"),
        ({"audits": {"2026-01-01": [3]}}, "audits of 2026-01-01 is [3], expected 2 counts"),
        ({"audits": {"2026-01-01": [3, 4]}}, "audits of 2026-01-01 is [3, 4], expected 2 counts"),
        ({"audits": {"2026-01-01": [3, -1]}}, "audits of 2026-01-01 is [3, -1]"),
        ({"audits": {"2026-01-01": [3, 1.5]}}, "audits of 2026-01-01 is [3, 1.5]"),
        ({"audits": {"2025-01-01": [3, 1]}}, "audits of 2025-01-01 is [3, 1]"),
        ({"audits": {"soon": [3, 1]}}, "a day of audits is 'soon'"),
        ({"traffic": {"2026-01-01": [3, 1]}}, "traffic of 2026-01-01 is [3, 1], expected 5 counts"),
        ({"traffic": []}, "traffic is [], expected counts by day"),
        ({"sources": [1]}, "sources is [1], expected names"),
    ],
)
def test_damaged_files_are_refused_in_one_line(change, message):
    m = monitor(reference=X)
    m.audit([True, False], BEGUN)
    m.traffic(X, BEGUN)
    m.save("m.json")
    assert pe.PromiseMonitor.load("m.json").state() == m.state()
    Path("m.json").write_text(json.dumps({**json.loads(Path("m.json").read_text()), **change}))
    with pytest.raises(ValueError, match="^" + re.escape(f"m.json: {message}")) as caught:
        pe.PromiseMonitor.load("m.json")
    assert "\n" not in str(caught.value)
    Path("m.json").write_text("{")
    with pytest.raises(ValueError, match=r"^m\.json: cannot be read as JSON"):
        pe.PromiseMonitor.load("m.json")


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


# -- the command -------------------------------------------------------------------------------------------------------

LINE = "check-threshold --accept accept.json --out watch"


@pytest.fixture
def files():
    rng = np.random.default_rng(0)
    for name, n, shift in (("reference", 2000, 0), ("monday", 1000, 0), ("tuesday", 3000, 0.5)):
        scores = np.sort(rng.normal(size=(n, 2)) - shift)[:, ::-1]
        io.write_ranking(f"{name}.csv", (scores, rng.integers(0, 40, (n, 2))))
    io.write_fit("accept.json", ACCEPT)


def fill(path, word):
    lines = Path(path).read_text().splitlines()
    Path(path).write_text("\n".join([lines[0], *(line + word for line in lines[1:])]) + "\n")


def test_ids_with_signs_of_their_own_are_quoted_in_audits(files, capsys):
    ids = np.array([["a\rb", "c"], ['d,"e', "f"]] * 20)
    io.write_ranking("odd.npz", (np.tile([2.0, 1.0], (40, 1)), ids))
    code, _, err = run(capsys, f"{LINE} --reference reference.csv --ranking odd.npz --audits 40 --day 2026-01-05")
    assert code == 0, err
    with Path("watch/audits-2026-01-05.csv").open(newline="") as file:
        assert [line["item"] for line in csv.DictReader(file)] == ids[:, 0].tolist()


def test_a_threshold_is_watched_by_drawn_audits_and_traffic(files, capsys):
    first = "--reference reference.csv --ranking monday.csv --audits 40 --day 2026-01-05"
    code, out, err = run(capsys, f"{LINE} {first}")
    assert code == 0, err
    table = "watch/audits-2026-01-05.csv"
    assert "81 audits a week show a risk of 6 % within 4 weeks" in out and f"--audited {table}" in out
    lines = [line.split(",") for line in Path(table).read_text().splitlines()]
    assert lines[0] == ["query", "item", "score", "right"] and len({line[0] for line in lines[1:]}) == 40
    assert all(float(line[2]) >= 0.5 and line[3] == "" for line in lines[1:])
    fill(table, "n")
    code, out, err = run(capsys, f"{LINE} --audited {table} --ranking tuesday.csv --day 2026-01-06 --strict")
    assert code == 1, err
    assert "ALARM on 2026-01-06" in out and "score: " in out and "margin: " not in out
    for command in ("check-answers --ranking tuesday.csv --wrong 2% --out watch-anew", "choose-threshold --queries"):
        assert f"peaccel {command}" in out
    page = Path("watch/report.html").read_text()
    assert page.count("data:image/png") == 2 and "not as in the reference" in page
    state = pe.PromiseMonitor.load("watch/monitor.json").state()
    assert (state.alarm, state.days[-1].wrong, state.traffic) == ("2026-01-06", 40, 4000)
    assert run(capsys, f"{LINE} --audited {table}")[2].startswith("peaccel check-threshold: audit: source is 'audits-2")


def test_counts_of_other_processes_are_added_to_what_is_said_alone(files, capsys):
    for name, word in (("one", "y"), ("two", "n")):
        Path(f"{name}.csv").write_text("query,right\n" + "".join(f"{name}{i},{word}\n" for i in range(30)))
        line = f"check-threshold --accept accept.json --audited {name}.csv --day 2026-01-05"
        assert run(capsys, f"{line} --out {name}")[0] == 0
    for _ in range(2):  # to say it twice counts nothing twice
        code, out, _ = run(capsys, "check-threshold --accept accept.json --out one --merge two/monitor.json --strict")
        assert code == 1 and "(60 audits since 2026-01-05, 30 of them against it" in out
    assert pe.PromiseMonitor.load("one/monitor.json").state().days[-1].audits == 30


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("--audits 3", "--audits is 3, expected a number >= 0 of answers of --ranking"),
        ("--audits 999 --ranking monday.csv", "--audits is 999, and monday.csv has "),
        ("--audited empty.csv", "empty.csv: column right is empty in 1 of 2 lines, expected y or n in all"),
        ("--audited other.csv", "other.csv: has the columns a, expected right"),
        ("--audited perhaps.csv", "audit: right has perhaps in row 1"),
        ("--certainty 90%", "watch/monitor.json: was begun with another certainty"),
        ("--accept limit.json", "watch/monitor.json: was begun with another accept"),
        ("--accept plain.json", "plain.json: is a threshold that promises nothing"),
        ("--merge watch/monitor.json", "watch/monitor.json: is also an input"),
        ("--day never", "audit: day is 'never'"),
        ("--audits 9 --ranking monday.csv --day 2026-01-05", "watch/audits-2026-01-05.csv: is there already, perhaps"),
    ],
)
def test_the_command_refuses_in_one_line(files, capsys, change, message):
    Path("empty.csv").write_text('right\ny\n""\n')
    Path("other.csv").write_text("a\n1\n")
    Path("perhaps.csv").write_text("right\nyes\nperhaps\n")
    Path("fine.csv").write_text("right\nyes\n")
    io.write_fit("limit.json", LIMIT)
    io.write_fit("plain.json", pe.Threshold(threshold=0.5))
    assert run(capsys, f"{LINE} --ranking monday.csv --audits 5 --day 2026-01-05")[0] == 0
    fill("watch/audits-2026-01-05.csv", "y")
    before = Path("watch/monitor.json").read_bytes()
    code, out, err = run(capsys, f"{LINE} {change}{' --audited fine.csv' if 'never' in change else ''}")
    assert (code, out) == (2, "") and err.startswith(f"peaccel check-threshold: {message}"), err
    assert err.count("\n") == 1 and Path("watch/monitor.json").read_bytes() == before
