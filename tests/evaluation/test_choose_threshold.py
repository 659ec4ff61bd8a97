"""`pe.choose_threshold`, `pe.choose_pair_threshold` and `peaccel choose-threshold`: promises are the library's own."""

import json
import math
import re
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from command import run
from scipy import special

import peaccel as pe
from peaccel import io, metrics
from peaccel.evaluation import choose_threshold as choosing_thresholds
from peaccel.evaluation.compared_confidences import third
from peaccel.evaluation.threshold_pages import threshold_sections
from peaccel.fits.records import Calibration
from peaccel.metrics import Relevance

PAGE = Path(__file__).parents[2] / "docs" / "thresholds.md"
PEOPLE, DIM = 320, 24
CENTRES = np.random.default_rng(9).normal(size=(PEOPLE, DIM))


def embed(who, seed, kind="point"):
    """Sharp items and blurred ones of these people, in float32."""
    rng = np.random.default_rng(seed)
    sigma = np.exp(rng.normal(-0.5, 0.6, (len(who), 1)))
    mu = (CENTRES[who] + sigma * rng.normal(size=(len(who), DIM))).astype("f4")
    return pe.Point(mu) if kind == "point" else pe.Normal(mu, (sigma[:, 0] ** 2).astype("f4"))


WHO = np.random.default_rng(1).permutation(np.arange(220).repeat(3))
HELD = np.arange(280).repeat(2)
NOVEL = np.random.default_rng(2).permutation(np.arange(280, 320).repeat(5))


def searches(kind="point"):
    return embed(WHO, 3, kind), embed(HELD, 4, kind), embed(NOVEL, 5, kind)


def equal(found, expected):
    """Two records, to the last bit, but for what the first knows of its data."""
    assert type(found) is type(expected)
    assert replace(found, of="answers", score="", dim=0, gallery_size=0, fitted_on="") == expected


# -- thresholds are the library's --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "score"), [("point", "cosine"), ("normal", "mls"), ("normal", "llr:prior_var=1.0")])
def test_thresholds_are_those_of_the_answers_of_a_search(kind, score):
    queries, gallery, novel = searches(kind)
    given = queries, gallery, (WHO, HELD), score
    found = pe.choose_threshold(*given, wrong=0.07, delta=0.2, novel=novel, novel_labels=NOVEL, seed=3)
    best = pe.search(queries, gallery, 1, score)
    assert best.scores.dtype == np.float32  # a threshold in float64 would not part such scores
    right = HELD[best.ids[:, 0]] == WHO
    alone = pe.search(novel, gallery, 1, score).scores[:, 0]
    for x in found.results:
        each = x.per == "query"
        if x.promise == "wrong":
            units = np.arange(len(WHO)) if each else WHO
            equal(x.accept, pe.learn_then_test(best.scores[:, 0], right, units, x.alpha, 0.2, seed=3))
        else:
            equal(x.accept, pe.limit_false_matches(alone, x.alpha, 0.2, None if each else NOVEL, seed=3))
        accepted = x.accept(best.scores[:, 0])
        assert (x.threshold, x.tested) == (x.accept.threshold, x.accept.number)
        assert (x.accepted, x.found) == (accepted.mean(), (accepted & right).mean())
        assert x.false == x.accept(alone).mean()
        assert math.isnan(x.wrong) if not accepted.any() else x.wrong == (~right[accepted]).mean()
    equal(found.accept, pe.learn_then_test(best.scores[:, 0], right, WHO, 0.07, 0.2, seed=3))
    assert found.chosen.alpha == 0.07 and 0 < found.chosen.accepted < 1
    # It is applied in the dtype of the scores: what lies just below is refused.
    kept = found.accept(pe.search(queries, gallery, 1, score))
    assert ((kept.ids[:, 0] >= 0) == found.accept(best.scores[:, 0])).all()
    limit = pe.choose_threshold(*given, fpir=0.07, novel=novel)
    equal(limit.accept, pe.limit_false_matches(alone, 0.07, 0.1))
    assert limit.other_classes is None and limit.asked == ("fpir", 0.07)


def test_queries_without_a_right_item_are_wrong_and_are_searches_without_a_mate():
    queries, gallery, _ = searches()
    kept = HELD < 150
    of_gallery = HELD[kept]
    found = pe.choose_threshold(queries, gallery[np.flatnonzero(kept)], (WHO, of_gallery), fpir=0.2)
    best = pe.search(queries, gallery[np.flatnonzero(kept)], 1, "cosine")
    mated, right = WHO < 150, of_gallery[best.ids[:, 0]] == WHO
    assert (found.items, found.matches, found.others, found.other_classes) == (660, 450, 210, 70)
    equal(found.accept, pe.limit_false_matches(best.scores[~mated, 0], 0.2, 0.1, WHO[~mated]))
    x = next(x for x in found.results if x.promise == "wrong")
    equal(x.accept, pe.learn_then_test(best.scores[:, 0], right, WHO, x.alpha))
    errors = metrics.open_set(metrics.mate_scores(best.scores[mated], right[mated, None]), best.scores[~mated, 0])
    at = errors.at_threshold(found.chosen.threshold)
    assert (found.chosen.false, 1 - found.chosen.found) == pytest.approx((at.fpir, at.fnir))
    assert dict(found.trade_off) == {a: min(errors.fnir[errors.fpir == a]) for a, _ in found.trade_off}
    assert sum(found.counts["wrong answers"]) == (mated & ~right).sum() and sum(found.counts["without a mate"]) == 210


def test_items_are_searched_for_among_each_other_without_themselves():
    d = embed(WHO, 3)
    found = pe.choose_threshold(d, None, WHO, wrong=0.1)
    scores, ids = pe.search(d, d, 2, "cosine")
    own = ids == np.arange(len(WHO))[:, None]
    first = np.where(own[:, 0], 1, 0)
    rows = np.arange(len(WHO))
    equal(found.accept, pe.learn_then_test(scores[rows, first], WHO[ids[rows, first]] == WHO, WHO, 0.1))
    by_pairs = Relevance.from_pairs(np.argwhere(WHO[:, None] == WHO), len(WHO))
    again = pe.choose_threshold(d, None, by_pairs, wrong=0.1).accept
    assert replace(again, fitted_on=found.accept.fitted_on) == found.accept
    assert found.accept.score == "cosine" and found.accept.fitted_on == found.about
    assert "660 queries of 220 classes, searched for among each other by cosine; 24 dimensions, Point" in str(found)


@pytest.mark.parametrize("grouped", [True, False])
def test_thresholds_of_pairs_are_those_of_their_scores(grouped):
    rng = np.random.default_rng(0)
    match = rng.random(3000) < 0.4
    scores = (rng.normal(size=3000) + 3 * match).astype("f4")
    groups = rng.integers(0, 500, 3000) if grouped else None
    units = np.arange(3000) if groups is None else groups
    found = pe.choose_pair_threshold(scores, match, groups, wrong=0.03, delta=0.2, seed=3)
    assert found.grouping == ("groups" if grouped else "pairs") and found.of_pairs
    for x in found.results:
        if x.promise == "wrong":
            equal(x.accept, pe.learn_then_test(scores, match, units, x.alpha, 0.2, seed=3))
        else:
            of = None if groups is None else groups[~match]
            equal(x.accept, pe.limit_false_matches(scores[~match], x.alpha, 0.2, of, seed=3))
        accepted = x.accept(scores)
        assert (x.found, x.false) == (accepted[match].mean(), accepted[~match].mean())
    assert found.chosen.alpha == 0.03
    again = pe.choose_pair_threshold(torch.tensor(scores), match.tolist(), groups, far=0.03, delta=0.2, seed=3)
    equal(again.accept, pe.limit_false_matches(scores[~match], 0.03, 0.2, None if groups is None else groups[~match],
                                               seed=3))  # fmt: skip


