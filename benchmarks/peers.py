"""What training costs beside others: a step of skada's MDD, more rows, and a logistic regression.

    python -m benchmarks.peers [--rounds 5] [--steps 100] [--threads 1] [--data FOLDER]

First, a step of MDD, ours and skada's: the same rows, the same layers, 32 + 32 samples, SGD with Nesterov momentum.
At the paper's sizes matrix products take most of it, and those are the same for everyone: so also what skada's step
takes over its products alone, which is the most that anyone could gain; and what it takes given our dropout and the
fused SGD that we use. With a small network, what is not arithmetic shows. Second, our step with ever more rows.
Third, given a folder with amazon.npz and webcam.npz (arrays ``features`` and ``labels``), the default recipe from one
to the other against scikit-learn's logistic regression on the source.

Everything is measured in one run, in turns; the figures that count are ratios: of time on the clock, and of this
process's own time on the processor, which others on the machine disturb less. Steps are counted as they are taken,
and timed from the end of one to the end of another, so that set-up and warm-up cancel out.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from skada.deep import MDD
from skada.deep.modules import GradientReversalLayer
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler
from skorch.callbacks import Callback
from torch import Tensor, nn

import safda
from benchmarks.step import products
from safda.bench.cells import limit_threads
from safda.nn.heads import Dropout
from safda.recipe import Recipe, preset

ROWS, FEATURES, CLASSES, BATCH, WARM_UP = 1000, 2048, 31, 32, 10
NARROW, SIZES = 128, (1_000, 10_000, 100_000)
SMALL = {"network.bottleneck_width": 64, "network.classifier_width": 64, "saf.eta.width": 16}
MORE = 5  # a small network's steps are short, so more of them are taken

Seconds = tuple[float, float]  #: on the clock, and on the processor
Data = tuple[NDArray[np.float32], NDArray[np.int64], NDArray[np.float32]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--data", type=Path, help="a folder with amazon.npz and webcam.npz")
    options = parser.parse_args()
    with limit_threads(options.threads):
        ratios = {**beside_skada(options.rounds, options.steps), **with_more_rows(options.rounds, options.steps)}
        if options.data:
            ratios.update(beside_logistic_regression(options.data))
    print(json.dumps({"threads": options.threads, "rounds": options.rounds, "ratios": ratios}))


def told(name: str, over: Sequence[Seconds], under: Sequence[Seconds]) -> dict[str, list[float]]:
    """Print the ratios of two measures, round by round, and give them."""
    ratios = {}
    for kind, which in (("on the clock", 0), ("on the processor", 1)):
        values = [a[which] / b[which] for a, b in zip(over, under, strict=True)]
        ratios[f"{name}, {kind}"] = values
        spread = f"  ({min(values):.2f} to {max(values):.2f})" if len(values) > 1 else ""
        print(f"{f'{name}, {kind}':<62} {statistics.median(values):.2f}{spread}", flush=True)
    return ratios


def now() -> Seconds:
    return time.perf_counter(), time.process_time()


def per_step(ends: Sequence[Seconds]) -> Seconds:
    """Seconds a step takes, from the ends of all steps; the first few warm up."""
    (clock, processor), (last_clock, last_processor) = ends[WARM_UP - 1], ends[-1]
    count = len(ends) - WARM_UP
    return (last_clock - clock) / count, (last_processor - processor) / count


# -------------------------------------------------------------------------------------------------- beside skada


def beside_skada(rounds: int, steps: int) -> dict[str, list[float]]:
    """skada's step over ours, at the paper's sizes and with a small network."""
    mdd = preset("paper-office31").override({"methods": ["mdd"], "batch": BATCH})
    small = mdd.override(SMALL)
    wide, narrow = made_up(ROWS, FEATURES), made_up(ROWS, NARROW)
    measured: dict[str, Callable[[], Seconds]] = {
        "ours": lambda: our_step(wide, mdd, steps),
        "skada's": lambda: skada_step(wide, mdd, steps, nn.Dropout),
        "alike": lambda: skada_step(wide, mdd, steps, Dropout, fused=True),
        "products": lambda: step_of(products(saf=False), steps),
        "our small": lambda: our_step(narrow, small, MORE * steps),
        "skada's small": lambda: skada_step(narrow, small, MORE * steps, nn.Dropout),
    }
    seconds: dict[str, list[Seconds]] = {name: [] for name in measured}
    for _ in range(rounds):
        for name, measure in measured.items():
            seconds[name].append(measure())
    return {
        **told("skada's MDD step over ours", seconds["skada's"], seconds["ours"]),
        **told("the same, with a small network", seconds["skada's small"], seconds["our small"]),
        **told("skada's over ours, given our dropout and SGD", seconds["alike"], seconds["ours"]),
        **told("skada's over its matrix products", seconds["skada's"], seconds["products"]),
        **told("ours over its matrix products", seconds["ours"], seconds["products"]),
    }


def step_of(work: Callable[[], None], steps: int) -> Seconds:
    """Seconds that one call takes."""
    ends = []
    for _ in range(steps + WARM_UP):
        work()
        ends.append(now())
    return per_step(ends)


def made_up(rows: int, features: int) -> Data:
    """Gaussian features of a source with labels, and of a target."""
    rng = np.random.default_rng(0)
    source, target = (rng.standard_normal((rows, features), dtype=np.float32) for _ in range(2))
    return source, rng.integers(0, CLASSES, rows), target


def our_step(data: Data, recipe: Recipe, steps: int) -> Seconds:
    """Seconds a step of :func:`safda.fit` takes, in memory."""
    ends: list[Seconds] = []

    def callback(step: int, metrics: Mapping[str, float] | None) -> None:
        ends.append(now())

    source, labels, target = data
    safda.fit((source, labels), target, recipe=recipe, callback=callback, cpu=True, steps=steps + WARM_UP)
    return per_step(ends)


def skada_step(data: Data, recipe: Recipe, steps: int, dropout: type[nn.Module], **sgd: Any) -> Seconds:
    """Seconds a step of skada's MDD takes; it counts in epochs, so there may be some more steps."""
    source, labels, target = data
    knobs, ends = recipe.optimizer, Ends()
    net = MDD(
        nn.Sequential(
            OrderedDict(bottleneck=bottleneck(source.shape[1], recipe, dropout), classifier=classifier(recipe, dropout))
        ),
        layer_name="bottleneck",
        disc_classifier=Reversed(classifier(recipe, dropout), recipe["mdd"].weight),
        reg=1,
        train_split=None,
        verbose=0,
        callbacks=[ends],
        batch_size=BATCH,  # of each domain, as skada's balanced loader takes it; Ends makes sure
        max_epochs=math.ceil((steps + WARM_UP) / (len(source) // BATCH)),
        optimizer=torch.optim.SGD,
        lr=knobs.lr,
        optimizer__momentum=knobs.momentum,
        optimizer__nesterov=True,
        optimizer__weight_decay=knobs.weight_decay,
        **{f"optimizer__{name}": value for name, value in sgd.items()},
    )
    masked = np.concatenate([labels, np.full(len(target), -1)])
    net.fit(np.concatenate([source, target]), masked, sample_domain=np.repeat([1, -2], [len(source), len(target)]))
    return per_step(ends.taken)


class Ends(Callback):  # type: ignore[misc]
    """Notes when each step of skada's has ended, and makes sure that it was one of 32 + 32 samples."""

    def __init__(self) -> None:
        self.taken: list[Seconds] = []

    def on_batch_end(self, net: Any, batch: Any = None, training: bool = False, **more: Any) -> None:
        """See one step done."""
        inputs = batch[0]
        source = int((inputs["sample_domain"] >= 0).sum())
        if not training or inputs["X"].dtype != torch.float32 or (source, len(inputs["X"])) != (BATCH, 2 * BATCH):
            raise RuntimeError(f"not a step like ours: {source} of {len(inputs['X'])} from the source")
        self.taken.append(now())


def bottleneck(features: int, recipe: Recipe, dropout: type[nn.Module]) -> nn.Module:
    """B, of plain layers."""
    width = recipe.network.bottleneck_width
    layers = nn.Linear(features, width), nn.BatchNorm1d(width), nn.ReLU(), dropout(recipe.network.dropout)
    return nn.Sequential(*layers)


def classifier(recipe: Recipe, dropout: type[nn.Module]) -> nn.Module:
    """C or D, of plain layers."""
    network = recipe.network
    first = nn.Linear(network.bottleneck_width, network.classifier_width)
    return nn.Sequential(first, nn.ReLU(), dropout(network.dropout), nn.Linear(network.classifier_width, CLASSES))


class Reversed(nn.Module):
    """A network behind a gradient reversal, which skada leaves to whoever brings a D."""

    def __init__(self, network: nn.Module, weight: float) -> None:
        super().__init__()
        self.network, self.weight = network, weight

    def forward(self, rows: Tensor) -> Tensor:
        """Let the network see the rows as they are."""
        logits: Tensor = self.network(GradientReversalLayer.apply(rows, self.weight))
        return logits


# ------------------------------------------------------------------------------------------------ with more rows


def with_more_rows(rounds: int, steps: int) -> dict[str, list[float]]:
    """Our step with more rows over our step with the fewest."""
    recipe = preset("default").override({"batch": BATCH, **SMALL})
    source, labels, target = made_up(max(SIZES), NARROW)
    data = {rows: (source[:rows], labels[:rows], target[:rows]) for rows in SIZES}
    measured: dict[int, list[Seconds]] = {rows: [] for rows in SIZES}
    for _ in range(rounds):
        for rows in SIZES:
            measured[rows].append(our_step(data[rows], recipe, MORE * steps))
    fewest, *more = SIZES
    ratios = {}
    for rows in more:
        ratios.update(told(f"a step with {rows:,} rows over {fewest:,}", measured[rows], measured[fewest]))
    return ratios


# ------------------------------------------------------------------------------------ beside a logistic regression


def beside_logistic_regression(folder: Path) -> dict[str, list[float]]:
    """A whole fit of the default recipe, once, over logistic regressions before and after it."""
    with np.load(folder / "amazon.npz") as source, np.load(folder / "webcam.npz") as target:
        X, y, X_target = source["features"], source["labels"], target["features"]
    scaled = StandardScaler().fit_transform(X)
    before = whole(LogisticRegression(max_iter=1000), scaled, y)
    fit = whole(safda.SAFClassifier(random_state=0), X, y, X_target=X_target)
    after = whole(LogisticRegression(max_iter=1000), scaled, y)
    return told("the default fit over a logistic regression", [fit, fit], [before, after])


def whole(estimator: Any, X: NDArray[Any], y: NDArray[Any], **more: Any) -> Seconds:
    """Seconds that a whole fit takes."""
    clock, processor = now()
    estimator.fit(X, y, **more)
    after = now()
    return after[0] - clock, after[1] - processor


if __name__ == "__main__":
    main()
