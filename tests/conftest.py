from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pytest

from safda.classifier import Predictions
from safda.cli import main
from safda.data import load_domain
from safda.evaluation.scores import Outputs

#: A network small enough that a run takes a moment, and one run instead of several to choose from.
TINY = {
    "choice.candidates": 0,
    "network.bottleneck_width": 16,
    "network.classifier_width": 16,
    "batch": 8,
    "log_every": 1,
}


@pytest.fixture
def borrowed(monkeypatch):
    """Let a test register entries of its own in a registry; after it they are gone."""

    def borrow(registry):
        monkeypatch.setattr(registry, "_entries", {name: registry[name] for name in registry})
        return registry

    return borrow


def blobs(seed: int, shift: float, classes: int = 3, per_class: int = 20, dim: int = 6):
    """Gaussian clouds around the axes, moved by ``shift``: features and labels."""
    rng = np.random.default_rng(seed)
    labels = np.repeat(np.arange(classes), per_class)
    features = 3 * np.eye(dim)[labels] + rng.normal(size=(len(labels), dim)) + shift
    return features.astype(np.float32), labels


def outputs(probabilities, predict_source=None):
    """What a classifier says whose predictions of the target these are; its embedding is zero."""
    logits = np.log(np.asarray(probabilities, dtype=np.float32).clip(1e-30))
    return Outputs(Predictions((), (), logits, np.zeros((len(logits), 2), np.float32)), predict_source)


#: For :func:`flat_digits`: a network and a run that take a second or two, and are enough to see what adaptation does.
SHORT = {"steps": 300, "choice.candidates": 0, "network.bottleneck_width": 128, "network.classifier_width": 128}
SOURCE_ONLY = {"methods": ()}
#: MDD alone, with a weight that such a short run feels.
MDD_ALONE = {"methods": ("mdd",), "mdd.weight": 0.3}


@cache
def flat_digits():
    """Drawn digits and handwritten ones as arrays, where source only fails: X, y, X_target, y_target."""
    domains = [load_domain(name) for name in ("digits-rendered", "digits-handwritten")]
    return tuple(part.numpy() for domain in domains for part in (domain.inputs.flatten(1), domain.labels))


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    """A labelled source and a labelled target, as .npz files."""
    names = np.array(["ant", "bee", "cat"])
    for name, seed, shift in (("source", 0, 0.0), ("target", 1, 0.7)):
        features, labels = blobs(seed, shift)
        np.savez(tmp_path / f"{name}.npz", features=features, labels=labels, classes=names)
    return tmp_path / "source.npz", tmp_path / "target.npz"


def run_cli(capsys, *words):
    """Call the command line; returns its exit code and what it printed, and complained of."""
    try:
        code = main([str(word) for word in words])
    except SystemExit as exit_:
        code = exit_.code
    out, err = capsys.readouterr()
    return code, out, err
