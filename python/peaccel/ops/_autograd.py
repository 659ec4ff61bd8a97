"""How operators differentiate: the autograd functions around them, made from the records of `_op`.

There are two around each operator. The eager one bears all that torch has: derivatives of derivatives, forward mode,
vmap. The one that torch.compile traces has a first derivative alone, made of operators: neither a function inside a
backward nor one with a forward mode can be traced.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

from peaccel._core import GALLERY, QUERY, SHARED
from peaccel.ops._op import Op, PairOp, SampleOp

__all__ = ["functions", "scores_shape", "transformed"]


def functions(torch: ModuleType, records: Sequence[Op | PairOp | SampleOp], *, traced: bool) -> dict[str, Any]:
    """The autograd function of each op, by name; those for torch.compile, or the eager ones."""
    made: dict[str, Any] = {}

    def by_function(name: str, order: Any, x: Any) -> Any:
        return made[name].apply(order, x)

    for record in records:
        if isinstance(record, Op):
            made[record.name] = _elementwise(torch, record, _by_operator if traced else by_function, traced)
        else:
            make: Any = _pair if isinstance(record, PairOp) else _sample
            made[record.name] = make(torch, record, traced)
            if isinstance(record, PairOp) and record.keeps:
                made[f"{record.name}_kept"] = _pair_kept(torch, record, traced)
    return made


# -- elements ----------------------------------------------------------------------------------------------------------


def _by_operator(name: str, order: Any, x: Any) -> Any:
    """The operator of a name, without a gradient."""
    return getattr(sys.modules["torch"].ops.peaccel, name)(order, x)


def _elementwise(torch: ModuleType, op: Op, call: Callable[..., Any], traced: bool) -> Any:
    """The function of an op; ``call(name, order, x)`` is the op of a name, of which derivatives are made."""
    # Of the record, to which torch.compile is blind, what is used inside.
    name, derivative, operator = op.name, op.derivative, getattr(torch.ops.peaccel, op.name)

    def slope(order: Any, x: Any) -> Any:
        if derivative is None:
            raise RuntimeError(f"peaccel::{name} has no further derivative")
        return derivative(call, order, x)

    class Elementwise(torch.autograd.Function):  # type: ignore[name-defined,misc]
        @staticmethod
        def forward(order: Any, x: Any) -> Any:
            return operator(order, x)

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
            _save(ctx, inputs, 0, traced)
            if not traced:
                ctx.set_materialize_grads(False)

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            if grad is None:
                return None, None
            order, x = ctx.saved_tensors
            return None, (grad * slope(order, x)).sum_to_size(x.shape)

        if not traced:

            @_forward_mode
            def jvp(saved: Any, numbers: Any, order_tangent: Any, tangent: Any) -> Any:
                if order_tangent is not None:
                    raise ValueError(f"{name}: the order must have no tangent: derivatives exist in x only")
                return tangent * slope(*saved)

        @staticmethod
        def vmap(info: Any, in_dims: Any, order: Any, x: Any) -> Any:
            # Elementwise: aligned to one batch dimension in front, everything broadcasts.
            rank = max(t.ndim - (d is not None) for t, d in zip((order, x), in_dims, strict=True))
            return Elementwise.apply(*map(_batch_first, (order, x), in_dims, (rank, rank))), 0

    return Elementwise


# -- pairs -------------------------------------------------------------------------------------------------------------


def _pair(torch: ModuleType, op: PairOp, traced: bool) -> Any:
    """The function of an op's scores."""
    operator, numbers = getattr(torch.ops.peaccel, op.name), 1 + op.draws
    gradients = getattr(torch.ops.peaccel, f"{op.name}_bwd") if traced else _pair_backward(torch, op).apply

    class Forward(torch.autograd.Function):  # type: ignore[name-defined,misc]
        @staticmethod
        def forward(*args: Any) -> Any:
            return operator(*args)

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
            _save(ctx, inputs, numbers, traced)

        @staticmethod
        def backward(ctx: Any, weights: Any) -> Any:
            wanted = _wanted(ctx.needs_input_grad)
            return *gradients(weights, *ctx.saved_tensors, *ctx.numbers, wanted), *(None,) * (2 * numbers)

        if not traced:

            @_forward_mode
            def jvp(saved: Any, numbers: Any, *tangents: Any) -> Any:
                if op.formula is None:
                    raise _no_forward_mode(op)
                *inputs, candidates = saved
                # Gradients times tangents are linear in the weights, whatever those are: the slope is what is sought.
                weights = inputs[0].new_zeros(scores_shape(inputs, candidates, *numbers))
                return _second_derivatives(op, [weights, *inputs, *tangents[:5]], candidates, *numbers)[0]

        @staticmethod
        def vmap(info: Any, in_dims: Any, *args: Any) -> Any:
            return _loop(Forward, info, in_dims, args)[0], 0

    return Forward


