"""Pseudo-labels, each transformation against what it says."""

from __future__ import annotations

import copy
import math

import pytest
import torch

from safda.data import Domain
from safda.methods.base import Batch
from safda.methods.pseudo_labels import PseudoLabels
from safda.model import AdaptationModel
from safda.recipe import Recipe

DIM, CLASSES, SOURCES, TARGETS = 7, 3, 6, 5
TINY = {"network.bottleneck_width": 8, "network.classifier_width": 9, "network.dropout": 0.5}


def make(**knobs):
    """A model, its pseudo-labels, and a batch of it."""
    torch.manual_seed(0)
    recipe = Recipe().override({**TINY, **{f"pseudo_labels.{name}": value for name, value in knobs.items()}})
    model = AdaptationModel(recipe, torch.zeros(DIM), CLASSES).double()
    inputs, labels = torch.randn(SOURCES + TARGETS, DIM).double(), torch.randint(0, CLASSES, (SOURCES,))
    rows = torch.cat([torch.arange(SOURCES), torch.tensor([4, 0, 2, 1, 3])])
    batch = Batch(model, model.methods_by_name, labels, rows, inputs, *model.encode(inputs, SOURCES), 0.3)
    return model, model.methods["pseudo_labels"], batch


def test_they_are_predictions_that_pass_no_gradient():
    _, pseudo_labels, batch = make()
    labels, logits = pseudo_labels.of(batch)
    torch.testing.assert_close(labels, batch.target.logits.softmax(1).detach())
    assert logits is not None
    assert not labels.requires_grad
    _, pseudo_labels, batch = make(gradient=True)
    assert pseudo_labels.of(batch)[0].requires_grad


def test_in_evaluation_mode_they_are_what_the_model_would_answer():
    model, pseudo_labels, batch = make(mode="evaluation")
    expected = copy.deepcopy(model).eval().predict(batch.target.inputs)[0].softmax(1)
    torch.testing.assert_close(pseudo_labels.of(batch)[0], expected.detach())
    assert model.bottleneck.training
    assert model.classifier.training


def test_the_sources_come_first_where_they_are_asked_for():
    _, pseudo_labels, batch = make()
    torch.testing.assert_close(pseudo_labels.of(batch, with_source=True)[0], batch.logits.softmax(1).detach())


def test_hard_ones_are_one_hot():
    _, pseudo_labels, batch = make(kind="hard")
    labels, _ = pseudo_labels.of(batch)
    assert labels.sum(1).tolist() == [1] * TARGETS
    assert torch.equal(labels.argmax(1), batch.target.logits.argmax(1))


@pytest.mark.parametrize("temperature", [0.5, 2.0])
def test_a_temperature_sharpens_sample_by_sample(temperature):
    _, pseudo_labels, batch = make(temperature=temperature)
    for label, logits in zip(pseudo_labels.of(batch)[0], batch.target.logits, strict=True):
        powers = [math.exp(x) ** (1 / temperature) for x in logits.tolist()]
        assert label.tolist() == pytest.approx([p / sum(powers) for p in powers])


@pytest.mark.parametrize("temperature", [0.01, 0.05, 0.5, 2.0])
def test_no_temperature_loses_the_labels_of_many_classes(temperature):
    _, pseudo_labels, _ = make(temperature=temperature)
    given = (torch.randn(4, 345) / 100).softmax(1)  # float32: each is near 1/345
    expected = given.double() ** (1 / temperature)
    expected = (expected / expected.sum(1, keepdim=True)).float()
    torch.testing.assert_close(pseudo_labels._transformed(given), expected, rtol=1e-4, atol=1e-8)


def test_what_is_zero_stays_zero_at_any_temperature_and_passes_no_gradient():
    _, pseudo_labels, _ = make(temperature=0.5)
    given = torch.tensor([[0.75, 0.25, 0.0], [1.0, 0.0, 0.0]], requires_grad=True)
    labels = pseudo_labels._transformed(given)
    torch.testing.assert_close(labels, torch.tensor([[0.9, 0.1, 0.0], [1.0, 0.0, 0.0]]))
    (labels * torch.arange(3)).sum().backward()
    assert given.grad[labels == 0].tolist() == [0.0] * 3


@pytest.mark.parametrize("strength", [1.0, 0.5])
def test_alignment_takes_from_classes_that_are_predicted_often(strength):
    """With predictions that are always the same, their mean is known: p / p^strength, normalised."""
    _, pseudo_labels, _ = make(distribution_alignment=strength)
    logits = torch.tensor([math.log(4.0), 0.0, 0.0]).double().expand(TARGETS, 3)
    for _ in range(3000):
        labels = pseudo_labels._transformed(logits.softmax(1))
    p = torch.tensor([2 / 3, 1 / 6, 1 / 6]).double()
    torch.testing.assert_close(pseudo_labels.prior, p, atol=1e-4, rtol=0)
    wanted = p ** (1 - strength) / (p ** (1 - strength)).sum()
    torch.testing.assert_close(labels, wanted.expand(TARGETS, 3), atol=1e-3, rtol=0)


