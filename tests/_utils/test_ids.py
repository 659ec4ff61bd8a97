"""Ids are checked and looked up in one way, whatever holds them."""

import numpy as np
import pytest

from peaccel._utils.ids import SortedIds, and_none, checked_ids, none_like, there


@pytest.mark.parametrize("ids", [np.array([7, 0, 3]), np.array(["b", "a", "\xe9"]), np.array([b"b", b"a", b"cc"])])
def test_rows_of_ids_are_where_they_stand(ids):
    for table in (SortedIds.of(ids), SortedIds(np.sort(ids))):
        ordered = ids if table.rows is not None else np.sort(ids)
        asked = and_none(ordered)[[2, -1, 0, 1]]
        assert table.rows_of(asked.reshape(2, 2)).tolist() == [[2, -1], [0, 1]]
        assert there(asked).tolist() == [True, False, True, True]
        assert table.rows_of(ordered[:0]).tolist() == []
    longer = ids + 5 if ids.dtype.kind == "i" else np.char.add(ids, ids[:1])
    assert (SortedIds.of(ids).rows_of(longer) == -1).all()
    assert (SortedIds.of(ids[:0]).rows_of(ids) == -1).all() and none_like(ids[:0]) == none_like(ids)


def test_no_ids_keep_their_kind():
    assert checked_ids("f", np.empty(0, "<U3")).dtype.kind == "U" and checked_ids("f", []).dtype == np.int64
    assert checked_ids("f", [], expected="strings").dtype.kind == "U"
    assert checked_ids("f", np.empty(0, "<U3"), expected="integers").dtype == np.int64
