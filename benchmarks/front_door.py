"""The front door on Office-31: what each way of typing it gives, from pictures, with a frozen backbone and fine-tuned.

    python -m benchmarks.front_door OFFICE31 WEIGHTS -o RESULTS [--tasks amazon:webcam …] [--steps 300 1000 2000]
        [--rows fit mdd source …] [--seeds 3] [--fine-tune-steps 300] [--backbone tf_efficientnet_lite0]

OFFICE31 is the dataset as it comes off the disk, WEIGHTS a safetensors file, RESULTS a folder: what is in it is not run
again, so a benchmark that was stopped goes on. Accuracies are those at the last step: no target label is looked at
before, and none chooses anything. Every row but the last trains on the same frozen features. All rows are of the
single recipe: without ``--no-choice`` (of the estimator, ``choice.candidates = 0``), the default would try several.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import safda
from benchmarks.lines import add_line, read_lines
from safda.cli import main as safda_command
from safda.data import load_domain
from safda.recipe import SOURCE_ONLY_CHANGES

#: Row → what is typed.
ROWS = {
    "source": "source only",
    "mdd": "`safda fit SOURCE TARGET -o RUN --no-saf` (MDD)",  # whoever names methods gets these, and no choice
    "fit": "`safda fit SOURCE TARGET -o RUN --no-choice`",
    "npz": "`safda fit source.npz target.npz -o RUN --no-choice` on their features",
    "estimator": '`SAFClassifier(knobs={"choice.candidates": 0})` on their features',
    "fine-tune": "`safda fit SOURCE TARGET -o RUN --no-choice --fine-tune`",
}


class Door:
    """One task: its folders, their features, and every way to adapt.

    Args:
        folder: for runs and features.
        source, target: folders of pictures.
        backbone: knobs of it, as command-line options.
    """

    def __init__(self, folder: Path, source: Path, target: Path, backbone: dict[str, str]) -> None:
        self.folder, self.source, self.target, self.backbone = folder, source, target, backbone
        self.labelled = load_domain(target)

    def features(self, domain: Path) -> Path:
        """Compute a domain's features, as a user would, once."""
        file = self.folder / f"{domain.name}.npz"
        if not file.exists():
            _type("features", domain, "-o", file, *_words(self.backbone))
        return file

    def accuracy(self, row: str, steps: int, seed: int, tune_steps: int) -> tuple[float, dict[str, Any]]:
        """Adapt, and compare what was predicted with the labels: an oracle's number."""
        if row == "estimator":
            source, target = (np.load(self.features(domain)) for domain in (self.source, self.target))
            names = source["classes"][source["labels"]]
            classifier = safda.SAFClassifier(steps=steps, random_state=seed, knobs={"choice.candidates": 0})
            classifier.fit(source["features"], names, X_target=target["features"])
            predicted = classifier.predict(target["features"])
            return float((predicted == target["classes"][target["labels"]]).mean()), {}
        if row == "source":
            knobs: dict[str, Any] = {f"network.{name}": value for name, value in self.backbone.items()}
            adapted = safda.fit(self.source, self.labelled, steps=steps, seed=seed, **knobs, **SOURCE_ONLY_CHANGES)
            return adapted.evaluate(self.labelled).accuracy, {}
        return self._typed(row, steps, seed, tune_steps)

    def _typed(self, row: str, steps: int, seed: int, tune_steps: int) -> tuple[float, dict[str, Any]]:
        run = self.folder / "runs" / f"{row}-{steps}-{seed}"
        more: dict[str, list[Any]] = {
            "mdd": ["--no-saf"],
            "fine-tune": ["--fine-tune", "--fine-tune.steps", tune_steps, "--cache-decoded"],
        }
        knobs = ["-o", run, "--no-choice", "--steps", steps, "--seed", seed, *more.get(row, [])]
        if (run / "recipe.toml").exists():
            _type("resume", run)
        elif row == "npz":
            _type("fit", *map(self.features, (self.source, self.target)), *knobs)
        else:
            _type("fit", self.source, self.target, *_words(self.backbone), *knobs)
        adapted = safda.Adapted.load(run)
        known = {"verdict": adapted.summary["verdict"], "words": adapted.summary["words"]} if adapted.summary else {}
        if row == "fine-tune":
            known["frozen"] = safda.Adapted.load(run / "frozen").evaluate(self.labelled).accuracy
        return adapted.evaluate(self.labelled if row != "npz" else self.features(self.target)).accuracy, known


def _words(backbone: dict[str, str]) -> list[str]:
    return [word for name, value in backbone.items() for word in (f"--{name}", value)]


def _type(*words: object) -> None:
    if safda_command([str(word) for word in words]):
        raise SystemExit(f"failed: safda {' '.join(map(str, words))}")


class Results:
    """Lines of JSON, one a run, that survive a stop."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.lines = read_lines(file)

    def get(self, key: dict[str, Any], run: Callable[[], tuple[float, dict[str, Any]]]) -> None:
        """Find a run, or make it."""
        if any({name: line[name] for name in key} == key for line in self.lines):
            return
        began = time.perf_counter()
        accuracy, known = run()
        line = {**key, "accuracy": round(100 * accuracy, 2), "seconds": round(time.perf_counter() - began), **known}
        self.lines.append(line)
        add_line(self.file, line)

    def cell(self, **key: Any) -> str:
        """Mean ± standard deviation over the seeds of a cell, and how many there are."""
        values = [line["accuracy"] for line in self.lines if {name: line[name] for name in key} == key]
        if not values:
            return "–"
        spread = f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else ""
        return f"{statistics.mean(values):.1f}{spread} ({len(values)})"


def table(results: Results, tasks: Iterable[str], steps: list[int]) -> str:
    lines = []
    for task in tasks:
        lines += ["", f"| {task} | {' | '.join(f'{count:,} steps' for count in steps)} |"]
        lines.append("|---" + "|---:" * len(steps) + "|")
        for row, title in ROWS.items():
            lines.append(f"| {title} | {' | '.join(results.cell(task=task, row=row, steps=n) for n in steps)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("office31", type=Path)
    parser.add_argument("weights", type=Path)
    parser.add_argument("-o", "--out", type=Path, required=True)
    parser.add_argument("--tasks", nargs="+", default=["amazon:webcam", "webcam:amazon"])
    parser.add_argument("--rows", nargs="+", default=list(ROWS), choices=list(ROWS))
    parser.add_argument("--steps", nargs="+", type=int, default=[300, 1000, 2000])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--fine-tune-steps", type=int, default=300)
    parser.add_argument("--backbone", default="tf_efficientnet_lite0")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    results = Results(options.out / "results.jsonl")
    for task in options.tasks:
        source, target = (options.office31 / name for name in task.split(":"))
        knobs = {"backbone": options.backbone, "weights": str(options.weights)}
        door = Door(options.out / task.replace(":", "-"), source, target, knobs)
        door.folder.mkdir(exist_ok=True)
        seeds = range(options.first_seed, options.first_seed + options.seeds)
        for seed, row, steps in itertools.product(seeds, options.rows, options.steps):
            key = {"task": task, "row": row, "steps": steps, "seed": seed}
            results.get(key, partial(door.accuracy, row, steps, seed, options.fine_tune_steps))
    print(table(results, options.tasks, options.steps))


if __name__ == "__main__":
    main()
