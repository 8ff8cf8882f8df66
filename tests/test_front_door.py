"""Two folders in, the best that safda can do out: one default whatever the container, weights, fine-tuning."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import warnings

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

import safda
from safda import SAFClassifier
from safda.api import completed, default_recipe, resume
from safda.cli import main
from safda.data import load_domain
from safda.data.images import Transform, decode
from safda.errors import Interrupted, SafdaError, SafdaWarning
from safda.extraction import for_network, frozen_features, precompute
from safda.methods.propagation import LabelPropagation
from safda.nn.backbones import Backbone, check_backbone, full_name, make_backbone
from safda.nn.vision import guard_torchvision
from safda.recipe import PRESETS, NetworkKnobs, preset
from safda.training.checkpoint import RunFolder
from safda.training.loop import weights_of
from tests.conftest import TINY, blobs
from tests.test_pictures import content, folder, write
from tests.test_training import Killed, killed_at


@pytest.fixture
def both(tmp_path):
    return folder(tmp_path / "source"), folder(tmp_path / "target", seed=5000, size=(40, 64))


@pytest.fixture(scope="module")
def knobs(tmp_path_factory):
    """The default, with a backbone and heads that are small; its weights come from a file, as a user's would."""
    torch.manual_seed(3)
    backbone, _ = make_backbone(NetworkKnobs(), torch.zeros(3, 32, 32))
    file = tmp_path_factory.mktemp("weights") / "small.safetensors"
    save_file(weights_of(backbone), file)
    return {**TINY, "network.backbone": "small-cnn", "network.weights": str(file), "checkpoint_every": 4, "steps": 9}


# -------------------------------------------------------------------------------------------------- one default


def test_the_default_is_one_recipe_whatever_the_container(both, tmp_path, knobs):
    features = folder_features(both, knobs)
    np.savez(tmp_path / "x.npz", features=features[0], labels=np.arange(12) % 3)
    adapted = safda.fit(*both, cpu=True, **knobs)
    arrays = safda.fit(tmp_path / "x.npz", features[1], cpu=True, steps=9, **TINY)
    changes = {key: value for key, value in TINY.items() if key != "batch"}
    classifier = SAFClassifier(steps=9, batch=TINY["batch"], knobs=changes).fit(features[0], np.arange(12) % 3)
    assert default_recipe("photos") == default_recipe("x.npz") == preset("default") == SAFClassifier()._recipe()
    assert adapted.recipe == preset("default").override(knobs)
    assert arrays.recipe == classifier.adapted_.recipe == preset("default").override({"steps": 9, **TINY})
    assert adapted.recipe.network.frozen


def folder_features(both, knobs):
    """What a frozen backbone sees in two folders, computed anew."""
    network = NetworkKnobs(backbone="small-cnn", weights=knobs["network.weights"], frozen=True)
    backbone, _ = make_backbone(network, torch.zeros(3, 32, 32, dtype=torch.uint8))
    domains = [for_network(load_domain(path), Transform(32)) for path in both]
    with torch.no_grad():
        return [backbone.eval()(domain.batch(torch.arange(len(domain)))).numpy() for domain in domains]


def test_pictures_their_features_and_the_estimator_give_the_same_answers(both, tmp_path, knobs):
    source, target = (load_domain(path) for path in both)
    pictures = safda.fit(source, target, cpu=True, seed=5, **knobs)
    features, wanted = folder_features(both, knobs), pictures.predict(target)
    labels = np.array(source.classes)[source.labels.numpy()]
    np.savez(tmp_path / "s.npz", features=features[0], labels=labels)
    np.savez(tmp_path / "t.npz", features=features[1])
    small = {**TINY, "steps": 9, "checkpoint_every": 4}
    arrays = safda.fit(tmp_path / "s.npz", tmp_path / "t.npz", cpu=True, seed=5, **small)
    np.testing.assert_array_equal(arrays.predict(features[1]).probabilities, wanted.probabilities)
    estimator = SAFClassifier(knobs=small, random_state=5).fit(features[0], labels, X_target=features[1])
    np.testing.assert_array_equal(estimator.predict_proba(features[1]), wanted.probabilities)
    words = [f"--{key.replace('_', '-')}={value}" for key, value in {**knobs, "seed": 5}.items()]
    assert main(["fit", *map(str, both), "-o", str(tmp_path / "run"), "--cpu", *words]) == 0
    on_disk = safda.Adapted.load(tmp_path / "run").predict(target)
    np.testing.assert_array_equal(on_disk.probabilities, wanted.probabilities)


