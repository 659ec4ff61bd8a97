"""Checkpoints: all that a run needs to go on as if it had not stopped, in files that no pickle reads."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from peaccel._utils.atomic_files import aside
from peaccel.train.resuming import check_unchanged

__all__ = ["Checkpointer", "TrainingState", "check_shapes", "load_tensors", "save_weights"]


@dataclass(frozen=True)
class TrainingState:
    """Where a run stands."""

    method: str
    seed: int
    stage: int = 0
    epoch: int = 0
    """Epochs of the stage that are done."""
    batch: int = 0
    """Batches of this epoch that are done."""
    step: int = 0
    """Optimisation steps of the stage that are done."""
    best: float | None = None
    """The best validation of the stage until now."""
    since: int = 0
    """Epochs since the best one."""
    warnings: tuple[str, ...] = ()
    """Signs that the run fails, a sentence each."""
    schedules: Mapping[str, Any] = field(default_factory=dict)
    """Settings of each stage's schedule by its name, which a run that goes on must have too; none of older versions."""

    @property
    def fresh(self) -> bool:
        """Whether the stage has not begun."""
        return self.epoch == self.batch == 0


class Checkpointer:
    """Keeps the state and the best weights of a run.

    Parameters
    ----------
    folder
        Receives state.safetensors and best.safetensors; None keeps the best weights in memory and no state.
    everything
        All modules of the run.
    writes
        Whether this process is the one that writes.
    """

    def __init__(self, folder: Path | None, everything: nn.Module, writes: bool) -> None:
        self.everything = everything
        self._folder = folder
        self._writes = writes and folder is not None
        self._best: dict[str, Tensor] | None = None
        self._held: dict[str, Tensor] = {}

    def resume(self, new: TrainingState) -> TrainingState:
        """Read the folder's state, if there is one.

        Parameters
        ----------
        new
            Where the run stands without a state: its method, seed and schedules are those that the state must have.

        Raises
        ------
        ValueError
            The file is no state, or of another method, seed or schedule, or other shapes.
        """
        if self._folder is None or not (path := self._folder / "state.safetensors").exists():
            return new
        values, held = load_tensors(path)
        try:
            found = TrainingState(**{**values, "warnings": tuple(values["warnings"])})
        except (KeyError, TypeError):
            raise ValueError(f"{path}: is not the state of a run") from None
        if (found.method, found.seed) != (new.method, new.seed):
            of = f"method {found.method!r}, seed {found.seed}"
            raise ValueError(f"{path}: is of {of}, expected method {new.method!r}, seed {new.seed}")
        check_unchanged(path, found.schedules, new.schedules)
        modules = {k[len("module.") :]: x for k, x in held.items() if k.startswith("module.")}
        check_shapes(path, self.everything, modules)
        self.everything.load_state_dict(modules)
        self._held = {k: x for k, x in held.items() if not k.startswith("module.")}
        if found.best is not None:
            self._best = load_tensors(self._folder / "best.safetensors")[1]
        return found

    def restore_random(self) -> None:
        """Put torch's random state where it was, if a run was resumed."""
        if "random" in self._held:
            torch.set_rng_state(self._held["random"])
        if "random.cuda" in self._held and torch.cuda.is_available():
            torch.cuda.set_rng_state(self._held["random.cuda"])

    def restore(
        self, optimizer: torch.optim.Optimizer, scaler: torch.amp.GradScaler | None
    ) -> NDArray[np.int64] | None:
        """Put the optimizer of a resumed stage where it was, and in float16 the scale of its gradients.

        Returns
        -------
        The rows of the batches of the epoch that had begun, if one had.
        """
        held, self._held = self._held, {}
        if not held:
            return None
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        state: dict[int, dict[str, Tensor]] = {}
        for key, x in held.items():
            if key.startswith("optimizer."):
                _, i, name = key.split(".", 2)
                p = parameters[int(i)]
                # A file keeps no strides, and the fused Adam of the CPU reads moments by those of their parameter.
                laid = torch.empty_like(p, dtype=x.dtype).copy_(x) if x.shape == p.shape else x
                state.setdefault(int(i), {})[name] = laid
        optimizer.load_state_dict({**optimizer.state_dict(), "state": state})
        if scaler is not None:  # a state of before scales were kept has none
            kept = {name: held.get(f"scaler.{name}", x) for name, x in scaler.state_dict().items()}
            scaler.load_state_dict({name: torch.as_tensor(x).item() for name, x in kept.items()})
        return held["rows"].numpy() if "rows" in held else None

    def write(
        self,
        at: TrainingState,
        optimizer: torch.optim.Optimizer | None,
        rows: NDArray[np.int64] | None,
        scaler: torch.amp.GradScaler | None,
    ) -> None:
        """Write the state; the one before stays until this one is whole.

        Parameters
        ----------
        at
            Where the run stands.
        optimizer
            Its moments are kept; its rates follow from the settings. None between stages.
        rows
            The batches of the epoch that has begun, or None between epochs.
        scaler
            What scales gradients in float16; None in other dtypes, and between stages.
        """
        if not self._writes:
            return
        held = {f"module.{name}": x for name, x in self.everything.state_dict().items()}
        for i, state in () if optimizer is None else optimizer.state_dict()["state"].items():
            held |= {f"optimizer.{i}.{name}": torch.as_tensor(x) for name, x in state.items() if x is not None}
        if scaler is not None:
            held |= {f"scaler.{name}": torch.as_tensor(x) for name, x in scaler.state_dict().items()}
        held["random"] = torch.get_rng_state()
        if torch.cuda.is_available():
            held["random.cuda"] = torch.cuda.get_rng_state()
        if rows is not None:
            held["rows"] = torch.from_numpy(rows)
        assert self._folder is not None
        _save(self._folder / "state.safetensors", held, asdict(at))

    def keep_best(self, at: TrainingState, value: float) -> None:
        """Keep the weights as the best of the stage so far."""
        self._best = {name: x.detach().cpu().clone() for name, x in self.everything.state_dict().items()}
        if self._writes:
            assert self._folder is not None
            save_weights(self._folder / "best.safetensors", self.everything, {"method": at.method, "validation": value})

    def back_to_best(self) -> None:
        """Load the best weights of the stage, where there was a validation."""
        if self._best is not None:
            self.everything.load_state_dict(self._best)
        self._best = None


