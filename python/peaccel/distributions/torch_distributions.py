"""The distributions on the unit sphere as `torch.distributions.Distribution`, for loops written against that interface.

Draws, densities and divergences are those of `peaccel.sample`, `log_prob`, `entropy` and `kl`, their accuracy and their
gradients too; here are only shapes and dtypes. Dtypes promote as torch's do, and halves become float32, also under
`torch.autocast`. Draws obey ``torch.manual_seed``.
"""

from __future__ import annotations

import warnings
from typing import Any, ClassVar, Self, TypeAlias

import torch
from torch import Size, Tensor
from torch.distributions import Distribution, Transform, constraints, register_kl, transform_to
from torch.linalg import vector_norm
from torch.nn.functional import normalize

from peaccel import distributions, special
from peaccel._utils.arrays import FLOATING, HALVES, dtype_name
from peaccel._utils.seeds import as_integer
from peaccel.distributions import entropy as entropies
from peaccel.distributions import log_prob as densities
from peaccel.distributions._numerics import ratio_dx
from peaccel.distributions.classes import UNIT_TOLERANCE
from peaccel.distributions.kl import kl
from peaccel.distributions.sample import sample

__all__ = ["HypersphericalUniform", "NonIsotropicVonMisesFisher", "VonMisesFisher", "unit_sphere"]

Constraints: TypeAlias = dict[str, constraints.Constraint]


class _UnitSphere(constraints.Constraint):
    event_dim = 1

    def check(self, value: Tensor) -> Tensor:
        return (vector_norm(value, dim=-1) - 1).abs() <= UNIT_TOLERANCE[dtype_name(value)]


class _ToUnitSphere(Transform):
    """The transform x / |x|, whose inverse is the identity on the sphere."""

    domain = constraints.real_vector
    codomain = _UnitSphere()

    def _call(self, x: Tensor) -> Tensor:
        return x / vector_norm(x, dim=-1, keepdim=True)

    def _inverse(self, y: Tensor) -> Tensor:
        return y


unit_sphere = _UnitSphere()
"""The constraint of vectors of unit length, within 1e-3; ``transform_to(unit_sphere)`` divides by the length."""

transform_to.register(_UnitSphere, lambda constraint: _ToUnitSphere())


class _OnSphere(Distribution):
    """A direction and a concentration, brought to one batch shape."""

    has_rsample = True
    support = unit_sphere

    _items: ClassVar[Any]  # the class of peaccel.distributions that holds a batch of them for the measures
    _event_dim: ClassVar[int]  # dimensions of the concentration: 0 for one number, 1 for one in each dimension

    def __init__(self, loc: Tensor, concentration: Tensor | float, validate_args: bool | None = None) -> None:
        owner = type(self).__name__
        if not isinstance(loc, Tensor):
            raise TypeError(f"{owner}: loc must be a torch tensor, got {type(loc).__name__}")
        if not isinstance(concentration, Tensor):
            concentration = loc.new_tensor(concentration)
        for name, x in (("loc", loc), ("concentration", concentration)):
            if dtype_name(x) not in FLOATING:
                raise ValueError(f"{owner}: {name} has dtype {dtype_name(x)}, expected one of {', '.join(FLOATING)}")
        if loc.ndim < 1 or loc.shape[-1] < 2:
            raise ValueError(f"{owner}: loc has shape {tuple(loc.shape)}, expected (..., D) with D >= 2")
        columns = concentration.shape if self._event_dim else (*concentration.shape, 1)
        shapes = f"concentration has shape {tuple(concentration.shape)}, loc {tuple(loc.shape)}"
        try:
            shape = torch.broadcast_shapes(loc.shape, columns)
        except RuntimeError:
            shape = None
        if shape is None or shape[-1] != loc.shape[-1]:
            raise ValueError(f"{owner}: {shapes}: they do not broadcast")
        of_each = not self._event_dim and concentration.shape == (*loc.shape[:-1], 1)
        if of_each and loc.shape[:-1].numel() > 1 and not torch.compiler.is_compiling():
            note = f"they broadcast to batch shape {tuple(shape[:-1])}; for one concentration each, squeeze its column"
            warnings.warn(f"{owner}: {shapes}: {note}", stacklevel=2)
        self.loc = loc.expand(shape)
        self.concentration = concentration.expand(shape if self._event_dim else shape[:-1])
        super().__init__(shape[:-1], shape[-1:], validate_args=validate_args)
        dtype = _common_dtype(loc, concentration)
        self.loc, self.concentration = _directions(self.loc, dtype), self.concentration.to(dtype)

    def expand(self, batch_shape: Any, _instance: Any = None) -> Self:
        new = self._get_checked_instance(_OnSphere, _instance)
        batch_shape = Size(batch_shape)
        new.loc = self.loc.expand(batch_shape + self.event_shape)
        new.concentration = self.concentration.expand(batch_shape + self.event_shape[: self._event_dim])
        super(_OnSphere, new).__init__(batch_shape, self.event_shape, validate_args=False)
        new._validate_args = self._validate_args
        return new

    def log_prob(self, value: Tensor) -> Tensor:
        """Log density at unit vectors, with all constants; value [..., D] broadcasts with the batch shape.

        ValueError for a negative concentration, also where it was not validated.
        """
        if self._validate_args:
            self._validate_sample(value)
        shape = torch.broadcast_shapes(value.shape, self.loc.shape)
        lead = shape[: len(shape) - self.loc.ndim]
        expanded = self if shape[len(lead) :] == self.loc.shape else self.expand(shape[len(lead) : -1])
        dtype = _common_dtype(value, self.loc)
        items = expanded._rows().to(dtype)
        points = _directions(value, dtype).expand(shape).reshape(lead.numel(), len(items), items.dim)
        return densities.log_prob(items, points).reshape(shape[:-1])

    def _rows(self) -> distributions.Distribution:
        """The batch flattened to one dimension."""
        dim = self.event_shape[-1]
        concentration = self.concentration.reshape((-1, dim)[: 1 + self._event_dim])
        return self._items(self.loc.reshape(-1, dim), concentration)


