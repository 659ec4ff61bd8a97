"""Distributions in files."""

from __future__ import annotations

from pathlib import Path

from peaccel._utils.arrays import Numpy, bfloat16, dtype_name, on_host
from peaccel._utils.atomic_files import PathLike
from peaccel._utils.table_paths import is_table
from peaccel.distributions import Distribution
from peaccel.io._array_files import SEVERAL, read, write
from peaccel.io.arrow_tables import distribution_in_file
from peaccel.io.states import distribution_of, in_float32, to_state

__all__ = ["read_distribution", "write_distribution"]


def read_distribution(path: PathLike) -> Distribution[Numpy]:
    """Read and validate a distribution, as numpy arrays.

    Parameters
    ----------
    path : path
        An .npz or .safetensors file with the key ``mu`` [N, D] and at most one of ``var`` [N] or [N, D] (VARIANCE, not
        sigma nor its logarithm), ``kappa`` [N] or [N, D] and ``scale`` [N], or [1] or [1, D] for one of all items; or
        an .npy file with a plain [N, D] array. All float16, float32 or float64; .safetensors may hold bfloat16 as well.
        Or a table, .parquet, .arrow, .feather or .lance, with columns of these names, as `from_arrow` takes them; of
        other names where the path says so: "faces.parquet:mu=vector,var=sigma_sq".

    Returns
    -------
    distribution
        ``Normal`` where there is ``var``; ``VonMisesFisher`` where ``kappa`` is [N], ``NonIsotropicVonMisesFisher`` if
        it is [N, D]; ``Scaled`` where there is ``scale``; else ``Point``.

    Raises
    ------
    FileNotFoundError
        If there is no such file.
    ValueError
        If the file is not what its suffix says, or its keys, shapes, dtypes or values are wrong.
    ImportError
        If the file is .safetensors and safetensors is not installed, or holds bfloat16 and ml_dtypes is not; if it is a
        table and pyarrow is not installed, or pylance for .lance.

    Examples
    --------
    Arrays that numpy has written:

    >>> np.savez("faces.npz", mu=[[0.0, 1.0], [1.0, 0.0]], var=[0.1, 0.5])
    >>> pe.io.read_distribution("faces.npz")
    Normal(N=2, D=2, isotropic, float64, numpy)
    """
    if is_table(path):
        return distribution_in_file(path)
    arrays = read(path, ("mu",), one_of=("var", "kappa", "scale"))
    try:
        return distribution_of(**arrays).validate()
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def write_distribution(path: PathLike, d: Distribution) -> None:
    """Write a distribution so that ``read_distribution`` gives it back, as numpy arrays.

    A parameter that is one for all items is written once.

    Parameters
    ----------
    path : path
        .npz or .safetensors; .npy for a ``Point`` only. An existing file is replaced once the new one is whole.
    d : distribution
        Numpy or torch, on any device. .npz and .npy hold bfloat16 as float32, directions of unit length.

    Raises
    ------
    TypeError
        If d is not a distribution.
    ValueError, FileNotFoundError, PermissionError
        As ``check_output``.
    ImportError
        As ``read_distribution``.
    OSError
        If writing fails, as on a full disk.

    Examples
    --------
    >>> pe.io.write_distribution("faces.npz", pe.Normal([[0.0, 1.0], [1.0, 0.0]], var=[0.1, 0.5]))
    >>> pe.io.read_distribution("faces.npz").var.tolist()
    [0.1, 0.5]
    """
    if not isinstance(d, Distribution):
        raise TypeError(f"write_distribution: d must be a distribution, got {type(d).__name__}")
    # Of all files safetensors alone hold bfloat16; tensors of it are converted all the same, since numpy takes none.
    brain = dtype_name(d.mu) == "bfloat16" and Path(path).suffix == ".safetensors"
    stored = d.to("float32") if brain else in_float32(d)
    state, one = to_state(stored), stored.detach().common_parameter()
    if one is not None:
        state[list(state)[-1]] = one
    arrays = {key: on_host(x) for key, x in state.items()}
    if brain:
        arrays = {key: x.astype(bfloat16()) for key, x in arrays.items()}
    write(path, (*SEVERAL, ".npy") if len(arrays) == 1 else SEVERAL, arrays)