def test_the_curve_of_risk_is_that_of_all_thresholds():
    scores, match = np.array([3.0, 2, 2, 1, 0]), np.array([1, 0, 1, 0, 1])
    found = pe.choose_pair_threshold(scores, match)
    assert found.coverage == ((0.2, 0), (0.6, 1 / 3), (0.8, 0.5), (1, 0.4)) and found.chosen is found.accept is None
    assert found.counts.keys() == {"pairs that match", "pairs that do not"}
    bound = [1 - 0.1, *(special.betaincinv(e + 1, n - e, 0.9) for n, e in ((3, 1), (4, 2), (5, 2)))]
    assert [x for _, x in found.bound] == pytest.approx(bound) and [x for x, _ in found.bound] == [0.2, 0.6, 0.8, 1]
    grouped = pe.choose_pair_threshold(np.array([3.0, 2, 1, 0]), np.array([1, 1, 1, 0]), np.array([0, 0, 0, 1]))
    assert grouped.coverage[-1] == (1, 0.5)  # each group counts once
    assert dict(found.trade_off) == {0: 2 / 3, 0.5: 1 / 3, 1: 0}


# -- what is said ------------------------------------------------------------------------------------------------------


def said(found):
    return re.sub(r"0\.\d{4,}", "T", found.sentence())


def test_a_threshold_says_what_it_keeps_what_remains_and_what_was_counted():
    queries, gallery, novel = searches()
    given = queries, gallery, (WHO, HELD)
    found = pe.choose_threshold(*given, wrong=0.05, novel=novel)
    best = pe.search(queries, gallery, 1, "cosine")
    kept, right = found.accept(best.scores[:, 0]), HELD[best.ids[:, 0]] == WHO
    false = found.accept(pe.search(novel, gallery, 1, "cosine").scores[:, 0]).sum()
    assert said(found) == (
        "Accept the best item of a query where it has a cosine of at least T: at most 5 % of the accepted answers are "
        f"wrong, with a certainty of 90 %. Of these 660 queries {kept.sum()} are answered, "
        f"{(kept & ~right).sum()} of them wrongly; of the 660 that have a right item {(kept & right).sum()} are given "
        f"it; of 200 searches without a mate {false} return something. One query of each of 220 classes was tested, "
        "since queries of one are right or wrong together. The promise is of new classes, each counting once. Per "
        "query, of queries drawn as these were with the same classes in the same shares, a threshold of T keeps it and "
        f"answers {100 * found.per_query.accepted:.1f} %."
    )
    assert (
        "Searches without a mate are taken as independent: where several share an item or a person, the promise may be "
        "broken; name these by novel_labels."
    ) in said(pe.choose_threshold(*given, fpir=0.05, novel=novel))
    few = pe.choose_threshold(*given, fpir=0.05, novel=novel, novel_labels=NOVEL, delta=0.05)
    assert said(few) == (
        "No threshold can be promised to keep this: at most 5 % of searches without a mate return anything, with a "
        "certainty of 95 %. It takes at least 59 classes of searches without a mate, and there are 40: 19 more. One "
        "search of each of 40 classes of searches without a mate was tested, since searches of one are right or wrong "
        "together. The promise is of new classes, each counting once. Per query, of queries drawn as these were with "
        "the same classes in the same shares, a threshold of T keeps it and answers "
        f"{100 * few.per_query.accepted:.1f} %."
    )
    assert few.chosen.missing == few.accept.missing == 19
    assert str(few).endswith(few.sentence()) and "  19\n" in str(few)


