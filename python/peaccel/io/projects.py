"""Distributions from the embeddings of other projects, in the form in which these write them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from peaccel._utils.arrays import Numpy, on_host, quiet
from peaccel.distributions import Distribution, Normal, VonMisesFisher
from peaccel.io._array_files import read, read_array

__all__ = ["from_norms", "from_pcmepp", "from_pfe", "from_prolip", "from_url"]

D = TypeVar("D", bound=Distribution)
Floats: TypeAlias = NDArray[Any]


def from_pfe(mu: Any, sigma_sq: Any = None) -> Normal[Numpy]:
    """Embeddings of faces by PFE: means, which become unit vectors, and VARIANCES sigma^2, as they are.

    Parameters
    ----------
    mu
        [N, D], as ``extract_feature`` returns it. Alone: [N, 2 D], means beside variances, as PFE's evaluation
        concatenates them; or both by the names ``mu`` and ``sigma_sq`` in a dict. An array, a tensor, which is copied
        to numpy, or the path of an .npy file; the path of an .npz or .safetensors file in place of a dict.
    sigma_sq
        [N, D] or [N]: sigma^2. "log_sigma" of the face-evaluation project is log sigma^2: give its exponential.

    Returns
    -------
    Normal
        As numpy arrays: float64 where an input is, else float32, since small variances have no float16.

    Raises
    ------
    TypeError
        What are no arrays.
    ValueError
        Wrong shapes or dtypes, NaN, a mean of length 0, a negative variance: then it is its logarithm.
    FileNotFoundError, ImportError
        As `read_distribution`.

    References
    ----------
    Shi & Jain, "Probabilistic Face Embeddings"; github.com/seasonSH/Probabilistic-Face-Embeddings.

    Examples
    --------
    >>> d = pe.io.from_pfe(mu=np.array([[3.0, 4.0]]), sigma_sq=np.array([[0.1, 0.2]]))
    >>> d.mu.tolist(), d.var.tolist()
    ([[0.6, 0.8]], [[0.1, 0.2]])
    """
    owner = "from_pfe"
    if sigma_sq is None and not _has_names(mu):
        both = _floats(owner, "mu", mu)
        if both.ndim != 2 or both.shape[1] % 2:
            raise ValueError(f"{owner}: mu alone has shape {both.shape}, expected means beside variances (N, 2 D)")
        mu, sigma_sq = np.split(both, 2, axis=1)
    mean, var = _two(owner, ("mu", "sigma_sq"), mu, sigma_sq)
    return _checked(owner, Normal(_unit(owner, "mu", mean), var))


def from_pcmepp(mean: Any, std: Any = None) -> Normal[Numpy]:
    """Embeddings of images or captions by PCME++: means, which become unit vectors, and ``std``, LOG sigma^2.

    Every score of the project takes exp(std) for a variance, whatever the name says.

    Parameters
    ----------
    mean
        [N, D], or a dict with ``mean`` and ``std``, as its encoders return it; arrays, tensors, paths as of `from_pfe`.
        Of its Hugging Face model these are ``image_features``, ``image_stds`` and ``text_features``, ``text_stds``.
    std
        [N, D] or [N]: log sigma^2.

    Returns
    -------
    Normal
        As of `from_pfe`. The two modalities differ in their means: ``pe.calibrate_variance(queries, gallery, pairs,
        labels)``.

    Raises
    ------
    TypeError, FileNotFoundError, ImportError
        As `from_pfe`.
    ValueError
        Wrong shapes or dtypes, NaN, a mean of length 0; ``std`` nowhere below 0: then it is sigma or sigma^2, as no
        embedding on the unit sphere has variances of 1 and more in all dimensions.

    References
    ----------
    Chun, "Improved Probabilistic Image-Text Representations"; github.com/naver-ai/pcmepp.

    Examples
    --------
    >>> d = pe.io.from_pcmepp({"mean": np.array([[3.0, 4.0]]), "std": np.array([[-2.0, -1.0]])})
    >>> d.mu.tolist(), d.var.round(3).tolist()
    ([[0.6, 0.8]], [[0.135, 0.368]])
    """
    return _of_log_var("from_pcmepp", mean, std)


def from_prolip(mean: Any, std: Any = None) -> Normal[Numpy]:
    """Embeddings of images or texts by ProLIP: means, which become unit vectors, and ``std``, LOG sigma^2.

    Parameters
    ----------
    mean
        [N, D], or a dict with ``mean`` and ``std``: ``outputs["image_features"]`` and ``outputs["text_features"]`` of
        the model. Arrays, tensors, paths as of `from_pfe`.
    std
        [N, D] or [N]: log sigma^2.

    Returns, raises as `from_pcmepp` does.

    References
    ----------
    Chun et al., "Probabilistic Language-Image Pre-Training"; github.com/naver-ai/prolip.

    Examples
    --------
    >>> d = pe.io.from_prolip(mean=np.array([[3.0, 4.0]]), std=np.array([[-2.0, -1.0]]))
    >>> d.mu.tolist(), d.var.round(3).tolist()
    ([[0.6, 0.8]], [[0.135, 0.368]])
    """
    return _of_log_var("from_prolip", mean, std)


def from_url(features: Any, unc: Any = None) -> VonMisesFisher[Numpy]:
    """Embeddings of images by the URL benchmark's models: features, which become directions, and ``unc`` = 1 / kappa.

    ``unc`` is 1 / kappa for its losses MCInfoNCE, ELK, nivMF and HIB, and 1 / |features| for "embed-norm". Of other
    models (class entropy, predicted loss, as of "Pretrained Visual Uncertainties") it is in order, but no 1 / kappa:
    `pe.calibrate_variance` finds the factor that fits best.

    Parameters
    ----------
    features
        [N, D], D >= 2, of any length but 0; or a dict with ``features`` and ``unc``. Arrays, tensors, paths as of
        `from_pfe`. Its .pt files are for ``torch.load``.
    unc
        [N]: uncertainties above 0.

    Returns
    -------
    VonMisesFisher
        As numpy arrays: float64 where an input is, else float32.

    Raises
    ------
    TypeError, FileNotFoundError, ImportError
        As `from_pfe`.
    ValueError
        Wrong shapes or dtypes, NaN, features of length 0, an uncertainty that is not above 0.

    References
    ----------
    Kirchhof et al., "URL: A Representation Learning Benchmark for Transferable Uncertainty Estimates";
    github.com/mkirchhof/url.

    Examples
    --------
    >>> d = pe.io.from_url(features=np.array([[3.0, 4.0]]), unc=np.array([0.02]))
    >>> d.mu.tolist(), d.kappa.tolist()
    ([[0.6, 0.8]], [50.0])
    """
    owner = "from_url"
    mu, u = _two(owner, ("features", "unc"), features, unc)
    if u.size != len(mu):
        raise ValueError(f"{owner}: unc has shape {u.shape}, expected ({len(mu)},)")
    u = u.reshape(-1)
    if (bad := _first(u <= 0)) is not None:
        raise ValueError(f"{owner}: unc is {u[bad]:g} in row {bad}, expected 1 / kappa, above 0")
    with np.errstate(over="ignore"):  # an infinite kappa is refused
        return _checked(owner, VonMisesFisher(_unit(owner, "features", mu), 1 / u))


def from_norms(features: Any) -> VonMisesFisher[Numpy]:
    """Features whose length says how sure they are, of any encoder: directions, with the length as kappa.

    The length is a concentration in order only, unless the loss made it one (vMF losses): `pe.calibrate_variance` fits
    its factor.

    Parameters
    ----------
    features
        [N, D], D >= 2, NOT normalised: an array, a tensor, or the path of an .npy file.

    Returns
    -------
    VonMisesFisher
        As numpy arrays: float64 where features are, else float32.

    Raises
    ------
    TypeError, FileNotFoundError, ImportError
        As `from_pfe`.
    ValueError
        Wrong shape or dtype, NaN, a feature of length 0; lengths that are all 1, since then they were lost.

    Examples
    --------
    >>> d = pe.io.from_norms(np.array([[3.0, 4.0], [0.0, 20.0]]))
    >>> d.mu.tolist(), d.kappa.tolist()
    ([[0.6, 0.8], [0.0, 1.0]], [5.0, 20.0])
    """
    owner = "from_norms"
    x = _matrix(owner, "features", _floats(owner, "features", features))
    kappa = _lengths(x)
    if len(x) and (abs(kappa - 1) < 1e-2).all():
        raise ValueError(f"{owner}: features all have length 1, expected them as they were before normalisation")
    return _checked(owner, VonMisesFisher(_unit(owner, "features", x), kappa))


# -- what is given -----------------------------------------------------------------------------------------------------


def _has_names(source: Any) -> bool:
    """Whether this is a dict, or a file of several arrays."""
    return isinstance(source, Mapping) or (isinstance(source, (str, Path)) and Path(source).suffix != ".npy")


def _two(owner: str, names: tuple[str, str], first: Any, second: Any) -> tuple[Floats, Floats]:
    """Means [N, D] and their uncertainties, [N, D] or [N], from two arguments, or from names in one."""
    if second is None:
        if not _has_names(first):
            found = type(first).__name__
            raise TypeError(f"{owner}: {names[1]} must be given, or both in a dict or an .npz file, got {found} alone")
        source = first if isinstance(first, Mapping) else read(first, names)
        for name in names:
            if name not in source:
                found = ", ".join(map(str, source)) or "none"
                raise ValueError(f"{owner}: key {name} is missing, found {found}; expected {' and '.join(names)}")
        first, second = (source[name] for name in names)
    mean, beside = (_floats(owner, name, x) for name, x in zip(names, (first, second), strict=True))
    _matrix(owner, names[0], mean)
    if beside.shape == (len(mean), 1):
        beside = beside[:, 0]
    if beside.shape not in (mean.shape, mean.shape[:1]):
        like = f"{mean.shape} or {mean.shape[:1]} like {names[0]}"
        raise ValueError(f"{owner}: {names[1]} has shape {beside.shape}, expected {like}")
    dtype = np.result_type(mean, beside)
    return mean.astype(dtype, copy=False), beside.astype(dtype, copy=False)


def _floats(owner: str, name: str, x: Any) -> Floats:
    """An array, a tensor or a file of one array, of finite numbers, as float64 or float32."""
    if isinstance(x, (str, Path)):
        x = read_array(x, name)
    try:
        found = on_host(x, owner, name)
    except ValueError:  # rows of different lengths
        raise TypeError(f"{owner}: {name} must be an array, got {type(x).__name__}") from None
    if found.dtype.kind not in "fiu" and found.dtype.name != "bfloat16":
        raise TypeError(f"{owner}: {name} must be an array of floats, got {type(x).__name__} of {found.dtype}")
    found = np.atleast_1d(found.astype(np.float64 if found.dtype.itemsize >= 8 else np.float32, copy=False))
    if (bad := _first(~np.isfinite(found).all(tuple(range(1, found.ndim))))) is not None:
        raise ValueError(f"{owner}: {name} is not finite in row {bad}")
    return found


def _matrix(owner: str, name: str, x: Floats) -> Floats:
    if x.ndim != 2:
        raise ValueError(f"{owner}: {name} has shape {x.shape}, expected (N, D)")
    return x


# -- what is made of it ------------------------------------------------------------------------------------------------


def _of_log_var(owner: str, mean: Any, std: Any) -> Normal[Numpy]:
    mu, log_var = _two(owner, ("mean", "std"), mean, std)
    if log_var.size and log_var.min() >= 0:
        found = f"numbers from {log_var.min():.3g} on"
        raise ValueError(f"{owner}: std holds {found}, expected log sigma^2, below 0; sigma^2 belongs in pe.Normal")
    with np.errstate(over="ignore"):  # an infinite variance is refused
        return _checked(owner, Normal(_unit(owner, "mean", mu), np.exp(log_var)))


@quiet
def _scaled(x: Floats) -> tuple[Floats, Floats, Floats]:
    """Rows whose largest number is 1 .. 2, their lengths [N], and the powers of two [N] by which they were divided."""
    power = np.ldexp(x.dtype.type(1), np.frexp(np.abs(x).max(1, initial=0))[1] - 1)
    x = x / power[:, None]
    return x, np.sqrt(np.einsum("nd,nd->n", x, x, dtype=np.float64)).astype(x.dtype), power


@quiet
def _lengths(x: Floats) -> Floats:
    _, length, power = _scaled(x)
    lengths: Floats = length * power
    return lengths


def _unit(owner: str, name: str, x: Floats) -> Floats:
    x, length, _ = _scaled(x)
    if (bad := _first(length == 0)) is not None:
        raise ValueError(f"{owner}: {name} has length 0 in row {bad}, expected a direction")
    directions: Floats = x / length[:, None]
    return directions


def _checked(owner: str, d: D) -> D:
    try:
        return d.validate()
    except ValueError as error:
        raise ValueError(f"{owner}: {error}") from None


def _first(wrong: Floats) -> int | None:
    """The first row in which a condition is true."""
    return int(np.argmax(wrong)) if wrong.any() else None
