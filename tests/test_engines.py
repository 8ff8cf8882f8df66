"""One machine or many: the same numbers from every engine, whoever is killed, and whenever."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager

import numpy as np
import pytest
import tomli_w

from safda.bench.benchmark import from_dict
from safda.bench.engines import Engine, run_cells
from safda.bench.lab import open_lab
from safda.bench.run import write_tables
from safda.errors import SafdaError
from tests.conftest import TINY, blobs

STEPS = 120
DEFINITION = {
    "change": {**TINY, "steps": STEPS, "checkpoint_every": 40},
    "domains": {"A": "a.npz", "B": "b.npz"},
    "tasks": ["A→B"],
    "rows": {"source": {}, "mdd+saf": {}},
}
TABLES = ("results.csv", "table.md", "table.tex", "differences.csv")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with two domains and a benchmark."""
    folder = tmp_path_factory.mktemp("engines")
    for name, seed, shift in (("a", 0, 0.0), ("b", 1, 0.7)):
        features, labels = blobs(seed, shift)
        np.savez(folder / f"{name}.npz", features=features, labels=labels)
    (folder / "blobs.toml").write_text(tomli_w.dumps(DEFINITION))
    return folder


def lab_in(place, name):
    benchmark = from_dict("blobs", DEFINITION)
    return open_lab(place / name, benchmark, place, benchmark.runnable(), {}, seeds=2)


def tables(lab):
    write_tables(lab)
    return {name: (lab.tables / name).read_text() for name in TABLES}


@pytest.fixture(scope="module")
def undisturbed(place):
    """The tables of the same grid, run one cell after another in this process."""
    lab = lab_in(place, "undisturbed")
    run_cells(lab.cells(), lab.folder, Engine())
    return tables(lab)


@contextmanager
def local():
    yield Engine(jobs=2)


@contextmanager
def dask():
    distributed = pytest.importorskip("distributed")
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, host="127.0.0.1", dashboard_address=None
    ) as cluster:
        yield Engine("dask", cluster.scheduler_address)


@contextmanager
def ray():
    os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"  # read once, by the import: it keeps Ray on loopback
    utils = pytest.importorskip("ray.cluster_utils")
    node = {"num_cpus": 1}
    cluster = utils.Cluster(initialize_head=True, head_node_args={**node, "include_dashboard": False})
    try:
        cluster.add_node(**node)
        yield Engine("ray", cluster.address)
    finally:
        cluster.shutdown()


def steps_done(lab):
    """How many steps each cell has logged."""
    logs = {cell: lab.store.path(cell) / "metrics.jsonl" for cell in lab.cells()}
    return {cell: log.read_text().count("\n") if log.is_file() else 0 for cell, log in logs.items()}


def wait_until(condition):
    deadline = time.monotonic() + 600  # on a busy machine, a cluster takes its time
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def kill_a_worker(lab, killed):
    """Kill whoever is in the middle of a cell."""

    def middle():
        for cell, steps in steps_done(lab).items():
            if STEPS / 4 < steps < STEPS * 3 / 4:
                pid = int((lab.store.folder / f"{cell.key}.lock").read_text().split()[0])
                os.kill(pid, signal.SIGKILL)
                killed.append((pid, cell))
                return True
        return False

    wait_until(middle)


@pytest.mark.parametrize("engine", [local, dask, ray])
def test_every_engine_gives_the_same_and_a_killed_worker_changes_nothing(place, undisturbed, engine):
    with engine() as chosen:
        plain = lab_in(place, f"plain-{engine.__name__}")
        run_cells(plain.cells(), plain.folder, chosen)
        assert tables(plain) == undisturbed

        lab, killed = lab_in(place, f"killed-{engine.__name__}"), []
        assassin = threading.Thread(target=kill_a_worker, args=(lab, killed))
        assassin.start()
        run_cells(lab.cells(), lab.folder, chosen)
        assassin.join()
    ((pid, cell),) = killed
    assert pid != os.getpid()
    assert (lab.store.folder / f"{cell.key}.lock").read_text() == ""  # someone else finished it, and let it go
    assert tables(lab) == undisturbed


def test_a_driver_killed_at_random_moments_changes_nothing(place, undisturbed):
    lab, moments = lab_in(place, "driver"), random.Random(0)
    words = ["bench", str(place / "blobs.toml"), "-o", str(lab.folder), "--seeds", "2"]
    for jobs in ("1", "2"):
        driver = subprocess.Popen([sys.executable, "-m", "safda.cli", *words, "--jobs", jobs], stdout=subprocess.PIPE)
        enough = sum(steps_done(lab).values()) + moments.randrange(20, STEPS)
        wait_until(lambda: driver.poll() is not None or sum(steps_done(lab).values()) > enough)  # noqa: B023
        assert driver.poll() is None
        driver.kill()
        driver.communicate()
    run_cells(lab.cells(), lab.folder, Engine())
    assert tables(lab) == undisturbed


def test_workers_that_keep_dying_are_told(place, monkeypatch):
    lab = lab_in(place, "dying")
    monkeypatch.setattr("safda.bench.engines.run_cell", _dies)
    monkeypatch.setattr("safda.bench.engines._MAX_FAILURES", 2)  # each round starts processes anew
    with pytest.raises(SafdaError, match=r"the workers of engine local keep dying"):
        run_cells(lab.cells(), lab.folder, Engine(jobs=2))


def _dies(*_):
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_cluster_that_is_not_there_is_told(place, monkeypatch):
    pytest.importorskip("distributed")
    monkeypatch.setattr("safda.bench.engines._TIMEOUT", 2)
    lab = lab_in(place, "nowhere")
    with pytest.raises(SafdaError, match=r"--address tcp://127.0.0.1:9: no Dask scheduler there"):
        run_cells(lab.cells(), lab.folder, Engine("dask", "tcp://127.0.0.1:9"))
