"""A reranker that is mapped from its folder finds what it finds in memory, and never changes."""

import copy
import json
import os
import pathlib
import pickle
import re
import subprocess
import sys

import numpy as np
import pytest
from conftest import assert_ranking, make, to_numpy

import peaccel as pe

FACTORIES = (
    *("Flat", "HNSW8", "IVF8,Flat", "IVF8,SQ8", "PCA4,HNSW8", "Flat,Refine(SQfp16)"),
    *(pytest.param(factory, marks=pytest.mark.slow) for factory in ("PQ4x4", "IVF8,PQ4x4", "NSG8", "IVF8,RaBitQ")),
)
N, DIM = 300, 8


def saved(folder, factory="Flat", kind="normal_diagonal", ids=None, **given):
    """A reranker in memory, of which some items were removed where it can, and was then saved."""
    reranker = pe.FaissReranker.build(make(kind, N, DIM, **given), factory, ids=ids)
    if ids is None or "HNSW" not in factory:
        reranker.remove(reranker.ids[::9])
    reranker.save(folder)
    return reranker


def assert_alike(mapped, reranker, queries):
    assert_ranking(
        mapped.search(queries, 5, shortlist=20), tuple(map(to_numpy, reranker.search(queries, 5, shortlist=20)))
    )
    np.testing.assert_array_equal(mapped.ids, reranker.ids)


@pytest.mark.parametrize("factory", FACTORIES)
@pytest.mark.parametrize("ids", [None, 7 * np.arange(N) + 2], ids=["rows", "ids"])
def test_it_finds_what_it_finds_in_memory(factory, ids, tmp_path):
    reranker, queries = saved(tmp_path / "r", factory, ids=ids), make("normal_diagonal", 6, DIM, seed=1)
    mapped = pe.FaissReranker.open(tmp_path / "r", mmap=True)
    assert_alike(mapped, reranker, queries)
    allowed = reranker.ids[::3]
    if factory not in ("PQ4x4", "NSG8"):  # in which FAISS selects nothing
        expected = reranker.search(queries, 5, shortlist=20, allowed=allowed)
        assert_ranking(mapped.search(queries, 5, shortlist=20, allowed=allowed), tuple(expected))


