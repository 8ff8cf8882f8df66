"""What a step of each method costs at the paper's sizes, relative to source-only training: ``cost`` of each method.

    python -m benchmarks.methods [--threads 1] [--rounds 3] [--steps 40] [--methods mcd,dan]

Everything is measured in one run, in turns, through the real training loop, and the figures that count are ratios. A
step is an iteration, with all its optimizer steps and what is done only now and then: its mean, not its median. Of
ADDA it is the second stage. Samples are 2048 features of 31 classes; for methods that need them, pictures of 32 × 32
pixels through ``small-cnn``, beside source-only training on those.
"""

from __future__ import annotations

import argparse
import json
import statistics

import torch

from benchmarks.step import FEATURES, step_seconds
from safda.methods import METHODS

SECOND_STAGE = {"adda": {"adda.pretraining": 0.01}}
ARRAYS, PICTURES = (FEATURES,), (1, 32, 32)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--methods", default=",".join(METHODS))
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    rows = {name: [name] for name in options.methods.split(",")}
    rows |= {f"{name}+saf": [name, "saf"] for name in rows if name != "saf" and "saf" not in METHODS[name].excludes}
    shapes = {name: PICTURES if METHODS[methods[0]].pictures_only else ARRAYS for name, methods in rows.items()}
    ratios: dict[str, list[float]] = {name: [] for name in rows}
    for _ in range(options.rounds):
        source_only = {shape: statistics.mean(step_seconds(options.steps, [], shape)) for shape in set(shapes.values())}
        for name, methods in rows.items():
            seconds = step_seconds(options.steps, methods, shapes[name], **SECOND_STAGE.get(name, {}))
            ratios[name].append(statistics.mean(seconds) / source_only[shapes[name]])
    for name, values in ratios.items():
        print(f"{name:<22} {statistics.median(values):6.2f}  ({min(values):.2f} to {max(values):.2f})")
    print(json.dumps({"threads": options.threads, "rounds": options.rounds, "ratios": ratios}))


if __name__ == "__main__":
    main()
