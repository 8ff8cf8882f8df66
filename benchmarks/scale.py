"""What size costs: the same training on features of VisDA's size and on 4,000, from disk.

    python -m benchmarks.scale [--folder /tmp] [--large 207000] [--small 4000] [--steps 150] [--rounds 3]

Makes both files of features (n × 2048, 1.7 GB for the large one), trains on each in a process of its own, in turns,
and tells peak resident memory and steps per second.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path

import numpy as np

WIDTH, CLASSES = 2048, 12


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--large", type=int, default=207_000)
    parser.add_argument("--small", type=int, default=4_000)
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--train", type=Path, help=argparse.SUPPRESS)  # what the child processes are called with
    options = parser.parse_args()
    if options.train:
        print(json.dumps(train(options.train, options.steps)))
        return
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        files = {rows: make(Path(folder), rows) for rows in (options.small, options.large)}
        measured: dict[int, list[dict[str, float]]] = {rows: [] for rows in files}
        for _ in range(options.rounds):
            for rows, file in files.items():
                words = [sys.executable, "-m", "benchmarks.scale", "--train", str(file), "--steps", str(options.steps)]
                done = subprocess.run(words, check=True, capture_output=True, text=True)
                measured[rows].append(json.loads(done.stdout))
    for rows, of_size in measured.items():
        memory = max(each["peak_mb"] for each in of_size)
        print(f"{rows:>8} rows: at most {memory:,.0f} MB")
    pairs = list(zip(measured[options.small], measured[options.large], strict=True))
    for kind in ("steps_per_second", "steps_per_cpu_second"):
        ratios = [large[kind] / small[kind] for small, large in pairs]
        print(f"{kind}, large over small: {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})")
    print(json.dumps({str(rows): of_size for rows, of_size in measured.items()}))


def make(folder: Path, rows: int) -> Path:
    """Write made-up features and labels, piece by piece."""
    path = folder / f"{rows}.npy"
    rng = np.random.default_rng(0)
    labels = rng.integers(0, CLASSES, rows)
    features = np.lib.format.open_memmap(path, mode="w+", dtype=np.float32, shape=(rows, WIDTH))
    for start in range(0, rows, 4096):
        part = labels[start : start + 4096]
        features[start : start + 4096] = (
            rng.standard_normal((len(part), WIDTH), dtype=np.float32) + np.eye(CLASSES, WIDTH, dtype=np.float32)[part]
        )
    features.flush()
    np.save(path.with_suffix(".labels.npy"), labels)
    return path


def train(file: Path, steps: int) -> dict[str, float]:
    """Train on a file as both domains; peak memory of this process, and steps per second."""
    import safda

    clocks: dict[str, list[float]] = {"steps_per_second": [], "steps_per_cpu_second": []}

    def callback(step: int, metrics: Mapping[str, float] | None) -> None:
        clocks["steps_per_second"].append(time.perf_counter())
        clocks["steps_per_cpu_second"].append(time.process_time())  # tells on a busy machine too

    safda.fit(file, file, steps=steps, callback=callback, cpu=True)
    speeds = {name: 1 / statistics.median(b - a for a, b in pairwise(times[10:])) for name, times in clocks.items()}
    status = Path("/proc/self/status").read_text().splitlines()  # getrusage would count what the parent once held
    peak = next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))
    return {**speeds, "peak_mb": peak / 1024}


if __name__ == "__main__":
    main()
