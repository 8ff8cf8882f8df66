"""What ``benchmarks/eta.py`` tries in place of η: each against finite differences, a closed form or naive sums."""

from __future__ import annotations

import copy
import json
import math

import numpy as np
import pytest
import torch
from torch import nn

from benchmarks import eta as study
from benchmarks.etas import (
    FARTHEST,
    HELD_OUT,
    PUSHES,
    VIRTUAL_STEP,
    LookAheadSAF,
    OracleEta,
    OracleSAF,
    ReliabilitySAF,
    TiltedBeta,
    evidence_of,
    look_ahead,
    reliability_weights,
    stand_ins,
)
from safda.bench.benchmark import from_dict
from safda.data import Domain
from safda.methods.base import Batch, Phase
from safda.model import AdaptationModel
from safda.recipe import Recipe

DIM, CLASSES, SOURCES, TARGETS = 5, 3, 6, 12
TINY = {"network.bottleneck_width": 6, "network.classifier_width": 7, "pseudo_labels.mode": "evaluation"}


def domains(sources=30, targets=24):
    torch.manual_seed(1)
    centres = 3 * torch.randn(CLASSES, DIM)
    labels, truth = torch.arange(sources) % CLASSES, torch.arange(targets) % CLASSES
    source = Domain("source", centres[labels] + torch.randn(sources, DIM), labels, ("a", "b", "c"))
    return source, Domain("target", centres[truth] + 1 + torch.randn(targets, DIM), truth, source.classes)


def make(method, seed=0, **changes):
    """A model in training with one of the methods, set up, and a batch of it."""
    source, target = domains()
    torch.manual_seed(seed)
    changes = {**TINY, "pseudo_labels.propagation.neighbours": 0.5, **changes}
    model = AdaptationModel(Recipe().override(changes), torch.zeros(DIM), CLASSES, given={"saf": method}).double()
    model.setup(source, target.unlabelled())
    inputs = torch.cat([source.inputs[:SOURCES], target.inputs[:TARGETS]]).double()
    rows = torch.cat([torch.arange(SOURCES), torch.arange(TARGETS)])
    encoded = model.encode(inputs, SOURCES)
    return model, Batch(model, model.methods_by_name, source.labels[:SOURCES], rows, inputs, *encoded, 0.5)


# ----------------------------------------------------------------------------------------------- look-ahead


def drawn(model, batch, seed=3):
    torch.manual_seed(seed)
    labels = torch.rand(TARGETS, CLASSES).double().softmax(1)
    out = model.methods["saf"].saf(
        batch.target.features,
        lambda rows: rows[:, :CLASSES],
        pseudo_labels=labels,
        evidence=torch.rand(TARGETS, 6).double(),
    )
    return labels, out


def after_a_real_step(model, batch, labels, scores, trusted, out):
    """The same as a look-ahead, pair by pair, with copies of B and C that really make the step."""
    heads = copy.deepcopy(nn.Sequential(model.bottleneck, model.classifier)).eval()
    features, half, loss = batch.target.features.detach(), len(out.first) // 2, 0.0
    for i, j in zip(out.first[:half].tolist(), out.second[:half].tolist(), strict=True):
        eta = 1 / (1 + math.exp(-(scores[i] - scores[j])))
        logits = heads((eta * features[i] + (1 - eta) * features[j]).unsqueeze(0))[0]
        label = eta * labels[i] + (1 - eta) * labels[j]
        loss = loss - (label * (logits - logits.logsumexp(0))).sum() / half
    loss.backward()
    with torch.no_grad():
        for weight in heads.parameters():
            weight -= VIRTUAL_STEP * weight.grad
    judges = [i for i in (*out.first[half:].tolist(), *out.second[half:].tolist()) if trusted[i]]
    judged = [-heads(features[i : i + 1])[0].log_softmax(0)[labels[i].argmax()] for i in judges]
    return (sum(judged) / len(judged)).item()