@pytest.mark.parametrize("strength", [1.0, 0.5])
@pytest.mark.parametrize(("prior", "power"), [("initial", 1.0), ("tempered", 0.5)])
def test_alignment_to_the_prior_that_the_run_was_begun_with(strength, prior, power):
    """With predictions that are always the same, p, and a prior q, or its root: p · (q / p)^strength, normalised."""
    _, pseudo_labels, _ = make(distribution_alignment=strength, prior=prior)
    begun = torch.tensor([[0.9, 0.1, 0.0], [0.1, 0.7, 0.2]]).double()
    pseudo_labels.warm_start(begun)
    logits = torch.tensor([math.log(4.0), 0.0, 0.0]).double().expand(TARGETS, 3)
    for _ in range(3000):
        labels = pseudo_labels._transformed(logits.softmax(1))
    p, q = torch.tensor([2 / 3, 1 / 6, 1 / 6]).double(), torch.tensor([0.5, 0.4, 0.1]).double() ** power
    wanted = p * (q / p) ** strength
    torch.testing.assert_close(labels, (wanted / wanted.sum()).expand(TARGETS, 3), atol=1e-3, rtol=0)


def test_a_class_that_nobody_named_at_first_still_has_labels():
    _, pseudo_labels, _ = make(distribution_alignment=1.0, prior="initial")
    pseudo_labels.warm_start(torch.tensor([[1.0, 0.0, 0.0]]).double().expand(TARGETS, 3))
    certain = torch.eye(3).double()
    torch.testing.assert_close(pseudo_labels._aligned(certain), certain)


def domains():
    source = Domain("source", torch.randn(SOURCES, DIM), torch.arange(SOURCES) % CLASSES, ("a", "b", "c"))
    return source, Domain("target", torch.randn(TARGETS, DIM))


def test_propagated_labels_stand_in_for_predictions_once_there_are_any():
    model, pseudo_labels, batch = make(**{"propagation.neighbours": 0.5})
    plain = pseudo_labels.of(batch)[0]
    model.setup(*domains())
    torch.testing.assert_close(pseudo_labels.of(batch)[0], plain)  # nothing is known yet
    assert set(batch.kept["pseudo_labels"]) == {"rows", "predictions"}
    torch.testing.assert_close(batch.kept["pseudo_labels"]["predictions"], plain)
    pseudo_labels.observe(batch.kept["pseudo_labels"])
    pseudo_labels.refresh()
    state = pseudo_labels.training_state()
    torch.testing.assert_close(state["predictions"][[4, 0, 2, 1, 3]], plain.float())
    alpha = pseudo_labels.knobs.propagation.alpha
    known = pseudo_labels._graph.propagate(state["predictions"], alpha)[[4, 0, 2, 1, 3]]
    torch.testing.assert_close(pseudo_labels.of(batch)[0], known.double())
    fed = pseudo_labels.of(batch, with_source=True)[0]
    torch.testing.assert_close(fed[SOURCES:], known.double())
    torch.testing.assert_close(fed[:SOURCES], batch.source.logits.softmax(1).detach())  # nothing reaches those


def test_a_state_that_was_saved_is_gone_on_from():
    (model, one, batch), (other_model, other, _) = (
        make(**{"propagation.neighbours": 0.5}),
        make(**{"propagation.neighbours": 0.5}),
    )
    both = domains()
    model.setup(*both)
    other_model.setup(*both)
    one.of(batch)
    one.observe(batch.kept["pseudo_labels"])
    one.refresh()
    other.load_training_state(one.training_state())
    torch.testing.assert_close(other.of(batch)[0], one.of(batch)[0])


@pytest.mark.parametrize(("hold", "moves"), [(0.0, True), (0.3, True), (0.31, False), (1.0, False)])
def test_labels_that_a_run_was_begun_with_are_held_for_a_share_of_it(hold, moves):
    model, pseudo_labels, batch = make(**{"propagation.neighbours": 0.5, "hold": hold})  # at progress 0.3
    model.setup(*domains())
    begun_with = torch.rand(TARGETS, CLASSES).softmax(1)
    pseudo_labels.warm_start(begun_with)
    known = pseudo_labels._graph.propagate(begun_with, pseudo_labels.knobs.propagation.alpha)
    torch.testing.assert_close(pseudo_labels.of(batch)[0], known[[4, 0, 2, 1, 3]].double())
    assert ("pseudo_labels" in batch.kept) is moves


def test_a_run_that_was_begun_with_nothing_holds_nothing():
    model, pseudo_labels, batch = make(**{"propagation.neighbours": 0.5, "hold": 1.0})
    model.setup(*domains())
    pseudo_labels.of(batch)
    assert "pseudo_labels" in batch.kept


@pytest.mark.parametrize(("steps_per_epoch", "every"), [(0.5, 1), (3.9, 1), (24.8, 12), (100.0, 50)])
def test_labels_propagate_twice_in_a_pass_and_never_without_a_graph(steps_per_epoch, every):
    model, pseudo_labels, _ = make(**{"propagation.neighbours": 0.5})
    assert pseudo_labels.refresh_every(1000, steps_per_epoch) == 0
    model.setup(*domains())
    assert pseudo_labels.refresh_every(1000, steps_per_epoch) == every


def test_it_is_required_by_saf_and_adds_no_loss():
    _, pseudo_labels, batch = make()
    assert isinstance(pseudo_labels, PseudoLabels)
    assert pseudo_labels.losses(batch, None) == {}
