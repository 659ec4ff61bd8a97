"""Batches of distributions: what a probabilistic embedding is. Data and no maths; scores and measures do the computing.

A distribution holds N items of dimension D in one or two arrays: all numpy or all torch, of one dtype (float16,
bfloat16, float32 or float64), on one device. The arrays are kept as given, never copied. Constructors look at kinds,
shapes, dtypes and devices only; ``validate()`` is what scans the values.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Self, TypeVar, overload

import numpy as np

from peaccel._utils.arrays import (
    FLOATING,
    HALVES,
    Array,
    ArrayT,
    Given,
    Home,
    KindT,
    NotArrayError,
    Numpy,
    as_array,
    as_numpy,
    bfloat16,
    cast,
    device_of,
    dtype_name,
    home_of,
    is_repeated,
    is_torch,
    is_traced,
    lies_adjacent,
    namespace,
    numpy_dtype,
    promoted,
    quiet,
    repeated,
    require_finite,
    require_same_kind,
    widened,
)
from peaccel._utils.seeds import as_integer
from peaccel._utils.words import no_attribute
from peaccel.distributions import torch_containers
from peaccel.ops._dispatch import transformed

__all__ = ["Distribution", "NonIsotropicVonMisesFisher", "Normal", "Point", "Scaled", "VonMisesFisher", "concat"]
__all__ += ["bfloat16"]  # for io, which imports nothing below this module

# How far from 1 the norm of a direction may be: rounding to bfloat16 alone moves it by up to 2e-3, to float16 by 5e-4.
UNIT_TOLERANCE = {"float64": 1e-3, "float32": 1e-3, "float16": 2e-3, "bfloat16": 1e-2}

# As a look allows it in every dtype: under autocast float32 holds directions that were divided by a norm in bfloat16,
# both rounded, which are off by up to 4e-3.
LOOK_TOLERANCE = UNIT_TOLERANCE["bfloat16"]

LOOKED_AT = 64  # rows that check_rows() looks at

BLOCK = 1 << 14  # rows that validate() scans at a time, so that its temporaries stay small beside a gallery


@dataclass(frozen=True, eq=False, repr=False)
class Distribution(Generic[ArrayT]):
    """The base class of the five distributions: N items of dimension D, indexed along the first axis.

    Lists, numbers and columns of data frames are taken too; lists and integers become float64 as mu, mu's dtype beside
    it. A parameter that is one number, [1], [1, 1] or [N, 1] is that of every item or dimension, [1, D] that of every
    item; it is kept as a view. Of two dtypes both become the one that holds both: float32 of bfloat16 beside float32.

    Attributes
    ----------
    kind
        The name by which scores and measures choose a formula: "normal_isotropic", "normal_diagonal", "vmf", ...
    dim
        D, the number of dimensions.
    home
        The device and the dtype of the arrays, by name.
    is_adjacent
        Whether kernels can read the rows of all arrays as they lie in memory.
    number
        The parameter of all items where Python's number was given for it, else None.

    Examples
    --------
    >>> def count(d: pe.Distribution) -> str:
    ...     return f"{len(d)} items of kind {d.kind}"
    >>> count(pe.Point([[0.0, 1.0], [1.0, 0.0]]))
    '2 items of kind point'
    >>> isinstance(pe.Normal([[0.0, 1.0]], var=[0.1]), pe.Distribution)
    True
    """

    mu: ArrayT

    if TYPE_CHECKING:  # no fields of the record, but settled by these when it is made

        @property
        def kind(self) -> str: ...
        @property
        def dim(self) -> int: ...
        @property
        def home(self) -> Home: ...
        @property
        def is_adjacent(self) -> bool: ...
        @property
        def number(self) -> float | None: ...
        @property
        def _repeats(self) -> bool: ...  # whether all items have the same row of the last array in memory
        @property
        def _looked_at(self) -> bool: ...  # whether check_rows() has found nothing

    _names: ClassVar[tuple[str, ...]] = ("mu",)  # names of the arrays, in the order of the constructor
    _kinds: ClassVar[dict[int, str]] = {}  # the kind for each rank of the last array
    _unit: ClassVar[bool] = False  # whether the rows of mu are directions
    _min_dim: ClassVar[int] = 1

    def __post_init__(self) -> None:
        number = None
        for name in self._names:
            argument = getattr(self, name)
            number = float(argument) if isinstance(argument, (int, float)) else None
            if name == "mu":
                x = as_array(argument, type(self).__name__, name)
                self._check_mu(x)
            else:
                x = self._parameter(name, as_array(argument, type(self).__name__, name, like=self.mu))
            if x is not argument:
                object.__setattr__(self, name, x)
        object.__setattr__(self, "kind", self._kinds[x.ndim])
        object.__setattr__(self, "dim", int(self.mu.shape[1]))
        object.__setattr__(self, "home", home_of(self.mu))
        object.__setattr__(self, "is_adjacent", lies_adjacent(self.mu) and lies_adjacent(x))
        object.__setattr__(self, "_repeats", is_repeated(x))
        object.__setattr__(self, "_looked_at", False)
        object.__setattr__(self, "number", number)
        if self.home.device != "numpy":
            _enter_in_torch()

    def _check_mu(self, mu: Array) -> None:
        shape = tuple(mu.shape)
        if len(shape) != 2:
            hint = f": a single item needs shape (1, {shape[0]})" if len(shape) == 1 else ""
            raise ValueError(f"{type(self).__name__}: mu has shape {shape}, expected (N, D){hint}")
        if shape[1] < self._min_dim:
            raise ValueError(f"{type(self).__name__}: mu has shape {shape}, expected (N, D) with D >= {self._min_dim}")

    def _parameter(self, name: str, x: Array) -> Array:
        """A parameter, checked: [N] or [N, D], as views where one number or row is given for all."""
        owner = type(self).__name__
        require_same_kind(owner, name, x, "mu", self.mu)
        if x.dtype != self.mu.dtype:  # as under autocast, of which some layers give halves and others float32
            dtype = promoted(self.mu, x)
            x = cast(x, dtype)
            object.__setattr__(self, "mu", cast(self.mu, dtype))
        shape, like = tuple(x.shape), tuple(self.mu.shape)
        if len(shape) in self._kinds and shape == like[: len(shape)]:
            # One row under a new axis is an item's, though numpy gives such an axis the stride of a repeated one.
            of_one_item = shape[0] == 1 and isinstance(x, np.ndarray) and x.strides[0] == 0 and x.flags.writeable
            return x.copy() if of_one_item else x
        per_item, per_dimension = 1 in self._kinds, 2 in self._kinds
        if shape in ((), (1,), (1, 1)):  # one number for all items and dimensions
            return repeated(x.reshape(1) if per_item else namespace(x).broadcast_to(x, (1, like[1])), like[0])
        if shape == (like[0], 1):
            return x.reshape(-1) if per_item else namespace(x).broadcast_to(x, like)
        if per_dimension and shape == (1, like[1]):
            return repeated(x, like[0])
        expected = " or ".join(str(like[:rank]) for rank in self._kinds)
        hint = ""
        if per_dimension and shape in (like[:1], like[1:]):
            hint = f": use {name}[:, None]" if shape == like[:1] else f": use {name}[None]"
        raise ValueError(f"{owner}: {name} has shape {shape}, expected {expected} like mu{hint}")

    @property
    def arrays(self) -> tuple[ArrayT, ...]:
        """The arrays in the order of the constructor: ``type(d)(*d.arrays)`` equals d."""
        first, *others = self._names  # one or two; without a generator, as calls come here often
        return (getattr(self, first), getattr(self, others[0])) if others else (getattr(self, first),)

    def __len__(self) -> int:
        """N, the number of items."""
        return int(self.mu.shape[0])

    if not TYPE_CHECKING:  # which would take every attribute for known

        def __getattr__(self, name: str) -> Any:
            """Answer the field's words, such as ``d.sample``, by where they stand."""
            raise no_attribute(f"{type(self).__name__!r} object", name)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> None:
        """Refuse to become an array: it would be one of single items, taken one by one for minutes.

        Typed as giving None, so that no type checker takes a distribution for an array either.
        """
        names = " or ".join(f".{name}" for name in self._names)
        raise NotArrayError(f"expected an array, got a distribution, {self!r}; give its {names}")

    def __getitem__(self, index: Any) -> Self:
        """The items at ``index``: an int (a batch of 1), a slice, or a 1-D array of ints or bools, of either kind.

        Raises
        ------
        IndexError, TypeError
            An int out of range, or a mask of another length than the distribution; an index of any other type.
        """
        rows = index if isinstance(index, slice) else self._rows(index)
        mu, *others = self.arrays
        taken: Array = mu[rows]
        if self.number is not None:
            return type(self)(taken, self.number)  # type: ignore[call-arg]
        common = self._is_common()
        return type(self)(taken, *[repeated(x[:1], len(taken)) if common else x[rows] for x in others])

    def _rows(self, index: Any) -> slice | Array:
        """The index of the arrays: a slice for an int, else an array of the distribution's kind."""
        owner = type(self).__name__
        if isinstance(index, int | np.integer) and not isinstance(index, bool):
            if not -len(self) <= index < len(self):
                raise IndexError(f"{owner}: index {index} is out of range for {len(self)} items")
            start = int(index) % len(self)
            return slice(start, start + 1)
        if isinstance(index, tuple):
            raise TypeError(f"{owner}: index is {index}, expected rows alone; a list of several")
        if isinstance(index, list) and not index:
            index = np.empty(0, np.intp)  # an empty list has no dtype, and numpy would call it float64
        rows = as_array(index, owner, "index", floating=False)
        is_mask, is_int = dtype_name(rows) == "bool", "int" in dtype_name(rows)
        if is_int and rows.ndim == 0:
            return self._rows(int(rows))
        if not (is_mask or is_int) or rows.ndim != 1:
            found = f"{dtype_name(rows)} of shape {tuple(rows.shape)}"
            raise TypeError(f"{owner}: index must be an int, a slice, or a 1-D array of ints or bools, got {found}")
        if is_mask and len(rows) != len(self):
            raise IndexError(f"{owner}: index is a mask of length {len(rows)}, expected {len(self)}")
        if not is_torch(self.mu):
            return as_numpy(rows)
        torch = namespace(self.mu)
        # torch would take uint8 for a mask.
        return torch.as_tensor(rows, dtype=torch.bool if is_mask else torch.int64, device=self.mu.device)

    def __repr__(self) -> str:
        shape = f"N={len(self)}, D={self.dim}"
        return f"{type(self).__name__}({shape}, {dtype_name(self.mu)}, {device_of(self.mu)})"

    def to(self, *args: Any, **kwargs: Any) -> Self:
        """The same items in another dtype or on another device.

        Takes the name of a dtype ("float32"), a dtype, or for tensors whatever ``torch.Tensor.to`` takes; ValueError
        where the dtype is not one of the four, a device is asked of numpy arrays, or torch has no such device.
        """
        if is_torch(self.mu):
            dtypes = {name: getattr(namespace(self.mu), name) for name in FLOATING}
            args = tuple(dtypes[a] if isinstance(a, str) and a in dtypes else a for a in args)
            try:
                arrays = self._converted(lambda x: x.to(*args, **kwargs))
            except (TypeError, RuntimeError) as error:
                reason = str(error).partition("\n")[0]
                raise ValueError(
                    f"{type(self).__name__}.to: not a dtype or device that torch has here: {reason}"
                ) from error
        else:
            dtype = numpy_dtype(f"{type(self).__name__}.to", *args, **kwargs)
            arrays = self._converted(lambda x: x.astype(dtype, copy=False))
        if dtype_name(arrays[0]) not in FLOATING:
            what = f"{type(self).__name__}: mu has dtype {dtype_name(arrays[0])}"
            raise ValueError(f"{what}, expected float16, bfloat16, float32 or float64")
        return type(self)(*arrays)

    def cpu(self) -> Self:
        """The same items in the memory of the host, where numpy's items lie already."""
        return self if self.home.device == "numpy" else self.to("cpu")

    def cuda(self, device: int | str | None = None) -> Self:
        """The same items, tensors, on a GPU: torch's current one unless ``device`` says another."""
        return self.to("cuda" if device is None else f"cuda:{device}" if isinstance(device, int) else device)

    def clone(self) -> Self:
        """A copy of the items; of tensors with gradients, as `torch.Tensor.clone`."""
        return self._map(lambda x: x.clone() if is_torch(x) else x.copy())

    def detach(self) -> Self:
        """The same items outside the autograd graph; the distribution itself where none of its arrays is in one."""
        if self.home.device == "numpy":
            return self
        arrays: tuple[Array, ...] = self.arrays
        attached = arrays[0].requires_grad or arrays[-1].requires_grad
        return self._map(lambda x: x.detach()) if attached else self

    def validate(self, first_row: int = 0) -> Self:
        """The distribution itself, after a scan of all its values; errors count rows from ``first_row``.

        Items without any doubt pass: a variance of 0, and kappa = inf of a VonMisesFisher. Scores and measures have
        their limits there, as variances of 0 go to 0 together: an exact copy is the best of all.

        The norms of directions may be off 1 by 1e-3 (float32, float64), 2e-3 (float16) or 1e-2 (bfloat16).

        Raises
        ------
        ValueError
            Naming the first row where a value is NaN or infinite, but for that kappa, where ``var``, ``kappa`` or
            ``scale`` is negative, or where ``mu`` should be of unit length and is not.
        """
        values = self.detach()
        for start in range(0, len(self), BLOCK):
            values[start : start + BLOCK]._validate_rows(first_row + start)
        return self

    def _validate_rows(self, start: int) -> None:
        """Scan few rows; ``start`` is the number of the first."""
        owner = type(self).__name__
        for name, x in zip(self._names, self.arrays, strict=True):
            finite = namespace(x).isfinite(x)
            if self.kind == "vmf" and name == "kappa":
                finite = finite | namespace(x).isinf(x)
            if not bool(finite.all()):
                raise ValueError(f"{owner}: {name} is not finite in row {start + (_first(~finite) or 0)}")
            if name != "mu" and (bad := _first(x < 0)) is not None:
                raise self._negative(name, start + bad)
            if self.kind == "nivmf" and name == "kappa" and (bad := _first(~(x > 0).any(-1))) is not None:
                raise ValueError(f"{owner}: kappa is 0 along all axes in row {start + bad}, which leaves no density")
        if self._unit:
            mu = self.to("float32").mu if dtype_name(self.mu) in HALVES else self.mu
            norm = namespace(mu).einsum("nd,nd->n", mu, mu) ** 0.5
            tolerance = UNIT_TOLERANCE[dtype_name(self.mu)]
            if (bad := _first(abs(norm - 1) > tolerance)) is not None:
                raise _not_unit(owner, "mu", start + bad, norm[bad], tolerance)

    def common_parameter(self) -> ArrayT | None:
        """The parameter [1] or [1, D] that was given as one for all items; None where each item has its own.

        It is told by the memory, not by the values. None also where it is to be differentiated, since a derivative with
        respect to each item's parameter could not be told from the common one's.
        """
        x = getattr(self, self._names[-1])
        if len(self._names) == 1 or not self._is_common():
            return None
        row: ArrayT = x[:1]
        return row

    def check_rows(self) -> None:
        """Refuse negative parameters, such as logarithms of variances, and directions that are not of unit length.

        Of many items 64 evenly spaced rows are looked at, once for a distribution. A row of zeros passes: a dead
        feature has no direction, and dividing it by its length leaves it so. On a GPU, in compiled functions and under
        torch.func no row is looked at, as values cannot be read there without waiting.
        """
        # In this order traced code has no guard on the flag. A call for numpy comes here often, and asks no function.
        if (self.home.device != "numpy" and not is_readable(self.mu)) or self._looked_at:
            return
        step = len(self) // LOOKED_AT + 1
        name, x = self._names[-1], as_numpy(self.arrays[-1][::step])
        if name != "mu" and np.fmin.reduce(x, None, initial=0) < 0:  # in which NaN hides no negative number
            raise self._negative(name, step * int(_first(x < 0) or 0))
        if self._unit:
            require_unit(type(self).__name__, "mu", as_numpy(widened(self.mu[::step])), step)
        object.__setattr__(self, "_looked_at", True)

    def check_finite(self, owner: str, name: str) -> None:
        """Refuse items that nothing can be ranked for: rows in which mu is NaN or infinite, or the parameter NaN.

        All rows are looked at, where `check_rows` looks at any.
        """
        if self.home.device == "numpy" or is_readable(self.mu):
            require_finite(owner, name, *map(as_numpy, self.arrays))

    def _negative(self, name: str, row: int) -> ValueError:
        hint = ": a variance is expected, not its logarithm" if name == "var" else ""
        return ValueError(f"{type(self).__name__}: {name} is negative in row {row}{hint}")

    @quiet
    def truncate(self, dim: int) -> Self:
        """The items in their first ``dim`` dimensions, as embeddings of Matryoshka training are cut.

        Points are cut, and no longer of unit length where they were. Of normals it is the marginal. Directions are cut
        and made of unit length again. With r the length that was left, kappa becomes ``kappa r^2``, the concentration
        of the cut draws (within 10 % from kappa = 20 on), and scale ``scale r``, as the length of a feature does.
        Points and normals are views.

        Parameters
        ----------
        dim
            How many dimensions to keep, from 1 (2 of von Mises-Fisher distributions) to ``d.dim``.

        Raises
        ------
        TypeError, ValueError
            dim is no integer, or out of range.

        Examples
        --------
        >>> pe.VonMisesFisher([[0.48, 0.64, 0.6]], kappa=[100.0]).truncate(2).kappa.round(1).tolist()
        [64.0]
        >>> pe.Normal([[0.0, 1.0, 2.0]], var=[[0.1, 0.2, 0.3]]).truncate(2).var.tolist()
        [[0.1, 0.2]]
        """
        dim = as_integer(f"{type(self).__name__}.truncate", "dim", dim, self._min_dim, self.dim)
        arrays: list[Any] = [x[:, :dim] if x.ndim == 2 else x for x in self.arrays]
        if not self._unit:
            return type(self)(*arrays)
        mu, uncertainty = (cast(x, self.home.compute_dtype) for x in arrays)
        length = namespace(mu).einsum("nd,nd->n", mu, mu)[:, None] ** 0.5
        left = length if self.kind == "scaled" else length**2
        found = mu / length, uncertainty * (left if uncertainty.ndim == 2 else left[:, 0])
        return type(self)(*[cast(x, self.home.dtype) for x in found])

    def _map(self, function: Callable[[Array], Array]) -> Self:
        """A distribution of the same class with the function of single numbers applied to each array."""
        return type(self)(*self._converted(function))

    def _converted(self, function: Callable[[Array], Array]) -> list[Array]:
        """The arrays with a function of single numbers applied to each; what is one row for all items stays that."""
        mu, *others = self.arrays
        common = self._is_common()
        return [function(mu), *[repeated(function(x[:1]), len(mu)) if common else function(x) for x in others]]

    def _is_common(self) -> bool:
        """Whether all items have one row of the last array, and no item's is to be differentiated by itself."""
        if not self._repeats or self.home.device == "numpy":
            return self._repeats
        x: Array = self.arrays[-1]
        return not (x.requires_grad or transformed(x))

    def __reduce__(self) -> tuple[Any, ...]:
        mu, *others = self.arrays
        one = [x[:1] for x in others if is_repeated(x)]
        return (_with_one, (type(self), mu, *one)) if one else (type(self), self.arrays)


