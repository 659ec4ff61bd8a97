"""Distributions in torch's containers: trees, batches of a data loader, files that are read without running code."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any

__all__ = ["enter"]

_entered: list[Any] = []  # torch, once distributions are entered in it


def enter(classes: Sequence[type], concat: Callable[..., Any], rebuild: Callable[..., Any]) -> None:
    """Enter classes of distributions in torch, if it is imported, once; ``rebuild`` is what pickles call beside them.

    Trees (`torch.utils.pytree`, `torch.func.vmap`) then see their arrays, `default_collate` joins them, and
    ``torch.load(weights_only=True)`` reads them.
    """
    torch = sys.modules.get("torch")
    if torch is None or _entered or not hasattr(torch, "compiler") or torch.compiler.is_compiling():
        return
    from torch.serialization import add_safe_globals
    from torch.utils._pytree import register_pytree_node
    from torch.utils.data._utils.collate import default_collate_fn_map

    def joined(batch: Sequence[Any], *, collate_fn_map: Any = None) -> Any:
        """The items of all, as tensors."""
        return concat([type(d)(*map(torch.as_tensor, d.arrays)) for d in batch])

    def leaves(d: Any) -> tuple[list[Any], type]:
        return list(d.arrays), type(d)

    for kind in classes:
        register_pytree_node(kind, leaves, _from_leaves, serialized_type_name=f"peaccel.{kind.__name__}")
        default_collate_fn_map[kind] = joined
    add_safe_globals([*classes, rebuild])
    _entered.append(torch)


def _from_leaves(leaves: Iterable[Any], kind: Any) -> Any:
    """The distribution of these arrays; of anything else, as while a tree is only walked, what has its attributes."""
    leaves = list(leaves)
    if all(hasattr(x, "dtype") for x in leaves):
        return kind(*leaves)
    d = object.__new__(kind)
    for name, x in zip(kind._names, leaves, strict=True):
        object.__setattr__(d, name, x)
    return d
