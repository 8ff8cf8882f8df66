"""What people look at: figures of any kind of domain, and η as SAF saw it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

import safda
from safda.bench.benchmark import from_dict
from safda.bench.engines import Engine
from safda.bench.lab import open_lab
from safda.bench.run import fill
from safda.data import load_domain
from safda.data.pixels import Transform
from safda.evaluation.scores import SCORES, about
from safda.extraction import for_network
from safda.report.figures import adaptation_figure, mixing_weights
from safda.report.paper import write_domain_figure
from safda.report.projection import project_embedding
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
    assert is_png(lab.tables / "figure.png")
    for cell in lab.cells():  # trained on pictures: to score it, none of the source is decoded once more
        cheap = {name for name in SCORES if about(name).cost == "outputs"}
        assert set(lab.store.result(cell)["scores"]) == cheap


def test_the_papers_figure_has_the_source_red_and_the_target_blue(tmp_path):
    down = np.linspace(0.1, 0.9, 9)
    left, right = (np.stack([np.full(9, x), down], 1) for x in (0.2, 0.8))
    write_domain_figure([[("one", left, right), ("$x_{$", right, left)]], tmp_path / "figure.png")
    pixels = np.asarray(Image.open(tmp_path / "figure.png").convert("RGB")).astype(int)
    width = pixels.shape[1] // 2
    for panel, source_is_left in ((pixels[:, :width], True), (pixels[:, width:], False)):
        over_blue = panel[..., 0] - panel[..., 2]
        red, blue = (np.nonzero(sign * over_blue > 60)[1] for sign in (1, -1))
        assert min(len(red), len(blue)) > 9
        assert (red.max() < blue.min()) if source_is_left else (blue.max() < red.min())


def test_the_papers_figure_shows_what_the_classifier_sees_of_both_domains(files):
    """With so few samples, by principal components: these are found anew by an eigendecomposition."""
    adapted = safda.fit(*files, recipe="paper-frozen", cpu=True, **{**TINY, "steps": 3})
    source, target = (load_domain(file).take(torch.tensor([0, 20, 40])) for file in files)
    points = np.concatenate(project_embedding(adapted, source, target, most=2))
    seen = np.concatenate([adapted.predict(domain).embedding[[0, 2]] for domain in (source, target)])
    seen = seen.astype(np.float64) - seen.mean(0)
    directions = np.linalg.eigh(seen.T @ seen)[1][:, ::-1][:, :2]
    distances, expected = (np.linalg.norm(p[:, None] - p[None], axis=2) for p in (points, seen @ directions))
    np.testing.assert_allclose(distances / distances.max(), expected / expected.max(), atol=1e-3)


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
