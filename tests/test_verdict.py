"""What a run says of itself without labels: good ones are not slandered, and noise is not praised."""

from __future__ import annotations

import io

import numpy as np
import pytest
import torch
from rich.console import Console
from sklearn.metrics import cohen_kappa_score

import safda
from safda.classifier import Predictions
from safda.data import Domain, load_domain
from safda.evaluation.verdict import classes_do_not_show, neighbour_structure, summarise, swallowing_class
from safda.view import summary_table

CLASSES = ("ant", "bee", "cat", "dog")
rng = np.random.default_rng(0)
ALL = np.repeat(np.arange(4), 50)


def answers(labels, sure=6.0):
    """Predictions of these classes, all equally sure."""
    logits = sure * np.eye(4, dtype=np.float32)[labels]
    return Predictions(tuple(map(str, range(len(labels)))), CLASSES, logits, np.zeros((len(labels), 2), np.float32))


def changed(labels, share):
    """The same with a share of them at random."""
    return np.where(rng.random(len(labels)) < share, rng.integers(0, 4, len(labels)), labels)


SEEN = {"neighbours": 0.7, "shuffled": 0.1}


def judged(after, before, structure=None):
    summary = summarise(answers(after), None if before is None else answers(before), torch.from_numpy(ALL), structure)
    return summary["verdict"], summary["words"]


def test_a_good_run_is_trusted():
    verdict, words = judged(ALL, changed(ALL, 0.2), SEEN)
    assert verdict == "trust"
    assert words.startswith("adaptation changed 1")
    assert words.endswith("nothing looks wrong")


def test_a_class_that_swallows_the_others_is_named():
    piled = np.where(np.arange(200) % 8 > 0, 1, ALL)
    verdict, words = judged(piled, ALL, SEEN)
    assert verdict == "do not trust"
    assert "one class, bee, takes" in words
    assert words.endswith("do not trust this run")
    mostly_bees = np.array([1] * 170 + [0] * 10 + [2] * 10 + [3] * 10)
    same = summarise(answers(mostly_bees), answers(mostly_bees), torch.from_numpy(mostly_bees))
    assert same["verdict"] == "trust"  # as frequent in the source


def test_a_class_that_source_only_finds_as_often_swallows_none_where_near_samples_look_alike():
    piled = np.where(np.arange(200) % 8 > 0, 1, ALL)
    verdict, words = judged(piled, piled, SEEN)
    assert verdict == "doubt"
    assert "one class, bee, takes" in words
    for before, swallows in ((piled, None), (ALL, "bee")):
        summary = summarise(answers(piled), answers(before), torch.from_numpy(ALL), SEEN)
        assert (swallowing_class(summary) or [None])[0] == swallows
    for structure in (None, {"neighbours": 0.4, "shuffled": 0.1}):  # nothing shows that the target is like that
        assert judged(piled, piled, structure)[0] == "do not trust"


def test_classes_that_vanish_and_answers_that_changed_too_much_raise_a_doubt():
    verdict, words = judged(ALL % 2, ALL % 2)
    assert verdict == "doubt"
    assert "2 of 4 classes are never predicted" in words
    verdict, words = judged(ALL, np.where(ALL < 2, 1 - ALL, ALL), SEEN)  # two classes changed names
    assert verdict == "doubt"
    assert "it agrees with source only on 50% of the samples" in words
    assert judged(ALL, (ALL + 1) % 4, SEEN)[0] == "do not trust"
    assert judged(ALL, None)[0] == "doubt"  # nothing to compare with


class Nearest:
    """A classifier that knows the four corners."""

    def answer(self, domain):
        return answers(domain.inputs.numpy()[:, :4].argmax(1))


@pytest.mark.parametrize("dimensions", [4, 40])
def test_a_target_in_which_classes_do_not_show_is_not_trusted(dimensions):
    corners = np.eye(4, dimensions)[ALL] + 0.3 * rng.normal(size=(200, dimensions)) / np.sqrt(dimensions)
    noise = rng.normal(size=(200, dimensions))
    real, none = (
        neighbour_structure(Nearest(), Domain("t", torch.tensor(rows, dtype=torch.float32)))
        for rows in (corners, noise)
    )
    assert real["neighbours"] > 0.95
    assert real["shuffled"] < 0.8
    assert abs(none["neighbours"] - none["shuffled"]) < 0.2
    assert judged(ALL, ALL, real)[0] == "trust"
    verdict, words = judged(ALL, ALL, {"neighbours": 0.3, "shuffled": 0.1})
    assert verdict == "doubt"
    assert "often look different" in words
    verdict, words = judged(ALL, ALL, {"neighbours": 0.2, "shuffled": 0.18})
    assert verdict == "do not trust"
    assert "no more alike than in noise" in words


class Sentiment:
    """A classifier that adds up two words, in the first columns."""

    def answer(self, domain):
        score = domain.inputs.numpy()[:, :2].sum(1, keepdims=True)
        logits = np.hstack([score, -score, np.full((len(score), 2), -9)]).astype(np.float32)
        return Predictions(tuple(map(str, range(len(score)))), CLASSES, logits, logits)


