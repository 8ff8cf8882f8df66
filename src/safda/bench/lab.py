"""The laboratory's store: a folder of finished and unfinished runs, each under a key made of its recipe and data.

::

    LAB/
      cells/<key>/             a run folder, and result.json once it is finished and scored
      cells/<key>.json         the result alone, of a cell that another lab has run
      cells/<key>.lock         who runs it; empty if nobody does
      cells/<key>.failed       why a cell failed, until it is tried again
      <benchmark>/lab.json     the benchmark, its settings and its domains: what makes the grid
      <benchmark>/…            its tables

A cell belongs to no benchmark: two benchmarks that need the same run share it.
"""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safda import schema
from safda.bench.benchmark import Benchmark, Row, from_dict
from safda.data import EMBEDDED, load_domain
from safda.errors import SafdaError, SafdaWarning
from safda.io import disk_errors, read_json, write_json, write_text
from safda.lock import locked
from safda.recipe import Recipe


@dataclass(frozen=True)
class Cell:
    """One run: a row, a task and a seed; what to train, and on what."""

    row: str
    task: str
    seed: int
    recipe: Recipe
    source: str
    target: str
    key: str


@dataclass(frozen=True)
class LabDomain:
    """A domain of the lab: where it is, and a digest of what it held when it was first used."""

    path: str
    digest: str


class Store:
    """Where the runs are."""

    def __init__(self, lab: Path) -> None:
        self.folder = lab / "cells"

    def path(self, cell: Cell) -> Path:
        """Return the run folder of a cell."""
        return self.folder / cell.key

    def result(self, cell: Cell) -> dict[str, Any] | None:
        """Return the result of a finished cell, or None."""
        own, taken = self.path(cell) / "result.json", self._taken(cell)
        for file, then in ((own, "its run will be scored again"), (taken, "its cell will be run here")):
            if file.is_file():
                try:
                    return read_json(file, schema.RESULT)
                except SafdaError as error:
                    warnings.warn(f"{error}; {then}", SafdaWarning, stacklevel=2)
        return None

    def take(self, cell: Cell, result: Mapping[str, Any]) -> None:
        """Keep the result of a cell that was run elsewhere."""
        write_json(self._taken(cell), result)
        self.forget_failure(cell)

    def has_run(self, cell: Cell) -> bool:
        """Whether the run of a finished cell is here too, and not its result alone."""
        return (self.path(cell) / "result.json").is_file()

    def failure(self, cell: Cell) -> str | None:
        """Return why a cell failed, or None."""
        file = self._failed(cell)
        return file.read_text(encoding="utf-8").strip() if file.is_file() else None

    def note_failure(self, cell: Cell, why: str) -> None:
        """Keep one line on why a cell failed."""
        write_text(self._failed(cell), " ".join(why.split()) + "\n")

    def forget_failure(self, cell: Cell) -> None:
        """Let a cell be tried again."""
        self._failed(cell).unlink(missing_ok=True)

    @contextmanager
    def lock(self, cell: Cell) -> Iterator[None]:
        """Keep everyone else off a cell; whoever comes second waits, unless the first has died."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with locked(self.folder / f"{cell.key}.lock", str(self.path(cell)), wait=True):
            yield

    def _failed(self, cell: Cell) -> Path:
        return self.folder / f"{cell.key}.failed"

    def _taken(self, cell: Cell) -> Path:
        return self.folder / f"{cell.key}.json"


@dataclass(frozen=True)
class Lab:
    """A benchmark in a folder: its settings and its domains, from which every cell's key follows."""

    folder: Path
    benchmark: Benchmark
    settings: Mapping[str, Any]
    domains: Mapping[str, LabDomain]
    seeds: int

    @property
    def store(self) -> Store:
        """Where the runs are."""
        return Store(self.folder)

    @property
    def tables(self) -> Path:
        """Where the benchmark's own files go."""
        return self.folder / self.benchmark.name

    def cells(self, rows: Sequence[Row] | None = None, seeds: int | None = None) -> list[Cell]:
        """Expand the grid, seed by seed, so that a first whole table is there early."""
        rows = self.benchmark.runnable() if rows is None else rows
        return [
            self._cell(row, task, seed)
            for seed in range(self.seeds if seeds is None else seeds)
            for row in rows
            for task in row.tasks
            if set(task.split("→")) <= set(self.domains)
        ]

    def _cell(self, row: Row, task: str, seed: int) -> Cell:
        source, target = (self.domains[end] for end in task.split("→"))
        recipe = self.benchmark.recipe(row, self.settings, seed)
        # what is tried is not in the recipe
        tried = [recipe.candidates(purity) for purity in (0.0, 1.0)] if recipe.choice.candidates else []
        content = json.dumps([recipe.to_dict(), source.digest, target.digest, *tried], sort_keys=True)
        key = hashlib.sha256(content.encode()).hexdigest()[:20]
        return Cell(row.name, task, seed, recipe, source.path, target.path, key)


