"""The one training loop.

A step is a pure function of the weights, the optimizer's memory, the methods' memory and the step's number: which
samples it takes, which pairs meet and what dropout drops are all drawn from a seed made of (recipe.seed, step,
process). So there is no other state, and a resumed run equals the one that was never stopped.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import chain, pairwise, repeat
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple, Protocol

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from accelerate.tracking import LOGGER_TYPE_TO_CLASS, get_available_trackers
from accelerate.utils import DistributedDataParallelKwargs, LoggerType
from torch import Tensor, nn

from safda.data import Domain, EpochSampler, mixed_seed
from safda.data.loader import training_batches
from safda.data.sampler import LabelledSampler, Sampler
from safda.errors import Interrupted, SafdaError, nearest
from safda.methods.base import Phase, RampedWeight, overrides
from safda.model import AdaptationModel, StepOutput, has_phases
from safda.nn.norm import synchronise_batch_norm
from safda.nn.weights import not_finite
from safda.recipe import Recipe
from safda.schedules import decay
from safda.training.checkpoint import Checkpoint, RunFolder
from safda.turns import GENERATOR


class StepCallback(Protocol):
    """Called after every step, with metrics every ``log_every`` steps."""

    def __call__(self, step: int, metrics: Mapping[str, float] | None) -> None:
        """See one step done."""


def train(
    model: AdaptationModel,
    source: Domain,
    target: Domain,
    *,
    accelerator: Accelerator | None = None,
    run: RunFolder | None = None,
    callback: StepCallback | None = None,
    resume: bool = False,
    finish: Callable[[], None] | None = None,
) -> None:
    """Train ``model`` in place, as its recipe says.

    Args:
        model: a fresh model; with ``resume`` its weights come from the run's last checkpoint. Its methods are set up on
            these domains, if they are not yet.
        source: a labelled domain.
        target: an unlabelled one.
        accelerator: device, precision, processes and trackers, from :func:`make_accelerator`.
        run: where checkpoints and metrics go; None trains in memory only.
        callback: called after every step.
        resume: go on from the run's last checkpoint.
        finish: called after the last step, before the result is saved.

    Raises:
        Interrupted: once a signal has come and the step that was being made is saved.
    """
    recipe = model.recipe
    _keep_freed_memory()
    accelerator = accelerator or make_accelerator(recipe)
    labels, _ = source.labelled("a training source")
    shard = _shard(recipe.batch, accelerator)
    if not model.is_set_up:
        model.setup(source, target)

    if accelerator.num_processes > 1:
        synchronise_batch_norm(model, accelerator.device)
    model.to(accelerator.device)
    optimizer = _optimizer(model, recipe)
    start = _restore(run, model, optimizer, accelerator) if run and resume else 0
    wrapped = accelerator.prepare(model)
    wrapped.train()
    if run and not resume:
        _save(run, 0, model, optimizer, accelerator)  # proves that the folder takes it, before any work is done

    schedule = _Schedule(model, source, target)
    feed = schedule.batches(range(start, recipe.steps), shard)
    stopping = False
    with closing(feed), _trackers(accelerator), _stop_signals() as stop:
        steps = _Steps(model, wrapped, optimizer, accelerator, labels, target.known_labels, run, callback, stop)
        for step in range(start, recipe.steps):
            schedule.refresh_before(step)
            made = steps.make(step, *next(feed))
            stopping = steps.follow_up(step + 1, made)

    model.eval()
    if finish:
        finish()
    if run and accelerator.is_main_process:
        run.save_model(weights_of(model))
    accelerator.wait_for_everyone()
    if stopping:  # in the last step: this is done, and what was to follow is not
        raise Interrupted(recipe.steps, stop.received or signal.SIGTERM)


_STEP_DRAWS = 0x5AFDA  # keeps the seeds of steps apart from those of epochs


def weights_of(model: nn.Module) -> dict[str, Tensor]:
    """Return all weights, on the CPU, as they are written to disk."""
    return {name: value.detach().cpu().contiguous() for name, value in model.state_dict().items()}


def size_of(model: nn.Module) -> int:
    """Count the bytes of all weights."""
    return sum(value.nbytes for value in model.state_dict().values())


# ------------------------------------------------------------------------------------------------- processes


def make_accelerator(
    recipe: Recipe, *, cpu: bool = False, trackers: tuple[str, ...] = (), folder: Path | None = None
) -> Accelerator:
    """Find the device, the processes and the trackers, or say what is not to be had here.

    Args:
        recipe: names the precision.
        cpu: stay on the CPU even where there is a GPU.
        trackers: experiment trackers that accelerate knows, such as ``"tensorboard"``.
        folder: where trackers write.
    """
    known = [str(tracker.value) for tracker in LoggerType if tracker != LoggerType.ALL]
    for name in trackers:
        if name not in known:
            raise SafdaError(f"no tracker {name!r}{nearest(name, known)}")
    if not set(trackers) <= {str(getattr(t, "value", t)) for t in get_available_trackers()}:
        raise SafdaError(f"the tracker {' or '.join(trackers)} is not installed; pip install it")
    if folder is None and any(LOGGER_TYPE_TO_CLASS[name].requires_logging_directory for name in trackers):
        raise SafdaError(f"the tracker {' or '.join(trackers)} writes into the run's folder; name one: out=…, or -o")
    AcceleratorState._reset_state()  # accelerate allows one precision in a process's life otherwise
    accelerator = Accelerator(
        cpu=cpu,
        mixed_precision=recipe.precision,
        log_with=list(trackers) or None,
        project_dir=folder,
        # A phase may leave some parameters alone; to look for them costs time, so only where it is needed.
        kwargs_handlers=[DistributedDataParallelKwargs(find_unused_parameters=True)] if has_phases(recipe) else None,
    )
    if recipe.precision == "fp16" and accelerator.device.type == "cpu":
        raise SafdaError("precision = 'fp16' needs a GPU; the CPU can do 'bf16' or 'no'")
    return accelerator


@contextmanager
def _trackers(accelerator: Accelerator) -> Iterator[None]:
    """Open and close the trackers; accelerate's own way to close them ends the process group too."""
    accelerator.init_trackers("safda")
    try:
        yield
    finally:
        for tracker in accelerator.trackers:
            tracker.finish()


