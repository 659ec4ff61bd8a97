"""FaissReranker of a gallery on a GPU: a fake of faiss's interface for tensors before kernels run on the host.

faiss-gpu itself is nowhere here; what the fake has is what faiss.contrib.torch_utils uses of GPU indexes.
"""

import copy
import pickle
from types import SimpleNamespace

import faiss
import numpy as np
import pytest
import torch
from conftest import flat_index, make

import peaccel as pe
from peaccel._utils.arrays import device_of, is_torch
from peaccel.ops import _dispatch
from peaccel.retrieval.faiss import faiss_reranker, indexed_items
from peaccel.retrieval.faiss import index as faiss_index


class Resources:
    """faiss.StandardGpuResources: a stream for each device."""

    def __init__(self):
        self.streams = {0: "its own"}
        self.used = []

    def getDefaultStream(self, device):
        return self.streams[device]

    def setDefaultStream(self, device, stream):
        self.streams[device] = stream
        self.used.append(stream)


class GpuIndex:
    """faiss.GpuIndex: reads and writes at addresses on its device, where all tensors of these tests are."""

    def __init__(self, vectors, ids=None):
        self.index = flat_index(SimpleNamespace(mu=vectors, dim=vectors.shape[1]), ids)
        self.ntotal, self.d = vectors.shape
        self.resources, self.asked = Resources(), []

    def getDevice(self):
        return 0

    def getResources(self):
        return self.resources

    def search(self, *args, **kwargs):
        raise AssertionError("through the host")

    def search_c(self, n, x, k, distances, labels, params):
        assert self.resources.streams[0] == ("stream", 0)
        self.asked.append(params)
        self.index.search_c(n, x, k, distances, labels, None)


@pytest.fixture
def gpu(device, monkeypatch):
    """Torch CPU tensors pass for CUDA ones."""
    monkeypatch.setattr(_dispatch, "_on_gpu", is_torch)
    monkeypatch.setattr(indexed_items, "device_of", lambda x: "cuda:0" if is_torch(x) else device_of(x))
    monkeypatch.setattr(faiss_index, "place", lambda x: (0, 0))
    monkeypatch.setattr(faiss, "cast_integer_to_cudastream_t", lambda stream: ("stream", stream), raising=False)


def items(n, seed, **kwargs):
    return make("normal_diagonal", n, 12, seed, dtype="float32", library="torch", **kwargs)


def test_rankings_are_those_of_the_cpu_and_stay_where_they_are(gpu):
    q, g = items(4, 1), items(60, 2)
    ids = np.random.default_rng(0).permutation(1000)[:60]
    for index, names in ((GpuIndex(g.mu), None), (GpuIndex(g.mu, ids), ids)):
        reranker = pe.FaissReranker(index, g, ids=names)
        np.testing.assert_array_equal(reranker.ids, range(60) if names is None else names)
        assert len(reranker) == 60 and reranker.ids[3] in reranker and 2000 not in reranker and reranker.gallery is g
        for k, shortlist in ((5, 20), (70, 80)):
            found = reranker.search(q, k, shortlist=shortlist)
            assert is_torch(found.scores)
            assert is_torch(found.ids)
            rows = torch.cdist(q.mu, g.mu).argsort()[:, :shortlist]
            want = pe.rerank(
                *(pe.Normal(d.mu.numpy(), d.var.numpy()) for d in (q, g)), rows.numpy(), min(k, rows.shape[1])
            )
            width = want.ids.shape[1]
            np.testing.assert_array_equal(found.ids[:, :width], want.ids if names is None else names[want.ids])
            np.testing.assert_allclose(found.scores[:, :width], want.scores, rtol=1e-5)
            assert (found.ids[:, width:] == -1).all()
    reranker.search(q, 1, params="nprobe")
    assert index.asked[-1] == "nprobe"
    assert index.resources.streams == {0: "its own"}


def test_exclusions_and_candidates_go_by_ids_there(gpu):
    q, g = items(4, 1), items(60, 2)
    ids = np.random.default_rng(0).permutation(1000)[:60]
    here = [pe.Normal(d.mu.numpy(), d.var.numpy()) for d in (q, g)]
    listed = torch.from_numpy(np.random.default_rng(1).permuted(np.tile(np.arange(60), (4, 1)), axis=1)[:, :9])
    denied = listed[:, :2].numpy()
    for index, names in ((GpuIndex(g.mu), np.arange(60)), (GpuIndex(g.mu, ids), ids)):
        reranker = pe.FaissReranker(index, g, ids=None if names is not ids else ids)
        want = pe.search(*here, 5, exclude=denied)
        found = reranker.search(q, 5, shortlist=60, exclude=names[denied])
        np.testing.assert_array_equal(found.ids, names[want.ids])
        candidates = torch.from_numpy(names)[listed]
        reranked = reranker.rerank(q, candidates, 4, exclude=names[denied])
        np.testing.assert_array_equal(reranked.ids, names[pe.rerank(*here, listed.numpy(), 4, exclude=denied).ids])
        scores = reranker.rescore(q, candidates)
        np.testing.assert_allclose(scores, pe.rescore(*here, listed.numpy()), rtol=1e-5)


