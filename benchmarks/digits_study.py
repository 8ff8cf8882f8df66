"""Why SAF to the letter loses on the digits, and what mends it: one row a variant, all else equal.

    python -m benchmarks.digits_study                                        # all variants, seeds 0 to 2
    python -m benchmarks.digits_study --first-seed 3 --seeds 5 --rows 1 10   # MDD and the preset, on fresh seeds

For each variant: accuracy on the target at the last step (an oracle's number, for description; nothing is chosen
by it inside a run), η at the end (mean and spread over a batch's pairs), and the share of the target that goes to
the class predicted most often, which would be about a tenth if all were well.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

import safda

ALIGN, ETA = "pseudo_labels.distribution_alignment", "saf.eta.source"
LETTER = {ALIGN: 0.0, "saf.eta.ascend": False}
VARIANTS: dict[str, dict[str, Any]] = {
    "source only": {"methods": []},
    "MDD": {"methods": ["mdd"]},
    "MDD+SAF to the letter": LETTER,
    "… η ~ Beta(0.2, 0.2)": {**LETTER, ETA: "beta"},
    "… η = 0.6": {**LETTER, ETA: "constant"},
    "… ascend": {**LETTER, "saf.eta.ascend": True},
    "… align": {**LETTER, ALIGN: 1.0},
    "… align, η ~ Beta(0.2, 0.2)": {ALIGN: 1.0, ETA: "beta"},
    "… align, η = 0.6": {ALIGN: 1.0, ETA: "constant"},
    "… align, η = 1 (self-training)": {
        ALIGN: 1.0,
        ETA: "constant",
        "saf.eta.constant": 1.0,
    },
    "… align and ascend (preset digits)": {ALIGN: 1.0, "saf.eta.ascend": True},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--rows", type=int, nargs="*", help="numbers of the variants, from 0 (default: all)")
    options = parser.parse_args()
    torch.set_num_threads(1)  # the same numbers whatever the number of cores
    print("| variant | accuracy, mean ± spread (%) | each seed | η at the end | largest class (%) |")
    print("|---|---|---|---|---|")
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    for number, (name, changes) in enumerate(VARIANTS.items()):
        if options.rows is None or number in options.rows:
            print(row(name, [one(changes, seed) for seed in seeds]), flush=True)


def one(changes: Mapping[str, Any], seed: int) -> tuple[float, str, float]:
    """Train once; give accuracy, η and the largest class's share."""
    last: dict[str, float] = {}

    def callback(step: int, metrics: Mapping[str, float] | None) -> None:
        last.update(metrics or {})

    adapted = safda.fit(
        "digits-rendered", "digits-handwritten", recipe="digits", callback=callback, seed=seed, **changes
    )
    eta = f"{last['saf/eta_mean']:.2f} ± {last['saf/eta_std']:.2f}" if "saf/eta_mean" in last else "–"
    predicted = adapted.predict("digits-handwritten").probabilities.argmax(1)
    return adapted.evaluate("digits-handwritten").accuracy, eta, np.bincount(predicted).max() / len(predicted)


def row(name: str, results: list[tuple[float, str, float]]) -> str:
    """Lay one variant's results out as a line of the table."""
    accuracy = 100 * np.array([result[0] for result in results])
    spread = f" ± {accuracy.std(ddof=1):.1f}" if len(accuracy) > 1 else ""
    cells = [
        name,
        f"{accuracy.mean():.1f}{spread}",
        ", ".join(f"{value:.1f}" for value in accuracy),
        ", ".join(result[1] for result in results),
        f"{100 * np.mean([result[2] for result in results]):.0f}",
    ]
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    main()