def _shard(batch: int, accelerator: Accelerator) -> slice:
    """This process's rows of the global batch."""
    processes = accelerator.num_processes
    if batch % processes:
        raise SafdaError(
            f"batch = {batch} cannot be shared by {processes} processes; make it a multiple of {processes}"
        )
    size = batch // processes
    return slice(accelerator.process_index * size, (accelerator.process_index + 1) * size)


def _any_process(flag: bool, accelerator: Accelerator) -> bool:
    """Whether any process says yes, so that all stop after the same step."""
    if accelerator.num_processes == 1:
        return flag
    votes = accelerator.reduce(torch.tensor(float(flag), device=accelerator.device))
    return bool(votes > 0)


class _Schedule:
    """When methods refresh, and a run's batches: none is chosen before a refresh that its sampler may depend on.

    Args:
        model: its methods may choose the samples of a step.
        source, target: where they come from.
    """

    def __init__(self, model: AdaptationModel, source: Domain, target: Domain) -> None:
        recipe = model.recipe
        self._seed, self._domains = recipe.seed, (source, target)
        methods = model.methods_by_name.values()
        due = [(method, method.refresh_every(recipe.steps, len(target) / recipe.batch)) for method in methods]
        self._due = [(method, every) for method, every in due if every]
        self._bounds = [every for method, every in self._due if overrides(method, "sampler")]
        self._samplers: list[Sampler] = []
        for number, (role, domain) in enumerate((("source", source), ("target", target))):
            sampler: Sampler = EpochSampler(len(domain), recipe.batch, recipe.seed, number)
            for method in methods:
                sampler = method.sampler(role, sampler)
            if domain.known_labels is not None:
                labelled = (domain.known_labels >= 0).nonzero().squeeze(1)
                sampler = LabelledSampler(sampler, labelled, recipe.batch, recipe.seed)
            self._samplers.append(sampler)

    def refresh_before(self, step: int) -> None:
        """Refresh the methods for which it is time."""
        for method, every in self._due:
            if step and step % every == 0:
                method.refresh()

    def batches(self, steps: range, shard: slice) -> Generator[list[tuple[Tensor, Tensor]], None, None]:
        """Yield each step's (row numbers, inputs) of each domain, read ahead as far as is known what to read."""
        cuts = [step for step in steps[1:] if any(step % every == 0 for every in self._bounds)]
        for first, last in pairwise([steps.start, *cuts, steps.stop]):
            yield from training_batches(self._domains, self._samplers, range(first, last), shard, self._seed)


# ----------------------------------------------------------------------------------------------- one step


class _Made(NamedTuple):
    """What is left of an iteration: by name its losses and what methods have logged, and at which rate and progress."""

    losses: dict[str, Tensor]
    seen: dict[str, Tensor]
    lr: float
    progress: float


