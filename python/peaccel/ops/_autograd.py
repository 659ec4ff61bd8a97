"""Derivatives of operators: the autograd functions around them, made from the records.

There are two around each operator. The eager one supports second derivatives, forward mode and vmap. The one that
torch.compile traces has first derivatives only, and computes them by operators: torch.compile can trace neither an
autograd function inside a backward nor one with a forward mode.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

from peaccel._core import GALLERY, QUERY, SHARED, TOGETHER
from peaccel.ops._arguments import Signature
from peaccel.ops._definitions import Gradients, Inputs, Op, PairOp, SampleOp, scores_shape

__all__ = ["functions", "transformed", "wanted_of"]


def functions(torch: ModuleType, records: Sequence[Op | PairOp | SampleOp], *, traced: bool) -> dict[str, Any]:
    """The autograd function of each op, by name: those for torch.compile if ``traced``, else the eager ones."""
    by_name: dict[str, Any] = {}

    def by_function(name: str, *arguments: Any) -> Any:
        return by_name[name].apply(*arguments)

    for record in records:
        if isinstance(record, Op):
            by_name[record.name] = _elementwise(torch, record, _by_operator if traced else by_function, traced)
        else:
            make: Any = _pair if isinstance(record, PairOp) else _sample
            by_name[record.name] = make(torch, record, traced)
            if isinstance(record, PairOp) and record.saves:
                by_name[f"{record.name}_saving"] = _pair_saving(torch, record, traced)
            if isinstance(record, PairOp) and record.symmetric:
                by_name[f"{record.name}_of_one_set"] = _pair_of_one_set(torch, record, traced)
    for function in () if traced else by_name.values():  # torch asks for it at each call, and would make it anew
        function.forward.__signature__ = inspect.signature(function.forward)
    return by_name


# -- elements ----------------------------------------------------------------------------------------------------------


def _by_operator(name: str, *arguments: Any) -> Any:
    """Calls the operator of a name, without a gradient."""
    return getattr(sys.modules["torch"].ops.peaccel, name)(*arguments)


def _elementwise(torch: ModuleType, op: Op, call: Callable[..., Any], traced: bool) -> Any:
    """The autograd function of an op; ``call(name, order, x)`` evaluates the ops of which its derivative is made."""
    # The functions below use these variables and not the record, which torch.compile cannot trace.
    name, derivative, operator = op.name, op.derivative, getattr(torch.ops.peaccel, op.name)
    orders = int(op.has_order)

    def by_x(*arguments: Any) -> Any:
        if derivative is None:
            raise RuntimeError(f"peaccel::{name} has no further derivative")
        return derivative(call, *arguments)

    class Elementwise(torch.autograd.Function):  # type: ignore[name-defined,misc]
        @staticmethod
        def forward(*arguments: Any) -> Any:
            return operator(*arguments)

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
            _save(ctx, inputs, 0, traced)
            if not traced:
                ctx.set_materialize_grads(False)

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            if grad is None:
                return *(None,) * orders, None
            *_, x = arguments = ctx.saved_tensors
            return *(None,) * orders, (grad * by_x(*arguments)).sum_to_size(x.shape)

        if not traced:

            @_forward_mode
            def jvp(saved: Any, numbers: Any, *tangents: Any) -> Any:
                *of_order, tangent = tangents
                if any(other is not None for other in of_order):
                    raise ValueError(f"{name}: the order must have no tangent: derivatives exist in x only")
                return tangent * by_x(*saved)

        @staticmethod
        def vmap(info: Any, in_dims: Any, *arguments: Any) -> Any:
            # With one batch dimension in front of each argument, elementwise functions broadcast.
            batched = [*zip(arguments, in_dims, strict=True)]
            rank = max(x.ndim - (dim is not None) for x, dim in batched)
            return Elementwise.apply(*(_batch_first(x, dim, rank) for x, dim in batched)), 0

    return Elementwise


# -- pairs -------------------------------------------------------------------------------------------------------------


def _pair(torch: ModuleType, op: PairOp, traced: bool) -> Any:
    """The autograd function of an op's scores."""
    operator, signature = getattr(torch.ops.peaccel, op.name), Signature(op)
    numbers, others = signature.numbers, signature.others  # torch.compile cannot trace a signature
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
            wanted = wanted_of(ctx.needs_input_grad)
            return *gradients(weights, *ctx.saved_tensors, *ctx.numbers, wanted), *(None,) * others

        if not traced:

            @_forward_mode
            def jvp(saved: Any, numbers: Any, *tangents: Any) -> Any:
                if op.formula is None:
                    raise _no_forward_mode(op)
                inputs, candidates, pairwise = signature.unpack((*saved, *numbers))
                along, _, _ = signature.unpack(tangents)
                # The gradients times the tangents are linear in the weights. The tangent of the scores is their
                # derivative with respect to the weights, whatever these are.
                weights = inputs.mu1.new_zeros(scores_shape(inputs, candidates, pairwise))
                by_weights, *_ = _second_derivatives(op, weights, inputs, along, candidates, pairwise)
                return by_weights

        @staticmethod
        def vmap(info: Any, in_dims: Any, *args: Any) -> Any:
            return _loop(Forward, info, in_dims, args)[0], 0

    return Forward


