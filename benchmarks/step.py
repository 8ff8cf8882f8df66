"""What a training step costs at the paper's sizes: MDD, MDD+SAF, and the bare matrix products of each.

    python -m benchmarks.step [--threads 2] [--rounds 7] [--steps 60]

Everything is measured in one run, in turns, through the real training loop; the figures that count are the
ratios. The floor of a step is its matrix products alone: forward, gradient of the weights and, where anything
before the layer learns, gradient of the inputs, on ready tensors, with nothing in between.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import nn

from safda.data import Domain
from safda.model import AdaptationModel
from safda.nn.heads import Dropout
from safda.recipe import Recipe
from safda.training.loop import make_accelerator, train

FEATURES, WIDTH, CLASSES, SAF_WIDTH, BATCH, SAMPLES = 2048, 1024, 31, 384, 32, 4000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=60)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    measured: dict[str, Callable[[int], float]] = {
        "MDD step": lambda steps: statistics.median(step_seconds(steps, ["mdd"])),
        "MDD floor": lambda steps: seconds(products(saf=False), steps),
        "MDD+SAF step": lambda steps: statistics.median(step_seconds(steps, ["mdd", "saf"])),
        "MDD+SAF floor": lambda steps: seconds(products(saf=True), steps),
        "dropout": lambda steps: seconds(dropped(Dropout(0.5)), steps),
        "torch's dropout": lambda steps: seconds(dropped(nn.Dropout(0.5)), steps),
    }
    rounds = [{name: measure(options.steps) for name, measure in measured.items()} for _ in range(options.rounds)]
    ratios = {
        "SAF over MDD": [r["MDD+SAF step"] / r["MDD step"] for r in rounds],
        "MDD+SAF over its floor": [r["MDD+SAF step"] / r["MDD+SAF floor"] for r in rounds],
        "MDD over its floor": [r["MDD step"] / r["MDD floor"] for r in rounds],
        "floors, SAF over MDD": [r["MDD+SAF floor"] / r["MDD floor"] for r in rounds],
        "torch's dropout over ours": [r["torch's dropout"] / r["dropout"] for r in rounds],
    }
    summary = {name: {"median": statistics.median(v), "least": min(v), "most": max(v)} for name, v in ratios.items()}
    for name, values in summary.items():
        print(f"{name:<26} {values['median']:.2f}  ({values['least']:.2f} to {values['most']:.2f})")
    print(json.dumps({"threads": options.threads, "rounds": options.rounds, "ratios": summary}))


def step_seconds(
    steps: int, methods: Sequence[str], shape: tuple[int, ...] = (FEATURES,), **changes: Any
) -> list[float]:
    """Seconds that each step of the real loop takes, on samples of a shape, after a warm-up."""
    recipe = Recipe().override(
        {"steps": steps + 10, "batch": BATCH, "methods": list(methods), "log_every": 10, **changes}
    )
    torch.manual_seed(0)
    labels = torch.randint(0, CLASSES, (SAMPLES,))
    source = Domain("source", torch.randn(SAMPLES, *shape).relu(), labels, tuple(map(str, range(CLASSES))))
    target = Domain("target", torch.randn(SAMPLES, *shape).relu())
    times: list[float] = []

    def callback(step: int, metrics: Mapping[str, float] | None) -> None:
        times.append(time.perf_counter())

    model = AdaptationModel(recipe, torch.zeros(shape), CLASSES)
    train(model, source, target, accelerator=make_accelerator(recipe, cpu=True), callback=callback)
    return [after - before for before, after in pairwise(times[9:])]


def products(saf: bool) -> Callable[[], None]:
    """The matrix products of one step, and nothing else.

    SAF's: the classifier on the mixes, and S₁ and S₂ each on one sample of every pair. The mixes need no
    product in B, since mixing commutes with its linear layer.
    """
    layers = [(2 * BATCH, FEATURES, WIDTH, False)]  # B; features are given, so no gradient goes further back
    layers += [(2 * BATCH, WIDTH, WIDTH, True), (2 * BATCH, WIDTH, CLASSES, True)] * 2  # C and D
    if saf:
        pairs = BATCH // 2
        layers += [(pairs, WIDTH, WIDTH, True), (pairs, WIDTH, CLASSES, True)]
        layers += [(pairs, FEATURES, SAF_WIDTH, False)] * 2 + [(pairs, SAF_WIDTH, 1, True)]
    ready = [
        (torch.randn(rows, inputs), torch.randn(outputs, inputs), torch.randn(rows, outputs), back)
        for rows, inputs, outputs, back in layers
    ]

    def run() -> None:
        for x, weight, gradient, back in ready:
            x @ weight.T
            gradient.T @ x
            if back:
                gradient @ weight

    return run


def dropped(layer: nn.Module) -> Callable[[], None]:
    """One call of a dropout layer on an embedding."""
    rows = torch.randn(2 * BATCH, WIDTH)

    def run() -> None:
        layer(rows)

    return run


def seconds(work: Callable[[], None], repeats: int) -> float:
    """Seconds that one call takes, after a warm-up; the median of many."""
    times = []
    for repeat in range(repeats + 5):
        before = time.perf_counter()
        work()
        if repeat >= 5:
            times.append(time.perf_counter() - before)
    return statistics.median(times)


if __name__ == "__main__":
    main()
