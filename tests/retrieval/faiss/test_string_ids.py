"""Items that go by strings are found, changed and kept as those that go by numbers are."""

import copy
import pickle
import re

import faiss
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from items import make

import peaccel as pe

GALLERY = make("normal_diagonal", 40, dtype="float32")
QUERIES = make("normal_diagonal", 6, seed=1, dtype="float32")
NAMES = np.array([f"é{i}" if i % 3 else f"a long name, {i}" for i in range(40)])


def named(ids, table=NAMES):
    """The names of numbers, as a table of them would say."""
    return np.append(table, "")[ids]


def both(factory="Flat", library="numpy"):
    """Two rerankers over the same items, which go by numbers and by strings."""
    gallery = make("normal_diagonal", 40, dtype="float32", library=library)
    return (pe.FaissReranker.build(gallery, factory, ids=ids) for ids in (np.arange(40), NAMES))


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_strings_are_found_as_numbers_are(library):
    queries = make("normal_diagonal", 6, seed=1, dtype="float32", library=library)
    numbers, strings = both(library=library)
    expected, found = (r.search(queries, 12, shortlist=10) for r in (numbers, strings))
    assert isinstance(found.ids, np.ndarray) and found.ids.dtype.kind == "U" and (found.ids[:, 10:] == "").all()
    assert found.ids.tolist() == named(np.asarray(expected.ids)).tolist()
    assert np.array_equal(np.asarray(found.scores), np.asarray(expected.scores))
    limit = pe.FalseMatchLimit(float(found.scores[0, 3]), 0.01, 0.05, 1000, 4)
    accepted = strings.search(queries, 12, shortlist=10, accept=limit)
    assert accepted.ids.tolist() == named(np.asarray(limit(expected).ids)).tolist()
    assert (np.asarray(accepted.scores) == np.asarray(limit(expected).scores)).all()
    assert {*accepted.ids[0].tolist()} == {*found.ids[0, :4].tolist(), ""}


def test_some_of_the_items_are_allowed_by_their_names():
    numbers, strings = both("HNSW8")
    for some in (range(7), [3], []):
        expected = numbers.search(QUERIES, 5, allowed=list(some)).ids
        for allowed in ([str(NAMES[i]) for i in some] + ["nobody"], NAMES[list(some)].astype(object)):
            assert strings.search(QUERIES, 5, allowed=allowed).ids.tolist() == named(expected).tolist()
    mask = np.arange(40) % 2 == 0
    assert (
        strings.search(QUERIES, 5, allowed=mask).ids.tolist()
        == named(numbers.search(QUERIES, 5, allowed=mask).ids).tolist()
    )


@settings(deadline=None, max_examples=40, derandomize=True)
@given(
    changes=st.lists(
        st.tuples(st.sampled_from(["add", "remove", "upsert", "compact"]), st.lists(st.integers(0, 60), max_size=6)),
        max_size=8,
    )
)
def test_changes_are_those_of_numbers(changes):
    """Also where names are longer than all before them, which are then kept whole."""
    table = np.array([*NAMES, *(f"{'x' * i}{i}" for i in range(40, 61))])
    items = make("normal_diagonal", 61, seed=2, dtype="float32")
    numbers, strings = both()
    for what, drawn in changes:
        rows = np.unique(np.array(drawn, np.int64))
        there = np.isin(rows, numbers.ids)
        rows = rows[{"add": ~there, "remove": there}.get(what, there | ~there)]
        for reranker, ids in ((numbers, rows), (strings, table[rows])):
            if what == "compact":
                reranker.compact()
            else:
                getattr(reranker, what)(*([] if what == "remove" else [items[rows]]), ids)
    assert strings.ids.tolist() == table[numbers.ids].tolist() and len(strings) == len(numbers)
    assert [str(name) in strings for name in table] == [i in numbers for i in range(61)]
    expected = numbers.search(QUERIES, 5)
    found = strings.search(QUERIES, 5)
    assert found.ids.tolist() == named(expected.ids, table).tolist()
    assert np.array_equal(found.scores, expected.scores)


