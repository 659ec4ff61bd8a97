"""torch's operators, with schemas and fakes, for all records: the only user of torch.library for kernels.

`_autograd` makes the autograd functions around them. An operator computes by `_cpu` or by `_cuda`, which have the same
functions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from types import ModuleType
from typing import Any

from peaccel._utils.arrays import FLOATING, dtype_name
from peaccel.ops import _autograd, _cpu, _cuda
from peaccel.ops._arguments import RANKED, Signature, pack, pack_ranked, unpack_ranked
from peaccel.ops._definitions import Inputs, Op, PairOp, SampleOp, scores_shape

__all__ = ["Torch"]


class Torch:
    """Registers operators and makes their autograd functions."""

    def __init__(self, torch: ModuleType, records: Sequence[Op | PairOp | SampleOp]) -> None:
        self.torch: Any = torch
        self.library = torch.library.Library("peaccel", "DEF")
        for record in records:
            register: Any = {
                Op: self._register_elementwise,
                PairOp: self._register_pair,
                SampleOp: self._register_sample,
            }
            register[type(record)](record)
        for name in (*FLOATING, "int64"):  # else torch.compile compiles twice for a dtype that no call has used before
            dtype_name(torch.empty(0, dtype=getattr(torch, name)))
        self._register_rankings({op.name: op for op in records if isinstance(op, PairOp)})
        self.eager, self.traced = (_autograd.functions(torch, records, traced=traced) for traced in (False, True))

    # -- calls ---------------------------------------------------------------------------------------------------------

    def elementwise(self, op: Op, *arguments: Any) -> Any:
        if not op.has_order:
            return self._call(op, *arguments)
        order, x = arguments
        if isinstance(order, self.torch.Tensor) and order.requires_grad:
            raise ValueError(f"{op.name}: the order must not require grad: derivatives exist in x only")
        if isinstance(order, (int, float)):  # filling a tensor does not wait for a GPU
            order = self.torch.full((), order, dtype=self.torch.float64, device=x.device)
        order = self.torch.as_tensor(order, dtype=self.torch.float64, device=x.device)
        return self._call(op, order, x)

    def score(self, op: PairOp, inputs: Inputs, candidates: Any, pairwise: bool) -> Any:
        arguments = pack(inputs, candidates, pairwise)
        of_one_set = pairwise and op.symmetric and inputs.of_one_set
        if (op.saves or of_one_set) and self._tracked(inputs.arrays) and self._reverse_mode_alone():
            passed = (inputs.mu1, inputs.uncertainty1, inputs.shared) if of_one_set else arguments
            name = f"{op.name}_of_one_set" if of_one_set else f"{op.name}_saving"
            if self.torch.compiler.is_compiling():
                return self.traced[name].apply(*self._apart(passed))[0]
            return self.eager[name].apply(*passed)[0]
        return self._call(op, *arguments)

    def rerank(self, op: PairOp, inputs: Inputs, candidates: Any, k: int) -> Any:
        return self._operator("rerank")(*pack_ranked(op, inputs), candidates, k)

    def search(self, op: PairOp, inputs: Inputs, k: int, prune: str, packed: Sequence[Any] | None) -> Any:
        panels = [self.torch.as_tensor(x) for x in packed or ()]
        return self._operator("search")(*pack_ranked(op, inputs), panels, k, prune)

    def sample(self, op: SampleOp, mu: Any, uncertainty: Any, seed: Any, n: int, first_row: int, stream: int) -> Any:
        return self._call(op, mu, uncertainty, seed, n, first_row, stream)

    def _operator(self, name: str) -> Any:
        return getattr(self.torch.ops.peaccel, name)

    def _call(self, op: Op | PairOp | SampleOp, *args: Any) -> Any:
        """Calls the autograd function if it may be differentiated or batched, else the operator: half the overhead."""
        torch, functions = self.torch, self.eager
        wanted = self._tracked(args)
        if torch.compiler.is_compiling():
            functions = self.traced
            self._require_traceable(op, args, wanted)
            args = self._apart(args)
        elif not wanted:
            wanted = self.transformed()
        return (functions[op.name].apply if wanted else self._operator(op.name))(*args)

    def _apart(self, args: Sequence[Any]) -> tuple[Any, ...]:
        """Views of tensors, since torch.compile refuses one tensor as two arguments of an autograd function."""
        return tuple(x.view_as(x) if isinstance(x, self.torch.Tensor) else x for x in args)

    def differentiates(self, arrays: Sequence[Any]) -> bool:
        """Whether what is computed from these arrays may be differentiated."""
        return self.torch.compiler.is_compiling() or self._tracked(arrays) or self.transformed()

    def _tracked(self, args: Sequence[Any]) -> bool:
        """Whether autograd tracks one of these arguments."""
        if self.torch.is_grad_enabled():
            for x in args:  # a generator costs more than what it saves in lines
                if getattr(x, "requires_grad", False):
                    return True
        return False

    def transformed(self) -> bool:
        """Whether a transform of torch.func, or forward mode, is under way."""
        return _autograd.transformed(self.torch)

    def _reverse_mode_alone(self) -> bool:
        """Whether neither a transform of torch.func nor forward mode is under way; in torch.compile too."""
        torch = self.torch
        if torch.compiler.is_compiling():
            forward_mode = torch.autograd.forward_ad._current_level >= 0
            return not (forward_mode or torch._C._are_functorch_transforms_active())
        return not self.transformed()

    def _require_traceable(self, op: Op | PairOp | SampleOp, args: Sequence[Any], wanted: bool) -> None:
        """Raises an error for what torch.compile would silently ignore: tangents, and batches of tensors that an outer
        transform differentiates."""
        torch, what = self.torch, None
        if torch.autograd.forward_ad._current_level >= 0:
            what = "forward mode (jvp)"
        elif not wanted and torch.is_grad_enabled() and torch._C._are_functorch_transforms_active():
            tensors = [x for x in args if isinstance(x, torch.Tensor)]
            if any(torch._C._functorch.is_batchedtensor(x) for x in tensors):
                what = "vmap outside torch.no_grad()"
        if what is not None:
            raise NotImplementedError(f"peaccel::{op.name}: torch.compile cannot trace {what}")

    # -- registration --------------------------------------------------------------------------------------------------

    def define(
        self,
        name: str,
        arguments: str,
        returns: str,
        compute: Callable[..., Any],
        fake: Callable[..., Any],
        keys: Sequence[str] = ("CompositeExplicitAutograd",),
    ) -> Any:
        """Registers an operator, computed by ``compute(*arguments)`` on the devices of these keys, or on every one."""
        self.library.define(f"{name}({arguments}) -> {returns}", tags=(self.torch.Tag.pt2_compliant_tag,))
        for key in keys:
            self.library.impl(name, compute, key)
        self.torch.library.register_fake(f"peaccel::{name}", fake, lib=self.library)
        return self._operator(name)

    def _define(
        self, name: str, arguments: str, returns: str, compute: Callable[..., Any], fake: Callable[..., Any]
    ) -> None:
        """Registers an operator, computed by ``compute(kernels, *arguments)``; ``kernels`` is `_cpu` or `_cuda`."""
        self.define(name, arguments, returns, partial(compute, _cpu), fake, ("CPU",))
        self.library.impl(name, partial(compute, _cuda), "CUDA")

    def _register_elementwise(self, op: Op) -> None:
        torch = self.torch

        def values(kernels: Any, *arguments: Any) -> Any:
            return kernels.elementwise(op, *arguments)

        def fake(*arguments: Any) -> Any:
            *_, x = arguments
            return x.new_empty(torch.broadcast_shapes(*(argument.shape for argument in arguments)))

        self._define(op.name, "Tensor order, Tensor x" if op.has_order else "Tensor x", "Tensor", values, fake)

    def _register_pair(self, op: PairOp) -> None:
        signature = Signature(op)
        schema, unpack = signature.schema, signature.unpack

        def scores(kernels: Any, *arguments: Any) -> Any:
            return kernels.score(op, *unpack(arguments))

        def fake(*arguments: Any) -> Any:
            inputs, candidates, pairwise = unpack(arguments)
            return inputs.mu1.new_empty(scores_shape(inputs, candidates, pairwise))

        def saving(kernels: Any, *arguments: Any) -> Any:
            return kernels.score_saving(op, *unpack(arguments))

        def fake_saving(*arguments: Any) -> Any:
            scores = fake(*arguments)
            all_pairs = op.one_product and arguments[-1] and arguments[-2] is None
            return scores, scores.new_empty(scores.shape if scores.device.type == "cpu" or all_pairs else 0)

        def saving_backward(kernels: Any, weights: Any, saved: Any, *others: Any) -> Any:
            *arguments, wanted = others
            return tuple(kernels.score_backward(op, weights, *unpack(arguments), wanted, saved))

        def fake_saving_backward(weights: Any, saved: Any, *others: Any) -> Any:
            *arguments, _ = others
            inputs, _, _ = unpack(arguments)
            return tuple(x.new_empty(x.shape) for x in inputs.arrays)

        def backward(kernels: Any, weights: Any, *others: Any) -> Any:
            return saving_backward(kernels, weights, None, *others)

        def fake_backward(weights: Any, *others: Any) -> Any:
            return fake_saving_backward(weights, None, *others)

        self._define(op.name, schema, "Tensor", scores, fake)
        returns = "(Tensor, Tensor, Tensor, Tensor, Tensor)"
        self._define(f"{op.name}_bwd", f"Tensor weights, {schema}, int wanted", returns, backward, fake_backward)
        if op.saves:
            self._define(f"{op.name}_saving", schema, "(Tensor, Tensor)", saving, fake_saving)
            saved_schema = f"Tensor weights, Tensor saved, {schema}, int wanted"
            self._define(f"{op.name}_saving_bwd", saved_schema, returns, saving_backward, fake_saving_backward)

    def _register_rankings(self, ops: dict[str, PairOp]) -> None:
        """Registers `rerank` and `search`, which have no derivatives; one schema serves all ops, passed by name."""
        torch = self.torch

        def rerank(kernels: Any, name: str, *arguments: Any) -> Any:
            *inputs, candidates, k = arguments
            return kernels.rerank(ops[name], unpack_ranked(*inputs), candidates, k)

        def search(kernels: Any, name: str, *arguments: Any) -> Any:
            *inputs, packed, k, prune = arguments
            scores, ids, _ = kernels.search(ops[name], unpack_ranked(*inputs), k, prune, packed)
            return scores, ids

        def fake(name: str, items: Any, seed: Any, n: int, first_row: int, others: Any, k: Any, prune: str = "") -> Any:
            mu1 = unpack_ranked(items, seed, n, first_row).mu1
            shape = mu1.shape[0], k  # len would make the trace valid for this number of queries only
            return mu1.new_empty(shape), mu1.new_empty(shape, dtype=torch.int64)

        returns = "(Tensor scores, Tensor ids)"
        self._define("rerank", f"{RANKED}, Tensor candidates, SymInt k", returns, rerank, fake)
        self._define("search", f"{RANKED}, Tensor[] packed, SymInt k, str prune", returns, search, fake)

    def _register_sample(self, op: SampleOp) -> None:
        arguments = f"Tensor mu, Tensor {op.uncertainty}, Tensor seed, int n, int first_row, int stream"

        def draws(kernels: Any, mu: Any, uncertainty: Any, seed: Any, n: int, first_row: int, stream: int) -> Any:
            return kernels.sample(op, mu, uncertainty, seed, n, first_row, stream)

        def fake(mu: Any, uncertainty: Any, seed: Any, n: int, first_row: int, stream: int) -> Any:
            return mu.new_empty((n, *mu.shape))

        def backward(
            kernels: Any, weights: Any, mu: Any, uncertainty: Any, seed: Any, n: int, first_row: int, stream: int
        ) -> Any:
            return kernels.sample_backward(op, weights, mu, uncertainty, seed, first_row, stream)

        def fake_backward(weights: Any, mu: Any, uncertainty: Any, *others: Any) -> Any:
            return mu.new_empty(mu.shape), uncertainty.new_empty(uncertainty.shape)

        self._define(op.name, arguments, "Tensor", draws, fake)
        self._define(f"{op.name}_bwd", f"Tensor weights, {arguments}", "(Tensor, Tensor)", backward, fake_backward)