def _pair_kept(torch: ModuleType, op: PairOp, traced: bool) -> Any:
    """The function of an op's scores, and of what is kept of them for gradients, which else would find it again."""
    operator, backward_operator = (getattr(torch.ops.peaccel, f"{op.name}_kept{end}") for end in ("", "_bwd"))
    gradients: Any = None if traced else _pair_backward(torch, op).apply

    class Kept(torch.autograd.Function):  # type: ignore[name-defined,misc]
        @staticmethod
        def forward(*args: Any) -> Any:
            return operator(*args)

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
            *tensors, ctx.pairwise = inputs
            ctx.save_for_backward(*tensors, output[1])
            ctx.mark_non_differentiable(output[1])
            if not traced:
                ctx.set_materialize_grads(False)

        @staticmethod
        def backward(ctx: Any, weights: Any, _: Any) -> Any:
            if weights is None:
                return (None,) * 7
            *saved, kept = ctx.saved_tensors
            wanted = _wanted(ctx.needs_input_grad)
            if traced or not (torch.is_grad_enabled() or transformed(torch)):
                found = backward_operator(weights, kept, *saved, ctx.pairwise, wanted)
            else:  # what may be differentiated or batched
                found = gradients(weights, *saved, ctx.pairwise, wanted)
            return *found, None, None

    return Kept


def _wanted(needed: Sequence[bool]) -> Any:
    """Which gradients are asked for, of what needs one."""
    return QUERY * (needed[0] or needed[1]) + GALLERY * (needed[2] or needed[3]) + SHARED * needed[4]


def _pair_backward(torch: ModuleType, op: PairOp) -> Any:
    """The function of the gradients of an op's scores."""
    operator = getattr(torch.ops.peaccel, f"{op.name}_bwd")

    class Last(torch.autograd.Function):  # type: ignore[name-defined,misc]
        """The first argument, as something that depends on all arguments and cannot be differentiated."""

        @staticmethod
        def forward(value: Any, *others: Any) -> Any:
            return value.clone()

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
            pass

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any:
            raise RuntimeError(f"peaccel::{op.name} can be differentiated twice, not three times")

        jvp = backward

        @staticmethod
        def vmap(info: Any, in_dims: Any, *args: Any) -> Any:
            return Last.apply(*args), in_dims[0]

    class Backward(torch.autograd.Function):  # type: ignore[name-defined,misc]
        @staticmethod
        def forward(*args: Any) -> Any:
            return operator(*args)

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
            _save(ctx, inputs, 2 + op.draws, False)

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any:
            if op.formula is None:
                raise RuntimeError(f"peaccel::{op.name} can be differentiated once, not twice")
            weights, *inputs, candidates = ctx.saved_tensors
            given = (weights, *inputs, *grads)
            values = _second_derivatives(op, [x.detach() for x in given], candidates, ctx.numbers[0])
            return *(Last.apply(value, *given) for value in values), None, None, None

        @_forward_mode
        def jvp(saved: Any, numbers: Any, *tangents: Any) -> Any:
            if op.formula is None:
                raise _no_forward_mode(op)
            weights, *inputs, candidates = saved
            # Linear in the weights; in the inputs, second derivatives are symmetric.
            by_weights = Backward.apply(tangents[0], *inputs, candidates, *numbers)
            by_inputs = _second_derivatives(op, [weights, *inputs, *tangents[1:6]], candidates, numbers[0])[1:]
            return tuple(a + b for a, b in zip(by_weights, by_inputs, strict=True))

        @staticmethod
        def vmap(info: Any, in_dims: Any, *args: Any) -> Any:
            return _loop(Backward, info, in_dims, args), (0,) * 5

    return Backward