def test_pairs_without_groups_are_said_to_be_taken_as_independent():
    match = np.arange(4000) % 2 == 0
    scores = np.random.default_rng(0).normal(size=4000) + 3 * match
    alone = pe.choose_pair_threshold(scores, match, wrong=0.01)
    assert "at most 1 % of the accepted pairs do not match (a precision of 99 %), with" in alone.sentence()
    assert "Pairs are taken as independent: where several share an item or a person, the" in alone.sentence()
    grouped = pe.choose_pair_threshold(scores, match, np.arange(4000) // 4, far=0.05)
    assert "at most 5 % of the pairs that do not match are accepted, with" in grouped.sentence()
    last = "since pairs of one are right or wrong together. The promise is of new groups, each counting once."
    assert grouped.sentence().endswith(last)


@pytest.mark.parametrize(
    ("count", "wrong_of_surest", "says"),
    [
        (100, 0.0, "It takes at least 230 pairs, and there are 100: about "),
        (229, 0.0, "It takes at least 230 pairs, and there are 229: about "),
        (100, 0.5, "It takes at least 230 pairs, and there are 100; but more than 1 % of the surest tenth are wrong, "
         "and of every greater part."),
        (1000, 0.5, "There are 1000 pairs, and 230 would do were all answers right; but more than "),
        (1000, 0.005, "There are 1000 pairs, and 230 would do were all answers right: about "),
    ],
)  # fmt: skip
def test_where_nothing_can_be_promised_it_is_said_what_is_missing(count, wrong_of_surest, says):
    """The surer half is wrong in so many places, evenly; the other in half of them."""
    scores, place = np.arange(count, 0, -1.0), np.arange(count)
    every = round(1 / wrong_of_surest) if wrong_of_surest else count
    match = np.where(place < count / 2, place % every != every // 2, place % 2 == 0)
    found = pe.choose_pair_threshold(scores, match, wrong=0.01)
    assert f"with a certainty of 90 %. {says}" in found.sentence() and math.isinf(found.chosen.threshold)
    assert (found.chosen.missing is None) == (wrong_of_surest == 0.5) and found.accept.missing == found.chosen.missing
    assert found.chosen.wrong_by_class is None  # each pair is taken as independent


def test_the_share_of_wrong_answers_is_said_by_query_and_by_class():
    """One class of 600 items, all of them wrong, and 600 classes of one, of which few are."""
    who = np.r_[np.zeros(600, int), np.arange(1, 601)]
    match, scores = np.arange(1200) >= 606, np.random.default_rng(0).random(1200)
    found = pe.choose_pair_threshold(scores, match, who, wrong=0.05)
    x, kept = found.chosen, found.accept(scores)
    parts = [(kept[i == who].mean(), (kept & ~match)[i == who].mean()) for i in range(601)]
    assert x.wrong_by_class == pytest.approx(np.divide(*np.sum(parts, 0)[::-1]))
    assert x.wrong > 0.4 and x.wrong_by_class < 0.03 and "wrong by class %" in str(found)
    shares = (
        f"({100 * x.wrong:.1f} %; {100 * x.wrong_by_class:.1f} % where each of the groups counts once, as in the prom"
    )
    assert shares in found.sentence()


def test_labels_that_are_out_of_reach_are_not_asked_for():
    """0.5 % may be wrong, and 0.496 % of the surest are: to show that takes more than 100 times as many."""
    place = np.arange(2016)
    found = pe.choose_pair_threshold(np.arange(2016, 0, -1.0), place % 201.6 >= 1, wrong=0.005)
    assert found.accept.missing is None and "more than 0.5 % of the surest tenth are wrong" in found.sentence()


def test_as_many_more_as_are_perhaps_missing_often_find_a_threshold():
    """A guess from the labels themselves, which is no promise: it is to be of the right size."""
    found, guesses = [], []
    for seed in range(60):
        rng = np.random.default_rng(seed)

        def drawn(n, rng=rng):
            z = rng.normal(size=n)
            return z, rng.random(n) < 1 / (1 + np.exp(-(0.6 + 2.2 * z)))

        first = pe.learn_then_test(*drawn(100), np.arange(100), 0.1)
        if first.missing:
            guesses.append(first.missing)
            more = 100 + first.missing
            found.append(pe.learn_then_test(*drawn(more), np.arange(more), 0.1).accepted > 0)
    assert len(found) > 20 and 0.4 < np.mean(found) < 0.95 and 20 < np.median(guesses) < 400


# -- units -------------------------------------------------------------------------------------------------------------


def test_the_unit_of_a_promise_is_named_or_both_are_shown():
    d, who = embed(WHO, 3), WHO
    both = pe.choose_threshold(d, None, who, wrong=0.1)
    per_class, per_query = (pe.choose_threshold(d, None, who, wrong=0.1, per=per) for per in ("class", "query"))
    assert both.chosen == per_class.chosen and both.per_query == per_query.chosen and per_class.per_query is None
    assert [x.per for x in both.results[:2]] == ["class", "query"] and both.accept == per_class.accept
    assert per_query.chosen.tested == len(d) and per_class.chosen.tested == 220
    assert "drawn as these were, with the same classes in the same shares" in per_query.sentence()
    alone = pe.choose_threshold(d[:40], None, np.arange(40) // 2, wrong=0.5)
    assert {x.per for x in alone.results} == {"class", "query"}
    scores = pe.choose_pair_threshold(np.arange(9.0), np.arange(9) % 2).results
    assert {x.per for x in scores} == {"pair"}


def test_groups_take_the_place_of_classes():
    d, days = embed(WHO, 3), np.random.default_rng(0).permutation(len(WHO)) // 4
    found = pe.choose_threshold(d, None, WHO, wrong=0.1, groups=days, seed=2)
    best = pe.search(d, d, 2, "cosine")
    first = (best.ids[:, 0] == np.arange(len(WHO))).astype(int)
    scores, ids = (x[np.arange(len(WHO)), first] for x in best)
    equal(found.accept, pe.learn_then_test(scores, WHO[ids] == WHO, days, 0.1, seed=2))
    assert {x.per for x in found.results} == {"group"} and "One query of each of 165 groups was" in found.sentence()
    with pytest.raises(ValueError, match=r"^choose_threshold: per is 'query' beside groups, expected one of them"):
        pe.choose_threshold(d, None, WHO, groups=days, per="query")
    with pytest.raises(ValueError, match=r"^choose_threshold: per is 'item', expected 'class' or 'query'"):
        pe.choose_threshold(d, None, WHO, per="item")


LANGUAGES = np.array(["de", "en", "fr"])[np.random.default_rng(4).integers(0, 3, len(WHO))]


@pytest.mark.parametrize("how", [{}, {"per": "query"}, {"confidence": "auto"}], ids=["class", "query", "apart"])
def test_within_groups_each_has_its_threshold_and_costs_answers(how):
    queries, gallery, _ = searches()
    truth = {"labels": (WHO, HELD), "wrong": 0.2, "delta": 0.15, "seed": 3, **how}
    found = pe.choose_threshold(queries, gallery, within=LANGUAGES, **truth)
    alone = pe.choose_threshold(queries, gallery, **truth)
    assert found.results == alone.results and found.accept == alone.accept and not alone.within
    assert [x.name for x in found.within] == ["de", "en", "fr"] and sum(x.items for x in found.within) == found.items
    if "confidence" not in how:
        best = pe.search(queries, gallery, 1, "cosine")
        scores, right = best.scores[:, 0], HELD[best.ids[:, 0]] == WHO
        units = np.arange(len(WHO)) if how else WHO
        by_name = pe.learn_then_test(scores, right, units, 0.2, 0.15, 3, within=LANGUAGES)
        for x in found.within:
            of, of_all = scores[x.name == LANGUAGES], alone.accept(scores[x.name == LANGUAGES])
            equal(x.accept, by_name[x.name])
            kept = x.accept(of)
            assert (x.items, x.accepted, x.cost) == (len(of), kept.mean(), of_all.sum() - kept.sum())
            assert x.wrong == pytest.approx((~right[x.name == LANGUAGES])[kept].mean(), nan_ok=True)
            assert x.accept.dim == DIM and x.accept.fitted_on.endswith(f"of these {len(of)} in the group {x.name}")
    assert "Within each group, all at once" in found.tables() and " Within de, en, fr, each" in found.sentence()


def test_a_group_in_which_nothing_can_be_promised_is_named():
    queries, gallery, _ = searches()
    bad = np.where((LANGUAGES == "de") & (WHO % 2 == 0), (WHO + 1) % 220, WHO)  # half of the answers to these are wrong
    found = pe.choose_threshold(queries, gallery, (bad, HELD), wrong=0.2, within=LANGUAGES)
    assert [math.isinf(x.threshold) for x in found.within] == [True, False, False]
    assert "Within en, fr, each" in found.sentence() and "Nothing can be promised within de." in found.sentence()
    for within, more, message in (
        (LANGUAGES, {"fpir": 0.1}, "within needs wrong, the share that is promised within each group"),
        (LANGUAGES[1:], {"wrong": 0.1}, "within has shape (659,), expected (660,)"),
        (np.arange(660) // 650, {"wrong": 0.1}, "within: group '1' has 10 independent answers, expected at least 29 "),
    ):
        with pytest.raises(ValueError, match="^choose_threshold: " + re.escape(message)):
            pe.choose_threshold(queries, gallery, (WHO, HELD), within=within, **more)


def test_per_query_few_classes_of_many_queries_have_a_threshold():
    """Of 30 topics nothing can be said of new ones at 2 %; of the same topics, asked again, it can."""
    rng = np.random.default_rng(0)
    who = rng.choice(30, 3000, p=rng.dirichlet(np.ones(30)))
    d = pe.Point(CENTRES[who] + rng.choice([0.5, 3.0], (3000, 1), p=[0.9, 0.1]) * rng.normal(size=(3000, DIM)))
    found = pe.choose_threshold(d, None, who, wrong=0.02)
    assert found.accept.accepted == 0 and "Per query, of queries drawn as these were with the same" in found.sentence()
    again = rng.choice(30, 3000, p=np.bincount(who, minlength=30) / 3000)
    new = pe.Point(CENTRES[again] + rng.choice([0.5, 3.0], (3000, 1), p=[0.9, 0.1]) * rng.normal(size=(3000, DIM)))
    best = pe.search(new, d, 1, "cosine")
    kept = found.per_query.accept(best.scores[:, 0])
    assert kept.mean() > 0.7 and (who[best.ids[kept, 0]] != again[kept]).mean() < 0.02


def test_tables_show_no_stricter_row_that_accepts_more():
    scores = np.arange(1000, 0, -1.0)
    found = pe.choose_pair_threshold(scores, np.arange(1000) % 40 != 20, wrong=0.05)
    rows = [x for x in found.results if x.promise == "wrong"]
    shares = dict(zip((x.alpha for x in rows), (0.9, 0.8, 0.5, 0.6, 0.4, 0.7, 0.1), strict=True))
    made = replace(found, results=tuple(replace(x, accepted=shares[x.alpha]) for x in rows))
    assert [row[0] for row in next(iter(made.tables().values()))[1]] == ["20 %", "10 %", "5 %", "1 %", "0.1 %"]
    named = replace(made, asked=None).tables()
    assert [row[0] for row in next(iter(named.values()))[1]] == ["20 %", "10 %", "0.5 %", "0.1 %"]


# -- what is refused ---------------------------------------------------------------------------------------------------

POINTS = pe.Point(np.eye(6))
SIX = np.array([0, 0, 1, 1, 2, 2])
S, YES = np.linspace(0, 1, 6), np.array([0, 0, 1, 0, 1, 1])
REFUSED = [
    (lambda: pe.choose_threshold(POINTS, None, SIX[:5]), "choose_threshold: labels has shape (5,), expected (6,)"),
    (lambda: pe.choose_threshold(POINTS, None, [0.0, 0, 1, 1, np.nan, np.nan]), "choose_threshold: 2 of the 6 labels"),
    (lambda: pe.choose_threshold(POINTS, None, np.zeros(6)), "choose_threshold: the queries are of one of the cl"),
    (lambda: pe.choose_threshold(POINTS, None, np.arange(6)), "choose_threshold: no query has an answer"),
    (lambda: pe.choose_threshold(POINTS, None, SIX, wrong=1), "choose_threshold: wrong is 1,"),
    (lambda: pe.choose_threshold(POINTS, None, SIX, delta=0), "choose_threshold: delta is 0,"),
    (lambda: pe.choose_threshold(POINTS, None, SIX, wrong=0.1, fpir=0.1), "choose_threshold: wrong and fpir are given"),
    (lambda: pe.choose_threshold(POINTS, None, SIX, fpir=0.1), "choose_threshold: fpir needs searches without a mate"),
    (lambda: pe.choose_threshold(POINTS, None, SIX, novel_labels=SIX), "choose_threshold: novel_labels are given"),
    (lambda: pe.choose_threshold(POINTS, None, SIX, novel=pe.Point(np.eye(5))), "choose_threshold: novel is 5 point"),
    (lambda: pe.choose_threshold(POINTS, None, SIX, "cosinus"), "unknown score 'cosinus'; did you mean 'cosine'?"),
    (lambda: pe.choose_pair_threshold(S, YES[:5]), "choose_pair_threshold: match has shape (5,)"),
    (lambda: pe.choose_pair_threshold(S * np.nan, YES), "choose_pair_threshold: 6 of the 6 numbers of scores are NaN"),
    (lambda: pe.choose_pair_threshold(S, YES + 1), "choose_pair_threshold: match has 2 in row 2, expected only 0"),
    (lambda: pe.choose_pair_threshold(S, YES, SIX[:4]), "choose_pair_threshold: groups has shape (4,), expected (6,)"),
    (lambda: pe.choose_pair_threshold(S, YES, SIX * 0), "choose_pair_threshold: scores are of one of the groups"),
    (lambda: pe.choose_pair_threshold(S, YES, far=2.0), "choose_pair_threshold: far is 2.0, expected a number between"),
    (lambda: pe.choose_pair_threshold(S, YES, p_target=1.0), "choose_pair_threshold: p_target is 1.0, expected a"),
    (lambda: pe.choose_pair_threshold(S, YES, p_target=0.1, far=0.1), "choose_pair_threshold: far and p_target are"),
    (lambda: pe.choose_pair_threshold(S, YES, p_target=0.1, c_fa=-1), "choose_pair_threshold: c_fa is -1, expected a"),
    (lambda: pe.choose_pair_threshold(S, YES > -1, p_target=0.1), "choose_pair_threshold: p_target needs pairs"),
    (lambda: pe.choose_pair_threshold(S, YES > -1, far=0.1), "choose_pair_threshold: far needs pairs"),
    (lambda: pe.choose_pair_threshold(S, YES, wrong=0.1, far=0.1), "choose_pair_threshold: wrong and far are given"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "message"), REFUSED)
def test_what_no_threshold_can_be_of_is_refused_before_the_search(call, message, monkeypatch):
    monkeypatch.setattr(choosing_thresholds, "answered", None)
    with pytest.raises(ValueError, match="^" + re.escape(message)) as caught:
        call()
    assert "\n" not in str(caught.value)


def test_queries_that_nothing_is_like_are_refused_by_name():
    far = 1e300 * np.array([[1.0, 0], [0, 1], [1, 1]])
    with pytest.raises(
        ValueError, match=r"^choose_threshold: the best score by neg_sq_l2 of 3 queries is -inf: nothing"
    ):
        pe.choose_threshold(pe.Point(far), pe.Point(-far), (SIX[::2], SIX[1::2]), "neg_sq_l2")


@pytest.mark.filterwarnings("ignore:evaluate. of .* rankings some end among items of one score")
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_exact_copies_of_certain_items_are_accepted_first(dtype):
    """mls of them is infinite; evaluate and choose_score compare them with the others too."""
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(40), 6)
    mu = (rng.standard_normal((40, 8))[labels] + 0.3 * rng.standard_normal((240, 8))).astype(dtype)
    mu[2::6] = mu[0::6]
    d = pe.Normal(mu, np.where(np.arange(240) % 2, 0.09, 0).astype(dtype)).validate()
    found = pe.choose_threshold(d, None, labels, "mls", wrong=0.2)
    assert found.accept.accepted > 30 and np.isfinite(found.accept.threshold)
    assert pe.evaluate(d, None, labels, scores=["mls", "cosine"]) and pe.choose_score(d, labels)


def test_queries_that_are_in_the_gallery_are_told():
    d = embed(WHO, 3)
    with pytest.warns(UserWarning, match="choose_threshold: the best item of 660 of 660 queries equals the query bit"):
        pe.choose_threshold(d, d, (WHO, WHO))


# -- scored pairs in files ---------------------------------------------------------------------------------------------


def test_pairs_are_read_from_all_kinds_of_files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    scores, match, groups = [0.5, 0.25, -1.0], [True, False, True], ["ann", "bob, jr", "ann"]
    Path("a.csv").write_text('group,note,match,score\nann,,1,0.5\n"bob, jr",x,False,0.25\n\n ann,,true,-1\n')
    np.savez("a.npz", score=np.array(scores, "f4"), match=match, group=groups)
    np.save("a.npy", np.array([scores, match], "f4").T)
    for name, dtype, grouped in (("a.csv", "f8", True), ("a.npz", "f4", True), ("a.npy", "f4", False)):
        found = io.read_scored_pairs(name)
        assert found.scores.dtype == dtype and found.scores.tolist() == scores and found.match.tolist() == match
        assert found.match.dtype == bool
        assert found.groups is None if not grouped else found.groups.tolist() == groups
    Path("b.csv").write_text("\ufeffscore,match\n1,0\n", encoding="utf-8")
    assert io.read_scored_pairs("b.csv").groups is None


def test_pairs_are_read_from_parquet_where_pyarrow_is(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("a.parquet").write_bytes(b"PAR1")
    with monkeypatch.context() as without:
        without.setitem(sys.modules, "pyarrow", None)
        with pytest.raises(
            ImportError, match=r"^a\.parquet: \.parquet files need pyarrow: pip install peaccel\[arrow\]$"
        ):
            io.read_scored_pairs("a.parquet")
    import pyarrow
    from pyarrow import parquet

    with pytest.raises(ValueError, match=r"^a\.parquet: cannot be read, truncated or damaged"):
        io.read_scored_pairs("a.parquet")
    parquet.write_table(
        pyarrow.table({"score": [0.5, 1], "match": [1, 0], "group": ["a", "b"], "x": [1, 2]}), "a.parquet"
    )
    found = io.read_scored_pairs("a.parquet")
    assert [x.tolist() for x in found] == [[0.5, 1], [True, False], ["a", "b"]]
    parquet.write_table(pyarrow.table({"score": [0.5, None], "match": [1, 0]}), "a.parquet")
    with pytest.raises(ValueError, match=r"^a\.parquet: score is missing in 1 of 2 rows$"):
        io.read_scored_pairs("a.parquet")
    parquet.write_table(pyarrow.table({"scores": [0.5], "match": [1]}), "a.parquet")
    with pytest.raises(ValueError, match=r"^a\.parquet: column score is missing, found scores, match"):
        io.read_scored_pairs("a.parquet")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("score,group\n1,a\n", "a.csv: column match is missing, found score, group; expected score, match[, group]"),
        ("0.5,1\n0.2,0\n", "a.csv: column score is missing, found 0.5, 1; expected"),
        ("score,match\n1,0\nx,1\n", "a.csv: line 3: score is 'x', expected a number"),
        ("score,match\n1,0\n\nnan,1\n", "a.csv: line 4: score is 'nan', expected a number"),
        ("score,match\n1,2\n", "a.csv: line 2: match is '2', expected 0 or 1"),
        ("score,match\n1\n", "a.csv: line 2"),
        ("score,match\n", "a.csv: holds no pairs below its first line"),
        ("score,score,match\n1,2,0\n", "a.csv: column score is there 2 times, expected once"),
        ("score,match,group\n1,0,a\n1,0,\n", "a.csv: line 3: group is empty, expected what the pair shares"),
        ("", "a.csv: is empty (0 bytes)"),
        (b"score,match\n\xff,1\n", "a.csv: cannot be read, truncated or damaged? ("),
    ],
)
def test_columns_that_are_no_pairs_are_refused(text, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("a.csv").write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ValueError, match="^" + re.escape(message)) as caught:
        io.read_scored_pairs("a.csv")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "arrays", "message"),
    [
        ("a.npy", np.zeros((3, 3)), "a.npy: has shape (3, 3) and dtype float64, expected (P, 2): score and match"),
        ("a.npy", np.array([[0.5, 0.5]]), "a.npy: match is 0.5 in row 0, expected 0 or 1"),
        (
            "a.npy",
            np.array([[1.0, 1], [-np.inf, 1]]),
            "a.npy: 1 of the 2 numbers of score are NaN or -inf, first in r",
        ),
        ("a.npz", {"score": [1.0], "match": [1, 0]}, "a.npz: match has shape (2,), expected (1,) like score"),
        ("a.npz", {"score": ["x"], "match": [1]}, "a.npz: score has shape (1,) and dtype <U1, expected numbers (P,)"),
        ("a.npz", {"score": [1.0]}, "a.npz: key match is missing"),
        ("a.txt", None, "a.txt: unsupported suffix '.txt', expected .csv or .tsv or .parquet"),
    ],
)
def test_arrays_that_are_no_pairs_are_refused(name, arrays, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    if isinstance(arrays, dict):
        np.savez(name, **arrays)
    elif arrays is not None:
        np.save(name, arrays)
    with pytest.raises(ValueError, match="^" + re.escape(message)):
        io.read_scored_pairs(name)


# -- of other confidences than the score -------------------------------------------------------------------------------


SIBLINGS = np.arange(150).repeat(4)
"""Classes of four items in the gallery, so that the next item tends to be of the class of the best."""
ASKED = np.random.default_rng(6).permutation(np.arange(300).repeat(2))
"""Half of the queries have no right item."""


def of_siblings(mean=0.0):
    """All have a direction in common, of which queries have more or less: it is in all of a query's scores."""
    rng = np.random.default_rng(7)
    centres = rng.normal(size=(300, DIM))
    gallery = centres[SIBLINGS] + 0.5 * rng.normal(size=(len(SIBLINGS), DIM))
    queries = centres[ASKED] + rng.gamma(2, 0.4, (len(ASKED), 1)) * rng.normal(size=(len(ASKED), DIM))
    if not mean:
        gallery[:, 0] += 8
        queries[:, 0] += rng.gamma(1, 8, len(ASKED))
    offset = mean * rng.normal(size=DIM)
    return pe.Point((queries + offset).astype("f4")), pe.Point((gallery - offset).astype("f4"))


@pytest.mark.parametrize("kind", ["margin", "class_margin"])
def test_a_threshold_of_a_margin_is_that_of_the_margins_of_a_search(kind):
    queries, gallery = of_siblings()
    found = pe.choose_threshold(queries, gallery, (ASKED, SIBLINGS), wrong=0.1, confidence=kind)
    ranking = pe.search(queries, gallery, found.deepest, "cosine")
    assert found.deepest == {"margin": 2, "class_margin": 5}[kind] and not found.compared
    right = SIBLINGS[ranking.ids[:, 0]] == ASKED
    values = pe.answer_confidence(ranking, kind, SIBLINGS)
    expected = pe.learn_then_test(values, right, ASKED, 0.1)
    assert replace(found.accept, confidence="score", score="", dim=0, gallery_size=0, fitted_on="") == expected
    kept = found.accept(ranking, SIBLINGS)
    assert ((kept.ids[:, 0] >= 0) == expected(values)).all() and kept.ids.shape == (len(ASKED), 1)
    alone = ASKED >= 150
    limit = pe.choose_threshold(queries, gallery, (ASKED, SIBLINGS), fpir=0.1, confidence=kind).accept
    expected = pe.limit_false_matches(values[alone], 0.1, 0.1, ASKED[alone])
    assert replace(limit, confidence="score", score="", dim=0, gallery_size=0, fitted_on="") == expected
    apart = pe.choose_threshold(
        queries[~alone], gallery, (ASKED[~alone], SIBLINGS), fpir=0.1, confidence=kind, novel=queries[alone],
        novel_labels=ASKED[alone],
    )  # fmt: skip
    assert apart.accept.threshold == limit.threshold


def test_a_class_margin_of_items_among_each_other_leaves_out_their_own():
    _, d = of_siblings()
    found = pe.choose_threshold(d, None, SIBLINGS, wrong=0.05, confidence="class_margin")
    scores, ids = pe.search(d, d, 6, "cosine")
    rows = np.arange(len(d))[:, None]
    others = pe.Ranking(*(x[ids != rows].reshape(len(d), 5) for x in (scores, ids)))
    values = pe.answer_confidence(others, "class_margin", SIBLINGS)
    expected = pe.learn_then_test(values, SIBLINGS[others.ids[:, 0]] == SIBLINGS, SIBLINGS, 0.05)
    assert (found.accept.threshold, found.accept.wrong) == (expected.threshold, expected.wrong)


@pytest.mark.parametrize("promise", ["wrong", "fpir"])
def test_confidences_are_compared_on_other_classes_than_those_of_the_promise(promise):
    queries, gallery = of_siblings()
    given, some = (queries, gallery, (ASKED, SIBLINGS)), third("", ASKED, 0)
    assert len(np.unique(ASKED[some])) == 100 and not set(ASKED[some]) & set(ASKED[~some])
    found = pe.choose_threshold(*given, **{promise: 0.1}, confidence="auto")
    tried = {x.name: x.answered for x in found.compared}
    assert list(tried) == ["score", "margin", "class_margin", "probability"]
    assert tried[found.confidence] == max(tried.values()) > tried["score"] + 0.05
    assert found.confidence == found.accept.confidence and found.items == (~some).sum()
    assert "compared on 200 queries of 100 other classes" in found.sentence() and found.confidence in str(found)
    sections = {x.heading: x for x in threshold_sections(found)}
    assert "labels: by them the confidence is chosen" in sections[list(found.tables())[-1]].text
    assert sections["Scores"].content.axes[0].get_xlabel() == f"{found.confidence} of cosine"
    ranking = pe.search(queries, gallery, found.deepest, "cosine")
    right, values = SIBLINGS[ranking.ids[:, 0]] == ASKED, found.accept.confidence_of(ranking, SIBLINGS)
    alone = ~some & (ASKED >= 150)
    expected = (
        pe.learn_then_test(values[~some], right[~some], ASKED[~some], 0.1)
        if promise == "wrong"
        else pe.limit_false_matches(values[alone], 0.1, 0.1, ASKED[alone])
    )
    assert (found.accept.threshold, found.accept.number) == (expected.threshold, expected.number)
    # More answers than the score, to all of whose labels the promise could be.
    by_score = pe.choose_threshold(*given, **{promise: 0.1}).accept
    answered = (found.accept(ranking, SIBLINGS).ids >= 0).mean()
    assert answered > (by_score(pe.search(queries, gallery, 1, "cosine")).ids >= 0).mean()
    # The labels of the promise choose nothing: with others of them the choice is the same.
    others = ASKED.copy()
    others[~some] = np.random.default_rng(0).permutation(ASKED[~some])
    again = pe.choose_threshold(queries, gallery, (others, SIBLINGS), **{promise: 0.1}, confidence="auto")
    assert again.compared == found.compared and again.accept != found.accept


def test_means_of_both_sides_are_tried_on_the_same_classes():
    queries, gallery = of_siblings(mean=0.7)
    found = pe.choose_threshold(queries, gallery, (ASKED, SIBLINGS), wrong=0.1, try_centre=True)
    assert found.centre == pe.fit_centre(queries[np.flatnonzero(third("", ASKED, 0))], gallery)
    assert [x.name for x in found.compared] == ["score", "score (centred)"] and found.confidence == "score"
    assert found.accept.applied == io.fits.fingerprint(found.centre) != ""
    assert "score (centred) answers most" in found.sentence()
    best = pe.search(found.centre.of_queries(queries), found.centre.of_gallery(gallery), 1, "cosine")
    assert 0.9 * (found.accept(best).ids >= 0).mean() > (
        pe.choose_threshold(queries, gallery, (ASKED, SIBLINGS), wrong=0.1).chosen.accepted
    )


def test_searches_without_a_mate_lose_the_mean_of_queries_and_the_cohort_that_of_the_gallery():
    queries, gallery = of_siblings(mean=0.7)
    mated = ASKED < 150
    (known, novel), (asked, alone) = ((x[mated], x[~mated]) for x in (queries, ASKED))
    found = pe.choose_threshold(
        known, gallery, (asked, SIBLINGS), fpir=0.1, try_centre=True, novel=novel, novel_labels=alone
    )
    assert found.centre == pe.fit_centre(known[np.flatnonzero(third("", asked, 0))], gallery)
    moved, kept = found.centre.of_gallery(gallery), ~third("", alone, 0)
    best = pe.search(found.centre.of_queries(novel), moved, 1, "cosine").scores[:, 0]
    expected = pe.limit_false_matches(best[kept], 0.1, 0.1, alone[kept])
    assert found.accept.threshold == expected.threshold
    cohort = pe.Point(gallery.mu[::2] + 0.3 * np.random.default_rng(8).normal(size=(300, DIM)).astype("f4"))
    found = pe.choose_threshold(queries, gallery, (ASKED, SIBLINGS), wrong=0.1, try_centre=True, cohort=cohort)
    c, kept = found.centre, ~third("", ASKED, 0)
    q, g, others = c.of_queries(queries), c.of_gallery(gallery), c.of_gallery(cohort)
    sides = {name: pe.search(d, others, 300, "cosine") for name, d in (("queries", q), ("gallery", g))}
    best = pe.normalise_scores(pe.search(q, g, 100, "cosine"), **sides)
    right = SIBLINGS[best.ids[:, 0]] == ASKED
    assert found.accept.threshold == pe.learn_then_test(best.scores[kept, 0], right[kept], ASKED[kept], 0.1).threshold


def test_of_wrong_answers_each_class_counts_once():
    queries, gallery = of_siblings()
    some = np.random.default_rng(0).random(len(ASKED)) < 0.8  # one or two queries of a class
    asked = ASKED[some]
    found = pe.choose_threshold(queries[some], gallery, (asked, SIBLINGS), wrong=0.45, per="class")
    ranking = pe.search(queries[some], gallery, 1, "cosine")
    accepted = found.accept(ranking).ids[:, 0] >= 0
    wrong = accepted & (SIBLINGS[ranking.ids[:, 0]] != asked)
    weight = 1 / np.bincount(asked)[asked]
    assert 0.1 < accepted.mean() < 0.9 and found.chosen.wrong == pytest.approx(wrong.sum() / accepted.sum())
    assert found.chosen.wrong_by_class == pytest.approx(weight[wrong].sum() / weight[accepted].sum(), rel=1e-12)
    assert found.chosen.wrong_by_class != pytest.approx(found.chosen.wrong, rel=1e-3)


def test_scores_are_normalised_by_a_cohort():
    queries, gallery = of_siblings()
    cohort = pe.Point(np.random.default_rng(8).normal(size=(400, DIM)).astype("f4"))
    found = pe.choose_threshold(queries, gallery, (ASKED, SIBLINGS), wrong=0.1, cohort=cohort)
    sides = (pe.search(d, cohort, 300, "cosine") for d in (queries, gallery))
    named = dict(zip(("queries", "gallery"), sides, strict=True))
    best = pe.normalise_scores(pe.search(queries, gallery, 100, "cosine"), **named)
    right = SIBLINGS[best.ids[:, 0]] == ASKED
    assert found.accept.threshold == pe.learn_then_test(best.scores[:, 0], right, ASKED, 0.1).threshold
    assert found.accept.normalisation.startswith("adaptive S-norm by 400 items (")
    with pytest.raises(ValueError, match=r"^accept: the threshold is of cosine with adaptive S-norm by 400 items"):
        found.accept(pe.search(queries, gallery, 1, "cosine"))


@pytest.mark.parametrize(("size", "nearest"), [(400, 300), (40, 40)])
@pytest.mark.parametrize("confidence", ["score", "margin"])
def test_a_threshold_of_normalised_scores_takes_rankings_by_its_cohort_alone(confidence, size, nearest):
    rng, labels = np.random.default_rng(0), np.arange(200)
    people = rng.normal(size=(200, DIM))
    queries, gallery = (pe.Point(people + 0.6 * rng.normal(size=people.shape)) for _ in range(2))
    cohort, other = (pe.Point(np.random.default_rng(i).normal(size=(size, DIM))) for i in (8, 9))
    how = {"wrong": 0.2, "confidence": confidence, "cohort": cohort}
    found = pe.choose_threshold(queries, gallery, (labels, labels), **how)

    def normed(by, nearest, name):
        sides = {"queries": pe.search(queries, by, nearest), "gallery": pe.search(gallery, by, nearest)}
        return pe.normalise_scores(pe.search(queries, gallery, 100), **sides, cohort=name)

    ranking = normed(cohort, nearest, cohort)
    assert ranking.normalisation == found.accept.normalisation
    kept = found.accept(ranking)
    sure = pe.answer_confidence(ranking, confidence)
    assert kept.ids[:, 0].tolist() == np.where(sure >= found.accept.threshold, ranking.ids[:, 0], -1).tolist()
    assert kept.ids.shape == (len(queries), 1) and (kept.ids >= 0).mean() == found.chosen.accepted > 0
    if confidence == "score":  # and found of such a ranking it is the same one
        right = ranking.ids[:, 0] == labels
        again = pe.learn_then_test(ranking, right, labels, 0.2)
        assert (again.threshold, again.normalisation) == (found.accept.threshold, ranking.normalisation)
    for refused, got in (
        (normed(other, nearest, other), f"adaptive S-norm by {size} items ("),
        (normed(cohort, 30, cohort), f"adaptive S-norm by the nearest 30 of {size} items ("),
        (normed(cohort, nearest, None), "S-norm of some cohort (see cohort= of normalise_scores); choose"),
    ):
        with pytest.raises(ValueError, match=re.escape(f", and scores are of cosine with {got}")):
            found.accept(refused)


NONE_WRONG = pe.Point(np.repeat(np.eye(DIM), 2, 0) + 0.01 * np.random.default_rng(0).normal(size=(2 * DIM, DIM)))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda q, g, y: pe.choose_threshold(q, g, y, confidence="gap"), "choose_threshold: unknown confidence 'gap'"),
        (lambda q, g, y: pe.choose_threshold(q, g, Relevance.from_pairs([[0, 0], [1, 1]], len(q), len(g)),
                                             confidence="class_margin"),
         "choose_threshold: confidence class_margin needs labels of the gallery, got pairs or places"),
        (lambda q, g, y: pe.choose_threshold(q, g, (ASKED % 9, SIBLINGS % 9), confidence="auto"),
         "choose_threshold: queries are of 9 classes, expected 20 to compare confidences on a third of them"),
        (lambda q, g, y: pe.choose_threshold(q[:50], g[:1], (np.arange(50) % 30, SIBLINGS[:1]), confidence="margin"),
         "choose_threshold: confidence margin is not finite: a best score by cosine is, or no other item was found"),
        (lambda q, g, y: pe.choose_threshold(NONE_WRONG, None, np.arange(DIM).repeat(2), confidence="probability"),
         "choose_threshold: all 16 answers that a probability is to be fitted to are right"),
        (lambda q, g, y: pe.choose_threshold(q, g, y, cohort=pe.Point(np.eye(3))),
         "choose_threshold: cohort has 3 items of 3 dimensions, expected two or more like the gallery's 600 items of"),
        (lambda q, g, y: pe.choose_threshold(*(pe.Normal(d.mu, np.float32(1)) for d in (q, g)), y, "neg_kl",
                                             cohort=pe.Normal(g.mu, np.float32(3))),
         "choose_threshold: score neg_kl:direction=query_to_gallery is not symmetric, as S-norm needs"),
    ],
)  # fmt: skip
def test_confidences_that_answers_do_not_have_are_refused(call, message):
    with pytest.raises(ValueError, match="^" + re.escape(message)) as caught:
        call(*of_siblings(), (ASKED, SIBLINGS))
    assert "\n" not in str(caught.value)