def test_a_look_ahead_is_what_a_real_step_comes_to_and_so_is_its_gradient():
    model, batch = make(LookAheadSAF())
    labels, out = drawn(model, batch)
    trusted = torch.arange(TARGETS) % 3 > 0
    scores = torch.randn(TARGETS, 1).double().requires_grad_()
    worth = look_ahead(batch, labels, scores, trusted, out)
    (gradient,) = torch.autograd.grad(worth, scores)
    plain = scores.detach().squeeze(1).tolist()
    assert worth.item() == pytest.approx(after_a_real_step(model, batch, labels, plain, trusted, out))
    for i in range(TARGETS):
        ends = [[s + (step if i == j else 0) for j, s in enumerate(plain)] for step in (1e-5, -1e-5)]
        high, low = (after_a_real_step(model, batch, labels, each, trusted, out) for each in ends)
        assert gradient[i].item() == pytest.approx((high - low) / 2e-5, rel=1e-4, abs=1e-8)
    assert gradient.abs().max() > 1e-5


def test_a_look_ahead_without_judges_is_zero_with_a_zero_gradient():
    model, batch = make(LookAheadSAF())
    scores = torch.randn(TARGETS, 1).double().requires_grad_()
    labels, out = drawn(model, batch)
    worth = look_ahead(batch, labels, scores, torch.zeros(TARGETS, dtype=torch.bool), out)
    assert (worth.item(), torch.autograd.grad(worth, scores)[0].abs().sum().item()) == (0, 0)


def test_what_comes_of_a_virtual_step_reaches_m_alone_and_the_mixes_loss_all_but_m():
    model, batch = make(LookAheadSAF())
    labels = model.methods["pseudo_labels"]
    labels._propagated = batch.net.evaluation_logits(batch.split(batch.projected)[1]).softmax(1)
    labels._propagated = torch.cat([labels._propagated, torch.zeros(12, CLASSES)])
    torch.manual_seed(0)
    losses = model.methods["saf"].losses(batch, Phase())
    own = list(model.methods["saf"].parameters())
    heads = [*model.bottleneck.parameters(), *model.classifier.parameters()]
    for name, reached, spared in (("saf_look_ahead", own, heads), ("saf", heads, own)):
        gradients = torch.autograd.grad(losses[name], reached, retain_graph=True, allow_unused=True)
        assert any(each is not None and each.abs().max() > 0 for each in gradients)
        spared = torch.autograd.grad(losses[name], spared, retain_graph=True, allow_unused=True)
        assert all(each is None or not each.any() for each in spared)
    assert model.bottleneck.training
    assert model.classifier.training


def test_judges_are_those_of_whom_all_three_say_the_same():
    model, batch = make(LookAheadSAF())
    says = torch.eye(CLASSES).double()
    own, graph = torch.tensor([0, 0, 1, 1, 2, 2] * 2), torch.tensor([0, 0, 1, 2, 2, 2] * 2)
    second = torch.tensor([0, 1, 1, 1, 2, 2] * 2)
    model.methods["pseudo_labels"]._propagated = torch.cat([says[graph[:-1]], torch.zeros(13, CLASSES).double()])
    logits = torch.cat([torch.zeros(SOURCES, CLASSES), says[second]])
    batch = Batch(*[logits if name == "logits" else getattr(batch, name) for name in Batch.__match_args__])
    trusted = model.methods["saf"].trusted(batch, says[own])
    assert trusted.tolist() == [True, False, True, False, True, True, True, False, True, False, True, False]


# ---------------------------------------------------------------------------------------------- reliability


def test_evidence_is_log_odds_of_the_label_and_entropy_opinion_by_opinion():
    one, other = torch.tensor([[0.7, 0.2, 0.1], [1.0, 0.0, 0.0]]), torch.tensor([[0.1, 0.3, 0.6], [0.5, 0.5, 0.0]])
    found = evidence_of(torch.tensor([0, 1]), one, other).tolist()
    entropies = [[-sum(p * math.log(p) for p in row if p) for row in each.tolist()] for each in (one, other)]
    assert found[0] == pytest.approx([math.log(0.7 / 0.3), entropies[0][0], math.log(0.1 / 0.9), entropies[1][0]])
    assert found[1] == pytest.approx([-FARTHEST, 0, 0, entropies[1][1]], abs=1e-6)


