"""Parts of a gallery, searched one by one and merged, give the bits of one search of all of it."""

import itertools
import re

import numpy as np
import pytest
import torch
from conftest import KINDS, assert_ranking, make, scored, to_numpy
from items import hostile

import peaccel as pe

PAIRS = {(name, q, g) for name, score in pe.scores.SCORES.items() for q, g in score.pairs}
CASES = sorted(case for case in PAIRS if case[2] in (case[1], "nivmf"))
# What is drawn of a gallery item depends on its row, which a part does not know.
UNDRAWN = [case for case in CASES if not pe.scores.get(scored(*case)).pair(*case[1:]).op.samplers[1]]
CUTS = (0, 0, 3, 40, 41, 90, 120)  # six parts, one of them empty and one of a single row


def searched_in_parts(q, g, k, score, width):
    """The ranking of each part, and where the parts begin."""
    bounds = list(itertools.pairwise(CUTS))
    return [pe.search(q, g[a:b], width, score) for a, b in bounds], [a for a, _ in bounds]


@pytest.mark.parametrize("library", ["numpy", "torch"])
@pytest.mark.parametrize(("name", "query", "gallery"), UNDRAWN)
def test_six_parts_are_one_search(name, query, gallery, library):
    score = scored(name, query, gallery)
    dtype = "float32" if library == "numpy" else "float64"
    q = make(query, 7, 6, dtype=dtype, library=library)
    g = hostile(gallery, CUTS[-1], 6, dtype=dtype, library=library)
    for k in (5, 200):
        whole = pe.search(q, g, k, score)
        parts, offsets = searched_in_parts(q, g, k, score, k)
        found = pe.merge(parts, k, offsets)
        assert type(found.scores) is type(whole.scores) and found.scores.dtype == whole.scores.dtype
        assert_ranking(found, tuple(map(to_numpy, whole)), f"{score} {dtype} k={k}")
        turned = pe.merge(parts[::-1], k, offsets[::-1])  # ties still go to the lower row
        assert_ranking(turned, tuple(map(to_numpy, whole)), f"{score} {dtype} k={k}, the last part first")


def ranking(scores, ids, library="numpy"):
    scores, ids = np.array(scores), np.array(ids)
    return pe.Ranking(*((torch.tensor(scores), torch.tensor(ids)) if library == "torch" else (scores, ids)))


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_numbers_come_before_nan_and_nan_before_padding(library):
    inf, nan = np.inf, np.nan
    parts = (
        ranking([[1.0, -inf, nan], [0.0, nan, -inf]], [[0, 1, 2], [1, 0, -1]], library),
        ranking([[inf, 1.0], [-0.0, -3e38]], [[4, 3], [0, -1]], library),
    )
    found = pe.merge(parts, 6, [0, 10])
    assert found.ids.tolist() == [[14, 0, 13, 1, 2, -1], [1, 10, 0, -1, -1, -1]]
    expected = [[inf, 1, 1, -inf, nan, -inf], [0, 0, nan, -inf, -inf, -inf]]
    np.testing.assert_array_equal(to_numpy(found.scores), expected)
    assert found.ids.dtype in (np.int64, torch.int64)


def test_ties_go_to_the_lower_offset_without_them_to_the_earlier_part():
    parts = ranking([[1.0, 1.0]], [[7, 3]]), ranking([[1.0]], [[0]])
    assert pe.merge(parts, 3).ids.tolist() == [[7, 3, 0]]
    assert pe.merge(parts[::-1], 3).ids.tolist() == [[0, 7, 3]]
    assert pe.merge(parts, 3, [5, 0]).ids.tolist() == [[0, 12, 8]]


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_ids_may_be_strings(library):
    parts = [
        ranking([[3.0, 1.0, -np.inf]], [["b", "of all", ""]]),
        ranking([[3.0, 2.0]], [["a", "c"]]),
    ]
    parts = [pe.Ranking(torch.tensor(x.scores) if library == "torch" else x.scores, x.ids) for x in parts]
    found = pe.merge(parts, 6)
    assert found.ids.tolist() == [["b", "a", "c", "of all", "", ""]] and type(found.scores) is type(parts[0].scores)
    assert found.scores.tolist() == [[3, 3, 2, 1, -np.inf, -np.inf]]


