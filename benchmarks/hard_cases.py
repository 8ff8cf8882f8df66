"""Hard cases out of easy ones: where self-training goes wrong, kept as a benchmark for the laboratory.

    python -m benchmarks.hard_cases --data DIR -o CASES      # DIR: amazon.npz, dslr.npz, webcam.npz
    safda bench CASES/hard.toml --data CASES -o LAB --seeds 3
    safda bench CASES/parts.toml --data CASES -o LAB --seeds 1      # the default without one part, as in default.toml

Few classes, an unbalanced target, one without half of the classes, a quarter of the source, noise, a distortion of the
whole domain, several at once; the embedded digits, as pixels, with the target faint and under noise; and classes that
differ in the length of their rows alone. Each case is a function of its own seed, so the files are the same wherever
they are made.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w
import torch
from numpy.typing import NDArray

from safda.bench.benchmark import load_benchmark
from safda.data import EMBEDDED, Domain

PARTS = Path(__file__).with_name("default.toml")  #: the same rows, for these cases


@dataclass(frozen=True)
class Samples:
    """Features with class numbers."""

    features: NDArray[np.float32]
    labels: NDArray[np.int64]

    def rows(self, which: NDArray[Any]) -> Samples:
        """Only these."""
        return Samples(self.features[which], self.labels[which])


Pair = tuple[Samples, Samples]  #: a labelled source, and a target with the labels that score it


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--data", type=Path, required=True, help="where amazon.npz, dslr.npz and webcam.npz are")
    parser.add_argument("-o", "--out", type=Path, required=True, help="a folder for the cases")
    options = parser.parse_args()
    cases = {**office_cases(options.data), "strong digits": strong_digits(), "lengths": lengths()}
    print(write_cases(options.out, "hard", "Accuracy (%) on hard cases", cases))
    hard = load_benchmark(options.out / "hard.toml").definition
    parts = {**load_benchmark(PARTS).definition, "domains": hard["domains"], "tasks": hard["tasks"]}
    parts["title"] = "Accuracy (%) on hard cases: the default without one part"
    (options.out / "parts.toml").write_text(tomli_w.dumps(parts), encoding="utf-8")


def write_cases(out: Path, name: str, title: str, cases: Mapping[str, Pair]) -> str:
    """Write the domains of all cases, and a benchmark of them with the suite's rows; return how to run it."""
    out.mkdir(parents=True, exist_ok=True)
    domains, tasks = {}, []
    for case, pair in cases.items():
        ends = (case, f"{case} target")
        for end, samples in zip(ends, pair, strict=True):
            domains[end] = f"{end.replace(',', '').replace(' ', '-')}.npz"
            np.savez(out / domains[end], features=samples.features, labels=samples.labels)
        tasks.append("→".join(ends))
    rows = load_benchmark("suite").definition["rows"]
    content = {
        "title": title,
        "preset": "default",
        "domains": domains,
        "tasks": tasks,
        "rows": {row: rows[row] for row in ("source", "mdd", "mdd+saf", "default")},
    }
    (out / f"{name}.toml").write_text(tomli_w.dumps(content), encoding="utf-8")
    return f"{len(tasks)} cases in {out}; run: safda bench {out}/{name}.toml --data {out} -o LAB"


def office_cases(folder: Path) -> dict[str, Pair]:
    """Cases made of frozen Office-31 features."""
    amazon, dslr, webcam = (_read(folder / f"{name}.npz") for name in ("amazon", "dslr", "webcam"))
    rng = np.random.default_rng(7)
    seven, ten = rng.permutation(31)[:7], rng.permutation(31)[:10]
    return {
        "seven classes": (of_classes(amazon, seven), of_classes(webcam, seven)),
        "ten unbalanced": (of_classes(webcam, ten), unbalanced(of_classes(amazon, ten), 10, rng)),
        "unbalanced": (webcam, unbalanced(amazon, 10, rng)),
        "quarter source": (quarter(amazon, rng), webcam),
        "noise": (amazon, noisy(dslr, 1.0, rng)),
        "distortion": (amazon, distorted(webcam, 0.7, rng)),
        "seven unbalanced distorted": (
            of_classes(dslr, seven),
            distorted(unbalanced(of_classes(amazon, seven), 8, rng), 0.7, rng),
        ),
        "seven unbalanced noisy": (
            of_classes(amazon, seven),
            noisy(unbalanced(of_classes(webcam, seven), 8, rng), 2.0, rng),
        ),
        "half the classes": (amazon, webcam.rows(webcam.labels < 15)),
    }


