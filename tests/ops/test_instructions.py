"""Kernels hold the instructions of their level: a call that is not inlined is compiled for every machine, and slow."""

import pathlib
import re

import pytest

from peaccel import _core

CORE = pathlib.Path(_core.__file__)
# The name of a compiled function that is one instruction, as rustc writes it.
INSTRUCTION = re.compile(rb"core_arch3x86\d(?:avx|fma)\w*?\d+__mm\w+")


@pytest.mark.skipif(b"run_avx512" not in CORE.read_bytes(), reason="no names of functions, or another processor")
def test_no_instruction_is_a_call():
    calls = sorted(set(INSTRUCTION.findall(CORE.read_bytes())))
    assert not calls, "loops in kernels in place of closures keep these where they are called"