@pytest.mark.parametrize("columns", [2, 6])
def test_reliability_is_where_the_penalised_likelihood_is_flat(columns):
    """The gradient of Σ log(1 + e^−±(w·x + b)) + |w|²/2 over columns of unit variance, b by bisection, in float64."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(300, columns)) * 2 ** rng.normal(size=columns)
    right = rng.random(300) < 1 / (1 + np.exp(-x[:, 0] - 1))
    found = reliability_weights(torch.from_numpy(x).float(), torch.from_numpy(right)).double().numpy()
    spread = x.std(0)
    z, w = x / spread, found * spread
    low, high = -20.0, 20.0
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if (1 / (1 + np.exp(-z @ w - middle)) - right).sum() < 0 else (low, middle)
    slope = z.T @ (1 / (1 + np.exp(-z @ w - low)) - right) + w
    assert np.abs(slope).max() < 0.1
    assert found[0] == pytest.approx(1, abs=0.5)


def test_beyond_the_graph_is_the_whole_less_what_the_graph_alone_tells():
    torch.manual_seed(0)
    evidence = torch.randn(200, 6)
    right = evidence[:, 0] + evidence[:, 3] + torch.randn(200) > 0
    whole, alone = reliability_weights(evidence, right), reliability_weights(evidence[:, :2], right)
    wanted = torch.cat([whole[:2] - alone, whole[2:]])
    torch.testing.assert_close(reliability_weights(evidence, right, beyond=True), wanted)


@pytest.mark.parametrize("right", [True, False])
def test_where_all_or_none_is_right_nothing_is_learned(right):
    assert reliability_weights(torch.randn(9, 6), torch.full((9,), right)).tolist() == [0] * 6


def test_a_refresh_is_a_function_of_the_weights_and_its_outcome_is_among_them():
    source, target = domains()
    model, batch = make(ReliabilitySAF(stand_ins(source, target)[1]))
    saf = model.methods["saf"]
    assert saf.evidence(batch, batch.target.logits, batch.target.logits).shape == (TARGETS, 6)
    model.float()
    saf.refresh()
    first = saf.saf.eta.weights.clone()
    assert first.abs().sum() > 0
    torch.randn(7)
    saf.refresh()
    assert torch.equal(model.state_dict()["methods.saf.saf.eta.weights"], first)
    assert model.classifier.training
    assert saf.refresh_every(100, 20.0) == model.methods["pseudo_labels"].refresh_every(100, 20.0) == 10


def test_stand_ins_are_no_part_of_what_is_left_and_have_the_targets_mean_but_for_chance():
    source, target = domains(60, 40)
    left, there = stand_ins(source, target)
    held = source.inputs[::HELD_OUT]
    assert (len(left), len(there)) == (48, 12 * len(PUSHES))
    assert not (left.inputs.unsqueeze(1) == held).all(2).any()
    assert there.labels.tolist() == source.labels[::HELD_OUT].tolist() * len(PUSHES)
    moved = held + target.inputs.mean(0) - source.inputs.mean(0)
    torch.testing.assert_close(there.inputs[:12], moved)
    partners = [(there.inputs[12 * n : 12 * n + 12] - (1 - push) * moved) / push for n, push in enumerate(PUSHES) if n]
    torch.testing.assert_close(*partners)
    assert all((target.inputs - partner).abs().sum(1).min() < 1e-4 for partner in partners[0])


# -------------------------------------------------------------------------------------------------- η itself


@pytest.mark.parametrize("difference", [-2.0, 0.0, 1.0])
def test_the_better_of_a_pair_gets_the_larger_share_as_often_as_its_reliability_says(difference):
    torch.manual_seed(0)
    evidence = torch.tensor([[difference], [0.0]])
    first, second = torch.zeros(20_000, dtype=torch.long), torch.ones(20_000, dtype=torch.long)
    eta = TiltedBeta()(evidence, first, second)
    assert (eta > 0.5).float().mean().item() == pytest.approx(1 / (1 + math.exp(-difference)), abs=0.015)
    assert ((eta - 0.5) ** 2).mean().item() == pytest.approx(0.25 / (2 * 0.2 + 1), abs=0.01)  # as Beta's
    literal = TiltedBeta(literal=True)(evidence, first[:1], second[:1])
    assert literal.item() == pytest.approx(1 / (1 + math.exp(-difference)))


def test_an_oracle_takes_the_right_one_and_draws_where_there_is_none_to_take():
    right = torch.tensor([1.0, 0.0, 1.0, 0.0]).unsqueeze(1)
    first, second = torch.tensor([0, 1, 0, 1]), torch.tensor([1, 0, 2, 3])
    torch.manual_seed(0)
    one, other = (OracleEta()(right, first, second).squeeze(1) for _ in range(2))
    assert one[:2].tolist() == other[:2].tolist() == [1, 0]
    assert (one[2:] != other[2:]).all()


def test_an_oracle_is_told_what_is_right_row_by_row():
    truth = torch.arange(24) % CLASSES
    model, batch = make(OracleSAF(truth))
    labels = torch.eye(CLASSES).double()[(truth[:TARGETS] + (torch.arange(TARGETS) % 4 == 0)) % CLASSES]
    told = model.methods["saf"].evidence(batch, labels, batch.target.logits)
    assert told.squeeze(1).tolist() == [float(i % 4 != 0) for i in range(TARGETS)]


# ----------------------------------------------------------------------------------------------------- study


@pytest.mark.parametrize("name", study.ROWS)
def test_every_row_runs(name):
    small = {"steps": 12, "network.bottleneck_width": 8, "network.classifier_width": 8, "batch": 8, "log_every": 4}
    line = study.fit(study.ROWS[name], *domains(), 0, small)
    assert 0 <= line["accuracy"] <= 100
    assert 0 <= line["eta"][0] <= 1


def test_a_study_goes_on_where_it_was_stopped_and_compares_run_by_run(tmp_path, monkeypatch):
    source, target = domains()
    for name, domain in (("x", source), ("y", target)):
        np.savez(tmp_path / f"{name}.npz", features=domain.inputs.numpy(), labels=domain.labels.numpy())
    content = {"title": "T", "preset": "default", "domains": {n: f"{n}.npz" for n in "xy"}, "rows": {"mdd": {}}}
    benchmark = from_dict("own", {**content, "tasks": ["x→y", "y→x"]})
    made = []

    def fit(row, source, target, seed, changes):
        made.append(row.title)
        worth = 80.0 + seed + (1 + seed % 2 if row.make else 0)
        return {"accuracy": worth, "eta": [0.5, 0.1], "cpu_seconds": 2.0 if row.make else 1.0}

    monkeypatch.setattr(study, "fit", fit)
    sets = study.data_sets(benchmark)
    for _ in range(2):
        study.fill(tmp_path / "runs.jsonl", benchmark, sets, tmp_path, ["beta", "oracle"], range(3), 9)
    assert len(made) == 2 * 2 * 3
    lines = [json.loads(line) for line in (tmp_path / "runs.jsonl").read_text().splitlines()]
    beta, oracle = study.table(lines, "beta").splitlines()[2:]
    assert beta == "| Beta(0.2, 0.2) | 81.0 | 6 | 1.00 |"
    # Differences 1, 2, 1 on either task: mean 4/3, s² = 1/3, so the mean's variance is (1/3)/6, with 4 degrees
    reach = 2.7764 * math.sqrt(1 / 18)
    assert oracle == f"| oracle | +1.3 [{4 / 3 - reach:+.1f}, {4 / 3 + reach:+.1f}] | 6 | 2.00 |"