def save_weights(path: Path, modules: nn.Module, about: dict[str, Any]) -> None:
    """Write the tensors of modules, and what is to be known about them, as JSON in the file's header."""
    _save(path, modules.state_dict(), about)


def _save(path: Path, held: dict[str, Tensor], about: dict[str, Any]) -> None:
    # Copies, since safetensors refuses tensors that share memory, and a class direction may stand in two modules.
    whole = {name: x.detach().cpu().clone(memory_format=torch.contiguous_format) for name, x in held.items()}
    with aside(path, follow=False) as fresh:
        try:
            save_file(whole, fresh, metadata={"peaccel": json.dumps(about)})
        except SafetensorError as error:  # which is also raised where the disk is full
            raise OSError(f"{path}: cannot be written: {error}") from None


def load_tensors(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Read what is to be known about a file's tensors, and these by name.

    Raises
    ------
    FileNotFoundError
        There is no such file.
    ValueError
        It is no .safetensors file.
    """
    if not path.is_file():
        raise FileNotFoundError(f"{path}: there is no such file")
    try:
        with safe_open(path, framework="pt") as file:
            about = json.loads((file.metadata() or {}).get("peaccel", "{}"))
            if not isinstance(about, dict):
                raise ValueError(f"what it says of itself is a {type(about).__name__}")
            return about, {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  (no mapping)
    except (SafetensorError, RecursionError, ValueError) as error:
        raise ValueError(f"{path}: is no .safetensors file, or damaged: {error}") from None


def check_shapes(path: Path, modules: nn.Module, held: Mapping[str, Tensor]) -> None:
    """Refuse the tensors of a file that are not those of modules by name and shape: ValueError, the first is named."""
    expected = modules.state_dict()
    for name in sorted(expected.keys() ^ held.keys()):
        what = "lacks" if name in expected else "has an unexpected"
        raise ValueError(f"{path}: {what} {name}: it was written for another method or backbone")
    for name, x in held.items():
        if x.shape != expected[name].shape:
            raise ValueError(f"{path}: {name} has shape {tuple(x.shape)}, expected {tuple(expected[name].shape)}")