@dataclass
class _Steps:
    """One iteration after another: how it is made, and what follows it.

    Attributes:
        model: what is trained.
        wrapped: the same, as accelerate calls it.
        optimizer: what moves it.
        accelerator: device, precision, processes and trackers.
        labels: the source's classes.
        known: the target's where a user has given some, −1 elsewhere; None without any.
        run: where checkpoints and metrics go, if anywhere.
        callback: called after every step.
        stop: what a signal tells.
    """

    model: AdaptationModel
    wrapped: nn.Module
    optimizer: torch.optim.Optimizer
    accelerator: Accelerator
    labels: Tensor
    known: Tensor | None
    run: RunFolder | None
    callback: StepCallback | None
    stop: _Stop

    def __post_init__(self) -> None:
        """Take the recipe as it is now, and begin to look for what is not finite."""
        self._recipe, self._not_finite = self.model.recipe, _NotFinite()

    def make(self, step: int, source: tuple[Tensor, Tensor], target: tuple[Tensor, Tensor]) -> _Made:
        """Make an iteration, of one optimizer step or of several, with these (row numbers, inputs) of each domain."""
        recipe, device = self._recipe, self.accelerator.device
        progress = step / (recipe.ramp_steps or recipe.steps)
        (source_rows, source_inputs), (target_rows, target_inputs) = source, target
        tensors = (source_inputs, self.labels[source_rows], target_inputs, torch.cat([source_rows, target_rows]))
        batch = [_moved(values, device) for values in tensors]
        known = None if self.known is None else _moved(self.known[target_rows], device)
        made = _Made({}, {}, _set_learning_rate(self.optimizer, recipe, step), progress)
        seed = mixed_seed(recipe.seed, step, self.accelerator.process_index, _STEP_DRAWS)
        with _own_randomness(seed, device):
            for phase in chain.from_iterable(repeat(phase, phase.times) for phase in self.model.phases(progress)):
                output = self.wrapped(*batch, progress, phase, known)
                self._not_finite.look(step, output.total, output.losses)
                _optimizer_step(self.optimizer, self.model, output, phase, self.accelerator)
                _observe(self.model, output, self.accelerator)
                made.losses.update(output.losses)
                made.seen.update(output.metrics)
        return made

    def follow_up(self, done: int, made: _Made) -> bool:
        """After so many steps, log, tell and save what is due; returns whether a signal came in the last of them.

        Raises:
            Interrupted: if it came before that.
        """
        recipe, accelerator = self._recipe, self.accelerator
        metrics, stopping = None, False
        logs, saves = (
            done == recipe.steps or done % every == 0 for every in (recipe.log_every, recipe.checkpoint_every)
        )
        if logs or saves:
            self._not_finite.tell(self.run)
        if logs:
            metrics = self._log(done, made)
        if self.callback and accelerator.is_main_process:
            self.callback(done, metrics)
        if logs or saves or accelerator.num_processes == 1:  # each time, the other processes are waited for
            stopping = _any_process(self.stop.received is not None, accelerator)
        if self.run and (stopping or saves):
            _save(self.run, done, self.model, self.optimizer, accelerator)
        if stopping and done < recipe.steps:
            raise Interrupted(done, self.stop.received or signal.SIGTERM)
        return stopping

    def _log(self, done: int, made: _Made) -> dict[str, float]:
        """Write one line of metrics, and hand it to the trackers."""
        weights = _scheduled_weights(self._recipe, made.progress)
        metrics = {**_metrics(made.losses, made.seen, self.accelerator), "lr": made.lr, **weights}
        if self.run and self.accelerator.is_main_process:
            self.run.log({"step": done, **metrics})
        self.accelerator.log(metrics, step=done)
        return metrics


def _moved(values: Tensor, device: torch.device) -> Tensor:
    """Bring a batch to the device; a GPU fetches it while the processor goes on."""
    if device.type != "cuda":
        return values.to(device)
    return values.pin_memory().to(device, non_blocking=True)


def _keep_freed_memory() -> None:
    """Let the gradients that one step frees be there for the next.

    The C library gives back to the system what exceeds twice the largest block that was freed so far, up to 32 MiB of
    it; to get it again, page by page, takes a tenth of a step's time. So free such a block first.
    """
    torch.empty(31 * 2**20, dtype=torch.uint8)


