"""The ledger read by other code: cells of the page's tables and verdicts, by numpy and the standard library.

Of `reproduction` come the names of measures alone. Nothing that computes is shared, so that a fault of one of the two
shows. Settings that the plan had before are known by their being followed by a later line of the same cell.
"""

import base64
import csv
import json
import tomllib
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest

from reproduction.sections import SECTIONS, file_of

ROOT = Path(__file__).parents[2]
TABLES = ROOT / "docs" / "reproduction"
LEVEL = 0.05
OVERLAP = {
    "numbers": 0.28 / 0.6,
    "garments": 0.28 / 0.6,
    "hib": 30 / 60,
}  # test for each of training: scans, or classes
COMMON = 10  # splits that all rows have
NODES, WEIGHTS = np.polynomial.legendre.leggauss(200)

pytestmark = pytest.mark.slow  # some seconds, for what a change of the ledger or of what decides alone can move


def ledger():
    """The latest line of each training."""
    found = {}
    for line in (ROOT / "reproduction" / "results.jsonl").read_text().splitlines():
        x = json.loads(line)
        found[tuple(x[key] for key in ("task", "row", "form", "trial", "split", "initialisation", "attempt"))] = x
    return found.values()


def finals(lines):
    """Records that numbers are of, by task and name and then by split: a retry in place of what failed."""
    reference = defaultdict(list)
    for x in lines:
        if x["row"] == "cosface" and x["form"] in ("", "reference") and not x["trial"] and not x["attempt"]:
            reference[x["task"], x["split"]].append(x["validation"])
    found = defaultdict(dict)
    for x in sorted(lines, key=lambda x: x["attempt"]):
        if x["trial"] is not None or x["form"] == "reference":
            continue
        drawn = x["form"].startswith("drawn")
        if drawn and x["validation"] < np.median(reference[x["task"], x["split"]]) / 2:
            continue
        name = f"{x['row']} ({x['form']})" if x["form"] else x["row"]
        found[x["task"], name][x["split"]] = x
    return found


def number(record, measure):
    """The mean of a measure in points; None where it is not there."""
    part, _, name = measure.partition(".")
    x = record[part].get(name)
    if isinstance(x, str):
        return float(np.mean(np.frombuffer(base64.b64decode(x), np.uint8) / 2.55))
    return None if x is None else 100 * x


def by_split(found, task, row, measure):
    """Points by split."""
    points = {split: number(x, measure) for split, x in found[task, row].items()}
    return {split: x for split, x in points.items() if x is not None}


def gaps(found, task, comparison):
    """Differences of means over rows, of the splits that all of them have."""
    of = comparison["of"]
    sides = [[by_split(found, task, row, of[0]) for row in comparison["left"]]]
    sides.append([by_split(found, task, row, of[-1]) for row in comparison["right"]])
    splits = sorted(set.intersection(*(set(x) for side in sides for x in side)))
    means = [[np.mean([x[split] for x in side]) if side else 0.0 for split in splits] for side in sides]
    return np.array(means[0]) - np.array(means[1])


def tail(t, df):
    """The share of Student's t above t, by Gauss's quadrature of cos^(df - 1) of the angle."""

    def area(low, high):
        angle = (low + high) / 2 + (high - low) / 2 * NODES
        return (high - low) / 2 * float(WEIGHTS @ np.cos(angle) ** (df - 1))

    # In two parts, since the mass of many degrees of freedom lies near 0.
    whole, from_0 = 2 * area(0, np.pi / 2), np.arctan(abs(t) / np.sqrt(df))
    above = area(from_0, np.pi / 2) / whole
    return above if t >= 0 else 1 - above


def quantile(df):
    """Above which 2.5 % of Student's t lie, by bisection."""
    low, high = 0.0, 1e3
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if tail(middle, df) > LEVEL / 2 else (low, middle)
    return low


def judged(x, between, overlap=0.0):
    """Mean, interval, and two-sided p of lying inside a range and beyond it."""
    n, mean = len(x), x.mean()
    error = np.sqrt(x.var(ddof=1) * (1 / n + overlap))
    inward = [side * (mean - bound) / error for bound, side in zip(between, (1, -1), strict=True) if np.isfinite(bound)]
    inside = max(2 * tail(t, n - 1) for t in inward)
    beyond = min(2 * tail(-t, n - 1) for t in inward)
    reach = quantile(n - 1) * error
    return mean, mean - reach, mean + reach, min(1, inside), min(1, beyond)