def test_where_all_answers_are_right_the_score_is_the_first_of_equals():
    found = pe.choose_threshold(NONE_WRONG, None, np.arange(DIM).repeat(2), wrong=0.2, confidence="auto")
    assert found.confidence == "score" and [x.name for x in found.compared] == ["score", "margin", "class_margin"]


# -- from files to a search --------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (queries, gallery, novel), normals = searches(), searches("normal")
    for name, d in (("q.npy", queries), ("g.npy", gallery), ("novel.npy", novel), ("q.npz", normals[0]),
                    ("g.npz", normals[1])):  # fmt: skip
        io.write_distribution(name, d)
    np.save("yq.npy", WHO)
    np.save("yg.npy", HELD)
    np.save("people.npy", NOVEL)
    io.write_fit("prior.json", pe.fit_prior(normals[1], HELD))
    match = np.arange(3000) % 3 == 0
    scores = np.random.default_rng(0).normal(size=3000) + 3 * match
    lines = [f"{s!r},{int(m)},{i // 3}" for i, (s, m) in enumerate(zip(scores.tolist(), match, strict=True))]
    Path("pairs.csv").write_text("\n".join(["score,match,group", *lines]) + "\n")
    return tmp_path


OF_POINTS = "--queries q.npy --gallery g.npy --query-labels yq.npy --gallery-labels yg.npy --out o"
OF_NORMALS = "--queries q.npz --gallery g.npz --query-labels yq.npy --gallery-labels yg.npy --out o"


