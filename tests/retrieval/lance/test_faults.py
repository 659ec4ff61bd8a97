"""Killed processes, full disks, damaged files, several writers: the short form of `faults.py` beside it."""

import faults
import pytest


@pytest.mark.slow
def test_nothing_acknowledged_is_lost_and_nothing_wrong_is_answered(capsys):
    assert faults.faults(kills=20, flips=3) == 0
    told = capsys.readouterr().out
    assert "| upsert |" in told and "no room: 4 refused, 0 lost or wrong" in told


def test_the_check_of_answers_sees_a_lost_item(tmp_path):
    """Nor would the harness say that all is right where an item is missing, or another one in its place."""
    state = dict.fromkeys(range(faults.START), 0)
    gallery = faults.pe.Gallery.create(tmp_path / "g.lance", faults.held(state), sorted(state))
    assert faults.answers(gallery, state)
    for wrong in (state | {3: 1}, state | {999: 0}, {id: 0 for id in state if id != 5}):
        assert not faults.answers(gallery, wrong)