def _pair_saving(torch: ModuleType, op: PairOp, traced: bool) -> Any:
    """The autograd function of an op's scores that writes down a number of each pair, of use to the gradients."""
    others = Signature(op).others
    operator, backward_operator = (getattr(torch.ops.peaccel, f"{op.name}_saving{end}") for end in ("", "_bwd"))
    gradients: Any = None if traced else _pair_backward(torch, op).apply

    class Saving(torch.autograd.Function):  # type: ignore[name-defined,misc]
        @staticmethod
        def forward(ctx: Any, *args: Any) -> Any:
            # With a `setup_context`, which only transforms need, torch reads the signature of `forward` at each call.
            scores, saved = operator(*args)
            *tensors, ctx.pairwise = args
            ctx.save_for_backward(*tensors, saved)
            ctx.mark_non_differentiable(saved)
            if not traced:
                ctx.set_materialize_grads(False)
            return scores, saved

        @staticmethod
        def backward(ctx: Any, weights: Any, _: Any) -> Any:
            if weights is None:
                return (None,) * (len(Gradients._fields) + others)
            *arrays, saved = ctx.saved_tensors
            wanted = wanted_of(ctx.needs_input_grad)
            if traced or not (torch.is_grad_enabled() or transformed(torch)):
                found = backward_operator(weights, saved, *arrays, ctx.pairwise, wanted)
            else:  # these gradients may be differentiated or batched
                found = gradients(weights, *arrays, ctx.pairwise, wanted)
            return *found, *(None,) * others

    return Saving


def _pair_of_one_set(torch: ModuleType, op: PairOp, traced: bool) -> Any:
    """The autograd function of a symmetric op's scores of all pairs of one set, which takes the arrays of the set once.

    One of two pairs that mirror each other is scored, and adds to the gradients of both its items.
    """
    saves, ending = op.saves, "_saving" if op.saves else ""  # torch.compile cannot trace a record
    operator, backward_operator = (getattr(torch.ops.peaccel, f"{op.name}{ending}{end}") for end in ("", "_bwd"))
    gradients: Any = None if traced else _pair_backward(torch, op).apply

    class OfOneSet(torch.autograd.Function):  # type: ignore[name-defined,misc]
        @staticmethod
        def forward(ctx: Any, mu: Any, uncertainty: Any, shared: Any) -> Any:
            found = operator(mu, uncertainty, mu, uncertainty, shared, None, True)
            scores, *saved = found if saves else (found,)
            ctx.save_for_backward(mu, uncertainty, shared, *saved)
            ctx.mark_non_differentiable(*saved)
            if not traced:
                ctx.set_materialize_grads(False)
            return scores, *saved

        @staticmethod
        def backward(ctx: Any, weights: Any, *_: Any) -> Any:
            if weights is None:
                return None, None, None
            mu, uncertainty, shared, *saved = ctx.saved_tensors
            inputs = mu, uncertainty, mu, uncertainty, shared, None, True
            by_mu, by_uncertainty, by_shared = ctx.needs_input_grad
            wanted = QUERY * (by_mu or by_uncertainty) + SHARED * by_shared
            if traced or not (torch.is_grad_enabled() or transformed(torch)):
                mu1, uncertainty1, *_, shared = backward_operator(weights, *saved, *inputs, wanted + TOGETHER)
                return mu1, uncertainty1, shared
            # These gradients may be differentiated or batched.
            mu1, uncertainty1, mu2, uncertainty2, shared = gradients(weights, *inputs, wanted + GALLERY)
            return mu1 + mu2, uncertainty1 + uncertainty2, shared

    return OfOneSet


