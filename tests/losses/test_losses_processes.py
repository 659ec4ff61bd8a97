"""Properties of all losses over the pairs of a batch, in one process and in two that hold half of the batch each."""

import pytest
import torch
from loss_cases import CASES as OF_ALL
from loss_cases import DIM, KINDS
from torch import distributed as dist
from torch import multiprocessing

import peaccel as pe
from peaccel.losses import NegativeMLS, ProxyAnchor
from peaccel.losses._between import PairLoss
from peaccel.losses.base import NotFiniteError

# ProxyAnchor is tested with the other losses over proxies, tests/losses/test_proxies.py.
CASES = [case for case in OF_ALL if case[0].across and case[0] is not ProxyAnchor]
IDS = [f"{make.__name__}-{kind}" for make, _, kind in CASES]
DRAWN = {"DrawnHIB-isotropic", "HIB-diagonal", "MarginLoss-point"}
each_case = pytest.mark.parametrize("case", CASES, ids=IDS)
of_all = pytest.mark.parametrize("case", OF_ALL, ids=[f"{make.__name__}-{kind}" for make, _, kind in OF_ALL])


def distribution(kind, mu, extra):
    if kind == "vmf":
        return pe.VonMisesFisher(torch.nn.functional.normalize(mu), extra[:, 0])
    if kind == "point":
        return pe.Point(mu)
    return pe.Normal(mu, extra[:, 0] if kind == "isotropic" else extra)


def batch(kind, labels, dtype=torch.float64, seed=0):
    """Items around the centres of their classes, and their leaves."""
    rng = torch.Generator().manual_seed(seed)
    centres = torch.randn(int(labels.max()) + 1, DIM, generator=rng, dtype=dtype)
    mu = centres[labels] + 0.8 * torch.randn(len(labels), DIM, generator=rng, dtype=dtype)
    extra = (torch.rand(len(labels), DIM, generator=rng, dtype=dtype) + 0.1) * (20 if kind == "vmf" else 1)
    leaves = [mu.requires_grad_(), extra.requires_grad_()]
    return leaves, distribution(kind, *leaves)


LABELS = torch.arange(4).repeat(4)


def shared_gradients(case, rows):
    """The loss of these rows of a batch, made by shared weights, and the gradients by these and its own parameters."""
    make, settings, kind = case
    torch.manual_seed(1)
    inputs = torch.randn(len(LABELS), 5, dtype=torch.float64)[rows]
    weights = [torch.randn(5, DIM, dtype=torch.float64, requires_grad=True) for _ in range(2)]
    loss = make(**settings)
    d = distribution(kind, inputs @ weights[0], (inputs @ weights[1]).exp())
    value = loss(d, LABELS[rows], seed=7)
    if isinstance(loss, PairLoss):  # each process has its part of a second set, too
        value = value + loss(d, LABELS[rows], seed=7, reference=(d, LABELS[rows]))
    value.backward()
    leaves = (*weights, *loss.parameters())
    return value.item(), [torch.zeros_like(x) if x.grad is None else x.grad for x in leaves]


def half_a_batch(rank, folder, cases):
    """One of two processes."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"file://{folder}/meeting", rank=rank, world_size=2)
    results = []
    for case in cases:
        value, gradients = shared_gradients(case, slice(8 * rank, 8 * rank + 8))
        for x in gradients:
            dist.all_reduce(x)
        results.append((value, [x / 2 for x in gradients]))
    torch.save(results, f"{folder}/{rank}")
    dist.destroy_process_group()


def test_two_processes_have_the_loss_and_the_mean_gradients_of_one(tmp_path):
    multiprocessing.spawn(half_a_batch, (tmp_path, CASES), nprocs=2)
    for rank in (0, 1):
        for case, name, (value, gradients) in zip(CASES, IDS, torch.load(tmp_path / str(rank)), strict=True):
            expected, own = shared_gradients(case, slice(None))
            assert value == pytest.approx(expected, rel=1e-6), name
            for x, y in zip(gradients, own, strict=True):
                torch.testing.assert_close(x, y, rtol=1e-6, atol=1e-9 + 1e-6 * float(y.abs().max()), msg=name)


def uneven_batches(rank, folder):
    """One of two processes, with 8 and 4 items, or with equal batches beside references of 8 and 4."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"file://{folder}/meeting", rank=rank, world_size=2)
    _, d = batch("diagonal", LABELS)
    few, all_, said = slice((8, 4)[rank]), slice(8), []
    for part, reference in ((few, None), (all_, (d[few], LABELS[few]))):
        with pytest.raises(ValueError) as raised:
            NegativeMLS()(d[part], LABELS[part], reference=reference)
        said.append(str(raised.value))
    torch.save(said, f"{folder}/{rank}")
    dist.destroy_process_group()