@dataclass(frozen=True, eq=False, repr=False)
class Normal(Distribution[ArrayT]):
    """Normal distributions with one variance for each item (isotropic) or for each of its dimensions (diagonal).

    Parameters
    ----------
    mu : array [N, D]
        Means, anywhere in space; D >= 1.
    var : array [N] (isotropic) or [N, D] (diagonal)
        VARIANCES: sigma squared, neither sigma nor log sigma^2; >= 0. One number and [N, 1] are isotropic (but with D =
        1 [N, 1] is diagonal), [1, D] is diagonal. A variance shared by all items stays shared in parts, copies and
        files: scores with weights per dimension, such as PLDA's, are then one product, several times as fast.

    Raises
    ------
    TypeError
        If an argument is not an array, or numpy meets torch.
    ValueError
        If ranks, shapes, dtypes or devices do not fit.

    Examples
    --------
    >>> pe.Normal(mu=[[0.0, 1.0], [1.0, 0.0]], var=[0.1, 0.5])
    Normal(N=2, D=2, isotropic, float64, numpy)
    """

    var: ArrayT

    if TYPE_CHECKING:

        @overload
        def __init__(self: Normal[KindT], mu: KindT, var: KindT | Given) -> None: ...
        @overload
        def __init__(self: Normal[Numpy], mu: Given, var: Numpy | Given) -> None: ...
        def __init__(self, mu: Any, var: Any) -> None: ...

    _names: ClassVar[tuple[str, ...]] = ("mu", "var")
    _kinds: ClassVar[dict[int, str]] = {1: "normal_isotropic", 2: "normal_diagonal"}

    def __repr__(self) -> str:
        return super().__repr__().replace(f"D={self.dim}", f"D={self.dim}, {self.kind.removeprefix('normal_')}")


