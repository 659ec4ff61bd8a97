"""Distributions in files, block after block: what `read_distribution` reads whole."""

import json
import os
import pathlib
import re

import numpy as np
import pytest
import torch
from conftest import NUMPY, assert_ranking, make, to_numpy

import peaccel as pe

N, DIM = 23, 6
QUERIES = make("normal_diagonal", 4, DIM, dtype="float32")
PARAMETERS = {
    "normal_isotropic": {"var": (N,)},
    "normal_diagonal": {"var": (N, DIM)},
    "vmf": {"kappa": (N,)},
    "nivmf": {"kappa": (N, DIM)},
    "scaled": {"scale": (N,)},
    "point": {},
}
COMMON = {"one variance": (), "one variance in a list": (1,), "one row": (1, DIM)}


def written(d, dtype):
    """The distribution in a .safetensors file, and its arrays in .npy files, which have no bfloat16."""
    pe.io.write_distribution("all.safetensors", d.to(dtype))
    sources = [("all.safetensors", {})]
    if dtype != "bfloat16":
        for name, x in pe.io.to_state(d.to(dtype)).items():
            np.save(f"{name}.npy", x)
        sources.append(("mu.npy", {name: f"{name}.npy" for name in d._names[1:]}))
    return sources


@pytest.mark.parametrize("kind", PARAMETERS)
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
def test_blocks_are_the_rows_of_the_files(kind, dtype, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    whole = make(kind, N, DIM, dtype=dtype)
    for mu, others in written(whole, dtype):
        for rows in (1, 5, N, 100):
            source = pe.io.read_blocks(mu, **others, rows=rows)
            for _ in range(2):  # it is read anew each time
                blocks = list(source)
                assert [len(block) for block in blocks] == [min(rows, N - i) for i in range(0, N, rows)]
                assert {type(block) for block in blocks} == {type(whole)}
                for found, expected in zip(pe.concat(blocks).arrays, whole.arrays, strict=True):
                    assert found.dtype == NUMPY[dtype]
                    np.testing.assert_array_equal(to_numpy(found), to_numpy(expected))
        assert (source.size, source.dim) == (N, DIM) and f"N={N}, D={DIM}, {dtype}, blocks of 100 rows" in repr(source)


@pytest.mark.parametrize("shape", COMMON.values(), ids=COMMON)
def test_a_parameter_of_all_items_stays_one_also_in_a_block_of_one_row(shape, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    whole = pe.Normal(make("point", N, DIM, dtype="float32").mu, np.full(shape, 0.3, np.float32))
    for mu, others in written(whole, "float32"):
        if others:
            np.save("var.npy", np.full(shape, 0.3, np.float32))
        source = pe.io.read_blocks(mu, **others, rows=11)  # 11, 11 and 1
        assert all(block.common_parameter() is not None for block in source)
        queries = pe.Normal(QUERIES.mu, np.float32(0.2) + np.zeros((1, DIM), np.float32))
        assert_ranking(pe.search(queries, source, 7), tuple(pe.search(queries, whole, 7)))


def test_files_of_no_items_are_a_block_without(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.save("mu.npy", np.zeros((0, DIM), np.float32))
    assert pe.search(QUERIES, pe.io.read_blocks("mu.npy"), 2, "neg_sq_l2").ids.tolist() == [[-1, -1]] * 4


def save(name, x):
    return lambda: np.save(name, x)


def cut(path, size):
    return lambda: os.truncate(path, os.path.getsize(path) - size)


def fill(path):
    return lambda: pathlib.Path(path).write_bytes(b"\xff" * 99)


OF_ALL = {"mu": "all.safetensors"}
WRONG = {
    "nothing.npy: no such file": (FileNotFoundError, {"mu": "nothing.npy"}, None),
    "mu.npz: unsupported suffix": (ValueError, {"mu": "mu.npz"}, None),
    "mu.npy: mu is truncated, 4 bytes are missing": (ValueError, {}, cut("mu.npy", 4)),
    "var.npy: var is truncated, 80 bytes are missing": (ValueError, {"var": "var.npy"}, cut("var.npy", 80)),
    "mu.npy: cannot be read, truncated or damaged? (": (ValueError, {}, fill("mu.npy")),
    "mu.npy: lies in Fortran's order": (ValueError, {}, save("mu", np.zeros((5, 3), order="F"))),
    "mu.npy: mu has dtype int64, expected float16": (ValueError, {}, save("mu", np.zeros((5, 3), int))),
    "mu.npy: mu has dtype >f8, expected float16": (ValueError, {}, save("mu", np.zeros((5, 3), ">f8"))),
    "mu.npy: Point: mu has shape (5,), expected (N, D)": (ValueError, {}, save("mu", np.zeros(5))),
    "mu.npy: Normal: var has shape (4,)": (ValueError, {"var": "var.npy"}, save("var", np.zeros(4, "f4"))),
    "from_state: keys are kappa, mu, var": (ValueError, {"var": "var.npy", "kappa": "var.npy"}, None),
    "read_blocks: rows is 0, expected 1": (ValueError, {"rows": 0}, None),
    "read_blocks: var is given beside all.safetensors": (ValueError, {**OF_ALL, "var": "var.npy"}, None),
    "all.safetensors: var is truncated, 1 bytes": (ValueError, OF_ALL, cut("all.safetensors", 1)),
    "all.safetensors: cannot be read, truncated or damaged? (": (ValueError, OF_ALL, fill("all.safetensors")),
    "other.safetensors: key mu is missing, found x": (ValueError, {"mu": "other.safetensors"}, None),
}


@pytest.mark.parametrize(
    "offsets",
    [[-8, 4], [4, 16], [0, 16], [0, 8], [12, 0], [0.0, 12.0], ["0", "12"], [0], None, [0, 2**70], [True, 12]],
)
def test_arrays_that_do_not_follow_each_other_are_refused_as_the_library_does(offsets, tmp_path):
    about = {"mu": {"dtype": "F32", "shape": [1, 3], "data_offsets": offsets}}
    path = tmp_path / "d.safetensors"

    def write():
        text = json.dumps(about).encode()
        path.write_bytes(len(text).to_bytes(8, "little") + text + bytes(64))

    write()
    with pytest.raises(ValueError, match=rf"^{path}: "):
        pe.io.read_blocks(path)
    about["mu"]["data_offsets"] = [0, 12]
    about["var"] = {"dtype": "F32", "shape": [1], "data_offsets": [8, 12]}  # the last of the means
    write()
    with pytest.raises(ValueError, match=rf"^{path}: .*expected an end at 16 and no gap before it"):
        pe.io.read_blocks(path)
    about["var"]["data_offsets"] = [12, 16]
    write()
    assert [len(block) for block in pe.io.read_blocks(path)] == [1]


@pytest.mark.parametrize("message", WRONG)
def test_what_cannot_be_read_is_refused_before_work(message, tmp_path, monkeypatch):
    import safetensors.torch

    monkeypatch.chdir(tmp_path)
    written(make("normal_isotropic", N, DIM, dtype="float32"), "float32")
    safetensors.torch.save_file({"x": torch.zeros(3)}, "other.safetensors")
    error, given, damage = WRONG[message]
    _ = damage and damage()
    with pytest.raises(error, match=re.escape(message)) as caught:
        pe.io.read_blocks(**{"mu": "mu.npy", **given})
    assert "\n" not in str(caught.value)


def test_a_file_that_becomes_shorter_is_told(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    written(make("normal_isotropic", N, DIM, dtype="float32"), "float32")
    source = pe.io.read_blocks("mu.npy", var="var.npy", rows=10)
    cut("mu.npy", 4)()
    with pytest.raises(ValueError, match=r"^mu\.npy: has become shorter, it ends within rows 20 \.\. 22$"):
        pe.search(make("normal_isotropic", 2, DIM), source, 3)
