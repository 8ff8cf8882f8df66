"""Several recipes on the same features, of which one is taken without target labels."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file
from scipy.sparse import csr_array
from scipy.special import softmax

import safda
from safda.api import resume
from safda.classifier import Predictions
from safda.cli import main
from safda.data import load_domain
from safda.errors import SafdaError
from safda.evaluation.choice import (
    SOURCE_ONLY,
    Evidence,
    Rule,
    chance,
    choose,
    decide,
    look_at,
    neighbour_information,
)
from safda.evaluation.verdict import judge, neighbour_structure
from safda.methods import propagation
from safda.presets import CANDIDATES, DISCRIMINANTS
from safda.recipe import Recipe, preset
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


def chain(samples):
    """Each sample is near to the next, the last to the first; one edge counts twice."""
    weights = np.zeros((samples, samples))
    for one in range(samples):
        other = (one + 1) % samples
        weights[one, other] = weights[other, one] = 2.0 if one == 0 else 1.0
    return weights


class Graph:
    """A graph of three samples, and what the source's labels say of them."""

    affinity = csr_array(chain(3))

    def source_labels(self, alpha):
        return torch.tensor([[0.9, 0.1], [0.4, 0.6], [0.2, 0.8]])


def test_the_score_is_what_each_counts():
    before = predictions([[0.6, 0.4], [0.4, 0.6], [0.3, 0.7]])
    after = predictions([[0.9, 0.1], [0.8, 0.2], [0.3, 0.7]])
    seen = choose({SOURCE_ONLY: before, "other": after}, [Graph()]).evidence["other"]

    def entropy(*p):
        return -sum(x * math.log2(x) for x in p)

    mean_entropy = (entropy(0.9, 0.1) + entropy(0.8, 0.2) + entropy(0.3, 0.7)) / 3
    assert seen["information"] == pytest.approx(entropy(2.0 / 3, 1.0 / 3) - mean_entropy, abs=1e-5)
    assert seen["agreement"] == pytest.approx(2 / 3, abs=1e-6)
    assert seen["source_labels"] == pytest.approx(2 / 3, abs=1e-6)  # by the second sample they differ
    answers = np.eye(2)[[0, 0, 1]]
    assert seen["neighbours"] == pytest.approx(neighbour_information(answers, Graph.affinity), abs=1e-5)
    score = seen["source_labels"] + 0.5 * seen["neighbours"] + 0.25 * seen["information"] + 0.3 * seen["agreement"]
    assert seen["score"] == pytest.approx(score, abs=1e-5)


def test_each_is_judged_in_the_graph_that_speaks_for_it():
    class Apart(Graph):
        affinity = csr_array(chain(3)[::-1])

        def source_labels(self, alpha):
            return super().source_labels(alpha).flip(1)

    right = predictions([[0.9, 0.1], [0.1, 0.9], [0.1, 0.9]])
    other = predictions([[0.1, 0.9], [0.9, 0.1], [0.8, 0.2]])
    tried = {SOURCE_ONLY: right, "other": other}
    alone = {graph: choose(tried, [graph()]).evidence for graph in (Graph, Apart)}
    both = choose(tried, [Graph(), Apart()]).evidence
    assert both == choose(tried, [Apart(), Graph()]).evidence
    assert both[SOURCE_ONLY] == alone[Graph][SOURCE_ONLY]
    assert both["other"] == alone[Apart]["other"]
    assert both["other"]["source_labels"] == 1.0 > alone[Graph]["other"]["source_labels"]


def test_what_source_labels_contradict_is_not_taken():
    right, wrong = np.array([[0.9, 0.1], [0.1, 0.9], [0.1, 0.9]]), np.array([[0.1, 0.9], [0.9, 0.1], [0.9, 0.1]])
    unsure = 0.3 * right + 0.7 * 0.5
    both = {SOURCE_ONLY: predictions(unsure), "wrong": predictions(wrong), "right": predictions(right)}
    assert choose(both, [Graph()]).name == "right"
    assert choose({name: both[name] for name in (SOURCE_ONLY, "wrong")}, [Graph()]).name == SOURCE_ONLY


