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
      choice.json         which of several recipes was taken, and why; until then there is none
      candidates/         what was tried: a run folder each, on features
      frozen/             the first stage of a run that fine-tunes: a run folder of its own

Files appear whole or not at all: they are written beside their place, flushed, and renamed. Weights are
safetensors and the rest is text, so loading never runs code.
"""

from __future__ import annotations

import json
import platform
import shutil
import subprocess
import sys
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from safetensors.torch import save as serialise
from torch import Tensor

from safda.errors import SafdaError, SafdaWarning
from safda.formats import FORMAT, check_format, upgraded_names
from safda.io import disk_errors, read_json, sync_dir, write_bytes, write_json, write_text
from safda.nn.weights import read_weights
from safda.recipe import Recipe

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

    @classmethod
    def create(cls, path: str | Path, recipe: Recipe, data: Mapping[str, Any], model_size: int) -> RunFolder:
        """Begin a run in a new or empty folder, or leave nothing there.

        Args:
            path: the folder.
            recipe: the experiment.
            data: where the domains came from, and what they look like.
            model_size: bytes of the weights, to make sure before any training that all of the run will fit.
        """
        run = cls(Path(path))
        if (run.path / "recipe.toml").exists():
            raise SafdaError(
                f"{path}: already holds a run; 'safda resume {path}' goes on with it, or choose another -o"
            )
        if run.path.is_dir() and any(run.path.iterdir()):
            raise SafdaError(f"{path}: is not empty; choose a new folder for the run")
        made = not run.path.exists()
        try:
            with disk_errors(run.path):
                (run.path / "checkpoints").mkdir(parents=True, exist_ok=True)
                _require_room(run.path, model_size * _MODELS_ON_DISK)
                write_json(run.path / "data.json", {"format": FORMAT, **data})
                write_json(run.path / "environment.json", {"seed": recipe.seed, **environment()})
                write_text(run.path / "metrics.jsonl", "")
                write_text(run.path / "recipe.toml", recipe.to_toml())  # last: it makes the folder a run
        except SafdaError:
            if made:
                shutil.rmtree(run.path, ignore_errors=True)
            raise
        return run

    @classmethod
    def open(cls, path: str | Path) -> RunFolder:
        """Open a run that is there."""
        run = cls(Path(path))
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
        return Recipe.from_toml(file.read_text(encoding="utf-8"), str(file))

    @property
    def choice(self) -> dict[str, Any] | None:
        """Which recipe was taken, with the evidence; None until it was, or where there is no choice."""
        there = [file for file in (self.path / "choice.json", self.path / "frozen" / "choice.json") if file.is_file()]
        return read_json(there[0]) if there else None

    def save_choice(self, choice: Mapping[str, Any]) -> None:
        """Write which recipe was taken."""
        with disk_errors(self.path):
            write_json(self.path / "choice.json", dict(choice))

    @property
    def data(self) -> dict[str, Any]:
        """Where the data came from, and what they look like."""
        return read_json(self.path / "data.json")

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
    def summary(self) -> dict[str, Any] | None:
        """What was said of the result, without labels; None until it was."""
        file = self.path / "summary.json"
        return read_json(file) if file.is_file() else None

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

    def forget_metrics_after(self, step: int) -> None:
        """Drop what was logged after a checkpoint, since the steps after it will be made again."""
        kept = [json.dumps(line) + "\n" for line in self.metrics() if line["step"] <= step]
        write_text(self.path / "metrics.jsonl", "".join(kept))

    def save_checkpoint(self, checkpoint: Checkpoint) -> None:
        """Write a checkpoint whole, then let the oldest go."""
        final = self._checkpoint_path(checkpoint.step)
        draft = final.with_name(f".{final.name}")
        with disk_errors(self.path):
            shutil.rmtree(draft, ignore_errors=True)
            draft.mkdir(parents=True)
            write_bytes(draft / "model.safetensors", serialise(checkpoint.model))
            write_bytes(draft / "optimizer.safetensors", serialise(checkpoint.optimizer))
            write_bytes(draft / "methods.safetensors", serialise(checkpoint.methods))
            write_json(draft / "state.json", {"step": checkpoint.step, "scaler": checkpoint.scaler})
            shutil.rmtree(final, ignore_errors=True)
            draft.rename(final)
            sync_dir(final.parent)
        for old in self._checkpoints()[:-_KEPT_CHECKPOINTS]:
            shutil.rmtree(old, ignore_errors=True)

    def last_checkpoint(self) -> Checkpoint:
        """Read the newest checkpoint."""
        there = self._checkpoints()
        if not there:
            raise SafdaError(f"{self.path}: has no checkpoint to go on from; delete the folder and fit again")
        state = read_json(there[-1] / "state.json")
        return Checkpoint(
            state["step"],
            self._named_as_now(read_weights(there[-1] / "model.safetensors")),
            self._named_as_now(_optimizer_state(there[-1])),
            _methods_state(there[-1]),
            state["scaler"],
        )

    def save_model(self, weights: Mapping[str, Tensor]) -> None:
        """Write the final model: this is what makes a run finished."""
        with disk_errors(self.path):
            write_bytes(self.path / "model.safetensors", serialise(dict(weights)))

    def load_model(self) -> dict[str, Tensor]:
        """Read the final model."""
        if not self.finished:
            raise SafdaError(f"{self.path}: has not finished; 'safda resume {self.path}' goes on with it")
        return self._named_as_now(read_weights(self.path / "model.safetensors"))

    def newest_weights(self) -> dict[str, Tensor]:
        """Read the final model or, while there is none, that of the newest checkpoint."""
        return self.load_model() if self.finished else self.last_checkpoint().model

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
    return read_weights(checkpoint / "optimizer.safetensors")


def _methods_state(checkpoint: Path) -> dict[str, Tensor]:
    """Read what methods remember; before format 3 that was label propagation alone."""
    former = checkpoint / "neighbours.safetensors"
    if former.exists():
        return {f"pseudo_labels.{name}": value for name, value in read_weights(former).items()}
    return read_weights(checkpoint / "methods.safetensors")


def _require_room(path: Path, size: int) -> None:
    free = shutil.disk_usage(path).free
    if free < size:
        raise SafdaError(f"{path}: the run needs {size / 1e6:,.1f} MB and the disk has {free / 1e6:,.1f} MB free")


def environment() -> dict[str, Any]:
    """Return what a run ran on: versions, threads, git state."""
    import torch

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
