"""Tables of measurements, whose columns have units of their own: what the default was not made on.

    python -m benchmarks.tabular_cases -o CASES
    safda bench CASES/tabular.toml --data CASES -o LAB --rows default --seeds 2

Of scikit-learn's own tables: tumours, wines and small digits, cut in two by a column that is then left out, or at
random with the second half distorted, turned, unbalanced or without some classes. And made up: arrays of gas sensors
whose sensitivities drift, as chemists tell of them, and persons who wear sensors of motion and move each in their way.
Each case is a function of its own seed, so the files are the same wherever they are made.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
from scipy.ndimage import rotate
from sklearn.datasets import load_breast_cancer, load_digits, load_wine

from benchmarks.hard_cases import Pair, Samples, distorted, unbalanced, write_cases

GASES, SENSORS = 6, 16
ACTIVITIES, LATENT, COLUMNS = 6, 12, 150


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("-o", "--out", type=Path, required=True, help="a folder for the cases")
    out = parser.parse_args().out
    cases = {**real_cases(), **made_up_cases(), **cut_cases()}
    print(write_cases(out, "tabular", "Accuracy (%) on tables of measurements", cases))


def real_cases() -> dict[str, Pair]:
    """Cases made of the tables that come with scikit-learn."""
    tumours, wines, digits = (_table(load) for load in (load_breast_cancer, load_wine, load_digits))
    rng = np.random.default_rng(5)
    return {
        "tumours of other texture": by_column(tumours, 1),
        "tumours distorted": _with_target(halves(tumours, rng), lambda target: distorted(target, 0.5, rng)),
        "tumours unbalanced": _with_target(halves(tumours, rng), lambda target: unbalanced(target, 5, rng)),
        "wines of other ash": by_column(wines, 2),
        "wines distorted": _with_target(halves(wines, rng), lambda target: distorted(target, 0.5, rng)),
        "digits turned": _with_target(halves(digits, rng), turned),
        "digits turned, three missing": _with_target(
            halves(digits, rng), lambda target: turned(target.rows(target.labels < 7))
        ),
    }


def made_up_cases() -> dict[str, Pair]:
    """Cases of sensors."""
    rng = np.random.default_rng(5)
    arrays = [gases(drift, rng) for drift in (0.0, 0.5, 0.8)]
    persons = [activities(person, rng) for person in range(3)]
    return {
        "gases after a while": (arrays[0], arrays[1]),
        "gases much later": (arrays[0], arrays[2]),
        "gases much later, unbalanced": (arrays[0], unbalanced(arrays[2], 10, rng)),
        "gases, one missing": (arrays[0], arrays[1].rows(arrays[1].labels != 2)),
        "activities of another": (persons[0], persons[1]),
        "activities of a third, unbalanced": (persons[0], unbalanced(persons[2], 6, rng)),
    }


def cut_cases() -> dict[str, Pair]:
    """More tables cut in two by one of their columns: classes are then far from as frequent in both halves."""
    tumours, wines = _table(load_breast_cancer), _table(load_wine)
    return {
        **{f"tumours by column {column}": by_column(tumours, column) for column in (0, 4, 8, 9)},
        **{f"wines by column {column}": by_column(wines, column) for column in (0, 4, 11)},
    }


def by_column(samples: Samples, column: int) -> Pair:
    """Cut in two at a column's median, and leave that column out."""
    low = samples.features[:, column] < np.median(samples.features[:, column])
    rest = replace(samples, features=np.delete(samples.features, column, axis=1))
    return rest.rows(low), rest.rows(~low)


def halves(samples: Samples, rng: np.random.Generator) -> Pair:
    """Cut in two at random."""
    order = rng.permutation(len(samples.labels))
    return samples.rows(order[::2]), samples.rows(order[1::2])


def turned(samples: Samples, degrees: float = 25.0) -> Samples:
    """Turn pictures of eight by eight pixels."""
    pictures = rotate(samples.features.reshape(-1, 8, 8), degrees, axes=(2, 1), reshape=False, order=1)
    return replace(samples, features=pictures.reshape(len(pictures), -1).astype(np.float32))


def gases(drift: float, rng: np.random.Generator, samples: int = 600) -> Samples:
    """Sixteen sensors, eight numbers each, exposed to six gases in concentrations that vary tenfold.

    A sensor answers by a power of the concentration times what it feels of the gas. Of its answer there are its height,
    in tens of thousands, its height beside the rest state, and how fast it rises and falls. Drift is a factor that each
    sensor has taken on by then.
    """
    world = np.random.default_rng(17)  # the same sensors and gases in every batch
    feels = np.exp(0.8 * world.normal(size=SENSORS) + 0.3 * world.normal(size=(GASES, SENSORS)))
    power = world.uniform(0.4, 0.9, SENSORS)
    scales = np.array([2e4, 3.0, 5.0, 8.0, 15.0, -4.0, -7.0, -12.0])
    labels = rng.integers(0, GASES, samples)
    concentration = np.exp(rng.normal(0, 0.6, samples))
    gain = np.exp(drift * rng.normal(size=SENSORS))
    answer = gain * feels[labels] * concentration[:, None] ** power * np.exp(0.2 * rng.normal(size=(samples, SENSORS)))
    noise = np.exp(0.1 * rng.normal(size=(samples, SENSORS, len(scales))))
    rows = (answer[:, :, None] * scales * noise).reshape(samples, -1)
    return Samples(rows.astype(np.float32), labels)


def activities(person: int, rng: np.random.Generator, samples: int = 300) -> Samples:
    """Six activities of one person: what is felt of a dozen hidden motions, each larger or smaller by the person."""
    world, own = np.random.default_rng(19), np.random.default_rng(100 + person)
    usual = 1.2 * world.normal(size=(ACTIVITIES, LATENT))
    usual[3:] = 0.5 * usual[3:] + 2.0  # three of moving, three of resting that differ less
    mixing = world.normal(size=(LATENT, COLUMNS)) / np.sqrt(LATENT)
    labels = rng.integers(0, ACTIVITIES, samples)
    hidden = usual[labels] + 0.5 * rng.normal(size=(samples, LATENT))
    hidden = hidden * np.exp(0.25 * own.normal(size=LATENT)) + 0.9 * own.normal(size=LATENT)
    rows = np.tanh(hidden @ mixing) + 0.2 * rng.normal(size=(samples, COLUMNS))
    return Samples(rows.astype(np.float32), labels)


def _table(load: Callable[..., tuple[np.ndarray, np.ndarray]]) -> Samples:
    features, labels = load(return_X_y=True)
    return Samples(features.astype(np.float32), labels.astype(np.int64))


def _with_target(pair: Pair, change: Callable[[Samples], Samples]) -> Pair:
    source, target = pair
    return source, change(target)


if __name__ == "__main__":
    main()