@pytest.mark.parametrize(
    ("line", "search", "others"),
    [
        (f"{OF_POINTS} --wrong 5%", "--score cosine --k 1 --accept o/accept.json --gallery g.npy", "novel.npy"),
        (f"{OF_POINTS} --wrong .1 --certainty 0.8", "--score cosine --k 1 --accept o/accept.json --gallery g.npy",
         "novel.npy"),
        (f"{OF_POINTS} --novel novel.npy --novel-labels people.npy --fpir 10%",
         "--score cosine --k 1 --accept o/accept.json --gallery g.npy", "novel.npy"),
        (f"{OF_NORMALS} --wrong 5% --score llr --prior prior.json",
         "--score llr --prior prior.json --k 1 --accept o/accept.json --gallery g.npz", "q.npz"),
    ],
)  # fmt: skip
def test_the_command_that_is_printed_accepts_by_the_threshold(folder, capsys, line, search, others):
    code, out, err = run(capsys, f"choose-threshold {line}")
    assert code == 0, err
    assert out.splitlines()[-1] == f"peaccel search {search} --queries ... --out ..."
    accept, saved = io.read_fit("o/accept.json"), json.loads(Path("o/threshold.json").read_text())
    chosen = next(x for x in saved["results"] if [x["promise"], x["alpha"]] == saved["asked"])
    assert math.isfinite(accept.threshold) and chosen["threshold"] == accept.threshold
    assert "<h2>Risk against coverage</h2>" in Path("o/report.html").read_text()
    assert run(capsys, f"search {search} --queries {others} --out r.npz")[0] == 0
    scores, ids = io.read_ranking("r.npz")
    assert run(capsys, f"search {search} --queries {others} --out r.npz".replace("--accept o/accept.json", ""))[0] == 0
    every = io.read_ranking("r.npz")
    assert ((ids >= 0) == accept(every[0])).all() and np.array_equal(scores[ids >= 0], every[0][accept(every[0])])
    assert 0 < (ids >= 0).sum() < len(ids)