def test_batches_of_different_lengths_are_refused_by_every_process(tmp_path):
    multiprocessing.spawn(uneven_batches, (tmp_path,), nprocs=2)
    for rank in (0, 1):
        assert torch.load(tmp_path / str(rank)) == [
            f"NegativeMLS: {name} of the processes have [8, 4] items, expected as many of each"
            for name in ("d", "reference")
        ]


@pytest.mark.parametrize("case", [CASES[i] for i, name in enumerate(IDS) if name not in DRAWN])
def test_the_order_of_the_batch_does_not_matter(case):
    make, settings, kind = case
    _, d = batch(kind, LABELS)
    order = torch.randperm(len(LABELS), generator=torch.Generator().manual_seed(0))
    loss = make(**settings)
    torch.testing.assert_close(loss(d[order], LABELS[order]), loss(d, LABELS), rtol=1e-12, atol=0)


@each_case
def test_draws_are_those_of_the_seed(case):
    make, settings, kind = case
    _, d = batch(kind, torch.arange(8).repeat(4))
    loss, drawn = make(**settings), f"{make.__name__}-{kind}" in DRAWN

    def value(seed):
        return loss(d, torch.arange(8).repeat(4), seed).item()

    assert value(1) == value(1)
    assert (len({value(seed) for seed in range(5)}) > 1) == drawn
    assert (len({value(None) for _ in range(5)}) > 1) == drawn
    torch.manual_seed(0)
    first = value(None)
    torch.manual_seed(0)
    assert value(None) == first


@of_all
def test_a_batch_without_items_is_refused_by_name(case):
    make, settings, kind = case
    d, labels, none = of_kind(kind, torch.float64), torch.tensor([0, 0, 1, 1]), torch.arange(0)
    loss = make(**settings)
    with pytest.raises(ValueError, match=f"^{make.__name__}: d has no items, expected at least 1$"):
        loss(d[:0], none)
    if isinstance(loss, PairLoss):
        with pytest.raises(ValueError, match=f"^{make.__name__}: reference has no items, expected at least 1$"):
            loss(d, labels, reference=(d[:0], none))


@of_all
def test_float64_gives_float64_and_float32_float32(case):
    make, settings, kind = case
    for dtype in (torch.float32, torch.float64):
        assert make(**settings)(of_kind(kind, dtype), torch.tensor([0, 0, 1, 1]), 1).dtype == dtype


@of_all
def test_what_makes_a_loss_nan_is_said(case):
    """On the CPU alone: elsewhere who looks waits."""
    make, settings, kind = case
    d, labels, loss = of_kind(kind, torch.float32), torch.tensor([0, 0, 1, 1]), make(**settings)
    references = [None, (d, labels)] if isinstance(loss, PairLoss) else [None]
    for number, name in enumerate(d._names):
        wrong = [x.clone() for x in d.arrays]
        wrong[number][2] = float("nan")
        for reference in references:
            further = {} if reference is None else {"reference": reference}
            try:  # a loss that has no need of the number is right without it
                assert loss(type(d)(*wrong), labels, 1, **further).isfinite()
            except NotFiniteError as error:
                what = f"{type(d).__name__}: {name} is not finite in row 2"
                assert str(error) == f"{make.__name__}: the loss is nan: {what}"
        if name != "mu":
            negative = type(d)(d.mu, d.arrays[number].log() - 9)
            said = f"{type(d).__name__}: {name} is negative in row 0"
            said += ": a variance is expected, not its logarithm" if name == "var" else ""
            for first, second in [(negative, None)] + [(d, (negative, labels))] * isinstance(loss, PairLoss):
                with pytest.raises(ValueError, match=f"^{said}$"):
                    loss(first, labels, 1, **({} if second is None else {"reference": second}))
    if kind in ("vmf", "scaled"):
        with pytest.raises(ValueError, match=r"mu in row 0 has length 5"):
            loss(type(d)(5 * d.mu, d.arrays[1]), labels, 1)


