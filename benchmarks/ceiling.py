"""How far adaptation could go on frozen features: what a classifier gets that has seen the target's own labels.

    python -m benchmarks.ceiling --data FOLDER      # with amazon.npz, dslr.npz and webcam.npz

Each domain of Office-31 is the target of two tasks. Here a logistic regression learns from the labels of four fifths of
it, and is scored on the last fifth, in turns (stratified, shuffled with seed 0). That is an oracle: no adaptation has
those labels. It is not a bound either, since it does not look at the samples that it is scored on.
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path

import numpy as np
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold, cross_val_score
from sklearn.preprocessing import normalize

from safda.bench.cells import limit_threads

DOMAINS = ("amazon", "dslr", "webcam")
#: Inverses of regularisation. The best is taken, by the very score: an oracle in this too.
STRENGTHS = (10.0, 100.0, 1000.0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--data", type=Path, required=True, help="a folder with amazon.npz, dslr.npz and webcam.npz")
    folder = parser.parse_args().data
    with limit_threads(1):
        best = [supervised(folder / f"{name}.npz") for name in DOMAINS]
    print(f"on average over the six tasks: {statistics.mean(best):.1f}")


def supervised(path: Path) -> float:
    """Accuracy in percent of the best of a few logistic regressions on unseen fifths of a domain."""
    with np.load(path) as arrays:
        features, labels = normalize(arrays["features"].astype(np.float32)), arrays["labels"]
    folds = StratifiedKFold(5, shuffle=True, random_state=0)
    scores = []
    for strength in STRENGTHS:
        folded = cross_val_score(LogisticRegression(C=strength, max_iter=1000), features, labels, cv=folds)
        scores.append(100 * folded.mean())
        print(f"{path.stem}, C = {strength:g}: {scores[-1]:.1f}", flush=True)
    return float(max(scores))


if __name__ == "__main__":
    main()