def open_lab(
    folder: Path, benchmark: Benchmark, data: Path | None, rows: Sequence[Row], settings: Mapping[str, Any], seeds: int
) -> Lab:
    """Begin a lab, or go on with one that has the same settings and data.

    Args:
        folder: the lab.
        benchmark: what to fill in.
        data: where the benchmark's domains are; None if it needs no folder.
        rows: those that will be run; they decide which domains are needed.
        settings: ``preset`` and knobs by their path, for all rows.
        seeds: how many runs of each row and task.
    """
    if seeds < 1:
        raise SafdaError(f"--seeds {seeds}: at least one run of each row is needed")
    needed = [name for name in benchmark.domains if any(name in t.split("→") for row in rows for t in row.tasks)]
    domains = {name: _lab_domain(benchmark, name, data) for name in needed}
    file = folder / benchmark.name / "lab.json"
    if file.exists():
        before = read_lab(file)
        for name, known in before.domains.items():
            if domains.get(name, known).digest != known.digest:
                raise SafdaError(f"{domains[name].path}: has changed since {folder} began; choose another -o")
        if dict(before.settings) != dict(settings):
            had, has = _format_settings(before.settings), _format_settings(settings)
            raise SafdaError(
                f"{folder}: holds {benchmark.name} with {had}, not {has}; choose another -o, or the same settings"
            )
        domains, seeds = {**before.domains, **domains}, max(seeds, before.seeds)
    lab = Lab(folder, benchmark, settings, domains, seeds)
    lab.cells(rows)  # a wrong knob is told before anything is written
    with disk_errors(folder):
        file.parent.mkdir(parents=True, exist_ok=True)
        write_json(file, _to_dict(lab))
    return lab


def read_lab(file: Path) -> Lab:
    """Read a lab back from its ``lab.json``."""
    about = read_json(file, schema.LAB)
    benchmark = from_dict(file.parent.name, about["benchmark"])
    domains = {name: LabDomain(entry["path"], entry["digest"]) for name, entry in about["domains"].items()}
    return Lab(file.parent.parent, benchmark, about["settings"], domains, about["seeds"])


def labs_in(folder: Path) -> list[Lab]:
    """Return every benchmark of a lab's folder."""
    found = [read_lab(file) for file in sorted(folder.glob("*/lab.json"))]
    if not found:
        raise SafdaError(f"{folder}: is not a lab; 'safda bench NAME -o {folder}' makes one")
    return found


def _lab_domain(benchmark: Benchmark, name: str, data: Path | None) -> LabDomain:
    where, wanted = benchmark.domains[name], ", ".join(benchmark.domains.values())
    if where not in EMBEDDED:
        if data is None:
            raise SafdaError(f"{benchmark.name}: needs --data, a folder with {wanted}")
        where = str((data / where).resolve())
    try:
        domain = load_domain(where)
        domain.labelled("a benchmark")
    except SafdaError as error:
        raise SafdaError(f"{benchmark.name}: domain {name} (of {wanted}) cannot be used: {error}") from None
    return LabDomain(where, domain.fingerprint())


def _to_dict(lab: Lab) -> dict[str, Any]:
    return {
        "benchmark": dict(lab.benchmark.definition),
        "settings": dict(lab.settings),
        "domains": {name: {"path": each.path, "digest": each.digest} for name, each in lab.domains.items()},
        "seeds": lab.seeds,
    }


def _format_settings(settings: Mapping[str, Any]) -> str:
    return ", ".join(f"{key} = {value}" for key, value in settings.items()) or "its own settings"