@dataclass(frozen=True, eq=False, repr=False)
class VonMisesFisher(Distribution[ArrayT]):
    """Von Mises-Fisher distributions on the unit sphere: density C_D(kappa) exp(kappa mu.z).

    Parameters
    ----------
    mu : array [N, D]
        Mean directions, rows of unit length; D >= 2. Whatever uses them looks at the length of some.
    kappa : array [N]
        Concentrations, >= 0; 0 is the uniform distribution, larger is surer.

    Raises as `Normal` does.

    Examples
    --------
    >>> pe.VonMisesFisher(mu=[[0.6, 0.8], [1.0, 0.0]], kappa=[100.0, 5.0]).validate()
    VonMisesFisher(N=2, D=2, float64, numpy)
    """

    kappa: ArrayT

    if TYPE_CHECKING:

        @overload
        def __init__(self: VonMisesFisher[KindT], mu: KindT, kappa: KindT | Given) -> None: ...
        @overload
        def __init__(self: VonMisesFisher[Numpy], mu: Given, kappa: Numpy | Given) -> None: ...
        def __init__(self, mu: Any, kappa: Any) -> None: ...

    _names: ClassVar[tuple[str, ...]] = ("mu", "kappa")
    _kinds: ClassVar[dict[int, str]] = {1: "vmf"}
    _unit = True
    _min_dim = 2