def test_parts_of_no_width_and_no_queries_are_merged():
    found = pe.merge([ranking(np.zeros((2, 0), "f4"), np.zeros((2, 0), int))], 2)
    assert found.ids.tolist() == [[-1, -1]] * 2 and found.scores.dtype == np.float32
    assert pe.merge([ranking(np.zeros((0, 3)), np.zeros((0, 3), int))] * 2, 2, np.arange(2)).ids.shape == (0, 2)


def test_what_is_given_stays():
    parts = ranking([[1.0, -5.0]], [[0, -1]]), ranking([[2.0]], [[0]])
    pe.merge(iter(parts), 3, [0, 4])
    assert parts[0].ids.tolist() == [[0, -1]] and parts[0].scores.tolist() == [[1.0, -5.0]]


GOOD = ranking([[1.0]], [[0]])
IDS_APART = pe.Ranking(GOOD.scores, torch.zeros((1, 1), dtype=torch.int64))
STRINGS = ranking([[1.0]], [["a"]])
WRONG = {
    "expected at least one ranking, got none": (ValueError, {"rankings": []}),
    "ranking 1 must be a Ranking, got tuple": (TypeError, {"rankings": [GOOD, tuple(GOOD)]}),
    "ranking 0 has scores (1, 1) and ids (1,) of int64, expected (Q": (
        ValueError,
        {"rankings": [ranking([[1.0]], [0])]},
    ),
    "ranking 0 has scores (1, 1) and ids (1, 1) of float64": (ValueError, {"rankings": [ranking([[1.0]], [[0.0]])]}),
    "ranking 1 is a torch tensor on cpu": (TypeError, {"rankings": [GOOD, ranking([[1.0]], [[0]], "torch")]}),
    "ids of ranking 0 is a torch tensor": (TypeError, {"rankings": [IDS_APART]}),
    "ranking 1 has ids of str32, expected those of ranking 0": (ValueError, {"rankings": [GOOD, STRINGS]}),
    "offsets must be None where ids are strings": (ValueError, {"rankings": [STRINGS], "offsets": [0]}),
    "ranking 1 has scores of float32": (ValueError, {"rankings": [GOOD, ranking(np.float32([[1]]), [[0]])]}),
    "ranking 1 is of 2 queries, expected 1": (ValueError, {"rankings": [GOOD, ranking([[1.0]] * 2, [[0]] * 2)]}),
    "k is 0, expected 1": (ValueError, {"k": 0}),
    "k must be an integer, got float": (TypeError, {"k": 1.0}),
    "2 offsets, expected 1": (ValueError, {"offsets": [0, 1]}),
    "offset 1 is -1, expected 0 .. 2^63 - 1": (ValueError, {"rankings": [GOOD, GOOD], "offsets": [0, -1]}),
    "offset 0 is 9223372036854775807, which takes id 3 beyond int64": (
        ValueError,
        {"rankings": [ranking([[1.0]], [[3]])], "offsets": [2**63 - 1]},
    ),
    "offsets must be integers, got [0.5]": (TypeError, {"offsets": [0.5]}),
    "offsets must be integers, got 3": (TypeError, {"offsets": 3}),
}


@pytest.mark.parametrize("message", WRONG)
def test_what_cannot_be_merged_is_refused(message):
    error, changed = WRONG[message]
    with pytest.raises(error, match="^" + re.escape(f"merge: {message}")) as caught:
        pe.merge(**{"rankings": [GOOD], "k": 1, "offsets": None, **changed})
    assert "\n" not in str(caught.value)


def test_every_kind_is_tried():
    assert {gallery for _, _, gallery in CASES} == set(KINDS)
