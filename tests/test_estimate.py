"""How many answers are likely to be right: against closed forms, and on targets whose truth is known."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import safda
from safda.classifier import Predictions
from safda.data import Domain, load_domain
from safda.evaluation.estimate import (
    Weights,
    agreement_with_source_labels,
    average_thresholded_confidence,
    difference_of_confidences,
    estimate,
    estimate_accuracy,
)
from safda.evaluation.scores.agreement import GRAPH
from safda.evaluation.verdict import summarise
from safda.methods.propagation import both_graphs
from tests.conftest import TINY, blobs

SHARE = st.floats(0, 1)


def domains(shift=0.7, per_class=40):
    (X, y), (X_target, y_target) = blobs(0, 0.0, per_class=per_class), blobs(1, shift, per_class=per_class)
    source = Domain("s", torch.from_numpy(X), torch.from_numpy(y), ("ant", "bee", "cat"))
    return source, Domain("t", torch.from_numpy(X_target)), y_target


def saying(answers, classes=3):
    logits = np.eye(classes, dtype=np.float32)[answers]
    return Predictions(tuple(map(str, answers)), ("ant", "bee", "cat")[:classes], logits, logits)


# --------------------------------------------------------------------------------------- confidence and the source


def test_confidence_that_means_the_same_on_both_sides_gives_the_accuracy():
    rng = np.random.default_rng(0)
    source, target = rng.beta(4, 1, 20_000), rng.beta(2, 1, 20_000)  # the target is harder, and both are calibrated
    right = rng.random(20_000) < source
    truth = target.mean()
    assert difference_of_confidences(source, right, target) == pytest.approx(truth, abs=0.01)
    by_threshold = source > np.quantile(source, 0.3)  # right above a threshold, wrong below it
    found = average_thresholded_confidence(source, by_threshold, target)
    assert found == pytest.approx((target > np.quantile(source, 0.3)).mean(), abs=0.01)


@given(st.lists(SHARE, min_size=1, max_size=30, unique=True), st.data())
def test_the_thresholded_share_of_the_source_itself_is_its_accuracy(confidence, data):
    values = np.array(confidence)
    right = np.array(data.draw(st.lists(st.booleans(), min_size=len(values), max_size=len(values))))
    assert average_thresholded_confidence(values, right, values) == pytest.approx(right.mean())


# ----------------------------------------------------------------------------------------------- source labels


def test_the_source_labels_know_nothing_of_the_answers_that_they_are_compared_with():
    source, target, truth = domains()
    agreement = agreement_with_source_labels(saying(truth), source, target)
    assert agreement > 0.9
    for wrong in (12, 60):
        said = np.where(np.arange(120) < wrong, (truth + 1) % 3, truth)
        assert agreement_with_source_labels(saying(said), source, target) == pytest.approx(
            agreement - wrong / 120, abs=0.1
        )


@pytest.mark.parametrize("shift", [0.0, 3.0])
def test_the_graph_counts_that_speaks_for_the_answers(shift):
    rng = np.random.default_rng(0)
    few = 20 if shift else 160  # a shift of all samples alike, or other shares of the classes

    def domain(name, few, shift):
        labels = np.concatenate([np.zeros(few, int), np.full(20, 2), np.ones(180 - few, int)])
        rows = 2 * np.eye(6)[labels] + shift + 0.2 * rng.normal(size=(200, 6))
        return Domain(name, torch.from_numpy(rows.astype(np.float32)), torch.from_numpy(labels), ("a", "b", "c"))

    source, target = domain("source", 20, 0.0), domain("target", few, shift * np.eye(6)[5])
    known = both_graphs(source, target.unlabelled(), GRAPH)
    each = [float(graph.source_labels(0.9).argmax(1).eq(target.labels).float().mean()) for graph in known]
    found = agreement_with_source_labels(saying(target.labels.numpy()), source, target.unlabelled())
    assert found == pytest.approx(max(each))
    assert (each[0] > each[1]) == (shift > 0)


@given(SHARE, st.integers(2, 100), st.integers(20, 10**6))
def test_an_estimate_is_a_share_within_its_interval(agreement, classes, samples):
    found = estimate(agreement, classes, samples)
    assert 0 <= found.low <= found.accuracy <= found.high <= 1
    assert found.level == 0.9


@given(st.integers(2, 100))
def test_both_are_counted_beyond_chance(classes):
    plain = Weights(constant=0.0, agreement=1.0, reach=0.1)
    assert estimate(0.7, classes, 10**9, plain).accuracy == pytest.approx(0.7)
    half = Weights(constant=0.0, agreement=0.5, reach=0.1)
    assert estimate(1.0, classes, 10**9, half).accuracy == pytest.approx(0.5 + 0.5 / classes)
    assert estimate(1.0, classes, 10**9, half).high == pytest.approx(0.6 + 0.5 / classes)


def test_more_wrong_answers_make_a_lower_estimate():
    source, target, truth = domains()
    found = []
    for wrong in (0, 30, 60):
        said = np.where(np.arange(120) % 120 < wrong, (truth + 1) % 3, truth)
        found.append(estimate_accuracy(saying(said), source, target))
    assert found[0]["accuracy"] > found[1]["accuracy"] > found[2]["accuracy"]
    for each, accuracy in zip(found, (1, 0.75, 0.5), strict=True):
        assert each["accuracy"] == pytest.approx(accuracy, abs=0.12)
        assert each["low"] <= accuracy <= each["high"] + 0.02


def test_of_a_few_samples_nothing_is_estimated():
    source, target, truth = domains()
    assert estimate_accuracy(saying(truth[:10]), source, target.take(torch.arange(10))) is None


def test_a_run_ends_with_an_estimate_in_its_summary_and_its_words(tmp_path):
    source, target, truth = domains()
    adapted = safda.fit(source, target, out=tmp_path / "run", cpu=True, recipe="default", **{**TINY, "steps": 80})
    estimate = adapted.summary["estimate"]
    assert estimate == estimate_accuracy(adapted.predict(target), source, target)
    assert estimate["low"] <= (adapted.predict(target).logits.argmax(1) == truth).mean() <= estimate["high"]
    assert f"about {estimate['accuracy']:.0%} of its answers are likely to be right" in adapted.summary["words"]
    assert safda.Adapted.load(tmp_path / "run").summary["estimate"] == estimate
    assert {"mixval", "iw", "dev", "reverse", "graph_agreement"} <= set(adapted.summary["adapted"]["scores"])
    assert set(adapted.summary["source_only"]["scores"]) == set(adapted.summary["adapted"]["scores"])


def test_where_the_whole_network_was_trained_there_is_no_estimate(tmp_path):
    digits = [load_domain(f"digits-{kind}") for kind in ("rendered", "handwritten")]
    some = [domain.take(torch.arange(0, len(domain), 50)) for domain in digits]
    summary = safda.fit(*some, out=tmp_path / "run", cpu=True, **{**TINY, "steps": 3}).summary
    assert summary["estimate"] is None
    assert "likely to be right" not in summary["words"]


def test_a_run_that_is_not_to_be_trusted_is_not_praised_by_an_estimate():
    labels = np.repeat(np.arange(3), 20)
    estimate = {"accuracy": 0.8, "low": 0.7, "high": 0.9, "level": 0.9, "method": "agreement"}
    good, bad = (
        summarise(saying(labels), saying(before), torch.from_numpy(labels), estimate=estimate)
        for before in (labels, (labels + 1) % 3)
    )
    assert "about 80% of its answers are likely to be right (70% to 90%)" in good["words"]
    assert bad["verdict"] == "do not trust"
    assert "likely to be right" not in bad["words"]