@dataclass(frozen=True, eq=False, repr=False)
class NonIsotropicVonMisesFisher(Distribution[ArrayT]):
    """Von Mises-Fisher distributions with a concentration for each dimension (Kirchhof et al. 2022).

    Parameters
    ----------
    mu : array [N, D]
        Mean directions, rows of unit length; D >= 2. Whatever uses them looks at the length of some.
    kappa : array [N, D]
        Concentrations along the axes, >= 0, and not all of them 0.

    Raises as `Normal` does.

    Examples
    --------
    >>> pe.NonIsotropicVonMisesFisher(mu=[[0.6, 0.8]], kappa=[[50.0, 2.0]])
    NonIsotropicVonMisesFisher(N=1, D=2, float64, numpy)
    """

    kappa: ArrayT

    if TYPE_CHECKING:

        @overload
        def __init__(self: NonIsotropicVonMisesFisher[KindT], mu: KindT, kappa: KindT | Given) -> None: ...
        @overload
        def __init__(self: NonIsotropicVonMisesFisher[Numpy], mu: Given, kappa: Numpy | Given) -> None: ...
        def __init__(self, mu: Any, kappa: Any) -> None: ...

    _names: ClassVar[tuple[str, ...]] = ("mu", "kappa")
    _kinds: ClassVar[dict[int, str]] = {2: "nivmf"}
    _unit = True
    _min_dim = 2


