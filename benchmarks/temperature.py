"""Does a temperature that needs no target labels make confidence on the target honest?

    python -m benchmarks.temperature --data office31_resnet50/ [--steps 500] [--seeds 2]

For every pair of domains: the default recipe on four fifths of the source. Then three temperatures, fitted on what was
trained on, on the fifth of the source that was held out, and on the target with its labels (an oracle); and the
calibration error on the target with each of them, and with none.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

import safda
from safda.classifier import Adapted, Predictions
from safda.data import Domain, load_domain
from safda.evaluation.calibration import fit_temperature
from safda.evaluation.oracle import score


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--data", type=Path, required=True, help="a folder of .npz files, one for each domain")
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--seeds", type=int, default=1)
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for first, second in itertools.permutations(sorted(options.data.glob("*.npz")), 2):
        for seed in range(options.seeds):
            rows.append({"task": f"{first.stem} → {second.stem}", **measure(first, second, options.steps, seed)})
            print(json.dumps(rows[-1], ensure_ascii=False), flush=True)
    print("\n| temperature fitted on | T, median | calibration error on the target, mean |\n|---|---:|---:|")
    for name in ("none", "trained", "held out", "target, an oracle"):
        temperature = statistics.median(row["T"][name] for row in rows)
        print(f"| {name} | {temperature:.2f} | {statistics.mean(row['error'][name] for row in rows):.3f} |")


def measure(source: Path, target: Path, steps: int, seed: int) -> dict[str, dict[str, float]]:
    domains = load_domain(source), load_domain(target)
    assert all(isinstance(domain, Domain) for domain in domains)
    everything = torch.arange(len(domains[0]))
    trained, held_out = (
        domains[0].take(everything[everything % 5 != 0]),
        domains[0].take(everything[everything % 5 == 0]),
    )
    adapted = safda.fit(trained, domains[1], steps=steps, seed=seed, cpu=True)
    seen = {"trained": trained, "held out": held_out, "target, an oracle": domains[1]}
    fitted = {name: fit_temperature(adapted.predict(d).logits, adapted.class_numbers(d)) for name, d in seen.items()}
    temperatures = {"none": 1.0, **fitted}
    labels, answers = adapted.class_numbers(domains[1]), adapted.predict(domains[1])
    return {
        "T": temperatures,
        "error": {name: error_at(adapted, answers, labels, t) for name, t in temperatures.items()},
    }


def error_at(adapted: Adapted, answers: Predictions, labels: np.ndarray, temperature: float) -> float:
    scaled = replace(answers, logits=answers.logits / temperature)
    return score(scaled.probabilities, labels, adapted.classes).calibration_error


if __name__ == "__main__":
    main()
