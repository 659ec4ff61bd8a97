"""One interface to numpy arrays and torch tensors: the only module that distinguishes the two.

It never imports torch: an object can be a tensor only if torch has been imported already.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import wraps
from numbers import Number
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple, ParamSpec, Protocol, TypeAlias, TypeVar

import numpy as np

__all__ = [
    "Array",
    "ArrayT",
    "Given",
    "Home",
    "KindT",
    "NotArrayError",
    "Numpy",
    "adjacent",
    "appended",
    "array_from",
    "as_array",
    "as_numpy",
    "as_stored",
    "bfloat16",
    "bounded",
    "cast",
    "device_of",
    "dtype_name",
    "empty",
    "full",
    "home_of",
    "is_captured",
    "is_masked",
    "is_repeated",
    "is_torch",
    "is_traced",
    "lies_adjacent",
    "like",
    "namespace",
    "numpy_dtype",
    "on_host",
    "promoted",
    "quiet",
    "repeated",
    "replaced",
    "require_finite",
    "require_numbers",
    "require_plain",
    "require_same_kind",
    "times_written",
    "widened",
]

Numpy: TypeAlias = np.ndarray[Any, Any]
Array: TypeAlias = Any  # numpy.ndarray or torch.Tensor, inside the package, which asks each for what both have


class FrameColumn(Protocol):
    """One or more columns of a data frame of pandas or Polars."""

    def to_numpy(self) -> Any: ...


# What constructors and functions take beside arrays, and make numpy arrays of.
Given: TypeAlias = Sequence[Any] | float | np.number[Any] | FrameColumn

# In public signatures, ArrayT is the kind of array that goes in and comes out; Any where none is written. KindT is that
# of arguments which may be lists too, of which numpy arrays are made; numpy's dtypes are not told apart.
if TYPE_CHECKING:
    from torch import Tensor
    from typing_extensions import TypeVar as TypeVarWithDefault

    ArrayT = TypeVarWithDefault("ArrayT", bound=Numpy | Tensor, default=Any)
    # The narrower one last: without torch Tensor is Any, and of those that fit type checkers take the last.
    KindT = TypeVarWithDefault("KindT", Tensor, Numpy, default=Numpy)
else:
    ArrayT, KindT = TypeVar("ArrayT"), TypeVar("KindT")

FLOATS = ("float32", "float64")
HALVES = ("float16", "bfloat16")
FLOATING = FLOATS + HALVES


P = ParamSpec("P")
R = TypeVar("R")


def quiet(function: Callable[P, R]) -> Callable[P, R]:
    """A function in which numpy does not warn where values give NaN or infinity, as kernels do not."""

    @wraps(function)
    def silenced(*args: P.args, **kwargs: P.kwargs) -> R:
        torch = sys.modules.get("torch")
        if torch is not None and torch.compiler.is_compiling():  # which cannot see through errstate
            return function(*args, **kwargs)
        with np.errstate(all="ignore"):
            return function(*args, **kwargs)

    return silenced


class NotArrayError(TypeError):
    """Error of a distribution or a masked array that numpy is to convert; its message says what to pass."""


def is_torch(x: object) -> bool:
    """Whether x is a torch tensor."""
    if type(x) is np.ndarray:  # most are; a call comes here dozens of times
        return False
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(x, torch.Tensor)


def is_masked(x: object) -> bool:
    """Whether x is one of numpy's masked arrays."""
    masked = sys.modules.get("numpy.ma")  # no array is masked unless this is imported
    return masked is not None and isinstance(x, masked.MaskedArray)


def require_plain(owner: str, name: str, x: object) -> None:
    """Refuse a masked array."""
    if is_masked(x):
        raise NotArrayError(f"{owner}: {name} is a masked array, expected a plain one: what is masked would count")


def is_traced(x: object) -> bool:
    """Whether x is a tensor that torch.compile is tracing: it has no values yet, and numpy cannot read it."""
    if type(x) is np.ndarray:
        return False
    torch = sys.modules.get("torch")
    return torch is not None and torch.compiler.is_compiling() and isinstance(x, torch.Tensor)


