"""The training loop, for every method."""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from numpy.typing import NDArray
from torch import Tensor, nn

from peaccel._utils.atomic_files import PathLike
from peaccel.distributions import Distribution
from peaccel.losses._batch import known_on_host, sent
from peaccel.losses.base import NotFiniteError
from peaccel.methods.method import AtLeast0, AtLeast1, Batch, Stage, Step, Training, UpTo1024
from peaccel.train.batch_sampling import Data, augmented, balanced, deliver, length, move, take
from peaccel.train.checkpoint import Checkpointer, TrainingState
from peaccel.train.diagnostics import EPOCHS, Movement, has_head, probe_rows, signs
from peaccel.train.embedding import apply, embed, tensors
from peaccel.train.interruption import DeferredInterrupt
from peaccel.train.optim import optimizer_of, schedule_of
from peaccel.train.progress import NullLogger, ProgressLogger

__all__ = ["Options", "fit", "learn", "statistics_kept"]

STEPS, SECONDS = 32, 1.0
"""How many steps on a GPU are read together, or all of so long a time: who reads a loss waits for the device."""

WORK = 2e10
"""Operations of a step on features for each thread of torch, half a second's: beside other processes the threads of a
shorter one wait for each other longer than they work. Beside eight, `fit-head` took over seven times as long with two
threads as with one."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """How a run is carried out; none of it belongs to the method.

    Examples
    --------
    Batches and draws of another seed, four batches a step:

    >>> from peaccel.train import Options
    >>> Options(seed=1, accumulate=4)
    Options(seed=1, patience=None, accumulate=4, workers=0, resume=False)
    """

    seed: AtLeast0 = 0
    """Seed of the batches, and of the draws of losses and of augmentation."""
    patience: AtLeast0 | None = None
    """Epochs without a better validation after which a stage ends; None for never."""
    accumulate: AtLeast1 = 1
    """Batches whose gradients make one step."""
    workers: UpTo1024 = 0
    """Processes that prepare images."""
    resume: bool = False
    """Go on from the folder's state.safetensors, if there is one."""


def fit(
    training: Training,
    data: Data,
    labels: NDArray[np.int64],
    options: Options = Options(),
    *,
    name: str = "",
    folder: PathLike | None = None,
    validate: Callable[[nn.Module], float] | None = None,
    logger: ProgressLogger = NullLogger(),
    accelerator: Accelerator | None = None,
) -> tuple[str, ...]:
    """Train a method's stages one after the other, in place.

    Parameters
    ----------
    training
        The result of a method's `build`.
    data
        N items: a tensor, a tuple of tensors, or a map-style dataset.
    labels
        [N] int64 in 0..C-1, every class with at least one item.
    options
        Seed, patience, accumulation, resuming.
    name
        The method's, so that its checkpoint is not taken for another one's.
    folder
        Receives state.safetensors after each epoch and at Ctrl-C, and best.safetensors where there is a validation.
        Made if missing.
    validate
        A function from the model to a number, higher = better, called after each epoch. A stage ends with the weights
        of its best epoch.
    logger
        Is told of each step and epoch, of steps on a GPU some together.
    accelerator
        Devices, processes and precision, by Hugging Face Accelerate; None takes the CPU alone.

    Returns
    -------
    What showed in the first two epochs of a stage that it fails, a sentence each: embeddings in one cone, nearest
    neighbours as by chance, uncertainties at a bound or over three decades, layers that do not change.

    Raises
    ------
    ValueError
        Labels do not fit the data or leave a class empty; the folder's state is of another method, seed, schedule or
        shape, or it has one and options do not resume it; a batch cannot be shared by the processes.
    FloatingPointError
        A loss is not finite: the batch and the term are named, and the last good state is kept. On a GPU it is raised
        up to 31 steps or a second later, at the end of the epoch at the latest, and before anything is written.
    KeyboardInterrupt
        Ctrl-C, after the state was written; a second one does not wait.

    Examples
    --------
    Of five features the last one is noise, and the model learns to look at the others. No sign of failure is found:

    >>> import torch
    >>> from peaccel.train import embed, fit, recipe
    >>> labels = np.arange(4).repeat(8)
    >>> features = torch.eye(5)[labels]
    >>> features[:, 4] = torch.randn(32, generator=torch.Generator().manual_seed(0))
    >>> method, settings = recipe("cosface", "features", {"dim": 4, "schedule": {"epochs": 60, "lr": 0.1}})
    >>> training = method.build(torch.nn.Identity(), 5, 4, settings)
    >>> fit(training, features, labels)
    ()
    >>> d = embed(training.model, features)
    >>> pe.metrics.recall_at_k(pe.search(d, d, 2, "cosine").ids[:, 1:], labels, labels)
    1.0
    """
    _check_labels(labels, length(data))
    accelerator = accelerator or Accelerator(cpu=True)
    everything = nn.ModuleDict({"model": training.model, "criterion": training.criterion}).to(accelerator.device)
    folder = _made(folder, options.resume)
    checkpointer = Checkpointer(folder, everything, writes=accelerator.is_main_process)
    schedules = {stage.name: asdict(stage.schedule) for stage in training.stages}
    progress = first = TrainingState(name, options.seed, schedules=schedules)
    if options.resume:
        progress = replace(checkpointer.resume(first), schedules=schedules)
    threads = torch.get_num_threads()
    with DeferredInterrupt() as stopper:
        parts = training, options, checkpointer, validate, logger, accelerator, stopper, threads
        run = _Run(*parts, [*progress.warnings])
        try:
            for number in range(progress.stage, len(training.stages)):
                here = progress if number == progress.stage else replace(first, stage=number)
                run.carry_out(data, labels, here)
        finally:
            logger.close()
            torch.set_num_threads(threads)
    everything.eval().requires_grad_(False)
    return tuple(run.warnings)


