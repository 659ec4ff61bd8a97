"""Tensors that say they are on a GPU and whose numbers lie on the host: what refuses them, or mixes them with others,
fails here as it would there.
"""

import contextlib

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_flatten, tree_map_only

from peaccel.ops import _cpu, _dispatch

SAYS = {
    torch.Tensor.is_cpu.__get__: lambda gpu: False,
    torch.Tensor.is_cuda.__get__: lambda gpu: True,
    torch.Tensor.device.__get__: lambda gpu: gpu.DEVICE,
}
TO_HOST = (torch.Tensor.numpy, torch.Tensor.__array__)
TAKE_BOTH = {torch.Tensor.__getitem__, torch.Tensor.__setitem__, torch.Tensor.copy_, torch.Tensor.index_put_}
"""Functions that torch lets take a tensor on the host beside one on a GPU."""


class OnGpu(torch.Tensor):
    """A tensor on the stand-in of a GPU."""

    DEVICE = torch.device("cuda", 0)

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func in SAYS:
            return SAYS[func](type(args[0]))
        if func in TO_HOST:
            raise TypeError(f"can't convert {cls.DEVICE} device type tensor to numpy. Use Tensor.cpu() first.")
        tensors = [x for x in tree_flatten((args, kwargs))[0] if isinstance(x, torch.Tensor)]
        with torch._C.DisableTorchFunctionSubclass():
            mixed = len({_gpu_or_host(x) for x in tensors if x.ndim}) > 1
        if mixed and func not in TAKE_BOTH and not _moves(func, args, kwargs):
            raise RuntimeError(f"Expected all tensors to be on the same device, but found two ({func})")
        if func is torch.Tensor.cpu:
            return _plain(args[0]).clone()
        if func is torch.Tensor.cuda:
            return args[0]
        target = _target(func, args, kwargs)
        if target is not None:
            args, kwargs = tree_map_only(torch.device, lambda _: torch.device("cpu"), (args, kwargs))
            args = tuple("cpu" if isinstance(x, str) and x.startswith("cuda") else x for x in args)
            kwargs = {key: "cpu" if key == "device" else x for key, x in kwargs.items()}
        with torch._C.DisableTorchFunctionSubclass():
            found = func(*tree_map_only(OnGpu, _plain, args), **tree_map_only(OnGpu, _plain, kwargs))
        if target is None:
            return tree_map_only(torch.Tensor, _gpu_of(tensors), found)
        return found if target.type == "cpu" else tree_map_only(torch.Tensor, GPUS[target.index or 0], found)


class OnSecondGpu(OnGpu):
    """A tensor on the stand-in of another GPU beside it."""

    DEVICE = torch.device("cuda", 1)


def _gpu_or_host(x):
    return type(x) if isinstance(x, OnGpu) else torch.Tensor  # a parameter lies on the host too


def _plain(x):
    return x.as_subclass(torch.Tensor)


def on_gpu(x):
    """The tensor, on the stand-in."""
    return x.as_subclass(OnGpu)


def on_second_gpu(x):
    """The tensor, on the other stand-in."""
    return x.as_subclass(OnSecondGpu)


GPUS = on_gpu, on_second_gpu


def _gpu_of(tensors):
    """The GPU on which these tensors lie."""
    (device,) = {x.DEVICE for x in tensors if isinstance(x, OnGpu)} or {OnGpu.DEVICE}
    return GPUS[device.index]


def _target(func, args, kwargs):
    """The device that a call names."""
    named = [kwargs.get("device"), *(args[1:] if func is torch.Tensor.to else ())]
    known = [x for x in named if isinstance(x, torch.device) or (isinstance(x, str) and x.startswith(("cpu", "cuda")))]
    return torch.device(known[0]) if known else None


def _moves(func, args, kwargs):
    named = func is torch.Tensor.to and _target(func, args, kwargs) is not None
    return named or func in (torch.as_tensor, torch.tensor)


class _Factories(TorchFunctionMode):
    """Make here what is made on, or moved to, "cuda", and let it say it is there."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func is torch.Tensor.cuda:
            return on_gpu(args[0].clone())
        if func is torch.Tensor.pin_memory:  # which asks for a driver
            return args[0]
        target = _target(func, args, kwargs)
        if target is None or target.type != "cuda":
            return func(*args, **kwargs)
        return OnGpu.__torch_function__(func, types, args, kwargs)


class Stream:
    """A stream, of which the stand-in has one: nobody waits for another."""

    def record_event(self):
        return "an event"

    def wait_event(self, event):
        assert event == "an event"


def _here(function):
    """A function of `_cpu` for tensors on the stand-in."""

    def called(op, *args):
        with _disable_current_modes():  # which look for what a GPU would wait for
            found = function(op, *tree_map_only(OnGpu, _plain, args))
        return tree_map_only(torch.Tensor, _gpu_of(tree_flatten(args)[0]), found)

    return called


@contextlib.contextmanager
def stand_in(monkeypatch):
    """Kernels of GPUs are those of the host, while tensors keep saying where they are."""
    kernels = _dispatch.Kernels(_dispatch._score_tensors, _here(_cpu.rerank), _here(_cpu.search), _dispatch._no_panels)
    monkeypatch.setattr(_dispatch, "_ON_GPU", kernels)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: Stream())
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda x, stream: None)
    with _Factories():
        yield