def test_the_command_writes_a_threshold_of_each_group(folder, capsys):
    np.save("language.npy", LANGUAGES)
    line = f"choose-threshold {OF_POINTS} --wrong 20% --within language.npy"
    code, out, err = run(capsys, line)
    assert code == 0, err
    found = pe.choose_threshold(*searches()[:2], (WHO, HELD), wrong=0.2, within=LANGUAGES)
    for i, x in enumerate(found.within, 1):
        assert io.read_fit(f"o/accept-{i}.json") == replace(x.accept, applied="none")
        assert f"o/accept-{i}.json is for queries of group {x.name}\n" in out
    assert "<h2>Within each group, all at once</h2>" in Path("o/report.html").read_text()
    assert run(capsys, line)[0] == 0  # these are its own files
    code, _, err = run(capsys, f"choose-threshold {OF_POINTS} --fpir 20% --within language.npy --out p")
    assert code == 2 and "within needs wrong" in err


def test_scored_pairs_end_in_a_line_of_python(folder, capsys):
    code, out, err = run(capsys, "choose-threshold --pairs pairs.csv --far 1% --certainty 95% --out o")
    assert code == 0, err
    names = {"scores": [0.0, 9.0]}
    exec(out.splitlines()[-1], names)
    assert names["accepted"].tolist() == [False, True]
    scores, match, groups = io.read_scored_pairs("pairs.csv")
    equal(io.read_fit("o/accept.json"), pe.limit_false_matches(scores[~match], 0.01, 0.05, groups[~match]))


