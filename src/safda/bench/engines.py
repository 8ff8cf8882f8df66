"""Who runs the cells: this process, several on this machine, or a Ray or Dask cluster; all through joblib."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from joblib import Parallel, delayed, parallel_config

from safda.bench.cells import run_cell
from safda.bench.lab import Cell, Store
from safda.errors import SafdaError, nearest

_MAX_FAILURES = 3  # times that the workers may break, one after the other, without a single cell being finished
_TIMEOUT = 20  # seconds to wait for a cluster to answer


@dataclass(frozen=True)
class Engine:
    """Where cells run.

    Attributes:
        name: local, ray or dask.
        address: of the cluster.
        jobs: cells at a time; None is one here, and as many as it takes on a cluster.
        threads: threads of each cell. The same number gives the same result on every engine.
        cpu: stay on the CPU even where there is a GPU.
    """

    name: str = "local"
    address: str | None = None
    jobs: int | None = None
    threads: int = 1
    cpu: bool = False

    def __post_init__(self) -> None:
        if self.name not in _BACKENDS:
            raise SafdaError(f"--engine {self.name!r} is unknown{nearest(self.name, _BACKENDS)}")
        if self.name != "local" and self.address is None:
            raise SafdaError(f"--engine {self.name} needs the --address of a running cluster")
        for option, value in (("jobs", self.jobs), ("threads", self.threads)):
            if value is not None and value < 1:
                raise SafdaError(f"--{option} {value}: at least one is needed")


def run_cells(cells: Sequence[Cell], lab: Path, engine: Engine) -> None:
    """Run every cell that has no result yet. What fails is noted in the store.

    A worker that dies takes its engine with it on some backends; then the cells that are left are given out
    again, and those that had begun go on from their last checkpoint.
    """
    store, broken = Store(lab), 0
    pending = [cell for cell in cells if store.result(cell) is None]
    for cell in pending:
        store.forget_failure(cell)
    driver = os.getpid() if engine.name == "local" else None
    with _BACKENDS[engine.name](engine):
        while pending:
            try:
                work = (delayed(run_cell)(cell, lab, engine.threads, engine.cpu, driver) for cell in pending)
                Parallel(batch_size=1, pre_dispatch="all")(work)
                return
            except Exception as error:  # a cell's own errors are in the store: this is a worker's death
                left = [cell for cell in pending if store.result(cell) is None and store.failure(cell) is None]
                broken = broken + 1 if len(left) == len(pending) else 0
                if broken == _MAX_FAILURES:
                    why = " ".join(f"{type(error).__name__}: {error}".split())
                    raise SafdaError(f"the workers of engine {engine.name} keep dying: {why[:300]}") from error
                pending = left


@contextmanager
def _local(engine: Engine) -> Iterator[None]:
    with parallel_config("loky", n_jobs=engine.jobs or 1):
        yield


@contextmanager
def _ray(engine: Engine) -> Iterator[None]:
    try:
        import ray
        from ray.util.joblib import register_ray
    except ImportError:
        raise SafdaError("--engine ray needs Ray: pip install ray") from None
    try:
        ray.init(address=engine.address, log_to_driver=False, logging_level=logging.ERROR)
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise SafdaError(f"--address {engine.address}: no Ray cluster there: {' '.join(str(error).split())}") from None
    register_ray()
    try:
        with parallel_config("ray", n_jobs=engine.jobs or -1):
            yield
    finally:
        ray.shutdown()


@contextmanager
def _dask(engine: Engine) -> Iterator[None]:
    try:
        from distributed import Client
    except ImportError:
        raise SafdaError("--engine dask needs Dask: pip install distributed") from None
    try:
        client = Client(engine.address, timeout=_TIMEOUT, set_as_default=True)
    except (OSError, ValueError) as error:
        raise SafdaError(f"--address {engine.address}: no Dask scheduler there: {error}") from None
    with client, parallel_config("dask", n_jobs=engine.jobs or -1):
        yield


_BACKENDS = {"local": _local, "ray": _ray, "dask": _dask}