def wanted_of(needed: Sequence[bool]) -> Any:
    """Which gradients are wanted, as the core's flags, given which arrays need one."""
    mu1, uncertainty1, mu2, uncertainty2, shared, *_ = needed
    return QUERY * (mu1 or uncertainty1) + GALLERY * (mu2 or uncertainty2) + SHARED * shared


def _pair_backward(torch: ModuleType, op: PairOp) -> Any:
    """The autograd function of the gradients of an op's scores."""
    operator, signature = getattr(torch.ops.peaccel, f"{op.name}_bwd"), Signature(op)

    class Last(_undifferentiable(torch, op, "twice, not three times")):  # type: ignore[misc]
        """The first argument, as a function of all arguments."""

        @staticmethod
        def forward(value: Any, *others: Any) -> Any:
            return value.clone()

        @staticmethod
        def vmap(info: Any, in_dims: Any, *args: Any) -> Any:
            return Last.apply(*args), in_dims[0]

    class Backward(torch.autograd.Function):  # type: ignore[name-defined,misc]
        @staticmethod
        def forward(*args: Any) -> Any:
            return operator(*args)

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
            _save(ctx, inputs, signature.numbers + 1, False)  # one more: `wanted`

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any:
            if op.formula is None:
                raise RuntimeError(f"peaccel::{op.name} can be differentiated once, not twice")
            weights, *tensors = ctx.saved_tensors
            *numbers, _ = ctx.numbers
            inputs, candidates, pairwise = signature.unpack((*tensors, *numbers))
            arguments = weights, *inputs.arrays, *grads
            detached, along = (x.mapped(lambda y: y.detach()) for x in (inputs, Inputs(*grads)))
            values = _second_derivatives(op, weights.detach(), detached, along, candidates, pairwise)
            return *(Last.apply(value, *arguments) for value in values), *(None,) * signature.others, None

        @_forward_mode
        def jvp(saved: Any, numbers: Any, *tangents: Any) -> Any:
            if op.formula is None:
                raise _no_forward_mode(op)
            (weights, *tensors), (*others, _) = saved, numbers
            of_weights, *of_arguments, _ = tangents
            inputs, candidates, pairwise = signature.unpack((*tensors, *others))
            along, _, _ = signature.unpack(of_arguments)
            # The gradients are linear in the weights; second derivatives with respect to the inputs are symmetric.
            by_weights = Backward.apply(of_weights, *tensors, *numbers)
            _, *by_inputs = _second_derivatives(op, weights, inputs, along, candidates, pairwise)
            return tuple(a + b for a, b in zip(by_weights, by_inputs, strict=True))

        @staticmethod
        def vmap(info: Any, in_dims: Any, *args: Any) -> Any:
            return _loop(Backward, info, in_dims, args), (0,) * 5

    return Backward


