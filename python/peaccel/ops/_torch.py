"""The torch side of all records: the only user of torch.library.

Operators with their schemas and fakes, and the autograd functions around them, derive from the records of `_op`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

from peaccel.ops import _cuda
from peaccel.ops._array import as_numpy
from peaccel.ops._op import Op, PairOp, SampleOp

__all__ = ["Torch"]


class Torch:
    """Registers operators and makes their autograd functions."""

    def __init__(self, torch: ModuleType, records: Sequence[Op | PairOp | SampleOp]) -> None:
        self.torch: Any = torch
        self.library = torch.library.Library("peaccel", "DEF")
        self.functions: dict[str, Any] = {}
        for record in records:
            register: Any = {
                Op: self._register_elementwise,
                PairOp: self._register_pair,
                SampleOp: self._register_sample,
            }
            self.functions[record.name] = register[type(record)](record)

    # -- calls ---------------------------------------------------------------------------------------------------------

    def elementwise(self, op: Op, order: Any, x: Any) -> Any:
        if getattr(order, "requires_grad", False):
            raise ValueError(f"{op.name}: the order must not require grad: derivatives exist in x only")
        if isinstance(order, float):  # a fill, which waits for nothing
            order = self.torch.full((), order, dtype=self.torch.float64, device=x.device)
        order = self.torch.as_tensor(order, dtype=self.torch.float64, device=x.device)
        return self._call(self.functions[op.name], getattr(self.torch.ops.peaccel, op.name), order, x)

    def scores(self, op: PairOp, inputs: Sequence[Any], candidates: Any, pairwise: bool) -> Any:
        # Tensors, then numbers: the seed (if any) goes before pairwise, n after it.
        args = *inputs[:5], candidates, *inputs[5:6], pairwise, *inputs[6:]
        return self._call(self.functions[op.name], getattr(self.torch.ops.peaccel, op.name), *args)

    def sample(self, op: SampleOp, *args: Any) -> Any:
        return self._call(self.functions[op.name], getattr(self.torch.ops.peaccel, op.name), *args)

    def _call(self, function: Any, operator: Any, *args: Any) -> Any:
        """The autograd function where something may differentiate or batch, else the operator: half the overhead."""
        return (function.apply if self._transforms(args) else operator)(*args)

    def _transforms(self, args: Sequence[Any]) -> bool:
        torch = self.torch
        if torch.compiler.is_compiling():
            return True
        if torch.is_grad_enabled() and any(getattr(x, "requires_grad", False) for x in args):
            return True
        try:  # private names: without them, the function's cost is paid always
            forward_mode = torch.autograd.forward_ad._current_level >= 0
            return forward_mode or torch._C._functorch.peek_interpreter_stack() is not None
        except AttributeError:
            return True

    # -- registration --------------------------------------------------------------------------------------------------

    def _define(
        self,
        name: str,
        arguments: str,
        returns: str,
        cpu: Callable[..., Any],
        cuda: Callable[..., Any],
        fake: Callable[..., Any],
    ) -> None:
        self.library.define(f"{name}({arguments}) -> {returns}", tags=(self.torch.Tag.pt2_compliant_tag,))
        self.library.impl(name, cpu, "CPU")
        self.library.impl(name, cuda, "CUDA")
        self.torch.library.register_fake(f"peaccel::{name}", fake, lib=self.library)

    def _register_elementwise(self, op: Op) -> Any:
        torch = self.torch

        def cpu(order: Any, x: Any) -> Any:
            return torch.from_numpy(op.numpy(as_numpy(order), as_numpy(x)))

        def cuda(order: Any, x: Any) -> Any:
            return _cuda.elementwise(op, order, x)

        def fake(order: Any, x: Any) -> Any:
            return x.new_empty(torch.broadcast_shapes(order.shape, x.shape))

        name, derivative, functions = op.name, op.derivative, self.functions

        def by_function(name: str, order: Any, x: Any) -> Any:
            """The op of a name, differentiable."""
            return functions[name].apply(order, x)

        self._define(name, "Tensor order, Tensor x", "Tensor", cpu, cuda, fake)
        operator = getattr(torch.ops.peaccel, name)

        class Elementwise(torch.autograd.Function):  # type: ignore[name-defined,misc]
            @staticmethod
            def forward(order: Any, x: Any) -> Any:
                return operator(order, x)

            @staticmethod
            def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
                ctx.save_for_backward(*inputs)

            @staticmethod
            def backward(ctx: Any, grad: Any) -> Any:
                order, x = ctx.saved_tensors
                if derivative is None:
                    raise RuntimeError(f"peaccel::{name} has no further derivative")
                # torch.compile cannot trace a function inside a backward, nor does it differentiate twice.
                call = _by_operator if torch.compiler.is_compiling() else by_function
                return None, (grad * derivative(call, order, x)).sum_to_size(x.shape)

            @staticmethod
            def vmap(info: Any, in_dims: Any, order: Any, x: Any) -> Any:
                # Elementwise: aligned to one batch dimension in front, everything broadcasts.
                rank = max(t.ndim - (d is not None) for t, d in zip((order, x), in_dims, strict=True))
                return Elementwise.apply(*map(_batch_first, (order, x), in_dims, (rank, rank))), 0

        return Elementwise

    def _register_pair(self, op: PairOp) -> Any:
        torch = self.torch
        arguments = f"Tensor mu1, Tensor {op.extra}1, Tensor mu2, Tensor {op.extra}2, Tensor {op.shared}, " + (
            "Tensor? candidates, Tensor seed, bool pairwise, int n" if op.draws else "Tensor? candidates, bool pairwise"
        )
        numbers = 1 + op.draws

        def parts(args: Any) -> Any:
            """Inputs, candidates and pairwise, as the record takes them."""
            return ((*args[:5], args[6], args[8]), args[5], args[7]) if op.draws else (args[:5], args[5], args[6])

        def cpu(*args: Any) -> Any:
            return torch.from_numpy(op.numpy_scores(*parts(args)))

        def cuda(*args: Any) -> Any:
            return _cuda.score(op, *parts(args))

        def fake(*args: Any) -> Any:
            (mu1, _, mu2, *_), candidates, pairwise = parts(args)
            if candidates is not None:
                return mu1.new_empty(candidates.shape)
            return mu1.new_empty((mu1.shape[0], mu2.shape[0]) if pairwise else (mu1.shape[0],))

        def cpu_backward(weights: Any, *args: Any) -> Any:
            return tuple(map(torch.from_numpy, op.numpy_backward(weights, *parts(args))))

        def cuda_backward(weights: Any, *args: Any) -> Any:
            return tuple(_cuda.score_backward(op, weights, *parts(args)))

        def fake_backward(weights: Any, *args: Any) -> Any:
            return tuple(x.new_empty(x.shape) for x in args[:5])

        self._define(op.name, arguments, "Tensor", cpu, cuda, fake)
        returns = "(Tensor, Tensor, Tensor, Tensor, Tensor)"
        backwards = cpu_backward, cuda_backward, fake_backward
        self._define(f"{op.name}_bwd", f"Tensor weights, {arguments}", returns, *backwards)
        forward_operator = getattr(torch.ops.peaccel, op.name)
        backward_operator = getattr(torch.ops.peaccel, f"{op.name}_bwd")

        class Last(torch.autograd.Function):  # type: ignore[name-defined,misc]
            """The first argument, as something that depends on all arguments and cannot be differentiated."""

            @staticmethod
            def forward(value: Any, *others: Any) -> Any:
                return value.clone()

            @staticmethod
            def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
                pass

            @staticmethod
            def backward(ctx: Any, grad: Any) -> Any:
                raise RuntimeError(f"peaccel::{op.name} can be differentiated twice, not three times")

            @staticmethod
            def vmap(info: Any, in_dims: Any, *args: Any) -> Any:
                return args[0].clone(), in_dims[0]

        class Backward(torch.autograd.Function):  # type: ignore[name-defined,misc]
            @staticmethod
            def forward(*args: Any) -> Any:
                return backward_operator(*args)

            @staticmethod
            def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
                _save(ctx, inputs, numbers)

            @staticmethod
            def backward(ctx: Any, *grads: Any) -> Any:
                if op.formula is None:
                    raise RuntimeError(f"peaccel::{op.name} can be differentiated once, not twice")
                weights, *inputs, candidates = ctx.saved_tensors
                given = (weights, *inputs, *grads)
                values = _second_derivatives(op, [x.detach() for x in given], candidates, *ctx.numbers)
                return *(Last.apply(value, *given) for value in values), None, None

            @staticmethod
            def vmap(info: Any, in_dims: Any, *args: Any) -> Any:
                return _loop(Backward, info, in_dims, args), (0,) * 5

        class Forward(torch.autograd.Function):  # type: ignore[name-defined,misc]
            @staticmethod
            def forward(*args: Any) -> Any:
                return forward_operator(*args)

            @staticmethod
            def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
                _save(ctx, inputs, numbers)

            @staticmethod
            def backward(ctx: Any, weights: Any) -> Any:
                # As above: compiled, the kernel alone.
                call = backward_operator if torch.compiler.is_compiling() else Backward.apply
                return *call(weights, *ctx.saved_tensors, *ctx.numbers), *(None,) * (2 * numbers)

            @staticmethod
            def vmap(info: Any, in_dims: Any, *args: Any) -> Any:
                return _loop(Forward, info, in_dims, args)[0], 0

        return Forward

    def _register_sample(self, op: SampleOp) -> Any:
        torch = self.torch
        arguments = f"Tensor mu, Tensor {op.extra}, Tensor seed, int n, int first_row, int stream"

        def cpu(mu: Any, extra: Any, seed: Any, n: int, first_row: int, stream: int) -> Any:
            return torch.from_numpy(op.numpy(mu, extra, int(seed), n, first_row, stream))

        def cuda(*args: Any) -> Any:
            return _cuda.sample(op, *args)

        def fake(mu: Any, extra: Any, seed: Any, n: int, first_row: int, stream: int) -> Any:
            return mu.new_empty((n, *mu.shape))

        def cpu_backward(weights: Any, mu: Any, extra: Any, seed: Any, n: int, first_row: int, stream: int) -> Any:
            return tuple(map(torch.from_numpy, op.numpy_backward(weights, mu, extra, int(seed), first_row, stream)))

        def cuda_backward(weights: Any, mu: Any, extra: Any, seed: Any, n: int, first_row: int, stream: int) -> Any:
            return _cuda.sample_backward(op, weights, mu, extra, seed, first_row, stream)

        def fake_backward(weights: Any, mu: Any, extra: Any, *rest: Any) -> Any:
            return mu.new_empty(mu.shape), extra.new_empty(extra.shape)

        self._define(op.name, arguments, "Tensor", cpu, cuda, fake)
        backwards = cpu_backward, cuda_backward, fake_backward
        self._define(f"{op.name}_bwd", f"Tensor weights, {arguments}", "(Tensor, Tensor)", *backwards)
        forward_operator = getattr(torch.ops.peaccel, op.name)
        backward_operator = getattr(torch.ops.peaccel, f"{op.name}_bwd")

        class Backward(torch.autograd.Function):  # type: ignore[name-defined,misc]
            @staticmethod
            def forward(*args: Any) -> Any:
                return backward_operator(*args)

            @staticmethod
            def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
                pass

            @staticmethod
            def backward(ctx: Any, *grads: Any) -> Any:
                raise RuntimeError(f"peaccel::{op.name} can be differentiated once, not twice")

            @staticmethod
            def vmap(info: Any, in_dims: Any, *args: Any) -> Any:
                return _loop(Backward, info, in_dims, args), (0, 0)

        class Sample(torch.autograd.Function):  # type: ignore[name-defined,misc]
            @staticmethod
            def forward(*args: Any) -> Any:
                return forward_operator(*args)

            @staticmethod
            def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
                mu, extra, seed, *ctx.numbers = inputs
                ctx.save_for_backward(mu, extra, seed)

            @staticmethod
            def backward(ctx: Any, grad: Any) -> Any:
                # As above: torch.compile cannot trace a function inside a backward.
                call = backward_operator if torch.compiler.is_compiling() else Backward.apply
                return *call(grad, *ctx.saved_tensors, *ctx.numbers), None, None, None, None

            @staticmethod
            def vmap(info: Any, in_dims: Any, *args: Any) -> Any:
                return _loop(Sample, info, in_dims, args)[0], 0

        return Sample


def _by_operator(name: str, order: Any, x: Any) -> Any:
    """The operator of a name, without a gradient."""
    return getattr(sys.modules["torch"].ops.peaccel, name)(order, x)


def _save(ctx: Any, inputs: Sequence[Any], numbers: int) -> None:
    ctx.save_for_backward(*inputs[:-numbers])
    ctx.numbers = inputs[-numbers:]


def _batch_first(x: Any, dim: int | None, rank: int) -> Any:
    """x with its batch dimension (if any) in front, then as many dimensions as ``rank``."""
    if dim is None:
        return x
    x = x.movedim(dim, 0)
    return x.reshape(x.shape[0], *(1,) * (rank + 1 - x.ndim), *x.shape[1:])


def _loop(function: Any, info: Any, in_dims: Any, args: Any) -> tuple[Any, ...]:
    """The function over a batch, one member after the other, each output stacked in front."""
    torch: Any = sys.modules["torch"]
    calls = []
    for i in range(info.batch_size):
        member = (x if d is None else x.select(d, i) for x, d in zip(args, in_dims, strict=True))
        out = function.apply(*member)
        calls.append(out if isinstance(out, tuple) else (out,))
    return tuple(torch.stack(outs) for outs in zip(*calls, strict=True))


def _second_derivatives(op: PairOp, given: Sequence[Any], candidates: Any, pairwise: bool) -> list[Any]:
    """The gradient of sum_i grads[i] * backward_i(weights, inputs) with respect to weights and inputs.

    From the formula in plain torch, some queries at a time, since it holds all [Q, K, D] of them at once.
    """
    torch: Any = sys.modules["torch"]
    weights, mu1, extra1, mu2, extra2, shared, *grads = given
    per_query = mu2.numel() if pairwise else mu1.shape[-1] * (1 if candidates is None else candidates.shape[1])
    step = max(1, 2**22 // max(1, per_query))
    changes: list[Any] = []
    # Paired gallery rows go with their queries; otherwise all of them go with each.
    paired = candidates is None and not pairwise
    for start in range(0, len(mu1), step):
        rows = slice(start, start + step)
        own = rows if paired else slice(None)
        part = (weights[rows], mu1[rows], extra1[rows], mu2[own], extra2[own], shared)
        some = None if candidates is None else candidates[rows]

        def first(weights: Any, *inputs: Any, some: Any = some) -> Any:
            return torch.func.vjp(lambda *x: _by_formula(op, x, some, pairwise), *inputs)[1](weights)

        pull = torch.func.vjp(first, *part)[1]
        changes.append(pull((grads[0][rows], grads[1][rows], grads[2][own], grads[3][own], grads[4])))
    if not changes:
        return [torch.zeros_like(x) for x in given[:6]]
    # What belongs to the queries of a step is joined; what all steps share is summed. Not in place, for vmap's sake.
    per_step = (True, True, True, paired, paired, False)
    return [
        torch.cat(parts) if joined else sum(parts[1:], parts[0])
        for joined, parts in zip(per_step, zip(*changes, strict=True), strict=True)
    ]


def _by_formula(op: PairOp, inputs: Sequence[Any], candidates: Any, pairwise: bool) -> Any:
    """The scores by the op's formula; a candidate -1 scores 0 with no gradient."""
    assert op.formula is not None  # else nothing asks for them
    mu1, extra1, mu2, extra2, shared = inputs
    extra1, extra2 = (x[:, None] if x.ndim == 1 else x for x in (extra1, extra2))
    if candidates is not None:
        rows = candidates.clamp(min=0)
        scores = op.formula(mu1[:, None], extra1[:, None], mu2[rows], extra2[rows], shared)
        return scores * (candidates >= 0)
    if pairwise:
        mu1, extra1 = mu1[:, None], extra1[:, None]
    return op.formula(mu1, extra1, mu2, extra2, shared)