# ------------------------------------------------------------------------------------------------------- weights


def test_an_ambiguous_name_is_told_and_a_full_one_is_not():
    with pytest.warns(SafdaWarning, match=r"'resnet50' has \d+ sets of weights.* cut as for resnet50.a1_in1k.*tv_in1k"):
        check_backbone(NetworkKnobs(backbone="resnet50", weights=__file__))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_backbone(NetworkKnobs(backbone="resnet50.tv_in1k", weights=__file__))
        check_backbone(NetworkKnobs(backbone="tf_efficientnet_lite0", weights=__file__))  # timm has one set of them
        check_backbone(NetworkKnobs(backbone="resnet50"))  # from scratch, so there is nothing to confuse
    assert all(recipe.network.backbone == "resnet50.tv_in1k" for name, recipe in all_presets() if "paper" in name)
    assert full_name(NetworkKnobs(backbone="resnet50")) == "resnet50.a1_in1k"


def all_presets():
    return [(name, preset(name)) for name in PRESETS]


@pytest.mark.parametrize(
    ("network", "words"),
    [
        (NetworkKnobs(backbone="small-cnn", pretrained=True), "has no pretrained weights; 'recipe = digits' trains it"),
        (NetworkKnobs(backbone="resnet50", weights="nowhere.safetensors"), "no such file"),
        (NetworkKnobs(backbone="resnet50x"), "did you mean 'resnet50"),
        (NetworkKnobs(backbone="resnet50.tv_in2k"), "no such weights; known: .*resnet50.tv_in1k"),
    ],
)
@pytest.mark.filterwarnings("ignore::safda.errors.SafdaWarning")
def test_a_backbone_that_cannot_be_had_is_told(network, words):
    with pytest.raises(SafdaError, match=words):
        check_backbone(network)


