"""FAISS indexes: built, written, and searched, among all or some of their items. The only module that imports FAISS."""

from __future__ import annotations

import inspect
import math
import os
import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from peaccel._utils.arrays import Array, is_torch
from peaccel._utils.atomic_files import PathLike
from peaccel._utils.ids import SortedIds
from peaccel.ops._cuda import place

if TYPE_CHECKING:
    from faiss import Index
else:
    Index = object  # FAISS is imported when it is used

__all__ = [
    "Index",
    "Tuned",
    "add",
    "built",
    "by_lists",
    "deep_enough",
    "held_ids",
    "id_selector",
    "looked_at",
    "mapped",
    "moved_to_gpu",
    "parameters",
    "read",
    "refill",
    "row_selector",
    "search",
    "selecting",
    "selects",
    "serialized",
    "similarities",
    "tuned",
    "unserialized",
    "width",
    "write",
]


def _faiss() -> Any:
    try:
        import faiss
    except ImportError:
        raise ImportError("FaissReranker needs FAISS: pip install peaccel[faiss]") from None
    return faiss


def _one_thread() -> None:
    """Let FAISS search in one thread in the child of a fork, where those of OpenMP that it would wait for are gone."""
    if "faiss" in sys.modules:
        sys.modules["faiss"].omp_set_num_threads(1)


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_one_thread)


def read(path: str, *, mmap: bool = False) -> Any:
    """The FAISS index in a file; mapped, it must not be changed, which FAISS answers by ending the process.

    The file is trusted with nothing: it opens no other file, and takes memory by its size.
    """
    if not os.path.isfile(path):
        raise FileNotFoundError(f"{path}: no such file")
    faiss, size = _faiss(), os.path.getsize(path)
    # With the first flag FAISS opens lists in another file only beside a FileIOReader, which none of these readers is.
    flags = faiss.IO_FLAG_ONDISK_SAME_DIR | faiss.IO_FLAG_READ_ONLY | (faiss.IO_FLAG_MMAP_IFC if mmap else 0)

    def index_of(flags: int) -> Any:
        return faiss.read_index(path if mmap else faiss.BufferedIOReader(faiss.FileIOReader(path)), flags)

    try:
        with _memory_of(size):
            try:
                index = index_of(flags)
            except RuntimeError as error:
                if "precomputed_table" not in str(error):
                    raise
                index = index_of(flags | faiss.IO_FLAG_SKIP_PRECOMPUTE_TABLE)
    except (RuntimeError, MemoryError) as error:  # the latter of sizes that are none
        if "ONDISK" in str(error):
            raise ValueError(f"{path}: {ON_DISK}") from None
        what = f"is truncated, or asks for more memory than its {size} bytes may"
        raise ValueError(f"{path}: is not a FAISS index, {what}") from None
    if _is_on_disk(index):
        raise ValueError(f"{path}: {ON_DISK}")
    for layer in layers(index, EVERY):
        if isinstance(layer, faiss.IndexIVFPQ) and layer.by_residual and not layer.use_precomputed_table:
            layer.precompute_table()  # which FAISS bounds
        if setting := _setting(layer):
            setattr(setting.holder, setting.name, min(setting.value, max(setting.most, GROWN)))
    return index


ON_DISK = "has inverted lists in another file, which is not opened, expected them in the index itself"
ROOM = 1 << 26  # bytes that any file may ask for beside its size: tables that are made of it
GROWN = 1 << 16  # a search effort that any file may ask for: it is meant for more items than there are yet
_reading = threading.Lock()


@contextmanager
def _memory_of(size: int) -> Iterator[None]:
    """Context in which FAISS, whose limits are those of the process, believes no count in a file beyond its size."""
    faiss = _faiss()
    with _reading:
        before = faiss.get_deserialization_vector_byte_limit(), faiss.get_deserialization_loop_limit()
        faiss.set_deserialization_vector_byte_limit(size + ROOM)
        faiss.set_deserialization_loop_limit(size)
        try:
            yield
        finally:
            faiss.set_deserialization_vector_byte_limit(before[0])
            faiss.set_deserialization_loop_limit(before[1])