def is_captured(x: Array) -> bool:
    """Whether results of x become part of a graph of CUDA or of torch.compile: nobody may keep or look at them."""
    if not is_torch(x) or not x.is_cuda:
        return is_traced(x)
    cuda: Any = sys.modules["torch"].cuda
    return is_traced(x) or (cuda.is_initialized() and cuda.is_current_stream_capturing())


def times_written(x: Array) -> object:
    """How often a tensor was written; of one that does not count, made in inference mode, what equals nothing else."""
    return object() if x.is_inference() else x._version


def namespace(x: Array) -> ModuleType:
    """The module, numpy or torch, that x belongs to; both offer sqrt, log, where, ... under the same names."""
    return sys.modules["torch"] if is_torch(x) else np


def replaced(x: Array, mask: Array, value: float) -> Array:
    """x with a number where the mask is true; of tensors by one operator, where `where` takes several."""
    return x.masked_fill(mask, value) if is_torch(x) else np.where(mask, value, x)


def dtype_name(x: Array) -> str:
    """The name of x's dtype, the same for both kinds: "float32", "bfloat16", "int64", ..."""
    dtype = x.dtype
    if dtype not in _names:  # formatting a name takes microseconds
        _names[dtype] = dtype.name if isinstance(dtype, np.dtype) else str(dtype).removeprefix("torch.")
    return _names[dtype]


_names: dict[Any, str] = {}  # the names of the dtypes seen so far, of numpy and of torch


def device_of(x: Array) -> str:
    """The device of x: "numpy", "cpu", "cuda:0" ...; only arrays of the same device can be combined."""
    if isinstance(x, np.ndarray):
        return "numpy"
    return "cpu" if x.is_cpu else str(x.device)


class Home(NamedTuple):
    """The device that computes with an array and its dtype, by name, so that a call need not ask for them again."""

    device: str
    """"numpy", "cpu", "cuda:0" ..."""
    dtype: str
    compute_dtype: str
    """The dtype in which kernels compute: float32 for 16-bit floats."""


def home_of(x: Array) -> Home:
    """The home of an array of floating-point numbers."""
    dtype = dtype_name(x)
    return Home(device_of(x), dtype, "float32" if dtype in HALVES else dtype)


def describe(device: str) -> str:
    """A device in the words of error messages."""
    return "a numpy array" if device == "numpy" else f"a torch tensor on {device}"


def as_array(x: object, owner: str, name: str, *, floating: bool = True, like: Array = None) -> Array:
    """x itself if it is a numpy array or torch tensor, else (lists, numbers, data frames) an array of it.

    Raises TypeError, which names the argument, for anything else. With ``floating``, the dtype must be float16,
    bfloat16, float32 or float64, else ValueError. Integers are converted to the dtype of the array `like`, or to
    float64 without one; Python's numbers and lists of them are converted to the kind of array of `like` as well.
    """
    require_plain(owner, name, x)
    if (isinstance(x, np.ndarray) and x.dtype.kind != "O") or is_torch(x):
        array: Array = x
        untyped = False
    elif isinstance(x, (int, float)) and not isinstance(x, bool) and is_torch(like):
        return like.new_full((), x)  # without numpy, which torch.compile cannot see through
    else:
        array = _from_python(x, owner, name)
        untyped = isinstance(x, np.generic) or not hasattr(x, "__array__")
    if floating:
        array = _as_floating(array, like, untyped)
        if dtype_name(array) not in FLOATING:
            what = f"{owner}: {name} has dtype {dtype_name(array)}"
            raise ValueError(f"{what}, expected float16, bfloat16, float32 or float64")
    if isinstance(array, np.ndarray) and not array.dtype.isnative:
        return array.astype(array.dtype.newbyteorder("="))
    return array


