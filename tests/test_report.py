"""What people look at: figures of any kind of domain, and η as SAF saw it."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import safda
from safda.bench.benchmark import from_dict
from safda.bench.engines import Engine
from safda.bench.lab import open_lab
from safda.bench.run import fill
from safda.data import load_domain
from safda.data.images import Transform
from safda.evaluation.scores import SCORES
from safda.extraction import for_network
from safda.report.figures import adaptation_figure, mixing_weights
from tests.conftest import TINY, blobs
from tests.test_bench import quiet
from tests.test_pictures import folder

CNN = {**TINY, "steps": 3, "network.backbone": "small-cnn", "network.pretrained": False, "network.image_size": 32}
BACKBONES = pytest.mark.parametrize("frozen", [False, True], ids=["trained", "frozen"])


@pytest.fixture
def both(tmp_path):
    return folder(tmp_path / "data" / "source"), folder(tmp_path / "data" / "target", seed=5000, size=(40, 64))


def is_png(path):
    return path.read_bytes().startswith(b"\x89PNG")


# ----------------------------------------------------------------------------------------------- figures of pictures


@BACKBONES
def test_a_figure_of_picture_folders(both, tmp_path, frozen):
    before, after = (
        safda.fit(
            *both,
            recipe="digits",
            cpu=True,
            **CNN,
            **{"network.frozen": frozen, "methods": ["mdd", "saf"] if saf else ["mdd"]},
        )
        for saf in (False, True)
    )
    adaptation_figure(before, after, *map(load_domain, both), tmp_path / "figure.png")
    assert is_png(tmp_path / "figure.png")


def test_a_benchmark_of_picture_folders_ends_with_its_figure(both, tmp_path):
    definition = {
        "change": {**CNN, "checkpoint_every": 3},
        "domains": {"S": "source", "T": "target"},
        "tasks": ["S→T"],
        "figure": ["mdd", "mdd+saf"],
        "rows": {"mdd": {}, "mdd+saf": {}},
    }
    benchmark = from_dict("figure", {**definition, "preset": "paper-office-home"})
    lab = open_lab(tmp_path / "lab", benchmark, tmp_path / "data", benchmark.runnable(), {}, 1)
    assert fill(lab, lab.cells(), Engine(cpu=True), quiet()) == []
    assert is_png(lab.tables / "S-to-T.png")
    for cell in lab.cells():  # trained on pictures: to score it, none of the source is decoded once more
        assert set(lab.store.result(cell)["scores"]) == set(SCORES) - {"source_accuracy"}


# ------------------------------------------------------------------------------------------------------------------ η


def expected(adapted, features):
    """η of the pairs that :func:`mixing_weights` draws, from the weights alone, in float64."""
    weights = {
        name: value.double().numpy() for name, value in adapted.model.methods["saf"].saf.eta.state_dict().items()
    }
    order = torch.randperm(len(features), generator=torch.Generator().manual_seed(0)).numpy()
    half = len(order) // 2
    hidden = sum(
        np.maximum(features[rows] @ weights[f"bottlenecks.{i}.weight"].T + weights[f"bottlenecks.{i}.bias"], 0)
        for i, rows in enumerate((order[:half], order[half : 2 * half]))
    )
    score = hidden @ weights["estimator.weight"].T + weights["estimator.bias"]
    return 1 / (1 + np.exp(-score.ravel()))


def test_mixing_weights_are_those_of_the_features_that_saf_saw_in_training():
    (X, y), (X_target, _) = blobs(0, 5.0), blobs(1, 6.0)  # far from the origin: centring makes a difference
    adapted = safda.fit((X, y), X_target, recipe="default", **{**TINY, "steps": 5, "saf.eta.source": "learned"})
    unit, unit_source = (rows / np.linalg.norm(rows, axis=1, keepdims=True) for rows in (X_target, X))
    together = np.concatenate([unit, unit_source]).astype(np.float64)
    centred = (unit - together.mean(0)) / np.sqrt(together.var(0).mean())
    np.testing.assert_allclose(
        mixing_weights(adapted, load_domain(X_target)), expected(adapted, centred), rtol=1e-4, atol=1e-5
    )


@BACKBONES
def test_mixing_weights_of_pictures_are_those_of_the_backbones_features(both, frozen):
    adapted = safda.fit(*both, recipe="digits", cpu=True, **CNN, **{"network.frozen": frozen})
    domain = load_domain(both[1])
    with torch.no_grad():
        features = adapted.model.backbone(for_network(domain, Transform(32)).batch(torch.arange(12))).double().numpy()
    np.testing.assert_allclose(mixing_weights(adapted, domain), expected(adapted, features), rtol=1e-4, atol=1e-5)
