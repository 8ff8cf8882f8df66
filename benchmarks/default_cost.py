"""What the default costs, all candidates and the choice among them, beside a single recipe.

    python -m benchmarks.default_cost [--rounds 3] [--rows 3000 800] [--columns 2048] [--noise 2.0]

Both are fitted in turns on made-up features, with as many threads as torch takes by itself; ratios of whole fits, and
the most memory that each process has ever held, measured in a process of its own. As much noise as by default puts
near samples into other classes often enough that the ensemble of four MCC networks is tried; with 1.0 neighbours can be
trusted, and SAF and the consensus are.
"""

from __future__ import annotations

import argparse
import resource
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import numpy as np

import safda
from safda.recipe import preset

CLASSES = 31


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rows", type=int, nargs=2, default=(3000, 800), metavar=("SOURCE", "TARGET"))
    parser.add_argument("--columns", type=int, default=2048)
    parser.add_argument("--noise", type=float, default=2.0, help="its deviation, beside 1 between classes")
    options = parser.parse_args()
    ratios = []
    for number in range(options.rounds):
        (single, memory), (whole, more) = (
            measured(choice, tuple(options.rows), options.columns, options.noise) for choice in (False, True)
        )
        ratios.append(whole / single)
        print(
            f"round {number}: {ratios[-1]:.2f} of a single recipe's time, {more / memory:.2f} of its memory", flush=True
        )
    print(f"the default over a single recipe: {np.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})")


def measured(choice: bool, rows: tuple[int, int], columns: int, noise: float) -> tuple[float, int]:
    """Return seconds of a fit and the peak of memory, in a fresh process."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(fit_once, choice, rows, columns, noise).result()


def fit_once(choice: bool, rows: tuple[int, int], columns: int, noise: float) -> tuple[float, int]:
    """Fit clusters with the default, or with its single recipe."""
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(CLASSES, columns))
    labels = [rng.integers(0, CLASSES, count) for count in rows]
    source, target = (
        np.abs(centres[each] + noise * rng.normal(size=(len(each), columns)) + shift).astype(np.float32)
        for each, shift in zip(labels, (0.0, 0.3), strict=True)
    )
    recipe = preset("default") if choice else preset("default").single()
    begun = time.perf_counter()
    safda.fit((source, labels[0]), target, recipe=recipe, cpu=True)
    return time.perf_counter() - begun, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


if __name__ == "__main__":
    main()