@pytest.mark.parametrize("library", ["numpy", "torch"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("kind", ["normal_isotropic", "normal_diagonal"])
@pytest.mark.filterwarnings("error")
def test_items_of_every_kind_are_mapped(library, dtype, kind, tmp_path):
    given = {"library": library, "dtype": dtype}
    reranker = saved(tmp_path / "r", kind=kind, **given)
    mapped = pe.FaissReranker.open(tmp_path / "r", mmap=True)
    assert_alike(mapped, reranker, make(kind, 6, DIM, seed=1, **given))
    assert type(mapped.gallery.mu) is type(reranker.gallery.mu) and mapped.gallery.mu.dtype == reranker.gallery.mu.dtype


CHANGES = {
    "add": lambda r: r.add(make("normal_diagonal", 1, DIM)),
    "remove": lambda r: r.remove(r.ids[:1]),
    "upsert": lambda r: r.upsert(make("normal_diagonal", 1, DIM), r.ids[:1]),
    "compact": lambda r: r.compact(),
}


@pytest.mark.parametrize("factory", ["Flat", pytest.param("IVF8,Flat", marks=pytest.mark.slow)])
@pytest.mark.parametrize("verb", CHANGES)
def test_it_does_not_change_but_its_copy_does(verb, factory, tmp_path):
    reranker, queries = saved(tmp_path / "r", factory), make("normal_diagonal", 6, DIM, seed=1)
    mapped = pe.FaissReranker.open(tmp_path / "r", mmap=True)
    message = f"FaissReranker.{verb}: the items are mapped from {tmp_path / 'r'}, where they stay as they are; "
    with pytest.raises(TypeError, match=re.escape(message) + "FaissReranker.open without mmap has them in memory$"):
        CHANGES[verb](mapped)
    assert_alike(mapped, reranker, queries)
    for own in (copy.copy(mapped), pickle.loads(pickle.dumps(mapped))):
        CHANGES[verb](own)
        CHANGES[verb](reranker := pe.FaissReranker.open(tmp_path / "r"))
        assert_alike(own, reranker, queries)


def test_what_was_saved_can_be_saved_again_also_in_its_own_place(tmp_path):
    reranker, queries = saved(tmp_path / "r"), make("normal_diagonal", 6, DIM, seed=1)
    mapped = pe.FaissReranker.open(tmp_path / "r", mmap=True)
    for folder in ("other", "r"):
        mapped.save(tmp_path / folder)
        assert_alike(mapped, reranker, queries)
        assert_alike(pe.FaissReranker.open(tmp_path / folder, mmap=True).verify(), reranker, queries)


def test_another_reranker_in_its_place_changes_nothing(tmp_path):
    reranker, queries = saved(tmp_path / "r"), make("normal_diagonal", 6, DIM, seed=1)
    mapped = pe.FaissReranker.open(tmp_path / "r", mmap=True)
    saved(tmp_path / "r", seed=3)
    assert_alike(mapped, reranker, queries)


FILES = ("index.faiss", "items.safetensors")


@pytest.mark.parametrize("name", FILES)
def test_a_flipped_bit_is_what_verify_tells(name, tmp_path):
    saved(tmp_path / "r")
    mapped = pe.FaissReranker.open(tmp_path / "r", mmap=True)
    assert mapped.verify() is mapped
    content = bytearray((tmp_path / "r" / name).read_bytes())
    content[-9] ^= 1
    (tmp_path / "r" / name).write_bytes(content)
    for found in (mapped, pe.FaissReranker.open(tmp_path / "r", mmap=True)):
        with pytest.raises(ValueError, match=f"{name}: is damaged, or not the file that was saved here"):
            found.verify()
    (tmp_path / "r" / name).unlink()
    with pytest.raises(FileNotFoundError, match=f"{name}: no such file"):
        mapped.verify()
    with pytest.raises(FileNotFoundError, match=f"{name}: no such file"):
        pe.FaissReranker.open(tmp_path / "r", mmap=True)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("change", [-1, -200, 1])
def test_a_file_of_another_size_is_refused(name, change, tmp_path):
    saved(tmp_path / "r")
    path = tmp_path / "r" / name
    size = path.stat().st_size
    os.truncate(path, size + change)
    with pytest.raises(ValueError, match=rf"{name}: has {size + change} bytes, expected {size}, as saved$"):
        pe.FaissReranker.open(tmp_path / "r", mmap=True)


def test_a_folder_without_sizes_is_loaded_and_saved_again_first(tmp_path):
    reranker, path = saved(tmp_path / "r"), tmp_path / "r" / "reranker.json"
    about = json.loads(path.read_text())
    path.write_text(json.dumps({key: x for key, x in about.items() if not key.startswith("bytes of")}))
    with pytest.raises(ValueError, match=r"expected unknown, since an older version saved it$"):
        pe.FaissReranker.open(tmp_path / "r", mmap=True)
    assert_alike(pe.FaissReranker.open(tmp_path / "r"), reranker, make("normal_diagonal", 6, DIM, seed=1))


def test_only_what_is_mapped_is_verified(tmp_path):
    with pytest.raises(TypeError, match=r"^FaissReranker.verify: the reranker is in memory, expected one by open"):
        saved(tmp_path / "r").verify()


def test_it_is_mapped_from_what_cannot_be_written(tmp_path):
    reranker = pe.FaissReranker.build(make("normal_diagonal", N, DIM), "Flat")
    reranker.save(tmp_path / "r")
    for path in (*(tmp_path / "r").iterdir(), tmp_path / "r"):
        path.chmod(0o555 if path.is_dir() else 0o444)
    mapped = pe.FaissReranker.open(tmp_path / "r", mmap=True)
    assert_alike(mapped, reranker, make("normal_diagonal", 6, DIM, seed=1))
    with pytest.raises(ValueError, match="read-only"):
        mapped.gallery.mu[0] = 0
    (tmp_path / "r").chmod(0o755)


OPENING = """
import sys
import numpy as np, peaccel as pe, faiss

def anonymous():
    with open("/proc/self/smaps_rollup") as lines:
        return sum(1024 * int(line.split()[1]) for line in lines if line.startswith("Anonymous:"))

load, before = pe.FaissReranker.open, anonymous()
reranker = load(sys.argv[1], mmap=True)
taken = anonymous() - before
queries = pe.Normal(np.eye(128, dtype=np.float32)[:3], np.ones((3, 128), np.float32))
print(taken, reranker.search(queries, 5).ids.ravel().tolist())
"""


@pytest.mark.skipif(not pathlib.Path("/proc/self/smaps_rollup").exists(), reason="the memory is told by Linux")
@pytest.mark.parametrize("factory", ["Flat", pytest.param("HNSW8", marks=pytest.mark.slow)])
def test_two_processes_map_one_folder_and_take_little_memory_each(factory, tmp_path):
    rng = np.random.default_rng(0)
    gallery = pe.Normal(*np.float32([rng.normal(size=(5000, 128)), np.full((5000, 128), 0.5)]))
    reranker = pe.FaissReranker.build(gallery, factory)
    reranker.save(tmp_path / "r")
    command = [sys.executable, "-c", OPENING, str(tmp_path / "r")]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    told = [process.communicate(timeout=120)[0] for process in processes]
    queries = pe.Normal(np.eye(128, dtype=np.float32)[:3], np.ones((3, 128), np.float32))
    expected = reranker.search(queries, 5).ids.ravel().tolist()
    for text in told:
        taken, ids = text.split(" ", 1)
        assert int(taken) < 0.1 * 3 * gallery.mu.nbytes  # of means and variances, and of the index's vectors
        assert json.loads(ids) == expected
