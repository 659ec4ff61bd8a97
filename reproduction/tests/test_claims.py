"""Decisions on claims: Student's t over seeds, all or any of a claim's comparisons, and Holm over claims."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from reproduction import ledger
from reproduction.claims import Claim, Comparison, decided, differences, read_claims
from reproduction.plan import WHOLE, read_plan, trained, tried
from reproduction.search import called_different, called_different_by_draws, overlap, trials, variance_of_search
from reproduction.student import LEVEL, distance_seen, holm, seeds_needed, where_mean

INF = float("inf")
PAGE = (Path(__file__).parents[2] / "docs" / "claims.md").read_text()


def records(splits=10, **recall):
    """Results of splits of 200 classes, recall by row."""
    rng, found = np.random.default_rng(0), {}
    for split in range(splits):
        hard = rng.normal(0, 0.1, 200)
        for row, level in recall.items():
            right = rng.binomial(5, np.clip(level + hard, 0, 1)) / 5
            record = {"recall_at_1": {"own": ledger.packed(right)}, "map_at_r": {}, "numbers": {"auc.own": level}}
            found[trained("numbers", row, split)] = record
    return found


def comparison(left, right, between, of=("recall_at_1.own",)):
    return Comparison((left,), (right,) if right else (), of, between)


def claim(*comparisons, number=1, enough=None):
    return Claim(number, "", comparisons, enough=enough)


def test_differences_that_are_there_are_found():
    found = records(a=0.6, b=0.5, c=0.5)
    expected = {
        ("a", "b", (0, INF)): "held",
        ("b", "a", (0, INF)): "reversed",
        ("b", "c", (0, INF)): "not distinguishable",
        ("b", "c", (-3, 3)): "held",
        ("a", "b", (-3, 3)): "reversed",
        ("a", None, (50, INF)): "held",
        ("a", "d", (0, INF)): "too few seeds",
    }
    decisions = decided(found, [claim(comparison(*key)) for key in expected])
    assert [decision.verdict for decision in decisions] == list(expected.values())
    where = decisions[0].comparisons[0]
    assert where.low < 10 < where.high and where.seeds == 10
    mixed = comparison("a", "b", (0, INF), ("recall_at_1.own", "numbers.auc.own"))
    assert decided(found, [claim(mixed)])[0].comparisons[0].seeds == 10


@pytest.mark.parametrize(("splits", "verdict"), [(1, "too few seeds"), (4, "too few seeds"), (5, "held")])
def test_few_seeds_decide_nothing(splits, verdict):
    decision = decided(records(splits, a=0.9, b=0.1), [claim(comparison("a", "b", (0, 100)))])[0]
    assert (decision.comparisons[0].seeds, decision.verdict) == (splits, verdict)


@pytest.mark.parametrize("bound", [-1.0, 0.0, 2.0])
def test_one_bound_is_a_two_sided_t_test(bound):
    x = np.random.default_rng(3).normal(0.7, 1.5, 12)
    test = stats.ttest_1samp(x, bound)
    interval = test.confidence_interval(0.95)
    for between, above in (((bound, INF), True), ((-INF, bound), False)):
        found = where_mean(x.tolist(), between)
        assert (found.value, found.low, found.high) == pytest.approx((x.mean(), *interval), rel=1e-9)
        side = found.inside if above == (x.mean() > bound) else found.beyond
        assert side == pytest.approx(test.pvalue, rel=1e-9)


def test_two_bounds_are_two_one_sided_tests_of_which_the_interval_decides():
    x = np.random.default_rng(4).normal(0.3, 1.5, 15)
    found = where_mean(x.tolist(), (-1, 2))
    below, above = stats.ttest_1samp(x, -1, alternative="greater"), stats.ttest_1samp(x, 2, alternative="less")
    assert found.inside == pytest.approx(2 * max(below.pvalue, above.pvalue), rel=1e-9)
    for between in ((found.low - 1e-9, found.high + 1e-9), (found.low + 1e-9, found.high + 1)):
        where = where_mean(x.tolist(), between)
        assert (where.inside < LEVEL) == (between[0] < found.low)
    out = [stats.ttest_1samp(x, bound, alternative=side).pvalue for bound, side in ((-1, "less"), (2, "greater"))]
    assert found.beyond == pytest.approx(min(1, 2 * min(out)), rel=1e-9)


def test_seeds_that_do_not_differ_decide_at_once():
    assert where_mean([1.0] * 5, (0, INF)).inside == 0 and where_mean([0.0] * 5, (0, INF)).inside == 1
    assert where_mean([0.0] * 5, (-1, 1)).inside == 0 and where_mean([2.0] * 5, (-1, 1)).beyond == 0
    assert np.isnan(where_mean([], (0, INF)).value) and np.isnan(where_mean([1.0], (0, INF)).inside)


def test_all_of_a_claims_comparisons_hold_it_and_any_reverses_it():
    found = records(a=0.53, b=0.5, c=0.46, d=0.6)
    parts = [comparison("a", other, (0, INF)) for other in ("b", "c", "d")]
    each = [where_mean(differences(found, part), part.between) for part in parts]
    every = decided(found, [claim(*parts)])[0]
    assert every.inside == max(where.inside for where in each)
    assert every.beyond == 3 * min(where.beyond for where in each) and every.verdict == "reversed"
    one = decided(found, [claim(*parts, enough=1)])[0]
    assert one.inside == 3 * min(where.inside for where in each) and one.verdict == "held"
    assert one.beyond == max(where.beyond for where in each)
    most = decided(found, [claim(*parts, enough=2)])[0]
    assert most.inside == 2 * sorted(where.inside for where in each)[1] and most.verdict == "held"
    assert most.beyond == min(1, 2 * sorted(where.beyond for where in each)[1])
    assert decided(found, [claim(*parts[:2])])[0].verdict == "held"


def test_holm_is_over_claims_and_not_over_comparisons():
    found = records(a=0.53, b=0.5, c=0.46)
    parts = [comparison("a", "b", (0, INF)), comparison("a", "c", (0, INF))]
    alone = decided(found, [claim(*parts)])[0]
    assert alone.p == min(alone.inside, alone.beyond)
    nothing = claim(comparison("a", "absent", (0, INF)), number=3)
    among = decided(found, [claim(*parts), claim(comparison("b", "b", (0, INF)), number=2), nothing])
    assert among[0].p == pytest.approx(3 * alone.p) and np.isnan(among[2].p)  # which may come out small yet


def test_holm_by_hand():
    assert holm(np.array([0.04, 0.01, 0.03])).tolist() == pytest.approx([0.06, 0.03, 0.06])
    assert holm(np.array([0.6, 0.9])).tolist() == [1, 1]


def test_a_verdict_before_correction_is_told():
    found = records(a=0.6, b=0.5, c=0.5, **{f"x{i}": 0.5 for i in range(8)})
    weak = differences(found, comparison("b", "c", (0, INF)))
    bound = float(np.mean(weak)) - 2.5 * float(np.std(weak, ddof=1)) / 10**0.5  # p about 0.034 by itself
    others = [claim(comparison("b", f"x{i}", (0, INF)), number=i + 2) for i in range(8)]
    decision = decided(found, [claim(comparison("b", "c", (bound, INF))), *others])[0]
    assert decision.before == "held" and decision.verdict == "not distinguishable"


# Standard deviations over seeds of the differences that claims are about, in points, without trainings that failed,
# and the share of them that is of the classes drawn for each seed, by which resampling was too sure.
DEVIATIONS = (0.5, 0.6, 1.4, 1.7, 3.0, 6.0)
SHARES = (0.0, 0.5, 0.8)


def null(rng, seeds, deviation, share, mean):
    """Differences of seeds about a mean: of seeds, and of 200 classes with five queries each."""
    between = rng.normal(0, deviation * np.sqrt(1 - share), seeds)
    classes = rng.normal(0, deviation * np.sqrt(200 * share), (seeds, 200)) if share else np.zeros((seeds, 1))
    return (mean + between + classes.mean(1)).tolist()


def holds_its_level(draws):
    """False verdicts on bounds, by themselves, at the first step of Holm, and of all claims together."""
    rng, number = np.random.default_rng(0), len(read_claims())
    for between in ((0, INF), (-INF, 1), (-1, 1)):
        p = []
        for _ in range(draws):
            seeds, deviation, share = rng.choice([10, 20]), rng.choice(DEVIATIONS), rng.choice(SHARES)
            mean = between[1] if np.isfinite(between[1]) else between[0]
            found = where_mean(null(rng, seeds, deviation, share, mean), between)
            p.append((found.inside, found.beyond))
        both = np.array(p)
        for level in (LEVEL, LEVEL / number):
            for false in (both < level).sum(0).tolist():
                # A half of the level is on either side of a bound.
                assert false <= stats.binom.ppf(0.999, draws, level / 2), f"{between}, {level}: {false} of {draws}"
            low, high = stats.binom.ppf([0.0005, 0.9995], draws, level)
            assert (both.min(1) < level).sum() <= high
            if not np.isfinite(between).all():
                assert low <= (both.min(1) < level).sum()
    families = holm_families(rng, draws // number, number)
    assert families.sum() <= stats.binom.ppf(0.999, len(families), LEVEL)


def holm_families(rng, draws, number):
    """Whether any of a family of claims, all on their bounds, gets a verdict."""
    found = []
    for _ in range(draws):
        x = [where_mean(null(rng, 20, rng.choice(DEVIATIONS), rng.choice(SHARES), 0), (0, INF)) for _ in range(number)]
        found.append(holm(np.array([min(where.inside, where.beyond) for where in x])).min() < LEVEL)
    return np.array(found)


def test_verdicts_hold_their_level_under_nulls():
    holds_its_level(1500)


@pytest.mark.slow  # the same with ten thousand draws
def test_verdicts_hold_their_level_under_many_nulls():
    holds_its_level(10_000)


def test_a_claim_of_several_comparisons_holds_its_level():
    """All of three on their bounds, and one of them on its bound with the others far inside."""
    rng, draws = np.random.default_rng(1), 1500
    for means in ((0, 0, 0), (0, 9, 9)):
        false = 0
        for _ in range(draws):
            x = [where_mean(null(rng, 10, 1.5, 0.5, mean), (0, INF)) for mean in means]
            p = max(where.inside for where in x), 3 * min(where.beyond for where in x)
            false += min(p) < LEVEL
        assert false <= stats.binom.ppf(0.999, draws, LEVEL), means


def test_seeds_that_are_needed_are_those_that_decide():
    assert [seeds_needed(d, 1.5, claims) for d in (1, 2) for claims in (1, 16)] == [20, 37, 7, 13]
    rng = np.random.default_rng(2)
    for distance, between in ((1, (0, INF)), (2, (-2, 2))):
        seeds = seeds_needed(distance, 1.5, equivalence=between[0] < 0)
        mean = 0 if between[0] < 0 else distance
        held = [where_mean(rng.normal(mean, 1.5, seeds), between).inside < LEVEL for _ in range(1000)]
        assert 0.76 < np.mean(held) < 0.9  # seeds are whole: one fewer decides in less than four of five


def test_a_distance_that_is_seen_takes_as_many_seeds():
    for seeds, deviation, claims in ((5, 1.0, 1), (20, 3.0, 25), (6, 4.0, 25)):
        distance = distance_seen(seeds, deviation, claims)
        assert seeds_needed(1.001 * distance, deviation, claims) == seeds
        assert seeds_needed(0.999 * distance, deviation, claims) == seeds + 1
    where = where_mean([1.0, 2.0, 4.0, 6.0], (0, INF))
    assert where.deviation == pytest.approx(np.std([1, 2, 4, 6], ddof=1))


def test_the_page_says_how_many_seeds_bounds_take():
    """The table of docs/claims.md, computed."""
    number = sum(claim.tasks == WHOLE for claim in read_claims())
    lines = [
        f"| deviation | seeds for 1 point | as Holm's first of {number} | for 2 points | as Holm's first | "
        "within 1 point | as Holm's first | within 2 points | as Holm's first |"
    ]
    for deviation in (0.5, 1.0, 1.5, 2.0, 3.0):
        found = [
            seeds_needed(distance, deviation, claims, equivalence=equivalence)
            for equivalence in (False, True)
            for distance in (1, 2)
            for claims in (1, number)
        ]
        lines.append(f"| {deviation:g} | {' | '.join(map(str, found))} |")
    for line in lines:
        assert line in PAGE, line


def test_the_page_names_seeds_and_primary_claims():
    plan = read_plan()
    assert f"{plan.seeds.primary} splits" in PAGE and f"{plan.seeds.others} splits" in PAGE
    told = {int(n) for n in re.findall(r"^\| (\d+)\* \|", PAGE, flags=re.MULTILINE)}
    assert told == {c.number for c in read_claims() if c.primary}


def searched(plan, moved):
    """Results of three rows with trials, of which another search would move the best; draws differ by `moved`."""
    best = {"pfe": 0.5, "scf": 0.4, "arcface": 0.3}
    found = records(10, pfe=0.7, scf=0.6, arcface=0.5)
    for row, of_row in best.items():
        for trial in range(plan.search.trials):
            for split in range(plan.search.splits):
                found[tried(row, trial, split)] = {"validation": of_row - 0.02 * trial}
        for split in range(10):
            final = found[trained("numbers", row, split)]
            final["validation"] = of_row
            for draw, (validation, measure) in enumerate(moved) if split < len(moved) else ():
                if draw == split:
                    record = {
                        "validation": of_row + validation,
                        "numbers": {"auc.own": final["numbers"]["auc.own"] + measure},
                    }
                    found[trained("numbers", row, split, "drawn")] = {**record, "recall_at_1": {}, "map_at_r": {}}
    return found


def test_another_search_moves_rows_and_not_the_scores_of_one_training():
    """By hand: the best of as many settings drawn anew, what a point of validation is worth, and what it leaves."""
    plan, rng = read_plan(), np.random.default_rng(0)
    moved = [(-0.02, -0.03), (-0.04, -0.07), (0.01, 0.03)]
    found = searched(plan, [*moved, (-0.06, 0.9)])  # of a draw that a search would not take nothing is learned
    assert trials(plan, found, "pfe") == pytest.approx([50, 48, 46, 44, 42, 40])
    variance = variance_of_search(plan, found, "numbers")
    best = rng.choice(trials(plan, found, "pfe"), (100_000, plan.search.trials)).max(1).var()
    x, y = 100 * np.array(moved * 3).T
    worth = min(y / x, key=lambda slope: np.abs(y - slope * x).sum())
    rest = np.median((y - worth * x) ** 2) / 0.4549  # of squares of a normal variable
    assert rest > 0.1  # rows differ by as much on every split, so that all of it is of settings
    of = ("numbers.auc.own",)
    assert variance(comparison("pfe", "scf", (0, INF), of)) == pytest.approx(2 * (worth**2 * best + rest), rel=0.03)
    # What a measure of garments is worth is known of its draws there, and of the validation on numbers that chooses.
    both = dict(found)
    for cell, record in found.items():
        if cell.trial is None:
            moved_twice = {"auc.own": 2 * record["numbers"]["auc.own"]}
            both[replace(cell, task="garments")] = {**record, "validation": 0.5, "numbers": moved_twice}
    pair = comparison("pfe", "scf", (0, INF), of)
    assert variance_of_search(plan, both, "garments")(pair) == pytest.approx(4 * variance(pair))
    assert variance_of_search(plan, both, "numbers")(pair) == variance(pair)
    one = variance(comparison("pfe (published)", None, (0, INF), of))
    assert 2 * one == pytest.approx(variance(comparison("pfe", "scf", (0, INF), of)))
    mean = Comparison(("pfe", "scf"), (), of)
    assert 2 * variance(mean) == pytest.approx(one)
    for same in (("pfe", "pfe"), ("pfe (drawn)", "scf (drawn, longer)")):
        assert variance(comparison(*same, (0, INF), of)) == 0
    verdicts = [
        decided(found, [claim(comparison("pfe", "scf", (0, INF)))], variance=lambda _, v=v: v) for v in (0.0, 50.0)
    ]
    assert [x[0].verdict for x in verdicts] == ["held", "not distinguishable"]


def test_searches_apart_call_equal_rows_different():
    """By simulation: a t-test of splits does not see the search."""
    plan, rng = read_plan(), np.random.default_rng(0)
    found = searched(plan, [(-0.02, 0.0), (-0.04, 0.0), (0.01, 0.0)])
    assert called_different(plan, found, "numbers") == pytest.approx(LEVEL)  # no draw has a recall
    for cell in [cell for cell in found if cell.drawn]:
        recall = 0.6 + (0.02 if cell.split % 2 else -0.02)
        found[cell]["recall_at_1"] = {"own": ledger.packed(np.full(200, recall))}
    share, variance = [], variance_of_search(plan, found, "numbers")
    for left, right in (("arcface", "pfe"), ("arcface", "scf"), ("pfe", "scf")):
        pair = comparison(left, right, (0, INF))
        deviation = np.std(differences(found, pair), ddof=1)
        x = rng.normal(0, deviation, (20_000, 10)) + rng.normal(0, np.sqrt(variance(pair)), (20_000, 1))
        share.append(np.mean(stats.ttest_1samp(x, 0, axis=1).pvalue < LEVEL))
    assert called_different(plan, found, "numbers") == pytest.approx(np.mean(share), abs=0.03)


def test_common_draws_call_equal_rows_different_at_their_level():
    """Draws move rows together, and each by itself."""
    rng, found = np.random.default_rng(0), {}
    for draw in range(6):
        together = rng.normal(0.5, 0.2)
        for row in ("arcface", "cosface", "hib", "pfe", "scf", "vmf_fl", "dul_reg", "dul_cls"):
            recall = np.full(200, together + rng.normal(0, 0.05))
            record = {"recall_at_1": {"own": ledger.packed(recall.clip(0, 1))}, "map_at_r": {}, "numbers": {}}
            found[trained("garments", row, draw, "drawn")] = {**record, "validation": 0.5}
    assert called_different_by_draws(found, "garments") == pytest.approx(LEVEL, abs=0.015)
    assert np.isnan(called_different_by_draws(found, "numbers"))


def test_splits_that_overlap_say_less():
    """Nadeau and Bengio's variance: 1 / n + test / train, of three of ten items tested and six trained on."""
    x = np.random.default_rng(5).normal(0.7, 1.5, 12)
    found = where_mean(x.tolist(), (0, INF), overlap=0.5)
    t = x.mean() / np.sqrt(x.var(ddof=1) * (1 / 12 + 3 / 6))
    assert found.inside == pytest.approx(2 * stats.t.sf(t, 11), rel=1e-9)
    plan = read_plan()
    assert [overlap(plan, task) for task in ("numbers", "hib")] == pytest.approx([0.28 / 0.6, 0.5])
    one = [claim(comparison("a", "b", (0, INF)))]
    shares = records(a=0.52, b=0.5)
    assert [decided(shares, one, overlap=x)[0].verdict for x in (0, 0.5)] == ["held", "not distinguishable"]
