"""Modes of torch in which an operator fails that a GPU would wait for, or that copies between host and device."""

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

WAIT = {
    "aten._local_scalar_dense.default",
    "aten.equal.default",
    "aten.is_nonzero.default",
    "aten.masked_select.default",
    "aten.nonzero.default",
    "aten.repeat_interleave.Tensor",
    "aten.bincount.default",
    "aten._unique2.default",
    "aten.unique_consecutive.default",
}
"""Operators whose result, or its shape, the host needs."""


class NothingWaits(TorchDispatchMode):
    """No operator waits for values, or copies between devices."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        found = func(*args, **(kwargs or {}))
        assert str(func) not in WAIT, func
        if "index" in str(func):
            assert not any(x.dtype == torch.bool for x in tree_leaves(args[1]) if isinstance(x, torch.Tensor)), func
        devices = {x.device.type for x in tree_leaves((args, kwargs, found)) if isinstance(x, torch.Tensor)}
        assert len(devices) <= 1, f"{func} of {devices}"
        return found


class NothingIsSent(TorchFunctionMode):
    """No tensor on a GPU is made of Python's numbers, which are copied from the host; none comes or goes there."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        found = func(*args, **(kwargs or {}))
        if func in (torch.tensor, torch.as_tensor, torch.Tensor.new_tensor) and found.is_cuda:
            source = args[func is torch.Tensor.new_tensor]
            assert isinstance(source, torch.Tensor) and source.is_cuda, func
        if func in (torch.Tensor.to, torch.Tensor.cpu, torch.Tensor.cuda):
            assert found.is_cuda == args[0].is_cuda, f"{func} from {args[0].device} to {found.device}"
        return found