def test_the_least_detection_cost_is_chosen_and_kept_without_a_promise(folder, capsys):
    code, out, err = run(capsys, "choose-threshold --pairs pairs.csv --p-target 0.2 --c-miss 3 --out o")
    assert code == 0, err
    scores, match, groups = io.read_scored_pairs("pairs.csv")
    cost = metrics.detection_cost(scores, match, 0.2, c_miss=3, clusters=groups)
    point = metrics.equal_error_rate(scores, match)
    assert io.read_fit("o/accept.json").threshold == cost.threshold
    assert f"Accept pairs that score at least {cost.threshold:.6g}: no threshold costs less on these" in out
    assert "where 20 % of the pairs match, a miss costs 3 and a false acceptance 1" in out
    assert "Of others it promises nothing." in out and "<h2>Detection cost</h2>" in Path("o/report.html").read_text()
    saved = json.loads(Path("o/threshold.json").read_text())["cost"]
    assert (saved["min_dcf"]["value"], saved["min_dcf"]["low"]) == (cost.min_dcf, cost.min_dcf_interval[0])
    assert (saved["cllr"]["value"], saved["actual_dcf"]["value"]) == (cost.cllr, cost.actual_dcf)
    assert (saved["eer_threshold"], saved["equal_error_rate"]["value"]) == (point.threshold, point.rate)


@pytest.mark.parametrize(("p_target", "kept"), [(1e-9, [False] * 4), (1 - 1e-9, [True] * 4)])
def test_where_no_threshold_costs_less_all_are_refused_or_accepted(tmp_path, p_target, kept):
    scores, match = np.array([0.2, 0.4, 0.6, 0.8]), [1, 0, 1, 0]
    found = pe.choose_pair_threshold(scores, match, p_target=p_target)
    assert ("Accept all pairs" if kept[0] else "Refuse all pairs") in found.sentence()
    io.write_fit(tmp_path / "accept.json", found.accept)
    assert io.read_fit(tmp_path / "accept.json")(scores).tolist() == found.accept(scores).tolist() == kept


def test_without_a_target_tables_are_shown_and_without_a_threshold_nothing_is_accepted(folder, capsys):
    code, out, _ = run(capsys, "choose-threshold --pairs pairs.csv --out o")
    assert code == 0 and "Name a target" in out and not Path("o/accept.json").exists()
    assert out.count("\n10 % ") == 2
    assert run(capsys, "choose-threshold --pairs pairs.csv --wrong .01% --strict --out o")[0] == 1
    assert Path("o/accept.json").exists()
    assert run(capsys, "choose-threshold --pairs pairs.csv --out o")[0] == 0 and not Path("o/accept.json").exists()
    assert run(capsys, "choose-threshold --pairs pairs.csv --wrong 5% --strict --out o")[0] == 0
    code, out, _ = run(capsys, "choose-threshold --pairs pairs.csv --wrong .01% --out o")
    assert code == 0 and out.endswith("o/accept.json accepts nothing\n") and "No threshold can be promised" in out
    assert io.read_fit("o/accept.json").threshold == math.inf