def _optimizer(model: AdaptationModel, recipe: Recipe) -> torch.optim.Optimizer:
    """Make the optimizer; the backbone learns at its own share of the rate."""
    knobs = recipe.optimizer
    backbone = [p for p in model.backbone.parameters() if p.requires_grad]
    known = {id(p) for p in model.backbone.parameters()}
    rest = [p for p in model.parameters() if id(p) not in known]
    groups = [{"params": backbone, "factor": knobs.backbone_factor}, {"params": rest, "factor": 1.0}]
    groups = [group for group in groups if group["params"]]
    if knobs.name == "adamw":
        betas = (knobs.momentum, 0.999)
        return torch.optim.AdamW(groups, lr=knobs.lr, betas=betas, weight_decay=knobs.weight_decay, fused=True)
    return torch.optim.SGD(
        groups,
        lr=knobs.lr,
        momentum=knobs.momentum,
        nesterov=knobs.momentum > 0,
        weight_decay=knobs.weight_decay,
        fused=True,
    )


def _optimizer_step(
    optimizer: torch.optim.Optimizer,
    model: AdaptationModel,
    output: StepOutput,
    phase: Phase,
    accelerator: Accelerator,
) -> None:
    """Move what a phase trains; accelerate's own wrapper would look for packages on disk each time."""
    optimizer.zero_grad()
    accelerator.backward(output.total)
    if phase.trains:  # an optimizer leaves alone what has no gradient
        for name, parameter in model.named_parameters():
            if not name.startswith(phase.trains):
                parameter.grad = None
    if accelerator.scaler is None:
        optimizer.step()
    else:  # fp16: a step whose gradients overflow is left out
        accelerator.scaler.step(optimizer)
        accelerator.scaler.update()


def _set_learning_rate(optimizer: torch.optim.Optimizer, recipe: Recipe, step: int) -> float:
    knobs = recipe.optimizer
    lr = decay(step / (knobs.decay_steps or recipe.steps), knobs.lr, knobs.decay, knobs.power)
    for group in optimizer.param_groups:
        group["lr"] = lr * group["factor"]
    return lr


def _observe(model: AdaptationModel, output: StepOutput, accelerator: Accelerator) -> None:
    """Let methods learn from a step: each from what it kept of it, in all processes the same."""
    for name, method in model.methods_by_name.items():
        if overrides(method, "observe"):
            kept = output.kept.get(name, {})
            method.observe(accelerator.gather(kept) if accelerator.num_processes > 1 else kept)


def _metrics(losses: Mapping[str, Tensor], seen: Mapping[str, Tensor], accelerator: Accelerator) -> dict[str, float]:
    """One line of metrics: this step's losses and what methods have logged, as means over the processes."""
    every = {
        "loss": torch.stack(list(losses.values())).sum(),
        **{f"loss/{name}": loss for name, loss in losses.items()},
    }
    every.update(seen)
    values = torch.stack([value.detach().float() for value in every.values()])
    if accelerator.num_processes > 1:
        values = accelerator.reduce(values, reduction="mean")
    return dict(zip(every, values.tolist(), strict=True))


def _scheduled_weights(recipe: Recipe, progress: float) -> dict[str, float]:
    knobs = recipe.of_methods.items()
    return {f"{name}/weight": each.at(progress) for name, each in knobs if isinstance(each, RampedWeight)}


class _NotFinite:
    """Notes the first step whose loss is not finite, and asks for it only now and then: asking makes a GPU wait."""

    def __init__(self) -> None:
        self._first: dict[tuple[str, ...], Tensor] = {}  # losses of a phase → the step, and which of them

    def look(self, step: int, total: Tensor, losses: Mapping[str, Tensor]) -> None:
        """Note one step."""
        bad = ~torch.isfinite(torch.stack([total.detach(), *(loss.detach() for loss in losses.values())]))
        found = torch.cat([bad[:1].new_full((1,), step, dtype=torch.int64), bad.long()])
        first = self._first.get(names := tuple(losses))
        self._first[names] = found if first is None else torch.where(first[1] > 0, first, found)

    def tell(self, run: RunFolder | None) -> None:
        """Raise an error if there was such a step."""
        every = [(names, first.tolist()) for names, first in self._first.items()]
        for names, (step, any_bad, *bad) in sorted(every, key=lambda each: each[1][0]):
            if any_bad:
                culprits = [name for name, is_bad in zip(names, bad, strict=True) if is_bad]
                kept = f"; the last good checkpoint is in {run.path}" if run else ""
                raise SafdaError(
                    f"the {' and '.join(culprits) or 'total'} loss is not finite at step {step + 1}{kept}; "
                    "try a smaller optimizer.lr"
                )


# -------------------------------------------------------------------------------------------- checkpoints


