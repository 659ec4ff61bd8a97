"""Ids, groups, allowed rows and matches in every form in which lists, data frames and files hold them."""

from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch

import peaccel as pe
from peaccel import io, metrics

NAMES = ["bob", "ann", "bob", "cy"]
NAMED = {
    "list": NAMES,
    "array": np.array(NAMES),
    "objects": np.array(NAMES, object),
    "Series": pd.Series(NAMES),
    "categories": pd.Series(NAMES, dtype="category"),
    "Polars": pl.Series(NAMES),
}
NUMBERS = [7, 3, 7, 9]
NUMBERED = {
    "list": NUMBERS,
    "tensor": torch.tensor(NUMBERS),
    "objects": np.array(NUMBERS, object),
    "Int64": pd.Series(NUMBERS, dtype="Int64"),
    "categories": pd.Series(NUMBERS, dtype="category"),
    "Polars": pl.Series(NUMBERS),
}
FORMS = {**{f"names, {k}": v for k, v in NAMED.items()}, **{f"numbers, {k}": v for k, v in NUMBERED.items()}}
MU = np.array([[1.0, 0.0], [0.0, 1.0], [0.8, 0.6], [-1.0, 0.0]])


@pytest.mark.parametrize("groups", FORMS.values(), ids=FORMS)
@pytest.mark.parametrize("kind", [np.array, torch.tensor])
def test_groups_go_by_names_and_numbers_and_come_back_in_the_order_of_rows(groups, kind):
    expected = ["ann", "bob", "cy"] if "bob" in list(groups) else [3, 7, 9]
    rows = [np.array([1, 0, 1, 2]), np.array([0, 1, 0, 2])]
    by_row = rows[0]  # ann or 3 first, bob or 7 second
    points, names = pe.fuse(pe.Point(kind(MU)), groups, names=True)
    assert names.tolist() == expected
    assert torch.equal(torch.as_tensor(points.mu), torch.as_tensor(pe.fuse(pe.Point(kind(MU)), by_row).mu))
    fitted, names = pe.fit_vmf(kind(MU), groups=groups, names=True)
    assert names.tolist() == expected
    assert torch.equal(torch.as_tensor(fitted.kappa), torch.as_tensor(pe.fit_vmf(kind(MU), groups=by_row).kappa))


def test_persons_are_enrolled_in_plda_by_name_and_found_by_it():
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(40), 5)
    x = 9 * rng.normal(size=(40, 3))[labels] + rng.normal(size=(200, 3))
    plda = pe.fit_plda(x, [f"p{label:02}" for label in labels])
    persons = pd.Series([f"p{label:02}" for label in labels], dtype="category")
    first = np.arange(200) % 5 < 3
    enrolled, names = pe.fuse(plda.transform(x[first]), persons[first], names=True)
    scores = pe.pairwise(plda.transform(x[~first]), enrolled, plda.score)
    assert (names[scores.argmax(1)] == np.array(persons)[~first]).mean() > 0.95


def test_names_without_groups_and_groups_of_two_kinds_are_refused():
    with pytest.raises(ValueError, match="fit_vmf: names is True and groups is None"):
        pe.fit_vmf(MU, names=True)
    with pytest.raises(ValueError, match=r"fuse: groups have shape \(4,\) and dtype object, expected integers or str"):
        pe.fuse(pe.Point(MU), ["a", 1, "b", 2])
    with pytest.raises(ValueError, match=r"fuse: 1 of the 4 groups are missing .* row 2"):
        pe.fuse(pe.Point(MU), ["a", "b", None, "b"])


# -- ids and what is allowed -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", [np.array([20, 40], object), pd.Series([20, 40], dtype="Int64"), {20, 40}, [20, 40]])
def test_allowed_ids_in_every_form(form):
    reranker = pe.FaissReranker.build(pe.Point(MU), "Flat", ids=pd.Series([10, 20, 30, 40], dtype="Int64"))
    assert reranker.search(pe.Point(MU[:1]), k=4, allowed=form).ids.tolist() == [[20, 40, -1, -1]]