@pytest.mark.parametrize("name", ["accept.json", "centre.json"])
@pytest.mark.parametrize("numbers", [None, "{}", "[", '{"files": 3}', '{"files": ["other.json"]}'])
def test_files_of_others_in_the_folder_stay(folder, capsys, name, numbers):
    Path("o").mkdir()
    Path("o", name).write_text("theirs")
    if numbers is not None:
        Path("o/threshold.json").write_text(numbers)
    before = {path.name: path.read_bytes() for path in Path("o").iterdir()}
    code, _, err = run(capsys, "choose-threshold --pairs pairs.csv --wrong 5% --out o")
    what = "which threshold.json does not name as that of an earlier run: choose another folder"
    assert code == 2 and err == f"peaccel choose-threshold: --out is o, but o/{name} is there, {what}\n"
    assert {path.name: path.read_bytes() for path in Path("o").iterdir()} == before


def test_no_link_in_the_folder_is_written_through(folder, capsys):
    Path("o").mkdir()
    Path("theirs").write_text("theirs")
    Path("o/report.html").symlink_to(Path("theirs").resolve())
    code, _, err = run(capsys, "choose-threshold --pairs pairs.csv --out o")
    assert code == 2 and "--out is o, but o/report.html is there, a link: choose another folder" in err
    assert Path("theirs").read_text() == "theirs"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (f"{OF_POINTS} --wrong 0%", "--wrong is '0%', expected a share between 0 and 1, such as 1% or 0.01"),
        (f"{OF_POINTS} --wrong 1", "--wrong is '1', expected a share"),
        (f"{OF_POINTS} --fpir many", "--fpir is 'many', expected a share"),
        (f"{OF_POINTS} --wrong nan", "--wrong is 'nan', expected a share"),
        (f"{OF_POINTS} --certainty 100%", "--certainty is '100%', expected a share"),
        (f"{OF_POINTS} --wrong 1% --fpir 1%", "expected one target, found --wrong and --fpir"),
        (f"{OF_POINTS} --far 1%", "--far is of --pairs; of searches it is --fpir"),
        (f"{OF_POINTS} --fpir 1%", "choose_threshold: fpir needs searches without a mate"),
        (f"{OF_POINTS} --prior prior.json", "--prior is for score llr without a prior of its own, got score cosine"),
        (
            f"{OF_POINTS} --calibration sided.json",
            "sided.json: is of one side of two, expected --gallery-calibration too",
        ),
        ("--out o", "expected one of these together: --embeddings --labels; "),
        ("--queries q.npy --out o", "expected one of these together: --embeddings --labels; "),
        ("--embeddings q.npy --labels yg.npy --out o", "choose_threshold: labels has shape (560,), expected (660,)"),
        (f"{OF_POINTS} --p-target 0.01", "--p-target is of --pairs and --trial-list"),
        ("--pairs pairs.csv --p-target 2 --out o", "choose_pair_threshold: p_target is 2.0, expected"),
        ("--pairs pairs.csv --p-target 0.01 --far 1% --out o", "expected one target, found --far and --p-target"),
        ("--pairs pairs.csv --far 1% --c-miss 10 --out o", "--c-miss and --c-fa go with --p-target"),
        ("--pairs pairs.csv --fpir 1% --out o", "--fpir is of searches; of --pairs it is --far"),
        ("--pairs pairs.csv --queries q.npy --out o", "--pairs are scored already and stand alone, found --queries"),
        ("--pairs pairs.csv --score mls --out o", "--pairs are scored already and stand alone, found --score"),
        ("--pairs none.csv --out o", "none.csv: no such file"),
        ("--pairs pairs.csv --out q.npy", "--out is q.npy, a file, expected a folder"),
        (f"{OF_POINTS} --calibration o/accept.json", "o/accept.json: is also an input"),
    ],
)
def test_the_command_refuses_in_one_line(folder, capsys, line, message):
    io.write_fit("sided.json", Calibration(2.0, 0.0, "Normal", (0.5, 1.0)))
    Path("o").mkdir()
    Path("o/accept.json").write_text("{}")
    Path("o/threshold.json").write_text('{"files": ["accept.json"]}')
    code, out, err = run(capsys, f"choose-threshold {line}")
    assert (code, out) == (2, "") and err.startswith(f"peaccel choose-threshold: {message}"), err
    assert err.count("\n") == 1 and Path("o/accept.json").read_text() == "{}"


def test_what_the_page_shows_runs_and_prints_what_it_says(capsys):
    for block in re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL):
        exec(block, {})
        assert capsys.readouterr().out.splitlines() == re.findall(r"^# (.*)", block, re.MULTILINE)


@pytest.mark.parametrize(("row", "certainty"), [("certainty 90 %", 0.9), ("certainty 95 %", 0.95)])
def test_the_fewest_labels_of_the_page_are_those_that_find_a_threshold(row, certainty):
    (head,), (cells,) = (
        re.findall(rf"^\| {name} \| (.*) \|$", PAGE.read_text(), re.MULTILINE) for name in ("at most", row)
    )
    for share, count in zip(head.split(" | "), map(int, cells.split(" | ")), strict=True):
        alpha = float(share.removesuffix(" %")) / 100
        for n, accepts in ((count - 1, False), (count, True)):
            made = pe.learn_then_test(np.arange(n), np.ones(n, bool), np.arange(n), alpha, 1 - certainty)
            assert np.isfinite(made.threshold) == accepts, (share, n)


# -- the page ----------------------------------------------------------------------------------------------------------


def test_pictures_are_of_what_their_headings_say():
    queries, gallery, novel = searches()
    found = pe.choose_threshold(queries, gallery, (WHO, HELD), fpir=0.1, novel=novel)
    sections = {x.heading: x for x in threshold_sections(found)}
    first, *titles, risk, reliability, errors, scores = sections
    assert titles == list(found.tables()) and sections[first].text == found.sentence()
    line, bound, *_ = sections[risk].content.axes[0].lines
    assert np.array_equal(line.get_xydata(), 100 * np.array(found.coverage))
    assert np.array_equal(bound.get_xydata(), 100 * np.array(found.bound))
    points = sections[reliability].content.axes[0].lines[1].get_xydata()
    assert np.array_equal(points, [x[:2] for x in found.calibration]) and sum(x[2] for x in found.calibration) == 660
    curve, point = sections[errors].content.axes[0].lines
    assert np.array_equal(curve.get_xydata(), np.maximum(found.trade_off, (1 / 400, 1 / 1320)))
    assert point.get_xydata().tolist() == [[found.chosen.false, 1 - found.chosen.found]]
    axes = sections[scores].content.axes[0]
    assert axes.lines[0].get_xdata()[0] == found.chosen.threshold
    assert [sum(counts) for counts in found.counts.values()] == [
        round(s * 660) for s in (1 - found.coverage[-1][1], found.coverage[-1][1])
    ] + [200]


@pytest.mark.parametrize("change", [{"wrong": 1e-4}, {}])
def test_a_page_without_a_threshold_marks_none(change):
    d = embed(WHO[:80], 3)
    found = pe.choose_threshold(d, None, WHO[:80] // 4, **change)
    sections = {x.heading: x for x in threshold_sections(found)}
    assert "Detection error trade-off" not in sections or found.others
    for heading in ("Risk against coverage", "Scores"):
        labels = sections[heading].content.axes[0].get_legend_handles_labels()[1]
        assert "the threshold" not in labels


def test_scores_that_rounding_alone_tells_apart_have_a_histogram():
    """In one dimension cosines are 1 and -1 up to a rounding."""
    d = pe.Point(np.random.default_rng(0).normal(size=(30, 1)) ** 2)
    found = pe.choose_threshold(d, None, np.arange(30) % 3, wrong=0.9)
    assert len(found.edges) == 41 and np.diff(found.edges).min() > 0
    assert sum(map(sum, found.counts.values())) == 30
