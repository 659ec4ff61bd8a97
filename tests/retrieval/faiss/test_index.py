"""A FAISS file of somebody else opens no other file, and asks for no more memory than its size explains."""

import pickle
import re
import subprocess
import sys

import faiss
import numpy as np
import pytest
from conftest import make

import peaccel as pe
from peaccel.retrieval.faiss import index as faiss_index

faiss.omp_set_num_threads(1)  # its threads spin for minutes where cores are few and shared

GALLERY = make("point", 300, 16, dtype="float32")
FACTORIES = ("Flat", "HNSW8", "IVF8,PQ4x4", "PCA8,IVF4,Flat", "Flat,Refine(SQfp16)")
ON_DISK = "has inverted lists in another file, which is not opened, expected them in the index itself"


def filled(factory):
    index = faiss.index_factory(16, factory)
    index.train(GALLERY.mu)
    index.add(GALLERY.mu)
    return index


def with_lists_on_disk(path, factory="IVF4,Flat"):
    """An index whose IVF has its lists in a file."""
    index = faiss.index_factory(16, factory)
    index.train(GALLERY.mu)
    ivf = faiss.extract_index_ivf(index)
    lists = faiss.OnDiskInvertedLists(4, ivf.code_size, str(path))
    lists.this.disown()  # it is the index's now
    ivf.replace_invlists(lists, True)
    index.add(GALLERY.mu)
    return index


def inside(index):
    """An IVF that finds its lists by another index."""
    outer = faiss.IndexIVFFlat(index, 16, index.ntotal)
    outer.is_trained = True
    return outer


@pytest.mark.parametrize("mmap", [False, True], ids=["read", "mapped"])
@pytest.mark.parametrize("factory", ["IVF4,Flat", "PCA8,IVF4,Flat", "IVF4,SQ8,Refine(Flat)", "as quantizer"])
def test_lists_in_another_file_are_refused(factory, mmap, tmp_path):
    quantizer = factory == "as quantizer"
    index = with_lists_on_disk(tmp_path / "precious", "IVF4,Flat" if quantizer else factory)
    faiss.write_index(inside(index) if quantizer else index, str(tmp_path / "index.faiss"))
    before = (tmp_path / "precious").read_bytes()
    with pytest.raises(ValueError, match=f"^{re.escape(str(tmp_path / 'index.faiss'))}: {ON_DISK}$"):
        faiss_index.read(str(tmp_path / "index.faiss"), mmap=mmap)
    assert (tmp_path / "precious").read_bytes() == before


def test_such_lists_are_not_looked_for(tmp_path):
    index = with_lists_on_disk(tmp_path / "precious")
    faiss.write_index(index, str(tmp_path / "index.faiss"))
    del index
    (tmp_path / "precious").unlink()
    with pytest.raises(ValueError, match=ON_DISK):
        faiss_index.read(str(tmp_path / "index.faiss"))


def test_such_lists_are_not_saved(tmp_path):
    reranker = pe.FaissReranker(with_lists_on_disk(tmp_path / "lists"), GALLERY)
    for keep in (lambda: reranker.save(tmp_path / "saved"), lambda: pickle.dumps(reranker)):
        with pytest.raises(TypeError, match=f"^FaissReranker: index {ON_DISK}$"):
            keep()
    assert not (tmp_path / "saved").exists()


@pytest.mark.parametrize("room", [0, faiss_index.ROOM])
@pytest.mark.parametrize("mmap", [False, True], ids=["read", "mapped"])
@pytest.mark.parametrize("factory", FACTORIES)
def test_what_was_written_is_read_within_its_size(factory, mmap, room, tmp_path, monkeypatch):
    monkeypatch.setattr(faiss_index, "ROOM", room)  # without any, the tables of PQ do not fit either
    index, limit = filled(factory), faiss.get_deserialization_vector_byte_limit()
    faiss_index.write(index, tmp_path / "index.faiss")
    found = faiss_index.read(str(tmp_path / "index.faiss"), mmap=mmap)
    for one, two in zip(index.search(GALLERY.mu, 5), found.search(GALLERY.mu, 5), strict=True):
        np.testing.assert_array_equal(one, two)
    assert getattr(found, "use_precomputed_table", None) == getattr(index, "use_precomputed_table", None)
    assert faiss.get_deserialization_vector_byte_limit() == limit


def test_a_size_in_a_file_is_not_believed(tmp_path):
    path = tmp_path / "index.faiss"
    faiss_index.write(filled("Flat"), path)
    content = bytearray(path.read_bytes())
    at = len(content) - 300 * 16 * 4 - 8
    assert int.from_bytes(content[at : at + 8], "little") == 300 * 16
    content[at : at + 8] = (1 << 28).to_bytes(8, "little")  # 1 GB of float32
    path.write_bytes(content)
    code = f"""
import resource
from peaccel.retrieval.faiss import index
index._faiss()
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    index.read({str(path)!r})
except ValueError as error:
    print(error)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""
    says, megabytes = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    what = f"is truncated, or asks for more memory than its {len(content)} bytes may"
    assert says == f"{path}: is not a FAISS index, {what}"
    assert int(megabytes) < 100  # of 1024 that the file asks for


@pytest.mark.parametrize(("set_to", "read"), [(512, 512), (2**31 - 1, faiss_index.GROWN)])
def test_a_graph_is_not_searched_deeper_than_it_can_be(set_to, read, tmp_path):
    index = filled("HNSW8")
    index.hnsw.efSearch = set_to
    faiss_index.write(index, tmp_path / "index.faiss")
    assert faiss_index.read(str(tmp_path / "index.faiss")).hnsw.efSearch == read