def test_one_item_is_allowed_by_its_id_alone():
    numbered = pe.FaissReranker.build(pe.Point(MU), "Flat")
    named = pe.FaissReranker.build(pe.Point(MU), "Flat", ids=["a", "b", "c", "d"])
    assert numbered.search(pe.Point(MU[:1]), k=2, allowed=3).ids.tolist() == [[3, -1]]
    assert named.search(pe.Point(MU[:1]), k=2, allowed="d").ids.tolist() == [["d", ""]]
    assert named.search(pe.Point(MU[:1]), k=2, allowed={"d"}).ids.tolist() == [["d", ""]]


@pytest.mark.parametrize("ids", [["a", None, "c", "d"], pd.Series([1, None, 3, 4], dtype="Int64"), [1, np.nan, 3, 4]])
def test_a_missing_id_says_its_row(ids):
    with pytest.raises(ValueError, match=r"FaissReranker.build: 1 of the 4 ids are missing .* row 1; expected the id"):
        pe.FaissReranker.build(pe.Point(MU), "Flat", ids=ids)


# -- matches -----------------------------------------------------------------------------------------------------------

SCORES = [0.9, 0.2, 0.8, 0.1]
MATCHES = {
    "booleans": [True, False, True, False],
    "numbers": [1, 0, 1, 0],
    "floats": [1.0, 0.0, 1.0, 0.0],
    "objects": np.array([1, 0, 1, 0], object),
    "Int64": pd.Series([1, 0, 1, 0], dtype="Int64"),
    "boolean": pd.Series([True, False, True, False], dtype="boolean"),
    "yes and no": ["yes", "No", "YES", "no"],
    "targets": ["target", "nontarget", "target", "nontarget"],
    "words of numbers": ["1", "0.0", "1.0", "0"],
    "true and false": pd.Series(["True", "false", "TRUE", "False"]),
    "categories": pd.Series(["target", "nontarget", "target", "nontarget"], dtype="category"),
}


