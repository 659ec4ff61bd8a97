"""Forward and backward of every loss in a graph of CUDA: `pytest -m cuda`, with `--noconftest` where only torch, numpy
and pytest are. `tests/losses/test_losses_on_gpu.py` shows without a GPU that no loss waits for one.
"""

import pytest
import torch
from own_loss_cases import CASES, CLASSES, DIM, KINDS

import peaccel as pe
from peaccel import losses
from peaccel.losses import _batch

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU here"),
]

N = 24
DRAWN = ("VMFLoss-point", "ProxyNCAPP-vmf", "HIB-diagonal", "MarginLoss-point")
COMPILED = ("NegativeMLS-isotropic", "HIB-diagonal", "MultiSimilarity-point", "Triplet-point", "ArcFace-point")
NAMED = {f"{make.__name__}-{kind}": (make, settings, kind) for make, settings, kind in CASES}
NAMED["NegativeMLS-isotropic"] = (losses.NegativeMLS, {}, "isotropic")
NAMED["BayesianTriplet-moments"] = (losses.BayesianTriplet, {"match_moments": True}, "vmf")
NAMED["BayesianTriplet-vmf"] = (losses.BayesianTriplet, {}, "vmf")


def batch(seed):
    """Means, spreads and labels, made on the host; how many are of a class differs from batch to batch."""
    source = torch.Generator().manual_seed(seed)
    mu = torch.nn.functional.normalize(torch.randn(N, DIM, generator=source))
    labels = torch.randint(CLASSES, (N,), generator=source)
    labels[:4] = torch.tensor([0, 0, 1, 1])
    return mu.cuda(), (torch.rand(N, generator=source) + 0.5).cuda(), labels.cuda()


def made(name):
    make, settings, kind = NAMED[name]
    torch.manual_seed(0)
    loss = make(**settings).cuda()
    return loss, KINDS[kind], [x for x in loss.parameters() if x.requires_grad]


class Step:
    """A loss and its gradients for a batch that lies in one place, as a graph needs it."""

    def __init__(self, name, seed):
        self.loss, self.kind, self.learned = made(name)
        self.mu, self.spread, self.labels = batch(0)
        self.leaves = [self.mu.requires_grad_(), self.spread.requires_grad_(), *self.learned]
        self.seed = seed

    def __call__(self):
        value = self.loss(self.kind(self.mu, self.spread), self.labels, seed=self.seed)
        return [value, *torch.autograd.grad(value, self.leaves, allow_unused=True)]

    def set(self, seed):
        with torch.no_grad():
            for kept, x in zip((self.mu, self.spread, self.labels), batch(seed), strict=True):
                kept.copy_(x)

    def captured(self):
        """The graph, and where its results will lie."""
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side), pytest.MonkeyPatch.context() as patch:
            patch.setattr(_batch, "may_look", lambda x: False)  # so that all kernels that are captured have run before
            for _ in range(2):
                self()
        torch.cuda.current_stream().wait_stream(side)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            found = self()
        return graph, found


def assert_same(found, want):
    for one, other in zip(found, want, strict=True):
        assert (one is None) == (other is None)
        if other is not None:
            assert other.isfinite().all()
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", NAMED)
def test_every_loss_is_captured_and_replayed_with_other_batches(name):
    step = Step(name, seed=3)
    graph, found = step.captured()
    values = []
    for seed in (1, 2, 1):
        step.set(seed)
        graph.replay()
        got = [None if x is None else x.clone() for x in found]
        assert_same(got, step())
        values.append(got[0].item())
    assert values[0] == pytest.approx(values[2], rel=1e-6) != values[1]


@pytest.mark.parametrize("name", COMPILED)
def test_compiled_with_reduced_overhead_as_graphs(name):
    torch._dynamo.reset()
    skips = torch._dynamo.utils.counters["inductor"]["cudagraph_skips"]
    step = Step(name, seed=3)

    def of(mu, spread, labels):
        return step.loss(step.kind(mu, spread), labels, seed=3)

    compiled = torch.compile(of, mode="reduce-overhead", fullgraph=True)
    for seed in (1, 2, 1, 2, 1):  # the first calls record, later ones replay
        step.set(seed)
        torch.compiler.cudagraph_mark_step_begin()
        value = compiled(step.mu, step.spread, step.labels)
        found = [value.clone(), *torch.autograd.grad(value, step.leaves, allow_unused=True)]
        assert_same([None if x is None else x.clone() for x in found], step())
    assert torch._dynamo.utils.counters["inductor"]["cudagraph_skips"] == skips


@pytest.mark.parametrize("name", ["NegativeMLS-isotropic", "ScoreNCE-point", "ArcFace-point"])
def test_a_captured_training_step_learns(name):
    loss, kind, learned = made(name)
    mu, spread, labels = (x.detach() for x in batch(0))
    leaves = [mu.requires_grad_(), spread.requires_grad_(), *learned]
    optimizer = torch.optim.Adam(leaves, lr=0.01, capturable=True)

    def step():
        optimizer.zero_grad()
        value = loss(kind(mu, spread.clamp(min=0.1)), labels)
        value.backward()
        optimizer.step()
        return value

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        before = step().item()
        step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        value = step()
    for _ in range(20):
        graph.replay()
    assert value.item() < before - 1e-3


def test_labels_without_pairs_are_refused_where_they_may_be_looked_at():
    loss = losses.NegativeMLS()
    mu, spread, labels = batch(0)
    with pytest.raises(ValueError, match=r"^NegativeMLS: labels are all different"):
        loss(pe.Normal(mu, spread), torch.arange(N, device="cuda"))
    with pytest.raises(ValueError, match=r"^Triplet: labels are all equal"):
        losses.Triplet()(pe.Point(mu), torch.zeros_like(labels))


@pytest.mark.parametrize("name", DRAWN)
def test_replays_draw_anew(name):  # last: a capture that fails leaves torch's generator unusable
    step = Step(name, seed=None)
    graph, (value, *_) = step.captured()
    drawn = []
    for seed in (1, 1, 2):
        torch.cuda.manual_seed(seed)
        graph.replay()
        drawn.append(value.item())
    graph.replay()
    assert drawn[0] == drawn[1] != drawn[2] != value.item()
