"""The other methods of the tables: losses against naive forms, who moves when, and that each pulls the right way."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace

import pytest
import sklearn
import torch
from torch import nn
from torch.nn import functional as F

from safda.data import Domain
from safda.methods.afn import AFN
from safda.methods.base import Phase
from safda.methods.dan import DAN
from safda.methods.jan import JAN
from safda.methods.kernels import WIDTHS, gaussian_kernels, mean_discrepancy
from safda.methods.mada import MADA
from safda.methods.mcc import MCC
from safda.methods.symnets import SymNets
from tests.test_methods import (
    AT_ONCE,
    CLASSES,
    WIDTH,
    built,
    joint,
    loss_of,
    model_of,
    moved_by_phases,
    set_up,
    step_of,
)

with sklearn.config_context():  # importing skada turns metadata routing on for good; other tests are to go without
    from skada.deep.losses import mcc_loss


def descend(loss, *parameters, steps=100, lr=0.1):
    """Make some steps down a loss."""
    optimizer = torch.optim.SGD(parameters, lr)
    for _ in range(steps):
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()


def two_clouds(gap, samples=20):
    """Return a function that makes a batch of two clouds, the target's ``gap`` away and moved by a shift of ours."""
    batch, classifier = joint(samples, samples), nn.Linear(WIDTH, CLASSES).double()
    rows = batch.embedding.detach()

    def batch_of(shift):
        embedding = torch.cat([rows[:samples], rows[samples:] + gap + shift])
        return replace(batch, embedding=embedding, logits=classifier(embedding), metrics={}, kept={})

    return batch_of


def distance(batch):
    source, target = batch.split(batch.embedding.detach())
    return (source.mean(0) - target.mean(0)).norm().item()


def new_shift():
    return torch.zeros(WIDTH, dtype=torch.float64, requires_grad=True)


# ------------------------------------------------------------------------------------------------------ MCC


@pytest.mark.parametrize("temperature", [1.0, 2.5])
def test_mcc_is_skadas_and_its_weights_pass_no_gradient(temperature):
    batch = joint()
    wanted = mcc_loss(batch.target.logits, T=temperature, eps=0.0)
    assert loss_of(MCC(temperature=temperature, weight=3.0), batch).item() == pytest.approx(3 * wanted.item())
    (ours,) = torch.autograd.grad(loss_of(MCC(temperature=temperature), batch), batch.logits)
    logits = batch.target.logits.detach().requires_grad_()
    p = (logits / temperature).softmax(1)
    weights = 1 + torch.exp((p * p.log()).sum(1).detach())
    confusion = sum(w * torch.outer(row, row) for w, row in zip(weights / weights.mean(), p, strict=True))
    confusion = confusion / confusion.sum(1, keepdim=True)
    (naive,) = torch.autograd.grad((confusion.sum() - confusion.trace()) / CLASSES, logits)
    torch.testing.assert_close(ours[3:], naive)
    assert not ours[:3].any()  # the source takes no part


def test_mcc_makes_predictions_sure():
    logits, batch = torch.randn(12, CLASSES, dtype=torch.float64, requires_grad=True), joint(3, 9)
    before = logits.detach().softmax(1).max(1).values.mean()
    descend(lambda: loss_of(MCC(), replace(batch, logits=logits)), logits, lr=5.0)
    assert logits[3:].softmax(1).max(1).values.mean() > 1.3 * before


# --------------------------------------------------------------------------------------------- DAN and JAN


def mean_square(rows):
    return torch.stack([(a - b).square().sum() for a in rows for b in rows]).mean().item()


def naive_kernel(rows):
    mean = mean_square(rows)
    return lambda i, j: sum(math.exp(-(rows[i] - rows[j]).square().sum().item() / (2 * w * mean)) for w in WIDTHS)