def test_without_weights_and_internet_it_is_said_at_once_and_what_to_do(tmp_path):
    """With the real client of the hub, whose address is a port of this machine where nobody listens."""
    folder(tmp_path / "a")
    (tmp_path / "a" / "ant" / "0.jpg").write_bytes(b"broken")  # would be told, if pictures were opened first
    hub = {"HF_ENDPOINT": "http://127.0.0.1:9", "HF_HOME": str(tmp_path / "hub"), "HF_HUB_OFFLINE": "0"}
    environment = {**os.environ, **hub}
    ended = subprocess.run(
        [sys.executable, "-m", "safda.cli", "fit", "a", "a", "-o", "run"],
        cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert ended.returncode == 1
    assert ended.stderr.count("\n") == 1, ended.stderr
    for words in ("resnet50.tv_in1k", "--weights FILE", "timm/resnet50.tv_in1k"):
        assert words in ended.stderr
    assert "Retry" not in ended.stderr
    assert "pretrained" not in ended.stderr
    assert not (tmp_path / "run").exists()


def test_weights_are_looked_for_before_pictures_are_opened(tmp_path, monkeypatch):
    monkeypatch.setattr("safda.data.layouts.find_images", lambda *_: pytest.fail("pictures were opened first"))
    (tmp_path / "a").mkdir()
    for door in (
        lambda: safda.fit(tmp_path / "a", tmp_path / "a"),
        lambda: precompute(tmp_path / "a", preset("default")),
    ):
        with pytest.raises(SafdaError, match="are not on this machine and cannot be downloaded"):
            door()


def test_the_run_folder_tells_the_backbone_its_weights_and_how_pictures_were_cut(both, tmp_path, knobs):
    safda.fit(*both, out=tmp_path / "run", cpu=True, **knobs)
    data = RunFolder.open(tmp_path / "run").data
    cut = {"side": 32, "crop": 0.875, "interpolation": "bilinear", "squash": False, "scale": 0.5}
    assert data["transform"] == cut
    assert data["backbone"]["name"] == "small-cnn"
    assert data["backbone"]["weights"] == knobs["network.weights"]
    assert len(data["backbone"]["digest"]) == 32


@pytest.mark.parametrize(
    ("transform", "options"),
    [
        (Transform(224), {"crop_pct": 0.875, "interpolation": "bilinear"}),
        (Transform(224, 0.95, "bicubic"), {"crop_pct": 0.95, "interpolation": "bicubic"}),
        (Transform(224, 1.0, "bicubic", True), {"crop_pct": 1.0, "interpolation": "bicubic", "crop_mode": "squash"}),
    ],
)
def test_pictures_are_cut_as_timm_cuts_them(tmp_path, transform, options):
    guard_torchvision()
    import timm.data

    smooth = Image.fromarray(np.random.default_rng(0).integers(0, 255, (9, 12, 3), dtype=np.uint8)).resize((600, 400))
    file = write(tmp_path / "d" / "a.png", content(smooth))
    usual = timm.data.create_transform((3, 224, 224), mean=(0.0,) * 3, std=(1.0,) * 3, **options)
    ours = for_network(load_domain(tmp_path / "d"), transform).batch(torch.tensor([0]))[0]
    assert (ours / 255 - usual(Image.open(file))).abs().mean() < 0.004
    assert decode(file, transform).shape[1] == transform.short_side


# --------------------------------------------------------------------------------------------------- fine-tuning


@pytest.fixture
def tuned(knobs):
    return {**knobs, "fine_tune.enabled": True, "fine_tune.steps": 7, "fine_tune.batch": 6}


@pytest.mark.parametrize("step", [1, 8, 9, 10, 13, 15])
def test_a_fine_tuned_run_resumes_exactly_in_either_stage(both, tmp_path, tuned, step, monkeypatch):
    monkeypatch.setattr("safda.recipe._LONG_STEPS", 2)  # checkpoints within seven steps
    safda.fit(*both, out=tmp_path / "whole", cpu=True, **tuned)
    with pytest.raises(Killed):
        safda.fit(*both, out=tmp_path / "cut", cpu=True, callback=killed_at(step), **tuned)
    resume(tmp_path / "cut", cpu=True)
    for name in ("model.safetensors", "frozen/model.safetensors", "predictions.csv", "summary.json", "metrics.jsonl"):
        assert (tmp_path / "whole" / name).read_bytes() == (tmp_path / "cut" / name).read_bytes(), name


@pytest.mark.parametrize("step", [3, 9, 12, 16])
def test_a_signal_in_either_stage_is_told_and_nothing_is_lost(both, tmp_path, tuned, step):
    def signals(done, metrics):
        if done == step:
            os.kill(os.getpid(), signal.SIGTERM)

    safda.fit(*both, out=tmp_path / "whole", cpu=True, **tuned)
    run = tmp_path / "cut"
    with pytest.raises(Interrupted, match=f"stopped by SIGTERM after step {step}; safda.resume") as stopped:
        safda.fit(*both, out=run, cpu=True, callback=signals, **tuned)
    assert (stopped.value.step, stopped.value.run) == (step, run)
    assert isinstance(resume(run, cpu=True), safda.Adapted)
    assert (tmp_path / "whole" / "summary.json").read_bytes() == (run / "summary.json").read_bytes()
    assert (tmp_path / "whole" / "model.safetensors").read_bytes() == (run / "model.safetensors").read_bytes()


def test_a_run_of_arrays_that_was_cut_short_is_brought_to_its_end(tmp_path):
    (X, y), (X_target, _) = blobs(0, 0.0), blobs(1, 0.7)
    domains = load_domain((X, y), "source"), load_domain(X_target, "target")
    recipe = preset("default").override({**TINY, "steps": 8, "checkpoint_every": 2})
    with pytest.raises(Killed):
        completed(tmp_path / "cut", *domains, recipe, killed_at(5), cpu=True)
    completed(tmp_path / "cut", *domains, recipe, cpu=True)
    completed(tmp_path / "whole", *domains, recipe, cpu=True)
    assert (tmp_path / "whole" / "model.safetensors").read_bytes() == (tmp_path / "cut/model.safetensors").read_bytes()


@pytest.mark.parametrize("step", [6, 12])
def test_a_benchmarks_run_that_fine_tunes_goes_on_in_either_stage(both, tmp_path, tuned, step):
    recipe = preset("default").override(tuned)
    domains = [load_domain(path) for path in both]
    completed(tmp_path / "whole", *domains, recipe, cpu=True)
    with pytest.raises(Killed):
        completed(tmp_path / "cut", *domains, recipe, killed_at(step), cpu=True)
    begun = (tmp_path / "cut" / "environment.json").stat().st_mtime_ns
    completed(tmp_path / "cut", *domains, recipe, cpu=True)
    assert (tmp_path / "cut" / "environment.json").stat().st_mtime_ns == begun  # not begun anew
    assert (tmp_path / "whole" / "model.safetensors").read_bytes() == (tmp_path / "cut/model.safetensors").read_bytes()


@pytest.mark.parametrize("fine_tune", [False, True])
@pytest.mark.parametrize("step", [3, 15, 20])
def test_a_choice_on_pictures_is_made_of_features_and_resumes_exactly(both, tmp_path, tuned, fine_tune, step):
    if step == 20 and not fine_tune:
        pytest.skip("there are two candidates of nine steps, and no more")
    knobs = {**tuned, "choice.candidates": 2, "fine_tune.enabled": fine_tune}
    adapted = safda.fit(*both, out=tmp_path / "whole", cpu=True, **knobs)
    with pytest.raises(Killed):
        safda.fit(*both, out=tmp_path / "cut", cpu=True, callback=killed_at(step), **knobs)
    resume(tmp_path / "cut", cpu=True)
    for name in ("model.safetensors", "predictions.csv", "summary.json"):
        assert (tmp_path / "whole" / name).read_bytes() == (tmp_path / "cut" / name).read_bytes(), name
    again = safda.Adapted.load(tmp_path / "whole")
    np.testing.assert_array_equal(again.predict(both[1]).logits, adapted.predict(both[1]).logits)
    assert again.recipe == adapted.recipe


def test_fine_tuning_starts_from_the_adapted_heads_and_trains_the_backbone(both, tmp_path, tuned):
    adapted = safda.fit(*both, out=tmp_path / "run", cpu=True, **tuned)
    safda.fit(*both, out=tmp_path / "still", cpu=True, **{**tuned, "fine_tune.lr": 0.0})
    safda.fit(*both, out=tmp_path / "frozen", cpu=True, **{**tuned, "fine_tune.enabled": False})
    first, still, last, alone = (
        load_file(tmp_path / name / "model.safetensors") for name in ("run/frozen", "still", "run", "frozen")
    )
    parameters = {name for name, _ in adapted.model.named_parameters()}
    statistics = {name for name in first if "running" in name and name.startswith("backbone")}
    assert all(torch.equal(first[name], alone[name]) for name in first)  # the first stage is the default itself
    assert all(torch.equal(first[name], still[name]) for name in parameters)  # with a rate of zero, nothing moves
    assert all(torch.equal(first[name], last[name]) for name in statistics)  # as pretrained
    moved = {name for name in parameters if not torch.equal(first[name], last[name])}
    assert {name for name in parameters if name.startswith(("backbone", "bottleneck", "classifier"))} <= moved


def test_fine_tuned_pictures_hear_of_neighbours_in_the_features_they_began_with(both, tmp_path, tuned):
    safda.fit(*both, out=tmp_path / "run", cpu=True, **{**tuned, "fine_tune.lr": 0.0, "fine_tune.steps": 1})
    state = RunFolder.open(tmp_path / "run").last_checkpoint().methods
    first = safda.Adapted.load(tmp_path / "run" / "frozen")
    features = [frozen_features(first.model, for_network(load_domain(path), Transform(32))) for path in both]
    graph = LabelPropagation(*features, first.recipe["pseudo_labels"].propagation)
    labels = graph.propagate(torch.from_numpy(first.answer(features[1]).probabilities), alpha=0.5)
    torch.testing.assert_close(state["pseudo_labels.labels"], labels)


@pytest.mark.parametrize("norm", ["per-domain", "joint"])
def test_in_the_end_the_bottlenecks_statistics_are_those_of_whole_pictures(both, tuned, norm):
    adapted = safda.fit(*both, cpu=True, **{**tuned, "network.norm": norm})
    model = adapted.model
    seen = both[1:] if norm == "per-domain" else both
    with torch.no_grad():
        projected = torch.cat(
            [
                model.project(domain.batch(torch.arange(12)))[1]
                for domain in (for_network(load_domain(path), Transform(32)) for path in seen)
            ]
        )
    torch.testing.assert_close(model.bottleneck.norm.running_mean, projected.mean(0), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(model.bottleneck.norm.running_var, projected.var(0, correction=0), rtol=1e-4, atol=1e-5)


def test_batch_norm_keeps_its_statistics_where_asked():
    pictures = torch.randint(0, 256, (6, 3, 32, 32), dtype=torch.uint8)
    for norm, moves in (("fixed", False), ("batch", True)):
        backbone, _ = make_backbone(NetworkKnobs(backbone_norm=norm), pictures[0])
        assert isinstance(backbone, Backbone)
        before = backbone.network[1].running_mean.clone()
        backbone.train()(pictures)
        assert torch.equal(before, backbone.network[1].running_mean) != moves
    assert preset("fine-tune").network.backbone_norm == "fixed"
    assert preset("paper-office31").network.backbone_norm == "batch"


def test_fine_tuning_wants_pictures_and_a_frozen_beginning(both, files, tuned):
    with pytest.raises(SafdaError, match="no backbone to fine-tune"):
        safda.fit(*files, cpu=True, **{"fine_tune.enabled": True})
    with pytest.raises(SafdaError, match="begins with a frozen backbone"):
        safda.fit(*both, cpu=True, **{**tuned, "network.frozen": False})


# -------------------------------------------------------------------------------------------- the end of a run


def test_a_run_ends_with_predictions_and_a_summary(both, tmp_path, knobs, capsys):
    words = [f"--{key.replace('_', '-')}={value}" for key, value in knobs.items()]
    assert main(["fit", *map(str, both), "-o", str(tmp_path / "run"), "--cpu", *words]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["summary"] == json.loads((tmp_path / "run" / "summary.json").read_text())
    lines = (tmp_path / "run" / "predictions.csv").read_text().splitlines()
    assert lines[0] == "id,class,confidence,source_only"
    assert len(lines) == 13
    predicted = [line.split(",")[1] for line in lines[1:]]
    assert predicted == safda.Adapted.load(tmp_path / "run").predict(both[1]).labels
    same = np.mean([line.split(",")[1] == line.split(",")[3] for line in lines[1:]])
    assert said["summary"]["agreement"]["share"] == pytest.approx(same)
    assert said["summary"]["classes"]["ant"]["predicted"] == pytest.approx(predicted.count("ant") / 12, abs=1e-4)
    assert said["summary"]["classes"]["ant"]["source"] == pytest.approx(1 / 3, abs=1e-4)


def test_a_finished_run_that_was_killed_before_its_summary_gets_it(both, tmp_path, knobs):
    safda.fit(*both, out=tmp_path / "run", cpu=True, **knobs)
    wanted = {name: (tmp_path / "run" / name).read_bytes() for name in ("summary.json", "predictions.csv")}
    for name in wanted:
        (tmp_path / "run" / name).unlink()
    assert main(["resume", str(tmp_path / "run"), "--cpu"]) == 0
    assert wanted == {name: (tmp_path / "run" / name).read_bytes() for name in wanted}