@dataclass(frozen=True)
class _Run:
    """The state that all stages of a run share."""

    training: Training
    options: Options
    checkpointer: Checkpointer
    validate: Callable[[nn.Module], float] | None
    logger: ProgressLogger
    accelerator: Accelerator
    stopper: DeferredInterrupt
    threads: int
    """The most threads that torch may take."""
    warnings: list[str] = field(default_factory=list)

    def carry_out(self, data: Data, labels: NDArray[np.int64], at: TrainingState) -> None:
        """Train one stage, from the point that `at` records to its end."""
        stage, options, accelerator = self.training.stages[at.stage], self.options, self.accelerator
        schedule, device = stage.schedule, accelerator.device
        self.checkpointer.restore_random()
        there = sent(labels, device)
        inputs = augmented(data) if stage.frozen is None else self._frozen(stage.frozen, augmented(data), at)
        if stage.start is not None and at.fresh:
            self._start(stage, inputs, labels, at)
        learn(self.checkpointer.everything, stage)
        per_epoch, batch_size = self._deal(stage, inputs, labels, at, 0).shape
        total = max(1, -(-per_epoch // options.accumulate) * schedule.epochs)
        optimizer = optimizer_of(stage)
        rates = schedule_of(optimizer, schedule, total, at.step, at.epoch)
        module, wrapped = self._prepared(_StageLoss(self.checkpointer.everything, stage), optimizer, inputs, batch_size)
        rows = self.checkpointer.restore(optimizer, accelerator.scaler)
        movement, warned = Movement(self.checkpointer.everything, stage), set[str]()
        report = _Report(stage, self.logger, accelerator.num_processes, _read_together(device))
        while at.epoch < schedule.epochs and (options.patience is None or at.since <= options.patience):
            if rows is None:
                rows = self._deal(stage, inputs, labels, at, at.epoch)
            self.logger.epoch_begins(stage, at.epoch, len(rows), at.batch)
            for share, items in deliver(inputs, self._share(rows), _seed(at, at.epoch), at.batch, options.workers):
                step = Step(at.step, total, _seed(at, at.epoch, at.batch))
                batch = _batch(items, share, labels, there)
                last = (at.batch + 1) % options.accumulate == 0 or at.batch + 1 == len(rows)
                together = min(options.accumulate, len(rows) - at.batch // options.accumulate * options.accumulate)
                with nullcontext() if last else accelerator.no_sync(module):
                    accelerator.backward(report.add(module, batch, step, at, share) / together)
                if last:
                    if schedule.clip is not None:
                        accelerator.clip_grad_norm_(module.parameters(), schedule.clip)
                    wrapped.step()
                    wrapped.zero_grad()
                    rates.after_step()
                at = replace(at, batch=at.batch + 1, step=at.step + last)
                if last and self._stops():
                    report.read()
                    self._write(at, optimizer, rows)
                    raise KeyboardInterrupt
            report.read()
            rates.after_epoch()
            at, rows = self._judge(replace(at, epoch=at.epoch + 1, batch=0)), None
            self.logger.epoch_ends(stage, at.epoch, optimizer, self._probe(data), at.best)
            if at.epoch <= EPOCHS:
                warned |= self._diagnose(stage, at, movement.sign(), data, labels, warned)
            self._write(at, optimizer, None)
        accelerator.free_memory()
        self.checkpointer.back_to_best()
        if at.stage + 1 < len(self.training.stages):  # before the next one's best weights take the place of these
            self._write(TrainingState(at.method, at.seed, at.stage + 1, schedules=at.schedules), None, None)

    def _prepared(
        self, module: nn.Module, optimizer: torch.optim.Optimizer, inputs: Data, batch_size: int
    ) -> tuple[nn.Module, Any]:
        """Both as devices and processes need them; and as many threads of torch as a step on features keeps at work."""
        items = inputs if isinstance(inputs, tuple) else (inputs,)
        busy = self.threads
        if all(isinstance(x, Tensor) and x.ndim <= 2 for x in items):
            weights = sum(x.numel() for x in self.checkpointer.everything.parameters() if x.ndim > 1)
            busy = 1 + int(6 * batch_size * weights / WORK)
        torch.set_num_threads(min(busy, self.threads))
        prepared, wrapped = self.accelerator.prepare(module, optimizer)
        # Without a scaler Accelerate steps as the optimizer does, but searches the disk at each step.
        return prepared, optimizer if self.accelerator.scaler is None else wrapped

    def _write(
        self, at: TrainingState, optimizer: torch.optim.Optimizer | None, rows: NDArray[np.int64] | None
    ) -> None:
        scaler = None if optimizer is None else self.accelerator.scaler
        self.checkpointer.write(replace(at, warnings=tuple(self.warnings)), optimizer, rows, scaler)

    def _frozen(self, module: nn.Module, data: Data, at: TrainingState) -> Data:
        """Outputs of a module that does not learn, for all items, of which each is drawn once."""
        rows = [np.arange(i, min(i + 256, length(data))) for i in range(0, length(data), 256)]
        seen = deliver(data, rows, _seed(at, 0), workers=self.options.workers)
        return tensors([x for _, items in seen for x in apply(module, items)])

    def _start(self, stage: Stage, inputs: Data, labels: NDArray[np.int64], at: TrainingState) -> None:
        """Let the stage initialise from all data, as they will be seen in training.

        Running statistics of an untrained network are of no data, and embeddings made by them ten times too short. So
        what trains normalises by the statistics of batches, dealt as those of the first epoch, and moves no average. It
        drops features as training does, since lengths and distances grow by that. A stage without epochs starts for the
        next that has any; where none has, all is in evaluation mode.
        """
        assert stage.start is not None
        everything, there = self.checkpointer.everything, sent(labels, self.accelerator.device)
        stages = self.training.stages[at.stage :]
        trained = next((later for later in stages if later.schedule.epochs), replace(stage, groups=()))
        learn(everything, trained)
        dealt = np.stack(list(balanced(labels, trained.schedule, np.random.default_rng(_seed(at, 0)))))
        once = dealt.ravel()[np.sort(np.unique(dealt, return_index=True)[1])]  # no item counts twice
        with torch.no_grad(), statistics_kept(everything):
            stage.start(
                _batch(items, rows, labels, there)
                for rows, items in deliver(
                    inputs, np.array_split(once, len(dealt)), _seed(at, 0), workers=self.options.workers
                )
            )

    def _deal(
        self, stage: Stage, inputs: Data, labels: NDArray[np.int64], at: TrainingState, epoch: int
    ) -> NDArray[np.int64]:
        """The rows of every batch of an epoch, [batches, rows], for all processes together."""

        def means(rows: NDArray[np.int64]) -> NDArray[np.float32]:
            return np.asarray(embed(self.training.model, take(inputs, torch.from_numpy(rows))).mu)

        deal = stage.batches or balanced
        return np.stack(list(deal(labels, stage.schedule, np.random.default_rng(_seed(at, epoch)), means)))

    def _share(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """This process's part of each batch."""
        processes, rank = self.accelerator.num_processes, self.accelerator.process_index
        if rows.shape[1] % processes:
            raise ValueError(f"fit: a batch of {rows.shape[1]} items cannot be shared by {processes} processes")
        size = rows.shape[1] // processes
        return rows[:, rank * size : (rank + 1) * size]

    def _stops(self) -> bool:
        """Whether any process was asked to stop: all stop after the same step, as none can go on alone."""
        if self.accelerator.num_processes == 1:
            return self.stopper.asked
        asked = torch.tensor([self.stopper.asked], device=self.accelerator.device)
        return bool(self.accelerator.gather(asked).any())

    def _judge(self, at: TrainingState) -> TrainingState:
        """Validate, and save the weights where they are the best, of equal ones the last: beside means that stay, MAP@R
        by cosine is the same after every epoch."""
        if self.validate is None:
            return at
        value = self.validate(self.training.model)
        if at.best is not None and not (value >= at.best or math.isnan(at.best)):
            return replace(at, since=at.since + 1)
        self.checkpointer.keep_best(at, value)
        return replace(at, best=value, since=0)

    def _diagnose(
        self,
        stage: Stage,
        at: TrainingState,
        found: dict[str, str],
        data: Data,
        labels: NDArray[np.int64],
        warned: Container[str],
    ) -> set[str]:
        """Warn, a line each, of signs that the stage fails, but for those of earlier warnings; returns their names."""
        rows, everything = probe_rows(labels), self.checkpointer.everything
        device = self.accelerator.device
        # By the statistics of these items, as a training step has them: running ones lag behind for many steps. What is
        # dropped here is drawn aside, so that training goes on as if nobody had looked.
        aside = torch.random.fork_rng([device] if device.type == "cuda" else [])
        with torch.no_grad(), statistics_kept(everything), aside:
            d = self.training.model(move(take(data, torch.from_numpy(rows)), device))
        found = found | (signs(d.to("cpu"), labels[rows], has_head(stage)) if isinstance(d, Distribution) else {})
        for about, sentence in found.items():
            if about not in warned:
                self.warnings.append(f"{stage.name}, epoch {at.epoch}: {sentence}")
                self.logger.warn(self.warnings[-1])
        return {*found}

    def _probe(self, data: Data) -> Any:
        """The model's distributions of some training items, which show whether a branch learns nothing."""
        return embed(self.training.model, take(data, torch.arange(0, length(data), length(data) // 256 + 1)))


def _batch(items: Any, rows: NDArray[np.int64], labels: NDArray[np.int64], there: Tensor) -> Batch:
    """A batch on the device where all labels are ``there``, which losses check on the host."""
    rows_there = sent(rows, there.device)
    return Batch(move(items, there.device), known_on_host(there[rows_there], labels[rows]), rows_there)


class _StageLoss(nn.Module):
    """A stage's loss as a module, which is what Accelerate wraps for processes and precision."""

    def __init__(self, everything: nn.Module, stage: Stage) -> None:
        super().__init__()
        self.everything = everything
        self._stage = stage

    def forward(self, batch: Batch, step: Step) -> dict[str, Tensor]:
        return dict(self._stage.loss(batch, step))


def learn(everything: nn.Module, stage: Stage) -> None:
    """Let what the stage's groups name learn, and nothing else; batch statistics elsewhere stay as they are."""
    everything.eval().requires_grad_(False)
    for part in (part for group in stage.groups for part in group.trains):
        part.requires_grad_(True)
        if isinstance(part, nn.Module):
            part.train()


@contextmanager
def statistics_kept(everything: nn.Module) -> Iterator[None]:
    """Let batch normalisation in training mode leave its running averages as they are."""
    moving: list[Any] = [x for x in everything.modules() if x.training and getattr(x, "track_running_stats", False)]
    for norm in moving:
        norm.track_running_stats = False
    try:
        yield
    finally:
        for norm in moving:
            norm.track_running_stats = True


def _seed(at: TrainingState, *place: int) -> int:
    """A seed for each stage, epoch and batch of a run."""
    return int(np.random.SeedSequence((at.seed, at.stage, *place)).generate_state(1, np.uint64)[0] >> np.uint64(1))


def _read_together(device: torch.device) -> int:
    """Of how many steps the losses are read together."""
    return 1 if device.type == "cpu" else STEPS


@dataclass
class _Report:
    """Losses of steps, which are checked and reported some together: whoever reads one on a GPU waits for it."""

    stage: Stage
    logger: ProgressLogger
    processes: int
    together: int
    unread: list[tuple[TrainingState, NDArray[np.int64], tuple[str, ...], Tensor]] = field(default_factory=list)
    since: float = field(default_factory=perf_counter)

    def add(self, module: nn.Module, batch: Batch, step: Step, at: TrainingState, rows: NDArray[np.int64]) -> Tensor:
        """The loss of a step."""
        try:
            terms = module(batch, step)
        except NotFiniteError as error:
            self.read()
            raise self._not_finite(str(error), at, rows) from None
        values = torch.stack(tuple(terms.values()))
        loss = values.sum()
        self.unread.append((at, rows, (*terms, "the sum"), torch.cat((values, loss[None])).detach()))
        if len(self.unread) >= self.together or perf_counter() - self.since > SECONDS:
            self.read()
        return loss

    def read(self) -> None:
        """Report the steps that were not; FloatingPointError names the first whose loss is not finite."""
        unread, self.unread, self.since = self.unread, [], perf_counter()
        read = torch.cat([values for *_, values in unread]).cpu() if unread else torch.empty(0)
        of_steps = torch.split(read, [len(values) for *_, values in unread])
        for (at, rows, names, _), values in zip(unread, of_steps, strict=True):
            terms = dict(zip(names, values, strict=True))
            total = terms.pop("the sum")
            if not total.isfinite():
                bad = ", ".join(f"{name} is {x.item()}" for name, x in terms.items() if not x.isfinite()) or "the sum"
                raise self._not_finite(f"the loss is not finite: {bad}", at, rows)
            self.logger.step(terms, len(rows) * self.processes)

    def _not_finite(self, what: str, at: TrainingState, rows: NDArray[np.int64]) -> FloatingPointError:
        where = f"stage {self.stage.name!r}, epoch {at.epoch + 1}, batch {at.batch + 1} (rows {rows[:4].tolist()} ...)"
        return FloatingPointError(f"fit: {what} at {where}; the last epoch's state is kept")


def _made(folder: PathLike | None, resume: bool) -> Path | None:
    """The folder of a run, which is made; one with a state is refused where that is not resumed."""
    if folder is None:
        return None
    folder = Path(folder)
    if not resume and (folder / "state.safetensors").exists():
        raise ValueError(f"fit: folder is {folder}, which holds a state: Options(resume=True) goes on, or name another")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _check_labels(labels: NDArray[np.int64], items: int) -> None:
    if labels.shape != (items,) or labels.dtype.kind != "i":
        raise ValueError(f"fit: labels are {labels.dtype} of shape {labels.shape}, expected integers of ({items},)")
    if items == 0 or labels.min() < 0:
        raise ValueError("fit: labels are empty or negative, expected 0 .. C-1")
    if (empty := np.flatnonzero(np.bincount(labels) == 0)).size:
        raise ValueError(f"fit: class {empty[0]} has no item, expected labels without gaps in 0 .. {labels.max()}")