def naive_discrepancy(kernel, sources, targets):
    """MMD² as it is defined, over pairs of different samples."""
    s, t = range(sources), range(sources, sources + targets)
    within = [[kernel(i, j) for i in domain for j in domain if i != j] for domain in (s, t)]
    between = [kernel(i, j) for i in s for j in t]
    return sum(within[0]) / len(within[0]) + sum(within[1]) / len(within[1]) - 2 * sum(between) / len(between)


def test_dan_adds_up_the_discrepancies_of_both_layers_pair_by_pair():
    batch = joint()
    layers = [rows.detach() for rows in (batch.embedding, batch.logits)]
    wanted = sum(naive_discrepancy(naive_kernel(rows), 3, 5) for rows in layers)
    assert loss_of(DAN(weight=2.0), batch).item() == pytest.approx(2 * wanted)
    embedding = naive_discrepancy(naive_kernel(layers[0]), 3, 5)
    assert loss_of(DAN(logits=False), batch).item() == pytest.approx(embedding)


def test_the_linear_estimate_compares_each_row_with_the_next():
    batch = joint(3, 4)
    kernel = naive_kernel(batch.embedding.detach())
    wanted = 0.0
    for i, j in ((0, 1), (1, 2), (2, 0)):  # as many as the smaller domain has
        wanted += (kernel(i, j) + kernel(3 + i, 3 + j) - kernel(i, 3 + j) - kernel(j, 3 + i)) / 3
    assert loss_of(DAN(estimate="linear", logits=False), batch).item() == pytest.approx(wanted)


def test_equal_distributions_have_no_discrepancy_on_average():
    torch.manual_seed(0)
    drawn = torch.randn(500, 12, 2).double()
    for linear in (False, True):
        estimates = torch.stack([mean_discrepancy(gaussian_kernels(rows), 6, linear) for rows in drawn])
        assert abs(estimates.mean()) < 4 * estimates.std() / math.sqrt(500)


def naive_jan(embedding, prediction):
    of_embedding = naive_kernel(embedding)

    def product(i, j):
        squared = (prediction[i] - prediction[j]).square().sum().item()
        return of_embedding(i, j) * math.exp(-squared / (2 * 0.92**2))

    return naive_discrepancy(product, 3, 5)


def test_jan_multiplies_the_kernels_of_embeddings_and_predictions():
    batch = joint()
    wanted = naive_jan(batch.embedding.detach(), batch.logits.detach().softmax(1))
    assert loss_of(built(JAN(weight=2.0)), batch).item() == pytest.approx(2 * wanted)
    assert loss_of(built(JAN(adversarial=True)), batch).item() == pytest.approx(wanted)  # θ begins as the identity


def test_jans_maps_climb_at_a_tenth_while_the_embedding_descends_in_full():
    jan, batch = built(JAN(adversarial=True)), joint()
    torch.manual_seed(1)
    for theta in jan.theta:
        nn.init.normal_(theta.weight)
    ours = torch.autograd.grad(loss_of(jan, batch), [batch.embedding, jan.theta[0].weight], retain_graph=True)
    weight = jan.theta[0].weight.detach().clone().requires_grad_()
    embedding = F.linear(batch.embedding, weight, jan.theta[0].bias)
    prediction = jan.theta[1](batch.logits.softmax(1))
    kernel = gaussian_kernels(embedding) * torch.exp(-torch.cdist(prediction, prediction).square() / (2 * 0.92**2))
    plain = torch.autograd.grad(mean_discrepancy(kernel, 3), [batch.embedding, weight])
    torch.testing.assert_close(ours[0], plain[0])
    torch.testing.assert_close(ours[1], -0.1 * plain[1])


@pytest.mark.parametrize("method", [DAN(), DAN(estimate="linear"), JAN(), JAN(adversarial=True)], ids=str)
def test_kernels_bring_the_clouds_together(method):
    batch_of, shift = two_clouds(gap=1.0), new_shift()
    built(method)
    before = distance(batch_of(shift))
    descend(lambda: loss_of(method, batch_of(shift)), shift)
    assert distance(batch_of(shift)) < 0.5 * before


