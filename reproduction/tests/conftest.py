"""The threads of every test: tests run side by side, and their tensors are small."""

import pytest
import torch

import peaccel as pe

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _two_threads():
    """Begin every test with two threads, however many the machine has."""
    pe.set_num_threads(2)