def _save(
    run: RunFolder, step: int, model: AdaptationModel, optimizer: torch.optim.Optimizer, accelerator: Accelerator
) -> None:
    if not accelerator.is_main_process:
        return
    weights = weights_of(model)
    bad = not_finite(weights)
    if bad:
        raise SafdaError(
            f"the weights {bad[0]} are not finite after step {step}; the last good checkpoint is in {run.path}; "
            "try a smaller optimizer.lr"
        )
    scaler = accelerator.scaler.state_dict() if accelerator.scaler else {}
    of_methods = {
        f"{name}.{key}": value.detach().cpu().contiguous()
        for name, method in model.methods_by_name.items()
        for key, value in method.training_state().items()
    }
    run.save_checkpoint(Checkpoint(step, weights, _state_of(optimizer, model), of_methods, scaler))


def _restore(run: RunFolder, model: AdaptationModel, optimizer: torch.optim.Optimizer, accelerator: Accelerator) -> int:
    checkpoint = run.last_checkpoint()
    load_weights(model, checkpoint.model, str(run.path))
    _restore_state(optimizer, model, checkpoint.optimizer, str(run.path))
    for name, method in model.methods_by_name.items():
        own = {
            key.removeprefix(f"{name}."): value
            for key, value in checkpoint.methods.items()
            if key.startswith(f"{name}.")
        }
        _check_state(method.training_state(), own, f"{run.path}: what {name} remembers")
        method.load_training_state(own)
    if accelerator.scaler and checkpoint.scaler:
        accelerator.scaler.load_state_dict(checkpoint.scaler)
    if accelerator.is_main_process:
        run.forget_after(checkpoint.step)
    return checkpoint.step


def _state_of(optimizer: torch.optim.Optimizer, model: nn.Module) -> dict[str, Tensor]:
    """Return all that an optimizer remembers, whichever it is, as ``parameter:what`` → values."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    return {
        f"{names[id(parameter)]}:{what}": value.detach().cpu().contiguous()
        for parameter, state in optimizer.state.items()
        for what, value in state.items()
        if isinstance(value, Tensor)
    }


def _check_state(fresh: Mapping[str, Tensor], saved: Mapping[str, Tensor], where: str) -> None:
    """Refuse a method's memory that is not of this run; one that grows has no shape yet."""
    for name, value in fresh.items():
        if name not in saved or (value.numel() and value.shape != saved[name].shape):
            raise SafdaError(f"{where} does not fit the recipe and the data: {name!r} is missing or of another shape")


def _restore_state(optimizer: torch.optim.Optimizer, model: nn.Module, state: Mapping[str, Tensor], where: str) -> None:
    parameters = dict(model.named_parameters())
    for key, value in state.items():
        name, _, what = key.rpartition(":")
        like = parameters.get(name)
        if like is None or (value.shape != like.shape and value.numel() != 1):
            raise SafdaError(f"{where}: what the optimizer remembers does not fit the recipe: {key!r}")
        if value.shape == like.shape:  # in the weights' own order in memory
            value = torch.empty_like(like, dtype=value.dtype).copy_(value)
        optimizer.state[like][what] = value.to(like.device)


def load_weights(model: nn.Module, weights: Mapping[str, Tensor], where: str) -> None:
    """Load weights that must fit exactly, or say which do not."""
    try:
        model.load_state_dict(weights)
    except RuntimeError as error:
        raise SafdaError(f"{where}: the weights do not fit the recipe: {' '.join(str(error).split())}") from None


# ------------------------------------------------------------------------------------ randomness and signals


@contextmanager
def _own_randomness(seed: int, device: torch.device) -> Iterator[None]:
    """Seed the generators in use for one step, and leave them as they were.

    ``torch.manual_seed`` would look for every kind of device, each time.
    """
    with GENERATOR, torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.default_generator.manual_seed(seed)
        if device.type == "cuda":
            torch.cuda.manual_seed(seed)
        yield


class _Stop:
    received: signal.Signals | None = None


@contextmanager
def _stop_signals() -> Iterator[_Stop]:
    """Let SIGINT, SIGTERM and SIGHUP end the run after the current step; a second one ends it at once."""
    stop = _Stop()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    before: dict[signal.Signals, Any] = {}

    def receive(number: int, frame: FrameType | None) -> None:
        stop.received = signal.Signals(number)
        for each, handler in before.items():
            signal.signal(each, handler)

    for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if each != signal.SIGHUP or signal.getsignal(each) != signal.SIG_IGN:  # nohup means to go on
            before[each] = signal.signal(each, receive)
    try:
        yield stop
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