# ------------------------------------------------------------------------------------------------------ AFN


def test_stepwise_norms_grow_alike_and_hard_ones_seek_the_radius():
    batch = joint()
    loss = loss_of(AFN(step=0.5), batch)
    assert loss.item() == pytest.approx(0.05 * 2 * 0.25)
    (gradient,) = torch.autograd.grad(loss, batch.embedding, retain_graph=True)
    for i, row in enumerate(batch.embedding.detach()):
        torch.testing.assert_close(gradient[i], 0.05 * 2 * -0.5 * row / row.norm() / (3 if i < 3 else 5))
    norms = batch.embedding.detach().square().sum(1).sqrt()
    wanted = 2.0 * ((norms[:3].mean() - 7.0) ** 2 + (norms[3:].mean() - 7.0) ** 2)
    assert loss_of(AFN(variant="hard", radius=7.0, weight=2.0), batch).item() == pytest.approx(wanted.item())


@pytest.mark.parametrize(("knobs", "grows"), [({}, True), ({"variant": "hard", "radius": 0.1}, False)])
def test_norms_move_the_way_they_should(knobs, grows):
    scale, batch = torch.ones((), dtype=torch.float64, requires_grad=True), joint()
    rows = batch.embedding.detach()
    descend(lambda: loss_of(AFN(**knobs), replace(batch, embedding=scale * rows, metrics={})), scale)
    assert (scale > 1.5) if grows else (scale < 0.5)


# ----------------------------------------------------------------------------------------------------- ADDA


def test_addas_losses_are_those_of_a_gan_with_inverted_labels():
    model = set_up(model_of("adda", **{"adda.weight": 0.3}))
    adda = model.methods["adda"]
    adda.refresh()
    tell, fool = model.phases(0.5)
    torch.manual_seed(1)
    source, target = adda.source_bottleneck.eval(), model.bottleneck
    inputs = torch.randn(8, 5).double()  # as step_of draws them
    probability_source = torch.sigmoid(adda.discriminator(source(inputs)))
    both = target(torch.cat([inputs, inputs + 1]))  # one batch norm for both, as the recipe has it
    probability_target = torch.sigmoid(adda.discriminator(both[8:]))
    wanted = -(probability_source.log().mean() + (1 - probability_target).log().mean()) / 2
    assert step_of(model, phase=tell).losses["adda"].item() == pytest.approx(wanted.item())
    wanted = -0.3 * probability_target.log().mean()
    assert step_of(model, phase=fool).losses["adda_fool"].item() == pytest.approx(wanted.item())


def test_addas_stages_and_who_moves_in_each():
    model = set_up(model_of("adda"))
    adda = model.methods["adda"]
    assert moved_by_phases(model) == {"learn the source": {"bottleneck", "classifier"}}
    adda.refresh()
    still = {name: value.clone() for name, value in adda.source_bottleneck.state_dict().items()}
    assert moved_by_phases(model) == {"tell apart": {"methods"}, "fool": {"bottleneck"}}
    adda.refresh()  # it parts once
    for name, value in adda.source_bottleneck.state_dict().items():
        assert torch.equal(value, still[name]), name  # weights, and batch norm's statistics too


def test_the_sources_encoder_has_the_statistics_of_the_whole_source():
    model = model_of("adda")
    inputs = torch.randn(40, 5).double() * 3
    model.setup(Domain("source", inputs, torch.arange(40) % 3, ("a", "b", "c")), Domain("target", inputs + 1))
    step_of(model)
    model.methods["adda"].refresh()
    projected = model.bottleneck.linear(inputs)
    wanted = F.relu((projected - projected.mean(0)) / (projected.var(0, correction=0) + 1e-5).sqrt())
    torch.testing.assert_close(model.methods["adda"].source_bottleneck.eval()(inputs), wanted)
    assert model.training


# ------------------------------------------------------------------------------------------------------ MADA