@pytest.mark.parametrize("told_by", ["two words that go together", "noise"])
def test_where_neighbours_tell_nothing_the_classifiers_confidence_may_still_tell(told_by):
    words = rng.choice([-1.0, 1.0], size=(3000, 1)).repeat(2, axis=1)
    if told_by == "noise":
        words = rng.permuted(words, axis=0)
    rows = np.hstack([words, 50 * rng.normal(size=(3000, 60))])  # most of what tells neighbours apart means nothing
    structure = neighbour_structure(Sentiment(), Domain("t", torch.tensor(rows, dtype=torch.float32)))
    assert structure["neighbours"] < structure["shuffled"] + 0.05
    assert (structure["p_value"] < 1e-6) == (told_by != "noise")
    verdict, words = judged(ALL, ALL, structure)
    assert verdict == ("do not trust" if told_by == "noise" else "doubt")
    assert "samples near each other look no more alike than in noise" in words


def test_neighbours_that_look_alike_show_classes_whatever_confidences_are():
    assert not classes_do_not_show({"neighbours": 0.7, "shuffled": 0.1, "p_value": 0.9})
    assert classes_do_not_show({"neighbours": 0.1, "shuffled": 0.1, "p_value": 0.9})


class Longer:
    """A classifier that looks at lengths alone."""

    def answer(self, domain):
        return answers(np.digitize(np.linalg.norm(domain.inputs.numpy(), axis=1), [1.5, 2.5, 3.5]))


def test_who_is_near_depends_on_the_scaling_that_the_run_found_best():
    rows = (1.0 + ALL[:, None]) * (1 + 0.05 * rng.normal(size=(200, 2))) / np.sqrt(2)  # one direction, four lengths
    lengths = Domain("t", torch.tensor(rows, dtype=torch.float32))
    plain, standardised = (neighbour_structure(Longer(), lengths, scaling) for scaling in ("centred", "standardised"))
    assert standardised["neighbours"] > plain["neighbours"] + 0.3


@pytest.mark.parametrize("count", [1, 2, 5])
@pytest.mark.filterwarnings("error")
def test_of_a_few_samples_it_says_that_they_are_few(count):
    few = np.arange(count) % 4
    structure = neighbour_structure(Nearest(), Domain("t", torch.eye(4)[few]))
    summary = summarise(answers(few), answers(few), torch.from_numpy(ALL), structure)
    assert structure is None
    assert summary["verdict"] != "trust"
    assert f"{count} samples are too few to tell" in summary["words"]


def test_numbers_are_what_others_compute():
    before = changed(ALL, 0.5)
    summary = summarise(answers(ALL), answers(before, sure=1.0), torch.from_numpy(ALL % 3), SEEN)
    assert summary["agreement"]["share"] == pytest.approx((before == ALL).mean())
    assert summary["agreement"]["kappa"] == pytest.approx(cohen_kappa_score(before, ALL))
    assert summary["classes"]["dog"] == pytest.approx(
        {"source": 0.0, "predicted": 0.25, "source_only": (before == 3).mean()}, abs=1e-4
    )
    assert summary["source_only"]["confidence"] == pytest.approx(np.e / (np.e + 3))
    assert summary["structure"] == SEEN


def test_everything_is_shown_in_a_terminal_whatever_a_class_is_called():
    summary = summarise(answers(ALL), answers(ALL), torch.from_numpy(ALL))
    summary["classes"] = {f"[bold]{name}": about for name, about in summary["classes"].items()}
    console = Console(file=io.StringIO(), width=100)
    console.print(summary_table(summary))
    shown = console.file.getvalue()
    assert "[bold]cat" in shown
    assert "25.0%" in shown
    assert "score: information" in shown


@pytest.fixture(scope="module")
def digits():
    """Drawn and handwritten digits as plain arrays."""
    source, target = load_domain("digits-rendered"), load_domain("digits-handwritten")
    return (source.inputs.flatten(1).numpy(), source.labels.numpy()), target.inputs.flatten(1).numpy()[::2]


KNOBS = {"steps": 300, "network.bottleneck_width": 128, "network.classifier_width": 128, "cpu": True}


def test_a_real_target_and_one_of_pure_noise_are_not_told_the_same(digits, tmp_path):
    source, target = digits
    good = safda.fit(source, target, out=tmp_path / "good", **KNOBS).summary
    noise = np.random.default_rng(0).normal(target.mean(0), target.std(0), target.shape)
    shuffled = np.random.default_rng(0).permuted(target, axis=0)
    assert good["verdict"] != "do not trust"
    for name, bad in (("noise", noise), ("shuffled", shuffled)):
        assert safda.fit(source, bad, out=tmp_path / name, **KNOBS).summary["verdict"] == "do not trust"
    assert safda.Adapted.load(tmp_path / "good").summary == good
