"""Labels of a few target samples that a user gives to learn from: the one door, and what they do behind it."""

from __future__ import annotations

import csv
import json

import numpy as np
import pytest
import torch
from torch.nn import functional as F

import safda
from safda.api import resume
from safda.cli import main
from safda.data import Domain, EpochSampler
from safda.data.labels import read_labels, with_known_labels
from safda.data.sampler import LabelledSampler
from safda.errors import SafdaError, SafdaWarning
from safda.evaluation.choice import SOURCE_ONLY, Rule
from safda.methods.propagation import LabelPropagation, PropagationKnobs
from safda.model import AdaptationModel
from safda.recipe import Recipe
from safda.training.checkpoint import RunFolder
from tests.conftest import TINY, blobs
from tests.test_pseudo_labels import CLASSES, SOURCES, make
from tests.test_training import BEYOND, Killed, killed_at, same

STEPS = 12
KNOBS = {**TINY, **BEYOND, "steps": STEPS, "checkpoint_every": 5}
LABELS = {"0": "ant", "21": "bee", "45": "cat", "3": "bee"}  # the last one is wrong, and is what the user says


def fit(files, out=None, labels=LABELS, **changes):
    return safda.fit(*files, out=out, cpu=True, target_labels=labels, **{**KNOBS, **changes})


# ------------------------------------------------------------------------------------------------------ the door


def test_a_run_remembers_what_it_was_given_and_nothing_else_of_the_target(files, tmp_path):
    fit(files, tmp_path / "run")
    assert RunFolder.open(tmp_path / "run").data["target_labels"] == LABELS
    fit(files, tmp_path / "without", labels=None)
    assert "target_labels" not in RunFolder.open(tmp_path / "without").data


def test_other_labels_of_the_target_change_nothing(files, tmp_path):
    with np.load(files[1]) as content:
        arrays = dict(content)
    np.savez(tmp_path / "scrambled.npz", **{**arrays, "labels": arrays["labels"][::-1]})
    one, other = fit(files), fit((files[0], tmp_path / "scrambled.npz"))
    np.testing.assert_array_equal(one.predict(files[1]).logits, other.predict(files[1]).logits)


