"""On a GPU no loss waits: what it computes has shapes that do not depend on labels, and can be captured in a graph.

Without a GPU two walks of all losses show that. Fake tensors on "cuda" have no values, so that whoever asks for one
fails; they have no backward pass where torch sees no GPU. And on the CPU the form for GPUs gives what the other one
gives, while no operator is called whose shape depends on values.
"""

import pytest
import torch
from loss_cases import CASES, CLASSES, DIM, KINDS
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.functional import normalize
from torch.utils._pytree import tree_leaves
from waits import NothingIsSent, NothingWaits

import peaccel as pe
from peaccel import losses
from peaccel.losses import _batch
from peaccel.losses._between import PairLoss

EVERY = pytest.mark.parametrize(("make", "settings", "kind"), CASES, ids=[f"{x[0].__name__}-{x[2]}" for x in CASES])


@pytest.fixture
def captured(monkeypatch):
    """As if a graph was being captured, in which labels may not be looked at."""
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)


def on(device, module):
    """The module with parameters that have no values."""
    for part in module.modules():
        for kept in (part._parameters, part._buffers):
            for name, x in kept.items():
                if x is not None:
                    like = torch.empty(x.shape, dtype=x.dtype, device=device)
                    kept[name] = nn.Parameter(like, x.requires_grad) if isinstance(x, nn.Parameter) else like
    return module


@EVERY
@pytest.mark.parametrize("seed", [None, 3])
def test_no_loss_asks_a_gpu_for_a_value(captured, make, settings, kind, seed):
    pe.enable_torch()
    loss = make(**settings)
    with FakeTensorMode() as mode, NothingIsSent(), NothingWaits():
        mu = torch.empty(8, DIM, device="cuda", requires_grad=True)
        spread = torch.empty(8, device="cuda", requires_grad=True)
        labels = torch.empty(8, dtype=torch.int64, device="cuda")
        value = on("cuda", loss)(KINDS[kind](mu, spread), labels, seed=seed)
    assert mode is not None and value.is_cuda and value.shape == () and value.requires_grad


@EVERY
@pytest.mark.parametrize("mined", [0, 3, 4])
def test_no_loss_of_a_reference_asks_a_gpu_for_a_value(captured, make, settings, kind, mined):
    if not issubclass(make, PairLoss):
        return
    pe.enable_torch()
    loss = make(**settings)
    with FakeTensorMode(), NothingIsSent(), NothingWaits():
        sides = []
        for n in (8, 20):
            leaves = [torch.empty(shape, device="cuda", requires_grad=True) for shape in ((n, DIM), n)]
            sides.append((KINDS[kind](*leaves), torch.empty(n, dtype=torch.int64, device="cuda")))
        rows = [torch.empty(5, dtype=torch.int64, device="cuda") for _ in range(mined)] or None
        value = on("cuda", loss)(*sides[0], seed=3, reference=sides[1], mined=rows)
    assert value.is_cuda and value.shape == () and value.requires_grad


@pytest.mark.one_in(4)
@EVERY
def test_what_is_compiled_for_a_gpu_is_one_graph_without_tensors_on_the_host(make, settings, kind):
    """Of which torch would make no graph of CUDA."""
    pe.enable_torch()
    torch._dynamo.reset()
    loss, graphs = make(**settings), []

    def keep(graph, inputs):
        graphs.append(graph)
        return graph.forward

    with FakeTensorMode(allow_non_fake_inputs=True):
        on("cuda", loss)
        leaves = [torch.empty(shape, device="cuda", requires_grad=True) for shape in ((8, DIM), 8)]
        labels = torch.empty(8, dtype=torch.int64, device="cuda")
        compiled = torch.compile(lambda *x: loss(KINDS[kind](*x), labels), fullgraph=True, backend=keep)
        assert compiled(*leaves).shape == ()
    (graph,) = graphs
    kept = tree_leaves([node.meta["example_value"] for node in graph.graph.nodes if "example_value" in node.meta])
    devices = {x.device.type for x in kept if isinstance(x, torch.Tensor)}
    assert devices == {"cuda"}


BATCHES = {
    "usual": [0, 1, 0, 1, 1, 0, 1],
    "one alone": [0, 0, 0, 1, 0, 0, 0],
    "all of one class": [1] * 7,
    "none of one class": [*range(7)],
}


@EVERY
@pytest.mark.parametrize("batch", BATCHES)
def test_the_form_for_gpus_gives_the_same(monkeypatch, captured, make, settings, kind, batch):
    torch.manual_seed(0)
    loss = make(**settings).double()
    labels = torch.tensor(BATCHES[batch]) % (7 if loss.across and make is not losses.ProxyAnchor else CLASSES)
    mu = normalize(torch.randn(7, DIM, dtype=torch.float64))
    mu[4], mu[1] = mu[0], mu[3]  # ties, within a class and between two
    spread = torch.tensor([1.0, 4, 2, 9, 1, 0.5, 3], dtype=torch.float64)
    learned = [x for x in loss.parameters() if x.requires_grad]

    def found():
        leaves = [x.clone().requires_grad_() for x in (mu, spread)]
        value = loss(KINDS[kind](*leaves), labels, seed=3)
        return [value, *torch.autograd.grad(value, leaves + learned, allow_unused=True)]

    try:
        expected = found()
    except ValueError as error:
        assert "labels are all" in str(error)
        expected = None
    monkeypatch.setattr(_batch, "on_gpu", lambda x: True)
    for module in ("_between", "triplets"):
        monkeypatch.setattr(f"peaccel.losses.{module}.on_gpu", lambda x: True)
    for module in ("margin", "regression", "vmf"):  # which look at labels on the CPU, "where to look costs nothing"
        monkeypatch.setattr(f"peaccel.losses.{module}.require_labels", lambda *_: None)
    with NothingWaits():
        got = found()
    if expected is None:  # what is refused elsewhere may not leave a captured graph's parameters NaN
        assert all(x is None or x.isfinite().all() for x in got)
        return
    for one, other in zip(got, expected, strict=True):
        assert (one is None) == (other is None)
        if other is not None:
            torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("wrong", [-1, CLASSES])
@pytest.mark.parametrize(
    ("make", "settings", "kind"),
    [case for case in CASES if {"classes", "weight"} & case[1].keys()],
    ids=lambda x: getattr(x, "__name__", None),
)
def test_labels_of_no_class_are_named_where_they_may_be_looked_at(make, settings, kind, wrong):
    """An index beyond the classes would end a process on a GPU."""
    d = KINDS[kind](normalize(torch.randn(3, DIM)), torch.ones(3))
    low, high = min(wrong, 0), max(wrong, 1)
    message = rf"^{make.__name__}: labels are in {low} .. {high}, expected 0 .. {CLASSES - 1}$"
    with pytest.raises(ValueError, match=message):
        make(**settings)(d, torch.tensor([0, wrong, 1]))