@pytest.mark.parametrize("first_stage", ["cosine", "surrogate"])
def test_build_makes_an_index_on_the_gpu(gpu, monkeypatch, first_stage):
    q, g, ids = items(4, 1), items(60, 2), np.arange(100, 160)

    def moved(resources, device, index):
        assert device == 0
        if isinstance(index, faiss.IndexHNSW):
            raise RuntimeError("Error in x at faiss/gpu/GpuCloner.cpp:1: Error: 'false' failed: no such index")
        return GpuIndex(torch.from_numpy(index.reconstruct_n(0, index.ntotal)))

    monkeypatch.setattr(faiss, "StandardGpuResources", object, raising=False)
    monkeypatch.setattr(faiss, "index_cpu_to_gpu", moved, raising=False)
    monkeypatch.setattr(faiss_reranker, "device_of", lambda x: "cuda:0" if is_torch(x) else device_of(x))
    reranker = pe.FaissReranker.build(g, "Flat", first_stage=first_stage, ids=ids)
    assert isinstance(reranker.index, GpuIndex) and reranker.gallery is g
    found = reranker.search(q, 5, shortlist=60)
    want = pe.search(*(pe.Normal(d.mu.numpy(), d.var.numpy()) for d in (q, g)), 5)
    np.testing.assert_array_equal(found.ids, ids[want.ids])
    with pytest.raises(ValueError, match=r"^FaissReranker.build: FAISS has no IndexHNSWFlat on a GPU"):
        pe.FaissReranker.build(g, "HNSW32", first_stage=first_stage)
    monkeypatch.delattr(faiss, "StandardGpuResources")
    with pytest.raises(ImportError, match=r"has no GPU, on which the gallery is: pip install peaccel\[faiss-gpu\]$"):
        pe.FaissReranker.build(g, "Flat", first_stage=first_stage)


def test_prepared_halves_and_features(gpu):
    q, g = items(3, 1), items(40, 2)
    unit = g.mu / g.mu.norm(dim=1, keepdim=True)
    want = pe.FaissReranker(GpuIndex(unit), g, features="unit").search(q, 5, shortlist=9)
    given = pe.FaissReranker(GpuIndex(unit), g, features=lambda d: d.mu / d.mu.norm(dim=1, keepdim=True))
    assert torch.equal(want.ids, given.search(q, 5, shortlist=9).ids)
    halves = pe.prepare(g, "mls", dtype="float16")
    found = pe.FaissReranker(GpuIndex(g.mu), halves).search(q, 40, shortlist=40)
    np.testing.assert_allclose(found.scores, pe.search(q, halves, 40).scores)


def test_ids_that_the_gallery_lacks_score_nan(gpu):
    q, g = items(2, 1), items(5, 2)
    found = pe.FaissReranker(GpuIndex(g.mu, np.array([7, 9, 11, 13, 99])), g, ids=[7, 9, 11, 13, 15]).search(
        q, 6, shortlist=6
    )
    assert found.scores.isnan().sum(1).tolist() == [1, 1]
    assert (found.ids[found.scores.isnan()] == -1).all()
    assert (found.ids[:, -1] == -1).all()


def test_what_a_gallery_on_a_gpu_cannot(gpu, tmp_path):
    g = items(6, 2)
    index = GpuIndex(g.mu)
    with pytest.raises(
        ValueError, match=r"^FaissReranker: index is object_without_device on the CPU, expected one on cuda:0"
    ):
        pe.FaissReranker(type("object_without_device", (), {"search": None, "ntotal": 6, "d": 12})(), g)
    reranker = pe.FaissReranker(index, g)
    for verb, arguments in (("add", (g,)), ("remove", ([0],)), ("upsert", (g, range(6))), ("compact", ())):
        with pytest.raises(TypeError, match=rf"^FaissReranker.{verb}: the gallery is on a GPU, where items cannot"):
            getattr(reranker, verb)(*arguments)
    with pytest.raises(TypeError, match=r"^FaissReranker.search: allowed must be None, FAISS cannot select in this"):
        reranker.search(g, 1, allowed=[1])
    for keep in (copy.copy, pickle.dumps, lambda r: r.save(tmp_path / "kept")):
        with pytest.raises(TypeError, match=r"^FaissReranker: FAISS writes no GpuIndex; one on a GPU goes through"):
            keep(reranker)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(TypeError, match=r"^FaissReranker: features of the queries is a numpy array, expected a torch"):
        pe.FaissReranker(index, g, features=lambda d: np.ones((6, 12))).search(g, 1)
    with pytest.raises(
        ValueError, match=r"^FaissReranker: features of the queries have shape \(6, 3\), the index takes"
    ):
        pe.FaissReranker(index, g, features=lambda d: d.mu[:, :3]).search(g, 1)