@pytest.mark.parametrize("match", MATCHES.values(), ids=MATCHES)
def test_matches_in_every_form_from_functions_and_files(match, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    plain = [1, 0, 1, 0]
    found = pe.choose_pair_threshold(SCORES, match).results
    assert repr(found) == repr(pe.choose_pair_threshold(SCORES, plain).results)
    assert pe.fit_match_probability(SCORES, match) == pe.fit_match_probability(SCORES, plain)
    assert pe.fit_shift(pe.Point(MU), [[0, 2], [0, 1], [1, 2], [1, 3]], match) == pe.fit_shift(
        pe.Point(MU), [[0, 2], [0, 1], [1, 2], [1, 3]], plain
    )
    assert metrics.roc_auc(SCORES, match) == 1
    table = pd.DataFrame({"Score": SCORES, "Match": match})
    table.to_parquet("pairs.parquet")
    np.savez("pairs.npz", score=SCORES, match=np.array(list(match)))
    for between, name in ((",", "pairs.csv"), ("\t", "tabs.csv"), (";", "semicolons.csv"), ("\t", "pairs.tsv")):
        table.to_csv(name, sep=between, index=False)
    for path in sorted(Path().iterdir()):
        pairs = io.read_scored_pairs(path)
        assert (pairs.scores.tolist(), pairs.match.tolist()) == (SCORES, [True, False, True, False]), path


def test_what_says_neither_yes_nor_no_is_named(tmp_path):
    with pytest.raises(ValueError, match="choose_pair_threshold: match has maybe in row 1, expected only 0 and 1"):
        pe.choose_pair_threshold(SCORES, ["yes", "maybe", "no", "no"])
    with pytest.raises(ValueError, match="roc_auc: same has maybe in row 1, expected only 0 and 1, booleans, or words"):
        metrics.roc_auc(SCORES, ["yes", "maybe", "no", "no"])
    path = tmp_path / "pairs.tsv"
    path.write_text("Score\tMatch\n0.5\tyes\n0.4\tmaybe\n")
    with pytest.raises(ValueError, match=r"pairs.tsv: line 3: match is 'maybe', expected 0 or 1, or such words as yes"):
        io.read_scored_pairs(path)


IDS = 1_700_000_000_000_000_000 + np.arange(30)
"""Beyond the integers that float64 tells apart."""


def sides():
    rng = np.random.default_rng(0)
    centres, asked, stored = rng.normal(size=(30, 16)), np.arange(30).repeat(3), np.arange(30).repeat(4)
    items = [pe.Normal(centres[x] + rng.normal(size=(len(x), 16)), np.full(len(x), 0.1)) for x in (asked, stored)]
    return items, IDS[asked], IDS[stored]


@pytest.mark.parametrize("past", [0, 2**63])
def test_integers_without_a_sign_are_equal_to_those_with_one(past):
    """Side by side numpy would make floats of them; those beyond int64 are no one's."""
    (q, g), asked, stored = sides()
    unsigned = asked.astype("u8")
    unsigned[-1] += np.uint64(past)
    for find in (
        lambda labels: str(pe.evaluate(q, g, labels, "cosine").scores[0]),
        lambda labels: str(pe.choose_score(pe.Point(q.mu), labels, gallery=pe.Point(g.mu)).best),
        lambda labels: pe.fit_prior(q, g, *labels).var,
        lambda labels: metrics.recall_at_k(pe.search(q, g, 5).ids, *labels),
    ):
        signed = np.where(np.arange(len(asked)) < len(asked) - bool(past), asked, 2**63 - 1)
        assert find((unsigned, stored)) == find((signed, stored))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda x: [str(i) for i in x], "numbers, {}s? .*words: no class is in both$"),
        (lambda x: np.array([str(i) for i in x], "S"), "numbers, {}s? .*bytes: no class is in both$"),
        (lambda x: [str(x[0]), *x[1:]], "numbers and words, expected all of one kind$"),
    ],
)
def test_labels_of_another_kind_are_refused_by_all(change, says):
    (q, g), asked, stored = sides()
    for call in (pe.fit_prior, lambda q, g, *labels: pe.evaluate(q, g, labels)):
        with pytest.raises(ValueError, match=says.partition("{")[0]):
            call(q, g, asked, change(stored))
    if "all of one kind" in says:
        for fit in (pe.fit_prior, lambda d, x: pe.fit_plda(d.mu, x), lambda d, x: metrics.nmi(d.mu, x)):
            with pytest.raises(ValueError, match=says):
                fit(g, change(stored))


def test_strings_of_any_length_are_words():
    (q, g), asked, stored = sides()
    words = stored.astype("U").astype(np.dtypes.StringDType())
    assert pe.evaluate(q, g, (asked.astype(str), words)) is not None
    np.testing.assert_array_equal(pe.fuse(g, words, names=True)[1], IDS.astype(str))
    kept = pe.FaissReranker.build(g, "Flat", ids=np.array([f"a{i}" for i in range(len(g))], words.dtype))
    assert kept.search(g[:1], 1).ids[0, 0] == "a0"
    assert metrics.roc_auc([0.1, 0.2], np.array(["no", "yes"], words.dtype)) == 1


@pytest.mark.parametrize("order", "<>")
def test_groups_of_either_byte_order_go_beside_tensors(order):
    found = pe.fuse(pe.Point(torch.tensor(MU)), np.array([1, 0, 1, 2], f"{order}u4"))
    np.testing.assert_array_equal(found.mu, pe.fuse(pe.Point(MU), np.array([1, 0, 1, 2])).mu)


def test_empty_lists_are_of_integers():
    assert pe.fuse(pe.Point(MU)[:0], []).mu.shape == (0, 2)
    assert pe.score_trials(pe.Point(MU), [*"abcd"], [], [], enrolment={}).shape == (0,)
