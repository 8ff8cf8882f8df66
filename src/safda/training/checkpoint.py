"""The run folder: everything a run was, is and gave, written so that a kill at any moment loses nothing.

::

    run/
      recipe.toml         the experiment
      data.json           where the domains came from, their digests, shape of an input, class names
      environment.json    versions, device, threads, git state
      metrics.jsonl       one line of JSON every few steps
      checkpoints/        step-00000500/: model, optimizer, what methods remember, step
      model.safetensors   the result, once the run has finished
      predictions.csv     what it says of the target
      summary.json        what is to be said of that, without labels
      report.html         all of it on one page, for a person
      choice.json         which of several recipes was taken, and why; until then there is none
      candidates/         what was tried: a run folder each, on features
      frozen/             the first stage of a run that fine-tunes: a run folder of its own
      .lock               who trains here; empty if nobody does

Files appear whole or not at all: they are written beside their place, flushed, and renamed. Weights are
safetensors, with a digest of what they hold, and the rest is text, so loading never runs code.
"""

from __future__ import annotations

import hashlib
import json
import platform
import shutil
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save as serialise
from torch import Tensor

from safda import schema
from safda.data import AnyDomain, load_domain
from safda.data.labels import with_known_labels
from safda.errors import SafdaError, SafdaWarning
from safda.formats import FORMAT, check_format, upgraded_names
from safda.io import disk_errors, read_json, read_text, sync_dir, write_bytes, write_json, write_text
from safda.lock import Lock
from safda.nn.weights import read_weights
from safda.recipe import Recipe

#: The folder of fine-tuning's first stage, within the run's.
FIRST_STAGE = "frozen"
#: The folder of what a choice is made of, within the run's: a run folder each.
CANDIDATES = "candidates"

_LOCK = ".lock"
#: What is there before the first checkpoint.
_BEGINNINGS = (
    "data.json",
    "environment.json",
    "metrics.jsonl",
    "recipe.toml",
    "checkpoints",
    FIRST_STAGE,
    CANDIDATES,
    _LOCK,
)
_KEPT_CHECKPOINTS = 2
_MODELS_ON_DISK = 2 * (_KEPT_CHECKPOINTS + 1) + 1  # weights and momentum, one more being written, and the result


@dataclass(frozen=True)
class Checkpoint:
    """The state of a run after ``step`` steps. There is no generator to save: draws are functions of the step."""

    step: int
    model: dict[str, Tensor]
    optimizer: dict[str, Tensor]
    methods: dict[str, Tensor]
    scaler: dict[str, Any]


