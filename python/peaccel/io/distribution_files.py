"""Distributions in files."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from peaccel._utils.arrays import Numpy, bfloat16, dtype_name, on_host, repeated
from peaccel._utils.atomic_files import PathLike
from peaccel._utils.ids import checked_ids
from peaccel._utils.table_paths import TABLES, file_of, is_table
from peaccel.distributions import Distribution
from peaccel.io._array_files import SEVERAL, existing, load, names_in, write
from peaccel.io._arrow_sources import opened_file
from peaccel.io._item_columns import ReadItems, checked_items, chosen_in
from peaccel.io.arrow_tables import items_of_table
from peaccel.io.states import in_float32, to_state

__all__ = ["COMMON", "items_in_file", "read_distribution", "write_distribution"]

COMMON = "common"  # a key beside a single item: its parameter was one for all
FILES = (*SEVERAL, ".npy", *TABLES)


def read_distribution(path: PathLike, *, skip_bad: bool = False) -> Distribution[Numpy]:
    """Read and validate a distribution, as numpy arrays.

    Parameters
    ----------
    path : path
        An .npz or .safetensors file with the means ``mu`` [N, D], or the only one of ``embeddings``, ``embedding``,
        ``vectors``, ``vector``, ``features`` and ``x``, and at most one of ``var`` [N] or [N, D] (VARIANCE, not sigma
        nor its logarithm), ``kappa`` [N] or [N, D] and ``scale`` [N], or [1] or [1, D] for one of all items; or an .npy
        file with a plain [N, D] array. All float16, float32 or float64; .safetensors may hold bfloat16 as well. Other
        arrays are not read. Or a table, .parquet, .arrow, .feather, .lance, .csv or .jsonl, with columns of these
        names, as `from_arrow` takes them. Other names stand behind the path: "faces.parquet:mu=vector,var=sigma_sq".
    skip_bad
        Whether rows that hold NaN or null are left out, which a warning lists, rather than refused.

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
    return items_in_file(path, skip_bad).distribution


def items_in_file(path: PathLike, skip_bad: bool = False) -> ReadItems:
    """The validated items of a file, and their ids where the path names a column of these: "f.npz:mu=x,id=names"."""
    file, owner = file_of(path), f"{path}"
    if is_table(file):
        source = opened_file(file)
        chosen = chosen_in(path, source.names)
        table = source.table(list(dict.fromkeys(chosen.values())))
        items = items_of_table(owner, table, chosen, skip_bad=skip_bad)
    else:
        names = names_in(existing(file, FILES))
        chosen = chosen_in(path, names)
        arrays = load(file, [*chosen.values(), *{COMMON} & {*names}])
        ids, state = None, {key: arrays[name] for key, name in chosen.items()}
        if "id" in state:
            ids = state.pop("id")
            if len(ids) != len(state["mu"]):
                raise ValueError(f"{owner}: {chosen['id']} has {len(ids)} rows, expected {len(state['mu'])} like means")
        if COMMON in arrays and len(state["mu"]) == 1:
            state = {key: x if key == "mu" else repeated(x, 1) for key, x in state.items()}
        items = checked_items(owner, state, ids, skip_bad=skip_bad)
    return items if items.ids is None else items._replace(ids=checked_ids(owner, items.ids))


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
        if len(d) == 1:  # whose shape would not tell
            state[COMMON] = np.array(True)
    arrays = {key: on_host(x) for key, x in state.items()}
    if brain:
        arrays = {key: x.astype(bfloat16()) if key != COMMON else x for key, x in arrays.items()}
    write(path, (*SEVERAL, ".npy") if len(arrays) == 1 else SEVERAL, arrays)
