"""Is the verdict right? Every task of every data set at hand, and pure noise: what is said, and what is true.

    python -m benchmarks.verdict DATA -o RESULTS [--sets office31_resnet50 …] [--steps 2000] [--seed 0]

DATA holds a folder for each data set, with a ``<domain>.npz`` of ``features`` and ``labels`` for each domain. RESULTS
is a folder; runs that are in it are not made again. Target labels only tell, at the end, whether a verdict was right.
The single recipe is run (--no-choice), where there is more harm to be told than in what a choice takes.
Noise comes in three kinds: normal, with mean and deviation of the target's columns; the target's own numbers, each
column shuffled by itself; and uniform between the target's least and largest number.
"""

from __future__ import annotations

import argparse
import itertools
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import safda
from benchmarks.lines import add_line, read_lines
from safda.evaluation.verdict import judge

Array = NDArray[np.floating[Any]]
_NOISE: dict[str, Callable[[np.random.Generator, Array], Array]] = {
    "normal": lambda rng, rows: rng.normal(rows.mean(0), rows.std(0), rows.shape),
    "shuffled": lambda rng, rows: rng.permuted(rows, axis=0),
    "uniform": lambda rng, rows: rng.uniform(rows.min(), rows.max(), rows.shape),
}
_COLUMNS = ("source_only", "adapted", "kappa", "neighbours", "shuffled", "p_value")


def load(file: Path) -> tuple[Array, NDArray[np.int64]]:
    content = np.load(file, allow_pickle=False)
    return content["features"].astype(np.float32), content["labels"]


def adapt(source: Path, target: Path, kind: str, out: Path, steps: int, seed: int) -> dict[str, Any]:
    """Adapt, and compare what was predicted, before and after, with what is true."""
    features, labels = load(target)
    if kind != "real":
        features = _NOISE[kind](np.random.default_rng(0), features).astype(np.float32)
    shutil.rmtree(out, ignore_errors=True)  # of one that was stopped
    single: dict[str, Any] = {"choice.candidates": 0, "steps": steps, "seed": seed}
    adapted = safda.fit(load(source), features, out=out, cpu=True, report=False, **single)
    known: dict[str, Any] = {"run": out.name}
    if kind == "real":
        before = np.array([line.split(",")[-1] for line in (out / "predictions.csv").read_text().split()[1:]])
        known["source_only"] = round(100 * float((before == labels.astype(str)).mean()), 1)
        known["adapted"] = round(100 * adapted.evaluate((features, labels)).accuracy, 1)
    return known


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("data", type=Path)
    parser.add_argument("-o", "--out", type=Path, required=True)
    parser.add_argument("--sets", nargs="+")
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    store = options.out / "results.jsonl"
    lines = read_lines(store)
    names = options.sets or sorted(folder.name for folder in options.data.iterdir() if any(folder.glob("*.npz")))
    for name in names:
        files = sorted((options.data / name).glob("*.npz"))
        pairs = list(itertools.permutations(files, 2))
        noise = [(*pair, kind) for pair in pairs[:2] for kind in _NOISE]
        for source, target, kind in [*((*pair, "real") for pair in pairs), *noise]:
            key = {"set": name, "task": f"{source.stem} → {target.stem}", "kind": kind}
            if any({part: line[part] for part in key} == key for line in lines):
                continue
            out = options.out / f"{name}-{source.stem}-{target.stem}-{kind}"
            lines.append({**key, **adapt(source, target, kind, out, options.steps, options.seed)})
            add_line(store, lines[-1])
    print(table([{**line, **judged(options.out / line["run"])} for line in lines]))


def judged(run: Path) -> dict[str, Any]:
    """Judge what a run found, by today's rules: a run made before them need not be made again."""
    summary = json.loads((run / "summary.json").read_text())
    numbers = {"kappa": summary["agreement"]["kappa"], **summary["structure"]}
    return {**{name: f"{value:.2f}" for name, value in numbers.items()}, "verdict": judge(summary)["verdict"]}


def table(lines: list[dict[str, Any]]) -> str:
    """Give one row a run, and count how often each verdict was given where adapting helped, harmed, or was of noise."""
    rows = [
        "| data | task | source only | adapted | kappa | neighbours | shuffled | p | verdict |",
        "|---|---|" + "---:|" * 6 + "---|",
    ]
    counts: dict[tuple[str, str], int] = {}
    for line in lines:
        real = line["kind"] == "real"
        truth = "noise"
        if real:
            truth = "harmed by more than a point" if line["adapted"] < line["source_only"] - 1 else "not harmed"
        counts[truth, line["verdict"]] = counts.get((truth, line["verdict"]), 0) + 1
        task = line["task"] if real else f"{line['task']}, {line['kind']} noise"
        numbers = [line.get(name, "–") for name in _COLUMNS]
        rows.append(f"| {line['set']} | {task} | {' | '.join(map(str, numbers))} | {line['verdict']} |")
    verdicts = ("trust", "doubt", "do not trust")
    rows += ["", f"| | {' | '.join(verdicts)} |", "|---|---:|---:|---:|"]
    for truth in sorted({truth for truth, _ in counts}):
        rows.append(f"| {truth} | {' | '.join(str(counts.get((truth, each), 0)) for each in verdicts)} |")
    return "\n".join(rows)


if __name__ == "__main__":
    main()
