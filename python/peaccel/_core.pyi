"""The compiled core: kernels that fill arrays which the Python layer allocates and checks. Private."""

from typing import Any, TypeAlias

import numpy as np

_Array: TypeAlias = np.ndarray[Any, Any]
_Inputs: TypeAlias = list[_Array]  # mu1, uncertainty1, mu2, uncertainty2, shared
_Draws: TypeAlias = tuple[int, int, int] | None  # seed, number and first row of the gallery, where a score draws
# Seed, number, workspace, the draws of either side that were made, and gradients by a side's draws.
_Drawing: TypeAlias = tuple[_Memory | None, int, _Memory, list[_Memory | None], _Memory | None] | None

_Memory: TypeAlias = tuple[int, tuple[int, ...], tuple[int, ...], str]  # address, shape, strides, dtype
_Place: TypeAlias = tuple[int, int]  # device, stream

__all__: list[str]
__version__: str

class CudaError(RuntimeError):
    """CUDA cannot be used, or a kernel could not be launched; the message says why."""

CUDA_BEST: int  # what the kernels keep of each query
QUERY: int  # whose gradients are wanted
GALLERY: int
SHARED: int
EVERY_GRADIENT: int  # all three
TOGETHER: int  # added to `wanted`: of one set, the gradients of both sides as one

def kernels() -> list[dict[str, Any]]: ...  # what the table of kernels says of each score of pairs
def score(
    name: str, arrays: _Inputs, draws: _Draws, candidates: _Array | None, out: _Array, saved: _Array | None
) -> None: ...
def score_backward(
    name: str,
    arrays: _Inputs,
    draws: _Draws,
    candidates: _Array | None,
    weights: _Array,
    out: list[_Array],
    wanted: int,
    saved: _Array | None,
) -> None: ...
def rerank(
    name: str,
    arrays: _Inputs,
    draws: _Draws,
    candidates: _Array,
    codes: _Array | None,
    scores: _Array,
    ids: _Array,
) -> None: ...
def search(
    name: str, arrays: _Inputs, draws: _Draws, panels: list[_Array] | None, prune: str, scores: _Array, ids: _Array
) -> float: ...
def elementwise(name: str, order: _Array, x: _Array, out: _Array) -> None: ...
def sample(name: str, mu: _Array, uncertainty: _Array, seed: int, first_row: int, stream: int, out: _Array) -> None: ...
def sample_backward(
    name: str,
    mu: _Array,
    uncertainty: _Array,
    seed: int,
    first_row: int,
    stream: int,
    weights: _Array,
    out: list[_Array],
) -> None: ...
def pack(rows: _Array, order: _Array, panels: _Array, norms: _Array) -> None: ...
def panels_shape(rows: int, dim: int, double: bool) -> tuple[int, int]: ...
def encode(rows: _Array, uncertainties: _Array, double: bool, codes: _Array) -> None: ...
def codes_width(dim: int) -> int: ...
def encode_panels(
    rows: _Array, order: _Array, double: bool, bytes: _Array, numbers: _Array, middle: _Array
) -> None: ...
def coded_shape(rows: int, dim: int) -> tuple[tuple[int, int], tuple[int, int]] | None: ...
def simd_level() -> str: ...
def num_threads() -> int: ...
def set_num_threads(n: int) -> None: ...
def cuda_info() -> tuple[str, int, str | None]: ...
def cuda_table_size(name: str, dtype: str, orders: int, elements: int) -> int: ...
def cuda_elementwise(name: str, at: _Place, order: _Memory, x: _Memory, table: _Memory, out: _Memory) -> None: ...
def cuda_sample(
    name: str,
    at: _Place,
    mu: _Memory,
    uncertainty: _Memory,
    seed: _Memory,
    first_row: int,
    stream: int,
    out: _Memory,
) -> None: ...
def cuda_sample_backward(
    name: str,
    at: _Place,
    mu: _Memory,
    uncertainty: _Memory,
    seed: _Memory,
    weights: _Memory,
    by_mu: _Memory,
    by_uncertainty: _Memory,
    first_row: int,
    stream: int,
) -> None: ...
def cuda_workspace(
    name: str, at: _Place, arrays: list[_Memory], n: int, rows: int, columns: int | None
) -> int | None: ...
def cuda_score(
    name: str,
    at: _Place,
    arrays: list[_Memory],
    draws: _Drawing,
    per_item: list[_Memory | None],
    candidates: _Memory | None,
    out: _Memory,
) -> None: ...
def cuda_score_backward(
    name: str,
    at: _Place,
    arrays: list[_Memory],
    per_item: list[_Memory | None],
    candidates: _Memory | None,
    lists: list[_Memory] | None,
    weights: _Memory,
    sides: list[tuple[int, _Drawing, list[_Memory]]],
    marks: list[_Memory] | None,
) -> None: ...
def cuda_warps(m: int) -> int: ...
def cuda_fold(
    name: str,
    at: _Place,
    arrays: list[_Memory],
    draws: _Drawing,
    per_item: list[_Memory | None],
    tile: tuple[int, int, int, int],
    products: list[_Memory],
    norms: list[_Memory],
    out: _Memory | None,
    weights: tuple[_Memory, list[_Memory], _Memory | None, _Memory, _Memory | None] | None,
) -> None: ...
def cuda_shares(name: str, at: _Place, arrays: list[_Memory], candidates: int) -> int: ...
def cuda_rerank(
    name: str,
    at: _Place,
    arrays: list[_Memory],
    per_item: list[_Memory | None],
    candidates: _Memory,
    parts: list[_Memory],
    scores: _Memory,
    ids: _Memory,
) -> None: ...
def cuda_norms(
    at: _Place,
    rows: list[_Memory],
    norms: list[_Memory],
    copies: list[_Memory],
    like: _Memory | None,
    narrow: list[_Memory] | None,
) -> None: ...
def cuda_scratch(queries: int, gallery: int) -> int: ...
def cuda_scores_of_products(
    name: str,
    at: _Place,
    arrays: list[_Memory],
    per_item: list[_Memory | None],
    products: _Memory,
    norms: list[_Memory],
    out: _Memory,
) -> None: ...
def cuda_weights_of_products(
    name: str,
    at: _Place,
    arrays: list[_Memory],
    per_item: list[_Memory | None],
    products: _Memory,
    norms: list[_Memory],
    weights: _Memory,
    factors: _Memory,
    memory: _Memory,
    both: bool,
) -> None: ...
def cuda_add_to_products(
    name: str,
    at: _Place,
    arrays: list[_Memory],
    per_item: list[_Memory | None],
    weights: _Memory,
    memory: _Memory,
    sides: list[tuple[int, list[_Memory], _Memory]],
) -> None: ...
def cuda_cut(name: str, at: _Place, arrays: list[_Memory], k: int, prune: str) -> list[int]: ...
def cuda_search(
    name: str,
    at: _Place,
    arrays: list[_Memory],
    per_item: list[_Memory | None],
    prune: str,
    parts: list[_Memory],
    lists: list[_Memory],
    of_products: tuple[int, _Memory, list[_Memory], list[_Memory] | None, _Memory, list[_Memory]] | None,
    scores: _Memory,
    ids: _Memory,
) -> None: ...
def cuda_select(at: _Place, all: _Memory, all_ids: _Memory, scores: _Memory, ids: _Memory) -> None: ...
