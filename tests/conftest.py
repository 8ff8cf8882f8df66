from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

#: A network small enough that a run takes a moment.
TINY = {
    "network.bottleneck_width": 16,
    "network.classifier_width": 16,
    "saf.width": 8,
    "batch": 8,
    "log_every": 1,
}


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


def blobs(seed: int, shift: float, classes: int = 3, per_class: int = 20, dim: int = 6):
    """Gaussian clouds around the axes, moved by ``shift``: features and labels."""
    rng = np.random.default_rng(seed)
    labels = np.repeat(np.arange(classes), per_class)
    features = 3 * np.eye(dim)[labels] + rng.normal(size=(len(labels), dim)) + shift
    return features.astype(np.float32), labels


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    """A labelled source and a labelled target, as .npz files."""
    names = np.array(["ant", "bee", "cat"])
    for name, seed, shift in (("source", 0, 0.0), ("target", 1, 0.7)):
        features, labels = blobs(seed, shift)
        np.savez(tmp_path / f"{name}.npz", features=features, labels=labels, classes=names)
    return tmp_path / "source.npz", tmp_path / "target.npz"
