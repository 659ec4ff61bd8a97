"""The tests of `test_cuda.py` that need no kernel of a GPU, with tensors that say they are on one: what refuses their
items, or mixes them with the host's, is found where there is no GPU.
"""

import inspect

import pytest
import test_cuda
import torch
from stand_in_gpu import stand_in

# Tests of the device itself: what it captures, compiles and runs at once, and what its memory holds; and of gradients,
# which tensors of the stand-in have none of.
OF_THE_DEVICE = {
    "test_compiles",
    "test_draws_and_their_gradients",
    "test_every_gpu_has_its_own_context",
    "test_gradients",
    "test_gradients_of_draws_of_all_pairs",
    "test_hessians",
    "test_ids_out_of_range_are_nan_and_nothing_is_read",
    "test_no_draws_have_gradients_of_zeros",
    "test_verbs_neither_wait_nor_follow_autocast",
    "test_in_a_cuda_graph_draws_follow_the_seed",
    "test_offsets_beyond_two_billion_elements",
    "test_opcheck",
    "test_products_rule_out_none_of_the_best",
    "test_rankings_compile",
    "test_two_streams",
    "test_two_threads",
}
TESTS = {name: test for name, test in inspect.getmembers(test_cuda, inspect.isfunction) if name.startswith("test_")}


@pytest.fixture(autouse=True)
def _on_stand_in(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with stand_in(monkeypatch):
        yield


def test_those_left_out_are_there():
    assert set(TESTS) > OF_THE_DEVICE


def _copied(test):
    """The test with its parameters, without the mark of a module that only runs on a GPU."""

    def copy(**parameters):
        test(**parameters)

    copy.__signature__ = inspect.signature(test)
    copy.pytestmark = [mark for mark in getattr(test, "pytestmark", []) if mark.name == "parametrize"]
    return pytest.mark.one_in(8)(copy) if test is test_cuda.test_every_verb else copy


globals().update({name: _copied(test) for name, test in TESTS.items() if name not in OF_THE_DEVICE})
