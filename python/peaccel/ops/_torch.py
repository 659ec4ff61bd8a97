"""The torch side of all records: the only user of torch.library.

Operators with their schemas and fakes derive from the records of `_op`; the autograd functions around them are made in
`_autograd`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

from peaccel.ops import _autograd, _cuda
from peaccel.ops._array import FLOATING, as_numpy, dtype_name
from peaccel.ops._op import Op, PairOp, SampleOp

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
        for name in (*FLOATING, "int64"):  # else those that torch.compile is the first to meet are compiled for twice
            dtype_name(torch.empty(0, dtype=getattr(torch, name)))
        self._register_rankings({op.name: op for op in records if isinstance(op, PairOp)})
        self.eager, self.traced = (_autograd.functions(torch, records, traced=traced) for traced in (False, True))

    # -- calls ---------------------------------------------------------------------------------------------------------

    def elementwise(self, op: Op, order: Any, x: Any) -> Any:
        if getattr(order, "requires_grad", False):
            raise ValueError(f"{op.name}: the order must not require grad: derivatives exist in x only")
        if isinstance(order, float):  # a fill, which waits for nothing
            order = self.torch.full((), order, dtype=self.torch.float64, device=x.device)
        order = self.torch.as_tensor(order, dtype=self.torch.float64, device=x.device)
        return self._call(op, order, x)

    def scores(self, op: PairOp, inputs: Sequence[Any], candidates: Any, pairwise: bool) -> Any:
        # Tensors, then numbers: the seed (if any) goes before pairwise, n after it.
        args = *inputs[:5], candidates, *inputs[5:6], pairwise, *inputs[6:]
        if op.keeps and self._tracked(args) and self._reverse_mode_alone():
            functions = self.traced if self.torch.compiler.is_compiling() else self.eager
            return functions[f"{op.name}_kept"].apply(*args)[0]
        return self._call(op, *args)

    def rerank(self, op: PairOp, inputs: Sequence[Any], candidates: Any, k: int) -> Any:
        return self._operator("rerank")(op.name, *_items(inputs), candidates, k)

    def search(self, op: PairOp, inputs: Sequence[Any], packed: Sequence[Any] | None, k: int, prune: str) -> Any:
        panels = [self.torch.from_numpy(x) for x in packed or ()]
        return self._operator("search")(op.name, *_items(inputs), panels, k, prune)

    def sample(self, op: SampleOp, *args: Any) -> Any:
        return self._call(op, *args)

    def _operator(self, name: str) -> Any:
        return getattr(self.torch.ops.peaccel, name)

    def _call(self, op: Op | PairOp | SampleOp, *args: Any) -> Any:
        """The autograd function where something may differentiate or batch, else the operator: half the overhead."""
        torch, functions = self.torch, self.eager
        wanted = self._tracked(args)
        if torch.compiler.is_compiling():
            functions = self.traced
            self._require_traceable(op, args, wanted)
        elif not wanted:
            wanted = self.transformed()
        return (functions[op.name].apply if wanted else self._operator(op.name))(*args)

    def differentiates(self, args: Sequence[Any]) -> bool:
        """Whether derivatives of what is computed of these may be asked for."""
        return self.torch.compiler.is_compiling() or self._tracked(args) or self.transformed()

    def _tracked(self, args: Sequence[Any]) -> bool:
        """Whether autograd follows one of these."""
        return self.torch.is_grad_enabled() and any(getattr(x, "requires_grad", False) for x in args)

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
        """Refuses what torch.compile would trace past: tangents, and batches of what is differentiated further out."""
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

    def _register_elementwise(self, op: Op) -> None:
        torch = self.torch

        def cpu(order: Any, x: Any) -> Any:
            return torch.from_numpy(op.numpy(as_numpy(order), as_numpy(x)))

        def cuda(order: Any, x: Any) -> Any:
            return _cuda.elementwise(op, order, x)

        def fake(order: Any, x: Any) -> Any:
            return x.new_empty(torch.broadcast_shapes(order.shape, x.shape))

        self._define(op.name, "Tensor order, Tensor x", "Tensor", cpu, cuda, fake)

    def _register_pair(self, op: PairOp) -> None:
        torch = self.torch
        arguments = f"Tensor mu1, Tensor {op.extra}1, Tensor mu2, Tensor {op.extra}2, Tensor {op.shared}, " + (
            "Tensor? candidates, Tensor seed, bool pairwise, int n" if op.draws else "Tensor? candidates, bool pairwise"
        )

        def parts(args: Any) -> Any:
            """Inputs, candidates and pairwise, as the record takes them."""
            return ((*args[:5], args[6], args[8]), args[5], args[7]) if op.draws else (args[:5], args[5], args[6])

        def cpu(*args: Any) -> Any:
            return torch.from_numpy(op.numpy_scores(*parts(args)))

        def cuda(*args: Any) -> Any:
            return _cuda.score(op, *parts(args))

        def fake(*args: Any) -> Any:
            return args[0].new_empty(_autograd.scores_shape(*parts(args)))

        def cpu_kept(*args: Any) -> Any:
            inputs, candidates, pairwise = parts(args)
            kept = inputs[0].new_empty(_autograd.scores_shape(inputs, candidates, pairwise))
            return torch.from_numpy(op.numpy_scores(inputs, candidates, pairwise, kept=kept.numpy())), kept

        def cuda_kept(*args: Any) -> Any:  # finds it again
            return cuda(*args), args[0].new_empty(0)

        def fake_kept(*args: Any) -> Any:
            scores = fake(*args)
            return scores, scores.new_empty(scores.shape if scores.device.type == "cpu" else 0)

        def cpu_backward(weights: Any, *args: Any, kept: Any = None) -> Any:
            inputs, candidates, pairwise = parts(args)
            found = op.numpy_backward(weights, inputs, candidates, pairwise, args[-1], kept=kept)
            return tuple(map(torch.from_numpy, found))

        def cpu_kept_backward(weights: Any, kept: Any, *args: Any) -> Any:
            return cpu_backward(weights, *args, kept=kept)

        def cuda_backward(weights: Any, *args: Any) -> Any:
            inputs, candidates, pairwise = parts(args)
            return tuple(_cuda.score_backward(op, weights, inputs, candidates, pairwise, args[-1]))

        def cuda_kept_backward(weights: Any, kept: Any, *args: Any) -> Any:
            return cuda_backward(weights, *args)

        def fake_backward(weights: Any, *args: Any) -> Any:
            return tuple(x.new_empty(x.shape) for x in args[:5])

        def fake_kept_backward(weights: Any, kept: Any, *args: Any) -> Any:
            return fake_backward(weights, *args)

        self._define(op.name, arguments, "Tensor", cpu, cuda, fake)
        returns = "(Tensor, Tensor, Tensor, Tensor, Tensor)"
        backwards = cpu_backward, cuda_backward, fake_backward
        self._define(f"{op.name}_bwd", f"Tensor weights, {arguments}, int wanted", returns, *backwards)
        if op.keeps:
            self._define(f"{op.name}_kept", arguments, "(Tensor, Tensor)", cpu_kept, cuda_kept, fake_kept)
            given = f"Tensor weights, Tensor kept, {arguments}, int wanted"
            by_kept = cpu_kept_backward, cuda_kept_backward, fake_kept_backward
            self._define(f"{op.name}_kept_bwd", given, returns, *by_kept)

    def _register_rankings(self, ops: dict[str, PairOp]) -> None:
        """`rerank` and `search` by any op, by name: they have no derivatives, and one schema for all."""
        torch = self.torch

        def given(items: Any, seed: Any, n: int) -> Any:
            """An op's inputs."""
            return items if seed is None else (*items, seed, n)

        def cpu_rerank(name: str, items: Any, seed: Any, n: int, candidates: Any, k: int) -> Any:
            best = ops[name].numpy_rerank(given(items, seed, n), as_numpy(candidates), k)
            return tuple(map(torch.from_numpy, best))

        def cuda_rerank(name: str, items: Any, seed: Any, n: int, candidates: Any, k: int) -> Any:
            return _cuda.rerank(ops[name], given(items, seed, n), candidates, k)

        def cpu_search(name: str, items: Any, seed: Any, n: int, packed: Any, k: int, prune: str) -> Any:
            best = ops[name].numpy_search(given(items, seed, n), [as_numpy(x) for x in packed] or None, k, prune)
            return tuple(map(torch.from_numpy, best[:2]))

        def cuda_search(name: str, items: Any, seed: Any, n: int, packed: Any, k: int, prune: str) -> Any:
            return _cuda.search(ops[name], given(items, seed, n), k, prune)

        def fake(name: str, items: Any, seed: Any, n: int, others: Any, k: Any, prune: str = "") -> Any:
            shape = items[0].shape[0], k
            return items[0].new_empty(shape), items[0].new_empty(shape, dtype=torch.int64)

        items, returns = "str name, Tensor[] items, Tensor? seed, int n", "(Tensor scores, Tensor ids)"
        self._define("rerank", f"{items}, Tensor candidates, SymInt k", returns, cpu_rerank, cuda_rerank, fake)
        self._define("search", f"{items}, Tensor[] packed, SymInt k, str prune", returns, cpu_search, cuda_search, fake)

    def _register_sample(self, op: SampleOp) -> None:
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


def _items(inputs: Sequence[Any]) -> tuple[Any, Any, int]:
    """An op's five arrays without their gradients; the seed and the number of draws, or none."""
    seed, n = inputs[5:] or (None, 0)
    return [x.detach() for x in inputs[:5]], seed, n