def test_half_of_a_score_is_that_of_the_one_whose_answers_it_began_with():
    sure = np.array([[0.99, 0.01], [0.01, 0.99], [0.99, 0.01], [0.01, 0.99]])
    steps = {share: predictions(share * sure + (1 - share) / 2) for share in (0.1, 0.3, 0.6, 0.9, 0.95)}
    tried = {"mdd": steps[0.6], "saf": steps[0.9], "mdd-joint": steps[0.3], "saf-joint": steps[0.95]}
    tried = {SOURCE_ONLY: steps[0.1], **tried}
    alone = {name: seen["score"] for name, seen in choose(tried, []).evidence.items()}
    assert max(alone, key=alone.get) == "saf-joint"
    begun_with = {"mdd": [SOURCE_ONLY], "saf": ["mdd"], "mdd-joint": [SOURCE_ONLY], "saf-joint": ["mdd-joint"]}
    chosen = choose(tried, [], begun_with)
    assert chosen.name == "saf"
    assert chosen.evidence["mdd"]["score"] == alone["mdd"]
    for name in ("saf", "saf-joint"):
        mean = (alone[name] + alone[begun_with[name][0]]) / 2
        assert chosen.evidence[name]["score"] == pytest.approx(mean, abs=1e-5)
    several = choose(tried, [], {"saf": ["mdd", "mdd-joint"]}).evidence["saf"]["score"]
    assert several == pytest.approx(alone["saf"] / 2 + (alone["mdd"] + alone["mdd-joint"]) / 4, abs=1e-5)
    with_another = choose(tried, [], {"saf": ["mdd", "a member"]}).evidence["saf"]["score"]
    assert with_another == pytest.approx((alone["saf"] + alone["mdd"]) / 2, abs=1e-5)
    with_others = choose(tried, [], {"saf": ["mdd", "a member", "another"]}).evidence["saf"]["score"]
    assert with_others == alone["saf"]  # most of them are not judged
    of_its_own = choose(tried, [], {**begun_with, "saf-joint": ["saf", "a member"]}).evidence["saf-joint"]["score"]
    assert of_its_own == pytest.approx((alone["saf-joint"] + alone["mdd"]) / 2, abs=1e-5)  # MDD was first of all


@pytest.mark.parametrize(("sureness", "taken"), [(5.3, "ensemble"), (4.8, "mdd")])
def test_where_scores_cannot_be_told_apart_the_one_that_began_with_most_others_is_taken(sureness, taken):
    """``ensemble`` answers one of fifty samples otherwise: a deviation is √(1/50/50) = 0.02, a quarter of it 0.005."""
    answers = np.eye(2)[np.arange(50) % 2]
    others = np.concatenate([answers[:1, ::-1], answers[1:]])
    tried = {SOURCE_ONLY: 0.01 * answers, "mdd": 5 * answers, "joint": 4.9 * answers, "ensemble": sureness * others}
    given = {name: Predictions((), (), each, each) for name, each in tried.items()}
    begun_with = {"mdd": [SOURCE_ONLY], "joint": [SOURCE_ONLY], "ensemble": ["mdd", "votes", "others"]}
    choice = choose(given, [], begun_with)
    score = {name: seen["score"] for name, seen in choice.evidence.items()}
    assert score["mdd"] == max(score.values())
    assert (score["mdd"] - score["ensemble"] < 0.005) is (taken == "ensemble")
    assert choice.name == taken


def test_one_that_is_not_clearly_better_does_not_hide_one_that_is():
    """``bold`` has the higher score, but with most answers changed it may be chance; ``careful`` changes none."""
    answers = np.eye(2)[np.arange(50) % 2]
    others = np.concatenate([answers[:25, ::-1], answers[25:]])
    all_three = {SOURCE_ONLY: 0.01 * answers, "bold": 20 * others, "careful": 1.5 * answers}
    choice = choose({name: Predictions((), (), each, each) for name, each in all_three.items()}, [])
    score = {name: seen["score"] for name, seen in choice.evidence.items()}
    assert score["bold"] > score["careful"] > score[SOURCE_ONLY]
    assert choice.name == "careful"


@given(st.integers(0, 2**32 - 1), st.integers(1, 30))
def test_what_is_written_down_decides_as_what_was_seen(seed, samples):
    """A study of the choice has evidence from a file; it must come to what was taken there, to the last digit."""
    rng = np.random.default_rng(seed)
    given_ = {name: rng.normal(size=(samples, 3)) for name in (SOURCE_ONLY, "mdd", "mdd-joint", "saf-joint")}
    tried = {name: Predictions((), (), softmax(each, axis=1), each) for name, each in given_.items()}
    graph = SimpleNamespace(
        affinity=csr_array(chain(samples)),
        source_labels=lambda alpha: torch.from_numpy(rng.dirichlet(np.ones(3), samples)),
    )
    seen = look_at(tried, [graph])
    begun_with = {"saf-joint": ["mdd-joint"]}
    again = Evidence(**json.loads(json.dumps(asdict(seen))))
    assert decide(again, begun_with) == decide(seen, begun_with)