def test_mada_is_dann_class_by_class_on_embeddings_times_probabilities():
    mada, batch = built(MADA(width=7)).eval(), joint()
    wanted = 0.0
    for k, discriminator in enumerate(mada.discriminators):
        p = torch.sigmoid(discriminator(batch.logits.softmax(1)[:, k : k + 1] * batch.embedding))
        wanted -= (p[:3].log().mean() + (1 - p[3:]).log().mean()).item() / 2
    assert len(mada.discriminators) == CLASSES
    assert loss_of(mada, batch).item() == pytest.approx(wanted)


def test_madas_reversal_reaches_the_embedding_and_c_alone():
    batch = joint()
    gradients = []
    for weight in (0.5, 1.0):
        torch.manual_seed(0)
        mada = built(MADA(width=7, weight=weight, **AT_ONCE)).eval()
        inputs = [batch.embedding, batch.logits, *mada.parameters()]
        gradients.append(torch.autograd.grad(loss_of(mada, batch), inputs, retain_graph=True))
    (embedding_half, logits_half, *own_half), (embedding, logits, *own) = gradients
    torch.testing.assert_close(logits, 2 * logits_half)
    torch.testing.assert_close(embedding, 2 * embedding_half)
    torch.testing.assert_close(own, own_half)
    assert logits.any()


# --------------------------------------------------------------------------------------------------- SymNets


def symnets_batch():
    batch = joint()
    classifier = nn.Linear(WIDTH, CLASSES).double()
    return replace(batch, net=SimpleNamespace(classifier=classifier), logits=classifier(batch.embedding))


def test_symnets_losses_are_the_papers():
    symnets, batch = built(SymNets(**AT_ONCE)), symnets_batch()
    with torch.no_grad():
        z_s, z_t = symnets.source_classifier(batch.embedding), batch.logits
        p = torch.cat([z_s, z_t], 1).softmax(1)
        rows, y = torch.arange(3), batch.labels
        task = F.nll_loss(z_s[:3].softmax(1).log(), y) + F.nll_loss(z_t[:3].softmax(1).log(), y)
        domain = -p[:3, :CLASSES].sum(1).log().mean()
        category = -(p[rows, y].log().mean() + p[rows, y + CLASSES].log().mean()) / 2
        torch.testing.assert_close(symnets.source_loss(batch), task + domain + category)
        target = p[3:]
        share_s, share_t = target[:, :CLASSES].sum(1), target[:, CLASSES:].sum(1)
        q = target[:, :CLASSES] + target[:, CLASSES:]
        losses = symnets.losses(batch, Phase())
        torch.testing.assert_close(losses["symnets_tell"], -share_t.log().mean())
        wanted = -(share_s.log() + share_t.log()).mean() / 2 - (q * q.log()).sum(1).mean()
        torch.testing.assert_close(losses["symnets"], wanted)


def test_symnets_classifiers_learn_to_tell_and_features_to_confuse():
    symnets, batch = built(SymNets(**AT_ONCE)), symnets_batch()
    classifiers = [*symnets.parameters(), *batch.net.classifier.parameters()]

    def reached(loss):
        gradients = torch.autograd.grad(loss, [batch.embedding, *classifiers], allow_unused=True, retain_graph=True)
        return gradients[0] is not None, all(g is not None for g in gradients[1:])

    losses = symnets.losses(batch, Phase())
    assert reached(losses["symnets_tell"]) == (False, True)
    assert reached(losses["symnets"]) == (True, False)
    embedding, *own = torch.autograd.grad(symnets.source_loss(batch), [batch.embedding, *classifiers])
    joint_logits = torch.cat([symnets.source_classifier(batch.embedding[:3]), batch.logits[:3]], 1)
    category = F.cross_entropy(joint_logits, batch.labels) + F.cross_entropy(joint_logits, batch.labels + CLASSES)
    torch.testing.assert_close(embedding, torch.autograd.grad(category / 2, batch.embedding)[0])
    assert all(g.any() for g in own)
