"""Training by two processes is training by one on the same batches."""

import os
import socket
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import multiprocessing, nn

from peaccel import methods
from peaccel.methods.method import Schedule
from peaccel.train import Options, fit

CLASSES, WIDTH = 8, 6
LABELS = np.repeat(np.arange(CLASSES), 8)
# Each sees the whole batch otherwise: margins by class, pairs, proxies that pool the batch, triplets, draws by row, and
# captions among all images of the batch.
ROWS = ("cosface", "pfe", "proxy_anchor", "bayesian_triplet", "dul_cls", "llr_nce", "text_to_image")


def trained(name):
    """The weights after a short training, without batch normalisation in the backbone."""
    method = methods.load(name)
    known = method.settings.__dataclass_fields__
    short = Schedule(epochs=2, lr=1e-2, classes_per_batch=4, images_per_class=4, optimizer="sgd", momentum=0.0)
    schedules = {key: short for key, f in known.items() if isinstance(f.default, Schedule)}
    # Heads without batch normalisation, whose statistics are those of a process's own part.
    changes = {key: x for key, x in {"dim": 4, "head": "mlp", "kind": "pfe"}.items() if key in known}
    torch.manual_seed(0)
    items = torch.randn(len(LABELS), WIDTH) + torch.randn(CLASSES, WIDTH)[LABELS]
    backbone = nn.Linear(WIDTH, 8)
    if name == "text_to_image":
        items, backbone = (items, items + torch.randn(items.shape)), nn.Identity()
    training = method.build(
        backbone, getattr(backbone, "out_features", WIDTH), CLASSES, method.settings(**changes, **schedules)
    )
    fit(training, items, LABELS, Options(seed=2), name=name)
    both = nn.ModuleDict({"model": training.model, "criterion": training.criterion})
    return {key: x.clone() for key, x in both.state_dict().items()}


def process(rank, port, folder):
    os.environ |= {
        "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "ACCELERATE_USE_CPU": "true",
    }  # fmt: skip
    torch.set_num_threads(1)
    torch.save({name: trained(name) for name in ROWS}, Path(folder) / f"{rank}.pt")
    torch.distributed.destroy_process_group()


@pytest.fixture(scope="module")
def by_two(tmp_path_factory):
    folder = tmp_path_factory.mktemp("processes")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    multiprocessing.spawn(process, (port, str(folder)), nprocs=2)
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(2)]


@pytest.mark.parametrize("name", ROWS)
def test_two_processes_train_as_one(by_two, name):
    one = trained(name)
    for other in by_two:
        assert one.keys() == other[name].keys()
        for key, x in one.items():
            assert torch.allclose(x, other[name][key], rtol=1e-5, atol=1e-6), key
    assert all(torch.equal(by_two[0][name][key], by_two[1][name][key]) for key in one)