def _is_on_disk(index: Any) -> bool:
    """Whether the index, or one inside, has inverted lists in a file of their own."""
    faiss = _faiss()
    lists = (layer.invlists for layer in layers(index, EVERY) if isinstance(layer, faiss.IndexIVF))
    return any(x and isinstance(faiss.downcast_InvertedLists(x), faiss.OnDiskInvertedLists) for x in lists)


def write(index: Any, path: PathLike) -> None:
    """Write the index to a file; TypeError where FAISS has no form for it, OSError where the system says no."""
    _require_lists_inside(index)
    try:
        _faiss().write_index(index, os.fspath(path))
    except (RuntimeError, TypeError) as error:
        raise _not_written(index, error) from None


def serialized(index: Any) -> bytes:
    """The bytes of the file that `write` writes."""
    _require_lists_inside(index)
    try:
        content: bytes = _faiss().serialize_index(index).tobytes()
    except (RuntimeError, TypeError) as error:
        raise _not_written(index, error) from None
    return content


def unserialized(content: bytes) -> Any:
    """The index that `serialized` has turned into bytes."""
    return _faiss().deserialize_index(np.frombuffer(content, np.uint8))


def _require_lists_inside(index: Any) -> None:
    if _is_on_disk(index):
        raise TypeError(f"FaissReranker: index {ON_DISK}")


def _not_written(index: Any, error: RuntimeError | TypeError) -> Exception:
    if isinstance(error, RuntimeError) and "serialize" not in str(error):
        return OSError(f"FaissReranker: the index cannot be written: {_reason(error)}")
    kind = type(index).__name__
    return TypeError(f"FaissReranker: FAISS writes no {kind}; one on a GPU goes through faiss.index_gpu_to_cpu first")


def add(index: Any, vectors: np.ndarray[Any, Any], first: int) -> None:
    """Add vectors to an index that returns rows, of which the first is `first`; TypeError where it takes none."""
    try:
        if mapped(index) is None:
            index.add(vectors)
        else:  # an index that numbers nothing itself
            index.add_with_ids(vectors, np.arange(first, first + len(vectors)))
    except RuntimeError as error:
        raise TypeError(
            f"FaissReranker: FAISS adds no items to this {type(index).__name__}: {_reason(error)}"
        ) from None


def refill(index: Any, vectors: np.ndarray[Any, Any]) -> None:
    """Let an index that returns rows hold these vectors and no others; its training stays."""
    index.reset()
    add(index, vectors, 0)


def search(index: Any, vectors: Array, k: int, params: Any) -> Array:
    """The ids of the k nearest, -1 for none; where index and vectors are on a GPU, as a tensor there."""
    try:
        if is_torch(vectors):
            return _search_on_gpu(index, vectors, k, params)
        # faiss.contrib.torch_utils, once imported, replaces `search` by a function that takes no parameters.
        by_numpy = getattr(index, "search_numpy", index.search)
        return (by_numpy(vectors, k) if params is None else by_numpy(vectors, k, params=params))[1]
    except (TypeError, AttributeError, RuntimeError) as error:  # the index takes no params, or not these
        if params is None:
            raise
        kind, got = type(index).__name__, type(params).__name__
        raise TypeError(f"FaissReranker: params of type {got} do not fit {kind}") from error


def _search_on_gpu(index: Any, vectors: Array, k: int, params: Any) -> Array:
    """Search by addresses on torch's stream, as faiss.contrib.torch_utils does, which changes all indexes at import."""
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


# -- search parameters -------------------------------------------------------------------------------------------------


def row_selector(rows: np.ndarray[Any, Any], count: int) -> Any:
    """The selector of some of `count` rows, in an index that returns rows: a bit for each."""
    chosen = np.zeros(count, bool)
    chosen[rows] = True
    return _faiss().IDSelectorBitmap(np.packbits(chosen, bitorder="little"))


def id_selector(ids: np.ndarray[Any, Any]) -> Any:
    """The selector of ids, in an index that returns ids: a hash table."""
    return _faiss().IDSelectorBatch(ids)