def _from_python(x: object, owner: str, name: str) -> Numpy:
    """The numpy array of an object that is not an array; TypeError if its elements are not numbers, ValueError if some
    are missing or rows have different lengths."""
    try:
        array = array_from(owner, name, x)
        array = np.asarray(array.tolist()) if array.dtype.kind == "O" and array.ndim else array  # a column of rows
    except NotArrayError:
        raise
    except (TypeError, ValueError):  # rows of different lengths, or other objects
        array = np.asarray(None)
    if isinstance(x, Sequence) or hasattr(x, "__array__"):
        _require_whole(x, array, owner, name)
    if array.dtype.kind == "O" and x is not None:
        with suppress(TypeError, ValueError):  # other objects, which are named below
            array = array.astype(np.float64)
    if array.dtype.kind in "US" and array.size:
        raise TypeError(f"{owner}: {name} is text, such as {str(array.flat[0])!r}, expected numbers")
    if array.dtype.kind not in "biufc":
        what = "None" if x is None else type(x).__name__
        raise TypeError(f"{owner}: {name} must be a numpy array or a torch tensor, got {what}")
    return array


def _require_whole(x: Any, array: Numpy, owner: str, name: str) -> None:
    """Refuse rows that are missing, that have a missing number, or another length than the first."""
    if array.dtype.kind != "O" and not (array.dtype.kind == "f" and np.isnan(array).any()):
        return  # of a column with types numpy gets NaN in place of what is missing
    length = -1
    for i, row in enumerate(_rows_of(x)):
        is_row = hasattr(row, "__len__") and not isinstance(row, str) and getattr(row, "ndim", 1) > 0
        length = len(row) if is_row and length < 0 else length
        if is_row and len(row) != length:
            raise ValueError(f"{owner}: {name} has {len(row)} numbers in row {i}, expected {length}")
        for number in row if is_row else (row,):
            if not isinstance(number, Number):
                raise ValueError(f"{owner}: {name} is {number!r} in row {i}, expected a number")


def _rows_of(x: Any) -> Any:
    """The rows of a list, a column or a frame as Python's objects: what is missing is None or NA there, not NaN."""
    if isinstance(x, Sequence):
        return x
    if hasattr(x, "to_pylist"):  # Arrow's; rows of its tables are dicts
        return [list(row.values()) if isinstance(row, dict) else row for row in x.to_pylist()]
    listed = next((getattr(x, name) for name in ("rows", "to_list") if hasattr(x, name)), None)  # Polars, pandas
    return np.asarray(x) if listed is None else listed()


def _as_floating(x: Array, like: Array, untyped: bool) -> Array:
    """Integers and objects without a dtype, converted as `as_array` says; other arrays unchanged."""
    name = dtype_name(x)
    if not (name.startswith(("int", "uint")) or (untyped and name.startswith("float"))):
        return x
    if untyped and is_torch(like):
        return like.new_tensor(x)
    if is_torch(x):
        return x.to(like.dtype if is_torch(like) else sys.modules["torch"].float64)
    return x.astype(like.dtype if isinstance(like, np.ndarray) else np.float64)


def as_numpy(x: Array) -> np.ndarray[Any, Any]:
    """`as_stored`, except that bfloat16, a dtype that numpy lacks, is widened to float32 (a copy)."""
    if type(x) is np.ndarray and x.dtype.kind != "V":
        return x
    return as_stored(widened(x) if dtype_name(x) == "bfloat16" else x)


def as_stored(x: Array) -> np.ndarray[Any, Any]:
    """A numpy view (no copy) of a numpy array or of a torch CPU tensor, detached from autograd.

    bfloat16 is viewed as uint16, the dtype in which kernels expect it.
    """
    if type(x) is np.ndarray and x.dtype.kind != "V":  # V is the kind of the dtypes of ml_dtypes
        return x
    stored: np.ndarray[Any, Any]
    if isinstance(x, (np.ndarray, np.generic)):
        stored = np.asarray(x)
        return stored.view(np.uint16) if dtype_name(x) == "bfloat16" else stored
    x, torch = x.detach() if x.requires_grad else x, sys.modules["torch"]
    stored = x.view(torch.int16).numpy().view(np.uint16) if x.dtype == torch.bfloat16 else x.numpy()
    return stored