def test_neighbour_information_is_the_mutual_information_of_two_draws():
    """Draw a sample, one of its neighbours by weight, and a class of each: summed up case by case."""
    rng = np.random.default_rng(0)
    p, weights = rng.dirichlet(np.ones(3), 5), chain(5)
    joint = np.zeros((3, 3))
    for i in range(5):
        for j in range(5):
            for k in range(3):
                for m in range(3):
                    joint[k, m] += p[i, k] * p[j, m] * weights[i, j] / weights[i].sum() / 5
    mine, theirs = joint.sum(1), joint.sum(0)
    mutual = sum(joint[k, m] * math.log(joint[k, m] / (mine[k] * theirs[m])) for k in range(3) for m in range(3))
    entropy = -sum(x * math.log(x) for x in mine)
    assert neighbour_information(p, csr_array(weights)) == pytest.approx(mutual / entropy, rel=1e-9)


@given(st.integers(0, 10**6), st.integers(2, 5), st.integers(3, 12))
def test_neighbour_information_is_a_share_whatever_the_names_of_classes(seed, classes, samples):
    rng = np.random.default_rng(seed)
    p, affinity = rng.dirichlet(np.full(classes, 0.3), samples), csr_array(chain(samples))
    share = neighbour_information(p, affinity)
    assert -1e-12 <= share <= 1 + 1e-9
    assert neighbour_information(p[:, rng.permutation(classes)], affinity) == pytest.approx(share, abs=1e-9)


def test_a_sample_without_neighbours_does_not_count():
    weights = np.zeros((4, 4))
    weights[0, 1] = weights[1, 0] = 1.0
    alone = np.array([[0.9, 0.1], [0.2, 0.8], [0.5, 0.5], [0.3, 0.7]])
    both = neighbour_information(alone[:2], csr_array(weights[:2, :2]))
    assert neighbour_information(alone, csr_array(weights)) == pytest.approx(both, abs=1e-12)
    assert neighbour_information(alone, csr_array((4, 4))) == 0


@given(st.integers(2, 40), st.integers(1, 400), st.integers(0, 2**32 - 1))
def test_the_deviation_is_that_of_coins_thrown_for_the_samples_that_differ(differing, others, seed):
    """Each sample that gets another answer speaks for one classifier or for the other: drawn, many times."""
    samples = differing + others
    balance = np.random.default_rng(seed).choice([-1, 1], (4000, differing)).sum(1) / samples
    assert chance(others / samples, samples) == pytest.approx(balance.std(), rel=0.08)


