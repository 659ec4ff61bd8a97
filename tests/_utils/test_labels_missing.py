"""Classes that are missing are refused wherever classes enter, by one sentence with their number and the first row."""

import re

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch

import peaccel as pe
from peaccel import metrics
from peaccel.data.features import features
from peaccel.evaluation.drawn_pairs import verification_pairs

X = pe.Normal(np.random.default_rng(0).normal(size=(12, 3)), np.full(12, 0.1))
LABELS = [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5]
IDS = np.stack([np.roll(np.arange(12), -i) for i in range(12)])
SAYS = (
    r": 2 of the 12 (\w| )+ are missing \(None, NaN or masked\), the first in row 4; expected the class of each item$"
)


def with_none(missing, kind=int):
    return [missing if i in (4, 9) else kind(x) for i, x in enumerate(LABELS)]


MISSING = {
    "None": with_none(None),
    "None among words": with_none(None, str),
    "NaN": with_none(np.nan),
    "NaN among words": with_none(np.nan, str),
    "NaN in an array": np.array(with_none(np.nan)),
    "NaN in an array of objects": np.array(with_none(np.nan, str), object),
    "NaN in a tensor": torch.tensor(with_none(np.nan)),
    "pandas' NA": pd.Series(with_none(pd.NA), dtype="Int64"),
    "pandas' NA among words": pd.Series(with_none(pd.NA, str), dtype="string"),
    "NA in a list": with_none(pd.NA),
    "a category": pd.Series(pd.Categorical(with_none(None, str))),
    "NaT": np.array(with_none("NaT", lambda i: f"2026-01-{i + 1:02}"), "M8[D]"),
    "NaT of pandas": pd.Series(pd.to_datetime(with_none(None, lambda i: f"2026-01-{i + 1:02}"))),
    "null of Polars": pl.Series(with_none(None, str)),
    "masked": np.ma.masked_array(LABELS, np.isin(np.arange(12), (4, 9))),
}
CALLS = {
    "evaluate": lambda y: pe.evaluate(X, None, y),
    "evaluate, both sides": lambda y: pe.evaluate(X, X, (LABELS, y)),
    "novel labels": lambda y: pe.evaluate(X, None, LABELS, novel=X, novel_labels=y),
    "evaluate_templates": lambda y: pe.evaluation.evaluate_templates(X, np.arange(12), y),
    "choose_threshold": lambda y: pe.choose_threshold(X, None, y),
    "choose_score": lambda y: pe.choose_score(X, y),
    "recall_at_k": lambda y: metrics.recall_at_k(IDS, y),
    "recall_at_k, gallery": lambda y: metrics.recall_at_k(IDS, LABELS, y),
    "nmi": lambda y: metrics.nmi(X.mu, y),
    "truncated_rows": lambda y: metrics.truncated_rows(y, 5),
    "verification_pairs": lambda y: verification_pairs(y, None),
    "learn_then_test": lambda y: pe.learn_then_test(np.arange(12.0), np.ones(12, bool), y, alpha=0.1),
    "conformal_sets": lambda y: pe.conformal_sets(-IDS[:1].repeat(12, 0), np.eye(12, dtype=bool), y, alpha=0.1),
    "limit_false_matches": lambda y: pe.limit_false_matches(np.arange(12.0), 0.1, groups=y),
    "fit_prior": lambda y: pe.fit_prior(X, y),
    "fit_plda": lambda y: pe.fit_plda(X.mu, y),
    "fuse": lambda y: pe.fuse(X, y),
    "fit_vmf": lambda y: pe.fit_vmf(X.mu / np.linalg.norm(X.mu, axis=1, keepdims=True), groups=y),
}


@pytest.mark.parametrize("missing", MISSING)
@pytest.mark.parametrize("call", CALLS)
def test_missing_classes_are_refused_by_one_sentence(call, missing):
    with pytest.raises(ValueError) as caught:
        CALLS[call](MISSING[missing])
    assert re.search(SAYS, str(caught.value)), str(caught.value)


def test_readers_refuse_missing_labels(tmp_path):
    np.save(tmp_path / "labels.npy", np.array(with_none(np.nan)))
    pd.DataFrame({"labels": with_none(None, str)}).to_parquet(tmp_path / "labels.parquet")
    pd.DataFrame({"labels": pd.Series(with_none(pd.NA), dtype="Int64")}).to_parquet(tmp_path / "numbers.parquet")
    np.save(tmp_path / "x.npy", X.mu)
    with pytest.raises(ValueError, match=rf"labels.npy{SAYS}"):
        pe.io.read_labels(tmp_path / "labels.npy")
    for name in ("labels", "numbers"):
        with pytest.raises(ValueError, match=rf"{name}.parquet: column labels is null in row 4$"):
            pe.io.read_labels(tmp_path / f"{name}.parquet")
    with pytest.raises(ValueError, match=SAYS):
        features(tmp_path / "x.npy", tmp_path / "labels.npy")


ITEMS = pe.Point(np.eye(3))
MASKED = np.ma.masked_array([[0, 1], [1, 2], [0, 2]], [[0, 1], [0, 0], [0, 0]])


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda: pe.rerank(ITEMS, ITEMS, MASKED, 1), "cosine: candidates"),
        (lambda: pe.rescore(ITEMS, ITEMS, MASKED), "cosine: candidates"),
        (lambda: pe.scores.llr(prior_var=MASKED[0]), "llr: prior_var"),
        (lambda: pe.merge([pe.Ranking(np.zeros((3, 2)), MASKED)], 1), "merge: ids of ranking 0"),
    ],
)
def test_masked_candidates_rankings_and_parameters_are_refused(call, name):
    with pytest.raises(TypeError, match=f"^{name} is a masked array, expected a plain one: what is masked would count"):
        call()


def test_a_masked_array_of_numbers_is_refused_also_where_no_classes_are_asked_for():
    with pytest.raises(TypeError, match=r"^roc_auc: scores is a masked array, expected a plain one"):
        metrics.roc_auc(np.ma.masked_array([0.1, 0.2, 0.3], [0, 1, 0]), [0, 1, 1])
    with pytest.raises(TypeError, match="is a masked array"):
        pe.learn_then_test(
            np.ma.masked_array(np.arange(12.0), np.arange(12) == 3), np.ones(12, bool), LABELS, alpha=0.1
        )


@pytest.mark.parametrize("form", [pl.Series, list, lambda x: pd.Series(x, dtype="boolean")])
def test_matches_that_are_missing_are_said_to_be(form):
    match = form([True, None, False])
    for call in (
        lambda: pe.fit_match_probability([0.1, 0.2, 0.3], match),
        lambda: pe.learn_then_test(np.arange(3.0), match, np.arange(3), alpha=0.1),
        lambda: pe.choose_pair_threshold([0.1, 0.2, 0.3], match, far=0.1),
    ):
        says = r": 1 of the 3 \w+ are missing \(None, NaN or masked\), the first in row 1; expected booleans"
        with pytest.raises(ValueError, match=says):
            call()