def scores_shape(inputs: Sequence[Any], candidates: Any, pairwise: bool) -> tuple[int, ...]:
    """The shape of an op's scores."""
    mu1, _, mu2, *_ = inputs
    if candidates is not None:
        return tuple(candidates.shape)
    return (mu1.shape[0], mu2.shape[0]) if pairwise else (mu1.shape[0],)


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


# -- draws -------------------------------------------------------------------------------------------------------------


def _sample(torch: ModuleType, op: SampleOp, traced: bool) -> Any:
    """The function of an op's draws."""
    operator = getattr(torch.ops.peaccel, op.name)
    gradients = getattr(torch.ops.peaccel, f"{op.name}_bwd") if traced else _sample_backward(torch, op).apply

    class Sample(torch.autograd.Function):  # type: ignore[name-defined,misc]
        @staticmethod
        def forward(*args: Any) -> Any:
            return operator(*args)

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
            _save(ctx, inputs, 3, traced)

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            return *gradients(grad, *ctx.saved_tensors, *ctx.numbers), None, None, None, None

        if not traced:

            @staticmethod
            def jvp(ctx: Any, *tangents: Any) -> Any:
                raise _no_forward_mode(op)

        @staticmethod
        def vmap(info: Any, in_dims: Any, *args: Any) -> Any:
            return _loop(Sample, info, in_dims, args)[0], 0

    return Sample


def _sample_backward(torch: ModuleType, op: SampleOp) -> Any:
    """The function of the gradients of an op's draws."""
    operator = getattr(torch.ops.peaccel, f"{op.name}_bwd")

    class Backward(torch.autograd.Function):  # type: ignore[name-defined,misc]
        @staticmethod
        def forward(*args: Any) -> Any:
            return operator(*args)

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
            pass

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any:
            raise RuntimeError(f"peaccel::{op.name} can be differentiated once, not twice")

        jvp = backward

        @staticmethod
        def vmap(info: Any, in_dims: Any, *args: Any) -> Any:
            return _loop(Backward, info, in_dims, args), (0, 0)

    return Backward


# -- what they share ---------------------------------------------------------------------------------------------------


def transformed(torch: Any) -> bool:
    """Whether a transform of torch.func, or forward mode, is under way."""
    try:  # private names: without them, the function's cost is paid always
        forward_mode = torch.autograd.forward_ad._current_level >= 0
        return forward_mode or torch._C._functorch.peek_interpreter_stack() is not None
    except AttributeError:
        return True


def _save(ctx: Any, inputs: Sequence[Any], numbers: int, traced: bool) -> None:
    """Keeps the inputs, of which so many at the end are no tensors."""
    tensors = inputs[: len(inputs) - numbers]
    ctx.save_for_backward(*tensors)
    if not traced:
        ctx.save_for_forward(*tensors)
    ctx.numbers = inputs[len(tensors) :]


def _forward_mode(jvp: Callable[..., Any]) -> Any:
    """A function's jvp, made of ``jvp(saved, numbers, *tangents)``.

    It may itself be differentiated forwards, though torch turns forward mode off in a jvp: the tangents of an outer
    level would be lost without a word.
    """

    def at_its_level(ctx: Any, *tangents: Any) -> Any:
        forward_ad: Any = sys.modules["torch"].autograd.forward_ad
        with forward_ad._set_fwd_grad_enabled(True):
            saved = [x if x is None else forward_ad.unpack_dual(x).primal for x in ctx.saved_tensors]
            return jvp(saved, ctx.numbers, *tangents)

    return staticmethod(at_its_level)


def _no_forward_mode(op: PairOp | SampleOp) -> NotImplementedError:
    return NotImplementedError(f"peaccel::{op.name} has no forward mode (jvp): use reverse mode, as torch.func.jacrev")


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