@pytest.mark.parametrize(("samples", "taken"), [(12, SOURCE_ONLY), (1200, "other")])
def test_what_a_few_samples_of_a_small_target_speak_for_is_not_taken(samples, taken):
    """The same shares of the same answers, the same score: of a hundred times as many samples they are no chance."""

    class Sided(Graph):
        """Labels that speak for the other, and neighbours that tell nothing."""

        affinity = csr_array((samples, samples))

        def source_labels(self, alpha):
            return torch.from_numpy(np.eye(2)[after])

    before = np.arange(samples) % 2
    after = np.where(np.arange(samples) < samples // 6, 1 - before, before)
    tried = {SOURCE_ONLY: before, "other": after}
    choice = choose({name: predictions(0.98 * np.eye(2)[each] + 0.01) for name, each in tried.items()}, [Sided()])
    above = choice.evidence["other"]["score"] - choice.evidence[SOURCE_ONLY]["score"]
    assert above == pytest.approx(1 / 6 - 0.3 / 6, abs=1e-3)
    assert choice.name == taken


# --------------------------------------------------------------------------------------------------- candidates


def test_the_default_tries_them_all_and_a_single_recipe_none():
    recipe = preset("default")
    expected = dict(CANDIDATES)
    for name in ("mcc-again", "mcc-rooted-again"):
        expected[name] = expected[name]._replace(changes={**expected[name].changes, "seed": 1000})
    assert {**recipe.candidates(0.0), **recipe.candidates(1.0)} == expected
    assert recipe.single().candidates(0.0) == recipe.single().candidates(1.0) == {}
    assert recipe.single().all_steps == recipe.steps


def test_a_candidate_begins_with_some_that_were_tried_before_it():
    names = [*DISCRIMINANTS, SOURCE_ONLY, *CANDIDATES]
    for name, each in CANDIDATES.items():
        assert each.begins_with
        assert all(names.index(other) < names.index(name) for other in each.begins_with)


def test_candidates_are_the_first_ones_of_the_table_that_suit_the_data():
    recipe = preset("default").override({"choice.candidates": 3})
    tried = {purity: list(recipe.candidates(purity)) for purity in (0.0, 1.0)}
    assert tried == {0.0: ["mdd", "mdd-joint", "saf-joint"], 1.0: ["mdd", "saf", "mdd-joint"]}
    steps = {name: each.changes["steps"] for name, each in CANDIDATES.items()}
    assert recipe.all_steps == max(sum(steps[name] for name in names) for names in tried.values())


def test_a_member_is_trained_where_somebody_begins_with_it():
    either, again = {"mcc", "mcc-rooted"}, {"mcc-again", "mcc-rooted-again"}
    members = {name for name, each in CANDIDATES.items() if each.is_member}
    assert members == {*either, *again, "ensemble"}
    all_but_one = preset("default").override({"choice.candidates": 8})  # the first eight that suit end with all members
    tried = {purity: preset("default").candidates(purity).keys() for purity in (0.0, 1.0)}
    assert members & tried[0.0] == either | again
    assert members & tried[1.0] == either | {"ensemble"}
    for purity in (0.0, 1.0):
        assert len(tried[purity]) == 9
        assert not members & all_but_one.candidates(purity).keys()  # nor who is a member of a member


def test_a_knob_that_is_named_holds_for_all_candidates_whatever_its_value():
    usual = preset("default")
    recipe = usual.override({"steps": usual.steps, "network": {"norm": usual.network.norm}})
    tried = {name: recipe.candidate(each.changes) for name, each in recipe.candidates(1.0).items()}
    assert {(each.steps, each.network.norm) for each in tried.values()} == {(usual.steps, usual.network.norm)}
    assert all("fixed" not in each.to_dict() for each in [usual, recipe.single(), *tried.values()])
    for again in (Recipe.from_toml(recipe.to_toml()), Recipe.from_dict({"preset": "default", "steps": usual.steps})):
        assert again.candidates(1.0).keys() <= recipe.candidates(1.0).keys()
        assert {again.candidate(each.changes).steps for each in again.candidates(1.0).values()} == {usual.steps}
    assert Recipe.from_toml(recipe.to_toml()) == recipe
    with pytest.raises(SafdaError, match="'stps' is no knob; did you mean 'steps'"):
        usual.override({"fixed": ["stps"]})


def test_who_would_begin_with_one_that_is_left_out_begins_with_its_equal():
    small = {"network.bottleneck_width": 32, "network.classifier_width": 32}
    joint = {"steps": 50, **small, "network.features": "standardised", "network.norm": "joint"}
    candidates = preset("default").override(joint).candidates(0.0)
    assert "mdd-joint" not in candidates  # it is "mdd" now
    assert candidates["saf-prior"].begins_with == ("mdd",)
    assert "mcc-rooted" not in candidates  # it is "mcc" now, and counts once; another seed is another network
    assert candidates["saf-ensemble"].begins_with == ("mdd", "mcc", "mcc-again", *DISCRIMINANTS)
    there = {*DISCRIMINANTS, SOURCE_ONLY, *candidates}
    assert all(there.issuperset(each.begins_with) for each in candidates.values())


def test_who_is_tried_where_neighbours_are_often_of_other_classes_and_where_not():
    recipe = preset("default")
    either = ["mdd", "mdd-joint", "saf-joint", "saf-prior"]
    assert set(recipe.candidates(purity=0.8)) == {*either, "saf", "mcc", "mcc-rooted", "ensemble", "saf-consensus"}
    members = {"mcc", "mcc-again", "mcc-rooted", "mcc-rooted-again"}
    assert set(recipe.candidates(purity=0.79)) == {*either, *members, "saf-ensemble"}


def test_another_network_of_a_recipe_has_a_seed_of_its_own_whatever_seed_is_asked_for():
    recipe = preset("default").override({"seed": 7})
    made = {name: recipe.candidate(each.changes) for name, each in recipe.candidates(0.0).items()}
    assert {name: each.seed for name, each in made.items() if each.seed != 7} == {
        "mcc-again": 1007,
        "mcc-rooted-again": 1007,
    }
    assert made["mcc-again"].override({"seed": 7}) == made["mcc"]


def test_a_knob_that_somebody_turned_holds_for_every_candidate():
    recipe = preset("default").override({"steps": 9, "network.features": "standardised"})
    made = {name: recipe.candidate(each.changes) for name, each in recipe.candidates(0.0).items()}
    assert {each.steps for each in made.values()} == {9}
    assert {each.network.features for each in made.values()} == {"standardised"}
    assert made["mdd-joint"].network.norm == "joint"


def test_candidates_that_would_be_the_same_are_tried_once():
    tried = preset("default").override({"network.features": "as-is", "pseudo_labels.prior": "initial"}).candidates(1.0)
    assert "saf-joint" in tried
    assert "saf-prior" not in tried


def test_candidates_that_begin_with_others_are_not_the_same():
    named = {"steps": 9, "network.dropout": 0.5, "pseudo_labels.propagation": {"alpha": 0.7}}  # in which two differ
    tried = preset("default").override(named).candidates(1.0)
    assert tried["ensemble"].changes == tried["saf-consensus"].changes


def test_whoever_names_methods_gets_these():
    recipe = preset("default").override({"choice.candidates": 3}).override({"methods": ["cdan", "saf"]})
    assert recipe.candidates(0.0) == recipe.candidates(1.0) == {}


# --------------------------------------------------------------------------------------------------------- a run


def test_what_is_taken_is_the_candidate_itself(both, tmp_path, monkeypatch):
    monkeypatch.setattr("safda.evaluation.choice.RULE", Rule(deviations=-100.0))  # so that it is not source only
    adapted = safda.fit(*both, out=tmp_path / "run", cpu=True, **KNOBS)
    run = RunFolder.open(tmp_path / "run")
    name = run.choice["chosen"]
    assert set(run.choice["evidence"]) == {SOURCE_ONLY, "mdd", "saf", "mdd-joint"}  # neighbours are pure
    assert adapted.summary["choice"]["chosen"] == name
    again, alone = (safda.Adapted.load(path) for path in (run.path, run.path / "candidates" / name))
    np.testing.assert_array_equal(again.predict(both[1]).logits, alone.predict(both[1]).logits)
    np.testing.assert_array_equal(again.predict(both[1]).logits, adapted.predict(both[1]).logits)
    assert again.recipe == adapted.recipe == run.given_recipe.candidate(run.choice["changes"])
    assert f"{name} was taken of 4 candidates" in adapted.summary["words"]
    (run.path / "summary.json").unlink()
    resumed = safda.resume(run.path, source=both[0], target=both[1], cpu=True)
    assert adapted.choice == again.choice == resumed.choice == run.choice


def test_every_candidate_begins_alike_whoever_else_is_tried(both, tmp_path):
    for count in (1, 2):
        safda.fit(*both, out=tmp_path / str(count), cpu=True, **{**KNOBS, "choice.candidates": count})
    one, two = (load_file(tmp_path / count / "candidates/mdd/model.safetensors") for count in "12")
    assert all((one[name] == two[name]).all() for name in one)


def test_each_graph_is_made_once(both, monkeypatch):
    made = []
    usual = propagation.LabelPropagation

    def counted(*arguments):
        made.append(arguments)
        return usual(*arguments)

    monkeypatch.setattr(propagation, "LabelPropagation", counted)
    safda.fit(*both, cpu=True, **KNOBS)
    assert [align for *_, align in made] == [True, False]


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
    monkeypatch.setattr("safda.evaluation.choice.RULE", Rule(deviations=1e4))
    adapted = safda.fit(*both, out=tmp_path / "run", cpu=True, **KNOBS)
    assert adapted.recipe.methods == ()
    assert adapted.summary["agreement"]["share"] == 1
    assert adapted.summary["verdict"] != "trust"
    assert "nothing speaks clearly for adapting" in adapted.summary["words"]
    np.testing.assert_array_equal(
        safda.Adapted.load(tmp_path / "run").predict(both[1]).logits, adapted.predict(both[1]).logits
    )


def test_where_lengths_tell_classes_they_are_kept(tmp_path):
    rng = np.random.default_rng(0)
    labels = np.arange(120) % 2
    directions = np.abs(rng.normal(size=(120, 6)))
    rows = (directions / np.linalg.norm(directions, axis=1, keepdims=True) * (1 + 4 * labels[:, None])).astype("f4")
    knobs = {**KNOBS, "steps": 60, "choice.candidates": 2}
    adapted = safda.fit((rows, labels), rows * 1.1, out=tmp_path / "run", cpu=True, **knobs)
    assert RunFolder.open(tmp_path / "run").choice["changes"]["network.features"] == "standardised"
    assert adapted.recipe.network.features == safda.Adapted.load(tmp_path / "run").recipe.network.features
    of_source_only = safda.Adapted.load(tmp_path / "run" / "candidates" / SOURCE_ONLY)
    assert of_source_only.recipe.network.features == "standardised"
    assert of_source_only.evaluate((rows * 1.1, labels)).accuracy > 0.95
    plain = neighbour_structure(of_source_only, load_domain(rows * 1.1))
    assert adapted.summary["structure"]["neighbours"] > plain["neighbours"] + 0.3  # lengths tell who is near, too


def test_what_is_tried_where_neighbours_are_of_other_classes_and_that_members_are_not_taken(
    both, tmp_path, monkeypatch
):
    (source, labels), target = both
    mixed = np.random.default_rng(0).permutation(labels)
    monkeypatch.setattr(
        "safda.evaluation.choice.RULE", Rule(deviations=-100.0)
    )  # so that every one of them could be taken
    knobs = {**KNOBS, "choice.candidates": len(CANDIDATES)}
    adapted = safda.fit((source, mixed), target, out=tmp_path / "run", cpu=True, **knobs)
    run = RunFolder.open(tmp_path / "run")
    assert set(run.choice["evidence"]) == {SOURCE_ONLY, "mdd", "mdd-joint", "saf-joint", "saf-prior", "saf-ensemble"}
    members = {"mcc", "mcc-again", "mcc-rooted", "mcc-rooted-again"}
    assert {folder.name for folder in (run.path / "candidates").iterdir()} == {*run.choice["evidence"], *members}
    assert adapted.choice["chosen"] in run.choice["evidence"]


def test_a_summary_from_before_there_was_a_choice_can_still_be_judged(both, tmp_path):
    summary = safda.fit(*both, out=tmp_path / "run", cpu=True, **{**KNOBS, "choice.candidates": 0}).summary
    without = {key: value for key, value in summary.items() if key != "choice"}
    assert judge(without)["words"] == summary["words"]


def test_the_command_line_chooses_too(both, tmp_path, capsys):
    np.savez(tmp_path / "s.npz", features=both[0][0], labels=both[0][1])
    np.savez(tmp_path / "t.npz", features=both[1])
    knobs = [f"--{key.replace('_', '-')}={value}" for key, value in {**TINY, "steps": STEPS}.items()]
    words = ["fit", f"{tmp_path}/s.npz", f"{tmp_path}/t.npz", "-o", f"{tmp_path}/run", "--cpu"]
    assert main([*words, *knobs, "--candidates", "2"]) == 0
    assert set(json.loads(capsys.readouterr().out)["summary"]["choice"]["evidence"]) == {SOURCE_ONLY, "mdd", "saf"}


def test_what_is_compared_with_at_the_end_needs_no_folder_to_be_tracked_in(tmp_path):
    """A user's labels are learned by the candidate ``source-only``; so another one is made, which has no folder."""
    (X, y), (X_target, labels) = blobs(0, 0.0), blobs(1, 0.7)
    few = {**TINY, "choice.candidates": 1, "steps": 2, "trackers": ("tensorboard",), "report": False}
    known = {0: str(labels[0])}
    adapted = safda.fit((X, y), X_target, out=tmp_path / "run", cpu=True, target_labels=known, **few)
    assert adapted.summary["source_only"]
    with pytest.raises(SafdaError, match="tensorboard writes into the run's folder; name one: out="):
        safda.fit((X, y), X_target, cpu=True, **few)


def test_every_candidate_is_tracked_in_its_own_folder(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    (X, y), (X_target, _) = blobs(0, 0.0), blobs(1, 0.7)
    few = {"choice.candidates": 1, "steps": 4, "log_every": 2, "network.bottleneck_width": 8}
    safda.fit((X, y), X_target, out=tmp_path / "run", trackers=("tensorboard",), cpu=True, report=False, **few)
    for name in (SOURCE_ONLY, "mdd"):
        events = EventAccumulator(str(next((tmp_path / "run" / "candidates" / name).rglob("events.*")).parent))
        events.Reload()
        assert [event.step for event in events.Scalars("lr")] == [2, 4]
        assert ("loss/mdd" in events.Tags()["scalars"]) == (name == "mdd")