def strong_digits() -> Pair:
    """Drawn digits, and handwritten ones that are faint, under noise."""
    source, target = (_flat(EMBEDDED[f"digits-{name}"]()) for name in ("rendered", "handwritten"))
    noise = np.random.default_rng(7).normal(0, 0.15, target.features.shape)
    return source, replace(target, features=(0.3 + 0.5 * target.features + noise).astype(np.float32))


def lengths() -> Pair:
    """Three classes of rows in any direction, one, three and five long, give or take; the target's are longer."""
    rng = np.random.default_rng(11)

    def domain(stretch: float) -> Samples:
        labels = rng.integers(0, 3, 600)
        directions = np.abs(rng.normal(size=(600, 40)))
        length = stretch * (1 + 2 * labels + 0.3 * rng.normal(size=600))
        rows = directions / np.linalg.norm(directions, axis=1, keepdims=True) * length[:, None]
        return Samples(rows.astype(np.float32), labels)

    return domain(1.0), domain(1.15)


def of_classes(samples: Samples, classes: NDArray[np.int64]) -> Samples:
    """Only these classes, numbered anew."""
    kept = samples.rows(np.isin(samples.labels, classes))
    number = {int(k): i for i, k in enumerate(classes)}
    return replace(kept, labels=np.array([number[int(k)] for k in kept.labels]))


def unbalanced(samples: Samples, ratio: float, rng: np.random.Generator) -> Samples:
    """Thin the classes out, in random order, down to one ``ratio``-th of the last."""
    classes = rng.permutation(np.unique(samples.labels))
    shares = ratio ** -np.linspace(0, 1, len(classes))
    return _some_of_each(samples, dict(zip(classes.tolist(), shares, strict=True)), rng)


def quarter(samples: Samples, rng: np.random.Generator) -> Samples:
    """A quarter of each class."""
    return _some_of_each(samples, dict.fromkeys(np.unique(samples.labels).tolist(), 0.25), rng)


def noisy(samples: Samples, strength: float, rng: np.random.Generator) -> Samples:
    """Add noise to each dimension, in units of its standard deviation."""
    noise = strength * samples.features.std(0) * rng.normal(size=samples.features.shape)
    return replace(samples, features=(samples.features + noise).astype(np.float32))


def distorted(samples: Samples, strength: float, rng: np.random.Generator) -> Samples:
    """Stretch and shift each dimension, alike for the whole domain."""
    gain = np.exp(strength * rng.normal(size=samples.features.shape[1]))
    shift = strength * samples.features.std(0) * rng.normal(size=samples.features.shape[1])
    return replace(samples, features=(samples.features * gain + shift).astype(np.float32))


def _some_of_each(samples: Samples, shares: dict[int, float], rng: np.random.Generator) -> Samples:
    kept = []
    for k, share in shares.items():
        rows = rng.permutation(np.flatnonzero(samples.labels == k))
        kept.append(rows[: max(2, round(len(rows) * share))])
    return samples.rows(np.concatenate(kept))


def _read(path: Path) -> Samples:
    with np.load(path, allow_pickle=False) as archive:
        return Samples(archive["features"].astype(np.float32), archive["labels"].astype(np.int64))


def _flat(domain: Domain) -> Samples:
    labels, _ = domain.labelled("a hard case")
    return Samples(domain.batch(torch.arange(len(domain))).flatten(1).numpy(), labels.numpy())


if __name__ == "__main__":
    main()