def test_labels_come_from_a_list_on_the_command_line_and_in_python(files, tmp_path, capsys):
    knobs = [word for path, value in KNOBS.items() for word in (f"--{path.replace('_', '-')}", str(value))]
    words = [*map(str, files), "-o", str(tmp_path / "run"), "--cpu", "--labels", str(tmp_path / "labels.csv")]
    with (tmp_path / "labels.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["id", "note", "label"], *([i, "x", y] for i, y in LABELS.items()), ["7", "", " "]])
    assert main(["fit", *words, *knobs]) == 0
    capsys.readouterr()
    expected = fit(files).predict(files[1]).logits
    for adapted in (safda.Adapted.load(tmp_path / "run"), fit(files, labels=tmp_path / "labels.csv")):
        np.testing.assert_array_equal(adapted.predict(files[1]).logits, expected)


@pytest.mark.parametrize(
    ("labels", "told"),
    [
        ({"0": "anx"}, "target_labels: label 'anx' is no class of the source; did you mean 'ant'?"),
        ({"60": "ant", "x": "ant"}, r"no sample of the target is called '60' \(nor are 1 more\)"),
        ({"0": "(other)"}, "holds no label of a class"),
        ({}, "holds no label of a class"),
    ],
)
def test_what_is_no_label_is_told(files, labels, told):
    with pytest.raises(SafdaError, match=told):
        fit(files, labels=labels)


def test_samples_of_no_class_are_left_out_and_that_is_told(files):
    with pytest.warns(SafdaWarning, match="1 samples are of none of the classes"):
        some = fit(files, labels={**LABELS, "9": "(other)"})
    np.testing.assert_array_equal(some.predict(files[1]).logits, fit(files).predict(files[1]).logits)


def test_names_are_found_as_a_spreadsheet_has_them(tmp_path):
    target = Domain("target", torch.zeros(2, 3), ids=("=a", "b"))
    known = with_known_labels(target, {"'=a": "'-b"}, ["a", "-b"])
    assert known.known_labels.tolist() == [1, -1]
    assert known.unlabelled().known_labels is None
    assert known.take(torch.tensor([1, 0])).known_labels.tolist() == [-1, 1]


def test_lists_that_are_none_are_told(tmp_path):
    (tmp_path / "a.csv").write_text("name,label\nx,y\n")
    with pytest.raises(SafdaError, match="has no column 'id'"):
        read_labels(tmp_path / "a.csv")
    (tmp_path / "a.csv").write_text("")
    with pytest.raises(SafdaError, match="is empty; a list of labels has columns"):
        read_labels(tmp_path / "a.csv")


# ---------------------------------------------------------------------------------------------------- what they do


def test_each_labelled_row_counts_as_one_of_the_sources():
    model = AdaptationModel(Recipe().override({**TINY, "network.dropout": 0.0}), torch.zeros(5), 3).double()
    source, target = torch.randn(6, 5).double(), torch.randn(4, 5).double()
    labels, rows = torch.tensor([0, 1, 2, 0, 1, 2]), torch.cat([torch.arange(6), torch.arange(4)])
    known = torch.tensor([-1, 2, -1, 0])
    out = model(source, labels, target, rows, 0.5, target_labels=known)
    logits = model.encode(torch.cat([source, target]), 6).logits[6:]
    by_hand = -(logits.log_softmax(1)[1, 2] + logits.log_softmax(1)[3, 0]) / 6
    torch.testing.assert_close(out.losses["target_labels"], by_hand)
    assert "target_labels" not in model(source, labels, target, rows, 0.5).losses
    nothing = model(source, labels, target, rows, 0.5, target_labels=torch.full((4,), -1))
    assert nothing.losses["target_labels"].item() == 0


def test_where_a_method_answers_in_place_of_the_classifier_that_answer_learns():
    model = AdaptationModel(Recipe().override({**TINY, "methods": ["mcd"]}), torch.zeros(5), 3)
    batch = torch.randn(6, 5), torch.tensor([0, 1, 2, 0, 1, 2]), torch.randn(4, 5), torch.arange(10)
    out = model(*batch, 0.5, target_labels=torch.tensor([-1, 2, -1, 0]))
    out.losses["target_labels"].backward()
    assert all(p.grad.abs().sum() > 0 for p in model.methods["mcd"].second.parameters())


@pytest.mark.parametrize("knobs", [{}, {"temperature": 0.5, "distribution_alignment": 1.0}, {"kind": "hard"}])
@pytest.mark.parametrize("with_source", [False, True])
def test_pseudo_labels_of_known_ones_are_the_labels(knobs, with_source):
    _, pseudo_labels, batch = make(**knobs)
    usual = pseudo_labels.of(batch, with_source)[0]
    _, pseudo_labels, batch = make(**knobs)
    object.__setattr__(batch, "target_labels", torch.tensor([-1, 2, -1, -1, 0]))
    labels = pseudo_labels.of(batch, with_source)[0]
    first = SOURCES if with_source else 0
    rows = [first + 1, first + 4]
    torch.testing.assert_close(labels[rows], F.one_hot(torch.tensor([2, 0]), CLASSES).double())
    others = [row for row in range(len(labels)) if row not in rows]
    torch.testing.assert_close(labels[others], usual[others])


def test_known_labels_stay_fixed_while_others_spread():
    rng = np.random.default_rng(0)
    points = [torch.from_numpy(rng.normal(1, 1, (n, 5)).astype(np.float32)) for n in (40, 60)]
    source = Domain("source", points[0], torch.arange(40) % 3, ("a", "b", "c"))
    target = with_known_labels(Domain("target", points[1]), {"7": "b", "30": "c"}, source.classes)
    graph = LabelPropagation(source, target, PropagationKnobs(neighbours=0.3, cross_domain=0.2))
    predictions = torch.rand(60, 3, generator=torch.Generator().manual_seed(0)).softmax(1)
    alpha = 0.6
    found = graph.propagate(predictions, alpha).numpy()
    free = np.setdiff1d(np.arange(60), [7, 30])
    affinity = graph.affinity.toarray().astype(np.float64)
    fixed = (
        (1 - alpha) * predictions.numpy() + alpha * graph.from_source + alpha * affinity[:, [7, 30]] @ np.eye(3)[[1, 2]]
    )
    solved = np.linalg.solve(np.eye(58) - alpha * affinity[np.ix_(free, free)], fixed[free])
    np.testing.assert_allclose(found[free], solved / solved.sum(1, keepdims=True), atol=1e-3)
    np.testing.assert_array_equal(found[[7, 30]], np.eye(3)[[1, 2]])


@pytest.mark.parametrize(("labelled", "count"), [(50, 8), (3, 3), (1, 1)])
def test_a_batch_holds_labelled_ones_up_to_a_quarter(labelled, count):
    rows = torch.arange(labelled) * 7
    sampler, usual = LabelledSampler(EpochSampler(1000, 32, 0, 1), rows, 32, 0), EpochSampler(1000, 32, 0, 1)
    drawn = []
    for step in range(labelled):
        batch, before = sampler.rows(step), usual.rows(step)
        places = torch.arange(count) * 32 // count
        others = np.setdiff1d(np.arange(32), places)
        assert torch.equal(batch[others], before[others])
        drawn += batch[places].tolist()
        assert torch.equal(sampler.rows(step), batch)
    assert sorted(drawn) == sorted(rows.tolist() * count)  # all alike


def test_what_was_learned_is_answered_and_source_only_knows_nothing_of_it(files, tmp_path):
    long = {"steps": 150, "network.dropout": 0.0}
    bees = {str(row): "bee" for row in range(0, 20, 2)}  # which look like ants
    fit(files, tmp_path / "run", bees, **long)
    fit(files, tmp_path / "without", None, **long)
    with_labels, without = (
        list(csv.DictReader((tmp_path / name / "predictions.csv").open())) for name in ("run", "without")
    )
    assert sum(with_labels[int(row)]["class"] == "bee" for row in bees) > 8
    assert sum(without[int(row)]["class"] == "bee" for row in bees) < 2
    assert [row["source_only"] for row in with_labels] == [row["source_only"] for row in without]


@pytest.mark.parametrize("step", [1, 5, 8])
def test_a_run_with_labels_resumes_exactly(files, tmp_path, step):
    fit(files, tmp_path / "whole")
    with pytest.raises(Killed):
        fit(files, tmp_path / "cut", callback=killed_at(step))
    resume(tmp_path / "cut", cpu=True)
    same(tmp_path / "whole", tmp_path / "cut")
    for name in ("predictions.csv", "summary.json", "data.json"):
        assert (tmp_path / "whole" / name).read_bytes() == (tmp_path / "cut" / name).read_bytes()


def test_a_choice_with_labels_resumes_exactly(files, tmp_path):
    changes = {"choice.candidates": 2, "steps": 4, "checkpoint_every": 2}
    fit(files, tmp_path / "whole", **changes)
    with pytest.raises(Killed):
        fit(files, tmp_path / "cut", callback=killed_at(5), **changes)
    resume(tmp_path / "cut", cpu=True)
    for name in ("model.safetensors", "choice.json", "predictions.csv"):
        assert (tmp_path / "whole" / name).read_bytes() == (tmp_path / "cut" / name).read_bytes()


def test_source_only_learns_labels_as_a_candidate_and_not_to_be_compared_with(files, tmp_path, monkeypatch):
    monkeypatch.setattr("safda.evaluation.choice.RULE", Rule(deviations=1e4))  # so that it is taken
    changes = {"choice.candidates": 1, "steps": 150, "network.dropout": 0.0, "report": False}
    bees = {str(row): "bee" for row in range(0, 20, 2)}  # which look like ants
    fit(files, tmp_path / "run", bees, **changes)
    fit(files, tmp_path / "without", None, **changes)
    learned, before = (
        list(csv.DictReader((tmp_path / name / "predictions.csv").open())) for name in ("run", "without")
    )
    assert RunFolder.open(tmp_path / "run").choice["chosen"] == SOURCE_ONLY
    assert sum(learned[int(row)]["class"] == "bee" for row in bees) > 8
    assert sum(before[int(row)]["class"] == "bee" for row in bees) < 2
    assert [row["source_only"] for row in learned] == [row["source_only"] for row in before]
    in_memory = fit(files, None, bees, **changes).predict(files[1]).logits
    np.testing.assert_array_equal(in_memory, safda.Adapted.load(tmp_path / "run").predict(files[1]).logits)


@pytest.mark.parametrize("method", ["ima", "mcd", "symnets", "vmt"])
def test_labels_go_with_methods_that_sample_answer_or_learn_in_their_own_way(files, tmp_path, method):
    safda.fit(*files, out=tmp_path / "run", target_labels=LABELS, methods=[method], cpu=True, **{**TINY, "steps": 4})
    last = RunFolder.open(tmp_path / "run").metrics()[-1]
    assert last["loss/target_labels"] > 0


def test_labels_that_are_damaged_in_the_run_folder_are_told(files, tmp_path, capsys):
    fit(files, tmp_path / "run", steps=2)
    file = tmp_path / "run" / "data.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "target_labels": {"0": 3}}))
    assert main(["predict", str(tmp_path / "run"), str(files[1])]) == 1
    assert "target_labels.0 must be a text" in capsys.readouterr().err


# --------------------------------------------------------------------------------------------------- the estimator


@pytest.fixture
def arrays():
    (X, y), (X_target, y_target) = blobs(0, 0.0), blobs(1, 0.7)
    return X, y, X_target, y_target


def classifier():
    return safda.SAFClassifier(
        steps=5, batch=8, knobs={"network.bottleneck_width": 16, "choice.candidates": 0}, random_state=0
    )


def test_the_estimator_learns_labels_of_the_target(arrays):
    X, y, X_target, y_target = arrays
    some = np.full(60, -1)
    some[[0, 25, 50]] = y_target[[0, 25, 50]]
    learned = classifier().fit(X, y, X_target=X_target, y_target=some)
    assert learned.adapted_.data["target_labels"] == {str(row): str(y_target[row]) for row in (0, 25, 50)}
    as_api = safda.fit(
        (X, y), X_target, target_labels={row: y_target[row] for row in (0, 25, 50)}, steps=5, batch=8, cpu=True,
        **{"network.bottleneck_width": 16, "choice.candidates": 0},
    )  # fmt: skip
    np.testing.assert_array_equal(learned.predict_proba(X_target), as_api.predict(X_target).probabilities)
    none = classifier().fit(X, y, X_target=X_target, y_target=np.full(60, -1))
    plain = classifier().fit(X, y, X_target=X_target)
    np.testing.assert_array_equal(none.predict_proba(X_target), plain.predict_proba(X_target))
    assert not np.array_equal(learned.predict_proba(X_target), plain.predict_proba(X_target))


@pytest.mark.parametrize("unknown", [-1, None, np.nan])
def test_unknown_labels_are_minus_one_none_or_nan(arrays, unknown):
    X, y, X_target, _ = arrays
    names = np.array(["a", "b", "c"])[y]
    some = np.array([unknown] * 60, dtype=object)
    some[[0, 25]] = "c", "a"
    known = classifier().fit(X, names, X_target=X_target, y_target=some).adapted_.data["target_labels"]
    assert known == {"0": "c", "25": "a"}


def test_where_minus_one_is_a_class_it_is_one(arrays):
    X, y, X_target, _ = arrays
    some = [np.nan] * 60
    some[4], some[5] = -1.0, 1.0
    known = classifier().fit(X, np.where(y == 0, -1, 1), X_target=X_target, y_target=some).adapted_
    assert known.data["target_labels"] == {"4": "-1", "5": "1"}


def test_wrong_labels_of_the_target_are_told(arrays):
    X, y, X_target, _ = arrays
    with pytest.raises(ValueError, match="y_target must be of shape"):
        classifier().fit(X, y, X_target=X_target, y_target=[0, 1])
    with pytest.raises(ValueError, match="y_target has the label 7 in row 2"):
        classifier().fit(X, y, X_target=X_target, y_target=[-1, -1, 7, *[-1] * 57])