def adjacent(x: Array) -> Array:
    """x itself if it `lies_adjacent`, else a contiguous copy."""
    if lies_adjacent(x):
        return x
    return x.contiguous() if is_torch(x) else np.ascontiguousarray(x)


def lies_adjacent(x: Array) -> bool:
    """Whether kernels can read the rows of x: their elements are adjacent in memory, or one element is repeated."""
    if x.ndim < 2 or x.shape[1] < 2:
        return True
    return x.stride(1) in (0, 1) if is_torch(x) else x.strides[1] in (0, x.itemsize)


def appended(buffer: Array, size: int, new: Array) -> Array:
    """A buffer with `new` after its first `size` rows; a new one of twice the size if that does not fit.

    What is one row for all items, and is the same one in `new`, stays that.
    """
    stop = size + len(new)
    if is_repeated(buffer) and is_repeated(new) and bool((buffer[:1] == new[:1]).all()):
        return repeated(buffer[:1], stop)
    if stop > len(buffer):
        grown = empty((max(2 * size, stop), *buffer.shape[1:]), buffer)
        grown[:size] = buffer[:size]
        buffer = grown
    buffer[size:stop] = new
    return buffer


def empty(shape: tuple[int, ...], like: Array) -> Array:
    """An array of the kind, dtype and device of another, not filled.

    Tensors on the CPU lie in numpy's memory, for which it asks for large pages, unlike torch: with small ones, rows at
    random places of a large array wait for their addresses to be looked up.
    """
    if not is_torch(like):
        return np.empty(shape, like.dtype)
    if device_of(like) != "cpu":
        return like.new_empty(shape)
    stored = sys.modules["torch"].from_numpy(np.empty(shape, as_stored(like[:0]).dtype))
    return stored if stored.dtype == like.dtype else stored.view(like.dtype)


def repeated(row: Array, count: int) -> Array:
    """A row [1, ...] as that of so many items: a view whose stride is 0, even for one item."""
    return namespace(row).broadcast_to(row, (max(count, 2), *row.shape[1:]))[:count]


def full(shape: tuple[int, ...], value: float | str | bytes, like: Array) -> Array:
    """An array of one value, of the kind, dtype and device of another."""
    return like.new_full(shape, value) if is_torch(like) else np.full(shape, value, like.dtype)


def like(x: Array, values: np.ndarray[Any, Any]) -> Array:
    """A numpy array of numbers as an array of x's kind and device."""
    return sys.modules["torch"].from_numpy(values).to(x.device) if is_torch(x) else values


def is_repeated(x: Array) -> bool:
    """Whether all items have the same row in memory."""
    return (x.stride(0) if is_torch(x) else x.strides[0]) == 0 and bool(len(x))  # exports do not fix the length


def widened(x: Array) -> Array:
    """float16 and bfloat16 converted to float32, exactly; other arrays unchanged. Differentiable in torch."""
    if dtype_name(x) not in HALVES:
        return x
    return x.float() if is_torch(x) else x.astype(np.float32)


def cast(x: Array, dtype: str) -> Array:
    """The array in the dtype of this name; x itself where it has it already."""
    return x.to(getattr(namespace(x), dtype)) if is_torch(x) else x.astype(dtype, copy=False)


def promoted(x: Array, y: Array) -> str:
    """The name of the floating dtype that holds the numbers of both arrays, as torch and numpy promote."""
    names = {dtype_name(x), dtype_name(y)}
    return names.pop() if len(names) == 1 else "float64" if "float64" in names else "float32"


def bfloat16() -> Any:
    """The bfloat16 dtype of numpy arrays, which ml_dtypes provides."""
    try:
        import ml_dtypes
    except ImportError:
        raise ImportError("arrays of bfloat16 need ml_dtypes: pip install peaccel[cli]") from None
    return ml_dtypes.bfloat16


