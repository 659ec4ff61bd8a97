"""FAISS indexes: read, built from a factory string, searched deep enough. The only user of FAISS."""

from __future__ import annotations

import math
import os
import re
import sys
from typing import Any

import numpy as np

from peaccel.ops._array import Array, is_torch
from peaccel.ops._cuda import place

__all__ = ["built", "deep_enough", "read", "search", "width"]


def _faiss() -> Any:
    try:
        import faiss
    except ImportError:
        raise ImportError("FaissReranker needs FAISS: pip install peaccel[faiss]") from None
    return faiss


def read(path: str) -> Any:
    """The FAISS index in a file."""
    if not os.path.isfile(path):
        raise FileNotFoundError(f"{path}: no such file")
    faiss = _faiss()
    try:
        return faiss.read_index(path)
    except RuntimeError:
        raise ValueError(f"{path}: is not a FAISS index, or is truncated") from None


def search(index: Any, vectors: Array, k: int, params: Any) -> Array:
    """The ids of the k nearest, -1 for none; of vectors that are torch tensors on a GPU, as the index is, there."""
    if is_torch(vectors):
        return _search_on_gpu(index, vectors, k, params)
    # faiss.contrib.torch_utils, where somebody has imported it, puts in its place one that takes no parameters.
    by_numpy = getattr(index, "search_numpy", index.search)
    return (by_numpy(vectors, k) if params is None else by_numpy(vectors, k, params=params))[1]


def _search_on_gpu(index: Any, vectors: Array, k: int, params: Any) -> Array:
    """By addresses, on torch's stream, as faiss.contrib.torch_utils does, which changes all indexes when imported."""
    faiss, torch = _faiss(), sys.modules["torch"]
    shape = len(vectors), k
    distances, ids = vectors.new_empty(shape), vectors.new_empty(shape, dtype=torch.int64)
    pointers = (
        faiss.cast_integer_to_float_ptr(vectors.data_ptr()),
        faiss.cast_integer_to_float_ptr(distances.data_ptr()),
        faiss.cast_integer_to_idx_t_ptr(ids.data_ptr()),
    )
    device, stream = place(vectors)
    resources = index.getResources()
    before = resources.getDefaultStream(device)
    resources.setDefaultStream(device, faiss.cast_integer_to_cudastream_t(stream))
    try:
        index.search_c(len(vectors), pointers[0], k, *pointers[1:], params)
    finally:
        resources.setDefaultStream(device, before)
    return ids


def deep_enough(index: Any, fetch: int) -> Any:
    """Search parameters for HNSW, which by default stops early: with few of more than efSearch that it is asked for."""
    if not hasattr(index, "hnsw"):
        return None
    return _faiss().SearchParametersHNSW(efSearch=max(index.hnsw.efSearch, fetch))


def built(vectors: np.ndarray[Any, Any], factory: str, *, inner_product: bool) -> Any:
    """The index of a factory string, by inner product or by L2, trained on the vectors and holding them."""
    faiss = _faiss()
    metric = faiss.METRIC_INNER_PRODUCT if inner_product else faiss.METRIC_L2
    try:
        index = faiss.index_factory(vectors.shape[1], factory, metric)
    except RuntimeError:
        raise ValueError(f"FaissReranker.build: factory {factory!r} is not a FAISS factory string") from None
    try:
        if not index.is_trained:
            index.train(vectors)
        index.add(vectors)
    except RuntimeError:
        what = f"factory {factory!r} cannot be trained on {len(vectors)} items"
        raise ValueError(f"FaissReranker.build: {what}") from None
    return index


def width(width: int, factory: str) -> int:
    """The next width that every PQ of the factory string divides."""
    parts = math.lcm(*(int(count) for count in re.findall(r"PQ(\d+)", factory) if int(count)))
    return -(-width // parts) * parts