class RunFolder:
    """A run on disk. Make one with :meth:`create`, or :meth:`open` one that is there."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock: Lock | None = None

    @classmethod
    def create(cls, path: str | Path, recipe: Recipe, data: Mapping[str, Any], model_size: int) -> RunFolder:
        """Begin a run in a new or empty folder, or in that of one that never came to train; or leave nothing there.

        Every other process is kept off until the end of :meth:`locked`.

        Args:
            path: the folder.
            recipe: the experiment.
            data: where the domains came from, and what they look like.
            model_size: bytes of the weights, to make sure before any training that all of the run will fit.
        """
        run = cls(Path(path))
        with disk_errors(run.path):
            run._require_free()
            made = not run.path.exists()
            run.path.mkdir(parents=True, exist_ok=True)
        run._acquire()
        try:
            with disk_errors(run.path):
                run._require_free()  # nor has another come first
        except BaseException:
            run._release()
            raise
        try:
            with disk_errors(run.path):
                run._clear()
                (run.path / "checkpoints").mkdir()
                _require_room(run.path, model_size * _MODELS_ON_DISK)
                write_json(run.path / "data.json", {"format": FORMAT, **data})
                write_json(run.path / "environment.json", {"seed": recipe.seed, **environment()})
                write_text(run.path / "metrics.jsonl", "")
                write_text(run.path / "recipe.toml", recipe.to_toml())  # last: it makes the folder a run
        except BaseException:
            if made:  # before anyone else can begin in it
                shutil.rmtree(run.path, ignore_errors=True)
            run._release()
            raise
        return run

    @classmethod
    def open(cls, path: str | Path) -> RunFolder:
        """Open a run that is there."""
        run = cls(Path(path))
        with disk_errors(run.path, "read"):
            if not (run.path / "recipe.toml").is_file():
                raise SafdaError(f"{path}: is not a run folder (it has no recipe.toml)")
        check_format(run.data.get("format", 1), str(path))
        return run

    @property
    def recipe(self) -> Recipe:
        """The experiment: as it was given or, once a choice was made, what was taken."""
        choice = self.choice
        return self.given_recipe.candidate(choice["changes"]) if choice else self.given_recipe

    @property
    def given_recipe(self) -> Recipe:
        """The experiment as it was given, before any choice."""
        file = self.path / "recipe.toml"
        return Recipe.from_toml(read_text(file), str(file))

    @property
    def choice(self) -> dict[str, Any] | None:
        """Which recipe was taken, with the evidence; None until it was, or where there is no choice."""
        for folder in (self.path, self.path / FIRST_STAGE):
            if (folder / "choice.json").is_file():
                return read_json(folder / "choice.json", schema.CHOICE)
        return None

    def save_choice(self, choice: Mapping[str, Any]) -> None:
        """Write which recipe was taken."""
        with disk_errors(self.path):
            write_json(self.path / "choice.json", dict(choice))

    @property
    def data(self) -> dict[str, Any]:
        """Where the data came from, and what they look like."""
        return read_json(self.path / "data.json", schema.RUN_DATA)

    def domain(self, role: str, given: Any = None) -> AnyDomain:
        """Find a domain of the run again, and make sure that it is what it was.

        Args:
            role: source or target; a target comes without labels, but for those that a user gave to learn from.
            given: the same data again, where they were an array; what has a name is found by it.
        """
        before = self.data[role]
        if given is None and before["name"] == role:
            raise SafdaError(
                f"{self.path}: its {role} was an array, or pictures named one by one; hand it over again: {role}=…"
            )
        domain = load_domain(before["name"] if given is None else given, role)
        domain = domain if role == "source" else domain.unlabelled()
        if domain.fingerprint() != before["digest"]:
            raise SafdaError(
                f"{domain.name}: has changed since the run in {self.path} began; what it was is needed again"
            )
        known = self.data.get("target_labels") if role == "target" else None
        return with_known_labels(domain, known, self.data["classes"]) if known else domain

    @property
    def finished(self) -> bool:
        """Whether the final model is there and, where there is a choice, what it is a model of."""
        there = (self.path / "model.safetensors").is_file()
        return there and (self.choice is not None or not self.given_recipe.choice.candidates)

    @property
    def has_checkpoint(self) -> bool:
        """Whether training has begun here."""
        return bool(self._checkpoints())

    @property
    def can_go_on(self) -> bool:
        """Whether there is something to resume, in this stage or in the first."""
        stages = (self.path, self.path / FIRST_STAGE)
        runs = [each for stage in stages for each in (stage, *(stage / CANDIDATES).glob("*"))]
        return self.finished or any(RunFolder(each).has_checkpoint for each in runs)

    @contextmanager
    def locked(self) -> Iterator[RunFolder]:
        """Keep every other process off the run for a while; off one that was just created they are already."""
        if self._lock is None:
            self._acquire()
        try:
            yield self
        finally:
            self._release()

    @property
    def summary(self) -> dict[str, Any] | None:
        """What was said of the result, without labels; None until it was."""
        file = self.path / "summary.json"
        return read_json(file, schema.SUMMARY) if file.is_file() else None

    def save_summary(self, summary: Mapping[str, Any]) -> None:
        """Write what is to be said of the result."""
        with disk_errors(self.path):
            write_json(self.path / "summary.json", dict(summary))

    def log(self, line: Mapping[str, Any]) -> None:
        """Append one line of metrics."""
        with disk_errors(self.path), (self.path / "metrics.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    def metrics(self) -> list[dict[str, Any]]:
        """Return all metrics so far; a line that a kill cut short is left out, and one that is damaged is told."""
        file = self.path / "metrics.jsonl"
        whole = [line for line in _lines(file) if line.endswith(b"\n")]
        metrics = [line for line in map(_metrics_line, whole) if line is not None]
        if len(metrics) < len(whole):
            damaged = len(whole) - len(metrics)
            warnings.warn(f"{file}: {damaged} damaged lines are left out", SafdaWarning, stacklevel=2)
        return metrics

    def forget_after(self, step: int) -> None:
        """Drop what was logged and saved after a checkpoint, since the steps after it will be made again."""
        kept = [json.dumps(line) + "\n" for line in self.metrics() if line["step"] <= step]
        with disk_errors(self.path):
            write_text(self.path / "metrics.jsonl", "".join(kept))
            for damaged in self._checkpoints():
                if damaged > self._checkpoint_path(step):
                    shutil.rmtree(damaged)

    def save_checkpoint(self, checkpoint: Checkpoint) -> None:
        """Write a checkpoint whole, then let the oldest go."""
        self._check_lock()
        final = self._checkpoint_path(checkpoint.step)
        draft = final.with_name(f".{final.name}")
        shutil.rmtree(draft, ignore_errors=True)
        try:
            with disk_errors(self.path):
                draft.mkdir(parents=True)
                _write_tensors(draft / "model.safetensors", checkpoint.model)
                _write_tensors(draft / "optimizer.safetensors", checkpoint.optimizer)
                _write_tensors(draft / "methods.safetensors", checkpoint.methods)
                write_json(draft / "state.json", {"step": checkpoint.step, "scaler": checkpoint.scaler})
                shutil.rmtree(final, ignore_errors=True)
                draft.rename(final)
                sync_dir(final.parent)
        finally:
            shutil.rmtree(draft, ignore_errors=True)  # on a full disk it is in the way
        for old in self._checkpoints()[:-_KEPT_CHECKPOINTS]:
            shutil.rmtree(old, ignore_errors=True)

    def last_checkpoint(self) -> Checkpoint:
        """Read the newest checkpoint that is whole; those that are damaged are passed over, and told."""
        damage: SafdaError | None = None
        for path in reversed(self._checkpoints()):
            try:
                checkpoint = self._read_checkpoint(path)
            except SafdaError as error:
                damage = damage or error
                continue
            if damage:
                warnings.warn(f"{damage}; going on from step {checkpoint.step}", SafdaWarning, stacklevel=2)
            return checkpoint
        if damage:
            raise SafdaError(f"{self.path}: none of its checkpoints can be read: {damage}; fit again in another folder")
        raise never_began(self.path)

    def _read_checkpoint(self, path: Path) -> Checkpoint:
        state = read_json(path / "state.json", schema.STATE)
        if self._checkpoint_path(state["step"]) != path:
            raise SafdaError(f"{path / 'state.json'}: is of step {state['step']}, and of another checkpoint")
        return Checkpoint(
            state["step"],
            self._named_as_now(_read_tensors(path / "model.safetensors")),
            self._named_as_now(_optimizer_state(path)),
            _methods_state(path),
            state["scaler"],
        )

    def save_model(self, weights: Mapping[str, Tensor]) -> None:
        """Write the final model: this is what makes a run finished."""
        self._check_lock()
        with disk_errors(self.path):
            _write_tensors(self.path / "model.safetensors", weights)

    def load_model(self) -> dict[str, Tensor]:
        """Read the final model."""
        if not self.finished:
            raise SafdaError(f"{self.path}: has not finished; 'safda resume {self.path}' goes on with it")
        try:
            return self._named_as_now(_read_tensors(self.path / "model.safetensors"))
        except SafdaError as error:
            if not self.has_checkpoint:
                raise
            raise SafdaError(f"{error}; 'safda resume {self.path}' makes it again from the last checkpoint") from None

    def mend(self) -> None:
        """Take away what is damaged of a result and can be made again, and say so."""
        results: dict[str, Callable[[], object]] = {
            "choice.json": lambda: self.choice,
            "model.safetensors": lambda: self.finished and self.load_model(),
            "summary.json": lambda: self.summary,
        }
        for name, read in results.items():
            if self.has_checkpoint and (self.path / name).is_file():
                try:
                    read()
                except SafdaError as error:
                    warnings.warn(str(error), SafdaWarning, stacklevel=2)
                    (self.path / name).unlink(missing_ok=True)  # another process of the run may have been first
                    (self.path / "choice.json").unlink(missing_ok=True)  # it says what the model is a model of

    def newest_weights(self) -> dict[str, Tensor]:
        """Read the final model or, while there is none, that of the newest checkpoint."""
        return self.load_model() if self.finished else self.last_checkpoint().model

    def _require_free(self) -> None:
        """Refuse a folder that holds a run, or anything that is not of one."""
        if self.can_go_on:
            raise SafdaError(
                f"{self.path}: already holds a run; 'safda resume {self.path}' goes on with it, or choose another -o"
            )
        names = {entry.name for entry in self.path.iterdir()} if self.path.is_dir() else set()
        if names and (_LOCK not in names or not all(map(_is_beginning, names))):  # what is not locked is not ours
            raise SafdaError(f"{self.path}: is not empty; choose a new folder for the run")

    def _clear(self) -> None:
        """Take away what is there of a run that never came to train."""
        for entry in self.path.iterdir():
            if entry.is_dir():
                shutil.rmtree(entry)
            elif entry.name != _LOCK:
                entry.unlink()

    def _acquire(self) -> None:
        lock = Lock(self.path / _LOCK, str(self.path))
        lock.acquire()
        self._lock = lock

    def _release(self) -> None:
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def _check_lock(self) -> None:
        if self._lock is not None:
            self._lock.check()

    def _named_as_now(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        former = self.data.get("format", 1) < FORMAT
        return upgraded_names(tensors, self.recipe.methods) if former else tensors

    def _checkpoint_path(self, step: int) -> Path:
        return self.path / "checkpoints" / f"step-{step:08d}"

    def _checkpoints(self) -> list[Path]:
        return sorted((self.path / "checkpoints").glob("step-*"))


def _lines(metrics: Path) -> list[bytes]:
    """Read lines of metrics; where they are lost, a run can go on without them."""
    try:
        return metrics.read_bytes().splitlines(keepends=True)
    except OSError as error:
        warnings.warn(f"{metrics}: cannot be read ({error.strerror}); begun anew", SafdaWarning, stacklevel=3)
        return []


def _metrics_line(line: bytes) -> dict[str, Any] | None:
    try:
        content = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return content if isinstance(content, dict) and isinstance(content.get("step"), int) else None


def _optimizer_state(checkpoint: Path) -> dict[str, Tensor]:
    """Read what the optimizer remembers; format 1 had SGD's momentum alone."""
    former = checkpoint / "momentum.safetensors"
    if former.exists():
        return {f"{name}:momentum_buffer": value for name, value in read_weights(former).items()}
    return _read_tensors(checkpoint / "optimizer.safetensors")


