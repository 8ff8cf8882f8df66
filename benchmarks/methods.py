"""What a step of each method costs, on arrays at the paper's sizes, relative to source-only training.

    python -m benchmarks.methods [--threads 1] [--rounds 3] [--steps 40] [--methods mcd,dan]

Everything is measured in one run, in turns, through the real training loop, and the figures that count are ratios. A
step is an iteration, with all its optimizer steps and what is done only now and then: its mean, not its median. Of
ADDA it is the second stage. Those that need pictures are left out.
"""

from __future__ import annotations

import argparse
import json
import statistics

import torch

from benchmarks.step import step_seconds
from safda.methods import METHODS

_SECOND_STAGE = {"adda": {"adda.pretraining": 0.01}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--methods", default=",".join(name for name in METHODS if not METHODS[name].pictures_only))
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    rows = {name: [name] for name in options.methods.split(",")}
    rows |= {f"{name}+saf": [name, "saf"] for name in rows if name != "saf" and "saf" not in METHODS[name].excludes}
    ratios: dict[str, list[float]] = {name: [] for name in rows}
    for _ in range(options.rounds):
        source_only = statistics.mean(step_seconds(options.steps, []))
        for name, methods in rows.items():
            changes = _SECOND_STAGE.get(name, {})
            ratios[name].append(statistics.mean(step_seconds(options.steps, methods, **changes)) / source_only)
    for name, values in ratios.items():
        print(f"{name:<22} {statistics.median(values):6.2f}  ({min(values):.2f} to {max(values):.2f})")
    print(json.dumps({"threads": options.threads, "rounds": options.rounds, "ratios": ratios}))


if __name__ == "__main__":
    main()