def _second_derivatives(
    op: PairOp, weights: Any, inputs: Inputs, along: Inputs, candidates: Any, pairwise: bool
) -> list[Any]:
    """The gradient of sum_i along_i * backward_i(weights, inputs) with respect to weights and the five arrays.

    They are computed from the formula in plain torch, some queries at a time, as it holds arrays [queries, K, D].
    """
    torch: Any = sys.modules["torch"]
    (queries, dim), gallery = inputs.mu1.shape, inputs.mu2.shape[0]
    per_query = dim * (gallery if pairwise else 1 if candidates is None else candidates.shape[1])
    step = max(1, 2**22 // max(1, per_query))
    changes: list[Any] = []
    # Each step takes the gallery rows that are paired with its queries, or all of them.
    paired = candidates is None and not pairwise
    for start in range(0, queries, step):
        rows = slice(start, start + step)
        items = rows if paired else slice(None)
        some = None if candidates is None else candidates[rows]

        def part(x: Inputs, rows: slice = rows, items: slice = items) -> tuple[Any, ...]:
            return x.mu1[rows], x.uncertainty1[rows], x.mu2[items], x.uncertainty2[items], x.shared

        def first(weights: Any, *arrays: Any, some: Any = some) -> Any:
            return torch.func.vjp(lambda *x: _by_formula(op, Inputs(*x), some, pairwise), *arrays)[1](weights)

        vjp = torch.func.vjp(first, weights[rows], *part(inputs))[1]
        changes.append(vjp(part(along)))
    if not changes:
        return [torch.zeros_like(x) for x in (weights, *inputs.arrays)]
    # Gradients of the queries of each step are concatenated; those of arrays that all steps share are summed, out of
    # place, which vmap needs.
    per_step = (True, True, True, paired, paired, False)
    return [
        torch.cat(parts) if joined else sum(parts[1:], parts[0])
        for joined, parts in zip(per_step, zip(*changes, strict=True), strict=True)
    ]


def _by_formula(op: PairOp, inputs: Inputs, candidates: Any, pairwise: bool) -> Any:
    """The scores by the op's formula; a candidate -1 scores 0 with no gradient."""
    assert op.formula is not None  # callers have checked it
    mu1, uncertainty1, mu2, uncertainty2, shared = inputs.arrays
    uncertainty1, uncertainty2 = (x[:, None] if x.ndim == 1 else x for x in (uncertainty1, uncertainty2))
    if candidates is not None:
        rows = candidates.clamp(min=0)
        scores = op.formula(mu1[:, None], uncertainty1[:, None], mu2[rows], uncertainty2[rows], shared)
        return scores * (candidates >= 0)
    if pairwise:
        mu1, uncertainty1 = mu1[:, None], uncertainty1[:, None]
    return op.formula(mu1, uncertainty1, mu2, uncertainty2, shared)


# -- draws -------------------------------------------------------------------------------------------------------------


def _sample(torch: ModuleType, op: SampleOp, traced: bool) -> Any:
    """The autograd function of an op's draws."""
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
    """The autograd function of the gradients of an op's draws."""
    operator = getattr(torch.ops.peaccel, f"{op.name}_bwd")

    class Backward(_undifferentiable(torch, op, "once, not twice")):  # type: ignore[misc]
        @staticmethod
        def forward(*args: Any) -> Any:
            return operator(*args)

        @staticmethod
        def vmap(info: Any, in_dims: Any, *args: Any) -> Any:
            return _loop(Backward, info, in_dims, args), (0, 0)

    return Backward


# -- what they share ---------------------------------------------------------------------------------------------------


def transformed(torch: Any) -> bool:
    """Whether a transform of torch.func, or forward mode, is under way."""
    try:  # private names; where torch lacks them, the autograd function is always called
        forward_mode = torch.autograd.forward_ad._current_level >= 0
        return forward_mode or torch._C._functorch.peek_interpreter_stack() is not None
    except AttributeError:
        return True


def _undifferentiable(torch: ModuleType, op: PairOp | SampleOp, limit: str) -> Any:
    """The base of autograd functions whose derivatives raise an error."""

    class Undifferentiable(torch.autograd.Function):  # type: ignore[name-defined,misc]
        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
            pass

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any:
            raise RuntimeError(f"peaccel::{op.name} can be differentiated {limit}")

        jvp = backward

    return Undifferentiable


def _save(ctx: Any, inputs: Sequence[Any], numbers: int, traced: bool) -> None:
    """Saves the inputs in the context; the last ``numbers`` of them are not tensors."""
    tensors = inputs[: len(inputs) - numbers]
    ctx.save_for_backward(*tensors)
    if not traced:
        ctx.save_for_forward(*tensors)
    ctx.numbers = inputs[len(tensors) :]


def _forward_mode(jvp: Callable[..., Any]) -> Any:
    """The jvp of an autograd function, from ``jvp(saved, numbers, *tangents)``.

    Forward mode is turned on in it, so that it can be differentiated in forward mode itself: torch turns it off in a
    jvp, and the tangents of an outer level would be lost silently.
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
    """x with its batch dimension (if any) in front of ``rank`` others."""
    if dim is None:
        return x
    x = x.movedim(dim, 0)
    return x.reshape(x.shape[0], *(1,) * (rank + 1 - x.ndim), *x.shape[1:])


def _loop(function: Any, info: Any, in_dims: Any, args: Any) -> tuple[Any, ...]:
    """The function of each member of a batch, one after the other; outputs are stacked along a new first dimension."""
    torch: Any = sys.modules["torch"]
    calls = []
    for i in range(info.batch_size):
        member = (x if d is None else x.select(d, i) for x, d in zip(args, in_dims, strict=True))
        out = function.apply(*member)
        calls.append(out if isinstance(out, tuple) else (out,))
    return tuple(torch.stack(outs) for outs in zip(*calls, strict=True))