@dataclass(frozen=True, eq=False, repr=False)
class Scaled(Distribution[ArrayT]):
    """Directions with a scale that multiplies their logits (ScaleFace; the norm of a feature is one too).

    Parameters
    ----------
    mu : array [N, D]
        Directions, rows of unit length; D >= 1. Whatever uses them looks at the length of some.
    scale : array [N]
        Scales, >= 0; larger is surer.

    Raises as `Normal` does.

    Examples
    --------
    >>> pe.Scaled(mu=[[0.6, 0.8], [1.0, 0.0]], scale=[32.0, 8.0])
    Scaled(N=2, D=2, float64, numpy)
    """

    scale: ArrayT

    if TYPE_CHECKING:

        @overload
        def __init__(self: Scaled[KindT], mu: KindT, scale: KindT | Given) -> None: ...
        @overload
        def __init__(self: Scaled[Numpy], mu: Given, scale: Numpy | Given) -> None: ...
        def __init__(self, mu: Any, scale: Any) -> None: ...

    _names: ClassVar[tuple[str, ...]] = ("mu", "scale")
    _kinds: ClassVar[dict[int, str]] = {1: "scaled"}
    _unit = True


@dataclass(frozen=True, eq=False, repr=False)
class Point(Distribution[ArrayT]):
    """Plain vectors, known exactly: a variance of 0. Usable on either side of a score.

    Parameters
    ----------
    mu : array [N, D]
        Vectors of any length; D >= 1.

    Raises as `Normal` does.

    Examples
    --------
    >>> queries, gallery = pe.Point([[0.0, 1.0]]), pe.Normal([[0.0, 1.0], [1.0, 0.0]], var=[0.1, 0.1])
    >>> pe.pairwise(queries, gallery, "mls").round(3).tolist()
    [[0.465, -9.535]]
    """

    if TYPE_CHECKING:

        @overload
        def __init__(self: Point[KindT], mu: KindT) -> None: ...
        @overload
        def __init__(self: Point[Numpy], mu: Given) -> None: ...
        def __init__(self, mu: Any) -> None: ...

    _kinds: ClassVar[dict[int, str]] = {2: "point"}


