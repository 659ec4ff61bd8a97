"""Exclusions by columns: what comparing each pair finds, and errors of columns."""

import numpy as np
import pandas as pd
import pytest

import peaccel as pe

RNG = np.random.default_rng(2)
QUERIES = {"person": RNG.integers(0, 9, 40), "camera": RNG.integers(0, 3, 40)}
GALLERY = {"person": RNG.integers(2, 12, 200), "camera": RNG.integers(0, 4, 200)}


def texts(columns):
    return {name: np.char.add("n", x.astype(str)) for name, x in columns.items()}


@pytest.mark.parametrize("form", [dict, pd.DataFrame, texts, lambda x: {name: y.tolist() for name, y in x.items()}])
@pytest.mark.parametrize("names", [["person"], ["person", "camera"]])
def test_items_of_the_same_values_are_excluded(form, names):
    queries, gallery = (form({name: x[name] for name in names}) for x in (QUERIES, GALLERY))
    exclude = pe.exclude_same(queries, gallery)
    same = np.all([QUERIES[name][:, None] == GALLERY[name] for name in names], 0)
    assert [exclude.of_query(i).tolist() for i in range(40)] == [np.flatnonzero(row).tolist() for row in same]
    assert exclude.counts.tolist() == same.sum(1).tolist()
    part = exclude[10:13]
    assert len(part) == 3 and part.of_query(1).tolist() == np.flatnonzero(same[11]).tolist()


def test_ids_stand_for_rows():
    names = np.array([f"n{i}" for i in range(200)])
    rows, ids = pe.exclude_same(QUERIES, GALLERY), pe.exclude_same(QUERIES, GALLERY, ids=names)
    assert [names[rows.of_query(i)].tolist() for i in range(40)] == [ids.of_query(i).tolist() for i in range(40)]


def test_the_record_has_a_number_for_each_row_of_both_sides():
    exclude = pe.exclude_same({"x": np.zeros(1000)}, {"x": np.zeros(5000)})
    assert exclude.counts.sum() == 5_000_000 and exclude.nbytes < 8 * 6010


@pytest.mark.parametrize(
    ("queries", "gallery", "message"),
    [
        ([1], [1], "queries is list, expected columns by their names, at least one"),
        ({}, {"x": [1]}, "queries is dict, expected columns by their names, at least one"),
        ({"x": [1]}, {"y": [1]}, "gallery has the columns y, expected x like queries"),
        ({"x": [1], "y": [1, 2]}, {"x": [1], "y": [1]}, r"column 'y' has lengths \(2, 1\), expected \(1, 1\)"),
        ({"x": [1]}, {"x": [None]}, r"1 of the 1 gallery\['x'\] are missing"),
        ({"x": [1]}, {"x": ["a"]}, r"queries\['x'\] are numbers, gallery\['x'\] words"),
        ({"x": [[1]]}, {"x": [1]}, r"queries\['x'\] has shape \(1, 1\), expected \(N,\)"),
    ],
)
def test_columns_that_are_refused(queries, gallery, message):
    with pytest.raises(ValueError, match=f"^exclude_same: {message}"):
        pe.exclude_same(queries, gallery)