def parameters(index: Any, depth: int, selector: Any) -> Any:
    """Search parameters by which an index finds only what the selector takes; None where it cannot.

    FAISS looks at as much as the index is set to, however many items are asked for: here a graph compares `depth` items
    or more, and LEAST at least, and an IVF looks into as many lists as `_lists` says.
    """
    faiss = _faiss()
    *outer, inner = layers(index) or [index]
    for layer in outer:
        if isinstance(layer, faiss.IndexIDMap):  # translates ids of that selector only
            selector = selector and faiss.IDSelectorTranslated(layer.id_map, selector)
        elif not isinstance(layer, faiss.IndexPreTransform | faiss.IndexRefine):
            return None
    kind = next((kind for name, kind in SEARCHES.items() if isinstance(inner, getattr(faiss, name))), None)
    if kind is None:
        return None
    settings = {"sel": selector}
    if setting := _setting(inner):
        least = _lists(inner, depth) if setting.name == "nprobe" else max(setting.value, depth, LEAST)
        settings |= {name: getattr(setting.holder, name) for name in kind[1:]} | {setting.name: least}
    params = getattr(faiss, kind[0])(**settings)
    for layer in reversed(outer):  # the others pass their parameters to the index inside
        if isinstance(layer, faiss.IndexRefine):
            params = faiss.IndexRefineSearchParameters(k_factor=layer.k_factor, base_index_params=params)
    return params


SEARCHES: dict[str, tuple[str, ...] | None] = {
    **dict.fromkeys(("IndexHNSW2Level", "IndexIVFPQR")),
    "IndexHNSW": ("SearchParametersHNSW", "check_relative_distance"),
    "IndexIVFPQ": ("IVFPQSearchParameters", "max_codes", "scan_table_threshold", "polysemous_ht"),
    **dict.fromkeys(
        ("IndexIVFFlat", "IndexIVFScalarQuantizer", "IndexIVFPQFastScan", "IndexIVFRaBitQ"),
        ("SearchParametersIVF", "max_codes"),
    ),
    **dict.fromkeys(("IndexFlat", "IndexScalarQuantizer"), ("SearchParameters",)),
}
"""The search parameters of each class that finds what a selector takes, and the names of settings that they copy. The
first that an index is of counts. Other classes accept a selector and then find nothing, everything, or end the process.
"""


class Setting(NamedTuple):
    """The setting by which an index looks at more."""

    holder: Any  # whose attribute it is
    name: str
    most: int  # the greatest value that makes a difference

    @property
    def value(self) -> int:
        """The value of the setting."""
        return int(getattr(self.holder, self.name))


def _setting(index: Any) -> Setting | None:
    """The setting of one layer; None where it has none."""
    faiss = _faiss()
    if isinstance(index, faiss.IndexHNSW):
        return Setting(index.hnsw, "efSearch", max(index.ntotal, 16))
    return Setting(index, "nprobe", index.nlist) if isinstance(index, faiss.IndexIVF) else None


def _lists(index: Any, depth: int) -> int:
    """Lists of an IVF that are looked into: as many as it is set to, and as hold HELD times what is asked for; where it
    is set to one, as FAISS makes it, twice the root of their number.
    """
    holding = math.ceil(HELD * depth * index.nlist / max(index.ntotal, 1))
    least = math.ceil(2 * index.nlist**0.5) if index.nprobe == 1 else index.nprobe
    return int(min(max(least, holding), index.nlist))


def deep_enough(index: Any, shortlist: int) -> Any:
    """Search parameters by which an index finds a shortlist of the best; None where it has no such setting."""
    params = parameters(index, shortlist, None)
    return None if type(params) is _faiss().SearchParameters else params


def selecting(params: Any, selector: Any) -> Any:
    """A copy of somebody's search parameters with a selector; None where they have one, or others inside them."""
    kind = type(params)
    plain = isinstance(params, _faiss().SearchParameters) and not any(hasattr(params, name) for name in INSIDE)
    if not plain or selects(params):
        return None
    names = (name for name, member in inspect.getmembers(kind) if isinstance(member, property))
    copied = {name: getattr(params, name) for name in names if name not in ("sel", "thisown")}
    if "bounded_queue" in copied:
        copied["bounded_queue"] = True  # HNSW's unbounded queue ignores selectors
    return kind(**copied, sel=selector)


def selects(params: Any) -> bool:
    """Whether search parameters, or others inside them, have a selector."""
    inside = (getattr(params, name, None) for name in INSIDE)
    return getattr(params, "sel", None) is not None or any(selects(inner) for inner in inside if inner is not None)