def require_unit(owner: str, name: str, rows: Numpy, step: int = 1, first: int = 0) -> None:
    """Refuse directions that are not of unit length; ``rows`` are every step-th from the first. Zeros pass."""
    squares = np.matmul(rows[:, None], rows[:, :, None])[:, 0, 0]
    bad = (squares < (1 - LOOK_TOLERANCE) ** 2) & (squares > 0) | (squares > (1 + LOOK_TOLERANCE) ** 2)
    if (row := _first(bad)) is not None:
        raise _not_unit(owner, name, first + step * row, squares[row] ** 0.5, LOOK_TOLERANCE)


def _not_unit(owner: str, name: str, row: int, length: float, tolerance: float) -> ValueError:
    what = f"{name} in row {row} has length {float(length):.4g}, expected 1 within {tolerance:g}"
    return ValueError(f"{owner}: {what}: divide {name} by its length; d.truncate(dim) cuts dimensions")


def _first(bad: Array) -> int | None:
    """The first row in which anything is true, or None."""
    rows = bad.any(-1) if bad.ndim == 2 else bad
    # numpy's nonzero() is a tuple of one array, torch's a matrix of one column: [0][0] is the first row of both.
    return int(rows.nonzero()[0][0]) if bool(rows.any()) else None


D = TypeVar("D", bound=Distribution)


