"""Several recipes on the same features, of which one is taken without target labels."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from safetensors.torch import load_file

import safda
from safda.api import resume
from safda.classifier import Predictions
from safda.cli import main
from safda.evaluation.choice import SOURCE_ONLY, choose
from safda.evaluation.verdict import judge
from safda.methods import propagation
from safda.presets import CANDIDATES
from safda.recipe import preset
from safda.training.checkpoint import RunFolder
from tests.conftest import TINY, blobs
from tests.test_training import Killed, killed_at

STEPS = 4
KNOBS = {**TINY, "steps": STEPS, "checkpoint_every": 2, "choice.candidates": 3}


def predictions(probabilities):
    logits = np.log(np.asarray(probabilities, dtype=np.float32))
    return Predictions(tuple("abc")[: len(logits)], ("x", "y"), logits, logits)


@pytest.fixture
def both():
    (source, labels), (target, _) = blobs(0, 0.0), blobs(1, 0.7)
    return (source, labels), target


# ------------------------------------------------------------------------------------------------------ the rule


def test_the_score_is_information_and_a_quarter_of_agreement():
    before = predictions([[0.6, 0.4], [0.4, 0.6], [0.3, 0.7]])
    after = predictions([[0.9, 0.1], [0.8, 0.2], [0.3, 0.7]])
    choice = choose({SOURCE_ONLY: before, "other": after})

    def entropy(*p):
        return -sum(x * math.log2(x) for x in p)

    mean_entropy = (entropy(0.9, 0.1) + entropy(0.8, 0.2) + entropy(0.3, 0.7)) / 3
    expected = entropy(2.0 / 3, 1.0 / 3) - mean_entropy + 0.25 * 2 / 3
    assert choice.evidence["other"]["score"] == pytest.approx(expected, abs=1e-5)
    assert choice.evidence["other"]["agreement"] == pytest.approx(2 / 3, abs=1e-6)


def test_what_is_sure_even_and_far_from_the_source_is_not_taken():
    sure = np.array([[0.99, 0.01], [0.01, 0.99], [0.99, 0.01]])
    doubtful = 0.15 * sure + 0.85 * 0.5
    near, far = predictions(0.8 * sure + 0.1), predictions(sure[:, ::-1])
    assert choose({SOURCE_ONLY: predictions(doubtful), "near": near}).name == "near"
    assert choose({SOURCE_ONLY: predictions(0.95 * sure + 0.025), "far": far}).name == SOURCE_ONLY


# --------------------------------------------------------------------------------------------------- candidates


def test_without_being_asked_there_is_no_choice():
    assert preset("default").candidates() == {}
    assert preset("default").all_steps == preset("default").steps


def test_candidates_are_the_first_ones_of_the_table():
    recipe = preset("default").override({"choice.candidates": 3})
    assert recipe.candidates() == dict(list(CANDIDATES.items())[:3])
    assert recipe.all_steps == sum(changes["steps"] for changes in list(CANDIDATES.values())[:3])


def test_a_knob_that_somebody_turned_holds_for_every_candidate():
    recipe = preset("default").override({"choice.candidates": 7, "steps": 9, "network.features": "standardised"})
    made = {name: recipe.candidate(changes) for name, changes in recipe.candidates().items()}
    assert {each.steps for each in made.values()} == {9}
    assert {each.network.features for each in made.values()} == {"standardised"}
    assert made["as-is"].network.norm == "joint"


def test_candidates_that_would_be_the_same_are_tried_once():
    turned = {"pseudo_labels.hold": 0.1, "pseudo_labels.distribution_alignment": 0.5}
    recipe = preset("default").override({"choice.candidates": 7, **turned})
    assert "held" in recipe.candidates()
    assert "unaligned" not in recipe.candidates()


def test_whoever_names_methods_gets_these():
    recipe = preset("default").override({"choice.candidates": 3}).override({"methods": ["cdan", "saf"]})
    assert recipe.candidates() == {}


# --------------------------------------------------------------------------------------------------------- a run


def test_what_is_taken_is_the_candidate_itself(both, tmp_path, monkeypatch):
    monkeypatch.setattr("safda.evaluation.choice._AGREEMENT", -100.0)  # so that it is not source only
    adapted = safda.fit(*both, out=tmp_path / "run", cpu=True, **KNOBS)
    run = RunFolder.open(tmp_path / "run")
    name = run.choice["chosen"]
    assert set(run.choice["evidence"]) == {SOURCE_ONLY, *list(CANDIDATES)[:3]}
    assert adapted.summary["choice"]["chosen"] == name
    again, alone = (safda.Adapted.load(path) for path in (run.path, run.path / "candidates" / name))
    np.testing.assert_array_equal(again.predict(both[1]).logits, alone.predict(both[1]).logits)
    np.testing.assert_array_equal(again.predict(both[1]).logits, adapted.predict(both[1]).logits)
    assert again.recipe == adapted.recipe == run.given_recipe.candidate(run.choice["changes"])
    assert f"{name} was taken of 4 candidates" in adapted.summary["words"]


def test_every_candidate_begins_alike_whoever_else_is_tried(both, tmp_path):
    for count in (1, 2):
        safda.fit(*both, out=tmp_path / str(count), cpu=True, **{**KNOBS, "choice.candidates": count})
    one, two = (load_file(tmp_path / count / "candidates/free/model.safetensors") for count in "12")
    assert all((one[name] == two[name]).all() for name in one)


def test_the_graph_is_made_once(both, monkeypatch):
    made = []
    usual = propagation.LabelPropagation

    def counted(*arguments):
        made.append(arguments)
        return usual(*arguments)

    monkeypatch.setattr(propagation, "LabelPropagation", counted)
    safda.fit(*both, cpu=True, **KNOBS)
    assert len(made) == 1


@pytest.mark.parametrize("step", [1, STEPS, 2 * STEPS + 1, 3 * STEPS])
def test_a_choice_that_was_cut_short_goes_on_exactly(both, tmp_path, step):
    np.savez(tmp_path / "s.npz", features=both[0][0], labels=both[0][1])
    np.savez(tmp_path / "t.npz", features=both[1])
    ends = tmp_path / "s.npz", tmp_path / "t.npz"
    safda.fit(*ends, out=tmp_path / "whole", cpu=True, **KNOBS)
    with pytest.raises(Killed):
        safda.fit(*ends, out=tmp_path / "cut", cpu=True, callback=killed_at(step), **KNOBS)
    resume(tmp_path / "cut", cpu=True)
    for name in ("model.safetensors", "choice.json", "predictions.csv", "summary.json"):
        assert (tmp_path / "whole" / name).read_bytes() == (tmp_path / "cut" / name).read_bytes(), name


def test_where_nothing_speaks_for_adapting_source_only_answers_and_it_is_said(both, tmp_path, monkeypatch):
    monkeypatch.setattr("safda.evaluation.choice._AGREEMENT", 100.0)
    adapted = safda.fit(*both, out=tmp_path / "run", cpu=True, **KNOBS)
    assert adapted.recipe.methods == ()
    assert adapted.summary["agreement"]["share"] == 1
    assert adapted.summary["verdict"] != "trust"
    assert "nothing speaks clearly for adapting" in adapted.summary["words"]
    np.testing.assert_array_equal(
        safda.Adapted.load(tmp_path / "run").predict(both[1]).logits, adapted.predict(both[1]).logits
    )


def test_a_summary_from_before_there_was_a_choice_can_still_be_judged(both, tmp_path):
    summary = safda.fit(*both, out=tmp_path / "run", cpu=True, **{**KNOBS, "choice.candidates": 0}).summary
    without = {key: value for key, value in summary.items() if key != "choice"}
    assert judge(without)["words"] == summary["words"]


def test_the_command_line_chooses_too(both, tmp_path, capsys):
    np.savez(tmp_path / "s.npz", features=both[0][0], labels=both[0][1])
    np.savez(tmp_path / "t.npz", features=both[1])
    knobs = [f"--{key.replace('_', '-')}={value}" for key, value in {**TINY, "steps": STEPS}.items()]
    words = ["fit", f"{tmp_path}/s.npz", f"{tmp_path}/t.npz", "-o", f"{tmp_path}/run", "--cpu", "--candidates", "2"]
    assert main([*words, *knobs]) == 0
    assert set(json.loads(capsys.readouterr().out)["summary"]["choice"]["evidence"]) == {SOURCE_ONLY, "free", "held"}
