"""A search that never sees a target label."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from safda.classifier import Adapted, Predictions
from safda.cli import main
from safda.data import load_domain
from safda.errors import SafdaError
from safda.evaluation.scores import SCORES, SourceMissing, density, entropy, information, scores
from safda.recipe import Recipe, load_recipe, walk
from safda.tuning import tune
from tests.conftest import TINY, blobs, outputs

pytest.importorskip("optuna")
RECIPE = Recipe().override({**TINY, "steps": 5})


def test_a_search_stays_in_the_declared_ranges_and_goes_on(files, tmp_path, capsys):
    domains = [load_domain(file) for file in files]
    lines = []
    tune(*domains, RECIPE, tmp_path, trials=2, log=lines.append, cpu=True)
    best = tune(*domains, RECIPE, tmp_path, trials=3, log=lines.append, cpu=True)
    assert [line.split(":")[0] for line in lines] == ["trial 0", "trial 1", "trial 2"]
    assert tune(*domains, RECIPE, tmp_path, trials=3, log=lines.append, cpu=True) == best
    assert len(lines) == 3
    assert load_recipe(tmp_path / "best.toml") == best
    searched = {path: (knob.search, value) for path, knob, value in walk(best) if knob.search}
    assert {"optimizer.lr", "mdd.margin", "saf.weight"} <= set(searched)
    for (low, high, _), value in searched.values():
        assert low <= value <= high
    assert best.steps == 5


def test_target_labels_make_no_difference(files, tmp_path):
    features, labels = blobs(1, 0.7)
    rng = np.random.default_rng(0)
    found = []
    for name, given in (("right", labels), ("wrong", rng.permutation(labels))):
        np.savez(tmp_path / f"{name}.npz", features=features, labels=given)
        target = load_domain(tmp_path / f"{name}.npz")
        found.append(tune(load_domain(files[0]), target, RECIPE, tmp_path / name, trials=2, cpu=True))
    assert found[0] == found[1]


def test_machines_share_a_study_through_a_database(files, tmp_path, capsys):
    url = f"sqlite:///{tmp_path / 'shared.db'}"
    words = [str(file) for file in files] + [
        word for k, v in TINY.items() for word in (f"--{k.replace('_', '-')}", str(v))
    ]
    for machine, trials in (("one", 1), ("two", 2)):
        options = ["-o", str(tmp_path / machine), "--storage", url, "--trials", str(trials), "--steps", "3", "--cpu"]
        assert main(["tune", *words, *options]) == 0
        out, err = capsys.readouterr()
        assert err.count("trial ") == 1
        assert json.loads(out) == {"recipe": str(tmp_path / machine / "best.toml")}


def test_what_is_wrong_is_told(files, tmp_path):
    domains = [load_domain(file) for file in files]
    with pytest.raises(SafdaError, match="did you mean 'entropy'"):
        tune(*domains, RECIPE, tmp_path, trials=1, score="entorpy")
    with pytest.raises(SafdaError, match="at least one"):
        tune(*domains, RECIPE, tmp_path, trials=0)


def test_a_collapse_pleases_entropy_and_density_but_not_information():
    rng = np.random.default_rng(0)
    good = outputs(rng.dirichlet([0.05] * 4, size=200))
    collapsed = outputs(np.eye(4)[np.zeros(200, dtype=int)])
    assert entropy(collapsed) > entropy(good)
    assert density(collapsed) > density(good)
    assert information(collapsed) < information(good)


def test_density_is_the_same_in_parts_as_at_once(monkeypatch):
    predictions = torch.rand(50, 5).softmax(1)
    similar = torch.nn.functional.normalize(predictions, dim=1)
    similar = (similar @ similar.T / 0.05)[~torch.eye(50, dtype=torch.bool)].view(50, 49).log_softmax(1)
    expected = -(similar.exp() * similar).sum(1).mean() / np.log(49)
    monkeypatch.setattr("safda.evaluation.scores._ROWS", 7)
    assert density(outputs(predictions)) == pytest.approx(float(expected), abs=1e-5)


def test_the_source_is_predicted_once_and_only_if_a_score_asks():
    calls, rows = [], np.eye(4, dtype=np.float32)

    def predict_source():
        calls.append(1)
        return Predictions((), (), rows, 2 * rows), torch.tensor([0, 1, 2, 0])

    both = outputs(rows, predict_source)
    assert entropy(both) > 0.99
    assert calls == []
    assert SCORES["source_accuracy"](both) == 0.75
    assert torch.equal(both.source_embedding, 2 * both.source_logits)
    assert set(scores(both)) == set(SCORES)
    assert calls == [1]


def test_without_the_source_all_scores_are_there_that_need_none():
    alone = outputs(np.eye(4))
    assert set(scores(alone)) == set(SCORES) - {"source_accuracy"}
    with pytest.raises(SourceMissing):
        SCORES["source_accuracy"](alone)


def test_a_score_of_ones_own_sees_both_domains_and_decides_a_search(files, tmp_path, borrowed):
    source, target = (load_domain(file) for file in files)
    seen = []

    @borrowed(SCORES).register("latest")
    def latest(outputs):
        assert outputs.target_logits.shape == outputs.source_logits.shape == (60, 3)
        assert outputs.target_embedding.shape == outputs.source_embedding.shape == (60, 16)
        assert torch.equal(outputs.source_labels, source.labels)
        seen.append(float(SCORES["source_accuracy"](outputs)))
        return len(seen)

    lines = []
    best = tune(source, target, RECIPE, tmp_path / "up", trials=2, score="latest", log=lines.append, cpu=True)
    assert [line.split(" with")[0] for line in lines] == ["trial 0: latest 1.0000", "trial 1: latest 2.0000"]
    assert best == load_recipe(tmp_path / "up" / "trials" / "0001" / "recipe.toml")
    assert seen[1] == Adapted.load(tmp_path / "up" / "trials" / "0001").evaluate(source).accuracy