def verdicts(found, claims, task, overlap=0.0):
    """Verdict and corrected p of each claim's number; None where splits are too few."""
    p = {}
    for claim in claims:
        x = [gaps(found, task, comparison) for comparison in claim["comparisons"]]
        p[claim["number"]] = None
        if min(map(len, x)) >= 5:
            both = [judged(gap, c["between"], overlap)[3:] for gap, c in zip(x, claim["comparisons"], strict=True)]
            n, enough = len(x), claim.get("enough", len(x))
            inside, beyond = (sorted(side) for side in zip(*both, strict=True))
            holds = min(1, (n - enough + 1) * inside[enough - 1])
            p[claim["number"]] = holds, min(1, enough * beyond[n - enough])
    said, largest = {}, 0.0
    order = sorted(p, key=lambda claim: 1 if p[claim] is None else min(p[claim]))
    for rank, claim in enumerate(order):
        if p[claim] is None:
            said[claim] = "too few seeds", None
            continue
        largest = max(largest, min(1, min(p[claim]) * (len(order) - rank)))
        word = "held" if p[claim][0] <= p[claim][1] else "reversed"
        said[claim] = word if largest < LEVEL else "not distinguishable", largest
    return said


def table(name):
    return list(csv.DictReader((TABLES / name).read_text().splitlines()))


def same(written, x):
    """As written with four digits; below 1e-15 one is lost to how the tail of t is made, and a mean of 0 to sums."""
    return float(written) == pytest.approx(x, rel=1e-3, abs=2e-3 if abs(x) > 0.1 else 1e-14)


@pytest.fixture(scope="module")
def found():
    return finals(ledger())


@pytest.mark.parametrize("title", SECTIONS)
def test_cells_of_a_table_come_out_the_same(found, title):
    measures, lines = SECTIONS[title].measures, table(file_of(title, "csv"))
    for line in lines:
        measure = measures[line["measure"]]
        points = by_split(found, line["task"], line["row"], measure)
        x = np.array([value for split, value in points.items() if split < COMMON])
        lower = measure.removeprefix("numbers.").startswith(("eer", "ece", "brier", "class_ece", "self_mismatch.clean"))
        assert int(line["splits"]) == len(x), line
        for key, value in {"mean": x.mean(), "median": np.median(x), "worst": x.max() if lower else x.min()}.items():
            assert same(line[key], value), line
        assert len(x) < 2 or same(line["deviation"], x.std(ddof=1)), line
    assert len(lines) > 10


@pytest.mark.parametrize("task", OVERLAP)
def test_claims_are_decided_the_same(found, task):
    claims = tomllib.loads((ROOT / "reproduction" / "claims.toml").read_text())["claim"]
    claims = [claim for claim in claims if task in claim.get("tasks", ["numbers", "garments"])]
    lines, decided = [line for line in table("claims.csv") if line["task"] == task], verdicts(found, claims, task)
    comparisons = [(claim, comparison) for claim in claims for comparison in claim["comparisons"]]
    for line, (claim, comparison) in zip(lines, comparisons, strict=True):
        x = gaps(found, task, comparison)
        assert int(line["splits"]) == len(x), line
        if len(x) > 1:
            mean, low, high, inside, beyond = judged(x, comparison["between"])
            overlapping = judged(x, comparison["between"], OVERLAP[task])[3:]
            words = {
                "found": mean,
                "low": low,
                "high": high,
                "p": min(inside, beyond),
                "p with overlap": min(overlapping),
            }
            assert all(same(line[key], value) for key, value in words.items()), line
            assert same(line["p with overlap"], min(overlapping)), line
        rows = {side: [x if "drawn" in x else f"{x} (drawn)" for x in comparison[side]] for side in ("left", "right")}
        by_draws = gaps(found, task, {**comparison, **rows})
        assert int(line["draws"]) == len(by_draws), line
        assert not len(by_draws) or same(line["found by draws"], by_draws.mean()), line
        word, p = decided[claim["number"]]
        assert line["verdict of the claim"] == claim.get("instead", word), line
        assert p is None or same(line["p of the claim, by Holm"], p), line
