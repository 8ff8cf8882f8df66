"""One cell of a grid: train it, or go on with it, then score it. This is what a worker does, wherever it is."""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from threadpoolctl import threadpool_limits

from safda.api import completed
from safda.bench.lab import Cell, Store
from safda.classifier import Adapted, Predictions
from safda.data import AnyDomain, load_domain
from safda.data.images import TransformedImages
from safda.errors import SafdaError
from safda.evaluation.scores import Outputs, scores
from safda.io import write_json
from safda.training.checkpoint import CANDIDATES
from safda.training.loop import StepCallback

# How many threads a run may use is the process's setting, and its seconds are its own. Dask may give a worker several
# threads.
_process_lock = threading.Lock()


def run_cell(cell: Cell, lab: Path, threads: int, cpu: bool, driver: int | None) -> None:
    """Make sure that a cell's result is in the store, or a line on why it failed.

    Args:
        cell: what to run.
        lab: the lab's folder, which this worker must see under the same path as everyone else.
        threads: how many the run may use.
        cpu: stay on the CPU even where there is a GPU.
        driver: the process that started this worker on its machine; without it, the worker ends.
    """
    store = Store(lab)
    with _process_lock, store.lock(cell), limit_threads(threads):
        if store.result(cell) is not None:
            return
        store.forget_failure(cell)
        try:
            result = _result(cell, store.path(cell), cpu, _end_with(driver))
        except Exception as error:  # whatever it is, the other cells go on
            store.note_failure(
                cell, str(error) if isinstance(error, SafdaError) else f"{type(error).__name__}: {error}"
            )
            return
        write_json(store.path(cell) / "result.json", result)
        shutil.rmtree(store.path(cell) / "checkpoints", ignore_errors=True)  # a finished run resumes no more


def _result(cell: Cell, path: Path, cpu: bool, callback: StepCallback | None) -> dict[str, Any]:
    begun = time.perf_counter()
    source, target = _domain(cell.source), _domain(cell.target)
    adapted = completed(path, source, target, cell.recipe, callback, cpu)
    predictions = adapted.predict(target)
    evaluation = adapted.compare(predictions, target)
    candidates = {
        each.name: Adapted.load(each).evaluate(target).accuracy for each in sorted((path / CANDIDATES).glob("*"))
    }
    return {
        "accuracy": evaluation.accuracy,
        "mean_class_accuracy": evaluation.mean_class_accuracy,
        "class_accuracy": evaluation.class_accuracy,
        "calibration_error": evaluation.calibration_error,
        "scores": scores(_outputs(adapted, source, predictions)),
        **({"candidates": candidates} if candidates else {}),  # the oracle's, for whoever studies the choice
        "seconds": round(time.perf_counter() - begun, 3),
    }


def _outputs(adapted: Adapted, source: AnyDomain, target: Predictions) -> Outputs:
    """Return what scores may look at; without the source where each of its pictures would have to be decoded again."""
    if isinstance(adapted.ready(source).inputs, TransformedImages):
        return Outputs(target)
    return Outputs.of(adapted, source, target)


@lru_cache(maxsize=4)
def _domain(where: str) -> AnyDomain:
    return load_domain(where)


def _end_with(driver: int | None) -> StepCallback | None:
    """End this worker when its driver has gone, so that it doesn't keep a cell from the next one."""
    if driver is None or driver == os.getpid():
        return None

    def check(step: int, metrics: Mapping[str, float] | None) -> None:
        if os.getppid() != driver:
            os._exit(1)

    return check


@contextmanager
def limit_threads(threads: int) -> Iterator[None]:
    """Use so many threads and no more, for a while."""
    before = torch.get_num_threads()
    with threadpool_limits(threads):
        torch.set_num_threads(threads)
        try:
            yield
        finally:
            torch.set_num_threads(before)