LEAST = 64  # items that a graph compares at least: of 16, as FAISS sets it, the best is missed by one query in 20
HELD = 4  # times the shortlist that the lists hold which an IVF looks into
INSIDE = ("index_params", "base_index_params")  # attributes that are search parameters of an index inside


def looked_at(index: Any, shortlist: int) -> tuple[int, int]:
    """The depth of `parameters` that a search among all items has, and how many items it compares for each of that: by
    a graph the links of one, by an IVF what its lists hold; 0 where all are compared, or nobody knows how many.
    """
    faiss = _faiss()
    inner = next(reversed(layers(index)), None)
    if isinstance(inner, faiss.IndexHNSW):
        return inner.hnsw.efSearch, inner.hnsw.nb_neighbors(0)
    if isinstance(inner, faiss.IndexIVF) and _lists(inner, 0) < inner.nlist:
        return max(shortlist, math.ceil(_lists(inner, 0) * inner.ntotal / inner.nlist / HELD)), HELD
    return shortlist, 0


# -- layers ------------------------------------------------------------------------------------------------------------

RANKING = ("base_index", "index")
"""Attributes that hold the index inside which proposes items: below refinement, and below IDMaps and transforms."""

EVERY = (*RANKING, "refine_index", "quantizer", "storage", "index_ivf")
"""Attributes that hold any index inside."""


def layers(index: Any, attributes: tuple[str, ...] = RANKING) -> list[Any]:
    """The index and those inside it, of their own classes, the outermost first; none of what is no index of FAISS."""
    faiss = _faiss()
    if not isinstance(index, faiss.Index):
        return []
    index = faiss.downcast_index(index)
    return [index, *(x for name in attributes for x in layers(getattr(index, name, None), attributes))]


def _below_transforms(index: Any) -> Any:
    transform = _faiss().IndexPreTransform
    return next((layer for layer in layers(index) if not isinstance(layer, transform)), None)


def mapped(index: Any) -> Any:
    """The index in which an IDMap, or one behind a transform, keeps its vectors; None where there is no IDMap."""
    index = _below_transforms(index)
    return index.index if isinstance(index, _faiss().IndexIDMap) else None


def by_lists(index: Any) -> bool:
    """Whether the index, or one behind a transform, is an IVF."""
    return isinstance(_below_transforms(index), _faiss().IndexIVF)


def held_ids(index: Any) -> tuple[np.ndarray[Any, np.dtype[np.int64]] | None, bool]:
    """The ids [G] that an index on the CPU returns, and whether they are in the order in which items were added; None
    where FAISS cannot say them.
    """
    faiss, index = _faiss(), _below_transforms(index)
    if isinstance(index, faiss.IndexIDMap):
        return faiss.vector_to_array(index.id_map), True
    if not isinstance(index, faiss.IndexIVF):
        return None, False
    lists = index.invlists
    sizes = ((i, lists.list_size(i)) for i in range(index.nlist))
    parts = [faiss.rev_swig_ptr(lists.get_ids(i), size).copy() for i, size in sizes if size]
    ids = np.concatenate([np.empty(0, np.int64), *parts])
    return (ids if len(ids) == index.ntotal else None), False  # an index without duplicates lists one of each


def similarities(index: Any, vectors: np.ndarray[Any, Any], labels: np.ndarray[Any, Any]) -> Array | None:
    """How similar vectors [S, d] are to what an index on the CPU holds under labels [S], all different: [S, S], up to a
    constant for each vector and for each label; None where FAISS tells neither what it holds nor its distances.
    """
    faiss, (index, *inside) = _faiss(), layers(index) or [index]
    if isinstance(index, faiss.IndexIDMap):
        return similarities(inside[0], vectors, SortedIds.of(faiss.vector_to_array(index.id_map)).rows_of(labels))
    if not by_lists(index):  # labels are rows
        try:
            return vectors @ index.reconstruct_batch(labels).T if labels.max() < index.ntotal else None
        except (RuntimeError, AttributeError):
            return None
    params = parameters(index, index.ntotal, id_selector(labels))  # an IVF does not know where its ids are
    if params is None:
        return None
    distances, found = getattr(index, "search_numpy", index.search)(vectors, len(labels), params=params)
    if (np.sort(found) != np.sort(labels)).any():
        return None
    similar = np.empty(distances.shape)
    signed = distances if faiss.is_similarity_metric(index.metric_type) else -distances
    np.put_along_axis(similar, SortedIds.of(labels).rows_of(found), signed, 1)
    return similar