def _common_dtype(a: Tensor, b: Tensor) -> torch.dtype:
    """The dtype that torch promotes both to; float32 for a half."""
    return torch.promote_types(torch.promote_types(a.dtype, b.dtype), torch.float32)


def _directions(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Directions in another dtype; the rounding of halves is evened out."""
    return normalize(x.to(dtype), dim=-1) if dtype_name(x) in HALVES else x.to(dtype)


class VonMisesFisher(_OnSphere):
    """Von Mises-Fisher distributions: density C_D(concentration) exp(concentration loc.z) on the unit sphere.

    Parameters
    ----------
    loc
        Mean directions, unit vectors [..., D] with D >= 2, of any floating dtype. Gradients in loc are those of any
        function on the sphere: right once loc is made by normalising.
    concentration
        [...], >= 0; 0 is the uniform distribution. Broadcasts with the leading dimensions of loc, as torch broadcasts:
        of loc [B, D] and a column [B, 1], such as a head or s-vae-pytorch makes, the batch shape is [B, B]. Squeeze it.
    validate_args
        Whether to look at the values of parameters and arguments, as in every torch distribution.

    Warns
    -----
    UserWarning
        The concentration is such a column, B > 1. Where all pairs are meant, loc [1, B, D] says so.

    Raises
    ------
    TypeError, ValueError
        loc is no tensor; dtypes, shapes or, where validated, values do not fit.

    References
    ----------
    Davidson et al., "Hyperspherical Variational Auto-Encoders", UAI 2018, whose published sampler draws from another
    distribution where 11 <= concentration << D. Mardia & Jupp, "Directional Statistics", sec. 9.6 and 10.3.
    """

    arg_constraints: ClassVar[Constraints] = {
        "loc": unit_sphere,
        "concentration": constraints.nonnegative,
    }
    _items = distributions.VonMisesFisher
    _event_dim = 0

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        """Draws, by `peaccel.sample`: exact at any concentration, their gradients unbiased in loc and concentration."""
        return _draw(self.loc, self.concentration, sample_shape)

    @property
    def mean(self) -> Tensor:
        """A_D(concentration) loc, inside the sphere."""
        return special.iv_ratio(self.loc.shape[-1] / 2, self.concentration)[..., None] * self.loc

    @property
    def mode(self) -> Tensor:
        """loc."""
        return self.loc

    @property
    def variance(self) -> Tensor:
        """Of each ambient coordinate: the diagonal of ``(A/k) (I - loc loc') + A'(k) loc loc'``.

        The same as ``(A/k) I + (1 - A^2 - D A/k) loc loc'``, without its cancellation. Differentiable once in the
        concentration.
        """
        dim, k = self.loc.shape[-1], self.concentration.double()
        positive = k.where(k > 0, 1)
        across = (special.iv_ratio(dim / 2, positive) / positive).where(k > 0, 1 / dim)
        along = ratio_dx(dim, k)
        across, along = (x.to(self.loc.dtype)[..., None] for x in (across, along))
        square = self.loc * self.loc
        return across * (1 - square).clamp(min=0) + along * square

    def entropy(self) -> Tensor:
        """Differential entropy on the sphere in nats."""
        return entropies.entropy(self._rows()).reshape(self.batch_shape)


class HypersphericalUniform(VonMisesFisher):
    """The uniform distribution on the unit sphere: von Mises-Fisher of concentration 0, its KL divergences too.

    Parameters
    ----------
    dim
        D >= 2, the number of coordinates (s-vae-pytorch's is one less).
    dtype, device
        The dtype and device of its draws, by default torch's. A divergence from it has the other's dtype, if wider.
    validate_args
        As in `VonMisesFisher`.
    """

    arg_constraints: ClassVar[Constraints] = {}

    def __init__(
        self,
        dim: int,
        *,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
        validate_args: bool | None = None,
    ) -> None:
        dim = as_integer("HypersphericalUniform", "dim", dim, 2, 2**31 - 1)
        super().__init__(torch.eye(1, dim, dtype=dtype, device=device)[0], 0.0, validate_args)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(dim: {self.loc.shape[-1]}, batch_shape: {self.batch_shape})"

    def expand(self, batch_shape: Any, _instance: Any = None) -> Self:
        return super().expand(batch_shape, self._get_checked_instance(HypersphericalUniform, _instance))

    @property
    def mode(self) -> Tensor:
        """NaN, as for torch's ``Uniform``: none."""
        return torch.full_like(self.loc, torch.nan)


class NonIsotropicVonMisesFisher(_OnSphere):
    """Von Mises-Fisher distributions with a concentration for each dimension (Kirchhof et al. 2022), normalised.

    With K = diag(concentration) and x von Mises-Fisher around K loc / |K loc| with concentration n = |K loc|, it is the
    distribution of K^-1 x / |K^-1 x|, whose density is ``C_D(n) exp(n cos(K z, K loc)) det K / |K z|^D``. Its mean,
    mode, variance and entropy have no closed form.

    Parameters
    ----------
    loc
        Directions, unit vectors [..., D] with D >= 2, of any floating dtype.
    concentration
        [..., D], > 0, along the axes.
    validate_args
        As in `VonMisesFisher`; so are the errors raised.

    References
    ----------
    Kirchhof et al., "A Non-isotropic Probabilistic Take on Proxy-based Deep Metric Learning", ECCV 2022, eq. 4, with
    ``|K z|^D`` where the paper has an approximation that is not normalised.
    """

    arg_constraints: ClassVar[Constraints] = {
        "loc": unit_sphere,
        "concentration": constraints.independent(constraints.positive, 1),
    }
    _items = distributions.NonIsotropicVonMisesFisher
    _event_dim = 1

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        """Draws, exact, with gradients as those of `VonMisesFisher`."""
        image = self.concentration * self.loc
        length = vector_norm(image, dim=-1, keepdim=True)
        drawn = _draw(image / length, length[..., 0], sample_shape) / self.concentration
        return drawn / vector_norm(drawn, dim=-1, keepdim=True)


def _draw(loc: Tensor, concentration: Tensor, sample_shape: Any) -> Tensor:
    """Draws of von Mises-Fisher distributions."""
    sample_shape = Size(sample_shape)
    items = distributions.VonMisesFisher(loc.reshape(-1, loc.shape[-1]), concentration.reshape(-1))
    return sample(items, sample_shape.numel()).reshape(sample_shape + loc.shape)


@register_kl(VonMisesFisher, VonMisesFisher)
def _kl_vmf_vmf(p: VonMisesFisher, q: VonMisesFisher) -> Tensor:
    if p.event_shape != q.event_shape:
        raise ValueError(f"kl_divergence: q is of dimension {q.event_shape[0]}, expected {p.event_shape[0]} like p")
    batch_shape = torch.broadcast_shapes(p.batch_shape, q.batch_shape)
    dtype = _common_dtype(p.loc, q.loc)
    rows = [d.expand(batch_shape)._rows().to(dtype) for d in (p, q)]
    return kl(*rows).reshape(batch_shape)
