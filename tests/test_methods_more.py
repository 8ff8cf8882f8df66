"""The other methods of the tables: losses against naive forms, who moves when, and that each pulls the right way."""

from __future__ import annotations

import math
from dataclasses import fields, replace
from functools import cache
from types import SimpleNamespace

import numpy as np
import pytest
import sklearn
import torch
from torch import nn
from torch.nn import functional as F

import safda
from safda.data import Domain
from safda.errors import SafdaError
from safda.methods import METHODS, dmrl, vmt
from safda.methods.afn import AFN
from safda.methods.base import Batch, Phase
from safda.methods.cat import CAT, clustering
from safda.methods.coral import CORAL
from safda.methods.dan import DAN
from safda.methods.dann import DANN
from safda.methods.dmrl import DMRL
from safda.methods.emixnet import EMixNet
from safda.methods.jan import JAN
from safda.methods.kernels import WIDTHS, gaussian_kernels, mean_discrepancy
from safda.methods.mada import MADA
from safda.methods.mcc import MCC
from safda.methods.mdd import MDD
from safda.methods.mixup import mates_within
from safda.methods.symnets import SymNets
from safda.methods.vmt import VMT
from safda.model import AdaptationModel
from safda.nn.network import Encoded
from safda.recipe import Recipe
from tests.conftest import blobs
from tests.test_methods import (
    AT_ONCE,
    CLASSES,
    TINY,
    WIDTH,
    built,
    joint,
    loss_of,
    model_of,
    moved_by_phases,
    net,
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


@pytest.mark.parametrize("value", [0.0, 0.3, 1.0, 1e4])
def test_rows_that_coincide_pass_no_broken_gradient(value):
    rows = torch.full((8, 5), value, requires_grad=True)
    loss = mean_discrepancy(gaussian_kernels(rows), 4)
    (gradient,) = torch.autograd.grad(loss, rows)
    assert loss.item() == pytest.approx(0, abs=1e-4)
    assert torch.isfinite(gradient).all()


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


@pytest.mark.parametrize("method", [DAN(), JAN(), CORAL()], ids=lambda method: method.name)
def test_distances_keep_their_digits_in_mixed_precision(method):
    batch = joint(8, 8)
    far = {"embedding": 30 + batch.embedding.detach().float(), "logits": 30 + batch.logits.detach().float()}
    wanted = loss_of(built(method), replace(batch, **far))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        torch.testing.assert_close(loss_of(method, replace(batch, **far)), wanted)


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


@pytest.mark.parametrize(("optimizer", "alike"), [("sgd", False), ("adamw", True)])
def test_addas_weight_is_for_sgd_as_its_help_says(optimizer, alike):
    def moved(weight):
        model = set_up(model_of("adda", **{"adda.weight": weight, "optimizer.name": optimizer}))
        model.methods["adda"].refresh()
        before = model.bottleneck.linear.weight.detach().clone()
        moved_by_phases(model)
        return model.bottleneck.linear.weight.detach() - before

    assert torch.allclose(moved(0.2), moved(2.0), rtol=1e-3) is alike
    (about,) = [each for each in fields(METHODS["adda"].Knobs) if each.name == "weight"]
    assert "for SGD" in about.metadata["knob"].help


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
    layers = [layer for layer in mada.discriminators if hasattr(layer, "weight")]
    assert [tuple(layer.weight.shape) for layer in layers] == [(CLASSES, WIDTH, 7), (CLASSES, 7, 7), (CLASSES, 7, 1)]
    wanted = 0.0
    for k in range(CLASSES):
        (first, second, last), (b1, b2, b3) = (
            [getattr(layer, name)[k] for layer in layers] for name in ("weight", "bias")
        )
        reads = batch.logits.softmax(1)[:, k : k + 1] * batch.embedding
        p = torch.sigmoid(F.relu(F.relu(reads @ first + b1) @ second + b2) @ last + b3)
        wanted -= (p[:3].log().mean() + (1 - p[3:]).log().mean()).item() / 2
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


# ------------------------------------------------------------------------------------------------------ CAT


def cat_of(batch, **knobs):
    cat = CAT(start=0.0, rise=0.001, **knobs)
    cat.setup(SimpleNamespace(classes=CLASSES), None, torch.zeros(20))
    return cat


def test_cat_adds_up_clusters_of_both_domains_and_the_meeting_of_centres():
    batch = joint()
    batch.labels[:] = torch.tensor([0, 2, 2])
    logits, classes = batch.logits.detach(), [0, 2, 2, *batch.target.logits.argmax(1).tolist()]

    def d(x, y):
        return (x - y).square().mean().item()

    wanted = 0.0
    for domain in (range(3), range(3, 8)):
        for i in domain:
            for j in domain:
                own = d(logits[i], logits[j])
                wanted += (own if classes[i] == classes[j] else max(0.0, 1.5 - own)) / len(domain) ** 2
    shared = set(classes[:3]) & set(classes[3:])
    for k in shared:
        source, target = ([logits[i] for i in domain if classes[i] == k] for domain in (range(3), range(3, 8)))
        wanted += d(sum(source) / len(source), sum(target) / len(target)) / len(shared)
    assert shared
    assert loss_of(cat_of(batch, margin=1.5, weight=2.0), batch).item() == pytest.approx(2 * wanted)


def test_the_teacher_says_what_predictions_are_on_average_and_decides_by_it():
    batch = joint()
    cat = cat_of(batch, average=0.6)
    rows, p = batch.target.rows, batch.target.logits.softmax(1).detach().float()
    for wanted in (0.4 * p, (0.6 * 0.4 + 0.4) * p):
        loss_of(cat, batch)
        cat.observe(batch.kept["cat"])
        torch.testing.assert_close(cat.training_state()["said"][rows], wanted)
    said = torch.zeros(20, CLASSES)
    said[:, 3] = 9.0
    cat.load_training_state({"said": said})
    pulled = replace(batch, labels=torch.full((3,), 3))  # to the teacher, all are of one class
    assert loss_of(cat, pulled).item() == pytest.approx(all_of_one_class(batch), rel=1e-6)


def all_of_one_class(batch):
    sides = [side.logits.detach() for side in (batch.source, batch.target)]
    within = sum((torch.cdist(side, side).square() / CLASSES).mean().item() for side in sides)
    return within + (sides[0].mean(0) - sides[1].mean(0)).square().mean().item()


def test_cats_weight_is_that_of_its_authors_code():
    knobs = CAT().knobs
    for step in (0, 4999, 5000, 9000, 15000, 40000):
        wanted = math.exp(-(1 - min((step - 5000) / 10000, 1.0)) * 10) if step >= 5000 else 0.0
        assert knobs.at(step / 40000) == pytest.approx(wanted)


def test_cat_gathers_classes_and_parts_others():
    logits, classes = torch.randn(6, CLASSES, dtype=torch.float64, requires_grad=True), torch.arange(6) % 3
    before = logits.detach().clone()
    descend(lambda: clustering(logits, classes, 4.0), logits, lr=2.0)
    same = classes.unsqueeze(0) == classes.unsqueeze(1)
    was, now = (torch.cdist(z, z).square().detach() / CLASSES for z in (before, logits))
    assert now[same].mean() < 0.3 * was[same].mean()
    assert now[~same].mean() > was[~same].mean()


# ------------------------------------------------------------------------------------- mixes of inputs


def live(sources=3, targets=5):
    """A batch of a network that can be asked again: a linear F, B and C."""
    torch.manual_seed(3)
    encoder, classifier = nn.Linear(4, WIDTH).double(), nn.Linear(WIDTH, CLASSES).double()

    def encode(inputs, sources=0):
        embedding = encoder(inputs)
        return Encoded(inputs, embedding, embedding, classifier(embedding))

    network = SimpleNamespace(
        **vars(net()), encode=encode, as_floats=lambda inputs: inputs, encoder=encoder, classifier=classifier
    )
    inputs = torch.randn(sources + targets, 4).double()
    labels, rows = torch.randint(0, CLASSES, (sources,)), torch.arange(sources + targets)
    return Batch(network, {}, labels, rows, inputs, *encode(inputs), progress=0.5)


@pytest.fixture
def draws(monkeypatch):
    """Weights and mates that a test knows."""
    mates = torch.tensor([1, 2, 0, 4, 5, 6, 7, 3])
    for module in (dmrl, vmt):
        monkeypatch.setattr(module, "draw_beta", lambda _, rows, like: torch.linspace(0.2, 0.9, rows).to(like))
        monkeypatch.setattr(module, "mates_within", lambda batch: mates)
    return mates


def test_mates_are_of_the_same_domain_and_each_is_taken_once():
    mates = mates_within(joint())
    assert sorted(mates[:3].tolist()) == [0, 1, 2]
    assert sorted(mates[3:].tolist()) == [3, 4, 5, 6, 7]


def test_e_mixnet_mixes_sure_target_samples_with_the_most_distant_source_sample():
    method, batch = built(EMixNet(threshold=0.4, mix_weight=2.0, **AT_ONCE)), live()
    p = batch.logits.softmax(1).detach()
    embedding, wanted, sure = batch.embedding.detach(), 0.0, 0
    for t in range(3, 8):
        answer = int(p[t].argmax())
        if p[t, answer] < 0.4:
            continue
        sure += 1
        distant = min(range(3), key=lambda s: F.cosine_similarity(embedding[s], embedding[t], dim=0).item())
        mix = 0.6 * batch.inputs[distant] + 0.4 * batch.inputs[t]
        q = batch.net.encode(mix.unsqueeze(0)).logits.softmax(1)[0].detach()
        wanted -= (0.6 * math.log(q[batch.labels[distant]]) + 0.4 * math.log(q[answer])) / 5
    assert 0 < sure < 5
    losses = method.losses(batch, Phase())
    assert losses["e-mixnet_mixes"].item() == pytest.approx(2 * wanted)
    torch.testing.assert_close(losses["e-mixnet"], MDD.losses(method, batch, Phase())["e-mixnet"])
    own = [*batch.net.encoder.parameters(), *batch.net.classifier.parameters()]
    assert all(g.any() for g in torch.autograd.grad(losses["e-mixnet_mixes"], own))  # F, B and C learn from mixes


def test_e_mixnets_mixes_teach_c_both_labels():
    method, batch = built(EMixNet(threshold=0.0)), live()
    before = method._mixes(batch).item()
    labels = F.one_hot(batch.labels, CLASSES).double()
    descend(lambda: method._mixes(batch), *batch.net.classifier.parameters(), lr=0.5)
    answers = F.one_hot(batch.target.logits.argmax(1), CLASSES)  # they were given before
    distant = (F.normalize(batch.embedding[3:]) @ F.normalize(batch.embedding[:3]).T).argmin(1)
    mixes = 0.6 * batch.inputs[distant] + 0.4 * batch.inputs[3:]
    learnt = batch.net.encode(mixes).logits.softmax(1)
    torch.testing.assert_close(learnt, 0.6 * labels[distant] + 0.4 * answers, atol=0.25, rtol=0)
    assert method._mixes(batch).item() < 0.8 * before


def test_dmrls_mixes_are_the_papers(draws):
    method, batch = built(DMRL(width=7, source_mix=2.0, target_mix=3.0, domain_mix=4.0, **AT_ONCE)).eval(), live()
    x, z, losses = batch.inputs, batch.logits.detach(), method.losses(batch, Phase())
    source = target = domain = 0.0
    for i in range(8):
        j, w = int(draws[i]), 0.2 + 0.1 * i
        again = batch.net.encode((w * x[i] + (1 - w) * x[j]).unsqueeze(0)).logits.softmax(1)[0]
        if i < 3:
            first, second = again[batch.labels[i]].item(), again[batch.labels[j]].item()
            source -= (w * math.log(first) + (1 - w) * math.log(second)) / 3
            w = 0.2 + 0.35 * i  # of three
            between = batch.net.encode((w * x[i] + (1 - w) * x[3 + i]).unsqueeze(0)).embedding
            d = torch.sigmoid(method.discriminator(between)).item()
            domain -= (w * math.log(d) + (1 - w) * math.log(1 - d)) / 3
        else:
            target += (again - (w * z[i] + (1 - w) * z[j]).softmax(0)).abs().mean().item() / 5
    assert losses["dmrl_source"].item() == pytest.approx(2 * source)
    assert losses["dmrl_target"].item() == pytest.approx(3 * target)
    assert losses["dmrl_domain"].item() == pytest.approx(4 * domain)
    torch.testing.assert_close(losses["dmrl"], DANN.losses(method, batch, Phase())["dmrl"])


def test_dmrls_domain_mixup_is_a_game_between_d_and_the_encoder(draws):
    gradients = {}
    for weight in (-1.0, 1.0):  # a reversal of −1 is no reversal
        torch.manual_seed(0)
        batch, method = live(), built(DMRL(width=7, **AT_ONCE)).eval()
        method.knobs = replace(method.knobs, weight=weight)
        parts = [batch.net.encoder.weight, method.discriminator[0].weight]
        gradients[weight] = torch.autograd.grad(method.losses(batch, Phase())["dmrl_domain"], parts)
    torch.testing.assert_close(gradients[1.0][0], -gradients[-1.0][0])
    torch.testing.assert_close(gradients[1.0][1], gradients[-1.0][1])


def ced(p, q):
    return -(p * q.log()).sum(1).mean().item()


def test_vmts_losses_are_the_papers(draws, monkeypatch):
    moved = torch.randn(8, 4).double()
    monkeypatch.setattr(VMT, "_perturbed", lambda self, batch: moved)
    method, batch = built(VMT(width=7, entropy=2.0, source_smooth=3.0, target_smooth=4.0)).eval(), live()
    w = torch.linspace(0.2, 0.9, 8).double().unsqueeze(1)
    x, z, p = batch.inputs, batch.logits, batch.logits.softmax(1)
    adversarial = batch.net.encode(moved).logits.softmax(1)
    mixes = batch.net.encode(w * x + (1 - w) * x[draws]).logits.softmax(1)
    between = (w * z + (1 - w) * z[draws]).softmax(1)
    losses = method.losses(batch, Phase())
    assert losses["vmt_entropy"].item() == pytest.approx(2 * ced(p[3:], p[3:]))
    assert losses["vmt_source"].item() == pytest.approx(3 * (ced(p[:3], adversarial[:3]) + ced(between[:3], mixes[:3])))
    assert losses["vmt_target"].item() == pytest.approx(4 * (ced(p[3:], adversarial[3:]) + ced(between[3:], mixes[3:])))
    torch.testing.assert_close(losses["vmt"], DANN.losses(method, batch, Phase())["vmt"])
    met = torch.autograd.grad(losses["vmt_source"] + losses["vmt_target"], batch.logits, allow_unused=True)
    assert met == (None,)  # what is to be met stays where it is


def test_vmts_step_has_its_length_and_changes_predictions_more_than_any_of_many_others():
    method, batch = built(VMT(radius=0.1)), live(10, 10)
    length = batch.inputs.norm(dim=1).mean()
    step = method._perturbed(batch) - batch.inputs
    torch.testing.assert_close(step.norm(dim=1), (0.1 * length).expand(20))
    p = batch.logits.softmax(1)

    def change(steps):
        q = batch.net.encode(batch.inputs + steps).logits.softmax(1)
        return (p * (p / q).log()).sum().item()

    others = [F.normalize(torch.randn(20, 4).double()) * 0.1 * length for _ in range(50)]
    assert change(step) > max(change(other) for other in others)


def test_vmt_makes_a_network_straight_between_samples():
    def bend(*losses):
        """How far predictions half-way are from those of the logits' mean, after training with these losses."""
        model = set_up(model_of("vmt", **{"vmt.target_smooth": 1.0}))
        descend(lambda: sum(step_of(model).losses[name] for name in losses), *model.parameters(), lr=0.3)
        model.eval()
        x = torch.randn(2, 30, 5, generator=torch.Generator().manual_seed(0)).double()
        middle, ends = model.predict(x.mean(0))[0], torch.stack([model.predict(each)[0] for each in x])
        p, q = ends.mean(0).softmax(1), middle.softmax(1)
        return (p * (p / q).log()).sum(1).mean().item()

    assert bend("classification", "vmt_source", "vmt_target") < 0.8 * bend("classification")


# ------------------------------------------------------------------------------ pictures, of eight bits


def picture_model(*methods, **changes):
    torch.manual_seed(0)
    recipe = Recipe().override({**TINY, "methods": list(methods), **changes})
    model = AdaptationModel(recipe, torch.zeros(3, 32, 32, dtype=torch.uint8), 3)
    pictures = torch.randint(0, 256, (16, 3, 32, 32), dtype=torch.uint8)
    model.setup(Domain("source", pictures, torch.arange(16) % 3, ("a", "b", "c")), Domain("target", pictures))
    return model, pictures


def test_pictures_that_are_made_floats_mean_the_same():
    model, pictures = picture_model()
    model.eval()
    floats = model.as_floats(pictures)
    assert floats.is_floating_point()
    torch.testing.assert_close(model.encode(floats).logits, model.encode(pictures).logits)


@pytest.mark.parametrize("name", ["adda", "e-mixnet", "dmrl", "vmt", "gta"])
def test_methods_that_look_at_inputs_take_pictures_too(name):
    small = {"gta": {"gta.width": 4}}.get(name, {})
    model, pictures = picture_model(name, **small)
    model.methods[name].refresh()
    moved = set()
    for phase in model.phases(0.5):
        model.zero_grad()
        model(pictures[:8], torch.arange(8) % 3, pictures[8:], torch.arange(16), 0.5, phase).total.backward()
        moved |= {part for part, value in model.named_parameters() if value.grad is not None and value.grad.any()}
    assert any(part.startswith("backbone.") for part in moved)
    assert any(part.startswith(f"methods.{name}.") for part in moved)
    assert not any("source_backbone" in part for part in moved)


# ------------------------------------------------------------------------------------------------------ GTA


def gta_model(**changes):
    return set_up(model_of("gta", **{"gta.width": 4, "gta.noise": 3, **changes}))


def test_gtas_losses_are_those_of_an_acgan_and_its_encoder(monkeypatch):
    model = gta_model(**{"gta.weight": 0.5, "gta.target": 2.0})
    gta = model.methods["gta"]
    noise = torch.randn(16, 3).double()
    monkeypatch.setattr(torch, "randn", lambda *sizes, **_: noise)
    inputs, labels = torch.rand(16, 1, 16, 16).double(), torch.arange(8) % 3
    output = model(inputs[:8], labels, inputs[8:], torch.arange(16), 0.5).losses
    embedding = model.encode(inputs, 8).embedding
    one_hot = torch.zeros(16, 4).double()
    for row in range(16):
        one_hot[row, labels[row] if row < 8 else 3] = 1  # a target sample is of the class that no source sample has
    code = torch.cat([noise, one_hot, embedding], 1).view(16, -1, 1, 1)
    source, target = gta.generator(code[:8]), gta.generator(code[8:])
    assert source.shape == (8, 1, 16, 16)

    def real(pictures):
        return torch.sigmoid(gta.discriminator(pictures)[:, 0])

    def class_loss(pictures):
        p = gta.discriminator(pictures)[:, 1:].softmax(1)
        return -p[torch.arange(8), labels].log().mean()

    truth = 2 * inputs[:8] - 1
    tell = class_loss(truth) - real(truth).log().mean()
    tell = tell - (1 - real(source)).log().mean() - (1 - real(target)).log().mean()
    torch.testing.assert_close(output["gta_tell"], tell)
    torch.testing.assert_close(output["gta_draw"], class_loss(source) - real(source).log().mean())
    torch.testing.assert_close(output["gta"], 0.5 * (class_loss(source) - 2.0 * real(target).log().mean()))


def test_in_gta_each_learns_from_its_own_loss_alone():
    model = gta_model()
    reached = {}
    for name, loss in step_of(model).losses.items():
        names, parameters = zip(*model.named_parameters(), strict=True)
        gradients = torch.autograd.grad(loss, parameters, allow_unused=True, retain_graph=True)
        reached[name] = {
            n.split(".")[-3 if "gta" in n else 0] for n, g in zip(names, gradients, strict=True) if g is not None
        }
    assert reached == {
        "classification": {"backbone", "bottleneck", "classifier"},
        "gta_tell": {"discriminator"},
        "gta_draw": {"generator"},
        "gta": {"backbone", "bottleneck"},
    }


def test_gtas_encoder_makes_what_is_drawn_from_the_target_pass_for_real():
    model = gta_model(**{"gta.target": 10.0, "gta.weight": 1.0})
    parts = [*model.backbone.parameters(), *model.bottleneck.parameters()]
    before = step_of(model).metrics["gta/taken_for_real"]
    descend(lambda: step_of(model).losses["gta"], *parts, steps=30, lr=0.05)
    assert step_of(model).metrics["gta/taken_for_real"] > before + 0.05


def test_gta_says_what_pictures_it_takes(files):
    with pytest.raises(SafdaError, match="'gta' needs pictures and a backbone that learns, not arrays"):
        safda.fit(*files, methods=["gta"], steps=2, cpu=True)
    with pytest.raises(SafdaError, match=r"not 24×24; set network\.image_size"):
        AdaptationModel(Recipe().override({"methods": ["gta"]}), torch.zeros(1, 24, 24), 3)


# ------------------------------------------------------------------------------ games, in the whole loop


def toy(seed=0):
    """Three clouds, which the target has elsewhere: features and labels of both."""
    (X, y), (X_target, y_target) = blobs(seed, 0.0, per_class=60), blobs(seed + 100, 0.0, per_class=60)
    return X, y, (X_target + np.array([2, -2, 0, 4, 0, 0])).astype(np.float32), y_target


def adapted(*methods, **changes):
    X, y, X_target, _ = toy()
    small = {"network.bottleneck_width": 32, "network.classifier_width": 32, "optimizer.lr": 0.02, "steps": 200}
    quick = {"recipe": "paper-office31", "cpu": True, **small, "optimizer.decay": 0.0, **changes}
    return safda.fit((X, y), X_target, methods=list(methods), **quick)


def gap(source, target):
    """Distance of the domains' means, in units of the source's spread."""
    return float(np.linalg.norm(source.mean(0) - target.mean(0)) / np.sqrt(source.var(0).sum()))


@cache
def gap_of(*methods):
    width = {f"{name}.width": 32 for name in methods if hasattr(METHODS[name].Knobs(), "width")}
    model, (X, _, X_target, _) = adapted(*methods, **width), toy()
    return gap(model.predict(X).embedding, model.predict(X_target).embedding)


@pytest.mark.parametrize("name", ["dann", "cdan", "mdd", "ima", "mada", "symnets", "dan", "jan", "dmrl"])
def test_a_game_or_a_distance_brings_the_domains_together(name):
    assert gap_of(name) < 0.75 * gap_of()


def test_adda_brings_the_target_to_where_the_source_stands():
    model, (X, _, X_target, y_target) = adapted("adda"), toy()
    source = model.model.methods["adda"].source_bottleneck.eval()
    with torch.no_grad():
        before, there = source(torch.tensor(X_target)), source(torch.tensor(X))
        unadapted = model.model.classifier(before).argmax(1).numpy()
    predictions = model.predict(X_target)
    assert gap(there.numpy(), predictions.embedding) < 0.5 * gap(there.numpy(), before.numpy())
    assert (predictions.logits.argmax(1) == y_target).mean() > (unadapted == y_target).mean()
