"""Which tasks of a benchmark are of which data set, and where their domains are."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from safda.bench.benchmark import Benchmark
from safda.data import EMBEDDED
from safda.errors import SafdaError, nearest


def data_sets(
    benchmark: Benchmark, chosen: Iterable[str] | None = None, tasks: Iterable[str] | None = None
) -> dict[str, list[str]]:
    """Data set → its tasks: those whose source begins with ``SET/``, or all under the benchmark's own name.

    Args:
        benchmark: whose tasks.
        chosen: data sets; by default all.
        tasks: some of the benchmark's, with → or ->; by default all.
    """
    wanted = benchmark.tasks if tasks is None else [task.replace("->", "→") for task in tasks]
    for task in wanted:
        if task not in benchmark.tasks:
            raise SafdaError(f"{benchmark.name}: no task {task!r}{nearest(task, benchmark.tasks)}")
    sets: dict[str, list[str]] = {}
    for task in wanted:
        name, slash, _ = task.split("→")[0].partition("/")
        sets.setdefault(name if slash else benchmark.name, []).append(task)
    for name in chosen or ():
        if name not in sets:
            raise SafdaError(f"{benchmark.name}: no data set {name!r}{nearest(name, sets)}")
    return {name: tasks for name, tasks in sets.items() if chosen is None or name in chosen}


def domains_of(benchmark: Benchmark, task: str, data: Path) -> tuple[str | Path, str | Path]:
    """Return where a task's source and target are: files in a folder, or names of what is embedded."""
    source, target = (benchmark.domains[end] for end in task.split("→"))
    return (
        source if source in EMBEDDED else data / source,
        target if target in EMBEDDED else data / target,
    )