# -- building ----------------------------------------------------------------------------------------------------------


def built(vectors: np.ndarray[Any, Any], factory: str, *, inner_product: bool) -> Any:
    """The index of a factory string, by inner product or by L2, trained on the vectors and holding them."""
    faiss = _faiss()
    metric = faiss.METRIC_INNER_PRODUCT if inner_product else faiss.METRIC_L2
    count, width = vectors.shape
    try:
        index = faiss.index_factory(width, factory, metric)
    except RuntimeError as error:
        reason = _reason(error)
        what = "is not a FAISS factory string" if "could not parse" in reason else f"at {width} dimensions: {reason}"
        raise ValueError(f"FaissReranker.build: factory {factory!r} {what}") from None
    if "IDMap" in factory:
        raise ValueError(
            f"FaissReranker.build: factory {factory!r} keeps ids of its own; leave IDMap out, and give build the ids"
        )
    try:
        if not index.is_trained:
            index.train(vectors)
        index.add(vectors)
    except RuntimeError as error:
        what = f"factory {factory!r} cannot be trained on {count} items: {_reason(error)}"
        raise ValueError(f"FaissReranker.build: {what}") from None
    return index


def moved_to_gpu(index: Any, like: Array) -> Any:
    """The index on the GPU of a tensor; ImportError where FAISS has no GPU, ValueError where it has no such index."""
    faiss = _faiss()
    if not hasattr(faiss, "StandardGpuResources"):
        what = f"FAISS {faiss.__version__} has no GPU, on which the gallery is"
        raise ImportError(f"FaissReranker.build: {what}: pip install peaccel[faiss-gpu]")
    try:
        return faiss.index_cpu_to_gpu(faiss.StandardGpuResources(), place(like)[0], index)
    except RuntimeError as error:
        what = f"FAISS has no {type(index).__name__} on a GPU ({_reason(error)}), expected a flat or an IVF index"
        raise ValueError(f"FaissReranker.build: {what}") from None


class Tuned(NamedTuple):
    """How a built index is searched: the setting by its name, its value, and the share of the ten nearest others
    of its items that it then finds."""

    setting: str
    value: int
    recall: float


def tuned(index: Any, vectors: np.ndarray[Any, Any], recall: float) -> Tuned | None:
    """Set a graph or an IVF to the least effort at which it finds this share of the ten nearest, of its items,
    or to the least beyond which it finds no more; None for an index without such a setting.
    """
    setting = _setting(layers(index)[-1])
    if setting is None or len(vectors) <= NEAREST:
        return None
    holder, name, most = setting
    sample = vectors[:: -(-len(vectors) // SAMPLED)]
    flat = _faiss().IndexFlat(vectors.shape[1], index.metric_type)
    flat.add(vectors)
    nearest = flat.search(sample, NEAREST + 1)[1]
    tried: list[Tuned] = []
    value = setting.value
    while not tried or (tried[-1].recall < recall and tried[-1].value < most):
        value = min(value if not tried else 2 * tried[-1].value, most)
        setattr(holder, name, value)
        got = index.search(sample, NEAREST + 1)[1]
        share = float((got[:, :, None] == nearest[:, None]).any(1).mean())
        tried.append(Tuned(name, value, share))
    best = max(x.recall for x in tried)
    chosen = next(x for x in tried if x.recall >= min(recall, best - 1e-3))
    setattr(holder, name, chosen.value)
    return chosen


NEAREST, SAMPLED = 10, 256  # items that are looked for, and items that look for them


def _reason(error: RuntimeError) -> str:
    """FAISS's error message in one line, without the place in its code."""
    return " ".join(re.sub(r"(?s).*?\.(cpp|h):\d+: (Error: '.*?' failed(: )?)?", "", str(error), count=1).split())


def width(width: int, factory: str) -> int:
    """The next width that every PQ of the factory string divides."""
    parts = math.lcm(*(int(count) for count in re.findall(r"PQ(\d+)", factory) if int(count)))
    return -(-width // parts) * parts
