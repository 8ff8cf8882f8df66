"""Office-31 from pictures: source only against MDD+SAF, with a frozen backbone or a trained one.

    python -m benchmarks.office31 OFFICE31 WEIGHTS [--source amazon] [--target webcam] [--steps 1000] [--batch 32]
        [--seeds 3] [--fine-tune] [--backbone tf_efficientnet_lite0]

OFFICE31 is the dataset as it comes off the disk, WEIGHTS a safetensors file. Accuracies are those at the last step:
no target label is looked at before, and none chooses anything.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Mapping
from pathlib import Path

import safda
from safda.data import load_domain

METHODS: dict[str, Mapping[str, object]] = {
    "source only": {"adversary.name": "none", "saf.enabled": False},
    "MDD+SAF": {},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("office31", type=Path)
    parser.add_argument("weights", type=Path)
    parser.add_argument("--source", default="amazon")
    parser.add_argument("--target", default="webcam")
    parser.add_argument("--backbone", default="tf_efficientnet_lite0")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--fine-tune", action="store_true", help="train the backbone too, at a tenth of the rate")
    options = parser.parse_args()
    source, target = (load_domain(options.office31 / name) for name in (options.source, options.target))
    network = {
        "network.backbone": options.backbone,
        "network.weights": str(options.weights),
        "network.frozen": not options.fine_tune,
    }
    results: dict[str, list[float]] = {}
    for name, changes in METHODS.items():
        for seed in range(options.seeds):
            began = time.perf_counter()
            knobs = {**network, **changes, "seed": seed, "steps": options.steps, "batch": options.batch}
            adapted = safda.fit(source, target, **knobs)
            trained = time.perf_counter() - began
            results.setdefault(name, []).append(adapted.evaluate(target).accuracy)
            print(f"{name}, seed {seed}: {results[name][-1]:.1%} after {trained:.0f} s of training", flush=True)
    for name, values in results.items():
        spread = f" ± {100 * statistics.stdev(values):.1f}" if len(values) > 1 else ""
        print(f"{name:<12} {100 * statistics.mean(values):.1f}{spread}")
    print(json.dumps({"steps": options.steps, "batch": options.batch, "accuracies": results}))


if __name__ == "__main__":
    main()
