"""A checkpoint holds all that a run needs to go on."""

import torch

from peaccel.train.checkpoint import Checkpointer, TrainingState


def test_the_scale_of_gradients_in_float16_goes_on(tmp_path):
    """On a GPU: a scale that began anew at 65536 would overflow and skip steps."""
    module = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(module.parameters(), 0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    scaler.scale(module(torch.ones(1, 2)).sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    at = TrainingState("pfe", 0, epoch=1)
    Checkpointer(tmp_path, module, writes=True).write(at, optimizer, None, scaler)

    resumed, fresh = Checkpointer(tmp_path, module, writes=True), torch.amp.GradScaler("cpu")
    assert resumed.resume(TrainingState("pfe", 0)) == at
    resumed.restore(optimizer, fresh)
    assert fresh.state_dict() == scaler.state_dict() and fresh.get_scale() == 1024