def of_kind(kind, dtype):
    """Four items of any of the kinds that losses take."""
    mu = torch.nn.functional.normalize(torch.randn(4, DIM, dtype=dtype, generator=torch.Generator().manual_seed(0)))
    return KINDS[kind](mu, torch.tensor([9.0, 5.0, 7.0, 8.0], dtype=dtype))


@each_case
def test_autocast_and_halves_give_the_value_of_float32(case):
    make, settings, kind = case
    _, d = batch(kind, LABELS, torch.float32)
    rounded, loss = d.to(torch.bfloat16), make(**settings)
    with torch.autocast("cpu", torch.bfloat16):
        value = loss(rounded, LABELS, 1)
    assert value.dtype == torch.float32
    assert value.item() == loss(rounded.to(torch.float32), LABELS, 1).item()
    assert value.item() == pytest.approx(loss(d.to(torch.float64), LABELS, 1).item(), rel=0.2, abs=0.1)


@each_case
@pytest.mark.parametrize("extra", [1e-10, 1.0, 1e6])
@pytest.mark.parametrize("rows", ["equal", "opposite", "near", "apart"])
def test_hard_inputs_have_finite_gradients(case, rows, extra):
    make, settings, kind = case
    extra = 0.0 if kind == "vmf" and extra < 1 else extra
    for dtype in (torch.float32, torch.float64):
        e = torch.eye(DIM, dtype=dtype)
        apart = torch.stack([e[0], -e[0], e[1], e[0] + e[1]])
        opposite = torch.stack([e[0], -e[0], e[0], -e[0]])
        mu = {"equal": e[:1].repeat(4, 1), "opposite": opposite, "near": e[0] + 1e-6 * apart, "apart": 100 * apart}
        leaves = [mu[rows].requires_grad_(), torch.full((4, DIM), extra, dtype=dtype, requires_grad=True)]
        loss = make(**settings)
        value = loss(distribution(kind, *leaves), torch.tensor([0, 0, 1, 1]), 1)
        value.backward()
        assert value.isfinite()
        assert all(x.grad is None or x.grad.isfinite().all() for x in (*leaves, *loss.parameters()))


@each_case
def test_what_is_missing_is_said(case):
    make, settings, kind = case
    _, d = batch(kind, torch.arange(4))
    loss = make(**settings)
    with pytest.raises(ValueError, match=f"^{make.__name__}: labels are all different, expected at least one pair"):
        loss(d, torch.arange(4))
    with pytest.raises(ValueError, match=rf"^{make.__name__}: labels are .*, expected int64 of shape \(4,\)"):
        loss(d, torch.zeros(3, dtype=torch.int64))
    if not issubclass(make, NegativeMLS):
        with pytest.raises(ValueError, match=f"^{make.__name__}: labels are all equal, expected at least two classes"):
            loss(d, torch.zeros(4, dtype=torch.int64))


@each_case
def test_an_item_alone_in_its_class_is_taken(case):
    make, settings, kind = case
    labels = torch.tensor([0, 1, 0, 2, 1, 0])
    leaves, d = batch(kind, labels)
    value = make(**settings)(d, labels, 1)
    value.backward()
    assert value.isfinite() and leaves[0].grad.isfinite().all()