def concat(distributions: Sequence[D]) -> D:
    """One distribution with the items of all, in order.

    Parameters
    ----------
    distributions : sequence of distributions
        At least one; all of one class, dimension, dtype and device, and isotropic with isotropic only.

    Raises
    ------
    TypeError
        If the classes or kinds differ.
    ValueError
        If there is none, or dimensions, dtypes or devices differ.

    Examples
    --------
    >>> pe.concat([pe.Point([[0.0, 1.0]]), pe.Point([[1.0, 0.0], [0.6, 0.8]])])
    Point(N=3, D=2, float64, numpy)
    """
    if not isinstance(distributions, Sequence) or not all(isinstance(d, Distribution) for d in distributions):
        raise TypeError("concat: expected a sequence of distributions")
    if not distributions:
        raise ValueError("concat: expected at least one distribution, got none")
    first = distributions[0]
    for i, d in enumerate(distributions):
        if d.kind != first.kind:
            raise TypeError(f"concat: item {i} is {d!r}, expected the kind of item 0, {first!r}")
        require_same_kind("concat", f"item {i}", d.mu, "item 0", first.mu)
        if (d.dim, d.mu.dtype) != (first.dim, first.mu.dtype):
            raise ValueError(f"concat: item {i} is {d!r}, expected the dimension and dtype of item 0, {first!r}")
    columns = zip(*(d.arrays for d in distributions), strict=True)
    return type(first)(*map(_concatenated, columns))


def _concatenated(arrays: Sequence[Array]) -> Array:
    """The arrays one after another; what is one row in all of them stays one row."""
    filled = [x for x in arrays if len(x)]
    if filled and all(is_repeated(x) and not _is_hidden(x) for x in filled):
        first, *others = (x[:1] for x in filled)
        if all(bool((row == first).all()) for row in others):
            return repeated(first, sum(map(len, filled)))
    return namespace(arrays[0]).concatenate(list(arrays))


def _enter_in_torch() -> None:
    """Let torch's containers know distributions, where torch is there."""
    kinds = (Normal, VonMisesFisher, NonIsotropicVonMisesFisher, Scaled, Point)
    torch_containers.enter(kinds, concat, _with_one)


def _with_one(kind: Callable[..., Distribution], mu: Array, row: Array) -> Distribution:
    """A distribution whose items all have one row of a parameter, a single item too."""
    return kind(mu, repeated(row, len(mu)))


def is_readable(x: Array) -> bool:
    """Whether values can be read here: not on a GPU, which would be waited for, nor in code that is transformed."""
    return isinstance(x, np.ndarray) or (x.is_cpu and not is_traced(x) and not transformed(x))


def _is_hidden(x: Array) -> bool:
    """Whether values cannot be read here, or are to be differentiated."""
    return not is_readable(x) or (is_torch(x) and x.requires_grad)


_enter_in_torch()