@pytest.mark.parametrize("keep", ["save", "pickle", "copy"])
def test_strings_are_kept(keep, tmp_path):
    reranker = pe.FaissReranker.build(GALLERY, "Flat", ids=NAMES)
    reranker.remove(NAMES[:2])
    reranker.add(GALLERY[:1], ["a name that is longer than all of the others, \U0001f600"])
    if keep == "save":
        reranker.save(tmp_path / "r")
        kept = pe.FaissReranker.open(tmp_path / "r")
    else:
        kept = pickle.loads(pickle.dumps(reranker)) if keep == "pickle" else copy.copy(reranker)
    assert kept.ids.tolist() == reranker.ids.tolist() and kept.ids[-1].endswith("\U0001f600")
    assert kept.search(QUERIES, 5).ids.tolist() == reranker.search(QUERIES, 5).ids.tolist()
    kept.upsert(GALLERY[:1], NAMES[:1])
    assert NAMES[0] in kept and NAMES[0] not in reranker and NAMES[1] not in kept


def test_names_of_the_rows_of_an_index_that_returns_rows():
    index = faiss.IndexFlatIP(GALLERY.dim)
    index.add(GALLERY.mu)
    rows, reranker = pe.FaissReranker(index, GALLERY), pe.FaissReranker(index, GALLERY, ids=NAMES.tolist())
    assert reranker.search(QUERIES, 3).ids.tolist() == named(rows.search(QUERIES, 3).ids).tolist()
    reranker.remove([NAMES[5]])
    assert NAMES[5] not in reranker.search(QUERIES, 39, shortlist=40).ids


def test_an_id_of_the_other_kind_is_of_no_item():
    numbers, strings = both()
    assert 3 in numbers and "3" not in numbers and 3 not in strings and NAMES[3] in strings and None not in strings
    assert pe.FaissReranker.build(GALLERY[:3], "Flat", ids=["3", "03", "3 "]).ids.tolist() == ["3", "03", "3 "]


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        (["a"] * 40, "ids hold 'a' twice"),
        ([*NAMES[:39], ""], "ids hold '', expected strings that are not empty"),
        (NAMES[:3], "ids have shape (3,) and dtype <U15, expected integers or strings (40,)"),
        ([*NAMES[:39].tolist(), 3.5], "ids have shape (40,) and dtype object, expected integers or strings"),
        (np.array([*NAMES[:39], 3], object), "ids have shape (40,) and dtype object, expected integers or strings"),
        (np.arange(40.0), "ids have shape (40,) and dtype float64, expected integers or strings"),
    ],
)
def test_ids_that_are_wrong_are_refused(ids, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        pe.FaissReranker.build(GALLERY, "Flat", ids=ids)


def test_changes_by_ids_of_the_other_kind_are_refused():
    numbers, strings = both()
    for reranker, ids, expected in ((numbers, ["x"], "integers"), (strings, [99], "strings")):
        for verb, items in (("add", [GALLERY[:1]]), ("upsert", [GALLERY[:1]]), ("remove", [])):
            with pytest.raises(ValueError, match=rf"ids have shape \(1,\) and dtype .*, expected {expected} \("):
                getattr(reranker, verb)(*items, ids)
        with pytest.raises(ValueError, match=r"allowed has shape \(1,\) and dtype .*, expected .*(integer|strings)"):
            reranker.search(QUERIES, 3, allowed=ids)
        assert len(reranker) == 40
    with pytest.raises(ValueError, match=r"FaissReranker.add: ids hold é1, which an item has already; see upsert"):
        strings.add(GALLERY[:1], ["é1"])
    with pytest.raises(ValueError, match=r"FaissReranker.remove: ids hold é1é in row \d+, which no item has"):
        strings.remove(["é1é"])