def _methods_state(checkpoint: Path) -> dict[str, Tensor]:
    """Read what methods remember; before format 3 that was label propagation alone."""
    former = checkpoint / "neighbours.safetensors"
    if former.exists():
        return {f"pseudo_labels.{name}": value for name, value in read_weights(former).items()}
    return _read_tensors(checkpoint / "methods.safetensors")


def never_began(path: Path) -> SafdaError:
    """Return what is to be said of a run that was stopped before its first checkpoint."""
    return SafdaError(f"{path}: was stopped before its first checkpoint; the same 'safda fit … -o {path}' begins again")


def _is_beginning(name: str) -> bool:
    return name in _BEGINNINGS or (name.startswith(".") and name.endswith(".part"))


def _write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    write_bytes(path, serialise(dict(tensors), metadata={"digest": _digest(tensors)}))


def _read_tensors(path: Path) -> dict[str, Tensor]:
    """Read tensors, and make sure that they are what was written; files from before there was a digest go unchecked."""
    tensors = read_weights(path)
    with safe_open(path, framework="pt") as file:
        written = (file.metadata() or {}).get("digest")
    if written not in (None, _digest(tensors)):
        raise SafdaError(f"{path}: is damaged: it does not hold what was written")
    return tensors


def _digest(tensors: Mapping[str, Tensor]) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for name, value in sorted(tensors.items()):
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
        digest.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _require_room(path: Path, size: int) -> None:
    free = shutil.disk_usage(path).free
    if free < size:
        raise SafdaError(f"{path}: the run needs {size / 1e6:,.1f} MB and the disk has {free / 1e6:,.1f} MB free")


def environment() -> dict[str, Any]:
    """Return what a run ran on: versions, threads, git state."""
    packages = ("safda", "torch", "torchvision", "timm", "accelerate", "numpy", "scikit-learn", "safetensors")
    return {
        "python": sys.version.split()[0],
        "platform": platform.platform(),
        "packages": {name: metadata.version(name) for name in packages},
        "threads": torch.get_num_threads(),
        "cuda": torch.version.cuda,
        "git": _git_state(),
    }


def _git_state() -> dict[str, Any] | None:
    """Commit and cleanliness of the tree that the run was started in, if it is one."""

    def git(*words: str) -> str:
        return subprocess.run(["git", *words], capture_output=True, text=True, timeout=10, check=True).stdout.strip()

    try:
        return {"commit": git("rev-parse", "HEAD"), "changed": bool(git("status", "--porcelain"))}
    except (OSError, subprocess.SubprocessError):
        return None