def numpy_dtype(owner: str, dtype: Any) -> Any:
    """The numpy dtype of this name."""
    if str(dtype) == "bfloat16":
        return bfloat16()
    try:
        return np.dtype(dtype)
    except TypeError:
        raise ValueError(f"{owner}: expected float16, bfloat16, float32 or float64, got {dtype!r}") from None


def on_host(x: Array, owner: str = "", name: str = "") -> np.ndarray[Any, Any]:
    """The values of an array or a list in numpy, without gradients: a copy of a tensor on a GPU, else a view.

    bfloat16 is widened to float32. An error for what is no array names the function and its argument.
    """
    if is_torch(x):
        if x.is_meta:
            raise ValueError(f"{owner or 'peaccel'}: {name or 'a tensor'} is on meta, where tensors have no values")
        return as_numpy(x.cpu())
    require_plain(owner, name, x)
    return as_numpy(x) if isinstance(x, np.ndarray) else array_from(owner, name, x)


def array_from(owner: str, name: str, x: Any, dtype: Any = None) -> np.ndarray[Any, Any]:
    """The array that numpy makes of a list or an object; of a distribution a TypeError that names the argument."""
    require_plain(owner, name, x)
    try:
        return np.asarray(x, dtype)
    except NotArrayError as error:
        raise NotArrayError(f"{owner}: {name}: {error}") from None


def require_numbers(owner: str, name: str, x: Numpy, *, finite: str = "", above: str = "") -> None:
    """Refuse NaN. What ranks numbers takes infinite ones: +inf is the score of an exact copy, the best of all.

    What cannot take them says why: `finite` where it computes with the size of numbers, `above` where it cannot take
    minus infinity.
    """
    bad = ~np.isfinite(x) if finite else np.isnan(x) | (x == -np.inf) if above else np.isnan(x)
    if bad.any():
        what = "NaN or infinite" if finite else "NaN or -inf" if above else "NaN"
        reason = f"; {finite or above}" if finite or above else ""
        row = int(np.argwhere(bad)[0][0])
        raise ValueError(
            f"{owner}: {bad.sum()} of the {x.size} numbers of {name} are {what}, first in row {row}{reason}"
        )


LOOKED_AT_ONCE = 1 << 18
"""Numbers that are looked at for NaN and infinity at once: few beside those of any gallery."""


def require_finite(owner: str, name: str, mu: Numpy, *parameters: Numpy) -> None:
    """Refuse items of which mu, [N, D], is not finite, or a parameter, [N] or [N, D], is NaN; count and name them."""
    total = np.add.reduce(mu, None)  # in which neither NaN nor infinity is hidden
    for x in parameters:
        total = total + np.add.reduce(x, None)
    if math.isfinite(total):
        return
    step, found = max(LOOKED_AT_ONCE // max(mu.shape[1], 1), 1), []
    for begin in range(0, len(mu), step):
        bad = np.asarray(~np.isfinite(mu[begin : begin + step]).all(-1))
        for x in parameters:
            bad |= np.isnan(x[begin : begin + step].reshape(len(bad), -1)).any(-1)
        found += (begin + np.flatnonzero(bad)).tolist()
    if found:
        what = f"{len(found)} of {len(mu)} rows are not finite, first {', '.join(map(str, found[:3]))}"
        raise ValueError(f"{owner}: {name}: {what}; leave these out")


def bounded(x: Numpy, dtype: Any = np.float64) -> Numpy:
    """Infinite numbers as the greatest ones of the dtype in which they were computed, above which a threshold may lie.

    Numbers of what is no floating-point dtype are none.
    """
    greatest = float(np.finfo(dtype if np.dtype(dtype).kind == "f" else np.float64).max)
    return np.clip(x, -greatest, greatest)


def require_same_kind(owner: str, name: str, x: Array, like: str, other: Array) -> None:
    """Raises TypeError or ValueError unless x is of the kind and on the device of `other`, the argument `like`."""
    device, expected = device_of(x), device_of(other)
    if device != expected:
        kind = TypeError if "numpy" in (device, expected) else ValueError
        raise kind(f"{owner}: {name} is {describe(device)}, expected {describe(expected)} like {like}")
